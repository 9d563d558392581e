"""Systems in memory, of one tile and of several, with and without the matrix kept beside its factor."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from dkrr import blas
from dkrr.errors import NotFiniteError, NotPositiveDefiniteError
from dkrr.kernels import RBF
from dkrr.linalg import memory, sources, substitution
from dkrr.linalg.memory import KeptTiles, factor_in_memory, memory_system
from dkrr.linalg.residual import Solved, SolvedProbe, check_tiled, checked, with_probe
from dkrr.linalg.sources import GramTiles, MatrixTiles, SummedTiles
from dkrr.linalg.substitution import Substitution, substituted
from dkrr.rows import as_rows
from dkrr.runtime import Meter, Progress, SerialExecutor, ThreadExecutor
from dkrr.tiles import MemoryMatrix, TileGrid
from tests.oracles import naive_gram
from tests.pairs import every_pair
from tests.systems import failing_at, grids, one_blas_thread, positive_definite, random  # noqa: F401


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(blas, "_POTRF_BLOCK", 8)
    monkeypatch.setattr(memory, "MEMORY_TASK_COLUMNS", 2)
    for module in (sources, memory):
        monkeypatch.setattr(module, "KERNEL_BLOCK", 6)


def grid_of(n, tile):
    return TileGrid(n, min(n, tile), min(n, tile))


def kept_tiles(A, tile, executor=None):
    return KeptTiles.of_source(MatrixTiles(as_rows(A)), grid_of(len(A), tile), executor or SerialExecutor())


def solve(source, shift, factor, B, executor=None):
    factor_in_memory(memory_system(source, shift, factor), executor or SerialExecutor())
    return substituted(factor, B)


orders = st.sampled_from("CFS")
every_tile = pytest.mark.parametrize("tile", [4, 7, 100])


@given(
    grid=grids(most=40), m=st.integers(1, 3), seed=st.integers(0, 9), order=st.sampled_from("CFS"), keeps=st.booleans()
)
def test_solutions_for_several_shifts_are_those_of_numpy(grid, m, seed, order, keeps):
    n, A, B = grid.n, positive_definite(grid.n, seed), random(grid.n, 2 * m, seed=seed).astype(np.float32)[:, ::2]
    B = B if order == "S" else np.array(B, np.float64, order=order)
    lower = np.tril(A) + np.triu(np.full((n, n), 7.0), 1)  # what is above the diagonal is not read
    source = MatrixTiles(as_rows(A if keeps else lower))
    factor, given_ = MemoryMatrix(grid_of(n, grid.tile)), B.copy()
    if keeps:
        source = KeptTiles.of_source(source, factor.grid, SerialExecutor())
        factor = source.beside()
    for shift in (np.random.default_rng(seed).uniform(0, 1, n), np.full(n, 100.0), np.zeros(n)):
        X = solve(source, shift, factor, B)
        assert_allclose(X, np.linalg.solve(A + np.diag(shift), B), rtol=1e-11, atol=1e-13)
        if keeps:
            assert_allclose(source.multiply(B), A @ B, rtol=1e-11, atol=1e-11)
    assert_array_equal(B, given_)


@every_tile
def test_the_number_of_threads_does_not_change_the_bits(tile):
    A, B, found = positive_definite(30), random(30, 2), []
    for n_threads in (1, 2, 5, 5):
        with ThreadExecutor(n_threads) as threads:
            kept = kept_tiles(A, tile, threads)
            found.append(solve(kept, np.ones(30), kept.beside(), B, threads))
            assert_array_equal(solve(MatrixTiles(as_rows(A)), np.ones(30), kept.beside(), B, threads), found[-1])
    for other in found[1:]:
        assert_array_equal(other, found[0])


@pytest.mark.parametrize(("tile", "n_threads"), [(7, 1), (4, 3), (100, 3)])
def test_the_check_of_a_solution_in_memory_is_that_of_tiles(tile, n_threads):
    rng = np.random.default_rng(0)
    A, shift = positive_definite(30), rng.uniform(0, 1, 30)
    d = np.sqrt(A.diagonal() + shift)
    B = with_probe(rng.standard_normal((30, 3)), d)
    source, grid = MatrixTiles(as_rows(A)), grid_of(30, tile)
    with ThreadExecutor(n_threads) as executor:
        X = solve(source, shift, MemoryMatrix(grid), B, executor)
        solved = Solved(source, grid, shift[:, None], B.copy(), X.copy(), d[:, None])
        check, _ = check_tiled(solved, None, executor, Progress(), 2)
    probe = SolvedProbe.of_solution(B[:, -1], X[:, -1], d)
    expected = checked(B.copy(), shift[:, None], X.copy(), lambda v: A @ v, None, probe)
    assert check.residual < 1e-14
    assert_allclose(check.squares, expected.squares, rtol=1e-12)
    assert_allclose(check.condition, expected.condition, rtol=1e-10)


def test_a_matrix_may_be_factored_in_its_own_place():
    A, B = positive_definite(30), np.ones((30, 1))
    square = A.copy()
    for matrix in (MemoryMatrix.of_square(square), MemoryMatrix(grid_of(30, 7))):
        for i, j in matrix.grid.lower():
            matrix.write_tile(i, j, A[matrix.grid.rows(i), matrix.grid.rows(j)])
        X = solve(SummedTiles((matrix,)), np.ones(30), matrix, B)
        assert_allclose(X, np.linalg.solve(A + np.eye(30), B), rtol=1e-11)
    assert_allclose(np.tril(square), np.linalg.cholesky(A + np.eye(30)), rtol=1e-11, atol=1e-13)


@every_tile
def test_a_kept_matrix_may_have_several_factors_at_once(tile):
    A, B = positive_definite(30), random(30, 2)
    kept = kept_tiles(A, tile)
    factors = [kept.beside(), MemoryMatrix(kept.grid), MemoryMatrix(kept.grid)]
    for k, factor in enumerate(factors):
        factor_in_memory(memory_system(kept, np.full(30, float(k)), factor), SerialExecutor())
    for k, factor in enumerate(factors):
        assert_allclose(substituted(factor, B), np.linalg.solve(A + k * np.eye(30), B), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("tile", [7, 100])
@pytest.mark.parametrize("size", [1.0, 1e-24, 1e-200, 1e200])
def test_products_beside_a_factor_are_those_of_the_matrix_alone(size, tile):
    # L is of the size of √A: with it, next to nothing of A would be left.
    A, V = size * positive_definite(30), random(30, 2)
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
def test_one_tile_is_solved_with_its_square_at_once(dtype, monkeypatch):
    A, B = positive_definite(30), random(30, 3)
    factor = MemoryMatrix(grid_of(30, 30), dtype)
    factor.tile_buffer(0, 0)[...] = np.linalg.cholesky(A)
    expected = B.copy()
    for transpose in (False, True):
        sweep = Substitution.in_memory(factor, expected, (0, 1), transpose=transpose)
        substitution.solve_block(Meter(), sweep, 0)
    monkeypatch.setattr(substitution, "solve_block", None)
    assert_array_equal(substituted(factor, B), expected)


@pytest.mark.parametrize(("tile", "scaled"), [(4, True), (7, False), (100, True)])
def test_a_gram_matrix_is_formed_in_blocks(scaled, tile):
    rng = np.random.default_rng(0)
    X, c = rng.standard_normal((20, 3)), rng.uniform(0.5, 2, 20)
    source = GramTiles(RBF(gamma=0.5), as_rows(X), c[:, None] if scaled else None)
    with ThreadExecutor(3) as executor:
        kept = KeptTiles.of_source(source, grid_of(20, tile), executor)
    expected = naive_gram(RBF(gamma=0.5), X) * (np.outer(c, c) if scaled else 1.0)
    assert_allclose(kept.multiply(np.eye(20)), expected, rtol=1e-12)
    assert_allclose(kept.diagonal, expected.diagonal(), rtol=1e-12)


@every_pair(row=[0, 6, 7, 29], tile=[4, 7, 100], n_threads=[1, 3])
def test_after_a_pivot_that_is_not_positive_another_shift_works(row, tile, n_threads):
    A, B = failing_at(row, 30), np.ones((30, 1))
    kept = kept_tiles(A, tile)
    factor = kept.beside()
    with ThreadExecutor(n_threads) as executor:
        with pytest.raises(NotPositiveDefiniteError, match=f"row {row} ") as caught:
            solve(kept, np.zeros(30), factor, B, executor)
        assert caught.value.row == row
        assert_allclose(solve(kept, np.ones(30), factor, B, executor), np.linalg.solve(A + np.eye(30), B), rtol=1e-10)


@every_tile
def test_entries_that_overflow_are_an_error(tile):
    A = positive_definite(5)
    A[3, 3] = np.inf
    kept = kept_tiles(A, tile)
    with pytest.raises(NotFiniteError, match="diagonal entry .* is inf") as caught:
        solve(kept, np.zeros(5), kept.beside(), np.ones((5, 1)))
    assert caught.value.row == 3
    large = kept_tiles(np.array([[1.0, 1e200, 1e200], [1e200, 1.0, 1.0], [1e200, 1.0, 1.0]]), 3)  # NaN on the way
    with pytest.raises(NotPositiveDefiniteError):
        solve(large, np.zeros(3), large.beside(), np.ones((3, 1)))


def test_a_matrix_in_memory_has_tiles_of_one_panel():
    with pytest.raises(ValueError, match="one panel"):
        MemoryMatrix(TileGrid(20, 10, 5))
