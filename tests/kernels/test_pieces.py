"""The pieces of a block of every kernel cover it once and are what the block is."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from dkrr.errors import InputError
from dkrr.kernels import RBF, Matern, blocks
from dkrr.kernels.blocks import PIECE_COLUMNS, PIECE_ENTRIES, PIECE_ROWS, pieces_below, pieces_of
from tests.kernels.cases import DISTINCT

TOLERANCES = {"float64": {"rtol": 1e-12, "atol": 1e-12}, "float32": {"rtol": 2e-5, "atol": 2e-5}}

every_kernel = pytest.mark.parametrize("case", DISTINCT, ids=str)
every_dtype = pytest.mark.parametrize("dtype", TOLERANCES)


def assembled(pieces, shape):
    """Block of the pieces (copied at once, as they are overwritten), and how often each entry came."""
    K, count = np.full(shape, np.nan), np.zeros(shape, int)
    for rows, columns, piece in pieces:
        assert piece.shape == (rows.stop - rows.start, columns.stop - columns.start)
        K[rows, columns] = piece
        count[rows, columns] += 1
    return K, count


@every_dtype
@every_kernel
def test_rectangular_block(case, dtype):
    X, Y = case.rows(PIECE_ROWS + 29, 3), case.rows(PIECE_COLUMNS + 37, 3, seed=1)
    K, count = assembled(case.kernel.pieces(X, Y, dtype=dtype), (len(X), len(Y)))
    assert (count == 1).all()
    assert_allclose(K, case.kernel(X, Y), **TOLERANCES[dtype])


@every_dtype
@every_kernel
def test_symmetric_block(case, dtype):
    n = 2 * PIECE_ROWS + 3
    X = case.rows(n, 4)
    pieces = [(r, c, p.copy()) for r, c, p in case.kernel.pieces(X, dtype=dtype)]
    K, count = assembled(pieces, (n, n))
    lower = np.tri(n, dtype=bool)
    assert (count[lower] == 1).all()
    assert_allclose(K[lower], case.kernel(X)[lower], **TOLERANCES[dtype])
    assert_array_equal(K.diagonal(), case.kernel.diagonal(X).astype(dtype))
    squares = [(r, p) for r, c, p in pieces if r == c]
    assert [r.start for r, _ in squares] == [0, PIECE_ROWS, 2 * PIECE_ROWS]
    for rows, square in squares:
        assert_array_equal(square, square.T)
        assert_allclose(square, case.kernel(X[rows]), **TOLERANCES[dtype])
    assert all(p.dtype == dtype and p.flags.c_contiguous for _, _, p in pieces)
    assert all(c.stop <= r.start for r, c, _ in pieces if r != c), "nothing above the diagonal but in the squares"


@pytest.mark.parametrize("case", [case for case in DISTINCT if not case.non_negative], ids=str)
def test_csr_equals_dense(case):
    X = np.where(np.random.default_rng(3).random((PIECE_ROWS + 9, 7)) < 0.3, case.rows(PIECE_ROWS + 9, 7), 0.0)
    Y = X[:17] + 1.0
    for left, right in ((sp.csr_array(X), None), (sp.csr_array(X), sp.csr_array(Y)), (X, sp.csr_array(Y))):
        shape = (len(X), len(X if right is None else Y))
        K, count = assembled(case.kernel.pieces(left, right), shape)
        expected, _ = assembled(case.kernel.pieces(X, None if right is None else Y), shape)
        assert (count[np.tri(*shape, dtype=bool)] == 1).all()
        assert_allclose(K, expected, rtol=1e-12, atol=1e-12)


@every_kernel
def test_thin_blocks(case):
    for shape in ((1, 1), (1, 9), (9, 1), (0, 4), (4, 0)):
        X, Y = case.rows(shape[0], 3), case.rows(shape[1], 3, seed=1)
        K, count = assembled(case.kernel.pieces(X, Y), shape)
        assert (count == 1).all()
        assert_allclose(K, case.kernel(X, Y), rtol=1e-12, atol=1e-12)
        whole, _ = assembled(case.kernel.pieces(X), (shape[0], shape[0]))
        assert_allclose(whole, case.kernel(X), rtol=1e-12, atol=1e-12)


def test_pieces_are_overwritten_and_stay_in_cache():
    X = np.random.default_rng(0).standard_normal((5 * PIECE_ROWS, 2))
    pieces = [piece for _, _, piece in RBF().pieces(X, X[:50].copy())]
    below = [piece for _, _, piece in RBF().pieces(X)]
    for found in (pieces, below):
        assert all(np.shares_memory(found[0], piece) for piece in found)
        assert max(piece.size for piece in found) <= PIECE_ENTRIES


def test_float32_pieces_have_as_many_bytes():
    X, Y = np.random.default_rng(0).standard_normal((2, PIECE_ROWS * 9, 2))
    for kernel, ratio in ((RBF(), 2), (Matern(), 1)):
        largest = {d: max(p.size for _, _, p in kernel.pieces(X, Y, dtype=d)) for d in TOLERANCES}
        assert largest["float32"] == ratio * largest["float64"] == ratio * PIECE_ENTRIES


def test_two_blocks_at_a_time():
    X, Y = np.random.default_rng(0).standard_normal((2, 9, 2))
    for first, second in zip(RBF().pieces(X, Y), RBF().pieces(Y, X), strict=True):
        assert_allclose(first[2], second[2].T, rtol=1e-12)
        assert not np.shares_memory(first[2], second[2])


def test_columns_that_do_not_fit():
    with pytest.raises(InputError, match="same columns"):
        list(RBF().pieces(np.ones((3, 2)), np.ones((3, 4))))


@settings(max_examples=50, deadline=None)
@given(n=st.integers(0, 60), height=st.integers(1, 17), width=st.integers(1, 23))
def test_below_the_diagonal(n, height, width):
    count = np.zeros((n, n), int)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "PIECE_ROWS", height)
        patch.setattr(blocks, "PIECE_COLUMNS", width)
        for rows, columns in pieces_below(n):
            assert rows == columns or columns.stop <= rows.start
            assert rows.stop - rows.start <= height
            assert rows == columns or columns.stop - columns.start <= width
            count[rows, columns] += 1
    assert (count[np.tri(n, dtype=bool)] == 1).all()
    assert count.max(initial=0) <= 1


@settings(max_examples=50, deadline=None)
@given(m=st.integers(1, 60), n=st.integers(1, 60), width=st.integers(1, 23), entries=st.integers(23, 300))
def test_of_a_rectangle(m, n, width, entries):
    count = np.zeros((m, n), int)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "PIECE_COLUMNS", width)
        for rows, columns in pieces_of(m, n, entries):
            assert columns.stop - columns.start <= width
            assert (rows.stop - rows.start) * (columns.stop - columns.start) <= entries
            count[rows, columns] += 1
    assert (count == 1).all()
