"""Speed of stores that are not on this machine's own disk: buckets, and folders on other file systems."""

from dataclasses import dataclass, replace

from dkrr.planning.resources import STORAGE_CHUNK_BYTES, Rates

DEFAULT_READ_BYTES = 90e6
"""Bytes per second of one connection to an object store (AWS's performance guidelines for S3: 85 to 90 MB/s)."""
DEFAULT_WRITE_BYTES = 90e6
DEFAULT_REQUEST_SECONDS = 0.03
"""Time of a request besides that of its bytes (Durner, Leis, Neumann, Exploiting cloud object storage for
high-performance analytics, PVLDB 16, 2023: about 30 ms within a region)."""


@dataclass(frozen=True)
class Storage:
    """Speed of one store for a task while as many tasks as the workers run at once use it as well."""

    place: str
    """Scheme and bucket, with the server if it is not the service's own; or mount point of a file system."""
    read_bytes: float
    """Bytes per second that a task reads, in chunks of STORAGE_CHUNK_BYTES, requests included."""
    write_bytes: float
    """Bytes per second that a task writes, likewise."""
    read_request_seconds: float = 0.0
    """Time of a request to read, besides that of its bytes."""
    write_request_seconds: float = 0.0
    """Time of a request to write, besides that of its bytes."""
    cold_read_bytes: float | None = None
    """Bytes per second that a task reads of files which the system's cache does not have; None: the same in a bucket,
    and that of this machine's disk in a folder, where it could not be measured."""
    alone_read_bytes: float | None = None
    """Bytes per second that a task reads while no other does; None: not measured."""
    alone_write_bytes: float | None = None
    """Bytes per second that a task writes while no other does; None: not measured."""
    n_tasks: int = 0
    """Tasks that used it at the same time when it was measured."""
    time: str = ""
    """When it was measured, ISO 8601; empty: these are defaults for object stores."""

    is_configured: bool = False
    """Dask's configuration has some of these rates."""

    @property
    def is_bucket(self) -> bool:
        """Whether it is reached by URL."""
        return "://" in self.place

    def applied(self, rates: Rates) -> Rates:
        """Rates of a machine whose runs are stored here."""
        cold = self.cold_read_bytes
        if cold is None:
            cold = self.read_bytes if self.is_bucket else min(rates.cold_read_bytes, self.read_bytes)
        return replace(
            rates,
            read_bytes=self.read_bytes,
            cold_read_bytes=cold,
            write_bytes=self.write_bytes,
            read_request_seconds=self.read_request_seconds,
            write_request_seconds=self.write_request_seconds,
        )

    def reason(self, what: str) -> str:
        """Where the rates of `what` is stored here come from."""
        speed = f"{format_speed(self.read_bytes)} read, {format_speed(self.write_bytes)} written by each task"
        if self.is_configured:
            return f"{what}: rates of {self.place} from Dask's configuration ({speed})"
        if self.time:
            return f"{what}: rates of {self.place}, measured {self.time[:10]} ({speed})"
        return (
            f"{what}: {self.place} has not been measured, and is priced with defaults for object stores ({speed}): run "
            f"`dkrr calibrate --store {self.place.partition(' ')[0]}`"
        )


def format_speed(bytes_per_second: float) -> str:
    """Speed in megabytes per second, as services state it."""
    megabytes = bytes_per_second / 1e6
    return f"{megabytes:,.0f} MB/s" if megabytes >= 10 else f"{megabytes:.2g} MB/s"


def unmeasured_bucket(place: str) -> Storage:
    """Storage with what object stores offer within a region of a cloud."""

    def in_chunks(bytes_per_second: float) -> float:
        return STORAGE_CHUNK_BYTES / (DEFAULT_REQUEST_SECONDS + STORAGE_CHUNK_BYTES / bytes_per_second)

    return Storage(
        place,
        in_chunks(DEFAULT_READ_BYTES),
        in_chunks(DEFAULT_WRITE_BYTES),
        DEFAULT_REQUEST_SECONDS,
        DEFAULT_REQUEST_SECONDS,
    )
