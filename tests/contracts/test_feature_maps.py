"""What is promised of every feature map: a row in `tests/contracts/maps.py` puts a map through all of it."""

import json
import pickle

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose
from sklearn.base import clone

from dkrr import features as f
from dkrr.features import base
from dkrr.kernels import RBF
from tests.contracts.maps import MAPS
from tests.oracles import naive_gram
from tests.systems import random, traced_peak

SAMPLED = [
    f.whitened(RBF(), random(19, 5, seed=9)),
    f.ConcatenatedMap(f.whitened(RBF(), random(7, 5, seed=8)), f.RandomFourier(RBF(), 4)),
]
every_map = pytest.mark.parametrize("phi", MAPS, ids=str)
SPARSE = [*MAPS[:2], f.ScaledMap(MAPS[0], 2.0), f.ConcatenatedMap(*MAPS[:2])]


@every_map
def test_inner_products_of_features_are_the_kernel_and_back(phi):
    X, Z, kernel = random(140, 9), random(7, 9, seed=1), phi.kernel()
    features, others, again = phi.transform(X), phi.transform(Z), f.required_feature_map(kernel, 9)
    # Terms of both signs cancel in <phi(x), phi(z)>, so rounding is relative to |phi(x)| |phi(z)|.
    scale, expected = np.sqrt(np.outer(kernel.diagonal(X), kernel.diagonal(Z))), naive_gram(kernel, X, Z)
    assert features.shape == (140, phi.dimension(9)) and again.dimension(9) == phi.dimension(9)
    for found in (features @ others.T, again.transform(X) @ again.transform(Z).T, again.kernel()(X, Z)):
        assert (np.abs(found - expected) / scale).max() < 1e-12


@every_map
def test_any_range_of_columns_is_that_of_all_features(phi):
    X = random(130, 5)
    whole, D = phi.transform(X), phi.dimension(5)
    # Where the features are a matrix product, rounding may depend on its shape.
    exactness = 1e-13 if "RandomFourier" in str(phi) else 0.0
    edges = [0, 1, 2, D // 3, D // 2, D - 1, D]
    ranges = [slice(start, stop) for start in edges for stop in edges]
    for columns in (*ranges, slice(None), slice(-3, None), slice(None, -2), slice(D - 1, D + 7), slice(D + 3, D + 9)):
        assert_allclose(phi.transform(X, columns), whole[:, columns], rtol=0, atol=exactness)
    assert phi.transform(np.empty((0, 3))).shape == (0, phi.dimension(3))


@every_map
def test_features_of_csr_and_float32_rows_are_those_of_dense_float64_ones(phi):
    X = np.where(random(140, 6) > 0.5, random(140, 6), 0.0)
    whole, single = phi.transform(X), X.astype(np.float32)
    assert_allclose(phi.transform(sp.csr_array(X)), whole, rtol=1e-14, atol=1e-13)
    assert_allclose(phi.transform(sp.csr_matrix(X), slice(1, 4)), whole[:, 1:4], rtol=1e-14, atol=1e-13)
    assert phi.transform(single).dtype == np.float64
    assert_allclose(phi.transform(single), phi.transform(single.astype(np.float64)), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kind", ["float32", "csr"])
@pytest.mark.parametrize("phi", [*MAPS, *SAMPLED], ids=str)
def test_products_with_features_are_those_of_the_matrix_in_small_strips(phi, kind, monkeypatch):
    monkeypatch.setattr(base, "PRODUCT_ENTRIES", 50)
    monkeypatch.setattr(base, "STRIP_COLUMNS", 7)
    X = np.where(random(31, 5) > 0.3, random(31, 5), 0.0).astype(np.float32)
    X = sp.csr_array(X.astype(float)) if kind == "csr" else np.asfortranarray(X)
    features, D = phi.transform(X), phi.dimension(5)
    w, v = np.asfortranarray(random(D, 3, seed=1)), random(31, 3, seed=2)
    left, right = phi.multiply(X, w), phi.adjoint(X, v)
    assert left.dtype == right.dtype == np.float64
    assert_allclose(left, features @ w, rtol=1e-9, atol=1e-9)
    assert_allclose(right, features.T @ v, rtol=1e-9, atol=1e-9)
    assert_allclose(phi.multiply(X, w[:, :1]), left[:, :1], rtol=1e-12, atol=1e-12)
    assert_allclose(phi.adjoint(X[:0], v[:0]), np.zeros((D, 3)))
    assert phi.multiply(X[:0], w).shape == (0, 3)


@every_map
def test_temporaries_stay_below_twice_the_features(phi):
    X = random(1500, 13)
    n_bytes = 8 * 1500 * phi.dimension(13)
    assert traced_peak(lambda: phi.transform(X)) <= 3 * n_bytes + 3 * 2**20


@pytest.mark.parametrize("phi", [*MAPS, f.Nystroem(RBF(), 3), f.RandomFourier("rbf", 4)], ids=str)
def test_a_map_is_a_value_that_its_description_and_its_parameters_give_back(phi):
    assert f.feature_map_from_dict(json.loads(json.dumps(phi.to_dict()))) == phi
    assert pickle.loads(pickle.dumps(phi)) == phi
    assert clone(phi) is phi
    for name, old in phi.get_params().items():
        assert phi.set_params(**{name: old}) == phi
    if not isinstance(phi, f.Nystroem):  # whose kernel is known after its centres
        kernel = phi.kernel()
        assert f.kernel_from_dict(json.loads(json.dumps(kernel.to_dict()))) == kernel


@pytest.mark.parametrize("phi", SPARSE, ids=str)
def test_products_with_sparse_rows_of_millions_of_columns_form_no_dense_rows(phi):
    d, rng = 3_000_017, np.random.default_rng(0)
    parts = rng.standard_normal(1000), rng.integers(d, size=1000), np.arange(0, 1001, 20)
    X = sp.csr_array(parts, shape=(50, d))
    X.sum_duplicates()
    w, v, found = np.ones((phi.dimension(d), 1)), rng.standard_normal((50, 1)), []
    peak = traced_peak(lambda: found.extend([phi.multiply(X, w), phi.adjoint(X, v)]))
    assert peak < 5 * w.nbytes  # dense rows would be 50 of them
    assert_allclose(found[0].T @ v, w.T @ found[1])  # wᵀΦᵀv both ways
