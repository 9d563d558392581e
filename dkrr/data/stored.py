"""Rows that dkrr wrote into a store: dense, CSR, or of a Gram matrix; and how they are written.

Each block is read with its checksum. CSR rows are the arrays `data`, `indices` and `indptr`; of the Gram matrix that
`dkrr.gram` keeps, the store holds the lower triangle in tiles. A copy of X is written so that every worker can read any
block of it, and is found there again.
"""

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import dask
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dkrr.checks import may_keep
from dkrr.data.arrays import DaskRows, row_major
from dkrr.data.rows import (
    ALL,
    SCRATCH_BYTES,
    ArrayRows,
    Block,
    Rows,
    StoredRows,
    cuts_by_entries,
    dense,
    filled,
    filled_blocks,
)
from dkrr.errors import DamagedChunkError, InputError, StoreError
from dkrr.sparse import check_structure
from dkrr.store import ChunkedArray, RunStore, TiledMatrix, TileGrid, description
from dkrr.store.format import DTYPES, write_group
from dkrr.store.places import Place


@dataclass(frozen=True)
class CheckedRows(ArrayRows):
    """Rows of an array that dkrr wrote. A vector counts as one column."""

    array: ChunkedArray

    is_shared = True
    is_lazy = False

    @property
    def url(self) -> str:
        """Path or URL of the array."""
        return self.array.url

    @property
    def arrays(self) -> tuple[ChunkedArray, ...]:
        """The array, as the arrays of sparse rows."""
        return (self.array,)

    def read(self, start: int, stop: int, columns: slice = ALL) -> Block:
        return filled(self._read_into, self, start, stop, columns)

    def blocks(self, start: int, stop: int, height: int) -> Iterator[tuple[slice, Block]]:
        return filled_blocks(self._read_into, self, start, stop, height)

    def _read_into(self, out: NDArray[Any], start: int) -> None:
        self.array.read_rows(start, start + len(out), out.reshape(len(out), *self.array.shape[1:]))

    @property
    def edges(self) -> Sequence[int]:
        height = self.array.block_rows or self.array.chunks[0]
        return range(0, self.shape[0] + height, height)

    @property
    def read_overhead_bytes(self) -> int:
        return SCRATCH_BYTES

    def describe(self, rows_per_chunk: int | None = None) -> dict[str, Any]:
        """Values of JSON from which `described_rows` makes these rows again, at their place.

        `rows_per_chunk` is that of `write_rows`: the layout follows from it.
        """
        shape, dtype = list(self.array.shape), self.array.dtype
        return {"kind": "dense", "shape": shape, "dtype": dtype, "rows_per_chunk": rows_per_chunk}


@dataclass(frozen=True)
class SparseRows(Rows):
    """CSR rows in a store."""

    values: CheckedRows
    columns: CheckedRows
    indptr: CheckedRows
    n_columns: int

    is_sparse = True
    is_shared = True

    @property
    def url(self) -> str:
        """Path or URL of the group."""
        return self.values.url.rpartition("/")[0]

    @property
    def arrays(self) -> tuple[ChunkedArray, ...]:
        """The three arrays."""
        return (self.values.array, self.columns.array, self.indptr.array)

    @property
    def shape(self) -> tuple[int, int]:
        return (self.indptr.shape[0] - 1, self.n_columns)

    @property
    def dtype(self) -> Any:
        return self.values.dtype

    @property
    def pointers(self) -> NDArray[Any] | None:
        return self._pointers_of(slice(0, self.shape[0]))

    @property
    def indices(self) -> Any:
        return self.columns

    def _pointers_of(self, rows: slice) -> NDArray[Any]:
        return np.asarray(self.indptr.read(rows.start, rows.stop + 1)[:, 0])

    def read(self, start: int, stop: int, columns: slice = ALL) -> Block:
        n_entries, pointers = self.indices.shape[0], self._pointers_of(slice(start, stop))
        first, last = int(pointers[0]), int(pointers[-1])
        try:
            if not 0 <= first <= last <= n_entries:
                raise InputError(f"rows {start} to {stop - 1} lie outside of the {n_entries} stored indices")
            data, indices = (part.read(first, last)[:, 0] for part in (self.values, self.columns))
            block = sp.csr_array((data, indices, pointers - first), shape=(stop - start, self.shape[1]))
            check_structure(block)
        except (ValueError, MemoryError) as error:  # SciPy's own, and ours
            text = f"the sparse rows in {self.url} are damaged: {error}. Write them again"
            raise DamagedChunkError(text, self.url, "indptr") from error
        return block if columns == ALL else block[:, columns]

    @property
    def n_bytes(self) -> int:
        return sum(part.n_bytes for part in (self.values, self.columns, self.indptr))

    @property
    def read_overhead_bytes(self) -> int:
        return SCRATCH_BYTES

    def describe(self, rows_per_chunk: int | None = None) -> dict[str, Any]:  # noqa: ARG002
        """Values of JSON from which `described_rows` makes these rows again, at their place."""
        n_entries, dtype = self.indices.shape[0], self.values.array.dtype
        return {"kind": "sparse", "shape": list(self.shape), "dtype": dtype, "n_entries": n_entries}


StoredCopy = CheckedRows | SparseRows


