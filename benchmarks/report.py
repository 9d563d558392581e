"""Render what `python -m benchmarks` gathered: Markdown and pictures for the docs.

::

    python -m benchmarks.report --json docs/measured/results.jsonl --out docs/measured
        --page docs/results/measurements.md --readme README.md

A file of results has one line for every run of a step: its name, size, command, commit, time, how it ended, whether it
was noisy, and the lines of JSON that it printed. Steps that are not there are named, and the rest is rendered.
"""

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import click

from benchmarks.grids import SIZES
from benchmarks.plans import draw as draw_plans
from benchmarks.steps import SENTENCES, STEPS, Column, Goal, Sentence, Step, Style
from dkrr.text import format_bytes, format_seconds

Record = dict[str, Any]

_REDUCE: dict[str, Any] = {"max": max, "min": min, "sum": sum, "median": median}
HEAD = """\
Made by `python -m benchmarks`; do not edit. `benchmarks/README.md` explains the entries. Times are wall times. Peers
use all cores and run after dkrr, each in a process of its own. Unless stated otherwise the kernel is RBF with γ = 1/d,
λ = 0.01 and d = 16. Runs during which other work kept more than 0.2 of a core busy are marked: do not quote them.
"""
LEGEND = """\
Time and memory of dkrr over a peer's, with those of the peer in brackets. GEMM: n³/3 operations over the whole time, as
part of the rate of matrix products in the same processes. SciPy forms all of K, factors it in place by
`cholesky(K.T, lower=True, overwrite_a=True)` and solves. `cholesky` is float64 throughout; `auto` may refine a factor
in float32, or take conjugate gradient, to the true residual that its section gives. Haswell: the same with
`OPENBLAS_CORETYPE=Haswell`.
"""
BLOCK = re.compile(r"(<!-- measured -->\n).*?(<!-- /measured -->)", re.S)
"""Part of a page that `render` replaces by what it measured."""
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
        Links of files to show, by the step that they belong to ("" before all).
    """
    shown = shown_runs(runs, size)
    missing = [step.name for step in STEPS if step.name not in shown and not step.on_request]
    lines = [
        "# Measured performance",
        "",
        *HEAD.splitlines(),
        "",
        *highlights(shown),
    ]
    if missing:
        lines += ["", f"**Not measured**: {', '.join(missing)}."]
    lines += _pictures(pictures.get("", ()))
    lines += ["", "## Goals", "", *_goals(shown)]
    for step in STEPS:
        if step.name in shown:
            lines += _section(step, shown[step.name], pictures.get(step.name, ()))
    return "\n".join(lines) + "\n"


def shown_runs(runs: Sequence[Record], size: str | None) -> dict[str, Record]:
    """The run of each step that is shown, by its name."""
    return {step.name: run for step in STEPS if (run := best_run(runs, step, size)) is not None}


def highlights(shown: Mapping[str, Record]) -> list[str]:
    """What the README quotes: machine and date, the solves beside the peers, and a sentence for every other claim."""
    if not shown:
        return ["Nothing is measured."]
    return [
        *_origin(shown),
        "",
        *_solves(shown),
        "",
        *LEGEND.splitlines(),
        "",
        *(_sentence(sentence, shown) for sentence in SENTENCES),
    ]


def _origin(shown: Mapping[str, Record]) -> list[str]:
    """Where and when the runs were made, and what of it differs between them."""
    machines = dict.fromkeys(_machine_text(run["machine"]) for run in shown.values())
    commits = dict.fromkeys(str(run["commit"]) for run in shown.values())
    dates = sorted({str(run["started"])[:10] for run in shown.values()})
    kernels = dict.fromkeys(_kernels(run["machine"]) for run in shown.values() if not run["machine"].get("environment"))
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    lines = []
    if len(machines) == len(commits) == 1:
        lines.append(f"Measured {when} at commit {next(iter(commits))}, on {next(iter(machines))}.")
    else:
        lines += [f"Measured {when}, **not all in one run**; do not compare across machines or commits:", ""]
        for key in dict.fromkeys((_machine_text(r["machine"]), str(r["commit"])) for r in shown.values()):
            names = [n for n, r in shown.items() if (_machine_text(r["machine"]), str(r["commit"])) == key]
            lines.append(f"- commit {key[1]}, {key[0]}: {', '.join(names)}")
    found = "; ".join(filter(None, kernels))
    return [*lines, *(["", f"BLAS: {found}."] if found else [])]


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


def _solves(shown: Mapping[str, Record]) -> list[str]:
    """The median run of each solver of `benchmarks.solve`, beside the same with other kernels."""
    headings = (
        "n",
        "limit",
        "solver",
        "time",
        "peak memory",
        "of GEMM",
        "SciPy",
        "scikit-learn",
        "Dask",
        "Haswell kernels",
    )
    rows = []
    for step in STEPS:
        run, other = shown.get(step.name), shown.get(f"{step.name}-haswell")
        if run is None or step.module != "solve" or step.environment:
            continue
        for record in medians_of(run):
            ours, peers = record["dkrr"], record["peers"]
            peak = look(record, "dkrr.memory.peak_bytes_by_process|sum")
            same = [r for r in medians_of(other or {"records": []}) if r["settings"]["solver"] == _solver(record)]
            rows.append(
                (
                    f"{record['settings']['n']:,}",
                    record["settings"]["memory_limit"],
                    f"{_solver(record)}: {look(ours, 'plan.summary') or '?'}" + (", NOISY" if run["noisy"] else ""),
                    format_seconds(ours["seconds"]),
                    format_bytes(int(peak)),
                    cell(look(record, "ratios.gemm"), "ratio"),
                    *(_beside(ours["seconds"], peak, peers, name) for name in ("scipy", "sklearn", "dask")),
                    "; ".join(map(_with_scipy, same)) or "–",
                )
            )
    if not rows:
        return ["No solve is measured."]
    return ["| " + " | ".join(headings) + " |", "|---:|---|---|" + "---:|" * 3 + "---|" * 4] + [
        "| " + " | ".join(row) + " |" for row in rows
    ]


def _with_scipy(record: Record) -> str:
    seconds = float(record["dkrr"]["seconds"])
    return f"{format_seconds(seconds)}; SciPy {_beside(seconds, None, record['peers'], 'scipy')}"


def _solver(record: Record) -> str:
    return str(record["settings"].get("solver", "cholesky"))


def medians_of(run: Record) -> list[Record]:
    """Of the repetitions of `benchmarks.solve` in a run, that of the median time, for each solver."""
    by_solver: dict[str, list[Record]] = {}
    for record in run["records"]:
        if record.get("benchmark") == "solve":
            by_solver.setdefault(_solver(record), []).append(record)
    ordered = (sorted(same, key=lambda r: float(r["dkrr"]["seconds"])) for same in by_solver.values())
    return [same[(len(same) - 1) // 2] for same in ordered]


def _beside(seconds: float, peak: float | None, peers: Mapping[str, Any], name: str) -> str:
    """Time and memory over a peer's; where it crashed, that, and its second run on one thread."""
    peer = peers.get(name)
    if peer is None:
        return "–"
    if "seconds" not in peer:
        words = str(peer.get("outcome", "no result"))
        again = f"{name}_one_thread"
        return f"{words}; on one thread {_beside(seconds, peak, peers, again)}" if again in peers else words
    memory = peer.get("peak_bytes_of_all_workers", peer["peak_bytes"])
    ratios = f"{seconds / peer['seconds']:.2f} × the time"
    ratios += "" if peak is None else f", {peak / memory:.2f} × the memory"
    return f"{ratios} ({format_seconds(peer['seconds'])}, {format_bytes(int(memory))})"


