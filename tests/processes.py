"""Running the scripts of cluster/ as a user would, without leaving a process behind."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import threadpoolctl

CLUSTER = Path(__file__).resolve().parents[1] / "cluster"
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def environment(**variables: str) -> dict[str, str]:
    """This process's environment, its Python's commands first, without the settings that the scripts should make."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("DASK_", "SLURM_")) and k not in THREAD_VARIABLES}
    return {**kept, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}", **variables}


def blas_threads() -> int:
    """Most threads of any BLAS of this process."""
    return max(int(pool["num_threads"]) for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def session(command: Sequence[object], log: Path, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """A command in a session of its own; at the end SIGTERM, then SIGKILL to all that is left of the session."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment(**variables),
            cwd=CLUSTER.parent,  # where workers find these tests, whose functions Client.run sends by name
            start_new_session=True,
        )
    try:
        yield process
    finally:
        try:
            stop(process)
        finally:
            for left in of_session(process.pid):
                left.kill()


def stop(process: subprocess.Popen[bytes], seconds: float = 20) -> int:
    """Ask a command to stop and wait for it; its exit status."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    return process.wait(seconds)


def of_session(leader: int) -> list[psutil.Process]:
    """Processes that are left of a session."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == leader and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (ProcessLookupError, PermissionError, psutil.NoSuchProcess):
            continue
    return found


def gone(leader: int, seconds: float = 5) -> bool:
    """Whether nothing is left of a session, now or soon."""
    deadline = time.monotonic() + seconds
    while of_session(leader):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def wait_for_text(text: str, log: Path, process: subprocess.Popen[bytes], seconds: float = 60) -> None:
    """Until a command has printed a text."""
    deadline = time.monotonic() + seconds
    while text not in log.read_text():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
