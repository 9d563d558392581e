"""From a path or a container to a `Table`, and from names of its columns to targets."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dkrr.errors import InputError, InputTypeError
from dkrr.tables.base import Table
from dkrr.tables.source import Source
from dkrr.values import is_existing_folder, location, shown

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
    source = _source_of(value)
    return None if source is None else Table.of(source)


def is_table_path(path: str) -> bool:
    """Whether a path is that of a table, told from its name and the files in a folder."""
    file = path.partition("::")[0]
    if file.lower().endswith(FORMATS):
        return True
    folder = Path(file)
    if "://" in file or not _is_folder(folder) or any((folder / zarr).exists() for zarr in ZARR):
        return False
    return next(_files_in(folder), None) is not None


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


def _opened(file: str) -> Source:
    if "://" in file:
        if not file.lower().rstrip("/").endswith(PARQUET):
            raise InputError(f"{file} is a URL; expected a file in Parquet there: download or convert this one first")
        return _parquet(file, file)
    paths = _files(Path(file))
    for path in paths or ([file] if Path(file).exists() else []):
        is_existing_folder(path)
    if not paths:
        raise InputError(f"the path {file} does not exist, or has no files of a table")
    suffix = paths[0].lower()
    if suffix.endswith(PARQUET):
        return _parquet(file if Path(file).exists() else paths, file)
    try:
        from dkrr.tables.spooled import ArrowFileSource, CsvSource
    except ImportError as error:
        raise _without_arrow(file, error) from error
    return (CsvSource if suffix.endswith(CSV) else ArrowFileSource)(paths, file)


def _parquet(path: str | list[str], label: str) -> Source:
    try:
        from dkrr.tables.parquet import ParquetSource
    except ImportError as error:
        raise _without_arrow(label, error) from error
    return ParquetSource(path, label)


def _without_arrow(what: str, error: ImportError) -> InputError:
    return InputError(
        f"{what} is a table, and the package {error.name} is missing; expected it to be installed: {PACKAGES}"
    )


def _files(path: Path) -> list[str]:
    """Files of a table at a path, in a folder, or that fit a pattern, in the order of their names."""
    if path.is_file():
        return [str(path)]
    if _is_folder(path):
        return list(_files_in(path))
    if "*" in path.name:
        return [str(file) for file in sorted(path.parent.glob(path.name)) if file.is_file()]
    return []


def _files_in(folder: Path) -> Iterator[str]:
    """Files of a table in a folder, all of the format of the first one; with Parquet also those of its partitions."""
    suffix, partitions = None, []
    for path in sorted(folder.iterdir()):
        if path.name.startswith((".", "_")):  # other programs' own files
            continue
        found = next((end for end in FORMATS if path.name.lower().endswith(end)), None)
        if found is not None and suffix in (None, found):
            suffix = found
            yield str(path)
        elif "=" in path.name and _is_folder(path):
            partitions.append(path)
    if suffix is None:
        for path in partitions:
            yield from (file for file in _files_in(path) if file.lower().endswith(PARQUET))


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir() and os.access(path, os.R_OK | os.X_OK)
    except OSError:  # too long a name
        return False


def _source_of(value: Any) -> Source | None:
    """Source of a frame in memory or a lazy one, told without importing what the value is not from."""
    package = type(value).__module__.partition(".")[0]
    if package not in ("pandas", "polars", "pyarrow") or package not in sys.modules:
        return None
    kind = type(value).__name__
    if kind not in ("DataFrame", "LazyFrame", "Table", "RecordBatch"):
        return None
    try:
        import pyarrow

        from dkrr.tables.arrow import ArrowSource
        from dkrr.tables.parquet import reading
    except ImportError as error:
        raise _without_arrow(f"the {kind} of {package}", error) from error
    if kind == "LazyFrame":
        from dkrr.tables.spooled import LazyFrameSource

        return LazyFrameSource(value)
    if package == "polars":
        return ArrowSource(value.to_arrow(), "the frame")
    if package == "pandas":
        names = [name for name in value.columns if not isinstance(name, str)]
        if names:
            raise InputTypeError(f"the frame has the column {names[0]!r}; expected names of text for all columns")
        with reading("the frame"):
            return ArrowSource(pyarrow.Table.from_pandas(value, preserve_index=False), "the frame")
    return ArrowSource(value if kind == "Table" else pyarrow.Table.from_batches([value]))
