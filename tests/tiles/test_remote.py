"""Objects in a store behind fsspec: whole or absent, and requests that fail for a moment are repeated."""

import asyncio
import errno
import random
import time
import uuid
from collections.abc import Iterator
from typing import Any

import fsspec
import numpy as np
import pytest
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.memory import MemoryFileSystem

import dkrr
from dkrr.errors import InputError, StoreError
from dkrr.tiles import lock, remote


class Flaky(MemoryFileSystem):
    """Objects in memory, whose requests fail or wait as a test says."""

    protocol = "flaky"
    cachable = False
    store: dict[str, Any] = {}  # noqa: RUF012  # one for all instances, as in the base class
    pseudo_dirs: list[str] = [""]  # noqa: RUF012
    failures: list[BaseException] = []  # noqa: RUF012
    requests = 0

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(MemoryFileSystem._strip_protocol(path.replace("flaky://", "memory://")))

    def _request(self) -> None:
        Flaky.requests += 1
        if Flaky.failures:
            raise Flaky.failures.pop(0)

    def cat_file(self, path: str, **options: Any) -> Any:
        self._request()
        return super().cat_file(path, **options)

    def pipe_file(self, path: str, value: bytes, **options: Any) -> Any:
        self._request()
        return super().pipe_file(path, value, **options)

    def ls(self, path: str, **options: Any) -> Any:
        self._request()
        return super().ls(path, **options)

    def rm(self, path: str, **options: Any) -> None:
        self._request()
        asked = Flaky.requests
        super().rm(path, **options)
        Flaky.requests = asked  # older versions list the folder first


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    fsspec.register_implementation("flaky", Flaky, clobber=True)
    monkeypatch.setattr(remote, "FIRST_WAIT_SECONDS", 0.001)
    monkeypatch.setattr(remote, "RETRY_SECONDS", 0.2)
    Flaky.failures, Flaky.requests = [], 0
    yield f"flaky://{uuid.uuid4().hex}/run.zarr"
    Flaky.store.clear()


@pytest.mark.parametrize("protocol", ["flaky", "memory"])
def test_objects_are_written_read_listed_and_deleted(url: str, protocol: str) -> None:
    url = url.replace("flaky", protocol)
    assert remote.get(url, "a") is None and remote.names(url) == [] and not remote.exists(url)
    remote.put(url, "a", b"one")
    remote.put(url, "b/c", memoryview(b"another"))
    remote.put(url, "a", b"hello")
    assert remote.get(url, "a") == b"hello" and remote.get(url, "b/c") == b"another"
    assert remote.get(url, "a", (1, 3)) == b"el" and remote.get(url, "a", (-2, None)) == b"lo"
    assert remote.names(url) == ["a", "b"] and remote.names(f"{url}/") == ["a", "b"]
    assert remote.exists(f"{url}/b") and not remote.exists(f"{url}/d")
    remote.delete(f"{url}/b")
    remote.delete(f"{url}/b")
    assert remote.names(url) == ["a"]
    remote.delete(url)
    assert not remote.exists(url)


@pytest.mark.parametrize(
    "error",
    [
        OSError("broken pipe"),
        TimeoutError(),
        ConnectionResetError(errno.ECONNRESET, "reset"),
        RuntimeError("503 slow down"),
    ],
)
def test_requests_that_fail_for_a_moment_are_repeated(url: str, error: Exception) -> None:
    for request, answer in [
        (lambda: remote.put(url, "a", b"hello"), None),
        (lambda: remote.get(url, "a"), b"hello"),
        (lambda: remote.names(url), ["a"]),
        (lambda: remote.delete(url), None),
    ]:
        Flaky.failures, Flaky.requests = [error, error, error], 0
        assert request() == answer
        assert Flaky.requests == 4


def test_a_store_that_stays_away_is_an_error_after_a_bounded_time(url: str) -> None:
    Flaky.failures = [OSError("no route to host")] * 10_000
    started = time.monotonic()
    with pytest.raises(
        StoreError, match=r"cannot write .*run\.zarr/a in the store .*: no route to host .tried \d+ times"
    ):
        remote.put(url, "a", b"hello")
    assert time.monotonic() - started < 2.0
    assert 4 <= Flaky.requests <= 12  # waits of 1 ms that double up to 0.2 s in all
    Flaky.failures = []
    assert remote.get(url, "a") is None


@pytest.mark.parametrize(
    "error", [PermissionError("denied"), OSError(errno.ENOSPC, "full"), ValueError("not a bucket")]
)
def test_final_answers_are_not_asked_for_again(url: str, error: Exception) -> None:
    Flaky.failures = [error] * 2
    with pytest.raises(StoreError, match="run again with the same store"):
        remote.put(url, "a", b"hello")
    assert Flaky.requests == 1


def test_an_interrupt_is_not_an_answer(url: str) -> None:
    Flaky.failures = [KeyboardInterrupt()]
    with pytest.raises(KeyboardInterrupt):
        remote.get(url, "a")


def test_waits_leave_the_generator_of_users_alone(url: str) -> None:
    random.seed(1)
    expected = random.Random(1).random()
    Flaky.failures = [OSError("once")]
    remote.get(url, "a")
    assert random.random() == expected


def test_a_url_that_nothing_reads_is_a_clear_error() -> None:
    with pytest.raises(InputError, match="unknown://b/run.zarr cannot be opened"):
        remote.get("unknown://b/run.zarr", "a")


def test_a_request_without_an_answer_ends(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Hanging(AsyncFileSystem):
        async def _cat_file(self, path: str, **options: Any) -> bytes:
            await asyncio.sleep(60)
            return b""

    monkeypatch.setattr(remote, "REQUEST_SECONDS", 0.05)
    system = Hanging()
    monkeypatch.setattr(remote, "file_system", lambda url: (system, "/a"))
    with pytest.raises(StoreError, match="Timeout"):
        remote.get(url, "b")


def test_a_fit_on_a_store_that_fails_now_and_then_is_exact_and_resumes_when_it_stays_away(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    X = np.random.default_rng(0).normal(size=(96, 3))
    settings = {"kernel": "rbf", "tile": 32, "solver": "cholesky"}
    expected = dkrr.KernelRidge(0.1, kernel="rbf", solver="cholesky").fit(X, X[:, 0]).dual_coef_
    request, n_requests = Flaky._request, 0
    down: float = np.inf

    def failing(self: Flaky) -> None:
        nonlocal n_requests
        n_requests += 1
        if n_requests >= down or n_requests % 3 == 0:
            raise ConnectionResetError(errno.ECONNRESET, "reset by the server")
        request(self)

    monkeypatch.setattr(lock, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(Flaky, "_request", failing)
    model = dkrr.KernelRidge(0.1, **settings, store=url).fit(X, X[:, 0])
    np.testing.assert_allclose(model.dual_coef_, expected, rtol=1e-9, atol=1e-12)
    total, n_requests, again = n_requests, 0, f"{url}-again"
    down = total // 2
    monkeypatch.setattr(remote, "RETRY_SECONDS", 0.02)
    with pytest.raises(StoreError, match=r"reset by the server .tried \d+ times"):
        dkrr.KernelRidge(0.1, **settings, store=again).fit(X, X[:, 0])
    down, n_requests = np.inf, 0
    monkeypatch.setattr(remote, "RETRY_SECONDS", 0.2)
    model = dkrr.KernelRidge(0.1, **settings, store=again).fit(X, X[:, 0])
    np.testing.assert_allclose(model.dual_coef_, expected, rtol=1e-9, atol=1e-12)
    assert n_requests < 0.9 * total  # tiles of the first attempt are reused
