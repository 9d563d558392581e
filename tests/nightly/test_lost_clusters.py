"""Clusters that lose workers or their scheduler: dkrr waits or starts others, says so, and ends in time."""

import logging
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from tempfile import mkdtemp

import dask
import dask.array as da
import numpy as np
import psutil
import pytest
from distributed import Client, LocalCluster

import dkrr
from dkrr.cluster import Progress, Task
from dkrr.cluster.dask_client import Watch, check_path_is_shared, held_when_ready
from dkrr.cluster.dask_executor import DaskExecutor
from dkrr.cluster.local_server import MAX_STARTS
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


def sleep(*_):
    time.sleep(60)


TASKS = [Task(f"t{k}", scaled, (k,), place=k) for k in (1, 2, 3)]
USES = {
    "run": lambda client: DaskExecutor(client).run([Task("a", scaled, (4, 2))], Progress()).values()["a"] == 8,
    "map": lambda client: [t.value[2, 1] for t in DaskExecutor(client).map(TASKS, VECTORS).tasks] == [5, 10, 15],
    "total": lambda client: DaskExecutor(client).total(TASKS, VECTORS)[0][2, 1] == 30,
    "imports": lambda client: held_when_ready(Watch(client), RBF(), [], []).ready > 0,
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


CLUSTER = """
import sys
from distributed import LocalCluster
with LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0",
                  host="127.0.0.1", protocol="tcp://") as cluster:
    print(cluster.scheduler_address, flush=True)
    sys.stdin.read()
"""


def test_a_lost_scheduler_is_a_clear_error_for_every_use(tmp_path):
    """While tasks run, and for every use afterwards."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with (
        subprocess.Popen([sys.executable, "-c", CLUSTER], **pipes, cwd=tmp_path) as process,
        ThreadPoolExecutor() as pool,
    ):
        address = process.stdout.readline().strip()
        with dask.config.set({"distributed.comm.timeouts.connect": "2s"}):
            client = Client(address, set_as_default=False)
        executor, tasks = DaskExecutor(client), [Task(f"s{k}", sleep) for k in range(2)]
        calls = [(executor.run, Progress()), (executor.map, VECTORS), (executor.total, VECTORS)]
        running = [pool.submit(call, tasks, given) for call, given in calls]
        until(lambda: len(client.futures) >= 7)  # all tasks, and their vectors
        time.sleep(0.3)
        process.kill()
        for call in running:
            with pytest.raises(ClusterError, match=f"scheduler at {address} is lost.*given store.*same store="):
                call.result(20)
        for use in USES.values():
            with pytest.raises(ClusterError, match="is lost"):
                use(client)
        with client.as_current(), pytest.raises(DkrrError, match="is lost"):
            dkrr.KernelRidge().fit(np.eye(3), np.ones(3))
        executor.forget("run")
        client.close()


def test_a_worker_that_dies_while_it_starts_is_started_again(tmp_path, capfd):
    with LocalWorkers(2, 10**9, str(tmp_path)) as workers:
        workers.address()
        server = psutil.Process(workers._process.pid)

        def starting():
            return [child for child in server.children() if any("spawn_main" in part for part in child.cmdline())]

        found = []
        until(lambda: found.extend(starting()) or found, why="no worker starts")
        first = found[0]
        first.kill()
        with workers.client() as client:
            assert len(client.nthreads()) == 2
            assert client.submit(int, "7").result() == 7
        with pytest.raises(psutil.NoSuchProcess):
            first.cmdline()
    assert capfd.readouterr() == ("", "")


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
