"""A primal fit that grows: sums over the rows of all calls so far, and the normal equations that follow from them.

Every call sums its own rows about a reference near their mean, and merges these sums with those of earlier rows (see
`ReferredSums`). λ is not part of sums, and may be another one in each call.
"""

import time
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dkrr.cluster import Progress
from dkrr.data.rows import check_finite, dense
from dkrr.errors import InputError, MemoryLimitError, warn_inaccurate
from dkrr.fitting.context import Context, open_context, progress_of
from dkrr.fitting.data import TrainingData, shared_fields
from dkrr.fitting.fourier_ridge import ROUNDING as GRID_ROUNDING
from dkrr.fitting.fourier_ridge import refused_alpha
from dkrr.fitting.grids import SCANNED_BYTES
from dkrr.fitting.primal_ridge import INEXACT_PREDICTIONS
from dkrr.fitting.primal_rows import PrimalRows, not_shown
from dkrr.fitting.request_plans import plan_for_rows, plan_of
from dkrr.fitting.requests import FitRequest, Targets
from dkrr.fitting.results import Solution, fitted_model, scale_of
from dkrr.fitting.run import Fit, shortfall
from dkrr.fitting.sampled import centre_linear_parts, with_sampled_maps
from dkrr.kernels import Kernel
from dkrr.kernels.blocks import mirror_lower
from dkrr.kernels.centring import Centring
from dkrr.kernels.fourier_grid import FourierGrid
from dkrr.kernels.kernel_features import is_drawn
from dkrr.kernels.map_base import FeatureMap, MapKernel
from dkrr.linalg.cholesky import check_diagonal
from dkrr.linalg.condition import SolvedProbe, scaling_of, with_probe, worst
from dkrr.linalg.products import column_norms
from dkrr.linalg.residual import relative_by_columns
from dkrr.linalg.result import INACCURATE_ABOVE, NORMAL_EQUATIONS, in_terms_of_alpha
from dkrr.linalg.solver_settings import Cholesky, ConjugateGradient
from dkrr.linalg.sums import ReferredSums, cho_solve
from dkrr.planning import Plan
from dkrr.planning.detection import detect
from dkrr.planning.problem import Because, Problem
from dkrr.planning.reasons import Reason
from dkrr.text import format_bytes, plural

Array = NDArray[np.float64]

HELD_MATRICES = 3
"""D × D matrices besides those of a fit: sums of earlier rows, of the new ones and of all."""
EPS = float(np.finfo(float).eps)
LARGEST_POWER = 128
"""Weights are between 2 to this power, and its inverse."""
SUMMED = "normal matrix"
"""Stage that passes over the rows of a call."""
GROWS = Because(
    form=Reason("grows", "primal, since sums of features are kept for further rows, and not the rows"),
    solver=Reason("grows", "sums in the calling process, and a factor of them"),
)
FEATURES_REMEDY = (
    "give a kernel with explicit features (linear, polynomial, or RandomFourier(RBF(), 2000) and Nystroem(RBF(), 2000) "
    "of dkrr.features), or give all rows to fit"
)


