"""Ridge regression in the primal form: the systems (ΦᵀWΦ + λI) w = ΦᵀWy, and the solution they make up."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from dkrr.fitting.context import Context
from dkrr.fitting.data import TrainingData
from dkrr.fitting.dual import Group, RidgeSystem
from dkrr.fitting.iteration import iteration_of, settings_of
from dkrr.fitting.normal_rows import FormedRows, StreamedRows
from dkrr.fitting.results import Solution
from dkrr.linalg.condition import SolvedProbe, worst
from dkrr.linalg.normal_product import Diagonal
from dkrr.linalg.operator import column_norms
from dkrr.linalg.preconditioner import Identity, Preconditioner
from dkrr.linalg.residual import relative
from dkrr.linalg.sources import Vectors
from dkrr.planning import Plan
from dkrr.solvers.conjugate_gradient import CGOutcome, Iteration, State

Array = NDArray[np.float64]

ONLY_ROUNDING = 8 * float(np.finfo(float).eps)
"""Part of ‖φⱼ‖‖y‖ below which φⱼᵀy is rounding of its terms."""


def drop_rounding(data: TrainingData, moments: Array, diagonal: Array) -> Array:
    """Set the moments ΦᵀWy of targets to 0 that have no part in any feature: what is computed then is only rounding.

    Parameters
    ----------
    data : TrainingData
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


class PrimalRidge:
    """Systems of the primal form, and the solution while it is put together."""

    def __init__(self, data: TrainingData, plan: Plan, context: Context) -> None:
        self._data, self._plan, self._context, self._means = data, plan, context, data.target_means()
        less = self._means if data.fit_intercept else None
        self._rows_arguments = (data, plan, context, "normal", data.targets, less)
        self._rows: FormedRows | StreamedRows
        self._probes = list[SolvedProbe]()

    def systems(self) -> Iterator[RidgeSystem]:
        """One system after another, of the matrix that is formed first."""
        data = self._data
        self._rows = rows = FormedRows(*self._rows_arguments)
        self._systems, moments = rows.systems()
        self._sizes = drop_rounding(data, moments, self._systems.diagonal)
        self._coef = np.empty_like(moments)
        for g, (alpha, columns) in enumerate(data.alpha_groups()):
            yield RidgeSystem(
                g, alpha, columns, np.full(len(moments), alpha), np.ascontiguousarray(moments[:, columns])
            )

    def solve(self, system: RidgeSystem) -> None:
        """Solve a system directly."""
        found = self._systems.solve(f"system-{system.number}", system.shift, system.right_sides)
        self._coef[:, system.columns] = found.x
        self._probes.append(found.probe)

    def iteration(self) -> tuple[Iteration, list[Group]]:
        """Conjugate gradient for all targets at once, by passes over the rows."""
        data = self._data
        self._rows = rows = StreamedRows(*self._rows_arguments)
        # As in the dual form, all values of alpha are columns of the same passes.
        shift, moments = data.alphas[None, :], rows.moments()
        preconditioner: Preconditioner = Identity()
        if settings_of(self._plan).preconditioner == "auto":
            diagonal = rows.diagonal()
            if diagonal is not None:
                preconditioner = Diagonal(diagonal[:, None], shift)
        iteration = iteration_of(self._plan, self._context, rows.operator(), shift, moments, preconditioner)
        return iteration, [(np.arange(len(data.alphas)), len(data.alphas))]

    def iterate(self, iteration: Iteration, groups: Sequence[Group], state: State | None = None) -> CGOutcome:  # noqa: ARG002
        """Run it; the residual is that of the coefficients."""
        return iteration.run(state=state)

    def solution(self, outcome: CGOutcome | None = None) -> Solution:
        """Return the whole, once all systems are solved, with the training errors and by these α."""
        rows, errors = self._rows, self._rows.new_errors(self._data.room_for_errors)
        if outcome is None:
            coef = self._coef
            residual, condition = self._checked(errors)
        else:
            coef, residual, condition = outcome.x, float(outcome.residuals.max()), outcome.condition
            rows.residuals(coef, errors)
        found = rows.loaded_errors(errors, self._data.room_for_errors)
        return Solution(
            dual_coef=self._dual_coef(found),
            coef=coef,
            intercept=self._means if rows.centre is None else self._means - rows.centre @ coef,
            rows=None,
            residual=residual,
            condition=condition,
            outcome=outcome,
        )

    def _checked(self, errors: Vectors) -> tuple[float, float]:
        """Largest relative residual of a direct solution, and the condition number; a pass that writes the errors."""
        data, coef, t = self._data, self._coef, self._coef.shape[1]
        groups = data.alpha_groups()
        probes = np.column_stack([p.vector for p in self._probes])
        gradient = self._rows.residuals(np.hstack([coef, probes]), errors)
        assert gradient is not None
        residual = relative([(column_norms(gradient[:, :t] - coef * data.alphas), self._sizes)])
        with np.errstate(over="ignore", invalid="ignore"):
            products = probes * [alpha for alpha, _ in groups] - gradient[:, t:]
        return residual, worst([p.condition(products[:, g]) for g, p in enumerate(self._probes)])

    def _dual_coef(self, errors: Array) -> Array | None:
        """Dual coefficients by y − f(X) = λ W⁻¹ α, which take the place of the errors; None where some λ is 0."""
        data = self._data
        if not (data.alphas > 0).all():
            return None
        dual = np.divide(errors, data.alphas, out=errors)
        if data.weights is not None:
            dual *= data.weights[:, None]
        return dual
