"""Conjugate gradient against a direct solution: what converges, what is counted, what is reported."""

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import scipy.linalg
from numpy.testing import assert_allclose, assert_array_equal

from dkrr import KernelRidge
from dkrr.blas import column_sizes
from dkrr.cluster import Progress
from dkrr.errors import NotFiniteError, NotPositiveDefiniteError
from dkrr.linalg.conjugate_gradient import (
    STALL_ITERATIONS,
    Iteration,
    cycles_in_low_precision,
    error_of_products,
    relative_noise,
)
from dkrr.linalg.gram_products import TiledOperator
from dkrr.linalg.iteration_state import State
from dkrr.linalg.preconditioners import Diagonal, Identity, LowRank, Preconditioner
from dkrr.linalg.quadrature import LanczosTrace, log_quadrature
from dkrr.linalg.result import Status
from dkrr.linalg.ritz import ritz_values
from dkrr.solvers import ConjugateGradient, RPCholesky
from tests.oracles import naive_conjugate_gradient
from tests.pairs import every_pair
from tests.systems import MatrixOperator, one_blas_thread, partial_factor, positive_definite, random  # noqa: F401

N, M = 47, 3
SHIFTS = {
    "one number": np.full((1, M), 0.1),
    "a number for each column": np.array([[0.01, 0.1, 3.0]]),
    "a vector": np.random.default_rng(1).uniform(0.05, 2.0, (N, 1)),
}
ONE = SHIFTS["one number"]
both_precisions = pytest.mark.parametrize("mixed", [False, True], ids=["float64", "mixed"])


def right_sides(n=N, m=M, seed=3):
    return random(n, m, seed=seed)


def solution(A, shift, B):
    """Column by column, by elimination."""
    s = np.broadcast_to(shift, B.shape)
    return np.column_stack([np.linalg.solve(A + np.diag(s[:, k]), B[:, k]) for k in range(B.shape[1])])


def true_residuals(A, shift, B, X):
    norms = np.linalg.norm(B, axis=0)
    return np.linalg.norm(B - A @ X - shift * X, axis=0) / np.where(norms > 0, norms, 1.0)


def preconditioner(which, A, shift, rank=20):
    if which == "diagonal":
        return Diagonal(A.diagonal()[:, None], shift)
    return LowRank(partial_factor(A, rank), shift) if which == "low rank" else Identity()


def solve(A, shift, B, by=None, **settings):
    """Iterations with a matrix, or with an operator."""
    return Iteration(MatrixOperator(A) if isinstance(A, np.ndarray) else A, shift, B, by or Identity(), **settings)


def ill_conditioned(smallest):
    """Eigenvalues from there to 1."""
    Q = np.linalg.qr(random(N, N))[0]
    A = (Q * np.geomspace(smallest, 1, N)) @ Q.T
    return (A + A.T) / 2


@dataclass
class Changed(MatrixOperator):
    """Products in one precision are changed by a function of the operator and the product."""

    change: Callable | None = None
    precision: str = "float32"

    def multiply(self, vectors, precision="float64", columns=None):
        product = super().multiply(vectors, precision)
        return self.change(self, product) if precision == self.precision else product


@every_pair(by=["none", "diagonal", "low rank"], which=list(SHIFTS), mixed=[False, True])
def test_solutions_are_those_of_elimination(by, which, mixed):
    A, shift, B = positive_definite(N), SHIFTS[which], right_sides()
    if (by, which) == ("diagonal", "a vector"):
        shift = shift[:1]  # Jacobi's has a number for each column
    by, B.flags.writeable = preconditioner(by, A, shift), False
    found = solve(A, shift, B, by, tol=1e-10, mixed=mixed).run()
    assert found.status is Status.CONVERGED
    assert_allclose(found.x, solution(A, shift, B), atol=1e-8)
    assert_allclose(found.residuals, true_residuals(A, shift, B, found.x), rtol=1e-3, atol=1e-15)
    assert found.rank == by.rank


