"""KernelRidgeCV against one fit after another, whatever way the plan takes."""

import dask.array as da
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.kernel_ridge import KernelRidge as SkKernelRidge
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import GridSearchCV, GroupKFold, KFold, LeaveOneOut, ShuffleSplit, TimeSeriesSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dkrr import KernelLogisticRegressionCV, KernelRidge, KernelRidgeCV
from dkrr.errors import ConvergenceWarning, InputError, MemoryLimitError, NotPositiveDefiniteError
from dkrr.features import Nystroem
from dkrr.kernels import RBF, BagOfWords
from dkrr.solvers import ConjugateGradient, RPCholesky
from tests.estimators.checks import every_check
from tests.pairs import every_pair
from tests.selection.naive import leave_one_out, naive_predictions, naive_scores

ALPHAS = [10.0, 1e-3, 0.3]
TIGHT = {"cv_tol": 1e-11, "race": False}
WAYS = {
    "sweep": {"kernel": "rbf", "solver": "cg"},
    "sweep without preconditioner": {"kernel": "rbf", "solver": ConjugateGradient(preconditioner=None)},
    "sweep of low rank": {"kernel": "laplacian", "solver": ConjugateGradient(preconditioner=RPCholesky(rank=20))},
    "factors": {"kernel": "rbf", "solver": "cholesky"},
    "factors in tiles": {"kernel": "rbf", "solver": "cholesky", "tile": 40},
    "primal": {"kernel": "linear", "form": "primal"},
    "primal polynomial": {"kernel": "polynomial", "degree": 2, "form": "primal"},
}


def scores_of(search):
    """Scores of every λ and fold."""
    n = search.n_splits_
    return np.stack([search.cv_results_[f"split{k}_test_score"] for k in range(n)], axis=1)


def settings_of_fit(way):
    return {k: v for k, v in way.items() if k in ("kernel", "degree", "gamma")}


@pytest.fixture
def y(data):
    return data.y[:, 0]


@every_pair(way=list(WAYS), fit_intercept=[False, True], weighted=[False, True], ids=str)
def test_scores_of_folds_are_those_of_separate_fits(data, way, fit_intercept, weighted):
    weights = data.weights if weighted else None
    folds = list(KFold(4, shuffle=True, random_state=1).split(data.X))
    accuracy = TIGHT if way != "sweep without preconditioner" else TIGHT | {"cv_tol": 1e-6}  # the constant is far away
    search = KernelRidgeCV(ALPHAS, cv=folds, fit_intercept=fit_intercept, **accuracy, **WAYS[way])
    search.fit(data.X, data.y, sample_weight=weights)
    expected = naive_scores(
        data.X, data.y, folds, ALPHAS, weights, fit_intercept=fit_intercept, **settings_of_fit(WAYS[way])
    )
    assert_allclose(scores_of(search), expected, rtol=1e-6)
    assert_allclose(search.cv_results_["mean_test_score"], expected.mean(axis=1), rtol=1e-6)
    assert_allclose(search.cv_results_["std_test_score"], expected.std(axis=1), rtol=1e-5)
    best = int(np.argmax(expected.mean(axis=1)))
    assert search.alpha_ == search.best_params_["alpha"] == ALPHAS[best] and search.best_index_ == best
    assert search.best_score_ == search.cv_results_["mean_test_score"][best]
    refit = KernelRidge(alpha=ALPHAS[best], fit_intercept=fit_intercept, **settings_of_fit(WAYS[way]))
    refit.fit(data.X, data.y, sample_weight=weights)
    assert_allclose(search.predict(data.X_new), refit.predict(data.X_new), rtol=1e-6, atol=1e-8)


@every_pair(
    way=[way for way in WAYS if "sweep" not in way], fit_intercept=[False, True], weighted=[False, True], ids=str
)
def test_leave_one_out_is_n_fits(data, way, fit_intercept, weighted):
    X, Y = data.X[:45], data.y[:45]
    weights = data.weights[:45] if weighted else None
    search = KernelRidgeCV(
        ALPHAS, cv="loo", fit_intercept=fit_intercept, store_cv_predictions=True, **TIGHT, **WAYS[way]
    )
    search.fit(X, Y, sample_weight=weights)
    folds, settings = leave_one_out(45), settings_of_fit(WAYS[way]) | {"fit_intercept": fit_intercept}
    expected = [np.vstack(naive_predictions(X, Y, folds, alpha, weights, **settings)) for alpha in ALPHAS]
    scores = [-np.average(((Y - p) ** 2).mean(axis=1), weights=weights) for p in expected]
    assert_allclose(search.cv_results_["mean_test_score"], scores, rtol=1e-7)
    assert_allclose(search.cv_predictions_, expected[int(np.argmax(scores))], rtol=1e-6, atol=1e-9)
    assert not any(name.startswith("split") for name in search.cv_results_)


