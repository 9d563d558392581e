"""Resources of this machine or cluster, for the planner."""

import os
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

import dask
import psutil

from dkrr.checks import parse_bytes, shown, whole
from dkrr.cluster.process import Confinement, ambient_client, confinement, thread_share
from dkrr.cluster.worker_settings import WorkerReport
from dkrr.config import checked_settings, setting
from dkrr.errors import InputError
from dkrr.limits import ROOT, available_bytes, process_limit_bytes, resident_bytes, usable_cores
from dkrr.machine.gpu import known_gpu
from dkrr.machine.profile import (
    PRELOAD,
    cluster_fingerprint,
    file_of,
    file_with,
    is_saved,
    machine_fingerprint,
    parsed_baseline,
    parsed_profile,
    path_in_folder,
    profile_path,
    rates_of_stores,
    read_kept,
    unsaved,
    workers_file,
)
from dkrr.planning.resources import (
    AVAILABLE_FRACTION,
    CLUSTER_FRACTION,
    LOCAL_FRACTION,
    WORKER_BASELINE_BYTES,
    Fingerprint,
    Profile,
    Rates,
    RatesFrom,
    Resources,
    WorkerShare,
)
from dkrr.store.places import free_bytes
from dkrr.text import format_bytes, plural

DEFAULTS: tuple[Rates, RatesFrom] = (Rates(), "defaults")
T = TypeVar("T")

MAX_WORKERS = 10**5
"""More processes are in no cluster."""
MAX_CORES = 10**4
"""More cores are in no machine."""


def detect(
    memory_limit: int | str | None,
    store: str | None,
    workers: int | None = None,
    root: Path = ROOT,
    worker_memory: int | str | None = None,
    cores: int | None = None,
    rows: str | None = None,
) -> Resources:
    """Resources of the ambient Dask client, or else of this machine; or of a cluster that does not exist yet.

    Parameters
    ----------
    memory_limit : int, str or None
        Over all workers of one machine; None takes ``dkrr.memory-limit``, then the memory that is available.
    store : str or None
        Path or URL of the run's store; None: a temporary one.
    workers : int, optional
        Worker processes; None takes ``dkrr.local.workers``, then one for each core.
    root : Path
        Where the limits of this process's control groups are looked up.
    worker_memory : int or str, optional
        Memory of each of the `workers`, on their own machines, which need not exist.
    cores : int, optional
        Cores of each of them, which run a task each; None: 1.
    rows : str, optional
        Path or URL of X, where processes read it there.

    Raises
    ------
    InputError
        If a value cannot be used.
    """
    settings = checked_settings()
    threads = 1
    if worker_memory is not None or cores is not None:
        threads = _checked_threads(worker_memory, workers, memory_limit, cores)
    limit = settings["memory-limit"] if memory_limit is None else memory_limit
    limit_bytes = None if limit is None else parse_bytes(limit)
    process, available, n_cores = resident_bytes(), available_bytes(root), usable_cores(root)
    each = process_limit_bytes() if limit_bytes is None else None
    client = ambient_client() if workers is None and worker_memory is None else None
    confined = confinement() if client is None and worker_memory is None else None
    folder, rates = settings["profile-directory"], settings["rates"]
    # Memory that this process holds already is part of its own limit, but not available to workers.
    local_limit = int(AVAILABLE_FRACTION * (available + process)) if limit_bytes is None else limit_bytes
    workers_limit = int(AVAILABLE_FRACTION * available) if limit_bytes is None else limit_bytes
    if each is not None:
        each = int(AVAILABLE_FRACTION * each)
        local_limit = min(local_limit, each)
    common: dict[str, Any] = {
        "local_threads": n_cores,
        "local_limit_bytes": local_limit,
        "local_baseline_bytes": process,
        "disk_free_bytes": _free_bytes(store, settings["temporary-directory"]),
        "limit_is_given": limit_bytes is not None,
        "memory_bytes": available + process,
        "process_limit_bytes": each,
        "gpu": known_gpu(),
    }
    if client is not None:
        reports = reports_of(client)
        profile = load_profile(fingerprint_of(reports))
        return _of_workers(reports, limit_bytes, common | rates_at(profile, rates, store, rows))
    given = rates_at(_kept(file_with(n_cores), parsed_profile, folder), rates, store, rows)
    if worker_memory is not None:
        return _assumed(local_workers(workers), threads, parse_bytes(worker_memory, "worker_memory"), common | given)
    common |= given
    if confined is not None:
        return _confined(confined, common)
    n_workers = n_cores if workers is None and settings["local.workers"] is None else local_workers(workers, root)
    return Resources(
        n_workers=n_workers,
        worker_threads=1,
        worker_limit_bytes=workers_limit // n_workers if each is None else min(workers_limit // n_workers, each),
        worker_baseline_bytes=max(WORKER_BASELINE_BYTES, recorded_baseline(folder)),
        usable_fraction=LOCAL_FRACTION,
        **common,
    )


