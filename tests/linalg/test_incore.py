"""Systems that fit in memory."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from dkrr import blas
from dkrr.errors import NotFiniteError, NotPositiveDefiniteError
from dkrr.kernels import RBF
from dkrr.linalg import incore, sources
from dkrr.linalg.condition import with_probe
from dkrr.linalg.incore import (
    DenseSystem,
    dense_bytes,
    dense_cost,
    dense_gram,
    mirror_lower_blocks,
    mirror_upper,
)
from dkrr.linalg.residual import checked
from dkrr.rows import as_rows
from tests.linalg.systems import failing_at, positive_definite
from tests.oracles import naive_gram


@pytest.fixture(params=[7, 1024], ids="blocks of {}".format)
def block(request, monkeypatch):
    monkeypatch.setattr(incore, "_BLOCK", request.param)
    monkeypatch.setattr(blas, "_POTRF_BLOCK", min(request.param, 128))


@pytest.mark.parametrize("n", [1, 7, 8, 30])
def test_several_shifts(n, block):
    rng = np.random.default_rng(0)
    A, B = positive_definite(n), rng.standard_normal((n, 3))
    system, given = DenseSystem(A.copy()), B.copy()
    for shift in (rng.uniform(0, 1, n), np.full(n, 100.0), np.zeros(n), rng.uniform(0, 1, n)):
        X = system.solve(shift, B)
        assert_allclose(X, np.linalg.solve(A + np.diag(shift), B), rtol=1e-11, atol=1e-13)
        other = rng.standard_normal((n, 3))
        assert_allclose(system.multiply(other), A @ other, rtol=1e-11, atol=1e-11)
        assert_array_equal(B, given)


@pytest.mark.parametrize("size", [1.0, 1e-24, 1e-200, 1e200])
def test_products_beside_a_factor_are_those_of_the_matrix_alone(size, block):
    # L is of the size of √A: with it, next to nothing of A would be left.
    A, V = size * positive_definite(30), np.random.default_rng(0).standard_normal((30, 2))
    shift, fresh = np.full(30, 0.5 * size), DenseSystem(A.copy())
    expected = fresh.multiply(V)
    assert_allclose(expected, A @ V, rtol=1e-12, atol=1e-15 * size)
    system = DenseSystem(A.copy())
    X = system.solve(shift, V)
    assert_array_equal(system.multiply(V), expected)
    check = checked(V, shift[:, None], X.copy(), system.multiply, None, None)  # the last column is the probe
    assert check.residual < 1e-14
    assert_allclose(check.squares, (X[:, :1] * (A @ X[:, :1])).sum(axis=0), rtol=1e-12)
    assert_array_equal(system.substitute(V), X)  # the factor is as it was


def test_right_sides_of_any_order_and_dtype(block):
    A, B = positive_definite(20), np.random.default_rng(0).standard_normal((20, 6)).astype(np.float32)
    expected = np.linalg.solve(A, B[:, ::2])
    for right_sides in (B[:, ::2], np.asfortranarray(B[:, ::2])):
        system = DenseSystem(A.copy())
        X = system.solve(np.zeros(20), right_sides)
        assert_allclose(X, expected, rtol=1e-11)
        assert_allclose(system.multiply(np.asfortranarray(2 * X)), 2 * right_sides, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("row", [0, 6, 7, 19, 29])
def test_not_positive_definite_and_then_a_shift_that_is(row, block):
    A = failing_at(row, 30)
    system, B = DenseSystem(A.copy()), np.ones((30, 1))
    with pytest.raises(NotPositiveDefiniteError, match=f"row {row} ") as caught:
        system.solve(np.zeros(30), B)
    assert caught.value.row == row
    assert_allclose(system.solve(np.ones(30), B), np.linalg.solve(A + np.eye(30), B), rtol=1e-10)


def test_diagonal_entries_that_overflow():
    A = positive_definite(5)
    A[3, 3] = np.inf
    with pytest.raises(NotFiniteError, match="diagonal entry .* is inf") as caught:
        DenseSystem(A)
    assert caught.value.row == 3
    # A pivot that rounding makes NaN later is one of a matrix with finite entries: not positive definite.
    A = np.array([[1.0, 1e200, 1e200], [1e200, 1.0, 1.0], [1e200, 1.0, 1.0]])
    with pytest.raises(NotPositiveDefiniteError):
        DenseSystem(A).factored_copy(np.zeros(3))


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 30), st.integers(1, 12))
def test_mirrors(n, size):
    A = np.random.default_rng(0).standard_normal((n, n))
    upper, lower = A.copy(), A.copy()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(incore, "_BLOCK", size)
        mirror_upper(upper)
        mirror_lower_blocks(lower)
    assert_array_equal(upper, np.triu(A) + np.triu(A, 1).T)
    assert_array_equal(lower, np.tril(A) + np.tril(A, -1).T)


@pytest.mark.parametrize("scaled", [False, True])
def test_gram(scaled, block, monkeypatch):
    monkeypatch.setattr(sources, "KERNEL_BLOCK", 6)
    monkeypatch.setattr(incore, "KERNEL_BLOCK", 6)
    rng = np.random.default_rng(0)
    X, c = rng.standard_normal((20, 3)), rng.uniform(0.5, 2, 20)
    K = dense_gram(RBF(gamma=0.5), as_rows(X), c if scaled else None)
    expected = naive_gram(RBF(gamma=0.5), X)
    assert_allclose(K, c[:, None] * expected * c if scaled else expected, rtol=1e-12)
    assert_array_equal(K, K.T) if not scaled else assert_allclose(K, K.T, rtol=1e-15)
    half = dense_gram(RBF(gamma=0.5), as_rows(X), c if scaled else None, np.float32)
    assert half.dtype == np.float32
    assert_allclose(half, K, rtol=3e-6)


@pytest.mark.parametrize("centred", [False, True])
def test_memory(centred):
    import tracemalloc

    n, m = 1500, 300
    A, B = positive_definite(n), with_probe(np.ones((n, m - 1)))
    tracemalloc.start()
    try:
        system = DenseSystem(A.copy())
        for _ in range(2):
            X = system.solve(np.ones(n), B)
            constants = np.ones((2, m - 2)) if centred else None
            checked(B, np.ones((n, 1)), X, system.multiply, constants, system.diagonal + 1.0)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= dense_bytes(n, m) + 100_000
    assert dense_bytes(n, m) <= 1.6 * peak


def test_cost_with_distinct_primes():
    n, m, count = 1009, 7, 3
    cost = dense_cost(n, m, count)
    assert cost.gemm_flops == pytest.approx(count * 4 * n**2 * m)
    assert (cost.dense_flops, cost.dense_side) == (pytest.approx(count * n**3 / 3), n)
    assert (cost.read_bytes, cost.written_bytes, cost.n_tasks) == (0, 0, 0)
    assert dense_cost(n, m, 2 * count).memory_bytes > cost.memory_bytes > 0
    assert dense_bytes(10**5, m) >= 8 * 10**10
