"""Fits of kernel logistic regression: Newton's method on the plan's form, one value of λ after the other."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from dkrr import blas
from dkrr.errors import NotPositiveDefiniteError
from dkrr.fitting.checkpoint import Checkpoints
from dkrr.fitting.data import LabelledData
from dkrr.fitting.execute import fitted_function
from dkrr.fitting.factored import BROKE_DOWN, complete_factor
from dkrr.fitting.iterative import (
    Team,
    gram_operator,
    pivoted_factor,
    rates_of_growth,
    run_name,
    settings_of,
)
from dkrr.fitting.memory import gram_tiles, loaded, memory_executor, memory_grid
from dkrr.fitting.newton_path import PathPoint, PathState
from dkrr.fitting.sampled import by_name
from dkrr.fitting.solution import DualSolution, PrimalSolution
from dkrr.fitting.workspace import Workspace, open_workspace
from dkrr.linalg.cholesky import check_diagonal
from dkrr.linalg.columns import ColumnSource
from dkrr.linalg.curvature import ByCompleteFactors, ByPartialFactor, NewtonPreconditioners, NoPreconditioners, Solve
from dkrr.linalg.likelihood import LabelTerms
from dkrr.linalg.likelihood_pass import Passes
from dkrr.linalg.memory import KeptTiles, factor_in_memory, memory_system
from dkrr.linalg.normal import Segment
from dkrr.linalg.operator import Operator, ResidentRows
from dkrr.linalg.preconditioner import pays_no_more
from dkrr.linalg.sources import TileSource
from dkrr.linalg.sweeps import substituted
from dkrr.linalg.symmetry import check_symmetry
from dkrr.model import FittedFunction
from dkrr.planning import Plan
from dkrr.planning.iterative import CURVATURE_SHIFT, INNER_TOL
from dkrr.rows import Rows, scan
from dkrr.rows.checks import digest_of
from dkrr.runtime import Executor, Meter, Progress, RunRecord
from dkrr.runtime.task import peak_resident_bytes, reset_peak
from dkrr.solvers import SolveResult
from dkrr.solvers.dual_objective import DualObjective
from dkrr.solvers.newton import Newton, NewtonState, Objective, Point
from dkrr.solvers.primal_objective import PrimalObjective
from dkrr.solvers.result import Residuals
from dkrr.tiles import MemoryMatrix, TileGrid

Array = NDArray[np.float64]

ObjectiveAt = Callable[[float, Point, Array | None], Objective]
"""Objective of a λ at a point, given the norms of the gradients at zero if they are known."""


@dataclass(frozen=True)
class Fitted:
    """One model of a path."""

    alpha: float
    function: FittedFunction
    result: SolveResult
    dual_coef: Array | None
    """α, of shape (n, m); None after a fit in primal form."""
    start: Point
    """From which the next one may begin."""


@dataclass
class _Room:
    """Everything that serves all values of λ of one run."""

    rows: Rows
    objective: ObjectiveAt
    checkpoints: Checkpoints | None = None
    record: RunRecord = field(default_factory=RunRecord)
    meter: Meter = field(default_factory=Meter)
    owner: Any = None
    """Of the temporary folder that `rows` lie in, if any."""
    settle: Callable[[], None] = lambda: None
    """Called after the work: counts what processes read once and keep."""


def fit_path(
    data: LabelledData, plan: Plan, store: str | None, progress: Progress, max_iter: int, start: Point | None = None
) -> list[Fitted]:
    """Carry out a plan for every λ of the data, each from the solution before.

    Parameters
    ----------
    data : LabelledData
    plan : Plan
    store : str or None
        Store that the user gave; None works in a temporary one.
    progress : Progress
    max_iter : int
        Newton steps for each λ.
    start : Point, optional
        Where the first begins; None: at zero.

    Raises
    ------
    DkrrError
        See the errors of dkrr.errors; finished steps stay in a store that the user gave.
    """
    begun = time.perf_counter()
    if plan.execution != "dask":
        reset_peak()
    scaled = data.in_range()
    with _room(scaled, plan, store, progress) as room:
        found = _minimise(scaled, plan, room, progress, max_iter, start)
        room.settle()
        record, meter = room.record, room.meter
        peak = peak_resident_bytes() if plan.execution == "memory" else record.peak_bytes
        models = []
        for alpha, one in zip(data.alphas, found, strict=True):
            outcome, state = one.outcome, one.outcome.state
            solution = _solution(plan, room.rows, one)
            function = fitted_function(data, plan, solution, room.owner)
            result = SolveResult(
                status=outcome.status,
                residual=outcome.gradient,
                iterations=state.step,
                seconds=one.seconds,
                bytes_read=record.bytes_read + meter.bytes_read,
                bytes_written=record.bytes_written + meter.bytes_written,
                peak_bytes=peak,
                seconds_by_kind=record.seconds_by_kind() if record.tasks else {},
                history=tuple(Residuals(s.step, s.seconds, s.gradient, is_true=True) for s in state.history),
                messages=tuple(dict.fromkeys(state.messages)),
                steps=tuple(state.history),
                inner_iterations=one.inner_iterations,
                decrement=outcome.decrement,
                probability_change=outcome.probability_change,
                record=RunRecord(record.seconds, [replace(t, value=None) for t in record.tasks]),
            )
            models.append(Fitted(alpha, function, result, solution.dual_coef, one.point))
    if len(models) == 1:
        models = [replace(models[0], result=replace(models[0].result, seconds=time.perf_counter() - begun))]
    if room.owner is not None and all(m.function.keep_alive is None for m in models):
        room.owner.delete()
    return models


def _minimise(
    data: LabelledData, plan: Plan, room: _Room, progress: Progress, max_iter: int, start: Point | None
) -> tuple[PathPoint, ...]:
    """Solutions for all λ, each from the one before, and after the last checkpoint if there is one."""
    tol, checkpoints = plan.problem.tol, room.checkpoints
    path = PathState.resumed(checkpoints, tol, max_iter)
    if checkpoints is not None and path.newton is not None:
        progress.note(checkpoints.damage or f"going on after Newton step {path.newton.step}")
    if start is None:
        n, m = data.n if plan.form == "dual" else plan.problem.dimension or 0, data.likelihood.n_columns
        start = Point(np.zeros((n, m)), np.zeros(m))
    for alpha in data.alphas[len(path.done) :]:
        begun = time.perf_counter()
        objective = room.objective(alpha, path.point or start, path.references)
        save = partial(_save_step, checkpoints, objective, path.done)
        outcome = Newton(objective, tol, max_iter, progress, save).run(path.newton)
        outcome.state.messages += objective.messages
        point = Point(objective.point.coef, objective.point.intercept)  # scores and gradients are those of this λ
        found = PathPoint(point, outcome, time.perf_counter() - begun)
        path = PathState((*path.done, found), point, None, objective.references)
        path.save(checkpoints)
    return path.done


def _save_step(
    checkpoints: Checkpoints | None, objective: Objective, done: tuple[PathPoint, ...], state: NewtonState
) -> None:
    PathState(done, objective.point, state, objective.references).save(checkpoints)


def _solution(plan: Plan, rows: Rows, found: PathPoint) -> DualSolution | PrimalSolution:
    point, gradient = found.point, found.outcome.gradient
    if plan.form == "dual":
        return DualSolution(point.coef, point.intercept, rows, gradient)
    return PrimalSolution(point.coef, point.intercept, None, gradient)


@contextmanager
def _room(data: LabelledData, plan: Plan, store: str | None, progress: Progress) -> Iterator[_Room]:
    """Whatever the plan's form and place need, for as long as they are needed."""
    with ExitStack() as stack:
        if plan.execution == "memory":
            meter = Meter()
            if plan.form == "dual" and plan.solver == "cholesky":
                stack.enter_context(blas.one_thread(plan.seconds * plan.resources.rates.gemm_flops < blas.SMALL_FLOPS))
                executor = stack.enter_context(memory_executor(plan, memory_grid(plan)))
                yield _memory_room(data, plan, executor, progress, meter)
                return
            team = stack.enter_context(Team.of_threads(plan, progress))
            if plan.form == "primal":
                weights = None if data.weights is None else data.weights[:, None]
                codes = data.codes[:, None].astype(np.float64)
                yield _primal_room(data, plan, team, data.rows, codes, weights)
                return
            rows = loaded(data.rows, meter)
            scan(rows, "X")
            if data.kernel.is_precomputed:
                check_symmetry(team.executor, rows, TileGrid(data.n, plan.chosen.tile, plan.chosen.tile))
            run = run_name()
            stack.callback(team.executor.forget, run)
            room = _dual_room(data, plan, team, rows, run, None)
            room.meter = meter
            yield room
            return
        small = plan.execution == "serial" and (
            plan.solver == "cg" or plan.form == "primal" or 2.0 * plan.chosen.tile**3 < blas.SMALL_FLOPS
        )
        stack.enter_context(blas.one_thread(small))
        work = stack.enter_context(open_workspace(plan, store, progress))
        team = Team.of_workspace(plan, work)
        if plan.form == "primal":
            room = _shared_primal_room(data, plan, team, work)
        else:
            room = _shared_dual_room(data, plan, team, work, stack)
        room.owner, room.meter = work.temporary, work.meter
        if plan.chosen.keeps_rows:
            room.settle = lambda: work.count_kept_rows(room.rows)
        yield room


