"""Small searches at the edges of float64 against a refit of every fold and λ in 60 digits or more.

The campaign runs them. A trial is an ordinary regression with folds of some splitter, several λ, and what its
class changes. Its scores are those of `models`, and a float64 refit of the same form, with inputs moved by
rounding, says what float64 can tell of each: a score may be off by 100 times that, and by 1e-6 of itself. Right sides
of conjugate gradient are moved by the residual that it promises: `cv_tol`, or ten times the errors of the rows held
out, over the targets, times that.
"""

import math
import re
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from flint import arb
from numpy.typing import NDArray
from sklearn.model_selection import GroupKFold, KFold, ShuffleSplit, TimeSeriesSplit

from dkrr import KernelRidgeCV
from dkrr.errors import DkrrError
from dkrr.features import Nystroem
from dkrr.kernels import RBF, BagOfWords, Laplacian, Linear, Polynomial
from dkrr.kernels.nystroem import Pivots
from tests.nightly.accuracy.checks import Array, Exact, exact
from tests.nightly.accuracy.models import ROUNDING, Numbers, Problem
from tests.nightly.accuracy.trials import Outcome, Trial, ask, named, ordinary
from tests.precise import precision

MAX_LOO_ROWS = 24
SEED = 20_12


@dataclass(frozen=True)
class Search:
    """One search."""

    name: str
    X: Any
    """Rows, documents, or the Gram matrix."""
    y: Array
    """(n, t)."""
    alphas: Array
    kernel: Any
    fit_intercept: bool
    sample_weight: Array | None
    cv: Any
    groups: Array | None
    settings: dict[str, Any] = field(default_factory=dict)
    """form, solver, alpha_per_target, scoring, early_stopping."""

    @property
    def problem(self) -> Problem:
        """The rows, as models of training sets take them."""
        weights = np.ones(len(self.y)) if self.sample_weight is None else self.sample_weight
        return Problem(self.X, self.y, self.kernel, weights, self.fit_intercept)

    def pairs(self) -> list[tuple[Numbers, Numbers]]:
        """Training rows and rows held out of every fold, in ascending order."""
        n = len(self.y)
        if self.cv == "loo":
            return [(np.delete(np.arange(n), i), np.array([i])) for i in range(n)]
        found = self.cv.split(np.zeros((n, 1)), groups=self.groups if isinstance(self.cv, GroupKFold) else None)
        return [(np.sort(train), np.sort(test)) for train, test in found]


def _search(one: Trial, rng: np.random.Generator) -> Search:
    """Search of a regression: a splitter, λ, and settings."""
    n, cv = len(one.y), int(rng.integers(6))
    n = min(n, MAX_LOO_ROWS) if cv == 0 else n
    folds, seeds = KFold(int(rng.integers(2, 6))), [int(rng.integers(99)) for _ in range(2)]
    splitters = ["loo", folds, KFold(4, shuffle=True, random_state=seeds[0])]
    splitters += [ShuffleSplit(3, test_size=0.3, random_state=seeds[1]), GroupKFold(3), TimeSeriesSplit(3)]
    alphas = 10 ** rng.uniform(-4, 1, int(rng.integers(2, 6)))
    settings: dict[str, Any] = {
        "form": ["auto", "dual", "primal"][int(rng.integers(3))],
        "solver": ["auto", "cholesky", "cg"][int(rng.choice(3, p=[0.4, 0.35, 0.25]))],
        "alpha_per_target": bool(rng.random() < 0.3),
        "scoring": "neg_mean_squared_error" if rng.random() < 0.25 else None,
        "early_stopping": bool(rng.random() < 0.3),
    }
    weights = None if one.sample_weight is None else one.sample_weight[:n]
    kernel = one.kernel if not isinstance(one.kernel, RBF) or rng.random() < 0.5 else Linear()
    groups = rng.integers(0, 7, n).astype(float)
    groups[:7] = np.arange(7)
    of_trial = one.name, one.X[:n], one.y[:n], alphas, kernel, one.fit_intercept, weights
    return Search(*of_trial, splitters[cv], groups, settings)


