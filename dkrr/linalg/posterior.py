"""Variances of a Gaussian process, and the logarithm of a determinant, from a Cholesky factor in tiles.

With A = C K C + diag(s), C² = W, and L Lᵀ = A::

    v(x) = k(x, x) − ‖L⁻¹ C k_x‖²,    log |A| = 2 Σ log Lᵢᵢ

and with an intercept, whose prior is flat, (1 − cᵀA⁻¹ C k_x)² / cᵀA⁻¹c more. Covariances are alike, with two rows.

References
----------
C. E. Rasmussen, C. K. I. Williams, "Gaussian Processes for Machine Learning", MIT Press 2006, chapters 2 and 2.7.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dkrr import blas
from dkrr.cluster import Progress, ThreadExecutor
from dkrr.errors import NotFiniteError
from dkrr.kernels.blocks import mirror_lower
from dkrr.linalg.cholesky import N_SLOTS, Matrix
from dkrr.linalg.substitution import Substitution, block_cuts, substitution_tasks
from dkrr.linalg.variance_bounds import ENTRY_ROUNDINGS, EPS, RELATIVE_WIDTH, VarianceBounds, constant_bounds
from dkrr.store import TileGrid

Array = NDArray[np.float64]

MAX_NEGATIVE_FRACTION = 1e-8
"""Largest fraction of k(x, x) by which a variance may be negative from rounding; beyond it is an error."""
ROWS_MOVED = 256
"""Rows of a block of which columns are moved at a time."""
ROWS_PER_UPDATE = 2048
"""Rows of the factor whose part of a covariance is subtracted at once."""

NEAR_VARIANCE_FRACTION = 0.1
"""Variance of rows near training rows, as a fraction of k(x, x), about; for plans."""


def takes_second_sweep(n: int, shift: float) -> bool:
    """Whether bounds of most rows take a second substitution, where k(x, x) is 1 and s the same for all n rows."""
    return 6 * (n + 2) * EPS * n > NEAR_VARIANCE_FRACTION * RELATIVE_WIDTH * shift


@dataclass
class FactoredPosterior:
    """Variances from the factor of all training rows.

    Parameters
    ----------
    factor : TiledMatrix or MemoryMatrix
        L.
    constant : ndarray of shape (n,), optional
        c, with an intercept.
    n_threads : int
    shift : float
        Smallest s.
    diagonal : ndarray of shape (n,)
        Diagonal of A.
    """

    factor: Matrix
    constant: Array | None
    n_threads: int
    shift: float
    diagonal: Array

    def variances(self, z: Array, prior: Array) -> VarianceBounds:
        """Variances of some rows for a process of variance k, with bounds of the rounding.

        The factor and the substitutions are those of a matrix A + E, |E| ≤ γ |L| |Lᵀ| with γ about 3 n eps. So kᵀA⁻¹k
        is off by xᵀEx for x = A⁻¹k, which is at most a fraction γ tr(A) / λ of it. Only where that is too much x is
        computed, and xᵀ|E|x ≤ γ (Σ |xᵢ| √Aᵢᵢ)².

        Parameters
        ----------
        z : ndarray of shape (n, m)
            L⁻¹ C K(X, x) of the rows, by `swept`; overwritten.
        prior : ndarray of shape (m,)
            k(x, x).

        Raises
        ------
        NotFiniteError
            If a variance is negative by more than rounding.
        """
        found = prior - np.einsum("ij,ij->j", z, z)
        _refuse_negative(found, prior)
        found = np.maximum(found, 0.0)
        fraction = self._quick_fraction
        quick = np.sqrt((prior - found) * fraction) if fraction < np.inf else np.full(len(found), np.inf)
        system = self._intercept_system
        distance = None if system is None else np.abs(1.0 - system[0] @ z)
        bounds = self._bounded(distance, found, prior, quick)
        wide = np.flatnonzero(bounds.relative_width > RELATIVE_WIDTH)
        if len(wide):
            x = self.swept(_brought_forward(z, wide), transpose=True)
            distance = None if distance is None else distance[wide]
            near = self._bounded(distance, found[wide], prior[wide], self._rounding_of(x, self._least))
            bounds.lower[wide] = np.maximum(bounds.lower[wide], near.lower)
            bounds.upper[wide] = np.minimum(bounds.upper[wide], near.upper)
        return bounds

    def covariance(self, cross: Array, prior: Array, progress: Progress) -> Array:
        """Posterior covariance of some rows for a process of covariance k.

        Parameters
        ----------
        cross : ndarray of shape (n, m)
            C K(X, x) of the rows; overwritten by what `swept` makes of it.
        prior : ndarray of shape (m, m)
            K(x, x), of which the lower triangle counts; overwritten by the result, and returned.
        progress : Progress
            Display with an open stage of `covariance_flops`.

        Raises
        ------
        NotFiniteError
            If a variance is negative by more than rounding.
        """
        m, before = len(prior), prior.diagonal().copy()
        z = self.swept(cross, progress=progress)
        for start in range(0, len(z), ROWS_PER_UPDATE):
            strip = z[start : start + ROWS_PER_UPDATE]
            blas.syrk(prior, strip, transpose=True, alpha=-1.0, beta=1.0)
            progress.advance(float(len(strip)) * m**2)
        _refuse_negative(prior.diagonal(), before)
        if self._intercept_system is not None:
            w, total, _ = self._intercept_system
            distance = (1.0 - w @ z)[None, :]
            blas.syrk(prior, distance, transpose=True, alpha=1.0 / total, beta=1.0)
        mirror_lower(prior)
        return prior

    def _bounded(self, distance: Array | None, found: Array, prior: Array, rounding: Array) -> VarianceBounds:
        """Bounds from |1 − cᵀA⁻¹ C k_x|, with an intercept, and from roots of the largest |xᵀEx|; all of shape (m,)."""
        error = rounding**2 + 4 * EPS * prior
        lower, upper = np.maximum(found - error, 0.0), np.minimum(found + error, prior * (1.0 + 4 * EPS))
        if self._intercept_system is not None:
            assert distance is not None
            _, total, root = self._intercept_system
            found = found + distance**2 / total
            if root**2 < total:
                low, high = constant_bounds(distance, rounding * root + 4 * EPS, (total - root**2, total + root**2))
                return VarianceBounds(found, lower + low, upper + high)
            upper = np.full(len(found), np.inf)
        return VarianceBounds(found, lower, upper)

    @property
    def _gamma(self) -> float:
        return 3 * (self.factor.grid.n + 2) * EPS

    @cached_property
    def _trace(self) -> float:
        return float(self.diagonal.sum())

    @cached_property
    def _quick_fraction(self) -> float:
        """Largest fraction of kᵀA⁻¹k that rounding may change; infinite if it is as large as A."""
        relative = self._gamma * self._trace / self._presumed if self._presumed > 0 else 1.0
        return 2 * relative / (1.0 - relative) if relative < 1 else np.inf

    @property
    def _presumed(self) -> float:
        """Least eigenvalue of A, for a positive semidefinite kernel whose entries are rounded."""
        return self.shift - (self.factor.grid.n + ENTRY_ROUNDINGS) * EPS * self._trace

    @cached_property
    def _least(self) -> float:
        """Lower bound of the least eigenvalue of A; of a factor in one tile from ‖L⁻¹‖, which is soon computed."""
        if self.factor.grid.n_tiles > 1:
            return self._presumed
        inverse = self.swept(np.eye(self.factor.grid.n))
        return 1.0 / float(np.einsum("ij,ij->", inverse, inverse)) - self._gamma * self._trace

    def _rounding_of(self, x: Array, least: float) -> Array:
        """Root of the largest |xᵀEx| + xᵀE A⁻¹E x of solutions, of shape (m,)."""
        if not least > 0:
            return np.full(x.shape[1], np.inf)
        sizes = np.sqrt(self.diagonal) @ np.abs(x)
        return np.asarray(sizes * np.sqrt(self._gamma * (1.0 + self._gamma * self._trace / least)))

    @cached_property
    def _intercept_system(self) -> tuple[Array, float, float] | None:
        """L⁻¹ c, cᵀA⁻¹c, and the root of what rounding may change in the latter."""
        if self.constant is None:
            return None
        w = self.swept(self.constant[:, None].copy())
        total, least = float(w[:, 0] @ w[:, 0]), self._presumed
        x = self.swept(w.copy(), transpose=True)
        return w[:, 0], total, float(self._rounding_of(x, least if least > 0 else self._least)[0])

    def log_determinant(self) -> float:
        """Log |A|, and with an intercept log(cᵀA⁻¹c) more, as the restricted likelihood has it."""
        grid, total = self.factor.grid, 0.0
        for i in range(grid.n_tiles):
            tile = np.empty((grid.height(i), grid.height(i)))
            self.factor.read_tile(i, i, tile)
            total += 2.0 * float(np.log(tile.diagonal()).sum())
        return total if self._intercept_system is None else total + float(np.log(self._intercept_system[1]))

    def swept(self, x: Array, *, transpose: bool = False, progress: Progress | None = None) -> Array:
        """L⁻¹ X, or L⁻ᵀ X, in place of X."""
        cuts = block_cuts(self.factor.grid.n_tiles, 2 * self.n_threads)
        sweep = Substitution.in_memory(self.factor, x, cuts, transpose=transpose)
        with ThreadExecutor(self.n_threads) as executor:
            executor.run(substitution_tasks(sweep, "sweep"), Progress() if progress is None else progress)
        return x


def covariance_flops(side: int, m: int) -> float:
    """Operations of a posterior covariance of m rows, by a factor with `side` rows."""
    return float(side) * m * (side + m)


def _refuse_negative(found: Array, prior: Array) -> None:
    """Refuse variances that are negative by more than rounding, of shape (m,)."""
    bad = found < -MAX_NEGATIVE_FRACTION * np.maximum(prior, 1e-300)
    if bad.any():
        raise NotFiniteError(
            f"a variance is {found[bad][0]:.1e}, negative by more than rounding: λ is too small beside rounding in "
            f"K, or the kernel is not positive semidefinite; expected a larger alpha"
        )


def _brought_forward(z: Array, columns: NDArray[np.intp]) -> Array:
    """Move some columns to the front of the same array, which needs no memory for a copy."""
    for start in range(0, len(z), ROWS_MOVED):
        strip = z[start : start + ROWS_MOVED]
        strip[:, : len(columns)] = strip[:, columns]
    return z[:, : len(columns)]


def block_bytes(grid: TileGrid, m: int, n_threads: int, *, is_stored: bool) -> int:
    """Memory of `FactoredPosterior.variances` for m rows: C K(X, x), and panels of a factor that is read."""
    return 8 * grid.n * m + (n_threads * N_SLOTS * 8 * grid.tile * grid.panel if is_stored else 0)
