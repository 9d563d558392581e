"""Data near the ends of float64, rows far from 0, singular matrices: right, or refused, or not called a success.

With an intercept a linear kernel takes an origin near rows that are far from 0, and keeps all digits.
"""

import re

import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal

import dkrr
from dkrr import KernelLogisticRegression, KernelLogisticRegressionCV, KernelRidge, KernelRidgeCV
from dkrr.errors import InputError, NotFiniteError, NotPositiveDefiniteError
from dkrr.features import feature_map
from dkrr.kernels import RBF, CallableKernel, Columns, Laplacian, Linear, Polynomial
from dkrr.kernels.centring import CentredLinear, linear_scales, origin_near, with_origin
from dkrr.kernels.descriptions import kernel_from_dict
from dkrr.kernels.kernel_features import arrays_of
from dkrr.solvers import ConjugateGradient, RPCholesky, Status
from tests import precise
from tests.oracles import assert_close
from tests.pairs import every_pair

PLACES = {"memory": {}, "tiles": {"tile": 12}, "cg": {"solver": "cg", "tol": 1e-13}}
SUCCESS = (Status.SOLVED, Status.CONVERGED)
METHODS = [(form, solver) for form in ("dual", "primal") for solver in ("cholesky", "cg")]

every_place = pytest.mark.parametrize("place", PLACES)
every_form = pytest.mark.parametrize("form", ["dual", "primal"])


def sample(n=30, d=3):
    rng = np.random.default_rng(0)
    return rng.normal(size=(n, d)), rng.normal(size=n)


@every_place
@every_form
def test_targets_of_every_size_that_is_taken_have_all_their_digits(place, form):
    X, y = sample()
    exact = precise.ridge(Linear(), X, y, 0.5, fit_intercept=place != "tiles")
    # Powers of two, which the oracle's answer for y only has to be multiplied by.
    powers = np.array([-397, -150, 0, 150, 397])
    model = KernelRidge(0.5, form=form, fit_intercept=place != "tiles", **PLACES[place])
    result = model.fit(X, np.ldexp(y[:, None], powers)).solve_result_
    assert result.status in SUCCESS and 0.0 < result.residual < 1e-12
    for found, expected in (
        (model.dual_coef_, exact.dual_coef),
        (model.predict(X), exact.fitted),
        (model.rkhs_norm_, exact.norm),
    ):
        errors = np.abs(np.ldexp(found, -powers) - expected)
        assert (errors <= 1e-12 * max(np.abs(exact.fitted).max(), 1.0)).all()


@pytest.mark.parametrize("size", [5e-324, 3e-200, 1e-121, 1e121, 2e200, -1.7e308])
def test_targets_whose_squares_leave_float64_are_refused_and_what_to_do_is_said(tmp_path, size):
    X, y = sample()
    y /= np.abs(y).max()
    np.save(tmp_path / "y.npy", y * size)
    message = r"the largest \|y\| is .*; expected 0, or a number from 1e-120 to 1e\+120.*: divide y by ([^ ]*) \("
    for question in (
        lambda: KernelRidge(store=tmp_path / "run.zarr").fit(X, y * size),
        lambda: KernelRidge().fit(X, tmp_path / "y.npy"),
        lambda: KernelRidge().fit(X, da.from_array(y * size)),
        lambda: KernelRidgeCV([0.1, 1.0], store=tmp_path / "search").fit(X, y * size),
        lambda: dkrr.plan(X, y * size),
    ):
        with pytest.raises(InputError, match=message) as caught:
            question()
        divisor = float(re.search(message, str(caught.value))[1])
        assert 0 < divisor < np.inf and KernelRidge().fit(X, y * size / divisor).solve_result_.status in SUCCESS
    assert sorted(path.name for path in tmp_path.iterdir()) == ["y.npy"], "before any work"
    message = r"of target 1 \(counted from 0\) is .* divide this column of y by"
    with pytest.raises(InputError, match=message):
        KernelRidge().fit(X, np.column_stack([np.zeros(30), y * size]))


