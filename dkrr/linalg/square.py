"""A symmetric matrix that is small enough to be one array of this process, and its Cholesky factors.

A and one factor share the square: A is above the diagonal, the factor on and below it, and the diagonal of A is kept
beside them. So the true residual comes from A itself, and both take the memory of one.
"""

import math
import weakref
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dkrr import blas
from dkrr.cluster import Progress, RunRecord
from dkrr.cost import Work
from dkrr.data import Rows
from dkrr.data.rows import dense
from dkrr.errors import NotPositiveDefiniteError
from dkrr.kernels import Kernel
from dkrr.kernels.blocks import as_row_pair, mirror_lower
from dkrr.linalg.cholesky import check_diagonal
from dkrr.linalg.condition import SolvedProbe, with_probe
from dkrr.linalg.factor import DirectSystems, Factor
from dkrr.linalg.gram_products import Operator, Precision
from dkrr.linalg.residual import Check, SystemSolution, checked
from dkrr.linalg.sources import KERNEL_BLOCK, fill_gram
from dkrr.store import MemoryMatrix

Array = NDArray[np.float64]

ONE_TILE = 2048
"""Rows up to which a matrix in memory is one array: no task is made, and it and its factor share the square."""
PADDED_WIDTH = 512
"""Rows of a multiple of this many numbers are whole pages apart, and compete for the same few places of a cache: they
get a cache line more (see `dkrr.store.matrix.padded_width`)."""


@dataclass
class SquareFactor(Factor):
    """Factor in the lower triangle of an array; what is above its diagonal is not part of it.

    Parameters
    ----------
    square : ndarray of shape (n, n)
    """

    square: Array

    @cached_property
    def matrix(self) -> MemoryMatrix:  # type: ignore[override]
        return MemoryMatrix.of_square(self.square)

    def solve(self, right_sides: Array) -> Array:
        x = np.array(right_sides, np.float64, order="C")
        blas.solve_lower(self.square, x)
        blas.solve_lower(self.square, x, transpose=True)
        return x


