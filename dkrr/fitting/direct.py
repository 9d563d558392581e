"""Direct solutions of (A + diag(s)) X = B for one s after another, with A and its factors in memory or in a store."""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkrr.cluster import Executor, SerialExecutor, ThreadExecutor
from dkrr.errors import NotPositiveDefiniteError
from dkrr.fitting.context import Context
from dkrr.linalg.cholesky import (
    Matrix,
    TiledSystem,
    check_diagonal,
    cholesky_tasks,
    n_updates,
    tile_steps,
)
from dkrr.linalg.condition import SolvedProbe, scaling_of, with_probe
from dkrr.linalg.in_memory_cholesky import InMemoryMatrix, factor_in_memory, memory_system
from dkrr.linalg.products import Precision
from dkrr.linalg.residual import Check, TiledSolution, check_tiled, checked
from dkrr.linalg.sources import TileSource
from dkrr.linalg.substitution import LocalFactor, SharedFactor, Substitution, both_sweeps, substituted, sums_grid
from dkrr.store import MemoryMatrix, TiledMatrix, TileGrid

Array = NDArray[np.float64]
Settle = Callable[[Array], Array | None]
"""Computes the intercepts of a solution (n, m), with which it is then checked."""


@dataclass(frozen=True)
class SystemSolution:
    """Solution of one system."""

    x: Array
    """X, of shape (n, m)."""
    probe: SolvedProbe
    check: Check | None = None
    """None where the caller checks by other means."""


class DirectSystems(ABC):
    """A matrix A that is factored with one diagonal after another."""

    source: TileSource
    """Tiles of A."""
    diagonal: Array
    """Diagonal of A, of shape (n,)."""
    keeps_factors: bool
    """Factors of `solve` and `solve_again` stay, for `kept_factor`."""

    @abstractmethod
    def kept_factor(self, group: str, shift: Array) -> Matrix:
        """Factor of a system that was solved, where factors are kept."""

    @abstractmethod
    def solve(self, group: str, shift: Array, right_sides: Array, settle: Settle | None = None) -> SystemSolution:
        """Solve (A + diag(s)) X = B.

        Parameters
        ----------
        group : str
            Name of the system in the storage.
        shift : ndarray of shape (n,)
        right_sides : ndarray of shape (n, m)
        settle : callable, optional
            Called with X before it is checked by a product with A; None: it is not checked.

        Raises
        ------
        NotPositiveDefiniteError
            If a pivot is not positive.
        """

    @abstractmethod
    def solve_again(self, group: str, shift: Array, right_sides: Array, settle: Settle | None = None) -> SystemSolution:
        """`solve` with a factor that stays until `release`: for one batch of right-hand sides after another."""

    @abstractmethod
    def release(self, group: str) -> None:
        """Give up the factor of a system, unless factors are kept, or the storage keeps it for a run that resumes."""

    @abstractmethod
    def factored(self, group: str, shift: Array, detail: str = "") -> Matrix:
        """Lower Cholesky factor of A + diag(s) in float64, which stays until the storage deletes the group.

        Raises
        ------
        NotPositiveDefiniteError
            If a pivot is not positive.
        """

    @abstractmethod
    def factors(self, groups: Sequence[str], shifts: Array, details: Sequence[str]) -> list[Callable[[Array], Array]]:
        """Solvers of A + diag(s) for every column of shifts, of shape (n, k), valid until others are made."""

    @abstractmethod
    def applied(
        self, group: str, shift: Array, dtype: Precision, detail: str, source: TileSource | None = None
    ) -> LocalFactor | SharedFactor:
        """Factor of A + diag(s), or of another source, that is applied again and again until `discard`.

        Raises
        ------
        NotPositiveDefiniteError
            If a pivot is not positive.
        """

    @abstractmethod
    def discard(self, group: str) -> None:
        """Give up a factor of `factored`, `factors` or `applied`."""


