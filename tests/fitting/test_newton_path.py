"""What a checkpoint of a path holds comes back, and what is damaged or unfinished is computed again."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from dkrr.fitting.checkpoint import Checkpoints
from dkrr.fitting.logistic import PathPoint, PathState
from dkrr.solvers.newton import NewtonOutcome, NewtonState, Point
from dkrr.solvers.result import NewtonStep, Status
from dkrr.tiles import RunStore

TOL, MAX_ITER = 1e-8, 20
rng = np.random.default_rng(0)
STEP = NewtonStep(
    step=1, seconds=0.5, objective=2.0, gradient=1e-9, length=1.0, n_open=1, inner_iterations=7, decrement=np.inf
)
REFERENCES = np.array([1.0, 2.0])


@pytest.fixture
def store(tmp_path):
    store = RunStore(str(tmp_path / "run"))
    store.open()
    return store


def point(**known):
    return Point(rng.standard_normal((7, 2)), rng.standard_normal(2), **known)


def solved(status=Status.CONVERGED, gradient=1e-9):
    outcome = NewtonOutcome(status, gradient, 1e-12, 1e-6, NewtonState(1, [STEP], ["slow"], useless=2))
    return PathPoint(point(), outcome, 3.0)


def assert_same(found, expected):
    assert_array_equal(found.coef, expected.coef)
    assert_array_equal(found.intercept, expected.intercept)
    for one, other in ((found.scores, expected.scores), (found.gradients, expected.gradients)):
        assert (one is None) == (other is None)
        assert one is None or np.array_equal(one, other)


def resumed(store, tol=TOL, max_iter=MAX_ITER):
    return PathState.resumed(Checkpoints(store), tol, max_iter)


def test_nothing_yet(store):
    assert resumed(store) == PathState() == PathState.resumed(None, TOL, MAX_ITER)
    PathState((solved(),), references=REFERENCES).save(None)


@pytest.mark.parametrize("known", [{}, {"scores": rng.standard_normal((7, 2)), "gradients": REFERENCES}])
def test_within_a_run(store, known):
    first, newton = solved(), NewtonState(3, [STEP], expected=[0.1, np.inf], least=[[1.0], [2.0]])
    path = PathState((first,), first.point, None, REFERENCES)
    path.save(Checkpoints(store))
    path = replace(path, point=point(**known), newton=newton)
    path.save(Checkpoints(store))
    found = resumed(store)
    assert_same(found.point, path.point)
    assert_same(found.done[0].point, first.point)
    assert found.newton == newton and found.done[0].outcome == first.outcome
    assert (found.done[0].seconds, found.done[0].inner_iterations) == (3.0, 7)
    assert_array_equal(found.references, REFERENCES)


@pytest.mark.parametrize(
    ("status", "gradient", "tol", "max_iter", "n_done"),
    [
        (Status.CONVERGED, 1e-9, TOL, MAX_ITER, 2),
        (Status.CONVERGED, 1e-9, 1e-10, MAX_ITER, 0),
        (Status.MAX_ITERATIONS, 1e-3, TOL, 1, 2),
        (Status.MAX_ITERATIONS, 1e-3, TOL, MAX_ITER, 0),
        (Status.STALLED, 1e-3, TOL, MAX_ITER, 2),
    ],
)
def test_between_two_values(store, status, gradient, tol, max_iter, n_done):
    """A solution that other settings would go on from is not done."""
    points = (solved(status, gradient), solved())
    for k in (1, 2):
        PathState(points[:k], points[k - 1].point, None, REFERENCES).save(Checkpoints(store))
    found = resumed(store, tol, max_iter)
    assert len(found.done) == n_done
    assert_same(found.point, points[min(n_done, 1)].point)
    assert found.newton == (None if n_done else replace(points[0].outcome.state, useless=0))


def test_damage_is_told(store):
    points = (solved(), solved())
    for k in (1, 2):
        PathState(points[:k], points[k - 1].point, None, REFERENCES).save(Checkpoints(store))
    store.delete("model-1")
    found = resumed(store)
    assert len(found.done) == 1 and "damaged" in found.newton.messages[0]
    assert_same(found.point, points[0].point)
    assert_array_equal(found.references, REFERENCES)
