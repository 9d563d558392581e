"""Applying (L Lᵀ)⁻¹ with a stored factor: in threads and as tasks, right, repeatable, at the stated cost."""

import pickle
import tracemalloc
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from dkrr.errors import StoreError
from dkrr.linalg.inverse import LocalFactor, SharedFactor, apply_bytes, apply_cost, block_cuts
from dkrr.linalg.substitution import Substitution, substitution_tasks
from dkrr.runtime import Meter, SerialExecutor
from dkrr.tiles import ChunkedArray, RunStore, TileGrid
from dkrr.tiles.paths import local_path
from tests.linalg.systems import (
    MANY,
    RAGGED,
    empty_vectors,
    factored,
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

WAYS = ["one thread", "three threads", "tasks"]
DTYPES = ["float64", "float32"]
NINE = TileGrid(n=52, tile=6, panel=2)
"""Nine tiles, more than the blocks of one slot."""


def preconditioner(way, factor, folder):
    if way == "tasks":
        store = RunStore(str(folder / "run.zarr"))
        store.open()
        return SharedFactor(factor, SerialExecutor(), store, "system-0", 1)
    return LocalFactor(factor, 1 if way == "one thread" else 3)


def tolerance(way, dtype):
    """Threads substitute in the precision of the factor, tasks in float64."""
    return 1e-11 if way == "tasks" or dtype == "float64" else 1e-4


def stored_factor(folder, grid, dtype):
    """Factor of a well-conditioned matrix, and the matrix that the rounded factor stands for."""
    L = np.linalg.cholesky(positive_definite(grid.n)).astype(dtype).astype(np.float64)
    return tiles_of(folder, grid, L, dtype), L @ L.T


class TestValues:
    @settings(max_examples=40, deadline=None)
    @given(grid=grids(), m=st.integers(1, 4), way=st.sampled_from(WAYS), dtype=st.sampled_from(DTYPES))
    def test_against_numpy(self, tmp_path_factory, grid, m, way, dtype):
        folder = tmp_path_factory.mktemp("f")
        factor, A = stored_factor(folder, grid, dtype)
        R = np.random.default_rng(1).standard_normal((grid.n, m))
        given = R.copy()
        found, expected = preconditioner(way, factor, folder).apply(R), np.linalg.solve(A, R)
        assert_allclose(found, expected, rtol=0, atol=tolerance(way, dtype) * abs(expected).max())
        assert_array_equal(R, given)

    @pytest.mark.parametrize("way", WAYS)
    def test_refinement_reaches_float64(self, tmp_path, way):
        case = factored(tmp_path, NINE, m=0, dtype="float32")
        apply = preconditioner(way, case.system.factor, tmp_path).apply
        B = np.random.default_rng(1).standard_normal((NINE.n, 3))
        X, errors = np.zeros_like(B), []
        for _ in range(4):
            X += apply(B - case.A @ X)
            errors.append(np.linalg.norm(B - case.A @ X) / np.linalg.norm(B))
        assert 1e-9 < errors[0] < 1e-5, "a float32 factor"
        assert errors[-1] < 1e-14, "float64 residuals"

    def test_symmetric(self, tmp_path):
        factor, _ = stored_factor(tmp_path, NINE, "float32")
        inverse = LocalFactor(factor, 2).apply(np.eye(NINE.n))
        assert_allclose(inverse, inverse.T, atol=1e-5 * abs(inverse).max())

    @pytest.mark.parametrize("way", WAYS)
    def test_orders_and_dtypes_of_the_residual(self, tmp_path, way):
        factor, A = stored_factor(tmp_path, RAGGED, "float32")
        R = np.random.default_rng(1).standard_normal((47, 6)).astype(np.float32)[:, ::2]
        for residual in (R, np.asfortranarray(R)):
            found = preconditioner(way, factor, tmp_path).apply(residual)
            assert found.dtype == np.float64
            assert_allclose(found, np.linalg.solve(A, R), atol=tolerance(way, "float32"))

    def test_threads_do_not_change_the_bits(self, tmp_path):
        factor, _ = stored_factor(tmp_path, NINE, "float32")
        R = np.random.default_rng(1).standard_normal((NINE.n, 2))
        one, *others = (LocalFactor(factor, n).apply(R) for n in (1, 2, 5, 5, 5))
        for other in others:
            assert_array_equal(other, one)


class TestDamage:
    @pytest.mark.parametrize("way", WAYS)
    def test_a_missing_strip(self, tmp_path, way):
        factor, _ = stored_factor(tmp_path, NINE, "float32")
        remove_chunks(factor.array, [(5, 4)])
        with pytest.raises(StoreError, match=r"c\.5\.4 .* not there"):
            preconditioner(way, factor, tmp_path).apply(np.ones((NINE.n, 1)))
        assert not list(tmp_path.glob("run.zarr/system-0/apply-*")), "nothing is left behind"

    @pytest.mark.parametrize("way", WAYS)
    def test_a_damaged_strip(self, tmp_path, way):
        factor, _ = stored_factor(tmp_path, NINE, "float32")
        file = local_path(factor.array.url) / "c.8.1"
        raw = bytearray(file.read_bytes())
        raw[7] ^= 1
        file.write_bytes(raw)
        with pytest.raises(StoreError, match=r"c\.8\.1 .* checksum"):
            preconditioner(way, factor, tmp_path).apply(np.ones((NINE.n, 1)))


def make_sweep(folder, grid, slots=1, m=2, *, transpose):
    factor, _ = stored_factor(folder, grid, "float32")
    cuts = block_cuts(grid.n_tiles, slots)
    shape = (max(1, len(cuts) - 3) * grid.n_tiles * grid.tile, m)
    B = np.random.default_rng(1).standard_normal((grid.n, m))
    return Substitution(
        factor=factor,
        right_sides=vectors(folder, grid, B),
        solution=empty_vectors(folder, grid, m),
        transpose=transpose,
        cuts=cuts,
        n_near=1,
        sums=ChunkedArray.create(f"{folder}/sums-{transpose}", shape, (grid.tile, m)),
    )


class TestSweep:
    @settings(max_examples=40, deadline=None)
    @given(st.integers(1, 60), st.integers(1, 40))
    def test_blocks(self, n_tiles, slots):
        cuts = block_cuts(n_tiles, slots)
        assert cuts[0] == 0 and cuts[-1] == n_tiles
        assert all(a < b for a, b in pairwise(cuts)), "no block is empty"
        assert len(cuts) - 1 <= 2 * slots + 4

    @pytest.mark.parametrize("transpose", [False, True])
    def test_every_panel_is_used_once(self, tmp_path, transpose):
        job = make_sweep(tmp_path, NINE, transpose=transpose)
        blocks = range(job.n_blocks)
        parts = [job.within(q) for q in blocks] + [job.between(q, s) for q in blocks for s in range(q)]
        everything = [(i, p) for i, j in NINE.lower() for p in NINE.panels(j)]
        assert sorted(panel for part in parts for panel in part) == sorted(everything)

    @pytest.mark.parametrize("transpose", [False, True])
    def test_any_allowed_order_gives_the_same_bits(self, tmp_path, transpose):
        job = make_sweep(tmp_path, NINE, transpose=transpose)
        tasks = substitution_tasks(job, "x")
        run(tasks)
        expected = files_of(job.solution)

        @settings(max_examples=8, deadline=None)
        @given(chance=st.randoms(use_true_random=False))
        def check(chance):
            restore_chunks(job.solution, {})
            restore_chunks(job.sums, {})
            left, done = list(tasks), set()
            while left:
                task = chance.choice([t for t in left if done.issuperset(t.depends)])
                for _ in range(chance.choice([1, 2])):  # Dask may run a task twice
                    task.function(Meter(), *task.arguments)
                left.remove(task)
                done.add(task.key)
            assert files_of(job.solution) == expected

        check()

    def test_travels_by_name(self, tmp_path):
        job = make_sweep(tmp_path, NINE, transpose=True)
        message = pickle.dumps(substitution_tasks(job, "x")[-1])
        assert len(message) < 2000
        pickle.loads(message)

    def test_sums_do_not_wait_for_the_newest_block(self, tmp_path):
        tasks = substitution_tasks(make_sweep(tmp_path, NINE, transpose=False), "x", ("before",))
        assert tasks[0].depends == ("before",)
        before = waits_for(tasks)
        assert before["x-sum-4-1"] == {"x-solve-0", "x-solve-1"}
        assert before["x-solve-4"] >= {f"x-solve-{s}" for s in range(4)} | {f"x-sum-4-{s}" for s in range(3)}


class TestCost:
    @pytest.mark.parametrize("way", WAYS)
    @pytest.mark.parametrize(
        ("grid", "dtype"),
        [(g, "float32") for g in (RAGGED, MANY, NINE, TileGrid(5, 20, 10), TileGrid(15, 10, 5))] + [(NINE, "float64")],
        ids=str,
    )
    def test_bytes(self, tmp_path, grid, way, dtype):
        factor, _ = stored_factor(tmp_path, grid, dtype)
        given = preconditioner(way, factor, tmp_path)
        given.apply(np.ones((grid.n, 3)))
        cost = apply_cost(grid, 3, np.dtype(dtype).itemsize, 1 if way == "tasks" else None)
        if grid.n > grid.tile:  # a single tile is stored without padding
            assert given.record.bytes_read == cost.read_bytes == 2 * sum(map(len, files_of(factor.array).values()))
        assert given.record.bytes_written == cost.written_bytes
        assert len(given.record.tasks) == cost.n_tasks
        assert (cost.element_seconds > 0) == (dtype == "float32")

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("way", WAYS)
    def test_memory(self, tmp_path, way, dtype):
        grid, n_threads = TileGrid(1500, 300, 60), {"one thread": 1, "three threads": 3, "tasks": 0}[way]
        factor = tiles_of(tmp_path, grid, np.tri(grid.n) / grid.n + np.eye(grid.n), dtype)
        given, R = preconditioner(way, factor, tmp_path), np.ones((grid.n, 3))
        given.apply(R)
        tracemalloc.start()
        try:
            given.apply(R)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        bound = apply_bytes(grid, 3, np.dtype(dtype).itemsize, n_threads)
        assert peak <= bound + 200_000
        assert bound <= 4e6 + 2.5 * peak