class MemorySystems(DirectSystems):
    """A in tiles of this process's memory, or formed again where it is used.

    With InMemoryMatrix as the source of its tiles, a factor shares the squares on the diagonal with them.
    """

    def __init__(
        self, source: TileSource, grid: TileGrid, diagonal: Array, context: Context, *, keeps_factors: bool = False
    ) -> None:
        check_diagonal(diagonal)
        self.source, self.grid, self.diagonal, self._context = source, grid, diagonal, context
        self.keeps_factors = keeps_factors
        self._threads, self._progress = context.threads, context.progress
        self._factors, self._applied = dict[str, MemoryMatrix](), dict[str, MemoryMatrix]()
        self._free = defaultdict[np.dtype[Any], list[MemoryMatrix]](list)
        """Factors that were discarded, by type: their memory is for the next ones, as new pages take long to get."""

    @classmethod
    def of(cls, matrix: InMemoryMatrix, context: Context, *, keeps_factors: bool = False) -> "MemorySystems":
        """A that stays in memory."""
        return cls(matrix, matrix.grid, matrix.diagonal, context, keeps_factors=keeps_factors)

    def kept_factor(self, group: str, shift: Array) -> MemoryMatrix:  # noqa: ARG002
        return self._factors[group]

    def solve(self, group: str, shift: Array, right_sides: Array, settle: Settle | None = None) -> SystemSolution:
        if self.keeps_factors:
            return self.solve_again(group, shift, right_sides, settle)
        scaling = scaling_of(self.diagonal + shift)
        both = with_probe(right_sides, scaling)
        with tile_threads(self.grid, self._threads) as executor, self._progress.stage("factorisation", 1.0):
            x = substituted(self._factor(shift, executor), both)  # the check needs the memory of the factor
        return self._settled(shift, both, x, scaling, settle)

    def solve_again(self, group: str, shift: Array, right_sides: Array, settle: Settle | None = None) -> SystemSolution:
        scaling = scaling_of(self.diagonal + shift)
        both = with_probe(right_sides, scaling)
        with tile_threads(self.grid, self._threads) as executor, self._progress.stage("factorisation", 1.0):
            if group not in self._factors:
                self._factors[group] = self._factor(shift, executor)
            x = substituted(self._factors[group], both)
        return self._settled(shift, both, x, scaling, settle)

    def release(self, group: str) -> None:
        if not self.keeps_factors:
            self._factors.pop(group, None)

    def _factor(self, shift: Array, executor: Executor) -> MemoryMatrix:
        source = self.source
        # One factor shares squares with the matrix; the next has its own while that one is kept.
        shares = isinstance(source, InMemoryMatrix) and not self._factors
        factor = source.factor_buffer() if shares else MemoryMatrix(self.grid)  # type: ignore[attr-defined]
        factor_in_memory(memory_system(source, shift, factor), executor, self._progress)
        factor.triangles.clear()  # which only a factorisation uses
        return factor

    def _settled(self, shift: Array, both: Array, x: Array, scaling: Array, settle: Settle | None) -> SystemSolution:
        """Solution X of B, of shape (n, m + 1) each, checked where something settles it."""
        source = self.source
        with tile_threads(self.grid, self._threads) as executor:
            found, check = x[:, :-1], None
            probe = SolvedProbe.of_solution(both[:, -1], x[:, -1], scaling)
            if settle is None:
                return SystemSolution(found, probe)
            constants = settle(found)
            if isinstance(source, InMemoryMatrix):
                with self._progress.stage("true residual", 1.0):
                    check = checked(both, shift[:, None], x, source.multiply, constants, probe)
            else:
                solved = TiledSolution(source, self.grid, shift[:, None], both, x, scaling[:, None])
                check, _ = check_tiled(solved, constants, executor, self._progress, self._threads)
        return SystemSolution(found, probe, check)

    def factored(self, group: str, shift: Array, detail: str = "") -> MemoryMatrix:  # noqa: ARG002
        factor = MemoryMatrix(self.grid)
        stage = self._progress.stage("factorisation", 1.0, detail=detail)
        with tile_threads(self.grid, self._threads) as executor, stage:
            factor_in_memory(memory_system(self.source, shift, factor), executor, self._progress)
        return factor

    def factors(
        self,
        groups: Sequence[str],  # noqa: ARG002
        shifts: Array,
        details: Sequence[str],  # noqa: ARG002
    ) -> list[Callable[[Array], Array]]:
        assert isinstance(self.source, InMemoryMatrix)
        alone = shifts.shape[1] == 1
        matrices = [self.source.factor_buffer() if alone else MemoryMatrix(self.grid) for _ in range(shifts.shape[1])]
        with tile_threads(self.grid, self._threads) as executor:
            for matrix, shift in zip(matrices, shifts.T, strict=True):
                factor_in_memory(memory_system(self.source, shift, matrix), executor)
        return [partial(substituted, matrix) for matrix in matrices]

    def applied(
        self, group: str, shift: Array, dtype: Precision, detail: str, source: TileSource | None = None
    ) -> LocalFactor:
        free = self._free[np.dtype(dtype)]
        self._applied[group] = matrix = free.pop() if free else MemoryMatrix(self.grid, dtype)
        tasks = cholesky_tasks(memory_system(self.source if source is None else source, shift, matrix))
        self._context.run_tasks("factorisation", tasks, detail=detail)
        return LocalFactor(matrix, self._threads, self._context.record)

    def discard(self, group: str) -> None:
        if group in self._applied:
            matrix = self._applied.pop(group)
            self._free[matrix.dtype].append(matrix)


def tile_threads(grid: TileGrid, n_threads: int) -> AbstractContextManager[Executor]:
    """Threads for the tasks of several tiles in memory; one tile is left to BLAS's own."""
    return nullcontext(SerialExecutor()) if grid.n_tiles == 1 else ThreadExecutor(n_threads)


