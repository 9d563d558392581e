"""Preconditioners against the inverses that they stand for."""

import itertools
import uuid
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from dkrr.linalg.low_rank import GROWTH, LOW_PRECISION_RATIO, MAX_GROWTHS, LowRank, mean_left
from dkrr.linalg.pivoted_cholesky import PivotedCholesky, expected_iterations, next_eigenvalue, pivot_stopping_rule
from dkrr.linalg.preconditioner import Deferred, Diagonal, Identity
from dkrr.linalg.sources import MatrixColumns
from dkrr.rows import MemoryRows
from dkrr.runtime import SerialExecutor
from tests.linalg.systems import MatrixOperator, positive_definite, rows_of

N, M = 29, 3
everything = np.arange(M)


def factor(n=N, rank=7, slots=2, capacity=999, A=None, dtype=np.float64):
    A = positive_definite(n) if A is None else A
    run = f"test-{uuid.uuid4().hex}"
    found = PivotedCholesky(MatrixColumns(MemoryRows(A)), SerialExecutor(), run, slots, capacity, dtype=dtype)
    found.grow(rank)
    return found


def vectors(n=N, m=M, seed=2):
    return np.random.default_rng(seed).standard_normal((n, m))


SHIFTS = {
    "one number": np.full((1, M), 0.3),
    "a number for each column": np.array([[0.3, 2.0, 0.3]]),
    "a vector": np.random.default_rng(1).uniform(0.1, 2.0, (N, 1)),
}


def dense_inverse(preconditioner, column):
    """(C F Fᵀ C + diag(t))⁻¹ for one right-hand side."""
    F, scale = rows_of(preconditioner.factor), preconditioner.scale
    c = np.ones(len(F)) if scale is None else scale
    t = np.broadcast_to(preconditioner.shifts(np.array([column]))[:, 0], len(F))
    return np.linalg.inv(c[:, None] * (F @ F.T) * c + np.diag(t))


def test_identity():
    R = vectors()
    found = Identity().apply(R, everything)
    assert_array_equal(found, R)
    assert not np.shares_memory(found, R), "the caller works in place"
    assert Identity().rank == 0
    assert not Identity().can_grow and not Identity().grow()
    assert Identity().record.tasks == []
    assert not Identity().captures_constant


