"""A table of numbers that is read a block of rows at a time."""

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dkrr.errors import InputError, StoreError
from dkrr.rows.chunk_files import SCRATCH_BYTES, ChunkFiles
from dkrr.sparse import check_structure
from dkrr.tiles.arrays import open_array

Block = Any
"""A 2-D ndarray or a scipy.sparse CSR array."""

ALL = slice(None)

WINDOW_ROWS = 256
"""Consecutive sparse rows whose average is taken: tiles are seldom lower, and a single dense row does not count."""

PART_ENTRIES = 2**18
"""Most stored entries of sparse rows that are read at once for a tile of a Gram matrix: 3 MiB, which kernels copy a few
times. With fewer, the rows of a tile would be read and transposed more often."""


class Rows(ABC):
    """Rows of a table: shape, dtype, and blocks of consecutive rows."""

    is_sparse: bool = False
    is_in_memory: bool = False
    """True if reading costs no more than looking."""
    is_shared: bool = False
    """True if another process can read the rows too (they are in a store, not in this process)."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""

    @property
    @abstractmethod
    def dtype(self) -> Any:
        """Type of the numbers as they are stored."""

    @abstractmethod
    def read(self, start: int, stop: int, columns: slice = ALL) -> Block:
        """Rows start ... stop − 1 (of some columns) as they are stored: ndarray, or CSR if `is_sparse`."""

    def blocks(self, start: int, stop: int, height: int) -> Iterator[tuple[slice, Block]]:
        """Rows start ... stop − 1 in consecutive blocks, for work that goes through all of them once.

        What the container can only read as a whole (a compressed chunk) is read once, not for every block of it.

        Parameters
        ----------
        start, stop : int
        height : int
            Most rows of a block; blocks end at start + k × height, and may end between.

        Yields
        ------
        rows : slice
        block : ndarray, or CSR array if `is_sparse`
            To be read only, and only until the next one is asked for.
        """
        for k in range(start, stop, height):
            rows = slice(k, min(k + height, stop))
            yield rows, self.read(rows.start, rows.stop)

    def parts(self, rows: slice) -> list[slice]:
        """Consecutive ranges that together are `rows`, each to be read on its own where memory counts.

        Sparse rows are cut into at most PART_ENTRIES stored entries, or one row; dense ones are not cut.
        """
        return [rows]

    def take(self, indices: NDArray[np.intp]) -> Block:
        """Some rows, by number, as they are stored; nothing else is read where the container can do that."""
        blocks = [self.read(int(k), int(k) + 1) for k in indices]
        return sp.csr_array(sp.vstack(blocks, format="csr")) if self.is_sparse else np.concatenate(blocks)

    @property
    def n_bytes(self) -> int:
        """Bytes of the whole table in memory."""
        return int(self.shape[0]) * int(self.shape[1]) * int(np.dtype(self.dtype).itemsize)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row (an average, for sparse rows) in memory, as float64."""
        return self.shape[1] * 8

    @property
    def pointers(self) -> NDArray[Any] | None:
        """Where each sparse row begins among the stored entries, and the last one ends, (n + 1,); None of others."""
        return None

    @property
    def heavy_row_bytes(self) -> int:
        """Bytes of one row where rows are heaviest: no block of WINDOW_ROWS or more has twice as many a row."""
        return self.row_bytes

    @property
    def heaviest_bytes(self) -> tuple[int, ...]:
        """Bytes of the heaviest row, of the 2, 4, 8, ... heaviest ones together, and of all of them."""
        n, row_bytes = max(self.shape[0], 1), self.row_bytes
        return tuple(row_bytes * k for k in (*(2**k for k in range(n.bit_length()) if 2**k < n), n))

    @property
    def read_overhead_bytes(self) -> int:
        """Most bytes that a read needs besides its result (decoded chunks)."""
        return 0


def _blocks_of_chunks(
    rows: Rows, edges: Sequence[int], start: int, stop: int, height: int
) -> Iterator[tuple[slice, Block]]:
    """Blocks cut from whole chunks: as many as `height` rows hold, or one; `edges` are where chunks begin and end."""
    first = start
    while first < stop:
        k = bisect_right(edges, first + height) - 1
        last = min(edges[k] if edges[k] > first else edges[k + 1], stop)
        chunks, top = rows.read(first, last), first
        while top < last:
            bottom = min(last, top + height - (top - start) % height)
            yield slice(top, bottom), chunks[top - first : bottom - first]
            top = bottom
        first = last


