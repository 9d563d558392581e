"""Sums over rows in the primal form as one additive value, and the normal equations that follow from them.

`Features` form or transform blocks of rows: strips of Φ from dense or CSR rows, or Fourier transforms. `Sums` have
ΦᵀWΦ, ΦᵀWy, yᵀWy and the means of some rows, and add up: over blocks, segments and folds, and over the calls of a fit
that grows. A `NormalSystem` follows from them, with features and targets about their weighted means if there is an
intercept. Fits of folds, leave-one-out errors, standard deviations and likelihoods are programs over these three.

Features are summed about a reference c near their means: Σ w (φ − c)(φ − c)ᵀ − W (φ̄ − c)(φ̄ − c)ᵀ then does not cancel.

References
----------
T. F. Chan, G. H. Golub, R. J. LeVeque, "Algorithms for computing the sample variance: analysis and recommendations",
The American Statistician 37 (1983).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from dkrr import blas
from dkrr.blas import column_norms
from dkrr.errors import NotPositiveDefiniteError
from dkrr.kernels.blocks import mirror_lower
from dkrr.kernels.map_base import FeatureMap
from dkrr.linalg.condition import SolvedProbe, scaling_of, with_probe
from dkrr.linalg.normal import parts_for_folds
from dkrr.linalg.passes import Design, strip_rows
from dkrr.linalg.result import INACCURATE_ABOVE, in_terms_of_alpha

Array = NDArray[np.float64]
Block = Any
"""Rows of X, dense or CSR."""

EPS = float(np.finfo(float).eps)
MIN_DIFFERENCE = 0.1
"""Part of a sum of squares that must be left for it to be a difference: of its digits at most one is then lost."""
MAX_MEAN_SQUARE = 30.0
"""W (φ̄ − c)ⱼ² over the diagonal of A + λI above which sums about c have lost digits that matter, and are repeated."""
MIN_QUADRATIC = 1e-4
"""yᵀWy − ΦᵀWyᵀβ over yᵀWy below which it is computed from the errors, where nothing cancels."""


class NormalMatrix(Protocol):
    """A = ΦᵀWΦ of D features."""

    @property
    def n(self) -> int:
        """D."""

    def matrix(self) -> Array:
        """Lower triangle, (D, D), which the caller may overwrite."""

    def diagonal(self) -> Array:
        """Diagonal, (D,)."""

    def multiply(self, vectors: Array) -> Array:
        """A V, of shape (D, m)."""


@dataclass(frozen=True)
class DenseNormalMatrix:
    """A in memory, of which the lower triangle counts."""

    gram: Array

    @property
    def n(self) -> int:
        """D."""
        return len(self.gram)

    def matrix(self) -> Array:
        """Copy of the lower triangle."""
        return self.gram.copy()

    def diagonal(self) -> Array:
        """Diagonal, (D,)."""
        return self.gram.diagonal()

    def multiply(self, vectors: Array) -> Array:
        """A V, of shape (D, m)."""
        mirror_lower(self.gram)
        return blas.product(self.gram, vectors)


def cholesky_factor(matrix: Array, alpha: float) -> Array:
    """Lower Cholesky factor of A + λI, in place of A.

    Raises
    ------
    NotPositiveDefiniteError
        If rounding leaves A + λI not positive definite.
    """
    numbers = np.arange(len(matrix))
    matrix[numbers, numbers] += alpha
    failed = blas.cholesky_in_place(matrix)
    if failed:
        raise NotPositiveDefiniteError("the normal matrix is not positive definite", failed - 1)
    return matrix


def cho_solve(factor: Array, right_sides: Array) -> Array:
    """(L Lᵀ)⁻¹ B, of shape (D, m)."""
    x = np.array(right_sides, order="C")
    blas.solve_lower(factor, x)
    blas.solve_lower(factor, x, transpose=True)
    return x


@dataclass(frozen=True)
class NormalSystem:
    """Normal equations (A + λI) w = b of some rows, for every λ.

    With an intercept features and targets are about their weighted means over these rows.
    """

    matrix: NormalMatrix
    """A."""
    moments: Array
    """b, of shape (D, t)."""
    squares: Array
    """yᵀWy of every target, of shape (t,)."""
    total: float
    """W, the sum of the weights."""
    means: Array
    """Means of the features less the reference, of shape (D,); 0 without an intercept."""
    target_means: Array
    """Means of the targets, of shape (t,); 0 without an intercept."""
    summed: Array
    """Diagonal of the sums about the reference, whose rounding A has; of shape (D,)."""
    has_intercept: bool

    def has_lost_digits(self, alpha: float) -> bool:
        """Whether the means are so far from the reference that A + λI has lost digits."""
        left = self.matrix.diagonal() + alpha
        return bool((self.total * self.means**2 > MAX_MEAN_SQUARE * left).any())

    def factor(self, alpha: float) -> Array:
        """Lower Cholesky factor of A + λI, of shape (D, D).

        Raises
        ------
        NotPositiveDefiniteError
            If it is not positive definite, or no row counts.
        """
        if self.total <= 0.0 and self.has_intercept:
            raise NotPositiveDefiniteError("no row has a positive weight", 0)
        return cholesky_factor(self.matrix.matrix(), alpha)

    def solution(self, alpha: float, factor: Array | None = None, offset_coef: Array | None = None) -> "NormalSolution":
        """Factor, and the coefficients of all targets.

        Parameters
        ----------
        alpha : float
            λ.
        factor : ndarray of shape (D, D), optional
            Lower factor of A + λI, where it is known.
        offset_coef : ndarray of shape (D, t), optional
            Coefficients whose predictions the targets are without; the solution is then what comes to them.

        Raises
        ------
        NotPositiveDefiniteError
            See `factor`.
        """
        factor = self.factor(alpha) if factor is None else factor
        right_sides = self.moments if offset_coef is None else self.moments - alpha * offset_coef
        return self.solution_of(alpha, cho_solve(factor, right_sides), factor)

    def condition(self, alpha: float, solve: Callable[[Array], Array]) -> float:
        """Estimate of κ₂ of A + λI with a unit diagonal, by a function that solves with it; see `linalg.condition`."""
        scaling = scaling_of(self.matrix.diagonal() + alpha)
        probe = with_probe(np.empty((self.matrix.n, 0)), scaling)
        found = SolvedProbe.of_solution(probe[:, 0], solve(probe)[:, 0], scaling)
        vector = found.vector[:, None]
        return found.condition((self.matrix.multiply(vector) + alpha * vector)[:, 0])

    def solution_of(
        self, alpha: float, coef: Array, factor: Array | None = None, residual: float = 0.0
    ) -> "NormalSolution":
        """Solution of known coefficients.

        Parameters
        ----------
        alpha : float
            λ.
        coef : ndarray of shape (D, t)
        factor : ndarray of shape (D, D), optional
            Lower factor of A + λI.
        residual : float
            Relative residual of conjugate gradient.
        """
        squares = self.squares
        found = squares - np.einsum("ij,ij->j", self.moments, coef)
        summed = self.summed + alpha
        return NormalSolution(
            alpha,
            coef,
            self.target_means - self.means @ coef,
            factor,
            self.means,
            self.total,
            self.has_intercept,
            quadratic=np.where(found < MIN_QUADRATIC * squares, np.nan, found) / (alpha or np.nan),
            rounded=EPS * column_norms(np.sqrt(summed)[:, None] * coef),
            least_pivot=1.0 if factor is None else float(np.min(factor.diagonal() ** 2 / summed, initial=1.0)),
            residual=residual,
        )


@dataclass(frozen=True)
class NormalSolution:
    """Ridge regression of some rows: f(x) = (φ(x) − c)ᵀβ + b, for targets less their reference."""

    alpha: float
    """λ."""
    coef: Array
    """β, of shape (D, t)."""
    constants: Array
    """b, of shape (t,)."""
    factor: Array | None
    """L with A + λI = L Lᵀ; None where conjugate gradient solved it."""
    means: Array
    """Means of the features less the reference, of shape (D,); 0 without an intercept."""
    total: float
    """W."""
    has_intercept: bool
    quadratic: Array
    """yᵀ(K + λW⁻¹)⁻¹y = (yᵀWy − bᵀβ)/λ, of shape (t,); NaN where that difference has too few digits."""
    rounded: Array
    """ε ‖√D β‖ with the diagonal D whose rounding A + λI has, of shape (t,)."""
    least_pivot: float
    """Smallest fraction of an entry of that diagonal that is left in its pivot."""
    residual: float = 0.0
    """Relative residual of conjugate gradient."""

    @property
    def lower(self) -> Array:
        """L, where there is one."""
        assert self.factor is not None, "conjugate gradient leaves no complete factor"
        return self.factor

    def rounding(self) -> Array:
        """Change of the weighted predictions that rounding in the sums and the factor may make, of shape (t,).

        With A + λI = D S D, S of a unit diagonal, rounding changes the matrix by ε of D², and so w by (A + λI)⁻¹ times
        that: ε √κ(S) ‖D w‖ in predictions. 1/κ(S) is about the smallest fraction of a diagonal entry that is left in
        its pivot.
        """
        return np.asarray(self.rounded / np.sqrt(self.least_pivot))

    def about_the_means(self) -> Self:
        """Solution of the same function, for features about the reference c + `means`."""
        constants = self.constants + self.means @ self.coef
        return replace(self, means=np.zeros_like(self.means), constants=constants)

    def log_determinant(self) -> float:
        """Log |A + λI|, and log(W/λ) more with an intercept."""
        found = 2.0 * float(np.log(self.lower.diagonal()).sum())
        return found + (float(np.log(self.total / self.alpha)) if self.has_intercept else 0.0)

    def inverse_of_total(self) -> float:
        """1/W with an intercept, whose uncertainty it is over λ; else 0."""
        return 1.0 / self.total if self.has_intercept else 0.0


class Sums(Protocol):
    """Sums of some rows, which add up."""

    @property
    def total(self) -> float:
        """W, the sum of the weights."""

    def add(self, block: Array, targets: Array, weights: Array | None) -> None:
        """Add rows: a block of `Features.block`, targets (m, t) and weights (m,)."""

    def include(self, other: Self) -> None:
        """Add the sums of other rows."""

    def copy(self) -> Self:
        """Sums of the same rows that may be changed."""

    @property
    def means(self) -> tuple[Array, Array]:
        """Means of the features (0 where sums need no reference) and of the targets, of shape (D,) and (t,)."""

    def about(self, shift: Array, target_shift: Array) -> Self:
        """Sums of the same rows with shifts subtracted from features and targets: about other references."""

    def without(self, other: Self) -> Self | None:
        """Sums of the rows that are not among the others; None where the others are most, and digits would be lost."""

    def packed(self) -> Array:
        """All numbers, as one vector."""

    def system(self, *, has_intercept: bool) -> NormalSystem:
        """Normal equations of these rows."""


class Features(Protocol):
    """Φ of rows, and what a program over sums does with it."""

    has_exact_squares: ClassVar[bool]
    """Whether sums give squared errors, with a bound of their rounding."""

    @property
    def dimension(self) -> int:
        """D."""

    @property
    def reference(self) -> Array:
        """c, of shape (D,), subtracted from features in blocks."""

    def about(self, shift: Array) -> Self | None:
        """Features about the reference c + `shift`; None where sums need no reference."""

    def block_rows(self, row_bytes: int, n_targets: int) -> int:
        """Rows of a block."""

    def segments(self, n: int, n_sets: int, n_threads: int) -> int:
        """Segments of n rows that threads pass over, each with the sums of `n_sets` parts of the rows."""

    def block(self, x: Block) -> Array:
        """Block of rows as sums, values and leverages take it, which rows can be selected of; to be read only."""

    def matrix(self, x: Block) -> Array:
        """Φ of a few rows less the reference, (m, D)."""

    def new_sums(self, n_targets: int) -> Any:
        """Sums of no rows."""

    def values(self, block: Array, coef: Array) -> Array:
        """(Φ − c) C, of shape (m, k), for coefficients of shape (D, k)."""

    def leverages(self, solution: NormalSolution) -> Callable[[Array], Array]:
        """Function of a block that gives (φ − φ̄)ᵀ(A + λI)⁻¹(φ − φ̄), and 1/W more with an intercept; of shape (m,)."""

    def solutions(self, system: NormalSystem, alphas: Array, offset_coef: Array | None = None) -> list[NormalSolution]:
        """Solutions for every λ."""

    def certainty(self, solution: NormalSolution, sizes: Array, *, of_rows: bool) -> list[tuple[float, float]]:
        """Bounds of the error of held-out predictions relative to the sizes of the targets, each with its limit.

        `of_rows`: of single rows that are left out, where 1 − leverage cancels.
        """


@dataclass
class DenseSums:
    """Sums of features less a reference."""

    gram: Array
    """ΦᵀWΦ, lower triangle, of shape (D, D)."""
    moments: Array
    """ΦᵀW(y, 1), of shape (D, t + 1)."""
    squares: Array
    """Σ w y² of every target, of shape (t,)."""
    totals: Array
    """Σ w (y, 1), of shape (t + 1,)."""

    @classmethod
    def zeros(cls, dimension: int, n_targets: int) -> Self:
        """Sums of no rows."""
        shapes = (dimension, dimension), (dimension, n_targets + 1), (n_targets,), (n_targets + 1,)
        return cls(*(np.zeros(shape) for shape in shapes))

    @property
    def total(self) -> float:
        """W."""
        return float(self.totals[-1])

    def add(self, block: Array, targets: Array, weights: Array | None) -> None:
        """See `Sums`."""
        if not len(block):
            return
        right = np.ones((len(targets), targets.shape[1] + 1))
        right[:, :-1] = targets
        if weights is None:
            self.totals += right.sum(axis=0)
        else:
            self.totals += weights @ right
            root = np.sqrt(weights)[:, None]
            block, right = block * root, right * root
        blas.syrk(self.gram, block, transpose=True, beta=1.0)
        blas.gemm(self.moments, block, right, transpose_a=True, beta=1.0)
        self.squares += np.einsum("ij,ij->j", right[:, :-1], right[:, :-1])

    def _arrays(self) -> tuple[Array, ...]:
        return self.gram, self.moments, self.squares, self.totals

    def include(self, other: Self) -> None:
        """See `Sums`."""
        for own, more in zip(self._arrays(), other._arrays(), strict=True):
            own += more

    def copy(self) -> Self:
        """See `Sums`."""
        return type(self)(*(array.copy() for array in self._arrays()))

    def without(self, other: Self) -> Self | None:
        """See `Sums`."""
        parts = (self.gram.diagonal(), other.gram.diagonal()), (self.squares, other.squares), (self.total, other.total)
        if any(np.any(whole - part < MIN_DIFFERENCE * whole) for whole, part in parts):
            return None
        return type(self)(*(own - part for own, part in zip(self._arrays(), other._arrays(), strict=True)))

    def packed(self) -> Array:
        """See `Sums`."""
        return np.concatenate([array.ravel() for array in self._arrays()])

    @classmethod
    def unpacked(cls, dimension: int, n_targets: int, numbers: Array) -> Self:
        """Undo `packed`."""
        found = cls.zeros(dimension, n_targets)
        ends = np.cumsum([array.size for array in found._arrays()])
        for array, part in zip(found._arrays(), np.split(numbers, ends[:-1]), strict=True):
            array[...] = part.reshape(array.shape)
        return found

    @property
    def means(self) -> tuple[Array, Array]:
        """See `Sums`."""
        return self.moments[:, -1] / self.total, self.totals[:-1] / self.total

    def about(self, shift: Array, target_shift: Array) -> Self:
        """See `Sums`.

        With W shift shiftᵀ − shift sᵀ − s shiftᵀ for s = Σ w φ. Where shift is their mean that is −W shift shiftᵀ;
        where s is 0, sums about the mean, it is +W shift shiftᵀ, in which nothing cancels.
        """
        both, s, gram = np.append(target_shift, 0.0), self.moments[:, -1].copy(), self.gram.copy()
        half = s - 0.5 * self.total * shift
        blas.gemm(gram, np.column_stack([-shift, -half]), np.stack([half, shift]), beta=1.0)
        totals = self.totals - self.total * both
        moments = self.moments - np.outer(s, both) - np.outer(shift, totals)
        squares = self.squares - target_shift * (self.totals[:-1] + totals[:-1])
        return type(self)(gram, moments, squares, totals)

    def system(self, *, has_intercept: bool) -> NormalSystem:
        """See `Sums`."""
        t, total, summed = len(self.squares), self.total, self.gram.diagonal().copy()
        if not has_intercept or total <= 0.0:
            nothing = np.zeros(len(self.gram)), np.zeros(t)
            matrix, moments = DenseNormalMatrix(self.gram), self.moments[:, :-1]
            return NormalSystem(matrix, moments, self.squares, total, *nothing, summed, has_intercept)
        means, target_means = self.moments[:, -1] / total, self.totals[:-1] / total
        gram = np.outer(self.moments[:, -1], means)
        np.subtract(self.gram, gram, out=gram)
        moments = self.moments[:, :-1] - np.outer(means, self.totals[:-1])
        squares = self.squares - self.totals[:-1] * target_means
        return NormalSystem(
            DenseNormalMatrix(gram), moments, squares, total, means, target_means, summed, has_intercept=True
        )

    def squared_errors(self, coef: Array, constants: Array, n_rows: int) -> tuple[Array, Array]:
        """Weighted sums of squared errors of these rows, and bounds of their rounding; of shape (m,) each.

        An entry of ΦᵀWΦ is off by at most ε √(G_ii G_jj) times a factor that grows as the root of the number of rows,
        if rounding errors are as often positive as negative.

        Parameters
        ----------
        coef : ndarray of shape (D, m)
            Coefficients of all targets for one λ after another.
        constants : ndarray of shape (m,)
        n_rows : int
        """
        mirror_lower(self.gram)
        repeats = len(constants) // len(self.squares)
        right_sides, squares = np.tile(self.moments[:, :-1], repeats), np.tile(self.squares, repeats)
        products = blas.product(self.gram, coef)
        products += 2.0 * (np.outer(self.moments[:, -1], constants) - right_sides)
        found = squares + np.einsum("ij,ij->j", coef, products)
        found += constants * (self.total * constants - 2.0 * np.tile(self.totals[:-1], repeats))
        norms = np.sqrt(np.maximum(self.gram.diagonal(), 0.0))
        sizes = np.sqrt(squares) + norms @ np.abs(coef) + np.sqrt(self.total) * np.abs(constants)
        return found, EPS * np.sqrt(n_rows) * sizes**2


@dataclass(frozen=True)
class DenseFeatures:
    """Features of a map, formed in strips of dense or CSR rows."""

    feature_map: FeatureMap
    n_features: int
    """Columns of X."""
    reference: Array
    scale: Callable[[], str] = str
    """Gives a sentence on the scale of the data, for the error of a matrix that is not positive definite."""

    has_exact_squares: ClassVar[bool] = True

    @property
    def dimension(self) -> int:
        """D."""
        return self.feature_map.dimension(self.n_features)

    def block_rows(self, row_bytes: int, n_targets: int) -> int:  # noqa: ARG002 - strips are of features
        """See `Features`."""
        return strip_rows(max(self.dimension + 1, self.n_features) + n_targets)

    def segments(self, n: int, n_sets: int, n_threads: int) -> int:
        """See `Features`; 1 where BLAS's threads are as fast."""
        return parts_for_folds(n, self.dimension, n_sets, n_threads)

    def block(self, x: Block) -> Array:
        """See `Features`."""
        # The order of numbers in memory decides last digits, and is not that of a copy.
        return self.matrix(np.ascontiguousarray(x) if isinstance(x, np.ndarray) else x)

    def matrix(self, x: Block) -> Array:
        """See `Features`."""
        centre = self.reference if self.reference.any() else None
        return np.ascontiguousarray(Design(self.feature_map, centre).features(x), np.float64)

    def about(self, shift: Array) -> Self:
        """See `Features`."""
        return replace(self, reference=self.reference + shift)

    def new_sums(self, n_targets: int) -> DenseSums:
        """See `Features`."""
        return DenseSums.zeros(self.dimension, n_targets)

    def values(self, block: Array, coef: Array) -> Array:
        """See `Features`."""
        return blas.product(block, coef)

    def leverages(self, solution: NormalSolution) -> Callable[[Array], Array]:
        """See `Features`."""
        triangle, constant = blas.Triangle(solution.lower, is_shared=True), solution.inverse_of_total()

        def of_block(block: Array) -> Array:
            inner = block - solution.means
            triangle.solve_right(inner)
            return np.asarray(np.einsum("ij,ij->i", inner, inner) + constant)

        return of_block

    def solutions(self, system: NormalSystem, alphas: Array, offset_coef: Array | None = None) -> list[NormalSolution]:
        """See `Features`."""
        found = []
        for alpha in alphas.tolist():
            with in_terms_of_alpha([alpha], "primal", self.scale):
                found.append(system.solution(alpha, offset_coef=offset_coef))
        return found

    def certainty(self, solution: NormalSolution, sizes: Array, *, of_rows: bool) -> list[tuple[float, float]]:  # noqa: ARG002
        """See `Features`."""
        return [(float((solution.rounding() / np.where(sizes > 0, sizes, 1.0)).max()), INACCURATE_ABOVE)]


