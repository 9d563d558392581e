"""CSR rows in a store: a group of the arrays `data`, `indices` and `indptr`."""

from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dkrr.errors import InputError, StoreError
from dkrr.rows.sources import ALL, Block, StoredRows
from dkrr.rows.zarr_arrays import ZarrRows
from dkrr.sparse import check_structure


class SparseRows(StoredRows):
    """CSR rows in a store."""

    is_sparse = True

    @cached_property
    def _arrays(self) -> dict[str, ZarrRows]:
        return {name: ZarrRows(f"{self.url}/{name}") for name in ("data", "indices", "indptr")}

    @cached_property
    def shape(self) -> tuple[int, int]:
        indptr = self._arrays["indptr"]
        return (indptr.shape[0] - 1, int(indptr.attributes["n_columns"]))

    @cached_property
    def dtype(self) -> Any:
        return self._arrays["data"].dtype

    @property
    def pointers(self) -> NDArray[Any] | None:
        return self._pointers_of(slice(0, self.shape[0]))

    def _pointers_of(self, rows: slice) -> NDArray[Any]:
        return np.asarray(self._arrays["indptr"].read(rows.start, rows.stop + 1)[:, 0])

    @property
    def indices(self) -> Any:
        return self._arrays["indices"]

    def read(self, start: int, stop: int, columns: slice = ALL) -> Block:
        n_entries, pointers = self.indices.shape[0], self._pointers_of(slice(start, stop))
        first, last = int(pointers[0]), int(pointers[-1])
        try:
            if not 0 <= first <= last <= n_entries:
                raise InputError(f"rows {start} to {stop - 1} lie outside of the {n_entries} stored indices")
            data, indices = (self._arrays[name].read(first, last)[:, 0] for name in ("data", "indices"))
            block = sp.csr_array((data, indices, pointers - first), shape=(stop - start, self.shape[1]))
            check_structure(block)
        except ValueError as error:  # SciPy's own, and ours
            raise StoreError(f"the sparse rows in {self.url} are damaged: {error}. Rewrite them") from error
        return block if columns == ALL else block[:, columns]

    @property
    def n_bytes(self) -> int:
        return sum(array.n_bytes for array in self._arrays.values())

    @property
    def read_overhead_bytes(self) -> int:
        # Chunks that are files are read into the block itself.
        return max((array.read_overhead_bytes for array in self._arrays.values() if not array.is_plain), default=0)
