"""Options of a command from a TOML file: ``--config FILE``."""

import tomllib
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click

from dkrr.cli.common import readable_errors
from dkrr.errors import InputError
from dkrr.values import shown


class Configurable(click.Command):
    """A command with the option --config, which takes nothing but options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse, and say where options belong that are given as a file without --config."""
        _, extra, _ = self.make_parser(ctx).parse_args(list(args))
        if extra and not ctx.resilient_parsing and not set(args) & set(ctx.help_option_names):
            with readable_errors():
                raise InputError(
                    f"dkrr {ctx.info_name} is given {shown(extra[0])} without an option before it; expected options "
                    f"only: a TOML file of them is given by --config {extra[0]}"
                )
        return super().parse_args(ctx, args)


def config_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the option --config."""
    return click.option(
        "--config",
        metavar="FILE",
        is_eager=True,
        expose_value=False,
        callback=_take,
        help="TOML file with options as keys, without dashes before them; options given here come first.",
    )(function)


def _take(context: click.Context, _: click.Parameter, path: str | None) -> None:
    """Let the options of a file be the defaults of a command."""
    if path is None or context.resilient_parsing:
        return
    with readable_errors():
        options = {
            name.removeprefix("--"): option
            for option in context.command.params
            if isinstance(option, click.Option) and option.name != "config"
            for name in option.opts
        }
        found = {}
        for key, value in _read(path).items():
            if key not in options:
                (nearest,) = get_close_matches(key, options, 1, cutoff=0)
                raise InputError(
                    f"{path}: {shown(key)} is not an option of dkrr {context.info_name}; expected the names of options "
                    f"without dashes before them, the nearest is {nearest}"
                )
            found[str(options[key].name)] = _checked(f"{path}: {key}", value, options[key])
        context.default_map = found


def _read(path: str) -> dict[str, Any]:
    what = f"--config is {shown(path)}"
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{what}, which cannot be read: {error.strerror}; expected a TOML file") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{what}, which is not TOML: {error}; expected lines such as alpha = 0.1") from error


def _checked(name: str, value: Any, option: click.Option) -> Any:
    """Value of a key as its option takes it on the command line."""
    if option.multiple and isinstance(value, list):
        return [_of_type(name, one, option) for one in value]
    return [_of_type(name, value, option)] if option.multiple else _of_type(name, value, option)


def _of_type(name: str, value: Any, option: click.Option) -> Any:
    kind, is_number = option.type, isinstance(value, int | float) and not isinstance(value, bool)
    if isinstance(kind, click.Choice):
        expected, is_right = f"one of {', '.join(map(repr, kind.choices))}", value in kind.choices
    elif isinstance(kind, click.types.BoolParamType):
        expected, is_right = "true or false", isinstance(value, bool)
    elif isinstance(kind, click.types.IntParamType):
        expected, is_right = "a whole number", is_number and isinstance(value, int)
    elif isinstance(kind, click.types.FloatParamType):
        expected, is_right = "a number", is_number
    else:  # text, of which some is a number
        expected, is_right = "text, or a number", is_number or isinstance(value, str)
    if not is_right:
        raise InputError(f"{name} is {shown(value)}; expected {expected}")
    return value
