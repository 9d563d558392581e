"""Estimators with a transformer are those of a Pipeline with the same one, in memory, in blocks and from tables."""

import dask.array as da
import joblib
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.decomposition import PCA
from sklearn.preprocessing import OneHotEncoder, StandardScaler, TargetEncoder

import dkrr
from dkrr.errors import InputError
from dkrr.kernels import BagOfWords
from tests.data.flights import NUMBERS, OF_THE_TABLE, flights, of_columns, targets
from tests.inputs import table as given_as

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


def csv(folder, table):
    table.to_csv(folder / "t.csv", index=False)
    return str(folder / "t.csv")


CONTAINERS = {
    "parquet": parquet,
    "csv": csv,
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
    assert_allclose(outputs(of_file, X), outputs(model, X), rtol=1e-5)
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
        assert_allclose(outputs(model, lazy), outputs(expected, X), rtol=1e-5)
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
    assert model.score(path, "y") == pytest.approx(expected.score(flights(), targets()))
    found = dkrr.plan(path, "y", transformer=of_columns(), kernel="rbf")
    assert (found.problem.n, found.problem.d) == (97, 11)  # "w" was not taken as weights here
    with pytest.raises(InputError, match="transformer is given without X"):
        dkrr.plan(n=5, d=3, transformer="standardize")
    with pytest.raises(InputError, match="X has no column 'carrier'"):
        model.predict(parquet(tmp_path, flights().drop(columns="carrier")))


@pytest.mark.parametrize("name", ["sparse", "selector", "standardize"])
def test_rows_are_copied_for_tiles_and_the_copy_is_used_again(name, tmp_path):
    numbers = flights()[NUMBERS].to_numpy()
    if name == "standardize":
        transformer, whole, lazy = name, numbers, da.from_array(numbers, chunks=(31, 1))
    else:
        transformer, whole, lazy = OF_THE_TABLE[name](), flights(), parquet(tmp_path, flights())
    settings = {"kernel": "rbf", "gamma": 1e-6, "transformer": transformer}
    expected = dkrr.KernelRidge(**settings).fit(whole, targets())
    model = dkrr.KernelRidge(**settings, tile=40, store=str(tmp_path / name)).fit(lazy, targets())
    assert_allclose(model.predict(lazy), expected.predict(whole), **LOOSE)
    again = clone(model).fit(lazy, targets())
    assert again.solve_result_.bytes_written < model.solve_result_.bytes_written
    assert_array_equal(again.dual_coef_, model.dual_coef_)


def test_sparse_rows_stay_sparse():
    X, transformer = flights(), OF_THE_TABLE["sparse"]()
    model = dkrr.KernelRidge(kernel="rbf", transformer=transformer).fit(X, targets())
    assert model.X_fit_.format == "csr" and model.X_fit_.shape == (97, 6)
    rows = transformer.fit_transform(X).toarray()
    assert_allclose(model.predict(X), dkrr.KernelRidge(kernel="rbf").fit(rows, targets()).predict(rows), rtol=1e-9)


def test_standard_deviations_and_intervals_are_those_of_the_transformed_rows():
    X, y = flights()[NUMBERS].to_numpy(float), targets()
    scaled = StandardScaler().fit_transform(X)
    plain = dkrr.KernelRidge(kernel="rbf").fit(scaled, y)
    model = dkrr.KernelRidge(kernel="rbf", transformer="standardize").fit(X, y)
    for rows in (X, da.from_array(X, chunks=(31, 1))):
        expected = np.stack(plain.predict(scaled, return_std=True))
        assert_allclose(np.stack(model.predict(rows, return_std=True)), expected, rtol=1e-9)
    assert_allclose(model.predict_interval(X)[0], plain.predict_interval(scaled)[0])


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
    "of targets": (TargetEncoder(), NUMBERS, "which learns from the targets; expected one of X alone"),
    "missing": ("standardize", ["distance", "delay"], r"row \d+ has it in column 'delay' behind .*SimpleImputer"),
    "passed": (PASSED, list(flights()), "passthrough__origin' behind the transformer does not hold numbers.*OneHot"),
    "all": ("standardize", list(flights()), "cannot be fitted: StandardScaler: .*could not convert string"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_not_a_transformer_of_these_columns_is_refused(what):
    transformer, columns, message = REFUSED[what]
    with pytest.raises(InputError, match=message):
        dkrr.KernelRidge(transformer=transformer).fit(flights()[columns], targets())


@pytest.mark.parametrize("kind", ["pandas", "dask"])
def test_a_missing_value_is_named_by_its_row_in_any_partition(kind):
    table = flights()[NUMBERS].astype(float)
    table.loc[71, "hour"] = np.nan
    rows = table if kind == "pandas" else CONTAINERS["dask"](None, table)
    with pytest.raises(InputError, match="row 71 has it in column 'hour' behind the transformer"):
        dkrr.KernelRidge(transformer="standardize").fit(rows, targets())


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
