"""The executor on a Dask cluster.

The driver keeps a moving window of tasks on the scheduler instead of handing it the whole graph: the scheduler
stays fast, priorities stay ours, and a finished task's future is released at once. (A future that is held after its
tile was written would make Dask run it again when its worker dies.)
"""

import asyncio
import importlib
import os
import time
import uuid
from asyncio import CancelledError
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from distributed import Client, as_completed
from distributed.client import FutureCancelledError
from distributed.comm import CommClosedError, resolve_address
from distributed.protocol.pickle import dumps, loads
from distributed.scheduler import KilledWorker

from dkrr.errors import DkrrError, InputError, StoreError
from dkrr.runtime import process, resident
from dkrr.runtime.local_workers import how_it_ended
from dkrr.runtime.progress import Progress
from dkrr.runtime.serial import ReadyQueue
from dkrr.runtime.task import RunRecord, Task, TaskRecord, execute_on_one_thread, execute_with
from dkrr.tiles.chunks import zarr_store
from dkrr.units import format_bytes

WINDOW_PER_THREAD = 2
"""Tasks on the scheduler for each worker thread: one runs, one waits at the worker."""
ASK_SECONDS = 1.0
"""Seconds between two looks at how many workers there are."""
FAN_IN = 4
"""Values that one task of a tree of sums adds."""
MAX_ATTEMPTS = 4
"""Times that one pass is begun when workers are lost."""
RESTART_SECONDS = 60
"""Seconds to wait for a worker when all are lost."""


