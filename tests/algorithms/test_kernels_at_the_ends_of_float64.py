"""At the ends of float64's range: equal rows far from the origin, tiny and huge rows, and entries that overflow."""

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal

import dkrr
from dkrr import KernelLogisticRegression, KernelRidge
from dkrr.errors import NotFiniteError
from dkrr.features import IdentityMap, NormalizedMap, PolynomialMap, ScaledMap, UnitLengthMap
from dkrr.kernels import RBF, BagOfWords, Chi2, Cosine, Laplacian, Linear, Matern, Normalized, Polynomial, TaylorRBF
from tests import precise
from tests.pairs import every_pair

dense_or_csr = pytest.mark.parametrize("convert", [np.asarray, sp.csr_array], ids=["dense", "csr"])


def rows_with_duplicates(scale):
    """Duplicates, a pair that differs in a small column, and one of ordinary size, all scaled rows around them."""
    X = scale * np.random.default_rng(0).standard_normal((40, 3))
    X[5] = X[30]
    X[7] = X[8]
    X[7:9, 2] = [1.0, 2.0]
    X[9:11] = [[1.0, 2.0, 3.0], [1.0, 2.5, 3.0]]
    return X


@every_pair(
    scale=[1e7, 1e9, 1e12, 1e100, 1e154, 1e200, 1e307],
    kernel=[RBF(0.5), RBF(50.0), RBF(3e-300), RBF(1e300), Laplacian(0.5), Matern(0.5), Matern(1.5), Matern(2.5)],
    convert=[np.asarray, sp.csr_array],
    dtype=[np.float64, np.float32],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_equal_rows_far_from_the_origin_have_k_1(kernel, scale, convert, dtype):
    X = rows_with_duplicates(scale)
    K = kernel(convert(X), convert(X[::-1].copy()), out=np.empty((40, 40), dtype))[:, ::-1]
    # Small rows have small errors, where a small distance keeps the kernel from being exactly 1.
    assert_allclose(K.diagonal(), 1.0, rtol=1e-6 if dtype == np.float32 else 1e-13)
    assert K[5, 30] == K[30, 5] == 1.0
    for i, j in ((7, 8), (9, 10)):
        alone = kernel(X[[i]] - X[[j]], np.zeros((1, 3)))[0, 0]
        assert_allclose(K[i, j], alone, rtol=2e-6 if dtype == np.float32 else 1e-10, atol=1e-14)


def test_rbf_of_a_wide_range_is_exact():
    X = rows_with_duplicates(1e9)
    Y = np.vstack([X[::2] * (1 + 1e-15), X])
    K = RBF(gamma=0.5)(X, Y)
    assert_allclose(K, precise.floats(precise.gram(RBF(gamma=0.5), X, Y)), rtol=1e-11, atol=1e-15)


def test_predictions_at_the_training_rows():
    X = 1e9 * np.random.default_rng(0).standard_normal((100, 3))
    model = KernelRidge(1.0, kernel="rbf", gamma=1 / 3, form="dual").fit(X, np.ones(100))
    assert_allclose(model.predict(X), 0.5)


def test_rbf_of_tiny_rows_does_not_underflow():
    # ‖x‖² underflows, γ‖x‖² does not.
    X = 1e-160 * np.array([[0.0], [1.0], [2.0]])
    for rows in (X, sp.csr_array(X)):
        assert_allclose(RBF(gamma=1e300)(rows, 3 * X), 1.0)
        assert_allclose(RBF(gamma=1e308)(1e6 * rows)[0], np.exp([0.0, -1.0, -4.0]))


def test_chi2_and_taylor_of_large_rows_do_not_overflow():
    X = np.abs(rows_with_duplicates(1e200))
    K = Chi2(gamma=1e-200)(X)
    i, j = 20, 21
    assert_allclose(K[i, j], np.exp(-(((X[i] - X[j]) / 1e200) ** 2 / ((X[i] + X[j]) / 1e200)).sum()), rtol=1e-12)
    assert_array_equal(Chi2()(X, X.copy()).diagonal(), 1.0)
    # Not a function of x − z.
    T = TaylorRBF(4, gamma=0.5)(1e200 * np.array([[1.0, -1.0], [1.0, 1.0]]))
    assert_array_equal(T, 0.0)


SCALES = [1e200, 1e-310, 3e40]
SMALL = np.array([[1.0, 0.0, 2.0], [1.0, 1.0, 0.0], [0.0, 0.0, 0.0], [0.5, -1.0, 1.0]])


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize(
    "kernel",
    [
        Cosine(),
        Normalized(Linear()),
        Normalized(0.5 * Polynomial(3, coef0=0.0) + Polynomial(3, gamma=2.0, coef0=0.0)),
        Normalized(Polynomial(2, coef0=0.0) * Linear()),
        BagOfWords(vocabulary=tuple("abc"), weighting="counts"),
    ],
    ids=str,
)
@dense_or_csr
def test_cosines_are_the_same_at_any_scale(kernel, scale, convert):
    rows, expected = convert(SMALL * scale), kernel(SMALL)
    tolerance = 1e-13 if scale > 1e-300 else 1e-2  # subnormal numbers have few digits
    assert_allclose(kernel(rows), expected, atol=tolerance)
    assert_allclose(kernel(rows, convert(SMALL)), expected, atol=tolerance)
    assert_array_equal(kernel.diagonal(rows), [1.0, 1.0, 0.0, 1.0])
    assert_allclose(kernel(rows, out=np.empty((4, 4), np.float32)), expected, atol=max(tolerance, 1e-6))


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize(
    "phi",
    [
        NormalizedMap(),
        UnitLengthMap(IdentityMap()),
        UnitLengthMap(ScaledMap(IdentityMap(), 3.0)),
        UnitLengthMap(PolynomialMap(2, coef0=0.0)),
    ],
    ids=str,
)
@dense_or_csr
def test_features_of_unit_length_are_the_same_at_any_scale(phi, scale, convert):
    rows, features = convert(SMALL * scale), phi.transform(SMALL)
    tolerance = 1e-13 if scale > 1e-300 else 1e-2
    coef, values = np.arange(1.0, features.shape[1] + 1)[:, None], np.arange(1.0, 5.0)[:, None]
    assert_allclose(phi.transform(rows), features, atol=tolerance)
    assert_allclose(phi.multiply(rows, coef), features @ coef, atol=10 * tolerance)
    assert_allclose(phi.adjoint(rows, values), features.T @ values, atol=10 * tolerance)


def with_one_huge_row(n=60):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 3))
    X[17] *= 1e200
    return X, rng.standard_normal(n)


