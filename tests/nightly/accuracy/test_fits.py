from dataclasses import replace

import numpy as np
import pytest

from dkrr import KernelLogisticRegression, KernelRidge
from dkrr.features import feature_map
from dkrr.kernels import RBF, Cosine, Linear, Polynomial
from dkrr.solvers import Status
from tests import precise
from tests.nightly.accuracy import __main__ as campaign
from tests.nightly.accuracy import fits
from tests.nightly.accuracy.checks import dual_residual, features, logistic_gradient, primal_residual
from tests.nightly.accuracy.trials import trial

rng = np.random.default_rng(1)
X, Y, WEIGHTS = rng.standard_normal((15, 3)), rng.standard_normal((15, 2)), np.append(0.0, rng.uniform(0.5, 2, 14))
LABELS = (Y[:, 0] > 0).astype(float)
PROBLEMS = [{}, {"sample_weight": WEIGHTS}, {"fit_intercept": True}, {"sample_weight": WEIGHTS, "fit_intercept": True}]
each_problem = pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: "+".join(p) or "plain")


def parts(problem):
    """W and the projection that an intercept stands for, as matrices."""
    w = problem.get("sample_weight", np.ones(15))
    centre = np.eye(15) - (np.outer(np.ones(15), w) / w.sum() if problem.get("fit_intercept") else 0.0)
    return w, centre


class TestChecks:
    """Against the same formulae in float64, far above rounding, and at the exact solution, far below it."""

    @each_problem
    def test_dual_residual(self, problem):
        exact = precise.ridge(RBF(0.4), X, Y, 0.3, **problem)
        assert dual_residual(RBF(0.4), X, Y, 0.3, exact.dual_coef, **problem) < 1e-15
        w, centre = parts(problem)
        change = 1e-3 * rng.standard_normal((15, 2)) * (w > 0)[:, None]
        if "fit_intercept" in problem:
            change = np.where(w[:, None] > 0, change - change.sum(axis=0) / (w > 0).sum(), 0)
        inverse = np.divide(0.3, w, out=np.zeros(15), where=w > 0)
        left = np.sqrt(w)[:, None] * (centre @ (RBF(0.4)(X) @ change + inverse[:, None] * change))
        expected = np.linalg.norm(left, axis=0) / np.linalg.norm(np.sqrt(w)[:, None] * (centre @ Y), axis=0)
        found = dual_residual(RBF(0.4), X, Y, 0.3, exact.dual_coef + change, **problem)
        np.testing.assert_allclose(found, expected.max(), rtol=1e-9)

    @each_problem
    @pytest.mark.parametrize("kernel", [Linear(), Cosine(), Polynomial(3, 0.5, 2.0), Polynomial(2, coef0=0.0)], ids=str)
    def test_primal_residual(self, kernel, problem):
        phi, (w, centre) = feature_map(kernel, 3).transform(X), parts(problem)
        np.testing.assert_allclose(np.array(features(kernel, X), float), phi, rtol=1e-13, atol=1e-15)
        coef, phi = rng.standard_normal((phi.shape[1], 2)), centre @ phi
        right = phi.T @ (w[:, None] * (centre @ Y))
        rest = np.linalg.norm(right - phi.T @ (w[:, None] * (phi @ coef)) - 0.3 * coef, axis=0)
        found, _ = primal_residual(kernel, X, Y, 0.3, coef, **problem)
        np.testing.assert_allclose(found, (rest / np.linalg.norm(right, axis=0)).max(), rtol=1e-9)

    @each_problem
    def test_logistic_gradient(self, problem):
        problem = {"fit_intercept": False, **problem}
        exact = precise.logistic(Linear(), X, LABELS, 0.3, **problem)
        coef = X.T @ exact.dual_coef
        for given in ({"form": "dual", "coef": exact.dual_coef}, {"form": "primal", "coef": coef}):
            found, _ = logistic_gradient(Linear(), X, LABELS, 0.3, intercept=exact.intercept[0], **given, **problem)
            assert found < 1e-14
            found, _ = logistic_gradient(Linear(), X, LABELS, 0.6, intercept=exact.intercept[0], **given, **problem)
            K, w = X @ X.T, problem.get("sample_weight", np.ones(15))
            forms, start = [], w * (0.5 - LABELS)
            for of in (np.eye(15), np.eye(15) - 1 / 15):  # the added penalty is all that is left of the gradient
                r, g = of @ (0.6 * exact.dual_coef[:, 0]), of @ start
                total = start.sum() ** 2 if problem["fit_intercept"] else 0.0
                forms.append(np.sqrt(r @ K @ r / (g @ K @ g + total)))
            np.testing.assert_allclose(found, min(forms) if problem["fit_intercept"] else forms[0], rtol=1e-9)


def of_kind(is_logistic):
    return next(t for t in (trial("ordinary", k) for k in range(20)) if t.is_logistic == is_logistic)


@pytest.mark.parametrize("is_logistic", [False, True])
class TestVerdicts:
    def test_an_ordinary_fit_is_accurate_and_honest(self, is_logistic):
        outcome = fits.run(of_kind(is_logistic))
        assert outcome.ended in ("SOLVED", "CONVERGED") and outcome.dishonest == () and outcome.surprising == ()
        assert outcome.errors["predictions"] < 1e-6

    def fitted(self, is_logistic, **changes):
        one = replace(of_kind(is_logistic), settings={"form": "dual", "solver": "cholesky"})
        make = KernelLogisticRegression if is_logistic else KernelRidge
        model = make(one.alpha, kernel=one.kernel, fit_intercept=one.fit_intercept, form="dual")
        model.fit(one.X, one.y, one.sample_weight)
        model.solve_result_ = replace(model.solve_result_, **changes)
        found = np.vstack([fits.scores(model, rows) for rows in (one.X, one.X_new)])
        return one, model, found

    def test_a_residual_that_is_understated_is_not(self, is_logistic):
        one, model, found = self.fitted(is_logistic, residual=1e-9)
        model.dual_coef_ = model.dual_coef_ * (1 + 1e-4)
        (message, *more) = fits.judge(one, model, found, None, []).dishonest
        assert "is reported as 1.0e-09" in message and len(more) == is_logistic
        honest = replace(model.solve_result_, residual=1e-2, status=Status.STALLED)
        model.solve_result_ = honest
        assert fits.judge(one, model, found, None, []).dishonest == ()


@pytest.mark.parametrize(
    ("kind", "of_class"), [(kind, name) for kind in campaign.KINDS.values() for name in kind.classes], ids=str
)
def test_trials_of_every_class_are_the_same_each_time_and_honest(kind, of_class):
    for number in (3, 4):
        outcome, again = kind.run(of_class, number), kind.run(of_class, number)
        assert outcome.dishonest == () and str(outcome) == str(again)
