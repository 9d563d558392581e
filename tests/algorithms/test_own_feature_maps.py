"""Feature maps of a user's own: a pair of functions, and a subclass."""

import json
from dataclasses import dataclass

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal

import dkrr
from dkrr import KernelLogisticRegression, KernelRidge
from dkrr.errors import InputError, InputTypeError, KernelFunctionError, StoreError
from dkrr.features import CallableMap, ConcatenatedMap, FeatureMap, ScaledMap, feature_map_from_dict
from dkrr.kernels import Kernel, Linear
from tests.oracles import naive_kernel_ridge


def waves(X):
    X = X.toarray() if sp.issparse(X) else X
    return np.hstack([np.cos(X), np.sin(X)])


def twice(n_features):
    return 2 * n_features


@dataclass(frozen=True)
class Powers(FeatureMap):
    powers: tuple[float, ...] = (1.0, 2.0)

    def dimension(self, n_features):
        return len(self.powers) * n_features

    def _fill(self, X, start, stop, out):
        X = X.toarray() if sp.issparse(X) else X
        out[...] = np.hstack([np.abs(X) ** p for p in self.powers])[:, start:stop]


@dataclass(frozen=True, kw_only=True)
class Within(Powers):
    """Another map and a kernel as settings."""

    base: FeatureMap
    kernel_of_it: Kernel


rng = np.random.default_rng(4)
X, Y, NEW = rng.standard_normal((170, 3)), rng.standard_normal((170, 2)), rng.standard_normal((9, 3))
WAVES, POWERS = CallableMap(waves, twice), Powers((1.0, 0.5, 3.0))
FEATURES = {WAVES: waves, POWERS: lambda rows: np.hstack([np.abs(rows) ** p for p in POWERS.powers])}
NESTED = Within(base=ScaledMap(Powers(), 2.0), kernel_of_it=Linear())
each = pytest.mark.parametrize("phi", FEATURES, ids=["functions", "subclass"])


@each
@pytest.mark.parametrize("form", ["primal", "dual"])
@pytest.mark.parametrize("settings", [{"tile": 32}, {"solver": "cg", "tol": 1e-11}], ids=str)
def test_fits_are_those_of_the_features(phi, form, settings):
    Phi, both = FEATURES[phi](X), ConcatenatedMap(ScaledMap(phi, 4.0), phi)
    dual, b = naive_kernel_ridge(5 * Phi @ Phi.T, Y, [0.3, 0.3], fit_intercept=True)
    model = KernelRidge(0.3, kernel=both, form=form, fit_intercept=True, **settings).fit(X, Y)
    assert_allclose(model.dual_coef_, dual, rtol=1e-7, atol=1e-9)
    assert_allclose(model.predict(NEW), 5 * FEATURES[phi](NEW) @ Phi.T @ dual + b, rtol=1e-8, atol=1e-9)
    assert_allclose(phi.transform(X, slice(2, 5)), Phi[:, 2:5])


@each
def test_classes_and_rows_of_other_kinds_are_fitted(phi):
    primal, dual = (KernelLogisticRegression(0.1, kernel=phi, form=f).fit(X, Y[:, 0] > 0) for f in ("primal", "dual"))
    assert_allclose(primal.predict_proba(NEW), dual.predict_proba(NEW), rtol=0, atol=1e-7)
    thin = np.where(X > 0, X, 0.0).astype(np.float32)
    expected = KernelRidge(0.3, kernel=phi).fit(thin.astype(float), Y).dual_coef_
    for rows in (thin, sp.csr_array(thin), sp.csr_array(thin.astype(float))):
        for form in ("primal", "dual"):
            found = KernelRidge(0.3, kernel=phi, form=form).fit(rows, Y).dual_coef_
            assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("phi", "given"),
    [
        (WAVES, WAVES),
        (POWERS, Powers),
        (ConcatenatedMap(WAVES, ConcatenatedMap(Powers(), CallableMap(np.cbrt, 3, name="roots"))), None),
        (CallableMap(waves, 6), waves),
    ],
    ids=["functions", "class", "several parts", "function of a number of features"],
)
def test_a_model_is_saved_by_name_and_what_it_names_is_given_again(phi, given, tmp_path):
    model = KernelRidge(0.3, kernel=phi).fit(X, Y)
    dkrr.save(model, tmp_path / "m.zarr")
    with pytest.raises(InputError, match="files never hold code; expected it to be given again.*kernel="):
        dkrr.load(tmp_path / "m.zarr")
    again = dkrr.load(tmp_path / "m.zarr", kernel=given or phi)
    assert_array_equal(again.predict(NEW), model.predict(NEW))
    assert_allclose(again.fit(X, Y).predict(NEW), model.predict(NEW), rtol=1e-12)


