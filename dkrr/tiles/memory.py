"""A symmetric (or lower triangular) matrix as tiles of its lower triangle in this process's memory."""

from typing import Any, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dkrr.blas import Triangle
from dkrr.tiles.grid import TileGrid
from dkrr.tiles.padded import empty_tile


class MemoryMatrix:
    """Lower triangle of an n × n matrix: what `TiledMatrix` is in a store, for tasks of this process.

    The tiles of a row to the left of the diagonal are one array: all of them are one panel of a product. The squares on
    the diagonal are arrays of their own, whose entries above the diagonal are not used.

    Parameters
    ----------
    grid : TileGrid
        Each tile is a single panel.
    dtype : dtype
        float64 or float32.
    """

    is_stored = False
    is_remote = False
    triangles: dict[int, Triangle]
    """Factored squares by tile row, with what solves by them share."""

    def __init__(self, grid: TileGrid, dtype: DTypeLike = np.float64) -> None:
        if grid.panel != grid.tile:
            raise ValueError(f"a tile in memory is one panel: tile={grid.tile}, panel={grid.panel}")
        self.grid, self.dtype, self.triangles = grid, np.dtype(dtype), {}
        self._left = self._empty_rows()
        self._squares = [empty_tile(grid.height(i), grid.height(i), self.dtype) for i in range(grid.n_tiles)]

    def _empty_rows(self) -> list[NDArray[Any]]:
        grid = self.grid
        return [empty_tile(grid.height(i), grid.rows(i).start, self.dtype) for i in range(grid.n_tiles)]

    @classmethod
    def of_square(cls, square: NDArray[Any]) -> Self:
        """One tile: a whole matrix, which is not copied."""
        matrix = cls.__new__(cls)
        matrix.grid, matrix.dtype = TileGrid(len(square), len(square), len(square)), square.dtype
        matrix.triangles = {}
        matrix._left, matrix._squares = [square[:, :0]], [square]
        return matrix

    def clear(self) -> None:
        """Set all tiles to zero."""
        for array in (*self._left, *self._squares):
            array.fill(0.0)

    def add(self, other: Self) -> None:
        """Add a matrix of the same grid."""
        for mine, theirs in zip(self._left + self._squares, other._left + other._squares, strict=True):
            mine += theirs

    def beside(self) -> Self:
        """Empty matrix of the same grid, with the same squares on the diagonal."""
        other = type(self).__new__(type(self))
        other.grid, other.dtype, other._squares, other.triangles = self.grid, self.dtype, self._squares, {}
        other._left = other._empty_rows()
        return other

    def tile_buffer(self, i: int, j: int) -> NDArray[Any]:
        """View of tile (i, j), i ≥ j."""
        return self._squares[i] if i == j else self._left[i][:, self.grid.rows(j)]

    def panel_buffer(self) -> NDArray[Any]:
        """See TiledMatrix; empty, since nothing is copied."""
        return np.empty((0, 0), self.dtype)

    def stretches(self, tiles: range) -> list[slice]:
        """See TiledMatrix; all columns at once."""
        return [slice(self.grid.rows(tiles[0]).start, self.grid.rows(tiles[-1]).stop)] if tiles else []

    def read_stretch(self, i: int, columns: slice, buffer: NDArray[Any]) -> tuple[NDArray[Any], int]:  # noqa: ARG002
        """See TiledMatrix; where it lies."""
        return self._left[i][:, columns], 0

    def read_panel(self, i: int, p: int, buffer: NDArray[Any]) -> tuple[NDArray[Any], int]:  # noqa: ARG002
        """See TiledMatrix; where it lies."""
        return self.tile_buffer(i, p), 0

    def read_tile(self, i: int, j: int, out: NDArray[Any]) -> int:
        """See TiledMatrix."""
        tile = self.tile_buffer(i, j)
        if tile.ctypes.data != out.ctypes.data:
            out[...] = tile
        return 0

    def write_tile(self, i: int, j: int, tile: NDArray[Any]) -> int:
        """See TiledMatrix; nothing is copied if the tile was computed in its `tile_buffer`."""
        own = self.tile_buffer(i, j)
        if tile.ctypes.data != own.ctypes.data:
            own[...] = tile
        return 0

    def complete_tiles(self) -> set[tuple[int, int]]:
        """See TiledMatrix; none, since a matrix in memory ends with its run."""
        return set()
