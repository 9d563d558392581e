"""Scores in the primal form: from sums over the folds where these are accurate, and by predictions elsewhere."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.base import clone
from sklearn.model_selection import KFold, ShuffleSplit, TimeSeriesSplit

from dkrr import KernelRidge, KernelRidgeCV
from dkrr.errors import NotPositiveDefiniteError
from dkrr.selection import primal
from tests.naive_folds import exact_errors, leave_one_out, naive_scores
from tests.nightly.accuracy import searches
from tests.pairs import every_pair

ALPHAS = [100.0, 1.0, 1e-3]
N = 1100
"""Enough for a sample of 5 or 6 features."""


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N, 5)) + 1.0
    Y = X @ rng.standard_normal((5, 2)) + [3.0, 1e3] + 0.3 * rng.standard_normal((N, 2))
    return X, Y, rng.uniform(0.5, 2.0, N) * (rng.uniform(size=N) > 0.1)


def scores_of(search):
    return np.stack([search.cv_results_[f"split{k}_test_score"] for k in range(search.n_splits_)], axis=1)


def search_of(folds, alphas=ALPHAS, **settings):
    return KernelRidgeCV(alphas, kernel="linear", form="primal", cv=folds, refit=False, **settings)


@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("parts", [1, 3])
def test_sums_over_folds_give_the_scores_of_fits(rows, monkeypatch, fit_intercept, parts):
    monkeypatch.setattr(primal, "parts_for_folds", lambda *_: parts)
    X, Y, weights = rows
    Y = Y if fit_intercept else Y - [3.0, 1e3]
    folds = list(KFold(4, shuffle=True, random_state=0).split(X))
    search = search_of(folds, fit_intercept=fit_intercept).fit(X, Y, sample_weight=weights)
    expected = naive_scores(X, Y, folds, ALPHAS, weights, kernel="linear", fit_intercept=fit_intercept)
    assert_allclose(scores_of(search), expected, rtol=1e-9)


def test_sums_that_cancel_are_not_taken(rows):
    X, Y, _ = rows
    Y = X @ np.ones((5, 2)) + 1e-7 * Y
    folds = list(KFold(4).split(X))
    alphas = [1e5, 10.0, 1e-8]
    search = search_of(folds, alphas).fit(X, Y)
    assert_allclose(scores_of(search), naive_scores(X, Y, folds, alphas, kernel="linear"), rtol=1e-9)


@every_pair(folds=["overlapping", "partial", "growing"], parts=[1, 2])
def test_folds_that_are_not_a_partition_have_the_scores_of_fits(rows, monkeypatch, folds, parts):
    monkeypatch.setattr(primal, "parts_for_folds", lambda *_: parts)
    X, Y, weights = rows
    everything = np.arange(N)
    tests = [everything[:300], everything[200:500]] if folds == "overlapping" else [everything[7:300], everything[400:]]
    pairs = [(np.setdiff1d(everything, test), test) for test in tests]
    pairs = list(TimeSeriesSplit(3).split(X)) if folds == "growing" else pairs
    search = search_of(pairs, fit_intercept=True).fit(X, Y, sample_weight=weights)
    expected = naive_scores(X, Y, pairs, ALPHAS, weights, kernel="linear", fit_intercept=True)
    assert_allclose(scores_of(search), expected, rtol=1e-9)


def test_other_scores_take_predictions_in_several_segments(rows, monkeypatch):
    monkeypatch.setattr(primal, "parts_for_folds", lambda *_: 3)
    X, Y, _ = rows
    folds = list(ShuffleSplit(3, random_state=0).split(X))
    search = search_of(folds, scoring="r2", store_cv_predictions=True).fit(X, Y[:, 0])
    variances = [np.var(Y[test, 0]) for _, test in folds]
    expected = naive_scores(X, Y[:, 0], folds, ALPHAS, kernel="linear")
    assert_allclose(1 - scores_of(search), -expected / variances, rtol=1e-9)
    assert search.cv_predictions_.shape == (N,)


@pytest.mark.parametrize("number", range(6))
@pytest.mark.parametrize("of_class", ["search-dominated", "search-leverage", "search-weights", "search-offset"])
def test_scores_that_float64_strains_are_right_in_180_digits_or_left_out(of_class, number):
    assert searches.run(searches.search(of_class, number)).dishonest == ()


def with_leverages_of_1(case):
    """Rows, targets and weights, and which rows have a leverage near 1."""
    rng = np.random.default_rng(1)
    X, Y, near = rng.standard_normal((14, 3)), rng.standard_normal((14, 2)), [7, 9, 11]
    if case == "square":
        return rng.standard_normal((6, 6)), Y[:6], None, np.arange(6)
    if case == "weight":
        return X, Y, np.r_[0.0, np.ones(6), 1e14, np.ones(6)], [7]
    if case == "alone":
        X[:, 2], near = 1e6 * (np.arange(14) == 7), [7]
    else:
        X[near] *= 1e6
    return X, Y, None, near


@pytest.mark.parametrize("case", ["alone", "several", "weight", "square"])
@pytest.mark.parametrize("fit_intercept", [False, True])
def test_rows_with_a_leverage_near_1_have_the_errors_of_models_without_them(case, fit_intercept, monkeypatch):
    X, Y, weights, near = with_leverages_of_1(case)
    alphas, settings, searches = [1.0, 1e-6], {"fit_intercept": fit_intercept}, []
    for parts, keeps in ((1, True), (1, False), (3, False)):
        monkeypatch.setattr(primal, "parts_for_folds", lambda *_, parts=parts: parts)
        search = search_of("loo", alphas, store_cv_predictions=keeps, **settings)
        searches.append(search.fit(X, Y, sample_weight=weights))
    for a, alpha in enumerate(alphas):
        errors = np.vstack(exact_errors(X, Y, leave_one_out(len(X)), alpha, weights, **settings))
        score = -np.mean(np.average(errors**2, axis=0, weights=weights))
        for search in searches:
            assert_allclose(search.cv_results_["mean_test_score"][a], score, rtol=1e-9)
        model = KernelRidge(alpha, kernel="linear", form="primal", **settings).fit(X, Y, sample_weight=weights)
        assert_allclose(model.loo_residuals_[near], errors[near], rtol=1e-8)
        # A fit with the large rows keeps few digits of the others.
        assert_allclose(model.loo_residuals_, errors, rtol=1e-8, atol=0.1)
        if alpha == searches[0].alpha_:
            assert_allclose(searches[0].cv_predictions_[near], (Y - errors)[near], rtol=1e-8)


@pytest.mark.parametrize("solver", ["cholesky", "cg"])
@pytest.mark.parametrize("estimator", [KernelRidge(1.0), KernelRidgeCV([1.0])], ids=["fit", "search"])
def test_the_dual_form_names_alpha_and_the_scale_of_the_data(estimator, solver):
    rng = np.random.default_rng(1)
    X, y = rng.standard_normal((60, 3)) * np.r_[np.full(12, 1e8), np.ones(48)][:, None], rng.standard_normal(60)
    message = r"alpha = 1[:.].*increase alpha.*k\(x, x\) is up to 1\.1e\+17.*form='primal'"
    with pytest.raises(NotPositiveDefiniteError, match=message):
        clone(estimator).set_params(kernel="linear", form="dual", solver=solver).fit(X, y)


@pytest.mark.parametrize("fit_intercept", [False, True])
def test_the_primal_form_names_them_too(fit_intercept):
    X, y = np.random.default_rng(1).standard_normal((2, 60, 3))
    X[0] *= 1e12
    with pytest.raises(NotPositiveDefiniteError, match=r"alpha = 1:.*k\(x, x\) is up to .*e\+2\d.*one scale$"):
        KernelRidgeCV([1.0], kernel="linear", form="primal", fit_intercept=fit_intercept).fit(X, y[:, 0])
