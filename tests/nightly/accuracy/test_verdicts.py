"""Trials of fits, searches and posteriors: their oracles, verdicts and tables."""

from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as gaussian_kernels
from sklearn.model_selection import KFold

from dkrr import KernelLogisticRegression, KernelRidge, KernelRidgeCV
from dkrr.kernels import RBF, Polynomial
from dkrr.solvers import Status
from tests.nightly.accuracy import __main__ as campaign
from tests.nightly.accuracy import fits, posteriors, searches
from tests.nightly.accuracy.posteriors import posterior
from tests.nightly.accuracy.searches import Search
from tests.nightly.accuracy.trials import ask, trial

rng = np.random.default_rng(3)
X, Y = rng.standard_normal((20, 3)), rng.standard_normal((20, 2))
WEIGHTS = np.append(0.0, rng.uniform(0.5, 2, 19))
LABELS = (Y[:, 0] > 0).astype(float)


def of_kind(is_logistic):
    return next(t for t in (trial("ordinary", k) for k in range(20)) if t.is_logistic == is_logistic)


@pytest.mark.parametrize("form", ["dual", "primal"])
@pytest.mark.parametrize("is_logistic", [False, True])
def test_an_ordinary_fit_is_accurate_and_honest_and_a_residual_that_is_understated_is_not(is_logistic, form):
    one = replace(of_kind(is_logistic), kernel=Polynomial(degree=2), settings={"form": form, "solver": "cholesky"})
    outcome = fits.run(one)
    assert outcome.ended in ("SOLVED", "CONVERGED") and outcome.dishonest == ()
    assert outcome.errors["predictions"] < 1e-6
    make = KernelLogisticRegression if is_logistic else KernelRidge
    model = make(one.alpha, kernel=one.kernel, fit_intercept=one.fit_intercept, form=form)
    model.fit(one.X, one.y, one.sample_weight)
    found = np.vstack([fits.scores(model, X) for X in (one.X, one.X_new)])
    name = "coef_" if form == "primal" else "dual_coef_"
    setattr(model, name, getattr(model, name) * (1 + 1e-4))
    model.solve_result_ = replace(model.solve_result_, residual=1e-9)
    (message, *more) = fits.judge(one, model, found, None).dishonest
    assert "is reported as 1.0e-09" in message and len(more) == is_logistic
    model.solve_result_ = replace(model.solve_result_, residual=1e-2, status=Status.STALLED)
    assert fits.judge(one, model, found, None).dishonest == ()


@pytest.mark.parametrize(
    ("option", "of_class"), [(option, name) for option, kind in campaign.KINDS.items() for name in kind.classes]
)
def test_trials_of_every_class_are_the_same_each_time_and_honest(option, of_class):
    run = campaign.KINDS[option].run
    for number in (3, 4):
        outcome, again = run(of_class, number), run(of_class, number)
        assert outcome.dishonest == () and str(outcome) == str(again)


SETTINGS = {"form": "dual", "solver": "cholesky", "alpha_per_target": False, "scoring": None, "early_stopping": False}


def as_floats(values):
    return np.vectorize(lambda v: float(v.mid()))(values)


SEARCH = Search("search-ordinary:0", X, Y, np.array([1e-2, 1.0]), RBF(gamma=0.4), False, None, KFold(4), None, SETTINGS)


class TestSearchVerdicts:
    def judged(self, messages=(), best_index=None, **results):
        """What is dishonest of a search whose results are changed: λ (of the best one) or fold 2 of the first λ."""
        made = KernelRidgeCV(SEARCH.alphas, kernel=SEARCH.kernel, cv=SEARCH.cv, **SETTINGS).fit(X, Y)
        self.best = made.best_index_
        if best_index is not None:
            made.best_index_ = best_index(self.best)
        for name, change in results.items():
            at = self.best if name == "residual" else 0
            made.cv_results_[name][at] = change(made.cv_results_[name][at])
        return searches.judge(SEARCH, made, messages).dishonest

    @pytest.mark.parametrize(
        ("change", "said", "warning", "is_excused"),
        [
            (lambda score: score * (1 + 1e-5), "off by 1.0e-05", "scores of alpha = 0.01 are from a residual", True),
            (lambda score: score * (1 + 1e-5), "off by 1.0e-05", "scores of alpha = 0.001 are from a residual", False),
            (lambda _: np.nan, "no score of λ=0.01 fold 2", "alpha = 0.01 is left out", True),
            (lambda _: -np.inf, "fold 2 is -inf", "alpha = 0.01 is left out", False),
        ],
    )
    def test_a_score_that_is_off_or_missing_needs_a_warning_that_names_its_penalty(
        self, change, said, warning, is_excused
    ):
        (message,) = self.judged(split2_test_score=change)
        assert "λ=0.01 fold 2" in message and said in message
        assert self.judged((warning,), split2_test_score=change) == (() if is_excused else (message,))

    def test_a_worse_choice_is_found_and_one_that_was_not_solved(self):
        assert "is chosen with" in self.judged(best_index=lambda best: 1 - best)[0]
        warning = f"scores of alpha = {SEARCH.alphas[self.best]:g} are from a residual"
        assert "systems were not solved" in self.judged((warning,), residual=lambda _: 0.5)[0]