@pytest.mark.parametrize(
    "settings",
    [{}, {"tile": 16}, {"solver": "cg"}, {"kernel": Polynomial(2)}, {"kernel": Normalized(Polynomial(2))}],
    ids=["memory", "tiles", "cg", "polynomial", "normalised"],
)
def test_overflow_names_the_row(settings):
    X, y = with_one_huge_row()
    with pytest.raises(NotFiniteError, match="leaves the range of float64.*row 17") as caught:
        KernelRidge(1.0, **{"kernel": "linear", "form": "dual", **settings}).fit(X, y)
    assert caught.value.row == 17


@pytest.mark.parametrize("settings", [{}, {"tile": 2}, {"solver": "cg"}], ids=["memory", "tiles", "cg"])
def test_overflow_of_features_is_an_error(settings):
    with pytest.raises(NotFiniteError, match="leaves the range of float64"):
        KernelRidge(1.0, form="primal", **settings).fit(*with_one_huge_row())


def test_overflow_in_predictions_classes_and_gram_names_the_row():
    X, y = with_one_huge_row()
    with pytest.raises(NotFiniteError, match="row 17"):
        KernelLogisticRegression(1.0, kernel="linear", form="dual").fit(X, y > 0)
    for form in ("dual", "primal"):
        model = KernelRidge(1.0, kernel="poly", form=form).fit(X[:17], y[:17])
        with pytest.raises(NotFiniteError, match="prediction.*row 17"):
            model.predict(X)
    for left, right in ((X, None), (X[:4], X), (X, X[:4])):
        with pytest.raises(NotFiniteError, match="leaves the range"):
            dkrr.gram(left, right, kernel="linear").compute()
    with pytest.raises(NotFiniteError, match="Linear.*row 17"):
        Linear()(X)
