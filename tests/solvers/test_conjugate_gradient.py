"""Conjugate gradient against a direct solution: what converges, what is counted, what is reported."""

import copy
import json
import uuid
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from dkrr.errors import InputError, NotFiniteError, NotPositiveDefiniteError
from dkrr.kernels import RBF
from dkrr.linalg.low_rank import LowRank
from dkrr.linalg.operator import Operator
from dkrr.linalg.pivoted_cholesky import PivotedCholesky
from dkrr.linalg.preconditioner import Diagonal, Identity, Preconditioner
from dkrr.linalg.sources import GramColumns, GramTiles, MatrixColumns
from dkrr.linalg.tiled_operator import TiledOperator
from dkrr.rows import MemoryRows
from dkrr.runtime import Progress, RunRecord, SerialExecutor
from dkrr.solvers import conjugate_gradient
from dkrr.solvers.conjugate_gradient import (
    LOW_PRECISION_DROP,
    WINDOW,
    Iteration,
    cycles_in_low_precision,
    ritz_values,
)
from dkrr.solvers.iteration_state import State
from dkrr.solvers.result import Status
from dkrr.solvers.settings import ConjugateGradient, RPCholesky
from dkrr.tiles import TileGrid
from tests.linalg.systems import positive_definite
from tests.oracles import naive_conjugate_gradient

N, M = 47, 3


@dataclass
class Counting(Operator):
    """A matrix that notes its products: precision and number of columns."""

    matrix: np.ndarray
    record: RunRecord = field(default_factory=RunRecord)
    products: list = field(default_factory=list)

    @property
    def n(self):
        return len(self.matrix)

    def multiply(self, vectors, precision="float64", columns=None):
        self.products.append((precision, vectors.shape[1]))
        return (self.matrix.astype(precision) @ vectors.astype(precision)).astype(np.float64)

    def columns(self, precision):
        return [m for p, m in self.products if p == precision]


def right_sides(n=N, m=M, seed=3):
    return np.random.default_rng(seed).standard_normal((n, m))


def solution(A, shift, B):
    """Column by column, by elimination."""
    n = len(A)
    columns = [
        np.linalg.solve(A + np.diag(shift[:, 0] if shift.shape == (n, 1) else np.full(n, shift[0, k])), B[:, k])
        for k in range(B.shape[1])
    ]
    return np.column_stack(columns)


def true_residuals(A, shift, B, X):
    R = B - A @ X - shift * X
    return np.linalg.norm(R, axis=0) / np.where(np.linalg.norm(B, axis=0) > 0, np.linalg.norm(B, axis=0), 1.0)


class Backwards(Counting):
    """Its float32 points the wrong way, but for the first product, of the deflated direction."""

    def multiply(self, vectors, precision="float64", columns=None):
        product = super().multiply(vectors, precision)
        return product * (-1.0 if precision == "float32" and len(self.products) > 1 else 1.0)


def ill_conditioned(smallest):
    """Eigenvalues from there to 1."""
    Q = np.linalg.qr(np.random.default_rng(0).standard_normal((N, N)))[0]
    A = (Q * np.geomspace(smallest, 1, N)) @ Q.T
    return (A + A.T) / 2


SHIFTS = {
    "one number": np.full((1, M), 0.1),
    "a number for each column": np.array([[0.01, 0.1, 3.0]]),
    "a vector": np.random.default_rng(1).uniform(0.05, 2.0, (N, 1)),
}


def preconditioner(which, A, shift):
    if which == "none":
        return Identity()
    if which == "diagonal":
        return Diagonal(A.diagonal()[:, None], shift)
    factor = PivotedCholesky(MatrixColumns(MemoryRows(A)), SerialExecutor(), f"t-{uuid.uuid4().hex}", 2, 99)
    factor.grow(20)
    return LowRank(factor, shift)


