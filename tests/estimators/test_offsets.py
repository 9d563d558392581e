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
from dkrr.kernels import (
    RBF,
    CallableKernel,
    Columns,
    Laplacian,
    Linear,
    Polynomial,
    Precomputed,
)
from dkrr.kernels.centring import FAR, CentredLinear, origins_near, with_origins
from dkrr.tiles import RunStore
from tests import precise


def about_the_rows(kernel, X, n, weights=None):
    return with_origins(kernel, origins_near(kernel, X, n, weights) or (None,) * 9)


def rows(n, d, offset, seed=0):
    return np.random.default_rng(seed).standard_normal((n, d)) + offset


@pytest.mark.parametrize("offset", [1e3, -1e6, 1e8])
@pytest.mark.parametrize("d", [4, 60])
@pytest.mark.parametrize(
    "settings",
    [
        {"form": "dual"},
        {"form": "primal"},
        {"form": "dual", "tile": 16},
        {"form": "dual", "solver": "cg", "tol": 1e-11},
        {"form": "primal", "solver": "cg", "tol": 1e-11},
    ],
    ids=["dual", "primal", "tiles", "cg", "primal cg"],
)
def test_ridge(settings, d, offset):
    X, X_new = rows(40, d, offset), rows(5, d, offset, seed=1)
    y = np.random.default_rng(2).standard_normal((40, 2))
    weights = np.random.default_rng(3).uniform(0.5, 2.0, 40)
    model = KernelRidge(1e-2, kernel="linear", fit_intercept=True, **settings).fit(X, y, sample_weight=weights)
    expected = precise.ridge(Linear(), X, y, 1e-2, sample_weight=weights, fit_intercept=True, X_new=X_new)
    loss = 1e6 if "solver" in settings else 1.0  # condition number times tol
    assert_allclose(model.predict(X_new), expected.predictions, rtol=0, atol=1e-10 * loss)
    assert_allclose(model.dual_coef_, expected.dual_coef, rtol=0, atol=1e-9 * loss * np.abs(expected.dual_coef).max())
    assert_allclose(model.intercept_, expected.intercept, rtol=1e-10 * loss)
    if hasattr(model, "coef_"):
        assert_allclose(
            X_new[:1] @ model.coef_ + model.intercept_, expected.predictions[:1], atol=1e-14 * offset**2 + 1e-10 * loss
        )


@pytest.mark.parametrize("offset", [1e5, 1e6, 1e8])
@pytest.mark.parametrize("form", ["dual", "primal"])
def test_logistic(form, offset):
    X = rows(40, 3, offset)
    labels = (X[:, 0] - offset + np.random.default_rng(1).standard_normal(40) > 0).astype(int)
    expected = precise.logistic(Linear(), X, labels, 0.1)
    model = KernelLogisticRegression(0.1, form=form, tol=1e-11).fit(X, labels)
    assert_allclose(model.predict_proba(X)[:, 1], precise.probabilities(expected.fitted), atol=1e-10)
    assert_allclose(model.intercept_, expected.intercept, rtol=1e-9)


def test_labels_of_many_classes():
    X = rows(60, 3, 0.0)
    labels = np.argmax(X + 0.5 * rows(60, 3, 0.0, seed=1), axis=1)
    for form in ("dual", "primal"):
        near = KernelLogisticRegression(0.1, form=form, tol=1e-10).fit(X, labels)
        far = KernelLogisticRegression(0.1, form=form, tol=1e-10).fit(X + 2.0**20, labels)
        assert_allclose(far.predict_proba(X + 2.0**20), near.predict_proba(X), atol=1e-8)


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
def test_sums_and_columns(kernel):
    X = np.round(rows(50, 4, 0.0) * 64) / 64
    X_new, y = np.round(rows(9, 4, 0.0, seed=1) * 64) / 64, rows(50, 1, 0.0, seed=2)[:, 0]
    near = KernelRidge(0.01, kernel=kernel, fit_intercept=True, form="dual").fit(X, y)
    far = KernelRidge(0.01, kernel=kernel, fit_intercept=True, form="dual").fit(X + OFFSET, y)
    assert_allclose(far.predict(X_new + OFFSET), near.predict(X_new), atol=1e-10)
    assert_allclose(far.dual_coef_, near.dual_coef_, atol=1e-8)
    assert_allclose(far.dual_coef_.sum(), 0.0, atol=1e-9)
    # As the formula says, with the user's own rows and kernel.
    X, X_new = X + 64.0, X_new + 64.0
    model = KernelRidge(0.01, kernel=kernel, fit_intercept=True, form="dual").fit(X, y)
    assert model._model.kernel != kernel
    assert_allclose(kernel(X_new, X) @ model.dual_coef_ + model.intercept_, model.predict(X_new), atol=1e-7)


