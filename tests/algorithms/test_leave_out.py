"""Errors of rows that a system leaves out, against systems without these rows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from dkrr.linalg import held_out
from dkrr.linalg.held_out import LeftOut
from dkrr.linalg.memory import factor_in_memory, memory_system
from dkrr.linalg.sources import MatrixTiles
from dkrr.rows import MemoryRows
from dkrr.runtime import SerialExecutor, ThreadExecutor
from dkrr.tiles import MemoryMatrix, TileGrid
from tests.systems import one_blas_thread, positive_definite, random  # noqa: F401


def left_out(A, B, c, tile):
    n = len(A)
    grid, executor = TileGrid(n, tile, tile), SerialExecutor()
    factor = MemoryMatrix(grid)
    factor_in_memory(memory_system(MatrixTiles(MemoryRows(A)), np.zeros(n), factor), executor)
    return LeftOut(factor, B, c, executor)


def solved_without(A, B, c, rows):
    """Solution and free constants of the system without some rows, and the errors of those."""
    kept = np.setdiff1d(np.arange(len(A)), rows)
    inverse = np.linalg.inv(A[np.ix_(kept, kept)])
    u, b = inverse @ B[kept], np.zeros(B.shape[1])
    if c is not None:
        v = inverse @ c[kept]
        b = (c[kept] @ u) / (c[kept] @ v)
        u = u - np.outer(v, b)
    x = np.zeros(B.shape)
    x[kept] = u
    errors = B[rows] - A[rows] @ x - (0 if c is None else np.outer(c[rows], b))
    return x, b, errors


@given(
    n=st.integers(2, 40), tile=st.integers(3, 41), strip=st.integers(1, 9), frees=st.booleans(), seed=st.integers(0, 99)
)
def test_errors_of_any_rows_are_those_of_the_system_without_them(n, tile, strip, frees, seed):
    rng = np.random.default_rng(seed)
    A, B = positive_definite(n), rng.standard_normal((n, 2))
    c = rng.uniform(0.3, 2.0, n) if frees and n > 3 else None
    most = n - 1 if c is None else n - 2
    folds = [np.sort(rng.permutation(n)[: rng.integers(1, most + 1)]) for _ in range(3)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(held_out, "STRIP_COLUMNS", strip)
        patch.setattr(held_out, "BATCH_COLUMNS", 2 * strip)
        found = left_out(A, B, c, tile)
        errors, each = found.of_folds(folds), found.of_rows()
    for rows, values in zip(folds, errors, strict=True):
        x, b, expected = solved_without(A, B, c, rows)
        assert_allclose(values, expected, rtol=1e-7, atol=1e-9)
        solution, constants = found.without(rows, values)
        assert_allclose(solution, x, rtol=1e-7, atol=1e-9)
        assert_allclose(constants, b, rtol=1e-7, atol=1e-9)
    for i in range(n):
        assert_allclose(each[i], solved_without(A, B, c, np.array([i]))[2][0], rtol=1e-7, atol=1e-9)


def test_threads_share_the_strips():
    A, B = positive_definite(300), random(300, 3)
    expected = left_out(A, B, None, 64).of_rows()
    with ThreadExecutor(2) as executor:
        found = left_out(A, B, None, 64)
        found.executor = executor
        assert_allclose(found.of_rows(), expected, rtol=1e-12)
        assert_allclose(np.vstack(found.of_folds([np.array([i]) for i in range(300)])), expected, rtol=1e-12)