class MemoryRows(Rows):
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
    def shape(self) -> tuple[int, int]:
        return (int(self.array.shape[0]), int(self.array.shape[1]))

    @property
    def dtype(self) -> Any:
        return self.array.dtype

    def read(self, start: int, stop: int, columns: slice = ALL) -> Block:
        block = self.array[start:stop]
        return block if columns == ALL else block[:, columns]

    def parts(self, rows: slice) -> list[slice]:
        return _parts_of(self.array.indptr[rows.start : rows.stop + 1], rows) if self.is_sparse else [rows]

    def take(self, indices: NDArray[np.intp]) -> Block:
        return self.array[indices]

    @property
    def n_bytes(self) -> int:
        if self.is_sparse:
            return int(self.array.data.nbytes + self.array.indices.nbytes + self.array.indptr.nbytes)
        return int(self.array.nbytes)

    @property
    def row_bytes(self) -> int:
        return _csr_row_bytes(self, self.array.indices) if self.is_sparse else super().row_bytes

    @property
    def pointers(self) -> NDArray[Any] | None:
        return self.array.indptr if self.is_sparse else None

    @property
    def heavy_row_bytes(self) -> int:
        return _heavy_row_bytes(self, self.array.indptr) if self.is_sparse else self.row_bytes

    @property
    def heaviest_bytes(self) -> tuple[int, ...]:
        return _heaviest_bytes(self.array.indptr, self.array.indices) if self.is_sparse else super().heaviest_bytes


@dataclass(frozen=True)
class ZarrRows(Rows):
    """Rows of a Zarr array in a store; travels between processes by name. A vector counts as one column."""

    url: str

    is_shared = True

    @cached_property
    def _array(self) -> Any:
        return open_array(self.url)

    @cached_property
    def shape(self) -> tuple[int, int]:
        shape = self._array.shape
        return (int(shape[0]), int(shape[1]) if len(shape) == 2 else 1)

    @cached_property
    def dtype(self) -> Any:
        """Type of the stored numbers."""
        return self._array.dtype

    @cached_property
    def _files(self) -> ChunkFiles | None:
        """Chunks as files, if they can be read without Zarr."""
        return ChunkFiles.of(self._array, self.url)

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
        return _blocks_of_chunks(self, range(0, n + step, step), start, stop, height)

    def take(self, indices: NDArray[np.intp]) -> Block:
        return np.asarray(self._array.oindex[indices]).reshape(len(indices), self.shape[1])

    @property
    def read_overhead_bytes(self) -> int:
        if self._files is not None:
            return SCRATCH_BYTES
        # Chunks that a read touches are held whole, as stored and decoded; Zarr works on several at once.
        return 4 * int(np.prod(self._array.chunks)) * int(np.dtype(self.dtype).itemsize)

    def __getstate__(self) -> dict[str, str]:
        return {"url": self.url}


@dataclass(frozen=True)
class SparseRows(Rows):
    """CSR rows in a store: a group of the arrays `data`, `indices` and `indptr`; travels by name."""

    url: str

    is_shared = True
    is_sparse = True

    @cached_property
    def _parts(self) -> tuple[Any, Any, Any]:
        return tuple(open_array(f"{self.url}/{part}") for part in ("data", "indices", "indptr"))

    @cached_property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return (int(self._parts[2].shape[0]) - 1, int(self._parts[2].attrs["n_columns"]))

    @cached_property
    def dtype(self) -> Any:
        """Type of the stored numbers."""
        return self._parts[0].dtype

    @property
    def n_bytes(self) -> int:
        return sum(int(part.shape[0]) * int(part.dtype.itemsize) for part in self._parts)

    @property
    def row_bytes(self) -> int:
        return _csr_row_bytes(self, self._parts[1])

    @property
    def pointers(self) -> NDArray[Any] | None:
        return np.asarray(self._parts[2][...])

    @cached_property
    def heavy_row_bytes(self) -> int:
        return _heavy_row_bytes(self, self._parts[2][...])

    @cached_property
    def heaviest_bytes(self) -> tuple[int, ...]:
        return _heaviest_bytes(self._parts[2][...], self._parts[1])

    @cached_property
    def _files(self) -> tuple[ChunkFiles | None, ...]:
        """Chunks of `data`, `indices` and `indptr` as files, if they can be read without Zarr."""
        names = ("data", "indices", "indptr")
        return tuple(ChunkFiles.of(a, f"{self.url}/{name}") for a, name in zip(self._parts, names, strict=True))

    def _read_part(self, part: int, start: int, stop: int) -> NDArray[Any]:
        files = self._files[part]
        return np.asarray(self._parts[part][start:stop] if files is None else files.read(start, stop, ALL)[:, 0])

    @property
    def read_overhead_bytes(self) -> int:
        if None not in self._files:
            return 0
        return max(4 * int(part.chunks[0]) * int(part.dtype.itemsize) for part in self._parts)

    def parts(self, rows: slice) -> list[slice]:
        return _parts_of(self._read_part(2, rows.start, rows.stop + 1), rows)

    def read(self, start: int, stop: int, columns: slice = ALL) -> Block:
        n_entries, pointers = int(self._parts[1].shape[0]), self._read_part(2, start, stop + 1)
        first, last = int(pointers[0]), int(pointers[-1])
        try:
            if not 0 <= first <= last <= n_entries:
                raise InputError(f"rows {start} to {stop - 1} lie outside of the {n_entries} stored indices")
            data, indices = (self._read_part(part, first, last) for part in (0, 1))
            block = sp.csr_array((data, indices, pointers - first), shape=(stop - start, self.shape[1]))
            check_structure(block)
        except ValueError as error:  # SciPy's own, and ours
            raise StoreError(f"the sparse rows in {self.url} are damaged: {error}. Write them again") from error
        return block if columns == ALL else block[:, columns]

    def __getstate__(self) -> dict[str, str]:
        return {"url": self.url}


