"""The preconditioner's factor in the store of a run, by columns as they are computed: a run that resumes reads it.

Columns are kept where they are worth it: computing them took a third of ``dkrr.checkpoint-seconds``, and ten times as
long as writing them should take. What is not kept is computed again from the pivots, or from the start.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkrr.errors import StoreError, UnreachableStoreError
from dkrr.fitting.costs.dual_cg_costs import is_worth_keeping
from dkrr.fitting.growing_iterations import BeforeGrowth, read_before
from dkrr.linalg import factor_rows
from dkrr.linalg.factor_rows import KeptColumns
from dkrr.linalg.pivoted_cholesky import FactorState, PivotedCholesky
from dkrr.store import ChunkedArray, RunStore
from dkrr.store.description import FACTOR_NOTE, matches
from dkrr.store.run_store import FACTOR, UNLIKE_OURS

Array = NDArray[np.float64]

COLUMN_CHUNK_BYTES = 8 * 2**20
"""Bytes of a chunk of columns in the store."""


@dataclass
class KeptPreconditioner:
    """Columns of the partial factor of a preconditioner in a store.

    Parameters
    ----------
    store : RunStore
    factor : PivotedCholesky
    write_bytes : float
        Bytes per second that the store should take from all workers together; measured once some are written.
    """

    store: RunStore
    factor: PivotedCholesky
    write_bytes: float
    _note: dict[str, Any] | None = None
    """Note on the panels that are complete in the store."""
    _begun: float = field(default_factory=time.monotonic)
    """Start of computing the columns that are not kept."""
    _is_carried: bool = False
    """The columns are those of the run before it grew, and are not kept with those of the new rows yet."""
    again_seconds: float = 0.0
    """Time that computing what is not kept took."""

    @property
    def rank(self) -> int:
        """Columns that are kept."""
        return 0 if self._note is None else int(self._note["panels"][-1][1])

    def load(self) -> bool | None:
        """Take the columns of an earlier run; whether it had all that it wanted, None where there are none.

        Those of the run before it grew are of fewer rows, or as many. Damaged columns are dropped: columns that can be
        computed again are not worth a message.
        """
        note = self.store.note(FACTOR)
        if note is None:
            return read_before(self.store, self._carry)
        try:
            if not self._restore(note, self.store.open_array):
                return None
        except UnreachableStoreError:
            raise
        except UNLIKE_OURS:
            with suppress(StoreError, OSError):  # a finished run may be read where nothing can be written
                self._drop()
            return None
        self._note = note
        self._begun = time.monotonic()
        return bool(note["complete"])

    def _restore(self, note: dict[str, Any], opened: Callable[[str], ChunkedArray]) -> bool:
        """Take the columns that a note describes; False where they cannot be those of this factor."""
        if not matches(note, FACTOR_NOTE):
            raise StoreError("the note is not as dkrr writes it")
        if note["panels"][-1][1] > self.factor.capacity:  # it was computed in more memory
            return False
        columns, state = _found(note, opened)
        if not self.factor.has_units_of(state):
            return False
        self.factor.restore_columns(columns, state)
        return True

    def _carry(self, before: BeforeGrowth) -> bool | None:
        """Take the columns of the run before it grew, and keep them with the new rows: they were worth it."""
        note = before.note(FACTOR)
        if note is None or not self._restore(note, before.open_array):
            return None
        self._is_carried, self._begun = True, time.monotonic()
        return bool(note["complete"])

    def _drop(self) -> None:
        self.store.set_note(FACTOR, None)
        self.store.delete(FACTOR)
        self._note = None

    def after_round(self) -> None:
        """Keep the columns so far, if that is worth it."""
        if self._is_worth_it():
            self._save(is_complete=False)

    def end(self) -> None:
        """Keep what the growth that has ended has added, if that is worth it."""
        if self._is_worth_it():
            self._save(is_complete=True)
        elif self._note is not None and self.factor.rank == self.rank and not self._note["complete"]:
            self._note |= {"complete": True}
            self.store.set_note(FACTOR, self._note)

    def follow(self) -> None:
        """Keep what has been added since, where the columns before are kept."""
        if self._note is not None and self.factor.rank > self.rank:
            self._save(is_complete=True)

    def _is_worth_it(self) -> bool:
        n_new = self.factor.rank - self.rank
        if n_new == 0:
            self.again_seconds = 0.0
            return False
        if self._is_carried:
            return True
        self.again_seconds = time.monotonic() - self._begun
        writing = self.factor.columns.n * n_new * np.dtype(self.factor.dtype).itemsize / self.write_bytes
        return is_worth_keeping(self.again_seconds, writing)

    def _save(self, *, is_complete: bool) -> None:
        factor, first, stop, began = self.factor, self.rank, self.factor.rank, time.monotonic()
        state, before = factor.state(), self._note
        if before is None or before["segments"] != [list(s) for s in factor.segments]:
            # Rows were cut for another number of workers: the columns before are written again, too.
            first, before = 0, None
            self._drop()
        self.store.create_group(FACTOR)
        cuts, n_bytes = [first, *(c for c in (factor_rows.HEAD_COLUMNS,) if first < c < stop), stop], 0
        for cut in pairwise(cuts):
            n_bytes += self._write_panel(*cut, state)
        self.write_bytes = n_bytes / max(time.monotonic() - began, 1e-6)
        panels = [] if before is None else before["panels"]
        self._note = {
            "panels": [*panels, *map(list, pairwise(cuts))],
            "segments": [list(s) for s in factor.segments],
            "traces": [list(line) for line in state.traces],
            "round": state.round,
            "exhausted": state.is_exhausted,
            "complete": is_complete,
        }
        self.store.set_note(FACTOR, self._note)
        for a, b in [*panels[-1:], *pairwise(cuts)][:-1]:
            self.store.delete(f"{FACTOR}/{a}-{b}/left")
        self._begun, self.again_seconds, self._is_carried = time.monotonic(), 0.0, False

    def _write_panel(self, first: int, stop: int, state: FactorState) -> int:
        """Write some columns, the first of F in float64; number of bytes."""
        factor, group = self.factor, f"{FACTOR}/{first}-{stop}"
        self.store.create_group(group)
        self.store.delete(group)  # of a run that was killed before it noted them
        self.store.create_group(group)
        dtype, width = np.dtype(np.float64 if stop <= factor_rows.HEAD_COLUMNS else factor.dtype), stop - first
        height = max(1, COLUMN_CHUNK_BYTES // (dtype.itemsize * width))
        arrays = [self._created(group, f"rows-{a}-{b}", (b - a, width), height, dtype.name) for a, b in factor.segments]
        factor.write_columns(first, arrays)
        numbers = {
            "index": state.index[first:stop, None].astype(np.float64),
            "corner": state.pivot_factor[first:stop, :stop],
            "left": state.residual_diagonal[:, None],
        }
        for name, values in numbers.items():
            height = max(1, COLUMN_CHUNK_BYTES // (8 * values.shape[1]))
            self._created(group, name, values.shape, height, "float64").fill(np.ascontiguousarray(values))
        return factor.columns.n * width * dtype.itemsize

    def _created(self, group: str, name: str, shape: tuple[int, ...], height: int, dtype: str) -> ChunkedArray:
        return self.store.create_array(f"{group}/{name}", shape, (min(height, shape[0]), shape[1]), dtype)


def _found(note: dict[str, Any], opened: Callable[[str], ChunkedArray]) -> tuple[list[KeptColumns], FactorState]:
    """Stored columns of a factor, and its state, from a note of the store."""

    def array(first: int, stop: int, name: str) -> ChunkedArray:
        return opened(f"{FACTOR}/{first}-{stop}/{name}")

    panels, index, pivot_factor = list[KeptColumns](), list[Array](), np.zeros((note["panels"][-1][1],) * 2)
    for first, stop in note["panels"]:
        index.append(array(first, stop, "index").load()[:, 0])
        pivot_factor[first:stop, :stop] = array(first, stop, "corner").load()
        parts = tuple((a, array(first, stop, f"rows-{a}-{b}")) for a, b in note["segments"])
        for _, rows in parts:
            rows.check_complete()
        panels.append(KeptColumns(first, stop, parts))
    left = array(first, stop, "left").load()[:, 0]
    traces = [(rank, float(trace)) for rank, trace in note["traces"]]
    state = FactorState(
        np.concatenate(index).astype(np.intp),
        pivot_factor,
        left,
        traces,
        note["round"],
        is_exhausted=note["exhausted"],
    )
    return panels, state
