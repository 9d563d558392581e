"""Bounds of Newton's decrement against the Hessian written out."""

import numpy as np
import pytest

from dkrr.linalg.curvature import Penalty, decrement_bounds, sensitivities
from dkrr.linalg.likelihood import Bernoulli, Softmax

N, D = 15, 4


def written_out(likelihood, phi, coef, offsets, alpha, codes, weights, fit_intercept):
    """gᵀH⁻¹g of one coupled system or one column, and the largest change of a probability over its root."""
    m = coef.shape[1]
    beta = phi.T @ coef
    scores = phi @ beta + offsets
    g = likelihood.gradient(scores, codes, weights)
    root = likelihood.root(scores, weights)
    wide = np.hstack([phi, np.ones((N, 1))]) if fit_intercept else phi
    p = wide.shape[1]
    penalty = np.r_[np.full(D, 2 * alpha), np.zeros(p - D)]
    inner = np.vstack([beta, offsets[None, :]]) if fit_intercept else beta
    gradient = (wide.T @ g + penalty[:, None] * inner).T.ravel()
    H = np.zeros((m * p, m * p))
    for k in range(m):
        for j in range(p):
            unit = np.zeros((N, m))
            unit[:, k] = wide[:, j]
            H[:, k * p + j] = (wide.T @ root.weigh(unit)).T.ravel()
    H += np.diag(np.tile(penalty, m))
    step = -np.linalg.lstsq(H, gradient, rcond=1e-13)[0]
    change = wide @ step.reshape(m, p).T
    one = likelihood.root(scores, None).weigh(change)
    return -gradient @ step, np.abs(one[weights > 0]).max()


@pytest.mark.parametrize("alpha", [1e-8, 1e-2, 1.0, 1e6])
@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("likelihood", [Bernoulli(1), Softmax(3)], ids=["binary", "softmax"])
@pytest.mark.parametrize("seed", range(4))
def test_are_upper_bounds(likelihood, alpha, fit_intercept, seed):
    rng = np.random.default_rng(seed)
    m = likelihood.n_columns
    phi = rng.normal(size=(N, D)) * 10.0 ** rng.uniform(-2, 2)
    codes = rng.integers(0, max(m, 2), N)
    weights = 10.0 ** rng.uniform(-4, 4, N) if seed % 2 else np.ones(N)
    weights[0] = 0.0
    coef = rng.normal(size=(N, m)) * 10.0 ** rng.uniform(-4, 0)
    coef -= coef.mean(axis=0)
    if m > 1:
        coef -= coef.mean(axis=1, keepdims=True)
    offsets = np.zeros(m)
    scores = phi @ (phi.T @ coef) + offsets
    g = likelihood.gradient(scores, codes, weights)
    r = g + 2 * alpha * coef
    squares = ((phi.T @ r) ** 2).sum() + (g.sum(axis=0) ** 2).sum() * fit_intercept
    penalty = Penalty(2 * alpha, float((phi**2).sum(axis=1).max()), fit_intercept)
    root = likelihood.root(scores, weights)
    norms = np.sqrt(np.array([squares]))
    (bound,) = decrement_bounds(likelihood, root, penalty, norms, r, g.sum(axis=0), coef.sum(axis=0))
    decrement, change = written_out(likelihood, phi, coef, offsets, alpha, codes, weights, fit_intercept)
    assert 0 < decrement <= bound * (1 + 1e-6)
    (most,) = sensitivities(likelihood.root(scores, None), penalty, weights)
    assert change <= most * np.sqrt(decrement) * (1 + 1e-6)


def test_the_bound_is_sharp_where_the_penalty_is_nothing_or_all():
    rng = np.random.default_rng(0)
    phi, codes = np.linalg.qr(rng.normal(size=(N, N)))[0], rng.integers(0, 2, N)
    like, coef = Bernoulli(1), np.zeros((N, 1))
    g = like.gradient(coef, codes, None)
    for alpha in (1e-9, 1e9):
        H = phi.T @ (0.25 * phi) + 2 * alpha * np.eye(N)
        expected = float(((phi.T @ g) * np.linalg.solve(H, phi.T @ g)).sum())
        norms = np.array([np.linalg.norm(g)])
        penalty = Penalty(2 * alpha, 1.0, False)
        (bound,) = decrement_bounds(like, like.root(coef, None), penalty, norms, g, g.sum(axis=0), np.zeros(1))
        assert bound == pytest.approx(expected, rel=1e-6)
