"""``dkrr calibrate``: rates of this machine, or of a cluster."""

import click

from dkrr.cli.common import cluster, echo, readable_errors
from dkrr.cli.reports import machine_report


@click.command()
@click.option("--folder", help="Folder on the file system to measure.  [default: the temporary directory]")
@click.option("--store", metavar="URL", help="Bucket, or folder on another file system, to measure (s3://bucket).")
@click.option("--show", is_flag=True, help="Print what is known, and measure nothing.")
@click.option("--workers", type=int, help="Worker processes.  [default: one for each core]")
@click.option("--scheduler", metavar="ADDRESS", help="Measure the workers of a running Dask cluster.")
@click.option("--json", "as_json", is_flag=True, help="Print the measured rates as JSON.")
def calibrate(
    folder: str | None, store: str | None, show: bool, workers: int | None, scheduler: str | None, as_json: bool
) -> None:
    """Measure the speed of workers, store and Dask here, for later plans (10 to 20 seconds)."""
    if show and (folder is not None or store is not None):
        raise click.UsageError("--show measures nothing; expected it without --folder and --store")
    import dask

    import dkrr as library
    from dkrr.machine import describe

    with (
        readable_errors(),
        cluster(scheduler),
        dask.config.set({} if workers is None else {"dkrr.local.workers": workers}),
    ):
        if not show:
            library.calibrate(folder, store=store)
        echo(machine_report(describe(), as_json=as_json))
