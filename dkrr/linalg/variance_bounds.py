"""Certified bounds of posterior variances, from any approximate solution.

With A = B + λI, B = C K C positive semidefinite, any x and its residual r = k − A x::

    kᵀA⁻¹k = kᵀx + xᵀr + rᵀA⁻¹r,    0 ≤ rᵀA⁻¹r ≤ ‖r − C K[:, S] z‖² / λ + zᵀK[S, S] z    for every S and z

The upper bound is that of a ridge regression: rᵀA⁻¹r is the least value of ‖r − C f(X)‖² / λ + ‖f‖² over the functions
of the kernel's space, and f = Σ zₛ k(·, xₛ) is one of them. At the best z it is rᵀM⁻¹r with the preconditioner
M = C F Fᵀ C + λI of the pivots S. A factor in float32, or one whose shift was raised, gives another z and so a wider
bound, which holds as well: columns K[:, S] are computed again, in float64. What is left is rounding in float64, for
which every bound has a margin.

References
----------
C. E. Rasmussen, C. K. I. Williams, "Gaussian Processes for Machine Learning", MIT Press 2006, chapters 2 and 6.2.
G. H. Golub, G. Meurant, "Matrices, Moments and Quadrature with Applications", Princeton 2010, chapter 12.
N. J. Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed., SIAM 2002, chapters 3 and 10.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dkrr import blas
from dkrr.blas import column_norms
from dkrr.errors import InputError, NotFiniteError, NotPositiveDefiniteError
from dkrr.linalg.gram_products import Precision
from dkrr.linalg.pivoted_cholesky import PivotedCholesky
from dkrr.linalg.preconditioners import small_cholesky

Array = NDArray[np.float64]

EPS = float(np.finfo(np.float64).eps)
ENTRY_ROUNDINGS = 40_000
"""Roundings in an entry of K, in units of the root of k(x, x) k(z, z), that margins allow for: squared distances of
Euclidean kernels are wrong by a few roundings of γ(‖x‖² + ‖z‖²), which is at most 1e4 before they are refined, as far
from the mean as two clusters may be."""

RELATIVE_WIDTH = 1e-3
"""Width of the bounds of a variance over the variance that is aimed at; a standard deviation is then known to 2.5e-4 of
itself."""


@dataclass(frozen=True)
class VarianceBounds:
    """Variances of some rows for a process of variance k, and bounds of them; all of shape (m,)."""

    value: Array
    lower: Array
    upper: Array

    @classmethod
    def between(cls, lower: Array, upper: Array) -> "VarianceBounds":
        """Bounds of which nothing more is known: their mean is the value."""
        return cls(0.5 * (lower + upper), lower, upper)

    @property
    def relative_width(self) -> Array:
        """Width over the value; 0 where both bounds are 0."""
        width = self.upper - self.lower
        return np.divide(width, self.value, out=np.where(width > 0, np.inf, 0.0), where=self.value > 0)


@dataclass(frozen=True)
class BoundedSolution:
    """Approximate solutions x of A x = k, with bounds of kᵀA⁻¹k and rᵀA⁻¹r."""

    right_sides: Array
    """k, of shape (n, m)."""
    x: Array
    residuals: Array
    """r as computed in float64."""
    low: Array
    """Lower bound of kᵀA⁻¹k, of shape (m,)."""
    high: Array
    """Upper bound of kᵀA⁻¹k."""
    residual_energy: Array
    """Upper bound of rᵀA⁻¹r."""


class ResidualBounds:
    """Bounds of quadratic forms with A⁻¹ from residuals of systems with A.

    Parameters
    ----------
    n : int
        Number of rows.
    shift : float
        λ > 0.
    diagonal : ndarray of shape (n,)
        Diagonal of K.
    scale : ndarray of shape (n,), optional
        c.
    factor : PivotedCholesky, optional
        F, of K; None: bounds are ‖r‖² / λ.
    spanned : callable
        From (S, V) to K[:, S] V in float64.
    precision : {"float32", "float64"}
        Precision of products with F.

    Raises
    ------
    InputError
        If λ is below rounding in C K C.
    """

    def __init__(
        self,
        n: int,
        shift: float,
        diagonal: Array,
        scale: Array | None,
        factor: PivotedCholesky | None,
        spanned: Callable[[NDArray[np.intp], Array], Array],
        precision: Precision = "float64",
    ) -> None:
        self.n, self._shift, self._scale, self._factor = n, shift, scale, factor
        self._spanned, self._precision, self._diagonal = spanned, precision, diagonal
        self._trace = float((diagonal if scale is None else diagonal * scale**2).sum())
        self.rounding = (n + ENTRY_ROUNDINGS) * EPS * self._trace
        """η: bound of the rounding in C K C and in products with it, ‖fl(C K C x) − C K C x‖ ≤ η ‖x‖."""
        if not self.rounding < 0.5 * shift:
            raise InputError(
                f"alpha is {shift:g}, below what rounding in K leaves of bounds for {n:,} rows; expected more than "
                f"{2 * self.rounding:.1e}: increase alpha, or use solver='cholesky'"
            )
        self._capacitance_factor, self._capacitance_rank = np.empty((0, 0)), -1

    def of(self, right_sides: Array, x: Array, residuals: Array) -> BoundedSolution:
        """Bounds for approximate solutions, all of shape (n, m)."""
        size_k, size_x, size_r = column_norms(right_sides), column_norms(x), column_norms(residuals)
        value = np.einsum("ij,ij->j", right_sides, x) + np.einsum("ij,ij->j", x, residuals)
        margin = self.rounding * size_x**2 + self.n * EPS * size_x * (size_k + size_r)
        # The residual itself is rounded.
        error = self.rounding * size_x + 4 * EPS * (size_k + self._shift * size_x)
        residual_energy = self._residual_energy(residuals, size_r, error)
        return BoundedSolution(
            right_sides, x, residuals, value - margin, value + margin + residual_energy, residual_energy
        )

    def _residual_energy(self, residuals: Array, sizes: Array, error: Array) -> Array:
        """Upper bounds of rᵀA⁻¹r, of shape (m,)."""
        least = self._shift - self.rounding
        plain = (sizes * (1.0 + self.n * EPS) + error) ** 2 / least
        coef = self._coefficients(residuals)
        if coef is None:
            return np.asarray(plain)
        assert self._factor is not None
        index, sizes_z = self._factor.index, column_norms(coef)
        image = self._spanned(index, coef)
        energy = np.einsum("ij,ij->j", coef, image[index])
        if self._scale is not None:
            image *= self._scale[:, None]
        others, terms = float(self._diagonal[index].sum()), (len(index) + ENTRY_ROUNDINGS) * EPS
        rest = column_norms(residuals - image) * (1.0 + self.n * EPS)
        rest += error + terms * (np.sqrt(self._trace * others) * sizes_z + sizes)
        through = rest**2 / least + np.maximum(energy, 0.0) + 3 * terms * others * sizes_z**2
        return np.asarray(np.fmin(plain, through))

    def _coefficients(self, residuals: Array) -> Array | None:
        """Coefficients z = L⁻ᵀ (λI + FᵀC²F)⁻¹ FᵀC r, of shape (r, m); None without usable digits."""
        factor, scale = self._factor, self._scale
        if factor is None or not factor.rank:
            return None
        if factor.rank != self._capacitance_rank:  # it grows where conjugate gradient is slow
            squares = np.ones(self.n) if scale is None else scale**2
            try:
                self._capacitance_factor = small_cholesky(factor.gram(squares, self._precision), self._shift)
            except NotPositiveDefiniteError:
                self._capacitance_factor = np.empty((0, 0))
            self._capacitance_rank = factor.rank
        if not len(self._capacitance_factor):
            return None
        coef = factor.project(residuals if scale is None else residuals * scale[:, None], self._precision)
        coef = np.ascontiguousarray(coef)
        blas.solve_lower(self._capacitance_factor, coef)
        blas.solve_lower(self._capacitance_factor, coef, transpose=True)
        return factor.of_pivots(coef)


def variance_bounds(
    prior: Array, solution: BoundedSolution, constant: BoundedSolution | None, rounding: float
) -> VarianceBounds:
    """Bounds of k(x, x) − kᵀA⁻¹k, and with an intercept of (1 − cᵀA⁻¹k)² / cᵀA⁻¹c more.

    Parameters
    ----------
    prior : ndarray of shape (m,)
        k(x, x).
    solution : BoundedSolution
        Systems of the rows' k.
    constant : BoundedSolution, optional
        The system of c, with an intercept.
    rounding : float
        η, as in `ResidualBounds`.

    Raises
    ------
    NotFiniteError
        If a variance is surely negative: the kernel is not positive semidefinite.
    """
    spread = 4 * EPS * np.abs(prior)
    lower, upper = np.maximum(prior - solution.high - spread, 0.0), prior - solution.low + spread
    refuse_negative(upper)
    if constant is None:
        return VarianceBounds.between(lower, upper)
    c, y = constant.right_sides[:, 0], constant.x[:, 0]
    g = c @ solution.x + y @ solution.residuals
    size_y, size_x = float(np.linalg.norm(y)), column_norms(solution.x)
    error = np.sqrt(constant.residual_energy[0] * solution.residual_energy) + rounding * size_y * size_x
    error += len(c) * EPS * (float(np.linalg.norm(c)) * size_x + size_y * column_norms(solution.residuals))
    total = (float(constant.low[0]), float(constant.high[0]))
    low, high = constant_bounds(np.abs(1.0 - g), error + 2 * EPS, total)
    return VarianceBounds.between(lower + low, upper + high)


def constant_bounds(distance: Array, error: Array, total: tuple[float, float]) -> tuple[Array, Array]:
    """Bounds of (1 − cᵀA⁻¹k)² / cᵀA⁻¹c, from |1 − cᵀA⁻¹k| with its error bound, and bounds of cᵀA⁻¹c."""
    low, high = total
    if not low > 0:
        raise NotFiniteError(
            f"cᵀA⁻¹c of the intercept is between {low:.1e} and {high:.1e}; expected a number > 0: rounding has "
            f"taken its digits: increase alpha, or use fit_intercept=False"
        )
    more = 1.0 + 8 * EPS
    return np.maximum(distance - error, 0.0) ** 2 / (high * more), (distance + error) ** 2 / low * more


def refuse_negative(upper: Array) -> None:
    """Refuse upper bounds of variances that are negative."""
    if (upper < 0).any():
        raise NotFiniteError(
            f"a variance is at most {upper.min():.1e}; expected variances of at least 0: the kernel is not positive "
            f"semidefinite on these rows"
        )
