"""Scores of every kernel with every λ: the plan, and what it takes."""

import time
import warnings
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dkrr.cluster import Progress, Whole, make_progress
from dkrr.errors import ConvergenceWarning
from dkrr.fitting.context import open_context
from dkrr.fitting.data import shared_fields
from dkrr.fitting.norms import scale_of
from dkrr.fitting.repair import with_repairs
from dkrr.fitting.requests import DualStart, Settings, Targets, with_spectrum
from dkrr.fitting.sampled import about_the_rows
from dkrr.machine import detect
from dkrr.planning import Direct, Iterative, Problem, Resources
from dkrr.planning.problem import Form
from dkrr.planning.selection import FoldSizes, SelectionPlan, plan_selection
from dkrr.selection.curve import LearningCurve
from dkrr.selection.data import SelectionData
from dkrr.selection.factors import score_by_factors
from dkrr.selection.folds import Folds
from dkrr.selection.primal import PrimalFolds
from dkrr.selection.refit import Refit
from dkrr.selection.refits import score_by_refits
from dkrr.selection.report import Report
from dkrr.selection.request import SelectionRequest, within_store
from dkrr.selection.scores import ScoreSheet
from dkrr.selection.sweep import sweep
from dkrr.solvers.direct import in_terms_of_alpha

Array = NDArray[np.float64]
Numbers = NDArray[np.intp]


@dataclass(frozen=True)
class Candidate:
    """Scores of one kernel with every λ."""

    plan: SelectionPlan | None
    """None where fits of their own make up the scores."""
    sheet: ScoreSheet
    """Its λ are in the order of the request."""
    report: Report
    parts: Array | None = None
    """Scores of the parts of a learning curve, of shape (n_sizes, n_alphas, n_folds, t or 1); NaN for λ that were given
    up."""
    start: DualStart | None = None
    """Solution for all rows with the best λ of this kernel, where the run has solved for it."""

    @property
    def means(self) -> Array:
        """Mean scores of every λ, of shape (n_alphas, t or 1)."""
        return self.sheet.means()


@dataclass
class _Work:
    """What scores one kernel with every λ."""

    settings: Settings
    """Its settings, with the accuracy of scores and a store of its own."""
    alphas: Array
    """λ in descending order."""
    sheet: ScoreSheet
    report: Report
    refit: Refit | None
    """Takes the solutions for all rows."""

    @classmethod
    def of(cls, request: SelectionRequest, number: int) -> Self:
        """Work on the kernel with this number."""
        order, folds = _descending(request), request.folds
        sheet = _sheet(request, folds, len(order), keeps_predictions=request.keeps_predictions)
        report = Report(len(order), 1 if folds.is_loo else len(folds))
        return cls(_settings(request, number), request.alphas[order], sheet, report, request.last_fit())

    def candidate(self, request: SelectionRequest, plan: SelectionPlan, seconds: float) -> Candidate:
        """The scores, with the λ in the order of the request; warns of what they lack."""
        self.report.seconds = seconds
        for message in self.report.leave_out(self.sheet.values, self.alphas):
            warnings.warn(message, ConvergenceWarning, stacklevel=7)
        back = np.argsort(_descending(request), kind="stable")
        start = None if self.refit is None else self.refit.start(request.values.shape[1])
        return Candidate(plan, self.sheet.in_order(back), self.report.in_order(back), start=start)


def _settings(request: SelectionRequest, number: int) -> Settings:
    """Settings of the kernel with this number, with the accuracy of scores and a store of its own."""
    return replace(within_store(request.settings[number], f"kernel-{number}"), tol=request.tol)


def _sheet(request: SelectionRequest, folds: Folds, n_alphas: int, *, keeps_predictions: bool = False) -> ScoreSheet:
    return ScoreSheet(
        request.score,
        request.values,
        request.weights,
        folds,
        n_alphas,
        is_vector=request.is_vector,
        per_target=request.per_target,
        keeps_predictions=keeps_predictions,
        units=request.units,
    )


def _descending(request: SelectionRequest) -> Numbers:
    """Order of the λ from large to small."""
    return np.argsort(-request.alphas, kind="stable")


def all_scored(request: SelectionRequest, whole: Whole) -> list[Candidate]:
    """Scores of every kernel, one after the other, each a part of the whole that is displayed."""
    candidates = []
    for number in range(len(request.settings)):
        with whole.part():
            candidates.append(_scored(request, number, whole))
    return candidates


