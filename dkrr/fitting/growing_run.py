"""The run in a store and a fit that has its rows and more, other outputs, or rows that it leaves out.

What of the run is still true stays, see `claim`. A factorisation of more rows is worked on beside the run, which
`RunStore.commit_growth` replaces in one write once all factors are complete: until then the call that made the run
still has its result. Everything else replaces the run at once, since nothing has to be computed first.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dkrr.data.rows import Checksums, digest_of
from dkrr.errors import InputError, NotFiniteError, NotPositiveDefiniteError, StoreError, UnreachableStoreError
from dkrr.fitting.kept import Kept
from dkrr.linalg.left_out import pays
from dkrr.store import ChunkedArray, TiledMatrix, TileGrid
from dkrr.store.fingerprints import differences, plain, refusal
from dkrr.store.run_store import CHECKPOINT, FACTORED, GROWTH, UNLIKE_OURS, WORK, RunStore, notes_of_iterations
from dkrr.text import plural

Array = NDArray[np.float64]

ROW_WEIGHTS = "row-weights"
"""Array of the weights that the rows of factors were scaled with; none where all are 1."""
WEIGHTS = ("sample_weight", "weight")
"""Names of the weights in fingerprints."""
CHUNK_ROWS = 2**20
"""Rows of a chunk of weights."""
MAX_PIECES = 8
"""Most arrays that one tile row of a factor lies in."""
FACTOR_GROUPS = {"cholesky": "system", "float32": "factored"}
"""Beginnings of the names of the groups of factors, by the solver of the layout."""

LEARNS = (
    "A run grows where its rows come first, as they were and in their order, and others after them. What learns from "
    "all rows learns something else from more: give kernel.fitted(X) for a kernel with a vocabulary or categories, "
    "FrozenEstimator(transformer) for a fitted transformer; centres that are drawn take another store. "
)
FEWER = (
    "The run has {theirs:,} rows, and this fit {ours:,}; expected all of the run, in their order: a row is left out by "
    "sample_weight=0. "
)


@dataclass(frozen=True)
class Offer:
    """A fit that may take over a run.

    Parameters
    ----------
    outputs : str
        Name of the outputs in its fingerprint, which may be others than those of the run.
    weights : ndarray of shape (n,) or None
    checksums : Checksums
        Of its rows, cut where the run ended.
    factors : bool
        Whether it factors the Gram matrix, so that a factor of the first rows serves.
    """

    outputs: str
    weights: Array | None
    checksums: Checksums
    factors: bool

    @property
    def n(self) -> int:
        """Rows of the fit."""
        return self.checksums.lengths[-1]

    def weights_of(self, first: int, stop: int) -> Array:
        """Weights of some rows."""
        return np.ones(stop - first) if self.weights is None else self.weights[first:stop]

    @property
    def blocks(self) -> dict[str, Any]:
        """Entry of the description by which the first rows that differ are named."""
        return {"ends": list(self.checksums.ends), "digests": list(self.checksums.blocks)}


class Claim(NamedTuple):
    """What a fit takes over."""

    kept: Kept | None = None
    messages: tuple[str, ...] = ()


def claim(
    store: RunStore, fingerprint: dict[str, Any], layout: dict[str, Any], notes: dict[str, Any], offer: Offer
) -> Claim:
    """Take the open store for a fit: begin a run, resume it, or grow it.

    Parameters
    ----------
    store : RunStore
    fingerprint, layout, notes
        As in `RunStore.claim`.
    offer : Offer

    Raises
    ------
    StoreError
        If the store belongs to another problem, or another version of dkrr began the run.
    """
    fingerprint, theirs = plain(fingerprint), store.fingerprint()
    entries = {"fingerprint": fingerprint, "layout": layout, "notes": notes, "blocks": offer.blocks}
    if theirs is None:
        weights = offer.weights_of(0, offer.n)
        store.begin(**entries, weights=_entry_of(weights, ""))
        _write_weights(store, weights)
        return Claim()
    run = _RunInStore(RunStore(store.url), theirs, offer)
    run.refuse_others(fingerprint)
    if not offer.factors:
        if theirs == fingerprint:
            _discard_growth(store)
            run.repair_weights()
            return Claim()
        return _replaced(store, run, entries)
    if run.serves and offer.n == run.n:
        if theirs == fingerprint:
            _discard_growth(store)
            run.repair_weights()
            return Claim(run.left_out())
        return _with_factors(store, run, entries)
    return _grown(store, run, entries)


@dataclass
class _RunInStore:
    """The run in a store, compared with a fit."""

    store: RunStore
    theirs: dict[str, Any]
    offer: Offer

    def __post_init__(self) -> None:
        self.described = self.store.description() or {}
        lengths = lengths_of(self.theirs)
        self.n = lengths[-1] if lengths else 0
        """Rows of the run."""
        self.weights = self._factor_weights() if self.n <= self.offer.n else None
        """Weights that the rows of its factors were scaled with; None: they are not known."""

    def refuse_others(self, ours: dict[str, Any]) -> None:
        """Refuse a fit whose run is not this one, nor grows from it.

        Raises
        ------
        WrongStoreError
            Naming what differs.
        """
        theirs, url = self.theirs, self.store.url
        names = [name for name in differences(theirs, ours) if not self._may_differ(name, ours)]
        where = remedy = ""
        if names and 0 < self.offer.n < self.n and not {"kernel", "dtype", "alpha"} & set(names):
            remedy, names = FEWER.format(theirs=self.n, ours=self.offer.n), ["shape"]
        elif names and self.offer.n > self.n > 0 and {"X", "kernel"} & set(names):
            remedy = LEARNS
        blocks = self.described["blocks"]
        if "X" in names and self.offer.n >= self.n and blocks is not None:
            found = self.offer.checksums.first_differing(blocks["ends"], blocks["digests"])
            where = "" if found is None else f", first in rows {found.start:,} to {found.stop - 1:,}"
        if not names:
            row = self._first_other_weight(ours)
            if row is not None:
                names = [next(name for name in WEIGHTS if name in ours)]
                where = f", first in row {row:,}" if row >= 0 else ""
        if names:
            raise refusal(url, theirs, ours, names, where=where, remedy=remedy)

    def _may_differ(self, name: str, ours: dict[str, Any]) -> bool:
        """Whether an entry may differ in a fit that grows from the run; weights are compared one by one."""
        other, mine, n_lengths = self.theirs.get(name), ours.get(name), len(lengths_of(self.theirs))
        if not n_lengths or self.offer.outputs not in self.theirs or self.offer.n < self.n:
            return False
        if name == self.offer.outputs or name in WEIGHTS:
            return mine is not None and other is not None
        if not isinstance(other, list) or not isinstance(mine, list):
            return False
        if name == "X":
            return len(other) == n_lengths and other[-1] == mine[n_lengths - 1]
        if name == "lengths":
            return bool(mine[:n_lengths] == other)
        if name == "shape":
            return bool(mine[1:] == other[1:])
        if name == "alpha":
            return {*map(str, other)} == {*map(str, mine)}
        return False

    def _first_other_weight(self, ours: dict[str, Any]) -> int | None:
        """First row whose weight was not 0 and is neither that nor 0; −1 if it is not known which; None: none."""
        if self.weights is None:
            name = next((name for name in WEIGHTS if name in ours), "")
            theirs = self.theirs.get(name)
            is_same = isinstance(theirs, list) and theirs[-1:] == ours[name][len(theirs) - 1 : len(theirs)]
            return None if is_same else -1
        now = self.offer.weights_of(0, self.n)
        others = np.flatnonzero((now != self.weights) & (now != 0) & (self.weights != 0))
        return int(others[0]) if len(others) else None

    def _factor_weights(self) -> Array | None:
        entry, now = self.described["weights"], self.offer.weights_of(0, self.n)
        if entry is None:
            return None
        for weights in (now, np.ones(self.n)):
            if digest_of(weights) == entry["digest"]:
                return weights
        try:
            found = None if entry["array"] is None else self.store.opened(entry["array"]).load()
        except UnreachableStoreError:
            raise
        except UNLIKE_OURS:
            return None
        return None if found is None or digest_of(found) != entry["digest"] else found[:, 0]

    @property
    def rows_left_out(self) -> NDArray[np.intp]:
        """Rows that the factors have and whose weight is 0 now."""
        assert self.weights is not None
        return np.flatnonzero((self.offer.weights_of(0, self.n) == 0) & (self.weights != 0))

    @property
    def serves(self) -> bool:
        """Whether factors of the run serve the fit."""
        return not self.why_not

    @property
    def why_not(self) -> str:
        """Why its factors do not serve; empty if they do."""
        if self.weights is None:
            return "the weights of its rows are not known"
        if ((self.weights == 0) & (self.offer.weights_of(0, self.n) != 0)).any():
            return "it has no part of rows whose weight was 0 and is not now"
        k = len(self.rows_left_out)
        return "" if pays(self.n, k) else f"{k:,} of its {self.n:,} rows are left out, so that a new factor is faster"

    def vectors(self, group: str, name: str) -> ChunkedArray | None:
        """Vectors of one of its systems."""
        try:
            return self.store.open_array(f"{group}/{name}")
        except UnreachableStoreError:
            raise
        except StoreError:
            return None

    def left_out(self, factor: Callable[[str], TiledMatrix | None] = lambda _: None, commit: Any = None) -> Kept | None:
        """What is kept of factors of the run; None if nothing but what is in the store already."""
        rows = self.rows_left_out
        if commit is None and not len(rows):
            return None
        scale = np.sqrt(self.weights) if len(rows) and self.weights is not None else None
        more = {} if commit is None else {"commit": commit}
        return Kept(self.n, factor, self.vectors, scale=scale, left_out=rows, **more)

    def weights_of_factors(self) -> Array:
        """Weights that the rows of factors of this fit are scaled with: of left-out rows those that they had."""
        further = self.offer.weights_of(self.n, self.offer.n)
        return (
            np.concatenate([self.weights, further])
            if self.serves and self.weights is not None
            else np.concatenate([self.offer.weights_of(0, self.n), further])
        )

    def repair_weights(self) -> None:
        """Write the weights that a killed call has not written, where they are those of this fit."""
        entry, weights = self.described["weights"], self.offer.weights_of(0, self.n)
        if entry is not None and entry["array"] is not None and digest_of(weights) == entry["digest"]:
            with suppress(StoreError, OSError):  # a finished run may be read where nothing can be written
                _fill(self.store, entry["array"], weights)

    def factor_names(self) -> list[str]:
        """Names of the matrices of the factors that a run of this layout has."""
        kind = FACTOR_GROUPS.get(self.described["layout"].get("solver", ""))
        alphas = self.theirs.get("alpha")
        count = len(set(map(str, alphas))) if isinstance(alphas, list) else 0
        return [] if kind is None else [f"{kind}-{number}/factor" for number in range(count)]

    def notes_of_factors(self) -> dict[str, Any]:
        """Notes that belong to factors."""
        notes = self.described["notes"]
        return {name: value for name, value in notes.items() if name.endswith("-broken")}

    def is_there(self, name: str) -> bool:
        """Whether a matrix has been begun."""
        try:
            return all(self.store.opened(array) for array, _, _ in self.store.matrix_arrays(name, self.n))
        except UnreachableStoreError:
            raise
        except StoreError:
            return False


def lengths_of(fingerprint: dict[str, Any]) -> list[int]:
    """Numbers of rows at which calls of a run have ended, the last of all its rows; empty of runs that cannot grow."""
    found = fingerprint.get("lengths")
    if not isinstance(found, list) or not all(type(one) is int for one in found):
        return []
    is_ascending = all(a < b for a, b in zip([0, *found], found, strict=False))
    return found if found and is_ascending else []


def _replaced(store: RunStore, run: _RunInStore, entries: dict[str, Any]) -> Claim:
    """Replace a run of which only what its iterations have found may serve, as their start."""
    offer, described, number = run.offer, run.described, store.new_number()
    store.replace(
        number,
        **_with_given_up(entries, described),
        rows=described["rows"] if offer.n == run.n else None,
        matrices={},
        before=_before(run),
        weights=_entry_of(offer.weights_of(0, offer.n), f"{GROWTH}{number}/"),
    )
    _write_weights(store, offer.weights_of(0, offer.n))
    is_start = bool(notes_of_iterations(described["notes"]))
    used = "its preconditioner, or its solution, is a start" if is_start else "nothing of it is used"
    what = "" if offer.n > run.n else " and other outputs or weights"
    return Claim(None, (f"the store had a run of {plural(run.n, 'row')}{what}: {used}",))


def _with_factors(store: RunStore, run: _RunInStore, entries: dict[str, Any]) -> Claim:
    """Replace a run by one of the same rows with other outputs, or other rows left out, which has the same factors."""
    described, arrays = run.described, run.store.matrix_arrays
    matrices = {name: arrays(name, run.n) for name in run.factor_names() if run.is_there(name)}
    notes = entries["notes"] | run.notes_of_factors()
    if is_factored(described):
        notes |= {FACTORED: run.n}
    store.replace(
        store.new_number(),
        **entries | {"layout": described["layout"], "notes": notes},
        rows=described["rows"],
        matrices=matrices,
        before=None,
        weights=described["weights"],
    )
    return Claim(run.left_out(), (_words(run, "the factor of the run in the store is kept"),))


def _grown(store: RunStore, run: _RunInStore, entries: dict[str, Any]) -> Claim:
    """Work on a growth beside the run, of which its factors serve if it has any."""
    offer, described = run.offer, run.described
    tile, panel = (entries["layout"][name] for name in ("tile", "panel"))
    grid, found = TileGrid(run.n, tile, panel), dict[str, TiledMatrix]()
    listed = {name: run.store.matrix_arrays(name, run.n) for name in run.factor_names()}
    if run.serves:
        each = {name: run.store.complete_matrix(arrays, grid) for name, arrays in listed.items()}
        found = {name: matrix for name, matrix in each.items() if matrix is not None}
    weights = run.weights_of_factors()
    growing = described["growing"]
    if growing is not None and growing["fingerprint"] == entries["fingerprint"]:
        store.resume_growth()
    else:
        number = store.new_number()
        matrices = {
            name: grown_arrays(listed[name], f"{GROWTH}{number}/{name}", run.n, offer.n, tile) for name in found
        }
        notes = entries["notes"] | (run.notes_of_factors() if found else {})
        store.begin_growth(
            number,
            **_with_given_up(entries | {"notes": notes}, described),
            rows=described["rows"] if offer.n == run.n else None,
            matrices=matrices,
            weights=_entry_of(weights, f"{GROWTH}{number}/"),
        )
    _write_weights(store, weights)
    commit = partial(store.commit_growth, **{FACTORED: offer.n})
    if not run.serves:
        message = f"the factor of the run in the store does not serve, since {run.why_not}: all rows are factored"
        return Claim(Kept(0, lambda _: None, commit=commit), (message,))

    def factor(group: str) -> TiledMatrix | None:
        name = f"{group}/factor"
        return found.get(name) if store.is_growing and store.has_grown(name) else None

    kept = "its factor is kept" if found else "it has no complete factor"
    return Claim(run.left_out(factor, commit), (_words(run, f"the run in the store grows, and {kept}"),))


def grown_arrays(
    listed: list[tuple[str, int, int]], name: str, n_kept: int, n: int, tile: int
) -> list[tuple[str, int, int]]:
    """Arrays of a factor that grows: those that it has, and new ones for the new rows.

    A tile row in MAX_PIECES arrays is written again as a whole, so that reading it does not take ever longer.

    Parameters
    ----------
    listed : list of tuple
        Arrays, each with its first row and the last one's successor.
    name : str
        Beginning of the names of new arrays.
    n_kept, n : int
        Rows, before and after.
    tile : int
        Rows of a tile.
    """
    begun = n_kept // tile * tile  # the last tile row, if it is not whole
    ends = [*(first for _, first, _ in listed[1:]), n_kept]
    if sum(end > begun for end in ends) >= MAX_PIECES:
        kept, cuts = [one for one in listed if one[1] < begun], [begun]
    else:
        kept, cuts = listed, [n_kept, -(-n_kept // tile) * tile]
    if not kept:
        return [(name, 0, n)]
    cuts = sorted({*(cut for cut in cuts if cut < n), max(cuts[0], n // tile * tile), n})
    return [*kept, *((f"{name}-{first}", first, stop) for first, stop in pairwise(cuts))]


def _words(run: _RunInStore, what: str) -> str:
    rows, n_left_out = plural(run.offer.n, "row"), len(run.rows_left_out)
    rows += f", {run.n:,} of them of the run" if run.offer.n > run.n else ""
    left_out = f"; {plural(n_left_out, 'row')} of weight 0 left out" if n_left_out else ""
    return f"{what}: {rows}{left_out}"


def _with_given_up(entries: dict[str, Any], described: dict[str, Any]) -> dict[str, Any]:
    """Entries of a run whose iterations were given up, as those of the one before."""
    given_up = described["layout"].get("given_up")
    return entries | ({"layout": {**entries["layout"], "given_up": given_up}} if given_up else {})


def _before(run: _RunInStore) -> dict[str, Any] | None:
    """Entry of what the iterations of a run have found; that of the run before, if this one has found nothing."""
    described, notes = run.described, notes_of_iterations(run.described["notes"])
    if CHECKPOINT not in notes and described["before"] is not None:
        before: dict[str, Any] = described["before"]
        return before
    group = f"{GROWTH}{described['generation']}" if described["generation"] else None
    return {"n": run.n, "group": group, "notes": notes} if notes else None


def is_factored(described: dict[str, Any]) -> bool:
    """Whether the factors of a run are complete, by its notes."""
    notes, layout = described["notes"], described["layout"]
    is_direct = layout.get("form") == "dual" and layout.get("solver") in FACTOR_GROUPS
    return is_direct and "y" in (described["fingerprint"] or {}) and bool(notes.get(WORK) or notes.get(FACTORED))


def _entry_of(weights: Array, group: str) -> dict[str, Any]:
    """Entry of the description for weights that the rows of factors are scaled with."""
    return {"digest": digest_of(weights), "array": None if (weights == 1).all() else f"{group}{ROW_WEIGHTS}"}


def _write_weights(store: RunStore, weights: Array) -> None:
    if not (weights == 1).all():
        _fill(store, store.inner(ROW_WEIGHTS), weights)


def _fill(store: RunStore, inner: str, weights: Array) -> None:
    n = len(weights)
    store.created(inner, (n, 1), (min(n, CHUNK_ROWS), 1), "float64").complete(weights[:, None])


def _discard_growth(store: RunStore) -> None:
    with suppress(StoreError, OSError):  # a finished run may be read where nothing can be written
        store.discard_growth()


@contextmanager
def given_up_if_refused(store: RunStore) -> Iterator[None]:
    """Give up a growth whose problem is refused while it is worked on: the run is then as it was."""
    try:
        yield
    except (InputError, NotPositiveDefiniteError, NotFiniteError):
        if store.is_growing:
            with suppress(StoreError, OSError):
                store.discard_growth()
                store.tidy()
        raise
