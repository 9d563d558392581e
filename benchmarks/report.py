"""Render what `python -m benchmarks` recorded: the page of results and the pictures, and what pages say of them.

::

    python -m benchmarks.report              # docs/results/measurements.md, the pictures, and quotes that differ
    python -m benchmarks.report --goals      # goals that are not met
    python -m benchmarks.report --prune      # leave only the runs that are shown in the file of results

Steps that were not measured are named, and the rest is rendered. Runs that other work disturbed are not shown.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import click

from benchmarks.grids import SIZES
from benchmarks.pictures import crash_rows, draw_errors_by_rows, draw_errors_by_time
from benchmarks.plans import draw as draw_plans
from benchmarks.quotes import differences
from benchmarks.results import (
    RESULTS,
    ROOT,
    Record,
    best_runs,
    cell,
    lines_of,
    look,
    prune,
    quotient,
    read_runs,
)
from benchmarks.steps import STEPS, Column, Goal, Step, Style
from dkrr.text import format_bytes, format_seconds

PAGE = ROOT / "docs" / "results" / "measurements.md"
"""Page of the results in docs/measured."""
README_PICTURE = ROOT / "docs" / "images" / "readme-qm9.png"
HEAD = """\
Made by `python -m benchmarks`; do not edit. Times are wall times. Peak memory of a fit is the sum over its workers and
the calling process. Peers use all cores and run after dkrr, each in its own process. Unless stated otherwise the kernel
is RBF with γ = 1/d, λ = 0.01 and d = 16. Of repetitions, the one with the median time is shown.

`cholesky` is float64 throughout; `auto` may refine a factor in float32, or take conjugate gradient. SciPy forms all of
K, factors it in place by `cholesky(K.T, lower=True, overwrite_a=True)` and solves. "Of GEMM": the rate of n³/3
operations over the whole time, divided by the rate of matrix products in the same processes. Haswell kernels: the same
with `OPENBLAS_CORETYPE=Haswell`.
"""


@dataclass(frozen=True)
class Verdict:
    """A goal and what was measured."""

    goal: Goal
    value: float | None
    """None: not measured."""

    @property
    def is_met(self) -> bool | None:
        """None: not measured."""
        if self.value is None:
            return None
        above = self.goal.at_least is None or self.value >= self.goal.at_least
        return above and (self.goal.at_most is None or self.value <= self.goal.at_most)

    @property
    def bound(self) -> str:
        """The bound in words."""
        at_most = [] if self.goal.at_most is None else [f"≤ {self.goal.at_most:g}"]
        return " and ".join(at_most + ([] if self.goal.at_least is None else [f"≥ {self.goal.at_least:g}"]))


def judge(goal: Goal, records: Iterable[Record]) -> Verdict:
    """Compare what was measured with a goal."""
    values = [
        float(value) / goal.unit
        for record in records
        if all(look(record, path) == wanted for path, wanted in goal.where.items())
        and isinstance(value := quotient(record, goal.path, goal.over), int | float)
    ]
    if not values:
        return Verdict(goal, None)
    if goal.rows == "median":
        return Verdict(goal, median(values))
    return Verdict(goal, max(values) if goal.at_most is not None else min(values))


def goals_missed(shown: Mapping[str, Record]) -> list[str]:
    """A line for each goal that the shown runs do not meet."""
    lines = []
    for step in STEPS:
        for goal in step.goals if step.name in shown else ():
            verdict, run = judge(goal, shown[step.name]["records"]), shown[step.name]
            if verdict.is_met is False:
                remark = ", noisy" if run["noisy"] else ""
                remark += "" if run["size"] == "full" else f", size {run['size']}"
                lines.append(f"{step.name}: {goal.text}: {verdict.value:.3g}, goal {verdict.bound}{remark}")
    return lines


def columns_of(step: Step, records: Sequence[Record]) -> tuple[Column, ...]:
    """Columns of a step; where it names none, everything that is a number or text."""
    if step.columns:
        return step.columns
    names = dict.fromkeys(
        name
        for record in records
        for name, value in record.items()
        if isinstance(value, str | int | float) and name not in ("benchmark", "time")
    )
    return tuple(Column(name.replace("_", " "), name, _style(name, records)) for name in names)


def _style(name: str, records: Sequence[Record]) -> Style:
    if name.endswith("seconds"):
        return "seconds"
    if name.endswith("bytes"):
        return "bytes"
    values = [record[name] for record in records if name in record]
    if any(isinstance(value, str | bool) for value in values):
        return "text"
    return "count" if all(isinstance(value, int) for value in values) else "ratio"


def rows_of(step: Step, records: Sequence[Record]) -> list[list[Any]]:
    """Values of a step's table, a row for each line that has any beside its name."""
    rows, columns = [], columns_of(step, records)
    for record in records:
        if any(look(record, path) != wanted for path, wanted in step.where.items()):
            continue
        values = [quotient(record, c.path, c.over) for c in columns]
        if values and values[0] is not None and any(v is not None for v in values[1:]):
            rows.append(values)
    return rows


