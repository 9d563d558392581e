"""The Gram matrix of a fit: its products, its factors and its direct solutions, in memory, in a store, on workers."""

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dkrr.errors import NotPositiveDefiniteError
from dkrr.fitting.context import Context
from dkrr.fitting.data import LabelledData, TrainingData
from dkrr.fitting.direct import DirectSystems, MemorySystems, Settle, Solved, TiledSystems
from dkrr.fitting.iteration import settings_of
from dkrr.fitting.norms import gram_diagonal
from dkrr.fitting.sampled import by_name
from dkrr.linalg.cholesky import PartialSums, TiledSystem, cholesky_tasks, n_segments, tile_steps
from dkrr.linalg.columns import ColumnSource, GramColumns, MatrixColumns
from dkrr.linalg.factored import LocalFactor, SharedFactor
from dkrr.linalg.incore import DenseGram, dense_gram
from dkrr.linalg.operator import Operator, ResidentRows, TiledOperator, pass_cost
from dkrr.linalg.pivoted import PivotedCholesky
from dkrr.linalg.preconditioner import pays_no_more
from dkrr.linalg.sources import GramTiles, MatrixTiles, SummedTiles, TileSource, store_tiles
from dkrr.linalg.symmetry import refuse_asymmetry, symmetry_tasks
from dkrr.planning import Plan
from dkrr.planning.iterative import APPLY_SECONDS, factor_seconds
from dkrr.rows import Rows
from dkrr.rows.sources import dense
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
    data : TrainingData or LabelledData
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

    def __init__(self, data: TrainingData | LabelledData, plan: Plan, context: Context, scale: Array | None) -> None:
        c, kernel = plan.chosen, data.kernel
        self.n, self._scale, self._plan, self._context = data.n, scale, plan, context
        self._tiles: Callable[..., TileSource]
        self._columns: ColumnSource
        self._grid = TileGrid(self.n, c.tile, c.panel)
        factors = c.solver == "cholesky" or c.has_factor
        self._precomputed = kernel.is_precomputed
        stay = c.keeps_rows and not self._precomputed
        self._rows = context.whole_rows(data, c.panel if factors else c.tile, stay=stay)
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
        if self._context.in_memory:
            return MemorySystems(self._dense.system)
        diagonal = self.diagonal()
        if self._scale is not None:
            diagonal *= self._scale**2
        return TiledSystems(self._scaled_tiles, self._grid, self._plan.chosen.segment, diagonal, self._context)

    @cached_property
    def _dense(self) -> DenseGram:
        """Whole matrix in memory."""
        if not self._precomputed:
            return DenseGram(dense_gram(self._kernel, self._rows, self._scale))
        matrix = np.array(dense(self._rows.read(0, self.n)), np.float64)
        if self._scale is not None:
            matrix *= self._scale[:, None]
            matrix *= self._scale
        return DenseGram(matrix)

    def solve(self, group: str, shift: Array, right_sides: Array, settle: Settle) -> Solved:
        """Solve with the matrix and diag(s); see DirectSystems."""
        return self.systems.solve(group, shift, right_sides, settle)

    def operator(self) -> Operator:
        """Return the matrix as it is multiplied: in memory, or tile by tile, formed or stored as the plan wants it."""
        c, context = self._plan.chosen, self._context
        if context.in_memory and c.solver == "cholesky":
            return self._dense
        source, grid = self._tiles(), TileGrid(self.n, c.tile, c.tile)
        if c.stores_tiles:
            source = self._stored_tiles(source, grid)
        return TiledOperator(
            source=source,
            grid=grid,
            executor=context.executor,
            run=context.run,
            slots=context.slots,
            slots_a_process=context.slots_per_process,
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

    def factor(self, group: str, shift: Array, family: str, name: str = "factorisation") -> LocalFactor | SharedFactor:
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
        name : str
            For the display of the progress.

        Raises
        ------
        NotPositiveDefiniteError
            If a pivot is not positive in float64; what exists of the factor is deleted.
        """
        if not self._plan.chosen.has_factor:
            return self._factored(group, shift, "float64", name)
        if not self.breakdown(family):
            try:
                return self._factored(group, shift, "float32", f"{name}, float32")
            except NotPositiveDefiniteError as error:
                self._context.storage.set_note(f"{family}-broken", error.row)
                self._context.progress.note(self.breakdown(family))
        return self._factored(group, shift, "float64", name)

    def breakdown(self, family: str) -> str:
        """Message that float32 did not hold a factor of a family; empty where it did."""
        row = self._context.storage.note(f"{family}-broken")
        return "" if row is None else BROKE_DOWN.format(row=row)

    def _factored(
        self, group: str, shift: Array, dtype: Literal["float64", "float32"], stage: str
    ) -> LocalFactor | SharedFactor:
        context, storage, grid = self._context, self._context.stored, self._grid
        columns_per_task = self._plan.chosen.segment
        system = TiledSystem(
            source=self._scaled_tiles,
            shift=storage.vectors(group, "shift", grid, 1, shift),
            factor=storage.matrix(group, "factor", grid, dtype),
            segment=columns_per_task,
            partial=tuple(
                PartialSums(storage.matrix(group, f"sum-{k}", grid, dtype))
                for k in range(n_segments(grid.n_tiles - 1, columns_per_task) - 1)
            ),
        )
        tasks = cholesky_tasks(system)
        total = sum(step.flops(grid) for step in tile_steps(grid.n_tiles, columns_per_task))
        try:
            context.run_tasks(stage, tasks, total - sum(t.flops for t in tasks))
        except NotPositiveDefiniteError:
            storage.delete(group)
            raise
        for k in range(len(system.partial)):
            storage.delete(f"{group}/sum-{k}")
        resources = self._plan.resources
        if resources.cluster_is_running:
            return SharedFactor(system.factor, context.executor, storage.store, group, context.slots, context.record)
        return LocalFactor(system.factor, resources.local_threads, context.record)

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
            seed=settings.seed,
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


def rates_of_growth(plan: Plan) -> tuple[float, Any]:
    """Seconds of one product, and of one more pivot at a rank, from what the plan was made with."""
    c, p, r = plan.chosen, plan.problem, plan.resources
    n_tiles = c.n_tiles * (c.n_tiles + 1) // 2
    kept = min(1.0, c.kept_tiles * c.slots / n_tiles)
    product = pass_cost(p.entry(r.rates, c.precision), p.n**2 / 2, p.n_right_sides, c.precision, kept)
    apply = APPLY_SECONDS * p.n * p.n_right_sides / c.slots

    def pivot_seconds(rank: int) -> float:
        step = max(1, rank // 50)
        more = factor_seconds(p, r, c.slots, rank + step) - factor_seconds(p, r, c.slots, rank)
        return more / step + c.iterations * apply

    return r.rates.seconds(product) / c.slots, pivot_seconds
