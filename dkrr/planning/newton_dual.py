"""Price of Newton's method with the Gram matrix: factors in memory or on disk, or products with K."""

from collections.abc import Iterator
from dataclasses import replace

from dkrr.blas import BYTES_PER_THREAD
from dkrr.cost import Cost, Stage
from dkrr.linalg.cholesky import factor_bytes
from dkrr.linalg.inverse import apply_bytes, apply_cost
from dkrr.linalg.likelihood import SECONDS_PER_SCORE
from dkrr.linalg.memory import memory_bytes, memory_cost, memory_grid
from dkrr.linalg.tiled_operator import pass_cost
from dkrr.planning.direct import Direct, dual_in_tiles
from dkrr.planning.direct_dual import gram_in_memory_bytes, gram_in_memory_stages
from dkrr.planning.float32_factor import Float32Factor
from dkrr.planning.float32_factor_dual import against_float32, tol_of
from dkrr.planning.iteration import Iterative, dual_iterative
from dkrr.planning.problem import Problem
from dkrr.planning.resources import PROCESS_MARGIN_BYTES, Rates, Resources
from dkrr.planning.strategy import Systems, Tiling
from dkrr.planning.tilings import TileChoice, tile_choices
from dkrr.solvers.dual_objective import VECTORS_HELD
from dkrr.solvers.newton import COUPLED_ITERATIONS, CURVATURE_SHIFT, INNER_TOL, INNER_WITH_FACTOR, PASSES_PER_STEP

MORE_IN_FLOAT32 = 2
"""Iterations of a step that factors in float32 leave to do, besides those with factors in float64."""


def direct(p: Problem, resources: Resources) -> Iterator[tuple[Direct | Float32Factor, list[Stage]]]:
    """Factors in memory, then in tiles on disk."""
    if not p.wants_tiles:
        yield _in_memory(p, resources, 8)
    for choice in tile_choices(p, resources, "dual"):
        yield _in_tiles(p, choice, 8)


def factored(p: Problem, resources: Resources) -> Iterator[tuple[Direct | Float32Factor, list[Stage]]]:
    """Factors in float32, in memory, then in tiles on disk."""
    if against_float32(p):
        return
    if not p.wants_tiles:
        yield _in_memory(p, resources, 4)
    for choice in tile_choices(p, resources, "dual"):
        yield _in_tiles(p, choice, 4)


def by_iteration(p: Problem, resources: Resources) -> Iterator[tuple[Iterative, list[Stage]]]:
    """Products with K, and one partial factor for all systems."""
    systems = replace(
        _systems(p, CURVATURE_SHIFT[p.is_coupled] * min(p.alphas)),
        n_products=p.n_steps * PASSES_PER_STEP,
        more_iterations=COUPLED_ITERATIONS if p.is_coupled else 0,
    )
    for inner in dual_iterative(p, systems, resources):
        yield inner, [Stage("likelihood", 0.0), Stage("Newton steps", 0.0)]


def _systems(p: Problem, shift: float) -> Systems:
    """One system for each column and step."""
    return Systems(
        n_factors=p.n_steps * p.n_targets,
        n_right_sides=1,
        n_stored=1,
        n_columns=p.n_targets,
        n_active=p.n_targets,
        shift=shift,
        tol=INNER_TOL,
        n_steps=p.n_steps,
        n_vectors=VECTORS_HELD,
        n_curvatures=p.n_targets,
    )


def _inner_iterations(p: Problem) -> int:
    """Iterations of conjugate gradient in one step with complete factors."""
    return INNER_WITH_FACTOR + (COUPLED_ITERATIONS if p.is_coupled else 0)


def _vectors_bytes(p: Problem) -> int:
    """Vectors as long as the scores, and with an intercept its directions in every class."""
    m = p.n_targets
    return 8 * p.n * m * (VECTORS_HELD + (2 * m if p.is_coupled and p.fit_intercept else 0))


