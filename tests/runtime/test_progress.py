"""The time of stages, which every display measures, and work that is a part of a stage."""

import time

import numpy as np
import pytest

import dkrr
from dkrr.runtime import Progress
from dkrr.solvers import ConjugateGradient, RPCholesky


def test_the_time_of_stages_is_measured():
    display = Progress()
    for name in ("factorisation", "substitution", "factorisation"):
        with display.stage(name, 1.0, detail="model 1"):
            time.sleep(0.002)
    first, second = display.take_stages()
    assert (first.name, second.name) == ("factorisation", "substitution")
    assert first.seconds >= 0.004 and second.seconds >= 0.002
    assert display.take_stages() == (), "each is told once"


class Recorded(Progress):
    """Keeps what every stage was advanced by."""

    def __init__(self):
        super().__init__()
        self.advanced = {}

    def begin(self, name, total, done):
        self.name, self.total = name, total
        self.advanced.setdefault(name, [])

    def advance(self, flops):
        self.advanced[self.name].append(flops / self.total)


@pytest.mark.parametrize(
    ("settings", "stages"),
    [
        ({"solver": "cholesky"}, ["factorisation"]),
        ({"solver": ConjugateGradient(preconditioner=RPCholesky(rank=64))}, ["preconditioner"]),
        ({"solver": "cg"}, ["preconditioner"]),
    ],
)
def test_stages_in_memory_say_how_far_they_are(settings, stages, monkeypatch):
    display = Recorded()
    monkeypatch.setattr("dkrr.fitting.run.make_progress", lambda show: display)
    rng = np.random.default_rng(0)
    X = rng.standard_normal((2300, 3))  # more than one tile
    dkrr.KernelRidge(kernel="rbf", alpha=1e-3, **settings).fit(X, X[:, 0])
    for stage in stages:
        steps = display.advanced[stage]
        assert len(steps) >= 3 and sum(steps) <= 1 + 1e-9, (stage, steps)
        assert sum(steps) == pytest.approx(1) or settings["solver"] == "cg", "it may end early"


@pytest.mark.parametrize("cv", [5, "loo"])
def test_held_out_errors_say_how_far_they_are(cv, monkeypatch):
    display = Recorded()
    monkeypatch.setattr("dkrr.selection.scoring.make_progress", lambda show: display)
    rng = np.random.default_rng(0)
    X = rng.standard_normal((600, 3))
    dkrr.KernelRidgeCV(alphas=[0.1], kernel="rbf", cv=cv, refit=False, solver="cholesky").fit(X, X[:, 0])
    assert sum(display.advanced["held-out errors"]) == pytest.approx(1)
