"""From one table to a saved model and a table of predictions by two commands."""

import json
import re

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import dkrr
from tests.data.flights import flights, targets
from tests.interface.test_commands import run


@pytest.fixture
def path(tmp_path):
    """Flights of which some values are missing, with a key, a target, weights and labels."""
    table = flights(300).assign(flight=[f"XY{k}" for k in range(300)], arr_delay=targets(300), w=2.0)
    table["late"] = np.where(table["distance"] > 2500, "late", "on time")
    table.to_parquet(tmp_path / "flights.parquet", index=False, row_group_size=64)
    return tmp_path / "flights.parquet"


def fitted(path, *options):
    model = path.parent / "m.zarr"
    columns = ["--columns", "d*,hour,origin,carrier", "--one-hot", "origin,carr*", "--impute", "mean", "--standardize"]
    run("fit", "--x", path, *columns, *options, "--model", model, "--quiet")
    return model


def test_two_commands(path, tmp_path):
    model = fitted(path, "--y", "arr_delay", "--kernel", "rbf", "--gamma", "0.1", "--memory-limit", "2GiB")
    arguments = ["--model", model, "--x", path, "--keep", "flight,arr_delay", "--out", tmp_path / "p.parquet"]
    assert run("predict", *arguments).stdout == f"[300] predictions in {tmp_path}/p.parquet\n"
    table = pd.read_parquet(path)
    transformer = make_column_transformer(
        (OneHotEncoder(), ["origin", "carrier"]),
        remainder=make_pipeline(SimpleImputer(), StandardScaler()),
    )
    X = table[["distance", "delay", "hour", "origin", "carrier"]]
    expected = dkrr.KernelRidge(kernel="rbf", gamma=0.1, transformer=transformer).fit(X, table["arr_delay"])
    found = pd.read_parquet(tmp_path / "p.parquet")
    assert list(found) == ["flight", "arr_delay", "prediction_arr_delay"]
    assert found["flight"].tolist() == table["flight"].tolist()
    np.testing.assert_allclose(found["prediction_arr_delay"], expected.predict(X), rtol=1e-8)
    words = run("info", model).stdout
    assert "targets     arr_delay\n" in words and "columns     5, and 9 behind the transformer\n" in words
    assert "transformer ColumnTransformer(transformers=[('one_hot', FrozenEstimator(estimator=OneHotEncoder(" in words
    assert "SimpleImputer" in words and "StandardScaler" in words and "['distance', 'delay', 'hour']" in words
    assert json.loads(run("info", model, "--json").stdout)["target_names"] == ["arr_delay"]


def test_plans_and_files_of_options(path, tmp_path):
    options = ["--columns", "d*,hour,origin", "--one-hot", "origin", "--impute", "mean", "--kernel", "rbf"]
    assert "300 rows × 6 columns" in run("plan", "--x", path, "--y", "arr_delay", *options).stdout
    job = tmp_path / "job.toml"
    job.write_text(
        f"""
        x = "{path}"
        y = "arr_delay"
        columns = "d*,hour,origin"
        one-hot = "origin"
        impute = "mean"
        standardize = true
        kernel = "rbf"
        model = "{tmp_path}/one.zarr"
        """
    )
    run("fit", "--config", job, "--quiet")
    assert "OneHotEncoder(categories=" in run("info", tmp_path / "one.zarr").stdout


def test_labels_and_probabilities(path, tmp_path):
    model = fitted(path, "--y", "late", "--logistic", "--sample-weight", "w")
    run("predict", "--model", model, "--x", path, "--keep", "flight", "--out", tmp_path / "p.csv")
    run("predict", "--model", model, "--x", path, "--keep", "flight", "--out", tmp_path / "q.csv", "--proba")
    found, table = pd.read_csv(tmp_path / "p.csv"), pd.read_parquet(path)
    assert list(found) == ["flight", "late"] and (found["late"] == table["late"]).mean() > 0.9
    assert list(pd.read_csv(tmp_path / "q.csv")) == ["flight", "probability_late", "probability_on time"]


def test_select(path, tmp_path):
    options = ["--columns", "d*,hour", "--impute", "median", "--standardize", "--gamma", "0.01,0.1"]
    model = tmp_path / "m.zarr"
    run("select", "--x", path, "--y", "arr_delay", *options, "--alphas", "0.1,1", "--model", model, "--quiet")
    assert "SimpleImputer(strategy='median')" in run("info", model).stdout
    run("predict", "--model", model, "--x", path, "--out", tmp_path / "p.npy")
    assert np.load(tmp_path / "p.npy").shape == (300,)


