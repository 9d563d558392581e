"""Rows of arrays that are read by slices: in this process's memory, in a mapped file, of Zarr, xarray or Dask.

Arrays in mapped files may be larger than memory, since the system can reclaim their pages.
"""

import mmap
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dkrr.data.files import SCRATCH_BYTES, ChunkFiles
from dkrr.data.rows import ALL, ArrayRows, Block, Rows, StoredRows, n_bytes
from dkrr.errors import InputError
from dkrr.sparse import check_structure
from dkrr.store.arrays import (
    array_url,
    bucket_of_array,
    is_in_process,
    is_of_object_store,
    open_array,
    opened_at,
    place_of,
)
from dkrr.store.paths import faults_of
from dkrr.units import format_bytes


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


class _Shared(mmap.mmap):
    """Mapping whose changes are in the file, so that its pages may be released at any time."""


def is_mapped(array: Any) -> bool:
    """Whether the numbers of an array lie in a mapped file."""
    while isinstance(array, np.ndarray | memoryview):
        array = array.base if isinstance(array, np.ndarray) else array.obj
    return isinstance(array, mmap.mmap)


def release_pages(array: Any) -> None:
    """Give back the memory of pages of a file mapped for reading only, or by `mapped_array`; they are read again."""
    while isinstance(array, np.ndarray | memoryview):
        base: Any = array.base if isinstance(array, np.ndarray) else array.obj
        if isinstance(base, mmap.mmap):
            break
        array = base
    else:
        return
    # Of a private mapping that may be written to, the changes would be lost.
    if not isinstance(base, _Shared) and not (isinstance(array, np.memmap) and array.mode == "r"):
        return
    if hasattr(mmap, "MADV_DONTNEED"):
        base.madvise(mmap.MADV_DONTNEED)


def mapped_array(shape: tuple[int, ...], folder: str | None, content: str = "dual coefficients") -> NDArray[np.float64]:
    """Array in a temporary file without a name, which is gone with the array.

    Parameters
    ----------
    shape : tuple of int
    folder : str or None
        Where the file is; None: the system's folder of temporary files.
    content : str
        What it holds, for messages.

    Raises
    ------
    DiskSpaceError
        If it does not fit on the disk.
    StoreError
        If the folder does not take it for another reason.
    """
    n_bytes = 8 * int(np.prod(shape))
    what = f"keep {format_bytes(n_bytes)} of {content} in {folder or 'the temporary folder of the system'}"
    then = "or give another folder as dkrr.temporary-directory (many targets, or y in a file, need one)"
    with faults_of(what, then), tempfile.TemporaryFile(dir=folder) as file:
        # A page of a mapped file that does not fit on the disk would end the process.
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, n_bytes)
        else:  # macOS
            file.truncate(n_bytes)
        mapping = _Shared(file.fileno(), n_bytes)
        if hasattr(mmap, "MADV_RANDOM"):
            # Batches of targets take some columns of all rows: reading ahead would fetch the whole file for each.
            mapping.madvise(mmap.MADV_RANDOM)
        return np.frombuffer(mapping, np.float64).reshape(shape)


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


class DaskRows(ArrayRows):
    """Rows of a Dask array, computed when read. Workers do not read these: they are staged first.

    Parameters
    ----------
    array : dask.array.Array of shape (n, d) or (n,)
        Sparse blocks are checked before anything is cut from them.
    name : str
        What it is called in error messages.
    """

    is_lazy = True
    is_computed = True

    def __init__(self, array: Any, name: str = "X") -> None:
        if any(np.isnan(size) for size in array.shape):
            raise InputError(
                f"{name} is a Dask array with unknown chunk sizes; expected known ones: call "
                f"{name}.compute_chunk_sizes() or to_dask_array(lengths=True) first"
            )
        if sp.issparse(array._meta):
            array = array.map_blocks(_checked, name, dtype=array.dtype, meta=array._meta)
        self.array = array if array.ndim == 2 else array[:, None]

    @property
    def read_overhead_bytes(self) -> int:
        # A chunk is computed whole.
        return int(np.prod([max(c) for c in self.array.chunks])) * int(np.dtype(self.dtype).itemsize)

    def blocks(self, start: int, stop: int, height: int) -> Iterator[tuple[slice, Block]]:
        edges = np.cumsum([0, *self.array.chunks[0]]).tolist()
        return self._blocks_of_chunks(edges, start, stop, height)

    def read(self, start: int, stop: int, columns: slice = ALL) -> Block:
        return row_major(self.array[start:stop, columns].compute())

    def take(self, indices: NDArray[np.intp]) -> Block:
        return row_major(self.array[indices].compute())


def _checked(block: Block, name: str = "X") -> Block:
    """Block of a Dask array, whose blocks need not be what the array says they are."""
    if sp.issparse(block):
        check_structure(block, name)
    return block


def row_major(block: Block) -> Block:
    """Block of a Dask array as an ndarray or a CSR array, checked."""
    return _checked(block).tocsr() if sp.issparse(block) else np.asarray(block)


def is_dask_frame(X: Any) -> bool:
    """Whether X is a DataFrame of Dask, told without importing dask.dataframe, which needs pandas."""
    return type(X).__module__.startswith("dask.") and hasattr(X, "to_dask_array") and hasattr(X, "columns")


def unframed(X: Any) -> Any:
    """Dask array of a Dask DataFrame, whose rows are counted; others unchanged."""
    return X.to_dask_array(lengths=partition_lengths(X)) if is_dask_frame(X) else X


def partition_lengths(frame: Any) -> tuple[int, ...]:
    """Rows of each partition of a Dask DataFrame, found by one of its columns.

    Of partitions that are read from files only that column is then read twice.
    """
    counted = frame[[frame.columns[0]]] if len(frame.columns) else frame
    return tuple(map(int, counted.map_partitions(len).compute()))
