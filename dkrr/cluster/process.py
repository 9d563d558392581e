"""Kind of this process: whether it may start workers, and whether a client that it finds is its own.

`posix_limits` is Python's module `resource`, or None where the system lacks it.

Three kinds must do the work of a fit themselves. A Dask task holds a slot of its worker: tasks that it sends to the
same cluster and waits for may never run. A process that multiprocessing or joblib started is one of several that
share the machine, and may be a daemon, which may have no children. A fork has the memory of its parent but none of its
threads: event loops, clients and pools that it finds there never answer.
"""

import multiprocessing
import os
import sys
import threading
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import psutil

try:
    import resource
except ImportError:  # not a POSIX system
    posix_limits: Any = None
else:
    posix_limits = resource

ASK_SECONDS = 5.0
"""Seconds between two counts of the processes that share the machine."""

TASK = (
    "in the calling process, since the fit runs inside a Dask task: that holds a slot of its worker, and tasks which "
    "it waited for could wait for that slot for ever (a fit within `with distributed.worker_client():` gives the slot "
    "up, and uses the cluster)"
)
CHILD = (
    "in the calling process, since multiprocessing or joblib started it: it is one of several that share the machine, "
    "and starts no workers of its own"
)
FORK = "in the calling process, since it is a fork: event loops and clients of its parent do not work in it"


MAX_FILE_BYTES = 2**16
"""Bytes that are read of a file of the system; those that are read here are a few KiB long."""


def read_system_file(path: str) -> bytes:
    """Content of a file that the system generates, as those in /proc; raises OSError.

    Every fit reads some of them, and Python's buffers and paths would take longer than the system does.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, MAX_FILE_BYTES)
    finally:
        os.close(descriptor)


def this_process() -> psutil.Process:
    """Psutil's view of this process."""
    return _process(os.getpid())


@lru_cache(maxsize=1)  # making one reads files of the system, and every fit asks
def _process(number: int) -> psutil.Process:
    return psutil.Process(number)


@dataclass(frozen=True)
class Confinement:
    """Why a process does the work of a fit itself, and what it may take."""

    reason: str
    n_sharing: int = 1
    """Fits that may run at once in the same memory: tasks of this process, or processes that its parent started."""
    memory_limit: int | None = None
    """Bytes that the process may hold; None: not known."""


def confinement() -> Confinement | None:
    """Why this process must do the work itself; None if it may start workers or use those of its client."""
    worker = _worker_of_task()
    if worker is not None:
        return Confinement(TASK, max(1, worker.state.nthreads), worker.memory_manager.memory_limit or None)
    if _fork.is_one or _finds_a_client_of_its_parent():
        return Confinement(FORK, _n_siblings())
    return Confinement(CHILD, _n_siblings()) if multiprocessing.parent_process() is not None else None


def _n_siblings() -> int:
    """Processes that share the machine with this one: those that its parent started and that still run, itself too.

    Pools of joblib and of multiprocessing start all of theirs before the first works.
    """
    # Every fit asks, and to go through the processes of a machine takes milliseconds.
    return _count_siblings(os.getpid(), int(time.monotonic() / ASK_SECONDS))


@lru_cache(maxsize=1)
def _count_siblings(process: int, period: int) -> int:  # noqa: ARG001
    n, itself = 0, psutil.Process(process)
    parent = itself.parent()
    for other in [] if parent is None else parent.children():
        with suppress(psutil.Error):
            # Not the helpers that watch over semaphores and files, and not other programs.
            alive = other.status() != psutil.STATUS_ZOMBIE and other.name() == itself.name()
            n += alive and not any("resource_tracker" in part for part in other.cmdline())
    return max(1, n)


def may_use(client: Any) -> bool:
    """Whether tasks that this thread sends by a client get done: it is not a task's own, nor of a parent process."""
    if _worker_of_task() is not None or not _is_of_this_process(client):
        return False
    # A thread that a task started does not know its task, but finds the client of the worker.
    return has_seceded() or not client.id.startswith("Client-worker-")


def has_seceded() -> bool:
    """Whether this thread runs a Dask task that gave its slot up (`distributed.secede`, `worker_client`)."""
    pool = sys.modules.get("distributed.threadpoolexecutor")
    return pool is not None and getattr(pool.thread_state, "proceed", True) is False


def _worker_of_task() -> Any:
    """Worker of the task that this thread runs, unless that gave its slot up; None outside of tasks."""
    module = sys.modules.get("distributed.worker")  # where it was never imported, there is no task
    if module is None or has_seceded():
        return None
    try:
        return module.get_worker()
    except ValueError:
        return None


def _is_of_this_process(client: Any) -> bool:
    """Whether this process made a client and runs its event loop.

    The client itself is asked, and no list is kept: the client may be older than the first import of this module, and
    so may the fork that finds it.
    """
    try:
        maker = uuid.UUID(client.id[-36:]).clock_seq  # 14 bits of the process's id
    except ValueError:
        maker = None
    if maker is not None and maker != os.getpid() & 0x3FFF:
        return False
    # A thread of a fork may get the identifier that a thread of the parent had, so this alone does not suffice.
    loop_thread = getattr(client.loop.asyncio_loop, "_thread_id", None)
    return loop_thread is None or any(thread.ident == loop_thread for thread in threading.enumerate())


def _finds_a_client_of_its_parent() -> bool:
    module = sys.modules.get("distributed.client")
    if module is None:
        return False
    try:
        return not _is_of_this_process(module.Client.current())
    except ValueError:
        return False


class _Fork:
    """Whether this process is a fork."""

    def __init__(self) -> None:
        self.is_one = False

    def note(self) -> None:
        """Record a fork, in the child and before anything else runs there."""
        self.is_one = True


_fork = _Fork()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_fork.note)
