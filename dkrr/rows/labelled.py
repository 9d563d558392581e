"""Arrays of xarray: their numbers, where they are."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkrr.rows.sources import ALL, Block, Rows


class LabelledRows(Rows):
    """Rows of an array of xarray in a file, which is read when they are. Workers do not read these.

    Parameters
    ----------
    array : xarray.DataArray of shape (n, d) or (n,)
    """

    is_lazy = True

    def __init__(self, array: Any, name: str = "X") -> None:  # noqa: ARG002
        self._array = array

    @property
    def shape(self) -> tuple[int, int]:
        shape = self._array.shape
        return (int(shape[0]), int(shape[1]) if len(shape) == 2 else 1)

    @property
    def dtype(self) -> Any:
        return self._array.dtype

    def read(self, start: int, stop: int, columns: slice = ALL) -> Block:
        # A slice is read and kept by its own array only; the values of the whole would stay in memory.
        return np.asarray(self._array[start:stop].values).reshape(stop - start, self.shape[1])[:, columns]

    def take(self, indices: NDArray[np.intp]) -> Block:
        return np.asarray(self._array[indices].values).reshape(len(indices), self.shape[1])


def is_labelled(value: Any) -> bool:
    """Whether a value is an array of xarray, told without importing it."""
    return type(value).__module__.startswith("xarray.") and type(value).__name__ == "DataArray"


def is_in_file(value: Any) -> bool:
    """Whether a value is an array of xarray whose numbers are still in a file."""
    return is_labelled(value) and not getattr(value.variable, "_in_memory", True)


def unlabelled(value: Any) -> Any:
    """Dask array or ndarray of an array of xarray that has one; others unchanged."""
    if not is_labelled(value) or (value.chunks is None and is_in_file(value)):
        return value
    return value.data if value.chunks is not None else value.values
