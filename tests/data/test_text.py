"""The bag of words: naive dictionaries, scikit-learn's weights, and what is not a list of documents."""

import math
import pickle
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.feature_extraction.text import HashingVectorizer, TfidfVectorizer

from dkrr.errors import InputError, InputTypeError
from dkrr.features import feature_map
from dkrr.kernels import BagOfWords, Cosine, Linear
from tests.systems import traced_peak

WORDS = [f"{a}{b}" for a in ("ba", "co", "di", "fu", "Gé", "x_") for b in ("r", "ne", "lo", "ST", "7")]
EXACT = {"rtol": 1e-12, "atol": 1e-12}

every_weighting = pytest.mark.parametrize("weighting", ["tfidf", "counts", "binary"])
either = pytest.mark.parametrize("cosine", [True, False])


def corpus(n, seed=0):
    """Documents of 0 to 30 words, few of them frequent; the second one is empty."""
    rng = np.random.default_rng(seed)
    chances = 1.0 / np.arange(1, len(WORDS) + 1)
    lengths = rng.integers(1, 31, n)
    lengths[1] = 0
    return [" ".join(rng.choice(WORDS, k, p=chances / chances.sum())) + "." for k in lengths]


def naive(kernel, training, X, Y):
    """Kernel values by dictionaries alone."""

    def terms(document):
        words = re.findall(r"\b\w\w+\b", document.lower() if kernel.lowercase else document)
        low, high = kernel.ngram_range
        return Counter(" ".join(words[k : k + m]) for m in range(low, high + 1) for k in range(len(words) - m + 1))

    n_having = Counter(term for document in training for term in terms(document))
    least = kernel.min_df if isinstance(kernel.min_df, int) else kernel.min_df * len(training)

    def weights(document):
        known = {term: count for term, count in terms(document).items() if n_having[term] >= max(least, 1)}
        if kernel.weighting == "binary":
            return dict.fromkeys(known, 1.0)
        if kernel.weighting == "counts":
            return known
        return {term: c * (math.log((1 + len(training)) / (1 + n_having[term])) + 1) for term, c in known.items()}

    def dot(x, z):
        return sum(w * z.get(term, 0.0) for term, w in x.items())

    def value(x, z):
        return dot(x, z) / (math.sqrt(dot(x, x) * dot(z, z)) or 1.0 if kernel.cosine else 1.0)

    left, right = [weights(x) for x in X], [weights(z) for z in Y]
    return np.array([[value(x, z) for z in right] for x in left])


@every_weighting
@either
@pytest.mark.parametrize(
    "settings", [{}, {"ngram_range": (1, 2), "min_df": 3}, {"ngram_range": (2, 3), "lowercase": False, "min_df": 0.06}]
)
def test_values_and_features_are_those_of_naive_dictionaries(weighting, cosine, settings):
    training, others = corpus(40), corpus(25, seed=1)
    unfitted = BagOfWords(weighting, cosine, **settings)
    kernel = unfitted.fitted(training)
    expected = naive(unfitted, training, training, others)
    assert_allclose(kernel(training, others), expected, **EXACT)
    assert_allclose(kernel(training), naive(unfitted, training, training, training), **EXACT)
    assert_allclose(kernel.diagonal(others), naive(unfitted, training, others, others).diagonal(), **EXACT)
    left, right = kernel.encode(training), kernel.encode(others)
    phi = feature_map(kernel, left.shape[1])
    assert phi.keeps_sparse and phi.dimension(left.shape[1]) == left.shape[1]
    assert_allclose(phi.transform(left) @ phi.transform(right).T, expected, **EXACT)
    values = np.random.default_rng(0).standard_normal((25, 2))
    assert_allclose(phi.multiply(left, phi.adjoint(right, values)), expected @ values, **EXACT)


@pytest.mark.parametrize("settings", [{}, {"ngram_range": (1, 3)}, {"min_df": 4}, {"min_df": 0.25, "lowercase": False}])
def test_weights_are_those_of_scikit_learn(settings):
    training, others = corpus(60), corpus(30, seed=1)
    kernel, theirs = BagOfWords(**settings).fitted(training), TfidfVectorizer(norm=None, **settings).fit(training)
    assert kernel.vocabulary == tuple(theirs.get_feature_names_out())
    rows = kernel.encode(others)
    assert isinstance(rows, sp.csr_array) and rows.dtype == np.float64 and rows.has_canonical_format
    assert_array_equal(rows.toarray(), theirs.transform(others).toarray())


def test_words_are_what_token_pattern_says():
    documents = ["one-two 3", "two #tag"]
    assert BagOfWords("counts", token_pattern=r"\S+").fitted(documents).vocabulary == ("#tag", "3", "one-two", "two")
    assert BagOfWords("counts", token_pattern=r"#(\w+)").fitted(documents).vocabulary == ("tag",)


