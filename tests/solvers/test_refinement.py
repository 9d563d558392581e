"""Refinement ends at the level of rounding of a solution in float64, or says that it does not."""

import numpy as np
import pytest

from dkrr.linalg.preconditioner import Preconditioner
from dkrr.runtime import Progress
from dkrr.solvers import Status
from dkrr.solvers.direct import MAX_REFINEMENTS, Refinement, rounding_level
from tests.linalg.systems import MatrixOperator


class Float32Inverse(Preconditioner):
    """Inverse by a dense factor in float32."""

    def __init__(self, matrix):
        self.factor = np.linalg.cholesky(matrix.astype(np.float32))

    def apply(self, residuals, columns):
        z = np.linalg.solve(self.factor, residuals.astype(np.float32))
        return np.linalg.solve(self.factor.T, z).astype(np.float64)


class Useless(Preconditioner):
    """A multiple of the identity."""

    def apply(self, residuals, columns):
        return residuals.copy()


def gram(n=300, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 2))
    return np.exp(-0.5 * ((X[:, None] - X) ** 2).sum(axis=2)), rng.standard_normal((n, 3))


def refine(K, alpha, B, preconditioner=None):
    shift = np.full(len(K), alpha)
    preconditioner = preconditioner or Float32Inverse(K + np.diag(shift))
    begun = Refinement.begun(MatrixOperator(K), K.diagonal(), shift, B, preconditioner, Progress())
    return begun, begun.iteration.run(state=begun.start)


@pytest.mark.parametrize("alpha", [1.0, 1e-2, 1e-3, 1e12])
def test_residual_is_that_of_a_factorisation_in_float64(alpha):
    K, B = gram()
    begun, outcome = refine(K, alpha, B)
    A = K + alpha * np.eye(len(K))
    direct = np.linalg.norm(B - A @ np.linalg.solve(A, B), axis=0) / np.linalg.norm(B, axis=0)
    found = np.linalg.norm(B - A @ outcome.x, axis=0) / np.linalg.norm(B, axis=0)
    assert outcome.status is Status.CONVERGED
    assert (found <= 4 * direct + 3e-15).all(), "or √n units of rounding"
    np.testing.assert_allclose(found, outcome.residuals, rtol=0.5, atol=1e-15)
    assert begun.condition == pytest.approx(np.linalg.cond(A), rel=0.9)
    assert begun.condition <= 1.01 * np.linalg.cond(A)


@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_right_sides_of_any_size(size):
    K, B = gram()
    _, outcome = refine(K, 0.1, B * size)
    _, expected = refine(K, 0.1, B)
    assert outcome.status is Status.CONVERGED
    np.testing.assert_allclose(outcome.x / size, expected.x, rtol=1e-9)


def test_a_right_side_of_zeros():
    K, B = gram()
    B[:, 1] = 0.0
    _, outcome = refine(K, 0.1, B)
    assert outcome.status is Status.CONVERGED and not outcome.x[:, 1].any()


def test_what_does_not_contract_is_given_up():
    K, B = gram()
    _, outcome = refine(K, 1e-9, B, Useless())
    assert outcome.status is not Status.CONVERGED and outcome.iterations <= MAX_REFINEMENTS


def test_level_follows_the_solution():
    B = np.ones((4, 2))
    np.testing.assert_allclose(rounding_level(4, 1.0, 10 * B, B), 10 * rounding_level(4, 1.0, B, B))
    assert (rounding_level(4, 1.0, 0 * B, 0 * B) > 0).all()


def test_each_right_side_has_its_own_level():
    # The solution for ones is far shorter than that for noise, as with a free intercept.
    K, B = gram(600)
    K += 5.0
    _, outcome = refine(K, 1e-2, np.column_stack([B[:, 0], np.ones(len(K))]))
    assert outcome.status is Status.CONVERGED
