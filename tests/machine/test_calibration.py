"""Calibration: it measures everything that a plan believes, on this machine and on a client's workers."""

import os
from dataclasses import asdict, fields

import dask
import numpy as np
import pytest

import dkrr
from dkrr.errors import InputError
from dkrr.machine import describe, detect
from dkrr.machine.measures import FEATURES, KERNELS, best_seconds, measure_process, measure_store
from dkrr.machine.profile import load_profile, machine_fingerprint
from dkrr.planning import Rates
from dkrr.runtime.local_workers import local_client
from tests.runtime.clients import all_released

GIVEN_BY_NOBODY = {"kernels"}


@pytest.fixture(autouse=True)
def folder(tmp_path):
    with dask.config.set({"dkrr.profile-directory": str(tmp_path / "profiles"), "dkrr.local.workers": 2}):
        yield tmp_path / "profiles"


def check(profile):
    for name, value in asdict(profile.rates).items():
        if name != "kernels":
            assert value > 0 and np.isfinite(value), name
    kernels = {(k.kernel, k.n_features, k.precision) for k in profile.rates.kernels}
    assert len(kernels) == len(profile.rates.kernels) == 2 * len(KERNELS) * len(FEATURES)
    assert detect("1GiB", None).rates == profile.rates, "plans use it"
    assert len(profile.workers) == 2 and profile.rates.cold_read_bytes > 0


@pytest.mark.slow
def test_this_machine(tmp_path, folder):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    profile = dkrr.calibrate(str(scratch), seconds=0.005)
    check(profile)
    assert list(scratch.iterdir()) == [], "nothing is left behind"
    description = describe()
    assert description["profile"] == str(next(folder.iterdir()))
    assert description["measured"]["folder"] == str(scratch)
    defaults = asdict(Rates())
    same = [f.name for f in fields(Rates) if getattr(profile.rates, f.name) == defaults[f.name]]
    assert same == [], "every rate was measured"


@pytest.mark.slow
def test_workers_of_a_client(tmp_path):
    with local_client(2, 2**30, str(tmp_path)) as client, client.as_current():
        profile = dkrr.calibrate(str(tmp_path), seconds=0.005)
        check(profile)
        assert load_profile(machine_fingerprint()) is None, "a cluster on this machine is not the machine"
        assert all_released(client)
    assert profile.rates.cluster_start_seconds == Rates().cluster_start_seconds, "it was there already"


def test_a_folder_that_is_not_there():
    with pytest.raises(InputError, match="/not/there is not there"):
        dkrr.calibrate("/not/there")


def test_a_worker_measures_everything_of_its_own(tmp_path):
    measured, kernels = measure_process(str(tmp_path), 0.0, 0.001)
    shared = {"dense_flops", "task_seconds", "chain_seconds", "round_trip_seconds", "network_bytes"}
    of_workers = {f.name for f in fields(Rates)} - shared - {"cluster_start_seconds", "kernels"}
    assert set(measured) == of_workers
    assert all(value > 0 for value in measured.values())
    assert all(k.entry_seconds > 0 for k in kernels)


def test_a_system_that_cannot_be_told_to_forget_a_file(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "posix_fadvise")  # macOS
    measured = measure_store(str(tmp_path))
    assert set(measured) == {"write_bytes", "read_bytes"}, "the default of the disk's own rate is believed"


def test_nowhere_to_keep_it_is_said_before_the_work(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with (
        dask.config.set({"dkrr.profile-directory": str(tmp_path / "file/profiles")}),
        pytest.raises(InputError, match="cannot be made.*DASK_DKRR__PROFILE_DIRECTORY"),
    ):
        dkrr.calibrate("/not/there")


def test_a_slow_call_now_and_then_does_not_count(monkeypatch):
    clock, taken = [0.0], iter([1.0, 1.0, 50.0, 1.0, 60.0, 1.0, 1.0, 70.0])
    monkeypatch.setattr("dkrr.machine.measures.time.perf_counter", lambda: clock[0])

    def work():
        clock[0] += next(taken)

    assert best_seconds(work, 180.0) == 1.0
