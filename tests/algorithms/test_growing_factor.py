"""A factor of the first rows becomes that of all: in a store, in memory, beside the matrix, and after kills."""

import pickle
import random as chance
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import pairwise
from uuid import uuid4

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import dkrr
from dkrr.cluster import Meter, Progress, SerialExecutor, ThreadExecutor
from dkrr.data import MemoryRows, as_rows
from dkrr.errors import NotPositiveDefiniteError, WrongStoreError
from dkrr.fitting import growing_run
from dkrr.fitting.context import open_context
from dkrr.fitting.costs.details import Direct, Float32Factor
from dkrr.fitting.data import TrainingData
from dkrr.fitting.direct import MemorySystems
from dkrr.fitting.dual_ridge import DirectDual, FactoredDual
from dkrr.fitting.growing_run import grown_arrays
from dkrr.fitting.kept import Kept
from dkrr.kernels import RBF
from dkrr.linalg import cholesky
from dkrr.linalg.cholesky import KeptFactor, TiledSystem, cholesky_tasks, n_updates
from dkrr.linalg.in_memory_cholesky import GROWING_TILE, InMemoryMatrix, factor_in_memory, memory_system
from dkrr.linalg.sources import MatrixTiles
from dkrr.linalg.square import SquareFactor
from dkrr.linalg.substitution import substituted
from dkrr.planning.tile_sizes import Tiling
from dkrr.solvers import ConjugateGradient, Float32Cholesky
from dkrr.store import ChunkedArray, MemoryMatrix, TiledMatrix, TileGrid
from dkrr.store.matrix import shape_of_part
from tests import systems
from tests.systems import (
    RowsElsewhere,
    empty_tiles,
    factored,
    failing_at,
    files_of,
    positive_definite,
    random,
    remove_chunks,
    run,
    vectors,
)

one_blas_thread = systems.one_blas_thread

TILE, PANEL = 12, 4
TOLERANCE = {"float64": {"rtol": 1e-11, "atol": 1e-12}, "float32": {"rtol": 1e-4, "atol": 3e-6}}
HEIGHTS = (0, 1, TILE - 1)
"""Rows of the last tile row of the factor that grows; 0: it is whole."""
NEW = (1, TILE, 3 * TILE)


def in_store(folder, A, shift, n_kept, columns_per_task=0, dtype="float64"):
    """System whose first rows are factored in one array, and whose other rows go to others."""
    old = TileGrid(n_kept, TILE, PANEL)
    first = factored(folder, old, A=A[:n_kept, :n_kept] + np.diag(shift[:n_kept]), dtype=dtype).system.factor
    return grown_from(folder, first, A, shift, columns_per_task)


def grown_from(folder, first, A, shift, columns_per_task=0):
    grid, dtype = TileGrid(len(A), TILE, PANEL), str(first.dtype)
    listed = [(str(k), *ends) for k, ends in enumerate(pairwise((*first.firsts, first.grid.n)))]
    parts = grown_arrays(listed, "new", first.grid.n, len(A), TILE)
    arrays = tuple(
        first.arrays[int(name)]
        if name.isdigit()
        else ChunkedArray.create(f"{folder}/{uuid4().hex}", shape_of_part(a, b, TILE), (TILE, PANEL), dtype)
        for name, a, b in parts
    )
    return TiledSystem(
        source=MatrixTiles(RowsElsewhere(A)),
        shift=vectors(folder, grid, shift[:, None]),
        factor=TiledMatrix(arrays, grid, tuple(a for _, a, _ in parts)),
        columns_per_task=columns_per_task,
        partial=tuple(
            empty_tiles(folder, grid, dtype) for _ in range(n_updates(grid.n_tiles - 1, columns_per_task) - 1)
        ),
        kept=KeptFactor(first),
    )


def lower(matrix):
    """Lower triangle of a matrix in tiles."""
    grid = matrix.grid
    found = np.zeros((grid.n, grid.n))
    for i, j in grid.lower():
        tile = np.empty((grid.height(i), grid.height(j)), matrix.dtype)
        matrix.read_tile(i, j, tile)
        found[grid.rows(i), grid.rows(j)] = tile
    return np.tril(found)


