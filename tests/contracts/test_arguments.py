"""Generated bad input: wrong arguments and options are refused by name, before work, and nothing is written."""

import warnings
from functools import cache

import numpy as np
import pytest

from dkrr import KernelRidge
from dkrr.errors import InputError
from tests.contracts import arguments
from tests.contracts.arguments import Case, cases, trial

SHARES = 12
"""One of so many shares is tried by the fast tests, all at night and by `python -m tests.nightly.chaos inputs`."""
KINDS = {"estimators": "Kernel", "values": "dkrr.", "commands": "dkrr ", "functions": ""}
"""What the names of cases begin with: the first of these."""


@cache
def table():
    return {case.name: case for case in cases()}


def kind_of(name):
    return next(kind for kind, start in KINDS.items() if name.startswith(start))


def bad_outcomes(chosen):
    found = [one for one in map(trial, chosen) if one.is_failure]
    return "\n".join(f"{one.what}: {one.outcome}: {one.detail}" for one in found)


@pytest.mark.parametrize("share", [0, *(pytest.param(k, marks=pytest.mark.nightly) for k in range(1, SHARES))])
@pytest.mark.parametrize("kind", KINDS)
def test_wrong_arguments_are_refused_by_name_and_others_mean_something(kind, share):
    chosen = [case for name, case in table().items() if kind_of(name) == kind]
    assert len(chosen) > 2_000
    assert not bad_outcomes(chosen[share::SHARES])


FOUND = (
    "KernelRidge(store=True)",
    "KernelRidgeCV(store='')",
    "KernelRidge(fit_intercept='text')",
    "KernelRidge(kernel=RBF)",
    "KernelRidge.fit(X=masked array)",
    "KernelRidge.fit(y=vector of dates)",
    "gram(chunks=())",
    r"gram(store='a\0b')",
    "plan(n_classes=10**30)",
    "plan(y=one too few)",
    "save(path=None)",
    "dkrr.kernels.Matern(length_scale=10**400)",
    "dkrr.solvers.RPCholesky(random_state=-1)",
    "dkrr fit --store=null byte",
    "dkrr predict --x=s3://bucket/x.zarr",
    "dkrr select --out=missing/folder/file.png",
)


def test_what_was_accepted_or_raw_once_is_refused():
    assert all(table()[name].expected for name in FOUND)
    assert not bad_outcomes(table()[name] for name in FOUND)


def refuse(message):
    raise InputError(message)


@pytest.mark.parametrize(
    ("call", "outcome"),
    [
        (lambda: refuse("tile is 0; expected a row"), "detected"),
        (lambda: refuse("tiles and tile_0 are wrong"), "misleading error"),
        (lambda: int("tile"), "raw error"),
        (lambda: None, "accepted"),
        (lambda: np.save("left", [1]) or refuse("tile is 0"), "litter"),
        (lambda: KernelRidge().fit([[1.0], [2.0]], [1.0, 2.0]) and refuse("tile is 0"), "late"),
    ],
)
def test_the_judge_sees_what_is_wrong(call, outcome):
    found = trial(Case("tile", call, ("tile",)))
    assert (found.outcome, found.is_failure) == (outcome, outcome != "detected")


def test_the_judge_ends_what_hangs(monkeypatch):
    monkeypatch.setattr(arguments, "MAX_SECONDS", 0.05)

    def forever():
        while True:
            warnings.simplefilter("ignore")

    assert trial(Case("tile", forever, ("tile",))).outcome == "hang"
