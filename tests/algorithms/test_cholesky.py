"""The tiled factorisation: right, the same bits in every order, resumed from whatever exists."""

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from dkrr.errors import NotPositiveDefiniteError, StoreError
from dkrr.linalg.cholesky import PartialSums, cholesky_tasks, factor_tile
from dkrr.linalg.tile_steps import tile_steps
from dkrr.runtime import Meter, Task
from dkrr.tiles import TileGrid
from dkrr.tiles.paths import local_path
from tests.oracles import naive_cholesky, naive_forward
from tests.systems import (
    MANY,
    RAGGED,
    empty_tiles,
    factored,
    failing_at,
    files_of,
    flip_a_bit,
    grids,
    make_case,
    one_blas_thread,  # noqa: F401
    remove_chunks,
    run,
    run_in_any_order,
    waits_for,
)

TOLERANCE = {"float64": {"rtol": 1e-11, "atol": 1e-12}, "float32": {"rtol": 1e-4, "atol": 3e-6}}


def whole_factor(system):
    return system.factor.as_dask(symmetric=False).compute(scheduler="synchronous")


def files(system):
    return files_of(system.factor.array), None if system.forward is None else files_of(system.forward)


@given(grid=grids(), m=st.integers(0, 3), seed=st.integers(0, 3), columns_per_task=st.integers(0, 4), low=st.booleans())
def test_factor_and_forward_solution_are_those_of_naive_loops(tmp_path_factory, grid, m, seed, columns_per_task, low):
    m, dtype = (0, "float32") if low else (m, "float64")
    case = make_case(tmp_path_factory.mktemp("c"), grid, m, seed=seed, columns_per_task=columns_per_task, dtype=dtype)
    L = naive_cholesky(case.shifted)
    case.A[np.triu_indices(grid.n, 1)] = np.nan  # what is above the diagonal is not read
    run(cholesky_tasks(case.system))
    found = whole_factor(case.system)
    assert found.dtype == dtype
    assert_allclose(found, L, **TOLERANCE[dtype])
    for j in range(grid.n_tiles):
        tile = np.empty((grid.height(j),) * 2, dtype)
        case.system.factor.read_tile(j, j, tile)
        assert not np.triu(tile, 1).any()
    if m:
        assert_allclose(case.system.forward.load(), naive_forward(L, case.B), **TOLERANCE[dtype])


@given(n_tiles=st.integers(1, 12), columns_per_task=st.integers(0, 5))
def test_tasks_cover_every_sum_once_and_wait_for_what_they_read(n_tiles, columns_per_task):
    steps, grid, columns = list(tile_steps(n_tiles, columns_per_task)), TileGrid(3 * n_tiles - 1, 3, 1), {}
    tasks = [Task(s.key, factor_tile, (), s.depends, s.flops(grid), s.priority) for s in steps]
    known = {t.key for t in tasks}
    assert all(len(t.depends) <= 4 and known.issuperset(t.depends) for t in tasks), "O(N²) edges"
    before = waits_for(tasks)
    for step in steps:
        assert {f"L-{r}-{k}" for r, k in reads(step)} <= before[step.key]
        assert step.part == 0 or step.columns, "a task that subtracts nothing"
        assert not columns_per_task or len(step.columns) <= columns_per_task
        columns.setdefault((step.i, step.j), []).extend(step.columns)
        if step.is_last:
            assert columns[step.i, step.j] == list(range(step.j))
    assert set(columns) == {(i, j) for i in range(n_tiles) for j in range(i + 1)}
    assert sum(t.flops for t in tasks) == pytest.approx(grid.n**3 / 3)


def test_the_diagonal_comes_first(tmp_path):
    order = [t.key for t in run(cholesky_tasks(make_case(tmp_path, RAGGED).system)).tasks]
    assert order[:3] == ["L-0-0", "L-1-0", "L-1-1"]


