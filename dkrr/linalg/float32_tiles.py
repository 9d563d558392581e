"""Tiles rounded to float32, and how well a factor of them preconditions.

A matrix A is rounded as P A P with powers of two P that bring its diagonal near 1. That changes no digit, and no scale
of the rows or of their weights leaves the range of float32, since |a_ij| ≤ √(a_ii a_jj).

Rounding the entries and factoring in float32 change P A P by about √n units of rounding. Against its smallest
eigenvalue that is the `rounding_ratio`: far below 1 the factor is an excellent preconditioner, near 1 the factorisation
breaks down. It is known before the work, except for what the kernel matrix itself adds to the smallest eigenvalue.

References
----------
N. J. Higham, S. Pranesh, "Exploiting lower precision arithmetic in solving symmetric positive definite linear systems
and least squares problems", SIAM J. Sci. Comput. 43 (2021).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, inf, log, sqrt
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dkrr.cluster import Meter
from dkrr.linalg.sources import Strip, TileSource, Vectors, read_range

Array = NDArray[np.float64]


FLOAT32_ROUNDING = 2.0**-24
FLOAT64_ROUNDING = 2.0**-53
MAX_ROUNDING_RATIO = 1e-2
"""Largest rounding ratio with which a factor in float32 is tried. Measured with RBF and Matérn kernels of 2 and 16
columns, 3,000 and 8,000 rows: up to 13 iterations at 5e-3, 14 to 25 at 3e-2, and a breakdown from 5e-2 on."""
ITERATIONS_RATIO = 3.0
"""Reduction of the residual by an iteration, divided by the rounding ratio, that a plan expects (measured: 20 with two
columns and nearly singular matrices; below 1 with 8 and 16 columns, and with the rows of molecules and flights, where
3 to 6 iterations suffice)."""


def rounding_ratio(n: int, relative_shift: float) -> float:
    """Rounding of an n × n matrix with a unit diagonal in float32, divided by its smallest eigenvalue at least.

    Parameters
    ----------
    n : int
    relative_shift : float
        Smallest diagonal shift, divided by the diagonal entry with which it is added; 0 gives infinity.
    """
    return FLOAT32_ROUNDING * sqrt(n) / relative_shift if relative_shift > 0 else inf


def least_relative_shift(diagonal: Array, shift: Array) -> float:
    """Smallest s_i / (a_ii + s_i), for `rounding_ratio`.

    Parameters
    ----------
    diagonal, shift : ndarray of shape (n,)
        Diagonal of A, and s.
    """
    total = diagonal + shift
    return float((shift / np.where(total > 0, total, 1.0)).min()) if np.isfinite(total).all() else 0.0


def refining_iterations(ratio: float, tol: float) -> int:
    """Iterations that a factor in float32 leaves to do, expected for a rounding ratio."""
    return ceil(log(tol) / log(min(ITERATIONS_RATIO * max(ratio, FLOAT32_ROUNDING), 0.5)))


def rounding_scale(diagonal: Array) -> Array | None:
    """P, of shape (n, 1): powers of two that bring the diagonal of P A P to between 1/2 and 2; None if all are 1.

    Parameters
    ----------
    diagonal : ndarray of shape (n,)
        Positive and finite.
    """
    half = np.frexp(diagonal)[1] // 2
    return np.ldexp(1.0, -half)[:, None] if half.any() else None


@dataclass(frozen=True)
class RoundedTiles(TileSource):
    """Tiles of P A P in float32, computed in float64 and then rounded."""

    source: TileSource
    """A."""
    scale: Vectors
    """P, of shape (n, 1)."""

    def fill(self, meter: Meter, out: NDArray[Any], rows: slice, columns: slice) -> None:
        for r, c, strip in self.strips(meter, rows, columns, out.dtype):
            out[r.start - rows.start : r.stop - rows.start, c.start - columns.start : c.stop - columns.start] = strip

    def strips(self, meter: Meter, rows: slice, columns: slice, dtype: DTypeLike) -> Iterator[Strip]:
        for r, c, strip in self.source.strips(meter, rows, columns, np.float64):
            scaled = strip * read_range(self.scale, r)
            scaled *= read_range(self.scale, c).T
            yield r, c, scaled.astype(dtype, copy=False)
