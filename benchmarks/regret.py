"""Cost of the planner's choice: its time over that of the best strategy, and how it changes with the rates.

::

    python -m benchmarks.regret run --size full --json output/before.jsonl
    python -m benchmarks.regret compare output/before.jsonl output/after.jsonl

Every fit runs in its own process. The problems are in `benchmarks.grids`: ridge and logistic regressions and
searches, 200 to 50,000 rows, random ones, molecules and flights, most within two memory limits; the smaller one does
not hold the matrix. What is tried of each is in `benchmarks.ways`: the chosen way, then up to four others in the order
of their plans. A way whose plan takes more than five times the best plan is left out (``skipped``). A way is ended
after 1.3 times the best time before it.

Entries of a line, which is one problem within one limit:

``given_up``, ``lost_seconds``
    Of a way that was run: whether its iterations were given up for a factorisation, and the time that they took.
``regret``
    Time of the chosen way over that of the best one that the planner takes unasked. ``regret_of_all``: with those that
    it does not take (conjugate gradient where its iterations cannot be known).
``runs``
    Ways that were run, the chosen one first; ``seconds`` without ``planning_seconds``. Fits of less than a second are
    repeated, and the median of all but the first counts.
``seconds_ratio``, ``peak_ratio``
    Predicted / measured.
``changes``
    Choices that change if one rate is twice or half as large, each with its ``cost``: its time over that of the choice
    by the true rates, ``measured``, ``at least``, or ``planned`` where it was not run.

Lines of the same dkrr and problem are not measured again without ``--again``. Times differ by a few per cent from run
to run: repeat before you believe in a regret below 1.1.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Literal

import click
from rich import box
from rich.table import Table

from benchmarks.candidates import is_same
from benchmarks.cases import Case, case_of
from benchmarks.grids import Size, problems
from benchmarks.machine import checksum, describe_machine
from benchmarks.plans import (
    Record,
    ending,
    json_option,
    off,
    only_option,
    ratio_text,
    read_records,
    retries_option,
    run_case,
    wanted,
    wide_console,
)
from benchmarks.solve import write_line
from dkrr.text import format_seconds

BENCHMARK = "regret"
MEDIAN_REGRET = 1.02
"""Time of the chosen way over that of the best one: half of the problems ..."""
WORST_REGRET = 1.25
"""... and every problem."""
NEAR_BEST = 1.3
"""Ways are ended when they have taken as many times the best one's time: how much longer does not change the regret."""
SOURCES = ("measured", "at least", "planned")
"""Where the time of a way that another rate leads to is from: it was run, it was ended, or its plan says how many times
as long as the chosen one it takes."""


def measure(case: Case, timeout: float, size: Size, retries: int) -> Record:
    """Run the chosen way, and every other one that may be as fast until it has taken too long."""
    found = run_case("ways", case, timeout, size, 0)
    if "ways" not in found:
        return found
    runs, besides = list[Record](), 0.0  # seconds that a process takes besides its fit
    for way in found["ways"]:
        fastest = min((r["seconds"] for r in runs if r["seconds"] is not None), default=None)
        most = timeout if fastest is None else min(timeout, 2 * besides + NEAR_BEST * fastest)
        start = perf_counter()
        record = run_case("cases", case_of(way["case"]), most, size, retries)
        entry = {k: way[k] for k in ("label", "kind", "is_chosen", "is_gamble")} | {"rank": way["case"]["rank"]}
        runs.append(entry | (figures(record) if "measured" in record else _ended(record, fastest)))
        if "measured" in record:
            passed = (perf_counter() - start) / (1 + record["attempt"])
            besides = max(besides, passed - record["measured"]["seconds"])
    return found | {
        "runs": runs,
        "ways": len(runs),
        **regret_of(runs),
        "changes": [change | cost_of(change, runs) for change in found["changes"]],
        "n_changed": len(found["changes"]),
        "load": {"noisy": any(r["noisy"] for r in runs)},
        "machine": describe_machine(),
    }


def figures(record: Record) -> Record:
    """Figures of a way that was run to its end, without the time for its plan, which is another's in a forced one."""
    measured, predicted = record["measured"], record["predicted"]
    seconds, peak = measured["seconds"] - measured["planning_seconds"], measured["peak_bytes"]
    return {
        "kind": record["kind"],
        "seconds": seconds,
        "planning_seconds": measured["planning_seconds"],
        "predicted_seconds": predicted["seconds"],
        "peak_bytes": peak,
        "predicted_peak_bytes": predicted["peak_bytes"],
        "seconds_ratio": predicted["seconds"] / seconds,
        "peak_ratio": None if peak is None else predicted["peak_bytes"] / peak,
        "status": record["status"],
        "given_up": record.get("given_up", False),
        "lost_seconds": record.get("lost_seconds", 0.0),
        "residual": record.get("residual"),
        "noisy": record["load"]["noisy"],
    }