def test_solutions_larger_than_float64_are_not_called_a_success():
    X, y = sample()
    with pytest.raises(NotFiniteError, match="dual_coef_ of target 1 .* is not finite"):
        KernelRidge(1e-195, form="dual").fit(X * 1e-120, np.column_stack([y, y * 1e119]))


@pytest.mark.parametrize("power", [-460, 67, 460])
def test_conjugate_gradient_on_rows_of_any_size(power):
    X, y = sample(80)
    solver = ConjugateGradient(RPCholesky(2), precision="mixed")
    plain, scaled = (KernelRidge(0.25 * 4.0**p, form="dual", solver=solver).fit(np.ldexp(X, p), y) for p in (0, power))
    assert scaled.solve_result_.status is Status.CONVERGED
    assert scaled.solve_result_.iterations <= plain.solve_result_.iterations + 5  # those in float32 that were in vain
    assert_allclose(scaled.predict(np.ldexp(X, power)), plain.predict(X), rtol=0, atol=1e-6)


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


@pytest.mark.parametrize(("way", "power"), list(zip(METHODS, [-98, 98, -98, 98], strict=True)))
def test_weights_of_every_size_that_is_taken(way, power):
    X, y = sample()
    weights = np.random.default_rng(1).uniform(0.5, 2.0, len(y))
    exact = precise.logistic(Linear(), X, y > 0, 0.5, sample_weight=weights, fit_intercept=True)
    model = KernelLogisticRegression(np.ldexp(0.5, power), form=way[0], solver=way[1], tol=1e-10)
    result, scores = model.fit(X, y > 0, sample_weight=np.ldexp(weights, power)).solve_result_, exact.fitted[:, 0]
    assert result.status is Status.CONVERGED
    assert_allclose(model.decision_function(X), scores, rtol=0, atol=1e-7)
    least = weights @ np.logaddexp(0.0, np.where(y > 0, -scores, scores)) + 0.5 * exact.norm[0] ** 2
    assert_allclose(np.ldexp(result.steps[-1].objective, -power), least, rtol=1e-9)
    ridge = precise.ridge(Linear(), X, y, 0.5, sample_weight=weights, fit_intercept=True)
    model = KernelRidge(np.ldexp(0.5, power), form=way[0], solver=way[1], fit_intercept=True, tol=1e-12)
    assert model.fit(X, y, sample_weight=np.ldexp(weights, power)).solve_result_.status in SUCCESS
    assert_allclose(model.predict(X), ridge.fitted[:, 0], rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("least", "most", "factor"), [(1e-32, 1.0, "1e-16"), (1e20, 1e40, r"1e\+30"), (5e-324, 5e-324, "1e-300")]
)
def test_weights_out_of_range_are_refused_and_what_to_do_is_said(least, most, factor):
    X, y = sample()
    weights = np.full(30, least)
    weights[3], weights[4] = most, 0.0
    message = f"in row . expected 0, or a number from 1e-30 to 1e.30: divide all weights and every alpha by {factor}, "
    for model in (KernelRidge(), KernelRidgeCV([0.1, 1.0]), KernelLogisticRegression()):
        with pytest.raises(InputError, match=message.replace("row .", "row .;")):
            model.fit(X, y > 0, sample_weight=weights)
    with pytest.raises(InputError, match=f"sample_weight is .* {message.replace('row .', 'row .;')}"):
        dkrr.plan(X, y, sample_weight=weights)


def test_weights_too_far_apart_for_one_factor_and_those_of_classes():
    X, y = sample()
    weights = np.ones(30)
    weights[7] = 1e-65
    with pytest.raises(InputError, match="is 1e-65 in row 7; .*: bring the weights nearer to each other; .* weight 0"):
        KernelRidge().fit(X, y, sample_weight=weights)
    for kind in (KernelLogisticRegression, KernelLogisticRegressionCV):
        with pytest.raises(InputError, match=r"sample_weight times class_weight is 1e\+31 in row .* alpha by 1e\+20"):
            kind(class_weight={False: 1e31, True: 1e10}).fit(X, y > 0)
        with pytest.raises(InputError, match=r"sample_weight times class_weight is inf in row .* alpha by 1e\+308"):
            kind(class_weight={False: 1e308, True: 1e308}).fit(X, y > 0, sample_weight=np.full(30, 1e20))
        with pytest.raises(InputError, match=r"sample_weight times class_weight is .*e\+307 in row .* by 1e\+307"):
            kind(class_weight="balanced").fit(X, y > 0, sample_weight=np.full(30, 1e307))


