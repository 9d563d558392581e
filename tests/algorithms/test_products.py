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
from dkrr.features import IdentityMap
from dkrr.kernels import RBF, Linear, Polynomial
from dkrr.linalg import sources, tiled_operator
from dkrr.linalg.normal_product import NormalOperator
from dkrr.linalg.operator import LastProduct
from dkrr.linalg.segments import Segment
from dkrr.linalg.sources import GramColumns, GramTiles, MatrixColumns, MatrixTiles, SummedTiles
from dkrr.linalg.tiled_operator import GROUPS_PER_PLACE, ResidentRows, TiledOperator, TileGroup, tile_work
from dkrr.planning.problem import Problem
from dkrr.store import ChunkedArray, TileGrid
from tests import systems
from tests.oracles import naive_gram
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
    assert_allclose(found / scale, (matrix @ vectors) / scale, atol=ACCURACY[precision])


def left_over(run):
    """Everything that this process still knows of a run."""
    return [run] * (run in resident._kept) + [
        k for d in (resident._locks, resident._reserved) for k in d if k[0] == run
    ]


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
        patch.setattr(tiled_operator, "KEPT_STRIP_BYTES", strip_bytes)
        for _ in range(2):  # the second time with what the first one kept
            assert_product(tiled.multiply(V, precision), np.outer(c, c) * A if scaled else A, V, precision)
    tiled.close()
    assert left_over(tiled.run) == []


def test_passes_and_records_are_counted():
    passes = []
    tiled = operator(MatrixTiles(RowsElsewhere(positive_definite(47))), RAGGED, on_pass=lambda: passes.append(1))
    segments = tuple(Segment(RowsElsewhere(random(47, 3)), a, a + 10, 4, np.ones((47, 1))) for a in (0, 10))
    normal = NormalOperator(IdentityMap(), segments, SerialExecutor(), 3, on_pass=lambda: passes.append(1))
    for one, n_tasks, n_bytes in ((tiled, GROUPS_PER_PLACE, 8 * (47 * 47 + 3 * 144 + 121) / 2), (normal, 2, 8 * 60)):
        passes.clear()
        for _ in range(3):
            one.multiply(np.ones((one.n, 1)))
        assert (len(passes), len(one.record.tasks), one.record.bytes_read) == (3, 3 * n_tasks, 3 * n_bytes)


def test_vectors_beyond_the_range_of_float32_are_multiplied():
    A, V = positive_definite(47), random(47, 4) * [1e-200, 1e200, 0.0, 1e-42]
    found = operator(MatrixTiles(MemoryRows(A)), RAGGED, scale=np.full(47, 2.0)).multiply(V, "float32")
    for k in (0, 1, 3):
        assert_allclose(found[:, k], 4 * A @ V[:, k], rtol=1e-4, atol=1e-5 * np.abs(V[:, k]).max())
    assert_array_equal(found[:, 2], 0.0)


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
    tiles, pieces = [], MatrixTiles.pieces

    def noted(self, meter, rows, columns, dtype):
        tiles.append((rows.start, columns.start, np.dtype(dtype).name))
        return pieces(self, meter, rows, columns, dtype)

    monkeypatch.setattr(MatrixTiles, "pieces", noted)
    return tiles


def keeping(**settings):
    return operator(MatrixTiles(MemoryRows(positive_definite(47))), RAGGED, **settings), random(47, 2)


@pytest.mark.parametrize("kept", [4, 6])
def test_kept_tiles_are_formed_once_and_those_on_the_diagonal_are_kept_last(formed, kept):
    tiled, V = keeping(kept_tiles=kept)
    first = tiled.multiply(V)
    assert len(formed) == 10
    assert_array_equal(tiled.multiply(V), first)
    assert len(formed[10:]) == 10 - kept
    assert kept < 6 or {r - c for r, c, _ in formed[10:]} == {0}
    tiled.close()
    formed.clear()
    tiled.multiply(V)
    assert len(formed) == 10, "after close they are formed again"


def test_more_may_be_kept_than_there_are_and_in_float32(formed):
    tiled, V = keeping(kept_tiles=99, slots=3, slots_per_process=3, keeps="float32")
    tiled.multiply(V, "float32")
    kept = resident._kept[tiled.run].values()
    assert sum(t.nbytes for t in kept) == 4 * sum(RAGGED.height(i) * RAGGED.height(j) for i, j in RAGGED.lower())
    assert_product(tiled.multiply(V, "float64"), positive_definite(47), V, "float64")
    tiled.multiply(V, "float32")
    precisions = [p for *_, p in formed]
    assert set(precisions[:-10]) == {"float32"} and precisions[-10:] == ["float64"] * 10, "the kept ones are used again"


