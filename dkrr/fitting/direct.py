"""Direct solutions of (A + diag(s)) X = B for one s after another, with A and its factors in tiles.

A small matrix in memory is an array instead: `dkrr.linalg.square.SquareMatrix`.
"""

from abc import abstractmethod
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from dkrr.cluster import Executor, SerialExecutor, ThreadExecutor
from dkrr.errors import NotPositiveDefiniteError
from dkrr.fitting.context import Context
from dkrr.linalg.cholesky import TiledSystem, check_diagonal, cholesky_tasks, n_updates, tile_steps
from dkrr.linalg.condition import SolvedProbe, scaling_of, with_probe
from dkrr.linalg.factor import DirectSystems, Factor, LocalFactor, MemoryFactor, SharedFactor
from dkrr.linalg.gram_products import Precision
from dkrr.linalg.in_memory_cholesky import InMemoryMatrix, factor_in_memory, memory_system
from dkrr.linalg.residual import Check, SystemSolution, TiledSolution, check_tiled, checked
from dkrr.linalg.sources import TileSource
from dkrr.linalg.substitution import Substitution, both_sweeps, sums_grid
from dkrr.store import MemoryMatrix, TiledMatrix, TileGrid

Array = NDArray[np.float64]


class TileSystems(DirectSystems):
    """A matrix in tiles, which also has factors in float32 that precondition an iteration."""

    source: TileSource
    """Tiles of A."""

    @abstractmethod
    def rounded_factor(self, group: str, shift: Array, source: TileSource, detail: str = "") -> Factor:
        """Factor a matrix near A, plus diag(s), in float32; what solves with it runs in threads or tasks.

        Parameters
        ----------
        group : str
            Place in the storage, until `release`.
        shift : ndarray of shape (n,)
        source : TileSource
            Tiles of the matrix.
        detail : str
            Which of several factors this is, for the display of the progress.

        Raises
        ------
        NotPositiveDefiniteError
            If a pivot is not positive.
        """


class MemorySystems(TileSystems):
    """A in tiles of this process's memory, or formed again where it is used.

    With InMemoryMatrix as the source of its tiles, a factor shares the squares on the diagonal with them.
    """

    def __init__(self, source: TileSource, grid: TileGrid, diagonal: Array, context: Context) -> None:
        check_diagonal(diagonal)
        self.source, self.grid, self.diagonal, self._context = source, grid, diagonal, context
        self._threads, self._progress = context.threads, context.progress
        self._rounded = dict[str, MemoryMatrix]()
        self._free = list[MemoryMatrix]()
        """Factors in float32 that were released: their memory is for the next ones, as new pages take long to get."""

    def factor(self, group: str, shift: Array, detail: str = "") -> MemoryFactor:  # noqa: ARG002
        source = self.source
        matrix = source.factor_buffer() if isinstance(source, InMemoryMatrix) else MemoryMatrix(self.grid)
        stage = self._progress.stage("factorisation", 1.0, detail=detail)
        with tile_threads(self.grid, self._threads) as executor, stage:
            factor_in_memory(memory_system(source, shift, matrix), executor, self._progress)
        matrix.triangles.clear()  # which only a factorisation uses
        return MemoryFactor(matrix)

    def solve(self, group: str, factor: Factor, shift: Array, right_sides: Array) -> SystemSolution:  # noqa: ARG002
        scaling = scaling_of(self.diagonal + shift)
        both = with_probe(right_sides, scaling)
        with self._progress.measured("factorisation"):
            x = factor.solve(both)
        probe = SolvedProbe.of_solution(both[:, -1], x[:, -1], scaling)
        return SystemSolution(x[:, :-1], probe, shift[:, None], both, x, scaling[:, None])

    def check(self, solution: SystemSolution, constants: Array | None) -> Check:
        source = self.source
        if isinstance(source, InMemoryMatrix):
            with self._progress.stage("true residual", 1.0):
                return checked(solution, source.multiply, constants)
        solved = TiledSolution.of(source, self.grid, solution)
        with tile_threads(self.grid, self._threads) as executor:
            return check_tiled(solved, constants, executor, self._progress, self._threads)[0]

    def rounded_factor(self, group: str, shift: Array, source: TileSource, detail: str = "") -> LocalFactor:
        self._rounded[group] = matrix = self._free.pop() if self._free else MemoryMatrix(self.grid, np.float32)
        tasks = cholesky_tasks(memory_system(source, shift, matrix))
        self._context.run_tasks("factorisation", tasks, detail=detail)
        return LocalFactor(matrix, self._threads, self._context.record)

    def release(self, group: str) -> None:
        if group in self._rounded:
            self._free.append(self._rounded.pop(group))


