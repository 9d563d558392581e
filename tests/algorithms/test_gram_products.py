"""Tiles and columns of a symmetric matrix, and products with it: shared out, kept, in float32."""

import pickle
import uuid

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from dkrr.cluster import Meter, SerialExecutor, resident
from dkrr.data import MemoryRows, as_rows, write_rows
from dkrr.errors import StoreError
from dkrr.fitting.requests import problem_of_rows
from dkrr.kernels import RBF, Linear, Polynomial
from dkrr.kernels.maps import IdentityMap
from dkrr.linalg import gram_products, sources
from dkrr.linalg.column_sources import GramColumns, MatrixColumns
from dkrr.linalg.gram_products import GROUPS_PER_PLACE, LastProduct, TiledOperator, TileGroup, tile_work
from dkrr.linalg.normal import NormalOperator
from dkrr.linalg.passes import Design, Segment
from dkrr.linalg.sources import FormedTiles, GramTiles, MatrixTiles, ResidentRows
from dkrr.linalg.square import gram_workspace_bytes
from dkrr.store import TileGrid
from tests import systems
from tests.oracles import assert_close, naive_gram
from tests.stores import place
from tests.systems import RAGGED, MatrixOperator, RowsElsewhere, grids, positive_definite, random

one_blas_thread = systems.one_blas_thread

ACCURACY = {"float64": 1e-12, "float32": 1e-5}


def operator(source, grid, **settings):
    return TiledOperator(source, grid, SerialExecutor(), f"test-{uuid.uuid4().hex}", **settings)


def assert_product(found, matrix, vectors, precision):
    """Errors are of the size of rounding in |A| |V|."""
    scale = np.maximum(np.abs(matrix) @ np.abs(vectors), 1e-300)
    assert found.dtype == np.float64
    assert_allclose(found / scale, (matrix @ vectors) / scale, rtol=0, atol=ACCURACY[precision])


@given(
    grid=grids(),
    m=st.integers(1, 4),
    slots=st.integers(1, 3),
    kept=st.integers(0, 9),
    keeps=st.sampled_from(list(ACCURACY)),
    precision=st.sampled_from(list(ACCURACY)),
    scaled=st.booleans(),
    strip_bytes=st.sampled_from([1, 200, 10**6]),
)
def test_what_is_kept_does_not_change_a_product(grid, m, slots, kept, keeps, precision, scaled, strip_bytes):
    A, V, c = positive_definite(grid.n), random(grid.n, m, seed=1), np.random.default_rng(2).uniform(0.5, 2.0, grid.n)
    tiled = operator(
        MatrixTiles(MemoryRows(A)), grid, slots=slots, slots_per_process=slots, kept_tiles=kept, keeps=keeps,
        scale=c if scaled else None,
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gram_products, "KEPT_STRIP_BYTES", strip_bytes)
        for _ in range(2):  # the second time with what the first one kept
            assert_product(tiled.multiply(V, precision), np.outer(c, c) * A if scaled else A, V, precision)
    tiled.close()
    assert tiled.run not in resident._runs


def test_records_are_of_all_passes():
    tiled = operator(MatrixTiles(RowsElsewhere(positive_definite(47))), RAGGED)
    segments = tuple(Segment(RowsElsewhere(random(47, 3)), a, a + 10, 4, np.ones((47, 1))) for a in (0, 10))
    normal = NormalOperator(Design(IdentityMap()), segments, SerialExecutor(), 3)
    for one, n_tasks, n_bytes in ((tiled, GROUPS_PER_PLACE, 8 * (47 * 47 + 3 * 144 + 121) / 2), (normal, 2, 8 * 60)):
        one.multiply(np.ones((one.n, 1)))
        one.multiply(np.ones((one.n, 1)))
        assert (len(one.record.tasks), one.record.bytes_read) == (2 * n_tasks, 2 * n_bytes)