def _confined(confined: Confinement, common: dict[str, Any]) -> Resources:
    """Resources of a process that does all the work itself, beside other tasks or processes that do the same."""
    shared, held, limit = confined.n_sharing, common["local_baseline_bytes"], common["local_limit_bytes"]
    threads = thread_share(confined, common["local_threads"])
    share = None
    if confined.memory_limit is not None:
        of_worker = WorkerShare(shared, CLUSTER_FRACTION)
        allowed = of_worker.of(confined.memory_limit, held)
        share = of_worker if allowed <= limit else None  # the user's limit, or the machine's memory, may be less
        limit = min(limit, allowed)
    elif not common["limit_is_given"]:
        limit = held + max(0, limit - held) // shared  # memory_limit itself is of one process
    return Resources(
        n_workers=1,
        worker_threads=1,
        worker_limit_bytes=limit,
        worker_baseline_bytes=WORKER_BASELINE_BYTES,
        usable_fraction=LOCAL_FRACTION,
        confined=confined.reason,
        share=share,
        **(common | {"local_threads": threads, "local_limit_bytes": limit}),
    )


def local_workers(workers: int | None, root: Path = ROOT) -> int:
    """Worker processes that dkrr starts itself.

    Raises
    ------
    InputError
        If the number cannot be used.
    """
    n_workers = setting("local.workers") if workers is None else workers
    n_workers = usable_cores(root) if n_workers is None else n_workers
    try:
        return whole(n_workers, "workers", 1, maximum=MAX_WORKERS)
    except InputError:
        raise InputError(
            f"workers is {shown(n_workers)}; expected a whole number of at least 1 (and at most {MAX_WORKERS:,}), or "
            f"None: one for each core"
        ) from None


