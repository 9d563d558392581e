"""Ridge regression in both forms, and the solutions that their systems make up.

In the dual form these are (C K C + diag(s)) β = C y, C² = W; in the primal form (ΦᵀWΦ + λI) w = ΦᵀWy.
"""

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dkrr.fitting.context import Context
from dkrr.fitting.data import TargetSizes, TrainingData
from dkrr.fitting.gram import (
    NOT_CONTRACTING,
    AppliedFactor,
    FactoredGram,
    Float32Gram,
    GramMatrix,
    MultipliedGram,
)
from dkrr.fitting.iteration import iteration_of, pivot_rule, pivots_of, settings_of
from dkrr.fitting.normal_rows import FormedRows, StreamedRows
from dkrr.fitting.results import Solution
from dkrr.linalg.conjugate_gradient import Iteration
from dkrr.linalg.iteration_state import CGOutcome, State
from dkrr.linalg.preconditioners import Deferred, Diagonal, Identity, LowRank, Preconditioner
from dkrr.linalg.products import LastProduct, column_norms, column_sizes
from dkrr.linalg.refinement import Refinement
from dkrr.linalg.residual import (
    Check,
    SolvedProbe,
    energies,
    freed,
    relative_by_columns,
    scaling_of,
    take_constants,
    worst,
)
from dkrr.linalg.result import (
    DUAL_SYSTEM,
    INACCURATE_ABOVE,
    NORMAL_EQUATIONS,
    Status,
    direct_status,
    inexact_duals,
    is_doubtful,
)
from dkrr.linalg.sources import Vectors
from dkrr.planning import Direct, Float32Factor, Iterative, Plan
from dkrr.text import plural

Array = NDArray[np.float64]
Group = tuple[NDArray[np.intp], int]
"""Targets, and the number of right-hand sides that they have."""

MAX_TIGHTENINGS = 3
"""Times that an iteration is continued with a smaller tolerance since the coefficients did not meet the given one."""
CANCELLED = (
    "the residual is that of the coefficients, which with a free intercept are differences of nearly equal numbers: "
    "increase alpha, or bring the sample weights nearer to each other"
)
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
REFINED = "factored in float32, and refined in float64 to the level of rounding ({iterations} iterations)"


def tightened(tol: float, reached: float, residual: float) -> float | None:
    """Tolerance for u and v with which the residual of α should meet `tol`; None if no smaller one helps.

    Parameters
    ----------
    reached : float
        Residual of u and v.
    residual : float
        Residual of α, of which they leave so much; it may be infinite or NaN.
    """
    smaller = 0.5 * reached * (tol / residual) if residual > 0 else 0.0
    return smaller if smaller > 0 else None


@dataclass(frozen=True)
class RidgeSystem:
    """System of the targets that share one value of λ."""

    number: int
    alpha: float
    columns: NDArray[np.intp]
    """Numbers of the targets."""
    shift: Array
    """s, of shape (n,) or (D,)."""
    right_sides: Array
    """One for each target, and in dual form with a free intercept one for the constant."""


