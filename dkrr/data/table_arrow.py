"""Tables of Arrow, in memory or in files of Parquet: their columns, and their numbers as NumPy arrays."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow
import pyarrow.compute
import pyarrow.dataset
from numpy.typing import NDArray

from dkrr.data.table_source import BATCH_ROWS, Column, Kind, Source
from dkrr.errors import InputError

MAX_EXACT = 2**53
"""Larger whole numbers are not all represented in float64."""


class MissingError(ValueError):
    """A value is missing."""


class InexactError(ValueError):
    """A whole number is not exact in float64."""


class ArrowSource(Source):
    """A table of Arrow in memory.

    Parameters
    ----------
    table : pyarrow.Table
    label : str
        What messages call it.
    """

    is_in_memory = True

    def __init__(self, table: Any, label: str = "the table") -> None:
        self._table, self.label = table, label

    @property
    def columns(self) -> tuple[Column, ...]:
        return columns_of(self._table.schema)

    @property
    def n_rows(self) -> int:
        return int(self._table.num_rows)

    def batches(self, start: int, stop: int, names: Sequence[str]) -> Iterator[Any]:
        part = self._table.select(list(names)).slice(start, stop - start)
        return iter(part.to_batches(max_chunksize=BATCH_ROWS))


def columns_of(schema: Any) -> tuple[Column, ...]:
    """Columns of a schema of Arrow."""
    return tuple(
        Column(field.name, kind_of(field.type), str(field.type), pyarrow.types.is_float32(field.type))
        for field in schema
    )


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


def numbers_of(column: Any) -> NDArray[Any]:
    """Numbers of a column: float32 as they are, others as float64.

    Raises
    ------
    MissingError
        If one is missing.
    InexactError
        If a whole number is not exact in float64.
    """
    if column.null_count:
        raise MissingError
    types = pyarrow.types
    if types.is_boolean(column.type) or types.is_decimal(column.type):
        column = pyarrow.compute.cast(column, pyarrow.uint8() if types.is_boolean(column.type) else pyarrow.float64())
    values = np.asarray(column.to_numpy(zero_copy_only=False))
    if values.dtype.kind == "f":
        with np.errstate(invalid="ignore"):
            if np.isnan(values).any():
                raise MissingError
    elif values.dtype.itemsize == 8 and values.size:
        low, high = int(values.min()), int(values.max())
        if high > MAX_EXACT or low < -MAX_EXACT:
            raise InexactError(high if high > MAX_EXACT else low)
    return values


def is_missing(column: Any) -> NDArray[np.bool_]:
    """Which values of a column are missing, or NaN."""
    return np.asarray(pyarrow.compute.is_null(column, nan_is_null=True).to_numpy(zero_copy_only=False), bool)


class ParquetSource(Source):
    """Row groups of a data set in Parquet. Footers say how many rows they have; only columns in use are read.

    Parameters
    ----------
    path : str or list of str
        File, folder, or files; a URL of a file system that fsspec knows.
    label : str
        What messages call it.
    owner : object, optional
        Owner of a temporary file, which is kept as long as this source; it does not travel to other processes.

    Raises
    ------
    InputError
        If it does not exist, or is not in Parquet.
    """

    def __init__(self, path: str | list[str], label: str = "", owner: Any = None) -> None:
        self._path, self._owner = path, owner
        self.label = label or (path if isinstance(path, str) else f"{path[0]}, ...")
        with reading(self.label):
            _ = self.columns

    def __getstate__(self) -> dict[str, Any]:
        return {"_path": self._path, "_owner": None, "label": self.label}

    @cached_property
    def _dataset(self) -> Any:
        first = self._path if isinstance(self._path, str) else self._path[0]
        filesystem = None
        if "://" in first:
            from fsspec.core import url_to_fs

            filesystem, path = url_to_fs(first)
        else:
            path = self._path
        return pyarrow.dataset.dataset(path, filesystem=filesystem, format="parquet", partitioning="hive")

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        return columns_of(self._dataset.schema)

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
        return (0, *accumulate(rows for _, _, rows in self._groups))

    @property
    def n_rows(self) -> int:
        return self.edges[-1]

    def batches(self, start: int, stop: int, names: Sequence[str]) -> Iterator[Any]:
        k = bisect_right(self.edges, start) - 1
        while start < stop:
            fragment, number, rows = self._groups[k]
            first = self.edges[k]
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
                        break
            k += 1
            start = max(start, self.edges[k])


@contextmanager
def reading(label: str) -> Iterator[None]:
    """Report errors of Arrow, HDF5 and the file system as bad input, with the name of the table."""
    try:
        yield
    except (pyarrow.ArrowException, OSError, ValueError, ImportError, RuntimeError) as error:
        if isinstance(error, InputError):
            raise
        text = str(error).strip().partition("\n")[0] or type(error).__name__
        raise InputError(
            f"cannot read {label}: {text}; expected a whole table, with names and texts in Unicode"
        ) from error
