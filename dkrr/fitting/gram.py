"""The Gram matrix of a fit: multiplied, or factored in float64 or in float32, in memory or in a store.

Where factors are and how they solve is for `linalg.factor` and `fitting.direct`; here is what is factored, and in
which precision.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from math import ceil

import numpy as np
from numpy.typing import NDArray

from dkrr.blas import column_norms
from dkrr.cluster import Executor
from dkrr.data import Rows
from dkrr.data.rows import dense
from dkrr.errors import Float32BreakdownError, NotPositiveDefiniteError, WrongStoreError
from dkrr.fitting.context import Context
from dkrr.fitting.costs.details import Direct, Float32Factor, Iterative
from dkrr.fitting.data import FitData
from dkrr.fitting.direct import MemorySystems, TiledSystems, TileSystems, tile_threads, without_left_out
from dkrr.fitting.kept_preconditioner import KeptPreconditioner
from dkrr.fitting.sampled import with_stored_arrays
from dkrr.kernels import Kernel
from dkrr.linalg.column_sources import ColumnSource, GramColumns, MatrixColumns
from dkrr.linalg.cross_gram_products import BLOCK_ROWS, CrossGram, cross_gram
from dkrr.linalg.device_products import DeviceExecutor
from dkrr.linalg.factor import DirectSystems, Factor, ScaledFactor
from dkrr.linalg.float32_tiles import (
    MAX_ROUNDING_RATIO,
    RoundedTiles,
    least_relative_shift,
    rounding_ratio,
    rounding_scale,
)
from dkrr.linalg.gram_products import Operator, Precision, TiledOperator
from dkrr.linalg.in_memory_cholesky import InMemoryMatrix
from dkrr.linalg.pivoted_cholesky import PivotedCholesky
from dkrr.linalg.preconditioners import GROWTH
from dkrr.linalg.solver_settings import RPCholesky
from dkrr.linalg.sources import (
    GramTiles,
    MatrixTiles,
    ResidentRows,
    TileSource,
    located,
    refuse_asymmetry,
    symmetry_tasks,
)
from dkrr.linalg.square import SquareMatrix
from dkrr.planning.tile_sizes import Tiling
from dkrr.store import TileGrid
from dkrr.text import plural

Array = NDArray[np.float64]

SYMMETRY_TILE = 512
"""Rows of the blocks in which a Gram matrix in memory is compared with its mirror image."""

RESIDUAL_TILE = 2048
"""Most rows of the tiles that are formed to check a solution."""
PRODUCT_ENTRIES = 2**22
"""Entries of a precomputed K that are in memory at once for some rows of a product."""


class GramMatrix(ABC):
    """diag(c) K diag(c) of the training rows.

    Raises
    ------
    InputError
        If the rows hold NaN or infinity, or a precomputed matrix is not symmetric.
    StoreError
        If the store belongs to another problem.
    """

    def __init__(
        self, data: FitData, context: Context, tiling: Tiling, scale: Array | None, *, keeps_rows: bool = False
    ) -> None:
        kernel, tile = data.kernel, tiling.tile
        self._tiling, self._scale, self._context = tiling, scale, context
        self._rows = context.whole_rows(data, tiling.panel, stay=keeps_rows and not kernel.is_precomputed)
        self.n = self._rows.shape[0]
        self._kernel = kernel if kernel.is_plain else with_stored_arrays(kernel, context)
        self._tiles: Callable[..., TileSource]
        self._columns: ColumnSource
        if kernel.is_precomputed:
            side = min(tile, SYMMETRY_TILE) if self._rows.is_in_memory else tile
            tasks = symmetry_tasks(self._rows, TileGrid(self.n, side, side))
            refuse_asymmetry(list(context.run_tasks("checking symmetry", tasks).values()))
            self._tiles = partial(MatrixTiles, self._rows)
            self._columns = MatrixColumns(self._rows)
        else:
            self._tiles = partial(GramTiles, self._kernel, self._rows)
            self._columns = GramColumns(self._kernel, self._rows)

    @cached_property
    def _grid(self) -> TileGrid:
        return TileGrid(self.n, self._tiling.tile, self._tiling.panel)

    @property
    def rows(self) -> Rows:
        """The training rows, readable after the fit."""
        return self._rows.rows if isinstance(self._rows, ResidentRows) else self._rows

    def diagonal(self) -> Array:
        """Diagonal of K, of shape (n,)."""
        return gram_diagonal(self._kernel, self.rows)

    @property
    def _cross(self) -> CrossGram:
        executor = self._context.executor
        if isinstance(executor, DeviceExecutor):
            return executor.cross_gram(self._kernel, self._rows)
        return cross_gram(self._kernel, self._rows)

    def products_of(self, index: NDArray[np.intp], coef: Array) -> Array:
        """Rows K[S, :] V of a product of the matrix without c, in the calling process.

        Parameters
        ----------
        index : ndarray of shape (k,)
            S.
        coef : ndarray of shape (n, t)
            V.

        Returns
        -------
        ndarray of shape (k, t)
        """
        cross, total = self._cross, np.empty((len(index), coef.shape[1]))
        for here in self._blocks_of(index):
            total[here] = cross.times(self._rows.take(index[here]), coef)
        return total

    def _blocks_of(self, index: NDArray[np.intp]) -> Iterator[slice]:
        """Cut numbers of rows into blocks; those of a precomputed matrix have PRODUCT_ENTRIES entries."""
        height = max(1, PRODUCT_ENTRIES // self.n) if self._kernel.is_precomputed else BLOCK_ROWS
        return (slice(start, start + height) for start in range(0, len(index), height))

    def spanned(self, index: NDArray[np.intp], coef: Array) -> Array:
        """Product K[:, S] V of some columns of the matrix without c, in float64 in threads of the calling process.

        Parameters
        ----------
        index : ndarray of shape (k,)
            S.
        coef : ndarray of shape (k, t)
            V.

        Returns
        -------
        ndarray of shape (n, t)
        """
        cross, total = self._cross, np.zeros((self.n, coef.shape[1]))
        for here in self._blocks_of(index):
            total += cross.adjoint_times(self._rows.take(index[here]), coef[here], self._context.threads)
        return total

    @abstractmethod
    def operator(self) -> Operator:
        """Matrix to multiply vectors by."""

    def _scaled_tiles(self, scale: Array | None, name: str = "scale") -> TileSource:
        """Tiles of diag(c) K diag(c), with the name of c in the storage."""
        if scale is None:
            return self._tiles()
        return self._tiles(self._context.storage.vectors("weights", name, self._grid, 1, scale))

    @cached_property
    def scaled_diagonal(self) -> Array:
        """Diagonal of diag(c) K diag(c), of shape (n,)."""
        return self._scaled_diagonal(self._scale)

    @property
    def largest(self) -> float:
        """Size of the largest entry of that diagonal."""
        return float(np.abs(self.scaled_diagonal).max())

    def _scaled_diagonal(self, scale: Array | None) -> Array:
        return self.diagonal() if scale is None else self.diagonal() * scale**2

    def _operator(
        self, source: TileSource, kept_tiles: int = 0, precision: Precision = "float64", tile: int | None = None
    ) -> TiledOperator:
        """Matrix that is multiplied tile by tile, some of which stay in memory."""
        context, tile = self._context, self._grid.tile if tile is None else tile
        return TiledOperator(
            source=source,
            grid=TileGrid(self.n, tile, tile),
            executor=context.executor,
            run=context.run,
            slots=context.slots,
            slots_per_process=context.slots_per_process,
            kept_tiles=kept_tiles,
            keeps=precision,
            scale=self._scale,
            record=context.record,
        )


class FactoredGram(GramMatrix):
    """Gram matrix with complete factors of the matrix + diag(s), for one s after another, where the plan has them."""

    def __init__(
        self, data: FitData, strategy: Direct | Float32Factor, context: Context, scale: Array | None = None
    ) -> None:
        super().__init__(data, context, strategy.tiling, scale, keeps_rows=strategy.keeps_rows)
        self._keeps_matrix, kept = strategy.keeps_matrix, context.kept
        self._factored_scale = scale if kept is None else kept.extended(scale, self.n)
        """c of what is factored, with rows that an earlier factor has and that are left out now."""
        self._products_tile: int | None = None
        """Rows of the tiles that products form; None: those of the factor."""

    @cached_property
    def _grid(self) -> TileGrid:
        kept, tiling = self._context.kept, self._tiling
        if kept is not None and self._context.in_memory:
            return TileGrid(self.n, kept.tile, kept.tile)
        return TileGrid(self.n, tiling.tile, tiling.panel)

    @cached_property
    def systems(self) -> DirectSystems:
        """The matrix as a direct solver takes it."""
        context = self._context
        if context.in_memory and context.kept is None and self._tiling.tile >= self.n:
            return SquareMatrix.of_kernel(self._kernel, self._rows, self._scale, context.progress)
        return self._in_tiles()

    def _in_tiles(self) -> TileSystems:
        context, grid, source = self._context, self._grid, self._scaled_tiles(self._scale)
        factored = source
        if self._factored_scale is not self._scale:
            factored = self._scaled_tiles(self._factored_scale, "factored-scale")
        if not context.in_memory:
            columns = self._tiling.columns_per_task
            return TiledSystems(source, grid, columns, self.scaled_diagonal, context, factored)
        if not self._keeps_matrix:
            return MemorySystems(source, grid, self.scaled_diagonal, context, factored)
        with context.progress.stage("Gram matrix", 1.0), tile_threads(grid, context.threads) as executor:
            whole = self._in_memory(factored, grid, executor)
            return MemorySystems(whole, grid, whole.diagonal, context)

    def _in_memory(self, source: TileSource, grid: TileGrid, executor: Executor) -> InMemoryMatrix:
        """The matrix in memory; what an earlier call has formed of it is kept."""
        progress, kept = self._context.progress, self._context.kept
        if kept is None or kept.matrix is None:
            whole = InMemoryMatrix.of_source(source, grid, executor, progress)
        elif kept.n < self.n:
            whole = kept.matrix.grown(source, grid, executor, progress)
        else:
            whole = kept.matrix
        return whole if kept is None else whole.leaving_out(kept.left_out)

    @property
    def in_memory(self) -> InMemoryMatrix | None:
        """The matrix where its tiles stay in memory beside its factors."""
        source = getattr(self.systems, "source", None)
        return source if isinstance(source, InMemoryMatrix) else None

    def operator(self) -> Operator:
        systems, in_memory = self.systems, self.in_memory
        if isinstance(systems, SquareMatrix):
            return systems
        return in_memory if in_memory is not None else self._operator(self._tiles(), tile=self._products_tile)

    def factors(
        self,
        groups: Sequence[str],
        shifts: Array,
        family: str,  # noqa: ARG002
        details: Sequence[str],
    ) -> list[Factor]:
        """Factor the matrix + diag(s) for every column of shifts.

        Parameters
        ----------
        groups : sequence of str
            Places in the storage.
        shifts : ndarray of shape (n, k)
        family : str
            Name of the factors that are all in float64 once float32 does not hold one of them.
        details : sequence of str
            Which of several factors these are, for the display of the progress.
        """
        each = zip(groups, np.ascontiguousarray(shifts.T), details, strict=True)
        return [self.systems.factor(group, shift, detail) for group, shift, detail in each]

    def residual(self, shift: Array, right_sides: Array, solution: Array) -> float:
        """Largest true relative residual ‖B − (A + diag(s)) X‖ / ‖B‖ of a column, A the matrix with c."""
        tile = min(self._grid.tile, RESIDUAL_TILE)
        product = self._operator(self._tiles(), tile=tile).multiply(solution) + shift[:, None] * solution
        norms = column_norms(right_sides)
        return float((column_norms(right_sides - product) / np.where(norms > 0, norms, 1.0)).max())

    def release(self, group: str) -> None:
        """Give up a factor that is not needed any more."""
        self.systems.release(group)


class GramOperator(GramMatrix):
    """Gram matrix that is multiplied tile by tile, its tiles kept in memory or formed at every pass."""

    def __init__(self, data: FitData, strategy: Iterative, context: Context, scale: Array | None = None) -> None:
        self._products = products = strategy.tile_products
        tiling = Tiling(products.tile, products.tile)
        super().__init__(data, context, tiling, scale, keeps_rows=products.keeps_rows)
        self.rank_limit = strategy.rank_limit
        """Columns of a partial factor that fit in memory."""
        self.is_mixed = products.precision == "float32"
        """Most products are in float32."""

    def operator(self) -> Operator:
        return self._operator(self._tiles(), self._products.kept_tiles, self._products.precision)

    def partial_factor(
        self, importance: Array | None, settings: RPCholesky, is_enough: Callable[[PivotedCholesky], bool]
    ) -> PivotedCholesky:
        """Factor K partially, from the columns or the pivots that an earlier run saved.

        Parameters
        ----------
        importance : ndarray of shape (n,), optional
            Factors of the diagonal by which pivots are drawn.
        settings : RPCholesky
        is_enough : callable
            Stops a factor whose rank the settings leave open.
        """
        context, checkpoints = self._context, self._context.checkpoints
        factor = PivotedCholesky(
            columns=self._columns,
            executor=context.executor,
            run=context.run,
            slots=context.slots,
            capacity=self.rank_limit,
            importance=importance,
            seed=settings.random_state,
            dtype=np.float32,
            record=context.record,
        )
        kept = None
        if checkpoints is not None:
            kept = checkpoints.preconditioner = KeptPreconditioner(context.stored.store, factor, context.write_bytes)
        saved = None if checkpoints is None else checkpoints.load_pivots()
        shown = 0

        def after_round(grown: PivotedCholesky) -> bool:
            nonlocal shown
            context.progress.advance((grown.rank - shown) / (settings.rank or grown.capacity))
            shown = grown.rank
            if context.watch is not None:
                context.watch.prepare()
            is_done = settings.rank is None and is_enough(grown)
            if kept is not None and not is_done:
                kept.after_round()
            return is_done

        with context.progress.stage("preconditioner", 1.0):
            is_complete = None if kept is None else kept.load()
            if is_complete is None and saved is not None and len(saved) <= factor.capacity:
                factor.restore(saved)
            if settings.rank is not None:
                factor.grow(settings.rank, after_round)
            elif factor.rank == 0 or is_complete is False:
                factor.grow(factor.capacity, after_round)
            elif checkpoints is not None and not checkpoints.has_any:
                # The run has grown, or has not iterated yet: an iteration continues with the factor that it began with.
                draw_further(factor, is_enough, after_round)
            if kept is not None:
                kept.end()
        if checkpoints is not None:
            checkpoints.pivots = lambda: factor.index
            checkpoints.save_pivots(factor.index)
        return factor


def draw_further(
    factor: PivotedCholesky,
    is_enough: Callable[[PivotedCholesky], bool],
    after_round: Callable[[PivotedCholesky], bool],
) -> None:
    """Draw pivots beside those that were drawn from fewer rows, in rounds in proportion, until they are enough."""
    before = 0
    while before < factor.rank < factor.capacity and not is_enough(factor):
        before = factor.rank
        factor.grow(min(factor.capacity, ceil(GROWTH * before)), after_round)


TOO_SMALL = (
    "λ is too small for a factor in float32: its rounding is {ratio:.1g} of the smallest eigenvalue that λ ensures, "
    "more than " + f"{MAX_ROUNDING_RATIO:g}"
)
BROKE_DOWN = (
    "the factorisation in float32 broke down at row {row}, since λ is below its rounding or entries are outside of its "
    "range"
)
NOT_CONTRACTING = "iterations with the factor in float32 did not reach the level of rounding"
FACTORING_IN_FLOAT64 = "{reason}: factoring in float64 instead, which takes twice the time and space"


class Float32Gram(FactoredGram):
    """Gram matrix that is factored in float32, by factors that are applied to right-hand sides again and again.

    In a store, factors of a family that float32 does not hold are in float64. In memory one may have no place.
    """

    def __init__(self, data: FitData, strategy: Float32Factor, context: Context, scale: Array | None = None) -> None:
        super().__init__(data, strategy, context, scale)
        self._products_tile, self._tol = strategy.products_tile, strategy.tol

    @cached_property
    def systems(self) -> TileSystems:
        """The matrix in tiles, however small it is."""
        return self._in_tiles()

    def factor(self, group: str, shift: Array, family: str, detail: str = "") -> Factor:
        """Factor the matrix + diag(s).

        Parameters
        ----------
        group : str
            Place in the storage.
        shift : ndarray of shape (n,)
            s.
        family : str
            Name of the factors that are all in float64 once float32 does not hold one of them.
        detail : str
            Which of several factors this is, for the display of the progress.

        Raises
        ------
        Float32BreakdownError
            If float32 does not hold it, in memory.
        NotPositiveDefiniteError
            If a pivot is not positive in float64; what exists of the factor is deleted.
        """
        if not self.breakdown(family):
            refusal = self._refusal(shift)
            if not refusal:
                try:
                    return self._in_float32(group, shift, detail)
                except NotPositiveDefiniteError as error:
                    refusal = BROKE_DOWN.format(row=error.row)
            self._refuse_growth(group, refusal)
            self.give_up(group, family, refusal)
        return self.systems.factor(group, shift, detail)

    def _in_float32(self, group: str, shift: Array, detail: str) -> Factor:
        systems = self.systems
        source, scaled_shift, scale = self._rounded(group, shift, systems.factored)
        detail = f"{detail}, float32" if detail else "float32"
        factor = systems.rounded_factor(group, scaled_shift, source, detail)
        return without_left_out(factor if scale is None else ScaledFactor(factor, scale), self._context)

    def _refuse_growth(self, group: str, reason: str) -> None:
        """Refuse rows with which float32 does not hold the factor that the run in the store has.

        Raises
        ------
        WrongStoreError
        """
        context = self._context
        if context.in_memory or context.kept is None or context.kept.factor(group) is None:
            return
        url = context.stored.store.url
        raise WrongStoreError(
            f"{reason}; the run in {url} has {context.kept.n:,} rows and a factor in float32, which cannot take "
            f"{plural(self.n - context.kept.n, 'more row')}: give another store= for a new fit of all {self.n:,} rows, "
            f"or increase alpha there. The run is unchanged"
        )

    def give_up(self, group: str, family: str, reason: str) -> None:
        """Delete a factor in float32 that does not serve, and make those of its family in float64 from now on.

        Raises
        ------
        Float32BreakdownError
            In memory.
        """
        if self._context.in_memory:
            raise Float32BreakdownError(FACTORING_IN_FLOAT64.format(reason=reason))
        self._context.storage.delete(group)
        self._context.storage.set_note(f"{family}-broken", reason)
        self._context.progress.note(self.breakdown(family))

    def breakdown(self, family: str) -> str:
        """Message that float32 did not hold a factor of a family; empty where it did."""
        reason = self._context.storage.note(f"{family}-broken")
        return "" if reason is None else FACTORING_IN_FLOAT64.format(reason=reason)

    def factors(self, groups: Sequence[str], shifts: Array, family: str, details: Sequence[str]) -> list[Factor]:
        each = zip(groups, np.ascontiguousarray(shifts.T), details, strict=True)
        return [self.factor(group, shift, family, detail) for group, shift, detail in each]

    def _refusal(self, shift: Array) -> str:
        """Reason against a factor in float32 that nobody requested, known before the work; empty without one."""
        if self._tol is not None:
            return ""
        ratio = rounding_ratio(self.n, least_relative_shift(self.scaled_diagonal, shift))
        return "" if ratio <= MAX_ROUNDING_RATIO else TOO_SMALL.format(ratio=ratio)

    def _rounded(self, group: str, shift: Array, source: TileSource) -> tuple[TileSource, Array, Array | None]:
        """Tiles of P A P, P s P and P; None for P where all of it is 1."""
        scale = rounding_scale(self._scaled_diagonal(self._factored_scale) + shift)
        if scale is None and self._scale is None and self._kernel.has_unit_diagonal:
            return source, shift, None  # no entry is out of range, and kernels compute in float32
        ones = np.ones((self.n, 1)) if scale is None else scale
        placed = self._context.storage.vectors(group, "rounding", self._grid, 1, ones)
        return RoundedTiles(source, placed), shift * ones[:, 0] ** 2, scale


DIAGONAL_ROWS = 1024
"""Rows of which the diagonal of K is computed together."""


def gram_diagonal(kernel: Kernel, rows: Rows) -> Array:
    """Kᵢᵢ, of shape (n,), a block of rows at a time."""
    n = rows.shape[0]
    if kernel.has_unit_diagonal:
        return np.ones(n)
    diagonal = np.empty(n)
    for start in range(0, n, DIAGONAL_ROWS):
        stop = min(start + DIAGONAL_ROWS, n)
        here = slice(start, stop)
        if kernel.is_precomputed:
            # Only entries around the diagonal are read.
            diagonal[here] = dense(rows.read(start, stop, here)).diagonal()
        else:
            with located(here, here):
                diagonal[here] = kernel.diagonal(rows.read(start, stop))
    return diagonal
