"""Measurements of a machine: in half a second before the first long fit, or for longer at request (``dkrr calibrate``).

dkrr's default rates are those of one kind of machine. So before the first long fit the calling process measures for
about half a second, with all its cores at work; a short fit does not pay for it. ``dkrr calibrate`` measures the same
for longer: it replaces the result.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import psutil

from dkrr.checks import location, positive
from dkrr.cluster.folders import private_folder
from dkrr.cluster.process import ambient_client
from dkrr.config import setting, temporary_directory
from dkrr.errors import InputError
from dkrr.limits import resident_bytes
from dkrr.machine.detection import fingerprint_of, load_profile, local_workers, rates_at, reports_of
from dkrr.machine.measures import (
    CORE_BYTES,
    N_CHUNKS,
    QUICK_CHUNKS,
    Measured,
    measure_cores,
    measure_store,
    on_threads,
)
from dkrr.machine.profile import (
    cluster_fingerprint,
    create_profile_folder,
    keep_profile,
    machine_fingerprint,
    median_rates,
    save_profile,
)
from dkrr.planning.plan import Plan
from dkrr.planning.resources import Fingerprint, Profile, Rates, Resources

LONG_SECONDS = 4.0
"""Projected time of a fit above which the measurement is worth its half a second."""
MUCH_STORE_SECONDS = 1.0
"""Projected time of reading and writing above which the store is measured as well."""
MAX_WRITERS = 4
"""Threads that measure the store at once: more would share one disk, and write more."""
MAX_BUSY_CORES_FOR_STORE = 0.5
"""Cores kept busy by other programs, above which the store's rates would be theirs as well."""

T = TypeVar("T")


def newly_measured(plan: Plan) -> Resources | None:
    """Resources with rates that were measured now, as the fit is long; None if none are missing, or can be measured.

    A plan that is made with them may be one that uses a store, which was not measured then.
    """
    resources = plan.resources
    may_measure = setting("quick-measurement") and resources.rates_from in ("defaults", "quick")
    # Beside other tasks of the same worker, or other processes of a pool, every rate would be too low.
    if not may_measure or plan.seconds < LONG_SECONDS or resources.confined:
        return None
    client = ambient_client() if resources.cluster_is_running and not resources.assumed else None
    fingerprint = fingerprint_of(reports_of(client))
    known = load_profile(fingerprint)
    if known is None and resources.rates_from == "quick":  # measured already, and the file is gone or another's
        return None
    if fingerprint["where"] == "cluster":  # all workers are measured at the same time
        profile = None if known else measured_profile(fingerprint, partial(_on_workers, client, measure_cores))
    else:
        profile = _of_machine(fingerprint, known, plan)
    if profile is None:
        return None
    keep_profile(profile)
    # The measurement leaves some memory to the process: buffers of BLAS, and what the allocator keeps.
    held = max(resources.local_baseline_bytes, resident_bytes())
    return replace(
        resources, local_baseline_bytes=held, **rates_at(profile, setting("rates"), resources.store, resources.rows)
    )


