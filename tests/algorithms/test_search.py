"""Searches for λ and the kernel choose by the scores that one fit after another has, whatever way the plan takes."""

from dataclasses import replace

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn import model_selection
from sklearn.kernel_ridge import KernelRidge as SkKernelRidge
from sklearn.model_selection import GridSearchCV, GroupKFold, KFold, ShuffleSplit, StratifiedKFold, TimeSeriesSplit

import dkrr
from dkrr import KernelLogisticRegression, KernelLogisticRegressionCV, KernelRidge, KernelRidgeCV
from dkrr.errors import ConvergenceWarning, InputError, MemoryLimitError, StoreError
from dkrr.estimators.search import edges
from dkrr.features import Nystroem
from dkrr.fitting import score_plans
from dkrr.fitting.score_plans import plan_sweep
from dkrr.kernels import RBF, BagOfWords
from dkrr.linalg.giving_up import Watch
from dkrr.linalg.training_sets import TrainingSetOperator
from dkrr.planning.searches import PartOfFit
from dkrr.selection import scoring
from dkrr.solvers import ConjugateGradient, Float32Cholesky, RPCholesky
from dkrr.text import codes_of
from tests.naive_folds import leave_one_out, naive_class_scores, naive_predictions, naive_scores, scores_of
from tests.pairs import every_pair

pytestmark = pytest.mark.usefixtures("one_blas_thread")

NAN = np.nan

ALPHAS = [10.0, 1e-3, 0.3]
TIGHT, SQUARES = {"cv_tol": 1e-11, "early_stopping": False}, "neg_mean_squared_error"
METHODS = {
    "sweep": {"kernel": "rbf", "solver": "cg"},
    "sweep without preconditioner": {"kernel": "rbf", "solver": ConjugateGradient(preconditioner=None)},
    "sweep of low rank": {"kernel": "laplacian", "solver": ConjugateGradient(preconditioner=RPCholesky(rank=20))},
    "factors": {"kernel": "rbf", "solver": "cholesky"},
    "factors in tiles": {"kernel": "rbf", "solver": "cholesky", "tile": 40},
    "factors of a function": {"kernel": lambda X, Y: 0.1 * (1.0 + X @ Y.T) ** 2, "solver": "cholesky"},
    "primal": {"kernel": "linear", "form": "primal"},
    "primal polynomial": {"kernel": "polynomial", "degree": 2, "form": "primal"},
}


def settings_of_fit(way, fit_intercept):
    return {k: v for k, v in way.items() if k in ("kernel", "degree")} | {"fit_intercept": fit_intercept}


@pytest.fixture
def narrow(monkeypatch):
    """Strips and batches of few columns of the inverse of a factor."""
    monkeypatch.setattr("dkrr.linalg.held_out.INVERSE_STRIP_COLUMNS", 7)
    monkeypatch.setattr("dkrr.linalg.held_out.BATCH_COLUMNS", 60)


@pytest.fixture
def y(data):
    return data.y[:, 0]


@every_pair(by_day="values", way=list(METHODS), fit_intercept=[False, True], weighted=[False, True], ids=str)
def test_scores_of_folds_are_those_of_separate_fits(data, narrow, way, fit_intercept, weighted):
    X, Y, weights = data.X[:101], data.y[:101], data.weights[:101] if weighted else None
    folds = list(KFold(4, shuffle=True, random_state=1).split(X))
    cv_tol, rtol = (1e-6, 1e-5) if way == "sweep without preconditioner" else (1e-11, 1e-8)  # the constant is far away
    search = KernelRidgeCV(ALPHAS, cv=folds, fit_intercept=fit_intercept, **TIGHT | {"cv_tol": cv_tol}, **METHODS[way])
    results = search.fit(X, Y, sample_weight=weights).cv_results_
    settings = settings_of_fit(METHODS[way], fit_intercept)
    expected = naive_scores(X, Y, folds, ALPHAS, weights, **settings)
    assert_allclose(scores_of(search), expected, rtol=rtol)
    assert_allclose(results["mean_test_score"], expected.mean(axis=1), rtol=rtol)
    assert_allclose(results["std_test_score"], expected.std(axis=1), rtol=10 * rtol)
    best = int(np.argmax(expected.mean(axis=1)))
    assert (search.alpha_, search.best_index_) == (ALPHAS[best], best)
    assert search.best_score_ == results["mean_test_score"][best]
    refit = KernelRidge(ALPHAS[best], **settings).fit(X, Y, sample_weight=weights)
    assert_allclose(search.predict(data.X_new), refit.predict(data.X_new), rtol=1e-6, atol=1e-8)


@every_pair(
    by_day="values",
    way=[way for way in METHODS if "sweep" not in way],
    fit_intercept=[False, True],
    weighted=[False, True],
    ids=str,
)
def test_leave_one_out_is_one_fit_for_each_row(data, narrow, way, fit_intercept, weighted):
    X, Y, weights = data.X[:29], data.y[:29], data.weights[:29] if weighted else None
    search = KernelRidgeCV(ALPHAS, cv="loo", fit_intercept=fit_intercept, store_cv_predictions=True, **METHODS[way])
    search.fit(X, Y, sample_weight=weights)
    settings = settings_of_fit(METHODS[way], fit_intercept)
    expected = [np.vstack(naive_predictions(X, Y, leave_one_out(29), a, weights, **settings)) for a in ALPHAS]
    scores = [-np.average(((Y - p) ** 2).mean(axis=1), weights=weights) for p in expected]
    assert_allclose(search.cv_results_["mean_test_score"], scores, rtol=1e-7)
    assert_allclose(search.cv_predictions_, expected[int(np.argmax(scores))], rtol=1e-6, atol=1e-9)
    assert not any(name.startswith("split") for name in search.cv_results_)


