"""The context of one run: its executor, its storage and its records, opened before the work and cleared up after it."""

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkrr import blas
from dkrr.cluster import Executor, Meter, Progress, RunRecord, SerialExecutor, Task, ThreadExecutor
from dkrr.cluster.process import ended_in_order
from dkrr.cluster.tasks import peak_resident_bytes, reset_peak
from dkrr.cost import Stage
from dkrr.data import MemoryRows, Rows, described_rows, scan, scan_tasks, write_rows
from dkrr.data.rows import combine
from dkrr.data.stored import StoredCopy
from dkrr.errors import InputError, StoreError, UnreachableStoreError
from dkrr.fitting.checkpoint import Checkpoints
from dkrr.fitting.data import FitData
from dkrr.fitting.storage import MemoryStorage, Storage, StoredArrays, TemporaryFolder
from dkrr.fitting.workers import dask_client, dask_workers
from dkrr.linalg.tiled_operator import ResidentRows
from dkrr.planning import Plan
from dkrr.store import RunStore
from dkrr.store.lock import owned
from dkrr.store.paths import local_path, resolved_place
from dkrr.store.places import delete_partial
from dkrr.store.run import PLAN

Array = NDArray[np.float64]


@dataclass
class Context:
    """Executor, storage and records of one run."""

    storage: Storage
    executor: Executor
    progress: Progress
    client: Any = None
    """distributed.Client; None if the calling process does the work."""
    slots: int = 1
    """Tasks that run at once."""
    slots_per_process: int = 1
    """Tasks that run at once in one process."""
    threads: int = 1
    """Cores of the calling process."""
    cluster_is_running: bool = False
    """The workers are those of the user's client."""
    explained: Callable[[], str] = str
    """Returns the text of the plan, for people who look at the store."""
    layout: dict[str, Any] = field(default_factory=dict)
    """How the run cuts its matrix, for the runs that resume it."""
    temporary: TemporaryFolder | None = None
    peak_bytes: int = 0
    """Highest resident memory of any process that did the work, once it is done."""
    notices: list[str] = field(default_factory=list)
    """Messages about what was found in the store."""
    record: RunRecord = field(default_factory=RunRecord)
    meter: Meter = field(default_factory=Meter)
    """Bytes moved outside of tasks: the copy of X, and rows that processes read once and keep."""
    run: str = field(default_factory=lambda: f"run-{os.urandom(16).hex()}")
    """Name of what processes keep in memory until the end of the run."""
    _resident: list[Rows] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.checkpoints = Checkpoints(self.stored.store) if self.storage.keeps else None
        """Checkpoints of an iteration, where the storage is kept."""

    @property
    def stored(self) -> StoredArrays:
        """The storage, of a run that has a store."""
        assert isinstance(self.storage, StoredArrays)
        return self.storage

    @property
    def in_memory(self) -> bool:
        """Whether everything is in this process's memory."""
        return not isinstance(self.storage, StoredArrays)

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """Stages of the work that is done, with the time that each took."""
        return self.progress.take_stages()

    @property
    def bytes_read(self) -> int:
        """Bytes read by all workers, with the rows that processes read once and keep."""
        resident = sum(rows.n_bytes for rows in self._resident) * len(self.record.peak_bytes_by_worker)
        return self.record.bytes_read + self.meter.bytes_read + resident

    @property
    def bytes_written(self) -> int:
        """Bytes written by all workers."""
        return self.record.bytes_written + self.meter.bytes_written

    def run_tasks(
        self, stage_name: str, tasks: list[Task], done_flops: float = 0.0, detail: str = ""
    ) -> dict[str, Any]:
        """Run tasks as one stage of the progress display; their values by key.

        Parameters
        ----------
        done_flops : float
            Work of the stage that an earlier run has done.
        detail : str
            Which part of the stage this is, for the display.
        """
        self.storage.check()
        total = done_flops + sum(t.flops for t in tasks)
        with self.progress.stage(stage_name, total, done_flops, detail):
            record = self.executor.run(tasks, self.progress)
        self.add(record)
        return record.values()

    def add(self, record: RunRecord) -> None:
        """Take what a run of tasks reports, without what they returned, which may be large."""
        self.record.add(RunRecord(record.seconds, [replace(t, value=None) for t in record.tasks]))

    def total(self, tasks: list[Task], shared: Any) -> Array:
        """Sum of the values of tasks that are called with `shared` (vectors)."""
        self.storage.check()
        value, record = self.executor.total(tasks, shared)
        self.record.add(record)
        return np.asarray(value)

    def whole_rows(self, data: FitData, rows_per_chunk: int, *, stay: bool = False) -> Rows:
        """Rows of the data, checked, as tasks read any of them: in this process's memory, or shared by all workers.

        Parameters
        ----------
        rows_per_chunk : int
            Rows of a chunk of a copy in the store.
        stay : bool
            Whether every process reads them once and keeps them.

        Raises
        ------
        InputError
            If the rows hold NaN or infinity.
        StoreError
            If the store belongs to something else, or some worker does not see X.
        """
        if self.in_memory:
            rows = data.rows
            with self.progress.measured("reading X"):
                if not isinstance(rows, MemoryRows):
                    self.meter.bytes_read += rows.n_bytes
                    rows = MemoryRows(rows.read(0, rows.shape[0]))
                scan(rows, "X")
            return rows
        rows = self.streamed_rows(data, rows_per_chunk)
        if not stay:
            return rows
        self._resident.append(rows)
        return ResidentRows(rows, self.run)

    def streamed_rows(self, data: FitData, rows_per_chunk: int) -> Rows:
        """Rows of the data as tasks read them one block after another; not checked if everything is in memory.

        Parameters and errors are those of `whole_rows`.
        """
        if self.in_memory:
            return data.rows
        return self.share(data.rows, data.fingerprint, rows_per_chunk, data.notes())

    def share(
        self,
        rows: Rows,
        fingerprint: Callable[[str], dict[str, Any]],
        rows_per_chunk: int,
        notes: dict[str, Any] | None = None,
    ) -> Rows:
        """Check the rows, claim the store for this problem, and give rows that every worker can read.

        Parameters
        ----------
        fingerprint : callable
            From the checksum of the rows to what a run that resumes must share.
        rows_per_chunk : int
            Rows of a chunk of a copy in the store: where tiles and segments begin at multiples of it, reads waste
            nothing.
        notes : dict, optional
            What runs that resume take over.

        Raises
        ------
        InputError
            If the rows hold NaN or infinity.
        StoreError
            If the store belongs to something else, or some worker does not see X.
        """
        name, store = None, self.stored.store
        if self.client is not None and rows.url is not None and (path := local_path(rows.url)) is not None:
            dask_client().check_path_is_shared(self.client, path, f"X at {rows.url}")
        if not rows.is_shared and not isinstance(rows, MemoryRows):
            # Its numbers are computed or decoded only now, once; under a new name, for the store may turn out to be
            # another problem's.
            name = f"rows-{uuid.uuid4().hex[:8]}"
        try:
            if name is not None:
                rows = self._stage(rows, name, rows_per_chunk)
            checksum = self._scan(rows)
            if self.storage.keeps and self.client is not None:
                # A plan that the workers have no memory for must not be what the store holds from then on.
                with self.progress.measured("starting workers"):
                    self.executor.wait_until_ready()  # type: ignore[attr-defined]
            explained = {PLAN: self.explained()} if self.storage.keeps else {}
            store.claim(fingerprint(checksum), self.layout, {**(notes or {}), **explained})
        except BaseException:
            if name is not None:
                store.delete(name)
            raise
        if rows.is_shared and name is None:
            return rows
        copy = self._earlier_copy(checksum)
        if copy is not None:
            if name is not None:
                store.delete(name)
            return copy
        if name is None:
            name = "rows"
            store.delete(name)  # a copy that was never finished
            rows = self._stage(rows, name, rows_per_chunk)
        assert isinstance(rows, StoredCopy)
        store.set_staged_rows(name, rows.describe(rows_per_chunk))
        return rows

    def _earlier_copy(self, checksum: str) -> StoredCopy | None:
        """Copy of X that an earlier run left, if it is X: residuals are to be of the rows that were given."""
        store = self.stored.store
        found = store.staged_rows()
        if found is None:
            return None
        name, described = found
        copy = described_rows(store.place(name), described)
        try:
            copy.check_complete()
            if self._scan(copy) == checksum:
                return copy
            why = "its rows are others"
        except UnreachableStoreError:
            raise
        except (InputError, StoreError) as error:  # NaN, a damaged structure or chunk
            why = str(error).split(": ")[0]
        self.notices.append(f"the copy of X in the store is not the X of this run ({why}): X is copied again")
        self.progress.note(self.notices[-1])
        store.set_staged_rows(None)
        store.delete(name)
        return None

    def _scan(self, rows: Rows) -> str:
        """Refuse NaN and infinity; the checksum of the rows (of nothing, in a temporary store)."""
        executor = SerialExecutor() if isinstance(rows, MemoryRows) else self.executor
        tasks = scan_tasks(rows, "X", digest=self.storage.keeps, n_tasks=4 * self.slots)
        with self.progress.stage("checking X", sum(t.flops for t in tasks)):
            scanned = executor.run(tasks, self.progress)
        if executor is self.executor:  # the record is of those who do the work, and so is its peak memory
            self.add(scanned)
        values = scanned.values()
        return combine(rows, [values[t.key] for t in tasks])

    def _stage(self, rows: Rows, name: str, rows_per_chunk: int) -> StoredCopy:
        with self.progress.stage("copying X", 1.0):
            copy = write_rows(rows, self.stored.store.place(name), rows_per_chunk, self.client)
        self.meter.bytes_written += copy.n_bytes
        return copy


