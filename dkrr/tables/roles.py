"""Targets and weights that are columns of the table of the rows: one rule, for estimators and the command line."""

from pathlib import Path
from typing import Any

from dkrr.errors import InputError
from dkrr.tables.base import Table
from dkrr.tables.names import matching, split_patterns, suggested
from dkrr.tables.opening import as_table

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