class TestSolution:
    @pytest.mark.parametrize("mixed", [False, True], ids=["float64", "mixed"])
    @pytest.mark.parametrize(
        ("by", "which"),
        # Jacobi's has a number for each column.
        [
            (by, which)
            for by in ("none", "diagonal", "low rank")
            for which in SHIFTS
            if (by, which) != ("diagonal", "a vector")
        ],
    )
    def test_is_that_of_elimination(self, by, which, mixed):
        A, shift, B = positive_definite(N), SHIFTS[which], right_sides()
        found = Iteration(Counting(A), shift, B, preconditioner(by, A, shift), tol=1e-10, mixed=mixed).run()
        assert found.status is Status.CONVERGED
        assert_allclose(found.x, solution(A, shift, B), atol=1e-8)
        assert (found.residuals <= 1e-10).all()
        assert_allclose(found.residuals, true_residuals(A, shift, B, found.x), rtol=1e-3, atol=1e-15)
        assert found.rank == (20 if by == "low rank" else 0)

    @pytest.mark.parametrize("mixed", [False, True])
    @settings(max_examples=30, deadline=None)
    @given(n=st.integers(1, 30), m=st.integers(1, 4), tol=st.sampled_from([1e-3, 1e-9]), deflated=st.booleans())
    def test_ragged_shapes(self, mixed, n, m, tol, deflated):
        A, B, shift = positive_definite(n, n), right_sides(n, m), np.full((1, m), 0.3)
        found = Iteration(Counting(A), shift, B, tol=tol, mixed=mixed, deflate=np.ones(n) if deflated else None)
        found = found.run()
        assert found.status is Status.CONVERGED
        assert (true_residuals(A, shift, B, found.x) <= 1.001 * tol).all()

    @pytest.mark.parametrize("iterations", [1, 2, 5])
    def test_steps_are_the_textbook_s(self, iterations):
        A, B = positive_definite(N), right_sides()
        found = Iteration(Counting(A), np.full((1, M), 0.1), B, tol=1e-12, max_iter=iterations).run()
        for k in range(M):
            expected = naive_conjugate_gradient(A + 0.1 * np.eye(N), B[:, k], iterations)
            assert_allclose(found.x[:, k], expected, rtol=1e-10, atol=1e-13)

    def test_as_many_steps_as_different_eigenvalues(self):
        A = np.diag(np.repeat([1.0, 2.0, 5.0, 9.0], 10))
        found = Iteration(Counting(A), np.zeros((1, 2)), right_sides(40, 2), tol=1e-12).run()
        assert found.iterations == 4

    def test_an_exact_preconditioner_takes_one(self):
        A, B = positive_definite(N), right_sides()
        shift = np.full((1, M), 0.1)
        full = preconditioner("low rank", A, shift)
        full.factor.grow(N)
        found = Iteration(Counting(A), shift, B, LowRank(full.factor, shift), tol=1e-10).run()
        assert found.iterations == 1

    def test_tiles(self):
        X = np.random.default_rng(0).standard_normal((90, 3))
        B, shift, c = right_sides(90, 2), np.full((1, 2), 1e-3), np.random.default_rng(4).uniform(0.5, 2.0, 90)
        run, rows = f"t-{uuid.uuid4().hex}", MemoryRows(X)
        operator = TiledOperator(GramTiles(RBF(), rows), TileGrid(90, 24, 24), SerialExecutor(), run, 2, 2, 3,
                                 keeps="float32", scale=c)  # fmt: skip
        factor = PivotedCholesky(GramColumns(RBF(), rows), SerialExecutor(), run, 2, 30, importance=c**2,
                                 dtype=np.float32)  # fmt: skip
        factor.grow(30)
        found = Iteration(operator, shift, B, LowRank(factor, shift, c), tol=1e-9, mixed=True).run()
        operator.close()
        assert found.status is Status.CONVERGED
        K = c[:, None] * RBF()(X) * c
        assert_allclose(found.x, solution(K, shift, B), rtol=1e-4, atol=1e-4)
        assert (true_residuals(K, shift, B, found.x) <= 1.01e-9).all()

    def test_the_right_sides_are_the_caller_s(self):
        A, B = positive_definite(N), right_sides()
        before = B.copy()
        Iteration(Counting(A), SHIFTS["one number"], B, deflate=np.ones(N), mixed=True).run()
        assert_array_equal(B, before)


class TestWork:
    def test_columns_that_have_converged_drop_out(self):
        A = np.diag(np.linspace(1.0, 300.0, N))
        B = right_sides()
        B[:, 1] = 0.0
        B[4, 1] = 1.0  # an eigenvector: one step
        shift, operator = np.array([[0.0, 0.0, 1e6]]), Counting(A)  # the third is nearly diagonal: a few steps
        found = Iteration(operator, shift, B, tol=1e-8).run()
        alone = [
            Iteration(Counting(A), shift[:, k : k + 1], B[:, k : k + 1], tol=1e-8).run().iterations for k in range(3)
        ]
        assert alone[1] == 1 and 1 < alone[2] < alone[0] == found.iterations
        steps = operator.products[: found.iterations]
        assert [m for _, m in steps] == [sum(k <= own for own in alone) for k in range(1, found.iterations + 1)]
        assert operator.products[found.iterations :] == [("float64", 3)], "and one true residual of all"

    def test_the_residual_of_those_that_have_converged_stays(self):
        A, B = np.diag(np.linspace(1.0, 300.0, N)), right_sides()
        shift = np.array([[0.0, 1e4, 1e6]])
        found = Iteration(Counting(A), shift, B, tol=1e-9).run()
        assert_allclose(found.residuals, true_residuals(A, shift, B, found.x), rtol=1e-3)

    def test_mixed_uses_float32_but_for_the_residuals(self):
        A, B, operator = positive_definite(N), right_sides(), Counting(positive_definite(N))
        found = Iteration(operator, SHIFTS["one number"], B, tol=1e-9, mixed=True).run()
        assert found.status is Status.CONVERGED
        assert len(operator.columns("float32")) == found.iterations
        assert len(operator.columns("float64")) == cycles_in_low_precision(1e-9) == 3
        assert (true_residuals(A, SHIFTS["one number"], B, found.x) <= 1.01e-9).all()

    def test_float64_uses_no_float32(self):
        operator = Counting(positive_definite(N))
        found = Iteration(operator, SHIFTS["one number"], right_sides()).run()
        assert operator.columns("float32") == []
        assert len(operator.products) == found.iterations + 1

    def test_a_better_preconditioner_takes_fewer(self):
        X = np.random.default_rng(0).standard_normal((90, 2))
        K, shift = RBF()(X), np.full((1, 1), 1e-4)
        counts = []
        for rank in (0, 10, 30):
            factor = PivotedCholesky(MatrixColumns(MemoryRows(K)), SerialExecutor(), f"t-{uuid.uuid4().hex}", 1, 90)
            factor.grow(rank)
            counts.append(Iteration(Counting(K), shift, right_sides(90, 1), LowRank(factor, shift)).run().iterations)
        assert counts[0] > counts[1] > counts[2]

    @pytest.mark.parametrize(("tol", "cycles"), [(0.1, 1), (1e-3, 1), (1e-4, 2), (1e-7, 2), (1e-8, 3), (1e-12, 4)])
    def test_cycles_in_low_precision(self, tol, cycles):
        assert LOW_PRECISION_DROP == 10**-3.5
        assert cycles_in_low_precision(tol) == cycles


