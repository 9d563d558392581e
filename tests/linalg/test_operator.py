"""Products with a symmetric matrix in tiles: what is kept, formed or read does not change them."""

import itertools
import pickle
import uuid

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from dkrr.kernels import RBF, Linear, Polynomial
from dkrr.linalg import tiled_operator
from dkrr.linalg.operator import LastProduct, column_norms, column_sizes
from dkrr.linalg.sources import GramTiles, MatrixTiles, SummedTiles, TileSource
from dkrr.linalg.tiled_operator import (
    GROUPS_PER_PLACE,
    KEPT_PASSES,
    ResidentRows,
    TiledOperator,
    TileGroup,
    balanced_groups,
    kept_strips,
    multiply_bytes,
    multiply_group,
    pass_cost,
    tile_work,
)
from dkrr.planning import Rates
from dkrr.rows import MemoryRows, as_rows
from dkrr.runtime import Meter, SerialExecutor, ThreadExecutor, resident
from dkrr.tiles import TileGrid
from tests.contracts.kernels import DISTINCT
from tests.inputs import SPARSE, numbers, table
from tests.linalg.systems import MANY, RAGGED, MatrixOperator, grids, positive_definite, tiles_of

ACCURACY = {"float64": 1e-12, "float32": 1e-5}
every_precision = pytest.mark.parametrize("precision", ACCURACY)


def operator(source, grid, **settings):
    return TiledOperator(source, grid, SerialExecutor(), f"test-{uuid.uuid4().hex}", **settings)


def assert_product(found, matrix, vectors, precision):
    """Errors are of the size of rounding in |A| |V|."""
    scale = np.abs(matrix) @ np.abs(vectors)
    assert found.dtype == np.float64
    assert_allclose(found / np.maximum(scale, 1e-300), (matrix @ vectors) / np.maximum(scale, 1e-300),
                    atol=ACCURACY[precision])  # fmt: skip


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


