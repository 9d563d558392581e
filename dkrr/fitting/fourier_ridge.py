"""Ridge regression on a Fourier grid: a few transforms of every row, and a system as large as the grid.

The rows are passed over once for the sums of ΦᵀWΦ and ΦᵀWy, and once for α = W(y − Φβ)/λ, whose sums over the
waves give u = Φᵀα, the coefficients of predictions. In exact arithmetic u = β; what is left, Φ(β − u), is the residual
of the dual system (K + λW⁻¹)α = y, whose norm follows from these sums. A refinement adds WΦδ/λ to α for
δ = β − u − (A + λI)⁻¹A(β − u): it corrects α itself, where another β and an α computed from it would stall at the
rounding of y − Φβ.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkrr.blas import column_norms
from dkrr.cluster import Task
from dkrr.data import MemoryRows, Rows
from dkrr.fitting.context import Context
from dkrr.fitting.costs.details import FourierSolve
from dkrr.fitting.costs.fourier_costs import REFINED_RESIDUAL
from dkrr.fitting.data import TrainingData
from dkrr.fitting.iteration import settings_of
from dkrr.fitting.normal_rows import RIDGE, NormalRows
from dkrr.fitting.primal_ridge import MAX_REFINEMENTS, MIN_GAIN
from dkrr.fitting.results import Left, SavedPosterior, Solution
from dkrr.kernels.fourier_grid import FourierGrid, FourierZones
from dkrr.kernels.map_base import MapKernel
from dkrr.linalg.cross_gram_products import cross_gram
from dkrr.linalg.fourier_normal import FourierNormalMatrix, even_modes, totals_of, update_dual_coefficients
from dkrr.linalg.fourier_solvers import CGSolver, CholeskySolver, NormalSolver
from dkrr.linalg.fourier_sums import FourierSums, sums_of_segment
from dkrr.linalg.sources import Vectors
from dkrr.planning import Plan
from dkrr.store import TileGrid
from dkrr.text import plural

Array = NDArray[np.float64]

EXACT_ROWS = 256
"""Rows on which the residual is measured with exact entries, where the error of a grid was asked for."""
ROUNDING, SEEN = 5e-16, 2.0
"""Rounding of Φᵀα and of Φu, over √Σw: times k(x, x) ‖α‖₂, and times what is seen of it in Σα and the typical k(x, z).
(Measured in long double: the sum of both is 1 to 10 times the error.)"""
ENOUGH = 0.2
"""Residual over that of rounding at which α is not refined further."""


def _over(norms: Array, sizes: Array) -> Array:
    """Norms of residuals relative to those of targets, of shape (t,); 0 for targets that are 0."""
    return np.asarray(np.divide(norms, sizes, out=np.zeros_like(norms), where=sizes > 0))


class FourierRidge:
    """Systems of all targets, from sums over the rows."""

    def __init__(self, strategy: FourierSolve, data: TrainingData, plan: Plan, context: Context) -> None:
        self._strategy, self._data, self._plan, self._context = strategy, data, plan, context
        self._means = data.target_means()
        centred = self._means if data.fit_intercept else None
        self._rows = NormalRows(data, context, strategy.row_block, RIDGE, data.targets, centred)
        assert isinstance(self._rows.phi, FourierGrid)
        self._phi = self._rows.phi
        self._grid = self._phi.grid(data.rows.shape[1])
        self._segments = self._rows.segments(strategy.row_parts, by_blocks=not context.in_memory)

    def _sums(self) -> FourierSums:
        """Sums of all rows, in the order of the segments; those of a segment stay in a store that is kept."""
        context, t = self._context, self._data.targets.shape[1]
        kept: list[Any] = [None] * len(self._segments)
        if context.storage.keeps:
            length = len(FourierSums.zeros(self._grid, t).packed())
            whole = TileGrid(length, length, length)
            names = [f"sums-{segment.start}-{segment.stop}" for segment in self._segments]
            kept = [context.stored.vectors(RIDGE, name, whole, 1) for name in names]
        tasks = [
            Task(f"sums-{k}", sums_of_segment, (self._phi, segment, array), flops=segment.stop - segment.start)
            for k, (segment, array) in enumerate(zip(self._segments, kept, strict=True))
            if array is None or not list(array.present())
        ]
        done = self._data.n - sum(task.flops for task in tasks)
        values = context.run_tasks("normal matrix", tasks, done)
        total: FourierSums | None = None
        for k, array in enumerate(kept):
            numbers = values.pop(f"sums-{k}") if array is None else array.load()[:, 0]
            part = FourierSums.unpacked(self._grid, numbers, context.threads)
            total = part if total is None else total
            if part is not total:
                total.include(part)
        assert total is not None
        return total

    def _pass(self, stage: str, known: Vectors | None, duals: Vectors, coef: Array, offset: Array) -> tuple[Any, Array]:
        """α, and its sums over the waves of the doubled grid, (t, ...), with the sizes beside them, (3, t)."""
        arguments = (known, duals, coef, offset, 1.0 / self._data.alphas)
        tasks = [
            Task(
                f"duals-{k}",
                update_dual_coefficients,
                (self._phi, segment, *arguments),
                flops=segment.stop - segment.start,
            )
            for k, segment in enumerate(self._segments)
        ]
        values, total = self._context.run_tasks(stage, tasks), np.zeros(0)
        for k in range(len(tasks)):
            part = values.pop(f"duals-{k}")
            total = part if k == 0 else np.add(total, part, out=total)
        t = coef.shape[1]
        modes = total[: -3 * t].view(np.complex128).reshape(t, *self._grid.n_sum_modes)
        return modes, total[-3 * t :].reshape(3, t)

    def solution(self) -> Solution:
        """Solution of all targets."""
        data, context, alphas = self._data, self._context, self._data.alphas
        sums = self._sums()
        system = sums.system(has_intercept=data.fit_intercept)
        matrix, sizes, means = system.matrix, np.sqrt(sums.squares), system.means
        assert isinstance(matrix, FourierNormalMatrix)
        solver = self._solver(matrix)
        coef = solver.solve(system.moments, alphas)
        # A task that runs twice, since its worker was lost, must find α as it was: stored ones are written elsewhere.
        duals = other = self._rows.new_errors(data.room_for_errors)
        if not context.in_memory:
            other = self._rows.new_errors(data.room_for_errors, "refined")
        modes, dual_sizes = self._pass("training errors", None, duals, coef, means @ coef)
        residuals, rounds, typical = np.full(len(alphas), np.inf), 0, float(np.sqrt(matrix.mean_square()))
        while True:
            u = self._grid.of_modes(even_modes(modes, self._grid))
            left = coef - u
            product = matrix.multiply(left)
            squares = np.einsum("ij,ij->j", left, product)
            found = _over(np.sqrt(np.maximum(squares, 0.0)), sizes)
            rounding = _over(self._rounding(dual_sizes, matrix.total, typical), sizes)
            gained, residuals = found.max() <= MIN_GAIN * residuals.max(), found
            is_done = (found <= np.maximum(REFINED_RESIDUAL, ENOUGH * rounding)).all()
            if is_done or not gained or rounds == MAX_REFINEMENTS:
                break
            offset = np.zeros(len(alphas))
            if data.fit_intercept:  # Σα is 0 with an intercept: what it is from rounding goes to all rows alike
                total = totals_of(modes)
                left, offset = left + means[:, None] * total, alphas * total / matrix.total
                product = matrix.multiply(left)
            change = left - solver.solve(product, alphas)
            modes, dual_sizes = self._pass("true residual", duals, other, change, means @ change + offset)
            duals, other = other, duals
            coef, rounds = coef - change, rounds + 1
        # Predictions are those of α, in the box as outside: where no rows are β is the less certain the smaller λ is.
        intercept = self._means - means @ u
        near = FourierZones(self._phi).near.grid(data.rows.shape[1]).of_modes(modes)
        least = float(alphas.min())
        condition = system.condition(least, lambda probe: solver.solve(probe, np.array([least])))
        saved = self._saved(sums, solver) if self._strategy.keeps_factors else {}
        solver.close()
        messages = [f"α refined {plural(rounds, 'time')}"] if rounds else []
        dual_coef = self._rows.loaded_errors(duals, data.room_for_errors)
        if self._is_named:
            messages.append(self._exactness(dual_coef, intercept))
        return Solution(
            dual_coef=dual_coef,
            coef=u,
            near=near,
            intercept=intercept,
            rows=None,
            residual=float((residuals + rounding).max()),
            residuals=residuals + rounding,
            condition=condition,
            iterations=solver.iterations,
            messages=(*messages, *getattr(solver, "messages", ())),
            saved=saved,
        )

    def _saved(self, sums: FourierSums, solver: NormalSolver) -> Mapping[float, SavedPosterior]:
        """By λ, the sums that stay after the fit, and a complete factor where it has one."""
        found = dict[float, SavedPosterior]()
        for alpha, columns in self._data.alpha_groups():
            arrays: dict[str, Rows] = {"sums": MemoryRows(sums.of_targets(columns).packed()[:, None])}
            if isinstance(solver, CholeskySolver):
                arrays["factor"] = MemoryRows(solver.factor(alpha))
            found[alpha] = SavedPosterior({"form": "primal", "centred": False}, arrays, Left())
        return found

    def _solver(self, matrix: FourierNormalMatrix) -> NormalSolver:
        if self._strategy.rank_limit:
            least, max_iter = float(self._data.alphas.min()), settings_of(self._plan).max_iter
            return CGSolver(matrix, least, self._strategy.rank_limit, self._context.progress, max_iter)
        return CholeskySolver(matrix, self._context.progress, len(set(self._data.alphas.tolist())))

    def _rounding(self, dual_sizes: Array, total: float, typical: float) -> Array:
        """Bounds of what the error of the grid and the rounding of Φu add to the residuals of the dual systems, (t,).

        Parameters
        ----------
        dual_sizes : ndarray of shape (3, t)
            Sizes of `update_dual_coefficients`.
        total : float
            Σ w.
        typical : float
            Root mean square of k(x, z).
        """
        bound, (absolute, squares, seen) = 0.0 if self._is_named else self._grid.bound, dual_sizes
        rounding = ROUNDING * self._grid.unit * np.sqrt(squares) + SEEN * typical * np.sqrt(seen)
        return np.asarray(np.sqrt(total) * (bound * absolute + rounding))

    @property
    def _is_named(self) -> bool:
        """Whether the grid is the kernel that was asked for, within an error that was asked for, too."""
        return isinstance(self._data.kernel, MapKernel)

    def _exactness(self, dual_coef: Array, intercept: Array) -> str:
        """Message about the residual with entries of the kernel that the grid stands for, on some of the rows."""
        data = self._data
        some = np.sort(np.random.default_rng(0).permutation(data.n)[:EXACT_ROWS])
        weights = np.ones(len(some)) if data.weights is None else data.weights[some]
        some, weights = some[weights > 0], weights[weights > 0, None]
        cross = cross_gram(self._phi.base.resolved(data.rows.shape[1]), data.rows)
        values = cross.times(data.rows.take(some), dual_coef)
        targets = data.targets[some] - intercept
        left = targets - values - data.alphas * dual_coef[some] / weights
        relative = column_norms(np.sqrt(weights) * left) / np.maximum(column_norms(np.sqrt(weights) * targets), 1e-300)
        return (
            f"entries of K are within {self._grid.bound:.1e}, as asked for; with exact ones the residual of the dual "
            f"system is {relative.max():.1e} (on {len(some):,} of the rows)"
        )
