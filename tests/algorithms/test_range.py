"""Targets, weights, rows and λ near the ends of float64: right, or not called a success."""

from contextlib import nullcontext

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from dkrr import KernelLogisticRegression, KernelRidge
from dkrr.errors import ConvergenceWarning, NotFiniteError
from dkrr.kernels import Linear
from dkrr.solvers import Status
from tests import precise
from tests.pairs import every_pair

PLACES = {"memory": {}, "tiles": {"tile": 12}, "cg": {"solver": "cg", "tol": 1e-13}}
SUCCESS = (Status.SOLVED, Status.CONVERGED)
WAYS = [(form, solver) for form in ("dual", "primal") for solver in ("cholesky", "cg")]

every_place = pytest.mark.parametrize("place", PLACES)
every_form = pytest.mark.parametrize("form", ["dual", "primal"])


def sample(n=30, d=3):
    rng = np.random.default_rng(0)
    return rng.normal(size=(n, d)), rng.normal(size=n)


@every_place
@every_form
def test_targets_of_any_size_have_all_their_digits(place, form):
    X, y = sample()
    fit_intercept = place != "tiles"
    exact = precise.ridge(Linear(), X, y, 0.5, fit_intercept=fit_intercept)
    # Powers of two, which the oracle's answer for y only has to be multiplied by.
    powers = [-1040, -540, -532, 515, 665, 1020]
    targets = np.column_stack([y, *(np.ldexp(y, p) for p in powers)])
    model = KernelRidge(0.5, form=form, fit_intercept=fit_intercept, **PLACES[place]).fit(X, targets)
    assert model.solve_result_.status in SUCCESS and 0.0 < model.solve_result_.residual < 1e-12
    for column, power in enumerate([0, *powers]):
        tolerance = 1e-12 if power > -1000 else 1e-8  # what is denormal has fewer digits
        for found, expected in (
            (model.dual_coef_[:, column], exact.dual_coef[:, 0]),
            (model.predict(X)[:, column], exact.fitted[:, 0]),
            (model.norm_[column], exact.norm[0]),
        ):
            size = max(np.abs(exact.fitted).max(), 1.0)
            assert_allclose(np.ldexp(found, -power), expected, rtol=0, atol=tolerance * size)


@every_place
@every_form
def test_the_mean_of_huge_targets_and_answers_larger_than_float64(place, form):
    X, y = sample()
    model, huge = KernelRidge(1.0, form=form, fit_intercept=True, **PLACES[place]), np.full(30, 1e308)
    assert model.fit(X, huge).solve_result_.status in SUCCESS
    assert_allclose(model.predict(X), huge, rtol=1e-13)
    huge[::2] *= -1  # whose differences are larger than float64 holds
    exact = precise.ridge(Linear(), X, huge, 1.0, fit_intercept=True)
    assert_allclose(model.fit(X, huge).predict(X) / 1e308, exact.fitted[:, 0] / 1e308, rtol=0, atol=1e-12)
    with pytest.raises(NotFiniteError, match="coef_ of target 1 .* is not finite"):
        KernelRidge(1e-4, form=form, **PLACES[place]).fit(X, np.column_stack([y, y * 1e306]))


@pytest.mark.parametrize("power", [-460, 67, 460])
def test_conjugate_gradient_on_rows_of_any_size(power):
    X, y = sample(80)
    plain, scaled = (KernelRidge(0.25 * 4.0**p, form="dual", solver="cg").fit(np.ldexp(X, p), y) for p in (0, power))
    assert scaled.solve_result_.status is Status.CONVERGED
    assert scaled.solve_result_.iterations <= plain.solve_result_.iterations + 5  # those in float32 that were in vain
    assert_allclose(scaled.predict(np.ldexp(X, power)), plain.predict(X), rtol=0, atol=1e-6)


def test_conjugate_gradient_where_the_trace_overflows():
    X, y = sample(80)
    K = X @ X.T
    largest = 1.5e307 / K.max()
    plain, scaled = (KernelRidge(s, kernel="precomputed", solver="cg").fit(K * s, y) for s in (1.0, largest))
    assert scaled.solve_result_.status is Status.CONVERGED
    assert_allclose(scaled.predict(K * largest), plain.predict(K), rtol=0, atol=1e-6)


@every_place
def test_small_rows_have_the_predictions_and_probabilities_of_others(place):
    X, y = sample()
    model = KernelRidge(1e-20, form="dual", **PLACES[place]).fit(X * 1e-10, y)
    assert model.solve_result_.status in SUCCESS and model.solve_result_.residual < 1e-12
    exact = precise.ridge(Linear(), X * 1e-10, y, 1e-20)
    assert_allclose(model.predict(X * 1e-10), exact.fitted[:, 0], rtol=0, atol=1e-12)
    classes = KernelLogisticRegression(1e-40, form="dual", solver="cholesky", tol=1e-12).fit(X * 1e-20, y > 0)
    probabilities = precise.probabilities(precise.logistic(Linear(), X * 1e-20, y > 0, 1e-40).fitted)
    assert_allclose(classes.predict_proba(X * 1e-20)[:, 1], probabilities, rtol=0, atol=1e-9)


