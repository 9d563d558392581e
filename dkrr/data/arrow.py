"""Containers of tables: Arrow in memory, or Parquet, of which row groups are read; all others are copied to Parquet.

A row in the middle of a CSV file is found only by reading all rows before it, and a lazy frame is computed for every
look at it. The copy is in a temporary file, with all columns in compressed row groups.
"""

import logging
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, reduce
from itertools import accumulate, chain
from typing import Any

import narwhals
import numpy as np
import pyarrow
import pyarrow.compute
import pyarrow.csv
import pyarrow.dataset
import pyarrow.ipc
import pyarrow.parquet
from numpy.typing import NDArray

from dkrr.cluster.folders import PrivateFolder
from dkrr.data.table import BATCH_ROWS, Column, Kind, check_names
from dkrr.errors import InputError, InputTypeError

logger = logging.getLogger(__name__)

GROUP_ROWS = 65536
"""Rows of a row group of a copy."""
BLOCK_BYTES = 8 * 2**20
"""Bytes of a CSV file that are parsed at once."""
HEADER_BYTES = 2**20
"""Bytes in which a CSV file has its first line."""


class Source:
    """Container of the columns of a table: Arrow in memory, or a data set in Parquet, read by columns and row groups.

    Parameters
    ----------
    data : pyarrow.Table, str or list of str
        The table; or file, folder, or files; a URL of a file system that fsspec knows.
    label : str
        What messages call it.
    owner : object, optional
        Owner of a temporary file, which is kept as long as this source; it does not travel to other processes.

    Raises
    ------
    InputError
        If it does not exist, or is not in Parquet.
    """

    def __init__(self, data: Any, label: str = "the table", owner: Any = None) -> None:
        self._data, self.label, self._owner = data, label, owner
        self.is_in_memory = isinstance(data, pyarrow.Table)
        with reading(label):
            _ = self.columns

    def __getstate__(self) -> dict[str, Any]:
        kept = ("_data", "label", "is_in_memory")
        return {name: getattr(self, name) for name in kept} | {"_owner": None}

    @cached_property
    def _dataset(self) -> Any:
        filesystem, place = None, self._data
        if isinstance(place, str) and "://" in place:
            from fsspec.core import url_to_fs

            filesystem, place = url_to_fs(place)
        return pyarrow.dataset.dataset(place, filesystem=filesystem, format="parquet", partitioning="hive")

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """All columns, in order."""
        schema = self._data.schema if self.is_in_memory else self._dataset.schema
        is_float32 = pyarrow.types.is_float32
        return tuple(Column(each.name, kind_of(each.type), str(each.type), is_float32(each.type)) for each in schema)

    @cached_property
    def _groups(self) -> list[tuple[Any, int, int]]:
        """Fragment, number within it, and rows of each row group."""
        with reading(self.label):
            return [
                (fragment, group.id, int(group.num_rows))
                for fragment in self._dataset.get_fragments()
                for group in fragment.row_groups
                if group.num_rows
            ]

    @cached_property
    def edges(self) -> Sequence[int]:
        """First rows of what can only be decoded as a whole, and the number of rows."""
        return (0, self._data.num_rows) if self.is_in_memory else (0, *accumulate(rows for *_, rows in self._groups))

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return int(self.edges[-1])

    def batches(self, start: int, stop: int, names: Sequence[str]) -> Iterator[pyarrow.RecordBatch]:
        """Some columns of the rows start ... stop − 1, in consecutive batches of at most BATCH_ROWS rows."""
        if self.is_in_memory:
            part = self._data.select(list(names)).slice(start, stop - start)
            yield from part.to_batches(max_chunksize=BATCH_ROWS)
            return
        for k in range(bisect_right(self.edges, start) - 1, len(self._groups)):
            fragment, number, rows = self._groups[k]
            first = self.edges[k]
            if first >= stop:
                return
            with reading(self.label):
                stream = fragment.subset(row_group_ids=[number]).to_batches(
                    schema=self._dataset.schema,
                    columns=list(names),
                    batch_size=min(BATCH_ROWS, rows),
                    batch_readahead=0,
                    fragment_readahead=0,
                    use_threads=False,
                )
                for batch in stream:
                    last = first + batch.num_rows
                    if last > start and first < stop:
                        skip = max(start - first, 0)
                        yield batch.slice(skip, min(stop, last) - first - skip)
                    first = last
                    if first >= stop:
                        return

    @staticmethod
    def numbers(column: Any) -> NDArray[Any]:
        """Numbers of a column: float32 and whole numbers as they are, others as float64, what is missing as NaN."""
        types = pyarrow.types
        if types.is_boolean(column.type):
            column = column.cast(pyarrow.uint8())
        elif types.is_decimal(column.type) or types.is_null(column.type):
            column = column.cast(pyarrow.float64())
        return np.asarray(column.to_numpy(zero_copy_only=False))

    def complete(self, names: Sequence[str]) -> "Source":
        """Copy of the rows in which no value of some columns is missing."""
        everything = self.batches(0, self.n_rows, [column.name for column in self.columns])
        first = next(everything, None)
        if first is None:
            return self

        def batches() -> Iterator[Any]:
            for batch in chain([first], everything):
                is_missing = [pyarrow.compute.is_null(batch.column(name), nan_is_null=True) for name in names]
                yield batch.filter(pyarrow.compute.invert(reduce(pyarrow.compute.or_, is_missing)))

        found = _written(f"{self.label} without incomplete rows", first.schema, batches())
        logger.info(
            "%s: %s of %s rows left out, in which values of %s are missing",
            self.label,
            f"{self.n_rows - found.n_rows:,}",
            f"{self.n_rows:,}",
            ", ".join(names),
        )
        return found


