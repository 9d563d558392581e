"""Which tasks are ready, what a task leaves behind, what a process keeps from one to the next, and threads."""

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import threadpoolctl

from dkrr.cluster import Meter, Progress, RunRecord, Task, TaskRecord, ThreadExecutor, resident
from dkrr.cluster.tasks import ReadyQueue, execute_on_worker
from dkrr.limits import peak_resident_bytes, reset_peak


def value_of(meter, value, *_):
    return value


def task(key, priority=()):
    return Task(key, value_of, (None,), priority=priority)


def blas_threads(*_):
    np.ones((2, 2)) @ np.ones((2, 2))
    return {pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"}


def test_two_tasks_of_one_name_are_refused_and_priorities_may_be_of_any_length():
    queue = ReadyQueue([task("z", priority=(1,)), task("y", priority=(0, 5)), task("x")])
    assert [queue.pop().key for _ in "xyz"] == ["x", "y", "z"]
    with pytest.raises(ValueError, match="same key"):
        ReadyQueue([task("a"), task("a")])


def test_tasks_in_threads_run_beside_each_other_with_one_blas_thread_each_and_end_with_the_block():
    together = threading.Barrier(3, timeout=20)

    def meet(meter, shared=None):
        together.wait()
        pools = blas_threads()
        together.wait()
        return pools

    tasks = [Task(f"t{k}", meet) for k in range(3)]
    # Not as a context: inside one of this thread's, threadpoolctl lets no other thread set a limit.
    limits = threadpoolctl.threadpool_limits(2, "blas")
    try:
        with ThreadExecutor(3) as threads:
            values = [t.value for t in threads.map(tasks, None).tasks]
            values += threads.run(tasks, Progress()).values().values()
        assert blas_threads() == {2}
    finally:
        limits.restore_original_limits()
    assert values == 6 * [{1}]
    assert not [t for t in threading.enumerate() if t.name.startswith("dkrr_")]
    with pytest.raises(RuntimeError):
        threads.map(tasks, None)


def test_times_of_one_kind_add_up_and_time_within_time_counts_once(monkeypatch):
    clock = iter([0.0, 1.0, 4.0, 4.0, 5.0, 10.0])
    monkeypatch.setattr("dkrr.cluster.tasks.time.perf_counter", lambda: next(clock))
    meter = Meter()
    with meter.time("multiply"):
        for _ in range(2):
            with meter.time("read"):
                pass
    assert meter.seconds == {"multiply": 6.0, "read": 4.0}


def test_a_task_on_a_worker_has_one_blas_thread_and_reports_its_peak():
    with threadpoolctl.threadpool_limits(limits=2, user_api="blas"):
        found = execute_on_worker(Task("k", blas_threads, (3,)), 5)
        assert found.value == {1} and found.peak_bytes > 10 * 2**20
        assert blas_threads() == {2}, "and only for the task"
    assert execute_on_worker(Task("k", lambda meter, a, b: a + b, (3,)), 5).value == 8


def test_the_peak_of_memory_sees_an_allocation_and_can_be_reset():
    size = 64 * 2**20
    reset_peak()
    before = peak_resident_bytes()
    np.ones(size // 8).sum()
    high = peak_resident_bytes()
    assert high - before > 0.9 * size
    reset_peak()
    assert high - peak_resident_bytes() > 0.5 * size


def test_a_run_sums_the_records_of_its_tasks_and_what_is_not_in_tasks_is_idle():
    tasks = [
        TaskRecord("a", "A", "w1", 0.0, 4.0, {"read": 1.0, "gemm": 2.5}, 3, 5, 7),
        TaskRecord("b", "B", "w2", 0.0, 6.0, {"read": 2.0}, 11, 13, 19),
        TaskRecord("c", "C", "w1", 0.0, 2.0, {}, 17, 0, 23),
    ]
    run = RunRecord(seconds=10.0, tasks=tasks)
    assert (run.bytes_read, run.bytes_written, run.peak_bytes) == (31, 18, 23)
    assert run.peak_bytes_by_worker == {"w1": 23, "w2": 19}
    assert run.values() == {"a": "A", "b": "B", "c": "C"}
    # Two workers for ten seconds are twenty; twelve were inside tasks, of which 5.5 have a name.
    assert run.seconds_by_kind() == {"read": 3.0, "gemm": 2.5, "other": 6.5, "idle": 8.0}


@pytest.fixture
def run():
    name = f"resident-{uuid.uuid4().hex}"
    yield name
    resident.forget(name)


def test_what_is_kept_is_made_once_and_names_and_runs_are_apart(run):
    other = run + "-other"
    for made in (["a"], ["not made"]):
        assert resident.get_or_create(run, ("x", 0), lambda made=made: made) == ["a"]
    resident.get_or_create(run, ("x", 1), lambda: "b")
    resident.get_or_create(other, ("x", 0), lambda: "c")
    assert [resident.get(run, ("x", k)) for k in (0, 1, 2)] == [["a"], "b", None]
    resident.forget(run)
    assert resident.get(run, ("x", 0)) is None
    assert resident.get(other, ("x", 0)) == "c", "another run's is not touched"
    resident.forget(other)


def test_an_error_keeps_nothing_and_holds_no_lock(run):
    with pytest.raises(ZeroDivisionError):
        resident.get_or_create(run, "x", lambda: 1 / 0)
    assert resident.get(run, "x") is None
    assert resident.get_or_create(run, "x", lambda: "second") == "second"


def test_threads_that_come_together_make_it_once_and_do_not_hold_up_others(run):
    made, barrier, done = [], threading.Barrier(9, timeout=20), threading.Event()

    def make():
        made.append(done.wait(20))
        return object()

    with ThreadPoolExecutor(8) as pool:
        found = [pool.submit(lambda: (barrier.wait(), resident.get_or_create(run, "x", make))[1]) for _ in range(8)]
        barrier.wait()
        assert resident.get_or_create(run, "fast", lambda: "at once") == "at once"
        done.set()
    assert made == [True] and len({id(future.result()) for future in found}) == 1


def test_there_is_room_for_as_many_as_are_allowed_until_they_are_forgotten(run):
    found = [resident.reserve(run, "group", k, 2) for k in (7, 7, 3, 5, 7, 3)]
    assert found == [True, True, True, False, True, True]
    assert resident.reserve(run, "rows", 5, 1), "another kind"
    assert not resident.reserve(run, "none", 0, 0)
    resident.forget(run)
    assert resident.reserve(run, "group", 5, 1)
