"""Plans against reality: predicted over measured times, traffic and memory.

::

    python -m benchmarks.plans grid --size full --json output/plans.jsonl
    python -m benchmarks.plans draw --json output/plans.jsonl --out output/plans.png

Every fit runs in its own process. The cases are in `benchmarks.grids`. All ratios are predicted / measured;
``ratios_at_iterations`` are those of a plan with the iterations and the rank that the fit needed, so that only the
error of the cost model remains. Traffic below 1 MiB is not compared. A time that is off by more than 2 is not a miss if
the plan's range of seconds contains it.

Plans have the rates of ``dkrr calibrate`` if it was run, else those of the quick measurement (``rates_from``).
``DASK_DKRR__PROFILE_DIRECTORY=EMPTY DASK_DKRR__QUICK_MEASUREMENT=false`` shows plans with dkrr's defaults.
"""

import fnmatch
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from math import exp, log
from pathlib import Path
from statistics import median
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks import machine
from benchmarks.cases import Case, run_alone
from benchmarks.grids import SIZES, Size, grid
from benchmarks.machine import describe_machine
from benchmarks.solve import write_line
from dkrr.text import format_bytes, format_seconds

Record = dict[str, Any]

MEDIAN_SECONDS = 1.25
"""Goals: half of the plans are off by at most this factor ..."""
WORST_SECONDS = 2.0
"""... and every plan by at most this one."""
WORST_BYTES = 1.05
"""Goal for bytes that are read and written: every plan is off by at most this factor (at
the iterations that it took: no plan has the spectrum)."""
MIN_PEAK_RATIO = 1.0
"""Projected / measured peak memory, which no fit may exceed."""
WITHIN_MEDIAN = 0.9
"""Fraction of the plans that should be off by no more than MEDIAN_SECONDS."""
SMOKE_WATCH_SECONDS = 0.05
BANDS = {"±25 %": 1.25, "2 ×": 2.0}
COLOURS = ("#1763a6", "#e8963a", "#3a9e6d", "#8a6fb3", "#c0504d", "#52606d", "#b59f3b", "#4bacc6", "#d16ba5", "#7f7f7f")


def run_case(module: str, case: Case, timeout: float, size: Size, retries: int) -> Record:
    """Run a case alone; repeat it where other load disturbed it."""
    watch = SMOKE_WATCH_SECONDS if size == "smoke" else machine.SECONDS_BEFORE
    for attempt in range(retries + 1):
        record = run_alone(module, case, timeout, watch) | {"attempt": attempt}
        if not record.get("load", {}).get("noisy", False):
            break
    return {"case": case.name, "settings": asdict(case)} | record


def misses(record: Record) -> list[str]:
    """Goals that one run of the grid misses, in words; empty where it meets all."""
    if "ratios" not in record:
        return [ending(record)]
    found, raw, known = [], record["ratios"], record["ratios_at_iterations"]
    if off(raw["seconds"]) > WORST_SECONDS and not is_in_range(record):
        found.append(f"seconds {ratio_text(raw['seconds'])}")
    found += [
        f"{name.removesuffix('_bytes')} {ratio_text(known[name])}"
        for name in ("read_bytes", "written_bytes")
        if known[name] is not None and off(known[name]) > WORST_BYTES
    ]
    if raw["peak_bytes"] < MIN_PEAK_RATIO:
        found.append(f"peak {ratio_text(raw['peak_bytes'])}")
    if record["status"] not in ("solved", "converged"):
        found.append(record["status"])
    return found


def is_in_range(record: Record) -> bool:
    """Whether the fit took a time that the plan called possible, to MEDIAN_SECONDS; only estimates of iterations do."""
    low, high = record.get("seconds_range", (1.0, 1.0))
    return bool(low < high and low / MEDIAN_SECONDS <= record["measured"]["seconds"] <= high * MEDIAN_SECONDS)


def ending(record: Record) -> str:
    """Ending of a run that has no figures."""
    return next(
        (f"{name}: {record[name]}" for name in ("failed", "crashed", "timed_out") if name in record), "no figures"
    )


def off(ratio: float) -> float:
    """Factor by which something is off, in either direction."""
    return max(ratio, 1 / ratio) if ratio > 0 else float("inf")


def summarise(records: Iterable[Record]) -> dict[str, Record]:
    """Ratios by group (solver, form and where the matrix is), and of all cases.

    Returns
    -------
    dict
        By group and under "all": number of cases; for each figure the median ratio, the worst one, and "off", the
        median of the factors by which they are off (1.25: half of them are within 25 %).
    """
    groups: dict[str, list[Record]] = {}
    for record in records:
        if "ratios" in record:
            groups.setdefault(record["group"], []).append(record)
            groups.setdefault("all", []).append(record)
    return {name: _summary(groups[name]) for name in sorted(groups, key=lambda name: (name == "all", name))}


