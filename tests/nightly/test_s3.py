"""Buckets of a real server of the S3 interface: fits, models, rows, locks, the command line, and workers with TLS."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import dask.array as da
import numpy as np
import pytest
import zarr
from click.testing import CliRunner
from distributed import Client
from distributed.security import Security
from numpy.testing import assert_array_equal

import dkrr
from dkrr.cli import dkrr as command
from dkrr.errors import InputError, StoreError
from dkrr.tiles import ChunkedArray, buckets, lock, remote
from dkrr.tiles.arrays import create_array, open_array, zarr_store
from tests.nightly.cluster.test_dask_cli import START, problem
from tests.processes import CLUSTER, environment, free_port, session, wait_for_text
from tests.s3 import variables
from tests.store.test_locks import OTHER

TILE, SIDE = 64, 6
SETTINGS = {"alpha": 1e-2, "kernel": "rbf", "gamma": 0.1, "tile": TILE, "solver": "cholesky"}


def fitted(store, **more):
    return dkrr.KernelRidge(**SETTINGS | more, store=store).fit(*problem(TILE * SIDE))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Fit with a store on the disk, which nothing interrupts."""
    return fitted(str(tmp_path_factory.mktemp("whole") / "run.zarr"))


@pytest.mark.guard
def test_a_fit_is_found_again_and_what_is_damaged_is_computed_again(bucket, whole):
    X, y = problem(TILE * SIDE)
    store = f"{bucket}/run.zarr"
    fitted(store)
    assert dkrr.status(store).to_dict()["kind"] == "fit" and dkrr.verify(store).is_whole
    again = fitted(store)
    assert (again.dual_coef_ == whole.dual_coef_).all() and again.solve_result_.residual < 1e-10
    with pytest.raises(StoreError, match="other"):
        dkrr.KernelRidge(**SETTINGS, store=store).fit(X + 1.0, y)
    folder = f"{store}/system-0/factor"
    name = next(name for name, _, _ in remote.files(folder) if name.startswith("/c."))
    content = bytearray(remote.get(folder, name[1:]))
    content[100] ^= 1
    remote.put(folder, name[1:], bytes(content))
    assert not dkrr.verify(store).is_whole
    remote.delete_all(f"{store}/system-0/solution")
    again = fitted(store)
    assert (again.dual_coef_ == whole.dual_coef_).all() and "damaged" in " ".join(again.solve_result_.messages)
    assert dkrr.verify(store).is_whole


def test_models_rows_and_gram_matrices_are_kept_in_buckets(bucket, whole):
    X, y = problem(TILE * SIDE)
    dkrr.save(whole, f"{bucket}/models/m.zarr")
    with pytest.raises(InputError, match="exists already"):
        dkrr.save(whole, f"{bucket}/models/m.zarr")
    dkrr.save(whole, f"{bucket}/models/m.zarr", overwrite=True)
    assert (dkrr.load(f"{bucket}/models/m.zarr").predict(X[:5]) == whole.predict(X[:5])).all()
    assert [name for name, _, _ in remote.files(bucket) if "dkrr-" in name] == [], "nothing is left beside it"
    create_array(f"{bucket}/data/x", X.shape, X.dtype, 100)[:] = X
    expected = dkrr.KernelRidge(**SETTINGS).fit(X, y)
    theirs = open_like_a_user(bucket)
    zarr.save_array(theirs, X, path="theirs/x")
    given = f"{bucket}/data/x", open_array(f"{bucket}/data/x"), zarr.open_array(theirs, path="theirs/x", mode="r")
    for rows in given:
        model = dkrr.KernelRidge(**SETTINGS).fit(rows, y)
        assert (model.dual_coef_ == expected.dual_coef_).all()
        predicted = model.predict(rows)
        assert isinstance(predicted, da.Array) and np.allclose(predicted, expected.predict(X), rtol=0, atol=1e-12)
    with pytest.raises(InputError, match="not a Zarr array"):
        dkrr.KernelRidge().fit(f"{bucket}/data/z", y)
    K = dkrr.gram(X, kernel="rbf", gamma=0.1, store=f"{bucket}/gram.zarr", chunks=TILE)
    assert np.allclose(K, dkrr.gram(X, kernel="rbf", gamma=0.1), rtol=0, atol=1e-14)
    model = dkrr.KernelRidge(kernel="precomputed", alpha=1.0).fit(f"{bucket}/gram.zarr", X[:, 0])
    assert np.allclose(model.dual_coef_, np.linalg.solve(K.compute() + np.eye(len(X)), X[:, 0]), rtol=0, atol=1e-10)


