"""The cross-validated squared error of one λ and kernel, with its exact derivatives.

With e the errors of the rows that a fold holds out, V = Σ eᵀ D e for weights D, and g = D e on those rows and zero on
the others::

    (C K C + λ I) β = C y        e = y − K C β                          as in a sweep (see `sweep`)
    (C K C + λ I) q = C K g      u = g − C q
    dV = −2 [uᵀ (dK) C β − dλ qᵀβ]

With an intercept both systems are bordered by c = C 1: β stands for β_y − b A⁻¹c with cᵀβ = 0, and q for q − s A⁻¹c
with cᵀq = 1ᵀg. So all derivatives take one more solve, for as many columns and with the same preconditioner, and one
pass over K for all lengths together (`linalg.length_sums`). A residual r of the first solve changes V by −2 qᵀr, to
first order, which is taken off: its square is left.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkrr.blas import column_sizes, root_mean_squares
from dkrr.data.rows import Checksums
from dkrr.fitting.context import Context
from dkrr.fitting.data import TrainingData
from dkrr.fitting.gram import GramOperator
from dkrr.fitting.iteration import iteration_of, pivot_rule, pivots_of
from dkrr.kernels import Kernel
from dkrr.kernels.lengths import WithLengths
from dkrr.linalg.conjugate_gradient import Iteration
from dkrr.linalg.fold_preconditioner import FoldLowRank
from dkrr.linalg.length_sums import LengthTiles, length_sums_tasks
from dkrr.linalg.pivoted_cholesky import PivotedCholesky
from dkrr.linalg.preconditioners import Identity, Preconditioner
from dkrr.linalg.training_sets import TrainingSetOperator, TrainingSets
from dkrr.planning import Plan
from dkrr.selection.fold_systems import predictions_with_intercept
from dkrr.selection.folds import Folds
from dkrr.selection.sweep import MAX_TIGHTENINGS, MIN_FOLD_TOL, SLACK, target_batches

Array = NDArray[np.float64]

CENTRE_ROWS = 1024
"""Rows whose mean is taken off before squares: any point near the rows will do."""


class LengthGram(GramOperator):
    """Gram matrix whose derivatives by the lengths of its columns are contracted with vectors, too."""

    def length_sums(self, slopes: Kernel, vectors: Array) -> Array:
        """Sums Σᵢⱼ hᵢⱼ uᵢ aⱼ (xᵢₖ − xⱼₖ)² for every column k, of shape (d,).

        Parameters
        ----------
        slopes : Kernel
            h.
        vectors : ndarray of shape (n, 2 m)
            u and a side by side.
        """
        some = self.rows.read(0, min(CENTRE_ROWS, self.n))
        tiles = LengthTiles(slopes, self._rows, centre=np.mean(some, axis=0, dtype=np.float64))
        with self._context.progress.stage("derivatives", 1.0):
            return self._context.total(length_sums_tasks(tiles, self._grid, self._context.slots), vectors)


@dataclass(frozen=True, kw_only=True)
class EvaluatedData(TrainingData):
    """Data of many evaluations, whose λ and kernels differ, in one store."""

    outputs_in_run = ""

    def fingerprint(self, rows: Checksums) -> dict[str, Any]:
        return {"X": list(rows.digests), "shape": list(self.rows.shape)}


@dataclass(frozen=True)
class Evaluation:
    """Error and derivatives at one λ and kernel."""

    value: float
    """Mean over the folds of the weighted mean squared error."""
    by_log_alpha: float
    by_log_lengths: Array | None
    """Derivatives by the logarithm of every column's length, of shape (d,); None where they were not asked for."""
    predictions: tuple[Array, ...]
    """Predictions of the rows that each fold holds out, of shape (k, t)."""
    iterations: int
    """Iterations of conjugate gradient, for both systems."""
    excess: float
    """Largest true relative residual over the one that was asked for: beyond 1 a system has not converged."""


