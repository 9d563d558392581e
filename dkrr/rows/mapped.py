"""Rows of a memory map: a .npy file, or the part of a file that a user has mapped."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkrr.rows.memory import memory_rows
from dkrr.rows.sources import ALL, Block, Rows, StoredRows
from dkrr.tiles.mapped import is_mapped, release_pages


class FileRows(Rows):
    """Rows copied from a mapped file, a block at a time; pages that were read are given back to the system.

    Subclasses have the map, or make it. A vector counts as one column.
    """

    array: Any

    @cached_property
    def shape(self) -> tuple[int, int]:
        shape = self.array.shape
        return (int(shape[0]), int(shape[1]) if len(shape) == 2 else 1)

    @property
    def dtype(self) -> Any:
        return self.array.dtype

    def read(self, start: int, stop: int, columns: slice = ALL) -> Block:
        return self._copied((slice(start, stop), columns))

    def take(self, indices: NDArray[np.intp]) -> Block:
        return self._copied((indices, ALL))

    def _copied(self, index: Any) -> Block:
        array = self.array if self.array.ndim == 2 else self.array[:, None]
        block = np.array(array[index], order="C", subok=False)
        release_pages(self.array)
        return block

    @property
    def read_overhead_bytes(self) -> int:
        # Pages of the file in which the rows lie: in the order of Fortran, whole columns at worst.
        return 0 if self.array.flags.c_contiguous else self.n_bytes


@dataclass(frozen=True)
class NpyRows(FileRows, StoredRows):
    """Rows of a .npy file, which other processes map themselves."""

    @cached_property
    def array(self) -> Any:
        """The file, mapped for reading."""
        return np.lib.format.open_memmap(self.url, mode="r")


class MappedRows(FileRows):
    """Rows of a memory map that a user has made; other processes get a copy.

    Parameters
    ----------
    array : np.memmap of shape (n, d) or (n,)
    """

    def __init__(self, array: Any) -> None:
        self.array = array

    def __getstate__(self) -> dict[str, Any]:
        return {"array": np.array(self.array, subok=False)}


def mapped_rows(array: Any, name: str) -> Rows:
    """Rows of a memory map; of one whose changes are in this process's memory only, they are in memory."""
    is_file = is_mapped(array) and array.mode != "c"
    return MappedRows(array) if is_file else memory_rows(np.asarray(array), name)


def is_memory_map(value: Any) -> bool:
    """Whether a value is a memory map of NumPy."""
    return isinstance(value, np.memmap)
