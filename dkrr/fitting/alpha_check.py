"""Whether λ should be searched again, as rows enter a factor that an earlier fit has left.

Before they do, the earlier rows are solved for λ/3 and 3λ with that factor, and the squared errors of the new rows are
compared in pairs. Nothing is changed; what is found is a message of the result.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dkrr.fitting.context import Context
from dkrr.fitting.costs.alpha_check_costs import ALPHA_CHECK
from dkrr.fitting.data import TrainingData
from dkrr.fitting.gram import GramMatrix
from dkrr.fitting.kept import Kept
from dkrr.linalg.factor import Factor, LocalFactor, MemoryFactor, ScaledFactor, SharedFactor
from dkrr.linalg.float32_tiles import rounding_scale
from dkrr.linalg.nearby_alphas import FACTORS, MAX_ROWS, MIN_ROWS, SIGNIFICANCE, paired_t, solutions_nearby
from dkrr.planning import Plan

Array = NDArray[np.float64]

NOTE = "alpha-check"
"""Note of the messages in the store of a run, for later calls of it, and group of vectors, deleted after each use."""
NAMES = ("alpha/3", "3 alpha")


def growth_messages(data: TrainingData, matrix: GramMatrix, plan: Plan, context: Context) -> tuple[str, ...]:
    """Messages of a fit about other λ, to be asked for before what is kept of earlier rows grows.

    They name values that predict the new rows better, of every λ of the data. Without rows that grow now they are those
    of the call of this run with which they grew. A plan without the stage has no test: see `with_alpha_check`.

    Parameters
    ----------
    data : TrainingData
        The earlier rows, and the new ones.
    matrix : GramMatrix
        K of all rows.
    plan : Plan
    context : Context
    """
    storage = context.storage
    if context.kept is None:
        return tuple(map(str, storage.note(NOTE) or ())) if storage.keeps else ()
    if all(stage.name != ALPHA_CHECK for stage in plan.chosen.stages):
        return ()
    found = alpha_messages(data, context.kept, matrix, context)
    if found and storage.keeps:
        storage.set_note(NOTE, list(found))
    return found


def alpha_messages(data: TrainingData, kept: Kept, matrix: GramMatrix, context: Context) -> tuple[str, ...]:
    """Messages that name values of λ which predict the new rows better, for every λ of the data.

    Empty with fewer than MIN_ROWS new rows of positive weight, and with rows that are left out.
    """
    new = np.arange(kept.n, data.n)
    if data.weights is not None:
        new = new[data.weights[new] > 0]
    if len(new) < MIN_ROWS or kept.scale is not None or len(kept.left_out):
        return ()
    new = new[np.linspace(0, len(new) - 1, min(len(new), MAX_ROWS)).astype(int)]
    found = list[str]()
    with context.progress.stage(ALPHA_CHECK, 1.0):
        groups = data.alpha_groups()
        for number, (alpha, columns) in enumerate(groups):
            factor = _factor(kept, number, alpha, data, matrix, context) if alpha > 0 else None
            scores = None if factor is None else _scores(data, kept.n, new, alpha, columns, factor, matrix)
            of = f" of {alpha:g}" if len(groups) > 1 else ""
            for name, t in zip(NAMES, scores or (), strict=False):
                if t < SIGNIFICANCE:
                    found.append(
                        f"search again: {name}{of} predicts the new rows better (t = {t:.1f} over {len(new):,} rows)"
                    )
    for text in found:
        context.progress.note(text)
    return tuple(found)


def _factor(
    kept: Kept, number: int, alpha: float, data: TrainingData, matrix: GramMatrix, context: Context
) -> Factor | None:
    """Factor of the earlier rows for one λ; None where there is none."""
    found, scale = kept.factor(f"system-{number}"), None
    if found is None:
        found = kept.factor(f"factored-{number}")
        if found is None:
            return None
        scale = rounding_scale(matrix.scaled_diagonal + data.dual_shift(alpha))
    if context.in_memory:
        factor: Factor = MemoryFactor(found) if scale is None else LocalFactor(found, context.threads)
    elif context.cluster_is_running:
        factor = SharedFactor(found, context.executor, context.stored.store, NOTE, context.slots, context.record)
    else:
        factor = LocalFactor(found, context.threads, context.record)
    return factor if scale is None else ScaledFactor(factor, scale.reshape(-1, 1)[: kept.n])


def _scores(
    data: TrainingData,
    n: int,
    new: NDArray[np.intp],
    alpha: float,
    columns: NDArray[np.intp],
    factor: Factor,
    matrix: GramMatrix,
) -> tuple[float, ...] | None:
    """Student's t of the errors with the multiples of λ; None where a system is not positive definite."""
    weights = np.ones(data.n) if data.weights is None else data.weights
    old = replace(data, targets=data.targets[:n], weights=weights[:n])
    means = old.target_means()
    sides = old.dual_right_sides(columns, means)
    nearby = solutions_nearby(factor.solve, sides, alpha * (np.array(FACTORS) - 1.0))
    if nearby is None:
        return None
    own, others = nearby
    coefs, constants = zip(*(old.dual_coefficients(beta) for beta in (own, *others)), strict=True)
    t = len(columns)
    coef = np.zeros((data.n, t * len(coefs)))
    coef[:n] = np.hstack(coefs)
    predicted = matrix.products_of(new, coef).reshape(len(new), len(coefs), t)
    predicted += np.array([one.sum(axis=0) for one in constants]) + means[columns]
    wanted = data.targets[np.ix_(new, columns)]
    size = np.maximum(wanted.var(axis=0), np.finfo(float).tiny)
    errors = (((wanted[:, None, :] - predicted) ** 2) / size).sum(axis=2)
    return tuple(paired_t(errors[:, 0], errors[:, k], weights[new]) for k in range(1, len(coefs)))
