"""Normalised kernels: cosines of features, whatever the kernel inside."""

import json

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal

from dkrr.errors import InputError, InputTypeError
from dkrr.kernels import (
    RBF,
    AdditiveChi2,
    CallableKernel,
    Cosine,
    Laplacian,
    Linear,
    Matern,
    Normalized,
    Polynomial,
    Precomputed,
    Sigmoid,
    TaylorRBF,
    kernel_from_dict,
)
from tests.oracles import naive_gram


def rows(n, d, seed=0):
    return np.random.default_rng(seed).standard_normal((n, d))


INNER = [
    Linear(),
    Polynomial(),
    Polynomial(degree=2, gamma=0.3, coef0=0.0),
    RBF() + 0.5 * Linear(),
    Polynomial(degree=2) * Laplacian(),
    2.5 * (RBF() + Cosine() * Matern(1.5)),
]
each = pytest.mark.parametrize("inner", INNER, ids=str)


def normalised(inner, X, Z):
    lengths = [np.sqrt(naive_gram(inner, rows).diagonal()) for rows in (X, Z)]
    scale = np.outer(*lengths)
    return np.divide(naive_gram(inner, X, Z), scale, out=np.zeros_like(scale), where=scale > 0)


@each
def test_values(inner):
    X, Z = np.vstack([rows(9, 4), np.zeros((1, 4))]), rows(7, 4, seed=1)
    kernel, expected = Normalized(inner), normalised(inner, X, Z)
    assert_allclose(kernel(X, Z), expected, rtol=1e-12, atol=1e-12)
    assert_allclose(kernel(sp.csr_array(X), Z), expected, rtol=1e-12, atol=1e-12)
    assert_allclose(kernel(X, Z, out=np.empty((10, 7), np.float32)), expected, rtol=2e-5, atol=2e-5)
    assert_allclose(kernel(X), normalised(inner, X, X), rtol=1e-12, atol=1e-12)
    assert_allclose(np.hstack([p.copy() for _, _, p in kernel.pieces(X, Z)]), expected, rtol=1e-12, atol=1e-12)
    assert np.abs(kernel(X, Z)).max() <= 1 + 1e-14


@each
def test_unit_diagonal(inner):
    X, kernel = rows(150, 3), Normalized(inner)
    assert kernel.has_unit_diagonal
    assert_array_equal(kernel.diagonal(X), 1.0)
    assert_array_equal(kernel(X).diagonal(), 1.0)
    assert_allclose(kernel(X, X.copy()).diagonal(), 1.0, rtol=1e-14)
    assert np.linalg.eigvalsh(kernel(X))[0] > -1e-10 * 150


def test_a_row_without_length_is_at_right_angles_to_all():
    X = np.array([[1.0, 2.0], [0.0, 0.0], [3.0, -1.0]])
    K = Normalized(Polynomial(degree=2, coef0=0.0))(X)
    assert_array_equal(K[1], 0.0)
    assert_array_equal(K[:, 1], 0.0)
    assert_array_equal(K.diagonal(), [1.0, 0.0, 1.0])
    assert_array_equal(Normalized(AdditiveChi2())(np.abs(X)), 0.0)


def test_the_normalised_linear_kernel_is_the_cosine():
    X, Z = rows(20, 5), rows(30, 5, seed=1)
    assert_allclose(Normalized(Linear())(X, Z), Cosine()(X, Z), rtol=1e-13, atol=1e-14)
    assert_allclose(Normalized(RBF())(X, Z), RBF()(X, Z), rtol=1e-15)  # it has unit diagonal already
    assert_allclose(Normalized(Normalized(Polynomial()))(X, Z), Normalized(Polynomial())(X, Z), rtol=1e-14)
    assert_allclose(Normalized(3.7 * Polynomial())(X, Z), Normalized(Polynomial())(X, Z), rtol=1e-13)


def test_very_small_and_very_large_values():
    for scale in (1e-150, 1e150):
        kernel = Normalized(scale * Linear())
        X = rows(5, 3)
        assert_allclose(kernel(X), Cosine()(X), rtol=1e-12, atol=1e-14)


@each
def test_descriptions(inner):
    kernel = 0.5 * Normalized(inner) + Linear()
    assert kernel_from_dict(json.loads(json.dumps(kernel.to_dict()))) == kernel
    resolved = kernel.resolved(4)
    assert resolved.resolved(99) is resolved
    X = rows(6, 4)
    assert_array_equal(resolved(X), kernel(X))


def test_functions_come_back_by_name():
    kernel = Normalized(CallableKernel(polynomial))
    assert kernel_from_dict(kernel.to_dict(), {kernel.base.name: polynomial}) == kernel
    X = rows(40, 3)
    assert_allclose(kernel(X), Normalized(Polynomial(degree=2, gamma=1.0))(X), rtol=1e-12, atol=1e-12)


def polynomial(X, Y):
    return (X @ Y.T + 1.0) ** 2


def test_cost_is_that_of_the_part_and_a_little_more():
    for inner in (RBF(), TaylorRBF(3)):
        kernel = Normalized(inner)
        assert kernel.entry_cost(9).gemm_flops == inner.entry_cost(9).gemm_flops
        assert kernel.entry_cost(9).element_seconds > inner.entry_cost(9).element_seconds
        assert kernel.workspace_bytes(9, 8, 7) >= inner.workspace_bytes(9, 8, 7)


def test_what_has_no_lengths_is_refused():
    with pytest.raises(InputError, match=r"k\(x, x\) = -0\.\d+ .*expected at least 0"):
        Normalized(Sigmoid(gamma=0.01, coef0=-1.0))(rows(4, 2))
    with pytest.raises(InputTypeError, match="expected a dkrr"):
        Normalized("rbf")
    with pytest.raises(InputError, match="combine the matrices instead"):
        Normalized(Precomputed())
    with pytest.raises(InputError, match="no parameter"):
        kernel_from_dict({"kernel": "normalized", "base": {"kernel": "rbf"}, "scale": 2})
