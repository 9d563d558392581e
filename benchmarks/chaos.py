"""Kill fits, damage stores and give wrong inputs, at random, and tabulate what happens.

::

    python -m benchmarks.chaos damage [--target models|runs] [--trials 1000] [--seed S] [--json FILE] [--minutes M]
    python -m benchmarks.chaos kills [--trials 1000] ...
    python -m benchmarks.chaos inputs [--trials N] ...
    python -m benchmarks.chaos page FILE... --keep docs/measured/chaos.jsonl --write docs/chaos.md

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
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
import psutil

from benchmarks.chaos_child import ROOT, Children
from benchmarks.chaos_kills import TARGETS, episodes
from benchmarks.chaos_trials import GOOD, Observation, Outcome
from tests.tools.pages import replaced

SECONDS_PER_TRIAL = {"models": 30.0, "runs": 120.0}
SECONDS_PER_INPUT = 60.0
EPISODE_SECONDS = 1800.0
"""Limits for the process of a trial; fits and calls have their own."""
FUNCTIONS = {"models": "benchmarks.chaos_models:trial", "runs": "benchmarks.chaos_runs:trial"}
BEGIN, END = "<!-- tables of chaos: begin -->", "<!-- tables of chaos: end -->"
SHOWN = ("part", "row", "group", "outcome", "seed")
"""What the tables show of an observation."""
TITLES = {
    "kills": ("Kills", "place: process, signal"),
    "runs": ("Damage to runs, between a kill and the next call", "damage"),
    "models": ("Damage to models, before they are loaded", "damage"),
    "inputs": ("Wrong inputs", "argument of"),
}


class Campaign:
    """One call of the command: it numbers trials, shows and records their outcomes.

    Parameters
    ----------
    part : str
    seed : int
    file : Path or None
        File of JSON lines that observations are appended to.
    """

    def __init__(self, part: str, seed: int, file: Path | None) -> None:
        self.part, self.seed, self._file = part, seed, file
        self.observations: list[Observation] = []
        self._started, self._start = datetime.now(UTC), time.monotonic()

    def note(self, number: int, answer: dict[str, Any]) -> None:
        """Record the answer of a trial."""
        found: dict[str, Any] = {"row": "?", "seed": self.seed} | answer
        self.add(Observation(part=self.part, number=number, **found))

    def add(self, one: Observation) -> None:
        """Record an observation."""
        self.observations.append(one)
        if self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("a") as out:
                out.write(json.dumps(asdict(one)) + "\n")
        if one.is_failure:
            click.echo(f"--number {one.number} --seed {one.seed}: {one.outcome.upper()}: {one.what}", err=True)
            click.echo(one.detail, err=True)
        total = sum(o.count for o in self.observations)
        if total // 50 > (total - one.count) // 50:
            counts = Counter(str(o.outcome) for o in self.observations)
            seconds = time.monotonic() - self._start
            click.echo(f"{total} in {seconds:.0f} s: {dict(counts)}", err=True)

    def end(self) -> bool:
        """Record when and where it ran, print the table, and return whether a trial failed."""
        about = {
            "campaign": self.part,
            "seed": self.seed,
            "started": self._started.isoformat(timespec="seconds"),
            "seconds": round(time.monotonic() - self._start),
            "commit": _commit(),
            "versions": {"python": platform.python_version()}
            | {name: version(name) for name in ("dkrr", "numpy", "zarr", "distributed")},
        }
        if self._file is not None:
            with self._file.open("a") as out:
                out.write(json.dumps(about) + "\n")
        lines = [asdict(o) for o in self.observations]
        click.echo(table(self.part, lines))
        if self.part == "kills":
            click.echo(f"\n{by_group(lines)}")
        return any(one.is_failure for one in self.observations)


def _commit() -> str:
    command = ["git", "describe", "--always", "--abbrev=12", "--dirty"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


def table(part: str, lines: Sequence[dict[str, Any]]) -> str:
    """Return the table of a part in Markdown: rows of what was done, columns of outcomes."""
    lines = [line for line in lines if line["count"]]
    used = [o for o in Outcome if o in GOOD or any(line["outcome"] == o for line in lines)]
    if part == "kills":
        used = [o for o in used if o != Outcome.DETECTED or any(line["outcome"] == o for line in lines)]
    lines = [line | {"row": _shown(line["row"])} for line in lines]
    rows = list(dict.fromkeys(line["row"] for line in lines))
    text = [f"| {TITLES[part][1]} | trials | {' | '.join(used)} |", "|---" * (len(used) + 2) + "|"]
    for row in [*sorted(rows), "all"]:
        counts: Counter[str] = Counter()
        for line in lines:
            if row in (line["row"], "all"):
                counts[line["outcome"]] += line["count"]
        text.append(f"| {row} | {counts.total()} | {' | '.join(str(counts[o]) for o in used)} |")
    return "\n".join(text)


def _shown(row: str) -> str:
    """Row of the table for what was tried: options of a command together, and methods of a class."""
    words = row.split()
    if words[:1] == ["dkrr"]:
        return " ".join(words[:2])
    return row if row.startswith("dkrr.") else row.partition(".")[0]


def by_group(lines: Sequence[dict[str, Any]]) -> str:
    """Return the table of kills by way to solve and place."""
    counts: Counter[tuple[str, str]] = Counter()
    for line in lines:
        counts[line["group"], line["row"].split(":")[0]] += line["count"]
    places = [place for place in TARGETS if any(found == place for _, found in counts)]
    text = [f"| kills | {' | '.join(places)} | all |", "|---" * (len(places) + 2) + "|"]
    for group in dict.fromkeys(group for group, _ in sorted(counts)):
        row = [counts[group, place] for place in places]
        text.append(f"| {group} | {' | '.join(map(str, row))} | {sum(row)} |")
    return "\n".join(text)


def tallied(lines: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Observations that differ in nothing that the tables show as one; failures one by one; campaigns as they are."""
    counts: Counter[tuple[str, ...]] = Counter()
    others = []
    for line in lines:
        if "campaign" in line:
            others.append(line)
        elif line["outcome"] not in GOOD:
            # Tracebacks and folders are of the machine.
            what = "; ".join(part for part in line["what"].split("; ") if not part.startswith("/"))
            others.append({**line, "what": what, "detail": ""})
        else:
            line = {**line, "row": _shown(line["row"])}
            counts[tuple(str(line[name]) for name in SHOWN)] += line["count"]
    return [
        *(dict(zip(SHOWN, key, strict=True)) | {"count": n} for key, n in sorted(counts.items()) if n),
        *others,
    ]


