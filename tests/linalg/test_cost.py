"""Sums of costs."""

from dkrr.cost import Cost
from dkrr.planning import Rates


def test_sum_and_multiple():
    a, b = Cost(2.0, 3.0, 5.0, 7.0, 11, 31.0), Cost(13.0, 17.0, 19.0, 23.0, 29, 37.0)
    assert a + b == Cost(15.0, 20.0, 24.0, 30.0, 40, 68.0)
    assert a.times(3) == Cost(6.0, 9.0, 15.0, 21.0, 33, 93.0)
    assert a.times(0.5).n_tasks == 6
    assert a + Cost() == a


def test_seconds():
    rates = Rates(gemm_flops=2.0, read_bytes=5.0, write_bytes=7.0, task_seconds=0.5, memory_bytes=0.25)
    assert rates.seconds(Cost(gemm_flops=12.0)) == 6.0
    assert rates.seconds(Cost(gemm_flops=12.0), threads=3) == 2.0
    assert rates.seconds(Cost(12.0, 1.0, 10.0, 21.0, 4, 1.5), threads=3) == 2.0 + 1.0 + 2.0 + 3.0 + 2.0 + 6.0
