"""The order in which tasks run: dependencies first, then priorities, then the order of the list."""

import threading
import uuid

import numpy as np
import pytest
import threadpoolctl
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from dkrr.runtime import Progress, SerialExecutor, Task, ThreadExecutor, resident
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


@st.composite
def graphs(draw):
    """Tasks that depend on earlier numbers only, in any order, with any priorities."""
    n = draw(st.integers(1, 12))
    tasks = [
        task(
            str(k),
            [str(d) for d in draw(st.sets(st.integers(0, k - 1), max_size=3))] if k else (),
            draw(st.tuples(st.integers(0, 2), st.integers(0, 2))),
            k,
        )
        for k in range(n)
    ]
    return draw(st.permutations(tasks))


class TestReadyQueue:
    @settings(max_examples=100, deadline=None)
    @given(graphs())
    def test_order_is_that_of_the_rule(self, tasks):
        done, expected = set(), []
        while len(expected) < len(tasks):
            ready = [t for t in tasks if t.key not in done and done.issuperset(t.depends)]
            best = min(ready, key=lambda t: (t.priority, tasks.index(t)))
            expected.append(best.key)
            done.add(best.key)
        queue = ReadyQueue(tasks)
        assert drained(queue) == expected
        assert queue.unfinished == 0

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

    def test_what_is_not_in_the_list_is_done(self):
        assert drained(ReadyQueue([task("b", ["a", "of an earlier run"])])) == ["b"]

    def test_two_of_one_name(self):
        with pytest.raises(ValueError, match="same key"):
            ReadyQueue([task("a"), task("a")])


class TestSerialExecutor:
    def test_nothing(self):
        record = SerialExecutor().run([], Progress())
        assert record.tasks == [] and record.seconds >= 0

    @settings(max_examples=30, deadline=None)
    @given(graphs())
    def test_values(self, tasks):
        record = SerialExecutor().run(tasks, Progress())
        assert record.values() == {t.key: int(t.key) for t in tasks}
        assert [t.key for t in record.tasks] == drained(ReadyQueue(tasks))

    @pytest.mark.parametrize(
        ("tasks", "count"),
        [([task("a", ["a"])], 1), ([task("a"), task("b", ["a", "c"]), task("c", ["b"]), task("d", ["c"])], 3)],
        ids=["itself", "each other"],
    )
    def test_circle(self, tasks, count):
        with pytest.raises(ValueError, match=f"{count} tasks wait for each other"):
            SerialExecutor().run(tasks, Progress())

    def test_an_error_stops_the_run(self):
        def fail(meter):
            raise KeyError("mine")

        seen = []
        tasks = [Task("a", lambda meter: seen.append("a")), Task("b", fail, depends=("a",)),
                 Task("c", lambda meter: seen.append("c"), depends=("b",))]  # fmt: skip
        with pytest.raises(KeyError, match="mine"):
            SerialExecutor().run(tasks, Progress())
        assert seen == ["a"]

    def test_progress_is_weighted_by_flops(self):
        class Recorder(Progress):
            def __init__(self):
                self.seen = []

            def advance(self, flops):
                self.seen.append(flops)

        progress = Recorder()
        SerialExecutor().run([Task("a", value_of, (1,), flops=3.0), Task("b", value_of, (1,), flops=5.0)], progress)
        assert progress.seen == [3.0, 5.0]


def scaled(meter, k, shared):
    """A product of small numbers of its own; floating-point sums of them depend on the order."""
    meter.bytes_read += k
    return shared * (1.0 + 1.0 / (k + 3.0)) ** 3


def tasks_of(n):
    return [Task(f"t{k}", scaled, (k,), place=k % 3) for k in range(n)]


VECTORS = np.random.default_rng(0).standard_normal((11, 2))


@pytest.fixture(params=["serial", "threads"])
def executor(request):
    if request.param == "serial":
        yield SerialExecutor()
    else:
        with ThreadExecutor(3) as threads:
            yield threads


class TestMapAndTotal:
    @pytest.mark.parametrize("n", [1, 4, 17])
    def test_map_is_in_the_order_of_the_tasks(self, executor, n):
        record = executor.map(tasks_of(n), VECTORS)
        assert [t.key for t in record.tasks] == [f"t{k}" for k in range(n)]
        for k, task in enumerate(record.tasks):
            assert_array_equal(task.value, VECTORS * (1.0 + 1.0 / (k + 3.0)) ** 3)
        assert record.bytes_read == n * (n - 1) // 2
        assert record.seconds > 0

    @pytest.mark.parametrize("n", [1, 2, 4, 5, 17])
    def test_total(self, executor, n):
        before = VECTORS.copy()
        total, record = executor.total(tasks_of(n), VECTORS)
        expected = VECTORS * (1.0 + 1.0 / 3.0) ** 3
        for k in range(1, n):
            expected = expected + VECTORS * (1.0 + 1.0 / (k + 3.0)) ** 3
        assert_array_equal(total, expected, err_msg="the same order gives the same bits")
        assert all(t.value is None for t in record.tasks), "records are kept; sums must not be"
        assert len(record.tasks) == n and record.bytes_read == n * (n - 1) // 2
        assert_array_equal(before, VECTORS)

    def test_nothing_shared_is_not_none(self, executor):
        record = executor.map([Task("a", lambda meter, shared: shared is None)], None)
        assert record.tasks[0].value is True

    def test_an_error_is_raised(self, executor):
        with pytest.raises(ZeroDivisionError):
            executor.total([*tasks_of(3), Task("bad", lambda meter, shared: 1 / 0)], VECTORS)
        assert len(executor.map(tasks_of(2), VECTORS).tasks) == 2, "the executor still works"

    def test_forget(self, executor):
        run = f"run-{uuid.uuid4().hex}"
        executor.map([Task("keep", lambda meter, shared: resident.kept(run, "x", lambda: 3))], None)
        assert resident.found(run, "x") == 3
        executor.forget(run)
        assert resident.found(run, "x") is None


class TestThreadExecutor:
    @settings(max_examples=20, deadline=None)
    @given(graphs())
    def test_run_is_as_serial(self, tasks):
        with ThreadExecutor(3) as threads:
            record = threads.run(tasks, Progress())
        assert record.values() == {t.key: int(t.key) for t in tasks}

    def test_run_without_dependencies(self):
        class Recorder(Progress):
            done = 0.0

            def advance(self, flops):
                self.done += flops

        tasks, progress = [Task(f"t{k}", value_of, (k,), flops=k) for k in range(20)], Recorder()
        with ThreadExecutor(4) as threads:
            record = threads.run(tasks, progress)
        assert [(t.key, t.value) for t in record.tasks] == [(f"t{k}", k) for k in range(20)]
        assert progress.done == 190

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
