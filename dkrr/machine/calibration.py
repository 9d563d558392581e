"""``dkrr calibrate``: measured speed of this machine's workers, or those of a cluster."""

import os
import time
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from dkrr.config import temporary_directory
from dkrr.errors import InputError
from dkrr.linalg import TASK_MODULES
from dkrr.machine.detection import ambient_client, cluster_of, local_workers
from dkrr.machine.measures import Measured, measure_process, measure_threads, other_cores_busy
from dkrr.machine.profile import (
    Fingerprint,
    Profile,
    create_profile_folder,
    load_profile,
    machine_fingerprint,
    median_rates,
    save_profile,
)
from dkrr.machine.storage_measures import measure_storage, refuse_memory, scratch_below, storage_from
from dkrr.planning.limits import AVAILABLE_FRACTION
from dkrr.planning.resources import ROUND_TRIP_BYTES
from dkrr.planning.storage import Storage
from dkrr.runtime import Meter, Progress, Task
from dkrr.runtime.folders import private_folder
from dkrr.runtime.limits import available_bytes
from dkrr.tiles.paths import local_path
from dkrr.values import location, positive

SECONDS = 0.25
"""Seconds for each of the measurements of a worker."""
BUCKET_FACTOR = 8.0
"""Time for which chunks are written to a bucket, and read, over that of other measurements."""
MAX_SECONDS = 60.0
WATCH_SECONDS = 0.5
"""Seconds for which the other load is watched first."""
N_TASKS = 40
"""Empty tasks whose cost is measured."""
CHAIN = 20
"""Empty tasks that wait for each other."""
MESSAGE_BYTES = 2**26
"""Bytes of the array that one worker gets from another."""


def calibrate(folder: str | None = None, seconds: float = SECONDS, store: str | None = None) -> Profile:
    """Measure the workers of the ambient Dask client, or else this machine, and keep the result.

    Later plans use it: it is found by a fingerprint of the machine or cluster, in the folder
    ``dkrr.profile-directory`` of Dask's configuration. Takes about ten seconds; measure when no other program runs.

    With `store`, the speed of a bucket or of another file system is measured from the workers, one alone and all at
    the same time, and kept beside those of others: plans use it for stores and rows in this bucket or file system.
    It takes about ten seconds, writes at most 200 MB for each task, and deletes them. The machine is measured as well
    if it was not before, or if `folder` is given.

    Parameters
    ----------
    folder : str, optional
        Folder, seen by all workers, on the file system whose bandwidth is to be measured; default
        ``dkrr.temporary-directory``.
    seconds : float
        Time of each measurement; a bucket's take eight times as long.
    store : str, optional
        URL of a bucket, or of a name in it below which objects may be written and deleted (``s3://bucket``), or an
        existing folder on another file system.

    Returns
    -------
    Profile

    Raises
    ------
    InputError
        If the folder does not exist, the store is in the memory of a process, or the result cannot be kept.
    StoreError
        If the store cannot be written to.
    """
    seconds = positive(seconds, "seconds")
    if seconds > MAX_SECONDS:
        raise InputError(
            f"seconds is {seconds:g}; expected at most {MAX_SECONDS:g}: each of many measurements takes it"
        )
    if folder is not None:
        folder = location(folder, "folder", "an existing folder, or None: the temporary one")
    if store is not None:
        store = location(store, "store", "a URL, an existing folder, or None")
        refuse_memory(store)
        if (local := local_path(store)) is not None:
            _check_folder(str(local), "store")
    create_profile_folder()  # before the work
    where = folder or temporary_directory()
    _check_folder(str(where), "folder")
    client = ambient_client()
    if client is None:
        local_workers(None)  # a wrong number is refused before anything is measured
    fingerprint = machine_fingerprint() if client is None else cluster_of(client)
    profile = load_profile(fingerprint)
    if profile is None or profile.is_quick or store is None or folder is not None:
        known = () if profile is None else profile.stores
        profile = replace(_measured(client, fingerprint, str(where), seconds), stores=known)
    if store is not None:
        profile = profile.with_storage(_measured_storage(client, store, BUCKET_FACTOR * seconds))
    save_profile(profile)
    return profile


