"""Interactions, Taylor features and unit length, and the way from every kernel to its map and back."""

import tracemalloc
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import combinations_with_replacement
from math import comb, factorial, prod, sqrt

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from sklearn.preprocessing import PolynomialFeatures

from dkrr.errors import InputError
from dkrr.features import (
    ConcatenatedMap,
    IdentityMap,
    InteractionMap,
    MapKernel,
    NormalizedMap,
    PolynomialMap,
    RandomFourier,
    ScaledMap,
    TaylorMap,
    UnitLengthMap,
    feature_map,
    required_feature_map,
)
from dkrr.features.maps import CentredMap
from dkrr.kernels import (
    RBF,
    CallableKernel,
    Chi2,
    Cosine,
    Laplacian,
    Linear,
    Matern,
    Normalized,
    Polynomial,
    Precomputed,
    Sigmoid,
    TaylorRBF,
)
from dkrr.kernels.centring import CentredLinear
from tests.oracles import naive_gram


def rows(n, d, seed=0):
    return np.random.default_rng(seed).standard_normal((n, d))


FINITE = [
    Linear(),
    Cosine(),
    Polynomial(),
    Polynomial(degree=4, gamma=0.3, coef0=0.0),
    TaylorRBF(4),
    TaylorRBF(25, gamma=0.7),
    MapKernel(RandomFourier(Laplacian(), 20)),
    Linear() + Polynomial(degree=2, gamma=1.0, coef0=0.0),
    2.0 * Linear() + 0.3 * (TaylorRBF(2) + Cosine()),
    Normalized(Polynomial()),
    Normalized(Linear()),
    Normalized(0.7 * Normalized(TaylorRBF(3)) + Linear()),
]


@pytest.mark.parametrize("kernel", FINITE, ids=str)
def test_from_kernel_to_map_and_back(kernel):
    d = 4
    X, Z = rows(11, d), rows(7, d, seed=1)
    phi = required_feature_map(kernel, d)
    assert phi.dimension(d) == phi.transform(X).shape[1]
    scale = np.sqrt(np.outer(kernel.diagonal(X), kernel.diagonal(Z)))
    for found in (phi.transform(X) @ phi.transform(Z).T, phi.kernel()(X, Z)):
        assert (np.abs(found - kernel(X, Z)) / scale).max() < 1e-12


# Interactions


def literal(X):
    """Return (x, x₁x, ..., x_d x), all d² products."""
    return np.hstack([X, *(X[:, [i]] * X for i in range(X.shape[1]))])


def test_interactions_are_the_literal_ones_in_fewer_columns():
    X, Z = rows(9, 4), rows(6, 4, seed=1)
    phi = InteractionMap()
    assert phi.dimension(4) == 4 + 10
    assert_allclose(phi.transform(X) @ phi.transform(Z).T, literal(X) @ literal(Z).T, rtol=1e-12, atol=1e-12)
    assert_allclose(phi.kernel()(X, Z), X @ Z.T + (X @ Z.T) ** 2, rtol=1e-12, atol=1e-12)
    assert phi.kernel() == Linear() + Polynomial(degree=2, gamma=1, coef0=0)
    assert required_feature_map(phi.kernel(), 4) == phi
    expected = [X[:, 0] * X[:, 0], sqrt(2) * X[:, 0] * X[:, 1], sqrt(2) * X[:, 0] * X[:, 2]]
    assert_allclose(phi.transform(X, slice(4, 7)), np.column_stack(expected))


def test_a_coefficient_is_twice_that_of_the_literal_form_over_root_two():
    X, y, identity = rows(30, 3), rows(30, 1, seed=1), np.eye
    compact, wide = InteractionMap().transform(X), literal(X)
    w = np.linalg.solve(compact.T @ compact + 0.1 * identity(9), compact.T @ y)
    v = np.linalg.solve(wide.T @ wide + 0.1 * identity(12), wide.T @ y)
    assert_allclose(compact @ w, wide @ v, rtol=1e-9)
    square = v[3:].reshape(3, 3)
    assert_allclose(square, square.T, atol=1e-12)
    assert_allclose(w[3:, 0], [square[i, j] * (1 if i == j else sqrt(2)) for i in range(3) for j in range(i, 3)])


