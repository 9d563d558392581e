"""The normal equations of the primal form, ΦᵀWΦ and ΦᵀWy, in one streaming pass over the rows.

With a free intercept, Φ and y are centred by their weighted means first (a pass of its own: subtracting
(Σw) φ̄ φ̄ᵀ afterwards would cancel). A task covers one tile (i, j) of the D × D matrix and one segment of the rows;
the parts of the segments are summed when the tile is used. In memory it covers all tiles.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dkrr import blas
from dkrr.cost import Cost
from dkrr.features import FeatureMap, IdentityMap
from dkrr.kernels.blocks import mirror_lower
from dkrr.linalg.operator import thin
from dkrr.linalg.sources import read_range
from dkrr.rows import Rows
from dkrr.rows.checks import check_finite
from dkrr.rows.sources import Block, n_bytes
from dkrr.runtime.task import Meter, Task
from dkrr.tiles import ChunkedArray, MemoryMatrix, TiledMatrix, TileGrid

Matrix = NDArray[np.float64]

STRIP_BYTES = 2 * 2**20
"""Of Φ: a strip that is read, expanded and multiplied should stay in the second-level cache (measured: rows of 100
columns in strips of 2 MiB are read and multiplied twice as fast as in blocks of 64 MiB) ..."""
CHECK_SECONDS = 1.7e-9
"""To look for NaN and infinity in one number."""
STRIP_ROWS = 512
"""... but has at least so many rows, for each strip passes once over the matrix that it is added to."""


@dataclass(frozen=True)
class Segment:
    """Consecutive rows with their weights and targets; read in blocks."""

    rows: Rows
    start: int
    stop: int
    block: int
    """Rows that are in memory at once."""
    targets: Matrix | ChunkedArray
    """Targets (n, t), in memory or in the store."""
    weights: Matrix | ChunkedArray | None = None
    """Sample weights (n, 1); None means ones."""
    means: Matrix | None = None
    """Of the targets (t,), subtracted where they are used: centred ones would be as large again; None: zeros."""

    def __iter__(self) -> Iterator[slice]:
        return (slice(k, min(k + self.block, self.stop)) for k in range(self.start, self.stop, self.block))

    def strips(self, meter: Meter, width: int) -> Iterator[tuple[slice, Block]]:
        """Rows in strips of which `width` features and targets stay in cache, checked for NaN and infinity.

        Raises
        ------
        InputError
            Naming the first bad row and column.
        """
        height = max(STRIP_ROWS, STRIP_BYTES // (8 * max(width, 1)))
        stream = self.rows.blocks(self.start, self.stop, min(self.block, height))
        while True:
            with meter.time("read"):
                found = next(stream, None)
            if found is None:
                return
            meter.bytes_read += 0 if self.rows.is_in_memory else n_bytes(found[1])
            with meter.time("check"):
                check_finite(found[1], "X", found[0].start)
            yield found


@dataclass
class _Window:
    """Rows of targets or weights for one strip after another, each valid until the next one is asked for.

    What is stored is read a block of the segment at once.
    """

    vectors: Matrix | ChunkedArray
    segment: Segment
    means: Matrix | None = None
    """Subtracted from each row, of shape (t,)."""
    _start: int = 0
    _held: Matrix = field(default_factory=lambda: np.empty((0, 0)))
    _centred: Matrix = field(default_factory=lambda: np.empty((0, 0)))

    def __getitem__(self, rows: slice) -> Matrix:
        found = self._raw(rows)
        if self.means is None:
            return found
        if len(self._centred) < len(found):
            self._centred = np.empty(found.shape)
        centred = self._centred[: len(found)]  # fresh memory for each strip would take longer than its products
        return np.subtract(found, self.means, out=centred)

    def into(self, out: Matrix, rows: slice) -> None:
        """Write the rows to an array of their shape."""
        if self.means is None:
            out[...] = self._raw(rows)
        else:
            np.subtract(self._raw(rows), self.means, out=out)

    def _raw(self, rows: slice) -> Matrix:
        if isinstance(self.vectors, np.ndarray):
            return self.vectors[rows]
        if not (self._start <= rows.start and rows.stop <= self._start + len(self._held)):
            stop = min(max(rows.stop, rows.start + self.segment.block), self.segment.stop)
            self._start, self._held = rows.start, read_range(self.vectors, slice(rows.start, stop))
        return self._held[rows.start - self._start : rows.stop - self._start]


def _weights(segment: Segment) -> _Window | None:
    return None if segment.weights is None else _Window(segment.weights, segment)


def target_rows(segment: Segment) -> _Window:
    """Targets of a segment less their means, by slices of rows."""
    return _Window(segment.targets, segment, segment.means)


@dataclass
class RowWriter:
    """Takes the rows of a segment one strip after another, into an array in memory or into the chunks of a stored one.

    A segment begins where a chunk does, and ends where one does or with the array.
    """

    array: Matrix | ChunkedArray
    segment: Segment
    meter: Meter
    _chunk: Matrix | None = None

    def write(self, rows: slice, values: Matrix) -> None:
        """Take the next rows."""
        if isinstance(self.array, np.ndarray):
            self.array[rows] = values
            return
        height, width = self.array.chunks
        first = rows.start
        while first < rows.stop:
            k = first // height
            top, bottom = k * height, min((k + 1) * height, self.segment.stop)
            stop = min(rows.stop, bottom)
            if self._chunk is None:
                self._chunk = np.empty((bottom - top, width))
            self._chunk[first - top : stop - top] = values[first - rows.start : stop - rows.start]
            if stop == bottom:
                with self.meter.time("write"):
                    self.meter.bytes_written += self.array.write((k, 0), self._chunk)
                self._chunk = None
            first = stop


def feature_sums(meter: Meter, feature_map: FeatureMap, segment: Segment) -> Matrix:
    """Task: Σ wᵢ φ(xᵢ) over a segment, shape (D,)."""
    total: Matrix | None = None
    weights = _weights(segment)
    for rows, x in segment.strips(meter, feature_map.dimension(segment.rows.shape[1])):
        with meter.time("features"):
            phi = _features(feature_map, x, slice(None))
            here = phi.sum(axis=0) if weights is None else weights[rows][:, 0] @ phi
            total = here if total is None else total + here
    assert total is not None
    return total


def accumulate(
    meter: Meter,
    feature_map: FeatureMap,
    segment: Segment,
    centre: Matrix | None,
    blocks: Sequence[tuple[Matrix, slice, slice]],
    moments: Matrix | None,
    rows: slice,
    columns: slice,
) -> None:
    """Add a segment's part of ΦᵀWΦ to blocks of `rows` × `columns`, and of ΦᵀWy to `moments`.

    Parameters
    ----------
    meter : Meter
    feature_map : FeatureMap
    segment : Segment
    centre : ndarray of shape (D,), optional
        Subtracted from Φ.
    blocks : sequence of (ndarray, slice, slice)
        What is added to, and which of `rows` and `columns` it covers; of one on the diagonal only the lower triangle.
    moments : ndarray of shape (len(rows), t), optional
    rows, columns : slice
        Ranges of features.
    """
    weights, targets = _weights(segment), target_rows(segment)
    for where, x in segment.strips(meter, rows.stop - rows.start + (0 if moments is None else moments.shape[1])):
        with meter.time("features"):
            root = None if weights is None else np.sqrt(weights[where])
            left = _features(feature_map, x, rows, centre, root)
            right = left if rows == columns else _features(feature_map, x, columns, centre, root)
        for block, of_left, of_right in blocks:
            if left is right and of_left == of_right:
                with meter.time("syrk"):
                    blas.syrk(block, left[:, of_left], transpose=True, beta=1.0)
            else:
                with meter.time("gemm"):
                    blas.gemm(block, left[:, of_left], right[:, of_right], transpose_a=True, beta=1.0)
        if moments is not None:
            with meter.time("forward"):
                y = targets[where] if root is None else targets[where] * root
                blas.gemm(moments, left, np.ascontiguousarray(y), transpose_a=True, beta=1.0)


def _features(
    feature_map: FeatureMap, x: Block, columns: slice, centre: Matrix | None = None, root: Matrix | None = None
) -> Matrix:
    """Some columns of Φ, less their means and times the roots of the weights; to be read only."""
    plain = isinstance(x, np.ndarray) and x.dtype == np.float64 and x.flags.c_contiguous
    if centre is None and root is None and plain and isinstance(feature_map, IdentityMap):
        rows: Matrix = x[:, columns]  # themselves
        return rows
    phi = feature_map.transform(x, columns)
    if centre is not None:
        phi -= centre[columns]
    if root is not None:
        phi *= root
    return phi


def normal_part(
    meter: Meter, feature_map: FeatureMap, segment: Segment, centre: Matrix | None, grid: TileGrid
) -> tuple[MemoryMatrix, Matrix]:
    """Task: a segment's part of ΦᵀWΦ (its lower triangle) and of ΦᵀWy, in memory; the latter of shape (D, t)."""
    matrix, moments, everything = MemoryMatrix(grid), np.zeros((grid.n, segment.targets.shape[1])), slice(0, grid.n)
    matrix.clear()
    blocks = [(matrix.room(i, i), grid.rows(i), grid.rows(i)) for i in range(grid.n_tiles)]
    for i in range(1, grid.n_tiles):
        (before,) = matrix.stretches(range(i))
        blocks.append((matrix.read_stretch(i, before, moments)[0], grid.rows(i), before))
    accumulate(meter, feature_map, segment, centre, blocks, moments, everything, everything)
    return matrix, moments


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
    blocks = [(tile, slice(0, len(tile)), slice(0, tile.shape[1]))]
    accumulate(meter, feature_map, segment, mean, blocks, here, grid.rows(i), grid.rows(j))
    if i == j:
        mirror_lower(tile)
    with meter.time("write"):
        if here is not None:
            meter.bytes_written += moments.write((i, 0), here)
        meter.bytes_written += matrix.write_tile(i, j, tile)