class TestProduct:
    @every_precision
    @pytest.mark.parametrize("case", DISTINCT, ids=str)
    def test_every_kernel(self, case, precision):
        X = case.rows(47, 4)
        V = np.random.default_rng(1).standard_normal((47, 3))
        found = operator(GramTiles(case.kernel, MemoryRows(X)), RAGGED, slots=2).multiply(V, precision)
        assert_product(found, case.kernel(X), V, precision)

    @every_precision
    @settings(max_examples=40, deadline=None)
    @given(
        grid=grids(),
        m=st.integers(1, 4),
        slots=st.integers(1, 3),
        kept=st.integers(0, 9),
        keeps=st.sampled_from(list(ACCURACY)),
        scaled=st.booleans(),
    )
    def test_whatever_is_kept(self, precision, grid, m, slots, kept, keeps, scaled):
        rng = np.random.default_rng(grid.n)
        A, V, c = positive_definite(grid.n), rng.standard_normal((grid.n, m)), rng.uniform(0.5, 2.0, grid.n)
        tiled = operator(
            MatrixTiles(MemoryRows(A)), grid, slots=slots, slots_per_process=slots, kept_tiles=kept, keeps=keeps,
            scale=c if scaled else None,
        )  # fmt: skip
        expected = c[:, None] * A * c if scaled else A
        before = V.copy()
        for _ in range(2):  # the second time with what the first one kept
            assert_product(tiled.multiply(V, precision), expected, V, precision)
        assert_array_equal(V, before, err_msg="the vectors are the caller's")
        tiled.close()
        assert left_over(tiled.run) == []

    @every_precision
    @pytest.mark.parametrize("count", [1, 3])
    def test_stored_tiles(self, tmp_path, precision, count):
        parts = [positive_definite(47, seed) for seed in range(count)]
        source = SummedTiles(tuple(tiles_of(tmp_path, RAGGED, A) for A in parts))
        V = np.random.default_rng(0).standard_normal((47, 2))
        tiled = operator(source, RAGGED, kept_tiles=3)
        assert_product(tiled.multiply(V, precision), sum(parts), V, precision)
        assert tiled.record.bytes_read > 0
        tiled.close()

    @pytest.mark.parametrize("kind", ["zarr", "csr", "npy"])
    def test_rows_of_other_kinds(self, tmp_path, kind):
        X = numbers() / 100
        source = GramTiles(RBF(gamma=0.2), as_rows(table(kind, tmp_path, X).handed_in))
        V = np.random.default_rng(0).standard_normal((23, 2))
        assert_product(operator(source, TileGrid(23, 6, 3), kept_tiles=2).multiply(V), RBF(gamma=0.2)(X), V, "float64")

    def test_a_single_row(self):
        tiled = operator(MatrixTiles(MemoryRows(np.array([[3.0]]))), TileGrid(1, 4, 2), slots=3)
        assert tiled.n == 1
        assert_array_equal(tiled.multiply(np.array([[2.0, -1.0]])), [[6.0, -3.0]])

    def test_columns_that_are_no_array_of_their_own(self):
        A, wide = positive_definite(47), np.random.default_rng(0).standard_normal((47, 9))
        for V in (wide[:, 3:4], wide[:, ::2], np.asfortranarray(wide)):
            for precision in ACCURACY:
                assert_product(operator(MatrixTiles(MemoryRows(A)), RAGGED).multiply(V, precision), A, V, precision)

    def test_threads_give_the_same_bits(self):
        X = np.random.default_rng(0).standard_normal((47, 3))
        V = np.random.default_rng(1).standard_normal((47, 2))
        results = []
        with ThreadExecutor(3) as threads:
            for executor in (SerialExecutor(), threads):
                tiled = TiledOperator(
                    GramTiles(RBF(), MemoryRows(X)), RAGGED, executor, f"t-{uuid.uuid4().hex}", 3, 3, kept_tiles=2
                )
                results += [tiled.multiply(V), tiled.multiply(V)]
                tiled.close()
        for other in results[1:]:
            assert_array_equal(other, results[0])

    def test_passes_and_records_are_counted(self):
        passes = []
        tiled = operator(MatrixTiles(MemoryRows(positive_definite(47))), RAGGED, on_pass=lambda: passes.append(1))
        for _ in range(3):
            tiled.multiply(np.ones((47, 1)))
        assert len(passes) == 3
        assert len(tiled.record.tasks) == 3 * GROUPS_PER_PLACE
        assert all(t.value is None for t in tiled.record.tasks), "a record must not hold a product"


class TestFloat32:
    def test_vectors_beyond_its_range(self):
        A = positive_definite(47)
        V = np.random.default_rng(0).standard_normal((47, 4)) * [1e-200, 1e200, 0.0, 1e-42]
        tiled = operator(MatrixTiles(MemoryRows(A)), RAGGED, scale=np.full(47, 2.0))
        found = tiled.multiply(V, "float32")
        for k in (0, 1, 3):
            assert_allclose(found[:, k], 4 * A @ V[:, k], rtol=1e-4, atol=1e-5 * np.abs(V[:, k]).max())
        assert_array_equal(found[:, 2], 0.0)

    def test_powers_of_two_change_no_digit(self):
        A, V = positive_definite(47), np.random.default_rng(0).standard_normal((47, 1))
        tiled = operator(MatrixTiles(MemoryRows(A)), RAGGED)
        assert_array_equal(tiled.multiply(V * 2.0**77, "float32"), tiled.multiply(V, "float32") * 2.0**77)

    @pytest.mark.parametrize("kept", [0, 2, 99])
    @pytest.mark.parametrize("kernel", [RBF(), Polynomial(), Linear() + RBF()], ids=str)
    def test_is_a_symmetric_matrix(self, kernel, kept):
        """Conjugate gradient needs symmetry to more digits than float32 has; each pair comes from one rounded entry."""
        X = np.random.default_rng(0).standard_normal((47, 3))
        tiled = operator(GramTiles(kernel, MemoryRows(X)), RAGGED, kept_tiles=kept, keeps="float32")
        found = np.column_stack([tiled.multiply(np.eye(47)[:, k : k + 1], "float32")[:, 0] for k in range(47)])
        assert_array_equal(found, found.T)
        assert_array_equal(tiled.multiply(np.eye(47), "float32"), found)
        assert np.abs(found - kernel(X)).max() > 0, "it is float32's matrix"
        tiled.close()

    def test_sums_are_in_float64(self):
        n = 4 * 12
        A = np.zeros((n, n))
        A[0, ::12] = A[::12, 0] = 1.0  # one entry from each tile
        V = np.zeros((n, 1))
        V[::12, 0] = 2.0**-30 * np.array([2.0**30, 1.0, 1.0, 1.0])
        assert operator(MatrixTiles(MemoryRows(A)), TileGrid(n, 12, 4)).multiply(V, "float32")[0, 0] == 1 + 3 * 2.0**-30


