"""Fits by conjugate gradient: the matrix is multiplied, never factored."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkrr import blas
from dkrr.errors import NotPositiveDefiniteError
from dkrr.features import FeatureMap, IdentityMap
from dkrr.fitting.checkpoint import Checkpoints
from dkrr.fitting.data import LabelledData, TrainingData
from dkrr.fitting.memory import loaded
from dkrr.fitting.sampled import by_name
from dkrr.fitting.solution import DualParts, DualSolution, PrimalSolution
from dkrr.fitting.workspace import Workspace
from dkrr.linalg.cholesky import check_diagonal
from dkrr.linalg.columns import ColumnSource, GramColumns, MatrixColumns
from dkrr.linalg.normal import Segment
from dkrr.linalg.normal_product import (
    Diagonal,
    NormalOperator,
    normal_moments,
    training_errors,
    weighted_squares,
    weighted_sums,
)
from dkrr.linalg.operator import Operator, ResidentRows, TiledOperator, pass_cost
from dkrr.linalg.pivoted import PivotedCholesky
from dkrr.linalg.preconditioner import Identity, LowRank, Preconditioner, pays_no_more
from dkrr.linalg.sources import GramTiles, MatrixTiles, SummedTiles, TileSource, store_tiles
from dkrr.linalg.symmetry import check_symmetry
from dkrr.planning import Plan
from dkrr.planning.iterative import APPLY_SECONDS, factor_seconds
from dkrr.rows import Rows, scan
from dkrr.runtime import Executor, Meter, Progress, RunRecord, SerialExecutor, Task, ThreadExecutor
from dkrr.solvers import ConjugateGradient
from dkrr.solvers.conjugate_gradient import Iteration, Outcome, State
from dkrr.solvers.settings import Pivoted, RPCholesky
from dkrr.tiles import ChunkedArray, TileGrid

Array = NDArray[np.float64]


@dataclass
class Team:
    """Who does the work of one fit, and where it is noted."""

    executor: Executor
    progress: Progress
    slots: int
    slots_a_process: int
    checkpoints: Checkpoints | None
    record: RunRecord

    @classmethod
    @contextmanager
    def of_threads(cls, plan: Plan, progress: Progress) -> Iterator["Team"]:
        """Threads of the calling process."""
        slots = plan.chosen.slots
        with ThreadExecutor(slots) as executor, blas.one_thread():
            yield cls(executor, progress, slots, slots, None, RunRecord())

    @classmethod
    def of_workspace(cls, plan: Plan, work: Workspace) -> "Team":
        """Workers with a store."""
        threads = plan.resources.worker_threads if plan.execution == "dask" else plan.chosen.slots
        checkpoints = Checkpoints(work.store) if work.keeps else None
        return cls(work.executor, work.progress, plan.chosen.slots, threads, checkpoints, work.record)


def fit_dual_here(data: TrainingData, plan: Plan, progress: Progress, meter: Meter) -> tuple[DualSolution, RunRecord]:
    """Solve (K + λW⁻¹) α = y in the calling process, with nothing on disk."""
    rows = loaded(data.rows, meter)
    scan(rows, "X")
    if data.kernel.is_precomputed:
        grid = TileGrid(data.n, plan.chosen.tile, plan.chosen.tile)
        check_symmetry(SerialExecutor(), rows, grid)
    with Team.of_threads(plan, progress) as team:
        return _fit_dual(data, plan, team, rows), team.record


def fit_dual_shared(data: TrainingData, plan: Plan, work: Workspace) -> DualSolution:
    """Solve (K + λW⁻¹) α = y on workers, with checkpoints in a given store."""
    rows = work.share(data.rows, data.fingerprint, plan.chosen.layout(), plan.chosen.tile, data.notes())
    team, run = Team.of_workspace(plan, work), run_name()
    if data.kernel.is_precomputed:
        check_symmetry(work.executor, rows, TileGrid(data.n, plan.chosen.tile, plan.chosen.tile))
    elif plan.chosen.keeps_rows:
        rows = ResidentRows(rows, run)
    try:
        solution = _fit_dual(replace(data, kernel=by_name(data.kernel, work)), plan, team, rows, work)
    finally:
        work.executor.forget(run)
    if isinstance(rows, ResidentRows):
        work.count_kept_rows(rows)
    return solution


def run_name() -> str:
    """Name of what the processes keep for one run."""
    return f"cg-{uuid.uuid4().hex}"


def settings_of(plan: Plan) -> ConjugateGradient:
    """Settings that the user gave, or the planner's."""
    solver = plan.problem.solver
    return solver if isinstance(solver, ConjugateGradient) else ConjugateGradient()


