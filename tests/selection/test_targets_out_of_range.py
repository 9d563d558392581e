"""Targets whose squares float64 does not hold: everything is as for targets near 1, times a power of two."""

from contextlib import nullcontext

import numpy as np
import pytest
from numpy.testing import assert_allclose

from dkrr import KernelRidge, KernelRidgeCV
from dkrr.kernels import BagOfWords

HUGE, TINY, MODERATE = 2.0**531, 2.0**-1000, 2.0**420
ALPHAS = [100.0, 1.0, 0.1, 0.01, 1e-6]
WAYS = {
    "sums": {"kernel": "poly", "form": "primal"},
    "rows": {"kernel": "linear", "gamma": None, "cv": "loo", "fit_intercept": True},
    "factors": {"solver": "cholesky", "fit_intercept": True},
    "loo": {"cv": "loo"},
    "sweep": {"solver": "cg"},
    "no race": {"solver": "cg", "race": False, "alpha_per_target": True},
    "gradients": {"optimize": "length", "max_evaluations": 3},
    "kernels": {"gamma": [0.1, 1.0], "train_sizes": [0.5]},
    "other scores": {"scoring": "neg_mean_absolute_error"},
}


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, size=(60, 2))
    y = np.sin(2 * X[:, 0]) + 0.1 * rng.standard_normal(60)
    return X, np.column_stack([y, y**2])


def search_of(way, X, Y):
    """Search that keeps predictions; its warnings but for the one of scores out of range are errors."""
    settings = {"kernel": "rbf", "gamma": 1.0, "cv": 3, "store_cv_predictions": True} | WAYS[way]
    is_out = np.abs(Y).max() in (HUGE, TINY) or not 1e-150 < np.abs(Y).max() < 1e150
    warned = pytest.warns(RuntimeWarning, match="scores are 0 or -inf.*scale y") if is_out else nullcontext()
    unfinished = pytest.warns(match="max_evaluations") if way == "gradients" else nullcontext()
    with unfinished, warned if way != "other scores" else nullcontext():
        return KernelRidgeCV(ALPHAS, **settings).fit(X, Y)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", [HUGE, TINY, MODERATE])
def test_selection(rows, way, size):
    X, Y = rows
    expected, found = search_of(way, X, Y), search_of(way, X, size * Y)
    assert np.all(found.alpha_ == expected.alpha_) and found.plan_.form == expected.plan_.form
    assert str(found.best_params_) == str(expected.best_params_)
    order = size if way == "other scores" else size**2 if size == MODERATE else np.inf if size == HUGE else 0.0
    assert_allclose(found.best_score_, np.multiply(order, expected.best_score_))
    for name in ("rank_test_score", "stopped"):
        assert found.cv_results_[name].tolist() == expected.cv_results_[name].tolist()
    if order not in (0.0, np.inf):
        for name in ("mean_test_score", "std_test_score"):
            assert_allclose(found.cv_results_[name], order * expected.cv_results_[name])
    if way == "kernels":
        assert found.learning_curve_["alpha"].tolist() == expected.learning_curve_["alpha"].tolist()
    if size == MODERATE and way == "gradients":
        assert_allclose(found.optimum_.gradients, order * expected.optimum_.gradients)
    assert_allclose(found.cv_predictions_ / size, expected.cv_predictions_, rtol=1e-9)
    assert_allclose(found.predict(X) / size, expected.predict(X), rtol=1e-4)


def test_each_target_by_itself(rows):
    X, Y = rows
    search = KernelRidgeCV(ALPHAS, kernel="rbf", gamma=1.0, alpha_per_target=True, scoring="r2")
    with np.errstate(over="ignore"):
        expected = search.fit(X, Y).cv_results_
        assert_allclose(
            search.fit(X, Y * [2.0**420, 2.0**-430]).cv_results_["mean_test_score"], expected["mean_test_score"]
        )
    search = KernelRidgeCV(ALPHAS, kernel="rbf", gamma=1.0, alpha_per_target=True)
    alphas = search.fit(X, Y).alpha_
    with pytest.warns(RuntimeWarning, match="scores are 0 or -inf"):
        assert np.all(search.fit(X, Y * [HUGE, TINY]).alpha_ == alphas)


def test_kernels_that_learn(rows):
    texts, y = ["aa bb", "bb cc cc", "aa cc", "cc dd dd", "aa aa bb", "dd bb"] * 5, np.tile(rows[1][:6, 0], 5)
    search = KernelRidgeCV([10.0, 1e-3], kernel=BagOfWords(), cv=3)
    expected = search.fit(texts, y).alpha_
    with pytest.warns(RuntimeWarning, match="scores are 0 or -inf"):
        assert search.fit(texts, HUGE * y).alpha_ == expected


@pytest.mark.parametrize(
    "settings", [{"kernel": "linear"}, {"kernel": "rbf"}, {"kernel": "rbf", "solver": "cg"}], ids=str
)
@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("size", [HUGE, TINY, MODERATE])
def test_errors_of_a_fit(rows, settings, fit_intercept, size):
    X, Y = rows
    sizes = np.array([size, 1.0])
    plain, scaled = (KernelRidge(0.1, fit_intercept=fit_intercept, **settings).fit(X, Y * s) for s in (1.0, sizes))
    degrees = 60 - fit_intercept
    assert_allclose(
        scaled.log_marginal_likelihood_, plain.log_marginal_likelihood_ - degrees * np.log(sizes), rtol=1e-12
    )
    for of in (
        lambda model: model.predict(X[:5], return_std=True)[1],
        lambda model: model.loo_residuals_,
        lambda model: np.array(model.predict_interval(X[:5])),
    ):
        assert_allclose(of(scaled) / sizes, of(plain), rtol=1e-9)
    of_s = [one.predict(X[:5], return_std=True, scale=2.0)[1] for one in (plain, scaled)]
    assert_allclose(*of_s, rtol=1e-9), "a given s² does not depend on the targets"
    for found, expected in zip(*(one.predict_variance_bounds(X[:5]) for one in (scaled, plain)), strict=True):
        order = sizes * sizes if size == MODERATE else np.array([np.inf if size == HUGE else 0.0, 1.0])
        assert_allclose(found, expected * order, rtol=1e-6)
