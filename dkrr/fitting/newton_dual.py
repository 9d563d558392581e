"""The objective of kernel logistic regression in the dual form, f = Kα + 1bᵀ."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from dkrr.errors import NotPositiveDefiniteError
from dkrr.fitting.data import LabelledData
from dkrr.linalg.curvature import (
    Classwise,
    Constrained,
    Curvature,
    CurvatureOperator,
    ScaledFactors,
    ScaledLowRank,
    factor_scale,
)
from dkrr.linalg.decrement import Penalty, decrement_bounds, sensitivities
from dkrr.linalg.likelihood import DiagonalRoot, Root, SoftmaxRoot
from dkrr.linalg.memory import KeptTiles, factor_in_memory, memory_system
from dkrr.linalg.operator import SAFE_SIZES, Operator, column_norms, column_sizes
from dkrr.linalg.pivoted import PivotedCholesky
from dkrr.linalg.preconditioner import Identity, Preconditioner
from dkrr.linalg.sweeps import substituted
from dkrr.runtime import Executor, Progress
from dkrr.solvers.conjugate_gradient import Iteration
from dkrr.solvers.newton import Mask, Objective
from dkrr.tiles import MemoryMatrix

Array = NDArray[np.float64]

EPS = float(np.finfo(np.float64).eps)
NEGLIGIBLE = 1e-13
"""Relative size of entries of r − C q that are rounding."""
SMALL_SCALE = 1e-3
"""Relative to the largest c: only where c is smaller may r be left to the other part of the step."""
DIRECT_TOL = 1e-9
"""Relative residual of a Newton system for which a complete factor is a solution and not a preconditioner."""


class Preconditioning(ABC):
    """How the Newton systems of the dual form are preconditioned."""

    is_complete: bool = False
    """The preconditioner of independent columns is the inverse."""

    @abstractmethod
    def of_scale(self, scale: Array, shift: float, numbers: NDArray[np.intp]) -> Preconditioner:
        """Approximate inverses of diag(c) K diag(c) + s, one for each column of c.

        Parameters
        ----------
        scale : ndarray of shape (n, k)
            c.
        shift : float
            s.
        numbers : ndarray of shape (k,)
            Numbers of the models that the columns belong to.
        """

    def end_step(self) -> None:  # noqa: B027
        """Let go of what belongs to one Newton step."""


@dataclass
class Unconditioned(Preconditioning):
    """None at all."""

    def of_scale(self, scale: Array, shift: float, numbers: NDArray[np.intp]) -> Preconditioner:  # noqa: ARG002
        """See base class."""
        return Identity()


@dataclass
class ByLowRank(Preconditioning):
    """By one partial Cholesky factor of K for all steps."""

    factor: PivotedCholesky

    def of_scale(self, scale: Array, shift: float, numbers: NDArray[np.intp]) -> Preconditioner:  # noqa: ARG002
        """See base class."""
        return ScaledLowRank(self.factor, shift, scale)


@dataclass
class ByMemoryFactors(Preconditioning):
    """By complete factors in memory.

    Parameters
    ----------
    gram : KeptTiles
    executor : Executor
        Its threads factor.
    """

    gram: KeptTiles
    executor: Executor
    is_complete = True

    def __post_init__(self) -> None:
        self._beside = self.gram.beside()

    def of_scale(self, scale: Array, shift: float, numbers: NDArray[np.intp]) -> Preconditioner:  # noqa: ARG002
        """See base class."""
        c = factor_scale(scale)
        # Factors of several classes are used together.
        matrices = [self._beside] if c.shape[1] == 1 else [MemoryMatrix(self.gram.grid) for _ in c.T]
        for k, matrix in enumerate(matrices):
            factor_in_memory(memory_system(self.gram, shift / c[:, k] ** 2, matrix), self.executor)
        return ScaledFactors([partial(substituted, matrix) for matrix in matrices], c)


@dataclass
class ByTiledFactors(Preconditioning):
    """By complete factors out of core.

    Parameters
    ----------
    factor : callable
        From the number of a model and the diagonal (n,) to the solver of K + diag(s).
    clear : callable
        Deletes the factors of this step.
    """

    factor: Callable[[int, Array], Callable[[Array], Array]]
    clear: Callable[[], None]
    is_complete = True

    def of_scale(self, scale: Array, shift: float, numbers: NDArray[np.intp]) -> Preconditioner:
        """See base class."""
        c = factor_scale(scale)
        solvers = [self.factor(int(number), shift / c[:, k] ** 2) for k, number in enumerate(numbers)]
        return ScaledFactors(solvers, c)

    def end_step(self) -> None:
        """See base class."""
        self.clear()


@dataclass
class DualPoint:
    """Coefficients, intercept, and the scores that follow from them."""

    coef: Array
    """α, of shape (n, m)."""
    intercept: Array
    """b, of shape (m,)."""
    scores: Array
    """f = Kα + 1bᵀ, of shape (n, m)."""
    gradients: Array | None = None
    """Norms of the gradient of every system, where an interrupted run knew them."""


@dataclass
class DualObjective(Objective):
    """Σᵢ vᵢ (−log likelihood of row i) + λ tr αᵀKα.

    Parameters
    ----------
    data : LabelledData
    alpha : float
        λ.
    gram : Operator
        K.
    preconditioning : Preconditioning
    largest : float
        Largest k(x, x).
    mixed : bool
        Solve the Newton systems with products in float32, as far as those serve.
    max_iterations : int
        Of conjugate gradient, for one step.
    point : DualPoint
        Where to begin; its scores are computed unless they are there.
    progress : Progress
    unit : float
        What weights and λ have been divided by.
    """

    data: LabelledData
    alpha: float
    gram: Operator
    preconditioning: Preconditioning
    largest: float
    mixed: bool
    max_iterations: int
    point: DualPoint
    progress: Progress
    unit: float = 1.0
    messages: list[str] = field(default_factory=list)
    references: Array = field(default_factory=lambda: np.empty(0))

    def begin(self, references: Array | None = None) -> None:
        """Compute what belongs to the point, unless its scores are there; and the gradients at zero."""
        like, data, p = self.data.likelihood, self.data, self.point
        self._is_true = p.scores.size == 0
        """Whether the scores were computed from the coefficients, not from those before and a step."""
        if self._is_true:
            p.scores = self._scores()
        if references is not None:
            self.references = references
        else:
            g = like.gradient(np.zeros_like(p.scores), data.codes, data.weights)
            with self._readable():
                norms = self._norms(g, self.gram.multiply(g), g)
            # Gradients that cancel to rounding, which is that of rᵀKr, are zero; those that are NaN are not.
            rounding = np.sqrt(10 * EPS * data.n * self.largest) * self._together(column_norms(g))
            self.references = np.where(norms <= rounding, 0.0, norms)
        solved = np.broadcast_to(self.references == 0, like.n_columns)
        if p.coef[:, solved].any() or p.intercept[solved].any():
            # The solution is at zero, by which other starts could not be judged.
            coef, intercept, scores = (np.where(solved, 0.0, part) for part in (p.coef, p.intercept, p.scores))
            self.point = p = DualPoint(coef, intercept, scores, p.gradients)
        self._differentiate()
        if p.gradients is None:
            self.gradients = np.zeros(like.n_systems)
            self._measure(np.arange(like.n_columns))
        else:
            self.gradients = p.gradients

    def _scores(self) -> Array:
        """Kα + 1bᵀ."""
        p = self.point
        scores = np.tile(p.intercept, (self.data.n, 1))
        if p.coef.any():
            scores += self.gram.multiply(p.coef)
        return scores

    def _differentiate(self) -> None:
        """Values, and derivatives by the scores."""
        data, p, like = self.data, self.point, self.data.likelihood
        without = p.scores - p.intercept
        penalty = self.alpha * (p.coef * without).sum(axis=0)
        self.values = like.values(p.scores, data.codes, data.weights) + like.per_system(penalty)
        g = like.gradient(p.scores, data.codes, data.weights)
        self._gradient = g
        self._residual = g + 2 * self.alpha * p.coef
        self._root: Root | None = None

    def _measure(self, columns: NDArray[np.intp]) -> None:
        """Gradients of the models of some columns: one product with K."""
        like, g = self.data.likelihood, self._gradient
        r = np.ascontiguousarray(self._residual[:, columns])
        with self._readable():
            norms = self._norms(r, self.gram.multiply(r), g[:, columns])
        self.gradients = self.gradients.copy()
        self.gradients[columns if like.n_systems > 1 else slice(None)] = norms

    def _norms(self, r: Array, product: Array, g: Array) -> Array:
        """√(rᵀKr + (1ᵀg)²) of every system: the norm of the gradient in the kernel's space."""
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            squares = (r * product).sum(axis=0)
            if ((squares > SAFE_SIZES[0] ** 2) & (squares < SAFE_SIZES[1] ** 2)).all():
                norms = np.sqrt(squares)
            else:
                a, b = column_sizes(r), column_sizes(product)
                r, product = r / a, product / b
                squares, sizes = (r * product).sum(axis=0), (r * r).sum(axis=0)
                if (squares < -NEGLIGIBLE * len(r) * (self.largest / b * a) * sizes).any():
                    raise NotPositiveDefiniteError("rᵀKr is negative for a gradient r", -1)
                norms = np.sqrt(np.maximum(squares, 0.0)) * np.sqrt(a) * np.sqrt(b)
        if self.data.fit_intercept:
            sums = g.sum(axis=0)
            # A sum of terms that cancel is only rounding; next to entries that are small it would seem large.
            norms = np.hypot(norms, np.where(np.abs(sums) <= 4 * EPS * np.abs(g).sum(axis=0), 0.0, sums))
        return self._together(norms)

    def _together(self, norms: Array) -> Array:
        """Norms of all columns of every system."""
        return norms if self.data.likelihood.n_systems == len(norms) else column_norms(norms[:, None])

    def verify(self, tol: float) -> bool:
        """See base class; a product with K, and another only where the first one moves a gradient across the tolerance.

        Steps add K Δα to the scores, so that rounding, and what a product with K loses, would add up unseen.
        """
        if self._is_true:
            return False
        like, p, before = self.data.likelihood, self.point, self._residual
        self.point = DualPoint(p.coef, p.intercept, self._scores())
        self._is_true = True
        self._differentiate()
        change = self._residual - before
        # ‖Σ cᵢ φ(xᵢ)‖ ≤ Σ |cᵢ| max √k(x, x): so much larger may the gradients be.
        reach = np.sqrt(self.largest) * np.abs(change).sum(axis=0)
        if self.data.fit_intercept:
            reach += np.abs(change.sum(axis=0))
        bounds = self.gradients + like.per_system(reach)
        late = (self.references > 0) & ~(bounds <= tol * self.references)
        self.gradients = np.where(late, self.gradients, bounds)
        if late.any():
            self._measure(np.flatnonzero(late) if like.n_systems > 1 else np.arange(like.n_columns))
        return True

    def _own_root(self) -> Root:
        """C at the point, of rows of weight 1."""
        if self._root is None:
            self._root = self.data.likelihood.root(self.point.scores, None)
        return self._root

    def _penalty(self) -> Penalty:
        return Penalty(2 * self.alpha, self.largest, self.data.fit_intercept)

    def decrements(self, wanted: Mask) -> Array:  # noqa: ARG002
        """See base class; upper bounds."""
        like, root = self.data.likelihood, self._own_root().weighted(self.data.weights)
        sums, coef_sums = self._gradient.sum(axis=0), self.point.coef.sum(axis=0)
        return decrement_bounds(like, root, self._penalty(), self.gradients, self._residual, sums, coef_sums)

    def sensitivities(self) -> Array:
        """See base class."""
        return sensitivities(self.data.likelihood, self._own_root(), self._penalty(), self.data.weights)

    def find_direction(self, is_open: Mask, forcing: float) -> Array:
        """See base class."""
        like, n, m = self.data.likelihood, self.data.n, self.data.likelihood.n_columns
        self._columns = np.flatnonzero(is_open) if like.n_systems > 1 else np.arange(m)
        whole = self._own_root().weighted(self.data.weights)
        self._direction, self._change = np.zeros((n, m)), np.zeros((n, m))
        self._intercept_change = np.zeros(m)
        batches = [self._columns]
        if self.preconditioning.is_complete and like.n_systems > 1:
            batches = [np.array([k]) for k in self._columns]  # one factor at a time
        with self._readable():
            for columns in batches:
                root = whole.of_columns(columns) if isinstance(whole, DiagonalRoot) else whole
                self._solve(columns, root, forcing)
        self.preconditioning.end_step()
        g, r, change = self._gradient, self._residual, self._change
        slopes = (r * (change - self._intercept_change)).sum(axis=0) + g.sum(axis=0) * self._intercept_change
        return like.per_system(slopes)

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except NotPositiveDefiniteError as error:
            alpha = self.alpha * self.unit
            raise NotPositiveDefiniteError(
                f"kernel logistic regression with λ = alpha = {alpha:g}: {error}. The kernel is not positive "
                f"semidefinite on these rows, or λ is below what rounding in K allows: increase alpha, or use a "
                f"positive semidefinite kernel. dkrr never adds a jitter of its own; steps in a given store are kept",
                error.row,
            ) from None

    def _solve(self, columns: NDArray[np.intp], root: Root, forcing: float) -> None:
        """Newton directions of some columns; see dkrr.linalg.curvature for the algebra."""
        p, shift = self.point, 2 * self.alpha
        r = np.ascontiguousarray(self._residual[:, columns])
        coef = p.coef[:, columns]
        q, rest = self._split(root, r)
        curvature = Curvature.of_root(root, centred=self.data.fit_intercept)
        known = rest / shift  # −Δα of what C does not reproduce
        fixed = np.zeros_like(r)
        if curvature.inverse_total is not None:
            wanted = known.sum(axis=0) - coef.sum(axis=0)
            fixed = curvature.constant(wanted @ curvature.inverse_total)
            known = known - root.apply(fixed)
        right_sides = -q
        if known.any():
            right_sides += root.adjoint(self.gram.multiply(known))
        right_sides = curvature.stack(curvature.project(right_sides))
        preconditioner = self._preconditioner(root, curvature, columns)
        # Once more: where next to nothing is left of a right-hand side, most of it is outside.
        right_sides = curvature.within(right_sides)
        is_direct = self.preconditioning.is_complete and isinstance(root, DiagonalRoot)
        outcome = Iteration(
            operator=CurvatureOperator(self.gram, curvature),
            shift=np.array([[shift]]),
            right_sides=right_sides,
            preconditioner=preconditioner,
            tol=min(forcing, DIRECT_TOL) if is_direct else forcing,
            max_iterations=self.max_iterations,
            mixed=self.mixed,
            progress=Progress() if is_direct else self.progress,
            wants_condition=False,
        ).run()
        self.inner_iterations += outcome.iterations
        self.messages += outcome.messages
        x = curvature.project(curvature.unstack(outcome.x))
        direction = root.apply(x) - known
        change = self.gram.multiply(np.ascontiguousarray(direction))
        self._direction[:, columns] = direction
        self._change[:, columns] = change
        if curvature.inverse_total is not None:
            left = self._gradient[:, columns].sum(axis=0) + root.weigh(change).sum(axis=0)
            offset = -left @ curvature.inverse_total
            self._intercept_change[columns] = offset
            self._change[:, columns] += offset

    def _split(self, root: Root, r: Array) -> tuple[Array, Array]:
        """q, and r − C q where that is more than rounding."""
        c = root.scale
        top = np.maximum(c.max(axis=0), 1e-300)
        # Where c is small and the data hardly counts, dividing by it gains nothing.
        keep = (c >= SMALL_SCALE * top) | (c * top * self.largest >= 2 * self.alpha)
        q = root.invert(r, keep & (c > 0))
        rest = r - root.apply(q)
        rest[np.abs(rest) <= NEGLIGIBLE * np.abs(r).max(axis=0)] = 0.0
        return q, rest

    def _preconditioner(self, root: Root, curvature: Curvature, columns: NDArray[np.intp]) -> Preconditioner:
        base = self.preconditioning.of_scale(root.scale, 2 * self.alpha, columns)
        if isinstance(base, Identity):
            return base
        if isinstance(root, SoftmaxRoot):
            base = Classwise(base, root)
        return base if curvature.inverse_total is None else Constrained(base, curvature)

    def along(self, lengths: Array) -> Array:
        """See base class; no product with K."""
        data, like, p = self.data, self.data.likelihood, self.point
        t = np.broadcast_to(lengths, (like.n_columns,))
        coef = p.coef + t * self._direction
        scores = p.scores + t * self._change
        without = scores - (p.intercept + t * self._intercept_change)
        penalty = self.alpha * (coef * without).sum(axis=0)
        return like.values(scores, data.codes, data.weights) + like.per_system(penalty)

    def step(self, lengths: Array) -> None:
        """See base class."""
        p, t = self.point, np.broadcast_to(lengths, (self.data.likelihood.n_columns,))
        self.point = DualPoint(
            p.coef + t * self._direction, p.intercept + t * self._intercept_change, p.scores + t * self._change
        )
        self._is_true = False
        self._differentiate()
        self._measure(self._columns)
