"""Files and objects: whole or absent, and requests that fail for a moment are repeated. One fit is on a real server."""

import errno
import random
import re
from itertools import count, repeat
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

import dkrr
from dkrr.cli import dkrr as command
from dkrr.errors import InputError, StoreError
from dkrr.store import buckets, remote
from dkrr.store.files import is_folder, make_folder, names, read_file, write_file
from dkrr.store.replacing import delete_listed
from tests.s3 import variables

REQUESTS = ["get", "get_into", "put", "create", "exchange", "version", "names", "files", "exists", "delete", "copy"]


X = np.random.default_rng(0).normal(size=(96, 3))


@pytest.fixture
def flaky(monkeypatch):
    """What requests to all buckets fail with, one after the other, how many there were; repeated after short waits."""
    monkeypatch.setattr(remote, "FIRST_WAIT_SECONDS", 0.001)
    monkeypatch.setattr(remote, "RETRY_SECONDS", 0.2)
    found = SimpleNamespace(failures=iter(()), requests=0)

    def failing(request):
        def tried(*arguments):
            found.requests += 1
            error = next(found.failures, None)
            if error is not None:
                raise error
            return request(*arguments)

        return tried

    for name in REQUESTS:
        monkeypatch.setattr(buckets.Bucket, name, failing(getattr(buckets.Bucket, name)))
    return found


@pytest.fixture
def url(memory_bucket):
    return f"{memory_bucket}/run.zarr"


def test_files_are_written_read_listed_and_deleted_in_every_place(place):
    store = f"{place}/run.zarr"
    assert read_file(f"{store}/zarr.json", 9) is None and names(store) == [] and not is_folder(store)
    make_folder(f"{store}/a")
    write_file(f"{store}/zarr.json", [b"one"])
    write_file(f"{store}/a/c.0", [memoryview(b"ano"), np.frombuffer(b"ther", np.uint8)])
    write_file(f"{store}/zarr.json", [b"hel", b"lo"])
    assert read_file(f"{store}/zarr.json", 5) == b"hello" and read_file(f"{store}/a/c.0", 9) == b"another"
    with pytest.raises(StoreError, match="has 5 bytes; expected at most 4"):
        read_file(f"{store}/zarr.json", 4)
    write_file(f"{store}/thesis.tex", [b"mine"])
    assert sorted(names(store)) == ["a", "thesis.tex", "zarr.json"] and is_folder(f"{store}/a")
    for _ in range(2):
        delete_listed(f"{store}/a", re.compile("c.0"))
        assert not is_folder(f"{store}/a") and sorted(names(store)) == ["thesis.tex", "zarr.json"]
    delete_listed(store, re.compile("zarr.json|a/c.0"))
    assert names(store) == ["thesis.tex"], "what dkrr does not list stays"


def test_objects_are_listed_with_their_sizes_moved_and_read_in_parts(memory_bucket):
    url = f"{memory_bucket}/a/run.zarr"
    assert remote.get(url, "a") is None and not remote.exists(url)
    remote.put(url, "a", b"hello")
    remote.put(url, "b/c", b"another")
    assert bytes(remote.get(url, "a", (1, 3))) == b"el" and bytes(remote.get(url, "a", (3, None))) == b"lo"
    assert {name: size for name, size, _ in remote.files(url)} == {"/a": 5, "/b/c": 7}
    assert remote.files(f"{url}/a")[0][:2] == ("", 5) and remote.files(f"{url}/d") == []
    assert remote.names(url) == remote.names(f"{url}/") == ["a", "b"]
    assert remote.exists(f"{url}/b") and not remote.exists(f"{url}/d")
    remote.put(f"{url}-old", "d", b"three")
    remote.move(url, f"{url}-old")
    assert {name for name, _, _ in remote.files(f"{url}-old")} == {"/a", "/b/c", "/d"} and not remote.exists(url)
    for left in (["a"], []):  # what is not there is not an error
        remote.delete(f"{url}-old", ["b/c", "e"])
        remote.delete(f"{url}-old/d")
        assert remote.names(f"{url}-old") == left
        remote.delete_all(f"{url}-old")
        assert not remote.exists(f"{url}-old")


