"""Tiles of a symmetric matrix from rows, from a matrix, from sums; and the helpers around them."""

import pickle
import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from dkrr.errors import StoreError
from dkrr.kernels import RBF, Laplacian, Linear
from dkrr.linalg import sources
from dkrr.linalg.sources import (
    GramColumns,
    GramTiles,
    MatrixTiles,
    SummedTiles,
    clear_upper,
    cut_tile,
    fill_gram,
    gram_cost,
    gram_workspace_bytes,
    mirror_lower,
    mirror_squares,
    read_range,
    store_tiles,
)
from dkrr.planning.problem import Problem
from dkrr.rows import MemoryRows, Rows, as_rows, write_rows
from dkrr.runtime import Meter
from dkrr.tiles import ChunkedArray, TileGrid
from tests.inputs import KINDS, numbers, table
from tests.linalg.systems import (
    RAGGED,
    RowsElsewhere,
    empty_tiles,
    empty_vectors,
    grids,
    positive_definite,
    tiles_of,
    vectors,
)
from tests.oracles import naive_gram
from tests.stores import place


def whole(source, grid):
    """Symmetric matrix that a source stands for, from its lower tiles."""
    A = np.full((grid.n, grid.n), np.nan)
    for i, j in grid.lower():
        tile = np.full((grid.height(i), grid.height(j)), np.nan)
        source.fill(Meter(), tile, grid.rows(i), grid.rows(j))
        A[grid.rows(i), grid.rows(j)] = tile
    assert not np.isnan(A[np.tri(grid.n, dtype=bool)]).any()
    mirror_lower(A)
    return A


class TestGramTiles:
    @settings(max_examples=25, deadline=None)
    @given(grid=grids(most=20), block=st.integers(1, 9), scaled=st.booleans())
    def test_naive_loops(self, tmp_path_factory, grid, block, scaled):
        folder = tmp_path_factory.mktemp("s")
        rng = np.random.default_rng(0)
        X, c = rng.standard_normal((grid.n, 3)), rng.uniform(0.5, 2.0, (grid.n, 1))
        source = GramTiles(RBF(gamma=0.3), MemoryRows(X), vectors(folder, grid, c) if scaled else None)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sources, "KERNEL_BLOCK", block)
            found = whole(source, grid)
        expected = naive_gram(RBF(gamma=0.3), X)
        assert_allclose(found, c * expected * c.T if scaled else expected, rtol=1e-12, atol=1e-14)

    @pytest.mark.parametrize("kind", KINDS)
    def test_every_kind_of_rows(self, tmp_path, kind):
        X = numbers() / 100
        case = table(kind, tmp_path, X)
        found = whole(GramTiles(Laplacian(gamma=0.1), as_rows(case.handed_in)), TileGrid(23, 6, 3))
        assert_allclose(found, naive_gram(Laplacian(gamma=0.1), X), rtol=1e-12, atol=1e-14)

    def test_bytes(self):
        meter, rows = Meter(), RowsElsewhere(np.ones((47, 3), np.float32))
        GramTiles(Linear(), rows).fill(meter, np.empty((11, 12)), slice(36, 47), slice(12, 24))
        assert meter.bytes_read == (11 + 12) * 3 * 4
        GramTiles(Linear(), rows).fill(meter, np.empty((12, 12)), slice(12, 24), slice(12, 24))
        assert meter.bytes_read == (11 + 12 + 12) * 3 * 4, "on the diagonal once"

    def test_travels_by_name(self, tmp_path):
        rows = as_rows(table("zarr", tmp_path).handed_in)
        source = GramTiles(RBF(gamma=1e-4), rows, vectors(tmp_path, RAGGED, np.ones((47, 1))))
        message = pickle.dumps(source)
        assert len(message) < 2000
        grid = TileGrid(23, 12, 4)
        assert_array_equal(whole(pickle.loads(message), grid), whole(source, grid))


