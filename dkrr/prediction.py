"""Predictions a block of rows at a time, so that memory does not depend on how many rows are asked for."""

import math
import os
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from threading import Lock
from typing import Any

import dask.array as da
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dkrr import blas
from dkrr.errors import InputError, NotFiniteError
from dkrr.linalg.sources import fill_gram
from dkrr.machine.detection import usable_threads
from dkrr.model import FittedFunction
from dkrr.rows import DaskRows, MemoryRows, Rows, ZarrRows
from dkrr.rows.checks import check_finite
from dkrr.rows.dask_arrays import row_major
from dkrr.rows.sources import dense

BLOCK_ROWS = 1024
"""Rows that are predicted together."""
BLOCK_TRAINING_ROWS = 4096
"""Training rows whose kernel with them is in memory at once (32 MiB with BLOCK_ROWS)."""
PARALLEL_ABOVE = 4e6
"""Kernel entries from which on several threads share the work."""
BLOCK_BYTES = 16 * 2**20
"""Most memory of the rows of a block, of their features, of their predictions, and of training rows that are read."""
LAZY_BLOCK_BYTES = 16 * 2**20
"""Size of the blocks of a lazy prediction: of their rows, and of what is predicted."""


def predict(model: FittedFunction, rows: Rows) -> Any:
    """Predict all rows.

    Parameters
    ----------
    model : FittedFunction
    rows : Rows
        Of shape (n, d).

    Returns
    -------
    ndarray of shape (n, t), or a lazy Dask array of that shape where the rows are lazy (Dask) or stored (Zarr)

    Raises
    ------
    InputError
        If the number of columns is not that of the training rows.
    """
    if rows.shape[1] != model.n_features:
        raise InputError(
            f"X has {rows.shape[1]} features, but the model was fitted with {model.n_features} features as input"
        )
    if isinstance(rows, MemoryRows):
        return predict_in_memory(model, rows)
    return _lazy(model, rows)


def predict_in_memory(model: FittedFunction, rows: Rows, first: int = 0) -> NDArray[np.float64]:
    """Predictions of rows as one array, of shape (n, t).

    Parameters
    ----------
    model : FittedFunction
    rows : Rows
    first : int
        Number of the first of these rows where they are a part of others, for messages.
    """
    n = rows.shape[0]
    out = np.empty((n, model.n_targets))
    height = block_rows(model, rows)
    starts = range(0, n, height)

    def block(start: int) -> None:
        stop = min(start + height, n)
        x = rows.read(start, stop)
        check_finite(x, "X", first + start)
        out[start:stop] = predict_block(model, x, first + start)
        _check_predictions(out[start:stop], first + start)

    size = 0 if model.rows is None else n * model.rows.shape[0]
    share = usable_threads()
    wanted = 1 if model.coef is not None or size < PARALLEL_ABOVE else min(len(starts), share)
    with _threads_in_use(os.getpid()).take(wanted, share) as threads:
        if threads == 1:
            width = rows.shape[1] + model.n_targets
            with blas.one_thread(share == 1 or 2.0 * width * max(size, n) < blas.SMALL_FLOPS):
                for start in starts:
                    block(start)
        else:
            # Half of a kernel's time is elementwise work, which BLAS threads would not share.
            with blas.one_thread(), ThreadPoolExecutor(threads) as pool:
                list(pool.map(block, starts))
    return out


class _ThreadsInUse:
    """Threads of this process that predict: Dask's may all do so at once, and each would start more of its own.

    Nobody waits: a kernel or feature map of the user's may itself predict, in a thread that is counted already.
    """

    def __init__(self) -> None:
        self._lock, self._n = Lock(), 0

    @contextmanager
    def take(self, wanted: int, most: int) -> Iterator[int]:
        """Give as many threads as are wanted and free, and at least the calling one.

        Parameters
        ----------
        wanted : int
        most : int
            Threads that may predict at once.
        """
        with self._lock:
            given = max(1, min(wanted, most - self._n))
            self._n += given
        try:
            yield given
        finally:
            with self._lock:
                self._n -= given


@lru_cache(maxsize=1)
def _threads_in_use(process: int) -> _ThreadsInUse:  # noqa: ARG001
    """Count of a process: a fork has none of its parent's threads."""
    return _ThreadsInUse()


