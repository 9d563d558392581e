"""What float32 holds of a matrix: powers of two that scale it, and what is known before it is factored."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from dkrr.kernels import Linear
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


class TestScale:
    @given(st.lists(st.floats(1e-300, 1e300), min_size=1, max_size=9))
    def test_brings_the_diagonal_near_one_and_changes_no_digit(self, diagonal):
        scale = rounding_scale(np.array(diagonal))
        scaled = np.array(diagonal) if scale is None else np.array(diagonal) * scale[:, 0] * scale[:, 0]
        assert ((scaled >= 0.5) & (scaled < 2.0)).all()
        if scale is not None:
            assert (np.frexp(scale)[0] == 0.5).all(), "powers of two"

    def test_none_where_it_is_one(self):
        assert rounding_scale(np.array([0.5, 1.0, 1.01, 1.99])) is None


@pytest.mark.parametrize("size", [1e-120, 1.0, 1e120])
@pytest.mark.parametrize(("rows", "columns"), [((0, 7), (0, 7)), ((7, 11), (0, 7))])
def test_tiles_are_scaled_before_they_are_rounded(size, rows, columns):
    X = np.random.default_rng(0).standard_normal((11, 3)) * size
    K = X @ X.T
    scale = rounding_scale(K.diagonal() + K.diagonal().mean())
    scale = np.ones((11, 1)) if scale is None else scale
    rows, columns = slice(*rows), slice(*columns)
    out = np.empty((rows.stop - rows.start, columns.stop - columns.start), np.float32)
    RoundedTiles(GramTiles(Linear(), as_rows(X)), scale).fill(Meter(), out, rows, columns)
    expected = (K * scale * scale.T)[rows, columns]
    lower = np.tril_indices(len(out)) if rows == columns else np.indices(out.shape).reshape(2, -1)
    assert np.isfinite(expected).all()
    np.testing.assert_allclose(out[tuple(lower)], expected[tuple(lower)], atol=1e-6)


class TestRatio:
    def test_of_one_row(self):
        assert rounding_ratio(1, 1.0) == FLOAT32_ROUNDING

    def test_without_a_shift(self):
        assert rounding_ratio(100, 0.0) == np.inf

    @given(st.integers(1, 10**7), st.floats(1e-15, 1.0))
    def test_grows_with_rows_and_falls_with_the_shift(self, n, shift):
        assert rounding_ratio(n, shift) < rounding_ratio(n + 1, shift)
        assert rounding_ratio(n, shift) < rounding_ratio(n, 0.9 * shift)

    def test_shift_is_relative_to_each_diagonal_entry(self):
        assert least_relative_shift(np.array([1.0, 99.0, 0.0]), np.array([1.0, 1.0, 1.0])) == 0.01
        assert least_relative_shift(np.array([0.0]), np.array([0.0])) == 0.0
        assert least_relative_shift(np.array([np.inf]), np.array([1.0])) == 0.0

    def test_iterations(self):
        counts = [refining_iterations(ratio, 1e-13) for ratio in (1e-8, 1e-5, 1e-3, MAX_ROUNDING_RATIO, 1.0)]
        assert counts[0] == 3 and counts == sorted(counts) and counts[-1] < 50
        assert refining_iterations(1e-4, 1e-6) < refining_iterations(1e-4, 1e-13)


def test_none_of_a_scale_is_lost_in_the_units():
    scale = rounding_scale(np.array([4.0, 16.0, 1.0]))
    assert_array_equal(scale, [[0.5], [0.25], [1.0]])
