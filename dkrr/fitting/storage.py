"""Where a run keeps its arrays: in this process's memory, or in a store that workers read and another run resumes."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkrr.cluster.folders import PrivateFolder
from dkrr.linalg.sources import Vectors
from dkrr.store import ChunkedArray, RunStore, TiledMatrix, TileGrid
from dkrr.store.lock import check_owned


class Storage(ABC):
    """Arrays of one run by group and name, and small values by name."""

    keeps: bool
    """They stay after the run, for one that resumes it."""

    @abstractmethod
    def vectors(self, group: str, name: str, grid: TileGrid, width: int, data: Any = None) -> Vectors:
        """Array of shape (n, width), in chunks of tile rows if it is stored; filled if `data` is given."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Delete a group, or one array."""

    @abstractmethod
    def note(self, name: str) -> Any:
        """Value that was noted under a name; None if none was."""

    @abstractmethod
    def set_note(self, name: str, value: Any) -> None:
        """Note a value of JSON's types."""

    @abstractmethod
    def check(self) -> None:
        """Raise if another run has taken it.

        Raises
        ------
        BusyStoreError
            Naming the new owner.
        """


class MemoryStorage(Storage):
    """Storage in this process's memory."""

    keeps = False

    def __init__(self) -> None:
        self._notes: dict[str, Any] = {}

    def vectors(self, group: str, name: str, grid: TileGrid, width: int, data: Any = None) -> NDArray[np.float64]:  # noqa: ARG002
        return np.empty((grid.n, width)) if data is None else np.asarray(data, np.float64).reshape(grid.n, width)

    def delete(self, name: str) -> None:
        """See base class; arrays in memory are deleted with what refers to them."""

    def note(self, name: str) -> Any:
        return self._notes.get(name)

    def set_note(self, name: str, value: Any) -> None:
        self._notes[name] = value

    def check(self) -> None:
        """See base class; the memory of this process is its own."""


@dataclass
class StoredArrays(Storage):
    """Storage in a Zarr store."""

    store: RunStore
    keeps: bool
    _groups: set[str] = field(default_factory=set)
    """Groups that exist."""

    def vectors(self, group: str, name: str, grid: TileGrid, width: int, data: Any = None) -> ChunkedArray:
        """See base class; what an earlier run has written is kept unless `data` is given."""
        self._begin(group)
        array = self.store.create_array(f"{group}/{name}", (grid.n, width), (grid.tile, width))
        if data is not None:
            array.fill(np.asarray(data, np.float64).reshape(grid.n, width))
        return array

    def matrix(self, group: str, name: str, grid: TileGrid, dtype: str = "float64") -> TiledMatrix:
        """Lower triangle in tiles."""
        self._begin(group)
        return self.store.matrix(f"{group}/{name}", grid, dtype)

    def check(self) -> None:
        check_owned(self.store.url)

    def _begin(self, group: str) -> None:
        self.check()
        if group not in self._groups:
            self.store.create_group(group)
            self._groups.add(group)

    def delete(self, name: str) -> None:
        self.check()
        self.store.delete(name)
        self._groups.discard(name)

    def note(self, name: str) -> Any:
        return self.store.note(name)

    def set_note(self, name: str, value: Any) -> None:
        self.check()
        self.store.set_note(name, value)


class TemporaryFolder(PrivateFolder):
    """Folder of a run without a store; a model that reads there keeps it."""

    def __getstate__(self) -> None:
        raise TypeError(
            "this model's training rows lie in a temporary folder of this process; use dkrr.save(model, path), or "
            "fit with store=, to keep it"
        )
