"""Requests of selections, their plans, and the scores of every kernel with every λ.

Held-out errors come from a Cholesky factor for each λ, exact for leave-one-out and for folds that train on the rest;
from a fit of all λ for each fold, where nothing is shared between folds, or factors of their own take less time; or
from the other modules of this package.
"""

import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from dkrr.cluster import CombinedProgress, Progress, ThreadExecutor, make_progress
from dkrr.data import MemoryRows, Rows
from dkrr.errors import ConvergenceWarning, warn_inaccurate
from dkrr.fitting.context import Context, open_context
from dkrr.fitting.costs.details import Direct
from dkrr.fitting.data import TrainingData, shared_fields
from dkrr.fitting.gram import FactoredGram
from dkrr.fitting.iteration import watch_until
from dkrr.fitting.prediction import predict_in_memory
from dkrr.fitting.requests import DualStart, FitRequest, Settings, Targets
from dkrr.fitting.results import scale_of
from dkrr.fitting.run import fit
from dkrr.fitting.sampled import centre_linear_parts
from dkrr.fitting.search_plans import scoring_plan, search_plan, within_store
from dkrr.fitting.storage import with_repairs
from dkrr.kernels.columns import learns
from dkrr.kernels.kernel_features import is_drawn
from dkrr.linalg.giving_up import GivenUpError
from dkrr.linalg.held_out import HeldOutErrors
from dkrr.linalg.result import in_terms_of_alpha
from dkrr.machine.detection import detect
from dkrr.planning.iterations_first import GIVEN_UP
from dkrr.planning.problem import Problem
from dkrr.planning.resources import Resources
from dkrr.planning.searches import SelectionPlan, seconds_of_fit, seconds_of_scores
from dkrr.planning.selection import FoldSizes, ScoringPlan
from dkrr.selection.curve import LearningCurve
from dkrr.selection.fold_sums import PrimalFolds
from dkrr.selection.folds import Folds, SelectionData
from dkrr.selection.optimum import Search
from dkrr.selection.scores import Report, Score, ScoreSheet
from dkrr.selection.sweep import Refit, sweep
from dkrr.store.run_store import ENDED
from dkrr.text import Reason

Array = NDArray[np.float64]


@dataclass(frozen=True)
class SelectionRequest:
    """Checked arguments of a selection."""

    settings: Sequence[Settings]
    """Settings with each of the kernels."""
    rows: Rows
    values: Array
    """Targets, of shape (n, t)."""
    weights: Array | None
    """Sample weights, of shape (n,)."""
    alphas: Array
    """λ, in the order in which they were given."""
    folds: Folds
    score: Score
    tol: float
    """Relative residual of the systems of the folds."""
    is_vector: bool = False
    """Targets are given as a vector."""
    per_target: bool = False
    """Each target has its own λ."""
    race: bool = True
    """Whether to give up λ whose scores become worse."""
    keeps_predictions: bool = False
    curve: LearningCurve | None = None
    """Parts of the training rows that are fitted separately."""
    refit: bool = True
    """Whether all rows are fitted with the best candidate."""
    search: Search | None = None
    """Parameters to optimise from the best candidate on; None: none."""
    uncertainty: bool | Literal["intervals"] = False
    """State that the last fit keeps for standard deviations; see `Settings`."""
    interval_folds: Sequence[NDArray[np.intp]] = ()
    """Folds without which the last fit computes models as well."""

    def last_fit(self, direct_seconds: float = inf) -> Refit | None:
        """Collector of the full-data solutions, which become the last fit; None if it does not continue the scores."""
        tol = self.settings[0].tol if len(self.settings) == 1 else self.tol
        return Refit(tol, direct_seconds) if self.refit and self.search is None else None

    def fit_request(self, settings: Settings, alphas: Array | float) -> FitRequest:
        """Request of a fit to all rows."""
        each = np.full(self.values.shape[1], alphas, np.float64)
        return FitRequest(settings, self.rows, Targets(self.values, each), self.weights)

    def problem(self, number: int) -> Problem:
        """Problem of a fit to all rows with every λ, of the kernel with this number, to the residual of scores."""
        fits = self.fit_request(_settings(self, number), float(self.alphas[0]))
        return replace(fits.problem(), alphas=tuple(sorted(set(self.alphas.tolist()))))

    def sizes(self, settings: Settings) -> FoldSizes:
        """Sizes of the folds, for plans."""
        sheet = _sheet(self, self.folds, 0)
        return FoldSizes(
            n_folds=len(self.folds),
            is_loo=self.folds.is_loo,
            train_on_the_rest=self.folds.train_on_the_rest,
            n_training=self.folds.n_training,
            are_learned=is_drawn(settings.kernel) or learns(settings.kernel),
            targets_together=not sheet.batches,
            predicts=self.keeps_predictions or not sheet.takes_squares,
            refit=self.last_fit() is not None,
            races=self.race,
        )


