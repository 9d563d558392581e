"""Predictions one block of rows at a time, so that memory does not depend on the number of rows."""

import math
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import lru_cache, partial
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkrr import blas
from dkrr.cluster.process import confinement, usable_threads
from dkrr.config import setting
from dkrr.data import DaskRows, MemoryRows, Rows, refuse_changed
from dkrr.data.dask_rows import PartitionRows, row_major
from dkrr.data.rows import check_finite
from dkrr.data.table import FrameRows
from dkrr.data.transformers import TransformedRows, transformed_block
from dkrr.data.watched import FEW
from dkrr.errors import InputError, NotFiniteError
from dkrr.fitting.fitted_function import FittedFunction
from dkrr.kernels.device import n_leaves, refusal
from dkrr.linalg.cross_gram_products import CrossGram, in_threads
from dkrr.linalg.device_products import DeviceExecutor
from dkrr.machine.calibration import LONG_SECONDS
from dkrr.machine.gpu import OpenedGpu, found_gpu, has_cupy, is_fork_of_opened, known_gpu, open_gpu
from dkrr.text import plural

Advance = Callable[[float], None]
"""Is told which fraction of the work was done since the last call."""

MIN_PARALLEL_ENTRIES = 4e6
"""Kernel entries from which several threads share the work."""
ALONE_ENTRIES, ALONE_FLOPS = 2**13, 2.0**19
"""Entries of K, and operations, up to which BLAS uses one thread without a limit (OpenBLAS: for fewer than 9,216
entries of a matrix times a vector, and 2**18 multiplications in a product of matrices)."""
GPU_ROWS = 8192
"""Training rows of a block on a GPU."""
GPU_RANGE_BYTES = 32 * 2**20
"""Most bytes of them."""
MIN_GPU_ENTRIES = 1e7
"""Entries of K(x, X) below which no GPU is thought of."""
LEAST_BYTES = 2**30
"""Free memory of a GPU with which predictions use it without being told to: rows, and some blocks of 64 MiB."""
LAZY_BLOCK_BYTES = 16 * 2**20
"""Bound for the rows and for the predictions of a block of a lazy prediction."""


def predict(model: FittedFunction, rows: Rows, advance: Advance | None = None) -> Any:
    """Predictions of shape (n, t): an ndarray, or a lazy Dask array if the rows are.

    `advance` is told which fraction of those in this process each block was.
    """
    check_rows(model, rows)
    if not is_in_blocks(rows):
        if isinstance(rows, TransformedRows):
            return at_once(rows, partial(predict_in_memory, model), advance)
        return predict_together((model,), rows, 0, check_predictions, advance)[0]
    # Tasks do not carry the owner of a temporary folder, which does not leave the process.
    lazy = by_blocks(rows, model.n_targets, partial(predict_in_memory, replace(model, keep_alive=None)))
    if model.keep_alive is not None:
        weakref.finalize(lazy, _release, model.keep_alive)  # holds the owner as long as the array, which reads it
    return lazy


def check_rows(model: FittedFunction, rows: Rows) -> None:
    """Refuse rows of another width than those of the fit, and training rows that were changed; raises InputError."""
    if rows.shape[1] != model.n_features:
        raise InputError(
            f"X has {plural(rows.shape[1], 'feature')}, but the model was fitted with "
            f"{plural(model.n_features, 'feature')} as input"
        )
    if model.rows is not None:
        refuse_changed(model.rows, FEW)


def at_once(
    rows: Rows, compute: Callable[..., NDArray[np.float64]], advance: Advance | None = None
) -> NDArray[np.float64]:
    """Apply `compute` to all rows at once, or block by block after a transformer: rows that are not `is_in_blocks`.

    `compute` is given `advance`, if there is one, which is told the fraction of all rows that is done.
    """
    if not isinstance(rows, TransformedRows):
        return compute(rows, 0) if advance is None else compute(rows, 0, advance=advance)
    found, n = [], rows.shape[0]
    for where, block in rows.blocks(0, n, rows.block_rows):
        found.append(compute(MemoryRows(block), where.start))
        if advance is not None:
            advance((where.stop - where.start) / n)
    return np.concatenate(found)


def predict_in_memory(
    model: FittedFunction, rows: Rows, first: int = 0, advance: Advance | None = None
) -> NDArray[np.float64]:
    """Predictions of rows as one array, of shape (n, t); `first` is the number of the first row, for messages."""
    return predict_together((model,), rows, first, check_predictions, advance)[0]


Check = Callable[[NDArray[np.float64], int], None]
"""Refuses predictions of some rows, of which the first one has a number."""


