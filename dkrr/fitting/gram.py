"""The Gram matrix of a fit: its products, its factors and its direct solutions, in memory, in a store, on workers."""

from collections.abc import Callable
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from dkrr.errors import NotPositiveDefiniteError
from dkrr.fitting.context import Context
from dkrr.fitting.data import FitData
from dkrr.fitting.direct import DirectSystems, MemorySystems, TiledSystems, tile_threads
from dkrr.fitting.iteration import settings_of
from dkrr.fitting.norms import gram_diagonal
from dkrr.fitting.sampled import by_name
from dkrr.linalg.columns import ColumnSource, GramColumns, MatrixColumns
from dkrr.linalg.inverse import LocalFactor, SharedFactor
from dkrr.linalg.memory import KeptTiles
from dkrr.linalg.operator import Operator, ResidentRows, TiledOperator
from dkrr.linalg.pivoted import PivotedCholesky
from dkrr.linalg.preconditioner import pays_no_more
from dkrr.linalg.sources import GramTiles, MatrixTiles, SummedTiles, TileSource, store_tiles
from dkrr.linalg.symmetry import refuse_asymmetry, symmetry_tasks
from dkrr.planning import Iterative, Plan
from dkrr.rows import Rows
from dkrr.rows.checks import digest_of
from dkrr.runtime import Task
from dkrr.solvers.settings import Pivoted, RPCholesky
from dkrr.tiles import TileGrid

Array = NDArray[np.float64]

BROKE_DOWN = (
    "the factorisation in float32 broke down at row {row}, since λ is below its rounding or entries are outside of its "
    "range: factoring in float64 instead, which takes twice the time and disk"
)
SYMMETRY_TILE = 512
"""Rows of the blocks in which a Gram matrix in memory is compared with its mirror image."""


