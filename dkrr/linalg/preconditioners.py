"""Preconditioners of A + diag(s): approximate inverses that conjugate gradient applies once an iteration.

That of a partial Cholesky factor is a matrix of low rank and a diagonal, inverted. What a plan can know of the
spectrum before the work are the eigenvalues of the kernel matrix of a few rows.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, nan, sqrt

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dkrr import blas
from dkrr.blas import column_norms
from dkrr.cluster import RunRecord
from dkrr.data import MemoryRows, Rows
from dkrr.errors import NotFiniteError, NotPositiveDefiniteError
from dkrr.kernels import Kernel
from dkrr.kernels.blocks import mirror_lower
from dkrr.linalg import factor_rows
from dkrr.linalg.gram_products import Precision
from dkrr.linalg.pivoted_cholesky import PivotedCholesky

Array = NDArray[np.float64]


class Preconditioner(ABC):
    """A symmetric positive definite approximation of (A + diag(s))⁻¹."""

    captures_constant: bool = False
    """Whether it covers directions of very large eigenvalues, the constant above all."""
    is_scaling: bool = False
    """Whether it only scales rows and columns: errors depend on the condition number of the scaled matrix then."""
    is_complete: bool = False
    """Whether complete factors make it, so that an iteration or two solve the system."""

    @abstractmethod
    def apply(self, residuals: Array, columns: NDArray[np.intp]) -> Array:
        """Product with residuals.

        Parameters
        ----------
        residuals : ndarray of shape (n, k)
        columns : ndarray of shape (k,)
            Right-hand sides that they belong to, which may have their own shifts.

        Returns
        -------
        ndarray of shape (n, k)
        """

    @property
    def rank(self) -> int:
        """Columns of its factor; 0 without one."""
        return 0

    @property
    def can_grow(self) -> bool:
        """Whether a better one fits in memory."""
        return False

    def grow(self) -> bool:
        """Add columns to its factor; False if no more could be added."""
        return False

    def raise_shift_if_inexact(self, residuals: Array, columns: NDArray[np.intp]) -> bool:  # noqa: ARG002
        """Raise its shift if rounding has taken its digits, tried on residuals (n, k); return whether that was so."""
        return False

    def extremes(self, columns: NDArray[np.intp]) -> tuple[Array, Array]:
        """Estimates of the smallest and the largest eigenvalue of its inverse, each of shape (k,); NaN if unknown."""
        return np.full(len(columns), nan), np.full(len(columns), nan)

    @property
    def record(self) -> RunRecord:
        """Record of its tasks."""
        return RunRecord()


class Identity(Preconditioner):
    """The identity, which preconditions nothing."""

    is_scaling = True

    def apply(self, residuals: Array, columns: NDArray[np.intp]) -> Array:  # noqa: ARG002
        return residuals.copy()

    def extremes(self, columns: NDArray[np.intp]) -> tuple[Array, Array]:
        return np.ones(len(columns)), np.ones(len(columns))


@dataclass
class Diagonal(Preconditioner):
    """(diag(a) + diag(s))⁻¹ of Jacobi, a the diagonal of A.

    Parameters
    ----------
    diagonal : ndarray of shape (n, 1) or (n, m)
        a.
    shift : ndarray of shape (1, m) or (n, 1)
        s.
    """

    diagonal: Array
    shift: Array
    is_scaling = True

    def apply(self, residuals: Array, columns: NDArray[np.intp]) -> Array:
        return residuals / self._total(columns)

    def _total(self, columns: NDArray[np.intp]) -> Array:
        diagonal, shift = (x if x.shape[1] == 1 else x[:, columns] for x in (self.diagonal, self.shift))
        total = diagonal + shift
        return np.where(total > 0, total, 1.0)

    def extremes(self, columns: NDArray[np.intp]) -> tuple[Array, Array]:
        """Ones, as of the scaled matrix."""
        return np.ones(len(columns)), np.ones(len(columns))


class LazyPreconditioner(Preconditioner):
    """Preconditioner that is made when it is first applied: an iteration that begins at its solution needs none.

    Parameters
    ----------
    make : callable
        Returns the preconditioner.
    captures_constant : bool
        As that has it.
    """

    def __init__(self, make: Callable[[], Preconditioner], *, captures_constant: bool) -> None:
        self._make, self.captures_constant = make, captures_constant
        self._is_made = False

    @cached_property
    def _made(self) -> Preconditioner:
        self._is_made = True
        return self._make()

    def apply(self, residuals: Array, columns: NDArray[np.intp]) -> Array:
        return self._made.apply(residuals, columns)

    @property
    def rank(self) -> int:
        return self._made.rank if self._is_made else 0

    @property
    def can_grow(self) -> bool:
        return self._made.can_grow

    def grow(self) -> bool:
        return self._made.grow()

    def raise_shift_if_inexact(self, residuals: Array, columns: NDArray[np.intp]) -> bool:
        return self._made.raise_shift_if_inexact(residuals, columns)

    def extremes(self, columns: NDArray[np.intp]) -> tuple[Array, Array]:
        return self._made.extremes(columns)

    @property
    def record(self) -> RunRecord:
        return self._made.record if self._is_made else RunRecord()


@dataclass
class Fixed(Preconditioner):
    """A preconditioner that stays as it is throughout a run."""

    base: Preconditioner

    def __post_init__(self) -> None:
        self.captures_constant = self.base.captures_constant

    def apply(self, residuals: Array, columns: NDArray[np.intp]) -> Array:
        return self.base.apply(residuals, columns)

    @property
    def rank(self) -> int:
        return self.base.rank

    @property
    def record(self) -> RunRecord:
        return self.base.record


@dataclass
class Wrapped(Preconditioner):
    """A preconditioner around another one."""

    base: Preconditioner

    @property
    def rank(self) -> int:
        return self.base.rank

    @property
    def can_grow(self) -> bool:
        return self.base.can_grow

    def grow(self) -> bool:
        return self.base.grow()

    def raise_shift_if_inexact(self, residuals: Array, columns: NDArray[np.intp]) -> bool:
        return self.base.raise_shift_if_inexact(residuals, columns)

    @property
    def record(self) -> RunRecord:
        return self.base.record


GROWTH = 1.5
"""Factor by which the rank grows when conjugate gradient stalls."""
MAX_GROWTHS = 6
LIFT = 100.0
"""Factor by which the smallest shift grows when a preconditioner has lost its digits."""
INEXACT = 0.1
"""Fraction of a vector that M M⁻¹ may change before the shift is raised."""
LOW_PRECISION_RATIO = 1e6
"""`low_precision_eigenvalue` over t up to which products are in float32 where F is stored so. (Iterations measured at a
ratio of 4e5: the same as with products in float64; at 4e6: up to twice as many; at 4e7 the digits are lost.)"""
POWER_STEPS = 5
"""Steps by which eigenvalues are estimated."""
MIN_SHIFT_FRACTION = 10.0 * float(np.finfo(np.float64).eps)
"""Fraction of the trace below which a shift is lost beside the large eigenvalues."""


@dataclass(frozen=True)
class ShiftGroup:
    """Shift and small matrix of the right-hand sides of one shift and scale."""

    shift: Array
    """t, of shape (1,) or (n,)."""
    capacitance_factor: Array
    """Cholesky factor of I + Fᵀ C T⁻¹ C F, of shape (r, r)."""


@dataclass
class LowRank(Preconditioner):
    """(diag(c) F Fᵀ diag(c) + diag(t))⁻¹, by the identity of Sherman, Morrison and Woodbury.

    ::

        z = T⁻¹ r − T⁻¹ C F (I + Fᵀ C T⁻¹ C F)⁻¹ Fᵀ C T⁻¹ r

    F belongs to A alone: another t or c costs the small capacitance matrix, not a factor.

    With A = F Fᵀ + E and t = s, M⁻¹ (A + s) has eigenvalues from 1 to 1 + ‖E‖ / s, far apart where s is far below all
    eigenvalues of E, and M⁻¹ loses all digits. With t = max(s, δ), δ the mean eigenvalue of E, none is larger than
    1 + ‖E‖ / t, and none smaller than min(1/2, (s + μ/2) / t) for the smallest eigenvalue μ of A: at worst (μ = 0) that
    is a condition number 1 + δ / ‖E‖ times as large, at best (E nearly a multiple of the identity) it is about 4,
    whatever s. With a scale c, E = C (A − F Fᵀ) C may have a diagonal e of many orders; t is max(s, min(e, δ)) then,
    row by row.

    Parameters
    ----------
    factor : PivotedCholesky
        F, of A.
    shift : ndarray of shape (n, 1) or (1, m)
        s ≥ 0: one diagonal for all right-hand sides, or a number for each.
    scale : ndarray of shape (n,) or (n, m), optional
        c: one for all right-hand sides, or one for each.
    mixed : bool
        Products with F may be in float32, where F is stored so and t is not lost beside the largest eigenvalue.
    """

    factor: PivotedCholesky
    shift: Array
    scale: Array | None = None
    mixed: bool = False
    growths: int = 0
    lift: float = 1.0
    precision: Precision = field(init=False)
    """Precision of products with F; float64 once they lose digits."""
    captures_constant = True
    _groups: tuple[ShiftGroup, ...] = ()
    _group_of: NDArray[np.intp] = field(default_factory=lambda: np.zeros(1, np.intp))
    """Number of the group of every right-hand side."""
    _largest: Array | None = None
    """Estimates of the largest eigenvalue of C A C for every scale, after the first use."""

    def __post_init__(self) -> None:
        self.precision = "float32" if self.mixed and self.factor.is_low else "float64"
        self._form_groups()

    def _gram(self, weights: Array, ratio: float = 1.0) -> Array:
        """Lower triangle of Fᵀ diag(v) F, of which the capacitance matrices have at most this multiple."""
        gram = self.factor.gram(weights, self.precision)
        if self.precision == "float32" and not ratio * low_precision_eigenvalue(gram) <= LOW_PRECISION_RATIO:
            self.precision = "float64"
            gram = self.factor.gram(weights)
        return gram

    def _form_groups(self) -> None:
        """Compute the shifts and the small matrices, for the factor as it is now."""
        shift, scale = self.shift, self.scale
        if scale is not None and scale.ndim == 2:
            self._group_of = np.arange(scale.shape[1])
            shifts = np.broadcast_to(shift, (len(shift), scale.shape[1])).T
            self._groups = tuple(g for s, c in zip(shifts, scale.T, strict=True) for g in self._sharing([s], c))
        elif len(shift) > 1:
            self._groups = self._sharing([shift[:, 0]], scale)
        else:
            distinct, self._group_of = np.unique(shift[0], return_inverse=True)
            self._groups = self._sharing(distinct[:, None], scale)

    def _sharing(self, shifts: Iterable[Array], scale: Array | None) -> tuple[ShiftGroup, ...]:
        """Groups of several shifts and one scale, of shape (n,)."""
        squares = None if scale is None else np.ascontiguousarray(scale**2)
        c2 = np.ones(self.factor.columns.n) if squares is None else squares
        raised = [self._raised(s, squares) for s in shifts]
        groups, gram, first = [], np.empty((0, 0)), np.ones(1)
        for t in raised:
            capacitance_factor = np.empty((0, 0))
            if self.factor.rank and len(t) > 1:
                capacitance_factor = small_cholesky(self._gram(c2 / t), 1.0)
            elif self.factor.rank:
                if not len(gram):  # of C T⁻¹ C, which overflows later than C² does
                    gram, first = self._gram(c2 / t, float(t[0] / min(one[0] for one in raised if len(one) == 1))), t
                capacitance_factor = small_cholesky(gram if len(raised) == 1 else gram * (first / t), 1.0)
            groups.append(ShiftGroup(t, capacitance_factor))
        return tuple(groups)

    def _raised(self, shift: Array, squares: Array | None) -> Array:
        """t, of shape (1,) or (n,), for s of such a shape and c² of shape (n,)."""
        f, uniform = self.factor, squares is None and len(shift) == 1
        left, whole = (
            (f.residual_diagonal, f.diagonal)
            if squares is None
            else (squares * f.residual_diagonal, squares * f.diagonal)
        )
        mean = mean_residual_eigenvalue(left, f.rank)
        rounding = self.lift * MIN_SHIFT_FRACTION
        if uniform:
            t = np.maximum(shift, max(mean, float((rounding * whole).sum())))
        else:
            t = np.maximum(shift, np.maximum(np.minimum(left, mean), rounding * len(left) * whole))
            t = t if t.min() < t.max() else t[:1]
        return np.where(t > 0, t, 1.0)

    def _numbers(self, columns: NDArray[np.intp]) -> NDArray[np.intp]:
        """Numbers of the groups of some right-hand sides."""
        return np.zeros(len(columns), np.intp) if len(self._groups) == 1 else self._group_of[columns]

    def shifts(self, columns: NDArray[np.intp]) -> Array:
        """T of some right-hand sides, of shape (1, k), (n, 1) or (n, k)."""
        if len(self._groups) == 1:
            return self._groups[0].shift.reshape(-1, 1)
        found = [self._groups[k].shift for k in self._numbers(columns)]
        n = max(map(len, found))
        return np.stack([np.broadcast_to(t, n) for t in found], axis=1)

    def _scales(self, columns: NDArray[np.intp]) -> Array | None:
        """C of some right-hand sides, of shape (n, 1) or (n, k)."""
        if self.scale is None:
            return None
        return self.scale[:, None] if self.scale.ndim == 1 else self.scale[:, columns]

    def apply(self, residuals: Array, columns: NDArray[np.intp]) -> Array:
        t, c, numbers = self.shifts(columns), self._scales(columns), self._numbers(columns)
        right = residuals / t
        if not self.factor.rank:
            return right
        inner = self.factor.project(right if c is None else c * right, self.precision)
        for k in np.unique(numbers):
            here = np.flatnonzero(numbers == k)
            group_inner = np.ascontiguousarray(inner[:, here])
            blas.solve_lower(self._groups[k].capacitance_factor, group_inner)
            blas.solve_lower(self._groups[k].capacitance_factor, group_inner, transpose=True)
            inner[:, here] = group_inner
        outer = self.factor.expand(inner, self.precision)
        if c is not None:
            outer *= c
        return (residuals - outer) / t

    def log_determinant(self) -> float:
        """Log |M|, of a preconditioner that all right-hand sides share."""
        (group,) = self._groups
        n = self.factor.columns.n
        return float(
            np.log(np.broadcast_to(group.shift, n)).sum() + 2.0 * np.log(group.capacitance_factor.diagonal()).sum()
        )

    def sample(self, n_columns: int, rng: np.random.Generator) -> Array:
        """Vectors from N(0, M), of shape (n, n_columns), of a preconditioner that all right-hand sides share."""
        (group,) = self._groups
        n = self.factor.columns.n
        found = np.sqrt(group.shift)[:, None] * rng.standard_normal((n, n_columns))
        if self.factor.rank:
            smooth = self.factor.expand(rng.standard_normal((self.factor.rank, n_columns)))
            found += smooth if self.scale is None else smooth * self.scale.reshape(n, 1)
        return np.asarray(found)

    @property
    def rank(self) -> int:
        return self.factor.rank

    @property
    def can_grow(self) -> bool:
        return self.growths < MAX_GROWTHS and self.factor.rank < self.factor.capacity

    def grow(self) -> bool:
        before = self.factor.rank
        self.growths += 1
        self.factor.grow(min(self.factor.capacity, int(GROWTH * before) + 1))
        if self.factor.rank == before:
            return False
        self._form_groups()
        return True

    def raise_shift_if_inexact(self, residuals: Array, columns: NDArray[np.intp]) -> bool:
        if self.factor.rank == 0:
            return False
        z, c = self.apply(residuals, columns), self._scales(columns)
        again = self.factor.expand(self.factor.project(z if c is None else c * z))
        again = (again if c is None else c * again) + self.shifts(columns) * z
        if (column_norms(again - residuals) <= INEXACT * column_norms(residuals)).all():
            return False
        if self.precision == "float32":
            self.precision = "float64"
            return True
        self.lift *= LIFT
        self._form_groups()
        return True

    def extremes(self, columns: NDArray[np.intp]) -> tuple[Array, Array]:
        if self._largest is None:
            self._largest = self._largest_eigenvalues()
        t = self.shifts(columns)
        # At the pivots, where F leaves nothing, t may be small without any such eigenvalue.
        others = self.factor.residual_diagonal > 0
        least = np.broadcast_to((t[others] if len(t) > 1 and others.any() else t).min(axis=0), len(columns))
        return least, (self._largest if len(self._largest) == 1 else self._largest[columns]) + least

    def _largest_eigenvalues(self) -> Array:
        # A step of the power method: a kernel's largest eigenvalue often belongs nearly to the constant.
        n = self.factor.columns.n
        c = np.ones((n, 1)) if self.scale is None else self.scale.reshape(n, -1)
        largest = np.asarray((c**2 * self.factor.diagonal[:, None]).max(axis=0))
        if not self.factor.rank:
            return largest
        first = self.factor.project(c)
        norms = column_norms(first)
        first /= np.where(norms > 0, norms, 1.0)
        second = self.factor.project(c * (c * self.factor.expand(first)))
        return np.asarray(np.maximum(largest, column_norms(second)))

    @property
    def record(self) -> RunRecord:
        return self.factor.record


def low_precision_eigenvalue(gram: Array) -> float:
    """Eigenvalue whose rounding to float32 bounds that of products with F whose first columns alone are in float64.

    It is √(μ ν), with the largest eigenvalues μ of all columns and ν of those in float32: what rounds are products of
    these with vectors that may lie along an eigenvector of μ. Both are estimated by the power method.

    Parameters
    ----------
    gram : ndarray of shape (r, r)
        FᵀF, of which the lower triangle is read; it is mirrored.
    """
    mirror_lower(gram)
    first = factor_rows.HEAD_COLUMNS
    return sqrt(_largest_eigenvalue(gram)) * sqrt(_largest_eigenvalue(gram[first:, first:]))


def _largest_eigenvalue(matrix: Array) -> float:
    size, vector = 0.0, np.random.default_rng(0).standard_normal((len(matrix), 1))
    for _ in range(POWER_STEPS if len(matrix) else 0):
        image = np.empty_like(vector)
        blas.gemm(image, matrix, vector / column_norms(vector))
        size, vector = float(column_norms(image)[0]), image
        if not 0.0 < size < inf:
            break
    return size


def small_cholesky(matrix: Array, shift: float) -> Array:
    """Overwrite a matrix by the Cholesky factor of its sum with a multiple of the identity."""
    matrix[np.diag_indices_from(matrix)] += shift
    failed = blas.cholesky_in_place(matrix)
    if failed:
        raise NotPositiveDefiniteError(
            f"the preconditioner's matrix of size {len(matrix)} is not positive definite: the shift is below rounding",
            failed - 1,
        )
    return matrix


def mean_residual_eigenvalue(left: Array, rank: int) -> float:
    """δ, the mean eigenvalue of what a partial factor of this rank leaves, from its diagonal (n,)."""
    return float((left / max(len(left) - rank, 1)).sum())  # in this order the sum does not overflow


SAMPLE = 1024
"""Most rows of a sample: 0.1 s, and the 250 largest of their eigenvalues over n are within a factor of two of those of
all rows."""
SAMPLED_FRACTION = 1 / 3
"""Fraction of the rows that is their sample where they are few: a ninth of the work of forming K."""
MIN_SAMPLED_ROWS = 512
"""Rows from which the spectrum is estimated on a sample: below, all of the work is about as short."""
MAX_SAMPLE_BYTES = 64 * 2**20
"""Most memory that the rows of a sample may take: planning has no share of a memory limit."""
_BLOCKS = 16
"""Blocks of consecutive rows that are read where rows are in a store."""


def estimated_spectrum(kernel: Kernel, rows: Rows, seed: int = 0) -> tuple[float, float, float] | None:
    """Power law of the eigenvalues of K / n, the constant deflated, from a sample of the rows.

    Eigenvalues that a sample does not resolve (many directions with little variance each) fall with its size, by up to
    one half where it is twice as large. How much they fall from half the sample to all of it is carried on to n.

    Parameters
    ----------
    kernel : Kernel
    rows : Rows
        Of shape (n, d), n at least MIN_SAMPLED_ROWS.
    seed : int

    Returns
    -------
    largest, thousandth, decay : float
        See `power_law`; None where the sample has NaN or infinity, which a check of all rows will name.
    """
    n, rng = rows.shape[0], np.random.default_rng(seed)
    size = min(SAMPLE, int(SAMPLED_FRACTION * n))
    if isinstance(rows, MemoryRows):
        block = rows.take(np.sort(rng.choice(n, size, replace=False)))
    else:
        height = size // _BLOCKS
        starts = np.sort(rng.choice(n // height, _BLOCKS, replace=False)) * height
        blocks = [rows.read(int(k), int(k) + height) for k in starts]
        block = sp.csr_array(sp.vstack(blocks, format="csr")) if rows.is_sparse else np.concatenate(blocks)
    try:
        matrix = np.asarray(kernel(block), np.float64)
    except NotFiniteError:  # its row would be that of the sample
        return None
    if not np.isfinite(matrix).all():
        return None
    whole, half = _eigenvalues(matrix), _eigenvalues(matrix[::2, ::2])
    largest, thousandth, decay = power_law(whole)
    at = len(whole) // 10
    fall = float(np.clip(whole[at] / max(half[at], np.finfo(float).tiny), 0.5, 1.0))
    return largest, float(thousandth * fall ** np.log2(n / len(whole))), decay


def _eigenvalues(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """Eigenvalues of the centred matrix over its size, in descending order."""
    centred = matrix - matrix.mean(axis=0)
    centred -= centred.mean(axis=1)[:, None]
    with blas.one_thread():
        return np.asarray(np.linalg.eigvalsh(centred)[::-1] / len(matrix))


def power_law(eigenvalues: NDArray[np.float64]) -> tuple[float, float, float]:
    """Extrapolate the spectrum of K / n from a sample's eigenvalues in descending order, by a power law.

    It is fitted to the eigenvalues k/24 to k/4 of a sample of k rows; the smallest ones of a sample are biased low.

    Returns
    -------
    largest, thousandth, decay : float
        The k-th is min(largest, thousandth · (k / 1000)^−decay).
    """
    size = len(eigenvalues)
    number = np.arange(max(2, size // 24), max(4, size // 4))
    found = np.maximum(eigenvalues[number - 1], np.finfo(float).tiny)
    slope, offset = np.polyfit(np.log(number), np.log(found), 1)
    decay = float(np.clip(-slope, 0.1, 20.0))
    return float(max(eigenvalues[0], 0.0)), float(np.exp(offset - decay * np.log(1000.0))), decay