class DaskRows(Rows):
    """Rows of a Dask array, computed when read. Workers do not read these: they are staged first.

    Parameters
    ----------
    array : dask.array.Array of shape (n, d) or (n,)
        Sparse blocks are checked before anything is cut from them.
    name : str
        What it is called in error messages.
    """

    def __init__(self, array: Any, name: str = "X") -> None:
        if sp.issparse(array._meta):
            array = array.map_blocks(_checked, name, dtype=array.dtype, meta=array._meta)
        self.array = array if array.ndim == 2 else array[:, None]

    @property
    def shape(self) -> tuple[int, int]:
        return (int(self.array.shape[0]), int(self.array.shape[1]))

    @property
    def dtype(self) -> Any:
        return self.array.dtype

    @property
    def read_overhead_bytes(self) -> int:
        # A chunk is computed whole.
        return int(np.prod([max(c) for c in self.array.chunks])) * int(np.dtype(self.dtype).itemsize)

    def blocks(self, start: int, stop: int, height: int) -> Iterator[tuple[slice, Block]]:
        edges = np.cumsum([0, *self.array.chunks[0]]).tolist()
        return _blocks_of_chunks(self, edges, start, stop, height)

    def read(self, start: int, stop: int, columns: slice = ALL) -> Block:
        return row_major(self.array[start:stop, columns].compute())

    def take(self, indices: NDArray[np.intp]) -> Block:
        return row_major(self.array[indices].compute())


def _checked(block: Block, name: str) -> Block:
    """Block of a Dask array, whose blocks need not be what the array says they are."""
    if sp.issparse(block):
        check_structure(block, name)
    return block


def row_major(block: Block) -> Block:
    """Block of a Dask array as an ndarray or a CSR array, checked."""
    if not sp.issparse(block):
        return np.asarray(block)
    check_structure(block)
    return block.tocsr()


def _csr_row_bytes(rows: Rows, indices: Any) -> int:
    """Bytes of a row on average, with its values as float64, and two pointers."""
    entries, width = int(indices.shape[0]), 8 + int(indices.dtype.itemsize)
    return -(-entries * width // max(rows.shape[0], 1)) + 16


def _heavy_row_bytes(rows: Rows, indptr: NDArray[Any]) -> int:
    """Bytes of a row, from the average by how many more entries than that the heaviest window of rows has."""
    height = min(WINDOW_ROWS, rows.shape[0])
    entries, most = int(indptr[-1]), int((indptr[height:] - indptr[:-height]).max(initial=0))
    if entries == 0:
        return rows.row_bytes
    return max(rows.row_bytes, -(-rows.row_bytes * most * rows.shape[0] // (entries * height)))


def _heaviest_bytes(indptr: NDArray[Any], indices: Any) -> tuple[int, ...]:
    """Bytes of the 1, 2, 4, ... rows with the most entries, and of all rows, counted as in `_csr_row_bytes`."""
    totals = np.cumsum(np.sort(np.diff(indptr).astype(np.int64))[::-1])
    numbers = [*(2**k for k in range(len(totals).bit_length()) if 2**k < len(totals)), len(totals)]
    return tuple(int(totals[k - 1]) * (8 + int(indices.dtype.itemsize)) + 16 * k for k in numbers)


def _parts_of(pointers: NDArray[Any], rows: slice) -> list[slice]:
    """`Rows.parts` from the pointers of these rows, of shape (len(rows) + 1,)."""
    cuts = cuts_by_entries(pointers, PART_ENTRIES)
    return [slice(rows.start + a, rows.start + b) for a, b in pairwise(cuts)]


def cuts_by_entries(pointers: NDArray[Any], most: int, height: int | None = None) -> list[int]:
    """Cut sparse rows into blocks of at most so many entries, or of one row.

    Parameters
    ----------
    pointers : ndarray of int, shape (n + 1,)
    most : int
    height : int, optional
        Most rows of a block.

    Returns
    -------
    list of int
        First rows of the blocks, and n.
    """
    cuts, n = [0], len(pointers) - 1
    while cuts[-1] < n:
        last = int(np.searchsorted(pointers, int(pointers[cuts[-1]]) + most, side="right")) - 1
        cuts.append(min(max(last, cuts[-1] + 1), n if height is None else cuts[-1] + height, n))
    return cuts


def dense(block: Block) -> NDArray[Any]:
    """Block as an ndarray."""
    return np.asarray(block.todense()) if sp.issparse(block) else np.asarray(block)


def n_bytes(block: Block) -> int:
    """Bytes of a block in memory."""
    return (
        sum(part.nbytes for part in (block.data, block.indices, block.indptr)) if sp.issparse(block) else block.nbytes
    )
