"""The bag of words: naive dictionaries, scikit-learn's weights, and documents that are none."""

import json
import math
import pickle
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer, TfidfVectorizer

from dkrr.errors import InputError, InputTypeError
from dkrr.features import feature_map
from dkrr.kernels import BagOfWords, Cosine, Linear, kernel_from_dict
from tests.pairs import every_pair

WORDS = [f"{a}{b}" for a in ("ba", "co", "di", "fu", "Gé", "x_") for b in ("r", "ne", "lo", "ST", "7")]
WEIGHTINGS = ("tfidf", "counts", "binary")
EXACT = {"rtol": 1e-12, "atol": 1e-12}

every_weighting = pytest.mark.parametrize("weighting", WEIGHTINGS)
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

    documents = [terms(document) for document in training]
    n_having = Counter(term for document in documents for term in document)
    least = kernel.min_df if isinstance(kernel.min_df, int) else kernel.min_df * len(training)

    def weights(document):
        known = {term: count for term, count in terms(document).items() if n_having[term] >= max(least, 1)}
        if kernel.weighting == "binary":
            return dict.fromkeys(known, 1.0)
        if kernel.weighting == "counts":
            return known
        return {term: c * (math.log((1 + len(training)) / (1 + n_having[term])) + 1) for term, c in known.items()}

    def value(x, z):
        dot = sum(w * z.get(term, 0.0) for term, w in x.items())
        norms = [math.sqrt(sum(w * w for w in each.values())) for each in (x, z)]
        return dot if not kernel.cosine else dot / (norms[0] * norms[1]) if min(norms) > 0 else 0.0

    left, right = [weights(x) for x in X], [weights(z) for z in Y]
    return np.array([[value(x, z) for z in right] for x in left])


@every_weighting
@either
@pytest.mark.parametrize(
    "settings", [{}, {"ngram_range": (1, 2), "min_df": 3}, {"ngram_range": (2, 3), "lowercase": False, "min_df": 0.06}]
)
def test_values_are_those_of_naive_dictionaries(weighting, cosine, settings):
    training, others = corpus(40), corpus(25, seed=1)
    unfitted = BagOfWords(weighting, cosine, **settings)
    kernel = unfitted.fitted(training)
    assert_allclose(kernel(training, others), naive(unfitted, training, training, others), **EXACT)
    assert_allclose(kernel(training), naive(unfitted, training, training, training), **EXACT)
    assert_allclose(kernel.diagonal(others), naive(unfitted, training, others, others).diagonal(), **EXACT)


@pytest.mark.parametrize("settings", [{}, {"ngram_range": (1, 3)}, {"min_df": 4}, {"min_df": 0.25, "lowercase": False}])
def test_weights_are_those_of_scikit_learn(settings):
    training, others = corpus(60), corpus(30, seed=1)
    kernel, theirs = BagOfWords(**settings).fitted(training), TfidfVectorizer(norm=None, **settings).fit(training)
    assert kernel.vocabulary == tuple(theirs.get_feature_names_out())
    rows = kernel.encode(others)
    assert isinstance(rows, sp.csr_array) and rows.dtype == np.float64 and rows.has_canonical_format
    assert_array_equal(rows.toarray(), theirs.transform(others).toarray())
    at_unit_length = TfidfVectorizer(**settings).fit(training)
    product = at_unit_length.transform(others) @ at_unit_length.transform(training).T
    assert_allclose(kernel(others, training), product.toarray(), **EXACT)
    for weighting in ("counts", "binary"):
        theirs = CountVectorizer(binary=weighting == "binary", **settings).fit(training)
        rows = BagOfWords(weighting, **settings).fitted(training).encode(others)
        assert_array_equal(rows.toarray(), theirs.transform(others).toarray())


