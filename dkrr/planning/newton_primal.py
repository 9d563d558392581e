"""Price of Newton's method with streamed rows: the curvature as a matrix, or products with it."""

from collections.abc import Iterator

from dkrr.cost import Stage
from dkrr.errors import PlanError
from dkrr.linalg.likelihood import SECONDS_PER_SCORE
from dkrr.linalg.memory import memory_cost
from dkrr.planning.direct import Direct
from dkrr.planning.inputs import (
    feature_bytes,
    is_held,
    reading_seconds,
    rows_at_once,
    sharing_stages,
    stream_seconds,
    streamed_entries,
)
from dkrr.planning.iteration import Iterative
from dkrr.planning.iteration_primal import primal_iterations_expected
from dkrr.planning.problem import Problem
from dkrr.planning.products import RowPasses
from dkrr.planning.resources import PROCESS_MARGIN_BYTES, Place, Resources
from dkrr.planning.strategy import Tiling
from dkrr.solvers import Cholesky
from dkrr.solvers.dual_objective import VECTORS_HELD
from dkrr.solvers.newton import CURVATURE_SHIFT, INNER_TOL
from dkrr.solvers.primal_objective import MAX_MATRIX_SIDE
from dkrr.store import TileGrid


def direct(p: Problem, resources: Resources) -> Iterator[tuple[Direct, list[Stage]]]:
    """Streaming passes, with the curvature as a matrix in the memory of the calling process."""
    side = (p.side("primal") + 1) * (p.n_targets if p.is_coupled else 1)
    if side <= MAX_MATRIX_SIDE:
        for place in resources.caller_and_workers(wants_tiles=p.wants_tiles):
            yield _direct(p, resources, place)
    elif isinstance(p.solver, Cholesky) and p.form == "primal":
        raise PlanError(
            f"solver='cholesky' in primal form holds a matrix of {side:,} rows; expected at most {MAX_MATRIX_SIDE:,}: "
            f"use solver='cg', or form='dual'. Nothing was computed"
        )


def by_iteration(p: Problem, resources: Resources) -> Iterator[tuple[Iterative, list[Stage]]]:
    """Streaming passes for every product."""
    for place in resources.caller_and_workers(wants_tiles=p.wants_tiles):
        yield _by_iteration(p, resources, place)


def instead_of_factors(p: Problem, resources: Resources) -> Iterator[tuple[Iterative, list[Stage]]]:
    """Streaming passes where factors of K in float32 were requested, which the primal form does not have."""
    if p.settings is not None:
        yield from by_iteration(p, resources)


def _direct(p: Problem, r: Resources, place: Place) -> tuple[Direct, list[Stage]]:
    dimension, m = _dimension(p), p.n_targets
    block = rows_at_once(p, dimension)
    matrices = 8 * dimension**2 * m * (m if p.is_coupled else 1)
    pairs = m * (m + 1) / 2 if p.is_coupled else m
    products = 2.0 * pairs * p.n * float(dimension) ** 2 / r.rates.gemm_flops
    systems, side = (1, dimension * m) if p.is_coupled else (m, dimension)
    solve = r.rates.seconds(memory_cost(TileGrid(side, side, side), 1, systems, keeps=False), r.local_threads)
    roots = block * 8 * dimension * m if p.is_coupled else 0
    passes = p.n_steps + 1
    inner = Direct(
        form="primal",
        place=place,
        stages=(
            *sharing_stages(p, place, r.rates),
            Stage("factorisation", passes * solve),
        ),
        tiling=Tiling(dimension, dimension),
        row_parts=_n_segments(p, block, place.slots),
        row_block=block,
    )
    peak = _peak_bytes(p, place, block, 8 * dimension * block, roots, matrices)
    likelihood, steps = _pass_stages(p, r, place, p.n * float(dimension), passes, peak)
    return inner, [likelihood.plus(passes * products / place.slots), steps]


def _by_iteration(p: Problem, r: Resources, place: Place) -> tuple[Iterative, list[Stage]]:
    dimension, m, passes = _dimension(p), p.n_targets, p.n_steps + 1
    entries = streamed_entries(p, dimension)
    block = rows_at_once(p, 1 if p.streams_sparse else dimension)
    iterations = primal_iterations_expected(p, CURVATURE_SHIFT[p.is_coupled] * min(p.alphas), INNER_TOL)
    one = 1.5 * stream_seconds(p, entries, m) + p.n * m * SECONDS_PER_SCORE
    inner = Iterative(
        form="primal",
        place=place,
        stages=(
            *sharing_stages(p, place, r.rates),
            Stage("conjugate gradient", passes * iterations * one / place.slots),
        ),
        products=RowPasses(dimension, block, _n_segments(p, block, 2 * place.slots)),
        iterations=p.n_steps * max(1, iterations),
    )
    features = p.bytes_of_block(block) if p.streams_sparse else 8 * dimension * block
    peak = _peak_bytes(p, place, block, features, 0, 8 * dimension * m)
    return inner, _pass_stages(p, r, place, entries, passes * (1 + iterations), peak)


def _dimension(p: Problem) -> int:
    """Features, and the constant of a free intercept."""
    return p.side("primal") + (1 if p.fit_intercept else 0)


def _n_segments(p: Problem, block: int, most: int) -> int:
    """Segments of the rows: at most so many, and a block at least in each."""
    return max(1, p.layout.row_parts if p.layout else min(-(-p.n // block), most))


def _pass_stages(p: Problem, r: Resources, place: Place, entries: float, reads: int, peak_bytes: int) -> list[Stage]:
    """Scores and likelihood of all rows, reading X as often as anything needs it, and steps with their checkpoints."""
    evaluations = p.n_steps + 1
    x_read = 0.0 if is_held(p, place) else float(reads + 1) * p.stored_bytes
    checkpoint = 8 * _dimension(p) * p.n_targets if p.keeps_store else 0
    scored = stream_seconds(p, entries, p.n_targets) + p.n * p.n_targets * SECONDS_PER_SCORE
    seconds = evaluations * scored / place.slots + x_read * reading_seconds(p, r, place, peak_bytes)
    kept = 2 * checkpoint + (0 if place.is_memory else 16 * p.n)
    return [
        Stage("likelihood", seconds, x_read),
        Stage("Newton steps", 0.0, 0.0, p.n_steps * checkpoint, kept, peak_bytes),
    ]


def _peak_bytes(p: Problem, place: Place, block: int, features: int, roots: int, matrices: int) -> int:
    """Memory of a process that streams rows in blocks of so many rows, whose features take so many bytes."""
    m = p.n_targets
    rows = 4 * features + 2 * p.bytes_of_block(block) + block * 12 * 8 * m + feature_bytes(p) + p.read_overhead_bytes
    peak = place.baseline_bytes + PROCESS_MARGIN_BYTES + place.threads * (rows + roots + 2 * matrices)
    here = 4 * matrices + VECTORS_HELD * 8 * _dimension(p) * m + 4 * 8 * p.n
    return peak + (0 if place.execution == "dask" else here)
