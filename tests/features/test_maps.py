"""Every feature map against its kernel."""

import doctest
import importlib
import json
import pickle
import pkgutil
import tracemalloc
from math import comb

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from sklearn.preprocessing import PolynomialFeatures

import dkrr.features
from dkrr.errors import InputError, InputTypeError
from dkrr.features import (
    ConcatenatedMap,
    IdentityMap,
    NormalizedMap,
    PolynomialMap,
    ScaledMap,
    feature_map,
    feature_map_from_dict,
    kernel_from_dict,
    required_feature_map,
)
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
)
from tests.features.table import MAPS
from tests.oracles import naive_gram

every_map = pytest.mark.parametrize("phi", MAPS, ids=str)


def rows(n, d, seed=0):
    return np.random.default_rng(seed).standard_normal((n, d))


@every_map
def test_inner_products_are_the_kernel(phi):
    for n_rows, n_columns, d, oracle in ((11, 7, 4, naive_gram), (300, 200, 5, lambda k, X, Z: k(X, Z))):
        X, Z = rows(n_rows, d), rows(n_columns, d, seed=1)
        kernel = phi.kernel()
        # Terms of both signs cancel in <phi(x), phi(z)>, so rounding is relative to |phi(x)| |phi(z)|.
        scale = np.sqrt(np.outer(kernel.diagonal(X), kernel.diagonal(Z)))
        errors = np.abs(phi.transform(X) @ phi.transform(Z).T - oracle(kernel, X, Z))
        assert (errors / scale).max() < 1e-12


@every_map
def test_slices_of_columns(phi):
    X = rows(130, 5)
    whole = phi.transform(X)
    D = phi.dimension(5)
    # Where the features are a matrix product, rounding may depend on its shape.
    exactness = 1e-13 if "RandomFourier" in str(phi) else 0.0
    assert whole.shape == (130, D)
    assert whole.dtype == np.float64
    edges = [0, 1, 2, D // 3, D // 2, D - 1, D]
    for start in edges:
        for stop in edges:
            assert_allclose(phi.transform(X, slice(start, stop)), whole[:, start:stop], rtol=0, atol=exactness)
    for columns in (slice(None), slice(-3, None), slice(None, -2), slice(D - 1, D + 7), slice(D + 3, D + 9)):
        assert_allclose(phi.transform(X, columns), whole[:, columns], rtol=0, atol=exactness)


@every_map
def test_csr_and_float32(phi):
    X = np.where(rows(140, 6) > 0.5, rows(140, 6), 0.0)
    whole = phi.transform(X)
    assert_allclose(phi.transform(sp.csr_array(X)), whole, rtol=1e-14, atol=1e-13)
    assert_allclose(phi.transform(sp.csr_matrix(X), slice(1, 4)), whole[:, 1:4], rtol=1e-14, atol=1e-13)
    single = X.astype(np.float32)
    assert_allclose(phi.transform(single), phi.transform(single.astype(np.float64)), rtol=1e-6, atol=1e-7)
    assert phi.transform(single).dtype == np.float64


@every_map
def test_round_trip(phi):
    kernel = phi.kernel()
    assert feature_map_from_dict(json.loads(json.dumps(phi.to_dict()))) == phi
    assert kernel_from_dict(json.loads(json.dumps(kernel.to_dict()))) == kernel
    assert pickle.loads(pickle.dumps((phi, kernel))) == (phi, kernel)
    assert feature_map(kernel, 5).dimension(5) == phi.dimension(5)
    assert_allclose(feature_map(kernel, 5).transform(rows(3, 5)), phi.transform(rows(3, 5)), rtol=1e-15)


@every_map
def test_temporaries_stay_below_twice_the_result(phi):
    X = rows(1500, 13)
    tracemalloc.start()
    result = phi.transform(X)
    peak = tracemalloc.get_traced_memory()[1] - result.nbytes
    tracemalloc.stop()
    assert peak <= 2 * result.nbytes + 3 * 2**20


@every_map
def test_no_rows(phi):
    assert phi.transform(np.empty((0, 3))).shape == (0, phi.dimension(3))


def test_dimensions():
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
@settings(max_examples=40, deadline=None)
def test_polynomial_property(d, p, c, seed):
    X, phi = rows(6, d, seed), PolynomialMap(p, gamma=0.6, coef0=c)
    features = phi.transform(X)
    assert features.shape == (6, phi.dimension(d))
    expected = naive_gram(Polynomial(p, 0.6, c), X)
    assert_allclose(features @ features.T, expected, rtol=1e-12, atol=1e-12 * expected.max())


def test_order_is_that_of_scikit_learn():
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
def test_kernels_without_a_finite_map(kernel):
    assert feature_map(kernel, 5) is None
    with pytest.raises(InputError, match=r"no finite feature map.*expected.*RandomFourier, Nystroem or .* TaylorMap"):
        required_feature_map(kernel, 5)
    with pytest.raises(InputError, match="n_features is 0"):
        required_feature_map(kernel, 0)


def test_maps_of_kernels():
    assert feature_map(Linear(), 3) == IdentityMap()
    assert feature_map(Cosine(), 3) == NormalizedMap()
    assert feature_map(Polynomial(degree=2.0), 4) == PolynomialMap(2, 0.25, 1.0)
    assert feature_map(3 * Linear() + Polynomial(), 2) == ConcatenatedMap(
        ScaledMap(IdentityMap(), 3.0), PolynomialMap(3, 0.5, 1.0)
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda: PolynomialMap(degree=1.5),
        lambda: PolynomialMap(degree=-1),
        lambda: PolynomialMap(degree="2"),
        lambda: PolynomialMap(coef0=-0.1),
        lambda: PolynomialMap(gamma=0.0),
        lambda: ScaledMap(IdentityMap(), 0.0),
        lambda: ScaledMap(Linear(), 1.0),
        lambda: ConcatenatedMap(IdentityMap(), 3),
        lambda: IdentityMap().transform(rows(3, 2), slice(0, 2, 2)),
        lambda: IdentityMap().transform(rows(3, 2), 1),
        lambda: IdentityMap().transform(rows(3, 2)[0]),
        lambda: feature_map_from_dict({}),
        lambda: feature_map_from_dict("identity"),
        lambda: feature_map_from_dict({"feature_map": "fourier"}),
        lambda: feature_map_from_dict({"feature_map": "identity", "width": 3}),
        lambda: feature_map_from_dict({"feature_map": "scaled", "scale": 3}),
        lambda: feature_map_from_dict({"feature_map": "scaled", "scale": 3, "base": "identity"}),
    ],
)
def test_bad_input(make):
    with pytest.raises(InputError, match="expected"):
        make()


def test_lists_are_refused():
    with pytest.raises(InputTypeError, match="expected"):
        IdentityMap().transform([[1.0]])


def test_exports_and_examples():
    assert all(hasattr(dkrr.features, name) for name in dkrr.features.__all__)
    tried = 0
    for module in pkgutil.iter_modules(dkrr.features.__path__):
        result = doctest.testmod(importlib.import_module(f"dkrr.features.{module.name}"))
        assert result.failed == 0
        tried += result.attempted
    assert tried > 8
