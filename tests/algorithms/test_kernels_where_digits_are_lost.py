"""Equal, near, far, tiny and huge rows: distances and lengths keep their digits, and what overflows names its row."""

from functools import partial

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal

import dkrr
from dkrr import KernelLogisticRegression, KernelRidge
from dkrr.errors import InputError, NotFiniteError
from dkrr.kernels import (
    RBF,
    BagOfWords,
    Chi2,
    Cosine,
    Laplacian,
    Linear,
    Matern,
    Normalized,
    Polynomial,
    RationalQuadratic,
    TaylorRBF,
)
from dkrr.kernels.kernel_features import required_feature_map
from tests import precise
from tests.oracles import naive_gram
from tests.pairs import every_pair
from tests.systems import random

MATERNS = [Matern(nu=nu) for nu in (0.5, 1.5, 2.5)]
RATIONAL = [RationalQuadratic(length_scale=2.0, alpha=0.7), RationalQuadratic(length_scale=2.0, alpha=1e6)]


def rows_with_duplicates(scale):
    """Duplicates, a pair that differs in a small column, and one of ordinary size, all scaled rows around them."""
    X = scale * random(40, 3)
    X[5] = X[30]
    X[7] = X[8]
    X[7:9, 2] = [1.0, 2.0]
    X[9:11] = [[1.0, 2.0, 3.0], [1.0, 2.5, 3.0]]
    return X


CENTRES = 1e6 * random(5, 4)
NEAR = np.vstack([random(25, 3), 1e5 * np.ones((1, 3))])
PLACES = {
    "far from the origin": (1e4 + random(40, 6), 1e4 + random(30, 6, seed=1)),
    "equal": (50 * random(60, 7), 50 * random(60, 7)[::-1]),
    "almost equal": (30 * random(40, 5), 30 * random(40, 5) + 1e-9 * random(40, 5, seed=1)),
    "tight clusters far apart": (
        np.tile(CENTRES, (10, 1)) + random(50, 4, seed=1),
        np.tile(CENTRES, (8, 1)) + random(40, 4, seed=2),
    ),
    "near duplicates and an outlier": (NEAR, np.vstack([NEAR + 1e-5 * random(26, 3, seed=1), NEAR])),
}


