"""Conversion of users' arguments to `Rows`, with an error for values that cannot be used."""

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dkrr.checks import TEXT_TARGETS_ADVICE, is_existing_folder, location, refuse_masked
from dkrr.config import setting
from dkrr.data.array_files import SUFFIXES, check_memory, mapped_npy, npz_array, open_hdf
from dkrr.data.arrays import (
    ArrayRows,
    HdfRows,
    MappedRows,
    MemoryRows,
    NpyRows,
    csr_rows,
    drop_labels,
    is_hdf_array,
    is_in_file,
    is_mapped,
    is_memory_map,
    is_plain,
    mapped_array,
    release_pages,
    zarr_rows,
)
from dkrr.data.dask_rows import DaskRows, checked_blocks, frame_to_numpy, is_dask_frame, refuse_shuffled
from dkrr.data.rows import Rows
from dkrr.data.stored import stored_gram
from dkrr.data.table import Table, TableRows, table_rows
from dkrr.data.table_opening import as_table, is_pandas_like, table_at
from dkrr.errors import DkrrError, InputError, InputTypeError, StoreError, UnreachableStoreError
from dkrr.kernels.graphs import is_graph
from dkrr.rounding import check_exact, exact_array
from dkrr.store.zarr_arrays import arrays_at, arrays_in, is_dask_array, is_zarr_array, is_zarr_group, open_array
from dkrr.text import first_names

MAX_HELD_TARGET_BYTES = 64 * 2**20
"""Targets up to this size are read into memory, whatever holds them."""
COPIED_BYTES = 16 * 2**20
"""Targets that are copied at once."""

METADATA = ("zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata")
"""Files of a folder that the zarr library reads before any numbers."""

CONTAINERS: list[tuple[Callable[[Any], bool], Callable[[Any, str], Rows]]] = [
    (is_dask_array, DaskRows),
    (is_zarr_array, zarr_rows),
    (sp.issparse, csr_rows),
    (is_memory_map, lambda array, _: MappedRows(array)),
    (is_hdf_array, HdfRows),
    (is_in_file, lambda array, _: ArrayRows(array)),  # of xarray: a slice is read and kept by its own array only
]
"""Is it this? Then these are its rows, for X and y alike. Tables go before, and anything else becomes an ndarray."""
NON_LABEL_KINDS = "mMV"
"""Kinds of NumPy's durations, dates and records."""
NON_NUMERIC_KINDS = NON_LABEL_KINDS + "SU"
"""Kinds of NumPy's durations, dates, records and text; scikit-learn would parse text."""


def open_path(path: str | Path, name: str = "X") -> Any:
    """Open ``data.zarr``, ``data.zarr/group/array``, ``data.npy`` (memory-mapped), ``data.npz::name``, or a table.

    Raises
    ------
    InputError
        If the path does not exist or cannot be read.
    """
    path = location(path, name, "the path or URL of an array")
    table = table_at(path, name)
    if table is not None:
        return table
    file, _, member = path.partition("::")
    try:
        return _opened_file(file, member, name)
    except InputError:
        raise
    except Exception as error:  # each library has its own errors for damaged files
        is_another = isinstance(error, StoreError) and not isinstance(error, UnreachableStoreError)
        if is_another and "://" not in file:
            for folder, _, _ in os.walk(file):
                _refuse_pipes(folder, name)
        arrays = arrays_at(file) if is_another else None
        if arrays is not None:
            found = _one_of(arrays, f"{file.rstrip('/')}/{{}}")
            raise InputError(
                f"{name}: {path} is a Zarr group; expected the path of the array itself, {found}"
            ) from error
        raise InputError(f"{name}: cannot read {path}: {error}") from error


def _opened_file(file: str, member: str, name: str) -> Any:
    """Array of a file, or of a folder in Zarr's format."""
    suffix, is_folder = Path(file).suffix, "://" not in file and is_existing_folder(file, name)
    if is_folder and suffix in (".npy", ".npz", *SUFFIXES):
        raise InputError(f"{name}: {file} is a folder; expected a file, as the end of its name says")
    if suffix == ".npy":
        return mapped_npy(file)
    if suffix == ".npz":
        return npz_array(file, member, name)
    if suffix in SUFFIXES:
        return open_hdf(file, member, name)
    if is_folder:
        _refuse_pipes(file, name)
    return open_array(file)


def _refuse_pipes(folder: str, name: str) -> None:
    """Refuse metadata of Zarr that are not files: the library would wait for them."""
    for file in METADATA:
        if os.path.lexists(f"{folder}/{file}"):
            is_existing_folder(f"{folder}/{file}", name)


