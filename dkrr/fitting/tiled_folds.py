"""Errors of rows that a fit leaves out, fold by fold, where L⁻¹ of a fold does not fit in memory or L is in a store.

X = L⁻¹E_F is solved for as right-hand sides of a substitution in tiles, whose solution lies in a store, by the executor
of a run. So the factor is read about once for each fold, or for small folds together, and memory holds a few tile rows
of X and the block XᵀX of the fold, not X. What the solutions without the folds take is L⁻ᵀ(X e_F), in one sweep over
the factor for all of them.

The errors of finished folds stay in the store of the run, and so do the tile rows of X of the one that is computed: a
run that is killed resumes there.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from dkrr.cluster import Progress, ThreadExecutor
from dkrr.fitting.context import Context
from dkrr.fitting.fold_models import name_of
from dkrr.fitting.storage import StoredArrays, TemporaryFolder
from dkrr.linalg.held_out import HeldOutErrors, StoredInverse, batches, stored_flops
from dkrr.store import RunStore, TileGrid

Array = NDArray[np.float64]
Numbers = NDArray[np.intp]

STAGE = "held-out models"


@dataclass(frozen=True)
class FoldErrors:
    """Held-out errors of a fold, and their forward substitution: they determine the model without the fold."""

    errors: Array
    """Scaled errors e_F of its rows, of shape (len(fold), t)."""
    forward: Array
    """L⁻¹E_F e_F, of shape (n, t)."""


@contextmanager
def stored_context(context: Context | None, threads: int, progress: Progress) -> Iterator[Context]:
    """The context of a run with a store, or one of threads with a temporary store, which is deleted at the end."""
    if context is not None and not context.in_memory:
        yield context
        return
    temporary = TemporaryFolder()
    try:
        store = RunStore(f"{temporary.path}/run.zarr")
        store.open()
        with ThreadExecutor(threads) as executor:
            yield Context(StoredArrays(store, keeps=False), executor, progress, slots=threads, threads=threads)
    finally:
        temporary.delete()


def errors_in_tiles(
    left_out: HeldOutErrors, folds: Sequence[Numbers], context: Context, group: str
) -> list[FoldErrors]:
    """Errors of every fold, whose rows are in ascending order, in the order of the folds.

    Parameters
    ----------
    left_out : HeldOutErrors
        Held-out errors by a factor that all workers of the executor read.
    folds : sequence of ndarray of intp
    context : Context
        With a store.
    group : str
        Beginning of the names of its groups there.
    """
    group = f"{group}-{name_of(folds)[:16]}"
    found, together = list[FoldErrors](), list(batches(folds))
    flops = [stored_flops(left_out.factor.grid, np.sort(np.concatenate(some))) for some in together]
    with context.progress.stage(STAGE, sum(flops)):
        for k, some in enumerate(together):
            found += _errors_of(left_out, some, context, f"{group}-{k}", flops[k])
    return found


def _errors_of(
    left_out: HeldOutErrors, folds: Sequence[Numbers], context: Context, group: str, flops: float
) -> list[FoldErrors]:
    """Errors of some folds together, which an earlier run may have found."""
    t, grid, stored, ends = left_out.right_sides.shape[1], left_out.factor.grid, context.stored, _ends(folds)
    errors = stored.vectors(group, "errors", TileGrid(ends[-1], ends[-1], ends[-1]), t)
    forward = stored.vectors(group, "forward", grid, t * len(folds))
    if errors.is_complete and forward.is_complete:
        context.progress.advance(flops)
    else:
        inverse = StoredInverse.of(left_out.factor, np.concatenate(folds), partial(stored.vectors, f"{group}/inverse"))
        tasks = inverse.tasks()
        context.progress.advance(flops - sum(task.flops for task in tasks))  # of a run that was killed
        context.add(context.executor.run(tasks, context.progress))
        solved = left_out.of_stored_folds(folds, inverse)
        scattered = np.zeros((ends[-1], t * len(folds)))
        for f, (one, stop) in enumerate(zip(solved, ends, strict=True)):
            scattered[stop - len(one) : stop, f * t : (f + 1) * t] = one
        forward.complete(inverse.times(scattered))
        errors.complete(np.vstack(solved))
        stored.delete(f"{group}/inverse")
    parts = zip(np.split(errors.load(), ends[:-1]), np.split(forward.load(), len(folds), axis=1), strict=True)
    return [FoldErrors(*part) for part in parts]


def _ends(folds: Sequence[Numbers]) -> list[int]:
    """Number of rows of the first fold, of the first two, and so on."""
    return [int(k) for k in np.cumsum([len(rows) for rows in folds])]
