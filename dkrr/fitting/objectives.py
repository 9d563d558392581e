"""Objectives of a classification, in every form and for every way to solve the systems of Newton's method."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dkrr.data import Rows
from dkrr.data.rows import digest_of
from dkrr.fitting.context import Context
from dkrr.fitting.data import LabelledData
from dkrr.fitting.gram import FactoredGram, GramMatrix, MultipliedGram, direct_gram, float32_gram
from dkrr.fitting.iteration import pivot_rule, pivots_of, settings_of
from dkrr.fitting.normal_rows import NormalRows
from dkrr.linalg.curvature import ByCompleteFactors, ByPartialFactor, NewtonPreconditioners, NoPreconditioners, Solve
from dkrr.linalg.likelihood import LabelTerms
from dkrr.linalg.likelihood_pass import Passes
from dkrr.linalg.operator import Operator
from dkrr.planning import Direct, Float32Factor, Iterative, Plan
from dkrr.planning.problem import Form
from dkrr.planning.strategy import How
from dkrr.solvers.dual_objective import DualObjective
from dkrr.solvers.newton import CURVATURE_SHIFT, INNER_TOL, Objective, Point
from dkrr.solvers.primal_objective import PrimalObjective

Array = NDArray[np.float64]

ObjectiveAt = Callable[[float, Point, Array | None], Objective]
"""Objective of a λ at a point, given the norms of the gradients at zero if they are known."""
Made = tuple[Rows | None, ObjectiveAt]
"""The training rows, readable after the fit (None in the primal form), and the objectives."""


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
            return [partial(self._apply, s) for s in self.matrix.factors(groups, shifts, "newton", details)]

    def _apply(self, solve: Solve, residuals: Array) -> Array:
        with self.context.progress.measured("substitution"):
            return solve(residuals)

    def end_step(self) -> None:
        while self._groups:
            self.matrix.release(self._groups.pop())


def _dual(
    matrix: GramMatrix,
    preconditioners: Callable[[], NewtonPreconditioners],
    data: LabelledData,
    plan: Plan,
    context: Context,
    *,
    mixed: bool = False,
) -> Made:
    """Objectives in the dual form that share K and what preconditions their systems."""
    labels = LabelTerms(data.likelihood, data.codes, data.weights)

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
            unit=data.unit,
            known=known,
        )

    return matrix.rows, objective


def dual_direct(strategy: Direct, data: LabelledData, plan: Plan, context: Context) -> Made:
    """Systems with K, by complete factors."""
    matrix = direct_gram(data, strategy, context)
    return _dual(matrix, lambda: StepFactors(matrix, context), data, plan, context)


def dual_factored(strategy: Float32Factor, data: LabelledData, plan: Plan, context: Context) -> Made:
    """Systems with K, by conjugate gradient with complete factors in float32."""
    matrix = float32_gram(data, strategy, context)
    return _dual(matrix, lambda: StepFactors(matrix, context), data, plan, context)


def dual_iterative(strategy: Iterative, data: LabelledData, plan: Plan, context: Context) -> Made:
    """Systems with K, by conjugate gradient with one partial factor for all."""
    matrix = MultipliedGram(data, strategy, context)

    def preconditioners() -> NewtonPreconditioners:
        if matrix.rank_limit == 0:
            return NoPreconditioners()
        shift = CURVATURE_SHIFT[plan.problem.is_coupled] * min(data.alphas)
        is_enough = pivot_rule(plan, shift, INNER_TOL, plan.problem.n_steps)
        return ByPartialFactor(matrix.partial_factor(data.weights, pivots_of(plan), is_enough))

    return _dual(matrix, preconditioners, data, plan, context, mixed=matrix.is_mixed)


def _primal(
    curvature: Literal["matrix", "diagonal"],
    row_block: int,
    row_parts: int,
    data: LabelledData,
    plan: Plan,
    context: Context,
) -> Made:
    """Objectives in the primal form, which pass over the same segments of the rows."""
    rows = NormalRows(data, context, row_block, "labels", data.codes[:, None].astype(np.float64))
    passes = Passes(rows.phi, data.likelihood, data.rows.shape[1], data.fit_intercept, curvature)
    segments, settings = rows.segments(row_parts), settings_of(plan)
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
            unit=data.unit,
            known=known,
        )

    return None, objective


def primal_direct(strategy: Direct, data: LabelledData, plan: Plan, context: Context) -> Made:
    """Systems with ΦᵀWΦ, by a matrix in the calling process."""
    return _primal("matrix", strategy.row_block, strategy.row_parts, data, plan, context)


def primal_iterative(strategy: Iterative, data: LabelledData, plan: Plan, context: Context) -> Made:
    """Systems with ΦᵀWΦ, by conjugate gradient."""
    passes = strategy.row_passes
    return _primal("diagonal", passes.row_block, passes.row_parts, data, plan, context)


OBJECTIVES: Mapping[tuple[Form, type[How]], Callable[[Any, LabelledData, Plan, Context], Made]] = {
    ("dual", Direct): dual_direct,
    ("dual", Float32Factor): dual_factored,
    ("dual", Iterative): dual_iterative,
    ("primal", Direct): primal_direct,
    ("primal", Iterative): primal_iterative,
}
