"""The same algebra for a matrix that fits in memory: no Dask, no disk, the calling process and its BLAS threads.

The full symmetric matrix is kept: the factorisation overwrites the lower triangle and leaves the upper one, from
which the true residual is computed and the lower triangle restored for the next λ.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dkrr import blas
from dkrr.cost import Cost
from dkrr.errors import NotPositiveDefiniteError
from dkrr.kernels import Kernel
from dkrr.linalg.cholesky import check_diagonal
from dkrr.linalg.operator import Operator, Precision
from dkrr.linalg.sources import KERNEL_BLOCK, fill_gram
from dkrr.rows import Rows
from dkrr.runtime import RunRecord

_BLOCK = 1024


@dataclass
class DenseSystem:
    """A (symmetric, whole) with what is needed to factor A + diag(s) in its lower triangle, for one s after another.

    Parameters
    ----------
    matrix : ndarray of shape (n, n)
        Symmetric; overwritten.

    Raises
    ------
    NotFiniteError
        If a diagonal entry is infinite or NaN.
    """

    matrix: NDArray[np.float64]

    def __post_init__(self) -> None:
        self.diagonal = self.matrix.diagonal().copy()
        check_diagonal(self.diagonal)
        self._is_fresh = True

    def solve(self, shift: NDArray[np.float64], right_sides: NDArray[np.float64]) -> NDArray[np.float64]:
        """Solution X of (A + diag(s)) X = B by Cholesky.

        Parameters
        ----------
        shift : ndarray of shape (n,)
        right_sides : ndarray of shape (n, m)

        Returns
        -------
        ndarray of shape (n, m)

        Raises
        ------
        NotPositiveDefiniteError
            If a pivot is not positive.
        """
        self.factor(shift)
        return self.substitute(right_sides)

    def factor(self, shift: NDArray[np.float64]) -> None:
        """Factor A + diag(s) in the lower triangle.

        Parameters
        ----------
        shift : ndarray of shape (n,)

        Raises
        ------
        NotPositiveDefiniteError
            If a pivot is not positive.
        """
        if not self._is_fresh:
            mirror_upper(self.matrix)
        self._is_fresh = False
        a = self.matrix
        a[np.diag_indices_from(a)] = self.diagonal + shift
        factor_in_place(a)

    def substitute(self, right_sides: NDArray[np.float64]) -> NDArray[np.float64]:
        """Solution X for the last factor, of shape (n, m)."""
        return substituted(self.matrix, right_sides)

    def factored_copy(self, shift: NDArray[np.float64]) -> NDArray[np.float64]:
        """Cholesky factor of A + diag(s) in memory of its own, in the lower triangle of an (n, n) array."""
        a = np.array(self.matrix)
        if not self._is_fresh:
            mirror_upper(a)
        a[np.diag_indices_from(a)] = self.diagonal + shift
        factor_in_place(a)
        return a

    def multiply(self, vectors: NDArray[np.float64]) -> NDArray[np.float64]:
        """A V, with A from the untouched upper triangle; shape (n, m)."""
        out, v = np.zeros(vectors.shape), np.ascontiguousarray(vectors, np.float64)
        diagonal = np.einsum("ii->i", self.matrix)
        # That of L is replaced for the time of the product: to subtract it afterwards would cancel, L being of the size
        # of √A.
        of_factor = None if self._is_fresh else diagonal.copy()
        try:
            diagonal[:] = self.diagonal
            blas.symm(out, self.matrix, v)
        finally:
            if of_factor is not None:
                diagonal[:] = of_factor
        return out


class DenseGram(Operator):
    """K in memory, by its upper triangle; factors of K + diag(s) take its lower one.

    Parameters
    ----------
    matrix : ndarray of shape (n, n)
        Symmetric; overwritten.
    """

    def __init__(self, matrix: NDArray[np.float64]) -> None:
        self.n, self.record = len(matrix), RunRecord()  # no tasks here
        self.system = DenseSystem(matrix)

    def multiply(
        self,
        vectors: NDArray[np.float64],
        precision: Precision = "float64",  # noqa: ARG002
        columns: NDArray[np.intp] | None = None,  # noqa: ARG002
    ) -> NDArray[np.float64]:
        """See base class; always in float64."""
        return self.system.multiply(vectors)


def factor_in_place(a: NDArray[np.float64]) -> None:
    """Overwrite the lower triangle of a matrix by its Cholesky factor.

    Raises
    ------
    NotPositiveDefiniteError
        If a pivot is not positive.
    """
    failed = blas.cholesky_in_place(a)
    if failed:
        raise NotPositiveDefiniteError(f"the pivot of row {failed - 1} is not positive", failed - 1)


def substituted(factor: NDArray[np.float64], right_sides: NDArray[np.float64]) -> NDArray[np.float64]:
    """(L Lᵀ)⁻¹ B with L in the lower triangle; shape (n, m)."""
    x = np.array(right_sides, np.float64, order="C")
    blas.solve_lower(factor, x)
    blas.solve_lower(factor, x, transpose=True)
    return x


def mirror_upper(a: NDArray[np.float64]) -> None:
    """Copy the upper triangle of a square matrix to its lower one, in blocks that stay in cache."""
    n = a.shape[0]
    for start in range(0, n, _BLOCK):
        stop = min(start + _BLOCK, n)
        a[stop:, start:stop] = a[start:stop, stop:].T
        for r in range(start + 1, stop):
            a[r, start:r] = a[start:r, r]


def mirror_lower_blocks(a: NDArray[np.float64]) -> None:
    """Copy the lower triangle of a square matrix to its upper one, in blocks that stay in cache."""
    mirror_upper(a.T)


def dense_gram(
    kernel: Kernel, rows: Rows, scale: NDArray[np.float64] | None, dtype: DTypeLike = np.float64
) -> NDArray[Any]:
    """Symmetric matrix diag(c) K diag(c).

    Parameters
    ----------
    kernel : Kernel
    rows : Rows
        Of shape (n, d).
    scale : ndarray of shape (n,), optional
        c; None means ones.
    dtype : dtype
        float64 or float32: of the result, and of the arithmetic.

    Returns
    -------
    ndarray of shape (n, n)
    """
    n = rows.shape[0]
    x = rows.read(0, n)
    out = np.empty((n, n), dtype)
    fill_gram(kernel, x, x, out, lower=True)
    for start in range(0, n, KERNEL_BLOCK):  # blocks on the diagonal are symmetric already
        stop = min(start + KERNEL_BLOCK, n)
        out[start:stop, stop:] = out[stop:, start:stop].T
    if scale is not None:
        out *= scale[:, None]
        out *= scale
    return out


def dense_cost(n: int, n_right_sides: int, n_systems: int) -> Cost:
    """Cost of factoring and solving `n_systems` times, forming the matrix not included."""
    # Mirroring, restoring and the residual each pass once over the matrix, and so do both substitutions together.
    return Cost(
        gemm_flops=n_systems * 4.0 * n**2 * n_right_sides,
        memory_bytes=(1 + 3 * n_systems) * 8.0 * n * n,
        fresh_bytes=8.0 * n * n,
        dense_flops=n_systems * n**3 / 3,
        dense_side=n,
    )


def dense_bytes(n: int, n_right_sides: int) -> int:
    """Memory of a dense system: the matrix and vectors."""
    return 8 * n * n + 5 * 8 * n * n_right_sides
