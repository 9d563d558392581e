"""Rows of the factor F of a partial Cholesky factorisation: kept in memory, strip by strip in work, and their tasks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dkrr import blas
from dkrr.blas import column_sizes
from dkrr.cluster import Meter, resident
from dkrr.linalg.column_sources import ColumnSource
from dkrr.linalg.gram_products import Precision
from dkrr.store import ChunkedArray

Array = NDArray[np.float64]

FACTOR_STRIP_ENTRIES = 2**19
"""Entries of F that are in float64 at once when it is stored in float32."""
FLOAT32_STRIP_ENTRIES = 2**21
"""Entries of F whose products in float32 are summed in float32, before they are added in float64."""
GRAM_ROWS, GRAM_COLUMNS = 2048, 512
"""Rows of F whose products with each other are summed in float32, and columns of such a sum."""
HEAD_COLUMNS = 128
"""First columns of F, which are in float64 where the others are in float32. They hold the largest eigenvalues, beside
which float32 loses small shifts: what they leave of rows of molecules has a largest one that is 160 times as small, and
in float32 they would leave −6e-8 of the largest one of A."""


class LostRowsError(Exception):
    """A worker does not have its rows of the factor, or no longer."""


@dataclass(frozen=True)
class FactorRows:
    """Rows start ... stop − 1 of F: where they are kept, and how they are computed."""

    columns: ColumnSource
    start: int
    stop: int
    run: str
    number: int
    capacity: int
    """Columns that fit in memory."""
    dtype: DTypeLike

    def numbers(self, strip: slice) -> slice:
        """Numbers in the matrix of the rows of a strip."""
        return slice(self.start + strip.start, self.start + strip.stop)

    def state(self) -> "RowsState":
        """F as this process has it.

        Raises
        ------
        LostRowsError
            If it has none.
        """
        state: RowsState | None = resident.get(self.run, ("factor", self.number))
        if state is None:
            raise LostRowsError(self.number)
        return state

    def new_state(self) -> "RowsState":
        """Memory for F in this process."""
        return resident.get_or_create(
            self.run,
            ("factor", self.number),
            lambda: RowsState.empty(self.stop - self.start, self.capacity, self.dtype),
        )


@dataclass
class RowsState:
    """Rows of F in one process."""

    head: Array
    """First columns, always in float64."""
    tail: NDArray[Any]
    """The others."""
    whole: Array | None
    """Both in one array where the others are in float64, too."""
    rank: int = 0

    @classmethod
    def empty(cls, n_rows: int, capacity: int, dtype: DTypeLike) -> "RowsState":
        """Memory for F."""
        n_head = min(HEAD_COLUMNS, capacity)
        if np.dtype(dtype) == np.float64:
            whole = np.empty((n_rows, capacity))
            return cls(whole[:, :n_head], whole[:, n_head:], whole)
        return cls(np.empty((n_rows, n_head)), np.empty((n_rows, capacity - n_head), dtype), None)

    def put(self, rows: slice, first: int, block: NDArray[Any]) -> None:
        """Set columns of some rows, from a number on."""
        n_head = self.head.shape[1]
        cut, start = max(0, min(n_head - first, block.shape[1])), max(0, first - n_head)
        self.head[rows, first : first + cut] = block[:, :cut]
        self.tail[rows, start : start + block.shape[1] - cut] = block[:, cut:]

    def columns(self, rows: slice, first: int, stop: int) -> NDArray[Any]:
        """Columns of some rows as they are stored: first ones or others, not both where these are not in float64."""
        n_head = self.head.shape[1]
        if self.whole is not None:
            return self.whole[rows, first:stop]
        return self.head[rows, first:stop] if stop <= n_head else self.tail[rows, first - n_head : stop - n_head]

    def stored(self, rows: slice | NDArray[np.intp]) -> tuple[Array, NDArray[Any]]:
        """First columns of some rows, and the others, as they are stored."""
        n_head = self.head.shape[1]
        return self.head[rows, : self.rank], self.tail[rows, : max(0, self.rank - n_head)]

    def stored_strips(self) -> Iterator[tuple[slice, Array, NDArray[Any]]]:
        """Rows of F a strip at a time, as they are stored."""
        height = max(64, FLOAT32_STRIP_ENTRIES // max(self.rank, 1))
        for start in range(0, len(self.head), height):
            rows = slice(start, min(start + height, len(self.head)))
            yield rows, *self.stored(rows)

    def strips(self) -> Iterator[tuple[slice, Array]]:
        """Rows of F a strip at a time, in float64."""
        height = max(64, FACTOR_STRIP_ENTRIES // max(self.rank, 1))
        # One buffer for all: on a Dask worker, memory that is released returns to the system, and costs as much as the
        # product to get again.
        wide = np.empty((min(height, len(self.head)) if self.whole is None else 0, self.rank))
        for start in range(0, len(self.head), height):
            rows = slice(start, min(start + height, len(self.head)))
            if self.whole is None:
                strip = wide[: rows.stop - start]
                np.concatenate(self.stored(rows), axis=1, out=strip)
            else:
                strip = self.whole[rows, : self.rank]
            yield rows, strip


@dataclass(frozen=True)
class NewColumns:
    """Columns that a worker adds to its rows: the new pivots, and F among them."""

    rank: int
    """Columns before."""
    taken: Any
    """The new pivots, as the source of columns takes them."""
    above: Array
    """F at the new pivots, of shape (new, rank)."""
    pivot_factor: Array
    """Cholesky factor L of A − F Fᵀ among them, of shape (new, new)."""
    precision: Precision = "float64"
    """Precision of the product of F with `above` but for the first columns; float32 needs an F that is stored so."""


def extend_rows(meter: Meter, rows: FactorRows, new: NewColumns) -> Array:
    """Task: add columns and return the squares of the new entries summed over each row, of shape (stop − start,)."""
    state = rows.new_state() if new.rank == 0 else rows.state()
    if state.rank < new.rank:
        raise LostRowsError(rows.number)
    k = len(new.pivot_factor)
    squares = np.empty(rows.stop - rows.start)
    state.rank = new.rank
    n_head = min(HEAD_COLUMNS, new.rank)
    low = new.above[:, n_head:].astype(np.float32)
    strips = ((where, strip, None) for where, strip in state.strips())
    for where, first, others in strips if new.precision == "float64" else state.stored_strips():
        with meter.time("gram"):
            block = rows.columns.block(rows.numbers(where), new.taken)
        with meter.time("gemm"):
            if new.rank:
                above = new.above[:, : first.shape[1]]
                blas.gemm(block, first, above, transpose_b=True, alpha=-1.0, beta=1.0)
            if others is not None and others.shape[1]:
                product = np.empty(block.shape, np.float32)
                blas.gemm(product, others, low, transpose_b=True)
                block -= product
        with meter.time("trsm"):
            blas.solve_lower_right(new.pivot_factor, block)
        state.put(where, new.rank, block)
        np.einsum("ij,ij->i", block, block, out=squares[where])
    state.rank = new.rank + k
    return squares


def rounded(vectors: Array) -> tuple[NDArray[np.float32], Array]:
    """Vectors in float32 divided by powers of two, and these: float32 has a small range."""
    sizes = column_sizes(vectors)
    return np.ascontiguousarray((vectors / sizes).astype(np.float32)), sizes


def weights_within(part: slice, weights: Array) -> Array:
    """Weights of some rows, and 0 for all others."""
    found = np.zeros_like(weights)
    found[part] = weights[part]
    return found


def gram_rows(meter: Meter, rows: FactorRows, part: slice, weights: tuple[Array, Precision]) -> Array:
    """Task: lower triangle of Fᵀ diag(v) F over a part of its rows, of shape (r, r); v, of shape (n,), and precision.

    Parameters
    ----------
    part : slice
        Numbers of rows, those of other places among them.
    """
    state, precision, v = rows.state(), weights[1], weights_within(part, weights[0])
    total = np.zeros((state.rank, state.rank))
    with meter.time("syrk"):
        if precision == "float32":
            _add_low_gram(total, state, v[rows.start : rows.stop])
            return total
        for where, strip in state.strips():
            roots = np.sqrt(v[rows.numbers(where)])
            used = np.flatnonzero(roots)  # the rows of one fold may be a few of all
            if len(used):
                blas.syrk(total, strip[used] * roots[used, None], transpose=True, beta=1.0)
    return total


def _add_low_gram(total: Array, state: RowsState, weights: Array) -> None:
    """Add Fᵀ diag(v) F by products in float32, of a few rows each, but for the first columns, whose are in float64.

    What is above the diagonal is undefined.
    """
    used = np.flatnonzero(weights)  # the rows of one fold may be a few of all
    for top in range(0, len(used), GRAM_ROWS):
        rows = used[top : top + GRAM_ROWS]
        lies_together = rows[-1] - rows[0] + 1 == len(rows)
        head, tail = state.stored(slice(rows[0], rows[-1] + 1) if lies_together else rows)
        right, n_head = head * weights[rows, None], head.shape[1]
        blas.gemm(total[:n_head, :n_head], head, right, transpose_a=True, beta=1.0)
        below, across = total[n_head:, :n_head], total[n_head:, n_head:]
        for left in range(0, tail.shape[1], GRAM_COLUMNS):
            columns = slice(left, min(left + GRAM_COLUMNS, tail.shape[1]))
            blas.gemm(below[columns], tail[:, columns].astype(np.float64), right, transpose_a=True, beta=1.0)
            product = np.empty((tail.shape[1] - left, columns.stop - left), tail.dtype)
            low = np.multiply(tail[:, columns], weights[rows, None], dtype=tail.dtype)
            blas.gemm(product, tail[:, left:], low, transpose_a=True)
            across[left:, columns] += product


def project_rows(meter: Meter, rows: FactorRows, vectors: tuple[Array, Precision]) -> Array:
    """Task: Fᵀ V over its rows, of shape (r, m); V, of shape (n, m), and the precision."""
    state, (v, precision) = rows.state(), vectors
    total = np.zeros((state.rank, v.shape[1]))
    head, tail = total[:HEAD_COLUMNS], total[HEAD_COLUMNS:]
    with meter.time("project"):
        if precision == "float64":
            for where, strip in state.strips():
                blas.gemm(total, strip, v[rows.numbers(where)], transpose_a=True, beta=1.0)
            return total
        here = v[rows.start : rows.stop]
        low, sizes = rounded(here)
        for where, first, others in state.stored_strips():
            blas.gemm(head, first, here[where], transpose_a=True, beta=1.0)
            product = np.empty(tail.shape, np.float32)
            blas.gemm(product, others, low[where], transpose_a=True)
            tail += product
        tail *= sizes
    return total


def expand_rows(meter: Meter, rows: FactorRows, vectors: tuple[Array, Precision]) -> Array:
    """Task: its rows of F U, of shape (stop − start, m); U, of shape (r, m), and the precision."""
    state, (u, precision) = rows.state(), vectors
    out = np.empty((rows.stop - rows.start, u.shape[1]))
    with meter.time("expand"):
        if precision == "float64":
            for where, strip in state.strips():
                blas.gemm(out[where], strip, u)
            return out
        low, sizes = rounded(u[HEAD_COLUMNS:])
        for where, first, others in state.stored_strips():
            blas.gemm(out[where], first, u[:HEAD_COLUMNS])
            product = np.empty((len(others), u.shape[1]), np.float32)
            blas.gemm(product, others, low)
            out[where] += product * sizes
    return out


def rebuild_rows(meter: Meter, rows: FactorRows, pivots: tuple[Any, Array]) -> None:
    """Task: compute F = A[:, S] L⁻ᵀ from the pivots alone, unless this process has it."""
    taken, lower = pivots
    state = rows.new_state()
    if state.rank != len(lower):
        complete_rows(meter, rows, (rows.start, taken, lower))


def complete_rows(meter: Meter, rows: FactorRows, pivots: tuple[int, Any, Array]) -> None:
    """Task: compute the rows of F from a number on from the pivots, in a process that has read those before."""
    first, taken, lower = pivots
    state = rows.state()
    height = max(64, FACTOR_STRIP_ENTRIES // len(lower))
    for start in range(max(first, rows.start), rows.stop, height):
        stop = min(start + height, rows.stop)
        with meter.time("gram"):
            block = rows.columns.block(slice(start, stop), taken)
        with meter.time("trsm"):
            blas.solve_lower_right(lower, block)
        state.put(slice(start - rows.start, stop - rows.start), 0, block)
    state.rank = len(lower)


def square_rows(meter: Meter, rows: FactorRows, _: None) -> Array:
    """Task: squares of F summed over each row."""
    state = rows.state()
    out = np.empty(rows.stop - rows.start)
    with meter.time("gemm"):
        for where, strip in state.strips():
            np.einsum("ij,ij->i", strip, strip, out=out[where])
    return out


def square_columns(meter: Meter, rows: FactorRows, weights: Array) -> Array:
    """Task: squares of F times v summed over its rows, of shape (r,); v, of shape (n,)."""
    state = rows.state()
    total = np.zeros(state.rank)
    with meter.time("gemm"):
        for where, strip in state.strips():
            total += np.einsum("i,ij,ij->j", weights[rows.numbers(where)], strip, strip)
    return total


@dataclass(frozen=True)
class KeptColumns:
    """Columns first ... stop − 1 of F in a store."""

    first: int
    stop: int
    segments: tuple[tuple[int, ChunkedArray], ...]
    """First row of every segment, and its array."""


def write_columns(meter: Meter, rows: FactorRows, new: tuple[int, Sequence[ChunkedArray]]) -> None:
    """Task: write the columns from a number on to the array of these rows, one array for every segment.

    Arrays in float64 are for some of the first columns.
    """
    first, arrays = new
    state, array = rows.state(), arrays[rows.number]
    height = array.chunks[0]
    with meter.time("write"):
        for k in range(array.grid[0]):
            part = slice(k * height, (k + 1) * height)
            block = state.columns(part, first, first + array.shape[1])
            meter.bytes_written += array.write((k, 0), np.ascontiguousarray(block))


def read_columns(meter: Meter, rows: FactorRows, kept: Sequence[KeptColumns]) -> None:
    """Task: read columns that an earlier run wrote, whose rows may have been cut otherwise."""
    state = rows.new_state()
    for one in kept:
        for first_row, array in one.segments:
            begin, end = max(first_row, rows.start), min(first_row + array.shape[0], rows.stop)
            height = array.chunks[0]
            # A chunk at a time: these rows as a whole are in memory once.
            cuts = [begin, *range(begin + height - (begin - first_row) % height, end, height), end]
            for start, stop in pairwise(cuts if begin < end else ()):
                with meter.time("read"):
                    block = array.read_rows(start - first_row, stop - first_row)
                state.put(slice(start - rows.start, stop - rows.start), one.first, block)
                meter.bytes_read += block.nbytes
    read = max(first_row + array.shape[0] for first_row, array in kept[-1].segments)
    state.rank = kept[-1].stop if read >= rows.stop else 0  # rows that are not complete are not taken for such
