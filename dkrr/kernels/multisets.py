"""Multisets in lexicographic order, by number, and the monomials that they stand for.

Any range of a list too long to be written down.
"""

from collections.abc import Callable, Iterator
from itertools import accumulate
from math import comb

import numpy as np
import numpy.typing as npt

from dkrr.errors import InputError
from dkrr.kernels.blocks import STRIP_COLUMNS, STRIP_ROWS, Block, FloatArray, Scratch
from dkrr.kernels.map_base import Array, dense_rows

Indices = npt.NDArray[np.int64]


def count(n_symbols: int, size: int) -> int:
    """Number of multisets of `size` out of `n_symbols`: C(n + size − 1, size)."""
    if size == 0:
        return 1
    return comb(n_symbols + size - 1, size) if n_symbols else 0


def table(n_symbols: int, size: int, start: int, stop: int) -> Indices:
    """Multisets start...stop as non-decreasing index tuples.

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
        # Ranks stay below 2**63, so a clipped sum is still above all of them.
        sums = [min(total, 2**63 - 1) for total in accumulate(numbers, initial=0)]
        before = np.array(sums, dtype=np.int64)
        ranks += before[least]
        least = np.searchsorted(before, ranks, side="right") - 1
        ranks -= before[least]
        indices[position] = least
    return indices


def root_weights(indices: Indices) -> Array:
    """√(p! / ∏ mᵢ!) of each multiset, (n,): the weights of the multinomial theorem, mᵢ the multiplicities.

    The indices, (size, n), do not decrease down a column, as those of `table`.
    """
    weights = np.ones(indices.shape[1])
    run = np.ones(indices.shape[1])
    # ∏ mᵢ! is the product of "how many of this symbol so far", and p! that of the positions; taken together
    # the factors stay small where p! alone would overflow.
    for position in range(1, len(indices)):
        run = np.where(indices[position] == indices[position - 1], run + 1, 1.0)
        weights *= (position + 1) / run
    return np.sqrt(weights)


def symbols(X: Block, scale: float, constant: float) -> Array:
    """The symbols of monomials: a constant, if it is above 0, and the columns of rows times `scale`."""
    n_rows, d = X.shape
    out = np.empty((n_rows, d + (constant > 0)))
    # For float32 rows and a Python number NumPy would compute in float32.
    np.multiply(dense_rows(X), scale, out=out[:, -d:], dtype=np.float64)
    if constant > 0:
        out[:, 0] = constant
    return out


def strips(
    n_symbols: int, degree: int, weights_of: Callable[[Indices], Array], start: int, stop: int, out: Array
) -> Iterator[tuple[Indices, Array, slice, Array, FloatArray]]:
    """Cut columns start...stop of a block of monomials into strips that stay in cache.

    Yields
    ------
    indices, weights : ndarray
        Multisets of a strip's columns, as from `table`, and `weights_of` them.
    rows : slice
    strip, factor : ndarray
        The strip, a view of `out`, and scratch memory of its shape.
    """
    if stop >= 2**63:
        raise InputError(
            f"the feature map has {count(n_symbols, degree)} features, and columns beyond 2**63 cannot be computed; "
            'expected fewer: use a smaller degree or the kernel itself (form="dual")'
        )
    scratch = Scratch()
    # Columns outside, so that their table is made once; rows inside, so that the strip stays in cache and no temporary
    # grows with X or D.
    for left in range(start, stop, STRIP_COLUMNS):
        right = min(left + STRIP_COLUMNS, stop)
        indices = table(n_symbols, degree, left, right)
        weights = weights_of(indices)
        for top in range(0, len(out), STRIP_ROWS):
            rows = slice(top, top + STRIP_ROWS)
            strip = out[rows, left - start : right - start]
            yield indices, weights, rows, strip, scratch.like(strip)


def take(symbols: Array, columns: Indices, out: FloatArray) -> None:
    """Write some columns of symbols into `out`."""
    # mode="clip" writes into `out` directly; the indices are in range anyway.
    np.take(symbols, columns, axis=1, out=out, mode="clip")
