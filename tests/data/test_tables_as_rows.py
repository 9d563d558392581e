"""Fits on tables, in files and lazy: columns by name, out of core, as on arrays."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

import dkrr
from dkrr import KernelLogisticRegression, KernelLogisticRegressionCV, KernelRidge, KernelRidgeCV
from dkrr.errors import InputError, InputTypeError
from dkrr.kernels import RBF, BagOfWords, Columns
from dkrr.rows import load_targets
from dkrr.tables.arrow import ParquetSource
from dkrr.tiles.mapped import is_mapped

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

N = 120
X = np.random.default_rng(0).normal(size=(N, 3))
Y = np.sin(X[:, 0]) + X[:, 2]
LABELS = np.where(Y > 0, "late", "early")
FRAME = pd.DataFrame(X, columns=["a", "b", "c"])


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    columns = {"a": X[:, 0], "b": X[:, 1], "y": Y, "c": X[:, 2], "class": LABELS, "w": Y**2}
    path = tmp_path_factory.mktemp("tables") / "x.parquet"
    parquet.write_table(pa.table(columns), path, row_group_size=50)
    return str(path)


@pytest.mark.parametrize("store", [False, True], ids=["memory", "store"])
def test_columns_of_a_file_are_rows_targets_and_weights(path, store, tmp_path):
    given = {"store": str(tmp_path / "run.zarr"), "tile": 50} if store else {}
    model = KernelRidge(0.1, kernel="rbf", **given).fit(f"{path}::a,b,c", "y", sample_weight="w")
    known = KernelRidge(0.1, kernel="rbf").fit(X, Y, sample_weight=Y**2)
    assert list(model.feature_names_in_) == ["a", "b", "c"] and not model.plan_.problem.x_in_memory
    predictions = model.predict(path)
    assert predictions.chunks == ((N,),) and hasattr(predictions, "compute")
    assert_allclose(predictions, known.predict(X), rtol=0, atol=1e-9)
    assert model.score(path, "y") == pytest.approx(known.score(X, Y), abs=1e-9)


def test_a_store_reads_the_file_once(path, monkeypatch):
    read, batches = [], ParquetSource.batches
    monkeypatch.setattr(
        ParquetSource, "batches", lambda self, a, b, names: read.append((a, b, *names)) or batches(self, a, b, names)
    )
    model = KernelRidge(0.1, kernel="rbf", tile=40, form="dual", solver="cholesky").fit(f"{path}::a,b,c", Y)
    assert model.plan_.execution == "serial" and read == [(0, N, "a", "b", "c")]


def test_columns_are_found_by_name_also_by_a_loaded_model(path, tmp_path):
    model = KernelRidge(0.1, kernel="rbf").fit(f"{path}::c,a", "y")
    dkrr.save(model, tmp_path / "m.zarr")
    expected = KernelRidge(0.1, kernel="rbf").fit(X[:, [2, 0]], Y).predict(X[:, [2, 0]])
    for fitted in (model, dkrr.load(tmp_path / "m.zarr")):
        assert_allclose(fitted.predict(path), expected)
        with pytest.raises(InputError, match="no column 'c', which the model was fitted with; expected one of a, b"):
            fitted.predict(pa.table({"a": [1.0], "b": [2.0]}))
    with pytest.raises(InputError, match="3 features.* fitted with 2"):
        KernelRidge().fit(X[:, :2], Y).predict(f"{path}::a,b,c")


def test_a_column_of_text_is_classes_but_not_targets(path):
    model = KernelLogisticRegression(0.1, kernel="rbf").fit(f"{path}::a,b,c", "class")
    known = KernelLogisticRegression(0.1, kernel="rbf").fit(X, LABELS)
    assert list(model.classes_) == ["early", "late"]
    assert_allclose(model.predict_proba(path), known.predict_proba(X), rtol=0, atol=1e-9)
    assert model.score(path, "class") == known.score(X, LABELS)
    with pytest.raises(InputTypeError, match="y is the column 'class' of text.*KernelLogisticRegression"):
        KernelRidge().fit(f"{path}::a,b,c", "class")


@pytest.mark.parametrize(
    ("kind", "name", "y"), [(KernelRidgeCV, "y", Y), (KernelLogisticRegressionCV, "class", LABELS)], ids=["y", "class"]
)
def test_searches_take_columns_of_a_file(path, kind, name, y):
    search, known = kind([0.1, 1.0], cv=3).fit(f"{path}::a,b,c", name), kind([0.1, 1.0], cv=3).fit(X, y)
    assert_allclose(search.cv_results_["mean_test_score"], known.cv_results_["mean_test_score"], rtol=1e-6)


def test_kernels_of_text_plans_and_gram_matrices_take_a_file(path):
    kernel = Columns(BagOfWords(), "class") + Columns(RBF(1.0), ["a", "b"])
    frame, model = dkrr.open_table(path).to_pandas(), KernelRidge(0.1, kernel=kernel).fit(path, "y")
    assert_allclose(model.predict(path), KernelRidge(0.1, kernel=kernel).fit(frame, Y).predict(frame))
    assert dkrr.gram(path, kernel=kernel).shape == (N, N)
    assert dkrr.plan(path, "y", kernel=kernel).problem.n == N
    problem = dkrr.plan(f"{path}::a,b,c", "y", kernel="rbf").problem
    assert (problem.n, problem.d, problem.n_targets, problem.x_in_memory) == (N, 3, 1, False)
    assert dkrr.plan(f"{path}::a,b,c", "class", loss="logistic").problem.loss == "logistic"


def test_targets_of_another_file_are_mapped_if_they_are_large(tmp_path, monkeypatch):
    parquet.write_table(pa.table({"y": Y, "z": -Y}), tmp_path / "y.parquet", row_group_size=50)
    model = KernelRidge(0.1).fit(X, f"{tmp_path}/y.parquet")
    assert_allclose(model.dual_coef_[:, 1], -model.dual_coef_[:, 0])
    assert KernelRidge(0.1).fit(X, f"{tmp_path}/y.parquet::z").dual_coef_.shape == (N,)
    monkeypatch.setattr("dkrr.rows.open.HELD_BYTES", 100)
    targets = load_targets(str(tmp_path / "y.parquet"))
    assert is_mapped(targets) and np.array_equal(targets, np.column_stack([Y, -Y]))


def test_frames_of_pandas_have_targets_by_name_and_errors_that_name_columns():
    frame, known = FRAME.assign(y=Y, w=Y**2), KernelRidge(0.1).fit(X, Y, sample_weight=Y**2)
    model = KernelRidge(0.1).fit(frame, "y", sample_weight="w")
    assert list(model.feature_names_in_) == ["a", "b", "c"]
    assert_allclose(model.dual_coef_, known.dual_coef_)
    assert model.score(FRAME.assign(y=Y), "y") == pytest.approx(known.score(X, Y))
    frame = FRAME.copy()
    frame.loc[7, "b"] = np.nan
    for given in (frame, frame.astype({"a": "float32"})):
        with pytest.raises(InputError, match=r"row 7, column 1 \(counted from 0\), which is 'b'; expected"):
            KernelRidge(kernel="rbf").fit(given, Y)
    with pytest.raises(InputTypeError, match="in column 'day'"):
        KernelRidge().fit(FRAME.assign(day=pd.Timestamp("2013-01-01")), Y)
    for fitted, dtype in ((KernelRidge(), "object"), (KernelLogisticRegression(), "category")):
        with pytest.raises(InputTypeError, match="X has the column 'class' of .*OneHotEncoder"):
            fitted.fit(FRAME.assign(**{"class": pd.Series(LABELS, dtype=dtype)}), Y > 0)


@pytest.mark.parametrize("kind", [KernelRidge, KernelLogisticRegression])
def test_a_lazy_frame_gives_the_model_of_pandas_and_refuses_other_columns(kind, tmp_path):
    lazy = pytest.importorskip("dask.dataframe").from_pandas(FRAME, npartitions=3)
    y, method = (lazy["a"], "predict") if kind is KernelRidge else (lazy["a"] > lazy["c"], "predict_proba")
    known, model = kind(0.1, kernel="rbf").fit(FRAME, y.compute()), kind(0.1, kernel="rbf").fit(lazy, y)
    assert list(model.feature_names_in_) == ["a", "b", "c"] and model.n_features_in_ == 3
    for rows in (lazy, FRAME):
        assert_allclose(getattr(model, method)(rows), getattr(known, method)(FRAME), rtol=0, atol=1e-12)
    dkrr.save(model, tmp_path / "m.zarr")
    for fitted in (model, dkrr.load(tmp_path / "m.zarr"), known):
        for wrong in (lazy[["c", "b", "a"]], lazy[["a", "b"]], lazy.rename(columns={"b": "other"}), FRAME[list("cba")]):
            with pytest.raises(ValueError, match="feature names should match"):
                getattr(fitted, method)(wrong)
    model.fit(lazy.to_dask_array(lengths=True), y.compute())
    assert not hasattr(model, "feature_names_in_")
    kernel = Columns(RBF(), ["a", "b"]) + Columns(BagOfWords(), "c")
    with pytest.raises(InputTypeError, match=r"X\.compute\(\)"):
        kind(kernel=kernel).fit(lazy, y.compute())