@every_pair(
    place=list(PLACES),
    kernel=[RBF(gamma=1.0), Laplacian(), *MATERNS, *RATIONAL],
    convert=[np.asarray, sp.csr_array],
    dtype=[np.float64, np.float32],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_distances_keep_their_digits_where_a_product_of_matrices_loses_them(place, kernel, convert, dtype):
    X, Y = (rows.astype(dtype) for rows in PLACES[place])
    expected, found = naive_gram(kernel, X, Y), kernel(convert(X), convert(Y))
    assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
    single = kernel(X, Y, out=np.empty(found.shape, np.float32))
    assert_allclose(single, expected, rtol=1e-5, atol=1e-5)
    if place == "equal":
        assert max(found.max(), single.max()) <= 1.0
        assert kernel in (RBF(gamma=1.0), *RATIONAL) or (np.fliplr(found).diagonal() == 1.0).all()


@every_pair(
    scale=[1e7, 1e9, 1e12, 1e100, 1e154, 1e200, 1e307],
    kernel=[
        RBF(gamma=0.5),
        RBF(gamma=50.0),
        RBF(gamma=3e-300),
        RBF(gamma=1e300),
        Laplacian(gamma=0.5),
        *MATERNS,
        *RATIONAL,
    ],
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


def test_rbf_of_a_wide_range_is_exact_and_of_tiny_rows_does_not_underflow():
    X = rows_with_duplicates(1e9)
    Y = np.vstack([X[::2] * (1 + 1e-15), X])
    assert_allclose(RBF(gamma=0.5)(X, Y), precise.floats(precise.gram(RBF(gamma=0.5), X, Y)), rtol=1e-11, atol=1e-15)
    X = 1e-160 * np.array([[0.0], [1.0], [2.0]])  # ‖x‖² underflows, γ‖x‖² does not
    for rows in (X, sp.csr_array(X)):
        assert_allclose(RBF(gamma=1e300)(rows, 3 * X), 1.0)
        assert_allclose(RBF(gamma=1e308)(1e6 * rows)[0], np.exp([0.0, -1.0, -4.0]))


@pytest.mark.parametrize("length_scale", [5e-324, 1e-160, 1e160, [1.0, 1e308]])
def test_lengths_whose_squares_leave_the_range_are_refused(length_scale):
    with pytest.raises(InputError, match="length_scale is .*; expected numbers from 1e-150 to 1e"):
        Matern(length_scale=length_scale)
    with pytest.raises(InputError, match="length_scale is .*; expected numbers from 1e-150 to 1e"):
        RationalQuadratic(length_scale=length_scale)


def test_laplacian_of_wide_csr_rows_is_that_of_dense_ones():
    # More columns than are made dense at a time, shared and not.
    X = sp.random_array((30, 5000), density=0.1, rng=np.random.default_rng(0), format="csr")
    Y = sp.random_array((20, 5000), density=0.2, rng=np.random.default_rng(1), format="csr")
    assert_allclose(Laplacian()(X, Y), Laplacian()(X.toarray(), Y.toarray()), rtol=1e-13)
    assert_allclose(Laplacian()(X, X.copy()).diagonal(), 1.0, rtol=1e-15)


def test_chi2_and_taylor_of_large_rows_do_not_overflow():
    X = np.abs(rows_with_duplicates(1e200))
    x, z = X[20] / 1e200, X[21] / 1e200
    assert_allclose(Chi2(gamma=1e-200)(X)[20, 21], np.exp(-((x - z) ** 2 / (x + z)).sum()), rtol=1e-12)
    assert_array_equal(Chi2()(X, X.copy()).diagonal(), 1.0)
    assert not TaylorRBF(degree=4, gamma=0.5)(
        1e200 * np.array([[1.0, -1.0], [1.0, 1.0]])
    ).any()  # not a function of x − z


SMALL = np.array([[1.0, 0.0, 2.0], [1.0, 1.0, 0.0], [0.0, 0.0, 0.0], [0.5, -1.0, 1.0]])
every_scale = pytest.mark.parametrize("scale", [1e200, 1e-310, 3e40])
dense_or_csr = pytest.mark.parametrize("convert", [np.asarray, sp.csr_array], ids=["dense", "csr"])


@every_scale
@pytest.mark.parametrize(
    "kernel",
    [
        Cosine(),
        Normalized(Linear()),
        Normalized(0.5 * Polynomial(degree=3, coef0=0.0) + Polynomial(degree=3, gamma=2.0, coef0=0.0)),
        Normalized(Polynomial(degree=2, coef0=0.0) * Linear()),
        BagOfWords(vocabulary=tuple("abc"), term_weighting="counts"),
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


@every_scale
@pytest.mark.parametrize(
    "kernel",
    [Cosine(), Normalized(1.0 * Linear()), Normalized(3.0 * Linear()), Normalized(Polynomial(degree=2, coef0=0.0))],
    ids=str,
)
@dense_or_csr
def test_features_of_unit_length_are_the_same_at_any_scale(kernel, scale, convert):
    phi = required_feature_map(kernel, SMALL.shape[1])
    rows, expected = convert(SMALL * scale), phi.transform(SMALL)
    tolerance = 1e-13 if scale > 1e-300 else 1e-2
    assert not expected[2].any()
    coef, values = np.arange(1.0, expected.shape[1] + 1)[:, None], np.arange(1.0, 5.0)[:, None]
    assert_allclose(phi.transform(rows), expected, atol=tolerance)
    assert_allclose(phi.multiply(rows, coef), expected @ coef, atol=10 * tolerance)
    assert_allclose(phi.adjoint(rows, values), expected.T @ values, atol=10 * tolerance)


# Overflow

ridge = partial(KernelRidge, kernel="linear", form="dual")
HUGE, TARGETS = random(60, 3) * np.where(np.arange(60) == 17, 1e200, 1.0)[:, None], random(60, seed=1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ridge().fit(HUGE, TARGETS), "row 17"),
        (lambda: ridge(tile=16).fit(HUGE, TARGETS), "row 17"),
        (lambda: ridge(solver="cg").fit(HUGE, TARGETS), "row 17"),
        (lambda: ridge(kernel=Normalized(Polynomial(degree=2))).fit(HUGE, TARGETS), "row 17"),
        (lambda: KernelLogisticRegression(kernel="linear", form="dual").fit(HUGE, TARGETS > 0), "row 17"),
        (lambda: Linear()(HUGE), "row 17"),
        *(
            (lambda form=form: ridge(kernel="poly", form=form).fit(HUGE[:17], TARGETS[:17]).predict(HUGE), "row 17")
            for form in ("dual", "primal")
        ),
        (lambda: ridge(form="primal").fit(HUGE, TARGETS), ""),
        (lambda: ridge(form="primal", tile=2).fit(HUGE, TARGETS), ""),
        (lambda: ridge(form="primal", solver="cg").fit(HUGE, TARGETS), ""),
        (lambda: dkrr.gram(HUGE[:4], HUGE, kernel="linear").compute(), ""),
        (lambda: dkrr.gram(HUGE, kernel="linear").compute(), ""),
    ],
)
def test_overflow_is_an_error_that_names_the_row_if_there_is_one(call, message):
    with pytest.raises(NotFiniteError, match=f"(leaves the range of float64|prediction).*{message}") as caught:
        call()
    assert not message or caught.value.row == 17
