"""The simulation against cases that can be worked out by hand."""

import pytest

from benchmarks.simulation import SimulatedCluster, TaskGraph, simulate
from dkrr.runtime import Task

NO_DELAYS = {"round_trip_seconds": 0.0, "scheduler_seconds": 0.0}


def run(tasks, cluster):
    """Tasks are (key, seconds, keys before, priority)."""
    graph = TaskGraph.of([Task(key, len, depends=tuple(before), priority=(p,)) for key, _, before, p in tasks])
    return simulate(graph, [seconds for _, seconds, _, _ in tasks], cluster)


def test_one_slot_is_the_sum_of_all_times():
    found = run([("a", 2.0, "", 0), ("b", 3.0, "", 0), ("c", 5.0, "a", 0)], SimulatedCluster.ideal(1))
    assert found.seconds == 10 and sorted(found.starts) == [0, 2, 5]


def test_chain_waits_for_the_client_and_the_scheduler():
    tasks = [("a", 2.0, "", 0), ("b", 3.0, "a", 0), ("c", 5.0, "b", 0)]
    assert run(tasks, SimulatedCluster.ideal(4)).seconds == 10
    delayed = run(tasks, SimulatedCluster(4, round_trip_seconds=0.5, scheduler_seconds=0.25))
    assert delayed.seconds == pytest.approx(10 + 2 * 0.5 + 3 * 0.25)
    assert [end - start for start, end in zip(delayed.starts, delayed.ends, strict=True)] == pytest.approx([2, 3, 5])


def test_best_priority_first_and_the_first_of_equals():
    outcome = run([("a", 1.0, "", 2), ("b", 1.0, "", 1), ("c", 1.0, "", 1)], SimulatedCluster.ideal(1))
    assert outcome.starts == (2, 0, 1)


def test_what_is_on_the_scheduler_is_overtaken_only_by_priority():
    tasks = [("a", 1.0, "", 1), ("b", 1.0, "", 2), ("c", 1.0, "", 3), ("d", 1.0, "a", 0)]
    assert run(tasks, SimulatedCluster.ideal(1)).starts == (0, 2, 3, 1)
    assert run(tasks, SimulatedCluster(1, window_per_slot=2, **NO_DELAYS)).starts == (0, 1, 3, 2)
    # b is at the worker before the client has heard of a; c is not.
    assert run(tasks, SimulatedCluster(1, window_per_slot=3, **NO_DELAYS)).starts == (0, 1, 2, 3)
    assert run(tasks, SimulatedCluster(1, window_per_slot=3, queue="priority", **NO_DELAYS)).starts == (0, 1, 3, 2)


def test_scheduler_serves_one_task_after_another():
    outcome = run([(str(k), 0.5, "", 0) for k in range(4)], SimulatedCluster(4, scheduler_seconds=1.0))
    assert outcome.starts == (1, 2, 3, 4)


def test_depends_on_what_was_done_before():
    assert run([("a", 1.0, ("done earlier",), 0)], SimulatedCluster.ideal(1)).seconds == 1
