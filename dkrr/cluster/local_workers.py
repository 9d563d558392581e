"""The cluster that dkrr starts without a client: a scheduler and workers, all in other processes.

A process of their own starts and watches them, so that nothing in the caller's changes for the time of a fit: not
Dask's configuration, the environment, logging, nor the way multiprocessing starts a process. Two fits at once do not
disturb each other, and a script without ``if __name__ == "__main__"`` is not imported by the workers, which would fit
in each of them.

Credentials of the cluster that dkrr starts: its own key and certificate, for TLS in both directions.

A scheduler runs what its clients send it, so it may take nothing from the other users of the machine, who reach the
ports of 127.0.0.1 too. Every process of the cluster, and its client, show the one certificate and accept no other.
The key is made for the cluster and ends with it. It goes from process to process by pipes; OpenSSL reads it from files
only, so distributed writes it to a folder that only this user may enter, for the time of that call.
"""

import json
import os
import pickle
import select
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.spawn import get_executable
from pathlib import Path
from typing import Any, Self

import dask

from dkrr.cluster import worker_settings
from dkrr.cluster.dkrr_local_server import MAX_STARTS, NOT_STARTED
from dkrr.cluster.process import ENDING
from dkrr.errors import DkrrError
from dkrr.text import format_bytes, plural


def new_credentials() -> Any:
    """A `distributed.security.Security` with a new key."""
    from distributed.security import Security  # while the other process imports it too

    # Given one by one: what is left out would be taken from Dask's configuration, which may be for another cluster.
    return Security.temporary(tls_min_version=ssl.TLSVersion.TLSv1_3, tls_max_version=None, tls_ciphers=None)


START_SECONDS = 60.0
"""Seconds to wait for the scheduler, and then for the workers."""
WORKER_START_SECONDS = 5.0
"""Seconds more for every worker: many that import at once share the cores and the disk."""
SCHEDULER_ANSWER_SECONDS = 2.0
"""Seconds for the scheduler to say which workers have started."""
POLL_SECONDS = 0.05
"""Seconds between two such questions."""
STOP_SECONDS = 20.0
"""Seconds given to the workers to end, before they are killed."""

LOCAL_WORKER_SETTINGS = {
    **worker_settings.WORKER_SETTINGS,
    # Of the nanny: what exceeds its limit is killed.
    "distributed.worker.memory.terminate": 1.0,
    "distributed.worker.memory.monitor-interval": "1s",
    "distributed.scheduler.worker-saturation": 2.0,
    "distributed.diagnostics.nvml": False,
    # What HTTP servers would answer until they are closed.
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
    # The scheduler's own address, on the loopback interface, is the one to use.
    "distributed.scheduler.contact-address": None,
    # A worker that died and starts slowly is not given up: the nanny itself starts it again.
    "distributed.deploy.lost-worker-timeout": "1 hour",
}

# Modules are found where the caller finds them, the user's as well. The main module is not imported: functions of it
# reach the workers by value (cloudpickle).
# First, Ctrl-C and other signals that ask a group of processes to end are ignored: the caller gets them and sends the
# word to stop, or ends, which is noticed. A caller that died gets no traceback. Workers inherit what is ignored, but
# not handlers: SIGTERM must end them.
_CODE = (
    "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    "[signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGHUP)]; "
    "signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]); "
    "import sys, json; sys.path[:] = json.loads(sys.stdin.buffer.readline() or sys.exit()); "
    "from runpy import run_path; run_path(sys.argv[2])['serve'](int(sys.argv[1]))"
)
_SERVER = str(Path(__file__).with_name("dkrr_local_server.py"))
"""Module that the process runs, and that workers import first."""
OF_THE_CALLER = ("pool", "scheduler", "shuffle")
"""Dask's settings for the caller's own graphs: threads, or a client, which other processes do not have."""


