"""Transformers fitted block by block are those that are fitted to all rows at once."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.compose import make_column_transformer
from sklearn.decomposition import PCA, IncrementalPCA
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, OneHotEncoder, PolynomialFeatures, StandardScaler

import dkrr
from dkrr.errors import InputError
from dkrr.transformers.inputs import Inputs, MemoryInputs
from dkrr.transformers.learning import ColumnSteps, fitted_transformer, is_fitted
from tests.data.flights import NUMBERS, OF_NUMBERS, OF_THE_TABLE, TEXT, flights, targets

PLENTY = 2**30


class Blocks(Inputs):
    """Rows of a table that are read in blocks, and counted."""

    def __init__(self, table, height=13):
        self._rows = MemoryInputs(table)
        self.height, self.passes = height, 0
        self.shape, self.names = self._rows.shape, self._rows.names

    shape = names = None

    def blocks(self, start, stop, height):
        self.passes += start == 0
        yield from self._rows.blocks(start, stop, self.height)


def dense(found):
    return found.toarray() if sp.issparse(found) else np.asarray(found, float)


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


@pytest.mark.parametrize(
    ("make", "table"),
    [
        *((make, flights()[NUMBERS]) for make in (StandardScaler, MinMaxScaler, MaxAbsScaler)),
        (StandardScaler, flights()[NUMBERS].to_numpy(float)),
        (MaxAbsScaler, SPARSE),
        (lambda: StandardScaler(with_mean=False), SPARSE),
    ],
)
def test_partial_fit_needs_no_memory(make, table):
    assert_alike(fitted_transformer(make(), Blocks(table), 1), make().fit(table), table)


@pytest.mark.parametrize("height", [6, 13, 96, 97])
def test_a_small_last_block_is_fitted_with_the_others(height):
    table = np.random.default_rng(0).normal(size=(97, 4)) * [1.0, 2.0, 3.0, 4.0]
    found = fitted_transformer(IncrementalPCA(4), Blocks(table, height), PLENTY)
    assert found.n_samples_seen_ == 97
    assert_allclose(found.mean_, table.mean(axis=0), rtol=1e-10)


def test_a_column_of_a_block_without_values_is_refused():
    table = np.random.default_rng(0).normal(size=(20, 2))
    table[:5, 1] = np.nan
    with pytest.raises(InputError, match=r"StandardScaler\(\), and a column has no values.*fit it first on a sample"):
        fitted_transformer(StandardScaler(), Blocks(table, 5), PLENTY)


@pytest.mark.parametrize("is_text", [True, False])
def test_what_needs_all_rows_needs_memory_for_them(is_text):
    table = flights(2000)[TEXT] if is_text else flights(2000)[NUMBERS].to_numpy(float)
    transformer, inputs = OneHotEncoder() if is_text else PCA(1), Blocks(table)
    size = table.memory_usage(deep=True).sum() if is_text else table.nbytes
    with pytest.raises(InputError, match="learns from all rows at once.*fit it first on a sample, and give the fitted"):
        fitted_transformer(transformer, inputs, size)
    assert is_text or inputs.passes == 0, "of numbers it is known before any are read"
    assert is_fitted(fitted_transformer(transformer, inputs, 4 * size))


def test_a_fitted_one_is_used_as_it_is():
    sample, table = flights(50, seed=9)[NUMBERS], flights()[NUMBERS]
    scaler = StandardScaler().fit(sample)
    expected = dkrr.KernelRidge(kernel="rbf").fit(scaler.transform(table), targets())
    for given in (scaler, FrozenEstimator(scaler), make_pipeline(scaler, "passthrough")):
        assert is_fitted(given) and fitted_transformer(given, Blocks(table), 1) is given
        model = dkrr.KernelRidge(kernel="rbf", transformer=given).fit(table, targets())
        assert model.transformer_ is given
        assert_allclose(model.predict(table), expected.predict(scaler.transform(table)), rtol=1e-9)
    for unfitted in (StandardScaler(), make_pipeline(StandardScaler(), "passthrough"), PolynomialFeatures()):
        model = dkrr.KernelRidge(kernel="rbf", transformer=unfitted).fit(table, targets())
        assert model.transformer_ is not unfitted and not is_fitted(unfitted)


@pytest.mark.parametrize("is_fitted_before", [True, False])
def test_a_loaded_model_learns_as_the_saved_one_did(tmp_path, is_fitted_before):
    sample, table = flights(50, seed=9)[NUMBERS], flights()[NUMBERS]
    scaler = StandardScaler().fit(sample) if is_fitted_before else StandardScaler()
    dkrr.save(dkrr.KernelRidge(transformer=scaler).fit(sample, targets(50)), tmp_path / "m.zarr")
    loaded = dkrr.load(tmp_path / "m.zarr").fit(table, targets())
    assert_allclose(loaded.transformer_.mean_, (sample if is_fitted_before else table).mean(), rtol=1e-12)


# The steps of the command line are those of scikit-learn, learned from statistics of the blocks.


@pytest.mark.parametrize("height", [13, 97])
def test_one_hot_impute_and_standardize_are_those_of_all_rows(height):
    table = flights()
    found = fitted_transformer(ColumnSteps(TEXT, standardize=True, impute="mean"), Blocks(table, height), 1)
    rest = [name for name in table if name not in TEXT]
    numbers = (make_pipeline(SimpleImputer(), StandardScaler()), rest)
    expected = make_column_transformer((OneHotEncoder(), TEXT), numbers, verbose_feature_names_out=False).fit(table)
    assert_alike(found, expected, table, 1e-8)
    assert list(found.get_feature_names_out()) == list(expected.get_feature_names_out())


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (ColumnSteps(standardize=True), StandardScaler()),
        (ColumnSteps(impute="mean"), SimpleImputer()),
        (ColumnSteps(impute="median"), SimpleImputer(strategy="median")),
        (ColumnSteps(standardize=True, impute="mean"), make_pipeline(SimpleImputer(), StandardScaler())),
    ],
    ids=str,
)
def test_steps_of_numbers_are_those_of_all_rows(steps, expected):
    frame = flights()[["distance", "hour", "delay"] if steps.impute else NUMBERS].astype(float)
    for table in (frame, frame.to_numpy()):
        assert_alike(fitted_transformer(steps, Blocks(table), PLENTY), expected.fit(table), table, 1e-9)


def test_medians_need_memory():
    with pytest.raises(InputError, match="strategy='median'.*more than half of the memory limit"):
        fitted_transformer(ColumnSteps(impute="median"), Blocks(flights(2000)[NUMBERS]), 1000)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (["b", "a", "b", "ccc"], [1, 2, 1, 3]),
        (["a", None, "b", np.nan], [3.0, np.nan, 1.0, np.nan]),
        ([True, False, True, False], pd.Series(list("xyxx"), dtype="category")),
        (pd.Series(list("xyxx"), dtype="string"), list("xyxx")),
    ],
)
def test_categories_of_all_blocks_are_encoded(a, b):
    table = pd.DataFrame({"a": a, "b": b, "c": np.arange(4.0)})
    found = fitted_transformer(ColumnSteps(["a", "b"]), Blocks(table, 1), PLENTY)
    expected = make_column_transformer((OneHotEncoder(), ["a", "b"]), remainder="passthrough").fit(table)
    assert_array_equal(dense(found.transform(table)), dense(expected.transform(table)))


def test_unknown_values_are_refused_or_zeros_where_that_is_asked_for():
    table = flights()[[*TEXT, *NUMBERS]]
    new = table.replace({"carrier": {"UA": "ZZ"}})
    found = fitted_transformer(ColumnSteps(TEXT, takes_unknown=True), Blocks(table), PLENTY)
    assert dense(found.transform(new))[:, 3:6].sum() == (new["carrier"] != "ZZ").sum()
    with pytest.raises(ValueError, match="unknown categories"):
        fitted_transformer(ColumnSteps(TEXT), Blocks(table), PLENTY).transform(new)
