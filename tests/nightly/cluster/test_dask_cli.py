"""cluster/dask-cli for real: a scheduler and workers in processes of their own, on the loopback interface."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import dask
import numpy as np
import psutil
import pytest
from distributed import Client
from numpy.typing import NDArray
from sklearn.kernel_ridge import KernelRidge as Oracle

import dkrr
from dkrr.errors import ClusterError
from tests.processes import (
    CLUSTER,
    blas_threads,
    environment,
    free_port,
    gone,
    of_session,
    session,
    stop,
    wait_for_text,
)

START = CLUSTER / "dask-cli" / "start.sh"
WORKER_LIMIT = 600 * 2**20
GAMMA, ALPHA, TILE = 0.1, 1e-2, 256


class Running(NamedTuple):
    address: str
    session: int


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("cluster")
    port, log = free_port(), folder / "log"
    options = ["--workers", 2, "--memory", "600MiB", "--scratch", folder, "--port", port, "--no-dashboard"]
    with session([START, *options], log) as process:
        wait_for_text("2 workers at", log, process)
        yield Running(f"tcp://127.0.0.1:{port}", process.pid)
        assert stop(process) == 143, log.read_text()
        assert gone(process.pid), "a process is left behind"


@pytest.fixture
def scheduler(running: Running) -> str:
    return running.address


@pytest.fixture
def client(scheduler: str) -> Iterator[Client]:
    with Client(scheduler) as client:
        client.wait_for_workers(2, timeout=30)
        yield client


def problem(n: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    rng = np.random.default_rng(n)
    X = rng.normal(size=(n, 5))
    return X, np.sin(X).sum(axis=1) + 0.1 * rng.normal(size=n)


def assert_predicts_like_sklearn(model: dkrr.KernelRidge, X: Any, y: Any) -> None:
    new = np.random.default_rng(1).normal(size=(101, 5))
    expected = Oracle(alpha=ALPHA, kernel="rbf", gamma=GAMMA).fit(X, y).predict(new)
    np.testing.assert_allclose(model.predict(new), expected, rtol=1e-8, atol=1e-8)


def worker_settings(dask_worker: Any) -> dict[str, Any]:
    memory = dask_worker.memory_manager
    return {
        "threads": dask_worker.state.nthreads,
        "blas": blas_threads(),
        "preloaded": "dkrr.preload" in sys.modules,
        "trim": os.environ["MALLOC_TRIM_THRESHOLD_"],
        "limit": memory.memory_limit,
        "fractions": (memory.memory_target_fraction, memory.memory_spill_fraction, memory.memory_pause_fraction),
    }


def test_workers_have_the_settings_that_matter(client: Client) -> None:
    for settings in client.run(worker_settings).values():
        assert settings["threads"] == settings["blas"] == 1
        assert settings["trim"] == "65536"  # Dask's own default: the allocator gives back what tiles have used
        assert settings["preloaded"]
        assert settings["limit"] == WORKER_LIMIT
        assert settings["fractions"] == (False, False, False)
    assert len(client.run(os.getpid)) == 2


def test_nothing_listens_beyond_this_machine(running: Running) -> None:
    pids = {process.pid for process in of_session(running.session)}
    listening = [c for c in psutil.net_connections("tcp") if c.pid in pids and c.status == psutil.CONN_LISTEN]
    assert len(listening) >= 4  # the scheduler, the nannies and the workers
    assert {c.laddr.ip for c in listening} == {"127.0.0.1"}


def test_command_line_fits_on_the_workers(scheduler: str, tmp_path: Path) -> None:
    X, y = problem(1500)
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", y)
    command = ["dkrr", "fit", "--scheduler", scheduler, "--x", "X.npy", "--y", "y.npy", "--model", "m.zarr"]
    command += ["--kernel", "rbf", "--gamma", str(GAMMA), "--alpha", str(ALPHA), "--tile", str(TILE)]
    command += ["--memory-limit", "1200MiB", "--json"]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    result = json.loads(done.stdout)
    assert (result["plan"]["execution"], result["plan"]["n_workers"], result["plan"]["tile"]) == ("dask", 2, TILE)
    assert result["peak_bytes"] <= result["plan"]["peak_bytes"]
    assert_predicts_like_sklearn(dkrr.load(tmp_path / "m.zarr"), X, y)


def test_ambient_client_is_used(client: Client) -> None:
    X, y = problem(1500)
    model = dkrr.KernelRidge(ALPHA, kernel="rbf", gamma=GAMMA, tile=TILE).fit(X, y)
    assert model.plan_.execution == "dask"
    # What was checked before the work in this process is not among the tasks.
    assert {task.worker for task in model.solve_result_.record.tasks} == {
        str(pid) for pid in client.run(os.getpid).values()
    }
    assert_predicts_like_sklearn(model, X, y)


def test_fit_survives_a_killed_worker(client: Client, tmp_path: Path) -> None:
    X, y = problem(2560)
    victim, *_ = client.run(os.getpid).values()
    store = tmp_path / "run.zarr"
    estimator = dkrr.KernelRidge(ALPHA, kernel="rbf", gamma=GAMMA, tile=160, store=str(store))
    with ThreadPoolExecutor(1) as pool:
        fitted = pool.submit(estimator.fit, X, y)
        while n_tiles(store) < 20:
            assert not fitted.done(), fitted.exception()
            time.sleep(0.01)
        os.kill(victim, signal.SIGKILL)
        killed_at, before = time.time(), n_tiles(store)
        model = fitted.result(timeout=60)
    records = model.solve_result_.record.tasks
    assert model.plan_.execution == "dask"
    assert before < 136  # tiles of the lower triangle, 16 a side: the worker died in the middle
    assert str(victim) in {t.worker for t in records if t.start < killed_at}
    after = {t.worker for t in records if t.start > killed_at}
    assert after and str(victim) not in after
    assert_predicts_like_sklearn(model, X, y)
    client.wait_for_workers(2, timeout=30)  # the nanny started another
    assert victim not in client.run(os.getpid).values()


def n_tiles(store: Path) -> int:
    return len(list((store / "system-0" / "factor").glob("c.*[0-9]")))


def test_command_runs_and_its_status_comes_back(tmp_path: Path) -> None:
    script = 'test "$DASK_SCHEDULER_ADDRESS" = tcp://127.0.0.1:"$1" && exit 7'
    port, log = free_port(), tmp_path / "log"
    options = ["-w", 1, "-m", "400MiB", "-p", port]
    with session([START, *options, "--", "bash", "-c", script, "bash", port], log) as process:
        assert process.wait(60) == 7, log.read_text()
        assert gone(process.pid), "a process is left behind"


WITHOUT_DKRR = "import sys; sys.modules['dkrr'] = None; from distributed.cli.dask_scheduler import main; main()"


def test_a_scheduler_without_dkrr(tmp_path: Path) -> None:
    port = free_port()
    options = ["--host", "127.0.0.1", "--port", port, "--dashboard-address", "127.0.0.1:0"]
    worker = ["--nthreads", 1, "--memory-limit", "1GiB", "--no-dashboard", "--preload", "dkrr.preload"]
    log, address = tmp_path / "log", f"tcp://127.0.0.1:{port}"
    X = np.eye(300)
    with session([sys.executable, "-c", WITHOUT_DKRR, *options], log) as process:
        wait_for_text("Scheduler at", log, process)
        with (
            session(["dask", "worker", address, *worker], tmp_path / "worker"),
            Client(address) as client,
            dask.config.set({"dkrr.rates.gemm-gflops": 1e-3}),
        ):
            client.wait_for_workers(1, timeout=60)
            for solver in ("cholesky", "cg"):
                with pytest.raises(ClusterError, match="install dkrr where the scheduler runs"):
                    dkrr.KernelRidge(kernel="rbf", solver=solver, tile=128).fit(X, X[0])


def test_a_port_in_use_is_reported_at_once(scheduler: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with session([START, "-w", 1, "-p", scheduler.rsplit(":", 1)[1]], log) as process:
        assert process.wait(60) == 1
        assert gone(process.pid), "a process is left behind"
    assert "did not start" in log.read_text()


@pytest.mark.parametrize("arguments", [["--workers", "none"], ["--workers"], ["--port", "x"], ["--what"]])
def test_bad_arguments(arguments: list[str]) -> None:
    done = subprocess.run([START, *arguments], env=environment(), capture_output=True, check=False, timeout=20)
    assert done.returncode == 2
    assert done.stderr.startswith(b"start.sh: ") and done.stderr.count(b"\n") == 1
