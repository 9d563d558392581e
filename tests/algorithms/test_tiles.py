"""Tiles and columns of a symmetric matrix from rows, from a matrix, from sums; and the helpers around them."""

import pickle

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from dkrr.errors import StoreError
from dkrr.kernels import RBF, Linear, Polynomial
from dkrr.linalg import sources
from dkrr.linalg.sources import (
    GramColumns,
    GramTiles,
    MatrixColumns,
    MatrixTiles,
    SummedTiles,
    clear_upper,
    gram_workspace_bytes,
    mirror_lower,
    read_range,
    store_tiles,
)
from dkrr.planning.problem import Problem
from dkrr.rows import MemoryRows, as_rows, write_rows
from dkrr.runtime import Meter
from dkrr.tiles import ChunkedArray, TileGrid
from tests.oracles import naive_gram
from tests.stores import place
from tests.systems import (
    RAGGED,
    RowsElsewhere,
    empty_tiles,
    empty_vectors,
    grids,
    one_blas_thread,  # noqa: F401
    positive_definite,
    random,
    tiles_of,
    traced_peak,
    vectors,
    whole,
)

KINDS = ["gram", "sparse gram", "matrix", "sum"]
ACCURACY = {"float64": {"rtol": 1e-12, "atol": 1e-14}, "float32": {"rtol": 2e-5, "atol": 2e-6}}


def make_source(kind, folder, grid, scaled):
    """A source of tiles of each kind, and the matrix that it stands for."""
    n, A, c = grid.n, positive_definite(grid.n), np.random.default_rng(1).uniform(0.5, 2.0, (grid.n, 1))
    if kind == "sum":  # of two or three parts that are stored
        parts = range(1, 3 + scaled)
        return SummedTiles(tuple(tiles_of(folder, grid, k * A) for k in parts)), sum(parts) * A
    scale = vectors(folder, grid, c) if scaled else None
    X = np.where(random(n, 3, seed=2) < 0.3, random(n, 3), 0.0)
    rows = MemoryRows(A if kind == "matrix" else sp.csr_array(X) if kind == "sparse gram" else X)
    source = MatrixTiles(rows, scale) if kind == "matrix" else GramTiles(RBF(gamma=0.3), rows, scale)
    expected = A if kind == "matrix" else naive_gram(RBF(gamma=0.3), X)
    return source, c * expected * c.T if scaled else expected


def assembled(pieces, n):
    """Symmetric matrix of pieces of lower tiles, each entry of which comes once."""
    A, count = np.full((n, n), np.nan), np.zeros((n, n), int)
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


@pytest.mark.parametrize("dtype", ACCURACY)
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
        patch.setattr("dkrr.rows.sources.PART_ENTRIES", part)
        patch.setattr(sources, "PIECE_ROWS", piece[0])
        patch.setattr(sources, "PIECE_COLUMNS", piece[1])
        for i, j in grid.lower():
            tile = np.full((grid.height(i), grid.height(j)), np.nan, dtype)
            source.fill(Meter(), tile, grid.rows(i), grid.rows(j))
            lower = np.tri(*tile.shape, dtype=bool) | (i != j)
            if kind == "gram" and i == j:  # blocks above the diagonal are not computed
                blocks = np.arange(len(tile)) // block
                assert_array_equal(np.isnan(tile), blocks[:, None] < blocks)
            assert_allclose(tile[lower], expected[grid.rows(i), grid.rows(j)][lower], **ACCURACY[dtype])
        pieces = (p for i, j in grid.lower() for p in source.pieces(Meter(), grid.rows(i), grid.rows(j), dtype))
        assert_allclose(assembled(pieces, grid.n), expected, **ACCURACY[dtype])


