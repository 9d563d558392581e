"""DataFrames of Dask: their columns keep their names and their order, as those of pandas do."""

import numpy as np
import pytest

import dkrr
from dkrr import KernelLogisticRegression, KernelRidge
from dkrr.errors import InputTypeError
from dkrr.kernels import RBF, BagOfWords, Columns

dd = pytest.importorskip("dask.dataframe")
pd = pytest.importorskip("pandas")


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(0)
    return pd.DataFrame(rng.normal(size=(60, 3)), columns=["a", "b", "c"])


@pytest.fixture(scope="module")
def lazy(frame):
    return dd.from_pandas(frame, npartitions=3)


@pytest.fixture(params=["ridge", "logistic"])
def case(request, frame):
    y = frame["a"] * 2 - frame["c"]
    if request.param == "ridge":
        return KernelRidge(0.1, kernel="rbf"), y, "predict"
    return KernelLogisticRegression(0.1, kernel="rbf"), y > 0, "predict_proba"


def test_the_same_as_pandas(frame, lazy, case):
    model, y, predict = case
    expected = getattr(model.fit(frame, y), predict)(frame)
    model.fit(lazy, dd.from_pandas(y, npartitions=3))
    assert list(model.feature_names_in_) == ["a", "b", "c"] and model.n_features_in_ == 3
    found = getattr(model, predict)(lazy)
    assert hasattr(found, "compute")
    assert np.allclose(found.compute(), expected, rtol=0, atol=1e-12)
    assert np.allclose(getattr(model, predict)(frame), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("fitted_on", ["pandas", "dask", "saved"])
def test_other_names_and_another_order_are_refused(frame, lazy, case, fitted_on, tmp_path):
    model, y, predict = case
    model.fit(frame if fitted_on == "pandas" else lazy, y)
    if fitted_on == "saved":
        dkrr.save(model, tmp_path / "m.zarr")
        model = dkrr.load(tmp_path / "m.zarr")
    for wrong in (["c", "b", "a"], ["a", "b"]):
        with pytest.raises(ValueError, match="feature names should match"):
            getattr(model, predict)(lazy[wrong])
    with pytest.raises(ValueError, match="feature names should match"):
        getattr(model, predict)(lazy.rename(columns={"b": "other"}))
    if fitted_on != "pandas":
        with pytest.raises(ValueError, match="feature names should match"):
            getattr(model, predict)(frame[["c", "b", "a"]])


def test_a_later_fit_forgets_them(frame, lazy):
    model = KernelRidge(kernel="rbf").fit(lazy, np.arange(60.0))
    model.fit(lazy.to_dask_array(lengths=True), np.arange(60.0))
    assert not hasattr(model, "feature_names_in_")


def test_plans_and_gram_matrices(frame, lazy):
    assert dkrr.plan(lazy, kernel="rbf").problem.n == 60
    K = dkrr.gram(lazy, kernel="rbf", chunks=25)
    assert np.allclose(K.compute(), dkrr.gram(frame.to_numpy(), kernel="rbf").compute(), rtol=0, atol=1e-15)


def test_kernels_of_tables_take_those_in_memory(lazy):
    kernel = Columns(RBF(), ["a", "b"]) + Columns(BagOfWords(), "c")
    with pytest.raises(InputTypeError, match=r"X\.compute\(\)"):
        KernelRidge(kernel=kernel).fit(lazy, np.arange(60.0))