def test_nan_is_named_by_its_row_of_all_and_not_by_that_of_a_sample_or_fold():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2000, 5))
    y, X[-1, 3] = rng.normal(size=2000), np.nan
    for kind, n in ((KernelRidgeCV, 2000), (KernelLogisticRegressionCV, 200)):
        rows, targets = sp.csr_array(X[-n:]), y[-n:] if kind is KernelRidgeCV else y[-n:] > 0
        with pytest.raises(InputError, match=f"NaN: the first bad value is in row {n - 1}, column 3"):
            kind(kernel="linear", alphas=[1.0, 2.0], cv=3).fit(rows, targets)


@pytest.mark.parametrize(("way", "n_classes"), list(zip(METHODS, [2, 3, 3, 2], strict=True)))
def test_features_whose_squares_overflow_are_refused(way, n_classes):
    X, y = sample()
    labels = np.digitize(y, [-0.5, 0.5]) if n_classes == 3 else y > 0
    with pytest.raises(NotFiniteError, match="rescale the columns of X"):
        KernelLogisticRegression(0.1, form=way[0], solver=way[1], fit_intercept=n_classes == 3).fit(X * 1e160, labels)


@every_pair(place=["memory", "tiles"], value=[0.1, 1e-119, 1e119])
def test_constant_targets_are_their_mean_and_opposite_ones_cancel(place, value):
    """What is left of them after their mean is rounding, which no residual is relative to."""
    X, y = sample(60)
    X, opposite = np.repeat(X, 2, axis=0), np.repeat(y, 2) * np.tile([1, -1], 60)
    for alpha, targets, mean in ((1e-3, np.full(120, value), value), (1e-9, opposite, 0.0)):
        model = KernelRidge(alpha, form="primal", fit_intercept=mean != 0.0, **PLACES[place]).fit(X, targets)
        assert model.solve_result_.status is Status.SOLVED and model.solve_result_.residual < 1e-14
        assert_array_equal(model.coef_, 0.0)
        assert_allclose(model.predict(X), mean, rtol=1e-15)


@pytest.mark.parametrize("tile", [None, 48])
def test_the_row_at_which_a_matrix_is_singular_or_indefinite_is_named(data, tile):
    X, K = data.X.copy(), np.diag(np.where(np.arange(211) < 100, 1.0, -1.0))
    X[137] = X[60]
    with pytest.raises(NotPositiveDefiniteError, match=r"alpha = 0.*row 137.*duplicate rows"):
        KernelRidge(0.0, kernel="rbf", gamma=3.0, tile=tile).fit(X, data.y)
    with pytest.raises(NotPositiveDefiniteError, match=r"alpha = 0.5.*row 100 .*increase alpha"):
        KernelRidge(0.5, kernel="precomputed", tile=tile).fit(K, data.y)


# With as many of each class, 1ᵀg is 0 at the start.
@every_pair(tile=[None, 10], solver=["cholesky", "cg"], is_balanced=[False, True])
def test_an_indefinite_or_asymmetric_kernel_is_found_by_newtons_method(data, tile, solver, is_balanced):
    K = np.diag(np.where(np.arange(24) < 12, 1.0, -3.0))
    y = np.arange(24) % 2 if is_balanced else np.arange(24) > 7
    model = KernelLogisticRegression(0.01, kernel="precomputed", tile=tile, solver=solver)
    with pytest.raises(NotPositiveDefiniteError, match="not positive semidefinite.*increase alpha"):
        model.fit(K, y)
    K = RBF(gamma=1.0)(data.X[:24])
    K[20, 3] += 1e-3
    with pytest.raises(InputError, match="symmetric"):
        model.fit(K, y)


