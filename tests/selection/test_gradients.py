"""Gradients of the cross-validated error, and the search by them."""

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.model_selection import KFold, LeaveOneGroupOut, TimeSeriesSplit

from dkrr import KernelRidgeCV
from dkrr.errors import ConvergenceWarning, InputError
from dkrr.features import Nystroem
from dkrr.fitting.context import open_context
from dkrr.fitting.data import shared_fields
from dkrr.kernels import RBF, Laplacian, Matern
from dkrr.machine import detect
from dkrr.planning.gradients import plan_gradient
from dkrr.planning.selection import FoldSizes
from dkrr.requests import FitRequest, Settings, Targets
from dkrr.rows import MemoryRows
from dkrr.runtime import Progress
from dkrr.selection import Folds
from dkrr.selection.gradients import EvaluatedData, HeldOutError
from dkrr.solvers import ConjugateGradient

LENGTHS = np.array([1.0, 2.0, 3.0, 2.0])
ALPHAS = np.geomspace(0.01, 10, 31)


def problem(n=150, t=2, d=4, seed=0):
    """Rows far from the origin, and targets with a mean."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) + 3
    Y = np.stack([np.sin((k + 1) * X[:, 0]) + 0.3 * X[:, 1] for k in range(t)], axis=1)
    return X, Y + 0.1 * rng.standard_normal((n, t)) + 2


def weights_of(n):
    """Weights some of which are 0."""
    weights = np.random.default_rng(1).uniform(0.1, 3, n)
    weights[::7] = 0
    return weights


def dense_error(X, Y, weights, kernel, alpha, pairs, *, fit_intercept):
    """Error of all folds by one dense system each, with a border for a free constant."""
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


def evaluated(X, Y, weights, kernel, alpha, pairs, *, fit_intercept=False, tol=1e-12, tile=None, width=None):
    """Error and gradient by conjugate gradient."""
    settings = Settings.checked(
        kernel=kernel,
        fit_intercept=fit_intercept,
        form="auto",
        solver="auto",
        tol=tol,
        tile=tile,
        memory_limit="4GiB",
        store=None,
    )
    request = FitRequest(settings, MemoryRows(X), Targets(Y, np.full(Y.shape[1], alpha)), weights)
    n_targets = Y.shape[1] if width is None else width
    sizes = FoldSizes(len(pairs))
    fields = request.problem().__dict__ | {"n_targets": n_targets}
    plan = plan_gradient(type(request.problem())(**fields), sizes, detect("4GiB", None)).plan
    data = EvaluatedData.of(request.outputs, shared_fields(request, plan.problem))
    with open_context(plan, None, Progress()) as context:
        error = HeldOutError(data, Folds.of_pairs(len(X), pairs), plan, context)
        of_lengths = not isinstance(kernel, Laplacian)
        first = error(alpha, kernel, of_lengths=of_lengths)
        if tile is not None:  # another kernel in between, in the same run
            error(2 * alpha, RBF(0.3), of_lengths=True)
            again = error(alpha, kernel, of_lengths=True)
            assert again.value == first.value
            assert_array_equal(again.by_log_lengths, first.by_log_lengths)
    return first


CASES = {
    "plain": {"weighted": False, "fit_intercept": False, "t": 1},
    "weights": {"weighted": True, "fit_intercept": False},
    "free constant": {"weighted": False, "fit_intercept": True},
    "weights and a free constant": {"weighted": True, "fit_intercept": True, "kernel": Matern(1.5, LENGTHS)},
    "targets by and by": {"weighted": True, "fit_intercept": True, "t": 3, "width": 2},
    "tiles": {"weighted": True, "fit_intercept": True, "tile": 40},
    "one length": {"weighted": False, "fit_intercept": True, "kernel": Matern(2.5, 1.5)},
    "folds that leave out more": {"weighted": True, "fit_intercept": True, "folds": TimeSeriesSplit(3)},
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_agrees_with_dense_systems_and_differences(case):
    case = {"kernel": RBF(0.5 / LENGTHS**2), "t": 2, "folds": KFold(4, shuffle=True, random_state=0)} | case
    X, Y = problem(t=case["t"])
    weights = weights_of(len(X)) if case["weighted"] else None
    pairs, kernel, alpha, step = list(case["folds"].split(X)), case["kernel"], 0.1, 1e-4
    more = {key: case[key] for key in ("tile", "width") if key in case}
    found = evaluated(X, Y, weights, kernel, alpha, pairs, fit_intercept=case["fit_intercept"], **more)

    def error(log_changes):
        lengths = kernel.lengths(4) * np.exp(log_changes[1:])
        changed = kernel if not log_changes[1:].any() else kernel.with_lengths(lengths)
        scaled = alpha * np.exp(log_changes[0])
        return dense_error(X, Y, weights, changed, scaled, pairs, fit_intercept=case["fit_intercept"])

    differences = [(error(step * unit) - error(-step * unit)) / (2 * step) for unit in np.eye(5)]
    assert_allclose(found.value, error(np.zeros(5)), rtol=1e-10)
    gradient = [found.by_log_alpha, *found.by_log_lengths]
    assert_allclose(gradient, differences, rtol=1e-5, atol=1e-6 * np.abs(differences).max())
    assert found.excess <= 1


def test_errors_of_residuals_are_of_second_order():
    X, Y = problem()
    pairs = list(KFold(4).split(X))
    exact = evaluated(X, Y, None, RBF(0.2), 0.1, pairs)
    loose = evaluated(X, Y, None, RBF(0.2), 0.1, pairs, tol=1e-3)
    assert abs(loose.value / exact.value - 1) < 2e-5
    assert_allclose(loose.by_log_alpha, exact.by_log_alpha, rtol=2e-2)


def test_lengths_of_columns_that_do_not_matter_grow():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((500, 5))
    y = np.sin(2 * X[:, 0]) + np.cos(2 * X[:, 1]) + 0.1 * rng.standard_normal(500)
    search = KernelRidgeCV([0.01, 0.1, 1.0], kernel="rbf", gamma=[0.05, 0.2], optimize="lengths", cv=4)
    search.fit(X[:300], y[:300])
    optimum, lengths = search.optimum_, search.optimum_.kernel.lengths(5)
    assert optimum.converged
    assert lengths[2:].min() > 5 * lengths[:2].max()
    grid = search.cv_results_["mean_test_score"]
    assert grid.shape == (6,)
    assert search.best_index_ == np.argmax(grid)
    assert search.best_score_ == optimum.score > 0.5 * grid.max()  # they are negative
    assert_allclose(optimum.scores[0], grid.max(), rtol=1e-4)
    assert search.best_params_ == {"alpha": optimum.alpha, "kernel": optimum.kernel}
    assert np.mean((search.predict(X[300:]) - y[300:]) ** 2) < 0.02
    assert search.as_saved().kernel == optimum.kernel


def test_alpha_alone():
    X, Y = problem(t=1)
    y = Y[:, 0] + np.random.default_rng(2).standard_normal(len(Y))
    kernel, pairs = Laplacian(0.2), list(KFold(5).split(X))
    search = KernelRidgeCV([0.01, 10.0], kernel=kernel, optimize="alpha", store_cv_predictions=True).fit(X, y)
    errors = [dense_error(X, y[:, None], None, kernel, a, pairs, fit_intercept=False) for a in ALPHAS]
    assert -search.best_score_ < min(errors) * (1 + 1e-3)
    assert_allclose(np.mean((search.cv_predictions_ - y) ** 2), -search.best_score_, rtol=1e-4)


def test_one_length_for_all_columns_or_times_those_of_each():
    X, Y = problem(n=80)
    search = KernelRidgeCV([0.01, 0.1], optimize="length").fit(X, Y)
    assert isinstance(search.optimum_.kernel.gamma, float)
    assert search.optimum_.lengths.shape == (search.optimum_.n_evaluations, 1)
    again = KernelRidgeCV([search.alpha_], kernel=search.optimum_.kernel).fit(X, Y)
    assert_allclose(again.best_score_, search.best_score_, rtol=1e-4)
    found = KernelRidgeCV([0.1], kernel=Matern(1.5, LENGTHS), optimize="length").fit(X, Y).optimum_.kernel.length_scale
    assert_allclose(np.array(found) / LENGTHS, found[0] / LENGTHS[0])


def test_resumes_evaluations_and_stops_in_time(tmp_path):
    X, Y = problem(n=80)
    search = KernelRidgeCV([0.1], optimize="lengths", max_evaluations=3, store=str(tmp_path / "run"))
    with pytest.warns(ConvergenceWarning, match="stopped after 3 evaluations"):
        first = search.fit(X, Y).optimum_
    assert (first.n_evaluations, first.converged) == (3, False)
    assert_array_equal(first.score, first.scores.max())
    search.max_evaluations = 5
    with pytest.warns(ConvergenceWarning, match="stopped after 5 evaluations"):
        second = KernelRidgeCV(**search.get_params() | {"refit": False}).fit(X, Y).optimum_
    assert_array_equal(second.scores[:3], first.scores)
    assert_array_equal(second.gradients[:3], first.gradients)


def test_an_evaluation_whose_systems_are_not_solved_is_not_taken():
    X, Y = problem(n=80)
    settings = {"tol": 1e-3, "optimize": "lengths", "refit": False}
    with pytest.warns(ConvergenceWarning, match="an evaluation, with alpha = .* not solved; the best of its"):
        search = KernelRidgeCV([0.3], solver=ConjugateGradient(preconditioner=None, max_iter=30), **settings).fit(X, Y)
    assert search.optimum_.alphas.min() > 0.1, "that of 0.03 is none of its evaluations"
    few = ConjugateGradient(preconditioner=None, max_iter=15)
    with pytest.raises(InputError, match="the systems of the first evaluation, with alpha = 0.3, were solved to"):
        KernelRidgeCV([0.3], solver=few, **settings).fit(X, Y)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimize": "gamma"}, "optimize is 'gamma'; expected None, 'alpha'"),
        ({"max_evaluations": 0}, "max_evaluations is 0; expected a whole number"),
        ({"cv": "loo"}, "cv is leave-one-out"),
        ({"alphas": [0.0, 1.0]}, "alphas has 0"),
        ({"scoring": "r2"}, "scoring is given"),
        ({"alpha_per_target": True}, "alpha_per_target is True"),
        ({"solver": "cholesky"}, "solver is Cholesky"),
        ({"kernel": "laplacian"}, "not of squared differences"),
        ({"kernel": "linear"}, "asks for derivatives by lengths"),
        ({"kernel": "linear", "optimize": "alpha"}, "the plan is the primal form"),
        ({"kernel": Nystroem(RBF(1.0), 10), "optimize": "alpha"}, "fitted to the training rows"),
    ],
)
def test_refusals(settings, message):
    X, Y = problem(n=30)
    with pytest.raises(InputError, match=message):
        KernelRidgeCV(**{"alphas": [0.1], "optimize": "lengths"} | settings).fit(X, Y)


def test_groups_and_sparse_rows():
    X, Y = problem(n=60)
    groups = np.arange(60) // 20
    search = KernelRidgeCV([0.1], optimize="length", cv=LeaveOneGroupOut()).fit(X, Y, groups=groups)
    assert search.n_splits_ == 3
    with pytest.raises(InputError, match="X is sparse"):
        KernelRidgeCV([0.1], optimize="length").fit(sp.csr_array(X), Y)
    assert KernelRidgeCV([0.1], optimize="alpha").fit(sp.csr_array(X), Y).optimum_.converged


def test_an_end_at_a_bound_is_said():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(80, 3)), rng.normal(size=80)
    with pytest.warns(ConvergenceWarning, match=r"ended at the bound .* alpha = 10, and .*; expected .* start there"):
        search = KernelRidgeCV([1e-2], kernel="rbf", cv=4, optimize="alpha").fit(X, y)
    assert not search.optimum_.converged and search.alpha_ == pytest.approx(10)
    assert KernelRidgeCV([10.0], kernel="rbf", cv=4, optimize="alpha").fit(X, y).optimum_.converged
