"""cluster/slurm: with Slurm on this machine (slow tests), and without it: fit.sbatch with a stand-in for srun."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.kernel_ridge import KernelRidge as Oracle

import dkrr
from tests.nightly.cluster.slurm import slurm
from tests.processes import CLUSTER, environment, gone, session

SBATCH = CLUSTER / "slurm" / "fit.sbatch"
SCRIPT = CLUSTER / "slurm" / "fit_slurm.py"

SRUN = """#!/usr/bin/env bash
# As srun does: so many tasks of a command; a signal goes to all of them.
while [[ $1 == --* ]]; do
    case $1 in --ntasks=*) n=${1#*=} ;; esac
    shift
done
trap 'kill $(jobs -p)' TERM
for ((i = 0; i < n; i++)); do "$@" & done
wait
wait
"""


@pytest.fixture
def allocation(tmp_path: Path) -> dict[str, str]:
    """Variables that Slurm sets in a job of two tasks, and a stand-in for srun."""
    (tmp_path / "bin").mkdir()
    srun = tmp_path / "bin" / "srun"
    srun.write_text(SRUN)
    srun.chmod(0o755)
    variables = environment()
    return {
        "PATH": f"{srun.parent}:{variables['PATH']}",
        "SLURM_SUBMIT_DIR": str(tmp_path),
        "SLURM_JOB_ID": "17",
        "SLURM_NTASKS": "2",
        "SLURM_CPUS_PER_TASK": "1",
        "SLURM_MEM_PER_CPU": "600",
        "DKRR_CLUSTER": str(CLUSTER),
        "DKRR_INTERFACE": "lo",
        "DASK_LOGGING__DISTRIBUTED": "info",  # says who speaks TLS
    }


def run_job(allocation: dict[str, str], log: Path, *arguments: object) -> int:
    spooled = log.with_name("slurm_script")  # Slurm runs a copy
    shutil.copy(SBATCH, spooled)
    with session(["bash", spooled, *arguments], log, **allocation) as process:
        status = process.wait(60)
        assert gone(process.pid), "a process is left behind"
    return status


def test_sbatch_script_fits_on_its_tasks(allocation: dict[str, str], tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    X = rng.normal(size=(1501, 3))
    y = X[:, 0] ** 2 + rng.normal(size=1501)
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", y)
    # What a requeued job finds: a scheduler that is gone.
    stale = tmp_path / ".dkrr-17" / "scheduler.json"
    stale.parent.mkdir()
    stale.write_text(json.dumps({"address": "tcp://127.0.0.1:9"}))
    paths = ["--x", tmp_path / "X.npy", "--y", tmp_path / "y.npy", "--store", tmp_path / "run.zarr"]
    paths += ["--model", tmp_path / "m.zarr"]
    settings = ["--kernel", "rbf", "--gamma", 0.3, "--alpha", 0.1, "--tile", 256, "--json"]
    log = tmp_path / "log"
    assert run_job(allocation, log, *paths, *settings) == 0, log.read_text()
    assert "tls://" in log.read_text() and "tcp://" not in log.read_text(), "scheduler and workers speak TLS only"
    result = next(json.loads(line) for line in log.read_text().splitlines() if line.startswith("{"))
    assert (result["plan"]["execution"], result["plan"]["n_workers"]) == ("dask", 2)
    # Nine tenths of --mem-per-cpu.
    assert result["plan"]["limit_bytes"] == 540 * 2**20
    expected = Oracle(alpha=0.1, kernel="rbf", gamma=0.3).fit(X, y).predict(X[:100])
    np.testing.assert_allclose(dkrr.load(tmp_path / "m.zarr").predict(X[:100]), expected, rtol=1e-8, atol=1e-8)
    assert not stale.parent.exists()


def test_sbatch_script_returns_the_status_of_the_fit(allocation: dict[str, str], tmp_path: Path) -> None:
    # The command refuses to start: stand-ins take the place of the scheduler, the workers and the wait for them.
    python = 'case $1 in *certificates.py) mkdir "$2" && touch "$2/environment.sh" ;; *) echo tcp://127.0.0.1:9 ;; esac'
    for command, script in {"dask": "exec sleep 60", "python": python}.items():
        (tmp_path / "bin" / command).write_text(f"#!/usr/bin/env bash\n{script}\n")
        (tmp_path / "bin" / command).chmod(0o755)
    paths = ["--x", "nowhere.npy", "--y", "nowhere.npy"]
    assert run_job({**allocation, "SLURM_NTASKS": "1"}, tmp_path / "log", *paths) == 2
    assert "Missing option '--model'" in (tmp_path / "log").read_text()


@pytest.mark.parametrize(
    ("given", "limit"),
    [
        ({"SLURM_MEM_PER_CPU": "1000", "SLURM_CPUS_PER_TASK": "3"}, "2700MiB"),
        ({"SLURM_MEM_PER_NODE": "6000", "SLURM_TASKS_PER_NODE": "4"}, "1350MiB"),
        ({"SLURM_MEM_PER_NODE": "8000", "SLURM_TASKS_PER_NODE": "3,10(x2),2"}, "720MiB"),
        ({}, None),
        ({"SLURM_MEM_PER_NODE": "0", "SLURM_TASKS_PER_NODE": "4"}, None),  # --mem=0: the whole node
    ],
)
def test_sbatch_script_takes_memory_of_cores_or_of_nodes(
    allocation: dict[str, str], tmp_path: Path, given: dict[str, str], limit: str | None
) -> None:
    # Stand-ins: that of srun notes the options of the workers, and the wait for them ends then.
    noted = tmp_path / "workers"
    scripts = {
        "dask": "exit 0",
        "dkrr": "exit 0",
        "srun": f'echo "$@" > {noted}.new && mv {noted}.new {noted}',
        "python": 'case $1 in *certificates.py) mkdir "$2" && touch "$2/environment.sh" ;; '
        f"*) while [ ! -s {noted} ]; do sleep 0.01; done ;; esac",
    }
    for command, script in scripts.items():
        (tmp_path / "bin" / command).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "bin" / command).chmod(0o755)
    del allocation["SLURM_MEM_PER_CPU"]
    status = run_job({**allocation, **given}, tmp_path / "log")
    if limit is None:
        assert status == 2 and "--mem-per-cpu=4G or --mem=64G" in (tmp_path / "log").read_text()
    else:
        assert status == 0, (tmp_path / "log").read_text()
        assert f"--memory-limit {limit} " in noted.read_text()


def test_sbatch_script_needs_the_repository(allocation: dict[str, str], tmp_path: Path) -> None:
    assert run_job({**allocation, "DKRR_CLUSTER": str(tmp_path)}, tmp_path / "log") == 2
    assert "submit from dkrr's root" in (tmp_path / "log").read_text()


def run_script(script: Path, *arguments: str, **variables: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(script), *arguments]
    return subprocess.run(
        command, env=environment(**variables), capture_output=True, text=True, check=False, timeout=60
    )


def test_help_works_without_dask_jobqueue(tmp_path: Path) -> None:
    (tmp_path / "dask_jobqueue.py").write_text("raise ImportError('hidden by a test')")
    done = run_script(SCRIPT, "--help", PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "--walltime" in done.stdout and "--shared" in done.stdout


def test_missing_dask_jobqueue_is_named(tmp_path: Path) -> None:
    (tmp_path / "dask_jobqueue.py").write_text("raise ImportError('hidden by a test')")
    done = run_script(SCRIPT, "--x", "X", "--y", "y", "--shared", str(tmp_path), PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert "pip install 'dkrr[slurm]'" in done.stderr and "Traceback" not in done.stderr


def test_job_script(tmp_path: Path) -> None:
    pytest.importorskip("dask_jobqueue")
    options = ["--cores", "3", "--memory", "6GiB", "--interface", "lo", "--job-script"]
    done = run_script(SCRIPT, "--x", "X", "--y", "y", "--shared", str(tmp_path), *options)
    assert done.returncode == 0, done.stderr
    for part in ("--nthreads 1", "--nworkers 3", "--memory-limit 2.00GiB", "--preload dkrr.preload"):
        assert part in done.stdout


@pytest.fixture(scope="module")
def slurm_here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with slurm(tmp_path_factory.mktemp("slurm")) as variables:
        yield variables


@pytest.mark.nightly
def test_slurm_runs_the_script_in_an_array_of_jobs(slurm_here: dict[str, str], tmp_path: Path) -> None:
    X = np.random.default_rng(5).normal(size=(601, 3))
    Y = np.column_stack([np.sin(X[:, 0]), X[:, 1] ** 2])
    np.save(tmp_path / "X.npy", X)
    for k in (0, 1):
        np.save(tmp_path / f"y{k}.npy", Y[:, k])
    (tmp_path / "cluster").symlink_to(CLUSTER)  # the root of the repository, as far as the script knows
    command = ["sbatch", "--wait", "--array=0-1", "--ntasks=1", "--mem-per-cpu=700M", "--output=%a.log", SBATCH]
    command += ["--x", "X.npy", "--y", "y%a.npy", "--store", "run%a.zarr", "--model", "m%a.zarr", "--json"]
    command += ["--kernel", "rbf", "--gamma", "0.3", "--alpha", "0.1", "--tile", "256"]
    done = subprocess.run(
        command, cwd=tmp_path, env=slurm_here, capture_output=True, text=True, check=False, timeout=200
    )
    logs = [(tmp_path / f"{k}.log").read_text() for k in (0, 1)]
    assert done.returncode == 0, (done.stderr, logs)
    for k, log in enumerate(logs):
        result = next(json.loads(line) for line in log.splitlines() if line.startswith("{"))
        assert (result["plan"]["execution"], result["plan"]["limit_bytes"]) == ("dask", 630 * 2**20)
        expected = Oracle(alpha=0.1, kernel="rbf", gamma=0.3).fit(X, Y[:, k]).predict(X[:50])
        np.testing.assert_allclose(dkrr.load(tmp_path / f"m{k}.zarr").predict(X[:50]), expected, rtol=1e-8, atol=1e-8)
    assert not list(tmp_path.glob(".dkrr-*")), "certificates are left behind"


@pytest.mark.nightly
def test_slurm_runs_workers_in_jobs_of_their_own(slurm_here: dict[str, str], tmp_path: Path) -> None:
    pytest.importorskip("dask_jobqueue")
    X = np.random.default_rng(6).normal(size=(601, 3))
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", X[:, 0])
    command = [
        sys.executable,
        SCRIPT,
        "--x",
        "X.npy",
        "--y",
        "y.npy",
        "--shared",
        "shared",
        "--jobs",
        "2",
        "--cores",
        "1",
    ]
    command += ["--memory", "700MiB", "--walltime", "00:05:00", "--gamma", "0.3", "--start-with", "2"]
    done = subprocess.run(
        command, cwd=tmp_path, env=slurm_here, capture_output=True, text=True, check=False, timeout=200
    )
    assert done.returncode == 0, done.stderr
    assert "on Dask workers, tiles on disk (2 processes)" in done.stdout
    logs = [path.read_text() for path in (tmp_path / "shared" / "logs").glob("*.err")]
    assert len(logs) == 2
    assert all("tls://" in log and "tcp://" not in log for log in logs)
    expected = Oracle(alpha=1.0, kernel="rbf", gamma=0.3).fit(X, X[:, 0]).predict(X[:50])
    found = dkrr.load(tmp_path / "shared" / "model.zarr").predict(X[:50])
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-8)
    assert sorted(p.name for p in (tmp_path / "shared").iterdir()) == ["logs", "model.zarr", "run.zarr"]
