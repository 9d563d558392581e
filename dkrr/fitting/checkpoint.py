"""Checkpoints of conjugate gradient in the run's store, so that a killed run goes on from the last one."""

import json
import time
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dkrr.config import setting
from dkrr.solvers.conjugate_gradient import State, state_arrays, state_from_arrays
from dkrr.tiles import ChunkedArray, RunStore
from dkrr.tiles.arrays import create_array, open_array

CHUNK_ROWS = 65536


@dataclass
class Checkpoints:
    """Two places that are written in turn: the last complete checkpoint is never touched.

    Parameters
    ----------
    store : RunStore
    """

    store: RunStore
    _saved_at: float = field(default_factory=time.monotonic)
    _turn: int = 0

    def load(self) -> State | None:
        """Return the last complete checkpoint; None if there is none."""
        found = self.store.note("checkpoint")
        if found is None:
            return None
        self._turn = 1 - found["turn"]
        arrays = {
            name: ChunkedArray.open(self.store.at(f"checkpoint-{found['turn']}/{name}")).load()
            for name in found["arrays"]
        }
        return state_from_arrays(arrays, json.loads(found["plain"]))

    def save_in_time(self, state: State) -> None:
        """Save if the last checkpoint is older than ``dkrr.checkpoint-seconds``."""
        if time.monotonic() - self._saved_at >= setting("checkpoint-seconds"):
            self.save(state)

    def save(self, state: State) -> None:
        """Save; complete when it is noted in the store's description."""
        arrays, plain = state_arrays(state)
        group = f"checkpoint-{self._turn}"
        self.store.delete(group)
        self.store.create_group(group)
        for name, array in arrays.items():
            shape = (array.shape[0], array.shape[1])
            stored = ChunkedArray.create(self.store.at(f"{group}/{name}"), shape, (min(CHUNK_ROWS, shape[0]), shape[1]))
            stored.fill(np.ascontiguousarray(array))
        self.store.set_note("checkpoint", {"turn": self._turn, "arrays": sorted(arrays), "plain": json.dumps(plain)})
        self._turn = 1 - self._turn
        self._saved_at = time.monotonic()

    def load_pivots(self) -> NDArray[np.intp] | None:
        """Pivots of the preconditioner of the run; None if they were not saved."""
        name = self.store.note("pivots")
        return None if name is None else np.asarray(open_array(self.store.at(name))[...], np.intp)

    def save_pivots(self, index: NDArray[np.intp]) -> None:
        """Remember the pivots of the preconditioner: the factor is made again from them."""
        name = f"pivots-{len(index)}"
        self.store.delete(name)
        create_array(self.store.at(name), index.shape, np.int64)[...] = index
        self.store.set_note("pivots", name)