def test_a_process_keeps_no_more_groups_than_planned(formed):
    """Three slots, of which this process should have one: the groups of the others come to it all the same."""
    tiled, V = keeping(kept_tiles=2, slots=3, slots_per_process=1)
    first = tiled.multiply(V)
    names = resident._kept[tiled.run]
    assert {number for number, *_ in names} == {0} and len(names) == 2
    formed.clear()
    assert_array_equal(tiled.multiply(V), first)
    assert len(formed) == 8


@given(grid=grids(), slots=st.integers(1, 5), kept=st.integers(0, 12))
def test_groups_have_every_tile_once_and_keep_as_many_as_fit(grid, slots, kept):
    groups = operator(MatrixTiles(MemoryRows(np.eye(grid.n))), grid, slots=slots, kept_tiles=kept)._groups
    tiles = [tile for group, _ in groups for tile in group.tiles]
    assert sorted(tiles) == sorted(grid.lower())
    assert [group.number for group, _ in groups] == list(range(len(groups)))
    for group, where in groups:
        assert group.tiles
        assert (group.keeps is None) == (where is None)
        assert where is None or (len(group.tiles) <= kept and where < slots)
    places = [where for _, where in groups if where is not None]
    assert len(places) == len(set(places)), "a place keeps one group"
    assert sum(len(group.tiles) for group, where in groups if where is not None) == min(len(tiles), kept * slots)


