"""Partial Cholesky with pivots against one column after the other, what is kept of it, and what it preconditions."""

import itertools
import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from dkrr.cluster import SerialExecutor, resident
from dkrr.data import MemoryRows
from dkrr.kernels import RBF, Linear
from dkrr.linalg import factor_rows, fold_preconditioner, pivoted_cholesky
from dkrr.linalg.column_sources import GramColumns
from dkrr.linalg.conjugate_gradient import Iteration
from dkrr.linalg.fold_preconditioner import SQUARES_OF_SET, FoldLowRank, shared, squares_of_sets
from dkrr.linalg.pivoted_cholesky import MIN_BLOCK, LostRowsError, choose_pivots, expected_iterations, next_eigenvalue
from dkrr.linalg.preconditioners import GROWTH, LOW_PRECISION_RATIO, MAX_GROWTHS, LowRank, mean_residual_eigenvalue
from dkrr.linalg.training_sets import TrainingSetOperator, TrainingSets
from tests import systems
from tests.oracles import assert_close, naive_partial_cholesky
from tests.systems import MatrixOperator, partial_factor, positive_definite, random, rows_of

one_blas_thread = systems.one_blas_thread

both_dtypes = pytest.mark.parametrize("dtype", [np.float64, np.float32])


def of_kernel(kernel, X, rank, **settings):
    return partial_factor(GramColumns(kernel, MemoryRows(X)), rank, **settings)


def check(found, A, accuracy=1e-10):
    """Everything that holds for every partial factor of A."""
    F, size = rows_of(found), A.diagonal().max()
    assert F.shape == (len(A), found.rank)
    assert len(set(found.index.tolist())) == found.rank, "a pivot is taken once"
    assert_allclose(F, naive_partial_cholesky(A, found.index), atol=accuracy * np.sqrt(size))
    left = A - F @ F.T
    assert_allclose(left[:, found.index], 0.0, atol=accuracy * size)
    assert_allclose(found.residual_diagonal, left.diagonal(), atol=accuracy * size)
    importance = np.ones(len(A)) if found.importance is None else found.importance
    assert found.traces[-1][0] == found.rank
    trace = found.traces[-1][1] * found.trace_unit
    assert trace == pytest.approx(left.diagonal() @ importance, abs=accuracy * size * len(A))
    assert found.traces[0] == (0, pytest.approx(A.diagonal() @ importance / found.trace_unit))
    V, U = random(len(A), 2, seed=5), random(found.rank, 3, seed=6)
    v = np.random.default_rng(7).uniform(0.5, 2.0, len(A))
    assert_allclose(found.project(V), F.T @ V, atol=1e-11 * size)
    assert_allclose(found.expand(U), F @ U, atol=1e-11 * size)
    assert_allclose(A[:, found.index] @ found.of_pivots(U.copy()), F @ U, atol=10 * accuracy * size)
    for weights in (v, np.where(np.arange(len(A)) < len(A) / 3, v, 0.0)):  # of rows that may all be in one place
        assert_allclose(np.tril(found.gram(weights)), np.tril((F.T * weights) @ F), rtol=1e-10, atol=1e-11 * size)


