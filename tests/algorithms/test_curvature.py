"""The matrix of a Newton step: roots of curvatures, systems that an intercept leaves, and bounds of the decrement."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from dkrr.linalg.curvature import ByPartialFactor, Curvature, Penalty, decrement_bounds, sensitivities
from dkrr.linalg.likelihood import Bernoulli, Classwise, Softmax
from dkrr.linalg.preconditioners import GROWTH, Identity
from tests.pairs import every_pair
from tests.systems import one_blas_thread, partial_factor, positive_definite, random  # noqa: F401

N, M, SHIFT = 23, 3, 0.3
K = positive_definite(N)
LIKELIHOODS = {"binary": Bernoulli(1), "one vs rest": Bernoulli(M), "softmax": Softmax(M)}


def root_of(which, *, weighted):
    """Root at usual scores."""
    rng, like = np.random.default_rng(2), LIKELIHOODS[which]
    weights = rng.uniform(0.1, 3.0, N) * (np.arange(N) % 11 > 0) if weighted else None
    return like.root(2 * rng.standard_normal((N, like.n_columns)), weights)


@pytest.mark.parametrize("which", LIKELIHOODS)
def test_parts_of_a_root_are_those_of_the_curvature_of_every_row(which):
    root = root_of(which, weighted=True)
    m, phi, x = root.scale.shape[1], random(N, 5), random(N, root.scale.shape[1], seed=3)
    W = np.stack([root.weigh(np.tile(unit, (N, 1))) for unit in np.eye(m)], axis=2)  # (n, m, m)
    assert_allclose(root.diagonal(), np.einsum("ikk->ik", W), atol=1e-15)
    assert_allclose(root.inverse_total(), np.linalg.pinv(root.total(), rcond=1e-12), atol=1e-12)
    products = np.einsum("ip,ikl,iq->kplq", phi, W, phi)
    apart = np.stack([products[k, :, k] for k in range(m)])
    expected = products.reshape(1, 5 * m, 5 * m) if root.is_softmax else apart
    found = np.ones_like(expected)
    root.add_products(found, phi)
    assert_allclose(np.tril(found), np.tril(1.0 + expected), atol=1e-13)
    assert_array_equal(root.unstack(np.hstack(root.split(root.stack(x)))), x)
    assert isinstance(root.precondition(Identity()), Classwise if root.is_softmax else Identity)


@pytest.mark.parametrize("which", LIKELIHOODS)
@pytest.mark.parametrize("centred", [False, True])
def test_a_preconditioner_grows_with_all_that_wraps_it(which, centred):
    curvature = Curvature.of_root(root_of(which, weighted=False), centred=centred)
    models, R = np.arange(curvature.root.scale.shape[1]), curvature.root.stack(random(*curvature.root.scale.shape))
    by_factor = ByPartialFactor(partial_factor(K, 6, capacity=11))
    found = by_factor.for_systems(curvature, SHIFT, models)
    assert found.rank == 6 and found.can_grow
    assert found.grow() and found.rank == int(GROWTH * 6) + 1
    fresh, columns = by_factor.for_systems(curvature, SHIFT, models), np.arange(R.shape[1])
    assert_allclose(found.apply(R, columns), fresh.apply(R, columns), rtol=1e-9, atol=1e-12)
    assert found.grow() and found.rank == 11 and not found.can_grow and not found.grow()


def written_out(likelihood, phi, coef, alpha, codes, weights, fit_intercept):
    """Gradient's square in the space of features, gᵀH⁻¹g, and the largest change of a probability over its root."""
    (n, d), m = phi.shape, coef.shape[1]
    scores = phi @ (phi.T @ coef)
    wide, root = np.hstack([phi, np.ones((n, 1))[:, : int(fit_intercept)]]), likelihood.root(scores, weights)
    penalty = np.diag(np.r_[np.full(d, 2 * alpha), np.zeros(int(fit_intercept))])
    inner = np.vstack([phi.T @ coef, np.zeros((int(fit_intercept), m))])
    gradient = (wide.T @ likelihood.gradient(scores, codes, weights) + penalty @ inner).T.ravel()
    W = np.stack([root.weigh(np.tile(unit, (n, 1))) for unit in np.eye(m)], axis=2)  # (n, m, m)
    H = np.einsum("ip,ikl,iq->kplq", wide, W, wide).reshape(len(gradient), -1) + np.kron(np.eye(m), penalty)
    step = -np.linalg.lstsq(H, gradient, rcond=1e-13)[0]
    change = likelihood.root(scores, None).weigh(wide @ step.reshape(m, -1).T)
    return gradient @ gradient, -gradient @ step, np.abs(change[weights > 0]).max()


@every_pair(
    alpha=[1e-8, 1e-2, 1.0, 1e6], seed=range(4), fit_intercept=[False, True], likelihood=[Bernoulli(1), Softmax(3)]
)
def test_bounds_of_the_decrement_and_of_probabilities_hold(likelihood, alpha, fit_intercept, seed):
    rng = np.random.default_rng(seed)
    n, m = 15, likelihood.n_columns
    phi, codes = rng.normal(size=(n, 4)) * 10.0 ** rng.uniform(-2, 2), rng.integers(0, max(m, 2), n)
    weights = 10.0 ** rng.uniform(-4, 4, n) if seed % 2 else np.ones(n)
    weights[0] = 0.0
    coef = rng.normal(size=(n, m)) * 10.0 ** rng.uniform(-4, 0)
    coef -= coef.mean(axis=0)
    coef -= coef.mean(axis=1, keepdims=True) if m > 1 else 0.0
    scores = phi @ (phi.T @ coef)
    g, root = likelihood.gradient(scores, codes, weights), likelihood.root(scores, weights)
    squares, decrement, change = written_out(likelihood, phi, coef, alpha, codes, weights, fit_intercept)
    penalty, r = Penalty(2 * alpha, float((phi**2).sum(axis=1).max()), fit_intercept), g + 2 * alpha * coef
    norms = np.sqrt([squares])
    (bound,) = decrement_bounds(likelihood, root, penalty, norms, r, g.sum(axis=0), coef.sum(axis=0))
    assert 0 < decrement <= bound * (1 + 1e-6)
    (most,) = sensitivities(likelihood.root(scores, None), penalty, weights)
    assert change <= most * np.sqrt(decrement) * (1 + 1e-6)


def test_the_bound_of_the_decrement_is_sharp_where_the_penalty_is_nothing_or_all():
    phi, codes = np.linalg.qr(random(15, 15))[0], np.random.default_rng(0).integers(0, 2, 15)
    like, coef = Bernoulli(1), np.zeros((15, 1))
    g, root = like.gradient(coef, codes, None), like.root(coef, None)
    for alpha in (1e-9, 1e9):
        _, expected, _ = written_out(like, phi, coef, alpha, codes, np.ones(15), False)
        penalty, norms = Penalty(2 * alpha, 1.0, False), np.array([np.linalg.norm(g)])
        assert decrement_bounds(like, root, penalty, norms, g, g.sum(axis=0), np.zeros(1)) == pytest.approx(
            expected, rel=1e-6
        )
