"""Fits of several users at once on the workers of one cluster; workers that join it, and that leave it with notice."""

import logging
import os
import re
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from tempfile import mkdtemp

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster
from numpy.testing import assert_array_equal

import dkrr
from dkrr.cluster import Progress, Task, dask_executor
from dkrr.cluster.dask_client import SchedulerWatch, check_path_is_shared, on_every_worker, worker_baseline_bytes
from dkrr.cluster.dask_executor import DaskExecutor
from dkrr.cluster.dkrr_local_server import MAX_STARTS
from dkrr.cluster.local_workers import LocalWorkers
from dkrr.data import as_rows
from dkrr.data.stored import write_rows
from dkrr.errors import ClusterError, DkrrError, MemoryLimitError
from dkrr.fitting import run
from dkrr.kernels import RBF
from tests.cluster.clients import all_released
from tests.nightly.cluster.recipes import until
from tests.stores import place

MIB = 2**20
SETTINGS = {"kernel": "rbf", "gamma": 0.2, "alpha": 0.1, "tile": 128, "solver": "cholesky"}
USABLE = int(0.7 * 2**30)
BALLAST = 400 * MIB
WAIT = 240
"""Seconds, on a machine that does other work meanwhile."""


@pytest.fixture
def slow_machine():
    """A machine so slow that no work is small."""
    with dask.config.set({"dkrr.rates.gemm-gflops": 1e-3}):
        yield


@pytest.fixture
def users(workers, slow_machine):
    """Two clients of one cluster, none of them the one that started it."""
    options = {"security": workers.security, "set_as_default": False}
    with Client(workers.scheduler.address, **options) as ada, Client(workers.scheduler.address, **options) as bob:
        yield ada, bob


def fit(client, seed, n=700, **settings):
    X = np.random.default_rng(seed).normal(size=(n, 3))
    with client.as_current():
        return dkrr.KernelRidge(**{**SETTINGS, **settings}).fit(X, np.sin(X).sum(axis=1))


def assert_same(found, whole):
    """The same bits by Cholesky; by conjugate gradient, the same to its tolerance.

    A worker that takes over tiles of another one does not keep them: it forms them in strips, which round otherwise.
    """
    if found.plan_.solver == "cholesky":
        assert_array_equal(found.dual_coef_, whole.dual_coef_)
    result = found.solve_result_
    error = np.linalg.norm(found.dual_coef_ - whole.dual_coef_) / np.linalg.norm(whole.dual_coef_)
    assert result.residual <= 1e-8 and error <= 2e-8 * result.condition


def plan(client, **settings):
    with client.as_current():
        return dkrr.plan(n_samples=20_000, n_features=3, kernel="rbf", **settings)


@contextmanager
def taken(client):
    """Memory of each worker that other work holds."""

    def take():  # local functions travel by value: a worker that imported this module would hold more
        sys.ballast = b"\1" * BALLAST

    def release():
        del sys.ballast

    client.run(take)
    try:
        yield
    finally:
        client.run(release)


def test_plans_count_the_memory_that_workers_hold(users):
    ada, bob = users
    alone = plan(bob)
    with taken(ada):
        beside = plan(bob)
        with pytest.raises(MemoryLimitError, match=r"of which \d+ MiB are in use now.*or wait until other work"):
            plan(bob, tile=4096, solver="cholesky")
    before, now = (p.resources.worker_baseline_bytes for p in (alone, beside))
    assert before + 0.8 * BALLAST < now < before + 1.5 * BALLAST
    assert beside.peak_bytes <= USABLE
    assert plan(bob, tile=4096, solver="cholesky").peak_bytes <= USABLE


def test_a_fit_without_room_is_refused_before_it_starts(users, monkeypatch):
    """The memory was free when the plan was made."""
    (ada, bob), planned, begun = users, run.plan_of, ExitStack()
    monkeypatch.setattr(run, "plan_of", lambda request: (planned(request), begun.enter_context(taken(ada)))[0])
    with begun, pytest.raises(MemoryLimitError, match="before its first task.*or wait until other work"):
        fit(bob, 1, n=9000, solver="cholesky", tile=4096)


