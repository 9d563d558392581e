"""cluster/dask-cli on machines reached by SSH: a server of our own on 127.0.0.1, with keys that are thrown away."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import dkrr
from tests.nightly.cluster.recipes import FIT, START, assert_predicts_like_sklearn, new_certificates, run, saved, until
from tests.processes import free_port, gone, session, wait_for_text

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
        assert run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name).returncode == 0
    (folder / "sshd_config").write_text(SERVER.format(port=port, folder=folder))
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # what the server of a distribution changes its root to
    log = folder / "log"
    with session([server, "-D", "-e", "-f", folder / "sshd_config"], log) as process:
        wait_for_text("Server listening", log, process)
        command = f"ssh -p {port} -i {folder}/client -o IdentitiesOnly=yes -F none -o LogLevel=ERROR"
        command += f" -o UserKnownHostsFile={folder}/known -o StrictHostKeyChecking=accept-new"
        tried = run(*command.split(), "127.0.0.1", "true")
        if tried.returncode:
            pytest.skip(f"no login at 127.0.0.1 here: {tried.stderr}")
        yield command


def test_start_runs_workers_on_two_hosts_with_certificates(ssh: str, tmp_path: Path) -> None:
    X, y, paths = saved(tmp_path, 700)
    port, log, tls = free_port(), tmp_path / "log", new_certificates(tmp_path / "tls")
    options = ["--hosts", "127.0.0.1,localhost", "-w", 1, "-m", "600MiB", "-p", port, "--tls", tls]
    fit = ["dkrr", "fit", "--scheduler", f"tls://127.0.0.1:{port}", *paths, "--model", tmp_path / "m.zarr", *FIT]
    with session([START, *options, "--", *fit, "--tile", 128], log, DKRR_SSH=ssh) as process:
        assert process.wait(120) == 0, log.read_text()
        assert gone(process.pid), "a process is left behind"

    def none_is_left() -> bool:
        """No process, in sessions of the server's, has the scheduler's address."""
        return not any(f":{port}" in " ".join(p.info["cmdline"] or ()) for p in psutil.process_iter(["cmdline"]))

    until(none_is_left, why="a worker is left behind on a host")
    assert "on Dask workers, tiles on disk (2 processes)" in log.read_text()
    assert_predicts_like_sklearn(dkrr.load(tmp_path / "m.zarr"), X, y)
