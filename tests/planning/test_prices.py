"""What prices depend on: sizes, settings, rates, memory for the cache of files, and what is known of a spectrum.

What every stage should cost is in the golden file of prices.
"""

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dkrr.kernels import RBF, Laplacian
from dkrr.linalg.pivoted_cholesky import PRICED_RANKS
from dkrr.linalg.tile_steps import PANEL_COLUMNS
from dkrr.planning import Iterative, KernelRate, Rates, make_plan
from dkrr.planning.resources import cold_fraction
from dkrr.planning.tilings import fixed_grid, tile_grid
from dkrr.solvers import ConjugateGradient, RPCholesky
from tests.planning.problems import GIB, cluster, machine, problem

N, D, WORKERS = 30_011, 13, 5
CG = ConjugateGradient()


@given(st.integers(1, 10**6), st.integers(1, 20_000))
def test_tiles_cut_the_matrix_evenly_and_are_of_about_the_size_that_is_meant(n, tile):
    grid, fixed = tile_grid(n, tile), fixed_grid(n, tile)
    assert grid.n == n and grid.n_tiles <= -(-n // min(tile, n))
    assert grid.tile <= 1.1 * tile + 16 and grid.panel <= 2 * PANEL_COLUMNS
    assert grid.panel <= 8 or grid.panel % 8 == 0
    if 1 < grid.n_tiles <= 8 and tile >= 256:
        assert grid.height(grid.n_tiles - 1) > 0.5 * grid.tile
    assert (fixed.n, fixed.tile) == (n, min(tile, n))
    assert fixed.panel >= min(fixed.tile, 64), "panels of a few columns would be slow"
    assert fixed.panel <= PANEL_COLUMNS or fixed.tile == fixed.panel


# Conjugate gradient


@pytest.mark.parametrize("n", [1, 3, 211, N])
@pytest.mark.parametrize("rank", [None, 701, 10 * N])
def test_ranks_are_those_that_were_asked_for_or_a_few_and_no_larger_than_n(n, rank):
    settings = CG if rank is None else ConjugateGradient(RPCholesky(rank))
    found = list(Iterative.candidates(problem(n, D, solver=settings), machine(4000 * GIB), "dual"))
    assert all(1 <= c.rank <= c.rank_limit <= n and 1 <= c.products.tile <= n for c in found)
    if rank is not None:
        assert {(c.rank, c.rank_limit) for c in found} == {(min(rank, n), min(rank, n))}
    elif n == N:
        assert {c.rank for c in found} == {r for r in PRICED_RANKS if r <= n // 4}


def test_seconds_have_a_range_that_a_sample_of_the_rows_makes_narrower():
    what, ranges = problem(100_003, 13, solver=CG), []
    for spectrum in (what.spectrum, replace(what.spectrum, decay=2.1)):
        plan = make_plan(replace(what, spectrum=spectrum), machine(8 * GIB))
        low, high = plan.seconds_range
        iterating = next(s.seconds for s in plan.chosen.stages if s.name == "conjugate gradient")
        assert plan.seconds - iterating < low < plan.seconds < high, "only the iterations are an estimate"
        assert plan.to_dict()["seconds_range"] == [low, high] and "the iterations are an estimate" in str(plan)
        ranges.append(high / low)
    assert ranges[0] > ranges[1] > 1.2
    primal = make_plan(problem(10**6, 3001, "linear", solver=CG, form="primal"), machine())
    low, high = (s / primal.seconds for s in primal.seconds_range)
    assert low < 0.2 and high > 2


# Rates


POINTS = [(16, "float64", 8e-9), (4, "float64", 2e-9), (16, "float32", 4e-9)]
MEASURED = Rates(kernels=tuple(KernelRate("RBF", *point) for point in POINTS))


def test_what_was_measured_of_a_kernel_is_used_between_the_points_and_beyond_them():
    def seconds(rates, kernel, d, precision="float64"):
        entry = rates.entry(kernel, d, precision)
        return entry.gemm_flops / rates.gemm_flops + entry.element_seconds

    assert Rates().entry(RBF(gamma=1.0), 16) == RBF(gamma=1.0).entry_cost(16)
    assert MEASURED.entry(Laplacian(), 16) == Laplacian().entry_cost(16)
    for d, precision, expected in POINTS:
        assert seconds(MEASURED, RBF(), d, precision) == pytest.approx(expected)
    low, four, half_way, sixteen, high = (
        seconds(MEASURED, RBF(), d) / seconds(Rates(), RBF(), d) for d in (1, 4, 8, 16, 500)
    )
    assert low == pytest.approx(four) and high == pytest.approx(sixteen)
    assert half_way == pytest.approx((four + sixteen) / 2), "8 is half-way in the logarithm"
    assert seconds(Rates(), Laplacian(), 9, "float32") < seconds(Rates(), Laplacian(), 9)
    faster = MEASURED.faster(3.0)
    assert faster.gemm_flops == 3 * MEASURED.gemm_flops and faster.dense_flops == 3 * MEASURED.dense_flops
    assert faster.read_bytes == MEASURED.read_bytes and faster.kernels == MEASURED.kernels


def test_what_the_cache_of_files_has_no_memory_for_is_read_at_the_rate_of_the_disk():
    rates = Rates(read_bytes=4e9, cold_read_bytes=0.5e9)
    assert [cold_fraction(n, 10 * GIB) for n in (0, GIB, 10 * GIB, 40 * GIB)] == [0.0, 0.0, 0.0, 0.75]
    assert cold_fraction(GIB, 0.0) == 1.0 and cold_fraction(1e300, inf) == 0.0
    assert rates.reading(0.0) is rates and rates.reading(1.0).read_bytes == pytest.approx(0.5e9)
    assert 1e9 / rates.reading(0.25).read_bytes == pytest.approx(0.75 / 4 + 0.25 / 0.5)
    assert Rates(read_bytes=0.1e9).reading(0.5).read_bytes == pytest.approx(0.1e9), "a disk is no faster than a cache"
    where = machine(4 * GIB, 3, memory_bytes=20 * GIB, local_baseline_bytes=GIB)
    assert where.cache_bytes(3, GIB) == 16 * GIB, "the calling process holds what it holds"
    assert where.cache_bytes(1, 5 * GIB, on_workers=False) == 15 * GIB
    assert where.cache_bytes(3, 9 * GIB) == 0 and machine().cache_bytes(3, GIB) == inf
    assert cluster(workers=8, memory_bytes=20 * GIB, n_hosts=3).cache_bytes(8, 2 * GIB) == 14 * GIB
