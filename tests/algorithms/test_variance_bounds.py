"""Bounds from any approximate solution, whatever the factor: they hold, and are near where the factor is good."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from dkrr.errors import InputError, NotFiniteError
from dkrr.linalg.variance_bounds import ResidualBounds, variance_bounds
from tests.systems import one_blas_thread, partial_factor  # noqa: F401

N, SHIFT = 61, 0.02


def problem():
    """K of positive definite RBF, scale, k of new rows, k(x, x)."""
    rng = np.random.default_rng(5)
    X, Z = rng.normal(size=(N, 3)), rng.normal(size=(9, 3))
    Z[:3] = X[:3]

    def kernel(a, b):
        return np.exp(-0.2 * ((a[:, None] - b[None]) ** 2).sum(axis=2))

    return kernel(X, X), np.sqrt(rng.uniform(0.1, 4.0, N)), kernel(X, Z), np.ones(9)


def factor_of(K, rank, dtype=np.float32):
    return partial_factor(K, rank, dtype=dtype) if rank else None


def bounds_of(K, scale, factor, shift=SHIFT):
    return ResidualBounds(N, shift, K.diagonal().copy(), scale, factor, lambda index, v: K[:, index] @ v)


def cases():
    """Matrix with its scale, k, exact solutions, and solutions of some accuracies."""
    K, c, cross, prior = problem()
    for scale in (None, c):
        s = np.ones(N) if scale is None else scale
        A, k = s[:, None] * K * s + SHIFT * np.eye(N), s[:, None] * cross
        exact = np.linalg.solve(A, k)
        for error in (1.0, 1e-2, 1e-5, 0.0):
            x = exact + error * np.abs(exact).max() * np.random.default_rng(2).normal(size=k.shape)
            yield K, scale, A, k, exact, x, prior


@pytest.mark.parametrize(("rank", "damage"), [(0, 0.0), (10, 0.0), (40, 0.0), (40, 1e-3), (10, 1.0)])
def test_bounds_hold_with_any_solution_and_any_factor(rank, damage):
    for K, scale, A, k, exact, x, _ in cases():
        factor = factor_of(K, rank)
        if damage:  # another matrix's factor: of the same pivots, but not of K
            project, rng = factor.project, np.random.default_rng(3)
            factor.project = lambda v, p, project=project, rng=rng: project(v, p) * (1 + damage * rng.normal())
        r = k - A @ x
        found = bounds_of(K, scale, factor).of(k, x, r)
        true, left = (k * exact).sum(axis=0), np.einsum("ij,ij->j", r, np.linalg.solve(A, r))
        assert (found.low <= true).all() and (true <= found.high).all()
        assert (left <= found.left).all()
        # Never worse than without a factor.
        assert (found.left <= (r**2).sum(axis=0) / SHIFT * (1 + 1e-6) + 1e-9).all()


def test_the_bound_is_that_of_the_preconditioner_and_nearer_for_it():
    K, scale, A, k, _, x, _ = list(cases())[5]
    factor = factor_of(K, 30, np.float64)
    S, r = factor.index, k - A @ x
    low = K[:, S] @ np.linalg.solve(K[np.ix_(S, S)], K[S])
    M = scale[:, None] * low * scale + SHIFT * np.eye(N)
    assert_allclose(bounds_of(K, scale, factor).of(k, x, r).left, (r * np.linalg.solve(M, r)).sum(axis=0), rtol=1e-6)
    K, scale, A, k, _, x, _ = list(cases())[1]
    with_factor, without = (bounds_of(K, scale, factor_of(K, rank)).of(k, x, k - A @ x).left for rank in (40, 0))
    assert (with_factor < 0.3 * without).all()


@pytest.mark.parametrize("constant_error", [0.0, 1e-3])
def test_variances_with_a_free_constant_are_within_their_bounds(constant_error):
    for K, scale, A, k, exact, x, prior in cases():
        bounds = bounds_of(K, scale, factor_of(K, 30))
        c = np.ones((N, 1)) if scale is None else scale[:, None]
        v = np.linalg.solve(A, c)
        y = v + constant_error * np.random.default_rng(8).normal(size=v.shape)
        constant = bounds.of(c, y, c - A @ y)
        if constant.low[0] <= 0:
            continue
        solved = bounds.of(k, x, k - A @ x)
        plain, found = (variance_bounds(prior, solved, one, bounds.rounding) for one in (None, constant))
        variance = prior - (k * exact).sum(axis=0)
        assert (plain.lower <= variance).all() and (variance <= plain.upper).all()
        variance = variance + (1 - (c * exact).sum(axis=0)) ** 2 / (c * v).sum()
        assert (found.lower <= variance).all() and (variance <= found.upper).all() and (found.lower >= 0).all()


def test_what_rounding_hides_and_negative_variances_are_refused():
    K, scale, A, k, exact, _, prior = next(cases())
    with pytest.raises(InputError, match=r"alpha is 1e-12, below.*expected more than .*e-\d\d: increase alpha"):
        bounds_of(K, None, None, 1e-12)
    solved = bounds_of(K, scale, None).of(k, exact, k - A @ exact)
    with pytest.raises(NotFiniteError, match="not positive semidefinite"):
        variance_bounds(prior - 1.0, solved, None, 0.0)
