"""The matrix of a Newton step in the dual form, and its preconditioners.

With K the Gram matrix, g = v (p − y) and W = C Cᵀ the derivatives of the likelihood, r = g + 2λα, the step solves
(W K + 2λ) Δα + W 1 Δb = −r. For any q, with the rest d = r − C q::

    Δα = C x − d / 2λ,     (Cᵀ K C + 2λ) x = Cᵀ K d / 2λ − q − Cᵀ 1 Δb,

so C may vanish where p (1 − p) does: what C cannot reproduce goes to d. With a free intercept 1ᵀΔα is given, which is
Ĉᵀx = h for Ĉ = Cᵀ1; x = Ĉ (ΣW)⁺ h + Π x with the projection Π = I − Ĉ (ΣW)⁺ Ĉᵀ, and Δb falls out. What is left is
symmetric and positive definite: Π Cᵀ K C Π + 2λ.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dkrr.linalg.low_rank import LowRank
from dkrr.linalg.operator import Operator, Precision
from dkrr.linalg.pivoted_cholesky import PivotedCholesky
from dkrr.linalg.preconditioner import Identity, Preconditioner, Wrapped
from dkrr.linalg.roots import Root

Array = NDArray[np.float64]
Columns = NDArray[np.intp]
Solve = Callable[[Array], Array]
"""From right-hand sides (n, k) to solutions (n, k)."""


@dataclass(frozen=True)
class Curvature:
    """C Π of all rows at their scores; vectors of its systems are stacked as the root says."""

    root: Root
    inverse_total: Array | None = None
    """(ΣW)⁺, of shape (m, m); None without an intercept, where Π = I."""

    @classmethod
    def of_root(cls, root: Root, *, centred: bool) -> "Curvature":
        """Curvature of a root of W, with or without a free intercept."""
        return cls(root, root.inverse_total() if centred else None)

    def of_columns(self, columns: Columns) -> "Curvature":
        """Systems of some of the columns."""
        root = self.root.of_columns(columns)
        if root is self.root:
            return self
        return Curvature(root, None if self.inverse_total is None else self.inverse_total[np.ix_(columns, columns)])

    def project(self, x: Array) -> Array:
        """Π x, of shape (n, m)."""
        if self.inverse_total is None:
            return x
        return x - self.constant(self.root.apply(x).sum(axis=0) @ self.inverse_total)

    def within(self, x: Array) -> Array:
        """Part of stacked vectors that the systems act on."""
        root = self.root
        return np.hstack([root.stack(self.project(root.project(root.unstack(part)))) for part in root.split(x)])

    def precondition(self, base: Preconditioner) -> Preconditioner:
        """Preconditioner of Π Cᵀ K C Π + s from those of diag(c) K diag(c) + s, one for each column of c."""
        found = self.root.precondition(base)
        return found if self.inverse_total is None else Constrained(found, self)

    def constant(self, b: Array) -> Array:
        """Ĉ b = Cᵀ (1 bᵀ), of shape (n, m)."""
        return self.root.adjoint(np.broadcast_to(b, self.root.scale.shape))


@dataclass
class CurvatureOperator(Operator):
    """Π Cᵀ K C Π.

    Parameters
    ----------
    gram : Operator
        K.
    curvature : Curvature
    """

    gram: Operator
    curvature: Curvature

    def __post_init__(self) -> None:
        self.n = self.curvature.root.system_size
        self.record = self.gram.record

    def multiply(self, vectors: Array, precision: Precision = "float64", columns: Columns | None = None) -> Array:
        c = self.curvature if columns is None else self.curvature.of_columns(columns)
        root = c.root
        y = self.gram.multiply(root.apply(c.project(root.unstack(vectors))), precision)
        return root.stack(c.project(root.adjoint(y)))


MIN_SCALE = 1e-12
"""Relative to the largest c: where c is smaller, a complete factor is made with this, so that s / c² stays finite."""


def factor_scale(scale: Array) -> Array:
    """Factors c, bounded away from 0, that a complete factor is made with; of the same shape."""
    return np.maximum(scale, MIN_SCALE * max(float(scale.max()), 1e-130))


@dataclass
class ScaledFactors(Preconditioner):
    """(diag(c) K diag(c) + s)⁻¹ for every column, by complete factors of K + diag(s / c²).

    Parameters
    ----------
    solvers : list of callable
        For every column, solves (K + diag(s / c²)) X = B.
    scale : ndarray of shape (n, m)
        c, as `factor_scale` gives it.
    """

    solvers: list[Solve]
    scale: Array
    is_complete = True

    def apply(self, residuals: Array, columns: Columns) -> Array:
        out = np.empty_like(residuals)
        for k in np.unique(columns):
            here = np.flatnonzero(columns == k)
            c = self.scale[:, k, None]
            out[:, here] = self.solvers[k](np.ascontiguousarray(residuals[:, here] / c)) / c
        return out


@dataclass
class Constrained(Wrapped):
    """The inverse of M on what Π leaves: M⁻¹ − M⁻¹ Ĉ (Ĉᵀ M⁻¹ Ĉ)⁺ Ĉᵀ M⁻¹.

    References
    ----------
    N. I. M. Gould, M. E. Hribar, J. Nocedal, "On the solution of equality constrained quadratic programming problems
    arising in optimization", SIAM J. Sci. Comput. 23 (2001).
    """

    curvature: Curvature

    def __post_init__(self) -> None:
        self.is_complete = self.base.is_complete
        self._correction = self.curvature.root.correction(self.base)

    def apply(self, residuals: Array, columns: Columns) -> Array:
        # In exact arithmetic the projections change nothing. What rounding leaves outside would be kept by the shift,
        # and grow iteration by iteration.
        c = self.curvature.of_columns(columns)
        residuals = c.within(residuals)
        return c.within(self.base.apply(residuals, columns) - self._correction(residuals, columns))

    def grow(self) -> bool:
        grown = super().grow()
        if grown:
            self.__post_init__()
        return grown

    def raise_shift_if_inexact(self, residuals: Array, columns: Columns) -> bool:
        raised = super().raise_shift_if_inexact(residuals, columns)
        if raised:
            self.__post_init__()
        return raised


class NewtonPreconditioners(ABC):
    """Preconditioners of the systems of Newton steps in the dual form, one step after the other."""

    is_complete: bool = False
    """Whether complete factors make them, of which one at a time fits in memory."""

    @abstractmethod
    def for_systems(self, curvature: Curvature, shift: float, models: Columns) -> Preconditioner:
        """Approximate inverse of Π Cᵀ K C Π + s; `models` are the numbers of the columns' models, of shape (k,)."""

    def end_step(self) -> None:  # noqa: B027
        """Release what belongs to one Newton step."""


class NoPreconditioners(NewtonPreconditioners):
    """None at all."""

    def for_systems(self, curvature: Curvature, shift: float, models: Columns) -> Preconditioner:  # noqa: ARG002
        return Identity()


@dataclass
class ByPartialFactor(NewtonPreconditioners):
    """Made of one partial Cholesky factor of K for all steps."""

    factor: PivotedCholesky

    def for_systems(self, curvature: Curvature, shift: float, models: Columns) -> Preconditioner:  # noqa: ARG002
        return curvature.precondition(LowRank(self.factor, np.array([[shift]]), curvature.root.scale))


class ByCompleteFactors(NewtonPreconditioners):
    """Made of complete factors of K + diag(s), with other s for every step and model."""

    is_complete = True

    @abstractmethod
    def solvers(self, shifts: Array, models: Columns) -> list[Solve]:
        """Factor K + diag(s) for every column s of shifts, of shape (n, k), of the models with these numbers (k,)."""

    def for_systems(self, curvature: Curvature, shift: float, models: Columns) -> Preconditioner:
        c = factor_scale(curvature.root.scale)
        return curvature.precondition(ScaledFactors(self.solvers(shift / c**2, models), c))