def test_words_are_what_token_pattern_says():
    documents = ["one-two 3", "two #tag"]
    assert BagOfWords("counts", token_pattern=r"\S+").fitted(documents).vocabulary == ("#tag", "3", "one-two", "two")
    assert BagOfWords("counts", token_pattern=r"#(\w+)").fitted(documents).vocabulary == ("tag",)


@either
def test_values_are_those_of_the_kernel_of_its_rows(cosine):
    X, Y = corpus(300), corpus(40, seed=1)
    kernel, plain = BagOfWords(cosine=cosine).fitted(X), Cosine() if cosine else Linear()
    left, right = kernel.encode(X), kernel.encode(Y)
    assert_array_equal(kernel(X, Y), plain(left, right))
    assert_array_equal(kernel(left, right), plain(left, right))
    assert_allclose(kernel(left.toarray(), right.toarray()), plain(left, right), **EXACT)
    K = kernel(X)
    assert_array_equal(K, K.T)
    assert_array_equal(K.diagonal(), kernel.diagonal(X))
    single = kernel(X, Y, out=np.empty((300, 40), np.float32))
    assert_allclose(single, plain(left, right), rtol=2e-5, atol=2e-5)
    assert kernel.has_unit_diagonal is cosine
    pieces = np.full((300, 300), np.nan)
    for rows, columns, piece in kernel.pieces(left):
        pieces[rows, columns] = piece
    assert_allclose(np.tril(pieces), np.tril(K), **EXACT)


def test_document_without_a_known_term_is_like_nothing():
    kernel = BagOfWords().fitted(["one two", "two three"])
    assert_array_equal(kernel(["", "unknown", "two"], ["two", ""]), [[0, 0], [0, 0], [1, 0]])
    assert_array_equal(kernel(["", "two"]), [[0, 0], [0, 1]])


@either
def test_values_do_not_depend_on_the_blocks(cosine):
    X, Y = corpus(50), corpus(31, seed=1)
    for kernel in (BagOfWords(cosine=cosine).fitted(X), BagOfWords("counts", cosine, n_hashed=64)):
        whole = kernel(X, Y)
        parts = [[kernel(X[i : i + 7], Y[j : j + 10]) for j in range(0, 31, 10)] for i in range(0, 50, 7)]
        assert_allclose(np.block(parts), whole, **EXACT)
        stacked = sp.vstack([kernel.encode(X[i : i + 7]) for i in range(0, 50, 7)])
        assert_array_equal(stacked.toarray(), kernel.encode(X).toarray())


@every_weighting
@either
def test_features_of_words_give_the_kernel(weighting, cosine):
    X, Y = corpus(30), corpus(12, seed=1)
    kernel = BagOfWords(weighting, cosine).fitted(X)
    left, right = kernel.encode(X), kernel.encode(Y)
    phi = feature_map(kernel, left.shape[1])
    assert phi.keeps_sparse and phi.dimension(left.shape[1]) == left.shape[1]
    assert_allclose(phi.transform(left) @ phi.transform(right).T, kernel(X, Y), **EXACT)
    values = np.random.default_rng(0).standard_normal((12, 2))
    assert_allclose(phi.multiply(left, phi.adjoint(right, values)), kernel(X, Y) @ values, **EXACT)


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
    vocabulary = BagOfWords(weighting).fitted(training)
    assert_allclose(kernel(training), vocabulary(training), **EXACT)


def test_fitting_learns_only_what_is_missing():
    training, others = corpus(30), corpus(30, seed=1)
    kernel = BagOfWords(min_df=2).fitted(training)
    assert kernel.fitted(others) is kernel
    rows = kernel.encode(training)
    assert kernel.fitted(rows) is kernel and kernel.encode(rows) is rows
    dense = rows.toarray()
    assert kernel.encode(dense) is dense and BagOfWords().fitted(dense) == BagOfWords()
    given = BagOfWords(vocabulary=["cost", "bar", "dine"])
    fitted = given.fitted(training)
    assert fitted.vocabulary == given.vocabulary and len(fitted.idf) == 3
    theirs = TfidfVectorizer(norm=None, vocabulary=["cost", "bar", "dine"]).fit(training)
    assert_array_equal(fitted.encode(others).toarray(), theirs.transform(others).toarray())
    counting = BagOfWords("counts", vocabulary=["bar"])
    assert counting.fitted(training) is counting and counting.encode(["bar bar"]).toarray() == 2.0
    hashed = BagOfWords("binary", n_hashed=8)
    assert hashed.fitted(training) is hashed