class TestLowRank:
    @pytest.mark.parametrize("dtype", [np.float64, np.float32])
    @pytest.mark.parametrize("scaled", [False, True])
    @pytest.mark.parametrize("which", SHIFTS)
    def test_is_the_inverse(self, which, scaled, dtype):
        scale = np.random.default_rng(3).uniform(0.5, 2.0, N) if scaled else None
        F, shift, R = factor(dtype=dtype), SHIFTS[which], vectors()
        before = R.copy()
        M_inverse = LowRank(F, shift, scale)
        found = M_inverse.apply(R, everything)
        expected = np.column_stack([dense_inverse(M_inverse, k) @ R[:, k] for k in range(M)])
        assert_allclose(found, expected, rtol=1e-10, atol=1e-12)
        assert_array_equal(R, before)
        F.close()

    @pytest.mark.parametrize("which", SHIFTS)
    @pytest.mark.parametrize("columns", [[1], [2, 1], [0, 2]])
    def test_some_columns(self, which, columns):
        """Those that have converged are left out; the others keep shifts of their own."""
        F, R = factor(), vectors()
        M_inverse = LowRank(F, SHIFTS[which])
        whole = M_inverse.apply(R, everything)
        found = M_inverse.apply(np.ascontiguousarray(R[:, columns]), np.array(columns))
        assert_allclose(found, whole[:, columns], rtol=1e-11, atol=1e-13)
        F.close()

    @settings(max_examples=30, deadline=None)
    @given(
        n=st.integers(2, 30),
        rank=st.integers(1, 30),
        slots=st.integers(1, 4),
        shifts=st.lists(st.sampled_from([0.1, 1.0, 7.0]), min_size=1, max_size=4),
    )
    def test_ragged_shapes(self, n, rank, slots, shifts):
        F, shift, R = factor(n, rank, slots), np.array([shifts]), vectors(n, len(shifts))
        M_inverse = LowRank(F, shift)
        found = M_inverse.apply(R, np.arange(len(shifts)))
        expected = np.column_stack([dense_inverse(M_inverse, k) @ R[:, k] for k in range(len(shifts))])
        assert_allclose(found, expected, rtol=1e-9, atol=1e-11)
        F.close()

    def test_is_symmetric_and_positive_definite(self):
        F = factor()
        found = LowRank(F, np.full((1, N), 0.2), np.linspace(0.5, 2.0, N)).apply(np.eye(N), np.arange(N))
        assert_allclose(found, found.T, atol=1e-12)
        assert np.linalg.eigvalsh(found)[0] > 0
        F.close()

    @pytest.mark.parametrize("which", SHIFTS)
    def test_without_a_factor_only_the_shift(self, which):
        F, R = factor(A=np.zeros((N, N))), vectors()
        assert F.rank == 0
        assert_allclose(LowRank(F, SHIFTS[which]).apply(R, everything), R / SHIFTS[which], rtol=1e-14)

    def test_a_full_factor_is_the_inverse_of_the_matrix(self):
        A, R = positive_definite(N), vectors()
        F = factor(rank=N)
        found = LowRank(F, np.full((1, M), 0.5)).apply(R, everything)
        assert_allclose(found, np.linalg.solve(A + 0.5 * np.eye(N), R), rtol=1e-10)
        F.close()

    @pytest.mark.parametrize("scaled", [False, True])
    @pytest.mark.parametrize("shift", [0.0, 1e-30, 1e-3, 1e-1, 10.0])
    def test_eigenvalues_are_within_the_bounds(self, shift, scaled):
        """However far the shift is below the eigenvalues that F leaves."""
        A = positive_definite(N) + 0.1 * np.eye(N)
        c = np.random.default_rng(3).uniform(0.5, 2.0, N) if scaled else np.ones(N)
        F = factor(rank=9, A=A)
        M_inverse = LowRank(F, np.full((1, N), shift), c if scaled else None)
        B = c[:, None] * A * c
        E = B - c[:, None] * (rows_of(F) @ rows_of(F).T) * c
        values = np.linalg.eigvals(M_inverse.apply(B + shift * np.eye(N), np.arange(N))).real
        t, smallest = M_inverse.shifts(np.array([0])), np.linalg.eigvalsh(B)[0]
        assert t.min() >= shift and t.max() <= max(shift, np.trace(E) / (N - 9)) * (1 + 1e-12)
        assert values.max() <= 1.0 + np.linalg.eigvalsh(E)[-1] / t.min() + 1e-9
        assert values.min() >= min(0.5, (shift + smallest / 2) / t.max()) - 1e-9
        F.close()

    def test_weights_over_many_orders(self):
        """What is left of light rows does not hide that of heavy ones."""
        A, c = positive_definite(N), np.logspace(-5, 5, N)
        F = PivotedCholesky(MatrixColumns(MemoryRows(A)), SerialExecutor(), "test-weights", 2, 99, importance=c**2)
        F.grow(9)
        M_inverse = LowRank(F, np.full((1, N), 1e-12), c)
        B = c[:, None] * A * c + 1e-12 * np.eye(N)
        values = np.linalg.eigvals(M_inverse.apply(B, np.arange(N))).real
        assert values.max() / values.min() < 1e4 < 1e-10 * np.linalg.cond(B)
        F.close()

    def test_several_shifts_with_a_scale(self):
        A, c, shift = positive_definite(N), np.logspace(-3, 3, N), np.array([[1e-9, 1e-3, 1e9, 1e-9]])
        F = PivotedCholesky(MatrixColumns(MemoryRows(A)), SerialExecutor(), "test-several", 2, 99, importance=c**2)
        F.grow(9)
        whole, R = LowRank(F, shift, c), vectors(N, 4)
        for k in range(4):
            alone = LowRank(F, shift[:, k : k + 1], c).apply(R[:, k : k + 1], np.zeros(1, np.intp))
            assert_allclose(whole.apply(R, np.arange(4))[:, k : k + 1], alone, rtol=1e-5)
        assert_allclose(whole.apply(R[:, 1:3], np.array([1, 2])), whole.apply(R, np.arange(4))[:, 1:3], rtol=1e-12)
        F.close()

    def test_the_shift_is_raised_where_rounding_takes_its_digits(self):
        A = np.ones((N, N)) + np.diag(np.logspace(-12, -10, N))
        F, R = factor(rank=N, A=A), vectors()
        inexact = LowRank(F, np.full((1, M), 1e-30), lift=1e-6)
        assert inexact.raise_shift_if_inexact(R, everything), "t is below the rounding of the large eigenvalue"
        while inexact.raise_shift_if_inexact(R, everything):
            assert inexact.lift < 1e3
        expected = np.column_stack([dense_inverse(inexact, k) @ R[:, k] for k in range(M)])
        assert np.abs(inexact.apply(R, everything) - expected).max() < 0.2 * np.abs(expected).max()
        sound = LowRank(F, np.full((1, M), 0.1))
        assert not sound.raise_shift_if_inexact(R, everything) and sound.lift == 1.0
        F.close()

    def test_precision_of_products(self):
        """Float32 where the factor is stored so and the shift is not lost beside the largest eigenvalue."""
        A, R = np.ones((N, N)) + np.diag(np.logspace(-9, -6, N)), vectors()
        for dtype, shift, expected in ((np.float32, 1.0, "float32"), (np.float64, 1.0, "float64"),
                                       (np.float32, N / LOW_PRECISION_RATIO / 3, "float64")):  # fmt: skip
            F = PivotedCholesky(MatrixColumns(MemoryRows(A)), SerialExecutor(), "test-precision", 2, 99, dtype=dtype)
            F.grow(9)
            assert LowRank(F, np.full((1, M), shift)).precision == "float64"
            M_inverse = LowRank(F, np.full((1, M), shift), mixed=True)
            assert M_inverse.precision == expected
            found, right = M_inverse.apply(R, everything), R.copy()
            assert_allclose(rows_of(F) @ (rows_of(F).T @ found) + shift * found, right, atol=2e-5 * np.abs(R).max())
            F.close()

    def test_float32_that_has_lost_its_digits_is_given_up_first(self):
        A, R = np.ones((N, N)) + np.diag(np.logspace(-12, -10, N)), vectors()
        F = PivotedCholesky(MatrixColumns(MemoryRows(A)), SerialExecutor(), "test-digits", 2, 99, dtype=np.float32)
        F.grow(9)
        inexact = LowRank(F, np.full((1, M), 1e-9), mixed=True)
        inexact.precision = "float32"
        assert inexact.raise_shift_if_inexact(R, everything)
        assert (inexact.precision, inexact.lift) == ("float64", 1.0)
        assert not inexact.raise_shift_if_inexact(R, everything)
        F.close()

    @pytest.mark.parametrize("scaled", [False, True])
    def test_extremes(self, scaled):
        F, c = factor(rank=9), np.linspace(0.5, 2.0, N) if scaled else None
        M_inverse = LowRank(F, np.array([[1e-3, 50.0]]), c)
        low, high = M_inverse.extremes(np.arange(2))
        for k in range(2):
            values = 1 / np.linalg.eigvalsh(M_inverse.apply(np.eye(N), np.full(N, k)))
            assert values.min() / 3 < low[k] < 3 * values.min()
            assert values.max() / 3 < high[k] < 1.5 * values.max()
        F.close()

    def test_a_scale_for_each_right_hand_side(self):
        """The same as one preconditioner for each."""
        F, R = factor(rank=9), vectors()
        scale, shift = np.random.default_rng(3).uniform(0.0, 2.0, (N, M)), np.array([[0.3, 2.0, 0.1]])
        together = LowRank(F, shift, scale)
        for k in range(M):
            alone, one = LowRank(F, shift[:, k : k + 1], scale[:, k]), np.zeros(1, np.intp)
            assert_allclose(together.apply(R, everything)[:, k : k + 1], alone.apply(R[:, k : k + 1], one), rtol=1e-12)
            assert_allclose(np.ravel(together.extremes(np.array([k]))), np.ravel(alone.extremes(one)), rtol=1e-12)
        F.close()

    def test_lost_rows(self):
        F, R = factor(), vectors()
        M_inverse = LowRank(F, np.full((1, M), 0.5))
        before = M_inverse.apply(R, everything)
        F.close()
        assert_allclose(M_inverse.apply(R, everything), before, rtol=1e-12)
        assert len(M_inverse.record.tasks) > 0
        F.close()


