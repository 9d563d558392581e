"""Ridge regression on a Fourier grid: a few transforms of every row, and a system as large as the grid.

The rows are passed over once for the sums of ΦᵀWΦ and ΦᵀWy, and once for α = W(y − Φβ)/λ, whose sums over the
waves are the coefficients of predictions. `fourier_refinement` computes α and its residual, and corrects it.
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
from dkrr.fitting.data import TrainingData
from dkrr.fitting.fourier_refinement import FourierRefinement
from dkrr.fitting.iteration import settings_of
from dkrr.fitting.normal_rows import RIDGE, NormalRows
from dkrr.fitting.results import Left, SavedPosterior, Solution
from dkrr.kernels.fourier_grid import FourierGrid, FourierZones
from dkrr.kernels.map_base import MapKernel
from dkrr.linalg.cross_gram_products import cross_gram
from dkrr.linalg.fourier_normal import FourierNormalMatrix
from dkrr.linalg.fourier_solvers import CGSolver, CholeskySolver, NormalSolver
from dkrr.linalg.fourier_sums import FourierSums, sums_of_segment
from dkrr.planning import Plan
from dkrr.store import TileGrid
from dkrr.text import plural

Array = NDArray[np.float64]

EXACT_ROWS = 256
"""Rows on which the residual is measured with exact entries, where the error of a grid was asked for."""


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

    def solution(self) -> Solution:
        """Solution of all targets."""
        data, context, alphas = self._data, self._context, self._data.alphas
        sums = self._sums()
        system = sums.system(has_intercept=data.fit_intercept)
        matrix, sizes, means = system.matrix, np.sqrt(sums.squares), system.means
        assert isinstance(matrix, FourierNormalMatrix)
        solver = self._solver(matrix)
        bound = 0.0 if self._is_named else self._grid.bound
        refinement = FourierRefinement(self._rows, data, context, self._segments, matrix, means, sizes, bound)
        found = refinement.run(solver, solver.solve(system.moments, alphas))
        # Predictions are those of α, in the box as outside: where no rows are β is the less certain the smaller λ is.
        intercept = self._means - means @ found.u
        near = FourierZones(self._phi).near.grid(data.rows.shape[1]).of_modes(found.modes)
        least = float(alphas.min())
        condition = system.condition(least, lambda probe: solver.solve(probe, np.array([least])))
        saved = self._saved(sums, solver) if self._strategy.keeps_factors else {}
        solver.close()
        messages = [f"α refined {plural(found.rounds, 'time')}"] if found.rounds else []
        dual_coef = self._rows.loaded_errors(found.duals, data.room_for_errors)
        if self._is_named:
            messages.append(self._exactness(dual_coef, intercept))
        return Solution(
            dual_coef=dual_coef,
            coef=found.u,
            near=near,
            intercept=intercept,
            rows=None,
            residual=float(found.residuals.max()),
            residuals=found.residuals,
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
