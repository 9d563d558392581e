"""Tables of Arrow: in memory, or Parquet, of which row groups are read; all other tables are copied to Parquet.

A row in the middle of a CSV file is found only by reading all rows before it, and a lazy frame is computed for every
look at it. The copy is in a temporary file, with all columns in compressed row groups. Predictions are written as
tables, beside columns of the table that they were made of.
"""

import csv
import json
import logging
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, reduce
from itertools import accumulate
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
from dkrr.data.table import BATCH_ROWS, TASK_BYTES, Column, Kind, Table, beside, check_names, natural_order, regrouped
from dkrr.errors import DkrrError, InputError, InputTypeError, is_transient
from dkrr.store.bucket_files import file_system
from dkrr.store.description import COMMAND
from dkrr.store.places import place_at
from dkrr.text import plural

logger = logging.getLogger(__name__)

GROUP_ROWS = 65536
"""Most rows of a row group that is written."""
CSV_BLOCK_BYTES = 4 * 2**20
"""Bytes of a CSV file that are parsed at once: no line is longer, and pyarrow reads 32 such blocks ahead."""
HEADER_BYTES = 2**20
"""Bytes in which a CSV file has its first line."""
ONE_BY_ONE: dict[str, Any] = {
    "batch_size": BATCH_ROWS,
    "batch_readahead": 0,
    "fragment_readahead": 0,
    "use_threads": False,
}
"""Arguments of `to_batches`: it reads in order, with one batch in memory; of a whole Parquet file or CSV file it keeps
what it has read, so these are read otherwise."""
COMPRESSIONS = {"gz": "gzip", "bz2": "bz2", "zst": "zstd"}
"""Compression of a CSV file, by the end of its name."""
ARROW_MAGIC = b"ARROW1"
"""First bytes of a file in Arrow's own format; a stream has others."""
INDEX = re.compile(r"__index_level_\d+__|__null_dask_index__")
"""Names that pandas and Dask give to the columns of an index without a name."""
TYPE_NAMES: dict[Kind, tuple[str, ...]] = {
    "number": ("integer", "floating", "boolean", "decimal", "null"),  # of null all are missing, as messages say
    "text": ("string", "large_string", "string_view"),
    "category": ("dictionary",),
    "date": ("temporal",),
}
"""Arrow's names of the types of each kind."""
NOTE = f"dkrr.{COMMAND}"
"""Key of the digest of a command in the metadata of a schema: of Parquet and of Arrow's formats."""
WRITERS: dict[str, Callable[[Any, Any], Any]] = {
    ".parquet": pyarrow.parquet.ParquetWriter,
    ".csv": pyarrow.csv.CSVWriter,
    ".arrow": pyarrow.ipc.new_file,
    ".feather": pyarrow.ipc.new_file,
}
"""Writers of tables to an open file, by the end of its name."""


