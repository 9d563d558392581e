"""Tables with named columns: which columns they have, blocks of consecutive rows, and rows of their numbers."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import pairwise, repeat, zip_longest
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from dkrr.checks import TEXT_TARGETS_ADVICE, shown, whole
from dkrr.data.arrays import MemoryRows
from dkrr.data.rows import ALL, Block, Rows, cut
from dkrr.errors import InputError, InputTypeError, InputWarning
from dkrr.rounding import check_exact
from dkrr.text import first_names, near_columns, plural

if TYPE_CHECKING:
    import pandas

Kind = Literal["number", "text", "category", "date", "other"]

BATCH_ROWS = 65536
"""Most rows that are decoded at once."""
UNNAMED = re.compile(r"|Unnamed: \d+")
"""Name of the column in which `to_csv` of pandas writes the index, and what `read_csv` calls it."""
MISSING_TEXTS = ("", "NA", "N/A", "NaN", "nan", "NULL", "null", "n/a", "#N/A")
"""Texts that stand for missing numbers in CSV."""
TASK_BYTES = 64 * 2**20
"""Row groups up to this size are read by one task, for it reads a part of one only behind all before it."""


@dataclass(frozen=True)
class Column:
    """A column of a table, as its container describes it."""

    name: str
    kind: Kind
    dtype: str
    """Arrow's name of the type of its values."""
    is_index: bool = False
    """Whether it is the index of a DataFrame, which is a feature only if it is selected by its name."""


