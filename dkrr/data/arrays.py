"""Rows of arrays: in this process's memory, in mapped files, of Zarr, HDF5, or anything that has slices.

Arrays in mapped files may be larger than memory, since the system can reclaim their pages. Zarr's array interface reads
and decodes every chunk that a block of rows touches as a whole: blocks of 14,000 rows from chunks of 50,000 would read
five times what they need. Where a chunk is one plain file whose bytes are its rows, the requested bytes are read
straight into the caller's array.
"""

import math
import mmap
import os
import sys
import tempfile
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dkrr.data.packed import refuse_packed
from dkrr.data.rows import ALL, Block, Rows, n_bytes
from dkrr.errors import InputError, StoreError
from dkrr.sparse import check_structure
from dkrr.store.buckets import errors_of
from dkrr.store.paths import faults_of, local_path
from dkrr.store.places import read_all
from dkrr.store.zarr_arrays import (
    bucket_of_array,
    is_of_object_store,
    is_zarr_array,
    open_array,
    place_of,
    refuse_missing_chunks,
)
from dkrr.text import format_bytes

FLOAT_DTYPES = [np.float64, np.float32]
"""Types of which an estimator takes numbers as they are."""
SCRATCH_BYTES = 2**20
"""Size of the buffer that rows pass through of which only some columns are read."""


class ArrayRows(Rows):
    """Rows of anything with `shape`, `dtype` and slices. A vector counts as one column.

    Parameters
    ----------
    array : array of shape (n, d) or (n,)
        It travels to other processes.
    """

    is_lazy = True
    array: Any
    chunks_at_once = 1
    """Chunks that are in memory during a read."""

    def __init__(self, array: Any) -> None:
        self.array = array

    @property
    def shape(self) -> tuple[int, int]:
        shape = self.array.shape
        return (int(shape[0]), int(shape[1]) if len(shape) == 2 else 1)

    @property
    def dtype(self) -> Any:
        return np.dtype(self.array.dtype)

    @property
    def is_vector(self) -> bool:
        return len(self.array.shape) == 1

    @property
    def edges(self) -> Sequence[int] | None:
        chunks = getattr(self.array, "chunks", None)
        return range(0, self.shape[0] + chunks[0], chunks[0]) if chunks else None

    def read(self, start: int, stop: int, columns: slice = ALL) -> Block:
        if self.is_vector:
            return np.asarray(self.array[start:stop])[:, None][:, columns]
        return np.asarray(self.array[start:stop, columns])

    @property
    def read_overhead_bytes(self) -> int:
        # Chunks that a read touches are held whole, as stored and decoded.
        chunks = getattr(self.array, "chunks", None)
        return self.chunks_at_once * math.prod(chunks) * int(np.dtype(self.dtype).itemsize) if chunks else 0


class FilledRows(ArrayRows):
    """Rows that are written straight into the caller's array, whole; of some columns by way of a small buffer."""

    @abstractmethod
    def fill(self, out: NDArray[Any], start: int) -> None:
        """Fill a C-ordered array with the rows from `start` on."""

    def read(self, start: int, stop: int, columns: slice = ALL) -> Block:
        left, right, _ = columns.indices(self.shape[1])
        out = np.empty((stop - start, max(right - left, 0)), self.dtype)
        if out.shape[1] == self.shape[1]:
            self.fill(out, start)
            return out
        height = max(1, SCRATCH_BYTES // (self.shape[1] * self.dtype.itemsize))
        for where, block in self.blocks(start, stop, height):
            out[where.start - start : where.stop - start] = block[:, left:right]
        return out

    def blocks(self, start: int, stop: int, height: int) -> Iterator[tuple[slice, Block]]:
        """See base class; all in one buffer, since fresh memory takes longer than reading."""
        buffer = np.empty((max(0, min(height, stop - start)), self.shape[1]), self.dtype)
        for k in range(start, stop, height):
            block = buffer[: min(height, stop - k)]
            self.fill(block, k)
            yield slice(k, k + len(block)), block

    @property
    def read_overhead_bytes(self) -> int:
        return SCRATCH_BYTES


class OpenedRows(ArrayRows):
    """Rows of an array that another process opens itself, when it first reads them.

    Parameters
    ----------
    array : array of shape (n, d) or (n,)
        The array, open in this process.
    open_array : callable
        Opens it in another one.
    *place
        Arguments of the callable.
    url : str, optional
        Path or URL from which every process reads it; None: workers of a fit read a copy.
    """

    url: str | None = None

    def __init__(self, array: Any, open_array: Callable[..., Any], *place: Any, url: str | None = None) -> None:
        self.array, self.opener, self.url, self.is_shared = array, (open_array, *place), url, url is not None

    @cached_property
    def array(self) -> Any:
        """The array, opened when it is first needed."""
        open_array, *place = self.opener
        return open_array(*place)

    def __getstate__(self) -> dict[str, Any]:
        return {"opener": self.opener, "url": self.url, "is_shared": self.is_shared}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OpenedRows) and self.opener == other.opener

    def __hash__(self) -> int:
        return hash(self.url)


