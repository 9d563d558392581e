"""Substitution with a stored Cholesky factor, panel by panel, and as a few large tasks.

The two sweeps L Z = R and LᵀX = Z each read L once and work in float64, whatever the dtype of L. Every panel of L has a
part of its own in a sweep: x_i ← x_i − L_ip x_p forward, x_p ← x_p − L_ipᵀ x_i backward, and if it meets the diagonal,
the solution with its square. A sweep is nothing but panels in an order that respects who waits for whom.

So that a task takes longer than it takes to send one, tiles are put together to a few blocks a side::

    solve-q     X_q from R_q, the parts of all blocks before q − 1, block (q, q − 1) and block (q, q)
    part-q-s    −L_qs X_s, s < q − 1

Only the solve tasks wait for each other. (`triangular` has a task for every tile row, of which a run can be resumed.)
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dkrr import blas
from dkrr.linalg.cholesky import Matrix
from dkrr.linalg.sources import read_range
from dkrr.linalg.triangular import read_panels, solve_panel, subtract_product
from dkrr.runtime import Meter, Task
from dkrr.tiles import ChunkedArray, MemoryMatrix, TileGrid

Vectors = NDArray[np.float64]
Panels = Sequence[tuple[int, int]]
"""Tile row and number of each panel."""


def sweep(meter: Meter, factor: Matrix, wanted: Panels, x: Vectors, *, transpose: bool) -> None:
    """Let panels have their part in x ← L⁻¹ x, or L⁻ᵀ x with `transpose`, one after another.

    Parameters
    ----------
    meter : Meter
    factor : TiledMatrix or MemoryMatrix
    wanted : sequence of (int, int)
    x : ndarray of shape (n, m)
        Overwritten in the rows that belong to these panels; others are not touched.
    transpose : bool
    """
    grid = factor.grid
    for i, p, panel in read_panels(meter, factor, wanted):
        rows, columns = grid.rows(i), grid.columns(p)
        with meter.time("substitution"):
            if grid.tile_of(p) == i:
                solve_panel(panel, _shifted(columns, -rows.start), x[rows], transpose=transpose)
            elif transpose:
                subtract_product(x[columns], panel, x[rows], transpose=True)
            else:
                subtract_product(x[rows], panel, x[columns])


def _shifted(where: slice, by: int) -> slice:
    return slice(where.start + by, where.stop + by)


def tile_panels(grid: TileGrid, i: int, j: int) -> list[tuple[int, int]]:
    """Panels of one tile."""
    return [(i, p) for p in grid.panels(j)]


def diagonal_panels(grid: TileGrid, j: int, *, transpose: bool) -> list[tuple[int, int]]:
    """Panels of a diagonal tile, in the order in which they are solved."""
    return tile_panels(grid, j, j)[::-1] if transpose else tile_panels(grid, j, j)


def ordered_panels(grid: TileGrid, tiles: range, *, transpose: bool) -> Iterator[tuple[int, int]]:
    """Panels of the square of L that these tile rows and columns make, in an order in which they can be solved.

    Parameters
    ----------
    grid : TileGrid
    tiles : range
        In the order in which they are solved: the last one first with `transpose`.
    transpose : bool
    """
    for i in tiles:
        before = [panel for k in sorted(tiles) if k < i for panel in tile_panels(grid, i, k)]
        diagonal = diagonal_panels(grid, i, transpose=transpose)
        yield from diagonal + before if transpose else before + diagonal


def substituted(factor: Matrix, right_sides: Vectors) -> Vectors:
    """(L Lᵀ)⁻¹ B in the calling thread, of shape (n, m)."""
    x, grid, meter = np.array(right_sides, np.float64, order="C"), factor.grid, Meter()
    if isinstance(factor, MemoryMatrix) and grid.n_tiles == 1:
        blas.solve_lower(factor.room(0, 0), x)
        blas.solve_lower(factor.room(0, 0), x, transpose=True)
        return x
    for tiles, transpose in ((range(grid.n_tiles), False), (range(grid.n_tiles - 1, -1, -1), True)):
        sweep(meter, factor, list(ordered_panels(grid, tiles, transpose=transpose)), x, transpose=transpose)
    return x


@dataclass(frozen=True)
class Sweep:
    """One sweep as tasks; vectors have shape (n, m), in chunks of tile rows."""

    factor: Matrix
    right_sides: ChunkedArray
    solution: ChunkedArray
    partial: ChunkedArray | None
    """Parts, one (whole tiles, m) below another; None with at most two blocks."""
    cuts: tuple[int, ...]
    """Tile rows at which blocks begin, and the number of tile rows."""
    transpose: bool

    @property
    def n_blocks(self) -> int:
        """Blocks along one side."""
        return len(self.cuts) - 1

    def tiles(self, q: int) -> range:
        """Tile rows of the block that is solved as number `q`, in the order in which they are solved."""
        if not self.transpose:
            return range(self.cuts[q], self.cuts[q + 1])
        b = self.n_blocks - 1 - q
        return range(self.cuts[b + 1] - 1, self.cuts[b] - 1, -1)

    def rows(self, q: int) -> slice:
        """Rows of that block."""
        tiles, grid = self.tiles(q), self.factor.grid
        return slice(grid.rows(min(tiles)).start, grid.rows(max(tiles)).stop)

    def part(self, s: int, rows: slice) -> slice:
        """Rows of `partial` where the part of block `s` in these rows is."""
        return _shifted(rows, s * self.factor.grid.n_tiles * self.factor.grid.tile)

    def between(self, q: int, s: int) -> list[tuple[int, int]]:
        """Panels by which X_s has its part in block `q`."""
        return [
            panel
            for a in self.tiles(s if self.transpose else q)
            for b in self.tiles(q if self.transpose else s)
            for panel in tile_panels(self.factor.grid, a, b)
        ]

    def within(self, q: int) -> list[tuple[int, int]]:
        """Panels that solve block `q`."""
        return list(ordered_panels(self.factor.grid, self.tiles(q), transpose=self.transpose))


def sweep_tasks(job: Sweep, name: str, after: tuple[str, ...] = ()) -> list[Task]:
    """Tasks of a sweep.

    Parameters
    ----------
    job : Sweep
    name : str
        Begins the name of every task.
    after : tuple of str
        Tasks that must be complete before the first.
    """
    tasks, entries = [], 2.0 * job.right_sides.shape[1] * job.factor.grid.tile * job.factor.grid.panel
    for q in range(job.n_blocks):
        parts = []
        for s in range(q - 1):
            parts.append(f"{name}-part-{q}-{s}")
            flops = entries * len(job.between(q, s))
            tasks.append(Task(parts[-1], part_of_block, (job, q, s), (f"{name}-solve-{s}",), flops, (q, s)))
        flops = entries * (len(job.within(q)) + (len(job.between(q, q - 1)) if q else 0))
        depends = (f"{name}-solve-{q - 1}", *parts) if q else after
        tasks.append(Task(f"{name}-solve-{q}", solve_block, (job, q), depends, flops, (q,)))
    return tasks


def part_of_block(meter: Meter, job: Sweep, q: int, s: int) -> None:
    """Task: what X_s subtracts from the right-hand sides of block `q`."""
    assert job.partial is not None
    x, rows = np.empty(job.solution.shape), job.rows(q)
    x[rows] = 0.0
    x[job.rows(s)] = read_range(job.solution, job.rows(s))
    sweep(meter, job.factor, job.between(q, s), x, transpose=job.transpose)
    _write_rows(meter, job, q, x, job.partial, s * job.factor.grid.n_tiles)


def solve_block(meter: Meter, job: Sweep, q: int) -> None:
    """Task: X_q."""
    x, rows = np.empty(job.solution.shape), job.rows(q)
    x[rows] = read_range(job.right_sides, rows)
    for s in range(q - 1):
        assert job.partial is not None
        x[rows] += read_range(job.partial, job.part(s, rows))
    wanted = job.within(q)
    if q:
        x[job.rows(q - 1)] = read_range(job.solution, job.rows(q - 1))
        wanted = job.between(q, q - 1) + wanted
    sweep(meter, job.factor, wanted, x, transpose=job.transpose)
    _write_rows(meter, job, q, x, job.solution, 0)


def _write_rows(meter: Meter, job: Sweep, q: int, x: Vectors, array: ChunkedArray, first: int) -> None:
    with meter.time("write"):
        for i in job.tiles(q):
            meter.bytes_written += array.write((first + i, 0), x[job.factor.grid.rows(i)])


def block_cuts(n_tiles: int, slots: int) -> tuple[int, ...]:
    """Tile rows at which the blocks of a `SharedFactor` begin.

    With P blocks a side the chain of solve tasks is 3/P of the work, so P ≥ 3 slots would keep all busy; the parts are
    P²/2 tasks. Some more than 2 slots is a compromise.
    """
    n_blocks = min(n_tiles, 2 * slots + 4)
    return tuple(round(k * n_tiles / n_blocks) for k in range(n_blocks + 1))
