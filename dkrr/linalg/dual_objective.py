"""The objective of kernel logistic regression in the dual form, f = Kα + 1bᵀ."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import InitVar, dataclass, field

import numpy as np
from numpy.typing import NDArray

from dkrr.blas import SAFE_SIZES, column_norms, column_sizes
from dkrr.cluster import Progress
from dkrr.errors import NotPositiveDefiniteError
from dkrr.linalg.conjugate_gradient import Iteration
from dkrr.linalg.curvature import (
    Curvature,
    CurvatureOperator,
    NewtonPreconditioners,
    Penalty,
    decrement_bounds,
    sensitivities,
)
from dkrr.linalg.giving_up import Watch, unwatched
from dkrr.linalg.gram_products import Operator
from dkrr.linalg.likelihood import HessianRoot, WeightedLikelihood
from dkrr.linalg.newton import Mask, Objective, Point

Array = NDArray[np.float64]

EPS = float(np.finfo(np.float64).eps)
NEGLIGIBLE = 1e-13
"""Relative size of entries of r − C q that are rounding."""
SMALL_SCALE = 1e-3
"""Fraction of the largest c: only where c is smaller may r be left to the term −d / 2λ of the step."""
DIRECT_TOL = 1e-9
"""Relative residual of a Newton system for which a complete factor is a solution and not a preconditioner."""


@dataclass
class DualObjective(Objective):
    """Σᵢ vᵢ (−log likelihood of row i) + λ tr αᵀKα.

    Parameters
    ----------
    labels : WeightedLikelihood
    fit_intercept : bool
    alpha : float
        λ.
    gram : Operator
        K.
    preconditioners : NewtonPreconditioners
    largest : float
        Largest k(x, x).
    mixed : bool
        Solve the Newton systems with products in float32, as far as those serve.
    max_iter : int
        Of conjugate gradient, for one step.
    start : Point
        Where to begin; its scores and gradients are computed where it has none.
    progress : Progress
    known : ndarray of shape (n_systems,), optional
        The references, where an earlier objective of the same labels has computed them.
    watch : Watch, optional
        Watches the iterations, which a factorisation may replace.
    """

    labels: WeightedLikelihood
    fit_intercept: bool
    alpha: float
    gram: Operator
    preconditioners: NewtonPreconditioners
    largest: float
    mixed: bool
    max_iter: int
    start: InitVar[Point]
    progress: Progress
    known: InitVar[Array | None] = None
    watch: Watch | None = None
    messages: list[str] = field(default_factory=list)

    def __post_init__(self, start: Point, known: Array | None) -> None:
        like, coef, intercept = self.labels.likelihood, start.coef, start.intercept
        self._is_true = start.scores is None
        """Whether the scores were computed from the coefficients, not from those before and a step."""
        scores = self._true_scores(coef, intercept) if start.scores is None else start.scores
        self.references = self._gradients_at_zero(scores.shape) if known is None else known
        is_zero = np.broadcast_to(self.references == 0, like.n_columns)
        if coef[:, is_zero].any() or intercept[is_zero].any():
            # The solution is at zero, by which other starts could not be judged.
            coef, intercept, scores = (np.where(is_zero, 0.0, array) for array in (coef, intercept, scores))
        self._move(coef, intercept, scores)
        if start.gradients is None:
            self.gradients = np.zeros(like.n_systems)
            self._measure(np.arange(like.n_columns))
        else:
            self.gradients = start.gradients

    @property
    def point(self) -> Point:
        return Point(self._coef, self._intercept, self._scores, self.gradients)

    def _gradients_at_zero(self, shape: tuple[int, ...]) -> Array:
        """Norms of the gradients where all scores, of shape (n, m), are 0."""
        g = self.labels.gradient(np.zeros(shape))
        with self._readable():
            norms = self._norms(g, self.gram.multiply(g), g)
        # Gradients that cancel to rounding, which is that of rᵀKr, are zero; those that are NaN are not.
        rounding = np.sqrt(10 * EPS * len(g) * self.largest) * self._together(column_norms(g))
        return np.where(norms <= rounding, 0.0, norms)

    def _true_scores(self, coef: Array, intercept: Array) -> Array:
        """Scores Kα + 1bᵀ."""
        scores = np.tile(intercept, (len(coef), 1))
        if coef.any():
            scores += self.gram.multiply(coef)
        return scores

    def _values(self, coef: Array, intercept: Array, scores: Array) -> Array:
        penalty = self.alpha * (coef * (scores - intercept)).sum(axis=0)
        with self.progress.measured("likelihood"):
            return self.labels.values(scores) + self.labels.likelihood.per_system(penalty)

    def _move(self, coef: Array, intercept: Array, scores: Array) -> None:
        """Take a point, with its values and derivatives by the scores."""
        self._coef, self._intercept, self._scores = coef, intercept, scores
        self.values = self._values(coef, intercept, scores)
        with self.progress.measured("likelihood"):
            self._gradient = self.labels.gradient(scores)
        self._residual = self._gradient + 2 * self.alpha * coef
        self._root: HessianRoot | None = None

    def _measure(self, columns: NDArray[np.intp]) -> None:
        """Gradients of the models of some columns: one product with K."""
        like, g = self.labels.likelihood, self._gradient
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
        if self.fit_intercept:
            sums = g.sum(axis=0)
            # A sum of terms that cancel is only rounding; next to entries that are small it would seem large.
            norms = np.hypot(norms, np.where(np.abs(sums) <= 4 * EPS * np.abs(g).sum(axis=0), 0.0, sums))
        return self._together(norms)

    def _together(self, norms: Array) -> Array:
        """Norms of all columns of every system."""
        return norms if self.labels.likelihood.n_systems == len(norms) else column_norms(norms[:, None])

    def verify(self, tol: float) -> bool:
        """See base class; a product with K, and another only where the first one moves a gradient across the tolerance.

        Steps add K Δα to the scores, so that rounding, and what a product with K loses, would add up unseen.
        """
        if self._is_true:
            return False
        like, before = self.labels.likelihood, self._residual
        self._move(self._coef, self._intercept, self._true_scores(self._coef, self._intercept))
        self._is_true = True
        change = self._residual - before
        # ‖Σ cᵢ φ(xᵢ)‖ ≤ Σ |cᵢ| max √k(x, x): so the gradients may be larger by this factor.
        reach = np.sqrt(self.largest) * np.abs(change).sum(axis=0)
        if self.fit_intercept:
            reach += np.abs(change.sum(axis=0))
        bounds = self.gradients + like.per_system(reach)
        late = (self.references > 0) & ~(bounds <= tol * self.references)
        self.gradients = np.where(late, self.gradients, bounds)
        if late.any():
            self._measure(np.flatnonzero(late) if like.n_systems > 1 else np.arange(like.n_columns))
        return True

    def _own_root(self) -> HessianRoot:
        """C at the point, of rows of weight 1."""
        if self._root is None:
            with self.progress.measured("likelihood"):
                self._root = self.labels.likelihood.root(self._scores, None)
        return self._root

    def _penalty(self) -> Penalty:
        return Penalty(2 * self.alpha, self.largest, self.fit_intercept)

    def decrements(self, wanted: Mask) -> Array:  # noqa: ARG002
        """See base class; upper bounds."""
        like, root = self.labels.likelihood, self._own_root().weighted(self.labels.weights)
        sums, coef_sums = self._gradient.sum(axis=0), self._coef.sum(axis=0)
        return decrement_bounds(like, root, self._penalty(), self.gradients, self._residual, sums, coef_sums)

    def sensitivities(self) -> Array:
        return sensitivities(self._own_root(), self._penalty(), self.labels.weights)

    def find_direction(self, is_open: Mask, forcing: float) -> Array:
        if self.watch is not None:
            self.watch.begin_step()
        like = self.labels.likelihood
        self._columns = np.flatnonzero(is_open) if like.n_systems > 1 else np.arange(like.n_columns)
        root = self._own_root().weighted(self.labels.weights)
        self._direction, self._change = np.zeros_like(self._coef), np.zeros_like(self._coef)
        self._intercept_change = np.zeros(like.n_columns)
        batches = [self._columns]
        if self.preconditioners.is_complete and like.n_systems > 1:
            batches = [np.array([k]) for k in self._columns]  # one factor at a time
        with self._readable():
            for columns in batches:
                self._solve(columns, root.of_columns(columns), forcing)
        self.preconditioners.end_step()
        g, r, change = self._gradient, self._residual, self._change
        slopes = (r * (change - self._intercept_change)).sum(axis=0) + g.sum(axis=0) * self._intercept_change
        return like.per_system(slopes)

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except NotPositiveDefiniteError as error:
            raise NotPositiveDefiniteError(
                f"kernel logistic regression with λ = alpha = {self.alpha:g}: {error}. The kernel is not positive "
                f"semidefinite on these rows, or λ is below what rounding in K allows: increase alpha, or use a "
                f"positive semidefinite kernel. dkrr never adds its own jitter; steps in a given store are kept",
                error.row,
            ) from None

    def _solve(self, columns: NDArray[np.intp], root: HessianRoot, forcing: float) -> None:
        """Newton directions of some columns; see dkrr.linalg.curvature for the algebra."""
        shift, coef = 2 * self.alpha, self._coef[:, columns]
        r = np.ascontiguousarray(self._residual[:, columns])
        q, rest = self._split(root, r)
        curvature = Curvature.of_root(root, centred=self.fit_intercept)
        known = rest / shift  # −Δα of what C does not reproduce
        fixed = np.zeros_like(r)
        if curvature.inverse_total is not None:
            wanted = known.sum(axis=0) - coef.sum(axis=0)
            fixed = curvature.constant(wanted @ curvature.inverse_total)
            known = known - root.apply(fixed)
        right_sides = -q
        if known.any():
            right_sides += root.adjoint(self.gram.multiply(known))
        right_sides = root.stack(curvature.project(right_sides))
        preconditioner = self.preconditioners.for_systems(curvature, shift, columns)
        # Once more: where next to nothing is left of a right-hand side, most of it is outside.
        right_sides = curvature.within(right_sides)
        iteration = Iteration(
            operator=CurvatureOperator(self.gram, curvature),
            shift=np.array([[shift]]),
            right_sides=right_sides,
            preconditioner=preconditioner,
            tol=min(forcing, DIRECT_TOL) if preconditioner.is_complete else forcing,
            max_iter=self.max_iter,
            mixed=self.mixed,
            largest=self.largest * float(root.scale.max()) ** 2,
            progress=Progress() if preconditioner.is_complete else self.progress,
            estimates_condition=False,
            watch=self.watch or unwatched,
        )
        with self.progress.measured("conjugate gradient"):
            outcome = iteration.run()
        self.inner_iterations += outcome.iterations
        self.messages += outcome.messages
        x = curvature.project(root.unstack(outcome.x))
        direction = root.apply(x) - known
        change = self.gram.multiply(np.ascontiguousarray(direction))
        self._direction[:, columns] = direction
        self._change[:, columns] = change
        if curvature.inverse_total is not None:
            left = self._gradient[:, columns].sum(axis=0) + root.weigh(change).sum(axis=0)
            offset = -left @ curvature.inverse_total
            self._intercept_change[columns] = offset
            self._change[:, columns] += offset

    def _split(self, root: HessianRoot, r: Array) -> tuple[Array, Array]:
        """q, and r − C q where that is more than rounding."""
        c = root.scale
        top = np.maximum(c.max(axis=0), 1e-300)
        # Where c is small and the data hardly counts, dividing by it gains nothing.
        keep = (c >= SMALL_SCALE * top) | (c * top * self.largest >= 2 * self.alpha)
        q = root.invert(r, keep & (c > 0))
        rest = r - root.apply(q)
        rest[np.abs(rest) <= NEGLIGIBLE * np.abs(r).max(axis=0)] = 0.0
        return q, rest

    def along(self, step_lengths: Array) -> Array:
        """See base class; no product with K."""
        return self._values(*self._reached(step_lengths))

    def _reached(self, step_lengths: Array) -> tuple[Array, Array, Array]:
        """Coefficients, intercept and scores after a step of these lengths."""
        t = np.broadcast_to(step_lengths, self._intercept.shape)
        return (
            self._coef + t * self._direction,
            self._intercept + t * self._intercept_change,
            self._scores + t * self._change,
        )

    def step(self, step_lengths: Array) -> None:
        self._move(*self._reached(step_lengths))
        self._is_true = False
        self._measure(self._columns)
