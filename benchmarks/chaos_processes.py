"""The processes that `benchmarks.chaos_kills` kills: fits in forks, and a Dask cluster."""

import atexit
import contextlib
import faulthandler
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from benchmarks.chaos_child import ROOT, end_with_parent
from benchmarks.chaos_preload import FOLDER

GONE_SECONDS = 40.0
"""Seconds until all processes of a fit that ended must have ended."""
CLUSTER_SECONDS = 90.0
N_WORKERS = 3


def of_session(leader: int) -> list[psutil.Process]:
    """Processes of a session that have not ended."""
    found = []
    for number in psutil.pids():
        with contextlib.suppress(ProcessLookupError, PermissionError, psutil.Error):
            if os.getsid(number) == leader:
                process = psutil.Process(number)
                if process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
    return found


def left_of_session(leader: int, seconds: float) -> list[str]:
    """Commands of the processes that are left of a session after so many seconds; they are killed."""
    deadline = time.monotonic() + seconds
    while of_session(leader) and time.monotonic() < deadline:
        time.sleep(0.05)
    left = []
    for process in of_session(leader):
        with contextlib.suppress(psutil.Error):
            left.append(f"{process.pid} {' '.join(process.cmdline())[:200]}")
            process.kill()
    return left


class FitProcess:
    """A fit in a fork of this process, which leads a session of its own.

    Imports of the libraries are those of this process; dkrr is imported in the fork, which is to be an ordinary process
    to it.
    """

    def __init__(self, folder: Path, name: str, store: Path | None, place: str, address: str | None = None) -> None:
        assert not any(module.startswith("dkrr") for module in sys.modules)
        self.folder = folder
        folder.mkdir(parents=True)
        (folder / "tmp").mkdir()
        self.started = time.monotonic()
        self.pid = os.fork()
        if self.pid == 0:
            _fit(folder, name, None if store is None else str(store), place, address)

    def poll(self) -> int | None:
        """Exit status, negative for a signal; None while it runs."""
        if self._status is None:
            number, status = os.waitpid(self.pid, os.WNOHANG)
            if number:
                self._status = os.waitstatus_to_exitcode(status)
        return self._status

    _status: int | None = None

    def wait(self, seconds: float) -> int | None:
        """Exit status, or None if it has not ended after so many seconds: it is then killed, and says where it was."""
        deadline = time.monotonic() + seconds
        while self.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        if self.poll() is not None:
            return self._status
        os.kill(self.pid, signal.SIGABRT)
        time.sleep(0.5)
        self.kill_all(signal.SIGKILL)
        while self.poll() is None:
            time.sleep(0.01)
        return None

    def kill_all(self, number: int) -> None:
        """Send a signal to all its processes at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def result(self) -> Any:
        """What the fit gave."""
        return pickle.loads((self.folder / "result").read_bytes())

    def error(self) -> tuple[str, str]:
        """Outcome and words of an error."""
        found: tuple[str, str] = pickle.loads((self.folder / "error").read_bytes())
        return found

    def words(self) -> str:
        """End of what it printed."""
        return (self.folder / "log").read_text(errors="replace")[-5000:]

    def temporary_files(self) -> list[str]:
        """Files that it left in its temporary folder, but for the locks that Dask leaves in any."""
        folder = self.folder / "tmp"
        return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file() and p.suffix != ".lock")

    def scheduler(self) -> list[psutil.Process]:
        """The process with the scheduler that dkrr started."""
        with contextlib.suppress(psutil.Error):
            return [p for p in psutil.Process(self.pid).children() if "local_server" in " ".join(p.cmdline())]
        return []

    def workers(self) -> list[psutil.Process]:
        """Workers that dkrr started."""
        found = []
        with contextlib.suppress(psutil.Error):
            for server in self.scheduler():
                for child in server.children(recursive=True):
                    line = " ".join(child.cmdline())
                    if "multiprocessing" in line and "resource_tracker" not in line:
                        found.append(child)
        return found


def _fit(folder: Path, name: str, store: str | None, place: str, address: str | None) -> None:
    """Fit in a fork, which ends as an interpreter does."""
    status = 1
    try:
        os.setsid()
        end_with_parent()
        log = os.open(folder / "log", os.O_CREAT | os.O_WRONLY)
        null = os.open(os.devnull, os.O_RDONLY)
        for descriptor, number in ((null, 0), (log, 1), (log, 2)):
            os.dup2(descriptor, number)
        sys.stdin, sys.stdout, sys.stderr = (open(k, mode) for k, mode in ((0, "r"), (1, "w"), (2, "w")))  # noqa: PTH123, SIM115
        faulthandler.enable()
        os.environ["TMPDIR"], tempfile.tempdir = str(folder / "tmp"), None
        status = _fitted(folder, name, store, place, address)
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    except KeyboardInterrupt:
        status = 130
        with contextlib.suppress(KeyboardInterrupt):
            atexit._run_exitfuncs()
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _fitted(folder: Path, name: str, store: str | None, place: str, address: str | None) -> int:
    from benchmarks.chaos_fits import fitted
    from benchmarks.chaos_trials import of_error
    from dkrr import KernelLogisticRegression, KernelRidge, KernelRidgeCV  # noqa: F401
    from dkrr.errors import DkrrError

    try:
        with contextlib.ExitStack() as stack:
            if address is not None:
                from distributed import Client

                stack.enter_context(Client(address, timeout="15s"))
            (folder / "started").touch()
            found = fitted(name, store, place)
        _write(folder / "result", found)
    except DkrrError as error:
        _write(folder / "error", of_error(error))
        return 3
    return 0


def _write(path: Path, value: Any) -> None:
    path.with_suffix(".part").write_bytes(pickle.dumps(value))
    path.with_suffix(".part").rename(path)


class Cluster:
    """A scheduler, and nannies with a worker each, as `dask scheduler` and `dask worker` start them; on loopback."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._number = folder, 0
        self._scheduler: subprocess.Popen[bytes] | None = None
        self.nannies: list[subprocess.Popen[bytes]] = []
        folder.mkdir(parents=True)

    @property
    def address(self) -> str:
        """Address of the scheduler."""
        import json

        return str(json.loads((self.folder / "scheduler.json").read_text())["address"])

    def ensure(self) -> None:
        """Start what is missing, and wait until all workers have started."""
        deadline = time.monotonic() + CLUSTER_SECONDS
        if self._scheduler is None or self._scheduler.poll() is not None:
            self.stop()
            (self.folder / "scheduler.json").unlink(missing_ok=True)
            options = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file"]
            self._scheduler = self._start("scheduler", *options, str(self.folder / "scheduler.json"))
            while not (self.folder / "scheduler.json").exists():
                self._pause(deadline)
        self.nannies = [nanny for nanny in self.nannies if nanny.poll() is None]
        while len(self.nannies) < N_WORKERS:
            self.add_nanny()
        while len(self.workers()) < N_WORKERS:
            self._pause(deadline)

    def _pause(self, deadline: float) -> None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the cluster did not start; see {self.folder}")
        time.sleep(0.02)

    def add_nanny(self) -> None:
        """Start a nanny, and do not wait for its worker."""
        self._number += 1
        place = self.folder / f"worker-{self._number}"
        self.nannies.append(
            self._start(
                "worker", "--scheduler-file", str(self.folder / "scheduler.json"), "--nanny", "--nthreads", "1",
                "--nworkers", "1", "--memory-limit", "1GiB", "--no-dashboard", "--local-directory", str(place),
                "--death-timeout", "60", "--preload", "dkrr.preload", "--preload", "benchmarks.chaos_preload",
            )
        )  # fmt: skip

    def _start(self, what: str, *options: str) -> subprocess.Popen[bytes]:
        (self.folder / "workers").mkdir(exist_ok=True)
        settings = {
            FOLDER: str(self.folder / "workers"),
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            # A new worker is there in a tenth of the time.
            "DASK_DISTRIBUTED__WORKER__MULTIPROCESSING_METHOD": "forkserver",
        }
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", f"distributed.cli.dask_{what}", *options],
                cwd=ROOT,
                env=os.environ | settings,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )

    def workers(self) -> list[psutil.Process]:
        """Workers that have started and live."""
        found, sessions = [], {nanny.pid for nanny in self.nannies}
        for path in (self.folder / "workers").iterdir():
            with contextlib.suppress(ProcessLookupError, psutil.Error):
                number = int(path.name)
                if os.getsid(number) in sessions and psutil.Process(number).status() != psutil.STATUS_ZOMBIE:
                    found.append(psutil.Process(number))
                    continue
            path.unlink(missing_ok=True)
        return found

    def scheduler(self) -> list[psutil.Process]:
        """Its process."""
        return [] if self._scheduler is None else [psutil.Process(self._scheduler.pid)]

    def stop(self) -> None:
        """Kill all its processes."""
        for process in [*self.nannies, *([] if self._scheduler is None else [self._scheduler])]:
            for member in of_session(process.pid):
                with contextlib.suppress(psutil.Error):
                    member.kill()
            process.wait()
        self.nannies, self._scheduler = [], None


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """A cluster that is stopped at the end."""
    found = Cluster(folder)
    try:
        yield found
    finally:
        found.stop()