def search(of_class: str, number: int) -> Search:
    """Return one search of a class, always the same one.

    Parameters
    ----------
    of_class : str
        A key of CLASSES.
    number : int
        From 0.
    """
    rng = np.random.default_rng([SEED, list(CLASSES).index(of_class), number])
    made: Search = CLASSES[of_class](_search(ordinary(rng, f"{of_class}:{number}", logistic=0.0), rng), rng)
    if made.settings["form"] == "primal" and not isinstance(made.kernel, Linear | Polynomial | Nystroem):
        made = replace(made, settings=made.settings | {"form": "dual"})
    if made.cv == "loo" and isinstance(made.kernel, BagOfWords | Nystroem):
        made = replace(made, cv=KFold(4))
    # What has no formula for these folds, or no factor, is refused.
    no_factor = isinstance(made.cv, ShuffleSplit | TimeSeriesSplit) and made.settings["solver"] == "cholesky"
    if no_factor or (made.cv == "loo" and made.settings["solver"] == "cg"):
        made = replace(made, settings=made.settings | {"solver": "auto"})
    return made


def _ordinary(one: Search, _: np.random.Generator) -> Search:
    """Standard normal rows, λ 1e-4 … 10."""
    return one


def _lambda(one: Search, rng: np.random.Generator) -> Search:
    """λ from 1e-15 to 1e15."""
    return replace(one, alphas=10 ** rng.uniform(-15, rng.choice([0, 15]), 5))


def _rows(one: Search, rng: np.random.Generator) -> Search:
    """X times 1e±8 or 1e±150, mostly with the λ or γ that makes it the same problem."""
    scale = 10.0 ** rng.choice([-150, -8, 8, 150])
    kernel = [Linear(), RBF(gamma=0.4 / scale / scale), Laplacian(gamma=0.3 / scale)][int(rng.integers(3))]
    fits = isinstance(kernel, Linear) and rng.random() < 0.7
    return replace(one, X=one.X * scale, kernel=kernel, alphas=one.alphas * scale * scale if fits else one.alphas)


def _targets(one: Search, rng: np.random.Generator) -> Search:
    """Targets times 1e±8, 1e±60 or 1e±118."""
    return replace(one, y=one.y * 10.0 ** rng.choice([-118, -60, -8, 8, 60, 118]))


def _weights(one: Search, rng: np.random.Generator) -> Search:
    """Weights over 12 orders, at times with zeros, or one of 1e10 … 1e17 among ones, often dual with intercept."""
    n = len(one.y)
    if rng.random() < 0.4:
        one = replace(one, fit_intercept=True, settings=one.settings | {"form": "dual", "solver": "auto"})
    weights = np.ones(n) if rng.random() < 0.4 else 10 ** rng.uniform(-6, 6, n)
    if weights.max() == 1:
        weights[int(rng.integers(n))] = 10 ** rng.uniform(10, 17)
    elif rng.random() < 0.5 and one.cv != "loo":
        weights[::4] = np.where(rng.random(len(weights[::4])) < 0.5, 0.0, weights[::4])
    return replace(one, sample_weight=weights)


def _of_features(one: Search, rng: np.random.Generator) -> Search:
    polynomial = Polynomial(degree=2) if rng.random() < 0.3 and one.X.shape[1] < 4 else Linear()
    return replace(one, kernel=polynomial, alphas=10 ** rng.uniform(-6, 4, 3))


def _dominated(one: Search, rng: np.random.Generator) -> Search:
    """Rows of one fold, or one row, times 1e5 … 1e9, linear or quadratic."""
    one, n = _of_features(one, rng), len(one.y)
    X = one.X.copy()
    rows = one.pairs()[0][1] if rng.random() < 0.6 else rng.integers(n, size=1)
    X[rows] *= 10 ** rng.uniform(5, 9 if isinstance(one.kernel, Linear) else 5)
    y = one.y + np.where(rng.random() < 0.5, X @ (10 ** rng.uniform(-9, -6, (X.shape[1], 1))), 0.0)
    return replace(one, X=X, y=y)


