"""Size of the model that a fit makes, as `dkrr.save` writes it: arrays in whole chunks, without their descriptions."""

from dataclasses import replace
from math import prod

import numpy as np

from dkrr.errors import PlanError
from dkrr.kernels.map_descriptions import arrays_of
from dkrr.linalg.triangle import kept_shape
from dkrr.planning.plan import SIZES, Plan
from dkrr.planning.uncertainty import plan_uncertainty
from dkrr.store import ChunkedArray, TileGrid


def saved_bytes(plan: Plan) -> int:
    """Bytes of the arrays of a model without uncertainty."""
    p = plan.problem
    coefficients = [(p.dimension or 0, p.n_targets)] if plan.prediction == "primal" else []
    if plan.form == "dual" or (p.loss == "squared" and min(p.alphas) > 0):
        coefficients.append((p.n, p.n_targets))
    drawn = [array.shape for array in arrays_of(p.kernel).values()]
    of_rows = 0 if plan.prediction == "primal" or p.kernel.is_precomputed else _bytes_of_rows(plan)
    return of_rows + sum(map(_bytes_of, [*coefficients, (p.n_targets, 1), *drawn]))


def saved_bytes_with_uncertainty(plan: Plan) -> int | None:
    """Bytes of the arrays of a regression with uncertainty; None where there is none.

    The factors are counted that `dkrr.save` computes: for every λ, unless conjugate gradient takes their place.
    """
    p = plan.problem
    if p.loss != "squared":
        return None
    total = saved_bytes(plan) + _bytes_of((p.n, p.n_targets))
    total += 0 if p.n_counting is None else _bytes_of((p.n, 1))
    total += _bytes_of_rows(plan) if plan.prediction == "primal" or p.kernel.is_precomputed else 0
    alone = replace(p, form="dual", n_targets=1, keeps_store=False, layout=None)
    for alpha in p.alphas:
        if plan.has_primal_factor and alpha > 0:
            side = (p.dimension or 0) + (1 if p.fit_intercept else 0)
            total += _bytes_of((side, side)) + _bytes_of((side, p.n_targets // len(p.alphas)))
            continue
        try:
            found = plan_uncertainty(replace(alone, alphas=(alpha,)), plan.resources, 0)
        except PlanError:
            return None
        if found.method == "factor":
            tiling = found.plan.chosen.how.tiling
            total += _bytes_of(kept_shape(TileGrid(p.n, tiling.tile, tiling.panel))) + _bytes_of((p.n, 1))
    return total


def _bytes_of_rows(plan: Plan) -> int:
    p = plan.problem
    if p.is_sparse or p.x_bytes is None:
        return p.stored_bytes
    return _bytes_of((p.n, p.d), f"u{p.x_bytes // (p.n * p.d)}")


def _bytes_of(shape: tuple[int, ...], dtype: str = "f8") -> int:
    array = ChunkedArray.of_rows("", shape, np.dtype(dtype))
    return prod(array.grid) * array.chunk_bytes


SIZES |= {"model": saved_bytes, "with uncertainty": saved_bytes_with_uncertainty}
