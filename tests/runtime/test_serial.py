"""The order in which tasks run: dependencies first, then priorities, then the order of the list."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dkrr.runtime import Progress, SerialExecutor, Task
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