def test_standardised_arrays(tmp_path):
    X = 1e3 + np.random.default_rng(0).normal(size=(50, 3))
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", X[:, 0])
    files = ["--x", tmp_path / "x.npy", "--y", tmp_path / "y.npy", "--model", tmp_path / "m.zarr"]
    run("fit", *files, "--standardize", "--quiet")
    assert "transformer StandardScaler()\n" in run("info", tmp_path / "m.zarr").stdout
    assert "--x is not a table" in run("fit", *files, "--one-hot", "a", "--overwrite", code=2).stderr


def test_other_values_in_new_rows(path, tmp_path):
    new = pd.read_parquet(path).replace({"carrier": {"UA": "ZZ"}})
    new.to_parquet(tmp_path / "new.parquet")
    predict = ["--model", tmp_path / "m.zarr", "--x", tmp_path / "new.parquet", "--out", tmp_path / "p.csv"]
    fitted(path, "--y", "arr_delay")
    found = run("predict", *predict, code=2).stderr
    assert "column 'carrier' of X holds 'ZZ' in row" in found and not (tmp_path / "p.csv").exists()
    fitted(path, "--y", "arr_delay", "--unknown", "zeros", "--overwrite")
    run("predict", *predict)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--standardize"], "--x has the column 'origin' of text"),
        (["--one-hot", "origin"], "--x has the column 'carrier' of text"),
        (["--one-hot", "orign,carrier"], "--one-hot has 'orign', .* expected 'origin'"),
        (["--unknown", "zeros"], "--unknown is given without --one-hot"),
        (["--one-hot", "origin,carrier"], "missing values|NaN"),
    ],
)
def test_bad_options(path, options, message, tmp_path):
    fit = ["fit", "--x", path, "--columns", "d*,origin,carrier", "--y", "arr_delay", "--model", tmp_path / "m.zarr"]
    result = run(*fit, *options, "--quiet", code=2)

    assert re.search(message, result.stderr) and result.stderr.count("\n") == 1
    assert not (tmp_path / "m.zarr").exists()


class TestRowsWithMissingValues:
    @pytest.fixture
    def gaps(self, path):
        """Targets are missing in 11 rows, weights in one."""
        table = pd.read_parquet(path)
        table.loc[::29, "arr_delay"] = np.nan
        table.loc[7, "w"] = np.nan
        table.to_parquet(path, index=False, row_group_size=64)
        return table

    @pytest.mark.parametrize("impute", [True, False])
    def test_are_left_out(self, path, gaps, impute):
        model = path.parent / "m.zarr"
        options = ["--columns", "d*,hour", "--sample-weight", "w", "--drop-missing", "--kernel", "rbf"]
        run(
            "fit",
            "--x",
            path,
            "--y",
            "arr_delay",
            *options,
            *["--impute", "mean"] * impute,
            "--model",
            model,
            "--quiet",
        )
        used = gaps.dropna(subset=["arr_delay", "w"] if impute else ["arr_delay", "w", "distance", "delay", "hour"])
        assert len(used) == (288 if impute else len(used)) < 300
        expected = dkrr.KernelRidge(kernel="rbf", transformer=SimpleImputer() if impute else None)
        expected.fit(used[["distance", "delay", "hour"]], used["arr_delay"], sample_weight=used["w"])
        np.testing.assert_allclose(dkrr.load(model).dual_coef_, expected.dual_coef_, rtol=1e-8)

    def test_are_told(self, path, gaps, caplog):
        text = run("plan", "--x", path, "--y", "arr_delay", "--columns", "hour,distance", "--drop-missing").stdout
        assert "289 rows × 2 columns" in text
        error = run("fit", "--x", path, "--y", "arr_delay", "--columns", "hour", "--model", "m.zarr", code=2).stderr
        assert "column 'arr_delay'" in error and "11 rows, the first is row 0" in error and "--drop-missing" in error
        with caplog.at_level("INFO", "dkrr"):
            options = ["--columns", "hour", "--drop-missing", "--alphas", "0.1,1", "--gamma", "1", "--quiet"]
            run("select", "--x", path, "--y", "arr_delay", *options)
        assert "11 of 300 rows left out, in which values of hour, arr_delay are missing" in caplog.text

    def test_need_a_table_with_its_targets(self, path, gaps, tmp_path):
        np.save(tmp_path / "x.npy", np.eye(3))
        model = ["--model", tmp_path / "m.zarr", "--drop-missing"]
        error = run("fit", "--x", tmp_path / "x.npy", "--y", tmp_path / "x.npy", *model, code=2).stderr
        assert "--x is not a table with named columns" in error
        error = run("fit", "--x", path, "--columns", "hour", "--y", tmp_path / "x.npy", *model, code=2).stderr
        assert "--y is" in error and "expected a column of --x" in error
