"""Ridge regression in primal form, (ΦᵀWΦ + λI) w = ΦᵀWy, by a factor or by conjugate gradient.

A result answers for predictions, not for its normal equations: by the residual of the dual system where dual
coefficients are iterated to it, else by what the residual of the normal equations may change.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkrr.fitting.context import Context
from dkrr.fitting.data import TargetSizes, TrainingData
from dkrr.fitting.dual_ridge import Group, RidgeSystem
from dkrr.fitting.iteration import iteration_of, settings_of
from dkrr.fitting.normal_rows import FormedRows, StreamedRows
from dkrr.fitting.results import Solution
from dkrr.linalg.conjugate_gradient import Iteration
from dkrr.linalg.iteration_state import CGOutcome, State
from dkrr.linalg.preconditioners import Diagonal, Identity, Preconditioner
from dkrr.linalg.products import column_norms
from dkrr.linalg.residual import SolvedProbe, relative_by_columns, scaling_of, worst
from dkrr.linalg.result import DUAL_SYSTEM, INACCURATE_ABOVE, NORMAL_EQUATIONS, Status, inexact_duals
from dkrr.linalg.sources import Vectors
from dkrr.planning import Direct, Iterative, Plan
from dkrr.text import plural

Array = NDArray[np.float64]

REFINED_DUALS = "dual_coef_ refined {times}, for a smaller residual of the dual system"
UNREACHED_DUALS = (
    "the residual of the dual system is {residual:.1e}: alpha is so small that float64 does not hold errors from which "
    "dual_coef_ follows. Predictions at the training rows are right to {bound:.1e} of the targets"
)
INEXACT_PREDICTIONS = (
    "predictions may be off by {bound:.0e} of the targets: rounding in the normal matrix hides what rows of ordinary "
    "weights say; increase alpha, bring the sample weights or the columns of X nearer to each other, or use form='dual'"
)
MAX_REFINEMENTS, LEAST_GAIN = 4, 0.5
"""Times that dual coefficients of conjugate gradient in primal form are refined, and the residual over the one before
above which that ends."""
LEAST_AMPLIFICATION, LEAST_REACHED = 1e3, 1e-13
"""√κ that least squares without λ are taken to have until an iteration has shown more; and the relative residual of
normal equations that it is expected to reach."""

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
    lengths = np.sqrt(np.maximum(diagonal, 0.0))
    if data.weights is None:
        sizes = column_norms(data.targets)
    else:  # with many targets no second array of their size
        most = max(float(data.weights.max()), np.finfo(float).tiny)
        sizes = np.sqrt(most) * np.sqrt(np.einsum("ij,ij,i->j", data.targets, data.targets, data.weights / most))
    with np.errstate(over="ignore"):
        largest, norms = column_norms(lengths[:, None]) * sizes, column_norms(moments)
        for k in np.flatnonzero(norms <= ONLY_ROUNDING * largest):
            # Feature by feature: one of small numbers may be all that a target depends on.
            if (np.abs(moments[:, k]) <= ONLY_ROUNDING * lengths * sizes[k]).all():
                moments[:, k], norms[k] = 0.0, largest[k]
    return norms


def _over(values: Array, sizes: Array) -> Array:
    """Quotients, with the values themselves where a size is 0."""
    return np.asarray(values / np.where(sizes > 0, sizes, 1.0))


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
            Their weighted sums. With a free constant these are 0 but for rounding, which a large weight makes large in
            the dual coefficients: what they are belongs to the constant.
        """
        data, centre = self._data, rows.centre
        constants = totals / rows.total_weight if data.fit_intercept and rows.total_weight > 0 else None
        intercept = self._means if centre is None else self._means - centre @ coef
        return Solution(
            dual_coef=self._dual_coef(rows.loaded_errors(errors, data.room_for_errors), constants),
            coef=coef,
            intercept=intercept if constants is None else intercept + constants,
            rows=None,
            **found,
        )

    def _dual_coef(self, errors: Array, constants: Array | None) -> Array | None:
        """Dual coefficients by y − f(X) = λ W⁻¹ α, which take the place of the errors; None where some λ is 0."""
        data = self._data
        if not (data.alphas > 0).all():
            return None
        if constants is not None:
            errors -= constants
        dual = np.divide(errors, data.alphas, out=errors)
        if data.weights is not None:
            dual *= data.weights[:, None]
        return dual


