"""Tasks, the records that they leave, and the executors of the calling process.

These run one task after another (small runs, and the oracle in tests), or in threads.
"""

import heapq
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from graphlib import CycleError, TopologicalSorter
from typing import Any, Protocol, Self

from dkrr import blas
from dkrr.cluster import resident
from dkrr.cluster.progress import Progress
from dkrr.limits import peak_resident_bytes

FAN_IN = 4
"""Values that one task of a tree of sums adds."""


@dataclass(eq=False)
class Meter:
    """Time by kind of work, and bytes moved; passed to every task function."""

    seconds: dict[str, float] = field(default_factory=partial(defaultdict, float))
    bytes_read: int = 0
    bytes_written: int = 0
    _inside: list[float] = field(default_factory=list)
    """Seconds of the blocks within each block that is open."""

    @contextmanager
    def time(self, kind: str) -> Iterator[None]:
        """Count the time spent inside under `kind` ("read", "gemm", ...), less that of blocks within this one."""
        start = time.perf_counter()
        self._inside.append(0.0)
        try:
            yield
        finally:
            passed = time.perf_counter() - start
            self.seconds[kind] += passed - self._inside.pop()
            if self._inside:
                self._inside[-1] += passed


TaskFunction = Callable[..., Any]
"""f(meter, *arguments) → a small value or None; safe to run twice, also at the same time."""


@dataclass(frozen=True)
class Task:
    """Unit of work that a worker does alone: it reads and writes the store itself."""

    key: str
    """Unique within one run."""
    function: TaskFunction
    arguments: tuple[Any, ...] = ()
    depends: tuple[str, ...] = ()
    """Keys of the tasks that must be complete before."""
    flops: float = 1.0
    """Weight in the progress display."""
    priority: tuple[int, ...] = ()
    """Order of the tasks that are ready: the smallest goes first."""
    place: int | None = None
    """Number of the place (a worker's thread) that keeps in memory what the task needs; None: any place will do."""


@dataclass(frozen=True)
class TaskRecord:
    """Record of a task that is done."""

    key: str
    value: Any
    worker: str
    start: float
    """Seconds since the epoch."""
    seconds: float
    seconds_by_kind: dict[str, float]
    bytes_read: int
    bytes_written: int
    peak_bytes: int = 0
    """Highest resident memory of the worker's process so far; 0 in the calling process, whose peak the fit measures."""


@dataclass(repr=False)
class RunRecord:
    """Sum of the records of a run."""

    seconds: float = 0.0
    """Wall time."""
    tasks: list[TaskRecord] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"<RunRecord of {len(self.tasks):,} tasks in {self.seconds:.3g} s>"

    @property
    def bytes_read(self) -> int:
        """Bytes that the tasks read from the store."""
        return sum(t.bytes_read for t in self.tasks)

    @property
    def bytes_written(self) -> int:
        """Bytes that the tasks wrote to the store."""
        return sum(t.bytes_written for t in self.tasks)

    @property
    def peak_bytes(self) -> int:
        """Highest resident memory of any worker process."""
        return max((t.peak_bytes for t in self.tasks), default=0)

    @property
    def peak_bytes_by_worker(self) -> dict[str, int]:
        """Highest resident memory of every worker process."""
        peaks: dict[str, int] = {}
        for task in self.tasks:
            peaks[task.worker] = max(peaks.get(task.worker, 0), task.peak_bytes)
        return peaks

    def seconds_by_kind(self) -> dict[str, float]:
        """Worker-seconds by kind of work; "other" is inside tasks, "idle" between them."""
        total: dict[str, float] = defaultdict(float)
        busy = 0.0
        for task in self.tasks:
            busy += task.seconds
            for kind, seconds in task.seconds_by_kind.items():
                total[kind] += seconds
        total["other"] = max(0.0, busy - sum(total.values()))
        total["idle"] = max(0.0, len(self.peak_bytes_by_worker) * self.seconds - busy)
        return dict(total)

    def values(self) -> dict[str, Any]:
        """Values that the tasks returned, by key."""
        return {t.key: t.value for t in self.tasks}

    def add(self, other: "RunRecord") -> None:
        """Append a later run."""
        self.seconds += other.seconds
        self.tasks += other.tasks