def _leverage(one: Search, rng: np.random.Generator) -> Search:
    """A column that is 0 but in one row, 1e3 … 1e8 there, linear; half of them leave one row out."""
    one = replace(_of_features(one, rng), kernel=Linear())
    if rng.random() < 0.5:
        n = min(len(one.y), MAX_LOO_ROWS)
        weights = None if one.sample_weight is None else one.sample_weight[:n]
        one = replace(one, cv="loo", X=one.X[:n], y=one.y[:n], sample_weight=weights, groups=None)
    X = np.column_stack([one.X, np.zeros(len(one.y))])
    X[int(rng.integers(len(X))), -1] = 10 ** rng.uniform(3, 8)
    return replace(one, X=X)


def _learned(one: Search, rng: np.random.Generator) -> Search:
    """Kernels that learn from the training rows: Nyström maps, and rarities of words."""
    n = len(one.y)
    one = replace(one, alphas=10 ** rng.uniform(-8, 1, 3))
    if rng.random() < 0.6:
        base = [RBF(gamma=1.0), Laplacian(gamma=0.5), Polynomial(degree=2)][int(rng.integers(3))]
        pivots: Pivots = "uniform" if rng.random() < 0.5 else "rpcholesky"
        return replace(one, kernel=Nystroem(base, int(rng.integers(3, max(4, n // 5))), pivots=pivots))
    return replace(one, X=documents(rng, n), kernel=BagOfWords())


def documents(rng: np.random.Generator, n: int) -> list[str]:
    """Texts of 2 to 9 words, some of which are rare."""
    return [" ".join(f"w{int(k):02d}" for k in rng.zipf(1.4, int(rng.integers(2, 10))) % 40) for _ in range(n)]


def _precomputed(one: Search, rng: np.random.Generator) -> Search:
    """Gram matrices that are given, λ 1e-8 … 1e3."""
    k = np.asarray(one.kernel.resolved(one.X.shape[1])(one.X, one.X), np.float64)
    return replace(one, X=np.tril(k) + np.tril(k, -1).T, kernel="precomputed", alphas=10 ** rng.uniform(-8, 3, 4))


def _close(one: Search, rng: np.random.Generator) -> Search:
    """Rows given twice, nearly, or all near each other; λ 1e-12 … 1."""
    n, kind = len(one.y), int(rng.integers(3))
    X = one.X.copy()
    half = n // 2
    X[half : 2 * half] = X[:half] + (1e-9 if kind else 0.0) * rng.standard_normal((half, X.shape[1]))
    X = X * 1e-3 if kind == 2 else X
    return replace(one, X=X, alphas=10 ** rng.uniform(-12, 0, 4))


def _offset(one: Search, rng: np.random.Generator) -> Search:
    """X + 1 … 1e7, targets + 1 … 1e7."""
    return replace(one, X=one.X + 10 ** rng.uniform(0, 7), y=one.y + 10 ** rng.uniform(0, 7))


def _cg(one: Search, rng: np.random.Generator) -> Search:
    """Conjugate gradient for λ from 1e-12 to 10, narrow and wide kernels."""
    kernel = [RBF(gamma=0.1), RBF(gamma=0.01), Laplacian(gamma=0.3), Linear(), Polynomial(degree=3)][
        int(rng.integers(5))
    ]
    return replace(one, kernel=kernel, alphas=10 ** rng.uniform(-12, 1, 4), settings=one.settings | {"solver": "cg"})


def _mixed(one: Search, rng: np.random.Generator) -> Search:
    """Two or three of these at once."""
    for name in rng.choice(["search-weights", "search-targets", "search-lambda", "search-offset"], 2, replace=False):
        one = CLASSES[str(name)](one, rng)
    return _dominated(one, rng) if rng.random() < 0.4 else one


CLASSES = named(_ordinary, _lambda, _rows, _targets, _weights, _dominated, prefix="search-")
CLASSES |= named(_leverage, _learned, _precomputed, _close, _offset, _cg, _mixed, prefix="search-")
"""New classes are appended, since seeds count them."""


# Verdicts

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
        return Outcome(one, type(answer.error).__name__, dishonest=answer.raw)
    return judge(one, made, answer.own)


@dataclass(frozen=True)
class ExactScores:
    """Scores of every λ, fold (or one for leave-one-out) and target (or one for all)."""

    values: Exact
    """Of shape (n_alphas, n_folds, k)."""
    allowed: Exact
    """Error that each may have."""


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


def judge(one: Search, made: KernelRidgeCV, messages: tuple[str, ...]) -> Outcome:
    """Compare a search with exact scores.

    Parameters
    ----------
    one : Search
    made : KernelRidgeCV
        Fitted.
    messages : tuple of str
        What it warned of.
    """
    plan = made.selection_plan_
    solver = one.settings["solver"] if plan is None else str(plan.plan.solver)
    by_refits = plan is not None and plan.method == "refits" and "gradient" in solver
    is_iterative = solver == "cg" or by_refits or (plan is not None and plan.method == "sweep")
    form = "dual" if plan is None else plan.plan.form
    how = f"{'fits' if plan is None else plan.method} {form}{' cg' if is_iterative else ''}"
    ended = "warned" if messages else "scored"
    try:
        right = scores(one, form, made.cv_tol if is_iterative else 0.0)
    except ArithmeticError:
        return Outcome(one, f"{ended}, beyond all digits", how)
    results = made.cv_results_
    n_alphas, n_values, k = right.values.shape
    expected, slack = (part.mean(axis=1) for part in (right.values, right.allowed))
    if k > 1 or one.cv == "loo":
        found = np.vstack(results["mean_test_score_per_target" if k > 1 else "mean_test_score"])
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
                    is_off[a], right_is = True, f"{_text(e)} is right: off by {off:.1e}, allowed {allowed:.1e}"
                    dishonest += [f"the score of {where} is {value:.6g}, and {right_is}"] * (not is_warned[a])
                elif allowed <= limit and abs(e) > arb(10) ** -290 and not is_warned[a]:
                    largest = max(largest, off)
        regret, wrong = _choice(made, right, is_warned & (is_off | (results["residual"] > 2 * made.cv_tol)), limit)
    errors = {"by conjugate gradient" if is_iterative else "direct": largest, "regret": regret}
    return Outcome(one, ended, how, errors, ill, (*dishonest, *wrong))


def _choice(
    made: KernelRidgeCV, right: ExactScores, is_unsolved: NDArray[np.bool_], limit: float
) -> tuple[float, list[str]]:
    """Relative distance of the chosen λ's exact score from the best that has one, and what is wrong with the choice."""
    regret, wrong, alphas = 0.0, list[str](), np.asarray(made.alphas)
    has_score = ~np.isnan(made.cv_results_["mean_test_score"])
    for c in range(right.values.shape[2]):
        means, slack = (part[:, :, c].mean(axis=1) for part in (right.values, right.allowed))
        chosen = int(np.atleast_1d(made.best_index_)[c])
        if is_unsolved[chosen]:
            wrong.append(f"λ={alphas[chosen]:.2g} is chosen, whose systems were not solved, as a warning says")
        known = [a for a in np.flatnonzero(has_score) if not slack[a].is_nan() and not is_unsolved[a]]
        if chosen not in known:
            continue
        best = max(known, key=lambda a: means[a].mid())
        gap, room = means[best] - means[chosen], slack[best] + slack[chosen]
        if gap > room:
            better = f"λ={alphas[best]:.2g} has {_text(means[best])}"
            wrong.append(f"λ={alphas[chosen]:.2g} is chosen with {_text(means[chosen])}, where {better}")
        elif _ratio(room, means[best]) <= limit:
            regret = max(regret, _ratio(gap, means[best]))
    return regret, wrong


def _text(value: arb) -> str:
    return str(value.mid().str(7, radius=False))
