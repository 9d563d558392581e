"""Rows of arrays that are read by slices: in this process's memory, in a mapped file, or of xarray."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dkrr.data.mapped import is_mapped, release_pages
from dkrr.data.rows import ALL, ArrayRows, Block, Rows, StoredRows, n_bytes
from dkrr.sparse import check_structure


class MemoryRows(ArrayRows):
    """Rows of an array in this process's memory.

    Parameters
    ----------
    array : ndarray or scipy.sparse CSR array of shape (n, d)
    """

    is_in_memory = True

    def __init__(self, array: Block) -> None:
        self.array = array
        self.is_sparse = sp.issparse(array)

    @property
    def pointers(self) -> NDArray[Any] | None:
        return self.array.indptr if self.is_sparse else None

    @property
    def indices(self) -> Any:
        return self.array.indices if self.is_sparse else None

    def read(self, start: int, stop: int, columns: slice = ALL) -> Block:
        block = self.array[start:stop]
        return block if columns == ALL else block[:, columns]

    def take(self, indices: NDArray[np.intp]) -> Block:
        return self.array[indices]

    @property
    def n_bytes(self) -> int:
        return int(n_bytes(self.array))


def memory_rows(array: NDArray[Any], name: str) -> Rows:  # noqa: ARG001
    """Rows of an ndarray; a vector counts as one column."""
    return MemoryRows(array if array.ndim == 2 else array[:, None])


def csr_rows(X: Any, name: str) -> Rows:
    """Rows of a sparse matrix of any format, checked; the user's matrix stays as it is."""
    check_structure(X, name)
    rows = sp.csr_array(X if X.ndim == 2 else X.reshape(-1, 1))
    if not rows.has_canonical_format:
        rows = rows.copy()
        rows.sum_duplicates()
    return MemoryRows(rows)


class FileRows(ArrayRows):
    """Rows copied from a mapped file, a block at a time; pages that were read are given back to the system.

    Subclasses have the map, or make it.
    """

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

    def __getstate__(self) -> dict[str, Any]:
        return {"array": np.array(self.array, subok=False)}


def mapped_rows(array: Any, name: str) -> Rows:
    """Rows of a memory map; of one whose changes are in this process's memory only, they are in memory."""
    is_file = is_mapped(array) and array.mode != "c"
    return MappedRows(array) if is_file else memory_rows(np.asarray(array), name)


def is_memory_map(value: Any) -> bool:
    """Whether a value is a memory map of NumPy."""
    return isinstance(value, np.memmap)


class LabelledRows(ArrayRows):
    """Rows of an array of xarray in a file, which is read when they are. Workers do not read these.

    Parameters
    ----------
    array : xarray.DataArray of shape (n, d) or (n,)
    """

    is_lazy = True

    def read(self, start: int, stop: int, columns: slice = ALL) -> Block:
        # A slice is read and kept by its own array only; the values of the whole would stay in memory.
        return np.asarray(self.array[start:stop].values).reshape(stop - start, self.shape[1])[:, columns]

    def take(self, indices: NDArray[np.intp]) -> Block:
        return np.asarray(self.array[indices].values).reshape(len(indices), self.shape[1])


def is_labelled(value: Any) -> bool:
    """Whether a value is an array of xarray, told without importing it."""
    return type(value).__module__.startswith("xarray.") and type(value).__name__ == "DataArray"


def is_in_file(value: Any) -> bool:
    """Whether a value is an array of xarray whose numbers are still in a file."""
    return is_labelled(value) and not getattr(value.variable, "_in_memory", True)


def unlabelled(value: Any) -> Any:
    """Dask array or ndarray of an array of xarray that has one; others unchanged."""
    if not is_labelled(value) or (value.chunks is None and is_in_file(value)):
        return value
    return value.data if value.chunks is not None else value.values
