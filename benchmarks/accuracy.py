"""Small fits at the edges of float64 against arithmetic of 180 digits: how wrong they are, and whether they say so.

::

    python -m benchmarks.accuracy [--fits 60] [--searches 32] [--posteriors 16] [--only duplicates] [--write PAGE]
    python -m benchmarks.accuracy --trial duplicates:17 --trial search-weights:3

Every class of `trials` is fitted `--fits` times, ridge and logistic, in either form, by Cholesky in memory and in tiles
and by conjugate gradient, and compared with `precise`. The table goes to stdout as Markdown, every dishonest and every
surprising outcome to stderr, with the name of its trial, which is its seed.

An outcome is **dishonest** if

- its status is a success (SOLVED or CONVERGED), and coefficients, intercept, predictions, probabilities or the reported
  residual are not finite; or
- the true residual, that of the returned coefficients computed in 180 digits (`precise_checks`), exceeds ten
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
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import threadpoolctl
from numpy.typing import NDArray

from benchmarks import accuracy_posteriors, accuracy_searches, posterior_trials, precise, search_trials
from benchmarks.accuracy_posteriors import WHAT, PosteriorOutcome
from benchmarks.accuracy_searches import SearchOutcome
from benchmarks.precise_checks import dual_residual, logistic_gradient, primal_residual
from benchmarks.trials import CLASSES, Trial, label, trial
from dkrr import KernelLogisticRegression, KernelRidge
from dkrr.errors import ConvergenceWarning, DkrrError
from dkrr.solvers import Status

Array = NDArray[np.float64]

SUCCESS = (Status.SOLVED, Status.CONVERGED)
FACTOR = 10.0
"""By which a true residual may exceed the one that is reported."""
MAX_SLACK = 1e-6
"""Part of a residual that rounding of features may explain, at most: otherwise a large sensitivity explains any."""
UNCERTAIN = 1e-2
"""Relative error of α beyond which a direct solver must have warned of it."""
CAUTION = "may be off by as much as"
"""Words that every message of `dkrr.solvers.result.caution` has."""
SURPRISING = 1e-6
BEGIN, END = "<!-- table of trials: begin -->", "<!-- table of trials: end -->"


@dataclass(frozen=True)
class Outcome:
    """Result of one trial: how it ended, and its errors."""

    trial: Trial
    ended: str
    """Name of the status, or of the error."""
    is_success: bool = False
    reported: float = math.nan
    """Residual, or relative gradient."""
    true: float = math.nan
    """Residual, or relative gradient, of the returned coefficients in 180 digits."""
    dual_coef: float = math.nan
    """‖α − α*‖ / ‖α*‖, largest over the targets; nan without α."""
    predictions: float = math.nan
    """Largest |f − f*| / max |f*|, training rows and new ones."""
    probabilities: float = math.nan
    """Largest |p − p*|, training rows and new ones."""
    dishonest: tuple[str, ...] = ()
    surprising: tuple[str, ...] = ()

    def __str__(self) -> str:
        one = self.trial
        what = f"{'logistic' if one.is_logistic else 'ridge'} {one.kernel!r} n={one.X.shape[0]} λ={one.alpha:.2g}"
        also = [
            *(f"{k}={v}" for k, v in one.settings.items()),
            *(["intercept"] if one.fit_intercept else []),
            *(["weights"] if one.sample_weight is not None else []),
        ]
        return (
            f"{one.name} {what} {' '.join(also)}: {self.ended}, reported {self.reported:.1e}, true {self.true:.1e}, "
            f"α {self.dual_coef:.1e}, f {self.predictions:.1e}, p {self.probabilities:.1e}"
        )


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


def run(one: Trial) -> Outcome:
    """Fit one trial and compare it."""
    make = KernelLogisticRegression if one.is_logistic else KernelRidge
    model = make(one.alpha, kernel=one.kernel, fit_intercept=one.fit_intercept, progress=False, **one.settings)
    y = one.y if one.is_logistic else one.y.copy()
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.fit(one.X, y, sample_weight=one.sample_weight)
            found = [_scores(model, X) for X in (one.X, one.X_new)]
            chances = model.predict_proba(one.X_new)[:, 1] if isinstance(model, KernelLogisticRegression) else None
    except DkrrError as error:
        refused = (f"refused: {error}",) if one.name.startswith("ordinary:") else ()
        return Outcome(one, type(error).__name__, surprising=refused)
    except Exception as error:  # what a user would see, whatever it is
        return Outcome(one, type(error).__name__, dishonest=(f"an error that is not dkrr's own: {error}",))
    others = {f"{w.category.__name__}: {w.message}" for w in caught if not issubclass(w.category, ConvergenceWarning)}
    return judge(one, model, np.vstack(found), chances, sorted(others))


def _scores(model: Any, X: Any) -> Array:
    """Return f of each row, (m, t)."""
    found = model.decision_function(X) if isinstance(model, KernelLogisticRegression) else model.predict(X)
    return np.asarray(found, np.float64).reshape(X.shape[0], -1)


def judge(one: Trial, model: Any, found: Array, chances: Array | None, others: list[str]) -> Outcome:
    """Compare a fitted model with the exact solution, and what it reports with what is true.

    Parameters
    ----------
    one : Trial
    model : KernelRidge or KernelLogisticRegression
        Fitted.
    found : ndarray of shape (n + N_NEW, t)
        Predictions, or scores, of the training rows and the new ones.
    chances : ndarray of shape (N_NEW,), optional
        Probabilities of the new rows.
    others : list of str
        What it warned of besides its accuracy.
    """
    solve = model.solve_result_
    n, is_success = one.X.shape[0], solve.status in SUCCESS
    dual = np.asarray(model.dual_coef_).reshape(n, -1) if hasattr(model, "dual_coef_") else None
    returned = [model.intercept_, found, solve.residual, *(v for v in (dual, chances) if v is not None)]
    if not all(np.isfinite(v).all() for v in returned):
        wrong = ("not finite, and a success",) if is_success else ()
        return Outcome(one, solve.status.name, is_success, solve.residual, dishonest=wrong, surprising=tuple(others))
    (true, sensitivity), errors = _true_residual(one, model, dual), _errors(one, found, dual, chances)
    slack = min(n * np.finfo(float).eps * max(sensitivity, 1.0), MAX_SLACK)
    dishonest = []
    # All comparisons are such that a NaN fails them.
    if not true <= FACTOR * solve.residual + slack:
        dishonest.append(f"a residual of {true:.1e} is reported as {solve.residual:.1e}")
    if one.is_logistic and solve.status is Status.CONVERGED:
        if not true <= FACTOR * model.tol + slack:
            dishonest.append(f"converged at a gradient of {true:.1e} where tol is {model.tol:.0e}")
        if not (off := errors.get("probabilities", 0.0)) <= FACTOR * math.sqrt(model.tol):
            dishonest.append(f"converged with a probability off by {off:.1e} where tol is {model.tol:.0e}")
    is_direct = not one.is_logistic and is_success and model.plan_.solver == "cholesky"
    has_caution = any(CAUTION in message for message in solve.messages)
    if is_direct and not has_caution and not (off := errors.get("dual_coef", 0.0)) <= UNCERTAIN:
        dishonest.append(f"α off by {off:.1e} without a caution")
    if is_success:
        others += [f"{of} off by {e:.1e}" for of, e in errors.items() if of != "dual_coef" and not e <= SURPRISING]
    return Outcome(
        one, solve.status.name, is_success, solve.residual, true, **errors, dishonest=tuple(dishonest),
        surprising=tuple(others),
    )  # fmt: skip


def _errors(one: Trial, found: Array, dual: Array | None, chances: Array | None) -> dict[str, float]:
    """Compare with the exact solution; nothing to compare where 180 digits do not do either."""
    try:
        exact = _exact(one)
    except ArithmeticError:
        return {}
    assert exact.predictions is not None
    expected = np.vstack([exact.fitted, exact.predictions])
    errors = {"predictions": _relative(np.abs(found - expected).max(), np.abs(expected).max())}
    if dual is not None:
        off = dual - exact.dual_coef
        # NumPy's maximum of numbers with a NaN is one, and Python's may not be.
        errors["dual_coef"] = float(np.max([*map(_relative, map(_length, off.T), map(_length, exact.dual_coef.T))]))
    if one.is_logistic:
        off = precise.probabilities(found) - precise.probabilities(expected)
        if chances is not None:
            off = np.append(off, chances - precise.probabilities(exact.predictions))
        errors["probabilities"] = float(np.abs(off).max())
    return errors


def _exact(one: Trial) -> precise.Exact:
    solve = precise.logistic if one.is_logistic else precise.ridge
    return solve(
        one.kernel, one.X, one.y, one.alpha, sample_weight=one.sample_weight, fit_intercept=one.fit_intercept,
        X_new=one.X_new,
    )  # fmt: skip


def _true_residual(one: Trial, model: Any, dual: Array | None) -> tuple[float, float]:
    """Residual in 180 digits of the equations that the fit's form solves, and its sensitivity."""
    problem: dict[str, Any] = {"sample_weight": one.sample_weight, "fit_intercept": one.fit_intercept}
    is_primal = model.plan_.form == "primal"
    if one.is_logistic:
        problem["coef" if is_primal else "dual_coef"] = model.coef_ if is_primal else dual
        problem["intercept"] = float(np.ravel(model.intercept_)[0])
        return logistic_gradient(one.kernel, one.X, one.y, one.alpha, **problem)
    if is_primal:
        features = np.asarray(model.coef_).reshape(-1, one.y.shape[1])
        return primal_residual(one.kernel, one.X, one.y, one.alpha, features, **problem)
    assert dual is not None
    return dual_residual(one.kernel, one.X, one.y, one.alpha, dual, **problem), 0.0


def _length(values: Array) -> float:
    """Euclidean norm, of numbers of any size."""
    largest = float(np.abs(values).max())
    return largest * float(np.linalg.norm(values / largest)) if 0 < largest < math.inf else largest


def _relative(error: float, size: float) -> float:
    return float(error / size) if size > 0 else (0.0 if error == 0 else math.inf)


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
        lambda name, k: accuracy_searches.run(search_trials.search(name, k)),
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
        lambda name, k: accuracy_posteriors.run(posterior_trials.posterior(name, k)),
        "<!-- table of posteriors: begin -->",
        "fits",
        ("largest error of a standard deviation", "of a likelihood", "of a residual", "of an interval", "undetermined"),
        _of_posteriors,
    ),
}
"""By the option that gives the number of trials of each class."""


def replaced(page: str, block: str, begin: str = BEGIN, end: str = END) -> str:
    """Return a page with another block between two markers.

    Raises
    ------
    click.ClickException
        If the page has no such markers.
    """
    if begin not in page or end not in page:
        raise click.ClickException(f"the page has no lines {begin} and {end} for the table to stand between")
    before, rest = page.split(begin, 1)
    return f"{before}{begin}\n{block}\n{end}{rest.split(end, 1)[1]}"


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
