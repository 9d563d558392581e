"""``dkrr fit``, ``predict``, ``plan``, ``info``, ``calibrate`` ...; also ``dask dkrr ...``.

Exit status: 0 on success; 2 on bad usage or bad input, such as a model that is missing; 1 on failure, and where a fit
did not reach what was asked of it. Results go to stdout, all else to stderr.
"""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from dkrr.cli.output import (
    check_predictions_path,
    convergence_report,
    draw_convergence,
    fit_report,
    info_report,
    machine_report,
    write_predictions,
)
from dkrr.errors import DkrrError, InputError, PlanError, StoreError
from dkrr.solvers import ConjugateGradient, Status

_BAD_INPUT = (InputError, PlanError)


def main() -> None:
    """Entry point of the ``dkrr`` command."""
    dkrr(prog_name="dkrr")


@contextmanager
def _readable_errors() -> Iterator[None]:
    try:
        yield
    except _BAD_INPUT as error:
        click.echo(f"dkrr: {error}", err=True)
        sys.exit(2)
    except DkrrError as error:
        click.echo(f"dkrr: {error}", err=True)
        sys.exit(1)


@contextmanager
def _named_model() -> Iterator[None]:
    """A model that is named and cannot be read is bad input."""
    try:
        yield
    except StoreError as error:
        raise InputError(str(error)) from error


@contextmanager
def _cluster(address: str | None) -> Iterator[None]:
    """Make a running scheduler's client the ambient one."""
    if address is None:
        yield
        return
    from dkrr.runtime.dask_executor import connect

    with connect(address):
        yield


def _model_options(function: Callable[..., Any]) -> Callable[..., Any]:
    options = [
        click.option("--kernel", default="linear", show_default=True, help="linear, polynomial, rbf, laplacian, ..."),
        click.option("--gamma", type=float, help="γ of the kernel; default 1 / columns."),
        click.option("--degree", type=float, default=3, show_default=True, help="Degree of the polynomial kernel."),
        click.option("--coef0", type=float, default=1, show_default=True, help="Constant of the polynomial kernel."),
        click.option("--alpha", type=float, multiple=True, help="λ ≥ 0; once, or once for each target. [default: 1.0]"),
        click.option("--logistic", is_flag=True, help="Kernel logistic regression; y are labels of classes."),
        click.option(
            "--multi-class",
            type=click.Choice(["multinomial", "ovr"]),
            help="Of --logistic: one softmax, or each class against the rest.  [default: multinomial]",
        ),
        click.option(
            "--fit-intercept/--no-fit-intercept",
            default=None,
            help="Fit a constant that is not penalised.  [default: only with --logistic]",
        ),
        click.option("--form", type=click.Choice(["auto", "primal", "dual"]), default="auto", show_default=True),
        click.option(
            "--solver",
            type=click.Choice(["auto", "cholesky", "cg"]),
            default="auto",
            show_default=True,
            help="Direct, or conjugate gradient.",
        ),
        click.option(
            "--tol",
            type=float,
            default=1e-8,
            show_default=True,
            help="True relative residual asked of cg; with --logistic the relative gradient.",
        ),
        click.option("--solver-max-iter", type=int, help="Iterations of --solver cg.  [default: 1000]"),
        click.option("--memory-limit", help="For this fit on one machine, e.g. 4GiB."),
        click.option("--tile", type=int, help="Rows in a tile; default: the planner chooses."),
        click.option("--store", help="Run store, kept and resumed from; default: a temporary one."),
        click.option("--scheduler", metavar="ADDRESS", help="Use a running Dask cluster, e.g. tcp://host:8786."),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def _settings(**options: Any) -> dict[str, Any]:
    alpha, most = options.pop("alpha"), options.pop("solver_max_iter")
    if options["multi_class"] is None:
        del options["multi_class"]
    elif not options["logistic"]:
        raise InputError("--multi-class is of kernel logistic regression; give --logistic with it")
    if options["fit_intercept"] is None:
        options["fit_intercept"] = options["logistic"]
    if most is not None:
        if options["solver"] != "cg":
            raise InputError("--solver-max-iter is of conjugate gradient; give --solver cg with it")
        options["solver"] = ConjugateGradient(max_iter=most)
    return {**options, "alpha": alpha[0] if len(alpha) == 1 else list(alpha) or 1.0}


def _estimator(*, logistic: bool, class_weight: str | None, max_iter: int | None, **settings: Any) -> Any:
    """Estimator that was asked for."""
    import dkrr as library

    if logistic:
        if isinstance(settings["alpha"], list):
            raise InputError("--alpha may be given once with --logistic")
        if max_iter is not None:
            settings["max_iter"] = max_iter
        return library.KernelLogisticRegression(class_weight=class_weight, **settings)
    if class_weight is not None or max_iter is not None:
        raise InputError("--class-weight and --max-iter are of kernel logistic regression; give --logistic with them")
    return library.KernelRidge(**settings)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="dkrr")
