"""Substitution with a stored factor, for any grid, resumed from whatever exists."""

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from dkrr.linalg import substitution
from dkrr.linalg.substitution import NEAR_TILES, Substitution, substitution_cost, substitution_tasks, subtract_product
from dkrr.runtime import Meter
from dkrr.tiles import TileGrid
from tests.linalg.systems import (
    MANY,
    RAGGED,
    empty_vectors,
    files_of,
    grids,
    positive_definite,
    remove_chunks,
    restore_chunks,
    run,
    tiles_of,
    vectors,
    waits_for,
)
from tests.oracles import naive_backward, naive_forward

TOLERANCE = {"rtol": 1e-11, "atol": 1e-12}


def make_job(folder, grid, m=2, *, transpose, dtype="float64"):
    """A factor (rounded to its dtype), right-hand sides, and the sweep that is still to do."""
    L = np.linalg.cholesky(positive_definite(grid.n)).astype(dtype).astype(np.float64)
    B = np.random.default_rng(1).standard_normal((grid.n, m))
    job = Substitution.resumable(
        tiles_of(folder, grid, L, dtype),
        right_sides=vectors(folder, grid, B),
        solution=empty_vectors(folder, grid, m),
        sums=empty_vectors(folder, grid, m),
        transpose=transpose,
    )
    return L, B, job


def tasks_of(job):
    return substitution_tasks(job, "x")


DTYPES = st.sampled_from(["float64", "float32"])


@settings(max_examples=50, deadline=None)
@given(grid=grids(), m=st.integers(1, 4), dtype=DTYPES, transpose=st.booleans())
def test_against_scipy(tmp_path_factory, grid, m, dtype, transpose):
    L, B, job = make_job(tmp_path_factory.mktemp("t"), grid, m, transpose=transpose, dtype=dtype)
    run(tasks_of(job))
    expected = scipy.linalg.solve_triangular(L, B, lower=True, trans=int(transpose))
    assert_allclose(job.solution.load(), expected, **TOLERANCE)


@settings(max_examples=40, deadline=None)
@given(grid=grids(), m=st.integers(1, 4), dtype=DTYPES, transpose=st.booleans(), data=st.data())
def test_in_memory(tmp_path_factory, grid, m, dtype, transpose, data):
    L, B, stored = make_job(tmp_path_factory.mktemp("t"), grid, m, transpose=transpose, dtype=dtype)
    cuts = {0, grid.n_tiles} | data.draw(st.sets(st.integers(0, grid.n_tiles)))
    X = B.copy()
    run(tasks_of(Substitution.in_memory(stored.factor, X, sorted(cuts), transpose=transpose)))
    assert_allclose(X, scipy.linalg.solve_triangular(L, B, lower=True, trans=int(transpose)), **TOLERANCE)


@pytest.mark.parametrize("grid", [TileGrid(1, 1, 1), TileGrid(19, 3, 3), TileGrid(23, 6, 2)], ids=str)
def test_naive_loops(tmp_path, grid):
    for transpose, naive in ((False, naive_forward), (True, naive_backward)):
        L, B, job = make_job(tmp_path, grid, transpose=transpose)
        run(tasks_of(job))
        assert_allclose(job.solution.load(), naive(L, B), **TOLERANCE)


@settings(max_examples=40, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 20), st.integers(1, 9), st.integers(1, 3)),
    entries=st.integers(1, 80),
    transpose=st.booleans(),
)
def test_a_panel_is_widened_in_pieces(shape, entries, transpose):
    rng, (h, w, m) = np.random.default_rng(0), shape
    panel = rng.standard_normal((h, w + 2)).astype(np.float32)[:, :w]  # rows further apart than they are long
    x, c = rng.standard_normal((h if transpose else w, m)), rng.standard_normal((w if transpose else h, m))
    expected = c - (panel.T if transpose else panel).astype(np.float64) @ x
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(substitution, "WIDENED_ENTRIES", entries)
        subtract_product(c, panel, x, transpose=transpose)
    assert_allclose(c, expected, **TOLERANCE)


def reads(key):
    """Tasks of all blocks whose results a task reads."""
    _, kind, q, *_ = key.split("-")
    q = int(q)
    near = max(q - NEAR_TILES, 0)
    if kind == "sum":
        return {f"x-solve-{s}" for s in range(near)}
    return {f"x-solve-{s}" for s in range(near, q)} | ({f"x-sum-{q}-0"} if near else set())


@pytest.mark.parametrize("transpose", [False, True])
class TestResume:
    def test_whatever_is_missing(self, tmp_path, transpose):
        _, _, job = make_job(tmp_path, MANY, transpose=transpose)
        run(tasks_of(job))
        before, complete_sums = files_of(job.solution), files_of(job.sums)

        @settings(max_examples=40, deadline=None)
        @given(blocks=st.sets(st.integers(0, 6)), sums=st.sets(st.integers(NEAR_TILES + 1, 6)))
        def check(blocks, sums):
            restore_chunks(job.solution, before)
            restore_chunks(job.sums, complete_sums)
            remove_chunks(job.solution, [(job.tiles(q)[0], 0) for q in blocks])
            remove_chunks(job.sums, [(job.tiles(q)[0], 0) for q in sums])
            tasks = tasks_of(job)
            assert {t.key for t in tasks} == {f"x-solve-{q}" for q in blocks} | {f"x-sum-{q}-0" for q in blocks & sums}
            for key, earlier in waits_for(tasks).items():
                assert reads(key) & {t.key for t in tasks} <= earlier, f"{key} may start too early"
            run(tasks)
            assert files_of(job.solution) == before
            assert tasks_of(job) == []

        check()

    def test_any_allowed_order(self, tmp_path, transpose):
        chance = np.random.default_rng(0)
        _, _, usual = make_job(tmp_path, MANY, transpose=transpose)
        run(tasks_of(usual))
        for _ in range(5):
            _, _, job = make_job(tmp_path, MANY, transpose=transpose)
            left, done = tasks_of(job), set()
            while left:
                task = chance.choice([t for t in left if done.issuperset(t.depends)])
                task.function(Meter(), *task.arguments)
                left.remove(task)
                done.add(task.key)
            assert files_of(job.solution) == files_of(usual.solution)


class TestCost:
    @pytest.mark.parametrize("dtype", ["float64", "float32"])
    @pytest.mark.parametrize("transpose", [False, True])
    def test_the_factor_is_read_once(self, tmp_path, transpose, dtype):
        _, _, job = make_job(tmp_path, RAGGED, m=3, transpose=transpose, dtype=dtype)
        tasks = tasks_of(job)
        record = run(tasks)
        cost = substitution_cost(RAGGED, 3, np.dtype(dtype).itemsize)
        assert (cost.element_seconds > 0) == (dtype == "float32")
        assert record.bytes_read == cost.read_bytes == sum(map(len, files_of(job.factor.array).values()))
        assert cost.n_tasks >= len(record.tasks)
        assert cost.written_bytes >= record.bytes_written * 0.8
        assert sum(t.flops for t in tasks) == pytest.approx(cost.gemm_flops / 2, rel=0.35)
