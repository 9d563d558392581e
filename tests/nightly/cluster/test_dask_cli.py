"""cluster/dask-cli for real: schedulers and workers in processes of their own, with TLS, and on machines by SSH."""

import os
import shutil
import signal
import stat
import sys
import urllib.request
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import dask
import numpy as np
import psutil
import pytest
from distributed import Client, LocalCluster

import dkrr
from dkrr.cluster.dask_client import connect
from dkrr.cluster.local_workers import new_credentials
from dkrr.cluster.worker_settings import WorkerReport, problems
from dkrr.errors import InputError, MemoryLimitError
from tests.nightly.cluster import recipes
from tests.nightly.cluster.recipes import FIT, SETTINGS, START, problem, run, saved, started, until
from tests.processes import CLUSTER, THREAD_VARIABLES, blas_threads, free_port, gone, session, wait_for_text
from tests.programs import kill_everything, tiles, wait_for_tiles

N_WORKERS, TILE, SIDE = 4, 128, 14
TILED = {**SETTINGS, "tile": TILE, "solver": "cholesky"}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    return recipes.new_certificates(tmp_path_factory.mktemp("tls") / "certificates")


@pytest.fixture(scope="module")
def running(certificates, tmp_path_factory):
    with started(tmp_path_factory.mktemp("cluster"), N_WORKERS, "--tls", certificates, scheme="tls") as cluster:
        yield cluster


@pytest.fixture
def client(running, certificates):
    """With what environment.sh sets for a client, as Dask's configuration."""
    files = {"client.cert": "client.pem", "client.key": "client.key", "ca-file": "ca.pem"}
    settings = {f"distributed.comm.tls.{name}": str(certificates / file) for name, file in files.items()}
    with dask.config.set(settings), Client(running.address) as client:
        client.wait_for_workers(N_WORKERS, timeout=30)
        yield client


def worker_settings(dask_worker):
    """What the tests of dkrr.preload below do not see: that start.sh asks for it."""
    trim, memory = os.environ["MALLOC_TRIM_THRESHOLD_"], dask_worker.memory_manager
    return "dkrr.preload" in sys.modules, dask_worker.state.nthreads, blas_threads(), trim, memory.memory_limit


def test_workers_have_the_settings_that_matter_and_listen_on_this_machine_only(client, running):
    # The trimming is Dask's own default: the allocator gives back what tiles have used.
    assert list(client.run(worker_settings).values()) == [(True, 1, 1, "65536", 600 * 2**20)] * N_WORKERS
    listening = running.listening()
    assert len(listening) >= 1 + 2 * N_WORKERS  # the scheduler, the nannies and the workers
    assert {c.laddr.ip for c in listening} == {"127.0.0.1"}


def test_command_runs_and_its_status_comes_back(tmp_path):
    script = 'test "$DASK_SCHEDULER_ADDRESS" = tcp://127.0.0.1:"$1" && exit 7'
    port, log = free_port(), tmp_path / "log"
    with session(
        [START, "-w", 1, "-m", "400MiB", "-p", port, "--", "bash", "-c", script, "bash", port], log
    ) as process:
        assert process.wait(60) == 7, log.read_text()
        assert gone(process.pid), "a process is left behind"


WITHOUT_DKRR = "import sys; sys.modules['dkrr'] = None; from distributed.cli.dask_scheduler import main; main()"


def test_a_scheduler_needs_no_dkrr(tmp_path):
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
                model = dkrr.KernelRidge(kernel="rbf", solver=solver, tile=128).fit(np.eye(300), np.eye(300)[0])
                assert model.plan_.execution == "dask" and model.solve_result_.residual < 1e-8


def test_a_port_in_use_is_reported_at_once(running, tmp_path):
    log = tmp_path / "log"
    with session([START, "-w", 1, "-p", running.port], log) as process:
        assert process.wait(60) == 1
        assert gone(process.pid), "a process is left behind"
    assert "did not start" in log.read_text()


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (["--workers", "none"], "none"),
        (["--port", "x"], "x"),
        (["--hosts", "node1,node2"], "give --host, an address of this machine"),
        (["--hosts", "node1", "--host", "10.0.0.1"], "give --tls"),
    ],
)
def test_wrong_arguments_and_machines_without_address_or_certificates_are_refused(arguments, remedy):
    done = run(START, *arguments)
    assert done.returncode == 2 and remedy in done.stderr
    assert done.stderr.startswith("start.sh: ") and done.stderr.count("\n") == 1


