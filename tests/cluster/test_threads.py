"""Fits at once in threads of one process, of every kind that works there; on workers: `test_dask`."""

import copy
import os
import signal
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dask
import numpy as np
import threadpoolctl

import dkrr

SETTINGS = {"kernel": "rbf", "gamma": 0.2, "alpha": 0.01}
KINDS = {
    "memory": {"solver": "cholesky"},
    "temporary store": {"solver": "cholesky", "tile": 64},
    "store": {"solver": "cholesky", "tile": 64, "store": "run.zarr"},
    "iterations": {"solver": "cg"},
    "iterations in a store": {"solver": "cg", "tile": 64, "store": "cg.zarr"},
    "primal": {"form": "primal", "kernel": "linear", "gamma": None},
}


def state():
    pools = sorted((pool["filepath"], pool["num_threads"]) for pool in threadpoolctl.threadpool_info())
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    settings = copy.deepcopy(dask.config.config)
    return pools, handlers, list(warnings.filters), dict(os.environ), settings, Path.cwd(), np.geterr()


def test_they_do_not_disturb_each_other(tmp_path):
    X = np.random.default_rng(3).standard_normal((300, 4))
    y = np.sin(X[:, 0])

    def fit(kind, folder):
        settings = SETTINGS | KINDS[kind]
        if "store" in settings:
            settings["store"] = f"{folder}/{settings['store']}"
            Path(folder).mkdir(exist_ok=True)
        together.wait(20)
        model = dkrr.KernelRidge(**settings).fit(X, y)
        return model.plan_.execution, model.predict(X[:50])

    running = threading.enumerate()  # of earlier tests
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    with dask.config.set({"dkrr.temporary-directory": str(temporary)}):
        together = threading.Barrier(1)
        alone = {kind: fit(kind, f"{tmp_path}/alone") for kind in KINDS}
        before = state()
        for attempt in range(2):
            together = threading.Barrier(2 * len(KINDS))
            with ThreadPoolExecutor(2 * len(KINDS)) as pool:
                ways = [(kind, f"{tmp_path}/{attempt}-{twin}") for kind in KINDS for twin in range(2)]
                found = pool.map(fit, *zip(*ways, strict=True))
                for (kind, _), (execution, predicted) in zip(ways, found, strict=True):
                    assert execution == alone[kind][0]
                    np.testing.assert_allclose(predicted, alone[kind][1], rtol=1e-7, atol=1e-9)
            assert state() == before
        assert list(temporary.iterdir()) == []
    started = [t.name for t in threading.enumerate() if t.name.startswith("dkrr") and t not in running]
    assert len([name for name in started if name.startswith(("dkrr-read", "dkrr-write"))]) == len(started) <= 9
