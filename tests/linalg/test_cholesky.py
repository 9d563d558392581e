"""The tiled factorisation: right, the same bits in every order, resumed from whatever exists, at the stated cost."""

import random
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from dkrr.errors import NotPositiveDefiniteError, StoreError
from dkrr.linalg.cholesky import (
    PartialSums,
    cholesky_cost,
    cholesky_task_bytes,
    cholesky_tasks,
    factor_bytes,
    factor_tile,
    partial_bytes,
)
from dkrr.linalg.tile_steps import tile_steps
from dkrr.runtime import Meter, Task
from dkrr.tiles import TileGrid
from dkrr.tiles.paths import local_path
from dkrr.tiles.shards import OVERHEAD_BYTES
from tests.linalg.systems import (
    MANY,
    RAGGED,
    empty_tiles,
    factored,
    failing_at,
    files_of,
    grids,
    make_case,
    remove_chunks,
    restore_chunks,
    run,
    waits_for,
)
from tests.oracles import naive_cholesky, naive_forward

TOLERANCE = {"rtol": 1e-11, "atol": 1e-12}


def whole_factor(system):
    return system.factor.as_dask(symmetric=False).compute(scheduler="synchronous")


class TestValues:
    @settings(max_examples=30, deadline=None)
    @given(grid=grids(), m=st.integers(1, 4), seed=st.integers(0, 3), columns_per_task=st.integers(0, 4))
    def test_against_numpy(self, tmp_path_factory, grid, m, seed, columns_per_task):
        case = factored(tmp_path_factory.mktemp("c"), grid, m=m, seed=seed, columns_per_task=columns_per_task)
        L = np.linalg.cholesky(case.shifted)
        assert_allclose(whole_factor(case.system), L, **TOLERANCE)
        assert_allclose(case.system.forward.load(), np.linalg.solve(L, case.B), **TOLERANCE)

    @pytest.mark.parametrize("grid", [TileGrid(1, 1, 1), TileGrid(3, 100, 10), TileGrid(17, 4, 2)], ids=str)
    def test_naive_loops(self, tmp_path, grid):
        case = factored(tmp_path, grid, seed=1)
        L = naive_cholesky(case.shifted)
        assert_allclose(whole_factor(case.system), L, **TOLERANCE)
        assert_allclose(case.system.forward.load(), naive_forward(L, case.B), **TOLERANCE)

    def test_above_the_diagonal_are_zeros(self, tmp_path):
        case = factored(tmp_path, RAGGED)
        for j in range(RAGGED.n_tiles):
            tile = np.empty((RAGGED.height(j),) * 2)
            case.system.factor.read_tile(j, j, tile)
            assert_array_equal(np.triu(tile, 1), np.zeros_like(tile))

    def test_the_upper_triangle_of_the_matrix_is_not_read(self, tmp_path):
        case = make_case(tmp_path, RAGGED)
        expected = np.linalg.cholesky(case.A)
        case.A[np.triu_indices(47, 1)] = np.nan
        run(cholesky_tasks(case.system))
        assert_allclose(whole_factor(case.system), expected, **TOLERANCE)


