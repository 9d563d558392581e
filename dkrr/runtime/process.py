"""What kind of process this is: whether it may start workers, and whether a client that it finds is its own.

`posix_limits` is Python's module `resource`, or None where there is none.

Three kinds must do the work of a fit themselves. A Dask task holds a slot of its worker: tasks that it sends to the
same cluster and waits for may never get one. A process that multiprocessing or joblib started is one of several that
share the machine, and may be a daemon, which may have no children. A fork has the memory of its parent but none of its
threads: event loops, clients and pools that it finds there never answer.
"""

import multiprocessing
import os
import sys
import weakref
from dataclasses import dataclass
from typing import Any

try:
    import resource
except ImportError:  # not a POSIX system
    posix_limits: Any = None
else:
    posix_limits = resource

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


@dataclass(frozen=True)
class Confinement:
    """Why a process does the work of a fit itself, and what it may take."""

    reason: str
    n_sharing: int = 1
    """Tasks that run at once in this process, each of which may be a fit."""
    memory_limit: int | None = None
    """Bytes that the process may hold; None: not known."""


def confinement() -> Confinement | None:
    """Why this process must do the work itself; None if it may start workers or use those of its client."""
    worker = _worker_of_task()
    if worker is not None:
        return Confinement(TASK, max(1, worker.state.nthreads), worker.memory_manager.memory_limit or None)
    if _fork.is_one:
        return Confinement(FORK)
    return Confinement(CHILD) if multiprocessing.parent_process() is not None else None


def may_use(client: Any) -> bool:
    """Whether tasks sent by a client from here get done: it is not a task's own, and not that of a parent process.

    Parameters
    ----------
    client : distributed.Client
    """
    if _worker_of_task() is not None or client in _fork.inherited:
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


class _Fork:
    """Whether this process is a fork, and what it must not use."""

    def __init__(self) -> None:
        self.is_one = False
        self.inherited: weakref.WeakSet[Any] = weakref.WeakSet()

    def note(self) -> None:
        """Take note of a fork, in the child and before anything else runs there."""
        self.is_one = True
        module = sys.modules.get("distributed.client")
        if module is not None:
            try:
                self.inherited.add(module.Client.current())
            except ValueError:
                return


_fork = _Fork()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_fork.note)
