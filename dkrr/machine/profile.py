"""Measured rates of a machine or a cluster, kept in a file, with which a plan's seconds are those of this hardware.

Rates of runs and rows in a bucket: Dask's configuration, else documented defaults for object stores.

Memory that a worker holds before its first task, where that is more than planned for: recorded when workers start. It
depends on what is installed (libraries that import others, a preload in Dask's configuration) and not on a fit.
"""

import hashlib
import json
import os
import platform
import re
import sys
import sysconfig
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, TypeVar

import dask
import numpy as np
import scipy

import dkrr
from dkrr import blas
from dkrr.cluster.worker_settings import WorkerReport
from dkrr.config import setting
from dkrr.errors import InputError
from dkrr.limits import read_system_file, usable_cores
from dkrr.planning.resources import PROFILE_FORMAT, Fingerprint, Profile, Rates
from dkrr.store.paths import local_path
from dkrr.store.places import place_at

WHERE_PROFILES_GO = (
    "Set the environment variable XDG_CACHE_HOME or DASK_DKRR__PROFILE_DIRECTORY, or dkrr.profile-directory in Dask's "
    "configuration, to a folder that can be written to"
)

T = TypeVar("T")


def machine_fingerprint() -> Fingerprint:
    """Fingerprint of this machine, with workers that dkrr starts itself."""
    return fingerprint_with(usable_cores())


@lru_cache(maxsize=8)
def fingerprint_with(cores: int) -> Fingerprint:
    """Fingerprint of this machine where this process may use so many cores; nothing else of it changes."""
    return {"where": "machine", "host": platform.node(), "cores": cores} | _software()


@lru_cache(maxsize=8)
def file_with(cores: int) -> str:
    """Name of the file for that fingerprint."""
    return file_of(fingerprint_with(cores))


def cluster_fingerprint(workers: Sequence[WorkerReport]) -> Fingerprint:
    """Fingerprint of a running cluster; hosts come and go under new names: only their number counts."""
    kinds = Counter(f"{w.threads} threads, {w.memory_limit} bytes" for w in workers)
    hosts = len({w.host for w in workers})
    return {"where": "cluster", "hosts": hosts, "workers": dict(sorted(kinds.items()))} | _software()


@cache
def _software() -> Fingerprint:
    versions = {"numpy": np.__version__, "scipy": scipy.__version__}
    return {"cpu": cpu_model(), "blas": blas.architectures()} | versions


def cpu_model() -> str:
    """Name of the processor."""
    with suppress(OSError):
        found = re.search(rb"^model name\s*:\s*(.*)$", read_system_file("/proc/cpuinfo"), re.MULTILINE)
        if found is not None:
            return found[1].decode().strip()
    return platform.processor() or platform.machine()


def profile_path(fingerprint: Fingerprint) -> Path:
    """File in which the profile of a machine or cluster is kept.

    Raises
    ------
    InputError
        If no folder is configured and the user has no home directory.
    """
    return profile_folder() / file_of(fingerprint)


def profile_folder() -> Path:
    """Folder of the profiles, which need not exist.

    Raises
    ------
    InputError
        If none is configured and the user has no home directory.
    """
    configured = setting("profile-directory")
    try:
        return Path(path_in_folder("", configured, *map(os.environ.get, ("XDG_CACHE_HOME", "HOME"))))
    except RuntimeError as error:  # a container's user may have neither HOME nor an entry in the list of users
        raise InputError(f"there is no folder for profiles: {error} {WHERE_PROFILES_GO}") from error


@lru_cache(maxsize=32)  # every fit asks, and one of a hundred rows takes a millisecond
def path_in_folder(name: str, configured: str | None, cache: str | None, home: str | None) -> str:  # noqa: ARG001
    """Path of a file, in the folder that a setting and two variables of the environment name (Path.home reads HOME).

    Raises
    ------
    RuntimeError
        If the user has no home directory, and it is needed.
    """
    folder = Path(cache or Path.home() / ".cache") / "dkrr" if configured is None else Path(configured).expanduser()
    return str(folder / name)


def create_profile_folder() -> Path:
    """Folder of the profiles, created if it does not exist.

    Raises
    ------
    InputError
        If it cannot be created, or written to.
    """
    folder = profile_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"the folder for profiles cannot be made: {error}. {WHERE_PROFILES_GO}") from error
    if not os.access(folder, os.W_OK):
        raise InputError(f"the folder for profiles, {folder}, cannot be written to. {WHERE_PROFILES_GO}")
    return folder


MAX_PROFILE_BYTES = 2**20
"""Largest file of the profiles' folder."""
unsaved: dict[tuple[str, str], Any] = {}
"""Values that could not be written, by configured folder and name of the file: a file system may be read-only."""


def _key(name: str) -> tuple[str, str]:
    return str(setting("profile-directory")), name


def _save(name: str, values: Any) -> Path:
    """Write a file of the profiles' folder, in place of an earlier one at once; raises InputError if it cannot be."""
    folder = create_profile_folder()
    try:
        place_at(str(folder)).write(name, [json.dumps(values, indent=1).encode()])
    except OSError as error:
        raise InputError(
            f"{folder / name} cannot be written: {error}. {WHERE_PROFILES_GO}, on a disk with free space"
        ) from error
    unsaved.pop(_key(name), None)
    return folder / name


