"""Objects in buckets: whole or absent, and requests that fail for a moment are repeated."""

import errno
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import dkrr
from dkrr.cli import dkrr as command
from dkrr.errors import InputError, StoreError
from dkrr.tiles import buckets, remote


class Flaky:
    """What the requests to a bucket fail with, one after the other, and how many there were."""

    def __init__(self) -> None:
        self.failures: list[BaseException] = []
        self.requests = 0

    def fails(self) -> BaseException | None:
        """What the next request fails with; None: nothing."""
        self.requests += 1
        return self.failures.pop(0) if self.failures else None


REQUESTS = ("get", "get_into", "put", "create", "exchange", "version", "names", "files", "exists", "delete", "copy")


@pytest.fixture
def flaky(monkeypatch: pytest.MonkeyPatch) -> Flaky:
    """Failures of the requests to all buckets, which are repeated without long waits."""
    monkeypatch.setattr(remote, "FIRST_WAIT_SECONDS", 0.001)
    monkeypatch.setattr(remote, "RETRY_SECONDS", 0.2)
    found = Flaky()

    def failing(request: Callable[..., Any]) -> Callable[..., Any]:
        def tried(*arguments: Any) -> Any:
            error = found.fails()
            if error is not None:
                raise error
            return request(*arguments)

        return tried

    for name in REQUESTS:
        monkeypatch.setattr(buckets.Bucket, name, failing(getattr(buckets.Bucket, name)))
    return found


@pytest.fixture
def url(memory_bucket: str) -> str:
    return f"{memory_bucket}/run.zarr"


def test_objects_are_written_read_listed_and_deleted(bucket: str) -> None:
    url = f"{bucket}/a/run.zarr"
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
def test_requests_that_fail_for_a_moment_are_repeated(url: str, flaky: Flaky, error: Exception) -> None:
    for request, answer in [
        (lambda: remote.put(url, "a", b"hello"), None),
        (lambda: remote.get(url, "a"), b"hello"),
        (lambda: remote.names(url), ["a"]),
        (lambda: remote.delete(f"{url}/a"), None),
    ]:
        flaky.failures, flaky.requests = [error, error, error], 0
        assert request() == answer
        assert flaky.requests == 4


def test_a_store_that_stays_away_is_an_error_after_a_bounded_time(url: str, flaky: Flaky) -> None:
    flaky.failures = [OSError("no route to host")] * 10_000
    started = time.monotonic()
    with pytest.raises(
        StoreError, match=r"cannot write .*run\.zarr/a in the store .*: no route to host .tried \d+ times"
    ):
        remote.put(url, "a", b"hello")
    assert time.monotonic() - started < 2.0
    assert 4 <= flaky.requests <= 12  # waits of 1 ms that double up to 0.2 s in all
    flaky.failures = []
    assert remote.get(url, "a") is None


@pytest.mark.parametrize(
    "error", [PermissionError("denied"), OSError(errno.ENOSPC, "full"), ValueError("not a bucket")]
)
def test_final_answers_are_not_asked_for_again(url: str, flaky: Flaky, error: Exception) -> None:
    flaky.failures = [error] * 2
    with pytest.raises(StoreError, match="run again with the same store"):
        remote.put(url, "a", b"hello")
    assert flaky.requests == 1


def test_an_interrupt_is_not_an_answer(url: str, flaky: Flaky) -> None:
    flaky.failures = [KeyboardInterrupt()]
    with pytest.raises(KeyboardInterrupt):
        remote.get(url, "a")


def test_waits_leave_the_generator_of_users_alone(url: str, flaky: Flaky) -> None:
    random.seed(1)
    expected = random.Random(1).random()
    flaky.failures = [OSError("once")]
    remote.get(url, "a")
    assert random.random() == expected


def test_folders_are_moved_beside_what_is_there(bucket: str) -> None:
    folder = f"{bucket}/a/run.zarr"
    remote.put(folder, "new/a", b"one")
    remote.put(folder, "new/b/c", b"two")
    remote.put(folder, "old/d", b"three")
    remote.move(f"{folder}/new", f"{folder}/old")
    assert {name for name, _, _ in remote.files(folder)} == {"/old/a", "/old/b/c", "/old/d"}