def test_without_a_penalty():
    # About the mean itself K would be singular.
    X, y = rows(20, 40, 1e6), np.random.default_rng(1).standard_normal(20)
    model = KernelRidge(0.0, kernel="linear", fit_intercept=True, form="dual").fit(X, y)
    assert_allclose(model.predict(X), y, atol=1e-9)


@pytest.mark.parametrize("form", ["dual", "primal"])
@pytest.mark.parametrize("d", [3, 50])
def test_saved_models_and_fits_of_loaded_ones(tmp_path, form, d):
    X, y = rows(30, d, 1e6), np.random.default_rng(1).standard_normal(30)
    for number, (kind, targets) in enumerate(((KernelRidge, y), (KernelLogisticRegression, y > 0))):
        model = kind(0.1, kernel=Linear() + 0.1 * RBF() if form == "dual" else Linear(), fit_intercept=True, form=form)
        model.fit(X, targets)
        dkrr.save(model, tmp_path / f"{number}.zarr")
        again = dkrr.load(tmp_path / f"{number}.zarr")
        score = "predict" if kind is KernelRidge else "decision_function"
        assert_array_equal(getattr(again, score)(X), getattr(model, score)(X))
        assert_array_equal(again.intercept_, model.intercept_)
        assert again.kernel == model.kernel
        assert_array_equal(getattr(again.fit(X, targets), score)(X), getattr(model, score)(X))


def test_stored_and_lazy_rows(tmp_path):
    X, y = rows(60, 5, 1e6), np.random.default_rng(1).standard_normal(60)
    expected = KernelRidge(0.1, fit_intercept=True, form="dual").fit(X, y).predict(X)
    stored = zarr.create_array(str(tmp_path / "X.zarr"), shape=X.shape, chunks=(16, 5), dtype=X.dtype)
    stored[...] = X
    for given in (stored, da.from_array(X, chunks=(25, 5))):
        model = KernelRidge(0.1, fit_intercept=True, form="dual", tile=32, store=str(tmp_path / type(given).__name__))
        assert_allclose(np.asarray(model.fit(given, y).predict(given)), expected, atol=1e-11)
        assert_allclose(model.predict(sp.csr_array(X)), expected, atol=1e-11)


def test_what_takes_no_origin():
    X = rows(20, 3, 1e6)
    assert about_the_rows(Linear(), rows(20, 3, 1.0), 20) == Linear()  # near 0 as they are
    for kernel in (RBF(), Polynomial(1), Linear() * RBF(), Linear() + Polynomial(2)):
        assert about_the_rows(kernel, X, 20) is kernel
    assert about_the_rows(Linear(), X[:1], 1) == Linear()  # it would be 0
    assert isinstance(about_the_rows(Linear(), X, 20), CentredLinear)
    y = np.arange(20.0)
    for given, kernel in ((sp.csr_array(X), Linear()), (X @ X.T, Precomputed())):
        model = KernelRidge(1e6, kernel=kernel, fit_intercept=True, form="dual")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            assert model.fit(given, y)._model.kernel == kernel
    assert KernelRidge(1e6, form="dual").fit(X - 1e6 + 100.0, y)._model.kernel == Linear()  # no free intercept
    assert FAR > 1


def test_nan_is_found_first():
    X = rows(20, 3, 1e6)
    X[7, 1] = np.nan
    with pytest.raises(InputError, match="row 7"):
        KernelRidge(1.0, fit_intercept=True).fit(X, np.arange(20.0))


