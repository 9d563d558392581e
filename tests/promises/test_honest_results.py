"""A result says whether it is right: what was not reached, is ill-conditioned or has no solution is not a success."""

from contextlib import nullcontext, suppress

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

import dkrr
from dkrr import KernelLogisticRegression, KernelRidge, KernelRidgeCV
from dkrr.errors import ConvergenceWarning, InputError, NotPositiveDefiniteError
from dkrr.features import Nystroem
from dkrr.fitting import iteration
from dkrr.kernels import RBF, AdditiveChi2, Linear, Polynomial, Sigmoid
from dkrr.linalg.giving_up import Watch
from dkrr.planning import iterations_first, planner
from dkrr.solvers import ConjugateGradient, Float32Cholesky, RPCholesky, Status
from tests import precise
from tests.oracles import assert_close, naive_gram
from tests.pairs import every_pair

PLACES = {"memory": {}, "tiles": {"tile": 12}}
every_place = pytest.mark.parametrize("place", PLACES)


def normal(*shapes):
    """Normal numbers of each shape, always the same."""
    rng = np.random.default_rng(0)
    return [rng.normal(size=shape) for shape in shapes]


def negative(A, B):
    return -np.exp(-((A[:, None] - B) ** 2).sum(axis=2))


NOT_POSITIVE = [(negative, "cg"), (negative, "cholesky"), (2 * AdditiveChi2(), "cholesky")]
NOT_POSITIVE += [(2 * AdditiveChi2(), ConjugateGradient(*one)) for one in ((None, "mixed"), (RPCholesky(31),))]
NOT_POSITIVE += [(Sigmoid(gamma=0.5, coef0=-1.0), ConjugateGradient(Float32Cholesky()))]


@pytest.mark.parametrize(("kernel", "solver"), NOT_POSITIVE, ids=lambda value: getattr(value, "__name__", repr(value)))
@pytest.mark.parametrize("tile", [None, 80])
def test_a_kernel_that_is_not_positive_is_found(data, kernel, solver, tile):
    with pytest.raises(NotPositiveDefiniteError, match=r"(?s)(?=.*not positive).*alpha = 0\.001.*increase alpha"):
        KernelRidge(1e-3, kernel=kernel, solver=solver, tile=tile).fit(np.abs(data.X), data.y[:, 0])


def test_the_negative_kernel_of_scikit_learn_is_refused_before_work_and_by_name():
    X, y = np.eye(3), np.arange(3.0)
    for use in (KernelRidge, KernelRidgeCV, KernelLogisticRegression):
        with pytest.raises(InputError, match=r"'additive_chi2', .*negative.*expected 'chi2'.*AdditiveChi2Sampler"):
            use(kernel="additive_chi2").fit(X, y)
    with pytest.raises(InputError, match="expected 'chi2'"):
        dkrr.plan(X, y, kernel="additive_chi2")
    assert np.asarray(dkrr.gram(X, kernel="additive_chi2"))[0, 1] == -2


@pytest.mark.parametrize("tile", [None, 80])
def test_a_matrix_that_is_not_symmetric_is_refused(data, tile):
    K = RBF(gamma=0.3)(data.X)
    K[100, 20] += 1e-3
    for solver in ("cholesky", "cg"):
        with pytest.raises(
            InputError, match=r"not symmetric: entry \((20, 100|100, 20)\) and its mirror image .*use \(K \+ K\.T\) / 2"
        ):
            KernelRidge(kernel="precomputed", solver=solver, tile=tile).fit(K, data.y)


@pytest.mark.parametrize("precision", ["float64", "mixed"])
def test_an_accuracy_below_rounding_is_warned_of_with_the_true_residual(data, precision):
    model, y = KernelRidge(1e-9, kernel="rbf", solver=ConjugateGradient(precision=precision), tol=1e-15), data.y[:, 0]
    with pytest.warns(ConvergenceWarning, match="true relative residual .*e-1.* where 1.0e-15 was asked") as caught:
        result = model.fit(data.X, y).solve_result_
    assert result.status in (Status.STALLED, Status.MAX_ITERATIONS)
    assert f"true relative residual {result.residual:.1e}" in str(caught[0].message)
    A = naive_gram(RBF(gamma=0.2), data.X) + 1e-9 * np.eye(211)
    assert np.linalg.norm(y - A @ model.dual_coef_) / np.linalg.norm(y) <= 1.5 * result.residual + 1e-14


