"""Whether rows that are read again, in a later pass or after the fit, are still those that were read first.

Standard deviations, leave-one-out residuals and likelihoods read X again, and so do predictions of a fit whose rows are
not in memory. By then a file may have been overwritten, or deleted. So evenly spaced blocks of rows get checksums
(CRC-32C) when they are read first: blocks of 64 MiB in all if the rows are outside of memory, since checking these
takes a few hundredths of the time of the fastest pass; a few blocks of arrays in memory, and of matrices that are read
in tiles.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkrr.data.arrays import MemoryRows
from dkrr.data.rows import ALL, Block, Rows, arrays_of
from dkrr.errors import InputError
from dkrr.store.format import crc32c

WATCHED_BLOCK_BYTES, WATCHED_BLOCK_ROWS = 2**18, 2**15
"""Most bytes and rows of a block."""
MEMORY_BLOCK_BYTES, FEW = 2**14, 4
"""Most bytes of a block of rows in memory; blocks that a prediction looks at, which may take 0.1 ms in all."""
READ_BLOCKS, HELD_BLOCKS, FRAME_BLOCKS = 256, 32, 32
"""Most blocks that are compared: of rows that are read, of rows in memory, and of frames, whose sums take longer."""
SUM_TOLERANCE = 1e-9
"""Largest difference of sums of computed rows, relative to sums of absolute values: processors may round otherwise."""


_Begun = tuple[float, float] | None
"""Checksum of the rows of a block that were seen so far, as `BlockSums` keeps it; None: its first rows were not."""


class BlockSums:
    """Checksums of evenly spaced blocks of rows: kept when a block is first seen, and compared from then on.

    They travel to other processes; what these see first is theirs alone, until it is given to `take_over`.

    Parameters
    ----------
    n : int
        Number of rows.
    height : int
        Rows of a block.
    step : int
        The blocks 0, step, 2 × step, ... have checksums.
    label : str
        What messages call the rows.
    is_exact : bool
        Whether bytes are compared; otherwise sums of numbers: of frames, and of rows that are computed whenever they
        are read, which other threads or processors may round in another way.
    """

    def __init__(self, n: int, height: int, step: int, label: str, *, is_exact: bool) -> None:
        self.n, self.height, self.step, self.label, self.is_exact = n, height, step, label, is_exact
        self._sums: list[tuple[float, float] | None] = [None] * -(-n // (height * step))
        """Of each block that was seen: CRC-32C and 0; or the sum of its numbers, and that of their absolute values."""

    def unknown(self) -> "BlockSums":
        """Checksums of the same blocks, none of which is known."""
        return BlockSums(self.n, self.height, self.step, self.label, is_exact=self.is_exact)

    def starts(self) -> range:
        """First rows of the blocks."""
        return range(0, self.n, self.height * self.step)

    def known(self) -> list[tuple[int, float, float]]:
        """Number and checksum of each block that was seen; numbers count blocks with checksums only."""
        return [(k, *sums) for k, sums in enumerate(self._sums) if sums is not None]

    def take_over(self, known: list[tuple[int, float, float]]) -> None:
        """Keep, or compare, what another process has seen first; raises InputError as `through`."""
        for k, value, size in known:
            self._meet(k, value, size)

    def through(self, blocks: Iterable[tuple[slice, Block]]) -> Iterator[tuple[slice, Block]]:
        """Iterate over consecutive blocks of rows, each compared with its checksums first.

        Raises
        ------
        InputError
            Naming the first rows that have changed since they were first seen.
        """
        begun: _Begun = None
        for where, block in blocks:
            begun = self._follow(where, block, begun)
            yield where, block

    def see(self, start: int, block: Block) -> None:
        """Compare rows from `start` on; raises InputError as `through`."""
        k, behind = divmod(start, self.height * self.step)
        if behind == 0 and block.shape[0] == min(self.height, self.n - start):  # one block, as of rows in memory
            self._meet(k, *(_checksum if self.is_exact else _total)((0, 0.0), block, start))
        else:
            self._follow(slice(start, start + block.shape[0]), block, None)

    def _follow(self, where: slice, block: Block, begun: "_Begun") -> "_Begun":
        """Compare the blocks that end in some rows; the checksum so far of the one that continues behind them."""
        stride = self.height * self.step
        k = where.start // stride
        while k * stride < where.stop:
            start, stop = k * stride, min(k * stride + self.height, self.n)
            first, last = max(start, where.start), min(stop, where.stop)
            if first == start:
                begun = (0, 0.0)
            if not isinstance(block, np.ndarray) and (first, last) != (start, stop):
                begun = None  # fractions of anything else would be further copies
            if begun is not None and first < last:
                rows = block[first - where.start : last - where.start]
                begun = (_checksum if self.is_exact else _total)(begun, rows, first)
                if last == stop:
                    self._meet(k, *begun)
                    begun = None
            k += 1
        return begun

    def _meet(self, k: int, value: float, size: float) -> None:
        before = self._sums[k]
        if before is None:
            self._sums[k] = value, size
        elif abs(before[0] - value) > SUM_TOLERANCE * (size + before[1]):
            first = self.starts()[k]
            last = min(first + self.height, self.n)
            raise InputError(
                f"{self.label} is not what was read first: rows were changed or removed between row {first} and "
                f"{last - 1} (counted from 0); expected the same rows as long as the model is used: restore them, or "
                f"call fit again (with a copy, as in X.copy(), of an array that is written to)"
            )


def _checksum(before: tuple[float, float], rows: Block, first: int) -> tuple[float, float]:  # noqa: ARG001
    """CRC-32C of the bytes of rows after others; float64 holds it."""
    found = int(before[0])
    for array in [rows] if isinstance(rows, np.ndarray) else arrays_of(rows):
        is_plain = array.flags.c_contiguous and array.dtype.isnative
        plain = array.view() if is_plain else np.ascontiguousarray(array, array.dtype.newbyteorder("=")).view()
        plain.flags.writeable = False  # the library takes no others
        found = crc32c(found, plain)
    return found, 0.0


def _total(before: tuple[float, float], rows: Block, first: int) -> tuple[float, float]:
    """Sum of the entries, times numbers that tell the rows apart, and of their absolute values."""
    if hasattr(rows, "iloc"):
        import pandas as pd

        numbers = rows.select_dtypes("number")
        of_others = pd.util.hash_pandas_object(rows.drop(columns=numbers.columns), index=False).to_numpy() / 2.0**64
        rows = np.column_stack([numbers.to_numpy(np.float64, na_value=0.5), of_others])
    elif isinstance(rows, np.ndarray):
        rows = np.nan_to_num(rows, nan=0.5)
    factors = 1.0 + np.arange(first, first + rows.shape[0]) % 64
    with np.errstate(over="ignore", invalid="ignore"):
        value, size = factors @ np.asarray(rows.sum(axis=1)), factors @ np.asarray(abs(rows).sum(axis=1))
    return before[0] + float(value), before[1] + float(size)


class WatchedRows(Rows):
    """Rows outside of memory that are compared with what was read first, where all columns of a block are read.

    Parameters
    ----------
    rows : Rows
        Rows of the user's container.
    """

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.is_sparse, self.names, self.is_lazy = rows.is_sparse, rows.names, rows.is_lazy
        self.is_computed, self.is_shared, self.is_checked = rows.is_computed, rows.is_shared, True
        self.sums: BlockSums = sums_of(rows)
        self._shape = rows.shape

    @property
    def is_vector(self) -> bool:
        return self.rows.is_vector

    @property
    def url(self) -> str | None:
        return self.rows.url

    @property
    def shape(self) -> tuple[int, int]:
        return self._shape  # an array may have more rows by now

    def _there(self) -> Rows:
        """The rows; raises InputError if some are gone, or have other columns."""
        found = self.rows.shape
        if found[0] < self._shape[0] or found[1] != self._shape[1]:
            raise InputError(
                f"{self.sums.label} is not what was read first: it has shape {found}, and had {self._shape}; expected "
                f"the same rows as long as the model is used: restore them, or call fit again"
            )
        return self.rows

    @property
    def dtype(self) -> Any:
        return self.rows.dtype

    @property
    def edges(self) -> Sequence[int] | None:
        return self.rows.edges

    @property
    def pointers(self) -> NDArray[Any] | None:
        return self.rows.pointers

    @property
    def index_bytes(self) -> int:
        return self.rows.index_bytes

    @property
    def n_bytes(self) -> int:
        return self.rows.n_bytes

    @property
    def read_overhead_bytes(self) -> int:
        return self.rows.read_overhead_bytes

    def task_edges(self, height: int) -> list[int]:
        return self.rows.task_edges(height)

    def read(self, start: int, stop: int, columns: slice = ALL) -> Block:
        block = self._there().read(start, stop, columns)
        if columns == ALL:
            self.sums.see(start, block)
        return block

    def blocks(self, start: int, stop: int, height: int) -> Iterator[tuple[slice, Block]]:
        return self.sums.through(self._there().blocks(start, stop, height))

    def take(self, indices: NDArray[np.intp]) -> Block:
        return self._there().take(indices)


def sums_of(rows: Rows, name: str = "X", most: int = READ_BLOCKS, block_bytes: int = WATCHED_BLOCK_BYTES) -> BlockSums:
    """Checksums of at most `most` blocks of rows, none of them known yet; messages call the rows `name`."""
    n, d = rows.shape
    height = max(1, min(WATCHED_BLOCK_ROWS, block_bytes // max(1, rows.row_bytes if rows.is_sparse else 8 * d)))
    are_frames, n_blocks = np.dtype(rows.dtype).hasobject, -(-n // height)
    step = -(-n_blocks // (FRAME_BLOCKS if are_frames else most))
    label = name if rows.url is None else f"{name} at {rows.url}"
    return BlockSums(n, height, step, label, is_exact=not (rows.is_computed or are_frames))


def watched(rows: Rows, name: str = "X", *, is_matrix: bool = False) -> Rows:
    """Rows of a fit that are compared whenever they are read again; rows in memory only by `refuse_changed`.

    Parameters
    ----------
    rows : Rows
    name : str
        What messages call them.
    is_matrix : bool
        Whether they are a Gram matrix, which tasks read in tiles: these are not whole rows.
    """
    if rows.is_checked:
        return rows
    if not rows.is_in_memory and not is_matrix:
        return WatchedRows(rows)
    rows.sums = sums_of(rows, name, HELD_BLOCKS, MEMORY_BLOCK_BYTES)
    refuse_changed(rows)
    return rows


def watched_data(rows: Rows, targets: NDArray[Any], weights: NDArray[Any] | None) -> list[Rows]:
    """Rows that are watched already, targets and weights, which are from now on, for `refuse_changed`."""
    data = [rows, watched(MemoryRows(targets), "y")]
    return data if weights is None else [*data, watched(MemoryRows(weights), "sample_weight")]


def refuse_changed(rows: Rows, n_blocks: int = HELD_BLOCKS) -> None:
    """Compare some blocks of rows that are not compared whenever they are read: in memory, and of a Gram matrix.

    Raises
    ------
    InputError
        If they have changed since `watched` saw them.
    """
    sums = rows.sums
    if sums is None or isinstance(rows, WatchedRows):
        return
    step = sums.height * sums.step
    for start in range(0, sums.n, step * -(-sums.n // (step * n_blocks))):
        sums.see(start, rows.read(start, min(start + sums.height, sums.n)))
