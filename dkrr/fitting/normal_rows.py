"""The rows of a fit in the primal form: cut into segments, one task each, and what passes over them add up to.

ΦᵀWΦ, ΦᵀWy and yᵀWy of parts of the rows are summed in the memory of the calling process, for folds and for leverages.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol, Self, TypeVar

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from dkrr import blas
from dkrr.cluster import Task
from dkrr.data import scan
from dkrr.data.rows import check_finite
from dkrr.errors import NotPositiveDefiniteError
from dkrr.fitting.context import Context
from dkrr.fitting.data import FitData, TrainingData
from dkrr.fitting.direct import DirectSystems, MemorySystems, TiledSystems
from dkrr.fitting.sampled import with_stored_arrays
from dkrr.kernels.blocks import mirror_lower
from dkrr.linalg.cholesky import check_diagonal
from dkrr.linalg.in_memory_cholesky import InMemoryMatrix
from dkrr.linalg.normal import (
    NormalOperator,
    NormalParts,
    feature_sums,
    normal_moments,
    normal_part,
    normal_tasks,
    primal_residual,
    squared_values,
    training_errors,
    weighted_squares,
    weighted_sums,
)
from dkrr.linalg.passes import Design, Segment, strip_rows
from dkrr.linalg.products import column_norms, column_sizes
from dkrr.linalg.refinement import in_terms_of_alpha
from dkrr.linalg.sources import SummedTiles, Vectors, tile_diagonal
from dkrr.planning.strategy import Direct, Iterative
from dkrr.store import ChunkedArray, TileGrid

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


RIDGE = "normal"
"""Name of the targets and weights of a ridge regression in the storage."""


class NormalRows:
    """Features Φ of the training rows with weights and targets, as passes over segments of the rows see them.

    Parameters
    ----------
    block : int
        Rows that are read at once.
    group : str
        Name of the targets and weights in the storage.
    targets : ndarray of shape (n, t)
        Targets, or class codes.
    means : ndarray of shape (t,), optional
        Means that are subtracted from the targets where they are used.
    """

    def __init__(
        self,
        data: FitData,
        context: Context,
        block: int,
        group: str,
        targets: Array,
        means: Array | None = None,
    ) -> None:
        assert data.feature_map is not None
        self._context, self._group, self._block = context, group, block
        self._rows = context.streamed_rows(data, block)
        self.phi = with_stored_arrays(data.feature_map, context)
        self.n, self.dimension = data.n, self.phi.dimension(self._rows.shape[1])
        self._by_rows = TileGrid(self.n, block, block)
        kept = context.storage.vectors
        with context.progress.measured("targets"):
            self._targets = kept(group, "targets", self._by_rows, targets.shape[1], targets)
            self._weights = None if data.weights is None else kept(group, "weights", self._by_rows, 1, data.weights)
        self._means, self.total_weight = means, float(self.n if data.weights is None else data.weights.sum())
        self._is_centred = data.fit_intercept
        self.centre: Array | None = None
        """Weighted means of the features, (D,), with a free intercept; None: they are not subtracted (yet)."""

    @property
    def design(self) -> Design:
        """Φ as the passes see it."""
        return Design(self.phi, self.centre)

    def check(self) -> None:
        """Refuse NaN and infinity in rows that have not been checked, where the passes do not look for them."""
        if self._context.in_memory:
            with self._context.progress.measured("checking X"):
                scan(self._rows, "X", self._context.meter)

    def segments(self, count: int, *, by_blocks: bool = True) -> tuple[Segment, ...]:
        """Cut the rows into this many segments or fewer.

        Parameters
        ----------
        count : int
        by_blocks : bool
            Cut between the blocks in which rows are read and stored.
        """
        unit = self._block if by_blocks else 1
        n_units = -(-self.n // unit)
        parts = min(count, n_units)
        cuts = [min(self.n, round(k * n_units / parts) * unit) for k in range(parts + 1)]
        return tuple(
            Segment(self._rows, a, b, self._block, self._targets, self._weights, self._means)
            for a, b in pairwise(cuts)
            if b > a
        )

    def _each(
        self, stage: str, function: Callable[..., Any], segments: Sequence[Segment], *arguments: Any
    ) -> list[Any]:
        """Values of a task function for every segment."""
        tasks = [
            Task(f"{function.__name__}-{k}", function, (self.design, s, *arguments), flops=s.stop - s.start)
            for k, s in enumerate(segments)
        ]
        values = self._context.run_tasks(stage, tasks)
        return [values[t.key] for t in tasks]

    def new_errors(self, empty: Callable[[], Array], name: str = "errors") -> Vectors:
        """Vectors for the training errors, of the targets' shape; `empty` makes such an array in memory."""
        if self._context.in_memory:
            return empty()
        return self._context.storage.vectors(self._group, name, self._by_rows, self._targets.shape[1])

    def loaded_errors(self, errors: Vectors, empty: Callable[[], Array]) -> Array:
        """Errors in memory; what is stored of them is deleted."""
        if isinstance(errors, np.ndarray):
            return errors
        found: Array = errors.load(empty())
        for name in ("errors", "refined"):
            self._context.storage.delete(f"{self._group}/{name}")
        return found


