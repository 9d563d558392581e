"""Two libraries beside each other on one object store: obstore, and fsspec with s3fs.

One command starts a server of the S3 interface on this machine (moto's, in its own process, on the loopback
interface), and measures each library in a new process; one line of JSON on stdout for each, and a table on stderr::

    python -m benchmarks.object_stores [--mebibytes 32] [--repetitions 5]

The server is written in Python, and both libraries wait for it: what they need themselves is in the column of the
processor time. "Server" is the same with Python's ``http.client``, which does nothing else.
"""

import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Protocol

import click
import psutil
from rich import box
from rich.table import Table

from benchmarks.machine import describe_machine
from benchmarks.solve import table_console, write_line

LIBRARIES = ("obstore", "s3fs", "server")
BUCKET = "measured"
BLOCK = 256 * 2**10
THREADS = 4
SMALL = 200
"""Small objects that are written, listed and read."""


@contextmanager
def s3_server() -> Iterator[str]:
    """URL of an S3 server in its own process, with one bucket."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
                connection.request("PUT", f"/{BUCKET}")
                connection.getresponse().read()
                break
            except OSError:
                if time.monotonic() > deadline or server.poll() is not None:
                    raise
                time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


class Client(Protocol):
    """Operations of a library that are measured."""

    def put(self, key: str, data: bytes) -> None:
        """Write an object."""

    def get(self, key: str, start: int | None = None, stop: int | None = None) -> Any:
        """Read an object or a part of it."""

    def names(self, folder: str) -> list[str]:
        """Names below a folder."""


class Obstore:
    """Client of obstore."""

    def __init__(self, endpoint: str) -> None:
        import obstore
        from obstore.store import S3Store

        self._library = obstore
        self._store = S3Store(
            BUCKET,
            endpoint=endpoint,
            access_key_id="a",
            secret_access_key="b",
            region="us-east-1",
            client_options={"allow_http": True},
        )

    def put(self, key: str, data: bytes) -> None:
        """Write an object."""
        self._library.put(self._store, key, data, use_multipart=False)

    def get(self, key: str, start: int | None = None, stop: int | None = None) -> Any:
        """Read an object or a part of it."""
        if start is None:
            return memoryview(self._library.get(self._store, key).bytes())
        return memoryview(self._library.get_range(self._store, key, start=start, end=stop))

    def names(self, folder: str) -> list[str]:
        """Names below a folder."""
        return [entry["path"] for page in self._library.list(self._store, f"{folder}/") for entry in page]


class S3fs:
    """Client of s3fs, through fsspec."""

    def __init__(self, endpoint: str) -> None:
        import fsspec

        self._system = fsspec.filesystem("s3", key="a", secret="b", client_kwargs={"endpoint_url": endpoint})

    def put(self, key: str, data: bytes) -> None:
        """Write an object."""
        self._system.pipe_file(f"{BUCKET}/{key}", data)

    def get(self, key: str, start: int | None = None, stop: int | None = None) -> Any:
        """Read an object or a part of it."""
        return self._system.cat_file(f"{BUCKET}/{key}", start=start, end=stop)

    def names(self, folder: str) -> list[str]:
        """Names below a folder."""
        self._system.invalidate_cache()
        return list(self._system.ls(f"{BUCKET}/{folder}", detail=False))


class Server:
    """Client that sends requests and reads answers."""

    def __init__(self, endpoint: str) -> None:
        self._host = endpoint.removeprefix("http://")

    def _answer(
        self, method: str, path: str, data: bytes | None = None, headers: dict[str, str] | None = None
    ) -> bytes:
        connection = http.client.HTTPConnection(self._host, timeout=60)
        # moto looks at who asks, and does not check the signature.
        who = "AWS4-HMAC-SHA256 Credential=a/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
        connection.request(method, path, data, {"Authorization": who, **(headers or {})})
        answer = connection.getresponse().read()
        connection.close()
        return answer

    def put(self, key: str, data: bytes) -> None:
        """Write an object."""
        self._answer("PUT", f"/{BUCKET}/{key}", data)

    def get(self, key: str, start: int | None = None, stop: int | None = None) -> Any:
        """Read an object or a part of it."""
        part = {} if start is None or stop is None else {"Range": f"bytes={start}-{stop - 1}"}
        return self._answer("GET", f"/{BUCKET}/{key}", headers=part)

    def names(self, folder: str) -> list[str]:
        """Names below a folder."""
        return self._answer("GET", f"/{BUCKET}?list-type=2&prefix={folder}/").decode().split("<Key>")[1:]


CLIENTS: dict[str, Callable[[str], Client]] = {"obstore": Obstore, "s3fs": S3fs, "server": Server}


def measured(work: Callable[[], Any], repetitions: int) -> tuple[float, float]:
    """Least wall and processor seconds of some work, after one call that is not counted."""
    work()
    found = []
    for _ in range(repetitions):
        wall, processor = time.perf_counter(), time.process_time()
        work()
        found.append((time.perf_counter() - wall, time.process_time() - processor))
    return min(w for w, _ in found), min(p for _, p in found)


def measure(library: str, endpoint: str, mebibytes: int, repetitions: int) -> dict[str, Any]:
    """Times of one library in this process; bytes of memory that it needs."""
    process = psutil.Process()
    before, start = process.memory_info().rss, time.perf_counter()
    client = CLIENTS[library](endpoint)
    data = os.urandom(mebibytes * 2**20)
    client.put("warm", b"1")
    facts: dict[str, Any] = {
        "library": library,
        "start_seconds": time.perf_counter() - start,
        "start_bytes": process.memory_info().rss - before - len(data),
    }
    gibibytes = mebibytes / 1024

    def check(found: Any, expected: bytes) -> None:
        if bytes(found) != expected:
            raise ValueError(f"{library} read other bytes than it wrote")

    def write_small() -> None:
        for k in range(SMALL):
            client.put(f"small/{k}", b"x" * 100)

    client.put("large", data)
    check(client.get("large"), data)
    check(client.get("large", BLOCK, 2 * BLOCK), data[BLOCK : 2 * BLOCK])
    with ThreadPoolExecutor(THREADS) as pool:
        works: dict[str, tuple[Callable[[], Any], float]] = {
            "write": (lambda: client.put("large", data), 1 / gibibytes),
            "read": (lambda: client.get("large"), 1 / gibibytes),
            f"read, {THREADS} threads": (lambda: list(pool.map(client.get, ["large"] * THREADS)), THREADS / gibibytes),
            "block": (lambda: client.get("large", BLOCK, 2 * BLOCK), 1.0),
            f"blocks, {THREADS} threads": (
                lambda: list(pool.map(lambda k: client.get("large", k * BLOCK, (k + 1) * BLOCK), range(32))),
                32.0,
            ),
            "write small": (write_small, SMALL),
            "list": (lambda: client.names("small"), 1.0),
        }
        for name, (work, _) in works.items():
            wall, processor = measured(work, repetitions)
            facts[name] = {"seconds": wall, "processor_seconds": processor}
    if len(client.names("small")) != SMALL:
        raise ValueError(f"{library} lists {len(client.names('small'))} of {SMALL} objects")
    facts["peak_bytes"] = process.memory_info().rss - before
    return facts


@click.command()
@click.option("--mebibytes", default=32, show_default=True, help="Size of the large object.")
@click.option(
    "--repetitions", default=5, show_default=True, help="Number of repetitions, of which the least time is reported."
)
@click.option("--library", type=click.Choice(LIBRARIES), hidden=True)
@click.option("--endpoint", hidden=True)
def main(mebibytes: int, repetitions: int, library: str | None, endpoint: str | None) -> None:
    """Measure libraries for object stores side by side."""
    if library is not None and endpoint is not None:
        print(json.dumps(measure(library, endpoint, mebibytes, repetitions)))
        return
    found = []
    with s3_server() as url:
        for name in LIBRARIES:
            options = ["--mebibytes", str(mebibytes), "--repetitions", str(repetitions)]
            command = [sys.executable, "-m", "benchmarks.object_stores", "--library", name, "--endpoint", url]
            done = subprocess.run([*command, *options], stdout=subprocess.PIPE, check=True)
            facts = json.loads(done.stdout)
            write_line({"case": "object-stores", **facts, "mebibytes": mebibytes, "machine": describe_machine()}, None)
            found.append(facts)
    table = Table("milliseconds (processor)", *LIBRARIES, box=box.SIMPLE)
    for name in (k for k in found[0] if isinstance(found[0][k], dict)):
        table.add_row(
            name, *(f"{f[name]['seconds'] * 1e3:.1f} ({f[name]['processor_seconds'] * 1e3:.1f})" for f in found)
        )
    table.add_row("start", *(f"{f['start_seconds'] * 1e3:.0f}" for f in found))
    table.add_row("MiB held", *(f"{f['peak_bytes'] / 2**20:.0f}" for f in found))
    table_console().print(table)


if __name__ == "__main__":
    main()