class DirectPrimal(PrimalRidge):
    """Systems of the normal matrix, which is formed first, solved by a factorisation each."""

    def __init__(self, strategy: Direct, data: TrainingData, plan: Plan, context: Context) -> None:
        super().__init__(data, plan, context)
        self._rows = FormedRows(strategy, data, context, self._less)
        self._probes = list[SolvedProbe]()

    def systems(self) -> Iterator[RidgeSystem]:
        """One system after another."""
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
        found = self._systems.solve(f"system-{system.number}", system.shift, system.right_sides)
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
        conditions = [p.condition(products[:, g]) for g, p in enumerate(self._probes)]
        solution = self._solution(
            self._rows,
            errors,
            totals[:t],
            coef,
            residual=float(residuals.max()),
            residuals=residuals,
            residual_of=NORMAL_EQUATIONS,
            condition=worst(conditions),
        )
        return self._judged(solution, left, conditions)

    def _judged(self, solution: Solution, left: Array, conditions: Sequence[float]) -> Solution:
        """Solution with what the residuals of its normal equations say of predictions and of dual coefficients.

        With A + λI = D S D, S of a unit diagonal, a residual r changes the weighted predictions by at most
        ‖(A + λI)^(−1/2) r‖ ≤ min(‖r‖ / √λ, √κ(S) ‖D⁻¹r‖). And Φᵀα − w = r / λ: where the errors of a few heavy rows are
        rounded, their α are off by as much as that is, over the length of a row of features.
        """
        data, diagonal, messages = self._data, self._systems.diagonal, list[str]()
        bounds = np.empty(len(data.alphas))
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            for (alpha, columns), condition in zip(data.alpha_groups(), conditions, strict=True):
                scaled = column_norms(left[:, columns] / scaling_of(diagonal + alpha)[:, None])
                by_alpha = column_norms(left[:, columns]) / np.sqrt(alpha)
                bounds[columns] = np.fmin(by_alpha, scaled * np.sqrt(condition))
            bounds = _over(bounds, self._target_sizes.ordinary)
            if solution.dual_coef is not None:
                length = np.sqrt(diagonal.sum() / self._rows.total_weight)
                sizes = np.sqrt(np.einsum("ij,ij->j", solution.dual_coef, solution.dual_coef))  # without a copy
                change = _over(column_norms(left) / data.alphas / length, sizes)
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


