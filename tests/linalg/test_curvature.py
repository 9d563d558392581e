"""The matrix of a Newton step and its preconditioners, against dense matrices written out."""

import uuid

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from dkrr.linalg.curvature import (
    MIN_SCALE,
    Constrained,
    Curvature,
    CurvatureOperator,
    ScaledFactors,
    factor_scale,
)
from dkrr.linalg.likelihood import Bernoulli, Softmax
from dkrr.linalg.low_rank import GROWTH, LowRank
from dkrr.linalg.pivoted_cholesky import PivotedCholesky
from dkrr.linalg.preconditioner import Identity
from dkrr.linalg.roots import Classwise
from dkrr.linalg.sources import MatrixColumns
from dkrr.rows import MemoryRows
from dkrr.runtime import SerialExecutor
from dkrr.solvers.conjugate_gradient import Iteration
from dkrr.solvers.result import Status
from tests.linalg.systems import MatrixOperator, positive_definite, rows_of

N, M, SHIFT = 23, 3, 0.3
SHIFTS = np.array([[SHIFT]])
K = positive_definite(N)
LIKELIHOODS = {"binary": Bernoulli(1), "ovr": Bernoulli(M), "softmax": Softmax(M)}

every_likelihood = pytest.mark.parametrize("which", LIKELIHOODS)
independent = pytest.mark.parametrize("which", ["binary", "ovr"])
with_and_without = pytest.mark.parametrize("centred", [False, True], ids=["plain", "centred"])
every_state = pytest.mark.parametrize("state", ["usual", "weighted", "far"])


class Case:
    """C Π at some scores, and the same as dense matrices of a system."""

    def __init__(self, which, centred, state="usual"):
        rng = np.random.default_rng(2)
        self.like = LIKELIHOODS[which]
        self.m = self.like.n_columns
        scores = 2 * rng.standard_normal((N, self.m))
        weights = None
        if state == "weighted":
            weights = rng.uniform(0.1, 3.0, N)
            weights[[0, 7, 22]] = 0.0
        if state == "far":  # hardly any curvature, and in some rows none
            scores = np.where(rng.random((N, self.m)) < 0.4, 800.0, 15.0) * np.sign(scores)
        self.root = self.like.root(scores, weights)
        self.curvature = Curvature.of_root(self.root, centred=centred)
        self.is_softmax, self.centred = which == "softmax", centred
        self.n_systems = self.like.n_systems
        c = self.root.scale
        # C of a system as a matrix: (n, n) for each column, or one (n m, n m).
        if self.is_softmax:
            C = np.zeros((N * self.m, N * self.m))
            for i in range(N):
                here, u = slice(i * self.m, (i + 1) * self.m), self.root.unit[i]
                C[here, here] = np.diag(c[i]) @ (np.eye(self.m) - np.outer(u, u))
            self.C, self.K, ones = [C], np.kron(K, np.eye(self.m)), np.tile(np.eye(self.m), (N, 1))
        else:
            self.C, self.K, ones = [np.diag(c[:, k]) for k in range(self.m)], K, np.ones((N, 1))
        self.C_hat = [C.T @ ones for C in self.C]
        size = len(self.K)
        self.projection = [
            np.eye(size) - H @ np.linalg.pinv(H.T @ H, rcond=1e-12, hermitian=True) @ H.T if centred else np.eye(size)
            for H in self.C_hat
        ]

    def matrix(self, k=0):
        """Π Cᵀ K C Π."""
        P, C = self.projection[k], self.C[k]
        return P @ C.T @ self.K @ C @ P

    def vectors(self, seed=4):
        return np.random.default_rng(seed).standard_normal((len(self.K), self.n_systems))


def factor(rank, capacity=99):
    found = PivotedCholesky(MatrixColumns(MemoryRows(K)), SerialExecutor(), f"t-{uuid.uuid4().hex}", 2, capacity)
    found.grow(rank)
    return found


def scaled_factors(scale, shift=SHIFT):
    """With solvers that solve (K + diag(s / c²)) X = B by elimination."""
    c = factor_scale(scale)
    solvers = [lambda b, s=shift / c[:, k] ** 2: np.linalg.solve(K + np.diag(s), b) for k in range(c.shape[1])]
    return ScaledFactors(solvers, c)


def as_matrix(preconditioner, size, column=0):
    return preconditioner.apply(np.eye(size), np.full(size, column))


def assert_semidefinite(A):
    assert_allclose(A, A.T, atol=1e-11 * np.abs(A).max())
    assert np.linalg.eigvalsh((A + A.T) / 2)[0] >= -1e-11 * np.abs(A).max()