@pytest.mark.parametrize("kept", [0, 6])
@pytest.mark.parametrize("kernel", [RBF(gamma=0.1), Polynomial(degree=2), Linear()], ids=str)
def test_a_matrix_in_float32_is_symmetric(kernel, kept):
    """Each entry is one rounded entry."""
    X = random(47, 3)
    tiled = operator(GramTiles(kernel, MemoryRows(X)), RAGGED, kept_tiles=kept, keeps="float32")
    found = np.column_stack([tiled.multiply(np.eye(47)[:, k : k + 1], "float32")[:, 0] for k in range(47)])
    assert_array_equal(found, found.T)
    assert_array_equal(tiled.multiply(np.eye(47), "float32"), found)
    assert np.abs(found - kernel(X)).max() > 0, "it is float32's matrix"


def test_sums_of_products_in_float32_are_in_float64():
    n = 4 * 12
    A, V = np.zeros((n, n)), np.zeros((n, 1))
    A[0, ::12] = A[::12, 0] = 1.0  # one entry from each tile
    V[::12, 0] = 2.0**-30 * np.array([2.0**30, 1.0, 1.0, 1.0])
    assert operator(MatrixTiles(MemoryRows(A)), TileGrid(n, 12, 4)).multiply(V, "float32")[0, 0] == 1 + 3 * 2.0**-30


@pytest.fixture
def formed(monkeypatch):
    """Lower tiles that were formed: first row, first column, precision."""
    tiles, pieces = [], MatrixTiles.strips

    def noted(self, meter, rows, columns, dtype):
        tiles.append((rows.start, columns.start, np.dtype(dtype).name))
        return pieces(self, meter, rows, columns, dtype)

    monkeypatch.setattr(MatrixTiles, "strips", noted)
    return tiles


def keeping(**settings):
    return operator(MatrixTiles(MemoryRows(positive_definite(47))), RAGGED, **settings), random(47, 2)


@pytest.mark.parametrize(
    ("each", "slots", "keeps"),
    [(0, 2, "float64"), (4, 1, "float64"), (6, 1, "float32"), (2, 3, "float64"), (3, 3, "float32"), (99, 1, "float64")],
)
def test_kept_tiles_are_formed_once_and_those_on_the_diagonal_are_kept_last(formed, each, slots, keeps):
    """As many as each slot may keep."""
    tiled, V = keeping(kept_tiles=each, slots=slots, slots_per_process=slots, keeps=keeps)
    first, kept = tiled.multiply(V, keeps), each * slots
    assert len(formed) == len({(row, column) for row, column, _ in formed}) == 10
    assert_array_equal(tiled.multiply(V, keeps), first)
    assert len(formed[10:]) == max(0, 10 - kept)
    assert kept != 6 or {r - c for r, c, _ in formed[10:]} == {0}
    formed.clear()
    tiled.multiply(V, "float64")
    assert [p for *_, p in formed].count("float64") == (10 if keeps == "float32" else max(0, 10 - kept))
    tiled.close()
    formed.clear()
    tiled.multiply(V)
    assert len(formed) == 10, "after close they are formed again"


def test_a_process_keeps_no_more_groups_than_planned(formed):
    """Three slots, of which this process should have one: the groups of the others come to it all the same."""
    tiled, V = keeping(kept_tiles=2, slots=3, slots_per_process=1)
    first = tiled.multiply(V)
    names = resident._runs[tiled.run].objects
    assert {number for number, *_ in names} == {0} and len(names) == 2
    formed.clear()
    assert_array_equal(tiled.multiply(V), first)
    assert len(formed) == 8