def _ended(record: Record, fastest: float | None) -> Record:
    """A way that has no figures: it took too long, or failed."""
    is_slow = "timed_out" in record and fastest is not None
    return {
        "seconds": None,
        "at_least": NEAR_BEST * fastest if is_slow and fastest else None,
        "ended": f"not in {record['timed_out']:.0f} s" if "timed_out" in record else ending(record),
        "noisy": False,
    }


def regret_of(runs: Sequence[Record]) -> Record:
    """Regret from the runs of one problem: of the ways that the planner chooses, and of all."""
    done = [r for r in runs if r["seconds"] is not None]
    chosen = next((r["seconds"] for r in done if r["is_chosen"]), None)
    if chosen is None:
        return {"regret": None, "regret_of_all": None, "best": None, "best_of_all": None}
    free = min((r for r in done if not r["is_gamble"]), key=lambda r: r["seconds"])
    best = min(done, key=lambda r: r["seconds"])
    return {
        "regret": chosen / free["seconds"],
        "regret_of_all": chosen / best["seconds"],
        "best": free["label"],
        "best_of_all": best["label"],
    }


def chosen_of(record: Record) -> Record | None:
    """The run of the chosen way; None if it has no figures."""
    return next((r for r in record.get("runs", []) if r["is_chosen"] and r["seconds"] is not None), None)


def cost_of(change: Record, runs: Sequence[Record]) -> Record:
    """Time of the way that another rate leads to over that of the chosen one, and where it is from (see SOURCES)."""
    chosen = chosen_of({"runs": runs})
    if chosen is None:
        return {"cost": None, "source": None}
    one = next((r for r in runs if r["rank"] is None and is_same(r["kind"], change["kind"])), {})
    for source, name in zip(SOURCES, ("seconds", "at_least"), strict=False):
        if one.get(name) is not None:
            return {"cost": one[name] / chosen["seconds"], "source": source}
    if change["predicted_seconds"] is None:
        return {"cost": None, "source": None}
    return {"cost": change["predicted_seconds"] / chosen["predicted_seconds"], "source": "planned"}


def summarise(records: Iterable[Record]) -> Record:
    """Medians and extremes of all problems: regret, plans over measurements, and changes by other rates."""
    done = [r for r in records if chosen_of(r) is not None]
    chosen: list[Any] = [chosen_of(r) for r in done]
    ran = [run for r in done for run in r["runs"] if run["seconds"] is not None]
    ratios = {
        f"{name}{what}": _spread([r[name] for r in runs if r[name] is not None])
        for name in ("seconds_ratio", "peak_ratio")
        for what, runs in (("", chosen), ("_of_all_ways", ran))
    }
    return {
        "problems": len(done),
        "noisy": sum(r["load"]["noisy"] for r in done),
        **{name: _spread([r[name] for r in done]) for name in ("regret", "regret_of_all")},
        "seconds": sum(r["seconds"] for r in chosen),
        "given_up": sum(r.get("given_up", False) for r in chosen),
        "lost_seconds": sum(r.get("lost_seconds", 0.0) for r in chosen),
        "planning_fraction": _spread([r["planning_seconds"] / (r["planning_seconds"] + r["seconds"]) for r in chosen]),
        **ratios,
        "rates": summarise_changes(done),
    }


def _spread(values: Sequence[float]) -> Record | None:
    """Median, extremes, and the one that is off most; None without values."""
    if not values:
        return None
    return {"median": median(values), "least": min(values), "largest": max(values), "worst": max(values, key=off)}


def summarise_changes(records: Sequence[Record]) -> Record:
    """By rate, and of all: how often another value changed the choice, and what the other choice costs."""
    found, tried = dict[str, list[Record]](), sum(r["n_rates"] for r in records)
    for change in (c for r in records for c in r["changes"]):
        for name in (change["rate"], "all"):
            found.setdefault(name, []).append(change)
    return {
        "tried": tried,
        "by_rate": {
            name: {
                "changed": len(changes),
                "problems": sum(any(c in changes for c in r["changes"]) for r in records),
                "cost": _spread([c["cost"] for c in changes if c["cost"] is not None]),
                **{source: sum(c["source"] == source for c in changes) for source in SOURCES},
            }
            for name, changes in sorted(found.items(), key=lambda pair: (pair[0] != "all", -len(pair[1])))
        },
    }


