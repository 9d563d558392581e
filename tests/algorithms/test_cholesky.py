"""Factors in tiles and in in_memory_cholesky, and sweeps with them: right, repeatable, resumed from whatever exists."""

import pickle
import random as chance
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from dkrr import blas
from dkrr.cluster import Meter, SerialExecutor, ThreadExecutor
from dkrr.data import as_rows
from dkrr.errors import NotFiniteError, NotPositiveDefiniteError, StoreError
from dkrr.linalg import in_memory_cholesky, sources, substitution
from dkrr.linalg.cholesky import N_SLOTS, cholesky_tasks, factor_tile, prefetched, tile_steps
from dkrr.linalg.factor import LocalFactor, SharedFactor
from dkrr.linalg.in_memory_cholesky import InMemoryMatrix, factor_in_memory, memory_system
from dkrr.linalg.sources import MatrixTiles
from dkrr.linalg.substitution import (
    MIN_TILES_PER_SUM,
    NEAR_TILES,
    Substitution,
    block_cuts,
    both_sweeps,
    substituted,
    substitution_tasks,
    sums_grid,
)
from dkrr.store import ChunkedArray, MemoryMatrix, RunStore, TileGrid
from tests import systems
from tests.oracles import assert_close
from tests.pairs import every_pair
from tests.systems import MANY, RAGGED, factored, files_of, grids, make_case, positive_definite, remove_chunks, run

one_blas_thread = systems.one_blas_thread

TOLERANCE = {"float64": {"rtol": 1e-11, "atol": 1e-12}, "float32": {"rtol": 1e-4, "atol": 3e-6}}
NINE = TileGrid(n=52, tile=6, panel=2)
"""Nine tiles, more than the blocks of one slot."""
dtypes = st.sampled_from(["float64", "float32"])
both_ways = pytest.mark.parametrize("transpose", [False, True])


def files(system):
    return files_of(system.factor.arrays[0])


@given(grid=grids(), seed=st.integers(0, 3), columns_per_task=st.integers(0, 4), dtype=dtypes)
def test_a_factor_is_that_of_naive_loops(tmp_path_factory, grid, seed, columns_per_task, dtype):
    case = make_case(tmp_path_factory.mktemp("c"), grid, seed=seed, columns_per_task=columns_per_task, dtype=dtype)
    L = np.linalg.cholesky(case.shifted)
    case.A[np.triu_indices(grid.n, 1)] = np.nan  # what is above the diagonal is not read
    run(cholesky_tasks(case.system))
    found = case.system.factor.as_dask(symmetric=False).compute(scheduler="synchronous")
    assert found.dtype == dtype
    assert_allclose(found, L, **TOLERANCE[dtype])
    for j in range(grid.n_tiles):
        tile = np.empty((grid.height(j),) * 2, dtype)
        case.system.factor.read_tile(j, j, tile)
        assert not np.triu(tile, 1).any()