@pytest.mark.parametrize("n", [5, 3 * 2**20 + 1])
def test_buffers_are_filled_over_several_connections(memory_bucket, n, monkeypatch):
    folder = f"{memory_bucket}/a/run.zarr"
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
    assert remote.get_into(folder, "a", n, part) == n == remote.get_into(folder, "a", n + 1, part)
    remote.put(folder, "empty", b"")
    assert remote.get_into(folder, "empty", 0, part) == 0


def test_one_of_several_writes_in_one_step(url):
    assert remote.put_if(url, "a", b"first", None) and not remote.put_if(url, "a", b"second", None)
    content, version = remote.version(url, "a")
    assert content == b"first"
    assert remote.put_if(url, "a", b"third", version) and not remote.put_if(url, "a", b"fourth", version)
    assert bytes(remote.get(url, "a")) == b"third"


@pytest.mark.parametrize(
    "error",
    [OSError("broken pipe"), TimeoutError(), ConnectionResetError(errno.ECONNRESET, "reset"), RuntimeError("503 slow")],
)
def test_requests_that_fail_for_a_moment_are_repeated(url, flaky, error):
    random.seed(1)
    expected = random.Random(1).random()
    for call, answer in [
        (lambda: remote.put(url, "a", b"hello"), None),
        (lambda: remote.get(url, "a"), b"hello"),
        (lambda: remote.names(url), ["a"]),
        (lambda: remote.delete(f"{url}/a"), None),
    ]:
        flaky.failures, flaky.requests = iter([error] * 3), 0
        assert call() == answer
        assert flaky.requests == 4
    assert random.random() == expected, "waits leave the generator of users alone"


def test_a_store_that_stays_away_is_an_error_after_a_bounded_time(url, flaky):
    flaky.failures = repeat(OSError("no route to host"))
    with pytest.raises(StoreError, match=r"cannot write .*run\.zarr/a in .*: no route to host .tried \d+ times"):
        remote.put(url, "a", b"hello")
    assert 4 <= flaky.requests <= 12  # waits of 1 ms that double up to 0.2 s in all
    flaky.failures = iter(())
    assert remote.get(url, "a") is None


@pytest.mark.parametrize(
    "error", [PermissionError("denied"), OSError(errno.ENOSPC, "full"), ValueError("not a bucket"), KeyboardInterrupt()]
)
def test_final_answers_are_not_asked_for_again(url, flaky, error):
    flaky.failures = repeat(error)
    is_interrupt = isinstance(error, KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt if is_interrupt else StoreError) as caught:
        remote.put(url, "a", b"hello")
    assert flaky.requests == 1 and (is_interrupt or "run again with the same store" in str(caught.value))


