"""DataFrames of Dask: their columns keep their names and their order, as those of pandas do."""

import numpy as np
import pandas as pd
import pytest

import dkrr
from dkrr import KernelLogisticRegression, KernelRidge
from dkrr.errors import InputTypeError
from dkrr.kernels import RBF, BagOfWords, Columns

FRAME = pd.DataFrame(np.random.default_rng(0).normal(size=(60, 3)), columns=["a", "b", "c"])
Y = FRAME["a"] * 2 - FRAME["c"]


@pytest.fixture
def lazy():
    return pytest.importorskip("dask.dataframe").from_pandas(FRAME, npartitions=3)


@pytest.mark.parametrize("kind", [KernelRidge, KernelLogisticRegression])
def test_a_lazy_frame_gives_the_model_of_pandas_and_refuses_other_columns(lazy, kind, tmp_path):
    y, method = (Y, "predict") if kind is KernelRidge else (Y > 0, "predict_proba")
    model = kind(0.1, kernel="rbf")
    expected = getattr(model.fit(FRAME, y), method)(FRAME)
    model.fit(lazy, lazy["a"] * 2 - lazy["c"] if kind is KernelRidge else lazy["a"] * 2 > lazy["c"])
    assert list(model.feature_names_in_) == ["a", "b", "c"] and model.n_features_in_ == 3
    found = getattr(model, method)(lazy)
    assert np.allclose(found.compute(), expected, rtol=0, atol=1e-12)
    assert np.allclose(getattr(model, method)(FRAME), expected, rtol=0, atol=1e-12)
    dkrr.save(model, tmp_path / "m.zarr")
    for fitted in (model, dkrr.load(tmp_path / "m.zarr"), kind(0.1, kernel="rbf").fit(FRAME, y)):
        for wrong in (lazy[["c", "b", "a"]], lazy[["a", "b"]], lazy.rename(columns={"b": "other"}), FRAME[list("cba")]):
            with pytest.raises(ValueError, match="feature names should match"):
                getattr(fitted, method)(wrong)


def test_plans_gram_matrices_and_later_fits(lazy):
    assert dkrr.plan(lazy, kernel="rbf").problem.n == 60
    K = dkrr.gram(lazy, kernel="rbf", chunks=25)
    assert np.allclose(K.compute(), dkrr.gram(FRAME.to_numpy(), kernel="rbf").compute(), rtol=0, atol=1e-15)
    model = KernelRidge(kernel="rbf").fit(lazy, np.arange(60.0)).fit(lazy.to_dask_array(lengths=True), np.arange(60.0))
    assert not hasattr(model, "feature_names_in_")
    kernel = Columns(RBF(), ["a", "b"]) + Columns(BagOfWords(), "c")
    with pytest.raises(InputTypeError, match=r"X\.compute\(\)"):
        KernelRidge(kernel=kernel).fit(lazy, np.arange(60.0))
