"""The whole table of benchmarks, one after another.

::

    python -m benchmarks --size full [--only solve-16384 --only 'plans-*'] [--out FOLDER]

Every run of a step appends a line to ``results.jsonl`` in that folder; then the page is rendered. Steps that were
measured with this code are skipped, so that a stopped run resumes; a step that fails does not stop the others. Size
full writes ``docs/measured`` and ``docs/results/measurements.md``, and prints the quotes on pages that differ from the
results. Other sizes write ``output/measured``, and ``--out`` names another folder.
"""

import fnmatch
import functools
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

import click
import psutil
from rich.console import Console

from benchmarks.cases import end_tree
from benchmarks.grids import SIZES, Size
from benchmarks.machine import LoadMeter, checksum, describe_machine
from benchmarks.quotes import differences
from benchmarks.report import judge, render
from benchmarks.results import RESULTS, ROOT, Record, best_run, read_runs
from benchmarks.steps import STEPS, Step, step_named
from dkrr.text import format_seconds


@dataclass(frozen=True)
class Session:
    """State of a call of the command."""

    size: Size
    out: Path
    cache: Path
    retries: int
    again: bool
    timeout: float | None
    """In place of each step's own."""

    @property
    def results(self) -> Path:
        """File of the runs."""
        return self.out / RESULTS.name

    def lines(self, step: Step) -> Path:
        """File for the lines of another step that this one uses."""
        return self.cache / f"lines-for-{step.name}.jsonl"

    def command(self, step: Step) -> list[str]:
        """Arguments of a step's process."""
        # Relative names, as far as they are: the page should not show whose machine it was.
        places = {"out": str(self.out), "cache": str(self.cache), "retries": str(self.retries)}
        places["lines"] = str(self.lines(step))
        return ["python", "-m", *shlex.split(step.commands[self.size].format(**places))]


def code_of(step: Step) -> str:
    """Checksum of dkrr and of the modules that the step runs: a run counts until one of them changes."""
    return checksum(sorted(_modules(ROOT / "benchmarks" / f"{step.module}.py", set())))


def _modules(file: Path, found: set[Path]) -> set[Path]:
    """A module of the benchmarks and those that it imports, added to those that were found."""
    if file not in found and file.exists():
        found.add(file)
        text = file.read_text()
        names = re.findall(r"^\s*from benchmarks\.(\w+) import", text, re.M)
        for several in re.findall(r"^\s*from benchmarks import (.+)", text, re.M):
            names += re.findall(r"\w+", several)
        for name in names:
            _modules(file.with_name(f"{name}.py"), found)
    return found


def is_done(runs: Sequence[Record], step: Step, session: Session) -> bool:
    """Whether there is a quiet run of this code, or as many noisy ones as may be tried, of the lines that it uses."""
    code, command = code_of(step), shlex.join(session.command(step))
    used = used_run(runs, step, session)
    noisy = 0
    for run in runs:
        same = run["step"] == step.name and run["size"] == session.size and run["code"] == code
        same = same and run.get("environment", {}) == dict(step.environment)
        fresh = used is None or run["started"] >= used["started"]
        if same and fresh and run["command"] == command and run["status"] == "complete":
            if not run["noisy"]:
                return True
            noisy += 1
    return noisy > session.retries


def used_run(runs: Sequence[Record], step: Step, session: Session) -> Record | None:
    """The run whose lines a step is given."""
    source = step_named(step.uses)
    return None if source is None else best_run(runs, source, session.size)