@given(grid=grids(), parts=st.integers(1, 7), limited=st.booleans())
def test_work_is_shared_evenly(grid, parts, limited):
    tiles = sorted(grid.lower(), key=lambda t: -tile_work(grid, *t))
    most = -(-len(tiles) // parts) if limited else None
    found = tiled_operator.balanced_groups(grid, tiles, parts, **({"most": most} if limited else {}))
    assert len(found) == parts and sorted(t for part in found for t in part) == sorted(tiles)
    work = [sum(tile_work(grid, *t) for t in part) for part in found]
    assert sum(work) == pytest.approx(grid.n**2 / 2)
    if limited:
        assert max(len(part) for part in found) <= most
    else:  # the part with the most work was the one with the least when its last tile came
        assert max(work) - min(work) <= max(tile_work(grid, *t) for t in tiles)
    assert [tile_work(RAGGED, *t) for t in ((1, 0), (1, 1), (3, 3))] == [144, 72, 60.5]


def toarray(block):
    return block.toarray() if sp.issparse(block) else block


@pytest.mark.parametrize("sparse", [False, True])
def test_resident_rows_are_read_once_and_travel_without_the_rows(tmp_path, monkeypatch, sparse):
    X, run = np.where(random(23, 7, seed=1) < 0.3, random(23, 7), 0.0), f"rows-{uuid.uuid4().hex}"
    rows = write_rows(as_rows(sp.csr_array(X) if sparse else X), place(tmp_path / "rows"), 6)
    kept, reads, read = ResidentRows(rows, run), [], type(rows).read
    monkeypatch.setattr(type(rows), "read", lambda self, *a: reads.append(a) or read(self, *a))
    assert (kept.shape, kept.dtype, kept.is_sparse, kept.is_shared) == (rows.shape, rows.dtype, rows.is_sparse, True)
    for start, stop in ((0, 23), (5, 6), (17, 23)):
        assert_array_equal(toarray(kept.read(start, stop)), X[start:stop])
    assert_array_equal(toarray(kept.take(np.array([7, 0, 7]))), X[[7, 0, 7]])
    assert_array_equal(toarray(kept.read(2, 9, slice(1, 4))), X[2:9, 1:4])
    assert len(reads) == 1
    message = pickle.dumps(kept)
    assert len(message) < 1000
    assert_array_equal(toarray(pickle.loads(message).read(3, 8)), X[3:8])

    group = TileGroup(GramTiles(RBF(gamma=0.1), rows), TileGrid(23, 6, 3), ((1, 0), (1, 1)), "run", 0, None, 1)
    message, V = pickle.dumps(group), random(23, 2)
    assert len(message) < 2000
    again = tiled_operator.multiply_group(Meter(), pickle.loads(message), "float64", V)
    assert_array_equal(again, tiled_operator.multiply_group(Meter(), group, "float64", V))

    tiled = TiledOperator(GramTiles(RBF(gamma=0.2), kept), TileGrid(23, 6, 3), SerialExecutor(), run, kept_tiles=2)
    assert_product(tiled.multiply(V), RBF(gamma=0.2)(X), V, "float64")
    tiled.close()
    assert left_over(run) == [], "the operator's run and the rows' are one"


def test_the_last_product_is_not_computed_again():
    A, V = positive_definite(20), random(20, 4)
    other = V.copy()
    other[-1, 2] += 1.0
    for multiplied, columns, precision, wanted, computed in (
        ([V], None, "float64", V, 0),
        ([V], None, "float64", other, 1),
        ([V, V + 1.0], None, "float32", V, 0),  # which is not what is asked for
        ([V, other[:, 2:3]], [2], "float64", other, 0),  # of one right-hand side
        ([V], None, "float64", V[:, :2], 2),
    ):
        tiled = LastProduct(counted := MatrixOperator(A))
        tiled.multiply(multiplied[0])
        for W in multiplied[1:]:
            tiled.multiply(W, precision, None if columns is None else np.array(columns))
        n_before = len(counted.products)
        assert_allclose(tiled.of(wanted.copy()), A @ wanted, rtol=1e-14)
        assert sum(m for _, m in counted.products[n_before:]) == computed


def test_products_of_some_right_hand_sides_may_come_before_one_of_all():
    A, V = positive_definite(20), random(20, 4)
    tiled = LastProduct(MatrixOperator(A))
    for columns in ([1, 2, 3], [3], [0, 1], [1]):  # those that a resumed iteration has not finished
        tiled.multiply(V[:, columns], "float64", np.array(columns))
    assert_allclose(tiled.of(V), A @ V, rtol=1e-14)
    tiled.multiply(V, "float64", np.arange(4))
    assert_array_equal(tiled.of(V), A @ V)


# Sources of tiles and columns -----------------------------------------------------------------------------------


KINDS = ["gram", "sparse gram", "matrix", "sum"]
WITHIN = {"float64": {"rtol": 1e-12, "atol": 1e-14}, "float32": {"rtol": 2e-5, "atol": 2e-6}}


def make_source(kind, folder, grid, scaled):
    """A source of tiles of each kind, and the matrix that it stands for."""
    n, A, c = grid.n, positive_definite(grid.n), np.random.default_rng(1).uniform(0.5, 2.0, (grid.n, 1))
    if kind == "sum":
        return SummedTiles(tuple(systems.tiles_of(folder, grid, k * A) for k in (1, 2))), 3 * A
    scale = systems.vectors(folder, grid, c) if scaled else None
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
        patch.setattr("dkrr.data.rows.PART_ENTRIES", part)
        patch.setattr(sources, "PIECE_ROWS", piece[0])
        patch.setattr(sources, "PIECE_COLUMNS", piece[1])
        for i, j in grid.lower():
            tile = np.full((grid.height(i), grid.height(j)), np.nan, dtype)
            source.fill(Meter(), tile, grid.rows(i), grid.rows(j))
            lower = np.tri(*tile.shape, dtype=bool) | (i != j)
            if kind == "gram" and i == j:  # blocks above the diagonal are not computed
                blocks = np.arange(len(tile)) // block
                assert_array_equal(np.isnan(tile), blocks[:, None] < blocks)
            assert_allclose(tile[lower], expected[grid.rows(i), grid.rows(j)][lower], **WITHIN[dtype])
        pieces = (p for i, j in grid.lower() for p in source.pieces(Meter(), grid.rows(i), grid.rows(j), dtype))
        assert_allclose(assembled(pieces, grid.n), expected, **WITHIN[dtype])


def test_bytes_read_are_those_of_the_rows_and_tiles_elsewhere(tmp_path):
    rows, matrix = RowsElsewhere(np.ones((47, 3), "f4")), MatrixTiles(RowsElsewhere(positive_definite(47).astype("f4")))
    gram, (stored, _) = GramTiles(Linear(), rows), make_source("sum", tmp_path, RAGGED, False)
    strip = stored.parts[0].array.chunk_bytes
    low, high, out = slice(12, 24), slice(36, 47), np.empty((12, 12))
    for work, expected in (
        (lambda meter: gram.fill(meter, out[:11], high, low), (11 + 12) * 3 * 4),
        (lambda meter: gram.fill(meter, out, low, low), 12 * 3 * 4),  # on the diagonal once
        (lambda meter: list(gram.pieces(meter, high, low, "float64")), (11 + 12) * 3 * 4),
        (lambda meter: matrix.fill(meter, out[:11], high, low), 11 * 12 * 4),
        (lambda meter: stored.fill(meter, out, RAGGED.rows(2), RAGGED.rows(0)), 2 * 3 * strip),
    ):
        meter = Meter()
        work(meter)
        assert meter.bytes_read == expected


def test_sources_travel_by_name(tmp_path):
    rows, grid = write_rows(as_rows(random(23, 3)), place(tmp_path / "rows")), TileGrid(23, 12, 4)
    scale = systems.vectors(tmp_path, grid, np.ones((23, 1)))
    source, columns = GramTiles(RBF(), rows, scale), GramColumns(RBF(), rows)
    messages = [pickle.dumps(source), pickle.dumps(columns)]
    assert max(map(len, messages)) < 2000
    assert_array_equal(systems.whole(pickle.loads(messages[0]), grid), systems.whole(source, grid))
    blocks = [c.block(slice(0, 23), c.take(np.array([3, 1]))) for c in (pickle.loads(messages[1]), columns)]
    assert_array_equal(*blocks)


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
    assert_array_equal(sources.read_range(array, slice(start, stop)), values[start:stop])


def test_vectors_that_were_never_written_are_not_zeros(tmp_path):
    with pytest.raises(StoreError, match="not there"):
        sources.read_range(systems.empty_vectors(tmp_path, RAGGED, 2), slice(0, 3))


def test_tiles_on_the_diagonal_are_stored_whole(tmp_path):
    A, matrix, meter = positive_definite(47), systems.empty_tiles(tmp_path, RAGGED), Meter()
    for i, j in RAGGED.lower():
        sources.store_tiles(meter, MatrixTiles(MemoryRows(np.tril(A))), matrix, i, j)
    assert_array_equal(matrix.as_dask(symmetric=True).compute(scheduler="synchronous"), A)
    diagonal = np.empty((12, 12))
    matrix.read_tile(1, 1, diagonal)
    assert_array_equal(diagonal, A[12:24, 12:24])
    assert meter.bytes_written == 30 * matrix.array.chunk_bytes
    mirrored, cleared = (random(9, 9) for _ in range(2))
    sources.mirror_lower(mirrored)
    sources.clear_upper(cleared)
    assert_array_equal(mirrored, np.tril(random(9, 9)) + np.tril(random(9, 9), -1).T)
    assert_array_equal(cleared, np.tril(random(9, 9)))


def test_memory_of_uneven_sparse_rows_is_that_of_parts(tmp_path):
    # Heavy rows stand together at the end, as where rows were sorted; columns are spread over five of 40,000.
    counts = np.repeat([20, 8000], [100, 200])
    pointers = np.concatenate([[0], np.cumsum(counts)])
    indices = (np.arange(pointers[-1]) - np.repeat(pointers[:-1], counts)) * np.repeat(40_000 // counts, counts)
    indices += np.repeat(np.arange(300) % 5, counts)
    X = sp.csr_array((np.random.default_rng(0).random(pointers[-1]), indices, pointers), shape=(300, 40_000))
    rows, everything = write_rows(MemoryRows(X), place(tmp_path / "rows")), slice(0, 300)
    kernel, parts = RBF(gamma=1e-4), rows.parts(everything)
    assert len(parts) > 4 and [p.start for p in parts[1:]] == [p.stop for p in parts[:-1]]
    row_bytes = Problem.of_rows(rows, kernel, n_targets=1).bytes_of_part(300)
    workspace = sources.gram_workspace_bytes(kernel, 300, row_bytes, 40_000, row_bytes)
    product = 2 * 300 * row_bytes + kernel.pieces_bytes(300, 300, 40_000, row_bytes)
    assert 300 * row_bytes < rows.n_bytes / 2
    source, columns = GramTiles(kernel, rows), GramColumns(kernel, rows)
    tile, joined, taken = np.empty((300, 300)), np.zeros((300, 300)), X[[3, 250, 251]]

    def form_pieces():
        for r, c, piece in source.pieces(Meter(), everything, everything, "f8"):
            joined[r, c] = piece

    for work, bound in (
        (lambda: source.fill(Meter(), tile, everything, everything), workspace),
        (form_pieces, product),
        (lambda: columns.block(everything, taken), workspace + 8 * 300 * 3),
    ):
        assert systems.traced_peak(work) <= bound
    expected = kernel(X)
    assert_allclose(np.tril(tile), np.tril(expected), rtol=1e-12)
    assert_allclose(np.tril(joined), np.tril(expected), rtol=1e-12)
    assert_allclose(columns.block(slice(90, 210), taken), expected[90:210, [3, 250, 251]], rtol=1e-12)