@given(grid=grids(), parts=st.integers(1, 7), limited=st.booleans())
def test_work_is_shared_evenly(grid, parts, limited):
    tiles = sorted(grid.lower(), key=lambda t: -tile_work(grid, *t))
    most = -(-len(tiles) // parts)
    found = gram_products.balanced_groups(grid, tiles, parts, **({"most": most} if limited else {}))
    assert len(found) == parts and sorted(t for part in found for t in part) == sorted(tiles)
    work = [sum(tile_work(grid, *t) for t in part) for part in found]
    assert sum(work) == pytest.approx(grid.n**2 / 2)
    if limited:
        assert max(len(part) for part in found) <= most
    else:  # the part with the most work was the one with the least when its last tile came
        assert max(work) - min(work) <= max(tile_work(grid, *t) for t in tiles)


@pytest.mark.parametrize("sparse", [False, True])
def test_resident_rows_are_read_once_and_travel_without_the_rows(tmp_path, monkeypatch, sparse):
    X, run = np.where(random(23, 7, seed=1) < 0.3, random(23, 7), 0.0), f"rows-{uuid.uuid4().hex}"
    rows = write_rows(as_rows(sp.csr_array(X) if sparse else X), place(tmp_path / "rows"), 6)
    kept, reads, read = ResidentRows(rows, run), [], type(rows).read
    monkeypatch.setattr(type(rows), "read", lambda self, *a: reads.append(a) or read(self, *a))
    travelled = pickle.loads(pickle.dumps(kept))
    for found, expected in (
        (kept.read(0, 23), X),
        (kept.read(17, 23), X[17:]),
        (kept.take(np.array([7, 0, 7])), X[[7, 0, 7]]),
        (kept.read(2, 9, slice(1, 4)), X[2:9, 1:4]),
        (travelled.read(3, 8), X[3:8]),
    ):
        assert_array_equal(found.toarray() if sparse else found, expected)
    assert len(reads) == 1

    group = TileGroup(GramTiles(RBF(gamma=0.1), rows), TileGrid(23, 6, 3), ((1, 0), (1, 1)), "run", 0, None, 1)
    V = random(23, 2)
    assert len(pickle.dumps(kept)) + len(pickle.dumps(group)) < 3000

    tiled = TiledOperator(GramTiles(RBF(gamma=0.2), kept), TileGrid(23, 6, 3), SerialExecutor(), run, kept_tiles=2)
    assert_product(tiled.multiply(V), RBF(gamma=0.2)(X), V, "float64")
    tiled.close()
    assert run not in resident._runs, "the operator's run and the rows' are one"


def test_the_last_product_is_not_computed_again():
    A, V = positive_definite(20), random(20, 4)
    other, every = V + np.where(np.arange(4) == 2, 1.0, 0.0), [0, 1, 2, 3]
    for columns, precision, wanted, computed in (
        ([every], "float64", V, 0),
        ([every], "float64", other, 1),
        ([every, every], "float32", V, 0),  # which is not what is asked for
        ([every, [2]], "float64", other, 0),  # of one right-hand side
        ([[1, 2, 3], [3], [0, 1], [1]], "float64", V, 4),  # those that a resumed iteration has not finished
        ([every], "float64", V[:, :2], 0),  # others were multiplied beside them
    ):
        tiled = LastProduct(counted := MatrixOperator(A))
        tiled.multiply(V[:, columns[0]], "float64", np.array(columns[0]))
        for some in columns[1:]:
            tiled.multiply(other[:, some], precision, np.array(some))
        counted.products.clear()
        assert_product(tiled.of(wanted), A, wanted, "float64")
        assert sum(m for _, m in counted.products) == computed


# Sources of tiles and columns -----------------------------------------------------------------------------------


KINDS = ["gram", "sparse gram", "matrix", "sum"]
WITHIN = {"float64": {"rtol": 1e-12, "atol": 1e-14}, "float32": {"rtol": 2e-5, "atol": 2e-6}}


def make_source(kind, folder, grid, scaled):
    """A source of tiles of each kind, and the matrix that it stands for."""
    n, A, c = grid.n, positive_definite(grid.n), np.random.default_rng(1).uniform(0.5, 2.0, (grid.n, 1))
    if kind == "sum":
        return FormedTiles(tuple(systems.tiles_of(folder, grid, k * A) for k in (1, 2))), 3 * A
    scale = systems.vectors(folder, grid, c) if scaled else None
    X = np.where(random(n, 3, seed=2) < 0.3, random(n, 3), 0.0)
    rows = MemoryRows(A if kind == "matrix" else sp.csr_array(X) if kind == "sparse gram" else X)
    source = MatrixTiles(rows, scale) if kind == "matrix" else GramTiles(RBF(gamma=0.3), rows, scale)
    expected = A if kind == "matrix" else naive_gram(RBF(gamma=0.3), X)
    return source, c * expected * c.T if scaled else expected


def assembled(pieces, n):
    """Symmetric matrix of pieces of lower tiles, each entry of which comes once."""
    A = np.full((n, n), np.nan)
    for rows, columns, piece in pieces:
        assert np.isnan(A[rows, columns]).all()
        A[rows, columns] = piece
        if rows == columns:
            assert_array_equal(piece, piece.T)
        A[columns, rows] = piece.T
    return A


@pytest.mark.parametrize("dtype", WITHIN)
@pytest.mark.parametrize("kind", KINDS)
@given(
    grid=grids(most=24),
    block=st.integers(1, 9),
    part=st.sampled_from([1, 20, 10**6]),
    piece=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    scaled=st.booleans(),
)
def test_tiles_whole_and_in_pieces_are_the_matrix(tmp_path_factory, kind, dtype, grid, block, part, piece, scaled):
    source, expected = make_source(kind, tmp_path_factory.mktemp("s"), grid, scaled)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "KERNEL_BLOCK", block)
        patch.setattr("dkrr.data.rows.SPARSE_STRIP_ENTRIES", part)
        patch.setattr(sources, "LARGE_STRIP_ROWS", piece[0])
        patch.setattr(sources, "LARGE_STRIP_COLUMNS", piece[1])
        for i, j in grid.lower():
            tile = np.full((grid.height(i), grid.height(j)), np.nan, dtype)
            source.fill(Meter(), tile, grid.rows(i), grid.rows(j))
            lower = np.tri(*tile.shape, dtype=bool) | (i != j)
            assert_allclose(tile[lower], expected[grid.rows(i), grid.rows(j)][lower], **WITHIN[dtype])
        pieces = (p for i, j in grid.lower() for p in source.strips(Meter(), grid.rows(i), grid.rows(j), dtype))
        assert_allclose(assembled(pieces, grid.n), expected, **WITHIN[dtype])


