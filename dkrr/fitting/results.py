"""The solution of a fit, and what is made of it: the fitted function, its norm, the result.

‖f‖ = √(αᵀKα) in the kernel's space comes from products that a fit makes anyway. Of αᵀKα float64 knows no more than what
rounding in the entries of K leaves, about ε Σ Kᵢᵢ αᵢ²: where rows of X repeat each other (or nearly) and λ is small,
coefficients are huge and cancel, and there may be nothing left. Such norms are 0, and a message says how large they may
be; another message says how far off the others may be, from one part in ten thousand on.
"""

import math
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkrr import blas
from dkrr.blas import column_norms
from dkrr.data import MemoryRows, Rows
from dkrr.errors import NotFiniteError, StoreError
from dkrr.fitting.context import Context
from dkrr.fitting.data import FitData, TrainingData
from dkrr.fitting.fitted_function import FittedFunction
from dkrr.fitting.gram import gram_diagonal
from dkrr.kernels import Kernel
from dkrr.kernels.centring import Centring
from dkrr.kernels.fourier_grid import map_of_predictions
from dkrr.kernels.map_base import FeatureMap
from dkrr.linalg.in_memory_cholesky import InMemoryMatrix
from dkrr.linalg.iteration_state import CGOutcome
from dkrr.linalg.newton import Point
from dkrr.linalg.result import CAUTION_ABOVE, DUAL_SYSTEM, SolveResult, caution, direct_status
from dkrr.planning import Plan
from dkrr.planning.problem import Form
from dkrr.store.run_store import WORK

Array = NDArray[np.float64]

VARIES_ABOVE = 1e3
"""Ratio of the largest k(x, x) to the smallest, below which scales of rows do not explain a matrix that is singular."""


EPS = float(np.finfo(float).eps)
NORM_ROUNDING = 2 * EPS
"""Times √n Σ Kᵢᵢ αᵢ²: error of αᵀKα (measured on rows that repeat each other: up to a third of this)."""
SUMMED_ROWS = 1024
"""Rows that are added up together."""


def function_norms(data: TrainingData, rows: Rows, coef: Array, squares: Array) -> tuple[Array, tuple[str, ...]]:
    """Norms of the functions of a dual solution.

    Parameters
    ----------
    coef : ndarray of shape (n, t)
        α.
    squares : ndarray of shape (t,)
        αᵀKα, as computed.

    Returns
    -------
    norms : ndarray of shape (t,)
    messages : tuple of str
        Warnings of norms that are below rounding, or not far above it.
    """
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        is_plain = data.kernel.has_unit_diagonal
        sums = np.einsum("ij,ij->j", coef, coef) if is_plain else _weighted_squares(data.kernel, rows, coef)
        errors = NORM_ROUNDING * math.sqrt(data.n) * sums
        known = ~(squares <= errors)
        norms, bounds = np.sqrt(np.where(known, squares, 0.0)), np.sqrt(errors)
        # q less its error e has the root (1 − e / q)^½ √q, and q with it added is nearer.
        parts = np.where(known & (squares < np.inf), 1.0 - np.sqrt(1.0 - errors / np.abs(squares)), 0.0)
    messages, lost, doubtful = list[str](), np.flatnonzero(~known & (errors > 0)), np.flatnonzero(parts > CAUTION_ABOVE)
    if len(lost):
        messages.append(
            f"rkhs_norm_{_which(lost, len(norms))} is given as 0: rounding in K hides all below "
            f"{bounds[lost].max():.1e}, since coefficients cancel"
        )
    if len(doubtful):
        messages.append(
            f"rkhs_norm_{_which(doubtful, len(norms))} may be off by as much as {parts[doubtful].max():.0e} of itself: "
            f"coefficients cancel, and rounding in K remains; a larger alpha makes it certain"
        )
    return norms, tuple(messages)


def _which(targets: NDArray[np.intp], n_targets: int) -> str:
    """Words for some of the targets; empty where there is only one."""
    more = f" and {len(targets) - 1} more" if len(targets) > 1 else ""
    return "" if n_targets == 1 else f" of target {targets[0]}{more}"


