"""Preconditioners of systems that leave rows out, from one partial Cholesky factor of the matrix of all rows.

A ≈ F Fᵀ is a factor of all rows. On the rows of a training set, C A C = C F Fᵀ C + E with a positive semidefinite E,
whichever rows have the pivots. So ::

    (C F Fᵀ C + t I)⁻¹ = (I − C F B⁻¹ Fᵀ C / t) / t,   B = I + Fᵀ C² F / t

has the bounds of `LowRank` for every set, with no product with the matrix: t is raised to the mean eigenvalue of E,
without which directions of pivots that are left out would be captured by half. A Cholesky factor of B for each set and
t takes a fraction of the time of an eigendecomposition, which would serve all t: close values of t share one, and where
t is large the first pivots suffice, since the first columns of F are the factor with the first pivots.

References
----------
Y. Chen, E. N. Epperly, J. A. Tropp, R. J. Webber, "Randomly pivoted Cholesky: practical approximation of a kernel
matrix with few entry evaluations", Comm. Pure Appl. Math. 2024.
"""

from concurrent.futures import ThreadPoolExecutor
from copy import copy
from itertools import pairwise
from math import ceil, frexp, inf, ldexp
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dkrr import blas
from dkrr.blas import column_sizes
from dkrr.cluster import RunRecord
from dkrr.cost import Work
from dkrr.linalg import factor_rows
from dkrr.linalg.gram_products import Precision
from dkrr.linalg.pivoted_cholesky import PivotedCholesky
from dkrr.linalg.preconditioners import (
    LOW_PRECISION_RATIO,
    MIN_SHIFT_FRACTION,
    Preconditioner,
    low_precision_eigenvalue,
    mean_residual_eigenvalue,
    small_cholesky,
)
from dkrr.linalg.training_sets import TrainingSets

Array = NDArray[np.float64]
Numbers = NDArray[np.intp]

MAX_RESIDUAL_FRACTION = 1 / 30
"""Largest mean eigenvalue of what the first pivots leave, as a fraction of t, with which they replace all."""
MIN_SHARED_RATIO = 64.0
"""Factor between values of t that share the smallest. The condition number of the largest is then this factor, so that
it takes about 30 iterations more, and it is the one with the fewest: 5,000 and 12,000 rows of molecules take the same
time with factors of 4 to 64."""
SQUARES_OF_SET = 1.25
"""Memory that the small matrices of one training set may take as squares, of which half is kept, in matrices of r²
numbers in float64. With half as much large λ share one with the smallest (tried once, 30,000 rows of molecules: they
took 51 iterations instead of 30)."""
PANEL_COLUMNS = 256
"""Columns of a triangle that are one array."""
CAPACITANCE_FLOPS = 1.2
"""Time of the small matrices of one training set over that of r³ operations of products in float64 (measured: ranks of
2,160, ten values of λ)."""


def shared(shifts: Array, ratio: float) -> Array:
    """Shifts rounded down to fewer distinct values, by at most a factor.

    Columns of equal shifts share a factorisation.
    """
    found = shifts.copy()
    for t in np.unique(shifts):
        if t in found:  # none that is smaller has taken it
            found[(shifts >= t) & (shifts <= ratio * t) & (found == shifts)] = t
    return found


class Panels:
    """Lower triangle, or its first columns, in panels of columns: half the memory of a square.

    Parameters
    ----------
    matrix : ndarray of shape (r, k)
        What is above the diagonal is not read.
    dtype : dtype
    size : float
        What entries are divided by.
    """

    def __init__(self, matrix: NDArray[Any], dtype: DTypeLike, size: float = 1.0) -> None:
        self._size, self._panels = size, list[tuple[slice, NDArray[Any]]]()
        for a, b in pairwise([*range(0, matrix.shape[1], PANEL_COLUMNS), matrix.shape[1]]):
            panel = np.empty((len(matrix) - a, b - a), dtype)
            with np.errstate(over="ignore", invalid="ignore"):  # above the diagonal
                np.divide(matrix[a:, a:b], size, out=panel, casting="unsafe")
            self._panels.append((slice(a, b), panel))

    def subtract_from(self, block: Array, rows: slice, left: int) -> None:
        """Subtract it from the block of these rows whose first column is `left`, but for what is above the diagonal."""
        for columns, panel in self._panels:
            first = columns.start
            a, b = max(first, left), min(columns.stop, left + block.shape[1])
            top = max(first, rows.start)
            if a < b and top < rows.stop:
                part = panel[top - first : rows.stop - first, a - first : b - first]
                block[top - rows.start :, a - left : b - left] -= np.multiply(part, self._size, dtype=np.float64)

    def diagonal(self) -> Array:
        """Diagonal, of shape (k,)."""
        found = [panel.diagonal() for _, panel in self._panels]
        return np.asarray(np.concatenate([np.empty(0), *found]) * self._size)

    def solve(self, vectors: NDArray[Any], *, transpose: bool = False) -> None:
        """Multiply vectors of shape (r, m) by the inverse of this L, or of Lᵀ, in place, as far as it has columns."""
        for columns, panel in reversed(self._panels) if transpose else self._panels:
            here, below = vectors[columns], vectors[columns.stop :]
            first, rest = panel[: len(here)], panel[len(here) :]
            if transpose and len(rest):
                blas.gemm(here, rest, below, transpose_a=True, alpha=-1.0, beta=1.0)
            blas.solve_lower(first, here, transpose=transpose)
            if not transpose and len(rest):
                blas.gemm(below, rest, here, alpha=-1.0, beta=1.0)


