"""Rows of an array in this process's memory."""

from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dkrr.rows.sources import ALL, Block, Rows, n_bytes
from dkrr.sparse import check_structure


class MemoryRows(Rows):
    """Rows of an array in this process's memory.

    Parameters
    ----------
    array : ndarray or scipy.sparse CSR array of shape (n, d)
    """

    is_in_memory = True

    def __init__(self, array: Block) -> None:
        self.array = array
        self.is_sparse = sp.issparse(array)

    @property
    def shape(self) -> tuple[int, int]:
        return (int(self.array.shape[0]), int(self.array.shape[1]))

    @property
    def dtype(self) -> Any:
        return self.array.dtype

    @property
    def pointers(self) -> NDArray[Any] | None:
        return self.array.indptr if self.is_sparse else None

    @property
    def indices(self) -> Any:
        return self.array.indices if self.is_sparse else None

    def read(self, start: int, stop: int, columns: slice = ALL) -> Block:
        block = self.array[start:stop]
        return block if columns == ALL else block[:, columns]

    def take(self, indices: NDArray[np.intp]) -> Block:
        return self.array[indices]

    @property
    def n_bytes(self) -> int:
        return int(n_bytes(self.array))


def memory_rows(array: NDArray[Any], name: str) -> Rows:  # noqa: ARG001
    """Rows of an ndarray; a vector counts as one column."""
    return MemoryRows(array if array.ndim == 2 else array[:, None])


def csr_rows(X: Any, name: str) -> Rows:
    """Rows of a sparse matrix of any format, checked; the user's matrix stays as it is."""
    check_structure(X, name)
    rows = sp.csr_array(X if X.ndim == 2 else X.reshape(-1, 1))
    if not rows.has_canonical_format:
        rows = rows.copy()
        rows.sum_duplicates()
    return MemoryRows(rows)
