"""``dkrr info``, ``verify``, ``status`` and ``convergence``: what models and runs hold."""

import json
import sys

import click

from dkrr.cli.common import cluster, named, readable_errors
from dkrr.cli.pictures import check_picture_path, write_picture
from dkrr.cli.reports import convergence_report, info_report, machine_report
from dkrr.errors import InputError
from dkrr.values import location


@click.command()
@click.argument("model_path", metavar="[MODEL]", required=False)
@click.option("--scheduler", metavar="ADDRESS", help="Describe a running Dask cluster.")
@click.option("--json", "as_json", is_flag=True, help="Print the description as JSON.")
def info(model_path: str | None, scheduler: str | None, as_json: bool) -> None:
    """Describe a saved model; without MODEL, this machine (or a cluster) and the rates that plans use."""
    from dkrr.machine import describe
    from dkrr.model_description import describe_model

    with readable_errors(), cluster(scheduler):
        if model_path is None:
            click.echo(machine_report(describe(), as_json=as_json))
        else:
            with named("MODEL"):
                found = describe_model(location(model_path, "MODEL", "the path or URL of a saved model"))
            click.echo(info_report(found, model_path, as_json=as_json))


@click.command()
@click.argument("path", metavar="RUN|MODEL")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def verify(path: str, as_json: bool) -> None:
    """Read a run's store or a model whole, and compare it with its checksums; exit status 1 if it is damaged."""
    import dkrr as library

    with readable_errors():
        with named("RUN|MODEL"):
            found = library.verify(location(path, "RUN|MODEL", "the path or URL of a run or a model"))
        click.echo(json.dumps(found.to_dict()) if as_json else str(found))
        sys.exit(0 if found.is_whole else 1)


@click.command()
@click.argument("path", metavar="RUN")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def status(path: str, as_json: bool) -> None:
    """Say what the store of a run holds, how far the run is, and what is left."""
    import dkrr as library

    with readable_errors():
        with named("RUN"):
            found = library.status(location(path, "RUN", "the path or URL of a run"))
        click.echo(json.dumps(found.to_dict()) if as_json else str(found))


@click.command()
@click.argument("model_path", metavar="MODEL")
@click.option("--out", "out_path", metavar="PNG", help="Draw the history as well (needs 'dkrr[report]').")
@click.option("--json", "as_json", is_flag=True, help="Print the history as JSON.")
def convergence(model_path: str, out_path: str | None, as_json: bool) -> None:
    """Show the residual of a saved model at each iteration."""
    from dkrr.model_description import describe_model

    with readable_errors():
        with named("MODEL"):
            found = describe_model(location(model_path, "MODEL", "the path or URL of a saved model"))
        if not (found["solve"] or {}).get("history"):
            raise InputError(f"{model_path} does not have a convergence history: its solver was not iterative")
        if out_path is not None:
            from dkrr.reports import pictures

            check_picture_path(out_path)
            write_picture(out_path, pictures.convergence(found["solve"]["history"], found["solve"]["tol"]))
        click.echo(convergence_report(found, as_json=as_json))
