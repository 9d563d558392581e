"""The normal equations of the primal form, ΦᵀWΦ and ΦᵀWy, in one streaming pass over the rows.

With a free intercept, Φ and y are centred by their weighted means first (a pass of its own: subtracting
(Σw) φ̄ φ̄ᵀ afterwards would cancel). A task covers one tile (i, j) of the D × D matrix and one segment of the rows;
the parts of the segments are summed when the tile is used. In memory the whole matrix is one tile.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dkrr import blas
from dkrr.cost import Cost
from dkrr.features import FeatureMap
from dkrr.linalg.sources import mirror_lower, read_range
from dkrr.rows import Rows
from dkrr.rows.sources import n_bytes
from dkrr.runtime.task import Meter, Task
from dkrr.tiles import ChunkedArray, TiledMatrix

Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class Segment:
    """Consecutive rows with their weights and targets; read in blocks."""

    rows: Rows
    start: int
    stop: int
    block: int
    """Rows that are in memory at once."""
    targets: Matrix | ChunkedArray
    """Centred targets (n, t), in memory or in the store."""
    weights: Matrix | ChunkedArray | None = None
    """Sample weights (n, 1); None means ones."""

    def __iter__(self) -> Iterator[slice]:
        return (slice(k, min(k + self.block, self.stop)) for k in range(self.start, self.stop, self.block))


def _range(vectors: Matrix | ChunkedArray, rows: slice) -> Matrix:
    return vectors[rows] if isinstance(vectors, np.ndarray) else read_range(vectors, rows)


def feature_sums(meter: Meter, feature_map: FeatureMap, segment: Segment) -> Matrix:
    """Task: Σ wᵢ φ(xᵢ) over a segment, shape (D,)."""
    total: Matrix | None = None
    for rows in segment:
        with meter.time("read"):
            x = segment.rows.read(rows.start, rows.stop)
        meter.bytes_read += n_bytes(x)
        with meter.time("features"):
            phi = feature_map.transform(x)
            here = phi.sum(axis=0) if segment.weights is None else _range(segment.weights, rows)[:, 0] @ phi
            total = here if total is None else total + here
    assert total is not None
    return total


def accumulate(
    meter: Meter,
    feature_map: FeatureMap,
    segment: Segment,
    centre: Matrix | None,
    matrix: Matrix,
    moments: Matrix | None,
    rows: slice,
    columns: slice,
) -> None:
    """Add a segment's part of ΦᵀWΦ (block rows × columns) to `matrix`, and of ΦᵀWy to `moments`.

    Parameters
    ----------
    meter : Meter
    feature_map : FeatureMap
    segment : Segment
    centre : ndarray of shape (D,), optional
        Subtracted from Φ.
    matrix : ndarray of shape (len(rows), len(columns))
        On the diagonal only its lower triangle is written.
    moments : ndarray of shape (len(rows), t), optional
    rows, columns : slice
        Ranges of features.
    """
    for where in segment:
        with meter.time("read"):
            x = segment.rows.read(where.start, where.stop)
        meter.bytes_read += n_bytes(x)
        with meter.time("features"):
            left = _features(feature_map, x, rows, centre)
            right = left if rows == columns else _features(feature_map, x, columns, centre)
            if segment.weights is not None:
                root = np.sqrt(_range(segment.weights, where))
                left *= root
                if right is not left:
                    right *= root
        if rows == columns:
            with meter.time("syrk"):
                blas.syrk(matrix, left, transpose=True, beta=1.0)
        else:
            with meter.time("gemm"):
                blas.gemm(matrix, left, right, transpose_a=True, beta=1.0)
        if moments is not None:
            with meter.time("forward"):
                y = _range(segment.targets, where)
                if segment.weights is not None:
                    y = y * root
                blas.gemm(moments, left, np.ascontiguousarray(y), transpose_a=True, beta=1.0)


def _features(feature_map: FeatureMap, x: Matrix, columns: slice, centre: Matrix | None) -> Matrix:
    phi = np.array(feature_map.transform(x, columns), np.float64, order="C")
    if centre is not None:
        phi -= centre[columns]
    return phi


@dataclass(frozen=True)
class NormalParts:
    """What the tasks of one run write: for every segment a tiled matrix and its moments."""

    segments: tuple[Segment, ...]
    matrices: tuple[TiledMatrix, ...]
    moments: tuple[ChunkedArray, ...]
    centre: ChunkedArray | None


def normal_tasks(feature_map: FeatureMap, parts: NormalParts) -> list[Task]:
    """Tasks of the parts of the normal matrix that are not there yet."""
    tasks = []
    for s, (segment, matrix, moments) in enumerate(zip(parts.segments, parts.matrices, parts.moments, strict=True)):
        grid = matrix.grid
        done, summed = matrix.complete_tiles(), {k for k, _ in moments.present()}
        for i, j in grid.lower():
            if (i, j) not in done or (i == j and i not in summed):
                flops = (1.0 if i == j else 2.0) * grid.height(i) * grid.height(j) * (segment.stop - segment.start)
                arguments = (feature_map, segment, parts.centre, matrix, moments, i, j)
                tasks.append(Task(f"normal-{s}-{i}-{j}", normal_tile, arguments, flops=flops))
    return tasks


def normal_tile(
    meter: Meter,
    feature_map: FeatureMap,
    segment: Segment,
    centre: ChunkedArray | None,
    matrix: TiledMatrix,
    moments: ChunkedArray,
    i: int,
    j: int,
) -> None:
    """Task: one tile of one segment's part, written to the store."""
    grid = matrix.grid
    tile = np.zeros((grid.height(i), grid.height(j)))
    here = np.zeros((grid.height(i), moments.shape[1])) if i == j else None
    mean = None if centre is None else read_range(centre, slice(0, grid.n))[:, 0]
    accumulate(meter, feature_map, segment, mean, tile, here, grid.rows(i), grid.rows(j))
    if i == j:
        mirror_lower(tile)
    with meter.time("write"):
        if here is not None:
            meter.bytes_written += moments.write((i, 0), here)
        meter.bytes_written += matrix.write_tile(i, j, tile)


