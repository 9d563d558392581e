"""``dkrr predict``: predict with a saved model."""

import json

import click

from dkrr.cli.common import cluster, named, readable_errors
from dkrr.cli.predictions import check_predictions_path, write_predictions
from dkrr.cli.tables import chosen_rows, columns_option
from dkrr.errors import InputError
from dkrr.values import location


@click.command()
@click.option("--model", "model_path", required=True, metavar="PATH", help="Saved model.")
@click.option("--x", "x_path", required=True, metavar="PATH", help="Rows to predict.")
@columns_option
@click.option("--out", "out_path", required=True, metavar="PATH", help="New .zarr or .npy file of the predictions.")
@click.option("--overwrite", is_flag=True, help="Replace an existing file when the predictions are complete.")
@click.option("--scheduler", metavar="ADDRESS", help="Use a running Dask cluster.")
@click.option("--proba", is_flag=True, help="Write the probabilities of all classes instead of labels.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def predict(
    model_path: str,
    x_path: str,
    columns: str | None,
    out_path: str,
    overwrite: bool,
    scheduler: str | None,
    proba: bool,
    as_json: bool,
) -> None:
    """Predict with a saved model, one block of rows at a time; --out is created only when it is complete."""
    import dkrr as library
    from dkrr.rows import open_path

    with readable_errors(), cluster(scheduler):
        check_predictions_path(out_path, overwrite=overwrite)
        with named("--model"):
            model = library.load(location(model_path, "--model", "the path or URL of a saved model"))
        if proba and not hasattr(model, "predict_proba"):
            raise InputError(
                f"--proba is given, but {model_path} is a {type(model).__name__}; expected a KernelLogisticRegression"
            )
        predictions = (model.predict_proba if proba else model.predict)(
            open_path(x_path) if columns is None else chosen_rows(x_path, columns)
        )
        write_predictions(predictions, out_path, overwrite=overwrite)
        shape = list(predictions.shape)
        click.echo(json.dumps({"out": out_path, "shape": shape}) if as_json else f"{shape} predictions in {out_path}")
