"""Interactions, Taylor and polynomial features, and the way from every kernel to its map."""

import json
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from math import comb, factorial, sqrt

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.preprocessing import PolynomialFeatures

import dkrr
from dkrr import KernelLogisticRegression, KernelRidge, features, kernels
from dkrr.errors import InputError, InputTypeError, KernelFunctionError, StoreError
from dkrr.features import CallableMap, FeatureMap, TaylorMap
from dkrr.kernels import RBF, Kernel, Linear, Normalized, Polynomial, TaylorRBF
from dkrr.kernels.descriptions import feature_map_from_dict
from dkrr.kernels.interactions import InteractionMap
from dkrr.kernels.kernel_features import required_feature_map
from tests.oracles import assert_close, naive_kernel_ridge
from tests.systems import random, traced_peak

# Interactions


def test_interactions_of_sparse_rows_form_no_dense_ones():
    d, n, phi = 3000, 40, InteractionMap()
    X = sp.random_array((n, d), density=0.004, format="csr", rng=np.random.default_rng(0))
    w, v, found = random(phi.dimension(d), 1, seed=1), random(n, 1), []
    peak = traced_peak(lambda: found.extend([phi.multiply(X, w), phi.adjoint(X, v)]))
    assert peak < 4 * w.nbytes  # dense features would be 40 of them
    assert_allclose(found[0].T @ v, w.T @ found[1])
    dense, form = X.toarray(), np.zeros((d, d))
    form[np.triu_indices(d)] = w[d:, 0]
    form = form * sqrt(2) - np.diag(np.diag(form) * (sqrt(2) - 1))
    expected = dense @ w[:d, 0] + np.einsum("ij,ij->i", dense @ form, dense)
    assert_allclose(found[0][:, 0], expected, rtol=1e-10, atol=1e-12)


# Taylor features


def exact_taylor(x, z, r):
    """Return the kernel of two whole numbers for γ = 1/2, the sum as a fraction and the exponential in many digits."""
    total, term = Fraction(0), Fraction(1)
    for k in range(r + 1):
        total, term = total + term, term * Fraction(x * z, k + 1)
    with localcontext(prec=50):
        return float(Decimal(total.numerator) / Decimal(total.denominator) * (-Decimal(x * x + z * z) / 2).exp())


@pytest.mark.parametrize("r", [30, 170, 500])
def test_far_rows_and_high_degrees_neither_overflow_nor_underflow(r):
    # γ‖x‖² up to 2000, where exp(−γ‖x‖²) is 0 in float64; it is 0 in float32 from 104 on, where k may be 1.
    points = [0, 3, 9, 14, 17, 25, 63, -9, -63]
    X = np.array(points, dtype=float)[:, None]
    kernel, phi = TaylorRBF(degree=r, gamma=0.5), TaylorMap(r, gamma=0.5).transform(X)
    expected = np.array([[exact_taylor(x, z, r) for z in points] for x in points])
    for found in (kernel(X, X.copy()), phi @ phi.T):
        assert_allclose(found, expected, rtol=0, atol=1e-13)
    assert_allclose(kernel(X, X.copy(), out=np.empty((9, 9), np.float32)), expected, rtol=0, atol=1e-6)
    assert_allclose(kernel.diagonal(X), expected.diagonal(), rtol=1e-11, atol=1e-300)
    assert_allclose(expected, RBF(gamma=0.5)(X), atol=TaylorMap(r, gamma=0.5).error_bound(63.0) + 1e-13)


