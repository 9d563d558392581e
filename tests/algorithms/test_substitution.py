"""Substitution with a stored factor: in tasks and in threads, right, repeatable, resumed from whatever exists."""

import pickle
import random as chance
import threading
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from dkrr.errors import StoreError
from dkrr.linalg import substitution
from dkrr.linalg.inverse import LocalFactor, SharedFactor, block_cuts
from dkrr.linalg.substitution import NEAR_TILES, Substitution, substitution_tasks
from dkrr.linalg.tile_steps import N_SLOTS, prefetched
from dkrr.runtime import Meter, SerialExecutor
from dkrr.tiles import ChunkedArray, RunStore, TileGrid
from tests.oracles import naive_backward, naive_forward
from tests.systems import (
    MANY,
    empty_vectors,
    factored,
    files_of,
    flip_a_bit,
    grids,
    one_blas_thread,  # noqa: F401
    positive_definite,
    random,
    remove_chunks,
    restore_chunks,
    run,
    run_in_any_order,
    tiles_of,
    vectors,
    waits_for,
)

TOLERANCE = {"rtol": 1e-11, "atol": 1e-12}
NINE = TileGrid(n=52, tile=6, panel=2)
"""Nine tiles, more than the blocks of one slot."""
dtypes = st.sampled_from(["float64", "float32"])
both_ways = pytest.mark.parametrize("transpose", [False, True])


def stored_factor(folder, grid, dtype):
    """Factor of a well-conditioned matrix, as it is rounded."""
    L = np.linalg.cholesky(positive_definite(grid.n)).astype(dtype).astype(np.float64)
    return L, tiles_of(folder, grid, L, dtype)


def make_job(folder, grid, m=2, *, transpose, dtype="float64"):
    """A factor, right-hand sides, and the sweep that is still to do."""
    L, factor = stored_factor(folder, grid, dtype)
    B = random(grid.n, m, seed=1)
    solution, sums = (empty_vectors(folder, grid, m) for _ in range(2))
    given_ = vectors(folder, grid, B)
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
    X, expected = B.copy(), (naive_backward if transpose else naive_forward)(L, B)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(substitution, "WIDENED_ENTRIES", entries)  # panels in float32 are widened in pieces
        run(tasks_of(job))
        run(tasks_of(Substitution.in_memory(job.factor, X, sorted(cuts), transpose=transpose)))
    assert_allclose(job.solution.load(), expected, **TOLERANCE)
    assert_allclose(X, expected, **TOLERANCE)


def reads(key):
    """Tasks of all blocks whose results a task reads."""
    _, kind, q, *_ = key.split("-")
    q = int(q)
    near = max(q - NEAR_TILES, 0)
    if kind == "sum":
        return {f"x-solve-{s}" for s in range(near)}
    return {f"x-solve-{s}" for s in range(near, q)} | ({f"x-sum-{q}-0"} if near else set())


@both_ways
def test_a_sweep_resumes_from_whatever_exists_in_any_order(tmp_path, transpose):
    _, _, job = make_job(tmp_path, MANY, transpose=transpose)
    run(tasks_of(job))
    before, complete_sums = files_of(job.solution), files_of(job.sums)

    @given(blocks=st.sets(st.integers(0, 6)), sums=st.sets(st.integers(NEAR_TILES + 1, 6)), seed=st.integers(0, 9))
    def check(blocks, sums, seed):
        restore_chunks(job.solution, before)
        restore_chunks(job.sums, complete_sums)
        remove_chunks(job.solution, [(job.tiles(q)[0], 0) for q in blocks])
        remove_chunks(job.sums, [(job.tiles(q)[0], 0) for q in sums])
        tasks = tasks_of(job)
        assert {t.key for t in tasks} == {f"x-solve-{q}" for q in blocks} | {f"x-sum-{q}-0" for q in blocks & sums}
        for key, earlier in waits_for(tasks).items():
            assert reads(key) & {t.key for t in tasks} <= earlier, f"{key} may start too early"
        run_in_any_order(tasks, chance.Random(seed))
        assert files_of(job.solution) == before
        assert tasks_of(job) == []

    check()


def factor_in(way, factor, folder):
    """Of tasks, which substitute in float64, or of threads, which do so in the precision of the factor."""
    if way != "tasks":
        return LocalFactor(factor, way)
    store = RunStore(str(folder / "run.zarr"))
    store.open()
    return SharedFactor(factor, SerialExecutor(), store, "system-0", 1)


def tolerance(way, dtype):
    return 1e-11 if way == "tasks" or dtype == "float64" else 1e-4


WAYS = [1, 3, "tasks"]
every_way = pytest.mark.parametrize("way", WAYS)


@given(grid=grids(), m=st.integers(1, 4), way=st.sampled_from(WAYS), dtype=dtypes, order=st.sampled_from("CFS"))
def test_a_factor_applied_is_the_inverse_of_what_it_was_rounded_to(tmp_path_factory, grid, m, way, dtype, order):
    folder = tmp_path_factory.mktemp("f")
    L, factor = stored_factor(folder, grid, dtype)
    R = random(grid.n, 2 * m, seed=1).astype(np.float32)[:, ::2]
    R = R if order == "S" else np.array(R, np.float64, order=order)
    given_ = R.copy()
    found, expected = factor_in(way, factor, folder).apply(R), np.linalg.solve(L @ L.T, R)
    assert found.dtype == np.float64
    assert_allclose(found, expected, rtol=0, atol=tolerance(way, dtype) * abs(expected).max())
    assert_array_equal(R, given_)


