"""Scores of every kernel with every λ: the plan, and what it takes."""

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import log
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dkrr.errors import ConvergenceWarning
from dkrr.fitting.context import Context, open_context
from dkrr.fitting.data import TrainingData, shared_fields
from dkrr.fitting.gram import MultipliedGram
from dkrr.fitting.repair import with_repairs
from dkrr.fitting.run import QUIET_SECONDS
from dkrr.fitting.sampled import about_the_rows
from dkrr.kernels.families import families
from dkrr.machine import detect
from dkrr.planning import Direct, Iterative, Problem, Resources
from dkrr.planning.selection import FoldSizes, SelectionPlan, plan_selection
from dkrr.planning.several_kernels import plan_together
from dkrr.requests import DualStart, Settings, Targets, with_spectrum
from dkrr.runtime import Progress, make_progress
from dkrr.selection.data import SelectionData
from dkrr.selection.factors import score_by_factors
from dkrr.selection.primal import PrimalFolds
from dkrr.selection.refit import Refit
from dkrr.selection.refits import score_by_refits
from dkrr.selection.report import Report
from dkrr.selection.request import SelectionRequest, within_store
from dkrr.selection.scores import ScoreSheet
from dkrr.selection.sweep import sweep
from dkrr.selection.together import OneOfSeveral, Together

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
    all_scores: Array
    """Scores of the folds, and behind them those of a learning curve; of shape (n_alphas, n_sets, t or 1)."""
    start: DualStart | None = None
    """Solution for all rows with the best λ of this kernel, where the run has solved for it."""

    @property
    def means(self) -> Array:
        """Mean scores of every λ, of shape (n_alphas, t or 1)."""
        return self.sheet.means()


@dataclass
class _Work:
    """What scores one kernel with every λ."""

    number: int
    """Number of the kernel."""
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
        folds = request.folds if request.curve is None else request.curve.with_folds()
        order = _descending(request)
        loose = replace(_settings(request, number), tol=request.tol)
        sheet = ScoreSheet(
            request.score,
            request.values,
            request.weights,
            folds,
            len(order),
            is_vector=request.is_vector,
            per_target=request.per_target,
            keeps_predictions=request.keeps_predictions,
        )
        report = Report(len(order), 1 if folds.is_loo else len(folds))
        return cls(number, loose, request.alphas[order], sheet, report, request.last_fit())

    def candidate(self, request: SelectionRequest, plan: SelectionPlan, seconds: float) -> Candidate:
        """The scores, with the λ in the order of the request; warns of what they lack."""
        self.report.seconds = seconds
        for message in _shortfalls(self.report, self.alphas):
            warnings.warn(message, ConvergenceWarning, stacklevel=7)
        back = np.argsort(_descending(request), kind="stable")
        found = self.sheet.in_order(back)
        start = None if self.refit is None else self.refit.start(request.values.shape[1])
        return Candidate(plan, found.part(request.folds), self.report.in_order(back), found.values, start)


def _settings(request: SelectionRequest, number: int) -> Settings:
    """Settings of the kernel with this number, with a store of its own."""
    return within_store(request.settings[number], f"kernel-{number}")


def _descending(request: SelectionRequest) -> Numbers:
    """Order of the λ from large to small."""
    return np.argsort(-request.alphas, kind="stable")


def all_scored(request: SelectionRequest, show_progress: bool | None) -> list[Candidate]:
    """Scores of every kernel, in runs of one kernel, or of several that share work."""
    found = dict[int, Candidate]()
    for numbers in families([settings.kernel for settings in request.settings], request.rows.shape[1]):
        problems = [_problem(request, _Work.of(request, number)) for number in numbers]
        plans = [plan_selection(*problem) for problem in problems]
        runs = [([k], [plan]) for k, plan in enumerate(plans)]
        if len(numbers) > 1:
            _, sizes, resources = problems[0]
            runs = plan_together([problem for problem, _, _ in problems], plans, sizes, resources)
        for some, together in runs:
            found |= _scored(request, [numbers[k] for k in some], together, show_progress)
    return [found[number] for number in range(len(request.settings))]


def _scored(
    request: SelectionRequest, numbers: Sequence[int], plans: Sequence[SelectionPlan], show_progress: bool | None
) -> dict[int, Candidate]:
    """Scores of kernels in one run, by a plan for each; what is damaged in their stores is computed again."""
    begun = time.perf_counter()
    progress = _progress_of(sum(plan.seconds for plan in plans), show_progress)

    def scored() -> list[_Work]:
        works = [_Work.of(request, number) for number in numbers]
        if len(works) == 1:
            _carry_out(request, works[0], plans[0], progress, show_progress)
        else:
            _carry_out_together(request, works, plans, progress)
        return works

    stores = [store for number in numbers if (store := _settings(request, number).store) is not None]
    works, repairs = with_repairs(stores, scored)
    for text in repairs:
        progress.note(text)
    each = (time.perf_counter() - begun) / len(works)  # the time is divided equally
    found = dict[int, Candidate]()
    for work, plan in zip(works, plans, strict=True):
        work.report.messages += repairs
        found[work.number] = work.candidate(request, plan, each)
    return found