def _weighted_squares(kernel: Kernel, rows: Rows, coef: Array) -> Array:
    """Σ Kᵢᵢ αᵢ² of every column, of shape (t,)."""
    diagonal, total = np.maximum(gram_diagonal(kernel, rows), 0.0), np.zeros(coef.shape[1])
    for start in range(0, len(coef), SUMMED_ROWS):  # with many targets no second array of their size
        here = slice(start, start + SUMMED_ROWS)
        total += np.einsum("ij,ij->j", diagonal[here, None] * coef[here], coef[here])
    return total


def scale_of(data: TrainingData, form: Form) -> str:
    """Sentence on the scale of K, for an error of a matrix that is not positive definite."""
    diagonal, what, scaled = gram_diagonal(data.kernel, data.rows), "k(x, x)", "rows of X"
    if data.weights is not None:
        what, scaled = "sample_weight × k(x, x)", "rows of X and their weights"
        with np.errstate(over="ignore"):
            diagonal = diagonal * data.weights
    size, feature_map, remedies = float(diagonal.max()), data.feature_map, list[str]()
    if size > VARIES_ABOVE * diagonal.min(where=diagonal > 0, initial=np.inf):
        remedies.append(f"bring the {scaled} nearer to one scale")
    if form == "dual" and feature_map is not None and feature_map.dimension(data.rows.shape[1]) < data.n:
        remedies.append("give form='primal'")
    remedy = f": {', or '.join(remedies)}" if remedies else ""
    return f"{what} is up to {size:.1e}, and the rounding of such entries {EPS * size:.1e}{remedy}"


SHIFT_ROWS = 1024
"""Training rows in memory at once for the intercept of a kernel with an origin."""


@dataclass(frozen=True)
class Left:
    """Rows and temporary folder that a fit leaves besides the factor of one λ."""

    rows: Rows | None = None
    """The training rows as the fit has read them; None: those of the request."""
    owner: Any = None
    """Owner of a temporary folder in which they or the factor are."""
    matrix: InMemoryMatrix | None = None
    """The matrix beside the factor, in memory; of fits that grow, where their plan keeps it."""


@dataclass(frozen=True)
class SavedPosterior:
    """State of a posterior, left by a fit or in a saved model, from which it is restored without factoring again."""

    numbers: dict[str, Any]
    """Values of JSON."""
    arrays: dict[str, Rows]
    left: Left | None = None
    """None: it is from a saved model."""

    @classmethod
    def primal(
        cls,
        lower: Array,
        coef: Array,
        intercept: tuple[Array, Array, float] | None,
        left: Left | None = None,
        **numbers: Any,
    ) -> "SavedPosterior":
        """State of a posterior in the primal form, with the intercept as the last feature.

        Features are about their means: the factor with the intercept has one more row, of which only the last entry,
        √W, is not 0.

        Parameters
        ----------
        lower : ndarray of shape (D, D), or (D + 1, D + 1) with an intercept
            Its first D rows and columns are the lower factor of A + λI; the other entries are 0, and the last one is
            written.
        coef : ndarray of shape (D, t)
        intercept : (ndarray of shape (D,), ndarray of shape (t,), float), optional
            Means of the features, constants of the targets less their means, and W.
        left : Left, optional
            See above.
        **numbers
            Further values of JSON.
        """
        arrays: dict[str, Rows] = {"factor": MemoryRows(lower)}
        if intercept is not None:
            centre, constants, total = intercept
            lower[-1, -1], coef = np.sqrt(total), np.vstack([coef, constants])
            arrays["centre"] = MemoryRows(centre[:, None])
        arrays["coef"] = MemoryRows(np.ascontiguousarray(coef))
        return cls({"form": "primal", **numbers, "centred": intercept is not None}, arrays, left)


@dataclass(frozen=True)
class Solution:
    """Answer of one model, before it becomes a fitted value."""

    dual_coef: Array | None
    """α, of shape (n, t); None where the primal form does not determine it (some λ is 0)."""
    coef: Array | None
    """w, of shape (D, t); None in the dual form."""
    intercept: Array
    """b, of shape (t,)."""
    rows: Rows | None
    """The training rows, readable after the fit; None in the primal form."""
    residual: float
    """Largest true relative residual."""
    residual_of: str = DUAL_SYSTEM
    """System of that residual; see SolveResult."""
    condition: float = math.nan
    """Estimate of κ₂ of the matrix."""
    outcome: CGOutcome | None = None
    """Report of an iterative solver."""
    iterations: int = 0
    """Iterations of conjugate gradient without such a report."""
    residuals: Array | None = None
    """True relative residual of every target, of shape (t,); of a direct solver in dual form that of its λ."""
    squares: Array | None = None
    """αᵀKα as computed, of shape (t,)."""
    messages: tuple[str, ...] = ()
    """Differences from the plan."""
    near: Array | None = None
    """Coefficients of a Fourier grid for rows that are not in its box, (D', t)."""
    saved: Mapping[float, SavedPosterior] = field(default_factory=dict)
    """By λ, the factors that standard deviations take, where the plan keeps them."""


