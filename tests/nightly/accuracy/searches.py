"""Small searches at the edges of float64 against a refit of every fold and λ in 60 digits or more.

The campaign runs them. A trial is an ordinary regression with folds of some splitter, several λ, and what its
class changes. Its scores are those of `models`, and a float64 refit of the same form, with inputs moved by
rounding, says what float64 can tell of each: a score may be off by 100 times that, and by 1e-6 of itself. Right sides
of conjugate gradient are moved by the residual that it promises: `cv_tol`, or ten times the errors of the rows held
out, over the targets, times that.
"""

import math
import re
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from flint import arb
from numpy.typing import NDArray
from sklearn.model_selection import GroupKFold

from dkrr import KernelRidgeCV
from dkrr.errors import ConvergenceWarning, DkrrError
from dkrr.kernels import RBF, BagOfWords, Laplacian
from tests.nightly.accuracy.models import ROUNDING, Problem
from tests.nightly.accuracy.search_trials import Search
from tests.precise import precision

Array = NDArray[np.float64]
Numbers = NDArray[np.intp]

TOL = 1e-6
"""Relative error of a score that is always allowed."""
FACTOR = 100.0
"""By which an error may exceed that of float64 refits."""
ITERATED_TOL = 2e-3
"""Relative error of a score by conjugate gradient that is always allowed."""
ITERATED_ILL_CONDITIONED = 0.1
"""The same as ILL_CONDITIONED for conjugate gradient."""
DRAWS = 3
"""Refits with moved inputs, besides one without."""
ILL_CONDITIONED = 1e-3
"""Relative error allowed to a score above which it is called undetermined."""
SMALLEST = 1e-300
"""Sizes of scores below which float64 loses their digits."""


@dataclass(frozen=True)
class SearchOutcome:
    """Result of one search: how it ended, and its errors."""

    trial: Search
    ended: str
    how: str = ""
    """Way to the scores, and the form."""
    direct: float = math.nan
    """Largest relative error of a score by a direct way, without those that are ill-conditioned."""
    iterated: float = math.nan
    """The same by conjugate gradient."""
    regret: float = math.nan
    """Relative distance of the chosen λ's exact score from the best of those that have a score."""
    ill_conditioned: int = 0
    """Scores that float64 does not determine to 1e-3."""
    dishonest: tuple[str, ...] = ()
    surprising: tuple[str, ...] = ()

    def __str__(self) -> str:
        one = self.trial
        n, cv = len(one.y), type(one.cv).__name__ if one.cv != "loo" else "loo"
        also = [
            *(f"{k}={v}" for k, v in one.settings.items() if v),
            *(["intercept"] if one.fit_intercept else []),
            *(["weights"] if one.sample_weight is not None else []),
        ]
        what = f"{one.kernel!r} {cv} n={n} t={one.y.shape[1]} λ={', '.join(f'{a:.1g}' for a in one.alphas)}"
        return f"{one.name} {what} {' '.join(also)}: {self.ended} by {self.how}"


def run(one: Search) -> SearchOutcome:
    """Carry out one search and compare it."""
    made = KernelRidgeCV(
        one.alphas, kernel=one.kernel, fit_intercept=one.fit_intercept, cv=one.cv, progress=False, **one.settings
    )
    groups = one.groups if isinstance(one.cv, GroupKFold) else None
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            made.fit(one.X, one.y.copy(), one.sample_weight, groups=groups)
    except DkrrError as error:
        refusal = f"{type(error).__name__}: {error}"
        return SearchOutcome(one, type(error).__name__, surprising=_refused(one, refusal))
    except Exception as error:  # what a user would see, whatever it is
        text = f"an error that is not dkrr's own: {type(error).__name__}: {error}"
        return SearchOutcome(one, type(error).__name__, dishonest=(text,))
    others = {f"{w.category.__name__}: {w.message}" for w in caught if not issubclass(w.category, ConvergenceWarning)}
    return judge(one, made, [str(w.message) for w in caught if issubclass(w.category, ConvergenceWarning)], others)


def _refused(one: Search, refusal: str) -> tuple[str, ...]:
    """The refusal, if float64 refits tell all scores."""
    form = one.settings["form"]
    if form == "auto":
        form = "dual" if isinstance(one.kernel, RBF | Laplacian | BagOfWords | str) else "primal"
    try:
        exact = scores(one, form, 0.0)
    except ArithmeticError:
        return ()
    return (f"refused: {refusal}",) if (exact.relative_allowed <= ILL_CONDITIONED).all() else ()


@dataclass(frozen=True)
class ExactScores:
    """Scores of every λ, fold (or one for leave-one-out) and target (or one for all)."""

    values: NDArray[Any]
    """Numbers of flint, of shape (n_alphas, n_folds, k)."""
    allowed: NDArray[Any]
    """Error that each may have."""

    @property
    def relative_allowed(self) -> Array:
        """Allowed errors over the scores."""
        return np.array([_ratio(a, v) for a, v in zip(self.allowed.flat, self.values.flat, strict=True)])


