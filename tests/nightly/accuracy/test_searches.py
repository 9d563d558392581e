"""Trials of searches and of posteriors: their oracles, verdicts and tables."""

from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as gaussian_kernels
from sklearn.model_selection import KFold

from dkrr import KernelRidge, KernelRidgeCV
from dkrr.features import Nystroem
from dkrr.kernels import RBF, BagOfWords, Linear, Polynomial
from tests.nightly.accuracy import __main__ as campaign
from tests.nightly.accuracy import posteriors, search_trials, searches
from tests.nightly.accuracy.models import Problem
from tests.nightly.accuracy.posterior_trials import posterior
from tests.nightly.accuracy.search_trials import Search
from tests.nightly.accuracy.searches import scores

rng = np.random.default_rng(3)
X, Y = rng.standard_normal((20, 3)), rng.standard_normal((20, 2))
WEIGHTS = np.append(0.0, rng.uniform(0.5, 2, 19))
SETTINGS = {"form": "dual", "solver": "cholesky", "alpha_per_target": False, "scoring": None, "race": False}
TEXTS = search_trials.documents(rng, 20)
KERNELS = {
    "linear": (Linear(), X),
    "rbf": (RBF(0.4), X),
    "polynomial": (Polynomial(2), X),
    "nystroem": (Nystroem(RBF(1.0), 6), X),
    "words": (BagOfWords(), TEXTS),
    "precomputed": ("precomputed", RBF(0.4)(X)),
}


def of_rows(rows, numbers):
    return [rows[i] for i in numbers] if isinstance(rows, list) else rows[numbers]


class TestModels:
    @pytest.mark.parametrize("fit_intercept", [False, True])
    @pytest.mark.parametrize("name", KERNELS)
    def test_predictions_are_those_of_a_fit_to_the_training_rows(self, name, fit_intercept):
        kernel, rows = KERNELS[name]
        train, test = np.arange(4, 20), np.arange(4)
        problem = Problem(rows, Y, kernel, WEIGHTS, fit_intercept, is_precomputed=name == "precomputed")
        found = problem.predictions(0.3, train, test)
        found = np.array([[float(found[i, c].mid()) for c in range(2)] for i in range(4)])
        model = KernelRidge(0.3, kernel=kernel, fit_intercept=fit_intercept)
        inner, outer = of_rows(rows, train), of_rows(rows, test)
        if name == "precomputed":
            inner, outer = inner[:, train], outer[:, train]
        expected = model.fit(inner, Y[train], WEIGHTS[train]).predict(outer)
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-11)
        for form in ["dual"] if name in ("rbf", "words", "precomputed") else ["dual", "primal"]:
            for moved in (None, np.random.default_rng(0)):
                f64, sensitivity = problem.rounded_predictions(0.3, train, test, form, moved)
                np.testing.assert_allclose(f64, found, rtol=1e-9, atol=1e-11)
                assert (sensitivity > 0).all()


def an_ordinary(**changes):
    one = Search("search-ordinary:0", X, Y, np.array([1e-2, 1.0]), RBF(0.4), False, None, KFold(4), None, SETTINGS)
    return replace(one, **changes)


def fitted(one):
    made = KernelRidgeCV(one.alphas, kernel=one.kernel, cv=one.cv, **one.settings)
    return made.fit(one.X, one.y, one.sample_weight)


class TestSearchVerdicts:
    def test_exact_scores_are_those_of_refits(self):
        one = an_ordinary(sample_weight=WEIGHTS + 0.1)
        found = scores(one, "dual", 0.0)
        for f, (train, test) in enumerate(one.pairs()):
            model = KernelRidge(1.0, kernel=one.kernel).fit(X[train], Y[train], one.sample_weight[train])
            squares = ((model.predict(X[test]) - Y[test]) ** 2).mean(axis=1)
            expected = -np.average(squares, weights=one.sample_weight[test])
            assert float(found.values[1, f, 0].mid()) == pytest.approx(expected, rel=1e-10)
        assert found.relative_allowed.max() < 2e-6

    def judged(self, change, messages=()):
        one = an_ordinary()
        made = fitted(one)
        change(made)
        return searches.judge(one, made, list(messages), set())

    def test_a_score_that_is_off_needs_a_warning(self):
        def change(made):
            made.cv_results_["split2_test_score"][0] *= 1 + 1e-5

        (message,) = self.judged(change).dishonest
        assert "the score of λ=0.01 fold 2 is" in message and "off by 1.0e-05" in message
        assert self.judged(change, ["scores of alpha = 0.01 are from a residual"]).dishonest == ()
        assert self.judged(change, ["scores of alpha = 0.001 are from a residual"]).dishonest == (message,)

    def test_a_missing_or_infinite_score_needs_one(self):
        def change(made, value):
            made.cv_results_["split2_test_score"][0] = value

        assert "no score of λ=0.01 fold 2" in self.judged(lambda made: change(made, np.nan)).dishonest[0]
        assert "fold 2 is -inf" in self.judged(lambda made: change(made, -np.inf)).dishonest[0]
        assert self.judged(lambda made: change(made, np.nan), ["alpha = 0.01 is left out"]).dishonest == ()

    def test_a_worse_choice_is_found_and_one_that_was_not_solved(self):
        best = fitted(an_ordinary()).best_index_

        def change(made):
            made.best_index_ = 1 - best

        outcome = self.judged(change)
        assert "is chosen with" in outcome.dishonest[0]

        def unsolved(made):
            made.cv_results_["residual"][best] = 0.5

        warning = [f"scores of alpha = {an_ordinary().alphas[best]:g} are from a residual"]
        assert "systems were not solved" in self.judged(unsolved, warning).dishonest[0]