@pytest.mark.parametrize(
    "cv",
    [3, ShuffleSplit(3, test_size=0.3, random_state=0), TimeSeriesSplit(3), [(np.arange(50), np.arange(45, 80))],
     model_selection.LeaveOneOut(), GroupKFold(3)],
    ids=lambda cv: type(cv).__name__,
)  # fmt: skip
def test_any_splitter_finds_what_grid_search_finds(data, y, cv):
    X, y, groups = data.X[:80], y[:80], np.arange(80) % 7 if isinstance(cv, GroupKFold) else None
    peer = GridSearchCV(SkKernelRidge(kernel="rbf", gamma=0.2), {"alpha": ALPHAS}, cv=cv, scoring=SQUARES)
    peer.fit(X, y, groups=groups)
    search = KernelRidgeCV(ALPHAS, gamma=0.2, cv=cv, store_cv_predictions=True, **TIGHT).fit(X, y, groups=groups)
    assert search.alpha_ == peer.best_params_["alpha"]
    assert_allclose(search.cv_results_["mean_test_score"], peer.cv_results_["mean_test_score"], rtol=1e-6)
    if isinstance(cv, TimeSeriesSplit):  # the first rows are never held out
        expected = naive_predictions(X, y, list(cv.split(X)), search.alpha_, kernel=RBF(gamma=0.2))
        assert_allclose(search.cv_predictions_[20:], np.concatenate(expected), rtol=1e-6, atol=1e-9)
        assert np.isnan(search.cv_predictions_[:20]).all()


SPLITS = {
    "time": list(TimeSeriesSplit(5).split(np.zeros(31))),
    "parts": list(ShuffleSplit(4, train_size=0.5, test_size=0.3, random_state=0).split(np.zeros(31))),
    "overlapping": [(np.arange(20), np.arange(15, 31)), (np.arange(10, 31), np.arange(12))],
}


@every_pair(
    folds=list(SPLITS),
    kernel=["rbf", "precomputed"],
    fit_intercept=[False, True],
    weighted=[False, True],
    n_targets=[1, 3],
    solver=["auto", "cholesky"],
)
def test_small_folds_that_do_not_train_on_the_rest_have_factors_of_their_own(
    data, folds, kernel, fit_intercept, weighted, n_targets, solver
):
    """Conjugate gradient took 0.2 s for 0.03 s, and gave up λ that factors score, too."""
    X, Y, weights = data.X[:31], data.y[:31, :n_targets], data.weights[:31] if weighted else None
    alphas, settings = np.geomspace(1e-10, 1e2, 13), {"fit_intercept": fit_intercept, "solver": solver}
    K = RBF(gamma=0.1)(X) if kernel == "precomputed" else X
    search = KernelRidgeCV(alphas, kernel=kernel, gamma=None if kernel == "precomputed" else 0.1, **settings)
    search.set_params(cv=SPLITS[folds]).fit(K, Y, sample_weight=weights)
    expected = naive_scores(X, Y, SPLITS[folds], alphas, weights, kernel=RBF(gamma=0.1), fit_intercept=fit_intercept)
    plan = search.selection_plan_
    assert plan.method == "refits" and "not-all-other-rows" in codes_of(plan.reasons)
    assert_allclose(scores_of(search), expected, rtol=1e-5)  # rounding over the smallest λ, 31 · 2e-16 / 1e-10


def test_lambda_that_factors_of_folds_do_not_solve_have_no_score_and_one_warning(data, y, monkeypatch):
    for module in ("dkrr.linalg.result", "dkrr.selection.scores"):
        monkeypatch.setattr(f"{module}.INACCURATE_ABOVE", 1e-12)  # residuals are about 1e-16 / λ
    search = KernelRidgeCV([1e-9, 0.1, 1.0], gamma=0.01, cv=TimeSeriesSplit(3), refit=False)
    with pytest.warns(ConvergenceWarning, match="no scores of alpha = 1e-09: the true residual") as caught:
        search.fit(data.X, y)
    assert len(caught) == 1 and search.selection_plan_.method == "refits"
    assert np.isnan(search.cv_results_["mean_test_score"]).tolist() == [True, False, False]


def worst(estimator, X, Y):
    """A scorer of one's own: it sees the rows that are held out."""
    return -np.abs(estimator.predict(X) - Y).max()


@every_pair(
    by_day="values",
    solver=["cg", "cholesky"],
    scoring=["r2", "neg_mean_absolute_error", "neg_median_absolute_error", worst],
)
def test_scorers_of_scikit_learn_and_of_ones_own(data, y, scoring, solver):
    search = KernelRidgeCV(ALPHAS, cv=3, scoring=scoring, solver=solver, **TIGHT).fit(data.X, y)
    peer = GridSearchCV(SkKernelRidge(kernel="rbf"), {"alpha": ALPHAS}, cv=3, scoring=scoring).fit(data.X, y)
    assert_allclose(search.cv_results_["mean_test_score"], peer.cv_results_["mean_test_score"], rtol=1e-6)


@pytest.mark.parametrize("solver", ["cg", "cholesky"])
def test_every_target_may_have_its_own_alpha(data, solver, tmp_path):
    X, Y, settings = data.X[:101], data.y[:101], {"cv": 3, "train_sizes": (0.25,), "solver": solver} | TIGHT
    search = KernelRidgeCV(ALPHAS, alpha_per_target=True, **settings).fit(X, Y)
    curve = search.learning_curve_
    for j in range(3):
        alone = KernelRidgeCV(ALPHAS, **settings).fit(X, Y[:, j])
        assert search.alpha_[j] == alone.alpha_ and search.best_index_[j] == alone.best_index_
        assert search.best_score_[j] == pytest.approx(alone.best_score_, rel=1e-6)
        assert_allclose(search.predict(data.X_new)[:, j], alone.predict(data.X_new), rtol=1e-6, atol=1e-6)
        assert_array_equal(curve["alpha"][:, j], alone.learning_curve_["alpha"])
        scores = alone.learning_curve_["mean_test_score"]
        assert_allclose(curve["mean_test_score_per_target"][:, j], scores, rtol=1e-6)
    assert len(set(search.alpha_)) > 1
    dkrr.save(search, tmp_path / "m.zarr")
    for results in (search.cv_results_, dkrr.load(tmp_path / "m.zarr").cv_results_):
        table = pd.DataFrame(results)
        assert_allclose(np.vstack(table["mean_test_score_per_target"]).mean(axis=1), table["mean_test_score"])