def _stored_tiles(work: Workspace, source: TileSource, grid: TileGrid) -> SummedTiles:
    """Tiles of the matrix on disk, formed unless they are there."""
    work.store.create_group("gram")
    matrix = work.matrix("gram", "tiles", grid)
    done = matrix.complete_tiles()
    tasks = [
        Task(f"tile-{i}-{j}", store_tiles, (source, matrix, i, j), flops=float(grid.height(i) * grid.height(j)))
        for i, j in grid.lower()
        if (i, j) not in done
    ]
    work.run("Gram matrix", tasks)
    return SummedTiles((matrix,))


def gram_operator(
    data: TrainingData | LabelledData,
    plan: Plan,
    team: Team,
    rows: Rows,
    run: str,
    work: Workspace | None,
    scale: Array | None = None,
) -> tuple[TiledOperator, ColumnSource]:
    """Return diag(c) K diag(c) as the plan wants it multiplied, and the columns of K."""
    c = plan.chosen
    source: TileSource
    columns: ColumnSource
    if data.kernel.is_precomputed:
        source, columns = MatrixTiles(rows), MatrixColumns(rows)
    else:
        source, columns = GramTiles(data.kernel, rows), GramColumns(data.kernel, rows)
    grid = TileGrid(data.n, c.tile, c.tile)
    if c.stores_tiles:
        assert work is not None
        source = _stored_tiles(work, source, grid)
    operator = TiledOperator(
        source=source,
        grid=grid,
        executor=team.executor,
        run=run,
        slots=team.slots,
        slots_a_process=team.slots_a_process,
        kept_tiles=c.kept_tiles,
        keeps=c.precision,
        scale=scale,
    )
    return operator, columns


def _fit_dual(data: TrainingData, plan: Plan, team: Team, rows: Rows, work: Workspace | None = None) -> DualSolution:
    run = run_name()
    scale, means = data.dual_scale(), data.target_means()
    operator, columns = gram_operator(data, plan, team, rows, run, work, scale)
    groups = data.alpha_groups()
    sides = [data.dual_right_sides(targets, means) for _, targets in groups]
    right_sides = np.hstack(sides)
    shift = np.concatenate([np.full(b.shape[1], alpha) for (alpha, _), b in zip(groups, sides, strict=True)])[None, :]
    found = DualParts(data, means)
    try:
        preconditioner = _preconditioner(data, plan, team, columns, shift, run)
        iteration = _iteration(plan, team, operator, preconditioner, shift, right_sides, scale)
        widths = [(targets, b.shape[1]) for (_, targets), b in zip(groups, sides, strict=True)]
        outcome = _finished(team, iteration, lambda state: found.iterate(widths, iteration, state))
    except NotPositiveDefiniteError as error:
        raise _not_positive_definite(error, data) from None
    finally:
        team.executor.forget(run)
    kept = rows.rows if isinstance(rows, ResidentRows) else rows
    return found.solution(kept, outcome)


def _iteration(
    plan: Plan,
    team: Team,
    operator: Operator,
    preconditioner: Preconditioner,
    shift: Array,
    right_sides: Array,
    scale: Array | None,
) -> Iteration:
    constant = np.ones(len(right_sides)) if scale is None else scale
    return Iteration(
        operator=operator,
        shift=shift,
        right_sides=right_sides,
        preconditioner=preconditioner,
        tol=plan.problem.tol,
        max_iterations=settings_of(plan).max_iterations,
        mixed=plan.chosen.precision == "float32",
        deflate=None if preconditioner.captures_constant or plan.form == "primal" else constant,
        progress=team.progress,
        on_iteration=team.checkpoints.save_in_time if team.checkpoints is not None else lambda _: None,
        on_end=team.checkpoints.save if team.checkpoints is not None else lambda _: None,
    )


