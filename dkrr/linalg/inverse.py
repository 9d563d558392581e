"""(L Lᵀ)⁻¹ R with a stored Cholesky factor, again and again: the preconditioner of an iterative solver.

`LocalFactor` substitutes in threads of the calling process, on vectors in its memory, block by block: the
one to be solved next is updated first, so that threads seldom wait for the chain of diagonal blocks. On a cluster one
machine reads no faster than its own disk or network; `SharedFactor` lets the workers read.
"""

import uuid
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkrr.cluster import Executor, Meter, Progress, RunRecord, Task, ThreadExecutor
from dkrr.cluster.tasks import execute
from dkrr.cost import Work
from dkrr.linalg.cholesky import Matrix, factor_bytes
from dkrr.linalg.operator import column_sizes
from dkrr.linalg.substitution import WIDEN_SECONDS, WIDENED_ENTRIES, Substitution, substitution_tasks
from dkrr.linalg.tile_steps import N_SLOTS
from dkrr.store import ChunkedArray, RunStore, TileGrid
from dkrr.store.format import OVERHEAD_BYTES

Array = NDArray[np.float64]


@dataclass
class LocalFactor:
    """(L Lᵀ)⁻¹ applied by threads of the calling process, each with one BLAS thread; bits do not depend on how many.

    Parameters
    ----------
    factor : TiledMatrix or MemoryMatrix
        Complete lower Cholesky factor, float64 or float32.
    n_threads : int
    """

    factor: Matrix
    n_threads: int
    record: RunRecord = field(default_factory=RunRecord)

    def apply(self, residual: Array) -> Array:
        """X = L⁻ᵀ L⁻¹ R.

        Parameters
        ----------
        residual : ndarray of shape (n, m)

        Returns
        -------
        ndarray of shape (n, m)

        Raises
        ------
        StoreError
            If a panel of L is missing or damaged.
        """
        # Substitution in the precision of the factor changes it by no more than its own rounding.
        sizes = column_sizes(residual)  # float32 has a small range
        x = np.array(residual / sizes, self.factor.dtype, order="C")
        done = execute(Task("precondition", self._substitute, (x,)))  # one record: tasks may be thousands
        self.record.add(RunRecord(done.seconds, [done]))
        return x * sizes

    def _substitute(self, meter: Meter, x: NDArray[Any]) -> None:
        # Sums are subtracted in the same order however blocks are cut; tasks cost little here, so blocks are smaller.
        cuts = block_cuts(self.factor.grid.n_tiles, 2 * self.n_threads)
        forward = Substitution.in_memory(self.factor, x, cuts, transpose=False)
        backward = Substitution.in_memory(self.factor, x, cuts, transpose=True)
        with ThreadExecutor(self.n_threads) as executor:
            for task in executor.run(both_sweeps(forward, backward), Progress()).tasks:
                meter.bytes_read += task.bytes_read
                for kind, seconds in task.seconds_by_kind.items():
                    meter.seconds[kind] += seconds


@dataclass
class ScaledFactor:
    """P (L Lᵀ)⁻¹ P, the inverse of a matrix A with L Lᵀ ≈ P A P.

    Parameters
    ----------
    factor : LocalFactor or SharedFactor
    scale : ndarray of shape (n, 1)
        P.
    """

    factor: "LocalFactor | SharedFactor"
    scale: Array

    def apply(self, residual: Array) -> Array:
        """See `LocalFactor.apply`."""
        return self.factor.apply(residual * self.scale) * self.scale


def both_sweeps(forward: Substitution, backward: Substitution) -> list[Task]:
    """Tasks of a forward sweep and of the backward sweep after it."""
    tasks = substitution_tasks(forward, "forward")
    return tasks + substitution_tasks(backward, "backward", (tasks[-1].key,))


