"""Roots of curvatures, against the matrices of every row written out."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from dkrr.linalg.likelihood import Bernoulli, Softmax
from dkrr.linalg.preconditioner import Identity
from dkrr.linalg.roots import Classwise

N, M = 13, 3
LIKELIHOODS = {"binary": Bernoulli(1), "ovr": Bernoulli(M), "softmax": Softmax(M)}
every_likelihood = pytest.mark.parametrize("which", LIKELIHOODS)


def root_of(which):
    rng = np.random.default_rng(1)
    like = LIKELIHOODS[which]
    return like.root(2 * rng.standard_normal((N, like.n_columns)), rng.uniform(0.0, 3.0, N))


def curvatures(root):
    """Wᵢ, of shape (n, m, m)."""
    m = root.scale.shape[1]
    columns = [root.weigh(np.tile(unit, (N, 1))) for unit in np.eye(m)]
    return np.stack(columns, axis=2)


@every_likelihood
class TestRoot:
    def test_diagonal_and_total(self, which):
        root, W = root_of(which), curvatures(root_of(which))
        assert_allclose(root.diagonal(), np.einsum("ikk->ik", W), atol=1e-15)
        assert_allclose(root.total(), W.sum(axis=0), atol=1e-13)
        assert_allclose(root.inverse_total(), np.linalg.pinv(root.total(), rcond=1e-12), atol=1e-12)

    def test_products_with_features(self, which):
        root, W = root_of(which), curvatures(root_of(which))
        phi, m = np.random.default_rng(2).standard_normal((N, 5)), root.scale.shape[1]
        whole = np.einsum("ip,ikl,iq->kplq", phi, W, phi)
        apart = np.stack([whole[k, :, k] for k in range(m)])
        expected = whole.reshape(1, 5 * m, 5 * m) if root.is_coupled else apart
        found = np.ones_like(expected)
        root.add_products(found, phi)
        assert_allclose(np.tril(found), np.tril(1.0 + expected), atol=1e-13)

    def test_systems(self, which):
        root, x = root_of(which), np.random.default_rng(3).standard_normal((N, LIKELIHOODS[which].n_columns))
        stacked = root.stack(x)
        assert stacked.shape == (root.system_size, LIKELIHOODS[which].n_systems)
        assert_array_equal(root.unstack(stacked), x)
        assert_array_equal(np.hstack(root.split(stacked)), stacked)
        everything = np.arange(root.scale.shape[1])
        assert root.of_columns(everything) is root
        assert isinstance(root.precondition(Identity()), Classwise if root.is_coupled else Identity)
