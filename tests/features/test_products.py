"""Φ w and Φᵀ v without Φ: for every map the products of its features, and no dense rows where they are CSR."""

import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose

from dkrr.errors import InputError
from dkrr.features import (
    ConcatenatedMap,
    IdentityMap,
    NormalizedMap,
    PolynomialMap,
    RandomFourier,
    ScaledMap,
    base,
    whitened,
)
from dkrr.kernels import RBF, Matern
from tests.features.table import MAPS


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


SAMPLED = [
    RandomFourier(Matern(), 22),
    whitened(RBF(), numbers(19, 5, seed=9)),
    ConcatenatedMap(whitened(RBF(), numbers(7, 5, seed=8)), RandomFourier(RBF(), 4)),
]
every_map = pytest.mark.parametrize("phi", [*MAPS, ScaledMap(NormalizedMap(), 2.5), *SAMPLED], ids=str)


@every_map
@pytest.mark.parametrize("t", [1, 3])
@pytest.mark.parametrize("kind", ["dense", "float32", "fortran", "csr"])
def test_products(phi, t, kind, monkeypatch):
    monkeypatch.setattr(base, "PRODUCT_ENTRIES", 50)
    monkeypatch.setattr(base, "STRIP_COLUMNS", 7)
    X = np.where(numbers(31, 5) > 0.3, numbers(31, 5), 0.0).astype(np.float32)
    X = {"dense": X.astype(float), "float32": X, "fortran": np.asfortranarray(X), "csr": sp.csr_array(X)}[kind]
    features, D = phi.transform(X), phi.dimension(5)
    w, v = numbers(D, t, seed=1), numbers(31, t, seed=2)
    left, right = phi.multiply(X, w), phi.adjoint(X, v)
    assert left.dtype == right.dtype == np.float64
    assert left.shape == (31, t) and right.shape == (D, t)
    assert_allclose(left, features @ w, rtol=1e-9, atol=1e-9)
    assert_allclose(right, features.T @ v, rtol=1e-9, atol=1e-9)
    assert_allclose(phi.multiply(X, np.asfortranarray(w)), left)
    assert_allclose(phi.adjoint(X[:0], v[:0]), np.zeros((D, t)))
    assert phi.multiply(X[:0], w).shape == (0, t)


@pytest.mark.parametrize(
    "phi",
    [IdentityMap(), NormalizedMap(), ScaledMap(IdentityMap(), 2.0), ConcatenatedMap(IdentityMap(), NormalizedMap())],
    ids=str,
)
def test_sparse_rows_of_millions_of_columns(phi):
    assert phi.keeps_sparse
    d = 3_000_017
    rng = np.random.default_rng(0)
    indices = rng.integers(d, size=(50, 20))
    indptr = np.arange(0, 1001, 20)
    X = sp.csr_array((rng.standard_normal(1000), indices.ravel(), indptr), shape=(50, d))
    X.sum_duplicates()
    w, v = np.ones((phi.dimension(d), 1)), rng.standard_normal((50, 1))
    tracemalloc.start()
    left, right = phi.multiply(X, w), phi.adjoint(X, v)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5 * w.nbytes  # dense rows would be 50 of them
    assert_allclose(left.T @ v, w.T @ right)  # wᵀΦᵀv both ways


def test_maps_that_fill_in():
    for phi in (PolynomialMap(2), RandomFourier(RBF(), 4), ConcatenatedMap(IdentityMap(), RandomFourier(RBF(), 4))):
        assert not phi.keeps_sparse


@pytest.mark.parametrize(
    "make",
    [
        lambda: IdentityMap().multiply(numbers(3, 2), numbers(3, 1)),
        lambda: IdentityMap().multiply(numbers(3, 2), numbers(2)),
        lambda: IdentityMap().adjoint(numbers(3, 2), numbers(2, 1)),
        lambda: PolynomialMap(2).adjoint(numbers(3, 2), 1.0),
    ],
)
def test_bad_input(make):
    with pytest.raises(InputError, match="expected"):
        make()
