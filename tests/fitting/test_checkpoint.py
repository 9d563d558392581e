"""Checkpoints of conjugate gradient: what is saved comes back, and a kill at any moment leaves a complete one."""

import copy
import shutil
from contextlib import suppress

import dask
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from dkrr.fitting.checkpoint import Checkpoints
from dkrr.solvers.conjugate_gradient import Iteration
from dkrr.solvers.result import Status
from dkrr.tiles import ChunkedArray, RunStore
from dkrr.tiles.paths import local_path
from tests.systems import MatrixOperator, positive_definite

N, M = 47, 3


@pytest.fixture
def store(tmp_path):
    store = RunStore(str(tmp_path / "run"))
    store.open()
    return store


def iteration(**more):
    B = np.random.default_rng(0).standard_normal((N, M))
    return Iteration(MatrixOperator(positive_definite(N)), np.full((1, M), 0.01), B, tol=1e-10, mixed=True, **more)


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


def test_none_yet(store):
    assert Checkpoints(store).load() is None
    assert Checkpoints(store).load_pivots() is None


def test_the_last_one_counts(store):
    _, found = states()
    checkpoints = Checkpoints(store)
    for state in (found[0], found[5], found[9], found[-1]):  # the last has no cycle: fewer arrays than before
        checkpoints.save(state)
        assert_same(Checkpoints(store).load(), state)


def test_a_run_goes_on_with_the_same_bits(store):
    outcome, found = states()
    assert outcome.status is Status.CONVERGED
    Checkpoints(store).save(found[len(found) // 2])
    again = iteration().run(state=Checkpoints(store).load())
    assert_array_equal(again.x, outcome.x)
    assert again.iterations == outcome.iterations


@pytest.mark.parametrize("at", range(6))
def test_killed_while_saving(store, monkeypatch, at):
    """Whichever write is the last, the checkpoint before is whole; the resumed run does not destroy it."""
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


def test_in_time(store, monkeypatch):
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


def test_damaged(store):
    """Nothing depends on a checkpoint: a run restarts, and says so."""
    _, found = states()
    Checkpoints(store).save(found[3])
    Checkpoints(store).save_pivots(np.array([5, 0, 46]))
    for name in ("checkpoint-0/direction", "pivots-3"):
        chunk = next(p for p in local_path(store.at(name)).iterdir() if p.name.startswith("c."))
        chunk.write_bytes(b"\1" + chunk.read_bytes()[1:])
    checkpoints = Checkpoints(store)
    assert checkpoints.load() is None
    assert "checkpoint of the run in this store is damaged" in checkpoints.damage
    assert checkpoints.load_pivots() is None
    checkpoints.save(found[5])
    checkpoints.save_pivots(np.array([7, 8, 9]))
    again = Checkpoints(store)
    assert_same(again.load(), found[5])
    assert again.damage == ""
    assert again.load_pivots().tolist() == [7, 8, 9]


def test_an_array_of_another_time(store, tmp_path):
    """Whole, of this run and at its place, but of an earlier checkpoint: not what the other arrays belong to."""
    _, found = states()
    checkpoints = Checkpoints(store)
    checkpoints.save(found[3])
    x = local_path(store.at("checkpoint-0/direction"))
    shutil.copytree(x, tmp_path / "x")
    for k in (4, 5):
        checkpoints.save(found[k])
    shutil.rmtree(x)
    shutil.copytree(tmp_path / "x", x)
    again = Checkpoints(store)
    assert again.load() is None and "direction is not of this checkpoint" in again.damage


class TestPivots:
    def test_round_trip(self, store):
        checkpoints = Checkpoints(store)
        for pivots in ([5, 0, 46], [5, 0, 46, 7], [5, 0, 46, 7], [1, 2, 3]):
            checkpoints.save_pivots(np.array(pivots))
            found = Checkpoints(store).load_pivots()
            assert found.dtype == np.intp
            assert found.tolist() == pivots

    def test_none_were_found(self, store):
        """A kernel of zeros: nothing to go on from, and no error."""
        Checkpoints(store).save_pivots(np.empty(0, np.intp))
        assert Checkpoints(store).load_pivots() is None

    @pytest.mark.parametrize("pivots", [[5, 0, 46, 7], [1, 2], [5, 0, 46]])
    def test_killed_while_saving(self, store, monkeypatch, pivots):
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

    def test_those_of_a_preconditioner_that_grows(self, store):
        """A state belongs to the preconditioner of its moment: both are saved together."""
        _, found = states()
        pivots = [np.array([3, 1])]
        checkpoints = Checkpoints(store, pivots=lambda: pivots[-1])
        checkpoints.save(found[2])
        assert Checkpoints(store).load_pivots().tolist() == [3, 1]
        pivots.append(np.array([3, 1, 2]))
        checkpoints.save(found[4])
        assert Checkpoints(store).load_pivots().tolist() == [3, 1, 2]
        assert_same(Checkpoints(store).load(), found[4])