@pytest.mark.parametrize("iterations", [1, 2, 5])
def test_steps_are_the_textbook_s_and_what_the_recurrence_says_is_nearly_true(iterations):
    A, B = positive_definite(N), right_sides()
    found = solve(A, ONE, B, tol=1e-12, max_iter=iterations).run()
    for k in range(M):
        expected = naive_conjugate_gradient(A + 0.1 * np.eye(N), B[:, k], iterations)
        assert_allclose(found.x[:, k], expected, rtol=1e-10, atol=1e-13)
    line = solve(A, ONE, B, tol=1e-12).run().history[iterations - 1]
    assert (line.iteration, line.largest) == (iterations, pytest.approx(found.residuals.max(), rel=1e-4))


def test_columns_that_have_converged_drop_out_and_their_residuals_stay():
    A, B = np.diag(np.repeat([1.0, 2.0, 5.0, 9.0], 10)), right_sides(40)
    B[:, 1] = np.eye(40)[4]  # an eigenvector: one step; otherwise as many as there are different eigenvalues
    shift, operator = np.array([[0.0, 0.0, 1e6]]), MatrixOperator(A)  # the third is nearly diagonal
    found = solve(operator, shift, B).run()
    alone = [solve(A, shift[:, [k]], B[:, [k]]).run().iterations for k in range(3)]
    assert alone[1] == 1 and 1 < alone[2] < alone[0] == found.iterations == 4
    assert [m for _, m in operator.products] == [*(sum(k <= own for own in alone) for k in range(1, 5)), 3]
    assert_allclose(found.residuals, true_residuals(A, shift, B, found.x), rtol=1e-3, atol=1e-15)


def test_mixed_precision_uses_float32_but_for_the_residuals():
    operators = [MatrixOperator(positive_definite(N)) for _ in range(2)]
    mixed, plain = (solve(o, ONE, right_sides(), tol=1e-9, mixed=o is operators[0]).run() for o in operators)
    low, high = ([p for p, _ in o.products] for o in operators)
    assert low.count("float32") == mixed.iterations and high == ["float64"] * (plain.iterations + 1)
    assert low.count("float64") == cycles_in_low_precision(1e-9) == 3 == sum(h.is_true for h in mixed.history)
    assert cycles_in_low_precision(np.array([0.1, 1e-3, 1e-4, 1e-6, 1e-8, 1e-12])).tolist() == [1, 1, 1, 2, 2, 3]
    assert cycles_in_low_precision(1e-6, np.array([0.0, 1e-3, 4e-3, 4e-2, 1.0])).tolist() == [2, 2, 3, 6, 6]
    assert relative_noise(np.array([0.0, 1e-6, 1e-6, 1e200]), np.array([0.0, 1e-3, 0.0, 1e-300])).tolist() == [
        0,
        1e-3,
        1,
        1,
    ]


def test_no_cycle_in_float32_ends_with_what_is_mostly_rounding():
    """Its recurrence misses about 0.2 of the error of products relative to s; what is left is more, or 0.1."""
    tol, noise = np.geomspace(1e-12, 0.9, 40)[:, None], np.geomspace(1e-6, 1.0, 40)
    left = tol ** (1 / cycles_in_low_precision(tol, noise))
    assert (left >= np.minimum(2 * 0.2 * noise, 0.1) * (1 - 1e-6)).all()
    assert left.min() >= 1e-4 * (1 - 1e-6) and cycles_in_low_precision(1e-3, 2e-3) == 1


def test_columns_that_have_met_their_goal_go_on_in_float32_while_others_have_not():
    """From 1 to 1e-6 in two cycles; the second column needs far more iterations for its factor of 1e-3."""
    A, B, shift, found = positive_definite(N), right_sides(m=2), np.array([[30.0, 1e-3]]), []
    for k in (slice(0, 1), slice(0, 2)):
        iteration = solve(A, shift[:, k], B[:, k], tol=1e-6, mixed=True, largest=1e-6)
        iteration.on_cycle = lambda s: found.append(s.residual[:, 0] / np.linalg.norm(B[:, 0]))
        assert iteration.run().residuals.max() <= 1e-6
    alone, together = np.linalg.norm(found[1]), np.linalg.norm(found[3])
    assert 1e-4 < alone <= 1e-3 and 1e-6 < together <= 1e-4  # as far as products in float32 may go, but no further


