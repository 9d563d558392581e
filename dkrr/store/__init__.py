"""Matrices cut into tiles: in memory, or kept as Zarr arrays that any Zarr reader opens."""

from dkrr.store.chunks import ChunkedArray
from dkrr.store.matrix import MemoryMatrix, TiledMatrix, TileGrid
from dkrr.store.run_store import RunStore

__all__ = ["ChunkedArray", "MemoryMatrix", "RunStore", "TileGrid", "TiledMatrix"]
