"""The context of one run: who works, its storage and its records, opened before the work and cleared up after it.

The work is done by the calling process, its threads, or Dask's workers, which are asked what they hold.
"""

import logging
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from dkrr import blas
from dkrr.cluster import Executor, Meter, Progress, RunRecord, SerialExecutor, Task, ThreadExecutor, make_progress
from dkrr.cluster.folders import private_folder
from dkrr.cluster.local_workers import LocalWorkers
from dkrr.cluster.process import ambient_client, graceful_termination
from dkrr.cluster.worker_settings import problems, refuse_a_pause, report
from dkrr.cost import Stage
from dkrr.data import MemoryRows, Rows, described_rows, scan, scan_tasks, write_rows
from dkrr.data.rows import Checksums, checksums_of
from dkrr.data.stored import StoredCopy
from dkrr.data.watched import BlockSums, WatchedRows
from dkrr.errors import InputError, MemoryLimitError, StoreError, UnreachableStoreError
from dkrr.fitting import growing_run
from dkrr.fitting.data import FitData
from dkrr.fitting.kept import Kept
from dkrr.fitting.storage import (
    Checkpoints,
    EndsWhenLost,
    MemoryStorage,
    StageNotes,
    Storage,
    StoredArrays,
    TemporaryFolder,
)
from dkrr.limits import peak_resident_bytes, reset_peak
from dkrr.linalg import TASK_MODULES
from dkrr.linalg.giving_up import Watch
from dkrr.linalg.solver_settings import ConjugateGradient
from dkrr.linalg.sources import ResidentRows
from dkrr.linalg.substitution import threads_at_once
from dkrr.planning import Plan
from dkrr.planning.resources import Rates
from dkrr.store import RunStore, TileGrid
from dkrr.store.lock import owned
from dkrr.store.paths import local_path, resolved_place
from dkrr.store.places import delete_partial, place_at
from dkrr.store.run_store import ASKED, PLAN
from dkrr.text import format_bytes, plural

logger = logging.getLogger("dkrr")

_said: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()
"""Messages already given about the workers of each client: every fit of a search would repeat them."""

MUCH_LESS = 1.1
"""Factor by which what workers held before must be more than now, to be replaced."""


def dask_executor() -> ModuleType:
    """Module of the Dask executor; distributed is slow to import, and small fits do without it."""
    return import_module("dkrr.cluster.dask_executor")


def dask_client() -> ModuleType:
    """Module of Dask's clients, imported where it is needed for the same reason."""
    return import_module("dkrr.cluster.dask_client")


def check_store_is_shared(client: Any, url: str) -> None:
    """Refuse a store on this machine's disk that some worker does not see."""
    path = local_path(url)
    if path is not None:
        place_at(str(path.parent)).make()
        dask_client().check_folder_is_shared(client, path.parent)