@dataclass(frozen=True, repr=False)
class Table:
    """A table with named columns that is read in blocks of rows, whatever contains it; `dkrr.open_table` opens one.

    Every function of dkrr that takes rows takes a table. It is immutable: `select` and `without` return another one.

    Parameters
    ----------
    source : dkrr.data.arrow.Source
        Container of all columns.
    names : tuple of str
        Columns of this table, in order.

    See Also
    --------
    dkrr.open_table : Open a table with named columns.
    dkrr.predict_to : Write predictions to a file or a store.

    Examples
    --------
    >>> import dkrr, pyarrow
    >>> table = dkrr.open_table(pyarrow.table({"distance": [1.5, 2.0], "delay": [3.0, -1.0], "origin": ["JFK", "EWR"]}))
    >>> table.select("d*").names, table.n_rows
    (('distance', 'delay'), 2)
    >>> table.kinds["origin"]
    'text'
    """

    source: Any
    names: tuple[str, ...]

    @classmethod
    def of(cls, source: Any) -> Table:
        """Table of all columns of a source but those of an index.

        Parameters
        ----------
        source : dkrr.data.arrow.Source
            Container of all columns.

        Returns
        -------
        Table
            Table that reads the source.

        Raises
        ------
        InputError
            If it has no columns, or two with one name.
        """
        check_names([column.name for column in source.columns], source.label)
        return cls(source, tuple(column.name for column in source.columns if not column.is_index))

    def __repr__(self) -> str:
        return f"Table of {self.source.label}: {plural(len(self.names), 'column')} ({first_names(self.names)})"

    def __len__(self) -> int:
        return self.n_rows

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return int(self.source.n_rows)

    @property
    def edges(self) -> Sequence[int]:
        """First rows of what can only be decoded as a whole (row groups of Parquet), and the number of rows."""
        edges: Sequence[int] = self.source.edges
        return edges

    @property
    def all_names(self) -> tuple[str, ...]:
        """Columns of the container, also those that were not selected, and those of an index."""
        return tuple(column.name for column in self.source.columns)

    @property
    def index(self) -> tuple[str, ...]:
        """Columns of the container that are the index of a DataFrame: patterns do not match them, their names do."""
        return tuple(column.name for column in self.source.columns if column.is_index)

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """The columns of this table."""
        known = {column.name: column for column in self.source.columns}
        return tuple(known[name] for name in self.names)

    @property
    def kinds(self) -> dict[str, Kind]:
        """Kind of each column: "number" (flags too), "text", "category", "date" or "other"."""
        return {column.name: column.kind for column in self.columns}

    def select(self, patterns: str | Iterable[str], name: str = "columns") -> Table:
        """Table of some of the columns.

        Parameters
        ----------
        patterns : str or sequence of str
            Names, or patterns with ``*``, ``?`` and ``[...]``; one text may hold several with commas between. Columns
            that a pattern matches are in the order of the table, without those of an index. Each column is taken once.
        name : str, default="columns"
            What errors call the argument.

        Returns
        -------
        Table
            Table of these columns, in the order in which they are named.

        Raises
        ------
        InputError
            If a pattern matches no column; the message suggests names.
        """
        found: dict[str, None] = {}
        for pattern in split_patterns(patterns, self.all_names, name):
            matched = matching(pattern, self.names, self.index)
            if not matched and pattern in self.all_names:
                raise InputError(
                    f"{name} has {pattern!r}, a column of {self.source.label} that was not selected before; expected "
                    f"one of those that were: {first_names(self.names)}"
                )
            if not matched:
                raise InputError(
                    f"{name} has {pattern!r}, and {self.source.label} has no such column; expected "
                    f"{near_columns(pattern, self.names)}"
                )
            found |= dict.fromkeys(matched)
        return replace(self, names=tuple(found))

    def without(self, names: Iterable[str]) -> Table:
        """Table of the other columns, which may be none.

        Parameters
        ----------
        names : iterable of str
            Columns to leave out; names that the table does not have are ignored.

        Returns
        -------
        Table
            Table of the other columns.
        """
        dropped = set(names)
        return replace(self, names=tuple(name for name in self.names if name not in dropped))

    def drop_missing(self, columns: str | Iterable[str] | None = None) -> Table:
        """Table of the rows in which no value of some columns is missing, copied once to a temporary Parquet file.

        Parameters
        ----------
        columns : str or sequence of str, optional
            Names or patterns among all columns of the container, such as that of the targets; None: those of this
            table.

        Returns
        -------
        Table
            With the same columns.
        """
        checked = self if columns is None else Table.of(self.source).select(columns)
        return replace(self, source=self.source.complete(checked.names)) if checked.names else self

    def blocks(
        self, height: int = BATCH_ROWS, *, start: int = 0, stop: int | None = None
    ) -> Iterator[tuple[int, pandas.DataFrame]]:
        """Go through the rows once, in consecutive blocks.

        Parameters
        ----------
        height : int, default=65536
            Most rows of a block.
        start, stop : int
            First row, and the row after the last one; default: all rows.

        Yields
        ------
        first_row : int
        block : pandas.DataFrame
            At most `height` rows, with all columns in their own types.
        """
        height, first = whole(height, "height", 1), start
        for batch in self.source.batches(start, self.n_rows if stop is None else stop, self.names):
            for k in range(0, batch.num_rows, height):
                rows = batch.slice(k, height)
                yield first, rows.to_pandas(ignore_metadata=True)
                first += rows.num_rows

    def to_pandas(self) -> pandas.DataFrame:
        """All rows as a DataFrame in memory."""
        import pyarrow

        schema = pyarrow.schema([self.source.schema.field(name) for name in self.names])
        batches = self.source.batches(0, self.n_rows, self.names)
        return pyarrow.Table.from_batches(list(batches), schema).to_pandas(ignore_metadata=True)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the numbers that `numbers` returns: float32 where it holds those of all columns, else float64."""
        return np.dtype(np.float32 if all(column.dtype == "float" for column in self.columns) else np.float64)

    def check_content(self, name: str) -> None:
        """Refuse a table without columns or rows by InputError, and warn of columns that are an index by accident.

        Parameters
        ----------
        name : str
            What errors call the argument.
        """
        if not self.names:
            index = (
                f" and of an index, which is used where it is named: {first_names(self.index)}" if self.index else ""
            )
            raise InputError(f"{name} has no columns left; expected at least one besides those that are targets{index}")
        if self.n_rows == 0:
            raise InputError(f"{name} is empty: {self.source.label} has no rows, a minimum of 1 is required")
        for column in filter(UNNAMED.fullmatch, self.names):
            warnings.warn(
                f"{name} has the column {column!r}, number {self.all_names.index(column)} (counted from 0) of "
                f"{self.source.label}, as pandas writes an index into CSV: its values are used as those of any other "
                f"column. Write the file with to_csv(index=False), or select the columns (columns=)",
                InputWarning,
                stacklevel=2,
            )

    def check_numeric(self, name: str = "X") -> None:
        """Refuse columns of text, categories, dates and others.

        Parameters
        ----------
        name : str, default="X"
            What errors call the argument.

        Raises
        ------
        InputTypeError
            Naming the first such column, and the remedies.
        """
        for column in self.columns:
            if column.kind != "number":
                others = [other.name for other in self.columns if other.kind == "number"]
                values = (block[column.name] for _, block in replace(self, names=(column.name,)).blocks())
                stray = stray_text(values) if column.kind == "text" else None
                raise InputTypeError(not_numbers(name, column.name, column.kind, column.dtype, others, stray))

    def numbers(self, start: int, stop: int, *, name: str = "X") -> NDArray[Any]:
        """Rows start ... stop − 1 as an array of shape (stop − start, number of columns), of `dtype`.

        Parameters
        ----------
        start, stop : int
            First row, and the row after the last one.
        name : str, default="X"
            What errors call the argument.

        Returns
        -------
        ndarray, shape (stop − start, number of columns)
            Numbers.

        Raises
        ------
        InputError
            If a column does not hold numbers, a value is missing, or a whole number is not exact in float64; the
            message names the column.
        """
        return np.asarray(TableRows(self, name).read(start, stop))

    def rows(self, indices: NDArray[np.intp], *, name: str = "X") -> NDArray[Any]:
        """Some rows, by number in any order, as `numbers`; parts without any of them are not decoded.

        Parameters
        ----------
        indices : ndarray of int
            Numbers of the rows.
        name : str, default="X"
            What errors call the argument.

        Returns
        -------
        ndarray, shape (number of indices, number of columns)
            Numbers.
        """
        return np.asarray(TableRows(self, name).take(np.asarray(indices)))

    def values(self) -> NDArray[Any]:
        """Values of one column, of shape (n,), in a type of NumPy: numbers, flags, or text as objects.

        Missing values are None or NaN.
        """
        return np.asarray(self.to_pandas()[self.names[0]].to_numpy())


def stray_text(blocks: Iterable[pandas.Series]) -> tuple[int, Any] | None:
    """Row and value of the first text in a column of mostly numbers; None of a column of text."""
    import pandas

    row = n_numbers = 0
    for values in blocks:
        is_number = pandas.to_numeric(values, errors="coerce").notna()
        strays = np.flatnonzero(~is_number & values.notna() & ~values.isin(MISSING_TEXTS))
        n_numbers += int(is_number.sum())
        if len(strays):
            return (row + int(strays[0]), values.iloc[strays[0]]) if 2 * len(strays) < n_numbers else None
        row += len(values)
    return None


def not_numbers(
    name: str, column: str, kind: str, dtype: str, others: Sequence[str], stray: tuple[int, Any] | None = None
) -> str:
    """Message about a column that does not hold numbers; `others` do. See `stray_text`."""
    if stray is not None:
        row, value = stray
        return (
            f"{name} has {shown(value)} in row {row} (counted from 0) of the column {column!r}, which holds mostly "
            f"numbers; expected numbers in all rows: correct it, or leave it empty if the number is missing"
        )
    if name == "y" and kind in ("text", "category"):
        return f"y is the column {column!r} of {kind} ({dtype}); expected numbers: {TEXT_TARGETS_ADVICE}"
    rest = ",".join(others) or "a,b"
    remedies = {
        "date": "give the days since another date instead",
        "text": "transformer=OneHotEncoder() or --one-hot makes numbers of it, and dkrr.kernels.Columns with "
        "Categories or BagOfWords compares text",
        "category": "transformer=OneHotEncoder() or --one-hot makes numbers of it, and dkrr.kernels.Columns with "
        "Categories compares them",
        "other": "convert it",
    }
    return (
        f"{name} has the column {column!r} of {kind if kind != 'other' else 'other values'} ({dtype}); expected "
        f"numbers: leave it out (columns={shown(rest)}), or {remedies[kind]}"
    )


class TableRows(Rows):
    """Rows of a table, decoded when they are read. Workers do not read these: they are staged first.

    Parameters
    ----------
    table : Table
        All its columns must hold numbers.
    name : str
        What it is called in error messages.
    """

    is_lazy = True

    def __init__(self, table: Table, name: str = "X") -> None:
        table.check_numeric(name)
        self.table, self._name = table, name

    @cached_property
    def shape(self) -> tuple[int, int]:
        return (self.table.n_rows, len(self.table.names))

    @property
    def dtype(self) -> Any:
        return self.table.dtype

    @property
    def is_vector(self) -> bool:
        return len(self.table.names) == 1

    @property
    def edges(self) -> Sequence[int]:
        return self.table.edges

    def read(self, start: int, stop: int, columns: slice = ALL) -> Block:
        names = self.table.names[columns]
        out = np.empty((stop - start, len(names)), self.dtype)
        for first, block in self._decoded(start, stop, names):
            out[first - start : first - start + len(block)] = block
        return out

    def blocks(self, start: int, stop: int, height: int) -> Iterator[tuple[slice, Block]]:
        for first, block in self._decoded(start, stop, self.table.names):
            yield from cut(block, first, start, height)

    def _decoded(self, start: int, stop: int, names: Sequence[str]) -> Iterator[tuple[int, NDArray[Any]]]:
        """First rows and numbers of consecutive blocks of at most BATCH_ROWS rows."""
        source = self.table.source
        for batch in source.batches(start, stop, names):
            block = np.empty((batch.num_rows, len(names)), self.dtype)
            for j, column in enumerate(names):
                block[:, j] = values = source.numbers(batch.column(j))
                if values.dtype.kind == "f" and np.isnan(values).any():
                    raise self._missing(column)
                check_exact(values[:, np.newaxis], self._name, start, [column])
            yield start, block
            start += batch.num_rows

    def _missing(self, column: str) -> InputError:
        """Error that says how many values of a column are missing, and where the first one is."""
        source, count, first, row = self.table.source, 0, 0, 0
        for batch in source.batches(0, source.n_rows, [column]):
            missing = np.isnan(source.numbers(batch.column(0)))
            if count == 0 and missing.any():
                first = row + int(np.argmax(missing))
            count, row = count + int(missing.sum()), row + batch.num_rows
        rows = plural(count, "row")
        return InputError(
            f"{self._name} has missing values (NaN) in column {column!r} of {source.label}: {rows}, the first is row "
            f"{first} (counted from 0); expected a number in every row: leave such rows out (dkrr.open_table("
            f"...).drop_missing({column!r}), or --drop-missing), fill them (transformer=SimpleImputer(), or --impute), "
            f"or leave the column out with columns="
        )

    def task_edges(self, height: int) -> list[int]:
        most = max(height, TASK_BYTES // (8 * len(self.table.names)))
        edges = [0]
        for start, stop in pairwise(self.edges):
            n_ranges = -(-(stop - start) // most)
            if len(edges) > 1 and stop - edges[-2] <= height:
                edges[-1] = stop  # several small groups make one range
            else:
                edges += [start + (stop - start) * k // n_ranges for k in range(1, n_ranges + 1)]
        return edges

    @property
    def read_overhead_bytes(self) -> int:
        # A group is in memory as it is stored, and decoded in batches.
        tallest = max((b - a for a, b in pairwise(self.edges)), default=0)
        return int(tallest * len(self.table.names) * np.dtype(self.table.dtype).itemsize)


class FrameRows(TableRows):
    """Rows of a table with columns of any types: blocks are DataFrames of pandas, which a transformer takes."""

    dtype = np.dtype(object)

    def __init__(self, table: Table) -> None:
        self.table, self.names = table, table.names

    def blocks(self, start: int, stop: int, height: int) -> Iterator[tuple[slice, Block]]:
        for first, block in self.table.blocks(height, start=start, stop=stop):
            yield slice(first, first + len(block)), block


def table_rows(table: Table, name: str) -> Rows:
    """Rows of numbers of a table: read into memory if they are in memory, else decoded when they are read."""
    table.check_content(name)
    return (
        MemoryRows(table.numbers(0, table.n_rows, name=name)) if table.source.is_in_memory else TableRows(table, name)
    )


def regrouped(blocks: Iterable[Any], height: int, join: Callable[[list[Any]], Any]) -> Iterator[Any]:
    """Consecutive blocks of any heights as blocks of `height` rows; the last one may have fewer.

    `join` puts several together: arrays, or tables of Arrow.
    """
    held, n = list[Any](), 0
    for block in blocks:
        held.append(block)
        n += len(block)
        if n >= height:
            whole = join(held)
            yield from (whole[first : first + height] for first in range(0, n - n % height, height))
            n %= height
            held = [whole[len(whole) - n :]] if n else []
    if n:
        yield join(held)


def natural_order(path: str) -> list[Any]:
    """Key by which files are sorted, with numbers in their order as Dask has them: part.2 is before part.10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", path)]


