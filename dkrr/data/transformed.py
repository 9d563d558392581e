"""Rows behind a fitted transformer: transformed a block at a time, when they are read.

In front of the transformer are rows as a user gives them, arrays and tables of any types, also read a block at a time.
Values in columns of categories that a fitted encoder does not know are named with their column.
"""

import threading
from collections.abc import Iterator
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dkrr.checks import shown
from dkrr.data.arrays import canonical, is_dask_frame, partition_lengths
from dkrr.data.open import as_rows
from dkrr.data.rows import ALL, Block, Rows, cut, first_bad, joined, taken
from dkrr.data.table import FrameRows, Table
from dkrr.data.table_opening import opened
from dkrr.errors import DkrrError, InputError, InputTypeError
from dkrr.sparse import check_structure

BLOCK_BYTES = 16 * 2**20
"""Rows that are transformed together, as float64."""
MAX_BLOCK_ROWS = 16384


class HeldRows(Rows):
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


class PartitionRows(Rows):
    """Rows of a Dask DataFrame, whose partitions are computed when they are read; their lengths are computed here."""

    is_lazy = True
    dtype = np.dtype(object)

    def __init__(self, frame: Any) -> None:
        self.frame, self.names = frame, tuple(map(str, frame.columns))
        self.lengths = partition_lengths(frame)

    @property
    def shape(self) -> tuple[int, int]:
        return (sum(self.lengths), len(self.frame.columns))

    @property
    def edges(self) -> list[int]:
        return list(accumulate(self.lengths, initial=0))

    def read(self, start: int, stop: int, columns: slice = ALL) -> Any:
        return joined([block.iloc[:, columns] for _, block in self.blocks(start, stop, max(1, stop - start))])

    def blocks(self, start: int, stop: int, height: int) -> Iterator[tuple[slice, Any]]:
        for k, (first, last) in enumerate(pairwise(self.edges)):
            top, bottom = max(first, start), min(last, stop)
            if top < bottom:
                part = self.frame.partitions[k].compute().iloc[top - first : bottom - first]
                yield from cut(part, top, start, height)


def inputs_of(X: Any) -> Rows:
    """Rows in front of a transformer, in any container that an estimator takes: numbers, or blocks of any types.

    Raises
    ------
    InputError
        If they are not a table.
    """
    X = opened(X)
    if isinstance(X, Table):
        return HeldRows(X.to_pandas()) if X.source.is_in_memory else FrameRows(X)
    if is_dask_frame(X):
        return PartitionRows(X)
    if type(X) is np.ndarray or sp.issparse(X) or isinstance(X, list | tuple) or hasattr(X, "iloc"):
        return HeldRows(as_rectangle(X))
    return as_rows(X)


def input_blocks(inputs: Rows) -> Iterator[Any]:
    """All rows in front of a transformer, a block of at most BLOCK_BYTES at a time."""
    for _, block in inputs.blocks(0, inputs.shape[0], block_rows(inputs.shape[1])):
        yield block


