"""Measured rates: the quick measurement before the first long fit of a machine, and calibration, which has all."""

import json
from dataclasses import asdict, replace
from functools import partial
from unittest.mock import Mock

import dask
import numpy as np
import pytest
from click.testing import CliRunner

import dkrr
from dkrr.cli import dkrr as command
from dkrr.errors import InputError
from dkrr.machine import Profile, detect, quick
from dkrr.machine.measures import FEATURES, KERNELS, best_seconds, measure_store
from dkrr.machine.profile import load_profile, machine_fingerprint, save_profile
from dkrr.machine.quick import measured_plan
from dkrr.planning import KernelRate, Rates
from dkrr.planning.plan import RATES
from tests.cluster.clients import all_released
from tests.planning.problems import GIB, MIB, cluster, direct, machine

LONG = direct(20_000, 9)


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
        kernels = [KernelRate("RBF", 8, "float64", 5e-9)]
        return {"gemm_flops": 70e9, "potrf_flops": 60e9, "memory_bytes": 3e9}, kernels

    def measure_store(folder, n_chunks):
        made["store"] += 1
        return {"write_bytes": 1e6 * made["store"], "read_bytes": 4e6, "cold_read_bytes": 2e6}

    monkeypatch.setattr(quick, "_busy_seconds", lambda: 0.0)
    monkeypatch.setattr(quick, "measure_cores", measure_cores)
    monkeypatch.setattr(quick, "measure_store", measure_store)
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
        monkeypatch.setattr(quick, "_busy_seconds", partial(next, iter(range(0, 10**6, 1000))))
    else:
        monkeypatch.setattr(quick, "measure_store", Mock(side_effect=OSError("no space left")))
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
    monkeypatch.setattr(quick, "ambient_client", lambda: "client")
    monkeypatch.setattr(quick, "reports_of", lambda client: [client])
    monkeypatch.setattr(quick, "fingerprint_of", lambda workers: elsewhere if workers == ["client"] else None)
    monkeypatch.setattr(on_every_worker, lambda client, function: [function() for _ in range(3)])
    plan = measured_plan(direct(100_000, 9), cluster())
    assert plan.resources.rates.gemm_flops == 70e9 and measured == {"processor": 3, "store": 0}
    assert load_profile(elsewhere).is_quick and load_profile(machine_fingerprint()) is None


def test_what_is_really_measured(tmp_path, folder, monkeypatch):
    """Every rate of the processor is plausible, also on a busy machine."""
    monkeypatch.setattr(quick, "MAX_BUSY_CORES", 1e9)
    with dask.config.set({"dkrr.temporary-directory": str(tmp_path)}):
        plan = measured_plan(replace(LONG, tile=2048), machine(4 * GIB))
    rates, profile = plan.resources.rates, load_profile(machine_fingerprint())
    assert profile.is_quick and profile.folder == str(tmp_path) and len(profile.workers) == 2
    flops = ("gemm_flops", "float32_gemm_flops", "syrk_flops", "trsm_flops", "potrf_flops", "dense_flops")
    for names, least, most in (flops, 1e8, 1e13), (("memory_bytes", "read_bytes", "write_bytes"), 1e6, 1e12):
        for name in names:
            assert least < getattr(rates, name) < most and getattr(rates, name) != getattr(Rates(), name), name
    assert {k.kernel for k in rates.kernels} == {"Linear", "Polynomial", "RBF", "Laplacian", "Matern"}
    assert rates.fresh_bytes == Rates().fresh_bytes
    assert [p.name for p in tmp_path.iterdir()] == ["profiles"], "nothing is left behind"
    assert json.loads(next(folder.iterdir()).read_text())["is_quick"] is True


def test_a_fit_uses_it(measured, monkeypatch, small_process):
    """The plan of a fit, as `dkrr.plan`, is made from measured rates."""
    monkeypatch.setattr(quick, "LONG_SECONDS", 0.0)
    X = np.random.default_rng(0).standard_normal((50, 3))
    model = dkrr.KernelRidge(kernel="rbf", solver="cholesky", memory_limit="1GiB").fit(X, X[:, 0])
    assert model.plan_.resources.rates_from == "quick" and measured["processor"] > 0


DEFAULTS = {
    "fresh_bytes", "task_seconds", "chain_seconds", "round_trip_seconds", "network_bytes", "cluster_start_seconds",
    "read_request_seconds", "write_request_seconds",
}  # fmt: skip


def check(profile):
    defaults = asdict(Rates())
    same = {name for name, value in asdict(profile.rates).items() if value == defaults[name]}
    assert same - {"cold_read_bytes"} == DEFAULTS, "that of a disk which a host caches cannot be measured"
    for name, value in asdict(profile.rates).items():
        assert name in DEFAULTS | {"kernels"} or (value > 0 and np.isfinite(value)), name
    assert all(k.entry_seconds > 0 for k in profile.rates.kernels)
    kernels = {(k.kernel, k.n_features, k.precision) for k in profile.rates.kernels}
    assert len(kernels) == len(profile.rates.kernels) == 2 * len(KERNELS) * len(FEATURES)
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
