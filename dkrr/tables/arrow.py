"""Columns of Arrow: their kinds, and their numbers as NumPy arrays."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow
import pyarrow.compute
from numpy.typing import NDArray

from dkrr.tables.source import BATCH_ROWS, Column, Kind, Source

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
