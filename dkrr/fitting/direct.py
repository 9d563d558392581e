"""Direct solutions of (A + diag(s)) X = B for one s after another, with A and its factors in tiles.

A small matrix in memory is an array instead: `dkrr.linalg.square.SquareMatrix`.
"""

from abc import abstractmethod
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from dkrr.cluster import Executor, SerialExecutor, ThreadExecutor
from dkrr.errors import DamagedChunkError, NotPositiveDefiniteError
from dkrr.fitting.context import Context
from dkrr.linalg.cholesky import KeptFactor, TiledSystem, check_diagonal, cholesky_tasks, n_updates
from dkrr.linalg.condition import SolvedProbe, scaling_of, with_probe
from dkrr.linalg.factor import DirectSystems, Factor, LocalFactor, MemoryFactor, SharedFactor
from dkrr.linalg.gram_products import Precision
from dkrr.linalg.in_memory_cholesky import InMemoryMatrix, factor_in_memory, memory_system
from dkrr.linalg.left_out import without_rows
from dkrr.linalg.residual import Check, SystemSolution, TiledSolution, check_tiled, checked
from dkrr.linalg.sources import TileSource
from dkrr.linalg.substitution import Substitution, both_sweeps, sums_grid
from dkrr.store import MemoryMatrix, TiledMatrix, TileGrid

Array = NDArray[np.float64]


class TileSystems(DirectSystems):
    """A matrix in tiles, which also has factors in float32 that precondition an iteration."""

    source: TileSource
    """Tiles of A."""
    _factored: TileSource | None = None

    @property
    def factored(self) -> TileSource:
        """Tiles of what is factored: those of A, with rows that an earlier factor has and that are left out now."""
        return self.source if self._factored is None else self._factored

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

    def __init__(
        self,
        source: TileSource,
        grid: TileGrid,
        diagonal: Array,
        context: Context,
        factored: TileSource | None = None,
    ) -> None:
        check_diagonal(diagonal)
        self.source, self.grid, self.diagonal, self._context = source, grid, diagonal, context
        self._factored = factored
        self._threads, self._progress = context.threads, context.progress
        self._rounded = dict[str, MemoryMatrix]()
        self._free = list[MemoryMatrix]()
        """Factors in float32 that were released: their memory is for the next ones, as new pages take long to get."""

    def factor(self, group: str, shift: Array, detail: str = "") -> Factor:
        source, kept = self.factored, self._kept(group)
        if kept is not None and kept.grid.n == self.grid.n:
            return without_left_out(MemoryFactor(kept), self._context)
        if isinstance(source, InMemoryMatrix):
            matrix = source.factor_buffer() if kept is None else source.grown_factor(kept)
        else:
            matrix = MemoryMatrix(self.grid) if kept is None else kept.grown(self.grid)
        stage = self._progress.stage("factorisation", 1.0, detail=detail)
        with tile_threads(self.grid, self._threads) as executor, stage:
            swept = None if kept is None or self._context.kept is None else self._context.kept.swept.get(group)
            factor_in_memory(memory_system(source, shift, matrix, kept, swept), executor, self._progress)
        matrix.triangles.clear()  # which only a factorisation uses
        return without_left_out(MemoryFactor(matrix), self._context)

    def _kept(self, group: str, dtype: Precision = "float64") -> MemoryMatrix | None:
        """Factor of the first rows that an earlier call has left, in tiles of this grid."""
        kept = self._context.kept
        found = None if kept is None else kept.factor(group)
        if found is None or found.dtype != dtype:
            return None
        assert isinstance(found, MemoryMatrix)
        return found.cut(self.grid.tile)

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

    def rounded_factor(self, group: str, shift: Array, source: TileSource, detail: str = "") -> Factor:
        kept = self._kept(group, "float32")
        if kept is None:
            self._rounded[group] = matrix = self._free.pop() if self._free else MemoryMatrix(self.grid, np.float32)
        else:  # whose tiles are not for others
            matrix = kept.grown(self.grid)
        if kept is None or kept.grid.n < self.grid.n:
            tasks = cholesky_tasks(memory_system(source, shift, matrix, kept))
            self._context.run_tasks("factorisation", tasks, detail=detail)
        return LocalFactor(matrix, self._threads, self._context.record)

    def release(self, group: str) -> None:
        if group in self._rounded:
            self._free.append(self._rounded.pop(group))


