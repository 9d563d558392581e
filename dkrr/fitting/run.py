"""From a request to fitted models: sample maps, plan, fit, fall back to a direct solver, warn."""

import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

from dkrr.cluster import Progress, make_progress
from dkrr.errors import ConvergenceWarning, Float32BreakdownError, MemoryLimitError, PlanError
from dkrr.fitting import logistic, solve
from dkrr.fitting.data import FitData, LabelledData, TrainingData, shared_fields
from dkrr.fitting.repair import with_repairs
from dkrr.fitting.requests import FitRequest, plan_of
from dkrr.fitting.results import Solved
from dkrr.fitting.sampled import about_the_rows, drawn
from dkrr.planning import Plan
from dkrr.planning.problem import Loss
from dkrr.solvers import Cholesky, ConjugateGradient, SolveResult, Status

QUIET_SECONDS = 2.0
"""Fits projected to be shorter show no progress unless asked to."""


class LossFit(NamedTuple):
    """How models of one loss are fitted."""

    data: Callable[[Any, dict[str, Any]], Any]
    """Data of its outputs, with the fields that all data share."""
    carry_out: Callable[[FitRequest, Any, Plan, Progress], tuple[Solved, ...]]
    shortfall: Callable[[SolveResult, Plan], str]
    """Words for a result that is less accurate than requested."""


LOSSES: Mapping[Loss, LossFit] = {
    "squared": LossFit(TrainingData.of, solve.fit, solve.shortfall),
    "logistic": LossFit(LabelledData.of, logistic.fit_path, logistic.shortfall),
}


@dataclass(frozen=True)
class Fit:
    """Plan of a fit, and its models."""

    plan: Plan
    solved: tuple[Solved, ...]
    """One model; one for each λ of a path."""

    def noted(self, messages: tuple[str, ...]) -> Self:
        """The same, whose results say this before their own messages."""
        return replace(self, solved=_noted(self.solved, messages))


def fit(request: FitRequest, show_progress: bool | None) -> Fit:
    """Plan a fit and carry it out.

    Where the planner chose conjugate gradient and it does not converge, a direct solver takes its place if
    one fits in memory.

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
        If a result is less accurate than requested.
    """
    plan = plan_of(request)  # what has no plan is refused before anything is sampled
    sampled = drawn(plan.problem.kernel, request.rows)
    if sampled is not plan.problem.kernel:
        request = request.with_settings(kernel=sampled)
        plan = plan_of(request)  # there may be fewer features than requested
    loss = LOSSES[plan.problem.loss]
    data: FitData = loss.data(request.outputs, shared_fields(request, plan.problem))
    if data.fit_intercept:
        data = about_the_rows(data, request.settings.store)
    broken, solved = "", tuple[Solved, ...]()
    try:
        solved = _carried_out(request, data, plan, _progress(show_progress, plan))
    except Float32BreakdownError as error:
        broken = str(error)
    if broken:  # outside of the handler, which keeps the factor in memory that has failed
        plan, solved = _without_float32(request, data, broken, show_progress)
    if _may_be_retried(request, solved):
        largest = max(one.result.residual for one in solved)
        with suppress(PlanError):
            message = request.outputs.retry_message.format(residual=largest)
            plan, solved = _with_solver(Cholesky(), request, data, message, show_progress)
    for one in solved:
        _warn(one.result, plan)
    return Fit(plan, solved)


def _may_be_retried(request: FitRequest, solved: tuple[Solved, ...]) -> bool:
    """Whether conjugate gradient, which the planner chose, failed, and no store holds its run."""
    is_free = request.settings.solver is None and request.settings.store is None
    return is_free and any(one.result.status in request.outputs.retried for one in solved)


def _without_float32(
    request: FitRequest, data: FitData, message: str, show_progress: bool | None
) -> tuple[Plan, tuple[Solved, ...]]:
    """Plan and fit once more with a factor in float64; by conjugate gradient if that needs more memory than allowed."""
    try:
        return _with_solver(Cholesky(), request, data, message, show_progress)
    except MemoryLimitError:
        return _with_solver(ConjugateGradient(), request, data, message, show_progress)


def _with_solver(
    solver: Cholesky | ConjugateGradient, request: FitRequest, data: FitData, message: str, show_progress: bool | None
) -> tuple[Plan, tuple[Solved, ...]]:
    """Plan and fit once more with another solver; the message says why."""
    request = replace(request.with_settings(solver=solver), start=None)
    plan = plan_of(request)
    progress = _progress(show_progress, plan)
    progress.note(message)
    return plan, _noted(_carried_out(request, data, plan, progress), (message,))


def _carried_out(request: FitRequest, data: FitData, plan: Plan, progress: Progress) -> tuple[Solved, ...]:
    """Models of a plan; what is damaged in the store that was given is computed again."""
    carry_out = LOSSES[plan.problem.loss].carry_out
    store = request.settings.store
    stores = () if store is None else (store,)
    solved, repairs = with_repairs(stores, lambda: carry_out(request, data, plan, progress))
    for text in repairs:
        progress.note(text)
    return _noted(solved, repairs)


def _noted(solved: tuple[Solved, ...], messages: tuple[str, ...]) -> tuple[Solved, ...]:
    results = [replace(one.result, messages=(*messages, *one.result.messages)) for one in solved]
    return tuple(replace(one, result=result) for one, result in zip(solved, results, strict=True))


def _progress(show: bool | None, plan: Plan) -> Progress:
    return make_progress(False if show is None and plan.seconds < QUIET_SECONDS else show)


def _warn(result: SolveResult, plan: Plan) -> None:
    """Warn of a result that is less accurate than requested, where the caller of an estimator's `fit` is."""
    if result.status not in (Status.SOLVED, Status.CONVERGED):
        text = LOSSES[plan.problem.loss].shortfall(result, plan)
        warnings.warn(text, ConvergenceWarning, stacklevel=4)
