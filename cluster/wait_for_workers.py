"""Wait until a Dask scheduler answers and has its workers; print its address on stdout.

Exit status 75, as of dkrr's own commands, if they did not appear: the same may succeed later.
"""

import json
import sys
import time
from pathlib import Path

import click


class Absent(click.ClickException):
    """Workers that did not appear; they may later."""

    exit_code = 75


@click.command()
@click.option("--scheduler", metavar="ADDRESS", help="For example tcp://127.0.0.1:8786.")
@click.option("--scheduler-file", type=click.Path(path_type=Path), help="File of `dask scheduler`.")
@click.option("--workers", type=click.IntRange(1), default=1, show_default=True, help="Number of workers to wait for.")
@click.option("--timeout", type=float, default=300, show_default=True, help="Longest wait in seconds.")
def main(scheduler: str | None, scheduler_file: Path | None, workers: int, timeout: float) -> None:
    """Wait until a Dask scheduler answers and has its workers; print its address on stdout."""
    if (scheduler is None) == (scheduler_file is None):
        raise click.UsageError("expected either --scheduler or --scheduler-file")
    from distributed import Client

    deadline = time.monotonic() + timeout
    try:
        address = scheduler or _address_in(scheduler_file, deadline)
        with Client(address, timeout=deadline - time.monotonic()) as client:
            client.wait_for_workers(workers, timeout=max(1.0, deadline - time.monotonic()))
    except OSError as error:  # TimeoutError is one
        raise Absent(f"{workers} Dask workers did not appear within {timeout:g} s: {error}") from error
    click.echo(address)


def _address_in(file: Path | None, deadline: float) -> str:
    assert file is not None
    while True:
        try:
            return str(json.loads(file.read_text())["address"])
        except (FileNotFoundError, json.JSONDecodeError):  # not written yet, or incomplete
            if time.monotonic() > deadline:
                raise TimeoutError(f"{file} was not written") from None
            time.sleep(0.2)


if __name__ == "__main__":
    sys.exit(main())
