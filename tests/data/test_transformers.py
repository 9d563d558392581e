"""Estimators with a transformer are those of a Pipeline with the same one, in memory, in blocks and from tables."""

import dask.array as da
import joblib
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import zarr
from numpy.testing import assert_allclose, assert_array_equal
from sklearn import preprocessing
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.decomposition import PCA, IncrementalPCA
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import dkrr
from dkrr.data import as_rows
from dkrr.data.rows import Rows
from dkrr.data.transformers import (
    ColumnSteps,
    InMemoryRows,
    TransformedRows,
    fitted_transformer,
    is_fitted,
    transformed_inputs,
)
from dkrr.errors import InputError
from dkrr.kernels import BagOfWords
from tests.data.flights import NUMBERS, OF_NUMBERS, OF_THE_TABLE, TEXT, dense, flights, of_columns, targets
from tests.inputs import table as given_as
from tests.oracles import assert_close

ESTIMATORS = {
    "ridge": lambda **more: dkrr.KernelRidge(kernel="rbf", **more),
    "primal": lambda **more: dkrr.KernelRidge(alpha=0.1, fit_intercept=True, **more),
    "ridge cv": lambda **more: dkrr.KernelRidgeCV([0.1, 1.0], gamma=[0.01, 0.1], kernel="rbf", cv=3, **more),
    "logistic": lambda **more: dkrr.KernelLogisticRegression(kernel="rbf", **more),
    "logistic cv": lambda **more: dkrr.KernelLogisticRegressionCV([0.1, 1.0], kernel="rbf", cv=2, **more),
}
LOOSE = {"rtol": 1e-7, "atol": 1e-9}


def y_of(name):
    return np.where(targets() > 0, "late", "on time") if "logistic" in name else targets()


def outputs(model, X):
    return getattr(model, "predict_proba", model.predict)(X)


def parquet(folder, table):
    table.to_parquet(folder / "t.parquet", index=False, row_group_size=30)
    return str(folder / "t.parquet")