class TestMatrixTiles:
    @settings(max_examples=25, deadline=None)
    @given(grid=grids(), scaled=st.booleans())
    def test_blocks(self, tmp_path_factory, grid, scaled):
        A, c = positive_definite(grid.n), np.random.default_rng(0).uniform(0.5, 2.0, (grid.n, 1))
        scale = vectors(tmp_path_factory.mktemp("s"), grid, c) if scaled else None
        expected = c * A * c.T if scaled else A
        assert_allclose(whole(MatrixTiles(MemoryRows(A), scale), grid), expected, rtol=1e-14)

    @pytest.mark.parametrize("kind", [kind for kind in KINDS if "dask of csr" not in kind])
    def test_every_kind_of_rows(self, tmp_path, kind):
        A = np.where(positive_definite(47) > 0.05, positive_definite(47), 0.0)
        source = MatrixTiles(as_rows(table(kind, tmp_path, A).handed_in))
        assert_array_equal(whole(source, RAGGED), A)

    def test_bytes(self):
        meter = Meter()
        MatrixTiles(RowsElsewhere(positive_definite(47).astype(np.float32))).fill(
            meter, np.empty((11, 12)), slice(36, 47), slice(12, 24)
        )
        assert meter.bytes_read == 11 * 12 * 4


class TestSummedTiles:
    @pytest.mark.parametrize("count", [1, 2, 3])
    def test_sum(self, tmp_path, count):
        parts = [positive_definite(47, seed) for seed in range(count)]
        source = SummedTiles(tuple(tiles_of(tmp_path, RAGGED, A) for A in parts))
        assert_allclose(whole(source, RAGGED), sum(parts), rtol=1e-14)
        meter = Meter()
        source.fill(meter, np.empty((12, 12)), RAGGED.rows(2), RAGGED.rows(0))
        assert meter.bytes_read == count * 3 * source.parts[0].array.chunk_bytes


@pytest.mark.parametrize("kind", ["gram", "matrix", "sum"])
@pytest.mark.parametrize("scaled", [False, True])
def test_float32_tiles(tmp_path, kind, scaled):
    rng = np.random.default_rng(0)
    X, A, c = rng.standard_normal((47, 3)), positive_definite(47), rng.uniform(0.5, 2.0, (47, 1))
    scale = vectors(tmp_path, RAGGED, c) if scaled else None
    source = {
        "gram": GramTiles(RBF(gamma=0.3), MemoryRows(X), scale),
        "matrix": MatrixTiles(MemoryRows(A), scale),
        "sum": SummedTiles((tiles_of(tmp_path, RAGGED, A), tiles_of(tmp_path, RAGGED, A))),
    }[kind]
    for i, j in RAGGED.lower():
        halves, tile = (np.empty((RAGGED.height(i), RAGGED.height(j)), dtype) for dtype in (np.float32, np.float64))
        for out in (halves, tile):
            source.fill(Meter(), out, RAGGED.rows(i), RAGGED.rows(j))
        lower = np.tri(*tile.shape, dtype=bool) if i == j else slice(None)
        assert_allclose(halves[lower], tile[lower], rtol=2e-5, atol=1e-6)


def assembled(pieces, grid):
    """Symmetric matrix of pieces of lower tiles, each entry of which comes once."""
    A, count = np.full((grid.n, grid.n), np.nan), np.zeros((grid.n, grid.n), int)
    for rows, columns, piece in pieces:
        assert piece.shape == (rows.stop - rows.start, columns.stop - columns.start)
        A[rows, columns] = piece
        count[rows, columns] += 1
        if rows != columns:
            A[columns, rows] = piece.T
            count[columns, rows] += 1
        else:
            assert_array_equal(piece, piece.T)
    assert (count == 1).all()
    return A


class TestCutTile:
    @settings(max_examples=60, deadline=None)
    @given(m=st.integers(1, 20), n=st.integers(1, 20), height=st.integers(1, 9), width=st.integers(1, 9))
    def test_beside_the_diagonal(self, m, n, height, width):
        tile = np.arange(m * n, dtype=float).reshape(m, n)
        found, count = np.full((m, n), np.nan), np.zeros((m, n), int)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sources, "PIECE_ROWS", height)
            patch.setattr(sources, "PIECE_COLUMNS", width)
            for rows, columns, piece in cut_tile(tile, slice(50, 50 + m), slice(7, 7 + n)):
                assert piece.shape <= (height, width)
                assert np.shares_memory(piece, tile)
                where = slice(rows.start - 50, rows.stop - 50), slice(columns.start - 7, columns.stop - 7)
                found[where] = piece
                count[where] += 1
        assert (count == 1).all()
        assert_array_equal(found, tile)

    @settings(max_examples=60, deadline=None)
    @given(n=st.integers(1, 30), height=st.integers(1, 9), width=st.integers(1, 9))
    def test_on_the_diagonal_only_the_lower_triangle_is_read(self, n, height, width):
        A = positive_definite(n)
        tile = np.where(np.tri(n, dtype=bool), A, np.nan)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sources, "PIECE_ROWS", height)
            patch.setattr(sources, "PIECE_COLUMNS", width)
            mirror_squares(tile)
            found = assembled(cut_tile(tile, slice(0, n), slice(0, n)), TileGrid(n, n, n))
        assert_allclose(found, A, rtol=1e-15)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("kind", ["gram", "matrix", "sum"])
