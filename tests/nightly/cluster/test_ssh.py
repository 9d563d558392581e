"""cluster/dask-cli on machines reached by SSH: a server of our own on 127.0.0.1, with keys that are thrown away."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

import dkrr
from tests.nightly.cluster.test_dask_cli import ALPHA, GAMMA, START, assert_predicts_like_sklearn, problem
from tests.processes import CLUSTER, environment, free_port, gone, session, wait_for_text

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


@pytest.fixture(scope="module")
def ssh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Command that logs in at 127.0.0.1, as cluster/dask-cli takes it."""
    server = shutil.which("sshd", path=f"{os.environ['PATH']}{os.pathsep}/usr/sbin")
    if server is None or not shutil.which("ssh") or not shutil.which("ssh-keygen"):
        pytest.skip("not installed: sshd, ssh or ssh-keygen (Debian: openssh-server, openssh-client)")
    folder, port = tmp_path_factory.mktemp("ssh"), free_port()
    for name in ("host", "client"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True, timeout=20)
    (folder / "sshd_config").write_text(SERVER.format(port=port, folder=folder))
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # what the server of a distribution changes its root to
    log = folder / "log"
    with session([server, "-D", "-e", "-f", folder / "sshd_config"], log) as process:
        wait_for_text("Server listening", log, process)
        command = f"ssh -p {port} -i {folder}/client -o IdentitiesOnly=yes -F none -o LogLevel=ERROR"
        command += f" -o UserKnownHostsFile={folder}/known -o StrictHostKeyChecking=accept-new"
        tried = subprocess.run([*command.split(), "127.0.0.1", "true"], capture_output=True, timeout=30, check=False)
        if tried.returncode:
            pytest.skip(f"no login at 127.0.0.1 here: {tried.stderr.decode()}")
        yield command


def no_worker_of(port: int, seconds: float = 10) -> bool:
    """Whether no process on the hosts, in sessions of the server's, has the scheduler's address: now or soon."""
    deadline = time.monotonic() + seconds
    while any(f":{port}" in " ".join(p.info["cmdline"] or ()) for p in psutil.process_iter(["cmdline"])):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


@pytest.mark.nightly
def test_start_runs_workers_on_two_hosts_with_certificates(ssh: str, tmp_path: Path) -> None:
    X, y = problem(700)
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", y)
    subprocess.run([sys.executable, CLUSTER / "certificates.py", tmp_path / "tls"], check=True, capture_output=True)
    port, log = free_port(), tmp_path / "log"
    options = ["--hosts", "127.0.0.1,localhost", "-w", 1, "-m", "600MiB", "-p", port, "--tls", tmp_path / "tls"]
    fit = [
        "dkrr",
        "fit",
        "--scheduler",
        f"tls://127.0.0.1:{port}",
        "--x",
        tmp_path / "X.npy",
        "--y",
        tmp_path / "y.npy",
    ]
    fit += ["--kernel", "rbf", "--gamma", GAMMA, "--alpha", ALPHA, "--tile", 128, "--model", tmp_path / "m.zarr"]
    with session([START, *options, "--", *fit], log, DKRR_SSH=ssh) as process:
        assert process.wait(120) == 0, log.read_text()
        assert gone(process.pid), "a process is left behind"
    assert no_worker_of(port), "a worker is left behind on a host"
    assert "on Dask workers, tiles on disk (2 processes)" in log.read_text()
    assert_predicts_like_sklearn(dkrr.load(tmp_path / "m.zarr"), X, y)


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        (["--hosts", "node1,node2"], "give --host, an address of this machine"),
        (["--hosts", "node1", "--host", "10.0.0.1"], "give --tls"),
    ],
)
def test_machines_need_an_address_and_certificates(options: list[str], remedy: str) -> None:
    done = subprocess.run([START, *options], env=environment(), capture_output=True, text=True, check=False, timeout=20)
    assert done.returncode == 2
    assert remedy in done.stderr and "node1" in done.stderr