def page(lines: Sequence[dict[str, Any]]) -> str:
    """Return the tables of all parts in Markdown."""
    text = []
    for part, (title, _) in TITLES.items():
        found = [line for line in lines if line.get("part") == part]
        campaigns = [line for line in lines if line.get("campaign") == part]
        if not found:
            continue
        text += [f"## {title}", "", table(part, found), ""]
        text += [by_group(found), ""] if part == "kills" else []
        for one in campaigns:
            versions = ", ".join(f"{name} {number}" for name, number in one["versions"].items())
            text += [
                f"Seed {one['seed']}, {one['started'][:10]}, {one['seconds'] / 60:.0f} min, commit {one['commit']}; "
                f"{versions}.",
                "",
            ]
    return "\n".join(text).strip()


def options(command: Callable[..., None]) -> Callable[..., None]:
    """Options that all parts have."""
    for option in (
        click.option("--trials", type=click.IntRange(min=1), help="Trials, or kills."),
        click.option("--seed", type=int, help="Default: drawn, and recorded."),
        click.option("--number", "numbers", type=int, multiple=True, help="Repeat this trial of a seed only."),
        click.option(
            "--json", "file", type=click.Path(dir_okay=False, path_type=Path), help="Observations, one a line."
        ),
        click.option("--minutes", type=click.FloatRange(min=0.01), default=60.0, show_default=True, help="Stop then."),
        click.option("--processes", type=click.IntRange(min=1), help="Trials at once; default: the cores."),
        click.option("--folder", type=click.Path(file_okay=False, path_type=Path), help="For temporary files."),
    ):
        command = option(command)
    return command


@click.group()
def main() -> None:
    """Kill fits, damage stores and give wrong inputs, at random, and tabulate what happens."""


@main.command()
@click.option("--target", type=click.Choice(["models", "runs"]), multiple=True, help="Default: both.")
@click.option("--only", multiple=True, help="Kind of model or fit; default: all.")
@click.option("--place", "places", multiple=True, type=click.Choice(["here", "cluster"]), help="Where runs resume.")
@options
def damage(target: tuple[str, ...], only: tuple[str, ...], places: tuple[str, ...], **given: Any) -> None:
    """Damage saved models, or runs between a kill and the next call; 1,000 times each."""
    chosen = (list(only), list(places or ("here", "cluster")))
    failures = [_damaged(part, chosen, **given) for part in target or ("models", "runs")]
    sys.exit(any(failures))


