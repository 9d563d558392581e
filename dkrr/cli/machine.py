"""``dkrr calibrate``: rates of this machine, or of a cluster."""

import click

from dkrr.cli.common import cluster, echo, readable_errors
from dkrr.cli.reports import machine_report


@click.command()
@click.option("--folder", help="Folder on the file system to measure.  [default: the temporary directory]")
@click.option("--store", hidden=True, help="No longer an option.")
@click.option("--show", is_flag=True, help="Print what is known, and measure nothing.")
@click.option("--workers", type=int, help="Workers to measure for.  [default: one for each core]")
@click.option("--scheduler", metavar="ADDRESS", help="Measure the workers of a running Dask cluster.")
@click.option("--json", "as_json", is_flag=True, help="Print the measured rates as JSON.")
def calibrate(
    folder: str | None, store: str | None, show: bool, workers: int | None, scheduler: str | None, as_json: bool
) -> None:
    """Measure the speed of cores and store here, for later plans (about 10 seconds)."""
    if store is not None:
        raise click.UsageError(
            "--store is no longer an option: plans take documented rates for buckets; give yours as dkrr.rates in "
            "Dask's configuration (DASK_DKRR__RATES__READ_GBYTES), and a folder on another file system as --folder"
        )
    if show and folder is not None:
        raise click.UsageError("--show measures nothing; expected it without --folder")
    import dask

    import dkrr as library
    from dkrr.machine import describe

    with (
        readable_errors(),
        cluster(scheduler),
        dask.config.set({} if workers is None else {"dkrr.local.workers": workers}),
    ):
        if not show:
            library.calibrate(folder)
        echo(machine_report(describe(), as_json=as_json))
