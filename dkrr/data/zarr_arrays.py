"""Rows of Zarr arrays."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkrr.data.arrays import memory_rows
from dkrr.data.chunk_files import SCRATCH_BYTES, ChunkFiles
from dkrr.data.rows import ALL, ArrayRows, Block, Rows, StoredRows
from dkrr.store.arrays import (
    array_url,
    bucket_of_array,
    is_in_process,
    is_of_object_store,
    open_array,
    opened_at,
    place_of,
)


class OpenedRows(ArrayRows):
    """Rows of a Zarr array."""

    is_lazy = True

    @property
    def _files(self) -> ChunkFiles | None:
        """Chunks as files, if they can be read without Zarr."""
        return None

    @property
    def attributes(self) -> Any:
        """Attributes of the array."""
        return self.array.attrs

    def read(self, start: int, stop: int, columns: slice = ALL) -> Block:
        if self._files is not None:
            return self._files.read(start, stop, columns)
        if self.array.ndim == 1:
            return self.array[start:stop][:, None][:, columns]
        return np.asarray(self.array[start:stop, columns])

    def blocks(self, start: int, stop: int, height: int) -> Iterator[tuple[slice, Block]]:
        if self._files is not None:
            return self._files.blocks(start, stop, height)
        n, step = self.shape[0], int(self.array.chunks[0])
        return self._blocks_of_chunks(range(0, n + step, step), start, stop, height)

    def take(self, indices: NDArray[np.intp]) -> Block:
        return np.asarray(self.array.oindex[indices]).reshape(len(indices), self.shape[1])

    @property
    def read_overhead_bytes(self) -> int:
        if self._files is not None:
            return SCRATCH_BYTES
        # Chunks that a read touches are held whole, as stored and decoded; Zarr works on several at once.
        return 4 * int(np.prod(self.array.chunks)) * int(np.dtype(self.dtype).itemsize)


@dataclass(frozen=True)
class ZarrRows(OpenedRows, StoredRows):
    """Rows of a Zarr array that other processes find by its path or URL."""

    @cached_property
    def array(self) -> Any:
        return open_array(self.url)

    @cached_property
    def _files(self) -> ChunkFiles | None:
        """Chunks as files, if they can be read without Zarr."""
        return ChunkFiles.of(self.array, self.url)

    @property
    def is_plain(self) -> bool:
        """Whether chunks are files of the numbers themselves, of which only the requested rows are read."""
        return self._files is not None


class OpenZarrRows(OpenedRows):
    """Rows of an open Zarr array, in a store that has no URL: other processes read it if it is of obstore."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self.is_shared = is_of_object_store(array)

    @property
    def stored_at(self) -> str | None:
        return bucket_of_array(self.array)

    def __getstate__(self) -> dict[str, Any]:
        return {"place": place_of(self.array), "is_shared": self.is_shared}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({"array": opened_at(*state["place"]), "is_shared": state["is_shared"]})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OpenZarrRows) and place_of(self.array) == place_of(other.array)

    def __hash__(self) -> int:
        return hash(self.array.path)


def zarr_rows(array: Any, name: str) -> Rows:
    """Rows of an open Zarr array, which are read where it is; one in this process's memory is read at once."""
    if is_in_process(array):
        return memory_rows(np.asarray(array[:]), name)
    url = array_url(array)
    return OpenZarrRows(array) if url is None else ZarrRows(url)