def open_like_a_user(bucket):
    from obstore.store import S3Store

    options = {"endpoint": os.environ["AWS_ENDPOINT_URL"], "client_options": {"allow_http": True}}
    return zarr.storage.ObjectStore(S3Store(bucket.removeprefix("s3://"), **options))


def test_arrays_in_a_bucket_are_read_by_zarr(bucket):
    data = np.random.default_rng(0).normal(size=(23, 4))
    array = ChunkedArray(f"{bucket}/a", (23, 4), (9, 4), "float64", 3, "run/a").create_anew()
    array.fill(data)
    assert_array_equal(array.read_rows(2, 19), data[2:19])
    theirs = zarr.open_array(zarr_store(f"{bucket}/a"), mode="r")
    assert_array_equal(theirs[...], data)
    assert np.isnan(theirs.metadata.fill_value)
    with pytest.raises(ValueError, match="array exists"):
        create_array(f"{bucket}/a", (2,), "int32")


def test_the_command_line_takes_buckets(bucket, tmp_path):
    X, y = problem(TILE * SIDE)
    create_array(f"{bucket}/x", X.shape, X.dtype)[:] = X
    np.save(tmp_path / "y.npy", y)

    def run(*arguments):
        result = CliRunner().invoke(command, [str(a) for a in arguments])
        assert result.exit_code == 0, result.output
        return result.stdout

    settings = ["--kernel", "rbf", "--gamma", 0.1, "--alpha", 0.01, "--tile", TILE, "--solver", "cholesky"]
    data = ["--x", f"{bucket}/x", "--y", tmp_path / "y.npy"]
    run("fit", *data, *settings, "--store", f"{bucket}/run.zarr", "--model", f"{bucket}/m.zarr", "--quiet")
    assert json.loads(run("verify", f"{bucket}/m.zarr", "--json"))["is_whole"]
    assert "run" in run("status", f"{bucket}/run.zarr") and "rbf" in run("info", f"{bucket}/m.zarr")
    run("predict", "--model", f"{bucket}/m.zarr", "--x", f"{bucket}/x", "--out", f"{bucket}/p.zarr")
    expected = dkrr.KernelRidge(**SETTINGS).fit(X, y).predict(X)
    assert np.allclose(open_array(f"{bucket}/p.zarr")[:], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["fit", "select", "predict"])
def test_a_bucket_that_does_not_exist_is_found_before_the_work(bucket, tmp_path, monkeypatch, name):
    for where in ("fitting.run._carried_out", "estimators.kernel_ridge_cv.select", "prediction.predict_in_memory"):
        monkeypatch.setattr(f"dkrr.{where}", None)
    X, y = problem(TILE * SIDE)
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", y)
    missing = ("--model", f"{bucket}-missing/m.zarr") if name != "predict" else ("--out", f"{bucket}-missing/p.zarr")
    inputs = ("--y", tmp_path / "y.npy") if name != "predict" else ("--model", tmp_path / "m.zarr")
    result = CliRunner().invoke(command, [str(a) for a in (name, "--x", tmp_path / "x.npy", *inputs, *missing)])
    assert result.exit_code == 2 and f"{missing[0]}: cannot write" in result.output, result.output


