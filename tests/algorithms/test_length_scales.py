"""Kernels with a length for each column."""

import json

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.gaussian_process import kernels as sklearn_kernels

from dkrr import KernelRidge
from dkrr.errors import InputError
from dkrr.features import RandomFourier
from dkrr.kernels import RBF, Laplacian, Linear, Matern
from dkrr.kernels.descriptions import kernel_from_dict
from tests.systems import traced_peak

LENGTHS = np.array([0.3, 1.0, 4.0, 0.8, 2.5])
KERNELS = [
    (RBF(gamma=0.5 / LENGTHS**2), sklearn_kernels.RBF(LENGTHS)),
    *((Matern(nu=nu, length_scale=LENGTHS), sklearn_kernels.Matern(LENGTHS, nu=nu)) for nu in (0.5, 1.5, 2.5)),
    (Laplacian(gamma=1 / LENGTHS), lambda X, Y: np.exp(-np.abs((X[:, None] - Y) / LENGTHS).sum(axis=2))),
]
every_kernel = pytest.mark.parametrize(("kernel", "reference"), KERNELS, ids=[str(k) for k, _ in KERNELS])


def rows(n, seed):
    X = np.random.default_rng(seed).standard_normal((n, len(LENGTHS)))
    return np.where(X < -0.5, 0.0, X)


@every_kernel
def test_a_length_for_each_column_gives_the_entries_of_the_formula(kernel, reference):
    X, Y = rows(40, 0), rows(30, 1)
    expected = reference(X, Y)
    assert_allclose(kernel(X, Y), expected, rtol=1e-12, atol=1e-14)
    assert_allclose(kernel(sp.csr_array(X), sp.csr_array(Y)), expected, rtol=1e-12, atol=1e-13)
    assert_allclose(kernel.to(Y)(X), expected, rtol=1e-12, atol=1e-14)
    assert_allclose(kernel(X.astype(np.float32), Y), reference(X.astype(np.float32), Y), rtol=1e-12, atol=1e-14)
    square = kernel(X)
    assert_array_equal(square, square.T)
    assert_array_equal(np.diagonal(square), 1.0)


@every_kernel
def test_equal_lengths_are_one_length_and_any_are_described_and_hashed(kernel, reference):
    X, one = rows(20, 0), kernel.with_lengths(np.array([1.7]))
    assert_allclose(kernel.with_lengths(np.full(5, 1.7))(X), one(X), rtol=1e-13, atol=1e-15)
    assert_allclose([one.lengths(5), kernel.lengths(5)], [np.full(5, 1.7), LENGTHS])
    described = json.loads(json.dumps(kernel.to_dict()))
    assert described == kernel.to_dict()  # what a store has of it compares equal
    again = kernel_from_dict(described)
    assert again == kernel and hash(again) == hash(kernel)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda X: RBF(gamma=[1.0, 2.0])(X), "gamma has 2 numbers, and the rows have 5 columns"),
        (lambda X: KernelRidge(kernel="rbf", gamma=[1.0] * 4).fit(X, X[:, 0]), "gamma has 4 numbers, and the rows"),
        (lambda _: Laplacian(gamma=[1.0, -2.0]), r"gamma\[1\] is -2.0; expected a finite number above 0"),
        (lambda _: RBF(gamma=[]), "gamma is empty"),
        (lambda _: Laplacian(gamma=[1.0, 2.0]).length_slopes(2), "not bounded, or not of squared differences"),
        (lambda _: Matern(nu=0.5).length_slopes(2), "as RBF and Matern with nu = 1.5 or 2.5 are"),
    ],
)
def test_a_wrong_number_of_lengths_is_named(make, message):
    with pytest.raises(InputError, match=message):
        make(rows(10, 0))


@pytest.mark.parametrize("is_sparse", [False, True])
def test_memory_of_a_length_for_each_column_stays_within_its_bound(is_sparse):
    X, out = np.random.default_rng(0).standard_normal((3000, 300)), np.empty((1000, 2000))
    X = sp.csr_array(np.where(X > 1, X, 0.0)) if is_sparse else X
    row_bytes = int(np.ceil(12 * X.nnz / 3000)) if is_sparse else None
    kernel, Y, X = RBF(gamma=np.full(300, 0.01)) + Linear(), X[1000:], X[:1000]
    kernel(X, Y, out=out)
    assert traced_peak(lambda: kernel(X, Y, out=out)) <= kernel.workspace_bytes(1000, 2000, 300, row_bytes)


def test_random_frequencies_have_a_length_for_each_column():
    X = rows(30, 0)
    for kernel in (RBF(gamma=0.5 / LENGTHS**2), Matern(nu=1.5, length_scale=LENGTHS), Laplacian(gamma=0.3 / LENGTHS)):
        phi = RandomFourier(kernel, 20_000).transform(X)
        assert np.abs(phi @ phi.T - kernel(X)).max() < 0.05