@every_pair(by_day="values", per_target=[False, True], fit_intercept=[False, True])
def test_the_last_fit_continues_from_the_columns_of_all_rows(data, fit_intercept, per_target):
    settings = {"kernel": "rbf", "solver": "cg", "fit_intercept": fit_intercept, "tol": 1e-9}
    search = KernelRidgeCV(ALPHAS, alpha_per_target=per_target, **settings)
    search.fit(data.X, data.y, sample_weight=data.weights)
    alone = KernelRidge(search.alpha_, **settings).fit(data.X, data.y, sample_weight=data.weights)
    result = search.solve_result_
    assert result.iterations == 0 < alone.solve_result_.iterations and result.residual <= 1e-9
    allowed = 1e-9 * np.linalg.norm(np.sqrt(data.weights)[:, None] * data.y) / np.sqrt(min(ALPHAS))  # ‖r‖ / 2√λ of each
    assert_allclose(search.predict(data.X_new), alone.predict(data.X_new), rtol=0, atol=allowed)


def test_a_last_fit_that_takes_less_time_alone_is_separate(monkeypatch, tmp_path, data, y):
    """As it does where memory is short; with a store it continues, since a run resumes with the columns that it has."""
    settings = {"kernel": "rbf", "solver": "cg", "tol": 1e-9}
    monkeypatch.setattr("dkrr.fitting.score_plans.MIN_OWN_FIT_SECONDS", 0.0)
    monkeypatch.setattr("dkrr.fitting.score_plans.CONTINUED_IN_RUN", PartOfFit(iterations=1e6))
    search, whole = (KernelRidgeCV(ALPHAS, cv=3, refit=refit, **settings).fit(data.X, y) for refit in (True, False))
    plan = search.selection_plan_
    assert "last-fit-apart" in codes_of(plan.reasons) and plan.sizes.n_sets == plan.sizes.n_folds == 3
    assert "search-continued" not in codes_of(search.plan_.reasons) and search.solve_result_.iterations > 0
    assert_array_equal(scores_of(search), scores_of(whole))
    alone = KernelRidge(search.alpha_, **settings).fit(data.X, y)
    assert_array_equal(search.predict(data.X_new), alone.predict(data.X_new))
    kept = KernelRidgeCV(ALPHAS, cv=3, store=str(tmp_path / "run"), **settings).fit(data.X, y)
    assert "last-fit-apart" not in codes_of(kept.selection_plan_.reasons) and kept.solve_result_.iterations == 0


def test_a_last_fit_whose_iterations_would_take_longer_than_a_factorisation_is_separate(monkeypatch, data, y):
    """How many iterations the best λ takes is known at the end only; without another solver nothing takes over."""
    monkeypatch.setattr("dkrr.fitting.score_plans.MIN_OWN_FIT_SECONDS", 0.0)
    given = {"n_features": 20, "kernel": "rbf", "alphas": [0.1, 1.0, 10.0], "cv": 5}
    for solver, is_finite in (("auto", True), ("cg", False)):
        main = dkrr.plan(n_samples=20_000, solver=solver, **given).main
        assert main.method == "sweep" and np.isfinite(main.direct_seconds) == is_finite
    settings = {"kernel": "rbf", "gamma": 1e-3, "solver": ConjugateGradient(RPCholesky(5)), "tol": 1e-10}
    original = scoring.sweep

    def hurried(*given, refit, **more):
        refit.direct_seconds = 1e-9
        original(*given, refit=refit, **more)

    monkeypatch.setattr(scoring, "sweep", hurried)
    search = KernelRidgeCV([1e-4], cv=3, **settings).fit(data.X, y)
    said = "scores: the last fit is separate: conjugate gradient was given up after"
    assert any(text.startswith(said) for text in search.solve_result_.messages)
    alone = KernelRidge(1e-4, **settings).fit(data.X, y)
    assert search.solve_result_.iterations == alone.solve_result_.iterations > 0
    assert_array_equal(search.predict(data.X_new), alone.predict(data.X_new))


class Recorder(Watch):
    """Gives nothing up, and notes the residual that it is asked about."""

    def __call__(self, state, tol):
        self.seen = [*getattr(self, "seen", []), state.history[-1].largest]


@pytest.fixture
def promising(monkeypatch):
    """Conjugate gradient promises to be faster, as it may with thousands of rows, but is watched."""

    def soon(*given):
        yield from (replace(plan, seconds=1e-9) for plan in plan_sweep(*given))

    monkeypatch.setattr(score_plans, "plan_sweep", soon)
    monkeypatch.setattr(score_plans, "SURE_SPEEDUP", np.inf)
    monkeypatch.setattr(score_plans, "MAX_PREFERRED_FACTOR_SECONDS", 0.0)


