"""Products with a matrix in tiles: how its tiles are shared out and kept, and what float32 may do to them."""

import pickle
import uuid

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from dkrr.features import IdentityMap
from dkrr.kernels import RBF, Linear, Polynomial
from dkrr.linalg import tiled_operator
from dkrr.linalg.normal_product import NormalOperator
from dkrr.linalg.operator import LastProduct
from dkrr.linalg.segments import Segment
from dkrr.linalg.sources import GramTiles, MatrixTiles, TileSource
from dkrr.linalg.tiled_operator import (
    GROUPS_PER_PLACE,
    ResidentRows,
    TiledOperator,
    TileGroup,
    balanced_groups,
    multiply_group,
    tile_work,
)
from dkrr.rows import MemoryRows, as_rows, write_rows
from dkrr.runtime import Meter, SerialExecutor, resident
from dkrr.tiles import TileGrid
from tests.stores import place
from tests.systems import (
    MANY,
    RAGGED,
    MatrixOperator,
    RowsElsewhere,
    grids,
    one_blas_thread,  # noqa: F401
    positive_definite,
    random,
)

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


class Counting(TileSource):
    """A source that notes which tiles are formed, and in which precision."""

    def __init__(self, source):
        self.source, self.formed = source, []

    def fill(self, meter, out, rows, columns):
        self.source.fill(meter, out, rows, columns)

    def pieces(self, meter, rows, columns, dtype):
        self.formed.append((rows.start, columns.start, np.dtype(dtype).name))
        return self.source.pieces(meter, rows, columns, dtype)

    def taken(self):
        """What was formed since the last call."""
        formed, self.formed = self.formed, []
        return formed


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
        assert len(passes) == 3
        assert len(one.record.tasks) == 3 * n_tasks
        assert one.record.bytes_read == 3 * n_bytes


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


def counted(**settings):
    source = Counting(MatrixTiles(MemoryRows(positive_definite(47))))
    return source, operator(source, RAGGED, **settings), random(47, 2)


def test_kept_tiles_are_formed_once_and_those_on_the_diagonal_are_kept_last():
    for kept in (4, 6):
        source, tiled, V = counted(kept_tiles=kept)
        first = tiled.multiply(V)
        assert len(source.taken()) == 10
        assert_array_equal(tiled.multiply(V), first)
        again = source.taken()
        assert len(again) == 10 - kept
        assert kept < 6 or {r - c for r, c, _ in again} == {0}
        tiled.close()
        tiled.multiply(V)
        assert len(source.taken()) == 10, "after close they are formed again"


def test_more_may_be_kept_than_there_are_and_in_float32():
    source, tiled, V = counted(kept_tiles=99, slots=3, slots_per_process=3, keeps="float32")
    tiled.multiply(V, "float32")
    assert {p for *_, p in source.taken()} == {"float32"}
    kept = resident._kept[tiled.run].values()
    assert sum(t.nbytes for t in kept) == 4 * sum(RAGGED.height(i) * RAGGED.height(j) for i, j in RAGGED.lower())
    assert_product(tiled.multiply(V, "float64"), source.source.rows.array, V, "float64")
    assert [p for *_, p in source.taken()] == ["float64"] * 10
    tiled.multiply(V, "float32")
    assert source.taken() == [], "the kept ones are still there"


def test_a_process_keeps_no_more_groups_than_planned():
    """Three slots, of which this process should have one: the groups of the others come to it all the same."""
    source, tiled, V = counted(kept_tiles=2, slots=3, slots_per_process=1)
    first = tiled.multiply(V)
    names = resident._kept[tiled.run]
    assert {number for number, *_ in names} == {0} and len(names) == 2
    source.taken()
    assert_array_equal(tiled.multiply(V), first)
    assert len(source.taken()) == 8


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


@given(grid=grids(), parts=st.integers(1, 7))
def test_work_is_shared_evenly(grid, parts):
    tiles = sorted(grid.lower(), key=lambda t: -tile_work(grid, *t))
    work = [sum(tile_work(grid, *t) for t in part) for part in balanced_groups(grid, tiles, parts)]
    assert len(work) == parts
    assert sum(work) == pytest.approx(grid.n**2 / 2)
    # The part with the most work was the one with the least when its last tile came.
    assert max(work) - min(work) <= max(tile_work(grid, *t) for t in tiles)
    assert [tile_work(RAGGED, *t) for t in ((1, 0), (1, 1), (3, 3))] == [144, 72, 60.5]