def test_leave_one_out_of_ridge_cv(data, y):
    peer = RidgeCV(ALPHAS, fit_intercept=True, store_cv_results=True).fit(data.X, y)
    search = KernelRidgeCV(ALPHAS, kernel="linear", cv=None, fit_intercept=True).fit(data.X, y)
    assert search.alpha_ == peer.alpha_
    assert_allclose(search.cv_results_["mean_test_score"], -peer.cv_results_.mean(axis=0), rtol=1e-9)


@pytest.mark.parametrize(
    "cv",
    [
        3,
        KFold(4, shuffle=True, random_state=0),
        ShuffleSplit(3, test_size=0.3, random_state=0),
        TimeSeriesSplit(3),
        [(np.arange(60), np.arange(55, 100))],
        LeaveOneOut(),
    ],
    ids=lambda cv: type(cv).__name__,
)
def test_as_grid_search(data, y, cv):
    grid = {"alpha": ALPHAS, "gamma": [0.1, 0.5]}
    X, y = data.X[:100], y[:100]
    peer = GridSearchCV(SkKernelRidge(kernel="rbf"), grid, cv=cv, scoring="neg_mean_squared_error").fit(X, y)
    search = KernelRidgeCV(ALPHAS, gamma=[0.1, 0.5], cv=cv, **TIGHT).fit(X, y)
    assert search.best_params_ == {"kernel": "rbf"} | peer.best_params_
    assert search.best_score_ == pytest.approx(peer.best_score_, rel=1e-6)
    results = search.cv_results_
    found = {str(sorted(p.items())): s for p, s in zip(results["params"], results["mean_test_score"], strict=True)}
    for parameters, score in zip(peer.cv_results_["params"], peer.cv_results_["mean_test_score"], strict=True):
        assert found[str(sorted(parameters.items()))] == pytest.approx(score, rel=1e-6)
    assert search.cv_results_["rank_test_score"][search.best_index_] == 1


def test_groups(data, y):
    groups = np.arange(211) % 7
    search = KernelRidgeCV(ALPHAS, cv=GroupKFold(3), **TIGHT).fit(data.X, y, groups=groups)
    folds = list(GroupKFold(3).split(data.X, y, groups))
    assert_allclose(scores_of(search), naive_scores(data.X, y, folds, ALPHAS, kernel="rbf"), rtol=1e-6)


@pytest.mark.parametrize("scoring", ["r2", "neg_mean_absolute_error", "neg_median_absolute_error"])
@pytest.mark.parametrize("solver", ["cg", "cholesky"])
def test_scorers(data, y, scoring, solver):
    search = KernelRidgeCV(ALPHAS, cv=3, scoring=scoring, solver=solver, **TIGHT).fit(data.X, y)
    peer = GridSearchCV(SkKernelRidge(kernel="rbf"), {"alpha": ALPHAS}, cv=3, scoring=scoring).fit(data.X, y)
    assert_allclose(search.cv_results_["mean_test_score"], peer.cv_results_["mean_test_score"], rtol=1e-6)


def test_own_scorer(data):
    def worst(estimator, X, Y):
        assert X.shape == (len(Y), 1)
        return -np.abs(estimator.predict(X) - Y).max()

    search = KernelRidgeCV(ALPHAS, cv=3, scoring=worst, **TIGHT).fit(data.X, data.y)
    folds = list(KFold(3).split(data.X))
    found = [
        [-np.abs(p - data.y[test]).max() for (_, test), p in zip(folds, predictions, strict=True)]
        for predictions in (naive_predictions(data.X, data.y, folds, alpha, kernel="rbf") for alpha in ALPHAS)
    ]
    assert_allclose(scores_of(search), found, rtol=1e-6)


