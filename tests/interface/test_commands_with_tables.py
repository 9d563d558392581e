"""Tables on the command line: columns by name, transformers, labels and missing values."""

import json

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import dkrr
from tests.data.flights import flights, targets
from tests.interface.conftest import run
from tests.oracles import assert_close

COLUMNS = "--columns hour,d*,origin,carrier --one-hot origin,carr* --impute mean --standardize"
FIT = f"fit --x flights.parquet --model m.zarr --quiet {COLUMNS}"


@pytest.fixture
def table(tmp_path, monkeypatch):
    """Flights of which some values are missing, with a key, a target, weights and labels, also in a file."""
    found = flights(300).assign(flight=[f"XY{k}" for k in range(300)], arr_delay=targets(300), w=2.0)
    found["late"] = np.where(found["distance"] > 2500, "late", "on time")
    monkeypatch.chdir(tmp_path)
    found.to_parquet("flights.parquet", index=False, row_group_size=64)
    return found


def test_two_commands_lead_from_a_table_to_a_table_of_predictions(table):
    run(f"{FIT} --y arr_delay --kernel rbf --gamma 0.1 --memory-limit 2GiB")
    line = "predict --model m.zarr --x flights.parquet --columns d*,hour,origin,carrier,w --keep flight,arr_delay"
    assert run(f"{line} --out p.parquet").stdout == "[300] predictions in p.parquet\n"
    numbers = make_pipeline(SimpleImputer(), StandardScaler())
    transformer = make_column_transformer((OneHotEncoder(), ["origin", "carrier"]), remainder=numbers)
    X = table[["hour", "distance", "delay", "origin", "carrier"]]
    expected = dkrr.KernelRidge(kernel="rbf", gamma=0.1, transformer=transformer).fit(X, table["arr_delay"])
    found = pd.read_parquet("p.parquet")
    assert list(found) == ["flight", "arr_delay", "prediction_arr_delay"]
    assert found["flight"].tolist() == table["flight"].tolist()
    assert_close(found["prediction_arr_delay"], expected.predict(X), 1e-10)
    words = run("info m.zarr").stdout
    assert "transformer ColumnTransformer(transformers=[('one_hot', FrozenEstimator(estimator=OneHotEncoder(" in words
    assert "SimpleImputer" in words and "StandardScaler" in words and "['hour', 'distance', 'delay']" in words


def test_a_plan_knows_the_columns_behind_the_transformer_and_the_classes(table):
    options = "--columns d*,hour,origin --one-hot origin --impute mean --kernel rbf"
    assert "300 rows × 6 columns" in run(f"plan --x flights.parquet --y arr_delay {options}").stdout
    plan = json.loads(run("plan --x flights.parquet --columns hour --y late --logistic --json").stdout)
    assert (plan["problem"]["n_features"], plan["problem"]["n_targets"]) == (1, 1)


def test_a_selection_takes_columns_and_transformers(table):
    options = "--impute median --standardize --gamma 0.01,0.1 --alphas 0.1,1 --cv 3 --json"
    line = f"select --x flights.parquet::d*,hour --y arr_delay {options} --model m.zarr --quiet"
    assert {c["alpha"] for c in json.loads(run(line).stdout)["candidates"]} == {0.1, 1.0}
    assert "SimpleImputer(strategy='median')" in run("info m.zarr").stdout
    run("predict --model m.zarr --x flights.parquet --out p.npy")
    assert np.load("p.npy").shape == (300,)


def test_the_steps_of_another_model_are_taken_as_they_are(table):
    rows = "--x flights.parquet --y arr_delay --columns d*,hour,origin"
    run(f"fit {rows} --one-hot origin --impute mean --standardize --model first.zarr --quiet")
    moved = table.assign(distance=table["distance"] + 1e4)
    moved.to_parquet("flights.parquet", index=False)
    assert "300 rows × 6 columns" in run(f"plan {rows} --transformer first.zarr").stdout
    run(f"fit {rows} --transformer first.zarr --model m.zarr --quiet")
    first, found, X = dkrr.load("first.zarr"), dkrr.load("m.zarr"), moved[["distance", "delay", "hour", "origin"]]
    assert repr(found.transformer_) == repr(first.transformer_)
    expected = dkrr.KernelRidge(kernel="rbf").fit(np.asarray(first.transformer_.transform(X)), table["arr_delay"])
    assert_close(found.predict(X), expected.predict(np.asarray(first.transformer_.transform(X))), 1e-9)
    # The model that has the steps is replaced by the new one, as in a job that runs every night.
    run(f"fit {rows} --transformer m.zarr --model m.zarr --overwrite --quiet")
    run(f"select {rows} --transformer m.zarr --alphas 0.1,1 --cv 2 --model s.zarr --quiet")
    for name in ("m.zarr", "s.zarr"):
        assert repr(dkrr.load(name).transformer_) == repr(first.transformer_)
    assert "nothing to do" in run(f"select {rows} --transformer m.zarr --alphas 0.1,1 --cv 2 --model s.zarr").stdout
    run(f"fit {rows} --transformer s.zarr --model m.zarr --overwrite --quiet")
    changed = run(f"select {rows} --transformer m.zarr --alphas 0.1,1 --cv 2 --model s.zarr --quiet", code=2)
    assert "--overwrite" in changed.stderr


