"""Variances and likelihoods by conjugate gradient against dense formulas."""

import dask.array as da
import numpy as np
import pytest
import zarr
from numpy.testing import assert_allclose

from dkrr import KernelRidge
from dkrr.errors import ConvergenceWarning, InputError
from dkrr.kernels import RBF
from dkrr.solvers import ConjugateGradient, RPCholesky
from tests.pairs import every_pair
from tests.posterior.test_processes import dense_posterior

GAMMA = 0.17
SOLVERS = {
    "auto": "cg",
    "low rank": ConjugateGradient(RPCholesky(12), precision="mixed"),
    "none": ConjugateGradient(None),
}


@pytest.fixture(autouse=True)
def no_factors(monkeypatch):
    """No factor is soon made."""
    monkeypatch.setattr("dkrr.planning.uncertainty.SMALL_SECONDS", -1.0)


def fitted(data, solver="cg", alpha=0.3, weighted=False, **settings):
    model = KernelRidge(alpha=alpha, kernel=RBF(gamma=GAMMA), solver=solver, **settings)
    return model.fit(data.X, data.y, sample_weight=data.weights if weighted else None)


@every_pair(solver=list(SOLVERS), fit_intercept=[False, True], weighted=[False, True])
def test_bounds_hold_the_exact_value(data, solver, fit_intercept, weighted):
    solver = SOLVERS[solver]
    X_new = np.vstack([data.X_new, data.X[:5], np.full((1, 5), 100.0)])
    alphas = [0.3, 0.3, 0.02]
    model = fitted(data, solver, alphas, weighted, fit_intercept=fit_intercept)
    lower, upper = model.predict_variance_bounds(X_new, scale=1.0)
    _, std = model.predict(X_new, return_std=True)
    assert model.uncertainty_plan_.method == "iterations"
    likelihoods, errors = model.log_marginal_likelihood_, model.log_marginal_likelihood_std_
    w = data.weights if weighted else np.ones(211)
    for j, alpha in enumerate(alphas):
        variance, s2, likelihood = dense_posterior(
            RBF(gamma=GAMMA), data.X, data.y[:, j], w, alpha, X_new, fit_intercept
        )
        assert (lower[:, j] <= variance * (1 + 1e-12)).all() and (variance * (1 - 1e-12) <= upper[:, j]).all()
        assert (upper[:, j] - lower[:, j] <= 1.001e-3 * variance).all()
        assert_allclose(std[:, j], np.sqrt(s2 * variance), rtol=5e-4)
        assert 0 < errors[j] < 10
        assert abs(likelihoods[j] - likelihood) < 4 * errors[j]


def test_a_better_preconditioner_makes_the_likelihood_surer(data):
    errors = [fitted(data, ConjugateGradient(RPCholesky(r))).log_marginal_likelihood_std_[0] for r in (5, 60, 150)]
    assert errors[0] > 2 * errors[1] > 4 * errors[2]
    model = fitted(data, ConjugateGradient(RPCholesky(150)))
    _, _, exact = dense_posterior(RBF(gamma=GAMMA), data.X, data.y[:, 0], np.ones(211), 0.3, data.X_new, False)
    assert model.log_marginal_likelihood_[0] == pytest.approx(exact, abs=0.5)


def test_exact_likelihoods_have_no_error(data, monkeypatch):
    monkeypatch.setattr("dkrr.planning.uncertainty.SMALL_SECONDS", 3.0)
    assert (fitted(data).log_marginal_likelihood_std_ == 0).all()
    model = KernelRidge(kernel="rbf").fit(data.X, data.y[:, 0])
    assert model.log_marginal_likelihood_std_ == 0.0 and isinstance(model.log_marginal_likelihood_std_, float)


@pytest.mark.parametrize("fit_intercept", [False, True])
def test_too_few_iterations_leave_wide_bounds_that_hold(data, fit_intercept):
    solver = ConjugateGradient(RPCholesky(3), max_iter=6)
    with pytest.warns(ConvergenceWarning, match="where 1.0e-08 was asked"):
        model = fitted(data, solver, 1e-3, fit_intercept=fit_intercept)
    with pytest.warns(ConvergenceWarning):
        lower, upper = model.predict_variance_bounds(data.X_new, scale=1.0)
    with pytest.warns(ConvergenceWarning, match=r"variances of .* of 37 rows are up to .* apart.*max_iter"):
        _, std = model.predict(data.X_new, return_std=True, scale=1.0)
    variance, *_ = dense_posterior(
        RBF(gamma=GAMMA), data.X, data.y[:, 0], np.ones(211), 1e-3, data.X_new, fit_intercept
    )
    assert (lower[:, 0] <= variance).all() and (variance <= upper[:, 0]).all()
    assert (lower >= 0).all() and (std >= 0).all() and (upper > 1.1 * lower).any()


