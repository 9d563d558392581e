"""A transformer of scikit-learn in front of a model: fitted to rows of any kind, and applied to blocks of them.

In front of the transformer are rows as a user gives them, arrays and tables of any types, also read a block at a time:
it is fitted in memory, or block by block through its public `partial_fit`. Rows after it are transformed when they are
read. Values in columns of categories that a fitted encoder does not know are named with their column.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, clone
from sklearn.compose import ColumnTransformer
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.utils import get_tags
from sklearn.utils.validation import check_is_fitted

from dkrr.checks import parse_bytes, shown
from dkrr.data.arrays import canonical
from dkrr.data.dask_rows import PartitionRows, is_dask_frame
from dkrr.data.open import as_rows, load_labels
from dkrr.data.rows import ALL, Block, Rows, cut, dense, first_bad, joined, n_bytes, taken
from dkrr.data.table import FrameRows, Table
from dkrr.data.table_opening import table_or_value
from dkrr.data.watched import watched
from dkrr.errors import DkrrError, InputError, InputTypeError
from dkrr.kernels import Kernel
from dkrr.kernels.columns import learns
from dkrr.limits import available_bytes
from dkrr.rounding import check_exact
from dkrr.sparse import check_structure
from dkrr.text import first_names, format_bytes, plural

TRANSFORM_BLOCK_BYTES = 16 * 2**20
"""Rows that are transformed together, as float64."""
MAX_TRANSFORM_ROWS = 16384
HEAD_ROWS = 256
"""Rows of the first block, by which a ColumnTransformer of fitted parts learns which columns they make."""
STANDARDIZE = "standardize"
EXPECTED = f"None, {STANDARDIZE!r}, or a transformer of scikit-learn such as StandardScaler()"
REFUSALS = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, ImportError)
"""Errors by which a transformer says that it cannot take the rows, or not make the frames that are asked of it."""


class InMemoryRows(Rows):
    """Rows of an ndarray, a sparse matrix or a DataFrame in memory, of any types."""

    dtype = np.dtype(object)

    def __init__(self, table: Any) -> None:
        self.table = sp.csr_array(table) if sp.issparse(table) else table
        self.names = tuple(map(str, table.columns)) if hasattr(table, "columns") else None

    @property
    def shape(self) -> tuple[int, int]:
        return (int(self.table.shape[0]), int(self.table.shape[1]))

    def read(self, start: int, stop: int, columns: slice = ALL) -> Any:
        return getattr(self.table, "iloc", self.table)[start:stop, columns]


def inputs_of(X: Any) -> Rows:
    """Rows in front of a transformer, in any container that an estimator takes: numbers, or blocks of any types.

    Raises
    ------
    InputError
        If they are not a table.
    """
    X = table_or_value(X)
    if isinstance(X, Table):
        X.check_content("X")
        return InMemoryRows(X.to_pandas()) if X.source.is_in_memory else FrameRows(X)
    if is_dask_frame(X) and X.ndim == 2:
        X = PartitionRows(X)
    elif not (type(X) is np.ndarray or sp.issparse(X) or isinstance(X, list | tuple) or hasattr(X, "iloc")):
        return as_rows(X)
    elif sp.issparse(X):
        check_structure(X)
    elif isinstance(X, list | tuple):
        X = load_labels(X, "X")
    if len(X.shape) != 2 or 0 in X.shape:
        raise InputError(f"X has shape {X.shape}; expected a table of at least one row and one column")
    return X if isinstance(X, Rows) else InMemoryRows(X)


def block_rows(width: int) -> int:
    """Rows of a block of at most TRANSFORM_BLOCK_BYTES."""
    return max(1, min(MAX_TRANSFORM_ROWS, TRANSFORM_BLOCK_BYTES // (8 * max(1, width))))


def input_blocks(inputs: Rows) -> Iterator[Any]:
    """All rows in front of a transformer, a block of at most TRANSFORM_BLOCK_BYTES at a time."""
    for _, block in inputs.blocks(0, inputs.shape[0], block_rows(inputs.shape[1])):
        yield block


def checked_transformer(transformer: Any, kernel: Kernel) -> Any:
    """Fitted transformer unchanged, or an unfitted copy of an unfitted one.

    Raises
    ------
    InputError
        If it is not one, learns from the targets, or is in front of a kernel that does not take rows of numbers.
    """
    found = transformer
    if isinstance(transformer, type):
        raise InputTypeError(
            f"transformer is the class {transformer.__name__}; expected {EXPECTED}: write {transformer.__name__}()"
        )
    if isinstance(transformer, str):
        if transformer != STANDARDIZE:
            raise InputError(f"transformer is {shown(transformer)}; expected {EXPECTED}")
        found = StandardScaler()
    elif not isinstance(transformer, ColumnSteps):
        if not isinstance(transformer, BaseEstimator) or not hasattr(transformer, "transform"):
            raise InputTypeError(f"transformer is {shown(transformer)}; expected {EXPECTED}")
        if isinstance(transformer, FrozenEstimator):
            if not is_fitted(transformer):
                inner = transformer.estimator
                raise InputError(
                    f"transformer is {shown(transformer)}, which is never fitted, and its {type(inner).__name__} was "
                    f"not; expected a fitted one in it, such as FrozenEstimator({type(inner).__name__}().fit(sample)), "
                    f"or transformer={shown(inner)}"
                )
        elif get_tags(transformer).target_tags.required:
            raise InputError(
                f"transformer is {shown(transformer)}, which learns from the targets; expected one of X alone: put it "
                f"before the estimator in a sklearn.pipeline.Pipeline"
            )
        found = transformer if is_fitted(transformer) else clone(transformer)
    if kernel.is_precomputed or learns(kernel):
        taken_as_x = "a Gram matrix" if kernel.is_precomputed else "documents, graphs or tables"
        raise InputError(
            f"transformer is {shown(transformer)} with kernel={kernel!r}, which takes {taken_as_x} as X; expected a "
            f"kernel of rows of numbers, or transformer=None"
        )
    return found


def is_fitted(transformer: Any) -> bool:
    """Whether a transformer is used unchanged: it has learned from rows, or is frozen and has nothing to learn."""
    if isinstance(transformer, FrozenEstimator):
        return not _is_unfitted(transformer.estimator)
    if isinstance(transformer, Pipeline):  # which asks its last step only
        learning = [s for _, s in transformer.steps if not isinstance(s, str | None) and get_tags(s).requires_fit]
        return bool(learning) and all(map(is_fitted, learning))
    try:
        check_is_fitted(transformer)
    except NotFittedError:
        return False
    return bool(get_tags(transformer).requires_fit)


def _is_unfitted(transformer: Any) -> bool:
    """Whether a transformer has something to learn from rows, and has not learned it."""
    if isinstance(transformer, Pipeline):
        return any(_is_unfitted(step) for _, step in transformer.steps if not isinstance(step, str | None))
    return bool(get_tags(transformer).requires_fit) and not is_fitted(transformer)


def fitted_transformer(transformer: Any, inputs: Rows, memory_limit: int | str | None) -> Any:
    """Transformer that is fitted to all rows; one that was fitted before is unchanged.

    Rows that are read in blocks are learned from block by block by a transformer with `partial_fit`, and put together
    in memory for others.

    Parameters
    ----------
    transformer : transformer of scikit-learn, or ColumnSteps
        Fitted itself, but for ColumnSteps.
    inputs : Rows
    memory_limit : int or str, optional
        Most memory of rows that are held at once; None: what the machine has available.

    Raises
    ------
    InputError
        If the transformer refuses the rows, or needs more of them in memory.
    """
    max_bytes = available_bytes() if memory_limit is None else parse_bytes(memory_limit)
    if isinstance(transformer, ColumnSteps):
        return transformer.fitted_to(inputs, max_bytes)
    if is_fitted(transformer):
        return transformer
    if isinstance(inputs, InMemoryRows):
        return _tried(transformer, transformer.fit, inputs.table)
    blocks = input_blocks(inputs)
    if not get_tags(transformer).requires_fit:  # it learns only which columns there are
        return _tried(transformer, transformer.fit, next(blocks))
    if hasattr(transformer, "partial_fit"):
        return _learned(transformer, blocks)
    return _tried(transformer, transformer.fit, _together(transformer, blocks, max_bytes, inputs.shape))


def _learned(transformer: Any, blocks: Iterable[Any]) -> Any:
    """Transformer that has learned from all blocks; the last one may be too small for its `partial_fit`."""
    held: Any = None
    last: Any = None
    # scikit-learn's scalers do not recover from a block in which a column has no value, which is refused after them.
    with np.errstate(invalid="ignore"):
        for block in blocks:
            if held is not None:
                _tried(transformer, transformer.partial_fit, held)
            held, last = last, block.copy()  # it may be a view of a larger one
        return _tried(transformer, transformer.partial_fit, last if held is None else joined([held, last]))


def _together(transformer: Any, blocks: Iterable[Any], max_bytes: int, shape: tuple[int, int] = (0, 0)) -> Any:
    """All rows in memory, whose numbers have this shape."""
    found, held_bytes = [], 0
    for block in blocks:
        found.append(block.copy())  # it may be a view of a larger one
        held_bytes += n_bytes(block)
        if 2 * max(held_bytes, 8 * shape[0] * shape[1]) > max_bytes:  # they are put together before they are released
            raise InputError(
                f"transformer is {transformer!r}, which learns from all rows at once, and these need more than half of "
                f"the memory limit ({format_bytes(max_bytes)}); expected a fitted one: fit it first on a sample, and "
                f"give the fitted transformer, or one with partial_fit, or a larger memory_limit"
            )
    return joined(found)


def _tried(transformer: Any, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a method of a transformer; re-raise its error as InputError."""
    squares = np.errstate(over="raise") if isinstance(transformer, StandardScaler) else nullcontext()
    try:
        with squares:
            return function(*arguments)
    except FloatingPointError as error:
        raise InputError(
            "transformer cannot be fitted: the squares of a column of X exceed the range of float64 (1e308), so "
            "that it has no standard deviation; expected columns nearer to 1: look for outliers in X"
        ) from error
    except DkrrError:
        raise
    except REFUSALS as error:
        raise InputError(f"transformer cannot be fitted: {type(transformer).__name__}: {error}") from error


