"""Estimators on rows that are no vectors: kernel functions of objects, and tables with text beside numbers."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

import dkrr
from dkrr import KernelLogisticRegression, KernelRidge
from dkrr.errors import InputError, KernelFunctionError
from dkrr.features import ColumnsMap, IdentityMap
from dkrr.kernels import RBF, BagOfWords, CallableKernel, Columns

WORDS = ["apple", "banana", "cherry", "date", "elder", "fig", "grape", "lemon", "mango", "nut"] * 6
y = np.array([len(w) for w in WORDS], float)
PLACES = {"memory": {}, "tiles": {"tile": 25}, "cg": {"solver": "cg"}}


def letters(a, b):
    return np.array([[len(set(x) & set(z)) / max(len(set(x) | set(z)), 1) for z in b] for x in a])


@pytest.mark.parametrize("place", PLACES)
def test_a_function_of_strings(place):
    model = KernelRidge(alpha=0.1, kernel=letters, **PLACES[place]).fit(WORDS, y)
    K = letters(WORDS, WORDS)
    alpha = np.linalg.solve(K + 0.1 * np.eye(60), y)
    assert_allclose(model.dual_coef_, alpha, atol=1e-6)
    assert_allclose(model.predict(["tea", "figs"]), letters(["tea", "figs"], WORDS) @ alpha, atol=1e-6)


def test_classes_of_strings(tmp_path):
    model = KernelLogisticRegression(alpha=0.01, kernel=letters).fit(pd.Series(WORDS), np.where(y > 4, "long", "short"))
    assert model.score(WORDS, np.where(y > 4, "long", "short")) > 0.9
    dkrr.save(model, tmp_path / "m.zarr")
    again = dkrr.load(tmp_path / "m.zarr", kernel=letters)
    assert_allclose(again.predict_proba(["tea", "figs"]), model.predict_proba(["tea", "figs"]), rtol=0, atol=0)
    refit = again.fit(WORDS, y > 4)
    assert refit.score(WORDS, y > 4) > 0.9


def test_a_run_on_objects_is_kept_and_goes_on(tmp_path):
    settings = {"alpha": 0.1, "kernel": letters, "tile": 25, "store": str(tmp_path / "run.zarr")}
    first = KernelRidge(**settings).fit(WORDS, y)
    again = KernelRidge(**settings).fit(WORDS, y)
    assert np.array_equal(first.dual_coef_, again.dual_coef_)
    assert not [t.key for t in again.solve_result_.record.tasks if t.key.startswith("L-")]
    with pytest.raises(dkrr.errors.StoreError, match="another problem"):
        KernelRidge(**settings).fit([*WORDS[:-1], "other"], y)


@pytest.mark.parametrize("place", PLACES)
def test_a_table_with_text_beside_numbers(tmp_path, place):
    rng = np.random.default_rng(1)
    table = pd.DataFrame({"word": WORDS, "a": rng.normal(size=60), "b": rng.normal(size=60)})
    kernel = Columns(CallableKernel(letters), "word") + Columns(RBF(0.5), ["a", "b"])
    target = y + table["a"].to_numpy()
    model = KernelRidge(alpha=0.1, kernel=kernel, **PLACES[place]).fit(table, target)
    K = letters(WORDS, WORDS) + RBF(0.5)(table[["a", "b"]].to_numpy())
    assert_allclose(model.dual_coef_, np.linalg.solve(K + 0.1 * np.eye(60), target), atol=1e-6)
    new = table[["b", "word", "a"]].sample(frac=0.3, random_state=0)  # by name, in any order
    dkrr.save(model, tmp_path / "m.zarr")
    again = dkrr.load(tmp_path / "m.zarr", kernel=letters)
    assert_allclose(again.predict(new), model.predict(new), rtol=0, atol=0)
    with pytest.raises(InputError, match="no column 'word'"):
        model.predict(table[["a", "b"]])


@pytest.mark.parametrize("place", PLACES)
def test_a_failing_function_names_the_block_and_its_rows(place):
    def picky(a, b):
        if "nut" in a:
            raise KeyError("no nuts")
        return letters(a, b)

    words = sorted(WORDS)  # nuts are the last
    with pytest.raises(KernelFunctionError, match=r"picky.* failed on a block of \d+ × \d+ rows: KeyError: 'no nuts'"):
        KernelRidge(alpha=0.1, kernel=picky, **PLACES[place]).fit(words, y)
    if place == "tiles":
        with pytest.raises(KernelFunctionError, match=r"in the block of rows \d+ to 59 and 0 to \d+"):
            KernelRidge(alpha=0.1, kernel=picky, tile=25).fit(words, y)


def test_objects_that_cannot_be_stored():
    with pytest.raises(InputError, match="object 0 of X is a object, which cannot be stored"):
        KernelRidge(kernel=letters).fit([object()] * 60, y)


def products(a, b):
    assert isinstance(a, np.ndarray)
    return a @ b.T


@pytest.mark.parametrize(
    "kernel",
    [CallableKernel(products) + RBF(0.5), 0.5 * CallableKernel(products), Columns(RBF(0.3))],
    ids=["sum", "multiple", "columns"],
)
def test_tables_and_lists_of_numbers_are_numbers(kernel):
    X = np.random.default_rng(0).normal(size=(20, 3))
    table, y = pd.DataFrame(X, columns=list("abc")), X[:, 0]
    expected = KernelRidge(kernel=kernel).fit(X, y).predict(X)
    model = KernelRidge(kernel=kernel).fit(table, y)
    assert model.n_features_in_ == 3 and list(model.feature_names_in_) == list("abc")
    assert_allclose(model.predict(table), expected, rtol=1e-12)
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(table[["c", "b", "a"]])
    assert_allclose(KernelRidge(kernel=kernel).fit(X.tolist(), y).predict(X.tolist()), expected, rtol=1e-12)
    assert_allclose(KernelRidge(kernel=kernel).fit(X.astype(object), y).predict(X), expected, rtol=1e-12)


def test_a_map_of_columns_of_a_table():
    X = np.random.default_rng(0).normal(size=(20, 3))
    kernel = ColumnsMap(IdentityMap(), start=1, stop=3)
    expected = KernelRidge(kernel=kernel).fit(X, X[:, 0]).predict(X)
    table = pd.DataFrame(X, columns=list("abc"))
    assert_allclose(KernelRidge(kernel=kernel).fit(table, X[:, 0]).predict(table), expected, rtol=1e-12)


def test_lists_of_numbers_that_happen_to_be_as_long():
    def overlap(a, b):
        return np.array([[float(len(set(x) & set(z))) for z in b] for x in a])

    rows = [[1, 2, 3], [1, 2], [4]] * 5
    model = KernelRidge(kernel=overlap).fit(rows, np.arange(15.0))
    assert model.predict([[1, 2], [4, 5]]).shape == (2,)
    with pytest.raises(InputError, match="X is empty"):
        model.predict([])


def test_one_long_text_among_short_ones():
    texts = ["a"] * 2000 + ["x" * 1_000_000]
    assert CallableKernel(letters).encode(texts).nnz < 2_000_000


def test_a_column_of_numbers_for_a_function():
    table = pd.DataFrame({"a": np.arange(6.0), "w": WORDS[:6]})
    kernel = Columns(CallableKernel(products), "a") + Columns(CallableKernel(letters), ["w"])
    assert_allclose(
        kernel.fitted(table)(table), np.outer(table["a"], table["a"]) + letters(WORDS[:6], WORDS[:6]), atol=1e-12
    )
    with pytest.raises(InputError, match="column 'a' holds numbers"):
        Columns(BagOfWords(), "a").fitted(table)


def test_gram_and_plan_of_objects():
    assert_allclose(dkrr.gram(WORDS[:9], kernel=letters).compute(), letters(WORDS[:9], WORDS[:9]))
    known = BagOfWords().fitted(WORDS)
    assert_allclose(dkrr.gram(WORDS[:9], WORDS[:4], kernel=known).compute(), known(WORDS[:9], WORDS[:4]))
    assert dkrr.plan(WORDS, y, kernel=letters).form == "dual"


def test_a_function_that_fails_at_prediction_names_the_row():
    def picky(a, b):
        if "nut" in a:
            raise KeyError("no nuts")
        return letters(a, b)

    model = KernelRidge(kernel=picky).fit(["tea", "milk"] * 3, np.arange(6.0))
    with pytest.raises(KernelFunctionError, match="rows 1024 to 1499 and 0 to 5"):
        model.predict(["tea"] * 1400 + ["nut"] * 100)


@pytest.mark.parametrize(
    ("kernel", "X", "message"),
    [(RBF() + BagOfWords(), WORDS, "takes rows of numbers"), (RBF() + CallableKernel(letters), WORDS, "takes rows of")],
    ids=["text", "function"],
)
def test_parts_that_cannot_take_the_data(kernel, X, message):
    with pytest.raises(InputError, match=message):
        KernelRidge(kernel=kernel).fit(X, y)