def check_names(names: Sequence[str], label: str) -> None:
    """Refuse a table without columns, and one with two columns of one name; raises InputError."""
    if not names:
        raise InputError(f"{label} has no columns; expected a table with at least one")
    counts = Counter(names)
    twice = next((name for name in names if counts[name] > 1), None)
    if twice is not None:
        raise InputError(f"{label} has two columns {twice!r}; expected a name for each: rename one of them")


def split_patterns(patterns: str | Iterable[str], names: Sequence[str], argument: str = "columns") -> list[str]:
    """Patterns one by one; a text may hold several with commas between, unless it is a name as it stands."""
    expected = "names of columns, or patterns such as 'dep_*'"
    listed: list[str]
    if isinstance(patterns, str):
        listed = [patterns] if patterns in names else [part.strip() for part in patterns.split(",")]
    else:
        is_list = isinstance(patterns, Iterable) and getattr(patterns, "ndim", 1) == 1
        listed = list(patterns) if is_list else []
        if not is_list or not all(isinstance(part, str) for part in listed):
            raise InputTypeError(f"{argument} is {shown(patterns)}; expected {expected}")
    if not listed or not all(listed):
        raise InputError(f"{argument} is {shown(patterns)}; expected {expected}, at least one and none of them empty")
    return listed


def matching(pattern: str, names: Sequence[str], index: Sequence[str] = ()) -> list[str]:
    """Names that a pattern matches, in order: the one that it is, of an index too, or else all that fit it."""
    is_name = pattern in names or pattern in index
    return [pattern] if is_name else [name for name in names if fnmatchcase(name, pattern)]


def beside(
    blocks: Iterable[NDArray[Any]], kept: Iterable[list[Any]] | None
) -> Iterator[tuple[NDArray[Any], list[Any]]]:
    """Blocks of predictions, each with the kept columns of its rows; without columns where none are kept.

    Raises
    ------
    InputError
        If the kept columns have other rows than the predictions: their file has changed meanwhile.
    """
    for block, columns in zip(blocks, repeat([]), strict=False) if kept is None else zip_longest(blocks, kept):
        if block is None or columns is None or any(len(column) != len(block) for column in columns):
            raise InputError(
                "keep has other rows than X has predictions: its file has changed meanwhile; predict again"
            )
        yield block, columns
