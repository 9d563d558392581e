"""Sums over parts of the rows of a fit in the primal form, ΦᵀWΦ, ΦᵀWy and yᵀWy, in the calling process.

Folds and leverages are made of these.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeVar

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from dkrr import blas
from dkrr.data.rows import check_finite
from dkrr.errors import NotPositiveDefiniteError
from dkrr.fitting.data import TrainingData
from dkrr.linalg.passes import Design, strip_rows
from dkrr.linalg.products import column_norms
from dkrr.linalg.result import in_terms_of_alpha

Array = NDArray[np.float64]

LEAST_LEFT = 0.1
"""Part of a sum of squares that must be left for it to be a difference: of its digits at most one is then lost."""
LEAST_IN_PIVOT = 1e-8
"""Fraction of a feature's square that is left in its pivot, below which features are centred about their own means."""
MIN_ONE_MINUS_LEVERAGE = 1e-3
"""1 − leverage of a row below which its error follows from the other rows: at most one row per feature."""


@dataclass(frozen=True)
class NormalSums:
    """ΦᵀWΦ, ΦᵀWy and yᵀWy of some rows."""

    gram: Array
    """Lower triangle, of shape (p, p)."""
    right_sides: Array
    """Of shape (p, t)."""
    squares: Array
    """Σ w y² of every target, of shape (t,)."""

    @classmethod
    def zeros(cls, p: int, t: int) -> "NormalSums":
        """Sums of no rows."""
        return cls(np.zeros((p, p)), np.zeros((p, t)), np.zeros(t))

    def add(self, features: Array, targets: Array, weights: Array | None) -> None:
        """Add rows."""
        if not len(features):
            return
        if weights is not None:
            root = np.sqrt(weights)[:, None]
            features, targets = features * root, targets * root
        blas.syrk(self.gram, features, transpose=True, beta=1.0)
        blas.gemm(self.right_sides, features, np.ascontiguousarray(targets), transpose_a=True, beta=1.0)
        self.squares[...] += np.einsum("ij,ij->j", targets, targets)

    def solved(self, alpha: float, n_penalised: int, about: Array | None = None) -> tuple[Array, Array]:
        """Lower Cholesky factor of ΦᵀWΦ + λI, with λ on the first features only, and the coefficients, (p, t).

        Parameters
        ----------
        alpha : float
            λ.
        n_penalised : int
        about : ndarray of shape (p, t), optional
            Coefficients whose predictions the targets are already without; then those that come to them.

        Raises
        ------
        NotPositiveDefiniteError
            If the matrix is not positive definite.
        """
        factor, coef = self.gram.copy(), self.right_sides.copy()
        if about is not None:
            coef[:n_penalised] -= alpha * about[:n_penalised]
        factor[np.arange(n_penalised), np.arange(n_penalised)] += alpha
        failed = blas.cholesky_in_place(factor)
        if failed:
            raise NotPositiveDefiniteError("the normal matrix is not positive definite", failed - 1)
        blas.solve_lower(factor, coef)
        blas.solve_lower(factor, coef, transpose=True)
        return factor, coef

    def has_lost_digits(self, alpha: float, factor: Array, n_penalised: int) -> bool:
        """Whether so little of a diagonal entry is left in its pivot that features must be centred separately.

        Coefficients may be off by ε over the fraction that is left.
        """
        whole = self.gram.diagonal().copy()
        whole[:n_penalised] += alpha
        return float(np.min(factor.diagonal() ** 2 / whole, initial=1.0)) < LEAST_IN_PIVOT

    def rounding(self, alpha: float, factor: Array, coef: Array, n_penalised: int) -> Array:
        """What rounding in the factor may change in weighted predictions, of shape (t,).

        With A + λI = D S D, S of a unit diagonal, it changes the matrix by ε of D², and so w by (A + λI)⁻¹ times that:
        ε √κ(S) ‖D w‖ in predictions. 1/κ(S) is about the smallest fraction of a diagonal entry that is left in its
        pivot.
        """
        whole = self.gram.diagonal().copy()
        whole[:n_penalised] += alpha
        least = float(np.min(factor.diagonal() ** 2 / whole, initial=1.0))
        return np.asarray(np.finfo(float).eps * column_norms(np.sqrt(whole)[:, None] * coef) / np.sqrt(least))

    def without(self, other: "NormalSums") -> "NormalSums | None":
        """Sums of the rows that are not among the others; None where the others are most, and digits would be lost."""
        parts = (self.gram.diagonal(), other.gram.diagonal()), (self.squares, other.squares)
        if any((whole - part < LEAST_LEFT * whole).any() for whole, part in parts):
            return None
        return NormalSums(self.gram - other.gram, self.right_sides - other.right_sides, self.squares - other.squares)

    def with_rows_of(self, others: "Sequence[NormalSums]") -> Self:
        """Sums of these and of other rows."""
        found = type(self)(self.gram.copy(), self.right_sides.copy(), self.squares.copy())
        for other in others:
            found.include(other)
        return found

    def include(self, other: "NormalSums") -> None:
        """Add the sums of other rows."""
        self.gram[...] += other.gram
        self.right_sides[...] += other.right_sides
        self.squares[...] += other.squares