@dataclass(frozen=True)
class GrownSums:
    """Sums over the rows of all calls so far, and the features that they are of."""

    asked: Kernel
    """Kernel of the first call, as it was requested."""
    drawn: Kernel
    """The same kernel, with what was drawn from the first rows."""
    kernel: Kernel
    """The same about its origins, as it is computed."""
    feature_map: FeatureMap
    centring: Centring | None
    fit_intercept: bool
    referred: ReferredSums
    n: int
    """Rows so far."""
    weights: NDArray[np.intp]
    """Rows of positive weight so far, by the power of two of their weight: those with half of it up to it."""

    @property
    def n_positive(self) -> int:
        """Rows of positive weight so far."""
        return int(self.weights.sum())

    def sizes(self, squares: Array) -> Array:
        """Sizes of the targets that errors are relative to: of rows of the median weight, of shape (t,).

        Weighted sums may be those of a few heavy rows alone; see `TargetSizes.ordinary`.

        Parameters
        ----------
        squares : ndarray of shape (t,)
            Weighted sums of squares of the targets less their means.
        """
        middle = int(np.searchsorted(np.cumsum(self.weights), 0.5 * self.n_positive))
        ordinary = 2.0 ** (middle - 1 - LARGEST_POWER) * self.n_positive / self.referred.sums.total
        return np.asarray(np.sqrt(np.maximum(squares, 0.0) * min(1.0, ordinary)))

    @property
    def grid(self) -> FourierGrid | None:
        """Grid of the features, if they have one."""
        return self.feature_map if isinstance(self.feature_map, FourierGrid) else None

    def grid_bounds(self, squares: Array, explained: Array, alphas: Array) -> Array:
        """What the rounding and the error of the grid may change in predictions, relative to the targets; (t,).

        It is the residual of the dual system that a fit finds, with ‖α‖ = ‖W e‖ / λ from the sums.

        Parameters
        ----------
        squares : ndarray of shape (t,)
            yᵀWy.
        explained : ndarray of shape (t,)
            The part of it that eᵀWe does not have.
        alphas : ndarray of shape (t,)
        """
        grid, total = self.referred.sums.grid, self.referred.sums.total
        error = 0.0 if isinstance(self.kernel, MapKernel) else grid.bound * np.sqrt(self.n_positive)
        heaviest = 2.0 ** (int(np.flatnonzero(self.weights)[-1]) - LARGEST_POWER)
        duals = np.sqrt(heaviest * np.maximum(squares - explained, EPS * squares)) / alphas
        bounds = np.sqrt(total) * (GRID_ROUNDING * grid.unit + error) * duals
        return relative_by_columns(bounds, self.sizes(squares))

    def including(self, new: "GrownSums") -> "GrownSums":
        """Sums of these rows and of others, whose features are the same."""
        if self.fit_intercept:
            referred = self.referred.merged(new.referred)
        else:  # both are about 0
            new.referred.sums.include(self.referred.sums)
            referred = new.referred
        return replace(self, referred=referred, n=self.n + new.n, weights=self.weights + new.weights)

    def problem_of(self, problem: Problem) -> Problem:
        """Problem of the rows so far and those of another problem."""
        more = problem.n if problem.n_positive_weights is None else problem.n_positive_weights
        weight = float(problem.n) if problem.total_weight is None else problem.total_weight
        return replace(
            problem,
            n=self.n + problem.n,
            x_bytes=None,  # these two follow from the bytes of an average row
            cumulative_largest_row_bytes=(),
            n_positive_weights=self.n_positive + more,
            total_weight=self.referred.sums.total + weight,
        )


@dataclass(frozen=True)
class Call:
    """Rows of one call, ready to be summed."""

    data: TrainingData
    plan: Plan
    drawn: Kernel
    """Kernel with what was drawn from the first rows."""
    progress: Progress

    @classmethod
    def of(cls, known: GrownSums | None, request: FitRequest, show: bool | None) -> Self:
        """Plan a call; see `grown`."""
        outputs = request.outputs
        assert isinstance(outputs, Targets)
        request, plan = _planned(known, request)
        progress = progress_of(show, plan.seconds)
        if known is None and is_drawn(plan.problem.kernel):
            drawn = with_sampled_maps(plan.problem.kernel, request.rows, progress)
            request, plan = _planned(None, request.with_settings(kernel=drawn))
        data = TrainingData.of(outputs, shared_fields(request, plan.problem))
        if known is not None:
            data = replace(data, kernel=known.kernel, feature_map=known.feature_map, centring=known.centring)
        elif data.fit_intercept:
            data = centre_linear_parts(data)
        if isinstance(data.feature_map, FourierGrid):
            _refuse_outside(data, data.feature_map)
        if lost := refused_alpha(plan, data):
            raise InputError(f"{lost} on a Fourier grid; expected a larger alpha")
        return cls(data, plan, request.settings.kernel, progress)

    def added(self, known: GrownSums | None, asked: Kernel, context: Context) -> GrownSums:
        """Sums of earlier rows, which stay as they are, and of these."""
        data = self.data
        with context.progress.stage(SUMMED, float(data.n)):
            referred = _sums_of(data, context.threads, context.progress)
        weights = np.ones(data.n) if data.weights is None else data.weights[data.weights > 0]
        counts = np.bincount(np.frexp(weights)[1] + LARGEST_POWER, minlength=2 * LARGEST_POWER)
        assert data.feature_map is not None
        new = GrownSums(
            asked,
            self.drawn,
            data.kernel,
            data.feature_map,
            data.centring,
            data.fit_intercept,
            referred,
            data.n,
            counts,
        )
        return new if known is None else known.including(new)