Numbers = NDArray[np.intp]

MAX_RESIDUAL = 1e-7
"""Largest relative residual of the system of all rows with which a λ has scores: where the rows of one fold dominate
the matrix, squared errors were found to be off by up to 50 times as much."""


def score_by_factors(
    strategy: Direct,
    data: TrainingData,
    context: Context,
    folds: Folds,
    alphas: Array,
    sheet: ScoreSheet,
    report: Report,
) -> None:
    """Score every λ, one factorisation after another.

    Raises
    ------
    NotPositiveDefiniteError
        If K + λI is not positive definite; the message names λ.
    """
    matrix, kept = FactoredGram(data, strategy, context, data.dual_scale()), context.checkpoints
    for a, alpha in enumerate(alphas):
        found = None if kept is None else kept.kept(f"held-out-{a}")
        if found is None:
            with in_terms_of_alpha([float(alpha)], "dual", partial(scale_of, data, "dual")):
                predictions, residual = _predictions(matrix, data, context, folds, float(alpha), f"factor-{a}")
            if kept is not None and predictions:  # the factor is deleted: it is as large as K
                kept.keep(f"held-out-{a}", {"values": np.concatenate(predictions), "residual": np.array([[residual]])})
            matrix.release(f"factor-{a}")
        else:
            cuts = np.cumsum([len(rows) for rows in folds.test])[:-1]
            predictions, residual = np.split(found["values"], cuts), float(found["residual"][0, 0])
        for fold in range(report.n_folds):
            report.add_residual(a, fold, residual, MAX_RESIDUAL)
        for fold, values in enumerate(predictions):
            sheet.add_predictions(a, fold, values)


def _predictions(
    matrix: FactoredGram, data: TrainingData, context: Context, folds: Folds, alpha: float, group: str
) -> tuple[list[Array], float]:
    """Predictions of the rows that each fold holds out (all: leave-one-out), none if inaccurate; the true residual."""
    means, scale = data.target_means(), data.dual_scale()
    right_sides = data.dual_right_sides(np.arange(data.targets.shape[1]), means)
    constant = np.ascontiguousarray(right_sides[:, -1]) if data.fit_intercept else None
    if data.fit_intercept:
        right_sides = np.ascontiguousarray(right_sides[:, :-1])
    factor = matrix.systems.factor(group, data.dual_shift(alpha), f"λ = {alpha:g}").matrix
    with ThreadExecutor(context.threads) as executor, context.progress.stage("held-out errors", 1.0):
        left_out = HeldOutErrors(factor, right_sides, constant, executor, context.progress)
        residual = matrix.residual(data.dual_shift(alpha), right_sides, left_out.solution_without_intercept)
        if not residual <= MAX_RESIDUAL:
            return [], residual
        everywhere = np.arange(data.n)
        held_out, errors = (
            ([everywhere], [left_out.of_rows()]) if folds.is_loo else (list(folds.test), left_out.of_folds(folds.test))
        )
        found = []
        for rows, scaled in zip(held_out, errors, strict=True):
            c = np.ones(len(rows)) if scale is None else scale[rows]
            with np.errstate(divide="ignore", invalid="ignore"):
                values = data.targets[rows] - scaled / c[:, None]
            if (c == 0).any():
                values[c == 0] = _of_weight_zero(matrix, data, left_out, rows, scaled, means, is_loo=folds.is_loo)
            found.append(values)
    return found, residual


