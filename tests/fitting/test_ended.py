"""Runs without a store that are asked to end, or killed: no process, no temporary folder and no shared memory stays."""

import os
import signal
import time
from pathlib import Path

import pytest

from dkrr.runtime.folders import private_folder
from dkrr.tiles.lock import LOCK_NAME
from tests.fitting.running import start, wait_for_tiles
from tests.processes import gone

SETTINGS = {"kernel": "rbf", "gamma": 0.2, "alpha": 0.01, "solver": "cholesky", "tile": 100}


def started(tmp_path, place):
    """A run with tiles in its temporary folder."""
    config = {"dkrr.temporary-directory": str(tmp_path)}
    if place == "dask":
        settings = {"workers": 2, "config": {**config, "dkrr.rates.gemm-gflops": 1e-3}}
    else:
        settings = {"config": config}
    process = start(4000, 6, None, **SETTINGS, **settings)
    deadline = time.monotonic() + 60
    while len(list(tmp_path.glob("dkrr-*/run.zarr/system-0/factor/c.*"))) < 20:
        assert process.poll() is None and time.monotonic() < deadline, "the run ended before it could be killed"
        time.sleep(0.01)
    return process


def left(tmp_path):
    return [str(p) for p in tmp_path.rglob("*")]


@pytest.mark.parametrize(
    ("place", "number", "whom"),
    [
        ("serial", signal.SIGTERM, "process"),
        ("serial", signal.SIGINT, "process"),
        ("dask", signal.SIGTERM, "group"),
        ("dask", signal.SIGHUP, "process"),
    ],
)
def test_asked_to_end(tmp_path, place, number, whom, capfd):
    process = started(tmp_path, place)
    (os.killpg if whom == "group" else os.kill)(process.pid, number)
    assert process.wait(60) == -number
    assert gone(process.pid), "a process is left behind"
    assert left(tmp_path) == []
    assert number == signal.SIGINT or "Traceback" not in capfd.readouterr().err


def test_killed(tmp_path):
    """The process with the workers ends them; the next run deletes the folder."""
    process = started(tmp_path, "dask")
    process.kill()
    process.wait()
    assert gone(process.pid), "a process is left behind"
    assert len(list(tmp_path.glob("dkrr-*/run.zarr"))) == 1
    with private_folder("next", str(tmp_path)) as path:
        assert [p for p in tmp_path.iterdir() if p.is_dir()] == [Path(path)]
    assert left(tmp_path) == []


def test_the_lock_of_a_store_is_given_back(tmp_path):
    """Another machine would wait for the heartbeat of a lock that was left."""
    store = tmp_path / "run.zarr"
    process = start(4000, 6, store, **SETTINGS)
    wait_for_tiles(process, store, 20)
    assert (store / LOCK_NAME).exists()
    process.terminate()
    assert process.wait(60) == -signal.SIGTERM
    assert not (store / LOCK_NAME).exists()