def _memory_room(data: LabelledData, plan: Plan, executor: Executor, progress: Progress, meter: Meter) -> _Room:
    """K and its factors in memory."""
    rows = loaded(data.rows, meter)
    scan(rows, "X")
    gram = KeptTiles.of_source(gram_tiles(data.kernel, rows, None), memory_grid(plan), executor)
    check_diagonal(gram.diagonal)
    largest = float(np.abs(gram.diagonal).max())
    return _Room(
        rows, _dual_objective(data, plan, gram, _MemoryFactors(gram, executor), largest, progress), meter=meter
    )


@dataclass
class _MemoryFactors(ByCompleteFactors):
    """Factors in memory, a single one beside K."""

    gram: KeptTiles
    executor: Executor

    def __post_init__(self) -> None:
        self._beside = self.gram.beside()

    def solvers(self, shifts: Array, models: NDArray[np.intp]) -> list[Solve]:  # noqa: ARG002
        matrices = [self._beside] if shifts.shape[1] == 1 else [MemoryMatrix(self.gram.grid) for _ in shifts.T]
        for matrix, shift in zip(matrices, shifts.T, strict=True):
            factor_in_memory(memory_system(self.gram, shift, matrix), self.executor)
        return [partial(substituted, matrix) for matrix in matrices]


