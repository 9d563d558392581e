"""Small fits at the edges of float64 against arithmetic of 180 digits: how wrong they are, and whether they say so.

::

    python -m tests.nightly.accuracy [--fits 60] [--searches 32] [--posteriors 16] [--only duplicates] [--write PAGE]
    python -m tests.nightly.accuracy --trial duplicates:17 --trial search-weights:3

Every class of `trials` is fitted `--fits` times, ridge and logistic, in either form, by Cholesky in memory and in tiles
and by conjugate gradient, and compared with `precise`. The table goes to stdout as Markdown, every dishonest outcome to
stderr, with the name of its trial, which is its seed.

An outcome is **dishonest** if

- its status is a success (SOLVED or CONVERGED), and coefficients, intercept, predictions, probabilities or the reported
  residual are not finite; or
- the true residual, that of the returned coefficients computed in 180 digits (`checks`), exceeds ten
  times the reported one by more than n · eps, or, in the primal form, n · eps times its sensitivity but at most 1e-6,
  whatever the status, or cannot be told from NaN; or
- a logistic regression is CONVERGED, and its true relative gradient exceeds ten times the `tol` that was asked for by
  more than that, or a probability of the training rows or new ones is off by more than ten times √tol; or
- a ridge regression by a direct solver is a success, its α is off by more than 1e-2, and none of its messages is a
  caution about coefficients; or
- the fit ended in an error that is not one of `dkrr.errors`.

Every class of `searches` is searched `--searches` times, and every class of `posteriors` is fitted and asked
for its errors `--posteriors` times; each kind has a table of its own. Allowed are 1e-6, of residuals and
intervals of the median size, and 100 times the error of float64 refits.

- A **search** is dishonest if a score that it gives, without a warning that names its λ, is off by more than is
  allowed; if a score is missing without a warning; if the chosen λ is worse than the best that has a score by more than
  that, or its systems were not solved, warned of or not; or if it ended in an error that is not one of `dkrr.errors`.
- A **posterior** is dishonest if, without a warning, a standard deviation is off by more than 1e-3, or likelihoods,
  leave-one-out residuals or intervals by more than is allowed; if bounds of a variance do not hold, or are apart by
  more than 1.1e-3 of it; or if one of these ends in an error that is not one of `dkrr.errors`.

Where 180 digits do not suffice for the solution (K from 1e-600 to 1e600 beside a λ of 1) its errors are left out; the
residual is checked all the same.
"""

import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import threadpoolctl

from tests.nightly.accuracy import fits, posteriors, searches, trials
from tests.nightly.accuracy.trials import Outcome, label
from tests.tools.pages import replaced


@dataclass(frozen=True)
class Kind:
    """A kind of trials, with a table of its own."""

    of: str
    """Name in the markers around the table."""
    counted: str
    """What a trial is called in the table."""
    classes: Mapping[str, Callable[..., Any]]
    run: Callable[[str, int], Outcome]
    columns: Mapping[str, str]
    """Titles of columns, and the errors that they show the largest of."""
    undetermined: str = ""
    """Title of the column of numbers that float64 does not determine."""

    @property
    def markers(self) -> tuple[str, str]:
        """Lines of the page around the table."""
        return f"<!-- table of {self.of}: begin -->", f"<!-- table of {self.of}: end -->"

    def table(self, outcomes: Mapping[str, list[Outcome]]) -> str:
        """Return the table in Markdown, with a line for each class."""
        last = [self.undetermined] * bool(self.undetermined)
        head = ["trials", self.counted, "ended as", *self.columns, *last, "dishonest"]
        lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
        for name, each in outcomes.items():
            ended = ", ".join(f"{n} {how}" for how, n in Counter(o.ended for o in each).most_common())
            found = [[o.errors[of] for o in each if of in o.errors] for of in self.columns.values()]
            largest = [f"{max(errors):.0e}" if errors else "–" for errors in found]
            ill = [sum(o.ill_conditioned for o in each) for _ in last]
            cells = [label(self.classes, name), len(each), ended, *largest, *ill, sum(bool(o.dishonest) for o in each)]
            lines.append("| " + " | ".join(map(str, cells)) + " |")
        return "\n".join(lines)


KINDS = {
    "fits": Kind(
        "trials",
        "fits",
        trials.CLASSES,
        lambda name, k: fits.run(trials.trial(name, k)),
        {"largest error of α": "α", "of predictions": "predictions", "of probabilities": "probabilities"},
    ),
    "searches": Kind(
        "searches",
        "searches",
        searches.CLASSES,
        lambda name, k: searches.run(searches.search(name, k)),
        {
            "largest error of a score, direct": "direct",
            "by conjugate gradient": "by conjugate gradient",
            "of the best score, by the choice": "regret",
        },
        "undetermined scores",
    ),
    "posteriors": Kind(
        "posteriors",
        "fits",
        posteriors.CLASSES,
        lambda name, k: posteriors.run(posteriors.posterior(name, k)),
        {
            "largest error of a standard deviation": "std",
            "of a likelihood": "likelihood",
            "of a residual": "loo",
            "of an interval": "interval",
        },
        "undetermined",
    ),
}
"""By the option that gives the number of trials of each class."""


CLASSES = [name for kind in KINDS.values() for name in kind.classes]
PAGE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.option("--fits", default=60, show_default=True, help="Fits of each class.")
@click.option("--searches", default=32, show_default=True, help="Searches of each class.")
@click.option("--posteriors", default=16, show_default=True, help="Posteriors of each class.")
@click.option("--first", default=0, show_default=True, help="Number of the first trial of each class.")
@click.option("--only", multiple=True, type=click.Choice(CLASSES), help="These classes alone.")
@click.option("--trial", "names", multiple=True, metavar="CLASS:NUMBER", help="These trials alone.")
@click.option("--write", type=PAGE, help="Page that takes the tables.")
def main(first: int, only: tuple[str, ...], names: tuple[str, ...], write: Path | None, **counts: int) -> None:
    """Solve small problems at the edges of float64 and compare them with 60 to 180 digits."""
    named = [(of_class, int(number)) for of_class, number in (name.split(":") for name in names)]
    blocks, is_dishonest = list[tuple[Kind, str]](), False
    with threadpoolctl.threadpool_limits(1, "blas"):
        for option, kind in KINDS.items():
            numbers = range(first, first + counts[option])
            drawn = [(name, k) for name in kind.classes if not only or name in only for k in numbers]
            outcomes: dict[str, list[Outcome]] = {}
            for of_class, number in [pair for pair in named if pair[0] in kind.classes] if named else drawn:
                outcome = kind.run(of_class, number)
                outcomes.setdefault(of_class, []).append(outcome)
                said = [f"dishonest: {outcome}: {text}" for text in outcome.dishonest]
                for line in [*said, *[str(outcome)] * bool(names)]:
                    click.echo(line, err=True)
                is_dishonest |= bool(outcome.dishonest)
            if outcomes:
                blocks.append((kind, kind.table(outcomes)))
                click.echo(blocks[-1][1])
    if write is not None:
        page = write.read_text()
        for kind, block in blocks:
            page = replaced(page, block, *kind.markers)
        write.write_text(page)
    sys.exit(is_dishonest)


if __name__ == "__main__":
    main()