def _of_machine(fingerprint: Fingerprint, known: Profile | None, plan: Plan) -> Profile | None:
    """Profile of this machine with what this plan needs; None if that is known, or cannot be measured."""
    resources, profile = plan.resources, known
    threads = min(resources.local_threads, (resources.local_limit_bytes - resources.local_baseline_bytes) // CORE_BYTES)
    if known is None and threads > 0:
        profile = measured_profile(fingerprint, lambda: on_threads(threads, measure_cores))
    if profile is not None and not profile.folder and _uses_store(plan):
        profile = _with_disk(profile, resources.local_threads)
    return None if profile is known else profile


def _on_workers(client: Any, function: Callable[[], T]) -> list[T]:
    """Results of a function on every worker of a client at the same time."""
    from dkrr.cluster.dask_client import on_every_worker

    return on_every_worker(client, function)


def measured_profile(fingerprint: Fingerprint, measure: Callable[[], list[Measured]]) -> Profile:
    """Profile of the medians of what all threads or workers measured."""
    begun = time.perf_counter()
    with other_load() as load:
        measured = measure()
    rates, defaults = median_rates(measured), Rates()
    # A factorisation on all cores needs them all for itself: it is as fast as on one, to the ratio of the defaults.
    rates = replace(rates, dense_flops=rates.potrf_flops * defaults.dense_flops / defaults.potrf_flops)
    return Profile(
        fingerprint=fingerprint,
        time=_now(),
        rates=rates,
        workers=tuple(measured),
        seconds=time.perf_counter() - begun,
        other_cores_busy=load[0],
        is_quick=True,
    )


def _with_disk(profile: Profile, cores: int) -> Profile:
    """Profile with the rates of the store that fits use by default.

    Unchanged if nothing can be written there, or where other programs are busy: reading and writing wait for the disk,
    so that the clock of the thread does not tell what their share is.
    """
    writers = min(cores, MAX_WRITERS)
    try:
        with private_folder("quick") as scratch, other_load() as load:
            found = with_store(profile, scratch, partial(on_threads, writers), QUICK_CHUNKS, writers / cores)
    except OSError:
        return profile
    return profile if load[0] > MAX_BUSY_CORES_FOR_STORE else found


def with_store(
    profile: Profile,
    scratch: str,
    run: Callable[[Callable[[], Measured]], list[Measured]],
    n_chunks: int = N_CHUNKS,
    share: float = 1.0,
) -> Profile:
    """Profile with the measured rates of a store.

    Parameters
    ----------
    profile : Profile
    scratch : str
        Private folder in the folder whose file system is measured.
    run : callable
        Results of a function on several threads or workers at the same time.
    n_chunks : int
        Chunks that each of them writes and reads.
    share : float
        Number of them over the number of tasks that will use the disk at the same time.
    """
    begun = time.perf_counter()
    results = run(partial(measure_store, scratch, n_chunks))
    # The slowest, as the disk is shared; reads from the system's cache are limited by the core.
    names = {name for r in results for name in r}
    found: dict[str, Any] = {name: min(r[name] for r in results if name in r) for name in names}
    for name in {"write_bytes", "cold_read_bytes"} & set(found):
        found[name] *= share
    seconds = profile.seconds + time.perf_counter() - begun
    rates = replace(profile.rates, **found)
    return replace(profile, rates=rates, time=_now(), seconds=seconds, folder=str(Path(scratch).parent))


def _uses_store(plan: Plan) -> bool:
    """Whether the time of reading and writing is a part of the plan's that matters."""
    if plan.execution == "memory" or plan.resources.assumed or plan.resources.disk_rates is not None:
        return False
    rates, slots = plan.resources.rates, plan.chosen.place.slots
    seconds = plan.chosen.read_bytes / rates.read_bytes + plan.chosen.written_bytes / rates.write_bytes
    return seconds / slots > MUCH_STORE_SECONDS


@contextmanager
def other_load() -> Iterator[list[float]]:
    """Mean number of cores that other processes keep busy inside the block: the list's only element, after it."""
    found, start, busy, own = [0.0], time.perf_counter(), _busy_seconds(), time.process_time()
    yield found
    others = _busy_seconds() - busy - (time.process_time() - own)
    found[0] = max(0.0, others / max(time.perf_counter() - start, 1e-9))


def _busy_seconds() -> float:
    """Seconds that all cores have been busy."""
    times = psutil.cpu_times()
    return float(times.user + times.system + getattr(times, "nice", 0.0))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


SECONDS = 0.25
"""Seconds for each of the measurements of a core."""
MAX_CALIBRATION_SECONDS = 60.0


def calibrate(path: str | Path | None = None, *, seconds: float = SECONDS) -> Profile:
    """Measure the workers of the ambient Dask client, or else this machine, and keep the result.

    It is the measurement that the first long fit makes in half a second, for longer and with the
    store. Later plans use it: it is found by a fingerprint of the machine or cluster, in the folder
    ``dkrr.profile-directory`` of Dask's configuration. Takes about ten seconds; measure when no
    other program runs. The latency of Dask and the rates of buckets are documented defaults, which
    ``dkrr.rates`` in Dask's configuration replaces.

    Parameters
    ----------
    path : str or Path, optional
        Folder, seen by all workers, on the file system whose bandwidth is to be measured; None:
        ``dkrr.temporary-directory``.
    seconds : float, default=0.25
        Time of each measurement.

    Returns
    -------
    Profile
        Measured rates; ``profile.rates`` has their medians over the workers.

    Raises
    ------
    InputError
        If the folder does not exist, or the result cannot be kept.

    See Also
    --------
    dkrr.plan : Make a plan without carrying it out.

    Examples
    --------
    >>> import dkrr
    >>> profile = dkrr.calibrate()  # doctest: +SKIP
    """
    seconds = positive(seconds, "seconds")
    if seconds > MAX_CALIBRATION_SECONDS:
        raise InputError(
            f"seconds is {seconds:g}; expected at most {MAX_CALIBRATION_SECONDS:g}: each of many measurements takes it"
        )
    if path is not None:
        path = location(path, "path", "an existing folder, or None: the temporary one")
    create_profile_folder()  # before the work
    where = str(path or temporary_directory())
    if not os.path.isdir(where):  # noqa: PTH112 (Path's raises an error where there is no permission)
        raise InputError(f"path is {where}; expected an existing folder: give one that every worker can write to")
    client = ambient_client()
    if client is None:
        fingerprint, run = machine_fingerprint(), partial(on_threads, local_workers(None))
    else:
        from dkrr.cluster.dask_client import check_folder_is_shared

        fingerprint, run = cluster_fingerprint(reports_of(client)), partial(_on_workers, client)
    with private_folder("calibrate", where) as scratch:
        if client is not None:
            check_folder_is_shared(client, Path(scratch))
        profile = measured_profile(fingerprint, lambda: run(partial(measure_cores, seconds)))
        profile = with_store(profile, scratch, run)
    profile = replace(profile, is_quick=False)
    save_profile(profile)
    return profile