def _dual_objective(
    data: LabelledData,
    plan: Plan,
    gram: Operator,
    preconditioners: NewtonPreconditioners,
    largest: float,
    progress: Progress,
) -> ObjectiveAt:
    labels, chosen = LabelTerms(data.likelihood, data.codes, data.weights), plan.chosen

    def objective(alpha: float, start: Point, known: Array | None) -> Objective:
        return DualObjective(
            labels=labels,
            fit_intercept=data.fit_intercept,
            alpha=alpha,
            gram=gram,
            preconditioners=preconditioners,
            largest=max(largest, 1e-300),
            mixed=chosen.solver == "cg" and chosen.precision == "float32" and not chosen.has_factor,
            max_iterations=settings_of(plan).max_iterations,
            start=start,
            progress=progress,
            unit=data.unit,
            known=known,
        )

    return objective


@dataclass
class _StoredFactors(ByCompleteFactors):
    """Factors out of core, deleted after their step."""

    work: Workspace
    plan: Plan
    source: TileSource
    groups: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.dtype: Literal["float64", "float32"] = "float32" if self.plan.chosen.has_factor else "float64"
        """float64 for good once a factorisation in float32 broke down."""

    def solvers(self, shifts: Array, models: NDArray[np.intp]) -> list[Solve]:
        return [self._factor(int(k), np.ascontiguousarray(shift)) for k, shift in zip(models, shifts.T, strict=True)]

    def _factor(self, model: int, shift: Array) -> Solve:
        # Tiles of another diagonal, left by a run whose checkpoint was lost, are not taken for this one's.
        self.groups.append(f"newton-{model}-{digest_of(shift)[:12]}")
        arguments = (self.work, self.plan, self.groups[-1], self.source, shift)
        try:
            made = complete_factor(*arguments, self.dtype, f"factorisation, model {model + 1}")
        except NotPositiveDefiniteError as error:
            if self.dtype == "float64":
                raise
            self.work.progress.note(BROKE_DOWN.format(row=error.row))
            self.dtype = "float64"
            return self._factor(model, shift)
        made.record = self.work.record
        return made.apply

    def end_step(self) -> None:
        while self.groups:
            self.work.store.delete(self.groups.pop())


