"""Newton's method on small convex objectives whose minimum is known."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import brentq

from dkrr.cluster import Progress
from dkrr.errors import NotFiniteError, NotPositiveDefiniteError
from dkrr.linalg.newton import MAX_FORCING, MAX_USELESS, MIN_FORCING, Newton, Objective
from dkrr.linalg.result import Status
from tests.oracles import assert_close


@dataclass(frozen=True)
class Function:
    """Value, gradient and Hessian at a point x."""

    value: Callable
    gradient: Callable
    hessian: Callable


def quadratic(A=None, z=None, seed=0):
    """1 + ½ (x − z)ᵀ A (x − z), by default of five random columns."""
    rng = np.random.default_rng(seed)
    B = rng.standard_normal((5, 5))
    A, z = B @ B.T + np.eye(5) if A is None else A, rng.standard_normal(5) if z is None else z
    return Function(lambda x: 1 + 0.5 * (x - z) @ A @ (x - z), lambda x: A @ (x - z), lambda x: A)


def quartic(s, e=1e-3):
    """1 + Σ sᵢ (xᵢ − 1)⁴ + ε (xᵢ − 1)²: badly scaled, and each whole step takes but a third off."""
    return Function(
        lambda x: 1 + (s * (x - 1) ** 4 + e * (x - 1) ** 2).sum(),
        lambda x: 4 * s * (x - 1) ** 3 + 2 * e * (x - 1),
        lambda x: np.diag(12 * s * (x - 1) ** 2 + 2 * e),
    )


HYPERBOLA = Function(
    lambda x: np.sqrt(1 + x**2).sum(), lambda x: x / np.sqrt(1 + x**2), lambda x: np.diag((1 + x**2) ** -1.5)
)
"""Σ √(1 + xᵢ²): whole Newton steps lead from x to −x³, away from the minimum if |x| > 1."""
SATURATED = Function(
    lambda x: np.log1p(np.exp(-x)).sum() + 1e-14 * (x**2).sum(),
    lambda x: -1 / (1 + np.exp(x)) + 2e-14 * x,
    lambda x: np.diag(np.exp(-x) / (1 + np.exp(-x)) ** 2 + 2e-14),
)
"""log(1 + exp(−x)) + λx² of separable classes: it falls by a factor of e a step, and its gradient as well."""
SOLUTION = np.random.default_rng(0).standard_normal(30)[25:]
"""Minimum of the default quadratic."""


class Smooth(Objective):
    """Independent functions, one a system, whose Newton systems are solved exactly or as roughly as allowed."""

    point = None

    def __init__(self, functions, starts, rough=False, noise=0.0):
        self.functions, self.points = functions, [np.array(x, float) for x in starts]
        self.rough, self.noise, self.asked, self.opened = rough, noise, [], []
        self.references = np.ones(len(functions))
        self.taken, self.messages = [], []
        self._evaluate()

    def pairs(self):
        return zip(self.functions, self.points, strict=True)

    def _evaluate(self):
        self.values = np.array([f.value(x) for f, x in self.pairs()])
        self.gradients = np.array([np.linalg.norm(f.gradient(x)) for f, x in self.pairs()]) + self.noise

    def decrements(self, wanted):
        return np.array([f.gradient(x) @ np.linalg.solve(f.hessian(x), f.gradient(x)) for f, x in self.pairs()])

    def find_direction(self, is_open, forcing):
        self.asked.append(forcing)
        self.opened.append(is_open.copy())
        part = 1 - 0.9 * forcing if self.rough else 1.0  # a residual of 0.9 · forcing
        self.inner_iterations += 2 * self.rough * int(is_open.sum())
        steps = [-part * np.linalg.solve(f.hessian(x), f.gradient(x)) for f, x in self.pairs()]
        self.directions = [d * opened for d, opened in zip(steps, is_open, strict=True)]
        return np.array([f.gradient(x) @ d for (f, x), d in zip(self.pairs(), self.directions, strict=True)])

    def along(self, lengths):
        moved = zip(self.pairs(), self.directions, lengths, strict=True)
        return np.array([f.value(x + t * d) for (f, x), d, t in moved])

    def step(self, lengths):
        self.taken.append(lengths.copy())
        self.points = [x + t * d for x, d, t in zip(self.points, self.directions, lengths, strict=True)]
        self._evaluate()


class Unknowing(Smooth):
    """Knows its decrement only from the direction of a step."""

    def decrements(self, wanted):
        return None


def hyperbola(*starts, kind=Smooth, **settings):
    return kind([HYPERBOLA] * len(starts), [[x] for x in starts], **settings)


def objectives(outcome):
    return [s.objective for s in outcome.state.history]


def test_a_quadratic_takes_one_step_and_none_at_its_solution():
    o = Smooth([quadratic()], [np.zeros(5)])
    found = Newton(o, 1e-10, 1).run()
    assert found.status is Status.CONVERGED and found.gradient <= 1e-10
    assert_close(o.points[0], SOLUTION, 1e-10)
    (step,) = found.state.history
    assert (step.step, step.length, step.n_open, step.inner_iterations) == (1, 1.0, 1, 0)
    assert step.gradient == found.gradient and step.objective == o.values.sum()
    flat = Smooth([quadratic()], [np.zeros(5)])
    flat.references = np.zeros(1)  # the gradient at zero is zero
    for o in (Smooth([quadratic()], [SOLUTION]), flat):
        found = Newton(o, 1e-10, 10).run()
        assert found.status is Status.CONVERGED and not found.state.history and not o.asked


@pytest.mark.parametrize("part", ["values", "gradients", "references"])
@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_no_step_is_taken_from_what_is_not_finite(part, value):
    o = hyperbola(1.0, 1.0)
    setattr(o, part, np.array([1.0, value]))
    with pytest.raises(NotFiniteError, match=f"kernel logistic regression is {value}"):
        Newton(o, 1e-10, 10).run()
    assert not o.asked


def test_convergence_is_quadratic():
    o = hyperbola(0.5)
    found = Newton(o, 1e-12, 20).run()
    assert found.status is Status.CONVERGED and found.state.step <= 4
    first, g, h = found.state.history[0], 0.5 / np.sqrt(1.25), 1.25**-1.5
    assert first.decrement == pytest.approx(g**2 / h / 2 / np.sqrt(1.25), rel=1e-12)
    assert first.objective == pytest.approx(np.sqrt(1 + 0.125**2))  # at −0.5³
    o = hyperbola(1e-3)
    o.references = np.array([1e6])
    assert Newton(o, 1e-6, 10).run().status is Status.CONVERGED and not o.asked, "gradients are relative"


@pytest.mark.parametrize("wall", [np.inf, np.nan])
def test_a_value_that_is_not_finite_is_backed_away_from(wall):
    barrier = replace(HYPERBOLA, value=lambda x: wall if np.abs(x).max() > 50 else HYPERBOLA.value(x))
    found = Newton(Smooth([barrier], [[10.0]]), 1e-10, 100).run()
    assert found.status is Status.CONVERGED and np.isfinite(objectives(found)).all()


@pytest.mark.parametrize("rough", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_no_system_s_objective_rises(seed, rough):
    starts = 20 * np.random.default_rng(seed).standard_normal((3, 5))
    o = Smooth([HYPERBOLA, quartic(np.geomspace(1e-6, 10.0**seed, 5)), quadratic(seed=seed)], starts, rough)
    values = [o.values]
    found = Newton(o, 1e-9, 200, on_step=lambda _: values.append(o.values.copy())).run()
    assert found.status is Status.CONVERGED
    assert (np.diff(np.array(values), axis=0) <= 1e-13 * np.abs(values[0])).all()


def test_systems_go_at_their_own_speed_and_those_that_are_done_stay():
    functions, starts = [quadratic(), HYPERBOLA, HYPERBOLA], [np.zeros(5), [30.0], [0.5]]
    o = Smooth(functions, starts)
    found = Newton(o, 1e-10, 100).run()
    n_open = [s.n_open for s in found.state.history]
    assert n_open[:2] == [3, 2] and n_open[-1] == 1 and n_open == sorted(n_open, reverse=True)
    # The quadratic takes a whole step where the other is damped.
    assert o.taken[0][0] == 1 > o.taken[0][1] == found.state.history[0].length
    assert all(lengths[0] == 0 for lengths in o.taken[1:]) and not any(is_open[0] for is_open in o.opened[1:])
    for function, start, point in zip(functions, starts, o.points, strict=True):
        alone = Smooth([function], [start])
        assert Newton(alone, 1e-10, 100).run().status is found.status is Status.CONVERGED
        assert_array_equal(point, alone.points[0], err_msg="as each by itself")


def test_a_system_that_cannot_move_does_not_stop_the_others():
    plain = quadratic(np.eye(2), np.ones(2))
    wrong = replace(plain, gradient=lambda x: -plain.gradient(x))
    for stuck in (wrong, replace(plain, hessian=lambda x: -np.eye(2))):  # no direction of descent
        o = Smooth([stuck, HYPERBOLA], [np.zeros(2), [30.0]])
        assert Newton(o, 1e-10, 100).run().status is Status.STALLED
        assert_allclose(np.concatenate(o.points), 0.0, atol=1e-9)
    history = Newton(Smooth([wrong], [np.zeros(2)]), 1e-10, 100).run().state.history
    assert [s.length for s in history] == [0] * MAX_USELESS


def test_steps_end_where_rounding_is_reached_or_no_more_are_allowed():
    found = Newton(Smooth([quadratic()], [np.zeros(5)], noise=1e-6), 1e-10, 100).run()
    assert found.status is Status.STALLED and found.state.step <= 2 + MAX_USELESS
    assert found.gradient == pytest.approx(1e-6, rel=1e-3)
    o = hyperbola(1000.0)
    found = Newton(o, 1e-10, 3).run()
    assert found.status is Status.MAX_ITERATIONS and found.gradient == o.gradients[0] > 1e-10
    assert found.state.step == len(found.state.history) == 3
    assert Newton(o, 1e-10, 3).run(found.state).state.step == 3, "steps before count"


@pytest.mark.parametrize("kind", [Smooth, Unknowing])
def test_a_small_gradient_is_not_enough_where_the_objective_is_flat(kind):
    o, minimum = kind([SATURATED], [np.zeros(1)]), brentq(SATURATED.gradient, 0.0, 60.0)
    found = Newton(o, 1e-8, 100).run()
    assert found.gradient < 1e-12  # far below what was asked for
    assert o.values[0] <= (1 + 1e-8) * SATURATED.value(np.array([minimum]))
    assert found.decrement <= 1e-8 and found.probability_change <= 1e-4
    # The first step at which the gradient is small enough is far from the minimum.
    early = next(s for s in found.state.history if s.gradient <= 1e-8)
    assert early.objective > 10 * o.values[0]


def test_what_float64_cannot_solve_is_stalled():
    class Flat(Smooth):
        def find_direction(self, is_open, forcing):
            self.directions = [np.zeros(5)]
            return np.zeros(1)  # what is left of the slope is lost in rounding

        def decrements(self, wanted):
            return np.array([1e-3])

    found = Newton(Flat([quadratic()], [SOLUTION + 1e-12]), 1e-8, 50).run()
    assert found.status is Status.STALLED and found.decrement == pytest.approx(5e-4, rel=1e-6)

    class Singular(Unknowing):
        def find_direction(self, is_open, forcing):
            if self.gradients[0] <= 1e-3:
                raise NotPositiveDefiniteError("a pivot is not positive", 0)
            return super().find_direction(is_open, forcing)

    assert Newton(Singular([SATURATED], [np.zeros(1)]), 1e-3, 50).run().status is Status.STALLED
    with pytest.raises(NotPositiveDefiniteError):
        Newton(Singular([SATURATED], [np.zeros(1)]), 1e-4, 50).run()


class Drifting(Smooth):
    """Its gradients are those of a recurrence until they are verified, and then no smaller than some noise."""

    def __init__(self, *arguments, error, **settings):
        self.error, self.verified, self.is_true = error, 0, False
        super().__init__(*arguments, **settings)

    def step(self, lengths):
        super().step(lengths)
        self.is_true = False

    def verify(self, tol):
        if self.is_true:
            return False
        self.verified, self.is_true = self.verified + 1, True
        self.gradients = self.gradients + self.error
        return True


@pytest.mark.parametrize(
    ("error", "most", "status"),
    [(1e-12, 100, "CONVERGED"), (1e-5, 100, "STALLED"), (0.5, 1, "MAX_ITERATIONS"), (0.5, 2, "MAX_ITERATIONS")],
)
def test_gradients_are_verified_before_every_end(error, most, status):
    o = hyperbola(30.0, kind=Drifting, error=error)
    found = Newton(o, 1e-8, most).run()
    assert found.status.name == status and found.gradient >= error
    assert found.gradient == o.gradients[0] == found.state.history[-1].gradient
    # From the first time on after every step.
    assert 1 < o.verified <= MAX_USELESS + 2 if status == "STALLED" else o.verified == 1


def test_systems_are_solved_loosely_at_first_and_as_the_worst_one_needs():
    o, lines, progress = hyperbola(30.0, rough=True), [], Progress()
    progress.detail = lines.append
    found = Newton(o, 1e-8, 100, progress).run()
    assert o.asked[0] == MAX_FORCING and all(MIN_FORCING <= x <= MAX_FORCING for x in o.asked)
    assert [s.inner_iterations for s in found.state.history] == [2] * found.state.step
    assert lines[0].startswith("Newton step 1: objective ") and ", 2 iterations, step length 0." in lines[0]
    assert lines[0].endswith(" left") and not lines[-1].endswith(" left")
    o = hyperbola(30.0, 1e-4)
    Newton(o, 1e-12, 1).run()
    assert o.asked[0] == pytest.approx(1e-2, rel=1e-6)


def test_systems_are_solved_more_sharply_where_steps_bring_too_little():
    class Sloppy(Smooth):
        """Whole steps bring too little."""

        def find_direction(self, is_open, forcing):
            slopes, part = super().find_direction(is_open, forcing), 1e-3 / max(forcing, 1e-3)
            self.directions = [d * part for d in self.directions]
            return slopes * part

    o = Sloppy([quadratic()], [np.zeros(5)])
    assert Newton(o, 1e-10, 100).run().status is Status.CONVERGED
    assert o.asked[1] < 0.2 * o.asked[0]