@pytest.mark.parametrize("solver", ["cg", "cholesky"])
def test_every_target_has_its_own_alpha(data, solver):
    search = KernelRidgeCV(ALPHAS, cv=3, alpha_per_target=True, solver=solver, **TIGHT).fit(data.X, data.y)
    for j in range(3):
        alone = KernelRidgeCV(ALPHAS, cv=3, solver=solver, **TIGHT).fit(data.X, data.y[:, j])
        assert search.alpha_[j] == alone.alpha_ and search.best_index_[j] == alone.best_index_
        assert search.best_score_[j] == pytest.approx(alone.best_score_, rel=1e-6)
        assert_allclose(search.predict(data.X_new)[:, j], alone.predict(data.X_new), rtol=1e-6, atol=1e-6)
    assert len(set(search.alpha_)) > 1
    assert search.cv_results_["mean_test_score_per_target"].shape == (3, 3)


@pytest.mark.parametrize("per_target", [False, True])
@pytest.mark.parametrize("fit_intercept", [False, True])
def test_the_last_fit_continues_from_the_columns_of_all_rows(data, fit_intercept, per_target):
    settings = {"kernel": "rbf", "solver": "cg", "fit_intercept": fit_intercept, "tol": 1e-9}
    search = KernelRidgeCV(ALPHAS, alpha_per_target=per_target, **settings)
    search.fit(data.X, data.y, sample_weight=data.weights)
    alone = KernelRidge(alpha=search.alpha_, **settings).fit(data.X, data.y, sample_weight=data.weights)
    result = search.solve_result_
    assert result.iterations == 0 < alone.solve_result_.iterations and result.residual <= 1e-9
    assert "continued from the solution for all rows" in result.messages[0]
    assert_allclose(search.predict(data.X_new), alone.predict(data.X_new), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("alphas", [ALPHAS, ALPHAS[::-1]], ids=["given", "reversed"])
def test_candidates_with_the_same_score(data, y, alphas):
    settings = {"kernel": "rbf", "solver": "cg", "fit_intercept": True, "tol": 1e-9}
    search = KernelRidgeCV(alphas, scoring=lambda *_: 1.0, **settings).fit(data.X, y)
    assert search.alpha_ == alphas[0]
    alone = KernelRidge(alpha=search.alpha_, **settings).fit(data.X, y)
    assert_allclose(search.predict(data.X_new), alone.predict(data.X_new), rtol=1e-7, atol=1e-9)


def test_the_last_fit_of_several_kernels_continues(data, y):
    search = KernelRidgeCV(ALPHAS, gamma=[0.01, 0.3], solver="cg").fit(data.X, y)
    alone = KernelRidge(alpha=search.alpha_, kernel="rbf", gamma=search.best_params_["gamma"], solver="cg")
    alone.fit(data.X, y)
    assert 0 < search.solve_result_.iterations < alone.solve_result_.iterations
    assert_allclose(search.predict(data.X_new), alone.predict(data.X_new), rtol=1e-6, atol=1e-8)


def test_targets_in_several_runs(data, monkeypatch):
    whole = KernelRidgeCV(ALPHAS, cv=2, solver="cg", fit_intercept=True, **TIGHT).fit(data.X, data.y)
    monkeypatch.setattr("dkrr.planning.selection.MAX_COLUMNS", 18)  # two of the three targets
    search = clone(whole).fit(data.X, data.y)
    assert search.selection_plan_.plan.problem.n_targets == 2
    assert_allclose(scores_of(search), scores_of(whole), rtol=1e-8)


@pytest.mark.parametrize("cv_tol", [1e-3, 1e-6], ids=["one cycle", "several"])
def test_lambda_that_have_lost_are_stopped(data, y, cv_tol):
    rng = np.random.default_rng(1)
    noisy = y + 0.5 * rng.standard_normal(len(y))
    alphas = np.geomspace(1e-9, 100, 12)
    every = KernelRidgeCV(alphas, solver="cg", race=False, cv_tol=cv_tol).fit(data.X, noisy)
    raced = KernelRidgeCV(alphas, solver="cg", cv_tol=cv_tol).fit(data.X, noisy)
    assert raced.alpha_ == every.alpha_ and raced.best_score_ == pytest.approx(every.best_score_, rel=1e-3)
    stopped = raced.cv_results_["stopped"]
    assert 0 < stopped.sum() <= 9 and not every.cv_results_["stopped"].any()
    assert alphas[stopped].max() < alphas[~stopped].min()
    unknown = raced.cv_results_["residual"] > 1e-2
    assert_array_equal(np.isnan(raced.cv_results_["mean_test_score"]), stopped & unknown)
    assert unknown.any()
    assert raced.cv_results_["iterations"].max() < every.cv_results_["iterations"].max()
    assert raced.cv_results_["residual"][~stopped].max() <= 1e-3


@pytest.mark.parametrize("race", [False, True])
@pytest.mark.parametrize(
    ("offset", "noise"), [(1e3, 0.0), (100.0, 0.01), (0.0, 0.0)], ids=["far from 0", "noisy and far from 0", "no noise"]
)
def test_errors_far_smaller_than_the_targets(race, offset, noise):
    """A residual of 1e-3 of them would hide the errors."""
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 10, (200, 1))
    y = offset + np.sin(X[:, 0]) + noise * rng.standard_normal(200)
    alphas, settings = np.geomspace(1e-6, 1e3, 10), {"gamma": 1.0}
    exact = KernelRidgeCV(alphas, solver="cholesky", **settings).fit(X, y)
    search = KernelRidgeCV(alphas, solver="cg", race=race, **settings).fit(X, y)
    assert search.alpha_ == exact.alpha_
    assert search.best_score_ == pytest.approx(exact.best_score_, rel=0.02)


