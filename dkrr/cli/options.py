"""Options of the models that commands fit or plan."""

import json
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import click

from dkrr.cli.candidates import candidates
from dkrr.errors import InputError
from dkrr.values import shown


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
