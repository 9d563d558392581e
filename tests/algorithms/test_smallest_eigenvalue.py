"""The smallest eigenvalue of a sample, and what it says."""

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose

from dkrr.kernels import (
    RBF,
    Linear,
    Matern,
    Normalized,
    Polynomial,
    Precomputed,
    Sigmoid,
    smallest_eigenvalue,
)


def rows(n, d, seed=0):
    return np.random.default_rng(seed).standard_normal((n, d))


def test_all_rows_are_taken_where_there_are_few():
    X = rows(80, 3)
    found = smallest_eigenvalue(Matern(0.5), X)
    values = np.linalg.eigvalsh(Matern(0.5)(X))
    assert_allclose([found.smallest, found.largest], [values[0], values[-1]], rtol=1e-9)
    assert (found.n_sampled, found.n_rows, found.verdict) == (80, 80, "definite")
    assert "all 80 rows" in str(found) and "positive definite, condition" in str(found)


def test_a_sample_bounds_the_whole():
    X = rows(400, 3)
    values = np.linalg.eigvalsh(Sigmoid()(X))
    for seed in range(3):
        found = smallest_eigenvalue(Sigmoid(), X, n_sample=60, random_state=seed)
        assert values[0] <= found.smallest <= found.largest <= values[-1]  # Cauchy's interlacing
        assert (found.n_sampled, found.n_rows) == (60, 400)
        assert found.verdict == "indefinite"
        assert "60 of 400 rows" in str(found) and "indefinite" in str(found) and "alpha must exceed" in str(found)
    assert found == smallest_eigenvalue(Sigmoid(), X, n_sample=60, random_state=2)
    assert found != smallest_eigenvalue(Sigmoid(), X, n_sample=60, random_state=1)


@pytest.mark.parametrize("kernel", [Linear(), Polynomial(degree=2), Normalized(Linear())], ids=str)
def test_fewer_features_than_rows_are_semidefinite_to_rounding(kernel):
    found = smallest_eigenvalue(kernel, rows(100, 4), n_sample=50)
    assert found.verdict == "semidefinite"
    assert abs(found.smallest) <= found.rounding < 1e-10 * found.largest
    assert "singular" in str(found) and "alpha = 0 will fail" in str(found)


def test_repeated_rows_make_a_definite_kernel_semidefinite():
    X = rows(30, 3)
    assert smallest_eigenvalue(RBF(gamma=2.0), X).verdict == "definite"
    assert smallest_eigenvalue(RBF(gamma=2.0), np.vstack([X, X[:1]])).verdict == "semidefinite"


def test_what_it_says_of_alpha_is_right():
    X = rows(50, 3)
    found = smallest_eigenvalue(Sigmoid(), X)
    for alpha, definite in ((-1.01 * found.smallest, True), (-0.99 * found.smallest, False)):
        assert (np.linalg.eigvalsh(Sigmoid()(X) + alpha * np.eye(50))[0] > 0) == definite


def test_a_gram_matrix_and_sparse_rows_give_the_same_spectrum():
    X = rows(60, 3)
    K = RBF()(X)
    for n in (100, 20):
        given, computed = smallest_eigenvalue(Precomputed(), K, n), smallest_eigenvalue(RBF(), X, n)
        assert_allclose([given.smallest, given.largest], [computed.smallest, computed.largest], rtol=1e-6)
    assert_allclose(smallest_eigenvalue(RBF(), sp.csr_array(X)).largest, smallest_eigenvalue(RBF(), X).largest)
