"""Distances between rows of tiles in memory."""

import numpy as np
import pytest

from dkrr.tiles import MemoryMatrix, TiledMatrix, TileGrid
from dkrr.tiles.matrix import empty_tile, padded_width
from tests.stores import place


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("width", [0, 1, 8, 456, 511, 512, 513, 1024, 1368, 2048, 3024])
def test_rows_are_never_whole_pages_apart(width, dtype):
    tile = empty_tile(3, width, dtype)
    assert tile.shape == (3, width) and tile.dtype == dtype
    assert tile.strides[0] % 4096 != 0
    assert tile.strides == (padded_width(width, tile.itemsize) * tile.itemsize, tile.itemsize)
    assert tile.strides[0] - width * tile.itemsize in (0, 64), "no more memory than needed"


def test_tiles_are_padded_in_memory_and_on_the_way_to_a_store(tmp_path):
    grid = TileGrid(1024, 512, 512)
    for matrix in (MemoryMatrix(grid), TiledMatrix.create(place(f"{tmp_path}/a.zarr"), grid)):
        for i, j in grid.lower():
            tile = matrix.tile_buffer(i, j)
            assert tile.strides[0] % 4096 != 0
            tile[...] = np.arange(512)
            matrix.write_tile(i, j, tile)
            found = np.empty((512, 512))
            matrix.read_tile(i, j, found)
            np.testing.assert_array_equal(found, tile)
