"""Transformers fitted to rows that come block by block, in as few passes over them as their stages need.

A learner is shown every block of a pass, and says whether it needs another pass. Those of a ColumnTransformer or a
FeatureUnion learn from the same pass; each step of a Pipeline needs what the steps before it make.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import IncrementalPCA
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, PolynomialFeatures
from sklearn.utils import _safe_indexing, get_tags
from sklearn.utils._indexing import _get_column_indices

from dkrr.errors import DkrrError, InputError
from dkrr.transformers.inputs import Inputs, MemoryInputs
from dkrr.units import format_bytes

HEAD_ROWS = 256
"""Rows of the first block by which a ColumnTransformer learns what its columns are."""
NAMED = ("passthrough", "drop")

Blocks = Callable[[], Iterable[Any]]
"""Function that begins a pass: an iterable of blocks of rows, ndarray, CSR or DataFrame, none of them empty."""


def fitted_transformer(transformer: Any, inputs: Inputs, max_bytes: int) -> Any:
    """Fit a transformer to all rows: by one call if they are in memory, else block by block.

    Parameters and errors are those of `fitted_to_blocks`.
    """
    if isinstance(inputs, MemoryInputs):
        _tried(transformer, transformer.fit, inputs.table)
        return transformer
    return fitted_to_blocks(transformer, inputs.all_blocks, max_bytes)


def fitted_to_blocks(transformer: Any, blocks: Blocks, max_bytes: int) -> Any:
    """Fit a transformer to rows that come block by block.

    Transformers with `partial_fit` see one block after another. Encoders of categories take the union of the categories
    of all blocks, and imputers of means the sums, as one fit to all rows does. Others are fitted to all rows of their
    columns at once.

    Parameters
    ----------
    transformer : transformer of scikit-learn
        Unfitted; it is fitted itself, or a part of what is returned.
    blocks : callable
        Begins a pass over the rows.
    max_bytes : int
        Most memory of rows that are held at once.

    Raises
    ------
    InputError
        If a transformer refuses the rows, or needs more of them in memory.
    """
    learner = learner_of(transformer, max_bytes)
    while True:
        for block in blocks():
            learner.take(block)
        if learner.end_pass():
            return learner.fitted()


class Learner(ABC):
    """One transformer that is being fitted."""

    @abstractmethod
    def take(self, block: Any) -> None:
        """Learn from some rows."""

    def end_pass(self) -> bool:
        """Whether one pass over all rows was enough."""
        return True

    @abstractmethod
    def fitted(self) -> Any:
        """The fitted transformer, once a pass was the last one."""


def learner_of(transformer: Any, max_bytes: int) -> Learner:
    """Learner of a transformer, or of "passthrough" and "drop"."""
    if transformer is None or isinstance(transformer, str):
        return _Named(transformer)
    if isinstance(transformer, Pipeline):
        return _Steps(transformer, max_bytes)
    if isinstance(transformer, ColumnTransformer):
        return _OfColumns(transformer, max_bytes)
    if isinstance(transformer, FeatureUnion):
        return _Union(transformer, max_bytes)
    if isinstance(transformer, OneHotEncoder | OrdinalEncoder) and _has_plain_categories(transformer):
        return _Categories(transformer)
    if type(transformer) is SimpleImputer and transformer.strategy == "mean" and not transformer.add_indicator:
        return _Means(transformer)
    if not get_tags(transformer).requires_fit or type(transformer) is PolynomialFeatures:
        return _FirstBlock(transformer)
    if isinstance(transformer, IncrementalPCA):
        return _Batches(transformer)
    if hasattr(transformer, "partial_fit"):
        return _Partial(transformer)
    return _AtOnce(transformer, max_bytes)


class _Named(Learner):
    """What only has a name."""

    def __init__(self, name: Any) -> None:
        self._name = name

    def take(self, block: Any) -> None:
        pass

    def fitted(self) -> Any:
        return self._name


class _Partial(Learner):
    """A transformer that learns from one block after another."""

    def __init__(self, transformer: Any) -> None:
        self._transformer = transformer

    def take(self, block: Any) -> None:
        with np.errstate(invalid="ignore"):  # reported below
            _tried(self._transformer, self._transformer.partial_fit, block)

    def fitted(self) -> Any:
        # scikit-learn's scalers do not recover from a block in which a column has no value.
        learned = [value for value in vars(self._transformer).values() if getattr(value, "dtype", None) == np.float64]
        if any(np.isnan(value).any() for value in learned):
            raise InputError(
                f"transformer has {self._transformer!r}, and a column has no values in a whole block of rows; expected "
                f"some in each: put a SimpleImputer before it"
            )
        return self._transformer


class _Batches(_Partial):
    """IncrementalPCA, which takes no fewer rows at once than it has components; of as many as its own fit takes."""

    def __init__(self, transformer: Any) -> None:
        super().__init__(transformer)
        self._ready: list[Any] = []
        self._more: list[Any] = []

    def take(self, block: Any) -> None:
        self._more.append(block.copy())  # it may be a view of a larger one
        if sum(part.shape[0] for part in self._more) >= (self._transformer.batch_size or 5 * block.shape[1]):
            if self._ready:
                super().take(_joined(self._ready))
            self._ready, self._more = self._more, []

    def end_pass(self) -> bool:
        super().take(_joined([*self._ready, *self._more]))  # the last rows may be too few
        self._ready, self._more = [], []
        return True


class _FirstBlock(_Partial):
    """A transformer that learns only which columns there are."""

    _is_fitted = False

    def take(self, block: Any) -> None:
        if not self._is_fitted:
            _tried(self._transformer, self._transformer.fit, block)
            self._is_fitted = True


class _AtOnce(Learner):
    """A transformer that learns from all rows at once."""

    def __init__(self, transformer: Any, max_bytes: int) -> None:
        self._transformer, self._max_bytes = transformer, max_bytes
        self._blocks: list[Any] = []
        self._bytes = 0

    def take(self, block: Any) -> None:
        self._blocks.append(block.copy())  # it may be a view of a larger one
        self._bytes += _bytes_of(block)
        if 2 * self._bytes > self._max_bytes:  # they are put together before they are released
            raise InputError(
                f"transformer has {self._transformer!r}, which learns from all rows at once, and the columns that it "
                f"takes need more than half of the memory limit ({format_bytes(self._max_bytes)}); expected one with "
                f"partial_fit, such as StandardScaler, or the mean of SimpleImputer: or give it fewer columns, or a "
                f"larger memory_limit"
            )

    def fitted(self) -> Any:
        rows, self._blocks = _joined(self._blocks), []
        _tried(self._transformer, self._transformer.fit, rows)
        return self._transformer


class _Categories(Learner):
    """An encoder: the categories of each column are those of all blocks."""

    def __init__(self, encoder: Any) -> None:
        self._encoder, self._head = encoder, None
        self._found: list[dict[Any, Any]] = []

    def take(self, block: Any) -> None:
        # Fitted to this block alone it finds the categories as it does in all rows.
        here = _tried(self._encoder, clone(self._encoder).set_params(**_lenient(self._encoder)).fit, block)
        if self._head is None:
            self._head, self._found = block[:1], [{} for _ in here.categories_]
        for known, categories in zip(self._found, here.categories_, strict=True):
            known |= {"NaN" if _is_nan(value) else (value,): value for value in categories.tolist()}

    def fitted(self) -> Any:
        columns = [list(known.values()) for known in self._found]
        height = max(map(len, columns))
        padded = [column + column[:1] * (height - len(column)) for column in columns]
        _tried(self._encoder, self._encoder.fit, _as_table(padded, self._head))
        return self._encoder


class _Means(Learner):
    """An imputer of means, which the sums of all blocks give."""

    def __init__(self, imputer: Any) -> None:
        self._imputer, self._head = imputer, None
        self._first = self._total = self._count = np.zeros(0)

    def take(self, block: Any) -> None:
        try:
            values = np.array(block.toarray() if sp.issparse(block) else block, np.float64)
        except (TypeError, ValueError) as error:
            raise InputError(f"transformer cannot be fitted: {self._imputer!r}: {error}") from error
        if self._head is None:
            self._head = block[:1]
            self._first, self._total, self._count = (np.zeros(values.shape[1]) for _ in range(3))
        missing = self._imputer.missing_values
        is_known = ~np.isnan(values) if _is_nan(missing) else values != missing
        # Sums of differences from the first value of a column: digits of large values are not lost in long sums.
        begins = (self._count == 0) & is_known.any(axis=0)
        self._first[begins] = values[is_known.argmax(axis=0), np.arange(values.shape[1])][begins]
        self._total += np.where(is_known, values - self._first, 0.0).sum(axis=0)
        self._count += is_known.sum(axis=0)

    def fitted(self) -> Any:
        known = self._first + self._total / np.maximum(self._count, 1)
        means = [[mean if n else self._imputer.missing_values] for mean, n in zip(known, self._count, strict=True)]
        _tried(self._imputer, self._imputer.fit, _as_table(means, self._head, np.float64))
        return self._imputer


class _Steps(Learner):
    """A Pipeline: a step learns from what the fitted steps before it make."""

    def __init__(self, pipeline: Any, max_bytes: int) -> None:
        self._pipeline, self._max_bytes = pipeline, max_bytes
        self._done: list[Any] = []
        self._begin()

    def _begin(self) -> None:
        self._learner = learner_of(self._pipeline.steps[len(self._done)][1], self._max_bytes)

    def take(self, block: Any) -> None:
        for step in self._done:
            if not isinstance(step, str | None):
                block = _tried(step, step.transform, block)
        self._learner.take(block)

    def end_pass(self) -> bool:
        if not self._learner.end_pass():
            return False
        self._done.append(self._learner.fitted())
        while len(self._done) < len(self._pipeline.steps):
            self._begin()
            if not isinstance(self._learner, _Named):
                return False
            self._done.append(self._learner.fitted())
        return True

    def fitted(self) -> Any:
        names = [name for name, _ in self._pipeline.steps]
        self._pipeline.steps = list(zip(names, self._done, strict=True))
        return self._pipeline


class _Several(Learner):
    """A transformer of several that learn side by side."""

    def __init__(self, transformer: Any, max_bytes: int) -> None:
        self._transformer, self._max_bytes = transformer, max_bytes
        self._learners: list[Learner] = []
        self._open: set[int] = set()

    def _begin(self, transformers: Iterable[Any]) -> None:
        self._learners = [learner_of(transformer, self._max_bytes) for transformer in transformers]
        self._open = set(range(len(self._learners)))

    def end_pass(self) -> bool:
        self._open -= {k for k in self._open if self._learners[k].end_pass()}
        return not self._open


class _Union(_Several):
    """A FeatureUnion: its parts take the same rows."""

    def __init__(self, union: Any, max_bytes: int) -> None:
        super().__init__(union, max_bytes)
        self._begin(part for _, part in union.transformer_list)

    def take(self, block: Any) -> None:
        for k in self._open:
            self._learners[k].take(block)

    def fitted(self) -> Any:
        names = [name for name, _ in self._transformer.transformer_list]
        parts = [learner.fitted() for learner in self._learners]
        self._transformer.transformer_list = list(zip(names, parts, strict=True))
        return self._transformer


class _OfColumns(_Several):
    """A ColumnTransformer: each part takes some of the columns."""

    _head: Any = None

    def take(self, block: Any) -> None:
        if self._head is None:
            self._head = block[:HEAD_ROWS]
            _tried(self._transformer, self._choose, self._head)
        for k in self._open:
            if self._columns[k]:
                self._learners[k].take(_safe_indexing(block, self._columns[k], axis=1))

    def _choose(self, head: Any) -> None:
        """Columns of every part, and of the rest of them."""
        parts = self._transformer.transformers
        chosen = [columns(head) if callable(columns) else columns for _, _, columns in parts]
        self._columns = [list(_get_column_indices(head, columns)) for columns in chosen]
        rest = sorted(set(range(head.shape[1])).difference(*self._columns))
        self._columns.append(rest)
        transformers = [*(part for _, part, _ in parts), self._transformer.remainder]
        # A part without columns stays unfitted, as scikit-learn leaves it.
        self._begin(part if self._columns[k] else "drop" for k, part in enumerate(transformers))

    def fitted(self) -> Any:
        made, names = self._transformer, [name for name, _, _ in self._transformer.transformers]
        given, rest = made.transformers, made.remainder
        parts = [learner.fitted() for learner in self._learners]
        frozen = [part if isinstance(part, str) else FrozenEstimator(part) for part in parts]
        # Its own fit finds the positions of what the parts make; frozen parts do not learn from the first rows again.
        made.transformers = [
            (name, part, columns) for name, part, (_, _, columns) in zip(names, frozen[:-1], given, strict=True)
        ]
        made.remainder = frozen[-1]
        _tried(made, made.fit, self._head)
        made.transformers, made.remainder = given, rest
        made.transformers_ = [(name, _thawed(part), columns) for name, part, columns in made.transformers_]
        name, part, columns = made._remainder
        made._remainder = (name, _thawed(part), columns)
        return made


def _thawed(part: Any) -> Any:
    return part.estimator if isinstance(part, FrozenEstimator) else part


def _has_plain_categories(encoder: Any) -> bool:
    """Whether an encoder learns which categories there are, and not how many rows have each."""
    is_auto = isinstance(encoder.categories, str) and encoder.categories == "auto"
    return is_auto and encoder.min_frequency is None and encoder.max_categories is None


def _lenient(encoder: Any) -> dict[str, Any]:
    """Settings with which an encoder can be fitted to a block that has few of the categories."""
    return {"drop": None} if isinstance(encoder, OneHotEncoder) else {}


def _as_table(columns: list[list[Any]], head: Any, dtype: Any = None) -> Any:
    """Columns as rows of the kind that `head` has, a DataFrame with its names or an array, and of its types."""
    if not hasattr(head, "columns"):
        # Text has no length that all of it shares.
        return np.array(columns, dtype or (head.dtype if head.dtype.kind != "U" else None)).T
    import pandas as pd

    kinds = [dtype or (object if kind == "category" else kind) for kind in head.dtypes]
    # A column of whole numbers becomes one of float64 in blocks where a value is missing.
    kinds = [None if any(map(_is_nan, column)) else kind for column, kind in zip(columns, kinds, strict=True)]
    found = [pd.Series(column, dtype=kind) for column, kind in zip(columns, kinds, strict=True)]
    return pd.DataFrame(dict(zip(head.columns, found, strict=True)))


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and value != value


def _joined(blocks: list[Any]) -> Any:
    if sp.issparse(blocks[0]):
        return sp.vstack(blocks, format="csr")
    if isinstance(blocks[0], np.ndarray):
        return np.concatenate(blocks)
    import pandas as pd

    return pd.concat(blocks, ignore_index=True)


def _bytes_of(block: Any) -> int:
    if hasattr(block, "memory_usage"):
        return int(block.memory_usage(deep=True).sum())
    return int(block.data.nbytes + block.indices.nbytes) if sp.issparse(block) else int(block.nbytes)


def _tried(transformer: Any, function: Callable[[Any], Any], rows: Any) -> Any:
    """What a method of a transformer returns; InputError with its own message."""
    try:
        return function(rows)
    except DkrrError:
        raise
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
        raise InputError(f"transformer cannot be fitted: {type(transformer).__name__}: {error}") from error
