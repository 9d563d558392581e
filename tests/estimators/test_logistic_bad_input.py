"""Bad labels, weights and settings of a classifier get a clear error before work starts."""

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.exceptions import NotFittedError

from dkrr import KernelLogisticRegression
from dkrr.errors import InputError, InputTypeError, NotPositiveDefiniteError, StoreError
from dkrr.kernels import RBF
from dkrr.tiles.store import WORDS

N = 24
X = np.random.default_rng(0).normal(size=(N, 3))
CODES = np.arange(N) % 3


def with_label(label, row=5, dtype=object):
    y = np.array([["a", "b", "c"][c] for c in CODES], dtype=object)
    y[row] = label
    return y if dtype is object else y.astype(dtype)


def numbers_with(label, row=5):
    y = CODES.astype(float)
    y[row] = label
    return y


@pytest.mark.parametrize("wrap", [np.asarray, list, lambda y: da.from_array(np.asarray(y), chunks=5)])
@pytest.mark.parametrize(
    ("y", "name"),
    [(np.zeros(N, int), "0"), (np.full(N, "only"), "'only'"), (np.ones(N, bool), "True")],
    ids=["numbers", "strings", "booleans"],
)
def test_one_class(y, name, wrap):
    with pytest.raises(InputError, match=rf"y has 1 class \({name}\).*at least 2 classes"):
        KernelLogisticRegression().fit(X, wrap(y))


def test_one_class_that_counts():
    with pytest.raises(InputError, match=r"y has 1 class of positive weight \(2\).*at least 2"):
        KernelLogisticRegression().fit(X, CODES, sample_weight=(CODES == 2).astype(float))
    with pytest.raises(InputError, match=r"y has 1 class of positive weight \(1\).*at least 2"):
        KernelLogisticRegression(class_weight={0: 0.0, 2: 0}).fit(X, CODES)
    with pytest.raises(InputError, match=r"y has 0 class of positive weight \(none\)"):
        KernelLogisticRegression(class_weight={0: 0.0, 1: 0.0, 2: 0.0}).fit(X, CODES)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (with_label(7), r"mixed types: str \(row 0\) and number \(row 5\)"),
        (with_label(True), r"mixed types: str \(row 0\) and bool \(row 5\)"),
        (with_label(("a", "b")), r"mixed types: str \(row 0\) and tuple \(row 5\)"),
        (pd.Series(with_label(7)), r"mixed types: str \(row 0\) and number \(row 5\)"),
        (np.array([True if c else 2 for c in CODES], dtype=object), r"number \(row 0\) and bool \(row 1\)"),
    ],
    ids=["number", "boolean", "tuple", "series", "boolean among numbers"],
)
def test_mixed_types(y, message):
    with pytest.raises(InputTypeError, match=f"y has labels of .*{message}; expected strings only, or numbers only"):
        KernelLogisticRegression().fit(X, y)


@pytest.mark.parametrize(
    "y",
    [
        numbers_with(np.nan),
        numbers_with(np.nan).tolist(),
        with_label(np.nan),
        with_label(None),
        with_label(None).tolist(),
        with_label(pd.NA),
        with_label(pd.NaT),
        pd.Series(with_label(None)),
        pd.Series(with_label(None), dtype="string"),
        pd.Series(with_label(None), dtype="category"),
        pd.Series(numbers_with(np.nan)).astype("Int64"),
        pd.Series(numbers_with(np.nan)),
        da.from_array(numbers_with(np.nan), chunks=7),
        np.array([None if k == 5 else c for k, c in enumerate(CODES)], dtype=object),
    ],
    ids=[
        "NaN",
        "NaN in a list",
        "NaN among strings",
        "None",
        "None in a list",
        "NA",
        "NaT",
        "series of strings",
        "nullable strings",
        "categories",
        "nullable integers",
        "series of numbers",
        "lazy",
        "None among numbers",
    ],
)
def test_missing_labels(y):
    with pytest.raises(InputError, match=r"y (has a missing label|contains NaN).*row 5.*leave the row out"):
        KernelLogisticRegression().fit(X, y)


def test_a_missing_label_in_a_list_of_strings():
    """NumPy alone would make it a class of the name "nan"."""
    with pytest.raises(InputError, match=r"missing label.*row 5"):
        KernelLogisticRegression().fit(X, with_label(float("nan")).tolist())


def test_mixed_types_in_a_list():
    """NumPy alone would make all of them strings."""
    with pytest.raises(InputTypeError, match="mixed types"):
        KernelLogisticRegression().fit(X, with_label(7).tolist())


@pytest.mark.parametrize("bad", [np.inf, -np.inf])
def test_infinite_labels(bad):
    with pytest.raises(InputError, match="y contains NaN or infinity.*row 5 is -?inf"):
        KernelLogisticRegression().fit(X, numbers_with(bad))


