"""The true residual of a solved system, from the matrix itself and not from its factor."""

import numpy as np
from numpy.typing import NDArray

from dkrr import blas
from dkrr.linalg.cholesky import TiledSystem
from dkrr.linalg.operator import TiledOperator, column_norms
from dkrr.linalg.sources import TileSource, mirror_lower, read_range
from dkrr.runtime import Executor, Progress, RunRecord
from dkrr.runtime.task import Meter, Task
from dkrr.tiles import ChunkedArray, TileGrid


def tiled_residual(
    system: TiledSystem, solution: ChunkedArray, executor: Executor, progress: Progress, slots: int
) -> tuple[float, RunRecord]:
    """Largest relative residual ‖B − (A + diag(s)) X‖ / ‖B‖ of a column.

    Few columns are multiplied by half the matrix, of which each entry is used twice. That takes vectors as long as the
    matrix in every task; for many columns every task keeps to one tile row, and the whole matrix is formed.

    Parameters
    ----------
    system : TiledSystem
        With right-hand sides.
    solution : ChunkedArray of shape (n, m)
        X.
    executor : Executor
    progress : Progress
    slots : int
        Tasks that run at once.
    """
    assert system.right_sides is not None
    grid = system.grid
    if not uses_symmetry(grid, solution.shape[1]):
        tasks = residual_tasks(system.source, grid, system.shift, system.right_sides, solution)
        record = executor.run(tasks, progress)
        norms = record.values()
        return relative([norms[t.key] for t in tasks]), record
    operator = TiledOperator(system.source, grid, executor, "residual", slots)
    b, x = system.right_sides.load(), solution.load()
    r = b - system.shift.load() * x - operator.multiply(x)
    return relative([(column_norms(r), column_norms(b))]), operator.record


def uses_symmetry(grid: TileGrid, m: int) -> bool:
    """Whether whole vectors take no more memory in a task than the strips of a factorisation."""
    return grid.n * m <= grid.tile * grid.panel


def residual_tasks(
    source: TileSource, grid: TileGrid, shift: ChunkedArray, right_sides: ChunkedArray, solution: ChunkedArray
) -> list[Task]:
    """Tasks whose values are the norms, by column, of B − (A + diag(s)) X and of B over one tile row."""
    return [
        Task(
            f"residual-{i}",
            residual_rows,
            (source, grid, shift, right_sides, solution, i),
            flops=2.0 * grid.height(i) * grid.n * solution.shape[1],
        )
        for i in range(grid.n_tiles)
    ]


def residual_rows(
    meter: Meter,
    source: TileSource,
    grid: TileGrid,
    shift: ChunkedArray,
    right_sides: ChunkedArray,
    solution: ChunkedArray,
    i: int,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Task: norms of the residual and of the right-hand sides over tile row i, each of shape (m,)."""
    rows = grid.rows(i)
    b = read_range(right_sides, rows)
    r = b - read_range(shift, rows) * read_range(solution, rows)
    for j in range(grid.n_tiles):
        x = read_range(solution, grid.rows(j))
        # A source gives tiles on or below the diagonal; the one above is its transpose.
        low, high = max(i, j), min(i, j)
        tile = np.empty((grid.height(low), grid.height(high)))
        source.fill(meter, tile, grid.rows(low), grid.rows(high))
        with meter.time("gemm"):
            if i == j:
                mirror_lower(tile)
            blas.gemm(r, tile, x, transpose_a=j > i, alpha=-1.0, beta=1.0)
    return column_norms(r), column_norms(b)


def relative(norms: list[tuple[NDArray[np.float64], NDArray[np.float64]]]) -> float:
    """Largest ‖residual‖ / ‖right-hand side‖ over the columns (the residual itself where a column is zero).

    NaN if any of them is NaN, or infinite on both sides.

    Parameters
    ----------
    norms : list of (ndarray of shape (m,), ndarray of shape (m,))
        Norms of both by columns, over parts of the rows.
    """
    residual, size = (n[0] if len(n) == 1 else column_norms(n) for n in map(np.array, zip(*norms, strict=True)))
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.max(residual / np.where(size == 0, 1.0, size)))
