"""Interactions, Taylor and polynomial features, and the way from every kernel to its map."""

from decimal import Decimal, localcontext
from fractions import Fraction
from math import comb, factorial, sqrt

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from sklearn.preprocessing import PolynomialFeatures

from dkrr import kernels
from dkrr.errors import InputError
from dkrr.features import (
    ConcatenatedMap,
    IdentityMap,
    InteractionMap,
    NormalizedMap,
    PolynomialMap,
    ScaledMap,
    TaylorMap,
    feature_map,
    required_feature_map,
)
from dkrr.kernels import RBF, Linear, Normalized, Polynomial, TaylorRBF
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
    kernel, features = TaylorRBF(r, gamma=0.5), TaylorMap(r, gamma=0.5).transform(X)
    expected = np.array([[exact_taylor(x, z, r) for z in points] for x in points])
    for found in (kernel(X, X.copy()), features @ features.T):
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


@pytest.mark.parametrize("phi", [PolynomialMap(50), TaylorMap(400)], ids=str)
def test_a_huge_dimension_takes_no_memory_and_features_beyond_64_bits_are_refused(phi):
    found = []
    assert traced_peak(lambda: found.append(phi.dimension(10**5))) < 10**5
    assert found == [comb(10**5 + phi.degree, phi.degree)]
    X = random(2, 10**4)
    assert_allclose(PolynomialMap(7).transform(X, slice(1, 3))[:, 1], np.sqrt(7 / 10**4) * X[:, 1], rtol=1e-12)
    with pytest.raises(InputError, match="beyond 2"):
        phi.transform(X, slice(-2, None))


# Polynomials, and maps of kernels


@given(d=st.integers(1, 4), p=st.integers(0, 5), c=st.sampled_from([0.0, 0.3, 2.0]), seed=st.integers(0, 99))
def test_polynomial_features_of_any_degree_have_the_order_of_scikit_learn(d, p, c, seed):
    X = random(6, d, seed=seed)
    found, expected = PolynomialMap(p, gamma=0.6, coef0=c).transform(X), PolynomialFeatures(p).fit_transform(X)
    ratio = found / expected[:, expected.shape[1] - found.shape[1] :]
    assert_allclose(ratio, np.broadcast_to(ratio[0], ratio.shape), rtol=1e-12)


@pytest.mark.parametrize(
    "kernel",
    [RBF(), Polynomial(degree=1.5), Polynomial(coef0=-1.0), Linear() + RBF(), Normalized(RBF()), Linear() * Linear()],
)
def test_a_kernel_without_a_finite_map_says_which_maps_there_are(kernel):
    assert feature_map(kernel, 5) is None
    with pytest.raises(InputError, match=r"no finite feature map.*expected.*RandomFourier, Nystroem or .* TaylorMap"):
        required_feature_map(kernel, 5)


@pytest.mark.parametrize(
    ("kernel", "phi"),
    [
        (kernels.Cosine(), NormalizedMap()),
        (Normalized(Linear()), NormalizedMap()),
        (Polynomial(degree=2.0), PolynomialMap(2, 0.25, 1.0)),
        (Linear() + Polynomial(degree=2, gamma=1.0, coef0=0.0), InteractionMap()),
        (TaylorRBF(25, gamma=0.7), TaylorMap(25, gamma=0.7)),
        (3 * Linear() + Polynomial(), ConcatenatedMap(ScaledMap(IdentityMap(), 3.0), PolynomialMap(3, 0.25, 1.0))),
    ],
)
def test_the_map_of_a_kernel_is_made_of_those_of_its_parts(kernel, phi):
    assert feature_map(kernel, 4) == phi