class Source:
    """Container of the columns of a table: Arrow in memory, or a data set in Parquet, read by columns and row groups.

    Parameters
    ----------
    data : pyarrow.Table, str or list of str
        The table; or file, folder, or files; URLs of buckets, or of a file system that fsspec knows.
    label : str
        What messages call it.
    owner : object, optional
        Owner of a temporary file, which is kept as long as this source; it does not travel to other processes.

    Attributes
    ----------
    columns : tuple of Column
        All columns, in order.

    Raises
    ------
    InputError
        If it does not exist, or is not in Parquet.
    """

    def __init__(self, data: Any, label: str = "the table", owner: Any = None) -> None:
        self._data, self.label, self._owner = data, label, owner
        self.is_in_memory = isinstance(data, pyarrow.Table)
        with reading(label):
            self.columns = tuple(_columns(self.schema, label))

    def __reduce__(self) -> tuple[Any, ...]:
        return Source, (self._data, self.label)  # opened there again

    @cached_property
    def _dataset(self) -> Any:
        paths = [self._data] if isinstance(self._data, str) else self._data
        files, places = None, list(paths)
        if "://" in paths[0]:
            found = [file_system(path) for path in paths]
            files, places = found[0][0], [place for _, place in found]
        place = places[0] if isinstance(self._data, str) else places
        return pyarrow.dataset.dataset(place, filesystem=files, format="parquet", partitioning="hive")

    @property
    def schema(self) -> pyarrow.Schema:
        """Names and types of Arrow."""
        return self._data.schema if self.is_in_memory else self._dataset.schema

    @cached_property
    def _groups(self) -> list[tuple[Any, int]]:
        """Each row group, as a part of a file, and its number of rows."""
        with reading(self.label):
            return [
                (fragment.subset(row_group_ids=[group.id]), int(group.num_rows))
                for fragment in sorted(self._dataset.get_fragments(), key=lambda each: natural_order(each.path))
                for group in fragment.row_groups
                if group.num_rows
            ]

    @cached_property
    def edges(self) -> Sequence[int]:
        """First rows of what can only be decoded as a whole, and the number of rows."""
        return (0, self._data.num_rows) if self.is_in_memory else (0, *accumulate(rows for _, rows in self._groups))

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return int(self.edges[-1])

    def batches(self, start: int, stop: int, names: Sequence[str]) -> Iterator[pyarrow.RecordBatch]:
        """Some columns of the rows start ... stop − 1, in consecutive batches of at most BATCH_ROWS rows, validated.

        Neither Arrow's memory, which may be a mapped file, nor what is decoded of Parquet has been: a number of a
        category, or the position of a text, that is out of range is read from other memory.
        """
        if self.is_in_memory:
            part = self._data.select(list(names)).slice(start, stop - start)
            for batch in part.to_batches(max_chunksize=BATCH_ROWS):
                with reading(self.label):
                    batch.validate(full=True)
                yield batch
            return
        first, last = bisect_right(self.edges, start) - 1, bisect_left(self.edges, stop)
        row = self.edges[first]
        for fragment, _ in self._groups[first:last]:
            with reading(self.label):
                for batch in fragment.to_batches(self.schema, list(names), **ONE_BY_ONE):
                    batch.validate(full=True)
                    skip = min(max(start - row, 0), batch.num_rows)
                    part = batch.slice(skip, max(min(stop - row, batch.num_rows) - skip, 0))
                    row += batch.num_rows
                    if part.num_rows:
                        yield part
                    if row >= stop:
                        return
        if row < stop:
            raise InputError(
                f"{self.label} ends after row {row - 1}, and had at least {plural(stop, 'row')} when it was opened; "
                "expected the same rows as long as it is used: write others under another name"
            )

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
        rows = self.batches(0, self.n_rows, [column.name for column in self.columns])

        def is_complete(batch: Any) -> Any:
            is_missing = [pyarrow.compute.is_null(batch.column(name), nan_is_null=True) for name in names]
            return pyarrow.compute.invert(reduce(pyarrow.compute.or_, is_missing))

        label = f"{self.label} without incomplete rows"
        found = _copied(label, self.schema, (batch.filter(is_complete(batch)) for batch in rows))
        logger.info(
            "%s: %s of %s rows left out, in which values of %s are missing",
            self.label,
            f"{self.n_rows - found.n_rows:,}",
            f"{self.n_rows:,}",
            ", ".join(names),
        )
        return found


def _columns(schema: Any, label: str) -> Iterator[Column]:
    """Columns of a schema; raises InputError if what pandas has written into it is damaged.

    An index is what the metadata of pandas call so, and what has a name that pandas and Dask give to an index only:
    other programs that read and write such a file leave out the metadata.
    """
    index: Any = []
    written = (schema.metadata or {}).get(b"pandas")
    if written is not None:
        try:
            index = json.loads(written)["index_columns"]
        except (ValueError, LookupError, TypeError, RecursionError):
            index = None
        if not isinstance(index, list):
            raise InputError(
                f"{label} has metadata of pandas that are not JSON with a list of index_columns; expected them as "
                f"pandas writes them: write the table again, or without them"
            )
    for field in schema:
        is_index = field.name in index or INDEX.fullmatch(field.name) is not None
        yield Column(field.name, kind_of(field.type), str(field.type), is_index)


def kind_of(dtype: Any) -> Kind:
    """Kind of the values of an Arrow type."""
    is_one = (
        kind for kind, types in TYPE_NAMES.items() if any(getattr(pyarrow.types, f"is_{t}")(dtype) for t in types)
    )
    return next(is_one, "other")


