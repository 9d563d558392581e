"""Fits of kernel logistic regression: Newton's method on the plan's form, one value of λ after the other."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from dkrr.fitting.checkpoint import Checkpoints
from dkrr.fitting.context import Context, open_context
from dkrr.fitting.data import LabelledData
from dkrr.fitting.gram import GramMatrix
from dkrr.fitting.iteration import settings_of
from dkrr.fitting.newton_path import PathPoint, PathState
from dkrr.fitting.normal_rows import NormalRows
from dkrr.fitting.results import Solution, Solved, fitted_function, result_of
from dkrr.linalg.curvature import ByCompleteFactors, ByPartialFactor, NewtonPreconditioners, NoPreconditioners, Solve
from dkrr.linalg.likelihood import LabelTerms
from dkrr.linalg.likelihood_pass import Passes
from dkrr.linalg.operator import Operator
from dkrr.planning import Plan
from dkrr.rows import Rows
from dkrr.runtime import Progress
from dkrr.solvers.dual_objective import DualObjective
from dkrr.solvers.newton import CURVATURE_SHIFT, INNER_TOL, Newton, NewtonState, Objective, Point
from dkrr.solvers.primal_objective import PrimalObjective
from dkrr.solvers.result import Residuals

Array = NDArray[np.float64]

ObjectiveAt = Callable[[float, Point, Array | None], Objective]
"""Objective of a λ at a point, given the norms of the gradients at zero if they are known."""


def fit_path(
    data: LabelledData, plan: Plan, store: str | None, progress: Progress, max_iter: int, start: Point | None = None
) -> list[Solved]:
    """Carry out a plan for every λ of the data, each from the solution before.

    Parameters
    ----------
    data : LabelledData
    plan : Plan
    store : str or None
        Store that the user gave; None works in a temporary one.
    progress : Progress
    max_iter : int
        Newton steps for each λ.
    start : Point, optional
        Where the first begins; None: at zero.

    Raises
    ------
    DkrrError
        See the errors of dkrr.errors; finished steps stay in a store that the user gave.
    """
    begun = time.perf_counter()
    scaled = data.in_range()
    with open_context(plan, store, progress) as context:
        rows, objective_at = FORMS[plan.form](scaled, plan, context)
        found = _minimise(scaled, plan, context, objective_at, max_iter, start)
    models = [_solved(data, plan, context, rows, one) for one in found]
    if len(models) == 1:
        models = [replace(models[0], result=replace(models[0].result, seconds=time.perf_counter() - begun))]
    if context.temporary is not None and all(m.model.keep_alive is None for m in models):
        context.temporary.delete()
    return models


def _solved(data: LabelledData, plan: Plan, context: Context, rows: Rows | None, found: PathPoint) -> Solved:
    outcome, state, point, is_dual = found.outcome, found.outcome.state, found.point, plan.form == "dual"
    solution = Solution(
        dual_coef=point.coef if is_dual else None,
        coef=None if is_dual else point.coef,
        intercept=point.intercept,
        rows=rows,
        residual=outcome.gradient,
        messages=tuple(dict.fromkeys(state.messages)),
    )
    result = result_of(
        solution,
        plan,
        context,
        status=outcome.status,
        iterations=state.step,
        seconds=found.seconds,
        history=tuple(Residuals(s.step, s.seconds, s.gradient, is_true=True) for s in state.history),
        steps=tuple(state.history),
        inner_iterations=found.inner_iterations,
        decrement=outcome.decrement,
        probability_change=outcome.probability_change,
    )
    model = fitted_function(data, plan, solution, context.temporary)
    return Solved(model, result, solution.dual_coef, start=point)


def _minimise(
    data: LabelledData,
    plan: Plan,
    context: Context,
    objective_at: ObjectiveAt,
    max_iter: int,
    start: Point | None,
) -> tuple[PathPoint, ...]:
    """Solutions for all λ, each from the one before, and after the last checkpoint if there is one."""
    tol, checkpoints, progress = plan.problem.tol, context.checkpoints, context.progress
    path = PathState.resumed(checkpoints, tol, max_iter)
    if checkpoints is not None and path.newton is not None:
        progress.note(checkpoints.damage or f"going on after Newton step {path.newton.step}")
    if start is None:
        n, m = data.n if plan.form == "dual" else plan.problem.dimension or 0, data.likelihood.n_columns
        start = Point(np.zeros((n, m)), np.zeros(m))
    for alpha in data.alphas[len(path.done) :]:
        begun = time.perf_counter()
        objective = objective_at(alpha, path.point or start, path.references)
        save = partial(_save_step, checkpoints, objective, path.done)
        outcome = Newton(objective, tol, max_iter, progress, save).run(path.newton)
        outcome.state.messages += objective.messages
        point = Point(objective.point.coef, objective.point.intercept)  # scores and gradients are those of this λ
        found = PathPoint(point, outcome, time.perf_counter() - begun)
        path = PathState((*path.done, found), point, None, objective.references)
        path.save(checkpoints)
    return path.done


def _save_step(
    checkpoints: Checkpoints | None, objective: Objective, done: tuple[PathPoint, ...], state: NewtonState
) -> None:
    PathState(done, objective.point, state, objective.references).save(checkpoints)


def _dual(data: LabelledData, plan: Plan, context: Context) -> tuple[Rows | None, ObjectiveAt]:
    """Training rows, and objectives in the dual form that share K and what preconditions their systems."""
    matrix, c = GramMatrix(data, plan, context), plan.chosen
    labels = LabelTerms(data.likelihood, data.codes, data.weights)

    @cache
    def shared() -> tuple[Operator, NewtonPreconditioners, float]:
        """What is made for the first λ only: a run that is resumed may have done all."""
        largest = float(np.abs(matrix.diagonal()).max())
        return matrix.operator(), _preconditioners(data, plan, matrix), max(largest, 1e-300)

    def objective(alpha: float, start: Point, known: Array | None) -> Objective:
        gram, preconditioners, largest = shared()
        return DualObjective(
            labels=labels,
            fit_intercept=data.fit_intercept,
            alpha=alpha,
            gram=gram,
            preconditioners=preconditioners,
            largest=largest,
            mixed=c.precision == "float32" and not matrix.makes_factors,
            max_iter=settings_of(plan).max_iter,
            start=start,
            progress=context.progress,
            unit=data.unit,
            known=known,
        )

    return matrix.rows, objective


@dataclass
class _GramFactors(ByCompleteFactors):
    """Factors of K + diag(s), deleted after their step."""

    matrix: GramMatrix

    def solvers(self, shifts: Array, models: NDArray[np.intp]) -> list[Solve]:
        return self.matrix.factors_of_step(shifts, models)

    def end_step(self) -> None:
        self.matrix.delete_factors()


def _preconditioners(data: LabelledData, plan: Plan, matrix: GramMatrix) -> NewtonPreconditioners:
    """What preconditions Newton systems, with the factors of K that the plan makes."""
    if matrix.makes_factors:
        return _GramFactors(matrix)
    if plan.chosen.rank_limit == 0:
        return NoPreconditioners()
    shift = CURVATURE_SHIFT[plan.problem.is_coupled] * min(data.alphas)
    return ByPartialFactor(matrix.partial_factor(data.weights, shift, INNER_TOL, plan.problem.n_steps))


def _primal(data: LabelledData, plan: Plan, context: Context) -> tuple[Rows | None, ObjectiveAt]:
    """Objectives in the primal form, which pass over the same segments of the rows."""
    rows = NormalRows(data, plan, context, "labels", data.codes[:, None].astype(np.float64))
    curvature = "matrix" if plan.solver == "cholesky" else "diagonal"
    passes = Passes(rows.phi, data.likelihood, data.rows.shape[1], data.fit_intercept, curvature)  # type: ignore[arg-type]
    segments, settings = rows.segments(plan.chosen.row_parts), settings_of(plan)
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


FORMS: Mapping[str, Callable[[LabelledData, Plan, Context], tuple[Rows | None, ObjectiveAt]]] = {
    "dual": _dual,
    "primal": _primal,
}
