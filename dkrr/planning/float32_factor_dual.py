"""Price of a factorisation of the Gram matrix in float32 and of its refinement, in memory or in tiles on disk."""

from dataclasses import replace
from math import ceil

from dkrr.blas import BYTES_PER_THREAD
from dkrr.cost import Cost, Stage
from dkrr.linalg.cholesky import cholesky_cost, cold_cholesky_bytes, factor_bytes, partial_bytes
from dkrr.linalg.inverse import apply_cost
from dkrr.linalg.memory import ONE_TILE, TILE_BUFFER_BYTES, inverse_bytes, memory_bytes, memory_grid
from dkrr.linalg.rounding import MAX_ROUNDING_RATIO, refining_iterations, rounding_ratio
from dkrr.linalg.sources import gram_cost, gram_workspace_bytes
from dkrr.linalg.tiled_operator import MAX_TILE, SECONDS_PER_TILE, multiply_bytes, pass_cost
from dkrr.planning.direct_dual import gram_in_memory_stages, loaded_bytes, tiled_bytes
from dkrr.planning.inputs import cache_bytes, sharing_stages, symmetry_stages
from dkrr.planning.problem import Problem, Spectrum
from dkrr.planning.resources import CALLER_MARGIN_BYTES, RESIDENT_ROWS_FRACTION, Resources, cold_fraction
from dkrr.planning.schedule import factorisation_seconds
from dkrr.planning.strategy import Systems
from dkrr.planning.tilings import TileChoice
from dkrr.solvers import ConjugateGradient
from dkrr.solvers.newton import LEAST_SHIFT

REFINED_TOL = 1e-13
"""Typical relative residual at the level of rounding."""
TYPICAL_RATIO = 1e-4
"""Rounding ratio assumed of kernels whose scale a plan does not know; a fit first looks at the diagonal of K."""
SMALLEST_FRACTION = 0.1
"""Fraction of the smallest eigenvalue that a sample suggests, on which a plan relies."""
TILES_PER_SIDE = (3, 8)
"""Fewest and most tiles per side of a product in memory: enough for threads to have equal work, and few calls."""
PRODUCT_TILE = 1250
"""Rows of a tile between those bounds (measured: 5,000 rows take 20 ms with it, and 24 with 625)."""
VECTORS_HELD = 12
"""Arrays as long as the right-hand sides that a refinement holds."""


def ratio_of(p: Problem) -> float:
    """Rounding ratio of K + λI (or of the systems of Newton's method), by λ and an estimate of the spectrum."""
    shift = min(p.alphas) * (1.0 if p.loss == "squared" else LEAST_SHIFT)
    if not p.kernel.has_unit_diagonal:
        return TYPICAL_RATIO if shift > 0 else 1.0
    if p.spectrum != Spectrum():
        shift += SMALLEST_FRACTION * p.n * p.spectrum.eigenvalue(p.n)
    return rounding_ratio(p.n, shift / (1.0 + shift))


def against_float32(problem: Problem) -> str:
    """Reason for solver="auto" not to try float32; empty if it may."""
    if problem.solver is not None:
        return ""
    if problem.n <= ONE_TILE:
        return f"factors of up to {ONE_TILE:,} rows take less time than iterations with them"
    ratio = ratio_of(problem)
    return (
        "" if ratio <= MAX_ROUNDING_RATIO else f"λ is too small: rounding in float32 may be {min(ratio, 1.0):.1g} of it"
    )


def tol_of(p: Problem) -> float | None:
    """Relative residual that a requested iterative solver ends at; None: the level of rounding."""
    return p.tol if isinstance(p.solver, ConjugateGradient) else None


def iterations_of(p: Problem) -> int:
    """Iterations of conjugate gradient that a factor in float32 leaves to do."""
    return refining_iterations(ratio_of(p), tol_of(p) or REFINED_TOL)


def products_tile(n: int) -> int:
    """Rows of a tile of a product in memory."""
    n_tiles = min(max(ceil(n / PRODUCT_TILE), TILES_PER_SIDE[0]), TILES_PER_SIDE[1])
    return min(ceil(n / n_tiles), MAX_TILE)


