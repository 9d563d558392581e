"""Kernels of some of the columns, of arrays and of tables, and their sums and products."""

import json

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal

from dkrr.errors import InputError, InputTypeError
from dkrr.features import feature_map_from_dict, required_feature_map
from dkrr.kernels import RBF, CallableKernel, Columns, Linear, Polynomial, Precomputed, Scaled, kernel_from_dict

rng = np.random.default_rng(0)
X, Z = rng.normal(size=(40, 5)), rng.normal(size=(30, 5))


def letters(a, b):
    return np.array([[len(set(x) & set(z)) / max(len(set(x) | set(z)), 1) for z in b] for x in a])


WORDS = ["tea", "coffee", "water", "milk", "juice"] * 8
TABLE = pd.DataFrame({"drink": WORDS, "size": X[:, 0], "price": X[:, 1]})


@pytest.mark.parametrize("columns", [3, [0], [1, 2, 3], [4, 0], (2, 4), np.array([0, 3])], ids=str)
@pytest.mark.parametrize("base", [RBF(), Polynomial(2, 0.5)], ids=repr)
def test_the_base_sees_its_columns_only(base, columns):
    kernel, picked = Columns(base, columns), np.atleast_1d(columns)
    assert_allclose(kernel(X, Z), base(X[:, picked], Z[:, picked]), rtol=1e-13, atol=1e-14)
    assert_allclose(kernel(X), base(X[:, picked]), rtol=1e-13, atol=1e-14)
    assert_allclose(kernel.diagonal(X), base.diagonal(X[:, picked]), rtol=1e-13)
    assert_allclose(kernel(sp.csr_array(X), sp.csr_array(Z)), kernel(X, Z), atol=1e-12)


def test_sums_and_products_of_columns():
    kernel = Columns(RBF(0.3), [0, 1]) * Columns(Linear(), [2]) + Scaled(Columns(RBF(1.0), [4, 3]), 0.5)
    first = RBF(0.3)(X[:, :2], Z[:, :2]) * Linear()(X[:, [2]], Z[:, [2]])
    assert_allclose(kernel(X, Z), first + 0.5 * RBF(1.0)(X[:, [4, 3]], Z[:, [4, 3]]), atol=1e-14)


def test_columns_of_a_table():
    kernel = Columns(CallableKernel(letters), "drink") + Columns(RBF(0.5), ["price", "size"])
    fitted = kernel.fitted(TABLE)
    rows = fitted.encode(TABLE)
    assert rows.shape[0] == 40 and sp.issparse(rows) and fitted.encode(rows) is rows
    expected = letters(WORDS, WORDS) + RBF(0.5)(X[:, [1, 0]])
    assert_allclose(fitted(rows), expected, atol=1e-14)
    assert_allclose(fitted(TABLE, TABLE[:3]), expected[:, :3], atol=1e-14)
    again = kernel_from_dict(json.loads(json.dumps(fitted.to_dict())), {fitted.left.base.name: letters})
    assert again == fitted


def test_numbers_of_a_table_stay_dense():
    kernel = (Columns(RBF(0.5), ["price"]) * Columns(Linear(), "size")).fitted(TABLE)
    assert isinstance(kernel.encode(TABLE), np.ndarray)
    assert_allclose(kernel(TABLE), RBF(0.5)(X[:, [1]]) * Linear()(X[:, [0]]), atol=1e-14)


def test_a_kernel_of_everything_beside_one_of_per_column():
    whole = CallableKernel(lambda a, b: np.array([[float(x["drink"] == z["drink"]) for z in b] for x in a]), "same")
    kernel = (whole + Columns(RBF(0.5), ["price"])).fitted(TABLE)
    same = np.equal.outer(np.array(WORDS), np.array(WORDS))
    assert_allclose(kernel(TABLE), same + RBF(0.5)(X[:, [1]]), atol=1e-14)


@pytest.mark.parametrize(
    "kernel",
    [
        Columns(Linear(), [1, 2]) + Columns(Polynomial(2), [0, 4]),
        Scaled(Columns(Polynomial(3, 0.2), 3), 0.7) + Columns(Linear(), [4, 0, 2]),
    ],
    ids=repr,
)
def test_finite_maps_of_columns(kernel):
    phi = required_feature_map(kernel, 5)
    assert_allclose(phi.transform(X) @ phi.transform(Z).T, kernel(X, Z), atol=1e-12)
    again = feature_map_from_dict(json.loads(json.dumps(phi.to_dict())))
    assert_array_equal(again.transform(X), phi.transform(X))
    assert_allclose(phi.kernel()(X, Z), kernel(X, Z), atol=1e-12)
    with pytest.raises(InputError, match="finite feature map"):
        required_feature_map(kernel + Columns(RBF(), [0]), 5)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Columns(RBF(), []), InputTypeError, "at least one"),
        (lambda: Columns(RBF(), [0, "a"]), InputTypeError, "numbers of columns or names"),
        (lambda: Columns(RBF(), [-1]), InputError, "counted from 0"),
        (lambda: Columns("rbf", [0]), InputTypeError, "base is 'rbf'; expected a dkrr.kernels.Kernel"),
        (lambda: Columns(Precomputed(), [0]), InputError, "base is a precomputed kernel"),
        (lambda: Columns(RBF(0.1), [5])(X), InputError, r"columns is \(5,\), but X has 5 columns"),
        (lambda: Columns(RBF(0.1), "a")(X), InputError, "columns is 'a' and X is an array; expected a DataFrame"),
        (lambda: Columns(RBF(0.1), "prize").fitted(TABLE), InputError, "no column 'prize'; it has 'drink'"),
        (lambda: Columns(RBF(0.1), ["drink"]).fitted(TABLE), InputTypeError, "do not hold numbers"),
        (lambda: Columns(RBF(0.1), ["price"])(TABLE), InputError, "is not fitted; expected a kernel that was fitted"),
        (lambda: Columns(RBF(), ["a"]).fitted(WORDS), InputTypeError, "a list; expected a DataFrame with the columns"),
    ],
)
def test_wrong_columns_are_named(make, error, message):
    with pytest.raises(error, match=message):
        make()
