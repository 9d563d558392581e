"""Partial Cholesky with pivots against one column after the other, and what is kept of it in memory."""

import itertools
import uuid

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from dkrr.kernels import RBF, Linear, Polynomial
from dkrr.kernels.base import EntryCost
from dkrr.linalg import factor_rows, pivoted_cholesky
from dkrr.linalg.pivoted_cholesky import (
    LOW_OVERHEAD,
    MIN_BLOCK,
    FactorRows,
    LostRowsError,
    PivotedCholesky,
    choose_pivots,
    extend_rows,
    factor_rows_bytes,
    pivoted_cost,
    project_rows,
    small_matrix_cost,
)
from dkrr.linalg.sources import GramColumns, MatrixColumns
from dkrr.rows import MemoryRows
from dkrr.runtime import Meter, SerialExecutor, ThreadExecutor, resident
from tests.contracts.kernels import DISTINCT
from tests.linalg.systems import positive_definite, rows_of
from tests.oracles import naive_partial_cholesky


def rows(n=47, d=3, seed=0):
    return np.random.default_rng(seed).standard_normal((n, d))


def factor(columns, capacity=999, slots=1, **settings):
    columns = MatrixColumns(MemoryRows(columns)) if isinstance(columns, np.ndarray) else columns
    executor = settings.pop("executor", SerialExecutor())
    return PivotedCholesky(columns, executor, f"test-{uuid.uuid4().hex}", slots, capacity, **settings)


def check(found, A, accuracy=1e-10):
    """Everything that holds for every partial factor of A."""
    F, size = rows_of(found), A.diagonal().max()
    assert F.shape == (len(A), found.rank)
    assert len(set(found.index.tolist())) == found.rank, "a pivot is taken once"
    assert_allclose(F, naive_partial_cholesky(A, found.index), atol=accuracy * np.sqrt(size))
    left = A - F @ F.T
    assert_allclose(left[:, found.index], 0.0, atol=accuracy * size)
    importance = np.ones(len(A)) if found.importance is None else found.importance
    assert found.traces[-1][0] == found.rank
    trace = found.traces[-1][1] * found.trace_unit
    assert trace == pytest.approx(left.diagonal() @ importance, abs=accuracy * size * len(A))
    assert found.traces[0] == (0, pytest.approx(A.diagonal() @ importance / found.trace_unit))
    V, U = rows(len(A), 2, 5), rows(found.rank, 3, 6)
    v = np.random.default_rng(7).uniform(0.5, 2.0, len(A))
    assert_allclose(found.project(V), F.T @ V, atol=1e-11 * size)
    assert_allclose(found.expand(U), F @ U, atol=1e-11 * size)
    assert_allclose(np.tril(found.gram(v)), np.tril((F.T * v) @ F), rtol=1e-10, atol=1e-11 * size)


