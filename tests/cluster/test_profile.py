"""Profiles: found by what was measured, never used for something else; and rates of buckets, which have defaults."""

import json
import pwd
from dataclasses import replace
from unittest.mock import Mock

import dask
import numpy as np
import pytest

import dkrr
from dkrr.cluster.workers import WorkerReport
from dkrr.errors import InputError
from dkrr.machine import Profile, calibrate, describe, detect, record_baseline
from dkrr.machine.detection import known_rates
from dkrr.machine.profile import (
    DEFAULT_BYTES,
    DEFAULT_REQUEST_SECONDS,
    bucket_rates,
    cluster_fingerprint,
    load_profile,
    machine_fingerprint,
    median_rates,
    profile_path,
    recorded_baseline,
    save_profile,
)
from dkrr.planning import KernelRate, Rates
from dkrr.planning.resources import STORAGE_CHUNK_BYTES, WORKER_BASELINE_BYTES
from dkrr.store.arrays import create_array
from tests.planning.problems import MIB

RATES = Rates(gemm_flops=7e9, read_bytes=3e9, kernels=(KernelRate("RBF", 16, "float64", 3e-9),))


@pytest.fixture(autouse=True)
def folder(tmp_path):
    with in_folder(tmp_path / "profiles"):
        yield tmp_path / "profiles"


def in_folder(path):
    return dask.config.set({"dkrr.profile-directory": None if path is None else str(path)})


def profile(**changes):
    measured = Profile(machine_fingerprint(), "2026-01-01T00:00:00+00:00", RATES, ({"gemm_flops": 7e9},))
    return replace(measured, **changes)


def test_what_was_saved_is_loaded_and_plans_use_it(folder):
    assert detect("1GiB", None).rates == Rates(), "dkrr's defaults without a profile"
    path = save_profile(profile())
    assert path.parent == folder and load_profile(machine_fingerprint()) == profile()
    assert [p.name for p in folder.iterdir()] == [path.name], "no partial file is left"
    assert detect("1GiB", None).rates == RATES
    save_profile(profile(rates=replace(RATES, gemm_flops=8e9)))
    assert detect("1GiB", None).rates.gemm_flops == 8e9, "a file that changed is read again"


@pytest.mark.parametrize(
    ("old", "new"),
    [("}", ""), ('"format": 2', '"format": 99'), ('"gemm_flops"', '"other"'), ('"host": "', '"host": "another')],
)
def test_what_is_not_a_profile_of_this_machine_is_not_used(old, new):
    path = save_profile(profile())
    path.write_text(path.read_text().replace(old, new))
    assert load_profile(machine_fingerprint()) is None
    assert detect("1GiB", None).rates == Rates()


def test_the_default_folder_is_in_the_users_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with in_folder(None):
        assert profile_path(machine_fingerprint()).parent == tmp_path / "cache" / "dkrr"


def test_a_user_without_a_home_as_in_a_container_has_the_defaults_and_is_told_what_to_set(folder, monkeypatch):
    monkeypatch.setattr(pwd, "getpwuid", Mock(side_effect=KeyError("uid not found")))
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    with in_folder(None):
        assert load_profile(machine_fingerprint()) is None
        assert detect("1GiB", None).rates == Rates() and describe()["profile"] is None
    for configured in (None, "~/profiles"):
        words = "no folder for profiles: .*XDG_CACHE_HOME or DASK_DKRR__PROFILE_DIRECTORY"
        with in_folder(configured), pytest.raises(InputError, match=words):
            calibrate()
    save_profile(profile())
    assert load_profile(machine_fingerprint()) == profile()


def test_configuration_goes_before_what_was_measured():
    save_profile(profile())
    given = {"gemm-gflops": 14.0, "read-gbytes": 1.0, "write-gbytes": 0.25, "cold-read-gbytes": 0.1}
    given["task-seconds"] = 0.5
    with dask.config.set({f"dkrr.rates.{name}": value for name, value in given.items()}):
        rates, rates_from = known_rates(machine_fingerprint())
    assert rates_from == "configuration"
    assert (rates.gemm_flops, rates.read_bytes, rates.write_bytes, rates.task_seconds) == (14e9, 1e9, 0.25e9, 0.5)
    assert rates.cold_read_bytes == 0.1e9
    assert rates.trsm_flops == pytest.approx(2 * RATES.trsm_flops), "a core that multiplies faster does all faster"
    assert rates.kernels == RATES.kernels


def worker(host, threads, memory_limit):
    """Report of a worker of four cores."""
    return WorkerReport(host, threads, 4, 4, memory_limit, spill=0.0, pause=0.0, terminate=0.95, resident_bytes=100)