class TestStart:
    def test_exact(self):
        A, B, shift = np.diag([1.0, 2.0, 4.0]), np.array([[3.0, 1.0], [3.0, 0.0], [5.0, 2.0]]), np.ones((1, 2))
        operator = Counting(A)
        found = Iteration(operator, shift, B).run(start=B / (A.diagonal()[:, None] + 1))
        assert (found.status, found.iterations) == (Status.CONVERGED, 0)
        assert operator.products == [("float64", 2)]
        assert_array_equal(found.residuals, [0.0, 0.0])
        assert_array_equal(found.x, B / (A.diagonal()[:, None] + 1))

    @pytest.mark.parametrize("mixed", [False, True])
    def test_near(self, mixed):
        A, B, shift = positive_definite(N), right_sides(), SHIFTS["one number"]
        exact = solution(A, shift, B)
        start = exact + 1e-6 * right_sides(seed=9)
        before = start.copy()
        near, far = (Iteration(Counting(A), shift, B, tol=1e-8, mixed=mixed).run(s) for s in (start, None))
        assert near.iterations < far.iterations
        assert_allclose(near.x, exact, atol=1e-7)
        assert_array_equal(start, before)

    @pytest.mark.parametrize("mixed", [False, True])
    @pytest.mark.parametrize("deflated", [False, True])
    def test_right_sides_of_zeros(self, mixed, deflated):
        A, B, shift = positive_definite(N), right_sides(), SHIFTS["one number"]
        B[:, 1] = 0.0
        found = Iteration(Counting(A), shift, B, mixed=mixed, deflate=np.ones(N) if deflated else None).run()
        assert found.status is Status.CONVERGED
        assert_array_equal(found.x[:, 1], 0.0)
        assert_allclose(found.x, solution(A, shift, B), atol=1e-6)
        nothing = Iteration(Counting(A), shift, np.zeros((N, M)), mixed=mixed).run()
        assert (nothing.status, nothing.iterations) == (Status.CONVERGED, 0)
        assert_array_equal(nothing.residuals, np.zeros(M))

    @pytest.mark.parametrize("mixed", [False, True])
    def test_sizes_of_all_kinds(self, mixed):
        A, shift = positive_definite(N), SHIFTS["one number"]
        B = right_sides() * [1e-12, 1.0, 1e12]
        found = Iteration(Counting(A), shift, B, tol=1e-9, mixed=mixed).run()
        assert found.status is Status.CONVERGED, found.messages
        assert (true_residuals(A, shift, B, found.x) <= 1.01e-9).all()


class TestRange:
    """Right-hand sides whose squares, or whose solutions, overflow or underflow."""

    @pytest.mark.parametrize("mixed", [False, True])
    @pytest.mark.parametrize("size", [1e-300, 1e-160, 1e155, 1e200, 1.7e308])
    def test_sizes_without_squares(self, size, mixed):
        A, shift, B = positive_definite(N) + np.eye(N), SHIFTS["one number"], right_sides()
        B /= np.abs(B).max()
        found = Iteration(Counting(A), shift, size * B, tol=1e-9, mixed=mixed).run()
        assert found.status is Status.CONVERGED
        assert_allclose(found.x, size * solution(A, shift, B), rtol=1e-5, atol=1e-8 * size)
        assert ((found.residuals > 0) & (found.residuals <= 1e-9)).all()

    def test_a_solution_that_overflows(self):
        A, B = 1e-10 * positive_definite(N), np.full((N, 1), 1e305)
        found = Iteration(Counting(A), np.zeros((1, 1)), B).run()
        assert found.status is Status.STALLED and found.residuals[0] == np.inf
        assert "too large for float64" in found.messages[-1]

    @pytest.mark.parametrize("what", [np.nan, np.inf])
    @pytest.mark.filterwarnings("ignore:invalid value")
    def test_what_is_not_finite_has_not_converged(self, what):
        B = right_sides()
        B[3, 1] = what
        found = Iteration(Counting(positive_definite(N)), SHIFTS["one number"], B, max_iter=50).run()
        assert found.status is not Status.CONVERGED
        assert not found.residuals[1] <= 1e-8


