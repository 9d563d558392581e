"""K(x, X) of other rows and the training rows: products and entries, by strips and in threads."""

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal

from dkrr.data import MemoryRows, write_rows
from dkrr.errors import NotFiniteError
from dkrr.kernels import RBF, CallableKernel, Polynomial, Precomputed
from dkrr.linalg import cross_gram_products as module
from dkrr.linalg.cross_gram_products import ComputedCrossGram, cross_gram
from tests.stores import place
from tests.systems import random

N, M, D, T = 211, 37, 5, 3


@pytest.fixture(params=["dense", "float32", "integers", "sparse", "stored"])
def rows(request, tmp_path):
    X = random(N, D, seed=1)
    X[X < -1] = 0
    if request.param == "stored":
        return write_rows(MemoryRows(X), place(tmp_path / "rows"))
    values = {"float32": X.astype(np.float32), "integers": np.round(10 * X).astype(int), "sparse": sp.csr_array(X)}
    return MemoryRows(values.get(request.param, X))


@pytest.fixture(autouse=True)
def small_strips(monkeypatch):
    for name, value in {"BLOCK_ROWS": 16, "STRIP_ROWS": 60, "STRIP_BYTES": 8 * D * 50, "ENTRIES": 40 * M}.items():
        monkeypatch.setattr(module, name, value)


@pytest.mark.parametrize("kernel", [RBF(gamma=0.1), RBF(gamma=[0.1] * D), Polynomial(degree=2, gamma=0.5)])
@pytest.mark.parametrize("convert", [np.asarray, sp.csr_array])
@pytest.mark.parametrize("threads", [1, 3])
def test_products_and_entries_are_those_of_the_whole_matrix(rows, kernel, convert, threads):
    x, cross = convert(random(M, D, seed=2)), cross_gram(kernel, rows)
    K = kernel(x, rows.read(0, N))
    V, U, scale = random(N, T, seed=3), random(M, T, seed=4), np.linspace(0.0, 2.0, N)
    close = {"rtol": 1e-11, "atol": 1e-11 * abs(K).max()}
    for _ in range(2):  # what is kept is made, and used
        assert_allclose(cross.times(x, V), K @ V, **close)
    assert_allclose(cross.adjoint_times(x, U, threads), K.T @ U, **close)
    assert isinstance(cross, ComputedCrossGram)
    assert_allclose(cross.entries(x, None, threads), K.T, **close)
    assert_allclose(cross.entries(x, scale, threads), scale[:, None] * K.T, **close)


def test_several_products_have_the_bits_of_each_alone():
    cross, x = cross_gram(RBF(gamma=0.1), MemoryRows(random(N, D, seed=1))), random(M, D, seed=2)
    coefs = [random(N, t, seed=t) for t in (1, 2, 3)]
    outs, alone = [np.ones((M, t)) for t in (1, 2, 3)], [np.ones((M, t)) for t in (1, 2, 3)]
    cross.add_times(x, coefs, outs)
    for coef, out, one in zip(coefs, outs, alone, strict=True):
        cross.add_times(x, (coef,), (one,))
        assert_array_equal(out, one)


def test_a_block_of_a_precomputed_matrix_is_multiplied_as_it_is():
    K, V, U = random(M, N, seed=1), random(N, T, seed=2), random(M, T, seed=3)
    cross = cross_gram(Precomputed(), MemoryRows(np.eye(N)))
    assert_allclose(cross.times(K, V), K @ V)
    assert_allclose(cross.adjoint_times(K, U, 2), K.T @ U)


@pytest.mark.parametrize(("first", "expected"), [(100, 107), (None, 7)])
def test_an_error_of_the_kernel_numbers_rows_from_the_first_one(rows, first, expected):
    def fails(X, Z):
        raise NotFiniteError("too large", 7)

    cross = cross_gram(CallableKernel(fails), rows)
    x = rows.read(0, 20)
    with pytest.raises(NotFiniteError) as caught:
        cross.add_times(x, (np.ones((N, 1)),), (np.ones((20, 1)),), first)
    assert caught.value.row == expected
