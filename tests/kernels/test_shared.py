"""What holds for every kernel of the table."""

import json
import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from dkrr.errors import InputError
from dkrr.kernels import (
    RBF,
    CallableKernel,
    Chi2,
    Columns,
    Cosine,
    EntryCost,
    Laplacian,
    Linear,
    Matern,
    Normalized,
    Polynomial,
    TaylorRBF,
    kernel_from_dict,
)
from dkrr.kernels.blocks import STRIP_COLUMNS, STRIP_ENTRIES, STRIP_ROWS
from dkrr.rows import MemoryRows
from tests.kernels.cases import CASES, DISTINCT
from tests.oracles import naive_gram

TOLERANCE = {"rtol": 1e-12, "atol": 1e-12}

every_kernel = pytest.mark.parametrize("case", CASES, ids=str)
distinct_kernels = pytest.mark.parametrize("case", DISTINCT, ids=str)


def thinned(X, seed=3):
    """Rows with three quarters of the entries zero, one row all zeros, and the same as CSR."""
    X = np.where(np.random.default_rng(seed).random(X.shape) < 0.25, X, 0.0)
    X[len(X) // 2] = 0.0
    return X, sp.csr_array(X)


@every_kernel
def test_naive_loops(case):
    X, Y = case.rows(13, 5), case.rows(7, 5, seed=1)
    assert_allclose(case.kernel(X, Y), naive_gram(case.kernel, X, Y), **TOLERANCE)
    assert_allclose(case.kernel(X), naive_gram(case.kernel, X), **TOLERANCE)


@pytest.mark.parametrize("case", [case for case in CASES if case.reference], ids=str)
def test_scikit_learn(case):
    X, Y = case.rows(150, 6), case.rows(211, 6, seed=1)
    assert_allclose(case.kernel(X, Y), case.reference(X, Y), **TOLERANCE)


@distinct_kernels
def test_symmetric_block(case):
    X = case.rows(STRIP_ROWS * 2 + 3, 4)
    K = case.kernel(X)
    assert_array_equal(K, K.T)
    assert_array_equal(K.diagonal(), case.kernel.diagonal(X))
    assert_allclose(K, case.kernel(X, X.copy()), **TOLERANCE)


@every_kernel
def test_diagonal(case):
    X = case.rows(11, 3)
    assert_allclose(case.kernel.diagonal(X), naive_gram(case.kernel, X).diagonal(), **TOLERANCE)


@distinct_kernels
def test_diagonal_of_more_rows_than_a_strip_has_entries(case):
    X = np.resize(case.rows(7, 2), (STRIP_ENTRIES + 5, 2))
    assert_array_equal(case.kernel.diagonal(X)[-7:], case.kernel.diagonal(X[-7:]))


@distinct_kernels
def test_blocking_does_not_matter(case):
    X, Y = case.rows(STRIP_ROWS + 29, 3), case.rows(STRIP_COLUMNS + 37, 3, seed=1)
    whole = case.kernel(X, Y)
    pieces = np.block([[case.kernel(X[i : i + 61], Y[j : j + 499]) for j in range(0, len(Y), 499)]
                       for i in range(0, len(X), 61)])  # fmt: skip
    assert_allclose(pieces, whole, **TOLERANCE)


@distinct_kernels
def test_out_and_strided_rows(case):
    X, Y = case.rows(19, 3), case.rows(23, 3, seed=1)
    frame = np.full((40, 60), np.nan)
    result = case.kernel(X, Y, out=frame[3:22, 5:28])
    assert np.shares_memory(result, frame)
    assert_array_equal(frame[3:22, 5:28], case.kernel(X, Y))
    assert np.isnan(frame).sum() == frame.size - result.size
    wide = np.asfortranarray(np.repeat(X, 2, axis=1))
    assert_allclose(case.kernel(wide[:, ::2], Y), result, **TOLERANCE)


@every_kernel
def test_float32(case):
    X, Y = case.rows(31, 5).astype(np.float32), case.rows(17, 5, seed=1).astype(np.float32)
    expected = naive_gram(case.kernel, X, Y)
    assert case.kernel(X, Y).dtype == np.float64
    assert_allclose(case.kernel(X, Y), expected, **TOLERANCE)
    single = case.kernel(X, Y, out=np.empty((31, 17), dtype=np.float32))
    assert single.dtype == np.float32
    assert_allclose(single, expected, rtol=2e-5, atol=2e-5)
    symmetric = case.kernel(X, out=np.empty((31, 31), dtype=np.float32))
    assert_array_equal(symmetric, symmetric.T)


@distinct_kernels
def test_integer_rows(case):
    X = np.arange(12).reshape(4, 3)
    assert_allclose(case.kernel(X), naive_gram(case.kernel, X), **TOLERANCE)


@pytest.mark.parametrize("case", [case for case in DISTINCT if not case.non_negative], ids=str)
def test_csr_equals_dense(case):
    X, sparse_x = thinned(case.rows(140, 9))
    Y, sparse_y = thinned(case.rows(33, 9, seed=1), seed=4)
    expected = case.kernel(X, Y)
    assert_allclose(case.kernel(sparse_x, sparse_y), expected, **TOLERANCE)
    assert_allclose(case.kernel(sp.csr_matrix(sparse_x), sp.csc_array(sparse_y)), expected, **TOLERANCE)
    assert_allclose(case.kernel(sparse_x, Y), expected, **TOLERANCE)
    assert_allclose(case.kernel(X, sparse_y), expected, **TOLERANCE)
    K = case.kernel(sparse_x)
    assert_array_equal(K, K.T)
    assert_allclose(K, case.kernel(X), **TOLERANCE)
    assert_allclose(case.kernel.diagonal(sparse_x), case.kernel.diagonal(X), **TOLERANCE)


@pytest.mark.parametrize("case", [case for case in CASES if case.semidefinite], ids=str)
def test_positive_semidefinite(case):
    X = case.rows(60, 4)
    X[10] = X[20]
    K = case.kernel(X)
    assert np.linalg.eigvalsh(K)[0] >= -1e-10 * np.trace(K)


@every_kernel
def test_description_round_trip(case):
    text = json.dumps(case.kernel.to_dict())
    assert kernel_from_dict(json.loads(text)) == case.kernel
    resolved = case.kernel.resolved(6)
    assert resolved.resolved(99) is resolved
    assert kernel_from_dict(json.loads(json.dumps(resolved.to_dict()))) == resolved
    X = case.rows(5, 6)
    assert_array_equal(resolved(X), case.kernel(X))


@distinct_kernels
def test_thin_blocks(case):
    for n_rows, n_columns in ((1, 1), (1, 9), (9, 1), (0, 4), (4, 0)):
        X, Y = case.rows(n_rows, 3), case.rows(n_columns, 3, seed=1)
        assert_allclose(case.kernel(X, Y), naive_gram(case.kernel, X, Y), **TOLERANCE)
        assert case.kernel(X).shape == (n_rows, n_rows)


@every_kernel
def test_cost_grows_with_features(case):
    few, many = case.kernel.entry_cost(3), case.kernel.entry_cost(300)
    assert isinstance(few, EntryCost)
    assert many.gemm_flops + many.element_seconds > few.gemm_flops + few.element_seconds > 0


@distinct_kernels
def test_kernel_to_fixed_rows(case):
    """Bit for bit, again and again; far rows are those that are recomputed or scaled."""
    for scale in (1.0, 1e6 if case.semidefinite else 0.1):
        Y = scale * case.rows(1100, 4)
        to, X = case.kernel.to(Y), scale * case.rows(7, 4, seed=1)
        X[3] = Y[5]
        for rows in (X, X[2:3], Y[:300], X):
            out = np.empty((len(rows), len(Y)))
            assert to(rows, out=out) is out
            assert_array_equal(out, case.kernel(rows, Y))
        assert_array_equal(to(Y), case.kernel(Y, Y.copy()))
    with pytest.raises(InputError, match="3 features and Y has 4"):
        to(X[:, :3])


@pytest.mark.parametrize("kernel", [RBF(), 2.0 * (RBF(0.1) + Linear()), Columns(Matern(0.5), [0, 2])])
def test_kernel_to_sparse_rows(kernel):
    X, sparse_X = thinned(np.random.default_rng(0).standard_normal((9, 4)))
    Y, sparse_Y = thinned(np.random.default_rng(1).standard_normal((30, 4)))
    for left in (X, sparse_X):
        for right in (Y, sparse_Y):
            assert_array_equal(kernel.to(right)(left), kernel(left, right))


@pytest.mark.parametrize("gamma", [1e-250, 1e250])
def test_kernel_to_fixed_rows_of_another_scale(gamma):
    Y = 0.5 / np.sqrt(gamma) * np.random.default_rng(0).standard_normal((30, 4))
    assert_array_equal(RBF(gamma).to(Y)(Y[:5]), RBF(gamma)(Y[:5], Y))


@distinct_kernels
def test_kept_bytes_are_an_upper_bound(case):
    for kernel in (case.kernel, Columns(case.kernel, [1, 2, 4])):
        Y = case.rows(5000, 7)
        tracemalloc.start()
        try:
            to = kernel.to(Y)
            to(case.rows(1, 7))
            kept, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert kept <= kernel.kept_bytes(*Y.shape) + 10_000


@distinct_kernels
def test_workspace_is_an_upper_bound(case):
    """Rows of float32 take most, since they are converted; many, wide and few of them."""
    for n_rows, n_columns, d, stored, computed in (
        (300, 1500, 11, np.float32, np.float32),
        (400, 400, 67, np.float64, np.float64),
        (400, 400, 67, np.float32, np.float64),
        (5, 3, 2, np.float32, np.float64),
        (50, 20, 3000, np.float32, np.float64),
    ):
        if case.non_negative and d > 20:
            continue  # slow
        X, Y = case.rows(n_rows, d).astype(stored), case.rows(n_columns, d, seed=1).astype(stored)
        assert peak_bytes(case.kernel, X, Y, computed) <= case.kernel.workspace_bytes(n_rows, n_columns, d), n_rows
        assert peak_bytes(case.kernel, X, None, computed) <= case.kernel.workspace_bytes(n_rows, n_rows, d), n_rows


@distinct_kernels
def test_workspace_when_every_entry_is_refined(case):
    # Two points, many times each, and far apart: half of all distances are zero.
    X = np.repeat(1e7 * case.rows(2, 5), 600, axis=0)
    assert peak_bytes(case.kernel, X, X.copy(), np.float64) <= case.kernel.workspace_bytes(1200, 1200, 5)


SPARSE = [
    Linear(),
    Polynomial(degree=3),
    Cosine(),
    RBF(),
    Matern(1.5),
    Laplacian(),
    TaylorRBF(degree=3),
    Normalized(Polynomial(2)),
    RBF(0.1) + 2 * Linear(),
]


@pytest.mark.parametrize("kernel", SPARSE, ids=str)
@pytest.mark.parametrize(
    ("n", "d", "stored", "dtype", "index"),
    [(260, 100_000, 10, "f8", "i8"), (300, 1000, 100, "f4", "i4")],
    ids=["wide", "of float32"],
)
def test_workspace_of_csr_rows_follows_their_entries(kernel, n, d, stored, dtype, index):
    rng = np.random.default_rng(0)
    columns = np.sort(rng.integers(0, d // stored, (n, stored)) + d // stored * np.arange(stored), axis=1)
    pointers = np.arange(0, n * stored + 1, stored)
    values = rng.random(n * stored).astype(dtype)
    X = sp.csr_array((values, columns.ravel().astype(index), pointers.astype(index)), shape=(n, d))
    row_bytes = MemoryRows(X).row_bytes
    bound = kernel.workspace_bytes(n, n, d, row_bytes)
    if d > 1000:
        assert bound < 8 * n * d / 5, "not that of dense rows"
    for Y in (None, X.copy()):
        assert peak_bytes(kernel, X, Y, np.float64) <= bound
        tracemalloc.start()
        for _ in kernel.pieces(X, Y):
            pass
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak <= kernel.pieces_bytes(n, n, d, row_bytes)


@pytest.mark.parametrize(
    "kernel",
    [CallableKernel(np.dot), Chi2(), RBF() + Chi2(), Columns(RBF(), [0])],
    ids=["function", "chi2", "sum", "columns"],
)
def test_kernels_that_make_csr_rows_dense_are_priced_as_dense(kernel):
    assert kernel.sparse_parts == 0
    assert kernel.workspace_bytes(10, 10, 5000, 24) == kernel.workspace_bytes(10, 10, 5000)
    assert kernel.sparse_width(5000, 2) == 5000


def peak_bytes(kernel, X, Y, dtype):
    out = np.empty((X.shape[0], (X if Y is None else Y).shape[0]), dtype=dtype)
    tracemalloc.start()
    kernel(X, Y, out=out)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


@every_kernel
@given(n_rows=st.integers(1, 20), n_columns=st.integers(1, 20), d=st.integers(1, 7), seed=st.integers(0, 99))
@settings(max_examples=8, deadline=None)
def test_ragged_shapes(case, n_rows, n_columns, d, seed):
    X, Y = case.rows(n_rows, d, seed), case.rows(n_columns, d, seed + 100)
    # Every row twice: distances of exactly zero, where square roots go wrong.
    Y[: min(n_rows, n_columns)] = X[: min(n_rows, n_columns)]
    K = case.kernel(X, Y)
    assert_allclose(K, naive_gram(case.kernel, X, Y), **TOLERANCE)
    assert_allclose(case.kernel(Y, X), K.T, **TOLERANCE)
