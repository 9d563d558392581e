"""Estimators with a transformer are those of a Pipeline with the same one."""

import dask.array as da
import joblib
import numpy as np
import pytest
import zarr
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler, TargetEncoder

import dkrr
from dkrr.errors import InputError
from dkrr.kernels import BagOfWords
from tests.transformers.cases import NUMBERS, OF_THE_TABLE, flights, of_columns, targets

ESTIMATORS = {
    "ridge": lambda **more: dkrr.KernelRidge(kernel="rbf", **more),
    "primal": lambda **more: dkrr.KernelRidge(alpha=0.1, fit_intercept=True, **more),
    "ridge cv": lambda **more: dkrr.KernelRidgeCV([0.1, 1.0], **more),
    "logistic": lambda **more: dkrr.KernelLogisticRegression(kernel="rbf", **more),
    "logistic cv": lambda **more: dkrr.KernelLogisticRegressionCV([0.1, 1.0], kernel="rbf", cv=2, **more),
}


def y_of(name):
    return np.where(targets() > 0, "late", "on time") if "logistic" in name else targets()


def outputs(model, X):
    return np.asarray(getattr(model, "predict_proba", model.predict)(X))


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_table_in_memory(name, tmp_path):
    X, y = flights(), y_of(name)
    model = ESTIMATORS[name](transformer=of_columns()).fit(X, y)
    rows = of_columns().fit_transform(X)
    expected = ESTIMATORS[name]().fit(rows, y)
    np.testing.assert_allclose(outputs(model, X), outputs(expected, rows), rtol=1e-10, atol=1e-12)
    assert model.score(X, y) == pytest.approx(expected.score(rows, y))
    assert model.n_features_in_ == 5 and list(model.feature_names_in_) == list(X)
    assert hasattr(model, "transformer_") and not hasattr(model.transformer, "transformers_")
    dkrr.save(model, tmp_path / "m.zarr")
    joblib.dump(model, tmp_path / "m.joblib")
    for again in (dkrr.load(tmp_path / "m.zarr", transformer=of_columns()), joblib.load(tmp_path / "m.joblib")):
        np.testing.assert_allclose(outputs(again, X), outputs(model, X), rtol=1e-10, atol=1e-12)
        with pytest.raises(InputError, match="feature names should match"):
            again.predict(X[list(X)[::-1]])
        with pytest.raises(InputError, match="feature names should match"):
            again.predict(X[list(X)[:4]])


LAZY = {
    "dask": lambda X, _: da.from_array(X, chunks=(31, 1)),
    "zarr": lambda X, folder: zarr.array(X, store=str(folder / "x.zarr"), chunks=(20, 2)),
    "path": lambda X, folder: str(LAZY["zarr"](X, folder).store.root),
}


@pytest.mark.parametrize("kind", LAZY)
@pytest.mark.parametrize("name", ESTIMATORS)
def test_rows_that_are_read_in_blocks(name, kind, tmp_path):
    X, y = flights()[NUMBERS].to_numpy(float), y_of(name)
    lazy = LAZY[kind](X, tmp_path)
    model = ESTIMATORS[name](transformer="standardize").fit(lazy, y)
    expected = ESTIMATORS[name](transformer=StandardScaler()).fit(X, y)
    found = getattr(model, "predict_proba", model.predict)(lazy)
    assert isinstance(found, da.Array)
    np.testing.assert_allclose(found.compute(), outputs(expected, X), rtol=1e-5)
    assert model.n_features_in_ == 2 and not hasattr(model, "feature_names_in_")


def test_rows_are_staged_for_tiles_and_workers(tmp_path):
    X, y = flights()[NUMBERS].to_numpy(float), targets()
    lazy = da.from_array(X, chunks=(31, 1))
    for transformer in ("standardize", make_pipeline(StandardScaler(), OneHotEncoder(handle_unknown="ignore"))):
        settings = {"kernel": "rbf", "transformer": transformer, "tile": 40}
        expected = dkrr.KernelRidge(**settings).fit(X, y).predict(X)
        model = dkrr.KernelRidge(**settings, store=str(tmp_path / f"{type(transformer).__name__}")).fit(lazy, y)
        np.testing.assert_allclose(model.predict(X), expected, rtol=1e-9)
        again = clone(model).fit(lazy, y)
        assert again.solve_result_.bytes_written < model.solve_result_.bytes_written
        np.testing.assert_array_equal(again.predict(X), model.predict(X))


