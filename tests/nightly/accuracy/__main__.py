"""Small fits at the edges of float64 against arithmetic of 180 digits: how wrong they are, and whether they say so.

::

    python -m tests.nightly.accuracy [--fits 60] [--searches 32] [--posteriors 16] [--only duplicates] [--write PAGE]
    python -m tests.nightly.accuracy --trial duplicates:17 --trial search-weights:3

Every class of `trials` is fitted `--fits` times, ridge and logistic, in either form, by Cholesky in memory and in tiles
and by conjugate gradient, and compared with `precise`. The table goes to stdout as Markdown, every dishonest and every
surprising outcome to stderr, with the name of its trial, which is its seed.

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

It is **surprising**, and listed but not counted, if it is a success whose predictions are off by more than 1e-6 of the
largest |f|, or probabilities by more than 1e-6; or if it warned of anything but its accuracy; or if an ordinary problem
was refused. A problem that is close to singular can have such predictions and a residual at the level of rounding.

Every class of `search_trials` is searched `--searches` times, and every class of `posterior_trials` is fitted and asked
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

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import threadpoolctl

from tests.nightly.accuracy import posterior_trials, posteriors, search_trials, searches
from tests.nightly.accuracy.fits import Outcome, run
from tests.nightly.accuracy.posteriors import WHAT, PosteriorOutcome
from tests.nightly.accuracy.searches import SearchOutcome
from tests.nightly.accuracy.trials import CLASSES, label, trial
from tests.tools.pages import replaced

BEGIN, END = "<!-- table of trials: begin -->", "<!-- table of trials: end -->"
AnyOutcome = Outcome | SearchOutcome | PosteriorOutcome


@dataclass(frozen=True)
class Kind:
    """A kind of trials, with a table of its own."""

    classes: Mapping[str, Callable[..., Any]]
    run: Callable[[str, int], AnyOutcome]
    begin: str
    """Line of the page before the table."""
    counted: str
    """What a trial is called in the table."""
    columns: tuple[str, ...]
    cells: Callable[[list[Any]], list[str]]
    """Values of a class in these columns."""

    @property
    def end(self) -> str:
        """Line of the page after the table."""
        return self.begin.replace("begin", "end")

    def table(self, outcomes: Mapping[str, list[AnyOutcome]]) -> str:
        """Return the table in Markdown, with a line for each class."""
        head = ["trials", self.counted, "ended as", *self.columns, "dishonest"]
        lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
        for name, each in outcomes.items():
            ended = ", ".join(f"{n} {how}" for how, n in Counter(o.ended for o in each).most_common())
            dishonest = sum(bool(o.dishonest) for o in each)
            cells = [label(self.classes, name), len(each), ended, *self.cells(each), dishonest]
            lines.append("| " + " | ".join(map(str, cells)) + " |")
        return "\n".join(lines)


def _largest(values: Iterable[float]) -> str:
    found = [v for v in values if not math.isnan(v)]
    return f"{max(found):.0e}" if found else "–"


def _of_fits(each: list[Outcome]) -> list[str]:
    """Largest errors over the fits that ended as successes."""
    kept = [o for o in each if o.is_success]
    return [_largest(vars(o)[of] for o in kept) for of in ("dual_coef", "predictions", "probabilities")]


def _of_searches(each: list[SearchOutcome]) -> list[str]:
    errors = [_largest(vars(o)[of] for o in each) for of in ("direct", "iterated", "regret")]
    return [*errors, str(sum(o.ill_conditioned for o in each))]


def _of_posteriors(each: list[PosteriorOutcome]) -> list[str]:
    errors = [_largest(o.errors.get(what, math.nan) for o in each) for what in WHAT if what != "bounds"]
    return [*errors, str(sum(len(o.ill_conditioned) for o in each))]


KINDS = {
    "fits": Kind(
        CLASSES,
        lambda name, k: run(trial(name, k)),
        BEGIN,
        "fits",
        ("largest error of α", "of predictions", "of probabilities"),
        _of_fits,
    ),
    "searches": Kind(
        search_trials.CLASSES,
        lambda name, k: searches.run(search_trials.search(name, k)),
        "<!-- table of searches: begin -->",
        "searches",
        (
            "largest error of a score, direct",
            "by conjugate gradient",
            "of the best score, by the choice",
            "undetermined scores",
        ),
        _of_searches,
    ),
    "posteriors": Kind(
        posterior_trials.CLASSES,
        lambda name, k: posteriors.run(posterior_trials.posterior(name, k)),
        "<!-- table of posteriors: begin -->",
        "fits",
        ("largest error of a standard deviation", "of a likelihood", "of a residual", "of an interval", "undetermined"),
        _of_posteriors,
    ),
}
"""By the option that gives the number of trials of each class."""


@click.command()
@click.option("--fits", default=60, show_default=True, help="Fits of each class.")
@click.option("--searches", default=32, show_default=True, help="Searches of each class.")
@click.option("--posteriors", default=16, show_default=True, help="Posteriors of each class.")
@click.option("--first", default=0, show_default=True, help="Number of the first trial of each class.")
@click.option(
    "--only",
    multiple=True,
    type=click.Choice([name for kind in KINDS.values() for name in kind.classes]),
    help="These classes alone.",
)
@click.option("--trial", "names", multiple=True, metavar="CLASS:NUMBER", help="These trials alone.")
@click.option(
    "--write", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Page that takes the tables."
)
def main(
    fits: int, searches: int, posteriors: int, first: int, only: tuple[str, ...], names: tuple[str, ...],
    write: Path | None,
) -> None:  # fmt: skip
    """Solve small problems at the edges of float64 and compare them with 60 to 180 digits."""
    counts = {"fits": fits, "searches": searches, "posteriors": posteriors}
    named = [(name.split(":")[0], int(name.split(":")[1])) for name in names]
    blocks, is_dishonest = list[tuple[Kind, str]](), False
    with threadpoolctl.threadpool_limits(1, "blas"):
        for option, kind in KINDS.items():
            wanted = [pair for pair in named if pair[0] in kind.classes]
            if not named:
                numbers = range(first, first + counts[option])
                wanted = [(name, k) for name in kind.classes if not only or name in only for k in numbers]
            outcomes: dict[str, list[AnyOutcome]] = {}
            for of_class, number in wanted:
                outcome = kind.run(of_class, number)
                outcomes.setdefault(of_class, []).append(outcome)
                for judged in ("dishonest", "surprising"):
                    for text in vars(outcome)[judged]:
                        click.echo(f"{judged}: {outcome}: {text}", err=True)
                if names:
                    click.echo(f"{outcome}", err=True)
                is_dishonest |= bool(outcome.dishonest)
            if outcomes:
                blocks.append((kind, kind.table(outcomes)))
    for _, block in blocks:
        click.echo(block)
    if write is not None:
        page = write.read_text()
        for kind, block in blocks:
            page = replaced(page, block, kind.begin, kind.end)
        write.write_text(page)
    if is_dishonest:
        sys.exit(1)


if __name__ == "__main__":
    main()
