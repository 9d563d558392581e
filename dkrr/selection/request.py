"""What a selection is asked for."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dkrr.data import Rows
from dkrr.fitting.requests import FitRequest, Settings, Targets
from dkrr.fitting.sampled import is_drawn
from dkrr.planning.selection import FoldSizes
from dkrr.selection.curve import LearningCurve
from dkrr.selection.folds import Folds
from dkrr.selection.optimum import Search
from dkrr.selection.refit import Refit
from dkrr.selection.scores import Score, in_range
from dkrr.store.paths import resolved_place

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
    """Each target has a λ of its own."""
    race: bool = True
    """Whether to give up λ whose scores become worse."""
    keeps_predictions: bool = False
    curve: LearningCurve | None = None
    """Parts of the training rows that have fits of their own."""
    refit: bool = True
    """Whether all rows are fitted with the best candidate."""
    search: Search | None = None
    """What is optimised further from the best candidate; None: nothing."""
    units: Array | None = None
    """Powers of two that the targets have been divided by, of shape (t,); None: by nothing."""

    def in_range(self) -> Self:
        """The same with targets whose squares neither overflow nor underflow, for everything but the last fit."""
        values, units = in_range(self.values, self.score, per_target=self.per_target)
        return self if units is None else replace(self, values=values, units=units)

    def last_fit(self) -> Refit | None:
        """What takes the solutions for all rows of one kernel: of the only one, they are those of the last fit."""
        tol = self.settings[0].tol if len(self.settings) == 1 else self.tol
        return Refit(tol) if self.refit and self.search is None else None

    def fit_request(self, settings: Settings, alphas: Array | float) -> FitRequest:
        """Request of a fit to all rows."""
        each = np.full(self.values.shape[1], alphas, np.float64)
        return FitRequest(settings, self.rows, Targets(self.values, each), self.weights)

    def sizes(self, settings: Settings) -> FoldSizes:
        """What plans depend on of the folds."""
        return FoldSizes(
            n_folds=len(self.folds),
            is_loo=self.folds.is_loo,
            train_on_the_rest=self.folds.train_on_the_rest,
            are_learned=is_drawn(settings.kernel),
        )


def within_store(settings: Settings, name: str) -> Settings:
    """The same settings with a store within theirs, if they have one."""
    return settings if settings.store is None else replace(settings, store=f"{resolved_place(settings.store)}/{name}")
