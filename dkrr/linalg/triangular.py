"""Substitution with a stored Cholesky factor, out of core, for many right-hand sides.

Forward substitution alone (for new right-hand sides) and the backward sweep L ᵀX = Z, which reads L once::

    X_j = L_jj⁻ᵀ (Z_j − Σ_{i>j} L_ijᵀ X_i)

The sum is split in two tasks, so that workers need not wait for each other at every step: the far part (all i that
were finished `LOOK_AHEAD` steps ago) and the near part with the division.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dkrr import blas
from dkrr.cost import Cost
from dkrr.linalg.cholesky import factor_bytes
from dkrr.linalg.prefetch import N_SLOTS, prefetched
from dkrr.linalg.sources import read_range
from dkrr.runtime.task import Meter, Task
from dkrr.tiles import ChunkedArray, TiledMatrix, TileGrid

Strip = NDArray[np.float64]

LOOK_AHEAD = 2
"""Tile rows whose solution a far part does not wait for."""


@dataclass(frozen=True)
class Substitution:
    """L and the vectors of one substitution; each has shape (n, m), in chunks of tile rows."""

    factor: TiledMatrix
    right_sides: ChunkedArray
    partial: ChunkedArray | None
    """Far parts of the sums (backward only)."""
    solution: ChunkedArray


def forward_tasks(job: Substitution) -> list[Task]:
    """Tasks of L Z = B that are not done yet."""
    grid, done = job.factor.grid, {k for k, _ in job.solution.present()}
    return [
        Task(
            f"forward-{j}",
            forward_rows,
            (job, j),
            depends=tuple(f"forward-{k}" for k in range(j) if k not in done),
            flops=2.0 * grid.height(j) * grid.rows(j).stop * job.right_sides.shape[1],
        )
        for j in range(grid.n_tiles)
        if j not in done
    ]


def forward_rows(meter: Meter, job: Substitution, j: int) -> None:
    """Task: Z_j = L_jj⁻¹(B_j − Σ_{k<j} L_jk Z_k)."""
    grid = job.factor.grid
    z = read_range(job.right_sides, grid.rows(j))
    for k in range(j):
        z_k = read_range(job.solution, grid.rows(k))
        for p, strip in _strips(meter, job.factor, [(j, p) for p in grid.panels(k)]):
            columns = _local(grid, p)
            with meter.time("gemm"):
                blas.gemm(z, strip, z_k[columns], alpha=-1.0, beta=1.0)
    _solve_diagonal(meter, job.factor, j, z, transpose=False)
    meter.bytes_written += job.solution.write((j, 0), z)


def backward_tasks(job: Substitution) -> list[Task]:
    """Tasks of Lᵀ X = Z that are not done yet."""
    assert job.partial is not None
    grid, m = job.factor.grid, job.right_sides.shape[1]
    done, summed = {k for k, _ in job.solution.present()}, {k for k, _ in job.partial.present()}
    tasks = []
    for j in reversed(range(grid.n_tiles)):
        if j in done:
            continue
        near = min(j + 1 + LOOK_AHEAD, grid.n_tiles)
        has_far = near < grid.n_tiles
        if has_far and j not in summed:
            flops = 2.0 * m * grid.height(j) * (grid.n - grid.rows(near).start)
            missing = tuple(f"near-{i}" for i in range(near, grid.n_tiles) if i not in done)
            tasks.append(Task(f"far-{j}", far_sum, (job, j), missing, flops, (1, -j)))
        depends = ((f"far-{j}",) if has_far else ()) + tuple(f"near-{i}" for i in range(j + 1, near) if i not in done)
        flops = 2.0 * m * grid.height(j) * (grid.rows(near - 1).stop - grid.rows(j).start)
        tasks.append(Task(f"near-{j}", near_solve, (job, j), depends, flops, (0, -j)))
    return tasks


def far_sum(meter: Meter, job: Substitution, j: int) -> None:
    """Task: Σ L_ijᵀ X_i over the rows i that are far below j."""
    assert job.partial is not None
    grid = job.factor.grid
    total = np.zeros((grid.height(j), job.right_sides.shape[1]))
    _add_products(meter, job, j, range(j + 1 + LOOK_AHEAD, grid.n_tiles), total)
    meter.bytes_written += job.partial.write((j, 0), total)


def near_solve(meter: Meter, job: Substitution, j: int) -> None:
    """Task: X_j from the far sum, the near rows and the diagonal tile."""
    assert job.partial is not None
    grid = job.factor.grid
    near = min(j + 1 + LOOK_AHEAD, grid.n_tiles)
    total = np.zeros((grid.height(j), job.right_sides.shape[1]))
    if near < grid.n_tiles:
        total += read_range(job.partial, grid.rows(j))
    _add_products(meter, job, j, range(j + 1, near), total)
    x = read_range(job.right_sides, grid.rows(j))
    x -= total
    _solve_diagonal(meter, job.factor, j, x, transpose=True)
    meter.bytes_written += job.solution.write((j, 0), x)


def _add_products(meter: Meter, job: Substitution, j: int, rows: range, total: NDArray[np.float64]) -> None:
    grid = job.factor.grid
    for i in rows:
        x_i = read_range(job.solution, grid.rows(i))
        for p, strip in _strips(meter, job.factor, [(i, p) for p in grid.panels(j)]):
            with meter.time("gemm"):
                blas.gemm(total[_local(grid, p)], strip, x_i, transpose_a=True, beta=1.0)


def _solve_diagonal(meter: Meter, factor: TiledMatrix, j: int, x: NDArray[np.float64], *, transpose: bool) -> None:
    """Set x ← L_jj⁻¹ x or L_jj⁻ᵀ x, a strip at a time."""
    panels = list(factor.grid.panels(j))
    for p, strip in _strips(meter, factor, [(j, p) for p in (reversed(panels) if transpose else panels)]):
        c = _local(factor.grid, p)
        with meter.time("trsm"):
            if transpose:
                blas.gemm(x[c], strip[c.stop :], x[c.stop :], transpose_a=True, alpha=-1.0, beta=1.0)
                blas.solve_lower(strip[c], x[c], transpose=True)
            else:
                blas.solve_lower(strip[c], x[c])
                blas.gemm(x[c.stop :], strip[c.stop :], x[c], alpha=-1.0, beta=1.0)


def _local(grid: TileGrid, p: int) -> slice:
    """Columns of strip p within its tile."""
    columns, first = grid.columns(p), grid.rows(grid.tile_of(p)).start
    return slice(columns.start - first, columns.stop - first)


def _strips(meter: Meter, factor: TiledMatrix, wanted: list[tuple[int, int]]) -> Iterator[tuple[int, Strip]]:
    buffers = [factor.strip_buffer() for _ in range(N_SLOTS)]

    def load(k: int, slot: int) -> tuple[NDArray[np.float64], int]:
        return factor.read_strip(*wanted[k], buffers[slot])

    for (_, p), (strip, n_bytes) in zip(wanted, prefetched(len(wanted), load, meter), strict=True):
        meter.bytes_read += n_bytes
        yield p, strip


def substitution_cost(grid: TileGrid, n_right_sides: int) -> Cost:
    """Cost of one substitution, forward or backward."""
    return Cost(
        gemm_flops=2.0 * grid.n**2 * n_right_sides,
        read_bytes=factor_bytes(grid),
        written_bytes=16.0 * grid.n * n_right_sides,
        n_tasks=2 * grid.n_tiles,
    )
