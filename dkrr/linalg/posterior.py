"""Variances of a Gaussian process, and the logarithm of a determinant, from a Cholesky factor in tiles.

With A = C K C + diag(s), C² = W, and L Lᵀ = A::

    v(x) = k(x, x) − ‖L⁻¹ C k_x‖²,    log |A| = 2 Σ log Lᵢᵢ

and with a free constant, whose prior is flat, (1 − cᵀA⁻¹ C k_x)² / cᵀA⁻¹c more.

References
----------
C. E. Rasmussen, C. K. I. Williams, "Gaussian Processes for Machine Learning", MIT Press 2006, chapters 2 and 2.7.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dkrr.errors import NotFiniteError
from dkrr.linalg.cholesky import Matrix
from dkrr.linalg.inverse import block_cuts
from dkrr.linalg.substitution import Substitution, substitution_tasks
from dkrr.linalg.variance_bounds import ENTRY_ROUNDINGS, EPS, VarianceBounds, constant_bounds
from dkrr.runtime import Progress, ThreadExecutor

Array = NDArray[np.float64]

ROUNDING = 1e-8
"""Part of k(x, x) by which a variance may be negative from rounding; what is more negative is an error."""


@dataclass
class FactoredPosterior:
    """Variances from the factor of all training rows.

    Parameters
    ----------
    factor : TiledMatrix or MemoryMatrix
        L.
    constant : ndarray of shape (n,), optional
        c, with a free constant.
    n_threads : int
    shift : float
        Smallest s.
    trace : float
        Trace of A.
    """

    factor: Matrix
    constant: Array | None
    n_threads: int
    shift: float
    trace: float

    def variances(self, cross: Array, prior: Array) -> VarianceBounds:
        """Variances of some rows for a process of variance k, with bounds of the rounding.

        The factor is that of a matrix A + E, ‖E‖ ≤ η, so that kᵀA⁻¹k is off by η ‖A⁻¹k‖², at most a fraction
        η / λ of it.

        Parameters
        ----------
        cross : ndarray of shape (n, m)
            C K(X, x) of the rows; overwritten.
        prior : ndarray of shape (m,)
            k(x, x).

        Raises
        ------
        NotFiniteError
            If a variance is negative by more than rounding.
        """
        z = self._forward(cross)
        found = prior - np.einsum("ij,ij->j", z, z)
        bad = found < -ROUNDING * np.maximum(prior, 1e-300)
        if bad.any():
            raise NotFiniteError(
                f"a variance is {found[bad][0]:.1e}, negative by more than rounding: λ is too small beside rounding in "
                f"K, or the kernel is not positive semidefinite; expected a larger alpha"
            )
        found, part = np.maximum(found, 0.0), self._rounded_fraction
        error = part * (prior - found) + 4 * EPS * prior
        lower, upper = np.maximum(found - error, 0.0), found + error
        if part >= 1.0:  # E may be as large as A: only that the kernel is positive semidefinite is known
            lower, upper = np.zeros(len(found)), prior * (1.0 + 4 * EPS)
        if self._solved_constant is not None:
            w, total = self._solved_constant
            distance = np.abs(1.0 - w @ z)
            found = found + distance**2 / total
            if part >= 1.0:
                return VarianceBounds(found, lower, np.full(len(found), np.inf))
            error = part * np.sqrt(total * prior) + 4 * EPS
            low, high = constant_bounds(distance, error, (total * (1.0 - part), total * (1.0 + part)))
            lower, upper = lower + low, upper + high
        return VarianceBounds(found, lower, upper)

    @cached_property
    def _rounded_fraction(self) -> float:
        """Largest fraction of kᵀA⁻¹k that rounding of the factor and of a substitution may change; 1 at most."""
        n = self.factor.grid.n
        relative = 3 * (n + ENTRY_ROUNDINGS) * EPS * self.trace / self.shift if self.shift > 0 else 1.0
        return min(2 * relative / (1.0 - relative), 1.0) if relative < 1 else 1.0

    @cached_property
    def _solved_constant(self) -> tuple[Array, float] | None:
        """L⁻¹ c and cᵀA⁻¹c."""
        if self.constant is None:
            return None
        w = self._forward(self.constant[:, None].copy())[:, 0]
        return w, float(w @ w)

    def log_determinant(self) -> float:
        """Log |A|, and with a free constant log(cᵀA⁻¹c) more, as the restricted likelihood has it."""
        grid, total = self.factor.grid, 0.0
        for i in range(grid.n_tiles):
            tile = np.empty((grid.height(i), grid.height(i)))
            self.factor.read_tile(i, i, tile)
            total += 2.0 * float(np.log(tile.diagonal()).sum())
        return total if self._solved_constant is None else total + float(np.log(self._solved_constant[1]))

    def _forward(self, x: Array) -> Array:
        """L⁻¹ X, in place of X."""
        cuts = block_cuts(self.factor.grid.n_tiles, 2 * self.n_threads)
        sweep = Substitution.in_memory(self.factor, x, cuts, transpose=False)
        with ThreadExecutor(self.n_threads) as executor:
            executor.run(substitution_tasks(sweep, "forward"), Progress())
        return x
