"""Rows and targets in the columns of a table."""

from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkrr.data.arrays import MemoryRows
from dkrr.data.rows import ALL, Block, Rows, cut
from dkrr.data.table import Table

TASK_BYTES = 64 * 2**20
"""Row groups up to this size are read by one task, for it reads a part of one only behind all before it."""


class TableRows(Rows):
    """Rows of numbers of a table, decoded when they are read. Workers do not read these: they are staged first.

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

    def read(self, start: int, stop: int, columns: slice = ALL) -> Block:
        table = self.table if columns == ALL else Table(self.table.source, self.table.names[columns])
        return np.asarray(table.numbers(start, stop, self._name), self.dtype)

    def blocks(self, start: int, stop: int, height: int) -> Iterator[tuple[slice, Block]]:
        for first, block in self.table.number_blocks(start, stop, self._name):
            yield from cut(block, first, start, height)

    def take(self, indices: NDArray[np.intp]) -> Block:
        return self.table.rows(indices, self._name)

    def task_edges(self, height: int) -> list[int]:
        return task_edges(self.table, height)

    @property
    def read_overhead_bytes(self) -> int:
        return read_overhead_bytes(self.table)


def task_edges(table: Table, height: int) -> list[int]:
    """First rows of parts of a table that tasks read one each, of about `height` rows, and the number of rows."""
    most = max(height, TASK_BYTES // (8 * len(table.names)))
    edges = [0]
    for start, stop in pairwise(table.edges):
        n_parts = -(-(stop - start) // most)
        if len(edges) > 1 and stop - edges[-2] <= height:
            edges[-1] = stop  # several small groups make one part
        else:
            edges += [start + (stop - start) * k // n_parts for k in range(1, n_parts + 1)]
    return edges


def read_overhead_bytes(table: Table) -> int:
    """Bytes besides a block: a group is in memory as it is stored, and decoded in batches."""
    tallest = max(b - a for a, b in pairwise(table.edges))
    return int(tallest * len(table.names) * np.dtype(table.dtype).itemsize)


def table_rows(table: Table, name: str) -> Rows:
    """Rows of numbers of a table: read into memory if they are in memory, else decoded when they are read."""
    if table.source.is_in_memory:
        return MemoryRows(table.numbers(0, table.n_rows, name))
    return TableRows(table, name)


class TableTargets:
    """Columns of a table as an array of float64, of which rows are read: (n,) for one column, else (n, t)."""

    dtype = np.dtype(np.float64)

    def __init__(self, table: Table, name: str) -> None:
        table.check_numeric(name)
        self.table, self._name = table, name
        self.shape = (table.n_rows,) if len(table.names) == 1 else (table.n_rows, len(table.names))

    @property
    def ndim(self) -> int:
        """1 or 2."""
        return len(self.shape)

    def __getitem__(self, rows: slice) -> NDArray[np.float64]:
        start, stop, _ = rows.indices(self.shape[0])
        values = self.table.numbers(start, stop, self._name).astype(np.float64, copy=False)
        return values[:, 0] if self.ndim == 1 else values