def run_step(step: Step, session: Session, attempt: int) -> Record:
    """Run a step in its own process; however it ends, there is a record."""
    used = used_run(read_runs(session.results), step, session)
    if step.uses:
        session.lines(step).parent.mkdir(parents=True, exist_ok=True)
        session.lines(step).write_text("".join(json.dumps(r) + "\n" for r in (used or {"records": []})["records"]))
    command, started, meter = session.command(step), datetime.now(UTC), LoadMeter()
    clock = perf_counter()
    status, error, records = _run([sys.executable, *command[1:]], step, session.timeout or step.timeout)
    seconds, load = perf_counter() - clock, meter.stop()
    return {
        "step": step.name,
        "size": session.size,
        "command": shlex.join(command),
        "environment": dict(step.environment),
        "code": code_of(step),
        "commit": commit_of_code(),
        "started": started.isoformat(timespec="seconds"),
        "seconds": round(seconds, 2),
        "attempt": attempt,
        "status": status,
        "error": error,
        "noisy": step.is_timed and (load.noisy or any(map(says_noisy, records))),
        "load": load.to_dict(),
        "machine": machine_of(tuple(step.environment.items())),
        "records": records,
    }


def _run(command: list[str], step: Step, limit: float) -> tuple[str, str, list[Record]]:
    """Run a process: how it ended, its last line, and its lines of JSON; its tables go to our stderr."""
    words: deque[str] = deque(maxlen=1)

    def forward(stream: Any) -> None:
        for line in stream:
            click.echo(line, nl=False, err=True)
            words.extend([line.strip()] if line.strip() else [])

    environment = os.environ | dict(step.environment)
    with (
        tempfile.TemporaryFile("w+") as out,
        psutil.Popen(command, cwd=ROOT, stdout=out, stderr=subprocess.PIPE, env=environment, text=True) as process,
    ):
        reader = threading.Thread(target=forward, args=(process.stderr,))
        reader.start()
        status, error = "complete", ""
        try:
            process.wait(timeout=limit)
        except (subprocess.TimeoutExpired, psutil.TimeoutExpired):
            status, error = "timed out", f"after {limit:g} s"
        finally:
            end_tree(process)
            reader.join()
        out.seek(0)
        records = list(_records(out.read()))
    if status == "complete" and process.returncode:
        status, error = "failed", " ".join(words) or f"exit status {process.returncode}"
    if status == "complete" and not records and not step.pictures:
        status, error = "failed", "it printed no line of JSON"
    return status, error, records


@functools.cache
def machine_of(environment: tuple[tuple[str, str], ...]) -> Record:
    """The machine as a process with these variables finds it: OpenBLAS takes its kernels when it is loaded."""
    if not environment:
        return describe_machine()
    command, root = [sys.executable, "-m", "benchmarks.machine"], Path(__file__).parents[1]
    done = subprocess.run(command, cwd=root, env=os.environ | dict(environment), capture_output=True, check=True)
    found: Record = json.loads(done.stdout)
    return found


def commit_of_code() -> str | None:
    """Commit, marked where dkrr or its benchmarks differ from it: results that were written since do not count."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        changed = git("status", "--porcelain", "--", "dkrr", "benchmarks")
        return git("describe", "--always", "--abbrev=12") + ("-dirty" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def says_noisy(record: Record) -> bool:
    """Whether a line says of itself that other load disturbed it."""
    return bool(record.get("noisy") or (record.get("load") or {}).get("noisy"))


def _records(text: str) -> Iterable[Record]:
    """Lines that are JSON, each with less of what the run says once."""
    for line in text.splitlines():
        try:
            record: Any = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(record, dict):
            record.pop("machine", None)
            for peer in (record.get("peers") or {}).values():
                peer.pop("machine", None)
            yield record


def append(run: Record, path: Path) -> None:
    """Add a line to the file of results."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(run) + "\n")


def chosen_steps(size: Size, only: Sequence[str]) -> list[Step]:
    """Steps of a size whose name matches one of some patterns; if there is none, all but those on request."""
    unknown = [p for p in only if not any(fnmatch.fnmatch(s.name, p) for s in STEPS)]
    if unknown:
        raise click.BadParameter(f"{unknown[0]!r} is none of {', '.join(s.name for s in STEPS)}", param_hint="--only")
    return [
        s
        for s in STEPS
        if size in s.commands
        and (any(fnmatch.fnmatch(s.name, p) for p in only) if only else size != "full" or not s.on_request)
    ]


