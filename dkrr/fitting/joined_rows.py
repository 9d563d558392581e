"""Rows of several calls, joined in the memory of this process and apart from the arrays that were given."""

from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp

from dkrr.data import MemoryRows, Rows
from dkrr.data.arrays import canonical
from dkrr.data.rows import dense
from dkrr.errors import MemoryLimitError
from dkrr.limits import resident_bytes
from dkrr.machine.detection import detect
from dkrr.text import format_bytes


def joined_rows(parts: Sequence[Rows], memory_limit: int | str | None) -> MemoryRows:
    """Rows of all parts, one after another: CSR if all are, else dense, with the names of the first ones.

    Raises
    ------
    MemoryLimitError
        If rows that are outside of memory do not fit there.
    """
    _refuse_too_large(parts, memory_limit)
    blocks = [one.read(0, one.shape[0]) for one in parts]
    if all(sp.issparse(block) for block in blocks):
        joined = MemoryRows(canonical(sp.csr_array(sp.vstack(blocks, format="csr"))))
    elif len(blocks) == 1 and not parts[0].is_in_memory:  # a new array already
        joined = MemoryRows(dense(blocks[0]))
    else:
        joined = MemoryRows(np.concatenate([dense(block) for block in blocks]))
    joined.names = parts[0].names
    return joined


def _refuse_too_large(parts: Sequence[Rows], memory_limit: int | str | None) -> None:
    lazy = sum(one.n_bytes for one in parts if not one.is_in_memory)
    if not lazy:
        return
    limit, held = detect(memory_limit, None).local_limit_bytes, resident_bytes()
    needed = lazy + (sum(one.n_bytes for one in parts) if len(parts) > 1 else 0)
    if held + needed > limit:
        raise MemoryLimitError(
            f"reading and joining X takes {format_bytes(needed)} beside {format_bytes(held)} of this process, and "
            f"{format_bytes(limit)} of memory are allowed; expected rows that fit in memory, where partial_fit keeps "
            f"them: give all rows to fit with store=, which grows there"
        )