def run_some(tasks, rng, stop=None, most=1):
    """Run tasks, or so many of them, each at most so often, in an order that respects what they wait for."""
    left, keys, done = list(tasks), {t.key for t in tasks}, set()
    while left and len(done) != stop:
        task = rng.choice([t for t in left if done.issuperset(keys.intersection(t.depends))])
        for _ in range(rng.randint(1, most)):
            task.function(Meter(), *task.arguments)
        left.remove(task)
        done.add(task.key)


@pytest.mark.parametrize(("columns_per_task", "is_copied"), [(0, False), (0, True), (2, False)])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("m", NEW)
@pytest.mark.parametrize("h", HEIGHTS)
def test_a_factor_in_a_store_grows_to_that_of_all_rows(tmp_path, monkeypatch, h, m, dtype, columns_per_task, is_copied):
    monkeypatch.setattr(growing_run, "MAX_PIECES", 1 if is_copied else 8)
    n_kept = 2 * TILE + h
    n = n_kept + m
    A, shift = positive_definite(n, 1), np.random.default_rng(2).uniform(0.0, 1.0, n)
    seen = A.copy()
    seen[:n_kept, :n_kept] = np.nan  # the first rows are not formed again
    system = in_store(tmp_path, A, shift, n_kept, columns_per_task, dtype)
    system = replace(system, source=MatrixTiles(RowsElsewhere(seen)))
    before = files_of(system.kept.matrix.arrays[0])
    tasks = pickle.loads(pickle.dumps(cholesky_tasks(system)))
    assert {int(t.key.split("-")[1]) for t in tasks} == set(range(n_kept // TILE, system.grid.n_tiles))
    assert sum(t.flops for t in tasks) == pytest.approx((n**3 - n_kept**3) / 3)
    run_some(tasks, chance.Random(0), most=2)
    assert_allclose(lower(system.factor), np.linalg.cholesky(A + np.diag(shift)), **TOLERANCE[dtype])
    assert files_of(system.kept.matrix.arrays[0]) == before, "the old factor stays as it is"
    assert cholesky_tasks(system) == []
    for j in range(system.grid.n_tiles):
        tile = np.empty((system.grid.height(j),) * 2, dtype)
        system.factor.read_tile(j, j, tile)
        assert not np.triu(tile, 1).any()


@pytest.mark.parametrize("columns_per_task", [0, 1, 2])
@pytest.mark.parametrize("seed", range(3))
def test_a_growth_resumes_after_any_kill_and_lost_tiles_are_computed_again(tmp_path, columns_per_task, seed):
    n_kept, n = 3 * TILE + 5, 5 * TILE + 7
    A, shift, rng = positive_definite(n, seed), np.full(n, 0.3), chance.Random(seed)
    expected = np.linalg.cholesky(A + np.diag(shift))
    system = in_store(tmp_path, A, shift, n_kept, columns_per_task)
    before = files_of(system.kept.matrix.arrays[0])
    while tasks := cholesky_tasks(system):
        run_some(tasks, rng, rng.randint(1, 4))
    assert_allclose(lower(system.factor), expected, rtol=1e-11, atol=1e-12)
    assert files_of(system.kept.matrix.arrays[0]) == before
    old, top, _, rest = system.factor.arrays
    remove_chunks(old, [(1, 0), (2, 5)])
    remove_chunks(top, [(0, 2)])
    remove_chunks(rest, [(0, 15)])
    tasks = cholesky_tasks(system)
    assert {t.key for t in tasks if t.key.startswith("L")} == {"L-1-0", "L-2-1", "L-3-0", "L-5-5"}
    run_some(tasks, rng)
    assert_allclose(lower(system.factor), expected, rtol=1e-11, atol=1e-12)


def test_a_factor_grows_again_and_again_in_a_store(tmp_path, monkeypatch):
    monkeypatch.setattr(growing_run, "MAX_PIECES", 3)
    A, most = positive_definite(80, 3), 0
    shift, lengths = np.full(80, 0.1), [5, 9, 30, 31, 32, 34, 35, 36, 60, 80]
    system = in_store(tmp_path, A[:9, :9], shift[:9], 5)
    run(cholesky_tasks(system))
    for n in lengths[2:]:
        system = grown_from(tmp_path, system.factor, A[:n, :n], shift[:n])
        most = max(most, *(len(system.factor.pieces(i)) for i in range(system.grid.n_tiles)))
        run(cholesky_tasks(system))
        assert_allclose(
            lower(system.factor), np.linalg.cholesky(A[:n, :n] + np.diag(shift[:n])), rtol=1e-11, atol=1e-12
        )
    assert most == 3, "then the tile row is written again"


@pytest.mark.parametrize("columns_per_task", [0, 2])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("h", "m"), [(0, 5), (7, 3), (7, 3 * TILE)])
def test_bytes_and_tasks_of_a_growth_are_those_of_the_formula(tmp_path, h, m, dtype, columns_per_task):
    n_kept = 2 * TILE + h
    n, itemsize = n_kept + m, np.dtype(dtype).itemsize
    system = in_store(tmp_path, positive_definite(n), np.zeros(n), n_kept, columns_per_task, dtype)
    grid, record = system.grid, run(cholesky_tasks(system))
    cost = cholesky.cholesky_work(grid, columns_per_task, itemsize, kept_rows=n_kept)
    first = n_kept // TILE
    formed = 8 * sum(
        (grid.height(i) - (h if i == first else 0)) * grid.height(j) for i, j in grid.lower() if i >= first
    )
    assert record.bytes_read - formed == cost.read_bytes
    assert record.bytes_written == cost.written_bytes
    assert len(record.tasks) == cost.n_tasks
    assert cost.gemm_flops == pytest.approx((n**3 - n_kept**3) / 3 * itemsize / 8)


# In memory


def memory_factor(A, shift, tile):
    grid = TileGrid(len(A), tile, tile)
    system = memory_system(MatrixTiles(as_rows(A)), shift, MemoryMatrix(grid))
    factor_in_memory(system, SerialExecutor())
    return system.factor


def grow_in_memory(source, shift, matrix, kept):
    with ThreadExecutor(2) as executor:
        factor_in_memory(memory_system(source, shift, matrix, kept), executor)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("m", NEW)
@pytest.mark.parametrize("h", HEIGHTS)
def test_a_factor_in_memory_grows_and_the_old_one_stays(h, m, dtype):
    n_kept = 6 * TILE + h
    n = n_kept + m
    A, shift = positive_definite(n, 1), np.full(n, 0.2)
    old = memory_factor(A[:n_kept, :n_kept].astype(dtype), shift[:n_kept], TILE)
    assert old.dtype == "float64"
    if dtype == "float32":
        rounded = MemoryMatrix(old.grid, np.float32)
        for i, j in old.grid.lower():
            rounded.tile_buffer(i, j)[...] = old.tile_buffer(i, j)
        old = rounded
    before, grid = lower(old), TileGrid(n, TILE, TILE)
    grown = old.grown(grid)
    grow_in_memory(MatrixTiles(as_rows(A)), shift, grown, old)
    assert grown.dtype == dtype
    assert_allclose(lower(grown), np.linalg.cholesky(A + np.diag(shift)), **TOLERANCE[dtype])
    assert_array_equal(lower(old), before)
    assert all(np.shares_memory(old.tile_buffer(i, j), grown.tile_buffer(i, j)) for i, j in grid.lower() if i < 6)


def test_rows_are_added_where_there_is_room_unless_another_matrix_has_that():
    n, new = 2 * TILE + 7, []
    A, shift = positive_definite(n, 1), np.full(n, 0.2)
    old = memory_factor(A[: n - 3, : n - 3], shift[: n - 3], TILE).grown(TileGrid(n - 2, TILE, TILE))
    for k, (first, stop, matrix) in enumerate([(n - 3, n - 2, old), (n - 2, n - 1, None), (n - 2, n, None)]):
        grid = TileGrid(stop, TILE, TILE)
        grown = matrix or old.grown(grid)
        kept = memory_factor(A[:first, :first], shift[:first], TILE) if matrix is old else old
        grow_in_memory(MatrixTiles(as_rows(A[:stop, :stop])), shift[:stop], grown, kept)
        new.append((grown, stop))
        assert np.shares_memory(old.tile_buffer(2, 0), grown.tile_buffer(2, 0)) == (k < 2)
    for grown, stop in new:
        assert_allclose(lower(grown), np.linalg.cholesky(A + np.diag(shift))[:stop, :stop], rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("n_kept", [1, 40, GROWING_TILE, GROWING_TILE + 1])
@pytest.mark.parametrize("m", [1, 600])
def test_a_factor_of_a_single_tile_is_cut_and_grows(n_kept, m):
    n = n_kept + m
    X, shift = random(n, 3), np.full(n, 0.1)
    A = RBF(gamma=0.3)(X, X)
    square = A[:n_kept, :n_kept] + np.diag(shift[:n_kept])
    expected = np.linalg.cholesky(A + np.diag(shift))
    square[...] = np.linalg.cholesky(square) + np.triu(np.full(square.shape, np.nan), 1)  # A is there in a fit
    kept = SquareFactor(square).matrix.cut(GROWING_TILE)
    grown = kept.grown(TileGrid(n, GROWING_TILE, GROWING_TILE))
    grow_in_memory(MatrixTiles(as_rows(A)), shift, grown, kept)
    assert_allclose(lower(grown), expected, rtol=1e-10, atol=1e-11)
    B = random(n, 2)
    assert_allclose(substituted(grown, B), np.linalg.solve(A + np.diag(shift), B), rtol=1e-8, atol=1e-9)


@contextmanager
def in_memory_context(kept=None):
    plan = dkrr.plan(np.eye(5), np.ones(5), solver="cholesky", form="dual")
    with open_context(plan, None, Progress()) as context:
        context.kept = kept
        yield context


def beside(A, grid, kept=None):
    """The matrix in memory beside its factor, from what is kept of its first rows."""
    source = MatrixTiles(as_rows(A))
    if kept is None:
        return InMemoryMatrix.of_source(source, grid, SerialExecutor())
    n_kept = kept.n
    seen = A.copy()
    seen[:n_kept, :n_kept] = np.nan  # what is there is not formed again
    return kept.grown(MatrixTiles(as_rows(seen)), grid, SerialExecutor())


def test_a_matrix_beside_its_factors_grows_with_them_and_what_was_there_stays():
    lengths, shifts = [25, 30, 31, 36, 60, 80], (0.3, 2.0)
    A = positive_definite(80, 5)
    matrix, factors, earlier = None, {}, []
    for n in lengths:
        grid = TileGrid(n, TILE, TILE)
        matrix = beside(A[:n, :n], grid, matrix)
        with in_memory_context(Kept(n, factors.get) if factors else None) as context:
            found = MemorySystems(matrix, grid, matrix.diagonal, context)
            made = {f"system-{k}": found.factor(f"system-{k}", np.full(n, s)) for k, s in enumerate(shifts)}
            factors = {group: one.matrix for group, one in made.items()}
        B = random(n, 2)
        earlier.append((n, B, matrix, made))
        for size, sides, whole, all_made in earlier:  # growing changes none of what it grew from
            assert_allclose(whole.multiply(sides), A[:size, :size] @ sides, rtol=1e-12, atol=1e-12)
            for (_, one), s in zip(sorted(all_made.items()), shifts, strict=True):
                expected = np.linalg.solve(A[:size, :size] + s * np.eye(size), sides)
                assert_allclose(one.solve(sides), expected, rtol=1e-10, atol=1e-11)
    one, other = (factors[f"system-{k}"] for k in range(2))
    squares = [matrix._matrix.tile_buffer(i, i) for i in range(grid.n_tiles)]
    shared = [
        sum(np.shares_memory(square, f.tile_buffer(i, i)) for f in (one, other)) for i, square in enumerate(squares)
    ]
    assert max(shared) == 1, "at most one factor is in the squares of the matrix"
    fresh = MemorySystems(matrix, grid, matrix.diagonal, context).factor("another", np.full(80, 7.0))
    assert_allclose(fresh.solve(B), np.linalg.solve(A + 7.0 * np.eye(80), B), rtol=1e-10, atol=1e-11)
    assert_allclose(made["system-0"].solve(B), np.linalg.solve(A + 0.3 * np.eye(80), B), rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("h", [0, 5])
def test_a_matrix_that_shares_squares_takes_little_more_memory(h):
    n_kept, n = 10 * TILE + h, 12 * TILE
    A = positive_definite(n, 5)
    matrix = beside(A[:n_kept, :n_kept], TileGrid(n_kept, TILE, TILE))
    factor = matrix.factor_buffer()
    grow_in_memory(matrix, np.ones(n_kept), factor, None)
    whole = beside(A, TileGrid(n, TILE, TILE), matrix)
    grown = whole.grown_factor(factor)
    assert all(grown.tile_buffer(i, i) is whole._matrix.tile_buffer(i, i) for i in range(12))
    grow_in_memory(whole, np.ones(n), grown, factor)
    assert_allclose(lower(grown), np.linalg.cholesky(A + np.eye(n)), rtol=1e-11, atol=1e-12)
    assert_allclose(whole.multiply(A), A @ A, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("place", ["store", "memory", "beside"])
@pytest.mark.parametrize("row", [2 * TILE + 6, 3 * TILE, 4 * TILE + 3])
def test_a_pivot_that_is_not_positive_is_named_and_the_old_factor_stays(tmp_path, place, row):
    n_kept, n = 2 * TILE + 6, 4 * TILE + 7
    A, zeros = failing_at(row, n), np.zeros(n)
    expected = np.linalg.cholesky(A[:n_kept, :n_kept])
    refused = pytest.raises(NotPositiveDefiniteError, match=f"row {row} ")
    if place == "store":
        system = in_store(tmp_path, A, zeros, n_kept)
        with refused:
            run(cholesky_tasks(system))
        assert_allclose(lower(system.kept.matrix), expected, rtol=1e-11, atol=1e-12)
        return
    old, source = memory_factor(A[:n_kept, :n_kept], zeros[:n_kept], TILE), MatrixTiles(as_rows(A))
    grid = TileGrid(n, TILE, TILE)
    if place == "beside":
        matrix = beside(A[:n_kept, :n_kept], old.grid)
        old = matrix.factor_buffer()
        grow_in_memory(matrix, zeros[:n_kept], old, None)
        source = beside(A, grid, matrix)
        grown = source.grown_factor(old)
    else:
        grown = old.grown(grid)
    with refused:
        grow_in_memory(source, zeros, grown, old)
    assert_allclose(lower(old), expected, rtol=1e-11, atol=1e-12)
    if place == "beside":
        assert_allclose(matrix.multiply(np.eye(n_kept)), A[:n_kept, :n_kept], rtol=1e-12, atol=1e-12)


def test_what_does_not_fit_together_is_refused(tmp_path):
    A, shift = positive_definite(40), np.zeros(40)
    system = in_store(tmp_path, A, shift, 20)
    with pytest.raises(ValueError, match="20 rows, and the factor 20"):
        replace(system, factor=system.kept.matrix)
    with pytest.raises(ValueError, match="differ in tiles or dtype"):
        replace(system, factor=empty_tiles(tmp_path, system.grid, "float32"), partial=())
    with pytest.raises(ValueError, match="does not grow"):
        memory_factor(A, shift, TILE).grown(TileGrid(20, TILE, TILE))
    with pytest.raises(ValueError, match="cannot be cut"):
        memory_factor(A, shift, TILE).grown(TileGrid(60, 8, 8))


# Regressions

N_KEPT, N = 83, 120
ALPHAS = np.array([0.01, 0.3])


def regression(weights=None, fit_intercept=True, n=N, alphas=ALPHAS):
    X, y = random(N, 3, seed=7), random(N, 2, seed=8)
    return TrainingData(
        rows=MemoryRows(X[:n].copy()), weights=None if weights is None else weights[:n], kernel=RBF(gamma=0.3),
        feature_map=None, fit_intercept=fit_intercept, targets=y[:n], alphas=alphas,
    )  # fmt: skip


def exact(data):
    """Dual coefficients and intercepts by numpy.linalg.solve."""
    X, y, n = data.rows.array, data.targets, data.n
    w = np.ones(n) if data.weights is None else data.weights
    has, K = w > 0, data.kernel(X, X)
    coef, constants = np.zeros(y.shape), np.zeros(y.shape[1])
    for k, alpha in enumerate(data.alphas):
        m = int(has.sum())
        system = np.zeros((m + 1, m + 1))
        system[:m, :m] = K[np.ix_(has, has)] + np.diag(alpha / w[has])
        if data.fit_intercept:
            system[:m, m] = system[m, :m] = 1.0
        else:
            system[m, m] = 1.0
        found = np.linalg.solve(system, np.append(y[has, k], 0.0))
        coef[has, k], constants[k] = found[:m], found[m]
    return coef, constants


SOLVERS = {"float64": (DirectDual, "cholesky"), "float32": (FactoredDual, ConjugateGradient(Float32Cholesky()))}


SOLVED = {"float64": {"rtol": 1e-8, "atol": 1e-9}, "float32": {"rtol": 1e-5, "atol": 1e-5}}


def opened_regression(data, folder, keeps, dtype):
    """Context of a fit of this size, its strategy and its plan."""
    solver = SOLVERS[dtype][1]
    where = {} if folder is None else {"tile": 32}
    plan = dkrr.plan(data.rows.array, data.targets, alpha=0.01, kernel=data.kernel, form="dual", solver=solver, **where)
    tiling = Tiling(data.n, data.n) if folder is None else Tiling(32, 8, 2)
    if dtype == "float64":
        strategy = Direct(tiling=tiling, row_block=data.n, keeps_matrix=keeps, keeps_factors=True)
    else:
        strategy = Float32Factor(tiling=tiling, iterations=3, products_tile=40, keeps_matrix=keeps, tol=1e-10)
    return plan, strategy


def solved(data, dtype, kept=None, folder=None, keeps=True):
    """Solution of a regression with what is kept, and its systems."""
    plan, strategy = opened_regression(data, folder, keeps, dtype)
    with open_context(plan, None, Progress()) as context:
        context.kept = kept
        systems = SOLVERS[dtype][0](strategy, data, plan, context)
        for system in systems.systems():
            systems.solve(system)
        assert context.kept is None
        return systems.solution(), systems


@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("keeps", [False, True])
def test_a_regression_in_memory_grows_from_what_is_kept(keeps, is_weighted, fit_intercept):
    weights = np.random.default_rng(3).uniform(0.5, 2.0, N) if is_weighted else None
    calls = []
    _, systems = solved(regression(weights, fit_intercept, N_KEPT), "float64", keeps=keeps)
    for n in (N_KEPT, 100, N):  # the first: other targets of the same rows
        data = regression(weights, fit_intercept, n)
        source = getattr(systems.matrix.systems, "source", None)
        factors = {f"system-{k}": factor.matrix for k, factor in systems._factors.items()}
        matrix = source if isinstance(source, InMemoryMatrix) else None
        kept = Kept(systems.matrix.n, factors.get, matrix, commit=lambda: calls.append(1))
        found, systems = solved(data, "float64", kept, keeps=keeps)
        coef, constants = exact(data)
        assert_allclose(found.dual_coef, coef, rtol=1e-8, atol=1e-9)
        assert_allclose(found.intercept, constants, rtol=1e-8, atol=1e-9)
        assert found.residual < 1e-12
    assert calls == [1, 1, 1]


@contextmanager
def earlier(data, dtype, folder="store"):
    """What a fit of fewer rows has left in a store, or in memory without one."""
    name = "system" if dtype == "float64" else "factored"
    plan, strategy = opened_regression(data, folder, keeps=False, dtype=dtype)
    with open_context(plan, None, Progress()) as context:
        systems, factors = SOLVERS[dtype][0](strategy, data, plan, context), {}
        for number, alpha in enumerate(sorted(set(data.alphas))):
            group, matrix = f"{name}-{number}", systems.matrix
            make = matrix.systems.factor if dtype == "float64" else partial(matrix.factor, family=group)
            factors[group] = make(group, data.dual_shift(alpha)).matrix
        yield Kept(data.n, factors.get)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("is_weighted", [False, True])
def test_a_regression_in_a_store_grows_from_what_is_kept(is_weighted, dtype):
    weights = np.random.default_rng(3).uniform(0.5, 2.0, N) if is_weighted else None
    data, calls = regression(weights), []
    with earlier(regression(weights, n=N_KEPT), dtype) as kept:
        kept = replace(kept, commit=lambda: calls.append(1))
        found, _ = solved(data, dtype, kept, folder="store")
    coef, constants = exact(data)
    assert calls == [1]
    assert_allclose(found.dual_coef, coef, **SOLVED[dtype])
    assert_allclose(found.intercept, constants, **SOLVED[dtype])


@pytest.mark.parametrize("keeps", [False, True])
def test_a_factor_in_float32_in_memory_grows(keeps):
    data, calls = regression(), []
    with earlier(regression(n=N_KEPT), "float32", folder=None) as kept:
        assert kept.factor("factored-1").dtype == "float32"
        found, _ = solved(data, "float32", replace(kept, commit=lambda: calls.append(1)), keeps=keeps)
    assert calls == [1] and found.outcome is None
    assert_allclose(found.dual_coef, exact(data)[0], **SOLVED["float32"])


def test_float32_that_cannot_take_the_new_rows_is_refused_before_the_old_run_is_touched():
    first, calls = regression(n=N_KEPT, alphas=np.array([1e-2, 1e-2])), []
    data = regression(alphas=np.array([1e-9, 1e-9]))
    data.rows.array[N_KEPT:] = data.rows.array[: N - N_KEPT]  # repeated rows, of which λ is the only difference
    with earlier(first, "float32") as kept:
        before = files_of(kept.factor("factored-0").arrays[0])
        kept = replace(kept, commit=lambda: calls.append(1))
        with pytest.raises(WrongStoreError, match=r"83 rows and a factor in float32, which cannot take 37 more rows"):
            solved(data, "float32", kept, folder="store")
        assert not calls and files_of(kept.factor("factored-0").arrays[0]) == before


LEFT_OUT = np.array([3, 40, N_KEPT - 1])


def without_some(n):
    """Data of which some rows have the weight 0, and what is kept of them."""
    weights = np.ones(N)
    weights[LEFT_OUT] = 0.0
    return regression(weights, n=n), {"scale": np.ones(N_KEPT), "left_out": LEFT_OUT}


@pytest.mark.parametrize("n", [N_KEPT, N])
@pytest.mark.parametrize("keeps", [False, True])
def test_rows_that_are_left_out_in_memory_stay_in_the_factor(keeps, n):
    first, systems = solved(regression(n=N_KEPT), "float64", Kept(0, lambda _: None), keeps=keeps)
    data, more = without_some(n)
    factors = {f"system-{k}": factor.matrix for k, factor in systems._factors.items()}
    found, _ = solved(data, "float64", Kept(N_KEPT, factors.get, systems.matrix.in_memory, **more), keeps=keeps)
    coef, constants = exact(data)
    assert_allclose(found.dual_coef, coef, rtol=1e-8, atol=1e-9)
    assert_allclose(found.intercept, constants, rtol=1e-8, atol=1e-9)
    assert found.residual < 1e-12 and first.residual < 1e-12


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_rows_that_are_left_out_in_a_store_stay_in_the_factor(dtype):
    data, more = without_some(N)
    with earlier(regression(n=N_KEPT), dtype) as kept:
        found, _ = solved(data, dtype, replace(kept, **more), folder="store")
    coef, constants = exact(data)
    assert_allclose(found.dual_coef, coef, **SOLVED[dtype])
    assert_allclose(found.intercept, constants, **SOLVED[dtype])