def _of_weight_zero(
    matrix: FactoredGram,
    data: TrainingData,
    left_out: HeldOutErrors,
    rows: Numbers,
    errors: Array,
    means: Array,
    *,
    is_loo: bool,
) -> Array:
    """Predictions of those of some held-out rows that have weight 0, and so no equation."""
    scale = data.dual_scale()
    assert scale is not None
    if is_loo:  # a fit without a row of weight 0 is the fit of all rows
        solution, constants = left_out.solution, left_out.constants
    else:
        solution, constants = left_out.without(rows, errors)
    coef = solution * scale[:, None]
    return matrix.products_of(rows[scale[rows] == 0], coef) + constants + means


LEAST_FACTOR_SECONDS = 1.0
"""Time of factors at least, as a sweep is compared with them: what is done in less is not worth a change."""
FRACTION_OF_TOL = 0.1
"""Tolerance in primal form over the one that scores ask for: held-out errors may be a tenth of the targets."""


def score_by_refits(
    request: FitRequest,
    folds: Folds,
    alphas: Array,
    sheet: ScoreSheet,
    report: Report,
    progress: bool | None,
    *,
    is_primal: bool,
) -> None:
    """Score every λ by fits to the training rows of each fold, all λ as separate targets.

    Rows that are not in memory stay where they are in primal form, the others with weight 0; else the training rows are
    read, where the cost of a fit depends on their number more than on reading them.
    """
    targets = request.outputs
    assert isinstance(targets, Targets)
    t = targets.values.shape[1]
    if is_primal:
        request = request.with_settings(tol=FRACTION_OF_TOL * request.settings.tol)
    for f in range(len(folds)):
        with warnings.catch_warnings():  # the report says which λ were not solved, of all folds together
            warnings.simplefilter("ignore", ConvergenceWarning)
            fitted = fit(_of_training_rows(request, folds, f, alphas, is_primal=is_primal), progress)
        (model,) = fitted.models
        predictions = predict_in_memory(model.function, MemoryRows(_taken(request, folds.test[f], folds.training(f))))
        report.add_fit(f, model.result, request.settings.tol)
        for a in range(len(alphas)):
            sheet.add_predictions(a, f, predictions[:, a * t : (a + 1) * t])


def _taken(request: FitRequest, rows: Numbers, training: Numbers) -> Any:
    """Some rows; of a Gram matrix with the columns of the training rows."""
    taken = request.rows.take(rows)
    return taken[:, training] if request.settings.kernel.is_precomputed else taken


def _of_training_rows(request: FitRequest, folds: Folds, fold: int, alphas: Array, *, is_primal: bool) -> FitRequest:
    targets, settings = request.outputs, request.settings
    assert isinstance(targets, Targets)
    if settings.store is not None:
        settings = replace(settings, store=f"{settings.store}-fold-{fold}")
    request = replace(request, settings=settings)
    repeated, t = np.repeat(alphas, targets.values.shape[1]), len(alphas)
    training, weights = folds.training(fold), request.weights
    if isinstance(request.rows, MemoryRows) or is_drawn(settings.kernel) or not is_primal:
        outputs = Targets(np.tile(targets.values[training], t), repeated)
        weights = None if weights is None else weights[training]
        return replace(request, rows=MemoryRows(_taken(request, training, training)), outputs=outputs, weights=weights)
    # Rows that are not in memory stay where they are; those of weight 0 leave no trace where nothing is drawn of them.
    mask = np.zeros(folds.n)
    mask[training] = 1.0 if weights is None else weights[training]
    return replace(request, outputs=Targets(np.tile(targets.values, t), repeated), weights=mask)


