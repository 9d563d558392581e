"""What prices depend on: tiles, rates, memory for the cache of files, and the schedule of a factorisation.

What every stage should cost is in the golden file of prices.
"""

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.simulation import SimulatedCluster, TaskCosts, simulate_factorisation
from dkrr.fitting.costs.tile_costs import PANEL_COLUMNS, factorisation_seconds, fixed_grid, tile_grid
from dkrr.linalg.cholesky import tile_steps
from dkrr.planning.resources import Rates, cold_fraction
from dkrr.store import TileGrid
from tests.planning.problems import GIB, cluster, machine


@given(st.integers(1, 10**6), st.integers(1, 20_000))
def test_tiles_cut_the_matrix_evenly_and_are_of_about_the_size_that_is_meant(n, tile):
    grid, fixed = tile_grid(n, tile), fixed_grid(n, tile)
    assert grid.n == n and grid.n_tiles <= -(-n // min(tile, n))
    assert grid.tile <= 1.1 * tile + 16 and grid.panel <= 2 * PANEL_COLUMNS
    assert grid.panel <= 8 or grid.panel % 8 == 0
    if 1 < grid.n_tiles <= 8 and tile >= 256:
        assert grid.height(grid.n_tiles - 1) > 0.5 * grid.tile
    assert (fixed.n, fixed.tile) == (n, min(tile, n))
    assert fixed.panel >= min(fixed.tile, 64), "panels of a few columns would be slow"
    assert fixed.panel <= PANEL_COLUMNS or fixed.tile == fixed.panel


# Rates


def test_faster_cores_compute_faster_and_read_as_fast_as_before():
    faster = Rates().faster(3.0)
    assert faster.gemm_flops == 3 * Rates().gemm_flops and faster.dense_flops == 3 * Rates().dense_flops
    assert faster.read_bytes == Rates().read_bytes


def test_what_the_cache_of_files_has_no_memory_for_is_read_at_the_rate_of_the_disk():
    rates = Rates(read_bytes=4e9, cold_read_bytes=0.5e9)
    assert [cold_fraction(n, 10 * GIB) for n in (0, GIB, 10 * GIB, 40 * GIB)] == [0.0, 0.0, 0.0, 0.75]
    assert cold_fraction(GIB, 0.0) == 1.0 and cold_fraction(1e300, inf) == 0.0
    assert rates.reading(0.0) is rates and rates.reading(1.0).read_bytes == pytest.approx(0.5e9)
    assert 1e9 / rates.reading(0.25).read_bytes == pytest.approx(0.75 / 4 + 0.25 / 0.5)
    assert Rates(read_bytes=0.1e9).reading(0.5).read_bytes == pytest.approx(0.1e9), "a disk is no faster than a cache"
    where = machine(4 * GIB, 3, memory_bytes=20 * GIB, local_baseline_bytes=GIB)
    assert where.cache_bytes(3, GIB) == 16 * GIB, "the calling process holds what it holds"
    assert where.cache_bytes(1, 5 * GIB, on_workers=False) == 15 * GIB
    assert where.cache_bytes(3, 9 * GIB) == 0 and machine().cache_bytes(3, GIB) == inf
    assert cluster(workers=8, memory_bytes=20 * GIB, n_hosts=3).cache_bytes(8, 2 * GIB) == 14 * GIB


# The closed formula for the time of a factorisation, against a simulation and bounds that hold for any schedule

RATES = Rates()


def step_seconds(step, grid, rates, form_seconds):
    return TaskCosts.of_rates(rates, form_seconds / grid.tile**2).seconds(step, grid)


def work(grid, columns_per_task):
    return sum(step_seconds(step, grid, RATES, 0.5) for step in tile_steps(grid.n_tiles, columns_per_task))


def longest_chain(grid, columns_per_task):
    ends = {}
    for step in tile_steps(grid.n_tiles, columns_per_task):  # column by column: what a step depends on comes before it
        ends[step.key] = step_seconds(step, grid, RATES, 0.5) + max((ends[k] for k in step.depends), default=0.0)
    return max(ends.values())


@st.composite
def cases(draw):
    panel = draw(st.integers(1, 300))
    tile = panel * draw(st.integers(1, 4))
    return TileGrid(draw(st.integers(1, 14 * tile)), tile, panel), draw(st.sampled_from([0, 1, 2, 5]))


@given(cases(), st.integers(2, 64))
def test_the_time_of_one_slot_is_all_work_and_that_of_many_at_least_the_longest_chain(case, slots):
    grid, columns = case
    costs, total, chain = TaskCosts.of_rates(RATES, 0.5 / grid.tile**2), work(*case), longest_chain(*case)
    is_even = grid.n % grid.tile == 0  # tiles count as equally large
    assert factorisation_seconds(*case, 1, RATES, 0.5) == pytest.approx(total, rel=1e-9 if is_even else 0.5)
    slow, least = replace(RATES, chain_seconds=0.5), chain if is_even else chain / 3
    assert factorisation_seconds(*case, slots, slow, 0.5) >= (least + 2 * 0.499 * (grid.n_tiles - 1)) * (1 - 1e-9)
    assert factorisation_seconds(*case, 1, slow, 0.5) == factorisation_seconds(*case, 1, RATES, 0.5)
    # The simulation is a list schedule, none of which is worse than this (Graham 1966).
    simulated = simulate_factorisation(grid, columns, costs, SimulatedCluster.ideal(slots)).seconds
    assert max(total / slots, chain) * (1 - 1e-9) <= simulated
    assert simulated <= (total / slots + (1 - 1 / slots) * chain) * (1 + 1e-9)


@pytest.mark.parametrize("n_tiles", [2, 3, 4, 6, 30])
@pytest.mark.parametrize("chain_seconds", [0.01, 0.05])
def test_a_plan_meets_the_simulation_of_dask(n_tiles, chain_seconds):
    """Also with few tiles, where delays between the columns are a large part of the time."""
    rates = replace(RATES, chain_seconds=chain_seconds)
    costs = TaskCosts.of_rates(rates, 0.0)
    for tile, slots in ((512, 2), (1024, 4), (1024, 16)):
        grid = TileGrid(n_tiles * tile, tile, tile // 2)
        cluster = SimulatedCluster(slots, round_trip_seconds=chain_seconds - 0.001)
        for columns_per_task in (0, 1, 4):
            exact = simulate_factorisation(grid, columns_per_task, costs, cluster).seconds
            assert 0.8 * exact <= factorisation_seconds(grid, columns_per_task, slots, rates, 0.0) <= 1.15 * exact