def table(columns: Sequence[Column], rows: Sequence[Sequence[Any]]) -> list[str]:
    """Markdown table without the columns that nothing is in."""
    kept = [k for k in range(len(columns)) if any(row[k] is not None for row in rows)]
    lines = [
        "| " + " | ".join(columns[k].heading for k in kept) + " |",
        "|" + "|".join("---" if columns[k].style == "text" else "---:" for k in kept) + "|",
    ]
    return lines + ["| " + " | ".join(cell(row[k], columns[k].style) for k in kept) + " |" for row in rows]


def markdown(runs: Sequence[Record], size: str | None, pictures: Mapping[str, Sequence[str]]) -> str:
    """The page.

    Parameters
    ----------
    runs : sequence of dict
        Runs of steps.
    size : str or None
        Show this size only; None: the largest of each step.
    pictures : mapping of str to sequence of str
        Links of files to show, by the step that they belong to.
    """
    found = best_runs(runs, size)
    shown = {name: run for name, run in found.items() if not run["noisy"]}
    missing = [step.name for step in STEPS if step.name not in found and not step.on_request]
    noisy = [name for name in found if name not in shown]
    lines = ["# Measured performance", "", *HEAD.splitlines(), "", *_origin(shown)]
    if missing:
        lines += ["", f"**Not measured**: {', '.join(missing)}."]
    if noisy:
        lines += ["", f"**Not shown**, since other work disturbed the runs: {', '.join(noisy)}."]
    for step in STEPS:
        if step.name in shown:
            lines += _section(step, shown[step.name], pictures.get(step.name, ()))
    return "\n".join(lines) + "\n"


def _origin(shown: Mapping[str, Record]) -> list[str]:
    """Where and when the runs were made."""
    if not shown:
        return ["Nothing is measured."]
    machines = dict.fromkeys(_machine_text(run["machine"]) for run in shown.values())
    dates = sorted({str(run["started"])[:10] for run in shown.values()})
    kernels = dict.fromkeys(_kernels(run["machine"]) for run in shown.values() if not run["machine"].get("environment"))
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    lines = [f"Measured {when}. Each section has its date and commit; compare only sections that have the same.", ""]
    lines += [f"- {machine}" for machine in machines]
    return [*lines, *(f"- BLAS: {found}" for found in kernels if found)]


def _machine_text(machine: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in machine.get("versions", {}).items() if number)
    memory = format_bytes(int(machine["memory_bytes"])) if "memory_bytes" in machine else "?"
    return (
        f"{machine.get('cores', '?')} cores of {machine.get('cpu', '?')}, {memory} of memory, "
        f"{machine.get('system', '?')}; {versions}"
    )


def _kernels(machine: Mapping[str, Any]) -> str:
    """Versions of the BLAS libraries, and the kernels that they took."""
    return ", ".join(
        sorted({f"{b['internal_api']} {b['version']} ({b['architecture']} kernels)" for b in machine.get("blas", [])})
    )


