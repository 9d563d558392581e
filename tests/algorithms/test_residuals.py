"""The true residual and the condition number beside it, refinement to the level of rounding, what float32 holds."""

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from dkrr.blas import column_sizes
from dkrr.cluster import Progress, SerialExecutor
from dkrr.kernels import RBF
from dkrr.linalg import condition, float32_tiles, residual
from dkrr.linalg.condition import Moments, condition_number, scaling_of, with_probe
from dkrr.linalg.preconditioners import Preconditioner
from dkrr.linalg.refinement import Refinement
from dkrr.linalg.residual import TiledSolution, relative, uses_symmetry
from dkrr.solvers import Status
from dkrr.store import TileGrid
from tests import systems
from tests.systems import MatrixOperator, grids, random, vectors

one_blas_thread = systems.one_blas_thread

WHOLE = TileGrid(n=47, tile=12, panel=12)
"""Four tiles of one panel."""


@given(grid=grids(), m=st.sampled_from([2, 9]), slots=st.integers(1, 3), centred=st.booleans(), scaled=st.booleans())
@example(grid=WHOLE, m=2, slots=3, centred=True, scaled=True)  # by the symmetry
@example(grid=WHOLE, m=9, slots=3, centred=True, scaled=True)  # without
def test_residuals_condition_and_squares_by_tiles_are_those_of_the_whole_matrix(
    tmp_path_factory, grid, m, slots, centred, scaled
):
    assert uses_symmetry(WHOLE, 3) and not uses_symmetry(WHOLE, 10)
    folder = tmp_path_factory.mktemp("r")
    case = systems.make_case(folder, grid, m + 1, seed=3)  # the last column is the probe
    X = random(grid.n, m, seed=4)
    B, probe = case.B[:, :-1], case.B[:, -1]
    constants = np.array([np.linspace(-1.0, 2.0, m - 1), np.linspace(0.0, 1e-3, m - 1)]) if centred else None
    G, H = (V[:, :-1] - V[:, -1:] * constants.sum(axis=0) if centred else V for V in (X, B))
    left, more = H - case.shifted @ G, np.zeros(G.shape[1])
    if centred:  # what another constant explains of the residual is left to that
        more = (c := B[:, -1]) @ left / (c @ c)
        left = left - np.outer(c, more)
    expected = np.linalg.norm(left, axis=0) / np.linalg.norm(B[:, : G.shape[1]], axis=0)
    squares = np.einsum("ij,ij->j", G, case.A @ G)
    solved = np.linalg.solve(case.shifted, probe)
    d = np.random.default_rng(5).uniform(0.5, 2.0, grid.n) if scaled else np.ones(grid.n)
    v, w = probe / d, case.shifted @ (probe / d)
    largest = (w**2 / d).sum() / (v @ w)
    smallest = (probe @ solved) / (d * solved**2).sum()
    case.A[np.triu_indices(grid.n, 1)] = np.nan
    solution = vectors(folder, grid, np.column_stack([X, solved]))
    scaling = vectors(folder, grid, np.sqrt(d)[:, None]) if scaled else None
    system = case.system
    solved = TiledSolution(system.source, grid, system.shift, vectors(folder, grid, case.B), solution, scaling)
    found, record = residual.check_tiled(solved, constants, SerialExecutor(), Progress(), slots)
    assert_allclose(found.residual, expected.max(), rtol=1e-10)
    assert_allclose(found.constants, more, rtol=1e-9, atol=1e-12 * np.abs(left).max())
    assert_allclose(found.squares, squares, rtol=1e-9, atol=1e-11)
    assert_allclose(found.condition, largest / smallest, rtol=1e-9)
    entries = sum(grid.height(i) * grid.height(j) for i, j in grid.lower())
    twice = entries - sum(grid.height(i) ** 2 for i in range(grid.n_tiles))
    assert record.bytes_read == 8 * (entries if uses_symmetry(grid, m + 1) else entries + twice)


def test_the_relative_residual_is_the_worst_over_columns():
    norms = [(np.array([8.0, 4.0]), np.array([3.0, 0.0])), (np.array([6.0, 3.0]), np.array([4.0, 0.0]))]
    assert relative(norms) == 5.0, "5 of a column that is zero counts as it is; 10 / 5 of the other is 2"
    assert relative(norms[:1]) == 4.0
    huge = [(1e300 * r[:1], 1e300 * b[:1]) for r, b in norms]
    assert_allclose(relative(huge), 2.0, rtol=1e-15)
    for bad in (np.nan, np.inf):
        assert not relative([(np.array([0.0, bad]), np.array([1.0, bad])), *norms]) <= 1.0, "not lost"


def estimate(A, diagonal=None):
    n, scaling = len(A), None if diagonal is None else scaling_of(diagonal)
    probe = with_probe(np.zeros((n, 1)), scaling)[:, -1]
    v = condition.multiplied_probe(probe, scaling)
    solved = Moments.of_solved(probe, np.linalg.solve(A, probe), scaling)
    return condition_number(Moments.of_multiplied(v, A @ v, scaling), solved)