class TestFarBelow:
    """Shifts far below the smallest eigenvalue, and what float32 makes of the factor."""

    @pytest.mark.parametrize("shift", [0.0, 1e-15, 1e-8])
    def test_a_preconditioner_saves_iterations_all_the_same(self, shift):
        K = RBF(gamma=0.5)(np.random.default_rng(0).standard_normal((400, 8)))
        s, B = np.full((1, 1), shift), right_sides(400, 1)
        factor = PivotedCholesky(MatrixColumns(MemoryRows(K)), SerialExecutor(), f"t-{uuid.uuid4().hex}", 1, 100,
                                 dtype=np.float32)  # fmt: skip
        factor.grow(100)
        found = Iteration(Counting(K), s, B, LowRank(factor, s)).run()
        plain = Iteration(Counting(K), s, B).run()
        assert found.status is plain.status is Status.CONVERGED
        assert found.iterations < 0.8 * plain.iterations

    def test_a_flat_tail_far_above(self):
        """Few clusters: eigenvalues fall at once, and then stay."""
        rng = np.random.default_rng(0)
        X = rng.standard_normal((12, 3))[rng.integers(0, 12, 300)]
        K, s = RBF(gamma=0.5)(X) + 1e-4 * np.eye(300), np.full((1, 1), 1e-13)
        factor = PivotedCholesky(MatrixColumns(MemoryRows(K)), SerialExecutor(), f"t-{uuid.uuid4().hex}", 1, 12)
        factor.grow(12)
        found = Iteration(Counting(K), s, right_sides(300, 1), LowRank(factor, s)).run()
        assert (found.status, found.iterations < 10) == (Status.CONVERGED, True)

    @pytest.mark.parametrize("mixed", [False, True])
    def test_a_preconditioner_that_lost_its_digits(self, mixed):
        @dataclass
        class Spoiled(Identity):
            """Indefinite, or noise, until it is raised."""

            factor: float
            is_raised: bool = False

            def apply(self, residuals, columns):
                if self.is_raised:
                    return residuals.copy()
                noise = np.random.default_rng(int(1e9 * abs(residuals[0, 0]) % 1e6)).standard_normal(residuals.shape)
                return np.sign(self.factor) * residuals + abs(self.factor) * np.abs(residuals).max() * noise

            def raise_shift_if_inexact(self, residuals, columns):
                before, self.is_raised = self.is_raised, True
                return not before

        A, B = positive_definite(N), right_sides(m=1)
        for noise in (-1e-3, 3.0):
            M_inverse = Spoiled(noise)
            found = Iteration(Counting(A), np.full((1, 1), 0.1), B, M_inverse, tol=1e-9, mixed=mixed).run()
            assert M_inverse.is_raised and found.status is Status.CONVERGED
            message = "the preconditioner has lost its digits: its shift or its precision is raised"
            assert found.messages.count(message) == 1


class TestCondition:
    def estimate(self, A, shift, by="none", m=1, **more):
        shift = np.full((1, m), shift)
        return Iteration(Counting(A), shift, right_sides(len(A), m), preconditioner(by, A, shift), **more).run()

    @pytest.mark.parametrize("mixed", [False, True])
    @pytest.mark.parametrize("by", ["none", "diagonal", "low rank"])
    @pytest.mark.parametrize("shift", [1e-3, 1.0, 1e3])
    def test_is_about_right(self, by, shift, mixed):
        A = positive_definite(N)
        true = np.linalg.cond(A + shift * np.eye(N))
        found = self.estimate(A, shift, by, tol=1e-10, mixed=mixed)
        assert 0.3 * true < found.condition < 3.0 * true

    def test_far_below_the_smallest_eigenvalue(self):
        """1 / s says nothing there."""
        A = np.diag(np.geomspace(1.0, 2000.0, N))
        for by in ("none", "low rank"):
            assert 500 < self.estimate(A, 1e-15, by).condition < 8000

    def test_of_several_shifts_the_worst(self):
        A, shift = positive_definite(N), np.array([[1e3, 1e-2, 10.0]])
        found = Iteration(Counting(A), shift, right_sides(), tol=1e-10).run()
        true = np.linalg.cond(A + 1e-2 * np.eye(N))
        assert 0.3 * true < found.condition < 3.0 * true

    def test_with_a_deflated_direction(self):
        A = np.eye(N) + np.ones((N, N))
        assert self.estimate(A, 1.0, deflate=np.ones(N)).condition == pytest.approx((N + 2) / 2, rel=1e-6)

    def test_nothing_is_kept_where_it_is_not_wanted(self):
        seen = []
        A, B = positive_definite(N), right_sides()
        shift = SHIFTS["one number"]
        wanted = Iteration(Counting(A), shift, B).run()
        found = Iteration(
            Counting(A), shift, B, estimates_condition=False, on_iteration=lambda s: seen.append(len(s.cycle.traced))
        ).run()
        assert np.isnan(found.condition) and wanted.condition >= 1.0
        assert seen and not any(seen)
        assert_array_equal(found.x, wanted.x)

    def test_nothing_is_known(self):
        found = Iteration(Counting(np.eye(N)), np.zeros((1, 1)), np.zeros((N, 1))).run()
        assert np.isnan(found.condition)
        assert np.isnan(
            Iteration(Counting(np.eye(N)), np.ones((1, 1)), right_sides(m=1), Growing(np.eye(N))).run().condition
        )

    def test_ritz_values(self):
        """As many steps as the matrix has rows find all of its eigenvalues."""
        A, b = np.diag([1.0, 3.0, 7.0, 20.0]), np.ones(4)
        x, r, steps, products = np.zeros(4), b, [], []
        p = r
        for _ in range(4):
            steps.append((r @ r) / (p @ A @ p))
            products.append(r @ r)
            x, new = x + steps[-1] * p, r - steps[-1] * (A @ p)
            p, r = new + (new @ new) / (r @ r) * p, new
        assert_allclose(ritz_values(np.array(steps), np.array(products)), (1.0, 20.0), rtol=1e-10)
        assert ritz_values(np.array([0.5, np.nan]), np.array([1.0, np.nan])) == (2.0, 2.0)
        assert np.isnan(ritz_values(np.array([np.nan]), np.array([1.0]))).all()


