"""Price of a Cholesky factorisation of the normal matrix ΦᵀWΦ, in memory or in tiles on disk."""

from dataclasses import dataclass, replace

from dkrr.blas import BYTES_PER_THREAD
from dkrr.cost import Stage
from dkrr.linalg.cholesky import cholesky_cost, cholesky_task_bytes, factor_bytes, partial_bytes
from dkrr.linalg.memory import memory_bytes, memory_cost, memory_grid
from dkrr.linalg.normal import PARALLEL_FEATURES, PARALLEL_FLOPS, TARGET_COPIES, normal_cost
from dkrr.linalg.substitution import substitution_cost
from dkrr.planning.inputs import (
    feature_bytes,
    feature_seconds,
    mapped_target_stage,
    rates_of_rows,
    rows_at_once,
    sharing_stages,
    unpriced_stages,
)
from dkrr.planning.problem import Problem
from dkrr.planning.resources import PROCESS_MARGIN_BYTES, Place, Resources
from dkrr.planning.strategy import Systems
from dkrr.planning.tilings import TileChoice, system_seconds
from dkrr.store import TileGrid


@dataclass(frozen=True)
class RowCut:
    """How the rows are cut while the normal matrix is formed."""

    n_segments: int
    """Segments of the rows whose normal matrices are formed separately."""
    block: int
    """Rows in memory at once."""


def cut_in_memory(p: Problem, threads: int) -> RowCut:
    """A segment for each thread, where that is faster than the threads of BLAS."""
    dimension = p.side("primal")
    is_parallel = float(p.n) * dimension**2 >= PARALLEL_FLOPS and dimension <= PARALLEL_FEATURES
    return RowCut(min(threads, p.n) if is_parallel else 1, rows_at_once(p, dimension))


def stages_in_memory(p: Problem, resources: Resources, place: Place, cut: RowCut) -> tuple[Stage, ...]:
    """Stages with the whole normal matrix in the calling process, the rows streamed through it."""
    dimension, threads = p.side("primal"), place.threads
    cost = normal_cost(p.n, p.bytes_of_row, dimension, p.n_targets, 1, feature_seconds(p), centred=p.fit_intercept)
    # No tasks here, and nothing to read if the rows are in memory already.
    cost = replace(cost, n_tasks=0, read_bytes=0.0 if p.x_in_memory else cost.read_bytes)
    peak = _whole_bytes(p, resources, cut)
    rates = rates_of_rows(p, resources, place, peak)
    # Threads with segments share all of the work, BLAS's threads the products only.
    forming = rates.seconds(cost) / cut.n_segments if cut.n_segments > 1 else rates.seconds(cost, threads)
    solving = memory_cost(memory_grid(dimension), p.n_targets + 1, len(p.alphas), keeps=True)
    targets = mapped_target_stage(p, resources, place, peak)
    if not p.y_is_mapped:
        targets = targets.plus(p.y_bytes / rates.fresh_bytes)
    return (
        Stage("normal matrix", forming, cost.read_bytes, peak_bytes=peak),
        targets,
        Stage("factorisation", rates.seconds(solving, threads), peak_bytes=peak),
        *unpriced_stages(p),
    )


def _whole_bytes(p: Problem, resources: Resources, cut: RowCut) -> int:
    """Memory of the calling process with the normal matrix in it, and one more for every other segment."""
    dimension = p.side("primal")
    rows = cut.n_segments * (
        cut.block * (2 * 8 * dimension + TARGET_COPIES * 8 * p.n_targets) + 2 * p.bytes_of_block(cut.block)
    )
    grid = memory_grid(dimension)
    one = memory_bytes(grid, keeps=False) + 8 * dimension * p.n_targets
    rows += (cut.n_segments - 1) * (one + p.read_overhead_bytes + feature_bytes(p))
    return (
        resources.local_baseline_bytes
        + memory_bytes(grid, keeps=True)
        + 5 * 8 * dimension * (p.n_targets + 1)
        + rows
        + feature_bytes(p)
        + p.y_bytes_to_come
        + p.read_overhead_bytes
        + resources.local_threads * BYTES_PER_THREAD
        + PROCESS_MARGIN_BYTES
    )


