"""Fits on rows that are not vectors: documents, graphs, objects of a kernel function, tables with all of these.

Objects become rows of numbers and back: nothing is lost, nothing pickled. Kernels of columns make kernels of tables.
"""

import re
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.feature_extraction.text import HashingVectorizer, TfidfVectorizer

import dkrr
from dkrr import KernelLogisticRegression, KernelRidge
from dkrr.errors import InputError, InputTypeError, KernelFunctionError
from dkrr.features import feature_map
from dkrr.kernels import RBF, BagOfWords, CallableKernel, Columns, Graph, Linear, Polynomial, Precomputed, RandomWalk
from dkrr.kernels.custom import OBJECT_WIDTH, decode_objects, encode_objects, is_objects
from dkrr.kernels.interactions import InteractionMap
from dkrr.kernels.kernel_features import required_feature_map
from tests.oracles import assert_close, naive_kernel_ridge
from tests.pairs import every_pair

PLACES = {"memory": {}, "tiles": {"tile": 25}, "cg": {"solver": "cg", "tol": 1e-10}}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)

WORDS = ["apple", "banana", "cherry", "date", "elder", "fig", "grape", "lemon", "mango", "nut"] * 6
LENGTHS = np.array([len(w) for w in WORDS], float)
SPAM = ["cash", "prize", "win", "free", "now", "call"]
HAM = ["call", "home", "dinner", "tonight", "meeting", "late", "sorry", "love", "see", "you"]


def letters(a, b):
    return np.array([[len(set(x) & set(z)) / max(len(set(x) | set(z)), 1) for z in b] for x in a])


def picky(a, b):
    if "nut" in a:
        raise KeyError("no nuts")
    return letters(a, b)


@given(st.lists(VALUES, min_size=1, max_size=8))
def test_objects_come_back_from_their_rows(items):
    rows = encode_objects(items)
    assert rows.shape == (len(items), OBJECT_WIDTH) and rows.has_canonical_format
    assert decode_objects(rows) == items and decode_objects(rows[1:]) == items[1:]


def test_lists_series_tables_and_arrays_of_anything_but_numbers_are_objects():
    words = ["a", "", "Grüße", "\x01"]
    for X in (words, tuple(words), np.array(words), np.array(words, object), pd.Series(words)):
        assert is_objects(X) and decode_objects(encode_objects(X)) == words
    table = pd.DataFrame({"w": words, "n": [1, 2, 3, 4]})
    assert is_objects(table) and decode_objects(encode_objects(table))[2] == {"w": "Grüße", "n": 3}
    assert decode_objects(encode_objects([np.float64(1.5), {"v": np.arange(2)}])) == [1.5, {"v": [0, 1]}]
    assert is_objects([[1, 2], [3]])
    for X in (np.eye(2), [[1.0, 2.0]], sp.csr_array(np.eye(2)), pd.DataFrame({"a": [1, 2]}), "path.zarr"):
        assert not is_objects(X)


def documents(n=60, seed=0):
    rng = np.random.default_rng(seed)
    spam = rng.random(n) < 0.4
    texts = [" ".join(rng.choice(SPAM if s else HAM, size=rng.integers(2, 8))) for s in spam]
    return texts, np.where(spam, "spam", "ham")


def molecules(n=40, seed=0):
    """Chains of atoms with a side atom here and there; the target counts those."""
    rng = np.random.default_rng(seed)
    graphs = []
    for length in rng.integers(3, 7, n).tolist():
        sides = np.flatnonzero(rng.random(length) < 0.4).tolist()
        edges = [(k, k + 1) for k in range(length - 1)] + [(k, length + i) for i, k in enumerate(sides)]
        graphs.append(Graph(length + len(sides), edges, ["C"] * length + ["O"] * len(sides)))
    return graphs, np.array([float(graph.labels.count("O")) for graph in graphs])


