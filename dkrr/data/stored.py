"""Rows that dkrr wrote into a store: dense, CSR, or of a Gram matrix; and how they are written.

Each block is read with its checksum. CSR rows are the arrays `data`, `indices` and `indptr`; of the Gram matrix that
`dkrr.gram` keeps, the store holds the lower triangle in tiles. A copy of X is written so that every worker can read any
block of it, and is found there again.
"""

import uuid
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import Any

import dask
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dkrr.checks import may_keep
from dkrr.cluster import Progress
from dkrr.data.arrays import SCRATCH_BYTES, FilledRows
from dkrr.data.dask_rows import DaskRows, row_major
from dkrr.data.rows import ALL, Block, Rows, cuts_by_entries, dense
from dkrr.errors import DamagedChunkError, InputError, StoreError
from dkrr.sparse import check_structure
from dkrr.store import ChunkedArray, RunStore, TiledMatrix, TileGrid, description
from dkrr.store.format import STORED_DTYPES, write_group
from dkrr.store.places import Place


class StoredCopy(Rows):
    """Rows that dkrr wrote, dense or sparse. Only the names and layouts of their arrays travel to other processes."""

    is_shared = True
    is_checked = True

    @property
    @abstractmethod
    def arrays(self) -> tuple[ChunkedArray, ...]:
        """Arrays that the rows are in."""

    @abstractmethod
    def describe(self, rows_per_chunk: int | None = None) -> dict[str, Any]:
        """Values of JSON from which `described_rows` makes these rows again, at their place.

        `rows_per_chunk` is that of `write_rows`: the layout of dense rows follows from it.
        """

    @property
    def n_bytes(self) -> int:
        return sum(prod(array.shape) * np.dtype(array.dtype).itemsize for array in self.arrays)

    def check_complete(self) -> None:
        """Refuse rows of which chunks are missing; raises StoreError."""
        for array in self.arrays:
            array.check_complete()


@dataclass(frozen=True)
class CheckedRows(FilledRows, StoredCopy):
    """Rows of an array that dkrr wrote. A vector counts as one column."""

    array: ChunkedArray

    is_lazy = False

    @property
    def url(self) -> str:
        return self.array.url

    @property
    def arrays(self) -> tuple[ChunkedArray, ...]:
        return (self.array,)

    def fill(self, out: NDArray[Any], start: int) -> None:
        self.array.read_rows(start, start + len(out), out.reshape(len(out), *self.array.shape[1:]))

    @property
    def edges(self) -> Sequence[int]:
        height = self.array.block_rows or self.array.chunks[0]
        return range(0, self.shape[0] + height, height)

    def describe(self, rows_per_chunk: int | None = None) -> dict[str, Any]:
        shape, dtype = list(self.array.shape), self.array.dtype
        return {"kind": "dense", "shape": shape, "dtype": dtype, "rows_per_chunk": rows_per_chunk}


@dataclass(frozen=True)
class SparseRows(StoredCopy):
    """CSR rows in a store."""

    values: ChunkedArray
    indices: ChunkedArray
    indptr: ChunkedArray
    n_columns: int

    is_sparse = True

    @property
    def url(self) -> str:
        return self.values.url.rpartition("/")[0]

    @property
    def arrays(self) -> tuple[ChunkedArray, ...]:
        return (self.values, self.indices, self.indptr)

    @property
    def shape(self) -> tuple[int, int]:
        return (self.indptr.shape[0] - 1, self.n_columns)

    @property
    def dtype(self) -> Any:
        return np.dtype(self.values.dtype)

    @property
    def index_bytes(self) -> int:
        return int(np.dtype(self.indices.dtype).itemsize)

    @property
    def n_entries(self) -> int:
        return self.values.shape[0]

    @property
    def pointers(self) -> NDArray[Any] | None:
        return self._pointers_of(slice(0, self.shape[0]))

    def _pointers_of(self, rows: slice) -> NDArray[Any]:
        return self.indptr.read_rows(rows.start, rows.stop + 1)

    def read(self, start: int, stop: int, columns: slice = ALL) -> Block:
        pointers = self._pointers_of(slice(start, stop))
        first, last = int(pointers[0]), int(pointers[-1])
        try:
            if not 0 <= first <= last <= self.n_entries:
                raise InputError(f"rows {start} to {stop - 1} lie outside of the {self.n_entries} stored indices")
            data, indices = self.values.read_rows(first, last), self.indices.read_rows(first, last)
            block = sp.csr_array((data, indices, pointers - first), shape=(stop - start, self.shape[1]))
            check_structure(block)
        except (ValueError, MemoryError) as error:  # SciPy's own, and ours
            text = f"the sparse rows in {self.url} are damaged: {error}. Write them again"
            raise DamagedChunkError(text, self.url, "indptr") from error
        return block if columns == ALL else block[:, columns]

    @property
    def read_overhead_bytes(self) -> int:
        return SCRATCH_BYTES

    def describe(self, rows_per_chunk: int | None = None) -> dict[str, Any]:  # noqa: ARG002
        dtype = self.values.dtype
        return {"kind": "sparse", "shape": list(self.shape), "dtype": dtype, "n_entries": self.n_entries}