class TestKeeping:
    def counted(self, **settings):
        source = Counting(MatrixTiles(MemoryRows(positive_definite(47))))
        return source, operator(source, RAGGED, **settings)

    def test_kept_tiles_are_formed_once(self):
        source, tiled = self.counted(kept_tiles=4)
        V = np.ones((47, 1))
        first = tiled.multiply(V)
        assert len(source.formed) == 10
        source.formed.clear()
        assert_array_equal(tiled.multiply(V), first)
        assert len(source.formed) == 6
        tiled.close()
        source.formed.clear()
        tiled.multiply(V)
        assert len(source.formed) == 10, "after close they are formed again"
        tiled.close()

    def test_diagonal_tiles_are_kept_last(self):
        source, tiled = self.counted(kept_tiles=6)
        tiled.multiply(np.ones((47, 1)))
        source.formed.clear()
        tiled.multiply(np.ones((47, 1)))
        assert {r - c for r, c, _ in source.formed} == {0}
        tiled.close()

    def test_more_than_there_are(self):
        source, tiled = self.counted(kept_tiles=99, slots=3, slots_per_process=3)
        tiled.multiply(np.ones((47, 1)))
        source.formed.clear()
        tiled.multiply(np.ones((47, 1)))
        assert source.formed == []
        tiled.close()

    def test_float64_product_of_tiles_kept_in_float32(self):
        source, tiled = self.counted(kept_tiles=99, keeps="float32")
        V = np.random.default_rng(0).standard_normal((47, 2))
        tiled.multiply(V, "float32")
        assert {p for *_, p in source.formed} == {"float32"}
        source.formed.clear()
        assert_product(tiled.multiply(V, "float64"), source.source.rows.array, V, "float64")
        assert [p for *_, p in source.formed] == ["float64"] * 10
        source.formed.clear()
        tiled.multiply(V, "float32")
        assert source.formed == [], "the kept ones are still there"
        tiled.close()

    def test_a_process_keeps_no_more_groups_than_planned(self):
        """Three slots, of which this process should have one: the groups of the others come to it all the same."""
        source, tiled = self.counted(kept_tiles=2, slots=3, slots_per_process=1)
        V = np.ones((47, 1))
        first = tiled.multiply(V)
        names = resident._kept[tiled.run]
        assert {number for number, *_ in names} == {0}
        assert len(names) == 2
        source.formed.clear()
        assert_array_equal(tiled.multiply(V), first)
        assert len(source.formed) == 8
        tiled.close()

    def test_memory_of_a_group(self):
        _, tiled = self.counted(kept_tiles=99, keeps="float32")
        tiled.multiply(np.ones((47, 1)), "float32")
        kept = resident._kept[tiled.run].values()
        assert sum(t.nbytes for t in kept) == 4 * sum(RAGGED.height(i) * RAGGED.height(j) for i, j in RAGGED.lower())
        tiled.close()


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("n_bytes", [1, 200, 10**6])
def test_strips_of_a_tile_that_is_kept(monkeypatch, n_bytes, dtype):
    monkeypatch.setattr(tiled_operator, "KEPT_STRIP_BYTES", n_bytes)
    tile, found = np.arange(77.0, dtype=dtype).reshape(11, 7), np.full((11, 7), np.nan)
    for rows, columns, strip in kept_strips(tile, slice(30, 41), slice(5, 12)):
        assert np.shares_memory(strip, tile)
        assert strip.nbytes <= n_bytes or len(strip) == 1
        assert columns == slice(5, 12)
        assert np.isnan(found[rows.start - 30 : rows.stop - 30]).all(), "once"
        found[rows.start - 30 : rows.stop - 30] = strip
    assert_array_equal(found, tile)


