"""Small fits at the edges of float64: what they say of their own errors, against arithmetic of 160 digits or more.

`tests.nightly.accuracy` runs them. Compared are standard deviations of f, certified bounds of variances, likelihoods,
residuals by the model without each row, and intervals by CV+, each of which is asked for by itself. With the matrix
B = [[K + λW⁻¹, 1], [1ᵀ, 0]], or without the row and column of the intercept::

    var f(x) = s² (k(x, x) − qᵀB⁻¹q),  q = [k(X, x); 1],  s² = [y; 0]ᵀB⁻¹[y; 0] / ν,  y − f₋ᵢ = (B⁻¹[y; 0])ᵢ / (B⁻¹)ᵢᵢ

and the likelihood has log |det B|. Where the kernel learns, the models without rows are refits. Float64 arithmetic of
the same formulae, with K moved by rounding, says what float64 can tell of likelihoods, residuals and intervals;
standard deviations and bounds have to be right, or to come with a warning.
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.linalg
from flint import arb, arb_mat
from numpy.typing import NDArray

from dkrr import KernelRidge
from dkrr.errors import DkrrError
from dkrr.features import NystroemMap
from tests.nightly.accuracy.models import ROUNDING, Problem, certain
from tests.nightly.accuracy.trials import N_NEW, Trial
from tests.precise import gram, matrix, precision, system

Array = NDArray[np.float64]
Numbers = NDArray[np.intp]

BITS = 530
"""160 digits."""
SMALLEST = 1e-300
"""Size of variances below which nothing is compared, but that standard deviations must be as small."""
TOL = 1e-6
"""Relative error that is always allowed to what comes from a factor."""
STD_TOL = 1e-3
"""The same for standard deviations, and for the distance of the bounds of a variance over it."""
ITERATED_TOL = 1e-4
"""The same for the likelihood by conjugate gradient, besides five of its standard errors."""
FACTOR = 100.0
"""By which an error may exceed that of float64 arithmetic."""
ENTRY = 1e-14
"""Relative rounding of entries of K, for which the bounds that are promised for K in float64 do not answer."""
DRAWS = 4
"""Of moved inputs, besides those that are not: one alone may be right by luck."""
FOLDS = 10
COVERAGE = 0.8
WHAT = ("std", "bounds", "likelihood", "loo", "interval")
"""What is asked for; the number of standard deviations is of training rows and new ones."""
ILL_CONDITIONED = 1e-2


@dataclass(frozen=True)
class PosteriorOutcome:
    """Result of one fit: how it ended, and its errors."""

    trial: Trial
    ended: str
    how: str = ""
    errors: dict[str, float] = field(default_factory=dict)
    """Largest relative error by what was asked for, where nothing warned of it and float64 can tell."""
    ill_conditioned: tuple[str, ...] = ()
    """What float64 arithmetic does not determine to 1e-2."""
    dishonest: tuple[str, ...] = ()
    surprising: tuple[str, ...] = ()

    def __str__(self) -> str:
        one = self.trial
        also = [
            *(f"{k}={v}" for k, v in one.settings.items()),
            *(["intercept"] if one.fit_intercept else []),
            *(["weights"] if one.sample_weight is not None else []),
        ]
        found = ", ".join(f"{what} {error:.0e}" for what, error in self.errors.items())
        what = f"{one.kernel!r} n={len(one.y)} t={one.y.shape[1]} λ={one.alpha:.2g}"
        return f"{one.name} {what} {' '.join(also)}: {self.ended} by {self.how}, {found}"


@dataclass
class Values:
    """What is asked for, in float64, or with numbers of flint as objects."""

    variances: Any
    """s² times this; for s² = 1, of training rows and new ones, (n + m,)."""
    scales: Any
    """s² of every target."""
    likelihood: Any
    """(t,)."""
    loo: Any
    """(n, t)."""
    fold_errors: Any
    """y − f of the rows by the models without their folds, (n, t)."""
    fold_predictions: Any
    """Of the new rows by those models, (folds, m, t)."""


def _folds(n: int) -> list[Numbers]:
    return [np.asarray(part) for part in np.array_split(np.arange(n), min(FOLDS, n))]


def problem_of(one: Trial) -> Problem:
    """The rows, new ones behind them, as models of training sets take them."""
    is_precomputed = one.kernel == "precomputed"
    X = [*one.X, *one.X_new] if isinstance(one.X, list) else np.vstack([one.X, one.X_new])
    weights = np.ones(len(one.y)) if one.sample_weight is None else one.sample_weight
    return Problem(X, one.y, one.kernel, weights, one.fit_intercept, is_precomputed=is_precomputed)


def exact(one: Trial) -> Values:
    """Everything in 160 digits or more.

    Raises
    ------
    ArithmeticError
        If 1,800 digits do not suffice.
    """
    problem = problem_of(one)
    n, t = one.y.shape
    all_rows = np.arange(n)
    used = np.flatnonzero(problem.weights > 0)
    new = np.arange(n, n + N_NEW)

    def compute() -> tuple[list[arb], list[arb], list[arb], list[list[arb]]]:
        k, y = problem.gram(all_rows), matrix(one.y)
        weights = [arb(float(w)) for w in problem.weights]
        b = system(k, used.tolist(), weights, one.alpha, fit_intercept=one.fit_intercept)
        ones = [arb(1)] * one.fit_intercept
        right = arb_mat([[y[int(i), c] for c in range(t)] for i in used] + [[arb(0)] * t] * one.fit_intercept)
        inverse = b.inv()
        solution = inverse * right
        degrees = len(used) - one.fit_intercept
        scales = [sum((right[i, c] * solution[i, c] for i in range(len(used))), arb(0)) / degrees for c in range(t)]
        determinant = abs(b.det())
        log = determinant.log()
        likelihood = [
            -arb(degrees) / 2 * (1 + (2 * arb.pi() * s).log()) - log / 2 if s > 0 else arb(math.inf) for s in scales
        ]
        variances = []
        if not problem.is_precomputed:
            crosses = [[k[i, int(j)] for j in used] + ones for i in range(n + N_NEW)]
            q = arb_mat(crosses)
            products = q * inverse
            diagonal = _diagonal(problem, all_rows)
            variances = [
                diagonal[i] - sum((products[i, j] * q[i, j] for j in range(q.ncols())), arb(0))
                for i in range(n + N_NEW)
            ]
        fitted = arb_mat([[k[i, int(j)] for j in used] + ones for i in range(n)]) * solution
        loo = [[y[i, c] - fitted[i, c] for c in range(t)] for i in range(n)]
        for place, i in enumerate(used):
            loo[i] = [solution[place, c] / inverse[place, place] for c in range(t)]
        return variances, scales, likelihood, loo

    variances, scales, likelihood, loo = certain(
        compute, lambda found: [*found[0], *found[1], *(v for row in found[3] for v in row)], BITS
    )
    with precision():
        if problem.learns:
            loo = []
            for i in range(n):
                found = problem.predictions(one.alpha, np.delete(all_rows, i), np.array([i]), BITS)
                loo.append([arb(float(one.y[i, c])) - found[0, c] for c in range(t)])
        errors: Any = np.empty((n, t), object)
        predictions: Any = np.empty((min(FOLDS, n), N_NEW, t), object)
        for f, fold in enumerate(_folds(n)):
            train = np.setdiff1d(all_rows, fold)
            if not (problem.weights[train] > 0).any():
                raise ArithmeticError("a fold leaves no row of positive weight")
            found = problem.predictions(one.alpha, train, np.concatenate([fold, new]), BITS)
            for place, i in enumerate(fold):
                errors[i] = [arb(float(one.y[i, c])) - found[place, c] for c in range(t)]
            for place in range(N_NEW):
                predictions[f, place] = [found[len(fold) + place, c] for c in range(t)]
        return Values(variances, scales, likelihood, np.array(loo, object), errors, predictions)


def _diagonal(problem: Problem, train: Numbers) -> list[arb]:
    """k(x, x) of all rows."""
    kernel, X = problem.learned(train)
    if isinstance(kernel, NystroemMap):
        cross = gram(kernel.base, X, kernel.centres)
        inner = gram(kernel.base, kernel.centres).solve(cross.transpose())
        return [sum((cross[i, j] * inner[j, i] for j in range(cross.ncols())), arb(0)) for i in range(cross.nrows())]
    return [gram(kernel, X[i : i + 1])[0, 0] for i in range(len(X))]


def rounded(one: Trial, form: str, rng: np.random.Generator | None) -> Values:
    """Likelihood and residuals by float64 arithmetic in the same form, with K moved by rounding; models by refits."""
    problem = problem_of(one)
    n, t = one.y.shape
    all_rows, used = np.arange(n), np.flatnonzero(problem.weights > 0)
    loo = np.full((n, t), np.nan)
    errors, predictions = np.full((n, t), np.nan), np.full((min(FOLDS, n), N_NEW, t), np.nan)
    likelihood = np.full(t, np.nan)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for i in range(n):
            rest = np.delete(all_rows, i)
            loo[i] = one.y[i] - problem.rounded_predictions(one.alpha, rest, np.array([i]), form, rng)[0][0]
        for f, fold in enumerate(_folds(n)):
            at = np.concatenate([fold, np.arange(n, n + N_NEW)])
            found, _ = problem.rounded_predictions(one.alpha, np.setdiff1d(all_rows, fold), at, form, rng)
            errors[fold], predictions[f] = one.y[fold] - found[: len(fold)], found[len(fold) :]
        k = problem.entries(all_rows)[:n]
        k = k if rng is None else k * (1 + ROUNDING * rng.uniform(-1, 1, k.shape))
        root, y = np.sqrt(problem.weights[used]), one.y[used]
        unit = np.abs(y).max() or 1.0
        b = root[:, None] * k[np.ix_(used, used)] * root + one.alpha * np.eye(len(used))
        b, right = np.tril(b) + np.tril(b, -1).T, root[:, None] * y / unit
        if one.fit_intercept:
            b = np.block([[b, root[:, None]], [root, np.zeros(1)]])
            right = np.vstack([right, np.zeros(t)])
        if np.isfinite(b).all():
            degrees = len(used) - one.fit_intercept
            scales = np.einsum("ic,ic->c", right, scipy.linalg.solve(b, right, assume_a="sym")) / degrees
            log = np.linalg.slogdet(b)[1] - 2 * np.log(root).sum()
            likelihood = -degrees / 2 * (1 + np.log(2 * math.pi * scales) + 2 * np.log(unit)) - log / 2
    return Values(None, None, likelihood, loo, errors, predictions)


@dataclass
class Asked:
    """Answer to one question."""

    values: Any = None
    warned: bool = False
    refused: str = ""
    raw: str = ""
    others: tuple[str, ...] = ()


def _ask(question: Callable[[], Any]) -> Asked:
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            values = question()
    except DkrrError as error:
        return Asked(refused=f"{type(error).__name__}: {error}")
    except Exception as error:  # what a user would see, whatever it is
        return Asked(raw=f"{type(error).__name__}: {error}")
    ours = [w for w in caught if w.category.__module__.startswith("dkrr")]
    others = {f"{w.category.__name__}: {w.message}" for w in caught if w not in ours}
    return Asked(values, bool(ours), others=tuple(sorted(others)))


def run(one: Trial) -> PosteriorOutcome:
    """Fit one trial, ask it for everything, and compare."""
    made = KernelRidge(one.alpha, kernel=one.kernel, fit_intercept=one.fit_intercept, progress=False, **one.settings)
    fitted = _ask(lambda: made.fit(one.X, one.y.copy(), one.sample_weight))
    if fitted.raw:
        return PosteriorOutcome(one, "error", dishonest=(f"an error that is not dkrr's own: {fitted.raw}",))
    if fitted.refused:
        return PosteriorOutcome(one, fitted.refused.split(":")[0])
    X = one.X + one.X_new if isinstance(one.X, list) else np.vstack([one.X, one.X_new])
    asked = {
        "std": _ask(lambda: made.predict(X, return_std=True)[1]),
        "bounds": _ask(lambda: made.predict_variance_bounds(X, scale=1.0)),
        "likelihood": _ask(lambda: (made.log_marginal_likelihood_, made.log_marginal_likelihood_std_)),
        "loo": _ask(lambda: made.loo_residuals_),
        "interval": _ask(lambda: made.predict_interval(one.X_new, coverage=COVERAGE, cv=FOLDS)),
    }
    if one.kernel == "precomputed":  # k(x, x) is not known
        del asked["std"], asked["bounds"]
    return judge(one, made.plan_.form, made, asked)


def judge(one: Trial, form: str, made: Any, asked: dict[str, Asked]) -> PosteriorOutcome:
    """Compare the answers of a fit.

    Parameters
    ----------
    one : Trial
    form : {"primal", "dual"}
    made : KernelRidge
        Fitted.
    asked : dict of Asked
    """
    plan = _ask(lambda: made.uncertainty_plan_).values  # an error where there was no choice
    how = f"{form}{' iterated' if plan is not None and plan.method != 'factor' else ''}"
    dishonest = [f"{what}: an error that is not dkrr's own: {a.raw}" for what, a in asked.items() if a.raw]
    surprising = [f"{what} refused: {a.refused}" for what, a in asked.items() if a.refused]
    surprising += [f"{what}: {text}" for what, a in asked.items() for text in a.others]
    ended = "warned" if any(a.warned for a in asked.values()) else "answered"
    if any(a.refused for a in asked.values()):
        ended = "refused in part"
    answered = {what: a for what, a in asked.items() if a.values is not None}
    try:
        right = exact(one)
    except ArithmeticError:
        return PosteriorOutcome(one, f"{ended}, beyond all digits", how, dishonest=tuple(dishonest))
    with precision():
        around = [rounded(one, form, np.random.default_rng(k) if k else None) for k in range(DRAWS + 1)]
        errors, ill = dict[str, float](), list[str]()
        for what, answer in answered.items():
            error, allowed, text = _CHECKS[what](one, right, around, answer.values)
            if not allowed <= ILL_CONDITIONED and what not in ("std", "bounds"):
                ill.append(what)
            if not error <= allowed:  # a NaN fails
                if not answer.warned:
                    dishonest.append(f"{what}{text} off by {error:.1e}, allowed {allowed:.1e}")
            elif what not in ill and not answer.warned:
                errors[what] = error
    return PosteriorOutcome(one, ended, how, errors, tuple(ill), tuple(dishonest), tuple(surprising))


def _float(value: arb) -> float:
    return float(value.mid())


def _log_ratio(found: float, value: arb) -> float:
    """|found / value − 1|, also where the value leaves float64."""
    if not math.isfinite(found):
        return 0.0 if math.isinf(found) and value > arb(1e307) else math.inf
    if value <= 0 or abs(value) < arb(1e-290):
        return 0.0 if found <= 1e-280 else math.inf
    return abs(_float((arb(found) / value).mid() - 1))


def _as_table(values: Any, t: int) -> Array:
    return np.asarray(values, np.float64).reshape(-1, t)


def _std(one: Trial, right: Values, _: list[Values], found: Any) -> tuple[float, float, str]:
    table, worst, text = _as_table(found, one.y.shape[1]), 0.0, ""
    for (i, c), value in np.ndenumerate(table):
        expected = abs(right.variances[i] * right.scales[c]).sqrt()
        if right.variances[i] < arb(SMALLEST):  # as k(x, x) may be, which float64 then holds as 0
            off = 0.0 if value >= 0 and arb(float(value)) ** 2 <= arb(SMALLEST) * abs(right.scales[c]) else math.inf
        else:
            off = _log_ratio(float(value), expected)
        if not off <= worst:
            worst = off
            text = (
                f" of row {i}{' (new)' if i >= len(one.y) else ''} is {value:.3e}, and {_float(expected):.3e} is right:"
            )
    return worst, STD_TOL, text


def _bounds(one: Trial, right: Values, _: list[Values], found: Any) -> tuple[float, float, str]:
    """Largest width over the variance; by how much a bound does not hold, beyond what rounding of K explains."""
    lower, upper = (_as_table(part, one.y.shape[1])[:, 0] for part in found)
    worst, text = 0.0, ""
    slack = _entry_effects(one)
    for i, variance in enumerate(right.variances):
        low, high, size = float(lower[i]), float(upper[i]), abs(variance) + arb(SMALLEST)
        if not low <= high:
            return math.inf, STD_TOL, f" of row {i} are {low:.3e} and {high:.3e},"
        beyond = max(arb(low) - variance, variance - arb(high) if high < math.inf else -size, key=lambda v: v.mid())
        if _float((beyond - arb(slack[i])) / size) > TOL:
            return math.inf, STD_TOL, f" of row {i} are {low:.3e} and {high:.3e}, and {_float(variance):.3e} is right:"
        width = _float((arb(high) - arb(low)) / size) if high < math.inf else math.inf
        if width > worst and arb(high) - arb(low) > arb(slack[i]):
            worst, text = (
                width,
                f" of row {i} are {low:.3e} and {high:.3e}, without a word; {_float(variance):.3e} is right:",
            )
    return worst, 1.1 * STD_TOL, text


def _entry_effects(one: Trial) -> Array:
    """By how much rounded entries of K move variances for s² = 1: eps (Σ |vᵢ| √kᵢᵢ)², v = [1; −B⁻¹q]."""
    problem = problem_of(one)
    n, all_rows, used = len(one.y), np.arange(len(one.y)), np.flatnonzero(problem.weights > 0).tolist()
    with precision():
        k = problem.gram(all_rows)
        weights = [arb(float(w)) for w in problem.weights]
        b = system(k, used, weights, one.alpha, fit_intercept=one.fit_intercept)
        ones = [arb(1)] * one.fit_intercept
        try:
            v = b.solve(arb_mat([[k[i, j] for j in used] + ones for i in range(n + N_NEW)]).transpose())
        except ZeroDivisionError:
            return np.zeros(n + N_NEW)
        roots = [abs(value).sqrt() for value in _diagonal(problem, all_rows)]
        total = [
            roots[i] + sum((abs(v[p, i]) * roots[j] for p, j in enumerate(used)), arb(0)) for i in range(n + N_NEW)
        ]
        found = np.array([_float(arb(ENTRY) * s * s) for s in total])
        return np.where(np.isfinite(found), found, 0.0)


def _likelihood(one: Trial, right: Values, around: list[Values], found: Any) -> tuple[float, float, str]:
    values, spread = (np.atleast_1d(np.asarray(part, np.float64)) for part in found)
    n = len(one.y)
    expected = [_float(v) for v in right.likelihood]
    if not np.isfinite(expected).all():
        return 0.0, TOL, ""
    size = n + float(np.abs(expected).max())
    off = float(np.abs(values - expected).max() / size)
    shared = max(float(np.abs(a.likelihood - expected).max()) for a in around) / size
    shared = shared if math.isfinite(shared) else math.inf
    tol = ITERATED_TOL if spread.any() else TOL
    return (
        off,
        tol + FACTOR * shared + 5 * float(spread.max()) / size,
        f" is {values}, and {np.round(expected, 6)} is right:",
    )


def _of_rows(found: Array, expected: Any, around: list[Array]) -> tuple[float, float, str]:
    """Largest error and what is allowed there: of the place that exceeds it most, or else of all."""
    middle = sorted(abs(v).mid() for v in expected.ravel())[expected.size // 2]
    places = [p for p, right in np.ndenumerate(expected) if arb(1e-290) < max(abs(right).mid(), middle) < arb(1e300)]
    if not places:
        return 0.0, TOL, ""

    def errors(values: Array) -> Array:
        """Relative to the larger of the right number and the median; infinite for what is not a number."""
        off = [
            _float(abs(arb(float(values[p])) - expected[p]) / max(abs(expected[p]).mid(), middle))
            if math.isfinite(values[p]) else math.inf
            for p in places
        ]  # fmt: skip
        return np.array(off)

    shared = np.max([errors(values) for values in around], axis=0)
    allowed = TOL + FACTOR * shared
    off = errors(found)
    with np.errstate(invalid="ignore"):
        beyond = np.where(np.isinf(allowed), 0.0, off / allowed)
    worst = int(np.argmax(beyond))
    if beyond[worst] > 1:
        place = places[worst]
        text = f" of row {place[0]} is {found[place]:.4e}, and {_float(expected[place]):.4e} is right:"
        return float(off[worst]), float(allowed[worst]), text
    return float(np.max(off[allowed <= ILL_CONDITIONED], initial=0.0)), float(allowed.max()), ""


def _loo(one: Trial, right: Values, around: list[Values], found: Any) -> tuple[float, float, str]:
    return _of_rows(_as_table(found, one.y.shape[1]), right.loo, [a.loo for a in around])


def _interval(one: Trial, right: Values, around: list[Values], found: Any) -> tuple[float, float, str]:
    t = one.y.shape[1]
    weights = np.ones(len(one.y)) if one.sample_weight is None else one.sample_weight
    kept = weights > 0
    lower, upper = (_as_table(part, t) for part in found)
    expected = _cv_plus(right, kept)
    each = [_cv_plus(a, kept) for a in around]
    results = [_of_rows(bound, expected[k], [e[k] for e in each]) for k, bound in enumerate((lower, upper))]
    return max(results, key=lambda r: r[0] / r[1])


def _cv_plus(values: Values, kept: NDArray[np.bool_]) -> tuple[Any, Any]:
    """Lower and upper bounds, (m, t) each."""
    fold_of = np.concatenate([np.full(len(fold), f) for f, fold in enumerate(_folds(len(kept)))])[kept]
    errors, n = values.fold_errors[kept], int(kept.sum())
    sizes = abs(errors)
    high = math.ceil(COVERAGE * (n + 1)) - 1
    _, m, t = values.fold_predictions.shape
    lower, upper = (np.empty((m, t), sizes.dtype) for _ in range(2))
    for i in range(m):
        for c in range(t):
            each = values.fold_predictions[fold_of, i, c]
            key = (lambda v: v.mid()) if sizes.dtype == object else float
            below, above = sorted(each - sizes[:, c], key=key), sorted(each + sizes[:, c], key=key)
            infinite = arb(math.inf) if sizes.dtype == object else math.inf
            lower[i, c] = below[n - 1 - high] if n - 1 - high >= 0 else -infinite
            upper[i, c] = above[high] if high < n else infinite
    return lower, upper


_CHECKS: dict[str, Callable[[Trial, Values, list[Values], Any], tuple[float, float, str]]] = {
    "std": _std,
    "bounds": _bounds,
    "likelihood": _likelihood,
    "loo": _loo,
    "interval": _interval,
}
