"""The plan of a search, from its rows or from sizes alone."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dkrr.data import Rows
from dkrr.errors import InputError, PlanError
from dkrr.fitting.grids import (
    DECISIVE_SPEEDUP,
    Box,
    box_of,
    finufft_missing,
    grid_is_slower,
    is_worth_scanning,
    may_have_grid,
    try_dual_plan,
    with_fourier_features,
)
from dkrr.fitting.methods import make_plan
from dkrr.fitting.request_plans import with_spectrum
from dkrr.fitting.requests import Settings
from dkrr.fitting.score_plans import plan_scores, whole_plan, with_parts
from dkrr.kernels.fourier_grid import SERIES_ROUNDING, grid_columns
from dkrr.kernels.nonuniform import is_available
from dkrr.machine.measures import with_measured_kernel
from dkrr.planning import Plan
from dkrr.planning.problem import Problem
from dkrr.planning.reasons import Reason
from dkrr.planning.resources import Resources
from dkrr.planning.searches import NOTHING_LEFT, Optimising, SelectionPlan
from dkrr.planning.selection import FoldSizes, ScoringPlan
from dkrr.store.paths import resolved_place


def within_store(settings: Settings, name: str) -> Settings:
    """Settings with a store within that of `settings`, if there is one."""
    return settings if settings.store is None else replace(settings, store=f"{resolved_place(settings.store)}/{name}")


def search_plan(
    problems: Sequence[Problem],
    sizes: Sequence[FoldSizes],
    rows: Rows | None,
    resources: Resources,
    fractions: tuple[float, ...],
    tol: float | None,
    n_last: int = 1,
    optimising: Optimising | None = None,
    left: Mapping[str, Any] = NOTHING_LEFT,
) -> SelectionPlan:
    """Plan of a search among kernels.

    Parameters
    ----------
    problems : sequence of Problem
        As for `plan_scores`, without the spectrum; one for each kernel.
    sizes : sequence of FoldSizes
        Sizes of the folds, for each kernel.
    rows : Rows or None
        None: only the sizes of the problems are known.
    resources : Resources
    fractions : tuple of float
        Parts of the training rows for a learning curve.
    tol : float or None
        Accuracy of the last fit; None: there is none.
    n_last : int
        Most λ that the last fit has.
    optimising : Optimising, optional
    left : mapping, optional
        As for `whole_plan`.

    Raises
    ------
    InputError, PlanError
        As `plan_scores`.
    """
    plans = [scoring_plan(problem, one, rows, resources) for problem, one in zip(problems, sizes, strict=True)]
    plans = [with_parts(plan, fractions) if fractions else plan for plan in plans]
    return whole_plan(plans, tol, n_last, optimising, left)


def scoring_plan(problem: Problem, sizes: FoldSizes, rows: Rows | None, resources: Resources) -> ScoringPlan:
    """Plan of the scores of one kernel; with the sums of a Fourier grid where that takes less time than the dual form.

    Parameters
    ----------
    problem : Problem
        As for `plan_scores`, without the spectrum.
    """
    problem = with_measured_kernel(problem, rows)
    if rows is None:
        return plan_scores(problem, sizes, resources)
    grid: ScoringPlan | None = None
    reason: Reason | None = None
    if may_have_grid(problem) and not sizes.are_learned:
        dual = try_dual_plan(problem, lambda p: make_plan(p, resources))
        if is_worth_scanning(dual):
            box = box_of(rows, grid_columns(problem.kernel, problem.d))
            grid, reason = _on_grid(problem, sizes, resources, box)
            if grid is not None and (not isinstance(dual, Plan) or dual.seconds > DECISIVE_SPEEDUP * grid.seconds):
                return grid
    try:
        found = plan_scores(with_spectrum(problem, rows), sizes, resources)
    except (PlanError, InputError) as error:  # the primal form was asked for
        if reason is None:
            raise
        raise type(error)(f"{error}; {reason}") from error
    if grid is not None and grid.seconds < found.seconds:
        return grid
    return found if reason is None else replace(found, reasons=(*found.reasons, reason))


def _on_grid(problem: Problem, sizes: FoldSizes, resources: Resources, box: Box) -> tuple[ScoringPlan | None, Reason]:
    """Plan of scores on a Fourier grid, if there is one, and why another is taken instead."""
    gridded, reason = with_fourier_features(problem, box, SERIES_ROUNDING)
    if gridded is None:
        return None, reason
    try:
        grid = plan_scores(gridded, sizes, resources)
    except (PlanError, InputError) as error:
        return None, Reason("grid-refused", f"{reason} is not possible: {error}")
    if not is_available():
        return None, finufft_missing(reason, grid.seconds)
    return grid, grid_is_slower(reason, grid.seconds, box)
