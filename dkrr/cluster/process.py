"""The calling process: whether it may start workers, how many threads it may use, and how it ends.

Three kinds of process must do the work of a fit themselves. A Dask task holds a slot of its worker: tasks that it sends
to the same cluster and waits for may never run. A process that multiprocessing or joblib started is one of several that
share the machine, and may be a daemon, which may have no children. A fork has the memory of its parent but none of its
threads: event loops, clients and pools that it finds there never answer.

SIGTERM and SIGHUP, where they would end the process at once, first end the run as Ctrl-C does. Batch systems,
`timeout`, containers and closed notebooks send SIGTERM, closed terminals SIGHUP. Python's default leaves temporary
folders and worker processes behind.
"""

import multiprocessing
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from dkrr import blas
from dkrr.errors import InputError
from dkrr.limits import ROOT, usable_cores
from dkrr.store.replacing import delete_unfinished

RECOUNT_SECONDS = 5.0
"""Seconds between two counts of the processes that share the machine."""

TASK = (
    "in the calling process, since the fit runs inside a Dask task: that holds a slot of its worker, and tasks which "
    "it waited for could wait for that slot forever (a fit within `with distributed.worker_client():` gives the slot "
    "up, and uses the cluster)"
)
CHILD = (
    "in the calling process, since multiprocessing or joblib started it: it is one of several that share the machine, "
    "and starts no workers"
)
FORK = "in the calling process, since it is a fork: event loops and clients of its parent do not work in it"


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
    worker = _worker_of_task() if "distributed.worker" in sys.modules else None
    if worker is not None:
        return Confinement(TASK, max(1, worker.state.nthreads), worker.memory_manager.memory_limit or None)
    client = current_client()
    if _fork.is_set() or (client is not None and not _is_of_this_process(client)):
        return Confinement(FORK, _n_siblings())
    return Confinement(CHILD, _n_siblings()) if multiprocessing.parent_process() is not None else None


def _n_siblings() -> int:
    """Processes that share the machine with this one: those that its parent started and that still run, itself too.

    Pools of joblib and of multiprocessing start all of theirs before the first works.
    """
    # Every fit asks, and to go through the processes of a machine takes milliseconds.
    return _count_siblings(os.getpid(), int(time.monotonic() / RECOUNT_SECONDS))


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


def ambient_client() -> Any:
    """Client that the user has made, if its cluster would do the work (`may_use`); None without one.

    Raises
    ------
    InputError
        If the client is asynchronous and this thread runs its event loop, which waiting would block forever.
    """
    client = current_client()
    if client is None or not may_use(client):
        return None
    if client.asynchronous:
        raise InputError(
            "the Dask client is asynchronous, and dkrr would wait for it in the thread of its event loop, forever; "
            "expected a synchronous client, or another thread: await asyncio.to_thread(model.fit, X, y)"
        )
    return client


def current_client() -> Any:
    """Client that Dask would use, in whatever state it is; None without one."""
    module = sys.modules.get("distributed.client")  # where it was never imported there is none; the import is slow
    with suppress(ValueError):
        return None if module is None else module.Client.current()
    return None


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


_fork = threading.Event()
"""Set where this process is a fork, in the child and before anything else runs there."""
os.register_at_fork(after_in_child=_fork.set)


def usable_threads(root: Path = ROOT) -> int:
    """Threads that work in the calling thread may use: all cores, or its share in a Dask task, a child or a fork."""
    cores, confined = usable_cores(root), confinement()
    return cores if confined is None else thread_share(confined, cores)


def thread_share(confined: Confinement, cores: int) -> int:
    """Threads for one of the tasks of this process, or of the processes that share the machine."""
    # joblib and Dask set the threads of BLAS such that the processes of a machine have a core for each.
    return max(1, min(blas.n_threads(), cores // confined.n_sharing))


ENDING = (signal.SIGTERM, signal.SIGHUP)
"""Signals that ask a process to end."""
PATIENCE_SECONDS = 30.0
"""Seconds after the first signal from which another one ends the process at once."""


class EndedBySignal(SystemExit):
    """Raised in the main thread by a signal that asks the process to end."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = number


@contextmanager
def graceful_termination() -> Iterator[None]:
    """Leave the block by an exception when the process is asked to end, and end it by that signal afterwards.

    Only in the main thread, where Python runs handlers, and only for signals that nobody else handles or ignores.
    """
    free: list[int] = []
    if threading.current_thread() is threading.main_thread():
        free = [number for number in ENDING if signal.getsignal(number) is signal.SIG_DFL]
    received: list[tuple[int, float]] = []

    def end(number: int, _: FrameType | None) -> None:
        now = time.monotonic()
        if not received:
            received.append((number, now))
            raise EndedBySignal(number)
        # The same request often comes twice, to the process and to its group: what ends in order goes on.
        if now > received[0][1] + PATIENCE_SECONDS:
            _end_now(number)

    for number in free:
        signal.signal(number, end)
    try:
        yield
    finally:
        if received:
            delete_unfinished()
            _end_now(received[0][0])
        for number in free:
            if signal.getsignal(number) is end:
                signal.signal(number, signal.SIG_DFL)


def _end_now(number: int) -> None:
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