@pytest.mark.parametrize("store", [False, True])
def test_too_few_iterations_are_warned_of_and_more_of_them_continue_in_the_store(data, tmp_path, store):
    model = KernelRidge(1e-3, kernel="rbf", store=str(tmp_path / "run.zarr") if store else None)
    few = ConjugateGradient(RPCholesky(31), max_iter=3)
    with pytest.warns(ConvergenceWarning, match="after 3 iterations.*max_iter") as caught:
        result = model.set_params(solver=few).fit(data.X, data.y).solve_result_
    assert (result.status, result.iterations) == (Status.MAX_ITERATIONS, 3) and result.residual > 1e-8
    assert f"{result.residual:.1e}" in str(caught[0].message)
    result = model.set_params(solver=ConjugateGradient(RPCholesky(31))).fit(data.X, data.y).solve_result_
    assert result.status is Status.CONVERGED
    steps = [h.iteration for h in result.history if not h.is_true]
    assert steps == list(range(1, result.iterations + 1)) and result.history[-1].is_true


@pytest.mark.parametrize("preconditioner", ["auto", None, Float32Cholesky()], ids=repr)
def test_targets_of_zeros_take_no_iteration(data, preconditioner):
    model = KernelRidge(kernel="rbf", tile=80, solver=ConjugateGradient(preconditioner), tol=1e-10)
    result = model.fit(data.X, np.zeros(211)).solve_result_
    assert (model.dual_coef_ == 0).all() and (result.iterations, result.status) == (0, Status.CONVERGED)
    mixed = np.column_stack([np.zeros(211), data.y[:, 0]])
    assert (model.fit(data.X, mixed).dual_coef_[:, 0] == 0).all()
    assert_close(model.dual_coef_[:, 1], KernelRidge(kernel="rbf").fit(data.X, mixed[:, 1]).dual_coef_, 1e-7)


def test_least_squares_of_a_singular_matrix_has_no_silent_answer(data):
    X = data.X.copy()
    X[137] = X[60]  # with other targets: no solution exists
    # The outcome depends on rounding: a direction of negative curvature, or a residual that stays.
    with pytest.raises((NotPositiveDefiniteError, ConvergenceWarning), match="alpha = 0|true relative residual"):
        KernelRidge(0.0, kernel="rbf", gamma=3.0, solver="cg").fit(X, data.y[:, 0])


@pytest.fixture
def hasty(monkeypatch):
    """Conjugate gradient that is chosen for anything, and gives up after two iterations."""
    monkeypatch.setattr(iterations_first, "PROMISED", 1e6)
    monkeypatch.setattr(iterations_first, "SOON_SECONDS", 0.0)
    for name in ("TINY_SECONDS", "SMALL_SECONDS", "MIN_COMPARED_SECONDS"):
        monkeypatch.setattr(planner, name, 0.0)
    for name in ("__call__", "prepare"):
        monkeypatch.setattr(Watch, name, lambda *_: None)
    monkeypatch.setattr(iteration, "settings_of", lambda plan: ConjugateGradient(max_iter=2))
    monkeypatch.setattr(
        planner, "_cheapest", lambda fitting, _: min(fitting, key=lambda c: (c.solver != "cg", c.seconds))
    )


def test_a_factorisation_takes_over_where_conjugate_gradient_was_chosen_but_not_where_it_was_asked_for(hasty):
    X, y = normal((600, 4), 600)
    model, exact, asked = (KernelRidge(1e-3, kernel="rbf", gamma=0.5, solver=s) for s in ("auto", "cholesky", "cg"))
    result = model.fit(X, y).solve_result_
    assert (model.plan_.solver, result.status) == ("cholesky", Status.SOLVED)
    assert "factoring instead" in result.messages[0]
    assert_array_equal(model.dual_coef_, exact.fit(X, y).dual_coef_)
    with pytest.warns(ConvergenceWarning, match="after 2 iterations"):
        asked.fit(X, y)
    assert (asked.plan_.solver, asked.solve_result_.status) == ("cg", Status.MAX_ITERATIONS)


@pytest.mark.parametrize(("size", "alpha", "tile"), [(1e22, 1e40, 64), (1e-30, 1e-60, None)])
def test_entries_outside_of_the_range_of_float32_are_scaled(size, alpha, tile):
    X, y = normal((120, 150), 120)
    model = KernelRidge(alpha, solver=ConjugateGradient(Float32Cholesky()), form="dual", tile=tile)
    result = model.fit(size * X, y).solve_result_
    assert result.status is Status.CONVERGED and result.residual <= 1e-8
    assert result.messages == () and result.iterations <= 5


