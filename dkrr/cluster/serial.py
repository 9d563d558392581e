"""The executors of the calling process: one task after another (small runs, and the oracle in tests), or in threads."""

import heapq
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from threading import Condition
from typing import Any, Self

from dkrr import blas
from dkrr.cluster import resident
from dkrr.cluster.progress import Progress
from dkrr.cluster.task import RunRecord, Task, TaskRecord, execute


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
        self.n_running = 0

    def __bool__(self) -> bool:
        return bool(self._ready)

    def pop(self) -> Task:
        """Take the next task."""
        self.n_running += 1
        return self._tasks[heapq.heappop(self._ready)[2]]

    def complete(self, key: str) -> None:
        """Mark a task as done, which may make others ready."""
        self.unfinished -= 1
        self.n_running -= 1
        for follower in self._followers.pop(key, ()):
            self._waiting[follower].discard(key)
            if not self._waiting[follower]:
                heapq.heappush(self._ready, (self._tasks[follower].priority, self._order[follower], follower))

    def check_finished(self) -> None:
        """Raise ValueError if tasks are left once nothing is ready and nothing runs."""
        if self.unfinished:
            raise ValueError(f"{self.unfinished} tasks wait for each other in a circle")


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
        queue.check_finished()
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
    """Runs tasks in threads of the calling process, each with one BLAS thread; a context manager.

    BLAS's own threads would wait for each other at every product, and for other programs on the cores, and would not
    share elementwise work.
    """

    def __init__(self, n_threads: int) -> None:
        self._n_threads = n_threads
        self._pool = ThreadPoolExecutor(n_threads, thread_name_prefix="dkrr")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def run(self, tasks: Sequence[Task], progress: Progress) -> RunRecord:
        """See `Executor.run`; the records are in the order of the tasks."""
        start, queue, changed = time.perf_counter(), ReadyQueue(tasks), Condition()
        done: dict[str, TaskRecord] = {}
        failures: list[BaseException] = []

        def work() -> None:
            while True:
                with changed:
                    # Where nothing is ready and nothing runs, the tasks that are left wait in a circle.
                    changed.wait_for(lambda: queue or failures or queue.n_running == 0)
                    if failures or not queue:
                        return
                    task = queue.pop()
                try:
                    record = execute(task)
                except BaseException as error:
                    with changed:
                        failures.append(error)
                        changed.notify_all()
                    return
                with changed:
                    done[task.key] = record
                    queue.complete(task.key)
                    progress.advance(task.flops)
                    changed.notify_all()

        with blas.one_thread():
            try:
                wait([self._pool.submit(work) for _ in range(min(self._n_threads, len(tasks)))])
            except BaseException as error:  # Ctrl-C: no thread may start another task
                with changed:
                    failures.append(error)
                    changed.notify_all()
                raise
        if failures:
            try:
                raise failures[0]
            finally:
                failures.clear()  # the error refers to this frame: a cycle would keep what its tasks hold in memory
        queue.check_finished()
        return RunRecord(time.perf_counter() - start, [done[task.key] for task in tasks])

    def map(self, tasks: Sequence[Task], shared: Any) -> RunRecord:
        """See `Executor.map`."""
        start = time.perf_counter()
        with blas.one_thread():
            records = list(self._pool.map(partial(execute, shared=shared), tasks))
        return RunRecord(time.perf_counter() - start, records)


def summed(record: RunRecord) -> tuple[Any, RunRecord]:
    """Sum of the values of the tasks, and their record without the values."""
    total = record.tasks[0].value
    for task in record.tasks[1:]:
        total += task.value
    return total, RunRecord(record.seconds, [replace(t, value=None) for t in record.tasks])
