"""Checkpoints: what is saved comes back, a kill at any moment leaves a complete one, and damage is told."""

import copy
import shutil

import dask
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from dkrr.cluster import SerialExecutor
from dkrr.data import MemoryRows
from dkrr.fitting.kept_preconditioner import KeptPreconditioner
from dkrr.fitting.storage import Checkpoints
from dkrr.kernels import RBF
from dkrr.linalg.column_sources import GramColumns
from dkrr.linalg.conjugate_gradient import Iteration
from dkrr.linalg.pivoted_cholesky import PivotedCholesky
from dkrr.linalg.result import Status
from dkrr.store import ChunkedArray, RunStore
from dkrr.store.paths import local_path
from tests.systems import MatrixOperator, flip_a_bit, positive_definite, random, remove_chunks


@pytest.fixture
def store(tmp_path):
    store = RunStore(str(tmp_path / "run"))
    store.open()
    return store


def iteration(**more):
    matrix = MatrixOperator(positive_definite(47))
    return Iteration(matrix, np.full((1, 3), 0.01), random(47, 3, seed=1), tol=1e-10, mixed=True, **more)


@pytest.fixture(scope="module")
def found():
    """States after every iteration, and the last one between cycles."""
    states = []
    one = iteration(**{name: lambda s: states.append(copy.deepcopy(s)) for name in ("on_iteration", "on_end")})
    assert one.run().status is Status.CONVERGED
    return states


def assert_same(a, b):
    """Equal arrays and plain values."""
    (arrays, plain), (others, expected) = a.arrays(), b.arrays()
    assert plain == expected and arrays.keys() == others.keys()
    for name, array in arrays.items():
        assert_array_equal(array, others[name])


