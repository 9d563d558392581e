"""Tiled Cholesky factorisation on disk: left-looking, every tile computed by one task and written once.

For a tile (i, j) of A = L Lᵀ, i ≥ j::

    S = A_ij − Σ_{k<j} L_ik L_jkᵀ,     L_jj = chol(S)  for i = j,     L_ij = S L_jj⁻ᵀ  for i > j

A task streams the strips of rows i and j of L through two small buffers and keeps only S in memory, so memory does
not grow with n. A stored tile is never updated: Dask may run any task twice, and a killed run goes on from the tiles
that are there. The diagonal tasks carry the right-hand sides along (z_j = L_jj⁻¹(b_j − Σ_k L_jk z_k)), which makes
the forward substitution free: the strips of row j are in memory anyway.
"""

from dataclasses import dataclass

import numpy as np

from dkrr.cost import Cost
from dkrr.errors import NotPositiveDefiniteError
from dkrr.linalg import blas
from dkrr.linalg.prefetch import N_SLOTS, prefetched, writer
from dkrr.linalg.sources import TileSource, clear_upper, read_range
from dkrr.runtime.task import Meter, Task
from dkrr.tiles import ChunkedArray, TiledMatrix, TileGrid


@dataclass(frozen=True)
class TiledSystem:
    """(A + diag(s)) X = B with A in tiles; everything in it is known by name, so it travels to workers."""

    source: TileSource
    """Tiles of A."""
    shift: ChunkedArray
    """s, of shape (n, 1), in chunks of tile rows."""
    right_sides: ChunkedArray
    """B, of shape (n, m), in chunks of tile rows."""
    factor: TiledMatrix
    """L, written by the tasks."""
    forward: ChunkedArray
    """Z = L⁻¹ B, written by the tasks."""

    @property
    def grid(self) -> TileGrid:
        """Grid of the tiles."""
        return self.factor.grid


def cholesky_tasks(system: TiledSystem) -> list[Task]:
    """Tasks of the factorisation that are not done yet, with the forward substitution."""
    grid = system.grid
    done = system.factor.complete_tiles()
    solved = {k for k, _ in system.forward.present()}
    tasks = []
    for i, j in grid.lower():
        if (i, j) in done and (i != j or i in solved):
            continue
        tasks.append(
            Task(
                _key(i, j),
                factor_tile,
                (system, i, j),
                depends=((_key(i, j - 1),) if j else ()) + ((_key(j, j),) if i != j else ()),
                flops=tile_flops(grid, i, j),
                priority=tile_priority(i, j),
            )
        )
    return tasks


def _key(i: int, j: int) -> str:
    return f"L-{i}-{j}"


def tile_priority(i: int, j: int) -> tuple[int, ...]:
    """Order among ready tiles: a diagonal tile first (a whole column waits for it), then the next to the diagonal."""
    return (0 if i == j else 1, i + j, j)


def tile_flops(grid: TileGrid, i: int, j: int) -> float:
    """Floating-point operations of the task of one tile."""
    rows, columns, before = grid.height(i), grid.height(j), grid.rows(j).start
    if i == j:
        return float(rows * rows * before + rows**3 / 3)
    return float(2 * rows * columns * before + rows * columns * columns)


def factor_tile(meter: Meter, system: TiledSystem, i: int, j: int) -> None:
    """Task: compute tile (i, j) of L from the tiles before it, and write it.

    Raises
    ------
    NotPositiveDefiniteError
        If a pivot of a diagonal tile is not positive.
    """
    grid, matrix = system.grid, system.factor
    tile = np.empty((grid.height(i), grid.height(j)))
    system.source.fill(meter, tile, grid.rows(i), grid.rows(j))
    if i == j:
        tile[np.diag_indices_from(tile)] += read_range(system.shift, grid.rows(i))[:, 0]
        z = read_range(system.right_sides, grid.rows(i))
    columns = range(grid.panels(j).start)
    left = [matrix.strip_buffer() for _ in range(N_SLOTS)]
    right = left if i == j else [matrix.strip_buffer() for _ in range(N_SLOTS)]

    def load(k: int, slot: int) -> tuple[blas.Array, blas.Array, int]:
        a, n_a = matrix.read_strip(i, columns[k], left[slot])
        b, n_b = (a, 0) if i == j else matrix.read_strip(j, columns[k], right[slot])
        return a, b, n_a + n_b

    z_before = np.empty((0, 0))
    for p, (a, b, n_bytes) in zip(columns, prefetched(len(columns), load, meter), strict=True):
        meter.bytes_read += n_bytes
        if i != j:
            with meter.time("gemm"):
                blas.gemm(tile, a, b, transpose_b=True, alpha=-1.0, beta=1.0)
            continue
        with meter.time("syrk"):
            blas.syrk(tile, a, alpha=-1.0, beta=1.0)
        with meter.time("forward"):
            k, where = grid.tile_of(p), grid.columns(p)
            first = grid.rows(k).start
            if where.start == first:
                z_before = read_range(system.forward, grid.rows(k))
            blas.gemm(z, a, z_before[where.start - first : where.stop - first], alpha=-1.0, beta=1.0)
    if i == j:
        _finish_diagonal(meter, system, j, tile, z)
        with meter.time("write"):
            meter.bytes_written += matrix.write_tile(i, j, tile)
    else:
        _divide_by_diagonal(meter, matrix, i, j, tile, left)


