"""Sums of costs."""

import pytest

from dkrr.cost import Cost
from dkrr.linalg.cholesky import cholesky_cost, cold_cholesky_bytes, factor_bytes, partial_bytes
from dkrr.planning import Rates
from dkrr.planning.resources import DENSE_SIDE
from dkrr.tiles import TileGrid
from dkrr.tiles.shards import OVERHEAD_BYTES


def test_sum_and_multiple():
    a, b = Cost(2.0, 3.0, 5.0, 7.0, 11, 31.0), Cost(13.0, 17.0, 19.0, 23.0, 29, 37.0)
    assert a + b == Cost(15.0, 20.0, 24.0, 30.0, 40, 68.0)
    assert a.times(3) == Cost(6.0, 9.0, 15.0, 21.0, 33, 93.0)
    assert a.times(0.5).n_tasks == 6
    assert a + Cost() == a
    factored = Cost(dense_flops=41.0, dense_side=43) + Cost(dense_flops=2.0, dense_side=5)
    assert (factored.dense_flops, factored.dense_side, factored.times(3).dense_side) == (43.0, 43, 43)


def test_seconds():
    rates = Rates(
        gemm_flops=2.0, read_bytes=5.0, write_bytes=7.0, task_seconds=0.5, memory_bytes=0.25, fresh_bytes=0.125
    )
    assert rates.seconds(Cost(gemm_flops=12.0)) == 6.0
    assert rates.seconds(Cost(gemm_flops=12.0), threads=3) == 2.0
    assert rates.seconds(Cost(12.0, 1.0, 10.0, 21.0, 4, 1.5, 0.5), threads=3) == 2.0 + 1.0 + 2.0 + 3.0 + 2.0 + 6.0 + 4.0


def test_a_small_factorisation_is_slower_by_the_flop():
    rates = Rates(gemm_flops=100.0, dense_flops=50.0)
    assert rates.seconds(Cost(dense_flops=100.0, dense_side=DENSE_SIDE)) == 2.0
    assert rates.seconds(Cost(dense_flops=100.0, dense_side=DENSE_SIDE), threads=2) == 1.0
    seconds = [rates.seconds(Cost(dense_flops=100.0, dense_side=n)) for n in (10, 1000, 10**4, 10**9)]
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[-1] == pytest.approx(1.0, rel=1e-5), "a large one runs at the rate of GEMM"


@pytest.mark.parametrize("n_tiles", [1, 2, 7, 40])
def test_what_a_factorisation_reads_from_the_disk_itself(n_tiles):
    grid = TileGrid(n_tiles * 6, 6, 3)
    tile = 2 * (8 * 6 * 3 + OVERHEAD_BYTES)  # two panels with their checksums
    whole, read = factor_bytes(grid), cholesky_cost(grid, 0).read_bytes
    cold = [cold_cholesky_bytes(grid, part * whole) for part in (0.0, 0.1, 0.3, 0.5, 1.0)]
    # Without a cache every column reads all tiles on its left once; its own row is then at hand.
    lefts = sum(1 for j in range(n_tiles) for i in range(j, n_tiles) for _ in range(j))
    assert cold[0] == lefts * tile <= read
    assert cold == sorted(cold, reverse=True) and cold[-1] == 0
    # In a cache smaller than its working set a column reads the rest from the disk.
    some = 2.5 * tile
    assert cold_cholesky_bytes(grid, some) == (
        0 if n_tiles < 3 else sum(max(0.0, j * (n_tiles - j) * tile - some) for j in range(n_tiles))
    )
    assert cold_cholesky_bytes(grid, whole) == 0
    # A column's working set is j (n_tiles − j) tiles: never more than half the factor, and a little.
    assert cold_cholesky_bytes(grid, tile * (n_tiles // 2) * -(-n_tiles // 2)) == 0


def test_sums_between_parts_come_from_the_disk_too():
    grid, cache = TileGrid(7 * 6, 6, 3), 100.0
    without, between = cold_cholesky_bytes(grid, cache), partial_bytes(grid, 0, 2)
    assert cold_cholesky_bytes(grid, cache, 2) == without + between - cache and between > cache
