"""Workers that die while they start: they are started again, a bounded number of times."""

import dask
import psutil
import pytest

from dkrr.errors import DkrrError
from dkrr.runtime.local_server import MAX_STARTS
from dkrr.runtime.local_workers import LocalWorkers
from tests.nightly.cluster.recipes import until


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
