"""The executors of the calling process: one task after another (small runs, and the oracle in tests), or in threads."""

import heapq
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, Self

from dkrr.runtime import resident
from dkrr.runtime.progress import Progress
from dkrr.runtime.task import RunRecord, Task, execute, execute_on_one_thread, execute_with


class ReadyQueue:
    """Tasks whose dependencies are complete, best priority first."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._tasks = {task.key: task for task in tasks}
        if len(self._tasks) != len(tasks):
            raise ValueError("two tasks have the same key")
        self._waiting = {t.key: {d for d in t.depends if d in self._tasks} for t in tasks}
        self._followers: dict[str, list[str]] = defaultdict(list)
        for key, depends in self._waiting.items():
            for d in depends:
                self._followers[d].append(key)
        self._ready = [(t.priority, n, t.key) for n, t in enumerate(tasks) if not self._waiting[t.key]]
        heapq.heapify(self._ready)
        self._order = {t.key: n for n, t in enumerate(tasks)}
        self.unfinished = len(tasks)

    def __bool__(self) -> bool:
        return bool(self._ready)

    def pop(self) -> Task:
        """Take the next task."""
        return self._tasks[heapq.heappop(self._ready)[2]]

    def complete(self, key: str) -> None:
        """Say that a task is done, which may make others ready."""
        self.unfinished -= 1
        for follower in self._followers.pop(key, ()):
            self._waiting[follower].discard(key)
            if not self._waiting[follower]:
                heapq.heappush(self._ready, (self._tasks[follower].priority, self._order[follower], follower))


class SerialExecutor:
    """Runs tasks in the calling process."""

    def run(self, tasks: Sequence[Task], progress: Progress) -> RunRecord:
        """See `Executor.run`."""
        start, queue, record = time.perf_counter(), ReadyQueue(tasks), RunRecord()
        while queue:
            task = queue.pop()
            record.tasks.append(execute(task))
            queue.complete(task.key)
            progress.advance(task.flops)
        if queue.unfinished:
            raise ValueError(f"{queue.unfinished} tasks wait for each other in a circle")
        record.seconds = time.perf_counter() - start
        return record

    def map(self, tasks: Sequence[Task], shared: Any) -> RunRecord:
        """See `Executor.map`."""
        start = time.perf_counter()
        records = [execute(task, shared) for task in tasks]
        return RunRecord(time.perf_counter() - start, records)

    def total(self, tasks: Sequence[Task], shared: Any) -> tuple[Any, RunRecord]:
        """See `Executor.total`."""
        return summed(self.map(tasks, shared))

    def forget(self, run: str) -> None:
        """See `Executor.forget`."""
        resident.forget(run)


class ThreadExecutor(SerialExecutor):
    """Runs tasks in threads of the calling process, each with one BLAS thread.

    For work whose elementwise half BLAS threads would not share. A context manager.

    Parameters
    ----------
    n_threads : int
    """

    def __init__(self, n_threads: int) -> None:
        self._pool = ThreadPoolExecutor(n_threads, thread_name_prefix="dkrr")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def run(self, tasks: Sequence[Task], progress: Progress) -> RunRecord:
        """See `Executor.run`; for tasks that do not wait for each other."""
        start = time.perf_counter()
        if any(task.depends for task in tasks):
            return super().run(tasks, progress)
        record = RunRecord()
        for task, done in zip(tasks, self._pool.map(execute_on_one_thread, tasks), strict=True):
            record.tasks.append(done)
            progress.advance(task.flops)
        record.seconds = time.perf_counter() - start
        return record

    def map(self, tasks: Sequence[Task], shared: Any) -> RunRecord:
        """See `Executor.map`."""
        start = time.perf_counter()
        records = list(self._pool.map(partial(execute_with, shared), tasks))
        return RunRecord(time.perf_counter() - start, records)


def summed(record: RunRecord) -> tuple[Any, RunRecord]:
    """Add the values of the tasks up, and drop them from their records."""
    total = record.tasks[0].value
    for task in record.tasks[1:]:
        total += task.value
    return total, RunRecord(record.seconds, [replace(t, value=None) for t in record.tasks])