def primal_residual(
    meter: Meter, feature_map: FeatureMap, segment: Segment, centre: Matrix | None, coef: Matrix
) -> tuple[Matrix, Matrix]:
    """Task: training residuals y − Φw of a segment, and its part of ΦᵀW(y − Φw).

    Returns
    -------
    residuals : ndarray of shape (rows of the segment, t)
        Of the centred problem.
    gradient : ndarray of shape (D, t)
    """
    gradient = np.zeros_like(coef)
    residuals = np.empty((segment.stop - segment.start, coef.shape[1]))
    everything = slice(0, coef.shape[0])
    for where in segment:
        with meter.time("read"):
            x = segment.rows.read(where.start, where.stop)
        meter.bytes_read += n_bytes(x)
        with meter.time("features"):
            phi = _features(feature_map, x, everything, centre)
        with meter.time("gemm"):
            r = np.array(_range(segment.targets, where), order="C")
            blas.gemm(r, phi, coef, alpha=-1.0, beta=1.0)
            residuals[where.start - segment.start : where.stop - segment.start] = r
            if segment.weights is not None:
                r *= _range(segment.weights, where)
            blas.gemm(gradient, phi, r, transpose_a=True, beta=1.0)
    return residuals, gradient


def normal_cost(
    n: int, row_bytes: int, dimension: int, n_targets: int, n_tiles: int, element_seconds: float, *, centred: bool
) -> Cost:
    """Cost of forming ΦᵀWΦ and ΦᵀWy for `n` rows: the rows are read once for every tile.

    Parameters
    ----------
    n : int
    row_bytes : int
        Bytes of one row of X in the store.
    dimension : int
        D.
    n_targets : int
    n_tiles : int
        Tiles along one side of the D × D matrix.
    element_seconds : float
        Elementwise work of the feature map, for one entry of Φ.
    centred : bool
        Whether a pass for the means comes first.
    """
    n_lower = n_tiles * (n_tiles + 1) // 2
    passes = n_lower + (1 if centred else 0) + 1  # the last for the true residual
    return Cost(
        gemm_flops=float(n) * dimension * (dimension + 6 * n_targets),
        element_seconds=n * (n_tiles + passes - n_lower) * dimension * element_seconds,
        read_bytes=float(passes) * n * row_bytes,
        n_tasks=n_lower,
    )