class GramMatrix:
    """diag(c) K diag(c) of the training rows, as a plan wants it multiplied, factored or solved with.

    Parameters
    ----------
    data : FitData
    plan : Plan
    context : Context
    scale : ndarray of shape (n,), optional
        c; None: ones.

    Raises
    ------
    InputError
        If the rows hold NaN or infinity, or a precomputed matrix is not symmetric.
    StoreError
        If the store belongs to another problem.
    """

    def __init__(self, data: FitData, plan: Plan, context: Context, scale: Array | None = None) -> None:
        c, kernel = plan.chosen, data.kernel
        self.n, self._scale, self._plan, self._context = data.n, scale, plan, context
        self._tiles: Callable[..., TileSource]
        self._columns: ColumnSource
        self.makes_factors = not isinstance(c.for_systems, Iterative)
        """Complete factors are made, for a direct solution or as preconditioners."""
        panel = c.panel if self.makes_factors else c.tile
        self._grid = TileGrid(self.n, c.tile, panel)
        self._groups_of_step: list[str] = []
        self._precomputed = kernel.is_precomputed
        stay = c.keeps_rows and not self._precomputed
        self._rows = context.whole_rows(data, panel, stay=stay)
        self._kernel = by_name(kernel, context)
        if self._precomputed:
            tile = min(c.tile, SYMMETRY_TILE) if self._rows.is_in_memory else c.tile
            tasks = symmetry_tasks(self._rows, TileGrid(self.n, tile, tile))
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

    @cached_property
    def _scaled_tiles(self) -> TileSource:
        """Tiles of diag(c) K diag(c)."""
        if self._scale is None:
            return self._tiles()
        return self._tiles(self._context.storage.vectors("weights", "scale", self._grid, 1, self._scale))

    @cached_property
    def systems(self) -> DirectSystems:
        """The matrix as a direct solver takes it."""
        return self._in_memory if self._context.in_memory else self._in_store

    @cached_property
    def _in_memory(self) -> MemorySystems:
        plan, context, grid, source = self._plan, self._context, self._grid, self._scaled_tiles
        if not plan.chosen.keeps_matrix:
            return MemorySystems(source, grid, self._scaled_diagonal(), plan, context)
        with context.progress.stage("Gram matrix", 1.0), tile_threads(grid, plan.resources.local_threads) as executor:
            return MemorySystems.kept(KeptTiles.of_source(source, grid, executor), plan, context)

    @cached_property
    def _in_store(self) -> TiledSystems:
        columns_per_task = self._plan.chosen.columns_per_task
        return TiledSystems(self._scaled_tiles, self._grid, columns_per_task, self._scaled_diagonal(), self._context)

    def _scaled_diagonal(self) -> Array:
        return self.diagonal() if self._scale is None else self.diagonal() * self._scale**2

    def operator(self) -> Operator:
        """Return the matrix as it is multiplied: in memory, or tile by tile, formed or stored as the plan wants it."""
        c, context = self._plan.chosen, self._context
        if context.in_memory and self.makes_factors:
            kept = self._in_memory.source
            assert isinstance(kept, KeptTiles)
            return kept
        source, grid = self._tiles(), TileGrid(self.n, c.tile, c.tile)
        if c.stores_tiles:
            source = self._stored_tiles(source, grid)
        return TiledOperator(
            source=source,
            grid=grid,
            executor=context.executor,
            run=context.run,
            slots=context.slots,
            slots_per_process=context.slots_per_process,
            kept_tiles=c.kept_tiles,
            keeps=c.precision,
            scale=self._scale,
            record=context.record,
        )

    def _stored_tiles(self, source: TileSource, grid: TileGrid) -> SummedTiles:
        """Tiles of the matrix on disk, formed unless an earlier run has."""
        matrix = self._context.stored.matrix("gram", "tiles", grid)
        done = matrix.complete_tiles()
        tasks = [
            Task(f"tile-{i}-{j}", store_tiles, (source, matrix, i, j), flops=float(grid.height(i) * grid.height(j)))
            for i, j in grid.lower()
            if (i, j) not in done
        ]
        self._context.run_tasks("Gram matrix", tasks)
        return SummedTiles((matrix,))

    def factor(self, group: str, shift: Array, family: str, detail: str = "") -> LocalFactor | SharedFactor:
        """Factor the matrix + diag(s) out of core, to be applied again and again.

        The factor is in float32 if the plan has such factors, unless one of the family was not positive definite in
        it; see `breakdown`.

        Parameters
        ----------
        group : str
            Place in the store; what an earlier run has finished there is kept.
        shift : ndarray of shape (n,)
            s.
        family : str
            Name of the factors that are all in float64 once float32 does not hold one of them.
        detail : str
            Which of several factors this is, for the display of the progress.

        Raises
        ------
        NotPositiveDefiniteError
            If a pivot is not positive in float64; what exists of the factor is deleted.
        """
        context, resources, factor = self._context, self._plan.resources, None
        if self._plan.chosen.has_factor and not self.breakdown(family):
            try:
                factor = self._in_store.factor(group, shift, "float32", ", ".join(filter(None, (detail, "float32"))))
            except NotPositiveDefiniteError as error:
                context.storage.set_note(f"{family}-broken", error.row)
                context.progress.note(self.breakdown(family))
        if factor is None:
            factor = self._in_store.factor(group, shift, "float64", detail)
        if resources.cluster_is_running:
            return SharedFactor(factor, context.executor, context.stored.store, group, context.slots, context.record)
        return LocalFactor(factor, resources.local_threads, context.record)

    def breakdown(self, family: str) -> str:
        """Message that float32 did not hold a factor of a family; empty where it did."""
        row = self._context.storage.note(f"{family}-broken")
        return "" if row is None else BROKE_DOWN.format(row=row)

    def factors_of_step(self, shifts: Array, models: NDArray[np.intp]) -> list[Callable[[Array], Array]]:
        """Solvers of the matrix + diag(s) for every column of shifts, in one step of Newton's method.

        Parameters
        ----------
        shifts : ndarray of shape (n, k)
        models : ndarray of shape (k,)
            Numbers of the models that the columns belong to.
        """
        if self._context.in_memory:
            return self._in_memory.factors(shifts)
        solvers: list[Callable[[Array], Array]] = []
        for model, shift in zip(models, np.ascontiguousarray(shifts.T), strict=True):
            # Tiles of another diagonal, left by a run whose checkpoint was lost, are not taken for this one's.
            self._groups_of_step.append(f"newton-{model}-{digest_of(shift)[:12]}")
            solvers.append(self.factor(self._groups_of_step[-1], shift, "newton", f"model {model + 1}").apply)
        return solvers

    def delete_factors(self) -> None:
        """Delete the factors of the step."""
        while self._groups_of_step:
            self._context.storage.delete(self._groups_of_step.pop())

    def partial_factor(
        self, importance: Array | None, shift: float, tol: float, n_products: float = 1.0
    ) -> PivotedCholesky:
        """Return a partial factor of K of the rank that was asked for, or that pays; from the pivots of an earlier run.

        Parameters
        ----------
        importance : ndarray of shape (n,), optional
            Factors of the diagonal by which pivots are drawn.
        shift, tol : float
            Smallest s, and the relative residual of the systems that it is to precondition.
        n_products : float
            Times that products with K are made again, for one system after another.
        """
        context, plan = self._context, self._plan
        wanted = settings_of(plan).preconditioner
        settings = wanted if isinstance(wanted, Pivoted) else RPCholesky()
        factor = PivotedCholesky(
            columns=self._columns,
            executor=context.executor,
            run=context.run,
            slots=context.slots,
            capacity=plan.chosen.rank_limit,
            pivots=settings.pivots,
            importance=importance,
            seed=settings.random_state,
            dtype=np.float32,
            record=context.record,
        )
        checkpoints = context.checkpoints
        saved = None if checkpoints is None else checkpoints.load_pivots()
        with context.progress.stage("preconditioner", 1.0):
            if saved is not None and len(saved) <= factor.capacity:
                factor.restore(saved)
            if settings.rank is not None:
                factor.grow(settings.rank)
            elif factor.rank == 0:
                product, pivot_seconds = rates_of_growth(plan)
                factor.grow(factor.capacity, pays_no_more(shift, tol, n_products * product, pivot_seconds))
        if checkpoints is not None:
            checkpoints.pivots = lambda: factor.index
            checkpoints.save_pivots(factor.index)
        return factor


def rates_of_growth(plan: Plan) -> tuple[float, Callable[[int], float]]:
    """Seconds of one product, and of one more pivot at a rank, from what the plan was made with."""
    strategy = plan.chosen.for_systems
    assert isinstance(strategy, Iterative)
    return strategy.growth_seconds(plan.problem, plan.resources)