@settings(max_examples=15, deadline=None)
@given(grid=grids(most=30), piece=st.tuples(st.integers(1, 9), st.integers(1, 9)), scaled=st.booleans())
def test_pieces_are_the_matrix(tmp_path_factory, kind, dtype, grid, piece, scaled):
    folder, rng = tmp_path_factory.mktemp("s"), np.random.default_rng(0)
    X, A, c = rng.standard_normal((grid.n, 3)), positive_definite(grid.n), rng.uniform(0.5, 2.0, (grid.n, 1))
    scale = vectors(folder, grid, c) if scaled else None
    source = {
        "gram": lambda: GramTiles(RBF(gamma=0.3), MemoryRows(X), scale),
        "matrix": lambda: MatrixTiles(MemoryRows(A), scale),
        "sum": lambda: SummedTiles((tiles_of(folder, grid, A), tiles_of(folder, grid, A))),
    }[kind]()
    expected = whole(source, grid)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "PIECE_ROWS", piece[0])
        patch.setattr(sources, "PIECE_COLUMNS", piece[1])
        found = assembled(
            (p for i, j in grid.lower() for p in source.pieces(Meter(), grid.rows(i), grid.rows(j), dtype)), grid
        )
    accuracy = 1e-14 if dtype == "float64" else 2e-5
    assert_allclose(found, expected, rtol=accuracy, atol=accuracy)


def test_bytes_of_pieces():
    meter, source = Meter(), GramTiles(Linear(), RowsElsewhere(np.ones((47, 3), np.float32)))
    list(source.pieces(meter, slice(36, 47), slice(12, 24), "float64"))
    assert meter.bytes_read == (11 + 12) * 3 * 4
    list(source.pieces(meter, slice(12, 24), slice(12, 24), "float64"))
    assert meter.bytes_read == (11 + 12 + 12) * 3 * 4, "on the diagonal once"


class TestFillGram:
    @settings(max_examples=30, deadline=None)
    @given(st.integers(1, 20), st.integers(1, 20), st.integers(1, 8))
    def test_blocks_do_not_matter(self, m, n, block):
        rng = np.random.default_rng(0)
        X, Y, out = rng.standard_normal((m, 2)), rng.standard_normal((n, 2)), np.full((m, n), np.nan)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sources, "KERNEL_BLOCK", block)
            fill_gram(RBF(gamma=0.5), X, Y, out)
        assert_allclose(out, naive_gram(RBF(gamma=0.5), X, Y), rtol=1e-12)

    def test_lower_leaves_the_blocks_above(self, monkeypatch):
        monkeypatch.setattr(sources, "KERNEL_BLOCK", 4)
        X, out = np.random.default_rng(0).standard_normal((10, 2)), np.full((10, 10), np.nan)
        fill_gram(Linear(), X, X, out, lower=True)
        blocks = np.arange(10) // 4
        assert_array_equal(np.isnan(out), blocks[:, None] < blocks)

    def test_sparse_rows(self):
        X = sp.csr_array(np.eye(5))
        out = np.empty((5, 5))
        fill_gram(Linear(), X, X, out)
        assert_array_equal(out, np.eye(5))


