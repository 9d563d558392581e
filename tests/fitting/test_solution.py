"""What is only rounding in the moments of the primal form, and the residual of a dual solution."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from dkrr import KernelRidge
from dkrr.features import IdentityMap
from dkrr.fitting.data import TrainingData
from dkrr.fitting.ridge import drop_rounding, tightened
from dkrr.kernels import Linear
from dkrr.rows import as_rows
from dkrr.solvers import ConjugateGradient, Status
from tests.nightly.accuracy.fits import run
from tests.nightly.accuracy.trials import trial


@pytest.mark.parametrize("weight", [None, 4.0])
def test_moments_that_are_only_rounding(weight):
    X, y = np.array([[1.0, 1e-25], [1.0, -1e-25]]), np.array([[1.0, 1.0, 0.0], [1.0, -1.0, 0.0]])
    weights = None if weight is None else np.full(2, weight)
    data = TrainingData(
        rows=as_rows(X),
        weights=weights,
        kernel=Linear(),
        feature_map=IdentityMap(),
        fit_intercept=False,
        targets=y,
        alphas=np.ones(3),
    )
    root = 1.0 if weight is None else np.sqrt(weight)
    lengths = np.sqrt(2) * root * np.array([1.0, 1e-25])
    # Of the second target the part in the first feature is rounding, not that in the other; the third is zero.
    moments = np.array([[1e-16, 1e-16, 0.0], [1e-42, 2e-25, 0.0]])
    found = moments.copy()
    sizes = drop_rounding(data, found, lengths**2)
    assert_array_equal(found[:, 0], 0.0)
    assert_array_equal(found[:, 1:], moments[:, 1:])
    assert_allclose(sizes, [lengths[0] * np.sqrt(2) * root, 1e-16, 0.0])


@pytest.mark.parametrize(
    ("reached", "residual", "smaller"),
    [(1e-8, 4e-8, 1.25e-9), (1e-8, np.inf, None), (1e-8, np.nan, None), (0.0, 1e-7, None), (1e-8, 0.0, None)],
)
def test_a_tolerance_from_which_no_residual_follows_ends_the_search(reached, residual, smaller):
    assert tightened(1e-8, reached, residual) == (None if smaller is None else pytest.approx(smaller))


class TestResidualWithAnIntercept:
    """With α = u − v b, small residuals of u and v do not make that of α small."""

    def test_weights_over_many_orders(self):
        # b that is off by its last digit leaves Σα far above the rounding of α, and the residual with it.
        found = run(trial("weights", 34))
        assert found.ended == "SOLVED"
        assert not found.dishonest

    def test_an_iteration_goes_on_until_that_of_the_coefficients_meets_the_tolerance(self):
        rng, tol = np.random.default_rng(0), 1e-3
        X = 30.0 + rng.standard_normal((60, 3))
        y = X @ [1.0, 2.0, 3.0] + 0.01 * rng.standard_normal(60)
        # dkrr does not centre a kernel that it does not know.
        model = KernelRidge(
            kernel=lambda a, b: a @ b.T, form="dual", fit_intercept=True, tol=tol, progress=False,
            solver=ConjugateGradient(preconditioner=None),
        ).fit(X, y)  # fmt: skip
        left = y - model.intercept_ - X @ (X.T @ model.dual_coef_) - model.dual_coef_
        left = np.linalg.norm(left) / np.linalg.norm(y - y.mean())
        assert_allclose(model.solve_result_.residual, left, rtol=1e-6)
        assert model.solve_result_.status is Status.CONVERGED
        assert left <= tol