def _ratio(error: arb, size: arb) -> float:
    error, size = abs(error).mid(), abs(size).mid()
    if error.is_nan() or size.is_nan():
        return math.inf
    return float((error / size).mid()) if size > 0 else (0.0 if error == 0 else math.inf)


def scores(one: Search, form: str, tol: float) -> ExactScores:
    """Exact scores, and the errors that float64 refits of a form allow, or residuals of that `tol`."""
    problem, pairs = one.problem, one.pairs()
    t, is_loo = one.y.shape[1], one.cv == "loo"
    k = t if one.settings["alpha_per_target"] and t > 1 else 1
    rng = np.random.default_rng(0)
    # Rows that are scored together: those of a fold, or all of leave-one-out.
    groups = [list(range(len(pairs)))] if is_loo else [[f] for f in range(len(pairs))]
    values, allowed = (np.empty((len(one.alphas), len(groups), k), object) for _ in range(2))
    with precision():
        y = np.array([[arb(float(v)) for v in row] for row in one.y], object)
        spread = np.array(_squares(y, problem.weights, k), object)
        floor = arb(SMALLEST) + arb(ROUNDING * float(np.abs(one.y).max())) ** 2
        for a, alpha in enumerate(one.alphas):
            for g, group in enumerate(groups):
                rows = np.concatenate([pairs[f][1] for f in group])
                found = [_table(problem.predictions(float(alpha), *pairs[f])) for f in group]
                errors = np.vstack(found) - y[rows]
                values[a, g] = _squares(errors, problem.weights[rows], k)
                # Conjugate gradient promises a smaller residual where errors are small beside the targets.
                part = max(_ratio(v, s) for v, s in zip(values[a, g], spread, strict=True))
                residual = tol * min(1.0, 10 * math.sqrt(part))
                off = [arb(0)] * k
                for draw in range(DRAWS + 1):
                    each = [_rounded(problem, float(alpha), pairs[f], form, rng if draw else None) for f in group]
                    moved = np.vstack([f64 for f64, _ in each]) - y[rows]
                    if tol > 0:
                        change = np.vstack([sensitivity for _, sensitivity in each]) * arb(residual)
                        moved = abs(moved) + change
                    scored = _squares(moved, problem.weights[rows], k)
                    off = [_larger(o, abs(v - s).mid()) for o, v, s in zip(off, values[a, g], scored, strict=True)]
                least, factor = (ITERATED_TOL, 2.0) if tol > 0 else (TOL, FACTOR)
                allowed[a, g] = [least * abs(v) + factor * o + floor for v, o in zip(values[a, g], off, strict=True)]
    return ExactScores(values, allowed)


def _rounded(
    problem: Problem, alpha: float, pair: tuple[Numbers, Numbers], form: str, rng: np.random.Generator | None
) -> tuple[Any, Any]:
    """Float64 predictions and sensitivities as numbers of flint; NaN where there are none."""
    try:
        found = problem.rounded_predictions(alpha, *pair, form, rng)
    except (ValueError, ArithmeticError, np.linalg.LinAlgError, DkrrError):
        found = (np.full((len(pair[1]), problem.y.shape[1]), np.nan),) * 2
    first, second = (np.array([[arb(float(v)) for v in row] for row in part], object) for part in found)
    return first, second


def _table(values: Any) -> Any:
    return np.array(values.table(), object)


def _larger(a: arb, b: arb) -> arb:
    """Larger of two numbers; NaN if either is."""
    return a if a.is_nan() or a > b else b


def _squares(errors: Any, weights: Array, k: int) -> list[arb]:
    """Negative weighted means of squared errors (rows, t), of each target or of all."""
    w = [arb(float(v)) for v in weights]
    t, total = errors.shape[1], sum(w, arb(0))
    of_target = [-sum((v * e[c] ** 2 for v, e in zip(w, errors, strict=True)), arb(0)) / total for c in range(t)]
    return of_target if k == t else [sum(of_target, arb(0)) / t]


