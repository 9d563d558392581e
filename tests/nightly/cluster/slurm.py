"""Slurm on one node, for tests: a controller and a node of its own on 127.0.0.1, without accounts or credentials."""

import getpass
import os
import shutil
import socket
import time
from contextlib import contextmanager

import pytest

from tests.nightly.cluster.recipes import run
from tests.processes import free_port, gone, session, stop

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "srun", "sinfo")
MEBIBYTES = 4096
"""Memory that the node offers; nothing enforces it here."""

# auth/none and no address but the node's: nobody else can reach it while the test runs.
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
NodeName={host} NodeAddr=127.0.0.1 CPUs={cores} RealMemory={memory}
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


@contextmanager
def slurm(folder):
    """Configuration with which Slurm's commands reach a controller with one node; skips the test where none can run."""
    path = f"{os.environ['PATH']}{os.pathsep}/usr/sbin{os.pathsep}/sbin"
    programs = {name: shutil.which(name, path=path) for name in PROGRAMS}
    if missing := [name for name, found in programs.items() if found is None]:
        pytest.skip(f"not installed: {', '.join(missing)} (Debian: slurmctld, slurmd, slurm-client)")
    if os.getuid() != 0:
        pytest.skip("slurmd starts jobs as root only")
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    host = socket.gethostname().partition(".")[0]
    values = {"host": host, "user": getpass.getuser(), "folder": folder, "cores": os.cpu_count(), "memory": MEBIBYTES}
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
