"""Matrices cut into tiles, kept as Zarr arrays that any Zarr reader opens."""

from dkrr.tiles.chunks import ChunkedArray
from dkrr.tiles.grid import TileGrid
from dkrr.tiles.matrix import TiledMatrix
from dkrr.tiles.store import RunStore

__all__ = ["ChunkedArray", "RunStore", "TileGrid", "TiledMatrix"]
