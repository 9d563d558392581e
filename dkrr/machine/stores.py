"""Rates of a store: those of its bucket or file system, if it was measured, or defaults for object stores."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from dkrr.config import setting, temporary_directory
from dkrr.errors import StoreError
from dkrr.machine.profile import Profile
from dkrr.planning import Rates
from dkrr.planning.storage import Storage, unmeasured_bucket
from dkrr.tiles.paths import local_path

IN_PROCESS = "memory"
"""Protocol of stores in the memory of one process, which no request leaves."""


def place_of(url: str) -> str:
    """Bucket and server of a URL, without anything secret; mount point of the file system of a path.

    Buckets of one name on two servers are different ones: ``s3://data at http://minio:9000``.
    """
    path = local_path(url)
    if path is not None:
        return _mount_point(path)
    protocol, _, rest = url.rpartition("::")[2].partition("://")
    bucket = f"{protocol}://{rest.partition('/')[0].rpartition('@')[2]}"
    server = _server(protocol)
    return f"{bucket} at {server}" if server else bucket


def _server(protocol: str) -> str:
    """Server or account that the environment names for a protocol; empty: the service's own."""
    if protocol == "az":
        return os.environ.get("AZURE_STORAGE_ACCOUNT_NAME", "")
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") if protocol == "s3" else None
    if not endpoint:
        return ""
    parts = urlsplit(endpoint)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _mount_point(path: Path) -> str:
    """Mount point of the file system that a path is on, or would be."""
    found = os.path.realpath(path)
    while not os.path.ismount(found):
        found = os.path.dirname(found)  # noqa: PTH120 (no Path for each folder)
    return found


def storage_of(url: str | None, profile: Profile | None) -> Storage | None:
    """Speed of a store; None: that of this machine's own disk, as its rates have it.

    Parameters
    ----------
    url : str or None
        Path or URL; None: the temporary folder.
    profile : Profile or None
        What was measured on this machine or cluster.
    """
    measured = () if profile is None else profile.stores
    is_local = url is None or local_path(url) is not None
    if is_local and not any(not storage.is_bucket for storage in measured):
        return None  # as nearly always, and a mount point takes calls of the system
    if url is None:
        try:
            url = str(temporary_directory())
        except StoreError:  # which fits in memory do not need
            return None
    if url.startswith(f"{IN_PROCESS}://"):
        return None
    place = place_of(url)
    storage = next((s for s in measured if s.place == place), None)
    return unmeasured_bucket(place) if storage is None and not is_local else storage


def rates_of_stores(rates: Rates, profile: Profile | None, store: str | None, rows: str | None) -> dict[str, Any]:
    """Fields of Resources that follow from where the run's store and X are.

    Parameters
    ----------
    rates : Rates
        Those of the machine or cluster, with its own disk.
    profile : Profile or None
    store : str or None
        Path or URL; None: the temporary folder.
    rows : str or None
        Path or URL of X; None: in memory, or read by the calling process.
    """
    storage = _configured(storage_of(store, profile), rates)
    row_storage = None if rows is None else _configured(storage_of(rows, profile), rates)
    reasons = []
    if storage is not None:
        reasons.append(storage.reason("store and X" if row_storage == storage else "store"))
    if row_storage is not None and row_storage != storage:
        reasons.append(row_storage.reason("X"))
    return {
        "store": store,
        "rows": rows,
        "rates": rates if storage is None else storage.applied(rates),
        "disk_rates": None if storage is None else rates,
        "row_rates": None if row_storage is None else row_storage.applied(rates),
        "storage_reasons": tuple(reasons),
    }


def _configured(storage: Storage | None, rates: Rates) -> Storage | None:
    """The same with the rates that Dask's configuration has, which come before measured ones."""
    given = setting("rates") or {}
    if storage is None or not {"read-gbytes", "write-gbytes", "cold-read-gbytes"} & set(given):
        return storage
    if "read-gbytes" in given:
        storage = replace(storage, read_bytes=rates.read_bytes, read_request_seconds=0.0)
    if "cold-read-gbytes" in given:
        storage = replace(storage, cold_read_bytes=rates.cold_read_bytes)
    if "write-gbytes" in given:
        storage = replace(storage, write_bytes=rates.write_bytes, write_request_seconds=0.0)
    return replace(storage, is_configured=True)