def _summary(records: Sequence[Record]) -> Record:
    figures: Record = {"cases": len(records), "noisy": sum(bool(r["load"]["noisy"]) for r in records)}
    for name, source, figure in (
        ("seconds", "ratios", "seconds"),
        ("seconds_at_iterations", "ratios_at_iterations", "seconds"),
        ("read_bytes", "ratios_at_iterations", "read_bytes"),
        ("written_bytes", "ratios_at_iterations", "written_bytes"),
        ("peak_bytes", "ratios", "peak_bytes"),
    ):
        values = [r[source][figure] for r in records if r[source][figure] is not None]
        # A peak is worst where it is exceeded.
        worst: Callable[..., Any] = min if name == "peak_bytes" else max
        figures[name] = values and {
            "median": median(values),
            "worst": worst(values) if name == "peak_bytes" else worst(values, key=off),
            "off": exp(median(abs(log(v)) if v > 0 else float("inf") for v in values)),
            "worst_off": _finite(max(map(off, values))),
            "within": sum(off(v) <= MEDIAN_SECONDS for v in values) / len(values),
            "least": min(values),
        }
        if not values:
            figures[name] = None
    return figures


def _finite(value: float) -> float:
    return min(value, 1e9)  # JSON has no infinity


def ratio_text(ratio: float | None) -> str:
    """Ratio with two digits after the point, where they make sense."""
    if ratio is None:
        return "–"
    return f"{ratio:.2f}" if 0.005 <= ratio < 1000 else f"{ratio:.0e}"


def wide_console() -> Console:
    """Terminal for tables; a log file is as wide as they need."""
    console = Console(stderr=True)
    return console if console.is_terminal else Console(stderr=True, width=150)


def grid_table(records: Sequence[Record]) -> Table:
    """Lay out the runs of a grid."""
    table = Table(title="predicted / measured", box=box.SIMPLE_HEAD, title_style="bold")
    for heading in ("case", "planned", "time", "seconds", "at its iterations", "read", "written", "peak memory", ""):
        table.add_column(heading, justify="left" if heading in ("case", "planned", "") else "right")
    for r in records:
        if "ratios" not in r:
            table.add_row(r["case"], ending(r))
            continue
        raw, known, taken = r["ratios"], r["ratios_at_iterations"], r["measured"]
        table.add_row(
            r["case"],
            r["group"],
            format_seconds(taken["seconds"]),
            ratio_text(raw["seconds"]),
            ratio_text(known["seconds"]),
            ratio_text(known["read_bytes"]),
            ratio_text(known["written_bytes"]),
            f"{ratio_text(raw['peak_bytes'])} of {format_bytes(taken['peak_bytes'])}",
            ", ".join(misses(r) + (["NOISY"] if r["load"]["noisy"] else [])),
        )
    return table


