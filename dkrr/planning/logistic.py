"""The ways to fit a kernel logistic regression: those of a ridge regression, step after step of Newton's method.

What a step costs is what the same form and solver cost there: a system with another diagonal, and a few products with
K. How many steps there are is an estimate (`Problem.n_steps`).
"""

from collections.abc import Mapping
from dataclasses import replace

from dkrr.errors import PlanError
from dkrr.features import IdentityMap
from dkrr.linalg.cholesky import factor_bytes
from dkrr.linalg.factored import apply_bytes, apply_cost
from dkrr.linalg.memory import memory_bytes, memory_cost
from dkrr.linalg.operator import pass_cost
from dkrr.linalg.sources import gram_cost
from dkrr.planning.candidates import (
    PROCESS_MARGIN_BYTES,
    THREAD_BUFFER_BYTES,
    checked_bytes,
    dual_kept_in_memory,
    dual_tiled,
    feature_bytes,
    feature_seconds,
    memory_grid,
    rates_of_rows,
    row_block,
    tile_choices,
)
from dkrr.planning.iterative import (
    COUPLED_ITERATIONS,
    CURVATURE_SHIFT,
    INNER_TOL,
    NEWTON_VECTORS,
    PASSES_A_STEP,
    STREAM_SECONDS,
    caller_and_workers,
    dual_iterative,
    primal_iterations_expected,
)
from dkrr.planning.plan import Candidate
from dkrr.planning.problem import Form, Problem
from dkrr.planning.resources import Place, Resources
from dkrr.solvers import Cholesky, ConjugateGradient, Float32Cholesky
from dkrr.tiles import TileGrid

LIKELIHOOD_SECONDS = 40e-9
"""Likelihood, gradient and curvature of one score."""
INNER_WITH_FACTOR = 1
"""Iterations for a system whose preconditioner is its inverse."""
STEP_SECONDS = 4e-3
"""Time of every step, however small: calls, and a line search."""
STEP_SECONDS_IN_MEMORY: Mapping[tuple[str, str], float] = {
    ("primal", "cholesky"): 0.5e-3,
    ("primal", "cg"): 1.6e-3,
    ("dual", "cholesky"): 1.4e-3,
    ("dual", "cg"): 3.7e-3,
}
"""Time of every step without tasks, by form and solver."""
MAX_MATRIX_SIDE = 20_000
"""Largest curvature matrix of the primal form that is held in memory: 3 GiB."""


def logistic_ways(problem: Problem, resources: Resources, form: Form) -> list[Candidate]:
    """Candidates of one form, of the solvers that may be used."""
    p, layout = problem, problem.layout
    solver = p.solver
    if layout is not None and solver is None:
        solver = Cholesky() if layout.solver == "cholesky" else ConjugateGradient()
    ways: list[Candidate] = []
    if not isinstance(solver, ConjugateGradient):
        ways += _direct(p, resources, form)
    if not isinstance(solver, Cholesky):
        settings = solver if isinstance(solver, ConjugateGradient) else ConjugateGradient()
        if form == "primal":
            ways += [_primal(p, resources, place, "cg") for place in caller_and_workers(p, resources)]
        elif isinstance(settings.preconditioner, Float32Cholesky):
            ways += _tiled(p, resources, "float32")
        else:
            ways += dual_iterative(p, resources, settings)
    return [_with_calls(p, c) for c in ways]


def _with_calls(p: Problem, c: Candidate) -> Candidate:
    """Count what every step takes, however small."""
    is_local = c.execution == "memory"
    a_step = STEP_SECONDS_IN_MEMORY[c.form, c.solver] if is_local else STEP_SECONDS
    return replace(c, seconds=c.seconds + p.n_steps * a_step)


def _direct(p: Problem, r: Resources, form: Form) -> list[Candidate]:
    if form == "primal":
        side = ((p.dimension or 0) + 1) * (p.n_targets if p.is_coupled else 1)
        if side > MAX_MATRIX_SIDE:
            if isinstance(p.solver, Cholesky) and p.form == "primal":
                raise PlanError(
                    f"solver='cholesky' in primal form holds a matrix of {side:,} rows, of which {MAX_MATRIX_SIDE:,} "
                    f"are the most; use solver='cg', or form='dual'. Nothing was computed"
                )
            return []
        return [_primal(p, r, place, "cholesky") for place in caller_and_workers(p, r)]
    return ([] if p.wants_tiles else [_dense(p, r)]) + _tiled(p, r, "float64")