class DaskExecutor:
    """Runs tasks on the workers of a Dask client.

    Parameters
    ----------
    client : distributed.Client
    ready : callable, optional
        Called before the first task: waits until the workers are ready, and returns what there is of memory and what
        it is needed for, named where workers die.
    ended : callable, optional
        Returns the exit status of the process with the scheduler; None while it runs.
    """

    def __init__(
        self,
        client: Client,
        ready: Callable[[], str] | None = None,
        ended: Callable[[], int | None] | None = None,
    ) -> None:
        self.client, self._ready, self._ended, self._memory = client, ready, ended, ""
        self._most_held = 0
        self._places: list[str] = []
        self._threads, self._asked_at = 1, -ASK_SECONDS

    def wait_until_ready(self) -> None:
        """Wait until the workers have imported what tasks need, once.

        Raises
        ------
        MemoryLimitError
            If they then hold more than the plan has room for.
        """
        if self._ready is None:
            return
        try:
            self._memory = self._ready()
        except OSError as error:  # no connection to a worker, or to the scheduler
            self._refuse_a_lost_scheduler()
            raise self._died("the imports before the first task", 1) from error
        self._ready = None

    def run(self, tasks: Sequence[Task], progress: Progress) -> RunRecord:
        """See `Executor.run`.

        Raises
        ------
        DkrrError
            If workers die again and again at the same task, or as raised by a task.
        """
        self.wait_until_ready()
        start, queue, record = time.perf_counter(), ReadyQueue(tasks), RunRecord()
        run_id = uuid.uuid4().hex[:8]
        running: dict[str, Task] = {}
        completed = as_completed(loop=self.client.loop, with_results=True, raise_errors=False)

        def submit() -> None:
            window = WINDOW_PER_THREAD * self._n_threads()
            while queue and len(running) < window:
                task = queue.pop()
                # Dask runs larger priorities first. Ours are tuples; what counts is that the order of
                # submission is the order of priority, which is Dask's own rule among equals.
                key = f"dkrr-{run_id}-{task.key}"
                future = self.client.submit(execute_on_one_thread, task, key=key, pure=False)
                running[future.key] = task
                completed.add(future)

        try:
            submit()
            while running:
                future, result = next(completed)
                task = running.pop(future.key)
                if future.status != "finished":
                    error = self._readable(future, result, task)
                    future.release()
                    raise error
                record.tasks.append(result)
                self._note([result])
                queue.complete(task.key)
                progress.advance(task.flops)
                future.release()
                submit()
        except (CancelledError, FutureCancelledError, CommClosedError) as error:
            self._refuse_a_lost_scheduler()
            raise self._died("the tasks", 1, ", or the connection to them was lost") from error
        except OSError:
            self._refuse_a_lost_scheduler()
            raise
        finally:
            if running and self.client.status == "running":  # else it is waited for, and raises another error
                self.client.cancel(list(completed.futures), force=True)
        if queue.unfinished:
            raise ValueError(f"{queue.unfinished} tasks wait for each other in a circle")
        record.seconds = time.perf_counter() - start
        return record

    def map(self, tasks: Sequence[Task], shared: Any) -> RunRecord:
        """See `Executor.map`."""
        self.wait_until_ready()
        start = time.perf_counter()
        records = self._again(lambda: self.client.gather(self._submit(tasks, shared), direct=True))
        self._note(records)
        return RunRecord(time.perf_counter() - start, records)

    def total(self, tasks: Sequence[Task], shared: Any) -> tuple[Any, RunRecord]:
        """See `Executor.total`; the workers add the values up in a tree."""
        self.wait_until_ready()
        start = time.perf_counter()

        def run() -> _Sum:
            futures = self._submit(tasks, shared)
            while True:
                groups = [futures[k : k + FAN_IN] for k in range(0, len(futures), FAN_IN)]
                futures = [
                    self.client.submit(_add, group, key=f"dkrr-add-{uuid.uuid4().hex}", pure=False) for group in groups
                ]
                if len(futures) == 1:
                    return self.client.gather(futures, direct=True)[0]  # type: ignore[no-any-return]

        found: _Sum = self._again(run)
        self._note(found.records)
        return found.value, RunRecord(time.perf_counter() - start, found.records)

    def forget(self, run: str) -> None:
        """See `Executor.forget`."""
        resident.forget(run)
        # Workers that are lost keep nothing, and their loss has an error of its own.
        with suppress(CancelledError, OSError):
            self.client.run(resident.forget, run)

    def _note(self, records: list[TaskRecord]) -> None:
        self._most_held = max(self._most_held, *(r.peak_bytes for r in records), 0)

    def _n_threads(self) -> int:
        """Threads of all workers, asked for now and then: workers come and go, and to ask takes milliseconds."""
        now = time.perf_counter()
        if now > self._asked_at + ASK_SECONDS:
            self._threads, self._asked_at = max(1, sum(self.client.nthreads().values())), now
        return self._threads

    def _submit(self, tasks: Sequence[Task], shared: Any) -> list[Any]:
        # To one worker; the others get it from each other. (broadcast=True waits for ever for a worker that has just
        # died: distributed's Scheduler.replicate keeps to the workers that it began with.)
        vectors = self.client.scatter([shared], hash=False, direct=True)[0]
        places = self._workers_of_places()
        run_id, futures = uuid.uuid4().hex[:8], []
        for task in tasks:
            where: dict[str, Any] = {}
            if task.place is not None:
                where = {"workers": [places[task.place % len(places)]], "allow_other_workers": True}
            key = f"dkrr-{run_id}-{task.key}"
            futures.append(self.client.submit(execute_with, vectors, task, key=key, pure=False, **where))
        return futures

    def _workers_of_places(self) -> list[str]:
        """Address of the worker of every place; places keep theirs for as long as it lives."""
        threads = self.client.nthreads()
        now = [address for address in sorted(threads) for _ in range(threads[address])]
        if not self._places:
            self._places = now
        new = [address for address in now if address not in self._places]
        for k, address in enumerate(self._places):
            if address not in threads and new:
                self._places[k] = new.pop(0)
        # Until its successor is there, a lost worker's places go to the same other one each time.
        return [
            address if address in threads or not now else now[k % len(now)] for k, address in enumerate(self._places)
        ]

    def _again(self, run: Callable[[], Any]) -> Any:
        """Run, and run again where a lost worker took data with it that only this process can send again."""
        for attempt in range(MAX_ATTEMPTS):
            try:
                return run()
            except KilledWorker as error:
                raise self._died("a task of an iteration", error.allowed_failures + 1) from None
            except (CancelledError, FutureCancelledError, OSError) as error:  # OSError: no connection to a lost worker
                self._refuse_a_lost_scheduler()
                if attempt == MAX_ATTEMPTS - 1:
                    if isinstance(error, OSError) and not isinstance(error, CommClosedError) and self._has_workers():
                        raise  # of a task: its store, say
                    raise self._died("a task of an iteration", MAX_ATTEMPTS) from error
                time.sleep(0.5)
                self._wait_for_per_worker()
        raise AssertionError

    def _has_workers(self) -> bool:
        try:
            return bool(self.client.nthreads())
        except OSError:
            return False

    def _wait_for_per_worker(self) -> None:
        try:
            self.client.wait_for_workers(1, timeout=RESTART_SECONDS)
        except OSError as error:  # of time, or of a connection that is lost
            self._refuse_a_lost_scheduler()
            raise self._died("a task of an iteration", 1, f", and none came back within {RESTART_SECONDS} s") from error

    def _readable(self, future: Any, result: Any, task: Task) -> BaseException:
        if future.status in ("cancelled", "lost"):  # by a scheduler that is lost itself, or that lost the worker
            self._refuse_a_lost_scheduler()
            return self._died(f"task {task.key}", 1)
        error = result[1] if isinstance(result, tuple) else future.exception()
        if isinstance(error, KilledWorker):
            return self._died(f"task {task.key}", error.allowed_failures + 1)
        if isinstance(error, CancelledError | FutureCancelledError):
            return self._died(f"task {task.key}", 1)
        return error if isinstance(error, BaseException) else DkrrError(f"task {task.key} was {future.status}")

    def _refuse_a_lost_scheduler(self) -> None:
        """Raise at once if the process with the scheduler ended: nothing comes back, and no worker is to blame."""
        status = None if self._ended is None else self._ended()
        if status is not None:
            raise DkrrError(
                f"{how_it_ended(status)}{self._memory and f' ({self._memory})'}. What is finished is kept in a given "
                f"store: run again with the same store=, with another memory_limit or fewer workers if memory was short"
            )

    def _known_of_memory(self) -> str:
        """What the plan and the records of tasks say of the workers' memory, in brackets."""
        held = f"{format_bytes(self._most_held)} the most held in tasks that ended" if self._most_held else ""
        known = ", ".join(part for part in (self._memory, held) if part)
        return known and f" ({known})"

    def _died(self, what: str, times: int, more: str = "") -> DkrrError:
        return DkrrError(
            f"the workers that ran {what} died {times} time{'s' if times != 1 else ''}{more}. The likely cause is "
            f"memory: a worker that reaches its limit is killed{self._known_of_memory()}; otherwise the "
            f"cluster took them away, or the task crashed them. What is finished is kept in a given store: run again "
            f"with the same store=, with larger workers or another memory_limit if memory was short"
        )


