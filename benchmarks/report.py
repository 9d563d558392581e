"""Render what `python -m benchmarks` gathered: Markdown and pictures for the docs.

::

    python -m benchmarks.report --json docs/measured/results.jsonl --out docs/measured

A file of results has one line for every run of a step: its name, size, command, commit, time, how it ended, whether it
was noisy, and the lines of JSON that it printed. Steps that are not there are named, and the rest is rendered.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import click

from benchmarks.grids import SIZES
from benchmarks.plans import draw as draw_plans
from benchmarks.steps import STEPS, Column, Goal, Step, Style
from dkrr.units import format_bytes, format_seconds

Record = dict[str, Any]

_REDUCE: dict[str, Any] = {"max": max, "min": min, "sum": sum, "median": median}
_BLUE, _GREY, _QUIET = "#1763a6", "#aeb7c0", "#52606d"


def look(record: Any, path: str) -> Any:
    """Value at a path, None if the path does not exist; see `benchmarks.steps`."""
    for alternative in path.split(","):
        where, _, reduce = alternative.partition("|")
        value = record
        for name in where.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        if value is not None and reduce:
            values = list(value.values()) if isinstance(value, Mapping) else list(value)
            value = _REDUCE[reduce](values) if values else None
        if value is not None and value != []:
            return value
    return None


def quotient(record: Record, path: str, over: str) -> Any:
    """Value at a path, over that at another where one is given."""
    value = look(record, path)
    if not over:
        return value
    divisor = look(record, over)
    return value / divisor if value is not None and divisor else None


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


def read_runs(path: Path) -> list[Record]:
    """Runs of steps in a file; a last line that was cut off by a kill does not count."""
    runs = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            run = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(run, dict) and "step" in run:
            runs.append(run)
    return runs


def best_run(runs: Sequence[Record], step: Step, size: str | None) -> Record | None:
    """The run to show: of the largest size, complete rather than failed, quiet rather than noisy, and the latest."""
    mine = [run for run in runs if run["step"] == step.name and size in (None, run["size"])]
    return max(
        enumerate(mine),
        key=lambda pair: (
            pair[1]["status"] == "complete",
            SIZES.index(pair[1]["size"]),
            not pair[1]["noisy"],
            pair[0],
        ),
        default=(0, None),
    )[1]


def cell(value: Any, style: str) -> str:
    """Value as text of a table."""
    if value is None:
        return "–"
    if isinstance(value, list | tuple):
        return ", ".join(str(v) for v in value)
    if style == "text" or isinstance(value, str):
        return str(value).replace("|", "\\|").replace("\n", " ")
    styles: dict[str, Any] = {
        "count": lambda v: f"{v:,.0f}",
        "seconds": format_seconds,
        "bytes": lambda v: format_bytes(int(v)),
        "ratio": lambda v: f"{v:.3g}" if abs(v) >= 100 or 0 < abs(v) < 0.01 else f"{v:.2f}",
        "fine": lambda v: f"{v:.4f}",
        "percent": lambda v: f"{v:.0%}",
        "number": lambda v: f"{v:.1f}",
        "exponent": lambda v: f"{v:.1e}",
    }
    return str(styles[style](value))


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
        Files to show, by the step that they belong to ("" before all).
    """
    shown = {step.name: run for step in STEPS if (run := best_run(runs, step, size)) is not None}
    missing = [step.name for step in STEPS if step.name not in shown]
    lines = [
        "# Measured",
        "",
        "Made by `python -m benchmarks` and `python -m benchmarks.report`; do not edit. What the entries mean is in",
        "[benchmarks/README.md](../../benchmarks/README.md). Runs during which other work kept more than 0.2 of a core",
        "busy are marked: do not quote them.",
        "",
        *_machines(shown),
        "",
        "## Goals",
        "",
        *_goals(shown),
    ]
    if missing:
        lines += ["", f"Not measured: {', '.join(missing)}."]
    lines += _pictures(pictures.get("", ()))
    for step in STEPS:
        if step.name in shown:
            lines += _section(step, shown[step.name], pictures.get(step.name, ()))
    return "\n".join(lines) + "\n"


def _machine_text(machine: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in machine.get("versions", {}).items() if number)
    blas = sorted({f"{b['internal_api']} {b['version']} ({b['architecture']})" for b in machine.get("blas", [])})
    memory = format_bytes(int(machine["memory_bytes"])) if "memory_bytes" in machine else "?"
    return (
        f"{machine.get('cores', '?')} cores of {machine.get('cpu', '?')}, {memory} of memory, "
        f"{machine.get('system', '?')}; {versions}" + (f"; BLAS: {', '.join(blas)}" if blas else "")
    )


def _machines(shown: Mapping[str, Record]) -> list[str]:
    texts = dict.fromkeys(_machine_text(run["machine"]) for run in shown.values())
    if len(texts) < 2:
        return [f"On {text}." for text in texts]
    by_text = {text: [n for n, run in shown.items() if _machine_text(run["machine"]) == text] for text in texts}
    return ["On several machines; do not compare across them:", ""] + [
        f"- {text}: {', '.join(names)}" for text, names in by_text.items()
    ]