@dataclass(frozen=True)
class FittedModel:
    """Fitted function of one model, and the report of its fit."""

    function: FittedFunction
    result: SolveResult
    dual_coef: Array | None
    """α, of shape (n, t); also where the model predicts in primal form."""
    norms: Array | None = None
    """‖f‖ in the kernel's space, of shape (t,); None for a classification."""
    start: Point | None = None
    """Starting point of a later classification."""
    posteriors: Any = None
    """Posteriors (`Posteriors`) of a fit with uncertainty; None: they are made when they are asked for."""


def result_of(solution: Solution, plan: Plan, context: Context, **facts: Any) -> SolveResult:
    """Report of a solution: how good it is, and what the run took; `facts` are other fields of SolveResult."""
    record, outcome = context.record, solution.outcome
    read, written, stages = context.bytes_read, context.bytes_written, context.stages
    messages = (*context.notices, *solution.messages)
    reported: dict[str, Any] = {"iterations": solution.iterations, "residual_of": solution.residual_of} | facts
    if solution.residuals is not None:
        reported["residuals"] = tuple(solution.residuals.tolist())
    if outcome is not None:
        messages += outcome.messages
        reported |= {
            "status": outcome.status,
            "iterations": outcome.iterations,
            "rank": outcome.rank,
            "history": outcome.history,
        }
    elif "status" not in reported:
        reported["status"] = direct_status(solution.residual)
    result = SolveResult(
        residual=solution.residual,
        condition=solution.condition,
        bytes_read=read,
        bytes_written=written,
        peak_bytes=context.peak_bytes,
        seconds_by_kind=record.seconds_by_kind() if record.tasks else {},
        messages=caution(solution.condition, plan.chosen.form, reported["status"]) + messages,
        stages=stages,
        record=record,
        **reported,
    )
    if context.storage.keeps:
        with suppress(StoreError, OSError):  # the fit is complete without it
            context.stored.store.set_note(WORK, result.to_dict() | {"text": str(result)})
    return result


def quadratics(data: TrainingData, dual_coef: Array) -> Array:
    """yᵀ(K + λW⁻¹)⁻¹y of every target less its intercept, Σ (yᵢ − ȳ) αᵢ, of shape (t,)."""
    means, total = data.target_means(), np.zeros(dual_coef.shape[1])
    for start in range(0, data.n, SUMMED_ROWS):  # with many targets no second array of their size
        here = slice(start, start + SUMMED_ROWS)
        total += np.einsum("ij,ij->j", data.targets[here] - means, dual_coef[here])
    return total


def fitted_model(
    data: TrainingData,
    plan: Plan,
    solution: Solution,
    context: Context,
    begun: float,
    posteriors: Any = None,
) -> FittedModel:
    """Fitted value and result of a solution.

    Parameters
    ----------
    begun : float
        Start of the fit, by `time.perf_counter`.
    posteriors : Posteriors, optional
        Posteriors that the fit leaves.

    Raises
    ------
    NotFiniteError
        If float64 does not hold the answer.
    """
    owner = context.temporary
    model, dual_coef = fitted_function(data, plan, solution, owner), solution.dual_coef
    _refuse_overflow(model, dual_coef)
    if model.coef is None:
        assert solution.rows is not None and dual_coef is not None and solution.squares is not None
        norms, doubts = function_norms(data, solution.rows, dual_coef, solution.squares)
        if doubts:
            solution = replace(solution, messages=doubts + solution.messages)
    else:
        norms = column_norms(model.coef if solution.coef is None else model.coef[: len(solution.coef)])
    if (
        owner is not None
        and model.keep_alive is None
        and not any(one.left and one.left.owner for one in solution.saved.values())
    ):
        owner.delete()
    result = result_of(solution, plan, context, seconds=time.perf_counter() - begun)
    return FittedModel(model, result, dual_coef, norms, posteriors=posteriors)