@contextmanager
def reading(label: str) -> Iterator[None]:
    """Report errors of Arrow, of frames and of the file system as bad input, with the name of the table."""
    try:
        yield
    except FileNotFoundError as error:
        raise InputError(f"the path {label} does not exist") from error
    except (pyarrow.ArrowException, OSError, ValueError, ImportError, RuntimeError, LookupError) as error:
        if isinstance(error, InputError):
            raise
        if isinstance(error, DkrrError):
            raise InputError(f"cannot read {label}: {error}") from error
        text = str(error).strip().partition("\n")[0] or type(error).__name__
        raise InputError(
            f"cannot read {label}: {text}; expected a whole table, with names and texts in Unicode"
        ) from error


def source_of(value: Any) -> Source | None:
    """Source of a frame of any library that narwhals knows, in memory or lazy; None of other values."""
    if isinstance(value, pyarrow.RecordBatch):
        value = pyarrow.Table.from_batches([value])
    if isinstance(value, pyarrow.Table):
        return Source(value)
    with reading("the frame"):
        frame = narwhals.from_native(value, pass_through=True)
        if isinstance(frame, narwhals.LazyFrame):
            return _spooled("the lazy frame", lambda path: _sink(frame, path))
        if not isinstance(frame, narwhals.DataFrame):
            return None
        names = [name for name in frame.columns if not isinstance(name, str)]
        if names:
            raise InputTypeError(f"the frame has the column {names[0]!r}; expected names of text for all columns")
        return Source(narwhals.maybe_reset_index(frame).to_arrow(), "the frame")  # an index is not a column


def _sink(frame: Any, path: str) -> None:
    try:
        if frame.implementation.is_polars():
            frame.to_native().sink_parquet(path, row_group_size=GROUP_ROWS)
        else:
            frame.sink_parquet(path)
    except Exception as error:
        raise InputError(f"the lazy frame cannot be computed: {error}") from error


def csv_source(paths: list[str], label: str) -> Source:
    """Copy of CSV files with the same names of columns in their first lines, which may be compressed.

    Types are those that all values of a column have: where a later value is not what the first ones were, the column is
    read again as float64, or as text.
    """
    with reading(label):
        headers = {path: _header(path) for path in paths}
    delimiter, names = headers[paths[0]]
    if all(re.fullmatch(r"\s*[-+]?[\d.]+([eE][-+]?\d+)?\s*", name) for name in names):
        raise InputError(
            f"{label} has numbers in its first line ({', '.join(names[:3])}, ...); expected the names of the columns "
            f"there: write them, or save the numbers as .npy"
        )
    check_names(names, label)
    _check_same({path: header[1] for path, header in headers.items()})

    def opened(path: str, schema: Any = None) -> Any:
        read = pyarrow.csv.ReadOptions(use_threads=False, block_size=CSV_BLOCK_BYTES)
        parse = pyarrow.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
        return pyarrow.csv.open_csv(_text(path), read, parse, pyarrow.csv.ConvertOptions(column_types=schema))

    types = pyarrow.types
    with reading(label):
        # The types of the first block; one without values says nothing.
        fields = [
            field.with_type(pyarrow.float64()) if types.is_null(field.type) else field
            for field in opened(paths[0]).schema
        ]
        while True:
            schema = pyarrow.schema(fields)
            try:
                return _copied(label, schema, (b for path in paths for b in _whole(path, opened(path, schema))))
            except pyarrow.ArrowInvalid as error:
                found = re.search(r"In CSV column #(\d+)", str(error))
                field = None if found is None else fields[int(found[1])]
                if found is None or field is None or types.is_string(field.type):
                    raise
                wider = pyarrow.float64() if types.is_integer(field.type) else pyarrow.string()
                fields[int(found[1])] = field.with_type(wider)


def _whole(path: str, batches: Iterable[Any]) -> Iterator[Any]:
    """Batches of a CSV file; raises InputError if all after a quote that is not closed was taken for one text."""
    n_rows, last = 0, ""
    for batch in batches:
        yield batch
        if batch.num_rows:
            n_rows, last = n_rows + batch.num_rows, batch.column(batch.num_columns - 1)[-1].as_py()
    if not isinstance(last, str) or not re.search(r"[\r\n]", last):
        return
    end = b""
    with _text(path) as stream:
        while part := stream.read(CSV_BLOCK_BYTES):
            end = (end + part)[-HEADER_BYTES:]
    if not end.rstrip().endswith(b'"'):
        raise InputError(
            f"{path} has a quote in row {n_rows - 1} (counted from 0) that is not closed, so that all lines after it "
            f"are one text; expected a second one: close it, or double it ('\"\"') where it is a part of the text"
        )


