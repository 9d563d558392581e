"""Products with the matrices of several kernels."""

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose

from dkrr.errors import KernelFunctionError
from dkrr.kernels import RBF, CallableKernel, Columns, Laplacian, Linear, weighted_sums
from dkrr.kernels.families import KernelFamily
from dkrr.linalg.family_operator import FamilyOperator, FamilyTiles
from dkrr.rows import MemoryRows
from dkrr.runtime import SerialExecutor, ThreadExecutor
from dkrr.tiles import TileGrid

FAMILIES = {
    "RBF": (RBF(0.01), RBF(0.02), RBF(0.3)),
    "Laplacian": (Laplacian(0.2), Laplacian(0.1)),
    "sums": tuple(weighted_sums([Columns(RBF(0.5), [0, 1]), Columns(Laplacian(0.1), [2, 3]), Linear()], 6)),
}


@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(("n", "tile"), [(1, 1), (47, 10), (300, 300), (571, 128)])
@pytest.mark.parametrize("is_sparse", [False, True])
def test_ragged_shapes(name, n, tile, precision, is_sparse):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 4))
    kernels = FAMILIES[name]
    source = FamilyTiles(KernelFamily(kernels), MemoryRows(sp.csr_array(X) if is_sparse else X))
    vectors = {
        k: 1e30 ** (k % 2) * rng.standard_normal((n, 1 + 2 * k)) for k in reversed(range(len(kernels))) if k != 1
    }
    with ThreadExecutor(2) as executor:
        operator = FamilyOperator(source, TileGrid(n, tile, tile), slots=2)
        found = operator.multiply(executor, vectors, precision)
    assert set(found) == set(vectors)
    for k, product in found.items():
        K = kernels[k](X)
        scale = np.abs(K) @ np.abs(vectors[k])
        assert product.shape == vectors[k].shape
        assert_allclose(product / scale, K @ vectors[k] / scale, atol=1e-12 if precision == "float64" else 1e-5)


def test_every_part_of_the_rows_is_read():
    """Parts of sparse rows, which are read a bounded number of entries at a time."""
    rng = np.random.default_rng(0)
    X = sp.random_array((700, 50), density=0.5, rng=rng, format="csr")
    kernels = FAMILIES["RBF"]
    operator = FamilyOperator(FamilyTiles(KernelFamily(kernels), MemoryRows(X)), TileGrid(700, 300, 300))
    v = rng.standard_normal((700, 2))
    assert_allclose(operator.multiply(SerialExecutor(), {2: v})[2], kernels[2](X) @ v, rtol=1e-10)


def test_errors_name_rows_of_the_matrix():
    def similarity(X, Y):
        if X[0, 0] >= 20.0:
            raise ValueError("too large")
        return X @ Y.T

    kernels = (CallableKernel(similarity), RBF(1.0))
    X = np.arange(30.0)[:, None]
    operator = FamilyOperator(FamilyTiles(KernelFamily(kernels), MemoryRows(X)), TileGrid(30, 10, 10))
    with pytest.raises(KernelFunctionError, match="too large.*in the block of rows 20 to 29"):
        operator.multiply(SerialExecutor(), {0: np.ones((30, 1)), 1: np.ones((30, 1))})