class DualRidge:
    """Systems of the dual form, and the solution while it is put together; subclasses for each way to solve them."""

    matrix: GramMatrix

    def __init__(self, data: TrainingData, plan: Plan) -> None:
        self._plan, self.scale = plan, data.dual_scale()
        self._numbers = {alpha: g for g, (alpha, _) in enumerate(data.alpha_groups())}
        self._in_batches = plan.problem.batch > 0
        if not self._in_batches:
            self._begin(data)

    def of_batch(self, data: TrainingData) -> Self:
        """The same systems for a batch of the targets, with the same matrix and factors."""
        one = copy(self)
        one._begin(data)
        return one

    def release(self, alpha: float) -> None:
        """Give up what only the targets of one λ need, once all of its batches are solved."""

    def _begin(self, data: TrainingData) -> None:
        """Make room for the solution of these targets."""
        self._data, self._means = data, data.target_means()
        self._coef, self._intercept = np.empty(data.targets.shape), self._means.copy()
        self._squares, self._residuals = np.empty(len(self._means)), np.empty(len(self._means))
        self._checks = list[Check]()

    def systems(self) -> Iterator[RidgeSystem]:
        """One system after another."""
        data = self._data
        for alpha, columns in data.alpha_groups():
            number = self._numbers[alpha]
            sides = data.dual_right_sides(columns, self._means)
            yield RidgeSystem(number, alpha, columns, data.dual_shift(alpha), sides)

    def _take(self, columns: NDArray[np.intp], beta: Array) -> Array | None:
        """Take the solution for some targets, and return the parts of their free constants; None without any."""
        self._coef[:, columns], constants = self._data.dual_coefficients(beta)
        self._intercept[columns] = self._means[columns] + constants.sum(axis=0)
        return constants if self._data.fit_intercept else None

    def _note(self, columns: NDArray[np.intp], check: Check) -> None:
        self._squares[columns], self._residuals[columns] = check.squares, check.residual
        self._intercept[columns] += check.constants
        self._checks.append(check)

    def iterate(
        self, iteration: Iteration, groups: Sequence[Group], state: State | None = None, start: Array | None = None
    ) -> CGOutcome:
        """Take what conjugate gradient finds, until the coefficients themselves meet the tolerance.

        With free constants α = u − v b; its residual exceeds those of u and v where b is large or they cancel.

        Parameters
        ----------
        iteration : Iteration
        groups : sequence of (ndarray of intp, int)
            Targets that have right-hand sides, and how many right-hand sides these are, in the order of the iteration.
        state : State, optional
            To resume from.
        start : ndarray of shape (n, number of right-hand sides), optional
            First guess, where there is no state.
        """
        tol, products = float(iteration.tol), LastProduct(iteration.operator)
        iteration = replace(iteration, operator=products)
        outcome = iteration.run(start, state)
        residuals, squares = self._checked(groups, iteration, products, outcome)
        for _ in range(MAX_TIGHTENINGS):
            smaller = tightened(tol, min(float(iteration.tol), float(outcome.residuals.max())), float(residuals.max()))
            if (residuals <= tol).all() or smaller is None:
                break
            further = iteration.continued(outcome, smaller)
            if further is None:
                break
            outcome = further
            residuals, squares = self._checked(groups, iteration, products, outcome)
        if outcome.status is Status.CONVERGED and not (residuals <= tol).all():
            outcome = replace(outcome, status=Status.STALLED, messages=(*outcome.messages, CANCELLED))
        elif outcome.status is not Status.CONVERGED and (residuals <= tol).all():
            outcome = replace(outcome, status=Status.CONVERGED)
        targets = np.concatenate([columns for columns, _ in groups])
        condition = outcome.condition
        if is_doubtful(condition):
            condition = self._scaled_condition(condition, iteration, outcome)
        self._note(targets, Check(float(residuals.max()), squares, condition))
        self._residuals[targets] = residuals
        return outcome

    def _scaled_condition(self, condition: float, iteration: Iteration, outcome: CGOutcome) -> float:
        """Estimate of κ₂ of D⁻¹(A + s)D⁻¹ with a diagonal of ones, where κ₂ of A + s may only say that rows differ.

        From the solutions, since its largest eigenvalue is at most n and its smallest at most bᵀx / ‖Dx‖²; and not
        below κ₂ of A + s over the largest quotient of D², which scaling cannot change it by more than.
        """
        x, b, diagonal = outcome.x, iteration.right_sides, self.matrix.scaled_diagonal
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            lengths = diagonal @ x**2 + np.einsum("ij,ij->j", iteration.shift * x, x)
            found = float(np.fmax.reduce(len(x) * lengths / energies(x, b)))
            own = (diagonal if self.scale is None else diagonal[self.scale > 0]) + iteration.shift.min()
            return min(condition, max(found, condition * float(own.min() / own.max())))

    def _checked(
        self, groups: Sequence[Group], iteration: Iteration, products: LastProduct, outcome: CGOutcome
    ) -> tuple[Array, Array]:
        """Relative residuals and squares by targets, in the order of the groups."""
        solutions, right_sides, sizes, kept, first = list[Array](), list[Array](), list[Array](), list[int](), 0
        for targets, width in groups:
            where = slice(first, first + width)
            x, b = outcome.x[:, where], iteration.right_sides[:, where]
            constants = self._take(targets, x)
            sizes.append(column_norms(b[:, : len(targets)]))
            if constants is not None:
                x, b = freed(x.copy(), constants), freed(b.copy(), constants)
            solutions.append(x)
            right_sides.append(b)
            kept += range(first, first + len(targets))
            first = where.stop
        x, b = (np.hstack(part) if len(part) > 1 else part[0] for part in (solutions, right_sides))
        shift = iteration.shift if iteration.shift.shape[1] == 1 else iteration.shift[:, kept]
        unit = column_sizes(iteration.right_sides)[kept]  # with which the iteration works
        product = products.of(x / unit) * unit
        with np.errstate(over="ignore", invalid="ignore"):
            norms, left = np.concatenate(sizes), (b - product - shift * x) / unit
            if self._data.fit_intercept:
                constant = np.ones(len(b)) if self.scale is None else self.scale
                self._intercept[np.concatenate([targets for targets, _ in groups])] += (
                    take_constants(left, constant)[0] * unit
                )
            return column_norms(left) / np.where(norms > 0, norms / unit, 1.0), energies(x, product)

    def solution(self, outcome: CGOutcome | None = None) -> Solution:
        """Solution of all targets, once all systems are solved."""
        return Solution(
            dual_coef=self._coef,
            coef=None,
            intercept=self._intercept,
            rows=self.matrix.rows,
            residual=float(np.max([c.residual for c in self._checks])),
            condition=worst([c.condition for c in self._checks]),
            outcome=outcome,
            residuals=self._residuals,
            squares=self._squares,
        )


