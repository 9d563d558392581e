"""Small searches at the edges of float64 against a refit of every fold and λ in 60 digits or more.

The campaign runs them. A trial is an ordinary regression with folds of some splitter, several λ, and what its
class changes. Its scores are those of `models`, and a float64 refit of the same form, with inputs moved by
rounding, says what float64 can tell of each: a score may be off by 100 times that, and by 1e-6 of itself. Right sides
of conjugate gradient are moved by the residual that it promises: `cv_tol`, or ten times the errors of the rows held
out, over the targets, times that.
"""

import math
import re
from dataclasses import dataclass

import numpy as np
from flint import arb
from numpy.typing import NDArray
from sklearn.model_selection import GroupKFold

from dkrr import KernelRidgeCV
from dkrr.errors import DkrrError
from dkrr.kernels import RBF, BagOfWords, Laplacian
from tests.nightly.accuracy.checks import Array, Exact, exact
from tests.nightly.accuracy.models import ROUNDING, Numbers, Problem
from tests.nightly.accuracy.search_trials import Search
from tests.nightly.accuracy.trials import Outcome, ask
from tests.precise import precision

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


def run(one: Search) -> Outcome:
    """Carry out one search and compare it."""
    settings = {"kernel": one.kernel, "fit_intercept": one.fit_intercept, "cv": one.cv, "progress": False}
    made = KernelRidgeCV(one.alphas, **settings, **one.settings)
    groups = one.groups if isinstance(one.cv, GroupKFold) else None
    answer = ask(lambda: made.fit(one.X, one.y.copy(), one.sample_weight, groups=groups))
    if answer.error is not None:
        refusal = answer.refusal if answer.refusal and _is_told(one) else ()
        return Outcome(one, answer.name, dishonest=answer.raw, surprising=refusal)
    return judge(one, made, answer.own, answer.others)


def _is_told(one: Search) -> bool:
    """Whether float64 refits tell all scores."""
    form = one.settings["form"]
    if form == "auto":
        form = "dual" if isinstance(one.kernel, RBF | Laplacian | BagOfWords | str) else "primal"
    try:
        return bool((scores(one, form, 0.0).relative_allowed <= ILL_CONDITIONED).all())
    except ArithmeticError:
        return False


@dataclass(frozen=True)
class ExactScores:
    """Scores of every λ, fold (or one for leave-one-out) and target (or one for all)."""

    values: Exact
    """Of shape (n_alphas, n_folds, k)."""
    allowed: Exact
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
    problem, pairs, rng = one.problem, one.pairs(), np.random.default_rng(0)
    t = one.y.shape[1]
    k = t if one.settings["alpha_per_target"] and t > 1 else 1
    # Rows that are scored together: those of a fold, or all of leave-one-out.
    groups = [pairs] if one.cv == "loo" else [[pair] for pair in pairs]
    values, allowed = (np.empty((len(one.alphas), len(groups), k), object) for _ in range(2))
    least, factor = (ITERATED_TOL, 2.0) if tol > 0 else (TOL, FACTOR)
    with precision():
        y = exact(one.y)
        spread = _scores(y, problem.weights, k)
        floor = arb(SMALLEST) + arb(ROUNDING * float(np.abs(one.y).max())) ** 2
        for a, g in np.ndindex(values.shape[:2]):
            alpha, rows = float(one.alphas[a]), np.concatenate([test for _, test in groups[g]])
            errors = np.vstack([problem.predictions(alpha, *pair) for pair in groups[g]]) - y[rows]
            values[a, g] = _scores(errors, problem.weights[rows], k)
            # Conjugate gradient promises a smaller residual where errors are small beside the targets.
            part = max(_ratio(v, s) for v, s in zip(values[a, g], spread, strict=True))
            residual = tol * min(1.0, 10 * math.sqrt(part))
            off = np.full(k, arb(0))
            for draw in range(DRAWS + 1):
                each = [_rounded(problem, alpha, pair, form, rng if draw else None) for pair in groups[g]]
                found, sensitivity = map(np.vstack, zip(*each, strict=True))
                moved = abs(found - y[rows]) + sensitivity * residual if tol > 0 else found - y[rows]
                change = abs(_scores(moved, problem.weights[rows], k) - values[a, g])
                off = np.array([_larger(o, c.mid()) for o, c in zip(off, change, strict=True)], object)
            allowed[a, g] = abs(values[a, g]) * least + off * factor + floor
    return ExactScores(values, allowed)