class TestGrow:
    def test_grows_until_the_capacity(self):
        A, R = positive_definite(200), vectors(200)
        F = factor(rank=20, capacity=40, A=A)
        M_inverse = LowRank(F, np.full((1, M), 0.5))
        assert M_inverse.grow() and M_inverse.rank == int(GROWTH * 20) + 1
        expected = dense_inverse(M_inverse, 0) @ R
        assert_allclose(M_inverse.apply(R, everything), expected, rtol=1e-10)
        assert M_inverse.can_grow and M_inverse.grow() and M_inverse.rank == 40
        assert not M_inverse.can_grow and not M_inverse.grow()
        assert M_inverse.rank == 40
        F.close()

    def test_from_nothing(self):
        F = factor(rank=0)
        M_inverse = LowRank(F, np.full((1, M), 0.5))
        assert M_inverse.rank == 0
        assert M_inverse.grow() and M_inverse.rank == 1
        F.close()

    def test_where_nothing_is_left(self):
        X = np.random.default_rng(0).integers(-3, 4, (N, 2)).astype(float)
        F = factor(A=X @ X.T, rank=9)
        assert F.rank == 2
        M_inverse = LowRank(F, np.full((1, M), 0.5))
        for _ in range(MAX_GROWTHS):
            assert not M_inverse.grow()
        assert not M_inverse.can_grow, "or conjugate gradient would ask for ever"
        F.close()

    def test_no_more_than_so_often(self):
        F = factor(rank=1, A=positive_definite(100))
        M_inverse = LowRank(F, np.full((1, M), 0.5))
        ranks = []
        while M_inverse.can_grow:
            assert M_inverse.grow()
            ranks.append(M_inverse.rank)
        assert len(ranks) == MAX_GROWTHS
        assert ranks == sorted(set(ranks))
        F.close()