def judge(one: Search, made: KernelRidgeCV, messages: list[str], others: set[str]) -> SearchOutcome:
    """Compare a search with exact scores.

    Parameters
    ----------
    one : Search
    made : KernelRidgeCV
        Fitted.
    messages : list of str
        What it warned of.
    others : set of str
        Warnings of other kinds.
    """
    plan = made.selection_plan_
    is_iterative = one.settings["solver"] == "cg" if plan is None else plan.method == "sweep" or (
        (plan.method == "refits" and "gradient" in str(plan.plan.solver)) or plan.plan.solver == "cg"
    )  # fmt: skip
    form = "dual" if plan is None else plan.plan.form
    how = f"{'fits' if plan is None else plan.method} {form}{' cg' if is_iterative else ''}"
    named = [float(found) for text in messages for found in re.findall(r"alpha = ([-+.e0-9]*[0-9])", text)]
    ended = "warned" if messages else "scored"
    try:
        exact = scores(one, form, made.cv_tol if is_iterative else 0.0)
    except ArithmeticError:
        return SearchOutcome(one, f"{ended}, beyond all digits", how, surprising=tuple(sorted(others)))
    results = made.cv_results_
    n_alphas, n_values, k = exact.values.shape
    if k > 1 or one.cv == "loo":
        found = results["mean_test_score_per_target"] if k > 1 else results["mean_test_score"][:, None]
        expected = [[sum(exact.values[a, :, c], arb(0)) / n_values for c in range(k)] for a in range(n_alphas)]
        slack = [[sum(exact.allowed[a, :, c], arb(0)) / n_values for c in range(k)] for a in range(n_alphas)]
    else:
        found = np.column_stack([results[f"split{f}_test_score"] for f in range(n_values)])
        expected, slack = exact.values[:, :, 0].tolist(), exact.allowed[:, :, 0].tolist()
    dishonest, largest, ill = list[str](), 0.0, 0
    limit = ITERATED_ILL_CONDITIONED if is_iterative else ILL_CONDITIONED
    is_warned = np.array([any(alpha <= name * (1 + 1e-5) for name in named) for alpha in one.alphas])
    is_off = np.zeros(n_alphas, bool)
    with precision():
        for (a, f), value in np.ndenumerate(found):
            e, s = expected[a][f], slack[a][f]
            where = f"λ={one.alphas[a]:.2g} {'target' if k > 1 else 'fold'} {f}"
            allowed = _ratio(s, e)
            ill += not allowed <= limit
            if np.isnan(value):
                if not (results["stopped"][a] or is_warned[a] or s.is_nan()):
                    dishonest.append(f"no score of {where}, and no word")
            elif np.isinf(value) and abs(e) < arb(1e308) and not s.is_nan():
                dishonest.append(f"the score of {where} is {value}, and {_text(e)} is right")
            elif np.isfinite(value):
                off = _ratio(arb(float(value)) - e, e)
                if not s.is_nan() and not abs(arb(float(value)) - e) <= s and abs(e) < arb(1e308):
                    is_off[a] = True
                    if not is_warned[a]:
                        dishonest.append(f"the score of {where} is {value:.6g}, and {_text(e)} is right: off by "
                                         f"{off:.1e}, allowed {allowed:.1e}")  # fmt: skip
                elif allowed <= limit and abs(e) > arb(10) ** -290 and not is_warned[a]:
                    largest = max(largest, off)
        regret, wrong = _choice(made, exact, is_warned & (is_off | (results["residual"] > 2 * made.cv_tol)), limit)
    return SearchOutcome(
        one, ended, how, math.nan if is_iterative else largest, largest if is_iterative else math.nan, regret, ill,
        (*dishonest, *wrong), tuple(sorted(others)),
    )  # fmt: skip


def _choice(
    made: KernelRidgeCV, exact: ExactScores, is_unsolved: NDArray[np.bool_], limit: float
) -> tuple[float, list[str]]:
    """Regret of the chosen λ, and what is wrong with the choice."""
    results, (_, n_values, k) = made.cv_results_, exact.values.shape
    regret, wrong = 0.0, list[str]()
    has_score = ~np.isnan(results["mean_test_score"])
    for c in range(k):
        means = [sum(row[:, c], arb(0)) / n_values for row in exact.values]
        slack = [sum(row[:, c], arb(0)) / n_values for row in exact.allowed]
        chosen = int(np.atleast_1d(made.best_index_)[c if k > 1 else 0])
        if is_unsolved[chosen]:
            wrong.append(f"λ={made.alphas[chosen]:.2g} is chosen, whose systems were not solved, as a warning says")
        known = [a for a in np.flatnonzero(has_score) if not slack[a].is_nan() and not is_unsolved[a]]
        if chosen not in known:
            continue
        best = max(known, key=lambda a: _middle(means[a]))
        gap = _ratio(means[best] - means[chosen], means[best])
        if means[best] - means[chosen] > slack[best] + slack[chosen]:
            wrong.append(
                f"λ={made.alphas[chosen]:.2g} is chosen with {_text(means[chosen])}, where λ={made.alphas[best]:.2g} "
                f"has {_text(means[best])}"
            )
        elif _ratio(slack[best] + slack[chosen], means[best]) <= limit:
            regret = max(regret, gap)
    return regret, wrong


def _middle(value: arb) -> Any:
    """Middle of a number, for comparisons."""
    return value.mid()


def _text(value: arb) -> str:
    return str(value.mid().str(7, radius=False))
