"""Resources of a fit: processes, memory, disk, and their rates.

What a plan may use of the machine: fractions of memory, and what processes hold besides their arrays.
"""

from dataclasses import asdict, dataclass, fields, replace
from math import ceil, inf
from typing import Any, Literal, Self

from dkrr.blas import BYTES_PER_THREAD
from dkrr.cost import Work

Execution = Literal["memory", "serial", "dask"]
"""In memory or with a store in the calling process, or on Dask workers."""
RatesFrom = Literal["defaults", "quick", "calibration", "configuration"]
"""Where rates come from: dkrr's defaults, the quick measurement, `dkrr calibrate`, or Dask's configuration."""
Fingerprint = dict[str, Any]
"""Values of JSON that must be the same for measured rates to hold."""
PROFILE_FORMAT = 3
"""Version of the files of profiles."""

STORE_RATES = ("read_bytes", "cold_read_bytes", "write_bytes")
"""Rates of a store, among those of a machine."""
ROUND_TRIP_BYTES = 2**21
"""Bytes of the vectors whose round trip is measured."""
DENSE_SIDE = 3072
"""Rows of the matrix whose factorisation in memory is measured."""


@dataclass(frozen=True)
class Rates:
    """Speed of one core while the others work as well, of the store, and of Dask.

    The defaults are cautious ones for two cores of an AMD EPYC with a local disk; ``dkrr calibrate`` measures.
    """

    gemm_flops: float = 50e9
    """Floating-point operations per second of a float64 matrix product."""
    float32_gemm_flops: float = 100e9
    syrk_flops: float = 48e9
    """Rate of the update of a diagonal tile by a panel."""
    trsm_flops: float = 30e9
    """Rate of the division of a tile by a triangle as wide as a panel."""
    potrf_flops: float = 38e9
    """Rate of the Cholesky factorisation of one tile."""
    dense_flops: float = 40e9
    """Rate of the Cholesky factorisation of DENSE_SIDE rows in memory, for each thread of the calling process."""
    memory_bytes: float = 7e9
    """Bytes per second of a matrix in memory that are multiplied by a vector, from both sides."""
    fresh_bytes: float = 1.5e9
    """Bytes per second of memory that a process gets from the system and fills for the first time."""
    read_bytes: float = 2.5e9
    """Bytes per second that one worker reads from the store, where the system's cache has them."""
    cold_read_bytes: float = 0.5e9
    """Bytes per second that one worker reads from the disk itself."""
    write_bytes: float = 0.6e9
    """Bytes per second that one worker writes to the store."""
    task_seconds: float = 3e-3
    """Time from the end of one task to the start of the next on the same worker."""
    chain_seconds: float = 0.011
    """Time from the end of a task to the start of one that waits for it (the client sends every 10 ms)."""
    round_trip_seconds: float = 0.02
    """Time to send vectors of ROUND_TRIP_BYTES to all workers and to receive the sum of their results."""
    network_bytes: float = 0.5e9
    """Bytes per second from one worker to another, for vectors longer than those; matrices go through the store."""
    cluster_start_seconds: float = 1.5
    """Time to start and stop a local cluster."""

    def seconds(self, work: Work, threads: int = 1) -> float:
        """Time of one process with this many BLAS threads, where nothing overlaps."""
        # A factorisation is faster for large matrices, with a larger fraction of GEMM.
        overhead = DENSE_SIDE * max(self.gemm_flops / self.dense_flops - 1.0, 0.0)
        dense_flops = self.gemm_flops / (1.0 + overhead / max(work.dense_side, 1))
        return (
            work.gemm_flops / (self.gemm_flops * threads)
            + work.dense_flops / (dense_flops * threads)
            + work.element_seconds
            + (work.read_bytes - work.cold_bytes) / self.read_bytes
            + work.cold_bytes / min(self.cold_read_bytes, self.read_bytes)
            + work.written_bytes / self.write_bytes
            + work.n_tasks * self.task_seconds
            + work.memory_bytes / self.memory_bytes
            + work.fresh_bytes / self.fresh_bytes
        )

    def reading(self, cold: float) -> Self:
        """Rates where a fraction of all that is read comes from the disk itself."""
        if cold <= 0.0:
            return self
        slow = min(self.cold_read_bytes, self.read_bytes)
        return replace(self, read_bytes=1.0 / ((1.0 - cold) / self.read_bytes + cold / slow))

    def stored_as(self, other: Self) -> Self:
        """Rates of the same cores with the store of others."""
        return replace(self, **{name: getattr(other, name) for name in STORE_RATES})

    def of_itemsize(self, itemsize: int) -> Self:
        """Rates of the same operations with the same number of entries, of `itemsize` bytes each."""
        if itemsize == 8:
            return self
        twice = {name: 2 * getattr(self, name) for name in STORE_RATES}
        return replace(self.faster(self.float32_gemm_flops / self.gemm_flops), **twice)

    def faster(self, factor: float) -> Self:
        """Rates of cores that compute this many times as fast, with the same store and Dask."""
        flops = {f.name: factor * getattr(self, f.name) for f in fields(self) if f.name.endswith("_flops")}
        return replace(self, **flops)