@dataclass
class SharedFactor:
    """(L Lᵀ)⁻¹ applied by the tasks of an executor; bits depend on the number of blocks only.

    Vectors of every application lie in arrays of their own: a late duplicate of a task cannot write to the next one's.

    Parameters
    ----------
    factor : TiledMatrix or MemoryMatrix
        Complete lower Cholesky factor, float64 or float32.
    executor : Executor
    store : RunStore
    group : str
        Place of the vectors in the store during an application.
    slots : int
        Tasks that run at once.
    """

    factor: Matrix
    executor: Executor
    store: RunStore
    group: str
    slots: int
    record: RunRecord = field(default_factory=RunRecord)

    def apply(self, residual: Array) -> Array:
        """See `LocalFactor.apply`."""
        grid, m, name = self.factor.grid, residual.shape[1], f"{self.group}/apply-{uuid.uuid4().hex[:8]}"
        cuts = block_cuts(grid.n_tiles, self.slots)

        def vectors(of: str, rows: int = grid.n) -> ChunkedArray:
            return self.store.create_array(f"{name}/{of}", (rows, m), (grid.tile, m))

        def job(of: str, right_sides: ChunkedArray, solution: ChunkedArray, *, transpose: bool) -> Substitution:
            n_sums = len(cuts) - 3
            sums = vectors(f"{of}-sums", n_sums * grid.n_tiles * grid.tile) if n_sums > 0 else None
            return Substitution(self.factor, right_sides, solution, transpose, cuts, n_near=1, sums=sums)

        self.store.create_group(name)
        try:
            given, between, solution = vectors("residual"), vectors("forward"), vectors("backward")
            given.fill(np.asarray(residual, np.float64))
            forward = job("forward", given, between, transpose=False)
            backward = job("backward", between, solution, transpose=True)
            self.record.add(self.executor.run(both_sweeps(forward, backward), Progress()))
            return solution.load()
        finally:
            self.store.delete(name)


def block_cuts(n_tiles: int, slots: int) -> tuple[int, ...]:
    """Tile rows at which blocks begin, for so many tasks at once.

    With P blocks a side the chain of solve tasks is 3/P of the work, so P ≥ 3 slots would keep all busy; the sums are
    P²/2 tasks. Some more than 2 slots is a compromise.
    """
    n_blocks = min(n_tiles, 2 * slots + 4)
    return tuple(round(k * n_tiles / n_blocks) for k in range(n_blocks + 1))


def apply_work(grid: TileGrid, n_right_sides: int, itemsize: int = 8, slots: int | None = None) -> Work:
    """Work of applying (L Lᵀ)⁻¹ once.

    Parameters
    ----------
    grid : TileGrid
    n_right_sides : int
    itemsize : int
        Bytes of an entry of L. The arithmetic is float64 in any case; entries of 4 bytes are widened first.
    slots : int, optional
        Slots of a `SharedFactor`; None is a `LocalFactor`, which writes nothing.
    """
    n_tasks, written = 1, 0
    if slots is not None:
        cuts = block_cuts(grid.n_tiles, slots)
        p = len(cuts) - 1
        n_tasks = 2 * p + max(0, p - 1) * max(0, p - 2)
        # Rows of tiles: every block's solution, and the sums of all blocks before the one next to it.
        sizes = [b - a for a, b in pairwise(cuts)]
        chunks = sum(s * (1 + max(0, q - 1)) for order in (sizes, sizes[::-1]) for q, s in enumerate(order))
        written = chunks * (8 * min(grid.tile, grid.n) * n_right_sides + OVERHEAD_BYTES)
    return Work(
        gemm_flops=4.0 * grid.n**2 * n_right_sides,
        element_seconds=0.0 if itemsize == 8 else WIDEN_SECONDS * grid.n**2,
        read_bytes=2 * factor_bytes(grid, itemsize),
        written_bytes=written,
        n_tasks=n_tasks,
    )


def apply_bytes(grid: TileGrid, n_right_sides: int, itemsize: int = 8, n_threads: int = 0) -> int:
    """Most memory of one task of a `SharedFactor`, or of a `LocalFactor` with `n_threads` (and the calling one)."""
    panel = itemsize * grid.tile * grid.panel
    widened = 8 * max(WIDENED_ENTRIES, grid.panel**2) if itemsize != 8 else 0
    vectors = 8 * n_right_sides * (grid.n + 2 * grid.tile)
    return (n_threads + 1) * (N_SLOTS * panel + widened) + vectors