class TestDeflation:
    def system(self):
        """The constant's eigenvalue towers above the others."""
        A = positive_definite(N) + 1e6 * np.ones((N, N))
        return A, right_sides() + 5.0

    @pytest.mark.parametrize("which", SHIFTS)
    @pytest.mark.parametrize("mixed", [False, True])
    def test_solution(self, which, mixed):
        A, B = self.system()
        shift = SHIFTS[which]
        found = Iteration(Counting(A), shift, B, tol=1e-8, mixed=mixed, deflate=np.ones(N)).run()
        assert found.status is Status.CONVERGED
        assert (true_residuals(A, shift, B, found.x) <= 1.01e-8).all()
        assert_allclose(found.x, solution(A, shift, B), atol=1e-5)

    def test_the_direction_costs_one_product_and_saves_iterations(self):
        A, B = self.system()
        shift = SHIFTS["one number"]
        plain, deflated = Counting(A), Counting(A)
        without = Iteration(plain, shift, B, tol=1e-6).run()
        found = Iteration(deflated, shift, B, tol=1e-6, deflate=np.ones(N)).run()
        assert deflated.products[0] == ("float64", 1)
        assert len(deflated.products) == 1 + found.iterations + sum(h.is_true for h in found.history)
        assert found.iterations <= without.iterations

    def test_any_direction(self):
        A, B, w = positive_definite(N), right_sides(), np.linspace(0.5, 2.0, N)
        found = Iteration(Counting(A), SHIFTS["a vector"], B, tol=1e-10, deflate=w).run()
        assert_allclose(found.x, solution(A, SHIFTS["a vector"], B), atol=1e-8)

    def test_right_sides_along_it(self):
        """Nothing is left after the first guess."""
        A = np.eye(N) + np.ones((N, N))
        found = Iteration(Counting(A), np.zeros((1, 1)), np.ones((N, 1)), tol=1e-12, deflate=np.ones(N)).run()
        assert (found.status, found.iterations) == (Status.CONVERGED, 0)
        assert_allclose(found.x, 1 / (N + 1), rtol=1e-13)

    def test_with_low_rank(self):
        A, B = self.system()
        shift = SHIFTS["a number for each column"]
        found = Iteration(Counting(A), shift, B, preconditioner("low rank", A, shift), 1e-8, deflate=np.ones(N))
        assert_allclose(found.run().x, solution(A, shift, B), atol=1e-5)

    def test_negative_along_it(self):
        A = positive_definite(N) - 5 * np.ones((N, N)) / N
        for mixed in (False, True):
            with pytest.raises(NotPositiveDefiniteError, match="the constant is a direction of negative curvature"):
                Iteration(Counting(A), np.zeros((1, M)), right_sides(), deflate=np.ones(N), mixed=mixed).run()