class SetGrams:
    """Fᵀ diag(w) F of every training set: that of its rows, or that of all less that of the rows that it leaves out.

    Parameters
    ----------
    factor : PivotedCholesky
    squares : ndarray of shape (n_sets, n)
        w of every set.
    precision : {"float64", "float32"}
        Where it is float32, all but the first columns are kept so.
    """

    def __init__(self, factor: PivotedCholesky, squares: Array, precision: Precision) -> None:
        whole = squares.max(axis=0)
        outs = np.where(squares > 0, 0.0, whole)
        is_rest = np.array([(one[one > 0] == whole[one > 0]).all() for one in squares])
        is_rest &= np.count_nonzero(outs, axis=1) < np.count_nonzero(squares, axis=1)
        self.n_first = factor_rows.HEAD_COLUMNS if precision == "float32" else factor.rank
        """Columns in float64."""
        self.largest = 0.0
        """Largest `low_precision_eigenvalue`, or a little more."""
        self._whole = np.zeros((factor.rank, factor.rank))
        self._is_rest, self._parts = is_rest, list[tuple[Panels, ...]]()
        # Mostly what is left out adds up to all rows.
        adds_up = (np.count_nonzero(outs[is_rest], axis=0)[whole > 0] == 1).all()
        for weights, subtracts in zip(np.where(is_rest[:, None], outs, squares), is_rest, strict=True):
            if not weights.any():
                self._parts.append(())
                continue
            gram = factor.gram(weights, precision)
            if not subtracts:
                self.largest = max(self.largest, low_precision_eigenvalue(gram))
            elif adds_up:
                self._whole += gram
            rest = gram[self.n_first :, self.n_first :]
            size = _power_of_two(float(rest.diagonal().max(initial=0.0)))  # float32 has a small range
            first = Panels(gram[:, : self.n_first], np.float64)
            self._parts.append((first, Panels(rest, np.float32, size)))
        if is_rest.any():
            if not adds_up:
                self._whole = factor.gram(whole, precision)
            self.largest = max(self.largest, low_precision_eigenvalue(self._whole))

    def block(self, f: int, rows: slice, columns: slice) -> Array:
        """Block of that of a set, in new memory; what is above the diagonal is undefined."""
        if self._is_rest[f]:
            found = self._whole[rows, columns].copy()
        else:
            found = np.zeros((rows.stop - rows.start, columns.stop - columns.start))
        for part, at in zip(self._parts[f], (0, self.n_first), strict=False):
            part.subtract_from(found, slice(rows.start - at, rows.stop - at), columns.start - at)
        return found if self._is_rest[f] else -found

    def diagonal(self, f: int) -> Array:
        """Diagonal of that of a set, of shape (r,)."""
        part = np.concatenate([np.empty(0), *(one.diagonal() for one in self._parts[f])])
        if not self._is_rest[f]:
            return part
        return np.asarray(self._whole.diagonal() - (part if len(part) else 0.0))

    def release(self, f: int) -> None:
        """Release what is kept of a set."""
        self._parts[f] = ()


def _power_of_two(value: float) -> float:
    """Largest power of two up to a positive value; 1 for others."""
    return ldexp(1.0, frexp(value)[1] - 1) if 0.0 < value < inf else 1.0


