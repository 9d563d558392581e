"""A symmetric matrix in tiles: the integers of its grid, and tiles and panels that are read as they were written."""

import dask
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

import dkrr
from dkrr.errors import StoreError
from dkrr.store import MemoryMatrix, RunStore, TileGrid
from dkrr.store.matrix import empty_tile, padded_width
from dkrr.store.status_and_damage import tile_maps
from tests.stores import edit, flip, tiled

RAGGED = TileGrid(n=23, tile=10, panel=5)


@st.composite
def grids(draw):
    panel = draw(st.integers(1, 9))
    return TileGrid(draw(st.integers(1, 60)), panel * draw(st.integers(1, 6)), panel)


FACTOR = "system-0/factor"


def grown(url, *parts, name=FACTOR):
    """The run at a URL, as one that has grown: a matrix lies in several arrays, each from a row up to another."""
    edit(url, matrices={name: [[f"{name}-{first}" if first else name, first, stop] for first, stop in parts]})
    return RunStore(url)


def symmetric(n, seed=0):
    A = np.random.default_rng(seed).standard_normal((n, n))
    return A + A.T


def stored(url, grid, A, dtype="float64"):
    matrix = tiled(url, grid, dtype)
    for i, j in grid.lower():
        matrix.write_tile(i, j, A[grid.rows(i), grid.rows(j)])
    return matrix


