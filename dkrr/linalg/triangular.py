"""Substitution with a stored Cholesky factor, out of core, for many right-hand sides.

Forward substitution alone (for new right-hand sides) and the backward sweep L ᵀX = Z, which reads L once::

    X_j = L_jj⁻ᵀ (Z_j − Σ_{i>j} L_ijᵀ X_i)

The sum is split in two tasks, so that workers need not wait for each other at every step: the far part (all i that
were finished `LOOK_AHEAD` steps ago) and the near part with the division.

Vectors and arithmetic are float64 whatever the dtype of L: a panel in float32 is widened piece by piece, in cache.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkrr import blas
from dkrr.cost import Cost
from dkrr.linalg.cholesky import Matrix, factor_bytes
from dkrr.linalg.prefetch import N_SLOTS, prefetched
from dkrr.linalg.sources import read_range
from dkrr.runtime.task import Meter, Task
from dkrr.tiles import ChunkedArray, TileGrid

LOOK_AHEAD = 2
"""Tile rows whose solution a far part does not wait for."""
WIDENED_ENTRIES = 2**17
"""Entries of a panel that are converted at a time, 1 MiB. Measured: a quarter takes 1.1 times as long, since calls
cost, and four times as many take several times as long, since the buffer leaves the cache and is mapped anew."""
WIDEN_SECONDS = 6e-10
"""Elementwise work to convert one entry (measured: a sweep over a factor in memory, in float32 and in float64)."""


@dataclass(frozen=True)
class Substitution:
    """L and the vectors of one substitution; each has shape (n, m), in chunks of tile rows."""

    factor: Matrix
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
        for _, p, panel in read_panels(meter, job.factor, [(j, p) for p in grid.panels(k)]):
            columns = _local(grid, p)
            with meter.time("gemm"):
                subtract_product(z, panel, z_k[columns])
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
    _subtract_products(meter, job, j, range(j + 1 + LOOK_AHEAD, grid.n_tiles), total)
    meter.bytes_written += job.partial.write((j, 0), -total)


def near_solve(meter: Meter, job: Substitution, j: int) -> None:
    """Task: X_j from the far sum, the near rows and the diagonal tile."""
    assert job.partial is not None
    grid = job.factor.grid
    near = min(j + 1 + LOOK_AHEAD, grid.n_tiles)
    x = read_range(job.right_sides, grid.rows(j))
    if near < grid.n_tiles:
        x -= read_range(job.partial, grid.rows(j))
    _subtract_products(meter, job, j, range(j + 1, near), x)
    _solve_diagonal(meter, job.factor, j, x, transpose=True)
    meter.bytes_written += job.solution.write((j, 0), x)


def _subtract_products(meter: Meter, job: Substitution, j: int, rows: range, x: NDArray[np.float64]) -> None:
    grid = job.factor.grid
    for i in rows:
        x_i = read_range(job.solution, grid.rows(i))
        for _, p, panel in read_panels(meter, job.factor, [(i, p) for p in grid.panels(j)]):
            with meter.time("gemm"):
                subtract_product(x[_local(grid, p)], panel, x_i, transpose=True)


def _solve_diagonal(meter: Meter, factor: Matrix, j: int, x: NDArray[np.float64], *, transpose: bool) -> None:
    """Set x ← L_jj⁻¹ x or L_jj⁻ᵀ x, a panel at a time."""
    panels = list(factor.grid.panels(j))
    for _, p, panel in read_panels(meter, factor, [(j, p) for p in (reversed(panels) if transpose else panels)]):
        with meter.time("trsm"):
            solve_panel(panel, _local(factor.grid, p), x, transpose=transpose)


def solve_panel(panel: NDArray[Any], columns: slice, x: NDArray[np.float64], *, transpose: bool) -> None:
    """One step of x ← L⁻¹ x or L⁻ᵀ x, with a panel of a triangular L, in float64.

    Parameters
    ----------
    panel : ndarray of shape (n, len(columns))
        float64 or float32; what is above its diagonal is not read.
    columns : slice
        Of L, and with it the rows of x that are solved for. Forward, panels come from the first to the last, backward
        from the last to the first.
    x : ndarray of shape (n, m)
        Overwritten.
    transpose : bool
    """
    square, below = panel[columns].astype(np.float64, copy=False), slice(columns.stop, len(x))
    if transpose:
        subtract_product(x[columns], panel[below], x[below], transpose=True)
        blas.solve_lower(square, x[columns], transpose=True)
    else:
        blas.solve_lower(square, x[columns])
        subtract_product(x[below], panel[below], x[columns])


def subtract_product(
    c: NDArray[np.float64], panel: NDArray[Any], x: NDArray[np.float64], *, transpose: bool = False
) -> None:
    """Set c ← c − panel x (panelᵀ x with `transpose`) in float64, also for a panel in float32.

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
        piece = widened[: rows.stop - start]
        np.copyto(piece, panel[rows])
        if transpose:
            blas.gemm(c, piece, x[rows], transpose_a=True, alpha=-1.0, beta=1.0)
        else:
            blas.gemm(c[rows], piece, x, alpha=-1.0, beta=1.0)


def _local(grid: TileGrid, p: int) -> slice:
    """Columns of panel p within its tile."""
    columns, first = grid.columns(p), grid.rows(grid.tile_of(p)).start
    return slice(columns.start - first, columns.stop - first)


def read_panels(
    meter: Meter, factor: Matrix, wanted: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, int, NDArray[Any]]]:
    """Read panels of a factor, each while the one before is in use.

    Parameters
    ----------
    meter : Meter
    factor : TiledMatrix or MemoryMatrix
    wanted : sequence of (int, int)
        Tile row and number of each panel, in the order of their use.

    Yields
    ------
    i, p : int
        Its tile row and number.
    panel : ndarray of shape (height of row i, width of panel p)
        Overwritten later.
    """
    buffers = [factor.panel_buffer() for _ in range(N_SLOTS)]

    def load(k: int, slot: int) -> tuple[NDArray[Any], int]:
        return factor.read_panel(*wanted[k], buffers[slot])

    for (i, p), (panel, n_bytes) in zip(
        wanted, prefetched(len(wanted), load, meter, waits=factor.is_stored), strict=True
    ):
        meter.bytes_read += n_bytes
        yield i, p, panel


def substitution_cost(grid: TileGrid, n_right_sides: int, itemsize: int = 8) -> Cost:
    """Cost of one substitution, forward or backward, with a factor of `itemsize` bytes to an entry.

    The arithmetic is float64 in any case; entries of 4 bytes are widened first.
    """
    return Cost(
        gemm_flops=2.0 * grid.n**2 * n_right_sides,
        element_seconds=0.0 if itemsize == 8 else WIDEN_SECONDS * grid.n**2 / 2,
        read_bytes=factor_bytes(grid, itemsize),
        written_bytes=16.0 * grid.n * n_right_sides,
        n_tasks=2 * grid.n_tiles,
    )
