"""A way to solve is one object: a class and a line of `METHODS` make it planned, explained and carried out."""

from dataclasses import dataclass

import numpy as np

from dkrr import KernelRidge
from dkrr.cost import Stage
from dkrr.fitting import methods
from dkrr.fitting.methods.solving import SolvingMethod
from dkrr.fitting.results import Solution
from dkrr.planning.strategy import Strategy
from dkrr.planning.tile_sizes import Tiling
from dkrr.text import Reason


@dataclass(frozen=True)
class WholeSpectrum:
    tiling: Tiling
    row_parts: int = 1
    iterations: int = 0
    keeps_factors: bool = False


class Eigendecomposition(SolvingMethod):
    name, form, solver, losses = "dual, eigh", "dual", "cholesky", ("squared",)
    factors_matrix = True

    def candidates(self, p, r):
        details, place = WholeSpectrum(Tiling(p.n, p.n)), r.in_caller("memory", r.local_threads)
        stages = (Stage("factorisation", 1e-9 * p.n**3, peak_bytes=place.baseline_bytes + 24 * p.n**2),)
        yield Strategy(method=self, form="dual", place=place, details=details, stages=stages)

    def summary(self, c):
        return "dual, all eigenvalues of K"

    def why(self, c, p, candidates):
        return [Reason("spectrum", "all eigenvalues, since a test says so")]

    def ridge(self, data, plan, context, start=None):
        rows, y = data.rows, data.targets
        gram = data.kernel(rows.read(0, plan.problem.n))
        values, vectors = np.linalg.eigh(gram)
        coef = vectors @ ((vectors.T @ y) / (values[:, None] + data.alphas))
        left = y - gram @ coef - coef * data.alphas
        residuals = np.linalg.norm(left, axis=0) / np.linalg.norm(y, axis=0)
        squares = np.einsum("ij,ij->j", coef, gram @ coef)
        return Solution(
            dual_coef=coef, coef=None, intercept=np.zeros(y.shape[1]), rows=rows, residual=residuals.max(),
            condition=values[-1] / values[0], residuals=residuals, squares=squares,
        )  # fmt: skip


def test_a_class_and_a_line_make_a_solver_that_is_planned_explained_and_carried_out(monkeypatch):
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((200, 3)), rng.standard_normal(200)
    expected = KernelRidge(0.1, kernel="rbf", gamma=0.3).fit(X, y)
    monkeypatch.setattr(methods, "METHODS", (Eigendecomposition(), *methods.METHODS))
    found = KernelRidge(0.1, kernel="rbf", gamma=0.3).fit(X, y)
    plan = found.plan_
    assert isinstance(plan.chosen.method, Eigendecomposition) and plan.chosen.summary() == "dual, all eigenvalues of K"
    assert "all eigenvalues, since a test says so" in str(plan) and plan.to_dict()["name"] == plan.chosen.summary()
    assert found.solve_result_.residual < 1e-12
    np.testing.assert_allclose(found.dual_coef_, expected.dual_coef_, rtol=1e-9)
    np.testing.assert_allclose(found.predict(X), expected.predict(X), rtol=1e-9)
