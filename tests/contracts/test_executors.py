"""What is promised of every executor of tasks: this process, threads, workers of Dask; a row adds another."""

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from dkrr.cluster import Meter, Progress, SerialExecutor, Task, ThreadExecutor
from dkrr.cluster.dask_executor import DaskExecutor
from dkrr.errors import NotPositiveDefiniteError
from dkrr.linalg.device_products import DeviceExecutor
from tests.gpus import MadeUpDevice

VECTORS = np.random.default_rng(0).standard_normal((11, 2))


@pytest.fixture(params=["serial", "threads", "gpu", "dask"])
def executor(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param == "dask":
        yield DaskExecutor(request.getfixturevalue("workers"))
        return
    makers = {"threads": lambda: ThreadExecutor(3), "gpu": lambda: DeviceExecutor(MadeUpDevice(), 8, 1e6)}
    with makers.get(request.param, lambda: nullcontext(SerialExecutor()))() as made:
        yield made


class SchedulerWatch(Progress):
    """Keeps what a run was advanced by."""

    def advance(self, flops: float) -> None:
        self.seen = [*getattr(self, "seen", []), flops]


def value_of(meter, value):
    meter.bytes_read += 1
    return value


def fail(meter, row):
    raise NotPositiveDefiniteError(f"the pivot of row {row} is not positive", row)


def fail_with_vectors(meter, shared):
    raise KeyError("mine")


def scaled(meter, k, shared):
    """A multiple of small numbers; floating-point sums of them depend on the order."""
    meter.bytes_read += k
    return shared * (1.0 + 1.0 / (k + 3.0)) ** 3


def is_none(meter, shared):
    return shared is None


def scaled_tasks(n):
    return [Task(f"t{k}", scaled, (k,), place=k % 3) for k in range(n)]


def graph(links, priorities):
    """Tasks that depend on earlier numbers only, in the reverse order."""
    return [
        Task(str(k), value_of, (k,), tuple({str(d) for d in before if d < k}), flops=k + 1.0, priority=priorities[k])
        for k, before in enumerate(links)
    ][::-1]


def test_values_and_records_are_those_of_the_tasks_whatever_depends_on_what(executor):
    rng, watch = np.random.default_rng(1), SchedulerWatch()
    tasks = graph(rng.integers(0, 20, (20, 3)).tolist(), [(int(p),) for p in rng.integers(0, 3, 20)])
    record = executor.run(tasks, watch)
    assert record.values() == {task.key: int(task.key) for task in tasks}
    assert record.bytes_read == len(record.tasks) == 20 and record.seconds > 0
    assert sorted(watch.seen) == sorted(task.flops for task in tasks)
    ends = {task.key: task.start for task in record.tasks}
    assert all(ends[d] <= ends[task.key] for task in tasks for d in task.depends)
    if type(executor) is SerialExecutor:  # what is ready, by priority and then by its place in the list
        done = [task.key for task in record.tasks]
        for k, key in enumerate(done):
            ready = [t for t in tasks if t.key not in done[:k] and {*t.depends} <= {*done[:k]}]
            assert key == min(ready, key=lambda t: (t.priority, tasks.index(t))).key
    assert executor.run([], Progress()).tasks == []
    assert executor.run([Task("b", value_of, (3,), ("a of an earlier run",))], Progress()).values() == {"b": 3}


def test_tasks_that_wait_for_each_other_are_refused(executor):
    tasks = [Task("a", value_of, (1,)), Task("b", value_of, (2,), ("a", "c")), Task("c", value_of, (3,), ("b",))]
    with pytest.raises(ValueError, match="2 tasks wait for each other"):
        executor.run(tasks, Progress())


def test_an_error_is_raised_as_itself_and_what_depends_on_it_does_not_run(executor):
    watch = SchedulerWatch()
    tasks = [Task("a", value_of, (2,), flops=1.0), Task("b", fail, (17,), ("a",), flops=1.0)]
    tasks += [Task(f"t{k}", value_of, (k,), ("b",), flops=7.0) for k in range(3)]
    with pytest.raises(NotPositiveDefiniteError, match="the pivot of row 17 is not positive") as caught:
        executor.run(tasks, watch)
    assert type(caught.value) is NotPositiveDefiniteError and caught.value.row == 17
    assert 7.0 not in watch.seen
    for call in (executor.map, executor.total):
        with pytest.raises(KeyError, match="mine"):
            call([*scaled_tasks(3), Task("bad", fail_with_vectors)], VECTORS)
    assert executor.run([Task("next", value_of, (3,))], Progress()).values() == {"next": 3}


@pytest.mark.parametrize("n", [1, 5, 17])  # one sum of one, two levels of sums on workers, and three
def test_a_pass_gives_values_in_the_order_of_its_tasks_and_their_sum_the_same_bits_again(executor, n):
    before, expected = VECTORS.copy(), [scaled(Meter(), k, VECTORS) for k in range(n)]
    record = executor.map(scaled_tasks(n), VECTORS)
    assert [task.key for task in record.tasks] == [f"t{k}" for k in range(n)]
    for task, value in zip(record.tasks, expected, strict=True):
        assert_array_equal(task.value, value)
    total, summed = executor.total(scaled_tasks(n), VECTORS)
    assert_allclose(total, sum(expected), rtol=1e-14)
    assert_array_equal(executor.total(scaled_tasks(n), VECTORS)[0], total)
    assert all(task.value is None for task in summed.tasks), "records are kept; sums must not be"
    assert record.bytes_read == summed.bytes_read == n * (n - 1) // 2
    total += 1.0  # the caller works in place
    assert_array_equal(before, VECTORS)
    assert executor.map([Task("a", is_none)], None).tasks[0].value is True
