"""Costs and memory of the algorithms: what formulas say is what was moved and held."""

import numpy as np
import pytest

from dkrr.cluster import Meter, SerialExecutor
from dkrr.cost import Cost
from dkrr.data import MemoryRows, as_rows
from dkrr.kernels import RBF
from dkrr.linalg import cholesky
from dkrr.linalg.inverse import apply_bytes, apply_cost
from dkrr.linalg.memory import KeptTiles, factor_in_memory, inverse_bytes, memory_bytes, memory_system
from dkrr.linalg.sources import GramTiles, MatrixTiles
from dkrr.linalg.substitution import substituted, substitution_cost, substitution_tasks
from dkrr.linalg.tile_steps import tile_steps
from dkrr.linalg.tiled_operator import TileGroup, multiply_bytes, multiply_group
from dkrr.planning import Rates
from dkrr.planning.resources import DENSE_SIDE
from dkrr.store import MemoryMatrix, TileGrid
from dkrr.store.format import OVERHEAD_BYTES
from tests import systems
from tests.algorithms.test_cholesky import factor_in, make_job
from tests.systems import MANY, RAGGED, files_of, positive_definite, run, tiles_of

one_blas_thread = systems.one_blas_thread

itemsizes = {"float64": 8, "float32": 4}


def n_bytes(*arrays):
    return sum(len(raw) for array in arrays for raw in files_of(array).values())


def factorisation(columns_per_task):
    """Record, cost, and bytes that are read beside it: those of tiles that are formed."""

    def measured(folder, grid, m, dtype):
        system = systems.make_case(folder, grid, m=m, columns_per_task=columns_per_task, dtype=dtype).system
        record, itemsize = run(cholesky.cholesky_tasks(system)), itemsizes[dtype]
        assert cholesky.factor_bytes(grid, itemsize) == n_bytes(system.factor.array)
        sums = n_bytes(*(p.matrix.array for p in system.partial))
        assert m or cholesky.partial_bytes(grid, m, columns_per_task, itemsize) == sums
        cost = cholesky.cholesky_cost(grid, m, columns_per_task, itemsize)
        assert cost.gemm_flops == pytest.approx((grid.n**3 / 3 + grid.n**2 * m) * itemsize / 8), "rates of float64"
        return record, cost, 8 * sum(grid.height(i) * grid.height(j) for i, j in grid.lower())

    return measured


def substitution(folder, grid, m, dtype):
    _, _, job = make_job(folder, grid, m, transpose=False, dtype=dtype)
    tasks, cost = substitution_tasks(job, "x"), substitution_cost(grid, m, itemsizes[dtype])
    assert sum(t.flops for t in tasks) == pytest.approx(cost.gemm_flops / 2, rel=0.35)
    return run(tasks), cost, 0


def application(way):
    def measured(folder, grid, m, dtype):
        matrix = tiles_of(folder, grid, np.linalg.cholesky(positive_definite(grid.n)), dtype)
        factor, slots = factor_in(way, matrix, folder), 1 if way == "tasks" else None
        factor.apply(np.ones((grid.n, m)))
        return factor.record, apply_cost(grid, m, itemsizes[dtype], slots), 0

    return measured


EXACT = (0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("measured", "grid", "m", "dtype", "within"),  # bytes read and written, number of tasks
    [
        (factorisation(0), RAGGED, 3, "float64", (0.0, 0.15, 0.0)),
        (factorisation(0), TileGrid(37, 20, 5), 3, "float64", (0.0, 0.15, 0.0)),
        (factorisation(0), MANY, 0, "float32", EXACT),
        (factorisation(2), MANY, 3, "float64", (0.08, 0.08, 0.0)),
        (factorisation(2), MANY, 0, "float32", EXACT),
        *((substitution, RAGGED, 3, dtype, (0.0, 0.31, 0.5)) for dtype in itemsizes),
        *((application(way), MANY, 3, dtype, EXACT) for way in (3, "tasks") for dtype in itemsizes),
    ],
)
def test_bytes_and_tasks_are_those_of_the_formula(tmp_path, measured, grid, m, dtype, within):
    record, cost, formed = measured(tmp_path, grid, m, dtype)
    assert record.bytes_read - formed == pytest.approx(cost.read_bytes, rel=within[0])
    assert record.bytes_written == pytest.approx(cost.written_bytes, rel=within[1])
    assert len(record.tasks) == pytest.approx(cost.n_tasks, rel=within[2])


def factor_task(key, m, dtype):
    def prepare(folder):
        grid = TileGrid(900, 300, 60)
        system = systems.factored(folder, grid, m=m, columns_per_task=1, dtype=dtype).system
        (step,) = (s for s in tile_steps(3, 1) if s.key == key)
        bound = cholesky.cholesky_task_bytes(grid, m, 0, itemsizes[dtype])
        return lambda: cholesky.factor_tile(Meter(), system, step), bound

    return prepare


def applied(n_threads, dtype):
    def prepare(folder):
        grid = TileGrid(1500, 300, 60)
        factor = tiles_of(folder, grid, np.tri(grid.n) / grid.n + np.eye(grid.n), dtype)
        way = factor_in(n_threads or "tasks", factor, folder)
        return lambda: way.apply(np.ones((grid.n, 3))), apply_bytes(grid, 3, itemsizes[dtype], n_threads)

    return prepare


