"""Estimate of a condition number from one random vector that is solved for and multiplied with the right-hand sides.

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
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dkrr.blas import column_norms

Array = NDArray[np.float64]


MAX_CACHED = 10_000
"""Rows up to which the random vector is drawn once and kept: it then takes longer than a small fit can spare."""


def scaling_of(diagonal: Array) -> Array:
    """D, of shape (n,), for the diagonal D² of a matrix; 1 where that is not positive.

    A matrix with such an entry has no Cholesky factor.
    """
    if diagonal.min(initial=1.0) > 0:
        return np.sqrt(diagonal)
    return np.sqrt(np.where(diagonal > 0, diagonal, 1.0))


def with_probe(right_sides: Array, scaling: Array | None = None) -> Array:
    """Right-hand sides and the vector D z after them; the same z for the same n.

    Parameters
    ----------
    right_sides : ndarray of shape (n, m)
    scaling : ndarray of shape (n,), optional
        D, of the matrix that is to be solved with; None: ones.

    Returns
    -------
    ndarray of shape (n, m + 1)
    """
    n, m = right_sides.shape
    both = np.empty((n, m + 1))
    both[:, :m] = right_sides
    z = _cached_vector(n) if n <= MAX_CACHED else _random_vector(n)
    if scaling is None:
        both[:, m] = z
    else:
        np.multiply(z, scaling, out=both[:, m])
    return both


def _random_vector(n: int) -> Array:
    """z, of shape (n,); not to be written to."""
    z = np.random.default_rng(0).standard_normal(n)
    z.flags.writeable = False
    return z


_cached_vector = lru_cache(maxsize=2)(_random_vector)


def multiplied_probe(probe: Array, scaling: Array | None) -> Array:
    """D⁻¹ z of D z; both of shape (n,)."""
    # Divided twice: squares of D may overflow or underflow.
    return probe if scaling is None else probe / scaling / scaling


class Moments(NamedTuple):
    """zᵀv and ‖v‖ of z and of the vector v = D⁻¹AD⁻¹z or (D⁻¹AD⁻¹)⁻¹z; over some of the rows, or all."""

    dot: float
    """zᵀv."""
    norm: float
    """‖v‖."""

    @classmethod
    def of_solved(cls, probe: Array, solution: Array, scaling: Array | None) -> "Moments":
        """Moments of D z and A⁻¹D z, of shape (n,); they overflow where a caller lets them."""
        v = solution if scaling is None else solution * scaling
        return cls(float(probe @ solution), float(column_norms(v[:, None])[0]))

    @classmethod
    def of_multiplied(cls, probe: Array, product: Array, scaling: Array | None) -> "Moments":
        """Moments of D⁻¹z and AD⁻¹z, of shape (n,); they overflow where a caller lets them."""
        v = product if scaling is None else product / scaling
        return cls(float(probe @ product), float(column_norms(v[:, None])[0]))

    @classmethod
    def total(cls, blocks: "Sequence[Moments]") -> "Moments":
        """Moments over all rows, from those of their blocks."""
        return cls(sum(p.dot for p in blocks), float(column_norms(np.array([[p.norm] for p in blocks]))[0]))


def condition_number(product: Moments, solved: Moments) -> float:
    """Estimate κ₂ of D⁻¹AD⁻¹, from below; infinite where it is singular to rounding, NaN where numbers overflow.

    Parameters
    ----------
    product : Moments
        Moments of z and the matrix times z.
    solved : Moments
        Moments of z and the inverse times z.
    """
    numbers = (*product, *solved)
    if not all(map(math.isfinite, numbers)):
        return math.nan
    if not min(numbers) > 0:
        return math.inf
    # In this order nothing overflows before the result does.
    return max(1.0, (product.norm / product.dot) * (solved.norm / solved.dot) * product.norm * solved.norm)


def worst(conditions: Sequence[float]) -> float:
    """Largest of those that are known; NaN if none is."""
    return float(np.fmax.reduce(conditions, initial=math.nan))


@dataclass(frozen=True)
class SolvedProbe:
    """Solution for a probe, which gives the condition number once its matrix has multiplied D⁻¹z."""

    vector: Array
    """D⁻¹z, of shape (n,)."""
    scaling: Array | None
    """D; None: ones."""
    moments: Moments
    """Moments of z and (A + diag(s))⁻¹ z."""

    @classmethod
    def of_solution(cls, right_side: Array, x: Array, scaling: Array | None) -> "SolvedProbe":
        """Make a probe of D z and (A + diag(s))⁻¹ D z, both of shape (n,)."""
        with np.errstate(over="ignore", invalid="ignore"):
            moments = Moments.of_solved(right_side, x, scaling)
            vector = right_side if scaling is None else right_side / scaling / scaling  # see `multiplied_probe`
        return cls(vector, scaling, moments)

    def condition(self, product: Array) -> float:
        """Condition number of A + diag(s), from its product with `vector`."""
        with np.errstate(over="ignore", invalid="ignore"):
            return condition_number(Moments.of_multiplied(self.vector, product, self.scaling), self.moments)
