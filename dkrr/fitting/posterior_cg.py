"""The Gaussian process by conjugate gradient: variances with certified bounds, and an estimate of the likelihood.

Rows whose variances are asked for are columns of one block run, k_x on the right. It ends column by column, as soon as
the bounds of `linalg.variance_bounds` are near enough to each other. The logarithm of the determinant comes from a few
random columns more (`linalg.quadrature`).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkrr.blas import column_sizes
from dkrr.cluster import Progress
from dkrr.cluster.process import usable_threads
from dkrr.data import Rows
from dkrr.errors import warn_inaccurate
from dkrr.fitting.context import Context, open_context
from dkrr.fitting.data import TrainingData, shared_fields
from dkrr.fitting.fitted_function import PREDICTED_ROWS
from dkrr.fitting.gaussian_process import (
    Array,
    Estimate,
    Numbers,
    Posterior,
    checked_blocks,
    diagonal_of,
    warn_of_width,
)
from dkrr.fitting.gram import GramOperator
from dkrr.fitting.iteration import iteration_of, pivot_rule, pivots_of
from dkrr.fitting.posterior_plans import plan_iterations
from dkrr.fitting.request_plans import with_spectrum
from dkrr.fitting.requests import FitRequest, Targets
from dkrr.fitting.sampled import centre_linear_parts
from dkrr.linalg.conjugate_gradient import Iteration
from dkrr.linalg.cross_gram_products import ComputedCrossGram
from dkrr.linalg.gram_products import Operator
from dkrr.linalg.iteration_state import State
from dkrr.linalg.preconditioners import Fixed, Identity, LowRank
from dkrr.linalg.quadrature import LanczosTrace
from dkrr.linalg.result import Status, in_terms_of_alpha
from dkrr.linalg.variance_bounds import RELATIVE_WIDTH, BoundedSolution, ResidualBounds, VarianceBounds, variance_bounds
from dkrr.machine.detection import detect
from dkrr.planning.problem import Problem
from dkrr.planning.uncertainty import UncertaintyPlan

END_FRACTION = 0.5
"""Fraction of the relative width at which a column ends, judged by rᵀM⁻¹r of the iteration itself."""
MIN_TOL = 1e-13
"""Smallest relative residual that is required of a column: it ends there, however wide its bounds are."""
MIN_CONTINUATIONS, MAX_CONTINUATIONS = 2, 6
"""Times that a run is continued for columns whose bounds are too far apart: at least, as one that begins far from what
it asks may end too early, and at most."""
TIGHTENING = 4.0
"""Factor by which a continuation asks for more than the width of a column's bounds requires."""
MAX_WIDTH_LEFT = 0.7
"""A later continuation that leaves a larger fraction of a width has met the limit of rounding, and is the last."""
KNOWN_TOL = 1e-7
"""Largest relative residual of the systems of the targets and of the intercept."""
N_PROBES = 64
"""Random vectors of the likelihood's determinant."""
PROBE_TOL = 1e-2
"""Relative residual of their systems: the quadrature's error is its square, about."""
SEED = 0