def _scored(request: SelectionRequest, number: int, whole: Whole) -> Candidate:
    """Scores of one kernel; what is damaged in its store is computed again."""
    plan = plan_selection(*_problem(request, _Work.of(request, number)))
    begun, show_progress = time.perf_counter(), None
    whole.expect(plan.seconds)
    progress = make_progress(show_progress)

    def scored() -> _Work:
        work = _Work.of(request, number)
        _carry_out(request, work, plan, progress, show_progress)
        return work

    store = _settings(request, number).store
    work, repairs = with_repairs([] if store is None else [store], scored)
    for text in repairs:
        progress.note(text)
    work.report.messages += repairs
    found = work.candidate(request, plan, time.perf_counter() - begun)
    if request.curve is None:
        return found
    return replace(found, parts=_scored_parts(request, request.curve, number, found, plan.plan.form, show_progress))


def _scored_parts(
    request: SelectionRequest,
    curve: LearningCurve,
    number: int,
    candidate: Candidate,
    form: Form,
    show_progress: bool | None,
) -> Array:
    """Scores of the parts of a learning curve, by fits of all λ that the folds have not given up."""
    settings, values = _settings(request, number), candidate.sheet.values
    kept, found = ~candidate.report.stopped, np.full((len(curve), *values.shape), np.nan)
    alphas = request.alphas[kept]
    for size in range(len(curve)):
        store = None if settings.store is None else f"{settings.store}-size-{size}"
        fits, parts = request.fit_request(replace(settings, store=store), float(alphas[0])), curve.of_size(size)
        sheet, report = _sheet(request, parts, len(alphas)), Report(len(alphas), len(parts))
        score_by_refits(fits, parts, alphas, sheet, report, show_progress, is_primal=form == "primal")
        for message in report.leave_out(sheet.values, alphas):
            warnings.warn(f"learning curve, size {size}: {message}", ConvergenceWarning, stacklevel=7)
        found[size, kept] = sheet.values
    return found


def _problem(request: SelectionRequest, work: _Work) -> tuple[Problem, FoldSizes, Resources]:
    """What the plan for one kernel depends on."""
    settings, sheet = work.settings, work.sheet
    fits = request.fit_request(settings, float(request.alphas[0]))
    problem = replace(fits.problem(), alphas=tuple(sorted(set(request.alphas.tolist()))))
    resources = detect(settings.memory_limit, settings.store, rows=request.rows.url)
    sizes = replace(
        request.sizes(settings),
        targets_together=not sheet.batches,
        refit=work.refit is not None,
        predicts=not sheet.takes_squares,
    )
    return with_spectrum(problem, request.rows), sizes, resources


def _carry_out(
    request: SelectionRequest,
    work: _Work,
    plan: SelectionPlan,
    progress: Progress,
    show_progress: bool | None,
) -> None:
    """Score one kernel."""
    settings, alphas, sheet, report = work.settings, work.alphas, work.sheet, work.report
    folds, fits, one = request.folds, request.fit_request(settings, float(alphas[0])), plan.plan
    if plan.method == "refits":
        score_by_refits(fits, folds, alphas, sheet, report, show_progress, is_primal=one.form == "primal")
        return
    targets = Targets(request.values, np.full(request.values.shape[1], alphas[0]))
    fields = {"folds": folds, "candidates": tuple(alphas.tolist())}
    data = SelectionData.of(targets, shared_fields(fits, one.problem) | fields)
    if data.fit_intercept:
        data = about_the_rows(data, settings.store)
    if plan.method == "primal":
        PrimalFolds(data, folds, progress, one.resources.local_threads).score(alphas, sheet)
        return
    with open_context(one, settings.store, progress) as context:
        if plan.method == "sweep":
            assert isinstance(one.chosen.how, Iterative)
            with in_terms_of_alpha(alphas, "dual", partial(scale_of, data, "dual")):
                sweep(
                    one.chosen.how,
                    data,
                    one,
                    context,
                    folds,
                    alphas,
                    sheet,
                    report,
                    race=request.race,
                    refit=work.refit,
                )
        else:
            assert isinstance(one.chosen.how, Direct)
            data = data.by_folds()
            score_by_factors(one.chosen.how, data, context, data.folds, alphas, sheet, report)
