"""cluster/slurm with Slurm where it is installed, and with stand-ins for its commands."""

import getpass
import json
import os
import shutil
import socket
import sys
import time

import numpy as np
import pytest

import dkrr
from tests.nightly.cluster.recipes import FIT, assert_predicts_like_sklearn, problem, result_of, run, saved
from tests.processes import CLUSTER, environment, free_port, gone, session, stop

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


@pytest.mark.parametrize(("status", "count", "is_again"), [(75, "0", True), (75, "5", False), (1, "0", False)])
def test_a_job_that_may_succeed_later_is_put_back_into_the_queue(allocation, tmp_path, status, count, is_again):
    log, noted = tmp_path / "log", tmp_path / "requeued"
    python = 'case $1 in *certificates.py) mkdir "$2" && touch "$2/environment.sh" ;; esac'
    scripts = {"srun": "exit 0", "dask": "exit 0", "dkrr": f"exit {status}", "python": python}
    stand_ins(tmp_path / "bin", **scripts, scontrol=f'echo "$@" > {noted}')
    assert run_job(allocation | {"SLURM_RESTART_COUNT": count}, log) == status
    assert noted.exists() == is_again and (not is_again or noted.read_text() == "requeue 17\n")


def test_job_script(tmp_path):
    pytest.importorskip("dask_jobqueue")
    given = ["--x", "X", "--y", "y", "--shared", tmp_path]
    done = run(sys.executable, SCRIPT, *given, "--cores", "3", "--memory", "6GiB", "--interface", "lo", "--job-script")
    assert done.returncode == 0, done.stderr
    for part in ("--nthreads 1", "--nworkers 3", "--memory-limit 2.00GiB", "--preload dkrr.preload"):
        assert part in done.stdout


PROGRAMS = ("slurmctld", "slurmd", "sbatch", "srun", "sinfo")

# auth/none and no address but the node's: nobody else can reach it while the test runs. Nothing enforces the memory.
CONFIGURATION = """
ClusterName=dkrrtest
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthType=auth/none
CredType=cred/none
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
PlugStackConfig={folder}/plugstack.conf
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=0
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SwitchType=switch/none
KillWait=5
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs={cores} RealMemory=4096
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


@pytest.fixture(scope="module")
def slurm_conf(tmp_path_factory):
    """Configuration with which Slurm's commands reach a controller with one node; skips the test where none can run."""
    folder = tmp_path_factory.mktemp("slurm")
    path = f"{os.environ['PATH']}{os.pathsep}/usr/sbin{os.pathsep}/sbin"
    programs = {name: shutil.which(name, path=path) for name in PROGRAMS}
    if missing := [name for name, found in programs.items() if found is None]:
        pytest.skip(f"not installed: {', '.join(missing)} (Debian: slurmctld, slurmd, slurm-client)")
    if os.getuid() != 0:
        pytest.skip("slurmd starts jobs as root only")
    (folder / "state").mkdir()
    (folder / "spool").mkdir()
    host = socket.gethostname().partition(".")[0]
    values = {"host": host, "user": getpass.getuser(), "folder": folder, "cores": os.cpu_count()}
    (folder / "plugstack.conf").touch()
    (folder / "slurm.conf").write_text(CONFIGURATION.format(ports=(free_port(), free_port()), **values))
    variables = {"SLURM_CONF": str(folder / "slurm.conf")}
    logs = [folder / "controller.log", folder / "node.log"]
    with (
        session([programs["slurmctld"], "-D"], logs[0], **variables) as controller,
        session([programs["slurmd"], "-D"], logs[1], **variables) as node,
    ):
        deadline = time.monotonic() + 60
        while run("sinfo", "--noheader", "--format=%T", seconds=30, **variables).stdout.strip() != "idle":
            if controller.poll() is not None or node.poll() is not None or time.monotonic() > deadline:
                pytest.skip(f"Slurm does not start here: {[log.read_text()[-1000:] for log in logs]}")
            time.sleep(0.2)
        yield variables["SLURM_CONF"]
        for process in (node, controller):
            stop(process)
            assert gone(process.pid)


def test_slurm_runs_the_script_in_an_array_of_jobs(slurm_conf, tmp_path):
    X, y, _ = saved(tmp_path, 601)
    for k in (0, 1):
        np.save(tmp_path / f"y{k}.npy", y + k * X[:, 1] ** 2)
    (tmp_path / "cluster").symlink_to(CLUSTER)  # the root of the repository, as far as the script knows
    command = ["sbatch", "--wait", "--array=0-1", "--ntasks=1", "--mem-per-cpu=700M", "--output=%a.log", SBATCH]
    command += ["--x", "X.npy", "--y", "y%a.npy", "--store", "run%a.zarr", "--model", "m%a.zarr", "--json"]
    done = run(*command, *FIT, "--tile", 256, cwd=tmp_path, seconds=200, SLURM_CONF=slurm_conf)
    logs = [(tmp_path / f"{k}.log").read_text() for k in (0, 1)]
    assert done.returncode == 0, (done.stderr, logs)
    for k, log in enumerate(logs):
        plan = result_of(log)["plan"]
        assert (plan["execution"], plan["limit_bytes"]) == ("dask", 630 * 2**20)
        assert_predicts_like_sklearn(dkrr.load(tmp_path / f"m{k}.zarr"), X, y + k * X[:, 1] ** 2)
    assert not list(tmp_path.glob(".dkrr-*")), "certificates are left behind"


@pytest.mark.parametrize("slurm", ["stand-ins", "slurm_conf"])
def test_workers_run_in_jobs_of_their_own(slurm, tmp_path, request):
    """With Slurm, and with stand-ins for the two commands that dask-jobqueue calls."""
    pytest.importorskip("dask_jobqueue")
    if slurm == "slurm_conf":
        variables = {"SLURM_CONF": request.getfixturevalue(slurm)}
    else:
        sbatch = 'setsid bash -c "$(cat "$1")" > "shared/logs/$$.err" 2>&1 & echo "Submitted batch job $!"'
        folder = stand_ins(tmp_path / "bin", sbatch=sbatch, scancel='kill -- "-$1"')
        variables = {"PATH": f"{folder}:{environment()['PATH']}"}
    *_, paths = saved(tmp_path, 601)
    options = ["--shared", "shared", "--jobs", 2, "--cores", 1, "--memory", "700MiB", "--start-with", 2]
    command = [sys.executable, SCRIPT, *paths, *options, "--walltime", "00:05:00", *FIT[2:]]
    done = run(*command, cwd=tmp_path, seconds=200, **variables)
    assert done.returncode == 0, done.stderr
    assert "on Dask workers, tiles on disk (2 processes)" in done.stdout
    shared = tmp_path / "shared"
    logs = [path.read_text() for path in (shared / "logs").glob("*.err")]
    assert len(logs) == 2 and all("tls://" in log and "tcp://" not in log for log in logs)
    assert_predicts_like_sklearn(dkrr.load(shared / "model.zarr"), *problem(601))
    assert sorted(p.name for p in shared.iterdir()) == ["logs", "model.zarr", "run.zarr"]