@pytest.mark.parametrize("method", ["factor", "iterations"])
def test_lazy_rows(data, tmp_path, monkeypatch, method):
    monkeypatch.setattr("dkrr.planning.uncertainty.SMALL_SECONDS", 3.0 if method == "factor" else -1.0)
    model = fitted(data)
    _, expected = model.predict(data.X_new, return_std=True)
    bounds = model.predict_variance_bounds(data.X_new)
    assert model.uncertainty_plan_.method == method
    stored = zarr.create_array(str(tmp_path / "x.zarr"), data=data.X_new, chunks=(7, 5))
    for rows in (da.from_array(data.X_new, chunks=(20, 2)), stored):
        mean, std = model.predict(rows, return_std=True)
        lower, upper = model.predict_variance_bounds(rows)
        assert all(isinstance(part, da.Array) and part.shape == (37, 3) for part in (mean, std, lower, upper))
        assert_allclose(std.compute(), expected, rtol=1e-3)
        assert_allclose(np.stack(da.compute(lower, upper)), np.stack(bounds), rtol=1.1e-3)
    interval = model.predict_interval(rows)
    assert_allclose(np.stack(da.compute(*interval)), np.stack(model.predict_interval(data.X_new)), rtol=1e-9)
    bad = data.X_new.copy()
    bad[31, 2] = np.nan
    _, std = model.predict(da.from_array(bad, chunks=(20, 5)), return_std=True)
    with pytest.raises(InputError, match="row 31"):
        std.compute()


@pytest.mark.parametrize("settings", [{}, {"tile": 60}, {"solver": "cg"}], ids=str)
def test_lazy_rows_on_workers(data, workers, monkeypatch, settings):
    if settings.get("solver") != "cg":
        monkeypatch.setattr("dkrr.planning.uncertainty.SMALL_SECONDS", 3.0)
    model = fitted(data, **{"solver": "auto"} | settings)
    _, expected = model.predict(data.X_new, return_std=True)
    _, std = model.predict(da.from_array(data.X_new, chunks=(20, 5)), return_std=True)
    assert_allclose(workers.compute(std).result(), expected, rtol=1e-3)
    interval = model.predict_interval(da.from_array(data.X_new, chunks=(20, 5)))
    assert_allclose(workers.compute(interval[1]).result(), model.predict_interval(data.X_new)[1], rtol=1e-9)


def test_targets_that_were_changed_are_refused(data):
    y = data.y.copy()
    model = KernelRidge(kernel="rbf").fit(data.X, y)
    y[3, 0] += 1.0
    with pytest.raises(InputError, match=r"y was changed.*call fit"):
        model.predict(data.X_new, return_std=True)


def test_one_row_and_a_free_constant(data):
    model = KernelRidge(kernel="rbf", fit_intercept=True).fit(data.X[:1], data.y[:1, 0])
    assert np.isfinite(model.log_marginal_likelihood_)
    assert (model.predict(data.X_new, return_std=True, scale=1.0)[1] > 0).all()
    with pytest.raises(InputError, match="scale is None.*expected a number > 0"):
        model.predict(data.X_new, return_std=True)


def test_indefinite_kernels_have_no_bounds(data):
    model = KernelRidge(alpha=30.0, kernel="sigmoid", solver="cg").fit(data.X, data.y[:, 0])
    with pytest.raises(InputError, match=r"kernel is Sigmoid.*positive semidefinite.*solver='cholesky'"):
        model.predict_variance_bounds(data.X_new)


def test_no_plan_before_the_first_question(data):
    with pytest.raises(AttributeError, match="predict"):
        _ = fitted(data).uncertainty_plan_


@pytest.mark.parametrize("fit_intercept", [False, True])
def test_bounds_from_a_factor_whose_digits_are_lost(data, fit_intercept):
    model = KernelRidge(alpha=1e-13, kernel=RBF(gamma=GAMMA), solver="cholesky", fit_intercept=fit_intercept)
    model.fit(np.repeat(data.X[:40], 2, axis=0), np.repeat(data.y[:40, 0], 2))
    with pytest.warns(ConvergenceWarning, match="alpha = 1e-13 is too small for the digits of a factor"):
        lower, upper = model.predict_variance_bounds(data.X_new, scale=1.0)
    assert (lower == 0).all()
    assert_allclose(upper, np.inf if fit_intercept else 1.0, rtol=1e-12)


def test_bounds_from_a_factor(data, monkeypatch):
    monkeypatch.setattr("dkrr.planning.uncertainty.SMALL_SECONDS", 3.0)
    for kernel, intercept in (("rbf", False), ("rbf", True), ("linear", False), ("linear", True)):
        gamma = GAMMA if kernel == "rbf" else None
        model = KernelRidge(alpha=0.3, kernel=kernel, gamma=gamma, fit_intercept=intercept).fit(data.X, data.y[:, 0])
        lower, upper = model.predict_variance_bounds(data.X_new, scale=2.0)
        variance = model.predict(data.X_new, return_std=True, scale=2.0)[1] ** 2
        assert (lower < variance).all() and (variance < upper).all()
        assert_allclose(upper, lower, rtol=1e-5)  # 3 × 40,000 roundings of K over λ are 4e-6