def _finished(team: Team, iteration: Iteration, run: Callable[[State | None], Outcome]) -> Outcome:
    """Run from the last checkpoint, if there is one that can be read."""
    state, damage = None, ""
    if team.checkpoints is not None:
        state, damage = team.checkpoints.load(), team.checkpoints.damage
    if damage:
        team.progress.note(damage)
    if state is not None and state.x.shape != iteration.right_sides.shape:
        state = None
    outcome = run(state)
    team.record.add(iteration.operator.record)
    team.record.add(iteration.preconditioner.record)
    return replace(outcome, messages=(damage, *outcome.messages)) if damage else outcome


def _preconditioner(
    data: TrainingData, plan: Plan, team: Team, columns: ColumnSource, shift: Array, run: str
) -> Preconditioner:
    c, p = plan.chosen, plan.problem
    if c.rank_limit == 0:
        return Identity()
    scale = data.dual_scale()
    importance = None if scale is None else scale**2
    enough = pays_no_more(float(shift.min()), p.tol, *rates_of_growth(plan))
    with team.progress.stage("preconditioner", 1.0):
        return LowRank(pivoted_factor(plan, team, columns, run, importance, enough), shift, scale)


def pivoted_factor(
    plan: Plan,
    team: Team,
    columns: ColumnSource,
    run: str,
    importance: Array | None,
    enough: Callable[[PivotedCholesky], bool],
) -> PivotedCholesky:
    """Partial factor of K as the plan wants it, from the pivots of an earlier run where there are any.

    Parameters
    ----------
    plan : Plan
    team : Team
    columns : ColumnSource
    run : str
        Name under which the workers keep it.
    importance : ndarray of shape (n,), optional
        Factors of the diagonal by which pivots are drawn.
    enough : callable
        Whether it has grown enough, where nobody asked for a rank.
    """
    c = plan.chosen
    wanted = settings_of(plan).preconditioner
    settings = wanted if isinstance(wanted, Pivoted) else RPCholesky()
    factor = PivotedCholesky(
        columns=columns,
        executor=team.executor,
        run=run,
        slots=team.slots,
        capacity=c.rank_limit,
        pivots=settings.pivots,
        importance=importance,
        seed=settings.seed,
        dtype=np.float32,
    )
    saved = None if team.checkpoints is None else team.checkpoints.load_pivots()
    if saved is not None and len(saved) <= factor.capacity:
        factor.restore(saved)
    if settings.rank is not None:
        factor.grow(settings.rank)
    elif factor.rank == 0:
        factor.grow(c.rank_limit, enough)
    if team.checkpoints is not None:
        team.checkpoints.pivots = lambda: factor.index
        team.checkpoints.save_pivots(factor.index)
    return factor


