"""Generated bad input: wrong arguments and options are refused by name, before work, and nothing is written."""

import inspect
from functools import cache

import numpy as np
import pytest

import dkrr
from dkrr import KernelRidge
from dkrr.errors import InputError
from tests.contracts.arguments import Case, cases, trial

SHARES, BY_DAY = 64, 4
"""Four of so many shares are tried by the fast tests, all at night and by `python -m tests.nightly.chaos inputs`."""


@cache
def table():
    return {case.name: case for case in cases()}


def bad_outcomes(chosen):
    found = [one for one in map(trial, chosen) if one.is_failure]
    return "\n".join(f"{one.what}: {one.outcome}: {one.detail}" for one in found)


@pytest.mark.parametrize("share", [pytest.param(k, marks=[pytest.mark.nightly] * (k >= BY_DAY)) for k in range(SHARES)])
def test_wrong_arguments_are_refused_by_name_and_others_mean_something(share):
    assert len(table()) > 30_000
    assert not bad_outcomes(list(table().values())[share::SHARES])


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


POSITIONAL_FLAGS = {
    "predict(return_std)": "as GaussianProcessRegressor.predict",
    "get_params(deep)": "as BaseEstimator.get_params",
    "Profile(is_quick)": "a record that dkrr makes",
    "RunStatus(is_finished)": "a record that dkrr makes",
}
"""Flags that may be given without their names, and why."""


def public_signatures():
    """Name and signature of every public function, class and method."""
    for module in (dkrr, dkrr.config, dkrr.features, dkrr.kernels, dkrr.planning, dkrr.solvers):
        for name in (name for name in module.__all__ if callable(getattr(module, name))):
            public = getattr(module, name)
            methods = inspect.getmembers(public, inspect.isroutine) if inspect.isclass(public) else ()
            for what, call in [(name, public), *methods]:
                is_own = str(getattr(call, "__module__", "")).startswith("dkrr")
                if is_own and (what == name or not what.startswith("_")):
                    yield what, inspect.signature(call)


def test_flags_are_given_by_their_names():
    found = {
        f"{name}({one.name})"
        for name, signature in public_signatures()
        for one in signature.parameters.values()
        if isinstance(one.default, bool) and one.kind is not inspect.Parameter.KEYWORD_ONLY
    }
    assert found == set(POSITIONAL_FLAGS)


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