@every_way
def test_refinement_with_a_factor_in_float32_reaches_float64(tmp_path, way):
    case = factored(tmp_path, NINE, m=0, dtype="float32")
    apply = factor_in(way, case.system.factor, tmp_path).apply
    B = random(NINE.n, 3, seed=1)
    X, errors = np.zeros_like(B), []
    for _ in range(4):
        X += apply(B - case.A @ X)
        errors.append(np.linalg.norm(B - case.A @ X) / np.linalg.norm(B))
    assert 1e-9 < errors[0] < 1e-5, "a float32 factor"
    assert errors[-1] < 1e-14, "float64 residuals"


def test_the_number_of_threads_does_not_change_the_bits(tmp_path):
    _, factor = stored_factor(tmp_path, NINE, "float32")
    R = random(NINE.n, 2, seed=1)
    one, *others = (LocalFactor(factor, n).apply(R) for n in (1, 2, 5, 5))
    for other in others:
        assert_array_equal(other, one)


@every_way
def test_a_missing_or_damaged_strip_is_an_error_that_names_it(tmp_path, way):
    for damage, words in (("missing", r"c\.5\.4 .* not there"), ("damaged", r"c\.8\.1 .* checksum")):
        _, factor = stored_factor(tmp_path, NINE, "float32")
        if damage == "missing":
            remove_chunks(factor.array, [(5, 4)])
        else:
            flip_a_bit(factor.array, "c.8.1")
        with pytest.raises(StoreError, match=words):
            factor_in(way, factor, tmp_path).apply(np.ones((NINE.n, 1)))
        assert not list(tmp_path.glob("run.zarr/system-0/apply-*")), "nothing is left behind"


@given(st.integers(1, 60), st.integers(1, 40))
def test_blocks_of_a_shared_factor_are_few_and_not_empty(n_tiles, slots):
    cuts = block_cuts(n_tiles, slots)
    assert cuts[0] == 0 and cuts[-1] == n_tiles
    assert all(a < b for a, b in pairwise(cuts))
    assert len(cuts) - 1 <= 2 * slots + 4


@both_ways
def test_a_sweep_in_blocks_reads_every_panel_once_and_does_not_depend_on_the_order(tmp_path, transpose):
    _, factor = stored_factor(tmp_path, NINE, "float32")
    cuts = block_cuts(NINE.n_tiles, 1)
    shape = (max(1, len(cuts) - 3) * NINE.n_tiles * NINE.tile, 2)
    job = Substitution(
        factor=factor,
        right_sides=vectors(tmp_path, NINE, random(NINE.n, 2, seed=1)),
        solution=empty_vectors(tmp_path, NINE, 2),
        transpose=transpose,
        cuts=cuts,
        n_near=1,
        sums=ChunkedArray.create(f"{tmp_path}/sums", shape, (NINE.tile, 2)),
    )
    blocks = range(job.n_blocks)
    parts = [job.within(q) for q in blocks] + [job.between(q, s) for q in blocks for s in range(q)]
    everything = [(i, p) for i, j in NINE.lower() for p in NINE.panels(j)]
    assert sorted(panel for part in parts for panel in part) == sorted(everything)

    tasks = substitution_tasks(job, "x", ("before",))
    assert tasks[0].depends == ("before",)
    before = waits_for(tasks)
    assert before["x-sum-4-1"] == {"x-solve-0", "x-solve-1"}, "sums do not wait for the newest block"
    assert before["x-solve-4"] >= {f"x-solve-{s}" for s in range(4)} | {f"x-sum-4-{s}" for s in range(3)}
    assert len(pickle.dumps(tasks[-1])) < 2000, "tasks travel by name"
    tasks = tasks_of(job)
    run(tasks)
    expected = files_of(job.solution)
    for seed in range(4):
        restore_chunks(job.solution, {})
        restore_chunks(job.sums, {})
        run_in_any_order(tasks, chance.Random(seed), most=2)
        assert files_of(job.solution) == expected


@pytest.mark.parametrize("n", [0, 1, 2, 3, 20])
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


def test_the_next_panel_is_read_while_one_is_in_use():
    loaded = [threading.Event() for _ in range(3)]

    def load(k, slot):
        loaded[k].set()
        return k

    panels = prefetched(3, load, Meter(), waits=True)
    assert next(panels) == 0
    assert loaded[1].wait(10), "without being asked for"
    assert not loaded[2].is_set()
    assert list(panels) == [1, 2]


def test_an_error_of_reading_comes_where_the_panel_is_wanted():
    def load(k, slot):
        if k == 2:
            raise OSError("damaged")
        return k

    panels = prefetched(4, load, Meter(), waits=True)
    assert [next(panels), next(panels)] == [0, 1]
    with pytest.raises(OSError, match="damaged"):
        next(panels)


def test_nothing_is_loaded_ahead_from_memory():
    loaded = []
    for k in prefetched(3, lambda k, slot: loaded.append(slot) or k, Meter(), waits=False):
        assert len(loaded) == k + 1
    assert loaded == [0, 0, 0]


def test_two_sweeps_read_at_the_same_time():
    """Else each waits for the first of the other: neither load returns before both have begun."""
    both = threading.Barrier(2, timeout=60)

    def load(k, slot):
        both.wait()
        return k

    one, other = (prefetched(3, load, Meter(), waits=True) for _ in range(2))
    assert list(zip(one, other, strict=True)) == [(0, 0), (1, 1), (2, 2)]