@dataclass
class _Sum:
    """Value and records of tasks whose values were added."""

    value: Any
    records: list[TaskRecord]


def _add(parts: list[Any]) -> _Sum:
    """Add values of tasks, or sums of them."""
    value: Any = None
    records: list[TaskRecord] = []
    for part in parts:
        # The first value is copied: what a task returned may be asked for again.
        value = np.array(part.value) if value is None else np.add(value, part.value, out=value)
        records += part.records if isinstance(part, _Sum) else [replace(part, value=None)]
    return _Sum(value, records)


def ambient_client() -> Client | None:
    """Return the client that the user has made, if any, and if its cluster would do the work (`process.may_use`)."""
    try:
        client = Client.current()
    except ValueError:
        return None
    return client if process.may_use(client) else None


def connect(address: str, timeout: str = "10s") -> Client:
    """Client of a running scheduler, which becomes the ambient one.

    Parameters
    ----------
    address : str
    timeout : str
        How long to wait for an answer.

    Raises
    ------
    InputError
        If none answers at that address.
    """
    try:
        resolve_address(address)  # a client that finds out by itself stays the ambient one
        return Client(address, timeout=timeout)
    except (OSError, ValueError) as error:
        raise InputError(f"no Dask scheduler answers at {address}: {error}") from error


