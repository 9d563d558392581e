"""Rows of the Gram matrix that `dkrr.gram` keeps in a store: the lower triangle in tiles."""

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkrr.data.rows import ALL, Block, StoredRows
from dkrr.errors import StoreError
from dkrr.store import RunStore, TiledMatrix, TileGrid
from dkrr.values import may_keep

NAME = "gram"
"""Name of the matrix in its store."""


class StoredGramRows(StoredRows):
    """Rows of a symmetric matrix in a store, mirrored from its lower triangle."""

    @cached_property
    def matrix(self) -> TiledMatrix:
        """Tiles of the lower triangle."""
        array = RunStore(self.url).open_array(NAME)
        n, chunks = array.shape[0], array.chunks
        if array.shape != (n, n) or n == 0 or array.block_rows or chunks[0] % chunks[1] or array.dtype[:5] != "float":
            raise StoreError(
                f"{array.url} does not have the layout of a Gram matrix that dkrr.gram wrote: it is damaged"
            )
        return TiledMatrix(array, TileGrid(array.shape[0], *array.chunks))

    @cached_property
    def _checked(self) -> set[tuple[int, int]]:
        """Tiles whose checksums this process has compared; several blocks of rows read from each tile."""
        return set()

    @property
    def shape(self) -> tuple[int, int]:
        return (self.matrix.grid.n, self.matrix.grid.n)

    @property
    def dtype(self) -> Any:
        return self.matrix.dtype

    def read(self, start: int, stop: int, columns: slice = ALL) -> Block:
        grid = self.matrix.grid
        left, right, _ = columns.indices(grid.n)
        out = np.empty((stop - start, max(right - left, 0)), self.dtype)
        for i in _tiles(start, stop, grid.tile):
            rows = _overlap(grid.rows(i), start, stop)
            for j in _tiles(left, right, grid.tile):
                across = _overlap(grid.rows(j), left, right)
                tile = self._tile(max(i, j), min(i, j))
                if i < j:
                    tile = tile.T
                entries = tile[_from(rows, grid.rows(i).start), _from(across, grid.rows(j).start)]
                out[_from(rows, start), _from(across, left)] = entries
        return out

    def _tile(self, i: int, j: int) -> NDArray[Any]:
        array = self.matrix.array
        tile = array.mapped((i, j), check=(i, j) not in self._checked)
        if tile is None:
            tile = np.empty(array.chunks, array.dtype)
            array.read((i, j), tile)
        self._checked.add((i, j))
        return tile

    @property
    def read_overhead_bytes(self) -> int:
        # One tile, and the one before it.
        return 2 * self.matrix.array.chunk_bytes


def stored_gram(url: str) -> StoredGramRows | None:
    """Rows of the Gram matrix in a store that `dkrr.gram` wrote; None if it is not such a store.

    Raises
    ------
    StoreError
        If tiles are missing.
    """
    try:
        found = RunStore(url).description() if may_keep(url) else None
    except StoreError:
        return None
    if found is None or (found["fingerprint"] or {}).get("what") != NAME:
        return None
    rows = StoredGramRows(url)
    side = rows.matrix.grid.n_tiles
    n_tiles, wanted = len(rows.matrix.array.present()), side * (side + 1) // 2
    if n_tiles >= wanted:
        n_tiles = len(rows.matrix.complete_tiles())
    if n_tiles < wanted:
        raise StoreError(
            f"the Gram matrix in {url} has {n_tiles} of {wanted} tiles; expected all: call dkrr.gram again with "
            "the same arguments and store="
        )
    return rows


def _tiles(start: int, stop: int, tile: int) -> range:
    return range(start // tile, -(-stop // tile))


def _overlap(rows: slice, start: int, stop: int) -> slice:
    return slice(max(rows.start, start), min(rows.stop, stop))


def _from(rows: slice, start: int) -> slice:
    return slice(rows.start - start, rows.stop - start)
