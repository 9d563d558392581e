"""(L Lᵀ)⁻¹ R with a stored Cholesky factor, again and again: the preconditioner of an iterative solver.

`LocalFactor` sweeps in threads of the calling process, on vectors in its memory, tile by tile: whoever is to be solved
next is updated first, so that the threads seldom wait for the chain of diagonal tiles. On a cluster one machine reads
no faster than its own disk or network; `SharedFactor` lets the workers read.
"""

import uuid
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dkrr import blas
from dkrr.cost import Cost
from dkrr.linalg.cholesky import Matrix, factor_bytes
from dkrr.linalg.prefetch import N_SLOTS
from dkrr.linalg.sweeps import Panels, Sweep, block_cuts, diagonal_panels, sweep, sweep_tasks, tile_panels
from dkrr.linalg.triangular import WIDEN_SECONDS, WIDENED_ENTRIES
from dkrr.runtime import Executor, Meter, Progress, RunRecord, Task
from dkrr.runtime.task import execute
from dkrr.tiles import ChunkedArray, RunStore, TileGrid

Vectors = NDArray[np.float64]


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

    def apply(self, residual: Vectors) -> Vectors:
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
        x = np.array(residual, np.float64, order="C")
        with blas.one_thread():
            done = execute(Task("precondition", self._sweeps, (x,)))
        self.record.add(RunRecord(done.seconds, [done]))
        return x

    def _sweeps(self, meter: Meter, x: Vectors) -> None:
        with ThreadPoolExecutor(self.n_threads, thread_name_prefix="dkrr-apply") as pool:
            self._sweep(meter, pool, x, transpose=False)
            self._sweep(meter, pool, x, transpose=True)

    def _sweep(self, meter: Meter, pool: ThreadPoolExecutor, x: Vectors, *, transpose: bool) -> None:
        grid, updates = self.factor.grid, list[Future[Meter]]()
        newest: dict[int, Future[Meter]] = {}
        left = list(range(grid.n_tiles))[:: -1 if transpose else 1]
        while left:
            j = left.pop(0)
            if j in newest:
                newest[j].result()
            sweep(meter, self.factor, diagonal_panels(grid, j, transpose=transpose), x, transpose=transpose)
            for k in left:  # the next one first
                wanted = tile_panels(grid, j, k) if transpose else tile_panels(grid, k, j)
                newest[k] = pool.submit(self._update, newest.get(k), wanted, x, transpose)
                updates.append(newest[k])
        for update in updates:
            _merge(meter, update.result())

    def _update(self, before: Future[Meter] | None, wanted: Panels, x: Vectors, transpose: bool) -> Meter:
        # The pool begins in the order of submission, so what is waited for has begun: threads cannot lock each other.
        if before is not None:
            before.result()
        meter = Meter()
        sweep(meter, self.factor, wanted, x, transpose=transpose)
        return meter


def _merge(meter: Meter, part: Meter) -> None:
    meter.bytes_read += part.bytes_read
    for kind, seconds in part.seconds.items():
        meter.seconds[kind] += seconds


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
        Where in the store vectors are kept during an application.
    slots : int
        Tasks that run at once.
    """

    factor: Matrix
    executor: Executor
    store: RunStore
    group: str
    slots: int
    record: RunRecord = field(default_factory=RunRecord)

    def apply(self, residual: Vectors) -> Vectors:
        """See `LocalFactor.apply`."""
        grid, m, name = self.factor.grid, residual.shape[1], f"{self.group}/apply-{uuid.uuid4().hex[:8]}"
        cuts = block_cuts(grid.n_tiles, self.slots)

        def vectors(of: str, rows: int = grid.n) -> ChunkedArray:
            return ChunkedArray.create(self.store.at(f"{name}/{of}"), (rows, m), (grid.tile, m))

        def job(of: str, right_sides: ChunkedArray, *, transpose: bool) -> Sweep:
            n_parts = len(cuts) - 3
            partial = vectors(f"{of}-partial", n_parts * grid.n_tiles * grid.tile) if n_parts > 0 else None
            return Sweep(self.factor, right_sides, vectors(of), partial, cuts, transpose)

        self.store.create_group(name)
        try:
            given = vectors("residual")
            given.fill(np.asarray(residual, np.float64))
            forward = job("forward", given, transpose=False)
            backward = job("backward", forward.solution, transpose=True)
            tasks = sweep_tasks(forward, "forward")
            tasks += sweep_tasks(backward, "backward", (tasks[-1].key,))
            self.record.add(self.executor.run(tasks, Progress()))
            return backward.solution.load()
        finally:
            self.store.delete(name)


def apply_cost(grid: TileGrid, n_right_sides: int, itemsize: int = 8, slots: int | None = None) -> Cost:
    """Cost of applying (L Lᵀ)⁻¹ once.

    Parameters
    ----------
    grid : TileGrid
    n_right_sides : int
    itemsize : int
        Bytes of an entry of L. The arithmetic is float64 in any case; entries of 4 bytes are widened first.
    slots : int, optional
        Of a `SharedFactor`; None is a `LocalFactor`, which writes nothing.
    """
    n_tasks, written = 1, 0
    if slots is not None:
        cuts = block_cuts(grid.n_tiles, slots)
        p = len(cuts) - 1
        n_tasks = 2 * p + max(0, p - 1) * max(0, p - 2)
        # Rows of tiles: every block's solution, and the parts of all blocks before the one next to it.
        sizes = [b - a for a, b in pairwise(cuts)]
        chunks = sum(s * (1 + max(0, q - 1)) for order in (sizes, sizes[::-1]) for q, s in enumerate(order))
        written = chunks * (8 * min(grid.tile, grid.n) * n_right_sides + 4)
    return Cost(
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
