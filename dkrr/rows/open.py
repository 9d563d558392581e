"""From what a user hands in to Rows, with an error for what cannot be used."""

from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dkrr.errors import InputError, InputTypeError, StoreError
from dkrr.rows.sources import DaskRows, MemoryRows, Rows, ZarrRows
from dkrr.rows.stored_gram import stored_gram
from dkrr.sparse import check_structure
from dkrr.tiles.arrays import array_url, is_dask_array, is_zarr_array, open_array


def open_path(path: str, name: str = "X") -> Any:
    """Open ``data.zarr``, ``data.zarr/group/array``, ``data.npy`` (memory-mapped) or ``data.npz::name``.

    Raises
    ------
    InputError
        If there is nothing there, or nothing that can be read.
    """
    file, _, member = path.partition("::")
    if "://" not in file and not Path(file).exists():
        raise InputError(f"{name}: the path {file} does not exist")
    suffix = Path(file).suffix
    try:
        if suffix == ".npy":
            return np.lib.format.open_memmap(file, mode="r")
        if suffix == ".npz":
            return _from_npz(file, member, name)
        return open_array(file)
    except (StoreError, ValueError, OSError, EOFError, BadZipFile) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{name}: cannot read {path}: {error}") from error


def _from_npz(file: str, member: str, name: str) -> Any:
    with Path(file).open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
        if not member and {"format", "shape"} <= set(archive.files):
            stored = sp.load_npz(file)
            check_structure(stored, name)
            return stored.tocsr()
        if member not in archive.files:
            raise InputError(
                f"{name}: {file} has no array {member!r}; write {file}::NAME with one of {', '.join(archive.files)}"
            )
        return archive[member]


def as_rows(X: Any, name: str = "X") -> Rows:
    """Rows of an ndarray, scipy.sparse matrix, Dask array or DataFrame, Zarr array, or path of one or of a Gram store.

    Parameters
    ----------
    X : array-like of shape (n, d), or (n,) which counts as one column
    name : str
        What the array is called in error messages.

    Raises
    ------
    InputError
        If it is empty, not a matrix, not of numbers, damaged (sparse), or not there.
    """
    if isinstance(X, str | Path):
        X = _open_rows(str(X), name)
    if isinstance(X, Rows):
        return X
    X = unframed(X)
    if not (sp.issparse(X) or is_dask_array(X) or is_zarr_array(X)):
        X = _asarray(X, name)
    _check_dtype(X.dtype, name)
    if X.ndim not in (1, 2):
        raise InputError(f"{name} must be a matrix (samples × features); got {X.ndim} dimensions, shape {X.shape}")
    if any(np.isnan(s) for s in X.shape):
        raise InputError(
            f"{name} is a Dask array with unknown chunk sizes; call {name}.compute_chunk_sizes() or "
            f"to_dask_array(lengths=True) first"
        )
    if 0 in X.shape:
        raise InputError(f"{name} is empty: found array with shape={X.shape}, a minimum of 1 is required")
    if is_dask_array(X):
        return DaskRows(X, name)
    if is_zarr_array(X):
        url = array_url(X)
        return ZarrRows(url) if url is not None else MemoryRows(_column(np.asarray(X[:])))
    if sp.issparse(X):
        check_structure(X, name)
        X = sp.csr_array(X if X.ndim == 2 else X.reshape(-1, 1))
        if not X.has_canonical_format:
            X = X.copy()  # the user's matrix stays as it is
            X.sum_duplicates()
        return MemoryRows(X)
    return MemoryRows(_column(X))


def _open_rows(path: str, name: str) -> Any:
    try:
        return open_path(path, name)
    except InputError:
        found = stored_gram(path)
        if found is None:
            raise
        return found


def is_dask_frame(X: Any) -> bool:
    """Whether X is a DataFrame of Dask, told without importing dask.dataframe, which needs pandas."""
    return type(X).__module__.startswith("dask.") and hasattr(X, "to_dask_array") and hasattr(X, "columns")


def unframed(X: Any) -> Any:
    """Return a Dask DataFrame as a Dask array (how many rows its partitions have is computed), others as they are."""
    return X.to_dask_array(lengths=True) if is_dask_frame(X) else X


def _asarray(X: Any, name: str) -> NDArray[Any]:
    try:
        return np.asarray(X)
    except ValueError as error:
        raise InputError(f"{name} is not a matrix of numbers: {error}") from error


def _column(X: NDArray[Any]) -> NDArray[Any]:
    return X if X.ndim == 2 else X[:, None]


def _check_dtype(dtype: Any, name: str) -> None:
    if np.issubdtype(dtype, np.complexfloating):
        raise InputTypeError(f"{name}: complex data not supported (dtype {dtype}); dkrr works on real numbers")
    if np.dtype(dtype).kind not in "biuf":
        raise InputTypeError(f"{name} must hold numbers; got dtype {dtype}; convert it, e.g. {name}.astype(float)")


def load_array(y: Any, name: str = "y") -> NDArray[np.float64]:
    """Whole array in memory as float64 (targets, weights), of its own dimensions.

    Raises
    ------
    InputError
        As `as_rows`.
    """
    y = _opened(y, name)
    _check_dtype(y.dtype, name)
    return np.asarray(_loaded(y), np.float64)


def load_labels(y: Any, name: str = "y") -> NDArray[Any]:
    """Whole array in memory with labels of any type, of its own dimensions.

    Raises
    ------
    InputError
        If it is sparse or not there.
    """
    return np.asarray(_loaded(_opened(y, name)))


def _opened(y: Any, name: str) -> Any:
    """Array that may be lazy or stored."""
    if isinstance(y, str | Path):
        y = open_path(str(y), name)
    if sp.issparse(y):
        raise InputTypeError(f"{name}: sparse targets are not supported; give a dense array")
    return y if hasattr(y, "dtype") else _asarray(y, name)


def _loaded(y: Any) -> Any:
    return y.compute() if is_dask_array(y) else y[...] if is_zarr_array(y) else y
