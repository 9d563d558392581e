"""Errors name the argument, its value and a remedy: the most frequent ones, and those of the page "troubleshooting".

That every wrong argument is refused by name is shown by tests/contracts/test_arguments.py; here are the words.
"""

import re
from functools import partial
from pathlib import Path

import dask.array as da
import numpy as np
import pandas as pd
import pytest

import dkrr
from dkrr import KernelLogisticRegression, KernelRidge, KernelRidgeCV
from dkrr.errors import ConvergenceWarning, DiskSpaceError, DkrrError
from dkrr.kernels import RBF

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "troubleshooting.md").read_text()
DOCUMENTED = re.findall(r"^```text\n(.*?)\n```", PAGE, re.M | re.S)
N = 24
RNG = np.random.default_rng(20)
X = RNG.normal(size=(N, 3))
Y = np.column_stack([np.sin(X[:, 0]), X @ [1.0, 2.0, 3.0], RNG.normal(size=N)])
CODES = np.arange(N) % 3
TWICE = X[:, [0, 1, 2, 1]]
FRAME = pd.DataFrame(X, columns=["a", "b", "c"])


def ridge(X=X, y=Y, weights=None, **settings):
    return KernelRidge(**settings).fit(X, y, sample_weight=weights)


def logistic(y=CODES, weights=None, **settings):
    return KernelLogisticRegression(**settings).fit(X, y, sample_weight=weights)


def put(array, at, value):
    changed = np.array(array, object if value is None else float)
    changed[at] = value
    return changed


def table(**columns):
    pd.DataFrame({"b": np.ones(N), **columns}).to_csv("table.csv", index=False)
    return dkrr.open_table("table.csv")


def saved(**settings):
    """A model that was saved and loaded."""
    dkrr.save(ridge(**settings), "model.zarr")
    return dkrr.load("model.zarr")


def of_another_problem():
    for alpha in (1.0, 2.0):
        ridge(kernel="rbf", tile=10, store="run.zarr", alpha=alpha)