class IteratedPrimal(PrimalRidge):
    """Systems that conjugate gradient solves all at once, by passes over the rows.

    With the training errors E = Y − ΦX the dual coefficients are α = WE/λ, and Φᵀα − X = r/λ for the residual r of the
    normal equations: so the residual of the dual system (K + λW⁻¹)α = y is Φr/λ, to which iterations go. Relative to
    the targets, weighted and not, it is how far targets would have to be off for α to be exact. What rounding leaves
    of it is refined as on a Fourier grid: (A + λI)c = r, w + c and E − Φc. With λ = 0 there is no dual system, and the
    bound of `DirectPrimal` takes its place, with the condition number that the iteration has shown.
    """

    def __init__(self, strategy: Iterative, data: TrainingData, plan: Plan, context: Context) -> None:
        super().__init__(data, plan, context)
        self._rows = StreamedRows(strategy, data, context, self._less)

    def iteration(self) -> tuple[Iteration, list[Group]]:
        """Conjugate gradient for all targets, and what it solves for."""
        data, rows = self._data, self._rows
        # As in the dual form, all values of alpha are columns of the same passes.
        shift, moments = data.alphas[None, :], rows.moments()
        preconditioner: Preconditioner = Identity()
        self._norms, self._scaling = column_norms(moments), np.ones(len(moments))
        self._amplification = float(np.clip(self._plan.problem.tol / LEAST_REACHED, 1.0, LEAST_AMPLIFICATION))
        if settings_of(self._plan).preconditioner == "auto":
            diagonal = rows.diagonal()
            if diagonal is not None:
                preconditioner = Diagonal(diagonal[:, None], shift)
                self._scaling, self._norms = scaling_of(diagonal), self._target_sizes.ordinary
        iteration = iteration_of(self._plan, self._context, rows.operator(), shift, moments, preconditioner)
        iteration.measure = self._relative
        return iteration, [(np.arange(len(data.alphas)), len(data.alphas))]

    def _relative(self, residuals: Array, columns: NDArray[np.intp]) -> Array:
        """Relative residuals of the dual systems; of the normal equations where λ is 0."""
        alphas, sizes = self._data.alphas[columns], self._target_sizes
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            scaled = column_norms(residuals / self._scaling[:, None])
            found = self._amplification * _over(scaled, self._norms[columns])
            if (alphas > 0).any():
                weighted, plain = self._rows.value_norms(residuals)
                dual = np.maximum(_over(weighted, sizes.weighted[columns]), _over(plain, sizes.plain[columns])) / alphas
                found = np.where(alphas > 0, dual, found)
            return found

    def iterate(self, iteration: Iteration, groups: Sequence[Group], state: State | None = None) -> CGOutcome:  # noqa: ARG002
        """Run it, and refine what it found until the dual coefficients meet the tolerance."""
        data, rows = self._data, self._rows
        outcome, everything, tol = iteration.run(state=state), np.arange(len(data.alphas)), float(iteration.tol)
        errors = other = rows.new_errors(data.room_for_errors)
        gradient, self._totals = rows.subtract(None, outcome.x, errors)
        self._amplification = max(self._amplification, np.nan_to_num(np.sqrt(outcome.condition), nan=1.0))
        coef, rounds = outcome.x, 0
        left = gradient - coef * data.alphas
        residuals, gained = self._relative(left, everything), True
        while gained and not (residuals <= tol).all() and rounds < MAX_REFINEMENTS:
            if outcome.status is Status.MAX_ITERATIONS:  # a run of the same store goes on
                break
            further = Iteration(
                operator=iteration.operator,
                shift=iteration.shift,
                right_sides=np.where(residuals <= tol, 0.0, left),
                preconditioner=iteration.preconditioner,
                tol=tol,
                max_iter=max(1, iteration.max_iter - outcome.iterations),
                progress=iteration.progress,
                estimates_condition=False,
                measure=self._relative,
            ).run()
            if other is errors and not self._context.in_memory:
                # A task that runs twice, since its worker was lost, must find the errors as they were.
                other = rows.new_errors(data.room_for_errors, "refined")
            gradient, self._totals = rows.subtract(errors, further.x, other)
            errors, other, coef, rounds = other, errors, coef + further.x, rounds + 1
            left = gradient - coef * data.alphas
            before, residuals = residuals, self._relative(left, everything)
            gained = bool(residuals.max() <= LEAST_GAIN * before.max())
            outcome = replace(outcome, iterations=outcome.iterations + further.iterations)
        self._errors = errors
        messages = (*outcome.messages, *([REFINED_DUALS.format(times=plural(rounds, "time"))] if rounds else []))
        return self._judged(replace(outcome, x=coef, messages=messages), residuals, left, tol)

    def _judged(self, outcome: CGOutcome, residuals: Array, left: Array, tol: float) -> CGOutcome:
        """Outcome with its status by the residuals of the dual systems, or by what predictions may be off by.

        Where λ is far below the eigenvalues of A, float64 does not hold errors from which α would follow; predictions
        need less, since a residual r of the normal equations changes them by ‖r‖ / √λ at most.
        """
        self.residual_of, status = DUAL_SYSTEM, outcome.status
        if (residuals <= tol).all():
            status = Status.CONVERGED
        elif status is Status.CONVERGED:
            status = Status.STALLED
        alphas = self._data.alphas
        if status is Status.STALLED:
            with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                bounds = np.fmin(residuals, _over(column_norms(left) / np.sqrt(alphas), self._target_sizes.ordinary))
            if (bounds <= tol).all():
                message = UNREACHED_DUALS.format(residual=residuals.max(), bound=bounds.max())
                outcome = replace(outcome, messages=(*outcome.messages, message))
                residuals, status, self.residual_of = bounds, Status.SOLVED, NORMAL_EQUATIONS
        if not (alphas > 0).all():
            self.residual_of = NORMAL_EQUATIONS
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