def write_rows(
    rows: Rows,
    place: Place,
    rows_per_chunk: int | None = None,
    client: Any = None,
    progress: Progress | None = None,
) -> StoredCopy:
    """Write a copy of rows into a store, in their own dtype (whole numbers and booleans too), a block at a time.

    `progress` has an open stage, which bytes of dense rows advance as they are written.

    Raises
    ------
    StoreError
        If it cannot be written, or Zarr has no such dtype.
    """
    if np.dtype(rows.dtype).name not in STORED_DTYPES:
        raise StoreError(
            f"rows of {rows.dtype} cannot be kept in a store; expected one of {', '.join(STORED_DTYPES)}: convert X"
        )
    if rows.is_sparse:
        return _write_sparse(rows, place)
    array = ChunkedArray.of_rows(place.url, rows.shape, rows.dtype, place.identity, rows_per_chunk).create_anew()
    if isinstance(rows, DaskRows):
        _write_dask(rows, array, client)
    else:
        copied = _Appended(array)
        for _, block in rows.blocks(0, rows.shape[0], array.chunks[0]):
            copied.append(dense(block))
            if progress is not None:
                progress.advance(block.nbytes)
        copied.finish()
    return CheckedRows(array)


def _write_sparse(rows: Rows, place: Place) -> SparseRows:
    write_group(place.url)
    assert rows.pointers is not None, "sparse rows in memory or in a store have pointers"
    indptr = rows.pointers.astype(np.int64)
    described = {"shape": list(rows.shape), "dtype": np.dtype(rows.dtype).name, "n_entries": int(indptr[-1])}
    copy = described_rows(place, {"kind": "sparse", **described})
    assert isinstance(copy, SparseRows)
    for array in copy.arrays:
        array.create_anew()
    copy.indptr.fill(indptr)
    # By entries and not by rows: dense rows may be consecutive.
    data, indices = _Appended(copy.values), _Appended(copy.indices)
    for start, stop in pairwise(cuts_by_entries(indptr, description.SPARSE_CHUNK_ENTRIES)):
        block = rows.read(start, stop)
        data.append(block.data)
        indices.append(block.indices)
    data.finish()
    indices.finish()
    return copy


class _Appended:
    """An array of whole rows that is written block by block, in whole chunks."""

    def __init__(self, array: ChunkedArray) -> None:
        self._array, self._buffer = array, np.zeros(array.chunks, array.dtype)
        self._held, self._chunk = 0, 0

    def append(self, values: Any) -> None:
        while len(values):
            n = min(len(values), len(self._buffer) - self._held)
            self._buffer[self._held : self._held + n] = values[:n]
            self._held, values = self._held + n, values[n:]
            if self._held == len(self._buffer):
                self.finish()

    def finish(self) -> None:
        if self._held:
            rest = (0,) * (self._buffer.ndim - 1)
            self._array.write((self._chunk, *rest), self._buffer[: self._held])
        self._chunk, self._held = self._chunk + 1, 0


def _write_dask(rows: DaskRows, array: ChunkedArray, client: Any) -> None:
    # Each task writes one whole chunk of the store, whatever the chunks of the array were.
    blocks = rows.array.rechunk((array.chunks[0], -1)).to_delayed()[:, 0]
    write = dask.delayed(_write_block, pure=False)
    run = uuid.uuid4().hex[:8]
    tasks = [write(block, array, k, dask_key_name=f"dkrr-copy-rows-{run}-{k}") for k, block in enumerate(blocks)]
    if client is not None:
        from dkrr.cluster.dask_client import SchedulerWatch

        SchedulerWatch(client).call(client.gather, client.compute(tasks))
    else:
        dask.compute(*tasks)


def _write_block(block: Any, array: ChunkedArray, number: int) -> None:
    array.write((number, 0), dense(row_major(block)))