@both_precisions
def test_columns_that_are_ended_take_part_in_no_further_product(mixed):
    operator = MatrixOperator(positive_definite(N))
    iteration = solve(operator, SHIFTS["a number for each column"], right_sides(), mixed=mixed)

    def end_one(state):
        if state.iteration == 3:
            state.cycle.goal[1] = np.inf
            iteration.tol = np.array([1e-8, np.inf, 1e-8])

    iteration.on_iteration = end_one
    assert iteration.run().status is Status.CONVERGED
    assert [m for _, m in operator.products[:5]] == [3, 3, 3, 2, 2]


@dataclass
class Inexact(MatrixOperator):
    """Products in float32 have errors of this size over the norms of the vectors, all in one direction."""

    error: float = 0.0

    def multiply(self, vectors, precision="float64", columns=None):
        wrong = self.error * random(len(vectors), 1, seed=7) / np.sqrt(len(vectors)) * np.linalg.norm(vectors, axis=0)
        product = super().multiply(vectors)
        self.products[-1] = (precision, vectors.shape[1])
        return product + wrong if precision == "float32" else product


@pytest.mark.parametrize(("noise", "tol"), [(1e-3, 1e-6), (3e-3, 1e-5), (4e-3, 1e-7), (2e-3, 1e-8)])
def test_no_true_residual_is_in_vain_where_products_in_float32_are_as_wrong_as_expected(noise, tol):
    """Errors over s; the last cycle ends below its goal by what the recurrence has missed."""
    n, s = 200, 0.1
    Q = np.linalg.qr(random(n, n))[0]
    A, B, shift = (Q * np.geomspace(1e-4, 10, n)) @ Q.T, right_sides(n), np.full((1, M), s)
    operator = Inexact(A, error=noise * s)
    found = solve(operator, shift, B, tol=tol, mixed=True, largest=noise * s / error_of_products(n, 1.0)).run()
    assert found.status is Status.CONVERGED and found.residuals.max() <= tol
    assert [p for p, _ in operator.products].count("float64") == cycles_in_low_precision(tol, noise)
    assert found.iterations <= 1.5 * solve(A, shift, B, tol=tol).run().iterations


@both_precisions
def test_progress_is_complete_only_once_the_true_residual_is_known(mixed):
    class Way(Progress):
        total = done = 0.0

        def begin(self, name, total, done):
            self.total = total

        def advance(self, flops):
            self.done += flops

    way, before = Way(), []
    operator = Changed(positive_definite(N), change=lambda _, p: before.append(way.done) or p, precision="float64")
    assert solve(operator, ONE, right_sides(), tol=1e-9, mixed=mixed, progress=way).run().status is Status.CONVERGED
    assert 0.5 * way.total < before[-1] < 0.99 * way.total and way.done == pytest.approx(way.total)


@both_precisions
def test_a_start_near_the_solution_saves_iterations(mixed):
    A, B = positive_definite(N), right_sides()
    exact = solution(A, ONE, B)
    near, far = (solve(A, ONE, B, tol=1e-8, mixed=mixed).run(s) for s in (exact + 1e-6 * right_sides(seed=9), None))
    assert near.iterations < far.iterations
    assert_allclose(near.x, exact, atol=1e-7)
    operator, b = MatrixOperator(np.diag([1.0, 2.0, 4.0])), np.array([[3.0, 1.0], [3.0, 0.0], [5.0, 2.0]])
    found = solve(operator, np.ones((1, 2)), b).run(start=b / [[2.0], [3.0], [5.0]])
    assert (found.status, found.iterations, operator.products) == (Status.CONVERGED, 0, [("float64", 2)])


