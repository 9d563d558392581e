"""``dkrr fit``: fit a model and save it, or all models of a job file."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import click

from dkrr.cli.batch import Required, job_command
from dkrr.cli.common import check_store, cluster, quiet_option, readable_errors
from dkrr.cli.options import checked_settings, model_options
from dkrr.cli.reports import fit_report
from dkrr.cli.tables import columns_option, drop_missing_option, training_rows
from dkrr.cli.transformers import chosen_transformer, transformer_options
from dkrr.errors import DkrrError, InputError
from dkrr.jobs.batch import UnusableModelError


class FitTask:
    """What a job does with each model."""

    def __init__(self) -> None:
        self._together: dict[str, Any] = {}

    def group(self, arguments: Mapping[str, Any]) -> Hashable:
        """What a model has in common with those that are solved together with it; None: it is solved alone."""
        from dkrr.cli.fit_together import group_of

        return group_of(arguments)

    def begin(self, groups: Sequence[Sequence[Mapping[str, Any]]]) -> None:
        """Take the models of a job that are to be fitted, in groups."""
        from dkrr.cli.fit_together import parts_of

        parts = [part for group in groups for part in parts_of(group)]
        self._together = {path: part for part in parts for path in part.group}

    def prepare(self, arguments: Mapping[str, Any], *, overwrite: bool) -> Any:
        """Check all arguments but the numbers in files, and plan the fit."""
        import dkrr as library
        from dkrr.rows import open_path
        from dkrr.tables.opening import is_table_path

        data = ("x_path", "y_path", "columns", "drop_missing", "sample_weight", "model_path", "accept_unconverged")
        options = {name: value for name, value in arguments.items() if name not in (*data, "scheduler")}
        _check_places(arguments["model_path"], options["store"], overwrite=overwrite)
        rows = training_rows(
            arguments["x_path"],
            arguments["columns"],
            (arguments["y_path"], arguments["sample_weight"]),
            drop_missing=arguments["drop_missing"],
            is_filled=arguments["impute"] is not None,
        )
        transformer = chosen_transformer(rows, arguments["y_path"], arguments["sample_weight"], options)
        settings = checked_settings(**options) | {"transformer": transformer}
        _estimator(progress=False, **settings)
        del settings["class_weight"], settings["max_iter"]
        settings["loss"] = "logistic" if settings.pop("logistic") else "squared"
        if arguments["sample_weight"] is not None and not is_table_path(arguments["x_path"]):
            open_path(arguments["sample_weight"], "sample_weight")
        return library.plan(rows, arguments["y_path"], **settings)

    def carry_out(
        self, arguments: Mapping[str, Any], *, overwrite: bool, quiet: bool, origin: dict[str, Any]
    ) -> dict[str, Any]:
        """Fit and save a model."""
        from dkrr.persistence import save_with_origin

        settings = {name: value for name, value in arguments.items() if name != "scheduler"}
        # None: a fit of a moment logs no stages.
        progress = False if quiet else None
        model = self._taken(settings, progress)
        if model is None:
            model, is_saved = _fitted(overwrite=overwrite, progress=progress, origin=origin, **settings)
        else:
            is_saved = True
            save_with_origin(model, arguments["model_path"], overwrite=overwrite, origin=origin)
        plan = model.plan_
        short = {"form": plan.form, "solver": plan.solver, "execution": plan.execution, "seconds": plan.seconds}
        path = arguments["model_path"] if is_saved else None
        facts: dict[str, Any] = {"model": path} | model.solve_result_.to_dict() | {"plan": short}
        if not is_saved:
            raise UnusableModelError(_unusable(model), facts)
        return facts

    def _taken(self, settings: dict[str, Any], progress: bool | None) -> Any:
        """Model that was solved together with others; None if there is none."""
        together = self._together.get(settings["model_path"])
        if together is None:
            return None

        others = ("y_path", "model_path", "accept_unconverged")
        options = {name: value for name, value in settings.items() if name not in others}

        def solved(y: Any, store: str | None) -> Any:
            model = _solved(y, progress=progress, **options | {"store": store})
            return model if _is_accurate(model) else None

        return together.take(settings, solved)

    def clean(self, arguments: Mapping[str, Any]) -> None:
        """Delete the store of the run."""
        from dkrr.tiles.files import delete

        together = self._together.get(arguments["model_path"])
        stores = [arguments["store"], together.store if together is not None and together.is_over else None]
        for store in stores:
            if store is not None:
                delete(store)


@click.command()
@click.option("--x", "x_path", cls=Required, required=True, metavar="PATH", help="Training rows.")
@click.option(
    "--y",
    "y_path",
    cls=Required,
    required=True,
    metavar="PATH|NAME",
    help="Targets or class labels, or their column in --x.",
)
@columns_option
@drop_missing_option
@click.option("--sample-weight", metavar="PATH|NAME", help="Weights of the rows, or their column in --x.")
@click.option("--model", "model_path", cls=Required, required=True, metavar="PATH", help="Where to save the model.")
@click.option("--class-weight", type=click.Choice(["balanced"]), help="With --logistic: equal total weights.")
@click.option("--max-iter", type=int, help="With --logistic: largest number of Newton steps.  [default: 100]")
@click.option("--overwrite", is_flag=True, help="Replace an existing model when the new one is complete.")
@click.option(
    "--accept-unconverged",
    is_flag=True,
    help="Save the model, with exit status 0, even if the fit did not reach the required accuracy.",
)
@transformer_options
@model_options
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@quiet_option
@job_command(FitTask())
def fit(scheduler: str | None, as_json: bool, quiet: bool, **arguments: Any) -> None:
    """Fit a model and save it: kernel ridge regression, or with --logistic kernel logistic regression.

    A fit that does not reach the required accuracy ends with status 1, and its model is saved only with
    --accept-unconverged.

    JOB is a TOML or YAML file with many models; its keys are the options. See docs/batch.md.
    """
    with readable_errors(), cluster(scheduler):
        model, is_saved = _fitted(progress=not quiet, **arguments)
        path = arguments["model_path"] if is_saved else None
        click.echo(fit_report(model, path, as_json=as_json, is_short=quiet))
        if not is_saved:
            raise DkrrError(_unusable(model))


def _fitted(
    *,
    y_path: Any,
    model_path: str,
    overwrite: bool,
    accept_unconverged: bool,
    origin: dict[str, Any] | None = None,
    **options: Any,
) -> tuple[Any, bool]:
    """Fitted model, and whether it was saved: not if it is less accurate than required."""
    from dkrr.persistence import save_with_origin

    _check_places(model_path, options["store"], overwrite=overwrite)
    model = _solved(y_path, **options)
    is_good = accept_unconverged or _is_accurate(model)
    if is_good:
        save_with_origin(model, model_path, overwrite=overwrite, origin=origin)
    return model, is_good


def _solved(
    y: Any,
    *,
    x_path: str,
    columns: str | None,
    drop_missing: bool,
    sample_weight: str | None,
    progress: bool | None,
    **options: Any,
) -> Any:
    """Fitted model."""
    is_filled = options["impute"] is not None
    X = training_rows(x_path, columns, (y, sample_weight), drop_missing=drop_missing, is_filled=is_filled)
    transformer = chosen_transformer(X, y, sample_weight, options)
    model = _estimator(progress=progress, transformer=transformer, **checked_settings(**options))
    return model.fit(X, y, sample_weight=sample_weight)


def _is_accurate(model: Any) -> bool:
    from dkrr.solvers import Status

    return model.solve_result_.status in (Status.SOLVED, Status.CONVERGED)


def _unusable(model: Any) -> str:
    """Message about a model that was not saved."""
    return (
        f"the fit ended with status {model.solve_result_.status.name}, and its model was not saved: "
        "--accept-unconverged saves such a model, and with --store the same command resumes the fit"
    )


def _check_places(model_path: str, store: str | None, *, overwrite: bool) -> None:
    from dkrr.persistence import check_model_path

    check_model_path(model_path, overwrite=overwrite, name="--model")
    check_store(store)


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
