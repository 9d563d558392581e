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
from dkrr.tiles import buckets, file_systems, lock, remote


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

    def rm_file(self, path: str) -> None:
        self._request()
        super().rm_file(path)


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    fsspec.register_implementation("flaky", Flaky, clobber=True)
    monkeypatch.setattr(remote, "FIRST_WAIT_SECONDS", 0.001)
    monkeypatch.setattr(remote, "RETRY_SECONDS", 0.2)
    Flaky.failures, Flaky.requests = [], 0
    yield f"flaky://{uuid.uuid4().hex}/run.zarr"
    Flaky.store.clear()


@pytest.fixture
def folder(url: str, request: pytest.FixtureRequest) -> str:
    """A folder of a store of each kind."""
    kind: str = request.param
    return f"{request.getfixturevalue('bucket')}/a/run.zarr" if kind == "s3" else url.replace("flaky", kind)


KINDS = ["flaky", "memory", "s3"]


@pytest.mark.parametrize("folder", KINDS, indirect=True)
def test_objects_are_written_read_listed_and_deleted(folder: str) -> None:
    url = folder
    assert remote.get(url, "a") is None and remote.names(url) == [] and not remote.exists(url)
    remote.put(url, "a", b"one")
    remote.put(url, "b/c", memoryview(b"another"))
    remote.put(url, "a", b"hello")
    assert bytes(remote.get(url, "a")) == b"hello" and bytes(remote.get(url, "b/c")) == b"another"
    assert bytes(remote.get(url, "a", (1, 3))) == b"el" and bytes(remote.get(url, "a", (3, None))) == b"lo"
    found = {name: size for name, size, _ in remote.files(url)}
    assert found == {"/a": 5, "/b/c": 7} and remote.files(f"{url}/a")[0][:2] == ("", 5)
    assert remote.files(f"{url}/d") == []
    assert remote.names(url) == ["a", "b"] and remote.names(f"{url}/") == ["a", "b"]
    assert remote.exists(f"{url}/b") and not remote.exists(f"{url}/d")
    remote.delete(url, ["b/c"])
    remote.delete(url, ["b/c", "d"])
    remote.delete(f"{url}/e")
    assert remote.names(url) == ["a"]
    remote.delete_all(url)
    remote.delete_all(url)
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
        (lambda: remote.delete(f"{url}/a"), None),
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


@pytest.mark.parametrize("folder", KINDS, indirect=True)
def test_folders_are_moved_beside_what_is_there(folder: str) -> None:
    remote.put(folder, "new/a", b"one")
    remote.put(folder, "new/b/c", b"two")
    remote.put(folder, "old/d", b"three")
    remote.move(f"{folder}/new", f"{folder}/old")
    assert {name for name, _, _ in remote.files(folder)} == {"/old/a", "/old/b/c", "/old/d"}


@pytest.mark.parametrize("folder", KINDS, indirect=True)
@pytest.mark.parametrize("n", [5, 3 * 2**20 + 1])
def test_buffers_are_filled_over_several_connections(folder: str, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "PART_BYTES", 2**20)
    data = np.arange(n, dtype=np.uint8)
    remote.put(folder, "a", data[:2], data[2:])
    out = np.zeros(n, np.uint8)
    assert remote.get_into(folder, "a", 0, out) == n and (out == data).all()
    parts = [np.zeros(size, np.uint8) for size in (1, 0, n // 2, n - n // 2 - 1)]
    assert remote.get_into(folder, "a", 0, *parts) == n and (np.concatenate(parts) == data).all()
    part = np.zeros(n - 3, np.uint8)
    assert remote.get_into(folder, "a", 2, part) >= n - 1 and (part == data[2 : n - 1]).all()
    assert remote.get_into(folder, "b", 0, out) is None
    # Objects of another size than expected.
    assert remote.get_into(folder, "a", 0, np.zeros(n + 1, np.uint8)) == n
    assert remote.get_into(folder, "a", 0, part) == n
    assert remote.get_into(folder, "a", n - 2, part) == n


def test_one_of_several_writes_in_one_step(bucket: str) -> None:
    url = f"{bucket}/run.zarr"
    assert remote.put_if(url, "a", b"first", None) and not remote.put_if(url, "a", b"second", None)
    content, version = remote.version(url, "a")
    assert content == b"first"
    assert remote.put_if(url, "a", b"third", version) and not remote.put_if(url, "a", b"fourth", version)
    assert bytes(remote.get(url, "a")) == b"third"


def test_a_bucket_that_does_not_exist(bucket: str) -> None:
    url = f"{bucket}-of-nobody/run.zarr"
    with pytest.raises(StoreError, match=f"cannot write run.zarr/a in the store {url}") as caught:
        remote.put(url, "a", b"hello")
    assert "the bucket does not exist" in str(caught.value)
    assert "secret" not in str(caught.value) and "tried" not in str(caught.value)


@pytest.mark.parametrize(("limit", "parts"), [(buckets.MAX_PUT_BYTES, 1), (buckets.PART_BYTES, 2)])
def test_what_is_not_very_large_is_written_by_one_request(
    bucket: str, monkeypatch: pytest.MonkeyPatch, limit: int, parts: int
) -> None:
    """A killed writer then leaves no parts; S3 writes their number behind the version of an object that has some."""
    monkeypatch.setattr(buckets, "MAX_PUT_BYTES", limit)
    data = random.Random(0).randbytes(buckets.PART_BYTES + 7)
    remote.put(f"{bucket}/run.zarr", "a", data[:5], memoryview(data)[5:])
    assert bytes(remote.get(f"{bucket}/run.zarr", "a")) == data
    version = remote.files(f"{bucket}/run.zarr")[0][2].strip('"')
    assert version.partition("-")[2] == ("" if parts == 1 else "2")


def test_an_address_where_nobody_answers(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "FIRST_SECONDS", 0.5)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(StoreError, match=r"cannot read run.zarr/a .*tried \d+ times in [01] s"):
        remote.get(f"{bucket}-elsewhere/run.zarr", "a")


def test_no_credentials(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    started = time.monotonic()
    with pytest.raises(StoreError, match="no credentials; expected them in the environment"):
        remote.get(f"{bucket}-mine/run.zarr", "a")
    assert time.monotonic() - started < 30.0


def test_a_url_that_nothing_reads_is_a_clear_error() -> None:
    with pytest.raises(InputError, match="unknown://b/run.zarr cannot be opened"):
        remote.get("unknown://b/run.zarr", "a")


def test_a_request_without_an_answer_ends(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Hanging(AsyncFileSystem):
        async def _cat_file(self, path: str, **options: Any) -> bytes:
            await asyncio.sleep(60)
            return b""

    monkeypatch.setattr(file_systems, "REQUEST_SECONDS", 0.05)
    system = Hanging()
    monkeypatch.setattr(remote, "file_system_of", lambda url: (file_systems.FileSystem(system), "/a"))
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


@pytest.mark.parametrize("url", ["s3://me:hush@bucket/run", "s3://bucket/run?token=hush"])
def test_credentials_in_a_url_are_refused_and_not_shown(url: str) -> None:
    with pytest.raises(InputError, match=r"store is 's3://bucket/run' with .*environment") as caught:
        dkrr.KernelRidge(store=url).fit([[0.0], [1.0]], [0.0, 1.0])
    assert "hush" not in str(caught.value)
