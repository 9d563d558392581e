"""A fit on a cluster of four workers, whose client, or a worker, is killed in each of its stages."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from unittest import mock

import pytest
from distributed import Client

from dkrr.runtime.progress import Progress
from tests.nightly.chaos import processes
from tests.nightly.chaos.fits import fitted, same

FITS = ("Cholesky",)
"""Of `tests.nightly.chaos.fits`, which kills all of them at random times."""
CLIENT = """
import os, signal, sys
from distributed import Client
from tests.nightly.chaos.fits import fitted
from tests.nightly.cluster.test_killed_stages import in_stages

address, name, store, stage = sys.argv[1:]
with Client(address), in_stages(lambda found: found == stage and os.kill(os.getpid(), signal.SIGKILL)):
    fitted(name, store, "cluster")
"""


@contextmanager
def in_stages(act):
    """Call `act` once in every stage, with its name: at its first progress; at its end where it shows none."""
    measured, seen, inside = Progress.measured, [], []

    def once(name):
        if name not in seen:
            seen.append(name)
            act(name)

    @contextmanager
    def noted(self, name):
        with measured(self, name):
            inside.append(name)
            yield
            once(name)
        inside.pop()

    def advanced(*_):
        if inside:
            once(inside[-1])

    with mock.patch.object(Progress, "measured", noted), mock.patch.object(Progress, "advance", advanced):
        yield seen


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with (
        mock.patch.dict(os.environ, processes.ENVIRONMENT),
        mock.patch.object(processes, "N_WORKERS", 4),
        processes.cluster(tmp_path_factory.mktemp("cluster") / "four") as found,
    ):
        found.ensure()
        yield found


@pytest.mark.parametrize("name", FITS)
def test_a_fit_is_killed_in_each_of_its_stages(cluster, tmp_path, name):
    cluster.ensure()
    with Client(cluster.address), in_stages(lambda _: None) as stages:
        whole = fitted(name, str(tmp_path / "whole"), "cluster")
    assert whole.execution == "dask" and len(stages) >= 4, stages
    store = str(tmp_path / "run")
    for stage in stages:
        command = [sys.executable, "-c", CLIENT, cluster.address, name, store, stage]
        done = subprocess.run(command, cwd=processes.ROOT, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == -signal.SIGKILL, (stage, done.stderr)
    with Client(cluster.address):
        assert same(name, fitted(name, store, "cluster"), whole)


@pytest.mark.parametrize("name", FITS)
def test_a_worker_is_killed_in_each_stage(cluster, tmp_path, name):
    cluster.ensure()
    with Client(cluster.address):
        whole = fitted(name, str(tmp_path / "whole"), "cluster")
        with in_stages(lambda _: cluster.workers()[0].kill()) as stages:
            found = fitted(name, str(tmp_path / "run"), "cluster")
    assert len(stages) >= 4
    assert same(name, found, whole)