class TestPosteriors:
    def answers(self, one, **changes):
        made = KernelRidge(one.alpha, kernel=one.kernel, fit_intercept=one.fit_intercept, form="dual")
        made.fit(one.X, one.y, one.sample_weight)
        rows = np.vstack([one.X, one.X_new])
        asked = {
            "std": made.predict(rows, return_std=True)[1],
            "bounds": made.predict_variance_bounds(rows, scale=1.0),
            "likelihood": (made.log_marginal_likelihood_, made.log_marginal_likelihood_std_),
            "loo": made.loo_residuals_,
            "interval": made.predict_interval(one.X_new, coverage=posteriors.COVERAGE, cv=10),
        } | changes
        return made, {what: posteriors.Asked(values) for what, values in asked.items()}

    def ordinary(self):
        one = posterior("posterior-ordinary", 0)
        settings = {"form": "dual", "solver": "auto"}
        return replace(one, kernel=RBF(0.4), alpha=0.1, y=one.y[:, :1], sample_weight=None, settings=settings)

    def test_exact_values_are_those_of_a_gaussian_process(self):
        one = replace(self.ordinary(), fit_intercept=False)
        found = posteriors.exact(one)
        scale = float(found.scales[0].mid())
        process = GaussianProcessRegressor(
            scale * gaussian_kernels.RBF(np.sqrt(1 / 0.8)), alpha=scale * one.alpha, optimizer=None
        ).fit(one.X, one.y[:, 0])
        _, std = process.predict(np.vstack([one.X, one.X_new]), return_std=True)
        exact = [float((v * found.scales[0]).mid()) for v in found.variances]
        np.testing.assert_allclose(np.sqrt(exact), std, rtol=1e-7)
        assert float(found.likelihood[0].mid()) == pytest.approx(process.log_marginal_likelihood_value_, rel=1e-9)
        rest = np.arange(1, len(one.y))
        other = KernelRidge(one.alpha, kernel=one.kernel).fit(one.X[rest], one.y[rest])
        assert float(found.loo[0, 0].mid()) == pytest.approx((one.y[:1] - other.predict(one.X[:1])).item(), rel=1e-9)

    @pytest.mark.parametrize("fit_intercept", [False, True])
    def test_an_ordinary_fit_is_accurate_and_honest(self, fit_intercept):
        one = replace(self.ordinary(), fit_intercept=fit_intercept)
        made, asked = self.answers(one)
        outcome = posteriors.judge(one, "dual", made, asked)
        assert outcome.dishonest == () and set(outcome.errors) == set(posteriors.WHAT)
        assert outcome.errors.pop("bounds") < 1e-4 and max(outcome.errors.values()) < 1e-8

    @pytest.mark.parametrize("what", posteriors.WHAT)
    def test_each_answer_that_is_off_needs_a_warning(self, what):
        one = self.ordinary()
        _, right = self.answers(one)
        values = right[what].values
        wrong = tuple(np.asarray(v) * 1.01 for v in values) if isinstance(values, tuple) else np.asarray(values) * 1.01
        made, asked = self.answers(one, **{what: wrong})
        (message,) = posteriors.judge(one, "dual", made, asked).dishonest
        assert message.startswith(what) and "off by" in message
        asked[what] = replace(asked[what], warned=True)
        assert posteriors.judge(one, "dual", made, asked).dishonest == ()


def test_each_kind_has_its_table_between_its_markers(tmp_path):
    page = tmp_path / "page.md"
    kinds = campaign.KINDS.values()
    page.write_text("\n".join(f"{kind.begin}\nold\n{kind.end}" for kind in kinds))
    names = ["ordinary:3", "search-ordinary:3", "posterior-ordinary:3"]
    arguments = [part for name in names for part in ("--trial", name)]
    result = CliRunner().invoke(campaign.main, [*arguments, "--write", str(page)], catch_exceptions=False)
    written = page.read_text()
    assert result.exit_code == 0 and "old" not in written and written.count("| 1 |") >= 3
    for kind in kinds:
        assert kind.counted in written.split(kind.begin)[1].split(kind.end)[0]
    arguments = ["--fits", "0", "--posteriors", "0", "--searches", "2", "--first", "7", "--only", "search-ordinary"]
    result = CliRunner().invoke(campaign.main, arguments, catch_exceptions=False)
    assert result.exit_code == 0 and "| Standard normal rows, λ 1e-4 … 10 | 2 |" in result.stdout