def test_columns_are_excluded_and_those_of_numbers_taken(table, caplog):
    fit = "fit --x flights.parquet --y arr_delay --sample-weight w --impute mean --model m.zarr --quiet"
    with caplog.at_level("INFO", "dkrr"):
        run(f"{fit} --numeric --exclude d*")
    assert "--numeric leaves out 4 of 5 columns: origin (" in caplog.text and "flight (text)" in caplog.text
    assert dkrr.load("m.zarr").feature_names_in_.tolist() == ["hour"]
    run(f"{fit} --numeric --exclude late --one-hot origin --overwrite")
    names = dkrr.load("m.zarr").feature_names_in_.tolist()
    assert names == [name for name in table if name in ("hour", "distance", "delay", "origin")]
    predict = "predict --model m.zarr --x flights.parquet --out p.npy --overwrite"
    run(f"{predict} --numeric --exclude late")  # the model takes its own columns, those of text too
    assert "X is chosen without its column 'origin'" in run(f"{predict} --exclude origin", code=2).stderr
    assert "--exclude has 'nothing'" in run(f"{predict} --exclude nothing", code=2).stderr
    plan = run("plan --x flights.parquet --y arr_delay --numeric --exclude w,hour --impute mean").stdout
    assert "300 rows × 2 columns" in plan
    np.save("x.npy", np.ones((3, 2)))
    for option in ("--numeric", "--exclude a"):
        assert "--x is not a table" in run(f"plan --x x.npy {option}", code=2).stderr


def test_arrays_are_standardised(folder):
    run("fit --x x.npy --y y.npy --model m.zarr --standardize --quiet")
    assert "transformer StandardScaler()\n" in run("info m.zarr").stdout


def test_other_values_in_new_rows_are_refused_or_zeros(table):
    table.replace({"carrier": {"UA": "ZZ"}}).to_parquet("new.parquet")
    predict = "predict --model m.zarr --x new.parquet --out p.npy"
    run(f"{FIT} --y arr_delay")
    assert "column 'carrier' of X holds 'ZZ' in row" in run(predict, code=2).stderr
    run(f"{FIT} --y arr_delay --unknown zeros --overwrite")
    run(predict)


# Missing values


@pytest.fixture
def gaps(table):
    """Targets are missing in 11 rows, weights in one."""
    table.loc[::29, "arr_delay"] = np.nan
    table.loc[7, "w"] = np.nan
    table.to_parquet("flights.parquet", index=False, row_group_size=64)
    return table


@pytest.mark.parametrize("impute", ["", "--impute mean"])
def test_rows_with_missing_values_are_left_out(gaps, impute):
    options = f"--columns d*,hour --sample-weight w --drop-missing --kernel rbf {impute}"
    run(f"fit --x flights.parquet --y arr_delay {options} --model m.zarr --quiet")
    used = gaps.dropna(subset=["arr_delay", "w", *(() if impute else ("distance", "delay", "hour"))])
    assert len(used) == (288 if impute else len(used)) < 300
    expected = dkrr.KernelRidge(kernel="rbf", transformer=SimpleImputer() if impute else None)
    expected.fit(used[["distance", "delay", "hour"]], used["arr_delay"], sample_weight=used["w"])
    assert_close(dkrr.load("m.zarr").dual_coef_, expected.dual_coef_, 1e-10)


def test_rows_with_missing_values_are_counted_and_refused_without_the_option(gaps, caplog):
    data = "--x flights.parquet --y arr_delay"
    assert "289 rows × 2 columns" in run(f"plan {data} --columns hour,distance --drop-missing").stdout
    error = run(f"fit {data} --columns hour --model m.zarr", code=2).stderr
    assert "column 'arr_delay'" in error and "11 rows, the first is row 0" in error and "--drop-missing" in error
    with caplog.at_level("INFO", "dkrr"):
        run(f"select {data} --columns hour --drop-missing --alphas 0.1,1 --gamma 1 --quiet")
    assert "11 of 300 rows left out, in which values of hour, arr_delay are missing" in caplog.text
