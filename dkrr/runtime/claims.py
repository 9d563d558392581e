"""Memory of the workers of one cluster that several fits, of several users, promise each other not to exceed together.

A fit tells the scheduler what it may hold in each worker, by the name of a task that does nothing: the scheduler counts
tasks by the first part of their names, keeps them for as long as the client that sent them is connected, and forgets
them when it ends, however it ends. Whoever plans another fit asks for these counts.
"""

import random
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from dkrr.errors import ClusterError, WorkersTakenError
from dkrr.runtime.dask_watch import CANCELLED, Watch, nothing
from dkrr.units import format_bytes

PREFIX, MEBIBYTE = "dkrr.holds.", 2**20
POLL_SECONDS = 0.005
"""Seconds between two questions whether the scheduler knows a claim: the client sends every 10 ms."""
RELEASE_SECONDS = 1.0
"""Longest wait until the scheduler has forgotten a claim."""
BACK_OFF_SECONDS = (0.05, 0.5)
"""Shortest and longest time until a fit that met another one asks again: two that wait equally long meet again."""

_own: WeakKeyDictionary[Any, list[int]] = WeakKeyDictionary()
"""MiB of each claim of a client of this process: what one user runs at once is one fit."""


class Others(NamedTuple):
    """Fits of other clients on the same workers."""

    n_fits: int
    n_bytes: int
    """Memory that they may hold in each worker, besides what a worker holds before its first task."""


def others(client: Any) -> Others:
    """Fits of other clients that run on a client's cluster now."""
    states = Watch(client).call(lambda: client.scheduler.get_task_prefix_states())
    claims = {int(name.removeprefix(PREFIX)): sum(n.values()) for name, n in states.items() if name.startswith(PREFIX)}
    own = list(_own.get(client, []))
    n_fits, mebibytes = sum(claims.values()) - len(own), sum(size * n for size, n in claims.items()) - sum(own)
    return Others(max(0, n_fits), max(0, mebibytes) * MEBIBYTE)


@contextmanager
def claimed(client: Any, n_bytes: int, room: int) -> Iterator[None]:
    """Claim memory of each worker for a fit.

    Parameters
    ----------
    client : distributed.Client
    n_bytes : int
        Memory that the fit may hold in each worker.
    room : int
        Most that other fits may hold there besides.

    Raises
    ------
    WorkersTakenError
        If others hold more by now.
    """
    mebibytes = -(-n_bytes // MEBIBYTE)
    while True:
        future = _claim(client, mebibytes)
        try:
            found = others(client)
            if found.n_bytes <= room:
                yield
                return
        finally:
            _release(client, future)
            _own[client].remove(mebibytes)
        # Both of two that claimed at the same time get here. The first to ask again finds the claim of the other gone.
        time.sleep(random.uniform(*BACK_OFF_SECONDS))
        found = others(client)
        if found.n_bytes > room:
            raise WorkersTakenError(
                f"{_fits(found.n_fits)} on the same workers meanwhile, and may hold {format_bytes(found.n_bytes)} of "
                f"each; the plan left {format_bytes(max(0, room))}. Run again: it is planned with what is "
                f"left. Nothing was computed"
            )


def _claim(client: Any, mebibytes: int) -> Any:
    """Future of a claim that the scheduler knows of."""
    key = f"{PREFIX}{mebibytes}-{uuid.uuid4().hex}"
    future = client.submit(nothing, key=key, pure=False, priority=1)
    while not _is_known(client, key):
        if future.status == "error":
            raise ClusterError(
                "the Dask scheduler cannot read dkrr's tasks; expected the same packages there as here: install dkrr "
                "where the scheduler runs. Nothing was computed"
            )
        time.sleep(POLL_SECONDS)
    _own.setdefault(client, []).append(mebibytes)
    return future


def _release(client: Any, future: Any) -> None:
    """Give up a claim, and wait until the scheduler has done so: the next fit of this client must not meet it."""
    deadline = time.monotonic() + RELEASE_SECONDS
    with suppress(*CANCELLED, OSError, RuntimeError, AttributeError, ClusterError):  # a lost scheduler keeps no claims
        future.release()
        while client.status == "running" and _is_known(client, future.key) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)


def _is_known(client: Any, key: str) -> bool:
    status = Watch(client).call(lambda: client.scheduler.get_task_status(keys=[key]))
    return status[key] is not None


def _fits(n: int) -> str:
    return "another fit was started" if n == 1 else f"{n} other fits were started"
