"""``dkrr select``: choose λ and kernels by cross-validation."""

from typing import Any

import click

from dkrr.cli.common import (
    check_folder,
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
    candidates,
    chosen_transformer,
    columns_option,
    drop_missing_option,
    folds_of_rows,
    kernel_param_option,
    kernel_params,
    train_sizes,
    training_rows,
    transformer_options,
)
from dkrr.cli.pictures import check_picture_path, write_picture
from dkrr.cli.reports import selection_report
from dkrr.errors import InputError


@click.command(cls=Configurable)
@config_option
@click.option("--x", "x_path", required=True, metavar="PATH", help="Training rows.")
@click.option("--y", "y_path", required=True, metavar="PATH|NAME", help="Targets, or their column in --x.")
@columns_option
@drop_missing_option
@transformer_options
@click.option("--sample-weight", metavar="PATH|NAME", help="Weights of the rows, or their column in --x.")
@click.option("--model", "model_path", metavar="PATH", help="Where to save the chosen model.")
@click.option("--overwrite", is_flag=True, help="Replace an existing model when the new one is complete.")
@uncertainty_option
@click.option(
    "--alphas",
    "--alpha",
    multiple=True,
    help="Candidates of λ: 0.1,1,10 or from:to:how-many.  [default: ten by the data's scale]",
)
@click.option("--cv", default="5", show_default=True, help="Number of folds, or loo: leave one row out at a time.")
@click.option("--shuffle", type=int, metavar="SEED", help="Folds of random rows, not of consecutive ones.")
@click.option("--scoring", help="One of scikit-learn's scorers.  [default: mean squared error, log loss]")
@click.option("--kernel", default=["rbf"], multiple=True, show_default=True, help="Kernel, or several: rbf,laplacian.")
@click.option("--gamma", multiple=True, help="γ of the kernel; several as for --alphas.  [default: 1 / columns]")
@click.option("--degree", multiple=True, help="Degree of the polynomial kernel; several as for --alphas.  [default: 3]")
@kernel_param_option
@click.option("--alpha-per-target", is_flag=True, help="A λ for every target.")
@click.option("--train-sizes", metavar="SIZES", help="A learning curve, too: 0.125,0.25,0.5 of the rows, or numbers.")
@click.option(
    "--fit-intercept/--no-fit-intercept",
    default=None,
    help="Fit a constant that is not penalised.  [default: only with --logistic]",
)
@click.option("--logistic", is_flag=True, help="Kernel logistic regression; y holds class labels.")
@click.option(
    "--multi-class",
    type=click.Choice(["multinomial", "ovr"]),
    help="With --logistic: one softmax, or each class against the rest.  [default: multinomial]",
)
@click.option("--class-weight", type=click.Choice(["balanced"]), help="With --logistic: equal total weights.")
@click.option("--max-iter", type=int, help="With --logistic: largest number of Newton steps.  [default: 100]")
@click.option("--solver", type=click.Choice(["auto", "cholesky", "cg"]), default="auto", show_default=True)
@click.option(
    "--tol", type=float, default=1e-8, show_default=True, help="True relative residual of the last fit by cg."
)
@click.option("--memory-limit", help="Memory on one machine, for example 4GiB.")
@click.option("--store", help="Folder for the stores of the run, kept and resumed from.")
@click.option("--scheduler", metavar="ADDRESS", help="Use a running Dask cluster, for example tcp://host:8786.")
@click.option("--out", "out_path", metavar="PNG", help="Draw the scores over λ (and rows) as well ('dkrr[report]').")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@quiet_option
def select(
    x_path: str,
    y_path: str,
    columns: str | None,
    drop_missing: bool,
    sample_weight: str | None,
    model_path: str | None,
    overwrite: bool,
    uncertainty: bool,
    cv: str,
    shuffle: int | None,
    scheduler: str | None,
    out_path: str | None,
    logistic: bool,
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Choose λ, the kernel and its parameters by cross-validation, and fit with the best.

    Models are of kernel ridge regression, or with --logistic of kernel logistic regression.
    """
    import dkrr as library
    from dkrr.cli import report_pictures as pictures
    from dkrr.estimators.saving import check_model_path
    from dkrr.estimators.summary import search_summary
    from dkrr.store.paths import refuse_enclosing

    with readable_errors(), cluster(scheduler):
        _check_loss(options, logistic=logistic)
        refuse_enclosing(
            {"--model": model_path, "--store": options["store"], "--out": out_path},
            {"--x": x_path, "--y": y_path, "--sample-weight": sample_weight},
        )
        if uncertainty and model_path is None:
            raise InputError("--uncertainty is given without --model; give --model with it")
        if model_path is not None:
            with named("--model"):
                check_model_path(model_path, overwrite=overwrite, name="--model")
        if out_path is not None:
            check_picture_path(out_path, overwrite=overwrite)
        check_folder(options["store"])
        is_filled = options["impute"] is not None
        X = training_rows(x_path, columns, (y_path, sample_weight), drop_missing=drop_missing, is_filled=is_filled)
        options["transformer"] = chosen_transformer(X, y_path, sample_weight, options)
        options["kernel_params"] = kernel_params(options.pop("kernel_param"))
        settings = {name: value for name, value in options.items() if value not in (None, ())}
        kernels = ",".join(settings.pop("kernel")).split(",")
        for name in ("alphas", "gamma", "degree"):
            if name in settings:
                settings[name] = candidates(settings[name], f"--{name}")
        if "train_sizes" in settings:
            settings["train_sizes"] = train_sizes(settings["train_sizes"], "--train-sizes")
        folds: Any = cv
        if cv != "loo":
            folds = folds_of_rows(cv, shuffle, is_classification=logistic)
        search = (library.KernelLogisticRegressionCV if logistic else library.KernelRidgeCV)(
            kernel=kernels if len(kernels) > 1 else kernels[0],
            cv=folds,
            refit=model_path is not None,
            progress=not quiet,
            **settings,
        )
        search.fit(X, y_path, sample_weight=sample_weight)
        if model_path is not None:
            save_or_keep(search, model_path, overwrite=overwrite, uncertainty=uncertainty)
        if out_path is not None:
            found = search_summary(search)
            curve = [pictures.learning_curve(found["curve"])] if found["curve"] else []
            scores = pictures.scores(found["candidates"], found["score_name"], found["advice"])
            write_picture(out_path, scores, *curve, overwrite=overwrite)
        echo(selection_report(search, model_path, as_json=as_json))


def _check_loss(options: dict[str, Any], *, logistic: bool) -> None:
    """Refuse options of the other loss, and drop those that this one does not have."""
    ours, theirs = ("class_weight", "multi_class", "max_iter"), ("store", "alpha_per_target")
    refused, word = (theirs, "with") if logistic else (ours, "without")
    for name in refused:
        if options[name]:
            flag = "--" + name.replace("_", "-")
            remedy = "leave it out" if logistic else "give --logistic with it"
            raise InputError(f"{flag} is given {word} --logistic; {remedy}")
        if name != "store":
            del options[name]