class SquareMatrix(DirectSystems, Operator):
    """A in an array.

    Parameters
    ----------
    square : ndarray of shape (n, n)
        Symmetric; overwritten on and below the diagonal.
    progress : Progress
        Measures the stages of the work.

    Raises
    ------
    NotFiniteError
        If a diagonal entry is infinite or NaN.
    """

    def __init__(self, square: Array, progress: Progress) -> None:
        self.n, self.record, self.diagonal = len(square), RunRecord(), square.diagonal().copy()
        if not math.isfinite(self.diagonal.sum()):
            check_diagonal(self.diagonal)
        self._square, self._progress = square, progress
        self._is_whole = True
        """No factor has been where A was."""
        self._sharing: weakref.ref[Array] | None = None
        """The array of the factor that is in the square."""

    @classmethod
    def of_kernel(cls, kernel: Kernel, rows: Rows, scale: Array | None, progress: Progress) -> "SquareMatrix":
        """Form diag(c) K diag(c) of rows in memory; of a precomputed kernel they are K."""
        n = rows.shape[0]
        square = np.empty((n, n + (8 if n % PADDED_WIDTH == 0 else 0)))[:, :n]
        with progress.stage("Gram matrix", 1.0):
            block = rows.read(0, n)
            if kernel.is_plain and n <= KERNEL_BLOCK and not rows.is_sparse:  # no function of the user, one call
                kernel.write_block(*as_row_pair(block, None), square)
            elif kernel.is_precomputed:
                square[...] = dense(block)
            else:
                fill_gram(kernel, block, block, square, lower=True)
            if scale is not None:
                with np.errstate(over="ignore", invalid="ignore"):  # entries above the diagonal may be anything
                    square *= scale[:, None]
                    square *= scale
            if scale is not None or n > KERNEL_BLOCK or rows.is_sparse or kernel.is_precomputed:
                mirror_lower(square)  # else the kernel wrote all of it at once
        return cls(square, progress)

    def factor(self, group: str, shift: Array, detail: str = "") -> SquareFactor:  # noqa: ARG002
        """See base class; in the square of A, or in one of its own while another factor still has that."""
        square, n = self._square, self.n
        with self._progress.stage("factorisation", 1.0, detail=detail):
            if self._sharing is None or self._sharing() is None:
                own = square[:]  # another object, which exists as long as a factor has it
                self._sharing = weakref.ref(own)
            else:
                own = np.empty((n, square.strides[0] // square.itemsize))[:, :n]
                own[...] = square
            if not self._is_whole:
                mirror_lower(own.T)
            self._is_whole = False
            np.einsum("ii->i", own)[:] = self.diagonal + shift
            failed = blas.cholesky_in_place(own)
        if failed:
            raise NotPositiveDefiniteError(f"the pivot of row {failed - 1} is not positive", failed - 1)
        return SquareFactor(own)

    def solve(self, group: str, factor: Factor, shift: Array, right_sides: Array) -> SystemSolution:  # noqa: ARG002
        scaling = np.sqrt(self.diagonal + shift)  # positive, since there is a factor
        both = with_probe(right_sides, scaling)
        with self._progress.measured("factorisation"):
            x = factor.solve(both)
        probe = SolvedProbe.of_solution(both[:, -1], x[:, -1], scaling)
        return SystemSolution(x[:, :-1], probe, shift[:, None], both, x, scaling[:, None])

    def check(self, solution: SystemSolution, constants: Array | None) -> Check:
        with self._progress.stage("true residual", 1.0):
            return checked(solution, self.multiply, constants)

    def release(self, group: str) -> None:
        """See base class; nothing is stored, and the memory of a factor ends with it."""

    def multiply(
        self,
        vectors: Array,
        precision: Precision = "float64",  # noqa: ARG002
        columns: NDArray[np.intp] | None = None,  # noqa: ARG002
    ) -> Array:
        """See base class; always in float64."""
        out, v = np.empty(vectors.shape), np.ascontiguousarray(vectors, np.float64)
        diagonal = np.einsum("ii->i", self._square)
        # That of L is replaced for the time of the product: to subtract it afterwards would cancel, L being of the size
        # of √A.
        of_factor = diagonal.copy()
        try:
            diagonal[:] = self.diagonal
            blas.symm(out, self._square, v)
        finally:
            diagonal[:] = of_factor
        return out


# Work and memory


def factor_work(n: int, itemsize: int = 8, kept_rows: int = 0) -> Work:
    """Work of a factorisation, forming the matrix not included; an operation in float32 counts half.

    Rows that the factor has already are read once.
    """
    read = float(itemsize) * kept_rows**2 / 2
    return Work(dense_flops=(n**3 - kept_rows**3) / 3 * itemsize / 8, dense_side=n, memory_bytes=read)


def solving_work(n: int, m: int, itemsize: int = 8) -> Work:
    """Work of both substitutions with a factor, or of a product with a matrix that is kept."""
    return Work(gemm_flops=2.0 * n**2 * m, memory_bytes=float(itemsize) * n**2)


def copy_work(n: int) -> Work:
    """Work of copying a matrix that is kept to where its factor will be."""
    return Work(memory_bytes=2 * 8.0 * n**2)


def gram_workspace_bytes(kernel: Kernel, n: int, row_bytes: int, n_features: int, csr_bytes: int | None = None) -> int:
    """Most bytes that forming a square needs besides it: both blocks of rows, and the kernel's temporaries.

    Parameters
    ----------
    kernel : Kernel
    n : int
        Rows of the square, which may be a tile.
    row_bytes : int
        Bytes of a row of what is read at once.
    n_features : int
    csr_bytes : int, optional
        Bytes of a CSR row of the blocks with which the kernel is called; None: rows are dense.
    """
    block = min(n, KERNEL_BLOCK)
    blocks = 2 * block * (csr_bytes or 0)  # dense ones are views
    return 2 * n * row_bytes + blocks + kernel.workspace_bytes(block, block, n_features, csr_bytes)