@dataclass(frozen=True)
class Candidate:
    """Scores of one kernel with every λ."""

    plan: ScoringPlan | None
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
class _KernelScoring:
    """Scoring of one kernel for all λ: its settings, data and score sheet."""

    settings: Settings
    """Its settings, with the accuracy of scores and its own store."""
    alphas: Array
    """λ in descending order."""
    sheet: ScoreSheet
    report: Report
    refit: Refit | None
    """Takes the solutions for all rows."""

    @classmethod
    def of(cls, request: SelectionRequest, number: int, plan: ScoringPlan) -> Self:
        """Work on the kernel with this number."""
        order, folds = _descending(request), request.folds
        sheet = _sheet(request, folds, len(order), keeps_predictions=request.keeps_predictions)
        report = Report(len(order), 1 if folds.is_loo else len(folds))
        return cls(
            _settings(request, number), request.alphas[order], sheet, report, request.last_fit(plan.direct_seconds)
        )

    def candidate(self, request: SelectionRequest, plan: ScoringPlan, seconds: float) -> Candidate:
        """The scores, with the λ in the order of the request; warns of what they lack."""
        self.report.seconds = seconds
        for message in self.report.leave_out(self.sheet.values, self.alphas):
            warn_inaccurate(message, stacklevel=7)
        back = np.argsort(_descending(request), kind="stable")
        start = None if self.refit is None else self.refit.start(request.values.shape[1])
        return Candidate(plan, self.sheet.in_order(back), self.report.in_order(back), start=start)


def _settings(request: SelectionRequest, number: int) -> Settings:
    """Settings of the kernel with this number, with the accuracy of scores and its own store."""
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
    )


def _descending(request: SelectionRequest) -> Numbers:
    """Order of the λ from large to small."""
    return np.argsort(-request.alphas, kind="stable")


def planned(request: SelectionRequest) -> SelectionPlan:
    """Plan of all of it."""
    settings = request.settings
    fractions = () if request.curve is None else request.curve.fractions
    optimising = None
    if request.search is not None:
        fits = request.fit_request(replace(settings[0], tol=request.tol, store=None), float(request.alphas[0]))
        optimising = request.search.planned(fits, request.sizes(settings[0]), _resources(request, 0))
    return search_plan(
        [request.problem(k) for k in range(len(settings))],
        [request.sizes(one) for one in settings],
        request.rows,
        _resources(request, 0),
        fractions,
        settings[0].tol if request.refit else None,
        request.values.shape[1] if request.per_target else 1,
        optimising,
        {"uncertainty": request.uncertainty is not False, "interval_folds": len(request.interval_folds)},
    )


def _resources(request: SelectionRequest, number: int) -> Resources:
    settings = _settings(request, number)
    return detect(settings.memory_limit, settings.store, rows=request.rows.url)


def all_scored(request: SelectionRequest, plan: SelectionPlan, whole: CombinedProgress) -> list[Candidate]:
    """Scores of every kernel, one after the other, each a part of the whole that is displayed."""
    return [_scored(request, number, one, whole) for number, one in enumerate(plan.kernels)]


def _scored(request: SelectionRequest, number: int, plan: ScoringPlan, whole: CombinedProgress) -> Candidate:
    """Scores of one kernel; what is damaged in its store is computed again."""
    begun, show_progress = time.perf_counter(), None
    with whole.part(seconds_of_scores(plan).expected):
        progress = make_progress(show_progress)
        plan = _of_now(request, number, plan, progress)

        def scored() -> _KernelScoring:
            work = _KernelScoring.of(request, number, plan)
            _carry_out(request, work, plan, progress, show_progress)
            return work

        store, given_up = _settings(request, number).store, ""
        try:
            work, repairs = with_repairs([] if store is None else [store], scored)
        except GivenUpError as error:
            given_up = str(error)
        if given_up:  # outside of the handler, which keeps in memory what the iterations hold
            plan = plan.with_factors(Reason(GIVEN_UP, given_up))
            work, repairs = scored(), (given_up,)
        for text in repairs:
            progress.note(text)
        work.report.messages += repairs
        found = work.candidate(request, plan, time.perf_counter() - begun)
    if request.curve is None:
        return found
    return replace(found, parts=_scored_parts(request, request.curve, number, found, plan, whole))


