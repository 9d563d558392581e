"""The Gram matrix of a fit, with a class for each way to work with it: factored in memory or a store, or multiplied."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from dkrr import blas
from dkrr.fitting.context import Context
from dkrr.fitting.data import FitData
from dkrr.fitting.direct import DirectSystems, MemorySystems, TiledSystems, tile_threads
from dkrr.fitting.norms import gram_diagonal
from dkrr.fitting.sampled import by_name
from dkrr.linalg.columns import ColumnSource, GramColumns, MatrixColumns
from dkrr.linalg.inverse import LocalFactor, SharedFactor
from dkrr.linalg.memory import KeptTiles
from dkrr.linalg.operator import Operator, Precision, column_norms
from dkrr.linalg.pivoted_cholesky import PivotedCholesky
from dkrr.linalg.sources import GramTiles, MatrixTiles, TileSource
from dkrr.linalg.symmetry import refuse_asymmetry, symmetry_tasks
from dkrr.linalg.tiled_operator import ResidentRows, TiledOperator
from dkrr.planning import Direct, Float32Factor, Iterative, Tiling
from dkrr.rows import Rows
from dkrr.solvers import RPCholesky
from dkrr.tiles import TiledMatrix, TileGrid

Array = NDArray[np.float64]

SYMMETRY_TILE = 512
"""Rows of the blocks in which a Gram matrix in memory is compared with its mirror image."""

RESIDUAL_TILE = 2048
"""Most rows of the tiles that are formed to check a solution."""
PRODUCT_ENTRIES = 2**22
"""Entries of K that are in memory at once for some rows of a product."""


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
        self.n, self._scale, self._context = data.n, scale, context
        self._grid = TileGrid(self.n, tile, tiling.panel)
        self._tiles: Callable[..., TileSource]
        self._columns: ColumnSource
        self._rows = context.whole_rows(data, tiling.panel, stay=keeps_rows and not kernel.is_precomputed)
        self._kernel = by_name(kernel, context)
        if kernel.is_precomputed:
            side = min(tile, SYMMETRY_TILE) if self._rows.is_in_memory else tile
            tasks = symmetry_tasks(self._rows, TileGrid(self.n, side, side))
            refuse_asymmetry(list(context.run_tasks("checking symmetry", tasks).values()))
            self._tiles = partial(MatrixTiles, self._rows)
            self._columns = MatrixColumns(self._rows)
        else:
            self._tiles = partial(GramTiles, self._kernel, self._rows)
            self._columns = GramColumns(self._kernel, self._rows)

    @property
    def rows(self) -> Rows:
        """The training rows, readable after the fit."""
        return self._rows.rows if isinstance(self._rows, ResidentRows) else self._rows

    def diagonal(self) -> Array:
        """Diagonal of K, of shape (n,)."""
        return gram_diagonal(self._kernel, self.rows)

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
        taken, total = self._columns.take(index), np.zeros((len(index), coef.shape[1]))
        height = max(1, PRODUCT_ENTRIES // max(len(index), 1))
        for start in range(0, self.n, height):
            rows = slice(start, min(start + height, self.n))
            total += np.asarray(self._columns.block(rows, taken)).T @ coef[rows]
        return total

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
        taken, out = self._columns.take(index), np.empty((self.n, coef.shape[1]))
        threads = self._context.threads
        height = max(1, PRODUCT_ENTRIES // (threads * max(len(index), 1)))

        def multiply(start: int) -> None:
            rows = slice(start, min(start + height, self.n))
            blas.gemm(out[rows], np.ascontiguousarray(self._columns.block(rows, taken)), coef)

        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(multiply, range(0, self.n, height)))
        return out

    @abstractmethod
    def operator(self) -> Operator:
        """Matrix to multiply vectors by."""

    def _scaled_tiles(self) -> TileSource:
        """Tiles of diag(c) K diag(c)."""
        if self._scale is None:
            return self._tiles()
        return self._tiles(self._context.storage.vectors("weights", "scale", self._grid, 1, self._scale))

    @cached_property
    def scaled_diagonal(self) -> Array:
        """Diagonal of diag(c) K diag(c), of shape (n,)."""
        return self.diagonal() if self._scale is None else self.diagonal() * self._scale**2

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
    """Gram matrix with complete factors of the matrix + diag(s), for one s after another."""

    @property
    @abstractmethod
    def systems(self) -> DirectSystems:
        """The matrix as a direct solver takes it."""

    @abstractmethod
    def factors(
        self, groups: Sequence[str], shifts: Array, family: str, details: Sequence[str]
    ) -> list[Callable[[Array], Array]]:
        """Factor the matrix + diag(s) for every column of shifts, and return what solves with them.

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

    def residual(self, shift: Array, right_sides: Array, solution: Array) -> float:
        """Largest true relative residual ‖B − (A + diag(s)) X‖ / ‖B‖ of a column, A the matrix with c."""
        tile = min(self._grid.tile, RESIDUAL_TILE)
        product = self._operator(self._tiles(), tile=tile).multiply(solution) + shift[:, None] * solution
        norms = column_norms(right_sides)
        return float((column_norms(right_sides - product) / np.where(norms > 0, norms, 1.0)).max())

    def release(self, group: str) -> None:
        """Give up a factor that is not needed any more."""
        self._context.storage.delete(group)


