"""Rows in an array that dkrr wrote: read a block at a time, each with its checksum."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkrr.rows.sources import ALL, Block, Rows
from dkrr.tiles import ChunkedArray

SCRATCH_BYTES = 2**20
"""Size of the buffer that rows pass through of which only some columns are read."""


@dataclass(frozen=True)
class CheckedRows(Rows):
    """Rows of an array that dkrr wrote. A vector counts as one column."""

    array: ChunkedArray

    is_shared = True

    @property
    def url(self) -> str:
        """Path or URL of the array."""
        return self.array.url

    @property
    def arrays(self) -> tuple[ChunkedArray, ...]:
        """The array, as the arrays of sparse rows."""
        return (self.array,)

    @property
    def shape(self) -> tuple[int, int]:
        shape = self.array.shape
        return (shape[0], shape[1] if len(shape) == 2 else 1)

    @property
    def dtype(self) -> Any:
        return np.dtype(self.array.dtype)

    def read(self, start: int, stop: int, columns: slice = ALL) -> Block:
        d = self.shape[1]
        left, right, _ = columns.indices(d)
        if (left, right) == (0, d):
            return self.array.read_rows(start, stop).reshape(stop - start, d)
        out = np.empty((stop - start, max(right - left, 0)), self.dtype)
        height = max(1, SCRATCH_BYTES // (d * self.dtype.itemsize))
        for rows, block in self.blocks(start, stop, height):
            out[rows.start - start : rows.stop - start] = block[:, left:right]
        return out

    def blocks(self, start: int, stop: int, height: int) -> Iterator[tuple[slice, Block]]:
        """See base class; all in one buffer: fresh memory takes longer than reading."""
        buffer = np.empty((max(0, min(height, stop - start)), *self.array.shape[1:]), self.dtype)
        for k in range(start, stop, height):
            block = buffer[: min(height, stop - k)]
            self.array.read_rows(k, k + len(block), block)
            yield slice(k, k + len(block)), block.reshape(len(block), self.shape[1])

    def take(self, indices: NDArray[np.intp]) -> Block:
        out = np.empty((len(indices), *self.array.shape[1:]), self.dtype)
        # In the order of the rows, so that each block that holds several is read once.
        height, first, last, block = self.array.block_rows or self.array.chunks[0], 0, 0, None
        for at in np.argsort(indices, kind="stable"):
            row = int(indices[at])
            if block is None or not first <= row < last:
                first = row // height * height
                last = min(first + height, self.shape[0])
                block = self.array.read_rows(first, last)
            out[at] = block[row - first]
        return out.reshape(len(indices), self.shape[1])

    @property
    def read_overhead_bytes(self) -> int:
        return SCRATCH_BYTES

    def describe(self, rows_per_chunk: int | None = None) -> dict[str, Any]:
        """Values of JSON from which `described_rows` makes these rows again, at their place.

        `rows_per_chunk` is that of `write_rows`: the layout follows from it.
        """
        shape, dtype = list(self.array.shape), self.array.dtype
        return {"kind": "dense", "shape": shape, "dtype": dtype, "rows_per_chunk": rows_per_chunk}
