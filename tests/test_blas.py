"""BLAS and LAPACK on C-ordered views against NumPy, and nothing outside the views is touched."""

import threading

import numpy as np
import pytest
import scipy.linalg
import scipy.spatial
import threadpoolctl
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from dkrr import blas
from tests.linalg.systems import failing_at, positive_definite
from tests.oracles import naive_cholesky

DTYPES = {"float64": 1e-12, "float32": 1e-4}
every_dtype = pytest.mark.parametrize("dtype", DTYPES)
sizes = st.integers(0, 9)


def random(shape, dtype, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


def within(values):
    """A view of the same values, cut from a frame of NaN: rows are contiguous, the row stride is larger."""
    frame = np.full((values.shape[0] + 3, values.shape[1] + 4), np.nan, values.dtype)
    view = frame[1 : 1 + values.shape[0], 2 : 2 + values.shape[1]]
    view[...] = values
    return frame, view


def assert_only_inside(frame, view):
    rest = frame.copy()
    rest[1 : 1 + view.shape[0], 2 : 2 + view.shape[1]] = np.nan
    assert np.isnan(rest).all()


def naive_product(a, b):
    """Sum in float64 and without BLAS, whose kernels now and then report an invalid value that there is not."""
    return np.einsum("ij,jk->ik", a, b, dtype=np.float64)


@every_dtype
@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("transpose_a", [False, True])
@settings(max_examples=40, deadline=None)
@given(sizes, sizes, sizes, st.sampled_from([1.0, -1.0, 0.5]), st.sampled_from([0.0, 1.0, -2.0]))
def test_gemm(dtype, transpose_a, transpose_b, m, n, k, alpha, beta):
    a, b, c = random((m, k), dtype), random((k, n), dtype, 1), random((m, n), dtype, 2)
    left, right = (a.T.copy() if transpose_a else a), (b.T.copy() if transpose_b else b)
    frame, target = within(c)
    _, left_view = within(left)
    _, right_view = within(right)
    blas.gemm(target, left_view, right_view, transpose_a=transpose_a, transpose_b=transpose_b, alpha=alpha, beta=beta)
    assert_allclose(target, alpha * naive_product(a, b) + beta * c, atol=DTYPES[dtype], rtol=DTYPES[dtype])
    assert_only_inside(frame, target)


@every_dtype
@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("transpose_a", [False, True])
@settings(max_examples=40, deadline=None)
@given(sizes, sizes, st.integers(1, 3), st.sampled_from([1.0, -0.5]), st.sampled_from([0.0, 1.0, -2.0]))
def test_gemm_with_one_column(dtype, transpose_a, transpose_b, m, k, width, alpha, beta):
    """GEMV: the vectors are columns of wider arrays, whose entries are a row apart."""
    a, b, c = random((m, k), dtype), random((k, 1), dtype, 1), random((m, 1), dtype, 2)
    left = a.T.copy() if transpose_a else a
    _, left_view = within(left)
    frame, target = within(c)
    wide = np.full((k, width), np.nan, dtype)
    wide[:, -1:] = b
    right = b.T.copy() if transpose_b else wide[:, -1:]
    blas.gemm(target, left_view, right, transpose_a=transpose_a, transpose_b=transpose_b, alpha=alpha, beta=beta)
    assert_allclose(target, alpha * naive_product(a, b) + beta * c, atol=DTYPES[dtype], rtol=DTYPES[dtype])
    assert_only_inside(frame, target)


@every_dtype
@pytest.mark.parametrize("k", [1, 5, 300])
@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("transpose_a", [False, True])
def test_beta_zero_does_not_read_what_was_there(dtype, transpose_a, n, k):
    a, b = random((7, k), dtype), random((k, n), dtype, 1)
    c = np.full((7, n), np.nan, dtype)
    blas.gemm(c, a.T.copy() if transpose_a else a, b, transpose_a=transpose_a)
    assert_allclose(c, a @ b, atol=30 * DTYPES[dtype], rtol=30 * DTYPES[dtype])


@every_dtype
@pytest.mark.parametrize("transpose", [False, True])
@settings(max_examples=40, deadline=None)
@given(sizes, sizes, st.sampled_from([1.0, -1.0]), st.sampled_from([0.0, 1.0]))
def test_syrk(dtype, transpose, n, k, alpha, beta):
    a, c = random((n, k), dtype), random((n, n), dtype, 1)
    frame, target = within(c)
    _, view = within(a.T.copy() if transpose else a)
    blas.syrk(target, view, transpose=transpose, alpha=alpha, beta=beta)
    expected = np.where(np.tri(n, dtype=bool), alpha * (a @ a.T) + beta * c, c)
    assert_allclose(target, expected, atol=DTYPES[dtype], rtol=DTYPES[dtype])
    assert_array_equal(target[~np.tri(n, dtype=bool)], c[~np.tri(n, dtype=bool)])
    assert_only_inside(frame, target)


@every_dtype
@settings(max_examples=40, deadline=None)
@given(sizes, sizes, st.sampled_from([1.0, -1.0]), st.sampled_from([0.0, 1.0]))
def test_symm(dtype, n, m, alpha, beta):
    A, b, c = random((n, n), dtype), random((n, m), dtype, 1), random((n, m), dtype, 2)
    A = A + A.T
    hidden = np.where(np.tri(n, k=-1, dtype=bool), np.array(np.nan, dtype), A)
    frame, target = within(c)
    _, left = within(hidden)
    _, right = within(b)
    blas.symm(target, left, right, alpha=alpha, beta=beta)
    assert_allclose(target, alpha * (A @ b) + beta * c, atol=DTYPES[dtype], rtol=DTYPES[dtype])
    assert_only_inside(frame, target)


def lower_triangular(n, dtype):
    """Well-conditioned, with NaN where nothing may be read."""
    L = np.tril(random((n, n), dtype)) * 0.3 + np.eye(n, dtype=dtype) * 2
    L[~np.tri(n, dtype=bool)] = np.nan
    return L


@every_dtype
@settings(max_examples=40, deadline=None)
@given(sizes, sizes, st.booleans())
def test_solve_lower(dtype, n, m, transpose):
    L, b = lower_triangular(n, dtype), random((n, m), dtype, 1)
    frame, x = within(b)
    _, view = within(L)
    blas.solve_lower(view, x, transpose=transpose)
    clean = np.tril(np.nan_to_num(L))
    assert_allclose((clean.T if transpose else clean) @ x, b, atol=10 * DTYPES[dtype], rtol=10 * DTYPES[dtype])
    assert_only_inside(frame, x)


@every_dtype
@settings(max_examples=40, deadline=None)
@given(sizes, sizes)
def test_solve_lower_right(dtype, n, m):
    L, b = lower_triangular(n, dtype), random((m, n), dtype, 1)
    frame, x = within(b)
    _, view = within(L)
    blas.solve_lower_right(view, x)
    assert_allclose(x @ np.tril(np.nan_to_num(L)).T, b, atol=10 * DTYPES[dtype], rtol=10 * DTYPES[dtype])
    assert_only_inside(frame, x)


@pytest.fixture
def slow_trsm(monkeypatch):
    """Blocks are inverted, whatever the processor."""
    monkeypatch.setattr(blas, "_trsm_is_slow", lambda: True)


@pytest.fixture
def called(monkeypatch):
    """Names of the routines called."""
    names, call = [], blas._call
    monkeypatch.setattr(blas, "_call", lambda module, name, *rest: (names.append(name), call(module, name, *rest)))
    return names


@every_dtype
@settings(max_examples=40, deadline=None)
@given(n=st.integers(0, 40), m=st.integers(1, 9), leaf=st.integers(1, 9), side=st.sampled_from(["left", "t", "right"]))
def test_solves_by_inverted_blocks(dtype, n, m, leaf, side):
    L, b = lower_triangular(n, dtype), random((m, n) if side == "right" else (n, m), dtype, 1)
    frame, x = within(b)
    _, view = within(L)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blas, "_trsm_is_slow", lambda: True)
        patch.setattr(blas, "INVERSE_SIDE", leaf)
        patch.setattr(blas, "_INVERSE_ROWS", 4)
        if side == "right":
            blas.solve_lower_right(view, x)
        else:
            blas.solve_lower(view, x, transpose=side == "t")
    clean = np.tril(np.nan_to_num(L)).astype(float)
    system = clean.T if side == "t" else clean
    expected = np.linalg.solve(system, b.T if side == "right" else b)
    assert_allclose(x.T if side == "right" else x, expected, atol=100 * DTYPES[dtype], rtol=100 * DTYPES[dtype])
    assert_only_inside(frame, x)


