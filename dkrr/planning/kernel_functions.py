"""What users' kernel functions need, measured on a few small blocks of rows before the plan.

Nothing is known of a function before it has run: it may hold one array as large as its result, or one that is as many
times larger as there are columns.
"""

import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from dkrr import blas
from dkrr.cluster.tasks import peak_resident_bytes, reset_peak
from dkrr.data import Rows
from dkrr.errors import DkrrError
from dkrr.kernels import CallableKernel, Kernel
from dkrr.kernels.columns import Columns, Compound
from dkrr.kernels.custom import FunctionCost
from dkrr.planning.detection import resident_bytes
from dkrr.planning.problem import Problem

MIN_ROWS = 256
"""Training rows below which a fit calls a function on blocks that are hardly larger than those of a measurement."""
FIRST_ROWS = 16
"""Rows of the first block, on which a function may import and compile what it needs."""
MAX_ROWS = 512
"""Rows of the largest block: its temporaries are hundreds of times smaller than those of a fit may be."""
MAX_SECONDS = 0.1
"""Time of a block from which no larger one is tried."""
MAX_BYTES = 256 * 2**20
"""Peak memory of a block, likewise."""
MAX_KNOWN = 256
"""Functions whose measurement is kept for the next plan."""

_known: dict[tuple[Any, ...], FunctionCost | None] = {}
"""Measurements by function, and width and size of the rows; None: the function failed."""


def with_measured_functions(problem: Problem, rows: Rows) -> Problem:
    """The problem with the costs of the functions that its kernel calls; unchanged where they cannot be measured.

    Rows of a Dask array are not computed for it, and a function that fails is left to the fit, which says why.
    """
    if problem.n < MIN_ROWS or not any(k.cost is None for k in problem.kernel.functions) or rows.is_computed:
        return problem
    middle = min(MAX_ROWS, problem.n // 2)
    block = rows.read(0, 2 * middle)
    kernel = _measured(problem.kernel, block[:middle], block[middle:])
    return problem if kernel is problem.kernel else replace(problem, kernel=kernel)


def _measured(kernel: Kernel, X: Any, Y: Any) -> Kernel:
    """The kernel with the costs of its functions for some encoded rows."""
    if isinstance(kernel, CallableKernel):
        key = (kernel.digest, kernel.takes_objects, X.shape, str(X.dtype), 0 if isinstance(X, np.ndarray) else X.nnz)
        if key not in _known:
            if len(_known) >= MAX_KNOWN:
                _known.clear()
            _known[key] = measure(kernel.values, X, Y)
        cost = _known[key]
        return kernel if cost is None else replace(kernel, cost=cost)
    if isinstance(kernel, Columns):
        return kernel.with_parts([_measured(kernel.base, kernel.cut(X), kernel.cut(Y))])
    if isinstance(kernel, Compound):
        return kernel.with_parts([_measured(part, X, Y) for part in kernel.parts])
    return kernel


def measure(function: Callable[[Any, Any], Any], X: Any, Y: Any) -> FunctionCost | None:
    """Time and memory of a function of two blocks of rows; None if it fails.

    Blocks double until one takes long. The memory of the last two, P = a m² + 2 b m, separates what grows with the
    entries from what grows with the rows.
    """
    most, side = min(MAX_ROWS, X.shape[0], Y.shape[0]), min(FIRST_ROWS, X.shape[0], Y.shape[0])
    try:
        with blas.one_thread():
            function(X[:side], Y[:side])
            while True:
                begun = time.perf_counter()
                function(X[:side], Y[:side])
                seconds = time.perf_counter() - begun
                peak = _peak_bytes(function, X[:side], Y[:side])
                if side >= most or seconds > MAX_SECONDS or peak > MAX_BYTES:
                    break
                side, before = min(2 * side, most), (side, peak)
    except (DkrrError, MemoryError):
        return None
    small, less = before if side > FIRST_ROWS else (side, peak)
    per_entry = (peak / side - less / small) / (side - small) if side > small else peak / side**2
    per_entry = max(per_entry, 8.0)  # the result
    per_row = max(0.0, (peak - per_entry * side**2) / (2 * side))
    return FunctionCost(seconds / side**2, per_entry, per_row, side)


def _peak_bytes(function: Callable[[Any, Any], Any], X: Any, Y: Any) -> int:
    """Most memory of one call: what Python and NumPy allocate, or what the process grows by if that is more."""
    is_traced = tracemalloc.is_tracing()  # by the user, whose peak must stay
    if not is_traced:
        tracemalloc.start()
    try:
        reset_peak()
        held = resident_bytes()
        result = function(X, Y)
        grown = peak_resident_bytes() - held
        traced = 0 if is_traced else tracemalloc.get_traced_memory()[1]
    finally:
        if not is_traced:
            tracemalloc.stop()
    return max(grown, traced, int(result.nbytes))
