"""Many targets in the dual form: solved for a batch at a time, so that only one batch is ever in memory.

The targets are where the user has them, or in a mapped file; the dual coefficients are in another. Both count as disk.
"""

from dataclasses import replace
from math import ceil

from dkrr.planning.problem import Problem
from dkrr.planning.resources import Resources
from dkrr.planning.work import BATCH_VECTORS
from dkrr.text import Reason, plural

WHOLE_BYTES = 64 * 2**20
"""Right-hand sides up to this size are solved for at once."""
BATCH_FRACTION = 1 / 3
"""Fraction of the memory limit that they may take."""
MIN_BATCH = 64
"""Number of targets up to which products take the same time."""


def batch_of(p: Problem, resources: Resources) -> int:
    """Most targets, of more than WHOLE_BYTES, that are solved for at once in the dual form; 0: all."""
    if p.loss != "squared" or p.n_folds > 1:
        return 0
    if p.layout is not None:
        return p.layout.batch
    column = 8 * p.n
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


def batch_reason(p: Problem) -> Reason:
    """Reason of a plan that states its batches of targets."""
    return Reason(
        "batches-of-targets",
        f"{plural(p.n_targets, 'target')} in {plural(n_batches(p), 'batch', 'es')} of up to {p.batch:,}, since all at "
        f"once would not leave enough memory; the dual coefficients are in a mapped file",
    )
