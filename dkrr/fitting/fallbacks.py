"""Carry out a plan, and what follows where it fails: a factorisation after iterations, float64 after float32."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from dkrr.cluster import Progress
from dkrr.cost import Stage
from dkrr.errors import Float32BreakdownError, MemoryLimitError, PlanError
from dkrr.fitting.context import progress_of
from dkrr.fitting.data import FitData
from dkrr.fitting.request_plans import plan_of
from dkrr.fitting.requests import FitRequest
from dkrr.fitting.results import FittedModel
from dkrr.fitting.storage import note_given_up, with_repairs
from dkrr.limits import peak_resident_bytes
from dkrr.linalg.giving_up import GivenUpError
from dkrr.linalg.solver_settings import Cholesky, ConjugateGradient
from dkrr.planning import Plan
from dkrr.planning.iterations_first import GIVEN_UP
from dkrr.planning.problem import Because
from dkrr.text import Reason

Models = tuple[FittedModel, ...]


@dataclass(frozen=True)
class PlannedWork:
    """A fit whose plan is carried out, or another plan where that fails.

    Parameters
    ----------
    request : FitRequest
    data : FitData
    carry_out : callable
        Makes the models of a plan, with this request and these data.
    show_progress : bool or None
        As in `make_progress`.
    """

    request: FitRequest
    data: FitData
    carry_out: Callable[[FitRequest, Any, Plan, Progress], Models]
    show_progress: bool | None

    def models(self, plan: Plan, progress: Progress) -> tuple[Plan, Models]:
        """Models, and the plan that led to them."""
        broken = ""
        try:
            return self._iterations_first(plan, progress)
        except Float32BreakdownError as error:
            broken = str(error)
        # Outside of the handler, which keeps the factor in memory that has failed.
        try:
            return self._with_solver(Cholesky(), broken)
        except MemoryLimitError:
            return self._with_solver(ConjugateGradient(), broken)

    def _iterations_first(self, plan: Plan, progress: Progress) -> tuple[Plan, Models]:
        """Carry out a plan; a factorisation follows where its iterations are given up, or have not converged."""
        request, begun, reached = self.request, time.perf_counter(), None
        models: Models = ()
        try:
            models = self._carried_out(request, plan, progress)
            if not _may_be_retried(request, models):
                return plan, models
            text = request.outputs.retry_message.format(residual=max(one.result.residual for one in models))
        except GivenUpError as error:  # which keeps in memory what the iterations hold
            text, reached = str(error), error.reached
        direct = plan.with_factorisation(Reason(GIVEN_UP, text))
        lost, seconds = progress.take_stages(), time.perf_counter() - begun
        peak_bytes = peak_resident_bytes() if plan.execution != "dask" else 0
        if direct is None:
            with suppress(PlanError):
                direct, (first, *others) = self._with_solver(Cholesky(), text)
                return direct, (with_time_before(first, direct, lost, seconds, peak_bytes), *others)
            return plan, models
        models = ()
        reached = reached if direct.form == plan.form else None
        if request.settings.store is not None:
            keeps = plan.problem.loss == "logistic" and direct.form == plan.form
            note_given_up(request.settings.store, direct.chosen.layout(), text, keeps_checkpoint=keeps)
        progress = progress_of(self.show_progress, direct.seconds)
        progress.note(text)
        models = self._carried_out(replace(request, start=reached), direct, progress)
        first = with_time_before(models[0], direct, lost, seconds, peak_bytes)
        return direct, with_messages((first, *models[1:]), (text,))

    def _with_solver(self, solver: Cholesky | ConjugateGradient, message: str) -> tuple[Plan, Models]:
        """Plan and fit once more with another solver; the message says why."""
        because = Because(solver=Reason("solver-failed", message))
        request = replace(self.request.with_settings(solver=solver), start=None, because=because)
        plan = plan_of(request)
        progress = progress_of(self.show_progress, plan.chosen.seconds)
        progress.note(message)
        return plan, with_messages(self._carried_out(request, plan, progress), (message,))

    def _carried_out(self, request: FitRequest, plan: Plan, progress: Progress) -> Models:
        """Models of a plan; what is damaged in the store that was given is computed again."""
        store = request.settings.store
        if store is None:
            return self.carry_out(request, self.data, plan, progress)
        models, repairs = with_repairs((store,), lambda: self.carry_out(request, self.data, plan, progress))
        for text in repairs:
            progress.note(text)
        return with_messages(models, repairs)


def _may_be_retried(request: FitRequest, models: Models) -> bool:
    """Whether conjugate gradient, which the planner chose, failed, and no store holds its run."""
    failed = False
    if request.settings.solver is None and request.settings.store is None:
        for one in models:
            failed |= one.result.status in request.outputs.retried
    return failed


def with_time_before(
    first: FittedModel, plan: Plan, stages: Sequence[Stage], seconds: float, peak_bytes: int
) -> FittedModel:
    """Add the stages, the time and the memory of what came before, in the calling process, to a result."""
    result = first.result
    most = result.peak_bytes if plan.execution == "dask" else max(result.peak_bytes, peak_bytes)
    passed = {one.name: one.seconds for one in stages}
    for one in result.stages:
        passed[one.name] = passed.get(one.name, 0.0) + one.seconds
    stages = tuple(map(Stage, passed.keys(), passed.values()))
    return replace(first, result=replace(result, stages=stages, seconds=result.seconds + seconds, peak_bytes=most))


def with_messages(models: Models, messages: tuple[str, ...]) -> Models:
    """Models whose results have these messages before their own."""
    results = [replace(one.result, messages=(*messages, *one.result.messages)) for one in models]
    return tuple(replace(one, result=result) for one, result in zip(models, results, strict=True))