def table():
    """60 rows of text, graphs and numbers, with a kernel of these, its matrix and targets."""
    rng = np.random.default_rng(1)
    graphs, counts = molecules(60)
    frame = pd.DataFrame({"word": WORDS, "text": documents()[0], "graph": graphs})
    frame["a"], frame["b"] = rng.normal(size=(2, 60))
    kernel = Columns(CallableKernel(letters), "word") + Columns(BagOfWords(), "text")
    kernel = kernel + Columns(RandomWalk(decay=0.1), "graph") + Columns(RBF(gamma=0.5), ["a", "b"])
    texts = BagOfWords().fitted(frame["text"].tolist())
    K = letters(WORDS, WORDS) + texts(frame["text"].tolist()) + RandomWalk(decay=0.1)(graphs)
    return frame, kernel, K + RBF(gamma=0.5)(frame[["a", "b"]].to_numpy()), counts + frame["a"].to_numpy()


KERNELS = {
    "words": BagOfWords(),
    "counts": BagOfWords("counts", normalized=False),
    "hashed": BagOfWords(n_features=2**12),
    "function": letters,
    "graphs": RandomWalk(decay=0.1),
}


@every_pair(place=list(PLACES), kind=list(KERNELS), form=["dual", "primal"])
def test_documents_graphs_and_objects_of_a_function_are_rows(tmp_path, kind, place, form):
    rows, y = molecules() if kind == "graphs" else (documents()[0], (documents()[1] == "spam").astype(float))
    new = molecules(12, seed=1)[0] if kind == "graphs" else ["win cash now", "at home", "", "nothing is known"]
    kernel, form = KERNELS[kind], "dual" if kind in ("graphs", "function") else form
    known = letters if kernel is letters else kernel.fitted(rows)
    coef, intercept = naive_kernel_ridge(known(rows, rows), y[:, None], [0.1], fit_intercept=True)
    with dask.config.set({"dkrr.local.workers": 1}):  # a function whose first call was slow would be given to two
        model = KernelRidge(0.1, kernel=kernel, form=form, fit_intercept=True, **PLACES[place]).fit(rows, y)
    assert_allclose(model.predict(new), known(new, rows) @ coef[:, 0] + intercept, atol=1e-7)
    dkrr.save(model, tmp_path / "m.zarr")
    again = dkrr.load(tmp_path / "m.zarr", **({"kernel": letters} if kernel is letters else {}))
    assert_allclose(again.predict(new), model.predict(new), rtol=0, atol=1e-12)


@pytest.mark.parametrize("place", ["memory", pytest.param("tiles", marks=pytest.mark.nightly), "cg"])
def test_a_table_may_have_text_graphs_objects_and_numbers(tmp_path, place):
    frame, kernel, K, y = table()
    model = KernelRidge(alpha=0.1, kernel=kernel, **PLACES[place]).fit(frame, y)
    assert_close(model.dual_coef_, np.linalg.solve(K + 0.1 * np.eye(60), y), 1e-7)
    new = frame[["b", "graph", "word", "a", "text"]].sample(frac=0.3, random_state=0)  # by name, in any order
    dkrr.save(model, tmp_path / "m.zarr")
    again = dkrr.load(tmp_path / "m.zarr", kernel=letters)
    assert_allclose(again.predict(new), model.predict(new), rtol=0, atol=1e-12)
    with pytest.raises(InputError, match="no column 'word'"):
        model.predict(frame[["a", "b", "text", "graph"]])


SLOW = pytest.param("tiles", "function", marks=pytest.mark.nightly)
"""Workers of its own for each of several fits: of regressions the fast tests have this case."""


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        SLOW,
        *(
            (place, kind)
            for place in PLACES
            for kind in ("words", "function")
            if (place, kind) != ("tiles", "function")
        ),
    ],
)
def test_classes_of_documents_are_learnt_saved_and_learnt_again(place, kind, tmp_path):
    (texts, labels), kernel, wrap = documents(), KERNELS[kind], pd.Series if kind == "words" else list
    model = KernelLogisticRegression(alpha=0.01, kernel=kernel, **PLACES[place] | {"tol": 1e-8})
    new, expected = documents(seed=1)
    assert model.fit(wrap(texts), labels).score(new, expected) > 0.8
    dkrr.save(model, tmp_path / "m.zarr")
    again = dkrr.load(tmp_path / "m.zarr", **({"kernel": letters} if kernel is letters else {}))
    assert_array_equal(again.predict_proba(new), model.predict_proba(new))
    again.fit(["alpha beta", "gamma delta"] * 5, [0, 1] * 5)  # a vocabulary of its own
    assert again.predict(["beta"]) == [0] and again.predict(["gamma"]) == [1]