class HeldOutError:
    """The cross-validated squared error as a function of λ and the kernel.

    Parameters
    ----------
    data : EvaluatedData
    folds : Folds
    plan : Plan
        Plan of conjugate gradient for the systems of all folds, with the number of targets of one run.
    context : Context
    tol : float, optional
        Relative residual of the systems; None: that of the plan.
    """

    def __init__(
        self, data: EvaluatedData, folds: Folds, plan: Plan, context: Context, tol: float | None = None
    ) -> None:
        self._data, self._folds, self._plan, self._context = data, folds, plan, context
        self._strategy, self._tol = plan.chosen.details, plan.problem.tol if tol is None else tol
        self._kept: tuple[Kernel, LengthGram] | None = None
        self._scales, self._means = folds.scales(data.dual_scale()), data.target_means()
        weights = np.ones(data.n) if data.weights is None else data.weights
        self._weights = [
            weights[rows, None] / (weights[rows].sum() * len(folds) * data.targets.shape[1]) for rows in folds.test
        ]
        """D of the rows that each fold holds out."""
        y = data.targets - self._means
        sizes = root_mean_squares(y if data.weights is None else y[weights > 0])
        self._sizes = np.where(sizes > 0, sizes, 1.0)

    def __call__(self, alpha: float, kernel: Kernel, *, of_lengths: bool) -> Evaluation:
        """Error and derivatives, those by lengths only if they are asked for.

        Raises
        ------
        DkrrError
            See dkrr.errors.
        """
        matrix = self._gram(kernel)
        factor = self._factor(matrix, alpha)
        systems = GradientSystems(matrix, factor, self._scales, alpha, self._plan, self._context, self._tol)
        slopes = None
        if of_lengths:
            assert isinstance(kernel, WithLengths)
            slopes = kernel.length_slopes(self._data.rows.shape[1])
        parts = [
            self._part(systems, targets, slopes)
            for targets in target_batches(self._data.targets.shape[1], self._plan.problem.n_targets)
        ]
        by_lengths = [part.by_log_lengths for part in parts if part.by_log_lengths is not None]
        return Evaluation(
            value=sum(part.value for part in parts),
            by_log_alpha=sum(part.by_log_alpha for part in parts),
            by_log_lengths=np.sum(by_lengths, axis=0) if by_lengths else None,
            predictions=tuple(np.hstack(fold) for fold in zip(*(part.predictions for part in parts), strict=True)),
            iterations=sum(part.iterations for part in parts),
            excess=max(part.excess for part in parts),
        )

    def _gram(self, kernel: Kernel) -> LengthGram:
        """K; what processes keep of it stays until the next kernel."""
        if self._kept is not None:
            before, matrix = self._kept
            if kernel == before:
                return matrix
            self._context.executor.forget(self._context.run)
            self._data = replace(self._data, rows=matrix.rows)  # those in the store, if they were copied
        matrix = LengthGram(replace(self._data, kernel=kernel), self._strategy, self._context, None)
        self._kept = kernel, matrix
        return matrix

    def _factor(self, matrix: LengthGram, alpha: float) -> PivotedCholesky | None:
        if matrix.rank_limit == 0:
            return None
        is_enough = pivot_rule(self._plan, alpha, self._tol)
        return matrix.partial_factor(self._data.weights, pivots_of(self._plan), is_enough)

    def _part(self, systems: "GradientSystems", targets: slice, slopes: tuple[Kernel, Array] | None) -> Evaluation:
        """The part of some targets."""
        y, n_folds = self._data.targets[:, targets] - self._means[targets], len(self._folds)
        t, is_free = y.shape[1], self._data.fit_intercept
        right = np.column_stack([y, np.ones(len(y))]) if is_free else y
        first = systems.solve(np.hstack([right * self._scales[:, [f]] for f in range(n_folds)]))
        for left in reversed(range(MAX_TIGHTENINGS + 1)):
            held_out = [self._held_out(first, f) for f in range(n_folds)]
            errors = [y[rows] - p for rows, p in zip(self._folds.test, held_out, strict=True)]
            if left == 0 or not first.tighten(np.array([self._wanted(e, targets) for e in errors])):
                break
        # The adjoint systems: those of rows that are held out, their errors for targets.
        g, value = np.zeros((self._data.n, n_folds * t)), 0.0
        for f, (rows, d, e) in enumerate(zip(self._folds.test, self._weights, errors, strict=True)):
            g[rows, f * t : (f + 1) * t] = d * e
            value += float(np.sum(d * e**2))
        c = np.repeat(self._scales, t, axis=1)
        second = systems.solve(c * systems.operator.multiply(g))
        q, beta, residual = second.x, first.x, first.residual
        if is_free:
            # Columns are folds × (targets, 1): the last one of each fold is A⁻¹c.
            sums = np.einsum("ij,ijk->jk", self._scales, beta.reshape(-1, n_folds, t + 1))
            constants = np.divide(sums[:, :t], sums[:, t:])
            beta, residual = (_without_intercept(v, constants) for v in (beta, residual))
            v = first.x[:, t :: t + 1]
            q = q - np.repeat(v / sums[:, t], t, axis=1) * (np.einsum("ij,ij->j", c, q) - g.sum(axis=0))
        value -= 2.0 * float(np.vdot(q, residual))
        by_lengths = None
        if slopes is not None:
            kernel, factors = slopes
            by_lengths = -2.0 * factors * systems.matrix.length_sums(kernel, np.hstack([g - c * q, c * beta]))
        return Evaluation(
            value=value,
            by_log_alpha=2.0 * systems.alpha * float(np.vdot(q, beta)),
            by_log_lengths=by_lengths,
            predictions=tuple(p + self._means[targets] for p in held_out),
            iterations=first.iterations + second.iterations,
            excess=max(first.excess, second.excess),
        )

    def _held_out(self, solution: "FoldSolution", fold: int) -> Array:
        """Predictions of the rows that a fold holds out, of shape (k, t), less the means of the targets."""
        where = solution.columns(fold)
        products = solution.products()[self._folds.test[fold], where]
        if not self._data.fit_intercept:
            return products
        return predictions_with_intercept(products, self._scales[:, fold] @ solution.x[:, where])

    def _wanted(self, errors: Array, targets: slice) -> float:
        """Residual that the errors of a fold ask for (see `sweep`)."""
        part = root_mean_squares(errors) / self._sizes[targets]
        return max(self._tol * min(1.0, SLACK * float(part.min())), MIN_FOLD_TOL)


