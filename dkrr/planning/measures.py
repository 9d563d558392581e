"""Measurements of one process: short loops over dkrr's own operations, at the sizes at which it uses them.

Rates are those of the fastest half of the repetitions, so that interruptions by other programs do not count.
"""

import os
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dkrr import blas
from dkrr.kernels import RBF, Kernel, Laplacian, Linear, Matern, Polynomial
from dkrr.linalg.products import Precision
from dkrr.linalg.sources import KERNEL_BLOCK, cut_tile
from dkrr.planning.resources import KernelRate
from dkrr.store import ChunkedArray

SIDE, PANEL = 1024, 512
"""Rows of a tile and columns of its panels, which are multiplied."""
KERNELS: tuple[Kernel, ...] = (Linear(), Polynomial(degree=3), RBF(), Laplacian(), Matern())
FEATURES = (8, 64)
"""Numbers of columns at which kernels are measured."""
MEMORY_SIDE = 2048
"""Rows of a matrix of 32 MiB, which a core's share of a cache does not hold."""
QUICK_SECONDS = 0.02
"""Time of each measurement before a fit, of which there are at least three repetitions."""
CORE_BYTES = 64 * 2**20
"""Memory of the measurements of one core."""
CHUNK = (1024, 512)
QUICK_CHUNKS = 12
"""Chunks of 4 MiB that are written and read before a fit."""
N_CHUNKS = 96
"""Chunks that `dkrr calibrate` writes and reads: fewer would stay in memory."""

FROM_A_DISK = 2.0
"""Least time of a read from the disk over that from the system's cache, whose copying and checking it includes."""

Measured = dict[str, float]


def measure_cores(seconds: float = QUICK_SECONDS) -> tuple[Measured, list[KernelRate]]:
    """Task: what most plans depend on, on one thread, in about thirty times so many seconds; first by fields of Rates.

    All threads or workers are at it at the same time, since they share memory, caches and clock.
    """
    with blas.one_thread():
        return measure_blas(seconds) | measure_memory(seconds), measure_kernels(seconds / 4)


def measure_blas(seconds: float) -> Measured:
    """Rates of the products and factorisations of tiles."""
    rng, side = np.random.default_rng(0), SIDE
    tile, panel = rng.standard_normal((side, side)), rng.standard_normal((side, PANEL))
    # Numbers that are divided repeatedly must neither grow nor shrink: those near zero are slow.
    triangle = np.tril(rng.standard_normal((PANEL, PANEL)), -1) * 1e-6 + np.eye(PANEL)
    definite = np.eye(side) * 2.0 + 1.0
    columns = tile[:, :PANEL]

    def best(function: Callable[[], None]) -> float:
        return best_seconds(function, seconds)

    def factor() -> None:
        np.copyto(tile, definite)
        blas.cholesky_in_place(tile)

    copying = best_seconds(lambda: np.copyto(tile, definite), seconds / 2)
    return {
        "gemm_flops": 2.0 * side**2 * PANEL / best(_multiply(side, "float64")),
        "float32_gemm_flops": 2.0 * side**2 * PANEL / best(_multiply(side, "float32")),
        "syrk_flops": side**2 * PANEL / best(lambda: blas.syrk(tile, panel, alpha=-1.0, beta=1.0)),
        "trsm_flops": side * PANEL**2 / best(lambda: blas.solve_lower_right(triangle, columns)),
        "potrf_flops": side**3 / 3 / max(best(factor) - copying, 1e-9),
    }


def _multiply(side: int, dtype: str) -> Callable[[], None]:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, side, PANEL)).astype(dtype)
    c = np.zeros((side, side), dtype)
    return lambda: blas.gemm(c, a, b, transpose_b=True, alpha=-1.0, beta=1.0)


def measure_memory(seconds: float) -> Measured:
    """Rate at which a tile in memory is multiplied by a vector, from both sides."""
    side = MEMORY_SIDE
    tile = np.ones((side, side))
    left, right = np.zeros((side, 1)), np.zeros((side, 1))
    rows, columns = slice(0, side), slice(side, 2 * side)

    def multiply() -> None:
        for r, c, piece in cut_tile(tile, rows, columns):
            across = slice(c.start - columns.start, c.stop - columns.start)
            blas.gemm(left[r], piece, right[across], beta=1.0)
            blas.gemm(right[across], piece, left[r], transpose_a=True)

    return {"memory_bytes": tile.nbytes / best_seconds(multiply, seconds)}


def measure_kernels(seconds: float) -> list[KernelRate]:
    """Time for an entry of every kernel, in blocks as they are formed."""
    rng, rates = np.random.default_rng(0), []
    for d in FEATURES:
        rows = rng.standard_normal((2, KERNEL_BLOCK, d))
        for kernel in KERNELS:
            for precision in Precision.__args__:  # type: ignore[attr-defined]
                x, z = rows.astype(precision)
                value, out = kernel.resolved(d), np.empty((KERNEL_BLOCK, KERNEL_BLOCK), precision)

                def form(value: Kernel = value, x: Any = x, z: Any = z, out: Any = out) -> None:
                    value(x, z, out=out)

                each = best_seconds(form, seconds) / out.size
                rates.append(KernelRate(type(kernel).__name__, d, precision, each))
    return rates


def measure_store(folder: str, n_chunks: int = N_CHUNKS) -> Measured:
    """Bandwidth of chunks as tiles have them: written, read from the system's cache, and read from the disk."""
    chunks = ChunkedArray.create(f"{folder}/{uuid.uuid4().hex}.zarr", (n_chunks * CHUNK[0], CHUNK[1]), CHUNK)
    block = np.random.default_rng(0).standard_normal(CHUNK)

    def read_all() -> None:
        for k in range(n_chunks):
            chunks.read((k, 0), block)

    start = time.perf_counter()
    for k in range(n_chunks):
        chunks.write((k, 0), block)
    written = time.perf_counter() - start
    warm = min(_timed(read_all), _timed(read_all))
    total = n_chunks * block.nbytes
    measured = {"write_bytes": total / written, "read_bytes": total / warm}
    if not all(_forget(path) for path in Path(chunks.url).iterdir()):
        return measured  # the default of the disk's own rate is then used
    cold = _timed(read_all)
    # A disk would have made it longer: the host of a virtual machine, or a file server, still had the file in memory.
    return measured if cold < FROM_A_DISK * warm else measured | {"cold_read_bytes": total / cold}


def _forget(path: Path) -> bool:
    """Write a file to the disk and drop it from the system's cache; False if the system cannot do so."""
    if not hasattr(os, "posix_fadvise"):  # macOS
        return False
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
    return True


def best_seconds(function: Callable[[], None], seconds: float) -> float:
    """Median time of the faster half of the calls that fit in a time: at least three, unless fewer take thrice as long.

    The first of several calls is often the slowest: a call that takes longer than `seconds` is still repeated.
    """
    times: list[float] = []
    while sum(times) < seconds or (len(times) < 3 and sum(times) < 3 * seconds):
        times.append(_timed(function, time.thread_time))  # other programs do not count
    return float(np.median(sorted(times)[: max(1, len(times) // 2)]))


def _timed(function: Callable[[], None], clock: Callable[[], float] = time.perf_counter) -> float:
    start = clock()
    function()
    return clock() - start