def _inner(p: Problem) -> int:
    """Iterations of conjugate gradient in one step with complete factors."""
    return INNER_WITH_FACTOR + (COUPLED_ITERATIONS if p.is_coupled else 0)


def dense(p: Problem, r: Resources) -> Candidate:
    """K and its factors in the memory of the calling process."""
    return _with_calls(p, _dense(p, r))


def _dense(p: Problem, r: Resources) -> Candidate:
    n, m, steps = p.n, p.n_targets, p.n_steps
    loaded = 0 if p.x_in_memory else p.stored_bytes + p.read_overhead_bytes
    # A product passes over K, a substitution twice over a factor; independent models have both to themselves.
    products = steps * (PASSES_A_STEP + _inner(p)) * (1 if p.is_coupled else m)
    substitutions = steps * m * (_inner(p) + 1)
    grid = memory_grid(n)
    one = memory_bytes(grid, keeps=False)
    cost = gram_cost(p.entry(r.rates), n * (n + 1) / 2) + memory_cost(grid, 1, steps * m, keeps=True)
    cost = replace(
        cost,
        gemm_flops=cost.gemm_flops + (products + substitutions) * 2.0 * n * n,
        memory_bytes=cost.memory_bytes + (products + substitutions) * 8.0 * n * n,
        fresh_bytes=cost.fresh_bytes + (steps * m * float(one) if p.is_coupled else 0.0),
        element_seconds=cost.element_seconds + steps * n * m * LIKELIHOOD_SECONDS,
    )
    apart = one * m - (memory_bytes(grid, keeps=True) - one) if p.is_coupled else 0
    whole = dual_kept_in_memory(p, r)  # as a ridge regression
    peak = whole.peak_bytes + apart + _newton_bytes(p)
    reading = rates_of_rows(p, r, 1, peak, on_workers=False)
    return replace(
        whole,
        seconds=r.rates.seconds(cost, r.local_threads) + loaded / reading.read_bytes,
        peak_bytes=peak,
        iterations=steps,
    )


def _newton_bytes(p: Problem) -> int:
    """Vectors as long as the scores, and with an intercept its directions in every class."""
    m = p.n_targets
    return 8 * p.n * m * (NEWTON_VECTORS + (2 * m if p.is_coupled and p.fit_intercept else 0))


def _tiled(p: Problem, r: Resources, precision: str) -> list[Candidate]:
    return [
        _factored(p, rates_here, place, grid, segment, precision)
        for rates_here, place, grid, segment in tile_choices(p, r, p.n)
    ]


def _factored(p: Problem, r: Resources, place: Place, grid: TileGrid, segment: int, precision: str) -> Candidate:
    """Complete factors out of core, one for each column and step."""
    m, steps, rates = p.n_targets, p.n_steps, r.rates
    itemsize = 4 if precision == "float32" else 8
    fast = rates if itemsize == 8 else rates.faster(2.0)
    # As so many ridge regressions, each of which checks its residual by one product with K.
    alike = replace(
        p,
        loss="squared",
        n_targets=1,
        fit_intercept=False,
        alphas=tuple(float(k) for k in range(steps * m)),
        keeps_store=False,
    )
    whole = dual_tiled(alike, replace(r, rates=fast), place, grid, segment)
    product = rates.seconds(pass_cost(p.entry(rates), p.n**2 / 2, m, "float64", 0.0)) / place.slots
    inner = _inner(p) + (2 if itemsize == 4 else 0)
    apply = apply_cost(grid, 1, itemsize, place.slots if r.cluster_is_running else None)
    products = steps * (PASSES_A_STEP + inner)
    factors = (m if p.is_coupled else 1) * factor_bytes(grid, itemsize)
    checkpoint = 3 * 8 * p.n * m if p.keeps_store else 0
    x_read = grid.tile * p.stored_bytes / p.n * grid.n_tiles**2 * products
    # The calling process holds the scores, and applies the factors unless there is a cluster for it.
    caller = _newton_bytes(p) + apply_bytes(grid, m, itemsize, r.local_threads)
    workers = whole.peak_bytes + place.threads * 4 * 8 * p.n * m
    peak = workers + caller
    if place.execution == "dask":
        here = r.local_baseline_bytes + caller + r.local_threads * THREAD_BUFFER_BYTES + PROCESS_MARGIN_BYTES
        peak = workers if r.cluster_is_running else max(workers, here)
    return replace(
        whole,
        seconds=whole.seconds + products * product + steps * m * inner * rates.seconds(apply),
        read_bytes=whole.read_bytes + x_read + steps * m * inner * apply.read_bytes,
        written_bytes=whole.written_bytes * itemsize / 8 + steps * checkpoint,
        disk_bytes=whole.disk_bytes + factors - factor_bytes(grid) + (1 + len(p.alphas)) * checkpoint,
        peak_bytes=peak,
        solver="cholesky" if itemsize == 8 else "cg",
        has_factor=itemsize == 4,
        precision="float64" if itemsize == 8 else "float32",
        iterations=steps if itemsize == 8 else steps * inner,
        n_tiles=grid.n_tiles,
        slots=place.slots,
    )


