"""Wide clusters on paper, against cases that can be worked out by hand, and against what holds for every run."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import simulation
from benchmarks.clusters import TaskWork, WideCluster, promised_seconds, simulate, simulate_factorisation
from benchmarks.simulation import SimulatedCluster, TaskGraph, factorisation_graph
from dkrr.errors import PlanError
from dkrr.linalg.cholesky import cholesky_cost
from dkrr.planning import Rates
from dkrr.planning.schedule import TaskCosts
from dkrr.runtime import Task
from dkrr.tiles import TileGrid

COMPUTE_ONLY = TaskCosts(1e9, 1e9, 1e9, 1e9, 1e30, 1e30, 0.0, 0.0)
COSTS = TaskCosts(11e9, 7e9, 5e9, 3e9, 2e9, 1e9, 1e-9, 0.003)
NO_DELAYS = {"round_trip_seconds": 0.0, "scheduler_seconds": 0.0}


def run(tasks, cluster):
    """Tasks are (key, seconds or work, keys before, priority)."""
    graph = TaskGraph.of([Task(key, len, depends=tuple(before), priority=(p,)) for key, _, before, p in tasks])
    work = [w if isinstance(w, TaskWork) else TaskWork(w) for _, w, _, _ in tasks]
    return simulate(graph, work, cluster)


def factorisation(n_tiles, columns_per_task, cluster, costs=COMPUTE_ONLY, tile=100):
    return simulate_factorisation(TileGrid(n_tiles * tile, tile, tile), columns_per_task, costs, cluster)


def test_workers_start_one_after_another():
    outcome = run(
        [(str(k), 1.0, "", 0) for k in range(3)], WideCluster(3, start_seconds=10, start_spread_seconds=4, **NO_DELAYS)
    )
    # The first worker is free again before the second has come.
    assert outcome.starts == (10, 11, 12)
    assert outcome.seconds == 13


def test_transfers_share_the_store_evenly():
    """10 B/s for two: 20 bytes are moved when the smaller one is done, after which the other has all of it."""
    tasks = [("a", TaskWork(0.5, read_bytes=10), "", 0), ("b", TaskWork(0.5, read_bytes=30), "", 0)]
    assert run(tasks, WideCluster(2, store_read_bytes=10, **NO_DELAYS)).ends == (2, 4)
    assert run(tasks, WideCluster(2, store_write_bytes=10, **NO_DELAYS)).ends == (0.5, 0.5)
    assert run(tasks, WideCluster(2, worker_read_bytes=10, **NO_DELAYS)).ends == (1, 3)


def test_task_takes_the_longest_of_computing_reading_and_writing():
    for work, seconds in ((TaskWork(7.0, 10, 6), 7), (TaskWork(1.0, 10, 6), 5), (TaskWork(1.0, 4, 6), 3)):
        assert (
            run([("a", work, "", 0)], WideCluster(1, store_read_bytes=2, store_write_bytes=2, **NO_DELAYS)).seconds
            == seconds
        )


def test_mean_and_peak_rates():
    outcome = run([("a", TaskWork(10.0, 100, 7), "", 0), ("b", TaskWork(10.0, 0, 13), "a", 0)], WideCluster.ideal(1))
    assert outcome.mean_read_rate == pytest.approx(5) and outcome.peak_read_rate == pytest.approx(10)
    assert outcome.mean_write_rate == pytest.approx(1) and outcome.peak_write_rate == pytest.approx(1.3)


def test_tiny_bandwidth_makes_time_of_bytes():
    for direction in ("read", "write"):
        outcome = factorisation(9, 2, WideCluster(5, **{f"store_{direction}_bytes": 10.0}))
        moved = outcome.read_bytes if direction == "read" else outcome.written_bytes
        assert outcome.seconds == pytest.approx(moved / 10, rel=1e-6)


def test_bytes_are_those_of_the_factorisation():
    grid = TileGrid(1000, 100, 50)
    outcome = simulate_factorisation(grid, 3, COSTS, WideCluster(4))
    cost = cholesky_cost(grid, 0, 3)
    # The formula counts checksums as well.
    assert outcome.read_bytes == pytest.approx(cost.read_bytes, rel=1e-3)
    assert outcome.written_bytes == pytest.approx(cost.written_bytes, rel=1e-3)
    assert len(outcome.work) == cost.n_tasks


clusters = st.builds(
    WideCluster,
    slots=st.integers(1, 40),
    window_per_slot=st.integers(1, 4),
    round_trip_seconds=st.sampled_from([0.0, 0.01]),
    scheduler_seconds=st.sampled_from([0.0, 0.001]),
    store_read_bytes=st.sampled_from([float("inf"), 1e8]),
    worker_write_bytes=st.sampled_from([float("inf"), 1e8]),
    queue=st.sampled_from(["submission", "priority"]),
    straggler_sigma=st.sampled_from([0.0, 0.5]),
    slow_share=st.sampled_from([0.0, 0.3]),
    slow_factor=st.just(3.0),
    losses_per_worker_hour=st.sampled_from([0.0, 2000.0]),
    replacement_seconds=st.just(0.2),
    start_spread_seconds=st.sampled_from([0.0, 0.1]),
    random_state=st.integers(0, 99),
)


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 14), st.integers(0, 6), clusters)
def test_every_run_keeps_the_rules(n_tiles, columns_per_task, cluster):
    outcome = factorisation(n_tiles, columns_per_task, cluster, COSTS)
    steps, graph = factorisation_graph(n_tiles, columns_per_task)
    for k, followers in enumerate(graph.followers):
        assert outcome.ends[k] >= outcome.starts[k] + outcome.work[k].seconds - 1e-9
        for follower in followers:
            assert outcome.starts[follower] >= outcome.ends[k] + cluster.round_trip_seconds - 1e-9
    assert sum(graph.n_before) == sum(len(set(step.depends)) for step in steps)
    # No more tasks at once than slots: an end counts before a start at the same time.
    changes = sorted([(t, 1) for t in outcome.starts] + [(t, -1) for t in outcome.ends])
    running = 0
    for _, change in changes:
        running += change
        assert running <= cluster.slots
    assert outcome.seconds == max(outcome.ends)
    held = sum(end - start for start, end in zip(outcome.starts, outcome.ends, strict=True))
    assert outcome.busy_seconds == pytest.approx(held + outcome.lost_seconds)
    assert 0 < outcome.efficiency <= 1 + 1e-9
    assert outcome == factorisation(n_tiles, columns_per_task, cluster, COSTS)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 14), st.integers(0, 6), st.integers(1, 60))
def test_nothing_but_work_on_an_ideal_cluster(n_tiles, columns_per_task, slots):
    outcome = factorisation(n_tiles, columns_per_task, WideCluster.ideal(slots), COSTS)
    assert outcome.busy_seconds == pytest.approx(outcome.work_seconds)
    assert outcome.busy_seconds + outcome.idle_seconds == pytest.approx(slots * outcome.seconds)
    assert outcome.lost_tasks == outcome.lost_seconds == 0


@pytest.mark.parametrize("columns_per_task", [0, 1, 4])
def test_efficiency_falls_with_slots(columns_per_task):
    found = [factorisation(24, columns_per_task, WideCluster.ideal(2**k)).efficiency for k in range(9)]
    assert found[0] == pytest.approx(1)
    assert all(a > b for a, b in pairwise(found))


def test_no_trouble_changes_nothing():
    calm = factorisation(12, 3, WideCluster(6), COSTS)
    for seed in (1, 2):
        assert (
            factorisation(12, 3, WideCluster(6, slow_factor=9.0, replacement_seconds=1.0, random_state=seed), COSTS)
            == calm
        )


def test_slow_workers_take_longer():
    calm = factorisation(12, 3, WideCluster.ideal(6))
    trouble = WideCluster(6, window_per_slot=1, slow_share=1.0, slow_factor=2.0, **NO_DELAYS)
    assert factorisation(12, 3, trouble).seconds == pytest.approx(2 * calm.seconds)


@pytest.mark.parametrize("seed", range(5))
def test_trouble_only_lengthens(seed):
    calm = factorisation(16, 3, WideCluster(8), COSTS, tile=500)
    stragglers = factorisation(16, 3, WideCluster(8, straggler_sigma=0.5, random_state=seed), COSTS, tile=500)
    # E exp(σ|z|) = 2 exp(σ²/2) Φ(σ) = 1.567 for σ = 1/2.
    assert 1.3 < stragglers.busy_seconds / calm.busy_seconds < 1.9
    assert stragglers.seconds > calm.seconds
    losses = WideCluster(8, losses_per_worker_hour=1000.0, replacement_seconds=0.5, random_state=seed)
    lossy = factorisation(16, 3, losses, COSTS, tile=500)
    assert lossy.lost_tasks > 0 and lossy.seconds > calm.seconds
    assert lossy.busy_seconds == pytest.approx(calm.busy_seconds + lossy.lost_seconds)


def test_other_seeds_are_other_runs():
    found = {factorisation(9, 0, WideCluster(3, straggler_sigma=0.3, random_state=seed)).seconds for seed in range(4)}
    assert len(found) == 4


def test_all_workers_lost():
    with pytest.raises(PlanError, match="all workers were lost"):
        run([("a", 100.0, "", 0)], WideCluster(3, losses_per_worker_hour=36000.0))


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 14), st.integers(0, 6), st.integers(1, 40), st.sampled_from(["submission", "priority"]))
def test_without_trouble_it_is_the_plain_simulation(n_tiles, columns_per_task, slots, queue):
    found = factorisation(n_tiles, columns_per_task, WideCluster(slots, queue=queue), COSTS)
    grid = TileGrid(n_tiles * 100, 100, 100)
    plain = simulation.simulate_factorisation(grid, columns_per_task, COSTS, SimulatedCluster(slots, queue=queue))
    assert (found.starts, found.ends) == (plain.starts, plain.ends)


def test_estimate_counts_the_store():
    grid, costs = TileGrid(30 * 64, 64, 64), TaskCosts.of_rates(Rates(), 0.0)
    for direction in ("read", "write"):
        starved = replace(WideCluster.ideal(16), **{f"store_{direction}_bytes": 1e6})
        exact = simulate_factorisation(grid, 2, costs, starved).seconds
        assert promised_seconds(grid, 2, costs, starved) == pytest.approx(exact, rel=0.02)


@pytest.mark.parametrize(
    ("n_tiles", "workers", "expected"),
    [
        (32, 4, {1: 1.00, 4: 0.99, 8: 0.99, 16: 0.97, 0: 0.91}),
        (32, 16, {1: 0.95, 4: 0.94, 8: 0.92, 16: 0.77, 0: 0.46}),
        (64, 64, {1: 0.95, 4: 0.94, 8: 0.91, 16: 0.75, 0: 0.23}),
        (128, 256, {8: 0.91, 0: 0.11}),
        (128, 1024, {16: 0.20, 0: 0.03}),
    ],
)
def test_table_of_the_design(n_tiles, workers, expected):
    """Efficiency of list scheduling with nothing but arithmetic, as it was found before dkrr was written.

    There the smaller column went first; now the diagonal goes first, which is a little better with few workers.
    """
    for columns_per_task, efficiency in expected.items():
        assert factorisation(n_tiles, columns_per_task, WideCluster.ideal(workers)).efficiency == pytest.approx(
            efficiency, abs=0.04
        )
