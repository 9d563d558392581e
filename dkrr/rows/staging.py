"""Rows written into a store, so that every worker can read any block of them."""

from itertools import pairwise
from typing import Any

import dask
import numpy as np

from dkrr.rows.dask_arrays import DaskRows, row_major
from dkrr.rows.sources import Rows, cuts_by_entries, dense
from dkrr.rows.stored_csr import SparseRows
from dkrr.rows.zarr_arrays import ZarrRows
from dkrr.tiles.arrays import create_array, create_group, open_array

_SPARSE_CHUNK = 2**20


def stage(rows: Rows, url: str, rows_per_chunk: int, client: Any = None) -> Rows:
    """Rows that other processes can read: these rows, or a copy of them at `url`.

    `rows_per_chunk` is to divide the blocks that will be read: a chunk is read whole. The client computes the blocks
    of a Dask array; without one Dask's own scheduler does.
    """
    return rows if rows.is_shared else write_rows(rows, url, rows_per_chunk, client)


def write_rows(rows: Rows, url: str, rows_per_chunk: int | None = None, client: Any = None) -> Rows:
    """Write a copy of rows into a store, in their own dtype (whole numbers and booleans too)."""
    if isinstance(rows, DaskRows):
        return _write_dask(rows, url, rows_per_chunk, client)
    if rows.is_sparse:
        return _write_sparse(rows, url)
    out = create_array(url, rows.shape, rows.dtype, rows_per_chunk)
    for start in range(0, rows.shape[0], out.chunks[0]):
        stop = min(start + out.chunks[0], rows.shape[0])
        out[start:stop] = dense(rows.read(start, stop))
    return ZarrRows(url)


def _write_sparse(rows: Rows, url: str) -> SparseRows:
    n, d = rows.shape
    create_group(url, {})
    assert rows.pointers is not None, "sparse rows in memory or in a store have pointers"
    indptr = rows.pointers.astype(np.int64)
    n_values = int(indptr[-1])
    data = create_array(f"{url}/data", (n_values,), rows.dtype, _SPARSE_CHUNK)
    # As wide as SciPy itself makes indices; it keeps those of int64 pointers, at twice the memory of every block.
    index = np.int32 if max(n_values, d) < 2**31 else np.int64
    indices = create_array(f"{url}/indices", (n_values,), index, _SPARSE_CHUNK)
    create_array(f"{url}/indptr", (n + 1,), index, _SPARSE_CHUNK, {"n_columns": d})[:] = indptr
    # By entries and not by rows: dense rows may be consecutive.
    for start, stop in pairwise(cuts_by_entries(indptr, _SPARSE_CHUNK)):
        block, inside = rows.read(start, stop), slice(indptr[start], indptr[stop])
        if block.nnz:
            data[inside], indices[inside] = block.data, block.indices
    return SparseRows(url)


def _write_dask(rows: DaskRows, url: str, rows_per_chunk: int | None, client: Any) -> ZarrRows:
    out = create_array(url, rows.shape, rows.dtype, rows_per_chunk)
    height = out.chunks[0]
    # Each task writes one whole chunk of the store, whatever the chunks of the array were.
    blocks = rows.array.rechunk((height, -1)).to_delayed()[:, 0]
    write = dask.delayed(_write_block, pure=False)
    tasks = [write(block, url, k * height) for k, block in enumerate(blocks)]
    if client is not None:
        client.gather(client.compute(tasks))
    else:
        dask.compute(*tasks)
    return ZarrRows(url)


def _write_block(block: Any, url: str, start: int) -> None:
    block = dense(row_major(block))
    open_array(url, mode="r+")[start : start + block.shape[0]] = block