@pytest.mark.parametrize(("way", "power"), list(zip(WAYS, [-1000, 660, -660, 1000], strict=True)))
def test_weights_of_any_size(way, power):
    X, y = sample()
    weights = np.random.default_rng(1).uniform(0.5, 2.0, len(y))
    exact = precise.logistic(Linear(), X, y > 0, 0.5, sample_weight=weights, fit_intercept=True)
    model = KernelLogisticRegression(np.ldexp(0.5, power), form=way[0], solver=way[1], tol=1e-10)
    result = model.fit(X, y > 0, sample_weight=np.ldexp(weights, power)).solve_result_
    scores = exact.fitted[:, 0]
    assert result.status is Status.CONVERGED and result.steps
    assert_allclose(model.decision_function(X), scores, rtol=0, atol=1e-7)
    least = weights @ np.logaddexp(0.0, np.where(y > 0, -scores, scores)) + 0.5 * exact.norm[0] ** 2
    assert_allclose(np.ldexp(result.steps[-1].objective, -power), least, rtol=1e-9)


@pytest.mark.parametrize(("way", "n_classes"), list(zip(WAYS, [2, 3, 3, 2], strict=True)))
def test_features_whose_squares_overflow_are_refused(way, n_classes):
    X, y = sample()
    labels = np.digitize(y, [-0.5, 0.5]) if n_classes == 3 else y > 0
    with pytest.raises(NotFiniteError, match="rescale the columns of X"):
        KernelLogisticRegression(0.1, form=way[0], solver=way[1], fit_intercept=n_classes == 3).fit(X * 1e160, labels)


@every_pair(form=["dual", "primal"], size=[1e-140, 1e140])
def test_features_whose_squares_hardly_fit(form, size):
    X, y = sample()
    exact = precise.logistic(Linear(), X, y > 0, 0.1, fit_intercept=False)
    model = KernelLogisticRegression(0.1 * size**2, form=form, solver="cholesky", fit_intercept=False)
    result = model.fit(X * size, y > 0).solve_result_
    assert result.status is Status.CONVERGED and result.residual > 0
    assert_allclose(model.decision_function(X * size), exact.fitted[:, 0], rtol=0, atol=1e-7)


@pytest.mark.parametrize("alpha", [0.1, 1e-200])
def test_weights_far_above_the_penalty_are_no_success_unless_right(alpha):
    X, y = sample()
    model = KernelLogisticRegression(alpha, form="primal", solver="cholesky", tol=1e-10)
    model.fit(X, y > 0, sample_weight=np.full(len(y), 1e200))
    exact = precise.logistic(Linear(), X, y > 0, 1e-60, fit_intercept=True)
    assert model.solve_result_.status is Status.CONVERGED
    assert_allclose(model.predict_proba(X)[:, 1], precise.probabilities(exact.fitted), rtol=0, atol=1e-8)


@every_form
def test_a_run_with_tiny_weights_is_resumed(tmp_path, form):
    X, y = sample()
    fit = {"X": X, "y": y > 0, "sample_weight": np.full(len(y), 2.0**-660)}
    settings = {"alpha": 2.0**-664, "form": form, "solver": "cholesky", "tile": 12}
    whole = KernelLogisticRegression(**settings).fit(**fit)
    for max_iter in (2, 50):
        model = KernelLogisticRegression(**settings, max_iter=max_iter, store=tmp_path / "run.zarr")
        with pytest.warns(ConvergenceWarning) if max_iter == 2 else nullcontext():
            model.fit(**fit)
    assert_allclose(model.decision_function(X), whole.decision_function(X), rtol=0, atol=1e-9)
    found, expected = ([step.objective for step in m.solve_result_.steps] for m in (model, whole))
    assert_allclose(found, expected, rtol=1e-10)


@every_pair(place=["memory", "tiles"], value=[0.1, 1e-160, 1e200])
def test_constant_targets_are_their_mean_and_opposite_ones_cancel(place, value):
    """What is left of them after their mean is rounding, which no residual is relative to."""
    X, y = sample(60)
    model = KernelRidge(1e-3, form="primal", fit_intercept=True, **PLACES[place]).fit(X, np.full(60, value))
    assert model.solve_result_.status is Status.SOLVED and model.solve_result_.residual < 1e-14
    assert_array_equal(model.coef_, 0.0)
    assert_allclose(model.predict(X), value, rtol=1e-15)
    opposite = np.repeat(y, 2) * np.tile([1, -1], 60)
    model = KernelRidge(1e-9, form="primal", **PLACES[place]).fit(np.repeat(X, 2, axis=0), opposite)
    assert model.solve_result_.status is Status.SOLVED
    assert_array_equal(model.coef_, 0.0)