class TestFactor:
    @settings(max_examples=25, deadline=None)
    @given(
        n=st.integers(1, 40),
        rank=st.integers(1, 45),
        slots=st.integers(1, 5),
        weighted=st.booleans(),
        seed=st.integers(0, 9),
    )
    def test_ragged_shapes(self, n, rank, slots, weighted, seed):
        A = positive_definite(n, seed)
        importance = np.random.default_rng(seed).uniform(0.5, 2.0, n) if weighted else None
        found = factor(A, slots=slots, importance=importance, seed=seed)
        found.grow(rank)
        assert found.rank == min(rank, n)
        check(found, A)
        if rank >= n:
            assert_allclose(rows_of(found) @ rows_of(found).T, A, atol=1e-12)
        found.close()
        assert found.run not in resident._kept

    @pytest.mark.parametrize("case", [case for case in DISTINCT if case.semidefinite], ids=str)
    def test_every_kernel(self, case):
        X = case.rows(60, 5)
        found = factor(GramColumns(case.kernel, MemoryRows(X)), slots=2)
        found.grow(6)
        assert 1 <= found.rank <= 6
        check(found, case.kernel(X), 1e-7 if found.rank > 1 else 1e-10)
        found.close()

    def test_in_several_rounds(self):
        A = positive_definite(3 * MIN_BLOCK)
        found = factor(A, slots=3)
        for rank in (5, 2 * MIN_BLOCK + 3, 2 * MIN_BLOCK + 3, 80):
            found.grow(rank)
            assert found.rank == rank
            check(found, A)
        ranks = [r for r, _ in found.traces]
        traces = [t for _, t in found.traces]
        assert ranks == sorted(ranks)
        assert traces == sorted(traces, reverse=True)
        found.close()

    def test_capacity(self):
        found = factor(positive_definite(47), capacity=7)
        found.grow(30)
        assert found.rank == 7
        found.close()

    def test_enough_is_asked_after_every_round(self):
        A, seen = positive_definite(4 * MIN_BLOCK), []
        found = factor(A)

        def enough(factor):
            seen.append(factor.rank)
            return len(seen) == 2

        found.grow(4 * MIN_BLOCK, enough)
        assert len(seen) == 2 and 0 < seen[0] <= MIN_BLOCK and seen[0] < seen[1] <= 2 * MIN_BLOCK
        check(found, A)
        found.close()

    def test_parts_and_threads_do_not_change_it(self):
        X = rows()
        with ThreadExecutor(3) as threads:
            factors = [
                factor(GramColumns(RBF(), MemoryRows(X)), slots=slots, executor=executor, seed=3)
                for slots, executor in ((1, SerialExecutor()), (4, SerialExecutor()), (4, threads))
            ]
            for one in factors:
                one.grow(12)
            for other in factors[1:]:
                assert_array_equal(other.index, factors[0].index)
                assert_allclose(rows_of(other), rows_of(factors[0]), atol=1e-12)
            for one in factors:
                one.close()

    def test_strips(self, monkeypatch):
        monkeypatch.setattr(factor_rows, "STRIP_ENTRIES", 64)
        A = positive_definite(150)
        for dtype in (np.float64, np.float32):
            found = factor(A, slots=2, dtype=dtype)
            found.grow(5)
            check(found, A, 1e-10 if dtype == np.float64 else 1e-5)
            found.close()

    @pytest.mark.parametrize("dtype", [np.float64, np.float32])
    def test_products_in_float32(self, monkeypatch, dtype):
        """Of a factor that is stored so; vectors may be outside its range."""
        monkeypatch.setattr(factor_rows, "LOW_STRIP_ENTRIES", 64)
        found = factor(positive_definite(150), slots=2, dtype=dtype)
        found.grow(5)
        F = rows_of(found)
        for size in (1e-60, 1.0, 1e60):
            V, U = rows(150, 2, 5) * [1.0, size], rows(5, 3, 6) * size
            for product, exact, bound in (
                (found.project(V, "float32"), F.T @ V, np.abs(F.T) @ np.abs(V)),
                (found.expand(U, "float32"), F @ U, np.abs(F) @ np.abs(U)),
            ):
                assert product.dtype == np.float64
                error = (np.abs(product - exact) / bound).max()
                assert error < 1e-15 if dtype == np.float64 else 1e-9 < error < 1e-6
        found.close()

    @pytest.mark.parametrize("size", [1e-50, 1.0, 1e50])
    def test_gram_in_float32(self, monkeypatch, size):
        """In blocks of columns, sums of a few rows each; weights may be outside its range."""
        monkeypatch.setattr(factor_rows, "GRAM_ROWS", 16)
        monkeypatch.setattr(factor_rows, "GRAM_COLUMNS", 3)
        for dtype in (np.float64, np.float32):
            found, v = factor(positive_definite(150), slots=2, dtype=dtype), np.random.default_rng(7).random(150) * size
            found.grow(8)
            F = rows_of(found)
            error = np.abs(np.tril(found.gram(v, "float32") - (F.T * v) @ F)).max() / size
            assert error < 1e-12 if dtype == np.float64 else 1e-9 < error < 1e-4
            assert found.gram(v, "float32").dtype == np.float64
            found.close()

    def test_columns_are_added_in_float32_while_much_is_left(self, monkeypatch):
        A, precisions = positive_definite(150), []
        monkeypatch.setattr(
            pivoted_cholesky, "NewColumns", lambda *a: precisions.append(a[-1]) or factor_rows.NewColumns(*a)
        )
        for fraction, dtype, expected in ((0.0, np.float32, {"float32"}), (1.0, np.float32, {"float64"}),
                                          (0.0, np.float64, {"float64"})):  # fmt: skip
            monkeypatch.setattr(pivoted_cholesky, "LOW_PRECISION_LEFT", fraction)
            found = factor(A, slots=2, dtype=dtype)
            found.grow(40)
            check(found, A, 1e-10 if dtype == np.float64 else 1e-5)
            assert set(precisions) == expected and len(precisions) > 1
            precisions.clear()
            found.close()

    @pytest.mark.parametrize("dtype", [np.float64, np.float32])
    @pytest.mark.parametrize("power", [-400, -64, 3, 65, 480])
    def test_a_power_of_two_changes_no_digit(self, dtype, power):
        """Also where entries of F leave the range of float32."""
        X, V = rows(60, 5), rows(60, 2, 3)
        importance = np.random.default_rng(1).uniform(0.5, 2.0, 60)
        plain, scaled = (
            factor(
                GramColumns(Linear(), MemoryRows(np.ldexp(X, p))), dtype=dtype, importance=np.ldexp(importance, 2 * p)
            )
            for p in (0, power)
        )
        for one in (plain, scaled):
            one.grow(4)
        assert_array_equal(scaled.index, plain.index)
        assert_array_equal(scaled.project(V), np.ldexp(plain.project(V), power))
        assert_array_equal(scaled.expand(V[:4]), np.ldexp(plain.expand(V[:4]), power))
        assert_array_equal(scaled.gram(importance), np.ldexp(plain.gram(importance), 2 * power))
        assert_array_equal(scaled.left, np.ldexp(plain.left, 2 * power))
        assert_array_equal(scaled.diagonal, np.ldexp(plain.diagonal, 2 * power))
        for one in (plain, scaled):
            one.close()

    def test_sparse_rows(self):
        X = np.where(np.random.default_rng(1).random((47, 6)) < 0.4, rows(47, 6), 0.0)
        found = factor(GramColumns(RBF(gamma=0.3), MemoryRows(sp.csr_array(X))), slots=2)
        found.grow(9)
        found.grow(15)
        check(found, RBF(gamma=0.3)(X))
        found.close()

    def test_float32(self):
        A = RBF(gamma=0.1)(rows(90, 2))
        found = factor(A, slots=2, dtype=np.float32)
        found.grow(90)
        assert found.rank < 90, "what float32 cannot tell from nothing is not taken"
        F = rows_of(found)
        assert_allclose(F.astype(np.float32), F, rtol=0, atol=0, err_msg="stored in float32, read in float64")
        assert_allclose(F @ F.T, A, atol=3e-5)
        assert found.traces[-1][1] < 1e-3
        found.close()


