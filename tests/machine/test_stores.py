"""Stores elsewhere: each has rates of its own, which plans use for what lies there and name."""

import json
import time
from dataclasses import replace
from pathlib import Path

import dask
import numpy as np
import pytest
from click.testing import CliRunner

import dkrr
from dkrr.cli import dkrr as command
from dkrr.errors import InputError, StoreError
from dkrr.machine import Profile, detect
from dkrr.machine.profile import load_profile, machine_fingerprint, profile_path, save_profile
from dkrr.machine.storage_measures import measure_bucket, storage_from
from dkrr.machine.stores import place_of
from dkrr.planning import Rates, make_plan
from dkrr.planning.resources import STORAGE_CHUNK_BYTES
from dkrr.planning.storage import DEFAULT_READ_BYTES, DEFAULT_REQUEST_SECONDS, Storage
from dkrr.tiles import remote
from dkrr.tiles.arrays import create_array
from tests.planning.problems import direct

RATES = Rates(gemm_flops=7e9, read_bytes=3e9, cold_read_bytes=1e9, write_bytes=0.7e9)
MEASURED = Storage("s3://data", 60e6, 40e6, 0.02, 0.03, None, 70e6, 50e6, 2, "2026-01-02T00:00:00+00:00")


@pytest.fixture(autouse=True)
def known(tmp_path, monkeypatch):
    """Profile of this machine, with one bucket that was measured."""
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AZURE_STORAGE_ACCOUNT_NAME"):
        monkeypatch.delenv(name, raising=False)
    with dask.config.set({"dkrr.profile-directory": str(tmp_path / "profiles"), "dkrr.local.workers": 2}):
        profile = Profile(machine_fingerprint(), "2026-01-01T00:00:00+00:00", RATES, stores=(MEASURED,))
        save_profile(profile)
        yield profile


def planned(store):
    """Plan of a fit that is too large for the memory."""
    return make_plan(direct(30_000, 9), detect("2GiB", store))


def test_a_place_is_a_bucket_of_a_server_without_secrets(monkeypatch, tmp_path):
    assert place_of("s3://data/runs/run.zarr") == place_of("s3://data") == "s3://data"
    assert place_of("gs://data/x") == "gs://data" and place_of("az://data/x") == "az://data"
    assert place_of("hdfs://name:word@host:9000/a") == "hdfs://host:9000"
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://name:word@here:9000/")
    assert place_of("s3://data/x") == "s3://data at http://here:9000" and place_of("gs://data") == "gs://data"
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    assert place_of("az://data/x") == "az://data at account"
    mount = Path(place_of(str(tmp_path / "not" / "there")))
    assert mount.is_mount() and tmp_path.is_relative_to(mount) and place_of(f"file://{tmp_path}") == str(mount)


def test_a_run_in_a_measured_bucket_has_its_rates(known):
    here, there = detect("1GiB", None), detect("1GiB", "s3://data/run.zarr")
    assert here.rates == RATES and here.storage_reasons == ()
    assert there.rates == MEASURED.applied(RATES) and there.rates_of_disk.read_bytes == 3e9
    assert there.rates.cold_read_bytes == there.rates.read_bytes == 60e6, "no system has a bucket in its cache"
    assert detect(None, "s3://data/run.zarr", worker_memory="1GiB", workers=4).rates.read_bytes == 60e6
    assert detect("1GiB", "memory://run").rates == RATES
    plans = [planned(None), planned("s3://data/run.zarr")]
    assert plans[1].seconds > 1.3 * plans[0].seconds and plans[0].resources.storage_reasons == ()
    found = "store: rates of s3://data, measured 2026-01-02 (60 MB/s read, 40 MB/s written by each task)"
    assert found in plans[1].reasons and found in str(plans[1])


def test_a_bucket_that_was_not_measured_has_defaults_which_are_not_those_of_a_disk():
    resources = detect("1GiB", "gs://other/run.zarr")
    (found,) = resources.storage_reasons
    assert found.startswith("store: gs://other has not been measured, and is priced with defaults for object stores")
    assert found.endswith("run `dkrr calibrate --store gs://other`")
    rates = resources.rates
    seconds = DEFAULT_REQUEST_SECONDS + STORAGE_CHUNK_BYTES / DEFAULT_READ_BYTES
    assert rates.read_bytes == pytest.approx(STORAGE_CHUNK_BYTES / seconds)
    # Chunks of another size have one request each as well.
    larger = rates.in_chunks(4 * STORAGE_CHUNK_BYTES)
    seconds = DEFAULT_REQUEST_SECONDS + 4 * STORAGE_CHUNK_BYTES / DEFAULT_READ_BYTES
    assert larger.read_bytes == pytest.approx(4 * STORAGE_CHUNK_BYTES / seconds)
    assert RATES.in_chunks(8.0) == RATES, "a disk has no requests"


def test_rows_in_a_bucket_are_read_from_there_whatever_the_store():
    found = detect("1GiB", None, rows="s3://data/x")
    assert found.rates == RATES and found.rates_of_rows.read_bytes == 60e6
    assert found.storage_reasons[0].startswith("X: rates of s3://data")
    both = detect("1GiB", "s3://data/run.zarr", rows="s3://data/x")
    assert [r.partition(":")[0] for r in both.storage_reasons] == ["store and X"]
    apart = detect("1GiB", "s3://data/run.zarr", rows="/data/x.zarr")
    assert apart.rates_of_rows.read_bytes == 3e9 and apart.rates.read_bytes == 60e6


