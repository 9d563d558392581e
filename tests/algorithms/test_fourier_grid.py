"""The Fourier form: its certified error, its sums and their consequences against dense algebra, and what chooses it."""

import warnings
from itertools import product

import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal

import dkrr
from dkrr import KernelLogisticRegression, KernelRidge, KernelRidgeCV
from dkrr.errors import InputError, PlanError
from dkrr.features import FourierGrid
from dkrr.fitting import fourier_refinement, fourier_ridge, grids, request_plans
from dkrr.fitting.costs.details import FourierSolve
from dkrr.kernels import RBF, Columns, Linear, Matern, fourier_grid
from dkrr.kernels.fourier_grid import FourierZones
from dkrr.kernels.nonuniform import Transform
from dkrr.linalg.fourier_normal import (
    FourierNormalColumns,
)
from dkrr.linalg.fourier_sums import FourierSums, inverse_of, leverage_modes, leverages_of
from dkrr.linalg.sums import cholesky_factor
from tests.oracles import assert_close
from tests.pairs import every_pair

N = 311  # a prime


def rows(d, n=N, seed=0):
    rng = np.random.default_rng([seed, n, d])
    return rng.random((n, d)), rng


def unit_box(d):
    return [(0.0, 1.0)] * d


# The grid


@pytest.mark.parametrize(("d", "gamma", "error"), [(1, 3.0, 1e-15), (1, 400.0, 1e-18), (2, 30.0, 1e-9), (3, 0.7, 1e-6)])
def test_the_bound_holds_in_extended_precision(d, gamma, error):
    grid = FourierGrid(RBF(gamma=gamma), error, unit_box(d)).grid(d)
    h, rng = grid.n_cosines, np.random.default_rng(0)
    corners = np.array(list(product((0.0, 1.0), repeat=d)))
    differences = np.vstack([corners, rng.random((40, d))]).astype(np.longdouble)
    weights = grid.scale[:h].astype(np.longdouble) ** 2
    angles = 2 * np.arccos(np.longdouble(-1)) * (differences / grid.periods) @ grid.frequencies.T.astype(np.longdouble)
    found = (np.cos(angles) * weights).sum(axis=1)
    exact = np.exp(-np.longdouble(gamma) * (differences**2).sum(axis=1))
    rounding = 4 * np.finfo(np.float64).eps * weights.max()  # of the weights, which are in float64
    assert np.abs(found - exact).max() <= grid.bound + rounding
    assert 0 < grid.bound <= 1.001 * error


@pytest.mark.parametrize("nu", [0.5, 1.5, 2.5])
def test_the_bound_holds_for_matern_kernels(nu):
    X, _ = rows(1)
    phi = FourierGrid(Matern(nu=nu, length_scale=0.3), 1e-3, unit_box(1))
    error = np.abs(phi.transform(X) @ phi.transform(X).T - Matern(nu=nu, length_scale=0.3)(X)).max()
    assert error <= phi.grid(1).bound <= 3e-3


@pytest.mark.parametrize("kernel", [RBF(gamma=7.0), Matern(nu=2.5, length_scale=0.3), Matern(nu=0.5, length_scale=2.0)])
def test_the_doubled_grid_has_twice_the_modes(kernel):
    zones = FourierZones(FourierGrid(kernel, 1e-3, [(0.0, 1.1)]))
    inside, near = zones.inside.grid(1), zones.near.grid(1)
    assert near.most == tuple(2 * m for m in inside.most)
    assert_allclose(near.periods, 2 * inside.periods)


KERNELS = {
    "multiple": (2, 3.0 * RBF(gamma=9.0)),
    "lengths": (2, RBF(gamma=[9.0, 1.0])),
    "sum": (2, RBF(gamma=9.0) + 0.5 * RBF(gamma=[2.0, 20.0])),
    "product": (2, RBF(gamma=4.0) * RBF(gamma=[5.0, 1.0])),
    "columns": (5, Columns(RBF(gamma=9.0), [4, 1])),
    "product of columns": (4, Columns(RBF(gamma=9.0), 3) * Columns(RBF(gamma=2.0), 0)),
    "additive": (3, Columns(RBF(gamma=9.0), 0) + Columns(RBF(gamma=30.0), 2)),
}


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_made_of_gaussians_have_one_grid(name):
    d, kernel = KERNELS[name]
    X, _ = rows(d)
    phi = FourierGrid(kernel, box=grids.box_of(dkrr.data.MemoryRows(X), FourierGrid(kernel).columns(d)))
    assert_allclose(phi.transform(X) @ phi.transform(X).T, kernel(X), atol=3e-14)


@pytest.fixture(params=[(1, 40.0, 1e-15), (2, 8.0, 1e-12), (3, 0.3, 1e-5)], ids=["1", "2", "3"])
def with_fourier_features(request):
    d, gamma, error = request.param
    X, rng = rows(d)
    phi = FourierGrid(RBF(gamma=gamma), error, unit_box(d))
    return phi, phi.grid(d), X, rng.random(N) + 0.1, rng.standard_normal((N, 3))


def close(found, expected, rounding=2e-13):
    assert_allclose(found, expected, atol=rounding * np.abs(expected).max())


