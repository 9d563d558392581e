"""The matrix of a Newton step in the dual form, and its preconditioners.

With K the Gram matrix, g = v (p − y) and W = C Cᵀ the derivatives of the likelihood, r = g + 2λα, the step solves
(W K + 2λ) Δα + W 1 Δb = −r. For any q, with the rest d = r − C q::

    Δα = C x − d / 2λ,     (Cᵀ K C + 2λ) x = Cᵀ K d / 2λ − q − Cᵀ 1 Δb,

so C may vanish where p (1 − p) does: what C cannot reproduce goes to d. With a free intercept 1ᵀΔα is given, which is
Ĉᵀx = h for Ĉ = Cᵀ1; x = Ĉ (ΣW)⁺ h + Π x with the projection Π = I − Ĉ (ΣW)⁺ Ĉᵀ, and Δb falls out. What is left is
symmetric and positive definite: Π Cᵀ K C Π + 2λ.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dkrr import blas
from dkrr.linalg.likelihood import DiagonalRoot, Root, SoftmaxRoot
from dkrr.linalg.operator import Operator, Precision
from dkrr.linalg.pivoted import PivotedCholesky
from dkrr.linalg.preconditioner import ByPartialFactor, Preconditioner, small_cholesky
from dkrr.runtime import RunRecord

Array = NDArray[np.float64]
Columns = NDArray[np.intp]

RANK_TOLERANCE = 1e-12
"""Of ΣW, relative to its largest eigenvalue: equal scores for all classes make no difference."""


@dataclass(frozen=True)
class Curvature:
    """C Π of all rows at their scores.

    A `DiagonalRoot` has a system for each column: vectors are of shape (n, k). A `SoftmaxRoot` has one of all columns:
    vectors are of shape (n m, 1).
    """

    root: Root
    inverse_total: Array | None = None
    """(ΣW)⁺, of shape (m, m); None without an intercept, where Π = I."""

    @classmethod
    def of_root(cls, root: Root, *, centred: bool) -> "Curvature":
        """With or without a free intercept."""
        if not centred:
            return cls(root)
        if isinstance(root, DiagonalRoot):
            totals = root.total().diagonal()
            return cls(root, np.diag(np.divide(1.0, totals, out=np.zeros_like(totals), where=totals > 0)))
        return cls(root, np.asarray(np.linalg.pinv(root.total(), rcond=RANK_TOLERANCE, hermitian=True), np.float64))

    def of_columns(self, columns: Columns) -> "Curvature":
        """Systems of some of the columns."""
        if not isinstance(self.root, DiagonalRoot) or np.array_equal(columns, np.arange(self.root.scale.shape[1])):
            return self
        inverse = None if self.inverse_total is None else self.inverse_total[np.ix_(columns, columns)]
        return Curvature(self.root.of_columns(columns), inverse)

    def stack(self, x: Array) -> Array:
        """From a column for each class, (n, m), to one for each system."""
        return x if isinstance(self.root, DiagonalRoot) else x.reshape(-1, 1)

    def unstack(self, x: Array) -> Array:
        """Undo `stack`."""
        return x.reshape(self.root.scale.shape)

    def project(self, x: Array) -> Array:
        """Π x, of shape (n, m)."""
        if self.inverse_total is None:
            return x
        return x - self.constant(self.root.apply(x).sum(axis=0) @ self.inverse_total)

    def within(self, x: Array) -> Array:
        """Return the part of stacked vectors that the system acts on."""
        if isinstance(self.root, SoftmaxRoot) and x.shape[1] > 1:
            return np.hstack([self.within(column) for column in np.split(x, x.shape[1], axis=1)])
        inner = self.unstack(x)
        if isinstance(self.root, SoftmaxRoot):
            inner = self.root.project(inner)
        return self.stack(self.project(inner))

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
        n, m = self.curvature.root.scale.shape
        self.n = n if isinstance(self.curvature.root, DiagonalRoot) else n * m
        self.record = self.gram.record

    def multiply(self, vectors: Array, precision: Precision = "float64", columns: Columns | None = None) -> Array:
        """See base class."""
        c = self.curvature if columns is None else self.curvature.of_columns(columns)
        root = c.root
        y = self.gram.multiply(root.apply(c.project(c.unstack(vectors))), precision)
        return c.stack(c.project(root.adjoint(y)))


@dataclass
class ScaledLowRank(ByPartialFactor):
    """(diag(c) F Fᵀ diag(c) + diag(t))⁻¹ with other c for every column; F belongs to K alone and serves every step.

    t is s where that is above what F leaves of the matrix; see `ByPartialFactor`.

    Parameters
    ----------
    factor : PivotedCholesky
        F.
    shift : float
        s > 0.
    scale : ndarray of shape (n, m)
        c.
    """

    factor: PivotedCholesky
    shift: float
    scale: Array
    growths: int = 0
    lift: float = 1.0
    _middle: list[tuple[Array, Array]] = field(default_factory=list)
    """By column: t, and the Cholesky factor of the small matrix."""

    def __post_init__(self) -> None:
        self._factor_middle()

    def _factor_middle(self) -> None:
        self._middle = []
        for k in range(self.scale.shape[1]):
            squares = np.ascontiguousarray(self.scale[:, k] ** 2)
            t = self._shifts(np.array([self.shift]), squares)
            small = np.empty((0, 0))
            if self.factor.rank:
                small = small_cholesky(self.factor.gram(squares / t), 1.0)
            self._middle.append((t, small))

    def shifts(self, columns: Columns) -> Array:
        """See base class."""
        found = [self._middle[k][0] for k in columns]
        n = max(map(len, found))
        return np.stack([np.broadcast_to(t, n) for t in found], axis=1)

    def _scale_of(self, columns: Columns) -> Array | None:
        return self.scale[:, columns]

    def apply(self, residuals: Array, columns: Columns) -> Array:
        """See base class."""
        t = self.shifts(columns)
        right = residuals / t
        if not self.factor.rank:
            return right
        scale = self.scale[:, columns]
        inner = self.factor.project(right * scale)
        for k in np.unique(columns):
            here = np.flatnonzero(columns == k)
            part = np.ascontiguousarray(inner[:, here])
            blas.solve_lower(self._middle[k][1], part)
            blas.solve_lower(self._middle[k][1], part, transpose=True)
            inner[:, here] = part
        return (residuals - self.factor.expand(inner) * scale) / t


LEAST_SCALE = 1e-12
"""Relative to the largest c: where c is smaller, a complete factor is made with this, so that s / c² stays finite."""


def factor_scale(scale: Array) -> Array:
    """Factors c, bounded away from 0, that a complete factor is made with; of the same shape."""
    return np.maximum(scale, LEAST_SCALE * max(float(scale.max()), 1e-130))


@dataclass
class ScaledFactors(Preconditioner):
    """(diag(c) K diag(c) + s)⁻¹ for every column, by complete factors of K + diag(s / c²).

    Parameters
    ----------
    solvers : list of callable
        For every column, from right-hand sides (n, k) to the solutions of (K + diag(s / c²)) X = B.
    scale : ndarray of shape (n, m)
        c, as `factor_scale` gives it.
    """

    solvers: list[Callable[[Array], Array]]
    scale: Array

    def apply(self, residuals: Array, columns: Columns) -> Array:
        """See base class."""
        out = np.empty_like(residuals)
        for k in np.unique(columns):
            here = np.flatnonzero(columns == k)
            c = self.scale[:, k, None]
            out[:, here] = self.solvers[k](np.ascontiguousarray(residuals[:, here] / c)) / c
        return out


@dataclass
class Wrapped(Preconditioner):
    """A preconditioner that adds something to another one."""

    base: Preconditioner

    @property
    def rank(self) -> int:
        """See base class."""
        return self.base.rank

    @property
    def can_grow(self) -> bool:
        """See base class."""
        return self.base.can_grow

    def grow(self) -> bool:
        """See base class."""
        return self.base.grow()

    def raise_shift_if_inexact(self, residuals: Array, columns: Columns) -> bool:
        """See base class."""
        return self.base.raise_shift_if_inexact(residuals, columns)

    @property
    def record(self) -> RunRecord:
        """See base class."""
        return self.base.record


@dataclass
class Classwise(Wrapped):
    """(I − u uᵀ) M⁻¹ (I − u uᵀ) on stacked vectors of a softmax, M⁻¹ acting on each class by itself.

    What of the curvature couples the classes is in the projections alone; of the rest M may know everything.
    """

    root: SoftmaxRoot

    def apply(self, residuals: Array, columns: Columns) -> Array:  # noqa: ARG002
        """See base class; `residuals` is of shape (n m, k)."""
        n, m = self.root.scale.shape
        k = residuals.shape[1]
        wide = residuals.reshape(n, m, k)
        unit = self.root.unit[:, :, None]
        wide = wide - unit * (unit * wide).sum(axis=1, keepdims=True)
        z = self.base.apply(wide.reshape(n, m * k), np.repeat(np.arange(m), k)).reshape(n, m, k)
        z = z - unit * (unit * z).sum(axis=1, keepdims=True)
        return np.ascontiguousarray(z.reshape(n * m, k))

    def raise_shift_if_inexact(self, residuals: Array, columns: Columns) -> bool:  # noqa: ARG002
        """See base class; `residuals` is of shape (n m, k)."""
        n, m = self.root.scale.shape
        k = residuals.shape[1]
        return self.base.raise_shift_if_inexact(residuals.reshape(n, m * k), np.repeat(np.arange(m), k))


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
        c = self.curvature
        n, m = c.root.scale.shape
        self._is_stacked = isinstance(c.root, SoftmaxRoot)
        if not self._is_stacked:
            self._solved = self.base.apply(c.root.scale, np.arange(m))
            sizes = (c.root.scale * self._solved).sum(axis=0)
            self._inverse = np.divide(1.0, sizes, out=np.zeros(m), where=sizes > 0)
            return
        directions = np.stack([c.constant(unit) for unit in np.eye(m)], axis=2).reshape(n * m, m)
        self._solved = self.base.apply(directions, np.zeros(m, np.intp))
        products = directions.T @ self._solved
        self._inverse = np.linalg.pinv((products + products.T) / 2, rcond=RANK_TOLERANCE, hermitian=True)

    def apply(self, residuals: Array, columns: Columns) -> Array:
        """See base class."""
        # In exact arithmetic the projections change nothing. What rounding leaves outside would be kept by the shift,
        # and grow iteration by iteration.
        c = self.curvature if self._is_stacked else self.curvature.of_columns(columns)
        residuals = c.within(residuals)
        z = self.base.apply(residuals, columns)
        if self._is_stacked:
            z -= self._solved @ (self._inverse @ (self._solved.T @ residuals))
        else:
            solved = self._solved[:, columns]
            z -= solved * ((solved * residuals).sum(axis=0) * self._inverse[columns])
        return c.within(z)

    def grow(self) -> bool:
        """See base class."""
        grown = super().grow()
        if grown:
            self.__post_init__()
        return grown

    def raise_shift_if_inexact(self, residuals: Array, columns: Columns) -> bool:
        """See base class."""
        raised = super().raise_shift_if_inexact(residuals, columns)
        if raised:
            self.__post_init__()
        return raised
