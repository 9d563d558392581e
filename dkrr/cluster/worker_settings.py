"""Dask's workers: the settings that dkrr's tasks depend on, what a worker reports, and the comparison with a plan."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dask
import psutil

from dkrr.errors import MemoryLimitError
from dkrr.limits import usable_cores
from dkrr.text import format_bytes, plural

WORKER_SETTINGS: dict[str, Any] = {
    # A plan bounds every task. The memory holds buffers of running tasks and what dkrr keeps between them, which Dask
    # cannot spill; a worker that is paused while it holds them would never continue. The nanny still ends a worker that
    # exceeds its limit.
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    # Dask's clock, of 20 ms, and its profiler interrupt products, which resume with cold caches: with every core at
    # work GEMM loses 5 to 8 % (measured).
    "distributed.admin.tick.interval": "500ms",
    "distributed.admin.system-monitor.interval": "5s",
    "distributed.worker.profile.enabled": False,
}
"""Dask's configuration of the workers that dkrr starts, and of those that preload it."""
PRELOAD = "start workers with --preload dkrr.preload"


@dataclass(frozen=True)
class WorkerReport:
    """Report of a running worker: its resources, the memory that it holds, and the thresholds of its memory manager."""

    host: str
    threads: int
    """Tasks that it runs at once."""
    cores: int
    """Cores that its process may use."""
    host_cores: int
    memory_limit: int
    """Bytes; 0: no limit."""
    spill: float
    """Fraction of the limit above which it writes what it keeps to its disk; 0: never."""
    pause: float
    """Fraction of the limit above which it starts no tasks; 0: never."""
    terminate: float
    """Fraction of the limit above which its nanny ends it; 0: never."""
    resident_bytes: int
    """Memory that its process holds now."""


async def report(dask_worker: Any) -> WorkerReport:
    """Report of the worker that runs this (`Client.run`), in its event loop: its threads may be busy for long."""
    from distributed.comm import get_address_host  # which a worker has imported

    memory = dask_worker.memory_manager
    return WorkerReport(
        host=get_address_host(dask_worker.address),
        threads=dask_worker.state.nthreads,
        cores=usable_cores(),
        host_cores=os.cpu_count() or 1,
        memory_limit=memory.memory_limit or 0,
        spill=float(memory.memory_spill_fraction or 0),
        pause=float(memory.memory_pause_fraction or 0),
        terminate=float(dask.config.get("distributed.worker.memory.terminate", 0.95) or 0)
        if dask_worker.nanny
        else 0.0,
        resident_bytes=int(psutil.Process().memory_info().rss),
    )


def refuse_a_pause(found: Mapping[str, WorkerReport], peak_bytes: int) -> None:
    """Refuse workers that would stop forever in the middle of a fit.

    Parameters
    ----------
    found : mapping of WorkerReport
        By address.
    peak_bytes : int
        Memory that the plan needs in a worker.

    Raises
    ------
    MemoryLimitError
        Naming the setting, before work starts.
    """
    for name in ("pause", "terminate"):
        low = {a: s for a, s in found.items() if 0 < getattr(s, name) * s.memory_limit < peak_bytes}
        if not low:
            continue
        address, s = min(low.items(), key=lambda item: getattr(item[1], name) * item[1].memory_limit)
        fraction = getattr(s, name)
        what = "starts no more tasks" if name == "pause" else "is ended"
        remedy = f"{PRELOAD}, which switches it off, or set" if name == "pause" else "set"
        raise MemoryLimitError(
            f"the worker {address} {what} above {format_bytes(fraction * s.memory_limit)} (distributed.worker.memory."
            f"{name} is {fraction:g}, of {format_bytes(s.memory_limit)}), and the plan needs "
            f"{format_bytes(peak_bytes)} there; expected a higher fraction or a larger worker: "
            f"{remedy} distributed.worker.memory.{name} to {'False' if name == 'pause' else '0.95'} "
            f"where the workers start. Nothing was computed"
        )


def problems(found: Mapping[str, WorkerReport], peak_bytes: int = 0, assumed_limit: int = 0) -> list[str]:
    """Settings with which the workers are slower than planned, or may hold more; each with its remedy.

    Parameters
    ----------
    found : mapping of WorkerReport
        By address.
    peak_bytes : int
        Memory that the plan needs in a worker.
    assumed_limit : int
        Limit of the plan for workers that have none.
    """
    spilling = {a: s for a, s in found.items() if 0 < s.spill * s.memory_limit < peak_bytes}
    crowded = {a: s for a, s in found.items() if s.threads > s.cores}
    unlimited = [a for a, s in found.items() if not s.memory_limit]
    texts = []
    if unlimited:
        plan = f", and the plan assumes {format_bytes(assumed_limit)}" if assumed_limit else ""
        texts.append(f"no memory limit{plan} ({_which(unlimited, found)}): start workers with --memory-limit")
    if spilling:
        s = next(iter(spilling.values()))
        texts.append(
            f"distributed.worker.memory.spill is {s.spill:g}, {format_bytes(s.spill * s.memory_limit)}, below the "
            f"{format_bytes(peak_bytes)} of the plan: writing what Dask keeps frees nothing of dkrr's and costs time "
            f"({_which(list(spilling), found)}): {PRELOAD}"
        )
    if crowded:
        s = next(iter(crowded.values()))
        texts.append(
            f"{plural(s.threads, 'thread')} on {plural(s.cores, 'core')} ({_which(list(crowded), found)}): start "
            f"workers with --nthreads {s.cores}"
        )
    for host in sorted({s.host for a, s in found.items() if a not in crowded}):
        here = [s for s in found.values() if s.host == host]
        threads, cores = sum(s.threads for s in here), max(s.host_cores for s in here)
        if threads > cores:
            texts.append(
                f"the {plural(len(here), 'worker')} at {host}: {plural(threads, 'thread')} in all, and the machine has "
                f"{plural(cores, 'core')}: start fewer workers (--nworkers) or threads (--nthreads)"
            )
    return texts


def _which(addresses: Sequence[str], found: Mapping[str, WorkerReport]) -> str:
    first = f", such as {min(addresses)}" if len(found) > 1 else ""
    return f"{len(addresses)} of {len(found)} worker{'s' * (len(found) != 1)}{first}"
