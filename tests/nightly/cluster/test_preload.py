"""What dkrr.preload sets in a worker, against the worst configuration; and what is said of workers without it."""

import os
import sys
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

import dask
import numpy as np
import pytest
from distributed import Client, LocalCluster

import dkrr
from dkrr.cluster.workers import WorkerReport, problems
from dkrr.errors import MemoryLimitError
from tests.processes import THREAD_VARIABLES, blas_threads

GOOD = WorkerReport("10.0.0.1", 1, 4, 8, 2**30, spill=0.0, pause=0.0, terminate=0.95, resident_bytes=2**27)
WRONG = {
    "distributed.worker.memory.target": 0.1,
    "distributed.worker.memory.spill": 0.15,
    "distributed.worker.memory.pause": 0.17,
    **{f"distributed.nanny.pre-spawn-environ.{name}": 2 for name in THREAD_VARIABLES},
}


def state_of(dask_worker):
    memory = dask_worker.memory_manager
    return {
        "blas": blas_threads(),
        "fractions": (memory.memory_target_fraction, memory.memory_spill_fraction, memory.memory_pause_fraction),
        "room": getattr(memory.data, "n", sys.maxsize),
        "callbacks": {"profile", "memory_monitor"} & set(dask_worker.periodic_callbacks),
        "ticks": dask_worker.periodic_callbacks["tick"].callback_time,
    }


@contextmanager
def cluster(preload):
    """The ambient client of one worker with the wrong settings, of a machine so slow that no work is small."""
    options = {"n_workers": 1, "threads_per_worker": 1, "memory_limit": 2**30, "dashboard_address": "127.0.0.1:0"}
    slow = {"dkrr.rates.gemm-gflops": 1e-3, "distributed.worker.preload": preload}
    # Dask leaves the variables of the environment in this process, too.
    with (
        patch.dict(os.environ),
        dask.config.set({**WRONG, **slow}),
        LocalCluster(**options) as cluster,
        Client(cluster) as client,
    ):
        yield client


def fit():
    X = np.random.default_rng(1).normal(size=(900, 3))
    return dkrr.KernelRidge(kernel="rbf", tile=256, solver="cholesky").fit(X, X[:, 0])


def test_preload_overrides_a_configuration_that_hurts():
    with cluster(["dkrr.preload"]) as client:
        (state,) = client.run(state_of).values()
        assert state == {"blas": 1, "fractions": (False,) * 3, "room": sys.maxsize, "callbacks": set(), "ticks": 500.0}
        assert fit().plan_.execution == "dask"


def test_a_worker_that_would_pause_is_refused_before_work_starts():
    refused = r"starts no more tasks above .*memory\.pause is 0\.17.*--preload dkrr\.preload"
    with cluster([]), pytest.raises(MemoryLimitError, match=refused):
        fit()


@pytest.mark.parametrize(
    ("settings", "remedy"),
    [
        ({"threads": 4}, ""),
        ({"threads": 5}, "5 threads on 4 cores (1 of 2 workers, such as a:1): start workers with --nthreads 4"),
        ({"memory_limit": 0}, "no memory limit, and the plan assumes 2 GiB (1 of 2 workers, such as a:1): start"),
        ({"spill": 0.3}, "spill is 0.3, 307 MiB, below the 512 MiB of the plan"),
        ({"host_cores": 1, "threads": 2, "host": "a"}, "the 1 workers at a have 2 threads, and the machine 1 cores"),
    ],
)
def test_bad_settings_are_named_with_a_remedy(settings, remedy):
    found = problems({"a:1": replace(GOOD, **settings), "b:1": GOOD}, 2**29, 2**31)
    assert len(found) == bool(remedy) and all(remedy in text for text in found), found
