"""Runs and rows in buckets: priced with defaults for object stores or Dask's configuration, which plans name."""

import dask
import numpy as np
import pytest

import dkrr
from dkrr.machine import Profile, detect
from dkrr.machine.profile import DEFAULT_BYTES, DEFAULT_REQUEST_SECONDS, bucket_rates, machine_fingerprint, save_profile
from dkrr.planning import Rates, make_plan
from dkrr.planning.resources import STORAGE_CHUNK_BYTES
from dkrr.tiles.arrays import create_array
from tests.planning.problems import direct

RATES = Rates(gemm_flops=7e9, read_bytes=3e9, cold_read_bytes=1e9, write_bytes=0.7e9)
EACH = STORAGE_CHUNK_BYTES / (DEFAULT_REQUEST_SECONDS + STORAGE_CHUNK_BYTES / DEFAULT_BYTES)


@pytest.fixture(autouse=True)
def known(tmp_path):
    """Profile of this machine."""
    with dask.config.set({"dkrr.profile-directory": str(tmp_path / "profiles"), "dkrr.local.workers": 2}):
        save_profile(Profile(machine_fingerprint(), "2026-01-01T00:00:00+00:00", RATES))
        yield


def planned(store):
    """Plan of a fit that is too large for the memory."""
    return make_plan(direct(30_000, 9), detect("2GiB", store))


def test_a_run_in_a_bucket_has_defaults_which_are_not_those_of_a_disk():
    here, there = detect("1GiB", None), detect("1GiB", "s3://name:word@data/run.zarr")
    assert here.rates == RATES and here.storage_reasons == ()
    assert there.rates == bucket_rates(RATES) and there.rates_of_disk.read_bytes == 3e9
    assert there.rates.read_bytes == there.rates.write_bytes == pytest.approx(EACH)
    assert there.rates.cold_read_bytes == there.rates.read_bytes, "no system has a bucket in its cache"
    assert detect(None, "s3://data/run.zarr", worker_memory="1GiB", workers=4).rates.read_bytes == pytest.approx(EACH)
    plans = [planned(None), planned("s3://data/run.zarr")]
    assert plans[1].seconds > 1.2 * plans[0].seconds and plans[0].resources.storage_reasons == ()
    (found,) = there.storage_reasons
    assert found.startswith("store: s3://data is priced with defaults for object stores (55 MB/s read, 55 MB/s written")
    assert "dkrr.rates.read-gbytes" in found and found in plans[1].reasons and found in str(plans[1])
    # Chunks of another size have one request each as well.
    seconds = DEFAULT_REQUEST_SECONDS + 4 * STORAGE_CHUNK_BYTES / DEFAULT_BYTES
    assert there.rates.in_chunks(4 * STORAGE_CHUNK_BYTES).read_bytes == pytest.approx(4 * STORAGE_CHUNK_BYTES / seconds)
    assert RATES.in_chunks(8.0) == RATES, "a disk has no requests"


def test_rows_in_a_bucket_are_read_from_there_whatever_the_store():
    found = detect("1GiB", None, rows="s3://data/x")
    assert found.rates == RATES and found.rates_of_rows.read_bytes == pytest.approx(EACH)
    assert found.storage_reasons[0].startswith("X: s3://data is priced")
    both = detect("1GiB", "s3://data/run.zarr", rows="s3://data/x")
    assert [r.partition(":")[0] for r in both.storage_reasons] == ["store and X"]
    two = detect("1GiB", "s3://data/run.zarr", rows="gs://other/x")
    assert [r[:12] for r in two.storage_reasons] == ["store: s3://", "X: gs://othe"]
    apart = detect("1GiB", "s3://data/run.zarr", rows="/data/x.zarr")
    assert apart.rates_of_rows.read_bytes == 3e9 and apart.rates.read_bytes == pytest.approx(EACH)


def test_rows_of_a_fit_tell_their_bucket(bucket):
    X = np.random.default_rng(0).standard_normal((40, 3))
    create_array(f"{bucket}/x", X.shape, X.dtype)[:] = X
    plan = dkrr.KernelRidge(kernel="rbf").fit(f"{bucket}/x", X[:, 0]).plan_
    assert plan.resources.rows == bucket
    assert f"X: {bucket} is priced with defaults" in " ".join(plan.reasons)


def test_the_configuration_comes_first():
    with dask.config.set({"dkrr.rates.read-gbytes": 0.5}):
        found = detect("1GiB", "s3://data/run.zarr")
    assert (found.rates.read_bytes, found.rates.cold_read_bytes) == (0.5e9, 0.5e9)
    assert found.rates.write_bytes == pytest.approx(EACH)
    assert found.rates.read_request_seconds == 0.0 and "from Dask's configuration" in found.storage_reasons[0]
