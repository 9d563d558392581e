"""Rows copied into a store are the rows."""

import json
import tracemalloc

import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_array_equal

from dkrr.errors import StoreError
from dkrr.rows import (
    CheckedRows,
    MemoryRows,
    SparseRows,
    as_rows,
    described_rows,
    stage,
    staging,
    stored,
    write_rows,
)
from dkrr.rows.sources import cuts_by_entries, dense
from dkrr.tiles import ChunkedArray, shards
from tests.rows.sources import KINDS, SHARED, SPARSE, numbers, table
from tests.stores import place


@pytest.fixture
def small_chunks(monkeypatch):
    """Chunks of a few rows, so that a small table has several."""
    monkeypatch.setattr(shards, "CHUNK_BYTES", 4 * 7 * 8)
    monkeypatch.setattr(shards, "BLOCK_BYTES", 2 * 7 * 8)
    for module in (staging, stored):
        monkeypatch.setattr(module, "CHUNK_ENTRIES", 16)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind(kind, tmp_path, small_chunks):
    case = table(kind, tmp_path)
    rows = as_rows(case.handed_in)
    copy = write_rows(rows, place(tmp_path / "copy"))
    assert isinstance(copy, SparseRows if kind in SPARSE else CheckedRows)
    assert copy.url == str(tmp_path / "copy") and copy.is_shared
    assert (copy.shape, copy.dtype) == (rows.shape, rows.dtype)
    assert_array_equal(dense(copy.read(0, 23)), case.array)


@pytest.mark.parametrize("dtype", ["float32", "int8", "uint16", "bool"])
@pytest.mark.parametrize("kind", ["ndarray", "fortran", "csr", "dask"])
def test_dtype_stays(kind, dtype, tmp_path, small_chunks):
    X = numbers(dtype=dtype) if dtype == "float32" else (np.arange(161).reshape(23, 7) % 3).astype(dtype)
    copy = write_rows(as_rows(table(kind, tmp_path, X).handed_in), place(tmp_path / "copy"))
    assert copy.dtype == dtype
    block = dense(copy.read(0, 23))
    assert block.dtype == dtype
    assert_array_equal(block, X)


@pytest.mark.parametrize("chunks", [(1, 7), (23, 1), (5, 3), ((9, 2, 12), (4, 3)), (4, 7), (23, 7)], ids=str)
def test_any_chunks_of_dask(chunks, tmp_path, small_chunks):
    X = numbers()
    copy = write_rows(as_rows(da.from_array(X, chunks=chunks)), place(tmp_path / "copy"))
    assert_array_equal(copy.read(0, 23), X)


def test_shared_rows_stay_where_they_are(tmp_path):
    for kind in KINDS:
        folder = tmp_path / kind.replace(" ", "-")
        folder.mkdir()
        rows = as_rows(table(kind, folder).handed_in)
        staged = stage(rows, place(folder / "copy"), 5)
        assert (staged is rows) == (kind in SHARED) == (not (folder / "copy").exists())
        assert staged.is_shared


def test_chunks_of_the_height_that_is_read(tmp_path):
    for name, handed_in in (("memory", numbers()), ("dask", da.from_array(numbers(), chunks=(7, 3)))):
        copy = stage(as_rows(handed_in), place(tmp_path / name), 4)
        assert copy.array.chunks == (4, 7)
        assert_array_equal(copy.read(3, 21), numbers()[3:21])
    assert ChunkedArray.of_rows("a", (10**6, 2**20), "float64", "", 512).chunks == (2, 2**20), "at most 16 MiB"


def test_many_sparse_rows(tmp_path):
    # More rows than one pass reads, among them a whole pass without a value.
    n = 2 * stored.CHUNK_ENTRIES // 32 + 1000
    X = sp.coo_array(([1.5, 2.5, 3.5], ([0, n - 3, n - 1], [4, 0, 2])), shape=(n, 5)).tocsr()
    copy = write_rows(as_rows(X), place(tmp_path / "copy"))
    assert (copy.read(0, n) != X).nnz == 0
    assert_array_equal(copy.read(n - 3, n).todense(), X[n - 3 :].todense())


def test_sparse_rows_without_a_value(tmp_path):
    copy = write_rows(as_rows(sp.csr_array((5, 3))), place(tmp_path / "copy"))
    assert copy.shape == (5, 3)
    assert_array_equal(copy.read(1, 4).todense(), np.zeros((3, 3)))


def test_dense_rows_that_stand_together_are_not_copied_all_at_once(tmp_path):
    n, d = 3000, 2000
    indices, pointers = np.tile(np.arange(d, dtype=np.int32), n), np.arange(0, n * d + 1, d)
    X = sp.csr_array((np.ones(n * d), indices, pointers), shape=(n, d))
    rows = MemoryRows(X)
    tracemalloc.start()
    copy = write_rows(rows, place(tmp_path / "copy"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < rows.n_bytes / 1.5
    assert_array_equal(dense(copy.read(n - 2, n)), 1.0)


def test_cuts_by_entries():
    pointers = np.array([0, 0, 3, 4, 4, 20, 21, 22, 22])
    assert cuts_by_entries(pointers, 4) == [0, 4, 5, 8]
    assert cuts_by_entries(pointers, 1) == [0, 1, 2, 4, 5, 6, 8]
    assert cuts_by_entries(pointers, 100) == [0, 8]
    assert cuts_by_entries(np.zeros(5, int), 4) == [0, 4]


@pytest.mark.parametrize("kind", ["ndarray", "csr"])
def test_found_again_by_their_description(kind, tmp_path, small_chunks):
    copy = write_rows(as_rows(table(kind, tmp_path).handed_in), place(tmp_path / "copy"), 6)
    described = json.loads(json.dumps(copy.describe(6)))
    again = described_rows(place(tmp_path / "copy"), described)
    assert again == copy and again.shape == (23, 7)
    assert_array_equal(dense(again.read(2, 20)), numbers()[2:20])
    for name, value in [
        ("kind", "x"),
        ("shape", [23]),
        ("shape", [23, -7]),
        ("shape", None),
        ("dtype", "O"),
        ("shape", [2.0, 7]),
    ]:
        with pytest.raises(StoreError, match="dkrr does not write"):
            described_rows(place(tmp_path / "copy"), {**described, name: value})


def test_a_dtype_that_zarr_lacks(tmp_path):
    with pytest.raises(StoreError, match="rows of float128 cannot be kept.*convert X"):
        write_rows(as_rows(numbers().astype(np.longdouble)), place(tmp_path / "copy"))
