"""The primal form: the normal matrix formed and factored, or multiplied by passes over the rows."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from dkrr.blas import BYTES_PER_THREAD
from dkrr.cost import Work
from dkrr.errors import PlanError
from dkrr.fitting.costs.details import Direct, Iterative, RowPasses
from dkrr.fitting.costs.dual_costs import step_seconds
from dkrr.fitting.costs.gram_costs import GramCosts
from dkrr.fitting.costs.iteration_estimates import primal_iterations
from dkrr.fitting.costs.tile_costs import Cut, cuts
from dkrr.linalg.cholesky import cholesky_task_bytes, factor_bytes
from dkrr.linalg.in_memory_cholesky import memory_bytes, memory_grid
from dkrr.linalg.likelihood import SECONDS_PER_SCORE
from dkrr.linalg.newton import VECTORS_HELD
from dkrr.linalg.normal import TARGET_COPIES, normal_work, parts_for_folds, row_block, stream_work
from dkrr.linalg.primal_objective import MAX_MATRIX_SIDE
from dkrr.linalg.solver_settings import Cholesky, ConjugateGradient
from dkrr.linalg.square import copy_work, factor_work, solving_work
from dkrr.planning.problem import Loss, Problem
from dkrr.planning.resources import Resources
from dkrr.planning.strategy import Method, Strategy
from dkrr.planning.tile_sizes import Tiling
from dkrr.planning.work import Recipe, Step, written
from dkrr.store import TileGrid

PASSES = 8
"""Passes over the rows besides those of conjugate gradient: moments, squares, the true residual, errors, and some four
of the residual of the dual system."""


class Held(NamedTuple):
    """Arrays that passes over the rows hold."""

    features: int
    """As large as the features of a block, by a task."""
    rows: int
    """As large as the rows of a block, by a task."""
    scores: int
    """As high as a block and as wide as the scores, by a task."""
    sums: int
    """As large as the sums, by a task."""
    totals: int
    """As large as the sums, by the calling process."""
    coefficients: int
    """As large as the coefficients, by the calling process."""


HELD: Mapping[Loss, Held] = {
    "squared": Held(3, 1, TARGET_COPIES, 6, 0, 12),
    "logistic": Held(4, 2, 12, 2, 4, VECTORS_HELD),
}


# Formed and factored


class RowCut(NamedTuple):
    """Segments and blocks of the rows while the normal matrix is formed."""

    n_segments: int
    """Segments of the rows whose normal matrices are formed separately."""
    block: int
    """Rows in memory at once."""


def factored_primal(p: Problem, r: Resources, method: Method) -> Iterator[Strategy]:
    """Complete factors of the normal matrix, which is formed first: in memory, then in tiles on disk."""
    if not p.wants_tiles:
        yield _in_memory(GramCosts(p, r, r.in_caller("memory", r.local_threads)), method)
    for cut in cuts(p, r, "primal", _tiled_bytes):
        yield _in_tiles(cut, method)


def _normal(p: Problem, m: int, n_tiles: int) -> Work:
    """Forming the normal matrix and its right-hand sides."""
    entry_seconds = p.feature_map.entry_seconds(p.d) if p.feature_map is not None else 0.0
    dimension = p.matrix_size("primal")
    work = normal_work(p.n, p.bytes_of_row, dimension, m, n_tiles, entry_seconds)
    return replace(work, read_bytes=0.0, row_bytes=work.read_bytes)


def formed_in_caller(p: Problem) -> Work:
    """Forming the whole normal matrix in the calling process, by one pass over the rows."""
    formed = _normal(p, p.n_targets, 1)
    return replace(formed, n_tasks=0, row_bytes=0.0 if p.x_in_memory else formed.row_bytes)


def _in_memory(site: GramCosts, method: Method) -> Strategy:
    """The whole normal matrix in the calling process; segments of rows where threads are faster than those of BLAS."""
    p, grid, n_alphas = site.problem, memory_grid(site.problem.matrix_size("primal")), len(site.problem.alphas)
    block, parts = _rows_at_once(p, grid.n), parts_for_folds(p.n, grid.n, 0, site.place.threads)
    peak = _whole_bytes(site, grid, RowCut(parts, block))
    solved = solving_work(grid.n, p.n_targets + 1)
    recipe = [
        # Segments share all of the work, BLAS's threads the products only.
        Step("normal matrix", formed_in_caller(p), 1, "tasks" if parts > 1 else "blas"),
        site.targets(peak),
        Step("targets", Work(fresh_bytes=0.0 if p.y_is_mapped else float(p.y_bytes)), 1, "caller"),
        Step("factorisation", factor_work(grid.n), n_alphas, "blas"),
        Step("factorisation", copy_work(grid.n) + solved + solved, n_alphas, "blas"),  # the solution, and its check
        Step("factorisation", Work(fresh_bytes=float(memory_bytes(grid, keeps=True))), 1, "caller"),
        Step("training errors"),
        *_held_out(p, grid),
    ]
    details = Direct(
        tiling=Tiling(grid.tile, grid.panel),
        row_parts=parts,
        row_block=block,
        keeps_matrix=True,
        keeps_factors=p.uncertainty,
    )
    return _strategy(site, method, details, recipe, peak)


def _held_out(p: Problem, grid: TileGrid) -> list[Step]:
    """Models that leave out the folds of intervals: sums of every fold by one pass over the rows, errors by another."""
    k = 0 if p.folds_are_fitted else p.interval_folds
    passes = formed_in_caller(p) + Work(row_bytes=0 if p.x_in_memory else p.stored_bytes)
    return (
        [
            Step("held-out models", passes, min(k, 1), "blas"),
            Step("held-out models", factor_work(grid.n), k * len(p.alphas), "blas"),
        ]
        if k
        else []
    )


def _whole_bytes(site: GramCosts, grid: TileGrid, cut: RowCut) -> int:
    """Memory of the calling process with the normal matrix in it, and one more for every other segment."""
    p, dimension = site.problem, grid.n
    rows = cut.block * (2 * 8 * dimension + TARGET_COPIES * 8 * p.n_targets) + 2 * p.bytes_of_block(cut.block)
    one = memory_bytes(grid, keeps=False) + 8 * dimension * (p.n_targets + 1)
    held = (
        memory_bytes(grid, keeps=True)
        + _kept_bytes(p, dimension)
        + 5 * 8 * dimension * (p.n_targets + 1)
        + cut.n_segments * (rows + p.read_overhead_bytes + _map_bytes(p))
        + (cut.n_segments - 1) * one
        + p.y_bytes_to_come
        + site.resources.local_threads * BYTES_PER_THREAD
    )
    return site.peak(held, 0)


def _kept_bytes(p: Problem, dimension: int) -> int:
    """Memory of factors that stay for standard deviations, and of sums for every fold of intervals."""
    if not p.uncertainty:
        return 0
    n_sums = 0 if p.folds_are_fitted else p.interval_folds
    return 8 * (dimension + 1) ** 2 * (2 * len(p.alphas) + n_sums)


def _in_tiles(cut: Cut, method: Method) -> Strategy:
    """Normal matrix in tiles on disk, formed by segments of rows, and its tiled Cholesky."""
    site, grid, p = cut.site, cut.grid, cut.site.problem
    rows, s, rates = _row_cut(site, grid), site.problem.systems, cut.site.rates
    m, summed = p.n_targets + 1, rows.n_segments * factor_bytes(grid)  # with the probe of the condition number
    n_stored = len(p.alphas) if p.uncertainty else s.n_stored
    sum_seconds = 8.0 * grid.tile**2 * rows.n_segments / rates.read_bytes
    factor = cut.factored(sum_seconds, n_stored)
    copied = written(2 * p.y_bytes, p.y_bytes * (grid.n_tiles + 2))  # read by every diagonal tile and at the check
    recipe = [
        *site.shared(),
        site.targets(cut.peak),
        Step("targets", copied, 1, "caller"),
        Step("normal matrix", replace(_normal(p, m, grid.n_tiles), written_bytes=summed, disk_bytes=summed + 8 * p.n)),
        factor._replace(times=s.n_factors),
        Step("factorisation", Work(read_bytes=summed), s.n_factors, seconds=0.0),
        cut.substituted(m, s.n_factors, n_stored),
        Step("diagonal"),
        Step("training errors"),
        *_held_out(p, grid),
    ]
    details = Direct(
        tiling=cut.tiling,
        row_parts=rows.n_segments,
        row_block=rows.block,
        keeps_factors=p.uncertainty,
    )
    return _strategy(site, method, details, recipe, cut.peak)


def _row_cut(site: GramCosts, grid: TileGrid) -> RowCut:
    """As many segments as keep every worker busy; several tiles do that already."""
    p, slots, n_lower = site.problem, site.place.slots, grid.n_tiles * (grid.n_tiles + 1) // 2
    parts = max(1, min(slots * 2 // n_lower if n_lower < 2 * slots else 1, p.n))
    return RowCut(p.layout.row_parts if p.layout else parts, _rows_at_once(p, min(grid.tile, grid.n)))


def _tiled_bytes(site: GramCosts, grid: TileGrid) -> int:
    """Memory of a process that forms and factors a normal matrix in tiles, and of targets in the calling process."""
    p, t, cut = site.problem, site.problem.n_targets + 1, _row_cut(site, grid)
    read = p.bytes_of_block(cut.block)
    rows = cut.block * (4 * 8 * grid.tile + TARGET_COPIES * 8 * t) + 2 * read + 8 * grid.tile * t
    # The check of the residual holds all of Φ for a block of rows, and the coefficients and their gradient.
    check = cut.block * (2 * 8 * grid.n + TARGET_COPIES * 8 * t) + read + 3 * 8 * grid.n * t
    forming = 8 * grid.tile**2 + max(rows, check) + p.read_overhead_bytes + 8 * grid.tile * grid.panel
    extra_tile = 8 * grid.tile**2 if cut.n_segments > 1 else 0
    solving = cholesky_task_bytes(grid, t, extra_tile + 8 * grid.tile * grid.panel)
    return site.peak(_targets_held(site), max(forming, solving) + _map_bytes(p))


# Multiplied by passes over the rows


def streamed_primal(p: Problem, r: Resources, method: Method) -> Iterator[Strategy]:
    """Conjugate gradient on ΦᵀWΦ + λI; its systems are those of a regression or of Newton's method."""
    solver = p.settings if isinstance(p.settings, ConjugateGradient) else ConjugateGradient()
    if p.loss == "squared" and solver.preconditioner not in ("auto", None):
        return  # made of columns of K
    for place in r.caller_and_workers(wants_tiles=p.wants_tiles):
        yield _streamed(GramCosts(p, r, place), method)