def test_the_files_are_private_and_never_replaced(certificates):
    assert stat.S_IMODE(certificates.stat().st_mode) == 0o700
    keys = {f"{role}.{end}" for role in ("scheduler", "worker", "client") for end in ("key", "pem")}
    assert {p.name for p in certificates.iterdir()} == {"ca.pem", "environment.sh", *keys}
    assert {stat.S_IMODE(p.stat().st_mode) for p in certificates.iterdir()} == {0o600}
    again = run(sys.executable, CLUSTER / "certificates.py", certificates)
    assert again.returncode == 1 and "expected a new folder" in again.stderr


def test_who_has_no_certificate_is_refused(running):
    address = running.address
    with pytest.raises(InputError, match=r"asks for certificates"):
        connect(address)
    with pytest.raises(OSError):
        Client(address.replace("tls", "tcp"), timeout=2, set_as_default=False)
    with pytest.raises(OSError):
        Client(address, timeout=2, set_as_default=False, security=new_credentials())
    for place in running.listening():  # the pages of Dask's HTTP servers are empty
        with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{place.laddr.port}/health", timeout=5):
            raise AssertionError("it answers")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Coefficients of a fit in this process, before it has a client, that nothing interrupts."""
    store = tmp_path_factory.mktemp("whole") / "run.zarr"
    return dkrr.KernelRidge(**TILED, store=str(store)).fit(*problem(TILE * SIDE)).dual_coef_


def test_a_fit_is_killed_and_resumed(whole, client, running, certificates, tmp_path):
    """By the command line with a worker killed first, then everything of it; resumed here, to the same bits."""
    X, y, paths = saved(tmp_path, TILE * SIDE)
    store, chunks = tmp_path / "run.zarr", SIDE * (SIDE + 1) // 2
    more = ["--model", tmp_path / "m.zarr", "--store", store, "--tile", TILE, "--solver", "cholesky"]
    words = ["dkrr", "fit", "--scheduler", running.address, *paths, *FIT, *more]
    command = f"source {certificates}/environment.sh && exec {' '.join(map(str, words))}"
    with session(["bash", "-c", command], tmp_path / "log") as process:
        wait_for_tiles(process, store, chunks // 4)
        os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)
        wait_for_tiles(process, store, chunks // 2)
        kill_everything(process)
    before = len(tiles(store))
    assert before < chunks
    client.wait_for_workers(N_WORKERS, timeout=30)
    model = dkrr.KernelRidge(**TILED, store=str(store)).fit(X, y)
    records, workers = model.solve_result_.record.tasks, {str(pid) for pid in client.run(os.getpid).values()}
    assert {task.worker for task in records} <= workers, "no task ran in this process"
    redone = sum(task.key.startswith("L-") for task in records) - (chunks - before)
    assert redone <= N_WORKERS, "one task of each worker may be redone"
    np.testing.assert_array_equal(model.dual_coef_, whole)


SSH = '#!/usr/bin/env bash\nexec bash -c "${!#}"\n'
"""In place of ssh: the last argument is the command."""

SERVER = """
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host
AuthorizedKeysFile {folder}/client.pub
AuthenticationMethods publickey
PidFile none
UsePAM no
StrictModes no
"""


@pytest.fixture(params=["a stand-in", "a server"])
def ssh(request, tmp_path):
    """Command that logs in at 127.0.0.1, as cluster/dask-cli takes it."""
    if request.param == "a stand-in":
        (tmp_path / "ssh").write_text(SSH)
        (tmp_path / "ssh").chmod(0o755)
        yield str(tmp_path / "ssh")
        return
    server = shutil.which("sshd", path=f"{os.environ['PATH']}{os.pathsep}/usr/sbin")
    if server is None or not shutil.which("ssh") or not shutil.which("ssh-keygen"):
        pytest.skip("not installed: sshd, ssh or ssh-keygen (Debian: openssh-server, openssh-client)")
    folder, port, log = tmp_path, free_port(), tmp_path / "server"
    for name in ("host", "client"):
        assert run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name).returncode == 0
    (folder / "sshd_config").write_text(SERVER.format(port=port, folder=folder))
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # what the server of a distribution changes its root to
    with session([server, "-D", "-e", "-f", folder / "sshd_config"], log) as process:
        wait_for_text("Server listening", log, process)
        command = f"ssh -p {port} -i {folder}/client -o IdentitiesOnly=yes -F none -o LogLevel=ERROR"
        command += f" -o UserKnownHostsFile={folder}/known -o StrictHostKeyChecking=accept-new"
        if (tried := run(*command.split(), "127.0.0.1", "true")).returncode:
            pytest.skip(f"no login at 127.0.0.1 here: {tried.stderr}")
        yield command


def test_start_runs_workers_on_two_hosts_with_certificates(ssh, tmp_path):
    X, y, paths = saved(tmp_path, 700)
    port, log, tls = free_port(), tmp_path / "log", recipes.new_certificates(tmp_path / "tls")
    options = ["--hosts", "127.0.0.1,localhost", "-w", 1, "-m", "600MiB", "-p", port, "--tls", tls]
    fit = ["dkrr", "fit", "--scheduler", f"tls://127.0.0.1:{port}", *paths, "--model", tmp_path / "m.zarr", *FIT]
    with session([START, *options, "--", *fit, "--tile", 128], log, DKRR_SSH=ssh) as process:
        assert process.wait(120) == 0, log.read_text()
        assert gone(process.pid), "a process is left behind"

    def none_is_left():
        """No process, in sessions of the server's, has the scheduler's address."""
        return not any(f":{port}" in " ".join(p.info["cmdline"] or ()) for p in psutil.process_iter(["cmdline"]))

    until(none_is_left, why="a worker is left behind on a host")
    assert "on Dask workers, tiles on disk (2 processes)" in log.read_text()
    recipes.assert_predicts_like_sklearn(dkrr.load(tmp_path / "m.zarr"), X, y)


GOOD = WorkerReport("10.0.0.1", 1, 4, 8, 2**30, spill=0.0, pause=0.0, terminate=0.95, resident_bytes=2**27)
WRONG = {
    "distributed.worker.memory.target": 0.1,
    "distributed.worker.memory.spill": 0.15,
    "distributed.worker.memory.pause": 0.17,
    **{f"distributed.nanny.pre-spawn-environ.{name}": 2 for name in THREAD_VARIABLES},
}


def state_of(dask_worker):
    memory = dask_worker.memory_manager
    return {
        "blas": blas_threads(),
        "fractions": (memory.memory_target_fraction, memory.memory_spill_fraction, memory.memory_pause_fraction),
        "room": getattr(memory.data, "n", sys.maxsize),
        "callbacks": {"profile", "memory_monitor"} & set(dask_worker.periodic_callbacks),
        "ticks": dask_worker.periodic_callbacks["tick"].callback_time,
    }


@contextmanager
def cluster(preload):
    """The ambient client of one worker with the wrong settings, of a machine so slow that no work is small."""
    options = {"n_workers": 1, "threads_per_worker": 1, "memory_limit": 2**30, "dashboard_address": "127.0.0.1:0"}
    slow = {"dkrr.rates.gemm-gflops": 1e-3, "distributed.worker.preload": preload}
    # Dask leaves the variables of the environment in this process, too.
    with (
        patch.dict(os.environ),
        dask.config.set({**WRONG, **slow}),
        LocalCluster(**options) as cluster,
        Client(cluster) as client,
    ):
        yield client


def fit():
    X = np.random.default_rng(1).normal(size=(900, 3))
    return dkrr.KernelRidge(kernel="rbf", tile=256, solver="cholesky").fit(X, X[:, 0])


def test_preload_overrides_a_configuration_that_hurts():
    with cluster(["dkrr.preload"]) as client:
        (state,) = client.run(state_of).values()
        assert state == {"blas": 1, "fractions": (False,) * 3, "room": sys.maxsize, "callbacks": set(), "ticks": 500.0}
        assert fit().plan_.execution == "dask"


def test_a_worker_that_would_pause_is_refused_before_work_starts():
    refused = r"starts no more tasks above .*memory\.pause is 0\.17.*--preload dkrr\.preload"
    with cluster([]), pytest.raises(MemoryLimitError, match=refused):
        fit()


@pytest.mark.parametrize(
    ("settings", "remedy"),
    [
        ({"threads": 4}, ""),
        ({"threads": 5}, "5 threads on 4 cores (1 of 2 workers, such as a:1): start workers with --nthreads 4"),
        ({"memory_limit": 0}, "no memory limit, and the plan assumes 2 GiB (1 of 2 workers, such as a:1): start"),
        ({"spill": 0.3}, "spill is 0.3, 307 MiB, below the 512 MiB of the plan"),
        (
            {"host_cores": 1, "threads": 2, "host": "a"},
            "the 1 worker at a: 2 threads in all, and the machine has 1 core:",
        ),
    ],
)
def test_bad_settings_are_named_with_a_remedy(settings, remedy):
    found = problems({"a:1": replace(GOOD, **settings), "b:1": GOOD}, 2**29, 2**31)
    assert len(found) == bool(remedy) and all(remedy in text for text in found), found
