"""Preconditioners of A + diag(s): approximate inverses that conjugate gradient applies once an iteration."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf, log, sqrt

import numpy as np
from numpy.typing import NDArray

from dkrr import blas
from dkrr.errors import NotPositiveDefiniteError
from dkrr.linalg.pivoted import PivotedCholesky
from dkrr.runtime import RunRecord

Array = NDArray[np.float64]


class Preconditioner(ABC):
    """A symmetric positive definite approximation of (A + diag(s))⁻¹."""

    captures_constant: bool = False
    """Whether directions of very large eigenvalues, the constant above all, need no treatment of their own."""

    @abstractmethod
    def apply(self, residuals: Array, columns: NDArray[np.intp]) -> Array:
        """Product with residuals.

        Parameters
        ----------
        residuals : ndarray of shape (n, k)
        columns : ndarray of shape (k,)
            Which of the right-hand sides they belong to (those may have shifts of their own).

        Returns
        -------
        ndarray of shape (n, k)
        """

    @property
    def rank(self) -> int:
        """Columns of the factor it is made of; 0 if it has none."""
        return 0

    @property
    def can_grow(self) -> bool:
        """Whether there is memory for a better one."""
        return False

    def grow(self) -> bool:
        """Become a better one; False if that was not possible after all."""
        return False

    @property
    def record(self) -> RunRecord:
        """What its tasks did."""
        return RunRecord()


class Identity(Preconditioner):
    """None at all."""

    def apply(self, residuals: Array, columns: NDArray[np.intp]) -> Array:  # noqa: ARG002
        """See base class."""
        return residuals.copy()


GROWTH = 1.5
"""By which the rank grows when conjugate gradient stalls."""
MAX_GROWTHS = 6


class ByPartialFactor(Preconditioner):
    """What the preconditioners have in common that are made of a partial Cholesky factor and small matrices."""

    factor: PivotedCholesky
    growths: int = 0

    @abstractmethod
    def _factor_middle(self) -> None:
        """Make the small matrices, for the factor as it is now."""

    @property
    def rank(self) -> int:
        """See base class."""
        return self.factor.rank

    @property
    def can_grow(self) -> bool:
        """See base class."""
        return self.growths < MAX_GROWTHS and self.factor.rank < self.factor.capacity

    def grow(self) -> bool:
        """See base class."""
        before = self.factor.rank
        self.growths += 1
        self.factor.grow(min(self.factor.capacity, int(GROWTH * before) + 1))
        if self.factor.rank == before:
            return False
        self._factor_middle()
        return True

    @property
    def record(self) -> RunRecord:
        """See base class."""
        return self.factor.record


@dataclass
class LowRank(ByPartialFactor):
    """(diag(c) F Fᵀ diag(c) + diag(s))⁻¹, by the identity of Sherman, Morrison and Woodbury.

    ::

        z = S⁻¹ r − S⁻¹ C F (I + Fᵀ C S⁻¹ C F)⁻¹ Fᵀ C S⁻¹ r

    F belongs to A alone: another s or c costs the small matrix in the middle, not a factor.

    Parameters
    ----------
    factor : PivotedCholesky
        F, of A.
    shift : ndarray of shape (n, 1) or (1, m)
        s > 0: one for all right-hand sides, or for each a number.
    scale : ndarray of shape (n,), optional
        c.
    """

    factor: PivotedCholesky
    shift: Array
    scale: Array | None = None
    growths: int = 0
    captures_constant = True
    _middle: dict[float, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._factor_middle()

    def _factor_middle(self) -> None:
        """Cholesky factors of the small matrices, one for each number in s."""
        squares = np.ones(self.factor.columns.n) if self.scale is None else self.scale**2
        self._middle = {}
        if self.factor.rank == 0:
            return
        if self.shift.shape[0] == 1:
            gram, shifts = self.factor.gram(squares), np.unique(self.shift)
            for s in shifts:
                self._middle[float(s)] = small_cholesky(gram if s == shifts[-1] else gram.copy(), float(s))
        else:
            self._middle[1.0] = small_cholesky(self.factor.gram(squares / self.shift[:, 0]), 1.0)

    def apply(self, residuals: Array, columns: NDArray[np.intp]) -> Array:
        """See base class."""
        one_for_all = self.shift.shape[0] > 1
        shift = self.shift if one_for_all else self.shift[:, columns]
        if not self._middle:
            return residuals / shift
        # With a number s for a column, (I + Fᵀ C² F / s)⁻¹ / s = (s I + Fᵀ C² F)⁻¹.
        right = residuals / shift if one_for_all else residuals
        inner = self.factor.project(right if self.scale is None else right * self.scale[:, None])
        for s, middle in self._middle.items():
            here = slice(None) if one_for_all else np.flatnonzero(shift[0] == s)
            part = np.ascontiguousarray(inner[:, here])
            blas.solve_lower(middle, part)
            blas.solve_lower(middle, part, transpose=True)
            inner[:, here] = part
        outer = self.factor.expand(inner)
        if self.scale is not None:
            outer *= self.scale[:, None]
        return (residuals - outer) / shift


def small_cholesky(matrix: Array, shift: float) -> Array:
    """Overwrite a matrix by the Cholesky factor of it and a multiple of the identity."""
    matrix[np.diag_indices_from(matrix)] += shift
    failed = blas.cholesky_in_place(matrix)
    if failed:
        raise NotPositiveDefiniteError(
            f"the preconditioner's matrix of size {len(matrix)} is not positive definite: the shift is below rounding",
            failed - 1,
        )
    return matrix


def expected_iterations(next_eigenvalue: float, shift: float, tol: float) -> float:
    """Iterations of conjugate gradient whose preconditioner leaves eigenvalues up to this one as they are.

    Half of what √κ log(2 / tol) bounds for κ = 1 + λ / s, times SPREAD for what rounding and the other eigenvalues add.
    Without a shift there is no bound.
    """
    if shift <= 0:
        return inf
    return 0.5 * SPREAD * sqrt(1.0 + next_eigenvalue / shift) * log(2.0 / tol)


SPREAD = 1.2
"""Measured over expected iterations (QM9, n = 10,000 to 30,000, ranks of 300 to 3,000: 1.0 to 1.3)."""


def next_eigenvalue(factor: PivotedCholesky) -> float:
    """Estimate of the largest eigenvalue that a partial factor leaves: what one of the last pivots took off."""
    (before, trace_before), (now, trace) = factor.traces[-2], factor.traces[-1]
    return max(trace_before - trace, 0.0) / max(now - before, 1)


def pays_no_more(
    shift: float, tol: float, iteration_seconds: float, pivot_seconds: Callable[[int], float]
) -> Callable[[PivotedCholesky], bool]:
    """Test for `PivotedCholesky.grow`: whether more pivots would cost more time than they save.

    Parameters
    ----------
    shift : float
    tol : float
    iteration_seconds : float
        Of one product with A.
    pivot_seconds : callable
        From a rank to the time that one more pivot costs there, its part in every later iteration included.
    """

    def enough(factor: PivotedCholesky) -> bool:
        if len(factor.traces) < 3:
            return False
        eigenvalue = next_eigenvalue(factor)
        if factor.traces[-1][1] <= shift:  # all that is left is less than the shift
            return True
        # Eigenvalues fall like a power of their number, so that iterations(r) ~ r^(-power / 2).
        (r0, t0), (r1, t1) = factor.traces[len(factor.traces) // 2], factor.traces[-1]
        if r0 == 0 or r1 == r0 or t1 <= 0:
            return False
        power = 1.0 + log(max(t0 / t1, 1.0)) / log(r1 / r0)
        saved = 0.5 * power * expected_iterations(eigenvalue, shift, tol) / r1 * iteration_seconds
        return saved < pivot_seconds(r1)

    return enough