@both_precisions
@pytest.mark.parametrize("size", [1e-300, 1e-160, 1e155, 1.7e308, [1e-12, 1.0, 1e12]], ids=str)
def test_right_hand_sides_whose_squares_overflow_or_underflow_converge(size, mixed):
    A, B = positive_definite(N) + np.eye(N), right_sides()
    B, size = B / np.abs(B).max(), np.array(size)
    found = solve(A, ONE, size * B, tol=1e-9, mixed=mixed).run()
    assert found.status is Status.CONVERGED
    assert_allclose(found.x / size, solution(A, ONE, B), rtol=1e-5, atol=1e-8)
    assert ((found.residuals > 0) & (found.residuals <= 1e-9)).all()


@pytest.mark.filterwarnings("ignore:invalid value")
def test_what_is_not_finite_has_not_converged():
    found = solve(1e-10 * positive_definite(N), np.zeros((1, 1)), np.full((N, 1), 1e305)).run()
    assert (found.status, found.residuals[0]) == (Status.STALLED, np.inf)
    assert "too large for float64" in found.messages[-1]


@dataclass
class Negative(Identity):
    """Negative until its shift is raised, if it can be."""

    left: int = 0

    def apply(self, residuals, columns):
        return -residuals if self.left >= 0 else residuals.copy()

    def raise_shift_if_inexact(self, residuals, columns):
        self.left -= 1
        return self.left == -1


@both_precisions
def test_the_shift_of_a_preconditioner_that_lost_its_digits_is_raised(mixed):
    by = Negative()
    found = solve(positive_definite(N), np.full((1, 1), 0.1), right_sides(m=1), by, tol=1e-9, mixed=mixed).run()
    assert by.left < 0 and found.status is Status.CONVERGED
    assert sum("the preconditioner has lost its digits" in message for message in found.messages) == 1


@every_pair(by=["none", "diagonal", "low rank"], shift=[[[1e-3]], [[1e3]], [[1e3, 1e-2, 10.0]]], mixed=[False, True])
def test_the_condition_number_is_about_that_of_the_worst_shift(by, shift, mixed):
    A, shift = positive_definite(N), np.array(shift)
    found = solve(A, shift, right_sides(m=shift.size), preconditioner(by, A, shift), tol=1e-10, mixed=mixed).run()
    true = np.linalg.cond(A + shift.min() * np.eye(N))
    assert 0.3 * true < found.condition < 3.0 * true


def test_the_condition_number_does_not_need_a_large_shift_and_counts_a_deflated_direction():
    A, B, shift = np.diag(np.geomspace(1.0, 2000.0, N)), right_sides(m=1), np.full((1, 1), 1e-15)
    assert 500 < solve(A, shift, B, preconditioner("low rank", A, shift)).run().condition < 8000
    found = solve(np.eye(N) + np.ones((N, N)), np.ones((1, 1)), B, deflate=np.ones(N)).run()
    assert found.condition == pytest.approx((N + 2) / 2, rel=1e-6)
    found = solve(np.diag([1.0, 3.0, 7.0, 20.0]), np.zeros((1, 1)), np.ones((4, 1)), tol=1e-14).run()
    assert found.condition == pytest.approx(20.0, rel=1e-10), "as many steps as rows find all eigenvalues"
    assert ritz_values(np.array([0.5, np.nan]), np.array([1.0, np.nan])) == (2.0, 2.0)


@every_pair(which=list(SHIFTS), mixed=[False, True], by=["none", "low rank"])
def test_a_deflated_direction_towers_above_the_others_and_costs_one_product(which, mixed, by):
    A, shift, B = positive_definite(N) + 1e6 * np.ones((N, N)), SHIFTS[which], right_sides() + 5.0
    operator, by = MatrixOperator(A), preconditioner(by, A, shift)
    found = solve(operator, shift, B, by, deflate=np.ones(N), tol=1e-8, mixed=mixed).run()
    assert found.status is Status.CONVERGED
    assert (true_residuals(A, shift, B, found.x) <= 1.01e-8).all()
    assert_allclose(found.x, solution(A, shift, B), atol=1e-5)
    assert operator.products[0][1] == 1
    if not mixed:
        assert len(operator.products) == 1 + found.iterations + sum(h.is_true for h in found.history)


