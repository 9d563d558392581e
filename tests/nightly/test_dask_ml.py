"""Dask-ML's `Incremental` calls `partial_fit` for every block of Dask arrays."""

import dask.array as da
import numpy as np
import pytest
from numpy.testing import assert_allclose

from dkrr import KernelRidge

wrappers = pytest.importorskip("dask_ml.wrappers")


def test_incremental_fits_the_blocks_of_dask_arrays():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((1000, 5)), rng.standard_normal(1000)
    model = KernelRidge(kernel="polynomial", degree=2, form="primal")
    blocks = da.from_array(X, chunks=(300, 5)), da.from_array(y, chunks=300)
    found = wrappers.Incremental(model).fit(*blocks)
    assert found.estimator_._grown.n == 1000
    assert_allclose(found.predict(blocks[0]).compute(), model.fit(X, y).predict(X), rtol=1e-10)
