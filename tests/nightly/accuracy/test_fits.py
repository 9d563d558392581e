from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from dkrr import KernelLogisticRegression, KernelRidge
from dkrr.features import feature_map
from dkrr.kernels import RBF, Cosine, Linear, Polynomial
from dkrr.solvers import Status
from dkrr.solvers.result import caution
from tests import precise
from tests.nightly.accuracy import __main__ as campaign
from tests.nightly.accuracy import fits, trials
from tests.nightly.accuracy.checks import dual_residual, features, logistic_gradient, primal_residual
from tests.nightly.accuracy.trials import CLASSES, trial

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
        change = (
            np.where(w[:, None] > 0, change - change.sum(axis=0) / (w > 0).sum(), 0)
            if "fit_intercept" in problem
            else change
        )
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
        for given in ({"dual_coef": exact.dual_coef}, {"coef": coef}):
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

    def test_sensitivity_is_what_rounded_entries_do(self):
        # Cosines of rows far from the origin are 1 to many digits, and centred targets see the others alone.
        far = X + 1e6
        settings = {"fit_intercept": True}
        w = 1e-6 * rng.standard_normal((3, 2))
        _, sensitivity = primal_residual(Cosine(), far, Y, 0.3, w, **settings)
        unit = far / np.linalg.norm(far, axis=1, keepdims=True)
        unit, near = np.abs(unit), unit - unit.mean(axis=0)
        whole = unit.T @ (np.abs(Y - Y.mean(axis=0)) + unit @ np.abs(w)) + 0.3 * np.abs(w)
        expected = np.linalg.norm(whole, axis=0) / np.linalg.norm(near.T @ (Y - Y.mean(axis=0)), axis=0)
        np.testing.assert_allclose(sensitivity, expected.max(), rtol=1e-6)
        # Of the linear kernel nothing is lost, since rows are centred.
        assert primal_residual(Linear(), far, Y, 0.3, w, **settings)[1] < 100 < sensitivity

    @pytest.mark.parametrize("value", [np.nan, np.inf])
    def test_what_is_not_a_number_is_not_dropped(self, value):
        bad = np.where(np.arange(2) == 0, 1.0, value) * np.ones((3, 2))
        assert np.isnan(primal_residual(Linear(), X, Y, 0.3, bad)[0])
        assert np.isnan(dual_residual(Linear(), X, Y, 0.3, np.full((15, 2), value)))
        for given in ({"coef": bad[:, 1:]}, {"dual_coef": np.full((15, 1), value)}):
            assert np.isnan(logistic_gradient(Linear(), X, LABELS, 0.3, **given)[0])


def test_labels_are_there_without_docstrings(monkeypatch):
    monkeypatch.setitem(CLASSES, "bare", lambda one, rng: one)
    assert trials.label(CLASSES, "bare") == "bare" and trials.label(CLASSES, "offset") == "X + 1 … 1e8"


@pytest.mark.parametrize("of_class", CLASSES)
def test_trials_are_the_same_each_time_and_unlike_each_other(of_class):
    one, again, other = trial(of_class, 3), trial(of_class, 3), trial(of_class, 4)
    assert str(one) == str(again) and one.name == f"{of_class}:3"
    assert one.X.shape != other.X.shape or abs(one.X - other.X).max() > 0
    assert one.X.shape[1] == one.X_new.shape[1] and one.X.dtype == one.X_new.dtype and len(one.y) == one.X.shape[0]


def of_kind(is_logistic):
    return next(t for t in (trial("ordinary", k) for k in range(20)) if t.is_logistic == is_logistic)