@given(grid=grids())
def test_tiles_and_panels_cover_the_matrix_once(grid):
    everything, tiles = range(grid.n), range(grid.n_tiles)
    assert [k for i in tiles for k in everything[grid.rows(i)]] == list(everything)
    assert [grid.height(i) for i in tiles] == [len(everything[grid.rows(i)]) for i in tiles]
    assert all(grid.height(i) == grid.tile for i in tiles[:-1]) and 1 <= grid.height(tiles[-1]) <= grid.tile
    for j in tiles:
        panels = [everything[grid.columns(p)] for p in grid.panels(j)]
        assert [k for panel in panels for k in panel] == list(everything[grid.rows(j)]) and all(map(len, panels))
        assert {grid.tile_of(p) for p in grid.panels(j)} == {j}
    assert [p for j in tiles for p in grid.panels(j)] == list(range(-(-grid.n // grid.panel)))
    pairs = list(grid.lower())
    assert sorted(pairs) == [(i, j) for i in tiles for j in range(i + 1)]
    assert pairs == sorted(pairs, key=lambda pair: (pair[1], pair[0])), "column by column"


@pytest.mark.parametrize("sizes", [(0, 1, 1), (5, 0, 1), (5, 4, 3), (5, 4, 0), (5, 2, 4)])
def test_a_grid_of_other_sizes_is_refused(sizes):
    with pytest.raises(ValueError, match="n={}, tile={}, panel={}".format(*sizes)):
        TileGrid(*sizes)


DTYPES = st.sampled_from(["float64", "float32"])


@given(grid=grids(), is_factor=st.booleans(), dtype=DTYPES, into=DTYPES)
def test_tiles_and_the_lazy_matrix_are_what_was_written(tmp_path_factory, grid, is_factor, dtype, into):
    A = symmetric(grid.n).astype(dtype)
    A = np.tril(A) if is_factor else A
    matrix = stored(tmp_path_factory.mktemp("m") / "m", grid, A, dtype)
    for i, j in grid.lower():
        out = np.full((grid.height(i), grid.height(j)), np.nan, into)
        assert matrix.read_tile(i, j, out) == len(grid.panels(j)) * matrix.chunk_bytes
        assert_array_equal(out, A[grid.rows(i), grid.rows(j)].astype(into))
    assert matrix.complete_tiles() == set(grid.lower())
    lazy = matrix.as_dask(symmetric=not is_factor)
    assert lazy.chunks == (tuple(grid.height(i) for i in range(grid.n_tiles)),) * 2
    with dask.config.set(scheduler="synchronous"):
        found = lazy.compute()
    assert lazy.dtype == found.dtype == dtype
    assert_array_equal(found, A)


def test_two_lazy_matrices_are_not_confused(tmp_path):
    A, B = symmetric(23, 1), symmetric(23, 2)
    a, b = (stored(tmp_path / name, RAGGED, M) for name, M in (("a", A), ("b", B)))
    with dask.config.set(scheduler="synchronous"):
        assert_array_equal((a.as_dask(symmetric=True) - b.as_dask(symmetric=True)).compute(), A - B)
        lower = (a.as_dask(symmetric=True) - a.as_dask(symmetric=False)).compute()
    assert_array_equal(np.tril(lower)[10:, :10], np.zeros((13, 10)))
    assert_array_equal(lower[:10, 10:], A[:10, 10:])


def test_panels_are_written_and_read_alone_and_a_tile_is_complete_with_all_of_them(place):
    A = symmetric(23)
    matrix = tiled(f"{place}/m", RAGGED)
    assert matrix.write_panel(2, 3, A[20:23, 10:20]) == matrix.chunk_bytes
    panel, n_bytes = matrix.read_panel(2, 3, matrix.panel_buffer())
    assert_array_equal(panel, A[20:23, 15:20])
    assert n_bytes == matrix.chunk_bytes and matrix.is_remote == place.startswith("s3://")
    assert panel.flags.writeable == matrix.is_remote, "on a disk it lies in the system's cache"
    assert matrix.complete_tiles() == set()
    out = np.empty((3, 10))
    with pytest.raises(StoreError, match=r"c\.2\.2 .* not there"):
        matrix.read_tile(2, 1, out)
    matrix.write_panel(2, 2, A[20:23, 10:20])
    assert matrix.complete_tiles() == {(2, 1)}
    matrix.write_tile(2, 2, A[20:, 20:])  # three columns: one panel
    assert matrix.complete_tiles() == {(2, 1), (2, 2)}
    matrix.read_tile(2, 1, out)
    assert_array_equal(out, A[20:, 10:20])


@given(width=st.integers(0, 4000) | st.integers(1, 8).map(lambda k: 512 * k), dtype=st.sampled_from(["f8", "f4"]))
def test_rows_of_tiles_in_memory_are_never_whole_pages_apart(width, dtype):
    tile = empty_tile(3, width, dtype)
    assert tile.shape == (3, width) and tile.dtype == dtype
    assert tile.strides[0] % 4096 != 0
    assert tile.strides == (padded_width(width, tile.itemsize) * tile.itemsize, tile.itemsize)
    assert tile.strides[0] - width * tile.itemsize in (0, 64), "no more memory than needed"


def test_padded_tiles_are_written_and_read(tmp_path):
    grid = TileGrid(1024, 512, 512)
    for matrix in (MemoryMatrix(grid), tiled(tmp_path / "a.zarr", grid)):
        for i, j in grid.lower():
            tile = matrix.tile_buffer(i, j)
            assert tile.strides[0] % 4096 != 0
            tile[...] = np.arange(512)
            matrix.write_tile(i, j, tile)
            found = np.empty((512, 512))
            matrix.read_tile(i, j, found)
            assert_array_equal(found, tile)


@pytest.mark.parametrize(("first", "n_chunks"), [(40, 20), (55, 26)])
def test_a_matrix_that_lies_in_several_arrays_is_read_verified_and_deleted_as_one(place, first, n_chunks):
    """Further rows lie beside those of the last tile row, or the latter is written again."""
    A, before, grid, url = np.tril(symmetric(75)), TileGrid(55, 20, 10), TileGrid(75, 20, 10), f"{place}/run"
    store = RunStore(url)
    store.open()
    store.claim({"shape": [75, 3]}, {"form": "dual", "tile": 20, "panel": 10})
    store.create_group("system-0")
    small = store.matrix(FACTOR, before)
    for i, j in before.lower():
        small.write_tile(i, j, A[before.rows(i), before.rows(j)])
    store = grown(url, (0, 55), (first, 60), (60, 75))
    matrix = store.matrix(FACTOR, grid)
    assert matrix.complete_tiles() == {(0, 0), (1, 0), (1, 1)} and not dkrr.verify(url).missing
    assert dkrr.status(url).left == "14 chunks are left to compute (system-0/factor)"
    assert matrix.is_apart(2, 15) == (first == 55)
    for i, j in grid.lower():
        if i >= 2:
            tile = A[grid.rows(i), grid.rows(j)].copy()
            if i == 2 and first == 55:
                tile[:15] = np.nan  # which are not written
            matrix.write_tile(i, j, tile, 15 if i == 2 else 0)
    assert matrix == RunStore(url).matrix(FACTOR, grid) and matrix.complete_tiles() == set(grid.lower())
    for i, j in grid.lower():
        out = np.empty((grid.height(i), grid.height(j)))
        matrix.read_tile(i, j, out)
        assert_array_equal(out, A[grid.rows(i), grid.rows(j)])
    found, (map_of_tiles,) = dkrr.verify(url), tile_maps(url)
    assert found.is_whole and [(one.name, one.shape) for one in found.arrays] == [(FACTOR, (75, 75))]
    assert (found.arrays[0].present, found.arrays[0].expected) == (n_chunks, n_chunks), "two panels a tile"
    assert map_of_tiles.present == map_of_tiles.expected == n_chunks
    store.delete("system-0")
    assert not list(store.arrays()) and RunStore(url).description()["matrices"] == {}


@pytest.mark.parametrize(
    "pieces",
    [
        [["f", 1, 75]],
        [["f", 0, 55]],
        [["f", 0, 30], ["g", 40, 75]],
        [["f", 0, 55], ["g", 50, 60], ["h", 60, 75]],
        [["f", 0, 55], ["g", 55, 75]],
        [["f", 0, 75]] * 2,
    ],
)
def test_arrays_that_do_not_make_up_a_matrix_are_refused(tmp_path, pieces):
    store = RunStore(str(tmp_path))
    store.open()
    edit(tmp_path, matrices={"f": pieces})
    with pytest.raises(StoreError, match="damaged: its description has matrices="):
        RunStore(str(tmp_path)).matrix("f", TileGrid(75, 20, 10))


@pytest.mark.parametrize("first", [64, 70])
def test_a_run_resumes_with_its_factor_in_two_arrays_and_computes_what_is_damaged_in_either(tmp_path, first):
    X, url = np.random.default_rng(0).normal(size=(96, 3)), str(tmp_path / "run")
    model = dkrr.KernelRidge(0.1, kernel="rbf", tile=32, solver="cholesky", store=url)
    expected = model.fit(X, X[:, 0]).dual_coef_
    store, layout = RunStore(url), RunStore(url).description()["layout"]
    grid = TileGrid(96, layout["tile"], layout["panel"])
    tiles = {(i, j): np.empty((grid.height(i), grid.height(j))) for i, j in grid.lower()}
    for (i, j), tile in tiles.items():
        store.matrix(FACTOR, grid).read_tile(i, j, tile)
    store.delete(FACTOR)
    matrix = grown(url, (0, 70), (first, 96)).matrix(FACTOR, grid)
    for (i, j), tile in tiles.items():
        matrix.write_tile(i, j, tile)
    files = [*(tmp_path / "run" / "system-0").glob("factor*/c.*")]
    times = {file: file.stat().st_mtime_ns for file in files}
    assert len({file.parent for file in files}) == 2

    def again():
        RunStore(url).delete("system-0/solution")
        model.fit(X, X[:, 0])
        assert_array_equal(model.dual_coef_, expected)
        return {file for file in files if file.stat().st_mtime_ns != times[file]}

    assert again() == set()
    for damaged in (files[0], files[-1]):
        flip(damaged, 100)
        assert len(dkrr.verify(url).damage) == 1
        assert damaged in again() and dkrr.verify(url).is_whole
