"""Rows written into a store, so that every worker can read any block of them; and found there again."""

import uuid
from itertools import pairwise
from typing import Any

import dask
import numpy as np

from dkrr.data.dask_arrays import DaskRows, row_major
from dkrr.data.rows import Rows, cuts_by_entries, dense
from dkrr.data.stored import CHUNK_ENTRIES, CheckedRows, SparseRows
from dkrr.errors import StoreError
from dkrr.store import ChunkedArray
from dkrr.store.descriptions import write_group
from dkrr.store.run import Place
from dkrr.store.shards import DTYPES

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
    copy = SparseRows.at(place, rows.shape, int(indptr[-1]), rows.dtype)
    for array in copy.arrays:
        array.create_anew()
    copy.indptr.array.fill(indptr)
    # By entries and not by rows: dense rows may be consecutive.
    data, indices = _Appended(copy.values.array), _Appended(copy.columns.array)
    for start, stop in pairwise(cuts_by_entries(indptr, CHUNK_ENTRIES)):
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
        from dkrr.cluster.dask_watch import Watch

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


def described_rows(place: Place, description: Any) -> StoredCopy:
    """Rows that a checked store describes, at their place; nothing is read.

    Raises
    ------
    StoreError
        If the description is not one that dkrr writes.
    """
    try:
        kind, shape, dtype = description["kind"], tuple(description["shape"]), description["dtype"]
        number = description["n_entries" if kind == "sparse" else "rows_per_chunk"]
    except (KeyError, TypeError) as error:
        raise StoreError(f"{place.url} is described as {description!r}, which dkrr does not write") from error
    numbers = (*shape, 1 if number is None else number)
    is_layout = kind in ("dense", "sparse") and len(shape) == 2 and dtype in DTYPES
    if (
        not is_layout
        or any(type(k) is not int or not 0 <= k < 2**62 for k in numbers)
        or (kind == "sparse" and number is None)
    ):
        raise StoreError(f"{place.url} is described as {description!r}, which dkrr does not write")
    if kind == "sparse":
        return SparseRows.at(place, shape, number, dtype)
    return CheckedRows(ChunkedArray.of_rows(place.url, shape, dtype, place.identity, number))
