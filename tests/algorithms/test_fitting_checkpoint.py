"""Checkpoints: what is saved comes back, a kill at any moment leaves a complete one, and damage is told."""

import copy
import shutil
from contextlib import suppress
from dataclasses import dataclass, field

import dask
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from dkrr.fitting.checkpoint import Checkpoints
from dkrr.linalg.operator import Operator
from dkrr.runtime import RunRecord
from dkrr.solvers.conjugate_gradient import Iteration
from dkrr.solvers.result import Status
from dkrr.tiles import ChunkedArray, RunStore
from dkrr.tiles.paths import local_path

N, M = 47, 3
RNG = np.random.default_rng(0)


@dataclass
class Matrix(Operator):
    """Products with a matrix in memory."""

    matrix: np.ndarray
    record: RunRecord = field(default_factory=RunRecord)

    @property
    def n(self):
        return len(self.matrix)

    def multiply(self, vectors, precision="float64", columns=None):
        return (self.matrix.astype(precision) @ vectors.astype(precision)).astype(np.float64)


@pytest.fixture
def store(tmp_path):
    store = RunStore(str(tmp_path / "run"))
    store.open()
    return store


# Conjugate gradient


def iteration(**more):
    rng = np.random.default_rng(0)
    A, B = rng.standard_normal((N, N)), rng.standard_normal((N, M))
    matrix = Matrix(A @ A.T / N + np.eye(N))
    return Iteration(matrix, np.full((1, M), 0.01), B, tol=1e-10, mixed=True, **more)


def states():
    """States after every iteration, and the last one between cycles."""
    found = []
    outcome = iteration(
        on_iteration=lambda s: found.append(copy.deepcopy(s)), on_end=lambda s: found.append(copy.deepcopy(s))
    ).run()
    return outcome, found


def assert_same(a, b):
    assert_array_equal(a.x, b.x)
    assert_array_equal(a.residual, b.residual)
    assert (a.iteration, a.precision, a.history, a.messages) == (b.iteration, b.precision, b.history, b.messages)
    assert (a.cycle is None) == (b.cycle is None)
    if a.cycle is not None:
        for name in ("columns", "goal", "correction", "residual", "direction", "product"):
            assert_array_equal(getattr(a.cycle, name), getattr(b.cycle, name))


