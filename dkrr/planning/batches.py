"""Many targets in the dual form: solved for a batch at a time, so that only one batch is ever in memory.

The targets are where the user has them, or in a mapped file; the dual coefficients are in another. Both count as disk.
"""

from dataclasses import replace
from math import ceil

from dkrr.cost import Cost, Stage
from dkrr.linalg.sources import gram_cost
from dkrr.planning.inputs import cache_bytes
from dkrr.planning.problem import Problem
from dkrr.planning.resources import Resources, cold_fraction
from dkrr.planning.strategy import Reason, Strategy, plural

WHOLE_BYTES = 64 * 2**20
"""Right-hand sides up to this size are solved for at once."""
BATCH_VECTORS = 14
"""Arrays of the size of a batch that the calling process holds at most."""
BATCH_FRACTION = 1 / 3
"""Fraction of the memory limit that they may take."""
MIN_BATCH = 64
"""Targets below which products take as long as with so many."""
COPIES = 2
"""Arrays of the size of a batch besides those of one fit of so many targets: its targets, and its coefficients."""
ONCE = {
    "starting workers",
    "checking X",
    "copying X",
    "reading X",
    "checking symmetry",
    "Gram matrix",
    "factorisation",
    "preconditioner",
}
"""Stages that all batches share."""


def batch_of(p: Problem, resources: Resources) -> int:
    """Most targets that are solved for at once in the dual form; 0: all."""
    if p.loss != "squared" or p.n_folds > 1:
        return 0
    if p.layout is not None:
        return p.layout.batch
    column = 8 * p.n
    if column * p.n_targets <= WHOLE_BYTES:
        return 0
    limit = resources.local_limit_bytes
    if not resources.confined:
        limit = min(limit, resources.worker_limit_bytes * resources.n_workers)
    most = max(
        MIN_BATCH, WHOLE_BYTES // (BATCH_VECTORS * column), int(BATCH_FRACTION * limit / (BATCH_VECTORS * column))
    )
    if most >= p.n_targets:
        return 0
    return ceil(p.n_targets / ceil(p.n_targets / most))


def n_batches(p: Problem) -> int:
    """Number of batches, where targets have one value of λ."""
    return ceil(p.n_targets / p.batch) if p.batch else 1


def of_one_batch(p: Problem) -> Problem:
    """Problem of one batch, whose price is that of all but the stages that are repeated."""
    return replace(p, n_targets=p.batch) if p.batch else p


def in_batches(one: Strategy, p: Problem, resources: Resources) -> Strategy:
    """Strategy for all batches, from the one that is priced for one of them."""
    if not p.batch:
        return one
    place, count, batch_bytes = one.place, n_batches(p), 8 * p.n * p.batch
    # Of a client's workers the calling process is another machine, or has its own share.
    more = COPIES * batch_bytes
    if place.execution == "dask":
        more = 0 if resources.cluster_is_running else BATCH_VECTORS * batch_bytes // place.n_workers
    stages = []
    for s in one.stages:
        repeated = s if s.name in ONCE else s.times(count, s.peak_bytes)
        if s.name == "true residual" and one.is_whole:
            repeated = repeated.plus(_further_seconds(p, resources, count - 1))
        stages.append(replace(repeated, peak_bytes=s.peak_bytes + more if s.peak_bytes else 0))
    cold = cold_fraction(2 * p.y_bytes, cache_bytes(resources, place, one.peak_bytes + more))
    rates = resources.rates_of_disk.reading(cold)
    read = 3.0 * p.y_bytes  # for the ranges of the targets, for the batches, and the coefficients for their norms
    written = p.y_bytes * (2 if p.keeps_store else 1)
    stages.append(Stage("targets", read / rates.read_bytes + written / rates.write_bytes, read, written, written))
    return replace(one, stages=tuple(stages))


def _further_seconds(p: Problem, resources: Resources, count: int) -> float:
    """Time of the substitutions and checks of further batches with a factor in memory; each check forms K again."""
    again = gram_cost(p.entry(resources.rates), p.n**2 / 2) + Cost(gemm_flops=4.0 * p.n**2 * (p.batch + 2))
    return count * resources.rates.seconds(again) / resources.local_threads


def batch_reason(p: Problem) -> Reason:
    """What a plan says of its batches."""
    return Reason(
        "batches-of-targets",
        f"{plural(p.n_targets, 'target')} in {plural(n_batches(p), 'batch', 'es')} of up to {p.batch:,}, since all at "
        f"once would not leave enough memory; the dual coefficients are in a mapped file",
    )
