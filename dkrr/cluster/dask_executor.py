"""The executor on a Dask cluster.

The driver keeps a moving window of tasks on the scheduler instead of sending it the whole graph: the scheduler stays
fast, the driver decides on priorities, and a finished task's future is released at once. (A future that is held after
its tile was written would make Dask run it again when its worker dies.) So the bars of progress on Dask's dashboard are
those of the window, not of the fit.
"""

import re
import time
import uuid
from asyncio import CancelledError
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from distributed import Client, as_completed
from distributed.comm import CommClosedError
from distributed.protocol.pickle import dumps
from distributed.scheduler import KilledWorker

from dkrr.cluster import resident
from dkrr.cluster.dask_client import (
    LOST,
    LOST_SCHEDULER_ERRORS,
    MAX_SUBMISSIONS,
    POLL_SECONDS,
    WORK_IS_KEPT,
    SchedulerWatch,
)
from dkrr.cluster.progress import Progress
from dkrr.cluster.tasks import FAN_IN, ReadyQueue, RunRecord, Task, TaskRecord, execute_on_worker
from dkrr.errors import ClusterError, DkrrError
from dkrr.text import format_bytes

WINDOW_PER_THREAD = 2
"""Tasks on the scheduler for each worker thread: one runs, one waits at the worker."""


class _Completed(as_completed):  # type: ignore[misc]
    """Futures with their results, as they are done.

    A run that is asked to end closes its client while results are on their way: the event loop would log an error of
    each.
    """

    async def _track_future(self, future: Any) -> None:
        try:
            await super()._track_future(future)
        except CommClosedError:
            if future.client.status == "running":
                raise


def _without_module() -> Callable[..., Any]:
    """A function that no module has, so that it is pickled with its code."""

    def call(pickled: bytes, *more: Any) -> Any:
        from distributed.protocol.pickle import loads

        function, arguments = loads(pickled)
        return function(*arguments, *more)

    return call


CALL = _without_module()
"""Calls what is pickled, on a worker. The scheduler reads all that a client submits: it would import dkrr, NumPy and
SciPy, which takes half a second before the first task of a cluster, and would have to have them."""


ITERATION = "a task of an iteration"


