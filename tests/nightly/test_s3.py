"""Buckets of a real server of the S3 interface: fits, models, rows, locks, the command line, and workers with TLS."""

import json
import os
import signal
import sys
import time

import dask.array as da
import numpy as np
import pytest
import zarr
from click.testing import CliRunner
from distributed import Client
from distributed.security import Security
from numpy.testing import assert_allclose, assert_array_equal

import dkrr
from dkrr.cli import dkrr as command
from dkrr.errors import StoreError
from dkrr.store import buckets
from dkrr.store.places import place_at
from dkrr.store.zarr_arrays import create_array, open_array
from tests.nightly.cluster.recipes import FIT, new_certificates, problem, run, saved, started
from tests.processes import CLUSTER
from tests.s3 import variables

TILE, SIDE = 64, 6
SETTINGS = {"alpha": 1e-2, "kernel": "rbf", "gamma": 0.1, "tile": TILE, "solver": "cholesky"}
X, Y = problem(TILE * SIDE)


def fitted(store=None, rows=X):
    return dkrr.KernelRidge(**SETTINGS, store=store).fit(rows, Y)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Fit with a store on the disk, which nothing interrupts."""
    return fitted(str(tmp_path_factory.mktemp("whole") / "run.zarr"))


def n_factor_tiles(store):
    return len([name for name in place_at(f"{store}/system-0/factor").names() if name.startswith("c.")])


@pytest.mark.guard
def test_a_fit_is_found_again(bucket, whole):
    store = f"{bucket}/run.zarr"
    fitted(store)
    assert dkrr.status(store).to_dict()["kind"] == "fit" and dkrr.verify(store).is_whole
    again = fitted(store)
    assert (again.dual_coef_ == whole.dual_coef_).all() and again.solve_result_.residual < 1e-10
    with pytest.raises(StoreError, match="other"):
        fitted(store, X + 1.0)


def test_models_rows_and_gram_matrices_are_kept_in_buckets(bucket, whole):
    from obstore.store import S3Store

    dkrr.save(whole, f"{bucket}/models/m.zarr")
    dkrr.save(whole, f"{bucket}/models/m.zarr", overwrite=True)
    assert (dkrr.load(f"{bucket}/models/m.zarr").predict(X[:5]) == whole.predict(X[:5])).all()
    assert [name for name in place_at(bucket).sizes() if "dkrr-" in name] == [], "nothing is left beside it"
    create_array(f"{bucket}/data/x", X.shape, X.dtype, 100)[:] = X
    # As a user opens it.
    options = {"endpoint": os.environ["AWS_ENDPOINT_URL"], "client_options": {"allow_http": True}}
    theirs = zarr.storage.ObjectStore(S3Store(bucket.removeprefix("s3://"), **options))
    zarr.save_array(theirs, X, path="theirs/x")
    given = f"{bucket}/data/x", open_array(f"{bucket}/data/x"), zarr.open_array(theirs, path="theirs/x", mode="r")
    expected = fitted()
    for rows in given:
        model = fitted(rows=rows)
        assert_array_equal(model.dual_coef_, expected.dual_coef_)
        predicted = model.predict(rows)
        assert isinstance(predicted, da.Array)
        assert_allclose(predicted, expected.predict(X), rtol=0, atol=1e-12)
    K = dkrr.gram(X, kernel="rbf", gamma=0.1, store=f"{bucket}/gram.zarr", chunks=TILE)
    assert_allclose(K, dkrr.gram(X, kernel="rbf", gamma=0.1), rtol=0, atol=1e-14)
    model = dkrr.KernelRidge(kernel="precomputed", alpha=1.0).fit(f"{bucket}/gram.zarr", X[:, 0])
    assert_allclose(model.dual_coef_, np.linalg.solve(K.compute() + np.eye(len(X)), X[:, 0]), rtol=0, atol=1e-10)


def invoked(*arguments):
    return CliRunner().invoke(command, [str(a) for a in arguments])


def test_the_command_line_takes_buckets(bucket, tmp_path):
    *_, (_, _, *targets) = saved(tmp_path, TILE * SIDE)
    create_array(f"{bucket}/x", X.shape, X.dtype)[:] = X
    model, rows = f"{bucket}/m.zarr", ["--x", f"{bucket}/x"]
    more = ["--tile", TILE, "--solver", "cholesky", "--store", f"{bucket}/run.zarr", "--model", model, "--quiet"]
    for arguments, printed in {
        ("fit", *rows, *targets, *FIT, *more): "",
        ("status", f"{bucket}/run.zarr"): "run",
        ("info", model): "rbf",
        ("predict", "--model", model, *rows, "--out", f"{bucket}/p.zarr"): "",
    }.items():
        result = invoked(*arguments)
        assert result.exit_code == 0 and printed in result.stdout, result.output
    assert json.loads(invoked("verify", model, "--json").stdout)["is_whole"]
    assert_allclose(open_array(f"{bucket}/p.zarr")[:], fitted().predict(X), rtol=0, atol=1e-12)


def test_missing_credentials_are_an_error_after_a_bounded_time(bucket, monkeypatch):
    monkeypatch.setattr(buckets, "FIRST_SECONDS", 0.5)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    started_at = time.monotonic()
    with pytest.raises(StoreError, match="no credentials; expected them in the environment"):
        place_at(f"{bucket}-mine/run.zarr").read("a", 100)
    assert time.monotonic() - started_at < 30.0


CLIENT = """
import os, signal, sys
from distributed import Client
from dkrr.cluster.progress import Progress
from tests.nightly.test_s3 import fitted

address, store = sys.argv[1:]
advance, seen = Progress.advance, []

def advanced(self, flops):
    seen.append(flops)
    if len(seen) == 9:  # of several displays each
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
    certificates, access, store = new_certificates(tmp_path / "tls"), variables(s3_host), f"{bucket}/run.zarr"
    names = {"CLIENT__CERT": "client.pem", "CLIENT__KEY": "client.key", "CA_FILE": "ca.pem"}
    keys = {f"DASK_DISTRIBUTED__COMM__TLS__{name}": str(certificates / file) for name, file in names.items()}
    security = {"tls_ca_file": "ca.pem", "tls_client_cert": "client.pem", "tls_client_key": "client.key"}
    with started(tmp_path, 4, "--tls", certificates, scheme="tls", **access) as cluster:
        for _ in range(2):  # what the first one did is kept
            call = [sys.executable, "-c", CLIENT, cluster.address, store]
            done = run(*call, cwd=CLUSTER.parent, seconds=120, **access, **keys)
            assert done.returncode == -signal.SIGKILL, done.stderr
        assert 0 < n_factor_tiles(store) < SIDE * (SIDE + 1) // 2
        security = Security(**{name: str(certificates / file) for name, file in security.items()})
        with Client(cluster.address, security=security) as client:
            client.wait_for_workers(4, timeout=60)
            os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)
            model = fitted(store)
    assert model.plan_.execution == "dask" and (model.dual_coef_ == whole.dual_coef_).all()