def test_targets_in_several_runs_do_not_race_for_all(monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 6, (200, 1))
    Y = np.hstack([rng.normal(size=(200, 4)), 3 * np.sin(3 * X) + 0.01 * rng.normal(size=(200, 4))])
    settings = {"gamma": 2.0, "solver": "cg", "refit": False}
    whole = KernelRidgeCV(np.geomspace(1e-5, 1e2, 10), race=False, **settings).fit(X, Y)
    monkeypatch.setattr("dkrr.planning.selection.MAX_COLUMNS", 200)
    search = KernelRidgeCV(np.geomspace(1e-5, 1e2, 10), **settings).fit(X, Y)
    assert search.selection_plan_.plan.problem.n_targets == 4
    assert search.alpha_ == whole.alpha_ and search.best_score_ == pytest.approx(whole.best_score_, rel=1e-3)


def test_a_loose_tolerance_gives_the_scores(data, y):
    loose = KernelRidgeCV(ALPHAS, solver="cg").fit(data.X, y)
    exact = KernelRidgeCV(ALPHAS, solver="cholesky").fit(data.X, y)
    found, expected = (search.cv_results_["mean_test_score"] for search in (loose, exact))
    assert_allclose(found, expected, rtol=1e-3)


@pytest.mark.parametrize("kernel", ["polynomial", RBF(gamma=0.3), "matern", lambda X, Y: np.exp(-((X @ Y.T) ** 2))])
def test_kernels(data, y, kernel):
    if callable(kernel) and not isinstance(kernel, RBF):
        kernel = lambda X, Y: (1.0 + X @ Y.T) ** 2 / 10.0  # noqa: E731
    search = KernelRidgeCV([0.1, 1.0], kernel=kernel, cv=3, form="dual", **TIGHT).fit(data.X, y)
    folds = list(KFold(3).split(data.X))
    assert_allclose(scores_of(search), naive_scores(data.X, y, folds, [0.1, 1.0], kernel=kernel), rtol=1e-6)


def test_precomputed(data, y):
    K = RBF(gamma=0.2)(data.X)
    search = KernelRidgeCV(ALPHAS, kernel="precomputed", cv=4, **TIGHT).fit(K, y)
    plain = KernelRidgeCV(ALPHAS, kernel=RBF(gamma=0.2), cv=4, **TIGHT).fit(data.X, y)
    assert_allclose(scores_of(search), scores_of(plain), rtol=1e-9)
    assert_allclose(search.predict(K[:5]), plain.predict(data.X[:5]), rtol=1e-6)


def test_centres_are_drawn_for_every_fold(data, y):
    search = KernelRidgeCV(ALPHAS, kernel=Nystroem(RBF(gamma=0.2), 20), cv=3, **TIGHT).fit(data.X, y)
    assert search.selection_plan_.method == "refits"
    folds = list(KFold(3).split(data.X))
    expected = naive_scores(data.X, y, folds, ALPHAS, kernel=Nystroem(RBF(gamma=0.2), 20))
    assert_allclose(scores_of(search), expected, rtol=1e-6)
    with pytest.raises(InputError, match=r"leave-one-out.*fitted to the training rows.*cv=5"):
        KernelRidgeCV(kernel=Nystroem(RBF(), 20), cv="loo").fit(data.X, y)