def summary_table(summary: Mapping[str, Record]) -> Table:
    """Lay out the medians and the worst ratios."""
    table = Table(title="median (worst)", box=box.SIMPLE_HEAD, title_style="bold")
    for heading in ("", "cases", "seconds", "at its iterations", "read", "written", "peak memory"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, figures in summary.items():
        cells = [
            f"{ratio_text(f['median'])} ({ratio_text(f['worst'])})" if f else "–"
            for f in (
                figures[k] for k in ("seconds", "seconds_at_iterations", "read_bytes", "written_bytes", "peak_bytes")
            )
        ]
        table.add_row(name, str(figures["cases"]), *cells, end_section=name != "all" and _is_last(name, summary))
    return table


def _is_last(name: str, summary: Mapping[str, Record]) -> bool:
    return [n for n in summary if n != "all"][-1] == name


def goal_line(summary: Mapping[str, Record]) -> str:
    """Results of the grid against the goals, in a line."""
    if "all" not in summary:
        return "no case has figures"
    every = summary["all"]
    peak, seconds = every["peak_bytes"]["least"], every["seconds"]
    parts = [
        f"half of the plans within a factor of {seconds['off']:.2f} of the time (goal {MEDIAN_SECONDS})",
        f"{seconds['within']:.0%} of them within {MEDIAN_SECONDS} (goal {WITHIN_MEDIAN:.0%})",
        f"the worst {seconds['worst_off']:.2f} (goal {WORST_SECONDS:g})",
        f"smallest projected / measured peak {peak:.2f} (goal {MIN_PEAK_RATIO:g})",
    ]
    for name in ("read_bytes", "written_bytes"):
        if every[name]:
            parts.append(
                f"{name.removesuffix('_bytes')} off by at most {every[name]['worst_off']:.3g} (goal {WORST_BYTES})"
            )
    return "; ".join(parts)


def read_records(path: Path, benchmark: str) -> list[Record]:
    """Lines of one benchmark in a file, the last one of each case; also from a file of `python -m benchmarks`."""
    latest: dict[str, Record] = {}
    for line in path.read_text().splitlines():
        for record in (envelope := json.loads(line)).get("records", [envelope]):
            if record.get("benchmark") == benchmark and "case" in record:
                latest[record["case"]] = record
    return list(latest.values())


def draw(records: Sequence[Record], path: Path) -> None:
    """Scatter of predicted over measured seconds, with the goals as bands.

    Parameters
    ----------
    records : sequence of dict
        Of the grid; those without figures are left out.
    path : Path
        PNG to write; its folder is created if missing.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    points = [r for r in records if "ratios" in r]
    figure = Figure(figsize=(9.5, 6), dpi=150, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    times = [r[source]["seconds"] for r in points for source in ("measured", "predicted")]
    low, high = min(times, default=1.0) / 1.5, max(times, default=1.0) * 1.5
    for (name, factor), grey in zip(BANDS.items(), (0.84, 0.93), strict=True):
        edges = ([low / factor, high / factor], [low * factor, high * factor])
        axes.fill_between([low, high], *edges, color=str(grey), label=name, lw=0, zorder=-factor)
    axes.plot([low, high], [low, high], color="#8a94a0", lw=1)
    for k, group in enumerate(sorted({r["group"] for r in points})):
        mine = [r for r in points if r["group"] == group]
        x, y = ([r[source]["seconds"] for r in mine] for source in ("measured", "predicted"))
        axes.scatter(x, y, s=42, color=COLOURS[k % len(COLOURS)], label=group, edgecolor="white", marker="osD"[k // 10])
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
    axes.set(xlabel="measured, seconds", ylabel="predicted, seconds", aspect="equal")
    axes.set_title(f"{len(points)} plans", loc="left", fontsize=12, fontweight="bold")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.02, 1.0), fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


@click.group()
def main() -> None:
    """Compare plans with what happens."""


_size = click.option("--size", type=click.Choice(SIZES), default="small", show_default=True)
only_option = click.option(
    "--only", default="*", show_default=True, help="Cases whose name matches this pattern or has it."
)
json_option = click.option(
    "--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Append lines here."
)
retries_option = click.option(
    "--retries", type=click.IntRange(min=0), default=0, show_default=True, help="After a noisy run."
)
_timeout = click.option(
    "--timeout", type=click.FloatRange(min=1), default=300.0, show_default=True, help="Seconds a fit."
)


def wanted(cases: Sequence[Case], only: str) -> list[Case]:
    """Cases that `--only` names."""
    chosen = [c for c in cases if fnmatch.fnmatch(c.name, only) or only in c.name]
    if not chosen:
        raise click.BadParameter(f"no case matches {only!r}: {', '.join(c.name for c in cases)}", param_hint="--only")
    return chosen


@main.command("grid")
@_size
@only_option
@json_option
@retries_option
@_timeout
@click.option("--repeat", type=click.IntRange(min=1), default=1, show_default=True, help="Runs of each case.")
@click.option("--workers", type=click.IntRange(min=1), help="Worker processes of the cases that have two.")
def run_grid(
    size: Size, only: str, json_path: Path | None, retries: int, timeout: float, repeat: int, workers: int | None
) -> None:
    """Seconds, bytes and peak memory: predicted / measured."""
    console, records = wide_console(), list[Record]()
    for repetition in range(repeat):
        for case in wanted(grid(size), only):
            mine = replace(case, workers=workers) if workers and case.workers == 2 else case
            record: Record = {"benchmark": "plans grid", "size": size, "repetition": repetition}
            record |= run_case("cases", mine, timeout, size, retries)
            record["misses"] = misses(record)
            write_line(record, json_path)
            records.append(record)
    summary = summarise(records)
    worst = max((r["load"]["noisy"] for r in records if "load" in r), default=False)
    line = {
        "benchmark": "plans grid",
        "size": size,
        "summary": summary,
        "n_failed": sum("ratios" not in r for r in records),
    }
    write_line(line | {"load": {"noisy": worst}, "machine": describe_machine()}, json_path)
    for table in (grid_table(records), summary_table(summary)):
        console.print(table)
    console.print(goal_line(summary))


@main.command("draw")
@click.option("--json", "json_path", type=click.Path(exists=True, dir_okay=False, path_type=Path), required=True)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), required=True, help="PNG.")
def run_draw(json_path: Path, out: Path) -> None:
    """Predicted over measured seconds, from the lines of a grid."""
    records = read_records(json_path, "plans grid")
    if not any("ratios" in r for r in records):
        raise click.ClickException(f"{json_path} has no lines of a grid with figures")
    draw(records, out)


if __name__ == "__main__":
    main()
