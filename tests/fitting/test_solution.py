"""What is only rounding in the moments of the primal form."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from dkrr.features import IdentityMap
from dkrr.fitting.data import TrainingData
from dkrr.fitting.solution import drop_rounding
from dkrr.kernels import Linear
from dkrr.rows import as_rows


@pytest.mark.parametrize("weight", [None, 4.0])
def test_moments_that_are_only_rounding(weight):
    X, y = np.array([[1.0, 1e-25], [1.0, -1e-25]]), np.array([[1.0, 1.0, 0.0], [1.0, -1.0, 0.0]])
    weights = None if weight is None else np.full(2, weight)
    data = TrainingData(as_rows(X), y, weights, np.ones(3), Linear(), IdentityMap(), fit_intercept=False)
    root = 1.0 if weight is None else np.sqrt(weight)
    lengths = np.sqrt(2) * root * np.array([1.0, 1e-25])
    # Of the second target the part in the first feature is rounding, not that in the other; the third is zero.
    moments = np.array([[1e-16, 1e-16, 0.0], [1e-42, 2e-25, 0.0]])
    found = moments.copy()
    sizes = drop_rounding(data, found, lengths**2)
    assert_array_equal(found[:, 0], 0.0)
    assert_array_equal(found[:, 1:], moments[:, 1:])
    assert_allclose(sizes, [lengths[0] * np.sqrt(2) * root, 1e-16, 0.0])