def _goals(shown: Mapping[str, Record]) -> list[str]:
    lines = ["| goal | bound | measured | met |", "|---|---:|---:|---|"]
    for step in STEPS:
        run = shown.get(step.name)
        for goal in step.goals:
            verdict = judge(goal, [] if run is None else run["records"])
            met = {True: "yes", False: "**no**", None: "not measured"}[verdict.is_met]
            if run is not None and verdict.value is not None:
                met += ", noisy" if run["noisy"] else ""
                met += "" if run["size"] == "full" else f", size {run['size']}"
            lines.append(f"| {goal.text} | {verdict.bound} | {cell(verdict.value, 'ratio')} | {met} |")
    return lines


def _section(step: Step, run: Record, pictures: Sequence[str]) -> list[str]:
    load = run.get("load", {}).get("other_cores_busy_during")
    noise = (
        "simulated"
        if not step.is_timed
        else f"NOISY, do not quote (others kept {load} cores busy in the mean)"
        if run["noisy"]
        else "quiet"
    )
    lines = [
        "",
        f"## {step.title}",
        "",
        "`" + " ".join([*(f"{k}={v}" for k, v in step.environment.items()), run["command"]]) + "`",
        "",
        f"{run['started'][:10]}, commit {run['commit']}, {format_seconds(run['seconds'])}, {noise}.",
    ]
    if run["status"] != "complete":
        lines += ["", f"**{run['status']}**: {cell(run.get('error') or 'no message', 'text')}"]
    rows = rows_of(step, run["records"])
    if rows:
        lines += ["", *table(columns_of(step, run["records"]), rows)]
    return lines + _pictures(pictures)


def _pictures(names: Sequence[str]) -> list[str]:
    return [line for name in names for line in ("", f"![{Path(name).stem}]({name})")]


def draw_peers(records: Sequence[Record], path: Path) -> None:
    """Time and memory of dkrr and of its peers as bars.

    Parameters
    ----------
    records : sequence of dict
        Lines of `benchmarks.solve`, one for each group of bars.
    path : Path
        PNG to write.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    bars: list[tuple[str, float, float, str]] = []
    for record in records:
        n, ours = record["settings"]["n"], record["dkrr"]
        peak = look(record, "dkrr.memory.peak_bytes_by_process|sum")
        bars.append((f"dkrr, n = {n:,}, {record['settings']['memory_limit']}", ours["seconds"], peak, _BLUE))
        for name, peer in record["peers"].items():
            if "seconds" in peer:
                peak = peer.get("peak_bytes_of_all_workers", peer["peak_bytes"])
                bars.append((f"{name}, n = {peer.get('n', n):,}", peer["seconds"], peak, _GREY))
    figure = Figure(figsize=(11, 1.0 + 0.34 * len(bars)), dpi=150, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharey=True)
    for axes, column, scale, heading in (
        (left, 1, 1.0, "seconds"),
        (right, 2, 2.0**30, "GiB, all processes that work"),
    ):
        values = [bar[column] / scale for bar in bars]  # type: ignore[operator]
        drawn = axes.barh(range(len(bars)), values, color=[bar[3] for bar in bars], height=0.72)
        axes.bar_label(drawn, [f"{v:.3g}" for v in values], padding=3, fontsize=8, color=_QUIET)
        axes.set_xlabel(heading)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.margins(x=0.12)
    left.set_yticks(range(len(bars)), [bar[0] for bar in bars], fontsize=9)
    left.tick_params(axis="y", length=0)
    left.invert_yaxis()
    figure.savefig(path)


def draw_all(runs: Sequence[Record], size: str | None, out: Path) -> dict[str, list[str]]:
    """Draw what can be drawn; the names of all pictures by the step that they belong to."""
    pictures: dict[str, list[str]] = {}
    solved = []
    for step in STEPS:
        run = best_run(runs, step, size)
        if run is None:
            continue
        pictures[step.name] = [name for name in step.pictures if (out / name).exists()]
        lines = [r for r in run["records"] if r.get("benchmark") == "solve" and r.get("peers")]
        solved += sorted(lines, key=lambda r: float(r["dkrr"]["seconds"]))[len(lines) // 2 : len(lines) // 2 + 1]
        points = [r for r in run["records"] if r.get("benchmark") == "plans grid" and "ratios" in r]
        if points:
            draw_plans(points, out / "plans.png")
            pictures[step.name].append("plans.png")
    if solved:
        draw_peers(solved, out / "peers.png")
        pictures[""] = ["peers.png"]
    return pictures


def render(results: Path, out: Path, size: str | None = None) -> Path:
    """Write README.md and the pictures, and return the page's path."""
    runs = read_runs(results)
    out.mkdir(parents=True, exist_ok=True)
    page = out / "README.md"
    page.write_text(markdown(runs, size, draw_all(runs, size, out)))
    return page


@click.command()
@click.option("--json", "json_path", type=click.Path(exists=True, dir_okay=False, path_type=Path), required=True)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), required=True, help="Folder of the page.")
@click.option("--size", type=click.Choice(SIZES), help="Show this size only; default: the largest of each step.")
def main(json_path: Path, out: Path, size: str | None) -> None:
    """Render a file of results."""
    if not read_runs(json_path):
        raise click.ClickException(f"{json_path} has no runs of `python -m benchmarks`")
    click.echo(str(render(json_path, out, size)), err=True)


if __name__ == "__main__":
    main()