def test_interactions_of_sparse_rows_form_no_dense_ones():
    d, n = 3000, 40
    X = sp.random_array((n, d), density=0.004, format="csr", rng=np.random.default_rng(0))
    phi = InteractionMap()
    w, v = np.random.default_rng(1).standard_normal((phi.dimension(d), 1)), rows(n, 1)
    tracemalloc.start()
    left, right = phi.multiply(X, w), phi.adjoint(X, v)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * w.nbytes  # dense features would be 40 of them
    assert_allclose(left.T @ v, w.T @ right)
    dense = X.toarray()
    form = np.zeros((d, d))
    form[np.triu_indices(d)] = w[d:, 0]
    form = form / sqrt(2) + np.diag(np.diag(form) * (1 - 1 / sqrt(2)))
    expected = dense @ w[:d, 0] + np.einsum("ij,ij->i", dense @ (2 * form - np.diag(np.diag(form))), dense)
    assert_allclose(left[:, 0], expected, rtol=1e-10, atol=1e-12)


# Taylor features


def test_taylor_features_of_one_column():
    X, gamma = rows(20, 1), 0.4
    features = TaylorMap(5, gamma).transform(X)
    expected = [np.exp(-gamma * X**2) * (np.sqrt(2 * gamma) * X) ** k / sqrt(factorial(k)) for k in range(6)]
    assert_allclose(features, np.hstack(expected), rtol=1e-13)


@given(d=st.integers(1, 4), r=st.integers(0, 5), seed=st.integers(0, 99))
def test_taylor_features_of_several_columns(d, r, seed):
    X, gamma = rows(5, d, seed), 0.6
    columns = []
    for k in range(r + 1):
        for indices in combinations_with_replacement(range(d), k):
            repeats = prod(factorial(indices.count(i)) for i in set(indices))
            monomial = np.prod(X[:, indices], axis=1) * sqrt(2 * gamma) ** k
            columns.append(np.exp(-gamma * (X**2).sum(axis=1)) * monomial / sqrt(repeats))
    phi = TaylorMap(r, gamma)
    assert phi.dimension(d) == len(columns) == comb(d + r, r)
    assert_allclose(phi.transform(X), np.column_stack(columns), rtol=1e-12, atol=1e-300)


def naive_taylor(kernel, X, Z, gamma):
    s = 2 * gamma * X @ Z.T
    size = gamma * ((X**2).sum(axis=1)[:, None] + (Z**2).sum(axis=1))
    return np.exp(-size) * sum(s**k / factorial(k) for k in range(kernel.degree + 1))


@pytest.mark.parametrize("r", [0, 1, 4, 12, 40])
def test_the_kernel_in_closed_form(r):
    X, Z = rows(200, 6), rows(1100, 6, seed=1)
    kernel = TaylorRBF(r)
    expected = naive_taylor(kernel, X, Z, 1 / 6)
    assert_allclose(kernel(X, Z), expected, rtol=1e-12, atol=1e-13)
    assert_allclose(kernel(sp.csr_array(X), sp.csr_array(Z)), expected, rtol=1e-12, atol=1e-13)
    single = kernel(X.astype(np.float32), Z.astype(np.float32), out=np.empty((200, 1100), np.float32))
    assert_allclose(single, expected, rtol=2e-5, atol=1e-6)
    assert_allclose(kernel(X), naive_taylor(kernel, X, X, 1 / 6), rtol=1e-12, atol=1e-13)
    assert np.linalg.eigvalsh(kernel(X))[0] > -1e-12 * 200


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
    for found in (kernel(X, X.copy()), kernel(X), features @ features.T):
        assert_allclose(found, expected, rtol=0, atol=1e-13)
    assert_allclose(kernel(X, X.copy(), out=np.empty((9, 9), np.float32)), expected, rtol=0, atol=1e-6)
    assert_allclose(kernel.diagonal(X), expected.diagonal(), rtol=1e-11, atol=1e-300)
    assert expected[4, 4] > 0.999 or r < 500
    assert_allclose(expected, RBF(gamma=0.5)(X), atol=TaylorMap(r, gamma=0.5).error_bound(63.0) + 1e-13)