class TestCut:
    def groups(self, grid, slots, kept):
        source = MatrixTiles(MemoryRows(np.eye(grid.n)))
        return operator(source, grid, slots=slots, kept_tiles=kept)._groups

    @settings(max_examples=60, deadline=None)
    @given(grid=grids(), slots=st.integers(1, 5), kept=st.integers(0, 12))
    def test_every_tile_once(self, grid, slots, kept):
        groups = self.groups(grid, slots, kept)
        tiles = [tile for group, _ in groups for tile in group.tiles]
        assert sorted(tiles) == sorted(grid.lower())
        assert [group.number for group, _ in groups] == list(range(len(groups)))
        for group, place in groups:
            assert group.tiles
            assert (group.keeps is None) == (place is None)
            assert place is None or (len(group.tiles) <= kept and place < slots)
        places = [place for _, place in groups if place is not None]
        assert len(places) == len(set(places)), "a place keeps one group"
        n_kept = sum(len(group.tiles) for group, place in groups if place is not None)
        assert n_kept == min(len(tiles), kept * slots)

    @settings(max_examples=60, deadline=None)
    @given(grid=grids(), parts=st.integers(1, 7))
    def test_evenly(self, grid, parts):
        tiles = sorted(grid.lower(), key=lambda t: -tile_work(grid, *t))
        work = [sum(tile_work(grid, *t) for t in part) for part in balanced_groups(grid, tiles, parts)]
        assert len(work) == parts
        assert sum(work) == pytest.approx(sum(tile_work(grid, *t) for t in tiles))
        # The part with the most work was the one with the least when its last tile came.
        assert max(work) - min(work) <= max(tile_work(grid, *t) for t in tiles)

    def test_evenly_with_a_limit(self):
        tiles = sorted(MANY.lower(), key=lambda t: -tile_work(MANY, *t))[:21]
        parts = balanced_groups(MANY, tiles, 3, most=7)
        assert [len(part) for part in parts] == [7, 7, 7]
        assert sorted(t for part in parts for t in part) == sorted(tiles)

    def test_work_is_half_on_the_diagonal(self):
        assert tile_work(RAGGED, 1, 0) == 144
        assert tile_work(RAGGED, 1, 1) == 72
        assert tile_work(RAGGED, 3, 3) == 60.5
        assert sum(tile_work(RAGGED, i, j) for i, j in RAGGED.lower()) == 47 * 47 / 2


def test_a_group_travels(tmp_path):
    source = GramTiles(RBF(gamma=0.1), as_rows(table("zarr", tmp_path).handed_in))
    group = TileGroup(source, TileGrid(23, 6, 3), ((1, 0), (1, 1)), "run", 0, None, 1)
    message = pickle.dumps(group)
    assert len(message) < 2000
    V = np.ones((23, 1))
    again = multiply_group(Meter(), pickle.loads(message), "float64", V)
    assert_array_equal(again, multiply_group(Meter(), group, "float64", V))


class Reading(MemoryRows):
    """Rows that count how often they are read."""

    reads = 0

    def read(self, start, stop, columns=slice(None)):
        Reading.reads += 1
        return super().read(start, stop, columns)