def _refuse_overflow(model: FittedFunction, dual_coef: Array | None) -> None:
    """Refuse a solution with NaN or infinity in it.

    Raises
    ------
    NotFiniteError
        Naming the first target.
    """
    named = {"dual_coef_": dual_coef, "coef_": model.coef, "intercept_": model.intercept[None, :]}
    for name, values in named.items():
        with np.errstate(over="ignore", invalid="ignore"):
            # A sum is finite unless one of the values is not, or it overflows, which the second look sorts out.
            if values is None or math.isfinite(values.sum()):
                continue
        bad = ~(np.isfinite(values.max(axis=0)) & np.isfinite(values.min(axis=0)))
        if bad.any():
            raise NotFiniteError(
                f"{name} of target {int(np.argmax(bad))} (counted from 0) is not finite: it, or a number on the way "
                f"to it, is larger than float64 holds. Scale y or the columns of X towards 1, or increase alpha"
            )


def fitted_function(data: FitData, plan: Plan, solution: Solution, owner: Any) -> FittedFunction:
    """Fitted value in the form of the predictions; it keeps the owner of a temporary folder only if it reads there."""
    coef, rows, keep = None, None, None
    feature_map: FeatureMap | None = None
    if solution.near is not None:
        assert solution.coef is not None and data.feature_map is not None
        coef, feature_map = np.vstack([solution.coef, solution.near]), map_of_predictions(data.feature_map)
    elif solution.coef is not None:
        coef, feature_map = solution.coef, data.feature_map
    elif plan.prediction == "primal" and data.feature_map is not None:
        feature_map = data.feature_map
        coef = primal_coefficients(data, solution)
    else:
        # The user's own array if it is in memory, else what the workers read.
        rows = data.rows if isinstance(data.rows, MemoryRows) else solution.rows
        keep = owner if rows is solution.rows and owner is not None and not data.rows.is_shared else None
    shift = None
    if data.centring is not None:
        shift = _shift(data, plan, data.centring, coef, solution)
    return FittedFunction(
        kernel=data.kernel,
        n_features=data.rows.shape[1],
        coef=coef,
        feature_map=feature_map,
        dual_coef=None if coef is not None else solution.dual_coef,
        rows=None if data.kernel.is_precomputed else rows,
        intercept=solution.intercept,
        intercept_shift=shift,
        keep_alive=keep,
        device=plan.problem.device,
    )


def _shift(
    data: FitData,
    plan: Plan,
    centring: Centring,
    coef: Array | None,
    solution: Solution,
) -> Array:
    """Value at 0 of the fitted function without its intercept, minus that with the kernel about 0; shape (t,)."""
    if coef is not None:
        assert data.feature_map is not None and plan.problem.feature_map is not None
        x = data.rows.read(0, 1)  # of any row: other features than those with an origin are the same
        difference = data.feature_map.transform(x)[0] - plan.problem.feature_map.transform(x)[0]
        return np.asarray(difference @ coef)
    assert solution.rows is not None and solution.dual_coef is not None
    total = np.zeros(solution.dual_coef.shape[1])
    for start in range(0, data.n, SHIFT_ROWS):
        stop = min(start + SHIFT_ROWS, data.n)
        total += centring.shift(solution.rows.read(start, stop)) @ solution.dual_coef[start:stop]
    return total


def primal_coefficients(data: FitData, solution: Solution) -> Array:
    """Coefficients w = Φᵀα, a block of rows at a time; shape (D, t)."""
    rows = solution.rows
    assert data.feature_map is not None and rows is not None and solution.dual_coef is not None
    dimension = data.feature_map.dimension(rows.shape[1])
    width = rows.row_bytes if rows.is_sparse and data.feature_map.keeps_sparse else 8 * max(dimension, rows.shape[1])
    block = max(1, min(data.n, 64 * 2**20 // max(width, 1)))
    coef = np.zeros((dimension, solution.dual_coef.shape[1]))
    for start in range(0, data.n, block):
        stop = min(start + block, data.n)
        x, alpha = rows.read(start, stop), np.ascontiguousarray(solution.dual_coef[start:stop])
        if rows.is_sparse and data.feature_map.keeps_sparse:
            coef += data.feature_map.adjoint(x, alpha)
        else:
            blas.gemm(coef, data.feature_map.transform(x), alpha, transpose_a=True, beta=1.0)
    return coef