def test_a_column_of_many_factors():
    # 500! and the multinomial coefficients are beyond float64; the features are not.
    phi = TaylorMap(500, gamma=0.5)
    X = np.array([[6.0, -5.0, 4.0]])
    values = phi.transform(X, slice(comb(203, 3) - 60, comb(203, 3)))  # of degree 200
    assert np.isfinite(values).all() and values.any()
    y, gamma = values[0, -1], 0.5  # the last is x₃ to the power 200
    logarithm = -gamma * 77 + 200 * np.log(4.0) - 0.5 * sum(np.log(k) for k in range(1, 201))
    assert_allclose(np.log(y), logarithm, rtol=1e-10)


@given(d=st.integers(1, 3), r=st.integers(0, 9), gamma=st.floats(0.05, 3.0), seed=st.integers(0, 99))
def test_the_error_is_within_the_bounds_and_the_sharper_one_attained(d, r, gamma, seed):
    X, Z = rows(15, d, seed), rows(15, d, seed + 100)
    Z[:5] = -X[:5]
    radius = max(np.linalg.norm(np.vstack([X, Z]), axis=1))
    X[0] *= radius / np.linalg.norm(X[0])
    phi = TaylorMap(r, gamma)
    bound = phi.error_bound(radius)
    reach = 2 * gamma * radius**2
    assert bound <= reach ** (r + 1) / factorial(r + 1) * (1 + 1e-12)  # Cotter, Keshet and Srebro
    for left, right in ((X, Z), (X, X)):
        error = np.abs(RBF(gamma=gamma)(left, right) - phi.transform(left) @ phi.transform(right).T)
        assert error.max() <= bound + 1e-14
        lengths = np.outer(np.linalg.norm(left, axis=1), np.linalg.norm(right, axis=1))
        assert (error <= (2 * gamma * lengths) ** (r + 1) / factorial(r + 1) + 1e-14).all()
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


def test_absurd_dimensions_are_refused_with_their_size():
    with pytest.raises(
        InputError, match=r"degree 7, and so .* features of 1000 columns.*expected at most.*RandomFourier"
    ):
        TaylorMap.for_error(1e-5, radius=1.0, n_features=1000, gamma=0.5 * 0.9)
    with pytest.raises(InputError, match="over 10\\^"):
        TaylorMap.for_error(1e-5, radius=10.0, n_features=1000, gamma=0.5)
    with pytest.raises(InputError, match=r"no Taylor map of degree up to 500 .* centre the rows"):
        TaylorMap.for_error(1e-3, radius=100.0, n_features=1, gamma=0.5)
    assert TaylorMap.for_error(1e-5, 1.0, 40, 0.5, most_features=10**9).dimension(40) > 10**6
    assert TaylorMap(400).dimension(10**5) == comb(10**5 + 400, 400)
    with pytest.raises(InputError, match="beyond 2"):
        TaylorMap(9).transform(rows(2, 10**4), slice(-2, None))


# Unit length