class DirectDual(DualRidge):
    """Systems that are solved by a factorisation each."""

    def __init__(self, strategy: Direct, data: TrainingData, plan: Plan, context: Context) -> None:
        super().__init__(data, plan)
        self.matrix: FactoredGram = FactoredGram(data, strategy, context, self.scale)

    def solve(self, system: RidgeSystem) -> None:
        """Solve a system."""

        def settle(x: Array) -> Array | None:
            return self._take(system.columns, x)

        solve = self.matrix.systems.solve_again if self._in_batches else self.matrix.systems.solve
        check = solve(f"system-{system.number}", system.shift, system.right_sides, settle).check
        assert check is not None
        self._note(system.columns, check)

    def release(self, alpha: float) -> None:
        self.matrix.systems.release(f"system-{self._numbers[alpha]}")


class IteratedDual(DualRidge):
    """Systems that conjugate gradient solves all at once."""

    def __init__(self, strategy: Iterative, data: TrainingData, plan: Plan, context: Context) -> None:
        super().__init__(data, plan)
        self._context = context
        self.matrix: MultipliedGram = MultipliedGram(data, strategy, context, self.scale)
        self._kept = dict[str, Any]()
        """Operator and partial factor, which all batches share."""

    def iteration(self, *, is_deferred: bool = False) -> tuple[Iteration, list[Group]]:
        """Conjugate gradient with the preconditioner of the plan, and what it solves for.

        `is_deferred` makes the preconditioner when it is first applied.
        """
        systems = list(self.systems())
        groups = [(s.columns, s.right_sides.shape[1]) for s in systems]
        right_sides = np.hstack([s.right_sides for s in systems])
        shift = np.concatenate([np.full(width, s.alpha) for s, (_, width) in zip(systems, groups, strict=True)])[
            None, :
        ]
        if "operator" not in self._kept:
            self._kept["operator"] = self.matrix.operator()
        operator, has_factor = self._kept["operator"], self.matrix.rank_limit > 0
        preconditioner = (
            Deferred(lambda: self._preconditioner(shift), captures_constant=has_factor)
            if is_deferred
            else self._preconditioner(shift)
        )
        constant = np.ones(len(right_sides)) if self.scale is None else self.scale
        iteration = iteration_of(
            self._plan,
            self._context,
            operator,
            shift,
            right_sides,
            preconditioner,
            mixed=self.matrix.is_mixed,
            deflate=None if preconditioner.captures_constant else constant,
        )
        return iteration, groups

    def _preconditioner(self, shift: Array) -> Preconditioner:
        if self.matrix.rank_limit == 0:
            return Identity()
        plan, importance = self._plan, None if self.scale is None else self.scale**2
        if "factor" not in self._kept:
            is_enough = pivot_rule(plan, min(plan.problem.alphas), plan.problem.tol)
            self._kept["factor"] = self.matrix.partial_factor(importance, pivots_of(plan), is_enough)
        return LowRank(self._kept["factor"], shift, self.scale, self.matrix.is_mixed)


