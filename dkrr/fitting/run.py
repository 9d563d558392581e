"""Fit models for a request: sample maps, plan, carry out the plan, warn."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

from dkrr.cluster import Progress
from dkrr.errors import InputError, warn_inaccurate
from dkrr.fitting import logistic
from dkrr.fitting.context import open_context, progress_of
from dkrr.fitting.costs.fourier_costs import lost_alpha
from dkrr.fitting.data import FitData, LabelledData, TrainingData, shared_fields
from dkrr.fitting.fallbacks import PlannedWork, with_messages, with_time_before
from dkrr.fitting.iteration import watch_of
from dkrr.fitting.request_plans import plan_of
from dkrr.fitting.requests import DualStart, FitRequest
from dkrr.fitting.results import FittedModel, SavedPosterior, Solution, fitted_model, quadratics
from dkrr.fitting.sampled import centre_linear_parts, with_sampled_maps
from dkrr.limits import peak_resident_bytes, reset_peak
from dkrr.linalg.result import SolveResult
from dkrr.planning import Plan
from dkrr.planning.problem import Loss
from dkrr.text import plural


def fit_regression(request: FitRequest, data: TrainingData, plan: Plan, progress: Progress) -> tuple[FittedModel]:
    """Carry out a plan; what is finished before an error stays in a store that the user gave."""
    begun = time.perf_counter()
    start = request.start if isinstance(request.start, DualStart) else None
    with open_context(plan, request.settings.store, progress) as context:
        if request.kept is not None:
            context.kept = request.kept
        if plan.chosen.otherwise is not None:
            context.watch = watch_of(plan, plan.chosen.otherwise)
        solution: Solution = plan.chosen.method.ridge(data, plan, context, start)
        posteriors = None
        if request.settings.uncertainty is not False and request.posteriors is not None:
            posteriors = posteriors_left(request, data, plan, solution)
            if request.folds:
                posteriors.fold_models(request.folds, context)
    return (fitted_model(data, plan, solution, context, begun, posteriors),)


def posteriors_left(request: FitRequest, data: TrainingData, plan: Plan, solution: Solution) -> Any:
    """Posteriors of a fit, from the factors that it leaves."""
    assert request.posteriors is not None
    given, saved = request if request.given is None else request.given, dict[float, SavedPosterior]()
    if solution.dual_coef is not None:
        found = quadratics(data, solution.dual_coef)
        for alpha, one in solution.saved.items():
            of_alpha = {"quadratic": found[data.alphas == alpha].tolist()}
            saved[alpha] = replace(one, numbers=one.numbers | of_alpha)
    return request.posteriors(replace(given, features=plan.chosen.features), data.kernel, saved)


def shortfall(result: SolveResult, plan: Plan) -> str:
    """Words for a result that is less accurate than requested."""
    after = (
        f" after {plural(result.iterations, 'iteration')}, where {plan.problem.tol:.1e} was asked"
        if result.iterations
        else ""
    )
    return f"true relative residual {result.residual:.1e}{after}: {result.status.value}"


class LossFit(NamedTuple):
    """Functions that fit models of one loss."""

    data: Callable[[Any, dict[str, Any]], Any]
    """Data of its outputs, with the fields that all data share."""
    carry_out: Callable[[FitRequest, Any, Plan, Progress], tuple[FittedModel, ...]]
    shortfall: Callable[[SolveResult, Plan], str]
    """Words for a result that is less accurate than requested."""


LOSSES: Mapping[Loss, LossFit] = {
    "squared": LossFit(TrainingData.of, fit_regression, shortfall),
    "logistic": LossFit(LabelledData.of, logistic.fit_path, logistic.shortfall),
}


@dataclass(frozen=True)
class Fit:
    """Plan of a fit, and its models."""

    plan: Plan
    models: tuple[FittedModel, ...]
    """Fitted models: a single one, or one for each λ of a path."""

    def noted(self, messages: tuple[str, ...]) -> Self:
        """Fit whose results have these messages before their own."""
        return replace(self, models=with_messages(self.models, messages))


def fit(request: FitRequest, show_progress: bool | None) -> Fit:
    """Plan a fit and carry it out.

    Where the planner chose conjugate gradient and it does not converge, or turns out to take longer than a
    factorisation, a direct solver takes its place if one fits in memory.

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
    request = replace(request, given=request)
    plan = plan_of(request)  # what has no plan is refused before anything is sampled
    progress, spent = progress_of(show_progress, plan.chosen.seconds), None
    if plan.drawing is not None and not plan.drawing.is_done:
        begun = time.perf_counter()
        reset_peak()
        request = request.with_settings(kernel=with_sampled_maps(plan.problem.kernel, request.rows, progress))
        spent = time.perf_counter() - begun, peak_resident_bytes()
        # There may be fewer features than requested; what they hold is not part of what the process held before.
        plan = plan_of(request, plan.resources)
    loss = LOSSES[plan.problem.loss]
    data: FitData = loss.data(request.outputs, shared_fields(request, plan.problem, plan.chosen.features))
    if plan.chosen.features is not None and (lost := lost_alpha(plan.priced)):  # of a grid that was named
        raise InputError(f"{lost} on a Fourier grid; expected a larger alpha, or the kernel itself")
    if not data.kernel.is_plain:
        data = centre_linear_parts(data, request.settings.store)
    plan, models = PlannedWork(request, data, loss.carry_out, show_progress).models(plan, progress)
    if plan.problem.layout is not None and plan.problem.layout.given_up:
        models = with_messages(models, (plan.problem.layout.given_up,))
    if spent is not None:
        models = (with_time_before(models[0], plan, (), *spent), *models[1:])
    for one in models:
        if not one.result.status.is_good:  # the caller of an estimator's `fit` is warned
            warn_inaccurate(loss.shortfall(one.result, plan), stacklevel=3)
    return Fit(plan, models)