@pytest.mark.parametrize("kind", ["unit diagonal", "polynomial", "sparse", "float32 matrix", "stored"])
def test_columns_are_those_of_the_matrix(tmp_path, kind):
    """All that a partial factorisation asks."""
    X, n, index, other = np.where(random(23, 4, seed=1) < 0.5, random(23, 4), 0.0), 23, np.array([5, 0, 22, 5]), [1, 22]
    kernel = Polynomial(degree=2, gamma=1.0, coef0=0.5) if kind == "polynomial" else RBF(gamma=0.2)
    rows, A = MemoryRows(sp.csr_array(X) if kind == "sparse" else X), naive_gram(kernel, X)
    source = GramColumns(kernel, write_rows(rows, place(tmp_path / "rows")) if kind == "stored" else rows)
    if kind == "float32 matrix":
        A = A.astype("float32").astype(float)
        source = MatrixColumns(MemoryRows(A.astype("float32")))
    taken = source.select_columns(index)
    for found, expected in (
        (source.diagonal(slice(3, 9)), A.diagonal()[3:9]),
        *((source.block(rows, taken), A[rows][:, index]) for rows in (slice(0, n), slice(7, 8), slice(20, n))),
        (source.among(taken, source.select_columns(np.array(other))), A[np.ix_(index, other)]),
        (source.block(slice(0, n), taken[[2, 0]]), A[:, [22, 5]]),  # by position, which is how pivots are accepted
    ):
        assert found.dtype == np.float64
        assert found.flags.c_contiguous and found.flags.writeable, "the factorisation works in place"
        assert_allclose(found, expected, rtol=1e-12, atol=1e-13)


