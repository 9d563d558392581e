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


def tasks_of(n):
    return [Task(f"t{k}", scaled, (k,), place=k) for k in range(n)]


def kept_runs(run):
    return run in resident._kept


def end(pid):
    os.kill(pid, signal.SIGKILL)


class TestPasses:
    def test_values_that_may_not_be_written(self, executor):
        """What a task returned may be needed again: a sum must not be made in it."""
        tasks = [Task(f"t{k}", unwritable) for k in range(3)]
        assert_array_equal(executor.total(tasks, VECTORS)[0], 3 * VECTORS)


class TestPlaces:
    def test_a_place_is_one_process(self, executor):
        tasks = [Task(f"t{k}", process, place=k) for k in range(4)]
        passes = [[t.value for t in executor.map(tasks, VECTORS).tasks] for _ in range(5)]
        assert all(p == passes[0] for p in passes)
        assert len(set(passes[0])) == 2, "both workers have places"
        assert passes[0][:2] == passes[0][2:], "there are two places, which are taken in turn"

    def test_what_is_kept_is_found_again_and_forgotten_everywhere(self, executor, client, run):
        tasks = [Task(f"t{k}", keep, (run, k), place=k) for k in range(2)]
        first = [t.value for t in executor.map(tasks, None).tasks]
        assert [t.value for t in executor.map(tasks, None).tasks] == first
        assert all(client.run(kept_runs, run).values())
        executor.forget(run)
        assert not any(client.run(kept_runs, run).values())

    def test_without_a_place_anybody_does_it(self, executor):
        tasks = [Task(f"t{k}", process) for k in range(6)]
        assert len(executor.map(tasks, VECTORS).tasks) == 6


@pytest.mark.nightly
@pytest.mark.guard
class TestLostWorker:
    def test_a_worker_lost_between_two_passes_changes_no_bits(self, executor, client):
        expected = executor.total(tasks_of(5), VECTORS)[0]
        end(executor.map([Task("who", process, place=0)], None).tasks[0].value)
        for _ in range(4):
            assert_array_equal(executor.total(tasks_of(5), VECTORS)[0], expected)
        client.wait_for_workers(2, timeout=60)
        places = [Task(f"t{k}", process, place=k) for k in range(2)]
        passes = [[t.value for t in executor.map(places, None).tasks] for _ in range(3)]
        assert all(len(set(p)) == 2 for p in passes), "the new worker has taken the place of the lost one"
        assert all(p == passes[0] for p in passes)

    def test_two_in_per_row(self, executor, client):
        for k in range(2):
            pid = executor.map([Task("who", process, place=k)], None).tasks[0].value
            end(pid)
            total, _ = executor.total(tasks_of(5), VECTORS)
            assert_allclose(total, 15 * VECTORS, rtol=1e-14)
        client.wait_for_workers(2, timeout=60)


class TestIteration:
    """All of it together: rows in a store, kept tiles, a factor, conjugate gradient."""

    def problem(self, folder, executor, run, n=150):
        X = np.random.default_rng(0).standard_normal((n, 3))
        array = create_array(str(folder / f"{uuid.uuid4().hex}"), X.shape, X.dtype)
        array[...] = X
        rows = ResidentRows(as_rows(array), run)
        operator = TiledOperator(
            GramTiles(RBF(gamma=0.3), rows), TileGrid(n, 32, 32), executor, run, slots=2, kept_tiles=3, keeps="float32"
        )
        factor = PivotedCholesky(GramColumns(RBF(gamma=0.3), rows), executor, run, 2, 40, dtype=np.float32)
        B, shift = np.random.default_rng(1).standard_normal((n, 2)), np.full((1, 2), 0.3)
        return RBF(gamma=0.3)(X), operator, factor, B, shift

    def test_as_serial(self, tmp_path, executor, run):
        results = []
        for who in (SerialExecutor(), executor):
            K, operator, factor, B, shift = self.problem(tmp_path, who, run)
            factor.grow(20)
            found = Iteration(operator, shift, B, LowRank(factor, shift), tol=1e-6, mixed=True).run()
            assert found.status is Status.CONVERGED
            assert (
                np.linalg.norm(B - K @ found.x - shift * found.x, axis=0) <= 1.01e-6 * np.linalg.norm(B, axis=0)
            ).all()
            results.append((factor.index.tolist(), found.x))
            who.forget(run)
            assert len(pickle.dumps(operator._groups[0])) < 3000, "rows do not travel"
        assert results[0][0] == results[1][0]
        assert_allclose(results[0][1], results[1][1], rtol=1e-4, atol=1e-4)

    @pytest.mark.nightly
    @pytest.mark.guard
    def test_a_worker_dies_on_the_way(self, tmp_path, executor, client, run):
        K, operator, factor, B, shift = self.problem(tmp_path, executor, run)
        factor.grow(20)
        before = rows_of(factor)
        killed = []

        def kill(state):
            if state.iteration == 2:
                killed.append(executor.map([Task("who", process, place=1)], None).tasks[0].value)
                end(killed[0])

        found = Iteration(operator, shift, B, LowRank(factor, shift), tol=1e-6, mixed=True, on_iteration=kill).run()
        assert killed and found.status is Status.CONVERGED
        assert (np.linalg.norm(B - K @ found.x - shift * found.x, axis=0) <= 1.01e-6 * np.linalg.norm(B, axis=0)).all()
        assert_allclose(rows_of(factor), before, atol=1e-5)
        factor.grow(35)
        assert factor.rank == 35
        F = rows_of(factor)
        assert_allclose((F @ F.T)[:, factor.index], K[:, factor.index], atol=1e-4)
        client.wait_for_workers(2, timeout=60)
