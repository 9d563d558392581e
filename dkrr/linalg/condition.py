"""Estimate of a condition number from one random vector that rides along with a solve and with its check.

For z random and A symmetric positive definite, ‖Az‖² / zᵀAz is at most the largest eigenvalue, zᵀA⁻¹z / ‖A⁻¹z‖² at
least the smallest one. Both weigh the eigenvalues towards the end that is looked for, so that their ratio is seldom a
factor of ten below κ₂ and never above it but for rounding.

What matters for a Cholesky factorisation is the condition number of D⁻¹AD⁻¹ with a diagonal of ones, D² = diag(A):
rows and columns of different sizes (weights, columns of X in different units) cost no digits. So Dz is solved for and
D⁻¹z is multiplied.

References
----------
J. D. Dixon, "Estimating extremal eigenvalues and condition numbers of matrices", SIAM J. Numer. Anal. 20 (1983).
A. van der Sluis, "Condition numbers and equilibration of matrices", Numer. Math. 14 (1969).
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dkrr.linalg.operator import column_norms

Array = NDArray[np.float64]


def with_probe(right_sides: Array, diagonal: Array | None = None) -> Array:
    """Right-hand sides and the vector D z after them; the same z for the same n.

    Parameters
    ----------
    right_sides : ndarray of shape (n, m)
    diagonal : ndarray of shape (n,), optional
        D², of the matrix that is to be solved with; None: ones.

    Returns
    -------
    ndarray of shape (n, m + 1)
    """
    n, m = right_sides.shape
    both = np.empty((n, m + 1))
    both[:, :m] = right_sides
    both[:, m] = _random_vector(n)
    if diagonal is not None:
        both[:, m] *= np.sqrt(_positive(diagonal))
    return both


@lru_cache(maxsize=2)
def _random_vector(n: int) -> Array:
    """z, of shape (n,): drawn once for fits of one size after another."""
    return np.random.default_rng(0).standard_normal(n)


def multiplied_probe(probe: Array, diagonal: Array | None) -> Array:
    """D⁻¹ z of D z; both of shape (n,)."""
    return probe if diagonal is None else probe / _positive(diagonal)


def _positive(diagonal: Array) -> Array:
    # A matrix with others has no Cholesky factor.
    return np.where(diagonal > 0, diagonal, 1.0)


class Moments(NamedTuple):
    """What is needed of z and of the vector v = D⁻¹AD⁻¹z or (D⁻¹AD⁻¹)⁻¹z; over some of the rows, or all."""

    dot: float
    """zᵀv."""
    norm: float
    """‖v‖."""

    @classmethod
    def of_solved(cls, probe: Array, solution: Array, diagonal: Array | None) -> "Moments":
        """From D z and A⁻¹D z, of shape (n,)."""
        v = solution if diagonal is None else solution * np.sqrt(_positive(diagonal))
        with np.errstate(over="ignore", invalid="ignore"):
            return cls(float(probe @ solution), float(column_norms(v[:, None])[0]))

    @classmethod
    def of_multiplied(cls, probe: Array, product: Array, diagonal: Array | None) -> "Moments":
        """From D⁻¹z and AD⁻¹z, of shape (n,)."""
        v = product if diagonal is None else product / np.sqrt(_positive(diagonal))
        with np.errstate(over="ignore", invalid="ignore"):
            return cls(float(probe @ product), float(column_norms(v[:, None])[0]))

    @classmethod
    def total(cls, parts: "Sequence[Moments]") -> "Moments":
        """Over all parts of the rows."""
        return cls(sum(p.dot for p in parts), float(column_norms(np.array([[p.norm] for p in parts]))[0]))


def condition_number(product: Moments, solved: Moments) -> float:
    """Estimate κ₂ of D⁻¹AD⁻¹, from below; infinite where it is singular to rounding, NaN where numbers overflow.

    Parameters
    ----------
    product : Moments
        Of z and the matrix times z.
    solved : Moments
        Of z and the inverse times z.
    """
    numbers = (*product, *solved)
    if not all(math.isfinite(x) for x in numbers):
        return math.nan
    if not all(x > 0 for x in numbers):
        return math.inf
    # In this order nothing overflows before the result does.
    return max(1.0, (product.norm / product.dot) * (solved.norm / solved.dot) * product.norm * solved.norm)


def worst(conditions: Sequence[float]) -> float:
    """Largest of those that are known; NaN if none is."""
    known = [c for c in conditions if not math.isnan(c)]
    return max(known, default=math.nan)
