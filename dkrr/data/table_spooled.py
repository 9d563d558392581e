"""Tables without an index (CSV, streams of Arrow, lazy frames), copied once to a temporary file in Parquet.

A row in the middle of a CSV file is found only by reading all rows before it, and a lazy frame is computed for every
look at it. The copy is made when rows are first needed, and has all columns in compressed row groups.
"""

import logging
import re
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property
from threading import Lock
from typing import Any

import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.ipc
import pyarrow.parquet

from dkrr.cluster.folders import PrivateFolder
from dkrr.data.table_arrow import ParquetSource, columns_of, is_missing, reading
from dkrr.data.table_source import Column, Source, check_names
from dkrr.errors import InputError

logger = logging.getLogger(__name__)

GROUP_ROWS = 65536
"""Rows of a row group of a copy."""
BLOCK_BYTES = 8 * 2**20
"""Bytes of a CSV file that are parsed at once."""
HEADER_BYTES = 2**20
"""Bytes in which a CSV file has its first line."""
WIDER: dict[str, Any] = {"int64": pyarrow.float64(), "null": pyarrow.float64()}
"""Types of CSV columns that turn out to be wrong, and what is tried instead of them; otherwise text."""


class SpooledSource(Source):
    """Base of the tables that are copied."""

    _copy: ParquetSource | None = None

    def __init__(self, label: str) -> None:
        self.label, self._lock = label, Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {"label": self.label, "_copy": self._copied}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state | {"_lock": Lock()})

    @property
    def _copied(self) -> ParquetSource:
        with self._lock:
            if self._copy is None:
                folder = PrivateFolder("table")
                path = f"{folder.path}/table.parquet"
                with reading(self.label):
                    self._write(path)
                self._copy = ParquetSource(path, self.label, folder)
        return self._copy

    @abstractmethod
    def _write(self, path: str) -> None:
        """Copy all columns to a file in Parquet."""

    @property
    def columns(self) -> tuple[Column, ...]:
        return self._copied.columns

    @property
    def n_rows(self) -> int:
        return self._copied.n_rows

    @property
    def edges(self) -> Sequence[int]:
        return self._copied.edges

    def batches(self, start: int, stop: int, names: Sequence[str]) -> Iterator[Any]:
        return self._copied.batches(start, stop, names)


class CsvSource(SpooledSource):
    """CSV files with the same names of columns in their first lines, parsed once.

    Types are those that all values of a column have: where a later value is not what the first ones were, the column is
    read again as float64, or as text.

    Parameters
    ----------
    paths : list of str
        Files on this machine, which may be compressed.
    label : str
        What messages call them.
    """

    def __init__(self, paths: list[str], label: str) -> None:
        super().__init__(label)
        self._paths = paths
        with reading(label):
            self._delimiter, names = _header(paths[0], label)
        numeric = [name for name in names if re.fullmatch(r"\s*[-+]?[\d.]+([eE][-+]?\d+)?\s*", name)]
        if len(numeric) == len(names):
            raise InputError(
                f"{label} has numbers in its first line ({', '.join(names[:3])}, ...); expected the names of the "
                f"columns there: write them, or save the numbers as .npy"
            )
        check_names(names, label)

    def _write(self, path: str) -> None:
        types: dict[str, Any] = {}
        while not self._is_written(path, types):
            pass

    def _is_written(self, path: str, types: dict[str, Any]) -> bool:
        """Whether all values had the types of their columns; otherwise `types` has another one for one of these."""
        writer: Any = None
        schema = None
        try:
            for file in self._paths:
                stream = pyarrow.csv.open_csv(
                    file,
                    pyarrow.csv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES),
                    pyarrow.csv.ParseOptions(delimiter=self._delimiter),
                    pyarrow.csv.ConvertOptions(column_types=types),
                )
                if schema is None:
                    schema = stream.schema
                    empty = [field.name for field in schema if pyarrow.types.is_null(field.type)]
                    if empty:  # in the first block
                        types |= dict.fromkeys(empty, pyarrow.float64())
                        return False
                    types |= {field.name: field.type for field in schema}  # also of the next files
                    writer = pyarrow.parquet.ParquetWriter(path, schema)
                elif stream.schema.names != schema.names:
                    raise InputError(f"{file} has other columns than {self._paths[0]}; expected {schema.names}")
                for batch in stream:
                    writer.write_batch(batch, row_group_size=GROUP_ROWS)
            return True
        except pyarrow.ArrowInvalid as error:
            column = re.search(r"In CSV column #(\d+)", str(error))
            if column is None or schema is None:
                raise
            field = schema.field(int(column[1]))
            if pyarrow.types.is_string(field.type):
                raise
            types[field.name] = WIDER.get(str(field.type), pyarrow.string())
            return False
        finally:
            if writer is not None:
                writer.close()


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


class ArrowFileSource(SpooledSource):
    """Files of Arrow's own format (IPC, Feather), as streams or with an index."""

    def __init__(self, paths: list[str], label: str) -> None:
        super().__init__(label)
        self._paths = paths

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        with reading(self.label), pyarrow.OSFile(self._paths[0]) as file:
            return columns_of(_opened(file).schema)

    def _write(self, path: str) -> None:
        with pyarrow.OSFile(self._paths[0]) as file:
            schema = _opened(file).schema
        with pyarrow.parquet.ParquetWriter(path, schema) as writer:
            for name in self._paths:
                with pyarrow.OSFile(name) as file:
                    stream = _opened(file)
                    batches = (
                        stream
                        if hasattr(stream, "read_next_batch")
                        else map(stream.get_batch, range(stream.num_record_batches))
                    )
                    for batch in batches:
                        writer.write_batch(batch, row_group_size=GROUP_ROWS)


def _opened(file: Any) -> Any:
    """Reader of a file of Arrow, with an index or without one."""
    try:
        return pyarrow.ipc.open_file(file)
    except pyarrow.ArrowInvalid:
        file.seek(0)
        return pyarrow.ipc.open_stream(file)


class CompleteSource(SpooledSource):
    """Rows of another source in which no value of some columns is missing."""

    def __init__(self, source: Source, names: Sequence[str]) -> None:
        super().__init__(f"{source.label} without incomplete rows")
        self._source, self._names = source, names

    @property
    def columns(self) -> tuple[Column, ...]:
        return self._source.columns

    def _write(self, path: str) -> None:
        writer: Any = None
        n_left_out = 0
        try:
            for batch in self._source.batches(0, self._source.n_rows, [column.name for column in self.columns]):
                if writer is None:
                    writer = pyarrow.parquet.ParquetWriter(path, batch.schema)
                is_missing_in = [is_missing(batch.column(name)) for name in self._names]
                is_left_out = np.any(is_missing_in, axis=0)
                n_left_out += int(np.count_nonzero(is_left_out))
                writer.write_batch(batch.filter(pyarrow.array(~is_left_out)), GROUP_ROWS)
        finally:
            if writer is not None:
                writer.close()
        logger.info(
            "%s: %s of %s rows left out, in which values of %s are missing",
            self._source.label,
            f"{n_left_out:,}",
            f"{self._source.n_rows:,}",
            ", ".join(self._names),
        )


class LazyFrameSource(SpooledSource):
    """A lazy frame of polars, computed once, in parts."""

    def __init__(self, frame: Any) -> None:
        super().__init__("the lazy frame")
        self._frame = frame

    def _write(self, path: str) -> None:
        try:
            self._frame.sink_parquet(path, row_group_size=GROUP_ROWS)
        except Exception as error:
            raise InputError(f"the lazy frame of polars cannot be computed: {error}") from error
