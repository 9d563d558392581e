"""Scores where float64 has few digits left: cases that the campaign found."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.model_selection import KFold

from dkrr import KernelRidge, KernelRidgeCV
from dkrr.errors import ConvergenceWarning, InputError
from dkrr.selection.report import Report


def ordinary(n=30, d=2):
    rng = np.random.default_rng(5)
    X = rng.standard_normal((n, d))
    return X, X[:, 0] + 0.3 * rng.standard_normal(n), rng


def test_squared_errors_by_name_choose_for_targets_whose_squares_overflow():
    X, y, _ = ordinary()
    settings = {"kernel": "rbf", "cv": 3, "scoring": "neg_mean_squared_error"}
    expected = KernelRidgeCV([1e3, 0.1], **settings).fit(X, y).alpha_
    with pytest.warns(RuntimeWarning, match="targets divided by a power of two"):
        assert KernelRidgeCV([1e3, 0.1], **settings).fit(X, y * 1e200).alpha_ == expected == 0.1


def test_scores_that_are_all_infinite_leave_no_choice():
    X, y, _ = ordinary()
    with pytest.raises(InputError, match="all candidates are NaN or -inf.*scale y"):
        KernelRidgeCV([1.0, 0.1], cv=3, scoring=lambda *_: -np.inf).fit(X, y)


def test_a_factor_whose_residual_shows_lost_digits_gives_no_scores():
    X, y, _ = ordinary()
    X[:10] *= 2e5  # a fold that dominates the matrix of all rows
    alphas = np.geomspace(0.1, 1e4, 20)
    with pytest.warns(ConvergenceWarning, match="no scores of alpha = .* where 1.0e-07 is needed"):
        search = KernelRidgeCV(alphas, kernel="linear", form="dual", solver="cholesky", cv=KFold(3)).fit(X, y)
    residuals, has_score = search.cv_results_["residual"], ~np.isnan(search.cv_results_["mean_test_score"])
    assert (has_score == (residuals <= 1e-7)).all()
    assert ((residuals > 1e-7) & (residuals < 1e-6)).any()  # which had scores that were off by a few 1e-6
    models = [KernelRidge(alpha, kernel="linear", form="primal").fit(X[10:], y[10:]) for alpha in alphas]
    expected = np.array([-np.mean((model.predict(X[:10]) - y[:10]) ** 2) for model in models])
    assert_allclose(search.cv_results_["split0_test_score"][has_score], expected[has_score], rtol=5e-6)


def test_a_candidate_that_was_given_up_cannot_win_where_others_were_not_solved():
    report, values = Report(3, 1), np.array([[-1.0], [-3.0], [-2.0]])
    for a, residual in enumerate((1e-1, 1e-9, 1e-2)):
        report.take(a, 0, residual, np.inf if a == 2 else 1e-3)
    report.stopped[2] = True
    (message,) = report.leave_out(values, np.array([10.0, 1.0, 0.1]))
    assert np.isnan(values[[0, 2]]).all() and values[1] == -3.0 and "alpha = 10, 0.1" in message


@pytest.mark.parametrize("seed", [0, 2, 3])
def test_scores_by_conjugate_gradient_are_solved_for_rows_of_ordinary_weight_beside_huge_ones(seed):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((50, 3))
    y, weights = X[:, 0] + 0.3 * rng.standard_normal(50), 10.0 ** rng.uniform(-3, 6, 50)
    settings = {"kernel": "laplacian", "gamma": 0.3, "cv": 3, "fit_intercept": True}
    found, expected = (KernelRidgeCV([1.0, 1e-2], solver=s, **settings).fit(X, y, weights) for s in ("cg", "cholesky"))
    for fold in range(3):  # they were up to 13 % off
        name = f"split{fold}_test_score"
        assert_allclose(found.cv_results_[name], expected.cv_results_[name], rtol=5e-3)
