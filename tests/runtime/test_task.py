"""What a task leaves behind."""

import os

import numpy as np
import threadpoolctl

from dkrr.runtime import Meter, RunRecord, Task, TaskRecord
from dkrr.runtime.task import execute, execute_on_worker, peak_resident_bytes, reset_peak


def record(key, worker="w", seconds=1.0, by_kind=None, read=0, written=0, peak=0):
    return TaskRecord(key, key.upper(), worker, 0.0, seconds, by_kind or {}, read, written, peak)


class TestMeter:
    def test_times_of_one_kind_add_up(self, monkeypatch):
        clock = iter([10.0, 11.0, 20.0, 22.5, 30.0, 30.25])
        monkeypatch.setattr("dkrr.runtime.task.time.perf_counter", lambda: next(clock))
        meter = Meter()
        for kind in ("read", "gemm", "read"):
            with meter.time(kind):
                pass
        assert meter.seconds == {"read": 1.25, "gemm": 2.5}


class TestExecute:
    def test_a_task_records_its_bytes_and_times(self):
        def function(meter, a, b):
            with meter.time("read"):
                meter.bytes_read += a
            meter.bytes_written += b
            return a + b

        found = execute(Task("k", function, (3, 5)))
        assert (found.key, found.value, found.bytes_read, found.bytes_written) == ("k", 8, 3, 5)
        assert found.worker == str(os.getpid())
        assert set(found.seconds_by_kind) == {"read"}
        assert found.seconds >= found.seconds_by_kind["read"] >= 0
        assert found.peak_bytes == 0, "the calling process is measured as a whole"

    def test_a_worker_reports_its_peak(self):
        found = execute_on_worker(Task("k", lambda meter, a, b: a + b, (3,)), 5)
        assert found.value == 8 and found.peak_bytes > 10 * 2**20

    def test_a_task_on_a_worker_has_one_blas_thread(self):
        def threads(meter):
            np.ones((2, 2)) @ np.ones((2, 2))
            return [pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"]

        with threadpoolctl.threadpool_limits(limits=2, user_api="blas"):
            assert set(execute_on_worker(Task("k", threads)).value) == {1}
            assert set(threads(None)) == {2}, "and only for the task"


class TestPeak:
    def test_sees_an_allocation_and_can_be_reset(self):
        size = 64 * 2**20
        reset_peak()
        before = peak_resident_bytes()
        np.ones(size // 8).sum()
        high = peak_resident_bytes()
        assert high - before > 0.9 * size
        reset_peak()
        assert high - peak_resident_bytes() > 0.5 * size


class TestRunRecord:
    def run(self):
        return RunRecord(
            seconds=10.0,
            tasks=[
                record("a", "w1", 4.0, {"read": 1.0, "gemm": 2.5}, read=3, written=5, peak=7),
                record("b", "w2", 6.0, {"read": 2.0}, read=11, written=13, peak=19),
                record("c", "w1", 2.0, {}, read=17, peak=23),
            ],
        )

    def test_a_run_sums_the_records_of_its_tasks(self):
        run = self.run()
        assert (run.bytes_read, run.bytes_written) == (31, 18)
        assert run.peak_bytes == 23
        assert run.peak_bytes_by_worker == {"w1": 23, "w2": 19}
        assert run.values() == {"a": "A", "b": "B", "c": "C"}

    def test_what_is_not_in_tasks_is_idle(self):
        # Two workers for ten seconds are twenty; twelve were inside tasks, of which 5.5 have a name.
        assert self.run().seconds_by_kind() == {"read": 3.0, "gemm": 2.5, "other": 6.5, "idle": 8.0}


def test_time_within_time_counts_once(monkeypatch):
    clock = iter([0.0, 1.0, 4.0, 4.0, 5.0, 10.0])
    monkeypatch.setattr("dkrr.runtime.task.time.perf_counter", lambda: next(clock))
    meter = Meter()
    with meter.time("multiply"):
        with meter.time("read"):
            pass
        with meter.time("read"):
            pass
    assert meter.seconds == {"multiply": 6.0, "read": 4.0}
