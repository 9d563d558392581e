"""What is promised of every kernel and feature map: a row in `kernels.py` or `maps.py` puts one through all of it."""

import json
import pickle
import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone

from dkrr import features as f
from dkrr import kernels as k
from dkrr.data import MemoryRows
from dkrr.errors import InputError
from dkrr.kernels import RBF, base, blocks, map_base
from dkrr.kernels.descriptions import feature_map_from_dict, kernel_from_dict
from dkrr.kernels.nystroem import whitened
from tests.contracts.kernels import CASES, DISTINCT, OF_ENTRIES, OF_LENGTHS
from tests.contracts.maps import KERNELS as KERNELS_OF_MAPS
from tests.contracts.maps import MAPS, map_of
from tests.oracles import naive_gram
from tests.systems import random, traced_peak

TOLERANCE = {"rtol": 1e-12, "atol": 1e-12}
SINGLE = {"rtol": 2e-5, "atol": 2e-5}

every_kernel = pytest.mark.parametrize("case", CASES, ids=str)
distinct_kernels = pytest.mark.parametrize("case", DISTINCT, ids=str)


def thinned(X, seed=3):
    """Rows with three quarters of the entries zero, one row all zeros."""
    X = np.where(np.random.default_rng(seed).random(X.shape) < 0.25, X, 0.0)
    X[len(X) // 2] = 0.0
    return X


@every_kernel
def test_entries_are_those_of_naive_loops(case):
    kernel, X, Y = case.kernel, case.rows(13, 5), case.rows(7, 5, seed=1)
    square = naive_gram(kernel, X)
    assert_allclose(kernel(X, Y), naive_gram(kernel, X, Y), **TOLERANCE)
    assert_allclose(kernel(X), square, **TOLERANCE)
    assert_allclose(kernel.diagonal(X), square.diagonal(), **TOLERANCE)
    numbers = np.arange(12).reshape(4, 3)
    assert_allclose(kernel(numbers), naive_gram(kernel, numbers), **TOLERANCE)


@every_kernel
def test_rows_in_float32_give_the_entries_of_these_numbers_in_either_precision(case):
    X, Y = case.rows(31, 5).astype(np.float32), case.rows(17, 5, seed=1).astype(np.float32)
    expected = naive_gram(case.kernel, X, Y)
    assert case.kernel(X, Y).dtype == np.float64
    assert_allclose(case.kernel(X, Y), expected, **TOLERANCE)
    assert_allclose(case.kernel(X, Y, out=np.empty((31, 17), dtype=np.float32)), expected, **SINGLE)
    symmetric = case.kernel(X, out=np.empty((31, 31), dtype=np.float32))
    assert_array_equal(symmetric, symmetric.T)


@distinct_kernels
@given(n_rows=st.integers(0, 20), n_columns=st.integers(0, 20), d=st.integers(1, 7), seed=st.integers(0, 99))
def test_equal_rows_and_any_shape_give_the_entries_of_naive_loops(case, n_rows, n_columns, d, seed):
    X, Y = case.rows(n_rows, d, seed), case.rows(n_columns, d, seed + 100)
    # Distances of exactly zero, where square roots go wrong.
    Y[: min(n_rows, n_columns)] = X[: min(n_rows, n_columns)]
    K = case.kernel(X, Y)
    assert_allclose(K, naive_gram(case.kernel, X, Y), **TOLERANCE)
    assert_allclose(case.kernel(Y, X), K.T, **TOLERANCE)


@distinct_kernels
def test_entries_do_not_depend_on_how_they_are_cut_into_blocks(case):
    kernel, X, Y = case.kernel, case.rows(2 * blocks.STRIP_ROWS + 3, 4), case.rows(blocks.STRIP_COLUMNS + 37, 4, seed=1)
    K = kernel(X)
    assert_array_equal(K, K.T)
    assert_array_equal(K.diagonal(), kernel.diagonal(X))
    assert_allclose(K, kernel(X, X.copy()), **TOLERANCE)
    whole = kernel(X, Y)
    parts = [[kernel(X[i : i + 61], Y[j : j + 499]) for j in range(0, len(Y), 499)] for i in range(0, len(X), 61)]
    assert_allclose(np.block(parts), whole, **TOLERANCE)
    many = np.resize(case.rows(7, 2), (blocks.STRIP_ENTRIES + 5, 2))
    assert_array_equal(kernel.diagonal(many)[-7:], kernel.diagonal(many[-7:]))


@distinct_kernels
def test_entries_go_into_the_array_that_is_given_and_rows_may_be_strided(case):
    X, Y = case.rows(19, 3), case.rows(23, 3, seed=1)
    frame = np.full((40, 60), np.nan)
    result = case.kernel(X, Y, out=frame[3:22, 5:28])
    assert np.shares_memory(result, frame)
    assert_array_equal(result, case.kernel(X, Y))
    assert np.isnan(frame).sum() == frame.size - result.size
    wide = np.asfortranarray(np.repeat(X, 2, axis=1))
    assert_allclose(case.kernel(wide[:, ::2], Y), result, **TOLERANCE)


@distinct_kernels
def test_csr_rows_give_the_entries_of_dense_ones(case):
    kernel, X, Y = (
        case.kernel,
        thinned(case.rows(blocks.LARGE_STRIP_ROWS + 9, 9)),
        thinned(case.rows(33, 9, seed=1), seed=4),
    )
    sparse_x, sparse_y, expected = sp.csr_array(X), sp.csr_array(Y), kernel(X, Y)
    for left, right in ((sparse_x, sp.csc_array(sparse_y)), (sp.csr_matrix(sparse_x), Y), (X, sparse_y)):
        assert_allclose(kernel(left, right), expected, **TOLERANCE)
        K, count = assembled(kernel.pieces(left, sp.csr_array(right) if sp.issparse(right) else right), expected.shape)
        assert (count == 1).all()
        assert_allclose(K, expected, **TOLERANCE)
    K = kernel(sparse_x)
    assert_array_equal(K, K.T)
    assert_allclose(K, kernel(X), **TOLERANCE)
    assert_allclose(kernel.diagonal(sparse_x), kernel.diagonal(X), **TOLERANCE)


@pytest.mark.parametrize(
    "kernel", [*(case.kernel for case in CASES), k.BagOfWords(), k.RandomWalk(0.1), k.Columns(k.RBF(), "a")], ids=str
)
def test_a_kernel_is_a_value_that_its_description_and_its_parameters_give_back(kernel):
    assert kernel_from_dict(json.loads(json.dumps(kernel.to_dict()))) == kernel
    assert pickle.loads(pickle.dumps(kernel)) == kernel
    assert clone(kernel) is kernel
    own = kernel.get_params(deep=False)
    assert type(kernel)(**own) == kernel.set_params(**own) == kernel
    for name, old in kernel.get_params().items():
        assert kernel.set_params(**{name: old}) == kernel


@distinct_kernels
def test_a_kernel_to_fixed_rows_gives_the_same_bits_again_and_again(case):
    """Far rows are those that are recomputed or scaled."""
    for scale in (1.0, case.far):
        Y = scale * case.rows(1100, 4)
        to, X = case.kernel.to(Y), scale * case.rows(7, 4, seed=1)
        X[3] = Y[5]
        for rows in (X, X[2:3], Y[:300], X):
            out = np.empty((len(rows), len(Y)))
            assert to(rows, out=out) is out
            assert_array_equal(out, case.kernel(rows, Y))
    with pytest.raises(InputError, match="3 features and Y has 4"):
        to(X[:, :3])


@pytest.mark.parametrize(
    "kernel", [k.RBF(), 2.0 * (k.RBF(gamma=0.1) + k.Linear()), k.Columns(k.Matern(nu=0.5), [0, 2])]
)
def test_fixed_rows_may_be_sparse(kernel):
    X, Y = (thinned(np.random.default_rng(k).standard_normal((n, 4))) for k, n in enumerate((9, 30)))
    for left in (X, sp.csr_array(X)):
        for right in (Y, sp.csr_array(Y)):
            assert_array_equal(kernel.to(right)(left), kernel(left, right))


# Lengths of columns, and derivatives by them: searches follow these.


LENGTHS = np.array([0.3, 1.0, 4.0, 0.8, 2.5])


@pytest.mark.parametrize("kernel", OF_LENGTHS, ids=str)
def test_a_length_for_each_column_divides_it_and_its_derivative_is_that_of_the_entries(kernel):
    X, Y = random(13, 5), random(7, 5, seed=1)
    of_columns = kernel.resolved(5).with_lengths(LENGTHS)
    assert_allclose(of_columns(X, Y), naive_gram(of_columns, X, Y), **TOLERANCE)
    assert_allclose(of_columns(sp.csr_array(X), Y), of_columns(X, Y), **TOLERANCE)
    assert_allclose(of_columns.lengths(5), LENGTHS)
    assert_allclose(of_columns(X, Y), kernel.with_lengths(np.ones(1))(X / LENGTHS, Y / LENGTHS), **TOLERANCE)
    try:
        slopes, factors = of_columns.length_slopes(5)
    except InputError:
        return  # has none
    for j, factor in enumerate(factors):
        longer, shorter = (of_columns.with_lengths(LENGTHS * np.exp(h * (np.arange(5) == j))) for h in (1e-5, -1e-5))
        found = factor * np.subtract.outer(X[:, j], Y[:, j]) ** 2 * slopes(X, Y)
        assert_allclose(found, (longer(X, Y) - shorter(X, Y)) / 2e-5, rtol=1e-7, atol=1e-9)


# Memory: plans promise it.


STATES_TOO_LITTLE = "the class has to count in _strip_buffers the arrays as large as out, in _row_copies those of rows"


def peak_bytes(kernel, X, Y, dtype):
    out = np.empty((X.shape[0], (X if Y is None else Y).shape[0]), dtype=dtype)
    return traced_peak(lambda: kernel(X, Y, out=out))


@distinct_kernels
def test_memory_stays_within_what_the_kernel_says(case):
    """Rows of float32 take most, since they are converted; many, wide and few of them; all distances recomputed."""
    kernel = case.kernel
    for n_rows, n_columns, d, computed in (
        (300, 1500, 11, np.float32),
        (400, 400, 67, np.float64),
        (5, 3, 2, np.float64),
        (50, 20, 3000, np.float64),
    ):
        if case.non_negative and d > 20:
            continue  # slow
        X, Y = case.rows(n_rows, d).astype(np.float32), case.rows(n_columns, d, seed=1).astype(np.float32)
        assert peak_bytes(kernel, X, Y, computed) <= kernel.workspace_bytes(n_rows, n_columns, d), STATES_TOO_LITTLE
        assert peak_bytes(kernel, X, None, computed) <= kernel.workspace_bytes(n_rows, n_rows, d), STATES_TOO_LITTLE
    X = np.repeat(1e7 * case.rows(2, 5), 600, axis=0)  # half of all distances are zero
    assert peak_bytes(kernel, X, X.copy(), np.float64) <= kernel.workspace_bytes(1200, 1200, 5)
    for one in (kernel, k.Columns(kernel, [1, 2, 4])):
        Y = case.rows(5000, 7)
        tracemalloc.start()
        to = one.to(Y)
        to(case.rows(1, 7))
        kept = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert kept <= one.kept_bytes(*Y.shape) + 10_000


@distinct_kernels
def test_memory_of_csr_rows_that_are_made_dense_stays_within_what_the_kernel_says(case):
    X = sp.csr_array(thinned(case.rows(300, 211)).astype(np.float32))
    row_bytes = MemoryRows(X).row_bytes
    for Y in (None, X.copy()):
        assert peak_bytes(case.kernel, X, Y, np.float64) <= case.kernel.workspace_bytes(300, 300, 211, row_bytes)


SPARSE = [k.BagOfWords(), *{type(case.kernel): case.kernel for case in OF_ENTRIES}.values()]


@pytest.mark.parametrize("kernel", SPARSE, ids=str)
@pytest.mark.parametrize(
    ("n", "d", "stored", "dtype", "index"),
    [(260, 100_000, 10, "f8", "i8"), (300, 1000, 100, "f4", "i4")],
    ids=["wide", "of float32"],
)
def test_memory_of_csr_rows_follows_their_entries(kernel, n, d, stored, dtype, index):
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
        peak = traced_peak(lambda Y=Y: [None for _ in kernel.pieces(X, Y)])
        assert peak <= kernel.pieces_bytes(n, n, d, row_bytes)


@distinct_kernels
def test_a_kernel_has_a_nominal_time_which_no_column_shortens(case):
    assert case.kernel.nominal_seconds(300) >= case.kernel.nominal_seconds(3) > 0


# Pieces: parts of a block that stay in cache.


def assembled(pieces, shape):
    """Block of the pieces (copied at once, as they are overwritten), and how often each entry came."""
    K, count = np.full(shape, np.nan), np.zeros(shape, int)
    for rows, columns, piece in pieces:
        assert piece.shape == (rows.stop - rows.start, columns.stop - columns.start)
        K[rows, columns] = piece
        count[rows, columns] += 1
    return K, count


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", TOLERANCE), ("float32", SINGLE)])
@distinct_kernels
def test_pieces_cover_a_block_once_and_are_its_entries(case, dtype, tolerance, monkeypatch):
    monkeypatch.setattr(blocks, "LARGE_STRIP_ROWS", 16)
    monkeypatch.setattr(blocks, "LARGE_STRIP_COLUMNS", 24)
    monkeypatch.setattr(base, "LARGE_STRIP_ENTRIES", 16 * 24)
    kernel = case.kernel
    for m, n in ((45, 61), (1, 9), (9, 1), (0, 4), (4, 0)):
        X, Y = case.rows(m, 3), case.rows(n, 3, seed=1)
        K, count = assembled(kernel.pieces(X, Y, dtype=dtype), (m, n))
        assert (count == 1).all()
        assert_allclose(K, kernel(X, Y), **tolerance)
    n = 131
    X = case.rows(n, 4)
    pieces = [(r, c, p.copy()) for r, c, p in kernel.pieces(X, dtype=dtype)]
    K, count = assembled(pieces, (n, n))
    lower = np.tri(n, dtype=bool)
    assert (count[lower] == 1).all()
    assert_allclose(K[lower], kernel(X)[lower], **tolerance)
    assert_array_equal(K.diagonal(), kernel.diagonal(X).astype(dtype))
    for rows, columns, piece in pieces:
        assert piece.dtype == dtype and piece.flags.c_contiguous and piece.size <= 2 * 16 * 24
        if rows == columns:
            assert_array_equal(piece, piece.T)
        else:
            assert columns.stop <= rows.start, "nothing above the diagonal but in the squares"


# Feature maps


SAMPLED = [
    whitened(RBF(), random(19, 5, seed=9)).kernel(),
    whitened(RBF(), random(7, 5, seed=8)) + f.RandomFourier(RBF(), 4),
]
every_map = pytest.mark.parametrize("kernel", KERNELS_OF_MAPS, ids=str)
OF_SPARSE = [k.Linear(), k.Cosine(), 2.0 * k.Linear(), k.Linear() + k.Cosine()]


@every_map
def test_inner_products_of_features_are_the_kernel(kernel):
    X, Z, phi = random(140, 9), random(7, 9, seed=1), map_of(kernel, 9)
    features, others = phi.transform(X), phi.transform(Z)
    # Terms of both signs cancel in <phi(x), phi(z)>, so rounding is relative to |phi(x)| |phi(z)|.
    scale, expected = np.sqrt(np.outer(kernel.diagonal(X), kernel.diagonal(Z))), naive_gram(kernel, X, Z)
    assert features.shape == (140, phi.dimension(9))
    for found in (features @ others.T, kernel(X, Z)):
        assert (np.abs(found - expected) / scale).max() < 1e-12


@every_map
def test_any_range_of_columns_is_that_of_all_features(kernel):
    X, phi = random(130, 5), map_of(kernel, 5)
    whole, D = phi.transform(X), phi.dimension(5)
    # Where the features are a matrix product, rounding may depend on its shape.
    exactness = 1e-13 if "RandomFourier" in str(phi) else 0.0
    edges = [0, 1, 2, D // 3, D // 2, D - 1, D]
    ranges = [slice(start, stop) for start in edges for stop in edges]
    for columns in (*ranges, slice(None), slice(-3, None), slice(None, -2), slice(D - 1, D + 7), slice(D + 3, D + 9)):
        assert_allclose(phi.transform(X, columns), whole[:, columns], rtol=0, atol=exactness)
    assert phi.transform(np.empty((0, 5))).shape == (0, D)


@every_map
def test_features_of_csr_rows_are_those_of_dense_ones(kernel):
    X, phi = np.where(random(140, 6) > 0.5, random(140, 6), 0.0), map_of(kernel, 6)
    whole = phi.transform(X)
    assert_allclose(phi.transform(sp.csr_array(X)), whole, rtol=1e-14, atol=1e-13)
    assert_allclose(phi.transform(sp.csr_matrix(X), slice(1, 4)), whole[:, 1:4], rtol=1e-14, atol=1e-13)


@pytest.mark.parametrize("kind", ["float32", "csr"])
@pytest.mark.parametrize("kernel", [*KERNELS_OF_MAPS, *SAMPLED], ids=str)
def test_products_with_features_are_those_of_the_matrix_in_small_strips(kernel, kind, monkeypatch):
    monkeypatch.setattr(map_base, "MAX_FEATURE_ENTRIES", 50)
    monkeypatch.setattr(map_base, "STRIP_COLUMNS", 7)
    X, phi = np.where(random(31, 5) > 0.3, random(31, 5), 0.0).astype(np.float32), map_of(kernel, 5)
    X = sp.csr_array(X.astype(float)) if kind == "csr" else np.asfortranarray(X)
    features, D = phi.transform(X), phi.dimension(5)
    w, v = np.asfortranarray(random(D, 3, seed=1)), random(31, 3, seed=2)
    left, right = phi.multiply(X, w), phi.adjoint(X, v)
    assert left.dtype == right.dtype == np.float64
    assert_allclose(left, features @ w, rtol=1e-9, atol=1e-9)
    assert_allclose(right, features.T @ v, rtol=1e-9, atol=1e-9)
    assert_allclose(phi.multiply(X, w[:, :1]), left[:, :1], rtol=1e-12, atol=1e-12)
    assert_allclose(phi.adjoint(X[:0], v[:0]), np.zeros((D, 3)))
    assert phi.multiply(X[:0], w).shape == (0, 3)


@every_map
def test_temporaries_stay_below_twice_the_features(kernel):
    X, phi = random(1500, 13), map_of(kernel, 13)
    n_bytes = 8 * 1500 * phi.dimension(13)
    assert traced_peak(lambda: phi.transform(X)) <= 3 * n_bytes + 3 * 2**20


@every_map
def test_the_map_of_a_kernel_is_a_value_and_the_kernel_is_given_in_its_place(kernel):
    phi = map_of(kernel, 4)
    assert phi == map_of(kernel, 4) and pickle.loads(pickle.dumps(phi)) == phi
    if isinstance(phi, map_base.ImpliedMap):
        with pytest.raises(InputError, match="expected that kernel itself"):
            phi.kernel()


@pytest.mark.parametrize("phi", [*MAPS, f.Nystroem(RBF(), 3), f.RandomFourier("rbf", 4)], ids=str)
def test_a_map_is_a_value_that_its_description_and_its_parameters_give_back(phi):
    assert feature_map_from_dict(json.loads(json.dumps(phi.to_dict()))) == phi
    assert pickle.loads(pickle.dumps(phi)) == phi
    assert clone(phi) is phi
    for name, old in phi.get_params().items():
        assert phi.set_params(**{name: old}) == phi
    if not isinstance(phi, f.Nystroem):  # whose kernel is known after its centres
        kernel = phi.kernel()
        assert kernel_from_dict(json.loads(json.dumps(kernel.to_dict()))) == kernel
        assert kernel + kernel == phi + phi == kernel + phi and 2.0 * kernel == 2.0 * phi == phi * 2.0
        assert kernel * kernel == phi * phi == kernel * phi


@pytest.mark.parametrize("kernel", OF_SPARSE, ids=str)
def test_products_with_sparse_rows_of_millions_of_columns_form_no_dense_rows(kernel):
    d, rng = 3_000_017, np.random.default_rng(0)
    phi = map_of(kernel, d)
    parts = rng.standard_normal(1000), rng.integers(d, size=1000), np.arange(0, 1001, 20)
    X = sp.csr_array(parts, shape=(50, d))
    X.sum_duplicates()
    w, v, found = np.ones((phi.dimension(d), 1)), rng.standard_normal((50, 1)), []
    peak = traced_peak(lambda: found.extend([phi.multiply(X, w), phi.adjoint(X, v)]))
    assert peak < 5 * w.nbytes  # dense rows would be 50 of them
    assert_allclose(found[0].T @ v, w.T @ found[1])  # wᵀΦᵀv both ways
