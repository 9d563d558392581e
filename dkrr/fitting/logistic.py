"""Fits of kernel logistic regression: Newton's method on the plan's form, one value of λ after the other."""

import time
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from dkrr.fitting.checkpoint import Checkpoints
from dkrr.fitting.context import Context, open_context
from dkrr.fitting.data import LabelledData
from dkrr.fitting.newton_path import PathPoint, PathState
from dkrr.fitting.objectives import OBJECTIVES, ObjectiveAt
from dkrr.fitting.results import Solution, Solved, fitted_function, result_of
from dkrr.planning import Plan
from dkrr.rows import Rows
from dkrr.runtime import Progress
from dkrr.solvers.newton import Newton, NewtonState, Objective, Point
from dkrr.solvers.result import Residuals

Array = NDArray[np.float64]


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
        strategy = plan.chosen.for_systems
        rows, objective_at = OBJECTIVES[plan.form, type(strategy)](strategy, scaled, plan, context)
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
        n, m = plan.problem.side(plan.form), data.likelihood.n_columns
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
