"""From what a user passes to `Rows`, with an error for what cannot be used."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dkrr.errors import InputError, InputTypeError, StoreError
from dkrr.rows.dask_arrays import DaskRows, unframed
from dkrr.rows.memory import csr_rows, memory_rows
from dkrr.rows.sources import Rows
from dkrr.rows.stored_gram import stored_gram
from dkrr.rows.zarr_arrays import zarr_rows
from dkrr.sparse import check_structure
from dkrr.tiles.arrays import is_dask_array, is_zarr_array, open_array
from dkrr.values import place

CONTAINERS: list[tuple[Callable[[Any], bool], Callable[[Any, str], Rows]]] = [
    (is_dask_array, DaskRows),
    (is_zarr_array, zarr_rows),
    (sp.issparse, csr_rows),
]
"""What each container of rows takes, and what makes rows of it and of its name; anything else becomes an ndarray."""
NO_LABELS = "mMV"
"""Kinds of NumPy's durations, dates and records."""
UNREADABLE = NO_LABELS + "SU"
"""The same and text, which scikit-learn would parse."""


def open_path(path: str, name: str = "X") -> Any:
    """Open ``data.zarr``, ``data.zarr/group/array``, ``data.npy`` (memory-mapped) or ``data.npz::name``.

    Raises
    ------
    InputError
        If the path does not exist or cannot be read.
    """
    path = place(path, name, "the path or URL of an array")
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


def refuse_unreadable(X: Any, name: str = "X", kinds: str = UNREADABLE) -> None:
    """Refuse masked entries, dates and text, which NumPy or scikit-learn would take for numbers.

    Raises
    ------
    InputTypeError
        If X has any of these.
    """
    if isinstance(X, np.ma.MaskedArray) and np.ma.is_masked(X):
        raise InputTypeError(
            f"{name} is a masked array with masked entries; expected plain numbers: fill or remove those entries, "
            f"e.g. by {name}.filled(0.0)"
        )
    dtypes = X.dtypes if hasattr(X, "dtypes") and hasattr(X, "columns") else [getattr(X, "dtype", None)]
    for dtype in dtypes:
        kind = getattr(dtype, "kind", "f")
        if isinstance(kind, str) and kind in kinds:
            raise InputTypeError(
                f"{name} has dtype {dtype}; expected numbers: convert it, e.g. a date to the days since another one"
            )


def _from_npz(file: str, member: str, name: str) -> Any:
    with Path(file).open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
        if not member and {"format", "shape"} <= set(archive.files):
            stored = sp.load_npz(file)
            check_structure(stored, name)
            return stored.tocsr()
        if member not in archive.files:
            known = ", ".join(archive.files)
            raise InputError(f"{name}: {file} has no array {member!r}; expected one of {known}: write {file}::NAME")
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
        If it is empty, not a matrix, not of numbers, damaged (sparse), or does not exist.
    """
    if isinstance(X, str | Path):
        X = _open_rows(place(X, name, "the path or URL of an array"), name)
    if isinstance(X, Rows):
        return X
    refuse_unreadable(X, name)
    X = unframed(X)
    rows_of = next((rows_of for takes, rows_of in CONTAINERS if takes(X)), None)
    if rows_of is None:
        X, rows_of = _asarray(X, name), memory_rows
    _check_dtype(X.dtype, name)
    if X.ndim not in (1, 2):
        raise InputError(f"{name} has {X.ndim} dimensions, shape {X.shape}; expected a matrix (samples × features)")
    if 0 in X.shape:
        raise InputError(f"{name} is empty: found array with shape={X.shape}, a minimum of 1 is required")
    return rows_of(X, name)


def _open_rows(path: str, name: str) -> Any:
    try:
        return open_path(path, name)
    except InputError:
        found = stored_gram(path)
        if found is None:
            raise
        return found


def _asarray(X: Any, name: str) -> NDArray[Any]:
    try:
        return np.asarray(X)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{name} is not a matrix of numbers: {error}") from error


def _check_dtype(dtype: Any, name: str) -> None:
    kind = np.dtype(dtype).kind
    if kind == "c":
        raise InputTypeError(f"{name} has dtype {dtype}; expected real numbers: complex data not supported")
    if kind not in "biuf":
        raise InputTypeError(f"{name} has dtype {dtype}; expected numbers: convert it, e.g. {name}.astype(float)")


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
        If it is sparse or does not exist.
    """
    return np.asarray(_loaded(_opened(y, name)))


def as_array(y: Any, name: str = "y") -> NDArray[Any]:
    """Array in memory of what is in memory; raises InputError as `load_labels`."""
    return np.asarray(_opened(y, name))


def _opened(y: Any, name: str) -> Any:
    """Array that may be lazy or stored."""
    if isinstance(y, str | Path):
        y = open_path(place(y, name, "the path or URL of an array"), name)
    refuse_unreadable(y, name, NO_LABELS)
    if sp.issparse(y):
        raise InputTypeError(f"{name} is sparse; expected a dense array: use toarray()")
    return y if isinstance(getattr(y, "dtype", None), np.dtype) else _asarray(y, name)


def _loaded(y: Any) -> Any:
    return y.compute() if is_dask_array(y) else y[...] if is_zarr_array(y) else y
