"""Choosing rows that represent the others, for Nyström features."""

import uuid
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dkrr.kernels import Kernel
from dkrr.linalg.columns import GramColumns
from dkrr.linalg.pivoted_cholesky import PivotedCholesky
from dkrr.rows import MemoryRows, Rows
from dkrr.runtime import SerialExecutor

CANDIDATES_TO_RANK = 20
"""Rows from which pivots are chosen, for each one wanted: the factor of all of millions of rows would not fit."""
MIN_CANDIDATES = 10_000


def choose_pivots(
    kernel: Kernel, rows: Rows, rank: int, method: Literal["rpcholesky", "uniform"], seed: int
) -> NDArray[np.intp]:
    """Choose rows by which the kernel matrix is best approximated.

    Parameters
    ----------
    kernel : Kernel
    rows : Rows
    rank : int
        Number of rows to choose.
    method : {"rpcholesky", "uniform"}
    seed : int

    Returns
    -------
    ndarray of shape (rank,) or shorter, where the kernel has a smaller rank
        In the order in which they were chosen. RPCholesky chooses from a random sample of CANDIDATES_TO_RANK × rank
        rows if n is larger.
    """
    n = rows.shape[0]
    rng = np.random.default_rng(seed)
    if method == "uniform":
        return np.sort(rng.choice(n, size=min(rank, n), replace=False))
    candidates = np.arange(n)
    most = max(MIN_CANDIDATES, CANDIDATES_TO_RANK * rank)
    if n > most:
        candidates = np.sort(rng.choice(n, size=most, replace=False))
    block = rows.take(candidates) if n > most else rows.read(0, n)
    factor = PivotedCholesky(
        GramColumns(kernel.resolved(rows.shape[1]), MemoryRows(block)),
        SerialExecutor(),
        run=f"pivots-{uuid.uuid4().hex}",
        slots=1,
        capacity=rank,
        seed=seed,
    )
    try:
        factor.grow(rank)
        return candidates[factor.index]
    finally:
        factor.close()
