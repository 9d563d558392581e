"""Estimators on rows that are no vectors: kernel functions of objects, and tables with text beside numbers."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

import dkrr
from dkrr import KernelLogisticRegression, KernelRidge
from dkrr.errors import InputError, KernelFunctionError
from dkrr.kernels import RBF, CallableKernel, Columns

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
        with pytest.raises(KernelFunctionError, match="in the block of rows 50 to 59 and 0 to 24"):
            KernelRidge(alpha=0.1, kernel=picky, tile=25).fit(words, y)


def test_objects_that_cannot_be_stored():
    with pytest.raises(InputError, match="object 0 of X is a object, which cannot be stored"):
        KernelRidge(kernel=letters).fit([object()] * 60, y)
