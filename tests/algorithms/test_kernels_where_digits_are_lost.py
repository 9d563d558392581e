"""Where distances by GEMM lose digits: far from the origin, near zero, and for wide spreads."""

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal

from dkrr.kernels import RBF, Cosine, Laplacian, Matern
from dkrr.kernels.euclidean import DistanceColumns, ScaledSquaredDistances
from tests.oracles import naive_gram

MATERNS = [Matern(nu) for nu in (0.5, 1.5, 2.5)]


@pytest.mark.parametrize("kernel", [RBF(gamma=0.5), Laplacian(), *MATERNS], ids=str)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_rows_far_from_the_origin_keep_their_distances(kernel, dtype):
    rng = np.random.default_rng(0)
    X, Y = 1e4 + rng.standard_normal((40, 6)), 1e4 + rng.standard_normal((30, 6))
    X, Y = X.astype(dtype), Y.astype(dtype)
    assert_allclose(kernel(X, Y), naive_gram(kernel, X, Y), rtol=1e-9, atol=1e-9)
    single = kernel(X, Y, out=np.empty((40, 30), dtype=np.float32))
    assert_allclose(single, naive_gram(kernel, X, Y), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kernel", MATERNS, ids=str)
@pytest.mark.parametrize("convert", [np.asarray, sp.csr_array])
def test_duplicates_have_distance_zero(kernel, convert):
    X = 50 * np.random.default_rng(0).standard_normal((60, 7))
    K = kernel(convert(X), convert(X[::-1].copy()))
    assert_array_equal(K[np.arange(60), np.arange(60)[::-1]], 1.0)
    single = np.empty((60, 60), dtype=np.float32)
    assert_array_equal(np.fliplr(kernel(X, X[::-1].copy(), out=single)).diagonal(), 1.0)


@pytest.mark.parametrize("kernel", [RBF(gamma=1.0), *MATERNS], ids=str)
@pytest.mark.parametrize("convert", [np.asarray, sp.csr_array])
def test_tight_clusters_far_apart_keep_their_distances(kernel, convert):
    # The spread is a million length scales, the pairs that matter are within one.
    rng = np.random.default_rng(0)
    centres = 1e6 * rng.standard_normal((5, 4))
    X = centres[rng.integers(0, 5, 50)] + rng.standard_normal((50, 4))
    Y = centres[rng.integers(0, 5, 40)] + rng.standard_normal((40, 4))
    assert_allclose(kernel(convert(X), convert(Y)), naive_gram(kernel, X, Y), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kernel", [RBF(gamma=1.0), *MATERNS], ids=str)
def test_one_outlier_does_not_spoil_near_duplicates(kernel):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((50, 3))
    X[7] = 1e5
    Y = np.vstack([X[::2] + 1e-5 * rng.standard_normal((25, 3)), X])
    assert_allclose(kernel(X, Y), naive_gram(kernel, X, Y), rtol=1e-9, atol=1e-9)


def test_matern_of_almost_equal_rows():
    X = 30 * np.random.default_rng(0).standard_normal((40, 5))
    Y = X + 1e-9 * np.random.default_rng(1).standard_normal((40, 5))
    for kernel in MATERNS:
        assert_allclose(kernel(X, Y), naive_gram(kernel, X, Y), rtol=1e-13, atol=1e-13)


def test_cosine_of_zero_rows_is_zero():
    X = np.array([[0.0, 0.0], [1.0, 2.0]])
    for rows in (X, sp.csr_array(X)):
        assert_array_equal(Cosine().diagonal(rows), [0.0, 1.0])
        assert_allclose(Cosine()(rows), [[0.0, 0.0], [0.0, 1.0]], atol=0)


def test_laplacian_of_wide_csr_rows_is_that_of_dense_ones():
    # More columns than are made dense at a time, shared and not.
    X = sp.random_array((30, 5000), density=0.1, rng=np.random.default_rng(0), format="csr")
    Y = sp.random_array((20, 5000), density=0.2, rng=np.random.default_rng(1), format="csr")
    assert_allclose(Laplacian()(X, Y), Laplacian()(X.toarray(), Y.toarray()), rtol=1e-13)
    assert_allclose(Laplacian()(X, X.copy()).diagonal(), 1.0, rtol=1e-15)


def test_repeated_entries_of_csr_rows_are_added():
    repeated = sp.csr_array((np.array([1.0, 2.0, 5.0]), np.array([0, 0, 1]), np.array([0, 3])), shape=(1, 2))
    dense = np.array([[3.0, 5.0]])
    for kernel in (RBF(), Laplacian(), Cosine()):
        assert_allclose(kernel(repeated, 2 * dense), kernel(dense, 2 * dense))
    assert repeated.nnz == 3


def test_rows_far_from_the_origin_are_centred():
    # Otherwise every entry would have to be computed again from differences, ten times slower.
    X = 1e6 + np.random.default_rng(0).standard_normal((50, 6))
    squares = ScaledSquaredDistances(X, DistanceColumns(X[:30], 1.0, np.dtype(np.float64)))
    assert squares.largest(slice(0, 50), slice(0, 30)) < 100


@pytest.mark.parametrize("kernel", [RBF(gamma=1.0), *MATERNS], ids=str)
def test_a_kernel_of_distances_is_never_above_one(kernel):
    X = 30 * np.random.default_rng(0).standard_normal((300, 6))
    assert kernel(X, X.copy()).max() <= 1.0
    assert kernel(X, X.copy(), out=np.empty((300, 300), dtype=np.float32)).max() <= 1.0