def _without_intercept(columns: Array, constants: Array) -> Array:
    """Columns v_y − b v_1 of every fold, of shape (n, folds × t), from its columns v_y and v_1 and b, (folds, t)."""
    n_folds, t = constants.shape
    each = columns.reshape(-1, n_folds, t + 1)
    return np.asarray(each[:, :, :t] - each[:, :, t:] * constants).reshape(-1, n_folds * t)


class GradientSystems:
    """The systems C_f K C_f + λ I of all folds, for one right-hand side after another.

    Parameters
    ----------
    matrix : LengthGram
    factor : PivotedCholesky or None
        Low-rank factor of K; None: without a preconditioner.
    scales : ndarray of shape (n, n_folds)
        C.
    alpha : float
        λ.
    plan : Plan
    context : Context
    tol : float
        Relative residual.
    """

    def __init__(
        self,
        matrix: LengthGram,
        factor: PivotedCholesky | None,
        scales: Array,
        alpha: float,
        plan: Plan,
        context: Context,
        tol: float,
    ) -> None:
        self.matrix, self.alpha, self.operator = matrix, alpha, matrix.operator()
        self._scales, self._plan, self._context, self._tol = scales, plan, context, tol
        self._preconditioner: Preconditioner = Identity()
        if factor is not None:
            sets, shift = self._of_width(1)
            threads = plan.resources.local_threads
            self._preconditioner = FoldLowRank(factor, sets, shift, mixed=matrix.is_mixed, n_threads=threads)

    def _of_width(self, width: int) -> tuple[TrainingSets, Array]:
        """Training sets and λ of columns folds × width."""
        of_column = np.repeat(np.arange(self._scales.shape[1]), width)
        return TrainingSets(self._scales, of_column), np.full(len(of_column), self.alpha)

    def solve(self, right_sides: Array) -> "FoldSolution":
        """Solve for `width` columns of every fold; `right_sides` has shape (n, folds × width)."""
        width = right_sides.shape[1] // self._scales.shape[1]
        sets, shift = self._of_width(width)
        preconditioner = self._preconditioner
        if isinstance(preconditioner, FoldLowRank):
            preconditioner = preconditioner.for_columns(sets, shift)
        operator = TrainingSetOperator(self.operator, sets)
        iteration = iteration_of(
            self._plan,
            self._context,
            operator,
            shift[None, :],
            right_sides,
            preconditioner,
            mixed=self.matrix.is_mixed,
            largest=self.matrix.largest,
        )
        iteration.estimates_condition, iteration.tol = False, np.full(len(shift), self._tol)
        return FoldSolution(iteration, operator, width)


class FoldSolution:
    """Solution of the systems of all folds, which can be made more accurate."""

    def __init__(self, iteration: Iteration, operator: TrainingSetOperator, width: int) -> None:
        self._iteration, self._operator, self._width = iteration, operator, width
        self._sizes = column_sizes(iteration.right_sides)
        self._outcome = iteration.run()

    @property
    def x(self) -> Array:
        """Solution, of shape (n, folds × width)."""
        return self._outcome.x

    @property
    def residual(self) -> Array:
        """True residual, of the shape of the right-hand sides."""
        assert self._iteration.last is not None
        return self._iteration.last.residual * self._sizes

    @property
    def iterations(self) -> int:
        """Iterations so far."""
        return self._outcome.iterations

    @property
    def excess(self) -> float:
        """Largest relative residual over the one that was asked for."""
        return float(np.max(self._outcome.residuals / self._iteration.tol))

    def columns(self, fold: int) -> slice:
        """Columns of a fold."""
        return slice(fold * self._width, (fold + 1) * self._width)

    def products(self) -> Array:
        """K C x, of the shape of x."""
        return self._operator.products_of_all_rows(self.x / self._sizes) * self._sizes

    def tighten(self, wanted: Array) -> bool:
        """Go on until every fold has the residual that is wanted, of shape (folds,); False if it has, or never will."""
        further = self._iteration.continued(self._outcome, np.repeat(wanted, self._width))
        self._outcome = self._outcome if further is None else further
        return further is not None