@either
def test_values_are_those_of_the_kernel_of_its_rows_in_any_blocks(cosine):
    X, Y = corpus(300), corpus(31, seed=1)
    kernel, plain = BagOfWords(cosine=cosine).fitted(X), Cosine() if cosine else Linear()
    left, right = kernel.encode(X), kernel.encode(Y)
    whole, K = plain(left, right), kernel(X)
    assert_array_equal(kernel(X, Y), whole)
    assert_allclose(kernel(left.toarray(), right.toarray()), whole, **EXACT)
    assert_allclose(kernel(X, Y, out=np.empty((300, 31), np.float32)), whole, rtol=2e-5, atol=2e-5)
    assert_array_equal(K, K.T)
    assert_array_equal(K.diagonal(), kernel.diagonal(X))
    assert kernel.has_unit_diagonal is cosine
    pieces = np.full((300, 300), np.nan)
    for rows, columns, piece in kernel.pieces(left):
        pieces[rows, columns] = piece
    assert_allclose(np.tril(pieces), np.tril(K), **EXACT)
    for each in (kernel, BagOfWords("counts", cosine, n_hashed=64)):
        parts = [[each(X[i : i + 70], Y[j : j + 10]) for j in range(0, 31, 10)] for i in range(0, 300, 70)]
        assert_allclose(np.block(parts), each(X, Y), **EXACT)


@every_weighting
def test_hashed_columns_are_those_of_scikit_learn(weighting):
    training, others = corpus(40), corpus(20, seed=1)
    kernel = BagOfWords(weighting, n_hashed=2**16).fitted(training)
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
    theirs = TfidfVectorizer(norm=None, vocabulary=["cost", "bar", "dine"]).fit(training)
    assert given.fitted(training).vocabulary == given.vocabulary
    assert_array_equal(given.fitted(training).encode(others).toarray(), theirs.transform(others).toarray())
    for complete in (BagOfWords("counts", vocabulary=["bar"]), BagOfWords("binary", n_hashed=8)):
        assert complete.fitted(training) is complete
    assert BagOfWords("counts", vocabulary=["bar"]).encode(["bar bar"]).toarray() == 2.0


@pytest.mark.parametrize(
    "make",
    [
        tuple,
        np.array,
        lambda X: np.array(X, dtype=np.dtypes.StringDType()),
        lambda X: pd.Series(X, index=range(7, 7 + len(X)), dtype=object),
        lambda X: pd.Series(X, dtype="category"),
        pd.Index,
    ],
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
        (["one", float("nan")], InputTypeError, r"document 1 .* is missing \(nan\)"),
        (pd.Series(["one", None, "two"]), InputTypeError, "document 1 .* is missing"),
        (pd.Series(["one", "two", pd.NA], dtype=object), InputTypeError, "document 2 .* is missing"),
        (np.array([b"one", b"two"]), InputTypeError, "document 0 .* is bytes"),
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
        (BagOfWords(n_hashed=16), r"no idf yet.*kernel\.fitted\(training documents\)$"),
    ],
)
def test_a_kernel_that_has_not_learnt_says_how_to(kernel, message):
    for call in (kernel.encode, kernel, kernel.diagonal):
        with pytest.raises(InputError, match=message):
            call(["one", "two"])


def test_cost_is_that_of_the_terms_and_not_of_the_columns():
    few, many, more = (BagOfWords().entry_cost(d) for d in (3, 100_000, 1_000_000))
    assert 0 < few.element_seconds < many.element_seconds == more.element_seconds < 200e-9
    assert many.gemm_flops == 0.0


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize(("shape", "d", "terms"), [((512, 512), 100_000, 300), ((300, 1500), 3000, 700)])
def test_memory_is_within_a_bound_that_follows_the_terms(shape, d, terms, index):
    def rows(n, seed):
        rng = np.random.default_rng(seed)
        columns = np.concatenate([np.sort(rng.choice(d, terms, replace=False)) for _ in range(n)]).astype(index)
        return sp.csr_array((rng.random(n * terms), columns, terms * np.arange(n + 1, dtype=index)), shape=(n, d))

    X, Y, out = rows(shape[0], 0), rows(shape[1], 1), np.empty(shape)
    for kernel in (BagOfWords(), BagOfWords(cosine=False)):
        bound = kernel.workspace_bytes(*shape, d)
        assert traced_peak(lambda kernel=kernel: kernel(X, Y, out=out)) <= bound
        pieces = traced_peak(lambda kernel=kernel: [0 for _ in kernel.pieces(X, Y)])
        assert pieces <= kernel.pieces_bytes(*shape, d)
        # Far below what dense rows of as many columns would take, where those are many.
        assert d < 10_000 or bound < 8 * d * sum(shape) / 5


def test_blocks_need_no_scikit_learn():
    """Workers get rows of numbers; one without scikit-learn computes the same values."""
    documents = corpus(12)
    kernel = BagOfWords().fitted(documents)
    code = (
        "import pickle, sys; sys.modules['sklearn'] = None\n"
        "kernel, rows = pickle.load(sys.stdin.buffer)\n"
        "sys.stdout.buffer.write(kernel(rows).tobytes())"
    )
    given = pickle.dumps((kernel, kernel.encode(documents)))
    done = subprocess.run([sys.executable, "-c", code], input=given, capture_output=True, check=True)
    assert_array_equal(np.frombuffer(done.stdout).reshape(12, 12), kernel(documents))