def dkrr() -> None:
    """Exact kernel ridge and kernel logistic regression out of core and distributed.

    PATH is data.zarr, data.zarr/group/array, data.npy or data.npz::name.
    """


@dkrr.command()
@click.option("--x", "x_path", required=True, metavar="PATH", help="Training rows.")
@click.option("--y", "y_path", required=True, metavar="PATH", help="Targets.")
@click.option("--sample-weight", metavar="PATH", help="Weights of the rows.")
@click.option("--model", "model_path", required=True, metavar="PATH", help="Where to save the model.")
@click.option("--class-weight", type=click.Choice(["balanced"]), help="Of --logistic: classes count alike.")
@click.option("--max-iter", type=int, help="Newton steps of --logistic.  [default: 100]")
@click.option("--overwrite", is_flag=True, help="Replace the model that is at --model, once the new one is whole.")
@click.option(
    "--accept-unconverged",
    is_flag=True,
    help="Save the model, and end with status 0, even if the fit did not reach what was asked of it.",
)
@_model_options
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("--quiet", is_flag=True, help="No progress.")
def fit(
    x_path: str,
    y_path: str,
    sample_weight: str | None,
    model_path: str,
    overwrite: bool,
    accept_unconverged: bool,
    scheduler: str | None,
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Fit a model and save it: kernel ridge regression, or with --logistic kernel logistic regression.

    A fit that does not reach what was asked of it ends with status 1, and its model is not saved unless
    --accept-unconverged says so.
    """
    import dkrr as library
    from dkrr.persistence import check_model_path

    with _readable_errors(), _cluster(scheduler):
        check_model_path(model_path, overwrite=overwrite)
        model = _estimator(progress=not quiet, **_settings(**options))
        model.fit(x_path, y_path, sample_weight=sample_weight)
        is_good = accept_unconverged or model.solve_result_.status in (Status.SOLVED, Status.CONVERGED)
        if is_good:
            library.save(model, model_path, overwrite=overwrite)
        click.echo(fit_report(model, model_path if is_good else None, as_json=as_json))
        if not is_good:
            raise DkrrError(
                f"the fit ended {model.solve_result_.status.name}, and its model was not saved: "
                "--accept-unconverged saves such a model, and with --store a fit goes on where it stopped"
            )


@dkrr.command()
@click.option("--model", "model_path", required=True, metavar="PATH", help="A saved model.")
@click.option("--x", "x_path", required=True, metavar="PATH", help="Rows to predict.")
@click.option("--out", "out_path", required=True, metavar="PATH", help="New .zarr or .npy file for the predictions.")
@click.option("--overwrite", is_flag=True, help="Replace what is at --out, once the predictions are whole.")
@click.option("--scheduler", metavar="ADDRESS", help="Use a running Dask cluster.")
@click.option("--proba", is_flag=True, help="Write the probabilities of all classes, not the labels.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def predict(
    model_path: str, x_path: str, out_path: str, overwrite: bool, scheduler: str | None, proba: bool, as_json: bool
) -> None:
    """Predict with a saved model, a block of rows at a time; what is at --out is there whole or not at all."""
    import dkrr as library
    from dkrr.rows import open_path

    with _readable_errors(), _cluster(scheduler):
        check_predictions_path(out_path, overwrite=overwrite)
        with _named_model():
            model = library.load(model_path)
        if proba and not hasattr(model, "predict_proba"):
            raise InputError(f"--proba is of kernel logistic regression; {model_path} is a {type(model).__name__}")
        predictions = (model.predict_proba if proba else model.predict)(open_path(x_path))
        write_predictions(predictions, out_path, overwrite=overwrite)
        shape = list(predictions.shape)
        click.echo(json.dumps({"out": out_path, "shape": shape}) if as_json else f"{shape} predictions in {out_path}")


@dkrr.command()
@click.option("--x", "x_path", metavar="PATH", help="Training rows (only their sizes are read).")
@click.option("--y", "y_path", metavar="PATH", help="Targets.")
@click.option("--n", type=int, help="Rows, instead of --x.")
@click.option("--d", type=int, help="Columns, instead of --x.")
@click.option("--n-targets", type=int, default=1, show_default=True)
@click.option("--n-classes", type=int, help="Of --logistic, where --y does not say it.  [default: 2]")
@click.option("--workers", type=int, help="Worker processes; default: one for each core.")
@_model_options
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
def plan(x_path: str | None, y_path: str | None, scheduler: str | None, as_json: bool, **options: Any) -> None:
    """Show what a fit would do, what it would cost, and why; needs no data."""
    import dkrr as library

    with _readable_errors(), _cluster(scheduler):
        if (x_path is None) == (options["n"] is None or options["d"] is None):
            raise InputError("give either --x (with --y), or --n and --d")
        settings = _settings(**options)
        settings["loss"] = "logistic" if settings.pop("logistic") else "squared"
        result = library.plan(x_path, y_path, **settings)
        click.echo(json.dumps(result.to_dict(), indent=2) if as_json else str(result))


@dkrr.command()
@click.argument("model_path", metavar="[MODEL]", required=False)
@click.option("--scheduler", metavar="ADDRESS", help="Describe a running Dask cluster.")
@click.option("--json", "as_json", is_flag=True, help="Print the description as JSON.")
def info(model_path: str | None, scheduler: str | None, as_json: bool) -> None:
    """Describe a saved model; without one, this machine (or a cluster) and the rates that plans use."""
    from dkrr.machine import describe
    from dkrr.model_description import describe_model

    with _readable_errors(), _cluster(scheduler):
        if model_path is None:
            click.echo(machine_report(describe(), as_json=as_json))
        else:
            with _named_model():
                found = describe_model(model_path)
            click.echo(info_report(found, model_path, as_json=as_json))


@dkrr.command()
@click.option("--folder", help="On the file system to measure; default: the temporary directory.")
@click.option("--workers", type=int, help="Worker processes; default: one for each core.")
@click.option("--scheduler", metavar="ADDRESS", help="Measure the workers of a running Dask cluster.")
@click.option("--json", "as_json", is_flag=True, help="Print what was measured as JSON.")
def calibrate(folder: str | None, workers: int | None, scheduler: str | None, as_json: bool) -> None:
    """Measure how fast the workers, the store and Dask are here; plans use it from then on (10 to 20 seconds)."""
    import dask

    import dkrr as library
    from dkrr.machine import describe

    with (
        _readable_errors(),
        _cluster(scheduler),
        dask.config.set({} if workers is None else {"dkrr.local.workers": workers}),
    ):
        library.calibrate(folder)
        click.echo(machine_report(describe(), as_json=as_json))


@dkrr.command()
@click.argument("model_path", metavar="MODEL")
@click.option("--out", "out_path", metavar="PNG", help="Draw it, too (needs matplotlib).")
@click.option("--json", "as_json", is_flag=True, help="Print the history as JSON.")
def convergence(model_path: str, out_path: str | None, as_json: bool) -> None:
    """Show how the residual of a saved model fell, iteration by iteration."""
    from dkrr.model_description import describe_model

    with _readable_errors():
        with _named_model():
            found = describe_model(model_path)
        if not (found["solve"] or {}).get("history"):
            raise InputError(f"{model_path} has no convergence history: its solver was not iterative")
        if out_path is not None:
            draw_convergence(found, out_path)
        click.echo(convergence_report(found, as_json=as_json))
