"""All folds, all λ and all targets in one run of conjugate gradient.

Every column of the block solves (C_f K C_f + λ I) β = C_f y for its fold f and its λ, where C_f is zero on the rows
that are held out. The products with K, which take most of the time, serve all columns; and K C_f β has the predictions
of the rows that are held out. Where λ is large columns converge first: the scores are known from there on. λ that are
surely not the best are given up, and once scores have become worse twice in a row all smaller ones (`EarlyStopping`). A
fit of all rows has columns in the same run, which are finished for the λ that is chosen.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from math import ceil, inf, isfinite
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dkrr.blas import column_norms, root_mean_squares
from dkrr.fitting.context import Context
from dkrr.fitting.costs.details import Iterative
from dkrr.fitting.data import TrainingData
from dkrr.fitting.gram import GramOperator
from dkrr.fitting.iteration import iteration_of, pivot_rule, pivots_of, resumed
from dkrr.fitting.requests import DualStart
from dkrr.linalg.conjugate_gradient import Iteration
from dkrr.linalg.fold_preconditioner import FoldLowRank
from dkrr.linalg.giving_up import EARLY, GivenUpError, Watch, unwatched
from dkrr.linalg.iteration_state import CGOutcome, State
from dkrr.linalg.preconditioners import Identity, Preconditioner
from dkrr.linalg.result import Residuals, Status
from dkrr.linalg.training_sets import TrainingSetOperator
from dkrr.planning import Plan
from dkrr.planning.selection import RISES
from dkrr.selection.fold_systems import FoldSystems
from dkrr.selection.folds import Folds
from dkrr.selection.scores import Report, ScoreSheet
from dkrr.text import plural

Array = NDArray[np.float64]
Numbers = NDArray[np.intp]

MAX_SCORED_RESIDUAL = 0.3
"""Relative residual from which on scores are computed."""
LOOK = 0.5
"""Factor by which the residual of a λ has become smaller when its score is computed again. Predictions have changed by
about as much from one to the next as they will from then on, where that halves what is left of them. Residuals alone
tell little where λ is far below the eigenvalues of K: of 2,300 scores of systems of molecules and of made-up rows, λ
down to 10⁻¹² of the largest eigenvalue, those at residuals of 0.01 to 0.03 were wrong by more than the margin 47 times
in 190; of those at 0.03 to 0.3 whose predictions hardly changed any more, 7 in 188."""
STOPPED_RESIDUAL, STOPPED_CHANGE = 1e-2, 0.02
"""Largest true residual with which λ that were given up still have scores; and part of the error of held-out rows that
what is left of their solutions may change, at which they end: scores are then known to half a percent."""
EARLY_ERROR = 0.4
"""Part of the error of held-out rows that what is left of a solution may change, up to which scores are compared."""
ERROR_OF_CHANGE = 0.2
"""Relative error of a mean squared error over such a part, besides its square (measured: 3 % in all at a third)."""


class EarlyScore(NamedTuple):
    """Score of a λ whose columns may not have converged yet, and how well it is known."""

    score: Array
    """Of shape (t' or 1,), as everything by target here."""
    change: Array
    """Part of the error of held-out rows that what is left of the solution may change; 0 where the score is final."""
    predictions: list[Array]
    """Of held-out rows, by fold."""
    residual: float
    """Largest residual of the columns; 0 if all had their tolerance."""
    relied: float
    """Residual that the score relies on: at least the tolerance, times the share of a large intercept."""

    @property
    def margin(self) -> Array:
        """Likely error of the score."""
        return np.asarray((ERROR_OF_CHANGE * self.change + self.change**2) * np.abs(self.score))

    @property
    def lowest(self) -> Array:
        """Lowest score that it may become."""
        return self.score - self.margin

    @property
    def highest(self) -> Array:
        """Highest score that it may become."""
        return self.score + self.margin

    def is_older(self, residual: float) -> bool:
        """Whether the λ has been solved since, or its residual is half as large."""
        return residual <= LOOK * self.residual if self.residual > 0 else 0 < residual < self.relied


class EarlyStopping:
    """Scores every λ as soon as its columns have converged, and ends the columns of those that have lost."""

    def __init__(
        self,
        systems: FoldSystems,
        operator: TrainingSetOperator,
        iteration: Iteration,
        count: Callable[[Numbers, Array, Array], None],
        watch: Callable[[State, float], None],
    ) -> None:
        self._systems, self._operator, self._iteration, self._count = systems, operator, iteration, count
        self._watch = watch
        self.is_kept = np.ones(len(systems.alphas), bool)
        """Whether a λ goes on."""
        self.is_known = np.zeros(len(systems.alphas), bool)
        """Whether a λ that does not go on has a score that is known well."""
        self._n_alphas, self._n_sets, self._width = len(systems.alphas), systems.n_sets, systems.width
        self._tests = systems.folds.test
        self._sums = np.zeros(len(systems.shift))
        self._held_out = [np.zeros((len(rows), self._n_alphas * self._width)) for rows in self._tests]
        self._norms = column_norms(iteration.right_sides / systems.sizes)
        self._norms[self._norms == 0] = 1.0
        self._estimates: dict[int, EarlyScore] = {}
        """The last one of every λ that has any."""
        self._largest = list[Array]()
        """Largest residual of every λ after every iteration; 0 where it is solved."""

    def begin(self, state: State | None) -> None:
        """Take what an earlier run has done, and watch the iterations."""
        self._save = save = self._iteration.on_iteration

        def on_iteration(state: State) -> None:
            self._largest.append(self._residuals_of(state))
            self._end_lost(state)
            if state.iteration > EARLY:
                self._check_time(state)
            save(state)

        self._iteration.on_iteration, self._iteration.on_cycle = on_iteration, self._start_from
        self._iteration.on_step = self.on_step
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
        products = self._operator.products_of_all_rows(x) if x.any() else np.zeros(x.shape)
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

    def _residuals_of(self, state: State) -> Array:
        """Largest residual of the folds of every λ, of shape (n_alphas,); 0 where all have converged."""
        cycle = state.cycle
        assert cycle is not None
        tol = np.broadcast_to(self._iteration.tol, self._norms.shape)
        # Columns that are not in the cycle are solved, or wait.
        reached = np.where(self._iteration.reached <= tol, 0.0, self._iteration.reached)
        norms = np.linalg.norm(cycle.residual, axis=0) / self._norms[cycle.columns]
        is_open = norms > self._iteration.recurrence_fraction * tol[cycle.columns]
        reached[cycle.columns] = np.where(is_open, norms, 0.0)
        return np.asarray(reached.reshape(self._n_alphas, self._n_sets, -1)[:, : len(self._tests)].max(axis=(1, 2)))

    def _check_time(self, state: State) -> None:
        """Watch the smallest λ that the race waits for: of those up to the one after the best so far.

        Smaller ones may have lost before they are solved.
        """
        means = {a: float(one.score.mean()) for a, one in self._estimates.items()}
        best = max(means, key=lambda a: means[a], default=-1)
        is_waited_for = self.is_kept & (self._largest[-1] > 0)
        is_waited_for[[*range(best + 2, self._n_alphas), *self._lost(list(means))]] = False
        if not is_waited_for.any():
            return
        a = int(np.flatnonzero(is_waited_for)[-1])
        tol = np.broadcast_to(self._iteration.tol, self._norms.shape)[self._systems.columns_of_folds(a)]
        history = [Residuals(k, 0.0, float(largest[a]), is_true=False) for k, largest in enumerate(self._largest)]
        self._watch(replace(state, history=history), float(tol.min()))

    def _end_lost(self, state: State) -> None:
        """End the columns of λ that have lost."""
        worst, known = self._largest[-1], list[int]()
        for a in range(self._n_alphas):
            if self.is_kept[a]:
                if worst[a] > (MAX_SCORED_RESIDUAL / LOOK if self._systems.is_squared_error else 0.0):
                    break
                if a not in self._estimates or self._estimates[a].is_older(worst[a]):
                    self._estimates[a] = self._estimate(a, worst[a])
            if a not in self._estimates or (self._estimates[a].change > EARLY_ERROR).any():
                break
            known.append(a)
            if a >= RISES and all(self._is_worse(k) for k in range(a - RISES + 1, a + 1)):
                self._end(range(a if worst[a] > 0 else a + 1, self._n_alphas), state)
                break
        self._end_worse(known, worst, state)

    def _end_worse(self, known: list[int], worst: Array, state: State) -> None:
        """End λ that are surely worse than another one, once they are known well or all others are solved."""
        if not known:
            return
        lost = self._lost(known)
        others = np.setdiff1d(np.flatnonzero(self.is_kept), lost)
        all_solved = not worst[others].any()
        for a in lost:
            self._end_columns(self._systems.columns_of_all_rows(a), state)
            is_known = 2 * worst[a] <= STOPPED_RESIDUAL and (self._estimates[a].change <= STOPPED_CHANGE).all()
            if worst[a] > 0 and (is_known or all_solved):
                self.is_known[a] = is_known
                self._end([a], state)
        cycle = state.cycle
        assert cycle is not None
        is_open = np.linalg.norm(cycle.residual, axis=0) > cycle.goal
        of_lost = np.isin(cycle.columns // (self._n_sets * self._width), lost)
        if not all_solved and not of_lost.all() and not is_open[~of_lost].any():
            cycle.goal[of_lost] = np.inf  # the others rest: a new cycle takes them further

    def _lost(self, known: list[int]) -> list[int]:
        """Of some λ with scores those that are surely worse than another one."""
        best = np.max([self._estimates[a].lowest for a in known], axis=0, initial=-np.inf)
        return [a for a in known if (self._estimates[a].highest < best).all()]

    def _end(self, alphas: Iterable[int], state: State) -> None:
        """End the columns of some λ."""
        for a in alphas:
            self.is_kept[a] = False
            self._end_columns(self._systems.columns_of_folds(a), state)
            self._end_columns(self._systems.columns_of_all_rows(a), state)

    def _end_columns(self, columns: slice, state: State) -> None:
        """End columns, which a last fit may still continue."""
        assert state.cycle is not None
        self._iteration.tol = tol = np.array(self._iteration.tol)
        tol[columns] = np.inf
        state.cycle.goal[np.isinf(tol[state.cycle.columns])] = np.inf

    def _is_worse(self, a: int) -> bool:
        """Whether the score of a λ is surely worse than that of the next larger one, for every target."""
        return bool((self._estimates[a].highest < self._estimates[a - 1].lowest).all())

    def _estimate(self, a: int, residual: float) -> EarlyScore:
        """Score of a λ, and what is likely left of the changes of its predictions."""
        systems, before, predictions = self._systems, self._estimates.get(a), self._predictions_of(a)
        score = np.asarray(np.mean([systems.score(f, values) for f, values in enumerate(predictions)], axis=0))
        tol = np.broadcast_to(self._iteration.tol, self._sums.shape)[systems.columns_of_folds(a)]
        relied = max(residual, float(tol.max())) * self._share(a)
        change = np.zeros(1)
        if systems.is_squared_error:
            squares = [np.full(predictions[0].shape[1], np.inf)]
            if residual == 0.0:
                squares = [np.zeros(predictions[0].shape[1])]
            elif before is not None:
                squares = [np.mean((x - y) ** 2, axis=0) for x, y in zip(predictions, before.predictions, strict=True)]
            left = np.sqrt(self._of_scores(np.mean(squares, axis=0)))
            left = np.maximum(relied * np.sqrt(self._of_scores(systems.sizes_of_targets**2)), left)
            change = np.asarray(left / np.maximum(np.sqrt(np.abs(score)), 1e-300))
        return EarlyScore(score, change, predictions, residual, relied)

    def _share(self, a: int) -> float:
        """How many times the residuals of a λ count: more than once with a large intercept."""
        systems, share = self._systems, 1.0
        for f in range(len(self._tests) if systems.has_intercept else 0):
            where = systems.columns(a, f)
            sums = self._sums[where] * systems.sizes[where]
            share = max(share, float(systems.shares_of_intercepts(sums, f).max()))
        return share

    def _of_scores(self, squares: Array) -> Array:
        """Mean squares by target as scores have them, of shape (t' or 1,)."""
        return squares if self._systems.per_target else squares.mean(keepdims=True)

    def _predictions_of(self, a: int) -> list[Array]:
        """Predictions of a λ for the rows that each fold holds out, of shape (k, t')."""
        systems, found = self._systems, []
        for f in range(len(self._tests)):
            where = systems.columns(a, f)
            part = self._held_out[f][:, a * self._width : (a + 1) * self._width] * systems.sizes[where]
            found.append(systems.predictions(part, self._sums[where] * systems.sizes[where]))
        return found


@dataclass
class Refit:
    """Solutions for all rows with the λ that one kernel's scores choose.

    Parameters
    ----------
    tol : float
        Relative residual to which they are solved.
    direct_seconds : float
        Time of a fit by a factorisation: what takes longer is left to a separate fit.
    """

    tol: float
    direct_seconds: float = inf
    iterations: int = 0
    """Iterations of the run that computed the solutions, including those for the folds."""
    _solutions: dict[int, Array] = field(default_factory=dict)
    _constants: dict[float, Array] = field(default_factory=dict)
    _alphas: dict[int, float] = field(default_factory=dict)

    def add_solutions(self, targets: Numbers, alphas: Array, solutions: Array, constants: Array | None) -> None:
        """Record the solutions of some targets, (n, t'), and of the constant, with an intercept."""
        for j, (target, alpha) in enumerate(zip(targets.tolist(), alphas.tolist(), strict=True)):
            self._solutions[target], self._alphas[target] = solutions[:, j], alpha
            if constants is not None:
                self._constants[alpha] = constants[:, j]

    def start(self, n_targets: int) -> DualStart | None:
        """Starting solutions of the last fit; None unless every target has a solution."""
        if len(self._solutions) < n_targets:
            return None
        note = (
            f"continued from the solution for all rows of the selection's run of {plural(self.iterations, 'iteration')}"
        )
        solutions = np.column_stack([self._solutions[j] for j in range(n_targets)])
        return DualStart(solutions, self._constants, np.array([self._alphas[j] for j in range(n_targets)]), note)


SLACK = 10.0
"""Errors of held-out rows over the size of the targets, times this, below which a residual has to be smaller."""
MIN_FOLD_TOL = 1e-10
MAX_WAITING = 0.2
"""Part of the columns of a race that may wait for products in float64: those of the smallest λ, which may have lost
before. (100,000 rows of QM9, 60 columns: one of them met negative curvature in float32, and products for all took twice
as long from there on. Of 48 columns that molecules have at λ down to 1e-7, twelve left at once, 36 soon.)"""
RECURRENCE_FRACTION = 0.6
"""Fraction of the tolerance at which a cycle ends: another one, for the columns whose true residuals are a little
larger than those of the recurrence in float32, takes longer than the iterations to here."""
REFIT_FRACTION = 0.5
"""Fraction of the last fit's tolerance to which its columns are solved: with an intercept they are differences."""
MAX_TIGHTENINGS = 4
"""Times that a run is continued with smaller tolerances: from the default to the smallest one."""
FIRST_ITERATIONS = 0.75
"""Fraction of `max_iter` that a run takes before λ that are solved, but not yet as well as their scores need, come
first: a λ that no number of iterations solves would leave the others without scores."""


class FoldSweep:
    """Run of conjugate gradient for all folds and λ of some of the targets.

    Parameters
    ----------
    matrix : GramOperator
        K, without weights.
    data : TrainingData
    folds : Folds
    alphas : ndarray of shape (n_alphas,)
        λ in descending order.
    targets : slice
        Targets of this run.
    sheet : ScoreSheet
        Takes the scores.
    report : Report
    race : bool
        Whether to give up λ whose scores become worse.
    refit : Refit, optional
        Takes the solutions for all rows.
    """

    def __init__(
        self,
        matrix: GramOperator,
        data: TrainingData,
        folds: Folds,
        alphas: Array,
        targets: slice,
        sheet: ScoreSheet,
        report: Report,
        *,
        race: bool,
        refit: Refit | None = None,
    ) -> None:
        self._matrix, self._sheet, self._report, self._race, self._refit = matrix, sheet, report, race, refit
        self._target_numbers = np.arange(data.targets.shape[1])[targets]
        self.systems = FoldSystems(data, folds, alphas, targets, sheet, with_all_rows=refit is not None)
        self._n_steps = 0
        self._last_step = np.zeros(len(self.systems.shift), np.intp)

    def run(self, plan: Plan, context: Context, preconditioner: Preconditioner) -> None:
        """Solve, and enter scores and what was reached."""
        systems = self.systems
        operator = TrainingSetOperator(self._matrix.operator(), systems.sets)
        iteration = iteration_of(
            plan,
            context,
            operator,
            systems.shift[None, :],
            systems.right_sides(),
            preconditioner,
            mixed=self._matrix.is_mixed,
            largest=self._matrix.largest,
        )
        iteration.estimates_condition, iteration.recurrence_fraction = False, RECURRENCE_FRACTION
        iteration.tol = np.full(len(systems.shift), plan.problem.tol)
        races = self._race and len(systems.alphas) > RISES and (systems.is_whole or self._sheet.per_target)
        watch = None
        if races:
            watch = EarlyStopping(systems, operator, iteration, self._count, iteration.watch)
            iteration.watch, iteration.max_waiting = unwatched, MAX_WAITING

        def start(state: State | None, guess: Array | None = None) -> CGOutcome:  # noqa: ARG001
            if state is not None:
                self._n_steps = state.iteration
            if watch is not None:
                watch.begin(state)
            return iteration.run(state=state)

        iteration.on_step = self._count
        max_iter, iteration.max_iter = iteration.max_iter, ceil(FIRST_ITERATIONS * iteration.max_iter)
        # Checkpoints do not tell several runs apart.
        outcome = resumed(context, iteration, start) if systems.is_whole else start(None)
        iteration.max_iter = max_iter
        if outcome.status is not Status.CONVERGED:
            outcome = self._solved_first(iteration, operator, outcome, watch)
        outcome, held_out, wanted, shares = self._tightened(iteration, operator, outcome, plan.problem.tol)
        is_kept = np.ones(len(systems.alphas), bool) if watch is None else watch.is_kept
        limits = np.full(len(systems.alphas), np.inf)
        if watch is not None:
            limits[watch.is_known] = STOPPED_RESIDUAL
        for (a, f), values in held_out.items():
            where = systems.columns(a, f)
            self._report.iterations[a, f] = max(self._report.iterations[a, f], self._last_step[where].max())
            residuals, is_finite = outcome.residuals[where], bool(np.isfinite(values).all())
            residual = float((residuals * shares[where]).max()) if is_finite else float(residuals.max())
            needed = float(wanted[where.start]) if is_kept[a] else limits[a] * float(shares[where].max())
            if not is_finite and residual <= needed:
                residual = np.inf
            self._report.add_residual(a, f, residual, needed)
            if is_finite and (is_kept[a] or outcome.residuals[systems.columns_of_folds(a)].max() <= STOPPED_RESIDUAL):
                self._sheet.add_predictions(a, f, values, systems.targets)
        self._report.stopped[~is_kept] = True
        self._report.messages += outcome.messages
        if watch is not None:
            watch.end()
        if self._refit is not None:
            self._finish(self._refit, iteration)

    def _solved_first(
        self, iteration: Iteration, operator: TrainingSetOperator, outcome: CGOutcome, watch: EarlyStopping | None
    ) -> CGOutcome:
        """Solve columns that have converged as well as their scores need; then iterate those that have not."""
        tol, is_open = iteration.tol, ~(outcome.residuals <= iteration.tol)
        iteration.tol = np.where(is_open, np.inf, tol)
        if watch is not None:
            watch.end()  # it takes columns that rest for solved ones
        solved, *_ = self._tightened(iteration, operator, iteration.run(state=iteration.last), float(np.min(tol)))
        if outcome.status is Status.STALLED:
            return solved
        iteration.tol = np.where(is_open, tol, iteration.tol)
        if watch is not None:
            watch.begin(None)
        return iteration.run(state=iteration.last)

    def _tightened(
        self, iteration: Iteration, operator: TrainingSetOperator, outcome: CGOutcome, tol: float
    ) -> tuple[CGOutcome, dict[tuple[int, int], Array], Array, Array]:
        """Continue until residuals are as small as scores need; what was reached, and `_held_out` of it."""
        for left in reversed(range(MAX_TIGHTENINGS + 1)):
            held_out, wanted, shares = self._held_out(operator, outcome, tol)
            further = iteration.continued(outcome, np.maximum(wanted / shares, MIN_FOLD_TOL)) if left else None
            if further is None:
                break
            outcome = further
        return outcome, held_out, wanted, shares

    def _finish(self, refit: Refit, iteration: Iteration) -> None:
        """Solve for all rows with the λ that the scores choose."""
        systems = self.systems
        means = self._sheet.means()[:, systems.targets if self._sheet.per_target else slice(None)]
        means[self._report.unsolved] = np.nan
        if np.isnan(means).all(axis=0).any():
            return
        chosen = np.broadcast_to(np.nanargmax(means, axis=0), len(self._target_numbers))
        numbers = np.array([systems.columns(a, systems.n_sets - 1).start for a in chosen.tolist()])
        targets, constants = numbers + np.arange(len(numbers)), numbers + systems.width - 1
        used = np.concatenate([targets, constants]) if systems.has_intercept else targets
        iteration.tol = np.full(len(systems.shift), np.inf)
        iteration.tol[used] = REFIT_FRACTION * refit.tol
        iteration.watch = unwatched
        if isfinite(refit.direct_seconds) and iteration.last is not None:
            iteration.watch = _watch_from(len(iteration.last.history), Watch(refit.direct_seconds))
        try:
            outcome = iteration.run(state=iteration.last)
        except GivenUpError as error:
            self._report.messages += (f"the last fit is separate: {error}",)
            return
        if outcome.status is not Status.CONVERGED:
            return  # a separate fit may have another solver
        x = outcome.x
        refit.iterations = max(refit.iterations, self._n_steps)
        free = x[:, constants] if systems.has_intercept else None
        refit.add_solutions(self._target_numbers, systems.alphas[chosen], x[:, targets], free)

    def _held_out(
        self, operator: TrainingSetOperator, outcome: CGOutcome, tol: float
    ) -> tuple[dict[tuple[int, int], Array], Array, Array]:
        """Predictions of held-out rows for every λ and fold, the residuals that their scores need, and shares.

        The shares are how many times the residual of a column counts, more than once that of a large intercept;
        both have shape (m,).

        A residual moves predictions by about as much of ‖y‖, which may be far more than they are wrong: where targets
        have a mean and the model no intercept, or hardly any noise; or where a few rows with large weights have most of
        it, and so little of the others is solved.
        """
        systems = self.systems
        products = operator.products_of_all_rows(outcome.x / systems.sizes) * systems.sizes
        found, wanted = dict[tuple[int, int], Array](), np.full(len(systems.shift), tol)
        shares = np.ones(len(wanted))
        for a in range(len(systems.alphas)):
            for f, rows in enumerate(systems.folds.test):
                where = systems.columns(a, f)
                sums = systems.scales[:, f] @ outcome.x[:, where]
                found[a, f] = systems.predictions(products[rows, where], sums)
                if systems.has_intercept:
                    shares[where.stop - 1] = max(1.0, systems.shares_of_intercepts(sums, f).max())
                errors = root_mean_squares(found[a, f] - systems.values[rows])
                part = float(np.min(errors / systems.sizes_of_targets, initial=np.inf))
                wanted[where] = max(tol * min(1.0, SLACK * part) / systems.spreads[f], MIN_FOLD_TOL)
        return found, wanted, shares

    def _count(self, columns: Numbers, *_: Array) -> None:
        """Count a step of some columns."""
        self._n_steps += 1
        self._last_step[columns] = self._n_steps


def _watch_from(n_before: int, watch: Watch) -> Callable[[State, float], None]:
    """The watch of iterations that follow this number of residuals, which are of other columns."""
    return lambda state, tol: watch(replace(state, history=state.history[n_before:]), tol)


def sweep(
    strategy: Iterative,
    data: TrainingData,
    plan: Plan,
    context: Context,
    folds: Folds,
    alphas: Array,
    sheet: ScoreSheet,
    report: Report,
    *,
    race: bool,
    refit: Refit | None = None,
) -> None:
    """Score every λ, in descending order, by conjugate gradient, in batches of the plan's number of targets.

    Parameters
    ----------
    strategy : Iterative
    data : TrainingData
    plan : Plan
        Plan of a fit with the number of targets of one run, and with these folds.
    refit : Refit, optional
        Takes the solutions for all rows.
    """
    matrix = GramOperator(data, strategy, context, None)
    batches = list(target_batches(data.targets.shape[1], plan.problem.n_targets))
    if len(batches) > 1 and not sheet.per_target:
        refit = None  # no run has the scores of all targets
    runs = [
        FoldSweep(matrix, data, folds, alphas, targets, sheet, report, race=race, refit=refit) for targets in batches
    ]
    preconditioner = _preconditioner(runs[0], matrix, plan, data)
    for run in runs:
        if isinstance(preconditioner, FoldLowRank):
            # The last run may have fewer columns.
            preconditioner = preconditioner.for_columns(run.systems.sets, run.systems.shift)
        run.run(plan, context, preconditioner)
    if len(runs) > 1:  # some targets may have gone on
        report.stopped[:] = np.isnan(sheet.values).any(axis=(1, 2)) & ~report.unsolved
        if not sheet.per_target:
            sheet.values[report.stopped] = np.nan


def target_batches(n_targets: int, width: int) -> Iterator[slice]:
    """Slices of at most `width` targets."""
    for start in range(0, n_targets, width):
        yield slice(start, min(start + width, n_targets))


def _preconditioner(run: FoldSweep, matrix: GramOperator, plan: Plan, data: TrainingData) -> Preconditioner:
    if matrix.rank_limit == 0:
        return Identity()
    # Pivots are drawn for all rows: each fold keeps those that it trains on.
    is_enough = pivot_rule(plan, float(run.systems.shift.min()), plan.problem.tol)
    factor = matrix.partial_factor(data.weights, pivots_of(plan), is_enough)
    return FoldLowRank(
        factor, run.systems.sets, run.systems.shift, mixed=matrix.is_mixed, n_threads=plan.resources.local_threads
    )