@given(n=st.integers(1, 30), height=st.integers(1, 12), m=st.integers(1, 3), data=st.data())
def test_any_range_of_stored_vectors_can_be_read_and_no_missing_one(tmp_path_factory, n, height, m, data):
    values, folder, grid = random(n, m), tmp_path_factory.mktemp("v"), TileGrid(n, height, 1)
    start = data.draw(st.integers(0, n - 1))
    here = slice(start, data.draw(st.integers(start + 1, n)))
    assert_array_equal(sources.read_range(systems.vectors(folder, grid, values), here), values[here])
    with pytest.raises(StoreError, match="not there"):
        sources.read_range(systems.empty_vectors(folder, grid, m), here)


def test_tiles_on_the_diagonal_are_stored_whole(tmp_path):
    A, matrix = positive_definite(47), systems.empty_tiles(tmp_path, RAGGED)
    meter, diagonal = Meter(), np.empty((12, 12))
    for i, j in RAGGED.lower():
        sources.store_tiles(meter, MatrixTiles(MemoryRows(np.tril(A))), matrix, i, j)
    assert_array_equal(matrix.as_dask(symmetric=True).compute(scheduler="synchronous"), A)
    matrix.read_tile(1, 1, diagonal)
    assert_array_equal(diagonal, A[12:24, 12:24])
    assert meter.bytes_written == 30 * matrix.chunk_bytes
    sources.clear_upper(diagonal)
    assert_array_equal(diagonal, np.tril(A[12:24, 12:24]))


def test_memory_of_uneven_sparse_rows_is_that_of_parts(tmp_path):
    # Heavy rows stand together at the end, as where rows were sorted.
    light, heavy = (sp.random_array((n, 40_000), density=p, format="csr", rng=1) for n, p in ((100, 5e-4), (200, 0.2)))
    X = sp.csr_array(sp.vstack([light, heavy]))
    rows, all_rows = write_rows(MemoryRows(X), place(tmp_path / "rows")), slice(0, 300)
    kernel, parts, expected = RBF(gamma=1e-4), rows.row_ranges(all_rows), RBF(gamma=1e-4)(X)
    assert len(parts) > 4 and [p.start for p in parts[1:]] == [p.stop for p in parts[:-1]]
    row_bytes = problem_of_rows(rows, kernel, n_targets=1).row_bytes_in_strips(300)
    workspace = gram_workspace_bytes(kernel, 300, row_bytes, 40_000, row_bytes)
    product = 2 * 300 * row_bytes + kernel.pieces_bytes(300, 300, 40_000, row_bytes)
    assert 300 * row_bytes < rows.n_bytes / 2
    source, columns = GramTiles(kernel, rows), GramColumns(kernel, rows)
    tile, joined, taken = np.empty((300, 300)), np.zeros((300, 300)), X[[3, 250, 251]]

    def form_pieces():
        for r, c, piece in source.strips(Meter(), all_rows, all_rows, "f8"):
            joined[r, c] = piece

    assert systems.traced_peak(lambda: source.fill(Meter(), tile, all_rows, all_rows)) <= workspace
    assert systems.traced_peak(form_pieces) <= product
    assert systems.traced_peak(lambda: columns.block(all_rows, taken)) <= workspace + 8 * 300 * 3
    assert_close(np.tril(tile), np.tril(expected), 1e-12)
    assert_close(np.tril(joined), np.tril(expected), 1e-12)
    assert_close(columns.block(slice(90, 210), taken), expected[90:210, [3, 250, 251]], 1e-12)
