"""Rows as a user gives them, in front of a transformer: arrays and tables of any types, read a block at a time."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp

from dkrr.data.dask_arrays import is_dask_frame, partition_lengths
from dkrr.data.open import as_rows
from dkrr.data.rows import Rows
from dkrr.data.table import Table
from dkrr.data.table_opening import opened
from dkrr.data.table_rows import read_overhead_bytes, task_edges
from dkrr.errors import InputError
from dkrr.sparse import check_structure

BLOCK_BYTES = 16 * 2**20
"""Rows that are transformed together, as float64."""
MAX_BLOCK_ROWS = 16384


class Inputs(ABC):
    """Rows in front of a transformer."""

    shape: tuple[int, int]
    """Rows and columns."""
    names: list[str] | None = None
    """Names of the columns; None where they have none."""
    is_lazy: bool = True
    """True if what is computed of the rows is lazy too."""

    @abstractmethod
    def blocks(self, start: int, stop: int, height: int) -> Iterator[tuple[slice, Any]]:
        """Rows start ... stop − 1 in consecutive blocks of at most `height` rows: ndarray, CSR array or DataFrame."""

    def task_edges(self, height: int) -> list[int]:
        """First rows of parts that tasks read one each, of about `height` rows, and the number of rows."""
        return [*range(0, self.shape[0], height), self.shape[0]]

    @property
    def read_overhead_bytes(self) -> int:
        """Most bytes that a read needs besides its result."""
        return 0

    @property
    def block_rows(self) -> int:
        """Rows of a block of at most BLOCK_BYTES."""
        return max(1, min(MAX_BLOCK_ROWS, BLOCK_BYTES // (8 * max(1, self.shape[1]))))

    def all_blocks(self) -> Iterator[Any]:
        """All rows, a block at a time."""
        for _, block in self.blocks(0, self.shape[0], self.block_rows):
            yield block


class MemoryInputs(Inputs):
    """An ndarray, a sparse matrix or a DataFrame in memory."""

    is_lazy = False

    def __init__(self, table: Any) -> None:
        self.table = sp.csr_array(table) if sp.issparse(table) else table
        self.shape = (int(table.shape[0]), int(table.shape[1]))
        self.names = [str(name) for name in table.columns] if hasattr(table, "columns") else None

    def blocks(self, start: int, stop: int, height: int) -> Iterator[tuple[slice, Any]]:
        rows = self.table.iloc if hasattr(self.table, "iloc") else self.table
        for k in range(start, stop, height):
            where = slice(k, min(k + height, stop))
            yield where, rows[where]


class TableInputs(Inputs):
    """A table that is read in blocks: a file, a folder of files, a lazy frame."""

    def __init__(self, table: Table) -> None:
        self.table, self.names = table, list(table.names)
        self.shape = (table.n_rows, len(self.names))

    def blocks(self, start: int, stop: int, height: int) -> Iterator[tuple[slice, Any]]:
        for first, block in self.table.blocks(height, start, stop):
            yield slice(first, first + len(block)), block

    def task_edges(self, height: int) -> list[int]:
        return task_edges(self.table, height)

    @property
    def read_overhead_bytes(self) -> int:
        return read_overhead_bytes(self.table)


class PartitionInputs(Inputs):
    """A Dask DataFrame, whose partitions are computed when they are read; their lengths are computed here."""

    def __init__(self, frame: Any) -> None:
        self.frame = frame
        self.edges = [0, *accumulate(partition_lengths(frame))]
        self.names = [str(name) for name in frame.columns]
        self.shape = (self.edges[-1], len(self.names))

    def blocks(self, start: int, stop: int, height: int) -> Iterator[tuple[slice, Any]]:
        for k, (first, last) in enumerate(pairwise(self.edges)):
            if first < stop and start < last:
                part = self.frame.partitions[k].compute()
                for top in range(max(first, start), min(last, stop), height):
                    where = slice(top, min(top + height, last, stop))
                    yield where, part.iloc[where.start - first : where.stop - first]


class RowsInputs(Inputs):
    """Rows of numbers that are read in blocks: a Dask or Zarr array, a mapped file."""

    def __init__(self, rows: Rows) -> None:
        self.rows, self.shape, self.is_lazy = rows, rows.shape, rows.is_lazy

    def blocks(self, start: int, stop: int, height: int) -> Iterator[tuple[slice, Any]]:
        yield from self.rows.blocks(start, stop, height)

    @property
    def read_overhead_bytes(self) -> int:
        return self.rows.read_overhead_bytes


def inputs_of(X: Any) -> Inputs:
    """Rows in front of a transformer, in any container that an estimator takes.

    Raises
    ------
    InputError
        If they are not a table.
    """
    X = opened(X)
    if isinstance(X, Table):
        return MemoryInputs(X.to_pandas()) if X.source.is_in_memory else TableInputs(X)
    if is_dask_frame(X):
        return PartitionInputs(X)
    if type(X) is np.ndarray or sp.issparse(X) or isinstance(X, list | tuple) or hasattr(X, "iloc"):
        return MemoryInputs(as_rectangle(X))
    return RowsInputs(as_rows(X))


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