def test_documents_learn_their_words_in_every_fold():
    texts = [
        f"{a} {b}" for a in ("one two", "two three", "four") for b in ("red", "red blue", "green", "blue one", "six")
    ]
    y = np.arange(15.0) % 4
    search = KernelRidgeCV(ALPHAS, kernel=BagOfWords(), cv=3, store_cv_predictions=True).fit(texts, y)
    expected = np.empty((3, 3))
    for a, alpha in enumerate(ALPHAS):
        for k, (train, test) in enumerate(KFold(3).split(texts)):
            model = KernelRidge(alpha=alpha, kernel=BagOfWords()).fit([texts[i] for i in train], y[train])
            expected[a, k] = -np.mean((y[test] - model.predict([texts[i] for i in test])) ** 2)
    assert_allclose(scores_of(search), expected, rtol=1e-6)
    whole = KernelRidge(alpha=search.alpha_, kernel=BagOfWords()).fit(texts, y)
    assert_allclose(search.predict(texts), whole.predict(texts))
    assert_allclose(search.predict(texts, return_std=True)[1], whole.predict(texts, return_std=True)[1])
    with pytest.raises(InputError, match=r"leave-one-out.*learns from the training rows.*cv=5"):
        KernelRidgeCV(kernel=BagOfWords(), cv="loo").fit(texts, y)


@pytest.mark.parametrize("make", [da.from_array, np.asarray])
def test_centres_never_see_the_rows_that_are_held_out(data, y, make):
    search = KernelRidgeCV(ALPHAS, kernel=Nystroem(RBF(gamma=0.2), 20), cv=3, **TIGHT).fit(make(data.X), y)
    expected = naive_scores(data.X, y, list(KFold(3).split(y)), ALPHAS, kernel=Nystroem(RBF(gamma=0.2), 20))
    assert_allclose(scores_of(search), expected, rtol=1e-6)


@pytest.mark.parametrize("solver", ["cg", "cholesky"])
def test_several_kernels(data, y, solver):
    settings = {"kernel": ["rbf", "laplacian"], "gamma": [0.1, 1.0], "cv": 3, "solver": solver}
    search = KernelRidgeCV(ALPHAS, **settings, **TIGHT).fit(data.X, y)
    assert len(search.cv_results_["params"]) == 12
    assert set(search.best_params_) == {"alpha", "kernel", "gamma"}
    row = search.best_index_
    assert search.cv_results_["params"][row] == search.best_params_
    assert not np.ma.is_masked(search.cv_results_["param_gamma"])
    folds = list(KFold(3).split(data.X))
    best = dict(search.best_params_)
    expected = naive_scores(data.X, y, folds, [best.pop("alpha")], **best)
    assert search.best_score_ == pytest.approx(expected.mean(), rel=1e-6)
    assert search.cv_results_["param_kernel"][row] == search.best_params_["kernel"]


def double(A, B, factor=2.0):
    return factor * A @ B.T


@pytest.mark.parametrize(
    "settings",
    [
        {"gamma": [0.1, 1.0]},
        {"kernel": "poly", "degree": [1, 2], "coef0": 2.0, "gamma": 0.1, "fit_intercept": True},
        {"kernel": ["linear", "poly", RBF(0.3) + RBF(3.0)], "gamma": [0.1, 0.3], "degree": 2, "alpha_per_target": True},
        {"kernel": "matern", "kernel_params": {"nu": 2.5, "length_scale": 2.0}, "transformer": "standardize"},
        {"kernel": double, "kernel_params": {"factor": 3.0}},
        {"optimize": "length"},
        {"kernel": [Nystroem(RBF(0.2), 20), "linear"]},
    ],
    ids=["gamma", "poly", "several", "matern", "function", "optimize", "nystroem"],
)
@pytest.mark.filterwarnings("ignore:the search for lengths and alpha has not converged")
def test_the_best_parameters_are_the_chosen_model(data, settings):
    settings = settings | {"cv": 3}
    search = KernelRidgeCV([1e-2, 1.0], **settings).fit(data.X, data.y)
    model = KernelRidge(**search.best_params_).fit(data.X, data.y)
    assert_allclose(model.predict(data.X_new), search.predict(data.X_new), rtol=1e-5, atol=1e-6)
    assert {"alpha", "kernel"} <= set(search.best_params_)


