"""Entries and features are computed in float64 whatever the rows are stored in: float32, integers and the like."""

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal

from dkrr.features import ColumnsMap, PolynomialMap, RandomFourier, whitened
from dkrr.features.maps import CentredMap
from dkrr.kernels import RBF, BagOfWords, Columns, Linear, Polynomial
from dkrr.kernels.centring import CentredLinear
from tests import precise
from tests.contracts import kernels, maps

MAPS = [
    *{type(phi): phi for phi in maps.MAPS}.values(),
    ColumnsMap(PolynomialMap(2), [3, 0, 1]),
    CentredMap(range(6)),
    whitened(RBF(), np.random.default_rng(8).standard_normal((7, 6))),
]
KERNELS = [
    *(case.kernel for case in kernels.DISTINCT),
    Columns(Polynomial(), [0, 2, 5]),
    BagOfWords(vocabulary=tuple("abcdef"), weighting="counts"),
    RandomFourier(RBF(), 6).kernel(),
    CentredLinear(range(6)),
]

dense_or_csr = pytest.mark.parametrize("sparse", [False, True], ids=["dense", "csr"])


def rows(stored, n=17, seed=0):
    """Rows that have no short product in their own type."""
    X = np.abs(np.random.default_rng(seed).standard_normal((n, 6)))
    X = np.where(X > 0.4, X, 0.0) * (1 if np.dtype(stored).kind == "f" else 90)
    return X.astype(stored)


def as_stored(sparse, *arrays):
    """The same rows as they are stored and in float64, dense or in CSR; SciPy has no sparse matrix of float16."""
    make = sp.csr_array if sparse else np.asarray
    for stored in ["float32", "int16", "bool"] + ["float16"] * (not sparse):
        X = [rows(stored, n, seed) for n, seed in arrays]
        yield stored, [make(x) for x in X], [make(x.astype(np.float64)) for x in X]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda value: type(value).__name__)
@dense_or_csr
def test_kernels_of_float32_rows_are_those_of_these_numbers(kernel, sparse):
    if sparse and "Chi2" in str(kernel):
        pytest.skip("takes dense rows")
    for stored, (left, right), (wide, other) in as_stored(sparse, (17, 0), (5, 1)):
        assert_array_equal(kernel(left, right), kernel(wide, other), stored)
        assert_array_equal(kernel(left), kernel(wide), stored)
        assert_array_equal(kernel(left, other), kernel(wide, other), stored)
        assert_array_equal(kernel.diagonal(left), kernel.diagonal(wide), stored)
        for (*_, piece), (*_, expected) in zip(kernel.pieces(left, right), kernel.pieces(wide, other), strict=True):
            assert_array_equal(piece, expected, stored)


@pytest.mark.parametrize("phi", MAPS, ids=lambda value: type(value).__name__)
@dense_or_csr
def test_features_of_float32_rows_are_those_of_these_numbers(phi, sparse):
    for stored, (left,), (wide,) in as_stored(sparse, (17, 0)):
        features, rng = phi.transform(left), np.random.default_rng(2)
        assert_array_equal(features, phi.transform(wide), stored)
        for t in (1, 3):
            coef, values = rng.standard_normal((features.shape[1], t)), rng.standard_normal((17, t))
            assert_array_equal(phi.multiply(left, coef), phi.multiply(wide, coef), stored)
            assert_array_equal(phi.adjoint(left, values), phi.adjoint(wide, values), stored)


@pytest.mark.parametrize("scale", [1.0, 1e25])
def test_products_of_sparse_float32_rows_are_exact_to_float64(scale):
    X = sp.random_array((40, 30), density=0.3, dtype=np.float32, rng=np.random.default_rng(0), format="csr")
    X.data *= np.float32(scale)
    expected = precise.floats(precise.gram(Linear(), X))
    assert_allclose(Linear()(X), expected, rtol=1e-14)
    assert_allclose(Linear().diagonal(X), expected.diagonal(), rtol=1e-14)