def kind_of(dtype: Any) -> Kind:
    """What a type of Arrow holds."""
    types = pyarrow.types
    if types.is_integer(dtype) or types.is_floating(dtype) or types.is_boolean(dtype) or types.is_decimal(dtype):
        return "number"
    if types.is_null(dtype):
        return "number"  # all values are missing, as the message says
    if types.is_string(dtype) or types.is_large_string(dtype) or types.is_string_view(dtype):
        return "text"
    if types.is_dictionary(dtype):
        return "category"
    return "date" if types.is_temporal(dtype) else "other"


@contextmanager
def reading(label: str) -> Iterator[None]:
    """Report errors of Arrow, of frames and of the file system as bad input, with the name of the table."""
    try:
        yield
    except (pyarrow.ArrowException, OSError, ValueError, ImportError, RuntimeError) as error:
        if isinstance(error, InputError):
            raise
        text = str(error).strip().partition("\n")[0] or type(error).__name__
        raise InputError(
            f"cannot read {label}: {text}; expected a whole table, with names and texts in Unicode"
        ) from error


def source_of(value: Any) -> Source | None:
    """Source of a frame of any library that narwhals knows, in memory or lazy; None of other values."""
    if isinstance(value, pyarrow.RecordBatch):
        value = pyarrow.Table.from_batches([value])
    with reading("the frame"):
        frame = narwhals.from_native(value, pass_through=True)
        if isinstance(frame, narwhals.LazyFrame):
            return _copied("the lazy frame", lambda path: _sink(frame, path))
        if not isinstance(frame, narwhals.DataFrame):
            return None
        names = [name for name in frame.columns if not isinstance(name, str)]
        if names:
            raise InputTypeError(f"the frame has the column {names[0]!r}; expected names of text for all columns")
        label = "the table" if isinstance(value, pyarrow.Table) else "the frame"
        return Source(narwhals.maybe_reset_index(frame).to_arrow(), label)  # an index is not a column


