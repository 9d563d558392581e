"""Workers that are killed, and a scheduler: tasks run again, or a clear error; a script without a guard."""

import os
import signal
import subprocess
import sys
import time

import dask
import numpy as np
import pytest

from benchmarks.local_client import local_client
from dkrr.errors import DkrrError, NotPositiveDefiniteError, StoreError
from dkrr.linalg import TASK_MODULES
from dkrr.runtime import Progress, Task
from dkrr.runtime.dask_executor import DaskExecutor
from dkrr.runtime.local_workers import LocalWorkers
from tests.conftest import WORKER_MEMORY

pytestmark = pytest.mark.guard


@pytest.fixture
def client(workers):
    return workers


@pytest.fixture
def executor(client):
    return DaskExecutor(client)


def square(meter, x):
    meter.bytes_read += x
    return x * x


def take_memory(meter, *_):
    held = []
    for _ in range(60):
        held.append(np.ones(2**21))
        time.sleep(0.05)


def not_positive(meter, row):
    raise NotPositiveDefiniteError(f"the pivot of row {row} is not positive", row)


def missing_file(meter):
    raise StoreError("chunk c.0.0 is missing")


def die(meter):
    os.kill(os.getpid(), signal.SIGKILL)


def kill_the_scheduler(*_):
    """Kill the process that started the worker that this runs in."""
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(5)


class TestKilledWorkers:
    def test_a_task_that_kills_every_worker_is_named(self, executor, client):
        with pytest.raises(DkrrError, match=r"ran task killer died \d times.*likely cause is memory.*same store="):
            executor.run([Task("killer", die)], Progress())
        client.wait_for_workers(2, timeout=30)
        assert executor.run([Task("next", square, (3,))], Progress()).values() == {"next": 9}

    def test_a_worker_killed_for_memory_is_told_with_the_plan(self, tmp_path):
        with (
            dask.config.set({"distributed.scheduler.allowed-failures": 0}),
            local_client(1, 200 * 2**20, str(tmp_path), TASK_MODULES) as client,
        ):
            executor = DaskExecutor(client, lambda: "60 MiB planned, limit 200 MiB")
            executor.run([Task("first", square, (2,))], Progress())
            said = r"memory.*\(60 MiB planned, limit 200 MiB, [\d.]+ MiB the most held in tasks that ended\).*larger"
            with pytest.raises(DkrrError, match=said):
                executor.run([Task("hog", take_memory, ("first",))], Progress())


class TestALostScheduler:
    """The system may kill the process that started the workers; dkrr says so, soon."""

    @pytest.mark.parametrize("how", ["run", "map"])
    def test_a_killed_scheduler_is_told(self, how, tmp_path):
        with LocalWorkers(1, WORKER_MEMORY, str(tmp_path)) as workers, workers.client() as client:
            executor = DaskExecutor(client, lambda: "200 MiB planned", workers.ended)
            tasks = [Task("a", kill_the_scheduler)]
            calls = {"run": lambda: executor.run(tasks, Progress()), "map": lambda: executor.map(tasks, None)}
            with pytest.raises(DkrrError, match=r"scheduler was killed.*memory runs out \(200 MiB planned\)"):
                calls[how]()


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
    levels["threads of BLAS"] = [pool["num_threads"] for pool in threadpoolctl.threadpool_info()]
    return (copy.deepcopy(dask.config.config), dict(os.environ), multiprocessing.spawn.get_preparation_data,
            [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)],
            signal.pthread_sigmask(signal.SIG_BLOCK, []), os.getcwd(), list(warnings.filters)), levels

def fit(k):
    models[k] = dkrr.KernelRidge(alpha=0.1, kernel=lambda A, B: np.exp(-((A[:, None] - B) ** 2).sum(axis=2)),
                                 tile=100 + 20 * k, memory_limit="3GB",
                                 store="run.zarr" if k else None).fit(X, y)

import distributed, threadpoolctl
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


def test_a_script_without_a_guard(tmp_path):
    """Workers must not import the user's script, which would fit, and start workers, in each of them.

    Two fits at once leave what is global to the process as it was, then and afterwards.
    """
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-W", "error", "script.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "the script begins",
        *2 * ["dask 2 True"],
        "temporary []",
        "unchanged True True True",
    ]