@pytest.mark.parametrize("place", ["memory", pytest.param("tiles", marks=pytest.mark.nightly), "cg"])
def test_a_function_that_fails_names_the_block_and_its_rows(place):
    words = sorted(WORDS)  # nuts are the last
    with pytest.raises(KernelFunctionError, match=r"picky.* failed on .* rows .*: KeyError: 'no nuts'") as caught:
        KernelRidge(alpha=0.1, kernel=picky, **PLACES[place]).fit(words, LENGTHS)
    assert place != "tiles" or re.search(r"in the block of rows \d+ to 59 and 0 to \d+", str(caught.value))
    model = KernelRidge(kernel=picky).fit(["tea", "milk"] * 3, np.arange(6.0))
    with pytest.raises(KernelFunctionError, match="rows 1024 to 1499 and 0 to 5"):
        model.predict(["tea"] * 1400 + ["nut"] * 100)


def products(a, b):
    assert isinstance(a, np.ndarray)
    return a @ b.T


@pytest.mark.parametrize(
    "kernel",
    [CallableKernel(products) + RBF(gamma=0.5), 0.5 * CallableKernel(products), Columns(RBF(gamma=0.3)),
     Columns(InteractionMap().kernel(), [1, 2])],
    ids=["sum", "multiple", "columns", "map"],
)  # fmt: skip
def test_tables_and_lists_of_numbers_are_numbers_to_a_function(kernel):
    X = np.random.default_rng(0).normal(size=(20, 3))
    frame, y = pd.DataFrame(X, columns=list("abc")), X[:, 0]
    expected = KernelRidge(kernel=kernel).fit(X, y).predict(X)
    for rows in (frame, X.tolist(), X.astype(object)):
        model = KernelRidge(kernel=kernel).fit(rows, y)
        assert model.n_features_in_ == 3 and hasattr(model, "feature_names_in_") == (rows is frame)
        assert_close(model.predict(X if rows is not frame else frame), expected, 1e-12)
    with pytest.raises(ValueError, match="feature names should match"):
        KernelRidge(kernel=kernel).fit(frame, y).predict(frame[["c", "b", "a"]])


def test_lists_of_numbers_that_happen_to_be_as_long_are_objects():
    def overlap(a, b):
        return np.array([[float(len(set(x) & set(z))) for z in b] for x in a])

    model = KernelRidge(kernel=overlap).fit([[1, 2, 3], [1, 2], [4]] * 5, np.arange(15.0))
    assert model.predict([[1, 2], [4, 5]]).shape == (2,)
    with pytest.raises(InputError, match="X is empty"):
        model.predict([])


def test_one_long_text_among_short_ones_takes_no_rectangle_of_memory():
    assert CallableKernel(letters).encode(["a"] * 2000 + ["x" * 1_000_000]).nnz < 2_000_000


def test_a_column_of_numbers_for_a_function_but_not_for_words():
    frame = pd.DataFrame({"a": np.arange(6.0), "w": WORDS[:6]})
    kernel = Columns(CallableKernel(products), "a") + Columns(CallableKernel(letters), ["w"])
    expected = np.outer(frame["a"], frame["a"]) + letters(WORDS[:6], WORDS[:6])
    assert_allclose(kernel.fitted(frame)(frame), expected, atol=1e-12)
    with pytest.raises(InputError, match="column 'a' holds numbers"):
        Columns(BagOfWords(), "a").fitted(frame)


def test_gram_matrices_and_plans_of_objects():
    for kernel in (letters, BagOfWords().fitted(WORDS)):
        expected = kernel(WORDS[:9], WORDS[:4])
        assert_allclose(dkrr.gram(WORDS[:9], WORDS[:4], kernel=kernel).compute(), expected)
    assert_allclose(dkrr.gram(WORDS[:9], kernel=letters).compute(), letters(WORDS[:9], WORDS[:9]))
    assert dkrr.plan(WORDS, LENGTHS, kernel=letters).form == "dual"


