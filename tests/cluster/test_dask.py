"""Tasks on worker processes, and passes over vectors there: sums, places, and workers that are lost."""

import asyncio
import os
import signal
import subprocess
import sys
import time
import uuid
from itertools import count
from types import SimpleNamespace
from unittest.mock import AsyncMock

import dask
import numpy as np
import pytest
from distributed import Client
from numpy.testing import assert_allclose

import dkrr
from benchmarks.local_client import local_client
from dkrr.cluster import Progress, Task
from dkrr.cluster.dask_client import SchedulerWatch, check_folder_is_shared, connect, worker_baseline_bytes
from dkrr.cluster.dask_executor import WINDOW_PER_THREAD, DaskExecutor
from dkrr.cluster.local_workers import LocalWorkers
from dkrr.cluster.process import ambient_client
from dkrr.errors import ClusterError, DkrrError, InputError, NotPositiveDefiniteError, StoreError, UnreachableStoreError
from dkrr.linalg import TASK_MODULES
from tests.cluster.clients import all_released
from tests.cluster.tasks import (
    die,
    die_once,
    keep,
    kept_runs,
    kill_the_scheduler,
    not_positive,
    process,
    scaled,
    square,
    take_memory,
    wait_for,
)
from tests.conftest import WORKER_MEMORY
from tests.inputs import table


@pytest.fixture
def client(workers):
    return workers


@pytest.fixture
def executor(client):
    return DaskExecutor(client)


def squares(*numbers, depends=()):
    return [Task(f"t{k}", square, (k,), depends) for k in numbers]


def test_many_tasks_are_submitted_in_a_small_window(executor, client, monkeypatch):
    submit, submitted, done, most = client.submit, count(1), [], [0]

    def counted(*arguments, **options):
        most[0] = max(most[0], next(submitted) - len(done))
        return submit(*arguments, **options)

    watch = Progress()
    watch.advance = done.append
    monkeypatch.setattr(client, "submit", counted)
    record = executor.run([Task(f"t{k}", square, (k,)) for k in range(150)], watch)
    assert record.values() == {f"t{k}": k * k for k in range(150)}
    assert most[0] <= WINDOW_PER_THREAD * 2
    assert len(record.peak_bytes_by_worker) == 2, "both workers work"


def test_small_priorities_start_first(executor):
    # The list is in the wrong order. A worker that pauses delays its few tasks, in a long run by any number.
    tasks = [Task(f"t{k}", square, (k,), priority=(k,)) for k in reversed(range(30))]
    started = [int(t.key[1:]) for t in sorted(executor.run(tasks, Progress()).tasks, key=lambda t: t.start)]
    assert all(key - place <= 4 * WINDOW_PER_THREAD for place, key in enumerate(started))


def test_nothing_stays_on_the_cluster_also_after_an_error(executor, client):
    offset = 7  # functions of the main module, or local ones as here, travel by value
    assert executor.run([Task("a", lambda meter, x: x + offset, (1,))], Progress()).values() == {"a": 8}
    assert all_released(client)
    with pytest.raises(NotPositiveDefiniteError):
        executor.run([Task("bad", not_positive, (0,)), *squares(*range(5), depends=("bad",))], Progress())
    assert all_released(client)


def test_a_task_whose_worker_is_killed_runs_again(executor, client, tmp_path):
    tasks = [Task("first", square, (2,)), Task("killer", die_once, (str(tmp_path / "marker"),), ("first",))]
    tasks += [*squares(*range(0, 20, 2), depends=("first",)), *squares(*range(1, 20, 2), depends=("killer",))]
    record = executor.run(tasks, Progress())
    assert (tmp_path / "marker").exists(), "no worker died, the test shows nothing"
    assert record.values() == {"first": 4, "killer": "survived", **{f"t{k}": k * k for k in range(20)}}
    client.wait_for_workers(2, timeout=30)


