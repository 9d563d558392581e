"""The kernel of categories: text, numbers and flags in tables, lists and arrays, alone and within `Columns`."""

import json

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import dkrr
from dkrr.errors import InputError
from dkrr.kernels import RBF, Categories, Columns
from dkrr.kernels.descriptions import kernel_from_dict

N = 24
RNG = np.random.default_rng(0)
TABLE = pd.DataFrame(
    {
        "colour": RNG.choice(["red", "blue", "green"], N),
        "size": RNG.choice([1, 2, 3], N),
        "kind": pd.Categorical(RNG.choice(["a", "b"], N)),
        "price": RNG.standard_normal(N),
    }
)
CATEGORIES = TABLE[["colour", "size", "kind"]]


def expected(X, Y, weight):
    return np.array([[weight ** sum(a != b for a, b in zip(x, y, strict=True)) for y in Y] for x in X])


@pytest.mark.parametrize("weight", [0.0, 0.25])
@pytest.mark.parametrize(
    "convert",
    [lambda t: t, lambda t: t.to_numpy(object), lambda t: t.to_numpy(object).tolist()],
    ids=["table", "array", "lists"],
)
def test_categories_of_a_table_are_equal_or_not(convert, weight):
    values, rows = CATEGORIES.to_numpy(object), convert(CATEGORIES)
    kernel = Categories(weight).fitted(rows)
    assert_array_equal(kernel(rows), expected(values, values, weight))
    assert_array_equal(kernel(convert(CATEGORIES[:5]), rows), expected(values[:5], values, weight))
    assert kernel_from_dict(json.loads(json.dumps(kernel.to_dict()))) == kernel


def test_categories_of_named_columns_stand_beside_numbers():
    kernel = 2.0 * Columns(Categories(0.1), ["colour", "size"]) * Columns(Categories(), "kind")
    kernel = (kernel + Columns(RBF(gamma=1.0), ["price"])).fitted(TABLE)
    pair, kind, price = (TABLE[names].to_numpy(object) for names in (["colour", "size"], ["kind"], ["price"]))
    values = 2.0 * expected(pair, pair, 0.1) * expected(kind, kind, 0.0) + RBF(gamma=1.0)(price.astype(float))
    assert_allclose(kernel(TABLE), values, rtol=0, atol=1e-14)
    assert kernel_from_dict(json.loads(json.dumps(kernel.to_dict()))) == kernel


@pytest.mark.parametrize("make", [list, np.array, lambda c: pd.Series(c, dtype="category")])
def test_one_column_of_categories_in_any_container(make):
    rows = make(["red", "blue", "red"])
    assert_array_equal(Categories(0.5).fitted(rows)(rows), [[1, 0.5, 1], [0.5, 1, 0.5], [1, 0.5, 1]])


def test_rows_of_numbers_are_compared_as_they_are():
    X = np.array([[-1.0, 0.5], [-1.0, 0.25], [2.0, 0.5]])
    kernel = Categories(0.5)
    assert kernel.fitted(X) is kernel
    assert_array_equal(kernel(X), expected(X, X, 0.5))
    assert_array_equal(Categories(0.5).fitted(CATEGORIES)(X[:, [0]] + 2, X[:, [0]] + 2), kernel(X[:, [0]]))


def test_unknown_categories_equal_no_other():
    kernel = Categories(0.5).fitted(["red", "blue"])
    new = ["green", "red", "green"]
    assert_array_equal(kernel(new, ["red", "blue"]), [[0.5, 0.5], [1, 0.5], [0.5, 0.5]])
    assert_array_equal(kernel(new), [[1, 0.5, 0.5], [0.5, 1, 0.5], [0.5, 0.5, 1]])
    assert_array_equal(kernel.diagonal(new), 1.0)


@pytest.mark.parametrize("estimator", [dkrr.KernelRidge, dkrr.KernelLogisticRegression])
def test_models_with_categories_are_saved_and_predict_unknown_ones(estimator, tmp_path):
    kernel = Columns(Categories(0.1), ["colour", "size", "kind"]) + Columns(RBF(gamma=1.0), ["price"])
    targets = (TABLE["price"] + (TABLE["colour"] == "red")).to_numpy()
    targets = targets if estimator is dkrr.KernelRidge else targets > 0
    model = estimator(kernel=kernel).fit(TABLE, targets)
    dkrr.save(model, tmp_path / "model.zarr")
    new = TABLE[::-1].assign(colour="violet")
    assert_array_equal(dkrr.load(tmp_path / "model.zarr").predict(new), model.predict(new))


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (["red", None], r"column 0 of X has a missing value in row 1 .*fillna"),
        (pd.DataFrame({"x": ["red", np.nan]}), "column 'x' of X has a missing value in row 1"),
        (pd.DataFrame({"x": ["red", b"blue"]}), r"column 'x' of X has b'blue' \(bytes\) in row 1 .*astype\(str\)"),
        (pd.DataFrame({"x": ["red", np.inf]}), "expected text, finite numbers or flags"),
        ([["red", "a"], ["blue"]], "rows of X have different lengths"),
    ],
)
def test_a_missing_or_odd_category_is_named(X, message):
    with pytest.raises(InputError, match=message):
        Categories().fitted(X)


def test_what_a_fitted_kernel_refuses():
    with pytest.raises(InputError, match="no categories yet; expected a fitted one"):
        Categories()(["red"])
    with pytest.raises(InputError, match="X has 2 columns of categories; expected 1"):
        Categories().fitted(["red", "blue"]).encode([["red", "a"]])
