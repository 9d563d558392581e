"""Buckets for tests: of a server of the S3 interface in a process of its own (moto's), or in this process's memory."""

import http.client
import http.server
import itertools
import os
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from dkrr.store import buckets
from tests.processes import free_port

# moto looks at who asks, and does not check signatures.
WHO = "AWS4-HMAC-SHA256 Credential=a/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"


@contextmanager
def s3_server() -> Iterator[str]:
    """Host and port of a server that answers."""
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while True:
            try:
                request(f"127.0.0.1:{port}", "GET", "/")
                break
            except OSError:
                assert server.poll() is None and time.monotonic() < deadline, "the S3 server does not start"
                time.sleep(0.1)
        yield f"127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


def request(host: str, method: str, path: str, data: bytes | None = None) -> bytes:
    """Answer of a server to one request."""
    asked = urllib.request.Request(f"http://{host}{path}", data, {"Authorization": WHO}, method=method)
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(asked, timeout=60) as answer:
        content: bytes = answer.read()
    return content


@contextmanager
def failing_server(host: str, fails: Callable[[int], bool]) -> Iterator[str]:
    """Host and port of a server that hands requests on to another, but for those by number that fail: alternately it
    answers that it is overloaded, and drops the connection.
    """
    numbers = itertools.count(1)

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1  # head and content in one packet: the client would wait 40 ms for the second

        def handle_one(self) -> None:
            data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if fails(number := next(numbers)):
                if number % 2:
                    self.send_response(503)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                self.close_connection = True
                return
            connection = http.client.HTTPConnection(host, timeout=60)
            try:
                connection.request(self.command, self.path, data, dict(self.headers))
                answer = connection.getresponse()
                content = answer.read()
            finally:
                connection.close()
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                if name.lower() not in ("transfer-encoding", "connection", "server", "date", "content-length"):
                    self.send_header(name, value)
            length = answer.headers["Content-Length"] if self.command == "HEAD" else str(len(content))
            self.send_header("Content-Length", length or "0")
            self.end_headers()
            self.wfile.write(content)
            self.wfile.flush()

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_one  # noqa: N815 (names of http.server)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def variables(host: str) -> dict[str, str]:
    """Environment of processes that use a server."""
    own = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "top-secret", "AWS_ENDPOINT_URL": f"http://{host}"}
    return {**own, "AWS_DEFAULT_REGION": "us-east-1", "NO_PROXY": os.environ.get("NO_PROXY", "") + ",127.0.0.1"}


def memory_bucket(patch: pytest.MonkeyPatch) -> str:
    """URL of a new bucket in the memory of this process, as obstore keeps it: not for Zarr, which needs prefixes."""
    from obstore.store import MemoryStore

    mine, opened = f"memory-{uuid.uuid4().hex}", buckets._opened
    store = MemoryStore()

    def made(protocol: str, name: str, prefix: str | None, *seconds: float) -> object:
        assert name != mine or prefix is None, "obstore's store in memory has no prefixes: take the fixture `bucket`"
        return store if name == mine else opened(protocol, name, prefix, *seconds)

    patch.setattr(buckets, "_opened", made)
    return f"s3://{mine}"
