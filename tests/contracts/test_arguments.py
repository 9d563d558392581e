"""A share of the table of wrong arguments, and the judge of its outcomes."""

import warnings
from functools import cache

import numpy as np
import pytest

from benchmarks.chaos_inputs import Case, cases, trial
from dkrr.errors import InputError

SHARE = 12
"""One of so many cases is tried here; all of them by ``python -m benchmarks.chaos inputs``."""


@cache
def table():
    return {case.name: case for case in cases()}


def bad_outcomes(chosen):
    return [str(outcome) for outcome in map(trial, chosen) if not outcome.is_good]


@pytest.mark.parametrize("of_commands", [False, True])
def test_wrong_arguments_are_refused_by_name_and_others_mean_something(of_commands):
    chosen = [case for name, case in table().items() if name.startswith("dkrr ") == of_commands]
    assert len(chosen) > (2_000 if of_commands else 20_000)
    bad = bad_outcomes(chosen[::SHARE])
    assert not bad, "\n".join(bad)


FOUND = (
    "KernelRidge(store=0)",
    "KernelRidge(store=True)",
    "KernelRidge(store=nan)",
    "KernelRidge(store=empty text)",
    "KernelRidgeCV(store=empty text)",
    "KernelRidge(fit_intercept=text)",
    "KernelRidge(kernel_params=[])",
    "KernelRidge(kernel=class RBF)",
    "KernelRidge.fit(X=datetimes)",
    "KernelRidge.fit(X=masked array)",
    "KernelRidge.fit(y=masked vector)",
    "KernelRidge.fit(y=vector of dates)",
    "KernelLogisticRegressionCV(store=text)",
    "gram(chunks=())",
    "gram(dtype=text)",
    "gram(store=null byte)",
    "plan(n_classes=10**30)",
    "plan(n_targets=10**30)",
    "plan(y=one too few)",
    "save(path=None)",
    "dkrr.kernels.Matern(length_scale=10**400)",
    "dkrr.kernels.weighted_sums(n_candidates=10**30)",
    "dkrr.solvers.RPCholesky(random_state=-1)",
    "dkrr fit --store=null byte",
    "dkrr plan --n-classes=10**30",
    "dkrr predict --x=object store",
    "dkrr select --out=missing picture",
)


def test_what_was_accepted_or_raw_once_is_refused():
    bad = bad_outcomes(table()[name] for name in FOUND)
    assert not bad, "\n".join(bad)
    assert all(table()[name].expected for name in FOUND)


def refuse(message):
    raise InputError(message)


@pytest.mark.parametrize(
    ("call", "verdict"),
    [
        (lambda: refuse("tile is 0; expected a row"), "refused"),
        (lambda: refuse("tiles and tile_0 are wrong"), "unnamed"),
        (lambda: int("tile"), "raw"),
        (lambda: None, "taken"),
        (lambda: np.save("left", [1]) or refuse("tile is 0"), "wrote"),
        (lambda: __import__("dkrr").KernelRidge().fit([[1.0], [2.0]], [1.0, 2.0]) and refuse("tile is 0"), "late"),
    ],
)
def test_the_judge_sees_what_is_wrong(call, verdict):
    outcome = trial(Case("tile", call, ("tile",)))
    assert (outcome.verdict, outcome.is_good) == (verdict, verdict == "refused")


def test_the_judge_ends_what_hangs(monkeypatch):
    monkeypatch.setattr("benchmarks.chaos_inputs.MAX_SECONDS", 0.05)

    def forever():
        while True:
            warnings.simplefilter("ignore")

    assert trial(Case("tile", forever, ("tile",))).verdict == "slow"