def in_memory(tile, keeps):
    def prepare(folder):
        n, grid = 900, TileGrid(900, tile, tile)
        source, B = MatrixTiles(as_rows(positive_definite(n))), np.ones((n, 2))

        def work():
            kept = KeptTiles.of_source(source, grid, SerialExecutor()) if keeps else source
            factor = kept.beside() if keeps else MemoryMatrix(grid)
            for _ in range(2):
                factor_in_memory(memory_system(kept, np.ones(n), factor), SerialExecutor())
                X = substituted(factor, B)
            return keeps and kept.multiply(X)

        return work, memory_bytes(grid, keeps=keeps) + inverse_bytes(grid)

    return prepare


def multiplied(precision):
    def prepare(folder):
        n, tile, d, m = 1500, 500, 11, 2
        grid, X = TileGrid(n, tile, tile), np.random.default_rng(0).standard_normal((n, d))
        group = TileGroup(GramTiles(RBF(gamma=0.1), MemoryRows(X)), grid, tuple(grid.lower()), "run", 0, None, 1)
        V = np.ones((n, m), precision)
        bound = multiply_bytes(RBF(gamma=0.1), n, tile, d, 8 * d, m)
        return lambda: multiply_group(Meter(), group, precision, V), bound

    return prepare


HELD = {
    **{f"factor {key}, m = {m}": (factor_task(key, m, dtype), 1.7, 50_000)
       for m, dtype in ((3, "float64"), (0, "float32")) for key in ("L-0-0", "L-2-0", "S-2-2-0", "L-2-2")},
    **{f"apply, {n} threads, {dtype}": (applied(n, dtype), 2.5, 4_000_000) for n in (0, 1, 3) for dtype in itemsizes},
    **{f"in memory, tile = {tile}, keeps = {keeps}": (in_memory(tile, keeps), 1.5, 500_000)
       for tile, keeps in ((900, False), (200, True), (200, False))},
    **{f"multiply, {precision}": (multiplied(precision), np.inf, 0) for precision in itemsizes},
}  # fmt: skip


@pytest.mark.parametrize("name", HELD)
def test_memory_is_below_its_bound_and_the_bound_not_far_above(tmp_path, name):
    prepare, most, slack = HELD[name]
    work, bound = prepare(tmp_path)
    work()  # what is made once
    peak = systems.traced_peak(work)
    assert peak <= bound + min(slack, 500_000)
    assert bound <= most * peak + slack, "a bound that is far too high wastes the user's memory"


def test_costs_add_up_and_take_the_time_of_their_rates():
    a, b = Cost(2.0, 3.0, 5.0, 7.0, 11, 31.0), Cost(13.0, 17.0, 19.0, 23.0, 29, 37.0)
    assert a + b == Cost(15.0, 20.0, 24.0, 30.0, 40, 68.0) and a.times(3) == Cost(6.0, 9.0, 15.0, 21.0, 33, 93.0)
    dense = Cost(dense_flops=41.0, dense_side=43) + Cost(dense_flops=2.0, dense_side=5)
    assert (dense.dense_flops, dense.dense_side, dense.times(3).dense_side) == (43.0, 43, 43)
    rates = Rates(
        gemm_flops=2.0, read_bytes=5.0, write_bytes=7.0, task_seconds=0.5, memory_bytes=0.25, fresh_bytes=0.125
    )
    assert rates.seconds(Cost(12.0, 1.0, 10.0, 21.0, 4, 1.5, 0.5), threads=3) == 2.0 + 1.0 + 2.0 + 3.0 + 2.0 + 6.0 + 4.0
    rates = Rates(gemm_flops=100.0, dense_flops=50.0)
    seconds = [rates.seconds(Cost(dense_flops=100.0, dense_side=n)) for n in (10, 1000, DENSE_SIDE, 10**9)]
    assert seconds == sorted(seconds, reverse=True), "a small factorisation is slower by the flop"
    assert seconds[2] == 2.0 and seconds[-1] == pytest.approx(1.0, rel=1e-5), "a large one runs at the rate of GEMM"


@pytest.mark.parametrize("n_tiles", [1, 2, 7, 40])
def test_what_a_factorisation_reads_from_the_disk_itself(n_tiles):
    """A column's working set is its own row and the tiles on its left, of which a cache holds some."""
    grid, cold_bytes = TileGrid(n_tiles * 6, 6, 3), cholesky.cold_cholesky_bytes
    tile = 2 * (8 * 6 * 3 + OVERHEAD_BYTES)  # two panels with their checksums
    for cache in (0.0, 2.5 * tile, tile * (n_tiles // 2) * -(-n_tiles // 2)):
        expected = sum(max(0.0, j * (n_tiles - j) * tile - cache) for j in range(n_tiles))
        assert cold_bytes(grid, cache) == (expected if n_tiles > 2 or not cache else 0)
    assert cold_bytes(grid, 0.0) <= cholesky.cholesky_cost(grid, 0).read_bytes
    if n_tiles == 7:  # sums between parts come from the disk too
        between = cholesky.partial_bytes(grid, 0, 2)
        assert cold_bytes(grid, 100.0, 2) == cold_bytes(grid, 100.0) + between - 100.0 and between > 100.0