def _check_folder(path: str, name: str) -> None:
    if not os.path.isdir(path):  # noqa: PTH112 (Path's raises an error where there is no permission)
        raise InputError(f"{name} is {path}; expected an existing folder: give one that every worker can write to")


def _measured_storage(client: Any, store: str, seconds: float) -> Storage:
    """Speed of a store, measured from the workers of a client, or those of this machine."""
    from dkrr.runtime.dask_client import check_folder_is_shared, on_every_worker, on_one_worker

    with ExitStack() as stack:
        scratch = stack.enter_context(scratch_below(store))
        if client is None:
            client = stack.enter_context(_local_client(stack.enter_context(private_folder("calibrate"))))
        elif local_path(store) is not None:
            check_folder_is_shared(client, Path(scratch))
        (alone,) = on_one_worker(client, measure_storage, scratch, 1, 0.0, seconds)
        slots = max(client.nthreads().values())
        found = on_every_worker(client, measure_storage, scratch, slots, time.time() + 0.5, seconds)
        return storage_from(store, alone, [m for each in found for m in each])


def _measured(client: Any, fingerprint: Fingerprint, where: str, seconds: float) -> Profile:
    """Profile of the workers of a client, or those of this machine."""
    begun, busy = time.perf_counter(), other_cores_busy(WATCH_SECONDS)
    with private_folder("calibrate", where) as scratch:
        here = measure_threads(seconds)
        if client is not None:
            measured, kernels, shared = _of_workers(client, scratch, seconds)
        else:
            started = time.perf_counter()
            with _local_client(scratch) as client:
                ready = time.perf_counter()
                measured, kernels, shared = _of_workers(client, scratch, seconds)
                done = time.perf_counter()
            shared["cluster_start_seconds"] = time.perf_counter() - done + ready - started
    return Profile(
        fingerprint=fingerprint,
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        rates=median_rates(measured, kernels, **here, **shared),
        workers=tuple(measured),
        folder=where,
        seconds=time.perf_counter() - begun,
        other_cores_busy=busy,
    )


def _local_client(scratch: str) -> AbstractContextManager[Any]:
    from dkrr.runtime.local_workers import local_client

    n_workers = local_workers(None)
    return local_client(n_workers, int(AVAILABLE_FRACTION * available_bytes()) // n_workers, scratch, TASK_MODULES)


def _of_workers(client: Any, scratch: str, seconds: float) -> tuple[list[Measured], list[Any], Measured]:
    """Measurements of every worker, without and with its kernels; and those that belong to no worker."""
    from dkrr.runtime.dask_client import check_folder_is_shared, on_every_worker, seconds_between_workers
    from dkrr.runtime.dask_executor import DaskExecutor

    check_folder_is_shared(client, Path(scratch))
    results = on_every_worker(client, measure_process, scratch, time.time() + 0.5, seconds)
    executor, slots = DaskExecutor(client), sum(client.nthreads().values())
    tasks = [Task(f"empty-{k}", do_nothing) for k in range(N_TASKS)]
    executor.run(tasks, Progress())  # the first tasks import modules
    shared: Measured = {"task_seconds": executor.run(tasks, Progress()).seconds * slots / N_TASKS}
    chain = [Task(f"empty-{k}", do_nothing, depends=(f"empty-{k - 1}",) if k else ()) for k in range(CHAIN)]
    shared["chain_seconds"] = executor.run(chain, Progress()).seconds / CHAIN
    vectors = np.zeros((ROUND_TRIP_BYTES // 8, 1))
    echoes = [Task(f"echo-{k}", echo) for k in range(3 * slots)]
    executor.total(echoes, vectors)
    trips = [executor.total(echoes, vectors)[1].seconds for _ in range(5)]
    shared["round_trip_seconds"] = float(np.median(trips))
    between = seconds_between_workers(client, MESSAGE_BYTES)
    if between is not None:
        shared["network_bytes"] = MESSAGE_BYTES / between
    return [m for m, _ in results], [k for _, k in results], shared


def do_nothing(meter: Meter) -> None:
    """Task: nothing."""


def echo(meter: Meter, vectors: Any) -> Any:  # noqa: ARG001
    """Task: the vectors that it was given."""
    return vectors