class TestFailure:
    @pytest.mark.parametrize("mixed", [False, True])
    @pytest.mark.parametrize("by", ["none", "diagonal"])
    def test_negative_curvature(self, mixed, by):
        A = np.diag(np.linspace(-1.0, 5.0, N))
        shift = np.full((1, M), 0.1)
        positive = Diagonal(np.abs(A.diagonal())[:, None], shift) if by == "diagonal" else Identity()
        with pytest.raises(
            NotPositiveDefiniteError, match=r"not positive definite: after \d+ iterations .*negative curvature"
        ):
            Iteration(Counting(A), shift, right_sides(), positive, mixed=mixed).run()

    def test_a_preconditioner_that_is_not_positive_definite(self):
        class Negative(Identity):
            def apply(self, residuals, columns):
                return -residuals

        with pytest.raises(NotPositiveDefiniteError):
            Iteration(Counting(positive_definite(N)), np.zeros((1, M)), right_sides(), Negative()).run()

    @pytest.mark.parametrize("mixed", [False, True])
    def test_max_iterations(self, mixed):
        A, B = np.diag(np.logspace(0, 6, N)), right_sides()
        operator = Counting(A)
        found = Iteration(operator, np.zeros((1, M)), B, tol=1e-10, max_iter=7, mixed=mixed).run()
        assert (found.status, found.iterations) == (Status.MAX_ITERATIONS, 7)
        assert_allclose(found.residuals, true_residuals(A, np.zeros((1, M)), B, found.x), rtol=1e-3)
        assert found.residuals.max() > 1e-10
        assert not any("float32" in message for message in found.messages), "precision was not the matter"

    def test_just_enough_iterations(self):
        A, B = positive_definite(N), right_sides()
        needed = Iteration(Counting(A), SHIFTS["one number"], B).run().iterations
        found = Iteration(Counting(A), SHIFTS["one number"], B, max_iter=needed).run()
        assert (found.status, found.iterations) == (Status.CONVERGED, needed)

    @pytest.mark.parametrize("mixed", [False, True])
    def test_what_cannot_be_had(self, mixed):
        A, B = ill_conditioned(1e-10), right_sides()
        shift = np.full((1, M), 1e-10)
        found = Iteration(Counting(A), shift, B, tol=1e-15, max_iter=20_000, mixed=mixed).run()
        assert found.status is Status.STALLED
        assert found.residuals.max() > 1e-15
        assert_allclose(found.residuals, true_residuals(A, shift, B, found.x), rtol=0.5)
        assert found.residuals.max() <= 1.0, "nothing is reported that is worse than no answer"

    def test_useless_float32(self):
        """Its noise is larger than the eigenvalues: float64 has to do it."""

        class Noisy(Counting):
            def multiply(self, vectors, precision="float64", columns=None):
                product = super().multiply(vectors, precision)
                if precision == "float32":
                    product += 0.5 * np.linalg.norm(product, axis=0) * np.random.default_rng(7).standard_normal((N, 1))
                return product

        A, B = positive_definite(N), right_sides()
        operator = Noisy(A)
        found = Iteration(operator, SHIFTS["one number"], B, tol=1e-9, mixed=True, max_iter=5000).run()
        assert found.status is Status.CONVERGED
        assert found.messages == ("products in float32 reduce the true residual no further: continuing in float64",)
        precisions = [p for p, m in operator.products if m]
        assert precisions[0] == "float32"
        last = max(k for k, p in enumerate(precisions) if p == "float32")
        assert len(precisions) - last > 5
        assert_allclose(found.x, solution(A, SHIFTS["one number"], B), atol=1e-7)

    def test_float32_that_overflows(self):
        A = positive_definite(N)

        class Overflowing(Counting):
            def multiply(self, vectors, precision="float64", columns=None):
                return super().multiply(vectors, precision) * (np.nan if precision == "float32" else 1.0)

        found = Iteration(Overflowing(A), SHIFTS["one number"], right_sides(), mixed=True).run()
        assert found.status is Status.CONVERGED
        assert len(found.messages) == 1

    def test_float64_that_overflows(self):
        class Overflowing(Counting):
            def multiply(self, vectors, precision="float64", columns=None):
                return super().multiply(vectors, precision) * (np.nan if precision == "float64" else 1.0)

        operator = Overflowing(positive_definite(N))
        with pytest.raises(NotFiniteError):
            Iteration(operator, SHIFTS["one number"], right_sides(), mixed=True).run()

    def test_deflation_after_float32(self):
        """The deflated direction's product is as precise as the others: one cycle in float64 is enough."""
        A, B = positive_definite(N) + 1e3 * np.ones((N, N)), right_sides() + 100.0
        found = Iteration(Backwards(A), SHIFTS["one number"], B, tol=1e-11, mixed=True, deflate=np.ones(N)).run()
        assert found.status is Status.CONVERGED
        # What the multiple of the deflated direction brought, which was as wanted, and all the rest at once.
        assert sum(h.is_true for h in found.history) == 2

    def test_float32_that_goes_nowhere(self):
        """Its rounding is larger than the shift: no iteration there makes the residual smaller, all are not spent."""
        A, B = ill_conditioned(1e-10), right_sides()
        shift = np.full((1, M), 1e-9)
        found = Iteration(Counting(A), shift, B, tol=1e-6, max_iter=3000, mixed=True).run()
        alone = Iteration(Counting(A), shift, B, tol=1e-6, max_iter=3000).run()
        assert found.status is alone.status is Status.CONVERGED
        assert "continuing in float64" in found.messages[0]
        assert found.iterations <= 2 * alone.iterations + 10 * WINDOW