def after_first_task(monkeypatch, hooks):
    """Call a function of a thread, by its name, when the first task of a fit in it has ended."""
    note = dask_executor.DaskExecutor._note

    def noted(self, records):
        note(self, records)
        hook = hooks.pop(threading.current_thread().name, None)
        if hook is not None:
            hook()

    monkeypatch.setattr(dask_executor.DaskExecutor, "_note", noted)


@pytest.mark.parametrize("solver", ["cholesky", "cg"])
def test_ctrl_c_of_one_does_not_disturb_the_other(users, monkeypatch, solver):
    ada, bob = users
    whole = fit(bob, 3, solver=solver)

    def interrupt():
        raise KeyboardInterrupt

    def cancelled():
        with ThreadPoolExecutor(1, thread_name_prefix="ada") as pool:
            assert isinstance(pool.submit(fit, ada, 1, solver=solver).exception(WAIT), KeyboardInterrupt)

    after_first_task(monkeypatch, {"ada_0": interrupt, "bob_0": cancelled})
    with ThreadPoolExecutor(1, thread_name_prefix="bob") as pool:
        model = pool.submit(fit, bob, 3, solver=solver).result(WAIT)
    assert_same(model, whole)


def test_a_worker_that_joins_gets_tasks(slow_machine, monkeypatch):
    monkeypatch.setattr(dask_executor, "POLL_SECONDS", 0.0)
    options = {"threads_per_worker": 1, "memory_limit": 2**30, "dashboard_address": "127.0.0.1:0"}
    with LocalCluster(n_workers=1, **options) as cluster, Client(cluster, set_as_default=False) as client:
        before = {str(pid) for pid in client.run(os.getpid).values()}

        def join():
            cluster.scale(2)
            client.wait_for_workers(2, timeout=240)

        after_first_task(monkeypatch, {threading.current_thread().name: join})
        model = fit(client, 4, n=1500, tile=100)
        both = {str(pid) for pid in client.run(os.getpid).values()}
    assert model.plan_.chosen.n_workers == 1
    assert before < both == {task.worker for task in model.solve_result_.record.tasks}


@pytest.mark.parametrize("solver", ["cholesky", "cg"])
def test_a_worker_that_retires_hands_over(slow_machine, workers, monkeypatch, solver):
    whole, gone = fit(workers, 5, solver=solver), min(workers.nthreads())
    retire = partial(workers.retire_workers, [gone], close_workers=True)
    after_first_task(monkeypatch, {threading.current_thread().name: retire})
    model = fit(workers, 5, solver=solver)
    assert gone not in workers.nthreads()
    assert_same(model, whole)
    assert all_released(workers)


# Clusters that lose workers or their scheduler


VECTORS = np.arange(6.0).reshape(3, 2)
SOON = {"dkrr.wait-for-workers-seconds": 0.1}


@pytest.fixture(scope="module")
def cluster():
    options = {"threads_per_worker": 1, "processes": False, "dashboard_address": "127.0.0.1:0", "memory_limit": "4GiB"}
    with LocalCluster(n_workers=1, **options) as cluster:
        yield cluster


@pytest.fixture
def client(cluster):
    with Client(cluster, set_as_default=False) as client:
        client.wait_for_workers(1, timeout=30)
        yield client
        cluster.scale(1)


@pytest.fixture
def without_workers(cluster, client):
    """Its client, once the cluster has lost its workers."""
    cluster.scale(0)
    until(lambda: not client.nthreads())
    return client


def scaled(meter, k, shared):
    return k * shared