AnySums = TypeVar("AnySums", bound=Sums)


def sums_of_others(parts: Sequence[AnySums], rest: AnySums) -> Iterator[AnySums]:
    """Sums of the rest and of all parts but one, for one part after the other.

    They are added, half of the parts at a time: the sums of all rows less those of a part have no digits of the others
    where the part has rows or weights that are much larger. Takes the memory of log₂ k sums for k parts.
    """
    if len(parts) < 2:
        yield rest
        return
    half = len(parts) // 2
    for own, others in ((parts[:half], parts[half:]), (parts[half:], parts[:half])):
        total = rest.copy()
        for other in others:
            total.include(other)
        yield from sums_of_others(own, total)


@dataclass(frozen=True)
class ReferredSums:
    """Sums with the references that they are about, which can be merged with those of other rows about others.

    Sums about their means are brought about the common mean: that only adds, as W d dᵀ, so that nothing cancels,
    however far apart the rows are and however many sums are merged.
    """

    sums: Any
    reference: Array
    """c, subtracted from the features, of shape (D,)."""
    target_reference: Array
    """Subtracted from the targets, of shape (t,)."""

    def about_means(self) -> "ReferredSums":
        """Sums about the means of these rows."""
        shift, target_shift = self.sums.means
        return self.about(self.reference + shift, self.target_reference + target_shift)

    def about(self, reference: Array, target_reference: Array) -> "ReferredSums":
        """Sums about other references: by the difference of the rounded ones, so that their rounding does not count."""
        shifts = reference - self.reference, target_reference - self.target_reference
        return ReferredSums(self.sums.about(*shifts), reference, target_reference)

    def merged(self, other: "ReferredSums") -> "ReferredSums":
        """Sums of the rows of both, about their common means; both are about their means, or about 0."""
        share = other.sums.total / (self.sums.total + other.sums.total)
        reference = self.reference + share * (other.reference - self.reference)
        targets = self.target_reference + share * (other.target_reference - self.target_reference)
        found = self.about(reference, targets)
        found.sums.include(other.about(reference, targets).sums)
        return found
