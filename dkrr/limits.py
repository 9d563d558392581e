"""What this process may take of its machine, and what it holds: memory and cores.

Containers and batch systems set limits by control groups. Those of all parents hold as well: SLURM sets one for the job
and none for its steps, Kubernetes one for the pod and one for the container. Versions 1 and 2 of control groups are
read, and both where both are mounted. Systems without them have none.
"""

import ctypes
import math
import os
import re
import resource
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from mmap import PAGESIZE
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import psutil

ROOT = Path("/")
UNLIMITED = 2**60
"""Bytes from which on a limit does not count: version 1 writes the largest multiple of a page."""
V1_FILES = ("memory.limit_in_bytes",)
V2_FILES = ("memory.max", "memory.high")
"""Beyond the first a process is killed; beyond the second it is slowed down until it does next to nothing."""


class MemoryGroup(NamedTuple):
    """A control group with a limit of memory."""

    folder: Path
    limit_bytes: int

    def available_bytes(self) -> int:
        """Bytes that its processes could still get; cached files can be dropped, so they count as free."""
        used = _number(self.folder / "memory.current")
        if used is None:
            used = _number(self.folder / "memory.usage_in_bytes") or 0
        cached, names = 0, ("total_inactive_file", "total_active_file")  # of the group and all below it, in version 1
        found = dict(line.split(maxsplit=1) for line in _text(self.folder / "memory.stat").splitlines() if " " in line)
        if names[0] not in found:
            names = ("inactive_file", "active_file")
        with suppress(ValueError):
            cached = sum(int(found.get(name, 0)) for name in names)
        return max(0, self.limit_bytes - max(0, used - cached))


def memory_groups(root: Path = ROOT) -> tuple[MemoryGroup, ...]:
    """Control groups of this process, and of its parents, that have a limit of memory.

    Parameters
    ----------
    root : Path
        Folder in which proc/self/cgroup, proc/self/mountinfo and the file systems that it names are looked up.
    """
    found = []
    for folder in _folders("memory", root):
        limits = [n for name in (*V1_FILES, *V2_FILES) if (n := _number(folder / name)) is not None and n < UNLIMITED]
        # Version 1 has the smallest limit of all parents, also of those that are not mounted in a container.
        stat = re.search(r"^hierarchical_memory_limit (\d+)$", _text(folder / "memory.stat"), re.MULTILINE)
        if stat is not None and int(stat[1]) < UNLIMITED:
            limits.append(int(stat[1]))
        if limits:
            found.append(MemoryGroup(folder, min(limits)))
    return tuple(found)


def cores_of_quota(root: Path = ROOT) -> int:
    """Whole cores that the quotas allow; at least one."""
    quotas = [math.inf]
    for folder in _folders("cpu", root):
        of_both = _text(folder / "cpu.max").split()  # "max 100000" without a quota
        if not of_both:
            of_both = [_text(folder / f"cpu.cfs_{part}_us").strip() for part in ("quota", "period")]
        with suppress(ValueError):
            quota, period = (int(part) for part in of_both)
            if quota > 0 and period > 0:  # version 1 writes −1 for none
                quotas.append(quota / period)
    smallest = min(quotas)
    return int(max(1, math.ceil(smallest))) if smallest < math.inf else 2**31


def _folders(controller: str, root: Path) -> Iterator[Path]:
    """Folders of this process's control groups that may hold files of a controller, parents included."""
    of_versions = {1: "", 2: ""}
    for line in _text(root / "proc/self/cgroup").splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if hierarchy == "0" and not controllers:
            of_versions[2] = path
        elif controller in controllers.split(","):
            of_versions[1] = path
    for line in _text(root / "proc/self/mountinfo").splitlines():
        before, separator, after = line.partition(" - ")
        fields, system = before.split(), after.split()
        if not separator or len(fields) < 5 or not system:
            continue
        version = {"cgroup": 1, "cgroup2": 2}.get(system[0], 0)
        if not version or (version == 1 and controller not in system[-1].split(",")):
            continue
        top = root / _unescaped(fields[4]).lstrip("/")
        yield from _upwards(top, PurePosixPath(_unescaped(fields[3])), PurePosixPath(of_versions[version] or "/"))


def _upwards(top: Path, mounted: PurePosixPath, path: PurePosixPath) -> Iterator[Path]:
    """Folders from the group at `path` up to `top`, where the group at `mounted` is.

    In a container the path may be one of the host's, which does not exist here: then the container's own group is
    mounted.
    """
    inside = path.relative_to(mounted) if path.is_relative_to(mounted) else PurePosixPath()
    if ".." in inside.parts:
        inside = PurePosixPath()
    for part in (inside, *inside.parents):
        if (top / part).is_dir():
            yield top / part


