"""Transformers of the columns of a table as they are asked for on a command line."""

from collections.abc import Callable
from typing import Any

import click

from dkrr.errors import InputError, InputTypeError
from dkrr.values import shown

OPTIONS = ("standardize", "one_hot", "unknown", "impute")


def transformer_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that make a transformer."""
    options = [
        click.option("--standardize", is_flag=True, help="Bring columns of numbers to mean 0 and deviation 1."),
        click.option("--one-hot", metavar="NAMES", help="Columns of --x that become one for each value."),
        click.option(
            "--unknown",
            type=click.Choice(["error", "zeros"]),
            help="With --one-hot: what another value is in new rows, an error or zeros.  [default: error]",
        ),
        click.option("--impute", type=click.Choice(["mean", "median"]), help="Fill missing numbers."),
    ]  # fmt: skip
    for option in reversed(options):
        function = option(function)
    return function


def chosen_transformer(X: Any, y: Any, sample_weight: Any, settings: dict[str, Any]) -> Any:
    """Transformer that the options in some settings ask for, which are taken out of them; None without any.

    Raises
    ------
    InputError
        If --one-hot is given without a table, or a column of text is not named there.
    """
    standardize, one_hot, unknown, impute = (settings.pop(name) for name in OPTIONS)
    if unknown is not None and one_hot is None:
        raise InputError("--unknown is given without --one-hot; give --one-hot with it")
    if one_hot is None and not standardize and impute is None:
        return None
    if X is None:
        raise InputError("--standardize, --one-hot or --impute is given without --x; expected --x with them")
    from dkrr.data.transformers_fitted import ColumnSteps

    encoded = _encoded(X, y, sample_weight, one_hot)
    return ColumnSteps(encoded, standardize, impute, takes_unknown=unknown == "zeros")


def _encoded(X: Any, y: Any, sample_weight: Any, one_hot: str | None) -> tuple[str, ...]:
    """Columns that --one-hot names; none of an array."""
    from dkrr.data import Table, opened, with_columns

    table = opened(X)
    if not isinstance(table, Table):
        if one_hot is not None:
            raise InputError(
                f"--one-hot is {shown(one_hot)}, and --x is not a table with named columns; expected a file or folder "
                f"in Parquet, CSV or Arrow's format"
            )
        return ()
    table = with_columns(table, y, sample_weight)[0]
    chosen = () if one_hot is None else table.select(one_hot, "--one-hot").columns
    for column in chosen:
        if column.kind in ("date", "other") or column.dtype.startswith("decimal"):
            raise InputTypeError(
                f"--one-hot has the column {column.name!r} of {column.dtype}, whose values a saved model cannot hold; "
                f"expected numbers, text or categories: convert it to text"
            )
    encoded = tuple(column.name for column in chosen)
    rest = table.without(encoded)
    for column in rest.columns:
        if column.kind != "number":
            raise InputTypeError(rest.not_numbers("--x", column))
    return encoded
