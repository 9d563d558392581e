"""Objects that a process keeps in memory from one task to the next: blocks of a matrix, rows of a factor.

It is only a cache: a task that does not find an object computes it again (for example on another worker, after one was
lost).
"""

import os
from collections import defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass
class _Run:
    """Objects cached in this process for one run, one lock per name, and the names admitted by kind."""

    objects: dict[Hashable, Any] = field(default_factory=dict)
    locks: defaultdict[Hashable, Lock] = field(default_factory=lambda: defaultdict(Lock))
    names: defaultdict[str, set[Hashable]] = field(default_factory=lambda: defaultdict(set))


_guard = Lock()
_runs: defaultdict[str, _Run] = defaultdict(_Run)


def get_or_create(run: str, name: Hashable, make: Callable[[], T]) -> T:
    """Object that this process keeps under a name until `forget`; `make` is called once, by one thread."""
    with _guard:
        of_run = _runs[run]
        lock = of_run.locks[name]
    with lock:
        if name not in of_run.objects:
            of_run.objects[name] = make()
        value: T = of_run.objects[name]
        return value


def get(run: str, name: Hashable) -> Any:
    """Object that is kept under a name, or None."""
    of_run = _runs.get(run)
    return None if of_run is None else of_run.objects.get(name)


def reserve(run: str, kind: str, name: Hashable, most: int) -> bool:
    """Whether (kind, name) is kept already, or fewer than `most` of its kind are.

    A task that was sent to another worker than planned must not exceed what that one was planned to keep.
    """
    with _guard:
        names = _runs[run].names[kind]
        if name in names or len(names) < most:
            names.add(name)
            return True
        return False


def forget(run: str) -> None:
    """Release everything that was kept for a run."""
    with _guard:
        _runs.pop(run, None)


def _drop_all() -> None:
    """Called in a fork: a thread of the parent may hold the locks, and the parent's runs continue there."""
    global _guard
    _guard = Lock()
    _runs.clear()


os.register_at_fork(after_in_child=_drop_all)
