"""Profiles: found by what was measured, never used when they are those of something else."""

import json
import os
import pwd
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import dask
import pytest

import dkrr
from dkrr.errors import InputError
from dkrr.machine import Profile, calibrate, describe, detect
from dkrr.machine.detection import known_rates
from dkrr.machine.profile import (
    cluster_fingerprint,
    load_profile,
    machine_fingerprint,
    median_rates,
    profile_path,
    save_profile,
)
from dkrr.planning import KernelRate, Rates

RATES = Rates(gemm_flops=7e9, read_bytes=3e9, kernels=(KernelRate("RBF", 16, "float64", 3e-9),))


@pytest.fixture(autouse=True)
def folder(tmp_path):
    with dask.config.set({"dkrr.profile-directory": str(tmp_path / "profiles")}):
        yield tmp_path / "profiles"


def profile(**changes):
    return replace(
        Profile(machine_fingerprint(), "2026-01-01T00:00:00+00:00", RATES, ({"gemm_flops": 7e9},)), **changes
    )


def test_what_was_saved_is_loaded(folder):
    path = save_profile(profile())
    assert path.parent == folder and load_profile(machine_fingerprint()) == profile()
    assert [p.name for p in folder.iterdir()] == [path.name], "no partial file is left"


def test_plans_use_it():
    assert detect("1GiB", None).rates == Rates(), "dkrr's defaults without a profile"
    save_profile(profile())
    assert detect("1GiB", None).rates == RATES
    save_profile(profile(rates=replace(RATES, gemm_flops=8e9)))
    assert detect("1GiB", None).rates.gemm_flops == 8e9, "a file that changed is read again"


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "[]",
        lambda text: text.replace('"format": 2', '"format": 99'),
        lambda text: text.replace('"gemm_flops"', '"other"'),
        lambda text: text.replace('"host": "', '"host": "another'),
    ],
    ids=["cut", "a list", "format", "field", "host"],
)
def test_what_is_not_a_profile_of_this_machine_is_not_used(damage):
    path = save_profile(profile())
    path.write_text(damage(path.read_text()))
    assert load_profile(machine_fingerprint()) is None
    assert detect("1GiB", None).rates == Rates()


def test_the_default_folder_is_in_the_users_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with dask.config.set({"dkrr.profile-directory": None}):
        assert profile_path(machine_fingerprint()).parent == tmp_path / "cache" / "dkrr"


class TestNoHome:
    """A container's user may have neither HOME nor an entry in the list of users."""

    @pytest.fixture(autouse=True)
    def unknown_user(self, monkeypatch):
        def no_entry(_):
            raise KeyError("uid not found")

        monkeypatch.setattr(pwd, "getpwuid", no_entry)
        monkeypatch.delenv("HOME", raising=False)
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        with dask.config.set({"dkrr.profile-directory": None}):
            yield

    def test_plans_use_the_defaults(self):
        assert load_profile(machine_fingerprint()) is None
        assert detect("1GiB", None).rates == Rates() and describe()["profile"] is None

    @pytest.mark.parametrize("configured", [None, "~/profiles"])
    def test_calibrate_says_what_to_set(self, configured):
        with (
            dask.config.set({"dkrr.profile-directory": configured}),
            pytest.raises(InputError, match="no folder for profiles: .*XDG_CACHE_HOME or DASK_DKRR__PROFILE_DIRECTORY"),
        ):
            calibrate()

    def test_a_folder_that_is_set(self, tmp_path):
        with dask.config.set({"dkrr.profile-directory": str(tmp_path)}):
            save_profile(profile())
            assert load_profile(machine_fingerprint()) == profile()


@pytest.mark.nightly
@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
def test_a_fit_of_an_unknown_user():
    """With an empty environment, as `docker run --user 54321` has it."""
    script = """
import os, sys, dkrr, dkrr.estimators
from dkrr.machine import detect
os.setgid(54321), os.setuid(54321)  # only now: the interpreter itself may lie in root's home
print(dkrr.KernelRidge(kernel="rbf").fit([[0.0], [1.0]], [0.0, 1.0]).solve_result_.status)
"""
    where = {"PYTHONPATH": str(Path(dkrr.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", script], env=where, capture_output=True, text=True, timeout=60)
    assert "SOLVED" in done.stdout.upper(), done.stderr


def test_configuration_goes_before_what_was_measured():
    save_profile(profile())
    given = {
        "gemm-gflops": 14.0,
        "read-gbytes": 1.0,
        "write-gbytes": 0.25,
        "task-seconds": 0.5,
        "cold-read-gbytes": 0.1,
    }
    with dask.config.set({f"dkrr.rates.{name}": value for name, value in given.items()}):
        rates, rates_from = known_rates(machine_fingerprint())
    assert rates_from == "configuration"
    assert (rates.gemm_flops, rates.read_bytes, rates.write_bytes, rates.task_seconds) == (14e9, 1e9, 0.25e9, 0.5)
    assert rates.cold_read_bytes == 0.1e9
    assert rates.trsm_flops == pytest.approx(2 * RATES.trsm_flops), "a core that multiplies faster does all faster"
    assert rates.kernels == RATES.kernels


class TestFingerprint:
    def test_values_of_json(self):
        assert json.loads(json.dumps(machine_fingerprint())) == machine_fingerprint()

    def test_of_a_cluster(self):
        one = [("10.0.0.1", 1, 100), ("10.0.0.2", 1, 100), ("10.0.0.2", 2, 100)]
        renamed = [("10.9.0.7", 1, 100), ("10.9.0.8", 2, 100), ("10.9.0.8", 1, 100)]
        assert cluster_fingerprint(one) == cluster_fingerprint(renamed)
        assert cluster_fingerprint(one) != cluster_fingerprint(one[:2])
        assert cluster_fingerprint(one) != cluster_fingerprint([*one[:2], ("10.0.0.2", 2, 200)])
        assert cluster_fingerprint(one) != cluster_fingerprint([("10.0.0.1", t, m) for _, t, m in one])
        assert profile_path(cluster_fingerprint(one)) != profile_path(machine_fingerprint())


def test_medians_over_workers():
    kernels = [[KernelRate("RBF", 4, "float32", s)] for s in (1e-9, 9e-9, 3e-9)]
    measured = [{"gemm_flops": g, "something": 1.0} for g in (5.0, 1.0, 4.0)]
    rates = median_rates(measured, kernels)
    assert rates.gemm_flops == 4.0
    assert rates.kernels == (KernelRate("RBF", 4, "float32", 3e-9),)
    assert rates.write_bytes == Rates().write_bytes, "unmeasured rates keep their defaults"


def test_a_rate_that_only_some_workers_could_measure():
    measured = [{"read_bytes": 5e9}, {"read_bytes": 5e9, "cold_read_bytes": 2e8}]
    assert median_rates(measured, [[], []]).cold_read_bytes == 2e8


def test_every_rate_is_a_number():
    assert {type(getattr(Rates(), f.name)) for f in fields(Rates) if f.name != "kernels"} == {float}
