"""Rows of a Dask array or DataFrame, computed when they are read."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dkrr.data.rows import ALL, ArrayRows, Block
from dkrr.errors import InputError
from dkrr.sparse import check_structure


class DaskRows(ArrayRows):
    """Rows of a Dask array, computed when read. Workers do not read these: they are staged first.

    Parameters
    ----------
    array : dask.array.Array of shape (n, d) or (n,)
        Sparse blocks are checked before anything is cut from them.
    name : str
        What it is called in error messages.
    """

    is_lazy = True
    is_computed = True

    def __init__(self, array: Any, name: str = "X") -> None:
        if any(np.isnan(size) for size in array.shape):
            raise InputError(
                f"{name} is a Dask array with unknown chunk sizes; expected known ones: call "
                f"{name}.compute_chunk_sizes() or to_dask_array(lengths=True) first"
            )
        if sp.issparse(array._meta):
            array = array.map_blocks(_checked, name, dtype=array.dtype, meta=array._meta)
        self.array = array if array.ndim == 2 else array[:, None]

    @property
    def read_overhead_bytes(self) -> int:
        # A chunk is computed whole.
        return int(np.prod([max(c) for c in self.array.chunks])) * int(np.dtype(self.dtype).itemsize)

    def blocks(self, start: int, stop: int, height: int) -> Iterator[tuple[slice, Block]]:
        edges = np.cumsum([0, *self.array.chunks[0]]).tolist()
        return self._blocks_of_chunks(edges, start, stop, height)

    def read(self, start: int, stop: int, columns: slice = ALL) -> Block:
        return row_major(self.array[start:stop, columns].compute())

    def take(self, indices: NDArray[np.intp]) -> Block:
        return row_major(self.array[indices].compute())


def _checked(block: Block, name: str = "X") -> Block:
    """Block of a Dask array, whose blocks need not be what the array says they are."""
    if sp.issparse(block):
        check_structure(block, name)
    return block


def row_major(block: Block) -> Block:
    """Block of a Dask array as an ndarray or a CSR array, checked."""
    return _checked(block).tocsr() if sp.issparse(block) else np.asarray(block)


def is_dask_frame(X: Any) -> bool:
    """Whether X is a DataFrame of Dask, told without importing dask.dataframe, which needs pandas."""
    return type(X).__module__.startswith("dask.") and hasattr(X, "to_dask_array") and hasattr(X, "columns")


def unframed(X: Any) -> Any:
    """Dask array of a Dask DataFrame, whose rows are counted; others unchanged."""
    return X.to_dask_array(lengths=partition_lengths(X)) if is_dask_frame(X) else X


def partition_lengths(frame: Any) -> tuple[int, ...]:
    """Rows of each partition of a Dask DataFrame, found by one of its columns.

    Of partitions that are read from files only that column is then read twice.
    """
    counted = frame[[frame.columns[0]]] if len(frame.columns) else frame
    return tuple(map(int, counted.map_partitions(len).compute()))