class LocalWorkers:
    """A process with a scheduler and single-threaded worker processes; a context manager.

    Parameters
    ----------
    n_workers : int
    memory_bytes : int
        Memory limit of each worker.
    scratch : str
        Folder for the workers' own files.
    """

    def __init__(self, n_workers: int, memory_bytes: int, scratch: str) -> None:
        self._n_workers, self._address = n_workers, ""
        self._options: dict[str, Any] = {"memory_limit": memory_bytes, "local_directory": scratch}

    def __enter__(self) -> Self:
        self._reader, writer = os.pipe()
        # The process inherits the mask of this thread: until it ignores Ctrl-C and the like, the signals wait.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, *ENDING])
        try:
            self._process = subprocess.Popen(
                # -P: the current folder is not one to import from, unless it is for the caller.
                [get_executable(), *subprocess._args_from_interpreter_flags(), "-P", "-c", _CODE, str(writer), _SERVER],  # type: ignore[attr-defined]
                stdin=subprocess.PIPE,
                pass_fds=[writer],
            )
        except OSError as error:
            os.close(self._reader)
            raise DkrrError(
                f"no process for workers can be started: {error.strerror or error}; expected a free process, memory "
                f"and open files: raise the limits (ulimit -u, -n), or give your own Dask client"
            ) from error
        except BaseException:
            os.close(self._reader)
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.close(writer)
        try:
            self._send()
        except BrokenPipeError:
            pass  # it has ended: `address` says so
        except BaseException:
            self.__exit__()
            raise
        return self

    def _send(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([p for p in sys.path if isinstance(p, str)]).encode() + b"\n")
        self._process.stdin.flush()  # it imports distributed now
        config = {k: v for k, v in dask.config.config.items() if k not in OF_THE_CALLER}
        settings = portable(config)
        given = dask.config.get("distributed.worker.preload", default=[], config=settings)
        preload = [given] if isinstance(given, str) else list(given or [])
        # The scheduler keeps a file there too, which its death would leave in Dask's own folder.
        place = {"temporary-directory": self._options["local_directory"]}
        dask.config.set(
            LOCAL_WORKER_SETTINGS | place | {"distributed.worker.preload": [_SERVER, *preload]}, config=settings
        )
        self._security = new_credentials()
        self._process.stdin.write(pickle.dumps((self._n_workers, self._options, self._security, settings)))
        self._process.stdin.flush()

    def address(self) -> str:
        """Address of the scheduler, once it has started.

        Raises
        ------
        DkrrError
            If the process ends, or is not ready in time.
        """
        if not self._address:
            ready = select.select([self._reader], [], [], START_SECONDS)[0]
            self._address = os.read(self._reader, 4096).decode() if ready else ""  # written at once
        if not self._address:
            why = "ended before it was ready" if ready else f"was not ready within {START_SECONDS:.0f} s"
            raise DkrrError(
                f"the process that starts the workers {why}; its messages are on stderr. Use your own Dask client, "
                f"or a memory_limit with which the work is done in this process"
            )
        return self._address

    @contextmanager
    def client(self) -> Iterator[Any]:
        """Client of the scheduler, once all workers have started; not the ambient one.

        Raises
        ------
        DkrrError
            If the process ends, or the workers have not started in time.
        """
        from distributed import Client  # while the other process imports it too

        deadline = time.monotonic() + START_SECONDS + WORKER_START_SECONDS * self._n_workers
        address = self.address()
        try:
            client = Client(address, set_as_default=False, timeout=START_SECONDS, security=self._security)
        except OSError as error:
            raise self._not_started() from error
        with client:
            while not self._have_started(client):
                if self.ended(POLL_SECONDS) is not None or time.monotonic() > deadline:
                    raise self._not_started()
            yield client

    def _have_started(self, client: Any) -> bool:
        try:
            # Not client.wait_for_workers: after the end of the scheduler that would wait for another one.
            return (
                len(client.sync(client.scheduler.ncores, callback_timeout=SCHEDULER_ANSWER_SECONDS)) >= self._n_workers
            )
        except (OSError, AttributeError):  # no answer in time, or no connection
            return False

    def ended(self, seconds: float = 1.0) -> int | None:
        """Exit status of the process, negative for a signal; None if it still runs after that time."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def _not_started(self) -> DkrrError:
        status = self.ended(0.0)
        why = "did not start in time" if status is None else f"did not start: {how_it_ended(status)}"
        return DkrrError(
            f"{plural(self._n_workers, 'worker')} with a memory limit of {format_bytes(self._options['memory_limit'])} "
            f"each {why}. The likely cause is memory, of the machine or of that limit. Use fewer workers "
            f"(dkrr.local.workers in Dask's configuration), a larger memory_limit, or your own Dask client. "
            f"Nothing was computed"
        )

    def __exit__(self, *_: object) -> None:
        os.close(self._reader)
        assert self._process.stdin is not None
        # A word, and not only the end of the pipe, which a fork of this process may hold open.
        with suppress(OSError):
            self._process.stdin.write(b"stop")
            self._process.stdin.flush()
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()  # the workers notice, and end
            self._process.wait()


def how_it_ended(status: int) -> str:
    """Words for the end of the process with the scheduler, with the likely cause."""
    if status == -signal.SIGKILL:
        return "the process with the scheduler was killed, as the system does where memory runs out"
    if status == NOT_STARTED:
        return f"a worker ended {MAX_STARTS} times while it started; the causes are on stderr"
    return f"the process with the scheduler ended with status {status}; its messages are on stderr"


def portable(config: dict[str, Any]) -> dict[str, Any]:
    """Settings that can be sent to another process; those that exist in this one only are left out."""
    kept: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, dict):
            kept[name] = portable(value)
            continue
        with suppress(Exception):  # whatever the value's own methods raise
            # Classes of the main module are left out too: the other process does not import it.
            if b"__main__" not in pickle.dumps(value):
                kept[name] = value
    return kept