def _opened(path: str) -> Any:
    """File of this machine, or in a bucket, as Arrow reads it."""
    if "://" not in path:
        return pyarrow.OSFile(path)
    files, place = file_system(path)
    return pyarrow.PythonFile(files.open(place), "r")


def _text(path: str) -> Any:
    """Content of a CSV file, decompressed."""
    end = path.lower().rpartition(".")[2]
    return pyarrow.input_stream(_opened(path), compression=COMPRESSIONS.get(end))


def _header(path: str) -> tuple[str, list[str]]:
    """Delimiter of a CSV file, and the names in its first line."""
    with _text(path) as stream:
        content = stream.read(HEADER_BYTES).lstrip(b"\r\n")
    line = re.split(rb"[\r\n]", content, maxsplit=1)[0]
    if content and line == content:
        what = "no rows" if len(content) < HEADER_BYTES else "a first line of more than 1 MiB"
        raise InputError(f"{path} has {what}; expected the names of the columns in its first line, and rows below")
    try:
        text = line.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        where = f"{error.reason} at byte {error.start}"  # the error itself holds the whole line
        raise InputError(f"{path} is not text in UTF-8 ({where}); expected a CSV file in UTF-8: convert it") from None
    if not text.strip():
        raise InputError(f"{path} is empty; expected the names of the columns in its first line")
    delimiter = max(",;\t", key=text.count)
    try:
        return delimiter, next(csv.reader([text], delimiter=delimiter))
    except csv.Error as error:
        raise InputError(f"{path}: {error} in its first line; expected the names of the columns there") from error


def arrow_source(paths: list[str], label: str) -> Source:
    """Copy of files in Arrow's own format (IPC, Feather), also of those without an index, which are streams."""

    def batches() -> Iterator[Any]:
        for path in paths:
            file = _opened_ipc(path)
            is_stream = hasattr(file, "read_next_batch")
            for batch in file if is_stream else map(file.get_batch, range(file.num_record_batches)):
                batch.validate(full=True)  # before anything looks at its values: their places may be out of range
                yield batch

    with reading(label):
        schemas = {path: _opened_ipc(path).schema for path in paths}
        schema = schemas[paths[0]]
        check_names(schema.names, label)
        _check_same({path: schema.names for path, schema in schemas.items()})
        return _copied(label, schema, batches())


def _opened_ipc(path: str) -> Any:
    """File in Arrow's own format, or stream."""
    file = _opened(path)
    is_file = file.read(len(ARROW_MAGIC)) == ARROW_MAGIC
    file.seek(0)
    return pyarrow.ipc.open_file(file) if is_file else pyarrow.ipc.open_stream(file)


def _check_same(names: Mapping[str, Sequence[str]]) -> None:
    """Refuse files whose columns have other names than those of the first one, or another order."""
    first = next(iter(names))
    other = next((path for path in names if names[path] != names[first]), None)
    if other is not None:
        raise InputError(f"{other} has other columns than {first}; expected {names[first]}")


def _copied(label: str, schema: Any, batches: Iterable[Any]) -> Source:
    """Copy of batches, in their order."""

    def write(path: str) -> None:
        with pyarrow.parquet.ParquetWriter(path, schema) as writer:
            for table in _grouped(batches, schema, _height(schema)):
                writer.write_table(table)

    return _spooled(label, write)


def _spooled(label: str, write: Callable[[str], None]) -> Source:
    """Source of a temporary file in Parquet, which `write` writes; it goes with the source."""
    folder = PrivateFolder("table")
    path = f"{folder.path}/table.parquet"
    write(path)
    return Source(path, label, folder)


