"""The kernel of bags of words: documents are compared by the words that they share.

Documents in any container as a list of strings.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dkrr.checks import choice, flag, shown, whole
from dkrr.errors import InputError, InputTypeError
from dkrr.kernels.base import FIXED_WORKSPACE_BYTES, Kernel
from dkrr.kernels.blocks import LARGE_STRIP_ROWS, STRIP_ENTRIES, Block, Fill
from dkrr.kernels.dot import Cosine, Linear


def as_documents(X: Any) -> list[str] | None:
    """Documents of a sequence, Series or object array of strings; None for rows of numbers and paths of such.

    What looks like documents but is not is refused: a single string, a table with text, items that are not strings.
    """
    if isinstance(X, str | bytes):
        raise InputTypeError(
            f"X is one {type(X).__qualname__}; expected a list of documents: use [X]. (The path of an array is a "
            "pathlib.Path here.)"
        )
    if isinstance(X, Iterator | Set | Mapping):
        raise InputTypeError(f"X is a {type(X).__qualname__}; expected a list of documents, in order: use list(X)")
    if hasattr(X, "columns") and hasattr(X, "dtypes"):
        if all(getattr(dtype, "kind", "O") in "biuf" for dtype in X.dtypes):
            return None
        raise InputTypeError(
            f"X is a table with the columns {', '.join(map(repr, list(X.columns)[:20]))}; expected documents: choose "
            'the column that holds them, X["text"], or dkrr.kernels.Columns'
        )
    if not isinstance(X, list | tuple):
        kind = getattr(getattr(X, "dtype", None), "kind", "O")
        if not (hasattr(X, "shape") and hasattr(X, "dtype")) or kind in "biufc":
            return None
        # A Series, but nothing lazy, which would be computed by accident.
        values = X.to_numpy() if hasattr(X, "to_numpy") and not hasattr(X, "compute") else X
        if not isinstance(values, np.ndarray):
            raise InputTypeError(
                f"X is of type {type(X).__module__}.{type(X).__qualname__} with other values than numbers; expected "
                "documents as a list, a Series or a numpy array in memory: use X.compute() or X[:]"
            )
        if values.dtype.kind in "biufc":
            return None
        if values.ndim != 1:
            raise InputError(f"X has shape {values.shape}; expected numbers, or a list of documents: use X[:, 0]")
        X = values.tolist()
    for number, document in enumerate(X):
        if not isinstance(document, str):
            raise InputTypeError(f"document {number} (counted from 0) {_fault(document)}")
    return list(X)


def _fault(document: object) -> str:
    """Words for the fault of a document that is not a string, and the remedy."""
    # NaN, NaT and pandas' NA do not equal themselves.
    if document is None or (np.isscalar(document) and document != document) or type(document).__name__ == "NAType":
        return f'is missing ({document}); expected a string: leave it out, or replace it by ""'
    if isinstance(document, bytes):
        return 'is bytes; expected a string: decode it first, document.decode("utf-8")'
    shown = repr(document)
    shown = shown if len(shown) <= 40 else shown[:40] + "…"
    return f"is of type {type(document).__qualname__} ({shown}); expected a string: rows of numbers are an array or CSR"


TermWeighting = Literal["tfidf", "counts", "binary"]

TOKEN_PATTERN = r"(?u)\b\w\w+\b"
"""scikit-learn's: two or more letters, digits or underscores."""

# For memory, on the safe side: text messages have 14 on average, news 200, and in pairs of words 530.
MANY_TERMS = 1000
# Rows at unit length, their transposes, and what SciPy holds while it makes either, with 64-bit indices.
TERM_BYTES = 48
MAX_HASHED = 2**31 - 1
"""Columns that scikit-learn's hashing numbers."""