@dataclass(frozen=True)
class ColumnSteps:
    """Steps for most tables, learned from statistics of all blocks: numbers filled and standardised, text one-hot."""

    one_hot: Sequence[str] = ()
    """Columns that become one for each value; without any the steps are of all columns."""
    standardize: bool = False
    """Whether numbers are brought to mean 0 and standard deviation 1."""
    impute: str | None = None
    """Strategy by which missing numbers are filled; all but "mean" need the rows in memory."""
    takes_unknown: bool = False
    """Whether values that the fit has not seen become zeros in all their columns; otherwise they are an error."""

    def fitted_to(self, inputs: Rows, max_bytes: int) -> Any:
        """Fitted transformer of scikit-learn, in one pass over the rows for each step; raises as fitted_transformer."""
        text, steps = list(self.one_hot), list[Any]()
        numbers = [name for name in inputs.names or () if name not in self.one_hot]

        def blocks() -> Iterator[Any]:
            for block in input_blocks(inputs):
                found = block[numbers] if text else block
                for step in steps:
                    found = step.transform(found)
                yield found

        imputer = SimpleImputer(strategy=self.impute or "mean")
        if self.impute == "mean":
            steps.append(_tried(imputer, imputer.fit, _means(imputer, blocks())))
        elif self.impute is not None:
            steps.append(_tried(imputer, imputer.fit, _together(imputer, blocks(), max_bytes)))
        if self.standardize:
            steps.append(_learned(StandardScaler(), blocks()))
        of_numbers = steps[0] if len(steps) == 1 else make_pipeline(*(steps or ["passthrough"]))
        if not text:
            return of_numbers
        head = next(input_blocks(inputs))[:HEAD_ROWS]
        encoder = self._encoder(inputs).fit(head[text])
        parts = [("one_hot", FrozenEstimator(encoder), text), ("numbers", FrozenEstimator(of_numbers), numbers)]
        found = ColumnTransformer(parts, verbose_feature_names_out=False)
        return _tried(found, found.fit, head)

    def _encoder(self, inputs: Rows) -> Any:
        """Encoder with the values of all blocks."""
        known: dict[str, list[Any]] = {name: [] for name in self.one_hot}
        for block in input_blocks(inputs):
            for name, values in known.items():
                values[:] = [joined([*values, block[name]]).drop_duplicates()]
        one = OneHotEncoder()
        categories = [_tried(one, one.fit, values.to_frame()).categories_[0] for (values,) in known.values()]
        return OneHotEncoder(categories=categories, handle_unknown="ignore" if self.takes_unknown else "error")