def whole(rows: StoredCopy) -> Any:
    """Rows in memory, once all of their chunks have been found.

    Raises
    ------
    StoreError
        If some are missing or damaged, or memory does not suffice.
    """
    rows.check_complete()
    try:
        return rows.read(0, rows.shape[0])
    except MemoryError as error:
        raise StoreError(f"an array of the model has shape {rows.shape}, for which memory does not suffice") from error


def described_rows(place: Place, described: Any) -> StoredCopy:
    """Rows that a checked store describes, at their place; nothing is read.

    Raises
    ------
    StoreError
        If the description is not one that dkrr writes.
    """
    values, *rest = description.arrays_of_rows(place, described)
    if not rest:
        return CheckedRows(values)
    indices, indptr = rest
    return SparseRows(values, indices, indptr, described["shape"][1])


MATRIX_NAME = "gram"
"""Name of the matrix in its store."""


@dataclass(frozen=True)
class StoredGramRows(Rows):
    """Rows of a symmetric matrix in a store, mirrored from its lower triangle."""

    matrix: TiledMatrix
    """Tiles of the lower triangle, each of a single panel."""

    is_shared = True
    is_checked = True

    @property
    def url(self) -> str:
        return self.matrix.arrays[0].url

    @property
    def shape(self) -> tuple[int, int]:
        return (self.matrix.grid.n, self.matrix.grid.n)

    @property
    def dtype(self) -> Any:
        return self.matrix.dtype

    def read(self, start: int, stop: int, columns: slice = ALL) -> Block:
        left, right, _ = columns.indices(self.matrix.grid.n)
        out = np.empty((stop - start, max(right - left, 0)), self.dtype)
        for i, top, rows in self._tiles(start, stop):
            for j, side, across in self._tiles(left, right):
                tile = self._tile(i, j) if i >= j else self._tile(j, i).T
                out[rows, across] = tile[top, side]
        return out

    def _tiles(self, start: int, stop: int) -> Iterator[tuple[int, slice, slice]]:
        """Numbers of the tiles that a range lies in, with the part of the tile and that of the range."""
        tile = self.matrix.grid.tile
        for k in range(start // tile, -(-stop // tile)):
            first, last = max(start, k * tile), min(stop, (k + 1) * tile)
            yield k, slice(first - k * tile, last - k * tile), slice(first - start, last - start)

    def _tile(self, i: int, j: int) -> NDArray[Any]:
        (array,) = self.matrix.arrays
        tile = array.mapped((i, j), check=(i, j) not in self._checked)
        if tile is None:
            tile = np.empty(array.chunks, array.dtype)
            array.read((i, j), tile)
        self._checked.add((i, j))
        return tile

    @cached_property
    def _checked(self) -> set[tuple[int, int]]:
        """Tiles whose checksums this process has compared; several blocks of rows read from each tile."""
        return set()

    def __getstate__(self) -> dict[str, Any]:
        return {"matrix": self.matrix}

    @property
    def read_overhead_bytes(self) -> int:
        # One tile, and the one before it.
        return 2 * self.matrix.chunk_bytes


def stored_gram(url: str) -> StoredGramRows | None:
    """Rows of the Gram matrix in a store that `dkrr.gram` wrote; None if it is not such a store.

    Raises
    ------
    StoreError
        If tiles are missing.
    """
    try:
        found = RunStore(url).description() if may_keep(url) else None
    except StoreError:
        return None
    if found is None or (found["fingerprint"] or {}).get("what") != MATRIX_NAME:
        return None
    array = RunStore(url).open_array(MATRIX_NAME)
    (n, tile), is_real = (array.shape[0], array.chunks[0]), array.dtype.startswith("float")
    if array.shape != (n, n) or n == 0 or array.block_rows or array.chunks != (tile, tile) or not is_real:
        raise StoreError(f"{array.url} does not have the layout of a Gram matrix that dkrr.gram wrote: it is damaged")
    matrix = TiledMatrix((array,), TileGrid(n, tile, tile))
    side, n_tiles = matrix.grid.n_tiles, len(array.present())
    wanted = side * (side + 1) // 2
    if n_tiles >= wanted:
        n_tiles = len(matrix.complete_tiles())
    if n_tiles < wanted:
        raise StoreError(
            f"the Gram matrix in {url} has {n_tiles} of {wanted} tiles; expected all: call dkrr.gram again with "
            "the same arguments and store="
        )
    return StoredGramRows(matrix)