def ill_conditioned(name, n):
    """Matrices of condition 1e12, and kernel matrices whose factor has blocks that are nearly singular."""
    rng = np.random.default_rng(3)
    if name == "random":
        Q = np.linalg.qr(rng.standard_normal((n, n)))[0]
        return (Q * np.logspace(0, -12, n)) @ Q.T + 1e-15 * np.eye(n)
    x = rng.standard_normal((n, 1 if name == "smooth" else 3))
    if name == "near duplicates":
        x[1::2] = x[::2] + 1e-5 * rng.standard_normal(x[::2].shape)
    distance = scipy.spatial.distance.cdist(x, x)
    if name == "smooth":
        return np.exp(-(distance**2)) + 1e-10 * np.eye(n)
    return (1 + distance) * np.exp(-distance) + 1e-10 * np.eye(n)


def residual(left, right, product):
    """Norm of left rightᵀ − product in some rows, in a precision in which its own rounding does not count."""
    rows = slice(None, None, max(1, len(left) // 16))
    return np.linalg.norm((left[rows].astype(np.longdouble) @ right.T - product[rows]).astype(float))


@pytest.mark.usefixtures("slow_trsm")
@every_dtype
@pytest.mark.parametrize("name", ["random", "smooth", "near duplicates"])
def test_residuals_of_ill_conditioned_systems_are_those_of_lapack(name, dtype):
    n, m = 4 * blas.INVERSE_SIDE, blas._INVERSE_ROWS
    A = ill_conditioned(name, n)
    if dtype == "float32":
        A += 1e-4 * np.eye(n)  # else not positive definite in its arithmetic
    L = np.linalg.cholesky(A).astype(dtype)
    b = (random((m, n), "float64") @ L.T).astype(dtype)
    x = b.copy()
    blas.solve_lower_right(L, x)
    assert residual(x, L, b) < 2 * residual(scipy.linalg.solve_triangular(L, b.T, lower=True).T, L, b)
    A = A.astype(dtype)
    own = A.copy()
    assert blas.cholesky_in_place(own) == 0
    own, other = np.tril(own), scipy.linalg.cholesky(A, lower=True)
    assert residual(own, own, A) < 2 * residual(other, other, A)


@pytest.mark.usefixtures("slow_trsm")
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


def test_trsm_where_it_is_as_fast_as_a_product(monkeypatch, called):
    monkeypatch.setattr(blas, "_trsm_is_slow", lambda: False)
    blas.solve_lower_right(
        np.eye(3 * blas.INVERSE_SIDE), random((blas._INVERSE_ROWS, 3 * blas.INVERSE_SIDE), "float64")
    )
    assert called == ["dtrsm"]


@pytest.mark.usefixtures("slow_trsm")
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
            results.append((L, x, y))
    for one, other in zip(*results, strict=True):
        assert_array_equal(one, other)


@every_dtype
@settings(max_examples=25, deadline=None)
@given(n=st.integers(0, 40), block=st.integers(1, 9))
def test_cholesky(dtype, n, block):
    A = positive_definite(n).astype(dtype)
    frame, L = within(A)
    with pytest.MonkeyPatch.context() as patch:  # the recursion, on sizes that a test can afford
        patch.setattr(blas, "INVERSE_SIDE", block)
        patch.setattr(blas, "_RANK_BLOCK", 2 * block)
        assert blas.cholesky_in_place(L) == 0
    assert_allclose(np.tril(L), naive_cholesky(A.astype(float)), atol=DTYPES[dtype], rtol=DTYPES[dtype])
    upper = ~np.tri(n, dtype=bool)
    assert_array_equal(L[upper], A[upper], err_msg="the upper triangle is not ours")
    assert_only_inside(frame, L)


def test_cholesky_of_real_blocks():
    A = positive_definite(2 * blas.INVERSE_SIDE + 77)
    L = A.copy()
    assert blas.cholesky_in_place(L) == 0
    assert_allclose(np.tril(L), np.linalg.cholesky(A), atol=1e-12)


@pytest.mark.parametrize("block", [3, 512])
@pytest.mark.parametrize("row", [0, 1, 2, 3, 7, 15, 16, 28])
def test_failing_pivot(monkeypatch, row, block):
    monkeypatch.setattr(blas, "INVERSE_SIDE", block)
    A = failing_at(row, 29)
    assert np.linalg.eigvalsh(A[: row + 1, : row + 1])[0] < 0
    if row:
        np.linalg.cholesky(A[:row, :row])
    assert blas.cholesky_in_place(A) == row + 1


@pytest.mark.parametrize("row", [0, 3, 600])
def test_a_pivot_that_is_nan_is_not_positive(row):
    A = positive_definite(700)
    A[row, row] = np.nan
    assert blas.cholesky_in_place(A) == row + 1


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 20), st.integers(0, 9), st.integers(1, 7))
def test_rank_update(n, k, block):
    a, c = random((n, k), "float64"), random((n, n), "float64", 1)
    target = c.copy()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blas, "_RANK_BLOCK", block)
        blas.rank_update(target, a)
    assert_allclose(np.tril(target), np.tril(c - a @ a.T), atol=1e-12)


