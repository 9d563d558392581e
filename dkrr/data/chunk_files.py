"""Rows read from the chunk files of an uncompressed Zarr array, and no other rows.

Zarr's array interface reads and decodes every chunk that a block of rows touches as a whole: blocks of 14,000 rows from
chunks of 50,000 would read five times what they need. Where a chunk is one plain file whose bytes are its rows, the
requested bytes are read straight into the caller's array.
"""

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dkrr.errors import StoreError
from dkrr.store.files import read_all
from dkrr.store.paths import local_path

SCRATCH_BYTES = 2**20
"""Size of the buffer that rows pass through of which only some columns are read."""


@dataclass(frozen=True)
class ChunkFiles:
    """The chunks of a matrix (or vector) on this machine's disk, of whole rows each."""

    folder: Path
    metadata: Any
    """Metadata of the Zarr array, which has the names of the files."""
    n_columns: int
    rows_per_chunk: int
    n_dimensions: int
    dtype: np.dtype[Any]
    fill_value: Any

    @classmethod
    def of(cls, array: Any, url: str) -> Self | None:
        """Chunk files of a Zarr array; None if chunks are not plain files of whole rows."""
        path = local_path(url)
        columns = int(array.shape[1]) if array.ndim == 2 else 1
        whole_rows = array.ndim == 1 or int(array.chunks[1]) == columns
        if path is None or not whole_rows or not _is_plain(array):
            return None
        return cls(path, array.metadata, columns, int(array.chunks[0]), array.ndim, array.dtype, array.fill_value)

    def read(self, start: int, stop: int, columns: slice) -> NDArray[Any]:
        """Rows start ... stop − 1 of some columns.

        Raises
        ------
        StoreError
            If a chunk is shorter than it should be.
        """
        left, right, _ = columns.indices(self.n_columns)
        if (left, right) == (0, self.n_columns):
            out = np.empty((stop - start, self.n_columns), self.dtype)
            self._read_into(out, start)
            return out
        out = np.empty((stop - start, max(right - left, 0)), self.dtype)
        height = max(1, SCRATCH_BYTES // (self.n_columns * self.dtype.itemsize))
        scratch = np.empty((min(height, stop - start), self.n_columns), self.dtype)
        for top in range(0, stop - start, height):
            rows = scratch[: min(height, stop - start - top)]
            self._read_into(rows, start + top)
            out[top : top + height] = rows[:, left:right]
        return out

    def blocks(self, start: int, stop: int, height: int) -> Iterator[tuple[slice, NDArray[Any]]]:
        """Rows start ... stop − 1 in blocks of `height`, all in one buffer: fresh memory takes longer than reading."""
        buffer = np.empty((max(0, min(height, stop - start)), self.n_columns), self.dtype)
        for k in range(start, stop, height):
            block = buffer[: min(height, stop - k)]
            self._read_into(block, k)
            yield slice(k, k + len(block)), block

    def _read_into(self, out: NDArray[Any], start: int) -> None:
        """Fill a C-ordered array with the rows from `start` on."""
        row_bytes, done = self.n_columns * self.dtype.itemsize, 0
        while done < len(out):
            chunk, skip = divmod(start + done, self.rows_per_chunk)
            target = out[done : done + self.rows_per_chunk - skip]
            key = self.metadata.encode_chunk_key((chunk, 0)[: self.n_dimensions])
            try:
                descriptor = os.open(self.folder / key, os.O_RDONLY)
            except FileNotFoundError:
                target[...] = self.fill_value  # as Zarr does
            else:
                try:
                    read_all(descriptor, [target.reshape(-1).view(np.uint8).data], skip * row_bytes)
                except EOFError:
                    raise StoreError(
                        f"the chunk {self.folder / key} ends too early: the array is damaged. Rewrite it"
                    ) from None
                finally:
                    os.close(descriptor)
            done += len(target)


def _is_plain(array: Any) -> bool:
    """Whether a chunk's bytes are its numbers in C order, in this machine's byte order."""
    if array.shards is not None or array.compressors or array.filters or not array.dtype.isnative:
        return False
    if array.metadata.zarr_format == 2:
        return bool(array.metadata.order == "C")
    endian = getattr(array.serializer, "endian", None)
    plain = type(array.serializer).__name__ == "BytesCodec"
    # Text since Zarr 3.4, a member of an enumeration before.
    return plain and (endian is None or getattr(endian, "value", endian) == sys.byteorder)
