"""Tables from paths or containers, and targets and weights from names of their columns."""

from __future__ import annotations

import os
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from dkrr.checks import BUCKETS, is_existing_folder, location, shown
from dkrr.data.dask_rows import is_dask_frame
from dkrr.data.table import Table, matching, natural_order, split_patterns
from dkrr.errors import InputError, InputTypeError, StoreError
from dkrr.store.places import place_at
from dkrr.text import near_columns
from dkrr.typing import SupportsColumns

TABLE_SUFFIXES = {
    "parquet": (".parquet", ".pq", ".parq"),
    "csv": (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".csv.bz2", ".csv.zst"),
    "arrow": (".arrow", ".feather", ".ipc"),
}
"""Ends of the names of files that are tables."""
NETCDF = (".nc", ".nc4", ".cdf", ".netcdf")
"""Ends of the names of files that are refused with what to use instead."""
ZARR = ("zarr.json", ".zarray", ".zgroup")
IN_BUCKETS = tuple(f"{protocol}://" for protocol in BUCKETS)
"""Beginnings of URLs whose folders are listed; those of other file systems name one file, or a folder in Parquet."""


def open_table(path: SupportsColumns | str | Path, columns: str | Iterable[str] | None = None) -> Table:
    """Open a table with named columns, which is read in blocks of rows.

    Parameters
    ----------
    path : str, Path, DataFrame of pandas or polars, lazy frame, Arrow table or Table
        A file in Parquet, CSV or Arrow's format (``.parquet``, ``.csv``, ``.csv.gz``, ``.feather``), a folder of such
        files, also partitioned by columns (``year=2013/...``), a pattern of files (``data/*.parquet``), or the URL of
        one of these in a bucket; with ``::a,b`` after it for some of the columns.
        CSV and Arrow files and lazy frames are copied once to a temporary file in Parquet.
    columns : str or sequence of str, optional
        Names or patterns of the columns (`Table.select`); None: all.

    Returns
    -------
    Table
        Table whose rows are read when they are needed.

    Raises
    ------
    InputError
        If it does not exist, is not a table, or has no such column.

    See Also
    --------
    dkrr.Table : A table that is read in blocks of rows.
    dkrr.predict_to : Write predictions to a file or a store.

    Examples
    --------
    >>> import dkrr, pyarrow
    >>> flights = pyarrow.table({"origin": ["EWR", "JFK"], "distance": [1400, 1089], "arr_delay": [11.0, -18.0]})
    >>> table = dkrr.open_table(flights)  # or dkrr.open_table("flights.parquet")
    >>> table.kinds
    {'origin': 'text', 'distance': 'number', 'arr_delay': 'number'}
    >>> model = dkrr.KernelRidge().fit(table.select("distance,arr_delay"), "arr_delay")
    >>> model.feature_names_in_.tolist()
    ['distance']
    """
    table = as_table(path)
    if table is None:
        what = f"{shown(str(path))}" if isinstance(path, str | Path) else f"a {type(path).__qualname__}"
        raise (InputError if isinstance(path, str | Path) else InputTypeError)(
            f"path is {what}; expected a table: a file or folder of .parquet, .csv, .arrow, .feather, or a frame of "
            f"pandas, polars or Arrow"
        )
    return table if columns is None else table.select(columns)


def as_table(value: Any, name: str = "path") -> Table | None:
    """Table that a path or a container is; None for anything else, such as arrays and their paths.

    Errors call it `name`.

    Raises
    ------
    InputError
        If it is a table that cannot be read, or a Dataset of xarray.
    """
    if isinstance(value, Table):
        return value
    if type(value).__module__.startswith("xarray.") and type(value).__name__ == "Dataset":
        raise InputTypeError(
            f"{name} is a Dataset of xarray; expected an array or a frame: one variable, dataset['a'], several along "
            f"one dimension, dataset[['a', 'b']].to_dataarray().T, or dataset.to_dataframe()"
        )
    if isinstance(value, str | Path):
        return table_at(str(value), name)
    if not hasattr(type(value), "columns") or is_dask_frame(value):
        return None
    arrow = arrow_tables(f"the {type(value).__name__} of {type(value).__module__.partition('.')[0]}")
    source = arrow.source_of(value)
    return None if source is None else Table.of(source)


