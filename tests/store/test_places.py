"""Places of bytes: files and objects are whole or absent, and requests that fail for a moment are repeated."""

import re
from contextlib import suppress
from unittest.mock import Mock

import numpy as np
import pytest

import dkrr
from dkrr.errors import InputError, StoreError
from dkrr.store import buckets
from dkrr.store.bucket_files import file_system
from dkrr.store.places import place_at
from tests.s3 import failing_server

X = np.random.default_rng(0).normal(size=(96, 3))
ANY = re.compile(".*")


def test_files_are_written_read_listed_and_deleted_in_every_place(place):
    store = place_at(f"{place}/run.zarr")
    assert store.read("zarr.json", 9) is None and store.size("zarr.json") is None
    assert not store.exists() and not store.is_folder() and store.names() == []
    store.at("a").make()
    store.write("zarr.json", [b"one"])
    store.at("a").write("c.0", [memoryview(b"ano"), np.frombuffer(b"ther", np.uint8)])
    store.write("zarr.json", [b"hel", b"lo"])
    assert store.read("zarr.json", 5) == b"hello" and store.at("a").read("c.0", 9) == b"another"
    with pytest.raises(StoreError, match="has 5 bytes; expected at most 4"):
        store.read("zarr.json", 4)
    store.write("thesis.tex", [b"mine"])
    assert sorted(store.names()) == ["a", "thesis.tex", "zarr.json"] and store.at("a").is_folder() and store.exists()
    assert store.at("a").sizes() == {"c.0": 7} and store.size("thesis.tex") == 4
    assert store.first_not_listed(re.compile("zarr.json|a/c.0")) == "thesis.tex"
    for _ in range(2):
        store.at("a").delete(re.compile("c.0"))
        assert not store.at("a").is_folder() and sorted(store.names()) == ["thesis.tex", "zarr.json"]
    store.delete(re.compile("zarr.json|a/c.0"))
    assert store.names() == ["thesis.tex"], "what dkrr does not list stays"
    store.at("thesis.tex").delete(ANY)
    assert not store.exists() or store.names() == []


