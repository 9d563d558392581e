"""Partial factors as preconditioners: bounds of eigenvalues, lost digits, growth, sets of rows left out."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from dkrr.linalg.fold_preconditioner import FoldLowRank, shared
from dkrr.linalg.low_rank import GROWTH, LOW_PRECISION_RATIO, MAX_GROWTHS, LowRank, mean_left
from dkrr.linalg.pivoted_cholesky import expected_iterations, next_eigenvalue, pivot_stopping_rule
from dkrr.linalg.preconditioner import Deferred, Identity
from dkrr.linalg.training_sets import TrainingSetOperator, TrainingSets
from dkrr.solvers.conjugate_gradient import Iteration
from tests import systems
from tests.systems import MatrixOperator, partial_factor, positive_definite, random, rows_of

one_blas_thread = systems.one_blas_thread

N, M = 29, 3
everything = np.arange(M)


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("shift", [0.0, 1e-30, 1e-1, 10.0])
def test_eigenvalues_are_within_the_bounds_however_small_the_shift(shift, scaled):
    A = positive_definite(N) + 0.1 * np.eye(N)
    c = np.random.default_rng(3).uniform(0.5, 2.0, N) if scaled else np.ones(N)
    F = partial_factor(A, 9)
    M_inverse = LowRank(F, np.full((1, N), shift), c if scaled else None)
    B = c[:, None] * A * c
    E = B - c[:, None] * (rows_of(F) @ rows_of(F).T) * c
    values = np.linalg.eigvals(M_inverse.apply(B + shift * np.eye(N), np.arange(N))).real
    t, smallest = M_inverse.shifts(np.array([0])), np.linalg.eigvalsh(B)[0]
    assert t.min() >= shift and t.max() <= max(shift, np.trace(E) / (N - 9)) * (1 + 1e-12)
    assert values.max() <= 1.0 + np.linalg.eigvalsh(E)[-1] / t.min() + 1e-9
    assert values.min() >= min(0.5, (shift + smallest / 2) / t.max()) - 1e-9


def test_what_is_left_of_light_rows_does_not_hide_that_of_heavy_ones():
    A, c = positive_definite(N), np.logspace(-5, 5, N)
    M_inverse = LowRank(partial_factor(A, 9, importance=c**2), np.full((1, N), 1e-12), c)
    B = c[:, None] * A * c + 1e-12 * np.eye(N)
    values = np.linalg.eigvals(M_inverse.apply(B, np.arange(N))).real
    assert values.max() / values.min() < 1e4 < 1e-10 * np.linalg.cond(B)


def test_samples_and_log_determinant_are_those_of_the_matrix():
    F, scale = partial_factor(positive_definite(N), 9), np.linspace(0.5, 2.0, N)
    M_inverse = LowRank(F, np.full((1, 1), 0.3), scale)
    matrix = np.linalg.inv(M_inverse.apply(np.eye(N), np.zeros(N, np.intp)))
    assert M_inverse.log_determinant() == pytest.approx(np.linalg.slogdet(matrix)[1], rel=1e-10)
    samples = M_inverse.sample(20_000, np.random.default_rng(0))
    assert np.abs(samples @ samples.T / 20_000 - matrix).max() < 0.05 * np.abs(matrix).max()


def test_the_shift_is_raised_where_rounding_takes_its_digits():
    A, R = np.ones((N, N)) + np.diag(np.logspace(-12, -10, N)), random(N, M)
    F = partial_factor(A, N)
    inexact = LowRank(F, np.full((1, M), 1e-30), lift=1e-6)
    assert inexact.raise_shift_if_inexact(R, everything), "t is below the rounding of the large eigenvalue"
    assert not all(inexact.raise_shift_if_inexact(R, everything) for _ in range(4)), "until it is exact"
    low, t = rows_of(F) @ rows_of(F).T, inexact.shifts(everything)
    expected = np.column_stack([np.linalg.solve(low + t[0, k % t.shape[1]] * np.eye(N), R[:, k]) for k in range(M)])
    assert np.abs(inexact.apply(R, everything) - expected).max() < 0.2 * np.abs(expected).max()
    sound = LowRank(F, np.full((1, M), 0.1))
    assert not sound.raise_shift_if_inexact(R, everything) and sound.lift == 1.0


def test_products_are_in_float32_where_the_factor_is_and_the_shift_is_not_lost():
    A, R = np.ones((N, N)) + np.diag(np.logspace(-9, -6, N)), random(N, M)
    for dtype, shift, expected in ((np.float32, 1.0, "float32"), (np.float64, 1.0, "float64"),
                                   (np.float32, N / LOW_PRECISION_RATIO / 3, "float64")):  # fmt: skip
        F = partial_factor(A, 9, dtype=dtype)
        assert LowRank(F, np.full((1, M), shift)).precision == "float64"
        M_inverse = LowRank(F, np.full((1, M), shift), mixed=True)
        assert M_inverse.precision == expected
        found = M_inverse.apply(R, everything)
        assert_allclose(rows_of(F) @ (rows_of(F).T @ found) + shift * found, R, atol=2e-5 * np.abs(R).max())
    inexact = LowRank(F, np.full((1, M), 1e-9), mixed=True)
    inexact.precision = "float32"  # it has lost its digits: float64 first, then a higher shift
    assert inexact.raise_shift_if_inexact(R, everything)
    assert (inexact.precision, inexact.lift) == ("float64", 1.0)
    assert not inexact.raise_shift_if_inexact(R, everything)


def test_a_factor_grows_to_its_capacity_so_many_times():
    A, R = positive_definite(200), random(200, M)
    M_inverse = LowRank(partial_factor(A, 20, capacity=40), np.full((1, M), 0.5))
    assert M_inverse.grow() and M_inverse.rank == int(GROWTH * 20) + 1
    grown = LowRank(M_inverse.factor, np.full((1, M), 0.5))
    assert_allclose(M_inverse.apply(R, everything), grown.apply(R, everything), rtol=1e-10)
    assert M_inverse.grow() and M_inverse.rank == 40 and not M_inverse.can_grow
    empty = LowRank(partial_factor(A, 0), np.full((1, M), 0.5))
    assert empty.grow() and empty.rank == 1
    X = np.random.default_rng(0).integers(-3, 4, (N, 2)).astype(float)
    full = LowRank(partial_factor(X @ X.T, 9), np.full((1, M), 0.5))
    assert [full.grow() for _ in range(MAX_GROWTHS)] == [False] * MAX_GROWTHS
    assert full.rank == 2 and not full.can_grow, "or conjugate gradient would ask for ever"
    small = LowRank(partial_factor(A, 1), np.full((1, M), 0.5))
    assert all(small.grow() for _ in range(MAX_GROWTHS)) and not small.can_grow


def traces(*values, n=10**6):
    """A factor of which only the traces are known."""
    return SimpleNamespace(traces=list(values), trace_unit=1.0, rank=values[-1][0], columns=SimpleNamespace(n=n))


def test_expected_iterations_grow_with_the_eigenvalue_and_the_digits():
    for values in (
        [expected_iterations(e, 1.0, 1e-6) for e in (0.0, 0.1, 1.0, 100.0)],
        [expected_iterations(1.0, s, 1e-6) for s in (10.0, 1.0, 0.1, 1e-9)],
        [expected_iterations(1.0, 1.0, tol) for tol in (1e-1, 1e-6, 1e-12)],
    ):
        assert all(a < b for a, b in itertools.pairwise(values))
    assert expected_iterations(1.0, 0.0, 1e-8) == np.inf
    assert expected_iterations(100.0, 1.0, 1e-8) == pytest.approx(10 * expected_iterations(0.01, 1.0, 1e-8), rel=0.01)
    n = 400  # of a matrix with the eigenvalues that the bound is made for
    eigenvalues = 50 * (1 - np.cos(np.pi * (np.arange(n) + 0.5) / n))  # Chebyshev's points of 0 ... 100
    found = Iteration(MatrixOperator(np.diag(eigenvalues)), np.ones((1, 1)), np.ones((n, 1)), tol=1e-8).run()
    assert 0.5 < found.iterations / expected_iterations(100.0, 1.0, 1e-8) < 2.0


def test_the_next_eigenvalue_and_the_mean_are_what_a_factor_leaves():
    assert next_eigenvalue(traces((0, 10.0), (4, 2.0))) == 2.0
    assert next_eigenvalue(traces((0, 10.0), (4, 2.0), (6, 1.5))) == 0.25
    assert next_eigenvalue(traces((0, 10.0), (4, 2.0), (4, 2.0))) == 0.0
    assert next_eigenvalue(traces((0, 10.0), (4, 2.0), (5, 2.5))) == 0.0, "rounding is not an eigenvalue"
    assert mean_left(np.array([0.0, 2.0, 0.0, 3.0]), 2) == 2.5
    assert mean_left(np.full(3, 1e308), 1) == pytest.approx(1.5e308), "although the sum of the diagonal overflows"
    assert mean_left(np.zeros(3), 3) == 0.0


def first_rank(shift=1e-4, iteration=1.0, pivot=lambda rank: 1.0):
    """Rank at which it is enough, of eigenvalues that fall like the square of their number."""
    enough = pivot_stopping_rule(shift, 1e-8, iteration, pivot)
    left = [(r, 1e4 / max(r, 1)) for r in range(0, 100_000, 10)]
    return next(rank for rank in range(20, 100_000, 10) if enough(traces(*left[: rank // 10 + 1])))


def test_dear_iterations_and_cheap_pivots_make_a_large_factor():
    assert first_rank(iteration=0.1) < first_rank() < first_rank(iteration=10.0)
    assert first_rank(pivot=lambda rank: 10.0) < first_rank() < first_rank(pivot=lambda rank: 0.1)
    assert first_rank(shift=1.0) < first_rank() < first_rank(shift=1e-6)
    assert 20 < first_rank(pivot=lambda rank: rank / 100) < first_rank(pivot=lambda rank: 0.1)


@pytest.mark.parametrize(
    ("shift", "iteration", "pivot", "left", "is_enough"),
    [
        (1.0, 0.0, 1.0, [(0, 1e6), (32, 1e5)], False),  # nothing is known yet
        (1.0, 1e9, 0.0, [(0, 1e6), (32, 1e5), (64, 0.5)], True),  # less than the shift is left
        (1.0, 1e9, 0.0, [(0, 1e6), (32, 1e5), (64, 2.0)], False),
        (1e-3, 1.0, 1.0, [(0, 1e6), (32, 5.0), (32, 4.9)], False),  # a round that added nothing
        (0.0, 1.0, 1.0, [(0, 1e6), (32, 5.0), (64, 4.0)], False),  # nothing is small beside λ = 0
        (0.0, 1.0, 1.0, [(0, 1e6), (32, 5.0), (64, 0.0)], True),
    ],
)
def test_pivots_are_enough_where_more_would_not_pay(shift, iteration, pivot, left, is_enough):
    assert pivot_stopping_rule(shift, 1e-8, iteration, lambda rank: pivot)(traces(*left)) == is_enough


def test_a_deferred_preconditioner_is_made_once_when_it_is_applied():
    made = []
    deferred = Deferred(lambda: made.append(Identity()) or made[0], captures_constant=True)
    assert deferred.rank == 0 and deferred.record.tasks == [] and deferred.captures_constant and not made
    for _ in range(2):
        deferred.apply(np.ones((3, 1)), np.arange(1))
    assert len(made) == 1


def sets_of(n=41):
    masks = np.stack([np.arange(n) % 3 != 0, np.arange(n) > 9, np.ones(n, bool), np.arange(n) < 4], axis=1)
    return TrainingSets(masks.astype(float), np.array([0, 1, 2, 3, 0, 1]))


def test_the_first_pivots_of_a_set_suffice_for_large_shifts():
    A, sets = positive_definite(41), sets_of()
    factor, shift, c = partial_factor(A, 35), np.array([1e-3, 1e2, 1e4]), sets.scales[:, 0]
    R = random(41, 3) * c[:, None]
    found = FoldLowRank(factor, TrainingSets(sets.scales, np.zeros(3, int)), shift).apply(R, np.arange(3))
    ranks = []
    for j, t in enumerate(np.maximum(shift, (c**2 * factor.left).sum() / (41 - np.count_nonzero(c[factor.index])))):
        for rank in range(36):
            pivots = factor.index[:rank][c[factor.index[:rank]] > 0]
            low = A[:, pivots] @ np.linalg.solve(A[np.ix_(pivots, pivots)], A[pivots])
            expected = np.linalg.solve(c[:, None] * low * c + t * np.eye(41), R[:, j])
            if np.allclose(expected, found[:, j], rtol=1e-8, atol=1e-14):
                ranks.append(rank)
                break
    assert len(ranks) == 3 and ranks[0] == 35 > ranks[2], "each t has the factor of its first pivots"


def test_close_shifts_share_the_smallest_and_columns_keep_their_own():
    assert_allclose(shared(np.array([3.0, 1.0, 100.0, 4.0, 4.1, 20.0, 0.0])), [1.0, 1.0, 100.0, 1.0, 4.1, 20.0, 0.0])
    sets, shift, R = sets_of(), np.array([0.5, 50.0, 80.0, 90.0, 700.0, 600.0]), random(41, 6)
    whole = FoldLowRank(partial_factor(positive_definite(41), 25), sets, shift)
    again = whole.for_columns(TrainingSets(sets.scales, sets.of_column[:2]), shift[:2])
    assert_allclose(again.apply(R[:, :2], np.arange(2)), whole.apply(R, np.arange(6))[:, :2])


def test_products_of_sets_in_float32_raise_small_shifts_or_are_given_up():
    """A shift may be lost beside the largest eigenvalue: up to twice as large a one is taken, else float64."""
    A, sets, shift = positive_definite(41), sets_of(), np.full(6, 3.0)
    low = FoldLowRank(partial_factor(A, 20, dtype=np.float32), sets, shift, mixed=True)
    high = FoldLowRank(partial_factor(A, 20), sets, shift)
    R = random(41, 6) * (sets.scale() > 0)
    assert low.precision == "float32" and high.precision == "float64"
    assert_allclose(low.apply(R, np.arange(6)), high.apply(R, np.arange(6)), rtol=1e-3, atol=1e-4)
    assert low.raise_shift_if_inexact(R, np.arange(6)) and low.precision == "float64"
    assert not low.raise_shift_if_inexact(R, np.arange(6))
    factor, largest = partial_factor(A, 41, dtype=np.float32), float(np.linalg.eigvalsh(A).max())
    for part, precision in ((0.7, "float32"), (0.3, "float64")):
        shift = np.full(6, part * largest / LOW_PRECISION_RATIO)
        assert FoldLowRank(factor, sets, shift, mixed=True).precision == precision


def test_sets_with_pivots_of_their_own_need_few_iterations():
    """Pivots that are left out would cost more iterations than there are eigenvalues left."""
    X = random(300, 4)
    A = np.exp(-0.3 * np.abs(X[:, None] - X).sum(axis=2))
    masks = np.stack([np.arange(300) % 5 != k for k in range(5)], axis=1).astype(float)
    sets = TrainingSets(masks, np.arange(5))
    own, operator = FoldLowRank(partial_factor(A, 100), sets, np.full(5, 1e-3)), MatrixOperator(A)
    B = random(300, 1, seed=1) * masks
    found = Iteration(TrainingSetOperator(operator, sets), np.full((1, 5), 1e-3), B, own, tol=1e-3, max_iter=999).run()
    assert found.iterations < 60


def test_predictions_of_rows_left_out_come_from_the_last_product():
    A, sets, X = positive_definite(41), sets_of(), random(41, 6, seed=2)
    operator = TrainingSetOperator(counted := MatrixOperator(A), sets)
    operator.multiply(X)
    assert_allclose(operator.unmasked(X), A @ (sets.scale() * X))
    assert len(counted.products) == 1
    X[:, 3] += 1.0
    assert_allclose(operator.unmasked(X), A @ (sets.scale() * X))
    operator.multiply(X[:, :2], "float32", np.arange(2))
    assert_allclose(operator.unmasked(X), A @ (sets.scale() * X))
    assert [m for _, m in counted.products] == [6, 1, 2]
