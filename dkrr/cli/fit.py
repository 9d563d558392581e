"""``dkrr fit``: fit a model and save it."""

from typing import Any

import click

from dkrr.cli.common import (
    check_store,
    cluster,
    echo,
    named,
    quiet_option,
    readable_errors,
    save_or_keep,
    uncertainty_option,
)
from dkrr.cli.config import Configurable, config_option
from dkrr.cli.options import (
    checked_settings,
    chosen_transformer,
    columns_option,
    drop_missing_option,
    model_options,
    training_rows,
    transformer_options,
)
from dkrr.cli.reports import fit_report
from dkrr.errors import DkrrError, InputError


@click.command(cls=Configurable)
@config_option
@click.option("--x", "x_path", required=True, metavar="PATH", help="Training rows.")
@click.option(
    "--y", "y_path", required=True, metavar="PATH|NAME", help="Targets or class labels, or their column in --x."
)
@columns_option
@drop_missing_option
@click.option("--sample-weight", metavar="PATH|NAME", help="Weights of the rows, or their column in --x.")
@click.option("--model", "model_path", required=True, metavar="PATH", help="Where to save the model.")
@click.option("--class-weight", type=click.Choice(["balanced"]), help="With --logistic: equal total weights.")
@click.option("--max-iter", type=int, help="With --logistic: largest number of Newton steps.  [default: 100]")
@click.option("--overwrite", is_flag=True, help="Replace an existing model when the new one is complete.")
@uncertainty_option
@click.option(
    "--accept-unconverged",
    is_flag=True,
    help="Save the model, with exit status 0, even if the fit did not reach the required accuracy.",
)
@transformer_options
@model_options
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@quiet_option
def fit(
    x_path: str,
    y_path: str,
    columns: str | None,
    drop_missing: bool,
    sample_weight: str | None,
    model_path: str,
    overwrite: bool,
    uncertainty: bool,
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
    from dkrr.estimators.saving import check_model_path
    from dkrr.store.paths import refuse_enclosing

    with readable_errors(), cluster(scheduler):
        inputs = {"--x": x_path, "--y": y_path, "--sample-weight": sample_weight}
        refuse_enclosing({"--model": model_path, "--store": options["store"]}, inputs)
        with named("--model"):
            check_model_path(model_path, overwrite=overwrite, name="--model")
        check_store(options["store"])
        if uncertainty and (options["logistic"] or options["kernel"] == "precomputed"):
            what = "--logistic" if options["logistic"] else "--kernel precomputed"
            raise InputError(f"--uncertainty is given with {what}, which has none; expected a regression of rows")
        is_filled = options["impute"] is not None
        X = training_rows(x_path, columns, (y_path, sample_weight), drop_missing=drop_missing, is_filled=is_filled)
        transformer = chosen_transformer(X, y_path, sample_weight, options)
        model = _estimator(progress=not quiet, transformer=transformer, **checked_settings(**options))
        model.fit(X, y_path, sample_weight=sample_weight)
        is_saved = accept_unconverged or _is_accurate(model)
        if is_saved:
            save_or_keep(model, model_path, overwrite=overwrite, uncertainty=uncertainty)
        echo(fit_report(model, model_path if is_saved else None, as_json=as_json, is_short=quiet))
        if not is_saved:
            raise DkrrError(
                f"the fit ended with status {model.solve_result_.status.name}, and its model was not saved: "
                "--accept-unconverged saves such a model, and with --store the same command resumes the fit"
            )


def _is_accurate(model: Any) -> bool:
    from dkrr.solvers import Status

    return model.solve_result_.status in (Status.SOLVED, Status.CONVERGED)


def _estimator(*, logistic: bool, class_weight: str | None, max_iter: int | None, **settings: Any) -> Any:
    import dkrr as library

    if logistic:
        if isinstance(settings["alpha"], list):
            raise InputError("--alpha has several values; expected one value with --logistic")
        if max_iter is not None:
            settings["max_iter"] = max_iter
        return library.KernelLogisticRegression(class_weight=class_weight, **settings)
    if class_weight is not None or max_iter is not None:
        raise InputError("--class-weight or --max-iter is given without --logistic; give --logistic with it")
    return library.KernelRidge(**settings)
