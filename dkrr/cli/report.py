"""``dkrr report``: what is known of a fit, in one HTML file."""

import click

from dkrr.cli.common import echo, named, readable_errors
from dkrr.values import location


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
    from dkrr.tiles.replacing import check_free

    with readable_errors():
        if not overwrite:
            check_free(location(out_path, "--out"), overwrite=False, what="a report", is_one=bool, listed=None)
        with named("RUN|MODEL"):
            location(path, "RUN|MODEL", "the path or URL of a run or a model", is_kept=True)
            library.report(path, out_path)
        echo(out_path)