class MemoryRows(ArrayRows):
    """Rows of an array in this process's memory.

    Parameters
    ----------
    array : ndarray of shape (n, d) or (n,), or scipy.sparse CSR array
    """

    is_in_memory = True
    is_lazy = False
    # Plain values, since a fit asks for them many times.
    is_vector = False
    shape: tuple[int, int] = (0, 0)
    dtype: Any = None
    pointers: NDArray[Any] | None = None
    edges = None
    url = None
    read_overhead_bytes = 0

    def __init__(self, array: Block) -> None:
        self.is_sparse, self.is_vector = not isinstance(array, np.ndarray), array.ndim == 1
        self.array = array = array[:, None] if self.is_vector else array
        self.shape, self.dtype = (int(array.shape[0]), int(array.shape[1])), np.dtype(array.dtype)
        if self.is_sparse:
            self.pointers = array.indptr

    @property
    def index_bytes(self) -> int:
        return int(self.array.indices.itemsize)

    def read(self, start: int, stop: int, columns: slice = ALL) -> Block:
        block = self.array[start:stop]
        return block if columns is ALL or columns == ALL else block[:, columns]

    def take(self, indices: NDArray[np.intp]) -> Block:
        return self.array[indices]

    @property
    def n_bytes(self) -> int:
        return int(n_bytes(self.array)) if self.is_sparse else int(self.array.nbytes)


