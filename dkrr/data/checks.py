"""NaN, infinity and checksums, found block by block."""

import hashlib
import itertools
import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dkrr.cluster.task import Meter, Task
from dkrr.data.rows import Block, Rows, n_bytes
from dkrr.errors import InputError

_BLOCK_BYTES = 32 * 2**20
_BLOCK_ROWS = 8192


def _blocks(rows: Rows) -> list[int]:
    """First rows of the blocks that are hashed: they depend on the shape only, not on chunks or on tiles."""
    height = max(1, min(_BLOCK_ROWS, _BLOCK_BYTES // (8 * rows.shape[1])))
    return [*range(0, rows.shape[0], height), rows.shape[0]]


def scan_tasks(rows: Rows, name: str, *, digest: bool, n_tasks: int) -> list[Task]:
    """Tasks that check all rows; their values, in order, are lists of the digests of blocks.

    With `digest` they hash the rows too, for a store that may be resumed. Messages call the rows `name`.
    """
    blocks = _blocks(rows)
    n_blocks = len(blocks) - 1
    cuts = [round(i * n_blocks / n_tasks) for i in range(n_tasks + 1)]
    return [
        Task(f"scan-{name}-{first}", _scan, (rows, name, blocks[first : last + 1], digest), flops=last - first)
        for first, last in itertools.pairwise(cuts)
        if last > first
    ]


def scan(rows: Rows, name: str, meter: Meter | None = None) -> None:
    """Check rows in this process; the meter counts the bytes that are read.

    Raises
    ------
    InputError
        At a NaN or an infinity; the message names its row and column.
    """
    blocks = _blocks(rows)
    for where, block in rows.blocks(blocks[0], blocks[-1], blocks[1] - blocks[0]):
        if meter is not None and not rows.is_in_memory:
            meter.bytes_read += n_bytes(block)
        check_finite(block, name, where.start, rows.names)


def combine(digests: Sequence[Sequence[str]]) -> str:
    """One checksum from the values of `scan_tasks`."""
    return hashlib.sha256("".join(d for several in digests for d in several).encode()).hexdigest()


def digest_of(array: NDArray[Any]) -> str:
    """Checksum of an array in memory."""
    return hashlib.sha256(np.ascontiguousarray(array, "<f8").data).hexdigest()


def _scan(meter: Meter, rows: Rows, name: str, blocks: list[int], digest: bool) -> list[str]:
    digests: list[str] = []
    ends, sha = set(blocks), None
    stream = rows.blocks(blocks[0], blocks[-1], max(b - a for a, b in itertools.pairwise(blocks)))
    while True:
        with meter.time("read"):
            found = next(stream, None)
        if found is None:
            return digests
        where, block = found
        meter.bytes_read += 0 if rows.is_in_memory else n_bytes(block)
        check_finite(block, name, where.start, rows.names)
        if not digest:
            continue
        with meter.time("digest"):
            if sha is None:
                height = blocks[bisect_right(blocks, where.start)] - where.start
                dtype = np.dtype(block.dtype).newbyteorder("=")  # as a copy in a store has it
                sha = hashlib.sha256(str(((height, block.shape[1]), dtype.str)).encode())
            # Dense blocks may come in pieces, whose bytes follow each other; sparse ones come whole.
            for array in _arrays_of(block):
                sha.update(np.ascontiguousarray(array, array.dtype.newbyteorder("=")).data)
            if where.stop in ends:
                digests.append(sha.hexdigest())
                sha = None


def _arrays_of(block: Block) -> list[NDArray[Any]]:
    if not sp.issparse(block):
        return [block]
    return [block.data, block.indices.astype(np.int64), block.indptr.astype(np.int64)]


def check_finite(block: Block, name: str, first_row: int = 0, names: Sequence[str] | None = None) -> None:
    """Refuse NaN and infinity in a vector, a matrix or CSR rows, of which the first has the number `first_row`.

    The columns may have `names`.

    Raises
    ------
    InputError
        Naming the first bad row and column.
    """
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
    """What the first value is that is not finite ("NaN", "infinity"), its row and its column; None if all are."""
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
    if sp.issparse(block):
        row, column = int(np.searchsorted(block.indptr, at, side="right")) - 1, int(block.indices[at])
    else:
        row, column = divmod(at, block.shape[1] if block.ndim == 2 else 1)
    return "NaN" if np.isnan(values.flat[at]) else "infinity", row, column
