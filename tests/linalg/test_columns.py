"""Single columns of a matrix, from a kernel and from rows, for every kind of rows."""

import pickle

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from dkrr.kernels import RBF
from dkrr.linalg.sources import GramColumns, MatrixColumns
from dkrr.rows import MemoryRows, as_rows
from tests.contracts.kernels import DISTINCT
from tests.inputs import KINDS, numbers, table
from tests.linalg.systems import positive_definite


def check(source, A, rtol=1e-12):
    """All that a factorisation asks of a source."""
    n, index = len(A), np.array([5, 0, 22, 5])
    assert source.n == n
    assert_allclose(source.diagonal(slice(0, n)), A.diagonal(), rtol=rtol)
    assert_allclose(source.diagonal(slice(3, 9)), A.diagonal()[3:9], rtol=rtol)
    taken = source.take(index)
    for rows in (slice(0, n), slice(7, 8), slice(20, n)):
        block = source.block(rows, taken)
        assert block.dtype == np.float64
        assert block.flags.c_contiguous and block.flags.writeable, "the factorisation works in place"
        assert_allclose(block, A[rows][:, index], rtol=rtol, atol=1e-13)
    other = np.array([1, 22])
    among = source.among(taken, source.take(other))
    assert among.flags.c_contiguous and among.flags.writeable
    assert_allclose(among, A[np.ix_(index, other)], rtol=rtol, atol=1e-13)
    picked = taken[[2, 0]]  # by position, which is how pivots are accepted
    assert_allclose(source.block(slice(0, n), picked), A[:, [22, 5]], rtol=rtol, atol=1e-13)


@pytest.mark.parametrize("case", DISTINCT, ids=str)
def test_every_kernel(case):
    X = case.rows(23, 4)
    check(GramColumns(case.kernel, MemoryRows(X)), case.kernel(X))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_rows(tmp_path, kind):
    X = numbers() / 100
    check(GramColumns(RBF(gamma=0.2), as_rows(table(kind, tmp_path, X).handed_in)), RBF(gamma=0.2)(X))


@pytest.mark.parametrize("kind", ["ndarray", "csr", "zarr", "npy", "dask"])
def test_matrix(tmp_path, kind):
    A = np.where(np.abs(positive_definite(23)) > 0.05, positive_definite(23), 0.0)
    check(MatrixColumns(as_rows(table(kind, tmp_path, A).handed_in)), A)


def test_matrix_in_float32():
    A = positive_definite(23).astype(np.float32)
    check(MatrixColumns(MemoryRows(A)), A.astype(np.float64))


def test_travels(tmp_path):
    source = GramColumns(RBF(gamma=0.2), as_rows(table("zarr", tmp_path, numbers() / 100).handed_in))
    message = pickle.dumps(source)
    assert len(message) < 2000
    taken = source.take(np.array([3, 1]))
    assert_array_equal(pickle.loads(message).block(slice(0, 23), taken), source.block(slice(0, 23), taken))