class IteratedPosterior(Posterior):
    """Without a factor of diag(c) K diag(c) + λI.

    Parameters
    ----------
    request : FitRequest
    alpha : float
        λ > 0.
    columns : ndarray of shape (t,)
        Numbers of its targets.
    problem : Problem
        Systems of this λ in dual form, with the spectrum where it matters.
    """

    def __init__(self, request: FitRequest, alpha: float, columns: Numbers, problem: Problem) -> None:
        outputs = request.outputs
        assert isinstance(outputs, Targets)
        targets = Targets(outputs.values[:, columns], np.full(len(columns), alpha))
        request = replace(request.with_settings(form="dual", store=None), outputs=targets)
        self._problem: Problem | None = problem
        self._request, self._tol = request, request.settings.tol
        data = TrainingData.of(targets, shared_fields(request, problem))
        self.data = centre_linear_parts(data)
        self.kernel, self.alpha, self._scale = self.data.kernel, alpha, self.data.dual_scale()
        self._doubts = list[str]()
        """Doubts about the systems of the targets, which are messages of all that is computed from them."""

    def __getstate__(self) -> dict[str, Any]:
        if self.data.fit_intercept:
            self._known  # noqa: B018 - else every block of rows on a worker takes a run for it
        return vars(self) | {"_problem": None}  # whose rates are those of this machine

    def variances(
        self,
        rows: Rows,
        first: int = 0,
        block_rows: int = PREDICTED_ROWS,  # noqa: ARG002 - a plan made when the run begins says how many
    ) -> Iterator[tuple[slice, VarianceBounds]]:
        loose = list[Array]()
        constant = self._known[1] if self.data.fit_intercept else None  # its bounds are certified
        with self._opened(rows.shape[0]) as run:
            for where, x in checked_blocks(rows, first, run.width):
                cross = ComputedCrossGram(self.kernel, run.matrix.rows).entries(x, self._scale, usable_threads())
                found = run.variances(cross, diagonal_of(self.kernel, x), constant)
                loose.append(found.relative_width)
                yield where, found
        warn_of_width(
            loose,
            rows.shape[0],
            "give a larger alpha, a preconditioner of a higher rank, a larger max_iter, or solver='cholesky'",
        )

    def quadratic(self) -> Array:
        found = self._known[0]
        for text in self._doubts:
            warn_inaccurate(text, stacklevel=4)
        return found

    def log_determinant(self) -> Estimate:
        with self._opened(0) as run:
            found = run.log_determinant(np.random.default_rng([SEED, N_PROBES]))
        shift, weights = self.data.dual_shift(self.alpha), self.data.weights
        zero = 0.0 if weights is None else float(np.log(shift[weights == 0]).sum())
        total = self._known[1]
        constant = 0.0 if total is None else float(np.log(0.5 * (total.low[0] + total.high[0])))
        return Estimate(found.value - self._log_weights() - zero + constant, found.error)

    @cached_property
    def _known(self) -> tuple[Array, BoundedSolution | None]:
        """yᵀA⁻¹y of every target less its intercept, and the system of the constant.

        Computed in a separate run, so that they do not depend on the rows whose variances were asked for first.
        """
        with self._opened(0) as run:
            return self._solved_targets(run)

    def _solved_targets(self, run: "_BoundedRun") -> tuple[Array, BoundedSolution | None]:
        data, tol = self.data, min(self._tol, KNOWN_TOL)
        means, found, constant = data.target_means(), np.empty(data.targets.shape[1]), None
        for start in range(0, len(found), run.width):
            columns = np.arange(start, min(start + run.width, len(found)))
            right = data.dual_right_sides(columns, means)[:, : len(columns)]
            if data.fit_intercept and constant is None:
                constant = self._solved(run, run.constant[:, None], tol)
            y = self._solved(run, np.ascontiguousarray(right), tol)
            found[columns], error = 0.5 * (y.low + y.high), 0.5 * (y.high - y.low)
            if constant is not None:
                total = 0.5 * float(constant.low[0] + constant.high[0])
                mixed = constant.right_sides[:, 0] @ y.x + constant.x[:, 0] @ y.residuals
                found[columns] -= mixed**2 / total
                error += 2 * np.abs(mixed) / total * np.sqrt(constant.residual_energy[0] * y.residual_energy)
                error += (mixed / total) ** 2 * 0.5 * (constant.high[0] - constant.low[0])
            self._doubt_digits(found[columns], error)
        return found, constant

    def _doubt_digits(self, found: Array, error: Array) -> None:
        """Note quadratic forms that may be off by more than bounds of variances, since the intercept takes most."""
        if not (error <= RELATIVE_WIDTH * found).all():
            with np.errstate(divide="ignore", invalid="ignore"):
                relative = float(np.max(np.abs(error / found)))
            self._doubts.append(
                f"the scale of the process may be off by {relative:.0e} of itself by conjugate gradient: expected "
                f"a smaller tol, a larger alpha, or solver='cholesky'"
            )

    def _solved(self, run: "_BoundedRun", right_sides: Array, tol: float) -> BoundedSolution:
        solved, doubt = run.solve(right_sides, tol)
        self._doubts += [doubt] if doubt else []
        return solved

    @contextmanager
    def _opened(self, n_rows: int) -> Iterator["_BoundedRun"]:
        """Context, matrix and preconditioner of a run, planned for the memory of this process when it begins."""
        if self._problem is None:
            self._problem = with_spectrum(self._request.problem(), self._request.rows)
        planned = plan_iterations(self._problem, detect(self._request.settings.memory_limit, None), n_rows)
        with open_context(planned.plan, None, Progress()) as context, in_terms_of_alpha([self.alpha], "dual"):
            try:
                yield _BoundedRun.of(self.data, self.alpha, planned, context, n_rows)
            finally:
                if context.temporary is not None:
                    context.temporary.delete()