def _carry_out_together(
    request: SelectionRequest, works: Sequence[_Work], plans: Sequence[SelectionPlan], progress: Progress
) -> None:
    """Score kernels whose tiles are formed together."""
    together = Together(len(works))

    def sweep_of(k: int) -> Callable[[], None]:
        own = OneOfSeveral(progress, "conjugate gradient")
        return lambda: _carry_out(request, works[k], plans[k], own, False, partial(together.matrix, k))

    with progress.stage("conjugate gradient", -len(works) * log(request.tol), detail=f"{len(works)} kernels"):
        together.run([sweep_of(k) for k in range(len(works))])


def _progress_of(seconds: float, show: bool | None) -> Progress:
    return make_progress(False if show is None and seconds < QUIET_SECONDS else show)


def _shortfalls(report: Report, alphas: Array) -> Iterator[str]:
    """What the scores lack in accuracy."""
    yield from report.left_out
    reached = np.nan_to_num(report.residuals.max(axis=1))
    late = np.flatnonzero((report.residuals > report.wanted).any(axis=1) & ~report.stopped)
    if len(late):
        yield (
            f"scores of alpha = {alphas[late[0]]:g} are from a true relative residual of {reached[late].max():.1e}, "
            f"where {report.wanted[late].min():.1e} is needed; expected a larger alpha, or a larger max_iter"
        )


def _problem(request: SelectionRequest, work: _Work) -> tuple[Problem, FoldSizes, Resources]:
    """What the plan for one kernel depends on."""
    settings, sheet = work.settings, work.sheet
    fits = request.fit_request(settings, float(request.alphas[0]))
    problem = replace(fits.problem(), alphas=tuple(sorted(set(request.alphas.tolist()))))
    resources = detect(settings.memory_limit, settings.store, rows=request.rows.stored_at)
    sizes = replace(
        request.sizes(settings),
        targets_together=not sheet.batches,
        curve=() if request.curve is None else request.curve.fractions,
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
    matrix_of: Callable[[TrainingData, Iterative, Context], MultipliedGram] | None = None,
) -> None:
    """Score one kernel; `matrix_of` makes its Gram matrix where the products are those of several."""
    settings, alphas, sheet, report = work.settings, work.alphas, work.sheet, work.report
    folds, fits = request.folds, request.fit_request(settings, float(alphas[0]))
    sets = folds if request.curve is None else request.curve.with_folds()
    in_run = folds if plan.fits_parts else sets
    if plan.method == "refits":
        score_by_refits(fits, sets, alphas, sheet, report, show_progress, range(len(sets)))
        return
    one = plan.plan
    targets = Targets(request.values, np.full(request.values.shape[1], alphas[0]))
    fields = {"folds": in_run if plan.method == "sweep" else folds, "candidates": tuple(alphas.tolist())}
    data = SelectionData.of(targets, shared_fields(fits, one) | fields)
    if data.fit_intercept:
        data = about_the_rows(data, settings.store)
    if plan.method == "primal":
        threads = one.resources.local_threads
        PrimalFolds(data, folds, progress, threads).score(alphas, sheet)
        for size in range(len(request.curve or ())):
            assert request.curve is not None
            parts = request.curve.of_size(size)
            PrimalFolds(data, parts, progress, threads).score(alphas, sheet.part(parts, len(folds) * (1 + size)))
        return
    with open_context(one, settings.store, progress) as context:
        if plan.method == "sweep":
            assert isinstance(one.chosen, Iterative)
            matrix = None if matrix_of is None else matrix_of(data, one.chosen, context)
            sweep(
                one.chosen,
                data,
                one,
                context,
                in_run,
                alphas,
                sheet,
                report,
                race=request.race,
                refit=work.refit,
                matrix=matrix,
            )
        else:
            assert isinstance(one.chosen, Direct)
            data = data.by_folds()
            score_by_factors(one.chosen, data, context, data.folds, alphas, sheet, report)
    if plan.fits_parts:  # λ that the folds have given up are the last ones
        kept = alphas[: 1 + np.flatnonzero(~report.stopped)[-1]]
        score_by_refits(fits, sets, kept, sheet, report, show_progress, range(len(folds), len(sets)))
