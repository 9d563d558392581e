"""What holds wherever a matrix is factored: a row of SYSTEMS joins a place to all of these tests."""

from contextlib import contextmanager

import numpy as np
import pytest
from numpy.testing import assert_allclose

import dkrr
from dkrr.cluster import Progress, SerialExecutor
from dkrr.data import as_rows
from dkrr.errors import NotPositiveDefiniteError
from dkrr.fitting.context import open_context
from dkrr.fitting.direct import MemorySystems, TiledSystems, TileSystems
from dkrr.linalg.factor import LocalFactor
from dkrr.linalg.in_memory_cholesky import InMemoryMatrix
from dkrr.linalg.sources import MatrixTiles
from dkrr.linalg.square import SquareMatrix
from dkrr.store import TileGrid
from tests.systems import positive_definite, random

N = 53
A, B, SHIFT = positive_definite(N), random(N, 3), np.random.default_rng(1).uniform(0.1, 2.0, N)
SOURCE, WHOLE, TILES = MatrixTiles(as_rows(A)), TileGrid(N, N, N), TileGrid(N, 16, 8)


def beside(grid, context):
    kept = InMemoryMatrix.of_source(SOURCE, grid, SerialExecutor())
    return MemorySystems(kept, grid, kept.diagonal, context)


SYSTEMS = {
    "a square": lambda context: SquareMatrix(A.copy(), context.progress),
    "one tile": lambda context: MemorySystems(SOURCE, WHOLE, A.diagonal(), context),
    "tiles": lambda context: MemorySystems(SOURCE, TileGrid(N, 16, 16), A.diagonal(), context),
    "one tile beside the matrix": lambda context: beside(WHOLE, context),
    "tiles beside the matrix": lambda context: beside(TileGrid(N, 16, 16), context),
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
    expected = np.linalg.solve(A + np.diag(SHIFT), B)
    with opened(name) as systems:
        factor = systems.factor("one", SHIFT)
        for group in "one", "two":
            found = systems.solve(group, factor, SHIFT, B)
            assert_allclose(found.x, expected, rtol=1e-11, atol=1e-12)
        del factor
        check = systems.check(found, None)
        assert check.residual < 1e-13
        assert 1 <= check.condition <= 1.01 * np.linalg.cond(A + np.diag(SHIFT))
        systems.release("one")


@each
def test_factors_that_exist_together_and_the_matrix_do_not_disturb_each_other(name):
    shifts = [SHIFT, 3 * SHIFT, 5 * SHIFT]
    with opened(name) as systems:
        factors = [systems.factor(f"{k}", shift) for k, shift in enumerate(shifts)]
        for turn in range(2):
            for k, (factor, shift) in enumerate(zip(factors, shifts, strict=True)):
                expected = np.linalg.solve(A + np.diag(shift), B)
                assert_allclose(factor.solve(B), expected, rtol=1e-11, atol=1e-12)
                assert_allclose(LocalFactor(factor.matrix, 1).solve(B), expected, rtol=1e-11, atol=1e-12)
                found = systems.solve(f"{k}-{turn}", factor, shift, B)
                assert systems.check(found, None).residual < 1e-13
            del factors[0], shifts[0], factor  # its memory may be the next one's
            factors.append(systems.factor(f"next-{turn}", 7 * SHIFT))
            shifts.append(7 * SHIFT)


@each
def test_factors_in_float32_are_applied_until_they_are_given_up(name):
    with opened(name) as systems:
        if not isinstance(systems, TileSystems):
            return
        # The second may have the memory of the first.
        for k in range(3):
            factor, matrix = (
                systems.rounded_factor(f"{k}", (k + 1) * SHIFT, systems.source),
                A + np.diag((k + 1) * SHIFT),
            )
            assert_allclose(factor.solve(B), np.linalg.solve(matrix, B), rtol=1e-3, atol=1e-4)
            systems.release(f"{k}")


@each
def test_a_matrix_that_is_not_positive_definite_is_refused_and_the_next_one_solved(name):
    with opened(name) as systems:
        calls = [systems.factor]
        if isinstance(systems, TileSystems):
            calls.append(lambda *a: systems.rounded_factor(*a, systems.source))
        for call in calls:
            with pytest.raises(NotPositiveDefiniteError):
                call("bad", np.full(N, -5.0))
        factor = systems.factor("good", SHIFT)
        found = systems.solve("good", factor, SHIFT, B).x
        assert_allclose(found, np.linalg.solve(A + np.diag(SHIFT), B), rtol=1e-11, atol=1e-12)