@dataclass
class Growing(Preconditioner):
    """Bad until it has grown often enough."""

    inverse: np.ndarray
    needed: int = 1
    most: int = 99
    growths: int = 0
    useless: bool = False

    def apply(self, residuals, columns):
        return self.inverse @ residuals if self.growths >= self.needed else residuals.copy()

    @property
    def rank(self):
        return 10 * (self.growths + 1)

    @property
    def can_grow(self):
        return self.growths < self.most

    def grow(self):
        self.growths += 1
        return not self.useless


class TestGrowth:
    def system(self):
        n = 300
        A = np.diag(np.logspace(-9, 0, n))
        return A, right_sides(n, 1), np.zeros((1, 1)), np.linalg.inv(A)

    @pytest.mark.parametrize("mixed", [False, True])
    def test_grows_where_it_is_slow(self, mixed):
        A, B, shift, inverse = self.system()
        M_inverse = Growing(inverse, needed=2)
        found = Iteration(Counting(A), shift, B, M_inverse, tol=1e-8, max_iter=5000, mixed=mixed).run()
        assert found.status is Status.CONVERGED
        assert M_inverse.growths >= 2
        assert found.rank == M_inverse.rank
        slow = [m for m in found.messages if m.startswith("slow convergence (relative residual")]
        assert "the preconditioner's rank grows from 10 to 20" in slow[0]
        assert "the preconditioner's rank grows from 20 to 30" in slow[1]
        assert found.iterations >= 2 * WINDOW

    def test_not_where_it_is_fast(self):
        M_inverse = Growing(np.eye(N))
        found = Iteration(Counting(positive_definite(N)), SHIFTS["one number"], right_sides(), M_inverse).run()
        assert (found.status, M_inverse.growths, found.messages) == (Status.CONVERGED, 0, ())

    def test_where_it_cannot_it_continues(self):
        A, B, shift, inverse = self.system()
        M_inverse = Growing(inverse, most=0)
        found = Iteration(Counting(A), shift, B, M_inverse, tol=1e-8, max_iter=500).run()
        assert (found.status, found.iterations, M_inverse.growths) == (Status.MAX_ITERATIONS, 500, 0)

    def test_growth_that_brings_nothing(self):
        A, B, shift, inverse = self.system()
        M_inverse = Growing(inverse, needed=99, most=3, useless=True)
        found = Iteration(Counting(A), shift, B, M_inverse, tol=1e-8, max_iter=800).run()
        assert (found.status, M_inverse.growths, found.messages) == (Status.MAX_ITERATIONS, 3, ())


class TestHistory:
    @pytest.mark.parametrize("mixed", [False, True])
    def test_lines(self, mixed):
        A, B, shift = positive_definite(N), right_sides(), SHIFTS["one number"]
        found = Iteration(Counting(A), shift, B, tol=1e-9, mixed=mixed).run()
        steps = [h for h in found.history if not h.is_true]
        assert [h.iteration for h in steps] == list(range(1, found.iterations + 1))
        assert found.history[-1].is_true
        assert found.history[-1].largest == found.residuals.max()
        assert sum(h.is_true for h in found.history) == (3 if mixed else 1)
        seconds = [h.seconds for h in found.history]
        assert seconds == sorted(seconds) and seconds[0] >= 0

    def test_what_the_recurrence_says_is_nearly_true(self):
        A, B, shift = positive_definite(N), right_sides(m=1), np.full((1, 1), 0.1)
        found = Iteration(Counting(A), shift, B, tol=1e-9).run()
        for line in found.history[:-1]:
            x = Iteration(Counting(A), shift, B, tol=1e-9, max_iter=line.iteration).run().x
            assert line.largest == pytest.approx(true_residuals(A, shift, B, x).max(), rel=1e-4)

    def test_progress_is_the_way_to_the_tolerance(self):
        class Recorder(Progress):
            total, way, name, notes = 0.0, 0.0, "", 0

            def begin(self, name, total, done):
                self.name, self.total = name, total

            def advance(self, flops):
                assert flops >= 0
                self.way += flops

            def note(self, message):
                self.notes += 1

        progress = Recorder()
        Iteration(Counting(positive_definite(N)), SHIFTS["one number"], right_sides(), tol=1e-6,
                  progress=progress).run()  # fmt: skip
        assert progress.name == "conjugate gradient"
        assert progress.total == pytest.approx(-np.log(1e-6))
        assert progress.way == pytest.approx(progress.total)
        assert progress.notes == 0


def travelled(state):
    """A state that was written and read again."""
    arrays, plain = state.arrays()
    return State.from_arrays({name: a.copy() for name, a in arrays.items()}, json.loads(json.dumps(plain)))