class CapacitanceFactor:
    """Cholesky factor L of B: beside products in float32, its rows and columns after the first are in float32, too.

    Parameters
    ----------
    grams : SetGrams
    f : int
        Set.
    rank : int
        Pivots that it is of.
    t : float
    """

    def __init__(self, grams: SetGrams, f: int, rank: int, t: float) -> None:
        self._rank, self._n_first = rank, min(rank, grams.n_first)
        self._dtype: DTypeLike = np.float32
        h = self._n_first
        first = grams.block(f, slice(0, rank), slice(0, h))
        first *= 1.0 / t
        small_cholesky(first[:h], 1.0)
        blas.solve_lower_right(first[:h], first[h:])

        def left(dtype: DTypeLike) -> NDArray[Any]:
            """What the first columns leave of B, in its lower triangle."""
            found = np.empty((rank - h, rank - h), dtype)
            for start in range(h, rank, PANEL_COLUMNS):
                stop = min(start + PANEL_COLUMNS, rank)
                block = grams.block(f, slice(start, stop), slice(h, stop))
                block *= 1.0 / t
                here, before = first[start:stop], first[h:stop]
                blas.gemm(block, here, before, transpose_b=True, alpha=-1.0, beta=1.0)
                with np.errstate(over="ignore", invalid="ignore"):  # above the diagonal
                    found[start - h : stop - h, : stop - h] = block
            found[np.diag_indices_from(found)] += 1.0
            return found

        self._first, rest = Panels(first, np.float64), left(self._dtype)
        if len(rest) and blas.cholesky_in_place(rest):
            self._dtype = np.float64
            rest = small_cholesky(left(self._dtype), 0.0)
        self._rest = Panels(rest, self._dtype)

    def __len__(self) -> int:
        """Number of rows."""
        return self._rank

    def solve(self, vectors: Array) -> None:
        """Multiply vectors of shape (r, m) by B⁻¹, in place."""
        self._first.solve(vectors)
        bottom = vectors[self._n_first :]
        if len(bottom):
            sizes = column_sizes(bottom)  # float32 has a small range
            low = np.ascontiguousarray((bottom / sizes).astype(self._dtype))
            self._rest.solve(low)
            self._rest.solve(low, transpose=True)
            bottom[...] = low * sizes
        self._first.solve(vectors, transpose=True)