def check_folder_is_shared(client: Client, folder: Path) -> None:
    """Refuse before work starts if some worker does not see what this process has just written to a folder.

    Raises
    ------
    StoreError
        Naming the workers.
    """
    probe = folder / f".dkrr-{uuid.uuid4().hex}"
    probe.touch()
    try:
        check_path_is_shared(client, probe, f"the store's folder {folder}")
    finally:
        probe.unlink()


def check_path_is_shared(client: Client, path: Path, what: str) -> None:
    """Refuse before work starts if some worker does not see a path that this process sees.

    Raises
    ------
    StoreError
        Naming the workers.
    """
    blind = [address for address, sees in client.run(os.path.exists, str(path)).items() if not sees]
    if blind:
        raise StoreError(
            f"the workers {', '.join(blind)} do not see {what}. Every worker must reach X and the store: put them on a "
            f"shared file system or an object store (store=, or dkrr.temporary-directory in Dask's configuration)"
        )


def on_every_worker(client: Client, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Run a function on a thread of every worker, all at the same time; results in the order of their addresses."""
    futures = [
        client.submit(function, *arguments, workers=[address], pure=False)
        for address in sorted(client.scheduler_info(n_workers=-1)["workers"])
    ]
    return list(client.gather(futures))


def seconds_between_workers(client: Client, n_bytes: int) -> float | None:
    """Time for an array to get from one worker to another; None if there is only one.

    Parameters
    ----------
    client : Client
    n_bytes : int
        Of the array.
    """
    first, *others = sorted(client.scheduler_info(n_workers=-1)["workers"])
    if not others:
        return None
    array = client.submit(np.ones, n_bytes // 8, workers=[first], pure=False)
    client.submit(len, array, workers=[first], pure=False).result()  # it is there
    start = time.perf_counter()
    client.submit(len, array, workers=[others[-1]], pure=False).result()
    return time.perf_counter() - start


@dataclass(frozen=True)
class Held:
    """Most that a worker holds before its first task, in bytes."""

    environment: int
    """With the libraries that every fit needs."""
    ready: int
    """With those of the fit's kernel and store as well."""


def held_when_ready(client: Client, kernel: Any, urls: Sequence[str], modules: Sequence[str]) -> Held:
    """Let every worker import what its tasks need, and ask what it holds then.

    Parameters
    ----------
    client : distributed.Client
    kernel : Kernel
        A user's own may import a library.
    urls : sequence of str
        Stores that tasks will open; those of another machine take libraries of their own.
    modules : sequence of str
        Modules that tasks will need.
    """
    # As bytes, which the worker makes a kernel of when it has measured itself.
    held = client.run(_prepare, dumps(kernel), list(urls), list(modules))
    environments, ready = zip(*held.values(), strict=True)
    return Held(max(environments), max(ready))


async def _prepare(kernel: bytes, urls: list[str], modules: list[str]) -> tuple[int, int]:
    return await asyncio.to_thread(_held, kernel, urls, modules)  # the worker's loop goes on


def _held(kernel: bytes, urls: list[str], modules: list[str]) -> tuple[int, int]:
    for name in modules:
        importlib.import_module(name)
    this = psutil.Process()
    environment = this.memory_info().rss
    loads(kernel)
    for url in urls:
        zarr_store(url)
    return environment, this.memory_info().rss


@dataclass(frozen=True)
class WorkerInfo:
    """What a worker of a running cluster reports."""

    host: str
    n_threads: int
    memory_limit: int
    """Bytes; 0 means none."""
    resident_bytes: int
    """What its process holds now."""


def worker_resources(client: Client) -> list[WorkerInfo]:
    """Return what every worker reports."""
    workers = client.scheduler_info(n_workers=-1)["workers"].values()
    return [
        WorkerInfo(w["host"], w["nthreads"], w["memory_limit"] or 0, int(w["metrics"].get("memory", 0)))
        for w in workers
    ]
