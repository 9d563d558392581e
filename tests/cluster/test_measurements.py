"""Measured rates: the quick measurement before the first long fit of a machine, and calibration, which has all."""

import json
import pwd
from dataclasses import asdict, replace
from functools import partial
from unittest.mock import Mock

import dask
import numpy as np
import pytest
from click.testing import CliRunner

import dkrr
from dkrr.cli import dkrr as command
from dkrr.cluster.worker_settings import WorkerReport
from dkrr.config import setting
from dkrr.errors import InputError
from dkrr.fitting.request_plans import FitChoice, settled
from dkrr.machine import calibration
from dkrr.machine import profile as profiles
from dkrr.machine.calibration import calibrate
from dkrr.machine.detection import describe, detect, known_rates, load_profile, recorded_baseline
from dkrr.machine.measures import best_seconds, measure_store
from dkrr.machine.profile import machine_fingerprint, record_baseline, save_profile
from dkrr.planning import Profile
from dkrr.planning.plan import RATES
from dkrr.planning.resources import WORKER_BASELINE_BYTES, Rates
from dkrr.store.zarr_arrays import create_array
from tests.cluster.clients import all_released
from tests.planning.problems import GIB, MIB, cluster, direct, machine

LONG = direct(20_000, 9)


def measured_plan(problem, resources):
    """Plan of a fit whose rows are not given."""
    return settled(FitChoice(problem, resources), None)


@pytest.fixture(autouse=True)
def folder(tmp_path):
    settings = {"profile-directory": str(tmp_path / "profiles"), "quick-measurement": True, "local.workers": 2}
    with dask.config.set({f"dkrr.{name}": value for name, value in settings.items()}):
        yield tmp_path / "profiles"


@pytest.fixture
def measured(monkeypatch):
    """Measurements that take no time: the number of those made, of the processor and of the store."""
    made = {"processor": 0, "store": 0}

    def measure_cores():
        made["processor"] += 1
        return {"gemm_flops": 70e9, "potrf_flops": 60e9, "memory_bytes": 3e9}

    def measure_store(folder, n_chunks):
        made["store"] += 1
        return {"write_bytes": 1e6 * made["store"], "read_bytes": 4e6, "cold_read_bytes": 2e6}

    monkeypatch.setattr(calibration, "_busy_seconds", lambda: 0.0)
    monkeypatch.setattr(calibration, "measure_cores", measure_cores)
    monkeypatch.setattr(calibration, "measure_store", measure_store)
    return made


def test_a_long_fit_measures_once(measured, folder):
    plan = measured_plan(LONG, machine())
    rates, defaults = plan.resources.rates, Rates()
    assert (rates.gemm_flops, rates.memory_bytes) == (70e9, 3e9) and plan.resources.rates_from == "quick"
    assert rates.dense_flops == pytest.approx(60e9 * defaults.dense_flops / defaults.potrf_flops)
    assert rates.write_bytes == defaults.write_bytes, "the plan is in memory"
    assert measured == {"processor": 2, "store": 0}, "on both cores"
    assert RATES["quick"] in str(plan)
    again = measured_plan(LONG, detect("16GiB", None, workers=2))
    assert again.resources.rates == rates and measured["processor"] == 2
    assert len(list(folder.iterdir())) == 1


def test_the_store_is_measured_for_a_plan_that_uses_it(measured):
    tiles = replace(LONG, tile=2048)
    measured_plan(LONG, machine())
    plan = measured_plan(tiles, detect("4GiB", None, workers=2))
    rates = plan.resources.rates
    assert measured == {"processor": 2, "store": 2}
    assert rates.write_bytes == 1e6 and rates.read_bytes == 4e6, "of the slower of both"
    assert rates.gemm_flops == 70e9 and load_profile(machine_fingerprint()).folder
    measured_plan(tiles, detect("4GiB", None, workers=2))
    assert measured == {"processor": 2, "store": 2}


@pytest.mark.parametrize("why", ["other programs", "full disk"])
def test_a_store_that_cannot_be_measured_has_the_defaults(measured, monkeypatch, why):
    if why == "other programs":
        monkeypatch.setattr(calibration, "_busy_seconds", partial(next, iter(range(0, 10**6, 1000))))
    else:
        monkeypatch.setattr(calibration, "measure_store", Mock(side_effect=OSError("no space left")))
    plan = measured_plan(replace(LONG, tile=2048), machine(4 * GIB))
    assert plan.resources.rates.write_bytes == Rates().write_bytes and plan.resources.rates.gemm_flops == 70e9
    assert (load_profile(machine_fingerprint()).other_cores_busy > 1) == (why == "other programs")


