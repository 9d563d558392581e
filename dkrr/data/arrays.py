"""Rows of arrays: in this process's memory, in mapped files, of Zarr, HDF5, Dask, or anything that has slices.

Arrays in mapped files may be larger than memory, since the system can reclaim their pages. Zarr's array interface reads
and decodes every chunk that a block of rows touches as a whole: blocks of 14,000 rows from chunks of 50,000 would read
five times what they need. Where a chunk is one plain file whose bytes are its rows, the requested bytes are read
straight into the caller's array.
"""

import mmap
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dkrr.data.rows import ALL, SCRATCH_BYTES, ArrayRows, Block, Rows, StoredRows, filled, filled_blocks, n_bytes
from dkrr.errors import InputError, StoreError
from dkrr.sparse import check_structure
from dkrr.store.arrays import bucket_of_array, is_of_object_store, open_array, place_of
from dkrr.store.paths import faults_of, local_path
from dkrr.store.places import read_all
from dkrr.text import format_bytes


class MemoryRows(ArrayRows):
    """Rows of an array in this process's memory.

    Parameters
    ----------
    array : ndarray of shape (n, d) or (n,), or scipy.sparse CSR array
    name : str
        What it is called in error messages.
    """

    is_in_memory = True
    is_lazy = False

    def __init__(self, array: Block, name: str = "X") -> None:
        self.is_sparse = sp.issparse(array)
        super().__init__(array if self.is_sparse or array.ndim == 2 else array[:, None], name)

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


def csr_rows(X: Any, name: str) -> Rows:
    """Rows of a sparse matrix of any format, checked; the user's matrix stays as it is."""
    check_structure(X, name)
    return MemoryRows(canonical(sp.csr_array(X if X.ndim == 2 else X.reshape(-1, 1))))


def canonical(rows: Any) -> Any:
    """CSR array with sorted indices, each once: the same one, or a copy."""
    if not rows.has_canonical_format:
        rows = rows.copy()
        rows.sum_duplicates()
    return rows


class MappedRows(ArrayRows):
    """Rows copied from a mapped file, a block at a time; pages that were read are given back to the system.

    The map is one that a user has made: other processes get a copy.

    Parameters
    ----------
    array : np.memmap of shape (n, d) or (n,)
    """

    is_lazy = False

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

    def __getstate__(self) -> dict[str, Any]:
        return {"array": np.array(self.array, subok=False)}


@dataclass(frozen=True)
class NpyRows(StoredRows, MappedRows):
    """Rows of a .npy file, which other processes map themselves."""

    @cached_property
    def array(self) -> Any:
        """The file, mapped for reading."""
        return np.lib.format.open_memmap(self.url, mode="r")


def mapped_rows(array: Any, name: str) -> Rows:
    """Rows of a memory map; of one whose changes are in this process's memory only, they are in memory."""
    is_file = is_mapped(array) and array.mode != "c"
    return MappedRows(array) if is_file else MemoryRows(np.asarray(array), name)


def is_memory_map(value: Any) -> bool:
    """Whether a value is a memory map of NumPy."""
    return isinstance(value, np.memmap)


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