def test_transforms_are_products_with_the_features(with_fourier_features):
    phi, grid, X, _, values = with_fourier_features
    dense, coef = phi.transform(X), np.random.default_rng(1).standard_normal((grid.dimension, 3))
    transform = Transform(grid.angles(X), grid.n_modes)
    close(transform.to_points(grid.to_modes(coef)), dense @ coef)
    close(grid.of_modes(transform.to_modes(values)), dense.T @ values)
    zones = FourierZones(phi)
    many = np.vstack([X] * 40)
    close(phi.multiply(many, coef), np.vstack([dense @ coef] * 40))
    whole = np.vstack([coef, np.ones((zones.near.dimension(X.shape[1]), 3))])
    outside = X * 1.4 - 0.2
    close(zones.multiply(outside, whole), zones.transform(outside) @ whole)


@pytest.mark.parametrize("is_centred", [True, False])
def test_sums_give_the_matrix_its_columns_and_products(with_fourier_features, is_centred):
    phi, grid, X, weights, values = with_fourier_features
    sums, half = FourierSums.zeros(grid, 3, threads=2), FourierSums.zeros(grid, 3)
    sums.add(X[:100], values[:100], weights[:100])
    half.add(X[100:], values[100:], weights[100:])
    sums.include(FourierSums.unpacked(grid, half.packed()))
    features = phi.transform(X)
    centred = features - weights @ features / weights.sum() if is_centred else features
    expected = centred.T @ (weights[:, None] * centred)
    system = sums.system(has_intercept=is_centred)
    generator = system.matrix
    vectors = np.random.default_rng(2).standard_normal((generator.n, 2))
    some = np.random.default_rng(3).permutation(generator.n)[:7]
    columns = FourierNormalColumns(generator)
    close(np.tril(generator.matrix()), np.tril(expected))
    close(generator.diagonal(), expected.diagonal())
    close(generator.multiply(vectors), expected @ vectors)
    close(columns.block(slice(3, generator.n), some), expected[3:, some])
    close(columns.among(some, some[:4]), expected[np.ix_(some, some[:4])])
    close(system.moments, centred.T @ (weights[:, None] * values))
    assert_allclose(sums.squares, weights @ values**2)
    factor = cholesky_factor(generator.matrix(), 0.1)
    waves = leverage_modes(grid, inverse_of(factor), generator.means)
    solved = np.linalg.solve(expected + 0.1 * np.eye(generator.n), centred.T)
    close(leverages_of(grid, waves, X), np.einsum("ij,ji->i", centred, solved), 1e-11)


def test_points_that_are_not_finite_are_refused_and_none_are_no_error():
    with pytest.raises(dkrr.errors.NotFiniteError):
        Transform(np.array([[0.0], [np.nan]]), (5,))
    assert_array_equal(Transform(np.empty((0, 2)), (3, 3)).to_modes(np.empty((0, 2))), np.zeros((2, 3, 3)))


def test_rows_outside_of_a_named_box_are_refused_where_no_zone_serves_them():
    phi = FourierGrid(RBF(gamma=9.0), box=unit_box(1))
    with pytest.raises(InputError, match=r"a row has 2 in column 0, outside of the box"):
        phi.transform(np.array([[0.5], [2.0]]))


# Fits


