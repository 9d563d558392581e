"""Products with ΦᵀWΦ, streamed over the rows: the primal form's matrix for conjugate gradient, never formed.

One product is two passes over each block of rows while it is in memory, u = W (Φ v − 1 φ̄ᵀv) and Φᵀu − φ̄ 1ᵀu, with φ̄
the weighted mean of the features where an intercept is free. Sparse rows stay sparse, so D may be in the millions.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dkrr.features import FeatureMap, IdentityMap
from dkrr.linalg.normal import RowWriter, Segment
from dkrr.linalg.operator import Operator, Precision
from dkrr.linalg.preconditioner import Preconditioner
from dkrr.linalg.sources import read_range
from dkrr.rows.sources import Block, n_bytes
from dkrr.runtime import Executor, Meter, RunRecord, Task
from dkrr.tiles import ChunkedArray

Array = NDArray[np.float64]

SECONDS_PER_STREAMED_ENTRY = 1.2e-9
"""For both products of an entry of Φ with one vector."""


def normal_product(
    meter: Meter, feature_map: FeatureMap, segment: Segment, centre: Array | None, vectors: Array
) -> Array:
    """Task: a segment's part of (Φ − 1φ̄ᵀ)ᵀ W (Φ − 1φ̄ᵀ) V, of shape (D, m)."""
    total = np.zeros(vectors.shape)
    offset = None if centre is None else centre @ vectors
    for where in segment:
        x = _read(meter, segment, where)
        with meter.time("multiply"):
            u = feature_map.multiply(x, vectors)
            if offset is not None:
                u -= offset
            _add_adjoint(total, feature_map, segment, where, x, centre, u)
    return total


def normal_moments(
    meter: Meter, feature_map: FeatureMap, segment: Segment, centre: Array | None, coef: Array | None
) -> Array:
    """Task: a segment's part of (Φ − 1φ̄ᵀ)ᵀ W (Y − (Φ − 1φ̄ᵀ) w), of shape (D, t); w None means 0."""
    total: Array | None = None
    for where in segment:
        x = _read(meter, segment, where)
        with meter.time("multiply"):
            u = np.array(_range(segment.targets, where))
            if segment.means is not None:
                u -= segment.means
            if coef is not None:
                u -= feature_map.multiply(x, coef)
                if centre is not None:
                    u += centre @ coef
            if total is None:
                total = np.zeros((feature_map.dimension(x.shape[1]), u.shape[1]))
            _add_adjoint(total, feature_map, segment, where, x, centre, u)
    assert total is not None
    return total


def weighted_sums(meter: Meter, feature_map: FeatureMap, segment: Segment, _: None) -> Array:
    """Task: Σ wᵢ φ(xᵢ) over a segment, of shape (D, 1), and nothing dense where the rows are sparse."""
    total: Array | float = 0.0
    for where in segment:
        x = _read(meter, segment, where)
        with meter.time("multiply"):
            w = np.ones((x.shape[0], 1)) if segment.weights is None else _range(segment.weights, where)
            total = total + feature_map.adjoint(x, w)
    return np.asarray(total)


def weighted_squares(meter: Meter, feature_map: FeatureMap, segment: Segment, _: None) -> Array:
    """Task: Σ wᵢ φ(xᵢ)² over a segment, of shape (D, 1)."""
    total: Array | float = 0.0
    for where in segment:
        x = _read(meter, segment, where)
        with meter.time("multiply"):
            w = np.ones((x.shape[0], 1)) if segment.weights is None else _range(segment.weights, where)
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
    out, offset = RowWriter(errors, segment, meter), None if centre is None else centre @ coef
    for where in segment:
        x = _read(meter, segment, where)
        with meter.time("multiply"):
            u = np.array(_range(segment.targets, where))
            if segment.means is not None:
                u -= segment.means
            u -= feature_map.multiply(x, coef)
            if offset is not None:
                u += offset
        out.write(where, u)


def _read(meter: Meter, segment: Segment, where: slice) -> Block:
    with meter.time("read"):
        x = segment.rows.read(where.start, where.stop)
    meter.bytes_read += 0 if segment.rows.is_in_memory else n_bytes(x)
    return x


def _range(vectors: object, rows: slice) -> Array:
    return vectors[rows] if isinstance(vectors, np.ndarray) else read_range(vectors, rows)  # type: ignore[arg-type]


def _add_adjoint(
    total: Array, feature_map: FeatureMap, segment: Segment, where: slice, x: Block, centre: Array | None, u: Array
) -> None:
    if segment.weights is not None:
        u *= _range(segment.weights, where)
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


@dataclass
class Diagonal(Preconditioner):
    """(diag(a) + diag(s))⁻¹ of Jacobi, a the diagonal of A.

    Parameters
    ----------
    diagonal : ndarray of shape (n, 1) or (n, m)
        a.
    shift : ndarray of shape (1, m) or (n, 1)
        s.
    """

    diagonal: Array
    shift: Array
    is_scaling = True

    def apply(self, residuals: Array, columns: NDArray[np.intp]) -> Array:
        return residuals / self._total(columns)

    def _total(self, columns: NDArray[np.intp]) -> Array:
        diagonal, shift = (x if x.shape[1] == 1 else x[:, columns] for x in (self.diagonal, self.shift))
        total = diagonal + shift
        return np.where(total > 0, total, 1.0)

    def extremes(self, columns: NDArray[np.intp]) -> tuple[Array, Array]:
        """Return ones, as of the scaled matrix."""
        return np.ones(len(columns)), np.ones(len(columns))
