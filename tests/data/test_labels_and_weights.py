"""Labels, targets, penalties and weights: what is taken as what, and which label is refused in which container."""

import dask.array as da
import numpy as np
import pandas as pd
import pytest

import dkrr
from dkrr import KernelLogisticRegression, KernelRidge
from dkrr.errors import InputError, InputTypeError
from tests.inputs import table
from tests.pairs import every_pair

N = 24
X = np.random.default_rng(0).normal(size=(N, 3))
CODES = np.arange(N) % 3
NAMES = np.array(["a", "b", "c"], object)[CODES]


def put(labels, label):
    changed = labels.astype(float if labels.dtype != object and isinstance(label, float) else object)
    changed[5] = label
    return changed


@every_pair(
    kind=["ndarray", "csr", "dask", "zarr path"],
    bad=[np.nan, -np.inf],
    model=[KernelRidge, KernelLogisticRegression],
    way=[("primal", "cholesky"), ("primal", "cg"), ("dual", "cholesky"), ("dual", "cg")],
    tile=[None, 10],
)
def test_the_first_bad_value_of_X_is_named_whatever_holds_it_and_solves(tmp_path, kind, bad, model, way, tile):
    wrong = X.copy()
    wrong[17, 1] = wrong[20, 0] = bad
    with pytest.raises(InputError, match=f"X contains {'NaN' if np.isnan(bad) else 'infinity'}.*row 17, column 1"):
        model(form=way[0], solver=way[1], tile=tile).fit(table(kind, tmp_path, wrong).handed_in, CODES)


MISSING = {
    "NaN among strings": put(NAMES, np.nan),
    "NaN in a list of strings": put(NAMES, np.nan).tolist(),  # of which NumPy makes a class of the name "nan"
    "None": put(NAMES, None),
    "NaT": put(NAMES, pd.NaT),
    "nullable strings": pd.Series(put(NAMES, None), dtype="string"),
    "categories": pd.Series(put(NAMES, None), dtype="category"),
    "nullable integers": pd.Series(put(CODES, np.nan)).astype("Int64"),
    "lazy": da.from_array(put(CODES, np.nan), chunks=7),
}


@pytest.mark.parametrize("kind", MISSING)
def test_a_missing_label_is_refused_with_its_row(kind):
    with pytest.raises(InputError, match=r"y (has a missing label|contains NaN).*row 5.*leave the row out"):
        KernelLogisticRegression().fit(X, MISSING[kind])


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (put(NAMES, 7), r"str \(row 0\) and number \(row 5\)"),
        (put(NAMES, 7).tolist(), r"str \(row 0\) and number \(row 5\)"),  # of which NumPy makes strings
        (pd.Series(put(NAMES, True)), r"str \(row 0\) and bool \(row 5\)"),
        (put(NAMES, frozenset()), r"str \(row 0\) and frozenset \(row 5\)"),
        (put(CODES, True), r"number \(row 0\) and bool \(row 5\)"),
    ],
)
def test_labels_of_mixed_types_are_refused(y, message):
    with pytest.raises(InputTypeError, match=f"mixed types: {message}; expected strings only, or numbers only"):
        KernelLogisticRegression().fit(X, y)


@pytest.mark.parametrize(
    ("y", "class_weight", "weights", "message"),
    [
        (put(CODES, -np.inf), None, None, "y contains NaN or infinity.*row 5 is -inf"),
        (np.full(N, "only").tolist(), None, None, r"y has 1 class \('only'\).*at least 2 classes"),
        (da.zeros(N, chunks=5), None, None, r"y has 1 class \(0.0\)"),
        (CODES, None, CODES == 2, r"1 class of positive weight \(2\).*at least 2"),
        (CODES, {0: 0.0, 2: 0}, None, r"1 class of positive weight \(1\).*at least 2"),
        (CODES, {0: 0.0, 1: 0.0, 2: 0.0}, None, r"0 class of positive weight \(none\)"),
    ],
)
def test_infinite_labels_and_too_few_classes_are_refused(y, class_weight, weights, message):
    with pytest.raises(InputError, match=message):
        KernelLogisticRegression(class_weight=class_weight).fit(X, y, sample_weight=weights)


def test_a_plan_reads_the_number_of_targets_from_y(tmp_path):
    np.save(tmp_path / "y.npy", np.zeros((N, 3)))
    targets = (np.zeros(N), np.zeros((N, 1)), np.zeros((N, 4)), tmp_path / "y.npy")
    assert [dkrr.plan(X, y).problem.n_targets for y in targets] == [1, 1, 4, 3]
    with pytest.raises(InputError, match=f"y has 5 rows, and X has {N}"):
        dkrr.plan(X, np.zeros(5))


@pytest.mark.parametrize("method", ["predict", "predict_proba", "predict_log_proba", "decision_function"])
def test_every_method_refuses_other_columns_and_names_a_bad_value(method):
    call = getattr(KernelLogisticRegression(kernel="rbf").fit(X, CODES), method)
    for rows in (X[:, :2], da.from_array(X[:, :2])):
        with pytest.raises(InputError, match="2 features.*3 features"):
            call(rows)
    with pytest.raises(InputError, match="NaN.*row 3, column 1"):
        call(np.where(X[3, 1] == X, np.nan, X))