def regret_table(records: Sequence[Record]) -> Table:
    """Lay out the ways of every problem."""
    numbers = ("predicted", "measured", "over the best", "memory", "lost")
    table = _table("time over the best one's", ("problem", "way"), numbers)
    for record in records:
        if "runs" not in record:
            table.add_row(record["case"], ending(record))
            continue
        best = min((r["seconds"] for r in record["runs"] if r["seconds"] is not None), default=None)
        for k, r in enumerate(record["runs"]):
            name = f"{record['case']}: {ratio_text(record['regret'])} ({ratio_text(record['regret_of_all'])} of all)"
            given_up = r.get("given_up", False)
            remarks = {
                "chosen": r["is_chosen"],
                "iterations given up": given_up,
                "not taken unasked": r["is_gamble"],
                "NOISY": r["noisy"],
            }
            cells = ["–"] * 5
            if r["seconds"] is not None:
                cells = [format_seconds(r["predicted_seconds"]), format_seconds(r["seconds"])]
                cells += [f"{r['seconds'] / best:.2f}", ratio_text(r["peak_ratio"])]
                cells += [format_seconds(r["lost_seconds"]) if given_up else ""]
            remark = ", ".join(
                [name for name, holds in remarks.items() if holds] + [r[k] for k in ("ended",) if k in r]
            )
            table.add_row("" if k else name, r["label"], *cells, remark)
        if record["skipped"]:
            table.add_row("", f"{len(record['skipped'])} others skipped")
        table.add_section()
    return table


def _table(title: str, texts: Sequence[str], numbers: Sequence[str]) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD, title_style="bold")
    for heading in texts:
        table.add_column(heading)
    for heading in numbers:
        table.add_column(heading, justify="right")
    table.add_column("")
    return table


FIGURES: Mapping[str, Callable[[Record], str]] = {
    "problems (noisy)": lambda s: f"{s['problems']} ({s['noisy']})",
    "regret, median (worst)": lambda s: _median(s["regret"], "worst"),
    "with what is not taken unasked": lambda s: _median(s["regret_of_all"], "worst"),
    "time of all chosen ways": lambda s: format_seconds(s["seconds"]),
    "iterations given up (their time)": lambda s: f"{s['given_up']} ({format_seconds(s['lost_seconds'])})",
    "fraction of it for plans": lambda s: _median(s["planning_fraction"], "largest"),
    "projected / measured seconds, median (worst)": lambda s: _median(s["seconds_ratio"], "worst"),
    "of all ways that were run": lambda s: _median(s["seconds_ratio_of_all_ways"], "worst"),
    "projected / measured memory, least to largest": lambda s: _range(s["peak_ratio"]),
    "of all ways that were run ": lambda s: _range(s["peak_ratio_of_all_ways"]),
    "a rate twice or half as large changes the choice": lambda s: _changes(s["rates"]),
    "time of the other choice over the chosen one's": lambda s: _cost(s["rates"]),
}
"""Lines of the table of a summary."""


def _median(spread: Record | None, extreme: Literal["worst", "largest"]) -> str:
    return "–" if spread is None else f"{ratio_text(spread['median'])} ({ratio_text(spread[extreme])})"


def _range(spread: Record | None) -> str:
    return "–" if spread is None else f"{ratio_text(spread['least'])} to {ratio_text(spread['largest'])}"


def _changes(rates: Record) -> str:
    changed = rates["by_rate"].get("all", {"changed": 0, "problems": 0})
    return f"{changed['changed']} of {rates['tried']}, in {changed['problems']} problems"


def _cost(rates: Record) -> str:
    every = rates["by_rate"].get("all", {"cost": None})
    sources = ", ".join(f"{every[source]} {source}" for source in SOURCES if every.get(source))
    return _median(every["cost"], "largest") + (f": {sources}" if sources else "")


def summary_table(summaries: Mapping[str, Record]) -> Table:
    """Lay summaries side by side."""
    table = _table("all problems", ("",), list(summaries))
    for name, text in FIGURES.items():
        table.add_row(name, *map(text, summaries.values()))
    return table


def rates_table(rates: Record) -> Table:
    """Lay out what other rates change."""
    headings = ("changed", "problems", "cost: median", "largest", *SOURCES)
    table = _table(f"choices that change with a rate twice or half as large, of {rates['tried']}", ("rate",), headings)
    for name, r in rates["by_rate"].items():
        cost = r["cost"] or {"median": None, "largest": None}
        cells = [ratio_text(cost[k]) for k in ("median", "largest")]
        table.add_row(name, str(r["changed"]), str(r["problems"]), *cells, *(str(r[source]) for source in SOURCES))
    return table


