"""Measurements of one process: cores and stores by short loops over dkrr's own operations, and kernels on small blocks.

Rates are those of the fastest half of the repetitions, so that interruptions by other programs do not count.

A kernel is measured before the plan of a fit that is not tiny. Of a user's function nothing is known before it has run:
it may hold one array as large as its result, or one that is as many times larger as there are columns.
"""

import os
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from dkrr import blas
from dkrr.cluster.process import usable_threads
from dkrr.config import setting
from dkrr.data import Rows
from dkrr.errors import DkrrError
from dkrr.kernels import CallableKernel, Kernel
from dkrr.kernels.columns import Columns, Compound
from dkrr.kernels.custom import FunctionCost
from dkrr.limits import peak_resident_bytes, release_free_memory, reset_peak
from dkrr.linalg.gram_products import Precision
from dkrr.linalg.sources import cut_tile
from dkrr.planning.facts import EntrySeconds
from dkrr.planning.problem import Problem
from dkrr.store import ChunkedArray

SIDE, PANEL = 1024, 512
"""Rows of a tile and columns of its panels, which are multiplied."""
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

MIN_ROWS = 256
"""Training rows below which a fit calls a function on blocks that are hardly larger than those of a measurement."""
FIRST_ROWS = 16
"""Rows of the first block, on which a function may import and compile what it needs."""
MAX_ROWS = 512
"""Rows of the largest block: its temporaries are hundreds of times smaller than those of a fit may be."""
MAX_FUNCTION_SECONDS = 0.1
"""Time of a block from which no larger one is tried."""
MAX_FUNCTION_BYTES = 256 * 2**20
"""Peak memory of a block, likewise."""
MAX_SAMPLE_BYTES = 16 * 2**20
"""Bytes of the rows that kernels are measured with."""
GRAM_SECONDS = 0.05
"""Nominal time of a Gram matrix from which its kernel is measured, in 20 to 90 ms."""
MAX_KERNEL_SECONDS = 2e-3
"""Time of a block of a kernel from which no larger one is tried."""
LEAST_GROWTH = 3.0
"""Time of a block over that of one with a sixteenth of its entries, from which on the entries have most of it."""
MAX_KNOWN = 256
"""Kernels whose measurement is kept for the next plan."""

T = TypeVar("T")
Measured = dict[str, float]


def on_threads(n_threads: int, function: Callable[[], T]) -> list[T]:
    """Results of a function on `n_threads` threads at the same time, each with one thread of BLAS."""
    with blas.one_thread(), ThreadPoolExecutor(n_threads) as pool:
        return [f.result() for f in [pool.submit(function) for _ in range(n_threads)]]


# Cores and stores


def measure_cores(seconds: float = QUICK_SECONDS) -> Measured:
    """Task: what most plans depend on, on one thread, in about ten times `seconds`; by fields of Rates.

    All threads or workers are at it at the same time, since they share memory, caches and clock.
    """
    with blas.one_thread():
        return measure_blas(seconds) | measure_memory(seconds)


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
        for r, c, strip in cut_tile(tile, rows, columns):
            across = slice(c.start - columns.start, c.stop - columns.start)
            blas.gemm(left[r], strip, right[across], beta=1.0)
            blas.gemm(right[across], strip, left[r], transpose_a=True)

    return {"memory_bytes": tile.nbytes / best_seconds(multiply, seconds)}


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


# Kernels

_known: dict[Any, Any] = {}
"""Measurements by kernel or function, and width and size of the rows; None: it failed."""
_measuring = threading.RLock()
"""Fits in other threads wait: two measurements would share the cores and count each other's memory."""


def with_measured_kernel(problem: Problem, rows: Rows | None) -> Problem:
    """The problem with what its kernel takes; unchanged where that is known, decides nothing or cannot be measured.

    Rows of a Dask array are not computed for it, and a kernel that fails is left to the fit, which says why. Without
    rows in memory kernels of numbers are measured on random ones.
    """
    if problem.kernel.is_precomputed:
        return problem
    has_new = any(k.cost is None for k in problem.kernel.functions) and problem.n >= MIN_ROWS
    nominal = problem.n**2 / 2 * problem.kernel.nominal_seconds(problem.d)
    is_large = problem.facts.entry_seconds is None and nominal > GRAM_SECONDS and setting("quick-measurement")
    block = _rows_to_measure(problem, rows) if has_new or is_large else None
    if block is None:
        return problem
    half = block.shape[0] // 2
    X, Y = block[:half], block[half:]
    if has_new:
        kernel = _with_costs(problem.kernel, X, Y)
        problem = problem if kernel is problem.kernel else replace(problem, kernel=kernel)
    if is_large:
        seconds = _remembered(problem.kernel, X, entry_seconds, problem.kernel, X, Y)
        problem = problem.measured(entry_seconds=seconds)
    return problem


