"""Partial Cholesky factorisation with pivots: A ≈ F Fᵀ with F = A[:, S] L⁻ᵀ and L Lᵀ = A[S, S], of rank r = |S|.

F is spread over the workers by rows. It is built in rounds: pivots are proposed for a whole block of columns, those
that hold are found on a small matrix, and every worker then adds their columns to its rows (one GEMM), so the work is
O(n r²) at the speed of GEMM and each worker sees only its own rows of X and those of the pivots.

Pivots are drawn with probability proportional to what is left of the diagonal (RPCholesky, in its accelerated form by
rejection within a block, which has the same distribution as one pivot at a time), uniformly (Nyström), or are the
largest that is left (greedy; within a block exactly as long as no row outside it can be larger).

What is stored is the factor of A / c for a power of two c near the largest diagonal entry: F in float32 neither
overflows nor underflows where A is in the range of float64, and rows times a power of two have the same factor.

References
----------
Y. Chen, E. N. Epperly, J. A. Tropp, R. J. Webber, "Randomly pivoted Cholesky: practical approximation of a kernel
matrix with few entry evaluations", Comm. Pure Appl. Math. 2024. E. N. Epperly, J. A. Tropp, R. J. Webber, "Embrace
rejection: kernel matrix approximation by accelerated randomly pivoted Cholesky", 2024. C. Williams, M. Seeger, "Using
the Nyström method to speed up kernel machines", NIPS 2000. H. Harbrecht, M. Peters, R. Schneider, "On the low-rank
approximation by the pivoted Cholesky decomposition", Appl. Numer. Math. 2012.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import frexp, inf, ldexp, sqrt
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dkrr import blas
from dkrr.cost import Cost
from dkrr.kernels.base import EntryCost
from dkrr.linalg.columns import ColumnSource, DividedColumns
from dkrr.linalg.sources import clear_upper, gram_cost
from dkrr.runtime import Executor, Meter, RunRecord, Task, resident

Array = NDArray[np.float64]
PivotRule = Literal["rpcholesky", "uniform", "greedy"]

PANEL_ENTRIES = 2**19
"""Entries of F that are in float64 at once when it is stored in float32."""
BLOCKS_TO_RANK = 12
"""Rounds in which the wanted rank is reached if every proposal holds."""
MIN_BLOCK = 32
MAX_REBUILDS = 3
"""Times that lost rows are made again before one product: until a dead worker's successor is there, any may do."""

PRICED_RANKS = (250, 500, 750, 1000, 1500, 2000, 3000, 4000, 6000, 8000)
"""Ranks that a plan compares."""
SMALL_RANKS = (100, 50, 25, 10)
"""Ranks that a plan compares where none of those fits in memory."""
APPLY_SECONDS_PER_ENTRY = 1.2e-9
"""For both products of an entry of the float32 factor with one vector: it is read and converted twice."""
FACTOR_DTYPE = np.float32
"""Of a factor that preconditions: rounding makes another factor, as good a preconditioner, of half the size."""


class LostRowsError(Exception):
    """A worker does not have its rows of the factor (any more)."""


@dataclass(frozen=True)
class FactorRows:
    """Rows start ... stop − 1 of F: where they are kept, and how they are made."""

    columns: ColumnSource
    start: int
    stop: int
    run: str
    number: int
    capacity: int
    """Columns that there is memory for."""
    dtype: DTypeLike

    def state(self) -> "_State":
        """F here, in this process.

        Raises
        ------
        LostRowsError
            If it is not.
        """
        state: _State | None = resident.found(self.run, ("factor", self.number))
        if state is None:
            raise LostRowsError(self.number)
        return state

    def new_state(self) -> "_State":
        """Room for F in this process."""
        return resident.kept(
            self.run,
            ("factor", self.number),
            lambda: _State(np.empty((self.stop - self.start, self.capacity), self.dtype)),
        )


