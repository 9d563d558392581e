"""Arrays and checkpoints of a run: in this process's memory, or in a store that workers read and another run resumes.

Iterations write checkpoints to the store, from the last of which a killed run resumes. What does not match its checksum
is discarded, and computed again by its tasks.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dkrr.cluster import Progress
from dkrr.cluster.folders import PrivateFolder
from dkrr.cluster.process import graceful_termination
from dkrr.config import setting
from dkrr.data.rows import digest_of
from dkrr.errors import DamagedChunkError, StoreError, UnreachableStoreError
from dkrr.fitting.growing_iterations import BeforeGrowth, read_before
from dkrr.fitting.kept_preconditioner import KeptPreconditioner
from dkrr.linalg.iteration_state import State
from dkrr.linalg.sources import Vectors
from dkrr.store import ChunkedArray, RunStore, TiledMatrix, TileGrid
from dkrr.store.lock import check_owned, owned
from dkrr.store.paths import resolved_place
from dkrr.store.run_store import ASKED, CHECKPOINT, FACTOR, PIVOTS, STAGE, UNLIKE_OURS, WORK


class Storage(ABC):
    """Arrays of one run by group and name, and small values by name."""

    keeps: bool
    """Whether the arrays stay after the run, for one that resumes it."""

    @abstractmethod
    def vectors(self, group: str, name: str, grid: TileGrid, width: int, data: Any = None) -> Vectors:
        """Array of shape (n, width), in chunks of tile rows if it is stored; filled if `data` is given."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Delete a group, or one array."""

    @abstractmethod
    def note(self, name: str) -> Any:
        """Value that was noted under a name; None if none was."""

    @abstractmethod
    def set_note(self, name: str, value: Any) -> None:
        """Note a value of JSON's types."""

    @abstractmethod
    def note_stage(self, name: str, done: float = 0.0) -> None:
        """Note the last stage that has begun and how much of it is done, for `dkrr.status`."""

    @abstractmethod
    def check(self) -> None:
        """Raise if another run has taken it.

        Raises
        ------
        BusyStoreError
            Naming the new owner.
        """


@dataclass(eq=False)
class MemoryStorage(Storage):
    """Storage in this process's memory."""

    keeps = False
    _notes: dict[str, Any] = field(default_factory=dict)

    def vectors(self, group: str, name: str, grid: TileGrid, width: int, data: Any = None) -> NDArray[np.float64]:  # noqa: ARG002
        return np.empty((grid.n, width)) if data is None else np.asarray(data, np.float64).reshape(grid.n, width)

    def delete(self, name: str) -> None:
        """See base class; arrays in memory are deleted with what refers to them."""

    def note(self, name: str) -> Any:
        return self._notes.get(name)

    def set_note(self, name: str, value: Any) -> None:
        self._notes[name] = value

    def note_stage(self, name: str, done: float = 0.0) -> None:
        """See base class; a run in memory is not resumed."""

    def check(self) -> None:
        """See base class; the memory of this process is its own."""


@dataclass
class StoredArrays(Storage):
    """Storage in a Zarr store."""

    store: RunStore
    keeps: bool
    _groups: set[str] = field(default_factory=set)
    """Groups that exist."""
    _is_claimed: bool = False
    """The store belongs to the problem of this run."""

    def vectors(self, group: str, name: str, grid: TileGrid, width: int, data: Any = None) -> ChunkedArray:
        """See base class; what an earlier run has written is kept unless `data` is given."""
        self._begin(group)
        array = self.store.create_array(f"{group}/{name}", (grid.n, width), (grid.tile, width))
        if data is not None:
            array.complete(np.asarray(data, np.float64).reshape(grid.n, width))
        return array

    def matrix(self, group: str, name: str, grid: TileGrid, dtype: str = "float64") -> TiledMatrix:
        """Lower triangle in tiles."""
        self._begin(group)
        return self.store.matrix(f"{group}/{name}", grid, dtype)

    def check(self) -> None:
        check_owned()

    def begin(self, asked: dict[str, Any]) -> None:
        """Note what is asked of the run that has the store now; a result of another question is that no longer."""
        self._is_claimed = True
        if not self.keeps or not asked:
            return
        before = self.store.note(ASKED)
        if not isinstance(before, dict) or {**before, "planned": None} != {**asked, "planned": None}:
            with suppress(StoreError, OSError):  # a finished run may be read where nothing can be written
                self.store.set_notes({ASKED: asked, WORK: None, STAGE: None})

    def note_stage(self, name: str, done: float = 0.0) -> None:
        """See base class; nothing else depends on it, so a disk that cannot be written to does not matter."""
        if not self.keeps:
            return
        with suppress(StoreError, OSError):
            found = self.store.description()
            # What is refused later leaves no trace in the run of another problem, and reading a result none in its run.
            if found is not None and (self._is_claimed or found["fingerprint"] is None) and not self.store.note(WORK):
                self.store.set_note(STAGE, {"name": name, "done": done})

    def _begin(self, group: str) -> None:
        if group not in self._groups:
            self.store.create_group(group)
            self._groups.add(group)

    def delete(self, name: str) -> None:
        self.store.delete(name)
        self._groups.discard(name)

    def note(self, name: str) -> Any:
        return self.store.note(name)

    def set_note(self, name: str, value: Any) -> None:
        self.store.set_note(name, value)


