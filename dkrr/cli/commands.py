"""``dkrr fit``, ``predict``, ``plan``, ``info``, ``calibrate`` ...; also ``dask dkrr ...``.

Exit status: 0 on success; 2 on bad usage or bad input, such as a missing model; 1 on failure, and if a fit did not
reach the required accuracy. Results go to stdout, everything else to stderr.
"""

import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from dkrr.cli.candidates import candidates, folds_of_rows, train_sizes, whole
from dkrr.cli.output import (
    check_picture_path,
    check_predictions_path,
    convergence_report,
    draw_convergence,
    draw_selection,
    fit_report,
    info_report,
    machine_report,
    selection_report,
    write_predictions,
)
from dkrr.errors import DkrrError, InputError, PlanError
from dkrr.solvers import ConjugateGradient, Status
from dkrr.values import location, shown

ADDRESS = r"([a-z]+://)?(\[[0-9a-fA-F:.%]+\]|[^\s/:]*[^\s/:\d][^\s/:]*):[0-9]{1,5}/?|inproc://\S+"
"""Of a scheduler: a protocol, a host and a port."""


def main() -> None:
    """Entry point of the ``dkrr`` command."""
    dkrr(prog_name="dkrr")


@contextmanager
def _readable_errors() -> Iterator[None]:
    try:
        yield
    except DkrrError as error:
        click.echo(f"dkrr: {error}", err=True)
        sys.exit(2 if isinstance(error, InputError | PlanError) else 1)
    except (OSError, MemoryError) as error:  # of the machine, during the work
        click.echo(f"dkrr: {type(error).__name__}: {error}", err=True)
        sys.exit(1)


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Report an unreadable model or store, which the user named, as bad input."""
    try:
        yield
    except OSError as error:  # as StoreError is
        raise InputError(f"{name}: {error}") from error


def _check_store(store: str | None) -> None:
    """Report a store that holds something else, which the user named, as bad input."""
    from dkrr.requests import stored_layout

    if store is not None:
        with _named("--store"):
            stored_layout(location(store, "--store", "the path or URL of the run's store"))


def _check_folder(store: str | None) -> None:
    """Refuse a file where the stores of a run are to be."""
    if store is not None:
        path = Path(location(store, "--store", "a folder for the stores of the run"))
        if path.exists() and not path.is_dir():
            raise InputError(f"--store is {shown(store)}, a file; expected a folder for the stores of the run")


@contextmanager
def _cluster(address: str | None) -> Iterator[None]:
    """Use a running scheduler's client as the ambient one."""
    if address is None:
        yield
        return
    if re.fullmatch(ADDRESS, address) is None:
        raise InputError(
            f"--scheduler is {shown(address)}, and no Dask scheduler has it; expected one such as tcp://host:8786"
        )
    from dkrr.runtime.dask_client import connect

    with connect(address):
        yield


def _model_options(function: Callable[..., Any]) -> Callable[..., Any]:
    options = [
        click.option("--kernel", default="linear", show_default=True, help="linear, polynomial, rbf, laplacian, ..."),
        click.option("--gamma", type=float, help="γ of the kernel.  [default: 1 / columns]"),
        click.option("--degree", type=float, default=3, show_default=True, help="Degree of the polynomial kernel."),
        click.option("--coef0", type=float, default=1, show_default=True, help="Constant of polynomial and sigmoid."),
        click.option("--alpha", type=float, multiple=True, help="λ ≥ 0, once or for each target.  [default: 1.0]"),
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
        click.option("--store", help="Store of the run, kept and resumed from.  [default: a temporary one]"),
        click.option("--scheduler", metavar="ADDRESS", help="Use a running Dask cluster, for example tcp://host:8786."),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def _settings(**options: Any) -> dict[str, Any]:
    alpha, max_iter = options.pop("alpha"), options.pop("solver_max_iter")
    if options["multi_class"] is None:
        del options["multi_class"]
    elif not options["logistic"]:
        raise InputError("--multi-class is given without --logistic; give --logistic with it")
    if options["fit_intercept"] is None:
        options["fit_intercept"] = options["logistic"]
    if max_iter is not None:
        if options["solver"] != "cg":
            raise InputError("--solver-max-iter is given without --solver cg; give --solver cg with it")
        options["solver"] = ConjugateGradient(max_iter=max_iter)
    return {**options, "alpha": alpha[0] if len(alpha) == 1 else list(alpha) or 1.0}


def _estimator(*, logistic: bool, class_weight: str | None, max_iter: int | None, **settings: Any) -> Any:
    import dkrr as library

    if logistic:
        if isinstance(settings["alpha"], list):
            raise InputError("--alpha is given more than once; expected one value with --logistic")
        if max_iter is not None:
            settings["max_iter"] = max_iter
        return library.KernelLogisticRegression(class_weight=class_weight, **settings)
    if class_weight is not None or max_iter is not None:
        raise InputError("--class-weight or --max-iter is given without --logistic; give --logistic with it")
    return library.KernelRidge(**settings)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="dkrr")