def _means(imputer: Any, blocks: Iterable[Any]) -> Any:
    """Row of the means over all blocks, not transformed; NaN where a column has no value."""
    head: Any = None
    count = means = np.zeros(0)
    for block in blocks:
        values = _tried(imputer, np.array, dense(block), np.float64)
        if head is None:
            head, count, means = block[:1], np.zeros(values.shape[1]), np.nan_to_num(values[0])
        count += (~np.isnan(values)).sum(axis=0)
        # Sums of differences from the mean so far: digits of large values are not lost in long sums.
        means += np.nansum(values - means, axis=0) / np.maximum(count, 1)
    means = np.where(count > 0, means, np.nan)[None, :]
    return type(head)(means, columns=head.columns) if hasattr(head, "columns") else means


def transformed_inputs(transformer: Any, inputs: Rows) -> Any:
    """Training rows after a fitted transformer: at once if they are in memory, else whenever they are read.

    They are compared in front of it, since blocks of other heights may have other last digits after it.
    """
    if isinstance(inputs, InMemoryRows):
        return transformed_block(transformer, inputs.table)
    return TransformedRows(watched(inputs), transformer)


def transformed_block(transformer: Any, block: Any, first: int = 0) -> Block:
    """Rows that a fitted transformer makes of some rows: a 2-D ndarray or a CSR array of finite floats.

    Parameters
    ----------
    transformer : transformer of scikit-learn, fitted
    block : ndarray, CSR array or DataFrame of shape (m, d)
    first : int
        Number of the first row, for messages.

    Raises
    ------
    InputError
        If it cannot transform them, or makes anything but finite numbers of them; the message names the column.
    """
    own = transformer.estimator if isinstance(transformer, FrozenEstimator) else transformer
    name = type(own).__name__
    try:
        found = transformer.transform(block)
    except DkrrError:
        raise
    except REFUSALS as error:
        unknown = _unknown_value(transformer, block, first) if "unknown categor" in str(error) else ""
        why = str(error)
        if isinstance(error, AttributeError) and isinstance(
            error.obj, BaseEstimator
        ):  # of a saved one that was changed
            why = f"it is without its {error.name}, which its fit sets: fit it again"
        raise InputError(unknown or f"X cannot be transformed by {name}, in rows {first} and up: {why}") from error
    found = canonical(sp.csr_array(found)) if sp.issparse(found) else np.asarray(found)
    if found.ndim != 2:
        raise InputTypeError(f"{name} makes an array of shape {found.shape}; expected rows × columns")
    if found.shape[0] != block.shape[0]:
        raise InputError(f"{name} makes {plural(found.shape[0], 'row')} of {block.shape[0]}; expected one for each")
    if found.dtype.kind not in "biuf":
        found = _as_numbers(found, transformer)
    check_exact(found, f"X after {name}", first)
    if found.dtype.name not in ("float64", "float32"):
        found = found.astype(np.float64)
    bad = first_bad(found)
    if bad is not None:
        what, row, column = bad
        raise InputError(
            f"Input X contains {what}: row {first + row} has it in column {_name(transformer, column)!r} after the "
            f"transformer; expected finite numbers: put a SimpleImputer into the transformer (--impute), or leave such "
            f"rows out"
        )
    return found