def block_rows(width: int) -> int:
    """Rows of a block of at most BLOCK_BYTES."""
    return max(1, min(MAX_BLOCK_ROWS, BLOCK_BYTES // (8 * max(1, width))))


def as_rectangle(X: Any) -> Any:
    """An ndarray, sparse matrix or DataFrame, checked to have rows and columns.

    Raises
    ------
    InputError
        If it has other dimensions, or none of one.
    """
    if sp.issparse(X):
        check_structure(X)
    elif not hasattr(X, "iloc"):
        try:
            X = np.asarray(X)
        except (TypeError, ValueError, RecursionError) as error:
            raise InputError(f"X is not a table: {error}; expected rows × columns") from error
    if X.ndim != 2 or 0 in X.shape:
        raise InputError(f"X has shape {X.shape}; expected a table of at least one row and one column")
    return X


def unknown_value(transformer: Any, block: Any, first: int = 0) -> str:
    """What is wrong with the first value that an encoder in a fitted transformer does not know; empty if there is none.

    Parameters
    ----------
    transformer : transformer of scikit-learn, fitted
    block : ndarray or DataFrame of shape (m, d)
    first : int
        Number of its first row.
    """
    for name, column, known in _encoded(transformer, block):
        expected = set(known.tolist())
        missing = None in expected or any(value != value for value in expected)  # NaN, which is not equal to itself
        for row, value in enumerate(np.asarray(column, dtype=object)):
            if value in expected or ((value is None or value != value) and missing):
                continue
            listed = ", ".join(map(shown, known[:5].tolist())) + (", ..." if len(known) > 5 else "")
            return (
                f"column {name!r} of X holds {shown(value)} in row {first + row}, and the transformer was fitted on "
                f"{listed}; expected one of {len(known)} known values: leave such rows out, fit with rows that hold "
                f"it, or have other values ignored (--unknown zeros, OneHotEncoder(handle_unknown='ignore'))"
            )
    return ""


def _encoded(transformer: Any, block: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Name, values and known values of each column that an encoder takes as it is in the block."""
    if hasattr(transformer, "transformers_"):  # of a ColumnTransformer
        for _, part, columns in transformer.transformers_:
            if hasattr(part, "transform"):
                yield from _encoded(part, _taken(block, columns))
    elif hasattr(transformer, "steps"):  # later ones of a Pipeline take what the first makes
        yield from _encoded(transformer.steps[0][1], block)
    elif hasattr(transformer, "transformer_list"):  # of a FeatureUnion
        for _, part in transformer.transformer_list:
            yield from _encoded(part, block)
    elif hasattr(transformer, "categories_"):
        names = list(getattr(block, "columns", range(block.shape[1])))
        values = block.to_numpy(dtype=object) if hasattr(block, "to_numpy") else block
        for k, known in enumerate(transformer.categories_):
            yield names[k], values[:, k], known


def _taken(block: Any, columns: Any) -> Any:
    """Columns of a block by their names or numbers, as a fitted ColumnTransformer lists them."""
    if not hasattr(block, "iloc"):
        return block[:, columns]
    chosen = [columns] if isinstance(columns, str) else columns
    by_name = not isinstance(chosen, slice) and all(isinstance(one, str) for one in chosen)
    return block[list(chosen)] if by_name else block.iloc[:, chosen]


FLOATS = ("float64", "float32")


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
    try:
        found = transformer.transform(block)
    except DkrrError:
        raise
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
        name, unknown = type(transformer).__name__, ""
        if "unknown categor" in str(error):
            unknown = unknown_value(transformer, block, first)
        raise InputError(unknown or f"X cannot be transformed by {name}, in rows {first} and up: {error}") from error
    found = _as_block(found, transformer)
    if found.shape[0] != block.shape[0]:
        raise InputError(
            f"{type(transformer).__name__} makes {found.shape[0]} rows of {block.shape[0]}; expected one for each"
        )
    bad = first_bad(found)
    if bad is not None:
        what, row, column = bad
        raise InputError(
            f"Input X contains {what}: row {first + row} has it in column {_name(transformer, column)!r} behind the "
            f"transformer; expected finite numbers: put a SimpleImputer into the transformer (--impute), or leave such "
            f"rows out"
        )
    return found


def _as_block(found: Any, transformer: Any) -> Block:
    if sp.issparse(found):
        rows = canonical(sp.csr_array(found))
        return rows if rows.dtype.name in FLOATS else rows.astype(np.float64)
    names = list(found.columns) if hasattr(found, "columns") else None
    array = np.asarray(found)
    if array.ndim != 2:
        raise InputTypeError(
            f"{type(transformer).__name__} makes an array of shape {array.shape}; expected rows × columns"
        )
    if array.dtype.kind not in "biuf":
        array = _as_numbers(array, transformer, names)
    return array if array.dtype.name in FLOATS else array.astype(np.float64)


def _as_numbers(array: NDArray[Any], transformer: Any, names: list[Any] | None) -> NDArray[np.float64]:
    """Numbers of an array of objects, as scikit-learn makes it of a table with columns of several types."""
    out = np.empty(array.shape)
    for k in range(array.shape[1]):
        column = array[:, k]
        is_text = array.dtype.kind != "O" or any(isinstance(value, str | bytes) for value in column)
        try:
            if is_text:
                raise ValueError(f"it holds {shown(column[0])}")
            out[:, k] = column.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise InputTypeError(
                f"column {_name(transformer, k, names)!r} behind the transformer does not hold numbers ({error}); "
                f"expected numbers: encode it by OneHotEncoder or OrdinalEncoder, or drop it"
            ) from error
    return out


def _name(transformer: Any, column: int, names: list[Any] | None = None) -> Any:
    """Name of a column that a transformer makes; its number where it has none."""
    if names is None:
        try:
            names = list(transformer.get_feature_names_out())
        except (AttributeError, ValueError, TypeError, LookupError):
            return column
    return str(names[column])


def transformed_inputs(transformer: Any, inputs: Rows) -> Any:
    """Rows behind a fitted transformer: at once if they are in memory, else whenever they are read."""
    if isinstance(inputs, HeldRows):
        return transformed_block(transformer, inputs.table)
    return TransformedRows(inputs, transformer)


class TransformedRows(Rows):
    """Rows behind a fitted transformer, which are transformed whenever they are read.

    Parameters
    ----------
    inputs : Rows
        Rows in front of it.
    transformer : transformer of scikit-learn, fitted
        Where it makes sparse rows, their entries are counted in a pass over all rows, when that is first asked for.
    """

    is_computed = True

    def __init__(self, inputs: Rows, transformer: Any) -> None:
        self.inputs, self.transformer, self.is_lazy = inputs, transformer, inputs.is_lazy
        head = transformed_block(transformer, next(inputs.blocks(0, 1, 1))[1])
        self._width, self._dtype, self.is_sparse = int(head.shape[1]), head.dtype, sp.issparse(head)
        self._cursor = threading.local()

    @property
    def shape(self) -> tuple[int, int]:
        return (self.inputs.shape[0], self._width)

    @property
    def dtype(self) -> Any:
        return self._dtype

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
        return block_rows(width if self.is_sparse else max(width, self._width))

    @property
    def n_bytes(self) -> int:
        if not self.is_sparse:
            return super().n_bytes
        return int(int(self._counts[-1]) * (np.dtype(self._dtype).itemsize + 4) + self._counts.nbytes)

    @property
    def read_overhead_bytes(self) -> int:
        d = self.inputs.shape[1] + self._width
        return 2 * 8 * d * self.block_rows + self.inputs.read_overhead_bytes

    def task_edges(self, height: int) -> list[int]:
        return self.inputs.task_edges(height)

    def blocks(self, start: int, stop: int, height: int) -> Iterator[tuple[slice, Block]]:
        """See base class; rows are transformed in blocks of their own, which are cut."""
        for where, block in self._blocks_from(start, stop):
            yield from cut(block, where.start, start, height)

    def read(self, start: int, stop: int, columns: slice = ALL) -> Block:
        empty = np.empty((0, self._width), self._dtype)
        parts = [block for _, block in self._consecutive(start, stop)]
        found = joined(parts or [sp.csr_array(empty) if self.is_sparse else empty])
        return found if columns == ALL else found[:, columns]

    def take(self, indices: NDArray[np.intp]) -> Block:
        return taken(self._blocks_from(0, self.shape[0]), indices)

    def _blocks_from(self, start: int, stop: int) -> Iterator[tuple[slice, Block]]:
        for where, block in self.inputs.blocks(start, stop, min(self.block_rows, max(1, stop - start))):
            found = transformed_block(self.transformer, block, where.start)
            if sp.issparse(found) != self.is_sparse:
                found = sp.csr_array(found) if self.is_sparse else found.toarray()
            yield where, found.astype(self._dtype, copy=False)

    def _consecutive(self, start: int, stop: int) -> Iterator[tuple[slice, Block]]:
        """Rows start ... stop − 1; a thread that reads one range behind another transforms each row once."""
        cursor = self._cursor
        if getattr(cursor, "next", None) != start:
            cursor.stream, cursor.left = self._blocks_from(start, self.shape[0]), None
        while start < stop:
            if cursor.left is None:
                where, block = next(cursor.stream)
            else:
                where, block = cursor.left
            last = min(stop, where.stop)
            yield slice(start, last), block[: last - start]
            cursor.left = (slice(last, where.stop), block[last - start :]) if last < where.stop else None
            start = cursor.next = last
        if start >= self.shape[0]:
            cursor.__dict__.clear()  # the last block is not held

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_cursor"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._cursor = threading.local()