def _streamed(site: GramCosts, method: Method) -> Strategy:
    p, iterations = site.problem, max(1, primal_iterations(site.problem))
    m, dimension = p.n_targets * (len(p.alphas) if p.loss == "squared" else 1), _dimension(p)
    block, entries = _rows_at_once(p, 1 if p.streams_sparse else dimension), _entries(p)
    features = p.bytes_of_block(block) if p.streams_sparse else 8 * dimension * block
    product = _products(p, entries, m)
    if p.loss == "squared":
        segments, count, passes = 1, iterations, iterations + PASSES + (1 if p.fit_intercept else 0)
    else:  # a product needs the curvature of every row as well
        segments, count = _n_segments(p, block, 2 * site.place.slots), (p.n_steps + 1) * iterations
        product = product.times(1.5) + Work(element_seconds=p.n * m * SECONDS_PER_SCORE)
        passes = count + p.n_steps + 1
    peak = _streaming_bytes(site, block, features, 8 * dimension * m)
    recipe = [
        *site.shared(),
        Step("conjugate gradient", product, count),
        Step("conjugate gradient", Work(row_bytes=0 if site.holds_rows else p.stored_bytes), passes),
        *_own_steps(site, entries, peak),
    ]
    products = RowPasses(p.matrix_size("primal") if p.loss == "squared" else dimension, block, segments)
    return _strategy(site, method, Iterative(products=products, iterations=iterations * p.n_steps), recipe, peak)


