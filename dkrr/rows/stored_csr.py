"""CSR rows in a store: a group of the arrays `data`, `indices` and `indptr`."""

from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dkrr.errors import InputError, StoreError
from dkrr.rows.chunk_files import ChunkFiles
from dkrr.rows.sources import ALL, Block, StoredRows
from dkrr.sparse import check_structure
from dkrr.tiles.arrays import open_array

_NAMES = ("data", "indices", "indptr")


class SparseRows(StoredRows):
    """CSR rows in a store."""

    is_sparse = True

    @cached_property
    def _arrays(self) -> dict[str, Any]:
        return {name: open_array(f"{self.url}/{name}") for name in _NAMES}

    @cached_property
    def _files(self) -> dict[str, ChunkFiles | None]:
        """Chunks of each array as files, if they can be read without Zarr."""
        return {name: ChunkFiles.of(array, f"{self.url}/{name}") for name, array in self._arrays.items()}

    @cached_property
    def shape(self) -> tuple[int, int]:
        indptr = self._arrays["indptr"]
        return (int(indptr.shape[0]) - 1, int(indptr.attrs["n_columns"]))

    @cached_property
    def dtype(self) -> Any:
        return self._arrays["data"].dtype

    @property
    def pointers(self) -> NDArray[Any] | None:
        return np.asarray(self._arrays["indptr"][...])

    @property
    def indices(self) -> Any:
        return self._arrays["indices"]

    def _pointers_of(self, rows: slice) -> NDArray[Any]:
        return self._read_array("indptr", rows.start, rows.stop + 1)

    def _read_array(self, name: str, start: int, stop: int) -> NDArray[Any]:
        files = self._files[name]
        return np.asarray(self._arrays[name][start:stop] if files is None else files.read(start, stop, ALL)[:, 0])

    def read(self, start: int, stop: int, columns: slice = ALL) -> Block:
        n_entries, pointers = int(self.indices.shape[0]), self._read_array("indptr", start, stop + 1)
        first, last = int(pointers[0]), int(pointers[-1])
        try:
            if not 0 <= first <= last <= n_entries:
                raise InputError(f"rows {start} to {stop - 1} lie outside of the {n_entries} stored indices")
            data, indices = (self._read_array(name, first, last) for name in ("data", "indices"))
            block = sp.csr_array((data, indices, pointers - first), shape=(stop - start, self.shape[1]))
            check_structure(block)
        except ValueError as error:  # SciPy's own, and ours
            raise StoreError(f"the sparse rows in {self.url} are damaged: {error}. Rewrite them") from error
        return block if columns == ALL else block[:, columns]

    @property
    def n_bytes(self) -> int:
        return sum(int(array.shape[0]) * int(array.dtype.itemsize) for array in self._arrays.values())

    @property
    def read_overhead_bytes(self) -> int:
        if None not in self._files.values():
            return 0
        return max(4 * int(array.chunks[0]) * int(array.dtype.itemsize) for array in self._arrays.values())
