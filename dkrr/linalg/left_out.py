"""A factor that has rows which its system does not have: rows whose weight became 0, and that are left out.

Let S be the rows that are left out of A, R the others, and E_S the columns of the identity. The system of R alone has
the matrix A_RR, and

    x = A⁻¹ b − A⁻¹ E_S μ,    Z_S μ = (A⁻¹ b)_S,    Z_S = E_Sᵀ A⁻¹ E_S,

has x_S = 0 and A_RR x_R = b_R, whatever b_S is. Z_S is computed once, by |S| right-hand sides: 2 |S| n² operations.
A⁻¹ E_S is kept if it is small, and computed with the first solution, so that the factor is read once; else a solution
takes one or two more substitutions.

With L Lᵀ = A the result is the inverse of (L Lᵀ)_RR to rounding. So a factor in float32 is as good a preconditioner of
the smaller system as it was of the whole one.
"""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dkrr import blas
from dkrr.errors import NotPositiveDefiniteError
from dkrr.linalg.cholesky import Matrix
from dkrr.linalg.factor import Factor

Array = NDArray[np.float64]

MAX_FRACTION = 0.1
"""Largest fraction of the rows of a factor that is left out of it: a new factor then takes little more operations."""
MAX_ROWS = 2048
"""Most rows that are left out: Z_S and its factor take 64 MiB of the calling process, which no plan counts."""
COLUMN_BYTES = 8 * 2**20
"""Columns of the identity that are solved for at once; no more of A⁻¹ E_S are kept."""
MAX_COLUMNS = 256
PROJECTIONS = {"float64": 2, "float32": 1}
"""Times that a solution is projected, by the precision of the factor: the second takes away what the rounding of Z_S
leaves of x_S. Measured with rows that are nearly repeated and λ = 1e-8, residuals are then those of a new factor."""


def pays(n: int, k: int) -> bool:
    """Whether leaving k rows out of a factor of n is better than a factor of the others."""
    return k <= min(MAX_FRACTION * n, MAX_ROWS)


def _columns(n: int) -> int:
    """Columns of the identity that are solved for at once."""
    return max(1, min(MAX_COLUMNS, COLUMN_BYTES // (8 * n)))


def _identity(n: int, rows: NDArray[np.intp]) -> Array:
    """Columns of the identity."""
    columns = np.zeros((n, len(rows)))
    columns[rows, np.arange(len(rows))] = 1.0
    return columns


@dataclass
class LeftOutFactor(Factor):
    """(A_RR)⁻¹ on the rows that stay, zeros on the others, with a factor of all of A.

    Parameters
    ----------
    factor : Factor
    rows : ndarray of intp of shape (k,)
        S, sorted.
    """

    factor: Factor
    rows: NDArray[np.intp]
    _kept: Array | None = field(default=None, init=False, repr=False)
    """A⁻¹ E_S, of shape (n, k)."""

    @property
    def matrix(self) -> Matrix:  # type: ignore[override]
        """L, of all rows."""
        return self.factor.matrix

    @cached_property
    def _inverse_factor(self) -> tuple[Array, Array]:
        """Lower Cholesky factor of P Z_S P, and the diagonal P that makes ones of that of Z_S, of shape (k, 1).

        Raises
        ------
        NotPositiveDefiniteError
            If a pivot is not positive.
        """
        n, k = self.matrix.grid.n, len(self.rows)
        inverse, width = np.empty((k, k)), _columns(n)
        for start in range(0, k, width):
            part = self.rows[start : start + width]
            found = self.factor.solve(_identity(n, part)) if self._kept is None else self._kept
            inverse[:, start : start + width] = found[self.rows]
        diagonal = inverse.diagonal().copy()
        scale = 1.0 / np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
        inverse *= scale[:, None]
        inverse *= scale
        inverse += inverse.T.copy()
        inverse *= 0.5
        failed = blas.cholesky_in_place(inverse)
        if failed:
            row = int(self.rows[failed - 1])
            raise NotPositiveDefiniteError(
                f"row {row} cannot be left out of the factor that has it, singular there to rounding; expected "
                f"a matrix that is not: increase alpha, or give another store= to factor the other rows alone",
                row,
            )
        return inverse, scale[:, None]

    def solve(self, right_sides: Array) -> Array:
        m, n = right_sides.shape[1], self.matrix.grid.n
        if self._kept is None and len(self.rows) <= _columns(n):
            both = self.factor.solve(np.column_stack([right_sides, _identity(n, self.rows)]))
            x, self._kept = both[:, :m].copy(), both[:, m:].copy()
        else:
            x = self.factor.solve(right_sides)
        lower, scale = self._inverse_factor
        for _ in range(PROJECTIONS[np.dtype(self.matrix.dtype).name]):
            multipliers = x[self.rows] * scale
            blas.solve_lower(lower, multipliers)
            blas.solve_lower(lower, multipliers, transpose=True)
            multipliers *= scale
            if self._kept is not None:
                x -= blas.product(self._kept, multipliers)
                continue
            sides = np.zeros(x.shape)
            sides[self.rows] = multipliers
            x -= self.factor.solve(sides)
        x[self.rows] = 0.0
        return x


def without_rows(factor: Factor, rows: NDArray[np.intp]) -> Factor:
    """Factor that solves the system without some rows; itself where there are none."""
    return LeftOutFactor(factor, rows) if len(rows) else factor
