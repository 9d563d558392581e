"""Limits of jobs and containers, from trees that look like the system's own, and limits that the system really sets."""

import os
import subprocess
import sys

import psutil
import pytest

from dkrr.limits import available_bytes, memory_groups, resident_bytes, usable_cores
from dkrr.machine.detection import detect

MIB = 2**20
NONE_V1 = 9223372036854771712


def tree(root, cgroup, mounts, files):
    """A folder with what a process sees: its control groups, what is mounted where, and the groups' files."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(cgroup)
    (root / "proc/self/mountinfo").write_text("22 1 8:1 / / rw - ext4 /dev/sda1 rw\n" + mounts)
    for path, text in files.items():
        file = root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
    return root


V2 = "35 24 0:30 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"


def v1(controller, group="/", where=None):
    where = where or f"/sys/fs/cgroup/{controller}"
    return f"36 31 0:32 {group} {where} rw,relatime shared:5 master:1 - cgroup cgroup rw,{controller}\n"


JOB = "/sys/fs/cgroup/system.slice/slurmstepd.scope/job_42"
SLURM_V2 = (
    "0::/system.slice/slurmstepd.scope/job_42/step_0/user/task_0\n",
    V2,
    {
        f"{JOB}/memory.max": 1000 * MIB,
        f"{JOB}/memory.current": 700 * MIB,
        f"{JOB}/memory.stat": f"anon {300 * MIB}\ninactive_file {250 * MIB}\nactive_file {150 * MIB}",
        f"{JOB}/cpu.max": "150000 100000",
        f"{JOB}/step_0/user/task_0/memory.max": "max",
        f"{JOB}/step_0/user/task_0/cpu.max": "max 100000",
    },
)
MEMORY, CPU = (f"/sys/fs/cgroup/{name}/slurm/uid_7/job_42" for name in ("memory", "cpu,cpuacct"))
SLURM_V1 = (
    "5:cpu,cpuacct:/slurm/uid_7/job_42/step_0\n4:memory:/slurm/uid_7/job_42/step_0/task_0\n0::/\n",
    v1("memory") + v1("cpu,cpuacct"),
    {
        f"{MEMORY}/memory.limit_in_bytes": 1000 * MIB,
        f"{MEMORY}/memory.usage_in_bytes": 700 * MIB,
        f"{MEMORY}/memory.stat": f"inactive_file 0\ntotal_inactive_file {250 * MIB}\ntotal_active_file {150 * MIB}",
        f"{MEMORY}/step_0/task_0/memory.limit_in_bytes": NONE_V1,
        f"{CPU}/cpu.cfs_quota_us": 150000,
        f"{CPU}/cpu.cfs_period_us": 100000,
        f"{CPU}/step_0/cpu.cfs_quota_us": -1,
        f"{CPU}/step_0/cpu.cfs_period_us": 100000,
    },
)


def limits(root):
    return [group.limit_bytes // MIB for group in memory_groups(root)]


@pytest.mark.parametrize("job", [SLURM_V2, SLURM_V1], ids=["version 2", "version 1"])
def test_a_job_has_the_limit_of_its_parents_and_a_plan_stays_within_what_is_left(tmp_path, job):
    root = tree(tmp_path, *job)
    assert min(limits(root)) == 1000
    # 700 in use, of which 400 are files that the system drops when memory is wanted.
    assert available_bytes(root) == 700 * MIB
    assert usable_cores(root) == min(2, usable_cores()), "one core and a half is two threads"
    resources, held = detect(None, None, workers=2, root=root), psutil.Process().memory_info().rss
    assert resources.n_workers * resources.worker_limit_bytes <= 0.8 * 700 * MIB
    assert resources.local_limit_bytes <= 700 * MIB + held
    assert resources.memory_bytes <= 700 * MIB + 2 * held
    given = detect("8GiB", None, workers=2, root=root)
    assert given.worker_limit_bytes == 4 * 2**30, "a given limit is used"


def test_the_smallest_of_all_parents_holds(tmp_path):
    files = {"/sys/fs/cgroup/pod/memory.max": 500 * MIB, "/sys/fs/cgroup/pod/memory.current": 450 * MIB}
    files |= {"/sys/fs/cgroup/pod/one/memory.max": 900 * MIB, "/sys/fs/cgroup/pod/one/memory.current": 10 * MIB}
    root = tree(tmp_path, "0::/pod/one\n", V2, files)
    assert limits(root) == [900, 500]
    assert available_bytes(root) == 50 * MIB, "another container of the pod has the rest"


def test_the_same_as_psutil_says():
    assert available_bytes() <= 1.25 * psutil.virtual_memory().available
    assert resident_bytes() == pytest.approx(psutil.Process().memory_info().rss, rel=0.1)


# The path of a group may be the host's, and what is mounted the group itself.
LIMIT_V1, STAT_V1 = "/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.stat"
OF_PARENTS = f"cache 0\nhierarchical_memory_limit {64 * MIB}\ntotal_rss 0"
SPACE = V2.replace("/sys/fs/cgroup", "/sys/my\\040groups")
CONTAINERS = {
    "slowed down": ("0::/a\n", V2, {"/sys/fs/cgroup/a/memory.max": "max", "/sys/fs/cgroup/a/memory.high": 64 * MIB}),
    "name space of its own": ("0::/\n", V2, {"/sys/fs/cgroup/memory.max": 64 * MIB}),
    "mounted from the host's": (
        "4:memory:/docker/0a1b\n",
        v1("memory", "/docker/0a1b", "/sys/fs/cgroup/memory"),
        {LIMIT_V1: 64 * MIB},
    ),
    "path that is not mounted": ("0::/kubepods/pod7/0a1b\n", V2, {"/sys/fs/cgroup/memory.max": 64 * MIB}),
    "path above": ("0::/../0a1b\n", V2, {"/sys/fs/cgroup/memory.max": 64 * MIB}),
    "parents that are not mounted": ("4:memory:/a\n", v1("memory", "/a"), {LIMIT_V1: NONE_V1, STAT_V1: OF_PARENTS}),
    "mount point with a space": ("0::/\n", SPACE, {"/sys/my groups/memory.max": 64 * MIB}),
}


@pytest.mark.parametrize("container", CONTAINERS)
def test_limits_of_containers_are_found_wherever_they_are_mounted(tmp_path, container):
    cgroup, mounts, files = CONTAINERS[container]
    root = tree(tmp_path, cgroup, mounts, {**files, "/sys/fs/cgroup/cpu.max": "50000 100000"})
    assert min(limits(root)) == 64
    assert usable_cores(root) == 1 or mounts != V2


UNLIMITED = {
    "no limit 2": ("0::/a\n", V2, {"/sys/fs/cgroup/a/memory.max": "max", "/sys/fs/cgroup/a/cpu.max": "max 100000"}),
    "no limit 1": ("4:memory:/a\n", v1("memory"), {"/sys/fs/cgroup/memory/a/memory.limit_in_bytes": NONE_V1}),
    "unreadable": ("0::/a\n", V2, {"/sys/fs/cgroup/a/memory.max": "what?", "/sys/fs/cgroup/a/cpu.max": "1"}),
    "not a list": ("not\na: list", "nor a table\n - \n", {}),
    "empty": ("", "", {}),
}


@pytest.mark.parametrize(("cgroup", "mounts", "files"), UNLIMITED.values(), ids=UNLIMITED)
def test_groups_without_a_limit_set_none(tmp_path, cgroup, mounts, files):
    root = tree(tmp_path, cgroup, mounts, files)
    assert memory_groups(root) == ()
    assert available_bytes(root) > 100 * MIB
    assert usable_cores(root) == len(os.sched_getaffinity(0))


@pytest.mark.nightly
def test_a_limit_of_addresses_that_the_system_sets():
    """In a process of its own, with real limits: a plan stays within them, and memory up to it can be had."""
    script = """
import resource, numpy as np
from dkrr.machine.detection import detect
from dkrr.limits import process_limit_bytes
free = detect(None, None, workers=1)
for name in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
    resource.setrlimit(name, (2**30, -1))
    bound = process_limit_bytes()
    limited = detect(None, None, workers=1)
    for limit in (limited.local_limit_bytes, limited.worker_limit_bytes, limited.on_workers().limit_bytes):
        assert limit <= 0.81 * bound < 2**30, (limit, bound)
    assert limited.local_limit_bytes < free.local_limit_bytes
    held = np.ones((limited.local_limit_bytes - limited.local_baseline_bytes) // 8)
    try:
        np.ones(2**30 // 8)
    except MemoryError:
        print("enough")
    del held
    resource.setrlimit(name, (-1, -1))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("enough\nenough\n", "")