@dataclass
class TiledSystems(DirectSystems):
    """A in tiles, its factors in a store: what an earlier run has finished there is kept."""

    source: TileSource
    grid: TileGrid
    columns_per_task: int
    """Tile columns that one task of a factorisation subtracts; 0 means all."""
    diagonal: Array
    context: Context
    keeps_factors: bool = False

    def kept_factor(self, group: str, shift: Array) -> TiledMatrix:
        factor = self.context.stored.matrix(group, "factor", self.grid)
        return factor if factor.is_complete else self.factor(group, shift, "float64", "")

    def _n_sums(self) -> int:
        """Partial sums of a factorisation."""
        return n_updates(self.grid.n_tiles - 1, self.columns_per_task) - 1

    def solve(self, group: str, shift: Array, right_sides: Array, settle: Settle | None = None) -> SystemSolution:
        factor = self.factor(group, shift, "float64", "")
        found = self._solved(group, factor, shift, right_sides, settle)
        self.release(group)
        return found

    def solve_again(self, group: str, shift: Array, right_sides: Array, settle: Settle | None = None) -> SystemSolution:
        factor, inner = self.factor(group, shift, "float64", ""), f"{group}/batch"
        self.context.storage.delete(inner)  # of the batch before, or of one that a killed run has not finished
        found = self._solved(inner, factor, shift, right_sides, settle)
        self.context.storage.delete(inner)
        return found

    def _solved(
        self, group: str, factor: TiledMatrix, shift: Array, right_sides: Array, settle: Settle | None
    ) -> SystemSolution:
        """Both substitutions with vectors of this group in the store, and the check."""
        grid, context = self.grid, self.context
        scaling = scaling_of(self.diagonal + shift)
        both = with_probe(right_sides, scaling)
        vectors = partial(context.stored.vectors, group, grid=grid, width=both.shape[1])
        sides, between, solution = vectors("right-sides", data=both), vectors("forward"), vectors("solution")
        names = "forward-sums", "backward-sums"
        if not solution.is_complete:
            of_forward, of_backward = (vectors(name, grid=sums_grid(grid)) for name in names)
            forward = Substitution.resumable(factor, sides, between, of_forward, transpose=False)
            backward = Substitution.resumable(factor, between, solution, of_backward, transpose=True)
            context.run_tasks("substitution", both_sweeps(forward, backward))
        for name in names:
            context.stored.delete(f"{group}/{name}")
        x, check = solution.load(), None
        found, probe = x[:, :-1], SolvedProbe.of_solution(both[:, -1], x[:, -1], scaling)
        if settle is not None:
            constants = settle(found)
            kept = partial(context.stored.vectors, group, grid=grid, width=1)
            kept_shift, kept_scaling = kept("shift", data=shift), kept("scaling", data=scaling)
            solved = TiledSolution(self.source, grid, kept_shift, sides, solution, kept_scaling)
            check, record = check_tiled(solved, constants, context.executor, context.progress, context.slots)
            context.add(record)
        return SystemSolution(found, probe, check)

    def release(self, group: str) -> None:
        if not self.context.storage.keeps and not self.keeps_factors:
            self.context.storage.delete(group)

    def discard(self, group: str) -> None:
        self.context.storage.delete(group)

    def factored(self, group: str, shift: Array, detail: str = "") -> TiledMatrix:
        return self.factor(group, shift, "float64", detail)

    def factors(self, groups: Sequence[str], shifts: Array, details: Sequence[str]) -> list[Callable[[Array], Array]]:
        each = zip(groups, np.ascontiguousarray(shifts.T), details, strict=True)
        return [self.applied(group, shift, "float64", detail).apply for group, shift, detail in each]

    def applied(
        self, group: str, shift: Array, dtype: Precision, detail: str, source: TileSource | None = None
    ) -> LocalFactor | SharedFactor:
        context, systems = self.context, self if source is None else replace(self, source=source)
        factor = systems.factor(group, shift, dtype, detail)
        if context.cluster_is_running:
            return SharedFactor(factor, context.executor, context.stored.store, group, context.slots, context.record)
        return LocalFactor(factor, context.threads, context.record)

    def factor(self, group: str, shift: Array, dtype: Precision, detail: str) -> TiledMatrix:
        """Factor A + diag(s) alone.

        Parameters
        ----------
        group : str
            Place in the store; what an earlier run has finished there is kept.
        shift : ndarray of shape (n,)
        dtype : {"float64", "float32"}
            Precision of the factor.
        detail : str
            Which of several factors this is, for the display of the progress.

        Raises
        ------
        NotPositiveDefiniteError
            If a pivot is not positive; what exists of the factor is deleted.
        """
        grid, storage = self.grid, self.context.stored
        shift_of_tiles = storage.vectors(group, "shift", grid, 1, shift)
        factor = storage.matrix(group, "factor", grid, dtype)
        n_sums = 0 if factor.is_complete else self._n_sums()
        system = TiledSystem(
            source=self.source,
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