def table_at(path: str, name: str = "path") -> Table | None:
    """Table at a path; None if the path is not that of a table."""
    file, _, columns = location(path, name).partition("::")
    if file.lower().endswith(NETCDF):
        raise InputError(
            f"{name}: {file} is a netCDF file; expected an array of it, from Python: "
            f"xarray.open_dataset({file!r}, chunks={{}})['variable'], or a table in Parquet"
        )
    is_named = _format_of(file) is not None
    try:
        if not is_named and not _is_folder(file):
            return None
        paths = _files(file)
        if not is_named and not paths:
            return None
        table = Table.of(_source(file, paths))
    except InputError as error:
        raise InputError(f"{name}: {error}") from error
    except StoreError as error:  # of a bucket
        raise InputError(f"{name}: cannot read {file}: {error}") from error
    return table.select(columns, name) if columns else table


def _source(file: str, paths: list[str]) -> Any:
    """Source of what was given as a file, which are these files."""
    if not paths:
        raise InputError(f"the path {file} does not exist, or has no files of a table")
    for path in paths:
        if "://" not in path:
            is_existing_folder(path)
    arrow, form = arrow_tables(file), _format_of(paths[0])
    if form == "parquet":
        return arrow.Source(paths if _is_pattern(file) else file, file)
    return arrow.csv_source(paths, file) if form == "csv" else arrow.arrow_source(paths, file)


def arrow_tables(what: str, instead: str = "") -> Any:
    """Module that reads and writes tables; InputError if a package is missing, with what to do `instead`."""
    try:
        from dkrr.data import arrow
    except ImportError as error:
        raise InputError(
            f"{what} is a table, and the package {error.name} is missing; expected it to be installed: pip install "
            f"'dkrr[tables]'{instead}"
        ) from error
    return arrow


def _format_of(file: str) -> str | None:
    """Format of a file, told from its name; None if it is not that of a table."""
    return next((form for form, ends in TABLE_SUFFIXES.items() if file.lower().rstrip("/").endswith(ends)), None)


def _files(file: str) -> list[str]:
    """Files of a table at a path, or that fit a pattern, in the natural order of their names.

    Those of a folder are of the format of the first one, or in Parquet in folders that are partitions; none if it is
    one of Zarr.
    """
    if _is_pattern(file):
        return files_matching(file)
    if not _is_folder(file):
        return [file]
    inside = sorted(_names(file), key=natural_order)
    if any(name in ZARR for name in inside):
        return []
    inside = [f"{file.rstrip('/')}/{name}" for name in inside if not name.startswith((".", "_"))]  # not other programs'
    forms = {each: form for each in inside if (form := _format_of(each)) is not None}
    if forms:
        first = next(iter(forms.values()))
        return [each for each, form in forms.items() if form == first]
    partitions = (each for each in inside if "=" in each.rpartition("/")[2])
    return [each for part in partitions for each in _files(part) if _format_of(each) == "parquet"]


def files_matching(path: str) -> list[str]:
    """Files that fit a pattern, in the natural order of their names; the path itself if it is none, or none fit."""
    if not _is_pattern(path):
        return [path]
    folder, slash, pattern = path.rpartition("/")
    matched = [folder + slash + name for name in _names(folder + slash) if fnmatchcase(name, pattern)]
    return sorted((each for each in matched if "://" in each or Path(each).is_file()), key=natural_order) or [path]


def _is_pattern(path: str) -> bool:
    return "*" in path.rpartition("/")[2] and ("://" in path or not os.path.exists(path))  # noqa: PTH110


def _names(folder: str) -> list[str]:
    """Names in a folder, or in a bucket below a URL; none if it does not exist."""
    if "://" in folder:
        return place_at(folder).names() if folder.startswith(IN_BUCKETS) else []
    return [each.name for each in Path(folder).iterdir()] if _is_folder(folder or ".") else []


