"""The store and the executor of one run: opened before the work, cleared away after it."""

import shutil
import tempfile
import time
import uuid
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from dkrr.config import setting
from dkrr.errors import InputError, MemoryLimitError
from dkrr.linalg import TASK_MODULES
from dkrr.planning import Plan
from dkrr.rows import DaskRows, MemoryRows, Rows, SparseRows, ZarrRows, scan_tasks, stage
from dkrr.rows.checks import combine
from dkrr.runtime import Executor, Meter, Progress, RunRecord, SerialExecutor, Task, ThreadExecutor
from dkrr.runtime.local_workers import LocalWorkers
from dkrr.tiles import ChunkedArray, RunStore, TiledMatrix, TileGrid
from dkrr.tiles.chunks import local_path
from dkrr.units import format_bytes

MUCH_LESS = 1.1
"""Factor by which what workers held before must be more than now, to be replaced."""


class TemporaryFolder:
    """A folder that is deleted with this object, at the latest."""

    def __init__(self) -> None:
        self.path = tempfile.mkdtemp(prefix="dkrr-", dir=setting("temporary-directory"))
        self._finalizer = weakref.finalize(self, _remove, self.path)

    def delete(self) -> None:
        """Delete it now."""
        self._finalizer()

    def __getstate__(self) -> None:
        raise TypeError(
            "this model's training rows lie in a temporary folder of this process; use dkrr.save(model, path), or "
            "fit with store=, to keep it"
        )


def _remove(path: str) -> None:
    """Delete a folder that a task which cannot be cancelled may still be writing to."""
    for _ in range(20):
        shutil.rmtree(path, ignore_errors=True)
        if not Path(path).exists():
            return
        time.sleep(0.1)


@dataclass
class Workspace:
    """Where one run keeps its tiles and who does the work."""

    store: RunStore
    executor: Executor
    client: Any
    """distributed.Client, or None for the serial executor."""
    progress: Progress
    temporary: TemporaryFolder | None
    keeps: bool
    """The store stays after the run."""
    slots: int
    """Tasks that run at once."""
    record: RunRecord = field(default_factory=RunRecord)
    meter: Meter = field(default_factory=Meter)
    """What moved outside of tasks: the copy of X, and rows that processes read once and keep."""

    def run(self, stage_name: str, tasks: list[Task]) -> RunRecord:
        """Run tasks as one stage of the progress display."""
        with self.progress.stage(stage_name, sum(t.flops for t in tasks)):
            record = self.executor.run(tasks, self.progress)
        self.record.add(record)
        return record

    def vectors(self, group: str, name: str, grid: TileGrid, width: int, data: Any = None) -> ChunkedArray:
        """Stored array of shape (n, width) in chunks of tile rows; filled if `data` is given."""
        array = ChunkedArray.create(self.store.at(f"{group}/{name}"), (grid.n, width), (grid.tile, width))
        if data is not None:
            array.fill(np.asarray(data, np.float64).reshape(grid.n, width))
        return array

    def matrix(self, group: str, name: str, grid: TileGrid, dtype: str = "float64") -> TiledMatrix:
        """Stored lower triangle."""
        return TiledMatrix.create(self.store.at(f"{group}/{name}"), grid, dtype)

    def share(
        self,
        rows: Rows,
        fingerprint: Callable[[str], dict[str, Any]],
        layout: dict[str, Any],
        rows_per_chunk: int,
        notes: dict[str, Any] | None = None,
    ) -> Rows:
        """Check the rows, claim the store for this problem, and give rows that every worker can read.

        Parameters
        ----------
        rows : Rows
        fingerprint : callable
            From the checksum of the rows to what must be the same for a run to go on.
        layout : dict
            How the run cuts its matrix.
        rows_per_chunk : int
            Of a copy in the store: where tiles and segments of rows begin at multiples of it, reads waste nothing.
        notes : dict, optional
            What runs that go on take over.

        Raises
        ------
        InputError
            If the rows hold NaN or infinity.
        StoreError
            If the store belongs to something else, or some worker does not see X.
        """
        name = None
        url = getattr(rows, "url", None)
        if self.client is not None and url is not None and (path := local_path(url)) is not None:
            dask_executor().check_path_is_shared(self.client, path, f"X at {url}")
        if isinstance(rows, DaskRows):
            # Only now do its numbers exist; under a new name, for the store may turn out to be another problem's.
            name = f"rows-{uuid.uuid4().hex[:8]}"
        try:
            if name is not None:
                rows = self._stage(rows, name, rows_per_chunk)
            checksum = self._scan(rows)
            if self.keeps and self.client is not None:
                # A plan that the workers have no room for must not be what the store holds from then on.
                self.executor.wait_until_ready()  # type: ignore[attr-defined]
            self.store.claim(fingerprint(checksum), layout, notes)
        except BaseException:
            if name is not None:
                self.store.delete(name)
            raise
        if rows.is_shared and name is None:
            return rows
        earlier = self.store.staged_rows()
        if earlier is not None:
            if name is not None:
                self.store.delete(name)
            url = self.store.at(earlier)
            return SparseRows(url) if rows.is_sparse else ZarrRows(url)
        if name is None:
            name = "rows"
            self.store.delete(name)  # a copy that was never finished
            rows = self._stage(rows, name, rows_per_chunk)
        self.store.set_staged_rows(name)
        return rows

    def _scan(self, rows: Rows) -> str:
        """Refuse NaN and infinity; the checksum of the rows (of nothing, in a temporary store)."""
        executor = SerialExecutor() if isinstance(rows, MemoryRows) else self.executor
        tasks = scan_tasks(rows, "X", digest=self.keeps, n_tasks=4 * self.slots)
        with self.progress.stage("checking X", sum(t.flops for t in tasks)):
            scanned = executor.run(tasks, self.progress)
        if executor is self.executor:  # the record is of those who do the work, and so is its peak memory
            self.record.add(scanned)
        values = scanned.values()
        return combine([values[t.key] for t in tasks])

    def count_kept_rows(self, rows: Rows) -> None:
        """Count the rows as read once by every process that did something."""
        self.meter.bytes_read += rows.n_bytes * len(self.record.peak_bytes_by_worker)

    def _stage(self, rows: Rows, name: str, rows_per_chunk: int) -> Rows:
        with self.progress.stage("copying X", 1.0):
            copy = stage(rows, self.store.at(name), rows_per_chunk, self.client)
        self.meter.bytes_written += 0 if copy is rows else copy.n_bytes
        return copy


