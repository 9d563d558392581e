"""``dkrr info``, ``verify``, ``status`` and ``report`` of models and runs; ``dkrr calibrate`` of this machine."""

import sys
from shutil import get_terminal_size
from typing import Any

import click

from dkrr.checks import location
from dkrr.cli.command import answer, echo, named
from dkrr.cli.options import command


def _place(given: dict[str, Any], name: str, what: str) -> str:
    return location(given["path"], name, f"the path or URL of {what}", is_kept=True)


@command("scheduler json", argument="[MODEL]")
def info(**given: Any) -> None:
    """Describe a saved model; without MODEL, this machine (or a cluster) and the rates that plans use."""
    from dkrr.cli.show import machine_text, model_text
    from dkrr.machine.detection import describe
    from dkrr.store.description import describe_model

    if given["path"] is None:
        found = describe()
        answer(given, found, machine_text(found))
        return
    with named("MODEL"):
        found = describe_model(_place(given, "MODEL", "a saved model"))
    values = {name: value for name, value in found.items() if name != "report"}
    answer(given, values, model_text(found, given["path"]))


@command("json", argument="RUN|MODEL")
def verify(**given: Any) -> None:
    """Read a run's store or a model whole, and compare it with its checksums; exit status 1 if it is damaged."""
    import dkrr as library

    with named("RUN|MODEL"):
        found = library.verify(_place(given, "RUN|MODEL", "a run or a model"))
    answer(given, found.to_dict(), found)
    sys.exit(0 if found.is_whole else 1)


@command("json", argument="RUN")
def status(**given: Any) -> None:
    """Say what the store of a run holds, how far the run is, and what is left.

    With a map of the tiles of every matrix that is not complete.
    """
    import dkrr as library
    from dkrr.store.status_and_damage import MAX_LINES, map_in_text, tile_maps

    with named("RUN"):
        found = library.status(_place(given, "RUN", "a run"))
    cells = min(get_terminal_size().columns // 2 - 1, MAX_LINES)  # of two characters each
    maps = [] if given["json"] else tile_maps(given["path"], cells)
    unfinished = [map_in_text(one) for one in maps if one.present != one.expected]
    answer(given, found.to_dict(), "\n".join([str(found), *unfinished]))


@command("out overwrite", required="out", argument="RUN|MODEL")
def report(**given: Any) -> None:
    """Write a report of a saved model, or of the store of a run, which may be unfinished: one self-contained HTML file.

    It has the plan and its reasons, the result, convergence, residuals or tiles, and of a search its scores and its
    learning curve. Needs 'dkrr[report]'.
    """
    import dkrr as library
    from dkrr.store.places import check_free

    out = location(given["out"], "--out")
    with named("--out"):  # what else may be replaced is checked by the report itself
        overwrite = given["overwrite"]
        check_free(out, overwrite=overwrite, what="a report", is_one=lambda _: True, listed=None, name="--out")
    with named("RUN|MODEL"):
        library.report(_place(given, "RUN|MODEL", "a run or a model"), out, overwrite=overwrite)
    echo(out)


@command("folder show workers scheduler json")
def calibrate(**given: Any) -> None:
    """Measure the speed of cores and store here, for later plans (about 10 seconds)."""
    if given["show"] and given["folder"] is not None:
        raise click.UsageError("--show measures nothing; expected it without --folder")
    import dask

    import dkrr as library
    from dkrr.cli.show import machine_text
    from dkrr.machine.detection import describe

    workers, folder = given["workers"], given["folder"]
    folder = None if folder is None else location(folder, "--folder", "an existing folder")
    with dask.config.set({} if workers is None else {"dkrr.local.workers": workers}):
        if not given["show"]:
            library.calibrate(folder)
        found = describe()
        answer(given, found, machine_text(found))