def test_the_last_checkpoint_counts_and_an_iteration_resumes_from_it_with_the_same_bits(store, found):
    assert Checkpoints(store).load() is None and Checkpoints(store).load_pivots() is None
    checkpoints = Checkpoints(store)
    for state in (found[0], found[-1], found[len(found) // 2]):  # between cycles there are fewer arrays
        checkpoints.save(state)
        assert_same(Checkpoints(store).load(), state)
    again, outcome = iteration().run(state=Checkpoints(store).load()), iteration().run()
    assert again.iterations == outcome.iterations
    assert_array_equal(again.x, outcome.x)


def kill_at(patch, number):
    """Let a number of writes to a store be made, and end the process at the next."""
    writes = iter(range(number))

    def until(action):
        def write(*args):
            if next(writes, None) is None:
                raise KeyboardInterrupt
            return action(*args)

        return write

    for owner, name in ((ChunkedArray, "fill"), (RunStore, "set_note")):
        patch.setattr(owner, name, until(getattr(owner, name)))


@pytest.mark.parametrize("at", range(8))
def test_a_kill_while_saving_leaves_the_checkpoint_before(store, found, monkeypatch, at):
    """Whichever write is the last; the resumed run does not destroy it."""
    checkpoints = Checkpoints(store, pivots=lambda: np.array([5, 0, 46]))
    checkpoints.save(found[3])
    resumed = Checkpoints(store, pivots=lambda: np.array([5, 0, 46, 7]))
    resumed.load(), resumed.load_pivots()
    with monkeypatch.context() as patch:
        kill_at(patch, at)
        with pytest.raises(KeyboardInterrupt):
            resumed.save(found[8])
    after = Checkpoints(store)
    assert_same(after.load(), found[3])
    assert after.load_pivots().tolist()[:3] == [5, 0, 46]
    after.save(found[10])
    assert_same(Checkpoints(store).load(), found[10])


def test_checkpoints_are_saved_when_their_time_has_come(store, found, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr("dkrr.fitting.storage.time.monotonic", lambda: clock[0])
    checkpoints = Checkpoints(store, _saved_at=100.0)
    with dask.config.set({"dkrr.checkpoint-seconds": 30}):
        for k, (seconds, saved) in enumerate([(100.0, None), (129.0, None), (130.0, 3), (159.0, 3), (160.0, 5)]):
            clock[0] = seconds
            checkpoints.save_in_time(found[k])
            state = Checkpoints(store).load()
            assert (None if state is None else state.iteration) == saved


@pytest.mark.parametrize(
    "damage", [lambda array: flip_a_bit(array, "c.0.0"), lambda array: remove_chunks(array, [(0, 0)])]
)
def test_a_damaged_checkpoint_is_told_and_the_next_one_is_whole(store, found, damage):
    """Nothing depends on a checkpoint: a run restarts, and says so."""
    checkpoints = Checkpoints(store)
    checkpoints.save(found[3])
    checkpoints.save_pivots(np.array([5, 0, 46]))
    for name in ("checkpoint-0/direction", "pivots-3"):
        damage(store.open_array(name))
    checkpoints = Checkpoints(store)
    assert checkpoints.load() is None and checkpoints.load_pivots() is None
    assert "checkpoint of the run in this store is damaged" in checkpoints.damage
    checkpoints.save(found[6])
    checkpoints.save_pivots(np.array([7, 8, 9, 4]))
    again = Checkpoints(store)
    assert_same(again.load(), found[6])
    assert again.damage == "" and again.load_pivots().tolist() == [7, 8, 9, 4]


def test_an_array_of_an_earlier_checkpoint_is_noticed_and_damage_of_the_other_does_not_matter(store, found, tmp_path):
    checkpoints, direction = Checkpoints(store), local_path(store.at("checkpoint-0/direction"))
    checkpoints.save(found[3])
    shutil.copytree(direction, tmp_path / "earlier")
    checkpoints.save(found[4])
    shutil.rmtree(direction)
    again = Checkpoints(store)
    assert_same(again.load(), found[4])
    assert again.damage == ""
    checkpoints.save(found[5])
    shutil.rmtree(direction)
    shutil.copytree(tmp_path / "earlier", direction)  # whole, of this run and at its place
    checkpoints = Checkpoints(store)
    assert checkpoints.load() is None and "direction is not of this checkpoint" in checkpoints.damage


def test_pivots_come_back_as_they_were_when_the_state_was_saved(store, found):
    checkpoints = Checkpoints(store)
    checkpoints.save_pivots(np.empty(0, np.intp))
    assert Checkpoints(store).load_pivots() is None, "of a kernel of zeros there is nothing to resume from"
    for pivots in ([5, 0, 46], [5, 0, 46, 7], [5, 0, 46, 7], [1, 2, 3]):
        Checkpoints(store, pivots=lambda pivots=pivots: np.array(pivots)).save(found[2])
        again = Checkpoints(store).load_pivots()
        assert again.dtype == np.intp and again.tolist() == pivots


def factor(*, slots=3):
    """A partial factor, not grown yet."""
    columns = GramColumns(RBF(gamma=0.3), MemoryRows(random(211, 3, seed=2)))
    run = f"kept-{np.random.default_rng().integers(2**60)}"
    return PivotedCholesky(columns, SerialExecutor(), run, slots, capacity=120, dtype=np.float32)


def kept(store, one, write_bytes=1e9):
    return KeptPreconditioner(store, one, write_bytes)


def grown(store, one, rank, *, until=None):
    """The factor of a run that keeps its columns after every round, and is killed at the end if `until` is given."""
    with dask.config.set({"dkrr.checkpoint-seconds": 0}):
        keeping = kept(store, one)
        is_complete = keeping.load()
        one.grow(rank, lambda f: keeping.after_round() or (until is not None and f.rank >= until))
        if until is None:
            keeping.end()
    return is_complete


def assert_same_factor(a, b):
    assert_array_equal(a.index, b.index)
    assert_array_equal(a.residual_diagonal, b.residual_diagonal)
    assert_array_equal(a.pivot_factor, b.pivot_factor)
    unit = np.eye(a.rank)
    assert_array_equal(a.expand(unit), b.expand(unit))
    assert a.traces == b.traces


@pytest.mark.parametrize("slots", [3, 2])
def test_a_factor_goes_on_from_the_columns_that_are_kept_with_the_same_bits(store, slots):
    """Also where the rows are cut for another number of workers."""
    whole, first, second, third = factor(slots=slots), factor(), factor(slots=slots), factor(slots=slots)
    whole.grow(70)
    assert grown(store, first, 70, until=30) is None and 30 <= first.rank < 70
    assert grown(store, second, 70) is False and grown(store, third, 70) is True
    assert_same_factor(second, third)
    for one in (second, third, whole):
        one.grow(90)
    assert_same_factor(second, third)
    if slots == 3:  # blocks of other heights are rounded otherwise
        assert_same_factor(third, whole)


def test_damaged_columns_are_dropped_and_columns_are_kept_where_they_are_worth_it(store):
    grown(store, one := factor(), 70)
    names = [name for name, _ in store.arrays("preconditioner")]
    assert len(names) >= 12 and all(name.startswith("preconditioner/") for name in names)
    flip_a_bit(store.open_array(names[-1]), "c.0.0")
    again = factor()
    assert grown(store, factor(), 70) is None, "it is computed and kept again"
    assert grown(store, again, 70) is True
    assert_same_factor(again, one)
    for seconds, write_bytes, is_kept in ((29.0, 1e9, False), (31.0, 1e9, True), (31.0, 5e3, False)):
        store.delete("preconditioner")
        store.set_note("preconditioner", None)
        keeping = kept(store, one, write_bytes)
        with dask.config.set({"dkrr.checkpoint-seconds": 90}):
            keeping._begun -= seconds
            keeping.end()
        assert (store.note("preconditioner") is not None) == is_kept, (seconds, write_bytes)
        assert is_kept or keeping.again_seconds >= seconds


@pytest.mark.parametrize("at", range(4))
def test_a_kill_while_columns_are_written_leaves_those_before(store, monkeypatch, at):
    grown(store, factor(), 70, until=30)
    with monkeypatch.context() as patch:
        kill_at(patch, at)
        with pytest.raises(KeyboardInterrupt):
            grown(store, factor(), 70)
    whole, resumed = factor(), factor()
    whole.grow(70)
    assert grown(store, resumed, 70) is False
    assert_same_factor(resumed, whole)
