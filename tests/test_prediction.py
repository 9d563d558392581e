"""Predictions need memory for blocks of bounded size, whatever is wide."""

import tracemalloc
from dataclasses import replace

import dask
import dask.array as da
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from dkrr.errors import NotFiniteError
from dkrr.features import IdentityMap
from dkrr.kernels import RBF, Linear
from dkrr.model import FittedFunction
from dkrr.prediction import BLOCK_BYTES, BLOCK_ROWS, block_rows, predict
from dkrr.rows import MemoryRows, as_rows, write_rows

MIB = 2**20


def fitted(n, d, t, rows=None):
    rng = np.random.default_rng(0)
    rows = MemoryRows(rng.normal(size=(n, d))) if rows is None else rows
    return FittedFunction(RBF(0.1 / d), d, None, None, rng.normal(size=(n, t)), rows, np.zeros(t))


@pytest.mark.parametrize(("d", "t"), [(3, 1), (20_000, 1), (3, 20_000), (10**7, 1)])
def test_blocks_are_lower_where_something_is_wide(d, t):
    model = FittedFunction(RBF(1.0), d, None, None, None, None, np.zeros(t))
    height = block_rows(model, MemoryRows(np.broadcast_to(0.0, (5000, d))))
    assert 1 <= height <= BLOCK_ROWS and (height == 1 or height * 8 * max(d, t) <= BLOCK_BYTES)


def test_large_predictions_are_finite_also_where_their_sum_is_not():
    ones = FittedFunction(Linear(), 1, np.ones((1, 2)), IdentityMap(), None, None, np.zeros(2))
    X = np.full((3, 1), 1.5e308)
    assert_array_equal(predict(ones, MemoryRows(X)), np.full((3, 2), 1.5e308))
    opposite = replace(ones, coef=np.array([[2.0, -2.0]]))
    X[0] = X[1] = 1.0
    with pytest.raises(NotFiniteError, match="row 2"):
        predict(opposite, MemoryRows(X))


def peak(work):
    """Most memory that NumPy had at once."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_lazy_predictions_of_many_targets():
    model, X = fitted(50, 2, 2000), np.random.default_rng(1).normal(size=(20_000, 2))
    lazy = predict(model, as_rows(da.from_array(X, chunks=(20_000, 2))))
    parts = []

    def keep(block):
        parts.append(block[0].copy())
        return block[:1, :1].copy()

    # 262 MiB in blocks of 16,384 rows, twice.
    with dask.config.set(num_workers=2):
        work = lazy.map_blocks(keep, chunks=(1, 1), dtype=float, meta=np.empty((0, 0))).compute
        assert peak(work) < 160 * MIB
    assert len(parts) > 10


def test_training_rows_of_many_columns(tmp_path):
    n, d = 400, 20_000
    stored = write_rows(MemoryRows(np.random.default_rng(1).normal(size=(n, d))), str(tmp_path / "rows"))
    model, X = fitted(n, d, 1, stored), MemoryRows(np.random.default_rng(2).normal(size=(20, d)))
    # 61 MiB of training rows, and as much again for the kernel, if they are read at once.
    assert peak(lambda: predict(model, X)) < 80 * MIB
    whole = fitted(n, d, 1, MemoryRows(stored.read(0, n)))
    assert np.allclose(predict(model, X), predict(whole, X), rtol=0, atol=1e-10)
