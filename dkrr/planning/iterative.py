"""The ways to solve a problem by conjugate gradient, each with its projected cost.

What they need that no plan can know is the spectrum of the matrix. It is estimated on a sample of the rows, or taken to
be a typical one where there are none; the rank is chosen while the factor shows what it really is.
"""

from dataclasses import replace
from math import ceil, sqrt

from dkrr.features import IdentityMap
from dkrr.linalg.operator import USE_SECONDS, Precision, multiply_bytes, pass_cost
from dkrr.linalg.pivoted import factor_rows_bytes, pivoted_cost
from dkrr.linalg.preconditioner import expected_iterations
from dkrr.linalg.sources import KERNEL_BLOCK, gram_cost, gram_workspace_bytes
from dkrr.planning.candidates import (
    PROCESS_MARGIN_BYTES,
    ROWS_PART,
    TARGET_COPIES,
    THREAD_BUFFER_BYTES,
    cache_bytes,
    checked_bytes,
    feature_bytes,
    feature_seconds,
    mapped_target_cost,
    rates_of_rows,
    row_block,
)
from dkrr.planning.plan import Candidate
from dkrr.planning.problem import Problem
from dkrr.planning.resources import Place, Resources, cold_part
from dkrr.solvers import ConjugateGradient, Float32Cholesky
from dkrr.solvers.conjugate_gradient import cycles_in_low_precision

TYPICAL_CONDITION = 300.0
"""Of ΦᵀWΦ scaled to a unit diagonal: correlated features, of which there are fewer than rows."""

LOW_RANKS = (100, 50, 25, 10)
"""Ranks that are compared where there is no memory for any of those."""
RANKS = (250, 500, 750, 1000, 1500, 2000, 3000, 4000, 6000, 8000)
"""Ranks that are compared."""
LARGEST_TILE = 8192
"""Tiles are never formed whole, so they may be large; beyond this nothing is gained."""
LEAST_TILE = 512
TILE_SECONDS = 0.4e-3
"""Of every tile that is formed, besides its entries: calls, and threads that wait for the interpreter (measured: 0.7 ms
with tiles of 313 rows and two threads)."""
STORED_TILE = 2048
"""Tiles on disk are read whole."""
COSTLY = 2.0
"""Times that an entry must take longer to compute than to read for the disk to be considered."""
WORKSPACE_PART = 16
"""The kernel's temporaries for a tile take at most one part in this many of a process's memory."""
KEPT_PARTS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Parts of the memory left for tiles that are compared; what is not used for tiles is there for the factor."""
APPLY_SECONDS = 1.2e-9
"""An entry of the float32 factor, for both of its products with one vector: read and converted twice."""
FACTOR_ITEMSIZE = 4
"""The factor is stored in float32: rounding makes another factor, as good a preconditioner, of half the size."""
STREAM_SECONDS = 1.2e-9
"""An entry of X, for both of its products with one vector."""
ROUND_TRIPS = 3
"""Of an iteration on Dask: one for A and two for the preconditioner."""
MIXED_ITERATIONS = 1.15
"""Iterations with products in float32 over those in float64: every cycle begins anew (measured 1.07 to 1.2)."""
MAX_ITERATIONS_PLANNED = 1_000_000
INNER_TOL = 1e-3
"""Relative residual to which Newton systems are solved on average: loosely at first, tightly at the end."""
CURVATURE_SHIFT = {False: 40, True: 8}
"""Multiple of λ with which a regression takes as many iterations. With the largest curvature that a row can have, a
quarter, it is 8, and for a softmax that is about right; the models of single classes are sure of most rows (measured on
digits, 5 classes of 20 informative columns and 16 normal ones, λ of 1 to 0.001)."""
COUPLED_ITERATIONS = 8
"""More iterations of a softmax, whose preconditioner takes the classes one by one (measured with 10: 4 to 9)."""
PASSES_A_STEP = 4
"""Products with K of a Newton step besides its iterations: right-hand side, true residual, scores and gradient."""
NEWTON_VECTORS = 30
"""Arrays as long as the scores in the calling process."""


def iterations_expected(problem: Problem, rank: int) -> int:
    """Iterations for the problem's spectrum, in the dual form."""
    return _iterations(problem, problem.n * problem.spectrum.eigenvalue(rank))


