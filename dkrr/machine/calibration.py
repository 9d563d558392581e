"""``dkrr calibrate``: measured speed of this machine's workers, or those of a cluster."""

import os
import time
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from dkrr.config import temporary_directory
from dkrr.errors import InputError
from dkrr.linalg import TASK_MODULES
from dkrr.machine.detection import ambient_client, cluster_of, local_workers
from dkrr.machine.limits import available_bytes
from dkrr.machine.measures import Measured, measure_process, measure_threads, other_cores_busy
from dkrr.machine.profile import Profile, create_profile_folder, machine_fingerprint, median_rates, save_profile
from dkrr.planning.limits import AVAILABLE_FRACTION
from dkrr.planning.resources import ROUND_TRIP_BYTES
from dkrr.runtime import Meter, Progress, Task
from dkrr.runtime.folders import private_folder
from dkrr.values import location, positive

SECONDS = 0.25
"""Seconds for each of the measurements of a worker."""
MAX_SECONDS = 60.0
WATCH_SECONDS = 0.5
"""Seconds for which the other load is watched first."""
N_TASKS = 40
"""Empty tasks whose cost is measured."""
CHAIN = 20
"""Empty tasks that wait for each other."""
MESSAGE_BYTES = 2**26
"""Bytes of the array that one worker gets from another."""


def calibrate(folder: str | None = None, seconds: float = SECONDS) -> Profile:
    """Measure the workers of the ambient Dask client, or else this machine, and keep the result.

    Later plans use it: it is found by a fingerprint of the machine or cluster, in the folder
    ``dkrr.profile-directory`` of Dask's configuration. Takes about ten seconds; measure when no other program runs.

    Parameters
    ----------
    folder : str, optional
        Folder, seen by all workers, on the file system whose bandwidth is to be measured; default
        ``dkrr.temporary-directory``.
    seconds : float
        Time of each measurement.

    Returns
    -------
    Profile

    Raises
    ------
    InputError
        If the folder does not exist, or the result cannot be kept.
    """
    seconds = positive(seconds, "seconds")
    if seconds > MAX_SECONDS:
        raise InputError(
            f"seconds is {seconds:g}; expected at most {MAX_SECONDS:g}: each of many measurements takes it"
        )
    if folder is not None:
        folder = location(folder, "folder", "an existing folder, or None: the temporary one")
    create_profile_folder()  # before the work
    where = folder or temporary_directory()
    if not os.path.isdir(where):  # noqa: PTH112 (Path's raises an error where there is no permission)
        raise InputError(f"folder is {where}; expected an existing folder: give one that every worker can write to")
    client = ambient_client()
    if client is None:
        local_workers(None)  # a wrong number is refused before anything is measured
    begun, busy = time.perf_counter(), other_cores_busy(WATCH_SECONDS)
    with private_folder("calibrate", str(where)) as scratch:
        here = measure_threads(seconds)
        if client is not None:
            fingerprint = cluster_of(client)
            measured, kernels, shared = _of_workers(client, scratch, seconds)
        else:
            fingerprint, started = machine_fingerprint(), time.perf_counter()
            with _local_client(scratch) as client:
                ready = time.perf_counter()
                measured, kernels, shared = _of_workers(client, scratch, seconds)
                done = time.perf_counter()
            shared["cluster_start_seconds"] = time.perf_counter() - done + ready - started
    profile = Profile(
        fingerprint=fingerprint,
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        rates=median_rates(measured, kernels, **here, **shared),
        workers=tuple(measured),
        folder=str(where),
        seconds=time.perf_counter() - begun,
        other_cores_busy=busy,
    )
    save_profile(profile)
    return profile


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
