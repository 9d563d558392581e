"""Rows are the same in every container: what is read, copied, checked and refused.

A container joins in tests/inputs.py. Rows behind a transformer are rows as well: they are here with the containers.
"""

import hashlib
import json
import pickle
from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from sklearn.preprocessing import FunctionTransformer

from dkrr.cluster import Progress, SerialExecutor
from dkrr.data import as_rows, described_rows, scan, scan_tasks, write_rows
from dkrr.data import rows as checks
from dkrr.data.rows import checksums_of, dense, digest_of, n_bytes
from dkrr.data.transformers import TransformedRows, inputs_of
from dkrr.errors import InputError
from dkrr.store import description
from dkrr.store import format as shards
from tests.inputs import CONTAINERS, Container, numbers, table
from tests.stores import place


def transformed(X, folder, kind="zarr"):
    """Rows in blocks behind a transformer that doubles them, which is exact."""
    inputs = inputs_of(table(kind, folder, X / 2).handed_in)
    return TransformedRows(inputs, FunctionTransformer(lambda block: block * 2, accept_sparse=True))


BEHIND = [
    Container("transformed", transformed),
    Container("transformed csr", lambda X, folder: transformed(X, folder, "dask of csr"), is_sparse=True),
]
each_container = pytest.mark.parametrize("container", [*CONTAINERS, *BEHIND], ids=lambda each: each.kind)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Chunks and blocks of a few rows, so that a small table has several."""
    monkeypatch.setattr(checks, "_BLOCK_ROWS", 5)
    monkeypatch.setattr(shards, "ROW_CHUNK_BYTES", 4 * 7 * 8)
    monkeypatch.setattr(shards, "CHECKSUM_BLOCK_BYTES", 2 * 7 * 8)
    monkeypatch.setattr(description, "SPARSE_CHUNK_ENTRIES", 16)


def ranges(size):
    """Where a range of so many begins and ends."""
    return st.tuples(st.integers(0, size), st.integers(0, size)).map(sorted)


def block_digests(rows, n_tasks=1, lengths=()):
    """Digests of blocks of rows, from each task."""
    tasks = scan_tasks(rows, "X", digest=True, n_tasks=n_tasks, lengths=lengths)
    values = SerialExecutor().run(tasks, Progress()).values()
    return [values[task.key][0] for task in tasks]


def digest(rows, n_tasks=1, lengths=()):
    """Checksum of rows, as tasks compute it."""
    return checksums_of(rows, block_digests(rows, n_tasks, lengths), lengths).digests[-1]


@pytest.mark.parametrize("container", [np.asarray, sp.csr_array])
def test_checksums_of_rows_that_grow_are_a_chain_that_begins_with_the_one_of_the_first_rows(container):
    X, edges, expected = numbers(), [0, 7, 12, 23], ""
    for first, last in pairwise(edges):
        parts = block_digests(as_rows(container(X[first:last])))
        expected = hashlib.sha256((expected + "".join(parts[0])).encode()).hexdigest()
        earlier = [edge for edge in edges[1:] if edge < last]
        for n_tasks in (1, 3):
            assert digest(as_rows(container(X[:last])), n_tasks, earlier) == expected
    assert digest(as_rows(container(X))) != expected
    assert digest_of(X[7:], digest_of(X[:7])) != digest_of(X) == digest_of(X, before="")


@each_container
def test_what_is_read_is_a_part_of_the_array_and_float32_stays(container, tmp_path):
    X = numbers()
    rows = as_rows(container.make(X, tmp_path))
    assert as_rows(rows) is rows and rows.shape == X.shape and rows.dtype == np.float64
    assert (rows.is_sparse, rows.is_shared) == (container.is_sparse, container.is_shared)

    @given(ranges(23), ranges(7), st.lists(st.integers(0, 22), min_size=1, max_size=5), st.integers(1, 30))
    @example((0, 23), (0, 7), [9, 2, 2], 5)
    @example((7, 7), (3, 3), [22], 1)
    @example((4, 22), (5, 7), [0, 3, 11, 22], 6)
    def check(some_rows, some_columns, taken, height):
        (start, stop), columns = some_rows, slice(*some_columns)
        expected = X[start:stop]
        whole, part = rows.read(start, stop), rows.read(start, stop, columns)
        assert_array_equal(dense(whole), expected)
        assert_array_equal(dense(part), expected[:, columns])
        assert part.shape == expected[:, columns].shape
        if rows.is_sparse:
            assert isinstance(whole, sp.csr_array) and whole.has_sorted_indices
            assert whole.nnz == np.count_nonzero(expected)
        assert_array_equal(dense(rows.take(np.array(taken))), X[taken])
        for walk in (rows.blocks, rows.even_blocks):
            places = []
            for where, block in walk(start, stop, height):  # a block may be overwritten by the next
                assert (where.start - start) // height == (where.stop - 1 - start) // height, "blocks end at k × height"
                assert_array_equal(dense(block), X[where])
                places.append(where)
            assert [k for where in places for k in range(where.start, where.stop)] == list(range(start, stop))
        assert places == [slice(k, min(k + height, stop)) for k in range(start, stop, height)]
        parts = rows.row_ranges(slice(start, stop), height)
        assert [k for each in parts for k in range(each.start, each.stop)] == list(range(start, stop))
        assert not rows.is_sparse or all(rows.read(p.start, p.stop).nnz <= max(height, 7) for p in parts)

    check()
    edges = rows.task_edges(6)
    assert edges[0] == 0 and edges[-1] == 23 and edges == sorted(set(edges))
    small = numbers((29, 13), "float32")
    (tmp_path / "float32").mkdir()
    rows = as_rows(container.make(small, tmp_path / "float32"))
    assert rows.dtype == (np.float32 if container.keeps_dtype else np.float64)
    block = rows.read(0, 29)
    assert_array_equal(dense(block), small)
    if rows.is_sparse:
        assert n_bytes(block) <= rows.n_bytes <= rows.row_bytes * 29
    else:
        assert (rows.n_bytes, rows.row_bytes) == (29 * 13 * rows.dtype.itemsize, 13 * 8)


@each_container
def test_rows_are_checked_and_other_processes_read_them_by_name_or_a_copy(container, tmp_path, monkeypatch):
    X = numbers()
    rows = as_rows(container.make(X, tmp_path))
    rows.read(0, 1)  # what is kept must not travel
    expected = digest(as_rows(sp.csr_array(X)) if container.is_sparse else as_rows(X))
    assert container.kind == "dask of csr" or digest(rows, n_tasks=3) == expected, "wherever the numbers are"
    staged = rows if rows.is_shared else write_rows(rows, place(tmp_path / "copy"), 5)
    assert staged.is_shared and (staged is rows) == container.is_shared
    if staged is not rows:
        assert staged.url == str(tmp_path / "copy") and (staged.shape, staged.dtype) == (rows.shape, rows.dtype)
        described = json.loads(json.dumps(staged.describe(5)))
        assert described_rows(place(tmp_path / "copy"), described) == staged
        assert digest(staged, n_tasks=2) == expected
    message = pickle.dumps(staged)
    assert len(message) < 900, "names and layouts, not numbers"
    monkeypatch.chdir("/")
    arrived = pickle.loads(message)
    assert arrived == staged and (arrived.shape, arrived.dtype) == (rows.shape, rows.dtype)
    assert_array_equal(dense(arrived.read(3, 20)), X[3:20])
    X[17, 4] = np.nan
    X[17, 5] = X[20, 0] = np.inf  # later ones
    (tmp_path / "bad").mkdir()
    with pytest.raises(InputError, match=r"row (is )?17\b") as caught:
        scan(as_rows(container.make(X, tmp_path / "bad")), "X")
    assert "NaN" in str(caught.value) and any(name in str(caught.value) for name in ("column 4", "'x4'", "column '4'"))


@pytest.mark.parametrize("dtype", ["int64", "uint16", "bool"])
def test_whole_numbers_and_booleans_keep_their_type(dtype, tmp_path):
    X = (np.arange(161).reshape(23, 7) % 3).astype(dtype)
    for kind in ("ndarray", "csr", "dask", "zarr", "npy", "npz"):
        rows = as_rows(table(kind, tmp_path, X).handed_in)
        for each in (rows, write_rows(rows, place(tmp_path / f"copy of {kind}"))):
            block = dense(each.read(3, 9))
            assert each.dtype == block.dtype == dtype
            assert_array_equal(block, X[3:9])


@pytest.mark.parametrize("kind", ["lists", "ndarray", "dask", "zarr", "zarr path", "zarr in memory", "npy", "hdf5"])
def test_a_vector_is_one_column(kind, tmp_path):
    x = numbers((23,))
    rows = as_rows(table(kind, tmp_path, x).handed_in)
    assert rows.shape == (23, 1) and rows.read(2, 5, slice(0, 0)).shape == (3, 0)
    assert_array_equal(rows.read(2, 5, slice(0, 1)), x[2:5, None])
    assert_array_equal(dense(rows.take(np.array([22, 3]))), x[[22, 3], None])


@given(row=st.integers(0, 22), column=st.integers(0, 6), n_tasks=st.integers(1, 23))
def test_a_checksum_is_of_the_numbers_and_not_of_their_place(row, column, n_tasks):
    X, changed = numbers(), numbers()
    changed[row, column] = np.nextafter(X[row, column], np.inf)
    for make in (np.asarray, sp.csr_array):
        before = digest(as_rows(make(X)))
        assert digest(as_rows(make(X)), n_tasks) == before != digest(as_rows(make(changed)), n_tasks)


def test_a_checksum_tells_order_shape_type_and_place_apart():
    X = numbers((24, 6))
    others = [X, X[::-1], X.reshape(12, 12), X.astype(np.float32), X[:, ::-1], X[:-1], sp.csr_array(X)]
    places = [sp.csr_array(([1.0], ([row], [column])), shape=(2, 2)) for row in (0, 1) for column in (0, 1)]
    zeros = [np.zeros((24, 6)), np.zeros((24, 6), int), np.zeros((24, 12), np.float32)]
    assert len({digest(as_rows(each)) for each in (*others, *zeros, *places)}) == 14
    wide = sp.csr_array(X)
    wide.indices, wide.indptr = wide.indices.astype(np.int64), wide.indptr.astype(np.int64)
    assert digest(as_rows(wide)) == digest(as_rows(sp.csr_array(X))), "the type of the indices is not of the numbers"
