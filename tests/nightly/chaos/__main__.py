"""Kill fits, damage stores, give wrong inputs and hostile files, at random, and tabulate what happens.

::

    python -m tests.nightly.chaos damage [--target models|runs] [--trials 1000] [--seed S] [--json FILE] [--minutes M]
    python -m tests.nightly.chaos kills [--trials 1000] ...
    python -m tests.nightly.chaos growths [--place disk|bucket|workers|memory] [--trials 1000] ...
    python -m tests.nightly.chaos inputs [--trials N] ...
    python -m tests.nightly.chaos hostile [--only table|model|configuration|lock] [--trials 1000] ...
    python -m tests.nightly.chaos page FILE... --keep docs/measured/chaos.jsonl --write docs/results/chaos.md

A trial is determined by the seed and its number, which are recorded; ``--number N`` repeats one. Trials run in
processes that are kept warm and are started again if they die. The exit status is 1 if a promise was broken.

``--json`` appends a line for each trial. ``page`` counts these lines, keeps the counts, and renders them.
"""

import json
import platform
import random
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
import pandas as pd
import psutil

from tests.nightly.chaos import growths
from tests.nightly.chaos.kills import TARGETS, episodes
from tests.nightly.chaos.outcomes import GOOD, Observation, Outcome
from tests.nightly.chaos.processes import ROOT, Child, share_out
from tests.tools.pages import replaced

SECONDS = {"kills": 1800.0, "models": 30.0, "runs": 120.0, "inputs": 60.0, "hostile": 60.0, "growths": 600.0}
"""Limits for a trial of each part; fits and calls have their own."""
BEGIN, END = "<!-- tables of chaos: begin -->", "<!-- tables of chaos: end -->"
SHOWN = ("part", "row", "group", "outcome", "seed")
"""What the tables show of an observation."""
TITLES = {
    "kills": ("Kills", "place: process, signal"),
    "runs": ("Damage to runs, between a kill and the next call", "damage"),
    "models": ("Damage to models, before they are loaded", "damage"),
    "inputs": ("Wrong inputs", "argument of"),
    "growths": ("Sequences of growths with kills", "place: precision"),
    "hostile": ("Hostile tables, models, configurations and locks", "what was changed"),
}
Line = dict[str, Any]
Call = tuple[int, tuple[Any, ...]]
"""Number of a trial, and arguments of `Child.ask`."""


# Campaigns ----------------------------------------------------------------------------------------------------------