class Executor(Protocol):
    """Runs tasks in an order that respects what they depend on."""

    def run(self, tasks: Sequence[Task], progress: Progress) -> RunRecord:
        """Run all tasks; an error in one stops the run and is raised here.

        A key that a task depends on and that is not in `tasks` counts as done (in an earlier run).
        """
        ...

    def map(self, tasks: Sequence[Task], shared: Any) -> RunRecord:
        """Run tasks that wait for nothing, each called with `shared` (vectors) as its last argument.

        The records are in the order of the tasks.
        """
        ...

    def total(self, tasks: Sequence[Task], shared: Any) -> tuple[Any, RunRecord]:
        """Run tasks as `map` does and return the sum of their values, which are never all in one place.

        The order of summation is that of the tasks, so that the same tasks give the same bits.
        """
        ...

    def forget(self, run: str) -> None:
        """Release what every process kept in memory for a run (see `resident`)."""
        ...


NO_SHARED_ARGUMENT: Any = object()
"""No shared argument."""


def execute(task: Task, shared: Any = NO_SHARED_ARGUMENT) -> TaskRecord:
    """Run one task in this process, on one BLAS thread unless the executor is alone in the process."""
    meter = Meter()
    started, clock = time.time(), time.perf_counter()
    value = task.function(meter, *task.arguments, *(() if shared is NO_SHARED_ARGUMENT else (shared,)))
    return TaskRecord(
        key=task.key,
        value=value,
        worker=str(os.getpid()),
        start=started,
        seconds=time.perf_counter() - clock,
        seconds_by_kind=dict(meter.seconds),
        bytes_read=meter.bytes_read,
        bytes_written=meter.bytes_written,
    )


def execute_on_worker(task: Task, shared: Any = NO_SHARED_ARGUMENT) -> TaskRecord:
    """Run one task of a worker beside others: Dask has as many threads as cores, so BLAS must use one.

    The record also has the peak memory of the worker, which takes about 50 µs to read.
    """
    with blas.one_thread():
        return replace(execute(task, shared), peak_bytes=peak_resident_bytes())


class ReadyQueue:
    """Tasks whose dependencies are complete, best priority first; raises ValueError if some wait for each other."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._tasks = {task.key: (n, task) for n, task in enumerate(tasks)}
        if len(self._tasks) != len(tasks):
            raise ValueError("two tasks have the same key")
        self._sorter = TopologicalSorter({t.key: [d for d in t.depends if d in self._tasks] for t in tasks})
        self._ready: list[tuple[tuple[int, ...], int, Task]] = []
        try:
            self._sorter.prepare()
        except CycleError as error:  # the last of the circle is the first again
            raise ValueError(f"{len(error.args[1]) - 1} tasks wait for each other in a circle") from None
        self._take_ready()

    def __bool__(self) -> bool:
        return bool(self._ready)

    def pop(self) -> Task:
        """Take the next task."""
        return heapq.heappop(self._ready)[2]

    def complete(self, key: str) -> None:
        """Mark a task as done, which may make others ready."""
        self._sorter.done(key)
        self._take_ready()

    def _take_ready(self) -> None:
        for n, task in (self._tasks[key] for key in self._sorter.get_ready()):
            heapq.heappush(self._ready, (task.priority, n, task))


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
        record.seconds = time.perf_counter() - start
        return record

    def map(self, tasks: Sequence[Task], shared: Any) -> RunRecord:
        """See `Executor.map`."""
        start = time.perf_counter()
        records = list(self._records(tasks, shared))
        return RunRecord(time.perf_counter() - start, records)

    def total(self, tasks: Sequence[Task], shared: Any) -> tuple[Any, RunRecord]:
        """See `Executor.total`."""
        start, total, records = time.perf_counter(), None, list[TaskRecord]()
        for record in self._records(tasks, shared):
            if total is None:
                total = record.value
            else:
                total += record.value
            records.append(replace(record, value=None))
        return total, RunRecord(time.perf_counter() - start, records)

    def _records(self, tasks: Sequence[Task], shared: Any) -> Iterator[TaskRecord]:
        """Records in the order of the tasks, each as soon as it is there."""
        return (execute(task, shared) for task in tasks)

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
        start, queue = time.perf_counter(), ReadyQueue(tasks)
        running: dict[Future[TaskRecord], Task] = {}
        done: dict[str, TaskRecord] = {}
        future: Future[TaskRecord] | None = None
        with blas.one_thread():
            try:
                while queue or running:
                    while queue and len(running) < self._n_threads:
                        task = queue.pop()
                        running[self._pool.submit(execute, task)] = task
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        task = running.pop(future)
                        done[task.key] = future.result()
                        queue.complete(task.key)
                        progress.advance(task.flops)
            finally:
                wait(running)
                running.clear()
                future = None  # an error refers to this frame: a cycle would keep what its tasks hold
        return RunRecord(time.perf_counter() - start, [done[task.key] for task in tasks])

    def _records(self, tasks: Sequence[Task], shared: Any) -> Iterator[TaskRecord]:
        with blas.one_thread():
            yield from self._pool.map(partial(execute, shared=shared), tasks)
