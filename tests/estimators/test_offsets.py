"""Rows far from 0: with a free intercept a linear kernel takes an origin near them, and keeps all digits."""

import warnings

import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp
import zarr
from numpy.testing import assert_allclose, assert_array_equal

import dkrr
from benchmarks import precise
from dkrr import KernelLogisticRegression, KernelRidge
from dkrr.errors import ConvergenceWarning, InputError
from dkrr.features import feature_map, feature_map_from_dict
from dkrr.kernels import RBF, Columns, Laplacian, Linear, Polynomial, Precomputed, kernel_from_dict
from dkrr.kernels.centring import FAR, CentredLinear, about_the_rows


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
    assert about_the_rows(Linear(), X[:1], 20) == Linear()  # no spread
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
    origin = np.array(kernel.origin)
    expected = precise.floats(precise.gram(Linear(), X - origin, Z - origin))
    assert_allclose(kernel(X, Z), expected, atol=1e-13)
    assert_allclose(kernel(sp.csr_array(X), Z), expected, atol=1e-13)
    assert_allclose(kernel(X).diagonal(), ((X - origin) ** 2).sum(axis=1))
    single = kernel(X, Z, out=np.empty((30, 7), np.float32))
    assert_allclose(single, expected, atol=1e-5)
    assert kernel_from_dict(kernel.to_dict()) == kernel
    phi = feature_map(kernel, 5)
    assert feature_map_from_dict(phi.to_dict()) == phi
    assert phi.kernel() == kernel
    assert_allclose(phi.transform(X) @ phi.transform(Z).T, expected, atol=1e-13)
    with pytest.raises(InputError, match="columns"):
        kernel(X[:, :3])
