"""Processes of the campaigns: children that carry out trials, fits in forks, and a Dask cluster.

``python -m tests.nightly.chaos.processes`` is a child: it reads lines of JSON with the name of a function and its
arguments, and answers each with a line. As a preload of Dask's workers this module lets each say which process it is.
"""

import contextlib
import ctypes
import faulthandler
import importlib
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Self

import psutil

from tests.nightly.chaos.outcomes import Outcome
from tests.processes import gone, of_session

ROOT = Path(__file__).parents[3]
START_SECONDS = 60.0
"""For the imports of the first trial, on a busy machine."""
GONE_SECONDS = 40.0
"""Seconds until all processes of a fit that ended must have ended."""
CLUSTER_SECONDS = 90.0
N_WORKERS = 3
MAX_WORDS = 6000
"""Characters of the last words of a process that are recorded."""
ENVIRONMENT = {
    "DASK_DKRR__QUICK_MEASUREMENT": "false",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONFAULTHANDLER": "1",
}
"""Fixed rates and one thread: plans, and with them results, are the same in every process."""
ADDRESS_SPACE = 8 * 2**30
"""Bytes that a child may map: an absurd allocation fails there, and does not take the machine's memory."""
ROOT_RIGHTS = "-dac_override,-dac_read_search"
"""Rights of root that a child gives up: to read and write files without permission."""
FOLDER = "CHAOS_WORKERS"
"""Variable of the environment with the folder for the numbers of workers' processes."""
FIT = "from tests.nightly.chaos.fits import main; main()"
"""Program of a fit: as a module its classes would be those of `__main__`."""
PR_SET_PDEATHSIG = 1
"""Operation of prctl(2)."""