def test_the_kernel_and_its_map():
    X, Z = rows(30, 5, 1e6), rows(7, 5, 1e6, seed=1)
    kernel = about_the_rows(Linear(), X, 30)
    origin = kernel.origin
    expected = precise.floats(precise.gram(Linear(), X - origin, Z - origin))
    assert_allclose(kernel(X, Z), expected, atol=1e-13)
    assert_allclose(kernel(sp.csr_array(X), Z), expected, atol=1e-13)
    assert_allclose(kernel(X).diagonal(), ((X - origin) ** 2).sum(axis=1))
    single = kernel(X, Z, out=np.empty((30, 7), np.float32))
    assert_allclose(single, expected, atol=1e-5)
    assert kernel_from_dict(kernel.to_dict(), arrays=arrays_of(kernel)) == kernel
    both = 2.0 * kernel + RBF(0.5)
    assert kernel_from_dict(both.to_dict(), arrays=arrays_of(both)) == both
    with pytest.raises(InputError, match="missing"):
        kernel_from_dict(kernel.to_dict())
    phi = feature_map(kernel, 5)
    assert feature_map_from_dict(phi.to_dict(), arrays=arrays_of(phi)) == phi
    assert phi.kernel() == kernel
    assert hash(phi) != hash(CentredMap(origin + 1.0))
    assert_allclose(phi.transform(X) @ phi.transform(Z).T, expected, atol=1e-13)
    with pytest.raises(InputError, match="columns"):
        kernel(X[:, :3])


def test_products_with_the_map():
    X = rows(700, 600, 1e6)  # more than one strip
    phi = CentredMap(X.mean(axis=0))
    features = X - phi.origin
    coef, values = rows(600, 2, 0.0, seed=1), rows(700, 2, 0.0, seed=2)
    assert_allclose(phi.multiply(X, coef), features @ coef, atol=1e-11)
    assert_allclose(phi.adjoint(X, values), features.T @ values, atol=1e-11)
    assert_allclose(phi.multiply(sp.csr_array(X[:9]), coef), features[:9] @ coef, atol=1e-11)
    assert phi.multiply(X[:0], coef).shape == (0, 2)
    assert not phi.adjoint(X[:0], values[:0]).any()


def test_descriptions_are_short():
    kernel = CentredLinear(np.full(100_000, 1e6))
    assert repr(kernel) == "CentredLinear(origin of 100000 columns, 3.16e+08 from 0)"
    assert len(str(kernel.to_dict())) < 200
    assert len(repr(feature_map(kernel, 100_000))) + len(str(feature_map(kernel, 100_000).to_dict())) < 300


def far_only(A, B):
    """Gaussian kernel of the rows of this module far from 0; no other row is its domain."""
    if min(A.min(), B.min()) < 1e4:
        raise ValueError("a row that was not given")
    return RBF(0.3)(A, B)


def test_a_users_kernel_is_not_called_at_zero():
    X, y = rows(40, 3, 1e5), rows(40, 2, 0.0, seed=1)
    kernel = 0.5 * Linear() + CallableKernel(far_only)
    model = KernelRidge(0.1, kernel=kernel, fit_intercept=True, form="dual").fit(X, y)
    other = KernelRidge(0.1, kernel=0.5 * Linear() + RBF(0.3), fit_intercept=True, form="dual").fit(X, y)
    assert_allclose(model.intercept_, other.intercept_, rtol=1e-12)
    expected = precise.ridge(0.5 * Linear() + RBF(0.3), X, y, 0.1, fit_intercept=True, X_new=X[:5])
    assert_allclose(model.intercept_, expected.intercept, rtol=1e-9)
    assert_allclose(model.predict(X[:5]), expected.predictions, atol=1e-10)


def test_the_intercept_of_parts():
    # Primal with parts of some columns: b + w . phi(0) of the maps about 0.
    X, y = rows(60, 4, 1e5), rows(60, 2, 0.0, seed=1)
    kernel = 2.0 * Columns(3.0 * Linear(), [2, 0]) + Columns(0.1 * Linear(), [1, 3])
    for form in ("dual", "primal"):
        model = KernelRidge(0.1, kernel=kernel, fit_intercept=True, form=form).fit(X, y)
        expected = precise.ridge(kernel, X, y, 0.1, fit_intercept=True, X_new=X[:5])
        assert_allclose(model.intercept_, expected.intercept, rtol=1e-9)
    plain = feature_map(kernel, 4)
    about = feature_map(about_the_rows(kernel, X, 60), 4)
    zero = np.zeros((1, 4))
    assert_array_equal(difference_at_zero(about, plain, 4), (about.transform(zero) - plain.transform(zero))[0])
    assert not difference_at_zero(IdentityMap(), IdentityMap(), 4).any()