class TestResidentRows:
    @pytest.fixture
    def run(self):
        name = f"rows-{uuid.uuid4().hex}"
        yield name
        resident.forget(name)
        assert left_over(name) == []

    @pytest.mark.parametrize("kind", ["zarr", "npy", *SPARSE])
    def test_the_same_rows(self, tmp_path, run, kind):
        rows = as_rows(table(kind, tmp_path).handed_in)
        kept = ResidentRows(rows, run)
        assert (kept.shape, kept.dtype, kept.is_sparse) == (rows.shape, rows.dtype, rows.is_sparse)
        assert kept.is_shared
        for start, stop in ((0, 23), (5, 6), (17, 23)):
            a, b = kept.read(start, stop), rows.read(start, stop)
            assert_array_equal(*((x.toarray() if sp.issparse(x) else x) for x in (a, b)))
        a, b = kept.take(np.array([7, 0, 7])), rows.take(np.array([7, 0, 7]))
        assert_array_equal(*((x.toarray() if sp.issparse(x) else x) for x in (a, b)))
        assert_array_equal(
            *((x.toarray() if sp.issparse(x) else x) for x in (r.read(2, 9, slice(1, 4)) for r in (kept, rows)))
        )

    def test_read_once(self, run):
        Reading.reads = 0
        rows = ResidentRows(Reading(np.arange(12.0).reshape(6, 2)), run)
        for start in range(5):
            rows.read(start, start + 2)
        assert Reading.reads == 1

    def test_travels_without_the_rows(self, tmp_path, run):
        rows = ResidentRows(as_rows(table("zarr", tmp_path).handed_in), run)
        rows.read(0, 23)
        message = pickle.dumps(rows)
        assert len(message) < 1000
        assert_array_equal(pickle.loads(message).read(3, 8), rows.rows.read(3, 8))

    def test_of_an_operator(self, tmp_path, run):
        X = numbers() / 100
        source = GramTiles(RBF(gamma=0.2), ResidentRows(as_rows(table("zarr", tmp_path, X).handed_in), run))
        V = np.random.default_rng(0).standard_normal((23, 2))
        tiled = TiledOperator(source, TileGrid(23, 6, 3), SerialExecutor(), run, kept_tiles=2)
        assert_product(tiled.multiply(V), RBF(gamma=0.2)(X), V, "float64")
        tiled.close()
        assert left_over(run) == [], "the operator's run and the rows' are one"


class TestCost:
    def test_entries_and_vectors_with_distinct_primes(self):
        d, n_entries, m = 13, 10_007.0, 3
        entry = RBF(gamma=1.0).entry_cost(d)
        cost = pass_cost(entry, n_entries, m, "float64", 0.0)
        assert cost.gemm_flops >= n_entries * (entry.gemm_flops + 4 * (m - 1))
        many = pass_cost(entry, n_entries, 10**5, "float64", 0.0)
        assert many.gemm_flops == pytest.approx(n_entries * (entry.gemm_flops + 4e5), rel=1e-3)
        assert cost.element_seconds > n_entries * entry.element_seconds

    def test_float32_and_kept_tiles_are_cheaper(self):
        costs = [
            pass_cost(Rates().entry(RBF(gamma=1.0), 13, precision), 1e6, 1, precision, kept)
            for precision, kept in (("float64", 0.0), ("float32", 0.0), ("float32", 0.5), ("float32", 1.0))
        ]
        for dear, cheap in itertools.pairwise(costs):
            assert dear.gemm_flops > cheap.gemm_flops
            assert dear.element_seconds > cheap.element_seconds
        assert costs[-1].gemm_flops == 0.0
        assert [c.memory_bytes for c in costs] == [0.0, 0.0, 2e6 * KEPT_PASSES, 4e6 * KEPT_PASSES]

    def test_memory_is_an_upper_bound(self):
        import tracemalloc

        n, tile, d, m = 1500, 500, 11, 2
        X, V = np.random.default_rng(0).standard_normal((n, d)), np.ones((n, m))
        grid = TileGrid(n, tile, tile)
        group = TileGroup(GramTiles(RBF(gamma=0.1), MemoryRows(X)), grid, tuple(grid.lower()), "run", 0, None, 1)
        for precision in ACCURACY:
            tracemalloc.start()
            multiply_group(Meter(), group, precision, V.astype(precision))
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert peak <= multiply_bytes(RBF(gamma=0.1), n, tile, d, 8 * d, m)