def _damaged(
    part: str, chosen: tuple[list[str], list[str]], trials: int | None, seed: int | None, numbers: tuple[int, ...],
    file: Path | None, minutes: float, processes: int | None, folder: Path | None,
) -> bool:  # fmt: skip
    campaign = Campaign(part, secrets.randbelow(2**31) if seed is None else seed, file)
    is_over = _timer(minutes)
    with (
        _folder(folder, campaign) as place,
        Children(place, processes or _cores(), SECONDS_PER_TRIAL[part]) as children,
    ):
        drawn = numbers or range(trials or 1000)
        calls = ((number, (FUNCTIONS[part], campaign.seed, number, *chosen)) for number in drawn)
        children.run(calls, campaign.note, is_over)
    return campaign.end()


@main.command()
@click.option("--place", "places", multiple=True, type=click.Choice(list(TARGETS)), help="Only there; default: all.")
@options
def kills(
    places: tuple[str, ...],
    trials: int | None,
    seed: int | None,
    numbers: tuple[int, ...],
    file: Path | None,
    minutes: float,
    processes: int | None,
    folder: Path | None,
) -> None:
    """Kill processes of fits; 1,000 times."""
    campaign = Campaign("kills", secrets.randbelow(2**31) if seed is None else seed, file)
    is_late, wanted = _timer(minutes), trials or 1000

    def is_over() -> bool:
        return is_late() or sum(one.count for one in campaign.observations) >= wanted

    def calls() -> Iterator[tuple[int, tuple[Any, ...]]]:
        for number, one in enumerate(episodes(campaign.seed)):
            if number > max(numbers, default=number):
                return
            if (not numbers or number in numbers) and (not places or one.place in places):
                what = (one.place, one.target, one.signal, one.name)
                yield number, ("benchmarks.chaos_kills:episode", *what, campaign.seed, number)

    with (
        _folder(folder, campaign) as place,
        Children(
            place, processes or _cores(), EPISODE_SECONDS, is_confined=False, finish="benchmarks.chaos_kills:finish"
        ) as children,
    ):
        children.run(calls(), campaign.note, is_over)
    sys.exit(campaign.end())


@main.command()
@options
def inputs(
    trials: int | None,
    seed: int | None,
    numbers: tuple[int, ...],
    file: Path | None,
    minutes: float,
    processes: int | None,
    folder: Path | None,
) -> None:
    """Give wrong values to every function, setting and option; all of `benchmarks.chaos_inputs` by default."""
    campaign = Campaign("inputs", seed or 0, file)
    is_over = _timer(minutes)
    with _folder(folder, campaign) as place, Children(place, processes or _cores(), SECONDS_PER_INPUT) as children:
        n = children.ask("benchmarks.chaos_input_trials:count")["count"]
        drawn = range(n) if trials is None else sorted(random.Random(campaign.seed).sample(range(n), min(n, trials)))
        calls = ((number, ("benchmarks.chaos_input_trials:trial", number)) for number in numbers or drawn)
        children.run(calls, campaign.note, is_over)
    sys.exit(campaign.end())


def _timer(minutes: float) -> Callable[[], bool]:
    deadline = time.monotonic() + 60 * minutes
    return lambda: time.monotonic() > deadline


@main.command(name="page")
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--keep", type=click.Path(dir_okay=False, path_type=Path), help="File for the counts.")
@click.option(
    "--write", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Page that takes the tables."
)
def render(files: tuple[Path, ...], keep: Path | None, write: Path | None) -> None:
    """Count recorded trials, and render the counts."""
    lines = tallied(json.loads(line) for file in files for line in file.read_text().splitlines())
    if keep is not None:
        keep.write_text("".join(json.dumps(line) + "\n" for line in lines))
    block = page(lines)
    click.echo(block)
    if write is not None:
        write.write_text(replaced(write.read_text(), block, BEGIN, END))


def _cores() -> int:
    return len(psutil.Process().cpu_affinity())


@contextmanager
def _folder(folder: Path | None, campaign: Campaign) -> Iterator[Path]:
    """Folder for temporary files, which stays after a failure."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    path = Path(tempfile.mkdtemp(prefix="chaos-", dir=folder))
    try:
        yield path
    finally:
        if any(one.is_failure for one in campaign.observations):
            click.echo(f"what the failures left is in {path}", err=True)
        else:
            shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    # As Ctrl-C does: the processes of trials are ended too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    main()