def _of_now(request: SelectionRequest, number: int, plan: ScoringPlan, progress: Progress) -> ScoringPlan:
    """The plan of a kernel, or another one where the kernels before it have left too little memory or disk for it."""
    then, now = plan.plan.resources, _resources(request, number)
    held = max(0, now.local_baseline_bytes - then.local_baseline_bytes)
    is_full = now.disk_free_bytes is not None and plan.plan.disk_bytes > now.disk_free_bytes
    if number == 0 or (plan.peak_bytes + held <= plan.limit_bytes and not is_full):
        return plan
    found = scoring_plan(request.problem(number), request.sizes(request.settings[number]), request.rows, now)
    progress.note(f"kernel {number} (counted from 0) is planned again, with what is free now: {found.summary()}")
    return found


def _scored_parts(
    request: SelectionRequest,
    curve: LearningCurve,
    number: int,
    candidate: Candidate,
    plan: ScoringPlan,
    whole: CombinedProgress,
) -> Array:
    """Scores of the parts of a learning curve, by fits of all λ that the folds have not given up."""
    settings, values = _settings(request, number), candidate.sheet.values
    kept, found = ~candidate.report.stopped, np.full((len(curve), *values.shape), np.nan)
    alphas, is_primal = request.alphas[kept], plan.plan.form == "primal"
    for size in range(len(curve)):
        store = None if settings.store is None else f"{settings.store}-size-{size}"
        fits, parts = request.fit_request(replace(settings, store=store), float(alphas[0])), curve.of_size(size)
        sheet, report = _sheet(request, parts, len(alphas)), Report(len(alphas), len(parts))
        seconds = seconds_of_fit(plan.parts[size]).expected * len(parts) if plan.parts else 0.0
        with whole.part(seconds):
            score_by_refits(fits, parts, alphas, sheet, report, None, is_primal=is_primal)
        for message in report.leave_out(sheet.values, alphas):
            warn_inaccurate(f"learning curve, size {size}: {message}", stacklevel=7)
        found[size, kept] = sheet.values
    return found


def _carry_out(
    request: SelectionRequest,
    work: _KernelScoring,
    plan: ScoringPlan,
    progress: Progress,
    show_progress: bool | None,
) -> None:
    """Score one kernel."""
    settings, alphas, sheet, report = work.settings, work.alphas, work.sheet, work.report
    folds, fits, one = request.folds, request.fit_request(settings, float(alphas[0])), plan.plan
    if plan.method == "refits":
        fits = fits.with_settings(solver=one.problem.solver, form=one.problem.form)
        score_by_refits(fits, folds, alphas, sheet, report, show_progress, is_primal=one.form == "primal")
        return
    targets = Targets(request.values, np.full(request.values.shape[1], alphas[0]))
    fields = {"folds": folds, "candidates": tuple(alphas.tolist())}
    data = SelectionData.of(targets, shared_fields(fits, one.priced) | fields)
    data = centre_linear_parts(data, settings.store)
    if plan.method == "primal":
        details, threads = one.chosen.details, one.resources.local_threads
        rank_limit = details.rank_limit if one.chosen.method.folds_by == "grid" else 0
        PrimalFolds(data, folds, progress, threads, rank_limit).score(alphas, sheet, report)
        return
    with open_context(one, settings.store, progress) as context:
        if plan.method == "sweep":
            if plan.otherwise is not None:
                context.watch = watch_until(one, max(plan.otherwise.seconds, LEAST_FACTOR_SECONDS))
            with in_terms_of_alpha(alphas, "dual", partial(scale_of, data, "dual")):
                sweep(
                    one.chosen.details,
                    data,
                    one,
                    context,
                    folds,
                    alphas,
                    sheet,
                    report,
                    race=request.race,
                    refit=work.refit if plan.sizes.refit else None,
                )
        else:
            data = data.by_folds()
            score_by_factors(one.chosen.details, data, context, data.folds, alphas, sheet, report)
        context.storage.note_stage(ENDED)
