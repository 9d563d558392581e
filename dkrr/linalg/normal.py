"""The normal equations of the primal form, ΦᵀWΦ and ΦᵀWy: in one streaming pass over the rows, or as products only.

With an intercept, y is centred by its weighted means first, and the sums are about a reference near the weighted
means of Φ: one correction of rank one then centres them (see `fitting.reference`), where about the origin it would
cancel. A task covers one tile (i, j) of the D × D matrix and one segment of the rows; the sums of the segments are
added, and corrected, when the tile is used. In memory a task covers all tiles.

A product is two passes over each block of rows while it is in memory, u = W Φ v and Φᵀu. The matrix is never formed,
sparse rows stay sparse, and D may be in the millions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dkrr import blas
from dkrr.cluster import Executor, Meter, RunRecord, Task
from dkrr.cost import Work
from dkrr.kernels.blocks import mirror_lower
from dkrr.kernels.map_base import FeatureMap
from dkrr.linalg.gram_products import Operator, Precision, narrow_product_slowdown
from dkrr.linalg.passes import Design, RowWriter, Segment, SegmentVectors
from dkrr.linalg.sources import read_range
from dkrr.store import ChunkedArray, MemoryMatrix, TiledMatrix, TileGrid

Matrix = NDArray[np.float64]

ROW_BLOCK_BYTES = 64 * 2**20
"""Rows of Φ that are in memory at once."""
MAX_ROW_BLOCK = 65536
"""Largest number of those rows."""
TARGET_COPIES = 5
"""Blocks of targets that a task holds: a chunk and what is cut from it, residuals, and a chunk of them as written."""
TARGET_PASSES = 7
"""Passes over targets in a mapped file: two for their sizes, one for means, moments and residuals each, and two over
the errors, divided by λ and checked."""
PARALLEL_FEATURES = 2048
"""Up to this D each core forms a ΦᵀΦ of its own (at D = 100 twice as fast as BLAS's threads together, at D = 1,900 as
fast), if the work exceeds PARALLEL_FLOPS."""
PARALLEL_FLOPS = 1e8
"""Floating-point operations below which starting threads takes longer than it saves."""
SUMS_BYTES = 128 * 2**20
"""Most memory of the matrices that threads form for folds, each thread one for every fold."""
CHECK_SECONDS = 1.7e-9
"""Time of one check for NaN and infinity."""


def accumulate(
    meter: Meter,
    design: Design,
    segment: Segment,
    blocks: Sequence[tuple[Matrix, slice, slice]],
    moments: Matrix | None,
    rows: slice,
    columns: slice,
) -> None:
    """Add what a segment contributes to ΦᵀWΦ to blocks of `rows` × `columns`, and to ΦᵀW [y, 1] to `moments`.

    Parameters
    ----------
    meter : Meter
    design : Design
    segment : Segment
    blocks : sequence of (ndarray, slice, slice)
        Arrays that are added to, each with its ranges within `rows` and `columns`; only the lower triangle of one on
        the diagonal.
    moments : ndarray of shape (len(rows), t) or (len(rows), t + 1), optional
        Of ΦᵀWy, and in one more column of ΦᵀW1.
    rows, columns : slice
        Ranges of features.
    """
    weights, targets = segment.weight_rows(), segment.target_rows()
    for where, x in segment.strips(meter, rows.stop - rows.start + (0 if moments is None else moments.shape[1])):
        with meter.time("features"):
            root = None if weights is None else np.sqrt(weights[where])
            left = design.features(x, rows, root)
            right = left if rows == columns else design.features(x, columns, root)
        for block, of_left, of_right in blocks:
            if left is right and of_left == of_right:
                with meter.time("syrk"):
                    blas.syrk(block, left[:, of_left], transpose=True, beta=1.0)
            else:
                with meter.time("gemm"):
                    blas.gemm(block, left[:, of_left], right[:, of_right], transpose_a=True, beta=1.0)
        if moments is not None:
            with meter.time("forward"):
                right = np.empty((len(left), moments.shape[1]))
                n_targets = segment.targets.shape[1]
                targets.into(right[:, :n_targets], where)
                right[:, n_targets:] = 1.0
                if root is not None:
                    right *= root
                blas.gemm(moments, left, right, transpose_a=True, beta=1.0)


def normal_part(meter: Meter, design: Design, segment: Segment, grid: TileGrid) -> tuple[MemoryMatrix, Matrix]:
    """Task: sums of a segment for ΦᵀWΦ (the lower triangle) and ΦᵀW [y, 1], in memory.

    The latter are of shape (D, t + 1), and of shape (D, t), without ΦᵀW1, where no reference is subtracted from Φ.
    """
    width = segment.targets.shape[1] + (design.centre is not None)
    matrix, moments, everything = MemoryMatrix(grid), np.zeros((grid.n, width)), slice(0, grid.n)
    matrix.clear()
    accumulate(meter, design, segment, _blocks(matrix), moments, everything, everything)
    return matrix, moments


def subtract_outer(matrix: MemoryMatrix, v: Matrix) -> None:
    """Subtract v vᵀ from the lower triangle of a matrix.

    Parameters
    ----------
    matrix : MemoryMatrix
        Of n rows.
    v : ndarray of shape (n,)
    """
    row = v[None, :]
    for block, rows, columns in _blocks(matrix):
        if rows == columns:
            blas.syrk(block, row[:, rows], transpose=True, alpha=-1.0, beta=1.0)
        else:
            blas.gemm(block, row[:, rows], row[:, columns], transpose_a=True, alpha=-1.0, beta=1.0)


def _blocks(matrix: MemoryMatrix) -> list[tuple[Matrix, slice, slice]]:
    """Arrays that make up the lower triangle of a matrix, with their rows and columns."""
    grid, nothing = matrix.grid, matrix.panel_buffer()
    blocks = [(matrix.tile_buffer(i, i), grid.rows(i), grid.rows(i)) for i in range(grid.n_tiles)]
    for i in range(1, grid.n_tiles):
        (before,) = matrix.column_strips(range(i))
        blocks.append((matrix.read_strip(i, before, nothing)[0], grid.rows(i), before))
    return blocks


@dataclass(frozen=True)
class NormalParts:
    """Arrays that the tasks of one run write: for every segment a tiled matrix and its moments."""

    segments: tuple[Segment, ...]
    matrices: tuple[TiledMatrix, ...]
    moments: tuple[ChunkedArray, ...]
    """Columns as of `normal_part`."""
    reference: ChunkedArray | None
    """Subtracted from the features, of shape (D, 1)."""


def normal_tasks(feature_map: FeatureMap, parts: NormalParts) -> list[Task]:
    """Tasks of the tiles that are not written yet."""
    tasks = []
    for s, (segment, matrix, moments) in enumerate(zip(parts.segments, parts.matrices, parts.moments, strict=True)):
        grid = matrix.grid
        done, summed = matrix.complete_tiles(), {k for k, _ in moments.present()}
        for i, j in grid.lower():
            if (i, j) not in done or (i == j and i not in summed):
                flops = (1.0 if i == j else 2.0) * grid.height(i) * grid.height(j) * (segment.stop - segment.start)
                arguments = (feature_map, segment, parts.reference, matrix, moments, i, j)
                tasks.append(Task(f"normal-{s}-{i}-{j}", normal_tile, arguments, flops=flops))
    return tasks


def normal_tile(
    meter: Meter,
    feature_map: FeatureMap,
    segment: Segment,
    reference: ChunkedArray | None,
    matrix: TiledMatrix,
    moments: ChunkedArray,
    i: int,
    j: int,
) -> None:
    """Task: write one tile of the sums of a segment to the store."""
    grid = matrix.grid
    tile = np.zeros((grid.height(i), grid.height(j)))
    here = np.zeros((grid.height(i), moments.shape[1])) if i == j else None
    centre = None if reference is None else read_range(reference, slice(0, grid.n))[:, 0]
    blocks = [(tile, slice(0, len(tile)), slice(0, tile.shape[1]))]
    accumulate(meter, Design(feature_map, centre), segment, blocks, here, grid.rows(i), grid.rows(j))
    if i == j:
        mirror_lower(tile)
    with meter.time("write"):
        if here is not None:
            meter.bytes_written += moments.write((i, 0), here)
        meter.bytes_written += matrix.write_tile(i, j, tile)


def primal_residual(
    meter: Meter, design: Design, segment: Segment, coef: Matrix, residuals: Matrix | ChunkedArray
) -> Matrix:
    """Task: write the training residuals y − Φw of a segment, and return its sums for ΦᵀW(y − Φw) and of W(y − Φw).

    Parameters
    ----------
    meter : Meter
    design : Design
    segment : Segment
    coef : ndarray of shape (D, m)
        w, possibly with more columns than targets: those have targets of 0, and no residuals are written.
    residuals : ndarray or ChunkedArray of shape (n, t)
        Residuals of the centred problem: with many targets they are as large as y, and must not be gathered.

    Returns
    -------
    ndarray of shape (D + 1, m)
    """
    sums, n_targets = np.zeros((coef.shape[0] + 1, coef.shape[1])), segment.targets.shape[1]
    out = RowWriter(residuals, segment, meter)
    weights, targets, buffer = segment.weight_rows(), segment.target_rows(), np.empty((0, 0))
    for where, x in segment.strips(meter, coef.shape[0] + n_targets):
        with meter.time("features"):
            phi = design.features(x)
        with meter.time("gemm"):
            if len(buffer) < len(phi):
                buffer = np.empty((len(phi), coef.shape[1]))
            r = buffer[: len(phi)]
            targets.into(r[:, :n_targets], where)
            r[:, n_targets:] = 0.0
            blas.gemm(r, phi, coef, alpha=-1.0, beta=1.0)
        out.write(where, r[:, :n_targets])
        with meter.time("gemm"):
            if weights is not None:
                r *= weights[where]
            blas.gemm(sums[:-1], phi, r, transpose_a=True, beta=1.0)
            sums[-1] += r.sum(axis=0)
    return sums


def row_block(n: int, row_bytes: int, n_targets: int, n_columns: int) -> int:
    """Rows of Φ in memory at once: about ROW_BLOCK_BYTES of them, X and the targets included.

    Parameters
    ----------
    n : int
    row_bytes : int
        Bytes of one row of X in memory.
    n_targets : int
    n_columns : int
        Columns of Φ that a task uses.
    """
    width = 4 * 8 * n_columns + 2 * row_bytes + TARGET_COPIES * 8 * n_targets
    return int(max(1, min(n, ROW_BLOCK_BYTES // max(width, 1), MAX_ROW_BLOCK)))


def parts_for_folds(n: int, dimension: int, n_folds: int, threads: int) -> int:
    """Segments of the rows, one for each thread, or 1 where BLAS's threads are as fast or matrices are too large.

    Parameters
    ----------
    n : int
    dimension : int
    n_folds : int
        Matrices that a thread forms at the same time.
    threads : int
    """
    is_parallel = float(n) * dimension**2 >= PARALLEL_FLOPS and dimension <= PARALLEL_FEATURES
    room = SUMS_BYTES // max(1, 8 * dimension**2 * n_folds)
    return max(1, min(threads, n, room)) if is_parallel else 1


def normal_work(n: int, row_bytes: int, dimension: int, n_targets: int, n_tiles: int, element_seconds: float) -> Work:
    """Work of forming ΦᵀWΦ and ΦᵀWy for `n` rows: the rows are read once for every tile.

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
    """
    n_lower = n_tiles * (n_tiles + 1) // 2
    passes = n_lower + 1  # the last for the true residual
    return Work(
        gemm_flops=float(n) * dimension * (dimension + 6 * n_targets * narrow_product_slowdown(n_targets)),
        element_seconds=n
        * ((n_tiles + passes - n_lower) * dimension * element_seconds + row_bytes / 8 * CHECK_SECONDS),
        read_bytes=float(passes) * n * row_bytes,
        n_tasks=n_lower,
    )


Array = NDArray[np.float64]

SECONDS_PER_STREAMED_ENTRY = 1.2e-9
"""Time of both products of an entry of Φ with one vector."""


def stream_work(n_entries: float, m: int, entry_seconds: float) -> Work:
    """Work of both products of so many entries of Φ, each of which is formed in `entry_seconds`, with m vectors."""
    return Work(element_seconds=n_entries * (SECONDS_PER_STREAMED_ENTRY * m + entry_seconds))


def normal_product(meter: Meter, design: Design, segment: Segment, vectors: Array) -> Array:
    """Task: sum of a segment for ΦᵀWΦ V, of shape (D, m)."""
    total, multiply, weights = np.zeros(vectors.shape), design.times(vectors), segment.weight_rows()
    for where, x in segment.blocks(meter):
        with meter.time("multiply"):
            total += design.adjoint(x, _weighted(multiply(x), weights, where))
    return total


def normal_moments(meter: Meter, design: Design, segment: Segment, coef: Array | None) -> Array:
    """Task: sum of a segment for ΦᵀW (Y − Φw), of shape (D, t); w None means 0."""
    total: Array | float = 0.0
    targets, weights = segment.target_rows(), segment.weight_rows()
    multiply = None if coef is None else design.times(coef)
    for where, x in segment.blocks(meter):
        with meter.time("multiply"):
            u = np.array(targets[where])
            if multiply is not None:
                u -= multiply(x)
            total = total + design.adjoint(x, _weighted(u, weights, where))
    return np.asarray(total)


def weighted_sums(meter: Meter, design: Design, segment: Segment, _: None) -> Array:
    """Task: Σ wᵢ φ(xᵢ) over a segment, of shape (D, 1); no array is dense where the rows are sparse."""
    total: Array | float = 0.0
    weights = segment.weight_rows()
    for where, x in segment.blocks(meter):
        with meter.time("multiply"):
            total = total + design.adjoint(x, _weighted(np.ones((x.shape[0], 1)), weights, where))
    return np.asarray(total)


def weighted_squares(meter: Meter, design: Design, segment: Segment, _: None) -> Array:
    """Task: Σ wᵢ φ(xᵢ)² over a segment, of shape (D, 1)."""
    total: Array | float = 0.0
    weights = segment.weight_rows()
    for where, x in segment.blocks(meter):
        with meter.time("multiply"):
            total = total + design.adjoint_of_squares(x, _weighted(np.ones((x.shape[0], 1)), weights, where))
    return np.asarray(total)


def training_errors(
    meter: Meter,
    design: Design,
    segment: Segment,
    known: Array | ChunkedArray | None,
    errors: Array | ChunkedArray,
    coef: Array,
) -> Array:
    """Task: write the errors E − Φc over a segment to its rows of `errors`, and return the sums that they have.

    Parameters
    ----------
    known : ndarray or ChunkedArray of shape (n, t), optional
        E; None: the targets less their means.
    errors : ndarray or ChunkedArray of shape (n, t)
    coef : ndarray of shape (D, t)
        c.

    Returns
    -------
    ndarray of shape (D + 3, t)
        What the segment adds to ΦᵀW(E − Φc), and to the sums of w e, w e² and (w e)² of the errors.
    """
    total: Array | float = 0.0
    out, multiply, weights = RowWriter(errors, segment, meter), design.times(coef), segment.weight_rows()
    before = segment.target_rows() if known is None else SegmentVectors(known, segment)
    for where, x in segment.blocks(meter):
        with meter.time("multiply"):
            u = np.array(before[where])
            u -= multiply(x)
            weighted = _weighted(u, weights, where)
            squares = (np.einsum("ij,ij->j", weighted, v) for v in (u, weighted))
            total = total + np.vstack([design.adjoint(x, weighted), weighted.sum(axis=0), *squares])
        out.write(where, u)
    return np.asarray(total)


def squared_values(meter: Meter, design: Design, segment: Segment, vectors: Array) -> Array:
    """Task: sums of (Φv)² over a segment, weighted and over the rows of positive weight; of shape (2, m)."""
    multiply, weights, total = design.times(vectors), segment.weight_rows(), np.zeros((2, vectors.shape[1]))
    for where, x in segment.blocks(meter):
        with meter.time("multiply"):
            squares = multiply(x) ** 2
            here = np.ones((len(squares), 1)) if weights is None else weights[where]
            total += np.vstack([here.T @ squares, (here > 0).T.astype(np.float64) @ squares])
    return total


def _weighted(values: Array, weights: SegmentVectors | None, where: slice) -> Array:
    return values if weights is None else values * weights[where]


@dataclass
class NormalOperator(Operator):
    """Product with ΦᵀWΦ.

    Parameters
    ----------
    design : Design
    segments : tuple of Segment
        One task each.
    executor : Executor
    n : int
        D.
    """

    design: Design
    segments: tuple[Segment, ...]
    executor: Executor
    n: int
    record: RunRecord = field(default_factory=RunRecord)

    def multiply(
        self,
        vectors: Array,
        precision: Precision = "float64",  # noqa: ARG002
        columns: NDArray[np.intp] | None = None,  # noqa: ARG002
    ) -> Array:
        """See base class; always in float64."""
        tasks = [Task(f"normal-{k}", normal_product, (self.design, s)) for k, s in enumerate(self.segments)]
        total, record = self.executor.total(tasks, np.ascontiguousarray(vectors))
        self.record.add(record)
        return total  # type: ignore[no-any-return]