@every_place
def test_predictions_are_right_where_coefficients_are_not_and_it_is_said(place):
    X = np.linspace(-1, 1, 40)[:, None]
    y = np.exp(-((X[:, 0] - 0.1) ** 2))
    exact = precise.ridge(RBF(gamma=1.0), X, y, 1e-15)
    model = KernelRidge(1e-15, kernel="rbf", gamma=1.0, **PLACES[place]).fit(X, y)
    result = model.solve_result_
    error = np.linalg.norm(model.dual_coef_ - exact.dual_coef[:, 0]) / np.linalg.norm(exact.dual_coef)
    assert result.status is Status.SOLVED and 1e-3 < error <= 10 * result.condition * np.finfo(float).eps
    assert_allclose(model.predict(X), exact.fitted[:, 0], rtol=0, atol=1e-12)
    (message,) = (m for m in result.messages if "condition" in m)
    assert message.startswith("dual_coef_ may be off by as much as all of its length") and message in str(result)
    assert f"condition   {result.condition:.1e}" in str(result)


@every_pair(place=list(PLACES), form=["dual", "primal"], fit_intercept=[False, True])
def test_the_condition_number_is_that_of_the_scaled_matrix(place, form, fit_intercept):
    X, y = normal((60, 30), (60, 2))
    model = KernelRidge([1e-3, 10.0], form=form, fit_intercept=fit_intercept, **PLACES[place]).fit(X, y)
    centred = X - X.mean(axis=0) if fit_intercept else X
    A = X @ X.T if form == "dual" else centred.T @ centred
    A = A + 1e-3 * np.eye(len(A))
    if not (form == "primal" and place == "tiles"):
        A /= np.sqrt(np.outer(A.diagonal(), A.diagonal()))
    exact = np.linalg.cond(A)
    assert exact / 20 < model.solve_result_.condition <= 1.01 * exact and model.solve_result_.messages == ()


@every_place
def test_weights_over_twenty_orders_cost_no_digits_and_no_caution(place):
    (X, y), weights = normal((60, 3), 60), np.logspace(-10, 10, 60)
    weights[7] = 0.0
    exact = precise.ridge(RBF(gamma=2.0), X, y, 1e-6, sample_weight=weights)
    model = KernelRidge(1e-6, kernel="rbf", gamma=2.0, **PLACES[place]).fit(X, y, sample_weight=weights)
    assert_allclose(model.dual_coef_, exact.dual_coef[:, 0], rtol=1e-9)
    assert model.solve_result_.messages == ()


@pytest.mark.parametrize("tile", [None, 50])
def test_scores_of_an_ill_conditioned_system_are_left_out(data, tile):
    X = data.X.copy()
    X[100] = X[3]  # rounding leaves a pivot of 1e-16 there
    search = KernelRidgeCV([1.0, 0.0], gamma=3.0, solver="cholesky", cv=3, tile=tile)
    with pytest.warns(ConvergenceWarning, match="no scores of alpha = 0: the true residual"):
        search.fit(X, data.y[:, 0])
    assert search.alpha_ == 1.0 and np.isnan(search.cv_results_["mean_test_score"][1])
    assert search.cv_results_["residual"][0] < 1e-12 < search.cv_results_["residual"][1]


@pytest.mark.filterwarnings("ignore:true relative residual")
@every_pair(
    case=[
        (RBF(gamma=0.1), ConjugateGradient(max_iter=100), 1e-3),
        (Nystroem(RBF(gamma=2.0), 30), ConjugateGradient(None, max_iter=4), 1e3),
    ],
    n_targets=[1, 3],
    ids=str,
)
def test_lambda_whose_systems_were_not_solved_have_no_score(case, n_targets):
    (kernel, solver, good), (X, y) = case, normal((120, 3), (120, n_targets))
    search = KernelRidgeCV([1e-10, good], kernel=kernel, solver=solver, cv=3, train_sizes=[0.5], refit=False)
    with pytest.warns(ConvergenceWarning, match="no scores of alpha = 1e-10: the true residual of their systems"):
        search.fit(X, y)
    assert search.alpha_ == good and search.best_index_ == 1
    results = search.cv_results_
    assert_array_equal(np.isnan(results["mean_test_score"]), [True, False])
    assert results["rank_test_score"].tolist() == [2, 1] and not results["stopped"].any()
    assert results["residual"][0] > 1e-3 >= results["residual"][1]