def stages_in_memory(p: Problem, resources: Resources, iterations: int) -> tuple[Stage, ...]:
    """Stages of a factorisation in the calling process, and of iterations that form K again."""
    systems, grid, rates, threads = Systems.of_ridge(p), memory_grid(p.n), resources.rates, resources.local_threads
    m, tile = systems.n_right_sides, products_tile(p.n)
    peak = (
        resources.local_baseline_bytes
        + loaded_bytes(p)
        + (memory_bytes(grid, keeps=False) + inverse_bytes(grid)) // 2
        + VECTORS_HELD * 8 * p.n * (m + 1)
        + threads * _thread_bytes(p, grid.tile, tile, m + 1)
        + threads * min(BYTES_PER_THREAD, TILE_BUFFER_BYTES // 2 + 4096 * (m + 1))
        + CALLER_MARGIN_BYTES
    )
    formed = gram_cost(p.entry(rates, "float32" if p.kernel.has_unit_diagonal else "float64"), p.n**2 / 2)
    factored = factoring_seconds(p.n, resources) + rates.seconds(formed) / threads
    return (
        *gram_in_memory_stages(p, resources, peak, 0),
        Stage("factorisation", factored).times(systems.n_factors, peak),
        Stage("conjugate gradient", (iterations + 1) * iteration_seconds(p, resources, m)).times(
            systems.n_factors, peak
        ),
    )


def factoring_seconds(n: int, resources: Resources) -> float:
    """Time of a factorisation in memory, forming its tiles not included."""
    cost = Cost(dense_flops=n**3 / 3, dense_side=n, fresh_bytes=float(memory_bytes(memory_grid(n), keeps=False) // 2))
    return resources.rates.in_float32().seconds(cost, resources.local_threads)


def iteration_seconds(p: Problem, resources: Resources, m: int) -> float:
    """Time of one product with K, which is formed again, and of two substitutions in memory."""
    rates, threads = resources.rates, resources.local_threads
    product = rates.seconds(pass_cost(p.entry(rates), p.n**2 / 2, m, "float64", 0.0)) / threads
    product += ceil(p.n / products_tile(p.n)) ** 2 / 2 * SECONDS_PER_TILE
    return product + rates.seconds(substitution_in_memory(p.n, m)) / threads


def substitution_in_memory(n: int, m: int) -> Cost:
    """Cost of both substitutions with a factor in float32 in memory."""
    return Cost(gemm_flops=2.0 * n**2 * (m - 1), memory_bytes=4.0 * n**2)


def _thread_bytes(p: Problem, tile: int, products_tile: int, m: int) -> int:
    """Most memory of one thread besides the tiles in memory: to form one, or to multiply by it."""
    part, row = p.bytes_of_part(tile), p.bytes_of_part(products_tile)
    form = gram_workspace_bytes(p.kernel, tile, part, p.d, p.csr_bytes(tile)) + 8 * tile**2
    return max(form, multiply_bytes(p.kernel, p.n, products_tile, p.d, row, m, is_sparse=p.is_sparse))


def stages_in_tiles(
    p: Problem, systems: Systems, choice: TileChoice, iterations: int
) -> tuple[tuple[Stage, ...], bool]:
    """Stages of a factorisation in tiles on disk, and whether every process keeps X in memory."""
    resources, place, grid, columns = choice
    rates, m, groups = resources.rates, systems.n_right_sides, systems.n_factors
    needed = tiled_bytes(p, place, grid, m + 1)
    doubled = {name: 2 * getattr(rates, name) for name in ("read_bytes", "cold_read_bytes", "write_bytes")}
    fast = replace(rates.in_float32(), **doubled)
    cache, stored = cache_bytes(resources, place, needed), factor_bytes(grid, 4)
    cost = cholesky_cost(grid, 0, columns, 4)
    cold = cold_cholesky_bytes(grid, cache, columns, 4) / max(cost.read_bytes, 1.0)
    form_seconds = rates.seconds(gram_cost(p.entry(rates, "float32"), float(grid.tile**2)))
    factor = factorisation_seconds(grid, columns, place.slots, fast.reading(cold), form_seconds)
    product = rates.seconds(pass_cost(p.entry(rates), p.n**2 / 2, m, "float64", 0.0)) / place.slots
    apply = apply_cost(grid, m, 4, place.slots if resources.cluster_is_running else None)
    passes = iterations + 1
    peak, rows_bytes = needed + place.threads * 4 * 8 * p.n * m, p.n * p.bytes_of_row
    is_small = p.stored_bytes <= place.limit_bytes * RESIDENT_ROWS_FRACTION
    keeps_rows = is_small and peak + rows_bytes <= place.usable_bytes
    peak += rows_bytes if keeps_rows else 0
    # X is read for the factor's tiles, and by every product unless processes keep it.
    block = grid.tile * p.stored_bytes / p.n * grid.n_tiles**2
    once, again = (p.stored_bytes * place.n_workers, 0.0) if keeps_rows else (0, block * passes / 2)
    applied = rates.reading(cold_fraction(stored, cache)).seconds(apply)
    iterated = Stage("conjugate gradient", passes * (product + applied), iterations * apply.read_bytes + again)
    kept = systems.n_stored * stored + partial_bytes(grid, 0, columns, 4)
    factored = Stage("factorisation", factor, cost.read_bytes + block + once, cost.written_bytes, kept)
    stages = (
        *sharing_stages(p, place, rates),
        *symmetry_stages(p),
        factored.times(groups, peak),
        iterated.times(groups, peak),
    )
    return stages, keeps_rows