def test_any_direction_may_be_deflated_and_solves_what_is_along_it():
    A, B, w, shift = positive_definite(N), right_sides(), np.linspace(0.5, 2.0, N), SHIFTS["a vector"]
    assert_allclose(solve(A, shift, B, tol=1e-10, deflate=w).run().x, solution(A, shift, B), atol=1e-8)
    A, ones = np.eye(N) + np.ones((N, N)), np.ones((N, 1))
    found = solve(A, np.zeros((1, 1)), ones, tol=1e-12, deflate=np.ones(N)).run()
    assert (found.status, found.iterations) == (Status.CONVERGED, 0), "nothing is left after the first guess"
    assert_allclose(found.x, 1 / (N + 1), rtol=1e-13)


@both_precisions
@pytest.mark.parametrize("what", ["matrix", "matrix with Jacobi", "preconditioner", "deflated direction"])
def test_what_is_not_positive_definite_is_an_error(what, mixed):
    A, words, by, deflate = positive_definite(N), "not positive definite", None, None
    if "matrix" in what:
        A, words = np.diag(np.linspace(-1.0, 5.0, N)), r"not positive definite: after \d+ iterations? .*curvature"
        by = Diagonal(np.abs(A.diagonal())[:, None], ONE) if "Jacobi" in what else None
    elif what == "preconditioner":
        by = Negative(np.inf)
    else:
        A, deflate, words = A - 5 * np.ones((N, N)) / N, np.ones(N), "the constant is a direction of negative curvature"
    with pytest.raises(NotPositiveDefiniteError, match=words):
        solve(A, np.full((1, M), 0.1), right_sides(), by, deflate=deflate, mixed=mixed).run()


@both_precisions
def test_no_more_iterations_than_allowed_and_exactly_enough_suffice(mixed):
    A, B = positive_definite(N), right_sides()
    needed = solve(A, ONE, B, mixed=mixed).run().iterations
    for status, allowed in ((Status.MAX_ITERATIONS, needed - 1), (Status.CONVERGED, needed)):
        found = solve(A, ONE, B, max_iter=allowed, mixed=mixed).run()
        assert (found.status, found.iterations, found.messages) == (status, allowed, ())
        assert_allclose(found.residuals, true_residuals(A, ONE, B, found.x), rtol=1e-3)


@pytest.mark.parametrize(
    ("change", "deflate"),
    [
        (lambda _, p: p + 0.5 * np.linalg.norm(p, axis=0) * random(N, 1, seed=7), None),
        (lambda _, p: np.nan * p, None),
        (lambda operator, p: -p if len(operator.products) > 1 else p, np.ones(N)),
    ],
    ids=["noise larger than the eigenvalues", "overflow", "backwards but for the deflated direction"],
)
def test_float32_that_is_useless_is_given_up_for_float64(change, deflate):
    A, B = positive_definite(N) + (1e3 if deflate is not None else 0.0), right_sides()
    operator = Changed(A, change=change)
    found = solve(operator, ONE, B, tol=1e-9, mixed=True, max_iter=5000, deflate=deflate).run()
    assert found.status is Status.CONVERGED
    (message,) = found.messages
    assert "continuing in float64" in message
    precisions = [p for p, m in operator.products if m]
    assert precisions[0] == "float32" and "float32" not in precisions[-5:]
    assert_allclose(found.x, solution(A, ONE, B), atol=1e-7)


@dataclass
class BackwardsColumn(MatrixOperator):
    """Products of the first right-hand side in float32 have the wrong sign."""

    def multiply(self, vectors, precision="float64", columns=None):
        product = super().multiply(vectors, precision)
        if precision == "float32":
            product[:, columns == 0] *= -1
        return product