@contextmanager
def open_context(plan: Plan, store: str | None, progress: Progress) -> Iterator[Context]:
    """Open the storage, and start (or find) the workers, of a plan; without a store it is temporary or in memory."""
    if plan.execution != "dask":
        reset_peak()
    with ExitStack() as stack:
        stack.enter_context(blas.one_thread(_needs_one_blas_thread(plan)))
        if plan.execution == "memory":  # nothing that a killed process would leave behind
            context = _opened(plan, MemoryStorage(), stack, progress)
        else:
            stack.enter_context(ended_in_order())
            temporary = TemporaryFolder() if store is None else None
            if temporary is not None:
                stack.push(lambda kind, *_: temporary.delete() if kind is not None else None)
            run_store = RunStore(f"{temporary.path}/run.zarr" if temporary else resolved_place(store or ""))
            if store is not None:
                run_store.description()  # what is not a run is refused before a lock is written there
                stack.enter_context(owned(run_store.url))
                delete_partial(run_store.url)
            run_store.open()
            context = _opened(plan, StoredArrays(run_store, keeps=store is not None), stack, progress)
            context.temporary = temporary
        stack.callback(context.executor.forget, context.run)
        yield context
        context.peak_bytes = context.record.peak_bytes if plan.execution == "dask" else peak_resident_bytes()