@pytest.mark.parametrize(
    "kernel",
    [
        BagOfWords(),
        BagOfWords("counts", False, ngram_range=[1, 2], min_df=0.5, token_pattern=r"\S+", lowercase=False),
        BagOfWords().fitted(corpus(30)),
        BagOfWords("counts", False, min_df=np.int64(2)).fitted(corpus(30)),
        BagOfWords(n_hashed=32).fitted(corpus(30)),
    ],
    ids=str,
)
def test_a_bag_of_words_comes_back_from_its_description(kernel):
    description = kernel.to_dict()
    again = json.loads(json.dumps(description))
    assert again == description and again["kernel"] == "bag_of_words"
    assert kernel_from_dict(again) == kernel
    assert hash(kernel_from_dict(again)) == hash(kernel)
    assert pickle.loads(pickle.dumps(kernel)) == kernel
    assert kernel.resolved(7) is kernel
    combined = 0.5 * kernel + Linear()
    assert kernel_from_dict(json.loads(json.dumps(combined.to_dict()))) == combined


@pytest.mark.parametrize(
    "make",
    [
        tuple,
        np.array,
        lambda X: np.array(X, dtype=object),
        lambda X: np.array(X, dtype=np.dtypes.StringDType()),
        pd.Series,
        lambda X: pd.Series(X, index=range(7, 7 + len(X)), dtype=object),
        lambda X: pd.Series(X, dtype="category"),
        lambda X: pd.DataFrame({"text": X})["text"],
        pd.Index,
    ],
)
def test_documents_in_any_container_are_the_same(make):
    documents = corpus(20)
    expected = BagOfWords().fitted(documents)
    kernel = BagOfWords().fitted(make(documents))
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
        (np.array(["one", np.nan], dtype=object), InputTypeError, "document 1 .* is missing"),
        (np.array([b"one", b"two"]), InputTypeError, "document 0 .* is bytes"),
        ([["one", "two"]], InputTypeError, "document 0 .* is of type list"),
        ([[1.0, 2.0]], InputTypeError, "document 0 .* is of type list .*array or CSR"),
        ([["x" * 999]], InputTypeError, r"x…\)"),
        ("one two", InputTypeError, r"one str; expected a list of documents: use \[X\]"),
        (b"one two", InputTypeError, "one bytes"),
        ({"one", "two"}, InputTypeError, "is a set.*list"),
        ({"a": "one"}, InputTypeError, "is a dict"),
        (iter(["one"]), InputTypeError, "list_iterator"),
        (np.array([["one"], ["two"]]), InputError, r"shape \(2, 1\).*X\[:, 0\]"),
        (pd.DataFrame({"text": ["one"], "age": [1]}), InputTypeError, r"columns 'text', 'age'.*X\[\"text\"\]"),
    ],
)
def test_what_is_no_list_of_documents(X, error, message):
    kernel = BagOfWords().fitted(["one", "two"])
    for call in (BagOfWords().fitted, kernel.encode, kernel):
        with pytest.raises(error, match=message):
            call(X)


def test_lazy_documents_are_not_computed_by_accident():
    import dask.array as da

    lazy = da.from_array(np.array(["one", "two"], dtype=object), chunks=2)
    with pytest.raises(InputTypeError, match="dask.*compute"):
        BagOfWords().fitted(lazy)