@pytest.mark.parametrize(
    ("kernel", "X", "error", "message"),
    [
        (BagOfWords(), ["", " "], InputError, "none of the 2 documents has a term"),
        (BagOfWords(), ["a word", None], InputTypeError, r"document 1 \(counted from 0\) is missing"),
        (RandomWalk(decay=9.0), molecules(2)[0], InputError, "decay is 9; expected less than"),
        (RandomWalk(decay=0.1), ["no graph", "either"], InputTypeError, "graph 0: is of type builtins.str"),
        (RBF() + BagOfWords(), WORDS[:2], InputError, "takes rows of numbers"),
        (RBF() + CallableKernel(letters), WORDS[:2], InputError, "takes rows of"),
        (letters, ["a", object()], InputTypeError, "object 1 of X is a object, which cannot be stored.*expected str"),
    ],
)
def test_rows_that_a_kernel_cannot_take_are_named(kernel, X, error, message):
    with pytest.raises(error, match=message):
        KernelRidge(kernel=kernel).fit(X, [0.0, 1.0])


# Kernels of some of the columns, of arrays and of tables.

RNG = np.random.default_rng(0)
X, Z = RNG.normal(size=(40, 5)), RNG.normal(size=(30, 5))
TABLE = pd.DataFrame({"drink": WORDS[:40], "size": X[:, 0], "price": X[:, 1]})


@pytest.mark.parametrize("columns", [3, [0], [1, 2, 3], [4, 0], (2, 4), np.array([0, 3])], ids=str)
@pytest.mark.parametrize("base", [RBF(), Polynomial(degree=2, gamma=0.5)], ids=repr)
def test_the_base_sees_its_columns_only(base, columns):
    kernel, picked = Columns(base, columns), np.atleast_1d(columns)
    assert_allclose(kernel(X, Z), base(X[:, picked], Z[:, picked]), rtol=1e-13, atol=1e-14)
    assert_allclose(kernel(X), base(X[:, picked]), rtol=1e-13, atol=1e-14)
    assert_allclose(kernel.diagonal(X), base.diagonal(X[:, picked]), rtol=1e-13)
    assert_allclose(kernel(sp.csr_array(X), sp.csr_array(Z)), kernel(X, Z), atol=1e-12)


def test_finite_maps_of_columns():
    kernel = 0.7 * Columns(Polynomial(degree=3, gamma=0.2), 3) + Columns(Linear(), [4, 0, 2])
    phi = required_feature_map(kernel, 5)
    assert_allclose(phi.transform(X) @ phi.transform(Z).T, kernel(X, Z), atol=1e-12)
    with pytest.raises(InputError, match="finite feature map"):
        required_feature_map(kernel + Columns(RBF(), [0]), 5)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Columns(RBF(), []), InputTypeError, "at least one"),
        (lambda: Columns(RBF(), [0, "a"]), InputTypeError, "numbers of columns or names"),
        (lambda: Columns(RBF(), [-1]), InputError, "counted from 0"),
        (lambda: Columns("rbf", [0]), InputTypeError, "base is 'rbf'; expected a dkrr.kernels.Kernel"),
        (lambda: Columns(Precomputed(), [0]), InputError, "base is a precomputed kernel"),
        (lambda: Columns(RBF(gamma=0.1), [5])(X), InputError, r"columns is \(5,\), but X has 5 columns"),
        (lambda: Columns(RBF(gamma=0.1), "a")(X), InputError, "columns is 'a' and X is an array; expected a DataFrame"),
        (lambda: Columns(RBF(gamma=0.1), "prize").fitted(TABLE), InputError, "no column 'prize'; expected 'price'"),
        (lambda: Columns(RBF(gamma=0.1), ["drink"]).fitted(TABLE), InputTypeError, "do not hold numbers"),
        (
            lambda: Columns(RBF(gamma=0.1), ["price"])(TABLE),
            InputError,
            "is not fitted; expected a kernel that was fitted",
        ),
        (lambda: Columns(RBF(), ["a"]).fitted(WORDS), InputTypeError, "a list; expected a DataFrame with the columns"),
    ],
)
def test_wrong_columns_are_named(make, error, message):
    with pytest.raises(error, match=message):
        make()


# The bag of words: scikit-learn's weights, and what is not a list of documents