@every_state
@with_and_without
@every_likelihood
class TestCurvature:
    def test_operator(self, which, centred, state):
        case = Case(which, centred, state)
        operator, V = CurvatureOperator(MatrixOperator(K), case.curvature), case.vectors()
        before = V.copy()
        assert operator.n == len(case.K)
        found = operator.multiply(V)
        expected = np.column_stack([case.matrix(k) @ V[:, k] for k in range(case.n_systems)])
        assert_allclose(found, expected, atol=1e-12 * max(np.abs(expected).max(), 1e-300))
        assert_array_equal(V, before)

    def test_projection(self, which, centred, state):
        case = Case(which, centred, state)
        c, V = case.curvature, case.vectors()
        projected = c.project(case.root.unstack(V))
        expected = np.column_stack([P @ V[:, k] for k, P in enumerate(case.projection)])
        assert_allclose(case.root.stack(projected), expected, atol=1e-12)
        assert_allclose(c.project(projected), projected, atol=1e-12)
        if centred:
            assert_allclose(case.root.apply(projected).sum(axis=0), 0.0, atol=1e-12)

    def test_constant(self, which, centred, state):
        case = Case(which, centred, state)
        b = np.array([0.3, -2.0, 1.0])[: case.m]
        found = case.root.stack(case.curvature.constant(b))
        parts = [H @ (b if case.is_softmax else b[k : k + 1]) for k, H in enumerate(case.C_hat)]
        assert_allclose(found, np.column_stack(parts), atol=1e-14)

    def test_stacking(self, which, centred, state):
        case = Case(which, centred, state)
        x = np.random.default_rng(0).standard_normal((N, case.m))
        stacked = case.root.stack(x)
        assert stacked.shape == (len(case.K), case.n_systems)
        assert_array_equal(case.root.unstack(stacked), x)


class TestColumns:
    @with_and_without
    @pytest.mark.parametrize("columns", [[1], [0, 2], [1, 2], [0, 1, 2]])
    def test_some_of_the_systems(self, centred, columns):
        """Those that are done are left out of a product."""
        case, index = Case("ovr", centred, "weighted"), np.array(columns)
        operator, V = CurvatureOperator(MatrixOperator(K), case.curvature), case.vectors()
        found = operator.multiply(np.ascontiguousarray(V[:, columns]), columns=index)
        assert_allclose(found, operator.multiply(V)[:, columns], atol=1e-13)

    def test_a_softmax_has_one_system(self):
        case = Case("softmax", centred=True)
        assert case.curvature.of_columns(np.array([0])) is case.curvature

    def test_precision_is_passed_on(self):
        case = Case("ovr", centred=True)
        operator, V = CurvatureOperator(MatrixOperator(K), case.curvature), case.vectors()
        error = np.abs(operator.multiply(V, "float32") - operator.multiply(V)).max()
        assert 0 < error < 1e-5
        assert operator.record is operator.gram.record


class TestLowRankWithScales:
    @every_state
    @independent
    def test_is_the_inverse(self, which, state):
        case, F = Case(which, centred=False, state=state), factor(7)
        M_inverse, c = LowRank(F, SHIFTS, case.root.scale), case.root.scale
        R = case.vectors()
        before = R.copy()
        found = M_inverse.apply(R, np.arange(case.m))
        for k in range(case.m):
            kept = np.broadcast_to(M_inverse.shifts(np.array([k]))[:, 0], N)
            dense = c[:, k, None] * (rows_of(F) @ rows_of(F).T) * c[:, k] + np.diag(kept)
            assert (kept >= SHIFT).all()
            assert_allclose(found[:, k], np.linalg.solve(dense, R[:, k]), rtol=1e-10, atol=1e-12)
            assert_semidefinite(as_matrix(M_inverse, N, k))
        assert_array_equal(R, before)
        F.close()

    @pytest.mark.parametrize("columns", [[1], [2, 1], [0, 2], [1, 1, 0, 1]])
    def test_some_columns(self, columns):
        F = factor(7)
        M_inverse = LowRank(F, SHIFTS, Case("ovr", centred=False).root.scale)
        R = np.random.default_rng(1).standard_normal((N, len(columns)))
        found = M_inverse.apply(R, np.array(columns))
        for i, k in enumerate(columns):
            assert_allclose(found[:, i], M_inverse.apply(R[:, i : i + 1], np.array([k]))[:, 0], atol=1e-13)
        F.close()

    def test_a_complete_factor_is_the_inverse_of_the_matrix(self):
        case, F = Case("ovr", centred=False), factor(N)
        found = LowRank(F, SHIFTS, case.root.scale).apply(case.vectors(), np.arange(M))
        for k in range(M):
            assert_allclose((case.matrix(k) + SHIFT * np.eye(N)) @ found[:, k], case.vectors()[:, k], atol=1e-10)
        F.close()

    def test_without_a_factor_only_the_shift(self):
        F = PivotedCholesky(MatrixColumns(MemoryRows(np.zeros((N, N)))), SerialExecutor(), "t-empty", 2, 9)
        F.grow(3)
        case = Case("ovr", centred=False)
        found = LowRank(F, SHIFTS, case.root.scale).apply(case.vectors(), np.arange(M))
        assert_allclose(found, case.vectors() / SHIFT, rtol=1e-14)
        F.close()

    @pytest.mark.parametrize("centred", [False, True])
    @every_likelihood
    def test_grows_with_all_that_wraps_it(self, which, centred):
        case, F = Case(which, centred), factor(6, capacity=11)
        found = LowRank(F, SHIFTS, case.root.scale)
        if case.is_softmax:
            found = Classwise(found, case.root)
        if centred:
            found = Constrained(found, case.curvature)
        assert found.rank == 6 and found.can_grow
        assert found.record is F.record
        assert found.grow() and found.rank == int(GROWTH * 6) + 1
        fresh = LowRank(F, SHIFTS, case.root.scale)
        fresh = Classwise(fresh, case.root) if case.is_softmax else fresh
        fresh = Constrained(fresh, case.curvature) if centred else fresh
        everything = np.arange(case.n_systems)
        assert_allclose(found.apply(case.vectors(), everything), fresh.apply(case.vectors(), everything), rtol=1e-10)
        assert found.grow() and found.rank == 11
        assert not found.can_grow and not found.grow()
        F.close()


