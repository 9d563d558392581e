"""Passes over rows: segments, the rows that one task covers, and the features of a fit.

A segment is read in blocks, or in strips that stay in cache, with targets and weights.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dkrr.cluster import Meter
from dkrr.data import Rows
from dkrr.data.rows import SPARSE_BLOCK_ENTRIES, Block, check_finite, n_bytes
from dkrr.kernels.map_base import FeatureMap
from dkrr.linalg.sources import read_range
from dkrr.store import ChunkedArray

Matrix = NDArray[np.float64]

FEATURE_STRIP_BYTES = 2 * 2**20
"""Size of a strip of Φ: read, expanded and multiplied, it should stay in the second-level cache (measured: rows of 100
columns in strips of 2 MiB are read and multiplied twice as fast as in blocks of 64 MiB)."""
MIN_STRIP_ROWS = 512
"""Minimum rows of a strip, since each strip passes once over the matrix that it is added to."""


def strip_rows(width: int) -> int:
    """Rows of a strip with a given number of columns."""
    return max(MIN_STRIP_ROWS, FEATURE_STRIP_BYTES // (8 * max(width, 1)))


@dataclass(frozen=True)
class Segment:
    """Consecutive rows with their weights and targets: what one task works on."""

    rows: Rows
    start: int
    stop: int
    block: int
    """Most rows in memory at once; of sparse ones also no more than SPARSE_BLOCK_ENTRIES entries, or one row."""
    targets: Matrix | ChunkedArray
    """Targets (n, t), in memory or in the store."""
    weights: Matrix | ChunkedArray | None = None
    """Sample weights (n, 1); None means ones."""
    means: Matrix | None = None
    """Means of the targets (t,), subtracted where they are used: centred ones would be as large again; None: zeros."""

    def blocks(self, meter: Meter) -> Iterator[tuple[slice, Block]]:
        """Rows a block at a time."""
        for where in self._ranges(self.block):
            with meter.time("read"):
                x = self.rows.read(where.start, where.stop)
            self._count(meter, x)
            yield where, x

    def strips(self, meter: Meter, width: int) -> Iterator[tuple[slice, Block]]:
        """Rows in strips of which `width` features and targets stay in cache, checked for NaN and infinity.

        Raises
        ------
        InputError
            Naming the first bad row and column.
        """
        height = min(self.block, strip_rows(width))
        stream = (
            ((where, self.rows.read(where.start, where.stop)) for where in self._ranges(height))
            if self.rows.is_sparse
            else self.rows.blocks(self.start, self.stop, height)
        )
        while True:
            with meter.time("read"):
                found = next(stream, None)
            if found is None:
                return
            self._count(meter, found[1])
            with meter.time("check"):
                check_finite(found[1], "X", found[0].start)
            yield found

    def _ranges(self, height: int) -> Iterator[slice]:
        """Ranges of rows that are read at once: by rows, and of sparse ones also by entries."""
        for start in range(self.start, self.stop, height):
            yield from self.rows.row_ranges(slice(start, min(start + height, self.stop)), SPARSE_BLOCK_ENTRIES)

    def _count(self, meter: Meter, x: Block) -> None:
        meter.bytes_read += 0 if self.rows.is_in_memory else n_bytes(x)

    def weight_rows(self) -> "SegmentVectors | None":
        """Weights, by slices of rows."""
        return None if self.weights is None else SegmentVectors(self.weights, self)

    def target_rows(self) -> "SegmentVectors":
        """Targets less their means, by slices of rows."""
        return SegmentVectors(self.targets, self, self.means)


@dataclass
class SegmentVectors:
    """Rows of targets or weights for one strip or block after another, each valid until the next one is read.

    Stored ones are read a block of the segment at once.
    """

    vectors: Matrix | ChunkedArray
    segment: Segment
    means: Matrix | None = None
    """Means that are subtracted from each row, of shape (t,)."""
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


ALL = slice(None)


@dataclass(frozen=True)
class Design:
    """Φ as a fit has it: features less their means, or with a last feature that is 1 everywhere."""

    feature_map: FeatureMap
    centre: Matrix | None = None
    """Means of the features (D,), subtracted where they are used."""
    has_constant: bool = False

    def dimension(self, n_features: int) -> int:
        """Features, the constant included."""
        return self.feature_map.dimension(n_features) + self.has_constant

    def features(self, x: Block, columns: slice = ALL, root: Matrix | None = None) -> Matrix:
        """Columns of Φ, times the roots of the weights; to be read only. All of them with the constant."""
        is_plain = isinstance(x, np.ndarray) and x.dtype == np.float64 and x.flags.c_contiguous
        if self.centre is None and root is None and not self.has_constant and is_plain and self.feature_map.is_identity:
            rows: Matrix = x[:, columns]  # themselves
            return rows
        phi = self.feature_map.transform(x, columns)
        if self.has_constant:
            phi = np.column_stack([phi, np.ones(len(phi))])
        if self.centre is not None:
            phi -= self.centre[columns]
        if root is not None:
            phi *= root
        return phi

    def times(self, vectors: Matrix) -> Callable[[Block], Matrix]:
        """Function of a block of rows that gives Φ V."""
        multiply = self.feature_map.multiply
        if self.has_constant:
            return lambda x: np.asarray(multiply(x, vectors[:-1]) + vectors[-1])
        if self.centre is None:
            return lambda x: multiply(x, vectors)
        offset = self.centre @ vectors
        return lambda x: np.asarray(multiply(x, vectors) - offset)

    def adjoint(self, x: Block, values: Matrix) -> Matrix:
        """Φᵀ U, of shape (D, m)."""
        found = self.feature_map.adjoint(x, values)
        if self.has_constant:
            return np.vstack([found, values.sum(axis=0)])
        if self.centre is not None:
            found -= self.centre[:, None] * values.sum(axis=0)
        return found

    def adjoint_of_squares(self, x: Block, values: Matrix) -> Matrix:
        """Σᵢ φ(xᵢ)² uᵢ of features that are not centred, (D, m); sparse rows stay sparse where φ does nothing."""
        with np.errstate(over="ignore", invalid="ignore"):  # the caller checks the sum
            if self.feature_map.is_identity and not isinstance(x, np.ndarray):
                # In float64: squares of small integers do not fit in their own type.
                found = np.asarray(x.astype(np.float64, copy=False).power(2).T @ values)
            else:
                phi = self.feature_map.transform(x)
                found = (phi * phi).T @ values
        return np.vstack([found, values.sum(axis=0)]) if self.has_constant else found


@dataclass
class RowWriter:
    """Writer of the rows of a segment, one strip after another, to an array in memory or to the chunks of a stored one.

    A segment begins where a chunk does, and ends where one does or with the array.
    """

    array: Matrix | ChunkedArray
    segment: Segment
    meter: Meter
    _chunk: Matrix | None = None

    def write(self, rows: slice, values: Matrix) -> None:
        """Write the next rows."""
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
