"""Partial Cholesky factorisation with pivots: A ≈ F Fᵀ with F = A[:, S] L⁻ᵀ and L Lᵀ = A[S, S], of rank r = |S|.

F is spread over the workers by rows. It is built in rounds: pivots are proposed for a whole block of columns, those
that hold are found on a small matrix, and every worker then adds their columns to its rows (one GEMM), so the work is
O(n r²) at the speed of GEMM and each worker sees only its own rows of X and those of the pivots.

Pivots are drawn with probability proportional to what is left of the diagonal (RPCholesky, in its accelerated form by
rejection within a block, which has the same distribution as one pivot at a time).

What is stored is the factor of A / c for a power of two c near the largest diagonal entry: F in float32 neither
overflows nor underflows where A is in the range of float64, and rows times a power of two have the same factor.

There are enough pivots where one more costs as much as it saves conjugate gradient (`pivot_stopping_rule`). The pivots
alone are rows that represent the others, for Nyström features.

References
----------
Y. Chen, E. N. Epperly, J. A. Tropp, R. J. Webber, "Randomly pivoted Cholesky: practical approximation of a kernel
matrix with few entry evaluations", Comm. Pure Appl. Math. 2024. E. N. Epperly, J. A. Tropp, R. J. Webber, "Embrace
rejection: kernel matrix approximation by accelerated randomly pivoted Cholesky", 2024.
"""

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import frexp, inf, ldexp, log, sqrt
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dkrr import blas
from dkrr.cluster import Executor, RunRecord, SerialExecutor, Task
from dkrr.cost import Work
from dkrr.data import MemoryRows, Rows
from dkrr.kernels import Kernel
from dkrr.linalg import factor_rows
from dkrr.linalg.column_sources import ColumnSource, DividedColumns, GramColumns
from dkrr.linalg.factor_rows import (
    FACTOR_STRIP_ENTRIES,
    GRAM_COLUMNS,
    GRAM_ROWS,
    FactorRows,
    KeptColumns,
    LostRowsError,
    NewColumns,
    complete_rows,
    expand_rows,
    extend_rows,
    gram_rows,
    project_rows,
    read_columns,
    rebuild_rows,
    square_columns,
    square_rows,
    write_columns,
)
from dkrr.linalg.gram_products import Precision
from dkrr.linalg.sources import clear_upper
from dkrr.linalg.square import gram_workspace_bytes
from dkrr.store import ChunkedArray

Array = NDArray[np.float64]

BLOCKS_TO_RANK = 12
"""Rounds in which the wanted rank is reached if every proposal holds."""
MIN_BLOCK = 32
MAX_REBUILDS = 3
"""Times that lost rows are computed again before one product: until a dead worker is replaced, any worker does it."""

APPLY_SECONDS_PER_ENTRY: dict[Precision, float] = {"float32": 0.7e-9, "float64": 2.3e-9}
"""Time of both products of an entry of the float32 factor with one vector; for those in float64 it is converted."""
SAME_UNIT = 1e-3
"""Relative difference up to which an entry of A is the same number: other units are powers of four."""
LOW_OVERHEAD = 1.3
"""Time of the products of a factor in float32 over that of their operations: strips, and blocks on the diagonal."""
FLOAT32_TRACE_FRACTION = 1e-3
"""Smallest fraction of the trace not yet captured with which columns are added by products in float32."""
FACTOR_DTYPE = np.float32
"""Type of a factor that preconditions, but for its first columns: rounding of the others is below what they leave."""
FACTOR_BYTES = np.dtype(FACTOR_DTYPE).itemsize


@dataclass(frozen=True)
class FactorState:
    """State of a partial factor but its rows: with them it grows as it would have."""

    index: NDArray[np.intp]
    """Numbers of the pivots, in the order in which they were chosen."""
    pivot_factor: Array
    """Rows of F at the pivots, of shape (rank, rank)."""
    residual_diagonal: Array
    """Diagonal of A − F Fᵀ, in its units."""
    traces: list[tuple[int, float]]
    round: int
    """Number of the last round, from which random numbers follow."""
    is_exhausted: bool


