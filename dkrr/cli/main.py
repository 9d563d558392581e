"""``dkrr fit``, ``predict``, ``plan``, ``info``, ``calibrate`` ...; also ``dask dkrr ...``.

Exit status: 0 on success; 2 on bad usage or bad input, such as a missing model; 1 on failure, and if a fit did not
reach the required accuracy; 130 after Ctrl-C. Results go to stdout, everything else to stderr.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from dkrr.cli.common import INTERRUPTED, LOG, complete_paths, echo, printable_warnings
from dkrr.cli.fit import fit
from dkrr.cli.machine import calibrate
from dkrr.cli.plan import plan
from dkrr.cli.predict import predict
from dkrr.cli.select import select
from dkrr.cli.stores import info, report, status, verify
from dkrr.plain_text import one_line, safe_message


class Commands(click.Group):
    """Group whose errors of usage are printable, whatever was given."""

    def make_context(self, *arguments: Any, **settings: Any) -> click.Context:
        """Context of the group, of its own options."""
        with _printable_usage():
            return super().make_context(*arguments, **settings)

    def invoke(self, ctx: click.Context) -> Any:
        """Carry out a command, which reads its options first."""
        with _printable_usage():
            return super().invoke(ctx)


@contextmanager
def _printable_usage() -> Iterator[None]:
    try:
        yield
    except click.ClickException as error:
        vars(error)["message"] = one_line(safe_message(error.message))
        raise
    except KeyboardInterrupt:  # while libraries are imported
        echo("dkrr: interrupted; no work was begun", err=True)
        sys.exit(INTERRUPTED)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
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


for command in (fit, select, predict, plan, info, verify, status, report, calibrate):
    complete_paths(command)
    dkrr.add_command(command)


def main() -> None:
    """Entry point of the ``dkrr`` command."""
    dkrr(prog_name="dkrr")