class ZarrRows(ArrayRows):
    """Rows of a Zarr array, which other processes open themselves.

    Parameters
    ----------
    place : str, or store of Zarr and path there
        Path or URL; of an array in a store without one, the store travels if it is of obstore.
    array : zarr.Array, optional
        The array, where it is open.
    """

    chunks_at_once = 4  # Zarr works on several

    def __init__(self, place: str | tuple[Any, str], array: Any = None) -> None:
        self.place = place
        if array is not None:
            self.array = array
        self.is_shared = isinstance(place, str) or is_of_object_store(self.array)

    @cached_property
    def array(self) -> Any:
        return open_array(self.place)

    @property
    def stored_at(self) -> str | None:
        return self.place if isinstance(self.place, str) else bucket_of_array(self.array)

    @cached_property
    def _files(self) -> "ChunkFiles | None":
        """Chunks as files, if they can be read without Zarr."""
        return ChunkFiles.of(self.array, self.place) if isinstance(self.place, str) else None

    def read(self, start: int, stop: int, columns: slice = ALL) -> Block:
        if self._files is None:
            return super().read(start, stop, columns)
        return filled(self._files.read_into, self, start, stop, columns)

    def blocks(self, start: int, stop: int, height: int) -> Iterator[tuple[slice, Block]]:
        if self._files is None:
            return super().blocks(start, stop, height)
        return filled_blocks(self._files.read_into, self, start, stop, height)

    def take(self, indices: NDArray[np.intp]) -> Block:
        return np.asarray(self.array.oindex[indices]).reshape(len(indices), self.shape[1])

    @property
    def read_overhead_bytes(self) -> int:
        return super().read_overhead_bytes if self._files is None else SCRATCH_BYTES

    def __getstate__(self) -> dict[str, Any]:
        return {"place": self.place, "is_shared": self.is_shared}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ZarrRows) and self.place == other.place

    def __hash__(self) -> int:
        return hash(self.place if isinstance(self.place, str) else self.place[1])


def zarr_rows(array: Any, name: str) -> Rows:
    """Rows of an open Zarr array, which are read where it is; one in this process's memory is read at once."""
    place = place_of(array)
    return MemoryRows(np.asarray(array[:]), name) if place is None else ZarrRows(place, array)


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

    def read_into(self, out: NDArray[Any], start: int) -> None:
        """Fill a C-ordered array with the rows from `start` on.

        Raises
        ------
        StoreError
            If a chunk is shorter than it should be.
        """
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


class HdfRows(ArrayRows):
    """Rows of a data set in an HDF5 file. Workers do not read these: they are staged first.

    Parameters
    ----------
    path, key : str
        The file, which another process opens itself, and the data set.
    array : h5py.Dataset, optional
        The data set, where a user has opened it.
    """

    def __init__(self, path: str, key: str, array: Any = None) -> None:
        self.path, self.key = path, key
        if array is not None:
            self.array = array

    @cached_property
    def array(self) -> Any:
        import h5py

        return h5py.File(self.path, "r")[self.key]

    def read(self, start: int, stop: int, columns: slice = ALL) -> Block:
        try:
            return super().read(start, stop, columns)
        except (OSError, RuntimeError) as error:  # a chunk is damaged, or compressed by a filter that is missing
            raise InputError(f"cannot read {self.path}::{self.key}: {error}; expected a whole HDF5 file") from error

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "key": self.key}


def is_hdf_array(value: Any) -> bool:
    """Whether a value is a data set of an HDF5 file, told without importing h5py."""
    return type(value).__module__.startswith("h5py.") and hasattr(value, "chunks")


def hdf_rows(value: Any, name: str) -> Rows:  # noqa: ARG001
    """Rows of an open data set."""
    return HdfRows(value.file.filename, value.name, value)


class DaskRows(ArrayRows):
    """Rows of a Dask array, computed when read. Workers do not read these: they are staged first.

    Parameters
    ----------
    array : dask.array.Array of shape (n, d) or (n,)
        Sparse blocks are checked before anything is cut from them.
    name : str
        What it is called in error messages.
    """

    is_computed = True

    def __init__(self, array: Any, name: str = "X") -> None:
        if any(np.isnan(size) for size in array.shape):
            raise InputError(
                f"{name} is a Dask array with unknown chunk sizes; expected known ones: call "
                f"{name}.compute_chunk_sizes() or to_dask_array(lengths=True) first"
            )
        if sp.issparse(array._meta):
            array = array.map_blocks(_checked, name, dtype=array.dtype, meta=array._meta)
        super().__init__(array if array.ndim == 2 else array[:, None], name)

    @property
    def edges(self) -> Sequence[int]:
        return list(accumulate(self.array.chunks[0], initial=0))

    @property
    def read_overhead_bytes(self) -> int:
        # A chunk is computed whole.
        return int(np.prod([max(c) for c in self.array.chunks])) * int(np.dtype(self.dtype).itemsize)

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