class Addable(Protocol):
    """Sums of some rows."""

    def with_rows_of(self, others: Any) -> Self:
        """Sums of these and of other rows."""


Sums = TypeVar("Sums", bound=Addable)


def sums_of_others(parts: Sequence[Sums], rest: Sums) -> Iterator[Sums]:
    """Sums of the rest and of all parts but one, for one part after the other.

    They are added, half of the parts at a time: the sums of all rows less those of a part have no digits of the others
    where the part has rows or weights that are much larger. Takes the memory of log₂ k sums for k parts.
    """
    if len(parts) < 2:
        yield rest
        return
    half = len(parts) // 2
    for own, others in ((parts[:half], parts[half:]), (parts[half:], parts[:half])):
        yield from sums_of_others(own, rest.with_rows_of(others))


MapSegments = Callable[[str, Callable[[int, int], Any]], list[Any]]
"""Gives, for a stage, the values of a function of the first row and the last but one, for segments of the rows."""


def weighted_means(data: TrainingData, rows: NDArray[np.intp], each: MapSegments, about: Array | None = None) -> Array:
    """Weighted means of features and targets over some rows, of shape (p + t,); see `centred_sums`."""

    def totals(start: int, stop: int) -> Any:
        return sum(
            weights @ np.hstack([features, targets])
            for features, targets, weights in _chosen_blocks(data, rows, about, start, stop)
        )

    means = np.asarray(sum(each("means", totals)))
    return np.asarray(means / means[len(means) - data.targets.shape[1] - 1])  # the feature of the constant is 1


def centred_sums(
    data: TrainingData, rows: NDArray[np.intp], each: MapSegments, about: Array | None = None
) -> tuple[NormalSums, Array]:
    """Sums of features and targets without their weighted means over some rows, and these, (p + t,).

    Where these rows are far from the origin, or one weight exceeds all others, the free constant takes nearly all of
    each feature, and digits with it. Costs two passes over the rows.

    Parameters
    ----------
    data : TrainingData
        With a free constant, which is the last feature.
    rows : ndarray of shape (m,)
        In ascending order.
    each : callable
    about : ndarray of shape (p, t), optional
        Coefficients whose predictions the targets are to be without.
    """
    means, t = weighted_means(data, rows, each, about), data.targets.shape[1]
    last = len(means) - t - 1

    def centred(start: int, stop: int) -> NormalSums:
        found = NormalSums.zeros(last + 1, t)
        for features, targets, weights in _chosen_blocks(data, rows, about, start, stop):
            features[:, :last] -= means[:last]
            found.add(features, targets - means[last + 1 :], weights)
        return found

    sums, *others = each("normal matrix", centred)
    return sums.with_rows_of(others), means


def _chosen_blocks(
    data: TrainingData, rows: NDArray[np.intp], about: Array | None, start: int, stop: int
) -> Iterator[tuple[Array, Array, Array]]:
    """Features, targets without the predictions of `about`, and weights of some rows, a block at a time."""
    for where, features in feature_blocks(data, start, stop):
        here = rows_in_block(rows, where)[1]
        targets, weights = data.targets[where], np.ones(len(features)) if data.weights is None else data.weights[where]
        if about is not None:
            targets = targets - blas.product(features, about)
        yield features[here], targets[here], weights[here]


