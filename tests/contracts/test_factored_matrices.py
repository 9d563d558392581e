"""What holds wherever a matrix is factored: a row of SYSTEMS joins a place to all of these tests."""

from contextlib import contextmanager

import numpy as np
import pytest
from numpy.testing import assert_allclose

import dkrr
from dkrr.cluster import Progress, RunRecord, SerialExecutor
from dkrr.data import as_rows
from dkrr.errors import NotPositiveDefiniteError
from dkrr.fitting.context import open_context
from dkrr.fitting.direct import MemorySystems, TiledSystems
from dkrr.linalg.in_memory_cholesky import InMemoryMatrix
from dkrr.linalg.sources import MatrixTiles
from dkrr.linalg.substitution import LocalFactor
from dkrr.store import TileGrid
from tests.systems import positive_definite, random

N = 53
A, B, SHIFT = positive_definite(N), random(N, 3), np.random.default_rng(1).uniform(0.1, 2.0, N)
SOURCE, WHOLE, TILES = MatrixTiles(as_rows(A)), TileGrid(N, N, N), TileGrid(N, 16, 8)


def kept(grid, context):
    return MemorySystems.of(InMemoryMatrix.of_source(SOURCE, grid, SerialExecutor()), context)


SYSTEMS = {
    "one tile": lambda context: MemorySystems(SOURCE, WHOLE, A.diagonal(), context),
    "tiles": lambda context: MemorySystems(SOURCE, TileGrid(N, 16, 16), A.diagonal(), context),
    "one tile beside the matrix": lambda context: kept(WHOLE, context),
    "tiles beside the matrix": lambda context: kept(TileGrid(N, 16, 16), context),
    "a store": lambda context: TiledSystems(SOURCE, TILES, 2, A.diagonal(), context),
}
each = pytest.mark.parametrize("name", SYSTEMS)


@contextmanager
def opened(name):
    settings = {"tile": 16} if name == "a store" else {}
    plan = dkrr.plan(A, B, kernel="precomputed", solver="cholesky", **settings)
    with open_context(plan, None, Progress()) as context:
        yield SYSTEMS[name](context)


@each
def test_solutions_are_checked_and_those_of_one_factor_are_the_same(name):
    expected, taken = np.linalg.solve(A + np.diag(SHIFT), B), []
    with opened(name) as systems:
        found = systems.solve("one", SHIFT, B, taken.append)
        assert_allclose(found.x, expected, rtol=1e-11, atol=1e-12)
        assert found.check.residual < 1e-13 and len(taken) == 1
        assert 1 <= found.check.condition <= 1.01 * np.linalg.cond(A + np.diag(SHIFT))
        assert systems.solve("two", 2 * SHIFT, B).check is None
        for _ in range(2):
            assert_allclose(systems.solve_again("three", SHIFT, B, taken.append).x, found.x, rtol=1e-13, atol=1e-14)
        systems.release("three")


@each
def test_factors_are_applied_until_they_are_given_up(name):
    with opened(name) as systems:
        factor = LocalFactor(systems.factored("one", SHIFT), 1, RunRecord())
        assert_allclose(factor.apply(B), np.linalg.solve(A + np.diag(SHIFT), B), rtol=1e-11, atol=1e-12)
        # The second and the last may have the memory of the first; the one in float64 has none that is free.
        for k, (dtype, error) in enumerate([("float32", 1e-4)] * 2 + [("float64", 1e-12), ("float32", 1e-4)]):
            applied, matrix = systems.applied(f"{k}", (k + 1) * SHIFT, dtype, ""), A + np.diag((k + 1) * SHIFT)
            assert_allclose(applied.apply(B), np.linalg.solve(matrix, B), rtol=10 * error, atol=error)
            systems.discard(f"{k}")
        if name == "a store" or "beside" in name:
            shifts = np.column_stack([SHIFT, 3 * SHIFT])
            for solve, shift in zip(systems.factors(["a", "b"], shifts, ["", ""]), shifts.T, strict=True):
                assert_allclose(solve(B), np.linalg.solve(A + np.diag(shift), B), rtol=1e-11, atol=1e-12)


@each
def test_a_matrix_that_is_not_positive_definite_is_refused_and_the_next_one_solved(name):
    with opened(name) as systems:
        for call in (systems.factored, lambda *a: systems.solve(*a, B), lambda *a: systems.applied(*a, "float32", "")):
            with pytest.raises(NotPositiveDefiniteError):
                call("bad", np.full(N, -5.0))
        assert_allclose(
            systems.solve("good", SHIFT, B).x, np.linalg.solve(A + np.diag(SHIFT), B), rtol=1e-11, atol=1e-12
        )
