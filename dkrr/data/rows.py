"""Rows of numbers that are read a block at a time: what every container of rows has in common.

Also what is looked for in all of them, block by block: NaN, infinity, numbers beyond float64, and checksums.
"""

import hashlib
import itertools
import math
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dkrr.cluster.tasks import Meter, Task
from dkrr.errors import InputError
from dkrr.rounding import check_exact, place_of_value

Block = Any
"""A 2-D ndarray or a scipy.sparse CSR array."""

ALL = slice(None)

WINDOW_ROWS = 256
"""Consecutive sparse rows whose average is taken: tiles are seldom lower, and a single dense row does not count."""

SPARSE_STRIP_ENTRIES = 2**18
"""Most stored entries of sparse rows that are read at once for a tile of a Gram matrix: 3 MiB, which kernels copy a few
times. With fewer, the rows of a tile would be read and transposed more often."""

SPARSE_BLOCK_ENTRIES = 2**21
"""Most stored entries of sparse rows that a pass reads at once, 24 MiB or 32: each block passes over the vectors that
it is added to, which may be as wide as X, so smaller ones would take longer."""
SPARSE_ENTRY_BYTES = 16
"""Bytes of a stored entry of sparse rows, with an index of 8 bytes."""


def sparse_bytes_at_once(height: int, row_bytes: int, largest: int, largest_row: int, *, in_strips: bool) -> int:
    """Most bytes that are read at once of consecutive sparse rows.

    Parameters
    ----------
    height : int
        Rows.
    row_bytes : int
        Bytes of one row where rows are heaviest (`Rows.dense_window_row_bytes`).
    largest, largest_row : int
        Bytes of the heaviest `height` rows, wherever they are, and of the heaviest one.
    in_strips : bool
        As `Rows.row_ranges` reads them for a tile; else as a pass does.
    """
    windows = -(-height // WINDOW_ROWS) * WINDOW_ROWS * row_bytes
    entries = SPARSE_ENTRY_BYTES * ((SPARSE_STRIP_ENTRIES if in_strips else SPARSE_BLOCK_ENTRIES) + height)
    return min(windows, largest, max(entries, largest_row))


class Rows(ABC):
    """Rows of a table: shape, dtype, and blocks of consecutive rows."""

    is_sparse: bool = False
    is_in_memory: bool = False
    """True if reading costs no more than looking."""
    names: tuple[str, ...] | None = None
    """Names of the columns, for messages; None where they have none."""
    is_lazy: bool = False
    """True if what is computed of the rows is lazy too: they are outside of this process's memory."""
    is_computed: bool = False
    """True if every read may compute the rows again, at an unknown cost."""
    is_shared: bool = False
    """True if another process can read the rows too (they are in a store, not in this process)."""
    is_checked: bool = False
    """True if what is read is compared with checksums already: by the rows themselves, or by those they are made of."""
    sums: Any = None
    """Checksums of blocks of the rows of a fit (`data.watched`); None: they are not compared here."""

    @property
    def is_vector(self) -> bool:
        """Whether they are those of a vector, or of a table's only column: targets of shape (n,)."""
        return False

    @property
    def url(self) -> str | None:
        """Path or URL from which every process reads the rows, or their bucket; None if there is none."""
        return None

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""

    @property
    @abstractmethod
    def dtype(self) -> Any:
        """Type of the numbers as they are stored."""

    @property
    def edges(self) -> Sequence[int] | None:
        """First rows of what the container can only read as a whole, such as chunks, and the end; None: of each row."""
        return None

    @property
    def pointers(self) -> NDArray[Any] | None:
        """Position of the first stored entry of each sparse row, and the number of entries, (n + 1,); None if dense."""
        return None

    @property
    def index_bytes(self) -> int:
        """Bytes of the index of a stored entry of sparse rows."""
        return 4

    @property
    def n_entries(self) -> int:
        """Number of stored entries of sparse rows."""
        assert self.pointers is not None, "sparse rows have pointers"
        return int(self.pointers[-1])

    @abstractmethod
    def read(self, start: int, stop: int, columns: slice = ALL) -> Block:
        """Rows start ... stop − 1 (of some columns) as they are stored: ndarray, or CSR if `is_sparse`."""

    def blocks(self, start: int, stop: int, height: int) -> Iterator[tuple[slice, Block]]:
        """Rows start ... stop − 1 in consecutive blocks, for work that goes through all of them once.

        What the container can only read as a whole (a compressed chunk) is read once, not for every block of it.
        Blocks have at most `height` rows and end at start + k × height, or before. They are to be read only, and only
        until the next one is asked for.
        """
        first, edges = start, self.edges
        while first < stop:
            last = first + height
            if edges is not None:  # as many whole chunks as `height` rows hold, or one
                k = bisect_right(edges, last) - 1
                last = edges[k] if edges[k] > first else edges[k + 1]
            last = min(last, stop)
            yield from cut(self.read(first, last), first, start, height)
            first = last

    def even_blocks(self, start: int, stop: int, height: int) -> Iterator[tuple[slice, Block]]:
        """`blocks` of `height` rows whatever the container, for sums that are to have the same bits in all of them."""
        held, first = list[Block](), start
        for where, block in self.blocks(start, stop, height):
            is_end = (where.stop - start) % height == 0 or where.stop == stop
            if not is_end or held:
                held.append(block.copy())
            if is_end:
                yield slice(first, where.stop), joined(held) if held else block
                held, first = [], where.stop

    def task_edges(self, height: int) -> list[int]:
        """First rows of segments that tasks read one each, of about `height` rows, and the number of rows."""
        return [*range(0, self.shape[0], height), self.shape[0]]

    def row_ranges(self, rows: slice, max_entries: int | None = None) -> list[slice]:
        """Consecutive ranges that together are `rows`, each to be read on its own where memory counts.

        Sparse rows are cut into ranges of at most `max_entries` stored entries (default: SPARSE_STRIP_ENTRIES), or of
        one row; dense ones are not cut.
        """
        if not self.is_sparse:
            return [rows]
        cuts = cuts_by_entries(self._pointers_of(rows), SPARSE_STRIP_ENTRIES if max_entries is None else max_entries)
        return [slice(rows.start + a, rows.start + b) for a, b in pairwise(cuts)]

    def _pointers_of(self, rows: slice) -> NDArray[Any]:
        """Pointers of some sparse rows, (len(rows) + 1,)."""
        assert self.pointers is not None, "sparse rows have pointers"
        return self.pointers[rows.start : rows.stop + 1]

    def take(self, indices: NDArray[np.intp]) -> Block:
        """Some rows, by number in any order, as they are stored; nothing else is read where that can be."""
        return taken(self._around(np.unique(indices)), indices)

    def _around(self, wanted: NDArray[np.intp]) -> Iterator[tuple[slice, Block]]:
        """Blocks that hold all of some rows, numbered in ascending order; what is read as a whole is read once."""
        done, edges = 0, self.edges
        while done < len(wanted):
            first = int(wanted[done])
            end = first + 1 if edges is None else edges[bisect_right(edges, first)]
            done = int(np.searchsorted(wanted, end))
            last = int(wanted[done - 1]) + 1
            yield slice(first, last), self.read(first, last)

    @property
    def n_bytes(self) -> int:
        """Bytes of the whole table in memory."""
        return int(self.shape[0]) * int(self.shape[1]) * int(np.dtype(self.dtype).itemsize)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row in memory, with its values as float64; of a sparse row the average, with two pointers."""
        if not self.is_sparse:
            return self.shape[1] * 8
        return -(-self.n_entries * (8 + self.index_bytes) // max(self.shape[0], 1)) + 16

    @cached_property
    def dense_window_row_bytes(self) -> int:
        """Bytes of one row where rows are heaviest: no block of WINDOW_ROWS or more has twice as many per row."""
        pointers, n = self.pointers, self.shape[0]
        if pointers is None or pointers[-1] == 0:
            return self.row_bytes
        height = min(WINDOW_ROWS, n)
        entries, in_window = int(pointers[-1]), int((pointers[height:] - pointers[:-height]).max(initial=0))
        return max(self.row_bytes, -(-self.row_bytes * in_window * n // (entries * height)))

    @cached_property
    def cumulative_largest_row_bytes(self) -> tuple[int, ...]:
        """Bytes of the heaviest row, of the 2, 4, 8, ... heaviest ones together, and of all; empty if all are alike."""
        pointers, n = self.pointers, max(self.shape[0], 1)
        if pointers is None:
            return ()
        numbers = [*(2**k for k in range(n.bit_length()) if 2**k < n), n]
        totals = np.cumsum(np.sort(np.diff(pointers).astype(np.int64))[::-1])
        return tuple(int(totals[k - 1]) * (8 + self.index_bytes) + 16 * k for k in numbers)

    @property
    def read_overhead_bytes(self) -> int:
        """Most bytes that a read needs besides its result (decoded chunks)."""
        return 0


def cut(block: Any, first: int, start: int, height: int) -> Iterator[tuple[slice, Any]]:
    """Cut a block, whose first row has the number `first`, where blocks of some height from row `start` on end."""
    top, last = first, first + block.shape[0]
    while top < last:
        bottom = min(last, top + height - (top - start) % height)
        is_whole = bottom - top == block.shape[0]  # of sparse rows a part is a copy
        yield slice(top, bottom), block if is_whole else getattr(block, "iloc", block)[top - first : bottom - first]
        top = bottom


def cuts_by_entries(pointers: NDArray[Any], max_entries: int, max_rows: int | None = None) -> list[int]:
    """First rows of blocks of sparse rows, and n; a block has at most `max_entries` and `max_rows`, or one row."""
    cuts, n = [0], len(pointers) - 1
    while cuts[-1] < n:
        last = int(np.searchsorted(pointers, int(pointers[cuts[-1]]) + max_entries, side="right")) - 1
        cuts.append(min(max(last, cuts[-1] + 1), n if max_rows is None else cuts[-1] + max_rows, n))
    return cuts


def joined(blocks: list[Any]) -> Any:
    """Consecutive blocks as one: ndarrays, CSR arrays, or frames of pandas."""
    if sp.issparse(blocks[0]):
        return sp.csr_array(sp.vstack(blocks, format="csr"))
    if isinstance(blocks[0], np.ndarray):
        return np.concatenate(blocks)
    import pandas as pd

    return pd.concat(blocks, ignore_index=True)


def taken(blocks: Iterable[tuple[slice, Block]], indices: NDArray[np.intp]) -> Block:
    """Rows with some numbers, in any order, of blocks that come in the order of the rows and are not overwritten."""
    order = np.argsort(indices, kind="stable")
    wanted, found, first = np.asarray(indices)[order], [], 0
    for where, block in blocks:
        last = int(np.searchsorted(wanted, where.stop))
        if last > first:
            here = wanted[first:last] - where.start
            found.append(block if np.array_equal(here, range(block.shape[0])) else block[here])
        first = last
    return joined(found)[np.argsort(order, kind="stable")]


def dense(block: Block) -> NDArray[Any]:
    """Block as an ndarray."""
    return np.asarray(block.toarray() if sp.issparse(block) else block)


def n_bytes(block: Block) -> int:
    """Bytes of a block in memory."""
    if hasattr(block, "memory_usage"):  # of pandas
        return int(block.memory_usage(deep=True).sum())
    arrays = (block.data, block.indices, block.indptr) if sp.issparse(block) else (block,)
    return sum(array.nbytes for array in arrays)


_BLOCK_BYTES = 32 * 2**20
_BLOCK_ROWS = 8192


def _block_height(rows: Rows) -> int:
    """Rows that are checked at once."""
    return max(1, min(_BLOCK_ROWS, _BLOCK_BYTES // (8 * rows.shape[1])))


def _blocks(rows: Rows, lengths: Sequence[int] = ()) -> list[int]:
    """First rows of the blocks that are hashed, and the number of rows: no chunks or tiles of a container count.

    Blocks also end where the rows ended when they were fewer (`lengths`).
    """
    height = _block_height(rows)
    ends = itertools.pairwise([0, *lengths, rows.shape[0]])
    return [*(k for first, last in ends for k in range(first, last, height)), rows.shape[0]]


def scan_tasks(
    rows: Rows, name: str, *, digest: bool, n_tasks: int, lengths: Sequence[int] = (), sums: Any = None
) -> list[Task]:
    """Tasks that check all rows; their values, in order, are lists of the digests of blocks, and what `sums` are known.

    With `digest` they hash the rows too, for a store that may be resumed, and with `sums`, none of which is known, each
    finds those of its rows. Messages call the rows `name`.
    """
    blocks = _blocks(rows, lengths)
    n_blocks = len(blocks) - 1
    cuts = [round(i * n_blocks / n_tasks) for i in range(n_tasks + 1)]
    return [
        Task(f"scan-{name}-{first}", _scan, (rows, name, blocks[first : last + 1], digest, sums), flops=last - first)
        for first, last in itertools.pairwise(cuts)
        if last > first
    ]


def scan(rows: Rows, name: str, meter: Meter | None = None) -> None:
    """Check rows in this process; the meter counts the bytes that are read.

    Raises
    ------
    InputError
        At a NaN, an infinity, or a number that float64 does not hold; the message names its row and column.
    """
    if not rows.is_in_memory:
        _scan(Meter() if meter is None else meter, rows, name, _blocks(rows), digest=False)
        return
    n, height = rows.shape[0], _block_height(rows)
    for start in range(0, n, height):
        check_finite(rows.read(start, min(start + height, n)), name, start, rows.names)


MOST_NOTED_BLOCKS = 512
"""Most checksums that are kept of the blocks between two lengths; each is of several blocks where there are more."""


@dataclass(frozen=True)
class Checksums:
    """Checksums of rows: a chain of those of the first rows, up to some lengths, and those of the blocks between."""

    lengths: tuple[int, ...]
    """Numbers of first rows, in ascending order; the last is that of all."""
    digests: tuple[str, ...]
    """Checksum of so many first rows: each continues the one before with the blocks of the rows between."""
    ends: tuple[int, ...] = ()
    """Ends of blocks of rows."""
    blocks: tuple[str, ...] = ()
    """Beginnings of their checksums, by which those that differ are named."""

    def first_differing(self, ends: Sequence[int], blocks: Sequence[str]) -> range | None:
        """First block of rows that differs from those with these checksums; None if that is not known."""
        first = 0
        for end, mine, other_end, other in zip(self.ends, self.blocks, ends, blocks, strict=False):
            if end != other_end:
                return None
            if mine != other:
                return range(first, end)
            first = end
        return None


def checksums_of(rows: Rows, digests: Sequence[Sequence[str]], lengths: Sequence[int] = ()) -> Checksums:
    """Checksums of rows from the values of `scan_tasks` with the same lengths, where the rows ended earlier.

    That of the first rows, up to the first length, is the checksum of these alone. So a run that grows knows its rows.
    """
    cuts, of_blocks = _blocks(rows, lengths), list(itertools.chain.from_iterable(digests))
    chain, ends, blocks, checksum = list[str](), list[int](), list[str](), ""
    for first, last in itertools.pairwise([0, *lengths, rows.shape[0]]):
        start, stop = bisect_left(cuts, first), bisect_left(cuts, last)
        between = of_blocks[start:stop]
        checksum = hashlib.sha256("".join([checksum, *between]).encode()).hexdigest()
        chain.append(checksum)
        each = -(-len(between) // MOST_NOTED_BLOCKS)
        for k in range(0, len(between), max(each, 1)):
            ends.append(cuts[min(start + k + each, stop)])
            blocks.append(hashlib.sha256("".join(between[k : k + each]).encode()).hexdigest()[:12])
    return Checksums((*lengths, rows.shape[0]), tuple(chain), tuple(ends), tuple(blocks))


def digest_of(array: NDArray[Any], before: str = "") -> str:
    """Checksum of an array in memory, or of one that follows another, whose checksum is `before`."""
    checksum = hashlib.sha256(before.encode())
    checksum.update(np.ascontiguousarray(array, "<f8").data)
    return checksum.hexdigest()


def digests_of_weights(weights: NDArray[np.float64] | None, lengths: Sequence[int]) -> list[str]:
    """Chain of the checksums of the weights of the first rows, up to each length; None and ones are the same."""
    chain, before = list[str](), ""
    for first, last in itertools.pairwise([0, *lengths]):
        before = digest_of(np.ones(last - first) if weights is None else weights[first:last], before)
        chain.append(before)
    return chain


def _scan(
    meter: Meter, rows: Rows, name: str, blocks: list[int], digest: bool, sums: Any = None
) -> tuple[list[str], Any]:
    digests: list[str] = []
    ends, sha = set(blocks), None
    most = max(b - a for a, b in itertools.pairwise(blocks))
    # Blocks have this height, but for those that end where the rows ended earlier.
    cuts = sorted({blocks[0], blocks[-1], *(b for a, b in itertools.pairwise(blocks) if b - a < most)})
    stream = itertools.chain.from_iterable(rows.blocks(a, b, most) for a, b in itertools.pairwise(cuts))
    if sums is not None:
        sums = sums.unknown()
        stream = sums.through(stream)
    while True:
        with meter.time("read"):
            found = next(stream, None)
        if found is None:
            return digests, None if sums is None else sums.known()
        where, block = found
        meter.bytes_read += 0 if rows.is_in_memory else n_bytes(block)
        check_finite(block, name, where.start, rows.names)
        if not digest:
            continue
        with meter.time("digest"):
            if sha is None:
                n_rows = blocks[bisect_right(blocks, where.start)] - where.start
                dtype = np.dtype(block.dtype).newbyteorder("=")  # as a copy in a store has it
                sha = hashlib.sha256(str(((n_rows, block.shape[1]), dtype.str)).encode())
            # Dense blocks may come in strips, whose bytes follow each other; sparse ones come whole.
            for array in arrays_of(block):
                sha.update(np.ascontiguousarray(array, array.dtype.newbyteorder("=")).data)
            if where.stop in ends:
                digests.append(sha.hexdigest())
                sha = None


def arrays_of(block: Block) -> list[NDArray[Any]]:
    """Arrays whose bytes tell a block from others."""
    if not sp.issparse(block):
        return [block]
    return [block.data, block.indices.astype(np.int64), block.indptr.astype(np.int64)]


def check_finite(block: Block, name: str, first_row: int = 0, names: Sequence[str] | None = None) -> None:
    """Refuse NaN, infinity and what float64 would round in a vector, a matrix or CSR rows.

    The first row has the number `first_row`, and the columns may have `names`.

    Raises
    ------
    InputError
        Naming the first bad row and column.
    """
    if block.dtype.kind != "f" or block.dtype.itemsize > 8:
        check_exact(block, name, first_row, names)
    bad = first_bad(block)
    if bad is None:
        return
    what, row, column = bad
    called = "" if names is None else f", which is {names[column]!r}"
    raise InputError(
        f"Input {name} contains {what}: the first bad value is in row {first_row + row}, column {column} (counted "
        f"from 0){called}; expected finite numbers: remove or fill such rows before fitting"
    )


def first_bad(block: Block) -> tuple[str, int, int] | None:
    """First value that is not finite ("NaN", "infinity"), with its row and its column; None if all are finite."""
    values = block.data if sp.issparse(block) else block
    if values.dtype.kind != "f":
        return None
    # The sum is finite unless a value is not, or it overflows; the values themselves tell which.
    with np.errstate(over="ignore", invalid="ignore"):
        if math.isfinite(values.sum()):
            return None
    bad = ~np.isfinite(values)
    if not bad.any():
        return None
    at = int(np.argmax(bad))
    return ("NaN" if np.isnan(values.flat[at]) else "infinity", *place_of_value(block, at))