CONTAINERS = {
    "parquet": parquet,
    "table": lambda folder, table: dkrr.open_table(parquet(folder, table)),
    "polars": lambda _, table: pytest.importorskip("polars").from_pandas(table),
    "lazy polars": lambda folder, table: pytest.importorskip("polars").scan_parquet(parquet(folder, table)),
    "dask": lambda _, table: pytest.importorskip("dask.dataframe").from_pandas(table, npartitions=3),
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_table_is_fitted_saved_and_predicted_as_its_transformed_rows(name, tmp_path):
    X, y = flights(), y_of(name)
    model = ESTIMATORS[name](transformer=of_columns()).fit(X, y)
    rows = of_columns().fit_transform(X)
    expected = ESTIMATORS[name]().fit(rows, y)
    assert_allclose(outputs(model, X), outputs(expected, rows), rtol=1e-10, atol=1e-12)
    assert model.score(X, y) == pytest.approx(expected.score(rows, y))
    assert model.n_features_in_ == 5 and list(model.feature_names_in_) == list(X)
    assert hasattr(model, "transformer_") and not hasattr(model.transformer, "transformers_")
    of_file = ESTIMATORS[name](transformer=of_columns()).fit(parquet(tmp_path, X), y)
    assert_allclose(outputs(of_file, X), outputs(model, X), rtol=1e-5, atol=1e-8)
    if "cv" in name:
        scores = [each.cv_results_["mean_test_score"] for each in (model, of_file)]
        assert_allclose(scores, [expected.cv_results_["mean_test_score"]] * 2, rtol=1e-3)
    dkrr.save(model, tmp_path / "m.zarr")
    joblib.dump(model, tmp_path / "m.joblib")
    for again in (dkrr.load(tmp_path / "m.zarr", transformer=of_columns()), joblib.load(tmp_path / "m.joblib")):
        assert_allclose(outputs(again, X), outputs(model, X), rtol=1e-10, atol=1e-12)
        for wrong in (X[list(X)[::-1]], X[list(X)[:4]]):
            with pytest.raises(InputError, match="feature names should match"):
                again.predict(wrong)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_rows_that_are_read_in_blocks_are_standardized_as_in_memory(name, tmp_path):
    X, y = flights()[NUMBERS].to_numpy(float), y_of(name)
    expected = ESTIMATORS[name](transformer=StandardScaler()).fit(X, y)
    for kind in ("dask", "zarr path"):
        lazy = given_as(kind, tmp_path, X).handed_in
        model = ESTIMATORS[name](transformer="standardize").fit(lazy, y)
        assert isinstance(outputs(model, lazy), da.Array)
        assert_allclose(outputs(model, lazy), outputs(expected, X), rtol=1e-5, atol=1e-8)
        assert model.n_features_in_ == 2 and not hasattr(model, "feature_names_in_")


@pytest.mark.parametrize(
    ("kind", "form"), [*((k, "dual") for k in CONTAINERS), ("parquet", "primal"), ("dask", "primal")]
)
def test_tables_in_every_container_give_the_model_of_the_table_in_memory(kind, form, tmp_path):
    table, y = flights(), targets()
    settings = {"kernel": "rbf"} if form == "dual" else {"fit_intercept": True}
    expected = dkrr.KernelRidge(**settings, transformer=of_columns()).fit(table, y)
    X = CONTAINERS[kind](tmp_path, table)
    model = dkrr.KernelRidge(**settings, transformer=of_columns()).fit(X, y)
    assert isinstance(model.predict(X), np.ndarray if kind == "polars" else da.Array)
    for rows in (X, table):
        assert_allclose(model.predict(rows), expected.predict(table), **LOOSE)
    assert model.n_features_in_ == 5 and list(model.feature_names_in_) == list(table)


def test_targets_and_weights_are_columns_of_the_table_by_name(tmp_path):
    path = parquet(tmp_path, flights().assign(y=targets(), w=1.0))
    model = dkrr.KernelRidge(transformer=of_columns()).fit(path, "y", sample_weight="w")
    expected = dkrr.KernelRidge(transformer=of_columns()).fit(flights(), targets())
    assert_allclose(model.predict(path), expected.predict(flights()), **LOOSE)
    with pytest.raises(InputError, match="transformer is given without X"):
        dkrr.plan(n_samples=5, n_features=3, transformer="standardize")
    with pytest.raises(InputError, match="X has no column 'carrier'"):
        model.predict(parquet(tmp_path, flights().drop(columns="carrier")))


@pytest.mark.parametrize("name", ["sparse", "selector"])
def test_rows_are_copied_for_tiles_and_the_copy_is_used_again(name, tmp_path):
    whole, lazy = flights(), parquet(tmp_path, flights())
    settings = {"kernel": "rbf", "gamma": 1e-6, "transformer": OF_THE_TABLE[name]()}
    expected = dkrr.KernelRidge(**settings).fit(whole, targets())
    assert sp.issparse(expected.X_fit_) is (name == "sparse")
    model = dkrr.KernelRidge(**settings, tile=40, store=str(tmp_path / name)).fit(lazy, targets())
    assert_allclose(model.predict(lazy), expected.predict(whole), **LOOSE)
    again = clone(model).fit(lazy, targets())
    assert again.solve_result_.bytes_written < model.solve_result_.bytes_written
    assert_array_equal(again.dual_coef_, model.dual_coef_)


def test_standard_deviations_and_intervals_are_those_of_the_transformed_rows():
    X, y = flights()[NUMBERS].to_numpy(float), targets()
    scaled = StandardScaler().fit_transform(X)
    plain = dkrr.KernelRidge(kernel="rbf").fit(scaled, y)
    model = dkrr.KernelRidge(kernel="rbf", transformer="standardize").fit(X, y)
    for rows in (X, da.from_array(X, chunks=(31, 1))):
        for found, expected in zip(
            model.predict(rows, return_std=True), plain.predict(scaled, return_std=True), strict=True
        ):
            assert_close(found, expected, 1e-9)
    assert_close(model.predict_interval(X)[0], plain.predict_interval(scaled)[0], 1e-9)


def test_another_fit_forgets_the_transformer():
    X, y = flights()[NUMBERS].to_numpy(float), targets()
    model = dkrr.KernelRidge(kernel="rbf", transformer=PCA(1)).fit(flights()[NUMBERS], y)
    model.set_params(transformer=None).fit(X, y)
    assert not hasattr(model, "transformer_") and not hasattr(model, "feature_names_in_")
    assert_array_equal(model.predict(X), dkrr.KernelRidge(kernel="rbf").fit(X, y).predict(X))


PASSED = make_column_transformer(("passthrough", ["origin"]), verbose_feature_names_out=True)
REFUSED = {
    "text": ("scale", NUMBERS, "transformer is 'scale'; expected None, 'standardize'"),
    "class": (StandardScaler, NUMBERS, r"transformer is the class StandardScaler; .*write StandardScaler\(\)"),
    "estimator": (dkrr.KernelRidge(), NUMBERS, "transformer is KernelRidge.*; expected None"),
    "of targets": (preprocessing.TargetEncoder(), NUMBERS, "which learns from the targets; expected one of X alone"),
    "missing": ("standardize", ["distance", "delay"], r"row \d+ has it in column 'delay' after .*SimpleImputer"),
    "passed": (PASSED, list(flights()), "passthrough__origin' after the transformer does not hold numbers.*OneHot"),
    "all": ("standardize", list(flights()), "cannot be fitted: StandardScaler: .*could not convert string"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_not_a_transformer_of_these_columns_is_refused(what):
    transformer, columns, message = REFUSED[what]
    with pytest.raises(InputError, match=message):
        dkrr.KernelRidge(transformer=transformer).fit(flights()[columns], targets())


def test_a_missing_value_is_named_by_its_row_in_any_partition():
    table = flights()[NUMBERS].astype(float)
    table.loc[71, "hour"] = np.nan
    with pytest.raises(InputError, match="row 71 has it in column 'hour' after the transformer"):
        dkrr.KernelRidge(transformer="standardize").fit(CONTAINERS["dask"](None, table), targets())


@pytest.mark.parametrize("kernel", ["precomputed", BagOfWords()], ids=str)
def test_kernels_that_do_not_take_rows_of_numbers_are_refused(kernel):
    with pytest.raises(InputError, match="transformer is 'standardize' with kernel=.*expected a kernel of rows"):
        dkrr.KernelRidge(kernel=kernel, transformer="standardize").fit(np.eye(3), [1.0, 2.0, 3.0])


@pytest.mark.parametrize("name", [*sorted(OF_THE_TABLE), "one column"])
def test_categories_that_the_fit_did_not_see_are_named_with_column_and_row(name):
    table = flights()[["carrier"]] if name == "one column" else flights()
    model = dkrr.KernelRidge(transformer=OF_THE_TABLE.get(name, OneHotEncoder)()).fit(table, targets())
    table.loc[40, "carrier"] = "ZZ"
    with pytest.raises(InputError, match="column 'carrier' of X holds 'ZZ' in row 40, .* on 'AA', 'B6', 'UA'"):
        model.predict(table)


# Transformers fitted block by block are those that are fitted to all rows at once.

PLENTY = 2**30


class Blocks(Rows):
    """Rows of a table that are read in blocks, and counted."""

    shape = dtype = read = None

    def __init__(self, table, height=13):
        held = InMemoryRows(table)
        self.shape, self.names, self.read = held.shape, held.names, held.read
        self.height, self.passes = height, 0

    def blocks(self, start, stop, height):
        self.passes += start == 0
        yield from super().blocks(start, stop, self.height)


def assert_alike(found, expected, table, atol=1e-12):
    assert_allclose(dense(found.transform(table)), dense(expected.transform(table)), rtol=1e-9, atol=atol)


@pytest.mark.parametrize("name", [*OF_THE_TABLE, *OF_NUMBERS])
def test_what_has_no_partial_fit_takes_all_rows_in_one_pass(name):
    make, table = {**OF_THE_TABLE, **OF_NUMBERS}[name], flights() if name in OF_THE_TABLE else flights()[NUMBERS]
    inputs = Blocks(table)
    found, expected = fitted_transformer(make(), inputs, PLENTY), make().fit(table)
    assert_alike(found, expected, table)
    assert list(found.get_feature_names_out()) == list(expected.get_feature_names_out()) and inputs.passes == 1


SPARSE = sp.random_array((60, 5), density=0.4, rng=np.random.default_rng(0), format="csr")


@pytest.mark.parametrize("table", [flights()[NUMBERS], SPARSE], ids=["table", "csr"])
@pytest.mark.parametrize("make", [lambda: StandardScaler(with_mean=False), preprocessing.MaxAbsScaler])
def test_partial_fit_needs_no_memory(make, table):
    assert_alike(fitted_transformer(make(), Blocks(table), "1 B"), make().fit(table), table)


@pytest.mark.parametrize("height", [6, 13, 96, 97])
def test_a_small_last_block_is_fitted_with_the_others(height):
    table = np.random.default_rng(0).normal(size=(97, 4)) * [1.0, 2.0, 3.0, 4.0]
    found = fitted_transformer(IncrementalPCA(4), Blocks(table, height), PLENTY)
    assert found.n_samples_seen_ == 97
    assert_close(found.mean_, table.mean(axis=0), 1e-12)


def test_a_column_of_a_block_without_values_is_refused():
    table = np.random.default_rng(0).normal(size=(20, 2))
    table[:5, 1] = np.nan
    transformer = fitted_transformer(StandardScaler(), Blocks(table, 5), PLENTY)
    with pytest.raises(InputError, match="NaN: row 0 has it in column 'x1' after the transformer.*--impute"):
        transformed_inputs(transformer, Blocks(table, 5))
    filled = fitted_transformer(ColumnSteps(standardize=True, impute="mean"), Blocks(table, 5), PLENTY)
    assert_alike(filled, make_pipeline(SimpleImputer(), StandardScaler()).fit(table), table)


@pytest.mark.parametrize("is_text", [True, False])
def test_what_needs_all_rows_needs_memory_for_them(is_text):
    table = flights(2000)[TEXT] if is_text else flights(2000)[NUMBERS].to_numpy(float)
    transformer, inputs = OneHotEncoder() if is_text else PCA(1), Blocks(table)
    size = table.memory_usage(deep=True).sum() if is_text else table.nbytes
    with pytest.raises(InputError, match="learns from all rows at once.*fit it first on a sample, and give the fitted"):
        fitted_transformer(transformer, inputs, f"{size} B")
    assert inputs.passes == 1
    assert is_fitted(fitted_transformer(transformer, inputs, f"{4 * size} B"))


def test_a_fitted_one_is_used_as_it_is():
    sample, table = flights(50, seed=9)[NUMBERS], flights()[NUMBERS]
    scaler = StandardScaler().fit(sample)
    expected = dkrr.KernelRidge(kernel="rbf").fit(scaler.transform(table), targets())
    for given in (scaler, FrozenEstimator(scaler), make_pipeline(scaler, "passthrough")):
        assert is_fitted(given) and fitted_transformer(given, Blocks(table), "1 B") is given
        model = dkrr.KernelRidge(kernel="rbf", transformer=given).fit(table, targets())
        assert model.transformer_ is given
        assert_close(model.predict(table), expected.predict(scaler.transform(table)), 1e-12)


SAMPLE = flights(50, seed=9)[NUMBERS].to_numpy(float)
FROZEN = {
    "scaler": StandardScaler().fit(SAMPLE),
    "partial": IncrementalPCA(1).fit(SAMPLE),
    "pipeline": make_pipeline(SimpleImputer(), StandardScaler(), "passthrough").fit(SAMPLE),
    "columns": make_column_transformer((StandardScaler(), [0]), remainder="passthrough").fit(SAMPLE),
    "frozen": FrozenEstimator(StandardScaler().fit(SAMPLE)),
    "stateless": preprocessing.Normalizer(),
    "stateless pipeline": make_pipeline(preprocessing.Normalizer(), preprocessing.Binarizer(threshold=0.5)),
    "function": preprocessing.FunctionTransformer(np.sqrt),
    "of targets": preprocessing.TargetEncoder(target_type="continuous").fit(np.round(SAMPLE, -2), SAMPLE[:, 0]),
}


def state_of(transformer):
    return joblib.hash({k: repr(v) for k, v in vars(transformer).items()})


@pytest.mark.parametrize("what", FROZEN)
def test_a_frozen_one_is_never_fitted(what, tmp_path):
    inner, X, y = FROZEN[what], flights()[NUMBERS].to_numpy(float), targets()
    frozen, before = FrozenEstimator(inner), state_of(inner)
    rows = dense(inner.transform(X))
    expected = dkrr.KernelRidge(kernel="rbf").fit(rows, y).predict(rows)
    model = dkrr.KernelRidge(kernel="rbf", transformer=frozen)
    for found in (model, clone(model), model.fit(X[:50], y[:50])):
        for given in (X, da.from_array(X, chunks=(31, 1))):
            assert found.fit(given, y).transformer_ is frozen and clone(found).transformer is frozen
            assert_allclose(np.asarray(found.predict(given)), expected, rtol=1e-7, atol=1e-9)
    if what != "of targets":  # whose class a file may not name: see the next test
        dkrr.save(model, tmp_path / "m.zarr")
        loaded = dkrr.load(tmp_path / "m.zarr")
        assert isinstance(loaded.transformer, FrozenEstimator) and loaded.transformer is loaded.transformer_
        assert_allclose(loaded.predict(X), expected, rtol=1e-7, atol=1e-9)
        assert_allclose(loaded.fit(X, y).predict(X), expected, rtol=1e-7, atol=1e-9)
    assert dkrr.plan(X, y, kernel="rbf", transformer=frozen).problem.d == rows.shape[1]
    assert state_of(inner) == before


def test_searches_and_growing_models_take_a_frozen_one():
    X, y = flights()[NUMBERS].to_numpy(float), targets()
    frozen = FrozenEstimator(FROZEN["scaler"])
    rows = frozen.transform(X)
    ours = dkrr.KernelRidgeCV([0.1, 1.0], kernel="rbf", cv=3, transformer=frozen).fit(X, y)
    assert ours.best_params_["transformer"] is frozen
    assert_allclose(ours.predict(X), dkrr.KernelRidgeCV([0.1, 1.0], kernel="rbf", cv=3).fit(rows, y).predict(rows))
    grid = GridSearchCV(dkrr.KernelRidge(kernel="rbf", transformer=frozen), {"alpha": [0.1, 1.0]}, cv=3).fit(X, y)
    assert grid.best_estimator_.transformer_ is frozen and grid.best_params_["alpha"] == ours.best_params_["alpha"]
    for kernel in ("rbf", "linear"):
        growing, halves = dkrr.KernelRidge(kernel=kernel, transformer=frozen), (slice(40), slice(40, None))
        for half in halves:
            growing.partial_fit(X[half], y[half])
        assert_allclose(growing.predict(X), dkrr.KernelRidge(kernel=kernel).fit(rows, y).predict(rows), rtol=1e-8)


def test_a_frozen_class_that_a_file_may_not_name_is_given_again(tmp_path):
    X, y = flights()[NUMBERS].to_numpy(float), targets()
    frozen = FrozenEstimator(FROZEN["of targets"])
    model = dkrr.KernelRidge(kernel="rbf", transformer=frozen).fit(X, y)
    dkrr.save(model, tmp_path / "m.zarr")
    with pytest.raises(InputError, match="TargetEncoder', which a file cannot hold"):
        dkrr.load(tmp_path / "m.zarr")
    for given in (frozen, preprocessing.TargetEncoder):
        assert_allclose(dkrr.load(tmp_path / "m.zarr", transformer=given).predict(X), model.predict(X))


@pytest.mark.parametrize("inner", [StandardScaler(), make_pipeline(preprocessing.Normalizer(), PCA(1))], ids=str)
def test_one_that_was_frozen_before_it_was_fitted_is_refused(inner):
    X = flights()[NUMBERS].to_numpy(float)
    for given in (X, da.from_array(X, chunks=(31, 2))):
        with pytest.raises(InputError, match="never fitted, and its .* was not; expected a fitted one in it"):
            dkrr.KernelRidge(transformer=FrozenEstimator(inner)).fit(given, targets())
    assert not is_fitted(inner)


@pytest.mark.parametrize("is_fitted_before", [True, False])
def test_a_loaded_model_learns_as_the_saved_one_did(tmp_path, is_fitted_before):
    sample, table = flights(50, seed=9)[NUMBERS], flights()[NUMBERS]
    scaler = StandardScaler().fit(sample) if is_fitted_before else StandardScaler()
    dkrr.save(dkrr.KernelRidge(transformer=scaler).fit(sample, targets(50)), tmp_path / "m.zarr")
    loaded = dkrr.load(tmp_path / "m.zarr").fit(table, targets())
    assert_allclose(loaded.transformer_.mean_, (sample if is_fitted_before else table).mean(), rtol=1e-12)


# The steps of the command line are those of scikit-learn, learned from statistics of the blocks.

KINDS = pd.DataFrame(
    {
        "mixed": ["a", None, "b", np.nan],
        "number": [3.0, np.nan, 1.0, np.nan],
        "flag": [True, False, True, False],
        "category": pd.Categorical(list("xyxx")),
        "string": pd.array(list("yyxx"), dtype="string"),
        "rest": np.arange(4.0),
    }
)
NUMBERED = flights()[["distance", "delay", "hour"]]
STANDARD = make_pipeline(SimpleImputer(), StandardScaler())
TABLE_STEPS = make_column_transformer((OneHotEncoder(), TEXT), (STANDARD, list(NUMBERED)))
KIND_STEPS = make_column_transformer((OneHotEncoder(), list(KINDS)[:5]), remainder="passthrough")


@pytest.mark.parametrize(
    ("steps", "expected", "table", "height"),
    [
        (ColumnSteps(standardize=True), StandardScaler(), flights()[NUMBERS], 13),
        (ColumnSteps(impute="mean"), SimpleImputer(), NUMBERED, 13),
        (ColumnSteps(impute="median"), SimpleImputer(strategy="median"), NUMBERED.to_numpy(), 13),
        (ColumnSteps(standardize=True, impute="mean"), STANDARD, NUMBERED.to_numpy(), 13),
        (ColumnSteps(TEXT, standardize=True, impute="mean"), TABLE_STEPS, flights(), 13),
        (ColumnSteps(TEXT, standardize=True, impute="mean"), TABLE_STEPS, flights(), 97),
        (ColumnSteps(list(KINDS)[:5]), KIND_STEPS, KINDS, 1),
    ],
)
def test_steps_are_those_of_all_rows(steps, expected, table, height):
    found, expected = fitted_transformer(steps, Blocks(table, height), PLENTY), clone(expected).fit(table)
    assert_alike(found, expected, table, 1e-8)
    names = [name.split("__")[-1] for name in expected.get_feature_names_out()]
    assert isinstance(table, np.ndarray) or list(found.get_feature_names_out()) == names


def test_medians_need_memory():
    with pytest.raises(InputError, match="strategy='median'.*more than half of the memory limit"):
        fitted_transformer(ColumnSteps(impute="median"), Blocks(flights(2000)[NUMBERS]), "1000 B")


def test_unknown_values_are_refused_or_zeros_where_that_is_asked_for():
    table = flights()[[*TEXT, *NUMBERS]]
    new = table.replace({"carrier": {"UA": "ZZ"}})
    found = fitted_transformer(ColumnSteps(TEXT, takes_unknown=True), Blocks(table), PLENTY)
    assert dense(found.transform(new))[:, 3:6].sum() == (new["carrier"] != "ZZ").sum()
    with pytest.raises(ValueError, match="unknown categories"):
        fitted_transformer(ColumnSteps(TEXT), Blocks(table), PLENTY).transform(new)


def test_rows_of_a_transformer_that_returns_its_input_are_not_overwritten_by_the_next_ones(tmp_path, monkeypatch):
    monkeypatch.setattr("dkrr.data.transformers.block_rows", lambda width: 3000)
    X = np.random.default_rng(0).normal(size=(20_000, 3))
    zarr.create_array(f"{tmp_path}/x.zarr", data=X, chunks=(7000, 3), compressors=None)
    rows = TransformedRows(as_rows(f"{tmp_path}/x.zarr"), preprocessing.FunctionTransformer())
    assert_array_equal(rows.read(0, 9000), X[:9000])
    assert_array_equal(rows.read(9000, 20_000), X[9000:])
    assert_array_equal(rows.take(np.array([3, 8000, 19_999])), X[[3, 8000, 19_999]])


def test_a_transformer_without_what_its_fit_sets_is_named():
    scaler = StandardScaler().fit(np.eye(3))
    del scaler.mean_
    with pytest.raises(InputError, match="in rows 0 and up: it is without its mean_"):
        dkrr.KernelRidge(transformer=FrozenEstimator(scaler)).fit(np.eye(3), np.arange(3.0))
