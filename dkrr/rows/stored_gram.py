"""Rows of the Gram matrix that `dkrr.gram` keeps in a store: the lower triangle in tiles."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkrr.errors import StoreError
from dkrr.rows.sources import ALL, Block, Rows
from dkrr.tiles import ChunkedArray, RunStore, TiledMatrix, TileGrid

NAME = "gram"
"""Of the matrix in its store."""


@dataclass(frozen=True)
class StoredGramRows(Rows):
    """Rows of a symmetric matrix in a store, mirrored from its lower triangle; travels between processes by name."""

    url: str
    """Of the store."""

    is_shared = True

    @cached_property
    def matrix(self) -> TiledMatrix:
        """The tiles."""
        array = ChunkedArray.open(RunStore(self.url).at(NAME))
        return TiledMatrix(array, TileGrid(array.shape[0], *array.chunks))

    @cached_property
    def _checked(self) -> set[tuple[int, int]]:
        """Tiles whose checksums this process has compared: blocks of rows read a part of each, again and again."""
        return set()

    @property
    def shape(self) -> tuple[int, int]:
        return (self.matrix.grid.n, self.matrix.grid.n)

    @property
    def dtype(self) -> Any:
        return self.matrix.dtype

    def read(self, start: int, stop: int, columns: slice = ALL) -> Block:
        """See base class.

        Raises
        ------
        StoreError
            If a tile is missing or damaged.
        """
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
                part = tile[_from(rows, grid.rows(i).start), _from(across, grid.rows(j).start)]
                out[_from(rows, start), _from(across, left)] = part
        return out

    def _tile(self, i: int, j: int) -> NDArray[Any]:
        array = self.matrix.array
        tile = array.mapped((i, j), check=(i, j) not in self._checked)
        if tile is None:
            tile = np.empty(array.chunks, array.dtype)
            array.read((i, j), tile)
        self._checked.add((i, j))
        return tile

    def take(self, indices: NDArray[np.intp]) -> Block:
        return np.concatenate([self.read(int(k), int(k) + 1) for k in indices])

    @property
    def read_overhead_bytes(self) -> int:
        """See base class: one tile, and the one before it."""
        return 2 * self.matrix.array.chunk_bytes

    def __getstate__(self) -> dict[str, str]:
        return {"url": self.url}


def stored_gram(url: str) -> StoredGramRows | None:
    """Rows of the Gram matrix in a store that `dkrr.gram` wrote; None if there is no such store.

    Raises
    ------
    StoreError
        If tiles are missing.
    """
    try:
        found = RunStore(url).description()
    except StoreError:
        return None
    if found is None or (found["fingerprint"] or {}).get("what") != NAME:
        return None
    rows = StoredGramRows(url)
    n_tiles, wanted = len(rows.matrix.complete_tiles()), len(list(rows.matrix.grid.lower()))
    if n_tiles < wanted:
        raise StoreError(
            f"the Gram matrix in {url} is not complete: it has {n_tiles} of {wanted} tiles. Call dkrr.gram again with "
            "the same arguments and store="
        )
    return rows


def _tiles(start: int, stop: int, tile: int) -> range:
    return range(start // tile, -(-stop // tile))


def _overlap(rows: slice, start: int, stop: int) -> slice:
    return slice(max(rows.start, start), min(rows.stop, stop))


def _from(part: slice, start: int) -> slice:
    return slice(part.start - start, part.stop - start)