def test_an_intercept_is_solved_as_well_as_the_scores_need():
    """With a nearly constant kernel b is a hundred times the targets, and so are errors of its system."""
    rng = np.random.default_rng(2)
    X = rng.normal(size=(46, 2))
    y, settings = 5 + X[:, 0] + 0.3 * rng.normal(size=46), {"kernel": RBF(gamma=0.01), "fit_intercept": True, "cv": 4}
    found, expected = (
        KernelRidgeCV([1e-3, 3e-7], solver=solver, refit=False, early_stopping=False, **settings).fit(X, y).cv_results_
        for solver in ("cg", "cholesky")
    )
    assert_allclose(found["mean_test_score"], expected["mean_test_score"], rtol=2e-3)


# Few rows that outweigh all others


def of_heavy_rows(weights, kernel, alpha=1e-3, *, fit_intercept, n=60, d=3):
    """Data with these weights of the first rows, and the exact answer for them and for new rows."""
    X, X_new, noise = normal((n, d), (20, d), n)
    y, w = np.sin(X[:, 0]) + 0.1 * noise, np.r_[weights, np.ones(n - len(weights))]
    exact = precise.ridge(kernel, X, y, alpha, sample_weight=w, fit_intercept=fit_intercept, X_new=X_new)
    return X, y, w, X_new, exact


def relative_error(found, expected):
    return np.linalg.norm(np.ravel(found) - np.ravel(expected)) / np.linalg.norm(expected)


BY_BOUND = (Status.SOLVED, Status.INACCURATE)
DUAL_WAYS = {
    "memory": {"solver": "cholesky"},
    "tiles": {"solver": "cholesky", "tile": 13},
    "cg": {"solver": "cg"},
    "float32": {"solver": ConjugateGradient(Float32Cholesky())},
}


@pytest.mark.parametrize("way", DUAL_WAYS)
def test_an_intercept_keeps_its_digits_beside_one_heavy_row(way):
    kernel = Polynomial(degree=2).resolved(3)
    X, y, w, X_new, exact = of_heavy_rows([1e14], kernel, fit_intercept=True)
    model = KernelRidge(1e-3, kernel=kernel, form="dual", fit_intercept=True, **DUAL_WAYS[way]).fit(X, y, w)
    result = model.solve_result_
    assert result.status.is_good and result.residual <= 1e-8 and not any("may be off" in m for m in result.messages)
    assert relative_error(model.dual_coef_, exact.dual_coef) < 1e-7
    assert relative_error(model.predict(X_new), exact.predictions) < 1e-7


@pytest.mark.parametrize("solver", ["cholesky", "cg"])
@pytest.mark.parametrize("weight", [1e12, 1e15, 1e18])
def test_dual_coefficients_of_one_heavy_row_follow_from_the_others(solver, weight):
    X, y, w, X_new, exact = of_heavy_rows([weight], Linear(), 1.0, fit_intercept=True)
    model = KernelRidge(1.0, form="primal", solver=solver, fit_intercept=True).fit(X, y, w)
    assert relative_error(model.dual_coef_, exact.dual_coef) < 1e-10
    assert relative_error(model.predict(X_new), exact.predictions) < 1e-10


@pytest.mark.filterwarnings("ignore:true relative residual")
@every_pair(
    solver=["cholesky", "cg", ConjugateGradient(None)],
    weights=[[1e6], [1e9], [1e12], [1e16], [1e16, 1e16, 1e15], [1e-8] * 30],
    kernel=[Linear(), Polynomial(degree=3)],
    fit_intercept=[False, True],
    tile=[None, 11],
)
def test_primal_fits_with_heavy_rows_are_right_or_say_what_is_not(solver, weights, kernel, fit_intercept, tile):
    kernel = kernel.resolved(3)
    X, y, w, X_new, exact = of_heavy_rows(weights, kernel, 0.1, fit_intercept=fit_intercept)
    model = KernelRidge(0.1, kernel=kernel, form="primal", solver=solver, fit_intercept=fit_intercept, tile=tile)
    with suppress(NotPositiveDefiniteError) if max(weights) == 1e16 else nullcontext():
        model.fit(X, y, w)
    if not hasattr(model, "solve_result_"):
        return
    result = model.solve_result_
    assert result.residual_of == ("normal equations" if result.status in BY_BOUND else "dual system")
    assert not result.history or result.history[-1].iteration == result.iterations, "with those that refine"
    if result.status.is_good:
        assert relative_error(model.predict(X_new), exact.predictions) < 1e-5
        is_uncertain = any("dual_coef_" in m and "may be off" in m for m in result.messages)
        assert is_uncertain or relative_error(model.dual_coef_, exact.dual_coef) < 1e-3