SHOWN = {
    "no plan fits in memory": lambda: ridge(kernel="rbf", memory_limit="10MiB"),
    "Input …": lambda: ridge(put(X, (5, 1), np.nan)),
    "… has missing values": lambda: ridge(table(a=put(X[:, 0], 5, np.nan))),
    "… has the column … of text": lambda: ridge(table(a=["x"] * N)),
    "… has …, and … has no such column": lambda: dkrr.open_table("table.csv", columns=["z"]) if table() else None,
    "X has no column": lambda: dkrr.predict_to(ridge(FRAME), table(a=X[:, 0]), "out.npy"),
    "kernel is": lambda: ridge(kernel=RBF),
    "… exists already": lambda: dkrr.save(saved(), "model.zarr"),
    "… is …, and the folder": lambda: ridge(kernel="rbf", store="missing/run.zarr"),
    "the model was saved without its targets": lambda: saved(kernel="rbf").predict(X, return_std=True),
    "the store … belongs to another problem": of_another_problem,
    "… is not positive definite": lambda: ridge(X[CODES], kernel="rbf", alpha=0.0),
    "… is missing, and files never hold code": lambda: saved(kernel=lambda A, B: A @ B.T),
}
"""Calls that lead to messages of docs/how-to/troubleshooting.md, by their beginnings there."""
SETTINGS = {
    "alpha has shape (2,); expected a number, or shape (3,): one for each target…": {"alpha": [1.0, 2.0]},
    "kernel is 'gaussian'; expected one of …did you mean 'rbf'?": {"kernel": "gaussian"},
    "kernel_params: …'rbf' has no parameter width; expected 'gamma'": {"kernel": "rbf", "kernel_params": {"width": 1}},
    'gamma is 0.1, which the kernel … does not have; expected gamma=None, or kernel_params={"gamma": ...}…': {
        "kernel": np.dot,
        "gamma": 0.1,
    },
    "…X has 24 rows and y 23": {"X": da.from_array(X), "y": Y[:-1]},
    "Input y contains NaN: …row 7, column 2 (counted from 0); expected finite numbers…": {"y": put(Y, (7, 2), np.nan)},
    "sample_weight has shape (3,); expected (24,), one for each row of X": {"weights": np.ones(3)},
    "the kernel function …returned shape () for…24 and 24 rows; expected (24, 24)…": {"kernel": lambda A, B: 1.0},
    "K + λI is not…: remove duplicate rows…or set alpha > 0…k(x, x) is up to 1.0e+00, and the rounding of such entries "
    "2.2e-16": {"X": X[CODES], "kernel": "rbf", "alpha": 0.0},
    "ΦᵀΦ + λI is not positive definite with λ = alpha = 0: …feature 3…set alpha > 0…": {"X": TWICE, "alpha": 0.0},
}
"""Other messages of ridge regressions with these settings, by their words; … stands for any."""
OF_CLASSES = {
    "alpha is 0; expected a finite number > 0: without a penalty…infinite": {"alpha": 0.0},
    "alpha has shape (2,); expected one number > 0 for each model: fit_path makes…": {"alpha": [0.1, 1.0]},
    "y has labels of mixed types: str (row 0) and number (row 1); expected strings only, or…": {"y": ["a", 7] * 12},
    "y has a missing label in row 5: …; expected a label for every row: leave the row out": {"y": put(CODES, 5, None)},
    "sample_weight is -1.0 in row 7; expected finite numbers >= 0": {"weights": put(np.ones(N), 7, -1.0)},
}
FREQUENT = {
    **{message: partial(ridge, **settings) for message, settings in SETTINGS.items()},
    **{message: partial(logistic, **settings) for message, settings in OF_CLASSES.items()},
    "alphas has shape (0,); expected at least one number…": lambda: KernelRidgeCV([]).fit(X, Y),
    "X is 100, a number; expected rows, or …: dkrr.plan(n_samples=100, n_features=...)": lambda: dkrr.plan(100),
    "X is 100, a number; …dkrr.plan(n_samples=100, n_features=5)": lambda: dkrr.plan(100, 5),
    "n_samples or n_features is given with X, which has its own; …": lambda: dkrr.plan(X, n_features=3),
    "n_features is None; expected a whole number…": lambda: dkrr.plan(n_samples=100),
    "X has shape (2,); expected a matrix …dkrr.plan(n_samples=..., n_features=...)": lambda: dkrr.plan((1000, 5)),
    "X is KernelRidge(), a model; expected rows …dkrr.plan(X, model=model)": lambda: dkrr.plan(KernelRidge()),
    "variance_scale is 2.0 and return_std is False; …": lambda: ridge().predict(X, variance_scale=2.0),
    "KernelRidgeCV has no model of all rows, since its refit is False; …: give refit=True and call fit again": lambda: (
        KernelRidgeCV([1.0], refit=False).fit(X, Y).predict(X)
    ),
    "the kernel function …failed on a block of 24 × 24 rows (…not two single rows as in scikit-learn)…": lambda: ridge(
        kernel=lambda x, z: x @ z
    ),
    "X cannot be used: …2 features, but KernelRidge is expecting 3…": lambda: ridge().predict(X[:, :2]),
    "Input X contains infinity: …row 3, column 1…finite…": lambda: ridge().predict(put(X, (3, 1), np.inf)),
}


def as_expression(message):
    parts = [re.escape(part.strip()) for part in message.split("…")]
    return re.compile(r"\s*.*\s*".join(parts))


@pytest.mark.parametrize("opening", SHOWN)
def test_the_messages_of_troubleshooting_are_those_that_users_see(monkeypatch, tmp_path, opening):
    monkeypatch.chdir(tmp_path)
    (shown,) = [message for message in DOCUMENTED if message.startswith(opening)]
    with pytest.raises(DkrrError) as caught:
        SHOWN[opening]()
    assert as_expression(shown + "…").fullmatch(str(caught.value))


@pytest.mark.parametrize("message", FREQUENT)
def test_frequent_errors_name_the_argument_its_value_and_a_remedy(message):
    with pytest.raises(DkrrError) as caught:
        FREQUENT[message]()
    assert as_expression(message).fullmatch(str(caught.value))


def test_one_newton_step_is_not_called_steps():
    with pytest.warns(ConvergenceWarning, match="after 1 Newton step, where"):
        logistic(kernel="rbf", alpha=1e-6, max_iter=1)


def test_a_disk_that_is_too_small_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr("dkrr.machine.detection.free_bytes", lambda url: 10_000)
    with pytest.raises(DiskSpaceError, match=r"not enough disk: .*9\.77 KiB are free.*Nothing was computed"):
        ridge(np.tile(X, (9, 1)), np.tile(Y, (9, 1)), kernel="rbf", store=str(tmp_path / "run.zarr"))
    assert not list(tmp_path.iterdir())


def test_a_refused_fit_leaves_the_last_one_as_it_was():
    model = logistic(kernel="rbf")
    before = model.predict_proba(X)
    with pytest.raises(DkrrError, match="missing"):
        model.fit(X, put(CODES, 5, None))
    assert np.array_equal(model.predict_proba(X), before)
