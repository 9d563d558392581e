"""The cluster that dkrr starts when there is none: a scheduler and workers, all in other processes.

A process of their own starts and watches them, so that nothing in the caller's changes for the time of a fit: not
Dask's configuration, the environment, logging, nor the way multiprocessing starts a process. Two fits at once do not
meet, and a script without ``if __name__ == "__main__"`` is not imported by the workers, which would fit in each of
them.
"""

import json
import os
import pickle
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.spawn import get_executable
from typing import Any, Self

import dask

from dkrr.errors import DkrrError

START_SECONDS = 60.0
"""For which a scheduler is waited for, and then the workers."""
STOP_SECONDS = 20.0
"""Given to the workers to end, before they are killed."""

SETTINGS = {
    # The plan bounds every task; spilling or pausing would only hide a broken promise. Killing stays on.
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": 1.0,
    "distributed.scheduler.worker-saturation": 2.0,
    "distributed.diagnostics.nvml": False,
    # Clocks, profiles and monitors wake every process 50 times a second, and a product that is interrupted begins
    # again with cold caches: with every core at work, GEMM loses 5 to 8 % to them (measured).
    "distributed.admin.tick.interval": "500ms",
    "distributed.admin.system-monitor.interval": "5s",
    "distributed.worker.memory.monitor-interval": "1s",
    "distributed.worker.profile.enabled": False,
}

# Modules are found where the caller finds them, the user's as well. The main module stays out of it: functions of it
# reach the workers by value (cloudpickle).
# First of all, Ctrl-C is for the caller, who then says stop; and a caller that has died has no use for a traceback.
_CODE = (
    "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    "signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT]); "
    "import sys, json; sys.path[:] = json.loads(sys.stdin.buffer.readline() or sys.exit()); "
    "from dkrr.runtime.local_workers import serve; serve(int(sys.argv[1]))"
)
OF_THE_CALLER = ("pool", "scheduler", "shuffle")
"""Dask's settings of where the caller's own graphs are computed: threads, or a client, which others do not have."""


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
        self._options = {"n_workers": n_workers, "memory_limit": memory_bytes, "local_directory": scratch}

    def __enter__(self) -> Self:
        self._reader, writer = os.pipe()
        # The process inherits the mask of this thread: until it ignores Ctrl-C, that waits.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            self._process = subprocess.Popen(
                # -P: the current folder is not one to import from, unless it is for the caller.
                [get_executable(), *subprocess._args_from_interpreter_flags(), "-P", "-c", _CODE, str(writer)],  # type: ignore[attr-defined]
                stdin=subprocess.PIPE,
                pass_fds=[writer],
            )
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
        config = {k: v for k, v in dask.config.config.items() if k not in OF_THE_CALLER}
        self._process.stdin.write(pickle.dumps((self._options, portable(config))))
        self._process.stdin.flush()

    def address(self) -> str:
        """Address of the scheduler, as soon as it is there.

        Raises
        ------
        DkrrError
            If the process ends, or is not ready in time.
        """
        deadline, text = time.monotonic() + START_SECONDS, b""
        while not text.endswith(b"\n"):
            left = deadline - time.monotonic()
            ready = select.select([self._reader], [], [], left)[0] if left > 0 else []
            part = os.read(self._reader, 4096) if ready else b""
            if not part:
                why = "ended before it was ready" if ready else f"was not ready within {START_SECONDS:.0f} s"
                raise DkrrError(
                    f"the process that starts the workers {why}; its messages are on stderr. Use a Dask client of your "
                    f"own, or a memory_limit with which the work is done in this process"
                )
            text += part
        return text.decode().strip()

    def __exit__(self, *_: object) -> None:
        os.close(self._reader)
        assert self._process.stdin is not None
        # A word, and not only the end of the pipe, of which a fork of this process may hold a copy.
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


def portable(config: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that can be sent to another process; what lives in this one only is left out."""
    kept: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, dict):
            kept[name] = portable(value)
            continue
        with suppress(Exception):  # whatever the value's own methods raise
            # Nor a class of the main module, which the other process does not import.
            if b"__main__" not in pickle.dumps(value):
                kept[name] = value
    return kept


def serve(writer: int) -> None:
    """Run a scheduler and workers until the parent says stop or ends: the main function of the process.

    Parameters
    ----------
    writer : int
        Descriptor of the pipe that the scheduler's address is written to.
    """
    parent, stdin = os.getppid(), sys.stdin.buffer
    os.set_inheritable(writer, False)
    try:
        options, config = pickle.load(stdin)
    except (EOFError, pickle.UnpicklingError):
        return  # the parent died
    from distributed import LocalCluster

    dask.config.set(config)
    dask.config.set(SETTINGS)
    with LocalCluster(
        threads_per_worker=1,
        processes=True,
        # The scheduler has an HTTP server in any case; the default port may be taken, by another fit for one.
        dashboard_address="127.0.0.1:0",
        scheduler_kwargs={"dashboard": False},
        silence_logs=50,
        **options,
    ) as cluster:
        with suppress(BrokenPipeError):  # the parent waits no longer
            os.write(writer, f"{cluster.scheduler_address}\n".encode())
        os.close(writer)
        while not select.select([stdin], [], [], 1.0)[0] and os.getppid() == parent:
            pass


@contextmanager
def local_client(n_workers: int, memory_bytes: int, scratch: str) -> Iterator[Any]:
    """Client of `LocalWorkers`, for the time of a block; not the ambient one.

    Parameters
    ----------
    n_workers, memory_bytes, scratch
        As for `LocalWorkers`.
    """
    with LocalWorkers(n_workers, memory_bytes, scratch) as workers:
        from distributed import Client  # while the other process imports it too

        with Client(workers.address(), set_as_default=False) as client:
            client.wait_for_workers(n_workers, timeout=START_SECONDS)
            yield client