def traces(*values, n=10**6):
    """A factor of which only the traces are known."""
    return SimpleNamespace(traces=list(values), trace_unit=1.0, rank=values[-1][0], columns=SimpleNamespace(n=n))


class TestEstimates:
    def test_iterations_grow_with_the_eigenvalue_and_the_digits(self):
        for values in (
            [expected_iterations(e, 1.0, 1e-6) for e in (0.0, 0.1, 1.0, 100.0)],
            [expected_iterations(1.0, s, 1e-6) for s in (10.0, 1.0, 0.1, 1e-9)],
            [expected_iterations(1.0, 1.0, tol) for tol in (1e-1, 1e-6, 1e-12)],
        ):
            assert all(a < b for a, b in itertools.pairwise(values))
        assert expected_iterations(1.0, 0.0, 1e-8) == np.inf
        assert expected_iterations(100.0, 1.0, 1e-8) == pytest.approx(
            10 * expected_iterations(0.01, 1.0, 1e-8), rel=0.01
        )

    def test_they_are_about_right(self):
        """For a matrix with the eigenvalues that the bound is made for."""
        from dkrr.solvers.conjugate_gradient import Iteration

        n = 400
        eigenvalues = 50 * (1 - np.cos(np.pi * (np.arange(n) + 0.5) / n))  # Chebyshev's points of 0 ... 100
        b = np.ones((n, 1))
        found = Iteration(MatrixOperator(np.diag(eigenvalues)), np.ones((1, 1)), b, tol=1e-8).run()
        assert 0.5 < found.iterations / expected_iterations(100.0, 1.0, 1e-8) < 2.0

    def test_next_eigenvalue(self):
        assert next_eigenvalue(traces((0, 10.0), (4, 2.0))) == 2.0
        assert next_eigenvalue(traces((0, 10.0), (4, 2.0), (6, 1.5))) == 0.25
        assert next_eigenvalue(traces((0, 10.0), (4, 2.0), (4, 2.0))) == 0.0
        assert next_eigenvalue(traces((0, 10.0), (4, 2.0), (5, 2.5))) == 0.0, "rounding is not an eigenvalue"