def rates_of_growth(plan: Plan) -> tuple[float, Any]:
    """Seconds of one product, and of one more pivot at a rank, from what the plan was made with."""
    c, p, r = plan.chosen, plan.problem, plan.resources
    n_tiles = c.n_tiles * (c.n_tiles + 1) // 2
    kept = min(1.0, c.kept_tiles * c.slots / n_tiles)
    product = pass_cost(p.entry(r.rates, c.precision), p.n**2 / 2, p.n_right_sides, c.precision, kept)
    apply = APPLY_SECONDS * p.n * p.n_right_sides / c.slots

    def pivot_seconds(rank: int) -> float:
        step = max(1, rank // 50)
        more = factor_seconds(p, r, c.slots, rank + step) - factor_seconds(p, r, c.slots, rank)
        return more / step + c.iterations * apply

    return r.rates.seconds(product) / c.slots, pivot_seconds


def _not_positive_definite(error: NotPositiveDefiniteError, data: TrainingData) -> NotPositiveDefiniteError:
    alphas = ", ".join(f"{a:g}" for a in np.unique(data.alphas))
    return NotPositiveDefiniteError(
        f"K + λI with λ = alpha = {alphas}: {error}. The kernel is not positive semidefinite on these rows, or λ is "
        f"below what rounding in K allows: increase alpha, or use a positive semidefinite kernel. dkrr never adds a "
        f"jitter of its own; checkpoints in a given store are kept",
        error.row,
    )


def fit_primal_here(
    data: TrainingData, plan: Plan, progress: Progress, meter: Meter
) -> tuple[PrimalSolution, RunRecord]:
    """Solve (ΦᵀWΦ + λI) w = ΦᵀWy in the calling process, streaming the rows."""
    scan(data.rows, "X", meter)
    weights = None if data.weights is None else data.weights[:, None]
    with Team.of_threads(plan, progress) as team:
        errors = data.room_for_errors()
        assert data.feature_map is not None
        solution = _fit_primal(data, plan, team, data.rows, data.targets, weights, errors, data.feature_map)
        return solution, team.record


def fit_primal_shared(data: TrainingData, plan: Plan, work: Workspace) -> PrimalSolution:
    """Solve (ΦᵀWΦ + λI) w = ΦᵀWy on workers, streaming the rows."""
    rows = work.share(data.rows, data.fingerprint, plan.chosen.layout(), plan.chosen.row_block, data.notes())
    by_rows = TileGrid(data.n, plan.chosen.row_block, plan.chosen.row_block)
    work.store.create_group("normal")
    width = data.targets.shape[1]
    targets = work.vectors("normal", "targets", by_rows, width, data.targets)
    weights = None if data.weights is None else work.vectors("normal", "weights", by_rows, 1, data.weights)
    team = Team.of_workspace(plan, work)
    assert data.feature_map is not None
    errors = work.vectors("normal", "errors", by_rows, width)
    solution = _fit_primal(data, plan, team, rows, targets, weights, errors, by_name(data.feature_map, work))
    work.store.delete("normal/errors")
    return solution


def _fit_primal(
    data: TrainingData,
    plan: Plan,
    team: Team,
    rows: Rows,
    targets: Array | ChunkedArray,
    weights: Array | ChunkedArray | None,
    errors: Array | ChunkedArray,
    phi: FeatureMap,
) -> PrimalSolution:
    """Solve on segments of the rows; `errors` takes the training errors, of shape (n, t)."""
    c, n, means = plan.chosen, data.n, data.target_means()
    less = means if data.fit_intercept else None
    dimension = phi.dimension(rows.shape[1])
    n_blocks = -(-n // c.row_block)
    parts = min(n_blocks, 2 * team.slots)
    cuts = [min(n, round(k * n_blocks / parts) * c.row_block) for k in range(parts + 1)]
    segments = tuple(Segment(rows, a, b, c.row_block, targets, weights, less) for a, b in pairwise(cuts) if b > a)

    def total(function: Any, *arguments: Any) -> Array:
        tasks = [Task(f"{function.__name__}-{k}", function, (phi, s, *arguments[:-1])) for k, s in enumerate(segments)]
        value, record = team.executor.total(tasks, arguments[-1])
        team.record.add(record)
        return np.asarray(value)

    centre, size = None, n if data.weights is None else float(data.weights.sum())
    if data.fit_intercept:
        centre = total(weighted_sums, None)[:, 0] / size
    moments = total(normal_moments, centre, None)
    # As in the dual form, all values of alpha are columns of the same passes.
    shift = data.alphas[None, :]
    preconditioner: Preconditioner = Identity()
    # Squares of features need Φ itself, which sparse rows must not become unless it is X.
    if settings_of(plan).preconditioner == "auto" and (not rows.is_sparse or isinstance(phi, IdentityMap)):
        diagonal = total(weighted_squares, None)[:, 0]
        check_diagonal(diagonal)
        if centre is not None:
            diagonal = np.maximum(diagonal - size * centre**2, 0.0)
        preconditioner = Diagonal(diagonal[:, None], shift)
    operator = NormalOperator(phi, segments, team.executor, dimension, centre)
    iteration = _iteration(plan, team, operator, preconditioner, shift, moments, None)
    outcome = _finished(team, iteration, lambda state: iteration.run(state=state))
    tasks = [Task(f"errors-{k}", training_errors, (phi, s, centre, errors)) for k, s in enumerate(segments)]
    team.executor.map(tasks, outcome.x)
    found = errors if isinstance(errors, np.ndarray) else errors.load(data.room_for_errors())
    residual = float(outcome.residuals.max())
    return PrimalSolution.build(data, outcome.x, means, centre, found, residual, outcome.condition, outcome)