def _unescaped(path: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), path)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""


def _number(path: Path) -> int | None:
    """Number in a file; None without one, or for a word such as "max"."""
    try:
        return int(_text(path))
    except ValueError:
        return None


MAX_FILE_BYTES = 2**16
"""Bytes that are read of a file of the system; those that are read here are a few KiB long."""


def read_system_file(path: str) -> bytes:
    """Content of a file that the system generates, as those in /proc; raises OSError.

    Every fit reads some of them, and Python's buffers and paths would take longer than the system does.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, MAX_FILE_BYTES)
    finally:
        os.close(descriptor)


@lru_cache(maxsize=8)
def _limits(root: Path, process: int) -> tuple[tuple[MemoryGroup, ...], int]:  # noqa: ARG001
    """Control groups with a limit of memory, and cores of the quotas; every process reads them once."""
    return memory_groups(root), cores_of_quota(root)


def available_bytes(root: Path = ROOT) -> int:
    """Memory that this machine could still give, within the limits of the control groups."""
    found = None
    with suppress(OSError):  # psutil reads the same file, and computes a dozen other numbers
        found = re.search(rb"^MemAvailable:\s*(\d+) kB$", read_system_file("/proc/meminfo"), re.MULTILINE)
    available = int(psutil.virtual_memory().available) if found is None else 1024 * int(found[1])
    for group in _limits(root, os.getpid())[0]:
        available = min(available, group.available_bytes())
    return available


def resident_bytes() -> int:
    """Memory that this process holds."""
    try:
        return int(read_system_file("/proc/self/statm").split()[1]) * PAGESIZE
    except OSError:  # not Linux
        return int(psutil.Process().memory_info().rss)


def peak_resident_bytes(status: str = "/proc/self/status") -> int:
    """Highest resident memory of this process since it started or since `reset_peak`.

    Parameters
    ----------
    status : str
        File of the system that holds it (Linux); macOS is asked for the peak since the start.
    """
    try:
        found = re.search(rb"^VmHWM:\s*(\d+)", read_system_file(status), re.MULTILINE)
    except OSError:
        found = None
    if found is not None:
        return int(found[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak) if sys.platform == "darwin" else int(peak) * 1024  # macOS counts in bytes, others in KiB


def reset_peak() -> None:
    """Restart the peak from what is resident now (Linux; elsewhere it stays that of the whole process)."""
    with suppress(OSError):
        descriptor = os.open("/proc/self/clear_refs", os.O_WRONLY)
        try:
            os.write(descriptor, b"5")
        finally:
            os.close(descriptor)


def release_free_memory() -> None:
    """Give the system what was freed but kept for later (glibc; elsewhere nothing happens)."""
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def process_limit_bytes() -> int | None:
    """Most resident memory of one process under RLIMIT_AS and RLIMIT_DATA (``ulimit -v``, ``-d``); None: no limit.

    Those limits are of addresses, of which libraries and threads reserve more than they use. The excess is taken to be
    that of this process in every process.
    """
    limits = resource.getrlimit(resource.RLIMIT_AS)[0], resource.getrlimit(resource.RLIMIT_DATA)[0]
    if not 0 <= limits[0] < UNLIMITED and not 0 <= limits[1] < UNLIMITED:  # Linux tells no limit as -1
        return None
    info = psutil.Process().memory_info()
    # Some systems do not count the addresses of private data; all addresses are at least as many.
    reserved = (info.vms, getattr(info, "data", info.vms))
    found = [limit - max(0, n - info.rss) for limit, n in zip(limits, reserved, strict=True) if 0 <= limit < UNLIMITED]
    return int(max(0, min(found)))


def address_limit_note() -> str:
    """Ending of a message about memory or threads, which take addresses; empty if this process has no limit of them."""
    if process_limit_bytes() is None:
        return ""
    return (
        "; this process has a limit of addresses (ulimit -v or -d, RLIMIT_AS or RLIMIT_DATA), of which libraries and "
        "threads reserve more than they use: raise or remove it"
    )


def usable_cores(root: Path = ROOT) -> int:
    """Cores that this process may use: those of its affinity, and no more than the quota of its control groups."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux only
    cores = (os.cpu_count() or 1) if affinity is None else len(affinity(0))
    return min(cores, _limits(root, os.getpid())[1])