@dataclass
class CompleteFactor(Preconditioner):
    """(L Lᵀ)⁻¹ with a complete factor."""

    factor: AppliedFactor
    captures_constant = True

    def apply(self, residuals: Array, columns: NDArray[np.intp]) -> Array:  # noqa: ARG002
        return self.factor.apply(residuals)


class FactoredDual(DualRidge):
    """Systems that are solved one after the other, each by iterations with a complete factor in float32."""

    def __init__(self, strategy: Float32Factor, data: TrainingData, plan: Plan, context: Context) -> None:
        super().__init__(data, plan)
        self._strategy, self._context = strategy, context
        self.matrix: Float32Gram = Float32Gram(data, strategy, context, self.scale)
        self._factors = dict[str, CompleteFactor]()

    def solve(self, system: RidgeSystem) -> CGOutcome:
        """Solve a system: to the tolerance of an iterative solver that was requested, else to the level of rounding."""
        matrix, group = self.matrix, f"factored-{system.number}"
        solve = self._to_rounding if self._strategy.tol is None else self._to_tolerance
        if group not in self._factors:
            self._factors[group] = CompleteFactor(matrix.factor(group, system.shift, family=group))
        outcome = solve(system, self._factors[group], is_last=bool(matrix.breakdown(group)))
        if outcome is None:
            del self._factors[group]
            matrix.give_up(group, group, NOT_CONTRACTING)
            self._factors[group] = CompleteFactor(matrix.factor(group, system.shift, family=group))
            outcome = solve(system, self._factors[group], is_last=True)
        assert outcome is not None
        if not self._in_batches:
            self.release(system.alpha)
        broken = matrix.breakdown(group)
        return replace(outcome, messages=(broken, *outcome.messages)) if broken else outcome

    def release(self, alpha: float) -> None:
        group = f"factored-{self._numbers[alpha]}"
        if self._factors.pop(group, None) is not None and not self._context.storage.keeps:
            self.matrix.release(group)

    def _to_tolerance(
        self,
        system: RidgeSystem,
        preconditioner: CompleteFactor,
        *,
        is_last: bool = False,  # noqa: ARG002
    ) -> CGOutcome | None:
        operator, shift, right_sides = self.matrix.operator(), system.shift[:, None], system.right_sides
        iteration = iteration_of(self._plan, self._context, operator, shift, right_sides, preconditioner)
        return self.iterate(iteration, [(system.columns, right_sides.shape[1])])

    def _to_rounding(
        self, system: RidgeSystem, preconditioner: CompleteFactor, *, is_last: bool = False
    ) -> CGOutcome | None:
        """None where iterations do not reach it and another factor may."""
        products = LastProduct(self.matrix.operator())
        begun = Refinement.begun(
            products,
            self.matrix.scaled_diagonal,
            system.shift,
            system.right_sides,
            preconditioner,
            self._context.progress,
        )
        outcome = begun.iteration.run(state=begun.start)
        if outcome.status is not Status.CONVERGED and not is_last:
            return None
        groups = [(system.columns, system.right_sides.shape[1])]
        residuals, squares = self._checked(groups, begun.iteration, products, outcome)
        largest = float(residuals.max())
        self._note(system.columns, Check(largest, squares, begun.condition))
        self._residuals[system.columns] = residuals
        done = () if is_last else (REFINED.format(iterations=outcome.iterations),)
        return replace(outcome, status=direct_status(largest), messages=(*done, *outcome.messages))


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
                bounds = _over(column_norms(left) / np.sqrt(alphas), self._target_sizes.ordinary)
            if (np.fmin(bounds, residuals) <= tol).all():
                message = UNREACHED_DUALS.format(residual=residuals.max(), bound=np.nanmax(bounds))
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
