"""A cluster of the user's with TLS: scheduler, four workers and client with certificates, for real."""

import os
import signal
import stat
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import dask
import numpy as np
import psutil
import pytest
from distributed import Client
from distributed.security import Security

import dkrr
from dkrr.errors import InputError
from dkrr.runtime.dask_client import connect
from dkrr.runtime.local_workers import new_credentials
from tests.nightly.cluster.test_dask_cli import START, n_tiles, problem, stop
from tests.processes import CLUSTER, environment, free_port, gone, of_session, session, wait_for_text

N_WORKERS, TILE, SIDE = 4, 128, 14
SETTINGS: dict[str, Any] = {"alpha": 1e-2, "kernel": "rbf", "gamma": 0.1, "tile": TILE, "solver": "cholesky"}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls") / "certificates"
    subprocess.run([sys.executable, CLUSTER / "certificates.py", folder], check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def running(certificates: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    folder = tmp_path_factory.mktemp("cluster")
    port, log = free_port(), folder / "log"
    options = ["--workers", N_WORKERS, "--memory", "600MiB", "--scratch", folder, "--port", port, "--tls", certificates]
    with session([START, *options], log) as process:
        wait_for_text(f"{N_WORKERS} workers at tls:", log, process)
        yield f"tls://127.0.0.1:{port}", process.pid
        assert stop(process) == 143, log.read_text()
        assert gone(process.pid), "a process is left behind"


def in_configuration(certificates: Path) -> dict[str, str]:
    """What environment.sh sets for a client, as Dask's configuration."""
    tls = "distributed.comm.tls"
    of_client = {f"{tls}.client.cert": "client.pem", f"{tls}.client.key": "client.key", f"{tls}.ca-file": "ca.pem"}
    return {name: str(certificates / file) for name, file in of_client.items()}


@pytest.fixture
def client(running: tuple[str, int], certificates: Path) -> Iterator[Client]:
    with dask.config.set(in_configuration(certificates)), Client(running[0]) as client:
        client.wait_for_workers(N_WORKERS, timeout=30)
        yield client


def test_the_files_are_private_and_never_replaced(certificates: Path) -> None:
    assert stat.S_IMODE(certificates.stat().st_mode) == 0o700
    names = {
        "ca.pem",
        "environment.sh",
        *(f"{r}.{e}" for r in ("scheduler", "worker", "client") for e in ("key", "pem")),
    }
    assert {p.name for p in certificates.iterdir()} == names
    assert {stat.S_IMODE(p.stat().st_mode) for p in certificates.iterdir()} == {0o600}
    again = subprocess.run(
        [sys.executable, CLUSTER / "certificates.py", certificates], capture_output=True, check=False
    )
    assert again.returncode == 1 and b"expected a new folder" in again.stderr


def test_who_has_no_certificate_is_refused(running: tuple[str, int]) -> None:
    address = running[0]
    with pytest.raises(InputError, match=r"asks for certificates"):
        connect(address)
    with pytest.raises(OSError):
        Client(address.replace("tls", "tcp"), timeout=2, set_as_default=False)
    with pytest.raises(OSError):
        Client(address, timeout=2, set_as_default=False, security=Security(**new_credentials()))
    pids = {process.pid for process in of_session(running[1])}
    listening = [c for c in psutil.net_connections("tcp") if c.pid in pids and c.status == psutil.CONN_LISTEN]
    assert {c.laddr.ip for c in listening} == {"127.0.0.1"}
    for place in listening:  # the pages of Dask's HTTP servers are empty
        with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{place.laddr.port}/health", timeout=5):
            raise AssertionError("it answers")


@pytest.fixture
def whole(tmp_path: Path) -> Any:
    """Coefficients of a fit in this process, that nothing interrupts."""
    model = dkrr.KernelRidge(**SETTINGS, store=str(tmp_path / "whole.zarr")).fit(*problem(TILE * SIDE))
    assert model.plan_.execution == "serial"
    return model.dual_coef_


def test_a_fit_is_killed_and_resumed(
    whole: Any, client: Client, running: tuple[str, int], certificates: Path, tmp_path: Path
) -> None:
    """By the command line with a worker killed first, then everything of it; resumed here, to the same bits."""
    X, y = problem(TILE * SIDE)
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", y)
    command = f"source {certificates}/environment.sh && exec dkrr fit --scheduler {running[0]} --x X.npy --y y.npy "
    command += f"--model m.zarr --store run.zarr --kernel rbf --gamma 0.1 --alpha 1e-2 --tile {TILE} --solver cholesky"
    store, chunks = tmp_path / "run.zarr", SIDE * (SIDE + 1) // 2
    process = subprocess.Popen(["bash", "-c", command], cwd=tmp_path, env=environment(), start_new_session=True)
    try:
        wait_for_tiles(process, store, chunks // 4)
        os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)
        wait_for_tiles(process, store, chunks // 2)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    before = n_tiles(store)
    assert before < chunks
    client.wait_for_workers(N_WORKERS, timeout=30)
    model = dkrr.KernelRidge(**SETTINGS, store=str(store)).fit(X, y)
    assert model.plan_.execution == "dask"
    computed = [t.key for t in model.solve_result_.record.tasks if t.key.startswith("L-")]
    assert len(computed) <= chunks - before + N_WORKERS, "one task of each worker may be redone"
    np.testing.assert_array_equal(model.dual_coef_, whole)


def wait_for_tiles(process: subprocess.Popen[bytes], store: Path, count: int) -> None:
    deadline = time.monotonic() + 60
    while n_tiles(store) < count:
        assert process.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.005)