class EndsWhenLost(Progress):
    """Ends a run whose store is lost with the next work that is done: a stage may take hours.

    Parameters
    ----------
    storage : Storage
    """

    def __init__(self, storage: Storage) -> None:
        super().__init__()
        self._storage = storage

    def advance(self, flops: float) -> None:  # noqa: ARG002
        self._storage.check()


STAGE_SECONDS = 10.0
"""Time after which it is noted again how much of a stage is done."""
NOTE_SHARE = 0.01
"""Largest fraction of the time that such notes take."""


class StageNotes(Progress):
    """Notes in the store of a run which stage has begun, and at times how much of it is done.

    Parameters
    ----------
    storage : StoredArrays
    """

    def __init__(self, storage: StoredArrays) -> None:
        super().__init__()
        self._storage, self._name, self._noted, self._next = storage, "", 0.0, 0.0

    def begin(self, name: str, total: float, done: float) -> None:
        is_noted = name == self._name and not self._noted and not done and time.monotonic() < self._next
        self._name, self._total, self._done = name, total, done
        if not is_noted:
            self._note()

    def advance(self, flops: float) -> None:
        self._done += flops
        if time.monotonic() >= self._next:
            self._note()

    def end(self, *, failed: bool) -> None:
        pass

    def _note(self) -> None:
        began, self._noted = time.monotonic(), min(self._done / self._total, 1.0)
        self._storage.note_stage(self._name, self._noted)
        now = time.monotonic()
        self._next = now + max(STAGE_SECONDS, (now - began) / NOTE_SHARE)


class TemporaryFolder(PrivateFolder):
    """Folder of a run without a store; a model that reads there keeps it."""

    def __getstate__(self) -> None:
        raise TypeError(
            "this model's training rows lie in a temporary folder of this process; use dkrr.save(model, path), or "
            "fit with store=, to keep it"
        )


Array = NDArray[np.float64]

CHUNK_ROWS = 65536

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
    _last: Any = None
    """Digests and plain values of what is whole in the store; None if that is not known."""

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
            self._last = digests, found["plain"]
            return parse(arrays, found["plain"])
        except UnreachableStoreError:
            raise
        except UNLIKE_OURS as error:
            # The error's own advice is about tiles, which are computed again one by one.
            what = str(error).split(": ")[0]
            self.damage = f"the checkpoint of the run in this store is damaged ({what}): the iteration restarts"
            self.store.set_note(WORK, None)
            return None

    @property
    def has_any(self) -> bool:
        """Whether there is a checkpoint, damaged or not."""
        return self.store.note(CHECKPOINT) is not None

    def keep(self, name: str, arrays: dict[str, Array]) -> None:
        """Save arrays that do not change any more."""
        self._fill(name, arrays)
        self.store.set_note(name, sorted(arrays))

    def _fill(self, group: str, arrays: dict[str, Array]) -> None:
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
            self.damage = f"the results of the run in this store are damaged ({str(error).split(': ')[0]}): it restarts"
            return None

    def write(self, arrays: dict[str, Array], plain: dict[str, Any], shown: dict[str, Any]) -> None:
        """Save them, with what `dkrr.status` shows; they are complete when the store's description names them.

        The arrays of the last checkpoint stay: a finished run that is read again writes nothing.
        """
        digests = {name: digest_of(arrays[name]) for name in sorted(arrays)}
        if self._last == (digests, plain):
            return
        self._fill(f"{CHECKPOINT}-{self._turn}", arrays)
        self.store.set_note(CHECKPOINT, {"turn": self._turn, "arrays": digests, "plain": plain, "shown": shown})
        self._turn, self._last = 1 - self._turn, (digests, plain)


WRITE_SHARE = 0.025
"""Largest fraction of the time that writing checkpoints takes, but for the first one."""


