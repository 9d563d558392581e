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
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
"""Memory of the small matrices of one training set at most, in matrices of r² numbers in float64."""
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


class CapacitanceFactor:
    """Cholesky factor L of B: beside products in float32, its rows and columns after the first are in float32, too.

    Parameters
    ----------
    matrix : ndarray of shape (r, r)
        B − I, of which the lower triangle is read; overwritten.
    precision : {"float64", "float32"}
    """

    def __init__(self, matrix: Array, precision: Precision) -> None:
        is_low = precision == "float32" and len(matrix) > factor_rows.HEAD_COLUMNS
        self._n_first = h = factor_rows.HEAD_COLUMNS if is_low else len(matrix)
        small_cholesky(matrix[:h, :h], 1.0)
        self._rest: NDArray[Any] = matrix[h:, h:]
        if is_low:
            blas.solve_lower_right(matrix[:h, :h], matrix[h:, :h])
            blas.syrk(self._rest, matrix[h:, :h], alpha=-1.0, beta=1.0)
            with np.errstate(over="ignore", invalid="ignore"):  # above the diagonal
                low = self._rest.astype(np.float32)
            low[np.diag_indices_from(low)] += 1.0
            self._rest = low if blas.cholesky_in_place(low) == 0 else small_cholesky(self._rest, 1.0)
        self._columns = matrix[:, :h].copy() if is_low else matrix

    def __len__(self) -> int:
        """Number of rows."""
        return len(self._columns)

    def solve(self, vectors: Array) -> None:
        """Multiply vectors of shape (r, m) by B⁻¹, in place."""
        h = self._n_first
        first, below, top, bottom = self._columns[:h], self._columns[h:], vectors[:h], vectors[h:]
        blas.solve_lower(first, top)
        if len(bottom):
            blas.gemm(bottom, below, top, alpha=-1.0, beta=1.0)
            sizes = column_sizes(bottom)  # float32 has a small range
            low = np.ascontiguousarray((bottom / sizes).astype(self._rest.dtype))
            blas.solve_lower(self._rest, low)
            blas.solve_lower(self._rest, low, transpose=True)
            bottom[...] = low * sizes
            blas.gemm(top, below, bottom, transpose_a=True, alpha=-1.0, beta=1.0)
        blas.solve_lower(first, top, transpose=True)


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
            grams = self._grams(squares)  # by separate tasks
            with ThreadPoolExecutor(n_threads) as pool:
                if self.precision == "float32":
                    largest = max(pool.map(low_precision_eigenvalue, grams))
                    if not largest <= LOW_PRECISION_RATIO * self._t.min():
                        self.precision = "float64"
                        grams = self._grams(squares)

                def add(f: int) -> None:
                    gram, grams[f] = grams[f], np.empty((0, 0))  # released once its matrices are made
                    sizes = self._sizes_of(f, squares[f], gram, shift)
                    for t, p in sizes.items():
                        self._capacitances[f, t] = CapacitanceFactor(gram[:p, :p] * (1.0 / t), self.precision)

                list(pool.map(add, range(len(grams))))

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

    def _sizes_of(self, f: int, squares: Array, gram: Array, shift: Array) -> dict[float, int]:
        """Rows of the small matrices of a training set, by t; more t share one until they fit in their memory."""
        # ‖F‖² of the first columns is what they take from the trace.
        whole = float((squares * self.factor.diagonal).sum())
        left = np.maximum(whole - np.concatenate([[0.0], np.cumsum(gram.diagonal())]), 0.0)
        means = left / np.maximum(np.count_nonzero(squares) - np.arange(len(left)), 1)
        here, rank = self.sets.of_column == f, self.factor.rank
        itemsize = 4 if self.precision == "float32" else 8
        while True:
            self._t[here] = self._shared(f, shift[here])
            sizes = dict[float, int]()
            for t in np.unique(self._t[here]).tolist():
                enough = np.flatnonzero(means <= MAX_RESIDUAL_FRACTION * t)
                sizes[t] = max(int(enough[0]) if len(enough) else rank, 1)
            if len(sizes) == 1 or itemsize * sum(p**2 for p in sizes.values()) <= SQUARES_OF_SET * 8 * rank**2:
                return sizes
            self._ratios[f] *= MIN_SHARED_RATIO

    def _grams(self, squares: Array) -> list[Array]:
        """Fᵀ diag(w) F of every set, (r, r) each: of its rows, or what those that it leaves out leave of all."""
        whole = squares.max(axis=0)
        outs = np.where(squares > 0, 0.0, whole)
        is_rest = np.array([(one[one > 0] == whole[one > 0]).all() for one in squares])
        is_rest &= np.count_nonzero(outs, axis=1) < np.count_nonzero(squares, axis=1)
        each = zip(np.where(is_rest[:, None], outs, squares), is_rest.tolist(), strict=True)
        grams = [(self.factor.gram(one, self.precision), rest) for one, rest in each]
        if not is_rest.any():
            return [gram for gram, _ in grams]
        if (np.count_nonzero(outs[is_rest], axis=0)[whole > 0] == 1).all():  # what is left out adds up to all rows
            total = np.zeros_like(grams[0][0])
            for gram, rest in grams:
                total += gram if rest else 0.0
        else:
            total = self.factor.gram(whole, self.precision)
        for gram, rest in grams:
            if rest:
                np.subtract(total, gram, out=gram)
        return [gram for gram, _ in grams]

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


def capacitance_work(n: int, rank: int, n_sets: int) -> Work:
    """Work of the small matrices of training sets, besides that of all rows."""
    return Work(gemm_flops=n * float(rank) ** 2 + CAPACITANCE_FLOPS * n_sets * float(rank) ** 3)