class TestViewsThatBlasCannotTake:
    @pytest.mark.parametrize(
        "view",
        [
            lambda a: a.T,
            lambda a: a[:, ::2],
            lambda a: a[:, ::-1],
            lambda a: a[::-1],
            lambda a: np.broadcast_to(a[:1], a.shape),
        ],
        ids=["transposed", "every other column", "columns backwards", "rows backwards", "one row repeated"],
    )
    def test_refused(self, view):
        a = view(random((6, 6), "float64"))
        b = np.eye(a.shape[-1])
        with pytest.raises(ValueError, match="contiguous"):
            blas.gemm(np.zeros((len(a), len(b))), a, b)

    def test_single_rows_and_columns_are_fine(self):
        a = random((6, 7), "float64")
        c = np.zeros((1, 1))
        blas.gemm(c, a[2:3], a[2:3], transpose_b=True)
        assert_allclose(c, a[2:3] @ a[2:3].T)
        blas.gemm(c, a[:, 3:4], a[:, 5:6], transpose_a=True)
        assert_allclose(c, a[:, 3:4].T @ a[:, 5:6])
        blas.gemm(c, a[::2, 3:4], a[::2, 5:6], transpose_a=True)
        assert_allclose(c, a[::2, 3:4].T @ a[::2, 5:6])