def curvature_in_memory(p: Problem, r: Resources, method: Method) -> Iterator[Strategy]:
    """Newton's method by streaming passes, with the curvature as a matrix in the memory of the calling process."""
    side = (p.matrix_size("primal") + 1) * (p.n_targets if p.is_softmax else 1)
    if side <= MAX_MATRIX_SIDE:
        for place in r.caller_and_workers(wants_tiles=p.wants_tiles):
            yield _by_curvature(GramCosts(p, r, place), method)
    elif isinstance(p.solver, Cholesky) and p.form == "primal":
        raise PlanError(
            f"solver='cholesky' in primal form holds a matrix of {side:,} rows; expected at most {MAX_MATRIX_SIDE:,}: "
            f"use solver='cg', or form='dual'. Nothing was computed"
        )


def _by_curvature(site: GramCosts, method: Method) -> Strategy:
    p, m, dimension, passes = site.problem, site.problem.n_targets, _dimension(site.problem), site.problem.n_steps + 1
    block = _rows_at_once(p, dimension)
    matrices = 8 * dimension**2 * m * (m if p.is_softmax else 1)
    roots = block * 8 * dimension * m if p.is_softmax else 0
    peak = _streaming_bytes(site, block, 8 * dimension * block, matrices, roots)
    pairs = m * (m + 1) / 2 if p.is_softmax else m
    n_systems, side = (1, dimension * m) if p.is_softmax else (m, dimension)
    fresh = Work(fresh_bytes=8.0 * side**2)
    recipe = [
        *site.shared(),
        Step("factorisation", factor_work(side) + solving_work(side, 1) + fresh, passes * n_systems, "blas"),
        Step("likelihood", Work(gemm_flops=2.0 * pairs * p.n * float(dimension) ** 2), passes),
        Step("likelihood", Work(row_bytes=0 if site.holds_rows else p.stored_bytes), passes),
        *_own_steps(site, p.n * float(dimension), peak),
    ]
    parts = _n_segments(p, block, site.place.slots)
    details = Direct(tiling=Tiling(dimension, dimension), row_parts=parts, row_block=block)
    return _strategy(site, method, details, recipe, peak)


