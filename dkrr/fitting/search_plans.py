"""The plan of a search, from its rows or from sizes alone."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from dkrr.data import Rows
from dkrr.errors import InputError, PlanError
from dkrr.fitting.grids import GridInBox, grid_in_box, may_have_grid
from dkrr.fitting.request_plans import Choice, settled
from dkrr.fitting.requests import Settings
from dkrr.fitting.score_plans import plan_scores, whole_plan, with_parts
from dkrr.kernels.fourier_grid import SERIES_ROUNDING
from dkrr.kernels.nonuniform import is_available
from dkrr.planning.problem import Problem
from dkrr.planning.resources import Resources
from dkrr.planning.searches import NOTHING_LEFT, Optimising, SelectionPlan
from dkrr.planning.selection import FoldSizes, ScoringPlan
from dkrr.store.paths import resolved_place
from dkrr.text import Reason


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
    return settled(ScoresChoice(problem, resources, sizes), rows)


class ScoresChoice(Choice[ScoringPlan]):
    """Choice of the scores of one kernel."""

    def __init__(self, problem: Problem, resources: Resources, sizes: FoldSizes) -> None:
        super().__init__(problem, resources)
        self._sizes = sizes

    def again(self, problem: Problem, resources: Resources) -> "ScoresChoice":
        return ScoresChoice(problem, resources, self._sizes)

    @cached_property
    def grid(self) -> GridInBox | None:
        p = self.problem
        return None if p.facts.box is None or not may_have_grid(p) else grid_in_box(p, SERIES_ROUNDING)

    @cached_property
    def on_grid(self) -> ScoringPlan | Reason:
        grid, p = self.grid, self.problem
        assert grid is not None
        if grid.features is None:
            return grid.text
        primal = p.with_form("primal", grid.chosen(p.n))
        try:
            found = plan_scores(primal, self._sizes, self.resources, grid.features)
        except (PlanError, InputError) as error:
            return grid.refused(error)
        return found if is_available() else grid.finufft_missing(found.seconds)

    def next_fact(self, rows: Rows | None) -> Choice[ScoringPlan] | None:
        if not self._sizes.are_learned and may_have_grid(self.problem):
            if (known := self._with_box(rows)) is not None:
                return known
            if self.is_decided:
                return None
        return self._with_spectrum(rows)

    def best(self) -> ScoringPlan:
        grid = self.grid
        if grid is None:
            return plan_scores(self.problem, self._sizes, self.resources)
        on_grid = self.on_grid
        if isinstance(on_grid, ScoringPlan) and self.is_decided:
            return on_grid
        try:
            found = plan_scores(self.problem, self._sizes, self.resources)
        except (PlanError, InputError) as error:  # the primal form was asked for
            if isinstance(on_grid, ScoringPlan):
                return on_grid
            raise type(error)(f"{error}; {on_grid}") from error
        if isinstance(on_grid, ScoringPlan):
            if on_grid.seconds < found.seconds:
                return on_grid
            on_grid = grid.is_slower(on_grid.seconds)
        return replace(found, reasons=(*found.reasons, on_grid))