class TestWhichPivots:
    def test_rounding_of_one_candidate_is_not_that_of_the_others(self):
        """The diagonal promises much where nothing is left; the other candidates of that round must not go with it."""

        class Promising(MatrixColumns):
            def diagonal(self, rows):
                return super().diagonal(rows) + np.where(np.arange(self.n) == 3, 1e6, 0.0)[rows]

        A = np.diag(np.arange(9.0))
        A[3, 3] = 1e-12
        found = factor(Promising(MemoryRows(A)))
        found.grow(9)
        assert sorted(found.index) == [1, 2, 4, 5, 6, 7, 8]
        found.close()

    def test_rpcholesky_draws_from_what_is_left(self):
        """Pairs of first pivots: as often as for one pivot at a time, though a block is proposed at once."""
        # The first takes most of the second with it, and the third of the fourth.
        A = np.array([[4.0, 3.6, 0.0, 0.1], [3.6, 4.0, 0.1, 0.0], [0.0, 0.1, 2.0, 1.2], [0.1, 0.0, 1.2, 1.0]])
        assert np.linalg.eigvalsh(A)[0] > 0
        expected = np.zeros((4, 4))
        for i, j in itertools.permutations(range(4), 2):
            left = A.diagonal() - A[i] ** 2 / A[i, i]
            left[i] = 0.0
            expected[i, j] = A[i, i] / np.trace(A) * left[j] / left.sum()
        n, counts = 1500, np.zeros((4, 4))
        for seed in range(n):
            one = factor(A, seed=seed)
            one.grow(2)
            one.close()
            counts[tuple(one.index)] += 1
        deviation = np.sqrt(n * expected * (1 - expected))
        assert (np.abs(counts - n * expected) <= 4 * deviation).all()
        assert counts.diagonal().sum() == 0

    def test_rpcholesky_by_importance(self):
        n, counts = 600, np.zeros(4)
        for seed in range(n):
            one = factor(np.diag([1.0, 2.0, 3.0, 4.0]), importance=np.array([4.0, 2.0, 0.0, 0.5]), seed=seed)
            one.grow(1)
            one.close()
            counts[one.index] += 1
        expected = np.array([0.4, 0.4, 0.0, 0.2])
        assert (np.abs(counts - n * expected) <= 4 * np.sqrt(n * expected * (1 - expected))).all()

    def test_seed(self):
        A = positive_definite(47)
        found = [factor(A, seed=seed) for seed in (1, 1, 2)]
        for one in found:
            one.grow(10)
            one.close()
        assert_array_equal(found[0].index, found[1].index)
        assert found[0].index.tolist() != found[2].index.tolist()

    def test_no_importance_no_pivot(self):
        importance = np.ones(47)
        importance[[0, 7, 46]] = 0.0
        found = factor(positive_definite(47), importance=importance)
        found.grow(47)
        assert sorted(found.index) == [k for k in range(47) if importance[k]]
        found.close()