NOT_MEASURED = {
    "short": (direct(2000, 9), {}, True),
    "calibration": (LONG, {"rates_from": "calibration"}, True),
    "confined": (LONG, {"confined": "in the calling process, since it is a test"}, True),
    "too little memory": (LONG, {"local_limit_bytes": 200 * MIB}, True),
    "turned off": (LONG, {}, False),
}


@pytest.mark.parametrize(("problem", "settings", "is_on"), NOT_MEASURED.values(), ids=NOT_MEASURED)
def test_what_is_known_or_does_not_pay_or_cannot_be_measured_is_not(measured, problem, settings, is_on):
    resources = machine(**settings)
    with dask.config.set({"dkrr.quick-measurement": is_on}):
        plan = measured_plan(problem, resources)
    assert plan.resources.rates == resources.rates and plan.resources.rates_from == resources.rates_from
    assert measured["processor"] == 0 and RATES[resources.rates_from] in str(plan)


def test_a_folder_that_cannot_be_written(measured, tmp_path):
    (tmp_path / "file").touch()
    with dask.config.set({"dkrr.profile-directory": str(tmp_path / "file/profiles")}):
        measured_plan(LONG, machine())
        assert detect("16GiB", None, workers=2).rates_from == "quick", "this process remembers"
        measured_plan(LONG, detect("16GiB", None, workers=2))
    assert measured["processor"] == 2


def test_a_calibration_replaces_it(measured, folder):
    measured_plan(LONG, machine())
    save_profile(Profile(machine_fingerprint(), "2026-01-02", Rates(gemm_flops=9e9)))
    resources = detect("16GiB", None, workers=2)
    assert resources.rates_from == "calibration" and len(list(folder.iterdir())) == 1
    assert measured_plan(LONG, resources).resources.rates.gemm_flops == 9e9 and measured["processor"] == 2


def test_workers_of_a_client_elsewhere(measured, monkeypatch):
    elsewhere, on_every_worker = {"where": "cluster", "hosts": 3}, "dkrr.cluster.dask_client.on_every_worker"
    monkeypatch.setattr(calibration, "ambient_client", lambda: "client")
    monkeypatch.setattr(calibration, "reports_of", lambda client: [client])
    monkeypatch.setattr(calibration, "fingerprint_of", lambda workers: elsewhere if workers == ["client"] else None)
    monkeypatch.setattr(on_every_worker, lambda client, function: [function() for _ in range(3)])
    plan = measured_plan(direct(100_000, 9), cluster())
    assert plan.resources.rates.gemm_flops == 70e9 and measured == {"processor": 3, "store": 0}
    assert load_profile(elsewhere).is_quick and load_profile(machine_fingerprint()) is None


def test_what_is_really_measured(tmp_path, folder, monkeypatch):
    """Every rate of the processor is plausible, also on a busy machine."""
    monkeypatch.setattr(calibration, "MAX_BUSY_CORES_FOR_STORE", 1e9)
    with dask.config.set({"dkrr.temporary-directory": str(tmp_path)}):
        plan = measured_plan(replace(LONG, tile=2048), machine(4 * GIB))
    rates, profile = plan.resources.rates, load_profile(machine_fingerprint())
    assert profile.is_quick and profile.folder == str(tmp_path) and len(profile.workers) == 2
    flops = ("gemm_flops", "float32_gemm_flops", "syrk_flops", "trsm_flops", "potrf_flops", "dense_flops")
    for names, least, most in (flops, 1e8, 1e13), (("memory_bytes", "read_bytes", "write_bytes"), 1e6, 1e12):
        for name in names:
            assert least < getattr(rates, name) < most and getattr(rates, name) != getattr(Rates(), name), name
    assert rates.fresh_bytes == Rates().fresh_bytes
    assert [p.name for p in tmp_path.iterdir()] == ["profiles"], "nothing is left behind"
    assert json.loads(next(folder.iterdir()).read_text())["is_quick"] is True


@pytest.mark.nightly
def test_a_fit_uses_it(measured, monkeypatch, small_process):
    """The plan of a fit, as `dkrr.plan`, is made from measured rates."""
    monkeypatch.setattr(calibration, "LONG_SECONDS", 0.0)
    X = np.random.default_rng(0).standard_normal((50, 3))
    model = dkrr.KernelRidge(kernel="rbf", solver="cholesky", memory_limit="1GiB").fit(X, X[:, 0])
    assert model.plan_.resources.rates_from == "quick" and measured["processor"] > 0


DEFAULTS = {
    "fresh_bytes", "task_seconds", "chain_seconds", "round_trip_seconds", "network_bytes", "cluster_start_seconds",
}  # fmt: skip