def test_the_last_checkpoint_counts_and_an_iteration_resumes_from_it_with_the_same_bits(store):
    assert Checkpoints(store).load() is None and Checkpoints(store).load_pivots() is None
    outcome, found = states()
    checkpoints = Checkpoints(store)
    for state in (found[0], found[-1], found[len(found) // 2]):  # between cycles there are fewer arrays
        checkpoints.save(state)
        assert_same(Checkpoints(store).load(), state)
    again = iteration().run(state=Checkpoints(store).load())
    assert outcome.status is Status.CONVERGED and again.iterations == outcome.iterations
    assert_array_equal(again.x, outcome.x)


@pytest.mark.parametrize("at", range(6))
def test_a_kill_while_saving_leaves_the_checkpoint_before(store, monkeypatch, at):
    """Whichever write is the last; the resumed run does not destroy it."""
    _, found = states()
    Checkpoints(store).save(found[3])
    resumed = Checkpoints(store)
    assert_same(resumed.load(), found[3])
    writes, fill, note = [], ChunkedArray.fill, RunStore.set_note

    def until(action):
        def write(*args):
            if len(writes) == at:
                raise KeyboardInterrupt
            writes.append(1)
            return action(*args)

        return write

    with monkeypatch.context() as patch:
        patch.setattr(ChunkedArray, "fill", until(fill))
        patch.setattr(RunStore, "set_note", until(note))
        with pytest.raises(KeyboardInterrupt):
            resumed.save(found[8])
    after = Checkpoints(store)
    assert_same(after.load(), found[3])
    after.save(found[10])
    assert_same(Checkpoints(store).load(), found[10])


def test_checkpoints_are_saved_when_their_time_has_come(store, monkeypatch):
    _, found = states()
    clock = [100.0]
    monkeypatch.setattr("dkrr.fitting.checkpoint.time.monotonic", lambda: clock[0])
    checkpoints = Checkpoints(store, _saved_at=100.0)
    with dask.config.set({"dkrr.checkpoint-seconds": 30}):
        for k, (seconds, saved) in enumerate([(100.0, None), (129.0, None), (130.0, 3), (159.0, 3), (160.0, 5)]):
            clock[0] = seconds
            checkpoints.save_in_time(found[k])
            state = Checkpoints(store).load()
            assert (None if state is None else state.iteration) == saved


@pytest.mark.parametrize("how", ["missing", "short", "flipped", "folder", "description", "of another time"])
def test_a_damaged_checkpoint_is_told_and_the_next_one_is_whole(store, tmp_path, how):
    """Nothing depends on a checkpoint: a run restarts, and says so."""
    _, found = states()
    checkpoints, first, pivots = Checkpoints(store), "checkpoint-0/direction", "pivots-3"
    checkpoints.save(found[3])
    shutil.copytree(local_path(store.at(first)), tmp_path / "earlier")
    if how == "of another time":  # whole, of this run and at its place, but not what the other arrays belong to
        for k in (4, 5):
            checkpoints.save(found[k])
    checkpoints.save_pivots(np.array([5, 0, 46]))
    for name in (first, pivots) if how != "of another time" else (first,):
        array = local_path(store.at(name))
        chunk = next(p for p in array.iterdir() if p.name.startswith("c."))
        content = chunk.read_bytes()
        if how == "missing":
            chunk.unlink()
        elif how == "short":
            chunk.write_bytes(content[:-9])
        elif how == "flipped":
            chunk.write_bytes(bytes([content[0] ^ 1]) + content[1:])
        elif how == "description":
            (array / "zarr.json").write_text("{")
        else:
            shutil.rmtree(array)
    if how == "of another time":
        shutil.copytree(tmp_path / "earlier", local_path(store.at(first)))
    checkpoints = Checkpoints(store)
    assert checkpoints.load() is None
    assert "checkpoint of the run in this store is damaged" in checkpoints.damage
    assert how != "of another time" or "direction is not of this checkpoint" in checkpoints.damage
    kept = checkpoints.load_pivots()
    assert kept is None if how != "of another time" else kept.tolist() == [5, 0, 46]
    checkpoints.save(found[6])
    checkpoints.save_pivots(np.array([7, 8, 9, 4]))
    again = Checkpoints(store)
    assert_same(again.load(), found[6])
    assert again.damage == "" and again.load_pivots().tolist() == [7, 8, 9, 4]


def test_damage_of_the_other_checkpoint_does_not_matter(store):
    _, found = states()
    checkpoints = Checkpoints(store)
    checkpoints.save(found[3])
    checkpoints.save(found[4])
    shutil.rmtree(local_path(store.at("checkpoint-0")))
    again = Checkpoints(store)
    assert_same(again.load(), found[4])
    assert again.damage == ""


def test_pivots_come_back(store):
    checkpoints = Checkpoints(store)
    checkpoints.save_pivots(np.empty(0, np.intp))
    assert Checkpoints(store).load_pivots() is None, "of a kernel of zeros there is nothing to resume from"
    for pivots in ([5, 0, 46], [5, 0, 46, 7], [5, 0, 46, 7], [1, 2, 3]):
        checkpoints.save_pivots(np.array(pivots))
        found = Checkpoints(store).load_pivots()
        assert found.dtype == np.intp and found.tolist() == pivots


@pytest.mark.parametrize("pivots", [[5, 0, 46, 7], [1, 2], [5, 0, 46]])
def test_a_kill_while_saving_pivots_leaves_those_before(store, monkeypatch, pivots):
    Checkpoints(store).save_pivots(np.array([5, 0, 46]))

    def killed(*args, **kwargs):
        raise KeyboardInterrupt

    for owner, name in ((ChunkedArray, "fill"), (RunStore, "set_note")):
        resumed = Checkpoints(store)
        assert resumed.load_pivots().tolist() == [5, 0, 46]
        with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
            patch.setattr(owner, name, killed)
            resumed.save_pivots(np.array(pivots))
        assert Checkpoints(store).load_pivots().tolist() == [5, 0, 46]


def test_pivots_of_a_preconditioner_that_grows_are_saved_with_the_state_of_their_moment(store):
    _, found = states()
    pivots = [np.array([3, 1])]
    checkpoints = Checkpoints(store, pivots=lambda: pivots[-1])
    checkpoints.save(found[2])
    assert Checkpoints(store).load_pivots().tolist() == [3, 1]
    pivots.append(np.array([3, 1, 2]))
    checkpoints.save(found[4])
    assert Checkpoints(store).load_pivots().tolist() == [3, 1, 2]
    assert_same(Checkpoints(store).load(), found[4])