@pytest.mark.nightly
@pytest.mark.guard
def test_a_task_that_kills_every_worker_is_named(executor, client):
    with pytest.raises(DkrrError, match=r"ran task killer died \d times.*likely cause is memory.*same store="):
        executor.run([Task("killer", die)], Progress())
    client.wait_for_workers(2, timeout=30)
    assert executor.run(squares(3), Progress()).values() == {"t3": 9}


@pytest.mark.nightly
@pytest.mark.guard
def test_a_worker_killed_for_memory_is_told_with_the_plan(tmp_path):
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        local_client(1, 200 * 2**20, str(tmp_path), TASK_MODULES) as client,
    ):
        executor = DaskExecutor(client, lambda: "60 MiB planned, limit 200 MiB")
        executor.run(squares(2), Progress())
        said = r"memory.*\(60 MiB planned, limit 200 MiB, [\d.]+ MiB the most held in tasks that ended\).*larger"
        with pytest.raises(DkrrError, match=said):
            executor.run([Task("hog", take_memory, ("t2",))], Progress())


def test_the_first_error_is_reported_where_the_scheduler_is_lost_too(client, tmp_path, monkeypatch):
    """Its client may not have noticed that yet: tasks that wait cannot be cancelled then."""
    monkeypatch.setattr(client, "cancel", AsyncMock(side_effect=OSError("timed out")))
    tasks = [Task("bad", not_positive, (7,)), Task("slow", wait_for, (str(tmp_path / "go"),))]
    try:
        with pytest.raises(NotPositiveDefiniteError, match="row 7"):
            DaskExecutor(client).run(tasks, Progress())
    finally:
        (tmp_path / "go").touch()


def test_a_lost_scheduler_is_told_by_its_address():
    """Also where the client was made from a cluster object, which has none any more."""
    client = SimpleNamespace(scheduler=SimpleNamespace(address="tcp://127.0.0.1:8786"), status="running")
    watch = SchedulerWatch(client)
    client.scheduler, client.status = None, "closed"
    with pytest.raises(ClusterError, match=r"scheduler at tcp://127\.0\.0\.1:8786 is lost.*same store="):
        watch.refuse_a_lost_scheduler(0.0)


@pytest.mark.nightly
@pytest.mark.guard
@pytest.mark.parametrize("how", ["run", "map"])
def test_a_killed_scheduler_is_told(how, tmp_path):
    """The system may kill the process that started the workers; dkrr says so, soon."""
    with LocalWorkers(1, WORKER_MEMORY, str(tmp_path)) as workers, workers.client() as client:
        executor = DaskExecutor(client, lambda: "200 MiB planned", workers.ended)
        argument = Progress() if how == "run" else None
        with pytest.raises(DkrrError, match=r"scheduler was killed.*memory runs out \(200 MiB planned\)"):
            getattr(executor, how)([Task("a", kill_the_scheduler)], argument)


@pytest.fixture
def slow():
    """A machine so slow that small fits go to workers."""
    with dask.config.set({"dkrr.rates.gemm-gflops": 1e-3}):
        yield {"kernel": "rbf", "solver": "cholesky", "tile": 32}


X = np.random.default_rng(0).standard_normal((96, 3))


def test_a_client_of_dkrr_is_not_ambient_and_one_that_is_asynchronous_is_refused(client, slow):
    assert ambient_client() is None
    address, security = client.scheduler.address, client.security
    with Client(address, security=security, set_as_default=True) as mine:
        assert ambient_client() is mine
    model = dkrr.KernelRidge(**slow)

    async def fits():
        async with Client(address, security=security, asynchronous=True, set_as_default=True):
            with pytest.raises(InputError, match=r"is asynchronous.*another thread: await asyncio\.to_thread"):
                model.fit(X, X[:, 0])
            await asyncio.to_thread(model.fit, X, X[:, 0])

    asyncio.run(fits())
    assert model.plan_.execution == "dask"