@lru_cache(maxsize=16)
def read_kept(path: str, changed: int, parse: Callable[[Any, str], T]) -> T | None:  # noqa: ARG001
    """Value in a file that last changed at a time; None if it is damaged or of another version."""
    file = Path(path)
    try:
        raw = place_at(str(file.parent)).read(file.name, MAX_PROFILE_BYTES)
        return None if raw is None else parse(json.loads(raw), file.name)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _keep(name: str, values: Any, found: Any) -> None:
    """Write a file, or else keep what would be found there for later plans of this process."""
    try:
        _save(name, values)
    except InputError:
        unsaved[_key(name)] = found


def save_profile(profile: Profile) -> Path:
    """Write a profile where `detection.load_profile` finds it, and return the path.

    Raises
    ------
    InputError
        If its folder cannot be created, or the file cannot be written.
    """
    return _save(file_of(profile.fingerprint), profile.to_dict())


def keep_profile(profile: Profile) -> None:
    """Write a profile, or else keep it for later plans of this process."""
    _keep(file_of(profile.fingerprint), profile.to_dict(), profile)


def is_saved(fingerprint: Fingerprint) -> bool:
    """Whether the profile that `detection.load_profile` finds is in a file."""
    return _key(file_of(fingerprint)) not in unsaved


def parsed_profile(values: Any, name: str) -> Profile | None:
    """Profile from values of JSON; None of another version, or if the file has not the name of its fingerprint."""
    if values.pop("format") != PROFILE_FORMAT:
        return None
    found = Profile(rates=Rates(**values.pop("rates")), workers=tuple(values.pop("workers")), **values)
    return found if file_of(found.fingerprint) == name else None


_sorted_json = json.JSONEncoder(sort_keys=True).encode  # json.dumps makes an encoder at every call


def file_of(described: Any) -> str:
    """Name of the file for a fingerprint, or other values of JSON."""
    return f"{hashlib.sha256(_sorted_json(described).encode()).hexdigest()[:16]}.json"


def record_baseline(n_bytes: int) -> None:
    """Record what workers of this environment hold, for later plans."""
    _keep(workers_file(str(dask.config.get(PRELOAD, []))), {"worker_baseline_bytes": n_bytes}, n_bytes)


def parsed_baseline(values: Any, name: str) -> int:  # noqa: ARG001
    """Bytes that workers hold, from values of JSON."""
    return int(values["worker_baseline_bytes"])


PRELOAD = "distributed.worker.preload"
"""Setting of Dask."""


@cache
def workers_file(preloads: str) -> str:
    """Name of the file for this process's libraries and preloads, which changes where a package is installed."""
    installed = [Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")]
    changed = [p.stat().st_mtime_ns for p in installed if p.exists()]
    return f"workers-{file_of([sys.prefix, sys.version, dkrr.__version__, changed, preloads])}"


def median_rates(measured: list[dict[str, float]]) -> Rates:
    """Medians of what workers measured, by fields of Rates.

    A rate that only some could measure, as that of a disk, is the median of theirs.
    """
    names = {f.name for f in fields(Rates)} & {name for m in measured for name in m}
    return Rates(**{name: float(np.median([m[name] for m in measured if name in m])) for name in names})


BUCKET_BYTES = 55e6
"""Bytes per second of one connection to an object store, in chunks of 4 MiB: 90 MB/s (AWS's performance guidelines for
S3: 85 to 90) and 30 ms for a request (Durner, Leis, Neumann, Exploiting cloud object storage for high-performance
analytics, PVLDB 16, 2023: about 30 ms within a region)."""


def rates_of_stores(rates: Rates, store: str | None, rows: str | None) -> dict[str, Any]:
    """Fields of Resources that follow from where the run's store and X are.

    Parameters
    ----------
    rates : Rates
        Those of the machine or cluster, with its own disk.
    store : str or None
        Path or URL; None: the temporary folder.
    rows : str or None
        Path or URL of X; None: in memory, or read by the calling process.
    """
    stored, read = _bucket_of(store), _bucket_of(rows)
    places = {"store and X": stored} if stored is not None and stored == read else {"store": stored, "X": read}
    in_bucket = rates if stored is None and read is None else bucket_rates(rates)
    return {
        "store": store,
        "rows": rows,
        "rates": rates if stored is None else in_bucket,
        "disk_rates": None if stored is None else rates,
        "row_rates": None if read is None else in_bucket,
        "storage_reasons": tuple(_reason(what, place, in_bucket) for what, place in places.items() if place),
    }


def _bucket_of(url: str | None) -> str | None:
    """Scheme and bucket of a URL, without anything secret; None of a path."""
    if url is None or local_path(url) is not None:
        return None
    protocol, _, rest = url.rpartition("::")[2].partition("://")
    return f"{protocol}://{rest.partition('/')[0].rpartition('@')[2]}"


def bucket_rates(rates: Rates) -> Rates:
    """Rates of the same cores with a bucket in place of the disk; what Dask's configuration has comes first."""
    given = setting("rates")
    found = {f"{name}_bytes": BUCKET_BYTES for name in ("read", "write") if f"{name}-gbytes" not in given}
    if "cold-read-gbytes" not in given:  # no system's cache has a bucket's objects
        found["cold_read_bytes"] = found.get("read_bytes", rates.read_bytes)
    return replace(rates, **found)


def _reason(what: str, place: str, rates: Rates) -> str:
    speed = f"{rates.read_bytes / 1e6:,.0f} MB/s read, {rates.write_bytes / 1e6:,.0f} MB/s written by each task"
    if {"read-gbytes", "write-gbytes"} & set(setting("rates")):
        return f"{what}: rates of {place} from Dask's configuration ({speed})"
    return (
        f"{what}: {place} is planned with default rates of object stores ({speed}); set dkrr.rates.read-gbytes and "
        f"write-gbytes in Dask's configuration to its own"
    )