def test_bytes_read_are_those_of_the_rows_and_tiles_elsewhere(tmp_path):
    meter, rows = Meter(), RowsElsewhere(np.ones((47, 3), np.float32))
    for form in (
        lambda r, c: GramTiles(Linear(), rows).fill(meter, np.empty((r.stop - r.start, 12)), r, c),
        lambda r, c: list(GramTiles(Linear(), rows).pieces(meter, r, c, "float64")),
    ):
        meter.bytes_read = 0
        form(slice(36, 47), slice(12, 24))
        assert meter.bytes_read == (11 + 12) * 3 * 4
        form(slice(12, 24), slice(12, 24))
        assert meter.bytes_read == (11 + 12 + 12) * 3 * 4, "on the diagonal once"
    meter.bytes_read = 0
    matrix = MatrixTiles(RowsElsewhere(positive_definite(47).astype(np.float32)))
    matrix.fill(meter, np.empty((11, 12)), slice(36, 47), slice(12, 24))
    assert meter.bytes_read == 11 * 12 * 4
    source, _ = make_source("sum", tmp_path, RAGGED, False)
    source.fill(meter, np.empty((12, 12)), RAGGED.rows(2), RAGGED.rows(0))
    assert meter.bytes_read == 11 * 12 * 4 + 2 * 3 * source.parts[0].array.chunk_bytes


def test_sources_travel_by_name(tmp_path):
    rows = write_rows(as_rows(random(23, 3)), place(tmp_path / "rows"))
    grid, index = TileGrid(23, 12, 4), np.array([3, 1])
    source, columns = GramTiles(RBF(), rows, vectors(tmp_path, grid, np.ones((23, 1)))), GramColumns(RBF(), rows)
    messages = [pickle.dumps(source), pickle.dumps(columns)]
    assert max(map(len, messages)) < 2000
    assert_array_equal(whole(pickle.loads(messages[0]), grid), whole(source, grid))
    again = pickle.loads(messages[1])
    assert_array_equal(again.block(slice(0, 23), again.take(index)), columns.block(slice(0, 23), columns.take(index)))


@pytest.mark.parametrize("kind", ["unit diagonal", "polynomial", "sparse", "matrix", "float32 matrix", "stored"])
def test_columns_are_those_of_the_matrix(tmp_path, kind):
    """All that a partial factorisation asks."""
    X, index, other = np.where(random(23, 4, seed=1) < 0.5, random(23, 4), 0.0), np.array([5, 0, 22, 5]), [1, 22]
    kernel = Polynomial(degree=2, gamma=1.0, coef0=0.5) if kind == "polynomial" else RBF(gamma=0.2)
    if "matrix" in kind:
        A = positive_definite(23).astype("float32" if "32" in kind else "float64")
        source, A, n = MatrixColumns(MemoryRows(A)), A.astype(np.float64), 23
    else:
        rows = MemoryRows(sp.csr_array(X) if kind == "sparse" else X)
        rows = write_rows(rows, place(tmp_path / "rows")) if kind == "stored" else rows
        source, A, n = GramColumns(kernel, rows), naive_gram(kernel, X), 23
    assert source.n == n
    assert_allclose(source.diagonal(slice(0, n)), A.diagonal(), rtol=1e-12)
    assert_allclose(source.diagonal(slice(3, 9)), A.diagonal()[3:9], rtol=1e-12)
    taken = source.take(index)
    picked = taken[[2, 0]]  # by position, which is how pivots are accepted
    for found, expected in (
        *((source.block(rows, taken), A[rows][:, index]) for rows in (slice(0, n), slice(7, 8), slice(20, n))),
        (source.among(taken, source.take(np.array(other))), A[np.ix_(index, other)]),
        (source.block(slice(0, n), picked), A[:, [22, 5]]),
    ):
        assert found.dtype == np.float64
        assert found.flags.c_contiguous and found.flags.writeable, "the factorisation works in place"
        assert_allclose(found, expected, rtol=1e-12, atol=1e-13)


