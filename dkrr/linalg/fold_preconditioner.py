"""Preconditioners of systems that leave rows out, from one partial Cholesky factor of the matrix of all rows.

A ≈ F Fᵀ is a factor of all rows with pivots S. On the rows of a training set F has lost nothing, but directions of the
pivots that were left out are captured by half there, which may cost several times as many iterations. With the pivots
S_f that are kept, and Q an orthonormal basis of the columns of F[S_f]ᵀ, the rows of F Q *are* the partial Cholesky
factor of the training set with pivots S_f, and no product with the matrix is needed::

    (C F Q Qᵀ Fᵀ C + t I)⁻¹ = (I − C F P Fᵀ C / t) / t,   P = Q (Qᵀ B Q)⁻¹ Qᵀ,   B = I + Fᵀ C² F / t

Where most pivots are kept, the complement of Q is smaller: F[S]ᵀ is triangular, so that a substitution finds a basis N
of it, with F[S_f] N = 0, and P = B⁻¹ − B⁻¹ N (Nᵀ B⁻¹ N)⁻¹ Nᵀ B⁻¹. A Cholesky factor of B for each set and t takes a
fraction of the time of an eigendecomposition, which would serve all t: close values of t share one, and where t is
large the first pivots suffice, since the first columns of F are the factor with the first pivots.

References
----------
Y. Chen, E. N. Epperly, J. A. Tropp, R. J. Webber, "Randomly pivoted Cholesky: practical approximation of a kernel
matrix with few entry evaluations", Comm. Pure Appl. Math. 2024.
"""

from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass
from functools import cached_property
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
CAPACITANCE_FLOPS = 4.0
"""Time of the small matrices of one training set over that of r³ operations of products (measured: rank 2,500)."""


@dataclass(frozen=True)
class CapacitanceInverse:
    """P of one training set and one t, which only knows the first pivots."""

    lower: NDArray[Any]
    """Cholesky factor of B, of shape (p, p), or of Qᵀ B Q, of shape (k, k)."""
    basis: NDArray[Any] | None
    """Q, of shape (p, k)."""
    removed: NDArray[Any] | None
    """Z with B⁻¹ − Z Zᵀ = P, of shape (p, h)."""

    @classmethod
    def of(
        cls, gram: Array, pivot_factor: Array, complement: Array, kept: NDArray[np.bool_], t: float
    ) -> "CapacitanceInverse":
        """Make P of Fᵀ C² F, F[S], N and a mask of the pivots that are kept, all of the first p pivots."""
        if not kept.any():
            return cls(np.empty((0, 0)), np.empty((len(gram), 0)), None)
        matrix = gram * (1.0 / t)
        if complement.shape[1] > len(gram) // 2:
            basis = np.ascontiguousarray(np.linalg.qr(pivot_factor[kept].T)[0])
            small = np.empty((basis.shape[1], basis.shape[1]))
            blas.gemm(small, basis, blas.product(matrix, basis), transpose_a=True)
            return cls(small_cholesky(small, 1.0), basis, None)
        lower = small_cholesky(matrix, 1.0)
        if not complement.shape[1]:
            return cls(lower, None, None)
        half = complement.copy()
        blas.solve_lower(lower, half)
        # With orthonormal columns of L⁻¹ N, B⁻¹ N (Nᵀ B⁻¹ N)⁻¹ Nᵀ B⁻¹ = Z Zᵀ.
        removed = np.ascontiguousarray(np.linalg.qr(half)[0])
        blas.solve_lower(lower, removed, transpose=True)
        return cls(lower, None, removed)

    def astype(self, dtype: Any) -> "CapacitanceInverse":
        """Copy in another precision."""
        arrays = (self.lower, self.basis, self.removed)
        return CapacitanceInverse(*(None if array is None else array.astype(dtype, copy=False) for array in arrays))  # type: ignore[arg-type]

    def apply(self, vectors: Array) -> Array:
        """P V of vectors of shape (r, k) with r ≥ p; rows from p on are zero."""
        found, rank = np.zeros(vectors.shape), len(self.lower if self.basis is None else self.basis)
        if not len(self.lower):
            return found
        sizes = column_sizes(vectors)  # float32 has a small range
        scaled = np.ascontiguousarray((vectors[:rank] / sizes).astype(self.lower.dtype))
        inner = scaled if self.basis is None else _product(self.basis, scaled, transpose=True)
        removed = None if self.removed is None else _product(self.removed, inner, transpose=True)
        blas.solve_lower(self.lower, inner)
        blas.solve_lower(self.lower, inner, transpose=True)
        if self.removed is not None and removed is not None:
            blas.gemm(inner, self.removed, removed, alpha=-1.0, beta=1.0)
        found[:rank] = inner if self.basis is None else _product(self.basis, inner)
        return found * sizes