class TestHelpers:
    @settings(max_examples=50, deadline=None)
    @given(n=st.integers(1, 30), height=st.integers(1, 12), m=st.integers(1, 3), data=st.data())
    def test_read_range(self, tmp_path_factory, n, height, m, data):
        values = np.random.default_rng(0).standard_normal((n, m))
        array = ChunkedArray.create(str(tmp_path_factory.mktemp("v") / "v"), (n, m), (height, m))
        array.fill(values)
        start = data.draw(st.integers(0, n))
        stop = data.draw(st.integers(start, n))
        assert_array_equal(read_range(array, slice(start, stop)), values[start:stop])

    def test_mirror_and_clear(self):
        A = np.random.default_rng(0).standard_normal((9, 9))
        mirrored, cleared = A.copy(), A.copy()
        mirror_lower(mirrored)
        clear_upper(cleared)
        assert_array_equal(mirrored, np.tril(A) + np.tril(A, -1).T)
        assert_array_equal(cleared, np.tril(A))

    def test_store_tiles(self, tmp_path):
        A, matrix, meter = positive_definite(47), empty_tiles(tmp_path, RAGGED), Meter()
        for i, j in RAGGED.lower():
            store_tiles(meter, MatrixTiles(MemoryRows(np.tril(A))), matrix, i, j)
        assert_array_equal(matrix.as_dask(symmetric=True).compute(scheduler="synchronous"), A)
        diagonal = np.empty((12, 12))
        matrix.read_tile(1, 1, diagonal)
        assert_array_equal(diagonal, A[12:24, 12:24], err_msg="diagonal tiles are stored whole")
        assert meter.bytes_written == 30 * matrix.array.chunk_bytes

    def test_empty_vectors_are_not_zeros(self, tmp_path):
        with pytest.raises(StoreError, match="not there"):
            read_range(empty_vectors(tmp_path, RAGGED, 2), slice(0, 3))


def test_cost_of_entries():
    entry = RBF(gamma=1.0).entry_cost(13)
    cost = gram_cost(entry, 1e6)
    assert cost.gemm_flops == 1e6 * entry.gemm_flops > 0
    assert cost.element_seconds == 1e6 * entry.element_seconds > 0


@pytest.mark.parametrize("tile", [101, 5 * sources.KERNEL_BLOCK])
def test_workspace_counts_the_rows_of_the_tile_and_the_temporaries_of_a_block(tile):
    kernel, block = RBF(gamma=1.0), min(tile, sources.KERNEL_BLOCK)
    assert gram_workspace_bytes(kernel, tile, 7, 13) == 2 * tile * 7 + kernel.workspace_bytes(block, block, 13)


@pytest.mark.parametrize("stored", [False, True], ids=["in memory", "stored"])
def test_memory_of_uneven_sparse_rows_is_that_of_parts(tmp_path, stored):
    # Heavy rows stand together at the end, as where rows were sorted.
    counts = np.repeat([20, 8000], [100, 200])
    rng, pointers = np.random.default_rng(0), np.concatenate([[0], np.cumsum(counts)])
    # Every fifth column, from another first one in each row: with few columns in common the oracle is fast.
    indices = (np.arange(pointers[-1]) - np.repeat(pointers[:-1], counts)) * np.repeat(40_000 // counts, counts)
    indices += np.repeat(np.arange(300) % 5, counts)
    X = sp.csr_array((rng.random(pointers[-1]), indices, pointers), shape=(300, 40_000))
    rows: Rows = MemoryRows(X)
    if stored:
        rows = write_rows(rows, place(tmp_path / "rows"))
    kernel, parts = RBF(gamma=1e-4), rows.parts(slice(0, 300))
    assert len(parts) > 4 and [p.start for p in parts[1:]] == [p.stop for p in parts[:-1]]
    problem = Problem.of_rows(rows, kernel, n_targets=1)
    row_bytes = problem.bytes_of_part(300)
    workspace = gram_workspace_bytes(kernel, 300, row_bytes, 40_000, row_bytes)
    product = 2 * 300 * row_bytes + kernel.pieces_bytes(300, 300, 40_000, row_bytes)
    assert 300 * row_bytes < rows.n_bytes / 2
    source, tile, joined = GramTiles(kernel, rows), np.empty((300, 300)), np.zeros((300, 300))
    whole, within = slice(0, 300), slice(90, 210)

    def form_pieces():
        for r, c, piece in source.pieces(Meter(), whole, whole, "f8"):
            joined[r, c] = piece

    assert traced_peak(lambda: source.fill(Meter(), tile, whole, whole)) <= workspace
    assert traced_peak(form_pieces) <= product
    columns, taken = GramColumns(kernel, rows), X[[3, 250, 251]]
    assert traced_peak(lambda: columns.block(whole, taken)) <= workspace + 8 * 300 * 3
    expected = np.tril(kernel(X))
    assert_allclose(np.tril(tile), expected, rtol=1e-12)
    assert_allclose(np.tril(joined), expected, rtol=1e-12)
    assert_allclose(columns.block(within, taken), kernel(X[90:210], taken), rtol=1e-12)
    off = np.empty((90, 120))
    source.fill(Meter(), off, slice(210, 300), within)
    assert_allclose(off, expected[210:, 90:210], rtol=1e-12)


def traced_peak(function):
    tracemalloc.start()
    function()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak
