"""What tests of the recipes in cluster/ share: a problem and its files, commands, and a cluster of start.sh."""

import json
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import psutil
from sklearn.kernel_ridge import KernelRidge as Oracle

from tests.processes import CLUSTER, environment, free_port, gone, of_session, session, stop, wait_for_text

START = CLUSTER / "dask-cli" / "start.sh"
GAMMA, ALPHA = 0.1, 1e-2
FIT = ["--kernel", "rbf", "--gamma", GAMMA, "--alpha", ALPHA]
SETTINGS = {"kernel": "rbf", "gamma": GAMMA, "alpha": ALPHA}


def problem(n):
    rng = np.random.default_rng(n)
    X = rng.normal(size=(n, 5))
    return X, np.sin(X).sum(axis=1) + 0.1 * rng.normal(size=n)


def saved(folder, n):
    """A problem, which is also in X.npy and y.npy, and the options of the command line that name them."""
    X, y = problem(n)
    np.save(folder / "X.npy", X)
    np.save(folder / "y.npy", y)
    return X, y, ["--x", folder / "X.npy", "--y", folder / "y.npy"]


def assert_predicts_like_sklearn(model, X, y):
    new = np.random.default_rng(1).normal(size=(101, 5))
    expected = Oracle(alpha=ALPHA, kernel="rbf", gamma=GAMMA).fit(X, y).predict(new)
    np.testing.assert_allclose(model.predict(new), expected, rtol=1e-8, atol=1e-8)


def run(*command, cwd=None, seconds=120, **variables):
    """A command that has ended, with what it printed."""
    options = {"cwd": cwd, "env": environment(**variables), "timeout": seconds}
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, **options)


def result_of(printed):
    """Result of a fit that was asked for --json."""
    return next(json.loads(line) for line in printed.splitlines() if line.startswith("{"))


def new_certificates(folder):
    """A folder with the certificates of a new cluster."""
    assert run(sys.executable, CLUSTER / "certificates.py", folder).returncode == 0
    return folder


class Running(NamedTuple):
    """A cluster."""

    address: str
    session: int
    port: int

    def listening(self):
        """Its sockets that listen."""
        pids = {process.pid for process in of_session(self.session)}
        return [c for c in psutil.net_connections("tcp") if c.pid in pids and c.status == psutil.CONN_LISTEN]


@contextmanager
def started(folder, workers, *options, scheme="tcp", **variables):
    """A cluster with so many workers of 600 MiB, which leaves no process behind."""
    port, log = free_port(), folder / "log"
    command = [START, "--workers", workers, "--memory", "600MiB", "--scratch", folder, "--port", port, *options]
    with session(command, log, **variables) as process:
        wait_for_text(f"{workers} workers at {scheme}:", log, process, seconds=240)
        yield Running(f"{scheme}://127.0.0.1:{port}", process.pid, port)
        assert stop(process) == 143, log.read_text()
        assert gone(process.pid), "a process is left behind"


def until(condition, seconds=30, why=""):
    """Wait until a function returns true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, why
        time.sleep(0.01)
