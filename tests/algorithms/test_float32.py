"""What float32 holds of a matrix: powers of two that scale it, and what is known before it is factored."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from dkrr.kernels import Linear
from dkrr.linalg.operator import column_norms, column_sizes
from dkrr.linalg.rounding import (
    FLOAT32_ROUNDING,
    MAX_ROUNDING_RATIO,
    RoundedTiles,
    least_relative_shift,
    refining_iterations,
    rounding_ratio,
    rounding_scale,
)
from dkrr.linalg.sources import GramTiles
from dkrr.rows import as_rows
from dkrr.runtime import Meter
from tests.systems import random

TINY, LARGEST = 5e-324, np.finfo(float).max


@given(st.lists(st.floats(1e-300, 1e300), min_size=1, max_size=9))
def test_a_scale_brings_the_diagonal_near_one_and_changes_no_digit(diagonal):
    scale = rounding_scale(np.array(diagonal))
    scaled = np.array(diagonal) if scale is None else np.array(diagonal) * scale[:, 0] * scale[:, 0]
    assert ((scaled >= 0.5) & (scaled < 2.0)).all()
    assert scale is None or (np.frexp(scale)[0] == 0.5).all(), "powers of two"


def test_a_scale_of_ones_is_none():
    assert rounding_scale(np.array([0.5, 1.0, 1.01, 1.99])) is None
    assert_array_equal(rounding_scale(np.array([4.0, 16.0, 1.0])), [[0.5], [0.25], [1.0]])


@pytest.mark.parametrize("size", [1e-120, 1.0, 1e120])
def test_tiles_are_scaled_before_they_are_rounded(size):
    X = random(11, 3) * size
    K = X @ X.T
    scale = rounding_scale(K.diagonal() + K.diagonal().mean())
    scale = np.ones((11, 1)) if scale is None else scale
    for rows, columns in ((slice(0, 7), slice(0, 7)), (slice(7, 11), slice(0, 7))):
        out = np.empty((rows.stop - rows.start, columns.stop - columns.start), np.float32)
        RoundedTiles(GramTiles(Linear(), as_rows(X)), scale).fill(Meter(), out, rows, columns)
        expected = (K * scale * scale.T)[rows, columns]
        lower = np.tri(*out.shape, dtype=bool) | (rows != columns)
        assert np.isfinite(expected).all()
        assert_allclose(out[lower], expected[lower], atol=1e-6)


@given(st.integers(1, 10**7), st.floats(1e-15, 1.0))
def test_what_rounding_leaves_grows_with_the_rows_and_falls_with_the_shift(n, shift):
    assert rounding_ratio(n, shift) < rounding_ratio(n + 1, shift)
    assert rounding_ratio(n, shift) < rounding_ratio(n, 0.9 * shift)
    assert rounding_ratio(1, 1.0) == FLOAT32_ROUNDING
    assert rounding_ratio(n, 0.0) == np.inf


def test_a_shift_is_relative_to_each_diagonal_entry():
    assert least_relative_shift(np.array([1.0, 99.0, 0.0]), np.array([1.0, 1.0, 1.0])) == 0.01
    assert least_relative_shift(np.array([0.0]), np.array([0.0])) == 0.0
    assert least_relative_shift(np.array([np.inf]), np.array([1.0])) == 0.0


def test_iterations_of_refinement_grow_with_what_rounding_leaves():
    counts = [refining_iterations(ratio, 1e-13) for ratio in (1e-8, 1e-5, 1e-3, MAX_ROUNDING_RATIO, 1.0)]
    assert counts[0] == 3 and counts == sorted(counts) and counts[-1] < 50
    assert refining_iterations(1e-4, 1e-6) < refining_iterations(1e-4, 1e-13)


@pytest.mark.parametrize("largest", [1.0, -3.0, 1e-310, TINY, 1e-160, 2.0**1023, -LARGEST])
def test_sizes_of_vectors_are_powers_of_two_that_change_no_digit(largest):
    vectors = np.array([[largest, 1.0], [largest / 4, 0.0]])
    sizes = column_sizes(vectors)
    assert_array_equal(np.frexp(sizes)[0], 0.5)
    scaled = vectors / sizes
    assert_array_equal(scaled * sizes, vectors)
    assert np.abs(scaled).max() < 2.0
    if abs(largest) > np.finfo(float).tiny:
        assert np.abs(scaled[:, 0]).max() > 0.5
    assert_array_equal(np.zeros((3, 2)) / column_sizes(np.zeros((3, 2))), 0.0)


@pytest.mark.parametrize("size", [1.0, 1e-310, 1e-160, 1e155, 1e300])
def test_norms_are_right_where_squares_overflow_or_underflow(size):
    vectors = np.array([[3.0, 0.0, 1.0], [-4.0, 0.0, 2.0]]) * size
    expected = np.array([5.0, 0.0, np.sqrt(5.0)]) * size
    assert_allclose(column_norms(vectors), expected, rtol=1e-13)
    assert_allclose(column_norms(vectors[:, :1]), expected[:1], rtol=1e-13)
    assert np.isnan(column_norms(np.array([[size], [np.nan]])))
    assert column_norms(np.array([[size], [-np.inf]])) == np.inf
