"""A real calibration of this machine, and of the workers of a client."""

import json
from dataclasses import asdict
from functools import partial

import dask
import numpy as np
import pytest
from click.testing import CliRunner

import dkrr
from dkrr.cli import dkrr as command
from dkrr.machine import detect
from dkrr.machine.measures import FEATURES, KERNELS
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