@dataclass(frozen=True, repr=False)
class BagOfWords(Kernel):
    r"""k(x, z) = Σ wₜ(x) wₜ(z) over the terms t that two documents share, or its cosine.

    `fitted` learns the vocabulary and how rare each term is from a corpus; `encode` turns documents into CSR rows of
    weights, from which the kernel is then computed: those of scikit-learn's `TfidfVectorizer(norm=None)`. A document
    without any known term has k(x, z) = 0 for every z, itself included. Hashing (`n_features`) needs no vocabulary, and
    `fitted` learns the rarities alone.

    Parameters
    ----------
    term_weighting : {"tfidf", "counts", "binary"}, default="tfidf"
        w: counts times ln((1 + n) / (1 + nₜ)) + 1, where nₜ of n documents have the term; counts; or 1 for every term
        in the document.
    ngram_range : (int, int), default=(1, 1)
        A term is this many words in a row, from the first number to the second.
    min_df : int or float, default=1
        The vocabulary takes terms of at least this many documents (an int), or this fraction of them (a float up to 1).
    token_pattern : str, default=r"(?u)\b\w\w+\b"
        Regular expression of a word; if it has a group, the word is what the group matches.
    n_features : int, optional
        Number of columns that terms are hashed to, in place of a vocabulary. Terms that share a column are added up,
        which is rare with 2**18 or more.
    vocabulary : sequence of str, optional
        The terms, one for each column. None: `fitted` learns them.
    idf : sequence of float, optional
        Factors of the counts of each column for "tfidf". None: `fitted` learns them.
    normalized : bool, default=True
        Divide by the norms of both rows of weights, so that long documents count no more than short ones.
    lowercase : bool, default=True
        Whether to treat capital and small letters alike.

    See Also
    --------
    dkrr.kernels.Columns : A kernel of some of the columns.
    dkrr.kernels.Normalized : A kernel with k(x, x) = 1.

    Examples
    --------
    >>> from dkrr.kernels import BagOfWords
    >>> documents = ["the cat sat", "the cat ran", "dogs bark"]
    >>> kernel = BagOfWords().fitted(documents)
    >>> kernel
    BagOfWords(vocabulary=<6 terms>, idf=<6 numbers>)
    >>> kernel(documents).round(2)
    array([[1.  , 0.54, 0.  ],
           [0.54, 1.  , 0.  ],
           [0.  , 0.  , 1.  ]])
    >>> BagOfWords("counts", normalized=False, vocabulary=["cat", "dog"]).encode(["Cat and cat", "dog"]).toarray()
    array([[2., 0.],
           [0., 1.]])
    """

    tag: ClassVar[str] = "bag_of_words"
    entry_seconds: ClassVar[float] = 50e-9  # of a hundred terms, which take 0.5 ns each
    column_seconds: ClassVar[float] = 0.0
    _takes_csr: ClassVar[bool] = True
    _follows_entries: ClassVar[bool] = False
    _strip_buffers: ClassVar[int] = 3
    """A sparse product (a value and an index of 8 bytes for each entry) and the same made dense."""

    term_weighting: TermWeighting = "tfidf"
    normalized: bool = field(default=True, kw_only=True)
    ngram_range: tuple[int, int] = (1, 1)
    min_df: int | float = 1
    lowercase: bool = field(default=True, kw_only=True)
    token_pattern: str = TOKEN_PATTERN
    n_features: int | None = None
    vocabulary: tuple[str, ...] | None = None
    idf: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        choice(self.term_weighting, "term_weighting", get_args(TermWeighting))
        for name in ("normalized", "lowercase"):
            object.__setattr__(self, name, flag(getattr(self, name), name))
        object.__setattr__(self, "ngram_range", _checked_range(self.ngram_range))
        object.__setattr__(self, "min_df", _checked_min_df(self.min_df))
        _check_pattern(self.token_pattern)
        if self.n_features is not None:
            object.__setattr__(self, "n_features", whole(self.n_features, "n_features", 1, maximum=MAX_HASHED))
            if self.vocabulary is not None or self.min_df != 1:
                raise InputError(
                    "n_features is given beside vocabulary or min_df; expected it alone: hashed terms have none"
                )
        if self.vocabulary is not None:
            object.__setattr__(self, "vocabulary", _checked_vocabulary(self.vocabulary))
        if self.idf is not None:
            object.__setattr__(self, "idf", self._checked_idf(self.idf))

    def __repr__(self) -> str:
        # Messages would be unreadable with ten thousand terms.
        shown = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}
        for name, what in (("vocabulary", "terms"), ("idf", "numbers")):
            if name in shown:
                shown[name] = f"<{len(shown[name])} {what}>"
        text = (f"{k}={v if k in ('vocabulary', 'idf') else repr(v)}" for k, v in shown.items())
        return f"{type(self).__qualname__}({', '.join(text)})"

    def fitted(self, X: Any) -> Kernel:
        """Kernel with the vocabulary and the rarities of documents; what it already has is kept.

        Rows of numbers leave it unchanged. A corpus without any term is refused.
        """
        if not self._lacks or (documents := as_documents(X)) is None:
            return self
        if not documents:
            raise InputError("the corpus is empty; expected at least 1 document to learn the vocabulary from")
        if self.vocabulary is not None or self.n_features is not None:
            return replace(self, idf=_idf(self._counts(documents)))
        try:
            vectorizer = self._vectorizer()
            counts = vectorizer.fit_transform(documents)
        except ValueError as error:
            # The only possible reason: the settings have been checked.
            raise InputError(
                f"none of the {len(documents)} documents has a term: no {self._term} matches token_pattern="
                f"{self.token_pattern!r}; expected at least 1: change token_pattern or ngram_range"
            ) from error
        n_having = _document_counts(counts)
        min_documents = self.min_df if isinstance(self.min_df, int) else self.min_df * len(documents)
        kept = np.flatnonzero(n_having >= min_documents)
        if not kept.size:
            raise InputError(
                f"min_df is {self.min_df} and the most frequent term is in {n_having.max()} of {len(documents)} "
                "documents; expected at least 1 term to be kept: use a smaller min_df"
            )
        terms = vectorizer.get_feature_names_out()
        return replace(
            self,
            vocabulary=tuple(str(terms[k]) for k in kept),
            idf=_idf(counts[:, kept]) if self.term_weighting == "tfidf" else None,
        )

    def encode(self, X: Any) -> Any:
        """Weights of documents, CSR of shape (n_documents, n_terms); rows of numbers are returned unchanged.

        They are not divided by the norms of rows: the kernel does that.
        """
        documents = as_documents(X)
        if documents is None:
            return X
        if self._lacks:
            # Learning from a block would make the kernel depend on the block.
            raise InputError(
                f"the bag of words has no {self._lacks} yet; expected a fitted kernel: use "
                "kernel.fitted(training documents)"
                + ("" if self._lacks == "idf" else ', or hashing, BagOfWords("counts", n_features=2**18)')
            )
        counts = self._counts(documents)
        if self.idf is not None:
            counts.data *= np.asarray(self.idf)[counts.indices]
        return counts

    def _dense_workspace_bytes(self, n_rows: int, n_columns: int, n_features: int) -> int:
        """Upper bound of the temporary memory for CSR rows with up to MANY_TERMS terms on average."""
        rows = (n_rows + n_columns) * (TERM_BYTES * min(n_features, MANY_TERMS) + 64)
        # Transposed rows have a row for each term, empty or not.
        transposes = 8 * (n_features + 1) * (-(-n_columns // LARGE_STRIP_ROWS) + 2)
        return rows + transposes + self._strip_buffers * 8 * STRIP_ENTRIES + FIXED_WORKSPACE_BYTES

    @property
    def has_unit_diagonal(self) -> bool:
        return self.normalized

    @property
    def row_degree(self) -> float | None:
        return self._of_rows.row_degree

    @property
    def learns_values(self) -> bool:
        return bool(self._lacks)

    @property
    def _of_rows(self) -> Kernel:
        """The kernel of encoded rows."""
        return Cosine() if self.normalized else Linear()

    @property
    def _lacks(self) -> str:
        """Name of the first field that `fitted` has to set; empty if none."""
        if self.vocabulary is None and self.n_features is None:
            return "vocabulary"
        return "idf" if self.term_weighting == "tfidf" and self.idf is None else ""

    @property
    def _term(self) -> str:
        low, high = self.ngram_range
        return "word" if high == 1 else f"run of {low} words" if low == high else f"run of {low} to {high} words"

    def _block_writer(self, X: Block, Y: Block, dtype: np.dtype[Any]) -> Fill:
        return self._of_rows._block_writer(X, Y, dtype)

    def _diagonal(self, X: Block) -> npt.NDArray[np.float64]:
        return self._of_rows._diagonal(X)

    def _vectorizer(self) -> Any:
        """The vectoriser of scikit-learn with these settings."""
        # Imported inside: processes that only compute blocks get rows of numbers, and need no scikit-learn.
        from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer

        settings: dict[str, Any] = {
            "lowercase": self.lowercase,
            "token_pattern": self.token_pattern,
            "ngram_range": self.ngram_range,
            "binary": self.term_weighting == "binary",
            "dtype": np.float64,
        }
        if self.n_features is not None:
            # No signs: counts stay counts, and those of terms that share a column never cancel.
            return HashingVectorizer(n_features=self.n_features, norm=None, alternate_sign=False, **settings)
        return CountVectorizer(vocabulary=None if self.vocabulary is None else list(self.vocabulary), **settings)

    def _counts(self, documents: Sequence[str]) -> Any:
        """Number of times that each document has each known term (or 1 for "binary")."""
        width = self.n_features if self.vocabulary is None else len(self.vocabulary)
        if not documents:
            return sp.csr_array((0, width or 0), dtype=np.float64)
        counts = sp.csr_array(self._vectorizer().transform(documents), dtype=np.float64)
        counts.sum_duplicates()
        return counts

    def _checked_idf(self, idf: Any) -> tuple[float, ...]:
        if self.term_weighting != "tfidf":
            raise InputError(
                f'idf is given with {self.term_weighting!r} weights; expected term_weighting="tfidf", or no idf'
            )
        if self.vocabulary is None and self.n_features is None:
            raise InputError("idf is given without vocabulary or n_features; expected the terms that it belongs to")
        width = self.n_features if self.vocabulary is None else len(self.vocabulary)
        try:
            values = np.asarray(idf, np.float64)
        except (TypeError, ValueError) as error:
            raise InputTypeError(f"idf is not a list of numbers ({error}); expected one for each term") from error
        if values.shape != (width,) or not (np.isfinite(values) & (values >= 0)).all():
            raise InputError(
                f"idf has shape {values.shape}; expected ({width},) finite numbers of at least 0, one for each term"
            )
        return tuple(values.tolist())


def _document_counts(counts: Any) -> npt.NDArray[np.int64]:
    """Number of documents that each term is in."""
    return np.bincount(counts.indices, minlength=counts.shape[1])


def _idf(counts: Any) -> tuple[float, ...]:
    """Smooth inverse document frequencies of scikit-learn, as if one more document had every term."""
    from sklearn.feature_extraction.text import TfidfTransformer

    return tuple(TfidfTransformer(norm=None).fit(counts).idf_.tolist())


def _checked_range(value: Any) -> tuple[int, int]:
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != 2:
        raise InputTypeError(f"ngram_range is {shown(value)}; expected two whole numbers, such as (1, 2)")
    low, high = (whole(v, "ngram_range", 1) for v in value)
    if low > high:
        raise InputError(f"ngram_range is {value!r}; expected the smaller number first")
    return low, high


def _checked_min_df(value: Any) -> int | float:
    if isinstance(value, float | np.floating):
        if not 0.0 < value <= 1.0:
            raise InputError(f"min_df is {value!r}; expected a fraction in (0, 1], or a whole number of documents")
        return float(value)
    return whole(value, "min_df", 1)


def _check_pattern(pattern: Any) -> None:
    try:
        n_groups = re.compile(pattern).groups if isinstance(pattern, str) else None
    except re.error as error:
        raise InputError(f"token_pattern is {pattern!r}; expected a regular expression: {error}") from error
    if n_groups is None:
        raise InputTypeError(f"token_pattern is {shown(pattern)}; expected a regular expression as a string")
    if n_groups > 1:
        raise InputError(f"token_pattern is {pattern!r} with {n_groups} groups; expected at most 1: use (?:…)")


def _checked_vocabulary(vocabulary: Any) -> tuple[str, ...]:
    is_list = isinstance(vocabulary, Sequence | np.ndarray) and not isinstance(vocabulary, str | bytes)
    is_list = is_list and np.ndim(np.asarray(vocabulary, object)) > 0
    if not is_list or not all(isinstance(term, str) for term in vocabulary):
        what = f"has items that are not strings: {vocabulary!r:.60}" if is_list else f"is {vocabulary!r:.60}"
        raise InputTypeError(f"vocabulary {what}; expected a list of strings, one for each column in order")
    terms = tuple(str(term) for term in vocabulary)
    if not terms:
        raise InputError("vocabulary is empty; expected at least 1 term")
    if len(set(terms)) < len(terms):
        twice = Counter(terms).most_common(1)[0][0]
        raise InputError(f"vocabulary has {twice!r} more than once; expected every term once")
    return terms