class GramInMemory(FactoredGram):
    """Gram matrix that is factored in the memory of the calling process."""

    def __init__(
        self, data: FitData, strategy: Direct | Float32Factor, context: Context, scale: Array | None = None
    ) -> None:
        super().__init__(data, context, strategy.tiling, scale)
        self._keeps_matrix = strategy.keeps_matrix

    @cached_property
    def systems(self) -> MemorySystems:
        context, grid, source = self._context, self._grid, self._scaled_tiles()
        if not self._keeps_matrix:
            return MemorySystems(source, grid, self.scaled_diagonal, context)
        with context.progress.stage("Gram matrix", 1.0), tile_threads(grid, context.threads) as executor:
            return MemorySystems.kept(KeptTiles.of_source(source, grid, executor, context.progress), context)

    def operator(self) -> Operator:
        kept = self.systems.source
        assert isinstance(kept, KeptTiles)
        return kept

    def factors(
        self,
        groups: Sequence[str],  # noqa: ARG002
        shifts: Array,
        family: str,  # noqa: ARG002
        details: Sequence[str],  # noqa: ARG002
    ) -> list[Callable[[Array], Array]]:
        return self.systems.factors(shifts)


class GramInStore(FactoredGram):
    """Gram matrix that is factored in tiles in a store."""

    def __init__(
        self, data: FitData, strategy: Direct | Float32Factor, context: Context, scale: Array | None = None
    ) -> None:
        super().__init__(data, context, strategy.tiling, scale, keeps_rows=strategy.keeps_rows)
        self._columns_per_task = strategy.tiling.columns_per_task

    @cached_property
    def systems(self) -> TiledSystems:
        diagonal = self.scaled_diagonal
        return TiledSystems(self._scaled_tiles(), self._grid, self._columns_per_task, diagonal, self._context)

    def operator(self) -> Operator:
        return self._operator(self._tiles())

    def factors(
        self,
        groups: Sequence[str],
        shifts: Array,
        family: str,  # noqa: ARG002
        details: Sequence[str],
    ) -> list[Callable[[Array], Array]]:
        each = zip(groups, np.ascontiguousarray(shifts.T), details, strict=True)
        return [
            self._applied(self.systems.factor(group, shift, "float64", detail), group).apply
            for group, shift, detail in each
        ]

    def _applied(self, factor: TiledMatrix, group: str) -> LocalFactor | SharedFactor:
        context = self._context
        if context.cluster_is_running:
            return SharedFactor(factor, context.executor, context.stored.store, group, context.slots, context.record)
        return LocalFactor(factor, context.threads, context.record)


class MultipliedGram(GramMatrix):
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
        """Factor K partially, from the pivots that an earlier run saved.

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
        saved = None if checkpoints is None else checkpoints.load_pivots()
        shown = 0

        def after_round(grown: PivotedCholesky) -> bool:
            nonlocal shown
            context.progress.advance((grown.rank - shown) / (settings.rank or grown.capacity))
            shown = grown.rank
            return settings.rank is None and is_enough(grown)

        with context.progress.stage("preconditioner", 1.0):
            if saved is not None and len(saved) <= factor.capacity:
                factor.restore(saved)
            if settings.rank is not None:
                factor.grow(settings.rank, after_round)
            elif factor.rank == 0:
                factor.grow(factor.capacity, after_round)
        if checkpoints is not None:
            checkpoints.pivots = lambda: factor.index
            checkpoints.save_pivots(factor.index)
        return factor


def direct_gram(data: FitData, strategy: Direct, context: Context, scale: Array | None = None) -> FactoredGram:
    """Gram matrix of a direct solver, where the plan has it."""
    return (GramInMemory if strategy.is_whole else GramInStore)(data, strategy, context, scale)
