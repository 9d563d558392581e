"""Workers that join a cluster during a fit, and workers that leave it with notice (`--lifetime`, spot instances)."""

import os
import threading
from collections.abc import Iterator
from typing import Any

import dask
import numpy as np
import pytest
from distributed import Client, LocalCluster

import dkrr
from dkrr.runtime import dask_executor
from tests.nightly.cluster.test_several_users import SETTINGS, after_first_task, assert_same, fit
from tests.runtime.clients import all_released


@pytest.fixture
def slow_machine() -> Iterator[None]:
    """A machine so slow that no work is small."""
    with dask.config.set({"dkrr.rates.gemm-gflops": 1e-3}):
        yield


def test_a_worker_that_joins_gets_tasks(slow_machine: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_executor, "ASK_SECONDS", 0.0)
    options = {"threads_per_worker": 1, "memory_limit": 2**30, "dashboard_address": "127.0.0.1:0"}
    with LocalCluster(n_workers=1, **options) as cluster, Client(cluster, set_as_default=False) as client:
        (first,) = client.run(os.getpid).values()

        def join() -> None:
            cluster.scale(2)
            client.wait_for_workers(2, timeout=240)

        after_first_task(monkeypatch, {threading.current_thread().name: join})
        X = np.random.default_rng(4).normal(size=(1500, 3))
        with client.as_current():
            model = dkrr.KernelRidge(**{**SETTINGS, "tile": 100}).fit(X, X[:, 0])
        others = set(client.run(os.getpid).values()) - {first}
    assert model.plan_.chosen.n_workers == 1
    records = model.solve_result_.record.tasks
    assert {str(pid) for pid in others} <= {task.worker for task in records} and str(first) in {
        t.worker for t in records
    }


@pytest.mark.parametrize("solver", ["cholesky", "cg"])
def test_a_worker_that_retires_hands_over(
    slow_machine: None, workers: Client, monkeypatch: pytest.MonkeyPatch, solver: str
) -> None:
    whole = fit(workers, 5, solver=solver)
    gone: list[Any] = []

    def retire() -> None:
        address = min(workers.nthreads())
        workers.retire_workers([address], close_workers=True)
        gone.append(address)

    after_first_task(monkeypatch, {threading.current_thread().name: retire})
    model = fit(workers, 5, solver=solver)
    assert gone and gone[0] not in workers.nthreads()
    assert_same(model, whole)
    assert all_released(workers)