@pytest.mark.parametrize("max_waiting", [0.0, 0.5])
def test_a_column_that_float32_does_not_solve_waits_where_it_may_or_takes_the_others_along(max_waiting):
    A, B = positive_definite(N), right_sides()
    operator = BackwardsColumn(A)
    found = solve(operator, ONE, B, tol=1e-9, mixed=True, max_waiting=max_waiting).run()
    assert found.status is Status.CONVERGED and "continuing in float64" in found.messages[0]
    assert_allclose(found.x, solution(A, ONE, B), atol=1e-7)
    if max_waiting:
        last = max(k for k, (precision, _) in enumerate(operator.products) if precision == "float32")
        assert operator.products[0] == ("float32", M) and {m for p, m in operator.products[last + 2 :]} == {1}
    else:
        assert [p for p, _ in operator.products].count("float32") == 1


def test_float32_whose_rounding_is_larger_than_the_shift_costs_few_iterations():
    A, shift, B = ill_conditioned(1e-10), np.full((1, M), 1e-9), right_sides()
    found, alone = (solve(A, shift, B, tol=1e-6, max_iter=3000, mixed=mixed).run() for mixed in (True, False))
    assert found.status is alone.status is Status.CONVERGED
    assert "continuing in float64" in found.messages[0]
    assert found.iterations <= 2 * alone.iterations + 10 * STALL_ITERATIONS
    with pytest.raises(NotFiniteError):
        solve(Changed(A, change=lambda _, p: np.nan * p, precision="float64"), shift, B, mixed=True).run()


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


@both_precisions
def test_a_preconditioner_grows_where_convergence_is_slow(mixed):
    A, B = np.diag(np.logspace(-9, 0, 300)), right_sides(300, 1)
    by = Growing(np.linalg.inv(A), needed=2)
    found = solve(A, np.zeros((1, 1)), B, by, max_iter=5000, mixed=mixed).run()
    assert found.status is Status.CONVERGED
    assert by.growths >= 2 and found.rank == by.rank and found.iterations >= 2 * STALL_ITERATIONS
    slow = [m for m in found.messages if m.startswith("slow convergence (relative residual")]
    assert "rank grows from 10 to 20" in slow[0] and "rank grows from 20 to 30" in slow[1]
    by = Growing(np.linalg.inv(A), needed=99, most=3, useless=True)  # growth brings nothing, and it continues
    found = solve(A, np.zeros((1, 1)), B, by, max_iter=800, mixed=mixed).run()
    assert (found.status, found.iterations, by.growths) == (Status.MAX_ITERATIONS, 800, 3)
    by = Growing(np.eye(N))
    found = solve(positive_definite(N), ONE, right_sides(), by, mixed=mixed).run()
    assert (found.status, by.growths, found.messages) == (Status.CONVERGED, 0, ()), "not where it is fast"


def travelled(state):
    """A state that was written and read again."""
    arrays, plain = state.arrays()
    return State.from_arrays({name: a.copy() for name, a in arrays.items()}, json.loads(json.dumps(plain)))


def resumable(**more):
    A = np.diag(np.logspace(-2, 2, N)) + positive_definite(N, 5)
    shift = np.array([[1e-3, 0.1, 100.0]])
    return solve(A, shift, right_sides(), Diagonal(A.diagonal()[:, None], shift), tol=1e-10, **more)


