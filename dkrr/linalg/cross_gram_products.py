"""K(x, X) between other rows and the training rows: its entries and products, a block of rows at a time.

Predictions multiply it by α, standard deviations solve with its entries, and checks of a solution compare some rows of
a product. Nothing here is larger than a block of rows times a strip of the other ones, but for what is asked for.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dkrr import blas
from dkrr.data import Rows
from dkrr.data.rows import Block, dense
from dkrr.errors import KernelFunctionError, NotFiniteError
from dkrr.kernels import Kernel
from dkrr.kernels.base import KernelTo
from dkrr.kernels.blocks import as_rows
from dkrr.linalg.sources import KERNEL_BLOCK, fill_gram, located_error

Array = NDArray[np.float64]

BLOCK_ROWS = 1024
"""Other rows of a block."""
STRIP_ROWS = 4096
"""Training rows of a strip that is in memory at once (32 MiB with BLOCK_ROWS)."""
STRIP_BYTES = 16 * 2**20
"""Bound for the training rows of a strip, where they are read from a store or are sparse."""
ENTRIES = 2**22
"""Entries of K that are in memory at once for a product by its transpose, or are read of a precomputed matrix."""
KEPT_BYTES = 16 * 2**20
"""Most memory of what is kept of the training rows for products with a few rows."""


class CrossGram(ABC):
    """K(x, X) for blocks of rows x, in products by α and by other coefficients."""

    @abstractmethod
    def add_times(self, x: Block, coefs: Sequence[Array], outs: Sequence[Array], first: int | None = None) -> None:
        """Add K(x, X) V to an array for each V, from one evaluation of the kernel; the bits are those of each V alone.

        Parameters
        ----------
        x : ndarray or CSR of shape (m, d)
            At most BLOCK_ROWS rows.
        coefs : sequence of ndarray of shape (n, t)
            V.
        outs : sequence of ndarray of shape (m, t)
        first : int, optional
            Number of the first row of x, for messages; None: rows have no numbers.
        """

    @abstractmethod
    def adjoint_times(self, x: Block, values: Array, threads: int) -> Array:
        """Product K(X, x) U, by strips of training rows in threads.

        Parameters
        ----------
        x : ndarray or CSR of shape (m, d)
        values : ndarray of shape (m, t)
            U.
        threads : int

        Returns
        -------
        ndarray of shape (n, t)
        """

    def times(self, x: Block, coef: Array) -> Array:
        """Product K(x, X) V of any number of rows.

        Parameters
        ----------
        x : ndarray or CSR of shape (m, d)
        coef : ndarray of shape (n, t)
            V.

        Returns
        -------
        ndarray of shape (m, t)
        """
        total = np.zeros((x.shape[0], coef.shape[1]))
        for start in range(0, x.shape[0], BLOCK_ROWS):
            here = slice(start, start + BLOCK_ROWS)
            self.add_times(x[here], (coef,), (total[here],))
        return total


def cross_gram(kernel: Kernel, rows: Rows) -> CrossGram:
    """K(x, X) of a kernel and training rows."""
    return GivenCrossGram() if kernel.is_precomputed else ComputedCrossGram(kernel, rows)


class GivenCrossGram(CrossGram):
    """K(x, X) of a precomputed kernel: a block of rows x is K(x, X) itself."""

    def add_times(self, x: Block, coefs: Sequence[Array], outs: Sequence[Array], first: int | None = None) -> None:  # noqa: ARG002
        x = np.ascontiguousarray(dense(x), np.float64)
        for out, coef in zip(outs, coefs, strict=True):
            blas.gemm(out, x, coef, beta=1.0)

    def adjoint_times(self, x: Block, values: Array, threads: int) -> Array:  # noqa: ARG002
        return blas.product(dense(x).T, values)


class ComputedCrossGram(CrossGram):
    """K(x, X) that is computed from the rows in the calling process, by strips of training rows.

    What depends on training rows alone is kept, if they are in memory and that is little.

    Parameters
    ----------
    kernel : Kernel
        Kernel, resolved here if it is not (as of a description that was forged).
    rows : Rows
        Training rows X.
    """

    def __init__(self, kernel: Kernel, rows: Rows) -> None:
        self.kernel, self.rows, self.n = kernel.resolved(rows.shape[1]), rows, rows.shape[0]
        self._strip_rows = min(max(1, self.n), STRIP_ROWS)
        self._kept: dict[int, KernelTo] | None = None
        """By their first row, k(·, X) of training rows."""
        if rows.is_sparse or not rows.is_in_memory:
            self._strip_rows = max(1, min(self._strip_rows, STRIP_BYTES // rows.dense_window_row_bytes))
        elif self.kernel.kept_bytes(*rows.shape) <= KEPT_BYTES:
            self._kept = {}

    def add_times(self, x: Block, coefs: Sequence[Array], outs: Sequence[Array], first: int | None = None) -> None:
        x, height, kept = as_rows(x), self._strip_rows, None if sp.issparse(x) else self._kept
        strip = np.empty((x.shape[0], height))
        for start in range(0, self.n, height):
            stop = min(start + height, self.n)
            out = strip[:, : stop - start]
            if kept is None:
                origin = None if first is None else (first, start)
                fill_gram(self.kernel, x, self.rows.read(start, stop), out, origin=origin)
            else:
                for left in range(start, stop, KERNEL_BLOCK):
                    right = min(left + KERNEL_BLOCK, stop)
                    known = kept.get(left)
                    if known is None:  # two threads may both make it: either result will do
                        known = kept[left] = KernelTo(self.kernel, as_rows(self.rows.read(left, right)))
                    try:
                        known.write_block(x, out[:, left - start : right - start])
                    except (NotFiniteError, KernelFunctionError) as error:
                        if first is None:
                            raise
                        rows, columns = slice(first, first + len(x)), slice(left, right)
                        raise located_error(error, rows, columns) from error.__cause__
            for total, coef in zip(outs, coefs, strict=True):
                blas.gemm(total, out, coef[start:stop], beta=1.0)

    def adjoint_times(self, x: Block, values: Array, threads: int) -> Array:
        out, m = np.empty((self.n, values.shape[1])), x.shape[0]
        height = max(1, min(self._strip_rows, ENTRIES // (threads * max(m, 1))))

        def multiply(start: int) -> None:
            stop = min(start + height, self.n)
            strip = np.empty((stop - start, m))
            fill_gram(self.kernel, self.rows.read(start, stop), x, strip, origin=None)
            blas.gemm(out[start:stop], strip, values)

        for _ in in_threads(multiply, range(0, self.n, height), threads):
            pass
        return out

    def entries(self, x: Block, scale: Array | None, threads: int) -> Array:
        """C K(X, x) as a whole, of shape (n, m).

        Computed in squares of one size, so that an entry has the same bits in blocks of any height, and in threads:
        BLAS's own would not share elementwise work, and would wait for those of the substitution before.

        Parameters
        ----------
        x : ndarray or CSR of shape (m, d)
        scale : ndarray of shape (n,), optional
            Diagonal of C; None means ones.
        threads : int
        """
        out = np.empty((self.n, x.shape[0]))

        def fill(start: int) -> None:
            stop = min(start + KERNEL_BLOCK, self.n)
            fill_gram(self.kernel, self.rows.read(start, stop), x, out[start:stop], origin=None)
            if scale is not None:
                out[start:stop] *= scale[start:stop, None]

        for _ in in_threads(fill, range(0, self.n, KERNEL_BLOCK), threads):
            pass
        return out


def in_threads(work: Callable[[int], Any], starts: range, threads: int) -> Iterator[int]:
    """Do the work of each block, in threads of the calling process, and yield its first row once that is done.

    Parameters
    ----------
    work : callable
        Is given the first row of a block.
    starts : range
        First rows of the blocks.
    threads : int
        Most threads; a single one is the calling thread, with BLAS's threads as they are.
    """
    if min(len(starts), threads) <= 1:
        for start in starts:
            work(start)
            yield start
        return
    # Half of a kernel's time is elementwise work, which BLAS does not divide among threads.
    with blas.one_thread(), ThreadPoolExecutor(threads) as pool:
        for start, _ in zip(starts, pool.map(work, starts), strict=True):
            yield start