def _as_numbers(array: NDArray[Any], transformer: Any) -> NDArray[np.float64]:
    """Numbers of an array of objects, as scikit-learn makes it of a table with columns of several types."""
    out = np.empty(array.shape)
    for k, column in enumerate(array.T):
        try:
            if array.dtype.kind != "O" or any(isinstance(value, str | bytes) for value in column):
                raise ValueError(f"it holds {shown(column[0])}")
            out[:, k] = column
        except (TypeError, ValueError) as error:
            raise InputTypeError(
                f"column {_name(transformer, k)!r} after the transformer does not hold numbers ({error}); expected "
                f"numbers: encode it by OneHotEncoder or OrdinalEncoder, or drop it"
            ) from error
    return out


def _name(transformer: Any, column: int) -> Any:
    """Name of a column that a transformer makes; its number where it has none."""
    try:
        return str(transformer.get_feature_names_out()[column])
    except REFUSALS:
        return column


def _unknown_value(transformer: Any, block: Any, first: int) -> str:
    """Message about the first value that is unknown to an encoder in a fitted transformer; empty if none is."""
    for encoder in _encoders(transformer) if hasattr(block, "iloc") else ():
        for name, known in zip(getattr(encoder, "feature_names_in_", ()), encoder.categories_, strict=False):
            rows = np.flatnonzero(~block[name].isin(known.tolist()))
            if len(rows):
                listed = first_names(map(shown, known.tolist()))
                return (
                    f"column {name!r} of X holds {shown(block[name].iloc[rows[0]])} in row {first + rows[0]}, and the "
                    f"transformer was fitted on {listed}; expected one of {len(known)} known values: leave such rows "
                    f"out, fit with rows that hold it, or have other values ignored (--unknown zeros, "
                    f"OneHotEncoder(handle_unknown='ignore'))"
                )
    return ""