def sums_of(request: FitRequest, asked: Kernel, show: bool | None) -> GrownSums:
    """Sums of the rows of an earlier fit; parameters and errors are those of `grown`."""
    call = Call.of(None, request, show)
    with open_context(call.plan, None, call.progress) as context:
        return call.added(None, asked, context)


def grown(known: GrownSums | None, request: FitRequest, asked: Kernel, show: bool | None) -> tuple[GrownSums, Fit]:
    """Sums of the rows so far and those of a request, and the fit that follows from them.

    Parameters
    ----------
    known : GrownSums, optional
        Sums of earlier rows, which stay as they are; None: there are none.
    request : FitRequest
        The new rows.
    asked : Kernel
        Kernel as it was requested.
    show : bool or None
        Whether progress is shown, as in `make_progress`.

    Raises
    ------
    InputError
        If the kernel has no explicit features, or the rows are outside of the box of a grid.
    MemoryLimitError
        If the sums do not fit in memory.
    NotPositiveDefiniteError
        If the normal matrix is not positive definite.

    Warns
    -----
    ConvergenceWarning
        If the result is less accurate than requested.
    """
    begun, call = time.perf_counter(), Call.of(known, request, show)
    with open_context(call.plan, None, call.progress) as context:
        found = call.added(known, asked, context)
        with context.progress.measured("factorisation"):
            solution = _solution(found, call.data)
    model = fitted_model(call.data, call.plan, solution, context, begun)
    if not model.result.status.is_good:
        warn_inaccurate(shortfall(model.result, call.plan), stacklevel=3)
    return found, Fit(call.plan, (model,))


def _planned(known: GrownSums | None, request: FitRequest) -> tuple[FitRequest, Plan]:
    """Request in the primal form with a factor, in the calling process, and its plan; its problem has all rows so far.

    Time and memory are those of the call, which do not grow with the rows so far.
    """
    settings = request.settings
    if isinstance(settings.solver, ConjugateGradient):
        raise InputError(
            "solver is 'cg', and partial_fit keeps sums whose matrix it factors; expected solver='cholesky' or "
            "'auto': or give all rows to fit"
        )
    if settings.form == "dual":
        raise InputError(
            "form is 'dual', and partial_fit keeps sums of features and not the rows; expected form='primal' or "
            "'auto': or give all rows to fit"
        )
    request = replace(request.with_settings(form="primal", solver=Cholesky(), store=None), because=GROWS)
    resources = replace(
        detect(settings.memory_limit, None, rows=request.rows.url),
        confined="in the calling process, which keeps the sums",
    )
    if known is not None:
        request = request.with_settings(kernel=known.drawn, grid=known.grid)
        plan = plan_for_rows(request.problem(), request.rows, resources)  # of this call alone
    else:
        try:
            plan = plan_of(request, resources)
        except InputError as error:
            raise InputError(
                f"kernel is {request.settings.kernel!r}, and partial_fit takes the primal form, which it has not: "
                f"{error}; expected one that has: {FEATURES_REMEDY}"
            ) from error
    plan = _with_sums(plan)
    return request, plan if known is None else replace(plan, problem=known.problem_of(plan.problem))


def _with_sums(plan: Plan) -> Plan:
    """Plan with the memory of the sums that are kept and merged, and without stages that need dual coefficients.

    Raises
    ------
    MemoryLimitError
        If they do not fit in this process.
    """
    side, limit = plan.problem.dimension or 0, plan.resources.local_limit_bytes
    more = HELD_MATRICES * 8 * side**2
    needed = plan.peak_bytes + more
    if plan.execution != "memory" or needed > limit:
        raise MemoryLimitError(
            f"sums of {side:,} features take up to {format_bytes(needed)} in this process, and {format_bytes(limit)} "
            f"are allowed; expected fewer features, a larger memory_limit, or all rows in one call of fit, which has "
            f"other ways. Nothing was computed"
        )
    stages = tuple(
        replace(one, peak_bytes=one.peak_bytes + more)
        for one in plan.chosen.stages
        if one.name in (SUMMED, "factorisation")
    )
    return replace(plan, chosen=replace(plan.chosen, stages=stages))


