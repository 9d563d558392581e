"""Rows far from 0: with a free intercept a linear kernel takes an origin near them, and keeps all digits."""

import warnings

import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp
import zarr
from numpy.testing import assert_allclose, assert_array_equal

import dkrr
from dkrr import KernelLogisticRegression, KernelRidge
from dkrr.errors import ConvergenceWarning, InputError, StoreError
from dkrr.features import IdentityMap, arrays_of, feature_map, feature_map_from_dict, kernel_from_dict
from dkrr.features.maps import CentredMap, difference_at_zero
from dkrr.fitting.data import ORIGINS
from dkrr.kernels import RBF, CallableKernel, Columns, Laplacian, Linear, Polynomial, Precomputed
from dkrr.kernels.centring import CentredLinear, origins_near, with_origins
from dkrr.tiles import RunStore
from tests import precise
from tests.pairs import every_pair

every_form = pytest.mark.parametrize("form", ["dual", "primal"])


def about_the_rows(kernel, X, n, weights=None):
    return with_origins(kernel, origins_near(kernel, X, n, weights) or (None,) * 9)


def rows(n, d, offset, seed=0):
    return np.random.default_rng(seed).standard_normal((n, d)) + offset


def in_chunks(folder, X):
    """The same rows in a Zarr array and in a Dask array."""
    stored = zarr.create_array(f"{folder}/X.zarr", shape=X.shape, chunks=(len(X) // 3, X.shape[1]), dtype=X.dtype)
    stored[...] = X
    return stored, da.from_array(X, chunks=(len(X) // 2, X.shape[1]))


@every_pair(
    settings=[
        {"form": "dual"},
        {"form": "primal"},
        {"form": "dual", "tile": 16},
        {"form": "dual", "solver": "cg", "tol": 1e-11},
        {"form": "primal", "solver": "cg", "tol": 1e-11},
    ],
    d=[4, 60],
    offset=[-1e3, 1e8],
    ids=str,
)
def test_ridge_regressions_keep_all_digits(settings, d, offset):
    X, X_new, y = rows(40, d, offset), rows(5, d, offset, seed=1), rows(40, 2, 0.0, seed=2)
    weights = np.random.default_rng(3).uniform(0.5, 2.0, 40)
    model = KernelRidge(1e-2, kernel="linear", fit_intercept=True, **settings).fit(X, y, sample_weight=weights)
    expected = precise.ridge(Linear(), X, y, 1e-2, sample_weight=weights, fit_intercept=True, X_new=X_new)
    loss = 1e6 if "solver" in settings else 1.0  # condition number times tol
    assert_allclose(model.predict(X_new), expected.predictions, rtol=0, atol=1e-10 * loss)
    assert_allclose(model.dual_coef_, expected.dual_coef, rtol=0, atol=1e-9 * loss * np.abs(expected.dual_coef).max())
    assert_allclose(model.intercept_, expected.intercept, rtol=1e-10 * loss)
    if hasattr(model, "coef_"):
        found = X_new[:1] @ model.coef_ + model.intercept_
        assert_allclose(found, expected.predictions[:1], atol=1e-14 * offset**2 + 1e-10 * loss)


@every_pair(form=["dual", "primal"], offset=[1e5, 1e8])
def test_logistic_regressions_keep_all_digits(form, offset):
    X = rows(40, 3, offset)
    labels = (X[:, 0] - offset + rows(40, 1, 0.0, seed=1)[:, 0] > 0).astype(int)
    expected = precise.logistic(Linear(), X, labels, 0.1)
    model = KernelLogisticRegression(0.1, form=form, tol=1e-11).fit(X, labels)
    assert_allclose(model.predict_proba(X)[:, 1], precise.probabilities(expected.fitted), atol=1e-10)
    assert_allclose(model.intercept_, expected.intercept, rtol=1e-9)
    many = np.argmax(rows(40, 3, 0.0) + 0.5 * rows(40, 3, 0.0, seed=1), axis=1)
    near = KernelLogisticRegression(0.1, form=form, tol=1e-10).fit(X - offset, many)
    far = KernelLogisticRegression(0.1, form=form, tol=1e-10).fit(X, many)
    assert_allclose(far.predict_proba(X), near.predict_proba(X - offset), atol=1e-8)


OFFSET = 2.0**24
"""So that rows of few digits plus it are exact."""


@pytest.mark.parametrize(
    "kernel",
    [
        0.5 * Linear() + RBF(gamma=0.3),
        Columns(Linear(), [0, 1]) + 2.0 * Columns(Linear(), [3, 2]),
        Columns(0.1 * Linear(), [1, 3]) + Columns(Laplacian(), [0]),
    ],
    ids=str,
)
def test_linear_parts_of_sums_and_columns_take_an_origin_too(kernel):
    X, X_new = (np.round(rows(n, 4, 0.0, seed=n) * 64) / 64 for n in (50, 9))
    y = rows(50, 1, 0.0, seed=2)[:, 0]
    near, far, third = (
        KernelRidge(0.01, kernel=kernel, fit_intercept=True, form="dual").fit(X + offset, y)
        for offset in (0.0, OFFSET, 64.0)
    )
    assert_allclose(far.predict(X_new + OFFSET), near.predict(X_new), atol=1e-10)
    assert_allclose(far.dual_coef_, near.dual_coef_, atol=1e-8)
    assert_allclose(far.dual_coef_.sum(), 0.0, atol=1e-9)
    # As the formula says, with the user's own rows and kernel.
    formula = kernel(X_new + 64.0, X + 64.0) @ third.dual_coef_ + third.intercept_
    assert_allclose(formula, third.predict(X_new + 64.0), atol=1e-7)


def test_without_a_penalty_targets_are_interpolated():
    X, y = rows(20, 40, 1e6), rows(20, 1, 0.0, seed=1)[:, 0]  # about the mean itself K would be singular
    model = KernelRidge(0.0, kernel="linear", fit_intercept=True, form="dual").fit(X, y)
    assert_allclose(model.predict(X), y, atol=1e-9)


@every_form
@pytest.mark.parametrize("kind", [KernelRidge, KernelLogisticRegression])
def test_saved_models_keep_their_origin_and_can_be_fitted_again(tmp_path, form, kind):
    X, y = rows(30, 3, 1e6), rows(30, 1, 0.0, seed=1)[:, 0]
    y, score = (y, "predict") if kind is KernelRidge else (y > 0, "decision_function")
    model = kind(0.1, kernel=Linear() + 0.1 * RBF() if form == "dual" else Linear(), fit_intercept=True, form=form)
    dkrr.save(model.fit(X, y), tmp_path / "m.zarr")
    again = dkrr.load(tmp_path / "m.zarr")
    assert_array_equal(getattr(again, score)(X), getattr(model, score)(X))
    assert_array_equal(again.intercept_, model.intercept_)
    assert again.kernel == model.kernel
    assert_array_equal(getattr(again.fit(X, y), score)(X), getattr(model, score)(X))


def test_what_takes_no_origin():
    X, y = rows(20, 3, 1e6), np.arange(20.0)
    assert about_the_rows(Linear(), rows(20, 3, 1.0), 20) == Linear()  # near 0 as they are
    assert about_the_rows(Linear(), X[:1], 1) == Linear()  # it would be 0
    assert isinstance(about_the_rows(Linear(), X, 20), CentredLinear)
    for kernel in (RBF(), Polynomial(1), Linear() * RBF(), Linear() + Polynomial(2)):
        assert about_the_rows(kernel, X, 20) is kernel
    for given, kernel in ((sp.csr_array(X), Linear()), (X @ X.T, Precomputed())):
        model = KernelRidge(1e6, kernel=kernel, fit_intercept=True, form="dual")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            assert model.fit(given, y)._model.kernel == kernel
    assert KernelRidge(1e6, form="dual").fit(X - 1e6 + 100.0, y)._model.kernel == Linear()  # no free intercept
    X[7, 1] = np.nan
    with pytest.raises(InputError, match="row 7"):
        KernelRidge(1.0, fit_intercept=True).fit(X, y)


def test_the_kernel_about_an_origin_and_its_map():
    X, Z = rows(700, 600, 1e6), rows(7, 600, 1e6, seed=1)  # more than one strip
    kernel = about_the_rows(Linear(), X, 700)
    phi = feature_map(kernel, 600)
    features, expected = X - kernel.origin, (X - kernel.origin) @ (Z - kernel.origin).T
    for found in (kernel(X, Z), kernel(sp.csr_array(X), Z), phi.transform(X) @ phi.transform(Z).T):
        assert_allclose(found, expected, atol=1e-9)
    assert_allclose(kernel.diagonal(X), (features**2).sum(axis=1))
    assert_allclose(kernel(X, Z, out=np.empty((700, 7), np.float32)), expected, atol=1e-3)
    coef, values = rows(600, 2, 0.0, seed=1), rows(700, 2, 0.0, seed=2)
    assert_allclose(phi.multiply(X, coef), features @ coef, atol=1e-10)
    assert_allclose(phi.adjoint(X, values), features.T @ values, atol=1e-10)
    assert_allclose(phi.multiply(sp.csr_array(X[:9]), coef), features[:9] @ coef, atol=1e-10)
    assert phi.multiply(X[:0], coef).shape == (0, 2) and not phi.adjoint(X[:0], values[:0]).any()
    for each in (kernel, 2.0 * kernel + RBF(0.5)):
        assert kernel_from_dict(each.to_dict(), arrays=arrays_of(each)) == each
    assert feature_map_from_dict(phi.to_dict(), arrays=arrays_of(phi)) == phi and phi.kernel() == kernel
    assert hash(phi) != hash(CentredMap(kernel.origin + 1.0))
    assert len(repr(kernel)) + len(repr(phi)) + len(str(kernel.to_dict())) + len(str(phi.to_dict())) < 500
    with pytest.raises(InputError, match="missing"):
        kernel_from_dict(kernel.to_dict())
    with pytest.raises(InputError, match="columns"):
        kernel(X[:, :3])


def far_only(A, B):
    """Gaussian kernel of the rows of this module far from 0; no other row is its domain."""
    if min(A.min(), B.min()) < 1e4:
        raise ValueError("a row that was not given")
    return RBF(0.3)(A, B)


PARTS = 2.0 * Columns(3.0 * Linear(), [2, 0]) + Columns(0.1 * Linear(), [1, 3])


@pytest.mark.parametrize(
    ("kernel", "known", "form"),
    [
        (0.5 * Linear() + CallableKernel(far_only), 0.5 * Linear() + RBF(0.3), "dual"),
        (PARTS, PARTS, "dual"),
        (PARTS, PARTS, "primal"),  # b + w . phi(0) of the maps about 0
    ],
    ids=["function", "dual", "primal"],
)
def test_the_intercept_is_that_of_the_users_kernel_which_is_not_called_at_zero(kernel, known, form):
    X, y = rows(60, 4, 1e5), rows(60, 2, 0.0, seed=1)
    model = KernelRidge(0.1, kernel=kernel, fit_intercept=True, form=form).fit(X, y)
    expected = precise.ridge(known, X, y, 0.1, fit_intercept=True, X_new=X[:5])
    assert_allclose(model.intercept_, expected.intercept, rtol=1e-9)
    assert_allclose(model.predict(X[:5]), expected.predictions, atol=1e-9)


def test_the_difference_of_maps_at_zero():
    plain, about, zero = feature_map(PARTS, 4), feature_map(about_the_rows(PARTS, rows(60, 4, 1e5), 60), 4), [[0.0] * 4]
    expected = (about.transform(np.array(zero)) - plain.transform(np.array(zero)))[0]
    assert_array_equal(difference_at_zero(about, plain, 4), expected)
    assert not difference_at_zero(IdentityMap(), IdentityMap(), 4).any()


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


def test_stored_and_lazy_rows_of_which_the_first_do_not_count(tmp_path):
    X, y, weights = rows(60, 3, 1e6), rows(60, 1, 0.0, seed=1), np.ones(60)
    X[:5], X[20] = 1e9, -1e9
    weights[:5] = weights[20] = 0.0
    expected = precise.ridge(Linear(), X, y, 0.1, sample_weight=weights, fit_intercept=True, X_new=X[30:])
    for given in in_chunks(tmp_path, X):
        model = KernelRidge(0.1, fit_intercept=True, form="dual", tile=32, store=str(tmp_path / type(given).__name__))
        model.fit(given, y, sample_weight=weights)
        for new in (X[30:], sp.csr_array(X[30:]), da.from_array(X[30:])):
            assert_allclose(np.asarray(model.predict(new)), expected.predictions, atol=1e-9)


@pytest.mark.parametrize(
    ("kind", "form"), [(KernelRidge, "dual"), (KernelRidge, "primal"), (KernelLogisticRegression, "primal")]
)
def test_a_run_continues_from_another_container_with_the_origin_of_the_first(tmp_path, kind, form):
    # The first rows and all of them have different means.
    X = rows(1100, 3, 1e6) + np.linspace(0.0, 9.0, 1100)[:, None]
    y = rows(1100, 1, 0.0, seed=1)[:, 0] > 0
    model = kind(0.1, kernel="linear", fit_intercept=True, form=form, tile=1100, store=str(tmp_path / "run"))
    first = model.fit(X, y)._model
    assert origins_near(Linear(), X[::2], 1100)[0][0] != origins_near(Linear(), X[:1024], 1100)[0][0]
    for given in in_chunks(tmp_path, X):
        again = model.fit(given, y)._model
        assert again.kernel == first.kernel
        assert_array_equal(again.intercept, first.intercept)
    with pytest.raises(StoreError, match="another problem"):
        model.fit(X[:, :2], y)


def test_a_run_that_began_without_an_origin_continues_without(tmp_path):
    # Such as one of an earlier version: tiles about 0 and about an origin must not meet.
    X, y = rows(60, 3, 1e6), rows(60, 1, 0.0, seed=1)[:, 0]
    model = KernelRidge(1e6, kernel="linear", fit_intercept=True, form="dual", tile=32, store=str(tmp_path / "run"))
    model.fit(X, y)
    store = RunStore(str(tmp_path / "run"))
    assert store.note(ORIGINS) is not None
    store.set_note(ORIGINS, None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        assert model.fit(X, y)._model.kernel == Linear()
