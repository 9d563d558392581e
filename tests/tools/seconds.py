"""Seconds and cases of the tests by folder, from one idle run; pytest --durations names the slowest tests.

::

    python -m pytest --numprocesses 2 --dist worksteal --junitxml output/tests.xml
    python -m tests.tools.seconds output/tests.xml [--write tests/README.md]
"""

from collections import Counter, defaultdict
from pathlib import Path
from xml.etree import ElementTree

import click

from tests.tools.pages import replaced

BEGIN, END = "<!-- table of seconds: begin -->", "<!-- table of seconds: end -->"


def table(path: Path) -> str:
    """Rows of folder, cases and seconds of one process, dearest first."""
    seconds: defaultdict[str, float] = defaultdict(float)
    cases = Counter[str]()
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        _, folder, *_ = str(case.get("classname")).split(".")
        seconds[folder] += float(case.get("time", 0))
        cases[folder] += 1
    rows = [
        f"| `{folder}/` | {cases[folder]:,} | {seconds[folder]:.0f} |"
        for folder in sorted(seconds, key=lambda f: -seconds[f])
    ]
    total = f"| all | {cases.total():,} | {sum(seconds.values()):.0f} |"
    return "\n".join(["| folder | cases | seconds |", "|---|---:|---:|", *rows, total])


@click.command()
@click.argument("report", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--write", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Page to put the table into."
)
def main(report: Path, write: Path | None) -> None:
    """Tabulate a JUnit report of pytest."""
    click.echo(table(report))
    if write is not None:
        write.write_text(replaced(write.read_text(), table(report), BEGIN, END))


if __name__ == "__main__":
    main()