def _is_folder(path: str) -> bool:
    """Whether there is a folder that can be read; in a bucket one that is not an array or a group of Zarr."""
    if "://" not in path:
        return os.path.isdir(path) and os.access(path, os.R_OK | os.X_OK)  # noqa: PTH112 (False of too long a name)
    if not path.startswith(IN_BUCKETS):
        return False
    place = place_at(path)
    return not any(map(place.size, ZARR)) and place.is_folder()


OWN = "::"
"""Before the name of a column of X, where a path has the same name."""


def is_pandas_like(value: Any) -> bool:
    """Whether a value is a DataFrame of pandas or Dask, whose columns estimators check by scikit-learn's rule."""
    package = type(value).__module__.partition(".")[0]
    return package in ("pandas", "dask") and hasattr(value, "columns") and hasattr(value, "drop")


def with_columns(X: Any, y: Any, sample_weight: Any = None) -> tuple[Any, Any, Any]:
    """Rows, targets and weights, where the latter two may be names of columns of X.

    Parameters
    ----------
    X : table, DataFrame, path of a table, or anything else
        Rows, with the columns of targets and weights among the others.
    y, sample_weight : str or anything else
        With a table as X: name of a column, or several with commas between, or a pattern. They are looked for among all
        columns of X, also those that were not selected, and X is then the others. ``::name`` is a column in any case.

    Returns
    -------
    X, y, sample_weight
        Tables where they are in one; all other values are returned unchanged.

    Raises
    ------
    InputError
        If a name is that of a column and of a path, or of neither.
    """
    X, taken, found = table_or_value(X), list[str](), list[Any]()
    is_table = isinstance(X, Table)
    for value, argument in ((y, "y"), (sample_weight, "sample_weight")):
        columns = _columns_named(value, X, argument) if is_table or is_pandas_like(X) else None
        if columns is not None:
            taken += columns
            value = Table(X.source, tuple(columns)) if is_table else X[columns[0] if len(columns) == 1 else columns]
        found.append(table_or_value(value, argument))
    if taken:
        X = X.without(taken) if is_table else X.drop(columns=taken)
        if len(X.names if is_table else X.columns) == 0:
            raise InputError(f"X has no columns besides {', '.join(taken)}; expected at least one more")
    return X, found[0], found[1]


def table_or_value(value: Any, name: str = "X") -> Any:
    """Table that a value is, unless it is a DataFrame of pandas; anything else unchanged."""
    if type(value) is np.ndarray or is_pandas_like(value):
        return value
    table = as_table(value, name)
    return value if table is None else table


def in_memory(value: Any) -> Any:
    """DataFrame of a table, for kernels of text and other objects; anything else unchanged."""
    value = table_or_value(value)
    return value.to_pandas() if isinstance(value, Table) else value


def _columns_named(value: Any, X: Any, argument: str) -> list[str] | None:
    """Columns of a table or DataFrame that an argument names; None if it is something else, such as a path."""
    if not isinstance(value, str):
        return None
    columns, index = (X.all_names, X.index) if isinstance(X, Table) else (X.columns, ())
    names = [name for name in columns if isinstance(name, str) and name not in index]
    text = value.removeprefix(OWN)
    parts = split_patterns(text, names, argument)
    found = [matching(part, names, index) for part in parts]
    at = value.partition("::")[0]  # empty of OWN
    is_path = "://" in at or os.path.exists(at)  # noqa: PTH110 (False of null bytes)
    if all(found):
        if is_path:
            raise InputError(
                f"{argument} is {value!r}, which is a column of X and a path; expected one of the two: './{value}' is "
                f"the path, and '{OWN}{value}' the column"
            )
        named = list(dict.fromkeys(name for part in found for name in part))
        twice = next((name for name in named if names.count(name) > 1), None)
        if twice is not None:
            raise InputError(
                f"{argument} is {value!r}, and X has two columns {twice!r}; expected one: rename the other"
            )
        return named
    if is_path or (not any(found) and _looks_like_a_path(value)):
        return None
    missing = next(part for part, columns in zip(parts, found, strict=True) if not columns)
    raise InputError(
        f"{argument} has {missing!r}, which is neither a column of X nor a path that exists; expected "
        f"{near_columns(missing, names)}, or a path"
    )


def _looks_like_a_path(text: str) -> bool:
    return "/" in text or "::" in text or bool(Path(text).suffix)
