"""The matrix of a Newton step in the dual form, and its preconditioners.

With K the Gram matrix, g = v (p − y) and W = C Cᵀ the derivatives of the likelihood, r = g + 2λα, the step solves
(W K + 2λ) Δα + W 1 Δb = −r. For any q, with the rest d = r − C q::

    Δα = C x − d / 2λ,     (Cᵀ K C + 2λ) x = Cᵀ K d / 2λ − q − Cᵀ 1 Δb,

so C may vanish where p (1 − p) does: what C cannot reproduce goes to d. With an intercept 1ᵀΔα is given, which is
Ĉᵀx = h for Ĉ = Cᵀ1; x = Ĉ (ΣW)⁺ h + Π x with the projection Π = I − Ĉ (ΣW)⁺ Ĉᵀ, and Δb falls out. What is left is
symmetric and positive definite: Π Cᵀ K C Π + 2λ.

Bounds of Newton's decrement in the dual form, and of what it means for probabilities, without a product with K.

At a point with the derivatives g and W = C Cᵀ of the likelihood and r = g + 2λα, the gradient of the objective is
G = (Φᵀr, 1ᵀg) for f = Φβ + b, and the decrement GᵀH⁻¹G with the Hessian H. Since H is neither less than that of the
likelihood nor, but for b, than 2λ, a part Cq of r adds no more than ‖q‖ to the root of the decrement, and a part d
with 1ᵀd = 0 no more than ‖Φᵀd‖ / √(2λ). A sum s of d is moved to q in proportion to W, which adds |s| / √ΣW.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dkrr.linalg.gram_products import Operator, Precision
from dkrr.linalg.likelihood import HessianRoot, Likelihood
from dkrr.linalg.pivoted_cholesky import PivotedCholesky
from dkrr.linalg.preconditioners import Identity, LowRank, Preconditioner, Wrapped

Array = NDArray[np.float64]
Columns = NDArray[np.intp]
Solve = Callable[[Array], Array]
"""Function of right-hand sides (n, k) that returns solutions (n, k)."""


@dataclass(frozen=True)
class Curvature:
    """C Π of all rows at their scores; vectors of its systems are stacked as the root says."""

    root: HessianRoot
    inverse_total: Array | None = None
    """(ΣW)⁺, of shape (m, m); None without an intercept, where Π = I."""

    @classmethod
    def of_root(cls, root: HessianRoot, *, centred: bool) -> "Curvature":
        """Curvature of a root of W, with or without an intercept."""
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
        """Projection of stacked vectors onto the space that the systems act on."""
        root = self.root
        return np.hstack([root.stack(self.project(root.project(root.unstack(stacked)))) for stacked in root.split(x)])

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
"""Smallest c of a complete factor, as a fraction of the largest: it replaces smaller ones, so that s / c² is finite."""


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
    """Newton steps without a preconditioner."""

    def for_systems(self, curvature: Curvature, shift: float, models: Columns) -> Preconditioner:  # noqa: ARG002
        return Identity()


@dataclass
class ByPartialFactor(NewtonPreconditioners):
    """Preconditioners of one partial Cholesky factor of K for all steps."""

    factor: PivotedCholesky

    def for_systems(self, curvature: Curvature, shift: float, models: Columns) -> Preconditioner:  # noqa: ARG002
        return curvature.precondition(LowRank(self.factor, np.array([[shift]]), curvature.root.scale))


class ByCompleteFactors(NewtonPreconditioners):
    """Preconditioners of complete factors of K + diag(s), with other s for every step and model."""

    is_complete = True

    @abstractmethod
    def solvers(self, shifts: Array, models: Columns) -> list[Solve]:
        """Factor K + diag(s) for every column s of shifts, of shape (n, k), of the models with these numbers (k,)."""

    def for_systems(self, curvature: Curvature, shift: float, models: Columns) -> Preconditioner:
        c = factor_scale(curvature.root.scale)
        return curvature.precondition(ScaledFactors(self.solvers(shift / c**2, models), c))


@dataclass(frozen=True)
class Penalty:
    """Penalty of the functions: 2λ, and the norms of the rows in the kernel's space."""

    shift: float
    """2λ."""
    largest: float
    """Largest k(x, x)."""
    fit_intercept: bool

    @property
    def reach(self) -> float:
        """√(max k(x, x) / 2λ): how far a step of decrement 1 can move a score, but for the intercept."""
        return float(np.sqrt(self.largest) / np.sqrt(self.shift))


def decrement_bounds(
    likelihood: Likelihood,
    root: HessianRoot,
    penalty: Penalty,
    norms: Array,
    residual: Array,
    sums: Array,
    coef_sums: Array,
) -> Array:
    """Upper bounds of Newton's decrement of every system, of shape (n_systems,).

    Parameters
    ----------
    likelihood : Likelihood
    root : HessianRoot
        C at the point.
    penalty : Penalty
    norms : ndarray of shape (n_systems,)
        ‖G‖.
    residual : ndarray of shape (n, m)
        r.
    sums : ndarray of shape (m,)
        1ᵀg.
    coef_sums : ndarray of shape (m,)
        1ᵀα, 0 but for rounding once a step has been taken.
    """
    reach = penalty.reach
    # Where C reproduces r badly the penalty bounds what is left better.
    q = root.invert(residual, root.scale**2 * penalty.largest >= penalty.shift)
    rest = residual - root.apply(q)
    whole = norms / np.sqrt(penalty.shift)
    split = np.sqrt(likelihood.per_system((q**2).sum(axis=0))) + reach * likelihood.per_system(np.abs(rest).sum(axis=0))
    if penalty.fit_intercept:
        moved = reach + _flatness(root)
        whole = whole + moved * _system_norms(likelihood, sums)
        split = split + moved * _system_norms(likelihood, rest.sum(axis=0) - penalty.shift * coef_sums)
    return np.asarray(np.minimum(whole, split) ** 2)


def _system_norms(likelihood: Likelihood, of_columns: Array) -> Array:
    return np.asarray(np.sqrt(likelihood.per_system(of_columns**2)))


def _flatness(root: HessianRoot) -> Array:
    """1 / √ΣW of every system, for a softmax in its flattest direction but for that of equal scores."""
    inverse = root.inverse_total()
    if root.is_softmax:
        return np.sqrt(np.atleast_1d(np.linalg.norm(inverse, 2)))
    return np.asarray(np.sqrt(inverse.diagonal()))


def sensitivities(root: HessianRoot, penalty: Penalty, weights: Array | None) -> Array:
    """Bounds of the change of any probability in a step of decrement 1, of shape (n_systems,).

    Such a step changes the score of a row by 1 / c at most, and by √(max k(x, x) / 2λ) but for the intercept, which the
    row of the largest c holds. Rows of weight 0 do not count.

    Parameters
    ----------
    root : HessianRoot
        C of rows of weight 1.
    penalty : Penalty
    weights : ndarray of shape (n,), optional
    """
    own = root.scale
    if weights is None:
        found = own.max(axis=0)
    else:
        used = weights > 0
        own, roots = own[used], np.sqrt(weights[used])[:, None]
        far = np.full(own.shape[1], penalty.reach)
        if penalty.fit_intercept:
            top = (own * roots).max(axis=0, initial=0.0)
            far = 2 * far + np.divide(1.0, top, out=np.full_like(top, np.inf), where=top > 0)
        found = np.minimum(own / roots, own**2 * far).max(axis=0, initial=0.0)
    return np.asarray(np.sqrt(2.0) * found.max(keepdims=True) if root.is_softmax else found)
