"""Complete factors of the Gram matrix: a recipe for each loss and precision, the same in memory and in tiles."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from math import ceil
from typing import Literal, NamedTuple

from dkrr.blas import BYTES_PER_THREAD
from dkrr.cost import Work
from dkrr.fitting.costs.details import Direct, Float32Factor
from dkrr.fitting.costs.gram_costs import GramCosts
from dkrr.fitting.costs.tile_costs import Cut, Itemsize, cuts, products_at_once
from dkrr.linalg.cholesky import cholesky_task_bytes
from dkrr.linalg.float32_tiles import MAX_ROUNDING_RATIO, refining_iterations, rounding_ratio
from dkrr.linalg.gram_products import calls_work
from dkrr.linalg.in_memory_cholesky import factoring_bytes, growing_grid, memory_bytes, memory_grid
from dkrr.linalg.likelihood import SECONDS_PER_SCORE
from dkrr.linalg.newton import MIN_SHIFT_RATIO, SECONDS_PER_STEP, SECONDS_PER_STEP_IN_MEMORY, VECTORS_HELD
from dkrr.linalg.residual import uses_symmetry
from dkrr.linalg.solver_settings import ConjugateGradient
from dkrr.linalg.square import ONE_TILE, copy_work, factor_work, solving_work
from dkrr.linalg.substitution import apply_bytes
from dkrr.planning.facts import TYPICAL
from dkrr.planning.problem import Problem, Systems
from dkrr.planning.resources import (
    CALLER_MARGIN_BYTES,
    PROCESS_MARGIN_BYTES,
    RESIDENT_ROWS_FRACTION,
    Resources,
    Workplace,
)
from dkrr.planning.strategy import Method, Strategy
from dkrr.planning.tile_sizes import Tiling
from dkrr.planning.work import COMPARED, Recipe, Step
from dkrr.store import TileGrid

KEPT_TIME_FRACTION = 0.95
"""Fraction of the time below which a second triangle in memory pays."""
REFINED_TOL = 1e-13
"""Typical relative residual at the level of rounding."""
TYPICAL_RATIO = 1e-4
"""Rounding ratio assumed of kernels whose scale a plan does not know; a fit first looks at the diagonal of K."""
MIN_FRACTION = 0.1
"""Fraction of the smallest eigenvalue that a sample suggests, on which a plan relies."""
MORE_IN_FLOAT32 = 2
"""Iterations of a Newton step that factors in float32 leave to do, besides those with factors in float64."""
MAX_TILE = 8192
"""Tiles are never formed whole, so they may be large; beyond this nothing is gained."""
TILES_PER_SIDE = (3, 8)
"""Fewest and most tiles per side of a product in memory: enough for threads to have equal work, and few calls."""
PRODUCT_TILE = 1250
"""Rows of a tile between those bounds (measured: 5,000 rows take 20 ms with it, and 24 with 625)."""
VECTORS = {8: 7, 4: 12}
"""Arrays of the size of the right-hand sides that a solution in memory holds, by the bytes of an entry of the factor
(measured: 6.5, with an intercept 7.5; refinement in float64 holds more)."""

# Float32


def ratio_of(p: Problem) -> float:
    """Rounding ratio of K + λI (or of the systems of Newton's method), by λ and an estimate of the spectrum."""
    shift = min(p.alphas) * (1.0 if p.loss == "squared" else MIN_SHIFT_RATIO)
    if not p.kernel.has_unit_diagonal:
        return TYPICAL_RATIO if shift > 0 else 1.0
    if p.facts.spectrum != TYPICAL:
        shift += MIN_FRACTION * p.n * p.facts.spectrum.eigenvalue(p.n)
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


def _iterations(p: Problem, itemsize: Itemsize) -> int:
    """Iterations that a factor leaves to do, for one right-hand side or in one step of Newton's method."""
    if p.loss == "logistic":
        return p.newton.inner + (MORE_IN_FLOAT32 if itemsize == 4 else 0)
    return 0 if itemsize == 8 else refining_iterations(ratio_of(p), _tol(p) or REFINED_TOL)


def _tol(p: Problem) -> float | None:
    """Relative residual that a requested iterative solver ends at; None: the level of rounding."""
    return p.tol if isinstance(p.solver, ConjugateGradient) else None


# Recipes


class FactorUse(NamedTuple):
    """A use of a matrix or of its factors, in a stage."""

    stage: str
    is_product: bool
    """A product with the matrix; otherwise both substitutions with a factor."""
    times: float
    m: int
    """Vectors at once."""


def uses(p: Problem, s: Systems, itemsize: Itemsize) -> list[FactorUse]:
    """Uses that a fit makes of the Gram matrix and its factors, once they exist."""
    n = 0 if itemsize == 8 and p.loss == "squared" else _iterations(p, itemsize)
    if p.loss == "logistic":  # independent models have products to themselves
        together, m = (1, p.n_targets) if p.is_softmax else (p.n_targets, 1)
        return [
            FactorUse("substitution", False, s.n_factors * (n + 1), 1),
            FactorUse("conjugate gradient", True, s.n_steps * n * together, m),
            FactorUse("Newton steps", True, s.n_products * together, m),
        ]
    solve, check = ("substitution", "true residual") if itemsize == 8 else 2 * ("conjugate gradient",)
    m = s.n_right_sides + (1 if itemsize == 8 else 0)  # one more is the probe of the condition number
    return [FactorUse(solve, False, s.n_factors * (n + 1), m), FactorUse(check, True, s.n_factors * (n + 1), m)]


def newton_steps(site: GramCosts) -> list[Step]:
    """Steps of Newton's method besides systems and products."""
    p = site.problem
    scores = Work(element_seconds=p.n_steps * p.n * p.n_targets * SECONDS_PER_SCORE)
    checkpoint = 3 * 8 * p.n * p.n_targets if p.keeps_store else 0
    steps = Work(written_bytes=p.n_steps * checkpoint, disk_bytes=(1 + len(p.alphas)) * checkpoint)
    return [
        Step("likelihood", scores, by="caller"),
        Step("Newton steps", steps, seconds=p.n_steps * step_seconds(site.place)),
    ]


def step_seconds(place: Workplace) -> float:
    """Time of every step of Newton's method, however small."""
    return SECONDS_PER_STEP_IN_MEMORY if place.is_memory else SECONDS_PER_STEP


def newton_vectors(p: Problem) -> int:
    """Vectors as long as the scores in the calling process, and with an intercept its directions in every class."""
    m = p.n_targets
    return 8 * p.n * m * (VECTORS_HELD + (2 * m if p.is_softmax and p.fit_intercept else 0))


def factored_in_tiles(p: Problem, r: Resources, itemsize: Itemsize, method: Method) -> Iterator[Strategy]:
    """Complete factors of the Gram matrix in tiles on disk."""
    for cut in cuts(p, r, "dual", partial(_tiled_bytes, itemsize=itemsize)):
        yield _dual_in_tiles(cut, itemsize, method)


def _strategy(
    site: GramCosts, itemsize: Itemsize, method: Method, tiling: Tiling, recipe: Recipe, peak: int, *,
    products_tile: int, keeps_rows: bool = False, keeps_matrix: bool = False,
) -> Strategy:  # fmt: skip
    p = site.problem
    details: Direct | Float32Factor = Direct(
        tiling=tiling, row_block=products_tile, keeps_matrix=keeps_matrix, keeps_factors=p.uncertainty
    )
    if itemsize == 4:
        n = _iterations(p, itemsize)
        details = Float32Factor(
            tiling=tiling,
            iterations=n if p.loss == "squared" else n * p.n_steps * (1 if p.is_softmax else p.n_targets),
            products_tile=products_tile,
            tol=_tol(p),
            keeps_rows=keeps_rows,
            keeps_matrix=keeps_matrix,
        )
    stages = site.price(recipe, peak) + (
        site.held_out(peak, TileGrid(p.n, tiling.tile, tiling.panel)) if details.keeps_factors else ()
    )
    n_steps = p.n_steps if p.loss == "logistic" else 0
    return Strategy(method=method, form="dual", place=site.place, details=details, stages=stages, n_steps=n_steps)


# In memory


def kept_or_again(site: GramCosts, method: Method, again: Strategy) -> Strategy:
    """The matrix beside its factors, or formed again."""
    kept = factored_in_memory(site, 8, method, keeps=True)
    # Sums of products with tiles that are formed again may take more memory than the matrix, for many targets.
    pays = kept.seconds < KEPT_TIME_FRACTION * again.seconds or again.peak_bytes > again.limit_bytes
    return kept if pays and kept.peak_bytes <= kept.limit_bytes else again


def factored_in_memory(site: GramCosts, itemsize: Itemsize, method: Method, *, keeps: bool) -> Strategy:
    """Lower triangle in the calling process, of the matrix, its factor or both."""
    p, kept = site.problem, site.problem.n_kept_rows
    grid = growing_grid(p.n) if kept else memory_grid(p.n)
    tile = grid.tile if keeps or itemsize == 8 else products_tile(p.n)
    by: Literal["tasks", "blas"] = "blas" if grid.n_tiles == 1 else "tasks"
    low = itemsize == 4 and p.kernel.has_unit_diagonal
    entry_seconds = p.entry_time("float32" if low and not keeps else "float64")
    triangle, systems = Work(element_seconds=entry_seconds * ((p.n * (p.n + 1) - kept * (kept + 1)) / 2)), p.systems
    held = memory_bytes(grid, keeps=keeps) - (memory_bytes(growing_grid(kept), keeps=keeps) if kept else 0)
    n_factors, fresh = systems.n_factors, Work(fresh_bytes=held * itemsize / 8)
    recipe = [
        Step("reading X", Work(row_bytes=0 if p.x_in_memory else p.stored_bytes), by="caller"),
        Step("Gram matrix", triangle, 1 if keeps else 0, by),
        *(COMPARED if p.kernel.is_precomputed else ()),
        Step("factorisation", factor_work(p.n, itemsize, kept), n_factors, "blas"),
        Step("factorisation", triangle, 0 if keeps else n_factors, by),
        Step("factorisation", copy_work(p.n), n_factors if keeps and not kept else 0, "caller"),
        Step("factorisation", fresh, n_factors if p.is_softmax else 1, "caller"),
    ]
    for use in uses(p, systems, itemsize):
        stage = "factorisation" if use.stage == "substitution" and p.loss == "squared" else use.stage
        if use.is_product and not keeps:
            recipe.append(Step(stage, site.product(use.m) + calls_work(p.n, tile), use.times))
            continue
        # Factors in float32 are applied by threads, each to its part.
        applied: Literal["tasks", "blas"] = "tasks" if itemsize == 4 and not use.is_product else "blas"
        work = solving_work(p.n, use.m, 8 if use.is_product else itemsize)
        recipe.append(Step(stage, work, use.times, applied))
    if p.loss == "logistic":
        recipe += newton_steps(site)
    peak = _whole_bytes(site, grid, itemsize, tile, keeps=keeps)
    tiling, tile = Tiling(grid.tile, grid.panel), p.n if itemsize == 8 else tile
    return _strategy(site, itemsize, method, tiling, recipe, peak, products_tile=tile, keeps_matrix=keeps)


def products_tile(n: int) -> int:
    """Rows of a tile of a product in memory."""
    n_tiles = min(max(ceil(n / PRODUCT_TILE), TILES_PER_SIDE[0]), TILES_PER_SIDE[1])
    return min(ceil(n / n_tiles), MAX_TILE)


def _whole_bytes(site: GramCosts, grid: TileGrid, itemsize: Itemsize, tile: int, *, keeps: bool) -> int:
    """Memory of the calling process with a factor of the Gram matrix in it, and perhaps the matrix beside it."""
    p, threads, m = site.problem, site.resources.local_threads, site.problem.n_right_sides + 1
    is_one, one = grid.n_tiles == 1, memory_bytes(grid, keeps=False)
    if itemsize == 8 and not p.is_softmax:  # a factor shares the squares on the diagonal with the matrix
        matrices = memory_bytes(grid, keeps=keeps) + (len(p.alphas) - 1 if p.uncertainty else 0) * one
    else:
        matrices = (one if keeps else 0) + one * itemsize // 8 * (p.n_targets if p.is_softmax else 1)
    n_vectors = VECTORS[itemsize] + (int(p.fit_intercept) + int(not p.y_in_memory) if itemsize == 8 else 0)
    vectors = n_vectors * 8 * p.n * m + (newton_vectors(p) if p.loss == "logistic" else 0)
    each = site.forming_bytes(grid.tile)
    if not keeps and (itemsize == 4 or uses_symmetry(grid, m)):
        # Each group of tiles has a sum, which waits to be added.
        each = max(each + (8 * grid.tile**2 if itemsize == 4 else 0), site.product_bytes(tile, m))
    elif not keeps:
        each += 8 * grid.tile**2 + 8 * 8 * grid.tile * m
    loaded = 0 if p.x_in_memory else p.stored_bytes + p.read_overhead_bytes
    held = loaded + matrices + vectors + (1 if is_one and keeps else threads) * each
    held += factoring_bytes(grid, m, threads, 8 if keeps else itemsize)
    # Newton's method leaves more behind (measured: 3 MiB above what is counted, with factors in float32).
    return site.peak(held, 0, CALLER_MARGIN_BYTES if p.loss == "squared" else PROCESS_MARGIN_BYTES)


# In tiles


def _dual_in_tiles(cut: Cut, itemsize: Itemsize, method: Method) -> Strategy:
    """Factors in tiles on disk; K is formed tile by tile where it is used."""
    site, grid, p = cut.site, cut.grid, cut.site.problem
    s, x_read, rows = p.systems, cut.rows_read(), p.n * p.bytes_of_row
    is_ridge = p.loss == "squared"
    # In float32 products follow one after the other: X stays where it is small.
    is_small = p.stored_bytes <= site.place.limit_bytes * RESIDENT_ROWS_FRACTION
    keeps_rows = itemsize == 4 and is_ridge and is_small and cut.peak + rows <= site.place.usable_bytes
    read_again = 0.0 if keeps_rows else x_read
    peak = cut.peak + (rows if keeps_rows else 0)

    def used(use: FactorUse) -> Step:
        if not use.is_product:
            once = is_ridge and itemsize == 8
            if once:
                return cut.substituted(use.m, use.times, n_stored)
            return cut.applied(use.stage, use.m, itemsize, use.times)
        if itemsize == 4 or not is_ridge:
            return Step(use.stage, replace(site.product(use.m), row_bytes=read_again), use.times)
        # The residual has a task for each row of tiles, and without symmetry reads the rows of every tile twice.
        is_mirrored, places = uses_symmetry(grid, use.m), min(products_at_once(site, grid, use.m), grid.n_tiles)
        work = site.product(use.m, is_mirrored=is_mirrored)
        seconds = site.rates.seconds(work) / places
        work = replace(work, row_bytes=read_again * (1.0 if is_mirrored else 2.0 - 1.0 / grid.n_tiles))
        return Step(use.stage, work, use.times, seconds=seconds)

    n_stored = len(p.alphas) if p.uncertainty and itemsize == 8 else s.n_stored
    form_seconds = site.rates.seconds(site.forming(float(grid.tile**2), "float32" if itemsize == 4 else "float64"))
    n_stored = p.n_targets if p.is_softmax else n_stored
    kept = p.n_kept_rows
    once = p.stored_bytes * site.place.n_workers if keeps_rows else 0
    recipe = [
        *site.shared(),
        cut.factored(form_seconds, n_stored, itemsize, kept)._replace(times=s.n_factors),
        Step("factorisation", Work(row_bytes=x_read * (1.0 - (kept / p.n) ** 2)), s.n_factors),
        Step("factorisation", Work(row_bytes=once)),
        *map(used, uses(p, s, itemsize)),
        *(newton_steps(site) if p.loss == "logistic" else ()),
    ]
    return _strategy(site, itemsize, method, cut.tiling, recipe, peak, products_tile=grid.tile, keeps_rows=keeps_rows)


def _tiled_bytes(site: GramCosts, grid: TileGrid, *, itemsize: Itemsize) -> int:
    """Memory of a process that factors K in tiles, in float64 where float32 breaks down.

    The calling process holds the scores of a classification, and applies the factors unless a cluster does.
    """
    p, place, r = site.problem, site.place, site.resources
    m = p.systems.n_right_sides + 1
    each = cholesky_task_bytes(grid, m, site.forming_bytes(grid.tile) + 2 * p.read_overhead_bytes)
    at_once = products_at_once(site, grid, m) if place.execution == "serial" and p.loss == "squared" else 1
    if uses_symmetry(grid, m) and (p.is_sparse or at_once > 1):
        # The residual forms no tile, but keeps, of CSR rows, a transposed panel for every square on the diagonal.
        each = max(each, at_once * (site.product_bytes(grid.tile, m) + 2 * p.read_overhead_bytes))
    if p.loss == "squared":
        return site.peak(0, each + (4 * 8 * p.n * (m - 1) if itemsize == 4 else 0))
    peak = site.peak(0, each + 4 * 8 * p.n * p.n_targets)
    caller = newton_vectors(p) + apply_bytes(grid, p.n_targets, itemsize, r.local_threads)
    if place.execution != "dask":
        return peak + caller
    here = r.local_baseline_bytes + caller + r.local_threads * BYTES_PER_THREAD + PROCESS_MARGIN_BYTES
    return peak if r.cluster_is_running else max(peak, here)
