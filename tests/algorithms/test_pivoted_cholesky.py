"""Partial Cholesky with pivots against one column after the other, and what is kept of it in memory."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from dkrr.kernels import RBF, Linear, Polynomial
from dkrr.linalg import factor_rows, pivoted_cholesky
from dkrr.linalg.pivoted_cholesky import MIN_BLOCK, LostRowsError, choose_pivots
from dkrr.linalg.sources import GramColumns, MatrixColumns
from dkrr.rows import MemoryRows
from dkrr.runtime import Meter, ThreadExecutor, resident
from tests import systems
from tests.oracles import naive_partial_cholesky
from tests.systems import partial_factor, positive_definite, random, rows_of

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
    importance = np.ones(len(A)) if found.importance is None else found.importance
    assert found.traces[-1][0] == found.rank
    trace = found.traces[-1][1] * found.trace_unit
    assert trace == pytest.approx(left.diagonal() @ importance, abs=accuracy * size * len(A))
    assert found.traces[0] == (0, pytest.approx(A.diagonal() @ importance / found.trace_unit))
    V, U = random(len(A), 2, seed=5), random(found.rank, 3, seed=6)
    v = np.random.default_rng(7).uniform(0.5, 2.0, len(A))
    assert_allclose(found.project(V), F.T @ V, atol=1e-11 * size)
    assert_allclose(found.expand(U), F @ U, atol=1e-11 * size)
    assert_allclose(np.tril(found.gram(v)), np.tril((F.T * v) @ F), rtol=1e-10, atol=1e-11 * size)


@given(
    n=st.integers(1, 40),
    ranks=st.lists(st.integers(1, 45), min_size=1, max_size=3),
    slots=st.integers(1, 5),
    strip=st.sampled_from([64, 10**6]),
    weighted=st.booleans(),
    seed=st.integers(0, 9),
)
def test_a_factor_grown_in_rounds_is_that_of_its_pivots(n, ranks, slots, strip, weighted, seed):
    A = positive_definite(n, seed)
    importance = np.random.default_rng(seed).uniform(0.5, 2.0, n) if weighted else None
    found = partial_factor(A, 0, slots, importance=importance, seed=seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(factor_rows, "STRIP_ENTRIES", strip)
        for rank in np.maximum.accumulate(ranks):
            found.grow(rank)
            assert found.rank == min(rank, n)
            check(found, A)
    left = [t for _, t in found.traces]
    assert left == sorted(left, reverse=True)
    if found.rank == n:
        assert_allclose(rows_of(found) @ rows_of(found).T, A, atol=1e-12)
    found.close()
    assert found.run not in resident._kept


def test_a_factor_stops_at_its_capacity_or_where_it_is_enough():
    A, seen = positive_definite(4 * MIN_BLOCK), []
    assert partial_factor(A, 30, capacity=7).rank == 7
    found = partial_factor(A, 0)
    found.grow(4 * MIN_BLOCK, lambda factor: seen.append(factor.rank) or len(seen) == 2)
    assert len(seen) == 2 and 0 < seen[0] <= MIN_BLOCK < seen[1] <= 2 * MIN_BLOCK, "asked after every round"
    check(found, A)


def test_parts_and_threads_do_not_change_a_factor():
    X = random(47, 3)
    first = of_kernel(RBF(), X, 12, slots=1, seed=3)
    with ThreadExecutor(3) as threads:
        other = of_kernel(RBF(), X, 12, slots=4, executor=threads, seed=3)
    assert_array_equal(other.index, first.index)
    assert_allclose(rows_of(other), rows_of(first), atol=1e-12)


@both_dtypes
def test_products_in_float32_take_vectors_outside_its_range(monkeypatch, dtype):
    """Of a factor that is stored so, in strips; sums of few rows each are added in float64."""
    for name, value in (("LOW_STRIP_ENTRIES", 64), ("STRIP_ENTRIES", 64), ("GRAM_ROWS", 16), ("GRAM_COLUMNS", 3)):
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
    monkeypatch.setattr(pivoted_cholesky, "LOW_PRECISION_LEFT", fraction)
    A = positive_definite(150)
    check(partial_factor(A, 40, dtype=np.float32), A, 1e-5)


@both_dtypes
@pytest.mark.parametrize("power", [-400, -64, 3, 65, 480])
def test_a_power_of_two_changes_no_digit(dtype, power):
    """Also where entries of F leave the range of float32."""
    X, V = random(60, 5), random(60, 2, seed=3)
    importance = np.random.default_rng(1).uniform(0.5, 2.0, 60)
    plain, scaled = (
        of_kernel(Linear(), np.ldexp(X, p), 4, dtype=dtype, importance=np.ldexp(importance, 2 * p)) for p in (0, power)
    )
    assert_array_equal(scaled.index, plain.index)
    for found, expected, p in (
        (scaled.project(V), plain.project(V), power),
        (scaled.expand(V[:4]), plain.expand(V[:4]), power),
        (scaled.gram(importance), plain.gram(importance), 2 * power),
        (scaled.left, plain.left, 2 * power),
        (scaled.diagonal, plain.diagonal, 2 * power),
    ):
        assert_array_equal(found, np.ldexp(expected, p))


def test_what_float32_cannot_tell_from_nothing_is_not_taken():
    A = RBF(gamma=0.1)(random(90, 2))
    found = partial_factor(A, 90, dtype=np.float32)
    assert found.rank < 90
    assert_allclose(rows_of(found) @ rows_of(found).T, A, atol=3e-5)
    assert found.traces[-1][1] < 1e-3


def test_rounding_of_one_candidate_is_not_that_of_the_others():
    """The diagonal promises much where nothing is left; the other candidates of that round must not go with it."""

    class Promising(MatrixColumns):
        def diagonal(self, rows):
            return super().diagonal(rows) + np.where(np.arange(self.n) == 3, 1e6, 0.0)[rows]

    A = np.diag(np.arange(9.0))
    A[3, 3] = 1e-12
    assert sorted(partial_factor(Promising(MemoryRows(A)), 9).index) == [1, 2, 4, 5, 6, 7, 8]


def test_pivots_are_drawn_from_what_is_left():
    """Pairs of first pivots: as often as for one pivot at a time, though a block is proposed at once."""
    # The first takes most of the second with it, and the third of the fourth.
    A = np.array([[4.0, 3.6, 0.0, 0.1], [3.6, 4.0, 0.1, 0.0], [0.0, 0.1, 2.0, 1.2], [0.1, 0.0, 1.2, 1.0]])
    expected = np.zeros((4, 4))
    for i, j in itertools.permutations(range(4), 2):
        left = A.diagonal() - A[i] ** 2 / A[i, i]
        left[i] = 0.0
        expected[i, j] = A[i, i] / np.trace(A) * left[j] / left.sum()
    n, counts = 1500, np.zeros((4, 4))
    for seed in range(n):
        counts[tuple(partial_factor(A, 2, seed=seed).index)] += 1
    assert (np.abs(counts - n * expected) <= 4 * np.sqrt(n * expected * (1 - expected))).all()


def test_pivots_are_drawn_by_importance_and_seed():
    n, counts, importance = 400, np.zeros(4), np.array([4.0, 2.0, 0.0, 0.5])
    for seed in range(n):
        counts[partial_factor(np.diag([1.0, 2.0, 3.0, 4.0]), 1, importance=importance, seed=seed).index] += 1
    expected = np.array([0.4, 0.4, 0.0, 0.2])
    assert (np.abs(counts - n * expected) <= 4 * np.sqrt(n * expected * (1 - expected))).all()
    one, again, other = (partial_factor(positive_definite(47), 10, seed=seed).index.tolist() for seed in (1, 1, 2))
    assert one == again != other
    importance = np.ones(47)
    importance[[0, 7, 46]] = 0.0
    found = partial_factor(positive_definite(47), 47, importance=importance)
    assert sorted(found.index) == [k for k in range(47) if importance[k]], "no importance, no pivot"


@both_dtypes
def test_a_factor_has_no_higher_rank_than_the_matrix(dtype):
    X = random(90, 3)
    found = of_kernel(Linear(), X, 20, dtype=dtype)
    assert found.rank == 3
    assert_allclose(rows_of(found) @ rows_of(found).T, X @ X.T, atol=1e-5 if dtype == np.float32 else 1e-12)
    found.grow(40)
    assert found.rank == 3, "nothing is left"
    nothing = partial_factor(np.zeros((9, 9)), 5, dtype=dtype)
    assert nothing.rank == 0 and nothing.traces[-1] == (0, 0.0)


def test_of_duplicate_rows_one_is_taken_and_rows_of_zeros_are_not():
    X = random(30, 4)
    twins, kernel = np.repeat(X[:20, :3], 3, axis=0), RBF(gamma=0.8)
    found = of_kernel(kernel, twins, 60)
    assert sorted(found.index[:20] // 3) == list(range(20)), "one of each three"
    # The last digits of what is left may pass for a few more; their columns are as small.
    assert 20 <= found.rank <= 24
    assert_allclose(rows_of(found) @ rows_of(found).T, kernel(twins), atol=1e-13)
    X[[0, 5, 29]] = 0.0
    found = of_kernel(Polynomial(degree=2, gamma=1.0, coef0=0.0), X, 30)
    assert 10 <= found.rank <= 14 and not {0, 5, 29} & set(found.index.tolist())


@pytest.mark.parametrize("lost", ["all", "one part"])
@pytest.mark.parametrize("use", ["project", "expand", "gram", "grow"])
def test_lost_rows_are_computed_again(lost, use):
    A = positive_definite(47)
    found = partial_factor(A, 9, 3)
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


def test_rows_may_be_lost_while_a_factor_grows_or_a_round_be_run_twice():
    """A part is lost between the rounds, another has its new columns already when the round is begun again."""
    A = positive_definite(47)
    for fault in ("lost", "twice"):
        found = partial_factor(A, 9, 3)
        map_, forgotten = found.executor.map, []

        def faulty(tasks, shared, fault=fault, found=found, map_=map_, forgotten=forgotten):
            if fault == "twice":
                map_(tasks, shared)
            elif tasks[0].function is pivoted_cholesky.extend_rows and not forgotten:
                map_(tasks[:1], shared)
                forgotten.append(resident._kept[found.run].pop(("factor", 2)))
            return map_(tasks, shared)

        found.executor.map = faulty
        found.grow(25)
        assert forgotten or fault == "twice"
        check(found, A)


def test_rows_that_are_lost_twice_are_computed_again_and_those_always_lost_are_an_error():
    found = partial_factor(positive_definite(47), 9, 3)
    total, times = found.executor.total, []

    def losing(tasks, shared):
        if len(times) < most:
            times.append(1)
            resident.forget(found.run)
        return total(tasks, shared)

    found.executor.total, most = losing, 2
    assert_allclose(found.project(np.ones((47, 1))), rows_of(found).T @ np.ones((47, 1)), atol=1e-12)
    check(found, positive_definite(47))
    most = 10**6
    with pytest.raises(LostRowsError):
        found.project(np.ones((47, 1)))
    columns = MatrixColumns(MemoryRows(np.eye(5)))
    part = pivoted_cholesky.FactorRows(columns, 0, 5, "another run", 0, 3, np.float64)
    with pytest.raises(LostRowsError):
        pivoted_cholesky.project_rows(Meter(), part, np.ones((5, 1)))
    assert "another run" not in resident._kept


@both_dtypes
@pytest.mark.parametrize("weighted", [False, True])
def test_a_factor_is_restored_from_its_pivots(dtype, weighted):
    X, importance = random(60, 3), np.linspace(0.5, 2.0, 60) if weighted else None
    settings = {"dtype": dtype, "importance": importance}
    first, second = (of_kernel(RBF(gamma=0.4), X, rank, slots=3 - bool(rank), **settings) for rank in (15, 0))
    second.restore(first.index)
    assert_array_equal(second.index, first.index)
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
    before, X, large = dict(resident._kept), random(50, 3), MemoryRows(random(500, 3))
    assert_array_equal(
        choose_pivots(RBF(), MemoryRows(X), 8, "rpcholesky", 6), of_kernel(RBF(1 / 3), X, 8, seed=6).index
    )
    assert len(choose_pivots(Linear(), MemoryRows(X), 9, "rpcholesky", 0)) == 3
    found = choose_pivots(RBF(), MemoryRows(X), 7, "uniform", 0)
    assert found.tolist() == sorted(set(found.tolist())) and len(found) == 7
    assert choose_pivots(RBF(), MemoryRows(X), 99, "uniform", 0).tolist() == list(range(50))
    monkeypatch.setattr(pivoted_cholesky, "MIN_CANDIDATES", 20)
    monkeypatch.setattr(pivoted_cholesky, "CANDIDATES_TO_RANK", 2)
    found, again = (choose_pivots(RBF(), large, 12, "rpcholesky", 1) for _ in range(2))
    assert len(set(found.tolist())) == 12 and found.max() > 24, "of a sample of all rows"
    assert_array_equal(found, again)
    assert resident._kept == before
