"""Options that several commands have, and what they stand for: models, candidates, folds, columns, transformers."""

import json
import math
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import click
import numpy as np

from dkrr.errors import InputError, InputTypeError
from dkrr.values import location, shown


class OneNumber(click.types.FloatParamType):
    """A number; several are candidates of ``dkrr select``."""

    def fail(self, message: str, param: click.Parameter | None = None, ctx: click.Context | None = None) -> NoReturn:
        """Refuse a value."""
        super().fail(f"{message} Expected one number: dkrr select chooses among several", param, ctx)


kernel_param_option: Callable[..., Any] = click.option(
    "--kernel-param",
    multiple=True,
    metavar="NAME=VALUE",
    help="Another parameter of the kernel, such as nu=2.5 or length_scale=0.7 of matern; may be repeated.",
)


def kernel_params(given: Sequence[str]) -> dict[str, Any] | None:
    """Parameters of a kernel by name from values of --kernel-param; None without any.

    Raises
    ------
    InputError
        If one is not a name and a value, or is given twice.
    """
    found: dict[str, Any] = {}
    for text in given:
        name, separator, value = text.partition("=")
        if not separator or not name.strip() or not value.strip() or name.strip() in found:
            twice = ", given twice" if separator and name.strip() in found else ""
            raise InputError(f"--kernel-param is {shown(text)}{twice}; expected NAME=VALUE once for each name: nu=2.5")
        try:
            found[name.strip()] = json.loads(value)
        except ValueError:
            found[name.strip()] = value.strip()
    return found or None


def model_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of a model."""
    options = [
        click.option("--kernel", default="rbf", show_default=True, help="rbf, linear, polynomial, laplacian, ..."),
        click.option("--gamma", type=OneNumber(), help="γ of the kernel.  [default: 1 / columns]"),
        click.option(
            "--degree", type=OneNumber(), default=3, show_default=True, help="Degree of the polynomial kernel."
        ),
        click.option("--coef0", type=float, default=1, show_default=True, help="Constant of polynomial and sigmoid."),
        kernel_param_option,
        click.option(
            "--alpha", multiple=True, help="λ ≥ 0, or one for each target: 0.1,1,10, or repeated.  [default: 1.0]"
        ),
        click.option("--logistic", is_flag=True, help="Kernel logistic regression; y holds class labels."),
        click.option(
            "--multi-class",
            type=click.Choice(["multinomial", "ovr"]),
            help="With --logistic: one softmax, or each class against the rest.  [default: multinomial]",
        ),
        click.option(
            "--fit-intercept/--no-fit-intercept",
            default=None,
            help="Fit a constant that is not penalised.  [default: only with --logistic]",
        ),
        click.option(
            "--form",
            type=click.Choice(["auto", "primal", "dual"]),
            default="auto",
            show_default=True,
            help="Unknowns: weights of features (primal), or coefficients of rows (dual).",
        ),
        click.option(
            "--solver",
            type=click.Choice(["auto", "cholesky", "cg"]),
            default="auto",
            show_default=True,
            help="Direct solver, or conjugate gradient.",
        ),
        click.option(
            "--tol",
            type=float,
            default=1e-8,
            show_default=True,
            help="True relative residual required of cg; with --logistic the relative gradient.",
        ),
        click.option(
            "--solver-max-iter", type=int, help="With --solver cg: largest number of iterations.  [default: 1000]"
        ),
        click.option("--memory-limit", help="Memory of this fit on one machine, for example 4GiB."),
        click.option("--tile", type=int, help="Rows in a tile.  [default: chosen by the planner]"),
        click.option(
            "--store", metavar="PATH", help="Store of the run, kept and resumed from.  [default: a temporary one]"
        ),
        click.option("--scheduler", metavar="ADDRESS", help="Use a running Dask cluster, for example tcp://host:8786."),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def checked_settings(**options: Any) -> dict[str, Any]:
    """Arguments of an estimator from the options of `model_options`."""
    alpha, max_iter = candidates(options.pop("alpha"), "--alpha"), options.pop("solver_max_iter")
    if options["multi_class"] is None:
        del options["multi_class"]
    elif not options["logistic"]:
        raise InputError("--multi-class is given without --logistic; give --logistic with it")
    if options["fit_intercept"] is None:
        options["fit_intercept"] = options["logistic"]
    if max_iter is not None:
        from dkrr.solvers import ConjugateGradient

        if options["solver"] != "cg":
            raise InputError("--solver-max-iter is given without --solver cg; give --solver cg with it")
        options["solver"] = ConjugateGradient(max_iter=max_iter)
    options["kernel_params"] = kernel_params(options.pop("kernel_param"))
    return {**options, "alpha": alpha[0] if len(alpha) == 1 else alpha or 1.0}


MAX_ALPHAS = 10**6
"""No search has more values of λ."""


def candidates(given: Sequence[str], option: str) -> list[float]:
    """Numbers of one option or several: with commas between, or from:to:how-many with equal ratios.

    Raises
    ------
    InputError
        Naming the option.
    """
    return [value for text in given for value in _values(text, option)]


def _values(text: str, option: str) -> list[float]:
    try:
        if ":" in text:
            first, last, count = text.split(":")
            if not 0 < float(first) < float(last) < math.inf or not 2 <= int(count) <= MAX_ALPHAS:
                raise ValueError
            return [float(value) for value in np.geomspace(float(first), float(last), int(count))]
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(
            f"{option} is {shown(text)}; expected numbers with commas between, or from:to:how-many such as 1e-4:1:10"
        ) from None


def train_sizes(text: str, option: str) -> list[float] | list[int]:
    """Fractions, or whole numbers of rows, with commas between; raises InputError naming the option."""
    parts = text.split(",")
    try:
        return [int(part) for part in parts] if all(part.strip().isdigit() for part in parts) else [*map(float, parts)]
    except ValueError:
        raise InputError(
            f"{option} is {shown(text)}; expected fractions such as 0.125,0.25,0.5, or numbers of rows"
        ) from None


def folds_of_rows(cv: str, shuffle: int | None, *, is_classification: bool = False) -> Any:
    """Number of folds, or a splitter of random rows."""
    from dkrr.estimators.cross_validation import shuffled_folds

    count = whole(cv, "--cv")
    if shuffle is not None and not 0 <= shuffle < 2**32:
        raise InputError(f"--shuffle is {shown(shuffle)}; expected a seed from 0 to {2**32 - 1}")
    if shuffle is None or count < 2:
        return count
    return shuffled_folds(count, shuffle, is_classification=is_classification)


def whole(text: str, option: str, expected: str = "a whole number of folds, or loo") -> int:
    """Whole number; raises InputError naming the option."""
    try:
        return int(text)
    except ValueError:
        raise InputError(f"{option} is {shown(text)}; expected {expected}") from None


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