def dkrr() -> None:
    """Exact kernel ridge and kernel logistic regression, out of core and distributed.

    PATH is of the form data.zarr, data.zarr/group/array, data.npy or data.npz::name.
    """


@dkrr.command()
@click.option("--x", "x_path", required=True, metavar="PATH", help="Training rows.")
@click.option("--y", "y_path", required=True, metavar="PATH", help="Targets, or class labels.")
@click.option("--sample-weight", metavar="PATH", help="Weights of the rows.")
@click.option("--model", "model_path", required=True, metavar="PATH", help="Where to save the model.")
@click.option("--class-weight", type=click.Choice(["balanced"]), help="With --logistic: equal total weights.")
@click.option("--max-iter", type=int, help="With --logistic: largest number of Newton steps.  [default: 100]")
@click.option("--overwrite", is_flag=True, help="Replace an existing model when the new one is complete.")
@click.option(
    "--accept-unconverged",
    is_flag=True,
    help="Save the model, with exit status 0, even if the fit did not reach the required accuracy.",
)
@_model_options
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("--quiet", is_flag=True, help="Do not show progress.")
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

    A fit that does not reach the required accuracy ends with status 1, and its model is saved only with
    --accept-unconverged.
    """
    import dkrr as library
    from dkrr.persistence import check_model_path

    with _readable_errors(), _cluster(scheduler):
        check_model_path(model_path, overwrite=overwrite, name="--model")
        _check_store(options["store"])
        model = _estimator(progress=not quiet, **_settings(**options))
        model.fit(x_path, y_path, sample_weight=sample_weight)
        is_good = accept_unconverged or model.solve_result_.status in (Status.SOLVED, Status.CONVERGED)
        if is_good:
            library.save(model, model_path, overwrite=overwrite)
        click.echo(fit_report(model, model_path if is_good else None, as_json=as_json))
        if not is_good:
            raise DkrrError(
                f"the fit ended with status {model.solve_result_.status.name}, and its model was not saved: "
                "--accept-unconverged saves such a model, and with --store the same command resumes the fit"
            )


@dkrr.command()
@click.option("--x", "x_path", required=True, metavar="PATH", help="Training rows.")
@click.option("--y", "y_path", required=True, metavar="PATH", help="Targets.")
@click.option("--sample-weight", metavar="PATH", help="Weights of the rows.")
@click.option("--model", "model_path", metavar="PATH", help="Where to save the chosen model.")
@click.option("--overwrite", is_flag=True, help="Replace an existing model when the new one is complete.")
@click.option("--alphas", help="Candidates of λ: 0.1,1,10 or from:to:how-many.  [default: ten by the data's scale]")
@click.option("--cv", default="5", show_default=True, help="Number of folds, or loo: leave one row out at a time.")
@click.option("--shuffle", type=int, metavar="SEED", help="Folds of random rows, not of consecutive ones.")
@click.option("--scoring", help="One of scikit-learn's scorers of predictions.  [default: mean squared error]")
@click.option("--kernel", default="rbf", show_default=True, help="Kernel, or several with commas between.")
@click.option("--gamma", help="γ of the kernel; several as for --alphas.  [default: 1 / columns]")
@click.option("--degree", help="Degree of the polynomial kernel; several as for --alphas.  [default: 3]")
@click.option("--alpha-per-target", is_flag=True, help="A λ for every target.")
@click.option("--train-sizes", metavar="SIZES", help="A learning curve, too: 0.125,0.25,0.5 of the rows, or numbers.")
@click.option("--fit-intercept/--no-fit-intercept", default=False, help="Fit a constant that is not penalised.")
@click.option("--solver", type=click.Choice(["auto", "cholesky", "cg"]), default="auto", show_default=True)
@click.option(
    "--tol", type=float, default=1e-8, show_default=True, help="True relative residual of the last fit by cg."
)
@click.option("--memory-limit", help="Memory on one machine, for example 4GiB.")
@click.option("--store", help="Folder for the stores of the run, kept and resumed from.")
@click.option("--scheduler", metavar="ADDRESS", help="Use a running Dask cluster, for example tcp://host:8786.")
@click.option("--out", "out_path", metavar="PNG", help="Draw the scores over λ (and rows) as well (needs matplotlib).")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("--quiet", is_flag=True, help="Do not show progress.")
def select(
    x_path: str,
    y_path: str,
    sample_weight: str | None,
    model_path: str | None,
    overwrite: bool,
    cv: str,
    shuffle: int | None,
    scheduler: str | None,
    out_path: str | None,
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Choose λ, the kernel and its parameters by cross-validation, and fit with the best."""
    import dkrr as library
    from dkrr.persistence import check_model_path

    with _readable_errors(), _cluster(scheduler):
        if model_path is not None:
            check_model_path(model_path, overwrite=overwrite, name="--model")
        if out_path is not None:
            check_picture_path(out_path)
        _check_folder(options["store"])
        settings = {name: value for name, value in options.items() if value is not None}
        kernels = settings.pop("kernel").split(",")
        for name in ("alphas", "gamma", "degree"):
            if name in settings:
                settings[name] = candidates(settings[name], f"--{name}")
        if "train_sizes" in settings:
            settings["train_sizes"] = train_sizes(settings["train_sizes"], "--train-sizes")
        folds: Any = cv
        if cv != "loo":
            folds = folds_of_rows(cv, shuffle)
        search = library.KernelRidgeCV(
            kernel=kernels if len(kernels) > 1 else kernels[0],
            cv=folds,
            refit=model_path is not None,
            progress=not quiet,
            **settings,
        )
        search.fit(x_path, y_path, sample_weight=sample_weight)
        if model_path is not None:
            library.save(search, model_path, overwrite=overwrite)
        if out_path is not None:
            draw_selection(search, out_path)
        click.echo(selection_report(search, model_path, as_json=as_json))