def end_with_parent() -> None:
    """The system kills this process when the one that started it ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def confined(command: list[str]) -> list[str]:
    """Command that respects permissions, also as root, and whose memory is bounded."""
    rights = [f"--inh-caps={ROOT_RIGHTS}", f"--bounding-set={ROOT_RIGHTS}"]
    return ["prlimit", f"--as={ADDRESS_SPACE}", *(["setpriv", *rights] if os.geteuid() == 0 else []), *command]


def started(command: list[str], log: Path, variables: dict[str, str], **pipes: int) -> subprocess.Popen[bytes]:
    """A process that leads a session of its own, ends with this one, and writes what it says to a file."""
    with log.open("wb") as out:
        options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": out, **pipes}
        options |= {"start_new_session": True, "preexec_fn": end_with_parent}
        return subprocess.Popen(command, cwd=ROOT, env=os.environ | variables, **options)


# Children -----------------------------------------------------------------------------------------------------------


class Child:
    """A process that carries out trials one after another, and is started again when it dies; a context manager.

    Parameters
    ----------
    folder : Path
        Folder for its temporary files.
    seconds : float
        Time limit of one trial.
    is_confined : bool
        It respects permissions, also as root, and its memory is bounded.
    """

    def __init__(self, folder: Path, seconds: float, *, is_confined: bool = True) -> None:
        command = [sys.executable, "-m", "tests.nightly.chaos.processes"]
        self._folder, self._seconds, self._command = folder, seconds, confined(command) if is_confined else command
        self._process: Any = None
        folder.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the process and all that it started."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            with contextlib.suppress(BrokenPipeError), self._process:
                self._process.wait()

    def ask(self, function: str, *arguments: Any) -> dict[str, Any]:
        """Return what a function returned; an outcome CRASH or HANG with the last words if it did not.

        Parameters
        ----------
        function : str
            ``module:name``; it takes and returns values of JSON, a dictionary.
        """
        is_new, is_late = self._process is None or self._process.poll() is not None, threading.Event()
        if is_new:
            self.__exit__()
            variables, pipes = ENVIRONMENT | {"TMPDIR": str(self._folder)}, dict.fromkeys(("stdin", "stdout"), -1)
            self._process = started(self._command, self._folder / "messages", variables, **pipes)
        process = self._process
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps([function, arguments]).encode() + b"\n")
            process.stdin.flush()

        def give_up() -> None:
            is_late.set()
            process.send_signal(signal.SIGABRT)  # faulthandler then writes where every thread is

        alarm = threading.Timer(self._seconds + START_SECONDS * is_new, give_up)
        alarm.start()
        line = process.stdout.readline()
        alarm.cancel()
        if line:
            found: dict[str, Any] = json.loads(line)
            return found
        self.__exit__()
        lines = (self._folder / "messages").read_text(errors="replace").splitlines()
        last = "\n".join(line for line in lines if not line.startswith("Extension modules"))[-MAX_WORDS:]
        outcome = Outcome.HANG if is_late.is_set() else Outcome.CRASH
        return {"outcome": outcome, "detail": f"exit status {process.returncode}\n{last}"}


def share_out(
    calls: Iterable[tuple[int, tuple[Any, ...]]],
    children: Iterable[Child],
    done: Callable[[int, dict[str, Any]], None],
    is_over: Callable[[], bool],
) -> None:
    """Let children carry out calls of `Child.ask` until none is left or it is over.

    Parameters
    ----------
    calls : iterable of (int, tuple)
        Numbers of trials, and arguments of `Child.ask`.
    children : iterable of Child
    done : callable
        Called with the number of a trial and its answer, by one thread at a time.
    is_over : callable
        Whether no other trial is to be started.
    """
    lock, rest = threading.Lock(), iter(calls)

    def work(child: Child) -> None:
        with child:
            while True:
                with lock:
                    if is_over() or (one := next(rest, None)) is None:
                        return
                answer = child.ask(*one[1])
                with lock:
                    done(one[0], answer)

    # After Ctrl-C they end with this process, and the children with them.
    threads = [threading.Thread(target=work, args=(child,), daemon=True) for child in children]
    for step in (threading.Thread.start, threading.Thread.join):
        for thread in threads:
            step(thread)


# Fits ---------------------------------------------------------------------------------------------------------------


def left_of_session(leader: int, seconds: float) -> list[str]:
    """Commands of the processes that are left of a session after so many seconds; they are killed."""
    left: list[str] = []
    if gone(leader, seconds):
        return left
    for process in of_session(leader):
        with contextlib.suppress(psutil.Error):
            left.append(f"{process.pid} {' '.join(process.cmdline())[:200]}")
            process.kill()
    return left


class FitProcess:
    """A fit in a process that leads a session of its own."""

    def __init__(self, folder: Path, name: str, store: Path | None, place: str, address: str | None = None) -> None:
        self.folder = folder
        (folder / "tmp").mkdir(parents=True)
        arguments = {"name": name, "place": place, "address": address, "folder": folder, "store": store}
        self.started = time.monotonic()
        command = [sys.executable, "-c", FIT, json.dumps(arguments, default=str)]
        self.process = started(command, folder / "log", {"TMPDIR": str(folder / "tmp")})
        self.pid, self.poll = self.process.pid, self.process.poll

    def wait(self, seconds: float) -> int | None:
        """Exit status, or None if it has not ended after so many seconds: it is then killed, and says where it was."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.wait(seconds)
        self.process.send_signal(signal.SIGABRT)
        time.sleep(0.5)
        self.kill_all(signal.SIGKILL)
        self.process.wait()
        return None

    def kill_all(self, number: int) -> None:
        """Send a signal to all its processes at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def answer(self) -> Any:
        """What the fit gave: its result, or the outcome and words of an error."""
        return pickle.loads((self.folder / "answer").read_bytes())

    def words(self) -> str:
        """End of what it printed."""
        return (self.folder / "log").read_text(errors="replace")[-MAX_WORDS:]

    def temporary_files(self) -> list[str]:
        """Files that it left in its temporary folder, but for the locks that Dask leaves in any."""
        folder = self.folder / "tmp"
        return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file() and p.suffix != ".lock")

    def scheduler(self) -> list[psutil.Process]:
        """The process with the scheduler that dkrr started."""
        with contextlib.suppress(psutil.Error):
            return [p for p in psutil.Process(self.pid).children() if "dkrr_local_server" in " ".join(p.cmdline())]
        return []

    def workers(self) -> list[psutil.Process]:
        """Workers that dkrr started."""
        with contextlib.suppress(psutil.Error):
            children = [child for server in self.scheduler() for child in server.children(recursive=True)]
            lines = {child: " ".join(child.cmdline()) for child in children}
            return [c for c, line in lines.items() if "multiprocessing" in line and "resource_tracker" not in line]
        return []


# A cluster ----------------------------------------------------------------------------------------------------------


def dask_setup(worker: Any) -> None:
    """Called by Dask in each new worker."""
    Path(os.environ[FOLDER], str(os.getpid())).touch()


class Cluster:
    """A scheduler, and nannies with a worker each, as `dask scheduler` and `dask worker` start them; on loopback."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._number = folder, 0
        self._scheduler: subprocess.Popen[bytes] | None = None
        self.nannies: list[subprocess.Popen[bytes]] = []
        (folder / "workers").mkdir(parents=True)

    def ensure(self) -> str:
        """Start what is missing, wait until all workers have started, and return the address of the scheduler."""
        deadline, file = time.monotonic() + CLUSTER_SECONDS, self.folder / "scheduler.json"
        if self._scheduler is None or self._scheduler.poll() is not None:
            self.stop()
            file.unlink(missing_ok=True)
            self._scheduler = self._start("scheduler", "--host", "127.0.0.1", "--port", "0")
        self.forget_dead_nannies()
        while not file.exists() or len(self.workers()) < N_WORKERS:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the cluster did not start; see {self.folder}")
            if file.exists() and len(self.nannies) < N_WORKERS:
                self.add_nanny()
            time.sleep(0.02)
        return str(json.loads(file.read_text())["address"])

    def forget_dead_nannies(self) -> None:
        """Keep the nannies that run."""
        self.nannies = [nanny for nanny in self.nannies if nanny.poll() is None]

    def add_nanny(self) -> None:
        """Start a nanny, and do not wait for its worker."""
        self._number += 1
        options = "--nanny --nthreads 1 --nworkers 1 --memory-limit 1GiB --death-timeout 60 --preload dkrr.preload"
        options += f" --preload tests.nightly.chaos.processes --local-directory {self.folder}/worker-{self._number}"
        self.nannies.append(self._start("worker", *options.split()))

    def _start(self, what: str, *options: str) -> subprocess.Popen[bytes]:
        settings = {
            FOLDER: str(self.folder / "workers"),
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            # A new worker is there in a tenth of the time.
            "DASK_DISTRIBUTED__WORKER__MULTIPROCESSING_METHOD": "forkserver",
        }
        command = [sys.executable, "-m", f"distributed.cli.dask_{what}", *options, "--no-dashboard"]
        command += ["--scheduler-file", str(self.folder / "scheduler.json")]
        return started(command, self.folder / f"{what}-{self._number}.log", settings)

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
        for process in filter(None, [*self.nannies, self._scheduler]):
            for member in of_session(process.pid):
                with contextlib.suppress(psutil.Error):
                    member.kill()
            process.wait()
        self.nannies, self._scheduler = [], None


def main() -> None:
    """Answer until the parent closes the pipe."""
    faulthandler.enable(all_threads=True)
    # What libraries print must not end up between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        name, arguments = json.loads(line)
        module, function = name.split(":")
        try:
            answer = getattr(importlib.import_module(module), function)(*arguments)
        except BaseException:
            # A fault of the trial itself, which is shown as a failure.
            answer = {"outcome": Outcome.RAW, "detail": f"the trial failed: {traceback.format_exc()}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