def _sentence(sentence: Sentence, shown: Mapping[str, Record]) -> str:
    """A claim as an item of a list, or that it was not measured."""
    run = shown.get(sentence.step)
    figures = {}
    for name, value in sentence.values.items():
        found = [
            float(number)
            for record in (run["records"] if run else ())
            if all(look(record, path) == wanted for path, wanted in value.where.items())
            and isinstance(number := quotient(record, value.path, value.over), int | float)
        ]
        if not found:
            return f"- Not measured: {sentence.step}."
        figures[name] = cell(median(found), value.style)
    assert run is not None
    marks = [f"size {run['size']}"] * (run["size"] != "full") + ["NOISY, do not quote"] * bool(run["noisy"])
    return f"- {sentence.text.format(**figures)}" + (f" ({', '.join(marks)})" if marks else "")


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
    noise = "quiet" if step.is_timed else "simulated"
    if step.is_timed and run["noisy"]:
        where = "some of its runs" if load is None else f"others kept {load} cores busy in the mean"
        noise = f"NOISY, do not quote ({where})"
    lines = [
        "",
        f"## {step.title}",
        "",
        "`" + " ".join([*(f"{k}={v}" for k, v in step.environment.items()), run["command"]]) + "`",
        "",
        f"{run['started'][:10]}, commit {run['commit']}, {format_seconds(run['seconds'])}, {noise}"
        + (f"; {kernels}." if (kernels := _kernels(run["machine"])) and step.is_timed else "."),
    ]
    lines += ["", step.notes] if step.notes else []
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
    for k, record in enumerate(records):
        n, ours = record["settings"]["n"], record["dkrr"]
        # Lines of one command have the same peers: they are drawn after its last solver.
        is_last = k + 1 == len(records) or records[k + 1]["peers"] != record["peers"]
        peak = look(record, "dkrr.memory.peak_bytes_by_process|sum")
        bars.append(
            (f"dkrr {_solver(record)}, n = {n:,}, {record['settings']['memory_limit']}", ours["seconds"], peak, _BLUE)
        )
        for name, peer in record["peers"].items() if is_last else ():
            if "seconds" in peer:
                peak = peer.get("peak_bytes_of_all_workers", peer["peak_bytes"])
                label = f"{name.replace('_', ', ', 1).replace('_', ' ')}, n = {peer.get('n', n):,}"
                bars.append((label, peer["seconds"], peak, _GREY))
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