class DaskExecutor:
    """Runs tasks on the workers of a Dask client.

    Parameters
    ----------
    client : distributed.Client
    ready : callable, optional
        Called before the first task: waits until the workers are ready, and returns words for the memory that they have
        and need, for the error if workers die.
    ended : callable, optional
        Returns the exit status of the process with the scheduler; None if it still runs after that time.
    """

    def __init__(
        self,
        client: Client,
        ready: Callable[[], str] | None = None,
        ended: Callable[[float], int | None] | None = None,
    ) -> None:
        self.client, self._ready, self._memory = client, ready, ""
        self._watch = SchedulerWatch(client, ended, self._known_of_memory)
        self._most_held = 0
        self._places: list[str] = []
        self._threads, self._asked_at = 1, -POLL_SECONDS

    def wait_until_ready(self) -> None:
        """Wait until the workers have imported what tasks need, once.

        Raises
        ------
        MemoryLimitError
            If they then hold more than the plan allows for.
        """
        if self._ready is None:
            return
        try:
            self._memory = self._ready()
        except DkrrError:
            raise
        except ImportError as error:
            raise ClusterError(
                f"the workers cannot import what the kernel or the store needs: {error}; expected the same packages "
                f"and modules as here: install them where the workers run",
                is_transient=False,
            ) from error
        except OSError as error:  # no connection to a worker, or to the scheduler
            self._watch.refuse_a_lost_scheduler()
            raise self._died("the imports before the first task", 1) from error
        self._ready = None

    def run(self, tasks: Sequence[Task], progress: Progress) -> RunRecord:
        """See `Executor.run`.

        Raises
        ------
        ClusterError
            If workers die repeatedly at the same task, all are lost for too long, or the scheduler is.
        DkrrError
            As raised by a task.
        """
        self.wait_until_ready()
        start, queue, record = time.perf_counter(), ReadyQueue(tasks), RunRecord()
        run_id = uuid.uuid4().hex[:8]
        running: dict[str, Task] = {}
        completed = _Completed(loop=self.client.loop, with_results=True, raise_errors=False)

        def submit() -> None:
            window = WINDOW_PER_THREAD * self._n_threads()
            while queue and len(running) < window:
                task = queue.pop()
                # Dask's priorities are numbers, these are tuples: tasks are submitted in their order, in which Dask
                # runs tasks of equal priority.
                key = dask_key(task, run_id)
                future = self.client.submit(CALL, dumps((execute_on_worker, (task,))), key=key, pure=False)
                running[future.key] = task
                completed.add(future)

        try:
            with self._watch.noticing_a_lost_scheduler():
                submit()
                while running:
                    future, result = self._watch.call(completed.__anext__)
                    status, task = future.status, running.pop(future.key)
                    future.release()
                    if status != "finished":  # "cancelled" or "lost": the scheduler is lost, or it lost the worker
                        error = result[1] if isinstance(result, tuple) else CancelledError(status)
                        raise self._readable(error, f"task {task.key}")
                    record.tasks.append(result)
                    self._note([result])
                    queue.complete(task.key)
                    progress.advance(task.flops)
                    submit()
        except (*LOST_SCHEDULER_ERRORS, CommClosedError) as error:
            raise self._died("the tasks", 1, ", or the connection to them was lost") from error
        finally:
            # The error that ended the run is the one to report: a lost scheduler has nothing to cancel.
            with suppress(*LOST, ClusterError):
                if running:
                    self._watch.call(self.client.cancel, list(completed.futures), force=True)
        record.seconds = time.perf_counter() - start
        return record

    def map(self, tasks: Sequence[Task], shared: Any) -> RunRecord:
        """See `Executor.map`."""
        start = time.perf_counter()
        records: list[TaskRecord] = self._pass(tasks, shared)
        self._note(records)
        return RunRecord(time.perf_counter() - start, records)

    def total(self, tasks: Sequence[Task], shared: Any) -> tuple[Any, RunRecord]:
        """See `Executor.total`; the workers add the values in a tree."""
        start = time.perf_counter()
        value, records = self._pass(tasks, shared, adds=True)[0]
        self._note(records)
        return value, RunRecord(time.perf_counter() - start, records)

    def forget(self, run: str) -> None:
        """See `Executor.forget`."""
        resident.forget(run)
        # Lost workers keep nothing, and their loss has its own error.
        with suppress(*LOST_SCHEDULER_ERRORS, OSError, ClusterError):
            self._watch.call(self.client.run, resident.forget, run)

    def _note(self, records: list[TaskRecord]) -> None:
        self._most_held = max(self._most_held, *(r.peak_bytes for r in records), 0)

    def _n_threads(self) -> int:
        """Threads of all workers, which come and go; asked for once in POLL_SECONDS: a question takes milliseconds."""
        now = time.perf_counter()
        if now > self._asked_at + POLL_SECONDS:
            self._threads, self._asked_at = max(1, sum(self.client.nthreads().values())), now
        return self._threads

    def _submit(self, tasks: Sequence[Task], shared: Any) -> list[Any]:
        # To one worker; the others get it from each other. (broadcast=True waits forever for a worker that has just
        # died: distributed's Scheduler.replicate keeps to the workers that it started with.)
        places = self._workers_of_places(self._watch.wait_for_workers())
        vectors = self._watch.call(self.client.scatter, [shared], hash=False, direct=True)[0]
        run_id, futures = uuid.uuid4().hex[:8], []
        for task in tasks:
            where: dict[str, Any] = {}
            if task.place is not None:
                where = {"workers": [places[task.place % len(places)]], "allow_other_workers": True}
            key = dask_key(task, run_id)
            pickled = dumps((execute_on_worker, (task,)))
            futures.append(self.client.submit(CALL, pickled, vectors, key=key, pure=False, **where))
        return futures

    def _workers_of_places(self, threads: dict[str, int]) -> list[str]:
        """Address of the worker of every place, which stays the same for as long as that worker lives."""
        now = [address for address in sorted(threads) for _ in range(threads[address])]
        self._places = self._places or now
        new = iter([address for address in now if address not in self._places])
        self._places = [address if address in threads else next(new, address) for address in self._places]
        # Until its successor has started, a lost worker's places go to the same other one each time.
        return [address if address in threads else now[k % len(now)] for k, address in enumerate(self._places)]

    def _pass(self, tasks: Sequence[Task], shared: Any, *, adds: bool = False) -> list[Any]:
        """Results of tasks, or their sum; again where a worker was lost with data that only this process can send."""
        self.wait_until_ready()
        for attempt in range(MAX_SUBMISSIONS):
            # All are released, also after an error: the client keeps the error of a future, whose frames hold the
            # futures of the pass, which would stay on the cluster for as long as the client.
            held: list[Any] = []
            try:
                held += (futures := self._submit(tasks, shared))
                sums, adding = adds, dumps((_add, ()))
                while sums:
                    groups = [futures[k : k + FAN_IN] for k in range(0, len(futures), FAN_IN)]
                    futures = [
                        self.client.submit(CALL, adding, group, key=f"dkrr-add-{uuid.uuid4().hex}", pure=False)
                        for group in groups
                    ]
                    held += futures
                    sums = len(futures) > 1
                return list(self._watch.call(self.client.gather, futures, direct=True))
            except KilledWorker as error:
                raise self._readable(error, ITERATION) from None
            except (*LOST_SCHEDULER_ERRORS, OSError) as error:  # OSError: no connection to a lost worker
                self._watch.refuse_a_lost_scheduler()
                if attempt == MAX_SUBMISSIONS - 1:
                    if isinstance(error, OSError) and not isinstance(error, CommClosedError) and self._watch.look():
                        raise  # an error of a task, for example of its store
                    raise self._died(ITERATION, MAX_SUBMISSIONS) from error
                time.sleep(0.5)
                self._watch.wait_for_workers()
            finally:
                for future in held:
                    future.release()
        raise AssertionError

    def _readable(self, error: BaseException, what: str) -> BaseException:
        """Error to raise for one that Dask reports."""
        if isinstance(error, KilledWorker):
            return self._died(what, error.allowed_failures + 1)
        if isinstance(error, LOST_SCHEDULER_ERRORS):
            self._watch.refuse_a_lost_scheduler()
            return self._died(what, 1)
        return error

    def _known_of_memory(self) -> str:
        """Words for the workers' memory from the plan and the records of tasks, in brackets."""
        held = f"{format_bytes(self._most_held)} the most held in tasks that ended" if self._most_held else ""
        known = ", ".join(part for part in (self._memory, held) if part)
        return known and f" ({known})"

    def _died(self, what: str, times: int, more: str = "") -> ClusterError:
        return ClusterError(
            f"the workers that ran {what} died {times} time{'s' if times != 1 else ''}{more}. The likely cause is "
            f"memory: a worker that reaches its limit is killed{self._known_of_memory()}; otherwise the "
            f"cluster took them away, or the task crashed them. {WORK_IS_KEPT}: run again "
            f"with the same store=, with larger workers or another memory_limit if memory was short"
        )


def dask_key(task: Task, run_id: str) -> str:
    """Name of a task on the scheduler, which begins with that of its function.

    Dask's dashboard has a name and a colour for the words before the first one that is not of letters only.
    """
    words = re.findall("[a-z]+", str(getattr(task.function, "__name__", "task")).lower())
    return "-".join(["dkrr", *words, run_id, task.key])


def _add(parts: list[Any]) -> tuple[Any, list[TaskRecord]]:
    """Sum of the values of tasks, or of sums of them, and the records of the tasks."""
    total: Any = None
    records: list[TaskRecord] = []
    for part in parts:
        value, added = part if isinstance(part, tuple) else (part.value, [replace(part, value=None)])
        # The first value is copied: what a task returned may be asked for again.
        total = np.array(value) if total is None else np.add(total, value, out=total)
        records += added
    return total, records
