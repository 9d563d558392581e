"""Job files of commands: the argument JOB, what it does with the models, and keys made from a command's own options."""

import json
import sys
from collections.abc import Callable
from functools import update_wrapper
from typing import Any

import click
from click.core import ParameterSource

from dkrr.cli.common import LOG, cluster, echo, readable_errors
from dkrr.errors import InputError
from dkrr.jobs.batch import INTERRUPTED, Batch, Task
from dkrr.jobs.keys import Key, Kind, json_schema
from dkrr.values import shown

PLACES = ("model", "store", "out")
"""Options that say where a command writes: every model has its own."""
WORK = (*PLACES, "scheduler", "memory-limit", "tile", "accept-unconverged")
"""Options that leave the model as it is."""
SHARED = ("scheduler",)
"""Options that all models of a job share."""
OF_RUN = ("overwrite", "json", "quiet")
"""Options that are not keys: they belong to one run of the command."""


class Required(click.Option):
    """An option that must be given, unless a job file is."""

    def value_is_missing(self, value: Any) -> bool:
        """Whether the command line lacks the value."""
        has_job = isinstance(click.get_current_context().params.get("job"), str)
        return not has_job and super().value_is_missing(value)


class OfJob(click.Option):
    """An option that is used with a job file, and is not a key of one."""


class Several(click.types.StringParamType):
    """Values with commas between, which are a list in a job file."""


def job_command(task: Task) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the argument JOB and the options that belong to it.

    Parameters
    ----------
    task : Task
        What it does with each model. The function itself is called without a job file.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @click.pass_context
        def call(context: click.Context, /, job: str | None, **options: Any) -> None:
            with readable_errors():
                names = ("only", "part", "resume", "dry_run", "fail_fast", "keep_stores", "results")
                of_batch = {name: options.pop(name) for name in names}
                if job is not None:
                    given = {name: options[name] for name in ("overwrite", "as_json", "quiet")}
                    try:
                        sys.exit(_run(context, job, task, Batch(**of_batch, **given)))
                    except KeyboardInterrupt:  # before the first model
                        sys.exit(INTERRUPTED)
                for name, value in of_batch.items():
                    if value not in (None, (), False):
                        raise InputError(
                            f"--{name.replace('_', '-')} is given without JOB; expected it with a job file"
                        )
                function(**options)

        wrapped: Any = update_wrapper(call, function)
        for option in reversed(_options()):
            wrapped = option(wrapped)
        return wrapped  # type: ignore[no-any-return]

    return decorate


def _options() -> list[Callable[..., Any]]:
    return [
        click.argument("job", metavar="[JOB]", required=False, is_eager=True),
        click.option(
            "--only",
            cls=OfJob,
            multiple=True,
            metavar="PATTERN",
            help="Of JOB: only models with such names, for example 'rbf-*'; may be repeated.",
        ),
        click.option(
            "--part",
            cls=OfJob,
            metavar="K/M",
            callback=_part,
            help="Of JOB: the K-th of M parts, from 1 to M, for array jobs.",
        ),
        click.option(
            "--resume", cls=OfJob, is_flag=True, help="Of JOB: skip models that are complete; continue the others."
        ),
        click.option(
            "--dry-run", cls=OfJob, is_flag=True, help="Of JOB: check it, and list its models with their plans."
        ),
        click.option("--fail-fast", cls=OfJob, is_flag=True, help="Of JOB: start no model after one has failed."),
        click.option(
            "--keep-stores", cls=OfJob, is_flag=True, help="Of JOB: keep the stores of runs whose models are saved."
        ),
        click.option(
            "--results", cls=OfJob, metavar="FILE", help="Of JOB: append a line of JSON for every model to FILE."
        ),
        click.option(
            "--job-schema",
            cls=OfJob,
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_print_schema,
            help="Print the JSON Schema of job files, for editors.",
        ),
    ]


def _part(_: click.Context, __: click.Parameter, value: str | None) -> tuple[int, int] | None:
    if value is None:
        return None
    number, slash, count = value.partition("/")
    if not (slash and number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise click.BadParameter(f"{shown(value)} is not one of the parts; expected K/M with K from 1 to M, as in 3/10")
    return int(number), int(count)


def _print_schema(context: click.Context, _: click.Parameter, value: bool) -> bool:
    if value:
        name = str(context.command.name)
        echo(json.dumps(json_schema(name, keys_of(context.command)), indent=2, ensure_ascii=False))
        context.exit()
    return value


def keys_of(command: click.Command) -> list[Key]:
    """Keys of a command's job files: all its options but those of one run."""
    options = [option for option in command.params if isinstance(option, click.Option)]
    return [_key(o) for o in options if not isinstance(o, OfJob) and o.opts[0].removeprefix("--") not in OF_RUN]


def _key(option: click.Option) -> Key:
    name = option.opts[0].removeprefix("--")
    kinds: dict[type[Any], Kind] = {
        Several: "list",
        click.types.FloatParamType: "number",
        click.types.IntParamType: "whole",
        click.types.BoolParamType: "flag",
    }
    return Key(
        name=name,
        parameter=str(option.name),
        kind=kinds.get(type(option.type), "text"),
        help=option.help or "",
        choices=tuple(map(str, option.type.choices)) if isinstance(option.type, click.Choice) else (),
        is_repeatable=option.multiple,
        is_required=option.required,
        is_of_job=name in SHARED,
        is_place=name in PLACES,
        changes_the_model=name not in WORK,
    )


def _run(context: click.Context, job: str, task: Task, batch: Batch) -> int:
    """Carry out a job file; the exit status."""
    from dkrr.cli.batch_run import run_job
    from dkrr.jobs.documents import read_document
    from dkrr.jobs.entries import entries_of

    command, keys = context.command, keys_of(context.command)
    names = {key.parameter for key in keys}
    typed = {name for name in names if context.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    given = {name: context.params[name] for name in typed}
    defaults = {name: context.params[name] for name in names - typed}
    document = read_document(job)
    entries = entries_of(document, str(command.name), keys, given, defaults)
    with cluster(entries[0].arguments.get("scheduler")):
        return run_job(str(command.name), document.file, entries, keys, task, batch, context.meta.get(LOG))
