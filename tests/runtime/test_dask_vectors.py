"""Passes of an iteration on worker processes: shared vectors, sums in a tree, places, and a worker that is lost."""

import os
import pickle
import signal
import uuid

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from dkrr.kernels import RBF
from dkrr.linalg.low_rank import LowRank
from dkrr.linalg.pivoted_cholesky import PivotedCholesky
from dkrr.linalg.sources import GramColumns, GramTiles
from dkrr.linalg.tiled_operator import ResidentRows, TiledOperator
from dkrr.rows import as_rows
from dkrr.runtime import SerialExecutor, Task, resident
from dkrr.runtime.dask_executor import DaskExecutor
from dkrr.solvers.conjugate_gradient import Iteration
from dkrr.solvers.result import Status
from dkrr.tiles import TileGrid
from dkrr.tiles.arrays import create_array
from tests.systems import rows_of

VECTORS = np.random.default_rng(0).standard_normal((13, 2))


@pytest.fixture
def client(workers):
    return workers


@pytest.fixture
def executor(client):
    return DaskExecutor(client)


@pytest.fixture
def run(executor):
    name = f"run-{uuid.uuid4().hex}"
    yield name
    executor.forget(name)


def scaled(meter, k, shared):
    meter.bytes_read += k
    return shared * (k + 1.0)


def process(meter, shared):
    return os.getpid()


def keep(meter, run, k, shared):
    """How often this process has been here, and whether it keeps what it kept."""
    return resident.kept(run, k, lambda: os.getpid())


def unwritable(meter, shared):
    value = shared.view()
    value.flags.writeable = False
    return value


def kept_runs(run):
    return run in resident._kept


def test_values_that_may_not_be_written_are_summed_in_other_memory(executor):
    """What a task returned may be needed again: a sum must not be made in it."""
    tasks = [Task(f"t{k}", unwritable) for k in range(3)]
    assert_array_equal(executor.total(tasks, VECTORS)[0], 3 * VECTORS)


def values_of(executor, tasks, vectors=None):
    return [task.value for task in executor.map(tasks, vectors).tasks]


def processes(n):
    return [Task(f"t{k}", process, place=k) for k in range(n)]


def test_a_place_is_one_process(executor):
    passes = [values_of(executor, processes(4), VECTORS) for _ in range(5)]
    assert all(p == passes[0] for p in passes)
    assert len(set(passes[0])) == 2, "both workers have places"
    assert passes[0][:2] == passes[0][2:], "there are two places, which are taken in turn"


def test_what_is_kept_is_found_again_and_forgotten_everywhere(executor, client, run):
    tasks = [Task(f"t{k}", keep, (run, k), place=k) for k in range(2)]
    assert values_of(executor, tasks) == values_of(executor, tasks)
    assert all(client.run(kept_runs, run).values())
    executor.forget(run)
    assert not any(client.run(kept_runs, run).values())


def lose_a_worker(executor, place):
    os.kill(values_of(executor, [Task("who", process, place=place)])[0], signal.SIGKILL)


@pytest.mark.nightly
@pytest.mark.guard
def test_a_worker_lost_between_two_passes_changes_no_bits(executor, client):
    tasks = [Task(f"t{k}", scaled, (k,), place=k) for k in range(5)]
    expected = executor.total(tasks, VECTORS)[0]
    for place in (0, 1):  # two in a row
        lose_a_worker(executor, place)
        for _ in range(4):
            assert_allclose(executor.total(tasks, VECTORS)[0], expected, rtol=1e-14 * place)
    client.wait_for_workers(2, timeout=60)
    passes = [values_of(executor, processes(2)) for _ in range(3)]
    assert all(len(set(p)) == 2 for p in passes), "new workers have taken the places of the lost ones"
    assert all(p == passes[0] for p in passes)


def iterated(folder, executor, run, on_iteration=None):
    """All of it together: rows in a store, kept tiles, a factor, conjugate gradient."""
    n, rng = 150, np.random.default_rng(0)
    array = create_array(str(folder / f"{uuid.uuid4().hex}"), (n, 3), np.float64)
    array[...] = X = rng.standard_normal((n, 3))
    rows, grid = ResidentRows(as_rows(array), run), TileGrid(n, 32, 32)
    tiles = GramTiles(RBF(gamma=0.3), rows)
    operator = TiledOperator(tiles, grid, executor, run, slots=2, kept_tiles=3, keeps="float32")
    factor = PivotedCholesky(GramColumns(RBF(gamma=0.3), rows), executor, run, 2, 40, dtype=np.float32)
    factor.grow(20)
    B, shift, K = rng.standard_normal((n, 2)), np.full((1, 2), 0.3), RBF(gamma=0.3)(X)
    preconditioner = LowRank(factor, shift)
    found = Iteration(operator, shift, B, preconditioner, tol=1e-6, mixed=True, on_iteration=on_iteration).run()
    assert found.status is Status.CONVERGED
    residual = np.linalg.norm(B - K @ found.x - shift * found.x, axis=0)
    assert (residual <= 1.01e-6 * np.linalg.norm(B, axis=0)).all()
    assert len(pickle.dumps(operator._groups[0])) < 3000, "rows do not travel"
    return found.x, factor, K


def test_conjugate_gradient_on_workers_is_that_of_this_process(tmp_path, executor, run):
    (x, factor, _), (expected, of_serial, _) = (iterated(tmp_path, who, run) for who in (executor, SerialExecutor()))
    assert factor.index.tolist() == of_serial.index.tolist()
    assert_allclose(x, expected, rtol=1e-4, atol=1e-4)
    resident.forget(run)


@pytest.mark.nightly
@pytest.mark.guard
def test_a_worker_that_dies_during_conjugate_gradient_changes_no_answer(tmp_path, executor, client, run):
    killed = []

    def kill(state):
        if state.iteration == 2:
            killed.append(lose_a_worker(executor, 1))

    _, factor, K = iterated(tmp_path, executor, run, kill)
    assert killed
    factor.grow(35)
    F = rows_of(factor)
    assert factor.rank == 35
    assert_allclose((F @ F.T)[:, factor.index], K[:, factor.index], atol=1e-4)
    client.wait_for_workers(2, timeout=60)
