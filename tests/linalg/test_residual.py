"""The true residual, from the matrix itself."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from dkrr.linalg.residual import Solved, check_tiled, relative, residual_tasks, uses_symmetry
from dkrr.runtime import Progress, SerialExecutor
from dkrr.tiles import TileGrid
from tests.linalg.systems import RAGGED, grids, make_case, run, vectors


@settings(max_examples=40, deadline=None)
@given(grid=grids(), m=st.integers(1, 3))
def test_against_the_whole_matrix(tmp_path_factory, grid, m):
    folder = tmp_path_factory.mktemp("r")
    case = make_case(folder, grid, m + 1, seed=1)  # the last column is the probe
    X = np.random.default_rng(2).standard_normal((grid.n, m + 1))
    B, G = case.B[:, :-1], X[:, :-1]
    R, squares = B - case.shifted @ G, np.einsum("ij,ij->j", G, case.A @ G)
    case.A[np.triu_indices(grid.n, 1)] = np.nan  # only tiles on or below the diagonal are asked for
    system = case.system
    tasks = residual_tasks(Solved(system.source, grid, system.shift, system.right_sides, vectors(folder, grid, X)))
    parts = [part for part, _ in run(tasks).values().values()]
    assert len(parts) == grid.n_tiles
    assert_allclose(np.linalg.norm([p.norms[0] for p in parts], axis=0), np.linalg.norm(R, axis=0), rtol=1e-10)
    assert_allclose(np.linalg.norm([p.norms[1] for p in parts], axis=0), np.linalg.norm(B, axis=0), rtol=1e-12)
    assert_allclose(np.sum([p.squares for p in parts], axis=0), squares, rtol=1e-9, atol=1e-12)
    expected = np.max(np.linalg.norm(R, axis=0) / np.linalg.norm(B, axis=0))
    assert_allclose(relative([p.norms for p in parts]), expected, rtol=1e-10)


@pytest.mark.parametrize(("m", "symmetric"), [(2, True), (9, False)])
@pytest.mark.parametrize(("slots", "centred", "scaled"), [(1, False, True), (1, True, False), (3, True, True)])
def test_with_few_columns_and_with_many(tmp_path, m, symmetric, slots, centred, scaled):
    grid = TileGrid(n=47, tile=12, panel=12)
    assert uses_symmetry(grid, m + 1) == symmetric
    case = make_case(tmp_path, grid, m + 1, seed=3)
    X = np.random.default_rng(4).standard_normal((grid.n, m))
    B, probe = case.B[:, :-1], case.B[:, -1]
    constants = np.array([np.linspace(-1.0, 2.0, m - 1), np.linspace(0.0, 1e-3, m - 1)]) if centred else None
    G, H = (V[:, :-1] - V[:, -1:] * constants.sum(axis=0) if centred else V for V in (X, B))
    expected = np.linalg.norm(H - case.shifted @ G, axis=0) / np.linalg.norm(B[:, : G.shape[1]], axis=0)
    squares = np.einsum("ij,ij->j", G, case.A @ G)
    solved = np.linalg.solve(case.shifted, probe)
    d = np.random.default_rng(5).uniform(0.5, 2.0, grid.n) if scaled else np.ones(grid.n)
    v, w = probe / d, case.shifted @ (probe / d)
    largest = (w**2 / d).sum() / (v @ w)
    smallest = (probe @ solved) / (d * solved**2).sum()
    case.A[np.triu_indices(grid.n, 1)] = np.nan
    solution = vectors(tmp_path, grid, np.column_stack([X, solved]))
    scaling = vectors(tmp_path, grid, np.sqrt(d)[:, None]) if scaled else None
    system = case.system
    solved = Solved(system.source, grid, system.shift, system.right_sides, solution, scaling)
    found, record = check_tiled(solved, constants, SerialExecutor(), Progress(), slots)
    assert_allclose(found.residual, expected.max(), rtol=1e-12)
    assert_allclose(found.squares, squares, rtol=1e-11)
    assert_allclose(found.condition, largest / smallest, rtol=1e-11)
    entries = sum(grid.height(i) * grid.height(j) for i, j in grid.lower())
    twice = entries - sum(grid.height(i) ** 2 for i in range(grid.n_tiles))
    assert record.bytes_read == 8 * (entries if symmetric else entries + twice)


def test_zero_at_the_solution(tmp_path):
    case = make_case(tmp_path, RAGGED, m=3, seed=1)
    X = np.linalg.solve(case.shifted, case.B)
    system = case.system
    X = vectors(tmp_path, RAGGED, X)
    tasks = residual_tasks(Solved(system.source, RAGGED, system.shift, system.right_sides, X))
    assert relative([part.norms for part, _ in run(tasks).values().values()]) < 1e-14


def test_relative():
    norms = [(np.array([8.0, 4.0]), np.array([3.0, 0.0])), (np.array([6.0, 3.0]), np.array([4.0, 0.0]))]
    assert relative(norms) == 5.0, "5 of a column that is zero counts as it is; 10 / 5 of the other is 2"
    assert relative(norms[:1]) == 4.0
    huge = [(1e300 * r, 1e300 * b) for r, b in norms]
    assert_allclose(relative([(r[:1], b[:1]) for r, b in huge]), 2.0, rtol=1e-15)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("where", ["residual", "both"])
def test_what_is_not_finite_is_not_lost(bad, where):
    size = bad if where == "both" else 1.0
    for other in ([], [(np.array([1e-9, 1e-9]), np.ones(2))]):
        found = relative([(np.array([0.0, bad]), np.array([1.0, size])), *other])
        assert not found <= 1.0
