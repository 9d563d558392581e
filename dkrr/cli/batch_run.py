"""What a command does with a job file: checks, a list of its models with their plans, the work, records and a table."""

import json
import logging
import os
import socket
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any

from dkrr.cli.common import echo
from dkrr.errors import InputError
from dkrr.jobs.batch import Batch, Task
from dkrr.jobs.entries import Entry
from dkrr.jobs.job import Prepared, chosen, grouped, prepared
from dkrr.jobs.keys import Key
from dkrr.jobs.logs import logging_of_job
from dkrr.jobs.origins import origin_of
from dkrr.jobs.run import Record, logger, run_models
from dkrr.plain_text import one_line
from dkrr.runtime.signals import ended_in_order
from dkrr.units import format_bytes, format_seconds
from dkrr.values import location, shown
from dkrr.versions import VERSIONS


def run_job(
    command: str,
    file: str,
    entries: Sequence[Entry],
    keys: Sequence[Key],
    task: Task,
    batch: Batch,
    handler: logging.Handler | None,
) -> int:
    """Carry out the models of a job that this run is for.

    Parameters
    ----------
    command : str
        Name of the command.
    file : str
        Path of the job file.
    entries : sequence of Entry
        All models of the job.
    keys : sequence of Key
        Keys of the command.
    task : Task
        What to do with each.
    batch : Batch
        Which models, and how.
    handler : logging.Handler, optional
        That of the command line; None: the program has its own.

    Returns
    -------
    int
        Exit status.
    """

    def group(entry: Entry) -> Hashable:
        return task.group(entry.arguments)

    write = _writer(None if batch.dry_run else batch.results)
    some = chosen(entries, batch.only, batch.part, group)
    with logging_of_job(handler, [entry.name for entry in some], quiet=batch.quiet), ended_in_order():
        which = "" if batch.part is None else f", part {batch.part[0]} of {batch.part[1]}"
        logger.info("%s: %d of %d models%s; %s", file, len(some), len(entries), which, _here())
        models = prepared(
            file,
            some,
            lambda entry: entry.arguments.get("model_path"),
            lambda entry: origin_of(command, entry, keys),
            lambda entry: task.prepare(entry.arguments, overwrite=batch.overwrite),
            resume=batch.resume,
            overwrite=batch.overwrite,
        )
        if batch.dry_run:
            echo(_json_of_plans(models) if batch.as_json else _table_of_plans(models))
            return 0
        pending = [model.entry for model in models if not model.is_complete]
        groups = grouped(pending, group)
        _log_time(models, groups)
        task.begin([[entry.arguments for entry in part] for part in groups])
        return _carry_out(models, task, batch, write)


def _here() -> str:
    """Version, machine and process, and the job of a scheduler."""
    slurm = os.environ.get("SLURM_JOB_ID")
    array = "_".join(filter(None, (os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID"))))
    job = f", Slurm job {array or slurm}" if slurm else ""
    return f"dkrr {VERSIONS['dkrr']} in process {os.getpid()} on {socket.gethostname()}{job}"


def _log_time(models: Sequence[Prepared], groups: Sequence[Sequence[Entry]]) -> None:
    """Log what is to be done, and the time that plans give; a group takes about that of one of its models."""
    seconds = {model.entry.name: model.plan.seconds for model in models if model.plan is not None}
    planned = [max(seconds.get(entry.name, 0.0) for entry in group) for group in groups]
    n_complete = sum(model.is_complete for model in models)
    done = f"{n_complete} complete, " if n_complete else ""
    time = f"; planned time of the fits {format_seconds(sum(planned))}" if sum(planned) else ""
    logger.info("%s%d to do%s", done, len(models) - n_complete, time)


def _writer(path: str | None) -> Callable[[str], None]:
    """Appends lines to a file, each at once, so that parts of a job can share it."""
    if path is None:
        return lambda _: None
    file = Path(location(path, "--results", "the path of a file for records"))
    try:
        file.open("a").close()
    except OSError as error:
        raise InputError(
            f"--results is {shown(path)}, which cannot be written: {error.strerror}; expected a file for records"
        ) from error

    def write(line: str) -> None:
        descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            os.write(descriptor, f"{line}\n".encode())
        finally:
            os.close(descriptor)

    return write


def _carry_out(models: Sequence[Prepared], task: Task, batch: Batch, write: Callable[[str], None]) -> int:
    by_name = {model.entry.name: model for model in models}
    records: list[Record] = []

    def work(entry: Entry) -> dict[str, Any]:
        model = by_name[entry.name]
        # A damaged or another model was found and may be replaced; one that appeared since may not.
        facts = task.carry_out(entry.arguments, overwrite=batch.overwrite, quiet=batch.quiet, origin=model.origin)
        if not batch.keep_stores:
            task.clean(entry.arguments)
        return facts

    def report(record: Record) -> None:
        arguments = by_name[record.name].entry.arguments
        line = json.dumps({"model": arguments.get("model_path"), **record.to_dict()})
        records.append(record)
        write(line)
        if batch.as_json:
            echo(line)

    try:
        return run_models(
            [model.entry for model in models],
            {model.entry.name for model in models if model.is_complete},
            work,
            report,
            fail_fast=batch.fail_fast,
        )
    finally:
        if not batch.as_json:
            echo(_table_of_records(records))


def _json_of_plans(models: Sequence[Prepared]) -> str:
    """A line of JSON for every model."""
    return "\n".join(
        json.dumps(
            {
                "name": model.entry.name,
                "complete": model.is_complete,
                "options": dict(model.entry.values),
                "plan": None if model.plan is None else model.plan.to_dict(),
            }
        )
        for model in models
    )


def _table_of_plans(models: Sequence[Prepared]) -> str:
    rows = [("model", "plan", "time", "memory", "disk")]
    for model in models:
        plan = model.plan
        if plan is None:
            rows.append((model.entry.name, "complete" if model.is_complete else "made by the run", "", "", ""))
        else:
            what = f"{plan.form}, {plan.solver}, {plan.execution}"
            sizes = (format_bytes(plan.peak_bytes), format_bytes(plan.disk_bytes))
            rows.append((model.entry.name, what, format_seconds(plan.seconds), *sizes))
    total = sum(model.plan.seconds for model in models if model.plan is not None)
    return "\n".join([*_aligned(rows, "<<>>>"), f"{len(models)} models, {format_seconds(total)} in all"])


def _table_of_records(records: Sequence[Record]) -> str:
    rows = [("model", "outcome", "time", "residual", "")]
    for record in records:
        residual = record.facts.get("residual")
        rows.append(
            (
                record.name,
                record.outcome.value,
                format_seconds(record.seconds) if record.seconds else "",
                "" if residual is None else f"{residual:.1e}",
                record.error or "",
            )
        )
    return "\n".join(_aligned(rows, "<<>><"))


def _aligned(rows: Sequence[Sequence[str]], sides: str) -> list[str]:
    """Lines of a table, with every column to the left or to the right."""
    rows = [[one_line(text) for text in row] for row in rows]
    widths = [max(len(row[k]) for row in rows) for k in range(len(sides))]
    return ["  ".join(f"{t:{s}{w}}" for t, s, w in zip(row, sides, widths, strict=True)).rstrip() for row in rows]