@pytest.mark.usefixtures("promising")
@pytest.mark.parametrize("race", [False, True])
@pytest.mark.parametrize("cv", [3, TimeSeriesSplit(3)], ids=["factors", "refits"])
def test_scores_whose_iterations_would_take_longer_are_those_of_factors(monkeypatch, race, cv):
    monkeypatch.setattr(scoring, "watch_until", lambda *_: Watch(factor_seconds=1e-9))
    X = np.random.default_rng(0).uniform(0, 9, (250, 1))
    y, alphas = np.sin(2 * X[:, 0]), np.geomspace(1e-11, 1e-9, 4)
    settings = {"kernel": "rbf", "gamma": 1.0, "cv": cv, "early_stopping": race, "train_sizes": (0.5,)}
    search, exact = (KernelRidgeCV(alphas, solver=solver, **settings).fit(X, y) for solver in ("auto", "cholesky"))
    main = search.selection_plan_.main
    assert main.method == exact.selection_plan_.main.method != "sweep" and len(main.curve) == len(main.parts) == 1
    assert "iterations-given-up" in codes_of(main.reasons)
    assert_array_equal(scores_of(search), scores_of(exact))
    assert any(text.startswith("scores: conjugate gradient was given up") for text in search.solve_result_.messages)


def test_only_scores_by_iterations_that_the_planner_chose_are_watched(tmp_path):
    given = {"n_samples": 6000, "n_features": 20, "kernel": "rbf", "alphas": np.geomspace(1e-3, 10, 6), "cv": 5}
    watched = dkrr.plan(**given).main
    assert (
        watched.method == "sweep" and watched.otherwise.method == "factors" and "watched" in codes_of(watched.reasons)
    )
    assert watched.peak_bytes >= watched.otherwise.peak_bytes
    for more in ({"solver": "cg"}, {"store": str(tmp_path / "run")}, {"n_samples": 10**6, "memory_limit": "32GiB"}):
        main = dkrr.plan(**(given | more)).main
        assert main.method == "sweep" and main.otherwise is None and "watched" not in codes_of(main.reasons)


@pytest.mark.usefixtures("promising")
def test_a_race_is_not_given_up_for_lambda_that_will_have_lost(monkeypatch, data, y):
    recorder = Recorder(1e9)
    monkeypatch.setattr(scoring, "watch_until", lambda *_: recorder)
    monkeypatch.setattr("dkrr.selection.sweep.EARLY", 0)
    noisy, alphas = y + 0.5 * np.random.default_rng(1).standard_normal(len(y)), np.geomspace(1e-9, 100, 12)
    search = KernelRidgeCV(alphas, kernel="rbf", refit=False).fit(data.X, noisy)
    assert search.selection_plan_.method == "sweep"
    assert search.cv_results_["residual"].max() > 0.1 > recorder.seen[len(recorder.seen) // 2]


REQUESTED = {"form": "form-requested", "solver": "cg-requested"}


@pytest.mark.parametrize("asked", [{}, {"form": "dual"}, {"solver": "cg"}], ids=str)
def test_a_plan_after_a_search_says_what_the_search_chose_and_what_it_rejected(asked, tmp_path):
    X = np.random.default_rng(0).normal(size=(600, 3))
    search = KernelRidgeCV([0.01, 0.1, 1.0], cv=3, store=str(tmp_path / "runs"), **asked)
    for is_resumed in (False, True):
        search.fit(X, np.sin(X[:, 0]))
        selection, found = search.selection_plan_.to_dict(), search.plan_.to_dict()
        for plan in (found, selection["last_fit"], selection["plan"]):
            codes = plan["reason_codes"]
            assert {code for code in codes if code in REQUESTED.values()} == {REQUESTED[name] for name in asked}
        assert "form-of-the-scores" in codes_of(search.plan_.reasons) or "form" in asked
        assert "search-continued" in codes_of(search.plan_.reasons) or "solver" in asked
        assert {*selection["reason_codes"]} < {*found["reason_codes"]}
        assert found["search_rejected_codes"] == selection["rejected_codes"]
        if not asked and not is_resumed:
            assert "slower" in selection["rejected_codes"]
            assert f"    - scores: {selection['rejected'][0]}" in str(search.plan_)


def test_no_plan_of_a_search_says_that_its_form_was_requested():
    X = np.random.default_rng(0).uniform(size=(30_000, 1))
    search = KernelRidgeCV([0.01, 0.1], cv=3).fit(X, np.sin(20 * X[:, 0]))  # on a Fourier grid
    selection = search.selection_plan_.to_dict()
    for plan in (search.plan_.to_dict(), selection["last_fit"], selection["plan"]):
        assert "fourier-grid" in plan["reason_codes"]
        assert not {*REQUESTED.values()} & {*plan["reason_codes"]}


def test_a_map_that_is_drawn_from_more_rows_than_a_sample_has_is_searched():
    X = np.random.default_rng(0).normal(size=(600, 3))
    search = KernelRidgeCV([0.1], kernel=Nystroem(RBF(gamma=0.1), 20), cv=2).fit(X, np.sin(X[:, 0]))
    assert search.plan_.form == "primal"


@pytest.mark.parametrize("alphas", [ALPHAS, ALPHAS[::-1]], ids=["given", "reversed"])
def test_of_candidates_with_the_same_score_the_first_is_taken(data, y, alphas):
    search = KernelRidgeCV(alphas, scoring=lambda *_: 1.0, solver="cg", refit=False).fit(data.X, y)
    assert search.alpha_ == alphas[0] and not hasattr(search, "dual_coef_")


def test_targets_in_several_runs_have_the_same_scores_and_do_not_race_for_all(monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 6, (200, 1))
    Y = np.hstack([rng.normal(size=(200, 4)), 3 * np.sin(3 * X) + 0.01 * rng.normal(size=(200, 4))])
    settings = {"alphas": np.geomspace(1e-5, 1e2, 10), "gamma": 2.0, "solver": "cg", "refit": False}
    whole = KernelRidgeCV(early_stopping=False, **settings).fit(X, Y)
    monkeypatch.setattr("dkrr.fitting.score_plans.MAX_SWEEP_COLUMNS", 200)
    search = KernelRidgeCV(**settings).fit(X, Y)
    assert search.selection_plan_.plan.problem.n_targets == 4 < whole.selection_plan_.plan.problem.n_targets
    assert search.alpha_ == whole.alpha_
    assert_allclose(scores_of(search), scores_of(whole), rtol=1e-2)


@pytest.mark.parametrize("cv_tol", [1e-3, pytest.param(1e-6, marks=pytest.mark.nightly)], ids=["one cycle", "several"])
def test_lambda_that_have_lost_are_stopped(data, y, cv_tol):
    noisy, alphas = y + 0.5 * np.random.default_rng(1).standard_normal(len(y)), np.geomspace(1e-9, 100, 12)
    settings = {"solver": "cg", "cv_tol": cv_tol, "train_sizes": (0.25, 0.5)}
    every, raced = (KernelRidgeCV(alphas, early_stopping=race, **settings).fit(data.X, noisy) for race in (False, True))
    assert raced.alpha_ == every.alpha_ and raced.best_score_ == pytest.approx(every.best_score_, rel=1e-3)
    results, stopped = raced.cv_results_, raced.cv_results_["stopped"]
    assert 0 < stopped.sum() < len(alphas) and not stopped[alphas == raced.alpha_].any()
    unknown = results["residual"] > 1e-2
    known = stopped & ~unknown
    assert known.any()
    assert_allclose(results["mean_test_score"][known], every.cv_results_["mean_test_score"][known], rtol=0.01)
    assert unknown.any() and results["residual"][~stopped].max() <= 1e-3
    assert_array_equal(np.isnan(results["mean_test_score"]), stopped & unknown)
    assert results["iterations"].max() < every.cv_results_["iterations"].max()
    assert_allclose(raced.learning_curve_["test_scores"], every.learning_curve_["test_scores"], rtol=2e-3)


@pytest.mark.parametrize("race", [False, True])
@pytest.mark.parametrize(("offset", "noise"), [(1e3, 0.0), (100.0, 0.01), (0.0, 0.0)])
def test_errors_far_smaller_than_the_targets_are_not_hidden_by_residuals(race, offset, noise):
    rng, alphas = np.random.default_rng(0), np.geomspace(1e-6, 1e3, 10)
    X = rng.uniform(0, 10, (200, 1))
    y = offset + np.sin(X[:, 0]) + noise * rng.standard_normal(200)
    exact, search = (
        KernelRidgeCV(alphas, gamma=1.0, solver=s, early_stopping=race).fit(X, y) for s in ("cholesky", "cg")
    )
    assert search.alpha_ == exact.alpha_
    assert search.best_score_ == pytest.approx(exact.best_score_, rel=0.02)


@pytest.mark.parametrize("race", [False, True])
def test_a_lambda_that_no_iterations_solve_leaves_the_others_their_scores(race):
    """These need smaller residuals than the default, for their targets are far from 0."""
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 10, (200, 1))
    y = 100 + np.sin(X[:, 0]) + 0.01 * rng.standard_normal(200)
    alphas, settings = np.array([1e-12, 1e-2, 0.1, 1, 10]), {"gamma": 1.0, "early_stopping": race, "refit": False}
    exact = KernelRidgeCV(alphas[1:], solver="cholesky", **settings).fit(X, y)
    with pytest.warns(ConvergenceWarning, match=r"no scores of alpha = 1e-12: the true residual"):
        search = KernelRidgeCV(alphas, solver=ConjugateGradient(max_iter=60), **settings).fit(X, y)
    assert np.isnan(scores_of(search)[0]).all()
    assert_allclose(scores_of(search)[1:], scores_of(exact), rtol=0.02)


