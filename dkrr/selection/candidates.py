"""Choose λ and the kernel for a request: score every candidate, refine the best one, and fit all rows."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from time import perf_counter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dkrr.cluster import CombinedProgress
from dkrr.cluster.process import graceful_termination
from dkrr.errors import InputError
from dkrr.fitting.context import QUIET_SECONDS
from dkrr.fitting.posteriors import Posteriors
from dkrr.fitting.request_plans import plan_of
from dkrr.fitting.requests import FitRequest, Targets
from dkrr.fitting.run import Fit, fit
from dkrr.fitting.score_plans import continuing, refuse_gradient
from dkrr.fitting.search_plans import within_store
from dkrr.machine.detection import detect
from dkrr.planning.searches import SelectionPlan
from dkrr.selection.optimum import Optimum, Search, optimise
from dkrr.selection.scores import negative_squared_error
from dkrr.selection.scoring import Candidate, SelectionRequest, all_scored, planned
from dkrr.store.lock import owned
from dkrr.store.paths import resolved_place

Array = NDArray[np.float64]
Numbers = NDArray[np.intp]


class LastFit(NamedTuple):
    """Fit of all rows with the best candidate."""

    request: FitRequest
    fit: Fit
    seconds: float


@dataclass(frozen=True)
class Selected:
    """Chosen kernel and λ, what they were chosen by, and the fit with them."""

    candidates: Sequence[Candidate]
    kernel: int
    """Number of the kernel."""
    alphas: Numbers
    """Number of the λ of every target, of shape (t,)."""
    score: float | Array
    """Best score; of every target, (t,), where each has its own λ."""
    predictions: Array | None
    """Held-out predictions of the chosen λ, of shape (n, t), if they are kept."""
    optimum: Optimum | None = None
    """λ and kernel that took the place of the best candidate's."""
    fit: LastFit | None = None
    plan: SelectionPlan | None = None
    """Plan of all of it, with what was done for scores whose plan has changed."""


def select(request: SelectionRequest, show_progress: bool | None) -> Selected:
    """Choose the kernel and λ with the best mean score, and fit all rows with them.

    Parameters
    ----------
    request : SelectionRequest
    show_progress : bool or None
        As in `make_progress`.

    Raises
    ------
    DkrrError
        See dkrr.errors.
    """
    request.folds.check_weights(request.weights)
    if request.search is not None:
        _check_search(request, request.search)
    store = request.settings[0].store
    with graceful_termination(), nullcontext() if store is None else owned(resolved_place(store)):
        return _selected(request, show_progress)


def _selected(request: SelectionRequest, show_progress: bool | None) -> Selected:
    plan = planned(request)
    steps = dict(plan.steps())  # those after the scores are there once
    with displayed(plan, show_progress) as whole:
        candidates = all_scored(request, plan, whole)
        kernels = tuple(one.plan or first for one, first in zip(candidates, plan.kernels, strict=True))
        found = replace(best_of(candidates, request.values.shape[1]), plan=replace(plan, kernels=kernels))
        settings, alphas = request.settings[found.kernel], request.alphas[found.alphas]
        if request.search is not None:
            with whole.part(steps["optimum"].expected):
                found = _optimised(request, request.search, found, show_progress)
            assert found.optimum is not None
            settings, alphas = replace(settings, kernel=found.optimum.kernel), np.full(len(alphas), found.optimum.alpha)
        if not request.refit:
            return found
        settings = replace(within_store(settings, "fit"), uncertainty=request.uncertainty)
        last = replace(request.fit_request(settings, alphas), folds=request.interval_folds, posteriors=Posteriors)
        begun = perf_counter()
        with whole.part(steps["last fit"].expected):
            fitted = fit(_continuing(last, found.candidates[found.kernel]), show_progress)
    return replace(found, fit=LastFit(last, fitted.noted(_of_scores(candidates)), perf_counter() - begun))


def displayed(plan: SelectionPlan, show_progress: bool | None) -> CombinedProgress:
    """Display of a search, which begins with its plan; None by default where it should be short."""
    is_short = show_progress is None and plan.seconds_range[1] < 2 * QUIET_SECONDS
    seconds = sum(step.expected for _, step in plan.steps())
    return CombinedProgress("search", seconds, False if is_short else show_progress, plan.beginning())


