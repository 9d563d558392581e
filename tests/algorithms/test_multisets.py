"""Multisets by number agree with itertools."""

from itertools import combinations_with_replacement
from math import comb, factorial, prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from dkrr.features import multisets


@given(n=st.integers(0, 7), p=st.integers(0, 5), data=st.data())
def test_any_range_of_multisets_is_that_of_itertools(n, p, data):
    every = list(combinations_with_replacement(range(n), p))
    assert multisets.count(n, p) == len(every)
    start = data.draw(st.integers(0, len(every)))
    stop = data.draw(st.integers(start, len(every)))
    table = multisets.table(n, p, start, stop)
    assert table.shape == (p, stop - start)
    assert [tuple(column) for column in table.T.tolist()] == every[start:stop]


def test_weights_are_multinomial_coefficients():
    table = multisets.table(4, 5, 0, multisets.count(4, 5))
    expected = [factorial(5) / prod(factorial(column.count(i)) for i in range(4)) for column in table.T.tolist()]
    assert_allclose(multisets.root_weights(table) ** 2, expected, rtol=1e-14)


def test_a_list_beyond_any_memory():
    n, p = 10**5 + 1, 7
    assert multisets.count(n, p) == comb(n + p - 1, p) > 2**63
    assert_array_equal(multisets.table(n, p, 0, 3).T, [[0] * 7, [0] * 6 + [1], [0] * 6 + [2]])

    def rank(column):
        """Position of a multiset in the list, by Python's integers."""
        least = [0, *column[:-1]]
        pairs = zip(least, column, range(p, 0, -1), strict=True)
        return sum(multisets.count(n - low, left) - multisets.count(n - symbol, left) for low, symbol, left in pairs)

    near = multisets.table(n, p, 2**63 - 5, 2**63 - 1).T.tolist()
    assert [rank(column) for column in near] == list(range(2**63 - 5, 2**63 - 1))


@pytest.mark.parametrize("p", [100, 400])
def test_weights_do_not_overflow(p):
    weights = multisets.root_weights(np.array([[0]] * (p // 2) + [[1]] * (p // 2)))
    assert_allclose(np.log(weights[0]), 0.5 * np.log(float(comb(p, p // 2))), rtol=1e-12)
