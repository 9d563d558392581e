"""``dkrr predict``: predict with a saved model."""

import json
from typing import Any

import click

from dkrr.cli.common import cluster, echo, named, readable_errors
from dkrr.cli.config import Configurable, config_option
from dkrr.cli.options import chosen_rows, columns_option
from dkrr.errors import InputError
from dkrr.values import location


@click.command(cls=Configurable)
@config_option
@click.option("--model", "model_path", required=True, metavar="PATH", help="Saved model.")
@click.option("--x", "x_path", required=True, metavar="PATH", help="Rows to predict.")
@columns_option
@click.option(
    "--out",
    "out_path",
    required=True,
    metavar="PATH",
    help="New file of the predictions: .parquet, .csv, .arrow, .zarr or .npy.",
)
@click.option("--keep", metavar="NAMES", help="Columns of the table --x that are copied beside the predictions.")
@click.option("--overwrite", is_flag=True, help="Replace an existing file when the predictions are complete.")
@click.option("--scheduler", metavar="ADDRESS", help="Use a running Dask cluster.")
@click.option("--proba", is_flag=True, help="Write the probabilities of all classes instead of labels.")
@click.option("--std", is_flag=True, help="Write the standard deviations of the predictions as well.")
@click.option("--interval", type=float, metavar="COVERAGE", help="Write intervals of this probability as well: 0.9.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def predict(
    model_path: str,
    x_path: str,
    columns: str | None,
    out_path: str,
    keep: str | None,
    overwrite: bool,
    scheduler: str | None,
    proba: bool,
    std: bool,
    interval: float | None,
    as_json: bool,
) -> None:
    """Predict with a saved model, one block of rows at a time; --out is created only when it is complete."""
    import dkrr as library
    from dkrr.predictions_out import check_predictions_path
    from dkrr.store.paths import refuse_enclosing

    with readable_errors(), cluster(scheduler):
        refuse_enclosing({"--out": out_path}, {"--x": x_path, "--model": model_path})
        with named("--out"):
            check_predictions_path(out_path, overwrite=overwrite, name="--out")
        with named("--model"):
            model = library.load(location(model_path, "--model", "the path or URL of a saved model", is_kept=True))
        if proba and not hasattr(model, "predict_proba"):
            raise InputError(
                f"--proba is given, but {model_path} is a {type(model).__name__}; expected a KernelLogisticRegression"
            )
        X = chosen_rows(x_path, columns)
        options: Any = {"probabilities": proba, "return_std": std, "interval": interval, "overwrite": overwrite}
        shape = list(library.predict_to(model, X, out_path, keep=keep, **options))
        echo(json.dumps({"out": out_path, "shape": shape}) if as_json else f"{shape} predictions in {out_path}")