@dataclass
class _BoundedRun:
    """K, its preconditioner and the bounds, while the workers have them."""

    plan: Any
    context: Context
    width: int
    """Columns for which there is memory."""
    matrix: GramOperator
    operator: Operator
    preconditioner: LowRank | Identity
    bounds: ResidualBounds
    shift: float
    constant: Array
    """c, also without an intercept: the direction of the largest eigenvalue."""

    @classmethod
    def of(
        cls, data: TrainingData, alpha: float, planned: UncertaintyPlan, context: Context, n_rows: int
    ) -> "_BoundedRun":
        """Run for some number of rows; 0: for the targets."""
        plan, scale = planned.plan, data.dual_scale()
        strategy = plan.chosen.details
        matrix = GramOperator(data, strategy, context, scale)
        preconditioner: LowRank | Identity = Identity()
        if matrix.rank_limit:
            runs = max(1.0, n_rows / planned.columns)
            is_enough = pivot_rule(plan, alpha, plan.problem.tol, runs)
            factor = matrix.partial_factor(None if scale is None else scale**2, pivots_of(plan), is_enough)
            preconditioner = LowRank(factor, np.full((1, 1), alpha), scale, matrix.is_mixed)
        low_rank = preconditioner if isinstance(preconditioner, LowRank) else None
        bounds = ResidualBounds(
            data.n,
            alpha,
            matrix.diagonal(),
            scale,
            None if low_rank is None else low_rank.factor,
            matrix.spanned,
            "float64" if low_rank is None else low_rank.precision,
        )
        constant = np.ones(data.n) if scale is None else scale
        return cls(plan, context, planned.columns, matrix, matrix.operator(), preconditioner, bounds, alpha, constant)

    def iteration(self, right_sides: Array) -> Iteration:
        """Conjugate gradient for these right-hand sides."""
        iteration = iteration_of(
            self.plan,
            self.context,
            self.operator,
            np.full((1, right_sides.shape[1]), self.shift),
            right_sides,
            self.preconditioner,
            mixed=self.matrix.is_mixed,
            largest=self.matrix.largest,
            deflate=None if self.preconditioner.captures_constant else self.constant,
        )
        iteration.estimates_condition = False
        return iteration

    def solve(self, right_sides: Array, tol: float) -> tuple[BoundedSolution, str]:
        """Systems solved to a relative residual, and words for a residual that is larger; empty without one."""
        iteration, doubt = self.iteration(right_sides), ""
        iteration.tol = tol
        outcome = iteration.run()
        if outcome.status is not Status.CONVERGED:
            doubt = (
                f"the systems of the targets have a relative residual of {outcome.residuals.max():.1e}, where "
                f"{tol:.0e} was asked: {outcome.status.value}"
            )
        return self._certified(iteration), doubt

    def variances(self, cross: Array, prior: Array, constant: BoundedSolution | None) -> VarianceBounds:
        """Variances of the rows of C K(X, x), of shape (n, m), with bounds as near as rounding allows.

        Parameters
        ----------
        cross : ndarray of shape (n, m)
        prior : ndarray of shape (m,)
            k(x, x).
        constant : BoundedSolution, optional
            System of the constant, with an intercept.
        """
        iteration = self.iteration(cross)
        ending = _Ending(iteration, prior, np.ones(len(prior)))
        if self.preconditioner.rank == 0:
            ending.factor /= self.shift  # M is the identity there, and A⁻¹ ≤ I / λ
        iteration.on_iteration = ending
        best: VarianceBounds | None = None
        status, state = Status.CONVERGED, None
        for number in range(MAX_CONTINUATIONS):
            outcome = iteration.run(state=state)
            status, state = outcome.status, iteration.last
            solved = self._certified(iteration)
            found = variance_bounds(prior, solved, constant, self.bounds.rounding)
            before = np.inf if best is None else best.relative_width
            best = found
            open_ = found.relative_width > RELATIVE_WIDTH
            useful = (found.relative_width < MAX_WIDTH_LEFT * before) | (number < MIN_CONTINUATIONS)
            if status not in (Status.CONVERGED, Status.STALLED) or not (open_ & useful).any():
                break
            ending.continue_with(open_ & useful, found, solved)
        assert best is not None
        return best

    def log_determinant(self, rng: np.random.Generator) -> Estimate:
        """Log |C K C + λI| by stochastic Lanczos quadrature."""
        base, known = self.preconditioner, 0.0
        if isinstance(base, LowRank):
            base = replace(base, mixed=False)
            known = base.log_determinant()
        values = np.concatenate(
            [self._traces(base, min(self.width, N_PROBES - start), rng) for start in range(0, N_PROBES, self.width)]
        )
        return Estimate(known + float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values))))

    def _traces(self, base: LowRank | Identity, n_probes: int, rng: np.random.Generator) -> Array:
        """Estimates of tr log H by some probes, one each."""
        if isinstance(base, LowRank):
            probes = base.sample(n_probes, rng)
        else:
            probes = rng.standard_normal((self.operator.n, n_probes))
        iteration, trace = self.iteration(probes), LanczosTrace(slice(0, n_probes))
        iteration.preconditioner, iteration.mixed, iteration.deflate = Fixed(base), False, None
        iteration.tol = PROBE_TOL
        iteration.on_cycle, iteration.on_step, iteration.on_iteration = (
            trace.on_cycle,
            trace.on_step,
            trace.on_iteration,
        )
        outcome = iteration.run()
        if outcome.status is not Status.CONVERGED:
            warn_inaccurate(
                f"the likelihood's random systems have a relative residual of {outcome.residuals.max():.1e}, where "
                f"{PROBE_TOL:.0e} was asked, so that its standard error is too small: {outcome.status.value}",
                stacklevel=6,
            )
        return trace.values(column_sizes(probes))

    def _certified(self, iteration: Iteration) -> BoundedSolution:
        """Bounds from the true residuals at the end of a run."""
        state = iteration.last
        assert state is not None
        sizes = column_sizes(iteration.right_sides)
        return self.bounds.of(iteration.right_sides, state.x * sizes, state.residual * sizes)