@dataclass(frozen=True)
class Profile:
    """Result of ``dkrr calibrate``, or of the quick measurement before the first long fit.

    Attributes
    ----------
    fingerprint : dict
        What the rates are of: processor, cores, BLAS, versions of NumPy and SciPy.
    time : str
        When it was measured, ISO 8601.
    rates : Rates
        Medians over the workers: operations and bytes per second.
    workers : tuple of dict
        Measurements of every worker.
    folder : str
        Folder whose bandwidth was measured; empty: that of the store is a default.
    seconds : float
        Time that the measurements took, in seconds.
    other_cores_busy : float
        Cores that other programs kept busy just before: a profile taken beside them is too slow.
    is_quick : bool
        Measured in a moment before a fit: some rates are defaults, and ``dkrr calibrate`` replaces it.

    See Also
    --------
    dkrr.calibrate : Measure this machine for plans.

    Examples
    --------
    >>> import dkrr
    >>> profile = dkrr.calibrate()  # doctest: +SKIP
    >>> print(f"{profile.rates.gemm_flops:.2g} operations per second")  # doctest: +SKIP
    5.1e+10 operations per second
    """

    fingerprint: Fingerprint
    time: str
    rates: Rates
    workers: tuple[dict[str, Any], ...] = ()
    folder: str = ""
    seconds: float = 0.0
    other_cores_busy: float = 0.0
    is_quick: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Values of JSON."""
        return {"format": PROFILE_FORMAT} | asdict(self)


TRANSFER_BYTES = 6e9
"""Bytes per second between memory of the host and a GPU, an assumption: pageable memory over PCI Express."""
HOST_SECONDS = 4e-9
"""Time of the host for a number of a row: centring, rounding."""
OPENING_SECONDS = 5e-3
"""Time of the first call on a GPU, besides: memory that is got and given back."""
ENTRY_PASSES = 4
"""Times that a GPU writes or reads an entry: by the product of matrices, and by an elementwise function, twice."""


@dataclass(frozen=True)
class Gpu:
    """A GPU that the calling process may use: its memory and three measured rates."""

    name: str
    total_bytes: int
    free_bytes: int
    """Memory that is free for this process: other programs may hold some."""
    float32_flops: float
    """Floating-point operations per second of a product of matrices in float32."""
    float64_flops: float
    pass_bytes: float
    """Bytes per second that an elementwise function reads and writes."""

    def flops(self, precision: str) -> float:
        """Rate of products in a precision."""
        return self.float32_flops if precision == "float32" else self.float64_flops

    def entry_seconds(self, precision: str, n_columns: int, n_vectors: float = 0.0, n_leaves: int = 1) -> float:
        """Time of an entry of K that is formed and multiplied.

        Parameters
        ----------
        precision : {"float64", "float32"}
        n_columns : int
            Columns of X.
        n_vectors : float
            Vectors that it is multiplied by.
        n_leaves : int
            Products of matrices that a block of the kernel takes.
        """
        flops = n_leaves * 2.0 * n_columns + 2.0 * n_vectors
        passes = ENTRY_PASSES * n_leaves + 2 * (n_vectors > 0)
        return flops / self.flops(precision) + passes * (4 if precision == "float32" else 8) / self.pass_bytes

    def upload_seconds(self, n: int, n_columns: int) -> float:
        """Time until rows are on it: what is prepared on the host, and the transfer."""
        return OPENING_SECONDS + n * (n_columns + 1) * (HOST_SECONDS + 8 / TRANSFER_BYTES)


def cold_fraction(n_bytes: float, cache_bytes: float) -> float:
    """Fraction of files that the disk itself must deliver where the system's cache holds a given number of bytes.

    Files are read repeatedly in the same order, and the cache keeps as much of them as it can.
    """
    return max(0.0, 1.0 - cache_bytes / n_bytes) if n_bytes > 0 else 0.0


@dataclass(frozen=True)
class Workplace:
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
    """Memory of the limit that a plan may use."""
    start_seconds: float

    @property
    def is_memory(self) -> bool:
        """The calling process, with nothing on disk."""
        return self.execution == "memory"


@dataclass(frozen=True)
class WorkerShare:
    """Fraction of a worker's memory limit for each of the fits that run in its tasks."""

    n_sharing: int
    """Number of fits that may run at once."""
    fraction: float
    """Fraction of the limit that all of them may take together."""

    def of(self, limit: int, held: int) -> int:
        """Bytes that the process may hold for one fit, where `held` bytes of the limit are taken already."""
        return held + max(0, int(self.fraction * limit) - held) // self.n_sharing

    def limit_for(self, needed: int, held: int) -> int:
        """Smallest limit with which one fit may hold `needed` bytes: the inverse of `of`."""
        return ceil((held + max(0, needed - held) * self.n_sharing) / self.fraction) + 1