def predict_together(
    models: Sequence[FittedFunction], rows: Rows, first: int, check: Check, advance: Advance | None = None
) -> list[NDArray[np.float64]]:
    """Predictions by models with `shares_values`, from one evaluation of the kernel or the features.

    Parameters
    ----------
    models : sequence of FittedFunction
        The training rows of the first one are read.
    rows : Rows
    first : int
        Number of the first row, for messages.
    check : callable
    advance : callable, optional
        Is told the fraction of the rows that is done.

    Returns
    -------
    list of ndarray of shape (n, t)
        One for each model: the bits are those of the model alone.
    """
    n, model, others = rows.shape[0], models[0], models[1:]
    outs, height = list[NDArray[np.float64]](), max(1, n)
    for one in models:
        outs.append(np.empty((n, len(one.intercept))))
        height = min(height, one.block_rows(rows))
    starts = range(0, n, height)

    def block(start: int) -> None:
        x = rows.read(start, min(start + height, n))
        check_finite(x, "X", first + start)
        for out, found in zip(outs, model.predict_block(x, first + start, others, cross), strict=True):
            out[start : start + height] = found
            check(found, first + start)

    size = 0 if model.rows is None else n * model.rows.shape[0]
    flops = 2.0 * (rows.shape[1] + len(model.intercept)) * max(size, n)  # of the first: others do not change its bits
    threads: AbstractContextManager[int] = nullcontext(1)
    if not 0 < size <= ALONE_ENTRIES or flops > ALONE_FLOPS:
        is_transform = model.feature_map is not None and model.feature_map.is_transform
        is_parallel = is_transform or (model.coef is None and size >= MIN_PARALLEL_ENTRIES)
        threads = _some_threads(len(starts) if is_parallel else 1, flops)
    with _on_gpu(model, n) as cross, threads as n_threads:
        for start in in_threads(block, starts, 1 if cross is not None else n_threads):
            if advance is not None:
                advance(min(height, n - start) / n)
    return outs


@contextmanager
def _on_gpu(model: FittedFunction, n: int) -> Iterator[CrossGram | None]:
    """K(x, X) on the GPU of this process, for predictions of n rows; None: here."""
    opened = gpu_for(model, n)
    if opened is None:
        yield None
        return
    assert model.rows is not None
    with opened.lock:  # two predictions at a time would need twice its memory
        room, height = opened.now.free_bytes // 2, GPU_RANGE_BYTES // (8 * model.n_features)
        with DeviceExecutor(opened.device, max(1, min(GPU_ROWS, height)), room) as executor:
            yield executor.cross_gram(model.kernel, model.rows, may_fall_back=model.device == "auto")


def gpu_for(model: FittedFunction, n: int) -> OpenedGpu | None:
    """GPU for the products of K(x, X) of n rows x by a model; None where they are computed here.

    Raises
    ------
    InputError
        If a GPU was requested, and there is none.
    """
    rows = model.rows
    if model.coef is not None or rows is None or (model.device == "auto" and n * rows.shape[0] < MIN_GPU_ENTRIES):
        return None
    device = setting("device") if model.device == "auto" else model.device
    (n_training, d), kernel = rows.shape, model.kernel.resolved(rows.shape[1])
    if device == "cpu" or rows.is_sparse or refusal(kernel):
        return None
    if device == "cuda" and not is_fork_of_opened():
        return open_gpu()
    entries = float(n) * n_training
    here, gpu = entries * kernel.nominal_seconds(d) / usable_threads(), known_gpu()
    if gpu is None and here >= LONG_SECONDS and has_cupy() and confinement() is None:
        found = found_gpu()
        gpu = None if isinstance(found, str) else found
    leaves = n_leaves(kernel)
    if gpu is None or gpu.free_bytes < LEAST_BYTES:
        return None
    there = gpu.upload_seconds(n_training, d) + entries * gpu.entry_seconds("float64", d, 1, leaves)
    return open_gpu() if there < here else None


@contextmanager
def _some_threads(wanted: int, flops: float) -> Iterator[int]:
    """Number of threads that may share the work; BLAS uses one for a single thread with little work."""
    share = usable_threads()
    with (
        _threads_in_use(os.getpid()).reserve(min(wanted, share), share) as threads,
        blas.one_thread(threads == 1 and (share == 1 or flops < blas.SMALL_FLOPS)),
    ):
        yield threads


class _ThreadsInUse:
    """Number of threads that predict in this process: all of Dask's may do so at once, and each would start more.

    A caller never waits: a user's kernel or feature map may itself predict, in a thread that is already counted.
    """

    def __init__(self) -> None:
        self._lock, self._n = Lock(), 0

    @contextmanager
    def reserve(self, wanted: int, limit: int) -> Iterator[int]:
        """Reserve up to `wanted` threads, of at most `limit` at once, and at least the calling one."""
        with self._lock:
            given = max(1, min(wanted, limit - self._n))
            self._n += given
        try:
            yield given
        finally:
            with self._lock:
                self._n -= given