@given(n=st.integers(1, 30), height=st.integers(1, 12), m=st.integers(1, 3), data=st.data())
def test_any_range_of_stored_vectors_can_be_read(tmp_path_factory, n, height, m, data):
    values = random(n, m)
    array = ChunkedArray.create(str(tmp_path_factory.mktemp("v") / "v"), (n, m), (height, m))
    array.fill(values)
    start = data.draw(st.integers(0, n))
    stop = data.draw(st.integers(start, n))
    assert_array_equal(read_range(array, slice(start, stop)), values[start:stop])


def test_vectors_that_were_never_written_are_not_zeros(tmp_path):
    with pytest.raises(StoreError, match="not there"):
        read_range(empty_vectors(tmp_path, RAGGED, 2), slice(0, 3))


def test_tiles_on_the_diagonal_are_stored_whole(tmp_path):
    A, matrix, meter = positive_definite(47), empty_tiles(tmp_path, RAGGED), Meter()
    for i, j in RAGGED.lower():
        store_tiles(meter, MatrixTiles(MemoryRows(np.tril(A))), matrix, i, j)
    assert_array_equal(matrix.as_dask(symmetric=True).compute(scheduler="synchronous"), A)
    diagonal = np.empty((12, 12))
    matrix.read_tile(1, 1, diagonal)
    assert_array_equal(diagonal, A[12:24, 12:24])
    assert meter.bytes_written == 30 * matrix.array.chunk_bytes
    mirrored, cleared = (random(9, 9) for _ in range(2))
    mirror_lower(mirrored)
    clear_upper(cleared)
    assert_array_equal(mirrored, np.tril(random(9, 9)) + np.tril(random(9, 9), -1).T)
    assert_array_equal(cleared, np.tril(random(9, 9)))


def test_memory_of_uneven_sparse_rows_is_that_of_parts(tmp_path):
    # Heavy rows stand together at the end, as where rows were sorted.
    counts = np.repeat([20, 8000], [100, 200])
    rng, pointers = np.random.default_rng(0), np.concatenate([[0], np.cumsum(counts)])
    # Every fifth column, from another first one in each row: with few columns in common the oracle is fast.
    indices = (np.arange(pointers[-1]) - np.repeat(pointers[:-1], counts)) * np.repeat(40_000 // counts, counts)
    indices += np.repeat(np.arange(300) % 5, counts)
    X = sp.csr_array((rng.random(pointers[-1]), indices, pointers), shape=(300, 40_000))
    rows = write_rows(MemoryRows(X), place(tmp_path / "rows"))
    kernel, parts = RBF(gamma=1e-4), rows.parts(slice(0, 300))
    assert len(parts) > 4 and [p.start for p in parts[1:]] == [p.stop for p in parts[:-1]]
    row_bytes = Problem.of_rows(rows, kernel, n_targets=1).bytes_of_part(300)
    workspace = gram_workspace_bytes(kernel, 300, row_bytes, 40_000, row_bytes)
    product = 2 * 300 * row_bytes + kernel.pieces_bytes(300, 300, 40_000, row_bytes)
    assert 300 * row_bytes < rows.n_bytes / 2
    source, columns, everything = GramTiles(kernel, rows), GramColumns(kernel, rows), slice(0, 300)
    tile, joined, taken = np.empty((300, 300)), np.zeros((300, 300)), X[[3, 250, 251]]

    def form_pieces():
        for r, c, piece in source.pieces(Meter(), everything, everything, "f8"):
            joined[r, c] = piece

    assert traced_peak(lambda: source.fill(Meter(), tile, everything, everything)) <= workspace
    assert traced_peak(form_pieces) <= product
    assert traced_peak(lambda: columns.block(everything, taken)) <= workspace + 8 * 300 * 3
    expected = kernel(X)
    assert_allclose(np.tril(tile), np.tril(expected), rtol=1e-12)
    assert_allclose(np.tril(joined), np.tril(expected), rtol=1e-12)
    assert_allclose(columns.block(slice(90, 210), taken), expected[90:210, [3, 250, 251]], rtol=1e-12)
