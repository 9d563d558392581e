"""The bag of words: scikit-learn's weights, and what is not a list of documents."""

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
from dkrr.kernels import BagOfWords

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
    kernel = BagOfWords(weighting, cosine, **settings).fitted(training)
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
    assert given.fitted(training).vocabulary == given.vocabulary
    for complete in (BagOfWords("counts", vocabulary=["bar"]), BagOfWords("binary", n_hashed=8)):
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
        (BagOfWords(n_hashed=16), r"no idf yet.*kernel\.fitted\(training documents\)$"),
    ],
)
def test_a_kernel_that_has_not_learnt_says_how_to(kernel, message):
    for call in (kernel.encode, kernel, kernel.diagonal):
        with pytest.raises(InputError, match=message):
            call(["one", "two"])