class TestTasks:
    @settings(max_examples=40, deadline=None)
    @given(n_tiles=st.integers(1, 12), columns_per_task=st.integers(0, 5))
    def test_dependencies_are_few_and_enough(self, n_tiles, columns_per_task):
        steps = list(tile_steps(n_tiles, columns_per_task))
        grid = TileGrid(n_tiles, 1, 1)
        tasks = [Task(s.key, factor_tile, (), s.depends, s.flops(grid), s.priority) for s in steps]
        known = {t.key for t in tasks}
        assert all(len(t.depends) <= 4 and known.issuperset(t.depends) for t in tasks), "O(N²) edges"
        for key, before in waits_for(tasks).items():
            step = next(s for s in steps if s.key == key)
            assert {f"L-{r}-{k}" for r, k in reads(step)} <= before

    @settings(max_examples=40, deadline=None)
    @given(n_tiles=st.integers(1, 12), columns_per_task=st.integers(0, 5))
    def test_segments_cover_every_sum_once(self, n_tiles, columns_per_task):
        columns = {}
        for step in tile_steps(n_tiles, columns_per_task):
            assert step.part == 0 or step.columns, "a task that subtracts nothing"
            assert not columns_per_task or len(step.columns) <= columns_per_task
            columns.setdefault((step.i, step.j), []).extend(step.columns)
            if step.is_last:
                assert columns[step.i, step.j] == list(range(step.j))
        assert set(columns) == {(i, j) for i in range(n_tiles) for j in range(i + 1)}

    @pytest.mark.parametrize("columns_per_task", [0, 2])
    def test_any_allowed_order_gives_the_same_bits(self, tmp_path, columns_per_task):
        usual = factored(tmp_path, MANY, columns_per_task=columns_per_task).system
        expected = files_of(usual.factor.array), files_of(usual.forward)

        @settings(max_examples=6, deadline=None)
        @given(st.randoms(use_true_random=False))
        def check(chance):
            other = make_case(tmp_path, MANY, columns_per_task=columns_per_task).system
            left, done = cholesky_tasks(other), set()
            while left:
                task = chance.choice([t for t in left if done.issuperset(t.depends)])
                task.function(Meter(), *task.arguments)
                left.remove(task)
                done.add(task.key)
            assert (files_of(other.factor.array), files_of(other.forward)) == expected

        check()

    @pytest.mark.parametrize("columns_per_task", [1, 2, 3])
    def test_segments_do_not_change_the_bits(self, tmp_path, columns_per_task):
        whole, cut = (
            factored(tmp_path, MANY, seed=2),
            factored(tmp_path, MANY, seed=2, columns_per_task=columns_per_task),
        )
        assert len(cut.system.partial) == -(-6 // columns_per_task) - 1
        assert files_of(cut.system.factor.array) == files_of(whole.system.factor.array)
        assert files_of(cut.system.forward) == files_of(whole.system.forward)

    @pytest.mark.parametrize("columns_per_task", [0, 2])
    def test_a_task_may_run_twice(self, tmp_path, columns_per_task):
        case = factored(tmp_path, MANY, columns_per_task=columns_per_task)
        before = files_of(case.system.factor.array), files_of(case.system.forward)
        steps = list(tile_steps(MANY.n_tiles, columns_per_task))
        for step in random.Random(0).sample(steps, len(steps)):
            factor_tile(Meter(), case.system, step)
        assert (files_of(case.system.factor.array), files_of(case.system.forward)) == before

    def test_the_diagonal_comes_first(self, tmp_path):
        order = [t.key for t in run(cholesky_tasks(make_case(tmp_path, RAGGED).system)).tasks]
        assert order[:3] == ["L-0-0", "L-1-0", "L-1-1"]

    @settings(max_examples=40, deadline=None)
    @given(grids(), st.integers(0, 4))
    def test_flops_add_up(self, grid, columns_per_task):
        total = sum(step.flops(grid) for step in tile_steps(grid.n_tiles, columns_per_task))
        assert total == pytest.approx(grid.n**3 / 3)


class TestFactorOnly:
    """Systems without right-hand sides: preconditioners."""

    @settings(max_examples=30, deadline=None)
    @given(grid=grids(), seed=st.integers(0, 3), columns_per_task=st.integers(0, 4))
    def test_float32_against_numpy(self, tmp_path_factory, grid, seed, columns_per_task):
        case = factored(
            tmp_path_factory.mktemp("c"), grid, m=0, seed=seed, columns_per_task=columns_per_task, dtype="float32"
        )
        L = whole_factor(case.system)
        assert L.dtype == np.float32
        assert_allclose(L, np.linalg.cholesky(case.shifted), rtol=1e-4, atol=3e-6)
        assert np.linalg.norm(L.astype(float) @ L.T.astype(float) - case.shifted) < 1e-5 * np.linalg.norm(case.shifted)

    @pytest.mark.parametrize("columns_per_task", [0, 2])
    def test_float64_has_the_bits_of_a_system_with_right_hand_sides(self, tmp_path, columns_per_task):
        alone, whole = (
            factored(tmp_path, MANY, m=0, columns_per_task=columns_per_task),
            factored(tmp_path, MANY, columns_per_task=columns_per_task),
        )
        assert files_of(alone.system.factor.array) == files_of(whole.system.factor.array)

    @pytest.mark.parametrize("columns_per_task", [1, 2, 3])
    def test_segments_do_not_change_the_bits(self, tmp_path, columns_per_task):
        whole, cut = (
            factored(tmp_path, MANY, m=0, seed=2, columns_per_task=s, dtype="float32") for s in (0, columns_per_task)
        )
        assert files_of(cut.system.factor.array) == files_of(whole.system.factor.array)

    @pytest.mark.parametrize("columns_per_task", [0, 2])
    def test_resume(self, tmp_path, columns_per_task):
        system = factored(tmp_path, MANY, m=0, columns_per_task=columns_per_task, dtype="float32").system
        before = files_of(system.factor.array)
        existing = [(i, p) for i, j in MANY.lower() for p in MANY.panels(j)]

        @settings(max_examples=12, deadline=None)
        @given(chunks=st.sets(st.sampled_from(existing), min_size=1, max_size=5))
        def check(chunks):
            restore_chunks(system.factor.array, before)
            remove_chunks(system.factor.array, chunks)
            missing = {(i, MANY.tile_of(p)) for i, p in chunks}
            left = cholesky_tasks(system)
            assert {t.arguments[1].key for t in left if t.arguments[1].is_last} == {f"L-{i}-{j}" for i, j in missing}
            for key, earlier in waits_for(left).items():
                step = next(t.arguments[1] for t in left if t.key == key)
                assert {f"L-{a}-{b}" for a, b in tiles_read(step) & missing} <= earlier
            run(left)
            assert files_of(system.factor.array) == before
            assert cholesky_tasks(system) == []

        check()

    def test_a_damaged_chunk_stops_the_run(self, tmp_path):
        case = factored(tmp_path, RAGGED, m=0, dtype="float32")
        flip_a_bit(case.system.factor, "c.2.1")
        remove_chunks(case.system.factor.array, [(2, 6)])
        with pytest.raises(StoreError, match=r"c\.2\.1 .* checksum"):
            run(cholesky_tasks(case.system))

    @pytest.mark.parametrize("row", [0, 11, 30])
    def test_not_positive_in_float32(self, tmp_path, row):
        case = make_case(tmp_path, RAGGED, m=0, A=failing_at(row, 47), dtype="float32")
        with pytest.raises(NotPositiveDefiniteError, match=f"row {row} ") as caught:
            run(cholesky_tasks(case.system))
        assert caught.value.row == row

    def test_first_entry_beyond_float32(self, tmp_path):
        A = np.diag(np.where(np.isin(np.arange(47), (30, 32)), 1e39, 1.0))
        with pytest.raises(NotPositiveDefiniteError, match="entry of row 30 leaves the range of float32"):
            run(cholesky_tasks(make_case(tmp_path, RAGGED, m=0, A=A, dtype="float32").system))

    def test_entries_that_float32_confuses(self, tmp_path):
        # [[1, 1 − δ], [1 − δ, 1]] is singular once δ is below float32's precision.
        A = np.eye(47)
        A[1, 0] = A[0, 1] = 1.0 - 1e-9
        run(cholesky_tasks(make_case(tmp_path, RAGGED, m=0, A=A).system))
        with pytest.raises(NotPositiveDefiniteError, match="row 1 "):
            run(cholesky_tasks(make_case(tmp_path, RAGGED, m=0, A=A, dtype="float32").system))

    def test_what_does_not_fit_together(self, tmp_path):
        with pytest.raises(ValueError, match="takes no right-hand sides"):
            make_case(tmp_path, RAGGED, dtype="float32")
        with pytest.raises(ValueError, match="or none of them"):
            replace(make_case(tmp_path, RAGGED).system, forward=None)
        with pytest.raises(ValueError, match="differ in dtype"):
            replace(
                make_case(tmp_path, RAGGED, m=0).system,
                partial=(PartialSums(empty_tiles(tmp_path, RAGGED, "float32")),),
            )


class TestNotPositiveDefinite:
    @pytest.mark.parametrize("columns_per_task", [0, 1])
    @pytest.mark.parametrize("row", [0, 5, 11, 12, 23, 30, 36, 46])
    def test_row(self, tmp_path, row, columns_per_task):
        case = make_case(tmp_path, RAGGED, A=failing_at(row, 47), columns_per_task=columns_per_task)
        with pytest.raises(NotPositiveDefiniteError, match=f"row {row} ") as caught:
            run(cholesky_tasks(case.system))
        assert caught.value.row == row
        assert (row // 12, row // 12) not in case.system.factor.complete_tiles(), "a failed tile is not kept"

    def test_the_shift_counts(self, tmp_path):
        case = make_case(tmp_path, RAGGED, A=failing_at(30, 47), seed=1)
        case.system.shift.fill(np.full((47, 1), 1.0))
        run(cholesky_tasks(case.system))
        assert_allclose(whole_factor(case.system), np.linalg.cholesky(case.A + np.eye(47)), **TOLERANCE)


def reads(step):
    """Tiles of L that a task reads; those on the diagonal with their rows of Z."""
    return tiles_read(step) | ({(k, k) for k in step.columns} if step.i == step.j else set())


def tiles_read(step):
    """The same of a system without right-hand sides."""
    tiles = {(r, k) for k in step.columns for r in (step.i, step.j)}
    return tiles | ({(step.j, step.j)} if step.is_last and step.i != step.j else set())


def flip_a_bit(matrix, name):
    file = local_path(matrix.array.url) / name
    raw = bytearray(file.read_bytes())
    raw[9] ^= 4
    file.write_bytes(raw)


class TestResume:
    def check(self, folder, grid, chunks, rows, columns_per_task=0, sums=()):
        """Delete chunks of the factor, rows of the forward solution, tiles of the sums between; run what is left."""
        system = factored(folder, grid, columns_per_task=columns_per_task).system
        before = files_of(system.factor.array), files_of(system.forward)
        remove_chunks(system.factor.array, chunks)
        remove_chunks(system.forward, [(k, 0) for k in rows])
        for part, i, j in sums:
            remove_chunks(system.partial[part].matrix.array, [(i, grid.panels(j)[0])])
        missing = {(i, grid.tile_of(p)) for i, p in chunks} | {(k, k) for k in rows}
        expected = {}
        for step in tile_steps(grid.n_tiles, columns_per_task):
            parts_left = range(step.part, len(system.partial))
            kept = any((step.i, step.j) in system.partial[p].matrix.complete_tiles() for p in parts_left)
            if (step.i, step.j) in missing and (step.is_last or not kept):
                expected[step.key] = step

        tasks = cholesky_tasks(system)
        assert {t.key for t in tasks} == set(expected), "existing tiles are not recomputed"
        for key, earlier in waits_for(tasks).items():
            needed = {f"L-{a}-{b}" for a, b in reads(expected[key]) & missing}
            assert needed <= earlier, f"{key} may start before what it reads exists"
        run(tasks)
        assert (files_of(system.factor.array), files_of(system.forward)) == before
        assert cholesky_tasks(system) == []

    @settings(max_examples=25, deadline=None)
    @given(st.data())
    def test_anything_may_be_missing(self, tmp_path_factory, data):
        grid, columns_per_task = data.draw(st.sampled_from([(RAGGED, 0), (RAGGED, 1), (MANY, 0), (MANY, 2), (MANY, 3)]))
        existing = [(i, p) for i, j in grid.lower() for p in grid.panels(j)]
        chunks = data.draw(st.sets(st.sampled_from(existing), max_size=6))
        rows = data.draw(st.sets(st.integers(0, grid.n_tiles - 1), max_size=2))
        steps = [(s.part, s.i, s.j) for s in tile_steps(grid.n_tiles, columns_per_task) if not s.is_last]
        sums = data.draw(st.sets(st.sampled_from(steps), max_size=4)) if steps else ()
        self.check(tmp_path_factory.mktemp("c"), grid, chunks, rows, columns_per_task, sums)

    def test_a_tile_and_one_that_reads_it_later(self, tmp_path):
        # (2, 2) needs (2, 0), which it does not reach by way of (2, 1), which exists.
        self.check(tmp_path, RAGGED, {(2, 0), (2, 6)}, set())

    def test_a_forward_solution_and_a_diagonal_tile_that_reads_it(self, tmp_path):
        self.check(tmp_path, RAGGED, {(2, 6)}, {0})

    def test_everything(self, tmp_path):
        existing = {(i, p) for i, j in MANY.lower() for p in MANY.panels(j)}
        self.check(tmp_path, MANY, existing, set(range(7)), 2, [(0, i, j) for i, j in MANY.lower() if j > 2])

    @pytest.mark.parametrize("n_done", [0, 1, 5, 9])
    def test_a_killed_run(self, tmp_path, n_done):
        case, whole = make_case(tmp_path, RAGGED), factored(tmp_path, RAGGED)
        tasks = cholesky_tasks(case.system)
        for task in tasks[:n_done]:  # column by column is an allowed order
            task.function(Meter(), *task.arguments)
        left_over = local_path(case.system.factor.array.url) / "c.3.8.0af3.partial"
        left_over.write_bytes(b"cut off")
        left = cholesky_tasks(case.system)
        assert len(left) == 10 - n_done
        run(left)
        left_over.unlink()  # no chunk, and not taken for one
        assert files_of(case.system.factor.array) == files_of(whole.system.factor.array)

    def test_chunks_cut_short_by_a_power_failure(self, tmp_path):
        case = factored(tmp_path, RAGGED)
        before = files_of(case.system.factor.array)
        for name, size in (("c.1.0", 0), ("c.3.5", 100), ("c.3.9", 4 * 12 * 8)):
            file = local_path(case.system.factor.array.url) / name
            file.write_bytes(file.read_bytes()[:size])
        tasks = cholesky_tasks(case.system)
        assert {t.key for t in tasks} == {"L-1-0", "L-3-1", "L-3-3"}
        run(tasks)
        assert files_of(case.system.factor.array) == before

    def test_a_damaged_chunk_stops_the_run(self, tmp_path):
        case = factored(tmp_path, RAGGED)
        flip_a_bit(case.system.factor, "c.2.1")
        remove_chunks(case.system.factor.array, [(2, 6)])
        with pytest.raises(StoreError, match=r"c\.2\.1 .* checksum"):
            run(cholesky_tasks(case.system))


class TestCost:
    GRIDS = (RAGGED, TileGrid(60, 12, 4), TileGrid(61, 7, 7), TileGrid(5, 5, 5), TileGrid(37, 20, 5))

    @pytest.mark.parametrize("grid", GRIDS, ids=str)
    def test_bytes(self, tmp_path, grid):
        m = 3
        case = make_case(tmp_path, grid, m=m)
        record = run(cholesky_tasks(case.system))
        cost = cholesky_cost(grid, m)
        formed = 8 * sum(grid.height(i) * grid.height(j) for i, j in grid.lower())  # MatrixTiles reads what it forms
        assert record.bytes_read - formed == cost.read_bytes
        assert cost.n_tasks == len(record.tasks)
        on_disk = sum(map(len, files_of(case.system.factor.array).values()))
        assert factor_bytes(grid) == on_disk
        assert record.bytes_written == on_disk + sum(map(len, files_of(case.system.forward).values()))
        assert cost.written_bytes == pytest.approx(record.bytes_written, rel=0.15)
        assert cost.gemm_flops == pytest.approx(grid.n**3 / 3 + grid.n**2 * m)

    @pytest.mark.parametrize("columns_per_task", [1, 2, 3])
    def test_bytes_of_parts(self, tmp_path, columns_per_task):
        m = 3
        case = make_case(tmp_path, MANY, m=m, columns_per_task=columns_per_task)
        record = run(cholesky_tasks(case.system))
        cost = cholesky_cost(MANY, m, columns_per_task)
        formed = 8 * sum(MANY.height(i) * MANY.height(j) for i, j in MANY.lower())
        assert cost.n_tasks == len(record.tasks) > 28
        tiles = [file for p in case.system.partial for file in files_of(p.matrix.array).values()]
        rows = [file for p in case.system.partial for file in files_of(p.forward).values()]
        assert partial_bytes(MANY, m, columns_per_task) == sum(map(len, tiles)) + sum(
            len(row) - OVERHEAD_BYTES for row in rows
        )
        assert cost.read_bytes == pytest.approx(record.bytes_read - formed, rel=0.08)
        assert cost.written_bytes == pytest.approx(record.bytes_written, rel=0.08)
        assert partial_bytes(MANY, m, 0) == 0

    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    @pytest.mark.parametrize("columns_per_task", [0, 2])
    @pytest.mark.parametrize("grid", [RAGGED, MANY], ids=str)
    def test_bytes_without_right_hand_sides(self, tmp_path, grid, columns_per_task, dtype):
        itemsize = np.dtype(dtype).itemsize
        case = make_case(tmp_path, grid, m=0, columns_per_task=columns_per_task, dtype=dtype)
        record = run(cholesky_tasks(case.system))
        cost = cholesky_cost(grid, 0, columns_per_task, itemsize)
        formed = 8 * sum(grid.height(i) * grid.height(j) for i, j in grid.lower())
        sums = sum(len(file) for p in case.system.partial for file in files_of(p.matrix.array).values())
        assert factor_bytes(grid, itemsize) == sum(map(len, files_of(case.system.factor.array).values()))
        assert partial_bytes(grid, 0, columns_per_task, itemsize) == sums
        assert record.bytes_read - formed == cost.read_bytes
        assert record.bytes_written == cost.written_bytes
        assert cost.n_tasks == len(record.tasks)
        assert cost.gemm_flops == pytest.approx(grid.n**3 / 3 * itemsize / 8), "rates are those of float64"

    def test_bytes_of_a_tile_larger_than_the_matrix(self, tmp_path):
        grid = TileGrid(5, 20, 10)
        case = factored(tmp_path, grid)
        assert sum(map(len, files_of(case.system.factor.array).values())) <= factor_bytes(grid)

    @pytest.mark.parametrize(("m", "dtype"), [(3, "float64"), (0, "float32")])
    @pytest.mark.parametrize("key", ["L-0-0", "L-2-0", "S-2-2-0", "L-2-1", "L-2-2"])
    def test_memory(self, tmp_path, key, m, dtype):
        grid = TileGrid(900, 300, 60)
        case = factored(tmp_path, grid, m=m, columns_per_task=1, dtype=dtype)
        (step,) = (s for s in tile_steps(3, 1) if s.key == key)
        tracemalloc.start()
        try:
            factor_tile(Meter(), case.system, step)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        bound = cholesky_task_bytes(grid, m, 0, np.dtype(dtype).itemsize)
        assert peak <= bound + 50_000
        assert bound <= 1.7 * peak, "a bound that is far too high wastes the user's memory"

    def test_memory_with_distinct_primes(self):
        grid = TileGrid(10_000, 13 * 101, 101)
        tile, panel = 8 * 1313**2, 8 * 1313 * 101
        assert cholesky_task_bytes(grid, 7, 0) == tile + 5 * panel + 4 * 8 * 1313 * 7
        assert cholesky_task_bytes(grid, 7, 10**9) == tile + 10**9 + 4 * 8 * 1313 * 7
        assert cholesky_task_bytes(grid, 0, 0, 4) == (tile + 5 * panel) / 2

    def test_kinds_of_time(self, tmp_path):
        kinds = run(cholesky_tasks(make_case(tmp_path, RAGGED).system)).seconds_by_kind()
        assert {"read", "gemm", "syrk", "potrf", "trsm", "forward", "write"} <= set(kinds)
        assert all(seconds >= 0 for seconds in kinds.values())
