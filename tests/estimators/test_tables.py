"""Estimators on tables: columns by name, out of core, as on arrays."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

import dkrr
from dkrr import KernelLogisticRegression, KernelLogisticRegressionCV, KernelRidge, KernelRidgeCV
from dkrr.errors import InputError, InputTypeError
from dkrr.kernels import RBF, BagOfWords, Columns
from dkrr.rows import load_targets
from dkrr.tiles.mapped import is_mapped

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

N = 120


@pytest.fixture(scope="module")
def X():
    return np.random.default_rng(0).normal(size=(N, 3))


@pytest.fixture(scope="module")
def y(X):
    return np.sin(X[:, 0]) + X[:, 2]


@pytest.fixture(scope="module")
def path(X, y, tmp_path_factory):
    columns = {"a": X[:, 0], "b": X[:, 1], "y": y, "c": X[:, 2], "class": np.where(y > 0, "late", "early"), "w": y**2}
    path = tmp_path_factory.mktemp("tables") / "x.parquet"
    parquet.write_table(pa.table(columns), path, row_group_size=50)
    return str(path)


@pytest.mark.parametrize("store", [False, True], ids=["memory", "store"])
def test_a_regression(path, X, y, store, tmp_path):
    given = {"store": str(tmp_path / "run.zarr"), "tile": 50} if store else {}
    model = KernelRidge(0.1, kernel="rbf", **given).fit(f"{path}::a,b,c", "y", sample_weight="w")
    known = KernelRidge(0.1, kernel="rbf").fit(X, y, sample_weight=y**2)
    assert list(model.feature_names_in_) == ["a", "b", "c"] and not model.plan_.problem.x_in_memory
    predictions = model.predict(path)
    assert predictions.chunks == ((N,),) and hasattr(predictions, "compute")
    assert_allclose(predictions, known.predict(X), rtol=0, atol=1e-9)
    assert model.score(path, "y") == pytest.approx(known.score(X, y), abs=1e-9)


def test_a_store_takes_the_rows_once(path, X, y, tmp_path, monkeypatch):
    from dkrr.tables.arrow import ParquetSource

    read, batches = [], ParquetSource.batches
    monkeypatch.setattr(
        ParquetSource, "batches", lambda self, a, b, names: read.append((a, b, *names)) or batches(self, a, b, names)
    )
    model = KernelRidge(0.1, kernel="rbf", tile=40, form="dual", solver="cholesky").fit(f"{path}::a,b,c", y)
    assert model.plan_.execution == "serial" and read == [(0, N, "a", "b", "c")]


def test_columns_by_name(path, X, y, tmp_path):
    model = KernelRidge(0.1, kernel="rbf").fit(f"{path}::c,a", "y")
    dkrr.save(model, tmp_path / "m.zarr")
    for fitted in (model, dkrr.load(tmp_path / "m.zarr")):
        assert_allclose(fitted.predict(path), KernelRidge(0.1, kernel="rbf").fit(X[:, [2, 0]], y).predict(X[:, [2, 0]]))
        with pytest.raises(
            InputError, match="X has no column 'c', which the model was fitted with; expected one of a, b"
        ):
            fitted.predict(pa.table({"a": [1.0], "b": [2.0]}))
    with pytest.raises(InputError, match="3 features.* fitted with 2"):
        KernelRidge().fit(X[:, :2], y).predict(f"{path}::a,b,c")


def test_classes_of_text(path, X, y):
    labels = np.where(y > 0, "late", "early")
    model = KernelLogisticRegression(0.1, kernel="rbf").fit(f"{path}::a,b,c", "class")
    known = KernelLogisticRegression(0.1, kernel="rbf").fit(X, labels)
    assert list(model.classes_) == ["early", "late"]
    assert_allclose(model.predict_proba(path), known.predict_proba(X), rtol=0, atol=1e-9)
    assert model.score(path, "class") == known.score(X, labels)
    with pytest.raises(InputTypeError, match="y is the column 'class' of text.*KernelLogisticRegression"):
        KernelRidge().fit(f"{path}::a,b,c", "class")


def test_selections(path, X, y):
    search = KernelRidgeCV([0.1, 1.0], cv=3).fit(f"{path}::a,b,c", "y")
    known = KernelRidgeCV([0.1, 1.0], cv=3).fit(X, y)
    assert_allclose(search.cv_results_["mean_test_score"], known.cv_results_["mean_test_score"], rtol=1e-6)
    labels = np.where(y > 0, "late", "early")
    search = KernelLogisticRegressionCV([0.1, 1.0], cv=3).fit(f"{path}::a,b,c", "class")
    known = KernelLogisticRegressionCV([0.1, 1.0], cv=3).fit(X, labels)
    assert_allclose(search.cv_results_["mean_test_score"], known.cv_results_["mean_test_score"], rtol=1e-6)


def test_kernels_of_text(path, y):
    kernel = Columns(BagOfWords(), "class") + Columns(RBF(1.0), ["a", "b"])
    frame = dkrr.open_table(path).to_pandas()
    model = KernelRidge(0.1, kernel=kernel).fit(path, "y")
    assert_allclose(model.predict(path), KernelRidge(0.1, kernel=kernel).fit(frame, y).predict(frame))
    assert dkrr.gram(path, kernel=kernel).shape == (N, N)
    assert dkrr.plan(path, "y", kernel=kernel).problem.n == N


def test_plans_and_gram_matrices(path, X):
    problem = dkrr.plan(f"{path}::a,b,c", "y", kernel="rbf").problem
    assert (problem.n, problem.d, problem.n_targets, problem.x_in_memory) == (N, 3, 1, False)
    assert dkrr.plan(f"{path}::a,b,c", "class", loss="logistic").problem.loss == "logistic"
    K = dkrr.gram(f"{path}::a,b,c", f"{path}::a,b,c", kernel="rbf", chunks=50)
    assert_allclose(K, dkrr.gram(X, kernel="rbf"), rtol=0, atol=1e-14)


def test_targets_in_another_file(path, X, y, tmp_path):
    parquet.write_table(pa.table({"y": y, "z": -y}), tmp_path / "y.parquet")
    model = KernelRidge(0.1).fit(X, f"{tmp_path}/y.parquet")
    assert_allclose(model.dual_coef_[:, 1], -model.dual_coef_[:, 0])
    assert KernelRidge(0.1).fit(X, f"{tmp_path}/y.parquet::z").dual_coef_.shape == (N,)


def test_large_targets_are_mapped(X, y, tmp_path, monkeypatch):
    monkeypatch.setattr("dkrr.rows.open.HELD_BYTES", 100)
    parquet.write_table(pa.table({"y": y, "z": -y}), tmp_path / "y.parquet", row_group_size=50)
    targets = load_targets(str(tmp_path / "y.parquet"))
    assert is_mapped(targets) and np.array_equal(targets, np.column_stack([y, -y]))


class TestFramesOfPandas:
    def test_targets_by_name(self, path, X, y):
        frame = dkrr.open_table(path, "a,b,c,y").to_pandas()
        model = KernelRidge(0.1).fit(frame, "y")
        assert list(model.feature_names_in_) == ["a", "b", "c"]
        assert model.score(frame, "y") == pytest.approx(KernelRidge(0.1).fit(X, y).score(X, y))

    @pytest.mark.parametrize("dtype", ["object", "category"])
    def test_text_is_named(self, path, y, dtype):
        frame = dkrr.open_table(path, "a,class").to_pandas()
        for fitted in (KernelRidge(), KernelLogisticRegression()):
            with pytest.raises(InputTypeError, match="X has the column 'class' of .*OneHotEncoder"):
                fitted.fit(frame.astype({"class": dtype}), y > 0)

    def test_missing_values_are_named(self, path, y):
        frame = dkrr.open_table(path, "a,b,c").to_pandas()
        frame.loc[7, "b"] = np.nan
        for X in (frame, frame.astype({"a": "float32"})):
            with pytest.raises(InputError, match=r"row 7, column 1 \(counted from 0\), which is 'b'; expected"):
                KernelRidge(kernel="rbf").fit(X, y)

    def test_dates_are_named(self, y):
        pandas = pytest.importorskip("pandas")
        frame = pandas.DataFrame({"a": y, "day": pandas.to_datetime(["2013-01-01"] * N)})
        with pytest.raises(InputTypeError, match="in column 'day'"):
            KernelRidge().fit(frame, y)