class TestScaledFactors:
    @every_state
    @independent
    def test_is_the_inverse(self, which, state):
        case = Case(which, centred=False, state=state)
        M_inverse, R = scaled_factors(case.root.scale), case.vectors()
        before = R.copy()
        found = M_inverse.apply(R, np.arange(case.m))
        for k in range(case.m):
            expected = np.linalg.solve(case.matrix(k) + SHIFT * np.eye(N), R[:, k])
            assert_allclose(found[:, k], expected, rtol=1e-8, atol=1e-10)
            assert_semidefinite(as_matrix(M_inverse, N, k))
        assert_array_equal(R, before)

    @pytest.mark.parametrize("columns", [[1], [2, 1], [1, 1, 0, 1]])
    def test_some_columns(self, columns):
        M_inverse = scaled_factors(Case("ovr", centred=False).root.scale)
        R = np.random.default_rng(1).standard_normal((N, len(columns)))
        found = M_inverse.apply(R, np.array(columns))
        for i, k in enumerate(columns):
            assert_allclose(found[:, i], M_inverse.apply(R[:, i : i + 1], np.array([k]))[:, 0], rtol=1e-12)

    def test_scales_are_kept_away_from_zero(self):
        scale = np.array([[1.0, 0.0], [1e-20, 2.0]])
        found = factor_scale(scale)
        assert_allclose(found, [[1.0, 2 * MIN_SCALE], [2 * MIN_SCALE, 2.0]])
        assert (factor_scale(np.zeros((3, 2))) > 0).all()
        assert np.isfinite(1.0 / factor_scale(np.zeros((3, 2))) ** 2).all()


class TestClasswise:
    @every_state
    @pytest.mark.parametrize("by", ["factors", "low rank"])
    def test_is_projected_on_both_sides(self, by, state):
        case = Case("softmax", centred=False, state=state)
        c, F = case.root.scale, factor(7)
        base = scaled_factors(c) if by == "factors" else LowRank(F, SHIFTS, c)
        A = K if by == "factors" else rows_of(F) @ rows_of(F).T
        inverse, P = np.zeros((N * M, N * M)), np.zeros((N * M, N * M))
        for k in range(M):
            shift = np.full(N, SHIFT) if by == "factors" else np.broadcast_to(base.shifts(np.array([k]))[:, 0], N)
            inverse[k::M, k::M] = np.linalg.inv(c[:, k, None] * A * c[:, k] + np.diag(shift))
        for i in range(N):
            here, u = slice(i * M, (i + 1) * M), case.root.unit[i]
            P[here, here] = np.eye(M) - np.outer(u, u)
        preconditioner = Classwise(base, case.root)
        found = as_matrix(preconditioner, N * M)
        assert_allclose(found, P @ inverse @ P, atol=1e-9)
        assert_semidefinite(found)
        R = case.vectors()
        before = R.copy()
        assert_allclose(preconditioner.apply(R, np.zeros(1, np.intp)), found @ R, atol=1e-10)
        assert_array_equal(R, before)
        F.close()

    @every_state
    def test_leaves_little_to_conjugate_gradient(self, state):
        """Eigenvalues of the preconditioned matrix, where it is not zero, are small, whatever the shift."""
        case = Case("softmax", centred=False, state=state)
        for shift in (SHIFT, 1e-3, 1e-6):
            preconditioner = Classwise(scaled_factors(case.root.scale, shift), case.root)
            found = as_matrix(preconditioner, N * M)
            values = np.sort(np.linalg.eigvals((case.matrix() + shift * np.eye(N * M)) @ found).real)[N:]
            assert values[0] >= 1 - 1e-6 and values[-1] <= 2 * M


