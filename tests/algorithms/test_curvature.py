"""The matrix of a Newton step: roots of curvatures, systems that an intercept leaves, and bounds of the decrement."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from dkrr.linalg.curvature import (
    MIN_SCALE,
    ByPartialFactor,
    Constrained,
    Curvature,
    Penalty,
    ScaledFactors,
    decrement_bounds,
    factor_scale,
    sensitivities,
)
from dkrr.linalg.likelihood import Bernoulli, Softmax
from dkrr.linalg.low_rank import GROWTH
from dkrr.linalg.preconditioner import Identity
from dkrr.linalg.roots import Classwise
from tests.pairs import every_pair
from tests.systems import MatrixOperator, one_blas_thread, partial_factor, positive_definite, random  # noqa: F401

N, M, SHIFT = 23, 3, 0.3
K = positive_definite(N)
LIKELIHOODS = {"binary": Bernoulli(1), "ovr": Bernoulli(M), "softmax": Softmax(M)}
every_likelihood = pytest.mark.parametrize("which", LIKELIHOODS)
with_and_without = pytest.mark.parametrize("centred", [False, True], ids=["plain", "centred"])


def root_at(which, state):
    """Root at scores of three kinds: usual ones, with weights of zero, and with next to no curvature."""
    rng, like, weights = np.random.default_rng(2), LIKELIHOODS[which], None
    scores = 2 * rng.standard_normal((N, like.n_columns))
    if state == "weighted":
        weights = rng.uniform(0.1, 3.0, N)
        weights[[0, 7, 22]] = 0.0
    if state == "far":
        scores = np.where(rng.random(scores.shape) < 0.4, 800.0, 15.0) * np.sign(scores)
    return like.root(scores, weights)


@every_likelihood
def test_parts_of_a_root_are_those_of_the_curvature_of_every_row(which):
    root = root_at(which, "weighted")
    m, phi, x = root.scale.shape[1], random(N, 5), random(N, root.scale.shape[1], seed=3)
    W = np.stack([root.weigh(np.tile(unit, (N, 1))) for unit in np.eye(m)], axis=2)  # (n, m, m)
    assert_allclose(root.diagonal(), np.einsum("ikk->ik", W), atol=1e-15)
    assert_allclose(root.total(), W.sum(axis=0), atol=1e-13)
    assert_allclose(root.inverse_total(), np.linalg.pinv(root.total(), rcond=1e-12), atol=1e-12)
    products = np.einsum("ip,ikl,iq->kplq", phi, W, phi)
    apart = np.stack([products[k, :, k] for k in range(m)])
    expected = products.reshape(1, 5 * m, 5 * m) if root.is_coupled else apart
    found = np.ones_like(expected)
    root.add_products(found, phi)
    assert_allclose(np.tril(found), np.tril(1.0 + expected), atol=1e-13)
    stacked = root.stack(x)
    assert stacked.shape == (root.system_size, LIKELIHOODS[which].n_systems)
    assert_array_equal(root.unstack(stacked), x)
    assert_array_equal(np.hstack(root.split(stacked)), stacked)
    assert root.of_columns(np.arange(m)) is root
    assert isinstance(root.precondition(Identity()), Classwise if root.is_coupled else Identity)


@with_and_without
@every_likelihood
def test_a_preconditioner_grows_with_all_that_wraps_it(which, centred):
    curvature = Curvature.of_root(root_at(which, "usual"), centred=centred)
    models, R = np.arange(curvature.root.scale.shape[1]), curvature.root.stack(random(*curvature.root.scale.shape))
    by_factor = ByPartialFactor(partial_factor(K, 6, capacity=11))
    found = by_factor.for_systems(curvature, SHIFT, models)
    assert found.rank == 6 and found.can_grow
    assert found.grow() and found.rank == int(GROWTH * 6) + 1
    fresh, columns = by_factor.for_systems(curvature, SHIFT, models), np.arange(R.shape[1])
    assert_allclose(found.apply(R, columns), fresh.apply(R, columns), rtol=1e-9, atol=1e-12)
    assert found.grow() and found.rank == 11 and not found.can_grow and not found.grow()


def test_scales_of_factors_are_kept_away_from_zero():
    found = factor_scale(np.array([[1.0, 0.0], [1e-20, 2.0]]))
    assert_allclose(found, [[1.0, 2 * MIN_SCALE], [2 * MIN_SCALE, 2.0]])
    assert np.isfinite(1.0 / factor_scale(np.zeros((3, 2))) ** 2).all()


def test_without_any_curvature_only_the_shift_is_left():
    root = Bernoulli(1).root(np.full((N, 1), 5000.0), None)
    assert not root.scale.any()
    curvature, R = Curvature.of_root(root, centred=True), random(N, 1)
    solver = lambda b: np.linalg.solve(K + np.diag(SHIFT / factor_scale(root.scale)[:, 0] ** 2), b)  # noqa: E731
    found = Constrained(ScaledFactors([solver], factor_scale(root.scale)), curvature).apply(R, np.zeros(1, np.intp))
    assert_allclose(found, R / SHIFT, rtol=1e-10)
    assert_array_equal(curvature.project(R), R)


def written_out(likelihood, phi, coef, offsets, alpha, codes, weights, fit_intercept):
    """gᵀH⁻¹g of one coupled system or one column, and the largest change of a probability over its root."""
    (n, d), m = phi.shape, coef.shape[1]
    beta = phi.T @ coef
    scores = phi @ beta + offsets
    g, root = likelihood.gradient(scores, codes, weights), likelihood.root(scores, weights)
    wide = np.hstack([phi, np.ones((n, 1))]) if fit_intercept else phi
    p = wide.shape[1]
    penalty = np.r_[np.full(d, 2 * alpha), np.zeros(p - d)]
    inner = np.vstack([beta, offsets[None, :]]) if fit_intercept else beta
    gradient = (wide.T @ g + penalty[:, None] * inner).T.ravel()
    H = np.diag(np.tile(penalty, m))
    for k, j in np.ndindex(m, p):
        unit = np.zeros((n, m))
        unit[:, k] = wide[:, j]
        H[:, k * p + j] += (wide.T @ root.weigh(unit)).T.ravel()
    step = -np.linalg.lstsq(H, gradient, rcond=1e-13)[0]
    one = likelihood.root(scores, None).weigh(wide @ step.reshape(m, p).T)
    return -gradient @ step, np.abs(one[weights > 0]).max()


@every_pair(alpha=[1e-8, 1e-2, 1.0, 1e6], fit_intercept=[False, True], likelihood=[Bernoulli(1), Softmax(3)])
def test_bounds_of_the_decrement_and_of_probabilities_hold(likelihood, alpha, fit_intercept):
    for seed in range(4):
        rng = np.random.default_rng(seed)
        n, d, m = 15, 4, likelihood.n_columns
        phi = rng.normal(size=(n, d)) * 10.0 ** rng.uniform(-2, 2)
        codes = rng.integers(0, max(m, 2), n)
        weights = 10.0 ** rng.uniform(-4, 4, n) if seed % 2 else np.ones(n)
        weights[0] = 0.0
        coef = rng.normal(size=(n, m)) * 10.0 ** rng.uniform(-4, 0)
        coef -= coef.mean(axis=0)
        coef -= coef.mean(axis=1, keepdims=True) if m > 1 else 0.0
        offsets = np.zeros(m)
        scores = phi @ (phi.T @ coef) + offsets
        g, root = likelihood.gradient(scores, codes, weights), likelihood.root(scores, weights)
        r = g + 2 * alpha * coef
        squares = ((phi.T @ r) ** 2).sum() + (g.sum(axis=0) ** 2).sum() * fit_intercept
        penalty = Penalty(2 * alpha, float((phi**2).sum(axis=1).max()), fit_intercept)
        norms = np.sqrt(np.array([squares]))
        (bound,) = decrement_bounds(likelihood, root, penalty, norms, r, g.sum(axis=0), coef.sum(axis=0))
        decrement, change = written_out(likelihood, phi, coef, offsets, alpha, codes, weights, fit_intercept)
        assert 0 < decrement <= bound * (1 + 1e-6)
        (most,) = sensitivities(likelihood.root(scores, None), penalty, weights)
        assert change <= most * np.sqrt(decrement) * (1 + 1e-6)


def test_the_bound_of_the_decrement_is_sharp_where_the_penalty_is_nothing_or_all():
    phi, codes = np.linalg.qr(random(15, 15))[0], np.random.default_rng(0).integers(0, 2, 15)
    like, coef = Bernoulli(1), np.zeros((15, 1))
    g = like.gradient(coef, codes, None)
    for alpha in (1e-9, 1e9):
        H = phi.T @ (0.25 * phi) + 2 * alpha * np.eye(15)
        expected = float(((phi.T @ g) * np.linalg.solve(H, phi.T @ g)).sum())
        penalty, norms = Penalty(2 * alpha, 1.0, False), np.array([np.linalg.norm(g)])
        (bound,) = decrement_bounds(like, like.root(coef, None), penalty, norms, g, g.sum(axis=0), np.zeros(1))
        assert bound == pytest.approx(expected, rel=1e-6)