def draw_all(runs: Sequence[Record], size: str | None, out: Path) -> None:
    """Draw what can be drawn from the lines."""
    solved = []
    for step in STEPS:
        run = best_run(runs, step, size)
        if run is None:
            continue
        if not step.environment:
            solved += [record for record in medians_of(run) if record.get("peers")]
        points = [r for r in run["records"] if r.get("benchmark") == "plans grid" and "ratios" in r]
        if points:
            draw_plans(points, out / "plans.png")
    if solved:
        draw_peers(solved, out / "peers.png")


def pictures_in(out: Path, folder: Path) -> dict[str, list[str]]:
    """Links from a page in a folder to the pictures that exist in another, by step; "" before all."""
    names = {"": ("peers.png",), "plans-grid": ("plans.png",)}
    names |= {step.name: (*step.pictures, *names.get(step.name, ())) for step in STEPS}
    return {
        step: [Path(os.path.relpath(out / name, folder)).as_posix() for name in several if (out / name).exists()]
        for step, several in names.items()
    }


def render(
    results: Path, out: Path, size: str | None = None, page: Path | None = None, readme: Path | None = None
) -> Path:
    """Write the page and its pictures.

    Parameters
    ----------
    results : Path
        File of runs.
    out : Path
        Folder of the pictures, and of those that steps made.
    size : str or None
        Show this size only; None: the largest of each step.
    page : Path, optional
        Default: README.md in `out`.
    readme : Path, optional
        A page whose block between ``<!-- measured -->`` and ``<!-- /measured -->`` is replaced by the highlights.

    Returns
    -------
    Path
        The page.
    """
    runs = read_runs(results)
    out.mkdir(parents=True, exist_ok=True)
    draw_all(runs, size, out)
    page = out / "README.md" if page is None else page
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(markdown(runs, size, pictures_in(out, page.parent)))
    if readme is not None:
        readme.write_text(with_block(readme.read_text(), highlights(shown_runs(runs, size))))
    return page


def with_block(text: str, lines: Sequence[str]) -> str:
    """Text of a page with other lines in its block."""
    if not BLOCK.search(text):
        raise click.ClickException("the page has no block between <!-- measured --> and <!-- /measured -->")
    return BLOCK.sub(lambda found: found[1] + "\n".join(["", *lines, ""]) + "\n" + found[2], text)


@click.command()
@click.option("--json", "json_path", type=click.Path(exists=True, dir_okay=False, path_type=Path), required=True)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), required=True, help="Folder of the page.")
@click.option("--size", type=click.Choice(SIZES), help="Show this size only; default: the largest of each step.")
@click.option("--page", type=click.Path(dir_okay=False, path_type=Path), help="Default: README.md in that folder.")
@click.option(
    "--readme", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Page whose block is replaced too."
)
def main(json_path: Path, out: Path, size: str | None, page: Path | None, readme: Path | None) -> None:
    """Render a file of results."""
    if not read_runs(json_path):
        raise click.ClickException(f"{json_path} has no runs of `python -m benchmarks`")
    click.echo(str(render(json_path, out, size, page, readme)), err=True)


if __name__ == "__main__":
    main()
