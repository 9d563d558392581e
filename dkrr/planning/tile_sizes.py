"""Sizes of tiles that plans compare, and the cut of a matrix into tiles."""

from dataclasses import dataclass

TILE_SIZES = (256, 512, 1024, 2048, 3072, 4096, 6144, 8192, 12288)
"""Tile sizes that a plan compares (three times as many would save up to 5 %)."""
MAX_TILES_PER_SIDE = 200
"""About 20,000 tasks: more would keep the scheduler busy for longer than it should be."""


@dataclass(frozen=True)
class Tiling:
    """Tiles and panels of the matrix of a factorisation."""

    tile: int
    panel: int
    """Columns of a tile that are stored as one chunk."""
    columns_per_task: int = 0
    """Tile columns that one task of the factorisation subtracts; 0 means all."""