def without_left_out(factor: Factor, context: Context) -> Factor:
    """The factor, without the rows that it has and that are left out now."""
    return without_rows(factor, context.left_out)


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
    _factored: TileSource | None = None

    def factor(self, group: str, shift: Array, detail: str = "") -> Factor:
        return without_left_out(self._factor(self.factored, group, shift, "float64", detail), self.context)

    def rounded_factor(self, group: str, shift: Array, source: TileSource, detail: str = "") -> Factor:
        return self._factor(source, group, shift, "float32", detail)

    def _factor(
        self, source: TileSource, group: str, shift: Array, dtype: Precision, detail: str
    ) -> LocalFactor | SharedFactor:
        context, factor = self.context, self._tiles(source, group, shift, dtype, detail)
        if context.cluster_is_running:
            return SharedFactor(factor, context.executor, context.stored.store, group, context.slots, context.record)
        return LocalFactor(factor, context.threads, context.record)

    def begin(self, group: str, shift: Array, right_sides: Array) -> None:
        """See base class; L⁻¹ B, in the first tile rows that the earlier run had whole, with the same right-hand sides.

        They are the same where no intercept is free, whose constant changes with every row.
        """
        grid, kept = self.grid, self.context.kept
        if kept is None or len(kept.left_out):  # rows that are left out take more than one sweep
            return
        both = with_probe(right_sides, scaling_of(self.diagonal + shift))
        found = [kept.vectors(group, name) for name in ("right-sides", "forward")]
        before = [vectors for vectors in found if vectors is not None]
        if [vectors.shape for vectors in before] != 2 * [(kept.n, both.shape[1])]:
            return
        forward = self.context.stored.vectors(group, "forward", grid, both.shape[1])
        with suppress(DamagedChunkError):  # the rest is computed again
            for i in range(kept.n // grid.tile):
                sides, swept = (vectors.read_rows(grid.rows(i).start, grid.rows(i).stop) for vectors in before)
                if not np.array_equal(sides, both[grid.rows(i)]):
                    return
                forward.write((i, 0), swept)

    def solve(self, group: str, factor: Factor, shift: Array, right_sides: Array) -> SystemSolution:
        """See base class; by substitutions in tasks, with vectors of this group in the store."""
        grid, context = self.grid, self.context
        scaling = scaling_of(self.diagonal + shift)
        both = with_probe(right_sides, scaling)
        vectors = partial(context.stored.vectors, group, grid=grid, width=both.shape[1])
        sides, solution = vectors("right-sides", data=both), vectors("solution")
        names = "forward-sums", "backward-sums"
        if not solution.is_complete and not isinstance(factor, LocalFactor | SharedFactor):  # of more than one matrix
            solution.complete(factor.solve(both))
        if not solution.is_complete:
            between = vectors("forward")
            of_forward, of_backward = (vectors(name, grid=sums_grid(grid)) for name in names)
            forward = Substitution.resumable(factor.matrix, sides, between, of_forward, transpose=False)
            backward = Substitution.resumable(factor.matrix, between, solution, of_backward, transpose=True)
            with context.side_by_side(grid, both.shape[1]) as (executor, _):
                context.run_tasks("substitution", both_sweeps(forward, backward), executor=executor)
        for name in names:
            context.stored.delete(f"{group}/{name}")
        x, kept = solution.load(), partial(context.stored.vectors, group, grid=grid, width=1)
        probe = SolvedProbe.of_solution(both[:, -1], x[:, -1], scaling)
        kept_shift, kept_scaling = kept("shift", data=shift), kept("scaling", data=scaling)
        return SystemSolution(x[:, :-1], probe, kept_shift, sides, solution, kept_scaling)

    def check(self, solution: SystemSolution, constants: Array | None) -> Check:
        solved, context = TiledSolution.of(self.source, self.grid, solution), self.context
        with context.side_by_side(self.grid, solved.solution.shape[1]) as (executor, slots):
            found, record = check_tiled(solved, constants, executor, context.progress, slots)
        context.add(record)
        return found

    def release(self, group: str) -> None:
        self.context.storage.delete(group)

    def _sums(self, kept: KeptFactor | None) -> list[str]:
        """Names of the partial sums of a factorisation; their first rows are of a kept factor, and for it alone."""
        count = n_updates(self.grid.n_tiles - 1, self.columns_per_task) - 1
        return [f"sum-{k}" if kept is None else f"sum-{kept.n}-{k}" for k in range(count)]

    def _kept(self, group: str, dtype: Precision) -> KeptFactor | None:
        """Factor of the first rows, in the store; None where it is damaged, as if nothing was kept."""
        kept = self.context.kept
        found = None if kept is None else kept.factor(group)
        if found is None or found.dtype != dtype or found.grid.n >= self.grid.n:
            return None
        assert isinstance(found, TiledMatrix)
        return KeptFactor(found) if found.is_complete else None

    def _tiles(self, source: TileSource, group: str, shift: Array, dtype: Precision, detail: str) -> TiledMatrix:
        """Factor A + diag(s), or another source."""
        grid, storage, kept = self.grid, self.context.stored, self._kept(group, dtype)
        shift_of_tiles = storage.vectors(group, "shift", grid, 1, shift)
        factor, sums = storage.matrix(group, "factor", grid, dtype), self._sums(kept)
        system = TiledSystem(
            source=source,
            shift=shift_of_tiles,
            factor=factor,
            columns_per_task=self.columns_per_task,
            partial=tuple(storage.matrix(group, name, grid, dtype) for name in ([] if factor.is_complete else sums)),
            kept=kept,
        )
        tasks = cholesky_tasks(system)
        done = sum(step.flops(grid) for step in system.steps()) - sum(t.flops for t in tasks)
        try:
            self.context.run_tasks("factorisation", tasks, max(done, 0.0), detail)
        except NotPositiveDefiniteError:
            if kept is None:  # else the run that it is of stays
                storage.delete(group)
            raise
        for name in sums:
            storage.delete(f"{group}/{name}")
        return factor
