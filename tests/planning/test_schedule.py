"""The simulated schedule against bounds that hold for any schedule."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dkrr.linalg.cholesky import tile_steps
from dkrr.planning import Rates, schedule
from dkrr.planning.schedule import factorisation_seconds, step_seconds
from dkrr.tiles import TileGrid

RATES = Rates()
COMPUTE_ONLY = Rates(gemm_flops=1e9, read_bytes=1e30, write_bytes=1e30, task_seconds=0.0)


def work(grid, segment, rates=RATES, form=0.5):
    return sum(step_seconds(step, grid, rates, form) for step in tile_steps(grid.n_tiles, segment))


def longest_chain(grid, segment, rates=RATES, form=0.5):
    ends = {}
    for step in tile_steps(grid.n_tiles, segment):  # column by column: what a step depends on comes before it
        ends[step.key] = step_seconds(step, grid, rates, form) + max((ends[k] for k in step.depends), default=0.0)
    return max(ends.values())


@st.composite
def cases(draw):
    panel = draw(st.integers(1, 300))
    tile = panel * draw(st.integers(1, 4))
    return TileGrid(draw(st.integers(1, 14 * tile)), tile, panel), draw(st.sampled_from([0, 1, 2, 5]))


@settings(max_examples=60, deadline=None)
@given(cases())
def test_one_slot_is_the_sum_of_all(case):
    assert factorisation_seconds(*case, 1, RATES, 0.5) == pytest.approx(work(*case))


@settings(max_examples=60, deadline=None)
@given(cases(), st.integers(1, 64))
def test_bounds_of_list_scheduling(case, slots):
    time = factorisation_seconds(*case, slots, RATES, 0.5)
    total, chain = work(*case), longest_chain(*case)
    assert time >= max(total / slots, chain) * (1 - 1e-9)
    # Graham 1966: no list schedule is worse than this.
    assert time <= (total / slots + (1 - 1 / slots) * chain) * (1 + 1e-9)


@settings(max_examples=40, deadline=None)
@given(cases(), st.integers(1, 32))
def test_more_slots_are_not_much_slower(case, slots):
    # List schedules have anomalies, but small ones.
    time = factorisation_seconds(*case, slots, RATES, 0.5)
    assert factorisation_seconds(*case, slots + 1, RATES, 0.5) <= 1.1 * time
    assert factorisation_seconds(*case, 2 * slots, RATES, 0.5) <= time * (1 + 1e-9)


@settings(max_examples=30, deadline=None)
@given(cases())
def test_enough_slots_take_the_longest_chain(case):
    assert factorisation_seconds(*case, 10_000, RATES, 0.5) == pytest.approx(longest_chain(*case))


@pytest.mark.parametrize("segment", [0, 4])
def test_beyond_the_simulation(monkeypatch, segment):
    grid = TileGrid(60 * 128, 128, 64)
    assert grid.n_tiles > schedule.SIMULATED_TILES
    for slots in (1, 4, 16, 64):
        guess = factorisation_seconds(grid, segment, slots, RATES, 0.0)
        with monkeypatch.context() as patch:
            patch.setattr(schedule, "SIMULATED_TILES", 100)
            exact = factorisation_seconds(grid, segment, slots, RATES, 0.0)
        assert 0.85 * exact <= guess <= 1.15 * exact


def test_segments_keep_many_workers_busy():
    """The table of the design: 32 tiles a side and 16 workers, computing only."""
    grid = TileGrid(32 * 100, 100, 100)
    efficiency = {
        s: work(grid, s, COMPUTE_ONLY, 0.0) / factorisation_seconds(grid, s, 16, COMPUTE_ONLY, 0.0) / 16
        for s in (0, 1, 8)
    }
    assert efficiency[1] > 0.93
    assert efficiency[8] > 0.9
    assert efficiency[0] < 0.6


def test_time_is_that_of_its_parts():
    grid, step = TileGrid(23 * 7, 23, 23), next(s for s in tile_steps(7, 0) if s.key == "L-4-2")
    tile = 8 * 23**2
    flops = step_seconds(step, grid, Rates(1.0, 1e30, 1e30, 0.0), 0.0)
    assert flops == pytest.approx(2 * 23 * 23 * 46 + 23**3)
    assert step_seconds(step, grid, Rates(1e30, 1.0, 1e30, 0.0), 0.0) == pytest.approx(2 * 2 * tile + tile)
    assert step_seconds(step, grid, Rates(1e30, 1e30, 1.0, 0.0), 0.0) == pytest.approx(tile)
    assert step_seconds(step, grid, Rates(1e30, 1e30, 1e30, 5.0), 3.0) == pytest.approx(8.0)
