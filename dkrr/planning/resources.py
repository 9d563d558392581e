"""What there is to work with: processes, memory, disk, and their rates."""

from dataclasses import dataclass

from dkrr.cost import Cost


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