def loo_errors_high_leverage(
    data: TrainingData, means: Array, numbers: NDArray[np.intp], alphas: Sequence[float], n_penalised: int
) -> Array:
    """Errors of a few rows, each by the model of all other rows, for every λ; of shape (n_alphas, m, t).

    With B the matrix of the rows outside, U = L⁻¹Φᵀ√W of the rows inside, B = L Lᵀ, and r their scaled errors by B's
    solution, the scaled error of row i is cᵢ / [(UᵀU + I)⁻¹]ᵢᵢ for c = (UᵀU + I)⁻¹r: neither term cancels for a row
    that dominates, where 1 − its leverage does.

    Parameters
    ----------
    data : TrainingData
    means : ndarray of shape (t,)
        Subtracted from the targets.
    numbers : ndarray of shape (m,)
        Rows of positive weight.
    alphas : sequence of float
    n_penalised : int
        Features that λ is for.

    Raises
    ------
    NotPositiveDefiniteError
        If the matrix of the other rows is not positive definite; the message names λ.
    """
    counting = data.n if data.weights is None else np.count_nonzero(data.weights)
    # A free constant needs a row outside.
    cuts = [1] if data.fit_intercept and len(numbers) == counting else []
    return np.concatenate([_by_others(data, means, part, alphas, n_penalised) for part in np.split(numbers, cuts)], 1)


def _by_others(
    data: TrainingData, means: Array, numbers: NDArray[np.intp], alphas: Sequence[float], n_penalised: int
) -> Array:
    is_inside, t = np.zeros(data.n, bool), len(means)
    is_inside[numbers] = True
    rest = NormalSums.zeros(n_penalised + data.fit_intercept, t)
    for where, features in feature_blocks(data):
        here = np.flatnonzero(~is_inside[where])
        weights = None if data.weights is None else data.weights[where][here]
        rest.add(features[here], data.targets[where][here] - means, weights)
    roots = np.ones(len(numbers)) if data.weights is None else np.sqrt(data.weights[numbers])
    features = features_of(data, data.rows.take(numbers)) * roots[:, None]
    targets, found = (data.targets[numbers] - means) * roots[:, None], np.empty((len(alphas), len(numbers), t))
    for a, alpha in enumerate(alphas):
        with in_terms_of_alpha([alpha], "primal"):
            factor, coef = rest.solved(alpha, n_penalised)
        inner = features.copy()
        blas.solve_lower_right(factor, inner)
        found[a] = loo_errors(inner, targets - features @ coef, roots)
    return found


def loo_errors(inner: Array, errors: Array, roots: Array) -> Array:
    """Errors of rows by the model of all rows but each of them, of shape (m, t).

    Parameters
    ----------
    inner : ndarray of shape (m, p)
        Uᵀ.
    errors : ndarray of shape (m, t)
        Scaled errors by the model of the rows outside.
    roots : ndarray of shape (m,)
        Roots of their weights.
    """
    unit = np.eye(len(inner))
    inverse = scipy.linalg.solve_triangular(np.linalg.cholesky(inner @ inner.T + unit), unit, lower=True)
    return np.asarray(inverse.T @ (inverse @ errors) / (np.einsum("ij,ij->j", inverse, inverse) * roots)[:, None])


def features_of(data: TrainingData, x: Any) -> Array:
    """Features of some rows, and a column of ones with a free constant; to be read only."""
    assert data.feature_map is not None
    return np.ascontiguousarray(Design(data.feature_map, has_constant=data.fit_intercept).features(x), np.float64)


def rows_in_block(rows: NDArray[np.intp], where: slice) -> tuple[slice, NDArray[np.intp] | slice]:
    """Which of some rows, in ascending order, lie in a block, and where there: a slice if they follow each other."""
    first, stop = (int(k) for k in np.searchsorted(rows, (where.start, where.stop)))
    here = rows[first:stop]
    if len(here) and here[-1] - here[0] + 1 == len(here):
        begin = int(here[0]) - where.start
        return slice(first, stop), slice(begin, begin + len(here))
    return slice(first, stop), here - where.start


def feature_blocks(data: TrainingData, start: int = 0, stop: int | None = None) -> Iterator[tuple[slice, Array]]:
    """Features of the rows start ... stop − 1 (of all from `start` on), a block at a time; see `features_of`.

    Raises
    ------
    InputError
        If the rows hold NaN or infinity.
    """
    assert data.feature_map is not None
    n, d = data.rows.shape
    height = strip_rows(max(data.feature_map.dimension(d) + 1, d) + data.targets.shape[1])
    for where, x in data.rows.even_blocks(start, n if stop is None else stop, height):
        check_finite(x, "X", where.start)
        # The order of numbers in memory decides last digits, and is not that of a copy.
        yield where, features_of(data, np.ascontiguousarray(x) if isinstance(x, np.ndarray) else x)