class TestRank:
    @pytest.mark.parametrize("dtype", [np.float64, np.float32])
    def test_linear_kernel_has_the_rank_of_its_columns(self, dtype):
        X = rows(90, 3)
        found = factor(GramColumns(Linear(), MemoryRows(X)), slots=2, dtype=dtype)
        found.grow(20)
        assert found.rank == 3
        assert_allclose(rows_of(found) @ rows_of(found).T, X @ X.T, atol=1e-5 if dtype == np.float32 else 1e-12)
        found.grow(40)
        assert found.rank == 3, "nothing is left"
        found.close()

    def test_duplicate_rows(self):
        X = rows(20, 3)
        K = RBF(gamma=0.8)(np.repeat(X, 3, axis=0))
        found = factor(GramColumns(RBF(gamma=0.8), MemoryRows(np.repeat(X, 3, axis=0))))
        found.grow(60)
        assert sorted(found.index[:20] // 3) == list(range(20)), "one of each three"
        # The last digits of what is left may pass for a few more; their columns are as small.
        assert 20 <= found.rank <= 24
        assert_allclose(rows_of(found) @ rows_of(found).T, K, atol=1e-13)
        found.close()

    def test_rows_of_zeros(self):
        X = rows(30, 4)
        X[[0, 5, 29]] = 0.0
        found = factor(GramColumns(Polynomial(degree=2, gamma=1.0, coef0=0.0), MemoryRows(X)))
        found.grow(30)
        assert 10 <= found.rank <= 14
        assert not {0, 5, 29} & set(found.index.tolist())
        K = (X @ X.T) ** 2
        assert_allclose(rows_of(found) @ rows_of(found).T, K, atol=1e-12 * K.max())
        found.close()

    def test_nothing_at_all(self):
        found = factor(np.zeros((9, 9)))
        found.grow(5)
        assert found.rank == 0
        assert found.traces[-1] == (0, 0.0)
        found.close()


class TestLostRows:
    def grown(self, **settings):
        A = positive_definite(47)
        found = factor(A, slots=3, **settings)
        found.grow(9)
        return A, found

    @pytest.mark.parametrize("lost", ["all", "one part"])
    @pytest.mark.parametrize("use", ["project", "expand", "gram", "grow"])
    def test_made_again(self, lost, use):
        A, found = self.grown()
        before = rows_of(found)
        if lost == "all":
            resident.forget(found.run)
        else:
            resident._kept[found.run].pop(("factor", 1))
        if use == "grow":
            found.grow(20)
            assert found.rank == 20
        else:
            getattr(found, use)({"project": np.ones((47, 2)), "expand": np.ones((9, 2)), "gram": np.ones(47)}[use])
        assert_allclose(rows_of(found)[:, :9], before, atol=1e-12)
        check(found, A)
        found.close()

    def test_lost_while_growing(self):
        """A part is lost between the rounds, another has its new columns already when the round is begun again."""
        A, found = self.grown()
        run = found.executor.map
        forgotten = []

        def losing(tasks, shared):
            if tasks[0].function is extend_rows and not forgotten:
                run(tasks[:1], shared)
                forgotten.append(resident._kept[found.run].pop(("factor", 2)))
            return run(tasks, shared)

        found.executor.map = losing
        found.grow(25)
        assert forgotten
        check(found, A)
        found.close()

    def test_lost_twice(self):
        """A worker dies, and the rows are lost once more before they are used."""
        A, found = self.grown()
        run, times = found.executor.total, []

        def losing(tasks, shared):
            if len(times) < 2:
                times.append(1)
                resident.forget(found.run)
            return run(tasks, shared)

        found.executor.total = losing
        assert_allclose(found.project(np.ones((47, 1))), rows_of(found).T @ np.ones((47, 1)), atol=1e-12)
        check(found, A)
        found.close()

    def test_always_lost(self):
        _, found = self.grown()
        run = found.executor.total

        def losing(tasks, shared):
            resident.forget(found.run)
            return run(tasks, shared)

        found.executor.total = losing
        with pytest.raises(LostRowsError):
            found.project(np.ones((47, 1)))
        found.close()

    def test_a_task_says_that_it_has_none(self):
        part = FactorRows(MatrixColumns(MemoryRows(np.eye(5))), 0, 5, "another run", 0, 3, np.float64)
        with pytest.raises(LostRowsError):
            project_rows(Meter(), part, np.ones((5, 1)))
        assert "another run" not in resident._kept

    def test_the_same_round_twice(self):
        A, found = self.grown()
        run = found.executor.map

        def twice(tasks, shared):
            run(tasks, shared)
            return run(tasks, shared)

        found.executor.map = twice
        found.grow(20)
        check(found, A)
        found.close()


class TestRestore:
    @pytest.mark.parametrize("dtype", [np.float64, np.float32])
    def test_the_same_factor(self, dtype):
        X = rows(60)
        columns = GramColumns(RBF(gamma=0.4), MemoryRows(X))
        first, second = (factor(columns, slots=slots, dtype=dtype) for slots in (2, 3))
        first.grow(15)
        second.restore(first.index)
        assert_array_equal(second.index, first.index)
        accuracy = 1e-9 if dtype == np.float64 else 1e-4
        assert_allclose(rows_of(second), rows_of(first), atol=accuracy)
        assert second.traces[-1] == (15, pytest.approx(first.traces[-1][1], rel=1e-6 if dtype == np.float64 else 1e-2))
        second.grow(25)
        assert second.rank == 25
        check(second, RBF(gamma=0.4)(X), 1e-8 if dtype == np.float64 else 1e-4)
        assert all(t.value is None for t in second.record.tasks), "a record must not hold a column"
        first.close()
        second.close()

    def test_with_importance(self):
        importance = np.linspace(0.5, 2.0, 47)
        first, second = (factor(positive_definite(47), importance=importance) for _ in range(2))
        first.grow(9)
        second.restore(first.index)
        assert second.traces[-1][1] == pytest.approx(first.traces[-1][1], rel=1e-12)
        check(second, positive_definite(47))

    def test_pivots_that_do_not_hold(self):
        """Rounding made them dependent: no factor exists then, and it can be grown from nothing."""
        X = rows(20)
        X[:2] = [1.0, 2.0, 2.0]  # of length 3: nothing at all is left of the second
        found = factor(GramColumns(Linear(), MemoryRows(X)))
        found.restore(np.array([0, 1, 2]))
        assert found.rank == 0
        found.grow(3)
        check(found, X @ X.T)
        found.close()


class TestChoosePivots:
    def test_are_those_of_the_factor(self):
        X = rows(50)
        found = factor(GramColumns(RBF(gamma=1 / 3), MemoryRows(X)), seed=6)
        found.grow(8)
        found.close()
        assert_array_equal(choose_pivots(RBF(), MemoryRows(X), 8, "rpcholesky", 6), found.index)

    def test_uniform_and_too_many(self):
        found = choose_pivots(RBF(), MemoryRows(rows(30)), 7, "uniform", 0)
        assert found.tolist() == sorted(set(found.tolist())) and len(found) == 7
        assert choose_pivots(RBF(), MemoryRows(rows(30)), 99, "uniform", 0).tolist() == list(range(30))
        assert len(choose_pivots(Linear(), MemoryRows(rows(30)), 9, "rpcholesky", 0)) == 3

    def test_from_a_sample(self, monkeypatch):
        monkeypatch.setattr(pivoted_cholesky, "MIN_CANDIDATES", 20)
        monkeypatch.setattr(pivoted_cholesky, "CANDIDATES_TO_RANK", 2)
        X = rows(500)
        found = choose_pivots(RBF(), MemoryRows(X), 12, "rpcholesky", 1)
        assert len(set(found.tolist())) == 12 and found.max() > 24
        assert_array_equal(found, choose_pivots(RBF(), MemoryRows(X), 12, "rpcholesky", 1))

    def test_nothing_is_left_in_memory(self):
        before = dict(resident._kept)
        choose_pivots(RBF(), MemoryRows(rows(30)), 5, "rpcholesky", 0)
        assert resident._kept == before


def test_cost_with_distinct_primes():
    n, rank = 10_007, 101
    cost = pivoted_cost(n, rank, EntryCost(13.0, 3e-9))
    assert cost.gemm_flops == LOW_OVERHEAD * n * rank**2 + n * rank * 13
    assert small_matrix_cost(n, rank, 7).gemm_flops == pytest.approx(LOW_OVERHEAD * n * rank**2 / 14 + rank**3 / 3)
    assert cost.element_seconds == pytest.approx(n * rank * 3e-9)
    assert factor_rows_bytes(n, rank, 4, 7) >= 4 * 1430 * rank
    assert factor_rows_bytes(n, rank, 8, 7) - factor_rows_bytes(n, rank, 4, 7) == 4 * 1430 * rank