@pytest.mark.parametrize("tile", [None, 48])
def test_rounding_beside_the_largest_entry_is_not_an_asymmetry(data, tile):
    K = 100.0 * np.eye(211)
    K[150, 3] = 1e-17
    found = KernelRidge(kernel="precomputed", tile=tile).fit(K, data.y).dual_coef_
    assert_close(found, data.y / 101.0, 1e-12)


def test_least_squares_takes_the_form_whose_matrix_is_not_singular_and_counts_rows_with_a_weight():
    X, y = sample(20, 6)
    model = KernelRidge(alpha=0.0, kernel="linear").fit(X, y, sample_weight=np.repeat([0.0, 1.0], [15, 5]))
    assert model.plan_.form == "dual"
    assert_allclose(model.predict(X)[15:], y[15:], atol=1e-8)


# Rows far from 0 -------------------------------------------------------------------------------------------------


def centre_linear_parts(kernel, X, n, weights=None):
    origin = origin_near(kernel, X, n, weights)
    return kernel if origin is None else with_origin(kernel, origin)


def rows(n, d, offset, seed=0):
    return np.random.default_rng(seed).standard_normal((n, d)) + offset


ITERATED = {"solver": "cg", "tol": 1e-11}


@every_pair(
    form=["dual", "primal"],
    settings=[{}, {"tile": 16}, ITERATED],
    d=[4, 60],
    offset=[-1e3, 1e8],
    ids=str,
)
def test_ridge_regressions_keep_all_digits(form, settings, d, offset):
    X, X_new, y = rows(40, d, offset), rows(5, d, offset, seed=1), rows(40, 2, 0.0, seed=2)
    weights = np.random.default_rng(3).uniform(0.5, 2.0, 40)
    model = KernelRidge(1e-2, kernel="linear", form=form, fit_intercept=True, **settings)
    model.fit(X, y, sample_weight=weights)
    expected = precise.ridge(Linear(), X, y, 1e-2, sample_weight=weights, fit_intercept=True, X_new=X_new)
    loss = 1e6 if "solver" in settings else 1.0  # condition number times tol
    assert_allclose(model.predict(X_new), expected.predictions, rtol=0, atol=1e-10 * loss)
    assert_allclose(model.dual_coef_, expected.dual_coef, rtol=0, atol=1e-9 * loss * np.abs(expected.dual_coef).max())
    assert_close(model.intercept_, expected.intercept, 1e-10 * loss)
    if hasattr(model, "coef_"):
        found = X_new[:1] @ model.coef_.T + model.intercept_
        assert_allclose(found, expected.predictions[:1], atol=1e-14 * offset**2 + 1e-10 * loss)


@every_pair(form=["dual", "primal"], offset=[1e5, 1e8])
def test_logistic_regressions_keep_all_digits(form, offset):
    X = rows(40, 3, offset)
    labels = (X[:, 0] - offset + rows(40, 1, 0.0, seed=1)[:, 0] > 0).astype(int)
    expected = precise.logistic(Linear(), X, labels, 0.1)
    model = KernelLogisticRegression(0.1, form=form, tol=1e-11).fit(X, labels)
    assert_allclose(model.predict_proba(X)[:, 1], precise.probabilities(expected.fitted), atol=1e-10)
    assert_close(model.intercept_, expected.intercept, 1e-9)


@every_pair(kind=[KernelRidge, KernelLogisticRegression], form=["dual", "primal"])
def test_saved_models_keep_their_origin_and_can_be_fitted_again(tmp_path, form, kind):
    X, y = rows(30, 3, 1e6), rows(30, 1, 0.0, seed=1)[:, 0] > 0
    model = kind(0.1, kernel=Linear() + 0.1 * RBF() if form == "dual" else Linear(), fit_intercept=True, form=form)
    dkrr.save(model.fit(X, y.astype(float)), tmp_path / "m.zarr")
    again = dkrr.load(tmp_path / "m.zarr")
    assert_array_equal(again.predict(X), model.predict(X))
    assert_array_equal(again.intercept_, model.intercept_)
    assert again.kernel == model.kernel
    assert_array_equal(again.fit(X, y.astype(float)).predict(X), model.predict(X))