def primal_iterations_expected(problem: Problem) -> int:
    """The same with the diagonal of ΦᵀWΦ as preconditioner."""
    alpha = min(problem.alphas)
    largest = TYPICAL_CONDITION * alpha if alpha > 0 else TYPICAL_CONDITION
    return min(_iterations(problem, min(largest, problem.n * problem.spectrum.largest)), (problem.dimension or 1) + 1)


def n_columns(problem: Problem) -> int:
    """Columns that every product serves: of a regression all targets and all λ at once."""
    return problem.n_right_sides * (len(problem.alphas) if problem.loss == "squared" else 1)


def _iterations_and_checks(p: Problem, rank: int, precision: Precision) -> tuple[int, int]:
    """Expected iterations, and the products in float64 besides them."""
    if p.loss == "logistic":
        system = replace(p, alphas=tuple(a * CURVATURE_SHIFT[p.is_coupled] for a in p.alphas), tol=INNER_TOL)
        inner = _iterations(system, p.n * p.spectrum.eigenvalue(rank)) + (COUPLED_ITERATIONS if p.is_coupled else 0)
        return p.n_steps * inner, p.n_steps * PASSES_A_STEP
    iterations = iterations_expected(p, rank)
    if precision == "float64":
        return iterations, 1
    return ceil(iterations * MIXED_ITERATIONS), cycles_in_low_precision(p.tol)


def _iterations(problem: Problem, eigenvalue: float) -> int:
    alpha = max(min(problem.alphas), 1e-14)
    return int(min(ceil(expected_iterations(eigenvalue, alpha, problem.tol)) + 1, MAX_ITERATIONS_PLANNED))


def dual_iterative(problem: Problem, resources: Resources, settings: ConjugateGradient) -> list[Candidate]:
    """Conjugate gradient on K + λW⁻¹: the places, times tiles kept, times ranks, times precisions."""

    def of_ranks(ranks: list[int], parts: tuple[float, ...]) -> list[Candidate]:
        return [
            _dual(problem, resources, settings, place, precision, rank, part)
            for place in caller_and_workers(problem, resources)
            for precision in _precisions(settings)
            for rank in ranks
            for part in parts
        ]

    candidates = of_ranks(_ranks(problem, settings), KEPT_PARTS)
    if settings.rank is None and candidates[0].rank and not any(_fits(c, resources) for c in candidates):
        # Also without a factor: a limit that is refused is then one that cannot be met.
        candidates += of_ranks([r for r in LOW_RANKS if r < candidates[0].rank] + [0], KEPT_PARTS[:1])
    if _is_costly(problem, resources):
        candidates += [
            _stored(problem, resources, settings, replace(place, execution="serial") if here else place, rank)
            for place in caller_and_workers(problem, resources)
            for here in [place.execution == "memory"]
            for rank in _ranks(problem, settings)
        ]
    return candidates


def _fits(c: Candidate, resources: Resources) -> bool:
    return c.peak_bytes <= c.limit_bytes * (resources.usable_fraction if c.execution == "dask" else 1.0)


def _is_costly(problem: Problem, resources: Resources) -> bool:
    """Whether an entry takes longer to compute than to read."""
    rates = resources.rates
    return rates.seconds(gram_cost(problem.entry(rates), 1.0)) > COSTLY * 8 / rates.read_bytes


def _stored(problem: Problem, resources: Resources, settings: ConjugateGradient, place: Place, rank: int) -> Candidate:
    """The same with tiles that are formed once and kept on disk."""
    p, rates = problem, resources.rates
    room = place.threads * 2 * 8 * min(p.n, STORED_TILE) ** 2
    formed = _dual(p, resources, settings, replace(place, usable_bytes=place.usable_bytes - room), "float64", rank, 0.0)
    tile = min(formed.tile, STORED_TILE)
    n_tiles = ceil(p.n / tile)
    disk = n_tiles * (n_tiles + 1) // 2 * (8 * tile**2 + 4)
    entries = float(p.n) ** 2 / 2
    one = rates.seconds(pass_cost(p.entry(rates), entries, 1, "float64", 0.0))
    peak = formed.peak_bytes + place.threads * 2 * 8 * tile**2
    cold = cold_part(disk, cache_bytes(resources, place, peak))
    read = (entries * USE_SECONDS["float64"] + disk / rates.reading(cold).read_bytes) / place.slots
    passes = formed.iterations + 1
    return replace(
        formed,
        tile=tile,
        panel=tile,
        n_tiles=n_tiles,
        seconds=formed.seconds + one / place.slots + disk / rates.write_bytes + passes * (read - one / place.slots),
        # Tiles are formed once, from the rows of both their sides.
        read_bytes=passes * disk
        + (formed.read_bytes if formed.keeps_rows else checked_bytes(p) + float(p.stored_bytes) * n_tiles),
        written_bytes=formed.written_bytes + disk,
        disk_bytes=formed.disk_bytes + disk,
        peak_bytes=peak,
        stores_tiles=True,
        cold_part=cold,
    )