@dataclass
class PivotedCholesky:
    """A ≈ F Fᵀ, growing by rounds.

    Parameters
    ----------
    columns : ColumnSource
        Columns of A.
    executor : Executor
    run : str
        Name under which the workers keep F.
    slots : int
        Tasks that share the rows.
    capacity : int
        Columns that fit in memory.
    importance : ndarray of shape (n,), optional
        Factors of the diagonal by which pivots are drawn: the factor is to serve diag(c) A diag(c), for c² given here.
    seed : int
    dtype : dtype
        Type in which F is stored but for its first columns, which are in float64 in any case.
    """

    columns: ColumnSource
    executor: Executor
    run: str
    slots: int
    capacity: int
    importance: Array | None = None
    seed: int = 0
    dtype: DTypeLike = np.float64
    record: RunRecord = field(default_factory=RunRecord)
    index: NDArray[np.intp] = field(init=False)
    """Pivots S, in the order in which they were chosen."""
    traces: list[tuple[int, float]] = field(init=False)
    """Rank, and the trace of A − F Fᵀ in units of `trace_unit`, after every round."""
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
        self._residual_diagonal = self._first_diagonal.copy()
        self._taken: list[Any] = []
        self._round = 0
        self._exhausted = False
        self.traces = [(0, float(self._weighted().sum()))]
        slots = min(self.slots, n)
        cuts = [round(k * n / slots) for k in range(slots + 1)]
        self._segments = [
            FactorRows(self._divided, a, b, self.run, k, self.capacity, self.dtype)
            for k, (a, b) in enumerate(pairwise(cuts))
        ]

    @property
    def rank(self) -> int:
        """Number of columns of F."""
        return len(self.index)

    @property
    def is_low(self) -> bool:
        """Whether F is stored in float32."""
        return np.dtype(self.dtype) == np.float32

    @property
    def residual_diagonal(self) -> Array:
        """Diagonal of A − F Fᵀ, of shape (n,); not to be written to."""
        return self._residual_diagonal if self._unit == 1.0 else self._residual_diagonal * self._unit

    @property
    def diagonal(self) -> Array:
        """Diagonal of A, of shape (n,); not to be written to."""
        return self._first_diagonal if self._unit == 1.0 else self._first_diagonal * self._unit

    @property
    def pivot_factor(self) -> Array:
        """L with L Lᵀ = A[S, S] / c, of shape (r, r): the rows of F at the pivots, in the same units."""
        return self._square[: self.rank, : self.rank]

    def grow(self, rank: int, enough: Callable[["PivotedCholesky"], bool] = lambda _: False) -> None:
        """Add pivots until the rank is reached, nothing is left of A, or `enough`, asked after every round."""
        rank = min(rank, self.capacity)
        block = max(MIN_BLOCK, -(-rank // BLOCKS_TO_RANK))
        while self.rank < rank and not self._exhausted:
            self._add_round(block, rank)
            self.traces.append((self.rank, float(self._weighted().sum())))
            if enough(self):
                break

    def restore(self, index: NDArray[np.intp]) -> None:
        """Take pivots that an earlier run chose, in their order."""
        taken, lower = self._divided.select_columns(index), self._square[: len(index), : len(index)]
        lower[...] = self._divided.among(taken, taken)
        if blas.cholesky_in_place(lower):
            self._square[...] = 0.0
            return  # rounding made this matrix singular: start without pivots
        clear_upper(lower)
        self.index = index
        self._map(rebuild_rows, (taken, self.pivot_factor))
        self._take_up(0)

    def _take_up(self, first: int) -> None:
        """What follows from the rows of F from a number on: their residual diagonal, and the traces of all rows."""
        squares = np.concatenate([t.value for t in self._safely(lambda: self._map(square_rows, None)).tasks])
        left = self._first_diagonal[first:] - squares[first:]
        self._residual_diagonal[first:] = np.maximum(left, 0.0)
        self._residual_diagonal[self.index] = 0.0
        self._round = 10_000 + self.rank  # other random numbers than the run that chose these
        # As if they had been drawn in the fewest rounds: from the fall of the trace follows whether more would pay.
        ranks = np.unique(np.linspace(0, self.rank, BLOCKS_TO_RANK + 1).astype(int)).tolist()
        last, weights = float(self._weighted().sum()), self._importance
        fallen = self._total(square_columns, np.ones(self.columns.n) if weights is None else weights)
        self.traces = [self.traces[0], *((r, last + float(fallen[r:].sum())) for r in ranks[1:])]
        self._taken = [self._divided.select_columns(self.index[a:b]) for a, b in pairwise(ranks)]

    @property
    def segments(self) -> list[tuple[int, int]]:
        """Range (start, stop) of the rows of every segment."""
        return [(one.start, one.stop) for one in self._segments]

    def state(self) -> FactorState:
        """State that `restore_columns` takes besides the rows."""
        left, traces = self._residual_diagonal.copy(), list(self.traces)
        return FactorState(
            self.index, self.pivot_factor.copy(), left, traces, self._round, is_exhausted=self._exhausted
        )

    def has_units_of(self, state: FactorState) -> bool:
        """Whether a state has the units of this factor, which new rows may change, and is of its first rows."""
        if len(state.residual_diagonal) > self.columns.n:
            return False
        first = self._first_diagonal[state.index[:1]]
        return bool(np.isclose(state.pivot_factor[:1, :1] ** 2, first, rtol=SAME_UNIT, atol=0.0).all())

    def write_columns(self, first: int, arrays: Sequence[ChunkedArray]) -> None:
        """Write the columns from a number on, to an array for each of `segments`."""
        self._safely(lambda: self._map(write_columns, (first, arrays)))

    def restore_columns(self, kept: Sequence[KeptColumns], state: FactorState) -> None:
        """Take the columns that an earlier run wrote, and grow on from there with the same bits.

        That run may have had fewer rows, the first ones of these: F in the others is computed from the pivots.

        Raises
        ------
        DamagedChunkError
            If some of them are damaged; nothing is restored then.
        """
        self._map(read_columns, kept)
        rank, n_before = len(state.index), len(state.residual_diagonal)
        self._square[:rank, :rank] = state.pivot_factor
        if n_before < self.columns.n:
            taken = self._divided.select_columns(state.index)
            self.index = state.index
            self._safely(lambda: self._map(complete_rows, (n_before, taken, self.pivot_factor)))
            self._residual_diagonal[:n_before] = state.residual_diagonal
            self._take_up(n_before)
            return
        self.index, self._residual_diagonal, self.traces = state.index, state.residual_diagonal, state.traces
        self._round, self._exhausted = state.round, state.is_exhausted
        # As the rounds took them: entries of other blocks are rounded otherwise.
        ranks = sorted({r for r, _ in self.traces})
        self._taken = [self._divided.select_columns(self.index[a:b]) for a, b in pairwise(ranks)]

    def gram(self, weights: Array, precision: Precision = "float64") -> Array:
        """Lower triangle of Fᵀ diag(v) F; shape (r, r). Entries above the diagonal are undefined."""
        size = 1.0
        precision = self._precision(precision)
        if precision == "float32":
            size = _even_power(weights)
            weights = weights / size
        total, record = self._safely(lambda: self.executor.total(self._gram_tasks(weights), (weights, precision)))
        self._keep(record)
        # The product of both powers may leave the range of float64, and what is undefined may be of any size.
        with np.errstate(over="ignore", invalid="ignore"):
            for power in (size, self._unit):
                if power != 1.0:
                    total *= power
        return np.asarray(total)

    def _gram_tasks(self, weights: Array) -> list[Task]:
        """Tasks of about as many rows of positive weight each: those of one fold may all be in one place."""
        used = [p for p in self._segments if weights[p.start : p.stop].any()] or self._segments[:1]
        # Only threads share what is in memory: a second task of a worker might go to another, which has no rows.
        shares = isinstance(self.executor, SerialExecutor)
        n_parts, tasks = -(-len(self._segments) // len(used)) if shares else 1, []
        for p in used:
            numbers = p.start + np.flatnonzero(weights[p.start : p.stop])
            for k, rows in enumerate(np.array_split(numbers, n_parts)):
                part = slice(int(rows[0]), int(rows[-1]) + 1) if len(rows) else slice(0)
                tasks.append(Task(f"{gram_rows.__name__}-{p.number}-{k}", gram_rows, (p, part), place=p.number))
        return tasks

    def project(self, vectors: Array, precision: Precision = "float64") -> Array:
        """Fᵀ V; shape (r, m)."""
        return self._total(project_rows, (np.ascontiguousarray(vectors), self._precision(precision))) * sqrt(self._unit)

    def expand(self, vectors: Array, precision: Precision = "float64") -> Array:
        """F U; shape (n, m)."""
        given = np.ascontiguousarray(vectors * sqrt(self._unit)), self._precision(precision)
        record = self._safely(lambda: self._map(expand_rows, given))
        return np.concatenate([t.value for t in record.tasks])

    def of_pivots(self, vectors: Array) -> Array:
        """Z with A[:, S] Z = F U, for U of shape (r, m), which is overwritten."""
        blas.solve_lower(np.ascontiguousarray(self.pivot_factor), vectors, transpose=True)
        vectors /= sqrt(self._unit)
        return vectors

    def _precision(self, wanted: Precision) -> Precision:
        """Precision of products: float32 needs a factor that is stored so, and is for the columns after the first."""
        return wanted if self.is_low and self.rank > factor_rows.HEAD_COLUMNS else "float64"

    def close(self) -> None:
        """Release the rows in every process."""
        self.executor.forget(self.run)

    def _weighted(self) -> Array:
        return self._residual_diagonal if self._importance is None else self._residual_diagonal * self._importance

    def _add_round(self, block: int, wanted: int) -> None:
        self._round += 1
        rng = np.random.default_rng([self.seed, 0, self._round])
        candidates = self._propose(block, rng)
        if len(candidates) == 0:
            self._exhausted = True
            return
        taken = self._divided.select_columns(candidates)
        above = self._factor_at(taken)
        pivot_factor = self._divided.among(taken, taken)
        if self.rank:
            blas.gemm(pivot_factor, above, above, transpose_b=True, alpha=-1.0, beta=1.0)
        accepted, lower = self._accept(candidates, pivot_factor, rng, wanted - self.rank)
        if not accepted:
            # What is left of these is rounding, however large its sum looks.
            self._residual_diagonal[candidates[~(pivot_factor.diagonal() > self._threshold()[candidates])]] = 0.0
            return
        chosen = candidates[accepted]
        # Rounding to float32 is of the size of that of F itself, which is far below what is left.
        is_large = self._residual_diagonal.sum() > FLOAT32_TRACE_FRACTION * self._first_diagonal.sum()
        new = NewColumns(
            self.rank,
            taken[accepted],
            np.ascontiguousarray(above[accepted]),
            lower,
            self._precision("float32" if is_large else "float64"),
        )
        record = self._safely(lambda: self._map(extend_rows, new))
        self._residual_diagonal -= np.concatenate([t.value for t in record.tasks])
        np.maximum(self._residual_diagonal, 0.0, out=self._residual_diagonal)
        self._residual_diagonal[chosen] = 0.0
        self._taken.append(new.taken)
        before, after = self.rank, self.rank + len(chosen)
        self._square[before:after, :before] = new.above
        self._square[before:after, before:after] = lower
        self.index = np.concatenate([self.index, chosen])

    def _propose(self, block: int, rng: np.random.Generator) -> NDArray[np.intp]:
        """Candidates, each once; none where nothing is left of A."""
        left = np.where(self._residual_diagonal > self._threshold(), self._weighted(), 0.0)
        n_left = int(np.count_nonzero(left))
        if n_left == 0:
            return np.empty(0, np.intp)
        # With replacement: the rejection that follows is for independent proposals.
        drawn = rng.choice(len(left), size=min(block, n_left), p=left / left.sum())
        return drawn[np.sort(np.unique(drawn, return_index=True)[1])]

    def _threshold(self) -> Array:
        """Entries of the residual diagonal at or below which it is rounding, of shape (n,).

        The first columns are in float64; of the others at most the largest part that these have left is rounded.
        """
        later = slice(factor_rows.HEAD_COLUMNS, None)
        left = (self.pivot_factor.diagonal()[later] ** 2 / self._first_diagonal[self.index[later]]).max(initial=0.0)
        precision = np.finfo(float).eps + left * np.finfo(np.dtype(self.dtype)).eps
        return np.asarray(10.0 * precision * self._first_diagonal)

    def _factor_at(self, taken: Any) -> Array:
        """Rows of F at taken rows, from A at the pivots: shape (k, rank)."""
        if not self.rank:
            return np.zeros((self._divided.among(taken, taken).shape[0], 0))
        rows = np.ascontiguousarray(np.hstack([self._divided.among(taken, t) for t in self._taken]))
        blas.solve_lower_right(self.pivot_factor, rows)
        return rows

    def _accept(
        self, candidates: NDArray[np.intp], pivot_factor: Array, rng: np.random.Generator, most: int
    ) -> tuple[list[int], Array]:
        """Positions of the candidates that hold, and the Cholesky factor of A − F Fᵀ among them."""
        h, first = pivot_factor.copy(), pivot_factor.diagonal().copy()
        threshold = self._threshold()[candidates]
        accepted: list[int] = []
        columns = np.zeros_like(h)
        for i in range(len(candidates)):
            left = h[i, i]
            if left <= threshold[i] or len(accepted) == most:
                continue
            if rng.random() * first[i] > left:
                continue
            column = h[:, i] / np.sqrt(left)
            h -= np.outer(column, column)
            h[i, i] = 0.0
            columns[:, len(accepted)] = column
            accepted.append(i)
        lower = np.ascontiguousarray(np.tril(columns[accepted, : len(accepted)]))
        return accepted, lower

    def _tasks(self, function: Callable[..., Any]) -> list[Task]:
        """Tasks of all places, one each."""
        return [Task(f"{function.__name__}-{p.number}", function, (p,), place=p.number) for p in self._segments]

    def _map(self, function: Callable[..., Any], shared: Any) -> RunRecord:
        record = self.executor.map(self._tasks(function), shared)
        self._keep(record)
        return record

    def _total(self, function: Callable[..., Any], shared: Any) -> Array:
        total, record = self._safely(lambda: self.executor.total(self._tasks(function), shared))
        self._keep(record)
        return np.asarray(total)

    def _keep(self, record: RunRecord) -> None:
        self.record.add(RunRecord(record.seconds, [replace(t, value=None) for t in record.tasks]))

    def _safely(self, run: Callable[[], Any]) -> Any:
        """Run; where a worker has lost its rows, compute them again from the pivots."""
        for _ in range(MAX_REBUILDS):
            try:
                return run()
            except LostRowsError:
                whole = self._divided.select_columns(self.index)
                self._map(rebuild_rows, (whole, self.pivot_factor))
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


def small_matrix_work(n: int, rank: int, slots: int, precision: Precision) -> Work:
    """Work of the small matrix that a factor makes with another diagonal, for a process of `slots` that share Fᵀ F."""
    flops = 0.5 * LOW_OVERHEAD if precision == "float32" else 1.0
    return Work(gemm_flops=flops * n * rank**2 / slots + rank**3 / 3)


def partial_factor_work(n: int, rank: int, entry_seconds: float, slots: int) -> Work:
    """Work of a factor of this rank, for each of `slots` that share the rows.

    Its products are in float32, which count half their operations.
    """
    rows = Work(
        gemm_flops=0.5 * LOW_OVERHEAD * n * rank**2,
        element_seconds=entry_seconds * n * rank,
        fresh_bytes=float(np.dtype(FACTOR_DTYPE).itemsize) * n * rank,
    )
    return rows.times(1 / slots) + Work(gemm_flops=2 / 3 * float(rank) ** 3)


def partial_apply_work(n: int, rank: int, n_columns: int, precision: Precision) -> Work:
    """Work of multiplying a factor and its transpose by vectors."""
    return Work(element_seconds=APPLY_SECONDS_PER_ENTRY[precision] * n * rank * n_columns)


def factor_bytes(n: int, rank: int) -> int:
    """Bytes of F, whose first columns are in float64."""
    return n * FACTOR_BYTES * (rank + min(rank, factor_rows.HEAD_COLUMNS))


def factor_rows_bytes(n: int, rank: int, slots: int) -> int:
    """Memory of the rows of F of one slot, and of a strip in work."""
    low = min(rank, GRAM_COLUMNS) * (GRAM_ROWS + rank)
    return factor_bytes(-(-n // slots), rank) + max(3 * 8 * max(FACTOR_STRIP_ENTRIES, 64 * rank), 4 * low)


SPREAD = 1.2
"""Ratio of measured to expected iterations (QM9, n = 10,000 to 30,000, ranks of 300 to 3,000: 1.0 to 1.3)."""


def expected_iterations(next_eigenvalue: float, shift: float, tol: float) -> float:
    """Iterations of conjugate gradient whose preconditioner leaves eigenvalues up to this one as they are.

    Half of the bound √κ log(2 / tol) for κ = 1 + λ / t, times SPREAD for what rounding and the other eigenvalues add;
    `shift` is t, with which the preconditioner is made. Without a shift no bound exists.
    """
    if shift <= 0:
        return inf
    return 0.5 * SPREAD * sqrt(1.0 + next_eigenvalue / shift) * log(2.0 / tol)


def next_eigenvalue(factor: PivotedCholesky) -> float:
    """Estimate of the largest eigenvalue that a partial factor leaves: what one of the last pivots took off."""
    (before, trace_before), (now, trace) = factor.traces[-2], factor.traces[-1]
    return max(trace_before - trace, 0.0) / max(now - before, 1)


def pivot_stopping_rule(
    shift: float, tol: float, iteration_seconds: float, pivot_seconds: Callable[[int], float]
) -> Callable[[PivotedCholesky], bool]:
    """Test for `PivotedCholesky.grow`: whether more pivots would cost more time than they save.

    Parameters
    ----------
    shift : float
        s. Far below what is left, where the preconditioner is made with a larger one, the rule asks for all pivots
        that fit in memory: eigenvalues that the factor leaves then decide, and a smooth kernel has small ones.
    tol : float
    iteration_seconds : float
        Time of one product with A.
    pivot_seconds : callable
        From a rank to the time that one more pivot costs there, in every later iteration too.
    """

    def enough(factor: PivotedCholesky) -> bool:
        if len(factor.traces) < 3:
            return False
        eigenvalue, s = next_eigenvalue(factor), shift / factor.trace_unit
        if factor.traces[-1][1] <= s:  # all that is left is less than the shift
            return True
        # Eigenvalues fall like a power of their number, so that iterations(r) ~ r^(-power / 2).
        (r0, t0), (r1, t1) = factor.traces[len(factor.traces) // 2], factor.traces[-1]
        if r0 == 0 or r1 == r0 or t1 <= 0:
            return False
        power = 1.0 + log(max(t0 / t1, 1.0)) / log(r1 / r0)
        saved = 0.5 * power * expected_iterations(eigenvalue, s, tol) / r1 * iteration_seconds
        return saved < pivot_seconds(r1)

    return enough


CANDIDATES_TO_RANK = 20
"""Rows from which pivots are chosen, for each one wanted: the factor of all of millions of rows would not fit."""
MIN_CANDIDATES = 10_000
ACCEPT_SECONDS = 1e-9
"""Time of an entry of the small matrix of a round, for each pivot of it."""


def n_candidates(n: int, rank: int) -> int:
    """Number of rows from which `rank` pivots are chosen."""
    return min(n, max(MIN_CANDIDATES, CANDIDATES_TO_RANK * rank))


def choice_work(n: int, rank: int, entry_seconds: float) -> Work:
    """Work of choosing pivots from n candidates: their factor, and a small matrix of each round."""
    block = max(MIN_BLOCK, -(-rank // BLOCKS_TO_RANK))
    return Work(
        gemm_flops=LOW_OVERHEAD * n * float(rank) ** 2,
        element_seconds=entry_seconds * n * rank + ACCEPT_SECONDS * rank * block**2,
        fresh_bytes=8.0 * n * rank,
    )


def choice_bytes(kernel: Kernel, n: int, rank: int, n_features: int, csr_bytes: int | None = None) -> int:
    """Memory of choosing pivots from n candidates, besides their rows.

    The factor in float64 and the columns of a round, the square of the pivots and those of a round, and vectors.
    """
    block = max(MIN_BLOCK, -(-rank // BLOCKS_TO_RANK))
    arrays = n * (rank + block + 8) + rank * (rank + 3 * block) + FACTOR_STRIP_ENTRIES
    return 8 * arrays + gram_workspace_bytes(kernel, n, 0, n_features, csr_bytes)


def choose_pivots(
    kernel: Kernel,
    rows: Rows,
    rank: int,
    method: Literal["rpcholesky", "uniform"],
    seed: int,
    advance: Callable[[float], Any] = lambda _: None,
) -> NDArray[np.intp]:
    """Choose rows by which the kernel matrix is best approximated.

    Parameters
    ----------
    kernel : Kernel
    rows : Rows
    rank : int
        Number of rows to choose.
    method : {"rpcholesky", "uniform"}
    seed : int
    advance : callable
        Takes what every round has done, of rank² in all.

    Returns
    -------
    ndarray of shape (rank,) or shorter, where the kernel has a smaller rank
        In the order in which they were chosen. RPCholesky chooses from a random sample of CANDIDATES_TO_RANK × rank
        rows if n is larger.
    """
    n = rows.shape[0]
    rng = np.random.default_rng(seed)
    if method == "uniform":
        return np.sort(rng.choice(n, size=min(rank, n), replace=False))
    candidates = np.arange(n)
    most = n_candidates(n, rank)
    if n > most:
        candidates = np.sort(rng.choice(n, size=most, replace=False))
    block = rows.take(candidates) if n > most else rows.read(0, n)
    factor = PivotedCholesky(
        GramColumns(kernel.resolved(rows.shape[1]), MemoryRows(block)),
        SerialExecutor(),
        run=f"pivots-{uuid.uuid4().hex}",
        slots=1,
        capacity=rank,
        seed=seed,
    )

    def told(grown: PivotedCholesky) -> bool:
        (before, _), (now, _) = grown.traces[-2:]
        advance(float(now**2 - before**2))
        return False

    try:
        factor.grow(rank, told)
        return candidates[factor.index]
    finally:
        factor.close()