class TestPaysNoMore:
    def falling(self, rank, power=2.0, **settings):
        """Traces of eigenvalues that fall like a power of their number."""
        left = [(r, 1e4 * max(r, 1) ** (1.0 - power)) for r in range(0, rank + 1, 10)]
        return traces(*left, **settings)

    def first(self, shift=1e-4, iteration=1.0, pivot=1.0):
        """Rank at which it is enough."""
        enough = pivot_stopping_rule(shift, 1e-8, iteration, lambda rank: pivot)
        return next(rank for rank in range(20, 100_000, 10) if enough(self.falling(rank)))

    def test_dear_iterations_and_cheap_pivots_make_a_large_factor(self):
        assert self.first(iteration=0.1) < self.first() < self.first(iteration=10.0)
        assert self.first(pivot=10.0) < self.first() < self.first(pivot=0.1)
        assert self.first(shift=1.0) < self.first() < self.first(shift=1e-6)

    def test_dear_pivots_at_larger_ranks(self):
        enough = pivot_stopping_rule(1e-4, 1e-8, 1.0, lambda rank: rank / 100)
        first = next(rank for rank in range(20, 100_000, 10) if enough(self.falling(rank)))
        assert 20 < first < self.first(pivot=0.1)

    def test_not_before_something_is_known(self):
        enough = pivot_stopping_rule(1.0, 1e-8, 0.0, lambda rank: 1.0)
        assert not enough(traces((0, 1e6)))
        assert not enough(traces((0, 1e6), (32, 1e5)))

    def test_what_is_left_is_less_than_the_shift(self):
        enough = pivot_stopping_rule(1.0, 1e-8, 1e9, lambda rank: 0.0)
        assert enough(traces((0, 1e6), (32, 1e5), (64, 0.5)))
        assert not enough(traces((0, 1e6), (32, 1e5), (64, 2.0)))

    def test_a_round_that_added_nothing(self):
        enough = pivot_stopping_rule(1e-3, 1e-8, 1.0, lambda rank: 1.0)
        assert not enough(traces((0, 1e6), (32, 5.0), (32, 4.9)))

    def test_no_shift(self):
        """λ = 0: nothing that is left is small beside it."""
        enough = pivot_stopping_rule(0.0, 1e-8, 1.0, lambda rank: 1.0)
        assert not enough(traces((0, 1e6), (32, 5.0), (64, 4.0)))
        assert enough(traces((0, 1e6), (32, 5.0), (64, 0.0)))


def test_mean_of_what_a_factor_leaves():
    assert mean_left(np.array([0.0, 2.0, 0.0, 3.0]), 2) == 2.5
    assert mean_left(np.full(3, 1e308), 1) == pytest.approx(1.5e308), "although the sum of the diagonal overflows"
    assert mean_left(np.zeros(3), 3) == 0.0


def test_one_that_is_deferred_is_made_when_it_is_applied():
    made = []

    def make():
        made.append(Diagonal(np.full((3, 1), 2.0), np.zeros((3, 1))))
        return made[0]

    deferred = Deferred(make, captures_constant=True)
    assert deferred.rank == 0 and deferred.record.tasks == [] and not made
    for _ in range(2):
        assert_allclose(deferred.apply(np.ones((3, 1)), np.arange(1)), 0.5 * np.ones((3, 1)))
    assert len(made) == 1 and deferred.captures_constant and not deferred.can_grow and not deferred.grow()
