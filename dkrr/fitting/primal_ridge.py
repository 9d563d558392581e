"""Ridge regression in primal form, (ΦᵀWΦ + λI) w = ΦᵀWy, by a factor or by conjugate gradient.

A result answers for predictions, not for its normal equations: by the residual of the dual system where dual
coefficients are iterated to it, else by what the residual of the normal equations may change.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dkrr.blas import column_norms
from dkrr.fitting.context import Context
from dkrr.fitting.costs.details import Direct, Iterative
from dkrr.fitting.data import TargetSizes, TrainingData
from dkrr.fitting.dual_ridge import Group, RidgeSystem
from dkrr.fitting.iteration import iteration_of, settings_of
from dkrr.fitting.normal_rows import FormedRows, StreamedRows
from dkrr.fitting.results import Left, SavedPosterior, Solution
from dkrr.linalg.condition import SolvedProbe, scaling_of, worst
from dkrr.linalg.conjugate_gradient import Iteration
from dkrr.linalg.factor import Factor
from dkrr.linalg.iteration_state import CGOutcome, State
from dkrr.linalg.preconditioners import Diagonal, Identity, Preconditioner
from dkrr.linalg.residual import MIN_INTERCEPT_RESIDUAL, relative_by_columns
from dkrr.linalg.result import (
    DUAL_SYSTEM,
    INACCURATE_ABOVE,
    NORMAL_EQUATIONS,
    Residuals,
    Status,
    inexact_duals,
)
from dkrr.linalg.sources import Vectors
from dkrr.planning import Plan
from dkrr.text import plural

Array = NDArray[np.float64]

REFINED_DUALS = "dual_coef_ refined {times}, for a smaller residual of the dual system"
INEXACT_PREDICTIONS = (
    "predictions may be off by {bound:.0e} of the targets: rounding in the normal matrix hides the contribution of "
    "rows of ordinary weight; increase alpha, bring the sample weights or the columns of X nearer to each other, or "
    "use form='dual'"
)
MAX_REFINEMENTS, MIN_GAIN = 4, 0.5
"""Times that dual coefficients are refined, by conjugate gradient or on a Fourier grid, and the residual over the one
before above which that ends."""
MIN_AMPLIFICATION, MIN_REACHED = 1e3, 1e-13
"""√κ that least squares without λ are taken to have until an iteration has shown more; and the relative residual of
normal equations that it is expected to reach."""

EPS = float(np.finfo(float).eps)
ONLY_ROUNDING = 8 * float(np.finfo(float).eps)
"""Fraction of ‖φⱼ‖‖y‖ below which φⱼᵀy is rounding of its terms."""


def drop_rounding(data: TrainingData, moments: Array, diagonal: Array) -> Array:
    """Set the moments ΦᵀWy of targets to 0 that have no part in any feature: what is computed then is only rounding.

    Parameters
    ----------
    moments : ndarray of shape (D, t)
        Overwritten.
    diagonal : ndarray of shape (D,)
        Squared norms of the (centred) features.

    Returns
    -------
    ndarray of shape (t,)
        Norms that the residuals of the targets are to be compared with: ‖ΦᵀWy‖, and √(Σⱼ ‖φⱼ‖²) ‖y‖ where that is 0.
    """
    norms_of_features = np.sqrt(np.maximum(diagonal, 0.0))
    if data.weights is None:
        sizes = column_norms(data.targets)
    else:  # with many targets no second array of their size
        most = max(float(data.weights.max()), np.finfo(float).tiny)
        sizes = np.sqrt(most) * np.sqrt(np.einsum("ij,ij,i->j", data.targets, data.targets, data.weights / most))
    with np.errstate(over="ignore"):
        largest, norms = column_norms(norms_of_features[:, None]) * sizes, column_norms(moments)
        for k in np.flatnonzero(norms <= ONLY_ROUNDING * largest):
            # Feature by feature: one of small numbers may be all that a target depends on.
            if (np.abs(moments[:, k]) <= ONLY_ROUNDING * norms_of_features * sizes[k]).all():
                moments[:, k], norms[k] = 0.0, largest[k]
    return norms


class PrimalRidge:
    """Common part of all ways to solve in the primal form."""

    def __init__(self, data: TrainingData, plan: Plan, context: Context) -> None:
        self._data, self._plan, self._context, self._means = data, plan, context, data.target_means()
        self._less = self._means if data.fit_intercept else None
        self._target_sizes = TargetSizes.of(data, self._means)

    def _solution(
        self, rows: FormedRows | StreamedRows, errors: Vectors, totals: Array, coef: Array, **found: Any
    ) -> Solution:
        """Solution with the dual coefficients, which take the place of the training errors.

        Parameters
        ----------
        errors : ndarray or ChunkedArray of shape (n, t)
        totals : ndarray of shape (t,)
            Their weighted sums. With an intercept these are 0 but for rounding, which a large weight makes large in
            the dual coefficients: what they are belongs to the intercept.
        """
        data, centre = self._data, rows.centre
        loaded, constants = rows.loaded_errors(errors, data.room_for_errors), np.zeros(len(totals))
        if data.fit_intercept and data.weights is not None and rows.total_weight > 0:
            # Only where it matters: the order of the sums depends on the number of workers.
            constants = totals / rows.total_weight
            with np.errstate(over="ignore", invalid="ignore"):
                sizes = np.sqrt(np.einsum("ij,ij,i->j", loaded, loaded, data.weights**2))  # without a copy
                matters = np.abs(constants) * np.linalg.norm(data.weights) > MIN_INTERCEPT_RESIDUAL * sizes
            constants = np.where(matters, constants, 0.0)
        intercept = self._means if centre is None else self._means - centre @ coef
        return Solution(
            dual_coef=self._dual_coef(loaded, constants),
            coef=coef,
            intercept=intercept + constants,
            rows=None,
            **found,
        )

    def _bounds(self, left: Array, diagonal: Array | None, conditions: Array) -> Array:
        """Bounds of what residuals r of the normal equations change in weighted predictions, relative to the targets.

        With A + λI = D S D, S of a unit diagonal, that is ‖(A + λI)^(−1/2) r‖ ≤ min(‖r‖ / √λ, √κ(S) ‖D⁻¹r‖).

        Parameters
        ----------
        left : ndarray of shape (D, t)
            r.
        diagonal : ndarray of shape (D,), optional
            Diagonal of A.
        conditions : ndarray of shape (t,)
            κ(S) as far as it is known; NaN otherwise.
        """
        alphas = self._data.alphas
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            bounds = column_norms(left) / np.sqrt(alphas)
            if diagonal is not None:
                scaled = left / scaling_of(diagonal[:, None] + alphas)
                bounds = np.fmin(bounds, np.sqrt(conditions) * column_norms(scaled))
            return relative_by_columns(bounds, self._target_sizes.ordinary)

    def _dual_coef(self, errors: Array, constants: Array) -> Array | None:
        """Dual coefficients by y − f(X) = λ W⁻¹ α, which take the place of the errors; None where some λ is 0."""
        data = self._data
        if not (data.alphas > 0).all():
            return None
        if constants.any():
            errors -= constants
        dual = np.divide(errors, data.alphas, out=errors)
        if data.weights is not None:
            dual *= data.weights[:, None]
        return dual


class DirectPrimal(PrimalRidge):
    """Systems of the normal matrix, which is formed first, solved by a factorisation each."""

    def __init__(self, strategy: Direct, data: TrainingData, plan: Plan, context: Context) -> None:
        super().__init__(data, plan, context)
        self._rows = FormedRows(strategy, data, context, self._less, self._target_sizes.totals)
        self._probes = list[SolvedProbe]()
        self._keeps, self._factors = strategy.keeps_factors, list[Factor]()

    def systems(self) -> Iterator[RidgeSystem]:
        """Systems of every λ, one after another."""
        data = self._data
        self._systems, moments = self._rows.systems()
        self._sizes = drop_rounding(data, moments, self._systems.diagonal)
        self._coef = np.empty_like(moments)
        for g, (alpha, columns) in enumerate(data.alpha_groups()):
            yield RidgeSystem(
                g, alpha, columns, np.full(len(moments), alpha), np.ascontiguousarray(moments[:, columns])
            )

    def solve(self, system: RidgeSystem) -> None:
        """Solve a system."""
        systems, group = self._systems, f"system-{system.number}"
        factor = systems.factor(group, system.shift)
        found = systems.solve(group, factor, system.shift, system.right_sides)
        if self._keeps:
            self._factors.append(factor)
        elif not self._context.storage.keeps:
            systems.release(group)
        self._coef[:, system.columns] = found.x
        self._probes.append(found.probe)

    def solution(self) -> Solution:
        """Solution of all targets, once all systems are solved."""
        data, coef, t = self._data, self._coef, self._coef.shape[1]
        errors = self._rows.new_errors(data.room_for_errors)
        probes = np.column_stack([p.vector for p in self._probes])
        gradient, totals = self._rows.residuals(np.hstack([coef, probes]), errors)  # one pass
        left = gradient[:, :t] - coef * data.alphas
        residuals = relative_by_columns(column_norms(left), self._sizes)
        with np.errstate(over="ignore", invalid="ignore"):
            products = probes * [alpha for alpha, _ in data.alpha_groups()] - gradient[:, t:]
        conditions = np.empty(t)
        for g, (probe, (_, columns)) in enumerate(zip(self._probes, data.alpha_groups(), strict=True)):
            conditions[columns] = probe.condition(products[:, g])
        solution = self._solution(
            self._rows,
            errors,
            totals[:t],
            coef,
            residual=float(residuals.max()),
            residuals=residuals,
            residual_of=NORMAL_EQUATIONS,
            condition=worst(conditions.tolist()),
        )
        return replace(self._judged(solution, left, conditions), saved=self._saved(solution))

    def _saved(self, solution: Solution) -> Mapping[float, SavedPosterior]:
        """By λ, the factors that stay after the fit."""
        centre, found = self._rows.centre, dict[float, SavedPosterior]()
        side, means = self._rows.dimension, self._means
        groups = self._data.alpha_groups() if self._keeps else []
        for (alpha, columns), kept in zip(groups, self._factors, strict=True):
            lower, coef = np.zeros((side + (centre is not None),) * 2), self._coef[:, columns]
            factor = kept.matrix
            for i, j in factor.grid.lower():
                here = lower[factor.grid.rows(i), factor.grid.rows(j)]
                factor.read_tile(i, j, here)
                here[...] = np.tril(here) if i == j else here
            intercept = None
            if centre is not None:
                constants = solution.intercept[columns] + centre @ coef - means[columns]
                intercept = centre, constants, self._rows.total_weight
            found[alpha] = SavedPosterior.primal(lower, coef, intercept, Left())
        return found

    def _judged(self, solution: Solution, left: Array, conditions: Array) -> Solution:
        """Solution with what the residuals of its normal equations say of predictions and of dual coefficients.

        Φᵀα − w = r / λ: where the errors of a few heavy rows are rounded, their α are off by about as much as that is
        over the length of a row of features.
        """
        data, diagonal, messages = self._data, self._systems.diagonal, list[str]()
        bounds = self._bounds(left, diagonal, conditions)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            length = np.sqrt(diagonal.sum() / self._rows.total_weight)
            if solution.dual_coef is not None and length > 0:
                sizes = np.sqrt(np.einsum("ij,ij->j", solution.dual_coef, solution.dual_coef))  # without a copy
                change = relative_by_columns(column_norms(left) / data.alphas / length, sizes)
                messages += inexact_duals(float(np.fmax.reduce(change, initial=0.0)))
        assert solution.residuals is not None
        residuals = np.where(bounds > INACCURATE_ABOVE, np.fmax(bounds, solution.residuals), solution.residuals)
        if (bounds > INACCURATE_ABOVE).any():
            messages.append(INEXACT_PREDICTIONS.format(bound=bounds.max()))
        return replace(
            solution,
            residual=float(residuals.max()),
            residuals=residuals,
            messages=(*messages, *solution.messages),
        )


class Judgement(NamedTuple):
    """Quality of a solution by conjugate gradient, for every target, of shape (t,) each."""

    residuals: Array
    """Relative residuals of the dual systems; of the normal equations where λ is 0."""
    bounds: Array
    """Bounds of the errors of weighted predictions, relative to the targets."""
    duals: Array
    """Bounds of the errors of α, relative to their length."""

    def is_met(self, tol: float) -> NDArray[np.bool_]:
        """Whether dual systems are solved, or predictions and α are right all the same."""
        return np.asarray((self.residuals <= tol) | ((self.bounds <= tol) & (self.duals <= tol)))


def _after(history: Sequence[Residuals], outcome: CGOutcome) -> Iterator[Residuals]:
    """Lines of a history as they follow on those of an outcome."""
    begun = outcome.history[-1].seconds if outcome.history else 0.0
    for line in history:
        yield replace(line, iteration=outcome.iterations + line.iteration, seconds=begun + line.seconds)


class IteratedPrimal(PrimalRidge):
    """Systems that conjugate gradient solves all at once, by passes over the rows.

    With the training errors E = Y − ΦX the dual coefficients are α = WE/λ, and Φᵀα − X = r/λ for the residual r of the
    normal equations: so the residual of the dual system (K + λW⁻¹)α = y is Φr/λ, to which iterations go. Relative to
    the targets, weighted and not, it is how far targets would have to be off for α to be exact. What rounding leaves
    of it is refined as on a Fourier grid: (A + λI)c = r, w + c and E − Φc. With λ = 0 there is no dual system, and with
    small λ its residual is that of rounded α: then predictions and α are judged by the bound of what r changes.
    """

    def __init__(self, strategy: Iterative, data: TrainingData, plan: Plan, context: Context) -> None:
        super().__init__(data, plan, context)
        self._rows, self._tol = StreamedRows(strategy, data, context, self._less), plan.problem.tol

    def iteration(self) -> tuple[Iteration, list[Group]]:
        """Conjugate gradient for all targets, and what it solves for."""
        data, rows = self._data, self._rows
        # As in the dual form, all values of alpha are columns of the same passes.
        shift, moments, self._diagonal = data.alphas[None, :], rows.moments(), rows.diagonal()
        preconditioner: Preconditioner = Identity()
        self._amplification = float(np.clip(self._tol / MIN_REACHED, 1.0, MIN_AMPLIFICATION))
        self._norms, self._scaling = column_norms(moments), np.ones(len(moments))
        if self._diagonal is not None:
            self._norms, self._scaling = self._target_sizes.ordinary, scaling_of(self._diagonal)
            if settings_of(self._plan).preconditioner == "auto":
                preconditioner = Diagonal(self._diagonal[:, None], shift)
        iteration = iteration_of(self._plan, self._context, rows.operator(), shift, moments, preconditioner)
        iteration.measure = self._relative
        return iteration, [(np.arange(len(data.alphas)), len(data.alphas))]

    def _relative(self, residuals: Array, columns: NDArray[np.intp]) -> Array:
        """Relative residuals of the dual systems; of the normal equations where λ is 0."""
        alphas, sizes = self._data.alphas[columns], self._target_sizes
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            scaled = column_norms(residuals / self._scaling[:, None])
            found = self._amplification * relative_by_columns(scaled, self._norms[columns])
            is_dual = alphas > 0
            if is_dual.any():
                norms = np.zeros((2, len(columns)))
                norms[:, is_dual] = self._rows.value_norms(residuals[:, is_dual] / alphas[is_dual])
                weighted = relative_by_columns(norms[0], sizes.weighted[columns])
                plain = relative_by_columns(norms[1], sizes.plain[columns])
                found = np.where(is_dual, np.maximum(weighted, plain), found)
            return np.where(np.isnan(found), np.inf, found)

    def iterate(
        self,
        iteration: Iteration,
        groups: Sequence[Group],  # noqa: ARG002
        state: State | None = None,
        start: Array | None = None,
    ) -> CGOutcome:
        """Run it, and refine what it found until the dual systems are solved, or predictions and α are right."""
        data, rows = self._data, self._rows
        outcome, everything = iteration.run(start, state), np.arange(len(data.alphas))
        coef, errors = outcome.x, rows.new_errors(data.room_for_errors)
        other, rounds, gained = errors, 0, np.ones(len(everything), bool)
        gradient, self._totals, sizes = rows.subtract(None, coef, errors)
        self._amplification = max(self._amplification, np.nan_to_num(np.sqrt(outcome.condition), nan=1.0))
        left = gradient - coef * data.alphas
        found = self._judgement(left, sizes, outcome.condition, self._target_sizes.weighted)
        while rounds < MAX_REFINEMENTS and outcome.status is not Status.MAX_ITERATIONS:
            open_ = gained & ~found.is_met(self._tol)
            if not open_.any():
                break
            if outcome.iterations >= iteration.max_iter:
                outcome = replace(outcome, status=Status.MAX_ITERATIONS)
                break
            further = Iteration(
                operator=iteration.operator,
                shift=iteration.shift,
                right_sides=np.where(open_, left, 0.0),
                preconditioner=iteration.preconditioner,
                tol=self._tol,
                max_iter=iteration.max_iter - outcome.iterations,
                progress=iteration.progress,
                estimates_condition=False,
                measure=self._relative,
            ).run()
            if other is errors and not self._context.in_memory:
                # A task that runs twice, since its worker was lost, must find the errors as they were.
                other = rows.new_errors(data.room_for_errors, "refined")
            gradient, self._totals, sizes = rows.subtract(errors, further.x, other)
            errors, other, coef, rounds = other, errors, coef + further.x, rounds + 1
            left, before = gradient - coef * data.alphas, found.residuals
            found = self._judgement(left, sizes, outcome.condition, sizes[0])
            gained = found.residuals <= MIN_GAIN * before
            ended = further.status if further.status is Status.MAX_ITERATIONS else outcome.status
            outcome = replace(
                outcome,
                iterations=outcome.iterations + further.iterations,
                status=ended,
                history=(*outcome.history, *_after(further.history, outcome)),
            )
        self._errors = errors
        messages = (*outcome.messages, *([REFINED_DUALS.format(times=plural(rounds, "time"))] if rounds else []))
        return self._ended(replace(outcome, x=coef, messages=messages), found)

    def _judgement(self, left: Array, sizes: Array, condition: float, rounded: Array) -> "Judgement":
        """Judge a solution by the residuals of its normal equations.

        Parameters
        ----------
        left : ndarray of shape (D, t)
        sizes : ndarray of shape (2, t)
            ‖√W e‖ and ‖W e‖ of the errors.
        condition : float
        rounded : ndarray of shape (t,)
            ‖√W v‖ of the numbers whose rounding the errors have.
        """
        t = len(rounded)
        bounds = self._bounds(left, self._diagonal, np.full(t, condition))
        heaviest = 1.0 if self._data.weights is None else float(np.sqrt(self._data.weights.max(initial=0.0)))
        with np.errstate(over="ignore", invalid="ignore"):
            changes = heaviest * (bounds * self._target_sizes.ordinary + EPS * rounded)
            duals = np.where(self._data.alphas > 0, relative_by_columns(changes, sizes[1]), 0.0)
        return Judgement(self._relative(left, np.arange(t)), bounds, duals)

    def _ended(self, outcome: CGOutcome, found: "Judgement") -> CGOutcome:
        """Outcome with its status, and the residuals that are reported."""
        residuals, status = found.residuals, outcome.status
        is_converged = residuals <= self._tol
        if is_converged.all():
            status = Status.CONVERGED
        elif status is not Status.MAX_ITERATIONS:
            status = Status.SOLVED if (is_converged | (found.bounds <= self._tol)).all() else Status.STALLED
        if status is Status.SOLVED:
            residuals = np.where(is_converged, residuals, found.bounds)
            messages = inexact_duals(float(found.duals[~is_converged].max()))
            outcome = replace(outcome, messages=(*outcome.messages, *messages))
        is_dual = (self._data.alphas > 0).all() and status is not Status.SOLVED
        self.residual_of = DUAL_SYSTEM if is_dual else NORMAL_EQUATIONS
        return replace(outcome, residuals=residuals, status=status)

    def solution(self, outcome: CGOutcome) -> Solution:
        """Solution of all targets, with the training errors by these coefficients."""
        found = {"residual": float(outcome.residuals.max()), "residuals": outcome.residuals}
        return self._solution(
            self._rows,
            self._errors,
            self._totals,
            outcome.x,
            outcome=outcome,
            condition=outcome.condition,
            residual_of=self.residual_of,
            **found,
        )
