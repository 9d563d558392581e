"""Price of a Cholesky factorisation of the Gram matrix, in memory or in tiles on disk."""

from dataclasses import replace

from dkrr.blas import BYTES_PER_THREAD
from dkrr.cost import Stage
from dkrr.linalg.cholesky import cholesky_cost, cholesky_task_bytes, factor_bytes, partial_bytes
from dkrr.linalg.memory import TILE_BUFFER_BYTES, inverse_bytes, memory_bytes, memory_cost, memory_grid
from dkrr.linalg.residual import uses_symmetry
from dkrr.linalg.sources import KERNEL_BLOCK, gram_cost, gram_workspace_bytes
from dkrr.linalg.substitution import substitution_cost
from dkrr.linalg.tiled_operator import multiply_bytes, pass_cost
from dkrr.planning.inputs import checked_bytes, rates_of_rows, sharing_stages, symmetry_stages
from dkrr.planning.problem import Problem
from dkrr.planning.resources import CALLER_MARGIN_BYTES, PROCESS_MARGIN_BYTES, Place, Resources
from dkrr.planning.strategy import Systems
from dkrr.planning.tilings import TileChoice, system_seconds
from dkrr.store import TileGrid

MEMORY_VECTORS = 7
"""Arrays of the size of the right-hand sides that a solution in memory holds (measured: 6.5, with an intercept 7.5)."""


def stages_in_memory(p: Problem, resources: Resources, *, keeps_matrix: bool) -> tuple[Stage, ...]:
    """Stages of a factorisation in the calling process."""
    # One right-hand side more is the probe of the condition number.
    cost = memory_cost(memory_grid(p.n), p.n_right_sides + 1, len(p.alphas), keeps=keeps_matrix)
    peak = gram_in_memory_bytes(p, resources, keeps_matrix=keeps_matrix)
    return (
        *gram_in_memory_stages(p, resources, peak, 1 if keeps_matrix else 1 + len(p.alphas)),
        Stage("factorisation", resources.rates.seconds(cost, resources.local_threads), peak_bytes=peak),
        Stage("true residual", 0.0),
    )


def gram_in_memory_bytes(p: Problem, resources: Resources, *, keeps_matrix: bool) -> int:
    """Memory of the calling process with a factor of the Gram matrix in it, and perhaps the matrix beside it."""
    grid, m, threads = memory_grid(p.n), p.n_right_sides + 1, resources.local_threads
    is_one = grid.n_tiles == 1
    return (
        resources.local_baseline_bytes
        + loaded_bytes(p)
        + memory_bytes(grid, keeps=keeps_matrix)
        + inverse_bytes(grid)
        + _vectors_held(p) * 8 * p.n * m
        + (1 if is_one else threads) * _thread_bytes(p, grid, m, keeps_matrix=keeps_matrix)
        + threads * (BYTES_PER_THREAD if is_one else min(BYTES_PER_THREAD, TILE_BUFFER_BYTES + 4096 * m))
        + CALLER_MARGIN_BYTES
    )


def _vectors_held(p: Problem) -> int:
    """Arrays of the size of the right-hand sides, at the check: with many targets they are most of the memory."""
    return MEMORY_VECTORS + int(p.fit_intercept) + int(not p.y_in_memory)


def _thread_bytes(p: Problem, grid: TileGrid, m: int, *, keeps_matrix: bool) -> int:
    """Most memory of one thread besides the tiles in memory: to form one, or to multiply by it at the check."""
    part, csr_bytes = p.bytes_of_part(grid.tile), p.csr_bytes(min(grid.tile, KERNEL_BLOCK))
    form = gram_workspace_bytes(p.kernel, grid.tile, part, p.d, csr_bytes)
    if keeps_matrix:
        return form
    if uses_symmetry(grid, m):
        # Each group has a sum, which waits to be added.
        return max(form, multiply_bytes(p.kernel, p.n, grid.tile, p.d, part, m, is_sparse=p.is_sparse))
    return form + 8 * grid.tile**2 + 8 * 8 * grid.tile * m


