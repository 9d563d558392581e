"""Any block of rows and columns is the same from every source."""

import pickle

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from dkrr.rows import MemoryRows, ZarrRows, as_rows
from dkrr.rows.sources import dense
from tests.rows.sources import KINDS, SHARED, SPARSE, numbers, table

every_kind = pytest.mark.parametrize("kind", KINDS)


@every_kind
def test_rows_by_number(kind, tmp_path):
    case = table(kind, tmp_path)
    rows = as_rows(case.handed_in)
    for some in ([0, 3, 11, 22], [5], [9, 2, 2]):
        assert_array_equal(dense(rows.take(np.array(some))), case.array[some])


@st.composite
def ranges(draw, size):
    start = draw(st.integers(0, size))
    return start, draw(st.integers(start, size))


@every_kind
def test_blocks_are_cut_from_the_whole(kind, tmp_path_factory):
    case = table(kind, tmp_path_factory.mktemp("rows"))
    rows = as_rows(case.handed_in)

    @settings(max_examples=12 if "dask" in kind else 30, deadline=None)
    @given(ranges(23), ranges(7))
    def check(some_rows, some_columns):
        expected = case.array[slice(*some_rows)]
        whole, part = rows.read(*some_rows), rows.read(*some_rows, slice(*some_columns))
        assert_array_equal(dense(whole), expected)
        assert_array_equal(dense(part), expected[:, slice(*some_columns)])
        assert part.shape == expected[:, slice(*some_columns)].shape

    check()


@pytest.mark.parametrize("kind", ["ndarray", "zarr", "zarr in memory"])
def test_columns_of_a_vector(kind, tmp_path):
    x = numbers((23,))
    rows = as_rows(table(kind, tmp_path, x).handed_in)
    assert_array_equal(rows.read(2, 5, slice(0, 1)), x[2:5, None])
    assert rows.read(2, 5, slice(0, 0)).shape == (3, 0)


@every_kind
def test_blocks_are_sparse_where_the_source_is(kind, tmp_path):
    case = table(kind, tmp_path)
    rows = as_rows(case.handed_in)
    block = rows.read(2, 9)
    assert rows.is_sparse == (kind in SPARSE)
    if rows.is_sparse:
        assert block.format == "csr" and isinstance(block, sp.csr_array)
        assert block.has_sorted_indices
        assert block.nnz == np.count_nonzero(case.array[2:9])
    elif "csr" not in kind:
        assert isinstance(block, np.ndarray) and block.ndim == 2


@every_kind
def test_sharing_is_declared(kind, tmp_path):
    assert as_rows(table(kind, tmp_path).handed_in).is_shared == (kind in SHARED)


@pytest.mark.parametrize("kind", SHARED)
def test_shared_rows_travel_by_name(kind, tmp_path, monkeypatch):
    case = table(kind, tmp_path)
    rows = as_rows(case.handed_in)
    rows.read(0, 1)  # so that what is cached would travel as well, if it did
    assert rows.shape == (23, 7)
    message = pickle.dumps(rows)
    assert len(message) < 400
    monkeypatch.chdir("/")
    arrived = pickle.loads(message)
    assert arrived == rows and arrived.shape == rows.shape and arrived.dtype == rows.dtype
    assert_array_equal(dense(arrived.read(3, 20)), case.array[3:20])


@every_kind
def test_bytes(kind, tmp_path):
    rows = as_rows(table(kind, tmp_path, numbers((29, 13), "float32")).handed_in)
    if rows.is_sparse:
        block = rows.read(0, 29)
        assert rows.n_bytes >= block.data.nbytes + block.indices.nbytes + block.indptr.nbytes
        assert rows.n_bytes <= rows.row_bytes * 29
    else:
        assert rows.n_bytes == 29 * 13 * 4
        assert rows.row_bytes == 13 * 8


def test_read_overhead_of_chunks(tmp_path):
    import zarr

    array = zarr.create_array(tmp_path / "x", shape=(101, 13), chunks=(17, 5), dtype="float32")
    assert ZarrRows(str(tmp_path / "x")).read_overhead_bytes == 2 * 17 * 5 * 4
    assert as_rows(array).read_overhead_bytes == 2 * 17 * 5 * 4
    assert MemoryRows(numbers()).read_overhead_bytes == 0
