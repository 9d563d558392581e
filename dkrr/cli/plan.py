"""``dkrr plan``: what a fit would do, from sizes or data."""

import json
from typing import Any

import click

from dkrr.cli.common import check_store, cluster, echo, readable_errors
from dkrr.cli.config import Configurable, config_option
from dkrr.cli.options import (
    candidates,
    checked_settings,
    chosen_transformer,
    columns_option,
    drop_missing_option,
    model_options,
    train_sizes,
    training_rows,
    transformer_options,
    whole,
)
from dkrr.errors import InputError


@click.command(cls=Configurable)
@config_option
@click.option("--x", "x_path", metavar="PATH", help="Training rows (only sizes and a sample are read).")
@click.option("--y", "y_path", metavar="PATH|NAME", help="Targets or class labels, or their column in --x.")
@columns_option
@drop_missing_option
@click.option("--n", type=int, help="Number of rows, instead of --x.")
@click.option("--d", type=int, help="Number of columns, instead of --x.")
@click.option("--n-targets", type=int, default=1, show_default=True, help="Number of targets, instead of --y.")
@click.option("--n-classes", type=int, help="With --logistic: number of classes, instead of --y.  [default: 2]")
@click.option("--workers", type=int, help="Worker processes.  [default: one for each core]")
@click.option("--worker-memory", help="With --workers: memory of each, for a cluster that need not exist.")
@click.option("--cores", type=int, help="With --worker-memory: threads of each worker.  [default: 1]")
@click.option("--alphas", help="Plan the choice among so many λ (or these: 0.1,1,10) by cross-validation.")
@click.option("--cv", help="Number of its folds, or loo.  [default: 5 with --alphas]")
@click.option("--train-sizes", metavar="SIZES", help="Its learning curve: 0.125,0.25,0.5 of the rows, or numbers.")
@transformer_options
@model_options
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
def plan(
    x_path: str | None,
    y_path: str | None,
    columns: str | None,
    drop_missing: bool,
    scheduler: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Show what a fit would do, its projected cost, and the reasons; sizes are enough."""
    import dkrr as library
    from dkrr.arguments import checked_candidates

    with readable_errors(), cluster(scheduler):
        if (x_path is None) == (options["n"] is None or options["d"] is None):
            raise InputError("expected either --x (with --y), or --n and --d")
        check_store(options["store"], is_planned=True)
        is_filled = options["impute"] is not None
        X = training_rows(x_path, columns, (y_path, None), drop_missing=drop_missing, is_filled=is_filled)
        transformer = chosen_transformer(X, y_path, None, options)
        settings = checked_settings(**options) | {"transformer": transformer}
        settings["loss"] = "logistic" if settings.pop("logistic") else "squared"
        if settings["cv"] not in (None, "loo"):
            settings["cv"] = whole(settings["cv"], "--cv")
        if settings["alphas"] is not None:
            alphas = settings["alphas"]
            is_count, expected = alphas.isdecimal(), "a number of candidates, or the candidates"
            settings["alphas"] = (
                whole(alphas, "--alphas", expected)
                if is_count
                else len(checked_candidates(candidates([alphas], "--alphas")))
            )
        if settings["train_sizes"] is not None:
            settings["train_sizes"] = train_sizes(settings["train_sizes"], "--train-sizes")
        result = library.plan(X, y_path, **settings)
        echo(json.dumps(result.to_dict(), indent=2) if as_json else str(result))
