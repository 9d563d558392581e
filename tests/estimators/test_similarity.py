"""Estimators on documents and graphs: in every place, saved and loaded, resumed, in both forms."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

import dkrr
from dkrr import KernelLogisticRegression, KernelRidge
from dkrr.errors import InputError, InputTypeError, StoreError
from dkrr.kernels import RBF, BagOfWords, Columns, Graph, RandomWalk

PLACES = {"memory": {}, "tiles": {"tile": 25}, "cg": {"solver": "cg"}}
every_place = pytest.mark.parametrize("place", PLACES)

SPAM = ["cash", "prize", "win", "free", "now", "call"]
HAM = ["call", "home", "dinner", "tonight", "meeting", "late", "sorry", "love", "see", "you"]


def documents(n=60, seed=0):
    rng = np.random.default_rng(seed)
    spam = rng.random(n) < 0.4
    texts = [" ".join(rng.choice(SPAM if s else HAM, size=rng.integers(2, 8))) for s in spam]
    return texts, np.where(spam, "spam", "ham")


def molecules(n=40, seed=0):
    """Chains of atoms with a side atom here and there; the target counts those."""
    rng = np.random.default_rng(seed)
    graphs, targets = [], []
    for _ in range(n):
        length = int(rng.integers(3, 7))
        sides = rng.random(length) < 0.4
        labels, edges = ["C"] * length, [(k, k + 1) for k in range(length - 1)]
        for k in np.flatnonzero(sides):
            edges.append((int(k), len(labels)))
            labels.append("O")
        graphs.append(Graph(len(labels), tuple(edges), tuple(labels)))
        targets.append(float(sides.sum()))
    return graphs, np.array(targets)


@every_place
@pytest.mark.parametrize(
    "kernel", [BagOfWords(), BagOfWords("counts", cosine=False), BagOfWords(n_hashed=2**12)], ids=str
)
def test_documents(tmp_path, kernel, place):
    texts, labels = documents()
    y = (labels == "spam").astype(float)
    new = ["win cash now", "dinner at home", "", "nothing of this is known"]
    known = kernel.fitted(texts)
    K, k = known(texts), known(new, texts)
    expected = k @ np.linalg.solve(K + 0.1 * np.eye(60), y)
    for form in ("dual", "primal"):
        model = KernelRidge(alpha=0.1, kernel=kernel, form=form, tol=1e-10, **PLACES[place]).fit(texts, y)
        assert_allclose(model.predict(new), expected, atol=1e-7)
        dkrr.save(model, tmp_path / f"{form}.zarr")
        assert_allclose(dkrr.load(tmp_path / f"{form}.zarr").predict(new), model.predict(new), rtol=0, atol=1e-12)


@every_place
def test_classes_of_documents(place):
    texts, labels = documents()
    model = KernelLogisticRegression(alpha=0.01, kernel=BagOfWords(), **PLACES[place]).fit(pd.Series(texts), labels)
    new, expected = documents(seed=1)
    assert model.score(new, expected) > 0.9


def test_a_loaded_model_learns_a_vocabulary_of_its_own(tmp_path):
    texts, labels = documents()
    model = KernelLogisticRegression(alpha=0.01, kernel=BagOfWords()).fit(texts, labels)
    dkrr.save(model, tmp_path / "m.zarr")
    again = dkrr.load(tmp_path / "m.zarr").fit(["alpha beta", "gamma delta"] * 5, [0, 1] * 5)
    assert again.predict(["beta"]) == [0] and again.predict(["gamma"]) == [1]


@every_place
def test_graphs(tmp_path, place):
    graphs, y = molecules()
    new, truth = molecules(12, seed=1)
    kernel = RandomWalk(decay=0.1)
    model = KernelRidge(alpha=1e-4, kernel=kernel, fit_intercept=True, **PLACES[place]).fit(graphs, y)
    K = kernel(graphs)
    whole = np.block([[K + 1e-4 * np.eye(40), np.ones((40, 1))], [np.ones((1, 40)), np.zeros((1, 1))]])
    solved = np.linalg.solve(whole, np.append(y, 0.0))
    assert_allclose(model.predict(new), kernel(new, graphs) @ solved[:-1] + solved[-1], atol=1e-6)
    assert np.corrcoef(model.predict(new), truth)[0, 1] > 0.9
    dkrr.save(model, tmp_path / "m.zarr")
    assert_allclose(dkrr.load(tmp_path / "m.zarr").predict(new), model.predict(new), rtol=0, atol=1e-12)


def test_a_run_on_graphs_goes_on_and_belongs_to_them(tmp_path):
    graphs, y = molecules()
    settings = {"alpha": 0.1, "kernel": RandomWalk(decay=0.1), "tile": 15, "store": str(tmp_path / "run.zarr")}
    first = KernelRidge(**settings).fit(graphs, y)
    again = KernelRidge(**settings).fit(graphs, y)
    assert np.array_equal(first.dual_coef_, again.dual_coef_)
    assert not [t.key for t in again.solve_result_.record.tasks if t.key.startswith("L-")]
    with pytest.raises(StoreError, match="another problem"):
        KernelRidge(**settings).fit([*graphs[1:], graphs[0]], y)


def test_a_table_of_text_graphs_and_numbers(tmp_path):
    texts, labels = documents(40)
    graphs, target = molecules()
    numbers = np.random.default_rng(0).normal(size=(40, 2))
    table = pd.DataFrame({"text": texts, "graph": graphs, "a": numbers[:, 0], "b": numbers[:, 1]})
    y = target + (labels == "spam") + numbers[:, 0]
    parts = BagOfWords().fitted(texts)(texts) + RandomWalk(decay=0.1)(graphs) + RBF(0.5)(numbers)
    kernel = Columns(BagOfWords(), "text") + Columns(RandomWalk(decay=0.1), "graph") + Columns(RBF(0.5), ["a", "b"])
    for place in PLACES.values():
        model = KernelRidge(alpha=0.1, kernel=kernel, tol=1e-10, **place).fit(table, y)
        assert_allclose(model.dual_coef_, np.linalg.solve(parts + 0.1 * np.eye(40), y), atol=1e-7)
    dkrr.save(model, tmp_path / "m.zarr")
    assert_allclose(dkrr.load(tmp_path / "m.zarr").predict(table[:5]), model.predict(table[:5]), atol=1e-12)


@pytest.mark.parametrize(
    ("kernel", "X", "error", "message"),
    [
        (BagOfWords(), ["", " "], InputError, "none of the 2 documents has a term"),
        (BagOfWords(), ["a word", None], InputTypeError, r"document 1 \(counted from 0\) is missing"),
        (RandomWalk(decay=9.0), molecules(2)[0], InputError, "decay is 9; expected less than"),
        (RandomWalk(decay=0.1), ["no graph", "either"], InputTypeError, "graph 0: is of type builtins.str"),
    ],
)
def test_bad_rows(kernel, X, error, message):
    with pytest.raises(error, match=message):
        KernelRidge(kernel=kernel).fit(X, [0.0, 1.0])


@every_place
def test_the_norm_is_that_of_the_function(place):
    rng = np.random.default_rng(0)
    X, y, weights = rng.normal(size=(60, 3)), rng.normal(size=(60, 2)), rng.uniform(0, 2, 60)
    weights[7] = 0.0
    for kernel in ("rbf", "linear"):
        for settings in ({}, {"fit_intercept": True}):
            model = KernelRidge(alpha=[0.1, 1.0], kernel=kernel, tol=1e-12, **settings, **PLACES[place])
            model.fit(X, y, sample_weight=weights)
            K = RBF(1 / 3)(X) if kernel == "rbf" else X @ X.T
            expected = np.sqrt(np.einsum("it,ij,jt->t", model.dual_coef_, K, model.dual_coef_))
            assert_allclose(model.norm_, expected, rtol=1e-6)
