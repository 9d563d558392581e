"""Substitution with a stored factor, for any grid, resumed from whatever is there."""

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from dkrr.linalg import triangular
from dkrr.linalg.triangular import (
    LOOK_AHEAD,
    Substitution,
    backward_tasks,
    forward_tasks,
    substitution_cost,
    subtract_product,
)
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
    run,
    tiles_of,
    vectors,
    waits_for,
)
from tests.oracles import naive_backward, naive_forward

TOLERANCE = {"rtol": 1e-11, "atol": 1e-12}


def make_job(folder, grid, m=2, *, backward, dtype="float64"):
    """A factor (rounded to its dtype), right-hand sides, and the job that is still to do."""
    L = np.linalg.cholesky(positive_definite(grid.n)).astype(dtype).astype(np.float64)
    B = np.random.default_rng(1).standard_normal((grid.n, m))
    job = Substitution(
        factor=tiles_of(folder, grid, L, dtype),
        right_sides=vectors(folder, grid, B),
        partial=empty_vectors(folder, grid, m) if backward else None,
        solution=empty_vectors(folder, grid, m),
    )
    return L, B, job


DTYPES = st.sampled_from(["float64", "float32"])


@settings(max_examples=40, deadline=None)
@given(grid=grids(), m=st.integers(1, 4), dtype=DTYPES)
def test_forward(tmp_path_factory, grid, m, dtype):
    L, B, job = make_job(tmp_path_factory.mktemp("t"), grid, m, backward=False, dtype=dtype)
    run(forward_tasks(job))
    assert_allclose(job.solution.load(), scipy.linalg.solve_triangular(L, B, lower=True), **TOLERANCE)


@settings(max_examples=40, deadline=None)
@given(grid=grids(), m=st.integers(1, 4), dtype=DTYPES)
def test_backward(tmp_path_factory, grid, m, dtype):
    L, B, job = make_job(tmp_path_factory.mktemp("t"), grid, m, backward=True, dtype=dtype)
    run(backward_tasks(job))
    assert_allclose(job.solution.load(), scipy.linalg.solve_triangular(L, B, lower=True, trans="T"), **TOLERANCE)


@pytest.mark.parametrize("grid", [TileGrid(1, 1, 1), TileGrid(19, 3, 3), TileGrid(23, 6, 2)], ids=str)
def test_naive_loops(tmp_path, grid):
    L, B, job = make_job(tmp_path, grid, backward=False)
    run(forward_tasks(job))
    assert_allclose(job.solution.load(), naive_forward(L, B), **TOLERANCE)
    L, B, job = make_job(tmp_path, grid, backward=True)
    run(backward_tasks(job))
    assert_allclose(job.solution.load(), naive_backward(L, B), **TOLERANCE)


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
        patch.setattr(triangular, "WIDENED_ENTRIES", entries)
        subtract_product(c, panel, x, transpose=transpose)
    assert_allclose(c, expected, **TOLERANCE)


def forward_reads(key):
    j = int(key.split("-")[1])
    return {f"forward-{k}" for k in range(j)}


def backward_reads(key, n_tiles):
    kind, j = key.split("-")
    j, near = int(j), min(int(j) + 1 + LOOK_AHEAD, n_tiles)
    if kind == "far":
        return {f"near-{i}" for i in range(near, n_tiles)}
    return {f"near-{i}" for i in range(j + 1, near)} | ({f"far-{j}"} if near < n_tiles else set())


class TestResume:
    @settings(max_examples=30, deadline=None)
    @given(st.data())
    def test_forward(self, tmp_path_factory, data):
        _, _, job = make_job(tmp_path_factory.mktemp("t"), MANY, backward=False)
        run(forward_tasks(job))
        before = files_of(job.solution)
        rows = data.draw(st.sets(st.integers(0, 6)))
        remove_chunks(job.solution, [(k, 0) for k in rows])
        tasks = forward_tasks(job)
        assert {t.key for t in tasks} == {f"forward-{k}" for k in rows}
        for key, earlier in waits_for(tasks).items():
            assert forward_reads(key) & {t.key for t in tasks} <= earlier, f"{key} may start too early"
        run(tasks)
        assert files_of(job.solution) == before

    @settings(max_examples=40, deadline=None)
    @given(st.data())
    def test_backward(self, tmp_path_factory, data):
        _, _, job = make_job(tmp_path_factory.mktemp("t"), MANY, backward=True)
        run(backward_tasks(job))
        before = files_of(job.solution)
        rows, sums = data.draw(st.sets(st.integers(0, 6))), data.draw(st.sets(st.integers(0, 6 - 1 - LOOK_AHEAD)))
        remove_chunks(job.solution, [(k, 0) for k in rows])
        remove_chunks(job.partial, [(k, 0) for k in sums])
        tasks = backward_tasks(job)
        assert {t.key for t in tasks} == {f"near-{k}" for k in rows} | {f"far-{k}" for k in rows & sums}
        for key, earlier in waits_for(tasks).items():
            assert backward_reads(key, 7) & {t.key for t in tasks} <= earlier, f"{key} may start too early"
        run(tasks)
        assert files_of(job.solution) == before
        assert backward_tasks(job) == []

    def test_any_allowed_order_of_the_backward_sweep(self, tmp_path):
        chance = np.random.default_rng(0)
        _, _, usual = make_job(tmp_path, MANY, backward=True)
        run(backward_tasks(usual))
        for _ in range(5):
            _, _, job = make_job(tmp_path, MANY, backward=True)
            left, done = backward_tasks(job), set()
            while left:
                task = chance.choice([t for t in left if done.issuperset(t.depends)])
                task.function(Meter(), *task.arguments)
                left.remove(task)
                done.add(task.key)
            assert files_of(job.solution) == files_of(usual.solution)


class TestCost:
    @pytest.mark.parametrize("dtype", ["float64", "float32"])
    @pytest.mark.parametrize("backward", [False, True])
    def test_the_factor_is_read_once(self, tmp_path, backward, dtype):
        _, _, job = make_job(tmp_path, RAGGED, m=3, backward=backward, dtype=dtype)
        tasks = backward_tasks(job) if backward else forward_tasks(job)
        record = run(tasks)
        cost = substitution_cost(RAGGED, 3, np.dtype(dtype).itemsize)
        assert (cost.element_seconds > 0) == (dtype == "float32")
        assert record.bytes_read == cost.read_bytes == sum(map(len, files_of(job.factor.array).values()))
        assert cost.n_tasks >= len(record.tasks)
        assert cost.written_bytes >= record.bytes_written * 0.8
        assert sum(t.flops for t in tasks) == pytest.approx(cost.gemm_flops / 2, rel=0.35)