def _of_workers(workers: Sequence[WorkerReport], limit_bytes: int | None, common: dict[str, Any]) -> Resources:
    by_host = Counter(worker.host for worker in workers)
    limits = [w.memory_limit for w in workers if w.memory_limit]
    if limit_bytes is not None:
        # The limit is for one machine; the workers of the fullest one share it.
        limits.append(limit_bytes // max(by_host.values()))
    if not limits:
        limits = [int(AVAILABLE_FRACTION * available_bytes()) // max(by_host.values())]
    whole = {w.host: sum(v.memory_limit for v in workers if v.host == w.host) for w in workers}
    # The memory of their machines is not known; it is at least what the workers may take together.
    common["memory_bytes"] = min(whole.values()) if all(w.memory_limit for w in workers) else None
    common["process_limit_bytes"] = None  # the calling process's limit, not the workers'
    return Resources(
        n_workers=len(workers),
        n_hosts=len(by_host),
        worker_threads=max(w.threads for w in workers),
        worker_limit_bytes=min(limits),
        worker_baseline_bytes=max(WORKER_BASELINE_BYTES, *(w.resident_bytes for w in workers)),
        usable_fraction=CLUSTER_FRACTION,
        cluster_is_running=True,
        **common,
    )


def _checked_threads(
    worker_memory: int | str | None, workers: int | None, memory_limit: int | str | None, cores: int | None
) -> int:
    """Cores of each worker of a cluster that need not exist."""
    if worker_memory is None:
        raise InputError(
            f"cores is {shown(cores)} without worker_memory; expected workers, worker_memory and cores together: they "
            f"describe a cluster that need not exist"
        )
    if workers is None:
        raise InputError(
            f"worker_memory is {worker_memory!r} without workers; expected both: give workers=, the number of worker "
            f"processes with this memory each"
        )
    if memory_limit is not None:
        raise InputError(
            f"worker_memory is {worker_memory!r} and memory_limit is {memory_limit!r}; expected one of them: "
            f"worker_memory= is of each worker of a cluster, memory_limit= of one machine"
        )
    return 1 if cores is None else whole(cores, "cores", 1, maximum=MAX_CORES)


def _assumed(n_workers: int, threads: int, worker_bytes: int, common: dict[str, Any]) -> Resources:
    """Workers of a cluster that does not exist yet, with the cores of this machine and a store that they share."""
    rates = common["rates"]
    # Nothing is known of the machines' caches of files, nor is what one worker wrote in that of another.
    rates = replace(rates, read_bytes=min(rates.read_bytes, rates.cold_read_bytes))
    n_cores, each = n_workers * threads, "worker" if threads == 1 else "core"
    moved = f"{rates.read_bytes / 1e9:.2g} GB/s to each {each} ({n_cores * rates.read_bytes / 1e9:.3g} GB/s to all)"
    sent = f"{rates.network_bytes / 1e9:.2g} GB/s, {rates.round_trip_seconds * 1e3:.2g} ms for a vector and its results"
    common |= {"rates": rates}
    common |= {"memory_bytes": None, "process_limit_bytes": None, "limit_is_given": False, "disk_free_bytes": None}
    return Resources(
        n_workers=n_workers,
        n_hosts=n_workers,
        worker_threads=threads,
        worker_limit_bytes=worker_bytes,
        worker_baseline_bytes=max(WORKER_BASELINE_BYTES, recorded_baseline(setting("profile-directory"))),
        usable_fraction=CLUSTER_FRACTION,
        cluster_is_running=True,
        assumed=(
            f"assumed: {plural(n_workers, 'Dask worker')} of {'one thread' if threads == 1 else f'{threads} threads'} "
            f"and {format_bytes(worker_bytes)} each; every {'worker' if threads == 1 else 'thread'} as fast "
            f"as a core of this machine while all of its cores work; a shared store that delivers {moved}; a network "
            f"with {sent}"
        ),
        **common,
    )


def describe() -> dict[str, Any]:
    """Resources that were found, and the rates that plans use, as values of JSON."""
    resources, fingerprint = detect(None, None), fingerprint_of(reports_of(ambient_client()))
    profile = load_profile(fingerprint)
    values = asdict(resources)
    return {
        "fingerprint": fingerprint,
        "resources": {name: value for name, value in values.items() if name != "rates"},
        "rates": values["rates"],
        "profile": None if profile is None or not is_saved(fingerprint) else str(profile_path(fingerprint)),
        "measured": None if profile is None else {n: v for n, v in profile.to_dict().items() if n != "rates"},
    }


def reports_of(client: Any) -> list[WorkerReport]:
    """Report of every worker of a client; none without one."""
    if client is None:
        return []
    from dkrr.cluster.dask_client import worker_reports

    return worker_reports(client)


def fingerprint_of(workers: Sequence[WorkerReport]) -> Fingerprint:
    """Fingerprint whose rates hold for workers: of their cluster; of this machine, if they run here and are unmeasured.

    Without any it is of this machine, too.
    """
    if not workers:
        return machine_fingerprint()
    fingerprint = cluster_fingerprint(workers)
    here = {address.address for addresses in psutil.net_if_addrs().values() for address in addresses}
    is_here = {w.host for w in workers} <= here | {"127.0.0.1", "localhost"}
    return machine_fingerprint() if is_here and load_profile(fingerprint) is None else fingerprint


def _kept(name: str, parse: Callable[[Any, str], T], configured: str | None) -> T | None:
    """Value in a file of the profiles' folder now, or that could not be written there; None without one."""
    found: T | None = unsaved.get((str(configured), name)) if unsaved else None
    if found is not None:
        return found
    try:
        path = path_in_folder(name, configured, os.environ.get("XDG_CACHE_HOME"), os.environ.get("HOME"))
        changed = os.stat(path).st_mtime_ns  # noqa: PTH116 (every fit asks)
    except (OSError, RuntimeError):  # no home directory: no file
        return None
    return read_kept(path, changed, parse)


def load_profile(fingerprint: Fingerprint) -> Profile | None:
    """Profile of a machine or cluster; None if it was never measured, or by another version of dkrr."""
    return _kept(file_of(fingerprint), parsed_profile, setting("profile-directory"))


def recorded_baseline(configured: str | None) -> int:
    """Bytes that workers of this environment were found to hold; 0 if no more than planned for.

    The folder of the profiles is the configured one; None: the user's.
    """
    return _kept(workers_file(str(dask.config.get(PRELOAD, []))), parsed_baseline, configured) or 0


def known_rates(profile: Profile | None, given: Mapping[str, float]) -> tuple[Rates, RatesFrom]:
    """Rates from Dask's configuration, else as measured, else the defaults; and which of them."""
    rates, rates_from = DEFAULTS
    if profile is not None:
        rates, rates_from = profile.rates, "quick" if profile.is_quick else "calibration"
    if not given:
        return rates, rates_from
    if "gemm-gflops" in given:
        rates, rates_from = rates.faster(given["gemm-gflops"] * 1e9 / rates.gemm_flops), "configuration"
    named = {"read-gbytes": ("read_bytes", 1e9), "write-gbytes": ("write_bytes", 1e9)}
    named |= {
        "cold-read-gbytes": ("cold_read_bytes", 1e9),
        "task-seconds": ("task_seconds", 1.0),
        "cluster-start-seconds": ("cluster_start_seconds", 1.0),
    }
    changes = {field: given[name] * unit for name, (field, unit) in named.items() if name in given}
    return replace(rates, **changes), rates_from


def rates_at(
    profile: Profile | None, given: Mapping[str, float], store: str | None, rows: str | None
) -> dict[str, Any]:
    """Fields of Resources about rates, for a run stored in one place and X in another.

    Parameters
    ----------
    profile : Profile or None
        Of the machine or cluster.
    given : mapping
        Rates from Dask's configuration.
    store : str or None
        Path or URL; None: the temporary folder.
    rows : str or None
        Path or URL of X; None: in memory, or read by the calling process.
    """
    rates, rates_from = known_rates(profile, given)
    if store is None and rows is None:
        return {"rates": rates, "rates_from": rates_from}
    return {"rates_from": rates_from} | rates_of_stores(rates, store, rows)


def _free_bytes(store: str | None, temporary: str | None) -> int | None:
    """Free space for the store; none without a temporary folder, which fits in memory do not need."""
    if store is not None:
        return free_bytes(store)
    import tempfile  # not by processes that keep nothing

    try:
        temporary = temporary or tempfile.gettempdir()
        return shutil.disk_usage(temporary).free
    except OSError:
        return 0 if temporary is None else free_bytes(temporary)