def _primal(p: Problem, r: Resources, place: Place, solver: str) -> Candidate:
    """Streaming passes; with a direct solver the curvature is a matrix in the memory of the calling process."""
    rates, m, steps = r.rates, p.n_targets, p.n_steps
    dimension = (p.dimension or 0) + (1 if p.fit_intercept else 0)
    is_direct = solver == "cholesky"
    sparse = p.is_sparse and not is_direct and p.feature_map is not None and p.feature_map.keeps_sparse
    width = p.most_bytes_of_row if sparse else 8 * dimension
    block = row_block(p, 1 if sparse else dimension, 1 if sparse else dimension)
    n_blocks = -(-p.n // block)
    parts = p.layout.row_parts if p.layout else min(n_blocks, place.slots if is_direct else 2 * place.slots)
    entries = p.n * (p.bytes_of_row / 12 if sparse else float(dimension))
    features = 0.0 if isinstance(p.feature_map, IdentityMap) else feature_seconds(p)
    stream = entries * (STREAM_SECONDS * m + features)
    matrices = 8 * dimension**2 * m * (m if p.is_coupled else 1) if is_direct else 8 * dimension * m
    one = stream + p.n * m * LIKELIHOOD_SECONDS
    solve, inner = 0.0, 0
    if is_direct:
        pairs = m * (m + 1) / 2 if p.is_coupled else m
        one += 2.0 * pairs * p.n * float(dimension) ** 2 / rates.gemm_flops
        systems, side = (1, dimension * m) if p.is_coupled else (m, dimension)
        grid = TileGrid(side, side, side)
        solve = rates.seconds(memory_cost(grid, 1, systems, keeps=False), r.local_threads)
    else:
        inner = primal_iterations_expected(
            replace(p, alphas=tuple(CURVATURE_SHIFT[p.is_coupled] * a for a in p.alphas), tol=INNER_TOL)
        )
        one += inner * (1.5 * stream + p.n * m * LIKELIHOOD_SECONDS)
    staged = p.stored_bytes if place.execution != "memory" and not p.x_is_shared else 0
    held = p.x_in_memory and place.execution == "memory"
    passes = (steps + 1) * (1 + inner)
    x_read = 0.0 if held else float(passes + 1) * p.stored_bytes
    checkpoint = 8 * dimension * m if p.keeps_store else 0
    rows = block * (4 * width + 2 * p.most_bytes_of_row + 12 * 8 * m) + feature_bytes(p) + p.read_overhead_bytes
    if is_direct and p.is_coupled:
        rows += block * 8 * dimension * m
    caller = 4 * matrices + NEWTON_VECTORS * 8 * dimension * m + 4 * 8 * p.n
    here = place.execution != "dask"
    peak = place.baseline_bytes + PROCESS_MARGIN_BYTES + place.threads * (rows + 2 * matrices) + (caller if here else 0)
    reading = rates_of_rows(p, r, place.n_workers, peak, on_workers=not here)
    return Candidate(
        form="primal",
        execution=place.execution,
        n_workers=place.n_workers,
        tile=dimension,
        panel=dimension,
        segment=0,
        row_parts=max(1, parts),
        row_block=block,
        seconds=place.start_seconds
        + 2 * staged / rates.write_bytes
        + (steps + 1) * (one / place.slots + solve)
        + x_read / reading.read_bytes / place.slots,
        read_bytes=checked_bytes(p) * (place.execution != "memory") + x_read,
        written_bytes=staged + steps * checkpoint,
        disk_bytes=staged + 2 * checkpoint + (16 * p.n if place.execution != "memory" else 0),
        peak_bytes=peak,
        limit_bytes=place.limit_bytes,
        solver="cholesky" if is_direct else "cg",
        iterations=steps * max(1, inner),
        slots=place.slots,
    )
