"""Price of conjugate gradient with the normal matrix ΦᵀWΦ, whose rows are streamed at every pass."""

from dkrr.cost import Stage
from dkrr.linalg.normal import TARGET_COPIES
from dkrr.planning.inputs import (
    feature_bytes,
    is_held,
    mapped_target_stage,
    reading_seconds,
    rows_at_once,
    sharing_stages,
    stream_seconds,
    streamed_entries,
)
from dkrr.planning.iteration_dual import iterations_expected
from dkrr.planning.problem import TYPICAL_CONDITION, Problem
from dkrr.planning.products import RowPasses
from dkrr.planning.resources import PROCESS_MARGIN_BYTES, Place, Resources
from dkrr.planning.strategy import Systems


def primal_iterations_expected(p: Problem, shift: float, tol: float) -> int:
    """Iterations for a system, with the diagonal of ΦᵀWΦ as preconditioner."""
    largest = TYPICAL_CONDITION * shift if shift > 0 else TYPICAL_CONDITION
    found = iterations_expected(min(largest, p.n * p.spectrum.largest), shift, tol)
    return min(found, (p.dimension or 1) + 1)


def row_passes(p: Problem) -> RowPasses:
    """Products with as many rows in memory at once as a block may hold."""
    dimension = p.side("primal")
    return RowPasses(dimension, rows_at_once(p, 1 if p.streams_sparse else dimension))


def stages(
    p: Problem, systems: Systems, resources: Resources, place: Place, products: RowPasses, iterations: int
) -> tuple[Stage, ...]:
    """Stages of so many iterations."""
    rates, t = resources.rates, p.n_targets * systems.n_factors
    peak = _peak_bytes(p, place, products, t)
    # Besides the products: the check of X, moments, squares, the true residual, errors, and means for an intercept.
    passes = iterations + 5 + (1 if p.fit_intercept else 0)
    x_read = 0.0 if is_held(p, place) else float(passes) * p.stored_bytes
    seconds = iterations * stream_seconds(p, streamed_entries(p, products.tile), t) / place.slots
    seconds += x_read * reading_seconds(p, resources, place, peak)
    checkpoint = 5 * 8 * products.tile * t if p.keeps_store else 0
    # Targets are copied to a store and read twice, errors are written there and read.
    copied = 0 if place.is_memory else 2 * p.y_bytes
    moved = copied / rates.write_bytes + 1.5 * copied / rates.read_bytes
    start, _, copy = sharing_stages(p, place, rates)
    return (
        start,
        Stage("checking X", 0.0),  # a pass, which is among those of the iterations
        copy,
        mapped_target_stage(p, resources, place, peak).plus(moved, 1.5 * copied, copied, copied),
        Stage("conjugate gradient", seconds, x_read, checkpoint, 2 * checkpoint, peak),
    )


def _peak_bytes(p: Problem, place: Place, products: RowPasses, t: int) -> int:
    """Memory of a process that streams rows in blocks, for t vectors."""
    dimension, block = products.tile, products.row_block
    read = p.bytes_of_block(block)
    rows = 3 * (read if p.streams_sparse else 8 * dimension * block) + read + block * TARGET_COPIES * 8 * t
    peak = place.baseline_bytes + PROCESS_MARGIN_BYTES
    peak += place.threads * (rows + 6 * 8 * dimension * t + feature_bytes(p)) + p.read_overhead_bytes
    return peak + (0 if place.execution == "dask" else 12 * 8 * dimension * t + p.y_bytes_to_come)
