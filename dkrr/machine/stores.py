"""Rates of runs and rows in a bucket: Dask's configuration, else documented defaults for object stores."""

from dataclasses import replace
from typing import Any

from dkrr.config import setting
from dkrr.planning import Rates
from dkrr.planning.resources import STORAGE_CHUNK_BYTES
from dkrr.tiles.paths import local_path

DEFAULT_BYTES = 90e6
"""Bytes per second of one connection to an object store (AWS's performance guidelines for S3: 85 to 90 MB/s)."""
DEFAULT_REQUEST_SECONDS = 0.03
"""Time of a request besides that of its bytes (Durner, Leis, Neumann, Exploiting cloud object storage for
high-performance analytics, PVLDB 16, 2023: about 30 ms within a region)."""


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
    each = STORAGE_CHUNK_BYTES / (DEFAULT_REQUEST_SECONDS + STORAGE_CHUNK_BYTES / DEFAULT_BYTES)
    found: dict[str, Any] = {}
    for name in ("read", "write"):
        if f"{name}-gbytes" not in given:
            found |= {f"{name}_bytes": each, f"{name}_request_seconds": DEFAULT_REQUEST_SECONDS}
    if "cold-read-gbytes" not in given:  # no system's cache has a bucket's objects
        found["cold_read_bytes"] = found.get("read_bytes", rates.read_bytes)
    return replace(rates, **found)


def _reason(what: str, place: str, rates: Rates) -> str:
    speed = f"{rates.read_bytes / 1e6:,.0f} MB/s read, {rates.write_bytes / 1e6:,.0f} MB/s written by each task"
    if {"read-gbytes", "write-gbytes"} & set(setting("rates")):
        return f"{what}: rates of {place} from Dask's configuration ({speed})"
    return (
        f"{what}: {place} is priced with defaults for object stores ({speed}); set dkrr.rates.read-gbytes and "
        f"write-gbytes in Dask's configuration to its own"
    )
