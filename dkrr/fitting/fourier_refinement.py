"""Refinement of α on a Fourier grid: passes over the rows until the residual is that of rounding.

α = W(y − Φβ)/λ, and its sums over the waves give u = Φᵀα. In exact arithmetic u = β; what is left, Φ(β − u), is the
residual of the dual system (K + λW⁻¹)α = y, whose norm follows from the sums of the rows. A refinement adds WΦδ/λ to α
for δ = β − u − (A + λI)⁻¹A(β − u): it corrects α itself, where another β and an α computed from it would stall at the
rounding of y − Φβ.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dkrr.cluster import Task
from dkrr.fitting.context import Context
from dkrr.fitting.costs.fourier_costs import REFINED_RESIDUAL
from dkrr.fitting.data import TrainingData
from dkrr.fitting.normal_rows import NormalRows
from dkrr.fitting.primal_ridge import MAX_REFINEMENTS, MIN_GAIN
from dkrr.kernels.fourier_grid import FourierGrid
from dkrr.linalg.fourier_normal import FourierNormalMatrix, even_modes, totals_of, update_dual_coefficients
from dkrr.linalg.fourier_solvers import NormalSolver
from dkrr.linalg.passes import Segment
from dkrr.linalg.sources import Vectors

Array = NDArray[np.float64]

ROUNDING, SEEN = 5e-16, 2.0
"""Rounding of Φᵀα and of Φu, over √Σw: times k(x, x) ‖α‖₂, and times what is seen of it in Σα and the typical k(x, z).
(Measured in long double: the sum of both is 1 to 10 times the error.)"""
ENOUGH = 0.2
"""Residual over that of rounding at which α is not refined further."""


@dataclass(frozen=True)
class RefinedDuals:
    """α of all targets, its sums over the waves and its residuals."""

    duals: Vectors
    modes: NDArray[np.complex128]
    """Sums of α over the waves of the doubled grid, (t, ...)."""
    u: Array
    """Φᵀα, (D, t)."""
    residuals: Array
    """Norms of the residuals of the dual systems over those of the targets, with bounds of rounding, (t,)."""
    rounds: int


class FourierRefinement:
    """Passes that compute α and correct it.

    Parameters
    ----------
    rows : NormalRows
        Rows with the features of the grid.
    data : TrainingData
    context : Context
    segments : sequence of Segment
        Rows of the tasks of a pass.
    matrix : FourierNormalMatrix
        A.
    means : ndarray of shape (D,)
        Those of the features with an intercept; else zeros.
    sizes : ndarray of shape (t,)
        Norms of the targets.
    bound : float
        Error of the grid's k(x, z).
    """

    def __init__(
        self,
        rows: NormalRows,
        data: TrainingData,
        context: Context,
        segments: Sequence[Segment],
        matrix: FourierNormalMatrix,
        means: Array,
        sizes: Array,
        bound: float,
    ) -> None:
        assert isinstance(rows.phi, FourierGrid)
        self._rows, self._data, self._context, self._segments = rows, data, context, segments
        self._phi, self._grid = rows.phi, rows.phi.grid(data.rows.shape[1])
        self._matrix, self._means, self._sizes, self._bound = matrix, means, sizes, bound

    def run(self, solver: NormalSolver, coef: Array) -> RefinedDuals:
        """Compute α from β, and refine it.

        Parameters
        ----------
        solver : NormalSolver
            (A + λI)⁻¹.
        coef : ndarray of shape (D, t)
            β.
        """
        data, context, matrix, means = self._data, self._context, self._matrix, self._means
        # A task that runs twice, since its worker was lost, must find α as it was: stored ones are written elsewhere.
        duals = other = self._rows.new_errors(data.room_for_errors)
        if not context.in_memory:
            other = self._rows.new_errors(data.room_for_errors, "refined")
        modes, dual_sizes = self._pass("training errors", None, duals, coef, means @ coef)
        residuals, rounds, typical = np.full(len(data.alphas), np.inf), 0, float(np.sqrt(matrix.mean_square()))
        while True:
            u = self._grid.of_modes(even_modes(modes, self._grid))
            left = coef - u
            product = matrix.multiply(left)
            squares = np.einsum("ij,ij->j", left, product)
            found = self._over_targets(np.sqrt(np.maximum(squares, 0.0)))
            rounding = self._over_targets(self._rounding(dual_sizes, typical))
            gained, residuals = found.max() <= MIN_GAIN * residuals.max(), found
            is_done = (found <= np.maximum(REFINED_RESIDUAL, ENOUGH * rounding)).all()
            if is_done or not gained or rounds == MAX_REFINEMENTS:
                return RefinedDuals(duals, modes, u, residuals + rounding, rounds)
            offset = np.zeros(len(data.alphas))
            if data.fit_intercept:  # Σα is 0 with an intercept: what it is from rounding goes to all rows alike
                total = totals_of(modes)
                left, offset = left + means[:, None] * total, data.alphas * total / matrix.total
                product = matrix.multiply(left)
            change = left - solver.solve(product, data.alphas)
            modes, dual_sizes = self._pass("true residual", duals, other, change, means @ change + offset)
            duals, other = other, duals
            coef, rounds = coef - change, rounds + 1

    def _pass(
        self, stage: str, known: Vectors | None, duals: Vectors, coef: Array, offset: Array
    ) -> tuple[NDArray[np.complex128], Array]:
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

    def _over_targets(self, norms: Array) -> Array:
        """Norms of residuals relative to those of the targets, of shape (t,); 0 for targets that are 0."""
        return np.asarray(np.divide(norms, self._sizes, out=np.zeros_like(norms), where=self._sizes > 0))

    def _rounding(self, dual_sizes: Array, typical: float) -> Array:
        """Bounds of what the error of the grid and the rounding of Φu add to the residuals of the dual systems, (t,).

        Parameters
        ----------
        dual_sizes : ndarray of shape (3, t)
            Sizes of `update_dual_coefficients`.
        typical : float
            Root mean square of k(x, z).
        """
        absolute, squares, seen = dual_sizes
        rounding = ROUNDING * self._grid.unit * np.sqrt(squares) + SEEN * typical * np.sqrt(seen)
        return np.asarray(np.sqrt(self._matrix.total) * (self._bound * absolute + rounding))