def _height(schema: Any) -> int:
    """Rows of a row group, whose numbers are at most TASK_BYTES."""
    return max(1, min(GROUP_ROWS, TASK_BYTES // (8 * len(schema))))


def _grouped(batches: Iterable[Any], schema: Any, height: int) -> Iterator[Any]:
    """Tables with a given number of rows each, from batches."""
    tables = (pyarrow.Table.from_batches([batch]).cast(schema) for batch in batches)
    return regrouped(tables, height, pyarrow.concat_tables)


# Predictions, beside columns that are kept.


def write_table(
    place: str,
    names: Iterable[str],
    dtype: np.dtype[Any],
    kept: Table | None,
    blocks: Iterable[NDArray[Any]],
    command: str | None,
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
    command : str, optional
        Digest of the command, which `noted_command` finds again; a CSV file has no room for it.

    Raises
    ------
    InputError
        If a column has a type that the format does not take.
    """
    kind = pyarrow.string() if dtype.kind == "O" else pyarrow.from_numpy_dtype(dtype)
    fields = [] if kept is None else _plain_schema(kept)
    note = None if command is None else {NOTE: command}
    schema = pyarrow.schema([*fields, *((name, kind) for name in names)], note)
    height = _height(schema)
    left = None if kept is None else (table.columns for table in _kept_groups(kept, height))
    make = next(make for end, make in WRITERS.items() if place.endswith(end))
    try:
        with place_at(place).written() as file, make(file, schema) as writer:
            for block, columns in beside(regrouped(blocks, height, np.concatenate), left):
                predictions = [pyarrow.array(column, kind) for column in block.T]
                table = pyarrow.Table.from_arrays([*columns, *predictions], schema=schema)
                writer.write_table(table.combine_chunks())
    except pyarrow.ArrowNotImplementedError as error:
        raise InputError(f"keep has a column that {make.__name__} does not take: {error}; leave it out") from error


def noted_command(path: str) -> str | None:
    """Digest of the command that wrote a table; None if there is none, or the file is not a table in that format."""
    if path.endswith(".csv"):
        return None
    try:
        schema = pyarrow.parquet.read_schema(_opened(path)) if path.endswith(".parquet") else _opened_ipc(path).schema
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        if is_transient(error):
            raise
        return None
    note: bytes | None = (schema.metadata or {}).get(NOTE.encode())
    return None if note is None else note.decode(errors="replace")


def _plain_schema(kept: Table) -> Any:
    """Schema of columns whose categories are the values that they stand for: batches may number them differently."""
    fields = map(kept.source.schema.field, kept.names)
    is_category = pyarrow.types.is_dictionary
    return pyarrow.schema([each.with_type(each.type.value_type) if is_category(each.type) else each for each in fields])


def _kept_groups(kept: Table, height: int) -> Iterator[Any]:
    return _grouped(kept.source.batches(0, kept.n_rows, kept.names), _plain_schema(kept), height)


def kept_types(kept: Table) -> dict[str, np.dtype[Any]]:
    """Types of NumPy of columns, by their names; object for text.

    Raises
    ------
    InputError
        If a column holds neither numbers nor text.
    """
    for column in kept.columns:
        if column.kind in ("date", "other"):
            raise InputError(
                f"keep has the column {column.name!r} of {column.dtype}; expected numbers or text for .zarr: write "
                f".parquet, or leave it out"
            )
    return {field.name: _numpy_type(field.type) for field in _plain_schema(kept)}


def _numpy_type(kind: Any) -> np.dtype[Any]:
    if pyarrow.types.is_decimal(kind) or pyarrow.types.is_null(kind):
        return np.dtype(np.float64)
    found: np.dtype[Any] = np.dtype(object if kind_of(kind) == "text" else kind.to_pandas_dtype())
    return found


def kept_arrays(kept: Table, height: int) -> Iterator[list[NDArray[Any]]]:
    """Columns of consecutive blocks of rows, as arrays of `kept_types`.

    Raises
    ------
    InputError
        If a value is missing that an array of Zarr cannot mark as such.
    """
    types = kept_types(kept)
    for table in _kept_groups(kept, height):
        for name, column in zip(kept.names, table.columns, strict=True):
            if column.null_count and types[name].kind != "f":
                raise InputError(
                    f"keep has missing values in column {name!r}; expected values in all rows for .zarr: write "
                    f".parquet, or leave it out"
                )
        yield [
            np.asarray(column.to_numpy()).astype(types[name], copy=False)
            for name, column in zip(kept.names, table.columns, strict=True)
        ]
