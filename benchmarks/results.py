"""Recorded runs of the benchmarks: reading them, the one of each step that is shown, and values as text.

A file of results (``docs/measured/results.jsonl``) has one line for every run of a step: its name, size, command,
commit, time, how it ended, whether it was noisy, and the lines of JSON that it printed.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.grids import SIZES
from benchmarks.steps import STEPS, Step
from dkrr.text import format_bytes, format_seconds

Record = dict[str, Any]

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "measured" / "results.jsonl"
"""Runs that the documentation shows."""


def look(record: Any, path: str) -> Any:
    """Value at a path, None if the path does not exist; see `benchmarks.steps`."""
    for alternative in path.split(","):
        where, _, reduce = alternative.partition("|")
        value = record
        for name in where.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        if value is not None and reduce:
            value = _REDUCE[reduce](value)
        if value is not None and value != []:
            return value
    return None


def total_peak_bytes(fit: Mapping[str, Any]) -> int | None:
    """Peak memory of a fit, summed over its workers and the calling process.

    Parameters
    ----------
    fit : mapping
        Part of a line of `benchmarks.solve`: ``dkrr``, or one of its ``peers``.
    """
    memory = fit.get("memory", fit)
    if "peak_bytes_of_all_workers" in memory:
        return int(memory["peak_bytes_of_all_workers"] + memory["caller_peak_bytes"])
    if "peak_bytes_by_process" not in memory:
        peak = memory.get("peak_bytes")
        return None if peak is None else int(peak)
    workers, caller = sum(memory["peak_bytes_by_process"].values()), memory["caller_peak_bytes"]
    # Without workers the only process is the caller: its memory counts once.
    return int(workers + caller if fit["plan"]["execution"] == "dask" else max(workers, caller))


def _values(found: Mapping[str, Any] | Collection[Any]) -> list[Any]:
    return list(found.values()) if isinstance(found, Mapping) else list(found)


_REDUCE: dict[str, Any] = {
    "max": lambda found: max(_values(found), default=None),
    "min": lambda found: min(_values(found), default=None),
    "sum": lambda found: sum(_values(found)),
    "median": lambda found: median(_values(found)) if found else None,
    "peak": total_peak_bytes,
}


def quotient(record: Record, path: str, over: str) -> Any:
    """Value at a path, over that at another where one is given."""
    value = look(record, path)
    if not over:
        return value
    divisor = look(record, over)
    return value / divisor if value is not None and divisor else None


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


def best_runs(runs: Sequence[Record], size: str | None = None) -> dict[str, Record]:
    """The best run of each step, by its name."""
    return {step.name: run for step in STEPS if (run := best_run(runs, step, size)) is not None}


def prune(runs: Sequence[Record]) -> list[Record]:
    """The runs that the page shows, in their order: none of a removed step, superseded, or noisy."""
    kept = [id(run) for run in best_runs(runs).values() if not run["noisy"]]
    return [run for run in runs if id(run) in kept]


def lines_of(step: Step, run: Record) -> list[Record]:
    """Lines of a run; of repetitions of one measurement (`Step.same`) only that with the median time."""
    if not step.same:
        return list(run["records"])
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for record in run["records"]:
        groups.setdefault(tuple(look(record, path) for path in step.same), []).append(record)
    chosen = []
    for group in groups.values():
        timed = sorted((r for r in group if look(r, step.time) is not None), key=lambda r: float(look(r, step.time)))
        chosen += [timed[(len(timed) - 1) // 2]] if timed else group
    return chosen


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
        "thousandths": lambda v: f"{v:.3f}",
        "fine": lambda v: f"{v:.4f}",
        "percent": lambda v: f"{v:.0%}",
        "number": lambda v: f"{v:.1f}",
        "exponent": lambda v: f"{v:.1e}",
    }
    return str(styles[style](value))
