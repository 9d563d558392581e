"""Entries and features are computed in float64 whatever the rows are stored in: float32, integers and the like."""

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_array_equal

from dkrr.features import RandomFourier
from dkrr.kernels import RBF, BagOfWords, Columns, Polynomial
from dkrr.kernels.centring import CentredLinear
from dkrr.kernels.nystroem import whitened
from tests.contracts import kernels, maps
from tests.systems import random

MAPS = [
    *{type(phi): phi for phi in (maps.map_of(kernel, 6) for kernel in maps.KERNELS)}.values(),
    maps.map_of(Columns(Polynomial(degree=2), [3, 0, 1]), 6),
    maps.map_of(CentredLinear(range(6)), 6),
    whitened(RBF(), random(7, 6)),
]
KERNELS = [
    *(case.kernel for case in kernels.DISTINCT),
    Columns(Polynomial(), [0, 2, 5]),
    BagOfWords(vocabulary=tuple("abcdef"), term_weighting="counts"),
    RandomFourier(RBF(), 6).kernel(),
    CentredLinear(range(6)),
]


as_stored = pytest.mark.parametrize(
    ("stored", "sparse"),
    [*((stored, False) for stored in ("float32", "float16", "int16", "bool")), ("float32", True), ("int16", True)],
)


def both(stored, sparse, n=17):
    """Rows that have no short product in their own type, as they are stored and in float64, dense or in CSR."""
    X = np.abs(np.random.default_rng(n).standard_normal((n, 6)))
    X = (np.where(X > 0.4, X, 0.0) * (1 if "float" in stored else 90)).astype(stored)
    return [sp.csr_array(x) if sparse else x for x in (X, X.astype(np.float64))]


@as_stored
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda value: type(value).__name__)
def test_kernels_of_float32_rows_are_those_of_these_numbers(kernel, stored, sparse):
    (left, wide), (right, other) = both(stored, sparse), both(stored, sparse, 5)
    for given, expected in (((left, right), (wide, other)), ((left,), (wide,)), ((left, other), (wide, other))):
        assert_array_equal(kernel(*given), kernel(*expected))
    assert_array_equal(kernel.diagonal(left), kernel.diagonal(wide))
    for (*_, piece), (*_, expected) in zip(kernel.pieces(left, right), kernel.pieces(wide, other), strict=True):
        assert_array_equal(piece, expected)


@as_stored
@pytest.mark.parametrize("phi", MAPS, ids=lambda value: type(value).__name__)
def test_features_of_float32_rows_are_those_of_these_numbers(phi, stored, sparse):
    left, wide = both(stored, sparse)
    coef, values = random(phi.dimension(6), 3), random(17, 3)
    assert phi.transform(left).dtype == np.float64
    assert_array_equal(phi.transform(left), phi.transform(wide))
    assert_array_equal(phi.multiply(left, coef), phi.multiply(wide, coef))
    assert_array_equal(phi.adjoint(left, values), phi.adjoint(wide, values))
