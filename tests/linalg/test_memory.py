"""Systems in memory, of one tile and of several."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from dkrr import blas
from dkrr.errors import NotFiniteError, NotPositiveDefiniteError
from dkrr.kernels import RBF
from dkrr.linalg import memory, sources, substitution
from dkrr.linalg.memory import KeptTiles, factor_in_memory, inverse_bytes, memory_bytes, memory_cost, memory_system
from dkrr.linalg.residual import Solved, SolvedProbe, check_tiled, checked, with_probe
from dkrr.linalg.sources import GramTiles, MatrixTiles, SummedTiles
from dkrr.linalg.substitution import Substitution, substituted
from dkrr.rows import as_rows
from dkrr.runtime import Meter, Progress, SerialExecutor, ThreadExecutor
from dkrr.tiles import MemoryMatrix, TileGrid
from tests.linalg.systems import failing_at, grids, positive_definite
from tests.oracles import naive_gram


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(blas, "_POTRF_BLOCK", 8)
    monkeypatch.setattr(memory, "MEMORY_TASK_COLUMNS", 2)


@pytest.fixture
def executor(request):
    if getattr(request, "param", "three threads") == "one thread":
        yield SerialExecutor()
    else:
        with ThreadExecutor(3) as threads:
            yield threads


def grid_of(n, tile):
    return TileGrid(n, min(n, tile), min(n, tile))


def kept_tiles(A, tile):
    return KeptTiles.of_source(MatrixTiles(as_rows(A)), grid_of(len(A), tile), SerialExecutor())


def solve(source, shift, factor, B, executor=None):
    factor_in_memory(memory_system(source, shift, factor), executor or SerialExecutor())
    return substituted(factor, B)


TILES = pytest.mark.parametrize("tile", [4, 7, 30, 100])  # of one row: in `test_against_numpy`, and with few rows
# Threads take tasks in another order, which several tiles of the usual kind show; the tasks are the same.
TILES_AND_EXECUTORS = pytest.mark.parametrize(
    ("tile", "executor"),
    [*((tile, "one thread") for tile in (4, 7, 30, 100)), (4, "three threads"), (100, "three threads")],
    indirect=["executor"],
)


class TestFormedAgain:
    @settings(max_examples=30, deadline=None)
    @given(grid=grids(most=40), m=st.integers(1, 3), seed=st.integers(0, 9))
    def test_against_numpy(self, grid, m, seed):
        rng, n = np.random.default_rng(seed), grid.n
        A, B = positive_definite(n, seed), rng.standard_normal((n, m))
        source, factor = (
            MatrixTiles(as_rows(np.tril(A) + np.triu(np.full((n, n), 7.0), 1))),
            MemoryMatrix(grid_of(n, grid.tile)),
        )
        given = B.copy()
        for shift in (rng.uniform(0, 1, n), np.full(n, 100.0), np.zeros(n)):
            X = solve(source, shift, factor, B)
            assert_allclose(X, np.linalg.solve(A + np.diag(shift), B), rtol=1e-11, atol=1e-13)
        assert_array_equal(B, given)

    @TILES
    def test_threads_do_not_change_the_bits(self, tile):
        A, B = positive_definite(30), np.random.default_rng(0).standard_normal((30, 2))
        found = []
        for n_threads in (1, 2, 5, 5):
            with ThreadExecutor(n_threads) as threads:
                found.append(solve(MatrixTiles(as_rows(A)), np.ones(30), MemoryMatrix(grid_of(30, tile)), B, threads))
        for other in found[1:]:
            assert_array_equal(other, found[0])

    @TILES_AND_EXECUTORS
    def test_check(self, tile, executor):
        rng = np.random.default_rng(0)
        A, shift = positive_definite(30), rng.uniform(0, 1, 30)
        d = np.sqrt(A.diagonal() + shift)
        B = with_probe(rng.standard_normal((30, 3)), d)
        source, grid = MatrixTiles(as_rows(A)), grid_of(30, tile)
        X = solve(source, shift, MemoryMatrix(grid), B, executor)
        solved = Solved(source, grid, shift[:, None], B.copy(), X.copy(), d[:, None])
        check, _ = check_tiled(solved, None, executor, Progress(), 2)
        probe = SolvedProbe.of_solution(B[:, -1], X[:, -1], d)
        expected = checked(B.copy(), shift[:, None], X.copy(), lambda v: A @ v, None, probe)
        assert check.residual < 1e-14
        assert_allclose(check.squares, expected.squares, rtol=1e-12)
        assert_allclose(check.condition, expected.condition, rtol=1e-10)

    def test_in_its_own_place(self, executor):
        A, B = positive_definite(30), np.ones((30, 1))
        square = A.copy()
        for matrix in (MemoryMatrix.of_square(square), MemoryMatrix(grid_of(30, 7))):
            for i, j in matrix.grid.lower():
                matrix.write_tile(i, j, A[matrix.grid.rows(i), matrix.grid.rows(j)])
            X = solve(SummedTiles((matrix,)), np.ones(30), matrix, B, executor)
            assert_allclose(X, np.linalg.solve(A + np.eye(30), B), rtol=1e-11)
        assert_allclose(np.tril(square), np.linalg.cholesky(A + np.eye(30)), rtol=1e-11, atol=1e-13)


class TestKept:
    @TILES_AND_EXECUTORS
    @pytest.mark.parametrize("n", [1, 7, 8, 30])
    def test_several_shifts(self, n, tile, executor):
        rng = np.random.default_rng(0)
        A, B = positive_definite(n), rng.standard_normal((n, 3))
        kept = kept_tiles(A, tile if n > 8 else min(tile, n // 4 + 1))
        factor = kept.beside()
        for shift in (rng.uniform(0, 1, n), np.full(n, 100.0), np.zeros(n), rng.uniform(0, 1, n)):
            X = solve(kept, shift, factor, B, executor)
            assert_allclose(X, np.linalg.solve(A + np.diag(shift), B), rtol=1e-11, atol=1e-13)
            other = rng.standard_normal((n, 3))
            assert_allclose(kept.multiply(other), A @ other, rtol=1e-11, atol=1e-11)

    @TILES
    def test_several_factors_at_once(self, tile):
        A, B = positive_definite(30), np.random.default_rng(0).standard_normal((30, 2))
        kept = kept_tiles(A, tile)
        factors = [kept.beside(), MemoryMatrix(kept.grid), MemoryMatrix(kept.grid)]
        for k, factor in enumerate(factors):
            factor_in_memory(memory_system(kept, np.full(30, float(k)), factor), SerialExecutor())
        for k, factor in enumerate(factors):
            assert_allclose(substituted(factor, B), np.linalg.solve(A + k * np.eye(30), B), rtol=1e-11, atol=1e-13)

    @TILES
    @pytest.mark.parametrize("size", [1.0, 1e-24, 1e-200, 1e200])
    def test_products_beside_a_factor_are_those_of_the_matrix_alone(self, size, tile):
        # L is of the size of √A: with it, next to nothing of A would be left.
        A, V = size * positive_definite(30), np.random.default_rng(0).standard_normal((30, 2))
        shift, kept = np.full(30, 0.5 * size), kept_tiles(A, tile)
        expected = kept.multiply(V)
        assert_allclose(expected, A @ V, rtol=1e-12, atol=1e-15 * size)
        factor = kept.beside()
        X = solve(kept, shift, factor, V)
        assert_array_equal(kept.multiply(V), expected)
        probe = SolvedProbe.of_solution(V[:, -1], X[:, -1], None)
        check = checked(V.copy(), shift[:, None], X.copy(), kept.multiply, None, probe)
        assert check.residual < 1e-14
        assert_allclose(check.squares, (X[:, :1] * (A @ X[:, :1])).sum(axis=0), rtol=1e-12)
        assert_array_equal(substituted(factor, V), X)  # the factor is as it was

    @pytest.mark.parametrize("dtype", ["float64", "float32"])
    def test_one_tile_is_solved_with_its_square_at_once(self, dtype, monkeypatch):
        A, B = positive_definite(30), np.random.default_rng(0).standard_normal((30, 3))
        factor = MemoryMatrix(grid_of(30, 30), dtype)
        factor.tile_buffer(0, 0)[...] = np.linalg.cholesky(A)
        expected = B.copy()
        for transpose in (False, True):
            sweep = Substitution.in_memory(factor, expected, (0, 1), transpose=transpose)
            substitution.solve_block(Meter(), sweep, 0)
        monkeypatch.setattr(substitution, "solve_block", None)
        assert_array_equal(substituted(factor, B), expected)

    @TILES
    def test_right_sides_of_any_order_and_dtype(self, tile):
        A, B = positive_definite(20), np.random.default_rng(0).standard_normal((20, 6)).astype(np.float32)
        expected = np.linalg.solve(A, B[:, ::2])
        for right_sides in (B[:, ::2], np.asfortranarray(B[:, ::2])):
            kept = kept_tiles(A, tile)
            X = solve(kept, np.zeros(20), kept.beside(), right_sides)
            assert_allclose(X, expected, rtol=1e-11)
            assert_allclose(kept.multiply(np.asfortranarray(2 * X)), 2 * right_sides, rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize("scaled", [False, True])
    @TILES_AND_EXECUTORS
    def test_gram(self, scaled, tile, monkeypatch, executor):
        for module in (sources, memory):
            monkeypatch.setattr(module, "KERNEL_BLOCK", 6)
        rng = np.random.default_rng(0)
        X, c = rng.standard_normal((20, 3)), rng.uniform(0.5, 2, 20)
        source = GramTiles(RBF(gamma=0.5), as_rows(X), c[:, None] if scaled else None)
        kept = KeptTiles.of_source(source, grid_of(20, tile), executor)
        expected = naive_gram(RBF(gamma=0.5), X)
        expected = c[:, None] * expected * c if scaled else expected
        assert_allclose(kept.multiply(np.eye(20)), expected, rtol=1e-12)
        assert_allclose(kept.diagonal, expected.diagonal(), rtol=1e-12)


class TestFailures:
    @TILES_AND_EXECUTORS
    @pytest.mark.parametrize("row", [0, 6, 7, 19, 29])
    def test_not_positive_definite_and_then_a_shift_that_is(self, row, tile, executor):
        A, B = failing_at(row, 30), np.ones((30, 1))
        kept = kept_tiles(A, tile)
        factor = kept.beside()
        with pytest.raises(NotPositiveDefiniteError, match=f"row {row} ") as caught:
            solve(kept, np.zeros(30), factor, B, executor)
        assert caught.value.row == row
        assert_allclose(solve(kept, np.ones(30), factor, B, executor), np.linalg.solve(A + np.eye(30), B), rtol=1e-10)

    @TILES
    def test_diagonal_entries_that_overflow(self, tile):
        A = positive_definite(5)
        A[3, 3] = np.inf
        kept = kept_tiles(A, tile)
        with pytest.raises(NotFiniteError, match="diagonal entry .* is inf") as caught:
            solve(kept, np.zeros(5), kept.beside(), np.ones((5, 1)))
        assert caught.value.row == 3

    def test_a_pivot_that_rounding_makes_nan(self):
        A = np.array([[1.0, 1e200, 1e200], [1e200, 1.0, 1.0], [1e200, 1.0, 1.0]])
        kept = kept_tiles(A, 3)
        with pytest.raises(NotPositiveDefiniteError):
            solve(kept, np.zeros(3), kept.beside(), np.ones((3, 1)))

    def test_tiles_of_several_strips(self):
        with pytest.raises(ValueError, match="one panel"):
            MemoryMatrix(TileGrid(20, 10, 5))


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("tile", [200, 900])
def test_memory(tile, keeps):
    n, grid = 900, grid_of(900, tile)
    A, B, ones = positive_definite(n), np.ones((n, 2)), np.ones((n, 1))
    source = MatrixTiles(as_rows(A))
    tracemalloc.start()
    try:
        if keeps:
            source = KeptTiles.of_source(source, grid, SerialExecutor())
        factor = source.beside() if keeps else MemoryMatrix(grid)
        for _ in range(2):
            X = solve(source, ones[:, 0], factor, B)
        if keeps:
            source.multiply(X)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (
        0.99 * memory_bytes(grid, keeps=keeps)
        <= peak
        <= memory_bytes(grid, keeps=keeps) + inverse_bytes(grid) + 500_000
    )


def test_cost_with_distinct_primes():
    n, m, count = 1009, 7, 3
    for grid in (grid_of(n, 101), grid_of(n, n)):
        cost = memory_cost(grid, m, count, keeps=True)
        assert cost.gemm_flops == pytest.approx(count * 4 * n**2 * m)
        assert (cost.dense_flops, cost.dense_side) == (pytest.approx(count * n**3 / 3), n)
        assert (cost.read_bytes, cost.written_bytes, cost.n_tasks) == (0, 0, 0)
        assert memory_cost(grid, m, 2 * count, keeps=True).memory_bytes > cost.memory_bytes > 0
        assert memory_cost(grid, m, count, keeps=False).memory_bytes < cost.memory_bytes
    assert memory_bytes(grid_of(n, n), keeps=True) == memory_bytes(grid_of(n, n), keeps=False) == 8 * n**2
    assert 4 * n**2 < memory_bytes(grid_of(n, 101), keeps=False) < 4.5 * n**2
    assert memory_bytes(grid_of(n, 101), keeps=True) == 8 * n**2
