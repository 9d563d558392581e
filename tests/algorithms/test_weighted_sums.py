"""Sums of kernels with weights to choose."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from dkrr.errors import InputError
from dkrr.kernels import RBF, Columns, Laplacian, Linear, weighted_sums, weights_of
from tests.oracles import assert_close

BANDS = [Columns(RBF(gamma=0.5), [0, 1]), Columns(Laplacian(), [2, 3]), 2.0 * Linear() + RBF()]


def test_candidates_are_sums_with_the_weights_that_are_read():
    X = np.random.default_rng(0).standard_normal((20, 4))
    candidates = weighted_sums(BANDS, 30, random_state=3)
    weights = np.array([weights_of(kernel, BANDS) for kernel in candidates])
    assert_allclose(weights[:4], [np.full(3, 1 / 3), *np.eye(3)])
    assert candidates[1:4] == BANDS and len(candidates) == 30
    assert_allclose(weights.sum(axis=1), 1.0)
    assert len({tuple(w) for w in weights}) == 30 and ((weights == 0) | (weights > 1e-4)).all()
    for kernel, w in zip(candidates, weights, strict=True):
        assert_close(kernel(X), sum(a * k(X) for a, k in zip(w, BANDS, strict=True)), 1e-14)


def test_concentration_decides_how_even_the_weights_are():
    few, even = (
        np.array([weights_of(k, BANDS) for k in weighted_sums(BANDS, 60, concentration=c)[4:]]).max(axis=1).mean()
        for c in (0.1, 20.0)
    )
    assert few > 0.75 and even < 0.5
    assert weighted_sums(BANDS, 9) == weighted_sums(BANDS, 9) != weighted_sums(BANDS, 9, random_state=1)
    with pytest.raises(InputError, match="kernel has the term Linear.*, which is not one of kernels"):
        weights_of(BANDS[0] + Linear(), BANDS)