def test_iterates_of_ill_conditioned_systems_do_not_decide_the_race():
    """Far from a solution, small λ look worse than they are: with λ of 10⁻¹⁰ of the largest eigenvalue, by far."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 8))
    w = rng.standard_normal((8, 2))
    y = np.sin(X @ w[:, 0] / 2) + (X @ w[:, 1]) ** 2 / 4 + 1e-2 * rng.standard_normal(400)
    settings = {"gamma": 1e-3, "fit_intercept": True, "refit": False}
    exact, search = (
        KernelRidgeCV(np.geomspace(1e-7, 1e-3, 5), solver=s, **settings).fit(X, y) for s in ("cholesky", "cg")
    )
    assert search.best_score_ == pytest.approx(exact.best_score_, rel=0.1)


def test_columns_that_float32_does_not_solve_wait_and_are_chosen_where_they_are_the_best(monkeypatch):
    """Without noise the smallest λ is the best."""
    multiply, alphas, products = TrainingSetOperator.multiply, np.geomspace(1e-5, 1e2, 8), []

    def backwards(operator, vectors, precision="float64", columns=None):
        products.append((precision, len(columns)))
        found = multiply(operator, vectors, precision, columns)
        return np.where((precision == "float32") & (columns >= 7 * 6), -found, found)  # of the smallest λ

    monkeypatch.setattr(TrainingSetOperator, "multiply", backwards)
    X = np.random.default_rng(0).uniform(0, 6, (200, 1))
    settings = {"alphas": alphas, "gamma": 2.0}
    search = KernelRidgeCV(solver=ConjugateGradient(precision="mixed"), **settings).fit(X, np.sin(2 * X[:, 0]))
    exact = KernelRidgeCV(solver="cholesky", **settings).fit(X, np.sin(2 * X[:, 0]))
    assert search.alpha_ == exact.alpha_ == alphas[0]
    assert search.best_score_ == pytest.approx(exact.best_score_, rel=0.02)
    assert products[:2] == [("float32", 8 * 6), ("float32", 7 * 6)]


DOCUMENTS = np.array(
    [f"{a} {b}" for a in ("one", "two", "four") for b in ("red", "red one", "two", "one six", "six")], object
)


@pytest.mark.parametrize(
    ("kernel", "make", "why"),
    [
        (Nystroem(RBF(gamma=0.2), 20), da.from_array, "fitted to"),
        (Nystroem(RBF(gamma=0.2), 20), np.asarray, "fitted to"),
        (BagOfWords(), lambda _: DOCUMENTS, "learns from"),
    ],
    ids=["dask", "array", "documents"],
)
def test_what_a_kernel_learns_is_learned_in_every_fold_and_never_from_the_rows_held_out(data, y, kernel, make, why):
    rows = make(data.X)
    X, y = np.asarray(rows), y[: len(rows)]
    search = KernelRidgeCV(ALPHAS, kernel=kernel, cv=3, **TIGHT).fit(rows, y)
    assert isinstance(kernel, BagOfWords) or search.selection_plan_.method == "refits"
    expected = naive_scores(X, y, list(KFold(3).split(X)), ALPHAS, kernel=kernel)
    assert_allclose(scores_of(search), expected, rtol=1e-6)
    whole = KernelRidge(search.alpha_, kernel=kernel).fit(X, y).predict(X, return_std=True)
    assert_allclose(search.predict(X, return_std=True), whole, rtol=1e-6)
    with pytest.raises(InputError, match=rf"leave-one-out.*{why} the training rows.*cv=5"):
        KernelRidgeCV(kernel=kernel, cv="loo").fit(rows, y)


@pytest.mark.parametrize(
    "settings",
    [
        {"kernel": "poly", "degree": [1, 2], "coef0": 2.0, "gamma": 0.1, "fit_intercept": True},
        {
            "kernel": ["linear", "poly", RBF(gamma=0.3) + RBF(gamma=3.0)],
            "gamma": [0.1, 0.3],
            "degree": 2,
            "alpha_per_target": True,
        },
        {"kernel": "matern", "kernel_params": {"nu": 2.5, "length_scale": 2.0}, "transformer": "standardize"},
        {"kernel": lambda X, Y, factor: factor * (1.0 + X @ Y.T) ** 2, "kernel_params": {"factor": 3.0}},
        {"optimize": "isotropic"},
        {"kernel": [Nystroem(RBF(gamma=0.2), 20), "linear"]},
    ],
    ids=["poly", "several", "matern", "function", "optimize", "nystroem"],
)
@pytest.mark.filterwarnings("ignore:the search for lengths and alpha has not converged")
def test_the_best_parameters_are_complete_and_make_the_chosen_model(data, settings):
    search = KernelRidgeCV([1e-2, 1.0], **settings, cv=3).fit(data.X, data.y)
    model = KernelRidge(**search.best_params_).fit(data.X, data.y)
    assert_allclose(model.predict(data.X_new), search.predict(data.X_new), rtol=1e-5, atol=1e-6)


def test_a_parameter_goes_with_the_kernels_that_have_it(data, y):
    search = KernelRidgeCV([0.1, 1.0], kernel=["linear", "rbf"], gamma=[0.1, 1.0], cv=3, refit=False).fit(data.X, y)
    results, row = search.cv_results_, search.best_index_
    assert [p.get("gamma") for p in results["params"]] == [None, None, 0.1, 0.1, 1.0, 1.0]
    assert np.ma.getmaskarray(results["param_gamma"]).tolist() == [True] * 2 + [False] * 4
    assert results["params"][row] == search.best_params_ and results["rank_test_score"][row] == 1
    for change in ({"gamma": [0.1, 1.0]}, {"gamma": 0.1}, {"kernel": "poly", "degree": [3], "gamma": [None]}):
        for one in (KernelRidgeCV, KernelLogisticRegressionCV):
            with pytest.raises(InputError, match=r"(gamma|degree) is .*, and kernel_params has .*expected one of the"):
                one([0.1], **{"kernel": "rbf"} | change, kernel_params={"gamma": 5.0, "degree": 2}).fit(data.X, y > 0)


def test_default_alphas_follow_the_scale_of_the_data(data, y):
    small, large = (KernelRidgeCV(kernel="linear", form="dual", cv=3).fit(c * data.X, y) for c in (1, 1000))
    alphas = [[p["alpha"] for p in search.cv_results_["params"]] for search in (small, large)]
    assert len(alphas[0]) == 10 and alphas[0][0] > 0
    assert_allclose(np.array(alphas[1]), 1e6 * np.array(alphas[0]))


def test_the_search_says_where_the_best_is_at_an_end(data, y):
    search = KernelRidgeCV([10.0, 30.0, 100.0], gamma=[10.0, 20.0, 30.0]).fit(data.X, y)
    ends = [f"the best {name} is the smallest of the candidates, 10" for name in ("alpha", "gamma")]
    assert [text.partition(":")[0] for text in search.advice_] == ends
    assert search.solve_result_.messages[-2:] == search.advice_
    each = KernelRidgeCV([10.0, 30.0, 100.0], gamma=0.2, alpha_per_target=True).fit(data.X, data.y)
    assert f"10, for {np.count_nonzero(each.alpha_ == 10.0)} of 3 targets" in each.advice_[0]
    (two,) = KernelRidgeCV([10.0, 30.0], refit=False).fit(data.X, y).advice_
    assert two.startswith(
        "the best alpha is the smaller of the two candidates, 10: the best may lie beyond, try smaller"
    )
    (two,) = KernelRidgeCV([1e-7, 0.1], gamma=[0.2], refit=False).fit(data.X, y).advice_
    assert "the larger of the two candidates, 0.1: the best may lie beyond, try larger values, and some between" in two
    (two,) = KernelLogisticRegressionCV([30.0, 10.0], kernel="rbf", cv=2, refit=False).fit(data.X, y > 0).advice_
    assert two.startswith("the best alpha is the smaller of the two candidates, 10")


def test_the_search_says_which_candidates_beyond_the_best_have_no_score(data, y):
    few = {"solver": ConjugateGradient(preconditioner=None, max_iter=6), "early_stopping": False, "refit": False}
    alphas, large = [1e-9, 1e-6, 10.0, 100.0], [50.0, 10.0, 2.0]  # K is nearly the identity where γ is large
    with pytest.warns(ConvergenceWarning, match="no scores of alpha = 1e-06, 1e-09"):
        search = KernelRidgeCV(alphas, gamma=0.2, **few).fit(data.X, y)
    (advice,) = search.advice_
    assert "alpha is the smallest with a score, 10: the smaller candidates 1e-06, 1e-09 have none" in advice
    assert "systems were not solved, give solver='cholesky'" in advice

    def score(estimator, rows, values):
        return np.nan if np.std(estimator.predict(rows)) < 0.25 * np.std(values) else 1.0

    search = KernelRidgeCV([0.1], gamma=large, scoring=score, refit=False).fit(data.X, y)
    (advice,) = search.advice_
    assert search.best_params_["gamma"] == 2.0
    assert "gamma is the largest with a score, 2: the larger candidates 10, 50 have none" in advice
    each = KernelRidgeCV(alphas, gamma=0.2, alpha_per_target=True, **few)
    with pytest.warns(ConvergenceWarning, match="no scores"):
        each.fit(data.X, data.y)
    assert f"10, for {np.count_nonzero(each.alpha_ == 10.0)} of 3 targets: the smaller" in each.advice_[0]


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([-1.0], []),
        ([-1.0, -2.0], ["the smaller of the two candidates, 1: the best may lie beyond, try smaller values, and some"]),
        ([-2.0, -1.0], ["the larger of the two candidates, 2: the best may lie beyond, try larger values, and some"]),
        ([-1.0, -1.0], []),
        ([-1.0, -1.0, -2.0], []),
        ([-1.0, -2.0, -1.0], []),
        ([-2.0, -2.0, -1.0], ["is the largest of the candidates, 3: the best may lie beyond, try larger values"]),
        ([-2.0, -1.0, -2.0], []),
        ([NAN, -1.0], ["is the smallest with a score, 2: the smaller candidates 1 have none at this alpha, and"]),
        ([-1.0, NAN, NAN], ["is the largest with a score, 1: the larger candidates 2, 3 have none at this alpha, and"]),
        ([-3.0, NAN, -1.0, -2.0], ["is 3: the next smaller candidates 2 have no score at this alpha, and the"]),
        (
            [-3.0, -2.0, -1.0, NAN],
            ["is the largest with a score, 3: the larger candidates 4 have none at this alpha, and the"],
        ),
        ([NAN, -3.0, -2.0, -1.0, -2.0], []),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", [float, np.int64])
def test_advice_says_on_which_side_of_the_best_nothing_is_known(scores, expected, kind):
    grid = [{"alpha": 0.5, "gamma": kind(k + 1)} for k in range(len(scores))]
    found = list(edges(grid, int(np.nanargmax(scores)), np.array(scores)[:, None], "do this"))
    assert len(found) == len(expected)
    for text, part in zip(found, expected, strict=True):
        assert text.startswith("the best gamma") and part in text and text.endswith(": do this") == ("score" in part)


def test_advice_counts_the_targets(data):
    grid, scores = (
        [{"alpha": a} for a in (0.1, 1.0, 10.0)],
        np.array([[-1, -3, NAN, -1], [-2, -2, -1, -1], [-3, -1, -2, -1]]),
    )
    found = list(edges(grid, np.array([0, 2, 1, 0]), scores, "do this"))
    assert [text.partition(":")[0] for text in found] == [
        "the best alpha is the smallest of the candidates, 0.1, for 1 of 4 targets",
        "the best alpha is the smallest with a score, 1, for 1 of 4 targets",
        "the best alpha is the largest of the candidates, 10, for 1 of 4 targets",
    ]


def test_a_kernel_is_planned_again_where_those_before_it_have_left_too_little_memory(data, y, monkeypatch):
    found, resources = [], scoring._resources

    def fuller(request, number):
        now = resources(request, number)
        found.append(number)
        return replace(now, local_baseline_bytes=now.local_baseline_bytes + number * now.local_limit_bytes)

    monkeypatch.setattr(scoring, "_resources", fuller)
    search = KernelRidgeCV([0.1, 1.0], gamma=[0.1, 0.2], refit=False)
    with pytest.raises(MemoryLimitError, match="of the .* that are allowed: increase memory_limit"):
        search.fit(data.X, y)
    assert found == [0, 0, 1], "the first kernel was scored by then"


@pytest.mark.nightly
@pytest.mark.parametrize("solver", ["cg", "cholesky"])
def test_a_search_on_workers_has_the_same_scores(data, y, ambient_workers, solver):
    X, y, settings = data.X[:100], y[:100], {"cv": 2, "solver": solver, "early_stopping": False, "cv_tol": 1e-7}
    search = KernelRidgeCV([10.0, 0.3], train_sizes=(0.25,), tile=50, **settings).fit(X, y)  # round trips take time
    assert search.selection_plan_.plan.execution == "dask"
    expected = naive_scores(X, y, list(KFold(2).split(X)), [10.0, 0.3], kernel="rbf")
    assert_allclose(scores_of(search), expected, rtol=1e-6)
    assert_allclose(search.learning_curve_["test_scores"][-1], expected[search.best_index_], rtol=1e-6)


@pytest.mark.parametrize("solver", ["cg", "cholesky"])
def test_the_store_of_a_search_is_resumed_and_belongs_to_it(data, y, tmp_path, solver):
    search = KernelRidgeCV(ALPHAS, cv=3, solver=solver, store=str(tmp_path / "run"), **TIGHT)
    first = scores_of(search.fit(data.X, y))
    assert_allclose(scores_of(search.fit(data.X, y)), first, rtol=1e-9)
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == ["fit", "kernel-0"]
    with pytest.raises((StoreError, InputError), match="(?i)another|other|differ"):
        search.set_params(cv=4).fit(data.X, y)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cv": 500}, "cv is 500.*n_samples=211.*at most as many folds as rows"),
        ({"cv": [([], [1, 2])]}, "fold 0.*no training rows"),
        ({"cv": [([1, 2], [])]}, "fold 0.*no test rows"),
        ({"cv": [([1, 2], [300])]}, "fold 0.*test row 300, and X has 211 rows"),
        ({"cv": [([1, 1], [3])]}, "fold 0.*training row twice"),
        ({"cv": GroupKFold(3)}, "cv=.*cannot split 211 rows.*groups"),
        ({"scoring": "roc_auc"}, "scoring='roc_auc' needs .*expected a score of predictions"),
        ({"scoring": lambda *_: -np.inf}, "all candidates are NaN or -inf.*scale y"),
        ({"cv": "loo", "solver": "cg"}, "leave-one-out takes a Cholesky factor.*cv=5"),
        ({"solver": ConjugateGradient(Float32Cholesky())}, "factor serves a single training set; expected 'auto'"),
    ],
)
def test_folds_and_scores_that_cannot_be_had_are_refused(data, y, change, message):
    with pytest.raises(InputError, match=message):
        KernelRidgeCV(**change).fit(data.X, y)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"alphas": [0.0]}, "alphas is 0; expected a finite number > 0"),
        ({"cv": "loo"}, "leave-one-out.*cv=5"),
        ({"cv": KFold(2)}, "fold 0 .*no training row of class 'a'.*StratifiedKFold"),
    ],
)
def test_folds_of_classes_that_cannot_be_fitted_are_refused(data, change, message):
    with pytest.raises(InputError, match=message):
        KernelLogisticRegressionCV(kernel="rbf", **change).fit(data.X[:90], np.repeat(["a", "b"], [40, 50]))


def test_a_fold_without_weight_is_named(data, y):
    with pytest.raises(InputError, match=r"fold 0 .*holds out no row of positive sample_weight"):
        KernelRidgeCV(cv=3).fit(data.X, y, sample_weight=np.arange(211) >= 80)


# Classes


@pytest.fixture
def labels(data):
    return np.array(["a", "b", "c"])[np.digitize(data.X[:90, 0] + 0.3 * data.X[:90, 1], [-0.5, 0.6])]


def test_a_class_without_weight_is_refused_where_a_fold_or_an_intercept_needs_it(data, labels):
    known = {"kernel": "rbf", "class_weight": {"c": 0.0}}
    with pytest.raises(InputError, match="no row of class 'c' has a positive weight.*fit_intercept=False"):
        KernelLogisticRegressionCV(**known).fit(data.X[:90], labels)
    of_c = np.flatnonzero(labels == "c")
    some, others = np.arange(0, 90, 4), np.delete(np.arange(90), of_c)
    folds = [(np.setdiff1d(others, some), np.union1d(some, of_c))]
    with pytest.raises(InputError, match="fold 0 .*no training row of class 'c'"):
        KernelLogisticRegressionCV(**known, fit_intercept=False, cv=folds).fit(data.X[:90], labels)


@pytest.mark.parametrize("weighted", [pytest.param(False, marks=pytest.mark.nightly), True])
def test_scores_of_classes_are_those_of_separate_fits(data, labels, weighted):
    X, weights = data.X[:90], data.weights[:90] if weighted else None
    known = {"kernel": "rbf", "class_weight": "balanced"}
    search = KernelLogisticRegressionCV(ALPHAS, gamma=[0.05, 0.5], cv=3, **known).fit(X, labels, sample_weight=weights)
    folds, parameters = list(StratifiedKFold(3).split(X, labels)), search.cv_results_["params"]
    expected = np.array([naive_class_scores(X, labels, folds, weights, **known | p) for p in parameters])
    assert_allclose(scores_of(search), expected, rtol=1e-5)
    assert search.best_index_ == np.argmax(expected.mean(axis=1)) and search.alpha_ == search.best_params_["alpha"]
    refit = KernelLogisticRegression(**search.best_params_).fit(X, labels, sample_weight=weights)
    assert_allclose(search.predict_proba(data.X_new), refit.predict_proba(data.X_new), rtol=1e-6)


def test_scorers_groups_and_precomputed_matrices_of_classes(data, labels):
    settings = {"alphas": ALPHAS, "cv": GroupKFold(3), "scoring": "accuracy"}
    X, groups = data.X[:90], np.arange(90) % 9
    search = KernelLogisticRegressionCV(kernel="precomputed", **settings).fit(RBF(gamma=0.3)(X), labels, groups=groups)
    plain = KernelLogisticRegressionCV(kernel=RBF(gamma=0.3), **settings).fit(X, labels, groups=groups)
    assert_allclose(search.cv_results_["mean_test_score"], plain.cv_results_["mean_test_score"])
    assert 0.5 < search.best_score_ <= 1


@pytest.mark.filterwarnings("ignore:relative gradient")
def test_fits_of_classes_that_have_not_converged_have_no_score(data, labels):
    search = KernelLogisticRegressionCV([1e-8, 10.0], kernel="rbf", cv=3, max_iter=6, refit=False)
    with pytest.warns(ConvergenceWarning, match="no scores of alpha = 1e-08: the relative gradient of their systems"):
        search.fit(data.X[:90], labels)
    assert np.isnan(search.cv_results_["mean_test_score"]).tolist() == [True, False]