def primal_residual(
    meter: Meter,
    feature_map: FeatureMap,
    segment: Segment,
    centre: Matrix | None,
    coef: Matrix,
    residuals: Matrix | ChunkedArray,
) -> Matrix:
    """Task: write the training residuals y − Φw of a segment, and return its part of ΦᵀW(y − Φw).

    Parameters
    ----------
    meter : Meter
    feature_map : FeatureMap
    segment : Segment
    centre : ndarray of shape (D,), optional
    coef : ndarray of shape (D, m)
        w, and possibly more columns than there are targets: those have targets of 0, and no residuals are written.
    residuals : ndarray or ChunkedArray of shape (n, t)
        Where those of the centred problem are written: with many targets they are as large as y, and must not be
        gathered from parts.

    Returns
    -------
    gradient : ndarray of shape (D, m)
    """
    gradient, n_targets = np.zeros_like(coef), segment.targets.shape[1]
    everything, out = slice(0, coef.shape[0]), RowWriter(residuals, segment, meter)
    weights, targets, room = _weights(segment), target_rows(segment), np.empty((0, 0))
    for where, x in segment.strips(meter, coef.shape[0] + n_targets):
        with meter.time("features"):
            phi = _features(feature_map, x, everything, centre)
        with meter.time("gemm"):
            if len(room) < len(phi):
                room = np.empty((len(phi), coef.shape[1]))
            r = room[: len(phi)]
            targets.into(r[:, :n_targets], where)
            r[:, n_targets:] = 0.0
            blas.gemm(r, phi, coef, alpha=-1.0, beta=1.0)
        out.write(where, r[:, :n_targets])
        with meter.time("gemm"):
            if weights is not None:
                r *= weights[where]
            blas.gemm(gradient, phi, r, transpose_a=True, beta=1.0)
    return gradient


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
        gemm_flops=float(n) * dimension * (dimension + 6 * n_targets * thin(n_targets)),
        element_seconds=n
        * ((n_tiles + passes - n_lower) * dimension * element_seconds + row_bytes / 8 * CHECK_SECONDS),
        read_bytes=float(passes) * n * row_bytes,
        n_tasks=n_lower,
    )
