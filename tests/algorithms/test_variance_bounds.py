"""Bounds from any approximate solution, whatever the factor: they hold, and are near where the factor is good."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from dkrr.errors import InputError, NotFiniteError
from dkrr.kernels import RBF
from dkrr.linalg.variance_bounds import ResidualBounds, variance_bounds
from tests.pairs import every_pair
from tests.systems import one_blas_thread, partial_factor  # noqa: F401

N, SHIFT = 61, 0.02


def bounds_of(K, scale, rank, shift=SHIFT, damage=0.0, dtype=np.float32):
    """Bounds by a partial factor; with damage by one of the same pivots, but not of K."""
    factor = partial_factor(K, rank, dtype=dtype) if rank else None
    if damage:
        project, rng = factor.project, np.random.default_rng(3)
        factor.project = lambda v, p: project(v, p) * (1 + damage * rng.normal())
    return ResidualBounds(N, shift, K.diagonal().copy(), scale, factor, lambda index, v: K[:, index] @ v)


def problem(error, weighted=False):
    """Matrix with its scale, k of new rows, exact solutions, and solutions of some accuracy."""
    rng = np.random.default_rng(5)
    X, Z = rng.normal(size=(N, 3)), rng.normal(size=(9, 3))
    Z[:3] = X[:3]
    scale = np.sqrt(rng.uniform(0.1, 4.0, N)) if weighted else None
    c = np.ones(N) if scale is None else scale
    K, k = RBF(0.2)(X), c[:, None] * RBF(0.2)(X, Z)
    A = c[:, None] * K * c + SHIFT * np.eye(N)
    exact = np.linalg.solve(A, k)
    return K, scale, A, k, exact, exact + error * np.abs(exact).max() * rng.normal(size=k.shape)


@every_pair(
    factor=[(0, 0.0), (10, 0.0), (40, 0.0), (40, 1e-3), (10, 1.0)],
    error=[1.0, 1e-2, 1e-5, 0.0],
    weighted=[False, True],
    ids=str,
)
def test_bounds_hold_with_any_solution_and_any_factor(factor, error, weighted):
    rank, damage = factor
    K, scale, A, k, exact, x = problem(error, weighted)
    r, bounds = k - A @ x, bounds_of(K, scale, rank, damage=damage)
    found, true = bounds.of(k, x, r), (k * exact).sum(axis=0)
    assert (found.low <= true).all() and (true <= found.high).all()
    assert ((r * np.linalg.solve(A, r)).sum(axis=0) <= found.left).all()
    # Never worse than without a factor.
    assert (found.left <= (r**2).sum(axis=0) / SHIFT * (1 + 1e-6) + 1e-9).all()
    c = np.ones((N, 1)) if scale is None else scale[:, None]
    v = np.linalg.solve(A, c)
    y = v + 1e-3 * error * np.random.default_rng(8).normal(size=v.shape)
    constant, variance = bounds.of(c, y, c - A @ y), 1.0 - true
    more = (1 - (c * exact).sum(axis=0)) ** 2 / (c * v).sum()
    for one, added in [(None, 0.0), (constant, more)][: 1 + (constant.low[0] > 0)]:
        plain = variance_bounds(np.ones(9), found, one, bounds.rounding)
        assert (plain.lower <= variance + added).all() and (variance + added <= plain.upper).all()
        assert (plain.lower >= 0).all()


def test_the_bound_is_that_of_the_preconditioner_and_nearer_for_it():
    K, scale, A, k, _, x = problem(1e-2, weighted=True)
    bounds, r = bounds_of(K, scale, 30, dtype=np.float64), k - A @ x
    S = partial_factor(K, 30, dtype=np.float64).index
    low = K[:, S] @ np.linalg.solve(K[np.ix_(S, S)], K[S])
    M, found = scale[:, None] * low * scale + SHIFT * np.eye(N), bounds.of(k, x, r).left
    assert_allclose(found, (r * np.linalg.solve(M, r)).sum(axis=0), rtol=1e-6)
    assert (found < 0.5 * bounds_of(K, scale, 0).of(k, x, r).left).all()


def test_what_rounding_hides_and_negative_variances_are_refused():
    K, scale, A, k, exact, _ = problem(0.0)
    with pytest.raises(InputError, match=r"alpha is 1e-12, below.*expected more than .*e-\d\d: increase alpha"):
        bounds_of(K, None, 0, 1e-12)
    solved = bounds_of(K, scale, 0).of(k, exact, k - A @ exact)
    with pytest.raises(NotFiniteError, match="not positive semidefinite"):
        variance_bounds(np.zeros(9), solved, None, 0.0)