def regret_beside(record: Record, other: Record) -> float | None:
    """Regret over all ways, those included that only the other planner has."""
    chosen = chosen_of(record)
    if chosen is None:
        return None
    mine = record["runs"]
    more = [r for r in other.get("runs", []) if not any(is_same(r["kind"], m["kind"]) for m in mine)]
    return float(chosen["seconds"] / min(r["seconds"] for r in [*mine, *more] if r["seconds"] is not None))


def comparison_table(pairs: Sequence[tuple[Record, Record]]) -> Table:
    """Lay out two planners' choices of every problem."""
    headings = ("time", "after / before", "regret", "seconds, projected / measured", "memory, projected / measured")
    table = _table("before → after", ("problem", "way"), headings)
    for one, other in pairs:
        runs = [chosen_of(r) or {} for r in (one, other)]
        labels = [run.get("label", ending(r)) for r, run in zip((one, other), runs, strict=True)]
        times = [run.get("seconds") for run in runs]
        over = times[1] / times[0] if times[0] and times[1] else None
        regrets = [regret_beside(a, b) for a, b in ((one, other), (other, one))]
        ratios = [[run.get(name) for run in runs] for name in ("seconds_ratio", "peak_ratio")]
        cells = [_arrow(["–" if t is None else format_seconds(t) for t in times]), ratio_text(over)]
        cells += [_arrow(list(map(ratio_text, values))) for values in (regrets, *ratios)]
        noisy = "NOISY" if any(r.get("load", {}).get("noisy") for r in (one, other)) else ""
        table.add_row(one["case"], _arrow(labels, "\n"), *cells, noisy)
    return table


def _arrow(texts: Sequence[str], between: str = " ") -> str:
    return texts[0] if texts[0] == texts[1] else f"{texts[0]}{between}→ {texts[1]}"


@click.group()
def main() -> None:
    """Measure what the planner's choice costs."""


@main.command("run")
@click.option("--size", type=click.Choice(["smoke", "full"]), default="full", show_default=True)
@only_option
@json_option
@retries_option
@click.option(
    "--timeout", type=click.FloatRange(min=1), default=100.0, show_default=True, help="Seconds of each process."
)
@click.option("--again", is_flag=True, help="Also what the file has already, of the same dkrr.")
def run(size: Size, only: str, json_path: Path | None, retries: int, timeout: float, again: bool) -> None:
    """Time of the chosen way over that of the best of the others."""
    console, records, code = wide_console(), list[Record](), checksum()
    is_old = json_path is not None and json_path.exists() and not again
    known = {r["case"]: r for r in read_records(json_path, BENCHMARK)} if is_old and json_path else {}
    for case in wanted(problems(size), only):
        record = known.get(case.name, {})
        if "runs" not in record or record["code"] != code or case_of(record["settings"]) != case:
            record = {"benchmark": BENCHMARK, "size": size, "code": code} | measure(case, timeout, size, retries)
            write_line(record, json_path)
        records.append(record)
    summary = summarise(records)
    line = {"benchmark": BENCHMARK, "size": size, "code": code, "summary": summary}
    line |= {"n_failed": len(records) - summary["problems"], "load": {"noisy": summary["noisy"] > 0}}
    write_line(line | {"machine": describe_machine()}, json_path)
    for table in (regret_table(records), summary_table({"": summary}), rates_table(summary["rates"])):
        console.print(table)
    console.print(f"goals: median regret {MEDIAN_REGRET:g}, worst {WORST_REGRET:g}")


@main.command("compare")
@click.argument("before", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("after", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def compare(before: Path, after: Path) -> None:
    """Two planners side by side, from the lines of `run`: the problems that both files have."""
    found = {r["case"]: r for r in read_records(after, BENCHMARK)}
    pairs = [(r, found[r["case"]]) for r in read_records(before, BENCHMARK) if r["case"] in found]
    if not pairs:
        raise click.ClickException(f"{before} and {after} have no problem in common")
    summaries = {"before": summarise(r for r, _ in pairs), "after": summarise(r for _, r in pairs)}
    write_line({"benchmark": "regret compare", **summaries}, None)
    console = wide_console()
    console.print(comparison_table(pairs))
    console.print(summary_table(summaries))


if __name__ == "__main__":
    main()
