"""Any block of rows and columns is the same from every source."""

import pickle

import numpy as np
import pytest
import scipy.sparse as sp
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from zarr.codecs import BytesCodec

from dkrr.errors import StoreError
from dkrr.kernels import Linear
from dkrr.linalg.segments import Segment
from dkrr.planning.problem import Problem
from dkrr.rows import MemoryRows, Rows, ZarrRows, as_rows, write_rows
from dkrr.rows.chunk_files import SCRATCH_BYTES
from dkrr.rows.sources import WINDOW_ROWS, dense, n_bytes
from dkrr.runtime import Meter
from tests.rows.sources import KINDS, SHARED, SPARSE, numbers, table
from tests.stores import place

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
    assert len(message) < 900, "names and layouts, not numbers"
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
    array = zarr.create_array(tmp_path / "x", shape=(101, 13), chunks=(17, 5), dtype="float32")
    assert ZarrRows(str(tmp_path / "x")).read_overhead_bytes == 4 * 17 * 5 * 4
    assert as_rows(array).read_overhead_bytes == 4 * 17 * 5 * 4
    plain(tmp_path / "y", numbers((101, 13)), (17, 13))
    assert ZarrRows(str(tmp_path / "y")).read_overhead_bytes == SCRATCH_BYTES, "nothing but what is asked for"
    assert MemoryRows(numbers()).read_overhead_bytes == 0


def plain(folder, X, chunks, **settings):
    """An uncompressed Zarr array, whose chunks are read as files."""
    array = zarr.create_array(folder, shape=X.shape, chunks=chunks, dtype=X.dtype, **({"compressors": None} | settings))
    array[...] = X
    return array


LAYOUTS = {
    "v3": {},
    "v2": {"zarr_format": 2},
    "float32": {},
    "bytes": {},
    "compressed": {"compressors": "auto"},
    "big-endian": {"serializer": BytesCodec(endian="big")},
    "sharded": {"shards": (12, 5)},
    "column order": {"zarr_format": 2, "order": "F"},
    "split rows": {},
    "padded rows": {},
}


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ranges(23), ranges(5))
def test_chunk_files(layout, tmp_path_factory, some_rows, some_columns):
    dtype = {"float32": "float32", "bytes": "int8"}.get(layout, "float64")
    X = numbers((23, 5)).astype(dtype)
    chunks = {"split rows": (6, 3), "padded rows": (6, 7)}.get(layout, (6, 5))
    folder = tmp_path_factory.mktemp("chunks")
    rows = as_rows(plain(folder / "x", X, chunks, **LAYOUTS[layout]))
    assert (rows._files is not None) == (layout in ("v3", "v2", "float32", "bytes"))
    read = rows.read(*some_rows, slice(*some_columns))
    assert_array_equal(read, X[slice(*some_rows), slice(*some_columns)])
    assert read.dtype == X.dtype


def test_chunks_that_are_not_there(tmp_path):
    """They hold the fill value, and a truncated one is an error, as with Zarr itself."""
    plain(tmp_path / "x", numbers((23, 5)), (6, 5), fill_value=7.5)
    (tmp_path / "x" / "c" / "1" / "0").unlink()
    rows = ZarrRows(str(tmp_path / "x"))
    assert (rows.read(0, 23)[6:12] == 7.5).all()
    assert_array_equal(rows.read(0, 6), numbers((23, 5))[:6])
    with (tmp_path / "x" / "c" / "2" / "0").open("r+b") as file:
        file.truncate(6 * 5 * 8 - 1)
    with pytest.raises(StoreError, match="ends too early"):
        rows.read(16, 18)


@every_kind
def test_blocks_go_through_all_rows_once(kind, tmp_path_factory):
    case = table(kind, tmp_path_factory.mktemp("rows"))
    rows = as_rows(case.handed_in)

    @settings(max_examples=10, deadline=None)
    @given(ranges(23), st.integers(1, 30))
    def check(some_rows, height):
        start, stop = some_rows
        at = start
        for where, block in rows.blocks(start, stop, height):
            assert where.start == at and 1 <= where.stop - at <= height
            assert (where.start - start) // height == (where.stop - 1 - start) // height, "blocks end at k × height"
            assert_array_equal(dense(block), case.array[where])
            at = where.stop
        assert at == stop

    check()


@pytest.mark.parametrize("kind", ["zarr", "dask"])
@pytest.mark.parametrize("height", [2, 5, 11, 40])
def test_blocks_read_a_chunk_once(kind, height, tmp_path, monkeypatch):
    rows = as_rows(table(kind, tmp_path).handed_in)
    edges = [0, 7, 14, 21, 23] if kind == "zarr" else [0, 5, 23]
    reads, read = [], type(rows).read
    monkeypatch.setattr(type(rows), "read", lambda self, a, b: reads.append((a, b)) or read(self, a, b))
    assert sum(block.shape[0] for _, block in rows.blocks(0, 23, height)) == 23
    assert [a for a, _ in reads][1:] == [b for _, b in reads][:-1]
    assert {a for a, _ in reads} <= set(edges)


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("order", ["even", "dense rows first", "dense rows spread"])
def test_the_heaviest_block_of_sparse_rows_is_known(tmp_path, stored, order):
    counts = np.full(2000, 5)
    if order != "even":
        counts[slice(100) if order == "dense rows first" else slice(None, None, 20)] = 400
    indptr = np.concatenate([[0], np.cumsum(counts)])
    indices = np.concatenate([np.arange(count) for count in counts])
    rows: Rows = MemoryRows(sp.csr_array((np.ones(len(indices)), indices, indptr), shape=(2000, 500)))
    if stored:
        rows = write_rows(rows, place(tmp_path / "rows"))
    for height in (WINDOW_ROWS, 700):
        most = max(n_bytes(rows.read(k, min(k + height, 2000))) for k in range(0, 2000, 50))
        assert most <= 2 * height * rows.heavy_row_bytes
        assert height * rows.heavy_row_bytes <= 3 * most + 32 * height
    assert (rows.heavy_row_bytes > 5 * rows.row_bytes) == (order == "dense rows first")


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.data())
@settings(max_examples=50, deadline=None)
def test_plans_bound_the_bytes_of_any_rows(counts, data):
    n, pointers = len(counts), np.concatenate([[0], np.cumsum(counts)])
    indices = np.concatenate([np.arange(count) for count in counts])
    rows = MemoryRows(sp.csr_array((np.ones(len(indices)), indices, pointers), shape=(n, 9)))
    problem, k = Problem.of_rows(rows, Linear(), n_targets=1), data.draw(st.integers(1, n))
    width, heaviest = 8 + rows.array.indices.itemsize, sorted(counts)[-k:]
    assert width * sum(heaviest) + 16 * k <= problem.bytes_of_any(k) <= 2 * width * sum(heaviest) + 32 * k
    entries = data.draw(st.integers(1, 30))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dkrr.planning.problem.BLOCK_ENTRIES", entries)
        patch.setattr("dkrr.linalg.segments.BLOCK_ENTRIES", entries)
        segment = Segment(rows, 0, n, k, np.ones((n, 1)))
        for stream in (segment.blocks(Meter()), segment.strips(Meter(), 1)):
            read = [where for where, block in stream if n_bytes(block) <= problem.bytes_of_block(k)]
            assert [row for where in read for row in range(where.start, where.stop)] == list(range(n))
    most = max(int(pointers[i + k] - pointers[i]) for i in range(n - k + 1))
    assert width * most + 16 * k <= k * problem.bytes_of_part(k)
