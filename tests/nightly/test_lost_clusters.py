"""Clusters that lose workers or their scheduler: dkrr waits or starts others, says so, and ends in time."""

import logging
import re
import time
from concurrent.futures import ThreadPoolExecutor
from tempfile import mkdtemp

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster

import dkrr
from dkrr.cluster import Progress, Task
from dkrr.cluster.dask_client import Watch, check_path_is_shared, held_when_ready, on_every_worker
from dkrr.cluster.dask_executor import DaskExecutor
from dkrr.cluster.dkrr_local_server import MAX_STARTS
from dkrr.cluster.local_workers import LocalWorkers
from dkrr.data import as_rows
from dkrr.data.stored import write_rows
from dkrr.errors import ClusterError, DkrrError
from dkrr.kernels import RBF
from tests.nightly.cluster.recipes import until
from tests.stores import place

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
    "imports": lambda client: held_when_ready(Watch(client), RBF(), [], []) > 0,
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
        pytest.raises(DkrrError, match=f"1 workers .* did not start: a worker ended {MAX_STARTS} times.*Nothing"),
        workers.client(),
    ):
        pass
    assert capfd.readouterr().err.count("Nanny failed to start.\n") == 1