def test_what_takes_no_origin():
    X, y = rows(20, 3, 1e6), np.arange(20.0)
    assert isinstance(centre_linear_parts(Linear(), X, 20), CentredLinear)
    assert centre_linear_parts(Linear(), rows(20, 3, 1.0), 20) == Linear(), "near 0 as they are"
    assert centre_linear_parts(Linear(), X[:1], 1) == Linear(), "it would be 0"
    for kernel in (RBF(), Polynomial(degree=1), Linear() * RBF(), Linear() + Polynomial(degree=2)):
        assert centre_linear_parts(kernel, X, 20) is kernel
    assert KernelRidge(1e6, form="dual").fit(X - 1e6 + 100.0, y)._model.kernel == Linear(), "no intercept"


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_the_linear_parts_of_a_kernel_have_one_origin(scale):
    X, Z = rows(50, 4, 1e6) * [1, 1, 1, scale], rows(7, 4, 1e6, seed=1) * [1, 1, 1, scale]
    origin, scales = origin_near(PARTS, X, 50), np.array([6.0, 0.1, 6.0, 0.1])
    assert_array_equal(linear_scales(PARTS, 4), scales)
    assert_allclose(origin, X.mean(axis=0) + X.std(axis=0) / np.sqrt(50), rtol=1e-15)
    found = with_origin(PARTS + RBF(gamma=1.0), origin)(X, Z) - RBF(gamma=1.0)(X, Z)
    assert_allclose(found, ((X - origin) * scales) @ (Z - origin).T, rtol=1e-7, atol=1e-8)
    assert_array_equal(origin_near(Columns(Linear(), [2]), X, 50), [0, 0, origin[2], 0])


def test_the_kernel_about_an_origin_and_its_map():
    X, Z = rows(700, 600, 1e6), rows(7, 600, 1e6, seed=1)  # more than one strip
    kernel = centre_linear_parts(Linear(), X, 700)
    phi, features = feature_map(kernel, 600), X - kernel.origin
    expected = features @ (Z - kernel.origin).T
    coef, values = rows(600, 2, 0.0, seed=1), rows(700, 2, 0.0, seed=2)
    for found, exact, atol in (
        (kernel(X, Z), expected, 1e-9),
        (kernel(sp.csr_array(X), Z), expected, 1e-9),
        (kernel(X, Z, out=np.empty((700, 7), np.float32)), expected, 1e-3),
        (phi.transform(X) @ phi.transform(Z).T, expected, 1e-9),
        (kernel.diagonal(X), (features**2).sum(axis=1), 1e-9),
        (phi.multiply(X, coef), features @ coef, 1e-10),
        (phi.adjoint(X, values), features.T @ values, 1e-10),
        (phi.multiply(sp.csr_array(X[:9]), coef), features[:9] @ coef, 1e-10),
        (phi.adjoint(X[:0], values[:0]), np.zeros((600, 2)), 0.0),
    ):
        assert_allclose(found, exact, rtol=1e-7, atol=atol)
    for each in (kernel, 2.0 * kernel + RBF(gamma=0.5)):
        assert kernel_from_dict(each.to_dict(), arrays=arrays_of(each)) == each
    assert len(repr(kernel)) + len(str(kernel.to_dict())) < 300
    with pytest.raises(InputError, match="columns"):
        kernel(X[:, :3])


def far_only(A, B):
    """Gaussian kernel of the rows of this module far from 0; no other row is its domain."""
    if min(A.min(), B.min()) < 1e4:
        raise ValueError("a row that was not given")
    return RBF(gamma=0.3)(A, B)


MIXED = Columns(0.1 * Linear(), [1, 3]) + Columns(Laplacian(), [0])
PARTS = 2.0 * Columns(3.0 * Linear(), [2, 0]) + Columns(0.1 * Linear(), [1, 3])


