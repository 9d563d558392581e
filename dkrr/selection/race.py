"""λ that have lost, before their columns have converged: what is known of scores along the way."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dkrr.linalg.operator import column_norms
from dkrr.linalg.training_sets import TrainingSetOperator
from dkrr.selection.fold_systems import FoldSystems
from dkrr.solvers.conjugate_gradient import Iteration
from dkrr.solvers.iteration_state import State

Array = NDArray[np.float64]
Numbers = NDArray[np.intp]

RISES = 2
"""Times in a row that scores must become worse, from one λ to the next smaller one, before the rest is given up."""
MOST_RESIDUAL = 0.3
"""Relative residual from which on scores are computed; see EARLY_ERROR."""
STOPPED_RESIDUAL = 1e-2
"""Largest true residual with which λ that were given up still have scores."""
EARLY_ERROR = 0.4
"""Part of the error of held-out rows that a residual may change, up to which scores are compared."""
ERROR_OF_CHANGE = 0.2
"""Relative error of a mean squared error over such a part, besides its square (measured: 3 % in all at a third)."""


class Race:
    """Scores every λ as soon as its columns have converged, and ends the columns of those that have lost."""

    def __init__(
        self,
        systems: FoldSystems,
        operator: TrainingSetOperator,
        iteration: Iteration,
        count: Callable[[Numbers, Array, Array], None],
    ) -> None:
        self._systems, self._operator, self._iteration, self._count = systems, operator, iteration, count
        self.n_kept = len(systems.alphas)
        """λ that go on, the largest ones."""
        self._n_alphas, self._n_sets, self._width = len(systems.alphas), systems.n_sets, systems.width
        self._tests = systems.folds.test
        self._sums = np.zeros(len(systems.shift))
        self._held_out = [np.zeros((len(rows), self._n_alphas * self._width)) for rows in self._tests]
        self._norms = column_norms(iteration.right_sides / systems.sizes)
        self._norms[self._norms == 0] = 1.0
        self._scores: dict[int, Array] = {}
        self._residuals: dict[int, float] = {}
        self._worse_from = self._n_alphas

    def begin(self, state: State | None) -> None:
        """Take what an earlier run has done, and watch the iterations."""
        self._save = save = self._iteration.on_iteration

        def on_iteration(state: State) -> None:
            self._end_lost(state)
            save(state)

        self._iteration.on_iteration, self._iteration.on_cycle = on_iteration, self._start_from
        if state is not None and state.cycle is not None:
            self._start_from(state)

    def end(self) -> None:
        """Watch no longer."""
        self._iteration.on_iteration, self._iteration.on_cycle = self._save, lambda _: None
        self._iteration.on_step = self._count

    def _start_from(self, state: State) -> None:
        """Take the solutions of the cycles before, whose steps may have made some true residuals no smaller."""
        x = state.x.copy()
        if state.cycle is not None:
            x[:, state.cycle.columns] += state.cycle.correction
        products = self._operator.unmasked(x) if x.any() else np.zeros(x.shape)
        self._sums[:] = (self._systems.sets.scale() * x).sum(axis=0)
        for f, rows in enumerate(self._tests):
            here = self._systems.sets.of_column == f
            self._held_out[f][...] = products[np.ix_(rows, np.flatnonzero(here))]

    def on_step(self, columns: Numbers, step: Array, direction: Array) -> None:
        """See Iteration."""
        self._count(columns, step, direction)
        self._add(columns, step, direction)

    def _add(self, columns: Numbers, step: Array, direction: Array) -> None:
        sets, product = self._systems.sets, self._operator.last_product
        self._sums[columns] += step * (sets.scale(columns) * direction).sum(axis=0)
        of_column = sets.of_column[columns]
        for f in np.unique(of_column[of_column < len(self._tests)]):
            here = np.flatnonzero(of_column == f)
            numbers = columns[here]
            places = numbers // (self._n_sets * self._width) * self._width + numbers % self._width
            self._held_out[f][:, places] += step[here] * product[np.ix_(self._systems.folds.test[f], here)]

    def _end_lost(self, state: State) -> None:
        """End the columns of λ that have lost."""
        cycle = state.cycle
        assert cycle is not None
        reached = np.zeros(len(self._systems.shift))
        norms = np.linalg.norm(cycle.residual, axis=0)
        reached[cycle.columns] = np.where(norms > cycle.goal, norms / self._norms[cycle.columns], 0.0)
        worst = reached.reshape(self._n_alphas, self._n_sets, -1)[:, : len(self._tests)].max(axis=(1, 2))
        for a in range(self.n_kept):
            if worst[a] > (MOST_RESIDUAL if self._systems.is_squared_error else 0.0):
                break
            if a not in self._scores or worst[a] <= 0.5 * self._residuals[a] or worst[a] == 0.0 < self._residuals[a]:
                self._scores[a], self._residuals[a] = self._score(a), worst[a]
            if (self._change(a) > EARLY_ERROR).any():
                break
            if a >= RISES and all(self._is_worse(k) for k in range(a - RISES + 1, a + 1)):
                self._end_from(a if worst[a] > 0 else a + 1, state)
                self._worse_from = a - RISES + 1
                break
        # Of those that are worse already, the scores need not be better known than to a percent.
        while self.n_kept > self._worse_from and worst[self.n_kept - 1] <= STOPPED_RESIDUAL:
            if worst[self.n_kept - 1] == 0:
                break
            self._end_from(self.n_kept - 1, state)

    def _end_from(self, first: int, state: State) -> None:
        """End all λ from the number of one on."""
        if first >= self.n_kept:
            return
        assert state.cycle is not None
        self.n_kept = first
        column = first * self._n_sets * self._width
        state.cycle.goal[state.cycle.columns >= column] = np.inf
        tol = np.array(self._iteration.tol)
        tol[column:] = np.inf
        self._iteration.tol = tol

    def _is_worse(self, a: int) -> bool:
        """Whether the score of a λ is surely worse than that of the next larger one, for every target."""
        here, before = (self._scores[k] + sign * self._margin(k) for k, sign in ((a, 1.0), (a - 1, -1.0)))
        return bool((here < before).all())

    def _change(self, a: int) -> Array:
        """Part of the error of held-out rows that the residual may change; 0 for other scores, which are complete."""
        if not self._systems.is_squared_error:
            return np.zeros(1)
        residual = self._residuals[a] or float(np.min(self._iteration.tol))
        squares = self._systems.sizes_of_targets**2
        size = np.sqrt(squares if self._systems.per_target else squares.mean(keepdims=True))
        return np.asarray(residual * size / np.maximum(np.sqrt(np.abs(self._scores[a])), 1e-300))

    def _margin(self, a: int) -> Array:
        change = self._change(a)
        return np.asarray((ERROR_OF_CHANGE * change + change**2) * np.abs(self._scores[a]))

    def _score(self, a: int) -> Array:
        """Mean scores of a λ, of shape (t' or 1,)."""
        systems, each = self._systems, []
        for f in range(len(self._tests)):
            where = systems.columns(a, f)
            part = self._held_out[f][:, a * self._width : (a + 1) * self._width] * systems.sizes[where]
            each.append(systems.score(f, systems.predictions(part, self._sums[where] * systems.sizes[where])))
        return np.asarray(np.mean(each, axis=0))