class TestState:
    def iteration(self, **more):
        A = np.diag(np.logspace(-2, 2, N)) + positive_definite(N, 5)
        shift = np.array([[1e-3, 0.1, 100.0]])
        return Iteration(Counting(A), shift, right_sides(), Diagonal(A.diagonal()[:, None], shift), 1e-10, **more)

    def states(self, **more):
        """States after every iteration, and at the end."""
        states, ends = [], []
        found = self.iteration(
            **more,
            on_iteration=lambda s: states.append(copy.deepcopy(s)),
            on_end=lambda s: ends.append(copy.deepcopy(s)),
        ).run()
        assert len(states) == found.iterations
        assert len(ends) == 1
        return found, states, ends[0]

    def test_round_trip(self):
        _, states, end = self.states(mixed=True)
        for state in (states[0], states[len(states) // 2], states[-1], end):
            again = travelled(state)
            assert_array_equal(again.x, state.x)
            assert_array_equal(again.residual, state.residual)
            assert (again.precision, again.iteration) == (state.precision, state.iteration)
            assert again.history == state.history
            assert again.messages == state.messages
            assert (again.cycle is None) == (state.cycle is None)
            if state.cycle is not None:
                for name in ("columns", "goal", "correction", "residual", "direction", "product"):
                    assert_array_equal(getattr(again.cycle, name), getattr(state.cycle, name))
                assert again.cycle.columns.dtype == np.intp
        assert end.cycle is None

    @pytest.mark.parametrize("deflated", [False, True])
    @pytest.mark.parametrize("mixed", [False, True])
    def test_resumed_from_anywhere_the_bits_are_the_same(self, mixed, deflated):
        more = {"mixed": mixed, "deflate": np.ones(N) if deflated else None}
        found, states, _ = self.states(**more)
        assert found.status is Status.CONVERGED
        assert found.iterations > 12
        for state in states[::5] + states[-2:]:
            again = self.iteration(**more).run(state=travelled(state))
            assert_array_equal(again.x, found.x)
            assert_array_equal(again.residuals, found.residuals)
            assert again.iterations == found.iterations
            assert again.condition == found.condition
            assert [(h.iteration, h.largest, h.is_true) for h in again.history] == [
                (h.iteration, h.largest, h.is_true) for h in found.history
            ]

    def test_resumed_from_the_end_nothing_is_done(self):
        found, _, end = self.states()
        operator = Counting(np.eye(N))
        again = Iteration(operator, np.array([[1e-3, 0.1, 100.0]]), right_sides(), tol=1e-10).run(state=travelled(end))
        assert operator.products == []
        assert again.condition == found.condition
        assert again.status is Status.CONVERGED
        assert_array_equal(again.x, found.x)

    def test_continues_beyond_max_iterations(self):
        ends = []
        first = self.iteration(max_iter=5, on_end=ends.append).run()
        assert first.status is Status.MAX_ITERATIONS
        second = self.iteration(max_iter=500).run(state=travelled(ends[0]))
        assert second.status is Status.CONVERGED
        assert second.iterations > 5
        assert second.history[: len(first.history)] == first.history

    def test_after_the_change_of_precision(self):
        """The deflated direction is as precise in the resumed run as it was in the first."""
        A, B = positive_definite(N) + 10.0, right_sides() + 3.0

        def iteration(**more):
            return Iteration(Backwards(A), SHIFTS["one number"], B, Identity(), 1e-12, mixed=True,
                             deflate=np.ones(N), **more)  # fmt: skip

        states = []
        found = iteration(on_iteration=lambda s: states.append(copy.deepcopy(s))).run()
        late = [s for s in states if s.precision == "float64"]
        assert found.status is Status.CONVERGED and len(late) > 5
        again = iteration().run(state=travelled(late[4]))
        assert_array_equal(again.x, found.x)
        assert again.messages == found.messages


class TestSettings:
    @pytest.mark.parametrize("rank", [0, -1, 2.5, True, "many"])
    def test_rank(self, rank):
        with pytest.raises(InputError, match=f"rank is {rank!r}; expected a whole number of at least 1, or None"):
            RPCholesky(rank=rank)

    def test_a_rank_of_numpy(self):
        assert RPCholesky(rank=np.int64(7)).rank == 7

    @pytest.mark.parametrize("value", ["rpcholesky", 3, RPCholesky, ConjugateGradient()])
    def test_preconditioner(self, value):
        with pytest.raises(InputError, match="preconditioner is .*; expected 'auto', None, or one of RPCholesky"):
            ConjugateGradient(preconditioner=value)

    @pytest.mark.parametrize("value", ["float32", None, "double"])
    def test_precision(self, value):
        with pytest.raises(InputError, match="precision is .*; expected"):
            ConjugateGradient(precision=value)

    @pytest.mark.parametrize("value", [0, -5, 1.5, True, None])
    def test_max_iterations(self, value):
        with pytest.raises(InputError, match="max_iter is .*; expected a whole number"):
            ConjugateGradient(max_iter=value)

    def test_are_values(self):
        assert ConjugateGradient(RPCholesky(3)) == ConjugateGradient(RPCholesky(3)) != ConjugateGradient(RPCholesky(4))
        assert hash(ConjugateGradient()) == hash(ConjugateGradient())


def test_the_statuses_give_advice():
    for status in (Status.STALLED, Status.MAX_ITERATIONS, Status.INACCURATE):
        assert "alpha" in status.value
    assert conjugate_gradient.Status is Status
