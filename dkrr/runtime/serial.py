"""The executor that runs tasks one after another in the calling process: for small runs, and the oracle in tests."""

import heapq
import time
from collections import defaultdict
from collections.abc import Sequence

from dkrr.runtime.progress import Progress
from dkrr.runtime.task import RunRecord, Task, execute


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