def test_continuous_labels():
    with pytest.raises(ValueError, match="Unknown label type: continuous"):
        KernelLogisticRegression().fit(X, X[:, 0])


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.eye(3)[CODES], r"y has shape \(24, 3\).*expected \(n_samples,\)"),
        (CODES.reshape(N, 1, 1), r"y has shape \(24, 1, 1\)"),
        (np.float64(3.0), r"y has shape \(\)"),
        (np.empty(0), r"y has shape \(0,\)"),
        (da.from_array(np.eye(3)[CODES]), r"y has shape \(24, 3\)"),
        (None, "y is None"),
    ],
)
def test_shapes_of_y(y, message):
    with pytest.raises(InputError, match=message):
        KernelLogisticRegression().fit(X, y)


@pytest.mark.parametrize("rows", [X, sp.csr_array(X), da.from_array(X)], ids=["ndarray", "csr", "dask"])
def test_lengths_that_differ(rows):
    with pytest.raises(InputError, match="X has 24 rows and y 23"):
        KernelLogisticRegression().fit(rows, CODES[:-1])


@pytest.mark.parametrize("form", ["primal", "dual"])
@pytest.mark.parametrize("solver", ["cholesky", "cg"])
@pytest.mark.parametrize(("bad", "word"), [(np.nan, "NaN"), (np.inf, "infinity")])
@pytest.mark.parametrize("tile", [None, 10])
def test_first_bad_value_of_X_is_named(form, solver, bad, word, tile):
    wrong = X.copy()
    wrong[17, 1] = wrong[20, 0] = bad
    with pytest.raises(InputError, match=f"X contains {word}.*row 17, column 1"):
        KernelLogisticRegression(form=form, solver=solver, tile=tile).fit(wrong, CODES)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"alpha": 0.0}, "alpha is 0; expected a finite number > 0.*separable"),
        ({"alpha": 0}, "alpha is 0; expected a finite number > 0"),
        ({"alpha": -1.0}, "alpha is -1; expected a finite number > 0"),
        ({"alpha": np.nan}, "alpha is nan; expected a finite number > 0"),
        ({"alpha": np.inf}, "alpha is inf; expected a finite number > 0"),
        ({"alpha": None}, "alpha"),
        ({"alpha": "much"}, r"alpha is \['much'\]; expected a number > 0"),
        ({"alpha": [1.0, 2.0]}, r"alpha has shape \(2,\).*one number"),
        ({"alpha": [[1.0]]}, "alpha has shape"),
        ({"multi_class": "multinomal"}, "multi_class is 'multinomal'; expected 'multinomial' or 'ovr'"),
        ({"multi_class": None}, "multi_class is None; expected 'multinomial' or 'ovr'"),
        ({"max_iter": 0}, "max_iter is 0; expected a whole number of at least 1 Newton step"),
        ({"max_iter": -3}, "max_iter is -3; expected"),
        ({"max_iter": 2.5}, "max_iter is 2.5; expected"),
        ({"max_iter": True}, "max_iter is True; expected"),
        ({"tol": 0.0}, "tol is 0.0; expected"),
        ({"tol": 1.0}, "tol is 1.0; expected"),
        ({"tol": "small"}, "tol is 'small'; expected"),
        ({"class_weight": {3: 1.0}}, "class_weight names the class 3, which y does not have.*0, 1, 2"),
        ({"class_weight": {"0": 1.0}}, "class_weight names the class '0', which y does not have"),
        ({"class_weight": {1: -0.5}}, r"class_weight\[1\] is -0.5; expected a finite number >= 0"),
        ({"class_weight": {1: np.nan}}, r"class_weight\[1\] is nan; expected a finite number"),
        ({"class_weight": {1: np.inf}}, r"class_weight\[1\] is inf; expected a finite number"),
        ({"class_weight": {1: "2"}}, r"class_weight\[1\] is '2' \(str\); expected a real number"),
        ({"class_weight": {1: None}}, r"class_weight\[1\] is None \(NoneType\); expected a real number"),
        ({"class_weight": {1: True}}, r"class_weight\[1\] is True \(bool\); expected a real number"),
        ({"class_weight": "balance"}, "class_weight is 'balance'; expected 'balanced'"),
        ({"class_weight": [1.0, 2.0, 1.0]}, r"class_weight is \[1.0, 2.0, 1.0\]; expected.*a dict"),
        ({"class_weight": 2.0}, "class_weight is 2.0; expected"),
        ({"form": "both"}, "form is 'both'; expected.*primal"),
        ({"solver": "newton"}, "solver is 'newton'; expected.*cholesky"),
        ({"kernel": "rbff"}, "rbff.*linear"),
        ({"kernel": "rbf", "gamma": -1.0}, "gamma"),
        ({"kernel": "rbf", "form": "primal"}, "finite feature map"),
        ({"tile": 0}, "tile is 0; expected"),
        ({"memory_limit": "lots"}, "memory_limit is 'lots'.*4GiB"),
    ],
)
def test_bad_settings(change, message):
    with pytest.raises(InputError, match=message):
        KernelLogisticRegression(**change).fit(X, CODES)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.ones(3), r"sample_weight has shape \(3,\); expected \(24,\)"),
        (np.ones((N, 1)), r"sample_weight has shape \(24, 1\)"),
        (np.where(np.arange(N) == 7, -1.0, 1.0), "sample_weight is -1.0 in row 7; expected finite numbers >= 0"),
        (np.where(np.arange(N) == 7, np.nan, 1.0), "sample_weight is nan in row 7; expected finite"),
        (np.zeros(N), "sample_weight is zero everywhere"),
        (0.0, "sample_weight is zero everywhere"),
        (-1.0, "sample_weight is -1.0 in row 0; expected finite numbers >= 0"),
    ],
)
def test_bad_weights(weights, message):
    with pytest.raises(InputError, match=message):
        KernelLogisticRegression().fit(X, CODES, sample_weight=weights)
    model = KernelLogisticRegression().fit(X, CODES)
    with pytest.raises(InputError, match=message):
        model.score(X, CODES, sample_weight=weights)