def caller_and_workers(problem: Problem, r: Resources) -> list[Place]:
    """Places of work that threads of the calling process do as well as workers."""
    if r.cluster_is_running:
        return [r.on_workers()]
    here = r.in_caller("serial" if problem.wants_tiles else "memory", r.local_threads)
    buffers = r.local_threads * THREAD_BUFFER_BYTES
    caller = replace(here, baseline_bytes=here.baseline_bytes + buffers)
    return [caller] if r.confined else [caller, r.on_workers()]


def _precisions(settings: ConjugateGradient) -> tuple[Precision, ...]:
    return {"auto": ("float64", "float32"), "mixed": ("float32",), "float64": ("float64",)}[settings.precision]  # type: ignore[return-value]


def _ranks(problem: Problem, settings: ConjugateGradient) -> list[int]:
    if settings.preconditioner is None or isinstance(settings.preconditioner, Float32Cholesky):
        return [0]
    if settings.rank is not None:
        return [min(settings.rank, problem.n)]
    return [r for r in RANKS if r <= problem.n // 4] or [max(1, problem.n // 4)]


def cg_tile(problem: Problem, place_limit: int, slots: int) -> int:
    """Tiles as large as the kernel's temporaries allow, and enough of them that every place has as much to do."""
    n = problem.n
    wanted = problem.tile if problem.layout is None else problem.layout.tile
    if wanted is not None:
        return min(wanted, n)
    n_tiles = max(ceil(n / LARGEST_TILE), min(ceil(n / LEAST_TILE), 5 + ceil(2 * sqrt(slots))))
    tile = ceil(n / n_tiles)

    def temporaries(tile: int) -> int:
        return problem.kernel.pieces_bytes(tile, tile, problem.d, problem.csr_bytes(tile))

    fixed, most = temporaries(1), place_limit // WORKSPACE_PART
    while tile > LEAST_TILE and temporaries(tile) - fixed > most:
        tile = max(LEAST_TILE, ceil(tile / 2))
    return tile


def _dual(
    problem: Problem,
    resources: Resources,
    settings: ConjugateGradient,
    place: Place,
    precision: Precision,
    rank: int,
    part: float,
) -> Candidate:
    p, rates, m = problem, resources.rates, n_columns(problem)
    itemsize = 4 if precision == "float32" else 8
    held = p.x_in_memory and place.execution == "memory"
    tile, keeps_rows = _tile_and_rows(p, place, rank, m)
    needed = _needed_bytes(p, place, rank, m, tile, keeps_rows=keeps_rows)
    n_tiles = ceil(p.n / tile)
    all_tiles = n_tiles * (n_tiles + 1) // 2
    free = max(0, place.usable_bytes - needed)
    kept = min(ceil(all_tiles / place.slots), int(part * free / (itemsize * tile**2 * place.threads)))
    peak = needed + place.threads * kept * itemsize * tile**2
    limit = rank if settings.rank is not None or rank == 0 else _largest_rank(p, place, rank, place.usable_bytes - peak)
    peak += _factor_bytes(p, place, limit) - _factor_bytes(p, place, rank)
    kept_part = min(1.0, kept * place.slots / all_tiles)
    entries = float(p.n) ** 2 / 2
    iterations, cycles = _iterations_and_checks(p, rank, precision)
    entry = p.entry(rates, precision)
    one = rates.seconds(pass_cost(entry, entries, m, precision, kept_part)) / place.slots
    one += TILE_SECONDS * (1.0 - kept_part) * all_tiles / place.slots
    check = one
    if precision == "float32":
        check = rates.seconds(pass_cost(p.entry(rates), entries, m, "float64", 0.0)) / place.slots
    apply = APPLY_SECONDS * p.n * rank * m / place.slots
    trips = ROUND_TRIPS * rates.round_trip_seconds if place.execution == "dask" else 0.0
    # The first pass forms what is kept.
    first = rates.seconds(pass_cost(entry, entries, 1, precision, 0.0)) * kept_part / place.slots
    first += kept_part * entries * itemsize / rates.fresh_bytes / place.slots
    staged = p.stored_bytes if place.execution != "memory" and not p.x_is_shared else 0
    x_read = 0.0
    if not held:
        passes = 1 if keeps_rows else iterations + cycles
        x_read = passes * (p.stored_bytes * place.n_workers if keeps_rows else p.stored_bytes * (n_tiles + 1) / 2)
        x_read += checked_bytes(p) if place.execution != "memory" else 0
    checkpoint = 5 * 8 * p.n * m if p.keeps_store else 0
    # What processes keep is read once, and never from the cache again.
    reading = rates_of_rows(p, resources, place.n_workers, peak, on_workers=place.execution == "dask")
    return Candidate(
        form="dual",
        execution=place.execution,
        n_workers=place.n_workers,
        tile=tile,
        panel=tile,
        segment=0,
        row_parts=1,
        row_block=tile,
        seconds=place.start_seconds
        + 2 * staged / rates.write_bytes
        + x_read / reading.read_bytes / place.slots
        + factor_seconds(p, resources, place.slots, rank)
        + (p.n_steps - 1) * m * _middle_seconds(p, resources, place.slots, rank)
        + first
        + iterations * (one + apply + trips)
        + cycles * check,
        read_bytes=x_read,
        written_bytes=staged + checkpoint,
        disk_bytes=staged + 2 * checkpoint,
        peak_bytes=int(peak),
        limit_bytes=place.limit_bytes,
        solver="cg",
        iterations=iterations,
        rank=rank,
        rank_limit=limit,
        kept_tiles=kept,
        precision=precision,
        keeps_rows=keeps_rows,
        n_tiles=n_tiles,
        slots=place.slots,
    )


def _tile_and_rows(p: Problem, place: Place, rank: int, m: int) -> tuple[int, bool]:
    """Tile size, and whether every process keeps X; less of both where more would not fit.

    So the memory that is needed at least does not depend on the limit, and a limit that a refusal names is enough.
    """
    # X is here already, or read into memory here, or every process keeps it if it is small, or its tiles are read at
    # every pass.
    loads = not p.x_in_memory and place.execution == "memory"
    held = p.x_in_memory and place.execution == "memory"
    keeps_rows = loads or (not held and p.stored_bytes <= place.limit_bytes // ROWS_PART)
    tile, is_free = cg_tile(p, place.limit_bytes, place.slots), p.tile is None and p.layout is None

    def fits() -> bool:
        return _needed_bytes(p, place, rank, m, tile, keeps_rows=keeps_rows) <= place.usable_bytes

    while is_free and tile > LEAST_TILE and not fits():
        tile = max(LEAST_TILE, ceil(0.75 * tile))
    if not loads and not fits():
        keeps_rows = False
    return tile, keeps_rows


def _needed_bytes(p: Problem, place: Place, rank: int, m: int, tile: int, *, keeps_rows: bool) -> int:
    """Memory of a process without tiles that are kept."""
    needed = place.baseline_bytes + PROCESS_MARGIN_BYTES + (p.n * p.bytes_of_row if keeps_rows else 0)
    product = multiply_bytes(p.kernel, p.n, tile, p.d, p.bytes_of_part(tile), m, is_sparse=p.is_sparse)
    if p.is_sparse and rank:
        # Kernels of a process's rows with pivots, in blocks that may be higher than tiles.
        block = min(p.n, KERNEL_BLOCK)
        product = max(product, gram_workspace_bytes(p.kernel, block, p.bytes_of_part(block), p.d, p.csr_bytes(block)))
    needed += place.threads * (product + p.read_overhead_bytes)
    vectors = 12 if p.loss == "squared" else NEWTON_VECTORS
    needed += (4 if place.execution == "dask" else vectors) * 8 * p.n * m
    return needed + _factor_bytes(p, place, rank)


def _middle_seconds(problem: Problem, resources: Resources, slots: int, rank: int) -> float:
    """Time to make the small matrix of a factor that is there."""
    return (problem.n * rank**2 / slots + rank**3 / 3) / resources.rates.gemm_flops


def factor_seconds(problem: Problem, resources: Resources, slots: int, rank: int) -> float:
    """Time to make the preconditioner's factor and the small matrix that goes with it."""
    cost = pivoted_cost(problem.n, rank, problem.entry(resources.rates))
    return resources.rates.seconds(cost) / slots + rank**3 / resources.rates.gemm_flops


def _factor_bytes(problem: Problem, place: Place, rank: int) -> int:
    if rank == 0:
        return 0
    rows = place.threads * factor_rows_bytes(problem.n, rank, FACTOR_ITEMSIZE, place.slots)
    # The pivots' triangle, the small matrix and its sums: in the calling process, where that does the work.
    square = 8 * rank**2 * (3 * place.threads if place.execution == "dask" else place.threads + 2)
    if problem.loss == "logistic" and place.execution != "dask":
        square += 8 * rank**2 * problem.n_targets  # each column has a curvature of its own
    return rows + square + problem.bytes_of_any(rank)


def _largest_rank(problem: Problem, place: Place, rank: int, free: int) -> int:
    """Twice the rank that is expected to do, if the memory that is left allows it."""
    least, most = rank, min(problem.n, 2 * rank)
    while least < most:
        middle = (least + most + 1) // 2
        if _factor_bytes(problem, place, middle) - _factor_bytes(problem, place, rank) <= free:
            least = middle
        else:
            most = middle - 1
    return least


def primal_iterative(problem: Problem, resources: Resources) -> list[Candidate]:
    """Conjugate gradient on ΦᵀWΦ + λI, the rows streamed at every pass; a diagonal preconditioner."""
    p, rates = problem, resources.rates
    dimension, t = p.dimension or 0, p.n_targets * len(p.alphas)
    candidates = []
    for place in caller_and_workers(p, resources):
        sparse = p.is_sparse and p.feature_map is not None and p.feature_map.keeps_sparse
        block = row_block(p, 1 if sparse else dimension, 1 if sparse else dimension)
        entries = p.n * (p.bytes_of_row / 12 if sparse else float(dimension))
        iterations = primal_iterations_expected(p)
        one = entries * (STREAM_SECONDS * t + (0.0 if isinstance(p.feature_map, IdentityMap) else feature_seconds(p)))
        one /= place.slots
        held = p.x_in_memory and place.execution == "memory"
        staged = p.stored_bytes if place.execution != "memory" and not p.x_is_shared else 0
        # Besides the products: the check of X, moments, squares, the true residual, errors, and means for an intercept.
        x_read = 0.0 if held else float(iterations + 5 + (1 if p.fit_intercept else 0)) * p.stored_bytes
        width = p.most_bytes_of_row if sparse else 8 * dimension
        checkpoint = 5 * 8 * dimension * t if p.keeps_store else 0
        peak = (
            place.baseline_bytes
            + PROCESS_MARGIN_BYTES
            + place.threads
            * (
                block * (3 * width + p.most_bytes_of_row + TARGET_COPIES * 8 * t)
                + 6 * 8 * dimension * t
                + feature_bytes(p)
            )
            + p.read_overhead_bytes
            + (12 * 8 * dimension * t + p.y_bytes_to_come if place.execution != "dask" else 0)
        )
        mapped = mapped_target_cost(p, resources, place.n_workers, peak)
        # Targets are copied to a store and read twice, errors go there and back.
        copied = 0 if place.execution == "memory" else 2 * p.y_bytes
        reading = rates_of_rows(p, resources, place.n_workers, peak, on_workers=place.execution == "dask")
        candidates.append(
            Candidate(
                form="primal",
                execution=place.execution,
                n_workers=place.n_workers,
                tile=dimension,
                panel=dimension,
                segment=0,
                row_parts=1,
                row_block=block,
                seconds=place.start_seconds
                + 2 * staged / rates.write_bytes
                + iterations * one
                + mapped.seconds
                + copied / rates.write_bytes
                + 1.5 * copied / rates.read_bytes
                + x_read / reading.read_bytes / place.slots,
                read_bytes=x_read + mapped.read_bytes + 1.5 * copied,
                written_bytes=staged + checkpoint + copied + mapped.written_bytes,
                disk_bytes=staged + 2 * checkpoint + copied + mapped.disk_bytes,
                peak_bytes=peak,
                limit_bytes=place.limit_bytes,
                solver="cg",
                iterations=iterations,
                slots=place.slots,
            )
        )
    return candidates