def _encoders(transformer: Any) -> list[Any]:
    """Encoders in a transformer that take columns of X as they are; later steps of a Pipeline do not."""
    if hasattr(transformer, "categories_"):
        return [transformer]
    of_union = getattr(transformer, "transformer_list", ())
    parts = [*getattr(transformer, "transformers_", of_union), *getattr(transformer, "steps", ())[:1]]
    return [encoder for part in parts for encoder in _encoders(part[1])]


class TransformedRows(Rows):
    """Rows after a fitted transformer, which are transformed whenever they are read.

    Parameters
    ----------
    inputs : Rows
        Rows in front of it.
    transformer : transformer of scikit-learn, fitted
        Where it makes sparse rows, their entries are counted in a pass over all rows, when that is first asked for.
    """

    is_computed = True
    is_checked = True

    def __init__(self, inputs: Rows, transformer: Any) -> None:
        self.inputs, self.transformer, self.is_lazy = inputs, transformer, inputs.is_lazy
        self._head = transformed_block(transformer, next(inputs.blocks(0, 1, 1))[1])
        self.is_sparse = sp.issparse(self._head)

    @property
    def shape(self) -> tuple[int, int]:
        return (self.inputs.shape[0], int(self._head.shape[1]))

    @property
    def dtype(self) -> Any:
        return self._head.dtype

    @cached_property
    def _counts(self) -> NDArray[np.int64]:
        """Pointers of all rows."""
        pointers = np.zeros(self.shape[0] + 1, np.int64)
        for where, block in self._blocks_from(0, self.shape[0]):
            pointers[where.start + 1 : where.stop + 1] = np.diff(block.indptr)
        return np.cumsum(pointers, out=pointers)

    @property
    def pointers(self) -> NDArray[Any] | None:
        return self._counts if self.is_sparse else None

    @property
    def block_rows(self) -> int:
        """Rows that are transformed together."""
        width = self.inputs.shape[1]
        return block_rows(width if self.is_sparse else max(width, self.shape[1]))

    @property
    def n_bytes(self) -> int:
        if not self.is_sparse:
            return super().n_bytes
        return int(int(self._counts[-1]) * (np.dtype(self.dtype).itemsize + 4) + self._counts.nbytes)

    @property
    def read_overhead_bytes(self) -> int:
        d = self.inputs.shape[1] + self.shape[1]
        return 2 * 8 * d * self.block_rows + self.inputs.read_overhead_bytes

    def task_edges(self, height: int) -> list[int]:
        return self.inputs.task_edges(height)

    def blocks(self, start: int, stop: int, height: int) -> Iterator[tuple[slice, Block]]:
        """See base class; rows are transformed in their own blocks, which are cut."""
        for where, block in self._blocks_from(start, stop):
            yield from cut(block, where.start, start, height)

    def read(self, start: int, stop: int, columns: slice = ALL) -> Block:
        """See base class; a thread that reads one range after another transforms each row once."""
        first, block, stream = vars(self._cursor).pop("behind", (None, None, None))
        if first != start:
            block, stream = self._head[:0], self._blocks_from(start, self.shape[0])
        blocks, missing = [block], stop - start - block.shape[0]
        while missing > 0:
            block = next(stream)[1]
            blocks.append(block)
            missing -= block.shape[0]
        end = block.shape[0] + missing
        blocks[-1] = block[:end]
        if stop < self.shape[0]:  # the last block is not held
            self._cursor.behind = stop, block[end:], stream
        found = joined([one for one in blocks if one.shape[0]] or blocks)
        return found if columns == ALL else found[:, columns]

    def take(self, indices: NDArray[np.intp]) -> Block:
        return taken(self._blocks_from(0, self.shape[0]), indices)

    def _blocks_from(self, start: int, stop: int) -> Iterator[tuple[slice, Block]]:
        for where, block in self.inputs.blocks(start, stop, min(self.block_rows, max(1, stop - start))):
            found = transformed_block(self.transformer, block, where.start).astype(self.dtype, copy=False)
            # Of a transformer that returns its input: the rows may be in a buffer that is filled again.
            is_input = isinstance(block, np.ndarray) and isinstance(found, np.ndarray)
            yield where, found.copy() if is_input and np.may_share_memory(found, block) else found

    @cached_property
    def _cursor(self) -> threading.local:
        """Row after those that a thread has read last, what is transformed from there on, and the blocks after it."""
        return threading.local()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_cursor"}
