"""``dkrr info``, ``verify`` and ``status``: what models and runs hold.

``dkrr report``: what is known of a fit, in one HTML file.
"""

import json
import sys
from shutil import get_terminal_size

import click

from dkrr.cli.common import cluster, echo, named, readable_errors
from dkrr.cli.reports import info_report, machine_report
from dkrr.values import location


@click.command()
@click.argument("model_path", metavar="[MODEL]", required=False)
@click.option("--scheduler", metavar="ADDRESS", help="Describe a running Dask cluster.")
@click.option("--json", "as_json", is_flag=True, help="Print the description as JSON.")
def info(model_path: str | None, scheduler: str | None, as_json: bool) -> None:
    """Describe a saved model; without MODEL, this machine (or a cluster) and the rates that plans use."""
    from dkrr.estimators.description import describe_model
    from dkrr.machine import describe

    with readable_errors(), cluster(scheduler):
        if model_path is None:
            echo(machine_report(describe(), as_json=as_json))
        else:
            with named("MODEL"):
                found = describe_model(location(model_path, "MODEL", "the path or URL of a saved model", is_kept=True))
            echo(info_report(found, model_path, as_json=as_json))


@click.command()
@click.argument("path", metavar="RUN|MODEL")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def verify(path: str, as_json: bool) -> None:
    """Read a run's store or a model whole, and compare it with its checksums; exit status 1 if it is damaged."""
    import dkrr as library

    with readable_errors():
        with named("RUN|MODEL"):
            found = library.verify(location(path, "RUN|MODEL", "the path or URL of a run or a model", is_kept=True))
        echo(json.dumps(found.to_dict()) if as_json else str(found))
        sys.exit(0 if found.is_whole else 1)


@click.command()
@click.argument("path", metavar="RUN")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def status(path: str, as_json: bool) -> None:
    """Say what the store of a run holds, how far the run is, and what is left.

    With a map of the tiles of every matrix that is not complete.
    """
    import dkrr as library
    from dkrr.estimators.inspection import map_in_text, tile_maps

    with readable_errors():
        with named("RUN"):
            found = library.status(location(path, "RUN", "the path or URL of a run", is_kept=True))
        if as_json:
            echo(json.dumps(found.to_dict()))
            return
        unfinished = [one for one in tile_maps(path) if one.present != one.expected]
        maps = [map_in_text(one, get_terminal_size().columns) for one in unfinished]
        echo("\n".join([str(found), *maps]))


@click.command()
@click.argument("path", metavar="RUN|MODEL")
@click.option("--out", "out_path", required=True, metavar="HTML", help="File to write.")
@click.option("--overwrite", is_flag=True, help="Replace an existing report.")
def report(path: str, out_path: str, overwrite: bool) -> None:
    """Write a report of a saved model, or of the store of a run, which may be unfinished: one self-contained HTML file.

    It has the plan and its reasons, the result, convergence, residuals or tiles, and of a search its scores and its
    learning curve. Needs 'dkrr[report]'.
    """
    import dkrr as library
    from dkrr.store.places import check_free

    with readable_errors():
        out = location(out_path, "--out")
        with named("--out"):  # what else may be replaced is checked by the report itself
            check_free(out, overwrite=overwrite, what="a report", is_one=lambda _: True, listed=None, name="--out")
        with named("RUN|MODEL"):
            location(path, "RUN|MODEL", "the path or URL of a run or a model", is_kept=True)
            library.report(path, out_path)
        echo(out_path)