def csr_rows(X: Any, name: str) -> Rows:
    """Rows of a sparse matrix of any format, checked; the user's matrix is not changed."""
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

    Parameters
    ----------
    array : np.memmap of shape (n, d) or (n,)
        Other processes get a copy of it.
    """

    is_lazy = False

    def read(self, start: int, stop: int, columns: slice = ALL) -> Block:
        return self._copied((slice(start, stop), columns))

    def take(self, indices: NDArray[np.intp]) -> Block:
        return self._copied((indices, ALL))

    def _copied(self, index: Any) -> Block:
        array = self.array[:, None] if self.is_vector else self.array
        refuse_cut(self.array)
        block = np.array(array[index], order="C", subok=False)
        release_pages(self.array)
        return block

    @property
    def read_overhead_bytes(self) -> int:
        # Pages of the file in which the rows lie: in the order of Fortran, whole columns at worst.
        return 0 if self.array.flags.c_contiguous else self.n_bytes


class NpyRows(OpenedRows, MappedRows):
    """Rows of a .npy file, which other processes map themselves."""


def is_plain(value: Any, max_dimensions: int = 2, min_dimensions: int = 2) -> bool:
    """Whether a value is an ndarray of floats, whose kind needs no further question.

    Memory maps and masked arrays are of subclasses, and tables, labels, groups and graphs are not arrays of floats.
    scikit-learn's checks, which take a sixth of the time of a fit of a hundred rows, would return it unchanged.
    """
    return (
        type(value) is np.ndarray
        and value.dtype in FLOAT_DTYPES
        and min_dimensions <= value.ndim <= max_dimensions
        and value.size > 0
    )


def is_memory_map(value: Any) -> bool:
    """Whether a value is a memory map of NumPy whose numbers are all in its file, and not changed in memory only."""
    return isinstance(value, np.memmap) and is_mapped(value) and value.mode != "c"


def is_labelled(value: Any) -> bool:
    """Whether a value is an array of xarray, told without importing it."""
    return type(value).__module__.startswith("xarray.") and type(value).__name__ == "DataArray"


def is_in_file(value: Any) -> bool:
    """Whether a value is an array of xarray whose numbers are still in a file."""
    return is_labelled(value) and not getattr(value.variable, "_in_memory", True)


def _attributes(array: Any) -> Mapping[str, Any]:
    """Attributes of an array of xarray, Zarr or HDF5, as xarray would read them."""
    # Into format 2 xarray writes _FillValue as Zarr's own fill value; the default of others is 0.
    is_xarrays = is_zarr_array(array) and array.metadata.zarr_format == 2 and "_ARRAY_DIMENSIONS" in array.attrs
    own = {"_FillValue": array.fill_value} if is_xarrays and array.fill_value not in (None, 0) else {}
    return {**array.attrs, **own} if own else array.attrs


def drop_labels(value: Any, name: str = "X") -> Any:
    """Dask array or ndarray of an array of xarray that has one; others unchanged.

    Raises
    ------
    InputError
        If attributes, which are left behind, say that the numbers stand for others; it calls the array `name`.
    """
    if is_labelled(value) or is_zarr_array(value) or is_hdf_array(value):
        refuse_packed(_attributes(value), value.dtype, name)
    if not is_labelled(value) or (value.chunks is None and is_in_file(value)):
        return value
    return value.data if value.chunks is not None else value.values


class _Shared(mmap.mmap):
    """Mapping whose changes are in the file, so that its pages may be released at any time."""


def _mapping_of(array: Any) -> tuple[mmap.mmap | None, Any]:
    """Mapping that the numbers of an array lie in, and the array that was made of it; None of numbers in memory."""
    view = None
    while isinstance(array, np.ndarray) or type(array) is memoryview:
        view, array = array, array.base if isinstance(array, np.ndarray) else array.obj
    return (array, view) if isinstance(array, mmap.mmap) else (None, None)


def is_mapped(array: Any) -> bool:
    """Whether the numbers of an array lie in a mapped file."""
    return _mapping_of(array)[0] is not None


def refuse_cut(array: np.memmap[Any, Any]) -> None:
    """Refuse a memory map whose file has become shorter: a page after its end would end the process by SIGBUS.

    Raises
    ------
    InputError
        Naming the file.
    """
    mapping, view = _mapping_of(array)
    start = view.offset - view.offset % mmap.ALLOCATIONGRANULARITY if isinstance(view, np.memmap) else 0
    if mapping is not None and mapping.size() < start + len(mapping):
        raise InputError(
            f"{array.filename or 'the file of a memory map'} has {format_bytes(mapping.size())}, and had "
            f"{format_bytes(start + len(mapping))} when it was mapped; expected a whole file as long as it is used: "
            f"write others under another name, or replace a file (os.replace) rather than write into it"
        )


def release_pages(array: Any) -> None:
    """Give back the memory of pages of a file mapped for reading only, or by `mapped_array`; they are read again."""
    mapping, view = _mapping_of(array)
    # Of a private mapping that may be written to, the changes would be lost.
    is_safe = isinstance(mapping, _Shared) or (isinstance(view, np.memmap) and view.mode == "r")
    if mapping is not None and is_safe and hasattr(mmap, "MADV_DONTNEED"):
        mapping.madvise(mmap.MADV_DONTNEED)


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


class ZarrRows(OpenedRows):
    """Rows of a Zarr array, which other processes open themselves: at its URL, or in its store if it is of obstore.

    Parameters
    ----------
    array : zarr.Array
    """

    chunks_at_once = 4  # Zarr works on several

    def __init__(self, array: Any) -> None:
        place = place_of(array)
        super().__init__(array, open_array, place, url=place if isinstance(place, str) else bucket_of_array(array))
        self.is_shared = isinstance(place, str) or is_of_object_store(array)

    def read(self, start: int, stop: int, columns: slice = ALL) -> Block:
        with self._errors():
            return super().read(start, stop, columns)

    def take(self, indices: NDArray[np.intp]) -> Block:
        with self._errors():
            return np.asarray(self.array.oindex[indices]).reshape(len(indices), self.shape[1])

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Report errors of codecs, each of which has its own for a damaged chunk, and of what is behind a URL."""
        url = self.url or ""
        if "://" in url:
            with errors_of(url):
                yield
            return
        try:
            yield
        except (OSError, ValueError, RuntimeError, TypeError) as error:
            raise StoreError(
                f"cannot read {url or self.array.store}: {error}: the array is damaged. Rewrite it"
            ) from error


