"""Calibration: it measures every rate of a plan, on this machine and on a client's workers."""

import json
import os
from dataclasses import asdict
from functools import partial

import dask
import numpy as np
import pytest
from click.testing import CliRunner

import dkrr
from dkrr.cli import dkrr as command
from dkrr.errors import InputError
from dkrr.machine import detect
from dkrr.machine.measures import FEATURES, KERNELS, best_seconds, measure_store
from dkrr.machine.profile import load_profile, machine_fingerprint
from dkrr.planning import Rates
from tests.runtime.clients import all_released

DEFAULTS = {
    "fresh_bytes", "task_seconds", "chain_seconds", "round_trip_seconds", "network_bytes", "cluster_start_seconds",
    "read_request_seconds", "write_request_seconds",
}  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path):
    with dask.config.set({"dkrr.profile-directory": str(tmp_path / "profiles"), "dkrr.local.workers": 2}):
        yield tmp_path / "profiles"


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


def test_what_cannot_be_measured_or_kept_is_refused_before_the_work(tmp_path):
    result = CliRunner().invoke(command, ["calibrate", "--store", "s3://data"])
    assert result.exit_code == 2 and "give yours as dkrr.rates in" in result.output
    assert "--store" not in CliRunner().invoke(command, ["calibrate", "--help"]).output
    with pytest.raises(InputError, match="folder is /not/there; expected an existing folder"):
        dkrr.calibrate("/not/there")
    (tmp_path / "file").touch()
    with (
        dask.config.set({"dkrr.profile-directory": str(tmp_path / "file/profiles")}),
        pytest.raises(InputError, match="cannot be made.*DASK_DKRR__PROFILE_DIRECTORY"),
    ):
        dkrr.calibrate("/not/there")


def test_a_system_that_cannot_be_told_to_forget_a_file(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "posix_fadvise")  # macOS
    measured = measure_store(str(tmp_path))
    assert set(measured) == {"write_bytes", "read_bytes"}, "the default of the disk's own rate is used"


@pytest.mark.parametrize(("cold", "is_measured"), [(0.12, False), (0.25, True)])
def test_a_read_that_another_cache_served_is_not_the_disks(tmp_path, monkeypatch, cold, is_measured):
    """The host of a virtual machine has in memory what was just written, and the disk's own rate cannot be measured."""
    times = iter([0.1, 0.1, cold])
    monkeypatch.setattr("dkrr.machine.measures._timed", lambda function: next(times))
    found = measure_store(str(tmp_path))
    assert ("cold_read_bytes" in found) == is_measured
    assert found.get("cold_read_bytes", 0.0) <= found["read_bytes"] / 2


@pytest.mark.parametrize(
    ("taken", "seconds", "best", "calls"),
    [
        ([1.0, 1.0, 50.0, 1.0, 60.0, 1.0, 1.0, 70.0], 180.0, 1.0, None),  # a slow call now and then does not count
        *(([each] * 9, 1.0, each, calls) for each, calls in ((0.3, 4), (0.9, 3), (1.4, 3), (2.9, 2), (3.1, 1))),
    ],
)
def test_calls_are_repeated_within_three_times_the_time_and_the_fastest_counts(
    monkeypatch, taken, seconds, best, calls
):
    clock, left = [0.0], list(taken)
    monkeypatch.setattr("dkrr.machine.measures.own_clock", lambda: clock[0])

    def work():
        clock[0] += left.pop(0)

    assert best_seconds(work, seconds) == pytest.approx(best)
    assert calls in (None, len(taken) - len(left))


@pytest.mark.nightly
def test_this_machine(tmp_path, folder, monkeypatch):
    """The command measures for a moment only: every rate, and the next plan uses them."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    plan = ["plan", "--n", 50_000, "--d", 9, "--kernel", "laplacian", "--solver", "cholesky", "--json"]
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
