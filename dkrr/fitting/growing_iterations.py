"""What iterations of a run have found before it grew: first guesses and pivots for those that follow.

Nothing depends on it: what is damaged is as if it had never been.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dkrr.data.rows import digest_of
from dkrr.errors import StoreError, UnreachableStoreError
from dkrr.store import ChunkedArray, RunStore
from dkrr.store.description import CHECKPOINT_NOTE, matches
from dkrr.store.run_store import CHECKPOINT, PIVOTS, UNLIKE_OURS

Array = NDArray[np.float64]
Value = TypeVar("Value")


@dataclass(frozen=True)
class BeforeGrowth:
    """Notes and arrays of the run that has grown.

    Parameters
    ----------
    store : RunStore
    entry : dict
        Entry "before" of its description: number of rows, group of the arrays, and notes.
    """

    store: RunStore
    entry: dict[str, Any]

    def note(self, name: str) -> Any:
        """Value noted under a name; None if nothing was noted."""
        return self.entry["notes"].get(name)

    def open_array(self, name: str) -> ChunkedArray:
        """Open an array of the run as it was."""
        group = self.entry["group"]
        return self.store.opened(name if group is None else f"{group}/{name}")

    def checkpoint(self) -> tuple[dict[str, Array], dict[str, Any]] | None:
        """Arrays and plain values of the last checkpoint; None without one."""
        found = self.note(CHECKPOINT)
        if not matches(found, CHECKPOINT_NOTE):
            return None
        arrays = {name: self.open_array(f"{CHECKPOINT}-{found['turn']}/{name}").load() for name in found["arrays"]}
        if any(digest_of(array) != found["arrays"][name] for name, array in arrays.items()):
            raise StoreError("an array is not of this checkpoint")
        return arrays, found["plain"]

    def pivots(self) -> NDArray[np.intp] | None:
        """Pivots of the preconditioner; None without any."""
        name = self.note(PIVOTS)
        return None if name is None else self.open_array(name).load()[:, 0].astype(np.intp)

    def kept(self, name: str) -> dict[str, Array] | None:
        """Arrays that do not change any more; None without any."""
        keys = self.note(name)
        return None if keys is None else {key: self.open_array(f"{name}/{key}").load() for key in keys}


def read_before(store: RunStore, parse: Callable[[BeforeGrowth], Value | None]) -> Value | None:
    """What `parse` makes of the run before it grew; None where it is damaged, or the run has not grown."""
    entry = (store.description() or {}).get("before")
    try:
        return None if entry is None else parse(BeforeGrowth(store, entry))
    except UnreachableStoreError:
        raise
    except UNLIKE_OURS:
        return None