def _finish_diagonal(meter: Meter, system: TiledSystem, j: int, tile: blas.Array, z: blas.Array) -> None:
    with meter.time("potrf"):
        failed = blas.cholesky_in_place(tile)
        if failed:
            row = system.grid.rows(j).start + failed - 1
            raise NotPositiveDefiniteError(f"the pivot of row {row} is not positive", row)
        clear_upper(tile)
    with meter.time("forward"):
        blas.solve_lower(tile, z)
    with meter.time("write"):
        meter.bytes_written += system.forward.write((j, 0), z)


def _divide_by_diagonal(
    meter: Meter, matrix: TiledMatrix, i: int, j: int, tile: blas.Array, buffers: list[blas.Array]
) -> None:
    """Set tile ← tile L_jj⁻ᵀ, a strip of L_jj at a time, and write each strip of the tile as soon as it is final."""
    grid, panels = matrix.grid, matrix.grid.panels(j)
    writes = []
    first = grid.rows(j).start

    def load(k: int, slot: int) -> tuple[blas.Array, int]:
        return matrix.read_strip(j, panels[k], buffers[slot])

    for p, (strip, n_bytes) in zip(panels, prefetched(len(panels), load, meter), strict=True):
        meter.bytes_read += n_bytes
        columns = grid.columns(p)
        start, stop = columns.start - first, columns.stop - first
        with meter.time("trsm"):
            blas.solve_lower_right(strip[start:stop], tile[:, start:stop])
        writes.append(writer().submit(matrix.write_strip, i, p, tile))
        with meter.time("gemm"):
            blas.gemm(tile[:, stop:], tile[:, start:stop], strip[stop:], transpose_b=True, alpha=-1.0, beta=1.0)
    with meter.time("write"):
        meter.bytes_written += sum(write.result() for write in writes)


def cholesky_cost(grid: TileGrid, n_right_sides: int) -> Cost:
    """Cost of the whole factorisation, forming the tiles of A not included."""
    n, m, n_tiles = grid.n, n_right_sides, grid.n_tiles
    strip = 8.0 * grid.tile * grid.panel
    strips_before = [len(grid.panels(0)) * j for j in range(n_tiles)]
    read = sum(
        strip * (before + (n_tiles - 1 - j) * (2 * before + len(grid.panels(j))))
        for j, before in enumerate(strips_before)
    )
    return Cost(
        gemm_flops=n**3 / 3 + n**2 * m,
        read_bytes=read,
        written_bytes=factor_bytes(grid) + 8.0 * n * m,
        n_tasks=n_tiles * (n_tiles + 1) // 2,
    )


def factor_bytes(grid: TileGrid) -> int:
    """Bytes on disk of the tiles of a triangle."""
    return sum((grid.n_tiles - j) * len(grid.panels(j)) * (8 * grid.tile * grid.panel + 4) for j in range(grid.n_tiles))


def cholesky_task_bytes(grid: TileGrid, n_right_sides: int, form_bytes: int) -> int:
    """Most memory of one task: the tile, then either what forming it needs or four strips and a padded copy.

    Parameters
    ----------
    grid : TileGrid
    n_right_sides : int
    form_bytes : int
        What forming one tile of A needs besides the tile.
    """
    tile, strip = 8 * grid.tile**2, 8 * grid.tile * grid.panel
    right_sides = 4 * 8 * grid.tile * n_right_sides
    return tile + max(form_bytes, 2 * N_SLOTS * strip + strip) + right_sides
