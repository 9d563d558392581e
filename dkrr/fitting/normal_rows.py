"""The rows of a fit in the primal form: cut into segments, one task each, and what passes over them add up to."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkrr.blas import column_sizes
from dkrr.cluster import Task
from dkrr.data import scan
from dkrr.fitting.context import Context
from dkrr.fitting.costs.details import Direct, Iterative
from dkrr.fitting.data import FitData, TrainingData
from dkrr.fitting.direct import MemorySystems, TiledSystems
from dkrr.fitting.reference import checked_sums, reference_of
from dkrr.fitting.sampled import with_stored_arrays
from dkrr.kernels.blocks import mirror_lower
from dkrr.linalg.cholesky import check_diagonal
from dkrr.linalg.factor import DirectSystems
from dkrr.linalg.in_memory_cholesky import InMemoryMatrix
from dkrr.linalg.normal import (
    NormalOperator,
    NormalParts,
    normal_moments,
    normal_part,
    normal_tasks,
    primal_residual,
    squared_values,
    subtract_outer,
    training_errors,
    weighted_squares,
    weighted_sums,
)
from dkrr.linalg.passes import Design, Segment
from dkrr.linalg.sources import FormedTiles, Vectors, tile_diagonal
from dkrr.linalg.square import SquareMatrix
from dkrr.store import ChunkedArray, TileGrid

Array = NDArray[np.float64]

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
        """Weighted means of the features, (D,), with an intercept; None: they are not subtracted (yet).

        While a normal matrix is formed, a reference near them.
        """

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
    """Rows of which the normal matrix is formed.

    Parameters
    ----------
    target_totals : ndarray of shape (t,)
        Weighted sums of the targets less their means, which are 0 but for rounding.
    """

    def __init__(
        self, strategy: Direct, data: TrainingData, context: Context, means: Array | None, target_totals: Array
    ) -> None:
        super().__init__(data, context, strategy.row_block, RIDGE, data.targets, means)
        self._tiling, parts = strategy.tiling, strategy.row_parts
        self._grid, self._target_totals = TileGrid(self.dimension, self._tiling.tile, self._tiling.panel), target_totals
        if self._context.in_memory:
            self._cut = self._spread = self.segments(parts, by_blocks=False)
        else:
            self._cut, self._spread = self.segments(parts), self.segments(2 * self._context.slots)
        self._stored_reference: ChunkedArray | None = None
        if self._is_centred:
            with context.progress.measured("normal matrix"):
                self.centre = self._reference(replace(data, rows=self._rows))

    def _reference(self, data: TrainingData) -> Array:
        """Point near the means of the features that sums are about, of shape (D,); kept where tasks find it."""
        features = Design(self.phi).features
        if self._context.in_memory:
            return reference_of(data, features)
        self._stored_reference = stored = self._context.stored.vectors(self._group, "reference", self._grid, 1)
        if len(stored.present()) < self._grid.n_tiles:
            stored.fill(reference_of(data, features)[:, None])
        return stored.load()[:, 0]

    def systems(self) -> tuple[DirectSystems, Array]:
        """ΦᵀWΦ as a direct solver takes it, and the moments ΦᵀWy, of shape (D, t)."""
        context, grid = self._context, self._grid
        if context.in_memory:
            (matrix, moments), *rest = self._each("normal matrix", normal_part, self._cut, grid)
            while rest:
                one, other = rest.pop(0)
                matrix.add(one)
                moments += other
            if self._is_centred:
                moments, outer = self._centred(moments)
                subtract_outer(matrix, outer)
            for i in range(grid.n_tiles):
                mirror_lower(matrix.tile_buffer(i, i))
            if grid.n_tiles == 1:
                return SquareMatrix(matrix.tile_buffer(0, 0), context.progress), moments
            whole = InMemoryMatrix(matrix)
            return MemorySystems(whole, grid, whole.diagonal, context), moments
        storage, width = context.stored, self._targets.shape[1] + self._is_centred
        parts = NormalParts(
            segments=self._cut,
            matrices=tuple(storage.matrix(self._group, f"part-{k}", grid) for k in range(len(self._cut))),
            moments=tuple(storage.vectors(self._group, f"moments-{k}", grid, width) for k in range(len(self._cut))),
            reference=self._stored_reference,
        )
        context.run_tasks("normal matrix", normal_tasks(self.phi, parts))
        moments, subtracted = np.sum([m.load() for m in parts.moments], axis=0), None
        if self._is_centred:
            moments, outer = self._centred(moments)
            subtracted = storage.vectors(self._group, "outer", grid, 1, outer)
        source = FormedTiles(parts.matrices, subtracted)
        tasks = [
            Task(f"diagonal-{i}", tile_diagonal, (source, grid, i), flops=grid.height(i)) for i in range(grid.n_tiles)
        ]
        values = context.run_tasks("diagonal", tasks)
        diagonal = np.concatenate([values[t.key] for t in tasks])
        at_once = self._tiling.columns_per_task
        return TiledSystems(source, grid, at_once, diagonal, context), moments

    def _centred(self, moments: Array) -> tuple[Array, Array]:
        """Moments of the centred features, (D, t), from those of a pass, and v, (D,); `centre` becomes their means.

        With s = ΦᵀW1 of features about the reference, v = s / √W: the normal matrix of centred ones has v vᵀ less.
        """
        assert self.centre is not None
        sums, total = checked_sums(moments[:, -1]), self.total_weight
        self.centre = self.centre + sums / total
        return moments[:, :-1] - np.outer(sums, self._target_totals / total), sums / np.sqrt(total)

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