def clustered(X):
    return np.vstack([0.01 * X[: N // 2], X[N // 2 :]])


SHAPES = {
    "plain": lambda X: X,
    "offset": lambda X: X + 1e8,
    "duplicated": lambda X: X[np.arange(N) % 40],
    "gridded": lambda X: np.round(6 * X) / 6,
    "line": lambda X: X[:, :1] * [1.0, 0.5],
    "clustered": clustered,
    "constant column": lambda X: X * [1.0, 0.0],
    "outlier": lambda X: np.vstack([X[1:], [[2.5, -1.0]]]),
    "few rows": lambda X: X[:5],
    "one row": lambda X: X[:1],
}


def both(X, y, weights=None, **settings):
    """Models on the grid, and in the dual form by a complete factor."""
    settings = {"kernel": "rbf", "gamma": 12.0, "alpha": 0.01} | settings
    return (
        KernelRidge(form="primal", **settings).fit(X, y, sample_weight=weights),
        KernelRidge(form="dual", solver="cholesky", **settings).fit(X, y, sample_weight=weights),
    )


def zones_of(X, rng, reach=0.25):
    low, high = X.min(axis=0), X.max(axis=0)
    spread = high - low + 1e-3
    inside = low + (high - low) * rng.random((60, X.shape[1]))
    return [inside, low - reach + (spread + 2 * reach) * rng.random((60, X.shape[1])), high + 20 + rng.random((4, 2))]


@every_pair(by_day="values", shape=list(SHAPES), fit_intercept=[True, False])
def test_fits_are_those_of_the_dual_form_in_the_box_near_it_and_beyond(shape, fit_intercept):
    X, rng = rows(2)
    X = SHAPES[shape](X)
    y = np.column_stack([np.sin(7 * X[:, 0]), X[:, 1] + 2.0]) + 0.1 * rng.standard_normal((len(X), 2))
    weights = rng.random(len(X)) + 0.1
    weights[3::7] = 0.0
    fitted, dual = both(X, y, weights, alpha=[0.01, 1.0], fit_intercept=fit_intercept)
    assert isinstance(fitted.plan_.chosen.details, FourierSolve) and fitted.plan_.form == "primal"
    assert fitted.solve_result_.residual <= 1e-10
    size = max(1.0, np.abs(fitted.dual_coef_).sum(axis=0).max())
    for Z in zones_of(X, rng):
        assert_allclose(fitted.predict(Z), dual.predict(Z), atol=1e-13 * size + 1e-9)
    assert_allclose(fitted.dual_coef_, dual.dual_coef_, atol=1e-15 + 1e-9 * np.abs(dual.dual_coef_).max())
    assert_allclose(fitted.rkhs_norm_, dual.rkhs_norm_, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("alpha", [1e-8, 1e-4, 1.0, 1e4])
@pytest.mark.parametrize("fit_intercept", [True, False])
def test_the_residual_is_that_of_exact_entries(alpha, fit_intercept):
    X, rng = rows(2)
    y = np.sin(7 * X[:, 0]) + 0.1 * rng.standard_normal(N) + 1.0
    fitted, _ = both(X, y, alpha=alpha, fit_intercept=fit_intercept)
    wide = X.astype(np.longdouble)
    gram = np.exp(-12 * ((wide[:, None] - wide[None]) ** 2).sum(axis=2))
    left = y - fitted.intercept_ - gram @ fitted.dual_coef_ - alpha * fitted.dual_coef_
    true = float(np.linalg.norm(left) / np.linalg.norm(y - fit_intercept * y.mean()))
    rounding = 1e-15 * (1.0 + np.linalg.norm(fitted.dual_coef_) * np.sqrt(N) / np.linalg.norm(y))
    assert true <= 3 * fitted.solve_result_.residual + 10 * rounding
    assert fitted.solve_result_.residual <= 3 * true + 10 * rounding + 1e-12


@pytest.mark.parametrize("gamma", [1e-3, 12.0])
@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize(("n", "alpha"), [(28, 1e-10), (3_000, 1e-6)])
def test_the_residual_counts_the_rounding_of_sums_over_the_rows(n, alpha, gamma, fit_intercept):
    X, rng = rows(1, n)
    y = np.column_stack([np.sin(7 * X[:, 0]), 1e3 * X[:, 0]]) + 0.1 * rng.standard_normal((n, 2))
    weights, settings = rng.random(n) + 0.01, {"kernel": 2.0 * RBF(gamma=gamma), "alpha": alpha, "form": "primal"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dkrr.errors.ConvergenceWarning)
        fitted = KernelRidge(fit_intercept=fit_intercept, **settings).fit(X, y, sample_weight=weights)
    some, roots = slice(None, None, -(-n // 300)), np.sqrt(weights)[:, None]
    wide, duals = X.astype(np.longdouble), fitted.dual_coef_.astype(np.longdouble)
    gram = 2 * np.exp(-np.longdouble(gamma) * (wide[some] - wide.T) ** 2)
    left = y[some] - fitted.intercept_ - gram @ duals - np.longdouble(alpha) * duals[some] / weights[some, None]
    centred = roots * (y - weights @ y / weights.sum() * fit_intercept)
    lengths = np.linalg.norm((roots[some] * left).astype(float), axis=0) * np.sqrt(n / len(left))
    true = lengths / np.linalg.norm(centred, axis=0)
    assert (true <= 1.2 * np.array(fitted.solve_result_.residuals)).all()


@pytest.mark.parametrize("fit_intercept", [True, False])
def test_predictions_in_gaps_of_the_box_are_those_of_alpha(fit_intercept):
    X, rng = rows(1, 2_000)
    X = np.vstack([0.02 * X[:1_000], 1.0 - 0.02 * X[1_000:]])
    y = np.sin(7 * X[:, 0]) + 0.1 * rng.standard_normal(len(X))
    fitted = KernelRidge(kernel="rbf", gamma=12.0, alpha=2e-8, form="primal", fit_intercept=fit_intercept).fit(X, y)
    Z = np.linspace(-0.5, 1.5, 41)[:, None]
    kernels = np.exp(-12 * (Z.astype(np.longdouble) - X.T) ** 2)
    exact = (kernels @ fitted.dual_coef_ + np.longdouble(fitted.intercept_)).astype(float)
    assert_allclose(fitted.predict(Z), exact, atol=4e-16 * np.abs(fitted.dual_coef_).sum())
    wide = X.astype(np.longdouble)
    norm = np.sqrt(fitted.dual_coef_ @ (np.exp(-12 * (wide - wide.T) ** 2) @ fitted.dual_coef_))
    assert_allclose(fitted.rkhs_norm_, float(norm), rtol=1e-6)


SUMS = {
    "columns": Columns(RBF(gamma=30.0), 0) + Columns(RBF(gamma=2.0), 1),
    "nested": 2.0 * Columns(RBF(gamma=1.0), 1) * (Columns(RBF(gamma=1.0), 0) + 0.5 * Columns(RBF(gamma=1.0), 1))
    + Columns(RBF(gamma=1.5), 0),
    "both and one": RBF(gamma=[1.0, 0.7]) + 3.0 * Columns(RBF(gamma=1.0), 1),
}


@pytest.mark.parametrize(
    ("name", "fit_intercept"),
    [
        ("columns", True),
        ("columns", False),
        pytest.param("nested", True, marks=pytest.mark.nightly),
        pytest.param("both and one", False, marks=pytest.mark.nightly),
    ],
)
def test_a_term_vanishes_far_away_in_its_own_columns_alone(name, fit_intercept, tmp_path):
    X, rng = rows(2, 397)
    y = np.sin(7 * X[:, 0]) + X[:, 1] + 0.1 * rng.standard_normal(len(X))
    fitted, dual = both(X, y, rng.random(len(X)) + 0.1, kernel=SUMS[name], gamma=None, fit_intercept=fit_intercept)
    away = [-1e6, -3.0, 0.4, 1.1, 2.0, 4.0, 40.0]
    Z = np.array(list(product(away, away)))
    size = np.abs(fitted.dual_coef_).sum()
    assert_allclose(fitted.predict(Z), dual.predict(Z), atol=1e-13 * size + 1e-9)
    found, expected = (one.predict(Z, return_std=True)[1] for one in (fitted, dual))
    assert_allclose(found, expected, rtol=1e-6)
    assert_allclose(fitted.predict_interval(Z), dual.predict_interval(Z), rtol=1e-5, atol=1e-7)
    low, high = fitted.predict_variance_bounds(Z)
    assert ((low <= found**2) & (found**2 <= high)).all()
    dkrr.save(fitted, tmp_path / "model", uncertainty=True)
    loaded = dkrr.load(tmp_path / "model")
    assert_array_equal(loaded.predict(Z), fitted.predict(Z))
    assert_allclose(loaded.predict(Z, return_std=True)[1], found, rtol=1e-12)
    zones = FourierZones(fitted.plan_.features)
    coef = rng.standard_normal((zones.dimension(2), 2))
    close(zones.multiply(Z, coef), zones.transform(Z) @ coef)
    settings = {"kernel": SUMS[name], "alpha": 0.1, "tol": 1e-11, "fit_intercept": fit_intercept}
    found, expected = (
        KernelLogisticRegression(form=form, **settings).fit(X, y > 1).predict_proba(Z) for form in ("primal", "dual")
    )
    assert_allclose(found, expected, atol=1e-8)


BORDERS = [
    (-0.006267119071821178, 0.42087840519534825, 0.538730440678023),
    (0.05906774785014173, 0.22270312231213518, 0.16161635333761232),
    (3.7e5, 1.0, 30.0),
]


@pytest.mark.parametrize(("low", "length", "gamma"), BORDERS)
def test_rows_at_the_borders_of_the_zones_have_features(low, length, gamma):
    zones = FourierZones(FourierGrid(RBF(gamma=gamma), box=[(low, low + length)]))
    inside, near = zones.inside.grid(1), zones.near.grid(1)
    reaches = [inside.limits, near.limits, inside.periods - inside.reach]
    around = np.concatenate([near.centre + sign * reach for reach in reaches for sign in (-1, 1)])
    Z = (around + np.spacing(around) * np.arange(-20, 21)[:, None]).reshape(-1, 1)
    z = low + length * np.linspace(0.0, 1.0, 5)[:, None]
    coef = np.vstack([zones.inside.transform(z).T, zones.near.transform(z).T])
    close(zones.multiply(Z, coef), RBF(gamma=gamma)(Z, z), 1e-14 + 1e-16 * abs(low))


def test_many_features_are_solved_for_by_iterations(monkeypatch):
    monkeypatch.setattr("dkrr.fitting.costs.fourier_costs.FACTORED_SIDE", 10)
    monkeypatch.setattr("dkrr.fitting.costs.fourier_costs.MAX_SIDE", 10)
    X, rng = rows(2)
    y = np.column_stack([np.sin(7 * X[:, 0]), X[:, 1]]) + 0.1 * rng.standard_normal((N, 2))
    fitted, dual = both(X, y, alpha=[0.01, 1.0], fit_intercept=True)
    assert fitted.plan_.solver == "cg" and fitted.solve_result_.residual <= 1e-10
    assert fitted.n_iter_ == fitted.solve_result_.iterations > 0
    for Z in zones_of(X, rng):
        assert_allclose(fitted.predict(Z), dual.predict(Z), atol=1e-8)


# What follows from the sums


@pytest.mark.parametrize("fit_intercept", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_uncertainties_are_those_of_the_dual_form(fit_intercept):
    X, rng = rows(2)
    X[0], X[1] = (1.3, -0.2), (-0.3, 1.1)  # alone: their leverage is nearly 1
    y = np.sin(7 * X[:, 0]) + 0.1 * rng.standard_normal(N)
    weights = rng.random(N) + 0.1
    weights[5::9] = 0.0
    fitted, dual = both(X, y, weights, gamma=4.0, alpha=1e-4, fit_intercept=fit_intercept)
    assert_allclose(fitted.loo_residuals(), dual.loo_residuals(), rtol=1e-6, atol=1e-8)
    assert_allclose(fitted.log_marginal_likelihood(), dual.log_marginal_likelihood(), rtol=1e-9)
    for Z in zones_of(X, rng, reach=2.0):
        found, expected = (one.predict(Z, return_std=True)[1] for one in (fitted, dual))
        assert_allclose(found, expected, rtol=1e-6)
        low, high = fitted.predict_variance_bounds(Z)
        assert ((low <= found**2) & (found**2 <= high)).all()
        found, expected = (one.predict_interval(Z) for one in (fitted, dual))
        assert_allclose(found, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("cv", [4, "loo"])
@pytest.mark.parametrize("scoring", [None, "r2"])
def test_searches_find_what_the_dual_form_finds(cv, scoring):
    if cv == "loo" and scoring:
        pytest.skip("leave-one-out has rows, not folds, to score")
    X, rng = rows(2)
    y = np.sin(7 * X[:, 0]) + 0.1 * rng.standard_normal(N)
    weights = rng.random(N) + 0.1
    settings = {"kernel": "rbf", "gamma": 12.0, "alphas": np.geomspace(1e-3, 10, 5), "cv": cv, "scoring": scoring}
    found, expected = (
        KernelRidgeCV(form=form, fit_intercept=True, **settings, **more).fit(X, y, sample_weight=weights)
        for form, more in (("primal", {}), ("dual", {"solver": "cholesky"}))
    )
    assert found.selection_plan_.method == "primal"
    assert_allclose(found.cv_results_["mean_test_score"], expected.cv_results_["mean_test_score"], rtol=1e-8)
    assert found.alpha_ == expected.alpha_ and isinstance(found.plan_.chosen.details, FourierSolve)


@pytest.mark.parametrize("alpha_per_target", [True, False])
def test_a_lambda_whose_systems_are_not_solved_has_no_score(monkeypatch, alpha_per_target):
    for name in (
        "fitting.costs.fourier_costs.FACTORED_SIDE",
        "linalg.fourier_sums.FACTORED_SIDE",
        "fitting.score_plans.MAX_SIDE",
    ):
        monkeypatch.setattr(f"dkrr.{name}", 10)
    monkeypatch.setattr("dkrr.fitting.costs.fourier_costs.MAX_RANK", 40)
    monkeypatch.setattr("dkrr.linalg.fourier_sums.MAX_ITERATIONS", 12)
    X, rng = rows(2)
    y = np.column_stack([np.sin(7 * X[:, 0]), X[:, 1]]) + 0.1 * rng.standard_normal((N, 2))
    settings = {"kernel": "rbf", "gamma": 12.0, "alphas": [1e-6, 1e-4, 1.0, 10.0], "cv": 3}
    settings["alpha_per_target"] = alpha_per_target
    with pytest.warns(dkrr.errors.ConvergenceWarning, match=r"no scores of alpha = 0\.0001, 1e-06: the true residual"):
        found = KernelRidgeCV(form="primal", **settings).fit(X, y)
    expected = KernelRidgeCV(form="dual", solver="cholesky", **settings).fit(X, y)
    scores, exact = (one.cv_results_["mean_test_score"] for one in (found, expected))
    assert np.isnan(scores[:2]).all()
    assert_allclose(scores[2:], exact[2:], rtol=1e-3)


@pytest.mark.parametrize(("cv", "alphas"), [(3, [2e-11, 1e-3]), ("loo", [1e-10, 1e-3])])
def test_a_lambda_below_the_rounding_of_held_out_errors_has_no_score(cv, alphas):
    X, rng = rows(1)
    y = np.sin(7 * X[:, 0]) + 0.1 * rng.standard_normal(N)
    with pytest.warns(dkrr.errors.ConvergenceWarning, match=rf"no scores of alpha = {alphas[0]:g}: the true residual"):
        found = KernelRidgeCV(kernel="rbf", gamma=12.0, alphas=alphas, cv=cv, form="primal").fit(X, y)
    assert np.isnan(found.cv_results_["mean_test_score"][0]) and found.alpha_ == 1e-3


def test_errors_of_rows_by_the_others_warn_where_rounding_hides_alpha():
    X, rng = rows(1)
    y = np.sin(7 * X[:, 0]) + 0.1 * rng.standard_normal(N)
    certain = KernelRidge(kernel="rbf", gamma=12.0, alpha=1e-8, form="primal").fit(X, y)
    assert np.isfinite(certain.loo_residuals()).all() and np.isfinite(certain.predict_interval(X)).all()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dkrr.errors.ConvergenceWarning)
        hidden = KernelRidge(kernel="rbf", gamma=12.0, alpha=2e-11, form="primal").fit(X, y)
    with pytest.warns(dkrr.errors.ConvergenceWarning, match="leave-one-out residuals may be off by"):
        assert hidden.loo_residuals().shape == (N,)
    with pytest.warns(dkrr.errors.ConvergenceWarning, match="models without a fold may be off by"):
        hidden.predict_interval(X[:3])


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("kind", ["two", "softmax", "one vs rest"])
def test_classifications_are_those_of_the_dual_form(kind, fit_intercept):
    X, rng = rows(1)
    labels = (3 * X[:, 0] + rng.random(N)).astype(int).clip(0, 1 if kind == "two" else 2)
    weights = rng.random(N) + 0.1
    settings = {"kernel": "rbf", "gamma": 20.0, "alpha": 0.1, "fit_intercept": fit_intercept, "tol": 1e-11}
    settings["one_vs_rest"] = kind == "one vs rest"
    found, expected = (
        KernelLogisticRegression(form=form, **settings).fit(X, labels, sample_weight=weights)
        for form in ("primal", "dual")
    )
    assert isinstance(found.plan_.chosen.details, FourierSolve)
    for Z in (X[:50], X[:50] * 1.3 - 0.15, X[:3] + 9.0):
        assert_allclose(found.predict_proba(Z), expected.predict_proba(Z), atol=1e-8)


# Places


def test_a_run_that_was_stopped_keeps_its_sums(tmp_path, monkeypatch):
    X, rng = rows(2)
    y, store = rng.standard_normal(N), tmp_path / "run.zarr"
    whole = KernelRidge(kernel="rbf", gamma=12.0, form="primal").fit(X, y)

    def stopped(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(fourier_refinement, "update_dual_coefficients", stopped)
        with pytest.raises(KeyboardInterrupt):
            KernelRidge(kernel="rbf", gamma=12.0, form="primal", store=store).fit(X, y)
    monkeypatch.setattr(fourier_ridge, "sums_of_segment", stopped)
    resumed = KernelRidge(kernel="rbf", gamma=12.0, store=store).fit(X, y)
    assert_close(resumed.predict(X), whole.predict(X), 1e-11)
    assert dkrr.verify(store).is_whole


@pytest.mark.nightly
def test_a_cluster_gives_what_one_process_gives(workers, tmp_path):
    X, y = many(5_000)
    weights, labels = np.linspace(0.0, 2.0, len(X)), (y > 0).astype(int)
    settings = {"kernel": "rbf", "gamma": 12.0, "alpha": 0.1, "fit_intercept": True, "form": "primal"}
    alone = KernelRidge(**settings).fit(X, y, sample_weight=weights)
    classes = KernelLogisticRegression(**settings).fit(X, labels)
    with workers.as_current():
        for store in (None, tmp_path / "run.zarr"):
            spread = KernelRidge(store=store, **settings).fit(X, y, sample_weight=weights)
            assert spread.plan_.execution == "dask" and spread.plan_.form == "primal"
            assert_allclose(spread.dual_coef_, alone.dual_coef_, rtol=1e-8, atol=1e-10)
        spread = KernelLogisticRegression(**settings).fit(X, labels)
    assert_allclose(spread.predict_proba(X), classes.predict_proba(X), atol=1e-9)


def test_rows_of_any_container_are_the_same(tmp_path):
    X, y = many(3_000, 3)
    kernel = Columns(RBF(gamma=12.0), [2, 0])
    expected = KernelRidge(kernel=kernel, form="primal").fit(X, y).predict(X)
    np.save(tmp_path / "x.npy", X)
    for rows in (da.from_array(X, chunks=(700, 3)), np.asfortranarray(X), X[::-1][::-1], str(tmp_path / "x.npy")):
        assert_close(KernelRidge(kernel=kernel, form="primal").fit(rows, y).predict(X), expected, 1e-9)
    halves = X.astype(np.float32)
    found = KernelRidge(kernel=kernel, form="primal").fit(halves, y).predict(halves)
    assert_allclose(
        found, KernelRidge(kernel=kernel, form="dual", solver="cholesky").fit(halves, y).predict(halves), atol=1e-8
    )
    assert KernelRidge(kernel=kernel).fit(sp.csr_array(X[:50]), y[:50]).plan_.form == "dual"


def test_a_saved_model_has_no_rows(tmp_path):
    X, rng = rows(2)
    model, _ = both(X, rng.standard_normal(N))
    dkrr.save(model, tmp_path / "model")
    loaded, Z = dkrr.load(tmp_path / "model"), np.vstack(zones_of(X, rng))
    assert_array_equal(loaded.predict(Z), model.predict(Z))
    stored = {path.name for path in (tmp_path / "model").rglob("*")}
    assert not stored & {"rows", "dual_coef"}
    dkrr.save(model, tmp_path / "more", uncertainty=True)
    more = dkrr.load(tmp_path / "more")
    assert_close(more.predict(Z, return_std=True)[1], model.predict(Z, return_std=True)[1], 1e-12)


# The choice


def many(n=30_000, d=2):
    rng = np.random.default_rng(0)
    X = rng.random((n, d))
    return X, np.sin(7 * X[:, 0]) + 0.1 * rng.standard_normal(n)


def test_a_grid_is_chosen_by_itself_and_can_be_declined():
    X, y = many()
    plan = dkrr.plan(X, y, kernel="rbf", gamma=12.0)
    assert plan.form == "primal" and isinstance(plan.chosen.details, FourierSolve)
    assert "fourier-grid" in plan.to_dict()["reason_codes"] and "form='dual' opts out" in str(plan)
    assert "entries of K within" in str(plan) and any(one.form == "dual" for one in plan.rejected)
    assert dkrr.plan(X, y, kernel="rbf", gamma=12.0, form="dual").form == "dual"
    assert dkrr.plan(X, y, kernel="rbf", gamma=12.0, solver="cg").form == "dual"  # a solver of the dual form
    assert dkrr.plan(X[:300], y[:300], kernel="rbf", gamma=12.0).form == "dual"  # as soon done
    assert dkrr.plan(n_samples=30_000, n_features=2, kernel="rbf", gamma=12.0, extent=1.0).form == "primal"
    assert dkrr.plan(n_samples=30_000, n_features=2, kernel="rbf", gamma=12.0, extent=[1.0, 1e6]).form == "dual"
    selection = dkrr.plan(X, y, kernel="rbf", gamma=12.0, alphas=5, cv=3)
    assert selection.method == "primal" and selection.plan.form == "primal"
    model = KernelRidge(kernel="rbf", gamma=12.0).fit(X, y)
    assert model.plan_.form == "primal" and model.dual_coef_.shape == (len(X),) and model.kernel == "rbf"


@pytest.mark.parametrize("search", [{}, {"alphas": 5, "cv": 3}], ids=["fit", "search"])
def test_a_plan_makes_the_grid_that_it_may_use_and_no_other(search):
    made = fourier_grid._grid.cache_info
    X, y = many()
    fourier_grid._grid.cache_clear()
    plan = dkrr.plan(X, y, kernel="rbf", gamma=12.0, **search)
    assert made().misses == 1
    text = str(plan)
    assert made().misses <= 2, "the saved model has a second one"
    plain = dkrr.plan(X[:200], y[:200], kernel="rbf", gamma=12.0, **search)
    wide = dkrr.plan(np.hstack([X, X]), y, kernel="rbf", gamma=12.0, **search)
    assert made().misses <= 2 and "ourier" in text and "ourier" not in str(plain) + str(wide)


def test_a_grid_belongs_to_its_candidate():
    X, y = many()
    plan = dkrr.plan(X, y, kernel="rbf", gamma=12.0)
    assert plan.problem.feature_map is None and plan.problem.dimension is None and plan.problem.form is None
    assert plan.features is plan.chosen.features and plan.dimension == plan.chosen.details.side
    assert {one.features for one in plan.rejected if one.form == "dual"} == {None}
    assert plan.problem.facts.box == grids.box_of(dkrr.data.MemoryRows(X), (0, 1))
    search = dkrr.plan(X, y, kernel="rbf", gamma=12.0, alphas=5, cv=3, train_sizes=[0.5])
    assert search.plan.problem.feature_map is None and search.main.asked.feature_map is None
    assert {one.features for one in (search.plan, *search.main.parts, search.last)} == {search.plan.chosen.features}


MEASURED = {
    "soon done": ((300, 8), {}, []),
    "soon done, few columns": ((300, 2), {}, []),
    "a grid is far faster": ((30_000, 2), {}, ["box"]),
    "many columns": ((12_000, 5), {}, ["spectrum"]),
    "Cholesky requested": ((12_000, 2), {"solver": "cholesky"}, []),
    "dual requested": ((12_000, 2), {"form": "dual"}, ["spectrum"]),
    "a search on a grid": ((30_000, 2), {"alphas": 5, "cv": 3}, ["box"]),
    "a search": ((12_000, 5), {"alphas": 5, "cv": 3}, ["spectrum"]),
}


@pytest.mark.parametrize(("shape", "settings", "expected"), MEASURED.values(), ids=MEASURED)
def test_what_cannot_change_the_choice_is_not_measured_and_nothing_twice(monkeypatch, shape, settings, expected):
    measured = []

    def noted(name, measure):
        return lambda *arguments: (measured.append(name), measure(*arguments))[1]

    for name, function in (("box", "box_of"), ("spectrum", "estimated_spectrum")):
        monkeypatch.setattr(request_plans, function, noted(name, getattr(request_plans, function)))
    X, y = many(*shape)
    dkrr.plan(X, y, kernel="rbf", gamma=12.0, memory_limit="4GiB", **settings)
    assert measured == expected


def test_without_finufft_the_plan_says_what_it_would_gain(monkeypatch):
    X, y = many()
    monkeypatch.setattr("dkrr.fitting.request_plans.is_available", lambda: False)
    plan = dkrr.plan(X, y, kernel="rbf", gamma=12.0)
    assert plan.form == "dual" and "finufft-missing" in plan.to_dict()["reason_codes"]
    assert "dkrr[fourier]" in str(plan)
    with pytest.raises(InputError, match="finufft"):
        dkrr.plan(X, y, kernel="rbf", gamma=12.0, form="primal")


def test_without_finufft_a_search_says_so_and_a_saved_model_refuses_any_number_of_rows(monkeypatch, tmp_path):
    X, y = many()
    dkrr.save(KernelRidge(kernel="rbf", gamma=12.0).fit(X, y), tmp_path / "model")
    monkeypatch.setattr("dkrr.kernels.nonuniform.is_available", lambda: False)
    monkeypatch.setattr("dkrr.fitting.search_plans.is_available", lambda: False)
    for n in (3, 20_000):
        with pytest.raises(InputError, match=r"finufft, which is not installed: pip install 'dkrr\[fourier\]'"):
            dkrr.load(tmp_path / "model").predict(X[:n])
    plan = dkrr.plan(X, y, kernel="rbf", gamma=12.0, alphas=5, cv=3)
    assert plan.plan.form == "dual" and "finufft, which is not installed" in str(plan)


def test_a_search_in_primal_form_says_why_there_is_no_grid():
    X, y = many(3_000)
    settings = {"kernel": "rbf", "gamma": 12.0, "alphas": [0.1, 1.0], "form": "primal"}
    refusals = {
        r"alpha = 1e-13 is below .*, the rounding of sums": {"alphas": [1e-13, 1.0]},
        r"the box of the rows, .* is so long": {"gamma": 1e11},
        r"memory_limit is 1 MiB": {"memory_limit": "1MiB"},
    }
    for message, more in refusals.items():
        with pytest.raises((PlanError, InputError), match=message):
            KernelRidgeCV(**(settings | more)).fit(X, y)


def test_the_lengths_of_a_box_that_takes_many_features_are_named():
    X, y = many()
    X[17, 1] = 200.0
    assert grids.box_of(dkrr.data.MemoryRows(X), (1,)) == ((X[:, 1].min(), 200.0),)
    plan = dkrr.plan(X, y, kernel="rbf", gamma=12.0)
    assert "features (entries of K" in str(plan) and "in the box of all rows, 1 × 200, would take about" in str(plan)


@pytest.mark.parametrize("far", [1e9, 1e200, 1.7e308])
def test_a_row_that_is_far_from_all_others_leaves_the_dual_form(far):
    X, y = many(3_000)
    X[17, 1], X[18, 1] = far, -0.1 * far if far > 1e300 else 0.5
    model = KernelRidge(kernel="rbf").fit(X, y)
    assert model.plan_.form == "dual" and "no Fourier grid, since the box of the rows" in str(model.plan_)


def test_differences_of_rows_that_float64_does_not_hold_are_far():
    X, y = many(500)
    X[:, 0] = 1.7e308
    Z = np.vstack([X[:5], [[1.7e308, 1.9], [-1.7e308, 0.5], [0.5, 0.5]]])
    fitted, dual = both(X, y)
    assert_allclose(fitted.predict(Z), dual.predict(Z), atol=1e-9)
    assert_allclose(fitted.predict(Z, return_std=True)[1], dual.predict(Z, return_std=True)[1], rtol=1e-6)


def test_weights_count_where_rounding_hides_alpha():
    X, y = many(3_000)
    weights = np.ones(len(X))
    weights[5] = 1e16
    model = KernelRidge(kernel="rbf", gamma=5.0).fit(X, y, sample_weight=weights)
    with pytest.warns(dkrr.errors.ConvergenceWarning, match="bounds of the variances"):
        assert model.plan_.form == "dual" and np.isfinite(model.predict(X[:2], return_std=True)[1]).all()


def test_alphas_that_rounding_hides_are_solved_for_in_dual_form():
    X, y = many(2_000)
    refusals = {"alpha=0": {"alpha": 0.0}, "tiny": {"alpha": 1e-13}}
    for settings in refusals.values():
        with pytest.raises((PlanError, InputError)):
            KernelRidge(kernel="rbf", gamma=12.0, form="primal", **settings).fit(X, y)
    with pytest.raises(InputError, match=r"alpha = 1e-06 is below .*, the rounding of sums"):
        KernelRidge(kernel="rbf", gamma=12.0, form="primal", alpha=1e-6).fit(X, y, sample_weight=np.full(len(y), 1e6))
    heavy = KernelRidge(kernel="rbf", gamma=12.0, alpha=1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dkrr.errors.ConvergenceWarning)
        heavy.fit(X, y, sample_weight=np.full(len(y), 1e6))
    assert heavy.plan_.form == "dual"


def test_bad_rows_and_boxes_are_refused_before_work():
    X, y = many()
    X[7, 1] = np.nan
    with pytest.raises(InputError, match=r"row 7"):
        KernelRidge(kernel="rbf", gamma=12.0).fit(X, y)
    with pytest.raises(InputError, match="memory_limit"):
        dkrr.plan(
            n_samples=10**6, n_features=2, kernel="rbf", gamma=1e4, extent=1.0, form="primal", memory_limit="200MiB"
        )
    for box in ("x", [(1.0, 0.0)], [(0.0, np.inf)]):
        with pytest.raises(InputError, match="box is"):
            FourierGrid(RBF(gamma=1.0), box=box)
    for extent in (0, "x", [1.0] * 3, [1.0, -1.0]):
        with pytest.raises(InputError, match="extent is"):
            dkrr.plan(n_samples=10, n_features=2, kernel="rbf", extent=extent)
    with pytest.raises(InputError, match="extent is given with"):
        dkrr.plan(n_samples=10, n_features=4, kernel="rbf", extent=1.0)
    with pytest.raises(InputError, match="base of FourierGrid is"):
        FourierGrid(Linear(), box=unit_box(1)).dimension(1)


# By name


@pytest.mark.parametrize("kernel", [RBF(gamma=12.0), Matern(nu=2.5, length_scale=0.3)])
def test_a_named_grid_says_what_its_error_makes_of_the_residual(kernel):
    X, rng = rows(2)
    y = np.sin(7 * X[:, 0]) + 0.1 * rng.standard_normal(N)
    named = KernelRidge(kernel=FourierGrid(kernel, error=1e-4), alpha=0.1).fit(X, y)
    exact = KernelRidge(kernel=kernel, alpha=0.1, form="dual", solver="cholesky").fit(X, y)
    assert named.plan_.problem.kernel.base.box is not None and named.solve_result_.residual <= 1e-10
    (said,) = [text for text in named.solve_result_.messages if "exact ones" in text]
    left = exact.predict(X) - named.predict(X)
    assert np.abs(left).max() < 1e-2 and "entries of K are within" in said
    for Z in zones_of(X, rng, 0.1):
        assert_allclose(named.predict(Z), exact.predict(Z), atol=1e-2)