TERMS = [f"{a}{b}" for a in ("ba", "co", "di", "fu", "Gé", "x_") for b in ("r", "ne", "lo", "ST", "7")]
EXACT = {"rtol": 1e-12, "atol": 1e-12}

every_weighting = pytest.mark.parametrize("weighting", ["tfidf", "counts", "binary"])
either = pytest.mark.parametrize("cosine", [True, False])


def corpus(n, seed=0):
    """Documents of 0 to 30 words, few of them frequent; the second one is empty."""
    rng = np.random.default_rng(seed)
    chances = 1.0 / np.arange(1, len(TERMS) + 1)
    lengths = rng.integers(1, 31, n)
    lengths[1] = 0
    return [" ".join(rng.choice(TERMS, k, p=chances / chances.sum())) + "." for k in lengths]


@every_weighting
@either
@pytest.mark.parametrize(
    "settings", [{}, {"ngram_range": (1, 2), "min_df": 3}, {"ngram_range": (2, 3), "lowercase": False, "min_df": 0.06}]
)
def test_values_rows_and_features_are_those_of_scikit_learn(weighting, cosine, settings):
    training, others = corpus(40), corpus(25, seed=1)
    weights = {"use_idf": weighting == "tfidf", "binary": weighting == "binary", **settings}
    theirs = TfidfVectorizer(norm="l2" if cosine else None, **weights).fit(training)
    X, Y = theirs.transform(training).toarray(), theirs.transform(others).toarray()
    kernel = BagOfWords(weighting, normalized=cosine, **settings).fitted(training)
    assert kernel.vocabulary == tuple(theirs.get_feature_names_out()) and kernel.has_unit_diagonal is cosine
    assert_allclose(kernel(training, others), X @ Y.T, **EXACT)
    assert_allclose(kernel(training), X @ X.T, **EXACT)
    assert_allclose(kernel.diagonal(others), (Y**2).sum(axis=1), **EXACT)
    left, right = kernel.encode(training), kernel.encode(others)
    assert isinstance(right, sp.csr_array) and right.dtype == np.float64 and right.has_canonical_format
    assert_array_equal(right.toarray(), TfidfVectorizer(norm=None, **weights).fit(training).transform(others).toarray())
    phi = feature_map(kernel, left.shape[1])
    assert phi.keeps_sparse and phi.dimension(left.shape[1]) == left.shape[1]
    assert_allclose(phi.transform(left) @ phi.transform(right).T, X @ Y.T, **EXACT)
    values = np.random.default_rng(0).standard_normal((25, 2))
    assert_allclose(phi.multiply(left, phi.adjoint(right, values)), X @ Y.T @ values, **EXACT)


def test_words_are_what_token_pattern_says():
    documents = ["one-two 3", "two #tag"]
    assert BagOfWords("counts", token_pattern=r"\S+").fitted(documents).vocabulary == ("#tag", "3", "one-two", "two")
    assert BagOfWords("counts", token_pattern=r"#(\w+)").fitted(documents).vocabulary == ("tag",)


@every_weighting
def test_hashed_columns_are_those_of_scikit_learn(weighting):
    training, others = corpus(40), corpus(20, seed=1)
    kernel = BagOfWords(weighting, n_features=2**16).fitted(training)
    assert kernel.vocabulary is None and (kernel.idf is not None) is (weighting == "tfidf")
    theirs = HashingVectorizer(n_features=2**16, norm=None, alternate_sign=False, binary=weighting == "binary")
    expected = theirs.transform(others)
    if weighting == "tfidf":
        n_having = np.bincount(theirs.transform(training).indices, minlength=2**16)
        expected = expected.multiply(np.log(41 / (1 + n_having)) + 1)
    assert_allclose(kernel.encode(others).toarray(), expected.toarray(), **EXACT)
    # No two of these few words share one of so many columns.
    assert_allclose(kernel(training), BagOfWords(weighting).fitted(training)(training), **EXACT)