def test_connect_takes_certificates_from_the_configuration_as_a_users_are(client):
    with pytest.raises(InputError, match=r"tls://.*no certificates.*distributed\.comm\.tls"):
        connect(client.scheduler.address)
    assert ambient_client() is None
    keys, tls = client.security, "distributed.comm.tls"
    given = {"ca-file": keys.tls_ca_file, "client.cert": keys.tls_client_cert, "client.key": keys.tls_client_key}
    given = {f"{tls}.{name}": value for name, value in given.items()}
    with dask.config.set(given), connect(client.scheduler.address) as mine:
        assert ambient_client() is mine
    lost = {f"{tls}.client.cert": "/no/such/client.pem"}
    with dask.config.set(given | lost), pytest.raises(InputError, match=r"cannot be read: .*No such file.*client\.key"):
        connect(client.scheduler.address)
    assert ambient_client() is None


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:9", "127.0.0.1:9"])
def test_an_address_without_the_encryption_that_the_configuration_asks_for_is_refused(address):
    asks = {"distributed.comm.require-encryption": True}
    expected = rf"address is {address}, .*asks for encryption.*; expected tls://127\.0\.0\.1:9$"
    with dask.config.set(asks), pytest.raises(InputError, match=expected):
        connect(address)
    assert ambient_client() is None


@pytest.mark.parametrize(
    ("address", "kind", "match"),
    [
        ("tcp://127.0.0.1:9", ClusterError, "no Dask scheduler answers at tcp://127.0.0.1:9"),
        ("nowhere://here", InputError, "nowhere://here"),
    ],
)
def test_an_address_without_a_scheduler_is_named_and_leaves_no_client(address, kind, match):
    with pytest.raises(kind, match=match):
        connect(address, timeout="200ms")
    assert ambient_client() is None


def test_a_bucket_that_only_a_worker_cannot_read_is_its_fault(monkeypatch):
    def refused(url):
        raise UnreachableStoreError(f"cannot read {url}: no credentials", is_transient=False)

    monkeypatch.setattr("dkrr.cluster.dask_client.zarr_store", refused)
    watch = SimpleNamespace(on_all_workers=lambda _, function, *given: {"tcp://far:1": function(*given)})
    with pytest.raises(UnreachableStoreError, match=r"^a worker on .+ cannot read s3://b/r: no credentials$") as error:
        worker_baseline_bytes(watch, None, ["s3://b/r"], [])
    assert not error.value.is_transient


def test_workers_that_do_not_see_the_store_are_named(client, tmp_path, monkeypatch):
    check_folder_is_shared(client, tmp_path)

    # On one machine every worker sees every folder; the probe's answer is what is replaced.
    async def run(function, path):
        return {"tcp://far:1": False, "tcp://near:1": function(path)}

    monkeypatch.setattr(client, "run", run)
    with pytest.raises(StoreError, match=f"workers tcp://far:1 cannot reach the store's folder {tmp_path}"):
        check_folder_is_shared(client, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["zarr path", "npy"])
def test_workers_that_do_not_see_X_are_named(client, kind, tmp_path, monkeypatch, slow):
    path = table(kind, tmp_path, X).handed_in

    def unseen(client, place, what):
        if str(place) == str(path):
            raise StoreError(f"the workers cannot reach {what}")

    monkeypatch.setattr("dkrr.cluster.dask_client.check_path_is_shared", unseen)
    with client.as_current(), pytest.raises(StoreError, match=f"cannot reach X at {path}"):
        dkrr.KernelRidge(**slow).fit(path, X[:, 0])