def _in_memory(p: Problem, r: Resources, itemsize: int) -> tuple[Direct | Float32Factor, list[Stage]]:
    """K and its factors in the memory of the calling process."""
    n, m, steps = p.n, p.n_targets, p.n_steps
    # A product passes over K, a substitution twice over a factor; independent models have both to themselves.
    products = steps * (1 if p.is_coupled else m)
    iterations = products * (_inner_iterations(p) + _more_iterations(itemsize))
    substitutions = steps * m * (_inner_iterations(p) + _more_iterations(itemsize) + 1)
    grid, at_once = memory_grid(n), m if p.is_coupled else 1
    one = memory_bytes(grid, keeps=False)
    copies = Cost(fresh_bytes=steps * m * float(one) * itemsize / 8 if p.is_coupled else 0.0)
    beside = memory_bytes(grid, keeps=True) - one  # a factor in float64 shares the squares on the diagonal with K
    of_factors = one * at_once if p.is_coupled else beside
    if itemsize == 4:
        of_factors = one // 2 * at_once
    peak = gram_in_memory_bytes(p, r, keeps_matrix=True) - beside + of_factors + _vectors_bytes(p)

    def stage(name: str, cost: Cost, rates: Rates = r.rates) -> Stage:
        return Stage(name, rates.seconds(cost, r.local_threads), peak_bytes=peak)

    once = Cost(gemm_flops=2.0 * n * n, memory_bytes=8.0 * n * n)
    stages = (
        *gram_in_memory_stages(p, r, peak, 1),
        stage("factorisation", memory_cost(grid, 1, steps * m, keeps=True) + copies, _rates(r.rates, itemsize)),
        stage("substitution", once.times(substitutions * itemsize / 8)),
    )
    scores = Cost(element_seconds=steps * n * m * SECONDS_PER_SCORE)
    place, tiling = r.in_caller("memory", r.local_threads), Tiling(grid.tile, grid.panel)
    inner: Direct | Float32Factor
    if itemsize == 8:
        inner = Direct(form="dual", place=place, stages=stages, tiling=tiling, row_block=n, keeps_matrix=True)
    else:
        inner = Float32Factor(
            form="dual",
            place=place,
            stages=stages,
            tiling=tiling,
            iterations=iterations,
            products_tile=grid.tile,
            tol=tol_of(p),
            keeps_matrix=True,
        )
    return inner, [
        stage("conjugate gradient", once.times(iterations)),
        stage("likelihood", scores),
        stage("Newton steps", once.times(products * PASSES_PER_STEP)),
    ]


def _more_iterations(itemsize: int) -> int:
    """Iterations of one step besides those with factors in float64."""
    return MORE_IN_FLOAT32 if itemsize == 4 else 0


def _rates(rates: Rates, itemsize: int) -> Rates:
    """Rates of a factorisation in numbers of this size."""
    return rates if itemsize == 8 else rates.in_float32()


def _in_tiles(p: Problem, choice: TileChoice, itemsize: int) -> tuple[Direct | Float32Factor, list[Stage]]:
    """Complete factors out of core, one for each column and step."""
    r, place, grid, _ = choice
    m, steps, rates = p.n_targets, p.n_steps, r.rates
    # As so many ridge regressions, each of which checks its residual by one product with K.
    fast = choice._replace(resources=replace(r, rates=_rates(rates, itemsize)))
    whole = dual_in_tiles(p, _systems(p, 0.0), fast)
    product = rates.seconds(pass_cost(p.entry(rates), p.n**2 / 2, m, "float64", 0.0)) / place.slots
    product_read = grid.tile * p.stored_bytes / p.n * grid.n_tiles**2
    iterations = _inner_iterations(p) + _more_iterations(itemsize)
    apply = apply_cost(grid, 1, itemsize, place.slots if r.cluster_is_running else None)
    checkpoint = 3 * 8 * p.n * m if p.keeps_store else 0
    peak, kept = _tiled_bytes(p, choice, itemsize, whole.peak_bytes), (1 + len(p.alphas)) * checkpoint
    passes, products = steps * PASSES_PER_STEP, steps * iterations
    stages = {s.name: replace(s, written_bytes=s.written_bytes * itemsize / 8) for s in whole.stages}
    checked = stages.pop("true residual")
    applied = Stage("substitution", rates.seconds(apply), apply.read_bytes).times(products * m)
    stages["substitution"] = stages["substitution"].plus(applied.seconds, applied.read_bytes)
    # Factors of one column after the other, with those of a softmax in the store at once.
    more = ((m if p.is_coupled else 1) * factor_bytes(grid, itemsize)) - factor_bytes(grid)
    stages["factorisation"] = stages["factorisation"].plus(0.0, disk=more)
    seconds, x_read = passes * product + checked.seconds, passes * product_read + checked.read_bytes
    return _of_itemsize(whole, choice, itemsize, tuple(stages.values()), products, tol_of(p)), [
        Stage("conjugate gradient", products * product, products * product_read),
        Stage("likelihood", 0.0),
        Stage("Newton steps", seconds, x_read, steps * checkpoint, kept, peak),
    ]


def _of_itemsize(
    whole: Direct, choice: TileChoice, itemsize: int, stages: tuple[Stage, ...], iterations: int, tol: float | None
) -> Direct | Float32Factor:
    """Strategy that factors in numbers of this size."""
    if itemsize == 8:
        return replace(whole, stages=stages)
    return Float32Factor(
        form="dual",
        place=choice.place,
        stages=stages,
        tiling=choice.tiling,
        iterations=iterations,
        products_tile=choice.grid.tile,
        tol=tol,
    )


def _tiled_bytes(p: Problem, choice: TileChoice, itemsize: int, factoring_bytes: int) -> int:
    """Memory of a process; the calling one holds the scores, and applies the factors unless a cluster does."""
    r, place, grid, _ = choice
    caller = _vectors_bytes(p) + apply_bytes(grid, p.n_targets, itemsize, r.local_threads)
    working = factoring_bytes + place.threads * 4 * 8 * p.n * p.n_targets
    if place.execution != "dask":
        return working + caller
    here = r.local_baseline_bytes + caller + r.local_threads * BYTES_PER_THREAD + PROCESS_MARGIN_BYTES
    return working if r.cluster_is_running else max(working, here)
