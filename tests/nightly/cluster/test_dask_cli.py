"""cluster/dask-cli for real: a scheduler and workers in processes of their own, on the loopback interface."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from distributed import Client

import dkrr
from dkrr.errors import ClusterError
from tests.nightly.cluster.recipes import (
    FIT,
    SETTINGS,
    START,
    Running,
    assert_predicts_like_sklearn,
    problem,
    result_of,
    run,
    saved,
    started,
    until,
)
from tests.processes import blas_threads, free_port, gone, session, wait_for_text
from tests.programs import tiles


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with started(tmp_path_factory.mktemp("cluster"), 2, "--no-dashboard") as cluster:
        yield cluster


@pytest.fixture
def client(running: Running) -> Iterator[Client]:
    with Client(running.address) as client:
        client.wait_for_workers(2, timeout=30)
        yield client


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


def test_workers_have_the_settings_that_matter_and_listen_on_this_machine_only(
    client: Client, running: Running
) -> None:
    # The trimming is Dask's own default: the allocator gives back what tiles have used.
    expected = {"threads": 1, "blas": 1, "preloaded": True, "trim": "65536", "limit": 600 * 2**20}
    assert list(client.run(worker_settings).values()) == [{**expected, "fractions": (False,) * 3}] * 2
    listening = running.listening()
    assert len(listening) >= 4  # the scheduler, the nannies and the workers
    assert {c.laddr.ip for c in listening} == {"127.0.0.1"}


def test_command_line_fits_on_the_workers(running: Running, tmp_path: Path) -> None:
    X, y, paths = saved(tmp_path, 1500)
    command = ["dkrr", "fit", "--scheduler", running.address, *paths, "--model", tmp_path / "m.zarr", *FIT]
    done = run(*command, "--tile", 256, "--memory-limit", "1200MiB", "--json")
    assert done.returncode == 0, done.stderr
    result = result_of(done.stdout)
    assert (result["plan"]["execution"], result["plan"]["n_workers"], result["plan"]["tile"]) == ("dask", 2, 256)
    assert result["peak_bytes"] <= result["plan"]["peak_bytes"]
    assert_predicts_like_sklearn(dkrr.load(tmp_path / "m.zarr"), X, y)


def test_a_fit_on_the_ambient_client_survives_a_killed_worker(client: Client, tmp_path: Path) -> None:
    X, y = problem(2560)
    before = {str(pid) for pid in client.run(os.getpid).values()}
    victim, store = min(before), tmp_path / "run.zarr"
    estimator = dkrr.KernelRidge(**SETTINGS, tile=160, store=str(store))
    with ThreadPoolExecutor(1) as pool:
        fitted = pool.submit(estimator.fit, X, y)
        until(lambda: len(tiles(store)) >= 20 or fitted.done())
        os.kill(int(victim), signal.SIGKILL)
        killed_at, n_tiles = time.time(), len(tiles(store))
        model = fitted.result(timeout=60)
    records = model.solve_result_.record.tasks
    assert model.plan_.execution == "dask"
    assert n_tiles < 136  # tiles of the lower triangle, 16 a side: the worker died in the middle
    assert {t.worker for t in records if t.start < killed_at} == before  # and none of it ran in this process
    after = {t.worker for t in records if t.start > killed_at}
    assert after and victim not in after
    assert_predicts_like_sklearn(model, X, y)
    client.wait_for_workers(2, timeout=30)  # the nanny started another
    assert int(victim) not in client.run(os.getpid).values()


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
                    dkrr.KernelRidge(kernel="rbf", solver=solver, tile=128).fit(np.eye(300), np.eye(300)[0])


def test_a_port_in_use_is_reported_at_once(running: Running, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with session([START, "-w", 1, "-p", running.port], log) as process:
        assert process.wait(60) == 1
        assert gone(process.pid), "a process is left behind"
    assert "did not start" in log.read_text()


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (["--workers", "none"], "none"),
        (["--workers"], "--workers"),
        (["--port", "x"], "x"),
        (["--what"], "--what"),
        (["--hosts", "node1,node2"], "give --host, an address of this machine"),
        (["--hosts", "node1", "--host", "10.0.0.1"], "give --tls"),
    ],
)
def test_wrong_arguments_and_machines_without_address_or_certificates_are_refused(
    arguments: list[str], remedy: str
) -> None:
    done = run(START, *arguments)
    assert done.returncode == 2 and remedy in done.stderr
    assert done.stderr.startswith("start.sh: ") and done.stderr.count("\n") == 1
