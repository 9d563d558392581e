"""cluster/slurm with stand-ins for the commands of Slurm; docs/clusters.md says what was run with Slurm itself."""

import json
import shutil
import sys

import pytest

import dkrr
from tests.nightly.cluster.recipes import FIT, assert_predicts_like_sklearn, problem, result_of, run, saved
from tests.processes import CLUSTER, environment, gone, session

SBATCH = CLUSTER / "slurm" / "fit.sbatch"
SCRIPT = CLUSTER / "slurm" / "fit_slurm.py"

SRUN = """
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


def stand_ins(folder, **scripts):
    """Commands that do what scripts say."""
    folder.mkdir(exist_ok=True)
    for command, script in scripts.items():
        (folder / command).write_text(f"#!/usr/bin/env bash\n{script}\n")
        (folder / command).chmod(0o755)
    return folder


@pytest.fixture
def allocation(tmp_path):
    """Variables that Slurm sets in a job of two tasks, and a stand-in for srun."""
    return {
        "PATH": f"{stand_ins(tmp_path / 'bin', srun=SRUN)}:{environment()['PATH']}",
        "SLURM_SUBMIT_DIR": str(tmp_path),
        "SLURM_JOB_ID": "17",
        "SLURM_NTASKS": "2",
        "SLURM_CPUS_PER_TASK": "1",
        "SLURM_MEM_PER_CPU": "600",
        "DKRR_CLUSTER": str(CLUSTER),
        "DKRR_INTERFACE": "lo",
        "DASK_LOGGING__DISTRIBUTED": "info",  # says who speaks TLS
    }


def run_job(allocation, log, *arguments):
    spooled = log.with_name("slurm_script")  # Slurm runs a copy
    shutil.copy(SBATCH, spooled)
    with session(["bash", spooled, *arguments], log, **allocation) as process:
        status = process.wait(180)
        assert gone(process.pid), "a process is left behind"
    return status


def test_sbatch_script_fits_on_its_tasks(allocation, tmp_path):
    X, y, paths = saved(tmp_path, 1501)
    # What a requeued job finds: a scheduler that is gone.
    stale = tmp_path / ".dkrr-17" / "scheduler.json"
    stale.parent.mkdir()
    stale.write_text(json.dumps({"address": "tcp://127.0.0.1:9"}))
    more = ["--store", tmp_path / "run.zarr", "--model", tmp_path / "m.zarr", "--tile", 256, "--json"]
    status, said = run_job(allocation, tmp_path / "log", *paths, *more, *FIT), (tmp_path / "log").read_text()
    assert status == 0, said
    assert "tls://" in said and "tcp://" not in said, "scheduler and workers speak TLS only"
    result = result_of(said)
    plan = result["plan"]
    assert result["peak_bytes"] <= plan["peak_bytes"] and plan["tile"] == 256
    # Nine tenths of --mem-per-cpu.
    assert (plan["execution"], plan["n_workers"], plan["limit_bytes"]) == ("dask", 2, 540 * 2**20)
    assert_predicts_like_sklearn(dkrr.load(tmp_path / "m.zarr"), X, y)
    assert not stale.parent.exists()


@pytest.mark.parametrize(
    ("given", "limit"),
    [
        ({"SLURM_MEM_PER_CPU": "1000", "SLURM_CPUS_PER_TASK": "3"}, "2700MiB"),
        ({"SLURM_MEM_PER_NODE": "6000", "SLURM_TASKS_PER_NODE": "4"}, "1350MiB"),
        ({"SLURM_MEM_PER_NODE": "8000", "SLURM_TASKS_PER_NODE": "3,10(x2),2"}, "720MiB"),
        ({"SLURM_MEM_PER_NODE": "0", "SLURM_TASKS_PER_NODE": "4"}, None),  # --mem=0: the whole node
    ],
)
def test_sbatch_script_takes_memory_of_cores_or_of_nodes_and_returns_the_status_of_dkrr(
    allocation, tmp_path, given, limit
):
    # Stand-ins: that of srun notes the options of the workers, and the wait for them ends then.
    noted, log = tmp_path / "workers", tmp_path / "log"
    python = 'case $1 in *certificates.py) mkdir "$2" && touch "$2/environment.sh" ;; '
    scripts = {"srun": f'echo "$@" > {noted}.new && mv {noted}.new {noted}', "dask": "exit 0", "dkrr": "exit 7"}
    scripts["python"] = f"{python} *) while [ ! -s {noted} ]; do sleep 0.01; done ;; esac"
    stand_ins(tmp_path / "bin", **scripts)
    del allocation["SLURM_MEM_PER_CPU"]
    status = run_job({**allocation, **given}, log)
    if limit is None:
        assert status == 2 and "--mem-per-cpu=4G or --mem=64G" in log.read_text()
    else:
        assert status == 7 and f"--memory-limit {limit} " in noted.read_text(), log.read_text()


def test_job_script(tmp_path):
    pytest.importorskip("dask_jobqueue")
    given = ["--x", "X", "--y", "y", "--shared", tmp_path]
    done = run(sys.executable, SCRIPT, *given, "--cores", "3", "--memory", "6GiB", "--interface", "lo", "--job-script")
    assert done.returncode == 0, done.stderr
    for part in ("--nthreads 1", "--nworkers 3", "--memory-limit 2.00GiB", "--preload dkrr.preload"):
        assert part in done.stdout


def test_workers_run_in_jobs_of_their_own(tmp_path):
    """With stand-ins for the two commands that dask-jobqueue calls."""
    pytest.importorskip("dask_jobqueue")
    sbatch = 'script=$(cat "$1"); setsid bash -c "$script" >> jobs.log 2>&1 & echo "Submitted batch job $!"'
    folder = stand_ins(tmp_path / "bin", sbatch=sbatch, scancel='kill -- "-$1"')
    *_, paths = saved(tmp_path, 601)
    options = ["--shared", "shared", "--jobs", 2, "--cores", 1, "--memory", "700MiB", "--start-with", 2]
    command = [sys.executable, SCRIPT, *paths, *options, "--walltime", "00:05:00", *FIT[2:]]
    done = run(*command, cwd=tmp_path, seconds=200, PATH=f"{folder}:{environment()['PATH']}")
    assert done.returncode == 0, done.stderr
    assert "on Dask workers, tiles on disk (2 processes)" in done.stdout
    log = (tmp_path / "jobs.log").read_text()
    assert "tls://" in log and "tcp://" not in log
    assert_predicts_like_sklearn(dkrr.load(tmp_path / "shared" / "model.zarr"), *problem(601))
    assert sorted(p.name for p in (tmp_path / "shared").iterdir()) == ["logs", "model.zarr", "run.zarr"]