def test_work_is_shared_evenly_with_a_limit():
    tiles = sorted(MANY.lower(), key=lambda t: -tile_work(MANY, *t))[:21]
    parts = balanced_groups(MANY, tiles, 3, most=7)
    assert [len(part) for part in parts] == [7, 7, 7]
    assert sorted(t for part in parts for t in part) == sorted(tiles)


class Reading(MemoryRows):
    """Rows that count how often they are read."""

    reads = 0

    def read(self, start, stop, columns=slice(None)):
        Reading.reads += 1
        return super().read(start, stop, columns)


def toarray(block):
    return block.toarray() if sp.issparse(block) else block


@pytest.mark.parametrize("sparse", [False, True])
def test_resident_rows_are_read_once_and_travel_without_the_rows(tmp_path, sparse):
    X, run = np.where(random(23, 7, seed=1) < 0.3, random(23, 7), 0.0), f"rows-{uuid.uuid4().hex}"
    rows = write_rows(as_rows(sp.csr_array(X) if sparse else X), place(tmp_path / "rows"), 6)
    kept = ResidentRows(rows, run)
    assert (kept.shape, kept.dtype, kept.is_sparse) == (rows.shape, rows.dtype, rows.is_sparse)
    assert kept.is_shared
    for start, stop in ((0, 23), (5, 6), (17, 23)):
        assert_array_equal(toarray(kept.read(start, stop)), X[start:stop])
    assert_array_equal(toarray(kept.take(np.array([7, 0, 7]))), X[[7, 0, 7]])
    assert_array_equal(toarray(kept.read(2, 9, slice(1, 4))), X[2:9, 1:4])
    message = pickle.dumps(kept)
    assert len(message) < 1000
    assert_array_equal(toarray(pickle.loads(message).read(3, 8)), X[3:8])

    group = TileGroup(GramTiles(RBF(gamma=0.1), rows), TileGrid(23, 6, 3), ((1, 0), (1, 1)), "run", 0, None, 1)
    message, V = pickle.dumps(group), random(23, 2)
    assert len(message) < 2000
    again = multiply_group(Meter(), pickle.loads(message), "float64", V)
    assert_array_equal(again, multiply_group(Meter(), group, "float64", V))

    tiled = TiledOperator(GramTiles(RBF(gamma=0.2), kept), TileGrid(23, 6, 3), SerialExecutor(), run, kept_tiles=2)
    assert_product(tiled.multiply(V), RBF(gamma=0.2)(X), V, "float64")
    tiled.close()
    assert left_over(run) == [], "the operator's run and the rows' are one"

    Reading.reads = 0
    counting = ResidentRows(Reading(X), run)
    for start in range(5):
        counting.read(start, start + 2)
    assert Reading.reads == 1
    resident.forget(run)


def test_the_last_product_is_not_computed_again():
    A, V = positive_definite(20), random(20, 4)
    tiled = LastProduct(counted := MatrixOperator(A))

    def widths():
        return [m for _, m in counted.products]

    tiled.multiply(V)
    assert_array_equal(tiled.of(V.copy()), A @ V)
    assert widths() == [4]
    other = V.copy()
    other[-1, 2] += 1.0
    assert_allclose(tiled.of(other), A @ other, rtol=1e-14)
    assert widths() == [4, 1]
    tiled.multiply(V + 1.0, "float32")  # which is not what is asked for
    assert_array_equal(tiled.of(V), A @ V)
    assert widths() == [4, 1, 4]
    tiled.multiply(other[:, 2:3], "float64", np.array([2]))  # of one right-hand side
    assert_allclose(tiled.of(other), A @ other, rtol=1e-14)
    assert widths() == [4, 1, 4, 1]
    assert_allclose(tiled.of(V[:, :2]), A @ V[:, :2], rtol=1e-14)
    assert widths() == [4, 1, 4, 1, 2]


def test_products_of_some_right_hand_sides_may_come_before_one_of_all():
    A, V = positive_definite(20), random(20, 4)
    tiled = LastProduct(MatrixOperator(A))
    for columns in ([1, 2, 3], [3], [0, 1], [1]):  # those that a resumed iteration has not finished
        tiled.multiply(V[:, columns], "float64", np.array(columns))
    assert_allclose(tiled.of(V), A @ V, rtol=1e-14)
    tiled.multiply(V, "float64", np.arange(4))
    assert_array_equal(tiled.of(V), A @ V)
