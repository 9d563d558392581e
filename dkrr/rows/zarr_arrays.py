"""Rows of a Zarr array in a store."""

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkrr.rows.chunk_files import SCRATCH_BYTES, ChunkFiles
from dkrr.rows.memory import memory_rows
from dkrr.rows.sources import ALL, Block, Rows, StoredRows
from dkrr.tiles.arrays import array_url, open_array


class ZarrRows(StoredRows):
    """Rows of a Zarr array in a store. A vector counts as one column."""

    is_lazy = True

    @cached_property
    def _array(self) -> Any:
        return open_array(self.url)

    @cached_property
    def shape(self) -> tuple[int, int]:
        shape = self._array.shape
        return (int(shape[0]), int(shape[1]) if len(shape) == 2 else 1)

    @cached_property
    def dtype(self) -> Any:
        return self._array.dtype

    @cached_property
    def _files(self) -> ChunkFiles | None:
        """Chunks as files, if they can be read without Zarr."""
        return ChunkFiles.of(self._array, self.url)

    @property
    def is_plain(self) -> bool:
        """Whether chunks are files of the numbers themselves, of which only the requested rows are read."""
        return self._files is not None

    @property
    def attributes(self) -> Any:
        """Attributes of the array."""
        return self._array.attrs

    def read(self, start: int, stop: int, columns: slice = ALL) -> Block:
        if self._files is not None:
            return self._files.read(start, stop, columns)
        if self._array.ndim == 1:
            return self._array[start:stop][:, None][:, columns]
        return np.asarray(self._array[start:stop, columns])

    def blocks(self, start: int, stop: int, height: int) -> Iterator[tuple[slice, Block]]:
        if self._files is not None:
            return self._files.blocks(start, stop, height)
        n, step = self.shape[0], int(self._array.chunks[0])
        return self._blocks_of_chunks(range(0, n + step, step), start, stop, height)

    def take(self, indices: NDArray[np.intp]) -> Block:
        return np.asarray(self._array.oindex[indices]).reshape(len(indices), self.shape[1])

    @property
    def read_overhead_bytes(self) -> int:
        if self._files is not None:
            return SCRATCH_BYTES
        # Chunks that a read touches are held whole, as stored and decoded; Zarr works on several at once.
        return 4 * int(np.prod(self._array.chunks)) * int(np.dtype(self.dtype).itemsize)


def zarr_rows(array: Any, name: str) -> Rows:
    """Rows of an open Zarr array, which are read where it is, or copied if only this process has it."""
    url = array_url(array)
    return memory_rows(np.asarray(array[:]), name) if url is None else ZarrRows(url)