def _section(step: Step, run: Record, pictures: Sequence[str]) -> list[str]:
    lines = [
        "",
        f"## {step.title}",
        "",
        "`" + " ".join([*(f"{k}={v}" for k, v in step.environment.items()), run["command"]]) + "`",
        "",
        f"{run['started'][:10]}, commit {run['commit']}, {format_seconds(run['seconds'])}"
        + ("." if step.is_timed else ", simulated."),
    ]
    lines += ["", step.notes] if step.notes else []
    if run["status"] != "complete":
        lines += ["", f"**{run['status']}**: {cell(run.get('error') or 'no message', 'text')}"]
    records = lines_of(step, run)
    rows = rows_of(step, records)
    if rows:
        lines += ["", *table(columns_of(step, records), rows)]
    return lines + [line for name in pictures for line in ("", f"![{Path(name).stem}]({name})")]


def draw_all(runs: Sequence[Record], size: str | None, out: Path, readme_picture: Path) -> None:
    """Draw what can be drawn from the lines."""
    shown = {name: run["records"] for name, run in best_runs(runs, size).items() if not run["noisy"]}
    points = [r for r in shown.get("plans-grid", ()) if "ratios" in r]
    if points:
        draw_plans(points, out / "plans.png")
    molecules = shown.get("iterative-headline", [])
    if any("mae" in record for record in molecules):
        crashes_at = crash_rows([record for records in shown.values() for record in records])
        draw_errors_by_rows(molecules, readme_picture, crashes_at)
        draw_errors_by_time(molecules, out / "molecules.png")


def pictures_in(out: Path, folder: Path) -> dict[str, list[str]]:
    """Links from a page in a folder to the pictures that exist in another, by step."""
    names = {"plans-grid": ("plans.png",), "iterative-headline": ("molecules.png",)}
    names |= {step.name: (*step.pictures, *names.get(step.name, ())) for step in STEPS}
    return {
        step: [Path(os.path.relpath(out / name, folder)).as_posix() for name in several if (out / name).exists()]
        for step, several in names.items()
    }


def render(results: Path, out: Path, size: str | None = None) -> Path:
    """Write the page and its pictures.

    Parameters
    ----------
    results : Path
        File of runs.
    out : Path
        Folder of the pictures, and of those that steps made.
    size : str or None
        Show this size only; None: the largest of each step.

    Returns
    -------
    Path
        The page: docs/results/measurements.md for what is published, else README.md in `out`.
    """
    is_published = out.resolve() == RESULTS.parent
    page = PAGE if is_published else out / "README.md"
    runs = read_runs(results)
    out.mkdir(parents=True, exist_ok=True)
    draw_all(runs, size, out, README_PICTURE if is_published else out / README_PICTURE.name)
    page.write_text(markdown(runs, size, pictures_in(out, page.parent)))
    return page


@click.command()
@click.option(
    "--json", "json_path", type=click.Path(exists=True, dir_okay=False, path_type=Path), default=RESULTS,
    help="File of runs; default: docs/measured/results.jsonl.",
)  # fmt: skip
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), help="Folder of the pictures; default: the file's."
)
@click.option("--size", type=click.Choice(SIZES), help="Show this size only; default: the largest of each step.")
@click.option("--goals", is_flag=True, help="Print the goals that are not met, and render nothing.")
@click.option("--prune", "prunes", is_flag=True, help="First remove all runs that are not shown from the file.")
def main(json_path: Path, out: Path | None, size: str | None, goals: bool, prunes: bool) -> None:
    """Render a file of results, and print the quotes on pages that differ from docs/measured/results.jsonl."""
    runs = read_runs(json_path)
    if not runs:
        raise click.ClickException(f"{json_path} has no runs of `python -m benchmarks`")
    if goals:
        for line in goals_missed(best_runs(runs, size)):
            click.echo(line)
        return
    if prunes:
        kept = prune(runs)
        json_path.write_text("".join(json.dumps(run) + "\n" for run in kept))
        click.echo(f"{json_path}: {len(kept)} of {len(runs)} runs kept", err=True)
    click.echo(str(render(json_path, json_path.parent if out is None else out, size)), err=True)
    for difference in differences(read_runs(RESULTS), ROOT):
        click.echo(difference)


if __name__ == "__main__":
    main()