@contextmanager
def open_workspace(plan: Plan, store: str | None, progress: Progress) -> Iterator[Workspace]:
    """Open the store and start (or find) the workers that a plan wants."""
    temporary = TemporaryFolder() if store is None else None
    run_store = RunStore(f"{temporary.path}/run.zarr" if temporary else absolute_url(store or ""))
    try:
        run_store.open()
        with _executor(plan, run_store) as (executor, client):
            slots = plan.chosen.n_workers * (plan.resources.worker_threads if plan.execution == "dask" else 1)
            yield Workspace(run_store, executor, client, progress, temporary, store is not None, slots)
    except BaseException:
        if temporary is not None:
            temporary.delete()
        raise


def dask_executor() -> ModuleType:
    """Module of the Dask executor; distributed is slow to import, and small fits do without it."""
    return import_module("dkrr.runtime.dask_executor")


def check_store_is_shared(client: Any, url: str) -> None:
    """Refuse a store on this machine's disk that some worker does not see."""
    path = local_path(url)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        dask_executor().check_folder_is_shared(client, path.parent)


def absolute_url(url: str) -> str:
    """URL that means the same in another process."""
    # Workers may have another current directory.
    path = local_path(url)
    return url if path is None else str(path.absolute())


@contextmanager
def _executor(plan: Plan, store: RunStore) -> Iterator[tuple[Executor, Any]]:
    if plan.execution != "dask" and plan.uses_threads:
        with ThreadExecutor(plan.chosen.slots) as threads:
            yield threads, None
        return
    if plan.execution != "dask":
        yield SerialExecutor(), None
        return
    if plan.resources.cluster_is_running:
        client = dask_executor().ambient_client()
        if client is None:
            raise InputError("the plan is for the workers of a Dask client, and there is none now; fit where it is")
        check_store_is_shared(client, store.url)
        with _checked_workers(plan, client, store) as executor:
            yield executor, client
        return
    with (
        tempfile.TemporaryDirectory(prefix="dkrr-workers-", dir=setting("temporary-directory")) as scratch,
        LocalWorkers(plan.chosen.n_workers, plan.chosen.limit_bytes, scratch) as workers,
        workers.client() as client,
        _checked_workers(plan, client, store, workers) as executor,
    ):
        yield executor, client


@contextmanager
def _checked_workers(
    plan: Plan, client: Any, store: RunStore, workers: LocalWorkers | None = None
) -> Iterator[Executor]:
    """Executor on workers that import what tasks need at once, and say what they hold then before the first task.

    X is checked and copied meanwhile.
    """
    prepare = dask_executor().held_when_ready
    with ThreadPoolExecutor(1) as aside:
        held = aside.submit(prepare, client, plan.problem.kernel, [store.url], TASK_MODULES)
        executor: Executor = dask_executor().DaskExecutor(
            client, lambda: _memory(plan, held.result()), None if workers is None else workers.ended
        )
        yield executor


def _memory(plan: Plan, held: Any) -> str:
    """What there is of memory and what it is needed for, if workers hold no more than there is room for.

    Raises
    ------
    MemoryLimitError
        Before work starts, with what they hold.
    """
    resources, chosen = plan.resources, plan.chosen
    planned = resources.worker_baseline_bytes
    usable = int(chosen.limit_bytes * resources.usable_fraction)
    if not resources.cluster_is_running:
        _note(held.ready, planned)
    needed = chosen.peak_bytes - planned + max(held.ready, planned)
    if needed > usable:
        limit = int(needed / resources.usable_fraction) + 1
        each = format_bytes(1.005 * limit)
        raise MemoryLimitError(
            f"a worker holds {format_bytes(held.ready)} before its first task, with the libraries that are installed "
            f"here and those of the kernel and the store; the plan allowed for {format_bytes(planned)}, and needs "
            f"{format_bytes(chosen.peak_bytes - planned)} besides, of a limit of {format_bytes(chosen.limit_bytes)} a "
            f"worker. "
            + (
                f"Start workers with a memory limit of at least {each} each, with --preload dkrr.preload"
                if resources.cluster_is_running
                else f"Give memory_limit={format_bytes(1.005 * limit * chosen.n_workers)!r} or more for "
                f"{chosen.n_workers} workers, or try again: what the libraries take is noted, and planned with"
            )
            + ". Nothing was computed"
        )
    return (
        f"{format_bytes(held.ready)} held before the first task, {format_bytes(chosen.peak_bytes - planned)} planned "
        f"for the tasks, limit {format_bytes(chosen.limit_bytes)}"
    )


def _note(ready: int, planned: int) -> None:
    """Keep what workers hold for the next plan: where it is more than planned for, or much less than was kept."""
    # Not at the top: workers import this module, and detect nothing.
    from dkrr.machine.baseline import record_baseline, recorded_baseline

    if ready > planned or MUCH_LESS * ready < recorded_baseline():
        record_baseline(ready)
