"""From a request to fitted models: sample maps, plan, fit, fall back to a direct solver, warn."""

from contextlib import suppress
from dataclasses import dataclass, replace

from dkrr.errors import PlanError
from dkrr.fitting import logistic, solve
from dkrr.fitting.data import LabelledData, TrainingData, data_of
from dkrr.fitting.results import Solved, warn_of
from dkrr.fitting.sampled import about_the_rows, drawn
from dkrr.planning import Plan
from dkrr.requests import FitRequest, plan_of
from dkrr.runtime import Progress, make_progress
from dkrr.solvers import Cholesky
from dkrr.solvers.newton import Point

QUIET_SECONDS = 2.0
"""Fits projected to be shorter show no progress unless asked to."""


@dataclass(frozen=True)
class Fit:
    """What was planned and found."""

    plan: Plan
    solved: tuple[Solved, ...]
    """One model; one for each λ of a path."""


def fit(request: FitRequest, show_progress: bool | None) -> Fit:
    """Plan a fit and carry it out.

    Where the planner chose conjugate gradient and it does not converge, a direct solver takes its place if there is
    room for one.

    Parameters
    ----------
    request : FitRequest
    show_progress : bool or None
        As in `make_progress`.

    Raises
    ------
    DkrrError
        See dkrr.errors; finished work stays in a store that the user gave.

    Warns
    -----
    ConvergenceWarning
        If a result is less accurate than was asked for.
    """
    plan = plan_of(request)  # what has no plan is refused before anything is sampled
    sampled = drawn(plan.problem.kernel, request.rows)
    if sampled is not plan.problem.kernel:
        request = request.with_settings(kernel=sampled)
        plan = plan_of(request)  # there may be fewer features than were asked for
    data = data_of(request, plan)
    if data.fit_intercept:
        data = about_the_rows(data, request.settings.store)
    start = None if request.start is None else request.start.for_plan(plan)
    solved = _carry_out(request, plan, data, start, _progress(show_progress, plan))
    if _may_be_retried(request, solved):
        with suppress(PlanError):
            plan, solved = _with_direct_solver(request, data, solved, show_progress)
    for one in solved:
        warn_of(one.result, plan)
    return Fit(plan, solved)


def _carry_out(
    request: FitRequest, plan: Plan, data: TrainingData | LabelledData, start: Point | None, progress: Progress
) -> tuple[Solved, ...]:
    settings = request.settings
    if isinstance(data, TrainingData):
        return (solve.fit(data, plan, settings.store, progress),)
    return tuple(logistic.fit_path(data, plan, settings.store, progress, settings.max_iter, start))


def _may_be_retried(request: FitRequest, solved: tuple[Solved, ...]) -> bool:
    """Whether conjugate gradient, which the planner chose, failed, and no store holds its run."""
    is_free = request.settings.solver is None and request.settings.store is None
    return is_free and any(one.result.status in request.outputs.retried for one in solved)


def _with_direct_solver(
    request: FitRequest, data: TrainingData | LabelledData, before: tuple[Solved, ...], show_progress: bool | None
) -> tuple[Plan, tuple[Solved, ...]]:
    """Plan and fit once more with a direct solver, which does not depend on the spectrum."""
    request = request.with_settings(solver=Cholesky())
    plan = plan_of(request)
    message = request.outputs.retry_message.format(residual=max(one.result.residual for one in before))
    progress = _progress(show_progress, plan)
    progress.note(message)
    solved = _carry_out(request, plan, data, None, progress)
    noted = [replace(one.result, messages=(message, *one.result.messages)) for one in solved]
    return plan, tuple(replace(one, result=result) for one, result in zip(solved, noted, strict=True))


def _progress(show: bool | None, plan: Plan) -> Progress:
    return make_progress(False if show is None and plan.seconds < QUIET_SECONDS else show)
