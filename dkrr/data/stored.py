"""Rows in an array that dkrr wrote: read a block at a time, each with its checksum.

CSR rows in a store: arrays `data`, `indices` and `indptr` that dkrr wrote.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dkrr.data.rows import ALL, ArrayRows, Block, Rows
from dkrr.errors import DamagedChunkError, InputError
from dkrr.sparse import check_structure
from dkrr.store import ChunkedArray
from dkrr.store.run import Place

SCRATCH_BYTES = 2**20
"""Size of the buffer that rows pass through of which only some columns are read."""


@dataclass(frozen=True)
class CheckedRows(ArrayRows):
    """Rows of an array that dkrr wrote. A vector counts as one column."""

    array: ChunkedArray

    is_shared = True

    @property
    def url(self) -> str:
        """Path or URL of the array."""
        return self.array.url

    @property
    def arrays(self) -> tuple[ChunkedArray, ...]:
        """The array, as the arrays of sparse rows."""
        return (self.array,)

    def read(self, start: int, stop: int, columns: slice = ALL) -> Block:
        d = self.shape[1]
        left, right, _ = columns.indices(d)
        if (left, right) == (0, d):
            return self.array.read_rows(start, stop).reshape(stop - start, d)
        out = np.empty((stop - start, max(right - left, 0)), self.dtype)
        height = max(1, SCRATCH_BYTES // (d * self.dtype.itemsize))
        for rows, block in self.blocks(start, stop, height):
            out[rows.start - start : rows.stop - start] = block[:, left:right]
        return out

    def blocks(self, start: int, stop: int, height: int) -> Iterator[tuple[slice, Block]]:
        """See base class; all in one buffer: fresh memory takes longer than reading."""
        buffer = np.empty((max(0, min(height, stop - start)), *self.array.shape[1:]), self.dtype)
        for k in range(start, stop, height):
            block = buffer[: min(height, stop - k)]
            self.array.read_rows(k, k + len(block), block)
            yield slice(k, k + len(block)), block.reshape(len(block), self.shape[1])

    def take(self, indices: NDArray[np.intp]) -> Block:
        out = np.empty((len(indices), *self.array.shape[1:]), self.dtype)
        # In the order of the rows, so that each block that holds several is read once.
        height, first, last, block = self.array.block_rows or self.array.chunks[0], 0, 0, None
        for at in np.argsort(indices, kind="stable"):
            row = int(indices[at])
            if block is None or not first <= row < last:
                first = row // height * height
                last = min(first + height, self.shape[0])
                block = self.array.read_rows(first, last)
            out[at] = block[row - first]
        return out.reshape(len(indices), self.shape[1])

    @property
    def read_overhead_bytes(self) -> int:
        return SCRATCH_BYTES

    def describe(self, rows_per_chunk: int | None = None) -> dict[str, Any]:
        """Values of JSON from which `described_rows` makes these rows again, at their place.

        `rows_per_chunk` is that of `write_rows`: the layout follows from it.
        """
        shape, dtype = list(self.array.shape), self.array.dtype
        return {"kind": "dense", "shape": shape, "dtype": dtype, "rows_per_chunk": rows_per_chunk}


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
