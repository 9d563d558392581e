"""Multisets in lexicographic order, by number: any range of a list too long to be written down."""

from itertools import accumulate
from math import comb

import numpy as np
import numpy.typing as npt


def count(n_symbols: int, size: int) -> int:
    """Return the number of multisets of `size` out of `n_symbols`: C(n + size − 1, size)."""
    if size == 0:
        return 1
    return comb(n_symbols + size - 1, size) if n_symbols else 0


def table(n_symbols: int, size: int, start: int, stop: int) -> npt.NDArray[np.int64]:
    """Return multisets start...stop as non-decreasing index tuples.

    Of all multisets of p out of n symbols, those with least symbol i number C(n − i + p − 2, p − 1). Running
    sums of these numbers turn a rank into its least symbol by bisection; what remains is a rank among the
    multisets of p − 1 out of the symbols from i on, which are the last ones of the list for p − 1. So a range
    takes p bisections for each entry, and no table of the others.

    Parameters
    ----------
    n_symbols, size : int
        n and p.
    start, stop : int
        Range of ranks, within `count(n_symbols, size)` and below 2⁶³.

    Returns
    -------
    ndarray of int64, shape (size, stop - start)
        Row k holds the k-th index of each multiset.
    """
    indices = np.empty((size, stop - start), dtype=np.int64)
    ranks = np.arange(start, stop, dtype=np.int64)
    least = np.zeros(stop - start, dtype=np.int64)
    for position in range(size):
        remaining = size - position
        numbers = (count(n_symbols - i, remaining - 1) for i in range(n_symbols))
        # Ranks stay below 2**63, so a clipped sum is above every one of them all the same.
        sums = [min(total, 2**63 - 1) for total in accumulate(numbers, initial=0)]
        before = np.array(sums, dtype=np.int64)
        ranks += before[least]
        least = np.searchsorted(before, ranks, side="right") - 1
        ranks -= before[least]
        indices[position] = least
    return indices


def root_weights(indices: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return √(p! / ∏ mᵢ!) of each multiset, mᵢ the multiplicities: the multinomial theorem's weights.

    Parameters
    ----------
    indices : ndarray of int64, shape (size, n)
        Non-decreasing down each column, as from `table`.

    Returns
    -------
    ndarray of float64, shape (n,)
    """
    weights = np.ones(indices.shape[1])
    run = np.ones(indices.shape[1])
    # ∏ mᵢ! is the product of "how many of this symbol so far", and p! that of the positions; taken together
    # the factors stay small where p! alone would overflow.
    for position in range(1, len(indices)):
        run = np.where(indices[position] == indices[position - 1], run + 1, 1.0)
        weights *= (position + 1) / run
    return np.sqrt(weights)
