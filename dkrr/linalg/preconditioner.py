"""Preconditioners of A + diag(s): approximate inverses that conjugate gradient applies once an iteration."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import nan

import numpy as np
from numpy.typing import NDArray

from dkrr.cluster import RunRecord

Array = NDArray[np.float64]


class Preconditioner(ABC):
    """A symmetric positive definite approximation of (A + diag(s))⁻¹."""

    captures_constant: bool = False
    """Whether it covers directions of very large eigenvalues, the constant above all."""
    is_scaling: bool = False
    """Whether it only scales rows and columns: errors depend on the condition number of the scaled matrix then."""
    is_complete: bool = False
    """Whether complete factors make it, so that an iteration or two solve the system."""

    @abstractmethod
    def apply(self, residuals: Array, columns: NDArray[np.intp]) -> Array:
        """Product with residuals.

        Parameters
        ----------
        residuals : ndarray of shape (n, k)
        columns : ndarray of shape (k,)
            Right-hand sides that they belong to, which may have shifts of their own.

        Returns
        -------
        ndarray of shape (n, k)
        """

    @property
    def rank(self) -> int:
        """Columns of its factor; 0 without one."""
        return 0

    @property
    def can_grow(self) -> bool:
        """Whether a better one fits in memory."""
        return False

    def grow(self) -> bool:
        """Add columns to its factor; False if no more could be added."""
        return False

    def raise_shift_if_inexact(self, residuals: Array, columns: NDArray[np.intp]) -> bool:  # noqa: ARG002
        """Raise its shift if rounding has taken its digits, tried on residuals (n, k); return whether that was so."""
        return False

    def extremes(self, columns: NDArray[np.intp]) -> tuple[Array, Array]:
        """Estimates of the smallest and the largest eigenvalue of its inverse, each of shape (k,); NaN if unknown."""
        return np.full(len(columns), nan), np.full(len(columns), nan)

    @property
    def record(self) -> RunRecord:
        """Record of its tasks."""
        return RunRecord()


class Identity(Preconditioner):
    """No preconditioner."""

    is_scaling = True

    def apply(self, residuals: Array, columns: NDArray[np.intp]) -> Array:  # noqa: ARG002
        return residuals.copy()

    def extremes(self, columns: NDArray[np.intp]) -> tuple[Array, Array]:
        return np.ones(len(columns)), np.ones(len(columns))


@dataclass
class Diagonal(Preconditioner):
    """(diag(a) + diag(s))⁻¹ of Jacobi, a the diagonal of A.

    Parameters
    ----------
    diagonal : ndarray of shape (n, 1) or (n, m)
        a.
    shift : ndarray of shape (1, m) or (n, 1)
        s.
    """

    diagonal: Array
    shift: Array
    is_scaling = True

    def apply(self, residuals: Array, columns: NDArray[np.intp]) -> Array:
        return residuals / self._total(columns)

    def _total(self, columns: NDArray[np.intp]) -> Array:
        diagonal, shift = (x if x.shape[1] == 1 else x[:, columns] for x in (self.diagonal, self.shift))
        total = diagonal + shift
        return np.where(total > 0, total, 1.0)

    def extremes(self, columns: NDArray[np.intp]) -> tuple[Array, Array]:
        """Ones, as of the scaled matrix."""
        return np.ones(len(columns)), np.ones(len(columns))


class Deferred(Preconditioner):
    """One that is made when it is first applied: an iteration that begins at its solution needs none.

    Parameters
    ----------
    make : callable
        Returns the preconditioner.
    captures_constant : bool
        As that has it.
    """

    def __init__(self, make: Callable[[], Preconditioner], *, captures_constant: bool) -> None:
        self._make, self.captures_constant = make, captures_constant
        self._is_made = False

    @cached_property
    def _made(self) -> Preconditioner:
        self._is_made = True
        return self._make()

    def apply(self, residuals: Array, columns: NDArray[np.intp]) -> Array:
        return self._made.apply(residuals, columns)

    @property
    def rank(self) -> int:
        return self._made.rank if self._is_made else 0

    @property
    def can_grow(self) -> bool:
        return self._made.can_grow

    def grow(self) -> bool:
        return self._made.grow()

    def raise_shift_if_inexact(self, residuals: Array, columns: NDArray[np.intp]) -> bool:
        return self._made.raise_shift_if_inexact(residuals, columns)

    def extremes(self, columns: NDArray[np.intp]) -> tuple[Array, Array]:
        return self._made.extremes(columns)

    @property
    def record(self) -> RunRecord:
        return self._made.record if self._is_made else RunRecord()


@dataclass
class Fixed(Preconditioner):
    """A preconditioner that stays as it is throughout a run."""

    base: Preconditioner

    def __post_init__(self) -> None:
        self.captures_constant = self.base.captures_constant

    def apply(self, residuals: Array, columns: NDArray[np.intp]) -> Array:
        return self.base.apply(residuals, columns)

    @property
    def rank(self) -> int:
        return self.base.rank

    @property
    def record(self) -> RunRecord:
        return self.base.record


@dataclass
class Wrapped(Preconditioner):
    """A preconditioner around another one."""

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
