"""Objects that a process keeps in memory from one task to the next: blocks of a matrix, rows of a factor.

It is only a cache: a task that does not find an object computes it again (for example on another worker, after one was
lost).
"""

import os
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Any, TypeVar

T = TypeVar("T")

_guard = Lock()
_locks: dict[tuple[str, Hashable], Lock] = {}
_kept: dict[str, dict[Hashable, Any]] = {}
_reserved: dict[tuple[str, str], set[Hashable]] = {}


def kept(run: str, name: Hashable, make: Callable[[], T]) -> T:
    """Object that this process keeps under a name until `forget`; `make` is called once, by one thread."""
    with _guard:
        lock = _locks.setdefault((run, name), Lock())
    with lock:
        found = _kept.setdefault(run, {})
        if name not in found:
            found[name] = make()
        value: T = found[name]
        return value


def found(run: str, name: Hashable) -> Any:
    """Object that is kept under a name, or None."""
    return _kept.get(run, {}).get(name)


def has_room(run: str, kind: str, name: Hashable, most: int) -> bool:
    """Whether (kind, name) is kept already, or fewer than `most` of its kind are.

    A task that was sent to another worker than planned must not exceed what that one was planned to keep.
    """
    with _guard:
        names = _reserved.setdefault((run, kind), set())
        if name in names or len(names) < most:
            names.add(name)
            return True
        return False


def forget(run: str) -> None:
    """Release everything that was kept for a run."""
    with _guard:
        _kept.pop(run, None)
        for key in [k for k in _locks if k[0] == run]:
            del _locks[key]
        for pair in [k for k in _reserved if k[0] == run]:
            del _reserved[pair]


def _drop_all() -> None:
    """Called in a fork: a thread of the parent may hold the locks, and the parent's runs continue there."""
    global _guard
    _guard = Lock()
    for of_parent in (_locks, _kept, _reserved):
        of_parent.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drop_all)
