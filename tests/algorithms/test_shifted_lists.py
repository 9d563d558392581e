"""Order statistics of shifted sorted lists: the very numbers that a partition of all sums has."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

import dkrr.linalg.shifted_lists as shifted_lists
from dkrr.linalg.shifted_lists import ShiftedLists


def by_partition(lists, shifts, rank):
    of_list = np.repeat(np.arange(len(lists)), [len(one) for one in lists])
    return np.partition(shifts[of_list] + np.concatenate(lists)[:, None], rank, axis=0)[rank]


@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=9).filter(sum),
    n_rows=st.integers(1, 70),
    apart=st.sampled_from([0.0, 1e-16, 1e-3, 0.1, 3.0, 1e6]),
    far=st.sampled_from([0.0, 1.0, -1e6, 1e12]),
    step=st.sampled_from([0.0, 0.25, 2.0]),
    top=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
)
def test_the_value_of_a_rank_is_that_of_a_partition(seed, sizes, n_rows, apart, far, step, top):
    rng = np.random.default_rng(seed)
    lists = [np.abs(rng.standard_cauchy(size)) for size in sizes]
    lists = [np.sort(np.round(one / step) * step if step else one) for one in lists]  # equal ones
    shifts = far + apart * rng.normal(size=(len(lists), n_rows))
    rank = round(top * (sum(sizes) - 1))
    assert_array_equal(ShiftedLists(lists).of_rank(shifts, rank), by_partition(lists, shifts, rank))


@pytest.mark.parametrize("far", [0.0, 1e9])
@pytest.mark.parametrize("step", [0.0, 0.5])
def test_rows_that_a_table_does_not_settle_are_bracketed(monkeypatch, step, far):
    rng = np.random.default_rng(2)
    lists = [np.abs(rng.normal(size=size)) for size in (300, 1, 297, 402)]
    lists = [np.sort(np.round(one / step) * step if step else one) for one in lists]
    shifts = far + rng.normal(size=(4, 50)) * (np.arange(50) % 3)
    monkeypatch.setattr(shifted_lists, "MAX_BUCKETS", 1)  # which says nothing
    monkeypatch.setattr(shifted_lists, "MAX_CORRECTIONS", 1)
    for rank in (0, 700, 999):
        assert_array_equal(ShiftedLists(lists).of_rank(shifts, rank), by_partition(lists, shifts, rank))
