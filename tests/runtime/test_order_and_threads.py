"""Which tasks are ready, and threads that have one BLAS thread each and end with their block."""

import threading

import numpy as np
import pytest
import threadpoolctl

from dkrr.runtime import Progress, Task, ThreadExecutor
from dkrr.runtime.serial import ReadyQueue


def value_of(meter, value):
    return value


def task(key, depends=(), priority=(), value=None):
    return Task(key, value_of, (value,), tuple(depends), priority=priority)


def drained(queue):
    order = []
    while queue:
        order.append(queue.pop().key)
        queue.complete(order[-1])
    return order


class TestReadyQueue:
    def test_ready_only_when_the_last_dependency_is_done(self):
        queue = ReadyQueue([task("a"), task("b"), task("c", ["a", "b", "a"])])
        assert [queue.pop().key, queue.pop().key, bool(queue)] == ["a", "b", False]
        queue.complete("b")
        assert not queue
        queue.complete("a")
        assert queue.pop().key == "c"
        assert queue.unfinished == 1

    def test_shorter_priorities_compare(self):
        assert drained(ReadyQueue([task("z", priority=(1,)), task("y", priority=(0, 5)), task("x")])) == ["x", "y", "z"]

    def test_two_tasks_of_one_name_are_refused(self):
        with pytest.raises(ValueError, match="same key"):
            ReadyQueue([task("a"), task("a")])


def of_vectors(meter, k, shared):
    return k * shared


def tasks_of(n):
    return [Task(f"t{k}", of_vectors, (k,), place=k % 3) for k in range(n)]


VECTORS = np.random.default_rng(0).standard_normal((11, 2))


class TestThreadExecutor:
    def test_tasks_run_beside_each_other_with_one_blas_thread_each(self):
        together = threading.Barrier(3, timeout=20)

        def meet(meter, shared):
            together.wait()
            pools = {p["num_threads"] for p in threadpoolctl.threadpool_info() if p["user_api"] == "blas"}
            together.wait()
            return pools, threading.current_thread().name

        def meet_alone(meter):
            return meet(meter, None)

        # Not as a context: inside one of this thread's, threadpoolctl lets no other thread set a limit.
        limits = threadpoolctl.threadpool_limits(2, "blas")
        try:
            with ThreadExecutor(3) as threads:
                values = [t.value for t in threads.map([Task(f"t{k}", meet) for k in range(3)], None).tasks]
                values += threads.run([Task(f"t{k}", meet_alone) for k in range(3)], Progress()).values().values()
            after = {p["num_threads"] for p in threadpoolctl.threadpool_info() if p["user_api"] == "blas"}
        finally:
            limits.restore_original_limits()
        assert all(pools == {1} for pools, _ in values), values
        assert all(name.startswith("dkrr") for _, name in values)
        assert after == {2}

    def test_threads_end_with_the_block(self):
        with ThreadExecutor(3) as threads:
            threads.map(tasks_of(9), VECTORS)
        assert not [t for t in threading.enumerate() if t.name.startswith("dkrr_")]
        with pytest.raises(RuntimeError):
            threads.map(tasks_of(2), VECTORS)