@dkrr.command()
@click.option("--model", "model_path", required=True, metavar="PATH", help="Saved model.")
@click.option("--x", "x_path", required=True, metavar="PATH", help="Rows to predict.")
@click.option("--out", "out_path", required=True, metavar="PATH", help="New .zarr or .npy file of the predictions.")
@click.option("--overwrite", is_flag=True, help="Replace an existing file when the predictions are complete.")
@click.option("--scheduler", metavar="ADDRESS", help="Use a running Dask cluster.")
@click.option("--proba", is_flag=True, help="Write the probabilities of all classes instead of labels.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def predict(
    model_path: str, x_path: str, out_path: str, overwrite: bool, scheduler: str | None, proba: bool, as_json: bool
) -> None:
    """Predict with a saved model, one block of rows at a time; --out is created only when it is complete."""
    import dkrr as library
    from dkrr.rows import open_path

    with _readable_errors(), _cluster(scheduler):
        check_predictions_path(out_path, overwrite=overwrite)
        with _named("--model"):
            model = library.load(location(model_path, "--model", "the path or URL of a saved model"))
        if proba and not hasattr(model, "predict_proba"):
            raise InputError(
                f"--proba is given, but {model_path} is a {type(model).__name__}; expected a KernelLogisticRegression"
            )
        predictions = (model.predict_proba if proba else model.predict)(open_path(x_path))
        write_predictions(predictions, out_path, overwrite=overwrite)
        shape = list(predictions.shape)
        click.echo(json.dumps({"out": out_path, "shape": shape}) if as_json else f"{shape} predictions in {out_path}")


