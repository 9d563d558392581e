"""Models with a transformer of tables in files, which are read, transformed and predicted in blocks."""

import dask.array as da
import dask.dataframe as dd
import numpy as np
import polars
import pyarrow
import pyarrow.parquet
import pytest

import dkrr
from dkrr.errors import InputError
from tests.transformers.cases import OF_THE_TABLE, flights, of_columns, targets

N = 400


def parquet(folder, table):
    pyarrow.parquet.write_table(pyarrow.Table.from_pandas(table, preserve_index=False), folder / "t.parquet", 90)
    return str(folder / "t.parquet")


def csv(folder, table):
    table.to_csv(folder / "t.csv", index=False)
    return str(folder / "t.csv")


CONTAINERS = {
    "parquet": parquet,
    "csv": csv,
    "table": lambda folder, table: dkrr.open_table(parquet(folder, table)),
    "polars": lambda _, table: polars.from_pandas(table),
    "lazy polars": lambda folder, table: polars.scan_parquet(parquet(folder, table)),
    "dask": lambda _, table: dd.from_pandas(table, npartitions=3),
}
IN_MEMORY = ("polars",)


@pytest.mark.parametrize("kind", CONTAINERS)
@pytest.mark.parametrize("form", ["dual", "primal"])
def test_containers(kind, form, tmp_path):
    table, y = flights(N), targets(N)
    settings = {"kernel": "rbf"} if form == "dual" else {"fit_intercept": True}
    expected = dkrr.KernelRidge(**settings, transformer=of_columns()).fit(table, y)
    X = CONTAINERS[kind](tmp_path, table)
    model = dkrr.KernelRidge(**settings, transformer=of_columns()).fit(X, y)
    found = model.predict(X)
    assert isinstance(found, np.ndarray if kind in IN_MEMORY else da.Array)
    np.testing.assert_allclose(np.asarray(found), expected.predict(table), rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(model.predict(table), np.asarray(found), rtol=1e-9)
    assert model.n_features_in_ == 5 and list(model.feature_names_in_) == list(table)


def test_columns_by_name(tmp_path):
    table = flights(N).assign(y=targets(N), w=1.0)
    path = parquet(tmp_path, table)
    model = dkrr.KernelRidge(transformer=of_columns()).fit(path, "y", sample_weight="w")
    expected = dkrr.KernelRidge(transformer=of_columns()).fit(flights(N), targets(N))
    np.testing.assert_allclose(np.asarray(model.predict(path)), expected.predict(flights(N)), rtol=1e-7, atol=1e-9)
    assert model.score(path, "y") == pytest.approx(expected.score(flights(N), targets(N)))
    with pytest.raises(InputError, match="X has no column 'carrier'"):
        model.predict(parquet(tmp_path, table.drop(columns="carrier")))


def test_tiles_and_sparse_rows(tmp_path):
    table, y = flights(N), targets(N)
    path = parquet(tmp_path, table)
    for name in ("sparse", "selector"):
        settings = {"kernel": "rbf", "gamma": 1e-6, "transformer": OF_THE_TABLE[name]()}
        expected = dkrr.KernelRidge(**settings).fit(table, y)
        model = dkrr.KernelRidge(**settings, tile=150, store=str(tmp_path / name)).fit(path, y)
        np.testing.assert_allclose(np.asarray(model.predict(path)), expected.predict(table), rtol=1e-7, atol=1e-9)
        again = dkrr.KernelRidge(**settings, tile=150, store=str(tmp_path / name)).fit(path, y)
        np.testing.assert_array_equal(again.dual_coef_, model.dual_coef_)


def test_plans(tmp_path):
    path, y = parquet(tmp_path, flights(N)), targets(N)
    found = dkrr.plan(path, y, transformer=of_columns(), kernel="rbf")
    assert (found.problem.n, found.problem.d) == (N, 10)
    with pytest.raises(InputError, match="transformer is given without X"):
        dkrr.plan(n=5, d=3, transformer="standardize")


def test_searches(tmp_path):
    table, y = flights(N), targets(N)
    settings = {"kernel": "rbf", "gamma": [0.01, 0.1], "cv": 3, "transformer": of_columns()}
    for kind, labels in ((dkrr.KernelRidgeCV, y), (dkrr.KernelLogisticRegressionCV, y > 0)):
        expected = kind([0.1, 1.0], **settings).fit(table, labels)
        model = kind([0.1, 1.0], **settings).fit(parquet(tmp_path, table), labels)
        assert model.best_params_ == expected.best_params_
        np.testing.assert_allclose(
            model.cv_results_["mean_test_score"], expected.cv_results_["mean_test_score"], rtol=1e-3
        )
