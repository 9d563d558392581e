"""Workers that die while they start: they are started again, a bounded number of times."""

import time

import dask
import psutil
import pytest

from dkrr.errors import DkrrError
from dkrr.runtime.local_server import MAX_STARTS
from dkrr.runtime.local_workers import LocalWorkers


def starting(process, seconds=20):
    """A worker that starts, of a process with a scheduler."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for child in process.children():
            if any("spawn_main" in part for part in child.cmdline()):
                return child
        time.sleep(0.005)
    raise AssertionError("no worker starts")


class TestWorkersThatDieWhileTheyStart:
    def test_they_are_started_again(self, tmp_path, capfd):
        with LocalWorkers(2, 10**9, str(tmp_path)) as workers:
            workers.address()
            first = starting(psutil.Process(workers._process.pid))
            first.kill()
            with workers.client() as client:
                assert len(client.nthreads()) == 2
                assert client.submit(int, "7").result() == 7
            with pytest.raises(psutil.NoSuchProcess):
                first.cmdline()
        assert capfd.readouterr() == ("", "")

    def test_a_bounded_number_of_times(self, tmp_path, capfd):
        (tmp_path / "dies.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
        with (
            dask.config.set({"distributed.worker.preload": [str(tmp_path / "dies.py")]}),
            LocalWorkers(1, 10**9, str(tmp_path)) as workers,
            pytest.raises(DkrrError, match=f"1 workers .* did not start: a worker ended {MAX_STARTS} times.*Nothing"),
            workers.client(),
        ):
            pass
        assert capfd.readouterr().err.count("Nanny failed to start.\n") == 1