TASKS = [Task(f"t{k}", scaled, (k,), place=k) for k in (1, 2, 3)]
USES = {
    "run": lambda client: DaskExecutor(client).run([Task("a", scaled, (4, 2))], Progress()).values()["a"] == 8,
    "map": lambda client: [t.value[2, 1] for t in DaskExecutor(client).map(TASKS, VECTORS).tasks] == [5, 10, 15],
    "total": lambda client: DaskExecutor(client).total(TASKS, VECTORS)[0][2, 1] == 30,
    "imports": lambda client: worker_baseline_bytes(SchedulerWatch(client), RBF(), [], []) > 0,
    "rows": lambda client: write_rows(as_rows(da.ones((6, 2), chunks=(3, 2))), place(mkdtemp()), 3, client) is not None,
    "paths": lambda client: check_path_is_shared(client, "/", "the root") is None,
}


@pytest.mark.parametrize("use", USES)
def test_it_waits_for_new_workers_and_goes_on(without_workers, cluster, use, caplog):
    with ThreadPoolExecutor(1) as pool, caplog.at_level(logging.WARNING, "dkrr"):
        done = pool.submit(USES[use], without_workers)
        until(lambda: "all workers" in caplog.text or done.done(), why="nothing was said")
        assert re.search(r"waits 300 s for new ones \(dkrr\.wait-for-workers-seconds", caplog.text)
        cluster.scale(1)
        assert done.result(30)
    assert "has workers again" in caplog.text


@pytest.mark.parametrize("use", USES)
def test_dkrr_does_not_wait_for_ever(without_workers, use):
    said = r"all workers.*lost.*none came back within 0\.1 s.*given store.*same store="
    with dask.config.set(SOON), pytest.raises(ClusterError, match=said):
        USES[use](without_workers)


def test_what_is_measured_on_every_worker_is_measured_again_where_one_is_lost(client, cluster):
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(on_every_worker, client, time.sleep, 3)
        time.sleep(0.5)
        ((name, worker),) = cluster.workers.items()
        cluster.sync(worker.close, executor_wait=False)
        del cluster.workers[name]
        cluster.scale(2)
        assert done.result(30) == [None] * len(client.nthreads())
    cluster.scale(1)


def test_a_fit_is_refused_before_it_begins(without_workers, caplog):
    said = r"has no workers, and none started within 0\.1 s .*: start workers .* Nothing was computed"
    with without_workers.as_current(), dask.config.set(SOON), pytest.raises(ClusterError, match=said):
        dkrr.KernelRidge().fit(np.eye(3), np.ones(3))
    assert "has no workers yet; dkrr waits 0.1 s for the first" in caplog.text


def test_a_fit_on_an_adaptive_cluster_that_has_none_yet(without_workers, cluster, caplog):
    rows = np.random.default_rng(0).standard_normal((30, 2))
    cluster.adapt(minimum=0, maximum=1, interval="100ms")
    try:
        with without_workers.as_current():
            model = dkrr.KernelRidge(kernel="rbf", tile=10).fit(rows, rows[:, 0])
    finally:
        cluster.adapt(minimum=1, maximum=1)
        cluster._adaptive.stop()
    assert (model.plan_.execution, model.plan_.chosen.n_workers) == ("dask", 1)
    assert "has workers, after" in caplog.text
    expected = dkrr.KernelRidge(kernel="rbf").fit(rows, rows[:, 0]).predict(rows)
    assert model.predict(rows) == pytest.approx(expected, rel=1e-9)


def test_workers_are_started_a_bounded_number_of_times(tmp_path, capfd):
    (tmp_path / "dies.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    with (
        dask.config.set({"distributed.worker.preload": [str(tmp_path / "dies.py")]}),
        LocalWorkers(1, 10**9, str(tmp_path)) as workers,
        pytest.raises(DkrrError, match=f"1 worker .* did not start: a worker ended {MAX_STARTS} times.*Nothing"),
        workers.client(),
    ):
        pass
    assert capfd.readouterr().err.count("Nanny failed to start.\n") == 1