@pytest.mark.parametrize("kept", [0, 6])
def test_tiles_of_sparse_rows_in_many_parts(monkeypatch, kept):
    monkeypatch.setattr("dkrr.rows.sources.PART_ENTRIES", 900)
    rng = np.random.default_rng(0)
    X = rng.random((700, 9)) * (rng.random((700, 9)) < np.linspace(0.1, 1.0, 700)[:, None])
    rows, V = MemoryRows(sp.csr_array(X)), rng.standard_normal((700, 2))
    assert len(rows.parts(slice(0, 350))) > 1
    operator = TiledOperator(
        GramTiles(RBF(gamma=0.1), rows), TileGrid(700, 350, 350), SerialExecutor(), "parts", kept_tiles=kept
    )
    for _ in range(2):
        assert_allclose(operator.multiply(V), RBF(gamma=0.1)(X) @ V, rtol=1e-10, atol=1e-10)
    operator.close()


TINY, LARGEST = 5e-324, np.finfo(float).max


@pytest.mark.parametrize("largest", [1.0, -3.0, 1e-310, TINY, 1e-160, 1e155, 2.0**1023, -LARGEST])
def test_sizes_are_powers_of_two_that_change_no_digit(largest):
    vectors = np.array([[largest, 1.0], [largest / 4, 0.0]])
    sizes = column_sizes(vectors)
    assert_array_equal(np.frexp(sizes)[0], 0.5)
    scaled = vectors / sizes
    assert_array_equal(scaled * sizes, vectors)
    assert np.abs(scaled).max() < 2.0
    if abs(largest) > np.finfo(float).tiny:
        assert np.abs(scaled[:, 0]).max() > 0.5


def test_sizes_of_zeros_are_harmless():
    assert_array_equal(np.zeros((3, 2)) / column_sizes(np.zeros((3, 2))), 0.0)


@pytest.mark.parametrize("size", [1.0, 1e-310, 1e-160, 1e155, 1e300])
def test_norms(size):
    vectors = np.array([[3.0, 0.0, 1.0], [-4.0, 0.0, 2.0]]) * size
    assert_allclose(column_norms(vectors), np.array([5.0, 0.0, np.sqrt(5.0)]) * size, rtol=1e-13)
    assert np.isnan(column_norms(np.array([[size], [np.nan]])))
    assert column_norms(np.array([[size], [-np.inf]])) == np.inf


def test_the_last_product_is_not_made_again():
    A = positive_definite(20)
    operator, V = LastProduct(counted := CountingOperator(A)), np.random.default_rng(0).standard_normal((20, 4))
    operator.multiply(V)
    assert_array_equal(operator.of(V.copy()), A @ V)
    assert counted.columns == [4]
    other = V.copy()
    other[3, 2] += 1.0
    assert_allclose(operator.of(other), A @ other, rtol=1e-14)
    assert counted.columns == [4, 1]
    operator.multiply(V + 1.0, "float32")  # which is not what is asked for
    assert_array_equal(operator.of(V), A @ V)
    assert counted.columns == [4, 1, 4]
    operator.multiply(other[:, 2:3], "float64", np.array([2]))  # of one right-hand side
    assert_allclose(operator.of(other), A @ other, rtol=1e-14)
    assert counted.columns == [4, 1, 4, 1]
    assert_allclose(operator.of(V[:, :2]), A @ V[:, :2], rtol=1e-14)
    assert counted.columns == [4, 1, 4, 1, 2]


def test_products_of_some_right_hand_sides_come_before_one_of_all():
    A = positive_definite(20)
    operator, V = LastProduct(CountingOperator(A)), np.random.default_rng(0).standard_normal((20, 4))
    for columns in ([1, 2, 3], [3], [0, 1], [1]):  # those that a resumed iteration has not finished
        operator.multiply(V[:, columns], "float64", np.array(columns))
    assert_allclose(operator.of(V), A @ V, rtol=1e-14)
    operator.multiply(V, "float64", np.arange(4))
    assert_array_equal(operator.of(V), A @ V)


class CountingOperator(MatrixOperator):
    """Remembers how many columns it multiplied."""

    def __init__(self, matrix):
        super().__init__(matrix)
        self.columns = []

    def multiply(self, vectors, precision="float64", columns=None):
        self.columns.append(vectors.shape[1])
        return super().multiply(vectors, precision, columns)
