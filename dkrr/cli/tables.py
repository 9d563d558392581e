"""Columns of a table as they are chosen on a command line."""

from collections.abc import Callable
from typing import Any

import click

from dkrr.cli.batch import Several
from dkrr.errors import InputError
from dkrr.values import location, shown

columns_option: Callable[..., Any] = click.option(
    "--columns",
    type=Several(),
    metavar="NAMES",
    help="Columns of the table --x to use: names and patterns such as 'dep_*,origin'.",
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
    from dkrr.tables import open_table
    from dkrr.tables.opening import is_table_path

    if x_path is None or not is_table_path(location(x_path, "--x")):
        raise InputError(
            f"--columns is {shown(columns)}, and --x is not a table with named columns; expected a file or folder in "
            f"Parquet, CSV or Arrow's format, or no --columns"
        )
    return open_table(x_path).select(columns, "--columns")