def test_descriptions_hold_settings_and_names_alone(monkeypatch):
    for phi in (POWERS, NESTED):
        given = {f"{__name__}.{kind.__name__}": kind for kind in (Powers, Within)}
        assert feature_map_from_dict(json.loads(json.dumps(phi.to_dict())), given) == phi, (
            "the settings are in the file"
        )
    before = NESTED.to_dict()["digest"]
    monkeypatch.setattr(Powers, "dimension", lambda self, n_features: 7)
    assert NESTED.to_dict()["digest"] != before, "methods of a base belong to a class"


def test_another_source_is_noticed(tmp_path):
    def made(power):
        return CallableMap(lambda rows: rows**power, 3)

    assert len({made(2).digest, made(2).digest, made(3).digest, CallableMap(made(2).function, 4).digest}) == 3
    described = {**POWERS.to_dict(), "digest": "of another class"}
    with pytest.warns(UserWarning, match="has another source text than the one that was saved"):
        feature_map_from_dict(described, {described["name"]: Powers})
    settings = {"alpha": 0.3, "tile": 32, "store": str(tmp_path / "run.zarr")}
    KernelRidge(kernel=made(2), **settings).fit(X, Y)
    with pytest.raises(StoreError, match="kernel"):
        KernelRidge(kernel=made(3), **settings).fit(X, Y)


@pytest.mark.parametrize(
    ("described", "given", "message"),
    [
        (POWERS.to_dict(), int, "expected its class or a value of it"),
        (POWERS.to_dict() | {"settings": {"degree": 3}}, Powers, "was saved with the fields"),
        (WAVES.to_dict(), waves, r"size is a function too.*CallableMap\(function, size\)"),
        ({"feature_map": "own", "settings": {}}, None, "expected one with a name"),
        ({"feature_map": "callable"}, None, "expected one with a name"),
    ],
)
def test_what_does_not_fit_a_description_is_refused(described, given, message):
    with pytest.raises(InputError, match=message):
        feature_map_from_dict(described, {described.get("name"): given})


@pytest.mark.parametrize(
    ("function", "size", "error", "message"),
    [
        (waves, 7, InputError, r"returned shape \(70, 6\) for 70 rows; expected \(70, 7\)"),
        (lambda rows: rows.sum(axis=0), 3, InputError, r"returned shape \(3,\)"),
        (lambda rows: sp.csr_array(rows), 3, InputError, "sparse matrix"),
        (lambda rows: rows * 1j, 3, InputError, "complex128; expected real numbers"),
        (lambda rows: np.where(rows > 1, np.nan, rows), 3, InputError, "NaN or infinite features"),
        (lambda rows: {}["depth"], 3, KernelFunctionError, "on a dense block of 70 rows and 3 columns: KeyError"),
    ],
)
def test_results_of_a_function_are_checked(function, size, error, message):
    with pytest.raises(error, match=message):
        CallableMap(function, size).transform(X[:70])


class Plain(Powers):
    """Not a frozen dataclass of its own."""


def test_a_class_has_to_be_a_frozen_dataclass():
    with pytest.raises(InputTypeError, match="is not a frozen dataclass"):
        KernelRidge(kernel=Plain()).fit(X, Y)
