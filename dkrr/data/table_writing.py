"""Tables written a block of rows at a time (Parquet, CSV, Arrow's own format), and columns of others copied to them."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.ipc
import pyarrow.parquet
from numpy.typing import NDArray

from dkrr.data.arrow import kind_of
from dkrr.data.table import Table
from dkrr.errors import InputError
from dkrr.store.places import place_at

WRITERS: dict[str, Callable[[Any, Any], Any]] = {
    ".parquet": pyarrow.parquet.ParquetWriter,
    ".csv": pyarrow.csv.CSVWriter,
    ".arrow": pyarrow.ipc.new_file,
    ".feather": pyarrow.ipc.new_file,
}
"""What writes a table to an open file, by the end of its name."""
GROUP_ROWS = 65536
"""Rows of a row group, and of a batch: blocks are put together until they have as many."""


def write_table(
    place: str, names: Iterable[str], dtype: np.dtype[Any], kept: Table | None, blocks: Iterable[NDArray[Any]]
) -> None:
    """Write blocks of rows of one type, behind columns of another table with as many rows.

    Parameters
    ----------
    place : str
        Path or URL that ends as one of `WRITERS` does.
    names : iterable of str
        Names of the columns of the blocks.
    dtype : dtype
        Their type; object is text.
    kept : Table, optional
        Columns that are copied.
    blocks : iterable of ndarray of shape (m, number of names)

    Raises
    ------
    InputError
        If a name or a label is not text in Unicode, or a column has a type that the format does not take.
    """
    kind = pyarrow.string() if dtype.kind == "O" else pyarrow.from_numpy_dtype(dtype)
    keys = None if kept is None else KeptColumns(kept)
    try:
        schema = pyarrow.schema([*([] if keys is None else keys.schema), *((name, kind) for name in names)])
        with _opened(place, schema) as write:
            for block in blocks:
                columns = [pyarrow.array(block[:, k], kind) for k in range(block.shape[1])]
                left = [] if keys is None else keys.take(len(block)).columns
                write(pyarrow.Table.from_arrays([*left, *columns], schema=schema))
    except UnicodeError as error:
        raise InputError(
            f"a name or a label of the predictions is not text in Unicode ({error}); expected names and labels that "
            f"tables can hold: write the predictions as .npy"
        ) from error


class KeptColumns:
    """Columns of a table that are read once, so many rows at a time as are asked for."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._batches = table.source.batches(0, table.n_rows, table.names)
        self._left = _plain(pyarrow.Table.from_batches([next(self._batches)]))

    @property
    def schema(self) -> Any:
        """Names and types of the columns; those of categories are those of their values."""
        return self._left.schema

    def take(self, n: int) -> Any:
        """Next n rows, as a table of Arrow."""
        parts = [self._left]
        while sum(len(part) for part in parts) < n:
            parts.append(_plain(pyarrow.Table.from_batches([next(self._batches)])).cast(self.schema))
        found = pyarrow.concat_tables(parts)
        self._left = found.slice(n)
        return found.slice(0, n)

    def types(self) -> list[np.dtype[Any]]:
        """Types of NumPy of the columns; object for text.

        Raises
        ------
        InputError
            If a column holds neither numbers nor text.
        """
        for name, kind in self._table.kinds.items():
            if kind in ("date", "other"):
                raise InputError(
                    f"keep has the column {name!r} of {self.schema.field(name).type}; expected numbers or text for "
                    f".zarr: write .parquet, or leave it out"
                )
        return [_numpy_type(field.type) for field in self.schema]

    def arrays(self, n: int) -> list[NDArray[Any]]:
        """Next n rows as arrays of the types that `types` returns.

        Raises
        ------
        InputError
            If a value is missing that an array of Zarr cannot mark as such.
        """
        found = self.take(n)
        for name, column in zip(found.column_names, found.columns, strict=True):
            if column.null_count and _numpy_type(column.type).kind != "f":
                raise InputError(
                    f"keep has missing values in column {name!r}; expected values in all rows for .zarr: write "
                    f".parquet, or leave it out"
                )
        return [
            np.asarray(column.to_numpy()).astype(dtype, copy=False)
            for column, dtype in zip(found.columns, map(_numpy_type, found.schema.types), strict=True)
        ]


def _numpy_type(kind: Any) -> np.dtype[Any]:
    if pyarrow.types.is_decimal(kind) or pyarrow.types.is_null(kind):
        return np.dtype(np.float64)
    found: np.dtype[Any] = np.dtype(object if kind_of(kind) == "text" else kind.to_pandas_dtype())
    return found


def _plain(table: Any) -> Any:
    """Table whose categories are the values that they stand for: batches may number them differently."""
    fields = [
        field.with_type(field.type.value_type) if pyarrow.types.is_dictionary(field.type) else field
        for field in table.schema
    ]
    return table.cast(pyarrow.schema(fields))


@contextmanager
def _opened(place: str, schema: Any) -> Iterator[Callable[[Any], None]]:
    """Yield a function that appends a table to a new file, which is whole when the block ends."""
    make = next(make for end, make in WRITERS.items() if place.endswith(end))
    held: list[Any] = []

    def flush() -> None:
        if held:
            writer.write_table(pyarrow.concat_tables(held).combine_chunks())
            held.clear()

    def append(table: Any) -> None:
        held.append(table)
        if sum(map(len, held)) >= GROUP_ROWS:
            flush()

    with ExitStack() as stack:
        file = stack.enter_context(place_at(place).written())
        try:
            writer = stack.enter_context(make(file, schema))
            yield append
            flush()
        except pyarrow.ArrowNotImplementedError as error:
            raise InputError(f"keep has a column that {make.__name__} does not take: {error}; leave it out") from error