def test_rows_and_places_pass_as_they_are():
    import dask.array as da

    for X in (Path("rows.zarr"), da.ones((3, 2)), pd.DataFrame({"a": [1.0], "b": [2]}), np.eye(2, dtype=int)):
        assert BagOfWords().encode(X) is X
        assert BagOfWords().fitted(X) == BagOfWords()


def test_documents_without_terms_are_refused_with_the_reason():
    with pytest.raises(InputError, match="the corpus is empty"):
        BagOfWords().fitted([])
    with pytest.raises(InputError, match="none of the 3 documents has a term: no word matches token_pattern="):
        BagOfWords().fitted(["", "a", "! ?"])
    with pytest.raises(InputError, match="no run of 3 words matches"):
        BagOfWords(ngram_range=(3, 3)).fitted(["one two"])
    with pytest.raises(InputError, match="min_df is 4 and the most frequent term is in 2 of 3 documents"):
        BagOfWords(min_df=4).fitted(["one two", "two three", "four"])
    assert BagOfWords().fitted(["one", "two"]).encode([]).shape == (0, 2)


@every_weighting
def test_a_kernel_without_vocabulary_says_how_to_get_one(weighting):
    for call in (BagOfWords(weighting).encode, BagOfWords(weighting), BagOfWords(weighting).diagonal):
        with pytest.raises(InputError, match=r"no vocabulary yet.*kernel\.fitted\(training documents\), or hashing"):
            call(["one", "two"])


def test_hashing_needs_to_be_fitted_for_tfidf():
    with pytest.raises(InputError, match=r"no idf yet.*kernel\.fitted"):
        BagOfWords(n_hashed=16).encode(["one"])


def test_cost_is_that_of_the_terms_and_not_of_the_columns():
    few, many, more = (BagOfWords().entry_cost(d) for d in (3, 100_000, 1_000_000))
    assert 0 < few.element_seconds < many.element_seconds == more.element_seconds < 200e-9
    assert many.gemm_flops == 0.0


@every_pair(
    block=[((512, 512), 100_000, 300), ((300, 1500), 3000, 700)],
    index=[np.int32, np.int64],
    cosine=[False, True],
    ids=str,
)
def test_workspace_is_an_upper_bound_for_sparse_rows(block, index, cosine):
    import tracemalloc

    shape, d, terms = block

    def rows(n, seed):
        rng = np.random.default_rng(seed)
        columns = np.concatenate([np.sort(rng.choice(d, terms, replace=False)) for _ in range(n)]).astype(index)
        starts = np.arange(0, n * terms + 1, terms, dtype=index)
        return sp.csr_array((rng.random(n * terms), columns, starts), shape=(n, d))

    kernel, X, Y = BagOfWords(cosine=cosine), rows(shape[0], 0), rows(shape[1], 1)
    out = np.empty(shape)
    bound, bound_of_pieces = (f(*shape, d) for f in (kernel.workspace_bytes, kernel.pieces_bytes))
    tracemalloc.start()
    kernel(X, Y, out=out)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.reset_peak()
    for _ in kernel.pieces(X, Y):
        pass
    peak_of_pieces = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak <= bound and peak_of_pieces <= bound_of_pieces
    # Far below what dense rows of as many columns would take, where those are many.
    assert d < 10_000 or bound < 8 * d * sum(shape) / 5


def test_blocks_need_no_scikit_learn():
    """Workers get rows of numbers; one without scikit-learn computes the same values."""
    documents = corpus(12)
    kernel = BagOfWords().fitted(documents)
    rows = kernel.encode(documents)
    code = (
        "import pickle, sys; sys.modules['sklearn'] = None\n"
        "import dkrr.kernels\n"
        "kernel, rows = pickle.load(sys.stdin.buffer)\n"
        "sys.stdout.buffer.write(kernel(rows).tobytes())"
    )
    done = subprocess.run([sys.executable, "-c", code], input=pickle.dumps((kernel, rows)), capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    assert_array_equal(np.frombuffer(done.stdout).reshape(12, 12), kernel(documents))