def _rows_to_measure(problem: Problem, rows: Rows | None) -> Any:
    """Twice MAX_ROWS rows, or what has MAX_SAMPLE_BYTES; None where there are none of their kind."""
    n = min(2 * MAX_ROWS, problem.n, max(2 * FIRST_ROWS, MAX_SAMPLE_BYTES // problem.bytes_of_row))
    takes_numbers = not problem.is_sparse and not problem.kernel.functions
    # Of dense rows in a file those in memory would be no different, and may only be read with many others.
    if rows is not None and not rows.is_computed and (rows.is_in_memory or not takes_numbers):
        return rows.read(0, n)
    if not takes_numbers or n * problem.bytes_of_row > MAX_SAMPLE_BYTES:  # of rows that wide none are made up
        return None
    return np.random.default_rng(0).random((n, problem.d))


def _remembered(key: Any, X: Any, measure: Callable[..., T | None], *arguments: Any) -> T | None:
    """Result of a measurement with rows like X, of now or of an earlier plan."""
    key = (key, X.shape, str(X.dtype), 0 if isinstance(X, np.ndarray) else X.nnz)
    with _measuring:
        if key not in _known:
            if len(_known) >= MAX_KNOWN:
                _known.clear()
            _known[key] = measure(*arguments)
        found: T | None = _known[key]
    return found


def entry_seconds(kernel: Kernel, X: Any, Y: Any) -> EntrySeconds | None:
    """Time of an entry of a kernel of some encoded rows, while all cores do the same; None if it fails."""
    threads = usable_threads()

    def seconds(precision: Precision) -> float:
        return float(np.median(on_threads(threads, partial(_each_seconds, kernel, X, Y, precision))))

    try:
        return EntrySeconds(seconds("float64"), seconds("float32"))
    except (DkrrError, MemoryError):
        return None


def _each_seconds(kernel: Kernel, X: Any, Y: Any, precision: Precision) -> float:
    """Time of an entry in one thread, in blocks that grow until one takes long, and far longer than the one before.

    One call with sparse rows may take long, whatever its number of entries.
    """
    most, side, before = min(MAX_ROWS, X.shape[0], Y.shape[0]), 1, inf

    def form(out: Any) -> None:
        kernel(X[: len(out)], Y[: len(out)], out=out)

    while True:
        side = min(side, most)
        once = partial(form, np.empty((side, side), precision))
        # The first call may import, or get memory from the system.
        seconds = min(_timed(once, time.thread_time) for _ in range(2))
        if side >= most or (seconds > MAX_KERNEL_SECONDS and seconds > LEAST_GROWTH * before):
            return best_seconds(once, 2 * MAX_KERNEL_SECONDS) / float(side**2)
        side, before = 4 * side, seconds


def _with_costs(kernel: Kernel, X: Any, Y: Any) -> Kernel:
    """The kernel with the costs of its functions for some encoded rows."""
    if isinstance(kernel, CallableKernel):
        cost = _remembered((kernel.digest(), kernel.takes_objects), X, measure, kernel.values, X, Y)
        return kernel if cost is None else replace(kernel, cost=cost)
    if isinstance(kernel, Columns):
        return kernel.with_parts([_with_costs(kernel.base, kernel.cut(X), kernel.cut(Y))])
    if isinstance(kernel, Compound):
        return kernel.with_parts([_with_costs(part, X, Y) for part in kernel.parts])
    return kernel


def measure(function: Callable[[Any, Any], Any], X: Any, Y: Any) -> FunctionCost | None:
    """Time and memory of a function of two blocks of rows; None if it fails.

    Blocks double until one takes long. The memory of two, P = a m² + 2 b m, separates what grows with the entries from
    what grows with the rows. The process may grow by more than a call needs at once, since what it frees need not fit
    what comes next: of the smaller blocks the one counts by which a is largest.
    """
    most, side = min(MAX_ROWS, X.shape[0], Y.shape[0]), min(FIRST_ROWS, X.shape[0], Y.shape[0])
    smaller = list[tuple[int, int]]()
    try:
        with blas.one_thread():
            function(X[:side], Y[:side])
            while True:
                peak = min(_peak_bytes(function, X[:side], Y[:side]) for _ in range(2))
                begun = time.perf_counter()
                function(X[:side], Y[:side])
                seconds = time.perf_counter() - begun
                if side >= most or seconds > MAX_FUNCTION_SECONDS or peak > MAX_FUNCTION_BYTES:
                    break
                smaller.append((side, peak))
                side = min(2 * side, most)
    except (DkrrError, MemoryError):
        return None
    found = [(peak / side - less / m) / (side - m) for m, less in smaller[-2:]]
    per_entry = max([8.0, *(found or [peak / side**2])])  # the result takes 8
    per_row = max(0.0, (peak - per_entry * side**2) / (2 * side))
    return FunctionCost(seconds / side**2, per_entry, per_row, side)


def _peak_bytes(function: Callable[[Any, Any], Any], X: Any, Y: Any) -> int:
    """What the process grows by during one call; at least the result and one temporary array as large.

    tracemalloc would count small blocks, too, but before Python 3.12.9 starting and stopping it ends the process if
    another thread allocates memory at that moment (https://github.com/python/cpython/issues/128679).
    """
    release_free_memory()  # what the call takes of it would not be seen
    reset_peak()
    before = peak_resident_bytes()  # where it cannot be reset, of the whole process
    result = function(X, Y)
    return max(peak_resident_bytes() - before, 2 * int(result.nbytes))