def shared(shifts: Array) -> Array:
    """Shifts rounded down to fewer distinct values, by at most a factor MAX_SHARED_RATIO.

    Columns of equal shifts share a factorisation.
    """
    found = shifts.copy()
    for t in np.unique(shifts):
        if t in found:  # none that is smaller has taken it
            found[(shifts >= t) & (shifts <= MAX_SHARED_RATIO * t) & (found == shifts)] = t
    return found


def _product(a: NDArray[Any], b: NDArray[Any], *, transpose: bool = False) -> NDArray[Any]:
    found = np.empty((a.shape[1] if transpose else a.shape[0], b.shape[1]), a.dtype)
    blas.gemm(found, a, b, transpose_a=transpose)
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
        self._capacitances = dict[tuple[int, float], CapacitanceInverse]()
        if factor.rank:
            grams = [self._gram(each) for each in squares]  # by separate tasks
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

    def _capacitances_of(self, f: int, squares: Array, gram: Array) -> dict[tuple[int, float], CapacitanceInverse]:
        """Matrices of a training set for all t of its columns."""
        values = np.unique(self._t[self.sets.of_column == f])
        if not len(values):
            return {}
        factor = self.factor
        kept, dtype = squares[factor.index] > 0, np.float32 if self.precision == "float32" else np.float64
        # F[S] is triangular, so that the first rows of N belong to the first pivots.
        left_out = np.flatnonzero(~kept)
        complement = np.zeros((factor.rank, len(left_out)))
        complement[left_out, np.arange(len(left_out))] = 1.0
        blas.solve_lower(factor.pivot_factor, complement)
        whole = float((squares * factor.diagonal).sum())
        # ‖F‖² of the first columns is what they take from the trace.
        left = np.maximum(whole - np.concatenate([[0.0], np.cumsum(gram.diagonal())]), 0.0)
        means = left / np.maximum(np.count_nonzero(squares) - np.arange(len(left)), 1)

        def capacitance(t: float) -> CapacitanceInverse:
            enough = np.flatnonzero(means <= MAX_RESIDUAL_FRACTION * t)
            p = max(int(enough[0]) if len(enough) else factor.rank, 1)
            basis = complement[:p, : np.count_nonzero(~kept[:p])]
            return CapacitanceInverse.of(gram[:p, :p], factor.pivot_factor[:p, :p], basis, kept[:p], t).astype(dtype)

        return {(f, t): capacitance(t) for t in values.tolist()}

    @cached_property
    def _whole(self) -> tuple[Array, Array]:
        """Weights of all rows that any set has, and Fᵀ diag(w) F."""
        squares = (self.sets.scales**2).max(axis=1)
        return squares, self._symmetric(squares)

    def _gram(self, squares: Array) -> Array:
        """Fᵀ diag(w) F, of shape (r, r): of the rows of a set, or what those that are left out leave of all."""
        whole, gram = self._whole
        left_out = np.where(squares > 0, 0.0, whole)
        n_left_out, n_used = np.count_nonzero(left_out), np.count_nonzero(squares)
        if n_left_out == 0:
            return gram.copy()
        if n_left_out < n_used and (squares[squares > 0] == whole[squares > 0]).all():
            return np.asarray(gram - self._symmetric(left_out))
        return self._symmetric(squares)

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
            here = np.flatnonzero((sets == which[0]) & (t == which[1]))
            inner[:, here] = self._capacitances[which].apply(inner[:, here])

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