def test_a_parameter_goes_with_the_kernels_that_have_it(data, y):
    search = KernelRidgeCV([0.1, 1.0], kernel=["linear", "rbf"], gamma=[0.1, 1.0], cv=3, refit=False).fit(data.X, y)
    assert [p.get("gamma") for p in search.cv_results_["params"]] == [None, None, 0.1, 0.1, 1.0, 1.0]
    assert np.ma.getmaskarray(search.cv_results_["param_gamma"]).tolist() == [True] * 2 + [False] * 4
    for change in ({"kernel": "linear", "gamma": [0.1, 1.0]}, {"kernel": ["linear", "rbf"], "degree": 2}):
        with pytest.raises(InputError, match=r"(gamma|degree) is .*, which .* (does not have|has); expected"):
            KernelRidgeCV([0.1], **change).fit(data.X, y)


def test_the_search_says_where_the_best_is_at_an_end(data, y):
    inside = KernelRidgeCV(np.geomspace(1e-6, 1e3, 9), gamma=0.2).fit(data.X, y)
    assert inside.advice_ == ()
    search = KernelRidgeCV([10.0, 30.0, 100.0], gamma=[10.0, 20.0, 30.0]).fit(data.X, y)
    assert [text.partition(":")[0] for text in search.advice_] == [
        "the best alpha is the smallest of the candidates, 10",
        "the best gamma is the smallest of the candidates, 10",
    ]
    assert search.solve_result_.messages[-2:] == search.advice_
    each = KernelRidgeCV([10.0, 30.0, 100.0], gamma=0.2, alpha_per_target=True).fit(data.X, data.y)
    count = np.count_nonzero(each.alpha_ == 10.0)
    assert 0 < count < 3 and f"10, for {count} of 3 targets" in each.advice_[0]
    assert not any("alpha" in text for text in KernelRidgeCV([10.0, 30.0]).fit(data.X, y).advice_), "of two one is"


@pytest.mark.parametrize("offset", [0.0, 30.0])
def test_the_search_says_that_a_constant_is_missing(data, y, offset):
    settings = {"kernel": "linear", "cv": 3}
    search = KernelRidgeCV([0.1, 1.0], **settings).fit(data.X, np.column_stack([y, y + offset]))
    found = [text for text in search.advice_ if "fit_intercept=True" in text]
    assert len(found) == (offset > 0)
    if offset:
        target = y + offset
        assert f"of target 1 (counted from 0) is {target.mean():.3g} and their standard" in found[0]
        variance = np.var(y)
        assert f"R² is {1 + search.best_score_ / variance:.3g}" in found[0]
    assert not KernelRidgeCV([0.1, 1.0], fit_intercept=True, **settings).fit(data.X, y + offset).advice_


@pytest.mark.parametrize("kernel", ["rbf", "words", "classes"])
def test_a_search_has_one_line_of_progress(data, y, kernel, capsys):
    settings = {"cv": 3, "progress": True}
    if kernel == "words":
        texts = ["win money now", "meeting at noon", "money prize win", "lunch at noon"] * 5
        KernelRidgeCV([0.01, 0.1], kernel=[BagOfWords(), 2.0 * BagOfWords()], **settings).fit(texts, [1.0, 0.0] * 10)
    elif kernel == "classes":
        KernelLogisticRegressionCV([0.1, 1.0], gamma=[0.1, 1.0], kernel="rbf", **settings).fit(data.X, y > 0)
    else:
        search = KernelRidgeCV([0.1, 1.0], gamma=[0.1, 1.0], train_sizes=[0.5], optimize="length", **settings)
        search.fit(data.X, y)
    lines = capsys.readouterr().err.splitlines()
    stages = [line for line in lines if "done in" in line]
    assert len(stages) == 1 and "search: done in" in stages[0], lines


def test_default_alphas_follow_the_scale_of_the_data(data, y):
    small = KernelRidgeCV(kernel="linear", form="dual", cv=3).fit(data.X, y)
    large = KernelRidgeCV(kernel="linear", form="dual", cv=3).fit(1000 * data.X, y)
    alphas = [[p["alpha"] for p in search.cv_results_["params"]] for search in (small, large)]
    assert len(alphas[0]) == 10 and alphas[0][0] > 0
    assert_allclose(np.array(alphas[1]), 1e6 * np.array(alphas[0]))


@pytest.mark.parametrize("make", [da.from_array, lambda X: X.astype(np.float32)])
def test_containers(data, y, make):
    search = KernelRidgeCV(ALPHAS, cv=3, **TIGHT).fit(make(data.X), y)
    plain = KernelRidgeCV(ALPHAS, cv=3, **TIGHT).fit(data.X, y)
    assert_allclose(scores_of(search), scores_of(plain), rtol=1e-4)