@settings(max_examples=30, deadline=None)
@given(sizes, sizes, sizes, st.sampled_from(sorted(DTYPES)), st.booleans())
def test_product(m, n, k, dtype, is_fortran):
    a, b = random((m, k), dtype), random((k, n), "float64", 1)
    c = blas.product(np.asfortranarray(a) if is_fortran else a, b[:, ::-1][:, ::-1])
    assert c.dtype == np.float64
    assert_allclose(c, a.astype(float) @ b, atol=1e-12)


class TestOneThread:
    def threads(self):
        return {pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"}

    @pytest.fixture(autouse=True)
    def _two_threads(self):
        with threadpoolctl.threadpool_limits(2, "blas"):
            yield

    def test_inside_only(self):
        with blas.one_thread():
            assert self.threads() == {1}
            with blas.one_thread():
                assert self.threads() == {1}
            assert self.threads() == {1}
        assert self.threads() == {2}

    def test_not_wanted(self):
        with blas.one_thread(False):
            assert self.threads() == {2}

    def test_an_error_inside(self):
        with pytest.raises(ZeroDivisionError), blas.one_thread():
            1 / 0  # noqa: B018
        assert self.threads() == {2}

    def test_two_that_overlap(self):
        """Two small fits in two threads: the second begins before the first ends, and ends after it."""
        first, second = blas.one_thread(), blas.one_thread()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert self.threads() == {1}, "the second still needs it"
        second.__exit__(None, None, None)
        assert self.threads() == {2}, "the user's process must not stay on one thread"

    def test_in_any_thread(self):
        """Also where another thread has set a limit before, which threadpoolctl then refuses to others."""
        seen, inside, leave = [], threading.Event(), threading.Event()

        def work():
            with blas.one_thread():
                seen.append(self.threads())
                inside.set()
                leave.wait(20)
            seen.append(self.threads())

        thread = threading.Thread(target=work)
        thread.start()
        assert inside.wait(20)
        with blas.one_thread():  # entered last, left first
            leave.set()
            thread.join()
            assert self.threads() == {1}
        assert self.threads() == {2}
        assert seen == [{1}, {1}]


def test_the_interpreter_lock_is_released():
    """Another thread runs while a product does: SciPy's own wrappers would keep it waiting until the end."""
    n, seen, stop = 1200, [], threading.Event()
    a, c = random((n, n), "float64"), np.zeros((n, n))

    def count():
        while not stop.wait(0.001):
            seen.append(is_inside[0])

    is_inside = [False]
    watcher = threading.Thread(target=count)
    watcher.start()
    try:
        is_inside[0] = True
        for _ in range(3):
            blas.gemm(c, a, a)
        is_inside[0] = False
    finally:
        stop.set()
        watcher.join()
    # Each product takes tens of milliseconds; with the lock held only the gaps between them would be seen.
    assert sum(seen) > 6


def test_scipy():
    L, B = np.linalg.cholesky(positive_definite(50)), random((50, 3), "float64")
    for transpose in (False, True):
        x = B.copy()
        blas.solve_lower(L, x, transpose=transpose)
        expected = scipy.linalg.solve_triangular(L, B, lower=True, trans=int(transpose))
        assert_allclose(x, expected, rtol=1e-12, atol=1e-14)