def _check_predictions(out: NDArray[np.float64], first: int) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        # A sum is finite unless one of the values is not, or it overflows, which the second look sorts out.
        if math.isfinite(out.sum()):
            return
    bad = ~np.isfinite(out).all(axis=1)
    if bad.any():
        raise NotFiniteError(
            "a prediction is infinite or NaN: k(x, z), features or their sum leave the range of float64 (1e308); "
            "expected finite numbers: look for outliers in X",
            first + int(np.argmax(bad)),
        )


def block_rows(model: FittedFunction, rows: Rows) -> int:
    """Rows that are predicted together: fewer where they, their features or their predictions are wide."""
    widths = [rows.heavy_row_bytes, 8 * model.n_targets]
    if model.feature_map is not None and not (rows.is_sparse and model.feature_map.keeps_sparse):
        widths.append(8 * model.feature_map.dimension(model.n_features))
    return max(1, min(BLOCK_ROWS, BLOCK_BYTES // max(widths)))


def predict_block(model: FittedFunction, x: Any, first: int = 0) -> NDArray[np.float64]:
    """Predictions of one block of rows.

    Parameters
    ----------
    model : FittedFunction
    x : ndarray or CSR array of shape (m, d)
    first : int
        Number of its first row, for the message of a kernel function that fails.

    Returns
    -------
    ndarray of shape (m, t)
    """
    m = x.shape[0]
    if model.coef is not None and model.feature_map is not None:
        if sp.issparse(x) and model.feature_map.keeps_sparse:
            return np.asarray(model.feature_map.multiply(x, model.coef) + model.intercept)
        return blas.product(model.feature_map.transform(x), model.coef) + model.intercept
    assert model.dual_coef is not None
    if model.kernel.is_precomputed:
        return blas.product(dense(x), model.dual_coef) + model.intercept
    assert model.rows is not None
    out = np.tile(model.intercept, (m, 1))
    n = model.rows.shape[0]
    height = min(n, BLOCK_TRAINING_ROWS)
    if model.rows.is_sparse or not model.rows.is_in_memory:
        height = max(1, min(height, BLOCK_BYTES // model.rows.heavy_row_bytes))
    gram = np.empty((m, height))
    for start in range(0, n, height):
        stop = min(start + height, n)
        part = gram[:, : stop - start]
        fill_gram(model.kernel, x, model.rows.read(start, stop), part, origin=(first, start))
        blas.gemm(out, part, model.dual_coef[start:stop], beta=1.0)
    return out


def _lazy(model: FittedFunction, rows: Rows) -> Any:
    height = max(1, min(LAZY_BLOCK_BYTES // (8 * max(rows.shape[1], model.n_targets)), 16384))
    if isinstance(rows, DaskRows):
        # Blocks keep their rows unless they are too tall; they must have all columns.
        x = rows.array.rechunk({1: -1})
        if max(x.chunks[0]) > height:
            x = x.rechunk({0: height})
    elif isinstance(rows, ZarrRows):
        heights = tuple(min(height, rows.shape[0] - k) for k in range(0, rows.shape[0], height))
        x = da.map_blocks(
            _read_block,
            rows,
            height,
            chunks=(heights, (rows.shape[1],)),
            dtype=rows.dtype,
            meta=np.empty((0, 0), rows.dtype),
        )
    else:
        return predict_in_memory(model, rows)
    starts = np.concatenate([[0], np.cumsum(x.chunks[0])[:-1]])
    lazy = da.map_blocks(
        _predict_part,
        x,
        # Its temporary folder stays here: the array below owns it too.
        model=replace(model, keep_alive=None),
        starts=starts,
        chunks=(x.chunks[0], (model.n_targets,)),
        dtype=np.float64,
        meta=np.empty((0, 0)),
    )
    if model.keep_alive is not None:
        weakref.finalize(lazy, _let_go, model.keep_alive)
    return lazy


def _let_go(owner: Any) -> None:
    """Hold the owner of a temporary folder for as long as an array that reads it."""


def _read_block(rows: Rows, height: int, block_info: Any = None) -> Any:
    start = block_info[None]["chunk-location"][0] * height
    return rows.read(start, min(start + height, rows.shape[0]))


def _predict_part(x: Any, model: FittedFunction, starts: Any, block_info: Any = None) -> NDArray[np.float64]:
    first = int(starts[block_info[0]["chunk-location"][0]])
    return predict_in_memory(model, MemoryRows(row_major(x)), first)
