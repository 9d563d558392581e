"""Costs and memory of the algorithms: what formulas say is what was moved and held."""

from functools import partial

import numpy as np
import pytest

from dkrr.cluster import Meter, SerialExecutor
from dkrr.data import MemoryRows, as_rows
from dkrr.kernels import RBF
from dkrr.linalg import cholesky
from dkrr.linalg.cholesky import tile_steps
from dkrr.linalg.gram_products import TileGroup, multiply_bytes, multiply_group
from dkrr.linalg.in_memory_cholesky import InMemoryMatrix, factor_in_memory, inverse_bytes, memory_bytes, memory_system
from dkrr.linalg.sources import GramTiles, MatrixTiles
from dkrr.linalg.substitution import (
    apply_bytes,
    apply_work,
    solve_block,
    substituted,
    substitution_tasks,
    substitution_work,
)
from dkrr.store import MemoryMatrix, TileGrid
from tests import systems
from tests.algorithms.test_cholesky import NINE, factor_in, make_job
from tests.systems import MANY, RAGGED, files_of, positive_definite, run, tiles_of

one_blas_thread = systems.one_blas_thread

itemsizes = {"float64": 8, "float32": 4}


def n_bytes(*arrays):
    return sum(len(raw) for array in arrays for raw in files_of(array).values())


def factorisation(columns_per_task, folder, grid, _, dtype):
    """Record, cost, and bytes that are read beside it: those of tiles that are formed."""
    system = systems.make_case(folder, grid, columns_per_task=columns_per_task, dtype=dtype).system
    record, itemsize = run(cholesky.cholesky_tasks(system)), itemsizes[dtype]
    assert cholesky.factor_bytes(grid, itemsize) == n_bytes(system.factor.arrays[0])
    sums = n_bytes(*(p.arrays[0] for p in system.partial))
    assert cholesky.partial_bytes(grid, columns_per_task, itemsize) == sums
    cost = cholesky.cholesky_work(grid, columns_per_task, itemsize)
    assert cost.gemm_flops == pytest.approx(grid.n**3 / 3 * itemsize / 8), "rates of float64"
    return record, cost, 8 * sum(grid.height(i) * grid.height(j) for i, j in grid.lower())


def substitution(folder, grid, m, dtype):
    _, _, job = make_job(folder, grid, m, transpose=False, dtype=dtype)
    tasks, cost = substitution_tasks(job, "x"), substitution_work(grid, m, itemsizes[dtype])
    assert sum(t.flops for t in tasks) == pytest.approx(cost.gemm_flops / 2, rel=0.35)
    assert len(tasks) == cost.n_tasks
    return run(tasks), cost, 0


def application(way, folder, grid, m, dtype):
    matrix = tiles_of(folder, grid, np.linalg.cholesky(positive_definite(grid.n)), dtype)
    factor, slots = factor_in(way, matrix, folder), 1 if way == "tasks" else None
    factor.solve(np.ones((grid.n, m)))
    return factor.record, apply_work(grid, m, itemsizes[dtype], slots), 0


EXACT = (0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("measured", "grid", "m", "dtype", "within"),  # bytes read and written, number of tasks
    [
        (partial(factorisation, 0), RAGGED, 0, "float64", EXACT),
        (partial(factorisation, 0), TileGrid(37, 20, 5), 0, "float64", EXACT),
        (partial(factorisation, 0), MANY, 0, "float32", EXACT),
        (partial(factorisation, 2), MANY, 0, "float64", EXACT),
        (partial(factorisation, 2), MANY, 0, "float32", EXACT),
        *((substitution, grid, 3, dtype, EXACT) for grid in (RAGGED, NINE) for dtype in itemsizes),
        *((partial(application, way), MANY, 3, dtype, EXACT) for way in (3, "tasks") for dtype in itemsizes),
    ],
)
def test_bytes_and_tasks_are_those_of_the_formula(tmp_path, measured, grid, m, dtype, within):
    record, cost, formed = measured(tmp_path, grid, m, dtype)
    assert record.bytes_read - formed == pytest.approx(cost.read_bytes, rel=within[0])
    assert record.bytes_written == pytest.approx(cost.written_bytes, rel=within[1])
    assert len(record.tasks) == pytest.approx(cost.n_tasks, rel=within[2])