def calibrate(steps: Sequence[Step], console: Console) -> None:
    """Measure this machine as `dkrr calibrate` does, for every instruction set that the steps ask for."""
    kernels = dict.fromkeys(step.environment.get("OPENBLAS_CORETYPE") for step in steps)
    for name in kernels:
        console.print(f"dkrr calibrate{f', {name} kernels' if name else ''}")
        command = [sys.executable, "-c", "from dkrr.cli import main; main()", "calibrate"]
        environment = os.environ | ({"OPENBLAS_CORETYPE": name} if name else {})
        subprocess.run(command, cwd=ROOT, env=environment, stdout=sys.stderr, check=True)


def run_all(session: Session, steps: Sequence[Step], console: Console) -> list[str]:
    """Run steps one after another, each again while other load disturbs it; the names of those that failed."""
    failed = []
    for number, step in enumerate(steps, 1):
        head = f"[{number}/{len(steps)}] {step.name}"
        if not session.again and is_done(read_runs(session.results), step, session):
            console.print(f"{head}: measured already")
            continue
        for attempt in range(session.retries + 1):
            console.print(f"{head}: {shlex.join(session.command(step))}")
            run = run_step(step, session, attempt)
            append(run, session.results)
            verdicts = [judge(goal, run["records"]) for goal in step.goals]
            met = sum(v.is_met is True for v in verdicts)
            console.print(
                f"{head}: {run['status']} {run['error']} in {format_seconds(run['seconds'])}, "
                f"{met} of {len(verdicts)} goals met" + (", NOISY" if run["noisy"] else "")
            )
            if run["status"] != "complete" or not run["noisy"]:
                break
        if run["status"] != "complete":
            failed.append(step.name)
        # After every step, so that what there is can be read while the rest runs.
        render(session.results, session.out)
    return failed


@click.command()
@click.option("--size", type=click.Choice(SIZES), default="small", show_default=True)
@click.option("--only", multiple=True, help="Name of a step, or a pattern; may be repeated.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of results; default: docs/measured for size full, with its page in docs, else output/measured.",
)
@click.option(
    "--cache", type=click.Path(file_okay=False, path_type=Path), default=Path("output/cache"), show_default=True,
    help="Folder for data sets.",
)  # fmt: skip
@click.option("--retries", type=click.IntRange(min=0), default=2, show_default=True, help="After a noisy run.")
@click.option("--calibrate", "calibrates", is_flag=True, help="Measure the machine first, as `dkrr calibrate` does.")
@click.option("--again", is_flag=True, help="Also what is measured already.")
@click.option("--timeout", type=click.FloatRange(min=1), help="Seconds of a step; default: each step's own.")
@click.option("--list", "lists", is_flag=True, help="Print the steps and their commands, and run nothing.")
def main(
    size: Size,
    only: tuple[str, ...],
    out: Path | None,
    cache: Path,
    retries: int,
    calibrates: bool,
    again: bool,
    timeout: float | None,
    lists: bool,
) -> None:
    """Run the table of benchmarks and render it."""
    is_published = out is None and size == "full"
    folder = out or Path("docs/measured" if is_published else "output/measured")
    if Path.cwd() != ROOT:  # where the steps run
        folder, cache = (ROOT / folder if out is None else folder.absolute()), cache.absolute()
    session = Session(size, folder, cache, retries, again, timeout)
    steps = chosen_steps(size, only)
    if lists:
        for step in steps:
            settings = [f"{k}={v}" for k, v in step.environment.items()]
            minutes = f" (about {step.minutes:g} min)" if size == "full" and step.minutes else ""
            click.echo(f"{step.name}{minutes}: {' '.join([*settings, shlex.join(session.command(step))])}")
        return
    console = Console(stderr=True)
    if calibrates:
        calibrate(steps, console)
    failed = run_all(session, steps, console)
    console.print(f"page: {render(session.results, folder)}")
    for difference in differences(read_runs(RESULTS), ROOT) if is_published else ():
        click.echo(difference, err=True)
    if failed:
        raise click.ClickException(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    # As Ctrl-C does: the processes of the running step are ended too, or they would disturb the run that resumes.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    main()
