"""A store of another problem, or of something else, is refused and left as it is; what was refused leaves nothing."""

import dask.array as da
import numpy as np
import pytest

from dkrr import KernelLogisticRegression, KernelRidge
from dkrr.errors import InputError, StoreError

N = 31
X = np.random.default_rng(0).normal(size=(N, 3))
WEIGHTS = np.linspace(1.0, 2.0, N)
CODES = np.arange(N) % 3


def changed(array, at):
    array = array.copy()
    array[at] += 1
    return array


PROBLEMS = [
    (KernelRidge, X[:, 0], {"X": changed(X, (0, 0))}, "the values of X"),
    (KernelRidge, X[:, 0], {"y": changed(X[:, 0], 0)}, "the targets y"),
    (KernelRidge, X[:, 0], {"sample_weight": changed(WEIGHTS, 1)}, "the sample weights"),
    (KernelRidge, X[:, 0], {"alpha": 0.6}, "the values of alpha"),
    (KernelRidge, X[:, 0], {"gamma": 0.4}, "the kernels"),
    (KernelRidge, X[:, 0], {"fit_intercept": True}, "fit_intercept"),
    (KernelLogisticRegression, CODES, {"X": changed(X, (0, 0))}, "the values of X"),
    (KernelLogisticRegression, CODES, {"y": np.where(np.arange(N) == 0, 1, CODES)}, "the labels y"),
    (KernelLogisticRegression, CODES, {"sample_weight": changed(WEIGHTS, 1)}, "the sample weights"),
    (KernelLogisticRegression, CODES, {"class_weight": {0: 2.0}}, "the sample weights"),
    (KernelLogisticRegression, CODES, {"alpha": 0.6}, "the values of alpha"),
    (KernelLogisticRegression, CODES, {"gamma": 0.4}, "the kernels"),
    (KernelLogisticRegression, CODES, {"fit_intercept": False}, "fit_intercept"),
    (KernelLogisticRegression, CODES, {"multi_class": "ovr"}, "multinomial"),
]


def fit(kind, store, X=X, y=None, sample_weight=WEIGHTS, tile=10, **settings):
    settings = {"alpha": 0.5, "kernel": "rbf", "gamma": 0.3} | settings
    return kind(store=str(store), tile=tile, **settings).fit(X, y, sample_weight=sample_weight)


@pytest.mark.parametrize(("kind", "y", "change", "what"), PROBLEMS)
def test_the_store_of_another_problem_is_refused_by_what_differs(tmp_path, kind, y, change, what):
    first = fit(kind, tmp_path / "run.zarr", y=y)
    with pytest.raises(StoreError, match=f"another problem.*{what}"):
        fit(kind, tmp_path / "run.zarr", **{"y": y} | change)
    again = fit(
        kind, tmp_path / "run.zarr", y=y, tile=None
    )  # whatever tiles are asked for, those of the store are used
    assert np.array_equal(again.dual_coef_, first.dual_coef_)


def test_another_kernel_function_of_the_same_source_is_another_problem(tmp_path):
    def make(scale):
        return lambda X, Z: np.exp(-scale * ((X[:, None] - Z[None]) ** 2).sum(axis=2))

    for _ in range(2):
        fit(KernelRidge, tmp_path / "run.zarr", y=X[:, 0], kernel=make(1.0), gamma=None)
    with pytest.raises(StoreError, match="another problem.*kernel"):
        fit(KernelRidge, tmp_path / "run.zarr", y=X[:, 0], kernel=make(2.0), gamma=None)


def test_a_path_that_holds_something_else_is_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    for path in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(StoreError, match="not the store of a dkrr run"):
            fit(KernelRidge, path, y=X[:, 0])
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"] and (tmp_path / "notes.txt").read_text() == "mine"


def test_nothing_is_left_of_a_copy_of_rows_that_was_refused(tmp_path):
    rows = X.copy()
    rows[5, 1] = np.nan
    with pytest.raises(InputError, match="row 5"):
        fit(KernelRidge, tmp_path / "run.zarr", X=da.from_array(rows, chunks=7), y=X[:, 0])
    assert [p.name for p in (tmp_path / "run.zarr").iterdir()] == ["zarr.json"]
