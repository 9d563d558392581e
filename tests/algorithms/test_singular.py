"""Matrices that are singular, indefinite or asymmetric, and least squares without a penalty."""

import numpy as np
import pytest

from dkrr import KernelLogisticRegression, KernelRidge
from dkrr.errors import InputError, NotPositiveDefiniteError
from dkrr.kernels import RBF


@pytest.mark.parametrize("tile", [None, 48])
def test_of_two_equal_rows_the_later_is_named(data, tile):
    X = data.X.copy()
    X[137] = X[60]
    with pytest.raises(NotPositiveDefiniteError, match=r"alpha = 0.*row 137.*duplicate rows.*alpha > 0") as caught:
        KernelRidge(alpha=0.0, kernel="rbf", gamma=3.0, tile=tile).fit(X, data.y)
    assert caught.value.row == 137


@pytest.mark.parametrize("tile", [None, 48])
def test_an_indefinite_kernel_is_found_in_the_factorisation(data, tile):
    K = -np.eye(211)
    K[:100, :100] = np.eye(100)
    with pytest.raises(NotPositiveDefiniteError, match=r"alpha = 0.5.*row 100 .*increase alpha") as caught:
        KernelRidge(alpha=0.5, kernel="precomputed", tile=tile).fit(K, data.y)
    assert caught.value.row == 100


@pytest.mark.parametrize("is_balanced", [False, True])  # with as many of each class, 1ᵀg is 0 at the start
@pytest.mark.parametrize(("solver", "tile"), [("cholesky", None), ("cholesky", 10), ("cg", None), ("cg", 10)])
def test_an_indefinite_kernel_is_found_by_newtons_method(tile, solver, is_balanced):
    K = np.diag(np.where(np.arange(24) < 12, 1.0, -3.0))
    y = np.arange(24) % 2 if is_balanced else np.arange(24) > 7
    with pytest.raises(NotPositiveDefiniteError, match="not positive semidefinite.*increase alpha"):
        KernelLogisticRegression(0.01, kernel="precomputed", tile=tile, solver=solver).fit(K, y)


@pytest.mark.parametrize("tile", [None, 48])
@pytest.mark.parametrize(
    "model", [KernelRidge(), KernelLogisticRegression(solver="cholesky"), KernelLogisticRegression(solver="cg")]
)
def test_a_precomputed_matrix_must_be_symmetric_in_every_tile(data, model, tile):
    K = RBF(gamma=1.0)(data.X)
    K[100, 20] += 1e-3
    with pytest.raises(InputError, match="symmetric"):
        model.set_params(kernel="precomputed", tile=tile).fit(K, np.arange(211) % 2)


@pytest.mark.parametrize("tile", [None, 48])
def test_rounding_beside_the_largest_entry_is_not_an_asymmetry(data, tile):
    K = 100.0 * np.eye(211)
    K[150, 3] = 1e-17
    found = KernelRidge(kernel="precomputed", tile=tile).fit(K, data.y).dual_coef_
    np.testing.assert_allclose(found, data.y / 101.0, rtol=1e-12)


def test_least_squares_takes_the_form_whose_matrix_is_not_singular():
    wide = np.random.default_rng(0).normal(size=(20, 60))
    model = KernelRidge(alpha=0.0, kernel="linear").fit(wide, np.arange(20.0))
    assert model.plan_.form == "dual"
    np.testing.assert_allclose(model.predict(wide), np.arange(20.0), atol=1e-8)


def test_least_squares_counts_only_rows_with_a_weight():
    rng = np.random.default_rng(0)
    X, y, weights = rng.normal(size=(10, 6)), rng.normal(size=10), np.repeat([0.0, 1.0], 5)
    model = KernelRidge(alpha=0.0).fit(X, y, sample_weight=weights)
    assert model.plan_.form == "dual"
    np.testing.assert_allclose(model.predict(X)[5:], y[5:])
