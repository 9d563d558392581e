"""Measurements of a store: chunks as tiles have them, by one task and by as many as run at the same time."""

import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import numpy as np

from dkrr.errors import InputError
from dkrr.machine.measures import CHUNK, Measured, measure_store
from dkrr.machine.stores import IN_PROCESS, place_of
from dkrr.planning.storage import Storage
from dkrr.runtime.folders import private_folder
from dkrr.runtime.signals import ended_in_order
from dkrr.tiles import ChunkedArray, remote
from dkrr.tiles.paths import local_path
from dkrr.values import shown

MIN_CHUNKS = 3
MAX_CHUNKS = 48
"""Chunks of 4 MiB that one task writes at most: a bucket's owner may pay for them."""
N_SMALL = 9
"""Chunks of a few bytes, whose time is that of a request."""
MAX_REQUEST_FRACTION = 0.9
"""Largest part of a chunk's time that may be that of its request: the rest is that of its bytes."""


def refuse_memory(url: str) -> None:
    """Refuse a store in the memory of one process: nothing is sent, and workers have other memory.

    Raises
    ------
    InputError
        If the URL is one of such a store.
    """
    if url.startswith(f"{IN_PROCESS}://"):
        raise InputError(
            f"store is {shown(url)}, which is the memory of one process; expected a bucket or a folder, which has a "
            f"speed to be measured"
        )


@contextmanager
def scratch_below(url: str) -> Iterator[str]:
    """Name below a URL or a folder for the time of a block, at whose end, SIGTERM included, nothing is there.

    Raises
    ------
    StoreError
        If nothing can be written there.
    """
    if local_path(url) is not None:
        with private_folder("calibrate", str(local_path(url))) as folder:
            yield folder
        return
    scratch = f"{url.rstrip('/')}/dkrr-calibrate-{uuid.uuid4().hex}"
    with ended_in_order():
        remote.put(scratch, "begun", b"dkrr calibrate")  # what is wrong is said before workers start
        try:
            yield scratch
        finally:
            remote.delete_all(scratch)


def storage_from(url: str, alone: Measured, together: list[Measured]) -> Storage:
    """Speed of a store from what one task measured alone, and all tasks at the same time."""

    def median(name: str) -> float | None:
        found = [m[name] for m in together if name in m]
        return float(np.median(found)) if found else None

    return Storage(
        place=place_of(url),
        read_bytes=median("read_bytes") or alone["read_bytes"],
        write_bytes=median("write_bytes") or alone["write_bytes"],
        read_request_seconds=median("read_request_seconds") or 0.0,
        write_request_seconds=median("write_request_seconds") or 0.0,
        cold_read_bytes=median("cold_read_bytes"),
        alone_read_bytes=alone["read_bytes"],
        alone_write_bytes=alone["write_bytes"],
        n_tasks=len(together),
        time=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def measure_storage(scratch: str, n_tasks: int, start: float, seconds: float) -> list[Measured]:
    """Task: what each of so many threads of this process measures, all at the same time.

    Parameters
    ----------
    scratch : str
        Path or URL below which chunks are written.
    n_tasks : int
    start : float
        Seconds since the epoch at which to start: all workers at once.
    seconds : float
        Time to write for, and to read for, in a bucket; a folder has a number of chunks.
    """

    def measure() -> Measured:
        time.sleep(max(0.0, start - time.time()))
        return measure_store(scratch) if local_path(scratch) is not None else measure_bucket(scratch, seconds)

    with ThreadPoolExecutor(n_tasks) as pool:
        return [f.result() for f in [pool.submit(measure) for _ in range(n_tasks)]]


def measure_bucket(scratch: str, seconds: float) -> Measured:
    """Times of requests and of whole chunks of one task, by fields of Storage."""
    small = ChunkedArray.create(f"{scratch}/{uuid.uuid4().hex}", (N_SMALL, 1), (1, 1))
    number = np.zeros((1, 1))
    writing = [_timed(lambda k=k: small.write((k, 0), number)) for k in range(N_SMALL)]  # type: ignore[misc]
    reading = [_timed(lambda k=k: small.read((k, 0), number)) for k in range(N_SMALL)]  # type: ignore[misc]
    large = ChunkedArray.create(f"{scratch}/{uuid.uuid4().hex}", (MAX_CHUNKS * CHUNK[0], CHUNK[1]), CHUNK)
    block = np.random.default_rng(0).standard_normal(CHUNK)
    n_written, written = _repeated(lambda k: large.write((k, 0), block), MAX_CHUNKS, seconds)
    n_read, read = _repeated(lambda k: large.read((k % n_written, 0), block), 4 * MAX_CHUNKS, seconds)
    return {
        "write_bytes": n_written * block.nbytes / written,
        "read_bytes": n_read * block.nbytes / read,
        # The first requests open connections.
        "write_request_seconds": min(float(np.median(writing)), MAX_REQUEST_FRACTION * written / n_written),
        "read_request_seconds": min(float(np.median(reading)), MAX_REQUEST_FRACTION * read / n_read),
    }


def _repeated(request: Callable[[int], Any], most: int, seconds: float) -> tuple[int, float]:
    """Number of requests in a time, at least MIN_CHUNKS, and the time that they took."""
    begun, n, taken = time.perf_counter(), 0, 0.0
    while n < MIN_CHUNKS or (n < most and taken < seconds):
        request(n)
        n, taken = n + 1, time.perf_counter() - begun
    return n, taken


def _timed(request: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    request()
    return time.perf_counter() - begun
