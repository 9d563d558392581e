"""Searches by gradients of the cross-validated error, and targets near the ends of their range."""

from contextlib import nullcontext
from functools import cache

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.model_selection import KFold, LeaveOneGroupOut, ShuffleSplit, TimeSeriesSplit

from dkrr import KernelRidge, KernelRidgeCV
from dkrr.errors import ConvergenceWarning, InputError, NotPositiveDefiniteError
from dkrr.features import Nystroem
from dkrr.kernels import RBF, Laplacian, Matern, RationalQuadratic
from dkrr.linalg import sums
from dkrr.solvers import ConjugateGradient
from tests.naive_folds import exact_errors, leave_one_out, naive_scores, scores_of
from tests.nightly.accuracy import searches
from tests.oracles import assert_close
from tests.pairs import every_pair

pytestmark = pytest.mark.usefixtures("one_blas_thread")

# Gradients of the cross-validated error, and the search by them


LENGTHS = np.array([1.0, 2.0, 3.0, 2.0])


def problem(n=150, t=2, d=4):
    """Rows far from the origin, and targets with a mean."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d)) + 3
    Y = np.stack([np.sin((k + 1) * X[:, 0]) + 0.3 * X[:, 1] for k in range(t)], axis=1)
    return X, Y + 0.1 * rng.standard_normal((n, t)) + 2


def dense_error(X, Y, weights, kernel, alpha, pairs, *, fit_intercept):
    """Error of all folds by one dense system each, with a border for an intercept."""
    total, w = 0.0, np.ones(len(X)) if weights is None else weights
    for train, test in pairs:
        rows = train[w[train] > 0]
        n = len(rows)
        A = np.eye(n + 1)
        A[:n, :n] = kernel(X[rows]) + alpha * np.diag(1 / w[rows])
        if fit_intercept:
            A[:n, n], A[n, :n], A[n, n] = 1, 1, 0
        found = np.linalg.solve(A, np.vstack([Y[rows], np.zeros((1, Y.shape[1]))]))
        errors = Y[test] - kernel(X[test], X[rows]) @ found[:n] - fit_intercept * found[n]
        total += np.average((errors**2).mean(axis=1), weights=w[test])
    return total / len(pairs)


@pytest.mark.parametrize(
    "case",
    [
        {"weighted": True, "fit_intercept": True, "kernel": Matern(nu=1.5, length_scale=LENGTHS)},
        # Targets one after the other.
        pytest.param({"weighted": True, "fit_intercept": True, "t": 3, "columns": 8}, marks=pytest.mark.nightly),
        pytest.param({"weighted": True, "fit_intercept": True, "tile": 40}, marks=pytest.mark.nightly),
        {"kernel": Matern(nu=2.5, length_scale=LENGTHS)},
        {"kernel": RationalQuadratic(length_scale=LENGTHS, alpha=0.7)},
        {"weighted": True, "fit_intercept": True, "folds": TimeSeriesSplit(3)},  # that leave out more
    ],
    ids=str,
)
def test_gradients_agree_with_dense_systems_and_differences(case, monkeypatch):
    case = {"kernel": RBF(gamma=0.5 / LENGTHS**2), "t": 2, "folds": KFold(4, shuffle=True, random_state=0)} | case
    if "columns" in case:
        monkeypatch.setattr("dkrr.fitting.score_plans.MAX_SWEEP_COLUMNS", case["columns"])
    X, Y = problem(t=case["t"])
    weights = np.random.default_rng(1).uniform(0.1, 3, len(X)) * (np.arange(len(X)) % 7 > 0)
    weights = weights if "weighted" in case else None
    pairs, kernel, step = list(case["folds"].split(X)), case["kernel"], 1e-4
    settings = {"fit_intercept": case.get("fit_intercept", False), "tile": case.get("tile")}
    search = KernelRidgeCV([0.1], kernel=kernel, cv=pairs, optimize="ard", cv_tol=1e-11, refit=False, **settings)
    with pytest.warns(ConvergenceWarning, match="stopped after 3 evaluations"):
        found = search.set_params(max_evaluations=3).fit(X, Y, sample_weight=weights).optimum_

    def error(parameters):
        alpha, *lengths = np.exp(parameters)
        changed = kernel.with_lengths(np.array(lengths))
        return dense_error(X, Y, weights, changed, alpha, pairs, fit_intercept=settings["fit_intercept"])

    for k in range(3):  # one kernel after the other
        at = np.log([found.alphas[k], *found.lengths[k]])
        differences = [(error(at + step * unit) - error(at - step * unit)) / (2 * step) for unit in np.eye(5)]
        assert_allclose(-found.scores[k], error(at), rtol=1e-9)
        scale = np.abs(differences).max()
        assert_allclose(-found.gradients[k], differences, rtol=1e-5, atol=1e-6 * scale)


def test_errors_of_residuals_are_of_second_order():
    X, Y = problem()
    settings = {"kernel": RBF(gamma=0.2), "cv": 4, "optimize": "alpha", "max_evaluations": 1, "refit": False}
    exact, loose = (_warned("stopped after 1", X, Y, alphas=[0.1], cv_tol=tol, **settings) for tol in (1e-11, 1e-2))
    assert 0 < abs(loose.score / exact.score - 1) < 2e-5
    assert_allclose(loose.gradients, exact.gradients, rtol=2e-2)


def test_lengths_of_columns_that_do_not_matter_grow():
    rng = np.random.default_rng(0)
    X = np.asfortranarray(rng.standard_normal((300, 5)))  # as columns of a DataFrame lie
    y = np.sin(2 * X[:, 0]) + np.cos(2 * X[:, 1]) + 0.1 * rng.standard_normal(300)
    search = KernelRidgeCV([0.01, 0.1, 1.0], kernel="rbf", gamma=[0.05, 0.2], optimize="ard", cv=4)
    optimum, grid = search.fit(X[:200], y[:200]).optimum_, search.cv_results_["mean_test_score"]
    lengths = optimum.kernel.lengths(5)
    assert optimum.converged and lengths[2:].min() > 5 * lengths[:2].max()
    assert grid.shape == (6,) and search.best_index_ == np.argmax(grid)
    assert search.best_score_ == optimum.score > 0.5 * grid.max()  # they are negative
    assert_allclose(optimum.scores[0], grid.max(), rtol=1e-4)
    assert search.best_params_ == {"alpha": optimum.alpha, "kernel": optimum.kernel}
    assert np.mean((search.predict(X[200:]) - y[200:]) ** 2) < 0.05


@pytest.mark.parametrize("convert", [np.asarray, sp.csr_array])
def test_alpha_alone_is_that_of_a_fine_grid(convert):
    X, Y = problem(t=1)
    Y = Y + np.random.default_rng(2).standard_normal(Y.shape)
    kernel, pairs = Laplacian(gamma=0.2), list(KFold(5).split(X))
    search = KernelRidgeCV([0.01, 10.0], kernel=kernel, optimize="alpha", store_cv_predictions=True).fit(convert(X), Y)
    errors = [dense_error(X, Y, None, kernel, a, pairs, fit_intercept=False) for a in np.geomspace(0.01, 10, 31)]
    assert -search.best_score_ < min(errors) * (1 + 1e-3)
    assert_allclose(np.mean((search.cv_predictions_ - Y) ** 2), -search.best_score_, rtol=1e-4)


def test_one_length_is_for_all_columns_or_times_those_of_each():
    X, Y = problem(n=80)
    search = KernelRidgeCV([0.01, 0.1], optimize="isotropic", cv=LeaveOneGroupOut()).fit(
        X, Y, groups=np.arange(80) // 20
    )
    assert search.optimum_.lengths.shape == (search.optimum_.n_evaluations, 1)
    pairs = list(LeaveOneGroupOut().split(X, groups=np.arange(80) // 20))
    error = dense_error(X, Y, None, search.optimum_.kernel, search.alpha_, pairs, fit_intercept=False)
    assert_allclose(-search.best_score_, error, rtol=1e-4)
    found = (
        KernelRidgeCV([0.1], kernel=Matern(nu=1.5, length_scale=LENGTHS), optimize="isotropic")
        .fit(X, Y)
        .optimum_.kernel.length_scale
    )
    assert_allclose(np.array(found) / LENGTHS, found[0] / LENGTHS[0])


def test_a_search_stops_after_its_evaluations_and_resumes_them(tmp_path):
    (X, Y), settings = problem(n=80), {"alphas": [0.1], "optimize": "ard", "store": str(tmp_path / "run")}
    first, second = (
        _warned(f"stopped after {k} evaluations", X, Y, max_evaluations=k, refit=k == 3, **settings) for k in (3, 5)
    )
    assert (first.n_evaluations, first.converged, first.score) == (3, False, first.scores.max())
    assert_array_equal(second.scores[:3], first.scores)
    assert_array_equal(second.gradients[:3], first.gradients)


def _warned(match, X, Y, **settings):
    with pytest.warns(ConvergenceWarning, match=match):
        return KernelRidgeCV(**settings).fit(X, Y).optimum_


def test_an_evaluation_whose_systems_are_not_solved_is_not_taken():
    X, Y = problem(n=80)
    settings = {"alphas": [0.3], "tol": 1e-3, "optimize": "ard", "refit": False}
    few = ConjugateGradient(preconditioner=None, max_iter=30, precision="mixed")
    found = _warned("an evaluation, with alpha = .* not solved; the best of its", X, Y, solver=few, **settings)
    assert found.alphas.min() > 0.1, "that of 0.03 is none of its evaluations"
    with pytest.raises(InputError, match="the systems of the first evaluation, with alpha = 0.3, were solved to"):
        KernelRidgeCV(solver=ConjugateGradient(preconditioner=None, max_iter=15, precision="mixed"), **settings).fit(
            X, Y
        )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimize": "lengths"}, "expected None, 'isotropic' .* 'ard' .* or 'alpha'"),
        ({"cv": "loo"}, "cv is leave-one-out"),
        ({"alphas": [0.0, 1.0]}, "alphas has 0"),
        ({"scoring": "r2"}, "scoring is given"),
        ({"alpha_per_target": True}, "alpha_per_target is True"),
        ({"solver": "cholesky"}, "solver is Cholesky"),
        ({"kernel": "laplacian"}, "not of squared differences"),
        ({"kernel": "linear"}, "asks for derivatives by lengths"),
        ({"kernel": "linear", "optimize": "alpha"}, "the plan is the primal form"),
        ({"kernel": Nystroem(RBF(gamma=1.0), 10), "optimize": "alpha"}, "fitted to the training rows"),
        ({}, "X is sparse"),
    ],
    ids=str,
)
def test_what_has_no_gradient_is_refused(settings, message):
    X, Y = problem(n=30)
    X = X if settings else sp.csr_array(X)
    with pytest.raises(InputError, match=message):
        KernelRidgeCV(**{"alphas": [0.1], "optimize": "ard"} | settings).fit(X, Y)


def test_a_search_that_ends_at_a_bound_says_so():
    X, y = np.random.default_rng(0).normal(size=(2, 80, 3))
    search = KernelRidgeCV([1e-2], kernel="rbf", cv=4, optimize="alpha")
    with pytest.warns(ConvergenceWarning, match=r"ended at the bound .* alpha = 10, and .*; expected .* start there"):
        assert search.fit(X, y[:, 0]).alpha_ == pytest.approx(10)
    assert not search.optimum_.converged and search.set_params(alphas=[10.0]).fit(X, y[:, 0]).optimum_.converged


# Targets near the ends of their range: everything is as for targets near 1, times a power of two


HUGE, TINY = 2.0**396, 2.0**-396
ALPHAS = [100.0, 1.0, 0.1, 0.01, 1e-6]
METHODS = {
    "sums": {"kernel": "poly", "form": "primal"},
    "rows": {"kernel": "linear", "gamma": None, "cv": "loo", "fit_intercept": True},
    "factors": {"solver": "cholesky", "fit_intercept": True},
    "loo": {"cv": "loo"},
    "sweep": {"solver": "cg"},
    "no race": {"solver": "cg", "early_stopping": False, "alpha_per_target": True},
    "gradients": {"optimize": "isotropic", "max_evaluations": 3},
    "kernels": {"gamma": [0.1, 1.0], "train_sizes": [0.5]},
    "other scores": {"scoring": "neg_mean_absolute_error"},
    "refits": {"kernel": Nystroem(RBF(gamma=1.0), 10), "gamma": None},
}


@cache
def samples():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, size=(60, 2))
    y = np.sin(2 * X[:, 0]) + 0.1 * rng.standard_normal(60)
    return X, np.column_stack([y, y**2])


@cache
def search_of(way, size):
    """Search that keeps predictions; its warnings are errors."""
    X, Y = samples()
    settings = {"kernel": "rbf", "gamma": 1.0, "cv": 3, "store_cv_predictions": True} | METHODS[way]
    unfinished = pytest.warns(match="max_evaluations") if way == "gradients" else nullcontext()
    with unfinished:
        return KernelRidgeCV(ALPHAS, **settings).fit(X, size * Y)


@pytest.mark.parametrize(("way", "size"), [(way, (HUGE, TINY)[k % 2]) for k, way in enumerate(METHODS)])
def test_a_selection_does_not_depend_on_the_size_of_the_targets(way, size):
    X, _ = samples()
    expected, found = search_of(way, 1.0), search_of(way, size)
    assert str(found.best_params_) == str(expected.best_params_) and found.plan_.form == expected.plan_.form
    order = size**2 if way != "other scores" else size
    assert_allclose(found.best_score_, np.multiply(order, expected.best_score_))
    for name in ("rank_test_score", "stopped"):
        assert found.cv_results_[name].tolist() == expected.cv_results_[name].tolist()
    for name in ("mean_test_score", "std_test_score"):
        assert_allclose(found.cv_results_[name], order * expected.cv_results_[name])
    if "train_sizes" in METHODS[way]:
        assert found.learning_curve_["alpha"].tolist() == expected.learning_curve_["alpha"].tolist()
    assert_close(found.cv_predictions_ / size, expected.cv_predictions_, 1e-9)
    assert_allclose(found.predict(X) / size, expected.predict(X), rtol=1e-4)


@every_pair(
    settings=[{"kernel": "linear"}, {"kernel": "rbf"}, {"kernel": "rbf", "solver": "cg"}],
    fit_intercept=[False, True],
    size=[HUGE, TINY],
    ids=str,
)
def test_errors_of_a_fit_do_not_depend_on_the_size_of_the_targets(settings, fit_intercept, size):
    (X, Y), sizes = samples(), np.array([size, 1.0])
    plain, scaled = (KernelRidge(0.1, fit_intercept=fit_intercept, **settings).fit(X, Y * s) for s in (1.0, sizes))
    likelihood = plain.log_marginal_likelihood() - (60 - fit_intercept) * np.log(sizes)
    assert_allclose(scaled.log_marginal_likelihood(), likelihood, rtol=1e-12)
    for of, unit, accuracy in (
        (lambda model: model.predict(X[:5], return_std=True)[1], sizes, 1e-9),
        (lambda model: model.predict(X[:5], return_std=True, variance_scale=2.0)[1], 1.0, 1e-9),
        (lambda model: model.loo_residuals(), sizes, 1e-9),
        (lambda model: np.array(model.predict_interval(X[:5])), sizes, 1e-9),
        (lambda model: np.array(model.predict_variance_bounds(X[:5])), sizes * sizes, 1e-6),
    ):
        assert_allclose(of(scaled), of(plain) * unit, rtol=accuracy)


# The primal form: sums over the folds where these are accurate, and predictions elsewhere


PENALTIES = [100.0, 1.0, 1e-3]
N = 1100
"""Enough for a sample of 5 or 6 features."""


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N, 5)) + 1.0
    Y = X @ rng.standard_normal((5, 2)) + [3.0, 1e3] + 0.3 * rng.standard_normal((N, 2))
    return X, Y, rng.uniform(0.5, 2.0, N) * (rng.uniform(size=N) > 0.1)


def primal_search(folds, alphas=PENALTIES, **settings):
    return KernelRidgeCV(alphas, kernel="linear", form="primal", cv=folds, refit=False, **settings)


def test_sums_that_cancel_are_not_taken(rows):
    X, Y, _ = rows
    Y = X @ np.ones((5, 2)) + 1e-7 * Y
    folds = list(KFold(4).split(X))
    alphas = [1e5, 10.0, 1e-8]
    search = primal_search(folds, alphas).fit(X, Y)
    assert_allclose(scores_of(search), naive_scores(X, Y, folds, alphas, kernel="linear"), rtol=1e-9)


@every_pair(folds=["whole", "overlapping", "partial", "growing"], parts=[1, 2, 3], fit_intercept=[False, True])
def test_sums_over_folds_give_the_scores_of_fits_also_if_these_are_not_a_partition(
    rows, monkeypatch, folds, parts, fit_intercept
):
    monkeypatch.setattr(sums, "parts_for_folds", lambda *_: parts)
    X, Y, weights = rows
    Y, everything = Y if fit_intercept else Y - [3.0, 1e3], np.arange(N)
    tests = [everything[:300], everything[200:500]] if folds == "overlapping" else [everything[7:300], everything[400:]]
    splitters = {"whole": KFold(4, shuffle=True, random_state=0), "growing": TimeSeriesSplit(3)}
    pairs = [(np.setdiff1d(everything, test), test) for test in tests]
    pairs = list(splitters[folds].split(X)) if folds in splitters else pairs
    search = primal_search(pairs, fit_intercept=fit_intercept).fit(X, Y, sample_weight=weights)
    expected = naive_scores(X, Y, pairs, PENALTIES, weights, kernel="linear", fit_intercept=fit_intercept)
    assert_allclose(scores_of(search), expected, rtol=1e-9)


def test_other_scores_take_predictions_in_several_segments(rows, monkeypatch):
    monkeypatch.setattr(sums, "parts_for_folds", lambda *_: 3)
    X, Y, _ = rows
    folds = list(ShuffleSplit(3, random_state=0).split(X))
    search = primal_search(folds, scoring="r2", store_cv_predictions=True).fit(X, Y[:, 0])
    variances = [np.var(Y[test, 0]) for _, test in folds]
    expected = naive_scores(X, Y[:, 0], folds, PENALTIES, kernel="linear")
    assert_allclose(1 - scores_of(search), -expected / variances, rtol=1e-9)
    assert search.cv_predictions_.shape == (N,)


@pytest.mark.parametrize("number", [pytest.param(k, marks=[pytest.mark.nightly] * (k > 2)) for k in range(6)])
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


@pytest.mark.filterwarnings("ignore:true relative residual")  # a heavy row without a constant
@pytest.mark.parametrize("case", ["alone", "several", "weight", "square"])
@pytest.mark.parametrize("fit_intercept", [False, True])
def test_rows_with_a_leverage_near_1_have_the_errors_of_models_without_them(case, fit_intercept, monkeypatch):
    X, Y, weights, near = with_leverages_of_1(case)
    alphas, settings, searches = [1.0, 1e-6], {"fit_intercept": fit_intercept}, []
    for parts, keeps in ((1, True), (1, False), (3, False)):
        monkeypatch.setattr(sums, "parts_for_folds", lambda *_, parts=parts: parts)
        search = primal_search("loo", alphas, store_cv_predictions=keeps, **settings)
        searches.append(search.fit(X, Y, sample_weight=weights))
    for a, alpha in enumerate(alphas):
        errors = np.vstack(exact_errors(X, Y, leave_one_out(len(X)), alpha, weights, **settings))
        score = -np.mean(np.average(errors**2, axis=0, weights=weights))
        for search in searches:
            assert_allclose(search.cv_results_["mean_test_score"][a], score, rtol=1e-9)
        model = KernelRidge(alpha, kernel="linear", form="primal", **settings).fit(X, Y, sample_weight=weights)
        assert_allclose(model.loo_residuals()[near], errors[near], rtol=1e-8)
        # A fit with the large rows keeps few digits of the others.
        assert_allclose(model.loo_residuals(), errors, rtol=1e-8, atol=0.1)
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