def stage(rows: Rows, place: Place, rows_per_chunk: int, client: Any = None) -> Rows:
    """Rows that other processes can read: these rows, or a copy of them at a place.

    The client computes the blocks of a Dask array; without one Dask's own scheduler does.
    """
    return rows if rows.is_shared else write_rows(rows, place, rows_per_chunk, client)


def write_rows(rows: Rows, place: Place, rows_per_chunk: int | None = None, client: Any = None) -> StoredCopy:
    """Write a copy of rows into a store, in their own dtype (whole numbers and booleans too).

    Raises
    ------
    StoreError
        If it cannot be written, or Zarr has no such dtype.
    """
    if np.dtype(rows.dtype).name not in DTYPES:
        raise StoreError(
            f"rows of {rows.dtype} cannot be kept in a store; expected one of {', '.join(DTYPES)}: convert X"
        )
    if rows.is_sparse and not isinstance(rows, DaskRows):
        return _write_sparse(rows, place)
    array = ChunkedArray.of_rows(place.url, rows.shape, rows.dtype, place.identity, rows_per_chunk).create_anew()
    if isinstance(rows, DaskRows):
        _write_dask(rows, array, client)
    else:
        copied = _Appended(array)
        for _, block in rows.blocks(0, rows.shape[0], array.chunks[0]):
            copied.append(dense(block))
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
    copy.indptr.array.fill(indptr)
    # By entries and not by rows: dense rows may be consecutive.
    data, indices = _Appended(copy.values.array), _Appended(copy.columns.array)
    for start, stop in pairwise(cuts_by_entries(indptr, description.CHUNK_ENTRIES)):
        block = rows.read(start, stop)
        data.append(block.data)
        indices.append(block.indices)
    data.finish()
    indices.finish()
    return copy


class _Appended:
    """An array of whole rows that is written piece by piece, in whole chunks."""

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
        from dkrr.cluster.dask_client import Watch

        Watch(client).call(client.gather, client.compute(tasks))
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
    for array in rows.arrays:
        array.check_complete()
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
    values, *rest = (CheckedRows(array) for array in description.arrays_of_rows(place, described))
    if not rest:
        return values
    columns, indptr = rest
    return SparseRows(values, columns, indptr, described["shape"][1])


NAME = "gram"
"""Name of the matrix in its store."""


class StoredGramRows(StoredRows):
    """Rows of a symmetric matrix in a store, mirrored from its lower triangle."""

    @cached_property
    def matrix(self) -> TiledMatrix:
        """Tiles of the lower triangle."""
        array = RunStore(self.url).open_array(NAME)
        n, chunks = array.shape[0], array.chunks
        if array.shape != (n, n) or n == 0 or array.block_rows or chunks[0] % chunks[1] or array.dtype[:5] != "float":
            raise StoreError(
                f"{array.url} does not have the layout of a Gram matrix that dkrr.gram wrote: it is damaged"
            )
        return TiledMatrix((array,), TileGrid(array.shape[0], *array.chunks))

    @cached_property
    def _checked(self) -> set[tuple[int, int]]:
        """Tiles whose checksums this process has compared; several blocks of rows read from each tile."""
        return set()

    @property
    def shape(self) -> tuple[int, int]:
        return (self.matrix.grid.n, self.matrix.grid.n)

    @property
    def dtype(self) -> Any:
        return self.matrix.dtype

    def read(self, start: int, stop: int, columns: slice = ALL) -> Block:
        grid = self.matrix.grid
        left, right, _ = columns.indices(grid.n)
        out = np.empty((stop - start, max(right - left, 0)), self.dtype)
        for i in _tiles(start, stop, grid.tile):
            rows = _overlap(grid.rows(i), start, stop)
            for j in _tiles(left, right, grid.tile):
                across = _overlap(grid.rows(j), left, right)
                tile = self._tile(max(i, j), min(i, j))
                if i < j:
                    tile = tile.T
                entries = tile[_from(rows, grid.rows(i).start), _from(across, grid.rows(j).start)]
                out[_from(rows, start), _from(across, left)] = entries
        return out

    def _tile(self, i: int, j: int) -> NDArray[Any]:
        array = self.matrix.array_of(i)
        tile = array.mapped((i, j), check=(i, j) not in self._checked)
        if tile is None:
            tile = np.empty(array.chunks, array.dtype)
            array.read((i, j), tile)
        self._checked.add((i, j))
        return tile

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
    if found is None or (found["fingerprint"] or {}).get("what") != NAME:
        return None
    rows = StoredGramRows(url)
    side = rows.matrix.grid.n_tiles
    n_tiles, wanted = len(rows.matrix.present()), side * (side + 1) // 2
    if n_tiles >= wanted:
        n_tiles = len(rows.matrix.complete_tiles())
    if n_tiles < wanted:
        raise StoreError(
            f"the Gram matrix in {url} has {n_tiles} of {wanted} tiles; expected all: call dkrr.gram again with "
            "the same arguments and store="
        )
    return rows


def _tiles(start: int, stop: int, tile: int) -> range:
    return range(start // tile, -(-stop // tile))


def _overlap(rows: slice, start: int, stop: int) -> slice:
    return slice(max(rows.start, start), min(rows.stop, stop))


def _from(rows: slice, start: int) -> slice:
    return slice(rows.start - start, rows.stop - start)
