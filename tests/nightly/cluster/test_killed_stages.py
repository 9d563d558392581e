"""A fit on a cluster of four workers, whose client, or a worker, is killed in each of its stages."""

import os
import signal
import sys
from contextlib import ExitStack, contextmanager
from unittest import mock

import pytest
from distributed import Client

from dkrr.runtime.progress import Progress
from tests.nightly.chaos import processes
from tests.nightly.chaos.fits import fitted, same
from tests.nightly.chaos.processes import ENVIRONMENT
from tests.nightly.cluster.recipes import run

NAME = "Cholesky"
"""Of `tests.nightly.chaos.fits`, which kills all of them at random times."""
CLIENT = """
import os, signal, sys
from distributed import Client
from tests.nightly.chaos.fits import fitted
from tests.nightly.cluster.test_killed_stages import in_stages

address, store, stage = sys.argv[1:]
with Client(address), in_stages(lambda found: found == stage and os.kill(os.getpid(), signal.SIGKILL)):
    fitted("Cholesky", store, "cluster")
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
def four(tmp_path_factory):
    with mock.patch.dict(os.environ, ENVIRONMENT), mock.patch.object(processes, "N_WORKERS", 4), ExitStack() as stack:
        cluster = processes.Cluster(tmp_path_factory.mktemp("cluster") / "four")
        stack.callback(cluster.stop)
        cluster.ensure()
        yield cluster


@pytest.fixture
def cluster(four):
    """All its workers live."""
    four.ensure()
    return four


@pytest.fixture(scope="module")
def whole(four, tmp_path_factory):
    """The fit that nothing interrupts, and its stages."""
    with Client(four.address), in_stages(lambda _: None) as stages:
        found = fitted(NAME, str(tmp_path_factory.mktemp("whole") / "run"), "cluster")
    assert found.execution == "dask" and len(stages) >= 4, stages
    return found, stages


def test_a_fit_is_killed_in_each_of_its_stages(whole, cluster, tmp_path):
    store = str(tmp_path / "run")
    for stage in whole[1]:
        done = run(sys.executable, "-c", CLIENT, cluster.address, store, stage, cwd=processes.ROOT, **ENVIRONMENT)
        assert done.returncode == -signal.SIGKILL, (stage, done.stderr)
    with Client(cluster.address):
        assert same(NAME, fitted(NAME, store, "cluster"), whole[0])


def test_a_worker_is_killed_in_each_stage(whole, cluster, tmp_path):
    with Client(cluster.address), in_stages(lambda _: cluster.workers()[0].kill()) as stages:
        found = fitted(NAME, str(tmp_path / "run"), "cluster")
    assert len(stages) >= 4
    assert same(NAME, found, whole[0])
