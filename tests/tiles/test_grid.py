"""The integers of a tile grid, against the sets that they stand for."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dkrr.tiles import TileGrid


@st.composite
def grids(draw):
    panel = draw(st.integers(1, 9))
    return TileGrid(draw(st.integers(1, 60)), panel * draw(st.integers(1, 6)), panel)


@settings(max_examples=200, deadline=None)
@given(grids())
def test_tile_rows_cover_the_matrix_once(grid):
    rows = [k for i in range(grid.n_tiles) for k in range(grid.n)[grid.rows(i)]]
    assert rows == list(range(grid.n))
    assert [grid.height(i) for i in range(grid.n_tiles)] == [
        len(range(grid.n)[grid.rows(i)]) for i in range(grid.n_tiles)
    ]
    assert all(grid.height(i) == grid.tile for i in range(grid.n_tiles - 1))
    assert 1 <= grid.height(grid.n_tiles - 1) <= grid.tile


@settings(max_examples=200, deadline=None)
@given(grids())
def test_panels_cover_exactly_the_columns_of_their_tile(grid):
    for j in range(grid.n_tiles):
        columns = [k for p in grid.panels(j) for k in range(grid.n)[grid.columns(p)]]
        assert columns == list(range(grid.n))[grid.rows(j)]
        assert {grid.tile_of(p) for p in grid.panels(j)} == {j}
        assert all(len(range(grid.n)[grid.columns(p)]) >= 1 for p in grid.panels(j))
    numbers = [p for j in range(grid.n_tiles) for p in grid.panels(j)]
    assert numbers == list(range(-(-grid.n // grid.panel)))


@settings(max_examples=100, deadline=None)
@given(grids())
def test_lower_goes_column_by_column(grid):
    pairs = list(grid.lower())
    assert sorted(pairs) == [(i, j) for i in range(grid.n_tiles) for j in range(i + 1)]
    assert pairs == sorted(pairs, key=lambda pair: (pair[1], pair[0]))


def test_sizes_with_distinct_primes():
    grid = TileGrid(n=103, tile=35, panel=7)
    assert grid.n_tiles == 3
    assert [grid.height(i) for i in range(3)] == [35, 35, 33]
    assert list(grid.panels(0)) == [0, 1, 2, 3, 4]
    assert list(grid.panels(2)) == [10, 11, 12, 13, 14]
    assert grid.columns(14) == slice(98, 103)
    assert list(TileGrid(n=78, tile=35, panel=7).panels(2)) == [10, 11]


def test_one_row():
    grid = TileGrid(1, 1, 1)
    assert (grid.n_tiles, grid.rows(0), list(grid.panels(0)), list(grid.lower())) == (1, slice(0, 1), [0], [(0, 0)])


@pytest.mark.parametrize(("n", "tile", "panel"), [(0, 1, 1), (5, 0, 1), (5, 4, 3), (5, 4, 0), (5, 2, 4)])
def test_no_grid(n, tile, panel):
    with pytest.raises(ValueError, match=f"n={n}, tile={tile}, panel={panel}"):
        TileGrid(n, tile, panel)