def refuse_unreadable(X: Any, name: str = "X", kinds: str = NON_NUMERIC_KINDS) -> None:
    """Refuse masked entries, dates and text, which NumPy or scikit-learn would take for numbers; and graphs.

    Raises
    ------
    InputTypeError
        If X has any of these.
    """
    if hasattr(X, "__array__") and not hasattr(X, "iloc") and _container(X) is None:
        _asarray(X, name)  # another library's array, which may hide a mask until it is read
    refuse_masked(X, name)
    if is_graph(X) or is_graph(_first_item(X)):
        raise InputTypeError(
            f"{name} holds graphs; expected numbers: graphs are rows of X for the kernel that compares them, "
            f"kernel=dkrr.kernels.RandomWalk(decay=0.1)"
        )
    is_frame = hasattr(X, "dtypes") and getattr(X, "ndim", 0) == 2
    columns = zip(X.columns, X.dtypes, strict=True) if is_frame else [(None, getattr(X, "dtype", None))]
    for column, dtype in columns:
        kind = getattr(dtype, "kind", "f")
        if isinstance(kind, str) and kind in kinds:
            of = f" in column {column!r}" if is_frame else ""
            raise InputTypeError(f"{name} has dtype {dtype}{of}; expected numbers: {_remedy(name, dtype)}")


def _first_item(X: Any) -> Any:
    """First item of a list, a Series or an array of objects; None of anything else."""
    if isinstance(X, list | tuple):
        return X[0] if X else None
    is_vector = getattr(X, "ndim", 0) == 1 and getattr(X.dtype, "kind", "") == "O" and hasattr(X, "tolist")
    return X[:1].tolist()[0] if is_vector and len(X) else None


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
    if is_plain(X, min_dimensions=1):
        return MemoryRows(X)
    path = location(X, name, "the path or URL of an array") if isinstance(X, str | Path) else None
    X = _opened(X if path is None else _open_rows(path, name), name, NON_NUMERIC_KINDS)
    if isinstance(X, Rows):
        return X
    if isinstance(X, Table):
        return table_rows(X, name)
    X = frame_to_numpy(X, name)
    rows_of = _container(X)
    if rows_of is None:
        X, rows_of = _asarray(X, name), lambda array, _: MemoryRows(array)
    _check_dtype(X.dtype, name)
    if X.ndim not in (1, 2):
        raise InputError(f"{name} has {X.ndim} dimensions, shape {X.shape}; expected a matrix (samples × features)")
    if 0 in X.shape:
        raise InputError(f"{name} is empty: found array with shape={X.shape}, a minimum of 1 is required")
    rows = rows_of(X, name)
    if path is None or not isinstance(rows, MappedRows):
        return rows
    file = str(Path(path).absolute())
    return NpyRows(X, mapped_npy, file, url=file)


def _container(value: Any) -> Callable[[Any, str], Rows] | None:
    """Function that makes rows of an array in a container; None for values that NumPy converts."""
    if type(value) is np.ndarray:
        return None
    return next((rows_of for takes, rows_of in CONTAINERS if takes(value)), None)


def is_in_blocks(value: Any) -> bool:
    """Whether a value is a path, or its rows are read in blocks, so that scikit-learn cannot check it."""
    return isinstance(value, str | Path | Rows | Table) or _container(value) not in (None, csr_rows)


def refuse_group(value: Any, name: str) -> None:
    """Refuse a Zarr group, which is not an array; raises InputTypeError naming its arrays."""
    if is_zarr_group(value):
        raise InputTypeError(f"{name} is a Zarr group; expected an array, {_one_of(arrays_in(value), 'group[{!r}]')}")


def _one_of(arrays: list[str], form: str) -> str:
    """Arrays of a group, for a message."""
    if not arrays:
        return "of which the group has none"
    return f"such as {first_names(map(form.format, arrays))}"


def _open_rows(path: str, name: str) -> Any:
    try:
        return open_path(path, name)
    except InputError:
        try:
            found = stored_gram(path)
        except DkrrError as error:
            raise InputError(f"{name}: {error}") from error
        if found is None:
            raise
        return found


def _asarray(X: Any, name: str) -> NDArray[Any]:
    if is_dask_array(X):
        X = checked_blocks(X, name).compute()
    elif is_dask_frame(X):
        refuse_shuffled(X, name)
        X = X.compute()
    try:
        found = X if hasattr(X, "iloc") or isinstance(X, list | tuple) else np.asanyarray(X)
        refuse_masked(found, name)
        return exact_array(found, name)
    except InputError:
        raise
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{name} is not a matrix of numbers: {error}") from error


def _check_dtype(dtype: Any, name: str) -> None:
    kind = np.dtype(dtype).kind
    if kind == "c":
        raise InputTypeError(f"{name} has dtype {dtype}; expected real numbers: complex data not supported")
    if kind not in "biuf":
        raise InputTypeError(f"{name} has dtype {dtype}; expected numbers: {_remedy(name, dtype)}")


def _remedy(name: str, dtype: Any) -> str:
    """Remedy for values that are not numbers."""
    kind = getattr(dtype, "kind", "O")
    if name == "y" and kind in "OSUT":
        return TEXT_TARGETS_ADVICE
    return "convert it, e.g. " + ("a date to the days since another one" if kind in "mM" else f"{name}.astype(float)")