def check(profile):
    defaults = asdict(Rates())
    same = {name for name, value in asdict(profile.rates).items() if value == defaults[name]}
    assert same - {"cold_read_bytes"} == DEFAULTS, "that of a disk which a host caches cannot be measured"
    for name, value in asdict(profile.rates).items():
        assert name in DEFAULTS or (value > 0 and np.isfinite(value)), name
    assert detect("1GiB", None).rates == profile.rates, "plans use it"
    assert detect("1GiB", None).rates_from == "calibration" and not profile.is_quick
    assert len(profile.workers) == 2


def run(*arguments):
    result = CliRunner().invoke(command, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_what_cannot_be_kept_is_refused_before_the_work(tmp_path):
    (tmp_path / "file").touch()
    with (
        dask.config.set({"dkrr.profile-directory": str(tmp_path / "file/profiles")}),
        pytest.raises(InputError, match="cannot be made.*DASK_DKRR__PROFILE_DIRECTORY"),
    ):
        dkrr.calibrate("/not/there")


@pytest.mark.parametrize(("cold", "is_measured"), [(0.12, False), (0.25, True)])
def test_a_read_that_another_cache_served_is_not_the_disks(tmp_path, monkeypatch, cold, is_measured):
    """The host of a virtual machine has in memory what was just written, and the disk's own rate cannot be measured."""
    times = iter([0.1, 0.1, cold])
    monkeypatch.setattr("dkrr.machine.measures._timed", lambda function: next(times))
    found = measure_store(str(tmp_path))
    assert ("cold_read_bytes" in found) == is_measured
    assert found.get("cold_read_bytes", 0.0) <= found["read_bytes"] / 2


@pytest.mark.parametrize(("each", "calls"), [(0.3, 4), (0.9, 3), (1.4, 3), (2.9, 2), (3.1, 1)])
def test_calls_are_repeated_within_three_times_the_time_and_slow_ones_do_not_count(monkeypatch, each, calls):
    timed = Mock(side_effect=[each] * 9)
    monkeypatch.setattr("dkrr.machine.measures._timed", timed)
    assert best_seconds(int, 1.0) == each and timed.call_count == calls
    timed.side_effect = [1.0, 1.0, 50.0, 1.0, 60.0, 1.0, 1.0, 70.0]
    assert best_seconds(int, 180.0) == 1.0


@pytest.mark.nightly
def test_this_machine(tmp_path, folder, monkeypatch):
    """The command measures for a moment only: every rate, and the next plan uses them."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    plan = ["plan", "--n", 50_000, "--d", 9, "--kernel", "laplacian", "--solver", "cholesky", "--json"]
    with dask.config.set({"dkrr.quick-measurement": False}):
        before = run(*plan)["seconds"]
    monkeypatch.setattr(dkrr, "calibrate", partial(dkrr.calibrate, seconds=0.005))
    description = run("calibrate", "--folder", scratch, "--workers", 2, "--json")
    profile = load_profile(machine_fingerprint())
    check(profile)
    assert run(*plan)["seconds"] != before
    assert list(scratch.iterdir()) == [], "nothing is left behind"
    assert description["profile"] == str(next(folder.iterdir()))
    assert description["measured"]["folder"] == str(scratch)


@pytest.mark.nightly
def test_workers_of_a_client(tmp_path, workers):
    with workers.as_current():
        profile = dkrr.calibrate(str(tmp_path), seconds=0.005)
        check(profile)
        assert load_profile(machine_fingerprint()) is None, "a cluster on this machine is not the machine"
        assert all_released(workers)


# Profiles: found by what was measured, never used for something else; and rates of buckets, which have defaults


KNOWN = Rates(gemm_flops=7e9, read_bytes=3e9)


def in_folder(path):
    return dask.config.set({"dkrr.profile-directory": None if path is None else str(path)})


def profile(**changes):
    found = Profile(machine_fingerprint(), "2026-01-01T00:00:00+00:00", KNOWN, ({"gemm_flops": 7e9},))
    return replace(found, **changes)


def test_what_was_saved_is_loaded_and_plans_use_it(folder):
    assert detect("1GiB", None).rates == Rates(), "dkrr's defaults without a profile"
    path = save_profile(profile())
    assert path.parent == folder and load_profile(machine_fingerprint()) == profile()
    assert [p.name for p in folder.iterdir()] == [path.name], "no partial file is left"
    assert detect("1GiB", None).rates == KNOWN
    save_profile(profile(rates=replace(KNOWN, gemm_flops=8e9)))
    assert detect("1GiB", None).rates.gemm_flops == 8e9, "a file that changed is read again"


@pytest.mark.parametrize(
    ("old", "new"),
    [("}", ""), ('"format": 3', '"format": 99'), ('"gemm_flops"', '"other"'), ('"host": "', '"host": "another')],
)
def test_what_is_not_a_profile_of_this_machine_is_not_used(old, new):
    path = save_profile(profile())
    path.write_text(path.read_text().replace(old, new))
    assert load_profile(machine_fingerprint()) is None
    assert detect("1GiB", None).rates == Rates()


def test_the_default_folder_is_in_the_users_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with in_folder(None):
        assert profiles.profile_path(machine_fingerprint()).parent == tmp_path / "cache" / "dkrr"


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
        rates, rates_from = known_rates(load_profile(machine_fingerprint()), setting("rates"))
    assert rates_from == "configuration"
    assert (rates.gemm_flops, rates.read_bytes, rates.write_bytes, rates.task_seconds) == (14e9, 1e9, 0.25e9, 0.5)
    assert rates.cold_read_bytes == 0.1e9
    assert rates.trsm_flops == pytest.approx(2 * KNOWN.trsm_flops), "a core that multiplies faster does all faster"


def worker(host, threads, memory_limit):
    """Report of a worker of four cores."""
    return WorkerReport(host, threads, 4, 4, memory_limit, spill=0.0, pause=0.0, terminate=0.95, resident_bytes=100)


def test_fingerprints_are_values_of_json_and_of_a_cluster_do_not_depend_on_names_of_hosts():
    assert json.loads(json.dumps(machine_fingerprint())) == machine_fingerprint()
    one = [worker("10.0.0.1", 1, 100), worker("10.0.0.2", 1, 100), worker("10.0.0.2", 2, 100)]
    renamed = [worker("10.9.0.7", 1, 100), worker("10.9.0.8", 2, 100), worker("10.9.0.8", 1, 100)]
    assert profiles.cluster_fingerprint(one) == profiles.cluster_fingerprint(renamed)
    on_one = [replace(o, host="10.0.0.1") for o in one]
    for other in (one[:2], [*one, one[0]], [*one[:2], worker("10.0.0.2", 2, 200)], on_one):
        assert profiles.cluster_fingerprint(one) != profiles.cluster_fingerprint(other)
    assert profiles.profile_path(profiles.cluster_fingerprint(one)) != profiles.profile_path(machine_fingerprint())


def test_medians_over_workers():
    rates = profiles.median_rates([{"gemm_flops": g, "something": 1.0} for g in (5.0, 1.0, 4.0)])
    assert rates.gemm_flops == 4.0
    assert rates.write_bytes == Rates().write_bytes, "unmeasured rates keep their defaults"


def test_what_new_workers_hold_is_kept_for_the_environment_it_was_measured_in_and_planned_with():
    assert recorded_baseline(setting("profile-directory")) == 0
    assert detect("1GiB", None).worker_baseline_bytes == WORKER_BASELINE_BYTES
    record_baseline(240 * MIB)
    assert recorded_baseline(setting("profile-directory")) == detect("1GiB", None).worker_baseline_bytes == 240 * MIB
    with dask.config.set({"distributed.worker.preload": ["another"]}):
        assert recorded_baseline(setting("profile-directory")) == 0, "another environment"


EACH = profiles.BUCKET_BYTES
DISK = Rates(gemm_flops=7e9, read_bytes=3e9, cold_read_bytes=1e9, write_bytes=0.7e9)


@pytest.fixture
def of_this_disk():
    """Profile of this machine and its disk."""
    save_profile(profile(rates=DISK))


@pytest.mark.usefixtures("of_this_disk")
def test_a_run_in_a_bucket_has_defaults_which_are_not_those_of_a_disk():
    here, there = detect("1GiB", None), detect("1GiB", "s3://name:word@data/run.zarr")
    assert here.rates == DISK and here.storage_reasons == ()
    assert there.rates == profiles.bucket_rates(DISK) and there.rates_of_disk.read_bytes == 3e9
    assert there.rates.read_bytes == there.rates.write_bytes == pytest.approx(EACH)
    assert there.rates.cold_read_bytes == there.rates.read_bytes, "no system has a bucket in its cache"
    assert detect(None, "s3://data/run.zarr", worker_memory="1GiB", workers=4).rates.read_bytes == pytest.approx(EACH)
    (found,) = there.storage_reasons
    assert found.startswith(
        "store: s3://data is planned with default rates of object stores (55 MB/s read, 55 MB/s written"
    )
    assert "dkrr.rates.read-gbytes" in found


@pytest.mark.usefixtures("of_this_disk")
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
    assert f"X: {bucket} is planned with default rates" in " ".join(plan.reasons)


@pytest.mark.usefixtures("of_this_disk")
def test_of_buckets_too_the_configuration_comes_first():
    with dask.config.set({"dkrr.rates.read-gbytes": 0.5}):
        found = detect("1GiB", "s3://data/run.zarr")
    assert (found.rates.read_bytes, found.rates.cold_read_bytes) == (0.5e9, 0.5e9)
    assert found.rates.write_bytes == pytest.approx(EACH)
    assert "from Dask's configuration" in found.storage_reasons[0]
