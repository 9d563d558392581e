"""Cholesky factors L Lᵀ = A + diag(s) apart from the matrix: what solves with them, wherever L is and however rounded.

`SquareFactor` (in `linalg.square`) is an array, `MemoryFactor` are tiles in memory. As the preconditioner of an
iterative solver a factor solves again and again: `LocalFactor` in threads of the calling process, `SharedFactor` in
tasks of a cluster, each with a factor in memory or in a store, in float64 or float32. `ScaledFactor` is that of a
matrix whose rows and columns were scaled before they were rounded.

A matrix that is factored with one diagonal after another is a `DirectSystems`.
"""

import uuid
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkrr.blas import column_sizes
from dkrr.cluster import Executor, Meter, Progress, RunRecord, Task, ThreadExecutor
from dkrr.cluster.tasks import execute
from dkrr.linalg.cholesky import Matrix
from dkrr.linalg.residual import Check, SystemSolution
from dkrr.linalg.substitution import Substitution, block_cuts, both_sweeps, substituted
from dkrr.store import ChunkedArray, RunStore
from dkrr.store.run_store import APPLICATION

Array = NDArray[np.float64]


class Factor(ABC):
    """Complete lower Cholesky factor L, with L Lᵀ = A + diag(s) to the rounding of its dtype."""

    matrix: Matrix
    """L in tiles."""

    @abstractmethod
    def solve(self, right_sides: Array) -> Array:
        """X = L⁻ᵀ L⁻¹ B.

        Parameters
        ----------
        right_sides : ndarray of shape (n, m)

        Returns
        -------
        ndarray of shape (n, m)

        Raises
        ------
        StoreError
            If a panel of L is missing or damaged.
        """


class DirectSystems(ABC):
    """A matrix A that is factored with one diagonal after another; groups name factors and vectors in the storage."""

    diagonal: Array
    """Diagonal of A, of shape (n,)."""

    @abstractmethod
    def factor(self, group: str, shift: Array, detail: str = "") -> Factor:
        """Factor A + diag(s) in float64.

        Parameters
        ----------
        group : str
            Place in the storage; what an earlier run has finished there is kept.
        shift : ndarray of shape (n,)
        detail : str
            Which of several factors this is, for the display of the progress.

        Raises
        ------
        NotPositiveDefiniteError
            If a pivot is not positive; what exists of the factor is deleted.
        """

    def begin(self, group: str, shift: Array, right_sides: Array) -> None:  # noqa: B027
        """Take what an earlier run has solved of (A + diag(s)) X = B, before that is given up; see `solve`."""

    @abstractmethod
    def solve(self, group: str, factor: Factor, shift: Array, right_sides: Array) -> SystemSolution:
        """Solve (A + diag(s)) X = B with a factor, which may be given up before the solution is checked.

        Parameters
        ----------
        group : str
            Place of the vectors in the storage; what an earlier run has finished there is kept.
        factor : Factor
        shift : ndarray of shape (n,)
        right_sides : ndarray of shape (n, m)
        """

    @abstractmethod
    def check(self, solution: SystemSolution, constants: Array | None) -> Check:
        """Residual, energies and condition number of a solution, by one product with A.

        Parameters
        ----------
        solution : SystemSolution
            Overwritten if it is in memory.
        constants : ndarray of shape (k, t), optional
            Terms of the intercepts; see `dkrr.linalg.residual.without_intercept`.
        """

    @abstractmethod
    def release(self, group: str) -> None:
        """Delete a group in the storage; memory of a factor is for the next ones."""


@dataclass
class MemoryFactor(Factor):
    """Factor in tiles of this process's memory, which the calling thread solves with."""

    matrix: Matrix

    def solve(self, right_sides: Array) -> Array:
        return substituted(self.matrix, right_sides)


