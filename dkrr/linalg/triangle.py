"""A Cholesky factor as the rows of one array, panel after panel: as a saved model holds it."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkrr.data.rows import ALL, Block, Rows
from dkrr.data.stored import CheckedRows
from dkrr.errors import StoreError
from dkrr.linalg.cholesky import Matrix
from dkrr.store import MemoryMatrix, TiledMatrix, TileGrid

MAX_SQUARE = 512
"""Most rows of a tile that holds half of a factor's single tile, so that few zeros above the diagonal are kept."""


def kept_grid(grid: TileGrid) -> TileGrid:
    """Grid in which a factor is kept: its own, or smaller tiles if it is a single one in memory."""
    if grid.n_tiles > 1 or grid.panel < grid.tile:
        return grid
    tile = min(grid.n, MAX_SQUARE)
    return TileGrid(grid.n, tile, tile)


def kept_shape(grid: TileGrid) -> tuple[int, int]:
    """Shape of the array that holds a factor of this grid."""
    kept = kept_grid(grid)
    last = kept.n_tiles - 1
    return _first_row(kept, last, kept.panels(last).stop), kept.panel


def _first_row(grid: TileGrid, i: int, p: int) -> int:
    """Row of the array at which panel `p` of tile row `i` begins; tile rows above are whole."""
    return grid.tile * (grid.tile // grid.panel) * (i * (i + 1) // 2) + p * grid.height(i)


class TriangleRows(Rows):
    """The panels of a factor, one below the other; narrower ones are filled up with zeros."""

    def __init__(self, factor: Matrix) -> None:
        self.factor, self._grid = factor, kept_grid(factor.grid)
        grid = self._grid
        self._panels = [(i, p) for i in range(grid.n_tiles) for p in range(grid.panels(i).stop)]
        self._first = np.array([_first_row(grid, *panel) for panel in self._panels])

    @property
    def shape(self) -> tuple[int, int]:
        return kept_shape(self.factor.grid)

    @property
    def dtype(self) -> Any:
        return np.dtype(np.float64)

    def read(self, start: int, stop: int, columns: slice = ALL) -> Block:
        out = np.zeros((stop - start, self._grid.panel))
        before = int(np.searchsorted(self._first, start, side="right")) - 1
        for k in range(before, int(np.searchsorted(self._first, stop))):
            panel, first = self._panel(*self._panels[k]), int(self._first[k])
            top, bottom = max(start, first), min(stop, first + len(panel))
            out[top - start : bottom - start, : panel.shape[1]] = panel[top - first : bottom - first]
        return out[:, columns]

    @cached_property
    def _tile(self) -> NDArray[Any]:
        """The only tile: where it lies in memory, or a copy of a stored one."""
        tile = self.factor.tile_buffer(0, 0)
        self.factor.read_tile(0, 0, tile)
        return tile

    def _panel(self, i: int, p: int) -> NDArray[Any]:
        factor, grid = self.factor, self._grid
        rows, columns = grid.rows(i), grid.columns(p)
        if grid is factor.grid:
            panel, _ = factor.read_panel(i, p, factor.panel_buffer())
        else:
            panel = self._tile[rows, columns]
        # What is above the diagonal is not part of a factor in memory.
        return panel if grid.tile_of(p) < i else np.tril(panel, rows.start - columns.start)


@dataclass(frozen=True)
class StoredTriangle(TiledMatrix):
    """A factor in the array that `TriangleRows` made, read a panel at a time."""

    def panel_buffer(self) -> NDArray[Any]:
        return np.empty((self.grid.tile, self.grid.panel), self.dtype)

    def read_panel(self, i: int, p: int, buffer: NDArray[Any], top: int = 0) -> tuple[NDArray[Any], int]:
        first, height, columns = _first_row(self.grid, i, p), self.grid.height(i), self.grid.columns(p)
        self.arrays[0].read_rows(first, first + height, buffer[:height])
        return buffer[top:height, : columns.stop - columns.start], 8 * height * self.grid.panel


def kept_factor(rows: CheckedRows, grid: TileGrid, *, in_memory: bool) -> Matrix:
    """Factor that was written as `TriangleRows`, read into memory or where it is stored.

    Raises
    ------
    StoreError
        If the array has another shape than a factor of this grid.
    """
    if rows.shape != kept_shape(grid):
        raise StoreError(f"{rows.url} has shape {rows.shape}; expected {kept_shape(grid)}: the model is damaged")
    kept = kept_grid(grid)
    stored = StoredTriangle((rows.array,), kept)
    if not in_memory:
        return stored
    matrix, buffer = MemoryMatrix(grid), stored.panel_buffer()
    matrix.clear()
    for i, j in kept.lower():  # each tile is one panel
        tile = matrix.tile_buffer(i, j) if kept is grid else matrix.tile_buffer(0, 0)[kept.rows(i), kept.rows(j)]
        tile[...] = stored.read_panel(i, j, buffer)[0]
    return matrix
