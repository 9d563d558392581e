"""A primal fit that grows: sums over the rows of all calls so far, and the normal equations that follow from them.

Every call sums its own rows about a reference near their mean, and merges these sums with those of earlier rows (see
`ReferredSums`). λ is not part of sums, and may be another one in each call.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dkrr.blas import column_norms
from dkrr.cluster import Progress
from dkrr.errors import InputError, warn_inaccurate
from dkrr.fitting.context import Context, open_context, progress_of
from dkrr.fitting.costs.fourier_costs import lost_alpha
from dkrr.fitting.data import TrainingData, shared_fields
from dkrr.fitting.fourier_refinement import ROUNDING as GRID_ROUNDING
from dkrr.fitting.grids import refuse_outside
from dkrr.fitting.primal_ridge import INEXACT_PREDICTIONS
from dkrr.fitting.primal_rows import PrimalRows
from dkrr.fitting.request_plans import SUMMED, plan_of_sums
from dkrr.fitting.requests import FitRequest, Targets
from dkrr.fitting.results import Solution, fitted_model, scale_of
from dkrr.fitting.run import Fit, shortfall
from dkrr.fitting.sampled import centre_linear_parts, with_sampled_maps
from dkrr.kernels import Kernel
from dkrr.kernels.centring import Centring
from dkrr.kernels.fourier_grid import FourierGrid
from dkrr.kernels.kernel_features import is_drawn
from dkrr.kernels.map_base import FeatureMap, MapKernel
from dkrr.linalg.cholesky import check_diagonal
from dkrr.linalg.condition import worst
from dkrr.linalg.residual import relative_by_columns
from dkrr.linalg.result import INACCURATE_ABOVE, NORMAL_EQUATIONS, in_terms_of_alpha
from dkrr.linalg.sums import MIN_QUADRATIC, NormalSolution, NormalSystem, ReferredSums, cho_solve
from dkrr.planning import Plan
from dkrr.text import plural

Array = NDArray[np.float64]

SAME_CENTRES = "the features are those drawn in the first call: a fit of all rows would draw others"

LARGEST_POWER = 128
"""Weights are between 2 to this power, and its inverse."""


class Space(NamedTuple):
    """Fields that the data of all calls share, as the first call has made them."""

    kernel: Kernel
    """Kernel as it is computed, about its origins."""
    feature_map: FeatureMap | None
    centring: Centring | None
    fit_intercept: bool

    @property
    def grid(self) -> FourierGrid | None:
        """Grid of the features, if they have one."""
        return self.feature_map if isinstance(self.feature_map, FourierGrid) else None


@dataclass(frozen=True)
class GrownSums:
    """Sums over the rows of all calls so far, and the features that they are of."""

    asked: Kernel
    """Kernel of the first call, as it was requested."""
    drawn: Kernel
    """The same kernel, with what was drawn from the first rows."""
    space: Space
    referred: ReferredSums
    n: int
    """Rows so far."""
    weights: NDArray[np.intp]
    """Rows of positive weight so far, by the power of two of their weight: those with half of it up to it."""
    keeps_rows: ClassVar[bool] = False

    @property
    def fit_intercept(self) -> bool:
        """Whether the models have an intercept."""
        return self.space.fit_intercept

    @property
    def n_positive(self) -> int:
        """Rows of positive weight so far."""
        return int(self.weights.sum())

    def including(self, new: "GrownSums") -> "GrownSums":
        """Sums of these rows and of others, whose features are the same."""
        referred = self.referred.merged(new.referred)
        return replace(self, referred=referred, n=self.n + new.n, weights=self.weights + new.weights)

    def sizes(self, squares: Array) -> Array:
        """Sizes of the targets that errors are relative to: of rows of the median weight, of shape (t,).

        Weighted sums may be those of a few heavy rows alone; see `TargetSizes.ordinary`. (Means of powers or of logs
        would be those of heavy rows, too, or of rows that decaying weights have forgotten.)

        Parameters
        ----------
        squares : ndarray of shape (t,)
            Weighted sums of squares of the targets less their means.
        """
        median = np.searchsorted(np.cumsum(self.weights), 0.5 * self.n_positive) - 1.0 - LARGEST_POWER
        ordinary = min(1.0, 2.0**median * self.n_positive / self.referred.sums.total)
        return np.asarray(np.sqrt(np.maximum(squares, 0.0) * ordinary))

    def rounding(self, system: NormalSystem, solution: NormalSolution, condition: float) -> Array:
        """Change of the weighted predictions that rounding and the error of a grid may make, of shape (t,).

        It is that of `NormalSolution.rounding`, with the condition number where that is larger than the pivots show;
        on a grid also the residual of the dual system that a fit finds, with ‖α‖ = ‖W e‖ / λ from the sums.
        """
        found = np.fmax(solution.rounding(), solution.rounded * np.sqrt(condition))
        if self.space.grid is None:
            return np.asarray(found)
        grid, total = self.referred.sums.grid, self.referred.sums.total
        error = 0.0 if isinstance(self.space.kernel, MapKernel) else grid.bound * np.sqrt(self.n_positive)
        errors = np.fmax(solution.alpha * solution.quadratic, MIN_QUADRATIC * system.squares)  # at least eᵀWe
        heaviest = 2.0 ** (np.flatnonzero(self.weights)[-1] - LARGEST_POWER)
        duals = np.sqrt(heaviest * errors) / solution.alpha
        return np.asarray(np.fmax(found, np.sqrt(total) * (GRID_ROUNDING * grid.unit + error) * duals))


@contextmanager
def _summing(
    known: GrownSums | None, request: FitRequest, asked: Kernel, show: bool | None
) -> Iterator[tuple[GrownSums, TrainingData, Plan, Context]]:
    """Sums of earlier rows, which stay as they are, and of those of a request, in the context of a fit; see `grown`."""
    outputs = request.outputs
    assert isinstance(outputs, Targets)
    if known is not None:
        request = replace(request.with_settings(kernel=known.drawn), features=known.space.grid)
    request, plan = plan_of_sums(request)
    progress = progress_of(show, plan.seconds)
    if is_drawn(plan.problem.kernel):
        drawn = with_sampled_maps(plan.problem.kernel, request.rows, progress)
        request, plan = plan_of_sums(request.with_settings(kernel=drawn))
    data = TrainingData.of(outputs, shared_fields(request, plan.priced))
    data = centre_linear_parts(data) if known is None else replace(data, **known.space._asdict())
    space = Space(data.kernel, data.feature_map, data.centring, data.fit_intercept)
    if space.grid is not None:
        refuse_outside(data.rows, space.grid)
        if lost := lost_alpha(plan.priced):
            raise InputError(f"{lost} on a Fourier grid; expected a larger alpha")
    weights = np.ones(data.n) if data.weights is None else data.weights[data.weights > 0]
    powers = np.bincount(np.frexp(weights)[1] + LARGEST_POWER, minlength=2 * LARGEST_POWER)
    with open_context(plan, None, progress) as context:
        with progress.stage(SUMMED, float(data.n)):
            referred = _sums_about_means(data, context)
        found = GrownSums(asked, request.settings.kernel, space, referred, data.n, powers)
        yield found if known is None else known.including(found), data, plan, context


def sums_of(request: FitRequest, asked: Kernel, show: bool | None) -> GrownSums:
    """Sums of the rows of an earlier fit; parameters and errors are those of `grown`."""
    with _summing(None, request, asked, show) as (found, *_):
        return found


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
    begun = time.perf_counter()
    with _summing(known, request, asked, show) as (found, data, plan, context):
        solution = _solution(found, data, context.progress)
    total = found.referred.sums.total
    problem = replace(plan.problem, n=found.n, n_positive_weights=found.n_positive, total_weight=total, x_bytes=None)
    plan = replace(plan, problem=problem)
    model = fitted_model(data, plan, solution, context, begun)
    if not model.result.status.is_good:
        warn_inaccurate(shortfall(model.result, plan), stacklevel=4)
    return found, Fit(plan, (model,))


def _sums_about_means(data: TrainingData, context: Context) -> ReferredSums:
    """Sums of the rows of one call about their means; about 0 without an intercept."""
    rows = PrimalRows.of(data, context.threads, progress=context.progress)
    (sums,) = rows.sums([None])
    rows, sums = rows.repeated(sums.system(has_intercept=data.fit_intercept), float(data.alphas.min())) or (rows, sums)
    found = ReferredSums(sums, rows.features.reference, rows.means)
    return found.about_means() if data.fit_intercept else found


def _solution(grown: GrownSums, data: TrainingData, progress: Progress) -> Solution:
    """Solution of all targets from the sums of all rows so far.

    Its accuracy is judged by the residual of the normal equations and by what rounding of the sums may change: a
    residual of the dual system would need the rows.
    """
    referred, alphas = grown.referred, data.alphas
    system = referred.sums.system(has_intercept=data.fit_intercept)
    coef, (constants, bounds) = np.empty_like(system.moments), np.empty((2, len(alphas)))
    conditions, scale = list[float](), partial(scale_of, data, "primal")
    check_diagonal(system.matrix.diagonal())
    for alpha, columns in data.alpha_groups():
        with progress.measured("factorisation"), in_terms_of_alpha([alpha], "primal", scale):
            solution = system.solution(alpha)
        conditions.append(system.condition(alpha, partial(cho_solve, solution.lower)))
        coef[:, columns], constants[columns] = solution.coef[:, columns], solution.constants[columns]
        bounds[columns] = grown.rounding(system, solution, conditions[-1])[columns]
        del solution  # the next ones need the memory of its factor
    left = system.moments - system.matrix.multiply(coef) - coef * alphas
    residuals = relative_by_columns(column_norms(left), column_norms(system.moments))
    bounds = relative_by_columns(bounds, grown.sizes(system.squares))
    messages = [f"sums of {plural(grown.n, 'row')}, {data.n:,} of them in this call"]
    if is_drawn(grown.asked):
        messages.append(SAME_CENTRES)
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
        condition=worst(conditions),
        messages=tuple(messages),
    )
