"""Columns of a table as they are chosen on a command line."""

from collections.abc import Callable, Sequence
from typing import Any

import click

from dkrr.errors import InputError
from dkrr.values import location, shown

columns_option: Callable[..., Any] = click.option(
    "--columns",
    metavar="NAMES",
    help="Columns of the table --x to use: names and patterns such as 'dep_*,origin'.",
)
drop_missing_option: Callable[..., Any] = click.option(
    "--drop-missing",
    is_flag=True,
    help="Leave out the rows of the table --x with missing values in columns that are used; with --impute only those "
    "without a target or weight.",
)


def chosen_rows(x_path: str | None, columns: str | None) -> Any:
    """Some columns of the table at a path; the path itself without `columns`.

    Raises
    ------
    InputError
        If the path is not that of a table, or has no such column.
    """
    if columns is None:
        return x_path
    from dkrr.data import open_table
    from dkrr.data.table_opening import is_table_path

    if x_path is None or not is_table_path(location(x_path, "--x")):
        raise InputError(
            f"--columns is {shown(columns)}, and --x is not a table with named columns; expected a file or folder in "
            f"Parquet, CSV or Arrow's format, or no --columns"
        )
    return open_table(x_path).select(columns, "--columns")


def training_rows(
    x_path: str | None, columns: str | None, outputs: Sequence[Any], *, drop_missing: bool, is_filled: bool
) -> Any:
    """Some columns of the table at a path, with --drop-missing without the rows that miss a value; or the path.

    Parameters
    ----------
    outputs : sequence
        --y and --sample-weight.
    is_filled : bool
        Whether missing values of X are filled, so that only rows without a target or weight are left out.

    Raises
    ------
    InputError
        If the path is not that of a table, has no such column, or --y or --sample-weight is in another file.
    """
    X = chosen_rows(x_path, columns)
    if not drop_missing:
        return X
    from dkrr.data import Table, opened, with_columns

    table = None if X is None else opened(X)
    if not isinstance(table, Table):
        raise InputError(
            "--drop-missing is given, and --x is not a table with named columns; expected a file or folder in Parquet, "
            "CSV or Arrow's format, or no --drop-missing"
        )
    rest, *found = with_columns(table, *outputs)
    taken: list[str] = []
    for option, value, part in zip(("--y", "--sample-weight"), outputs, found, strict=True):
        if value is None:
            continue
        if not isinstance(part, Table) or part.source is not table.source:
            raise InputError(
                f"--drop-missing is given, and {option} is {shown(value)}, whose rows would no longer be those of --x; "
                f"expected a column of --x"
            )
        taken += part.names
    used = taken if is_filled else [*rest.names, *taken]
    return table.drop_missing(used) if used else table