@pytest.mark.parametrize("columns_per_task", [0, 1, 2, 3])
def test_order_repetition_segments_and_right_hand_sides_do_not_change_the_bits(tmp_path, columns_per_task):
    expected = files(factored(tmp_path, MANY, seed=2).system)
    for seed in range(2):
        other = make_case(tmp_path, MANY, seed=2, columns_per_task=columns_per_task).system
        assert len(other.partial) == (-(-6 // columns_per_task) - 1 if columns_per_task else 0)
        run_in_any_order(cholesky_tasks(other), random.Random(seed), most=2)
        assert files(other) == expected
    steps = list(tile_steps(MANY.n_tiles, columns_per_task))
    for step in random.Random(0).sample(steps, len(steps)):  # again, after all is done
        factor_tile(Meter(), other, step)
    assert files(other) == expected
    alone = factored(tmp_path, MANY, m=0, seed=2, columns_per_task=columns_per_task)
    assert files(alone.system)[0] == expected[0]
    low, cut = (
        factored(tmp_path, MANY, m=0, seed=2, columns_per_task=c, dtype="float32") for c in (0, columns_per_task)
    )
    assert files(low.system) == files(cut.system)


@pytest.mark.parametrize(
    ("row", "columns_per_task", "dtype"),
    [(0, 0, "float64"), (5, 1, "float64"), (11, 0, "float64"), (12, 1, "float64"), (36, 0, "float64"),
     (46, 1, "float64"), (0, 1, "float32"), (30, 0, "float32")],
)  # fmt: skip
def test_the_first_row_that_is_not_positive_is_named(tmp_path, row, columns_per_task, dtype):
    m = 2 if dtype == "float64" else 0
    system = make_case(tmp_path, RAGGED, m, failing_at(row, 47), 0, columns_per_task, dtype).system
    with pytest.raises(NotPositiveDefiniteError, match=f"row {row} ") as caught:
        run(cholesky_tasks(system))
    assert caught.value.row == row
    assert (row // 12, row // 12) not in system.factor.complete_tiles(), "a failed tile is not kept"


def test_what_float32_cannot_hold_is_an_error(tmp_path):
    beyond = np.diag(np.where(np.isin(np.arange(47), (30, 32)), 1e39, 1.0))
    with pytest.raises(NotPositiveDefiniteError, match="entry of row 30 leaves the range of float32"):
        run(cholesky_tasks(make_case(tmp_path, RAGGED, m=0, A=beyond, dtype="float32").system))
    # [[1, 1 − δ], [1 − δ, 1]] is singular once δ is below float32's precision.
    A = np.eye(47)
    A[1, 0] = A[0, 1] = 1.0 - 1e-9
    run(cholesky_tasks(make_case(tmp_path, RAGGED, m=0, A=A).system))
    with pytest.raises(NotPositiveDefiniteError, match="row 1 "):
        run(cholesky_tasks(make_case(tmp_path, RAGGED, m=0, A=A, dtype="float32").system))


def test_arrays_that_do_not_fit_together_are_refused(tmp_path):
    with pytest.raises(ValueError, match="takes no right-hand sides"):
        make_case(tmp_path, RAGGED, dtype="float32")
    with pytest.raises(ValueError, match="or none of them"):
        replace(make_case(tmp_path, RAGGED).system, forward=None)
    with pytest.raises(ValueError, match="differ in dtype"):
        replace(
            make_case(tmp_path, RAGGED, m=0).system, partial=(PartialSums(empty_tiles(tmp_path, RAGGED, "float32")),)
        )


def reads(step, with_forward=True):
    """Tiles of L that a task reads; those on the diagonal with their rows of Z, if there are right-hand sides."""
    tiles = {(r, k) for k in step.columns for r in (step.i, step.j)}
    tiles |= {(step.j, step.j)} if step.is_last and step.i != step.j else set()
    return tiles | ({(k, k) for k in step.columns} if with_forward and step.i == step.j else set())


def check_resume(folder, grid, chunks, rows=(), columns_per_task=0, sums=(), dtype="float64"):
    """Delete chunks of the factor, rows of the forward solution, tiles of the sums between; run what is left."""
    m = 2 if dtype == "float64" else 0
    system = factored(folder, grid, m=m, columns_per_task=columns_per_task, dtype=dtype).system
    before, rows = files(system), rows if m else ()
    remove_chunks(system.factor.array, chunks)
    if m:
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
        needed = {f"L-{a}-{b}" for a, b in reads(expected[key], m > 0) & missing}
        assert needed <= earlier, f"{key} may start before what it reads exists"
    run(tasks)
    assert files(system) == before
    assert cholesky_tasks(system) == []


CUTS = [(RAGGED, 0), (RAGGED, 1), (MANY, 0), (MANY, 2), (MANY, 3)]


@given(st.data(), st.sampled_from(CUTS), st.sampled_from(["float64", "float32"]))
def test_a_run_resumes_from_whatever_exists(tmp_path_factory, data, cut, dtype):
    grid, columns_per_task = cut
    existing = [(i, p) for i, j in grid.lower() for p in grid.panels(j)]
    chunks = data.draw(st.sets(st.sampled_from(existing), max_size=6))
    rows = data.draw(st.sets(st.integers(0, grid.n_tiles - 1), max_size=2))
    steps = [(s.part, s.i, s.j) for s in tile_steps(grid.n_tiles, columns_per_task) if not s.is_last]
    sums = data.draw(st.sets(st.sampled_from(steps), max_size=4)) if steps else ()
    check_resume(tmp_path_factory.mktemp("c"), grid, chunks, rows, columns_per_task, sums, dtype)


def test_a_run_resumes_where_missing_tiles_read_each_other(tmp_path):
    # (2, 2) needs (2, 0), which it does not reach by way of (2, 1), which exists.
    check_resume(tmp_path, RAGGED, {(2, 0), (2, 6)})
    check_resume(tmp_path, RAGGED, {(2, 6)}, {0})  # a diagonal tile reads the forward solution
    existing = {(i, p) for i, j in MANY.lower() for p in MANY.panels(j)}
    check_resume(tmp_path, MANY, existing, set(range(7)), 2, [(0, i, j) for i, j in MANY.lower() if j > 2])


@pytest.mark.parametrize("n_done", [1, 5, 9])
def test_a_killed_run_continues_after_its_last_task(tmp_path, n_done):
    case, expected = make_case(tmp_path, RAGGED), files(factored(tmp_path, RAGGED).system)
    for task in cholesky_tasks(case.system)[:n_done]:  # column by column is an allowed order
        task.function(Meter(), *task.arguments)
    left_over = local_path(case.system.factor.array.url) / "c.3.8.0af3.partial"
    left_over.write_bytes(b"cut off")
    left = cholesky_tasks(case.system)
    assert len(left) == 10 - n_done
    run(left)
    left_over.unlink()  # no chunk, and not taken for one
    assert files(case.system) == expected


def test_chunks_cut_short_are_computed_again_and_damaged_ones_stop_the_run(tmp_path):
    system = factored(tmp_path, RAGGED).system
    before = files(system)
    for name, size in (("c.1.0", 0), ("c.3.5", 100), ("c.3.9", 4 * 12 * 8)):  # by a power failure
        file = local_path(system.factor.array.url) / name
        file.write_bytes(file.read_bytes()[:size])
    tasks = cholesky_tasks(system)
    assert {t.key for t in tasks} == {"L-1-0", "L-3-1", "L-3-3"}
    run(tasks)
    assert files(system) == before
    for broken in (system, factored(tmp_path, RAGGED, m=0, dtype="float32").system):
        flip_a_bit(broken.factor.array, "c.2.1")
        remove_chunks(broken.factor.array, [(2, 6)])
        with pytest.raises(StoreError, match=r"c\.2\.1 .* checksum"):
            run(cholesky_tasks(broken))


def test_the_time_of_every_kind_of_work_is_recorded(tmp_path):
    kinds = run(cholesky_tasks(make_case(tmp_path, RAGGED).system)).seconds_by_kind()
    assert {"read", "gemm", "syrk", "potrf", "trsm", "forward", "write"} <= set(kinds)
    assert all(seconds >= 0 for seconds in kinds.values())
