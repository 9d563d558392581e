"""What a fit tells of itself: maps of tiles against a naive count, curves, stages, and what it passes on."""

import math

import numpy as np
import pytest

from dkrr.dashboard.states import CELLS, MAX_NOTES, MAX_POINTS, MAX_SIDE, FitState
from dkrr.runtime import Progress
from dkrr.runtime.followed import FollowedProgress, Outline


class Shown(Progress):
    """Keeps what it is told."""

    def __init__(self):
        super().__init__()
        self.told = []

    def begin(self, name, total, done):
        self.told.append(("begin", name, total, done))

    def advance(self, flops):
        self.told.append(("advance", flops))

    def end(self, *, failed):
        self.told.append(("end", failed))

    def note(self, message):
        self.told.append(("note", message))


@pytest.fixture
def followed():
    return FollowedProgress(Shown(), "Client-1", Outline("title", "how", {"factorisation": 7.0, "substitution": 2.0}))


def read(followed):
    """The state as the page reads it."""
    state = FitState.read(followed.state().plain())
    assert state is not None
    return state


def test_a_stage(followed):
    assert read(followed).stage == "" and read(followed).planned == 9.0
    with followed.stage("factorisation", 8.0, 2.0, "λ 1 of 2"):
        followed.advance(2.0)
        state = read(followed)
        assert (state.stage, state.share, state.status) == ("factorisation, λ 1 of 2", 0.5, "running")
        assert state.left >= 0 and [row[0] for row in state.stages] == ["factorisation", "substitution"]
    assert read(followed).share == 1.0 and read(followed).left < 0
    followed.finish("")
    assert read(followed).status == "complete" and read(followed).seconds == read(followed).seconds
    assert followed._shown.told == [("begin", "factorisation, λ 1 of 2", 8.0, 2.0), ("advance", 2.0), ("end", False)]


def test_one_account_of_the_time(followed):
    with followed.stage("factorisation", 1.0):
        pass
    with followed._shown.measured("reading X"):
        pass
    assert {stage.name for stage in followed.take_stages()} == {"factorisation", "reading X"}
    assert followed._shown.take_stages() == ()
    with followed._shown.measured("targets"):
        pass
    assert [stage.name for stage in followed.take_stages()] == ["targets"]


def test_failure_and_notes(followed):
    for k in range(3 * MAX_NOTES):
        followed.note(f"{k}" * 1000)
    with pytest.raises(ValueError), followed.stage("factorisation", 1.0):  # noqa: PT012
        followed.advance(0.25)
        raise ValueError
    followed.finish("ValueError: " + "x" * 10**6)
    state = read(followed)
    assert (
        state.status == "failed" and len(state.notes) == MAX_NOTES and state.share == 0.25 and len(state.message) < 999
    )


@pytest.mark.parametrize("n", [1, 5, 60, 61, 131])
def test_a_map_of_tiles(followed, n):
    """Tiles that are done in any order, some by several tasks, some of them before."""
    rng = np.random.default_rng(n)
    lower = [(i, j) for i in range(n) for j in range(i + 1)]
    left = {tile: int(rng.integers(1, 4)) for tile in lower if rng.random() < 0.8 or tile == (n - 1, n - 1)}
    tasks = [tile for tile, count in left.items() for _ in range(count)]
    rng.shuffle(tasks)
    done, sent = len(tasks) // 2, min(len(tasks), len(tasks) // 2 + 3)
    followed.tiles(left)
    for tile in tasks[:sent]:
        followed.tile(tuple(tile), is_done=False)
    for tile in tasks[:done]:
        followed.tile(tuple(tile), is_done=True)
    found = read(followed).tiles
    unfinished, running = {tuple(t) for t in tasks[done:]}, {tuple(t) for t in tasks[done:sent]}
    step = -(-n // MAX_SIDE)
    assert (found.step, found.n_tiles, found.n_done) == (step, len(lower), len(lower) - len(unfinished))
    side = -(-n // step)
    assert len(found.cells) == side and all(len(row) == side for row in found.cells)
    for i in range(side):
        for j in range(side):
            tiles = [t for t in lower if t[0] // step == i and t[1] // step == j]
            share = sum(t not in unfinished for t in tiles) / len(tiles) if tiles else 0.0
            expected = "4" if share == 1 else str(min(3, int(4 * share)))
            expected = "r" if running & set(tiles) else expected if tiles else " "
            assert found.cells[i][j] == expected, (i, j)


def test_a_map_of_tiles_that_are_kept(followed):
    followed.kept({(0, 0): 0, (1, 0): 11, (1, 1): None})
    found = read(followed).tiles
    assert found.cells == ["a ", "bf"] and found.n_done == 2 and found.n_tiles == 3 and CELLS.issuperset("abf ")


def test_curves_are_thinned_and_begin_again(followed):
    for step in range(1, 5 * MAX_POINTS + 3):
        followed.iterated("conjugate gradient", step, 1.0 / step, 1e-8, is_true=step % 50 == 0)
    followed.iterated("conjugate gradient", 7, math.nan, 1e-8)
    (curve,) = read(followed).curves
    assert len(curve.points) <= MAX_POINTS and curve.points[-1][0] == 5 * MAX_POINTS + 2 and curve.tol == 1e-8
    followed.iterated("Newton's method", 1, 0.5, 1e-6)
    followed.iterated("conjugate gradient", 1, 0.25, 1e-9)
    assert [c.points for c in read(followed).curves] == [[[1.0, 0.25, 1.0]], [[1.0, 0.5, 1.0]]]


def test_a_state_is_small(followed):
    """The scheduler keeps a thousand of them."""
    import msgpack

    followed.tiles({(i, j): 1 for i in range(400) for j in range(i + 1)})
    for step in range(2000):
        for method in ("conjugate gradient", "Newton's method"):
            followed.iterated(method, step, 0.5, 1e-8)
    assert len(msgpack.packb(followed.state().plain())) < 25_000
