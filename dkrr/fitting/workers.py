"""Who does the work of a run: the calling process, its threads, or Dask's workers, which are asked what they hold."""

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from dkrr.cluster import Executor
from dkrr.cluster.folders import private_folder
from dkrr.cluster.local_workers import LocalWorkers
from dkrr.cluster.process import ambient_client
from dkrr.cluster.worker_settings import problems, refuse_a_pause, report
from dkrr.errors import InputError, MemoryLimitError
from dkrr.linalg import TASK_MODULES
from dkrr.planning import Plan
from dkrr.store import RunStore
from dkrr.store.paths import local_path
from dkrr.store.places import place_at
from dkrr.text import format_bytes

logger = logging.getLogger("dkrr")

_said: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()
"""What was said about the workers of each client: every fit of a search would say it again."""

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
    """Executor and client of the workers of a plan: those of the ambient client, or of a cluster of its own.

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
    watch = dask_client().Watch(client, ended)

    def prepare() -> Any:
        if workers is None:
            _check_settings(plan, watch)
        return dask_client().held_when_ready(watch, plan.problem.kernel, [store.url], TASK_MODULES)

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
        If a worker would stop for ever at the memory that the plan needs.
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
                f"{chosen.n_workers} workers, or try again: what the libraries take is noted, and planned with"
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
    from dkrr.machine.profile import record_baseline, recorded_baseline

    if ready > planned or MUCH_LESS * ready < recorded_baseline():
        record_baseline(ready)
