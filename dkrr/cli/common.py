"""What commands have in common: readable errors, exit statuses, clusters, checks of stores."""

import logging
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
from click.shell_completion import CompletionItem

from dkrr.config import setting
from dkrr.errors import DkrrError, InputError, PlanError
from dkrr.plain_text import one_line, printable, safe_message
from dkrr.values import location, shown

ADDRESS = r"([a-z]+://)?(\[[0-9a-fA-F:.%]+\]|[^\s/:]*[^\s/:\d][^\s/:]*):[0-9]{1,5}/?|inproc://\S+"
"""Of a scheduler: a protocol, a host and a port."""
LOG = "dkrr.log"
"""Name of the handler of messages, if the command has its own, in click's context."""
INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it."""
PATHS = {"PATH", "FILE", "RUN", "MODEL", "PNG"}
"""Names of values that are paths, in the help of options and arguments."""


class PathText(click.types.StringParamType):
    """A path or URL, checked where it is used; shells complete it as a file."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG002
        """What a shell completes: files, by itself."""
        return [CompletionItem(incomplete, type="file")]


def complete_paths(command: click.Command) -> None:
    """Let shells complete files where a command takes a path: its metavar or that of an argument begins with PATH."""
    for parameter in command.params:
        words = str(parameter.metavar or "").strip("[]").split("|")
        if PATHS & set(words) and type(parameter.type) is click.types.StringParamType:
            parameter.type = PathText()


def _silence(context: click.Context, _: click.Parameter, quiet: bool) -> bool:
    handler = context.meta.get(LOG)
    if quiet and handler is not None:
        handler.setLevel(logging.WARNING)
    return quiet


quiet_option = click.option(
    "--quiet", is_flag=True, callback=_silence, help="Do not show progress; warnings and errors only."
)


uncertainty_option = click.option(
    "--uncertainty",
    is_flag=True,
    help="Save what standard deviations and intervals of predictions are computed from as well.",
)


def save_or_keep(model: Any, path: str, *, overwrite: bool, uncertainty: bool) -> None:
    """Save a model; where that fails, in a temporary folder, so that the work is not lost.

    Raises
    ------
    DkrrError
        If it is not at its path.
    """
    import dkrr as library

    try:
        library.save(model, path, overwrite=overwrite, uncertainty=uncertainty)
    except (DkrrError, OSError) as error:
        place = f"{tempfile.mkdtemp(prefix='dkrr-model-', dir=setting('temporary-directory'))}/model.zarr"
        for with_uncertainty in (True, False) if uncertainty else (False,):
            try:
                library.save(model, place, uncertainty=with_uncertainty)
            except (DkrrError, OSError) as reason:
                second = reason
                continue
            without = "" if with_uncertainty == uncertainty else " without its uncertainty"
            raise DkrrError(f"{error}; the model was saved at {place} instead{without}: move it from there") from error
        raise DkrrError(f"{error}; nor could the model be saved elsewhere ({second}): it is lost") from error


def echo(text: object, *, err: bool = False) -> None:
    """Print a text for people, or JSON; nothing else of this package prints, but for displays of progress and logs."""
    click.echo(printable(str(text)), err=err)


@contextmanager
def printable_warnings() -> Iterator[None]:
    """Print warnings, which may name anything, without control characters."""
    before = warnings.formatwarning
    warnings.formatwarning = lambda *arguments, **named: safe_message(before(*arguments, **named))
    try:
        yield
    finally:
        warnings.formatwarning = before


@contextmanager
def readable_errors() -> Iterator[None]:
    """Print an error, or how to resume after an interrupt, in one line, and end with its exit status."""
    try:
        yield
    except DkrrError as error:
        echo(f"dkrr: {error}", err=True)
        sys.exit(2 if isinstance(error, InputError | PlanError) else 1)
    except (OSError, MemoryError) as error:  # of the machine, during the work
        echo(one_line(safe_message(f"dkrr: {type(error).__name__}: {error}")), err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        echo(_interrupted(), err=True)
        sys.exit(INTERRUPTED)


def _interrupted() -> str:
    """What an interrupt has left of the command that runs."""
    context = click.get_current_context(silent=True)
    options = {} if context is None else context.params
    if options.get("store") is not None:
        return one_line(f"dkrr: interrupted; the same command resumes from --store {options['store']}")
    remedy = "; nothing of it is kept; with --store the same command would resume" if "store" in options else ""
    return f"dkrr: interrupted{remedy}"


@contextmanager
def named(name: str) -> Iterator[None]:
    """Report an unreadable model or store, which the user named, as bad input."""
    try:
        yield
    except OSError as error:  # as StoreError is
        raise InputError(f"{name}: {error}") from error


def check_store(store: str | None, *, is_planned: bool = False) -> None:
    """Report a store that holds something else, or cannot be written unless it is only planned, as bad input."""
    from dkrr.requests import stored_layout
    from dkrr.store.places import check_writable, refuse_missing_folder

    if store is not None:
        store = location(store, "--store", "the path or URL of the run's store", is_kept=True)
        refuse_missing_folder(store, "--store")
        with named("--store"):
            stored_layout(store)
            if not is_planned:
                check_writable(store, is_grown=True)


def check_folder(store: str | None) -> None:
    """Refuse a file, a model or a store where the folder with the stores of a search is to be, or where none can be."""
    from dkrr.store.format import read_group
    from dkrr.store.places import check_writable, place_at, refuse_missing_folder

    if store is not None:
        url = location(store, "--store", "a folder for the stores of the run", is_kept=True)
        if place_at(url).is_foreign_file():
            raise InputError(f"--store is {shown(store)}, a file; expected a folder for the stores of the run")
        refuse_missing_folder(url, "--store")
        with named("--store"):
            found = read_group(url)
        if found is not None:
            what = f"a {found['kind']} of dkrr" if found.get("kind") in ("run", "model") else "a group of Zarr"
            raise InputError(f"--store is {shown(store)}, {what}; expected a folder for the stores of the run, or none")
        with named("--store"):
            check_writable(url, is_grown=True)


@contextmanager
def cluster(address: str | None) -> Iterator[None]:
    """Use a running scheduler's client as the ambient one."""
    if address is None:
        yield
        return
    if re.fullmatch(ADDRESS, address) is None:
        raise InputError(
            f"--scheduler is {shown(address)}, and no Dask scheduler has it; expected one such as tcp://host:8786"
        )
    from dkrr.cluster.dask_client import connect

    with connect(address):
        yield
