"""Conditions of a measurement: the machine, the libraries, its other load, and how fast its processes multiply.

``python -m benchmarks.machine`` prints it as one line of JSON.
"""

import functools
import hashlib
import json
import os
import platform
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Self

import click
import numpy as np
import psutil
import threadpoolctl

from dkrr import blas

LIBRARIES = ("numpy", "scipy", "dask", "distributed", "zarr", "scikit-learn", "dkrr")
VARIABLES = ("OPENBLAS_CORETYPE", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")
"""Environment variables that change which kernels OpenBLAS takes, and on how many threads."""
NOISY_CORES = 0.2
"""Cores kept busy by others above which a measurement is marked: it may not be compared with one that is not."""
SECONDS_BEFORE = 1.0
"""For how long the other load is watched before a measurement."""
GEMM_SIDE = 2048
"""Rows and columns of the matrices of the reference product: large enough for the full rate of a core."""
GEMM_SECONDS = 2.0
_SMALL_LIMIT = 512 * 2**20
"""Memory limit of a process below which the reference product must be smaller: it takes 96 MiB at full size."""


@dataclass(frozen=True)
class Load:
    """Load of other processes on this machine."""

    other_cores_busy_before: float
    """Mean number of cores that others kept busy in the second before the measurement."""
    other_cores_busy_during: float
    """Mean number of cores that others kept busy during the measurement: the machine's less those of this process
    and its children."""

    @property
    def noisy(self) -> bool:
        """More than `NOISY_CORES` at either time."""
        return max(self.other_cores_busy_before, self.other_cores_busy_during) > NOISY_CORES

    def to_dict(self) -> dict[str, Any]:
        """Values of JSON."""
        return asdict(self) | {"noisy": self.noisy}


class LoadMeter:
    """Watches the other load of the machine: ``meter = LoadMeter()``, work, ``meter.stop()``."""

    def __init__(self) -> None:
        start = _Clocks.read()
        time.sleep(SECONDS_BEFORE)
        self._start = _Clocks.read()
        self._before = self._start.others_since(start)

    def stop(self) -> Load:
        """Load before and since; to be called before the workers of the measurement are stopped, or after."""
        return Load(self._before, _Clocks.read().others_since(self._start))


@dataclass(frozen=True)
class _Clocks:
    """Seconds so far."""

    wall: float
    busy: float
    """Busy time of all cores, of all processes."""
    ours: float
    """Busy time of all cores, of this process and its children."""

    @classmethod
    def read(cls) -> Self:
        times = psutil.cpu_times()
        # "steal" is the host's other guests: as bad as our own.
        busy = sum(getattr(times, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq", "steal"))
        me = psutil.Process()
        ours = sum(me.cpu_times()[:4])  # with the children that have ended
        for child in me.children(recursive=True):
            with suppress(psutil.Error):
                ours += sum(child.cpu_times()[:4])
        return cls(time.perf_counter(), busy, ours)

    def others_since(self, start: Self) -> float:
        """Cores that others kept busy."""
        others = (self.busy - start.busy) - (self.ours - start.ours)
        return round(max(0.0, others) / max(self.wall - start.wall, 1e-9), 3)


@dataclass(frozen=True)
class GemmRate:
    """Speed of float64 matrix products in several processes at once."""

    gflops: float
    """Sum over the processes, 10⁹ flop/s."""
    gflops_by_process: tuple[float, ...]
    threads: int
    """BLAS threads of each process."""
    side: int
    """Rows and columns of the matrices."""
    seconds: float
    """For how long each process multiplied."""


def describe_machine() -> dict[str, Any]:
    """Hardware, system, versions, commit, date, and the BLAS libraries of this process, as values of JSON."""
    return {
        "cpu": _cpu_model(),
        "cores": count_cores(),
        "memory_bytes": psutil.virtual_memory().total,
        "system": platform.platform(),
        "versions": {"python": platform.python_version()} | {name: _version(name) for name in LIBRARIES},
        "commit": _commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        "blas": [
            {key: library.get(key) for key in ("internal_api", "version", "architecture", "num_threads")}
            | {"file": Path(library["filepath"]).name}
            for library in threadpoolctl.threadpool_info()
            if library["user_api"] == "blas"
        ],
    }


def checksum(more: Sequence[Path] = ()) -> str:
    """Checksum of dkrr and of some more files: what was measured counts until one of them changes."""
    sha, root = hashlib.sha256(), Path(__file__).parents[1]
    files = [f for ending in ("*.py", "*.yaml") for f in (root / "dkrr").rglob(ending)]
    for file in [*sorted(files), *more]:
        sha.update(str(file.relative_to(root)).encode() + file.read_bytes())
    return sha.hexdigest()[:12]


def count_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def stamped(record: dict[str, Any]) -> dict[str, Any]:
    """A line of results with the machine that it was measured on."""
    return {**record, "machine": describe_machine()}


def measure_gemm_here(side: int = GEMM_SIDE, seconds: float = GEMM_SECONDS) -> GemmRate:
    """Measure the product in this process, with the BLAS threads that it has."""
    rate = _multiply(side, seconds, time.time())
    return GemmRate(rate, (rate,), _blas_threads(), side, seconds)


def measure_gemm_on_workers(client: Any, limit_bytes: int, seconds: float = GEMM_SECONDS) -> GemmRate:
    """Measure the product on all workers at once.

    Parameters
    ----------
    client : distributed.Client
        Of workers with one thread each.
    limit_bytes : int
        Memory limit of a worker; small ones get smaller matrices.
    seconds : float
        For how long to multiply.
    """
    side = GEMM_SIDE if limit_bytes >= _SMALL_LIMIT else GEMM_SIDE // 2
    workers = list(client.scheduler_info(n_workers=-1)["workers"])
    start = time.time() + 1.5  # all at the same moment: they share the memory bus and the clock of the chip
    futures = [client.submit(_multiply, side, seconds, start, workers=[w], pure=False) for w in workers]
    rates = tuple(float(rate) for rate in client.gather(futures))
    threads = max(int(k) for k in client.run(_blas_threads).values())
    return GemmRate(sum(rates), rates, threads, side, seconds)


def _multiply(side: int, seconds: float, start: float) -> float:
    """Rate of dkrr's own GEMM, 10⁹ flop/s, from the moment `start` (seconds since the epoch)."""
    a, b = np.random.default_rng(0).standard_normal((2, side, side))
    c = np.zeros((side, side))
    blas.gemm(c, a, b, transpose_b=True)  # pages in memory
    while time.time() < start:  # a core that has waited is slower for about a second
        blas.gemm(c, a, b, transpose_b=True)
    clock, products = time.perf_counter(), 0
    passed = 0.0
    while passed < seconds:
        blas.gemm(c, a, b, transpose_b=True)
        products += 1
        passed = time.perf_counter() - clock
    return 2 * side**3 * products / passed / 1e9


def _blas_threads() -> int:
    return max(
        (int(library["num_threads"]) for library in threadpoolctl.threadpool_info() if library["user_api"] == "blas"),
        default=1,
    )


@functools.cache
def _cpu_model() -> str:
    """Name of the processor, with its family and model: some hypervisors leave only the brand in the name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n", 1)[0].splitlines()
    except OSError:
        lines = []
    found = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    name = found.get("model name") or platform.processor() or platform.machine()
    numbers = [f"{key.split()[-1]} {found[key]}" for key in ("cpu family", "model") if key in found]
    return f"{name} ({', '.join(numbers)})" if numbers else name


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


@functools.cache
def _commit() -> str | None:
    """Commit of this checkout, marked if there are changes that are not committed."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


@click.command()
def main() -> None:
    """Print what a process started from here would measure on."""
    click.echo(json.dumps(describe_machine()))


if __name__ == "__main__":
    main()