@both_precisions
@pytest.mark.parametrize("deflated", [False, True])
def test_resumed_from_any_state_the_bits_are_the_same(mixed, deflated):
    more, states, ends = {"mixed": mixed, "deflate": np.ones(N) if deflated else None}, [], []
    found = resumable(
        on_iteration=lambda s: states.append(copy.deepcopy(s)), on_end=lambda s: ends.append(copy.deepcopy(s)), **more
    ).run()
    assert found.status is Status.CONVERGED
    assert len(states) == found.iterations > 12 and len(ends) == 1 and ends[0].cycle is None
    for state in [*states[::5], *states[-2:], *ends]:
        iteration = resumable(**more)
        again = iteration.run(state=travelled(state))
        assert_array_equal(again.x, found.x)
        assert_array_equal(again.residuals, found.residuals)
        assert (again.status, again.iterations, again.condition) == (found.status, found.iterations, found.condition)
        lines = [[(h.iteration, h.largest, h.is_true) for h in one.history] for one in (again, found)]
        assert lines[0] == lines[1]
    assert len(iteration.operator.products) == deflated, "from the end nothing is done"


def test_quadrature_of_every_probe_is_that_of_the_logarithm():
    A, shift = positive_definite(37), np.full((1, 5), 0.7)
    root = np.sqrt(A.diagonal() + 0.7)
    probes = root[:, None] * random(37, 5) * [1.0, 1e3, 1e-4, 1.0, 0.0]
    trace = LanczosTrace(slice(0, 5))
    iteration = solve(A, shift, probes, Diagonal(A.diagonal()[:, None].copy(), shift), tol=1e-12)
    iteration.on_cycle, iteration.on_step, iteration.on_iteration = trace.on_cycle, trace.on_step, trace.on_iteration
    iteration.run()
    g = probes / root[:, None]
    expected = np.einsum("ij,ij->j", g, scipy.linalg.logm((A + 0.7 * np.eye(37)) / root[:, None] / root).real @ g)
    assert trace.values(column_sizes(probes)) == pytest.approx(expected, rel=1e-9)
    with pytest.raises(NotPositiveDefiniteError, match="an eigenvalue that is not positive"):
        log_quadrature(np.array([1.0, -0.2]), np.array([1.0, 1.0]))


def test_a_small_lambda_takes_few_more_iterations_with_products_in_float32():
    """A ratio of 1.3, of 1.7 with cycles as long as the first digits allow: products are wrong by 0.01 λ."""
    X = np.random.default_rng(0).standard_normal((1500, 6))
    y = np.sin(2 * X[:, 0]) + X[:, 1] ** 2

    def iterations(precision):
        solver = ConjugateGradient(RPCholesky(200), precision=precision)
        return KernelRidge(1e-4, kernel="rbf", gamma=1 / 16, solver=solver, tol=1e-6).fit(X, y).solve_result_.iterations

    assert iterations("mixed") <= 1.45 * iterations("float64")


@pytest.mark.parametrize("precision", ["float64", "mixed"])
def test_an_intercept_costs_no_product_after_the_last_true_residual_unless_rounding_would_show(monkeypatch, precision):
    products, multiply = [], TiledOperator.multiply

    def counted(self, vectors, precision="float64", columns=None):
        products.append(precision)
        return multiply(self, vectors, precision, columns)

    monkeypatch.setattr(TiledOperator, "multiply", counted)
    X, rng = random(300, 3), np.random.default_rng(2)
    y = X[:, 0] ** 2 + 0.1 * rng.standard_normal(300)
    K = np.exp(-0.3 * ((X[:, None] - X) ** 2).sum(axis=2))

    def more_products(tol):
        products.clear()
        solver = ConjugateGradient(precision=precision)
        model = KernelRidge(0.01, kernel="rbf", gamma=0.3, fit_intercept=True, solver=solver, tol=tol).fit(X, y)
        left = y - model.intercept_ - K @ model.dual_coef_ - 0.01 * model.dual_coef_
        found, relative = model.solve_result_, np.linalg.norm(left) / np.linalg.norm(y - y.mean())
        assert found.residual == pytest.approx(relative, rel=0.1, abs=1e-13) and relative <= max(tol, 1e-13)
        n_true = sum(line.is_true for line in found.history)
        return products.count("float64") - n_true - (found.iterations if precision == "float64" else 0)

    assert more_products(1e-8) == 0 and more_products(2e-12) >= 1
