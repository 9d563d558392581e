"""Condition numbers in results, and the caution about coefficients that comes with large ones."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from dkrr import KernelRidge
from dkrr.kernels import RBF
from dkrr.solvers import Status
from tests import precise

PLACES = {"memory": {}, "tiles": {"tile": 12}}
every_place = pytest.mark.parametrize("place", PLACES)


@every_place
def test_predictions_are_right_where_coefficients_are_not(place):
    X = np.linspace(-1, 1, 40)[:, None]
    y = np.exp(-((X[:, 0] - 0.1) ** 2))
    exact = precise.ridge(RBF(1.0), X, y, 1e-15)
    model = KernelRidge(1e-15, kernel="rbf", gamma=1.0, **PLACES[place]).fit(X, y)
    result = model.solve_result_
    assert result.status is Status.SOLVED
    error = np.linalg.norm(model.dual_coef_ - exact.dual_coef[:, 0]) / np.linalg.norm(exact.dual_coef)
    assert error > 1e-3
    assert_allclose(model.predict(X), exact.fitted[:, 0], rtol=0, atol=1e-12)
    assert error <= 10 * result.condition * np.finfo(float).eps
    (message,) = (m for m in result.messages if "condition" in m)
    assert message.startswith("dual_coef_ may be off by as much as all of its length: the matrix's condition number")
    assert message in str(result) and f"condition   {result.condition:.1e}" in str(result)


@every_place
@pytest.mark.parametrize("form", ["dual", "primal"])
@pytest.mark.parametrize("settings", [{}, {"fit_intercept": True}], ids=str)
def test_is_that_of_the_matrix(place, form, settings):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 30)), rng.normal(size=(60, 2))
    alpha = [1e-3, 10.0]
    model = KernelRidge(alpha, form=form, **settings, **PLACES[place]).fit(X, y)
    centred = X - X.mean(axis=0) if settings else X
    A = X @ X.T if form == "dual" else centred.T @ centred
    A = A + 1e-3 * np.eye(len(A))
    if not (form == "primal" and place == "tiles"):
        A /= np.sqrt(np.outer(A.diagonal(), A.diagonal()))
    exact = np.linalg.cond(A)
    assert exact / 20 < model.solve_result_.condition <= 1.01 * exact
    assert model.solve_result_.messages == ()


@every_place
def test_no_caution_because_of_weights_or_units(place):
    rng = np.random.default_rng(0)
    X, y, weights = rng.normal(size=(60, 3)), rng.normal(size=60), np.logspace(-10, 10, 60)
    weights[7] = 0.0
    exact = precise.ridge(RBF(2.0), X, y, 1e-6, sample_weight=weights)
    model = KernelRidge(1e-6, kernel="rbf", gamma=2.0, **PLACES[place]).fit(X, y, sample_weight=weights)
    assert_allclose(model.dual_coef_, exact.dual_coef[:, 0], rtol=1e-9)
    assert model.solve_result_.messages == ()
    if place == "memory":
        units = KernelRidge(1e-9, form="primal").fit(X * [1e-6, 1.0, 1e6], y)
        assert units.solve_result_.condition < 1e3


def test_in_primal_form_the_caution_is_about_coef():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3))
    X[:, 2] = X[:, 1] + 1e-7 * X[:, 2]
    model = KernelRidge(1e-15, form="primal").fit(X, X[:, 0])
    (message,) = model.solve_result_.messages
    assert message.startswith("coef_ (and with it dual_coef_) may be off by as much as")
