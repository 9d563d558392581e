"""A cluster of the user's with TLS: scheduler, four workers and client with certificates, for real."""

import os
import signal
import stat
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import dask
import numpy as np
import pytest
from distributed import Client
from distributed.security import Security

import dkrr
from dkrr.errors import InputError
from dkrr.runtime.dask_client import connect
from dkrr.runtime.local_workers import new_credentials
from tests.nightly.cluster.recipes import FIT, SETTINGS, Running, new_certificates, run, saved, started
from tests.processes import CLUSTER, environment
from tests.programs import tiles, wait_for_tiles

N_WORKERS, TILE, SIDE = 4, 128, 14


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return new_certificates(tmp_path_factory.mktemp("tls") / "certificates")


@pytest.fixture(scope="module")
def running(certificates: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with started(tmp_path_factory.mktemp("cluster"), N_WORKERS, "--tls", certificates, scheme="tls") as cluster:
        yield cluster


@pytest.fixture
def client(running: Running, certificates: Path) -> Iterator[Client]:
    """With what environment.sh sets for a client, as Dask's configuration."""
    files = {"client.cert": "client.pem", "client.key": "client.key", "ca-file": "ca.pem"}
    settings = {f"distributed.comm.tls.{name}": str(certificates / file) for name, file in files.items()}
    with dask.config.set(settings), Client(running.address) as client:
        client.wait_for_workers(N_WORKERS, timeout=30)
        yield client


def test_the_files_are_private_and_never_replaced(certificates: Path) -> None:
    assert stat.S_IMODE(certificates.stat().st_mode) == 0o700
    keys = {f"{role}.{end}" for role in ("scheduler", "worker", "client") for end in ("key", "pem")}
    assert {p.name for p in certificates.iterdir()} == {"ca.pem", "environment.sh", *keys}
    assert {stat.S_IMODE(p.stat().st_mode) for p in certificates.iterdir()} == {0o600}
    again = run(sys.executable, CLUSTER / "certificates.py", certificates)
    assert again.returncode == 1 and "expected a new folder" in again.stderr


def test_who_has_no_certificate_is_refused(running: Running) -> None:
    address = running.address
    with pytest.raises(InputError, match=r"asks for certificates"):
        connect(address)
    with pytest.raises(OSError):
        Client(address.replace("tls", "tcp"), timeout=2, set_as_default=False)
    with pytest.raises(OSError):
        Client(address, timeout=2, set_as_default=False, security=Security(**new_credentials()))
    listening = running.listening()
    assert {c.laddr.ip for c in listening} == {"127.0.0.1"}
    for place in listening:  # the pages of Dask's HTTP servers are empty
        with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{place.laddr.port}/health", timeout=5):
            raise AssertionError("it answers")


def test_a_fit_is_killed_and_resumed(client: Client, running: Running, certificates: Path, tmp_path: Path) -> None:
    """By the command line with a worker killed first, then everything of it; resumed here, to the same bits."""
    X, y, paths = saved(tmp_path, TILE * SIDE)
    settings = {**SETTINGS, "tile": TILE, "solver": "cholesky"}
    store, chunks = tmp_path / "run.zarr", SIDE * (SIDE + 1) // 2
    more = ["--model", "m.zarr", "--store", store, "--tile", TILE, "--solver", "cholesky"]
    words = ["dkrr", "fit", "--scheduler", running.address, *paths, *FIT, *more]
    command = f"source {certificates}/environment.sh && exec {' '.join(map(str, words))}"
    process = subprocess.Popen(["bash", "-c", command], cwd=tmp_path, env=environment(), start_new_session=True)
    try:
        wait_for_tiles(process, store, chunks // 4)
        os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)
        wait_for_tiles(process, store, chunks // 2)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    before = len(tiles(store))
    assert before < chunks
    client.wait_for_workers(N_WORKERS, timeout=30)
    model = dkrr.KernelRidge(**settings, store=str(store)).fit(X, y)
    assert model.plan_.execution == "dask"
    computed = [t.key for t in model.solve_result_.record.tasks if t.key.startswith("L-")]
    assert len(computed) <= chunks - before + N_WORKERS, "one task of each worker may be redone"
    with dask.config.set({"dkrr.rates.gemm-gflops": 1e6}):  # in this process, where nothing interrupts it
        whole = dkrr.KernelRidge(**settings, store=str(tmp_path / "whole.zarr")).fit(X, y)
    assert whole.plan_.execution == "serial"
    np.testing.assert_array_equal(model.dual_coef_, whole.dual_coef_)
