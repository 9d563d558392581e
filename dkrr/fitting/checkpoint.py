"""Checkpoints of iterations in the run's store, from the last of which a killed run resumes."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dkrr.config import setting
from dkrr.data.rows import digest_of
from dkrr.errors import StoreError, UnreachableStoreError
from dkrr.solvers.iteration_state import State
from dkrr.store import RunStore
from dkrr.store.lock import check_owned
from dkrr.store.run import CHECKPOINT, PIVOTS

Array = NDArray[np.float64]

CHUNK_ROWS = 65536

UNLIKE_OURS = (StoreError, LookupError, TypeError, ValueError, AttributeError, RecursionError)
"""What reading raises where a store holds something else than dkrr writes."""

Value = TypeVar("Value")


@dataclass
class Snapshots:
    """Arrays and plain values in two places that are written in turn: the last complete ones are never touched.

    Parameters
    ----------
    store : RunStore
    """

    store: RunStore
    damage: str = ""
    """Message about what could not be read of an earlier run; empty where nothing was damaged."""
    _turn: int = 0

    def read(self, parse: Callable[[dict[str, Array], dict[str, Any]], Value]) -> Value | None:
        """State that `parse` makes of the last complete ones; None without any.

        Also None if they are damaged, or not such a state: nothing else depends on them.
        """
        try:
            found = self.store.checkpoint()
            if found is None:
                return None
            turn, digests = found["turn"], found["arrays"]
            self._turn = 1 - turn
            arrays = {name: self.store.open_array(f"{CHECKPOINT}-{turn}/{name}").load() for name in digests}
            for name, array in arrays.items():
                if digest_of(array) != digests[name]:  # each may be whole, and of another time
                    raise StoreError(f"{name} is not of this checkpoint")
            return parse(arrays, found["plain"])
        except UnreachableStoreError:
            raise
        except UNLIKE_OURS as error:
            # The error's own advice is about tiles, which are computed again one by one.
            what = str(error).split(": ")[0]
            self.damage = f"the checkpoint of the run in this store is damaged ({what}): the iteration restarts"
            return None

    def keep(self, name: str, arrays: dict[str, Array]) -> None:
        """Save arrays that do not change any more."""
        self._fill(name, arrays)
        self.store.set_note(name, sorted(arrays))

    def _fill(self, group: str, arrays: dict[str, Array]) -> None:
        check_owned(self.store.url)
        self.store.delete(group)
        self.store.create_group(group)
        for name, array in arrays.items():
            shape = (array.shape[0], array.shape[1])
            stored = self.store.create_array(f"{group}/{name}", shape, (min(CHUNK_ROWS, shape[0]), shape[1]))
            stored.fill(np.ascontiguousarray(array))

    def kept(self, name: str) -> dict[str, Array] | None:
        """Arrays that `keep` saved; None if it did not, or they are damaged."""
        keys = self.store.note(name)
        try:
            return None if keys is None else {k: self.store.open_array(f"{name}/{k}").load() for k in keys}
        except UnreachableStoreError:
            raise
        except UNLIKE_OURS as error:
            self.damage = f"what the run in this store had found is damaged ({str(error).split(': ')[0]}): it restarts"
            return None

    def write(self, arrays: dict[str, Array], plain: dict[str, Any], shown: dict[str, Any]) -> None:
        """Save them, with what `dkrr.status` shows; they are complete when the store's description names them."""
        self._fill(f"{CHECKPOINT}-{self._turn}", arrays)
        digests = {name: digest_of(arrays[name]) for name in sorted(arrays)}
        self.store.set_note(CHECKPOINT, {"turn": self._turn, "arrays": digests, "plain": plain, "shown": shown})
        self._turn = 1 - self._turn


@dataclass
class Checkpoints(Snapshots):
    """Checkpoints of conjugate gradient, with the pivots of its preconditioner."""

    pivots: Callable[[], NDArray[np.intp]] | None = None
    """Pivots of the preconditioner, which may have grown since the last checkpoint."""
    part: str = ""
    """Which of several iterations of a run this is, one after the other; a checkpoint of another is not used."""
    _n_pivots: int = 0
    _saved_at: float = field(default_factory=time.monotonic)

    def load(self) -> State | None:
        """Last complete checkpoint; None without one, or if it is damaged."""
        return self.read(self._own)

    def _own(self, arrays: dict[str, Array], plain: dict[str, Any]) -> State | None:
        """State of a checkpoint, unless it is of another part of the work."""
        return State.from_arrays(arrays, plain) if plain.get("part", "") == self.part else None

    def save_in_time(self, state: State) -> None:
        """Save if the last checkpoint is older than ``dkrr.checkpoint-seconds``."""
        if time.monotonic() - self._saved_at >= setting("checkpoint-seconds"):
            self.save(state)

    def save(self, state: State) -> None:
        """Save now."""
        if self.pivots is not None:
            self.save_pivots(self.pivots())
        arrays, plain = state.arrays()
        residual = {"residual": state.history[-1].largest} if state.history else {}
        self.write(arrays, plain | {"part": self.part}, {"iteration": state.iteration} | residual)
        self._saved_at = time.monotonic()

    def load_pivots(self) -> NDArray[np.intp] | None:
        """Pivots of the preconditioner of the run; None if they were not saved, or are damaged: others are as good."""
        name = self.store.note(PIVOTS)
        if name is None:
            return None
        try:
            index = self.store.open_array(name).load()[:, 0].astype(np.intp)
        except UnreachableStoreError:
            raise
        except UNLIKE_OURS:
            return None
        self._n_pivots = len(index)
        return index

    def save_pivots(self, index: NDArray[np.intp]) -> None:
        """Save the pivots of the preconditioner, from which its factor is recomputed, unless they are saved already."""
        if len(index) == self._n_pivots:
            return
        name = f"pivots-{len(index)}"
        self.store.delete(name)
        # Whole numbers up to 2⁵³ are themselves in float64, whose chunks have checksums.
        array = self.store.create_array(name, (len(index), 1), (len(index), 1))
        array.fill(index.astype(np.float64)[:, None])
        self.store.set_note(PIVOTS, name)
        self._n_pivots = len(index)