class TestPosteriors:
    def judged(self, one, change=None, warned=()):
        """Outcome of a fit of which one answer is changed by a hundredth."""
        made = KernelRidge(one.alpha, kernel=one.kernel, fit_intercept=one.fit_intercept, form="dual")
        made.fit(one.X, one.y, one.sample_weight)
        asked = {what: ask(question) for what, question in posteriors.questions(one, made).items()}
        if change is not None:
            values = asked[change].values
            wrong = tuple(np.multiply(v, 1.01) for v in values) if isinstance(values, tuple) else values * 1.01
            asked[change] = replace(asked[change], values=wrong, own=warned)
        return posteriors.judge(one, "dual", made, asked)

    def ordinary(self, fit_intercept):
        one = posterior("posterior-ordinary", 0)
        settings = {"form": "dual", "solver": "auto"}
        more = {"y": one.y[:, :1], "sample_weight": None, "settings": settings, "fit_intercept": fit_intercept}
        return replace(one, kernel=RBF(gamma=0.4), alpha=0.1, **more)

    def test_exact_values_are_those_of_a_gaussian_process(self):
        one = self.ordinary(False)
        found = posteriors.Question(one).exact()
        scale = float(found.scales[0].mid())
        process = GaussianProcessRegressor(
            scale * gaussian_kernels.RBF(length_scale=np.sqrt(1 / 0.8)), alpha=scale * one.alpha, optimizer=None
        ).fit(one.X, one.y[:, 0])
        _, std = process.predict(one.all_rows, return_std=True)
        np.testing.assert_allclose(np.sqrt(as_floats(found.variances * found.scales[0])), std, rtol=1e-7)
        assert float(found.likelihood[0].mid()) == pytest.approx(process.log_marginal_likelihood_value_, rel=1e-9)
        other = KernelRidge(one.alpha, kernel=one.kernel).fit(one.X[1:], one.y[1:])
        assert float(found.loo[0, 0].mid()) == pytest.approx((one.y[:1] - other.predict(one.X[:1])).item(), rel=1e-9)

    @pytest.mark.parametrize("fit_intercept", [False, True])
    def test_an_ordinary_fit_is_accurate_and_honest(self, fit_intercept):
        outcome = self.judged(self.ordinary(fit_intercept))
        assert outcome.dishonest == () and set(outcome.errors) == set(posteriors.WHAT)
        assert outcome.errors.pop("bounds") < 1e-4 and max(outcome.errors.values()) < 1e-8

    @pytest.mark.parametrize("what", posteriors.WHAT)
    def test_each_answer_that_is_off_needs_a_warning(self, what):
        (message,) = self.judged(self.ordinary(True), what).dishonest
        assert message.startswith(what) and "off by" in message
        assert self.judged(self.ordinary(True), what, ("may be off",)).dishonest == ()


def test_each_kind_has_its_table_between_its_markers(tmp_path):
    page, kinds = tmp_path / "page.md", campaign.KINDS.values()
    page.write_text("\n".join("\nold\n".join(kind.markers) for kind in kinds))
    options = "--fits 1 --searches 2 --posteriors 1 --first 3 --only ordinary --only search-ordinary"
    arguments = [*f"{options} --only posterior-ordinary --write".split(), str(page)]
    result = CliRunner().invoke(campaign.main, arguments, catch_exceptions=False)
    written = page.read_text()
    assert result.exit_code == 0 and "old" not in written and "| Standard normal rows, λ 1e-4 … 10 | 2 |" in written
    for kind in kinds:
        assert kind.counted in written.split(kind.markers[0])[1].split(kind.markers[1])[0]
    result = CliRunner().invoke(campaign.main, ["--trial", "search-ordinary:3"], catch_exceptions=False)
    assert "search-ordinary:3" in result.stderr and "| searches |" in result.stdout
