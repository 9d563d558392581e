"""Execution of commands: options from a file, a cluster, readable errors and exit statuses, and output."""

import json
import logging
import os
import re
import signal
import sys
import tomllib
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import click

from dkrr.checks import is_existing_folder, shown
from dkrr.errors import DiskSpaceError, DkrrError, InputError, PlanError, is_transient
from dkrr.text import format_bytes, near_names, one_line, printable, safe_message

ADDRESS = r"([a-z]+://)?(\[[0-9a-fA-F:.%]+\]|[^\s/:]*[^\s/:\d][^\s/:]*):[0-9]{1,5}/?|inproc://\S+"
"""Pattern of a scheduler's address: a protocol, a host and a port."""
LOG = "dkrr.log"
"""Name of the handler of messages, if the command has its own, in click's context."""
OTHERS = "Others"
"""Title of the options that belong to no group: of --help."""
FAILED, WRONG, LATER = 1, 2, 75
"""Exit statuses: of a failure, of bad usage or input, and where the same command may succeed later (EX_TEMPFAIL)."""
INTERRUPTED, CLOSED = 130, 141
"""Exit statuses after Ctrl-C, and where nothing reads the output any more (SIGPIPE), as shells have them."""
MAX_CONFIG_BYTES = 2**15
"""Largest file of options; keys of many parts take a time that grows with its square."""


class Commands(click.Group):
    """Group whose errors are readable, whatever was given."""

    def make_context(self, *arguments: Any, **settings: Any) -> click.Context:
        """Context of the group, of its own options."""
        with readable_errors():
            return super().make_context(*arguments, **settings)

    def invoke(self, ctx: click.Context) -> Any:
        """Carry out a command, which reads its options first."""
        with readable_errors():
            return super().invoke(ctx)


