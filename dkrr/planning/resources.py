"""What there is to work with: processes, memory, disk, and their rates."""

from dataclasses import dataclass
from typing import Literal

from dkrr.cost import Cost

Execution = Literal["memory", "serial", "dask"]
"""In memory or with a store in the calling process, or on Dask workers."""


@dataclass(frozen=True)
class Rates:
    """Speed of one core and of the store. Defaults are measured on a 2-core AMD EPYC; see ``dkrr.rates``."""

    gemm_flops: float = 55e9
    """Floating-point operations per second and core of a float64 matrix product."""
    read_bytes: float = 2.5e9
    """Bytes per second that one worker reads from the store."""
    write_bytes: float = 0.6e9
    """Bytes per second that one worker writes to the store."""
    task_seconds: float = 3e-3
    """Time from the end of one task to the start of the next on the same worker."""
    cluster_start_seconds: float = 1.5
    """To start and stop a local cluster."""

    def seconds(self, cost: Cost, threads: int = 1) -> float:
        """Time that one process with this many BLAS threads needs for work that nothing else overlaps."""
        return (
            cost.gemm_flops / (self.gemm_flops * threads)
            + cost.element_seconds
            + cost.read_bytes / self.read_bytes
            + cost.written_bytes / self.write_bytes
            + cost.n_tasks * self.task_seconds
        )


@dataclass(frozen=True)
class Place:
    """Where one candidate's tasks run."""

    execution: Execution
    n_workers: int
    """Processes."""
    slots: int
    """Tasks that run at once."""
    threads: int
    """Tasks that run at once in one process."""
    baseline_bytes: int
    limit_bytes: int
    usable_bytes: int
    """What a plan may use of the limit."""
    start_seconds: float


@dataclass(frozen=True)
class Resources:
    """Processes and limits."""

    local_threads: int
    """Cores of the calling process."""
    local_limit_bytes: int
    """Most memory the calling process may hold, if the work is done there."""
    local_baseline_bytes: int
    """What the calling process holds already."""
    n_workers: int
    """Worker processes."""
    worker_threads: int
    """Tasks that one worker process runs at once."""
    worker_limit_bytes: int
    """Most memory one worker process may hold."""
    worker_baseline_bytes: int
    """What a worker process holds before its first task, libraries included."""
    usable_fraction: float
    """Part of a worker's limit that a plan may use; the rest is for what Python and the allocator keep."""
    cluster_is_running: bool = False
    """The workers are those of a client that the user made."""
    disk_free_bytes: int | None = None
    """Free space where the store is; None: not known."""
    enforce_disk: bool = True
    """False for a plan without data: it is priced even where the disk is too small, and says so."""
    limit_is_given: bool = False
    """The user set memory_limit (messages can then name it)."""
    rates: Rates = Rates()

    def on_workers(self, n_workers: int | None = None) -> Place:
        """All workers, or fewer with more memory each."""
        n = self.n_workers if n_workers is None else n_workers
        limit = self.worker_limit_bytes * self.n_workers // n
        return Place(
            execution="dask",
            n_workers=n,
            slots=n * self.worker_threads,
            threads=self.worker_threads,
            baseline_bytes=self.worker_baseline_bytes,
            limit_bytes=limit,
            usable_bytes=int(limit * self.usable_fraction),
            start_seconds=0.0 if self.cluster_is_running else self.rates.cluster_start_seconds,
        )

    def in_caller(self, execution: Execution, threads: int) -> Place:
        """The calling process, with this many tasks at once."""
        return Place(
            execution=execution,
            n_workers=1,
            slots=threads,
            threads=threads,
            baseline_bytes=self.local_baseline_bytes,
            limit_bytes=self.local_limit_bytes,
            usable_bytes=self.local_limit_bytes,
            start_seconds=0.0,
        )
