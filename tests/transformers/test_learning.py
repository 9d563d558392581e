"""Transformers fitted block by block are those that are fitted to all rows at once."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.decomposition import PCA, IncrementalPCA
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler, OneHotEncoder, OrdinalEncoder, RobustScaler, StandardScaler

from dkrr.errors import InputError
from dkrr.transformers.learning import fitted_to_blocks
from tests.transformers.cases import NUMBERS, OF_NUMBERS, OF_THE_TABLE, TEXT, flights

PLENTY = 2**30


def blocks_of(table, height=13):
    rows = table.iloc if hasattr(table, "iloc") else table

    def begin():
        begin.passes += 1
        return (rows[k : k + height] for k in range(0, table.shape[0], height))

    begin.passes = 0
    return begin


def dense(found):
    return found.toarray() if sp.issparse(found) else np.asarray(found, float)


@pytest.mark.parametrize("name", OF_THE_TABLE)
def test_of_tables(name):
    table, make = flights(), OF_THE_TABLE[name]
    expected, found = make().fit(table), fitted_to_blocks(make(), blocks_of(table), PLENTY)
    assert sp.issparse(found.transform(table)) == sp.issparse(expected.transform(table))
    np.testing.assert_allclose(dense(found.transform(table)), dense(expected.transform(table)), rtol=1e-9, atol=1e-9)
    assert list(found.get_feature_names_out()) == list(expected.get_feature_names_out())
    assert [column for *_, column in found.transformers_] == [column for *_, column in expected.transformers_]


@pytest.mark.parametrize("name", OF_NUMBERS)
@pytest.mark.parametrize("is_frame", [True, False])
def test_of_numbers(name, is_frame):
    table, make = flights()[NUMBERS], OF_NUMBERS[name]
    table = table if is_frame else table.to_numpy(float)
    expected, found = make().fit(table), fitted_to_blocks(make(), blocks_of(table), PLENTY)
    np.testing.assert_allclose(dense(found.transform(table)), dense(expected.transform(table)), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("encoder", [OneHotEncoder, OrdinalEncoder])
@pytest.mark.parametrize(
    "columns",
    [
        [["b", "a", "b", "ccc"], [1, 2, 1, 3]],
        [["a", None, "b", np.nan], [3.0, np.nan, 1.0, np.nan]],
        [[True, False, True, False], ["x", "y", "x", "x"]],
    ],
)
def test_the_union_of_categories(encoder, columns):
    table = np.array(columns, object).T
    found = fitted_to_blocks(encoder(), blocks_of(table, 1), PLENTY)
    expected = encoder().fit(table)
    assert list(map(repr, found.categories_)) == list(map(repr, expected.categories_))
    np.testing.assert_array_equal(dense(found.transform(table)), dense(expected.transform(table)))


@pytest.mark.parametrize("kind", ["category", "string"])
def test_categories_of_types_of_pandas(kind):
    table = flights()[TEXT].astype(kind)
    found = fitted_to_blocks(OneHotEncoder(), blocks_of(table), PLENTY)
    expected = OneHotEncoder().fit(table)
    np.testing.assert_array_equal(dense(found.transform(table)), dense(expected.transform(table)))


@pytest.mark.parametrize("missing", [np.nan, -1.0])
def test_means_of_known_values(missing):
    table = np.random.default_rng(0).normal(size=(40, 3))
    table[::3, 0], table[:30, 1], table[:, 2] = missing, missing, missing
    found = fitted_to_blocks(SimpleImputer(missing_values=missing), blocks_of(table, 7), PLENTY)
    with pytest.warns(UserWarning, match="Skipping features"):
        expected = SimpleImputer(missing_values=missing).fit_transform(table)
    with pytest.warns(UserWarning, match="Skipping features"):
        np.testing.assert_allclose(found.transform(table), expected, rtol=1e-14)


def test_a_block_without_values():
    table = np.random.default_rng(0).normal(size=(20, 2))
    table[:5, 1] = np.nan
    with pytest.raises(InputError, match=r"StandardScaler\(\), and a column has no values.*SimpleImputer before"):
        fitted_to_blocks(StandardScaler(), blocks_of(table, 5), PLENTY)
    fitted = fitted_to_blocks(make_pipeline(SimpleImputer(), StandardScaler()), blocks_of(table, 5), PLENTY)
    expected = make_pipeline(SimpleImputer(), StandardScaler()).fit_transform(table)
    np.testing.assert_allclose(fitted.transform(table), expected, rtol=1e-12)


def test_whole_numbers_that_are_missing_later():
    table = pd.DataFrame({"a": [1, 2, 1, 3, 2], "b": [4.0, 5.0, 4.0, 5.0, 4.0]})

    def blocks():
        yield table[:2]
        yield table[2:].astype({"a": float}).replace({"a": {3.0: np.nan}})

    found = fitted_to_blocks(OneHotEncoder(), blocks, PLENTY)
    assert str(found.categories_[0].tolist()) == "[1.0, 2.0, nan]"


def test_batches_are_not_too_small():
    table = np.random.default_rng(0).normal(size=(97, 4)) * [1.0, 2.0, 3.0, 4.0]
    for height in (3, 13, 97):
        found = fitted_to_blocks(IncrementalPCA(4), blocks_of(table, height), PLENTY)
        assert found.n_samples_seen_ == 97
        np.testing.assert_allclose(found.explained_variance_, PCA(4).fit(table).explained_variance_, rtol=1e-10)


def test_sparse_rows():
    table = sp.random_array((60, 5), density=0.4, rng=np.random.default_rng(0), format="csr")
    for make in (MaxAbsScaler, lambda: StandardScaler(with_mean=False), lambda: RobustScaler(with_centering=False)):
        found = fitted_to_blocks(make(), blocks_of(table), PLENTY)
        np.testing.assert_allclose(dense(found.transform(table)), dense(make().fit_transform(table)), rtol=1e-13)


def test_parts_share_passes():
    table = flights()
    for name, passes in (("columns", 3), ("selector", 1), ("infrequent", 1)):
        blocks = blocks_of(table)
        fitted_to_blocks(OF_THE_TABLE[name](), blocks, PLENTY)
        assert blocks.passes == passes, name


def test_what_needs_all_rows_needs_memory_for_its_columns():
    table = flights(2000)[NUMBERS].to_numpy(float)
    assert fitted_to_blocks(PCA(1), blocks_of(table), 4 * table.nbytes).n_samples_ == 2000
    with pytest.raises(InputError, match=r"PCA\(n_components=1\), which learns from all rows at once.*memory limit"):
        fitted_to_blocks(PCA(1), blocks_of(table), table.nbytes)
    assert fitted_to_blocks(StandardScaler(), blocks_of(table), 1).n_samples_seen_ == 2000


def test_errors_name_the_part():
    with pytest.raises(InputError, match="transformer cannot be fitted: StandardScaler: .*could not convert string"):
        fitted_to_blocks(StandardScaler(), blocks_of(flights()), PLENTY)