@dataclass
class Checkpoints(Snapshots):
    """Checkpoints of conjugate gradient, with the pivots of its preconditioner."""

    pivots: Callable[[], NDArray[np.intp]] | None = None
    """Pivots of the preconditioner, which may have grown since the last checkpoint."""
    preconditioner: KeptPreconditioner | None = None
    """Columns of the preconditioner in the store."""
    part: str = ""
    """Which of several iterations of a run this is, one after the other; a checkpoint of another is not used."""
    _n_pivots: int = 0
    _saved_at: float = field(default_factory=time.monotonic)
    _write_seconds: float = 0.0
    """Time that the last checkpoint took."""

    def load(self) -> State | None:
        """Last complete checkpoint; None without one, or if it is damaged."""
        return self.read(self._of_part)

    def load_start(self) -> Array | None:
        """Solution that the run had before it grew, of the rows that it had then; None without one."""

        def solution(before: BeforeGrowth) -> Array | None:
            found = before.checkpoint()
            state = None if found is None else self._of_part(*found)
            return None if state is None or state.sizes is None else state.solution()

        return read_before(self.store, solution)

    def _of_part(self, arrays: dict[str, Array], plain: dict[str, Any]) -> State | None:
        """State of a checkpoint, unless it is of another part of the work."""
        return State.from_arrays(arrays, plain) if plain.get("part", "") == self.part else None

    def save_in_time(self, state: State) -> None:
        """Save if a kill would lose more than ``dkrr.checkpoint-seconds`` of work, and writing takes little of it.

        A preconditioner that is not kept, which a run that resumes computes again, is part of what is lost.
        """
        limit = float(setting("checkpoint-seconds"))
        again = 0.0 if self.preconditioner is None else self.preconditioner.again_seconds
        waited = max(limit - again, limit / 3, self._write_seconds / WRITE_SHARE) if limit else 0.0
        if time.monotonic() - self._saved_at >= waited:
            self.save(state)

    def save(self, state: State) -> None:
        """Save now."""
        if self.pivots is not None:
            self.save_pivots(self.pivots())
        if self.preconditioner is not None:
            self.preconditioner.follow()
        began = time.monotonic()
        arrays, plain = state.arrays()
        residual = {"residual": state.history[-1].largest} if state.history else {}
        self.write(arrays, plain | {"part": self.part}, {"iteration": state.iteration} | residual)
        self._saved_at = time.monotonic()
        self._write_seconds = self._saved_at - began

    def load_pivots(self) -> NDArray[np.intp] | None:
        """Pivots of the preconditioner of the run; None if they were not saved, or are damaged: others are as good."""
        name = self.store.note(PIVOTS)
        if name is None:
            return read_before(self.store, BeforeGrowth.pivots)
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


def note_given_up(store: str, layout: dict[str, Any], text: str, *, keeps_checkpoint: bool) -> None:
    """Note in a user's store that its iterations were given up: runs that resume it continue with the factorisation.

    Parameters
    ----------
    store : str
    layout : dict
        That of the factorisation.
    text : str
        What happened, and why.
    keeps_checkpoint : bool
        Whether the factorisation resumes from the last checkpoint: a step of Newton's method.
    """
    run = RunStore(resolved_place(store))
    with owned(run.url):
        pivots = run.note(PIVOTS)
        dropped = () if keeps_checkpoint else (CHECKPOINT,)
        # At once: a run that is killed in between would resume one form from a checkpoint of the other.
        run.change_layout({**layout, "given_up": text}, dict.fromkeys((PIVOTS, FACTOR, STAGE, *dropped)))
        for name in (pivots, FACTOR, *(f"{one}-{turn}" for one in dropped for turn in range(2))):
            if name is not None:
                run.delete(name)


MAX_ATTEMPTS = 5
"""Times that a run is begun again for damage: a disk that damages everything it is given is not to be used."""


def with_repairs(stores: Sequence[str], work: Callable[[], Value]) -> tuple[Value, tuple[str, ...]]:
    """Do the work of runs; where a part of their own stores is damaged, discard all that is, and resume.

    Each task owns the chunks that it writes and computes those that are missing, so the work that is done again is that
    of the damaged ones. The stores belong to this work all the time.

    Parameters
    ----------
    stores : sequence of str
        Stores of the runs; without any, nothing is kept that could be discarded.
    work : callable
        The runs, which resume from what the stores hold.

    Returns
    -------
    value
        Result of `work`.
    messages : tuple of str
        Descriptions of the parts that were discarded.

    Raises
    ------
    DamagedChunkError
        If another store is damaged, or damage appears again.
    """
    runs = [RunStore(resolved_place(store)) for store in stores]
    for run in runs:
        run.description()  # what is not a run is refused before a lock is written there
    messages, known = list[str](), set[tuple[str, str]]()
    with graceful_termination() if runs else nullcontext(), ExitStack() as stack:
        for run in runs:
            stack.enter_context(owned(run.url))
        while True:
            try:
                return work(), tuple(messages)
            except DamagedChunkError as error:
                where = error.url, error.key
                holding = [run for run in runs if run.holds(error.url)]
                if not holding or where in known or len(messages) == MAX_ATTEMPTS:
                    raise
                found = error
            known.add(where)
            messages.append(discarded(holding[0], found))


def discarded(run: RunStore, found: DamagedChunkError) -> str:
    """Delete every damaged part of a run's store, and return a message that names them.

    Parameters
    ----------
    run : RunStore
        Owned by the code around.
    found : DamagedChunkError
        The first one.
    """
    damaged = {(error.url, error.key) for error in run.damage()} | {(found.url, found.key)}
    for url, key in damaged:
        run.discard(url, key)
    run.set_note(WORK, None)  # what is discarded is left to compute
    first = ", ".join(sorted(f"{key} of {url.removeprefix(run.url).strip('/')}" for url, key in damaged)[:5])
    more = f" and {len(damaged) - 5} more" if len(damaged) > 5 else ""
    return f"damaged in the store, discarded and computed again: {first}{more}"