@contextmanager
def dask_workers(plan: Plan, store: RunStore) -> Iterator[tuple[Executor, Any]]:
    """Executor and client of the workers of a plan: those of the ambient client, or of its own cluster.

    Raises
    ------
    InputError
        If the plan is for the workers of a client that is no longer current.
    StoreError
        If the store is on a disk that some worker does not see.
    """
    if plan.resources.cluster_is_running:
        client = ambient_client()
        if client is None:
            raise InputError("the plan is for the workers of a Dask client, and there is none now; fit where it is")
        check_store_is_shared(client, store.url)
        with _checked_workers(plan, client, store) as executor:
            yield executor, client
        return
    with (
        private_folder("workers") as scratch,
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
    ended = None if workers is None else workers.ended
    watch = dask_client().SchedulerWatch(client, ended)

    def prepare() -> Any:
        if workers is None:
            _check_settings(plan, watch)
        return dask_client().worker_baseline_bytes(watch, plan.problem.kernel, [store.url], TASK_MODULES)

    with ThreadPoolExecutor(1) as aside:
        held = aside.submit(prepare)
        executor: Executor = dask_executor().DaskExecutor(client, lambda: _memory(plan, held.result()), ended)
        try:
            yield executor
        finally:
            watch.stop()  # Ctrl-C does not wait for workers


def _check_settings(plan: Plan, watch: Any) -> None:
    """Compare the settings of a user's workers with the plan, and log what makes them slow or unsafe, once a client.

    Raises
    ------
    MemoryLimitError
        If a worker would stop forever at the memory that the plan needs.
    """
    found, peak = watch.on_all_workers(report), plan.chosen.peak_bytes
    refuse_a_pause(found, peak)
    said = _said.setdefault(watch.client, set())
    for text in problems(found, peak, plan.chosen.limit_bytes):
        if text not in said:
            logger.warning("settings of the Dask workers: %s", text)
            said.add(text)


def _memory(plan: Plan, held: int) -> str:
    """Message about the memory of workers and its use, if they hold no more than the plan allows.

    Raises
    ------
    MemoryLimitError
        Before work starts, with what they hold.
    """
    resources, chosen = plan.resources, plan.chosen
    planned = resources.worker_baseline_bytes
    usable = int(chosen.limit_bytes * resources.usable_fraction)
    if not resources.cluster_is_running:
        _note(held, planned)
    needed = chosen.peak_bytes - planned + max(held, planned)
    if needed > usable:
        limit = int(needed / resources.usable_fraction) + 1
        each = format_bytes(1.005 * limit)
        raise MemoryLimitError(
            f"a worker holds {format_bytes(held)} before its first task, with the libraries that are installed "
            f"here and those of the kernel and the store; the plan allowed for {format_bytes(planned)}, and needs "
            f"{format_bytes(chosen.peak_bytes - planned)} besides, of a limit of {format_bytes(chosen.limit_bytes)} a "
            f"worker. "
            + (
                f"Start workers with a memory limit of at least {each} each, with --preload dkrr.preload, or wait "
                f"until other work on them has ended"
                if resources.cluster_is_running
                else f"Give memory_limit={format_bytes(1.005 * limit * chosen.n_workers)!r} or more for "
                f"{plural(chosen.n_workers, 'worker')}, or try again: what the libraries take is noted, and planned "
                f"with"
            )
            + ". Nothing was computed"
        )
    return (
        f"{format_bytes(held)} held before the first task, {format_bytes(chosen.peak_bytes - planned)} planned "
        f"for the tasks, limit {format_bytes(chosen.limit_bytes)}"
    )


def _note(ready: int, planned: int) -> None:
    """Keep what workers hold for the next plan: where it is more than planned for, or much less than was kept."""
    # Not at the top: workers import this module, and detect nothing.
    from dkrr.config import setting
    from dkrr.machine.detection import recorded_baseline
    from dkrr.machine.profile import record_baseline

    if ready > planned or MUCH_LESS * ready < recorded_baseline(setting("profile-directory")):
        record_baseline(ready)


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
    """Tile sizes of the run, for the runs that resume it."""
    asked: dict[str, Any] = field(default_factory=dict)
    """Requested accuracy and steps of the run, and the times of its plan, as in `ASKED_NOTE`."""
    write_bytes: float = Rates().write_bytes
    """Bytes per second that the store takes from all workers together."""
    temporary: TemporaryFolder | None = None
    peak_bytes: int = 0
    """Highest resident memory of any process that did the work, once it is done."""
    notices: list[str] = field(default_factory=list)
    """Messages about what was found in the store."""
    record: RunRecord = field(default_factory=RunRecord)
    meter: Meter = field(default_factory=Meter)
    """Bytes moved outside of tasks: the copy of X, and rows that processes read once and keep."""
    watch: Watch | None = None
    """Watches iterations that a factorisation may replace."""
    factors: bool = False
    """The Gram matrix of a regression is factored, so that a factor of earlier rows serves."""
    kept: Kept | None = None
    """What earlier rows have left, where this fit has more; None: it begins with nothing."""
    _left_out: NDArray[np.intp] = field(default_factory=lambda: np.empty(0, np.intp))
    _resident: list[Rows] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.checkpoints: Checkpoints | None = None
        """Checkpoints of an iteration, where the storage is kept."""
        if isinstance(self.storage, StoredArrays):
            self.progress = self.progress.shown_also(EndsWhenLost(self.storage))
            if self.storage.keeps:
                self.progress = self.progress.shown_also(StageNotes(self.storage))
                self.checkpoints = Checkpoints(self.storage.store)

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
    def run(self) -> str:
        """Name of what processes keep in memory until the end of the run."""
        return f"run-{os.urandom(16).hex()}"

    def forget(self) -> None:
        """Release what processes have kept in memory."""
        if "run" in vars(self):
            self.executor.forget(self.run)

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """Stages of the work that is done, with the time that each took."""
        return self.progress.take_stages()

    @property
    def bytes_read(self) -> int:
        """Bytes read by all workers, with the rows that processes read once and keep."""
        n_bytes = self.meter.bytes_read
        if self.record.tasks:
            n_bytes += self.record.bytes_read
        for rows in self._resident:
            n_bytes += rows.n_bytes * len(self.record.peak_bytes_by_worker)
        return n_bytes

    @property
    def bytes_written(self) -> int:
        """Bytes written by all workers."""
        return self.meter.bytes_written + (self.record.bytes_written if self.record.tasks else 0)

    def commit_growth(self) -> None:
        """Give up what has grown, once all of it has; what is factored from now on begins with nothing."""
        if self.kept is not None:
            self.kept.commit()
            self._left_out, self.kept = self.kept.left_out, None

    @property
    def left_out(self) -> NDArray[np.intp]:
        """Rows that factors in the store have and whose weight is 0 now."""
        return self._left_out if self.kept is None else self.kept.left_out

    @contextmanager
    def side_by_side(self, grid: TileGrid, n_vectors: int) -> Iterator[tuple[Executor, int]]:
        """What runs tasks that sweep over a factor in the store, or multiply by its matrix, and how many at once.

        That is what runs all tasks, but threads where this process would run one after another.
        """
        n_threads = threads_at_once(grid, n_vectors, self.threads) if self.client is None else 1
        if self.slots > 1 or n_threads == 1:
            yield self.executor, self.slots
            return
        with ThreadExecutor(n_threads) as executor:
            yield executor, n_threads

    def run_tasks(
        self,
        stage_name: str,
        tasks: list[Task],
        done_flops: float = 0.0,
        detail: str = "",
        executor: Executor | None = None,
    ) -> dict[str, Any]:
        """Run tasks as one stage of the progress display; their values by key.

        Parameters
        ----------
        done_flops : float
            Work of the stage that an earlier run has done.
        detail : str
            Which part of the stage this is, for the display.
        executor : Executor, optional
            What runs them; None is that of the run.
        """
        self.storage.check()
        total = done_flops + sum(t.flops for t in tasks)
        with self.progress.stage(stage_name, total, done_flops, detail):
            record = (executor or self.executor).run(tasks, self.progress)
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

        def offer(checksums: Checksums) -> growing_run.Offer:
            return growing_run.Offer(data.outputs_in_run, data.weights, checksums, self.factors)

        return self.share(
            data.rows, data.fingerprint, rows_per_chunk, data.notes(), offer if data.outputs_in_run else None
        )

    def share(
        self,
        rows: Rows,
        fingerprint: Callable[[Checksums], dict[str, Any]],
        rows_per_chunk: int,
        notes: dict[str, Any] | None = None,
        offer: Callable[[Checksums], growing_run.Offer] | None = None,
    ) -> Rows:
        """Check the rows, claim the store for this problem, and give rows that every worker can read.

        Parameters
        ----------
        fingerprint : callable
            Computes the fingerprint that a resuming run must share, from the checksums of the rows.
        rows_per_chunk : int
            Rows of a chunk of a copy in the store: where tiles and segments begin at multiples of it, reads waste
            nothing.
        notes : dict, optional
            Notes of the store that runs which resume it read.
        offer : callable, optional
            Makes what the run in the store may be replaced by, from the checksums; None: nothing but itself resumes it.

        Raises
        ------
        InputError
            If the rows hold NaN or infinity.
        StoreError
            If the store belongs to something else, or some worker does not see X.
        """
        name, store = None, self.stored.store
        given, sums = rows, None
        if isinstance(given, WatchedRows):
            rows, sums = given.rows, given.sums
        if self.client is not None and rows.url is not None and (path := local_path(rows.url)) is not None:
            dask_client().check_path_is_shared(self.client, path, f"X at {rows.url}")
        if not rows.is_shared and not isinstance(rows, MemoryRows):
            # Its numbers are computed or decoded only now, once; under a new name, for the store may turn out to be
            # another problem's.
            name = f"rows-{uuid.uuid4().hex[:8]}"
        try:
            if name is not None:
                rows = self._stage(rows, name, rows_per_chunk)
            lengths = [n for n in self._lengths() if n < rows.shape[0]]
            checksums = self._scan(rows, lengths, sums)
            if self.storage.keeps and self.client is not None:
                # A plan that the workers have no memory for must not be what the store holds from then on.
                with self.progress.measured("starting workers"):
                    self.executor.wait_until_ready()  # type: ignore[attr-defined]
            explained = {PLAN: self.explained(), ASKED: self.asked or None} if self.storage.keeps else {}
            problem, notes = fingerprint(checksums), {**(notes or {}), **explained}
            if offer is None or not self.storage.keeps:
                store.claim(problem, self.layout, notes)
            else:
                self.kept, messages = growing_run.claim(store, problem, self.layout, notes, offer(checksums))
                self.notices += messages
                for text in messages:
                    self.progress.note(text)
            self.stored.begin(self.asked)
        except BaseException:
            if name is not None:
                store.delete(name)
            raise
        shared = given if rows.is_shared and name is None else self._copied(rows, name, rows_per_chunk, checksums)
        with suppress(StoreError, OSError):  # what is superseded does not matter to this run
            store.tidy()
        return shared

    def _copied(self, rows: Rows, name: str | None, rows_per_chunk: int, checksums: Checksums) -> StoredCopy:
        """Copy of the rows in the store: of an earlier run, or `name`, which has just been made, or a new one."""
        store, copy = self.stored.store, self._earlier_copy(checksums)
        if copy is not None:
            if name is not None:
                store.delete(name)
            return copy
        if name is None:
            name = store.name_of_copy()
            store.delete(name)  # a copy that was never finished
            rows = self._stage(rows, name, rows_per_chunk)
        assert isinstance(rows, StoredCopy)
        store.set_staged_rows(name, rows.describe(rows_per_chunk))
        return rows

    def _lengths(self) -> list[int]:
        """Numbers of rows at which the run in the store has ended calls; empty where rows have no checksums."""
        found = (self.stored.store.description() or {}).get("fingerprint") if self.storage.keeps else None
        return growing_run.lengths_of(found or {})

    def _earlier_copy(self, checksums: Checksums) -> StoredCopy | None:
        """Copy of X that an earlier run left, if it is X: residuals are to be of the rows that were given."""
        store = self.stored.store
        found = store.staged_rows()
        if found is None:
            return None
        name, described = found
        copy = described_rows(store.place(name), described)
        try:
            copy.check_complete()
            if self._scan(copy, checksums.lengths[:-1]) == checksums:
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

    def _scan(self, rows: Rows, lengths: Sequence[int], sums: BlockSums | None = None) -> Checksums:
        """Refuse NaN and infinity; checksums of the rows (of nothing, in a temporary store); find the `sums`."""
        executor = SerialExecutor() if isinstance(rows, MemoryRows) else self.executor
        n_tasks = 4 * self.slots
        tasks = scan_tasks(rows, "X", digest=self.storage.keeps, n_tasks=n_tasks, lengths=lengths, sums=sums)
        with self.progress.stage("checking X", sum(t.flops for t in tasks)):
            scanned = executor.run(tasks, self.progress)
        if executor is self.executor:  # the record is of those who do the work, and so is its peak memory
            self.add(scanned)
        values = scanned.values()
        for task in tasks:
            if sums is not None:
                sums.take_over(values[task.key][1])
        return checksums_of(rows, [values[t.key][0] for t in tasks], lengths)

    def _stage(self, rows: Rows, name: str, rows_per_chunk: int) -> StoredCopy:
        with self.progress.stage("copying X", 1.0):
            copy = write_rows(rows, self.stored.store.place(name), rows_per_chunk, self.client)
        self.meter.bytes_written += copy.n_bytes
        return copy


QUIET_SECONDS = 2.0
"""Fits projected to be shorter show no progress unless asked to."""


def progress_of(show: bool | None, seconds: float) -> Progress:
    """Display for work of about `seconds`, see `make_progress`; None does not show work below QUIET_SECONDS."""
    return make_progress(False if show is None and seconds < QUIET_SECONDS else show)


@contextmanager
def open_context(plan: Plan, store: str | None, progress: Progress, max_iter: int | None = None) -> Iterator[Context]:
    """Open the storage, and start (or find) the workers, of a plan; without a store it is temporary or in memory.

    Parameters
    ----------
    plan : Plan
    store : str or None
    progress : Progress
    max_iter : int, optional
        Most steps of a method that the plan does not limit.
    """
    chosen = plan.chosen
    execution, in_threads = chosen.place.execution, chosen.method.uses_threads(chosen.place)
    if execution != "dask":
        reset_peak()
    with ExitStack() as stack:
        if _needs_one_blas_thread(plan, in_threads=in_threads):
            stack.enter_context(blas.one_thread())
        if execution == "memory":  # nothing that a killed process would leave behind
            context = _opened(plan, MemoryStorage(), stack, progress, in_threads=in_threads)
        else:
            stack.enter_context(graceful_termination())
            temporary = TemporaryFolder() if store is None else None
            if temporary is not None:
                stack.push(lambda kind, *_: temporary.delete() if kind is not None else None)
            run_store = RunStore(f"{temporary.path}/run.zarr" if temporary else resolved_place(store or ""))
            if store is not None:
                run_store.description()  # what is not a run is refused before a lock is written there
                stack.enter_context(owned(run_store.url))
                delete_partial(run_store.url)
            run_store.open()
            stack.enter_context(growing_run.given_up_if_refused(run_store))
            storage = StoredArrays(run_store, keeps=store is not None)
            context = _opened(plan, storage, stack, progress, in_threads=in_threads)
            context.temporary, context.asked = temporary, _asked(plan, max_iter)
            context.factors = plan.problem.loss == "squared" and chosen.form == "dual" and chosen.method.factors_matrix
            context.layout = chosen.layout() | ({"batch": plan.problem.batch} if plan.problem.batch else {})
        stack.callback(context.forget)
        yield context
        context.peak_bytes = context.record.peak_bytes if execution == "dask" else peak_resident_bytes()


def _asked(plan: Plan, max_iter: int | None) -> dict[str, Any]:
    """Requested accuracy and steps of a run, and the times of its plan: the note `ASKED_NOTE`."""
    solver = plan.problem.solver
    if max_iter is None and isinstance(solver, ConjugateGradient):
        max_iter = solver.max_iter
    planned = [[stage.name, stage.seconds] for stage in plan.chosen.stages]
    folds = plan.problem.interval_folds
    return {"tol": plan.problem.tol, "max_iter": max_iter, "folds": folds, "planned": planned}


def _opened(plan: Plan, storage: Storage, stack: ExitStack, progress: Progress, *, in_threads: bool) -> Context:
    chosen, resources, client = plan.chosen, plan.resources, None
    executor: Executor = SerialExecutor()
    slots = slots_per_process = chosen.place.slots
    n_threads = slots if in_threads else 1
    if not in_threads and chosen.method.factors_matrix and isinstance(storage, MemoryStorage):
        n_threads = chosen.details.row_parts
    if isinstance(storage, StoredArrays) and chosen.place.execution == "dask":
        with progress.measured("starting workers"):
            executor, client = stack.enter_context(dask_workers(plan, storage.store))
        slots_per_process = resources.worker_threads
        slots = chosen.n_workers * slots_per_process
        if resources.cluster_is_running:
            title, *_ = str(plan).splitlines()
            progress = progress.shown_also(dask_client().StageEvents(client, title.removeprefix("dkrr plan: ")))
    elif (own := chosen.method.executor(chosen)) is not None:
        executor = stack.enter_context(own)
    elif in_threads or n_threads > 1:
        executor = stack.enter_context(ThreadExecutor(n_threads))
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
        write_bytes=resources.rates.write_bytes * max(chosen.place.n_workers, 1),
    )


def _needs_one_blas_thread(plan: Plan, *, in_threads: bool) -> bool:
    """Whether tasks run side by side in this process, or are so small that BLAS's threads would not pay."""
    chosen = plan.chosen
    # Threads of a Fourier solve transform, without BLAS.
    if chosen.place.execution == "dask" or not chosen.method.calls_blas:
        return False
    if chosen.place.execution == "memory":
        return in_threads or chosen.seconds * plan.resources.rates.gemm_flops < blas.SMALL_FLOPS
    return in_threads or 2.0 * chosen.tile**3 < blas.SMALL_FLOPS