@dkrr.command()
@click.option("--x", "x_path", metavar="PATH", help="Training rows (only sizes and a sample are read).")
@click.option("--y", "y_path", metavar="PATH", help="Targets, or class labels.")
@click.option("--n", type=int, help="Number of rows, instead of --x.")
@click.option("--d", type=int, help="Number of columns, instead of --x.")
@click.option("--n-targets", type=int, default=1, show_default=True, help="Number of targets, instead of --y.")
@click.option("--n-classes", type=int, help="With --logistic: number of classes, instead of --y.  [default: 2]")
@click.option("--workers", type=int, help="Worker processes.  [default: one for each core]")
@click.option("--worker-memory", help="With --workers: memory of each, for a cluster that need not exist.")
@click.option("--alphas", type=int, help="Plan the choice among so many λ by cross-validation.")
@click.option("--cv", help="Number of its folds, or loo.  [default: 5 with --alphas]")
@click.option("--train-sizes", metavar="SIZES", help="Its learning curve: 0.125,0.25,0.5 of the rows, or numbers.")
@_model_options
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
def plan(x_path: str | None, y_path: str | None, scheduler: str | None, as_json: bool, **options: Any) -> None:
    """Show what a fit would do, its projected cost, and the reasons; sizes are enough."""
    import dkrr as library

    with _readable_errors(), _cluster(scheduler):
        if (x_path is None) == (options["n"] is None or options["d"] is None):
            raise InputError("expected either --x (with --y), or --n and --d")
        _check_store(options["store"])
        settings = _settings(**options)
        settings["loss"] = "logistic" if settings.pop("logistic") else "squared"
        if settings["cv"] not in (None, "loo"):
            settings["cv"] = whole(settings["cv"], "--cv")
        if settings["train_sizes"] is not None:
            settings["train_sizes"] = train_sizes(settings["train_sizes"], "--train-sizes")
        result = library.plan(x_path, y_path, **settings)
        click.echo(json.dumps(result.to_dict(), indent=2) if as_json else str(result))


@dkrr.command()
@click.argument("model_path", metavar="[MODEL]", required=False)
@click.option("--scheduler", metavar="ADDRESS", help="Describe a running Dask cluster.")
@click.option("--json", "as_json", is_flag=True, help="Print the description as JSON.")
def info(model_path: str | None, scheduler: str | None, as_json: bool) -> None:
    """Describe a saved model; without MODEL, this machine (or a cluster) and the rates that plans use."""
    from dkrr.machine import describe
    from dkrr.model_description import describe_model

    with _readable_errors(), _cluster(scheduler):
        if model_path is None:
            click.echo(machine_report(describe(), as_json=as_json))
        else:
            with _named("MODEL"):
                found = describe_model(location(model_path, "MODEL", "the path or URL of a saved model"))
            click.echo(info_report(found, model_path, as_json=as_json))


@dkrr.command()
@click.argument("path", metavar="RUN|MODEL")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def verify(path: str, as_json: bool) -> None:
    """Read a run's store or a model whole, and compare it with its checksums; exit status 1 if it is damaged."""
    import dkrr as library

    with _readable_errors():
        with _named("RUN|MODEL"):
            found = library.verify(location(path, "RUN|MODEL", "the path or URL of a run or a model"))
        click.echo(json.dumps(found.to_dict()) if as_json else str(found))
        sys.exit(0 if found.is_whole else 1)


@dkrr.command()
@click.argument("path", metavar="RUN")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def status(path: str, as_json: bool) -> None:
    """Say what the store of a run holds, how far the run is, and what is left."""
    import dkrr as library

    with _readable_errors():
        with _named("RUN"):
            found = library.status(location(path, "RUN", "the path or URL of a run"))
        click.echo(json.dumps(found.to_dict()) if as_json else str(found))


@dkrr.command()
@click.option("--folder", help="Folder on the file system to measure.  [default: the temporary directory]")
@click.option("--workers", type=int, help="Worker processes.  [default: one for each core]")
@click.option("--scheduler", metavar="ADDRESS", help="Measure the workers of a running Dask cluster.")
@click.option("--json", "as_json", is_flag=True, help="Print the measured rates as JSON.")
def calibrate(folder: str | None, workers: int | None, scheduler: str | None, as_json: bool) -> None:
    """Measure the speed of workers, store and Dask here, for later plans (10 to 20 seconds)."""
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
@click.option("--out", "out_path", metavar="PNG", help="Draw the history as well (needs matplotlib).")
@click.option("--json", "as_json", is_flag=True, help="Print the history as JSON.")
def convergence(model_path: str, out_path: str | None, as_json: bool) -> None:
    """Show the residual of a saved model at each iteration."""
    from dkrr.model_description import describe_model

    with _readable_errors():
        with _named("MODEL"):
            found = describe_model(location(model_path, "MODEL", "the path or URL of a saved model"))
        if not (found["solve"] or {}).get("history"):
            raise InputError(f"{model_path} does not have a convergence history: its solver was not iterative")
        if out_path is not None:
            check_picture_path(out_path)
            draw_convergence(found, out_path)
        click.echo(convergence_report(found, as_json=as_json))