@pytest.mark.parametrize(("limit", "parts"), [(buckets.MAX_PUT_BYTES, 1), (buckets.PART_BYTES, 2)])
def test_what_is_not_very_large_is_written_by_one_request(bucket, monkeypatch, limit, parts):
    """A killed writer then leaves no parts; S3 writes their number behind the version of an object that has some."""
    monkeypatch.setattr(buckets, "MAX_PUT_BYTES", limit)
    data = random.Random(0).randbytes(buckets.PART_BYTES + 7)
    remote.put(f"{bucket}/run.zarr", "a", data[:5], memoryview(data)[5:])
    out = np.zeros(len(data), np.uint8)
    assert remote.get_into(f"{bucket}/run.zarr", "a", 0, out) == len(data) and out.tobytes() == data
    version = remote.files(f"{bucket}/run.zarr")[0][2].strip('"')
    assert version.partition("-")[2] == ("" if parts == 1 else "2")


def test_missing_credentials_are_an_error_after_a_bounded_time(bucket, monkeypatch):
    monkeypatch.setattr(remote, "FIRST_SECONDS", 0.5)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    started = time.monotonic()
    with pytest.raises(StoreError, match="no credentials; expected them in the environment"):
        remote.get(f"{bucket}-mine/run.zarr", "a")
    assert time.monotonic() - started < 30.0


@pytest.mark.guard
def test_of_processes_that_find_a_bucket_free_at_once_one_owns_it(bucket, monkeypatch):
    monkeypatch.setattr(remote, "version", lambda url, key: None)  # all have looked before any writes
    with ThreadPoolExecutor(4) as pool:
        owners = [replace(OTHER, token=str(k) * 32) for k in range(4)]
        taken = list(pool.map(lambda each: lock._ObjectLock(bucket).take(each), owners))
    assert taken.count(None) == 1


CLIENT = """
import os, signal, sys
from distributed import Client
from dkrr.runtime.progress import Progress
from tests.nightly.test_s3 import fitted

address, store, n_tasks = sys.argv[1:]
advance, seen = Progress.advance, []

def advanced(self, flops):
    seen.append(flops)
    if len(seen) == int(n_tasks):
        os.kill(os.getpid(), signal.SIGKILL)
    return advance(self, flops)

for kind in [Progress, *Progress.__subclasses__()]:
    kind.advance = advanced
with Client(address):
    fitted(store)
"""


@pytest.mark.guard
def test_four_workers_with_tls_are_killed_and_go_on(s3_host, bucket, whole, tmp_path):
    """Scheduler, workers and client with certificates, workers that share no disk, and the store in the bucket."""
    certificates, log, port = tmp_path / "certificates", tmp_path / "log", free_port()
    subprocess.run([sys.executable, CLUSTER / "certificates.py", certificates], check=True, capture_output=True)
    options = ["--workers", 4, "--memory", "600MiB", "--scratch", tmp_path, "--port", port, "--tls", certificates]
    names = {"CLIENT__CERT": "client.pem", "CLIENT__KEY": "client.key", "CA_FILE": "ca.pem"}
    keys = {f"DASK_DISTRIBUTED__COMM__TLS__{name}": str(certificates / file) for name, file in names.items()}
    with session([START, *options], log, **variables(s3_host)) as process:
        wait_for_text("4 workers at tls:", log, process)
        address, store = f"tls://127.0.0.1:{port}", f"{bucket}/run.zarr"
        for n_tasks in (5, 5):  # twice: what the first one did is kept
            done = subprocess.run(
                [sys.executable, "-c", CLIENT, address, store, str(n_tasks)],
                cwd=CLUSTER.parent,
                env=environment(**variables(s3_host), **keys),
                capture_output=True,
                timeout=120,
                check=False,
            )
            assert done.returncode == -signal.SIGKILL, done.stderr.decode()
        n_done = len([name for name, _, _ in remote.files(f"{store}/system-0/factor") if name.startswith("/c.")])
        assert 0 < n_done < SIDE * (SIDE + 1) // 2
        security = {"tls_ca_file": "ca.pem", "tls_client_cert": "client.pem", "tls_client_key": "client.key"}
        with Client(address, security=Security(**{k: str(certificates / f) for k, f in security.items()})) as client:
            client.wait_for_workers(4, timeout=60)
            os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)
            model = fitted(store)
    assert model.plan_.execution == "dask" and (model.dual_coef_ == whole.dual_coef_).all()
