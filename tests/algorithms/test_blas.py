"""BLAS and LAPACK on C-ordered views against NumPy, and nothing outside the views is touched."""

import threading
from unittest import mock

import numpy as np
import pytest
import scipy.linalg
import scipy.spatial
import threadpoolctl
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from dkrr import blas
from tests.pairs import every_pair
from tests.systems import failing_at, positive_definite

DTYPES = {"float64": 1e-12, "float32": 1e-4}
every_dtype = pytest.mark.parametrize("dtype", DTYPES)
sizes = st.integers(0, 9)
factors = st.sampled_from([1.0, -1.0, 0.5])
parts = st.sampled_from([0.0, 1.0, -2.0])


def random(shape, dtype, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


def within(values):
    """A view of the same values, cut from a frame of NaN: rows are contiguous, the row stride is larger."""
    frame = np.full((values.shape[0] + 3, values.shape[1] + 4), np.nan, values.dtype)
    view = frame[1 : 1 + values.shape[0], 2 : 2 + values.shape[1]]
    view[...] = values
    return frame, view


def assert_inside(frame, view, expected, accuracy):
    """The view is as expected, and the rest of its frame as it was."""
    assert_allclose(view, expected, atol=accuracy, rtol=accuracy)
    rest = frame.copy()
    rest[1 : 1 + view.shape[0], 2 : 2 + view.shape[1]] = np.nan
    assert np.isnan(rest).all()


def naive_product(a, b):
    """Sum in float64 and without BLAS, whose kernels now and then report an invalid value that there is not."""
    return np.einsum("ij,jk->ik", a, b, dtype=np.float64)


@every_pair(entries=[None, 0, 20], transpose_a=[False, True], transpose_b=[False, True], dtype=list(DTYPES))
@given(sizes, st.sampled_from([0, 1, 2, 9]), st.sampled_from([0, 1, 9, 300]), factors, parts)
def test_a_product_is_added_to_a_multiple_which_is_not_read_where_it_does_not_count(
    dtype, transpose_a, transpose_b, entries, m, n, k, alpha, beta
):
    few = {"MANY_ENTRIES": 10**9} if entries is None else {"MANY_ENTRIES": 0, "CACHED_BYTES": 8 * entries}
    a, b, c = random((m, k), dtype), random((k, n), dtype, 1), random((m, n), dtype, 2)
    wide = np.full((k, n + 2), np.nan, dtype)
    wide[:, 2:] = b  # for a single column GEMV's entries are a row apart
    frame, target = within(c if beta else np.full_like(c, np.nan))
    left = within(a.T.copy() if transpose_a else a)[1]
    right = within(b.T.copy() if transpose_b else b)[1] if transpose_b or n > 1 else wide[:, 2:]
    with mock.patch.multiple(blas, **few):
        blas.gemm(target, left, right, transpose_a=transpose_a, transpose_b=transpose_b, alpha=alpha, beta=beta)
    assert_inside(frame, target, alpha * naive_product(a, b) + beta * c, 10 * DTYPES[dtype])


@every_dtype
@given(sizes, sizes, st.booleans(), factors, parts)
def test_symmetric_products_write_and_read_one_triangle(dtype, n, k, transpose, alpha, beta):
    a, c, lower = random((n, k), dtype), random((n, n), dtype, 1), np.tri(n, dtype=bool)
    frame, target = within(c)
    blas.syrk(target, within(a.T.copy() if transpose else a)[1], transpose=transpose, alpha=alpha, beta=beta)
    assert_inside(frame, target, np.where(lower, alpha * naive_product(a, a.T) + beta * c, c), DTYPES[dtype])
    assert_array_equal(target[~lower], c[~lower])

    A, b = c + c.T, random((n, k), dtype, 2)
    hidden = np.where(np.tri(n, k=-1, dtype=bool), np.array(np.nan, dtype), A)
    frame, target = within(a)
    blas.symm(target, within(hidden)[1], within(b)[1], alpha=alpha, beta=beta)
    assert_inside(frame, target, alpha * naive_product(A, b) + beta * a, DTYPES[dtype])


@pytest.fixture
def called(monkeypatch):
    """Names of the routines called, where blocks are inverted, whatever the processor."""
    names, call = [], blas._call
    monkeypatch.setattr(blas, "_trsm_is_slow", lambda: True)
    monkeypatch.setattr(blas, "_call", lambda module, name, *rest: (names.append(name), call(module, name, *rest)))
    return names


@every_dtype
@pytest.mark.parametrize("side", ["left", "left, transposed", "right"])
@given(n=st.integers(0, 40), m=st.integers(0, 9), leaf=st.integers(1, 9), inverts=st.booleans())
def test_triangular_systems_are_solved_on_each_side_also_by_inverted_blocks(dtype, side, n, m, leaf, inverts):
    clean = np.tril(random((n, n), dtype)) * 0.3 + np.eye(n, dtype=dtype) * 2
    L = np.where(np.tri(n, dtype=bool), clean, np.float32(np.nan))
    b = random((m, n) if side == "right" else (n, m), dtype, 1)
    frame, x = within(b)
    view = within(L)[1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blas, "_trsm_is_slow", lambda: inverts)
        patch.setattr(blas, "INVERSE_SIDE", leaf)
        patch.setattr(blas, "_INVERSE_ROWS", 4)
        if side == "right":
            blas.solve_lower_right(view, x)
        else:
            blas.solve_lower(view, x, transpose="transposed" in side)
    system = (clean.T if "transposed" in side else clean).astype(float)
    expected = np.linalg.solve(system, b.T).T if side == "right" else np.linalg.solve(system, b)
    assert_inside(frame, x, expected, 100 * DTYPES[dtype])


def residual(left, right, product):
    """Norm of left rightᵀ − product in some rows, in a precision in which its own rounding does not count."""
    rows = slice(None, None, max(1, len(left) // 16))
    return np.linalg.norm((left[rows].astype(np.longdouble) @ right.T - product[rows]).astype(float))


@pytest.mark.usefixtures("called")
@every_dtype
@pytest.mark.parametrize("apart", [1.0, 1e-5], ids=["smooth", "near duplicates"])
def test_residuals_of_ill_conditioned_systems_are_those_of_lapack(apart, dtype):
    """Kernel matrices whose factor has blocks that are nearly singular."""
    n = 4 * blas.INVERSE_SIDE
    x = np.repeat(random((n // 2, 1), "float64"), 2, axis=0) + apart * random((n, 1), "float64")
    A = np.exp(-((x - x.T) ** 2)) + (1e-4 if dtype == "float32" else 1e-10) * np.eye(n)
    L = np.linalg.cholesky(A).astype(dtype)
    b = (random((blas._INVERSE_ROWS, n), "float64") @ L.T).astype(dtype)
    x = b.copy()
    blas.solve_lower_right(L, x)
    assert residual(x, L, b) < 2 * residual(scipy.linalg.solve_triangular(L, b.T, lower=True).T, L, b)
    A = A.astype(dtype)
    own, other = A.copy(), scipy.linalg.cholesky(A, lower=True)
    assert blas.cholesky_in_place(own) == 0
    assert residual(np.tril(own), np.tril(own), A) < 2 * residual(other, other, A)


@pytest.mark.parametrize(("pivot", "routine"), [(1.0, "strmm"), (1e-25, "strsm")], ids=["ordinary", "overflows"])
def test_a_block_whose_inverse_leaves_the_range_of_float32_is_not_inverted(called, pivot, routine):
    """The inverse has an entry of −1/pivot²; the solution is of ordinary size."""
    L = np.eye(blas.INVERSE_SIDE + 5, dtype="float32")
    L[3, 3] = L[4, 4] = pivot
    L[4, 3] = 1.0
    b = random((blas._INVERSE_ROWS, len(L)), "float32")
    b[:, 3] = 0.0
    expected = b.copy()
    b[:, 4] *= L[4, 4]
    blas.solve_lower_right(L, b)
    assert_allclose(b, expected, rtol=1e-6)
    assert [name for name in called if name in ("strsm", "strmm")] == [routine, "strmm"]


@pytest.mark.usefixtures("called")
@every_dtype
def test_a_task_that_runs_again_gives_the_same_bits(dtype):
    """Tasks run on one thread; where their arrays lie differs between runs."""
    n = 2 * blas._POTRF_BLOCK + 2 * blas.INVERSE_SIDE + 44
    A, b = positive_definite(n).astype(dtype), random((n, blas._INVERSE_ROWS), dtype)
    results = []
    with blas.one_thread():
        for place in (lambda values: values.copy(order="C"), lambda values: within(values)[1]):
            L, x, y = place(A), place(b), place(b.T)
            assert blas.cholesky_in_place(L) == 0
            blas.solve_lower(L, x)
            blas.solve_lower_right(L, y)
            results.append(np.hstack([L, x, y.T]))
    assert_array_equal(*results)
    assert_allclose(np.tril(L), np.linalg.cholesky(A), atol=DTYPES[dtype], rtol=DTYPES[dtype])


@every_dtype
@given(n=st.integers(0, 40), k=st.integers(0, 9), block=st.integers(1, 9))
def test_a_factorisation_and_an_update_leave_the_upper_triangle(dtype, n, k, block):
    A, a = positive_definite(n).astype(dtype), random((n, k), "float64")
    frame, L = within(A)
    updated = A.astype(np.float64)
    with pytest.MonkeyPatch.context() as patch:  # the recursion, on sizes that a test can afford
        patch.setattr(blas, "INVERSE_SIDE", block)
        patch.setattr(blas, "_RANK_BLOCK", 2 * block)
        assert blas.cholesky_in_place(L) == 0
        blas.rank_update(updated, a)
    upper = ~np.tri(n, dtype=bool)
    assert_inside(frame, L, np.where(upper, A, np.linalg.cholesky(A.astype(float))), DTYPES[dtype])
    assert_array_equal(L[upper], A[upper])
    assert_allclose(np.tril(updated), np.tril(A - a @ a.T), atol=1e-12)


@pytest.mark.parametrize("block", [3, 512])
@pytest.mark.parametrize("row", [0, 2, 3, 28])
def test_the_first_pivot_that_is_not_positive_is_told(monkeypatch, row, block):
    monkeypatch.setattr(blas, "INVERSE_SIDE", block)
    assert blas.cholesky_in_place(failing_at(row, 29)) == row + 1
    A = positive_definite(700)
    A[20 * row, 20 * row] = np.nan
    assert blas.cholesky_in_place(A) == 20 * row + 1, "NaN is not positive"


@pytest.mark.parametrize("cut", [np.s_[:, ::2], np.s_[:, ::-1], np.s_[::-1]], ids=str)
def test_views_that_blas_cannot_take_are_refused(cut):
    a = random((6, 6), "float64")[cut]
    with pytest.raises(ValueError, match="contiguous"):
        blas.gemm(np.zeros((len(a), a.shape[1])), a, np.eye(a.shape[1]))


def threads():
    return {pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"}


@pytest.fixture
def two_threads():
    with threadpoolctl.threadpool_limits(2, "blas"):
        yield


@pytest.mark.usefixtures("two_threads")
def test_one_thread_is_a_limit_inside_only():
    with blas.one_thread(False):
        assert threads() == {2}
    with pytest.raises(ZeroDivisionError), blas.one_thread():
        1 / 0  # noqa: B018
    assert threads() == {2}


@pytest.mark.usefixtures("two_threads")
def test_one_thread_is_a_limit_in_any_thread():
    """Also where another thread has set a limit before, which threadpoolctl then refuses to others."""
    inside, leave = threading.Event(), threading.Event()

    def work():
        with blas.one_thread():
            inside.set()
            leave.wait(20)

    thread = threading.Thread(target=work)
    thread.start()
    assert inside.wait(20) and threads() == {1}
    with blas.one_thread():  # entered last, left first
        leave.set()
        thread.join()
        assert threads() == {1}
    assert threads() == {2}