def _own_steps(site: GramCosts, entries: float, peak: int) -> list[Step]:
    """Steps of a fit besides its systems: targets and checkpoints; for Newton's method scores, and its own steps."""
    p, place = site.problem, site.place
    if p.loss == "squared":
        checkpoint = 5 * 8 * _dimension(p) * p.n_targets * len(p.alphas) if p.keeps_store else 0
        copied = 0 if place.is_memory else 2 * p.y_bytes  # and errors, which are written there and read
        return [
            Step("conjugate gradient", Work(written_bytes=checkpoint, disk_bytes=2 * checkpoint), seconds=0.0),
            site.targets(peak),
            Step("targets", written(copied, 1.5 * copied), 1, "caller"),
        ]
    m, checkpoint = p.n_targets, 8 * _dimension(p) * p.n_targets if p.keeps_store else 0
    scored = _products(p, entries, m) + Work(element_seconds=p.n * m * SECONDS_PER_SCORE)
    kept = 2 * checkpoint + (0 if place.is_memory else 16 * p.n)
    steps = Work(written_bytes=p.n_steps * checkpoint, disk_bytes=kept)
    return [
        Step("targets"),
        Step("likelihood", scored, p.n_steps + 1),
        Step("Newton steps", steps, seconds=p.n_steps * step_seconds(place)),
    ]


def _streaming_bytes(site: GramCosts, block: int, features: int, matrices: int, roots: int = 0) -> int:
    """Memory of a process that streams rows in blocks, whose features take `features` bytes, and sums matrices."""
    p, held, is_newton = site.problem, HELD[site.problem.loss], site.problem.loss == "logistic"
    m = p.n_targets * (1 if is_newton else len(p.alphas))
    rows = held.features * features + held.rows * p.bytes_of_block(block) + held.scores * block * 8 * m
    each = rows + _map_bytes(p) + p.read_overhead_bytes + roots + held.sums * matrices
    if site.place.execution == "dask":
        return site.peak(0, each)
    caller = held.totals * matrices + held.coefficients * 8 * _dimension(p) * m
    return site.peak(caller + (4 * 8 * p.n if is_newton else p.y_bytes_to_come), each)


# Rows of Φ


def _strategy(site: GramCosts, method: Method, details: Direct | Iterative, recipe: Recipe, peak: int) -> Strategy:
    n_steps = site.problem.n_steps if site.problem.loss == "logistic" else 0
    stages = site.price(recipe, peak)
    return Strategy(method=method, form="primal", place=site.place, details=details, stages=stages, n_steps=n_steps)


def _dimension(p: Problem) -> int:
    """Features, and the column of ones of an intercept that Newton's method counts as one."""
    return p.matrix_size("primal") + (1 if p.fit_intercept and p.loss == "logistic" else 0)


def _rows_at_once(p: Problem, n_columns: int) -> int:
    """Rows of Φ in memory at once, for tasks that use `n_columns` of its columns."""
    return row_block(p.n, p.bytes_of_row, p.n_targets, n_columns)


def _n_segments(p: Problem, block: int, most: int) -> int:
    """Number of segments of the rows, at least a block in each."""
    return max(1, p.layout.row_parts if p.layout else min(-(-p.n // block), most))


def _entries(p: Problem) -> float:
    """Entries of Φ that a pass over the rows uses."""
    return p.n * (p.bytes_of_row / 12 if p.streams_sparse else float(_dimension(p)))


def _products(p: Problem, entries: float, m: int) -> Work:
    """Both products of Φ with m vectors, its entries formed."""
    is_formed = p.feature_map is not None and not p.feature_map.is_identity
    return stream_work(entries, m, p.feature_map.entry_seconds(p.d) if is_formed else 0.0)  # type: ignore[union-attr]


def _map_bytes(p: Problem) -> int:
    """Arrays of the feature map and temporaries of its calls."""
    return 0 if p.feature_map is None else p.feature_map.held_bytes(p.d)


def _targets_held(site: GramCosts) -> int:
    """Memory of the calling process for targets and errors, where it does the work, and for factors that stay."""
    p = site.problem
    return 0 if site.place.execution == "dask" else p.y_bytes_to_come + _kept_bytes(p, p.matrix_size("primal"))