class TestConstrained:
    @every_state
    @independent
    def test_is_the_inverse_on_what_the_projection_leaves(self, which, state):
        case = Case(which, centred=True, state=state)
        base = scaled_factors(case.root.scale)
        preconditioner = Constrained(base, case.curvature)
        for k in range(case.m):
            P = case.projection[k]
            whole = P @ (case.matrix(k) + SHIFT * np.eye(N)) @ P
            found = as_matrix(preconditioner, N, k)
            assert_allclose(P @ found @ P, np.linalg.pinv(whole, rcond=1e-12, hermitian=True), atol=1e-8)
            assert_semidefinite(found)
            assert_allclose(case.C_hat[k].T @ found, 0.0, atol=1e-10)

    @pytest.mark.parametrize("columns", [[1], [2, 1], [1, 1, 0]])
    def test_some_columns(self, columns):
        case = Case("ovr", centred=True)
        preconditioner = Constrained(scaled_factors(case.root.scale), case.curvature)
        R = np.random.default_rng(1).standard_normal((N, len(columns)))
        before = R.copy()
        found = preconditioner.apply(R, np.array(columns))
        for i, k in enumerate(columns):
            assert_allclose(found[:, i], preconditioner.apply(R[:, i : i + 1], np.array([k]))[:, 0], atol=1e-12)
        assert_array_equal(R, before)

    @every_state
    @pytest.mark.parametrize("by", ["factors", "low rank"])
    def test_of_a_softmax(self, by, state):
        case, F = Case("softmax", centred=True, state=state), factor(7)
        c, H = case.root.scale, case.C_hat[0]
        base = Classwise(scaled_factors(c) if by == "factors" else LowRank(F, SHIFTS, c), case.root)
        B = as_matrix(base, N * M)
        expected = B - B @ H @ np.linalg.pinv(H.T @ B @ H, rcond=1e-12, hermitian=True) @ H.T @ B
        found = as_matrix(Constrained(base, case.curvature), N * M)
        assert_allclose(found, expected, atol=1e-8)
        assert_semidefinite(found)
        assert_allclose(H.T @ found, 0.0, atol=1e-9)
        F.close()

    def test_where_there_is_no_curvature_at_all(self):
        like = Bernoulli(1)
        root = like.root(np.full((N, 1), 5000.0), None)
        assert not root.scale.any()
        curvature = Curvature.of_root(root, centred=True)
        R = np.random.default_rng(0).standard_normal((N, 1))
        found = Constrained(scaled_factors(root.scale), curvature).apply(R, np.zeros(1, np.intp))
        assert_allclose(found, R / SHIFT, rtol=1e-10)
        assert_array_equal(curvature.project(R), R)


@every_state
@with_and_without
@every_likelihood
@pytest.mark.parametrize("by", ["none", "low rank", "factors"])
def test_conjugate_gradient_solves_the_system(which, centred, by, state):
    case, F = Case(which, centred, state), factor(7)
    preconditioner = Identity()
    if by != "none":
        scale = case.root.scale
        preconditioner = LowRank(F, SHIFTS, scale) if by == "low rank" else scaled_factors(scale)
        preconditioner = Classwise(preconditioner, case.root) if case.is_softmax else preconditioner
        preconditioner = Constrained(preconditioner, case.curvature) if centred else preconditioner
    # Right-hand sides in the range of Π Cᵀ, as those of a step are.
    c, V = case.curvature, case.vectors()
    B = case.root.stack(c.project(case.root.adjoint(case.root.unstack(V))))
    B = B / np.maximum(np.linalg.norm(B, axis=0), 1e-300)
    operator = CurvatureOperator(MatrixOperator(K), c)
    found = Iteration(operator, np.array([[SHIFT]]), B, preconditioner, tol=1e-10, max_iter=200).run()
    assert found.status is Status.CONVERGED
    for k in range(case.n_systems):
        expected = np.linalg.solve(case.matrix(k) + SHIFT * np.eye(len(case.K)), B[:, k])
        assert_allclose(found.x[:, k], expected, atol=1e-8)
    if by == "factors" and not case.is_softmax:
        assert found.iterations <= 2
    F.close()