def test_sparse_rows_stay_sparse():
    X, y = flights(), targets()
    transformer = OF_THE_TABLE["sparse"]()
    model = dkrr.KernelRidge(kernel="rbf", transformer=transformer).fit(X, y)
    assert model.X_fit_.format == "csr" and model.X_fit_.shape == (97, 6)
    expected = dkrr.KernelRidge(kernel="rbf").fit(transformer.fit_transform(X).toarray(), y)
    np.testing.assert_allclose(model.predict(X), expected.predict(transformer.transform(X).toarray()), rtol=1e-9)


def test_standard_deviations():
    X, y = flights()[NUMBERS].to_numpy(float), targets()
    scaled = StandardScaler().fit_transform(X)
    expected = dkrr.KernelRidge(kernel="rbf").fit(scaled, y).predict(scaled, return_std=True)
    model = dkrr.KernelRidge(kernel="rbf", transformer="standardize").fit(X, y)
    for rows in (X, da.from_array(X, chunks=(31, 1))):
        for found, value in zip(model.predict(rows, return_std=True), expected, strict=True):
            np.testing.assert_allclose(np.asarray(found), value, rtol=1e-9)
    np.testing.assert_allclose(
        model.predict_interval(X)[0], dkrr.KernelRidge(kernel="rbf").fit(scaled, y).predict_interval(scaled)[0]
    )


def test_another_fit_forgets_the_transformer():
    X, y = flights()[NUMBERS].to_numpy(float), targets()
    model = dkrr.KernelRidge(kernel="rbf", transformer=PCA(1)).fit(flights()[NUMBERS], y)
    model.set_params(transformer=None).fit(X, y)
    assert not hasattr(model, "transformer_") and not hasattr(model, "feature_names_in_")
    np.testing.assert_array_equal(model.predict(X), dkrr.KernelRidge(kernel="rbf").fit(X, y).predict(X))


class TestRefused:
    @pytest.mark.parametrize(
        ("transformer", "message"),
        [
            ("scale", "transformer is 'scale'; expected None, 'standardize'"),
            (StandardScaler, r"transformer is the class StandardScaler; .*write StandardScaler\(\)"),
            (5, "transformer is 5; expected None"),
            (dkrr.KernelRidge(), "transformer is KernelRidge.*; expected None"),
            (TargetEncoder(), "which learns from the targets; expected one of X alone"),
        ],
        ids=str,
    )
    def test_what_is_not_a_transformer(self, transformer, message):
        with pytest.raises(InputError, match=message):
            dkrr.KernelRidge(transformer=transformer).fit(flights()[NUMBERS], targets())

    def test_kernels_that_do_not_take_rows_of_numbers(self):
        for kernel in ("precomputed", BagOfWords()):
            with pytest.raises(
                InputError, match="transformer is 'standardize' with kernel=.*; expected a kernel of rows"
            ):
                dkrr.KernelRidge(kernel=kernel, transformer="standardize").fit(np.eye(3), [1.0, 2.0, 3.0])

    def test_missing_values_behind_the_transformer(self):
        with pytest.raises(InputError, match=r"row \d+ has it in column 'delay' behind the transformer.*SimpleImputer"):
            dkrr.KernelRidge(transformer="standardize").fit(flights()[["distance", "delay"]], targets())

    def test_text_behind_the_transformer(self):
        for transformer in (OF_THE_TABLE["selector"]().set_params(transformers=[("pass", "passthrough", ["origin"])]),):
            with pytest.raises(InputError, match="'pass__origin' behind the transformer does not hold numbers.*OneHot"):
                dkrr.KernelRidge(transformer=transformer).fit(flights(), targets())
        with pytest.raises(
            InputError, match="transformer cannot be fitted: StandardScaler: .*could not convert string"
        ):
            dkrr.KernelRidge(transformer="standardize").fit(flights(), targets())

    def test_categories_that_the_fit_did_not_see(self):
        model = dkrr.KernelRidge(transformer=OneHotEncoder()).fit(flights()[["origin"]], targets())
        new = flights()[["origin"]].replace("LGA", "SFO")
        with pytest.raises(
            InputError, match="column 'origin' of X holds 'SFO' in row 94, and .* on 'EWR', 'JFK', 'LGA'"
        ):
            model.predict(new)

    @pytest.mark.parametrize("name", sorted(OF_THE_TABLE))
    def test_the_column_is_named_behind_any_other_transformers(self, name):
        model = dkrr.KernelRidge(transformer=OF_THE_TABLE[name]()).fit(flights(), targets())
        new = flights()
        new.loc[40, "carrier"] = "ZZ"
        with pytest.raises(InputError, match="column 'carrier' of X holds 'ZZ' in row 40, .* on 'AA', 'B6', 'UA'"):
            model.predict(new)
