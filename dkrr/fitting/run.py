"""Fit models for a request: sample maps, plan, carry out the plan, fall back to a direct solver, warn.

`SOLVERS` has how each way to solve is carried out, for any form at any place.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from dkrr.cluster import Progress
from dkrr.cluster.tasks import peak_resident_bytes, reset_peak
from dkrr.cost import Stage
from dkrr.errors import Float32BreakdownError, InputError, MemoryLimitError, PlanError, warn_inaccurate
from dkrr.fitting import logistic
from dkrr.fitting.batches import DualForm, solve_in_batches
from dkrr.fitting.context import Context, open_context, progress_of
from dkrr.fitting.data import FitData, LabelledData, TrainingData, shared_fields
from dkrr.fitting.dual_ridge import DirectDual, FactoredDual, IteratedDual
from dkrr.fitting.fourier_ridge import FourierRidge, refused_alpha
from dkrr.fitting.iteration import resumed, watch_of
from dkrr.fitting.primal_ridge import DirectPrimal, IteratedPrimal
from dkrr.fitting.request_plans import plan_of
from dkrr.fitting.requests import DualStart, FitRequest
from dkrr.fitting.results import FittedModel, SavedPosterior, Solution, fitted_model, quadratics, scale_of
from dkrr.fitting.sampled import centre_linear_parts, with_sampled_maps
from dkrr.fitting.storage import note_given_up, with_repairs
from dkrr.kernels.fourier_grid import FourierGrid
from dkrr.kernels.kernel_features import is_drawn
from dkrr.linalg.condition import worst
from dkrr.linalg.iteration_state import CGOutcome
from dkrr.linalg.result import SolveResult, in_terms_of_alpha
from dkrr.linalg.solver_settings import Cholesky, ConjugateGradient
from dkrr.linalg.watching import GivenUpError
from dkrr.planning import Plan
from dkrr.planning.iterations_first import GIVEN_UP
from dkrr.planning.problem import Because, Form, Loss
from dkrr.planning.reasons import Reason
from dkrr.planning.strategy import Direct, Float32Factor, FourierSolve, Iterative, StrategyDetails
from dkrr.text import plural


def solve_directly(
    form: DirectDual | DirectPrimal,
    data: TrainingData,
    plan: Plan,
    context: Context,  # noqa: ARG001
    start: DualStart | None = None,  # noqa: ARG001
) -> Solution:
    """Solve by one factorisation for each distinct λ."""
    for system in form.systems():
        with in_terms_of_alpha([system.alpha], plan.form, partial(scale_of, data, plan.form)):
            form.solve(system)
    return form.solution()


def solve_iteratively(
    form: IteratedDual | IteratedPrimal,
    data: TrainingData,
    plan: Plan,
    context: Context,
    start: DualStart | None = None,
) -> Solution:
    """Conjugate gradient for all λ at once, which a run of the same store resumes."""
    with in_terms_of_alpha(np.unique(data.alphas), plan.form, partial(scale_of, data, plan.form)):
        if start is not None and isinstance(form, IteratedDual):
            return _continued(form, start, context)
        iteration, groups = form.iteration()
        outcome = resumed(context, iteration, lambda state: form.iterate(iteration, groups, state))
    return form.solution(outcome)


def _continued(form: IteratedDual, start: DualStart, context: Context) -> Solution:
    """Solve by conjugate gradient, starting from `start` or from a newer checkpoint."""
    iteration, groups = form.iteration(is_deferred=True)
    first = np.hstack([start.of(system.alpha, system.columns) for system in form.systems()])
    outcome = resumed(context, iteration, lambda state: form.iterate(iteration, groups, state, first))
    return form.solution(replace(outcome, messages=(start.note, *outcome.messages)))


def solve_with_float32_factor(
    form: FactoredDual,
    data: TrainingData,
    plan: Plan,  # noqa: ARG001
    context: Context,  # noqa: ARG001
    start: DualStart | None = None,  # noqa: ARG001
) -> Solution:
    """Solve by one factorisation in float32 for each distinct λ, and iterations in float64 with it."""
    outcomes = list[CGOutcome]()
    for system in form.systems():
        with in_terms_of_alpha([system.alpha], "dual", partial(scale_of, data, "dual")):
            outcomes.append(form.solve(system))
    return form.solution(merged(outcomes))


def solve_by_transforms(
    form: FourierRidge,
    data: TrainingData,
    plan: Plan,
    context: Context,  # noqa: ARG001
    start: DualStart | None = None,  # noqa: ARG001
) -> Solution:
    """Solve by one pass over the rows for all systems, and others that refine their solutions."""
    with in_terms_of_alpha(np.unique(data.alphas), plan.form, partial(scale_of, data, plan.form)):
        return form.solution()


class Method(NamedTuple):
    """Functions that carry out one solver, by form."""

    forms: Mapping[Form, Any]
    """Systems of each form, made of what the plan says of the solver, data, plan and context."""
    solve: Callable[[Any, TrainingData, Plan, Context, DualStart | None], Solution]


SOLVERS: Mapping[type[StrategyDetails], Method] = {
    Direct: Method({"dual": DirectDual, "primal": DirectPrimal}, solve_directly),
    Iterative: Method({"dual": IteratedDual, "primal": IteratedPrimal}, solve_iteratively),
    Float32Factor: Method({"dual": FactoredDual}, solve_with_float32_factor),
    FourierSolve: Method({"primal": FourierRidge}, solve_by_transforms),
}


def _solution(data: TrainingData, plan: Plan, context: Context, start: DualStart | None) -> Solution:
    """Solution of all targets, in the batches of the plan."""
    way = SOLVERS[type(plan.chosen.details)]
    form = way.forms[plan.form](plan.chosen.details, data, plan, context)
    if plan.form == "primal" or not plan.problem.batch:
        return way.solve(form, data, plan, context, start)

    def solve_batch(one: DualForm, part: TrainingData, columns: NDArray[np.intp]) -> Solution:
        here = None if start is None else start.of_targets(columns)
        return way.solve(one, part, plan, context, here)

    return solve_in_batches(form, data, plan, context, solve_batch)


def fit_regression(request: FitRequest, data: TrainingData, plan: Plan, progress: Progress) -> tuple[FittedModel]:
    """Carry out a plan; what is finished before an error stays in a store that the user gave."""
    begun = time.perf_counter()
    start = request.start if isinstance(request.start, DualStart) else None
    with open_context(plan, request.settings.store, progress) as context:
        context.watch = None if plan.chosen.otherwise is None else watch_of(plan, plan.chosen.otherwise)
        solution = _solution(data, plan, context, start)
        posteriors = posteriors_left(request, data, solution)
        if posteriors is not None and request.folds:
            posteriors.fold_models(request.folds, context)
    return (fitted_model(data, plan, solution, context, begun, posteriors),)


def posteriors_left(request: FitRequest, data: TrainingData, solution: Solution) -> Any:
    """Posteriors of a fit, from the factors that it leaves; None unless it is to leave them."""
    if request.settings.uncertainty is False or request.posteriors is None:
        return None
    given, saved = request if request.given is None else request.given, dict[float, SavedPosterior]()
    if solution.dual_coef is not None:
        found = quadratics(data, solution.dual_coef)
        for alpha, one in solution.saved.items():
            of_alpha = {"quadratic": found[data.alphas == alpha].tolist()}
            saved[alpha] = replace(one, numbers=one.numbers | of_alpha)
    grid = data.feature_map if solution.near is not None else None
    assert grid is None or isinstance(grid, FourierGrid)
    return request.posteriors(given, data.kernel, saved, grid)


def shortfall(result: SolveResult, plan: Plan) -> str:
    """Words for a result that is less accurate than requested."""
    after = (
        f" after {plural(result.iterations, 'iteration')}, where {plan.problem.tol:.1e} was asked"
        if result.iterations
        else ""
    )
    return f"true relative residual {result.residual:.1e}{after}: {result.status.value}"


def merged(outcomes: Sequence[CGOutcome]) -> CGOutcome:
    """Outcomes of several systems as one: the worst status, all residuals, the sum of the iterations."""
    bad = [o.status for o in outcomes if not o.status.is_good]
    return CGOutcome(
        x=outcomes[-1].x,
        residuals=np.concatenate([o.residuals for o in outcomes]),
        status=bad[0] if bad else outcomes[-1].status,
        iterations=sum(o.iterations for o in outcomes),
        rank=0,
        history=tuple(h for o in outcomes for h in o.history),
        messages=tuple(m for o in outcomes for m in o.messages),
        condition=worst([o.condition for o in outcomes]),
    )


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
        return replace(self, models=_noted(self.models, messages))


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
    progress, spent = progress_of(show_progress, plan.seconds), None
    if is_drawn(plan.problem.kernel):
        begun = time.perf_counter()
        reset_peak()
        request = request.with_settings(kernel=with_sampled_maps(plan.problem.kernel, request.rows, progress))
        spent = time.perf_counter() - begun, peak_resident_bytes()
        # There may be fewer features than requested; what they hold is not part of what the process held before.
        plan = plan_of(request, plan.resources)
    loss = LOSSES[plan.problem.loss]
    data: FitData = loss.data(request.outputs, shared_fields(request, plan.problem))
    if lost := refused_alpha(plan, data):  # of a grid that was named, which has no other form
        raise InputError(f"{lost} on a Fourier grid; expected a larger alpha, or the kernel itself")
    data = centre_linear_parts(data, request.settings.store)
    broken, models = "", tuple[FittedModel, ...]()
    try:
        plan, models = _iterations_first(request, data, plan, progress, show_progress)
    except Float32BreakdownError as error:
        broken = str(error)
    if broken:  # outside of the handler, which keeps the factor in memory that has failed
        plan, models = _without_float32(request, data, broken, show_progress)
    if plan.problem.layout is not None and plan.problem.layout.given_up:
        models = _noted(models, (plan.problem.layout.given_up,))
    if spent is not None:
        models = (_after(models[0], plan, (), *spent), *models[1:])
    for one in models:
        _warn(one.result, plan)
    return Fit(plan, models)


def _after(first: FittedModel, plan: Plan, stages: Sequence[Stage], seconds: float, peak_bytes: int) -> FittedModel:
    """Add the stages, the time and the memory of what came before, in the calling process, to a result."""
    result = first.result
    most = result.peak_bytes if plan.execution == "dask" else max(result.peak_bytes, peak_bytes)
    passed = {one.name: one.seconds for one in stages}
    for one in result.stages:
        passed[one.name] = passed.get(one.name, 0.0) + one.seconds
    stages = tuple(Stage(name, time) for name, time in passed.items())
    return replace(first, result=replace(result, stages=stages, seconds=result.seconds + seconds, peak_bytes=most))


def _iterations_first(
    request: FitRequest, data: FitData, plan: Plan, progress: Progress, show_progress: bool | None
) -> tuple[Plan, tuple[FittedModel, ...]]:
    """Carry out a plan; a factorisation follows where its iterations are given up, or have not converged."""
    begun, models, reached = time.perf_counter(), tuple[FittedModel, ...](), None
    try:
        models = _fit_regression(request, data, plan, progress)
        if not _may_be_retried(request, models):
            return plan, models
        text = request.outputs.retry_message.format(residual=max(one.result.residual for one in models))
    except GivenUpError as error:  # which keeps in memory what the iterations hold
        text, reached = str(error), error.reached
    direct = plan.with_factorisation(Reason(GIVEN_UP, text))
    if direct is None:
        with suppress(PlanError):
            return _with_solver(Cholesky(), request, data, text, show_progress)
        return plan, models
    models, lost, seconds = (), progress.take_stages(), time.perf_counter() - begun
    peak_bytes = peak_resident_bytes() if plan.execution != "dask" else 0
    reached = reached if direct.form == plan.form else None
    if request.settings.store is not None:
        keeps = plan.problem.loss == "logistic" and direct.form == plan.form
        note_given_up(request.settings.store, direct.chosen.layout(), text, keeps_checkpoint=keeps)
    progress = progress_of(show_progress, direct.seconds)
    progress.note(text)
    models = _fit_regression(replace(request, start=reached), data, direct, progress)
    first = _after(models[0], direct, lost, seconds, peak_bytes)
    return direct, _noted((first, *models[1:]), (text,))


def _may_be_retried(request: FitRequest, models: tuple[FittedModel, ...]) -> bool:
    """Whether conjugate gradient, which the planner chose, failed, and no store holds its run."""
    is_free = request.settings.solver is None and request.settings.store is None
    return is_free and any(one.result.status in request.outputs.retried for one in models)


def _without_float32(
    request: FitRequest, data: FitData, message: str, show_progress: bool | None
) -> tuple[Plan, tuple[FittedModel, ...]]:
    """Plan and fit once more with a factor in float64; by conjugate gradient if that needs more memory than allowed."""
    try:
        return _with_solver(Cholesky(), request, data, message, show_progress)
    except MemoryLimitError:
        return _with_solver(ConjugateGradient(), request, data, message, show_progress)


def _with_solver(
    solver: Cholesky | ConjugateGradient, request: FitRequest, data: FitData, message: str, show_progress: bool | None
) -> tuple[Plan, tuple[FittedModel, ...]]:
    """Plan and fit once more with another solver; the message says why."""
    because = Because(solver=Reason("solver-failed", message))
    request = replace(request.with_settings(solver=solver), start=None, because=because)
    plan = plan_of(request)
    progress = progress_of(show_progress, plan.seconds)
    progress.note(message)
    return plan, _noted(_fit_regression(request, data, plan, progress), (message,))


def _fit_regression(request: FitRequest, data: FitData, plan: Plan, progress: Progress) -> tuple[FittedModel, ...]:
    """Models of a plan; what is damaged in the store that was given is computed again."""
    carry_out = LOSSES[plan.problem.loss].carry_out
    store = request.settings.store
    stores = () if store is None else (store,)
    models, repairs = with_repairs(stores, lambda: carry_out(request, data, plan, progress))
    for text in repairs:
        progress.note(text)
    return _noted(models, repairs)


def _noted(models: tuple[FittedModel, ...], messages: tuple[str, ...]) -> tuple[FittedModel, ...]:
    results = [replace(one.result, messages=(*messages, *one.result.messages)) for one in models]
    return tuple(replace(one, result=result) for one, result in zip(models, results, strict=True))


def _warn(result: SolveResult, plan: Plan) -> None:
    """Warn of a result that is less accurate than requested, where the caller of an estimator's `fit` is."""
    if not result.status.is_good:
        text = LOSSES[plan.problem.loss].shortfall(result, plan)
        warn_inaccurate(text, stacklevel=4)