def test_rows_of_a_fit_tell_their_bucket(bucket):
    X = np.random.default_rng(0).standard_normal((40, 3))
    create_array(f"{bucket}/x", X.shape, X.dtype)[:] = X
    plan = dkrr.KernelRidge(kernel="rbf").fit(f"{bucket}/x", X[:, 0]).plan_
    assert plan.resources.rows == bucket
    assert f"X: {place_of(bucket)} has not been measured" in " ".join(plan.reasons)


def test_a_folder_on_another_file_system(known, tmp_path, monkeypatch):
    monkeypatch.setattr("dkrr.machine.stores._mount_point", lambda path: f"/{path.parts[1]}")
    save_profile(known.with_storage(replace(MEASURED, place="/shared", cold_read_bytes=30e6)))
    there = detect("1GiB", "/shared/run.zarr")
    assert (there.rates.read_bytes, there.rates.cold_read_bytes) == (60e6, 30e6)
    assert there.storage_reasons[0].startswith("store: rates of /shared, measured")
    save_profile(known.with_storage(replace(MEASURED, place="/shared", read_bytes=5.6e9)))
    uncached = detect("1GiB", "/shared/run.zarr").rates
    assert uncached.cold_read_bytes == 1e9, "it could not be measured: that of the machine's disk"
    assert "5,600 MB/s read" in detect("1GiB", "/shared/run.zarr").storage_reasons[0]
    assert detect("1GiB", str(tmp_path)).rates == detect("1GiB", None).rates == RATES


def test_the_configuration_comes_before_what_was_measured():
    with dask.config.set({"dkrr.rates.read-gbytes": 0.5}):
        found = detect("1GiB", "s3://data/run.zarr")
    assert (found.rates.read_bytes, found.rates.write_bytes) == (0.5e9, 40e6)
    assert found.rates.read_request_seconds == 0.0 and "from Dask's configuration" in found.storage_reasons[0]


def test_a_profile_without_stores_is_read(known):
    path = profile_path(known.fingerprint)
    values = json.loads(path.read_text())
    del values["stores"]
    path.write_text(json.dumps(values))
    assert load_profile(known.fingerprint) == replace(known, stores=())
    path.write_text(json.dumps(values | {"stores": [{"place": "s3://data"}]}))
    assert load_profile(known.fingerprint) is None, "damaged"


def test_the_time_of_a_request_is_told_from_that_of_its_bytes(monkeypatch):
    put = remote.put
    monkeypatch.setattr("dkrr.machine.storage_measures.MAX_CHUNKS", 3)
    monkeypatch.setattr(remote, "put", lambda *args: (time.sleep(0.01), put(*args)))
    found = measure_bucket("memory://measured", 0.001)
    remote.delete_all("memory://measured")
    assert found["write_request_seconds"] >= 0.9 * 0.01 or found["write_bytes"] * 0.01 > STORAGE_CHUNK_BYTES
    storage = storage_from("s3://other/x", found, [found, {**found, "read_bytes": 3 * found["read_bytes"]}])
    assert (storage.place, storage.n_tasks) == ("s3://other", 2)
    assert storage.read_bytes == pytest.approx(2 * found["read_bytes"])
    assert storage.alone_read_bytes == found["read_bytes"] and storage.cold_read_bytes is None


def test_calibrate_measures_a_bucket_and_leaves_nothing_there(known, bucket, monkeypatch):
    monkeypatch.setattr("dkrr.machine.storage_measures.MAX_CHUNKS", 4)
    monkeypatch.setattr("dkrr.machine.calibration.BUCKET_FACTOR", 0.01)
    with dask.config.set({"dkrr.local.workers": 1}):
        result = CliRunner().invoke(command, ["calibrate", "--store", f"{bucket}/some/name"], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        shown = CliRunner().invoke(command, ["calibrate", "--show"]).output
    place, profile = place_of(bucket), load_profile(known.fingerprint)
    assert remote.names(bucket) == []
    assert [s.place for s in profile.stores] == ["s3://data", place] and profile.rates == RATES
    found = profile.stores[1]
    assert min(found.read_bytes, found.write_bytes, found.alone_read_bytes, found.read_request_seconds) > 0
    assert f"{place}: read " in result.output and f"{place}: read " in shown and found.n_tasks == 1
    assert "secret" not in profile_path(known.fingerprint).read_text()
    plan = dkrr.plan(n=9_000, d=3, kernel="rbf", tile=3_000, store=f"{bucket}/run.zarr")
    assert f"store: rates of {place}, measured" in " ".join(plan.reasons)


def test_what_cannot_be_measured_is_said_before_work(bucket, tmp_path):
    with pytest.raises(InputError, match="store is 'memory://x', which is the memory of one process"):
        dkrr.calibrate(store="memory://x")
    with pytest.raises(InputError, match="store is .*missing; expected an existing folder"):
        dkrr.calibrate(store=str(tmp_path / "missing"))
    with pytest.raises(StoreError, match=r"cannot write dkrr-calibrate-.* the bucket does not exist"):
        dkrr.calibrate(store=f"{bucket}-of-nobody")
    result = CliRunner().invoke(command, ["calibrate", "--show", "--store", bucket])
    assert result.exit_code == 2 and "--show measures nothing" in result.output
