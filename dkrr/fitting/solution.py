"""What a fit found, before it becomes a fitted value."""

import math
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dkrr.fitting.data import TrainingData
from dkrr.linalg.condition import worst
from dkrr.linalg.operator import LastProduct, column_norms, column_sizes
from dkrr.linalg.residual import Check, energies, freed
from dkrr.rows import Rows
from dkrr.solvers import Status
from dkrr.solvers.conjugate_gradient import Iteration, Outcome, State

Array = NDArray[np.float64]


@dataclass(frozen=True)
class DualSolution:
    """α and b."""

    dual_coef: Array
    """Shape (n, t)."""
    intercept: Array
    """Shape (t,)."""
    rows: Rows
    """The training rows, readable after the fit."""
    residual: float
    """Largest true relative residual."""
    outcome: Outcome | None = None
    """What an iterative solver reports besides."""
    messages: tuple[str, ...] = ()
    """What was done other than planned."""
    squares: Array | None = None
    """αᵀKα as computed, of shape (t,)."""
    condition: float = math.nan
    """Estimate of κ₂ of the matrix, of a direct solver."""


MAX_TIGHTENINGS = 3
"""Times that an iteration is continued with a smaller tolerance since the coefficients did not meet the given one."""
CANCELLED = (
    "the residual is that of the coefficients, which with a free intercept are differences of nearly equal numbers: "
    "increase alpha, or bring the sample weights nearer to each other"
)
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


class DualParts:
    """A dual solution while it is put together, the targets of one value of λ after those of another.

    Parameters
    ----------
    data : TrainingData
    means : ndarray of shape (t,)
        Means that were subtracted from the targets.
    """

    def __init__(self, data: TrainingData, means: Array) -> None:
        self._data, self._coef, self._intercept = data, np.empty(data.targets.shape), means.copy()
        self._means, self._squares, self._residuals = means, np.empty(len(means)), np.empty(len(means))
        self._checks = list[Check]()

    def take(self, columns: NDArray[np.intp], beta: Array) -> Array | None:
        """Take the solution for some targets; the parts of their free constants, if there are any."""
        self._coef[:, columns], constants = self._data.dual_coefficients(beta)
        self._intercept[columns] = self._means[columns] + constants.sum(axis=0)
        return constants if self._data.fit_intercept else None

    def note(self, columns: NDArray[np.intp], check: Check) -> None:
        """Take what the check of the solution for these targets found."""
        self._squares[columns] = check.squares
        self._checks.append(check)

    def iterate(
        self, groups: list[tuple[NDArray[np.intp], int]], iteration: Iteration, state: State | None = None
    ) -> Outcome:
        """Take what conjugate gradient finds, until the coefficients themselves meet the tolerance.

        With free constants α = u − v b; its residual exceeds those of u and v where b is large or they cancel.

        Parameters
        ----------
        groups : list of (ndarray of intp, int)
            Targets that have right-hand sides, and how many right-hand sides these are, in the order of the iteration.
        iteration : Iteration
        state : State, optional
            To resume from.
        """
        tol, products = iteration.tol, LastProduct(iteration.operator)
        iteration = replace(iteration, operator=products)
        outcome = iteration.run(state=state)
        residuals, squares = self._checked(groups, iteration, products, outcome)
        for _ in range(MAX_TIGHTENINGS):
            if outcome.status is not Status.CONVERGED or (residuals <= tol).all():
                break
            reached = min(iteration.tol, float(outcome.residuals.max()))
            iteration.tol = 0.5 * reached * tol / float(residuals.max())
            outcome = iteration.run(state=iteration.last)
            residuals, squares = self._checked(groups, iteration, products, outcome)
        if outcome.status is Status.CONVERGED and not (residuals <= tol).all():
            outcome = replace(outcome, status=Status.STALLED, messages=(*outcome.messages, CANCELLED))
        elif outcome.status is not Status.CONVERGED and (residuals <= tol).all():
            outcome = replace(outcome, status=Status.CONVERGED)
        targets = np.concatenate([columns for columns, _ in groups])
        self.note(targets, Check(float(residuals.max()), squares, outcome.condition))
        self._residuals[targets] = residuals
        return outcome

    def _checked(
        self,
        groups: list[tuple[NDArray[np.intp], int]],
        iteration: Iteration,
        products: LastProduct,
        outcome: Outcome,
    ) -> tuple[Array, Array]:
        """Relative residuals and squares by targets, in the order of the groups."""
        solutions, right_sides, sizes, kept, first = list[Array](), list[Array](), list[Array](), list[int](), 0
        for targets, width in groups:
            where = slice(first, first + width)
            x, b = outcome.x[:, where], iteration.right_sides[:, where]
            constants = self.take(targets, x)
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
            norms = np.concatenate(sizes)
            residuals = column_norms((b - product - shift * x) / unit) / np.where(norms > 0, norms / unit, 1.0)
            return residuals, energies(x, product)

    def solution(self, rows: Rows, outcome: Outcome | None = None, messages: tuple[str, ...] = ()) -> DualSolution:
        """Return the whole; `rows` are the training rows, readable after the fit."""
        residual = float(np.max([c.residual for c in self._checks]))
        condition = worst([c.condition for c in self._checks])
        if outcome is not None:
            outcome = replace(outcome, residuals=self._residuals)
        return DualSolution(self._coef, self._intercept, rows, residual, outcome, messages, self._squares, condition)


@dataclass(frozen=True)
class PrimalSolution:
    """w, b and, by duality, α."""

    coef: Array
    """Shape (D, t)."""
    intercept: Array
    """Shape (t,)."""
    dual_coef: Array | None
    """Shape (n, t); None where some λ is 0 (it is then not determined)."""
    residual: float
    outcome: Outcome | None = None
    messages: tuple[str, ...] = ()
    condition: float = math.nan
    """Estimate of κ₂ of the matrix, of a direct solver."""

    @classmethod
    def build(
        cls,
        data: TrainingData,
        coef: Array,
        means: Array,
        centre: Array | None,
        errors: Array,
        residual: float,
        condition: float = math.nan,
        outcome: Outcome | None = None,
    ) -> Self:
        """From the solution of the centred problem and its training errors y − f(X).

        The dual coefficients come free: y − f(X) = λ W⁻¹ α. They take the place of the errors.
        """
        dual = None
        if (data.alphas > 0).all():
            dual = np.divide(errors, data.alphas, out=errors)
            if data.weights is not None:
                dual *= data.weights[:, None]
        intercept = means if centre is None else means - centre @ coef
        return cls(coef, intercept, dual, residual, outcome, condition=condition)