@pytest.mark.parametrize("columns_per_task", [0, 1, 2, 3])
def test_order_repetition_and_segments_do_not_change_the_bits(tmp_path, columns_per_task):
    expected = files(factored(tmp_path, MANY, seed=2).system)
    other = make_case(tmp_path, MANY, seed=2, columns_per_task=columns_per_task).system
    assert len(other.partial) == (-(-6 // columns_per_task) - 1 if columns_per_task else 0)
    tasks = cholesky_tasks(other)
    assert max(len(t.depends) for t in tasks) <= 4, "O(N²) edges"
    assert sum(t.flops for t in tasks) == pytest.approx(MANY.n**3 / 3)
    systems.run_in_any_order(tasks, chance.Random(1), most=2)
    assert files(other) == expected
    steps = list(tile_steps(MANY.n_tiles, columns_per_task))
    for step in chance.Random(0).sample(steps, len(steps)):  # again, after all is done
        factor_tile(Meter(), other, step)
    assert files(other) == expected


def test_what_float32_cannot_hold_is_an_error(tmp_path):
    beyond = np.diag(np.where(np.isin(np.arange(47), (30, 32)), 1e39, 1.0))
    with pytest.raises(NotPositiveDefiniteError, match="entry of row 30 leaves the range of float32"):
        run(cholesky_tasks(make_case(tmp_path, RAGGED, A=beyond, dtype="float32").system))


def reads(step):
    """Tiles of L that a task reads."""
    tiles = {(r, k) for k in step.columns for r in (step.i, step.j)}
    return tiles | ({(step.j, step.j)} if step.is_last and step.i != step.j else set())


@given(st.data(), st.sampled_from([(RAGGED, 0), (RAGGED, 1), (MANY, 0), (MANY, 2), (MANY, 3)]), dtypes)
def test_a_run_resumes_from_whatever_exists(tmp_path_factory, data, cut, dtype):
    """Without chunks of the factor and tiles of the sums between."""
    grid, columns_per_task = cut
    steps = {s.key: s for s in tile_steps(grid.n_tiles, columns_per_task)}
    existing = [(i, p) for i, j in grid.lower() for p in grid.panels(j)]
    chunks = data.draw(st.just(set(existing)) | st.sets(st.sampled_from(existing)))
    between = [(s.update, s.i, s.j) for s in steps.values() if not s.is_last]
    sums = data.draw(st.sets(st.sampled_from(between), max_size=4)) if between else ()
    folder = tmp_path_factory.mktemp("c")
    system = factored(folder, grid, columns_per_task=columns_per_task, dtype=dtype).system
    before = files(system)
    remove_chunks(system.factor.arrays[0], chunks)
    for part, i, j in sums:
        remove_chunks(system.partial[part].arrays[0], [(i, grid.panels(j)[0])])
    missing = {(i, grid.tile_of(p)) for i, p in chunks}

    def is_needed(step):
        tile, parts_left = (step.i, step.j), system.partial[step.update :]
        return tile in missing and (step.is_last or all(tile not in sums.complete_tiles() for sums in parts_left))

    tasks = cholesky_tasks(system)
    assert {t.key for t in tasks} == {key for key, s in steps.items() if is_needed(s)}, "others are not recomputed"
    for key, earlier in systems.waits_for(tasks).items():
        needed = {f"L-{a}-{b}" for a, b in reads(steps[key]) & missing}
        assert needed <= earlier, f"{key} may start before what it reads exists"
    run(tasks)
    assert files(system) == before
    assert cholesky_tasks(system) == []


# Substitution ----------------------------------------------------------------------------------------------------


def stored_factor(folder, grid, dtype="float32"):
    """Factor of a well-conditioned matrix, as it is rounded."""
    L = np.linalg.cholesky(positive_definite(grid.n)).astype(dtype).astype(np.float64)
    return L, systems.tiles_of(folder, grid, L, dtype)


def make_job(folder, grid, m=2, *, transpose, dtype="float64"):
    """A factor, right-hand sides, and the sweep that is still to do."""
    L, factor = stored_factor(folder, grid, dtype)
    B = systems.random(grid.n, m, seed=1)
    solution, sums = (systems.empty_vectors(folder, one, m) for one in (grid, sums_grid(grid)))
    given_ = systems.vectors(folder, grid, B)
    return L, B, Substitution.resumable(factor, given_, solution, sums, transpose=transpose)


def tasks_of(job):
    return substitution_tasks(job, "x")


@given(
    grid=grids(), m=st.integers(1, 4), dtype=dtypes, transpose=st.booleans(), entries=st.integers(1, 80), data=st.data()
)
def test_sweeps_in_tasks_and_in_memory_are_those_of_naive_loops(
    tmp_path_factory, grid, m, dtype, transpose, entries, data
):
    L, B, job = make_job(tmp_path_factory.mktemp("t"), grid, m, transpose=transpose, dtype=dtype)
    cuts = {0, grid.n_tiles} | data.draw(st.sets(st.integers(0, grid.n_tiles)))
    X, expected = B.copy(), np.linalg.solve(L.T if transpose else L, B)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(substitution, "WIDENED_ENTRIES", entries)  # panels in float32 are widened in pieces
        run(tasks_of(job))
        run(tasks_of(Substitution.in_memory(job.factor, X, sorted(cuts), transpose=transpose)))
    assert_allclose(job.solution.load(), expected, **TOLERANCE["float64"])
    assert_allclose(X, expected, **TOLERANCE["float64"])


def sums_of(q):
    """Numbers of the sums of a tile row, with the rows that each covers."""
    near, step = max(q - NEAR_TILES, 0), MIN_TILES_PER_SUM
    return {k: range(k * step, min((k + 1) * step, near)) for k in range(-(-near // step))}


def read_by(key):
    """Tasks of all blocks whose results a task reads."""
    _, kind, *numbers = key.split("-")
    q, *k = map(int, numbers)
    if kind == "sum":
        return {f"x-solve-{s}" for s in sums_of(q)[k[0]]}
    return {f"x-solve-{s}" for s in range(max(q - NEAR_TILES, 0), q)} | {f"x-sum-{q}-{k}" for k in sums_of(q)}


@both_ways
def test_a_sweep_resumes_from_whatever_exists_in_any_order(tmp_path, transpose):
    _, _, job = make_job(tmp_path, NINE, transpose=transpose)
    run(tasks_of(job))
    before, complete_sums = files_of(job.solution), files_of(job.sums)
    every = [(q, k) for q in range(9) for k in sums_of(q)]
    assert (8, 1) in every, "a tile row with two sums"

    @given(blocks=st.sets(st.integers(0, 8)), sums=st.sets(st.sampled_from(every)), seed=st.integers(0, 9))
    def check(blocks, sums, seed):
        systems.restore_chunks(job.solution, before)
        systems.restore_chunks(job.sums, complete_sums)
        remove_chunks(job.solution, [(job.tiles(q)[0], 0) for q in blocks])
        remove_chunks(job.sums, [(k * NINE.n_tiles + job.tiles(q)[0], 0) for q, k in sums])
        tasks = tasks_of(job)
        assert {t.key for t in tasks} == {f"x-solve-{q}" for q in blocks} | {
            f"x-sum-{q}-{k}" for q, k in sums if q in blocks
        }
        for key, earlier in systems.waits_for(tasks).items():
            assert read_by(key) & {t.key for t in tasks} <= earlier, f"{key} may start too early"
        systems.run_in_any_order(tasks, chance.Random(seed))
        assert files_of(job.solution) == before
        assert tasks_of(job) == []

    check()


@given(st.data(), st.integers(0, 9))
def test_both_sweeps_resume_from_whatever_exists_in_any_order(tmp_path_factory, data, seed):
    folder, m = tmp_path_factory.mktemp("b"), 2
    L, B, forward = make_job(folder, NINE, m, transpose=False)
    solution, sums = (systems.empty_vectors(folder, one, m) for one in (NINE, sums_grid(NINE)))
    backward = Substitution.resumable(forward.factor, forward.solution, solution, sums, transpose=True)
    run(both_sweeps(forward, backward))
    for array in (forward.solution, forward.sums, solution, sums):
        there = sorted(array.present())
        remove_chunks(array, data.draw(st.sets(st.sampled_from(there)) | st.just(set(there))))
    tasks = both_sweeps(forward, backward)
    of_forward = {t.key for t in tasks if t.key.startswith("forward-solve")}
    for key, earlier in systems.waits_for(tasks).items():
        assert not key.startswith("backward") or of_forward <= earlier, f"{key} may read what is not there yet"
    systems.run_in_any_order(tasks, chance.Random(seed))
    assert_allclose(solution.load(), np.linalg.solve(L @ L.T, B), **TOLERANCE["float64"])


@pytest.mark.parametrize("n_tiles", [*range(1, 10), 48, 49, 61, 200])
def test_all_sums_of_a_sweep_have_a_place(n_tiles):
    grid = TileGrid(3 * n_tiles - 1, 3, 1)
    job = Substitution.resumable(SimpleNamespace(grid=grid), None, None, None, transpose=False)
    most = max(len(job.summed_blocks(q)) for q in range(n_tiles))
    assert max(1, most) * n_tiles == sums_grid(grid).n_tiles


def factor_in(way, factor, folder):
    """Of tasks, which substitute in float64, or of threads, which do so in the precision of the factor."""
    if way != "tasks":
        return LocalFactor(factor, way)
    store = RunStore(str(folder / "run.zarr"))
    store.open()
    return SharedFactor(factor, SerialExecutor(), store, "system-0", 1)


METHODS = [1, 3, "tasks"]


@given(grid=grids(), m=st.integers(1, 4), way=st.sampled_from(METHODS), dtype=dtypes, order=st.sampled_from("CFS"))
def test_a_factor_applied_is_the_inverse_of_what_it_was_rounded_to(tmp_path_factory, grid, m, way, dtype, order):
    folder = tmp_path_factory.mktemp("f")
    L, factor = stored_factor(folder, grid, dtype)
    R = systems.random(grid.n, 2 * m, seed=1).astype(np.float32)[:, ::2]
    R = R if order == "S" else np.array(R, np.float64, order=order)
    given_ = R.copy()
    found, expected = factor_in(way, factor, folder).solve(R), np.linalg.solve(L @ L.T, R)
    assert found.dtype == np.float64
    tolerance = 1e-11 if way == "tasks" or dtype == "float64" else 1e-4
    assert_allclose(found, expected, rtol=0, atol=tolerance * abs(expected).max())
    assert_array_equal(R, given_)


def test_the_number_of_threads_of_a_stored_factor_does_not_change_the_bits(tmp_path):
    _, factor = stored_factor(tmp_path, NINE)
    R = systems.random(NINE.n, 2, seed=1)
    one, *others = (LocalFactor(factor, n).solve(R) for n in (1, 2, 5, 5))
    for other in others:
        assert_array_equal(other, one)


@pytest.mark.parametrize("way", METHODS)
def test_a_missing_or_damaged_strip_is_an_error_that_names_it(tmp_path, way):
    _, missing = stored_factor(tmp_path, NINE)
    remove_chunks(missing.arrays[0], [(5, 4)])
    _, damaged = stored_factor(tmp_path, NINE)
    systems.flip_a_bit(damaged.arrays[0], "c.8.1")
    for factor, words in ((missing, r"c\.5\.4 .* not there"), (damaged, r"c\.8\.1 .* checksum")):
        with pytest.raises(StoreError, match=words):
            factor_in(way, factor, tmp_path).solve(np.ones((NINE.n, 1)))
        assert not list(tmp_path.glob("run.zarr/system-0/apply-*")), "nothing is left behind"


@both_ways
def test_a_sweep_in_blocks_does_not_depend_on_the_order(tmp_path, transpose):
    (_, factor), cuts = stored_factor(tmp_path, NINE), block_cuts(NINE.n_tiles, 1)
    sums = ChunkedArray.create(f"{tmp_path}/sums", (max(1, len(cuts) - 3) * NINE.n_tiles * 6, 2), (6, 2))
    B, X = systems.vectors(tmp_path, NINE, systems.random(NINE.n, 2, seed=1)), systems.empty_vectors(tmp_path, NINE, 2)
    job = Substitution(factor, B, X, transpose=transpose, cuts=cuts, n_near=1, sums=sums)
    tasks = substitution_tasks(job, "x", ("before",))
    assert [t.key for t in tasks if t.depends == ("before",)] == ["x-solve-0"]
    before = systems.waits_for(tasks)
    assert before["x-sum-4-1"] == {"x-solve-0", "x-solve-1"}, "sums do not wait for the newest block"
    assert before["x-solve-4"] >= {f"x-solve-{s}" for s in range(4)} | {f"x-sum-4-{s}" for s in range(3)}
    assert len(pickle.dumps(tasks[-1])) < 2000, "tasks travel by name"
    found = []
    for seed in range(3):
        systems.restore_chunks(X, {})
        systems.restore_chunks(sums, {})
        systems.run_in_any_order(tasks_of(job), chance.Random(seed), most=2)
        found.append(files_of(X))
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("n", [0, 1, 3, 20])
def test_panels_are_read_ahead_in_order_into_the_buffer_that_is_not_in_use(n):
    buffers, meter, seen = [None] * N_SLOTS, Meter(), []

    def load(k, slot):
        buffers[slot] = k
        seen.append((k, slot))
        return slot

    for k, slot in enumerate(prefetched(n, load, meter, waits=True)):
        for _ in range(200):  # give the reader every chance to run ahead
            assert buffers[slot] == k
    assert seen == [(k, k % N_SLOTS) for k in range(n)]
    assert set(meter.seconds) == ({"read"} if n else set()), "waiting counts as reading"


# In memory -------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(blas, "_POTRF_BLOCK", 8)
    monkeypatch.setattr(blas, "_WHOLE_POTRF", 8)
    monkeypatch.setattr(in_memory_cholesky, "MEMORY_TASK_COLUMNS", 2)
    monkeypatch.setattr(sources, "KERNEL_BLOCK", 6)


def grid_of(n, tile):
    return TileGrid(n, min(n, tile), min(n, tile))


def kept_tiles(A, tile, executor=None):
    return InMemoryMatrix.of_source(MatrixTiles(as_rows(A)), grid_of(len(A), tile), executor or SerialExecutor())


def solve(source, shift, factor, B, executor=None):
    factor_in_memory(memory_system(source, shift, factor), executor or SerialExecutor())
    return substituted(factor, B)


every_tile = pytest.mark.parametrize("tile", [4, 7, 100])


@pytest.mark.usefixtures("small_blocks")
@given(
    grid=grids(most=40), m=st.integers(1, 3), seed=st.integers(0, 9), order=st.sampled_from("CFS"), keeps=st.booleans()
)
def test_solutions_in_memory_for_several_shifts_are_those_of_numpy(grid, m, seed, order, keeps):
    n, A, B = grid.n, positive_definite(grid.n, seed), systems.random(grid.n, 2 * m, seed=seed).astype("f4")[:, ::2]
    B = B if order == "S" else np.array(B, np.float64, order=order)
    B.flags.writeable = False
    if keeps:
        source = kept_tiles(A, grid.tile)
        factor = source.factor_buffer()
    else:  # what is above the diagonal is not read
        source, factor = MatrixTiles(as_rows(np.where(np.tri(n), A, 7.0))), MemoryMatrix(grid_of(n, grid.tile))
    for shift in (np.random.default_rng(seed).uniform(0, 1, n), np.full(n, 100.0), np.zeros(n)):
        X = solve(source, shift, factor, B)
        assert_allclose(X, np.linalg.solve(A + np.diag(shift), B), rtol=1e-11, atol=1e-13)
        if keeps:
            assert_allclose(source.multiply(B), A @ B, rtol=1e-11, atol=1e-11)


@pytest.mark.usefixtures("small_blocks")
@every_tile
def test_the_number_of_threads_does_not_change_the_bits_in_memory(tile):
    A, B, found = positive_definite(30), systems.random(30, 2), []
    for n_threads in (1, 2, 5):
        with ThreadExecutor(n_threads) as threads:
            kept = kept_tiles(A, tile, threads)
            for source in (kept, MatrixTiles(as_rows(A))):
                found.append(solve(source, np.ones(30), kept.factor_buffer(), B, threads))
    for other in found[1:]:
        assert_array_equal(other, found[0])


@pytest.mark.usefixtures("small_blocks")
@every_pair(row=[0, 6, 7, 29], tile=[4, 7, 100], n_threads=[1, 3])
def test_after_a_pivot_that_is_not_positive_another_shift_works(row, tile, n_threads):
    A, B = systems.failing_at(row, 30), np.ones((30, 1))
    kept = kept_tiles(A, tile)
    factor = kept.factor_buffer()
    with ThreadExecutor(n_threads) as executor:
        with pytest.raises(NotPositiveDefiniteError, match=f"row {row} "):
            solve(kept, np.zeros(30), factor, B, executor)
        assert_close(solve(kept, np.ones(30), factor, B, executor), np.linalg.solve(A + np.eye(30), B), 1e-12)


@every_tile
def test_entries_that_overflow_are_an_error(tile):
    A = positive_definite(5)
    A[3, 3] = np.inf
    kept = kept_tiles(A, tile)
    with pytest.raises(NotFiniteError, match="diagonal entry .* is inf"):
        solve(kept, np.zeros(5), kept.factor_buffer(), np.ones((5, 1)))
    large = kept_tiles(np.array([[1.0, 1e200, 1e200], [1e200, 1.0, 1.0], [1e200, 1.0, 1.0]]), 3)  # NaN on the way
    with pytest.raises(NotPositiveDefiniteError):
        solve(large, np.zeros(3), large.factor_buffer(), np.ones((3, 1)))
