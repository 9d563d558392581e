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
from dkrr.kernels.blocks import mirror_lower
from dkrr.linalg.gram_products import Precision
from dkrr.linalg.pivoted_cholesky import PivotedCholesky
from dkrr.linalg.preconditioners import (
    LOW_PRECISION_RATIO,
    MIN_SHIFT_FRACTION,
    Preconditioner,
    mean_residual_eigenvalue,
    small_cholesky,
)
from dkrr.linalg.training_sets import TrainingSets

Array = NDArray[np.float64]
Numbers = NDArray[np.intp]

MAX_RESIDUAL_FRACTION = 1 / 100
"""Largest mean eigenvalue of what the first pivots leave, as a fraction of t, with which they replace all."""
MAX_SHIFT_RAISE = 2.0
"""Factor by which the smallest t may be raised for products in float32."""
MAX_SHARED_RATIO = 4.0
"""Factor between values of t that share the smallest: iterations of the largest about double, and are the fewest."""
CAPACITANCE_FLOPS = 1.5
"""Time of the small matrices of one training set over that of r³ operations of products (measured: ranks of 1,900, ten
values of λ)."""


def shared(shifts: Array) -> Array:
    """Shifts rounded down to fewer distinct values, by at most a factor MAX_SHARED_RATIO.

    Columns of equal shifts share a factorisation.
    """
    found = shifts.copy()
    for t in np.unique(shifts):
        if t in found:  # none that is smaller has taken it
            found[(shifts >= t) & (shifts <= MAX_SHARED_RATIO * t) & (found == shifts)] = t
    return found


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
        self.precision: Precision = "float64"
        if mixed and factor.rank and np.dtype(factor.dtype) == np.float32:
            lowest = self._largest(squares) / LOW_PRECISION_RATIO
            smallest = np.maximum(shift, self._least[sets.of_column]).min(initial=np.inf)
            if lowest <= MAX_SHIFT_RAISE * smallest:
                self.precision, self._least = "float32", np.maximum(self._least, lowest)
        self._assign(sets, shift)
        self._capacitances = dict[tuple[int, float], NDArray[Any]]()
        """Cholesky factors of B of the first pivots, by set and t."""
        if factor.rank:
            grams = self._grams(squares)  # by separate tasks
            with ThreadPoolExecutor(n_threads) as pool:
                for found in pool.map(self._capacitances_of, range(len(grams)), squares, grams):
                    self._capacitances |= found

    def for_columns(self, sets: TrainingSets, shift: Array) -> "FoldLowRank":
        """Preconditioner of other columns of the same training sets and λ."""
        other = copy(self)
        other._assign(sets, shift)
        return other

    def _assign(self, sets: TrainingSets, shift: Array) -> None:
        self.sets = sets
        self._t = np.maximum(shift, self._least[sets.of_column])
        self._t[self._t == 0] = 1.0
        for f in np.unique(sets.of_column):
            self._t[sets.of_column == f] = shared(self._t[sets.of_column == f])

    def _least_shift(self, squares: Array) -> float:
        """Smallest t: the mean eigenvalue of what the factor leaves, or the level of rounding."""
        factor = self.factor
        n_kept = int(np.count_nonzero(squares[factor.index]))
        return max(
            mean_residual_eigenvalue(squares * factor.residual_diagonal, n_kept),
            float((MIN_SHIFT_FRACTION * squares * factor.diagonal).sum()),
        )

    def _largest(self, squares: Array) -> float:
        """Estimate of the largest eigenvalue of all C F Fᵀ C, by a step of the power method from the constant."""
        c = np.sqrt(squares.max(axis=0))[:, None]
        first = self.factor.project(c)
        norms = np.linalg.norm(first)
        second = self.factor.project(c * (c * self.factor.expand(first / (norms or 1.0))))
        return float(np.linalg.norm(second))

    def _capacitances_of(self, f: int, squares: Array, gram: Array) -> dict[tuple[int, float], NDArray[Any]]:
        """Small matrices of a training set for all t of its columns."""
        factor, found = self.factor, dict[tuple[int, float], NDArray[Any]]()
        dtype = np.float32 if self.precision == "float32" else np.float64
        # ‖F‖² of the first columns is what they take from the trace.
        whole = float((squares * factor.diagonal).sum())
        left = np.maximum(whole - np.concatenate([[0.0], np.cumsum(gram.diagonal())]), 0.0)
        means = left / np.maximum(np.count_nonzero(squares) - np.arange(len(left)), 1)
        for t in np.unique(self._t[self.sets.of_column == f]).tolist():
            enough = np.flatnonzero(means <= MAX_RESIDUAL_FRACTION * t)
            p = max(int(enough[0]) if len(enough) else factor.rank, 1)
            found[f, t] = small_cholesky(gram[:p, :p] * (1.0 / t), 1.0).astype(dtype, copy=False)
        return found

    def _grams(self, squares: Array) -> list[Array]:
        """Fᵀ diag(w) F of every set, (r, r) each: of its rows, or what those that it leaves out leave of all."""
        whole = squares.max(axis=0)
        outs = np.where(squares > 0, 0.0, whole)
        is_rest = np.array([(one[one > 0] == whole[one > 0]).all() for one in squares])
        is_rest &= np.count_nonzero(outs, axis=1) < np.count_nonzero(squares, axis=1)
        each = zip(np.where(is_rest[:, None], outs, squares), is_rest.tolist(), strict=True)
        grams = [(self._symmetric(one), rest) for one, rest in each]
        if not is_rest.any():
            return [gram for gram, _ in grams]
        if (np.count_nonzero(outs[is_rest], axis=0)[whole > 0] == 1).all():  # what is left out adds up to all rows
            total = np.zeros_like(grams[0][0])
            for gram, rest in grams:
                total += gram if rest else 0.0
        else:
            total = self._symmetric(whole)
        return [total - gram if rest else gram for gram, rest in grams]

    def _symmetric(self, squares: Array) -> Array:
        gram = self.factor.gram(squares, self.precision)
        mirror_lower(gram)
        return gram

    def apply(self, residuals: Array, columns: Numbers) -> Array:
        t, c, sets = self._t[columns], self.sets.scale(columns), self.sets.of_column[columns]
        if not self.factor.rank:
            return np.asarray(residuals / t)
        inner = self.factor.project(c * residuals, self.precision)

        def multiply(which: tuple[int, float]) -> None:
            here, lower = np.flatnonzero((sets == which[0]) & (t == which[1])), self._capacitances[which]
            vectors = inner[:, here]
            sizes = column_sizes(vectors)  # float32 has a small range
            solved = np.ascontiguousarray((vectors[: len(lower)] / sizes).astype(lower.dtype))
            blas.solve_lower(lower, solved)
            blas.solve_lower(lower, solved, transpose=True)
            inner[: len(lower), here], inner[len(lower) :, here] = solved * sizes, 0.0

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
