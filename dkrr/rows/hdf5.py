"""Data sets in HDF5 files, and their rows."""

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkrr.errors import InputError, InputTypeError
from dkrr.rows.sources import ALL, Block, Rows

SUFFIXES = (".h5", ".hdf5", ".he5")
MAX_NAMED = 8
"""Most data sets of a file that a message names."""


class HdfArray:
    """A data set of an HDF5 file, of which rows are read; another process opens the file itself.

    Parameters
    ----------
    path : str
        The file.
    name : str
        The data set.
    given : h5py.Dataset, optional
        The data set, where a user has opened it.
    """

    def __init__(self, path: str, name: str, given: Any = None) -> None:
        self._path, self._name, self._given = path, name, given
        self.shape: tuple[int, ...] = tuple(self._dataset.shape)
        self.dtype: np.dtype[Any] = self._dataset.dtype

    def __getstate__(self) -> dict[str, Any]:
        return {"_path": self._path, "_name": self._name, "_given": None, "shape": self.shape, "dtype": self.dtype}

    @cached_property
    def _dataset(self) -> Any:
        if self._given is not None:
            return self._given
        import h5py

        return h5py.File(self._path, "r")[self._name]

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def chunks(self) -> tuple[int, ...] | None:
        """Shape of what is stored together; None if all is."""
        return self._dataset.chunks  # type: ignore[no-any-return]

    def __getitem__(self, index: Any) -> NDArray[Any]:
        return np.asarray(self._dataset[index])


class HdfRows(Rows):
    """Rows of a data set in an HDF5 file. Workers do not read these: they are staged first.

    Parameters
    ----------
    array : HdfArray of shape (n, d) or (n,)
    """

    is_lazy = True

    def __init__(self, array: HdfArray, name: str = "X") -> None:  # noqa: ARG002
        self._array = array

    @property
    def shape(self) -> tuple[int, int]:
        shape = self._array.shape
        return (int(shape[0]), int(shape[1]) if len(shape) == 2 else 1)

    @property
    def dtype(self) -> Any:
        return self._array.dtype

    def read(self, start: int, stop: int, columns: slice = ALL) -> Block:
        if self._array.ndim == 1:
            return self._array[start:stop][:, None][:, columns]
        return self._array[start:stop, columns]

    def blocks(self, start: int, stop: int, height: int) -> Iterator[tuple[slice, Block]]:
        chunks = self._array.chunks
        if chunks is None:
            return super().blocks(start, stop, height)
        return self._blocks_of_chunks(range(0, self.shape[0] + chunks[0], chunks[0]), start, stop, height)

    def take(self, indices: NDArray[np.intp]) -> Block:
        order, inverse = np.unique(indices, return_inverse=True)  # HDF5 takes rising numbers only
        return self._array[order].reshape(len(order), self.shape[1])[inverse]

    @property
    def read_overhead_bytes(self) -> int:
        chunks = self._array.chunks
        return 0 if chunks is None else int(np.prod(chunks)) * int(np.dtype(self.dtype).itemsize)


def is_hdf_array(value: Any) -> bool:
    """Whether a value is a data set of an HDF5 file, opened by dkrr or by h5py."""
    return isinstance(value, HdfArray) or (type(value).__module__.startswith("h5py.") and hasattr(value, "chunks"))


def hdf_array(value: Any) -> HdfArray:
    """Data set as dkrr reads it."""
    return value if isinstance(value, HdfArray) else HdfArray(value.file.filename, value.name, value)


def hdf_rows(value: Any, name: str) -> Rows:
    """Rows of a data set."""
    return HdfRows(hdf_array(value), name)


def open_hdf(path: str, member: str, name: str) -> HdfArray:
    """Data set of a file.

    Raises
    ------
    InputError
        If there is no such data set, which names those that there are, or h5py is not installed.
    """
    try:
        import h5py
    except ImportError as error:
        raise InputError(
            f"{name}: {path} is an HDF5 file, and h5py is missing; expected it: pip install 'dkrr[tables]'"
        ) from error
    with h5py.File(path, "r") as file:
        if isinstance(file.get(member or "/"), h5py.Dataset):
            found = True
        else:
            found, known = False, list[str]()
            file.visititems(lambda key, item: known.append(key) if isinstance(item, h5py.Dataset) else None)
    if not found:
        more = ", ..." if len(known) > MAX_NAMED else ""
        listed = ", ".join(f"{Path(path).name}::{key}" for key in known[:MAX_NAMED]) + more
        raise InputError(f"{name}: {path} has no data set {member!r}; expected one of {listed or 'none, it is empty'}")
    array = HdfArray(path, member)
    if array.dtype.kind == "V":
        raise InputTypeError(f"{name}: {path}::{member} has records ({array.dtype}); expected a matrix of numbers")
    return array
