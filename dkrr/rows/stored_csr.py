"""CSR rows in a store: arrays `data`, `indices` and `indptr` that dkrr wrote."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dkrr.errors import DamagedChunkError, InputError
from dkrr.rows.sources import ALL, Block, Rows
from dkrr.rows.stored import SCRATCH_BYTES, CheckedRows
from dkrr.sparse import check_structure
from dkrr.tiles import ChunkedArray
from dkrr.tiles.store import Place

CHUNK_ENTRIES = 2**20
"""Entries of a chunk."""


@dataclass(frozen=True)
class SparseRows(Rows):
    """CSR rows in a store."""

    values: CheckedRows
    columns: CheckedRows
    indptr: CheckedRows
    n_columns: int

    is_sparse = True
    is_shared = True

    @classmethod
    def at(cls, place: Place, shape: tuple[int, int], n_entries: int, dtype: Any) -> "SparseRows":
        """Rows at a place; nothing is read or written."""
        # As wide as SciPy itself makes indices; it keeps those of int64 pointers, at twice the memory of every block.
        index = np.int32 if max(n_entries, shape[1]) < 2**31 else np.int64

        def part(name: str, size: int, kind: Any) -> CheckedRows:
            here = place.at(name)
            return CheckedRows(ChunkedArray.of_rows(here.url, (size,), kind, here.identity, CHUNK_ENTRIES))

        parts = part("data", n_entries, dtype), part("indices", n_entries, index), part("indptr", shape[0] + 1, index)
        return cls(*parts, shape[1])

    @property
    def url(self) -> str:
        """Path or URL of the group."""
        return self.values.url.rpartition("/")[0]

    @property
    def arrays(self) -> tuple[ChunkedArray, ...]:
        """The three arrays."""
        return (self.values.array, self.columns.array, self.indptr.array)

    @property
    def shape(self) -> tuple[int, int]:
        return (self.indptr.shape[0] - 1, self.n_columns)

    @property
    def dtype(self) -> Any:
        return self.values.dtype

    @property
    def pointers(self) -> NDArray[Any] | None:
        return self._pointers_of(slice(0, self.shape[0]))

    @property
    def indices(self) -> Any:
        return self.columns

    def _pointers_of(self, rows: slice) -> NDArray[Any]:
        return np.asarray(self.indptr.read(rows.start, rows.stop + 1)[:, 0])

    def read(self, start: int, stop: int, columns: slice = ALL) -> Block:
        n_entries, pointers = self.indices.shape[0], self._pointers_of(slice(start, stop))
        first, last = int(pointers[0]), int(pointers[-1])
        try:
            if not 0 <= first <= last <= n_entries:
                raise InputError(f"rows {start} to {stop - 1} lie outside of the {n_entries} stored indices")
            data, indices = (part.read(first, last)[:, 0] for part in (self.values, self.columns))
            block = sp.csr_array((data, indices, pointers - first), shape=(stop - start, self.shape[1]))
            check_structure(block)
        except (ValueError, MemoryError) as error:  # SciPy's own, and ours
            text = f"the sparse rows in {self.url} are damaged: {error}. Write them again"
            raise DamagedChunkError(text, self.url, "indptr") from error
        return block if columns == ALL else block[:, columns]

    @property
    def n_bytes(self) -> int:
        return sum(part.n_bytes for part in (self.values, self.columns, self.indptr))

    @property
    def read_overhead_bytes(self) -> int:
        return SCRATCH_BYTES

    def describe(self, rows_per_chunk: int | None = None) -> dict[str, Any]:  # noqa: ARG002
        """Values of JSON from which `described_rows` makes these rows again, at their place."""
        n_entries, dtype = self.indices.shape[0], self.values.array.dtype
        return {"kind": "sparse", "shape": list(self.shape), "dtype": dtype, "n_entries": n_entries}
