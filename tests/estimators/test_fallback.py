"""Conjugate gradient that `solver="auto"` chose and that does not converge."""

import numpy as np
import pytest

from dkrr import KernelRidge
from dkrr.errors import ConvergenceWarning
from dkrr.fitting import iteration
from dkrr.planning import iteration as pricing
from dkrr.planning import planner
from dkrr.solvers import ConjugateGradient, Float32Cholesky, Status

N = 3000


@pytest.fixture
def hasty(monkeypatch):
    """Conjugate gradient that is chosen for anything, and gives up after two iterations."""
    monkeypatch.setattr(pricing, "SURELY_FASTER", 1e-6)
    for name in ("TINY_SECONDS", "SMALL_SECONDS", "SHORT_SECONDS"):
        monkeypatch.setattr(planner, name, 0.0)
    monkeypatch.setattr(pricing, "SMALL_SECONDS", 0.0)
    monkeypatch.setattr(iteration, "settings_of", lambda plan: ConjugateGradient(max_iter=2))


@pytest.fixture
def problem():
    rng = np.random.default_rng(0)
    return rng.standard_normal((N, 4)), rng.standard_normal(N)


def test_the_factorisation_takes_over(hasty, problem, monkeypatch):
    monkeypatch.setattr(planner, "_cheapest", lambda fitting: min(fitting, key=lambda c: (c.solver != "cg", c.seconds)))
    model = KernelRidge(alpha=1e-3, kernel="rbf", gamma=0.5).fit(*problem)
    assert model.plan_.solver == "cholesky"
    assert model.solve_result_.status is Status.SOLVED
    assert "factoring instead" in model.solve_result_.messages[0]
    exact = KernelRidge(alpha=1e-3, kernel="rbf", gamma=0.5, solver="cholesky").fit(*problem)
    np.testing.assert_array_equal(model.dual_coef_, exact.dual_coef_)


def test_what_was_asked_for_is_not_replaced(hasty, problem):
    with pytest.warns(ConvergenceWarning, match="after 2 iterations"):
        model = KernelRidge(alpha=1e-3, kernel="rbf", gamma=0.5, solver="cg").fit(*problem)
    assert model.plan_.solver == "cg"
    assert model.solve_result_.status is Status.MAX_ITERATIONS


class TestFactorsInFloat32:
    """What float32 does not hold is factored in float64, and solved to the tolerance all the same, or it is said."""

    def fit(self, X, y, alpha, **more):
        solver = ConjugateGradient(Float32Cholesky())
        more = {"tile": 64} | more
        return KernelRidge(alpha=alpha, solver=solver, form="dual", **more).fit(X, y).solve_result_

    @pytest.fixture
    def rows(self):
        rng = np.random.default_rng(0)
        return rng.standard_normal((120, 150)), rng.standard_normal(120)

    def test_what_was_asked_for_cannot_be_had(self, problem):
        X, y = problem
        with pytest.warns(ConvergenceWarning, match="where 1.0e-08 was asked"):
            found = self.fit(X[:150, :3], y[:150], 1e-9, kernel="rbf", gamma=0.05)
        assert found.status is Status.STALLED and found.residual > 1e-8
        assert "broke down at row" in found.messages[0]

    def test_what_was_asked_for_can_be_had(self, problem):
        X, y = problem
        found = self.fit(X[:150, :3], y[:150], 1e-9, kernel="rbf", gamma=0.05, tol=1e-5)
        assert found.status is Status.CONVERGED and found.residual <= 1e-5
        assert "broke down at row" in found.messages[0]

    @pytest.mark.parametrize(("size", "alpha"), [(1e22, 1e40), (1e-30, 1e-60)])
    @pytest.mark.parametrize("tile", [64, None])
    def test_entries_outside_of_its_range_are_scaled(self, rows, size, alpha, tile):
        X, y = rows
        found = self.fit(X * size, y, alpha, kernel="linear", tile=tile)
        assert found.status is Status.CONVERGED and found.residual <= 1e-8
        assert found.messages == () and found.iterations <= 5
