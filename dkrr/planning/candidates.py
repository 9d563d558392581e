"""The ways to solve a problem, each with its projected cost. Whether it may be chosen is the planner's business."""

from dataclasses import replace
from math import ceil, log10
from typing import NamedTuple

from dkrr.linalg.cholesky import (
    cholesky_cost,
    cholesky_task_bytes,
    cold_cholesky_bytes,
    factor_bytes,
    partial_bytes,
)
from dkrr.linalg.factored import apply_cost
from dkrr.linalg.memory import memory_bytes, memory_cost
from dkrr.linalg.normal import normal_cost
from dkrr.linalg.operator import multiply_bytes, pass_cost
from dkrr.linalg.residual import uses_symmetry
from dkrr.linalg.sources import KERNEL_BLOCK, gram_cost, gram_workspace_bytes
from dkrr.linalg.triangular import substitution_cost
from dkrr.planning.plan import Candidate
from dkrr.planning.problem import Form, Problem
from dkrr.planning.resources import Place, Rates, Resources, cold_part
from dkrr.planning.schedule import factorisation_seconds
from dkrr.solvers import ConjugateGradient
from dkrr.tiles import TileGrid

ONE_TILE = 2048
"""Rows up to which a matrix in memory is one tile: no task is made, and it and its factor share a square."""
MEMORY_TILES = (512, 1024)
"""Fewest and most rows of a tile in memory (512: products run at full rate, and squares on the diagonal waste little)
..."""
MEMORY_TILES_A_SIDE = 32
"""... and of how many tiles a side, from which on they grow."""
KEEPING = 0.95
"""Part of the time below which a second triangle in memory pays."""
PANEL = 512
"""Columns of a strip that GEMM needs to run at full rate (measured: 256 loses 4 %, 1,024 gains nothing)."""
TILES = (256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288)
"""Tile sizes that are compared."""
SEGMENTS = (2, 3, 6, 12)
"""Tile columns to a task that are compared with all of them."""
MAX_TILES_A_SIDE = 200
"""About 20,000 tasks: more would keep the scheduler busy for longer than it should be."""
MAX_TASKS = 250_000
"""Of a factorisation: the scheduler takes about a millisecond for each."""
THREAD_SHARE = 0.6
"""Of a core that every further BLAS thread adds to the products of tiles (measured with 2 threads, tiles of 2,048)."""
ROW_BLOCK_BYTES = 64 * 2**20
"""Rows of Φ that the primal form holds at once."""
TARGET_COPIES = 5
"""Blocks of targets that a task holds: a chunk and what is cut from it, residuals, and a chunk of them as written."""
TARGET_PASSES = 7
"""Over targets in a mapped file: two for their sizes, one for means, moments and residuals each, and two over the
errors, divided by λ and checked."""
PARALLEL_FEATURES = 2048
"""Up to this D each core forms a ΦᵀΦ of its own (at D = 100 twice as fast as BLAS's threads together, at D = 1,900 as
fast) ..."""
PARALLEL_FLOPS = 1e8
"""... if there is so much work: starting threads takes time too."""
ROWS_PART = 4
"""X is kept by every process that needs it again and again, if it takes at most one part in this many of its memory."""
THREAD_BUFFER_BYTES = 32 * 2**20
"""What BLAS keeps for each of its threads in the calling process (a worker's one thread is in its baseline)."""
TILE_BUFFER_BYTES = 8 * 2**20
"""The same where products are of tiles: the packed parts of two of them; and 4 KiB for each right-hand side."""
PROCESS_MARGIN_BYTES = 24 * 2**20
"""Interpreter, allocator and messages, on top of what is counted."""