def _partial_factor(
    data: LabelledData, plan: Plan, team: Team, columns: ColumnSource, run: str
) -> NewtonPreconditioners:
    product, pivot_seconds = rates_of_growth(plan)
    shift = CURVATURE_SHIFT[plan.problem.is_coupled] * min(data.alphas)
    enough = pays_no_more(shift, INNER_TOL, plan.problem.n_steps * product, pivot_seconds)
    with team.progress.stage("preconditioner", 1.0):
        return ByPartialFactor(pivoted_factor(plan, team, columns, run, data.weights, enough))


def _factors(plan: Plan) -> Literal["none", "partial", "complete"]:
    """Which factors of K a plan makes, but for a direct one in memory."""
    if plan.solver == "cholesky" or plan.chosen.has_factor:
        return "complete"
    return "partial" if plan.chosen.rank_limit else "none"


def _dual_room(data: LabelledData, plan: Plan, team: Team, rows: Rows, run: str, work: Workspace | None) -> _Room:
    """K multiplied tile by tile, and factors of it as the plan wants them."""
    operator, columns = gram_operator(data, plan, team, rows, run, work)
    made_with: dict[str, Callable[[], NewtonPreconditioners]] = {
        "none": NoPreconditioners,
        "partial": lambda: _partial_factor(data, plan, team, columns, run),
        "complete": lambda: _StoredFactors(cast(Workspace, work), plan, operator.source),
    }
    preconditioners = made_with[_factors(plan)]()
    largest = float(np.abs(columns.diagonal(slice(0, columns.n))).max())
    objective = _dual_objective(data, plan, operator, preconditioners, largest, team.progress)
    if work is None:
        team.record = operator.record
    operator.record = team.record
    kept = rows.rows if isinstance(rows, ResidentRows) else rows
    return _Room(kept, objective, team.checkpoints, team.record)


def _shared_dual_room(data: LabelledData, plan: Plan, team: Team, work: Workspace, stack: ExitStack) -> _Room:
    c, run = plan.chosen, run_name()
    height = c.panel if _factors(plan) == "complete" else c.tile
    rows = work.share(data.rows, data.fingerprint, c.layout(), height, data.notes())
    if data.kernel.is_precomputed:
        check_symmetry(work.executor, rows, TileGrid(data.n, c.tile, c.tile))
    elif c.keeps_rows:
        rows = ResidentRows(rows, run)
    stack.callback(work.executor.forget, run)
    return _dual_room(replace(data, kernel=by_name(data.kernel, work)), plan, team, rows, run, work)


def _shared_primal_room(data: LabelledData, plan: Plan, team: Team, work: Workspace) -> _Room:
    rows = work.share(data.rows, data.fingerprint, plan.chosen.layout(), plan.chosen.row_block, data.notes())
    by_rows = TileGrid(data.n, plan.chosen.row_block, plan.chosen.row_block)
    work.store.create_group("labels")
    codes = work.vectors("labels", "codes", by_rows, 1, data.codes)
    weights = None if data.weights is None else work.vectors("labels", "weights", by_rows, 1, data.weights)
    assert data.feature_map is not None
    known = replace(data, feature_map=by_name(data.feature_map, work))
    return _primal_room(known, plan, team, rows, codes, weights)


def _primal_room(data: LabelledData, plan: Plan, team: Team, rows: Rows, codes: Any, weights: Any) -> _Room:
    c, n = plan.chosen, data.n
    assert data.feature_map is not None
    n_blocks = -(-n // c.row_block)
    parts = min(n_blocks, c.row_parts)
    cuts = [min(n, round(k * n_blocks / parts) * c.row_block) for k in range(parts + 1)]
    segments = tuple(Segment(rows, a, b, c.row_block, codes, weights) for a, b in pairwise(cuts) if b > a)
    curvature = "matrix" if plan.solver == "cholesky" else "diagonal"
    passes = Passes(data.feature_map, data.likelihood, rows.shape[1], data.fit_intercept, curvature)  # type: ignore[arg-type]

    def objective(alpha: float, start: Point, known: Array | None) -> Objective:
        return PrimalObjective(
            passes=passes,
            segments=segments,
            executor=team.executor,
            alpha=alpha,
            max_iterations=settings_of(plan).max_iterations,
            is_preconditioned=settings_of(plan).preconditioner is not None,
            start=start,
            progress=team.progress,
            least_weight=1.0 if data.weights is None else float(data.weights[data.weights > 0].min(initial=np.inf)),
            record=team.record,
            unit=data.unit,
            known=known,
        )

    return _Room(rows, objective, team.checkpoints, team.record)