def _refuse_outside(data: TrainingData, phi: FourierGrid) -> None:
    """Refuse rows outside of the box of a grid, where its waves are not the kernel."""
    d = data.rows.shape[1]
    grid, height = phi.grid(d), max(1, SCANNED_BYTES // max(data.rows.dense_window_row_bytes, 1))
    for where, x in data.rows.blocks(0, data.n, height):
        check_finite(x, "X", where.start, data.rows.names)
        rows = dense(x)
        is_outside = ~grid.is_in_limits(grid.away(rows))
        if is_outside.any():
            row, k = np.argwhere(is_outside)[0].tolist()
            column, (low, high) = grid.columns[k], phi.box[k]
            raise InputError(
                f"X has {rows[row, column]:.6g} in row {where.start + row:,}, column {column}, outside of the box "
                f"[{low:.6g}, {high:.6g}] of the Fourier grid, which is that of the rows of the first call unless it "
                f"is given; expected rows inside: give the box of all rows to come in the first call, "
                f"kernel=FourierGrid(RBF(gamma=...), box=[(low, high), ...]) of dkrr.features, or all rows to fit"
            )


def _sums_of(data: TrainingData, n_threads: int, progress: Progress) -> ReferredSums:
    """Sums of the rows of one call, repeated about their means where they have lost digits."""
    rows = PrimalRows.of(data, n_threads, progress=progress)
    (sums,) = rows.sums([None])
    if data.fit_intercept:
        system = sums.system(has_intercept=True)
        features = rows.features.about(system.means) if system.has_lost_digits(float(data.alphas.min())) else None
        if features is not None:
            rows = replace(rows, features=features, advance=not_shown)
            (sums,) = rows.sums([None])
    found = ReferredSums(sums, rows.features.reference, rows.means)
    return found.about_means() if data.fit_intercept else found  # else all sums are about 0


def _solution(grown: GrownSums, data: TrainingData) -> Solution:
    """Solution of all targets from the sums of all rows so far.

    Its accuracy is judged by the residual of the normal equations and by what rounding of the sums may change: a
    residual of the dual system would need the rows.
    """
    referred, alphas = grown.referred, data.alphas
    system = referred.sums.system(has_intercept=grown.fit_intercept)
    diagonal, sizes, probes = system.matrix.diagonal(), grown.sizes(system.squares), list[SolvedProbe]()
    coef, constants, rounded, pivots = np.empty_like(system.moments), *np.empty((3, len(alphas)))
    check_diagonal(diagonal)
    for alpha, columns in data.alpha_groups():
        with in_terms_of_alpha([alpha], "primal", partial(scale_of, data, "primal")):
            solution = system.solution(alpha)
        coef[:, columns], constants[columns] = solution.coef[:, columns], solution.constants[columns]
        rounded[columns], pivots[columns] = solution.rounded[columns], solution.least_pivot
        scaling = scaling_of(diagonal + alpha)
        probe = with_probe(np.empty((len(coef), 0)), scaling)
        x = cho_solve(solution.lower, probe)
        probes.append(SolvedProbe.of_solution(probe[:, 0], x[:, 0], scaling))
        del solution  # the next ones need the memory of its factor
    matrix, conditions = system.matrix.matrix(), np.empty(len(alphas))
    mirror_lower(matrix)
    left = system.moments - matrix @ coef - coef * alphas
    for (alpha, columns), one in zip(data.alpha_groups(), probes, strict=True):
        conditions[columns] = one.condition(matrix @ one.vector + alpha * one.vector)
    # As `NormalSolution.rounding`: where the probe sees a larger condition number than the pivots, with that.
    bounds = relative_by_columns(rounded * np.sqrt(np.fmax(conditions, 1.0 / pivots)), sizes)
    if grown.grid is not None:
        explained = np.einsum("ij,ij->j", system.moments + alphas * coef, coef)
        bounds = np.fmax(bounds, grown.grid_bounds(system.squares, explained, alphas))
    residuals = relative_by_columns(column_norms(left), column_norms(system.moments))
    messages = [f"sums of {plural(grown.n, 'row')}, {data.n:,} of them in this call"]
    if is_drawn(grown.asked):
        messages.append("the features are those drawn in the first call: a fit of all rows would draw others")
    if (bounds > INACCURATE_ABOVE).any():
        messages.append(INEXACT_PREDICTIONS.format(bound=bounds.max()))
        residuals = np.where(bounds > INACCURATE_ABOVE, np.fmax(bounds, residuals), residuals)
    return Solution(
        dual_coef=None,
        coef=coef,
        intercept=referred.target_reference + constants - referred.reference @ coef,
        rows=None,
        residual=float(residuals.max()),
        residual_of=NORMAL_EQUATIONS,
        residuals=residuals,
        condition=worst(conditions.tolist()),
        messages=tuple(messages),
    )