@dataclass(frozen=True, kw_only=True)
class Resources:
    """Processes and limits."""

    local_threads: int
    """Cores of the calling process."""
    local_limit_bytes: int
    """Memory that the calling process may hold, if the work is done there."""
    local_baseline_bytes: int
    """Memory that the calling process holds already."""
    n_workers: int
    """Worker processes."""
    worker_threads: int
    """Tasks that one worker process runs at once."""
    worker_limit_bytes: int
    """Memory that one worker process may hold."""
    worker_baseline_bytes: int
    """Memory that a worker process holds before its first task, libraries included."""
    usable_fraction: float
    """Fraction of a worker's limit that a plan may use; Python and the allocator keep the rest."""
    cluster_is_running: bool = False
    """The workers are those of a client that the user made."""
    disk_free_bytes: int | None = None
    """Free space where the store is; None: not known."""
    enforce_disk: bool = True
    """False for a plan without data: it is priced even where the disk is too small, and the plan reports that."""
    confined: str = ""
    """Why all the work must be done in the calling process; empty: it may be done on workers."""
    share: WorkerShare | None = None
    """Share of a Dask worker's limit, if the calling process is a Dask worker; None otherwise."""
    memory_bytes: int | None = None
    """Memory of one machine that the processes of a fit and the system's cache of files share; None: not known, and
    the cache is assumed to hold everything that is read."""
    n_hosts: int = 1
    """Number of machines that the workers run on."""
    process_limit_bytes: int | None = None
    """Memory that one worker may hold, however few workers run (``ulimit``); None: no such limit."""
    limit_is_given: bool = False
    """The user set memory_limit (messages can then name it)."""
    rates: Rates = Rates()
    """Rates with the store of the run."""
    rates_from: RatesFrom = "defaults"
    disk_rates: Rates | None = None
    """Rates with this machine's own disk, if the store of the run is elsewhere; None: those of `rates`."""
    row_rates: Rates | None = None
    """Rates with the store that X is read from; None: those of `disk_rates`."""
    store: str | None = None
    """Path or URL of the run's store; None: a temporary folder."""
    rows: str | None = None
    """Path or URL of X; None: it is in memory, or the calling process reads it."""
    storage_reasons: tuple[str, ...] = ()
    """Where the rates of stores elsewhere come from."""
    gpu: Gpu | None = None
    """GPU of the calling process, where it is known."""
    assumed: str = ""
    """Assumptions about a cluster that does not exist; empty if the resources were detected."""

    @property
    def rates_of_disk(self) -> Rates:
        """Rates with this machine's own disk."""
        return self.rates if self.disk_rates is None else self.rates.stored_as(self.disk_rates)

    @property
    def rates_of_rows(self) -> Rates:
        """Rates with the store that X is read from, if workers can read it where it is."""
        return self.rates.stored_as(self.rates_of_disk if self.row_rates is None else self.row_rates)

    def confined_limit(self, needed: int) -> tuple[int, str]:
        """Smallest limit with which the calling process may hold `needed` bytes, and the name of the limit."""
        if self.share is None:
            return needed, "memory_limit"
        return self.share.limit_for(needed, self.local_baseline_bytes), "memory limit of the worker"

    def on_workers(self, n_workers: int | None = None) -> Workplace:
        """All workers, or fewer with more memory each."""
        n = self.n_workers if n_workers is None else n_workers
        limit = self.worker_limit_bytes * self.n_workers // n
        if self.process_limit_bytes is not None:
            limit = min(limit, self.process_limit_bytes)
        return Workplace(
            execution="dask",
            n_workers=n,
            slots=n * self.worker_threads,
            threads=self.worker_threads,
            baseline_bytes=self.worker_baseline_bytes,
            limit_bytes=limit,
            usable_bytes=int(limit * self.usable_fraction),
            start_seconds=0.0 if self.cluster_is_running else self.rates.cluster_start_seconds,
        )

    def caller_and_workers(self, *, wants_tiles: bool) -> list[Workplace]:
        """Places of work that threads of the calling process do as well as workers."""
        if self.cluster_is_running:
            return [self.on_workers()]
        caller = self.in_caller("serial" if wants_tiles else "memory", self.local_threads, self.local_threads)
        return [caller] if self.confined else [caller, self.on_workers()]

    def cache_bytes(self, n_workers: int, peak_bytes: float, *, on_workers: bool = True) -> float:
        """Memory of one machine that is left for the system's cache of files beside `n_workers` processes.

        Where they are workers, the calling process holds its own memory besides.
        """
        if self.memory_bytes is None:
            return inf
        here = self.local_baseline_bytes if on_workers and not self.cluster_is_running else 0
        return max(0.0, self.memory_bytes - here - ceil(n_workers / self.n_hosts) * peak_bytes)

    def in_caller(self, execution: Execution, threads: int, blas_threads: int = 0) -> Workplace:
        """The calling process, with this many tasks at once, and the buffers of BLAS's threads."""
        return Workplace(
            execution=execution,
            n_workers=1,
            slots=threads,
            threads=threads,
            baseline_bytes=self.local_baseline_bytes + blas_threads * BYTES_PER_THREAD,
            limit_bytes=self.local_limit_bytes,
            usable_bytes=self.local_limit_bytes,
            start_seconds=0.0,
        )


WORKER_BASELINE_BYTES = 160 * 2**20
"""Resident memory of a worker process with NumPy, SciPy, Zarr and dkrr imported, before its first task (measured:
about 110 MiB, and 50 more with an S3 store, with libraries of the versions of 2026). Workers are asked when they
start."""
PROCESS_MARGIN_BYTES = 24 * 2**20
"""Interpreter, allocator and messages, on top of what is counted."""
CALLER_MARGIN_BYTES = 12 * 2**20
"""Margin of the calling process, which has its libraries loaded and exchanges no messages (measured: what is counted
is 30 MiB too high already)."""
LOCAL_FRACTION = 0.92
"""Fraction of a worker's limit that a plan may use where dkrr starts the workers: they hold nothing else, and
neither spill nor pause."""
CLUSTER_FRACTION = 0.70
"""Fraction of a worker's limit that a plan may use of a user's workers: Dask pauses a worker at 0.80 of its limit and
kills it at 0.95."""
AVAILABLE_FRACTION = 0.80
"""Fraction of the memory available now that is used where no limit is given."""
RESIDENT_ROWS_FRACTION = 1 / 4
"""Largest fraction of a process's memory that X may take where every process keeps it."""