@pytest.mark.parametrize("solver", ["cholesky", "cg"])
@pytest.mark.parametrize("form", ["dual", "primal"])
def test_rows_that_are_all_the_same(form, solver):
    X, y = np.full((100, 3), 1e8), np.arange(100.0)
    model = KernelRidge(0.1, kernel="linear", fit_intercept=True, form=form, solver=solver).fit(X, y)
    assert_allclose(model.predict(X[:2]), 49.5)
    labels = KernelLogisticRegression(0.1, kernel="linear", form=form, solver=solver).fit(X, y % 5 == 0)
    assert_allclose(labels.predict_proba(X[:1])[0, 1], 0.2, rtol=1e-6)


@pytest.mark.parametrize("weight", [0.0, 1e-12])
@pytest.mark.parametrize("form", ["dual", "primal"])
def test_rows_that_hardly_count(form, weight):
    X, y = rows(60, 3, 1e6), rows(60, 1, 0.0, seed=1)
    X[7] = 1e9
    weights = np.ones(60)
    weights[7] = weight
    model = KernelRidge(0.1, kernel="linear", fit_intercept=True, form=form).fit(X, y, sample_weight=weights)
    assert model._model.intercept_shift is not None
    expected = precise.ridge(Linear(), X, y, 0.1, sample_weight=weights, fit_intercept=True, X_new=X[:5])
    assert_allclose(model.predict(X[:5]), expected.predictions, atol=1e-8)


def test_stored_rows_of_which_the_first_do_not_count(tmp_path):
    X, y = rows(60, 3, 1e6), rows(60, 1, 0.0, seed=1)
    X[:5], X[20] = 1e9, -1e9
    weights = np.ones(60)
    weights[:5] = weights[20] = 0.0
    stored = zarr.create_array(str(tmp_path / "X.zarr"), shape=X.shape, chunks=(16, 3), dtype=X.dtype)
    stored[...] = X
    expected = precise.ridge(Linear(), X, y, 0.1, sample_weight=weights, fit_intercept=True, X_new=X[30:])
    for given in (stored, da.from_array(X, chunks=(25, 3))):
        model = KernelRidge(0.1, fit_intercept=True, form="dual", tile=32).fit(given, y, sample_weight=weights)
        assert_allclose(model.predict(X[30:]), expected.predictions, atol=1e-9)


@pytest.mark.parametrize(
    ("kind", "form"), [(KernelRidge, "dual"), (KernelRidge, "primal"), (KernelLogisticRegression, "primal")]
)
def test_a_run_goes_on_from_another_container(tmp_path, kind, form):
    # The first rows and all of them have different means: a second run takes the origin of the first one.
    X = rows(1100, 3, 1e6) + np.linspace(0.0, 9.0, 1100)[:, None]
    y = np.random.default_rng(1).standard_normal(1100) > 0
    stored = zarr.create_array(str(tmp_path / "X.zarr"), shape=X.shape, chunks=(500, 3), dtype=X.dtype)
    stored[...] = X
    model = kind(0.1, kernel="linear", fit_intercept=True, form=form, tile=1100, store=str(tmp_path / "run"))
    first = model.fit(X, y)._model
    assert origins_near(Linear(), X[::2], 1100)[0][0] != origins_near(Linear(), X[:1024], 1100)[0][0]
    for given in (stored, da.from_array(X, chunks=(700, 3))):
        again = model.fit(given, y)._model
        assert again.kernel == first.kernel
        assert_array_equal(again.intercept, first.intercept)
    with pytest.raises(StoreError, match="another problem"):
        model.fit(X[:, :2], y)


def test_a_run_that_began_without_an_origin(tmp_path):
    # Such as one of an earlier version: tiles about 0 and about an origin must not meet.
    X, y = rows(60, 3, 1e6), np.random.default_rng(1).standard_normal(60)
    model = KernelRidge(1e6, kernel="linear", fit_intercept=True, form="dual", tile=32, store=str(tmp_path / "run"))
    model.fit(X, y)
    store = RunStore(str(tmp_path / "run"))
    assert store.note(ORIGINS) is not None
    store.set_note(ORIGINS, None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        assert model.fit(X, y)._model.kernel == Linear()