@dataclass
class _State:
    array: NDArray[Any]
    rank: int = 0

    def panels(self) -> Iterator[tuple[slice, Array]]:
        """Rows of F a panel at a time, in float64."""
        height = max(64, PANEL_ENTRIES // max(self.rank, 1))
        # One buffer for all: on a Dask worker, memory that is let go of returns to the system, and costs as much as the
        # product to get again.
        wide = np.empty((0 if self.array.dtype == np.float64 else min(height, len(self.array)), self.rank))
        for start in range(0, len(self.array), height):
            rows = slice(start, min(start + height, len(self.array)))
            panel = self.array[rows, : self.rank]
            if len(wide):
                np.copyto(wide[: len(panel)], panel)
                panel = wide[: len(panel)]
            yield rows, panel


@dataclass(frozen=True)
class NewColumns:
    """What a worker needs to add columns to its rows."""

    rank: int
    """Columns before."""
    taken: Any
    """The new pivots, as the source of columns wants them."""
    above: Array
    """F at the new pivots, of shape (new, rank)."""
    corner: Array
    """Cholesky factor L of what is left of A among them, of shape (new, new)."""


def extend_rows(meter: Meter, rows: FactorRows, new: NewColumns) -> Array:
    """Task: add columns; the squares of the new entries summed over each row, of shape (stop − start,)."""
    state = rows.new_state() if new.rank == 0 else rows.state()
    if state.rank < new.rank:
        raise LostRowsError(rows.number)
    k = len(new.corner)
    squares = np.empty(rows.stop - rows.start)
    state.rank = new.rank
    for where, panel in state.panels():
        with meter.time("gram"):
            block = rows.columns.block(slice(rows.start + where.start, rows.start + where.stop), new.taken)
        with meter.time("gemm"):
            if new.rank:
                blas.gemm(block, panel, new.above, transpose_b=True, alpha=-1.0, beta=1.0)
        with meter.time("trsm"):
            blas.solve_lower_right(new.corner, block)
        state.array[where, new.rank : new.rank + k] = block
        np.einsum("ij,ij->i", block, block, out=squares[where])
    state.rank = new.rank + k
    return squares


def gram_rows(meter: Meter, rows: FactorRows, weights: Array) -> Array:
    """Task: lower triangle of Fᵀ diag(v) F over its rows, of shape (r, r); `weights` is v, of shape (n,)."""
    state = rows.state()
    total = np.zeros((state.rank, state.rank))
    with meter.time("syrk"):
        for where, panel in state.panels():
            v = weights[rows.start + where.start : rows.start + where.stop]
            blas.syrk(total, panel * np.sqrt(v)[:, None], transpose=True, beta=1.0)
    return total


def project_rows(meter: Meter, rows: FactorRows, vectors: Array) -> Array:
    """Task: Fᵀ V over its rows, of shape (r, m); `vectors` is V, of shape (n, m)."""
    state = rows.state()
    total = np.zeros((state.rank, vectors.shape[1]))
    with meter.time("project"):
        for where, panel in state.panels():
            here = vectors[rows.start + where.start : rows.start + where.stop]
            blas.gemm(total, panel, here, transpose_a=True, beta=1.0)
    return total


def expand_rows(meter: Meter, rows: FactorRows, vectors: Array) -> Array:
    """Task: its rows of F U, of shape (stop − start, m); `vectors` is U, of shape (r, m)."""
    state = rows.state()
    out = np.empty((rows.stop - rows.start, vectors.shape[1]))
    with meter.time("expand"):
        for where, panel in state.panels():
            blas.gemm(out[where], panel, vectors)
    return out


def rebuild_rows(meter: Meter, rows: FactorRows, pivots: tuple[Any, Array]) -> None:
    """Task: F = A[:, S] L⁻ᵀ from the pivots alone, unless it is there."""
    taken, lower = pivots
    state = rows.new_state()
    if state.rank == len(lower):
        return
    state.rank = len(lower)
    height = max(64, PANEL_ENTRIES // len(lower))
    for start in range(rows.start, rows.stop, height):
        stop = min(start + height, rows.stop)
        with meter.time("gram"):
            block = rows.columns.block(slice(start, stop), taken)
        with meter.time("trsm"):
            blas.solve_lower_right(lower, block)
        state.array[start - rows.start : stop - rows.start, : len(lower)] = block


@dataclass
class PivotedCholesky:
    """A ≈ F Fᵀ, growing by rounds.

    Parameters
    ----------
    columns : ColumnSource
        Of A.
    executor : Executor
    run : str
        Name under which the workers keep F.
    slots : int
        Parts that the rows are divided in.
    capacity : int
        Columns that there is memory for.
    pivots : {"rpcholesky", "uniform", "greedy"}
    importance : ndarray of shape (n,), optional
        Factors of the diagonal by which pivots are drawn: the factor is to serve diag(c) A diag(c), for c² given here.
    seed : int
    dtype : dtype
        In which F is stored; arithmetic is float64.
    """

    columns: ColumnSource
    executor: Executor
    run: str
    slots: int
    capacity: int
    pivots: PivotRule = "rpcholesky"
    importance: Array | None = None
    seed: int = 0
    dtype: DTypeLike = np.float64
    record: RunRecord = field(default_factory=RunRecord)
    index: NDArray[np.intp] = field(init=False)
    """Pivots S, in the order in which they were chosen."""
    traces: list[tuple[int, float]] = field(init=False)
    """Rank, and what was left of the trace in units of `trace_unit`, after every round."""
    trace_unit: float = field(init=False)
    """A power of two: sums of large entries of A, or of importance, would overflow."""

    def __post_init__(self) -> None:
        n = self.columns.n
        self.capacity = min(self.capacity, n)
        self.index = np.empty(0, np.intp)
        # Pages that no pivot has reached take no memory.
        self._square = np.zeros((self.capacity, self.capacity))
        self._unit = self.trace_unit = _even_power(self.columns.diagonal(slice(0, n)))
        self._divided = DividedColumns(self.columns, self._unit)
        self._first_diagonal = self._divided.diagonal(slice(0, n)).astype(np.float64)
        self._importance = self.importance
        if self.importance is not None:
            size = _even_power(self.importance)
            self._importance = self.importance / size
            with np.errstate(over="ignore"):
                self.trace_unit = float(np.float64(self._unit) * size)
        self._left = self._first_diagonal.copy()
        self._taken: list[Any] = []
        self._round = 0
        self._exhausted = False
        self._order = np.random.default_rng([self.seed, 1]).permutation(n) if self.pivots == "uniform" else None
        self.traces = [(0, float(self._weighted().sum()))]
        slots = min(self.slots, n)
        cuts = [round(k * n / slots) for k in range(slots + 1)]
        self._parts = [
            FactorRows(self._divided, a, b, self.run, k, self.capacity, self.dtype)
            for k, (a, b) in enumerate(pairwise(cuts))
        ]

    @property
    def rank(self) -> int:
        """Columns of F."""
        return len(self.index)

    @property
    def left(self) -> Array:
        """Diagonal of A − F Fᵀ, of shape (n,); not to be written to."""
        return self._left if self._unit == 1.0 else self._left * self._unit

    @property
    def diagonal(self) -> Array:
        """Diagonal of A, of shape (n,); not to be written to."""
        return self._first_diagonal if self._unit == 1.0 else self._first_diagonal * self._unit

    @property
    def _lower(self) -> Array:
        """L, of A / c; shape (r, r)."""
        return self._square[: self.rank, : self.rank]

    def grow(self, rank: int, enough: Callable[["PivotedCholesky"], bool] = lambda _: False) -> None:
        """Add pivots until the rank is reached, nothing is left of A, or a test says that it is enough.

        Parameters
        ----------
        rank : int
        enough : callable
            Asked after every round.
        """
        rank = min(rank, self.capacity)
        block = max(MIN_BLOCK, -(-rank // BLOCKS_TO_RANK))
        while self.rank < rank and not self._exhausted:
            self._add_round(min(block, rank - self.rank) if self.pivots == "uniform" else block, rank)
            self.traces.append((self.rank, float(self._weighted().sum())))
            if enough(self):
                break

    def restore(self, index: NDArray[np.intp]) -> None:
        """Take pivots that an earlier run chose, in their order."""
        taken, lower = self._divided.take(index), self._square[: len(index), : len(index)]
        lower[...] = self._divided.among(taken, taken)
        if blas.cholesky_in_place(lower):
            self._square[...] = 0.0
            return  # rounding made the corner singular; begin anew
        clear_upper(lower)
        self.index, self._taken = index, [taken]
        self._map(rebuild_rows, (taken, self._lower))
        self._left = self._first_diagonal - np.concatenate([t.value for t in self._map(square_rows, None).tasks])
        np.maximum(self._left, 0.0, out=self._left)
        self._left[index] = 0.0
        self._round = 10_000 + len(index)  # other random numbers than the run that chose these
        self.traces.append((self.rank, float(self._weighted().sum())))

    def gram(self, weights: Array) -> Array:
        """Lower triangle of Fᵀ diag(v) F; shape (r, r). What is above the diagonal means nothing."""
        total = self._total(gram_rows, weights)
        if self._unit != 1.0:
            total *= self._unit
        return total

    def project(self, vectors: Array) -> Array:
        """Fᵀ V; shape (r, m)."""
        return self._total(project_rows, np.ascontiguousarray(vectors)) * sqrt(self._unit)

    def expand(self, vectors: Array) -> Array:
        """F U; shape (n, m)."""
        vectors = np.ascontiguousarray(vectors * sqrt(self._unit))
        record = self._safely(lambda: self._map(expand_rows, vectors))
        return np.concatenate([t.value for t in record.tasks])

    def rows(self) -> Array:
        """F itself; for tests."""
        return self.expand(np.eye(self.rank))

    def close(self) -> None:
        """Let every process go of its rows."""
        self.executor.forget(self.run)

    def _weighted(self) -> Array:
        return self._left if self._importance is None else self._left * self._importance

    def _add_round(self, block: int, wanted: int) -> None:
        self._round += 1
        rng = np.random.default_rng([self.seed, 0, self._round])
        candidates, bound = self._propose(block, rng)
        if len(candidates) == 0:
            self._exhausted = True
            return
        taken = self._divided.take(candidates)
        above = self._factor_at(taken)
        corner = self._divided.among(taken, taken)
        if self.rank:
            blas.gemm(corner, above, above, transpose_b=True, alpha=-1.0, beta=1.0)
        accepted, lower = self._accept(candidates, corner, bound, rng, wanted - self.rank)
        if not accepted:
            # What is left of these is rounding, however large its sum looks.
            self._left[candidates[~(corner.diagonal() > self._threshold()[candidates])]] = 0.0
            return
        chosen = candidates[accepted]
        new = NewColumns(self.rank, taken[accepted], np.ascontiguousarray(above[accepted]), lower)
        record = self._safely(lambda: self._map(extend_rows, new))
        self._left -= np.concatenate([t.value for t in record.tasks])
        np.maximum(self._left, 0.0, out=self._left)
        self._left[chosen] = 0.0
        self._taken.append(new.taken)
        before, after = self.rank, self.rank + len(chosen)
        self._square[before:after, :before] = new.above
        self._square[before:after, before:after] = lower
        self.index = np.concatenate([self.index, chosen])

    def _propose(self, block: int, rng: np.random.Generator) -> tuple[NDArray[np.intp], float]:
        """Candidates, and the largest that is left of the diagonal outside them (for greedy)."""
        left = self._weighted()
        left = np.where(self._left > self._threshold(), left, 0.0)
        if self._order is not None:
            order = self._order[left[self._order] > 0]
            return order[:block], 0.0
        n_left = int(np.count_nonzero(left))
        if n_left == 0:
            return np.empty(0, np.intp), 0.0
        block = min(block, n_left)
        if self.pivots == "greedy":
            order = np.argsort(-left, kind="stable")
            return order[:block], float(left[order[block]]) if block < len(order) else 0.0
        # With replacement: the rejection that follows is for independent proposals.
        drawn = rng.choice(len(left), size=block, p=left / left.sum())
        return drawn[np.sort(np.unique(drawn, return_index=True)[1])], 0.0

    def _threshold(self) -> Array:
        """What is left of the diagonal below this is rounding."""
        precision = float(np.finfo(np.dtype(self.dtype)).eps)
        return np.asarray(10.0 * precision * self._first_diagonal)

    def _factor_at(self, taken: Any) -> Array:
        """Rows of F at taken rows, from A at the pivots: shape (k, rank)."""
        if not self.rank:
            return np.zeros((self._divided.among(taken, taken).shape[0], 0))
        rows = np.ascontiguousarray(np.hstack([self._divided.among(taken, t) for t in self._taken]))
        blas.solve_lower_right(self._lower, rows)
        return rows

    def _accept(
        self, candidates: NDArray[np.intp], corner: Array, bound: float, rng: np.random.Generator, most: int
    ) -> tuple[list[int], Array]:
        """Positions of the candidates that hold, and the Cholesky factor of what is left of A among them."""
        h, first = corner.copy(), corner.diagonal().copy()
        weight = np.ones(len(candidates)) if self._importance is None else self._importance[candidates]
        threshold = self._threshold()[candidates]
        accepted: list[int] = []
        columns = np.zeros_like(h)
        for step in range(len(candidates)):
            i = step
            if self.pivots == "greedy":
                i = int(np.argmax(h.diagonal() * weight))
                if accepted and h[i, i] * weight[i] < bound:
                    break
            left = h[i, i]
            if left <= threshold[i] or len(accepted) == most:
                if self.pivots == "greedy":
                    break
                continue
            if self.pivots == "rpcholesky" and rng.random() * first[i] > left:
                continue
            column = h[:, i] / np.sqrt(left)
            h -= np.outer(column, column)
            h[i, i] = 0.0
            columns[:, len(accepted)] = column
            accepted.append(i)
        lower = np.ascontiguousarray(np.tril(columns[accepted, : len(accepted)]))
        return accepted, lower

    def _map(self, function: Callable[..., Any], shared: Any) -> RunRecord:
        tasks = [Task(f"{function.__name__}-{p.number}", function, (p,), place=p.number) for p in self._parts]
        record = self.executor.map(tasks, shared)
        self._keep(record)
        return record

    def _total(self, function: Callable[..., Any], shared: Any) -> Array:
        tasks = [Task(f"{function.__name__}-{p.number}", function, (p,), place=p.number) for p in self._parts]
        total, record = self._safely(lambda: self.executor.total(tasks, shared))
        self._keep(record)
        return np.asarray(total)

    def _keep(self, record: RunRecord) -> None:
        self.record.add(RunRecord(record.seconds, [replace(t, value=None) for t in record.tasks]))

    def _safely(self, run: Callable[[], Any]) -> Any:
        """Run; where a worker has lost its rows, let it make them again from the pivots."""
        for _ in range(MAX_REBUILDS):
            try:
                return run()
            except LostRowsError:
                whole = self._divided.take(self.index)
                self._map(rebuild_rows, (whole, self._lower))
        return run()


def _even_power(values: Array) -> float:
    """4ᵏ within a factor of 4 of the largest value, which it is at most; 1 if that is not positive and finite.

    Square roots of it are powers of two as well.
    """
    largest = float(values.max(initial=0.0))
    if not 0.0 < largest < inf:
        return 1.0
    exponent = frexp(largest)[1] - 1
    return ldexp(1.0, max(exponent - exponent % 2, -1020))


def square_rows(meter: Meter, rows: FactorRows, _: None) -> Array:
    """Task: squares of F summed over each row."""
    state = rows.state()
    out = np.empty(rows.stop - rows.start)
    with meter.time("gemm"):
        for where, panel in state.panels():
            np.einsum("ij,ij->i", panel, panel, out=out[where])
    return out


def pivoted_cost(n: int, rank: int, entry: EntryCost) -> Cost:
    """Cost of a factor of this rank and of Fᵀ F."""
    return Cost(gemm_flops=2.0 * n * rank**2) + gram_cost(entry, float(n) * rank)


def small_matrix_cost(n: int, rank: int, slots: int) -> Cost:
    """Cost of the small matrix that a factor makes with another diagonal, for a process of `slots` that share Fᵀ F."""
    return Cost(gemm_flops=n * rank**2 / slots + rank**3 / 3)


def partial_factor_cost(n: int, rank: int, entry: EntryCost, slots: int) -> Cost:
    """Cost of a factor of this rank and of its small matrix, for each of `slots` that share the rows."""
    return pivoted_cost(n, rank, entry).times(1 / slots) + Cost(gemm_flops=float(rank) ** 3)


def partial_apply_seconds(n: int, rank: int, n_columns: int, slots: int) -> float:
    """Time in which `slots` that share the rows of a factor multiply it and its transpose by vectors."""
    return APPLY_SECONDS_PER_ENTRY * n * rank * n_columns / slots


def factor_rows_bytes(n: int, rank: int, itemsize: int, slots: int) -> int:
    """Memory of one slot's rows of F, and of a panel in work."""
    return itemsize * -(-n // slots) * rank + 3 * 8 * max(PANEL_ENTRIES, 64 * rank)
