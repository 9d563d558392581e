"""Data sets in HDF5 files, and their rows."""

from collections.abc import Iterator
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkrr.data.rows import ALL, ArrayRows, Block, Rows
from dkrr.errors import InputError, InputTypeError

SUFFIXES = (".h5", ".hdf5", ".he5")
MAX_NAMED = 8
"""Most data sets of a file that a message names."""
MAX_LINKS = 32
"""Most links on the way to a data set."""
MAX_LOOKED_AT = 10_000
"""Most names of a file that are looked at for a message."""


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
        try:
            return np.asarray(self._dataset[index])
        except (OSError, RuntimeError) as error:  # a chunk is damaged, or compressed by a filter that is missing
            raise InputError(f"cannot read {self._path}::{self._name}: {error}; expected a whole HDF5 file") from error


class HdfRows(ArrayRows):
    """Rows of a data set in an HDF5 file. Workers do not read these: they are staged first.

    Parameters
    ----------
    array : HdfArray of shape (n, d) or (n,)
    """

    is_lazy = True

    def read(self, start: int, stop: int, columns: slice = ALL) -> Block:
        if self.array.ndim == 1:
            return self.array[start:stop][:, None][:, columns]
        return self.array[start:stop, columns]

    def blocks(self, start: int, stop: int, height: int) -> Iterator[tuple[slice, Block]]:
        chunks = self.array.chunks
        if chunks is None:
            return super().blocks(start, stop, height)
        return self._blocks_of_chunks(range(0, self.shape[0] + chunks[0], chunks[0]), start, stop, height)

    def take(self, indices: NDArray[np.intp]) -> Block:
        order, inverse = np.unique(indices, return_inverse=True)  # HDF5 takes rising numbers only
        return self.array[order].reshape(len(order), self.shape[1])[inverse]

    @property
    def read_overhead_bytes(self) -> int:
        chunks = self.array.chunks
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
        found, known = _data_set_at(file, member), []
        if found is None:
            known = _data_sets_in(file)
    if found is None:
        more = ", ..." if len(known) > MAX_NAMED else ""
        listed = ", ".join(f"{Path(path).name}::{key}" for key in known[:MAX_NAMED]) + more
        raise InputError(f"{name}: {path} has no data set {member!r}; expected one of {listed or 'none, it is empty'}")
    array = HdfArray(path, found)
    if array.dtype.kind == "V":
        raise InputTypeError(f"{name}: {path}::{member} has records ({array.dtype}); expected a matrix of numbers")
    return array


def _data_set_at(file: Any, member: str) -> str | None:
    """Name of the data set that a name and soft links lead to within a file; None if there is none.

    Raises
    ------
    ValueError
        If its numbers are in another file, which would be opened, or links lead in a circle.
    """
    import h5py

    place, left, n_links = file, member.split("/"), 0
    while left:
        part = left.pop(0)
        if part in ("", "."):
            continue
        link = place.get(part, getlink=True) if isinstance(place, h5py.Group) else None
        if isinstance(link, h5py.ExternalLink):
            raise ValueError(f"{part!r} in it is an external link to {link.filename!r}; open that file itself")
        if isinstance(link, h5py.SoftLink):
            n_links += 1
            if n_links > MAX_LINKS:
                raise ValueError(
                    f"{part!r} in it is a link that leads in a circle, or over more than {MAX_LINKS} links"
                )
            left = link.path.split("/") + left
            place = file if link.path.startswith("/") else place
        elif link is None:
            return None
        else:
            place = place[part]
    if not isinstance(place, h5py.Dataset):
        return None
    if place.external or place.is_virtual:
        raise ValueError(f"the numbers of {member!r} are in other files; expected a data set that has them: copy it")
    if place.shape is None:
        raise ValueError(f"{member!r} in it is a data set without numbers")
    return str(place.name)


def _data_sets_in(file: Any) -> list[str]:
    """Names of data sets, more than a message has if there are; soft and external links are not followed."""
    import h5py

    found, groups, known, n_looked_at = list[str](), [file], {file}, 0
    while groups and len(found) <= MAX_NAMED and n_looked_at < MAX_LOOKED_AT:
        group = groups.pop()
        for key in islice(group, MAX_LOOKED_AT):
            n_looked_at += 1
            item = group[key] if isinstance(group.get(key, getlink=True), h5py.HardLink) else None
            if isinstance(item, h5py.Dataset):
                found.append(item.name.lstrip("/"))
            elif isinstance(item, h5py.Group) and item not in known:  # a group may contain itself
                groups.append(item)
                known.add(item)
    return sorted(found)