@pytest.mark.parametrize("solver", ["cholesky", "cg"])
def test_scores_that_rounding_hides_in_primal_form_are_left_out(solver):
    X, y, w, _, _ = of_heavy_rows([1e16], Linear(), 1.0, fit_intercept=False)
    search = KernelRidgeCV([1e-3, 0.1, 10.0], kernel="linear", cv=3, form="primal", solver=solver)
    with (
        pytest.warns(ConvergenceWarning, match="true relative residual|no scores"),
        pytest.raises(InputError, match="no candidate has a score"),
    ):
        search.fit(X, y, sample_weight=w)
    weights = np.where(w > 1, 1e6, 1.0)
    search.fit(X, y, sample_weight=weights)
    expected = []
    for test in np.array_split(np.arange(60), 3):
        train = np.setdiff1d(np.arange(60), test)
        one = precise.ridge(Linear(), X[train], y[train], 0.1, sample_weight=weights[train], X_new=X[test])
        expected.append(-np.average((y[test] - one.predictions[:, 0]) ** 2, weights=weights[test]))
    assert search.cv_results_["mean_test_score"][1] == pytest.approx(np.mean(expected), rel=1e-3)


# Conjugate gradient in primal form


@every_pair(twins=[False, True], alpha=[1e-3, 1e-7], fit_intercept=[False, True], degree=[1, 3])
def test_conjugate_gradient_in_primal_form_reaches_the_predictions(twins, alpha, fit_intercept, degree):
    X, X_new, noise = normal((120, 4), (20, 4), 120)
    if twins:
        X[40:80] = X[:40] + 1e-6 * X[40:80]
    y, kernel = np.sin(X[:, 0]) + 0.1 * noise, Polynomial(degree=degree).resolved(4)
    exact = precise.ridge(kernel, X, y, alpha, fit_intercept=fit_intercept, X_new=X_new)
    model = KernelRidge(alpha, kernel=kernel, form="primal", solver="cg", fit_intercept=fit_intercept).fit(X, y)
    assert model.solve_result_.status.is_good and model.solve_result_.residual <= 1e-8
    assert relative_error(model.predict(X_new), exact.predictions) < 1e-7


def test_least_squares_by_conjugate_gradient_are_judged_by_the_condition_number():
    X, noise = normal((300, 6), 300)
    X[:, 5] = X[:, 4] + 1e-4 * X[:, 5]
    y = X @ np.arange(6.0) + noise
    model = KernelRidge(0.0, form="primal", solver="cg", tol=1e-6).fit(X, y)
    assert model.solve_result_.status.is_good and model.solve_result_.residual_of == "normal equations"
    assert relative_error(model.predict(X), X @ np.linalg.lstsq(X, y)[0]) < 1e-6


@given(seed=st.integers(0, 10**6), d=st.integers(1, 3), log_alpha=st.integers(-300, 2), log_weight=st.integers(0, 8))
@example(seed=624, d=3, log_alpha=-7, log_weight=0)  # was 2 % off with a residual of 1.6e-12
@example(seed=0, d=2, log_alpha=-17, log_weight=0)  # the dual residual of the exact α, rounded, is 50
def test_iterations_on_few_good_columns_never_go_on_with_cancellation(seed, d, log_alpha, log_weight):
    rng = np.random.default_rng(seed)
    X, y, w = rng.normal(size=(30, d)), rng.normal(size=(30, 2)), np.r_[10.0**log_weight, np.ones(29)]
    alpha, root = 10.0**log_alpha, np.sqrt(w)[:, None]
    model = KernelRidge(alpha, form="primal", solver="cg").fit(X, y, w)
    expected = np.linalg.lstsq(
        np.vstack([X * root, np.sqrt(alpha) * np.eye(d)]), np.vstack([y * root, np.zeros((d, 2))])
    )[0]
    assert model.solve_result_.status.is_good and model.solve_result_.iterations <= 8 * d
    assert_close(X @ model.coef_.T, X @ expected, 1e-6)
    assert_close(model.dual_coef_, w[:, None] * (y - X @ expected) / alpha, 1e-6)


def test_targets_without_a_penalty_have_finite_residuals_beside_others(data):
    model = KernelRidge([0.0, 1e-13], form="primal", solver="cg").fit(data.X, data.y[:, :2])
    assert max(model.solve_result_.residuals) < 1e-8 and model.solve_result_.residual_of == "normal equations"
