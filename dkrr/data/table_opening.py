"""From a path or a container to a `Table`, and from names of its columns to targets and weights."""

import os
from pathlib import Path
from typing import Any

from dkrr.checks import is_existing_folder, location, shown
from dkrr.data.arrays import is_dask_frame
from dkrr.data.table import Table, matching, split_patterns, suggested
from dkrr.errors import InputError, InputTypeError

PARQUET = (".parquet", ".pq", ".parq")
CSV = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".csv.bz2", ".csv.zst")
ARROW = (".arrow", ".feather", ".ipc")
FORMATS = PARQUET + CSV + ARROW
"""Ends of the names of files that are tables."""
NETCDF = (".nc", ".nc4", ".cdf", ".netcdf")
"""Ends of the names of files that are refused with what to use instead."""
ZARR = ("zarr.json", ".zarray", ".zgroup")
PACKAGES = "pip install 'dkrr[tables]'"


def open_table(path: Any, columns: Any = None) -> Table:
    """Open a table with named columns, which is read in blocks of rows.

    Parameters
    ----------
    path : str, Path, DataFrame of pandas or polars, lazy frame, Arrow table or Table
        A file in Parquet, CSV or Arrow's format (``.parquet``, ``.csv``, ``.csv.gz``, ``.feather``), a folder of such
        files, also partitioned by columns (``year=2013/...``), a pattern of files (``data/*.parquet``), or the URL of a
        Parquet file or folder; with ``::a,b`` behind it for some of the columns.
        CSV and Arrow files and lazy frames are copied once to a temporary file in Parquet.
    columns : str or sequence of str, optional
        Names or patterns of the columns (`Table.select`); None: all.

    Returns
    -------
    Table

    Raises
    ------
    InputError
        If it does not exist, is not a table, or has no such column.

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
            f"path is {what}; expected a table: a file or folder of {', '.join(FORMATS[:1] + CSV[:1] + ARROW[:2])}, or "
            f"a frame of pandas, polars or Arrow"
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
    try:
        from dkrr.data.arrow import source_of
    except ImportError as error:
        package = type(value).__module__.partition(".")[0]
        raise _without_arrow(f"the {type(value).__name__} of {package}", error) from error
    source = source_of(value)
    return None if source is None else Table.of(source)


def is_table_path(path: str) -> bool:
    """Whether a path is that of a table, told from its name and the files in a folder."""
    file = path.partition("::")[0]
    if file.lower().endswith(FORMATS):
        return True
    folder = Path(file)
    if "://" in file or not _is_folder(folder) or any((folder / zarr).exists() for zarr in ZARR):
        return False
    return bool(_files(folder))


def table_at(path: str, name: str = "path") -> Table | None:
    """Table at a path; None if the path is not that of a table."""
    file, _, columns = location(path, name).partition("::")
    if file.lower().endswith(NETCDF):
        raise InputError(
            f"{name}: {file} is a netCDF file; expected an array of it, from Python: "
            f"xarray.open_dataset({file!r}, chunks={{}})['variable'], or a table in Parquet"
        )
    if not is_table_path(path):
        return None
    try:
        table = Table.of(_opened(file))
    except InputError as error:
        raise InputError(f"{name}: {error}") from error
    return table.select(columns, name) if columns else table


def _opened(file: str) -> Any:
    is_url = "://" in file
    if is_url and not file.lower().rstrip("/").endswith(PARQUET):
        raise InputError(f"{file} is a URL; expected a file in Parquet there: download or convert this one first")
    paths = [file] if is_url else _files(Path(file))
    if not is_url:
        for path in paths or ([file] if Path(file).exists() else []):
            is_existing_folder(path)
    if not paths:
        raise InputError(f"the path {file} does not exist, or has no files of a table")
    try:
        from dkrr.data.arrow import Source, arrow_source, csv_source
    except ImportError as error:
        raise _without_arrow(file, error) from error
    suffix = paths[0].lower().rstrip("/")
    if suffix.endswith(PARQUET):
        return Source(file if is_url or Path(file).exists() else paths, file)
    return (csv_source if suffix.endswith(CSV) else arrow_source)(paths, file)


def _without_arrow(what: str, error: ImportError) -> InputError:
    return InputError(
        f"{what} is a table, and the package {error.name} is missing; expected it to be installed: {PACKAGES}"
    )


def _files(path: Path) -> list[str]:
    """Files of a table at a path, or that fit a pattern, in the order of their names.

    Those of a folder are of the format of the first one, or in Parquet in folders that are partitions.
    """
    if path.is_file():
        return [str(path)]
    if not _is_folder(path):
        found = path.parent.glob(path.name) if "*" in path.name else ()
        return [str(file) for file in sorted(found) if file.is_file()]
    inside = [each for each in sorted(path.iterdir()) if not each.name.startswith((".", "_"))]  # other programs' files
    tables = [(str(each), end) for each in inside for end in FORMATS if each.name.lower().endswith(end)]
    if tables:
        return [file for file, end in tables if end == tables[0][1]]
    partitions = (each for each in inside if "=" in each.name and _is_folder(each))
    return [file for each in partitions for file in _files(each) if file.lower().endswith(PARQUET)]


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir() and os.access(path, os.R_OK | os.X_OK)
    except OSError:  # too long a name
        return False


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
        Tables where they are in one; whatever else was given stays as it is.

    Raises
    ------
    InputError
        If a name is that of a column and of a path, or of neither.
    """
    X = X if is_pandas_like(X) else opened(X)
    names = _names(X)
    taken: list[str] = []
    found = []
    for value, argument in ((y, "y"), (sample_weight, "sample_weight")):
        columns = None if names is None else _columns_named(value, names, argument)
        if columns is not None:
            taken += columns
            value = (
                X[columns[0] if len(columns) == 1 else columns]
                if not isinstance(X, Table)
                else Table(X.source, tuple(columns))
            )
        found.append(opened(value, argument))
    if taken:
        X = X.without(taken) if isinstance(X, Table) else X.drop(columns=taken)
        if len(X.names if isinstance(X, Table) else X.columns) == 0:
            raise InputError(f"X has no columns besides {', '.join(taken)}; expected at least one more")
    return X, found[0], found[1]