def tile_grid(n: int, tile: int) -> TileGrid:
    """Grid of about this tile size that cuts n evenly, in strips of about PANEL columns."""
    n_tiles = -(-n // min(tile, n))
    rows = -(-n // n_tiles)
    strips = max(1, round(rows / PANEL))
    panel = -(-rows // strips)
    if panel > 8:
        panel = -(-panel // 8) * 8
    return TileGrid(n, panel * strips, panel)


def fixed_grid(n: int, tile: int) -> TileGrid:
    """Grid of exactly this tile size; strips of the largest divisor that is at most PANEL, if that is not tiny."""
    tile = min(tile, n)
    panel = max((p for p in range(1, min(tile, PANEL) + 1) if tile % p == 0), default=tile)
    return TileGrid(n, tile, panel if panel >= min(tile, 64) else tile)


def _grids(problem: Problem, n: int) -> list[TileGrid]:
    if problem.layout is not None:
        return [TileGrid(n, problem.layout.tile, problem.layout.panel)]
    if problem.tile is not None:
        return [fixed_grid(n, problem.tile)]
    grids = {tile_grid(n, tile) for tile in TILES}
    return sorted((g for g in grids if g.n_tiles <= MAX_TILES_A_SIDE), key=lambda g: g.tile)


def _segments(problem: Problem, place: Place, grid: TileGrid) -> list[int]:
    if problem.layout is not None:
        return [problem.layout.segment]
    if place.slots == 1:
        return [0]
    n_tiles = grid.n_tiles
    return [0] + [s for s in SEGMENTS if s < n_tiles - 1 and n_tiles**3 / 6 <= s * MAX_TASKS]


def memory_grid(n: int) -> TileGrid:
    """Grid of a matrix in memory: one tile if it is small, else tiles that threads factor."""
    if n <= ONE_TILE:
        return TileGrid(n, n, n)
    n_tiles = -(-n // min(max(MEMORY_TILES[0], n // MEMORY_TILES_A_SIDE), MEMORY_TILES[1]))
    tile = 8 * -(-n // (8 * n_tiles))
    return TileGrid(n, tile, tile)


def dual_in_memory(problem: Problem, resources: Resources) -> Candidate:
    """Lower triangle of the Gram matrix in the calling process; the whole where forming it again takes long."""
    kept = _dual_in_memory(problem, resources, keeps=True)
    if problem.n <= ONE_TILE:
        return kept
    again = _dual_in_memory(problem, resources, keeps=False)
    return kept if kept.seconds < KEEPING * again.seconds and kept.peak_bytes <= kept.limit_bytes else again


def dual_kept_in_memory(problem: Problem, resources: Resources) -> Candidate:
    """The Gram matrix in the calling process beside its factor."""
    return _dual_in_memory(problem, resources, keeps=True)


def _dual_in_memory(p: Problem, resources: Resources, *, keeps: bool) -> Candidate:
    n, m, threads, grid = p.n, p.n_right_sides + 1, resources.local_threads, memory_grid(p.n)
    loaded = 0 if p.x_in_memory else p.stored_bytes + p.read_overhead_bytes
    formed = gram_cost(p.entry(resources.rates), n * (n + 1) / 2 * (1 if keeps else 1 + len(p.alphas)))
    if grid.n_tiles > 1:  # by threads
        formed = replace(formed, element_seconds=formed.element_seconds / threads)
    peak = (
        resources.local_baseline_bytes
        + loaded
        + memory_bytes(grid, keeps=keeps)
        + 5 * 8 * n * m
        + (threads if grid.n_tiles > 1 else 1) * memory_task_bytes(p, grid, m, keeps=keeps)
        + threads
        * (THREAD_BUFFER_BYTES if grid.n_tiles == 1 else min(THREAD_BUFFER_BYTES, TILE_BUFFER_BYTES + 4096 * m))
        + PROCESS_MARGIN_BYTES
    )
    reading = rates_of_rows(p, resources, 1, peak, on_workers=False)
    solving = resources.rates.seconds(memory_cost(grid, m, len(p.alphas), keeps=keeps) + formed, threads)
    return Candidate(
        form="dual",
        execution="memory",
        n_workers=1,
        tile=grid.tile,
        panel=grid.panel,
        segment=0,
        row_parts=1,
        row_block=n,
        seconds=solving + loaded / reading.read_bytes,
        read_bytes=0 if p.x_in_memory else p.stored_bytes,
        written_bytes=0,
        disk_bytes=0,
        peak_bytes=peak,
        limit_bytes=resources.local_limit_bytes,
        keeps_matrix=keeps,
    )


def memory_task_bytes(p: Problem, grid: TileGrid, m: int, *, keeps: bool) -> int:
    """Most memory of one thread besides tiles that stay: to form one, or to multiply by it at the check."""
    row_bytes, csr_bytes = p.bytes_of_part(grid.tile), p.csr_bytes(min(grid.tile, KERNEL_BLOCK))
    form = gram_workspace_bytes(p.kernel, grid.tile, row_bytes, p.d, csr_bytes)
    if keeps:
        return form
    if uses_symmetry(grid, m):
        # Of each slab a sum, which wait to be added.
        return max(form, multiply_bytes(p.kernel, p.n, grid.tile, p.d, row_bytes, m, is_sparse=p.is_sparse))
    return form + 8 * grid.tile**2 + 8 * 8 * grid.tile * m


def primal_in_memory(problem: Problem, resources: Resources) -> Candidate:
    """The whole normal matrix in the calling process, the rows streamed through it."""
    p, dimension = problem, problem.dimension or 0
    threads, block = resources.local_threads, row_block(p, dimension, dimension)
    large = float(p.n) * dimension**2 >= PARALLEL_FLOPS
    parts = min(threads, p.n) if large and dimension <= PARALLEL_FEATURES else 1
    cost = normal_cost(p.n, p.bytes_of_row, dimension, p.n_targets, 1, feature_seconds(p), centred=p.fit_intercept)
    # No tasks here, and nothing to read if the rows are in memory already.
    cost = replace(cost, n_tasks=0, read_bytes=0.0 if p.x_in_memory else cost.read_bytes)
    rows = parts * block * (2 * 8 * dimension + 2 * p.most_bytes_of_row + TARGET_COPIES * 8 * p.n_targets)
    grid = memory_grid(dimension)
    one = memory_bytes(grid, keeps=False) + 8 * dimension * p.n_targets
    rows += (parts - 1) * (one + p.read_overhead_bytes + feature_bytes(p))
    peak = (
        resources.local_baseline_bytes
        + memory_bytes(grid, keeps=True)
        + 5 * 8 * dimension * (p.n_targets + 1)
        + rows
        + feature_bytes(p)
        + p.y_bytes_to_come
        + p.read_overhead_bytes
        + threads * THREAD_BUFFER_BYTES
        + PROCESS_MARGIN_BYTES
    )
    rates = rates_of_rows(p, resources, 1, peak, on_workers=False)
    # Parts of the rows share everything among the cores, BLAS's threads the products only.
    forming = rates.seconds(cost) / parts if parts > 1 else rates.seconds(cost, threads)
    mapped = mapped_target_cost(p, resources, 1, peak)
    return Candidate(
        form="primal",
        execution="memory",
        n_workers=1,
        tile=grid.tile,
        panel=grid.panel,
        segment=0,
        row_parts=parts,
        row_block=block,
        seconds=forming
        + mapped.seconds
        + (0.0 if p.y_is_mapped else p.y_bytes / rates.fresh_bytes)
        + rates.seconds(memory_cost(grid, p.n_targets + 1, len(p.alphas), keeps=True), threads),
        read_bytes=cost.read_bytes + mapped.read_bytes,
        written_bytes=mapped.written_bytes,
        disk_bytes=mapped.disk_bytes,
        peak_bytes=peak,
        limit_bytes=resources.local_limit_bytes,
        keeps_matrix=True,
    )


def tiled(problem: Problem, resources: Resources, form: Form) -> list[Candidate]:
    """Every way with tiles on disk: the places times the tile sizes."""
    candidate = {"dual": dual_tiled, "primal": primal_tiled}[form]
    if isinstance(problem.solver, ConjugateGradient):
        candidate = dual_factored
    n = problem.n if form == "dual" else problem.dimension or 0
    return [candidate(problem, *choice) for choice in tile_choices(problem, resources, n)]


def tile_choices(problem: Problem, resources: Resources, n: int) -> list[tuple[Resources, Place, TileGrid, int]]:
    """Places, with the rates there, times tile sizes times segments, for a matrix of n rows."""
    p, r = problem, resources
    places = [] if r.confined else [r.on_workers()]
    if not r.cluster_is_running and not r.confined:
        places += [r.on_workers(w) for w in range(r.n_workers - 1, 0, -1)]
    # One task at a time, with all of BLAS's threads.
    serial = replace(r, rates=r.rates.faster(1.0 + THREAD_SHARE * (r.local_threads - 1)))
    if r.confined or (p.wants_tiles and not r.cluster_is_running):
        here = r.in_caller("serial", 1)
        buffers = r.local_threads * THREAD_BUFFER_BYTES
        places.append(replace(here, baseline_bytes=here.baseline_bytes + buffers))
    return [
        (serial if place.execution == "serial" else r, place, grid, segment)
        for place in places
        for grid in _grids(p, n)
        for segment in _segments(p, place, grid)
    ]


FACTORED_DIGITS = 3.3
"""That an iteration of conjugate gradient gains with a complete factor in float32 (measured: 3 to 4)."""


def factored_iterations(tol: float) -> int:
    """Iterations of conjugate gradient that a complete factor in float32 leaves to do."""
    return ceil(-log10(tol) / FACTORED_DIGITS)


def dual_factored(problem: Problem, resources: Resources, place: Place, grid: TileGrid, segment: int) -> Candidate:
    """Tiled Cholesky of K + λW⁻¹ in float32, as the preconditioner of conjugate gradient in float64.

    The memory is that of the float64 factorisation, which follows if float32 breaks down.
    """
    p, rates, m = problem, resources.rates, problem.n_right_sides
    whole = dual_tiled(p, resources, place, grid, segment)
    doubled = {name: 2 * getattr(rates, name) for name in ("read_bytes", "cold_read_bytes", "write_bytes")}
    fast = replace(rates.faster(2.0), **doubled)
    cache, groups, stored = cache_bytes(resources, place, whole.peak_bytes), len(p.alphas), factor_bytes(grid, 4)
    cost = cholesky_cost(grid, 0, segment, 4)
    cold = cold_cholesky_bytes(grid, cache, segment, 4) / max(cost.read_bytes, 1.0)
    form_seconds = rates.seconds(gram_cost(p.entry(rates, "float32"), float(grid.tile**2)))
    factor = factorisation_seconds(grid, segment, place.slots, fast.reading(cold), form_seconds)
    product = rates.seconds(pass_cost(p.entry(rates), p.n**2 / 2, m, "float64", 0.0)) / place.slots
    apply = apply_cost(grid, m, 4, place.slots if resources.cluster_is_running else None)
    iterations = factored_iterations(p.tol)
    passes = iterations + 1
    staged = 0 if p.x_is_shared else p.stored_bytes
    peak, rows_bytes = whole.peak_bytes + place.threads * 4 * 8 * p.n * m, p.n * p.bytes_of_row
    keeps_rows = p.stored_bytes <= place.limit_bytes // ROWS_PART and peak + rows_bytes <= place.usable_bytes
    x_read = grid.tile * p.stored_bytes / p.n * grid.n_tiles**2 * (1 if keeps_rows else 1 + passes / 2)
    x_read += p.stored_bytes * place.n_workers if keeps_rows else 0
    return replace(
        whole,
        seconds=place.start_seconds
        + 2 * staged / rates.write_bytes
        + groups * (factor + passes * (product + rates.reading(cold_part(stored, cache)).seconds(apply))),
        read_bytes=checked_bytes(p) + groups * (cost.read_bytes + iterations * apply.read_bytes + x_read),
        written_bytes=staged + groups * cost.written_bytes,
        disk_bytes=staged + (groups if p.keeps_store else 1) * stored + partial_bytes(grid, 0, segment, 4),
        peak_bytes=peak + (rows_bytes if keeps_rows else 0),
        keeps_rows=keeps_rows,
        solver="cg",
        iterations=iterations,
        precision="float32",
        has_factor=True,
        n_tiles=grid.n_tiles,
        slots=place.slots,
    )


def dual_tiled(problem: Problem, resources: Resources, place: Place, grid: TileGrid, segment: int) -> Candidate:
    """Tiled Cholesky of K + λW⁻¹; K is computed tile by tile where it is used."""
    # One more right-hand side is the probe of the condition number.
    p, rates, m = problem, resources.rates, problem.n_right_sides + 1
    entry = p.entry(rates)
    form_seconds = rates.seconds(gram_cost(entry, float(grid.tile**2)))
    csr_bytes = p.csr_bytes(min(grid.tile, KERNEL_BLOCK))
    form_bytes = (
        gram_workspace_bytes(p.kernel, grid.tile, p.bytes_of_part(grid.tile), p.d, csr_bytes)
        + 2 * p.read_overhead_bytes
    )
    task_bytes, mirrored = cholesky_task_bytes(grid, m, form_bytes), uses_symmetry(grid, m)
    if p.is_sparse and mirrored:
        # The residual forms no tile, but keeps a transposed panel for every square on the diagonal.
        product = multiply_bytes(p.kernel, p.n, grid.tile, p.d, p.bytes_of_part(grid.tile), m, is_sparse=True)
        task_bytes = max(task_bytes, product + 2 * p.read_overhead_bytes)
    peak = place.baseline_bytes + place.threads * task_bytes + PROCESS_MARGIN_BYTES
    factor, solve = system_seconds(resources, place, grid, segment, m, peak, form_seconds)
    # The substitution reads L once, two tasks at a time; the residual forms K once more.
    back = solve / min(2, place.slots) + grid.n_tiles * rates.chain_seconds
    check = rates.seconds(pass_cost(entry, p.n**2 / (2 if mirrored else 1), m, "float64", 0.0))
    check /= min(place.slots, grid.n_tiles)
    staged = 0 if p.x_is_shared else p.stored_bytes
    # Every tile reads the rows of X of its row and its column (once on the diagonal), at the residual once more, or
    # twice.
    block = grid.tile * p.stored_bytes / p.n
    x_read = block * grid.n_tiles**2 * 2 if mirrored else block * (3 * grid.n_tiles**2 - grid.n_tiles)
    cost = cholesky_cost(grid, m, segment) + substitution_cost(grid, m)
    groups = len(p.alphas)
    vectors = 8 * p.n * (4 * m + 2)
    return Candidate(
        form="dual",
        execution=place.execution,
        n_workers=place.n_workers,
        tile=grid.tile,
        panel=grid.panel,
        segment=segment,
        row_parts=1,
        row_block=grid.tile,
        seconds=place.start_seconds + 2 * staged / rates.write_bytes + groups * (factor + back + check),
        read_bytes=checked_bytes(p) + groups * (cost.read_bytes + x_read),
        written_bytes=staged + groups * cost.written_bytes,
        disk_bytes=staged
        + (groups if p.keeps_store else 1) * (factor_bytes(grid) + vectors)
        + partial_bytes(grid, m, segment),
        peak_bytes=peak,
        limit_bytes=place.limit_bytes,
    )


def primal_tiled(problem: Problem, resources: Resources, place: Place, grid: TileGrid, segment: int) -> Candidate:
    """Normal matrix in tiles, formed by segments of rows, then the tiled Cholesky of it."""
    p, rates, t = problem, resources.rates, problem.n_targets + 1  # with the probe of the condition number
    n_lower = grid.n_tiles * (grid.n_tiles + 1) // 2
    if p.layout is not None:
        row_parts = p.layout.row_parts
    else:
        # As many parts as keep every worker busy; with several tiles the tiles do that already.
        row_parts = max(1, min(place.slots * 2 // n_lower if n_lower < 2 * place.slots else 1, p.n))
    block = row_block(p, grid.tile, p.dimension or 0)
    forming = normal_cost(p.n, p.bytes_of_row, grid.n, t, grid.n_tiles, feature_seconds(p), centred=p.fit_intercept)
    staged = 0 if p.x_is_shared else p.stored_bytes
    groups, one = len(p.alphas), factor_bytes(grid)
    cost = cholesky_cost(grid, t, segment) + substitution_cost(grid, t)
    rows = block * (4 * 8 * grid.tile + 2 * p.most_bytes_of_row + TARGET_COPIES * 8 * t) + 8 * grid.tile * t
    # The check of the residual holds all of Φ for a block of rows, and the coefficients and their gradient.
    check = block * (2 * 8 * grid.n + p.most_bytes_of_row + TARGET_COPIES * 8 * t) + 3 * 8 * grid.n * t
    forming_bytes = 8 * grid.tile**2 + max(rows, check) + p.read_overhead_bytes + 8 * grid.tile * grid.panel
    extra_tile = 8 * grid.tile**2 if row_parts > 1 else 0
    solving_bytes = cholesky_task_bytes(grid, t, extra_tile + 8 * grid.tile * grid.panel)
    peak = (
        place.baseline_bytes
        + place.threads * (max(forming_bytes, solving_bytes) + feature_bytes(p))
        + PROCESS_MARGIN_BYTES
    )
    form = rates_of_rows(p, resources, place.n_workers, peak, on_workers=place.execution == "dask").seconds(forming)
    sum_seconds = 8.0 * grid.tile**2 * row_parts / rates.read_bytes
    factor, solve = system_seconds(resources, place, grid, segment, t, peak, sum_seconds)
    here = p.y_bytes_to_come if place.execution != "dask" else 0
    peak += here
    mapped = mapped_target_cost(p, resources, place.n_workers, peak)
    # Targets are copied to the store and read by every tile of the diagonal and at the check, errors go there and back.
    targets_read = p.y_bytes * (grid.n_tiles + 2)
    moved = 2 * p.y_bytes / rates.write_bytes + targets_read / rates.read_bytes
    return Candidate(
        form="primal",
        execution=place.execution,
        n_workers=place.n_workers,
        tile=grid.tile,
        panel=grid.panel,
        segment=segment,
        row_parts=row_parts,
        row_block=block,
        seconds=place.start_seconds
        + 2 * staged / rates.write_bytes
        + form / place.slots
        + mapped.seconds
        + moved
        + groups * (factor + solve),
        read_bytes=checked_bytes(p)
        + forming.read_bytes
        + targets_read
        + mapped.read_bytes
        + groups * (cost.read_bytes + row_parts * one),
        written_bytes=staged + row_parts * one + 2 * p.y_bytes + mapped.written_bytes + groups * cost.written_bytes,
        disk_bytes=staged
        + mapped.disk_bytes
        + row_parts * one
        + (groups if p.keeps_store else 1) * (one + 8 * grid.n * (4 * t + 2))
        + partial_bytes(grid, t, segment)
        + 2 * p.y_bytes
        + 8 * p.n,
        peak_bytes=peak,
        limit_bytes=place.limit_bytes,
    )


class MappedTargets(NamedTuple):
    """What targets in a mapped file cost besides, and the dual coefficients in another."""

    seconds: float
    read_bytes: float
    written_bytes: int
    disk_bytes: int


def mapped_target_cost(p: Problem, resources: Resources, n_workers: int, peak_bytes: float) -> MappedTargets:
    """Passes over targets that are not in memory: for their sizes, means, moments and residuals, and over the errors.

    Parameters
    ----------
    p : Problem
    resources : Resources
    n_workers : int
    peak_bytes : float
        Memory of every process, which the system's cache of files does not have.
    """
    if not p.y_is_mapped:
        return MappedTargets(0.0, 0.0, 0, 0)
    cache = resources.cache_bytes(n_workers, peak_bytes, on_workers=n_workers > 1)
    rates = resources.rates.reading(cold_part(2 * p.y_bytes, cache))
    read = float(TARGET_PASSES * p.y_bytes)
    return MappedTargets(read / rates.read_bytes + p.y_bytes / rates.write_bytes, read, p.y_bytes, p.y_bytes)


def cache_bytes(resources: Resources, place: Place, peak_bytes: float) -> float:
    """Memory that is left for the system's cache of files while work is done in a place."""
    return resources.cache_bytes(place.n_workers, peak_bytes, on_workers=place.execution == "dask")


def rates_of_rows(p: Problem, resources: Resources, n_workers: int, peak_bytes: float, *, on_workers: bool) -> Rates:
    """Rates with which X is read where it is stored, which may be larger than the system's cache of files."""
    cache = resources.cache_bytes(n_workers, peak_bytes, on_workers=on_workers)
    return resources.rates.reading(cold_part(p.stored_bytes, cache))


def system_seconds(
    resources: Resources, place: Place, grid: TileGrid, segment: int, m: int, peak_bytes: float, form_seconds: float
) -> tuple[float, float]:
    """Time of the tiled factorisation of one system, and that of one substitution with its factor.

    Parameters
    ----------
    resources : Resources
    place : Place
    grid : TileGrid
    segment : int
        Tile columns that one task subtracts; 0 means all.
    m : int
        Right-hand sides.
    peak_bytes : float
        Memory of every process, which the system's cache of files does not have.
    form_seconds : float
        Time to form one full tile of the matrix.
    """
    rates, cache = resources.rates, cache_bytes(resources, place, peak_bytes)
    read = cholesky_cost(grid, m, segment).read_bytes
    cold = cold_cholesky_bytes(grid, cache, segment) / read if read else 0.0
    factor = factorisation_seconds(grid, segment, place.slots, rates.reading(cold), form_seconds)
    reading = rates.reading(cold_part(factor_bytes(grid), cache))
    return factor, reading.seconds(substitution_cost(grid, m))


def checked_bytes(problem: Problem) -> int:
    """Bytes that the check for NaN reads before the work, where X is in a store."""
    return 0 if problem.x_in_memory else problem.stored_bytes


def row_block(problem: Problem, tile: int, dimension: int) -> int:
    """Rows of Φ in memory at once: about ROW_BLOCK_BYTES of them, X and the targets included."""
    width = 4 * 8 * min(tile, dimension) + 2 * problem.most_bytes_of_row + TARGET_COPIES * 8 * problem.n_targets
    return int(max(1, min(problem.n, ROW_BLOCK_BYTES // max(width, 1), 65536)))


def feature_bytes(problem: Problem) -> int:
    """Arrays of the feature map and temporaries of its calls."""
    return 0 if problem.feature_map is None else problem.feature_map.held_bytes(problem.d)


def feature_seconds(problem: Problem) -> float:
    """Elementwise work of the feature map for one entry of Φ."""
    return 0.0 if problem.feature_map is None else problem.feature_map.entry_seconds(problem.d)
