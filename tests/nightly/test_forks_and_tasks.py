"""Fits inside Dask tasks, joblib, Dask-ML, daemons and forks.

Where a fit may not hand out its work, what hangs fails by a time-out.
"""

import subprocess
import sys
import warnings

import dask
import dask.array as da
import joblib
import numpy as np
import psutil
import pytest
from distributed import Client, LocalCluster, worker_client
from sklearn.model_selection import GridSearchCV

import dkrr
from dkrr import KernelLogisticRegression, KernelRidge
from dkrr.cluster.process import CHILD, TASK, confinement, may_use
from dkrr.kernels import RBF
from dkrr.machine.detection import detect
from tests.oracles import assert_close

SLOW = {"dkrr.rates.gemm-gflops": 1e-4}
"""So slow a machine that the work is not small: it would go to workers."""
X = np.random.default_rng(0).normal(size=(300, 5))
Y = np.sin(X[:, 0])


@pytest.fixture(scope="module")
def client():
    options = {"threads_per_worker": 1, "processes": False, "dashboard_address": "127.0.0.1:0", "memory_limit": "8GiB"}
    with LocalCluster(n_workers=2, **options) as cluster, Client(cluster) as client:
        yield client


def model(**settings):
    return dkrr.KernelRidge(
        **{"alpha": 1e-3, "kernel": "rbf", "gamma": 0.2, "tile": 64, "solver": "cholesky"} | settings
    )


def fit():
    fitted = model().fit(X, Y)
    return fitted.plan_.execution, fitted.plan_.reasons, fitted.dual_coef_


def fit_with_the_slot_given_up():
    with worker_client():
        return fit()


def test_a_fit_in_a_task_stays_there_and_the_plan_says_so(client):
    with dask.config.set(SLOW):
        expected = model(tile=None, memory_limit="4GiB").fit(X, Y).dual_coef_
        execution, reasons, found = client.submit(fit, pure=False).result(timeout=60)
        assert execution == "serial" and TASK in reasons
        assert_close(found, expected, 1e-9)
        execution, reasons, _ = client.submit(fit_with_the_slot_given_up, pure=False).result(timeout=60)
        assert execution == "dask" and TASK not in reasons


def test_a_task_has_a_share_of_the_worker(client):
    found = client.submit(confinement, pure=False).result(timeout=60)
    assert (found.reason, found.n_sharing, found.memory_limit) == (TASK, 1, 8 * 2**30)
    assert confinement() is None and may_use(client)


FORKED = """
import multiprocessing, os, signal, sys, threading
from contextlib import ExitStack
import numpy as np
from distributed import Client, LocalCluster

X = np.random.default_rng(0).normal(size=(300, 5))

def fit():
    import dask, dkrr
    dask.config.set({"dkrr.rates.gemm-gflops": 1e-4})
    model = dkrr.KernelRidge(alpha=0.1, kernel="rbf", tile=64, solver="cholesky", memory_limit="2GiB").fit(X, X[:, 0])
    return model.plan_.execution, model.plan_.reasons, model.dual_coef_

def fit_in_child(expected):
    signal.alarm(30)  # ends a child that hangs
    execution, reasons, found = fit()
    from dkrr.cluster import process
    from dkrr.cluster.process import ambient_client
    is_good = ambient_client() is None and execution == "serial" and process.FORK in reasons
    os._exit(0 if is_good and (expected is None or np.allclose(found, expected, rtol=1e-9, atol=0)) else 3)

with ExitStack() as stack:
    options = {"n_workers": 1, "processes": False, "dashboard_address": "127.0.0.1:0"}
    stack.enter_context(Client(stack.enter_context(LocalCluster(**options))))
    expected = None
    if sys.argv[1] == "after a fit":  # the pools that read ahead exist, and another thread limits BLAS
        expected = fit()[2]
        from dkrr import blas
        inside, leave = threading.Event(), threading.Event()

        def in_a_block():
            with blas.one_thread():
                inside.set()
                leave.wait()

        thread = threading.Thread(target=in_a_block)
        thread.start()
        inside.wait()
    child = os.fork()
    if child == 0:
        fit_in_child(expected)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    if expected is not None:
        leave.set()
        thread.join()
        daemon = multiprocessing.get_context("fork").Process(target=fit_in_child, args=(expected,), daemon=True)
        daemon.start()
        daemon.join(40)
        print(daemon.exitcode)
"""


@pytest.mark.parametrize(("when", "printed"), [("after a fit", "0\n0\n"), ("before any import", "0\n")])
def test_forks_and_daemons_fit_in_place(when, printed):
    """What notices forks is imported with the first fit: it must not need to have existed before the fork."""
    call = [sys.executable, "-c", FORKED, when]
    done = subprocess.run(call, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == printed, done.stderr


def share_and_limit(_):
    found, resources = confinement(), detect(None, None)
    limit = resources.local_limit_bytes - resources.local_baseline_bytes
    return psutil.Process().name(), found.reason, found.n_sharing, limit


def test_processes_of_joblib_share_the_memory(workers):
    with joblib.parallel_backend("loky", n_jobs=2):
        found = joblib.Parallel(batch_size=1)(joblib.delayed(share_and_limit)(k) for k in range(2))
    # Two of the pool, the process that started the tests' workers, and servers that other tests have started.
    running = [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
    alike = [child.pid for child in running if child.name() == found[0][0]]
    n_expected = sum("resource_tracker" not in str(psutil.Process(pid).cmdline()) for pid in alike)
    assert {(reason, n_sharing) for _, reason, n_sharing, _ in found} == {(CHILD, n_expected)} and n_expected >= 3
    whole = detect(None, None)
    assert all(2 * limit < whole.local_limit_bytes for *_, limit in found)


SMALL, TARGETS = X[:40, :3], Y[:40] + X[:40, 1]


@pytest.mark.parametrize("estimator", [KernelRidge, KernelLogisticRegression])
def test_predictions_and_grids_by_dask_ml(estimator):
    targets = TARGETS if estimator is KernelRidge else (TARGETS > 0).astype(int)
    with warnings.catch_warnings(action="ignore"):
        wrappers, model_selection = map(pytest.importorskip, ("dask_ml.wrappers", "dask_ml.model_selection"))
    parallel = wrappers.ParallelPostFit(estimator(kernel=RBF())).fit(SMALL, targets)
    predictions = parallel.predict(da.from_array(SMALL, chunks=(10, 3)))
    assert predictions.numblocks == (4,)
    expected = estimator(kernel=RBF()).fit(SMALL, targets).predict(SMALL)
    assert predictions.compute(scheduler="sync") == pytest.approx(expected, rel=1e-9)
    grid = estimator(kernel=RBF()), {"kernel__gamma": [0.1, 1.0], "alpha": [0.1, 1.0]}
    found = model_selection.GridSearchCV(*grid, cv=2, scheduler="sync").fit(SMALL, targets)
    expected = GridSearchCV(*grid, cv=2).fit(SMALL, targets).cv_results_["mean_test_score"]
    assert found.cv_results_["mean_test_score"] == pytest.approx(expected, rel=1e-9)