def factor_task(key, dtype, folder):
    grid = TileGrid(900, 300, 60)
    system = systems.factored(folder, grid, columns_per_task=1, dtype=dtype).system
    (step,) = (s for s in tile_steps(3, 1) if s.key == key)
    bound = cholesky.cholesky_task_bytes(grid, 0, 0, itemsizes[dtype])
    return lambda: cholesky.factor_tile(Meter(), system, step), bound


def sweep_task(folder):
    """The last row of a sweep with far more right-hand sides than rows in a tile."""
    grid, m = TileGrid(350, 50, 10), 2000
    _, _, job = make_job(folder, grid, m, transpose=False)
    run(substitution_tasks(job, "x"))
    bound = cholesky.cholesky_task_bytes(grid, m, 0)
    return lambda: solve_block(Meter(), job, grid.n_tiles - 1), bound


def applied(n_threads, dtype, folder):
    grid = TileGrid(1500, 300, 60)
    factor = tiles_of(folder, grid, np.tri(grid.n) / grid.n + np.eye(grid.n), dtype)
    way = factor_in(n_threads or "tasks", factor, folder)
    return lambda: way.solve(np.ones((grid.n, 3))), apply_bytes(grid, 3, itemsizes[dtype], n_threads)


def in_memory(tile, keeps, folder):
    n, grid = 900, TileGrid(900, tile, tile)
    source, B = MatrixTiles(as_rows(positive_definite(n))), np.ones((n, 2))

    def work():
        kept = InMemoryMatrix.of_source(source, grid, SerialExecutor()) if keeps else source
        factor = kept.factor_buffer() if keeps else MemoryMatrix(grid)
        for _ in range(2):
            factor_in_memory(memory_system(kept, np.ones(n), factor), SerialExecutor())
            X = substituted(factor, B)
        return keeps and kept.multiply(X)

    return work, memory_bytes(grid, keeps=keeps) + (inverse_bytes(grid) if grid.n_tiles > 1 else 0)


def multiplied(precision, folder):
    n, tile, d, m = 1500, 500, 11, 2
    grid, X = TileGrid(n, tile, tile), np.random.default_rng(0).standard_normal((n, d))
    group = TileGroup(GramTiles(RBF(gamma=0.1), MemoryRows(X)), grid, tuple(grid.lower()), "run", 0, None, 1)
    bound = multiply_bytes(RBF(gamma=0.1), n, tile, d, 8 * d, m)
    return lambda: multiply_group(Meter(), group, precision, np.ones((n, m), precision)), bound


HELD = {
    **{f"factor {key}, {dtype}": (partial(factor_task, key, dtype), 1.7, 50_000)
       for dtype in itemsizes for key in ("L-0-0", "L-2-0", "S-2-2-0", "L-2-2")},
    "a row of a sweep": (sweep_task, 1.7, 50_000),
    **{f"apply, {n} threads, {dtype}": (partial(applied, n, dtype), 2.5, 4_000_000)
       for n in (0, 1, 3) for dtype in itemsizes},
    **{f"in memory, tile = {tile}, keeps = {keeps}": (partial(in_memory, tile, keeps), 1.5, 500_000)
       for tile, keeps in ((900, False), (200, True), (200, False))},
    **{f"multiply, {precision}": (partial(multiplied, precision), np.inf, 0) for precision in itemsizes},
}  # fmt: skip


@pytest.mark.parametrize("name", HELD)
def test_memory_is_below_its_bound_and_the_bound_not_far_above(tmp_path, name):
    prepare, most, slack = HELD[name]
    work, bound = prepare(tmp_path)
    work()  # what is made once
    peak = systems.traced_peak(work)
    assert peak <= bound + min(slack, 500_000)
    assert bound <= most * peak + slack, "a bound that is far too high wastes the user's memory"
