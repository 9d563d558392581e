"""Rates: what was measured of a kernel is used, between the points and beyond them."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dkrr.kernels import RBF, Laplacian
from dkrr.planning import KernelRate, Rates
from dkrr.planning.resources import cold_fraction, interpolate
from tests.planning.problems import GIB, cluster, machine

MEASURED = Rates(
    kernels=(
        KernelRate("RBF", 16, "float64", 8e-9),
        KernelRate("RBF", 4, "float64", 2e-9),
        KernelRate("RBF", 16, "float32", 4e-9),
    )
)


def seconds(rates, kernel, d, precision="float64"):
    entry = rates.entry(kernel, d, precision)
    return entry.gemm_flops / rates.gemm_flops + entry.element_seconds


@pytest.mark.parametrize("d", [1, 4, 16, 1000])
def test_the_formula_where_nothing_was_measured(d):
    assert Rates().entry(RBF(gamma=1.0), d) == RBF(gamma=1.0).entry_cost(d)
    assert MEASURED.entry(Laplacian(), d) == Laplacian().entry_cost(d)


def test_points_that_were_measured():
    assert seconds(MEASURED, RBF(), 4) == pytest.approx(2e-9)
    assert seconds(MEASURED, RBF(), 16) == pytest.approx(8e-9)
    assert seconds(MEASURED, RBF(), 16, "float32") == pytest.approx(4e-9)


def test_between_and_beyond_them():
    plain = Rates()
    factors = [seconds(MEASURED, RBF(), d) / seconds(plain, RBF(), d) for d in (1, 4, 8, 16, 500)]
    assert factors[0] == pytest.approx(factors[1])
    assert factors[2] == pytest.approx((factors[1] + factors[3]) / 2), "8 is half-way in the logarithm"
    assert factors[4] == pytest.approx(factors[3])


def test_float32_is_faster_where_nothing_was_measured():
    assert seconds(Rates(), Laplacian(), 9, "float32") < seconds(Rates(), Laplacian(), 9)


def test_faster_cores():
    faster = MEASURED.faster(3.0)
    assert faster.gemm_flops == 3 * MEASURED.gemm_flops and faster.dense_flops == 3 * MEASURED.dense_flops
    assert faster.read_bytes == MEASURED.read_bytes and faster.kernels == MEASURED.kernels


@given(
    st.lists(st.tuples(st.integers(-50, 50), st.floats(-9, 9)), min_size=1, unique_by=lambda p: p[0]),
    st.floats(-60, 60),
)
def test_interpolation_stays_between_its_points(points, x):
    xs, ys = zip(*sorted(points), strict=True)
    assert min(ys) - 1e-9 <= interpolate(x, xs, ys) <= max(ys) + 1e-9
    for a, b in zip(xs, ys, strict=True):
        assert interpolate(a, xs, ys) == pytest.approx(b)


class TestCacheOfFiles:
    """What the system's cache has no memory for is read at the disk's own rate."""

    RATES = Rates(read_bytes=4e9, cold_read_bytes=0.5e9)

    def test_part_that_comes_from_the_disk(self):
        assert [cold_fraction(n, 10 * GIB) for n in (0, GIB, 10 * GIB, 40 * GIB)] == [0.0, 0.0, 0.0, 0.75]
        assert cold_fraction(GIB, 0.0) == 1.0 and cold_fraction(1e300, inf) == 0.0

    def test_rate_of_reading(self):
        assert self.RATES.reading(0.0) is self.RATES
        assert self.RATES.reading(1.0).read_bytes == pytest.approx(0.5e9)
        assert 1e9 / self.RATES.reading(0.25).read_bytes == pytest.approx(0.75 / 4 + 0.25 / 0.5)
        assert Rates(read_bytes=0.1e9).reading(0.5).read_bytes == pytest.approx(0.1e9), (
            "a disk is not faster than a cache"
        )

    def test_memory_that_is_left(self):
        where = machine(4 * GIB, 3, memory_bytes=20 * GIB, local_baseline_bytes=GIB)
        assert where.cache_bytes(3, GIB) == 16 * GIB, "the calling process holds what it holds"
        assert where.cache_bytes(1, 5 * GIB, on_workers=False) == 15 * GIB
        assert where.cache_bytes(3, 9 * GIB) == 0
        assert machine().cache_bytes(3, GIB) == inf, "nothing is known"
        assert cluster(workers=8, memory_bytes=20 * GIB, n_hosts=3).cache_bytes(8, 2 * GIB) == 14 * GIB


def test_a_limit_of_every_process_does_not_grow_where_there_are_fewer():
    where = machine(16 * GIB, 4, process_limit_bytes=5 * GIB)
    assert [where.on_workers(k).limit_bytes // GIB for k in (4, 3, 2, 1)] == [4, 5, 5, 5]