class FoldLowRank(Preconditioner):
    """(C_j F_j F_jᵀ C_j + t_j I)⁻¹ of every column j, where t is raised as in `LowRank`.

    Parameters
    ----------
    factor : PivotedCholesky
        F, of all rows.
    sets : TrainingSets
    shift : ndarray of shape (m,)
        λ of every column.
    mixed : bool
        Products with F may be in float32, where F is stored so and t is not lost beside the largest eigenvalue.
    n_threads : int
        Threads that factor and apply the small matrices of several sets.
    """

    captures_constant = True

    def __init__(
        self, factor: PivotedCholesky, sets: TrainingSets, shift: Array, *, mixed: bool = False, n_threads: int = 1
    ) -> None:
        self.factor, self._n_threads = factor, n_threads
        squares = sets.scales.T**2
        self._least = np.array([self._least_shift(each) for each in squares])
        self._ratios = np.full(len(squares), MIN_SHARED_RATIO)
        """Factor between values of t that share one, by set."""
        self._assign(sets, shift)
        self.precision: Precision = "float32" if mixed and factor.is_low else "float64"
        self._capacitances = dict[tuple[int, float], CapacitanceFactor]()
        """Factors of B of the first pivots, by set and t."""
        if factor.rank:
            grams = SetGrams(factor, squares, self.precision)  # by separate tasks
            if self.precision == "float32" and not grams.largest <= LOW_PRECISION_RATIO * self._t.min():
                self.precision = "float64"
                del grams
                grams = SetGrams(factor, squares, self.precision)

            def add(f: int) -> None:
                for t, p in self._sizes_of(f, squares[f], grams.diagonal(f), shift).items():
                    self._capacitances[f, t] = CapacitanceFactor(grams, f, p, t)
                grams.release(f)

            # Those in float64 take twice the memory: one after the other.
            with ThreadPoolExecutor(n_threads if self.precision == "float32" else 1) as pool:
                list(pool.map(add, range(len(squares))))

    def for_columns(self, sets: TrainingSets, shift: Array) -> "FoldLowRank":
        """Preconditioner of other columns of the same training sets and λ."""
        other = copy(self)
        other._assign(sets, shift)
        return other

    def _assign(self, sets: TrainingSets, shift: Array) -> None:
        self.sets, self._t = sets, np.empty(len(shift))
        for f in np.unique(sets.of_column):
            self._t[sets.of_column == f] = self._shared(f, shift[sets.of_column == f])

    def _shared(self, f: int, shift: Array) -> Array:
        """Values of t of a set's columns."""
        t = np.maximum(shift, self._least[f])
        t[t == 0] = 1.0
        return shared(t, self._ratios[f])

    def _least_shift(self, squares: Array) -> float:
        """Smallest t: the mean eigenvalue of what the factor leaves, or the level of rounding."""
        factor = self.factor
        n_kept = int(np.count_nonzero(squares[factor.index]))
        return max(
            mean_residual_eigenvalue(squares * factor.residual_diagonal, n_kept),
            float((MIN_SHIFT_FRACTION * squares * factor.diagonal).sum()),
        )

    def _sizes_of(self, f: int, squares: Array, taken: Array, shift: Array) -> dict[float, int]:
        """Rows of the small matrices of a training set, by t; more t share one until they fit in their memory.

        ‖F‖² of every column on the rows of the set is what it takes from the trace.
        """
        whole = float((squares * self.factor.diagonal).sum())
        left = np.maximum(whole - np.concatenate([[0.0], np.cumsum(taken)]), 0.0)
        means = left / np.maximum(np.count_nonzero(squares) - np.arange(len(left)), 1)
        itemsize = 4 if self.precision == "float32" else 8
        here, rank = self.sets.of_column == f, self.factor.rank
        while True:
            self._t[here] = self._shared(f, shift[here])
            sizes = dict[float, int]()
            for t in np.unique(self._t[here]).tolist():
                enough = np.flatnonzero(means <= MAX_RESIDUAL_FRACTION * t)
                sizes[t] = max(int(enough[0]) if len(enough) else rank, 1)
            if len(sizes) == 1 or itemsize * sum(p**2 for p in sizes.values()) <= SQUARES_OF_SET * 8 * rank**2:
                return sizes
            self._ratios[f] *= MIN_SHARED_RATIO

    def apply(self, residuals: Array, columns: Numbers) -> Array:
        t, c, sets = self._t[columns], self.sets.scale(columns), self.sets.of_column[columns]
        if not self.factor.rank:
            return np.asarray(residuals / t)
        inner = self.factor.project(c * residuals, self.precision)

        def multiply(which: tuple[int, float]) -> None:
            here, lower = np.flatnonzero((sets == which[0]) & (t == which[1])), self._capacitances[which]
            vectors = np.ascontiguousarray(inner[: len(lower), here])
            lower.solve(vectors)
            inner[: len(lower), here], inner[len(lower) :, here] = vectors, 0.0

        distinct = dict.fromkeys(zip(sets.tolist(), t.tolist(), strict=True))
        if 2.0 * self.factor.rank**2 * len(columns) < blas.SMALL_FLOPS:  # to start threads would take longer
            for which in distinct:
                multiply(which)
        else:
            with ThreadPoolExecutor(self._n_threads) as pool:
                list(pool.map(multiply, distinct))
        return np.asarray((residuals - c * self.factor.expand(inner / t, self.precision)) / t)

    def raise_shift_if_inexact(self, residuals: Array, columns: Numbers) -> bool:  # noqa: ARG002
        """See base class; products with F in float64 take the place of those in float32, small matrices stay."""
        was_low, self.precision = self.precision == "float32", "float64"
        return was_low

    @property
    def rank(self) -> int:
        return self.factor.rank

    @property
    def record(self) -> RunRecord:
        return self.factor.record


def squares_of_sets(n_sets: int, n_threads: int) -> int:
    """Memory of the small matrices of training sets, in matrices of r² numbers in float64.

    FᵀF of all rows; that of the rows that every set leaves out, with the sums of every thread; later the factors of all
    sets, with what they are made from.
    """
    return ceil(1 + max(0.3 * n_sets + n_threads, SQUARES_OF_SET / 2 * n_sets + 1.5))


def capacitance_work(n: int, rank: int, n_sets: int) -> Work:
    """Work of the small matrices of training sets, besides that of all rows."""
    return Work(gemm_flops=n * float(rank) ** 2 + CAPACITANCE_FLOPS * n_sets * float(rank) ** 3)