def test_fitting_learns_only_what_is_missing():
    training, others = corpus(30), corpus(30, seed=1)
    kernel = BagOfWords(min_df=2).fitted(training)
    rows = kernel.encode(training)
    assert kernel.fitted(others) is kernel.fitted(rows) is kernel
    given = BagOfWords(vocabulary=["cost", "bar", "dine"])
    assert given.fitted(training).vocabulary == given.vocabulary
    for complete in (BagOfWords("counts", vocabulary=["bar"]), BagOfWords("binary", n_features=8)):
        assert complete.fitted(training) is complete
    assert BagOfWords("counts", vocabulary=["bar"]).encode(["bar bar"]).toarray() == 2.0


@pytest.mark.parametrize(
    "make",
    [np.array, lambda X: np.array(X, np.dtypes.StringDType()), lambda X: pd.Series(X, dtype="category")],
)
def test_documents_in_any_container_are_the_same(make):
    documents = corpus(20)
    kernel, expected = BagOfWords().fitted(make(documents)), BagOfWords().fitted(documents)
    assert kernel == expected
    assert_array_equal(kernel(make(documents), documents[:3]), expected(documents, documents[:3]))


@pytest.mark.parametrize(
    ("X", "error", "message"),
    [
        (["one", 2.5], InputTypeError, r"document 1 .* is of type float \(2\.5\); expected a string"),
        (["one", b"two"], InputTypeError, "document 1 .* is bytes.*decode"),
        (["one", None], InputTypeError, r"document 1 .* is missing \(None\).*leave it out"),
        (pd.Series(["one", None, "two"]), InputTypeError, "document 1 .* is missing"),
        (pd.Series(["one", "two", pd.NA], dtype=object), InputTypeError, "document 2 .* is missing"),
        ([["x" * 999]], InputTypeError, r"document 0 .* is of type list .*x…\).*array or CSR"),
        ("one two", InputTypeError, r"one str; expected a list of documents: use \[X\]"),
        ({"one", "two"}, InputTypeError, "is a set.*list"),
        (iter(["one"]), InputTypeError, "list_iterator"),
        (np.array([["one"], ["two"]]), InputError, r"shape \(2, 1\).*X\[:, 0\]"),
        (pd.DataFrame({"text": ["one"], "age": [1]}), InputTypeError, r"columns 'text', 'age'.*X\[\"text\"\]"),
        (da.from_array(np.array(["one", "two"], dtype=object), chunks=2), InputTypeError, "dask.*compute"),
    ],
)
def test_what_is_not_a_list_of_documents_is_refused(X, error, message):
    kernel = BagOfWords().fitted(["one", "two"])
    for call in (BagOfWords().fitted, kernel.encode, kernel):
        with pytest.raises(error, match=message):
            call(X)


def test_rows_and_places_pass_as_they_are():
    table = pd.DataFrame({"a": [1.0], "b": [2]})
    for X in (Path("rows.zarr"), da.ones((3, 2)), table, np.eye(2, dtype=int), sp.csr_array(np.eye(2))):
        assert BagOfWords().encode(X) is X
        assert BagOfWords().fitted(X) == BagOfWords()


def test_documents_without_terms_are_refused_with_the_reason():
    for kernel, documents, message in (
        (BagOfWords(), [], "the corpus is empty"),
        (BagOfWords(), ["", "a", "! ?"], "none of the 3 documents has a term: no word matches token_pattern="),
        (BagOfWords(ngram_range=(3, 3)), ["one two"], "no run of 3 words matches"),
        (BagOfWords(ngram_range=(2, 3)), ["one"], "no run of 2 to 3 words matches"),
        (BagOfWords(min_df=4), ["one two", "two three", "four"], "min_df is 4 and .* term is in 2 of 3 documents"),
    ):
        with pytest.raises(InputError, match=message):
            kernel.fitted(documents)
    assert BagOfWords().fitted(["one", "two"]).encode([]).shape == (0, 2)


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        *((BagOfWords(w), r"no vocabulary yet.*kernel\.fitted\(training.*or hashing") for w in ("tfidf", "counts")),
        (BagOfWords(n_features=16), r"no idf yet.*kernel\.fitted\(training documents\)$"),
    ],
)
def test_a_kernel_that_has_not_learnt_says_how_to(kernel, message):
    for call in (kernel.encode, kernel, kernel.diagonal):
        with pytest.raises(InputError, match=message):
            call(["one", "two"])