class FormedRows(NormalRows):
    """Rows of which the normal matrix is formed."""

    def __init__(self, strategy: Direct, data: TrainingData, context: Context, means: Array | None) -> None:
        super().__init__(data, context, strategy.row_block, RIDGE, data.targets, means)
        self._tiling, parts, self._keeps_factors = strategy.tiling, strategy.row_parts, strategy.keeps_factors
        self._grid = TileGrid(self.dimension, self._tiling.tile, self._tiling.panel)
        if self._context.in_memory:
            self._cut = self._spread = self.segments(parts, by_blocks=False)
        else:
            self._cut, self._spread = self.segments(parts), self.segments(2 * self._context.slots)
        self._stored_centre: ChunkedArray | None = None
        if self._is_centred:
            self.centre = self._feature_means()

    def _feature_means(self) -> Array:
        """Weighted means of the features, of shape (D,); kept where tasks find them."""
        if not self._context.in_memory:
            self._stored_centre = stored = self._context.stored.vectors(self._group, "centre", self._grid, 1)
            if len(stored.present()) == self._grid.n_tiles:  # of an earlier run, which rounded in its own order
                return stored.load()[:, 0]
        means = np.sum(self._each("feature means", feature_sums, self._spread), axis=0) / self.total_weight
        if self._stored_centre is not None:
            self._stored_centre.fill(means[:, None])
        return np.asarray(means)

    def systems(self) -> tuple[DirectSystems, Array]:
        """ΦᵀWΦ as a direct solver takes it, and the moments ΦᵀWy, of shape (D, t)."""
        context, grid = self._context, self._grid
        if context.in_memory:
            (matrix, moments), *rest = self._each("normal matrix", normal_part, self._cut, grid)
            while rest:
                one, other = rest.pop(0)
                matrix.add(one)
                moments += other
            for i in range(grid.n_tiles):
                mirror_lower(matrix.tile_buffer(i, i))
            return MemorySystems.kept(InMemoryMatrix(matrix), context, keeps_factors=self._keeps_factors), moments
        storage, width = context.stored, self._targets.shape[1]
        parts = NormalParts(
            segments=self._cut,
            matrices=tuple(storage.matrix(self._group, f"part-{k}", grid) for k in range(len(self._cut))),
            moments=tuple(storage.vectors(self._group, f"moments-{k}", grid, width) for k in range(len(self._cut))),
            centre=self._stored_centre,
        )
        context.run_tasks("normal matrix", normal_tasks(self.phi, parts))
        moments = np.sum([m.load() for m in parts.moments], axis=0)
        source = SummedTiles(parts.matrices)
        tasks = [
            Task(f"diagonal-{i}", tile_diagonal, (source, grid, i), flops=grid.height(i)) for i in range(grid.n_tiles)
        ]
        values = context.run_tasks("diagonal", tasks)
        diagonal = np.concatenate([values[t.key] for t in tasks])
        at_once = self._tiling.columns_per_task
        return TiledSystems(source, grid, at_once, diagonal, context, self._keeps_factors), moments

    def residuals(self, coef: Array, errors: Vectors) -> tuple[Array, Array]:
        """Write the training errors y − Φw to `errors`.

        Parameters
        ----------
        coef : ndarray of shape (D, m)
            w; columns beyond the targets have targets of 0.
        errors : ndarray or ChunkedArray of shape (n, t)

        Returns
        -------
        gradient : ndarray of shape (D, m)
            ΦᵀW(y − Φw).
        totals : ndarray of shape (m,)
            Weighted sums of the errors.
        """
        sums = np.asarray(sum(self._each("training errors", primal_residual, self._spread, coef, errors)))
        return sums[:-1], sums[-1]


class StreamedRows(NormalRows):
    """Rows that products with the normal matrix pass over again and again."""

    def __init__(self, strategy: Iterative, data: TrainingData, context: Context, means: Array | None) -> None:
        super().__init__(data, context, strategy.row_passes.row_block, RIDGE, data.targets, means)
        self.check()
        self._cut = self.segments(2 * self._context.slots)
        if self._is_centred:
            self.centre = self._total(weighted_sums, None)[:, 0] / self.total_weight

    def _total(self, function: Callable[..., Any], shared: Any) -> Array:
        """Sum of a task function over the segments."""
        tasks = [Task(f"{function.__name__}-{k}", function, (self.design, s)) for k, s in enumerate(self._cut)]
        return self._context.total(tasks, shared)

    def moments(self) -> Array:
        """ΦᵀWy, of shape (D, t)."""
        return self._total(normal_moments, None)

    def diagonal(self) -> Array | None:
        """Diagonal of ΦᵀWΦ, of shape (D,); None where sparse rows would have to become dense for it."""
        if self._rows.is_sparse and not self.phi.is_identity:
            return None
        diagonal = self._total(weighted_squares, None)[:, 0]
        check_diagonal(diagonal)
        if self.centre is not None:
            diagonal = np.maximum(diagonal - self.total_weight * self.centre**2, 0.0)
        return diagonal

    def operator(self) -> NormalOperator:
        """ΦᵀWΦ, to be multiplied."""
        context = self._context
        return NormalOperator(self.design, self._cut, context.executor, self.dimension, record=context.record)

    def subtract(self, known: Vectors | None, coef: Array, errors: Vectors) -> tuple[Array, Array, Array]:
        """Write the errors E − Φc to `errors`; see `training_errors`.

        Returns
        -------
        gradient : ndarray of shape (D, t)
            ΦᵀW(E − Φc).
        totals : ndarray of shape (t,)
            Weighted sums of the errors.
        sizes : ndarray of shape (2, t)
            ‖√W e‖ and ‖W e‖.
        """
        tasks = [Task(f"errors-{k}", training_errors, (self.design, s, known, errors)) for k, s in enumerate(self._cut)]
        sums = self._context.total(tasks, coef)
        return sums[:-3], sums[-3], np.sqrt(sums[-2:])

    def value_norms(self, vectors: Array) -> Array:
        """Norms of Φv over the rows, weighted and over the rows of positive weight; of shape (2, m)."""
        sizes = column_sizes(vectors)
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray(np.sqrt(self._total(squared_values, vectors / sizes)) * sizes)