def load_array(y: Any, name: str = "y") -> NDArray[np.float64]:
    """Whole array in memory as float64 (targets, weights), of its own dimensions.

    Raises
    ------
    InputError
        As `as_rows`.
    """
    return _as_targets(y, name, math.inf)


def load_targets(y: Any, name: str = "y") -> NDArray[np.float64]:
    """Targets as float64, of their own dimensions: in memory, or in a mapped file if they are large and not in memory.

    A lazy or stored array is then copied to a temporary file, a block of rows at a time; a file of float64 in C order
    is used directly.

    Raises
    ------
    InputError
        As `as_rows`.
    DiskSpaceError
        If they do not fit on the disk.
    """
    return _as_targets(y, name, MAX_HELD_TARGET_BYTES)


def place_of_targets(y: Any) -> dict[str, bool]:
    """Fields of a problem: whether targets are in memory now, and whether `load_targets` returns a mapped file."""
    y = _opened(y, "y")
    rows = _rows_of_targets(y, "y")
    mapped = is_mapped(y) if rows is None else 8 * math.prod(rows.shape) > MAX_HELD_TARGET_BYTES
    return {"y_in_memory": isinstance(y, np.ndarray) and not mapped, "y_is_mapped": mapped}


def load_labels(y: Any, name: str = "y") -> NDArray[Any]:
    """Whole array in memory with labels, or other values, of any type, of its own dimensions.

    Raises
    ------
    InputError
        If it is sparse or does not exist.
    """
    y = _opened(y, name)
    if isinstance(y, Table):
        y.check_content(name)
    else:
        rows = _rows_of_targets(y, name)
        return _asarray(y, name) if rows is None else _loaded(rows, name)
    if len(y.names) != 1:
        raise InputError(
            f"{name} has the columns {first_names(y.names)}; expected one with labels: name it, as in {name}="
            f"'labels.csv::{y.names[0]}'"
        )
    return y.values()


def _opened(value: Any, name: str, kinds: str = NON_LABEL_KINDS) -> Any:
    """Container that a user passed as X or y: rows, a table, or anything else unchanged, without these kinds of values.

    Raises
    ------
    InputError
        If it is a path that cannot be read, or has such values.
    """
    if isinstance(value, str | Path):
        value = open_path(value, name)
    if isinstance(value, Rows):
        return value
    table = None if is_pandas_like(value) else as_table(value, name)
    if table is not None:
        return table
    refuse_unreadable(value, name, kinds)
    refuse_group(value, name)
    return drop_labels(value, name)


def _rows_of_targets(y: Any, name: str) -> Rows | None:
    """Rows of opened targets or labels; None of those in memory, or in a file that is used directly."""
    if isinstance(y, Rows):
        return y
    if isinstance(y, Table):
        y.check_content(name)
        return TableRows(y, name)
    if sp.issparse(y):
        raise InputTypeError(f"{name} is sparse; expected a dense array: use toarray()")
    if is_mapped(y):
        is_used = (y.dtype == np.float64 and y.flags.c_contiguous) or y.ndim not in (1, 2)
        return None if is_used else MappedRows(y)
    rows_of = _container(y)
    if rows_of is None or (is_dask_array(y) and any(size != size for size in y.shape)):
        return None  # a Dask array of unknown length is computed
    if len(y.shape) not in (1, 2):
        raise InputError(f"{name} has {len(y.shape)} dimensions, shape {y.shape}; expected (n,) or (n, n_targets)")
    return rows_of(y, name)


def _as_targets(y: Any, name: str, max_held: float) -> NDArray[np.float64]:
    y = _opened(y, name)
    rows = _rows_of_targets(y, name)
    if rows is None:
        y = _asarray(y, name)
    _check_dtype(y.dtype if rows is None else rows.dtype, name)
    if rows is None:
        check_exact(y, name)
        return np.asarray(y, np.float64)
    if 8 * math.prod(rows.shape) <= max_held:
        loaded = _loaded(rows, name)
        check_exact(loaded, name)
        return np.asarray(loaded, np.float64)
    targets = mapped_array(_shape_of(rows), setting("temporary-directory"), f"targets ({name})")
    height = max(1, COPIED_BYTES // (8 * rows.shape[1]))
    for where, block in rows.blocks(0, rows.shape[0], height):
        check_exact(block, name, where.start)
        targets[where] = block.reshape(targets[where].shape)
        release_pages(targets)
    return targets


def _loaded(rows: Rows, name: str) -> NDArray[Any]:
    """All rows in memory, in the dimensions of the container that they are of."""
    if not rows.is_in_memory:
        check_memory(8 * math.prod(rows.shape), name)  # the metadata of a file may claim more than it holds
    return np.asarray(rows.read(0, rows.shape[0])).reshape(_shape_of(rows))


def _shape_of(rows: Rows) -> tuple[int, ...]:
    return rows.shape[:1] if rows.is_vector else rows.shape