def gram_in_memory_stages(p: Problem, resources: Resources, peak_bytes: int, n_times: int) -> tuple[Stage, ...]:
    """Reading X into memory, and forming the Gram matrix there so many times."""
    threads = resources.local_threads
    reading = rates_of_rows(p, resources, resources.in_caller("memory", threads), peak_bytes)
    formed = gram_cost(p.entry(resources.rates), p.n * (p.n + 1) / 2 * n_times)
    if memory_grid(p.n).n_tiles > 1:  # by threads
        formed = replace(formed, element_seconds=formed.element_seconds / threads)
    return (
        Stage("reading X", loaded_bytes(p) / reading.read_bytes, checked_bytes(p)),
        Stage("Gram matrix", resources.rates.seconds(formed, threads), peak_bytes=peak_bytes),
        *symmetry_stages(p),
    )


def loaded_bytes(p: Problem) -> int:
    """Memory of X where it is loaded."""
    return 0 if p.x_in_memory else p.stored_bytes + p.read_overhead_bytes


def stages_in_tiles(p: Problem, systems: Systems, choice: TileChoice) -> tuple[Stage, ...]:
    """Stages of a factorisation in tiles; K is computed tile by tile where it is used."""
    resources, place, grid, columns = choice
    m = systems.n_right_sides + 1  # one more is the probe of the condition number
    peak = tiled_bytes(p, place, grid, m)
    form_seconds = resources.rates.seconds(gram_cost(p.entry(resources.rates), float(grid.tile**2)))
    factor, solve = system_seconds(choice, m, peak, form_seconds)
    # The substitution reads L once, two tasks at a time.
    solve = solve / min(2, place.slots) + grid.n_tiles * resources.rates.chain_seconds
    # Every tile reads the rows of X of its row and its column (once on the diagonal).
    x_read = grid.tile * p.stored_bytes / p.n * grid.n_tiles**2
    kept = systems.n_stored * (factor_bytes(grid) + 8 * p.n * (4 * m + 2)) + partial_bytes(grid, m, columns)
    one, sides = cholesky_cost(grid, m, columns), substitution_cost(grid, m)
    per_system = (
        Stage("factorisation", factor, one.read_bytes + x_read, one.written_bytes, kept),
        Stage("substitution", solve, sides.read_bytes, sides.written_bytes),
        _residual_stage(p, choice, m),
    )
    return (
        *sharing_stages(p, place, resources.rates),
        *symmetry_stages(p),
        *(s.times(systems.n_factors, peak) for s in per_system),
    )


def _residual_stage(p: Problem, choice: TileChoice, m: int) -> Stage:
    """One product with K, which is formed once more; every tile reads its rows of X, or twice without symmetry."""
    resources, place, grid, _ = choice
    mirrored = uses_symmetry(grid, m)
    cost = pass_cost(p.entry(resources.rates), p.n**2 / (2 if mirrored else 1), m, "float64", 0.0)
    seconds = resources.rates.seconds(cost) / min(place.slots, grid.n_tiles)
    n_blocks = grid.n_tiles**2 if mirrored else 2 * grid.n_tiles**2 - grid.n_tiles
    return Stage("true residual", seconds, grid.tile * p.stored_bytes / p.n * n_blocks)


def tiled_bytes(p: Problem, place: Place, grid: TileGrid, m: int) -> int:
    """Memory of a process that factors K in tiles, with m right-hand sides."""
    row_bytes, csr_bytes = p.bytes_of_part(grid.tile), p.csr_bytes(min(grid.tile, KERNEL_BLOCK))
    form_bytes = gram_workspace_bytes(p.kernel, grid.tile, row_bytes, p.d, csr_bytes) + 2 * p.read_overhead_bytes
    task_bytes = cholesky_task_bytes(grid, m, form_bytes)
    if p.is_sparse and uses_symmetry(grid, m):
        # The residual forms no tile, but keeps a transposed panel for every square on the diagonal.
        product = multiply_bytes(p.kernel, p.n, grid.tile, p.d, row_bytes, m, is_sparse=True)
        task_bytes = max(task_bytes, product + 2 * p.read_overhead_bytes)
    return place.baseline_bytes + place.threads * task_bytes + PROCESS_MARGIN_BYTES
