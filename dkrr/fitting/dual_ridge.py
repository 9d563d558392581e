"""Ridge regression in dual form, (C K C + diag(s)) β = C y with C² = W, and the solutions that its systems make up."""

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dkrr.blas import column_norms, column_sizes
from dkrr.data import MemoryRows, Rows
from dkrr.fitting.alpha_check import growth_messages
from dkrr.fitting.context import Context
from dkrr.fitting.costs.details import Direct, Float32Factor, Iterative
from dkrr.fitting.data import TrainingData
from dkrr.fitting.gram import (
    NOT_CONTRACTING,
    FactoredGram,
    Float32Gram,
    GramMatrix,
    GramOperator,
)
from dkrr.fitting.iteration import iteration_of, pivot_rule, pivots_of
from dkrr.fitting.results import Left, SavedPosterior, Solution
from dkrr.linalg.condition import worst
from dkrr.linalg.conjugate_gradient import Iteration
from dkrr.linalg.factor import Factor
from dkrr.linalg.gram_products import LastProduct
from dkrr.linalg.iteration_state import CGOutcome, State
from dkrr.linalg.preconditioners import Identity, LazyPreconditioner, LowRank, Preconditioner
from dkrr.linalg.refinement import Refinement, rounding_level
from dkrr.linalg.residual import Check, energies, subtract_intercept_residual, without_intercept
from dkrr.linalg.result import Status, direct_status, is_doubtful
from dkrr.linalg.triangle import TriangleRows
from dkrr.planning import Plan
from dkrr.text import plural

Array = NDArray[np.float64]
Group = tuple[NDArray[np.intp], int]
"""Targets, and the number of right-hand sides that they have."""

MAX_TIGHTENINGS = 3
"""Times that an iteration is continued with a smaller tolerance since the coefficients did not meet the given one."""
NEGLIGIBLE_ROUNDING = 0.1
"""Residual that rounding may leave, over the tolerance, in products of coefficients that are computed from others."""
CANCELLATION = (
    "the residual is that of the coefficients, which with an intercept are differences of nearly equal numbers: "
    "increase alpha, or bring the sample weights nearer to each other"
)
REFINED = "factored in float32, and refined in float64 to the level of rounding ({iterations})"


def tightened(tol: float, reached: float, residual: float) -> float | None:
    """Tolerance for u and v with which the residual of α should meet `tol`; None if no smaller one helps.

    Parameters
    ----------
    reached : float
        Residual of u and v.
    residual : float
        Residual of α that results from these; it may be infinite or NaN.
    """
    smaller = 0.5 * reached * (tol / residual) if residual > 0 else 0.0
    return smaller if smaller > 0 else None


def _beside(parts: Sequence[Array]) -> Array:
    return np.hstack(parts) if len(parts) > 1 else parts[0]


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
    """Right-hand side of each target, and in dual form with an intercept that of the constant."""


