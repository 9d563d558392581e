"""Fits of several users at once on the workers of one cluster; workers that join it, and that leave it with notice."""

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial

import dask
import numpy as np
import pytest
from distributed import Client, LocalCluster
from numpy.testing import assert_array_equal

import dkrr
from dkrr.cluster import dask_executor
from dkrr.errors import MemoryLimitError
from dkrr.fitting import run
from tests.cluster.clients import all_released

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
        return dkrr.plan(n=20_000, d=3, kernel="rbf", **settings)


def take_memory():
    sys.ballast = b"\1" * BALLAST


def release_memory():
    del sys.ballast


@contextmanager
def taken(client):
    """Memory of each worker that other work holds."""
    client.run(take_memory)
    try:
        yield
    finally:
        client.run(release_memory)


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
        fit(bob, 1, n=9000, solver="cg", tile=None)


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
    monkeypatch.setattr(dask_executor, "ASK_SECONDS", 0.0)
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