@pytest.mark.parametrize(
    ("alphas", "message"),
    [
        ([], "alphas"),
        ([1.0, 0.0], "alphas is 0; expected a finite number > 0"),
        ([1.0, np.nan], "alphas is nan; expected a finite number > 0"),
        ([1.0, -2.0], "alphas is -2; expected a finite number > 0"),
        (1.0, "alphas"),
        (["a", "b"], "alphas is .*expected a number > 0 for each"),
        ([[1.0, 2.0]], "alphas has shape"),
    ],
)
def test_bad_paths(alphas, message):
    model = KernelLogisticRegression(0.7)
    with pytest.raises(InputError, match=message):
        model.fit_path(X, CODES, alphas)
    assert model.alpha == 0.7 and not hasattr(model, "classes_")


@pytest.mark.parametrize("tile", [None, 10])
def test_precomputed_must_be_square_and_symmetric(tile):
    with pytest.raises(InputError, match="square"):
        KernelLogisticRegression(kernel="precomputed", tile=tile).fit(X, CODES)
    K = RBF(gamma=1.0)(X)
    K[20, 3] += 1e-3
    for solver in ("cholesky", "cg"):
        with pytest.raises(InputError, match="symmetric"):
            KernelLogisticRegression(kernel="precomputed", tile=tile, solver=solver).fit(K, CODES)


@pytest.mark.parametrize("balanced", [False, True], ids=["unbalanced", "balanced"])
@pytest.mark.parametrize("solver", ["cholesky", "cg"])
@pytest.mark.parametrize("tile", [None, 10])
def test_indefinite_kernel(tile, solver, balanced):
    K = np.diag(np.where(np.arange(N) < 12, 1.0, -3.0))
    y = np.arange(N) % 2 if balanced else (np.arange(N) > 7).astype(int)  # with as many of each, 1ᵀg is 0 at the start
    with pytest.raises(NotPositiveDefiniteError, match="(?s)not positive semidefinite.*increase alpha"):
        KernelLogisticRegression(0.01, kernel="precomputed", tile=tile, solver=solver).fit(K, y)


def test_an_unfitted_model_and_other_columns():
    for method in ("predict", "predict_proba", "predict_log_proba", "decision_function"):
        with pytest.raises(NotFittedError):
            getattr(KernelLogisticRegression(), method)(X)
        model = KernelLogisticRegression(kernel="rbf").fit(X, CODES)
        with pytest.raises(ValueError, match="2 features.*3 features"):
            getattr(model, method)(X[:, :2])
        with pytest.raises(InputError, match="2 features.*3 features"):
            getattr(model, method)(da.from_array(X[:, :2]))
        wrong = X.copy()
        wrong[3, 1] = np.nan
        with pytest.raises(InputError, match="NaN.*row 3, column 1"):
            getattr(model, method)(wrong)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ("X", "X"),
        ("y", "classes"),
        ("weights", "weight"),
        ("alpha", "alpha"),
        ("gamma", "kernel"),
        ("icpt", "fit_intercept"),
        ("ovr", "multinomial"),
        ("class", "weight"),
    ],
)
def test_store_of_another_problem_is_refused(tmp_path, change, field):
    settings = {"alpha": 0.5, "kernel": "rbf", "gamma": 0.3, "tile": 10, "store": str(tmp_path / "run.zarr")}
    rows, y, weights = X.copy(), CODES.copy(), np.linspace(1, 2, N)
    KernelLogisticRegression(**settings).fit(rows, y, sample_weight=weights)
    if change == "X":
        rows[0, 0] += 1
    elif change == "y":
        y[0] = 1
    elif change == "weights":
        weights[1] += 1
    else:
        settings |= {
            "alpha": {"alpha": 0.6},
            "gamma": {"gamma": 0.4},
            "icpt": {"fit_intercept": False},
            "ovr": {"multi_class": "ovr"},
            "class": {"class_weight": {0: 2.0}},
        }[change]
    with pytest.raises(StoreError, match=f"another problem.*{WORDS.get(field, field)}"):
        KernelLogisticRegression(**settings).fit(rows, y, sample_weight=weights)


def test_a_failed_fit_leaves_the_last_one():
    model = KernelLogisticRegression(kernel="rbf").fit(X, CODES)
    before = model.predict_proba(X)
    with pytest.raises(InputError, match="missing"):
        model.fit(X, with_label(None))
    assert np.array_equal(model.predict_proba(X), before)