@pytest.mark.parametrize("n", [5, 3 * 2**20 + 1])
def test_buffers_are_filled_over_several_connections(bucket: str, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = f"{bucket}/a/run.zarr"
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


@pytest.mark.parametrize(
    "url", ["hdfs://a/run.zarr", "memory://run.zarr", "unknown://a", "simplecache::s3://b/run.zarr"]
)
def test_runs_are_kept_in_folders_and_buckets(url: str) -> None:
    message = (
        f"is '{url}': runs, models and predictions are kept in folders and in buckets .s3://, gs://, az://.; expected"
    )
    for call in (
        lambda: dkrr.KernelRidge(store=url).fit([[0.0], [1.0]], [0.0, 1.0]),
        lambda: dkrr.gram([[0.0], [1.0]], store=url),
        lambda: dkrr.plan(n=10, d=1, store=url),
    ):
        with pytest.raises(InputError, match=f"^store {message}"):
            call()
    for look in (dkrr.status, dkrr.verify):
        with pytest.raises(InputError, match=f"^path {message}"):
            look(url)
    with pytest.raises(InputError, match=f"^the place {message}"):
        remote.get(url, "a")


def test_the_command_line_refuses_other_places(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.eye(3))
    np.save(tmp_path / "y.npy", np.ones(3))
    data = ["--x", tmp_path / "x.npy", "--y", tmp_path / "y.npy"]
    for option, arguments in (
        ("--store", ["fit", *data, "--store", "hdfs://a/b", "--model", tmp_path / "m.zarr"]),
        ("--model", ["fit", *data, "--model", "hdfs://a/b"]),
        ("--model", ["predict", "--model", "hdfs://a/b", "--x", tmp_path / "x.npy", "--out", tmp_path / "p.npy"]),
        ("--out", ["predict", "--model", tmp_path, "--x", tmp_path / "x.npy", "--out", "hdfs://a/b.csv"]),
        ("RUN", ["status", "hdfs://a/b"]),
        ("MODEL", ["info", "hdfs://a/b"]),
    ):
        result = CliRunner().invoke(command, [str(a) for a in arguments])
        assert result.exit_code == 2, result.output
        assert f"{option} is 'hdfs://a/b" in result.output and "mount the file system" in result.output
    assert {p.name for p in tmp_path.iterdir()} == {"x.npy", "y.npy"}


def test_a_fit_on_a_store_that_fails_now_and_then_is_exact_and_resumes_when_it_stays_away(
    url: str, flaky: Flaky, monkeypatch: pytest.MonkeyPatch
) -> None:
    X = np.random.default_rng(0).normal(size=(96, 3))
    settings = {"kernel": "rbf", "tile": 32, "solver": "cholesky"}
    expected = dkrr.KernelRidge(0.1, kernel="rbf", solver="cholesky").fit(X, X[:, 0]).dual_coef_
    down: float = np.inf

    def fails() -> BaseException | None:
        flaky.requests += 1
        is_failing = flaky.requests >= down or flaky.requests % 3 == 0
        return ConnectionResetError(errno.ECONNRESET, "reset by the server") if is_failing else None

    monkeypatch.setattr(flaky, "fails", fails)
    model = dkrr.KernelRidge(0.1, **settings, store=url).fit(X, X[:, 0])
    np.testing.assert_allclose(model.dual_coef_, expected, rtol=1e-9, atol=1e-12)
    total, again = flaky.requests, f"{url}-again"
    flaky.requests = 0
    down = total // 2
    monkeypatch.setattr(remote, "RETRY_SECONDS", 0.02)
    with pytest.raises(StoreError, match=r"reset by the server .tried \d+ times"):
        dkrr.KernelRidge(0.1, **settings, store=again).fit(X, X[:, 0])
    down, flaky.requests = np.inf, 0
    monkeypatch.setattr(remote, "RETRY_SECONDS", 0.2)
    model = dkrr.KernelRidge(0.1, **settings, store=again).fit(X, X[:, 0])
    np.testing.assert_allclose(model.dual_coef_, expected, rtol=1e-9, atol=1e-12)
    assert flaky.requests < 0.9 * total  # tiles of the first attempt are reused


@pytest.mark.parametrize("url", ["s3://me:hush@bucket/run", "s3://bucket/run?token=hush"])
def test_credentials_in_a_url_are_refused_and_not_shown(url: str) -> None:
    with pytest.raises(InputError, match=r"store is 's3://bucket/run' with .*environment") as caught:
        dkrr.KernelRidge(store=url).fit([[0.0], [1.0]], [0.0, 1.0])
    assert "hush" not in str(caught.value)