@pytest.mark.parametrize(
    ("kernel", "known", "form"),
    [
        (0.5 * Linear() + CallableKernel(far_only), 0.5 * Linear() + RBF(gamma=0.3), "dual"),
        (MIXED, MIXED, "dual"),
        (PARTS, PARTS, "dual"),
        (PARTS, PARTS, "primal"),  # b + w . phi(0) of the maps about 0
    ],
    ids=["function", "mixed", "dual", "primal"],
)
def test_the_intercept_is_that_of_the_users_kernel_which_is_not_called_at_zero(kernel, known, form):
    X, y = rows(60, 4, 1e5), rows(60, 2, 0.0, seed=1)
    model = KernelRidge(0.1, kernel=kernel, fit_intercept=True, form=form).fit(X, y)
    expected = precise.ridge(known, X, y, 0.1, fit_intercept=True, X_new=X[:5])
    assert_close(model.intercept_, expected.intercept, 1e-9)
    assert_allclose(model.predict(X[:5]), expected.predictions, atol=1e-9)


@every_pair(form=["dual", "primal"], solver=["cholesky", "cg"])
def test_rows_that_are_all_the_same_give_the_mean_and_the_shares(form, solver):
    X, y = np.full((100, 3), 1e8), np.arange(100.0)
    model = KernelRidge(0.1, kernel="linear", fit_intercept=True, form=form, solver=solver).fit(X, y)
    assert_allclose(model.predict(X[:2]), 49.5)
    labels = KernelLogisticRegression(0.1, kernel="linear", form=form, solver=solver).fit(X, y % 5 == 0)
    assert_allclose(labels.predict_proba(X[:1])[0, 1], 0.2, rtol=1e-6)


@every_pair(form=["dual", "primal"], weight=[0.0, 1e-12])
def test_a_far_row_that_hardly_counts_does_not_move_the_origin(form, weight):
    X, y, weights = rows(60, 3, 1e6), rows(60, 1, 0.0, seed=1), np.ones(60)
    X[7], weights[7] = 1e9, weight
    model = KernelRidge(0.1, kernel="linear", fit_intercept=True, form=form).fit(X, y, sample_weight=weights)
    assert model._model.intercept_shift is not None
    expected = precise.ridge(Linear(), X, y, 0.1, sample_weight=weights, fit_intercept=True, X_new=X[:5])
    assert_allclose(model.predict(X[:5]), expected.predictions, atol=1e-8)


def test_lazy_rows_of_which_the_first_do_not_count(tmp_path):
    X, y, weights = rows(60, 3, 1e6), rows(60, 1, 0.0, seed=1), np.ones(60)
    X[:5], X[20] = 1e9, -1e9
    weights[:5] = weights[20] = 0.0
    expected = precise.ridge(Linear(), X, y, 0.1, sample_weight=weights, fit_intercept=True, X_new=X[30:])
    model = KernelRidge(0.1, fit_intercept=True, form="dual", tile=32, store=str(tmp_path / "run.zarr"))
    model.fit(da.from_array(X, chunks=(30, 3)), y, sample_weight=weights)
    assert_allclose(model.predict(X[30:]), expected.predictions, atol=1e-9)


@pytest.mark.parametrize(
    ("kind", "form"), [(KernelRidge, "dual"), (KernelRidge, "primal"), (KernelLogisticRegression, "primal")]
)
def test_a_run_continues_from_another_container_with_the_origin_of_the_first(tmp_path, kind, form):
    # The first rows and all of them have different means.
    X = rows(1100, 3, 1e6) + np.linspace(0.0, 9.0, 1100)[:, None]
    y = rows(1100, 1, 0.0, seed=1)[:, 0] > 0
    model = kind(0.1, kernel="linear", fit_intercept=True, form=form, tile=1100, store=str(tmp_path / "run"))
    first, again = (model.fit(given, y)._model for given in (X, da.from_array(X, chunks=(550, 3))))
    assert again.kernel == first.kernel
    assert_array_equal(again.intercept, first.intercept)
