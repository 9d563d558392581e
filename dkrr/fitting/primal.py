"""Ridge regression in the primal form: the systems (ΦᵀWΦ + λI) w = ΦᵀWy, and the solution they make up."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkrr.fitting.context import Context
from dkrr.fitting.data import TrainingData
from dkrr.fitting.dual import Group, RidgeSystem
from dkrr.fitting.iteration import iteration_of, settings_of
from dkrr.fitting.normal_rows import FormedRows, StreamedRows
from dkrr.fitting.results import Solution
from dkrr.linalg.condition import SolvedProbe, worst
from dkrr.linalg.operator import column_norms
from dkrr.linalg.preconditioner import Diagonal, Identity, Preconditioner
from dkrr.linalg.residual import relative_by_columns
from dkrr.linalg.sources import Vectors
from dkrr.planning import Direct, Iterative, Plan
from dkrr.solvers.conjugate_gradient import Iteration
from dkrr.solvers.iteration_state import CGOutcome, State

Array = NDArray[np.float64]

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


class PrimalRidge:
    """Common part of all ways to solve in the primal form."""

    def __init__(self, data: TrainingData, plan: Plan, context: Context) -> None:
        self._data, self._plan, self._context, self._means = data, plan, context, data.target_means()
        self._less = self._means if data.fit_intercept else None

    def _solution(self, rows: FormedRows | StreamedRows, errors: Vectors, coef: Array, **found: Any) -> Solution:
        """Solution with the dual coefficients, which take the place of the training errors."""
        data = self._data
        return Solution(
            dual_coef=self._dual_coef(rows.loaded_errors(errors, data.room_for_errors)),
            coef=coef,
            intercept=self._means if rows.centre is None else self._means - rows.centre @ coef,
            rows=None,
            **found,
        )

    def _dual_coef(self, errors: Array) -> Array | None:
        """Dual coefficients by y − f(X) = λ W⁻¹ α, which take the place of the errors; None where some λ is 0."""
        data = self._data
        if not (data.alphas > 0).all():
            return None
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
        errors = self._rows.new_errors(self._data.room_for_errors)
        residuals, condition = self._checked(errors)
        found = {"residual": float(residuals.max()), "residuals": residuals, "condition": condition}
        return self._solution(self._rows, errors, self._coef, **found)

    def _checked(self, errors: Vectors) -> tuple[Array, float]:
        """Relative residuals of the targets, and the condition number; a pass that writes the errors."""
        data, coef, t = self._data, self._coef, self._coef.shape[1]
        groups = data.alpha_groups()
        probes = np.column_stack([p.vector for p in self._probes])
        gradient = self._rows.residuals(np.hstack([coef, probes]), errors)
        residuals = relative_by_columns(column_norms(gradient[:, :t] - coef * data.alphas), self._sizes)
        with np.errstate(over="ignore", invalid="ignore"):
            products = probes * [alpha for alpha, _ in groups] - gradient[:, t:]
        return residuals, worst([p.condition(products[:, g]) for g, p in enumerate(self._probes)])


class IteratedPrimal(PrimalRidge):
    """Systems that conjugate gradient solves all at once, by passes over the rows."""

    def __init__(self, strategy: Iterative, data: TrainingData, plan: Plan, context: Context) -> None:
        super().__init__(data, plan, context)
        self._rows = StreamedRows(strategy, data, context, self._less)

    def iteration(self) -> tuple[Iteration, list[Group]]:
        """Conjugate gradient for all targets, and what it solves for."""
        data, rows = self._data, self._rows
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

    def solution(self, outcome: CGOutcome) -> Solution:
        """Solution of all targets, with the training errors by these coefficients."""
        errors, residuals = self._rows.new_errors(self._data.room_for_errors), outcome.residuals
        self._rows.residuals(outcome.x, errors)
        found = {"residual": float(residuals.max()), "residuals": residuals, "condition": outcome.condition}
        return self._solution(self._rows, errors, outcome.x, outcome=outcome, **found)