def test_fingerprints_are_values_of_json_and_of_a_cluster_do_not_depend_on_names_of_hosts():
    assert json.loads(json.dumps(machine_fingerprint())) == machine_fingerprint()
    one = [worker("10.0.0.1", 1, 100), worker("10.0.0.2", 1, 100), worker("10.0.0.2", 2, 100)]
    renamed = [worker("10.9.0.7", 1, 100), worker("10.9.0.8", 2, 100), worker("10.9.0.8", 1, 100)]
    assert cluster_fingerprint(one) == cluster_fingerprint(renamed)
    on_one = [replace(o, host="10.0.0.1") for o in one]
    for other in (one[:2], [*one, one[0]], [*one[:2], worker("10.0.0.2", 2, 200)], on_one):
        assert cluster_fingerprint(one) != cluster_fingerprint(other)
    assert profile_path(cluster_fingerprint(one)) != profile_path(machine_fingerprint())


def test_medians_over_workers():
    kernels = [[KernelRate("RBF", 4, "float32", s)] for s in (1e-9, 9e-9, 3e-9)]
    measured = [{"gemm_flops": g, "something": 1.0} for g in (5.0, 1.0, 4.0)]
    rates = median_rates(measured, kernels)
    assert rates.gemm_flops == 4.0
    assert rates.kernels == (KernelRate("RBF", 4, "float32", 3e-9),)
    assert rates.write_bytes == Rates().write_bytes, "unmeasured rates keep their defaults"


def test_what_new_workers_hold_is_kept_for_the_environment_it_was_measured_in_and_planned_with():
    assert recorded_baseline() == 0
    assert detect("1GiB", None).worker_baseline_bytes == WORKER_BASELINE_BYTES
    record_baseline(240 * MIB)
    assert recorded_baseline() == detect("1GiB", None).worker_baseline_bytes == 240 * MIB
    with dask.config.set({"distributed.worker.preload": ["another"]}):
        assert recorded_baseline() == 0, "another environment"


EACH = STORAGE_CHUNK_BYTES / (DEFAULT_REQUEST_SECONDS + STORAGE_CHUNK_BYTES / DEFAULT_BYTES)
DISK = Rates(gemm_flops=7e9, read_bytes=3e9, cold_read_bytes=1e9, write_bytes=0.7e9)


@pytest.fixture
def measured():
    """Profile of this machine and its disk."""
    with dask.config.set({"dkrr.local.workers": 2}):
        save_profile(profile(rates=DISK))
        yield


@pytest.mark.usefixtures("measured")
def test_a_run_in_a_bucket_has_defaults_which_are_not_those_of_a_disk():
    here, there = detect("1GiB", None), detect("1GiB", "s3://name:word@data/run.zarr")
    assert here.rates == DISK and here.storage_reasons == ()
    assert there.rates == bucket_rates(DISK) and there.rates_of_disk.read_bytes == 3e9
    assert there.rates.read_bytes == there.rates.write_bytes == pytest.approx(EACH)
    assert there.rates.cold_read_bytes == there.rates.read_bytes, "no system has a bucket in its cache"
    assert detect(None, "s3://data/run.zarr", worker_memory="1GiB", workers=4).rates.read_bytes == pytest.approx(EACH)
    (found,) = there.storage_reasons
    assert found.startswith("store: s3://data is priced with defaults for object stores (55 MB/s read, 55 MB/s written")
    assert "dkrr.rates.read-gbytes" in found
    large = 4 * STORAGE_CHUNK_BYTES  # chunks of another size have one request each as well
    expected = pytest.approx(large / (DEFAULT_REQUEST_SECONDS + large / DEFAULT_BYTES))
    assert there.rates.in_chunks(large).read_bytes == expected
    assert DISK.in_chunks(8.0) == DISK, "a disk has no requests"


@pytest.mark.usefixtures("measured")
def test_rows_in_a_bucket_are_read_from_there_whatever_the_store():
    found = detect("1GiB", None, rows="s3://data/x")
    assert found.rates == DISK and found.rates_of_rows.read_bytes == pytest.approx(EACH)
    apart = detect("1GiB", "s3://data/run.zarr", rows="/data/x.zarr")
    assert apart.rates_of_rows.read_bytes == 3e9 and apart.rates.read_bytes == pytest.approx(EACH)
    for rows, words in ("s3://data/x", ["store and X: s3"]), ("gs://other/x", ["store: s3://dat", "X: gs://other i"]):
        assert [reason[:15] for reason in detect("1GiB", "s3://data/run", rows=rows).storage_reasons] == words


def test_rows_of_a_fit_tell_their_bucket(bucket):
    X = np.random.default_rng(0).standard_normal((40, 3))
    create_array(f"{bucket}/x", X.shape, X.dtype)[:] = X
    plan = dkrr.KernelRidge(kernel="rbf").fit(f"{bucket}/x", X[:, 0]).plan_
    assert plan.resources.rows == bucket
    assert f"X: {bucket} is priced with defaults" in " ".join(plan.reasons)


@pytest.mark.usefixtures("measured")
def test_of_buckets_too_the_configuration_comes_first():
    with dask.config.set({"dkrr.rates.read-gbytes": 0.5}):
        found = detect("1GiB", "s3://data/run.zarr")
    assert (found.rates.read_bytes, found.rates.cold_read_bytes) == (0.5e9, 0.5e9)
    assert found.rates.write_bytes == pytest.approx(EACH)
    assert found.rates.read_request_seconds == 0.0 and "from Dask's configuration" in found.storage_reasons[0]
