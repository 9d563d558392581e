"""Objectives of kernel logistic regression in every form, whose Newton steps a way to solve carries out."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dkrr.cluster import Task
from dkrr.data import Rows
from dkrr.data.rows import digest_of
from dkrr.fitting.context import Context
from dkrr.fitting.costs.details import FourierSolve
from dkrr.fitting.data import LabelledData
from dkrr.fitting.gram import FactoredGram, GramMatrix
from dkrr.fitting.iteration import settings_of
from dkrr.fitting.normal_rows import NormalRows
from dkrr.linalg.curvature import ByCompleteFactors, NewtonPreconditioners, Solve
from dkrr.linalg.dual_objective import DualObjective
from dkrr.linalg.factor import Factor
from dkrr.linalg.fourier_likelihood import FourierLikelihoodPass, near_pass
from dkrr.linalg.gram_products import Operator
from dkrr.linalg.likelihood import WeightedLikelihood
from dkrr.linalg.likelihood_passes import LikelihoodPass
from dkrr.linalg.newton import (
    Objective,
    Point,
)
from dkrr.linalg.passes import Segment
from dkrr.linalg.primal_objective import PrimalObjective
from dkrr.planning import Plan

Array = NDArray[np.float64]

ObjectiveAt = Callable[[float, Point, Array | None], Objective]
"""Objective of a λ at a point, given the norms of the gradients at zero if they are known."""


class FormObjective(NamedTuple):
    """Objective of one form, with the training rows that it reads."""

    rows: Rows | None
    """The training rows, readable after the fit; None in the primal form."""
    objective: ObjectiveAt
    near: Callable[[float, Point], Array] | None = None
    """Coefficients of a Fourier grid outside of its box, of a solution with this λ."""


@dataclass
class StepFactors(ByCompleteFactors):
    """Factors of K + diag(s), deleted after their step."""

    matrix: FactoredGram
    context: Context
    _groups: list[str] = field(default_factory=list)

    def solvers(self, shifts: Array, models: NDArray[np.intp]) -> list[Solve]:
        # Tiles of another diagonal, left by a run whose checkpoint was lost, are not taken for this one's.
        groups = [
            f"newton-{model}-{digest_of(shift)[:12]}"
            for model, shift in zip(models, np.ascontiguousarray(shifts.T), strict=True)
        ]
        self._groups += groups
        details = [f"model {model + 1}" for model in models]
        with self.context.progress.measured("factorisation"):
            return [partial(self._solve, one) for one in self.matrix.factors(groups, shifts, "newton", details)]

    def _solve(self, factor: Factor, residuals: Array) -> Array:
        with self.context.progress.measured("substitution"):
            return factor.solve(residuals)

    def end_step(self) -> None:
        while self._groups:
            self.matrix.release(self._groups.pop())


def dual_objective(
    matrix: GramMatrix,
    preconditioners: Callable[[], NewtonPreconditioners],
    data: LabelledData,
    plan: Plan,
    context: Context,
    *,
    mixed: bool = False,
) -> FormObjective:
    """Objectives in the dual form that share K and what preconditions their systems."""
    labels = WeightedLikelihood(data.likelihood, data.codes, data.weights)

    @cache
    def shared() -> tuple[Operator, NewtonPreconditioners, float]:
        """Made for the first λ only: a run that is resumed may have done all."""
        largest = float(np.abs(matrix.diagonal()).max())
        return matrix.operator(), preconditioners(), max(largest, 1e-300)

    def objective(alpha: float, start: Point, known: Array | None) -> Objective:
        gram, made, largest = shared()
        return DualObjective(
            labels=labels,
            fit_intercept=data.fit_intercept,
            alpha=alpha,
            gram=gram,
            preconditioners=made,
            largest=largest,
            mixed=mixed,
            max_iter=settings_of(plan).max_iter,
            start=start,
            progress=context.progress,
            known=known,
            watch=context.watch,
        )

    return FormObjective(matrix.rows, objective)


def primal_objective(
    curvature: Literal["matrix", "diagonal"],
    row_block: int,
    row_parts: int,
    data: LabelledData,
    plan: Plan,
    context: Context,
) -> FormObjective:
    """Objectives in the primal form."""
    rows = _labelled_rows(data, context, row_block)
    passes = LikelihoodPass(rows.phi, data.likelihood, data.rows.shape[1], data.fit_intercept, curvature)
    return _by_passes(passes, rows.segments(row_parts), data, plan, context)


def _labelled_rows(data: LabelledData, context: Context, row_block: int) -> NormalRows:
    return NormalRows(data, context, row_block, "labels", data.codes[:, None].astype(np.float64))


def _by_passes(
    passes: LikelihoodPass, segments: tuple[Segment, ...], data: LabelledData, plan: Plan, context: Context
) -> FormObjective:
    """Objectives that pass over the same segments of the rows."""
    settings = settings_of(plan)
    least_weight = 1.0 if data.weights is None else float(data.weights[data.weights > 0].min(initial=np.inf))

    def objective(alpha: float, start: Point, known: Array | None) -> Objective:
        return PrimalObjective(
            passes=passes,
            segments=segments,
            executor=context.executor,
            alpha=alpha,
            max_iter=settings.max_iter,
            is_preconditioned=settings.preconditioner is not None,
            start=start,
            progress=context.progress,
            least_weight=least_weight,
            record=context.record,
            known=known,
            watch=context.watch,
        )

    return FormObjective(None, objective)


def fourier_objective(strategy: FourierSolve, data: LabelledData, plan: Plan, context: Context) -> FormObjective:
    """Systems with ΦᵀWΦ on a Fourier grid, gathered from transforms."""
    rows = _labelled_rows(data, context, strategy.row_block)
    passes = FourierLikelihoodPass(
        rows.phi, data.likelihood, data.rows.shape[1], data.fit_intercept, "matrix", threads=context.threads
    )
    segments = rows.segments(strategy.row_parts, by_blocks=not context.in_memory)

    def near(alpha: float, point: Point) -> Array:
        """By α = −g / 2λ, where the gradient of the objective is 0."""
        coef = np.vstack([point.coef, point.intercept]) if data.fit_intercept else point.coef
        tasks = [Task(f"near-{k}", near_pass, (passes, s)) for k, s in enumerate(segments)]
        with context.progress.measured("training errors"):
            return context.total(tasks, coef) / (-2.0 * alpha)

    return _by_passes(passes, segments, data, plan, context)._replace(near=near)