def _rounded(
    problem: Problem, alpha: float, pair: tuple[Numbers, Numbers], form: str, rng: np.random.Generator | None
) -> tuple[Exact, Exact]:
    """Float64 predictions and sensitivities as numbers of flint; NaN where there are none."""
    try:
        found = problem.rounded_predictions(alpha, *pair, form, rng)
    except (ValueError, ArithmeticError, np.linalg.LinAlgError, DkrrError):
        found = (np.full((len(pair[1]), problem.y.shape[1]), np.nan),) * 2
    return exact(found[0]), exact(found[1])


def _larger(a: arb, b: arb) -> arb:
    """Larger of two numbers; NaN if either is."""
    return a if a.is_nan() or a > b else b


def _scores(errors: Exact, weights: Array, k: int) -> Exact:
    """Negative weighted means of squared errors (rows, t), of each target or of all."""
    w = exact(weights)
    of_target: Exact = -(w * errors**2).sum(axis=0) / w.sum()
    return of_target if k == len(of_target) else np.array([of_target.mean()], object)


def judge(one: Search, made: KernelRidgeCV, messages: tuple[str, ...], others: tuple[str, ...]) -> Outcome:
    """Compare a search with exact scores.

    Parameters
    ----------
    one : Search
    made : KernelRidgeCV
        Fitted.
    messages : tuple of str
        What it warned of.
    others : tuple of str
        Warnings of other kinds.
    """
    plan = made.selection_plan_
    is_iterative = one.settings["solver"] == "cg" if plan is None else plan.method == "sweep" or (
        (plan.method == "refits" and "gradient" in str(plan.plan.solver)) or plan.plan.solver == "cg"
    )  # fmt: skip
    form = "dual" if plan is None else plan.plan.form
    how = f"{'fits' if plan is None else plan.method} {form}{' cg' if is_iterative else ''}"
    ended = "warned" if messages else "scored"
    try:
        right = scores(one, form, made.cv_tol if is_iterative else 0.0)
    except ArithmeticError:
        return Outcome(one, f"{ended}, beyond all digits", how, surprising=others)
    results = made.cv_results_
    n_alphas, n_values, k = right.values.shape
    expected, slack = (part.mean(axis=1) for part in (right.values, right.allowed))
    if k > 1 or one.cv == "loo":
        found = results["mean_test_score_per_target"] if k > 1 else results["mean_test_score"][:, None]
    else:
        found = np.column_stack([results[f"split{f}_test_score"] for f in range(n_values)])
        expected, slack = right.values[:, :, 0], right.allowed[:, :, 0]
    dishonest, largest, ill = list[str](), 0.0, 0
    limit = ITERATED_ILL_CONDITIONED if is_iterative else ILL_CONDITIONED
    named = [float(found) for text in messages for found in re.findall(r"alpha = ([-+.e0-9]*[0-9])", text)]
    is_warned = np.array([any(alpha <= name * (1 + 1e-5) for name in named) for alpha in one.alphas])
    is_off = np.zeros(n_alphas, bool)
    with precision():
        for (a, f), value in np.ndenumerate(found):
            e, s = expected[a, f], slack[a, f]
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
        regret, wrong = _choice(made, right, is_warned & (is_off | (results["residual"] > 2 * made.cv_tol)), limit)
    errors = {"by conjugate gradient" if is_iterative else "direct": largest, "regret": regret}
    return Outcome(one, ended, how, errors, ill, (*dishonest, *wrong), others)


def _choice(
    made: KernelRidgeCV, right: ExactScores, is_unsolved: NDArray[np.bool_], limit: float
) -> tuple[float, list[str]]:
    """Relative distance of the chosen λ's exact score from the best that has one, and what is wrong with the choice."""
    regret, wrong = 0.0, list[str]()
    has_score = ~np.isnan(made.cv_results_["mean_test_score"])
    for c in range(right.values.shape[2]):
        means, slack = (part[:, :, c].mean(axis=1) for part in (right.values, right.allowed))
        chosen = int(np.atleast_1d(made.best_index_)[c])
        if is_unsolved[chosen]:
            wrong.append(f"λ={made.alphas[chosen]:.2g} is chosen, whose systems were not solved, as a warning says")
        known = [a for a in np.flatnonzero(has_score) if not slack[a].is_nan() and not is_unsolved[a]]
        if chosen not in known:
            continue
        best = max(known, key=lambda a: means[a].mid())
        gap, room = means[best] - means[chosen], slack[best] + slack[chosen]
        if gap > room:
            wrong.append(
                f"λ={made.alphas[chosen]:.2g} is chosen with {_text(means[chosen])}, where λ={made.alphas[best]:.2g} "
                f"has {_text(means[best])}"
            )
        elif _ratio(room, means[best]) <= limit:
            regret = max(regret, _ratio(gap, means[best]))
    return regret, wrong


def _text(value: arb) -> str:
    return str(value.mid().str(7, radius=False))