def test_a_step_of_a_pipeline(data, y):
    pipe = make_pipeline(StandardScaler(), KernelRidgeCV(ALPHAS, cv=3)).fit(data.X, y)
    assert pipe.score(data.X, y) > 0.5 and pipe[-1].alpha_ in ALPHAS


def test_without_refit(data, y):
    search = KernelRidgeCV(ALPHAS, cv=3).fit(data.X, y).set_params(refit=False).fit(data.X, -y)
    assert search.alpha_ in ALPHAS and not hasattr(search, "dual_coef_")
    with pytest.raises(Exception, match="not fitted"):
        search.predict(data.X)


def test_predictions_of_rows_that_were_left_out(data):
    search = KernelRidgeCV(ALPHAS, cv=TimeSeriesSplit(3), store_cv_predictions=True, **TIGHT).fit(data.X, data.y)
    folds = list(TimeSeriesSplit(3).split(data.X))
    found = search.cv_predictions_
    assert np.isnan(found[: folds[0][1][0]]).all()
    expected = naive_predictions(data.X, data.y, folds, search.alpha_, kernel="rbf")
    assert_allclose(found[folds[0][1][0] :], np.vstack(expected), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("solver", ["cg", "cholesky"])
def test_on_workers(data, y, ambient_workers, solver):
    # Every iteration takes round trips.
    X, y, alphas, accuracy = data.X[:100], y[:100], [10.0, 0.3], TIGHT | {"cv_tol": 1e-7}
    search = KernelRidgeCV(alphas, cv=2, solver=solver, tile=50, **accuracy).fit(X, y)
    assert search.selection_plan_.plan.execution == "dask"
    folds = list(KFold(2).split(X))
    assert_allclose(scores_of(search), naive_scores(X, y, folds, alphas, kernel="rbf"), rtol=1e-6)


@pytest.mark.parametrize("solver", ["cg", "cholesky"])
def test_a_store_is_resumed(data, y, tmp_path, solver):
    settings = {"cv": 3, "solver": solver, "store": str(tmp_path / "run")} | TIGHT
    first = KernelRidgeCV(ALPHAS, **settings).fit(data.X, y)
    again = KernelRidgeCV(ALPHAS, **settings).fit(data.X, y)
    assert_allclose(scores_of(again), scores_of(first), rtol=1e-9)
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == ["fit", "kernel-0"]
    with pytest.raises(Exception, match="(?i)another|other|differ"):
        KernelRidgeCV(ALPHAS, **(settings | {"cv": 4})).fit(data.X, y)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"alphas": []}, "alphas has shape"),
        ({"alphas": [-1.0]}, "alphas is .*>= 0"),
        ({"alphas": "many"}, "alphas is 'many'; expected numbers"),
        ({"cv": 1}, "cv is 1; expected a number of folds of at least 2"),
        ({"cv": 500}, "cv is 500.*n_samples=211.*at most as many folds as rows"),
        ({"cv": "kfold"}, "cv is 'kfold'; expected"),
        ({"cv": [([], [1, 2])]}, "fold 0.*no training rows"),
        ({"cv": [([1, 2], [])]}, "fold 0.*no test rows"),
        ({"cv": [([1, 2], [300])]}, "fold 0.*test row 300, and X has 211 rows"),
        ({"cv": [([1, 1], [3])]}, "fold 0.*training row twice"),
        ({"cv": [([0.5], [3])]}, "fold 0.*expected row numbers"),
        ({"cv": GroupKFold(3)}, "cv=.*cannot split 211 rows.*groups"),
        ({"scoring": "accuracies"}, "scoring is 'accuracies'; expected"),
        ({"scoring": "roc_auc"}, "scoring='roc_auc' needs .*expected a score of predictions"),
        ({"cv_tol": 2.0}, "tol is 2.0"),
        ({"gamma": []}, "gamma is an empty list"),
        ({"gamma": [0.1, -1.0]}, "gamma"),
        ({"cv": "loo", "solver": "cg"}, "leave-one-out takes a Cholesky factor.*cv=5"),
        ({"cv": TimeSeriesSplit(3), "solver": "cholesky"}, "folds that do not train on exactly the rows.*'cg'"),
    ],
)
def test_bad_input(data, y, change, message):
    with pytest.raises(InputError, match=message):
        KernelRidgeCV(**change).fit(data.X, y)