def with_eigenvalues(values, seed=0):
    Q = np.linalg.qr(random(len(values), len(values), seed=seed))[0]
    return (Q * values) @ Q.T


@given(st.integers(2, 60), st.floats(0, 12), st.floats(0.1, 8.0), st.integers(0, 100))
def test_the_condition_number_is_never_above_and_seldom_far_below(n, digits, bend, seed):
    values = 10 ** (-digits * np.linspace(0, 1, n) ** bend)
    found, exact = estimate(with_eigenvalues(values, seed)), 10**digits
    assert 1.0 <= found <= exact * 1.01 * (1 + 1e-15 * exact * n)
    assert found >= exact / 1000


def test_a_condition_number_that_cannot_be_known_is_nan_or_infinite():
    good = Moments(1.0, 1.0)
    assert condition_number(good, Moments(-1e-20, 1e10)) == math.inf
    assert math.isnan(condition_number(Moments(math.nan, 1.0), good))
    assert math.isnan(condition_number(good, Moments(math.inf, math.inf)))
    assert_array_equal(scaling_of(np.array([4.0, 0.0, -1.0])), [2.0, 1.0, 1.0])
    assert condition.worst([math.nan, 3.0, 2.0]) == 3.0 and math.isnan(condition.worst([]))


class Float32Inverse(Preconditioner):
    """Inverse by a dense factor in float32."""

    def __init__(self, matrix):
        self.factor = np.linalg.cholesky(matrix.astype(np.float32))

    def apply(self, residuals, columns):
        z = np.linalg.solve(self.factor, residuals.astype(np.float32))
        return np.linalg.solve(self.factor.T, z).astype(np.float64)


def gram(n=300):
    X = random(n, 2)
    return RBF(gamma=0.5)(X), random(n, 3, seed=1)


def refine(K, alpha, B):
    shift = np.full(len(K), alpha)
    inverse = Float32Inverse(K + np.diag(shift))
    begun = Refinement.begun(MatrixOperator(K), K.diagonal(), shift, B, inverse, Progress())
    return begun, begun.iteration.run(state=begun.start)


@pytest.mark.parametrize("alpha", [1.0, 1e-3, 1e12])
def test_refinement_ends_at_the_residual_of_a_factorisation_in_float64(alpha):
    K, B = gram()
    begun, outcome = refine(K, alpha, B)
    A = K + alpha * np.eye(len(K))
    direct = np.linalg.norm(B - A @ np.linalg.solve(A, B), axis=0) / np.linalg.norm(B, axis=0)
    found = np.linalg.norm(B - A @ outcome.x, axis=0) / np.linalg.norm(B, axis=0)
    assert outcome.status is Status.CONVERGED
    assert (found <= 4 * direct + 3e-15).all(), "or √n units of rounding"
    assert_allclose(found, outcome.residuals, rtol=0.5, atol=1e-15)
    assert begun.condition == pytest.approx(np.linalg.cond(A), rel=0.9)
    assert begun.condition <= 1.01 * np.linalg.cond(A)
    # Each right-hand side has its own level of rounding: that of ones is far lower, as with an intercept.
    _, outcome = refine(K + 5.0, 1e-2, np.column_stack([B[:, 0], np.ones(len(K))]))
    assert outcome.status is Status.CONVERGED


# What float32 holds of a matrix ------------------------------------------------------------------------------


@given(st.lists(st.floats(1e-300, 1e300), min_size=1, max_size=9))
@example([0.5, 1.0, 1.99])
def test_a_scale_brings_the_diagonal_near_one_and_changes_no_digit(diagonal):
    scale, near = float32_tiles.rounding_scale(np.array(diagonal)), all(0.5 <= d < 2.0 for d in diagonal)
    assert (scale is None) == near
    if not near:
        scaled = np.array(diagonal) * scale[:, 0] * scale[:, 0]
        assert ((scaled >= 0.5) & (scaled < 2.0)).all()
        assert (np.frexp(scale)[0] == 0.5).all(), "powers of two"


@pytest.mark.parametrize("largest", [-3.0, 1e-310, 5e-324, 1e-160, 2.0**1023, -np.finfo(float).max])
def test_sizes_of_vectors_are_powers_of_two_that_change_no_digit(largest):
    vectors = np.array([[largest, 1.0, 0.0], [largest / 4, 0.0, 0.0]])
    sizes = column_sizes(vectors)
    assert_array_equal(np.frexp(sizes)[0], 0.5)
    assert_array_equal(vectors / sizes * sizes, vectors)
    assert np.abs(vectors / sizes).max() < 2.0
    assert abs(largest) < np.finfo(float).tiny or np.abs(largest / sizes[0]) > 0.5