def test_a_fit_on_a_store_that_fails_now_and_then_is_exact_and_resumes_when_it_stays_away(url, flaky, monkeypatch):
    expected = dkrr.KernelRidge(0.1, kernel="rbf", solver="cholesky").fit(X, X[:, 0]).dual_coef_

    def fitted(store, down=np.inf):
        """Number of requests of a fit; every third fails, and all after so many."""
        error = ConnectionResetError(errno.ECONNRESET, "reset by the server")
        flaky.failures = (error if n >= down or n % 3 == 0 else None for n in count(1))
        flaky.requests = 0
        model = dkrr.KernelRidge(0.1, kernel="rbf", tile=32, solver="cholesky", store=store).fit(X, X[:, 0])
        np.testing.assert_allclose(model.dual_coef_, expected, rtol=1e-9, atol=1e-12)
        return flaky.requests

    total = fitted(url)
    with monkeypatch.context() as patch:
        patch.setattr(remote, "RETRY_SECONDS", 0.02)
        with pytest.raises(StoreError, match=r"reset by the server .tried \d+ times"):
            fitted(f"{url}-again", total // 2)
    assert fitted(f"{url}-again") < 0.9 * total, "tiles of the first attempt are reused"


ROWS, Y = [[0.0], [1.0]], [0.0, 1.0]
CALLS = {
    "fit": ("store", lambda url: dkrr.KernelRidge(store=url).fit(ROWS, Y)),
    "gram": ("store", lambda url: dkrr.gram(ROWS, store=url)),
    "plan": ("store", lambda url: dkrr.plan(n=10, d=1, store=url)),
    "status": ("path", dkrr.status),
    "verify": ("path", dkrr.verify),
    "load": ("path", dkrr.load),
    "save": ("path", lambda url: dkrr.save(dkrr.KernelRidge().fit(ROWS, Y), url)),
    "files": ("the place", lambda url: remote.get(url, "a")),
}


URLS = ["hdfs://a/m.zarr", "memory://m.zarr", "sftp://host/m.zarr", "zip::s3://b/m.zarr"]


@pytest.mark.parametrize(("call", "url"), list(zip(CALLS, 2 * URLS, strict=True)))
def test_stores_and_models_are_kept_in_folders_and_buckets_alone(url, call):
    name, use = CALLS[call]
    message = f"is '{url}': runs, models and predictions are kept in folders and in buckets .s3://, gs://, az://.; expe"
    with pytest.raises(InputError, match=f"^{name} {message}"):
        use(url)


@pytest.mark.parametrize(
    ("option", "arguments"),
    [
        ("--store", "fit --x x.npy --y y.npy --store hdfs://a/b --model m.zarr"),
        ("--model", "fit --x x.npy --y y.npy --model hdfs://a/b"),
        ("--model", "predict --model hdfs://a/b --x x.npy --out p.npy"),
        ("--out", "predict --model . --x x.npy --out hdfs://a/b.csv"),
        ("RUN", "status hdfs://a/b"),
        ("MODEL", "info hdfs://a/b"),
    ],
)
def test_the_command_line_refuses_other_places(tmp_path, monkeypatch, option, arguments):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.eye(3))
    np.save("y.npy", np.ones(3))
    result = CliRunner().invoke(command, arguments.split())
    assert result.exit_code == 2, result.output
    assert f"{option} is 'hdfs://a/b" in result.output and "mount the file system" in result.output
    assert {p.name for p in tmp_path.iterdir()} == {"x.npy", "y.npy"}


@pytest.mark.parametrize("url", ["s3://me:hush@bucket/run", "s3://bucket/run?token=hush"])
def test_credentials_in_a_url_are_refused_and_not_shown(url):
    with pytest.raises(InputError, match=r"store is 's3://bucket/run' with .*environment") as caught:
        dkrr.KernelRidge(store=url).fit(ROWS, Y)
    assert "hush" not in str(caught.value)


def test_a_server_that_cannot_be_reached_is_named_after_a_bounded_time(monkeypatch):
    for name, value in variables("127.0.0.1:9").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(remote, "FIRST_SECONDS", 0.3)
    words = r"cannot read run.zarr/a .*the server http://127\.0\.0\.1:9 cannot be reached: it refuses.*tried \d+ times"
    with pytest.raises(StoreError, match=words):
        remote.get("s3://elsewhere/run.zarr", "a")


def test_a_real_server_keeps_runs_and_models(bucket):
    """Everything else about real servers is in tests/nightly/test_s3.py."""
    settings = {"alpha": 0.1, "kernel": "rbf", "tile": 32, "solver": "cholesky"}
    expected = dkrr.KernelRidge(**settings).fit(X, X[:, 0])
    for _ in range(2):
        model = dkrr.KernelRidge(**settings, store=f"{bucket}/run.zarr").fit(X, X[:, 0])
        np.testing.assert_allclose(model.dual_coef_, expected.dual_coef_, rtol=1e-9, atol=1e-12)
    assert dkrr.verify(f"{bucket}/run.zarr").is_whole
    for _ in range(2):
        dkrr.save(model, f"{bucket}/models/m.zarr", overwrite=True)
    assert (dkrr.load(f"{bucket}/models/m.zarr").predict(X) == model.predict(X)).all()
    assert {*remote.names(bucket), *remote.names(f"{bucket}/models")} == {"run.zarr", "models", "m.zarr"}
    remote.put(bucket, "short", b"12")
    assert remote.get_into(bucket, "short", 2, bytearray(3)) == remote.get_into(bucket, "short", 0, bytearray(3)) == 2
    with pytest.raises(StoreError, match=f"cannot write run.zarr/a in the store {bucket}-2/run.zarr") as caught:
        remote.put(f"{bucket}-2/run.zarr", "a", b"hello")
    assert "the bucket does not exist" in str(caught.value)
    assert "secret" not in str(caught.value) and "tried" not in str(caught.value)
