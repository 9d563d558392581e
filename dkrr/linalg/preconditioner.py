"""Preconditioners of A + diag(s): approximate inverses that conjugate gradient applies once an iteration."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import inf, log, nan, sqrt

import numpy as np
from numpy.typing import NDArray

from dkrr import blas
from dkrr.errors import NotPositiveDefiniteError
from dkrr.linalg.operator import column_norms
from dkrr.linalg.pivoted import PivotedCholesky
from dkrr.runtime import RunRecord

Array = NDArray[np.float64]


class Preconditioner(ABC):
    """A symmetric positive definite approximation of (A + diag(s))⁻¹."""

    captures_constant: bool = False
    """Whether directions of very large eigenvalues, the constant above all, need no treatment of their own."""
    is_scaling: bool = False
    """Whether it only scales rows and columns: errors depend on the condition number of the scaled matrix then."""
    is_complete: bool = False
    """Whether it is made of complete factors, so that an iteration or two solve the system."""

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

    def raise_shift_if_inexact(self, residuals: Array, columns: NDArray[np.intp]) -> bool:  # noqa: ARG002
        """Raise the shift it is made with if rounding has taken its digits; whether that was so.

        Parameters
        ----------
        residuals : ndarray of shape (n, k)
            What to try it on.
        columns : ndarray of shape (k,)
        """
        return False

    def extremes(self, columns: NDArray[np.intp]) -> tuple[Array, Array]:
        """Estimates of the smallest and the largest eigenvalue of what it is the inverse of.

        NaN where nothing is known.

        Parameters
        ----------
        columns : ndarray of shape (k,)

        Returns
        -------
        smallest, largest : ndarray of shape (k,)
        """
        return np.full(len(columns), nan), np.full(len(columns), nan)

    @property
    def record(self) -> RunRecord:
        """What its tasks did."""
        return RunRecord()


class Identity(Preconditioner):
    """None at all."""

    is_scaling = True

    def apply(self, residuals: Array, columns: NDArray[np.intp]) -> Array:  # noqa: ARG002
        return residuals.copy()

    def extremes(self, columns: NDArray[np.intp]) -> tuple[Array, Array]:
        return np.ones(len(columns)), np.ones(len(columns))


@dataclass
class Wrapped(Preconditioner):
    """A preconditioner that adds something to another one."""

    base: Preconditioner

    @property
    def rank(self) -> int:
        return self.base.rank

    @property
    def can_grow(self) -> bool:
        return self.base.can_grow

    def grow(self) -> bool:
        return self.base.grow()

    def raise_shift_if_inexact(self, residuals: Array, columns: NDArray[np.intp]) -> bool:
        return self.base.raise_shift_if_inexact(residuals, columns)

    @property
    def record(self) -> RunRecord:
        return self.base.record


GROWTH = 1.5
"""By which the rank grows when conjugate gradient stalls."""
MAX_GROWTHS = 6
LIFT = 100.0
"""Factor by which the least shift grows when a preconditioner has lost its digits."""
INEXACT = 0.1
"""Part of a vector that M M⁻¹ may change before the shift is raised."""
ROUNDING = 10.0 * float(np.finfo(np.float64).eps)
"""Times the trace: shifts below are lost beside the large eigenvalues."""


@dataclass(frozen=True)
class ShiftGroup:
    """What right-hand sides of the same shift and scale share."""

    shift: Array
    """t, of shape (1,) or (n,)."""
    middle: Array
    """Cholesky factor of I + Fᵀ C T⁻¹ C F, of shape (r, r)."""


@dataclass
class LowRank(Preconditioner):
    """(diag(c) F Fᵀ diag(c) + diag(t))⁻¹, by the identity of Sherman, Morrison and Woodbury.

    ::

        z = T⁻¹ r − T⁻¹ C F (I + Fᵀ C T⁻¹ C F)⁻¹ Fᵀ C T⁻¹ r

    F belongs to A alone: another t or c costs the small matrix in the middle, not a factor.

    With A = F Fᵀ + E and t = s, M⁻¹ (A + s) has eigenvalues from 1 to 1 + ‖E‖ / s, far apart where s is far below all
    eigenvalues of E, and M⁻¹ loses all digits. With t = max(s, δ), δ the mean eigenvalue of E, none is larger than
    1 + ‖E‖ / t, and none smaller than min(1/2, (s + μ/2) / t) for the smallest eigenvalue μ of A: at worst (μ = 0) that
    is a condition number 1 + δ / ‖E‖ times as large, at best (E nearly a multiple of the identity) it is about 4,
    whatever s. With a scale c, E = C (A − F Fᵀ) C may have a diagonal e of many orders; t is max(s, min(e, δ)) then,
    row by row.

    Parameters
    ----------
    factor : PivotedCholesky
        F, of A.
    shift : ndarray of shape (n, 1) or (1, m)
        s ≥ 0: one for all right-hand sides, or for each a number.
    scale : ndarray of shape (n,) or (n, m), optional
        c: one for all right-hand sides, or one for each.
    """

    factor: PivotedCholesky
    shift: Array
    scale: Array | None = None
    growths: int = 0
    lift: float = 1.0
    captures_constant = True
    _groups: tuple[ShiftGroup, ...] = ()
    _group_of: NDArray[np.intp] = field(default_factory=lambda: np.zeros(1, np.intp))
    """Number of the group of every right-hand side."""
    _largest: Array | None = None
    """Estimates of the largest eigenvalue of C A C for every scale, once they have been asked for."""

    def __post_init__(self) -> None:
        self._form_groups()

    def _form_groups(self) -> None:
        """Compute the shifts and the small matrices, for the factor as it is now."""
        shift, scale = self.shift, self.scale
        if scale is not None and scale.ndim == 2:
            self._group_of = np.arange(scale.shape[1])
            shifts = np.broadcast_to(shift, (len(shift), scale.shape[1])).T
            self._groups = tuple(g for s, c in zip(shifts, scale.T, strict=True) for g in self._sharing([s], c))
        elif len(shift) > 1:
            self._groups = self._sharing([shift[:, 0]], scale)
        else:
            distinct, self._group_of = np.unique(shift[0], return_inverse=True)
            self._groups = self._sharing(distinct[:, None], scale)

    def _sharing(self, shifts: Iterable[Array], scale: Array | None) -> tuple[ShiftGroup, ...]:
        """Groups of several shifts and one scale, of shape (n,)."""
        squares = None if scale is None else np.ascontiguousarray(scale**2)
        c2 = np.ones(self.factor.columns.n) if squares is None else squares
        raised = [self._raised(s, squares) for s in shifts]
        groups, gram, first = [], np.empty((0, 0)), np.ones(1)
        for t in raised:
            middle = np.empty((0, 0))
            if self.factor.rank and len(t) > 1:
                middle = small_cholesky(self.factor.gram(c2 / t), 1.0)
            elif self.factor.rank:
                if not len(gram):  # of C T⁻¹ C, which overflows later than C² does
                    gram, first = self.factor.gram(c2 / t), t
                middle = small_cholesky(gram if len(raised) == 1 else gram * (first / t), 1.0)
            groups.append(ShiftGroup(t, middle))
        return tuple(groups)

    def _raised(self, shift: Array, squares: Array | None) -> Array:
        """Return t, of shape (1,) or (n,), for s of such a shape and c² of shape (n,)."""
        f, uniform = self.factor, squares is None and len(shift) == 1
        left, whole = (f.left, f.diagonal) if squares is None else (squares * f.left, squares * f.diagonal)
        mean = mean_left(left, f.rank)
        rounding = self.lift * ROUNDING
        if uniform:
            t = np.maximum(shift, max(mean, float((rounding * whole).sum())))
        else:
            t = np.maximum(shift, np.maximum(np.minimum(left, mean), rounding * len(left) * whole))
            t = t if t.min() < t.max() else t[:1]
        return np.where(t > 0, t, 1.0)

    def _numbers(self, columns: NDArray[np.intp]) -> NDArray[np.intp]:
        """Numbers of the groups of some right-hand sides."""
        return np.zeros(len(columns), np.intp) if len(self._groups) == 1 else self._group_of[columns]

    def shifts(self, columns: NDArray[np.intp]) -> Array:
        """Return t of some right-hand sides, of shape (1, k), (n, 1) or (n, k)."""
        if len(self._groups) == 1:
            return self._groups[0].shift.reshape(-1, 1)
        found = [self._groups[k].shift for k in self._numbers(columns)]
        n = max(map(len, found))
        return np.stack([np.broadcast_to(t, n) for t in found], axis=1)

    def _scales(self, columns: NDArray[np.intp]) -> Array | None:
        """Return c of some right-hand sides, of shape (n, 1) or (n, k)."""
        if self.scale is None:
            return None
        return self.scale[:, None] if self.scale.ndim == 1 else self.scale[:, columns]

    def apply(self, residuals: Array, columns: NDArray[np.intp]) -> Array:
        t, c, numbers = self.shifts(columns), self._scales(columns), self._numbers(columns)
        right = residuals / t
        if not self.factor.rank:
            return right
        inner = self.factor.project(right if c is None else c * right)
        for k in np.unique(numbers):
            here = np.flatnonzero(numbers == k)
            part = np.ascontiguousarray(inner[:, here])
            blas.solve_lower(self._groups[k].middle, part)
            blas.solve_lower(self._groups[k].middle, part, transpose=True)
            inner[:, here] = part
        outer = self.factor.expand(inner)
        if c is not None:
            outer *= c
        return (residuals - outer) / t

    @property
    def rank(self) -> int:
        return self.factor.rank

    @property
    def can_grow(self) -> bool:
        return self.growths < MAX_GROWTHS and self.factor.rank < self.factor.capacity

    def grow(self) -> bool:
        before = self.factor.rank
        self.growths += 1
        self.factor.grow(min(self.factor.capacity, int(GROWTH * before) + 1))
        if self.factor.rank == before:
            return False
        self._form_groups()
        return True

    def raise_shift_if_inexact(self, residuals: Array, columns: NDArray[np.intp]) -> bool:
        if self.factor.rank == 0:
            return False
        z, c = self.apply(residuals, columns), self._scales(columns)
        again = self.factor.expand(self.factor.project(z if c is None else c * z))
        again = (again if c is None else c * again) + self.shifts(columns) * z
        if (column_norms(again - residuals) <= INEXACT * column_norms(residuals)).all():
            return False
        self.lift *= LIFT
        self._form_groups()
        return True

    def extremes(self, columns: NDArray[np.intp]) -> tuple[Array, Array]:
        if self._largest is None:
            self._largest = self._largest_eigenvalues()
        t = self.shifts(columns)
        # At the pivots, where F leaves nothing, t may be small without any such eigenvalue.
        others = self.factor.left > 0
        least = np.broadcast_to((t[others] if len(t) > 1 and others.any() else t).min(axis=0), len(columns))
        return least, (self._largest if len(self._largest) == 1 else self._largest[columns]) + least

    def _largest_eigenvalues(self) -> Array:
        # A step of the power method: a kernel's largest eigenvalue often belongs nearly to the constant.
        n = self.factor.columns.n
        c = np.ones((n, 1)) if self.scale is None else self.scale.reshape(n, -1)
        largest = np.asarray((c**2 * self.factor.diagonal[:, None]).max(axis=0))
        if not self.factor.rank:
            return largest
        first = self.factor.project(c)
        lengths = column_norms(first)
        first /= np.where(lengths > 0, lengths, 1.0)
        second = self.factor.project(c * (c * self.factor.expand(first)))
        return np.asarray(np.maximum(largest, column_norms(second)))

    @property
    def record(self) -> RunRecord:
        return self.factor.record


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


def mean_left(left: Array, rank: int) -> float:
    """δ, the mean eigenvalue of what a partial factor of this rank leaves, from its diagonal (n,)."""
    return float((left / max(len(left) - rank, 1)).sum())  # in this order the sum does not overflow


def expected_iterations(next_eigenvalue: float, shift: float, tol: float) -> float:
    """Iterations of conjugate gradient whose preconditioner leaves eigenvalues up to this one as they are.

    Half of what √κ log(2 / tol) bounds for κ = 1 + λ / t, times SPREAD for what rounding and the other eigenvalues add;
    `shift` is t, with which the preconditioner is made. Without a shift there is no bound.
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
        s. Far below what is left, where the preconditioner is made with a larger one, this asks for all the pivots
        that there is memory for: eigenvalues that the factor leaves then decide, and a smooth kernel has small ones.
    tol : float
    iteration_seconds : float
        Of one product with A.
    pivot_seconds : callable
        From a rank to the time that one more pivot costs there, its part in every later iteration included.
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
