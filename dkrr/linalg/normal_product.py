"""Products with ΦᵀWΦ, streamed over the rows: the primal form's matrix for conjugate gradient, never formed.

One product is two passes over each block of rows while it is in memory, u = W (Φ v − 1 φ̄ᵀv) and Φᵀu − φ̄ 1ᵀu, with φ̄
the weighted mean of the features where an intercept is free. Sparse rows stay sparse, so D may be in the millions.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dkrr.cluster import Executor, Meter, RunRecord, Task
from dkrr.cost import Work
from dkrr.data.rows import Block
from dkrr.features import FeatureMap, IdentityMap
from dkrr.linalg.operator import Operator, Precision
from dkrr.linalg.segments import RowWriter, Segment
from dkrr.store import ChunkedArray

Array = NDArray[np.float64]

SECONDS_PER_STREAMED_ENTRY = 1.2e-9
"""Time of both products of an entry of Φ with one vector."""


def stream_work(n_entries: float, m: int, entry_seconds: float) -> Work:
    """Work of both products of so many entries of Φ, each of which is formed in `entry_seconds`, with m vectors."""
    return Work(element_seconds=n_entries * (SECONDS_PER_STREAMED_ENTRY * m + entry_seconds))


def normal_product(
    meter: Meter, feature_map: FeatureMap, segment: Segment, centre: Array | None, vectors: Array
) -> Array:
    """Task: sum of a segment for (Φ − 1φ̄ᵀ)ᵀ W (Φ − 1φ̄ᵀ) V, of shape (D, m)."""
    total, weights = np.zeros(vectors.shape), segment.weight_rows()
    offset = None if centre is None else centre @ vectors
    for where, x in segment.blocks(meter):
        with meter.time("multiply"):
            u = feature_map.multiply(x, vectors)
            if offset is not None:
                u -= offset
            _add_adjoint(total, feature_map, x, centre, u, None if weights is None else weights[where])
    return total


def normal_moments(
    meter: Meter, feature_map: FeatureMap, segment: Segment, centre: Array | None, coef: Array | None
) -> Array:
    """Task: sum of a segment for (Φ − 1φ̄ᵀ)ᵀ W (Y − (Φ − 1φ̄ᵀ) w), of shape (D, t); w None means 0."""
    total: Array | None = None
    targets, weights = segment.target_rows(), segment.weight_rows()
    for where, x in segment.blocks(meter):
        with meter.time("multiply"):
            u = np.array(targets[where])
            if coef is not None:
                u -= feature_map.multiply(x, coef)
                if centre is not None:
                    u += centre @ coef
            if total is None:
                total = np.zeros((feature_map.dimension(x.shape[1]), u.shape[1]))
            _add_adjoint(total, feature_map, x, centre, u, None if weights is None else weights[where])
    assert total is not None
    return total


def weighted_sums(meter: Meter, feature_map: FeatureMap, segment: Segment, _: None) -> Array:
    """Task: Σ wᵢ φ(xᵢ) over a segment, of shape (D, 1); no array is dense where the rows are sparse."""
    total: Array | float = 0.0
    weights = segment.weight_rows()
    for where, x in segment.blocks(meter):
        with meter.time("multiply"):
            w = np.ones((x.shape[0], 1)) if weights is None else weights[where]
            total = total + feature_map.adjoint(x, w)
    return np.asarray(total)


def weighted_squares(meter: Meter, feature_map: FeatureMap, segment: Segment, _: None) -> Array:
    """Task: Σ wᵢ φ(xᵢ)² over a segment, of shape (D, 1)."""
    total: Array | float = 0.0
    weights = segment.weight_rows()
    for where, x in segment.blocks(meter):
        with meter.time("multiply"):
            w = np.ones((x.shape[0], 1)) if weights is None else weights[where]
            if segment.rows.is_sparse and isinstance(feature_map, IdentityMap):
                # In float64: squares of small integers do not fit in their own type.
                total = total + x.astype(np.float64, copy=False).power(2).T @ w
            else:
                phi = feature_map.transform(x)
                total = total + np.einsum("ij,ij,ik->jk", phi, phi, w)
    return np.asarray(total)


def training_errors(
    meter: Meter,
    feature_map: FeatureMap,
    segment: Segment,
    centre: Array | None,
    errors: Array | ChunkedArray,
    coef: Array,
) -> None:
    """Task: write Y − (Φ − 1φ̄ᵀ) w over a segment to its rows of `errors`, of shape (n, t)."""
    out, targets = RowWriter(errors, segment, meter), segment.target_rows()
    offset = None if centre is None else centre @ coef
    for where, x in segment.blocks(meter):
        with meter.time("multiply"):
            u = np.array(targets[where])
            u -= feature_map.multiply(x, coef)
            if offset is not None:
                u += offset
        out.write(where, u)


def _add_adjoint(
    total: Array, feature_map: FeatureMap, x: Block, centre: Array | None, u: Array, weights: Array | None
) -> None:
    if weights is not None:
        u *= weights
    total += feature_map.adjoint(x, u)
    if centre is not None:
        total -= centre[:, None] * u.sum(axis=0)


@dataclass
class NormalOperator(Operator):
    """Product with (Φ − 1φ̄ᵀ)ᵀ W (Φ − 1φ̄ᵀ).

    Parameters
    ----------
    feature_map : FeatureMap
    segments : tuple of Segment
        One task each.
    executor : Executor
    n : int
        D.
    centre : ndarray of shape (D,), optional
        φ̄.
    """

    feature_map: FeatureMap
    segments: tuple[Segment, ...]
    executor: Executor
    n: int
    centre: Array | None = None
    on_pass: Callable[[], None] = lambda: None
    record: RunRecord = field(default_factory=RunRecord)

    def multiply(
        self,
        vectors: Array,
        precision: Precision = "float64",  # noqa: ARG002
        columns: NDArray[np.intp] | None = None,  # noqa: ARG002
    ) -> Array:
        """See base class; always in float64."""
        tasks = [
            Task(f"normal-{k}", normal_product, (self.feature_map, s, self.centre)) for k, s in enumerate(self.segments)
        ]
        total, record = self.executor.total(tasks, np.ascontiguousarray(vectors))
        self.record.add(record)
        self.on_pass()
        return total  # type: ignore[no-any-return]