@given(d=st.integers(1, 3), r=st.integers(0, 9), gamma=st.floats(0.05, 3.0), seed=st.integers(0, 99))
def test_the_error_is_within_the_bounds_and_the_sharper_one_attained(d, r, gamma, seed):
    X, Z = random(15, d, seed=seed), random(15, d, seed=seed + 100)
    Z[:5] = -X[:5]
    radius = max(np.linalg.norm(np.vstack([X, Z]), axis=1))
    X[0] *= radius / np.linalg.norm(X[0])
    phi = TaylorMap(r, gamma)
    bound = phi.error_bound(radius)
    for left, right in ((X, Z), (X, X)):
        error = np.abs(RBF(gamma=gamma)(left, right) - phi.transform(left) @ phi.transform(right).T)
        assert error.max() <= bound + 1e-14
        lengths = np.outer(np.linalg.norm(left, axis=1), np.linalg.norm(right, axis=1))
        assert (error <= (2 * gamma * lengths) ** (r + 1) / factorial(r + 1) + 1e-14).all()  # Cotter et al.
    x = phi.transform(X[:1])[0]
    assert_allclose(1 - x @ x, bound, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize(
    ("error", "radius", "d", "gamma"), [(1e-3, 1.5, 3, None), (1e-8, 2.0, 1, 0.5), (0.5, 0.0, 2, 1.0)]
)
def test_the_degree_is_the_least_that_will_do(error, radius, d, gamma):
    phi = TaylorMap.for_error(error, radius, d, gamma)
    assert phi.error_bound(radius) <= error
    assert phi.degree == 0 or TaylorMap(phi.degree - 1, phi.gamma).error_bound(radius) > error
    assert TaylorMap(phi.degree).error_bound(radius, d) == TaylorMap(phi.degree, 1 / d).error_bound(radius)


@pytest.mark.parametrize(
    ("error", "radius", "n_features", "message"),
    [
        (1e-5, 1.0, 1000, r"degree \d, and so .* features of 1000 columns.*expected at most.*RandomFourier"),
        (1e-5, 10.0, 1000, r"over 10\^"),
        (1e-3, 100.0, 1, r"no Taylor map of degree up to 500 .* centre the rows"),
    ],
)
def test_an_error_that_takes_too_many_features_is_refused_with_their_number(error, radius, n_features, message):
    with pytest.raises(InputError, match=message):
        TaylorMap.for_error(error, radius, n_features, gamma=0.5)
    assert TaylorMap.for_error(1e-5, 1.0, 40, 0.5, most_features=10**9).dimension(40) > 10**6


@pytest.mark.parametrize("kernel", [Polynomial(degree=50), TaylorRBF(degree=400)], ids=str)
def test_a_huge_dimension_takes_no_memory_and_features_beyond_64_bits_are_refused(kernel):
    found, X = [], random(2, 10**4)
    phi, seven = required_feature_map(kernel, 10**4), required_feature_map(Polynomial(degree=7), 10**4)
    assert traced_peak(lambda: found.append(phi.dimension(10**5))) < 10**5
    assert found == [comb(10**5 + phi.degree, phi.degree)]
    assert_allclose(seven.transform(X, slice(1, 3))[:, 1], np.sqrt(7 / 10**4) * X[:, 1], rtol=1e-12)
    with pytest.raises(InputError, match="beyond 2"):
        phi.transform(X, slice(-2, None))


# Polynomials, and maps of kernels


@given(d=st.integers(1, 4), p=st.integers(0, 5), c=st.sampled_from([0.0, 0.3, 2.0]), seed=st.integers(0, 99))
def test_polynomial_features_of_any_degree_have_the_order_of_scikit_learn(d, p, c, seed):
    X = random(6, d, seed=seed)
    phi = required_feature_map(Polynomial(degree=p, gamma=0.6, coef0=c), d)
    found, expected = phi.transform(X), PolynomialFeatures(p).fit_transform(X)
    ratio = found / expected[:, expected.shape[1] - found.shape[1] :]
    assert_allclose(ratio, np.broadcast_to(ratio[0], ratio.shape), rtol=1e-12)


@pytest.mark.parametrize(
    "kernel",
    [RBF(), Polynomial(degree=1.5), Polynomial(coef0=-1.0), Linear() + RBF(), Normalized(RBF()), Linear() * Linear()],
)
def test_a_kernel_without_a_finite_map_says_which_maps_there_are(kernel):
    assert features.feature_map(kernel, 5) is None
    with pytest.raises(InputError, match=r"no finite feature map.*expected.*RandomFourier, Nystroem or .* TaylorMap"):
        required_feature_map(kernel, 5)


@pytest.mark.parametrize(
    ("kernel", "same"),
    [
        (Normalized(Linear()), kernels.Cosine()),
        (Polynomial(degree=2.0), Polynomial(degree=2, gamma=0.25)),
        (Linear() + Polynomial(degree=2, gamma=1.0, coef0=0.0), InteractionMap().kernel()),
        (TaylorRBF(degree=25, gamma=0.7), TaylorMap(25, gamma=0.7).kernel()),
    ],
)
def test_equal_kernels_have_one_map(kernel, same):
    assert required_feature_map(kernel, 4) == required_feature_map(same, 4)


# Maps of a user's own: a pair of functions, and a subclass


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
NESTED = Within(base=Powers((2.0, 5.0)), kernel_of_it=Linear())
each = pytest.mark.parametrize("phi", FEATURES, ids=["functions", "subclass"])


@each
@pytest.mark.parametrize("form", ["primal", "dual"])
@pytest.mark.parametrize("settings", [{"tile": 32}, {"solver": "cg", "tol": 1e-11}], ids=str)
def test_fits_are_those_of_the_features(phi, form, settings):
    Phi, both = FEATURES[phi](X), 4.0 * phi + phi
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
        (WAVES + (Powers() + CallableMap(np.cbrt, 3, name="roots")), None),
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
    assert_close(again.fit(X, Y).predict(NEW), model.predict(NEW), 1e-12)


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

    assert len({made(2).digest(), made(2).digest(), made(3).digest(), CallableMap(made(2).function, 4).digest()}) == 3
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
