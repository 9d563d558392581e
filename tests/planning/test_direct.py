"""Grids, memory and disk of the candidates."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dkrr.linalg.cholesky import cholesky_task_bytes, factor_bytes
from dkrr.linalg.normal import ROW_BLOCK_BYTES
from dkrr.linalg.tile_steps import MAX_TILES_PER_SIDE, PANEL_COLUMNS
from dkrr.planning.direct import Direct, dual_in_memory, primal_in_memory
from dkrr.planning.inputs import rows_at_once
from dkrr.planning.resources import PROCESS_MARGIN_BYTES
from dkrr.planning.tilings import fixed_grid, tile_grid
from tests.planning.problems import GIB, MIB, cluster, machine, problem


def tiled(what, where):
    """Candidates of the dual form with tiles on disk."""
    return [c for c in Direct.candidates(what, where, "dual") if c.execution != "memory"]


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 10**6), st.integers(1, 20_000))
def test_tile_grid(n, tile):
    grid = tile_grid(n, tile)
    assert grid.n == n
    assert grid.panel <= 2 * PANEL_COLUMNS
    assert grid.n_tiles <= -(-n // min(tile, n))
    assert grid.tile <= 1.1 * tile + 16, "about the size that was meant"
    if grid.panel > 8:
        assert grid.panel % 8 == 0
    if 1 < grid.n_tiles <= 8 and tile >= 256:
        assert grid.height(grid.n_tiles - 1) > 0.5 * grid.tile, "cut evenly"


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 10**5), st.integers(1, 20_000))
def test_fixed_grid(n, tile):
    grid = fixed_grid(n, tile)
    assert (grid.n, grid.tile) == (n, min(tile, n))
    assert grid.panel >= min(grid.tile, 64), "panels of a few columns would be slow"
    assert grid.panel <= PANEL_COLUMNS or grid.tile == grid.panel


def test_memory_with_distinct_primes():
    n, d, m = 10_007, 13, 3
    what, where = problem(n, d, n_targets=m), machine(7 * GIB, workers=3)
    whole = dual_in_memory(what, where)
    assert 150 * MIB + 4 * n**2 <= whole.peak_bytes < 150 * MIB + 8 * n**2
    assert whole.limit_bytes == 7 * GIB
    primal = primal_in_memory(problem(n, d, "linear", n_targets=m), where)
    assert primal.peak_bytes >= 150 * MIB + 8 * d**2 + 3 * 8 * n * m
    for c in tiled(what, where):
        # Fewer workers share what all of them have.
        assert c.limit_bytes == where.worker_limit_bytes * 3 // c.n_workers
        assert c.peak_bytes >= 160 * MIB + 8 * c.tiling.tile**2 + PROCESS_MARGIN_BYTES


def test_threads_of_a_worker_each_hold_per_tile():
    what = problem(10_007, 13, tile=1000)
    one, three = (tiled(what, cluster(threads=t))[0] for t in (1, 3))
    task = (one.peak_bytes - 160 * MIB - PROCESS_MARGIN_BYTES) / 1
    assert three.peak_bytes == 160 * MIB + PROCESS_MARGIN_BYTES + 3 * task
    assert task >= cholesky_task_bytes(fixed_grid(10_007, 1000), 1, 0)


def test_disk():
    n = 20_011
    grid = fixed_grid(n, 1000)
    base = tiled(problem(n, 13, tile=1000, x_is_shared=True), machine())[0]
    assert factor_bytes(grid) < base.disk_bytes < 1.02 * factor_bytes(grid)
    staged = tiled(problem(n, 13, tile=1000), machine())[0]
    assert staged.disk_bytes - base.disk_bytes == 8 * 13 * n, "the copy of X"
    # A store that is kept has a factor for every λ; a temporary one for one at a time.
    for keeps, count in ((False, 1), (True, 3)):
        several = problem(n, 13, tile=1000, x_is_shared=True, alphas=(1.0, 2.0, 3.0), keeps_store=keeps)
        assert tiled(several, machine())[0].disk_bytes == pytest.approx(count * base.disk_bytes, rel=0.01)


def test_the_number_of_tiles_is_bounded():
    for c in tiled(problem(1_000_003, 13), machine()):
        assert -(-1_000_003 // c.tiling.tile) <= MAX_TILES_PER_SIDE


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 10**6), st.integers(1, 10**5), st.integers(1, 10**5))
def test_row_block(n, d, tile):
    rows = rows_at_once(problem(n, d, "linear"), min(tile, d))
    assert 1 <= rows <= n
    assert rows == 1 or rows * (2 * 8 * d + 4 * 8 * min(tile, d)) <= ROW_BLOCK_BYTES


@pytest.mark.parametrize("kernel", ["linear", "rbf"])
def test_sparse_rows_are_priced_by_their_entries(kernel):
    # 500 rows of two million columns with 200 entries each: K, and panels with a pointer for each column.
    wide = problem(500, 2_000_000, kernel, is_sparse=True, row_bytes=2416, x_bytes=500 * 2416)
    found = dual_in_memory(wide, machine())
    assert found.peak_bytes < 400 * MIB
    assert found.seconds < 1
    more = dual_in_memory(problem(500, 2_000_000, kernel, is_sparse=True, row_bytes=24160), machine())
    assert found.peak_bytes < more.peak_bytes < 500 * MIB
    assert more.seconds > 3 * found.seconds