class PlainRows(FilledRows, ZarrRows):
    """Rows of a Zarr array on this machine's disk, whose chunks are plain files of whole rows: read without Zarr."""

    @cached_property
    def _files(self) -> tuple[Path, int, Any, tuple[int, ...]]:
        """Folder of the files, rows of each, what names them, and the rest of a chunk's position."""
        folder = local_path(self.url or "")
        assert folder is not None, "the array is on this machine"
        return folder, int(self.array.chunks[0]), self.array.metadata.encode_chunk_key, (0,) * (self.array.ndim - 1)

    def fill(self, out: NDArray[Any], start: int) -> None:
        """See base class; raises StoreError if a chunk is shorter than it should be."""
        (folder, height, name_of, rest), done = self._files, 0
        while done < len(out):
            chunk, skip = divmod(start + done, height)
            target = out[done : done + height - skip]
            file = folder / name_of((chunk, *rest))
            try:
                with file.open("rb", buffering=0) as stream:
                    read_all(
                        stream.fileno(), [target.reshape(-1).view(np.uint8).data], skip * out.itemsize * out.shape[1]
                    )
            except FileNotFoundError:  # Zarr would read its fill value
                raise StoreError(f"the chunk {file} is gone: the array is damaged. Rewrite it") from None
            except EOFError:
                raise StoreError(f"the chunk {file} ends too early: the array is damaged. Rewrite it") from None
            done += len(target)


def zarr_rows(array: Any, name: str) -> Rows:
    """Rows of an open Zarr array, which are read where it is; one in this process's memory is read at once."""
    refuse_missing_chunks(array, name)
    if place_of(array) is None:
        return MemoryRows(np.asarray(array[:]))
    return PlainRows(array) if _has_plain_files(array) else ZarrRows(array)


def _has_plain_files(array: Any) -> bool:
    """Whether chunks are files of whole rows, whose bytes are numbers in C order, in this machine's byte order."""
    place = place_of(array)
    if (
        not isinstance(place, str)
        or local_path(place) is None
        or (array.ndim == 2 and array.chunks[1] != array.shape[1])
    ):
        return False
    if array.shards is not None or array.compressors or array.filters or not array.dtype.isnative:
        return False
    if array.metadata.zarr_format == 2:
        return bool(array.metadata.order == "C")
    endian = getattr(array.serializer, "endian", None)
    plain = type(array.serializer).__name__ == "BytesCodec"
    # Text since Zarr 3.4, a member of an enumeration before.
    return plain and (endian is None or getattr(endian, "value", endian) == sys.byteorder)


class HdfRows(OpenedRows):
    """Rows of an open data set in an HDF5 file. Workers of a fit do not read these: they are staged first.

    Parameters
    ----------
    array : h5py.Dataset
        Another process opens the file itself.
    name : str
        What it is called in error messages.
    """

    def __init__(self, array: Any, name: str = "X") -> None:
        from h5py import h5d

        if array.size and array.id.get_space_status() != h5d.SPACE_STATUS_ALLOCATED:
            raise InputError(
                f"{name} is a data set of HDF5, {array.file.filename}::{array.name}, of which not all was written; "
                f"expected all, since HDF5 reads {array.fillvalue!s} in place of the rest: write it again"
            )
        super().__init__(array, _data_set, array.file.filename, array.name)

    def read(self, start: int, stop: int, columns: slice = ALL) -> Block:
        try:
            return super().read(start, stop, columns)
        except (OSError, RuntimeError) as error:  # a chunk is damaged, or compressed by a filter that is missing
            _, path, key = self.opener
            raise InputError(f"cannot read {path}::{key}: {error}; expected a whole HDF5 file") from error


def _data_set(path: str, key: str) -> Any:
    import h5py

    return h5py.File(path, "r")[key]


def is_hdf_array(value: Any) -> bool:
    """Whether a value is a data set of an HDF5 file, told without importing h5py."""
    return type(value).__module__.startswith("h5py.") and hasattr(value, "chunks")
