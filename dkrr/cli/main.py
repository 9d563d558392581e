"""``dkrr fit``, ``predict``, ``plan``, ``info``, ``calibrate`` ...; also ``dask dkrr ...``.

Exit status: 0 on success, also where the model of the same command exists already; 2 on bad usage or bad input, such as
a missing model; 75 if the same command may succeed later, as where a disk is full; 1 on failure, and if a fit did not
reach the required accuracy; 130 after Ctrl-C, 143 after SIGTERM; 141 where nothing reads the output any more, as of
``dkrr info | true``.
Results go to stdout, everything else to stderr.
"""

import click

from dkrr.cli.command import LOG, Commands, printable_warnings
from dkrr.cli.models import fit, plan, predict, select, suggest
from dkrr.cli.stores import calibrate, info, report, status, verify


@click.group(
    cls=Commands,
    commands=[fit, select, predict, suggest, plan, info, verify, status, report, calibrate],
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="dkrr")
@click.pass_context
def dkrr(context: click.Context) -> None:
    """Exact kernel ridge and kernel logistic regression, out of core and distributed.

    PATH is of the form data.zarr, data.zarr/group/array, data.npy, data.npz::name, or that of a table: a file or folder
    in Parquet, CSV or Arrow's format, of which data.parquet::dep_*,origin takes some columns. NAME is a column of it.
    """
    from dkrr.cluster.progress import logged_to_stderr

    context.with_resource(printable_warnings())
    context.meta[LOG] = context.with_resource(logged_to_stderr())


def main() -> None:
    """Entry point of the ``dkrr`` command."""
    dkrr(prog_name="dkrr")
