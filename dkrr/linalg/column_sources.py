"""Sources of the diagonal and of columns of a symmetric matrix: computed from rows of data, or read."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkrr.data import Rows
from dkrr.data.rows import Block, dense
from dkrr.kernels import Kernel
from dkrr.linalg.sources import KERNEL_BLOCK, fill_gram, located

Array = NDArray[np.float64]


class ColumnSource(ABC):
    """Source of the diagonal and of any columns of a symmetric matrix; travels to workers."""

    @property
    @abstractmethod
    def n(self) -> int:
        """Rows (and columns) of the matrix."""

    @abstractmethod
    def diagonal(self, rows: slice) -> Array:
        """Diagonal entries of some rows, of shape (len(rows),)."""

    @abstractmethod
    def select_columns(self, index: NDArray[np.intp]) -> Any:
        """Handle of some columns (rows of X, or their numbers), passed to `block` and `among` and sent to workers."""

    @abstractmethod
    def block(self, rows: slice, taken: Any) -> Array:
        """Rows of taken columns, of shape (len(rows), number of columns)."""

    @abstractmethod
    def among(self, left: Any, right: Any) -> Array:
        """Entries where taken rows and taken columns meet."""


@dataclass(frozen=True)
class GramColumns(ColumnSource):
    """Columns of a Gram matrix Kᵢⱼ = k(xᵢ, xⱼ), computed from the rows."""

    kernel: Kernel
    rows: Rows

    @property
    def n(self) -> int:
        return self.rows.shape[0]

    def diagonal(self, rows: slice) -> Array:
        out = np.empty(rows.stop - rows.start)
        for where, block in self._blocks(rows):
            with located(where, where):
                out[where.start - rows.start : where.stop - rows.start] = self.kernel.diagonal(block)
        return out

    def _blocks(self, rows: slice) -> Iterator[tuple[slice, Block]]:
        for cut in self.rows.row_ranges(rows):
            yield from self.rows.blocks(cut.start, cut.stop, KERNEL_BLOCK)

    def select_columns(self, index: NDArray[np.intp]) -> Block:
        """Rows of X with these numbers."""
        return self.rows.take(index)

    def block(self, rows: slice, taken: Block) -> Array:
        out = np.empty((rows.stop - rows.start, taken.shape[0]))
        for where, block in self._blocks(rows):
            part = out[where.start - rows.start : where.stop - rows.start]
            fill_gram(self.kernel, block, taken, part, origin=None)
        return out

    def among(self, left: Block, right: Block) -> Array:
        out = np.empty((left.shape[0], right.shape[0]))
        fill_gram(self.kernel, left, right, out, origin=None)
        return out


@dataclass(frozen=True)
class MatrixColumns(ColumnSource):
    """Columns of a symmetric matrix given whole as rows; being symmetric, its rows are its columns."""

    rows: Rows

    @property
    def n(self) -> int:
        return self.rows.shape[0]

    def diagonal(self, rows: slice) -> Array:
        return np.array([_row(self.rows, i, slice(i, i + 1))[0] for i in range(rows.start, rows.stop)])

    def select_columns(self, index: NDArray[np.intp]) -> NDArray[np.intp]:
        """Numbers of the columns."""
        return index

    def block(self, rows: slice, taken: NDArray[np.intp]) -> Array:
        return np.ascontiguousarray(np.array([_row(self.rows, int(i), rows) for i in taken]).T)

    def among(self, left: NDArray[np.intp], right: NDArray[np.intp]) -> Array:
        entries = [_row(self.rows, int(i), slice(0, self.n))[right] for i in left]
        return np.asarray(entries, np.float64).reshape(len(left), len(right))


@dataclass(frozen=True)
class DividedColumns(ColumnSource):
    """Columns of A / c, c a power of two: no digit of them is another."""

    columns: ColumnSource
    """Columns of A."""
    unit: float
    """c."""

    @property
    def n(self) -> int:
        return self.columns.n

    def diagonal(self, rows: slice) -> Array:
        return self._divided(self.columns.diagonal(rows))

    def select_columns(self, index: NDArray[np.intp]) -> Any:
        """Handle of these columns of A."""
        return self.columns.select_columns(index)

    def block(self, rows: slice, taken: Any) -> Array:
        return self._divided(self.columns.block(rows, taken))

    def among(self, left: Any, right: Any) -> Array:
        return self._divided(self.columns.among(left, right))

    def _divided(self, entries: Array) -> Array:
        if self.unit == 1.0:
            return entries
        entries *= 1.0 / self.unit
        return entries


def _row(rows: Rows, i: int, columns: slice) -> Array:
    row: Array = np.asarray(dense(rows.read(i, i + 1, columns)), np.float64)[0]
    return row
