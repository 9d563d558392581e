"""A symmetric matrix in tiles: written by tiles and panels, read whole, mirrored or not."""

import dask
import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from dkrr.errors import StoreError
from dkrr.tiles import ChunkedArray, TiledMatrix, TileGrid
from tests.stores import place
from tests.tiles.test_grid import grids

RAGGED = TileGrid(n=23, tile=10, panel=5)


def symmetric(n, seed=0):
    A = np.random.default_rng(seed).standard_normal((n, n))
    return A + A.T


def stored(folder, grid, A, dtype="float64"):
    matrix = TiledMatrix.create(place(folder / "m"), grid, dtype)
    for i, j in grid.lower():
        matrix.write_tile(i, j, A[grid.rows(i), grid.rows(j)])
    return matrix


@pytest.fixture
def scheduler():
    with dask.config.set(scheduler="synchronous"):
        yield


@settings(max_examples=40, deadline=None)
@given(grid=grids())
def test_tiles_are_read_as_written(tmp_path_factory, grid):
    A = symmetric(grid.n)
    matrix = stored(tmp_path_factory.mktemp("m"), grid, A)
    for i, j in grid.lower():
        out = np.full((grid.height(i), grid.height(j)), np.nan)
        n_bytes = matrix.read_tile(i, j, out)
        assert_array_equal(out, A[grid.rows(i), grid.rows(j)])
        assert n_bytes == len(grid.panels(j)) * matrix.array.chunk_bytes
    assert matrix.complete_tiles() == set(grid.lower())


DTYPES = st.sampled_from(["float64", "float32"])


@settings(max_examples=25, deadline=None)
@given(grid=grids(), is_factor=st.booleans(), dtype=DTYPES)
def test_as_dask(tmp_path_factory, grid, is_factor, dtype):
    A = symmetric(grid.n).astype(dtype)
    expected = np.tril(A) if is_factor else A
    matrix = stored(tmp_path_factory.mktemp("m"), grid, expected if is_factor else A, dtype)
    lazy = matrix.as_dask(symmetric=not is_factor)
    assert lazy.shape == A.shape and lazy.dtype == dtype
    assert lazy.chunks == (tuple(grid.height(i) for i in range(grid.n_tiles)),) * 2
    with dask.config.set(scheduler="synchronous"):
        assert_array_equal(lazy.compute(), expected)
        assert lazy.compute().dtype == dtype


def test_two_lazy_matrices_are_not_confused(tmp_path, scheduler):
    A, B = symmetric(23, 1), symmetric(23, 2)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    a, b = (stored(tmp_path / name, RAGGED, M) for name, M in (("a", A), ("b", B)))
    both = a.as_dask(symmetric=True) - b.as_dask(symmetric=True)
    assert_array_equal(both.compute(), A - B)
    lower = a.as_dask(symmetric=True) - a.as_dask(symmetric=False)
    assert_array_equal(np.tril(lower.compute())[10:, :10], np.zeros((13, 10)))
    assert_array_equal(lower.compute()[:10, 10:], A[:10, 10:])


def test_panels(tmp_path):
    A = symmetric(23)
    matrix = TiledMatrix.create(place(tmp_path / "m"), RAGGED)
    buffer = matrix.panel_buffer()
    assert buffer.shape == (10, 5)
    tile = A[20:23, 10:20]
    assert matrix.write_panel(2, 3, tile) == matrix.array.chunk_bytes
    panel, n_bytes = matrix.read_panel(2, 3, buffer)
    assert_array_equal(panel, A[20:23, 15:20])
    assert n_bytes == matrix.array.chunk_bytes and not panel.flags.writeable, "it lies in the system's cache"


def test_float32(tmp_path):
    A = symmetric(23)
    matrix = stored(tmp_path, RAGGED, A, "float32")
    assert matrix.dtype == matrix.panel_buffer().dtype == np.float32
    assert matrix.array.chunk_bytes == 4 * 10 * 5 + 28
    for dtype in (np.float32, np.float64):
        out = np.empty((3, 10), dtype)
        matrix.read_tile(2, 1, out)
        assert_array_equal(out, A[20:23, 10:20].astype(np.float32))
    assert ChunkedArray.open(matrix.array.url, "test") == matrix.array
    theirs = zarr.open_array(str(tmp_path / "m"), mode="r")
    assert theirs.dtype == np.float32 and np.isnan(theirs.fill_value)
    assert_array_equal(theirs[10:, :10], A[10:, :10].astype(np.float32))


def test_another_dtype_is_refused(tmp_path):
    stored(tmp_path, RAGGED, symmetric(23))
    with pytest.raises(StoreError, match="float64; expected .* float32"):
        TiledMatrix.create(place(tmp_path / "m"), RAGGED, "float32")


def test_a_tile_is_complete_when_all_of_its_panels_are(tmp_path):
    matrix = TiledMatrix.create(place(tmp_path / "m"), RAGGED)
    tile = np.ones((10, 10))
    matrix.write_panel(1, 1, tile)
    assert matrix.complete_tiles() == set()
    matrix.write_panel(1, 0, tile)
    assert matrix.complete_tiles() == {(1, 0)}
    matrix.write_tile(2, 2, np.ones((3, 3)))  # three columns: one panel
    assert matrix.complete_tiles() == {(1, 0), (2, 2)}


def test_reading_a_tile_that_is_not_there(tmp_path):
    matrix = TiledMatrix.create(place(tmp_path / "m"), RAGGED)
    with pytest.raises(StoreError, match=r"c\.1\.0 .* not there"):
        matrix.read_tile(1, 0, np.empty((10, 10)))


def test_another_grid_is_refused(tmp_path):
    TiledMatrix.create(place(tmp_path / "m"), RAGGED)
    for grid in (TileGrid(24, 10, 5), TileGrid(23, 15, 5), TileGrid(23, 10, 2)):
        with pytest.raises(StoreError, match="expected shape"):
            TiledMatrix.create(place(tmp_path / "m"), grid)