@dataclass
class LocalFactor(Factor):
    """(L Lᵀ)⁻¹ applied by threads of the calling process, each with one BLAS thread; bits do not depend on how many.

    Parameters
    ----------
    matrix : TiledMatrix or MemoryMatrix
        Complete lower Cholesky factor, float64 or float32.
    n_threads : int
    """

    matrix: Matrix
    n_threads: int
    record: RunRecord = field(default_factory=RunRecord)

    def solve(self, right_sides: Array) -> Array:
        # Substitution in the precision of the factor changes it by no more than its own rounding.
        sizes = column_sizes(right_sides)  # float32 has a small range
        x = np.array(right_sides / sizes, self.matrix.dtype, order="C")
        done = execute(Task("precondition", self._substitute, (x,)))  # one record: tasks may be thousands
        self.record.add(RunRecord(done.seconds, [done]))
        return x * sizes

    def _substitute(self, meter: Meter, x: NDArray[Any]) -> None:
        # Sums are subtracted in the same order however blocks are cut; tasks cost little here, so blocks are smaller.
        cuts = block_cuts(self.matrix.grid.n_tiles, 2 * self.n_threads)
        forward = Substitution.in_memory(self.matrix, x, cuts, transpose=False)
        backward = Substitution.in_memory(self.matrix, x, cuts, transpose=True)
        with ThreadExecutor(self.n_threads) as executor:
            for task in executor.run(both_sweeps(forward, backward), Progress()).tasks:
                meter.bytes_read += task.bytes_read
                for kind, seconds in task.seconds_by_kind.items():
                    meter.seconds[kind] += seconds


@dataclass
class ScaledFactor(Factor):
    """P (L Lᵀ)⁻¹ P, the inverse of a matrix A with L Lᵀ ≈ P A P.

    Parameters
    ----------
    factor : Factor
    scale : ndarray of shape (n, 1)
        P.
    """

    factor: Factor
    scale: Array

    @property
    def matrix(self) -> Matrix:  # type: ignore[override]
        """L, of the scaled matrix."""
        return self.factor.matrix

    def solve(self, right_sides: Array) -> Array:
        return self.factor.solve(right_sides * self.scale) * self.scale


@dataclass
class SharedFactor(Factor):
    """(L Lᵀ)⁻¹ applied by the tasks of an executor; bits depend on the number of blocks only.

    Vectors of every application lie in their own arrays: a late duplicate of a task cannot write to the next one's.

    Parameters
    ----------
    matrix : TiledMatrix or MemoryMatrix
        Complete lower Cholesky factor, float64 or float32.
    executor : Executor
    store : RunStore
    group : str
        Place of the vectors in the store during an application.
    slots : int
        Tasks that run at once.
    """

    matrix: Matrix
    executor: Executor
    store: RunStore
    group: str
    slots: int
    record: RunRecord = field(default_factory=RunRecord)
    _is_first: bool = field(default=True, init=False, repr=False)

    def solve(self, right_sides: Array) -> Array:
        grid, m, name = self.matrix.grid, right_sides.shape[1], f"{self.group}/{APPLICATION}{uuid.uuid4().hex[:8]}"
        if self._is_first:
            self._is_first = False
            self.store.delete_below(self.group, APPLICATION)
        cuts = block_cuts(grid.n_tiles, self.slots)

        def vectors(of: str, rows: int = grid.n) -> ChunkedArray:
            return self.store.create_array(f"{name}/{of}", (rows, m), (grid.tile, m))

        def job(of: str, given: ChunkedArray, solution: ChunkedArray, *, transpose: bool) -> Substitution:
            n_sums = len(cuts) - 3
            sums = vectors(f"{of}-sums", n_sums * grid.n_tiles * grid.tile) if n_sums > 0 else None
            return Substitution(self.matrix, given, solution, transpose, cuts, n_near=1, sums=sums)

        self.store.create_group(name)
        try:
            given, between, solution = vectors("residual"), vectors("forward"), vectors("backward")
            given.fill(np.asarray(right_sides, np.float64))
            forward = job("forward", given, between, transpose=False)
            backward = job("backward", between, solution, transpose=True)
            self.record.add(self.executor.run(both_sweeps(forward, backward), Progress()))
            return solution.load()
        finally:
            self.store.delete(name)
