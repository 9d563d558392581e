"""The Gram matrix as a lazy Dask array."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
from numpy.typing import DTypeLike

from dkrr.checks import checked_whole, location, shown
from dkrr.cluster import Executor, Progress, SerialExecutor, Task
from dkrr.cluster.process import ambient_client, graceful_termination
from dkrr.data import DaskRows, MemoryRows, Rows, as_rows, in_memory
from dkrr.data.rows import Checksums, check_finite
from dkrr.errors import InputError
from dkrr.fitting.context import Context, check_store_is_shared, dask_executor
from dkrr.fitting.requests import checked_kernel
from dkrr.fitting.storage import StoredArrays
from dkrr.kernels import Kernel
from dkrr.kernels.names import warn_of_unused
from dkrr.linalg.sources import GramTiles, fill_gram, store_tiles
from dkrr.store import RunStore, TiledMatrix, TileGrid
from dkrr.store.lock import owned
from dkrr.store.paths import refuse_enclosing, resolved_place
from dkrr.store.places import delete_partial, refuse_missing_folder
from dkrr.text import plural
from dkrr.typing import KernelLike, NumbersLike, RowsLike

DEFAULT_CHUNK_ROWS = 2048
"""Rows and columns of a block of 32 MiB."""


def gram(
    X: RowsLike,
    Y: RowsLike | None = None,
    *,
    kernel: KernelLike = "linear",
    chunks: int | tuple[int, int] | None = None,
    gamma: NumbersLike | None = None,
    degree: float = 3,
    coef0: float = 1,
    kernel_params: Mapping[str, Any] | None = None,
    dtype: DTypeLike = np.float64,
    store: str | Path | None = None,
) -> da.Array:
    """Gram matrix K, Kᵢⱼ = k(xᵢ, yⱼ), as a lazy Dask array that is computed block by block.

    Parameters
    ----------
    X : ndarray, scipy.sparse matrix, table, Dask array, Zarr array, or path, of shape (n, d)
        Rows xᵢ, or other objects that the kernel takes.
    Y : ndarray, scipy.sparse matrix, table, Dask array, Zarr array, or path, of shape (m, d), optional
        Rows yⱼ. None means Y = X; blocks on the diagonal are then exactly symmetric.
    kernel : str, Kernel or callable, default="linear"
        Name of a kernel as in scikit-learn, a value of dkrr.kernels, or a function of two blocks of
        rows.
    chunks : int or (int, int), optional
        Rows and columns of a block; None: 2,048.
    gamma : float or array-like of shape (d,), optional
        γ > 0 of named kernels that have it, one for all columns or one for each. None: 1 / d (1 for
        "chi2").
    degree : float, default=3
        Degree of the polynomial kernel.
    coef0 : float, default=1
        Constant of the polynomial and sigmoid kernels.
    kernel_params : dict, optional
        Keyword arguments of a kernel function, or further parameters of a named kernel.
    dtype : dtype, default=float64
        float64 or float32; with float32 the arithmetic is float32 too.
    store : str or Path, optional
        Path or URL of a Zarr store. The matrix (Y must be None) is then computed at once: the
        workers of the ambient Dask client, or this process, write its lower triangle in tiles, and
        the returned array reads them. Tiles of an earlier call are read, compared with their
        checksums, and reused. ``KernelRidge(kernel="precomputed")`` takes the path of a complete
        store as X, and reads it tile by tile.

    Returns
    -------
    dask.array.Array of shape (n, m)
        K, whose blocks are computed when they are needed; with `store` they are read.

    Raises
    ------
    InputError
        If an argument cannot be used, or X and Y have different numbers of columns.
    StoreError
        If the store belongs to another matrix or to a fit.

    See Also
    --------
    dkrr.KernelRidge : Kernel ridge regression.
    dkrr.kernels.Precomputed : X is the Gram matrix itself.

    Examples
    --------
    >>> import numpy as np, dkrr
    >>> K = dkrr.gram(np.eye(3), kernel="rbf", gamma=0.5)
    >>> K.compute().round(3)
    array([[1.   , 0.368, 0.368],
           [0.368, 1.   , 0.368],
           [0.368, 0.368, 1.   ]])
    """
    given = X
    value = checked_kernel(kernel, gamma=gamma, degree=degree, coef0=coef0, kernel_params=kernel_params)
    warn_of_unused({"kernel": kernel, "gamma": gamma, "degree": degree, "coef0": coef0}, stacklevel=2)
    if value.encodes:
        X, Y = in_memory(X), in_memory(Y)
        value = value.fitted(X)
        X, Y = value.encode(X), None if Y is None else value.encode(Y)
    left = as_rows(X, "X")
    right = left if Y is None else as_rows(Y, "Y")
    if left.shape[1] != right.shape[1]:
        raise InputError(
            f"X has {plural(left.shape[1], 'column')} and Y has {right.shape[1]}; expected the same number"
        )
    value = value.resolved(left.shape[1])
    if value.is_precomputed:
        raise InputError("kernel is 'precomputed'; expected a kernel to compute: X is the Gram matrix already")
    if store is not None:
        store = location(store, "store", "the path or URL of the matrix's store, or None", is_kept=True)
        refuse_missing_folder(store, "store")
        refuse_enclosing({"store": store}, {"X": given})
    dtype = _checked_dtype(dtype)
    expected = "whole numbers of at least 1 for rows and columns, or None"
    sizes = chunks if isinstance(chunks, tuple) and len(chunks) == 2 else (chunks, chunks)
    heights = [DEFAULT_CHUNK_ROWS if size is None else checked_whole(size, "chunks", expected) for size in sizes]
    if store is not None:
        if Y is not None or isinstance(chunks, tuple) or dtype != np.float64:
            raise InputError(
                "store is given with Y, two numbers as chunks, or dtype float32; expected Y=None, one number as chunks "
                "and float64: a store keeps a symmetric matrix"
            )
        return _stored(left, value, store, heights[0])
    cuts = tuple(
        tuple(min(h, n - k) for k in range(0, n, h))
        for n, h in zip((left.shape[0], right.shape[0]), heights, strict=True)
    )
    x = _blocks(left, cuts[0], "X")
    y = x if Y is None and cuts[0] == cuts[1] else _blocks(right, cuts[1], "Y")
    return da.blockwise(
        _block,
        "ij",
        x,
        "i",
        y,
        "j",
        kernel=value,
        out_dtype=dtype,
        dtype=dtype,
        meta=np.empty((0, 0), dtype),
    )


def _checked_dtype(dtype: Any) -> np.dtype[Any]:
    """float64 or float32."""
    is_name = isinstance(dtype, str | type | np.dtype)  # NumPy takes None, numbers, lists and dicts as types, too
    with suppress(TypeError, ValueError):
        for known in (np.float64, np.float32):
            if is_name and np.dtype(dtype) == known:
                return np.dtype(known)
    raise InputError(f"dtype is {shown(dtype)}; expected float64 or float32")


def _stored(rows: Rows, kernel: Kernel, url: str, tile: int) -> Any:
    """Lower triangle in tiles, as a lazy symmetric array."""
    executor: Executor = SerialExecutor()
    client = ambient_client()
    if client is not None:
        executor = dask_executor().DaskExecutor(client)
        check_store_is_shared(client, resolved_place(url))
    slots = 1 if client is None else sum(client.nthreads().values())
    store = RunStore(resolved_place(url))
    store.description()  # what is not a run is refused before a lock is written there
    with graceful_termination(), owned(store.url):
        delete_partial(store.url)
        store.open()
        stored = StoredArrays(store, keeps=True)
        grid = TileGrid(rows.shape[0], min(tile, rows.shape[0]), min(tile, rows.shape[0]))
        layout = {"form": "gram", "tile": grid.tile}
        context = Context(stored, executor, Progress(), client, slots, layout=layout)
        return _written(rows, kernel, grid, context).as_dask(symmetric=True)


def _written(rows: Rows, kernel: Kernel, grid: TileGrid, context: Context) -> TiledMatrix:
    """All tiles of the lower triangle, of which those of an earlier call are reused."""

    def fingerprint(of_rows: Checksums) -> dict[str, Any]:
        shape = {"shape": list(rows.shape), "lengths": [rows.shape[0]]}
        return {"X": list(of_rows.digests), **shape, "kernel": kernel.to_dict(), "what": "gram"}

    source = GramTiles(kernel, context.share(rows, fingerprint, grid.tile))
    matrix = context.stored.store.matrix("gram", grid)
    for damaged in (damaged for array in matrix.arrays for damaged in array.damaged_chunks()):
        context.stored.store.discard(damaged.url, damaged.key)
    done = matrix.complete_tiles()
    tasks = [Task(f"gram-{i}-{j}", store_tiles, (source, matrix, i, j)) for i, j in grid.lower() if (i, j) not in done]
    context.run_tasks("Gram matrix", tasks)
    return matrix


def _blocks(rows: Rows, heights: tuple[int, ...], name: str) -> Any:
    """Checked blocks of rows as a one-dimensional Dask array of matrices; its chunks are their numbers of rows."""
    starts = [sum(heights[:k]) for k in range(len(heights))]
    if isinstance(rows, DaskRows):
        # Blocks with all columns; the trailing dimension is dropped from the index, not from the block.
        x = rows.array.rechunk((heights, -1))
        return x.map_blocks(_checked, starts, name, drop_axis=1, dtype=rows.dtype, meta=np.empty(0, rows.dtype))
    if isinstance(rows, MemoryRows):
        parts = [
            da.from_delayed(
                dask.delayed(_finite(rows.read(s, s + h), name, s), traverse=False),
                (h,),
                dtype=rows.dtype,
                meta=np.empty(0, rows.dtype),
            )
            for s, h in zip(starts, heights, strict=True)
        ]
        return da.concatenate(parts)
    return da.map_blocks(
        _read, rows, starts, heights, name, chunks=(heights,), dtype=rows.dtype, meta=np.empty(0, rows.dtype)
    )


def _finite(block: Any, name: str, start: int) -> Any:
    check_finite(block, name, start)
    return block


def _checked(block: Any, starts: list[int], name: str, block_info: Any = None) -> Any:
    return _finite(block, name, starts[block_info[0]["chunk-location"][0]])


def _read(rows: Rows, starts: list[int], heights: tuple[int, ...], name: str, block_info: Any = None) -> Any:
    (k,) = block_info[None]["chunk-location"]
    return _finite(rows.read(starts[k], starts[k] + heights[k]), name, starts[k])


def _block(x: Any, y: Any, kernel: Kernel, out_dtype: Any) -> Any:
    out = np.empty((x.shape[0], y.shape[0]), out_dtype)
    if x is y:
        kernel(x, out=out)
    else:
        if not kernel.has_unit_diagonal:
            # Finds entries that overflow without a pass over the block: k(x, z)² ≤ k(x, x) k(z, z).
            kernel.diagonal(x), kernel.diagonal(y)
        fill_gram(kernel, x, y, out)
    return out