def test_the_scheduler_is_told_of_every_stage_and_kind_of_task(client, slow):
    import dask.array  # the workers of other tests import this module, and have little memory

    n_before, deadline, events = len(client.get_events("dkrr")), time.monotonic() + 60, []
    with client.as_current():
        dkrr.KernelRidge(**slow).fit(dask.array.from_array(X, chunks=(32, 3)), X[:, 0])
        with pytest.raises(NotPositiveDefiniteError):
            dkrr.KernelRidge(alpha=0, solver="cholesky", form="dual", tile=32).fit(X, X[:, 0])
    while not any(event["failed"] for event in events):
        assert time.monotonic() < deadline
        events = [event for _, event in client.get_events("dkrr")[n_before:]]
    first = [event for event in events if event["fit"] == events[0]["fit"]]
    (failed,) = [event for event in events if event["failed"]]
    assert failed["stage"] == "factorisation" and failed not in first and all(event["seconds"] > 0 for event in first)
    assert {e["problem"] for e in first} == {"96 rows × 3 columns, 1 target, rbf kernel (gamma=0.3333), alpha=1.0"}
    names = {"checking X", "copying X", "factorisation", "substitution", "true residual"}
    assert {event["stage"] for event in first} == names
    kinds = client.run_on_scheduler(names_of_tasks)  # each has a name and a colour on the dashboard
    assert {"dkrr-copy-rows", "dkrr-scan", "dkrr-factor-tile", "dkrr-solve-block"} <= set(kinds)
    assert "dkrr" not in kinds, "words that stand for all kinds"


def names_of_tasks(dask_scheduler):
    return list(dask_scheduler.task_prefixes)


VECTORS = np.random.default_rng(0).standard_normal((13, 2))


@pytest.fixture
def run(executor):
    name = f"run-{uuid.uuid4().hex}"
    yield name
    executor.forget(name)


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


SCRIPT = """
import copy, logging, multiprocessing.spawn, os, signal, threading, warnings
import dask
import numpy as np
import dkrr

print("the script begins", flush=True)
rng = np.random.default_rng(0)
X = rng.standard_normal((1200, 3))
y = np.sin(X[:, 0])
# So slow a machine that the work is not small: it goes to two workers.
os.mkdir("temporary")
dask.config.set({"dkrr.rates.gemm-gflops": 1e-4, "dkrr.local.workers": 2,
                 "dkrr.temporary-directory": os.path.abspath("temporary")})

def state():
    loggers = logging.root.manager.loggerDict.items()
    levels = {name: logger.level for name, logger in loggers if hasattr(logger, "level")}
    return (copy.deepcopy(dask.config.config), dict(os.environ), multiprocessing.spawn.get_preparation_data,
            [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)],
            signal.pthread_sigmask(signal.SIG_BLOCK, []), os.getcwd(), list(warnings.filters)), levels

def fit(k):
    models[k] = dkrr.KernelRidge(alpha=0.1, kernel=lambda A, B: np.exp(-((A[:, None] - B) ** 2).sum(axis=2)),
                                 tile=100 + 20 * k, memory_limit="3GB",
                                 store="run.zarr" if k else None).fit(X, y)

import distributed
import dkrr.estimators  # scikit-learn sets variables of the environment when it is imported

models, (before, levels) = {}, state()
threads = [threading.Thread(target=fit, args=(k,)) for k in range(2)]
for thread in threads:
    thread.start()
seen = []
while any(thread.is_alive() for thread in threads):
    for thread in threads:
        thread.join(0.2)
    seen.append(state()[0] == before)
for model in models.values():
    workers = {t.worker for t in model.solve_result_.record.tasks}
    print(model.plan_.execution, len(workers), abs(model.predict(X[:5]) - y[:5]).max() < 0.2)
del model
models.clear()
print("temporary", os.listdir("temporary"))
after, new = state()
print("unchanged", all(seen), after == before, {name: new[name] for name in levels} == levels)
"""


@pytest.mark.nightly
@pytest.mark.guard
def test_a_script_without_a_guard(tmp_path):
    """Workers must not import the user's script, which would fit, and start workers, in each of them.

    Two fits at once leave what is global to the process as it was, then and afterwards.
    """
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-X", "faulthandler", "-W", "error", "script.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    said = ["the script begins", "dask 2 True", "dask 2 True", "temporary []", "unchanged True True True"]
    assert done.stdout.splitlines() == said
