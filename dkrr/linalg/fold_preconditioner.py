"""Preconditioners of systems that leave rows out, from one partial Cholesky factor of the matrix of all rows.

A ≈ F Fᵀ is a factor of all rows with pivots S. On the rows of a training set F has lost nothing, but directions of the
pivots that were left out are captured by half there, which may cost several times as many iterations. With the pivots
S_f that are kept, and Q_f an orthonormal basis of the columns of F[S_f]ᵀ, the rows of F Q_f *are* the partial Cholesky
factor of the training set with pivots S_f: F[S]ᵀ is triangular, so that a QR decomposition of r × r numbers finds Q_f,
and no product with the matrix is needed.

One decomposition Q_fᵀ Fᵀ C_f² F Q_f = V D Vᵀ then serves all λ::

    (C_f F Q_f Q_fᵀ Fᵀ C_f + t I)⁻¹ = (I − C_f F W (t I + D)⁻¹ Wᵀ Fᵀ C_f) / t,   W = Q_f V

References
----------
Y. Chen, E. N. Epperly, J. A. Tropp, R. J. Webber, "Randomly pivoted Cholesky: practical approximation of a kernel
matrix with few entry evaluations", Comm. Pure Appl. Math. 2024.
"""

from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dkrr import blas
from dkrr.cost import Cost
from dkrr.kernels.blocks import mirror_lower
from dkrr.linalg.low_rank import LOW_PRECISION_RATIO, ROUNDING, mean_left
from dkrr.linalg.operator import Precision
from dkrr.linalg.pivoted_cholesky import PivotedCholesky
from dkrr.linalg.preconditioner import Preconditioner
from dkrr.linalg.training_sets import TrainingSets
from dkrr.runtime import RunRecord

Array = NDArray[np.float64]

BASIS_FLOPS = 25.0
"""Time of the basis of one training set over that of r³ operations of products (measured: rank 2,000 to 2,900)."""


@dataclass(frozen=True)
class SetBasis:
    """What the preconditioner of one training set is made of."""

    vectors: Array
    """W, of shape (r, k)."""
    values: Array
    """D, of shape (k,)."""
    least: float
    """Smallest t: the mean eigenvalue of what the factor leaves, or the level of rounding."""


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
        Threads that decompose the small matrices of several sets.
    """

    captures_constant = True

    def __init__(
        self, factor: PivotedCholesky, sets: TrainingSets, shift: Array, *, mixed: bool = False, n_threads: int = 1
    ) -> None:
        self.factor, self.sets, self._mixed = factor, sets, mixed
        grams = [self._gram(column**2) for column in sets.scales.T] if factor.rank else []
        with ThreadPoolExecutor(n_threads) as pool:
            self._bases = list(pool.map(self._basis, sets.scales.T**2, grams or [None] * sets.scales.shape[1]))
        self._raise_shifts(shift)

    def for_columns(self, sets: TrainingSets, shift: Array) -> "FoldLowRank":
        """The same for other columns of the same training sets."""
        other = copy(self)
        other.sets = sets
        other._raise_shifts(shift)
        return other

    def _raise_shifts(self, shift: Array) -> None:
        least = np.array([basis.least for basis in self._bases])
        self._t = np.maximum(shift, least[self.sets.of_column])
        self._t[self._t == 0] = 1.0
        largest = max((float(b.values.max(initial=0.0)) for b in self._bases), default=0.0)
        is_stored_low = np.dtype(self.factor.dtype) == np.float32
        is_low = self._mixed and is_stored_low and largest <= LOW_PRECISION_RATIO * self._t.min()
        self.precision: Precision = "float32" if is_low else "float64"

    def _basis(self, squares: Array, gram: Array | None) -> SetBasis:
        factor, rank = self.factor, self.factor.rank
        kept = squares[factor.index] > 0
        least = max(
            mean_left(squares * factor.left, int(kept.sum())), float((ROUNDING * squares * factor.diagonal).sum())
        )
        if gram is None or not kept.any():
            return SetBasis(np.zeros((rank, 0)), np.zeros(0), least)
        # NumPy's routines let other threads run meanwhile, SciPy's do not.
        if kept.all():
            values, vectors = np.linalg.eigh(gram)
            return SetBasis(np.ascontiguousarray(vectors), np.maximum(values, 0.0), least)
        q = np.ascontiguousarray(np.linalg.qr(factor.corner[kept].T)[0])
        small = np.empty((q.shape[1], q.shape[1]))
        blas.gemm(small, q, blas.product(gram, q), transpose_a=True)
        values, vectors = np.linalg.eigh(small)
        return SetBasis(blas.product(q, np.ascontiguousarray(vectors)), np.maximum(values, 0.0), least)

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
        gram = self.factor.gram(squares)
        mirror_lower(gram)
        return gram

    def apply(self, residuals: Array, columns: NDArray[np.intp]) -> Array:
        t, c, sets = self._t[columns], self.sets.scale(columns), self.sets.of_column[columns]
        if not self.factor.rank:
            return np.asarray(residuals / t)
        inner = self.factor.project(c * residuals, self.precision)
        for f in np.unique(sets):
            here, basis = np.flatnonzero(sets == f), self._bases[f]
            part = np.empty((len(basis.values), len(here)))
            blas.gemm(part, basis.vectors, np.ascontiguousarray(inner[:, here]), transpose_a=True)
            part /= t[here] + basis.values[:, None]
            inner[:, here] = blas.product(basis.vectors, part)
        return np.asarray((residuals - c * self.factor.expand(inner, self.precision)) / t)

    def raise_shift_if_inexact(self, residuals: Array, columns: NDArray[np.intp]) -> bool:  # noqa: ARG002
        """See base class; products in float64 take the place of those in float32."""
        was_low, self.precision = self.precision == "float32", "float64"
        return was_low

    @property
    def rank(self) -> int:
        return self.factor.rank

    @property
    def record(self) -> RunRecord:
        return self.factor.record


def bases_cost(rank: int, n_sets: int) -> Cost:
    """Cost of the bases of training sets, by decompositions that run at about a third of the rate of products."""
    return Cost(gemm_flops=BASIS_FLOPS * n_sets * float(rank) ** 3)