@given(
    n=st.integers(1, 40),
    ranks=st.lists(st.integers(1, 45), min_size=1, max_size=3),
    slots=st.integers(1, 5),
    strip=st.sampled_from([64, 10**6]),
    weighted=st.booleans(),
    size=st.sampled_from([1.0, 1e-100]),
    seed=st.integers(0, 9),
)
def test_a_factor_grown_in_rounds_is_that_of_its_pivots(n, ranks, slots, strip, weighted, size, seed):
    A = size * positive_definite(n, seed)
    importance = np.random.default_rng(seed).uniform(0.5, 2.0, n) if weighted else None
    found = partial_factor(A, 0, slots, importance=importance, seed=seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(factor_rows, "FACTOR_STRIP_ENTRIES", strip)
        for rank in np.maximum.accumulate(ranks):
            found.grow(rank)
            assert found.rank == min(rank, n)
            check(found, A)
    left = [t for _, t in found.traces]
    assert left == sorted(left, reverse=True)
    if found.rank == n:
        assert_allclose(rows_of(found) @ rows_of(found).T, A, atol=1e-12)
    found.close()
    assert found.run not in resident._runs


class OtherProcesses:
    """Does what an executor in this process does, and is none."""

    def __init__(self):
        self._inner, self.places = SerialExecutor(), []

    def map(self, tasks, shared):
        return self._inner.map(tasks, shared)

    def total(self, tasks, shared):
        self.places.append([task.place for task in tasks])
        return self._inner.total(tasks, shared)

    def forget(self, run):
        self._inner.forget(run)


def test_rows_in_one_place_are_summed_by_all_threads_but_by_one_worker():
    A, weights = positive_definite(40), np.where(np.arange(40) < 10, 1.0, 0.0)
    found = partial_factor(A, 9, slots=4)
    assert len(found._gram_tasks(weights)) == 4
    found.executor = workers = OtherProcesses()
    F = rows_of(found)
    assert_allclose(np.tril(found.gram(weights)), np.tril(F[:10].T @ F[:10]), atol=1e-12)
    assert workers.places[-1] == [0], "a second task might go to a worker without these rows"


def test_a_factor_stops_at_its_capacity_or_where_it_is_enough():
    A, seen = positive_definite(4 * MIN_BLOCK), []
    assert partial_factor(A, 30, capacity=7).rank == 7
    found = partial_factor(A, 0)
    found.grow(4 * MIN_BLOCK, lambda factor: seen.append(factor.rank) or len(seen) == 2)
    assert len(seen) == 2 and 0 < seen[0] <= MIN_BLOCK < seen[1] <= 2 * MIN_BLOCK, "asked after every round"
    check(found, A)


@both_dtypes
def test_products_in_float32_take_vectors_outside_its_range(monkeypatch, dtype):
    """Of a factor that is stored so, in strips; sums of few rows each are added in float64."""
    for name, value in (
        ("FLOAT32_STRIP_ENTRIES", 64),
        ("FACTOR_STRIP_ENTRIES", 64),
        ("GRAM_ROWS", 16),
        ("GRAM_COLUMNS", 3),
        ("HEAD_COLUMNS", 2),
    ):
        monkeypatch.setattr(factor_rows, name, value)
    A, v = positive_definite(150), np.random.default_rng(7).random(150)
    found = partial_factor(A, 8, dtype=dtype)
    check(found, A, 1e-10 if dtype == np.float64 else 1e-5)
    F = rows_of(found)
    for size in (1e-60, 1.0, 1e60):
        V, U = random(150, 2, seed=5) * [1.0, size], random(8, 3, seed=6) * size
        for product, left, right in (
            (found.project(V, "float32"), F.T, V),
            (found.expand(U, "float32"), F, U),
            (found.gram(size * v, "float32"), F.T * v * size, F),
        ):
            lower = np.tri(*product.shape, dtype=bool) | (right is not F)
            exact, bound = left @ right, np.abs(left) @ np.abs(right)
            assert product.dtype == np.float64
            error = (np.abs(product - exact) / bound)[lower].max()
            assert error < 3e-15 if dtype == np.float64 else 1e-9 < error < 1e-6


@pytest.mark.parametrize("fraction", [0.0, 1.0])
def test_columns_may_be_added_in_float32_from_the_first_or_the_last_on(monkeypatch, fraction):
    monkeypatch.setattr(pivoted_cholesky, "FLOAT32_TRACE_FRACTION", fraction)
    A = positive_definite(150)
    check(partial_factor(A, 40, dtype=np.float32), A, 1e-5)


def test_what_float32_cannot_tell_from_nothing_is_not_taken():
    A = RBF(gamma=0.1)(random(90, 2))
    found = partial_factor(A, 90, dtype=np.float32)
    assert found.rank < 90
    assert_allclose(rows_of(found) @ rows_of(found).T, A, atol=3e-5)
    assert found.traces[-1][1] < 1e-3


def test_pivots_are_drawn_from_what_is_left_by_importance():
    """Pairs of first pivots: as often as for one pivot at a time, though a block is proposed at once."""
    # The first takes most of the second with it, and the third of the fourth.
    A = np.array([[4.0, 3.6, 0.0, 0.1], [3.6, 4.0, 0.1, 0.0], [0.0, 0.1, 2.0, 1.2], [0.1, 0.0, 1.2, 1.0]])
    importance, n, counts, expected = np.array([1.0, 0.5, 2.0, 1.5]), 1500, np.zeros((4, 4)), np.zeros((4, 4))
    for i, j in itertools.permutations(range(4), 2):
        left = (A.diagonal() - A[i] ** 2 / A[i, i]) * importance
        left[i] = 0.0
        expected[i, j] = A[i, i] * importance[i] / (A.diagonal() @ importance) * left[j] / left.sum()
    for seed in range(n):
        counts[tuple(partial_factor(A, 2, importance=importance, seed=seed).index)] += 1
    assert (np.abs(counts - n * expected) <= 4 * np.sqrt(n * expected * (1 - expected))).all()


def test_pivots_are_drawn_by_the_seed_and_never_without_importance():
    one, again, other = (partial_factor(positive_definite(47), 10, seed=seed).index.tolist() for seed in (1, 1, 2))
    assert one == again != other
    found = partial_factor(positive_definite(47), 47, importance=np.arange(47) % 9.0)
    assert sorted(found.index) == [k for k in range(47) if k % 9]


@both_dtypes
def test_a_factor_has_no_higher_rank_than_the_matrix(dtype):
    X = random(90, 3)
    found = of_kernel(Linear(), X, 20, dtype=dtype)
    found.grow(40)
    assert found.rank == 3
    assert_allclose(rows_of(found) @ rows_of(found).T, X @ X.T, atol=1e-5 if dtype == np.float32 else 1e-12)


def everything(found):
    resident.forget(found.run)


def between_the_rounds(found):
    """A part is lost, another has its new columns already when the round is begun again."""
    map_, lost = found.executor.map, []

    def losing(tasks, shared):
        if tasks[0].function is pivoted_cholesky.extend_rows and not lost:
            map_(tasks[:1], shared)
            lost.append(resident._runs[found.run].objects.pop(("factor", 2)))
        return map_(tasks, shared)

    found.executor.map = losing


def rounds_run_twice(found):
    map_ = found.executor.map
    found.executor.map = lambda tasks, shared: (map_(tasks, shared), map_(tasks, shared))[1]


def everything_again_and_again(found, times=2):
    total, left = found.executor.total, [True] * times
    found.executor.total = lambda tasks, shared: (left and left.pop() and everything(found), total(tasks, shared))[1]


@pytest.mark.parametrize(
    ("use", "argument"),
    [("project", np.ones((47, 2))), ("expand", np.ones((9, 2))), ("gram", np.ones(47)), ("grow", 20)],
)
@pytest.mark.parametrize("lose", [everything, between_the_rounds, rounds_run_twice, everything_again_and_again])
def test_rows_that_are_lost_are_computed_again(lose, use, argument):
    A = positive_definite(47)
    found = partial_factor(A, 9, 3)
    before = rows_of(found)
    lose(found)
    getattr(found, use)(argument)
    assert found.rank == (20 if use == "grow" else 9)
    assert_allclose(rows_of(found)[:, :9], before, atol=1e-12)
    check(found, A)


def test_rows_that_are_always_lost_are_an_error():
    found = partial_factor(positive_definite(47), 9, 3)
    everything_again_and_again(found, 10**6)
    with pytest.raises(LostRowsError):
        found.project(np.ones((47, 1)))


@both_dtypes
@pytest.mark.parametrize("weighted", [False, True])
def test_a_factor_is_restored_from_its_pivots(dtype, weighted):
    X, importance = random(60, 3), np.linspace(0.5, 2.0, 60) if weighted else None
    settings = {"dtype": dtype, "importance": importance}
    first, second = (of_kernel(RBF(gamma=0.4), X, rank, slots=3 - bool(rank), **settings) for rank in (15, 0))
    second.restore(first.index)
    assert_array_equal(second.index, first.index)
    assert not second.residual_diagonal[second.index].any()
    assert_allclose(rows_of(second), rows_of(first), atol=1e-9 if dtype == np.float64 else 1e-4)
    assert second.traces[-1] == (15, pytest.approx(first.traces[-1][1], rel=1e-6 if dtype == np.float64 else 1e-2))
    second.grow(25)
    assert second.rank == 25
    check(second, RBF(gamma=0.4)(X), 1e-8 if dtype == np.float64 else 1e-4)
    assert all(t.value is None for t in second.record.tasks), "a record must not hold a column"


def test_pivots_that_rounding_made_dependent_leave_no_factor_and_it_can_grow():
    X = random(20, 3)
    X[:2] = [1.0, 2.0, 2.0]  # of length 3: nothing at all is left of the second
    found = of_kernel(Linear(), X, 0)
    found.restore(np.array([0, 1, 2]))
    assert found.rank == 0
    found.grow(3)
    check(found, X @ X.T)


def test_rows_chosen_as_pivots_are_those_of_the_factor_and_nothing_stays_in_memory(monkeypatch):
    X, before = random(50, 3), dict(resident._runs)
    expected = of_kernel(RBF(gamma=1 / 3), X, 8, seed=6)
    assert_array_equal(choose_pivots(RBF(), MemoryRows(X), 8, "rpcholesky", 6), expected.index)
    expected.close()
    assert len(choose_pivots(Linear(), MemoryRows(X), 9, "rpcholesky", 0)) == 3
    assert choose_pivots(RBF(), MemoryRows(X), 99, "uniform", 0).tolist() == list(range(50))
    monkeypatch.setattr(pivoted_cholesky, "MIN_CANDIDATES", 20)
    monkeypatch.setattr(pivoted_cholesky, "CANDIDATES_TO_RANK", 2)
    found = choose_pivots(RBF(), MemoryRows(random(500, 3)), 12, "rpcholesky", 1)
    assert len(set(found.tolist())) == 12 and found.max() > 24, "of a sample of all rows"
    assert resident._runs == before


# Preconditioners -------------------------------------------------------------------------------------------------

N, M = 29, 3
all_columns = np.arange(M)


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
    assert inexact.raise_shift_if_inexact(R, all_columns), "t is below the rounding of the large eigenvalue"
    assert not all(inexact.raise_shift_if_inexact(R, all_columns) for _ in range(4)), "until it is exact"
    matrix = rows_of(F) @ rows_of(F).T + inexact.shifts(all_columns)[0, 0] * np.eye(N)
    expected = np.linalg.solve(matrix, R)
    assert np.abs(inexact.apply(R, all_columns) - expected).max() < 0.2 * np.abs(expected).max()
    sound = LowRank(F, np.full((1, M), 0.1))
    assert not sound.raise_shift_if_inexact(R, all_columns) and sound.lift == 1.0


@pytest.mark.parametrize(
    ("dtype", "shift", "n_first", "precision"),
    [
        (np.float32, 1.0, 0, "float32"),
        (np.float64, 1.0, 0, "float64"),
        (np.float32, N / LOW_PRECISION_RATIO / 3, 0, "float64"),
        (np.float32, N / LOW_PRECISION_RATIO / 3, 1, "float32"),  # the others have hardly any of the large eigenvalue
    ],
)
def test_products_are_in_float32_where_the_factor_is_and_the_shift_is_not_lost(
    monkeypatch, dtype, shift, n_first, precision
):
    monkeypatch.setattr(factor_rows, "HEAD_COLUMNS", n_first)
    R = random(N, M)
    F = partial_factor(np.ones((N, N)) + np.diag(np.logspace(-9, -6, N)), 9, dtype=dtype)
    assert LowRank(F, np.full((1, M), shift)).precision == "float64"
    M_inverse = LowRank(F, np.full((1, M), shift), mixed=True)
    found = M_inverse.apply(R, all_columns)
    assert M_inverse.precision == precision
    # What is rounded along small eigenvalues counts by the largest one over the shift, 3e6 here.
    atol = (2e-3 if n_first else 2e-5) * np.abs(R).max()
    assert_allclose(rows_of(F) @ (rows_of(F).T @ found) + shift * found, R, atol=atol)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_a_factor_leaves_is_as_small_as_its_largest_eigenvalues_permit(dtype):
    """Were its first columns in float32, it would leave −6e-8 of the largest one, and a small shift would be lost."""
    n = 600
    X = np.random.default_rng(0).uniform(0, 1, (n, 2))
    A = RBF(gamma=0.1)(X, X)
    left = A - (F := rows_of(partial_factor(A, 200, dtype=dtype))) @ F.T
    assert np.abs(np.linalg.eigvalsh(left)).max() < 1e-11 * n
    B, shift = random(n, 1), np.full((1, 1), 1e-9)
    operator, by = MatrixOperator(A), LowRank(partial_factor(A, 200, dtype=dtype), shift)
    assert Iteration(operator, shift, A @ B, by, tol=1e-6).run().iterations <= 20


def test_products_that_have_lost_their_digits_are_in_float64_before_the_shift_is_raised(monkeypatch):
    monkeypatch.setattr(factor_rows, "HEAD_COLUMNS", 0)
    F = partial_factor(np.ones((N, N)) + np.diag(np.logspace(-9, -6, N)), 9, dtype=np.float32)
    inexact, R = LowRank(F, np.full((1, M), 1e-9), mixed=True), random(N, M)
    inexact.precision = "float32"
    assert inexact.raise_shift_if_inexact(R, all_columns)
    assert (inexact.precision, inexact.lift) == ("float64", 1.0)
    assert not inexact.raise_shift_if_inexact(R, all_columns)


def test_a_factor_grows_to_its_capacity_so_many_times():
    A, R = positive_definite(200), random(200, M)
    M_inverse = LowRank(partial_factor(A, 20, capacity=40), np.full((1, M), 0.5))
    assert M_inverse.grow() and M_inverse.rank == int(GROWTH * 20) + 1
    grown = LowRank(M_inverse.factor, np.full((1, M), 0.5))
    assert_close(M_inverse.apply(R, all_columns), grown.apply(R, all_columns), 1e-12)
    assert M_inverse.grow() and M_inverse.rank == 40 and not M_inverse.can_grow
    X = np.random.default_rng(0).integers(-3, 4, (N, 2)).astype(float)
    full = LowRank(partial_factor(X @ X.T, 9), np.full((1, M), 0.5))
    assert [full.grow() for _ in range(MAX_GROWTHS)] == [False] * MAX_GROWTHS
    assert full.rank == 2 and not full.can_grow, "or conjugate gradient would ask for ever"


def traces(*values, n=10**6):
    """A factor of which only the traces are known."""
    return SimpleNamespace(traces=list(values), trace_unit=1.0, rank=values[-1][0], columns=SimpleNamespace(n=n))


def test_expected_iterations_are_those_of_the_bound():
    assert expected_iterations(1.0, 0.0, 1e-8) == np.inf
    assert expected_iterations(100.0, 1.0, 1e-8) == pytest.approx(10 * expected_iterations(0.01, 1.0, 1e-8), rel=0.01)
    n = 400  # of a matrix with the eigenvalues that the bound is made for
    eigenvalues = 50 * (1 - np.cos(np.pi * (np.arange(n) + 0.5) / n))  # Chebyshev's points of 0 ... 100
    for tol in (1e-2, 1e-8):
        found = Iteration(MatrixOperator(np.diag(eigenvalues)), np.ones((1, 1)), np.ones((n, 1)), tol=tol).run()
        assert 0.5 < found.iterations / expected_iterations(100.0, 1.0, tol) < 2.0


def test_the_next_eigenvalue_and_the_mean_are_what_a_factor_leaves():
    assert next_eigenvalue(traces((0, 10.0), (4, 2.0))) == 2.0
    assert next_eigenvalue(traces((0, 10.0), (4, 2.0), (6, 1.5))) == 0.25
    assert next_eigenvalue(traces((0, 10.0), (4, 2.0), (4, 2.0))) == 0.0
    assert next_eigenvalue(traces((0, 10.0), (4, 2.0), (5, 2.5))) == 0.0, "rounding is not an eigenvalue"
    assert mean_residual_eigenvalue(np.array([0.0, 2.0, 0.0, 3.0]), 2) == 2.5
    assert mean_residual_eigenvalue(np.full(3, 1e308), 1) == pytest.approx(1.5e308), (
        "although the sum of the diagonal overflows"
    )
    assert mean_residual_eigenvalue(np.zeros(3), 3) == 0.0


@pytest.mark.parametrize(
    ("shift", "iteration", "pivot", "left", "is_enough"),
    [
        (1.0, 0.0, 1.0, [(0, 1e6), (32, 1e5)], False),  # nothing is known yet
        (1.0, 1e9, 0.0, [(0, 1e6), (32, 1e5), (64, 0.5)], True),  # less than the shift is left
        (1.0, 1e9, 0.0, [(0, 1e6), (32, 1e5), (64, 2.0)], False),
        (1e-3, 1.0, 1.0, [(0, 1e6), (32, 5.0), (32, 4.9)], False),  # a round that added nothing
        (0.0, 1.0, 1.0, [(0, 1e6), (32, 5.0), (64, 4.0)], False),  # nothing is small beside λ = 0
        (0.0, 1.0, 1.0, [(0, 1e6), (32, 5.0), (64, 0.0)], True),
        (1e-4, 1e6, 1.0, [(0, 1e6), (32, 5.0), (64, 4.0)], False),  # dear iterations
        (1e-4, 1.0, 1e6, [(0, 1e6), (32, 5.0), (64, 4.0)], True),  # dear pivots
    ],
)
def test_pivots_are_enough_where_more_would_not_pay(shift, iteration, pivot, left, is_enough):
    assert pivoted_cholesky.pivot_stopping_rule(shift, 1e-8, iteration, lambda rank: pivot)(traces(*left)) == is_enough


SETS = TrainingSets(
    np.stack([np.arange(41) % 3 != 0, np.arange(41) > 9, np.ones(41, bool), np.arange(41) < 4], axis=1).astype(float),
    np.array([0, 1, 2, 3, 0, 1]),
)


def test_the_first_pivots_of_a_set_suffice_for_large_shifts():
    """The column of each shift is that of some number of first pivots, and of fewer for larger shifts."""
    A, shift, c = positive_definite(41), np.array([1e-3, 1e2, 1e4]), SETS.scales[:, 0]
    factor, R = partial_factor(A, 35), random(41, 3) * c[:, None]
    found = FoldLowRank(factor, TrainingSets(SETS.scales, np.zeros(3, int)), shift).apply(R, np.arange(3))
    t = np.maximum(shift, (c**2 * factor.residual_diagonal).sum() / (41 - np.count_nonzero(c[factor.index])))

    def of_rank(rank, j):
        C_F = c[:, None] * rows_of(factor)[:, :rank]
        return np.linalg.solve(C_F @ C_F.T + t[j] * np.eye(41), R[:, j])

    ranks = [[r for r in range(36) if np.allclose(of_rank(r, j), found[:, j], 1e-8, 1e-14)] for j in range(3)]
    assert ranks[0][0] == 35 > ranks[2][0] and ranks[1]


def test_close_shifts_share_the_smallest_and_columns_keep_their_own():
    assert_allclose(
        shared(np.array([3.0, 1.0, 100.0, 4.0, 4.1, 20.0, 0.0]), 4.0), [1.0, 1.0, 100.0, 1.0, 4.1, 20.0, 0.0]
    )
    shift, R = np.array([0.5, 50.0, 80.0, 90.0, 700.0, 600.0]), random(41, 6)
    whole = FoldLowRank(partial_factor(positive_definite(41), 25), SETS, shift)
    again = whole.for_columns(TrainingSets(SETS.scales, SETS.of_column[:2]), shift[:2])
    assert_allclose(again.apply(R[:, :2], np.arange(2)), whole.apply(R, np.arange(6))[:, :2])


def test_small_matrices_of_a_set_stay_within_their_memory():
    """Where every shift needs all pivots, they share one matrix, however far apart, and are as good as the smallest."""
    B, shift = random(41, 20), 1e-6 * 100.0 ** np.arange(4)
    factor, one = partial_factor(B @ B.T + 1e-10 * np.eye(41), 20), TrainingSets(SETS.scales, np.zeros(4, int))
    whole, least = FoldLowRank(factor, one, shift), FoldLowRank(factor, one, np.full(4, shift[0]))
    sizes = [len(matrix) for (f, _), matrix in whole._capacitances.items() if f == 0]
    assert sum(size**2 for size in sizes) <= SQUARES_OF_SET * factor.rank**2
    R = random(41, 4) * (one.scale() > 0)
    assert_allclose(whole.apply(R, np.arange(4)), least.apply(R, np.arange(4)), rtol=1e-12)


OF_FOLDS = TrainingSets(
    np.column_stack([np.arange(41) % 3 != 0, np.arange(41) % 3 != 1, np.arange(41) % 3 != 2, np.ones(41)]).astype(
        float
    ),
    np.array([0, 1, 2, 3, 0, 1]),
)
"""What folds leave out adds up to all rows."""


@pytest.mark.parametrize(("n_first", "panel"), [(0, 256), (7, 256), (7, 3)])
@pytest.mark.parametrize("sets", [SETS, OF_FOLDS], ids=["any", "folds"])
def test_products_of_sets_in_float32_are_those_in_float64_or_are_given_up(monkeypatch, sets, n_first, panel):
    """A shift may be lost beside the largest eigenvalue of the columns after the first."""
    monkeypatch.setattr(factor_rows, "HEAD_COLUMNS", n_first)
    monkeypatch.setattr(fold_preconditioner, "PANEL_COLUMNS", panel)
    A, shift, R = positive_definite(41), np.full(6, 3.0), random(41, 6) * (sets.scale() > 0)
    low = FoldLowRank(partial_factor(A, 20, dtype=np.float32), sets, shift, mixed=True)
    high = FoldLowRank(partial_factor(A, 20), sets, shift)
    assert (low.precision, high.precision) == ("float32", "float64")
    found, expected = low.apply(R, np.arange(6)), high.apply(R, np.arange(6))
    assert 1e-12 < np.abs(found - expected).max() < 1e-4
    assert low.raise_shift_if_inexact(R, np.arange(6)) and low.precision == "float64"
    F = rows_of(high.factor)
    for k, c in enumerate(sets.scale(np.arange(6)).T):
        of_column = c[:, None] * F @ F.T * c + high._t[k] * np.eye(41)
        assert_allclose(expected[:, k], np.linalg.solve(of_column, R[:, k]), rtol=1e-9, atol=1e-12)
    factor = partial_factor(A, 41, dtype=np.float32)
    grams = [(rows_of(factor).T * c) @ rows_of(factor) for c in sets.scales.T]
    largest = max(np.sqrt(np.linalg.norm(G, 2) * np.linalg.norm(G[n_first:, n_first:], 2)) for G in grams)
    for part, precision in ((2.0, "float32"), (0.4, "float64")):
        shift = np.full(6, part * largest / LOW_PRECISION_RATIO)
        assert FoldLowRank(factor, sets, shift, mixed=True).precision == precision


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_small_matrices_of_folds_take_no_more_memory_than_is_planned(dtype, monkeypatch):
    monkeypatch.setattr(fold_preconditioner, "PANEL_COLUMNS", panel := 64)
    n, rank, n_folds = 1000, 700, 5
    B = random(n, rank) * np.linspace(1.0, 0.1, rank)
    factor = partial_factor(B @ B.T, rank, 2, dtype=dtype)
    scales = np.column_stack([np.arange(n) % n_folds != f for f in range(n_folds)]).astype(float)
    sets, shift = TrainingSets(scales, np.tile(np.arange(n_folds), 3)), np.repeat([1e-1, 1e1, 1e3], n_folds)
    tracemalloc.start()
    try:
        whole = FoldLowRank(factor, sets, shift, mixed=dtype == np.float32, n_threads=2)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert whole.precision == np.dtype(dtype).name
    assert peak <= 8 * rank * (rank + panel) * squares_of_sets(n_folds, 2)


def test_predictions_of_rows_left_out_come_from_the_last_product():
    A, X = positive_definite(41), random(41, 6, seed=2)
    operator = TrainingSetOperator(counted := MatrixOperator(A), SETS)
    operator.multiply(X)
    assert_allclose(operator.products_of_all_rows(X), A @ (SETS.scale() * X))
    X[:, 3] += 1.0
    assert_allclose(operator.products_of_all_rows(X), A @ (SETS.scale() * X))
    assert [m for _, m in counted.products] == [6, 1]