class DualRidge:
    """Systems of the dual form, and the solution while it is put together; subclasses for each way to solve them."""

    matrix: GramMatrix
    _messages: tuple[str, ...] = ()
    """Messages of its solution."""
    _has_grown: bool = False
    """What earlier rows have left has grown, or there is nothing."""

    def __init__(self, data: TrainingData, plan: Plan) -> None:
        self._plan, self.scale = plan, data.dual_scale()
        alphas = sorted(set(data.alphas.tolist()))
        self._numbers = dict(zip(alphas, range(len(alphas)), strict=True))
        self._in_batches = plan.problem.batch > 0
        if not self._in_batches:
            self._begin(data)

    def of_batch(self, data: TrainingData) -> Self:
        """Systems of a batch of the targets, with the same matrix and factors."""
        one = copy(self)
        one._begin(data)
        return one

    def release(self, alpha: float) -> None:
        """Give up what only the targets of one λ need, once all of its batches are solved."""

    def saved(self) -> Mapping[float, SavedPosterior]:
        """By λ, the factors that stay after the fit."""
        return {}

    def _begin(self, data: TrainingData) -> None:
        """Make room for the solution of these targets."""
        self._data, self._means = data, data.target_means()
        self._coef, self._intercept = np.empty(data.targets.shape), self._means.copy()
        self._squares, self._residuals = np.empty(len(self._means)), np.empty(len(self._means))
        self._worst_residuals, self._conditions = list[float](), list[float]()

    def systems(self) -> Iterator[RidgeSystem]:
        """Iterate over the systems, one for each distinct λ."""
        data = self._data
        for alpha, columns in data.alpha_groups():
            number = self._numbers[alpha]
            sides = data.dual_right_sides(columns, self._means)
            yield RidgeSystem(number, alpha, columns, data.dual_shift(alpha), sides)

    def _take(self, columns: NDArray[np.intp], beta: Array) -> Array | None:
        """Store the solution for some targets, and return the parts of their intercepts; None without an intercept."""
        self._coef[:, columns], constants = self._data.dual_coefficients(beta)
        self._intercept[columns] = self._means[columns] + constants.sum(axis=0)
        return constants if self._data.fit_intercept else None

    def _note(self, columns: NDArray[np.intp], check: Check) -> None:
        self._squares[columns], self._residuals[columns] = check.squares, check.residual
        self._intercept[columns] += check.constants
        self._worst_residuals.append(check.residual)
        self._conditions.append(check.condition)

    def iterate(
        self, iteration: Iteration, groups: Sequence[Group], state: State | None = None, start: Array | None = None
    ) -> CGOutcome:
        """Take what conjugate gradient finds, until the coefficients themselves meet the tolerance.

        With an intercept α = u − v b; its residual exceeds those of u and v where b is large or they cancel.

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
        if start is not None and self.scale is not None:
            start = np.where(self.scale[:, None] > 0, start, 0.0)  # rows that an earlier run had, and that are left out
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
            outcome = replace(outcome, status=Status.STALLED, messages=(*outcome.messages, CANCELLATION))
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
        """Relative residuals and squares by targets, in the order of the groups.

        K α is K u − K v b, of the last products, unless u and v b cancel so far that rounding would show.
        """
        solutions, right_sides, sizes, terms = list[Array](), list[Array](), list[Array](), list[Array]()
        parts, kept, first = list[tuple[slice, Array | None]](), list[int](), 0
        for targets, width in groups:
            where = slice(first, first + width)
            x, b = outcome.x[:, where], iteration.right_sides[:, where]
            constants = self._take(targets, x)
            parts.append((where, constants))
            sizes.append(column_norms(b[:, : len(targets)]))
            if constants is not None:
                of_x = column_norms(x)
                terms.append(of_x[: len(targets)] + of_x[len(targets)] * np.abs(constants).sum(axis=0))
                x, b = without_intercept(x.copy(), constants), without_intercept(b.copy(), constants)
            solutions.append(x)
            right_sides.append(b)
            kept += range(first, first + len(targets))
            first = where.stop
        x, b, norms = _beside(solutions), _beside(right_sides), np.concatenate(sizes)
        shift = iteration.shift if iteration.shift.shape[1] == 1 else iteration.shift[:, kept]
        units = column_sizes(iteration.right_sides)  # with which the iteration works
        unit = units[kept]
        level = rounding_level(len(x), self.matrix.largest, np.concatenate(terms)[None], norms[None]) if terms else 1.0
        if np.all(level <= NEGLIGIBLE_ROUNDING * np.min(iteration.tol)):
            images = products.of(outcome.x / units) * units
            product = _beside([without_intercept(images[:, where], constants) for where, constants in parts])
        else:
            product = products.of(x / unit) * unit
        with np.errstate(over="ignore", invalid="ignore"):
            left = (b - product - shift * x) / unit
            if self._data.fit_intercept:
                constant = np.ones(len(b)) if self.scale is None else self.scale
                more, _ = subtract_intercept_residual(left, constant)
                self._intercept[np.concatenate([targets for targets, _ in groups])] += more * unit
            return column_norms(left) / np.where(norms > 0, norms / unit, 1.0), energies(x, product)

    def solution(self, outcome: CGOutcome | None = None) -> Solution:
        """Solution of all targets, once all systems are solved."""
        return Solution(
            dual_coef=self._coef,
            coef=None,
            intercept=self._intercept,
            rows=self.matrix.rows,
            residual=float(np.max(self._worst_residuals)),
            condition=worst(self._conditions),
            outcome=outcome,
            residuals=self._residuals,
            squares=self._squares,
            messages=self._messages,
            saved={} if self._in_batches else self.saved(),
        )


class DirectDual(DualRidge):
    """Systems that are solved by a factorisation each."""

    def __init__(self, strategy: Direct, data: TrainingData, plan: Plan, context: Context) -> None:
        super().__init__(data, plan)
        self.matrix: FactoredGram = FactoredGram(data, strategy, context, self.scale)
        self._context, self._shift_of = context, data.dual_shift
        self._keeps, self._factors = strategy.keeps_factors, dict[int, Factor]()
        """Factors that are kept, for standard deviations or further batches, by the numbers of their systems."""
        self._is_deleted = not (self._keeps or context.storage.keeps)
        """A system is deleted in the storage once it is solved: no run resumes it, and nothing takes its factor."""
        self._grows = context.kept is not None

    def solve(self, system: RidgeSystem) -> None:
        """Solve a system."""
        systems, group = self.matrix.systems, f"system-{system.number}"
        self._grow()
        factor = self._factors.pop(system.number, None)
        if factor is None:
            factor = systems.factor(group, system.shift)
        if self._keeps or self._in_batches:
            self._factors[system.number] = factor
        place = group
        if self._in_batches:
            place = f"{group}/batch"
            systems.release(place)  # of the batch before, or of one that a killed run has not finished
        solution = systems.solve(place, factor, system.shift, system.right_sides)
        del factor  # whose memory the check may need
        constants = self._take(system.columns, solution.x)
        self._note(system.columns, systems.check(solution, constants))
        if self._in_batches:
            systems.release(place)
        elif self._is_deleted:
            systems.release(group)

    def _grow(self) -> None:
        """Factor all systems from what earlier rows have left, before anything of that is given up."""
        context, is_first, self._has_grown = self._context, not self._has_grown, True
        if is_first and (context.kept is not None or context.storage.keeps):
            self._messages = growth_messages(self._data, self.matrix, self._plan, context)
        if context.kept is None:
            return
        for alpha, number in self._numbers.items():
            self._factors[number] = self.matrix.systems.factor(f"system-{number}", self._shift_of(alpha))
        for system in [] if self._in_batches else self.systems():
            self.matrix.systems.begin(f"system-{system.number}", system.shift, system.right_sides)
        self._context.commit_growth()

    def release(self, alpha: float) -> None:
        if not self._keeps:
            self._factors.pop(self._numbers[alpha], None)
        if self._is_deleted:
            self.matrix.systems.release(f"system-{self._numbers[alpha]}")

    def saved(self) -> Mapping[float, SavedPosterior]:
        found = dict[float, SavedPosterior]()
        if not self._keeps or len(self._context.left_out):  # of a factor that has other rows there are no variances
            return found
        left = Left(self.matrix.rows, self._context.temporary, self.matrix.in_memory if self._grows else None)
        for alpha, number in self._numbers.items():
            systems, shift, factor = self.matrix.systems, self._shift_of(alpha), self._factors.get(number)
            if factor is None:  # an earlier run has solved all of its batches
                factor = systems.factor(f"system-{number}", shift)
            matrix, diagonal = factor.matrix, systems.diagonal + shift
            numbers = {"form": "dual", "tile": matrix.grid.tile, "panel": matrix.grid.panel}
            arrays: dict[str, Rows] = {"factor": TriangleRows(matrix), "diagonal": MemoryRows(diagonal[:, None])}
            found[alpha] = SavedPosterior(numbers, arrays, left)
        return found


class IteratedDual(DualRidge):
    """Systems that conjugate gradient solves all at once."""

    def __init__(self, strategy: Iterative, data: TrainingData, plan: Plan, context: Context) -> None:
        super().__init__(data, plan)
        self._context = context
        self.matrix: GramOperator = GramOperator(data, strategy, context, self.scale)
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
            LazyPreconditioner(lambda: self._preconditioner(shift), captures_constant=has_factor)
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
            largest=self.matrix.largest,
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
        with self._context.progress.measured("preconditioner"):
            return LowRank(self._kept["factor"], shift, self.scale, self.matrix.is_mixed)


@dataclass
class CompleteFactor(Preconditioner):
    """(L Lᵀ)⁻¹ with a complete factor."""

    factor: Factor
    captures_constant = True

    def apply(self, residuals: Array, columns: NDArray[np.intp]) -> Array:  # noqa: ARG002
        return self.factor.solve(residuals)


class FactoredDual(DualRidge):
    """Systems that are solved one after the other, each by iterations with a complete factor in float32."""

    def __init__(self, strategy: Float32Factor, data: TrainingData, plan: Plan, context: Context) -> None:
        super().__init__(data, plan)
        self._strategy, self._context, self._shift_of = strategy, context, data.dual_shift
        self.matrix: Float32Gram = Float32Gram(data, strategy, context, self.scale)
        self._factors = dict[str, CompleteFactor]()

    def solve(self, system: RidgeSystem) -> CGOutcome:
        """Solve a system: to the tolerance of an iterative solver that was requested, else to the level of rounding."""
        matrix, group = self.matrix, f"factored-{system.number}"
        solve = self._to_rounding if self._strategy.tol is None else self._to_tolerance
        self._grow()
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

    def _grow(self) -> None:
        """Factor all systems from what earlier rows have left, before anything of that is given up."""
        context, is_first, self._has_grown = self._context, not self._has_grown, True
        if is_first and (context.kept is not None or context.storage.keeps):
            self._messages = growth_messages(self._data, self.matrix, self._plan, context)
        if context.kept is None:
            return
        for alpha, number in self._numbers.items():
            group = f"factored-{number}"
            self._factors[group] = CompleteFactor(self.matrix.factor(group, self._shift_of(alpha), family=group))
        self._context.commit_growth()

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
        self._context.storage.note_stage("conjugate gradient")
        outcome = begun.iteration.run(state=begun.start)
        if outcome.status is not Status.CONVERGED and not is_last:
            return None
        groups = [(system.columns, system.right_sides.shape[1])]
        residuals, squares = self._checked(groups, begun.iteration, products, outcome)
        largest = float(residuals.max())
        self._note(system.columns, Check(largest, squares, begun.condition))
        self._residuals[system.columns] = residuals
        done = () if is_last else (REFINED.format(iterations=plural(outcome.iterations, "iteration")),)
        return replace(outcome, status=direct_status(largest), messages=(*done, *outcome.messages))
