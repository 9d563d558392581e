"""Substitution with a Cholesky factor in tiles: L Z = B and Lᵀ X = Z, for many right-hand sides, at any place.

Each of the two sweeps reads L once. Every panel of L is used once: x_i ← x_i − L_ip x_p forward, x_p ← x_p − L_ipᵀ x_i
backward, and one that meets the diagonal also solves with its square. A sweep is nothing but panels in an order that
respects what is read. The arithmetic is in the precision of the vectors: where they are float64, a panel in float32 is
widened strip by strip, in cache.

As tasks, tile rows are put together in blocks, numbered in the order in which they are solved::

    sum-q-k     Σ L_qs X_s over some of the blocks s < q − n_near
    solve-q     X_q from B_q, the sums, the blocks next to it and the square of L on the diagonal

so that only the solve tasks wait for each other. How blocks are cut depends on the place:

- vectors in a store, to be resumed: a block is a tile row, whatever the number of workers (`resumable`);
- vectors in a store, many times (`SharedFactor`): few blocks, so that a task takes longer than sending it;
- vectors in memory (`in_memory`): X takes the place of B. Sums are subtracted there, one after another.

As the preconditioner of an iterative solver a stored factor gives (L Lᵀ)⁻¹ R again and again (`linalg.factor`).
`LocalFactor` substitutes in threads of the calling process, on vectors in its memory, block by block: the one to be
solved next is updated first, so that threads seldom wait for the chain of diagonal blocks. On a cluster one machine
reads no faster than its own disk or network; `SharedFactor` lets the workers read.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkrr import blas
from dkrr.cluster import Meter, Task
from dkrr.cost import Work
from dkrr.linalg.cholesky import N_SLOTS, Matrix, factor_bytes, prefetched
from dkrr.linalg.sources import Vectors, read_range
from dkrr.store import ChunkedArray, MemoryMatrix, TileGrid
from dkrr.store.format import OVERHEAD_BYTES

Array = NDArray[np.float64]
Panels = Sequence[tuple[int, int]]
"""Tile row and number of each panel."""

NEAR_TILES = 2
"""Tile rows whose solution the sums of a resumable substitution do not wait for."""
MIN_TILES_PER_SUM, MAX_SUMS = 4, 12
"""Smallest number of tile rows that one of its sums covers, and most sums of a tile row: on many workers the sums of
all rows continue while the chain of tile rows is solved, and few of them have few tasks."""
WIDENED_ENTRIES = 2**17
"""Entries of a panel that are converted at a time, 1 MiB. Measured: a quarter takes 1.1 times as long, since calls
cost, and four times as many take several times as long, since the buffer leaves the cache and is mapped again."""
WIDEN_SECONDS = 6e-10
"""Elementwise work to convert one entry (measured: a sweep over a factor in memory, in float32 and in float64)."""


@dataclass(frozen=True)
class Substitution:
    """Sweep over a factor: L X = B, or Lᵀ X = B with `transpose`."""

    factor: Matrix
    right_sides: Vectors
    """B, of shape (n, m), in chunks of tile rows if it is stored."""
    solution: Vectors
    """X; the very array of the right-hand sides if they are in memory."""
    transpose: bool
    cuts: tuple[int, ...]
    """Tile rows at which blocks begin, and the number of tile rows."""
    n_near: int = 0
    """Blocks before a block that its solve task subtracts itself."""
    blocks_per_sum: int = 1
    """Blocks that one sum covers."""
    sums: ChunkedArray | None = None
    """Stored sums, number k from row k × (rows of whole tiles); None without sums, and in memory."""

    @classmethod
    def resumable(
        cls, factor: Matrix, right_sides: ChunkedArray, solution: ChunkedArray, sums: ChunkedArray, *, transpose: bool
    ) -> "Substitution":
        """Sweep whose solution and sums are written a tile row at a time.

        Arrays are of shape (n, m), that of the sums as `sums_grid` says.
        """
        cuts = tuple(range(factor.grid.n_tiles + 1))
        return cls(factor, right_sides, solution, transpose, cuts, NEAR_TILES, tiles_per_sum(factor.grid), sums)

    @classmethod
    def in_memory(cls, factor: Matrix, x: Array, cuts: Sequence[int], *, transpose: bool) -> "Substitution":
        """Sweep that overwrites B in memory."""
        return cls(factor, x, x, transpose, tuple(cuts))

    @property
    def n_blocks(self) -> int:
        """Blocks along one side."""
        return len(self.cuts) - 1

    def tiles(self, q: int) -> range:
        """Tile rows of block `q`, in the order in which they are solved."""
        if not self.transpose:
            return range(self.cuts[q], self.cuts[q + 1])
        b = self.n_blocks - 1 - q
        return range(self.cuts[b + 1] - 1, self.cuts[b] - 1, -1)

    def summed_blocks(self, q: int) -> list[range]:
        """Blocks that each sum of block `q` covers."""
        n, step = max(q - self.n_near, 0), self.blocks_per_sum
        return [range(s, min(s + step, n)) for s in range(0, n, step)]

    def between(self, q: int, s: int) -> list[tuple[int, int]]:
        """Panels by which X_s is multiplied for block `q`."""
        return [
            panel
            for a in self.tiles(s if self.transpose else q)
            for b in self.tiles(q if self.transpose else s)
            for panel in _tile_panels(self.factor.grid, a, b)
        ]

    def within(self, q: int) -> list[tuple[int, int]]:
        """Panels that solve block `q`."""
        grid, tiles, panels = self.factor.grid, self.tiles(q), list[tuple[int, int]]()
        for i in tiles:
            before = [panel for k in sorted(tiles) if k < i for panel in _tile_panels(grid, i, k)]
            diagonal = _tile_panels(grid, i, i)
            panels += diagonal[::-1] + before if self.transpose else before + diagonal
        return panels

    def read(self, vectors: Vectors, q: int, number: int = 0) -> dict[int, Array]:
        """Rows of block `q` by tile rows: where they lie in memory, or read from the sum of a number."""
        grid, tiles = self.factor.grid, sorted(self.tiles(q))
        if isinstance(vectors, np.ndarray):
            return {i: vectors[grid.rows(i)] for i in tiles}
        first, stop = grid.rows(tiles[0]).start, grid.rows(tiles[-1]).stop
        begin = number * grid.n_tiles * grid.tile
        block = read_range(vectors, slice(begin + first, begin + stop))
        return {i: block[_shifted(grid.rows(i), -first)] for i in tiles}

    def write(self, meter: Meter, vectors: Vectors, x: Mapping[int, Array], q: int, number: int = 0) -> None:
        """Write the rows of block `q`; in memory they lie there already."""
        if isinstance(vectors, ChunkedArray):
            with meter.time("write"):
                for i in self.tiles(q):
                    meter.bytes_written += vectors.write((number * self.factor.grid.n_tiles + i, 0), x[i])


def tiles_per_sum(grid: TileGrid) -> int:
    """Tile rows that one sum of a resumable substitution covers."""
    return max(MIN_TILES_PER_SUM, -(-grid.n_tiles // MAX_SUMS))


def sums_grid(grid: TileGrid) -> TileGrid:
    """Rows of the sums of a resumable substitution: the whole tiles of all rows for the first, the next, and so on."""
    most = max(1, -(-(grid.n_tiles - 1 - NEAR_TILES) // tiles_per_sum(grid)))
    return TileGrid(most * grid.n_tiles * grid.tile, grid.tile, grid.panel)


def _tile_panels(grid: TileGrid, i: int, j: int) -> list[tuple[int, int]]:
    return [(i, p) for p in grid.panels(j)]


def _shifted(where: slice, by: int) -> slice:
    return slice(where.start + by, where.stop + by)


def substitution_tasks(job: Substitution, name: str, after: tuple[str, ...] = ()) -> list[Task]:
    """Tasks of a sweep that are not done yet.

    Parameters
    ----------
    job : Substitution
    name : str
        Begins the name of every task.
    after : tuple of str
        Tasks that must be complete before the first.
    """
    n_tiles, is_stored = job.factor.grid.n_tiles, isinstance(job.solution, ChunkedArray)
    written, summed = _present(job.solution), _present(job.sums)
    solved = {q for q in range(job.n_blocks) if written.issuperset(job.tiles(q))}
    flops_per_panel = 2.0 * job.right_sides.shape[1] * job.factor.grid.tile * job.factor.grid.panel
    tasks = []

    def add(kind: str, function: Any, place: tuple[int, ...], depends: list[str], n_panels: int) -> str:
        key = "-".join([name, kind, *map(str, place)])
        tasks.append(Task(key, function, (job, *place), tuple(depends) or after, flops_per_panel * n_panels, place))
        return key

    def waits_for(blocks: range) -> list[str]:
        return [f"{name}-solve-{s}" for s in blocks if s not in solved]

    for q in range(job.n_blocks):
        if q in solved:
            continue
        sums = list[str]()
        for k, blocks in enumerate(job.summed_blocks(q)):
            if not summed.issuperset(k * n_tiles + i for i in job.tiles(q)):
                before = [] if is_stored else sums[-1:]  # in memory both subtract from the same rows
                n_panels = sum(len(job.between(q, s)) for s in blocks)
                sums.append(add("sum", sum_blocks, (q, k), waits_for(blocks) + before, n_panels))
        near = range(max(q - job.n_near, 0), q)
        n_panels = len(job.within(q)) + sum(len(job.between(q, s)) for s in near)
        add("solve", solve_block, (q,), waits_for(near) + sums, n_panels)
    return tasks


def _present(vectors: Vectors | None) -> set[int]:
    """Numbers of the complete chunks of what is stored."""
    return {k for k, _ in vectors.present()} if isinstance(vectors, ChunkedArray) else set()


def sum_blocks(meter: Meter, job: Substitution, q: int, k: int) -> None:
    """Task: sum number `k` of block `q`; in memory it is subtracted from the block at once."""
    if isinstance(job.solution, np.ndarray):
        x = job.read(job.solution, q)
    else:
        x = {i: np.zeros((job.factor.grid.height(i), job.solution.shape[1])) for i in job.tiles(q)}
    for s in reversed(job.summed_blocks(q)[k]):
        use_panels(meter, job.factor, job.between(q, s), x | job.read(job.solution, s), transpose=job.transpose)
    if job.sums is not None:
        for rows in x.values():
            np.negative(rows, out=rows)
        job.write(meter, job.sums, x, q, k)


def solve_block(meter: Meter, job: Substitution, q: int) -> None:
    """Task: solve for X_q."""
    x, wanted = job.read(job.right_sides, q), list[tuple[int, int]]()
    if job.sums is not None:
        for k in range(len(job.summed_blocks(q))):
            for i, rows in job.read(job.sums, q, k).items():
                x[i] -= rows
            del rows  # a tile row of m columns is not small
    for s in reversed(range(max(q - job.n_near, 0), q)):
        x |= job.read(job.solution, s)
        wanted += job.between(q, s)
    use_panels(meter, job.factor, wanted + job.within(q), x, transpose=job.transpose)
    job.write(meter, job.solution, x, q)


def substituted(factor: Matrix, right_sides: Array, sweeps: Sequence[bool] = (False, True)) -> Array:
    """(L Lᵀ)⁻¹ B in the calling thread, of shape (n, m); with one of both sweeps L⁻¹ B (False) or L⁻ᵀ B (True)."""
    x = np.array(right_sides, np.float64, order="C")
    if isinstance(factor, MemoryMatrix) and factor.grid.n_tiles == 1:  # what follows takes longer than a small solve
        square = factor.tile_buffer(0, 0).astype(np.float64, copy=False)
        for transpose in sweeps:
            blas.solve_lower(square, x, transpose=transpose)
        return x
    for transpose in sweeps:
        solve_block(Meter(), Substitution.in_memory(factor, x, (0, factor.grid.n_tiles), transpose=transpose), 0)
    return x


def use_panels(meter: Meter, factor: Matrix, wanted: Panels, x: Mapping[int, Array], *, transpose: bool) -> None:
    """Take the steps of x ← L⁻¹ x, or L⁻ᵀ x with `transpose`, that belong to some panels, one after another.

    Parameters
    ----------
    meter : Meter
    factor : TiledMatrix or MemoryMatrix
    wanted : sequence of (int, int)
    x : mapping from int to ndarray of shape (height, m)
        Tile rows that the panels meet; some are overwritten.
    transpose : bool
    """
    grid = factor.grid
    for i, p, panel in read_panels(meter, factor, wanted):
        j = grid.tile_of(p)
        columns = _shifted(grid.columns(p), -grid.rows(j).start)
        with meter.time("trsm" if i == j else "gemm"):
            if i == j:
                solve_panel(panel, columns, x[i], transpose=transpose)
            elif transpose:
                subtract_product(x[j][columns], panel, x[i], transpose=True)
            else:
                subtract_product(x[i], panel, x[j][columns])


def read_panels(meter: Meter, factor: Matrix, wanted: Panels) -> Iterator[tuple[int, int, NDArray[Any]]]:
    """Yield each panel, overwritten later, after its tile row and number; it is read while the one before is in use."""
    buffers = [factor.panel_buffer() for _ in range(N_SLOTS)]

    def load(k: int, slot: int) -> tuple[NDArray[Any], int]:
        return factor.read_panel(*wanted[k], buffers[slot])

    for (i, p), (panel, n_bytes) in zip(
        wanted, prefetched(len(wanted), load, meter, waits=factor.is_stored), strict=True
    ):
        meter.bytes_read += n_bytes
        yield i, p, panel


def solve_panel(panel: NDArray[Any], columns: slice, x: Array, *, transpose: bool) -> None:
    """Do one step of x ← L⁻¹ x or L⁻ᵀ x, with a panel of a triangular L, in the precision of x.

    Parameters
    ----------
    panel : ndarray of shape (n, len(columns))
        float64 or float32; what is above its diagonal is not read.
    columns : slice
        Columns of L, and with it the rows of x that are solved for. Forward, panels come from the first to the last,
        backward from the last to the first.
    x : ndarray of shape (n, m)
        Overwritten.
    transpose : bool
    """
    square, below = panel[columns].astype(x.dtype, copy=False), slice(columns.stop, len(x))
    if transpose:
        subtract_product(x[columns], panel[below], x[below], transpose=True)
        blas.solve_lower(square, x[columns], transpose=True)
    else:
        blas.solve_lower(square, x[columns])
        subtract_product(x[below], panel[below], x[columns])


def subtract_product(c: Array, panel: NDArray[Any], x: Array, *, transpose: bool = False) -> None:
    """Set c ← c − panel x (panelᵀ x with `transpose`) in the precision of c, which may exceed the panel's.

    Parameters
    ----------
    c : ndarray of shape (h, m), or (w, m) with `transpose`
        Overwritten.
    panel : ndarray of shape (h, w)
        float64 or float32.
    x : ndarray of shape (w, m), or (h, m) with `transpose`
    """
    if panel.dtype == c.dtype:
        blas.gemm(c, panel, x, transpose_a=transpose, alpha=-1.0, beta=1.0)
        return
    height, width = panel.shape
    most = max(1, min(WIDENED_ENTRIES // max(width, 1), height))
    widened = np.empty((most, width))
    for start in range(0, height, most):
        rows = slice(start, min(start + most, height))
        strip = widened[: rows.stop - start]
        np.copyto(strip, panel[rows])
        if transpose:
            blas.gemm(c, strip, x[rows], transpose_a=True, alpha=-1.0, beta=1.0)
        else:
            blas.gemm(c[rows], strip, x, alpha=-1.0, beta=1.0)


def substitution_places(grid: TileGrid) -> int:
    """Tasks of a resumable sweep that run at once, in the mean.

    Solving a tile row takes NEAR_TILES + 1 of its tiles, one row after another; a row has n_tiles / 2 in the mean.
    """
    return 1 if grid.n_tiles <= NEAR_TILES + 1 else max(2, grid.n_tiles // (2 * (NEAR_TILES + 1)))


def threads_at_once(grid: TileGrid, n_right_sides: int, n_threads: int) -> int:
    """Threads of one process that sweep over a factor, or multiply by its matrix, in the memory of one task of that.

    Few vectors leave BLAS's own threads nothing to do: reading the factor, and forming the matrix, take the time.
    """
    if grid.n * n_right_sides > grid.tile * grid.panel:
        return 1
    return max(1, min(n_threads, 1 + grid.tile // ((N_SLOTS + 1) * grid.panel)))


def substitution_work(grid: TileGrid, n_right_sides: int, itemsize: int = 8) -> Work:
    """Work of one resumable sweep with a factor of `itemsize` bytes to an entry.

    The arithmetic is float64 in any case; entries of 4 bytes are widened first.
    """
    # Of every tile row its solution and its sums.
    n_tasks = sum(1 + -(-max(q - NEAR_TILES, 0) // tiles_per_sum(grid)) for q in range(grid.n_tiles))
    return Work(
        gemm_flops=2.0 * grid.n**2 * n_right_sides,
        element_seconds=0.0 if itemsize == 8 else WIDEN_SECONDS * grid.n**2 / 2,
        read_bytes=factor_bytes(grid, itemsize),
        written_bytes=n_tasks * (8.0 * min(grid.tile, grid.n) * n_right_sides + OVERHEAD_BYTES),
        n_tasks=n_tasks,
    )


def both_sweeps(forward: Substitution, backward: Substitution) -> list[Task]:
    """Tasks of a forward sweep and of the backward sweep after it."""
    tasks = substitution_tasks(forward, "forward")
    solving = tuple(task.key for task in tasks if task.function is solve_block)  # each after its sums
    return tasks + substitution_tasks(backward, "backward", solving)


def block_cuts(n_tiles: int, slots: int) -> tuple[int, ...]:
    """Tile rows at which blocks begin, for `slots` tasks at once.

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