def tile_threads(grid: TileGrid, n_threads: int) -> AbstractContextManager[Executor]:
    """Threads for the tasks of several tiles in memory; one tile is left to BLAS's own."""
    return nullcontext(SerialExecutor()) if grid.n_tiles == 1 else ThreadExecutor(n_threads)


@dataclass
class TiledSystems(TileSystems):
    """A in tiles, its factors in a store: what an earlier run has finished there is kept."""

    source: TileSource
    grid: TileGrid
    columns_per_task: int
    """Tile columns that one task of a factorisation subtracts; 0 means all."""
    diagonal: Array
    context: Context

    def factor(self, group: str, shift: Array, detail: str = "") -> LocalFactor | SharedFactor:
        return self._factor(self.source, group, shift, "float64", detail)

    def rounded_factor(
        self, group: str, shift: Array, source: TileSource, detail: str = ""
    ) -> LocalFactor | SharedFactor:
        return self._factor(source, group, shift, "float32", detail)

    def _factor(
        self, source: TileSource, group: str, shift: Array, dtype: Precision, detail: str
    ) -> LocalFactor | SharedFactor:
        context, factor = self.context, self._tiles(source, group, shift, dtype, detail)
        if context.cluster_is_running:
            return SharedFactor(factor, context.executor, context.stored.store, group, context.slots, context.record)
        return LocalFactor(factor, context.threads, context.record)

    def solve(self, group: str, factor: Factor, shift: Array, right_sides: Array) -> SystemSolution:
        """See base class; by substitutions in tasks, with vectors of this group in the store."""
        grid, context = self.grid, self.context
        scaling = scaling_of(self.diagonal + shift)
        both = with_probe(right_sides, scaling)
        vectors = partial(context.stored.vectors, group, grid=grid, width=both.shape[1])
        sides, between, solution = vectors("right-sides", data=both), vectors("forward"), vectors("solution")
        names = "forward-sums", "backward-sums"
        if not solution.is_complete:
            of_forward, of_backward = (vectors(name, grid=sums_grid(grid)) for name in names)
            forward = Substitution.resumable(factor.matrix, sides, between, of_forward, transpose=False)
            backward = Substitution.resumable(factor.matrix, between, solution, of_backward, transpose=True)
            context.run_tasks("substitution", both_sweeps(forward, backward))
        for name in names:
            context.stored.delete(f"{group}/{name}")
        x, kept = solution.load(), partial(context.stored.vectors, group, grid=grid, width=1)
        probe = SolvedProbe.of_solution(both[:, -1], x[:, -1], scaling)
        kept_shift, kept_scaling = kept("shift", data=shift), kept("scaling", data=scaling)
        return SystemSolution(x[:, :-1], probe, kept_shift, sides, solution, kept_scaling)

    def check(self, solution: SystemSolution, constants: Array | None) -> Check:
        solved, context = TiledSolution.of(self.source, self.grid, solution), self.context
        found, record = check_tiled(solved, constants, context.executor, context.progress, context.slots)
        context.add(record)
        return found

    def release(self, group: str) -> None:
        self.context.storage.delete(group)

    def _n_sums(self) -> int:
        """Partial sums of a factorisation."""
        return n_updates(self.grid.n_tiles - 1, self.columns_per_task) - 1

    def _tiles(self, source: TileSource, group: str, shift: Array, dtype: Precision, detail: str) -> TiledMatrix:
        """Factor A + diag(s), or another source."""
        grid, storage = self.grid, self.context.stored
        shift_of_tiles = storage.vectors(group, "shift", grid, 1, shift)
        factor = storage.matrix(group, "factor", grid, dtype)
        n_sums = 0 if factor.is_complete else self._n_sums()
        system = TiledSystem(
            source=source,
            shift=shift_of_tiles,
            factor=factor,
            columns_per_task=self.columns_per_task,
            partial=tuple(storage.matrix(group, f"sum-{k}", grid, dtype) for k in range(n_sums)),
        )
        tasks = cholesky_tasks(system)
        total = sum(step.flops(grid) for step in tile_steps(grid.n_tiles, self.columns_per_task))
        try:
            self.context.run_tasks("factorisation", tasks, total - sum(t.flops for t in tasks), detail)
        except NotPositiveDefiniteError:
            storage.delete(group)
            raise
        for k in range(self._n_sums()):
            storage.delete(f"{group}/sum-{k}")
        return factor