def _opened(plan: Plan, storage: Storage, stack: ExitStack, progress: Progress) -> Context:
    chosen, resources, client = plan.chosen, plan.resources, None
    executor: Executor = SerialExecutor()
    slots = slots_per_process = chosen.place.slots
    if isinstance(storage, StoredArrays) and plan.execution == "dask":
        with progress.measured("starting workers"):
            executor, client = stack.enter_context(dask_workers(plan, storage.store))
        slots_per_process = resources.worker_threads
        slots = chosen.n_workers * slots_per_process
        if resources.cluster_is_running:
            title, *_ = str(plan).splitlines()
            progress = progress.shown_also(dask_client().StageEvents(client, title.removeprefix("dkrr plan: ")))
    elif chosen.uses_threads or chosen.task_threads > 1:
        executor = stack.enter_context(ThreadExecutor(chosen.task_threads))
    return Context(
        storage=storage,
        executor=executor,
        progress=progress,
        client=client,
        slots=slots,
        slots_per_process=slots_per_process,
        threads=resources.local_threads,
        cluster_is_running=resources.cluster_is_running,
        explained=plan.__str__,
        layout=chosen.layout() | ({"batch": plan.problem.batch} if plan.problem.batch else {}),
    )


def _needs_one_blas_thread(plan: Plan) -> bool:
    """Whether tasks run side by side in this process, or are so small that BLAS's threads would not pay."""
    if plan.execution == "dask":
        return False
    if plan.execution == "memory":
        return plan.uses_threads or plan.seconds * plan.resources.rates.gemm_flops < blas.SMALL_FLOPS
    return plan.uses_threads or 2.0 * plan.chosen.tile**3 < blas.SMALL_FLOPS