@lru_cache(maxsize=1)
def _threads_in_use(process: int) -> _ThreadsInUse:  # noqa: ARG001
    """Count of a process: a fork starts with 0, since it does not have its parent's threads."""
    return _ThreadsInUse()


def check_predictions(out: NDArray[np.float64], first: int) -> None:
    """Refuse predictions that are infinite or NaN, of shape (m, t), with the number of the first row.

    Raises
    ------
    NotFiniteError
        Naming the row.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        # A quick test: the sum is finite, unless a value is not or the sum itself overflows.
        if math.isfinite(out.sum()):
            return
    bad = ~np.isfinite(out).all(axis=1)
    if bad.any():
        raise NotFiniteError(
            "a prediction is infinite or NaN: k(x, z), features or their sum exceed the range of float64 (1e308); "
            "expected finite numbers: look for outliers in X",
            first + int(np.argmax(bad)),
        )


def refuse_nan(found: NDArray[np.float64], first: int = 0) -> None:
    """Refuse NaN in what models that leave out rows give, of shape (m, ...): someone has changed the saved model.

    Raises
    ------
    NotFiniteError
        Naming the first row, of which the first one has the number `first`.
    """
    is_bad = np.isnan(found).any(axis=tuple(range(1, found.ndim)))
    if is_bad.any():
        raise NotFiniteError(
            "the prediction by a model without some of the rows is NaN: rows or factor of the model are not finite. "
            "Fit it again",
            first + int(np.argmax(is_bad)),
        )


def is_in_blocks(rows: Rows) -> bool:
    """Whether predictions of rows are a lazy array, made by `by_blocks`: rows of Dask, or in files."""
    if isinstance(rows, TransformedRows) and not isinstance(rows.inputs, FrameRows):
        rows = rows.inputs
    return rows.is_lazy or isinstance(rows, PartitionRows | DaskRows)


def by_blocks(rows: Rows, width: int, compute: Callable[[Rows, int], NDArray[np.float64]]) -> Any:
    """Lazy Dask array of what is computed of blocks of rows.

    Parameters
    ----------
    rows : Rows
        Rows that are `is_in_blocks`.
    width : int
        Numbers of one row.
    compute : callable
        Computes an array of shape (m, width) from rows in memory and the number of the first row.
    """
    widest, transformer = max(rows.shape[1], width), None
    if isinstance(rows, TransformedRows) and not isinstance(rows.inputs, FrameRows):
        transformer, rows = rows.transformer, rows.inputs
    height = max(1, min(LAZY_BLOCK_BYTES // (8 * max(rows.shape[1], widest)), 16384))
    if isinstance(rows, PartitionRows):
        x = rows.array
    elif isinstance(rows, DaskRows):
        # Blocks must have all columns; their rows are divided only if they are too many.
        x = rows.array.rechunk({1: -1})
        if max(x.chunks[0]) > height:
            x = x.rechunk({0: height})
    else:
        import dask.array as da  # it imports what it finds (xarray, sparse), which rows in memory need not wait for

        edges = rows.task_edges(height)
        x = da.map_blocks(
            _read_block,
            rows,
            edges,
            chunks=(tuple(np.diff(edges).tolist()), (rows.shape[1],)),
            dtype=rows.dtype,
            meta=np.empty((0, 0), rows.dtype),
        )
    starts = np.concatenate([[0], np.cumsum(x.chunks[0])[:-1]])
    return x.map_blocks(
        _compute_part,
        compute=compute,
        transformer=transformer,
        starts=starts,
        chunks=(x.chunks[0], (width,)),
        dtype=np.float64,
        meta=np.empty((0, 0)),
    )


def _release(owner: Any) -> None:
    """Drop the reference to the owner of a temporary folder."""


def _read_block(rows: Rows, edges: list[int], block_info: Any = None) -> Any:
    k = block_info[None]["chunk-location"][0]
    return rows.read(edges[k], edges[k + 1])


def _compute_part(
    x: Any,
    compute: Callable[[Rows, int], NDArray[np.float64]],
    transformer: Any,
    starts: Any,
    block_info: Any = None,
) -> NDArray[np.float64]:
    first = int(starts[block_info[0]["chunk-location"][0]])
    x = x if hasattr(x, "iloc") else row_major(x)
    return compute(MemoryRows(x if transformer is None else transformed_block(transformer, x, first)), first)
