"""Reading the next panel, and writing the last one, while the current one is being multiplied."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import TypeVar

from dkrr.runtime.task import Meter

N_SLOTS = 2
"""Buffers that a caller of `prefetched` keeps: one in use, one being filled."""


@cache
def writer() -> ThreadPoolExecutor:
    """One thread that writes finished panels: writing waits for the disk more than it computes."""
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="dkrr-write")


@cache
def _readers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=16, thread_name_prefix="dkrr-read")


if hasattr(os, "register_at_fork"):  # a fork has the pools of its parent, and none of their threads
    os.register_at_fork(after_in_child=writer.cache_clear)
    os.register_at_fork(after_in_child=_readers.cache_clear)


T = TypeVar("T")


def prefetched(n: int, load: Callable[[int, int], T], meter: Meter, *, waits: bool) -> Iterator[T]:
    """Results of ``load(k, slot)`` for k = 0 ... n − 1, each loaded while the one before is in use.

    The first begins to load at once: with two of these, what both load is loaded at the same time.

    Parameters
    ----------
    n : int
    load : callable
        Fills buffer number `slot` (0 or 1); what slot k % 2 held is no longer in use when k is loaded.
    meter : Meter
        Counts the time spent waiting as "read".
    waits : bool
        Whether loading waits for a disk; nothing is loaded ahead that lies in memory.
    """
    if not waits or n == 0:
        return (load(k, 0) for k in range(n))
    return _loaded(_readers().submit(load, 0, 0), n, load, meter)


def _loaded(ahead: "Future[T]", n: int, load: Callable[[int, int], T], meter: Meter) -> Iterator[T]:
    for k in range(n):
        with meter.time("read"):
            current = ahead.result()
        if k + 1 < n:
            ahead = _readers().submit(load, k + 1, (k + 1) % N_SLOTS)
        yield current