class _Ending:
    """Ends a column once the bounds of its variance are near enough, by the iteration's own rᵀM⁻¹r."""

    def __init__(self, iteration: Iteration, prior: Array, factor: Array) -> None:
        self._iteration, self._prior = iteration, prior
        self.factor = factor
        """Width of the certified bounds over rᵀM⁻¹r."""
        self._sizes = column_sizes(iteration.right_sides)
        self._shown = np.zeros(len(prior))
        self._right = iteration.right_sides / self._sizes
        iteration.tol = np.full(len(prior), MIN_TOL)

    def __call__(self, state: State) -> None:
        """See Iteration.on_iteration."""
        cycle = state.cycle
        assert cycle is not None
        left = cycle.product * self._sizes[cycle.columns] ** 2
        near = np.flatnonzero(
            self.factor[cycle.columns] * left <= END_FRACTION * RELATIVE_WIDTH * self._prior[cycle.columns]
        )
        near = near[np.isfinite(cycle.goal[near])]
        if not len(near):
            return
        columns = cycle.columns[near]
        x = state.x[:, columns] + cycle.correction[:, near]
        energy = ((self._right[:, columns] + cycle.residual[:, near]) * x).sum(axis=0) * self._sizes[columns] ** 2
        ended = self.factor[columns] * left[near] <= END_FRACTION * RELATIVE_WIDTH * (self._prior[columns] - energy)
        self._shown[columns] = left[near]
        cycle.goal[near[ended]] = np.inf
        tol = np.array(self._iteration.tol)
        tol[columns[ended]] = np.inf
        self._iteration.tol = tol

    def continue_with(self, open_: NDArray[np.bool_], found: VarianceBounds, solved: BoundedSolution) -> None:
        """Continue with columns whose certified bounds are wider than the iteration showed."""
        shown = np.where(self._shown > 0, self._shown, np.inf)
        wider = np.maximum(
            solved.residual_energy / shown, TIGHTENING * self.factor * found.relative_width / RELATIVE_WIDTH
        )
        self.factor = np.where(open_, np.maximum(self.factor, wider), self.factor)
        self._iteration.tol = np.where(open_, MIN_TOL, np.inf)