class Option(click.Option):
    """An option with the title of its group in the help."""

    def __init__(self, *arguments: Any, group: str, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.group = group


class Command(click.Command):
    """A command on the cluster that --scheduler names, which says how an interrupted run is resumed."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse, and say where options belong that are given as a file without --config."""
        _, extra, _ = self.make_parser(ctx).parse_args(list(args))
        takes_file = any(option.name == "config" for option in self.params)
        if takes_file and extra and not ctx.resilient_parsing and not set(args) & set(ctx.help_option_names):
            raise InputError(
                f"dkrr {ctx.info_name} is given {shown(extra[0])} without an option before it; expected options "
                f"only: a TOML file of them is given by --config {extra[0]}"
            )
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options of the help in their groups, in the order in which the command has them."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for option in self.get_params(ctx):
            line = option.get_help_record(ctx) if isinstance(option, click.Option) else None
            if line is not None:
                groups.setdefault(getattr(option, "group", OTHERS), []).append(line)
        for title, lines in groups.items():
            with formatter.section(title):
                formatter.write_dl(lines)

    def invoke(self, ctx: click.Context) -> Any:
        """Carry it out."""
        handler = ctx.meta.get(LOG)
        if ctx.params.get("quiet") and handler is not None:
            handler.setLevel(logging.WARNING)
        from dkrr.cluster.process import graceful_termination  # with libraries that --help does without

        # A signal that asks to end is reported as Ctrl-C is, and ends this process when all is cleared up.
        with graceful_termination(), readable_errors(ctx.params), cluster(ctx.params.pop("scheduler", None)):
            return super().invoke(ctx)


def echo(text: object, *, err: bool = False) -> None:
    """Print a text for people, or JSON; nothing else of this package prints, but for displays of progress and logs."""
    click.echo(printable(str(text)), err=err)


def answer(given: Mapping[str, Any], values: Mapping[str, Any], text: object) -> None:
    """Print the result of a command: with --json its values, else as text."""
    echo(json.dumps(values) if given["json"] else text)


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
def readable_errors(options: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Print an error in one line, and end with its exit status.

    Parameters
    ----------
    options : mapping, optional
        Those of the command that runs, for what an interrupt has left of it.
    """
    try:
        yield
    except DkrrError as error:
        _end(str(error), status_of(error))
    except BrokenPipeError:  # whoever reads what this prints has enough: `dkrr info | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more at its end
        sys.exit(CLOSED)
    except MemoryError as error:
        _end(f"out of memory{f': {error}' if str(error) else ''}{_address_limit_note()}", FAILED)
    except OSError as error:  # of the machine, during the work
        _end(f"{type(error).__name__}: {error}", status_of(error))
    except RuntimeError as error:
        if "can't start new thread" not in str(error):
            raise
        _end(f"no thread can be started{_address_limit_note() or '; allow more processes (ulimit -u)'}", FAILED)
    except KeyboardInterrupt:
        _end("interrupted" + _left_of(options), INTERRUPTED)
    except SystemExit as ended:
        if (number := getattr(ended, "number", None)) is None:  # of a command
            raise
        _end(f"ended by {signal.Signals(number).name}{_left_of(options)}", 128 + number)
    except click.ClickException as error:
        vars(error)["message"] = one_line(safe_message(error.message))
        raise


def status_of(error: Exception) -> int:
    """Exit status of a command that an error ends: whether the same command may succeed later, or never, or failed."""
    if is_transient(error):
        return LATER
    if isinstance(error, DiskSpaceError):  # a limit of the size of files, met during the work
        return FAILED
    return WRONG if isinstance(error, InputError | PlanError) else FAILED


def _end(message: str, status: int) -> NoReturn:
    echo(one_line(safe_message(f"dkrr: {message}")), err=True)
    sys.exit(status)


def _address_limit_note() -> str:
    from dkrr.limits import address_limit_note  # with libraries that --help does without

    return address_limit_note()


def _left_of(options: Mapping[str, Any] | None) -> str:
    """Message about the work that an interrupted command leaves."""
    if options is None:  # while libraries are imported
        return "; no work was begun"
    if not {"store", "quiet"} <= options.keys():  # only a fit and a search resume
        return ""
    if options["store"] is None:
        return "; nothing of it is kept; with --store the same command would resume"
    return f"; the same command resumes from --store {options['store']}"


@contextmanager
def named(name: str) -> Iterator[None]:
    """Report an unreadable model or store, which the user named, as bad input."""
    try:
        yield
    except OSError as error:  # as StoreError is
        raise InputError(f"{name}: {error}") from error


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


def options_from_file(context: click.Context, _: click.Parameter, path: str | None) -> None:
    """Let the options of a TOML file be the defaults of a command: callback of --config."""
    if path is None or context.resilient_parsing:
        return
    options = {
        name.removeprefix("--"): option
        for option in context.command.params
        if isinstance(option, click.Option) and option.name != "config"
        for name in option.opts
    }
    found = {}
    for key, value in _read(path).items():
        if key not in options:
            near = ", ".join(near_names(key, options)) or f"those of dkrr {context.info_name} --help"
            raise InputError(
                f"{path}: {shown(key)} is not an option of dkrr {context.info_name}; expected the names of options "
                f"without dashes before them: {near}"
            )
        option, several = options[key], isinstance(value, list) and options[key].multiple
        for one in value if several else [value]:
            _check(f"{path}: {key}", one, option.type)
        found[str(option.name)] = [value] if option.multiple and not several else value
    context.default_map = found


def _read(path: str) -> dict[str, Any]:
    what = f"--config is {shown(path)}"
    if is_existing_folder(path, "--config"):
        raise InputError(f"{what}, a folder; expected a TOML file")
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_CONFIG_BYTES + 1)
    except OSError as error:
        raise InputError(f"{what}, which cannot be read: {error.strerror}; expected a TOML file") from error
    if len(content) > MAX_CONFIG_BYTES:
        raise InputError(f"{what}, a file of more than {format_bytes(MAX_CONFIG_BYTES)}; expected one of options only")
    try:
        return tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise InputError(f"{what}, which is not TOML: {error}; expected lines such as alpha = 0.1") from error


TYPES: dict[type, tuple[str, Any]] = {
    click.types.BoolParamType: ("true or false", bool),
    click.types.IntParamType: ("a whole number", int),
    click.types.FloatParamType: ("a number", int | float),
}
"""Description and types of a TOML value, by the type of its option; for other types it is text, or a number."""


def _check(name: str, value: Any, kind: Any) -> None:
    """Refuse a value of TOML of another type than the option's, which click might convert."""
    of_type = (found for known, found in TYPES.items() if isinstance(kind, known))
    expected, right = next(of_type, ("text, or a number", str | int | float))
    is_right = isinstance(value, right) and (right is bool or not isinstance(value, bool))
    if isinstance(kind, click.Choice):
        expected, is_right = f"one of {', '.join(map(repr, kind.choices))}", value in kind.choices
    if not is_right:
        raise InputError(f"{name} is {shown(value)}; expected {expected}")