def test_features_of_unit_length_are_divided_by_their_norm():
    X = np.vstack([rows(9, 3), np.zeros((1, 3))])
    for inner in (PolynomialMap(2, coef0=0.0), InteractionMap(), RandomFourier(RBF(), 8), TaylorMap(2)):
        features, phi = inner.transform(X), UnitLengthMap(inner)
        lengths = np.linalg.norm(features, axis=1, keepdims=True)
        expected = np.divide(features, lengths, out=np.zeros_like(features), where=lengths > 0)
        assert_allclose(phi.transform(X), expected, rtol=1e-12, atol=1e-14)
        assert phi.kernel() == Normalized(inner.kernel())
    assert feature_map(Normalized(Linear()), 3) == NormalizedMap()
    assert_allclose(UnitLengthMap(IdentityMap()).transform(X), NormalizedMap().transform(X), rtol=1e-15)
    assert UnitLengthMap(IdentityMap()).keeps_sparse and not UnitLengthMap(PolynomialMap()).keeps_sparse
    assert_allclose(naive_gram(Cosine(), X), UnitLengthMap(IdentityMap()).kernel()(X), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("origin", ["", "abc", ["a"], 10**400, None, [np.nan], True])
@pytest.mark.parametrize("value", [CentredMap, CentredLinear], ids=lambda v: v.__name__)
def test_wrong_origins_are_refused(value, origin):
    with pytest.raises(InputError, match="origin is .*; expected a finite number for each column"):
        value(origin)


def test_the_number_of_features_is_the_binomial_formula():
    assert IdentityMap().dimension(13) == NormalizedMap().dimension(13) == 13
    assert PolynomialMap(5).dimension(13) == comb(13 + 5, 5)
    assert PolynomialMap(5, coef0=0.0).dimension(13) == comb(13 + 5 - 1, 5)
    assert ScaledMap(PolynomialMap(3), 2.0).dimension(11) == comb(14, 3)
    assert ConcatenatedMap(PolynomialMap(3), IdentityMap()).dimension(11) == comb(14, 3) + 11
    assert PolynomialMap(0, coef0=0.0).dimension(7) == 1


def test_a_huge_dimension_allocates_nothing():
    phi = feature_map(Polynomial(degree=50), 10**5)
    tracemalloc.start()
    assert phi.dimension(10**5) == comb(10**5 + 50, 50)
    assert tracemalloc.get_traced_memory()[1] < 10**5
    tracemalloc.stop()
    X = rows(2, 10**4)
    phi = PolynomialMap(7)
    assert_allclose(phi.transform(X, slice(1, 3))[:, 1], np.sqrt(7 / 10**4) * X[:, 1], rtol=1e-12)
    with pytest.raises(InputError, match="beyond 2"):
        phi.transform(X, slice(-2, None))


@given(d=st.integers(1, 4), p=st.integers(0, 5), c=st.sampled_from([0.0, 0.3, 2.0]), seed=st.integers(0, 99))
def test_polynomial_features_of_any_degree_give_the_kernel(d, p, c, seed):
    X, phi = rows(6, d, seed), PolynomialMap(p, gamma=0.6, coef0=c)
    features = phi.transform(X)
    assert features.shape == (6, phi.dimension(d))
    expected = naive_gram(Polynomial(p, 0.6, c), X)
    assert_allclose(features @ features.T, expected, rtol=1e-12, atol=1e-12 * expected.max())


def test_polynomial_features_have_the_order_of_scikit_learn():
    X = rows(20, 4)
    ours, theirs = PolynomialMap(3, gamma=1.0).transform(X), PolynomialFeatures(3).fit_transform(X)
    ratio = ours / theirs
    assert_allclose(ratio, np.broadcast_to(ratio[0], ratio.shape), rtol=1e-12)


@pytest.mark.parametrize(
    "kernel",
    [RBF(), Laplacian(), Matern(), Sigmoid(), Chi2(), Precomputed(), Polynomial(degree=1.5), Polynomial(coef0=-1.0),
     Linear() + RBF(), 2 * RBF(), Normalized(RBF()), Linear() * Linear(), CallableKernel(np.dot)],
    ids=lambda kernel: type(kernel).__name__,
)  # fmt: skip
def test_a_kernel_without_a_finite_map_says_which_maps_there_are(kernel):
    assert feature_map(kernel, 5) is None
    with pytest.raises(InputError, match=r"no finite feature map.*expected.*RandomFourier, Nystroem or .* TaylorMap"):
        required_feature_map(kernel, 5)
    with pytest.raises(InputError, match="n_features is 0"):
        required_feature_map(kernel, 0)


def test_the_map_of_a_kernel_is_made_of_those_of_its_parts():
    assert feature_map(Linear(), 3) == IdentityMap()
    assert feature_map(Cosine(), 3) == NormalizedMap()
    assert feature_map(Polynomial(degree=2.0), 4) == PolynomialMap(2, 0.25, 1.0)
    assert feature_map(3 * Linear() + Polynomial(), 2) == ConcatenatedMap(
        ScaledMap(IdentityMap(), 3.0), PolynomialMap(3, 0.5, 1.0)
    )