@pytest.mark.parametrize("n", [5, 3 * 2**20 + 1])
def test_buffers_are_filled_from_anywhere_in_a_file(place, n, monkeypatch):
    monkeypatch.setattr(buckets, "PART_BYTES", 2**20)
    here, data, out = place_at(place), np.arange(n, dtype=np.uint8), np.zeros(n, np.uint8)

    def sizes(name, start, *groups):
        return list(here.read_into(name, start, groups))

    here.write("a", [data[:2], data[2:]])
    assert sizes("a", 0, [out]) == [n] and (out == data).all()
    parts = [np.zeros(size, np.uint8) for size in (1, 0, n // 2, n - n // 2 - 1)]
    assert sizes("a", 0, parts[:1], parts[1:]) == [n, n] and (np.concatenate(parts) == data).all()
    part = np.zeros(n - 3, np.uint8)
    assert sizes("a", 2, [part]) == [n] and (part == data[2 : n - 1]).all()
    assert set(sizes("b", 0, [out], [out])) == {None}
    for start, buffer in (0, np.zeros(n + 1, np.uint8)), (0, part), (n - 2, part), (n, part), (n + 1, part):
        assert sizes("a", start, [buffer]) == [n], "files of another size than expected"
    here.write("empty", [b""])
    assert sizes("empty", 0, [part]) == [0]


@pytest.mark.nightly
@pytest.mark.guard
def test_a_fit_on_a_server_that_fails_now_and_then_is_exact_and_resumes_when_it_stays_away(
    bucket, s3_host, monkeypatch
):
    expected = dkrr.KernelRidge(0.1, kernel="rbf", solver="cholesky").fit(X, X[:, 0]).dual_coef_

    def fitted(store, fails):
        """Number of requests of a fit."""
        numbers = []
        with failing_server(s3_host, lambda number: numbers.append(number) or fails(number)) as host:
            monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}")
            model = dkrr.KernelRidge(0.1, kernel="rbf", tile=32, solver="cholesky", store=store).fit(X, X[:, 0])
        np.testing.assert_allclose(model.dual_coef_, expected, rtol=1e-9, atol=1e-12)
        return len(numbers)

    total = fitted(f"{bucket}/run.zarr", lambda number: number % 10 == 0)
    with monkeypatch.context() as patch:
        patch.setattr(buckets, "RETRY_SECONDS", 0.3)
        with pytest.raises(StoreError, match="in the store s3://.* run again with the same store"):
            fitted(f"{bucket}/again.zarr", lambda number: number > total // 3)
    assert fitted(f"{bucket}/again.zarr", lambda number: False) < 0.9 * total, "tiles of the first attempt are reused"


def test_after_a_request_that_was_repeated_in_vain_others_are_not_until_one_is_answered(monkeypatch):
    seconds, bucket = [], buckets.Bucket("s3://is-gone-and-comes-back/run")
    monkeypatch.setattr(buckets, "_opened_once", lambda *given: seconds.append(given[-1]))
    for request in (
        Mock(),
        Mock(side_effect=RuntimeError("gone")),
        Mock(side_effect=RuntimeError("gone")),
        Mock(),
        Mock(),
    ):
        with suppress(StoreError):
            bucket._answer("write", "a", request)
    assert seconds == [buckets.FIRST_SECONDS, buckets.RETRY_SECONDS, 0.0, 0.0, buckets.RETRY_SECONDS]


def test_models_in_a_bucket_are_replaced_and_loaded(bucket):
    model = dkrr.KernelRidge(kernel="rbf").fit(X, X[:, 0])
    for _ in range(2):
        dkrr.save(model, f"{bucket}/models/m.zarr", overwrite=True)
    assert (dkrr.load(f"{bucket}/models/m.zarr").predict(X) == model.predict(X)).all()
    assert place_at(f"{bucket}/models").names() == ["m.zarr"]


ROWS, Y = [[0.0], [1.0]], [0.0, 1.0]
CALLS = {
    "fit": ("store", lambda url: dkrr.KernelRidge(store=url).fit(ROWS, Y)),
    "gram": ("store", lambda url: dkrr.gram(ROWS, store=url)),
    "plan": ("store", lambda url: dkrr.plan(n_samples=10, n_features=1, store=url)),
    "status": ("path", dkrr.status),
    "verify": ("path", dkrr.verify),
    "load": ("path", dkrr.load),
    "save": ("path", lambda url: dkrr.save(dkrr.KernelRidge().fit(ROWS, Y), url)),
    "files": ("the place", lambda url: place_at(url).read("a", 9)),
}


URLS = ["hdfs://a/m.zarr", "memory://m.zarr", "sftp://host/m.zarr", "zip::s3://b/m.zarr"]


@pytest.mark.parametrize(("call", "url"), list(zip(CALLS, 2 * URLS, strict=True)))
def test_stores_and_models_are_kept_in_folders_and_buckets_alone(url, call):
    name, use = CALLS[call]
    message = f"is '{url}': runs, models and predictions are kept in folders and in buckets .s3://, gs://, az://.; expe"
    with pytest.raises(InputError, match=f"^{name} {message}"):
        use(url)


@pytest.mark.parametrize("url", ["s3://me:hush@bucket/run", "s3://bucket/run?token=hush"])
def test_credentials_in_a_url_are_refused_and_not_shown(url):
    with pytest.raises(InputError, match=r"store is 's3://bucket/run' with .*environment") as caught:
        dkrr.KernelRidge(store=url).fit(ROWS, Y)
    assert "hush" not in str(caught.value)


def test_sizes_of_files_in_buckets_are_asked_for_again_by_a_later_reader():
    """fsspec shares file systems of one protocol, unless their class says otherwise."""
    assert file_system("s3://rows/x.parquet")[0] is not file_system("s3://rows/x.parquet")[0]
