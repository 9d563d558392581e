"""Matrices cut into tiles: in memory, or kept as Zarr arrays that any Zarr reader opens."""

from dkrr.tiles.chunks import ChunkedArray
from dkrr.tiles.matrix import MemoryMatrix, TiledMatrix, TileGrid
from dkrr.tiles.store import RunStore

__all__ = ["ChunkedArray", "MemoryMatrix", "RunStore", "TileGrid", "TiledMatrix"]