@pytest.mark.parametrize("is_logistic", [False, True])
class TestVerdicts:
    def test_an_ordinary_fit_is_accurate_and_honest(self, is_logistic):
        outcome = fits.run(of_kind(is_logistic))
        assert outcome.is_success and outcome.dishonest == () and outcome.surprising == ()
        assert outcome.true <= 10 * outcome.reported + 1e-13 and outcome.predictions < 1e-6

    def fitted(self, is_logistic, **changes):
        one = replace(of_kind(is_logistic), settings={"form": "dual", "solver": "cholesky"})
        make = KernelLogisticRegression if is_logistic else KernelRidge
        model = make(one.alpha, kernel=one.kernel, fit_intercept=one.fit_intercept, form="dual")
        model.fit(one.X, one.y, one.sample_weight)
        model.solve_result_ = replace(model.solve_result_, **changes)
        found = np.vstack([precise_scores(model, rows) for rows in (one.X, one.X_new)])
        return one, model, found

    def test_a_residual_that_is_understated_is_not(self, is_logistic):
        one, model, found = self.fitted(is_logistic, residual=1e-9)
        model.dual_coef_ = model.dual_coef_ * (1 + 1e-4)
        (message, *more) = fits.judge(one, model, found, None, []).dishonest
        assert "is reported as 1.0e-09" in message and len(more) == is_logistic
        honest = replace(model.solve_result_, residual=1e-2, status=Status.STALLED)
        model.solve_result_ = honest
        assert fits.judge(one, model, found, None, []).dishonest == ()

    @pytest.mark.parametrize("what", ["found", "residual", "dual_coef"])
    def test_nor_is_a_success_that_is_not_finite(self, is_logistic, what):
        one, model, found = self.fitted(is_logistic, **({"residual": np.nan} if what == "residual" else {}))
        if what == "found":
            found[-1, 0] = np.nan
        if what == "dual_coef":
            model.dual_coef_ = np.where(np.arange(len(one.y)) == 0, np.inf, model.dual_coef_.T).T
        assert fits.judge(one, model, found, None, []).dishonest == ("not finite, and a success",)
        model.solve_result_ = replace(model.solve_result_, status=Status.STALLED)
        assert fits.judge(one, model, found, None, []).dishonest == ()

    def test_coefficients_that_are_off_need_a_caution(self, is_logistic):
        one, model, found = self.fitted(is_logistic, residual=1.0)
        model.dual_coef_ = model.dual_coef_ * 1.02
        model.tol = 1.0
        messages = fits.judge(one, model, found, None, []).dishonest
        assert messages == (() if is_logistic else ("α off by 2.0e-02 without a caution",))
        model.solve_result_ = replace(model.solve_result_, messages=caution(1e14, "dual"))
        assert fits.judge(one, model, found, None, []).dishonest == ()

    @pytest.mark.parametrize("rows", ["training", "new"])
    def test_probabilities_that_are_off_are_not(self, is_logistic, rows):
        if not is_logistic:
            return
        one, model, found = self.fitted(is_logistic)
        found = found.copy()
        found[0 if rows == "training" else -1] += 50.0
        (message,) = fits.judge(one, model, found, None, []).dishonest
        assert "converged with a probability off by" in message

    def test_a_large_sensitivity_does_not_explain_everything(self, is_logistic):
        if is_logistic:
            return
        one = of_kind(is_logistic)
        one = replace(one, X=one.X + 1e8, X_new=one.X_new + 1e8, kernel=Polynomial(2), fit_intercept=True)
        model = KernelRidge(one.alpha, kernel=one.kernel, form="primal", solver="cholesky", fit_intercept=True)
        model.fit(one.X, one.y, one.sample_weight)
        model.coef_ = 1.001 * model.coef_
        features = np.asarray(model.coef_).reshape(-1, one.y.shape[1])
        problem = {"sample_weight": one.sample_weight, "fit_intercept": True}
        true, sensitivity = primal_residual(one.kernel, one.X, one.y, one.alpha, features, **problem)
        assert len(one.y) * 2e-16 * sensitivity > true > 1e-6
        model.solve_result_ = replace(model.solve_result_, residual=1e-9)
        found = np.vstack([precise_scores(model, rows) for rows in (one.X, one.X_new)])
        assert "is reported as 1.0e-09" in fits.judge(one, model, found, None, []).dishonest[0]

    def test_predictions_that_are_off_are_listed(self, is_logistic):
        one, model, found = self.fitted(is_logistic)
        outcome = fits.judge(one, model, found + 1e-4 * np.abs(found).max(), None, [])
        assert outcome.dishonest == () and "predictions off by 1.0e-04" in outcome.surprising[0]


def precise_scores(model, rows):
    found = model.decision_function(rows) if hasattr(model, "decision_function") else model.predict(rows)
    return np.asarray(found).reshape(len(rows), -1)


def test_the_command_writes_its_table_between_the_markers(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{campaign.BEGIN}\nold\n{campaign.END}\nafter\n")
    arguments = ["--fits", "2", "--only", "ordinary", "--only", "integers", "--write", str(page)]
    result = CliRunner().invoke(campaign.main, arguments, catch_exceptions=False)
    written = page.read_text()
    assert result.exit_code == 0 and "old" not in written and written.endswith(f"{campaign.END}\nafter\n")
    assert result.stdout.strip() in written and "| Rows of integers, of 8 to 64 bits | 2 |" in written
    page.write_text("no markers")
    result = CliRunner().invoke(campaign.main, ["--trial", "ordinary:1", "--write", str(page)])
    assert result.exit_code == 1 and "has no lines" in result.output