def cut_in_tiles(p: Problem, place: Place, grid: TileGrid) -> RowCut:
    """As many segments as keep every worker busy; several tiles do that already."""
    block = rows_at_once(p, min(grid.tile, grid.n))
    if p.layout is not None:
        return RowCut(p.layout.row_parts, block)
    n_lower = grid.n_tiles * (grid.n_tiles + 1) // 2
    return RowCut(max(1, min(place.slots * 2 // n_lower if n_lower < 2 * place.slots else 1, p.n)), block)


def stages_in_tiles(p: Problem, systems: Systems, choice: TileChoice, cut: RowCut) -> tuple[Stage, ...]:
    """Stages of forming the normal matrix in tiles, by segments of rows, and of its tiled factorisation."""
    resources, place, grid, columns = choice
    rates, t = resources.rates, p.n_targets + 1  # with the probe of the condition number
    forming = normal_cost(p.n, p.bytes_of_row, grid.n, t, grid.n_tiles, feature_seconds(p), centred=p.fit_intercept)
    peak = _tiled_bytes(p, place, grid, t, cut)
    form_seconds = rates_of_rows(p, resources, place, peak).seconds(forming) / place.slots
    one, summed = factor_bytes(grid), cut.n_segments * factor_bytes(grid)
    factor, solve = system_seconds(choice, t, peak, 8.0 * grid.tile**2 * cut.n_segments / rates.read_bytes)
    peak += p.y_bytes_to_come if place.execution != "dask" else 0
    cost, sides = cholesky_cost(grid, t, columns), substitution_cost(grid, t)
    kept = systems.n_stored * (one + 8 * grid.n * (4 * t + 2)) + partial_bytes(grid, t, columns)
    factored = Stage("factorisation", factor, cost.read_bytes + summed, cost.written_bytes, kept)
    substituted = Stage("substitution", solve, sides.read_bytes, sides.written_bytes)
    return (
        *sharing_stages(p, place, rates),
        _target_stage(p, choice, peak),
        Stage("normal matrix", form_seconds, forming.read_bytes, summed, summed + 8 * p.n, peak),
        factored.times(systems.n_factors, peak),
        substituted.times(systems.n_factors, peak),
        Stage("diagonal", 0.0),
        *unpriced_stages(p),
    )


def _target_stage(p: Problem, choice: TileChoice, peak_bytes: int) -> Stage:
    """Targets, copied to the store and read by every diagonal tile and at the check; errors, written and read."""
    rates = choice.resources.rates
    read, written = p.y_bytes * (choice.grid.n_tiles + 2), 2 * p.y_bytes
    mapped = mapped_target_stage(p, choice.resources, choice.place, peak_bytes)
    return mapped.plus(read / rates.read_bytes + written / rates.write_bytes, read, written, written)


def _tiled_bytes(p: Problem, place: Place, grid: TileGrid, t: int, cut: RowCut) -> int:
    """Memory of a process that forms and factors a normal matrix in tiles, without targets that it holds."""
    read = p.bytes_of_block(cut.block)
    rows = cut.block * (4 * 8 * grid.tile + TARGET_COPIES * 8 * t) + 2 * read + 8 * grid.tile * t
    # The check of the residual holds all of Φ for a block of rows, and the coefficients and their gradient.
    check = cut.block * (2 * 8 * grid.n + TARGET_COPIES * 8 * t) + read + 3 * 8 * grid.n * t
    forming = 8 * grid.tile**2 + max(rows, check) + p.read_overhead_bytes + 8 * grid.tile * grid.panel
    extra_tile = 8 * grid.tile**2 if cut.n_segments > 1 else 0
    solving = cholesky_task_bytes(grid, t, extra_tile + 8 * grid.tile * grid.panel)
    return place.baseline_bytes + place.threads * (max(forming, solving) + feature_bytes(p)) + PROCESS_MARGIN_BYTES