def _of_scores(candidates: Sequence[Candidate]) -> tuple[str, ...]:
    """Distinct messages of the runs of the scores."""
    return tuple(dict.fromkeys(f"scores: {text}" for one in candidates for text in one.report.messages))


def _continuing(last: FitRequest, best: Candidate) -> FitRequest:
    """The last fit by conjugate gradient, from the solution that the run of the folds has."""
    assert isinstance(last.outputs, Targets)
    start, scores = best.start, best.plan
    # Of λ with the same score the run solves for the largest, and the first candidate is chosen.
    if start is None or scores is None or (start.alphas != last.outputs.alphas).any():
        return last
    if last.settings.uncertainty is not False and plan_of(last).chosen.keeps_factors:
        return last
    problem = continuing(last.problem(), scores)
    return replace(last.with_settings(solver=problem.solver, form=problem.form), start=start, because=problem.because)


def best_of(candidates: Sequence[Candidate], n_targets: int) -> Selected:
    """Best kernel and λ by mean score; the kernel is the best for all targets together."""
    kernel, alphas, scores = _best(candidates, n_targets)
    sheet = candidates[kernel].sheet
    score = scores if sheet.per_target else float(scores[0])
    return Selected(candidates, kernel, alphas, score, sheet.predictions(alphas))


def _check_search(request: SelectionRequest, search: Search) -> None:
    """Refuse, before any work, what has no derivatives."""
    if request.per_target:
        raise InputError(
            "alpha_per_target is True, and optimize seeks one λ for all targets; expected alpha_per_target=False, or "
            "optimize=None"
        )
    if request.score is not negative_squared_error:
        raise InputError(
            "scoring is given, and optimize makes the squared error smaller; expected scoring=None, or optimize=None"
        )
    for settings in request.settings:
        fits = request.fit_request(replace(settings, store=None), float(request.alphas[0]))
        search.check(fits, request.alphas)
        refuse_gradient(fits.problem(), request.sizes(settings), detect(settings.memory_limit, settings.store))


def _optimised(request: SelectionRequest, search: Search, found: Selected, show_progress: bool | None) -> Selected:
    """The best candidate with λ and lengths optimised."""
    settings = request.settings[found.kernel]
    loose = replace(settings, tol=request.tol, store=None)
    fits, store = request.fit_request(loose, request.alphas[found.alphas]), within_store(settings, "optimum").store
    resources = detect(settings.memory_limit, settings.store, rows=request.rows.url)
    optimum = optimise(search, fits, request.folds, request.sizes(settings), resources, store, show_progress)
    predictions = None
    if request.keeps_predictions:
        predictions = request.folds.mean_predictions(optimum.predictions, request.values.shape)
    return replace(found, score=optimum.score, predictions=predictions, optimum=optimum)


def all_candidates_failed_error(*, is_unsolved: bool) -> InputError:
    """Error where no candidate has a score, for some since their systems were not solved."""
    if is_unsolved:
        return InputError(
            "no candidate has a score, since their systems were not solved to the accuracy that scores need (the "
            "warnings say how far they were); expected larger alphas, a larger max_iter, or another solver"
        )
    return InputError(
        "the scores of all candidates are NaN or -inf; expected numbers: give another scoring, scale y towards 1, or "
        "give folds of more rows"
    )


def _best(candidates: Sequence[Candidate], n_targets: int) -> tuple[int, Numbers, Array]:
    """Number of the kernel and of the λ of every target, and the scores, of shape (t or 1,)."""
    means = np.stack([c.means for c in candidates])  # kernels × λ × targets
    if (np.isnan(means) | np.isneginf(means)).all(axis=(0, 1)).any():  # the first would be as good as any
        raise all_candidates_failed_error(is_unsolved=any(c.report.unsolved.any() for c in candidates))
    found = np.where(np.isnan(means), -np.inf, means)
    sheet = candidates[0].sheet
    kernel = int(np.argmax(found.max(axis=1).mean(axis=1)))
    chosen = np.argmax(found[kernel], axis=0)
    scores = found[kernel][chosen, np.arange(len(chosen))]
    return kernel, chosen if sheet.per_target else np.full(n_targets, chosen[0]), scores