def csv_source(paths: list[str], label: str) -> Source:
    """Copy of CSV files with the same names of columns in their first lines, which may be compressed.

    Types are those that all values of a column have: where a later value is not what the first ones were, the column is
    read again as float64, or as text.
    """
    with reading(label):
        delimiter, names = _header(paths[0], label)
    if all(re.fullmatch(r"\s*[-+]?[\d.]+([eE][-+]?\d+)?\s*", name) for name in names):
        raise InputError(
            f"{label} has numbers in its first line ({', '.join(names[:3])}, ...); expected the names of the columns "
            f"there: write them, or save the numbers as .npy"
        )
    check_names(names, label)
    types: dict[str, Any] = {}

    def opened(file: str) -> Any:
        read = pyarrow.csv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES)
        parse, convert = pyarrow.csv.ParseOptions(delimiter=delimiter), pyarrow.csv.ConvertOptions(column_types=types)
        return pyarrow.csv.open_csv(file, read, parse, convert)

    def batches() -> Iterator[Any]:
        for file in paths:
            stream = opened(file)
            if stream.schema.names != list(types):
                raise InputError(f"{file} has other columns than {paths[0]}; expected {list(types)}")
            yield from stream

    with reading(label):
        while True:
            # The types of the first block; one without values says nothing.
            found = {each.name: each.type for each in opened(paths[0]).schema}
            types |= {name: pyarrow.float64() if pyarrow.types.is_null(kind) else kind for name, kind in found.items()}
            try:
                return _written(label, pyarrow.schema(list(types.items())), batches())
            except pyarrow.ArrowInvalid as error:
                column = re.search(r"In CSV column #(\d+)", str(error))
                name = None if column is None else list(types)[int(column[1])]
                if name is None or pyarrow.types.is_string(types[name]):
                    raise
                types[name] = pyarrow.float64() if pyarrow.types.is_integer(types[name]) else pyarrow.string()


def _header(path: str, label: str) -> tuple[str, list[str]]:
    """Delimiter of a CSV file, and the names in its first line."""
    with pyarrow.input_stream(path, compression="detect") as stream:
        line = stream.read(HEADER_BYTES).partition(b"\n")[0]
    try:
        text = line.decode("utf-8-sig").rstrip("\r")
    except UnicodeDecodeError as error:
        raise InputError(f"{label} is not text in UTF-8 ({error}); expected a CSV file in UTF-8: convert it") from None
    if not text.strip():
        raise InputError(f"{label} is empty; expected the names of the columns in its first line")
    delimiter = max(",;\t", key=text.count)
    return delimiter, [name.strip('" ') for name in text.split(delimiter)]


def arrow_source(paths: list[str], label: str) -> Source:
    """Copy of files in Arrow's own format (IPC, Feather), as streams or with an index."""

    def batches() -> Iterator[Any]:
        for name in paths:
            with pyarrow.OSFile(name) as file:
                stream = _opened(file)
                is_stream = hasattr(stream, "read_next_batch")
                yield from stream if is_stream else map(stream.get_batch, range(stream.num_record_batches))

    with reading(label), pyarrow.OSFile(paths[0]) as file:
        return _written(label, _opened(file).schema, batches())


def _opened(file: Any) -> Any:
    """Reader of a file of Arrow, with an index or without one."""
    try:
        return pyarrow.ipc.open_file(file)
    except pyarrow.ArrowInvalid:
        file.seek(0)
        return pyarrow.ipc.open_stream(file)


def _written(label: str, schema: Any, batches: Iterable[Any]) -> Source:
    """Copy of batches, in their order."""

    def write(path: str) -> None:
        with pyarrow.parquet.ParquetWriter(path, schema) as writer:
            for batch in batches:
                writer.write_batch(batch, row_group_size=GROUP_ROWS)

    return _copied(label, write)


def _copied(label: str, write: Callable[[str], None]) -> Source:
    """Source of a temporary file in Parquet, which `write` writes; it goes with the source."""
    folder = PrivateFolder("table")
    path = f"{folder.path}/table.parquet"
    write(path)
    return Source(path, label, folder)


def _sink(frame: Any, path: str) -> None:
    try:
        if frame.implementation.is_polars():
            frame.to_native().sink_parquet(path, row_group_size=GROUP_ROWS)
        else:
            frame.sink_parquet(path)
    except Exception as error:
        raise InputError(f"the lazy frame cannot be computed: {error}") from error
