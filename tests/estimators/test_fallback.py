"""What happens when nobody asked for conjugate gradient and it does not converge."""

import numpy as np
import pytest

from dkrr import KernelRidge
from dkrr.errors import ConvergenceWarning
from dkrr.fitting import iterative
from dkrr.planning import planner
from dkrr.solvers import ConjugateGradient, Status

N = 3000


@pytest.fixture
def hasty(monkeypatch):
    """Conjugate gradient that is chosen for anything, and gives up after two iterations."""
    monkeypatch.setattr(planner, "SURELY_FASTER", 1e-6)
    monkeypatch.setattr(planner, "TINY_SECONDS", 0.0)
    monkeypatch.setattr(planner, "SMALL_SECONDS", 0.0)
    monkeypatch.setattr(iterative, "settings_of", lambda plan: ConjugateGradient(max_iterations=2))


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