def opened(value: Any, name: str = "X") -> Any:
    """Table that a value is, unless it is a DataFrame of pandas; anything else as it is."""
    if is_pandas_like(value):
        return value
    table = as_table(value, name)
    return value if table is None else table


def in_memory(value: Any) -> Any:
    """DataFrame of a table, for kernels of text and other objects; anything else as it is."""
    value = opened(value)
    return value.to_pandas() if isinstance(value, Table) else value


def _names(X: Any) -> list[str] | None:
    """Names of all columns of rows; None where these have none."""
    if isinstance(X, Table):
        return list(X.all_names)
    return [name for name in X.columns if isinstance(name, str)] if is_pandas_like(X) else None


def _columns_named(value: Any, names: list[str], argument: str) -> list[str] | None:
    """Columns that an argument names; None if it is something else, such as a path."""
    if not isinstance(value, str):
        return None
    text = value.removeprefix(OWN)
    parts = split_patterns(text, names, argument)
    found = [matching(part, names) for part in parts]
    is_path = not value.startswith(OWN) and (_exists(value) or "://" in value)
    if all(found):
        if is_path:
            raise InputError(
                f"{argument} is {value!r}, which is a column of X and a path; expected one of the two: './{value}' is "
                f"the path, and '{OWN}{value}' the column"
            )
        return list(dict.fromkeys(name for part in found for name in part))
    if is_path or (not any(found) and _looks_like_a_path(value)):
        return None
    missing = next(part for part, columns in zip(parts, found, strict=True) if not columns)
    raise InputError(
        f"{argument} has {missing!r}, which is neither a column of X nor a path that exists; expected "
        f"{suggested(missing, names)}, or a path"
    )


def _exists(path: str) -> bool:
    try:
        return Path(path.partition("::")[0]).exists()
    except (OSError, ValueError):  # too long a name, a null byte
        return False


def _looks_like_a_path(text: str) -> bool:
    return "/" in text or "::" in text or bool(Path(text).suffix)