def test_folds_without_weight(data, y):
    weights = np.ones(211)
    weights[:80] = 0.0
    with pytest.raises(InputError, match=r"fold 0 .*holds out no row of positive sample_weight"):
        KernelRidgeCV(cv=3).fit(data.X, y, sample_weight=weights)


def test_lambda_of_zero_on_equal_rows_is_named(data, y):
    X = data.X.copy()
    X[137] = X[60]
    with pytest.raises(NotPositiveDefiniteError, match="alpha = 0"):
        KernelRidgeCV([1.0, 0.0], gamma=3.0, solver="cholesky", cv=3).fit(X, y)


@pytest.mark.parametrize("tile", [None, 50])
def test_scores_of_a_system_that_is_ill_conditioned_are_left_out(data, y, tile):
    X = data.X.copy()
    X[100] = X[3]  # rounding leaves a pivot of 1e-16 there
    settings = {"gamma": 3.0, "solver": "cholesky", "cv": 3, "tile": tile}
    with pytest.warns(ConvergenceWarning, match="no scores of alpha = 0: the true residual"):
        search = KernelRidgeCV([1.0, 0.0], **settings).fit(X, y)
    assert search.alpha_ == 1.0 and np.isnan(search.cv_results_["mean_test_score"][1])
    assert search.cv_results_["residual"][0] < 1e-12 < search.cv_results_["residual"][1]


def test_without_any_solved_system_there_is_no_choice(data, y):
    few = ConjugateGradient(preconditioner=None, max_iter=3)
    with (
        pytest.warns(ConvergenceWarning, match=r"no scores of alpha = 1e-06: the true residual .* 1.0e-03 is needed"),
        pytest.raises(InputError, match="no candidate has a score, since their systems were not solved"),
    ):
        KernelRidgeCV([1e-6], solver=few).fit(data.X, y)


@pytest.mark.filterwarnings("ignore:true relative residual")
@pytest.mark.parametrize(
    ("kernel", "solver", "good"),
    [
        (RBF(0.1), "cg", 1e-3),
        (Nystroem(RBF(2.0), 30), ConjugateGradient(preconditioner=None, max_iter=4), 1e3),
    ],
    ids=["sweep", "refits"],
)
@pytest.mark.parametrize("n_targets", [1, 3])
def test_systems_that_were_not_solved_have_no_score(kernel, solver, good, n_targets):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(120, 3)), rng.normal(size=(120, n_targets))
    search = KernelRidgeCV([1e-10, good], kernel=kernel, solver=solver, cv=3, train_sizes=[0.5], refit=False)
    with pytest.warns(ConvergenceWarning, match="no scores of alpha = 1e-10: the true residual of their systems"):
        search.fit(X, y)
    assert search.alpha_ == good and search.best_index_ == 1
    assert_array_equal(np.isnan(search.cv_results_["mean_test_score"]), [True, False])
    assert_array_equal(search.cv_results_["rank_test_score"], [2, 1])
    assert_array_equal(search.cv_results_["stopped"], False)
    assert search.cv_results_["residual"][0] > 1e-3 >= search.cv_results_["residual"][1]


def test_a_free_constant_is_solved_as_well_as_the_scores_need():
    """With a nearly constant kernel b is a hundred times the targets, and so are errors of its system."""
    rng = np.random.default_rng(2)
    X = rng.normal(size=(46, 2))
    y, settings = 5 + X[:, 0] + 0.3 * rng.normal(size=46), {"kernel": RBF(0.01), "fit_intercept": True, "cv": 4}
    found, expected = (
        KernelRidgeCV([1e-3, 3e-7], solver=solver, refit=False, race=False, **settings).fit(X, y).cv_results_
        for solver in ("cg", "cholesky")
    )
    assert_allclose(found["mean_test_score"], expected["mean_test_score"], rtol=2e-3)


def test_too_little_memory(data, y):
    with pytest.raises(MemoryLimitError, match="memory"):
        KernelRidgeCV(memory_limit="1MiB").fit(data.X, y)


def test_the_plan_explains_itself(data, y):
    search = KernelRidgeCV(ALPHAS, cv=3).fit(data.X, y)
    text = str(search.selection_plan_)
    assert "3 folds" in text and "3 λ" in text and "because" in text and "rejected" in text
    assert_array_equal(search.cv_results_["stopped"], False)


@every_check(KernelRidgeCV(cv=3), KernelRidgeCV(cv="loo"), KernelRidgeCV(kernel="linear", cv=3))
def test_scikit_learn_checks(estimator, check):
    check(estimator)