@dataclass
class Campaign:
    """One call of the command, with its options: it shows and records the outcomes of trials."""

    part: str
    trials: int | None
    seed: int
    numbers: tuple[int, ...]
    file: Path | None
    minutes: float
    processes: int
    folder: Path | None
    lines: list[Line] = field(default_factory=list)
    start: float = field(default_factory=time.monotonic)

    @property
    def total(self) -> int:
        """Trials, or kills, until now."""
        return sum(line["count"] for line in self.lines)

    @property
    def has_failed(self) -> bool:
        """Whether a promise was broken."""
        return any(line["outcome"] not in GOOD for line in self.lines)

    def run(self, calls: Iterable[Call], *, is_confined: bool = True) -> bool:
        """Carry out trials until none is left or the time is over, print the table, and return whether one failed."""
        for place in filter(None, (self.folder, self.file and self.file.parent)):
            place.mkdir(parents=True, exist_ok=True)
        folder, seconds = Path(tempfile.mkdtemp(prefix="chaos-", dir=self.folder)), SECONDS[self.part]
        children = [Child(folder / f"child-{k}", seconds, is_confined=is_confined) for k in range(self.processes)]
        try:
            share_out(calls, children, self._note, self._is_over)
        finally:
            if self.has_failed:
                click.echo(f"what the failures left is in {folder}", err=True)
            else:
                shutil.rmtree(folder, ignore_errors=True)
        self._append(self._about())
        click.echo(table(self.part, self.lines))
        if self.part == "kills":
            click.echo(f"\n{by_group(self.lines)}")
        return self.has_failed

    def _is_over(self) -> bool:
        is_enough = self.part == "kills" and self.total >= (self.trials or 1000)
        return is_enough or time.monotonic() > self.start + 60 * self.minutes

    def _note(self, number: int, answer: Line) -> None:
        """Show and record the answer of a trial."""
        before, found = self.total, dict[str, Any](part=self.part, seed=self.seed, number=number)
        one = Observation(**{"row": "?"} | answer | found)
        self.lines.append(asdict(one))
        self._append(asdict(one))
        if one.is_failure:
            click.echo(f"--number {number} --seed {self.seed}: {one.outcome.upper()}: {one.what}", err=True)
            click.echo(one.detail, err=True)
        if self.total // 50 > before // 50:
            counts = Counter(str(line["outcome"]) for line in self.lines)
            click.echo(f"{self.total} in {time.monotonic() - self.start:.0f} s: {dict(counts)}", err=True)

    def _append(self, line: Line) -> None:
        if self.file is not None:
            with self.file.open("a") as out:
                out.write(json.dumps(line) + "\n")

    def _about(self) -> Line:
        """When and where it ran."""
        command = ["git", "describe", "--always", "--abbrev=12", "--dirty"]
        described = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        seconds = round(time.monotonic() - self.start)
        began = (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat(timespec="seconds")
        versions = {"python": platform.python_version()}
        versions |= {name: version(name) for name in ("dkrr", "numpy", "zarr", "distributed")}
        about = {"campaign": self.part, "seed": self.seed, "started": began, "seconds": seconds}
        return {**about, "commit": described.stdout.strip(), "versions": versions}


FILE = click.Path(dir_okay=False, path_type=Path)
EXISTING = click.Path(exists=True, dir_okay=False, path_type=Path)
POSITIVE = click.IntRange(min=1)


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that all parts have."""
    n_cores, drawn = len(psutil.Process().cpu_affinity()), partial(secrets.randbelow, 2**31)
    for option in (
        click.option("--trials", type=POSITIVE, help="Trials, or kills."),
        click.option("--seed", type=int, default=drawn, help="Default: drawn, and recorded."),
        click.option("--number", "numbers", type=int, multiple=True, help="Repeat this trial of a seed only."),
        click.option("--json", "file", type=FILE, help="Observations, one a line."),
        click.option("--minutes", type=click.FloatRange(min=0.01), default=60.0, show_default=True, help="Stop then."),
        click.option("--processes", type=POSITIVE, default=n_cores, help="Trials at once."),
        click.option("--folder", type=click.Path(file_okay=False, path_type=Path), help="For temporary files."),
    ):
        command = option(command)
    return command


@click.group()
def main() -> None:
    """Kill fits, damage stores, give wrong inputs and hostile files, at random, and tabulate what happens."""


@main.command()
@click.option("--target", type=click.Choice(["models", "runs"]), multiple=True, help="Default: both.")
@click.option("--only", multiple=True, help="Kind of model or fit; default: all.")
@click.option("--place", "places", multiple=True, type=click.Choice(["here", "cluster"]), help="Where runs resume.")
@with_options
def damage(target: tuple[str, ...], only: tuple[str, ...], places: tuple[str, ...], **given: Any) -> None:
    """Damage saved models, or runs between a kill and the next call; 1,000 times each."""
    failures = []
    for part in target or ("models", "runs"):
        campaign = Campaign(part, **given)
        call = ("tests.nightly.chaos.damage:trial", part, campaign.seed)
        chosen = only, places or ("here", "cluster")
        drawn = campaign.numbers or range(campaign.trials or 1000)
        failures.append(campaign.run((number, (*call, number, *chosen)) for number in drawn))
    sys.exit(any(failures))


@main.command()
@click.option("--place", "places", multiple=True, type=click.Choice(list(TARGETS)), help="Only there; default: all.")
@with_options
def kills(places: tuple[str, ...], **given: Any) -> None:
    """Kill processes of fits; 1,000 times."""
    campaign = Campaign("kills", **given)

    def calls() -> Iterator[Call]:
        numbers = campaign.numbers
        for number, one in enumerate(episodes(campaign.seed)):
            if number > max(numbers, default=number):
                return
            if (not numbers or number in numbers) and (not places or one.place in places):
                what = (one.place, one.target, one.signal, one.name)
                yield number, ("tests.nightly.chaos.kills:episode", *what, campaign.seed, number)

    sys.exit(campaign.run(calls(), is_confined=False))


@main.command("growths")
@click.option("--place", "places", multiple=True, type=click.Choice(growths.PLACES), help="Only there; default: all.")
@with_options
def grow(places: tuple[str, ...], **given: Any) -> None:
    """Let runs and models grow at random, with kills; 1,000 sequences."""
    campaign = Campaign("growths", **given)

    def calls() -> Iterator[Call]:
        left = campaign.trials or 1000
        for number, place in enumerate(growths.sequences(campaign.seed)):
            if left == 0 or number > max(campaign.numbers, default=number):
                return
            if (not campaign.numbers or number in campaign.numbers) and (not places or place in places):
                left -= 1
                yield number, ("tests.nightly.chaos.growths:trial", place, campaign.seed, number)

    sys.exit(campaign.run(calls(), is_confined=False))


@main.command()
@with_options
def inputs(**given: Any) -> None:
    """Give wrong values to every function, setting and option; all of `tests.contracts.arguments` by default."""
    from tests.contracts.arguments import cases

    campaign, n = Campaign("inputs", **given), len(list(cases()))
    drawn = sorted(random.Random(campaign.seed).sample(range(n), min(n, campaign.trials or n)))
    calls = ((number, ("tests.contracts.arguments:numbered_trial", number)) for number in campaign.numbers or drawn)
    sys.exit(campaign.run(calls))


@main.command()
@click.option("--only", multiple=True, type=click.Choice(["table", "model", "configuration", "lock"]))
@with_options
def hostile(only: tuple[str, ...], **given: Any) -> None:
    """Open, fit and predict with files of someone who knows their formats; 1,000 of them."""
    campaign = Campaign("hostile", **given)
    drawn = campaign.numbers or range(campaign.trials or 1000)
    call = ("tests.nightly.chaos.hostile:trial", campaign.seed)
    sys.exit(campaign.run((number, (*call, number, only)) for number in drawn))


@main.command()
@click.argument("files", nargs=-1, required=True, type=EXISTING)
@click.option("--keep", type=FILE, help="File for the counts.")
@click.option("--write", type=EXISTING, help="Page that takes the tables.")
def page(files: tuple[Path, ...], keep: Path | None, write: Path | None) -> None:
    """Count recorded trials, and render the counts."""
    lines = tallied(json.loads(line) for file in files for line in file.read_text().splitlines())
    if keep is not None:
        keep.write_text("".join(json.dumps(line) + "\n" for line in lines))
    block = rendered(lines)
    click.echo(block)
    if write is not None:
        write.write_text(replaced(write.read_text(), block, BEGIN, END))


# The page -----------------------------------------------------------------------------------------------------------


def table(part: str, lines: Sequence[Line]) -> str:
    """Return the table of a part in Markdown: rows of what was done, columns of outcomes."""
    always = [o for o in GOOD if part != "kills" or o != Outcome.DETECTED]
    found = _counted(lines, "row", "outcome")
    used = [str(o) for o in Outcome if o in always or found.get(str(o), pd.Series([0])).sum()]
    return _markdown(found.reindex(columns=["all", *used], fill_value=0), [TITLES[part][1], "trials", *used])


def by_group(lines: Sequence[Line]) -> str:
    """Return the table of kills by way to solve and place."""
    found = _counted([{**line, "place": line["row"].split(":")[0]} for line in lines], "group", "place").drop("all")
    places = [place for place in TARGETS if place in found]
    return _markdown(found[[*places, "all"]], ["kills", *places, "all"])


def _counted(lines: Sequence[Line], index: str, columns: str) -> Any:
    """Sums of counts, those of all rows and columns too, without rows of nothing."""
    frame = pd.DataFrame([{**line, "row": _shown(line["row"]), "outcome": str(line["outcome"])} for line in lines])
    found = frame.pivot_table("count", index, columns, "sum", fill_value=0, margins=True, margins_name="all")
    return found[found["all"] > 0]


def _markdown(found: Any, titles: Sequence[str]) -> str:
    lines = [f"| {' | '.join(map(str, cells))} |" for cells in (titles, *found.itertuples())]
    return "\n".join([lines[0], "|---" * len(titles) + "|", *lines[1:]])


def _shown(row: str) -> str:
    """Row of the table for what was tried: options of a command together, and methods of a class."""
    words = row.split()
    if words[:1] == ["dkrr"]:
        return " ".join(words[:2])
    return row if row.startswith("dkrr.") else row.partition(".")[0]


def tallied(lines: Iterable[Line]) -> list[Line]:
    """Observations that differ in nothing that the tables show as one; failures one by one; campaigns as they are."""
    counts: Counter[tuple[str, ...]] = Counter()
    others = []
    for line in lines:
        if "campaign" in line:
            others.append(line)
        elif line["outcome"] in GOOD:
            counts[tuple(str({**line, "row": _shown(line["row"])}[name]) for name in SHOWN)] += line["count"]
        else:  # tracebacks and folders are of the machine
            what = [part for part in line["what"].split("; ") if not part.startswith("/")]
            others.append({**line, "what": "; ".join(what), "detail": ""})
    return [*({**dict(zip(SHOWN, key, strict=True)), "count": n} for key, n in sorted(counts.items()) if n), *others]


def rendered(lines: Sequence[Line]) -> str:
    """Return the tables of all parts in Markdown."""
    blocks = []
    for part, (title, _) in TITLES.items():
        if found := [line for line in lines if line.get("part") == part]:
            blocks += [f"## {title}", table(part, found), *([by_group(found)] if part == "kills" else [])]
            for one in (line for line in lines if line.get("campaign") == part):
                versions = ", ".join(f"{name} {number}" for name, number in one["versions"].items())
                when = f"{one['started'][:10]}, {one['seconds'] / 60:.0f} min"
                blocks.append(f"Seed {one['seed']}, {when}, commit {one['commit']}; {versions}.")
    return "\n\n".join(blocks)


if __name__ == "__main__":
    # As Ctrl-C does: the processes of trials are ended too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    main()
