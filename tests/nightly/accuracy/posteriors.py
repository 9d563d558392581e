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
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.linalg
from flint import arb, arb_mat

from dkrr import KernelRidge
from dkrr.features import Nystroem
from dkrr.kernels import RBF, BagOfWords, Cosine, Kernel, Laplacian, Linear, Polynomial
from dkrr.kernels.nystroem import NystroemMap, Pivots
from tests.nightly.accuracy import trials
from tests.nightly.accuracy.checks import Array, Exact, exact
from tests.nightly.accuracy.models import Numbers, Problem, bordered, certain, moved
from tests.nightly.accuracy.searches import documents
from tests.nightly.accuracy.trials import N_NEW, Answer, Outcome, Trial, ask, named, ordinary
from tests.precise import gram, precision

MAX_ROWS = 40
MAX_DOCUMENTS = 20
SEED = 20_13


def posterior(of_class: str, number: int) -> Trial:
    """Return one fit of a class, always the same one.

    Parameters
    ----------
    of_class : str
        A key of CLASSES.
    number : int
        From 0.
    """
    rng = np.random.default_rng([SEED, list(CLASSES).index(of_class), number])
    one = ordinary(rng, f"{of_class}:{number}", logistic=0.0)
    n = min(len(one.y), MAX_ROWS)
    weights = None if one.sample_weight is None else one.sample_weight[:n]
    one = replace(one, X=one.X[:n], y=one.y[:n], sample_weight=weights)
    made: Trial = CLASSES[of_class](one, rng)
    if made.settings["form"] == "primal" and not isinstance(made.kernel, Linear | Cosine | Polynomial | Nystroem):
        return replace(made, settings=made.settings | {"form": "dual"})
    return made


def _small(one: Trial, rng: np.random.Generator) -> Trial:
    """λ from 1e-15 to 1e-6, kernels from narrow to wide."""
    kernel: Kernel = [RBF, Laplacian][int(rng.integers(2))](gamma=float(10 ** rng.uniform(-3, 1)))
    kernel = kernel if rng.random() < 0.8 else Polynomial(degree=2)
    return replace(one, kernel=kernel, alpha=float(10 ** rng.uniform(-15, -6)))


def _leverage(one: Trial, rng: np.random.Generator) -> Trial:
    """A column that is 0 but in one row, or a row times 1e3 … 1e8, linear."""
    X, row = one.X.copy(), int(rng.integers(len(one.y)))
    X_new, size = one.X_new, 10 ** rng.uniform(3, 8)
    if rng.random() < 0.6:
        X, X_new = (np.column_stack([A, np.zeros(len(A))]) for A in (X, X_new))
        X[row, -1] = size
    else:
        X[row] *= size
    return replace(one, X=X, X_new=X_new, kernel=Linear(), alpha=float(10 ** rng.uniform(-6, 2)))


def _heavy(one: Trial, rng: np.random.Generator) -> Trial:
    """One weight of 1e8 … 1e17 among ones, mostly with an intercept."""
    weights = np.ones(len(one.y))
    weights[int(rng.integers(len(weights)))] = 10 ** rng.uniform(8, 17)
    return replace(one, sample_weight=weights, fit_intercept=bool(rng.random() < 0.7))


def _nystroem(one: Trial, rng: np.random.Generator) -> Trial:
    """Nyström maps, λ 1e-6 … 1."""
    base = [RBF(gamma=1.0), Laplacian(gamma=0.5), RBF(gamma=0.1)][int(rng.integers(3))]
    pivots: Pivots = "uniform" if rng.random() < 0.5 else "rpcholesky"
    kernel: Any = Nystroem(base, int(rng.integers(3, len(one.y) // 2)), pivots=pivots)
    return replace(one, kernel=kernel, alpha=float(10 ** rng.uniform(-6, 0)))


def _words(one: Trial, rng: np.random.Generator) -> Trial:
    """Documents, whose rarities of words are learned."""
    n = min(len(one.y), MAX_DOCUMENTS)
    found, weights = documents(rng, n + N_NEW), None if one.sample_weight is None else one.sample_weight[:n]
    kernel, alpha = BagOfWords(), float(10 ** rng.uniform(-4, 1))
    return replace(one, X=found[:n], X_new=found[n:], y=one.y[:n], sample_weight=weights, kernel=kernel, alpha=alpha)


def _precomputed(one: Trial, rng: np.random.Generator) -> Trial:
    """Gram matrices that are given."""
    X = np.vstack([one.X, one.X_new])
    k = np.asarray(one.kernel.resolved(X.shape[1])(X, X), np.float64)
    k, n = np.tril(k) + np.tril(k, -1).T, len(one.y)
    kernel: Any = "precomputed"
    return replace(one, X=k[:n, :n], X_new=k[n:, :n], kernel=kernel, alpha=float(10 ** rng.uniform(-8, 2)))


AS_FITS = ("ordinary", "rows-scaled", "targets-scaled", "columns-scaled", "weights", "lambda", "duplicates", "offset")
CLASSES = {f"posterior-{name.split('-')[0]}": trials.CLASSES[name] for name in AS_FITS}
CLASSES |= named(_small, _leverage, _heavy, _nystroem, _words, _precomputed, prefix="posterior-")
"""New classes are appended, since seeds count them."""


# Verdicts

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
Verdict = tuple[float, float, str]
"""Largest error, what is allowed, and where it is."""


@dataclass
class Values:
    """What is asked for, in float64, or with numbers of flint as objects."""

    likelihood: Any
    """(t,)."""
    loo: Any
    """(n, t)."""
    fold_errors: Any
    """y − f of the rows by the models without their folds, (n, t)."""
    fold_predictions: Any
    """Of the new rows by those models, (folds, m, t)."""
    variances: Any = None
    """s² times this; for s² = 1, of training rows and new ones, (n + m,)."""
    scales: Any = None
    """s² of every target."""


class Question:
    """One fit, and what is right of it: rows, new ones behind them, as models of training sets take them."""

    def __init__(self, one: Trial) -> None:
        weights = np.ones(len(one.y)) if one.sample_weight is None else one.sample_weight
        self.one, self.problem = one, Problem(one.all_rows, one.y, one.kernel, weights, one.fit_intercept)
        self.rows, self.new = np.split(np.arange(len(one.y) + N_NEW), [len(one.y)])
        self.folds = np.array_split(self.rows, min(FOLDS, len(self.rows)))
        self.each = np.array_split(self.rows, len(self.rows))

    def without(self, parts: list[Numbers], predictions: Callable[[Numbers, Numbers], Any], y: Any) -> tuple[Any, Any]:
        """Errors of the rows by models without each part of them, and those models' predictions of the new rows."""
        found = [predictions(np.setdiff1d(self.rows, part), np.append(part, self.new)) for part in parts]
        errors = [y[part] - each[: len(part)] for part, each in zip(parts, found, strict=True)]
        return np.vstack(errors), np.array([each[-N_NEW:] for each in found])

    def diagonal(self) -> Exact:
        """k(x, x) of all rows."""
        kernel, X = self.problem.learned(self.rows)
        if isinstance(kernel, NystroemMap):
            cross = gram(kernel.base, X, kernel.centres)
            inner = gram(kernel.base, kernel.centres).solve(cross.transpose())
            found: Exact = (exact(cross) * exact(inner).T).sum(axis=1)
            return found
        return np.array([gram(kernel, X[i : i + 1])[0, 0] for i in range(len(X))], object)

    def exact(self) -> Values:
        """Everything in 160 digits or more.

        Raises
        ------
        ArithmeticError
            If 1,800 digits do not suffice, or a fold leaves no row of positive weight.
        """
        one, problem, used = self.one, self.problem, self.problem.used(self.rows)
        if any(not problem.used(np.setdiff1d(self.rows, fold)).size for fold in self.folds):
            raise ArithmeticError("a fold leaves no row of positive weight")

        def compute() -> tuple[Exact, ...]:
            y, b = exact(one.y), problem.system(self.rows, one.alpha)
            q, right = bordered(problem.gram(self.rows)[:, used], y[used], fit_intercept=one.fit_intercept)
            inverse = exact(b.inv())
            solution = inverse @ right
            degrees = len(used) - one.fit_intercept
            scales = (right * solution).sum(axis=0) / degrees
            log = abs(b.det()).log()
            spread = np.where(scales > 0, np.log(abs(scales) * 2 * arb.pi()), arb(math.inf))
            likelihood = np.where(scales > 0, -(spread + 1) * degrees / 2 - log / 2, arb(math.inf))
            explained = (q @ inverse * q).sum(axis=1)
            variances = explained[:0] if problem.is_precomputed else self.diagonal() - explained
            loo = y - (q @ solution)[: len(y)]
            loo[used] = (solution / np.diag(inverse)[:, None])[: len(used)]
            return variances, scales, loo, likelihood

        variances, scales, loo, likelihood = certain(
            compute, lambda found: [*found[0], *found[1], *(() if problem.learns else found[2].flat)], BITS
        )
        with precision():
            y = exact(one.y)

            def predictions(train: Numbers, at: Numbers) -> Exact:
                return problem.predictions(one.alpha, train, at, BITS)

            if problem.learns:
                loo, _ = self.without(self.each, predictions, y)
            return Values(likelihood, loo, *self.without(self.folds, predictions, y), variances, scales)

    def rounded(self, form: str, rng: np.random.Generator | None) -> Values:
        """Likelihood and residuals by float64 arithmetic in the same form, K moved by rounding; models by refits."""
        one, problem, used = self.one, self.problem, self.problem.used(self.rows)

        def predictions(train: Numbers, at: Numbers) -> Array:
            return problem.rounded_predictions(one.alpha, train, at, form, rng)[0]

        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loo, _ = self.without(self.each, predictions, one.y)
            of_folds = self.without(self.folds, predictions, one.y)
            k = moved(problem.entries(self.rows)[self.rows], rng)
            root, y = np.sqrt(problem.weights[used]), one.y[used]
            unit = np.abs(y).max() or 1.0
            b = root[:, None] * k[np.ix_(used, used)] * root + one.alpha * np.eye(len(used))
            b, right = np.tril(b) + np.tril(b, -1).T, root[:, None] * y / unit
            if one.fit_intercept:
                b = np.block([[b, root[:, None]], [root, np.zeros(1)]])
                right = np.vstack([right, np.zeros(y.shape[1])])
            likelihood = np.full(y.shape[1], np.nan)
            if np.isfinite(b).all():
                degrees = len(used) - one.fit_intercept
                scales = np.einsum("ic,ic->c", right, scipy.linalg.solve(b, right, assume_a="sym")) / degrees
                log = np.linalg.slogdet(b)[1] - 2 * np.log(root).sum()
                likelihood = -degrees / 2 * (1 + np.log(2 * math.pi * scales) + 2 * np.log(unit)) - log / 2
        return Values(likelihood, loo, *of_folds)

    def entry_effects(self) -> Array:
        """By how much rounded entries of K move variances for s² = 1: eps (Σ |vᵢ| √kᵢᵢ)², v = [1; −B⁻¹q]."""
        one, used = self.one, self.problem.used(self.rows)
        with precision():
            k = self.problem.gram(self.rows)[:, used]
            q, _ = bordered(k, k[:0], fit_intercept=one.fit_intercept)
            try:
                v = exact(self.problem.system(self.rows, one.alpha).solve(arb_mat(q.T.tolist())))
            except ZeroDivisionError:
                return np.zeros(len(q))
            roots = np.sqrt(abs(self.diagonal()))
            total = roots + abs(v[: len(used)]).T @ roots[used]
            found = np.array([_float(s * s * ENTRY) for s in total])
            return np.where(np.isfinite(found), found, 0.0)


def run(one: Trial) -> Outcome:
    """Fit one trial, ask it for everything, and compare."""
    made = KernelRidge(one.alpha, kernel=one.kernel, fit_intercept=one.fit_intercept, progress=False, **one.settings)
    fitted = ask(lambda: made.fit(one.X, one.y.copy(), one.sample_weight))
    if fitted.error is not None:
        return Outcome(one, type(fitted.error).__name__, dishonest=fitted.raw)
    return judge(one, made.plan_.form, made, {what: ask(question) for what, question in questions(one, made).items()})


def questions(one: Trial, made: KernelRidge) -> dict[str, Callable[[], Any]]:
    """What is asked of a fit."""
    found = {
        "std": lambda: made.predict(one.all_rows, return_std=True)[1],
        "bounds": lambda: made.predict_variance_bounds(one.all_rows, variance_scale=1.0),
        "likelihood": lambda: (made.log_marginal_likelihood(), made.log_marginal_likelihood_std()),
        "loo": lambda: made.loo_residuals(),
        "interval": lambda: made.predict_interval(one.X_new, coverage=COVERAGE, cv=FOLDS),
    }
    if one.kernel == "precomputed":  # k(x, x) is not known
        del found["std"], found["bounds"]
    return found


def judge(one: Trial, form: str, made: KernelRidge, asked: dict[str, Answer]) -> Outcome:
    """Compare the answers of a fit in primal or dual form."""
    plan = ask(lambda: made.uncertainty_plan_).values  # an error where there was no choice
    how = f"{form}{' iterated' if plan is not None and plan.method != 'factor' else ''}"
    dishonest = [f"{what}: {text}" for what, a in asked.items() for text in a.raw]
    ended = "warned" if any(a.own for a in asked.values()) else "answered"
    if any(a.error is not None and not a.raw for a in asked.values()):
        ended = "refused in part"
    question = Question(one)
    try:
        right = question.exact()
    except ArithmeticError:
        return Outcome(one, f"{ended}, beyond all digits", how, dishonest=tuple(dishonest))
    with precision():
        around = [question.rounded(form, np.random.default_rng(k) if k else None) for k in range(DRAWS + 1)]
        errors, n_ill = dict[str, float](), 0
        for what, answer in asked.items():
            if answer.error is not None:
                continue
            error, allowed, text = _CHECKS[what](question, right, around, answer.values)
            is_ill = not allowed <= ILL_CONDITIONED and what not in ("std", "bounds")
            n_ill += is_ill
            if not error <= allowed and not answer.own:  # a NaN fails
                dishonest.append(f"{what}{text} off by {error:.1e}, allowed {allowed:.1e}")
            elif error <= allowed and not is_ill and not answer.own:
                errors[what] = error
    return Outcome(one, ended, how, errors, n_ill, tuple(dishonest))


def _float(value: arb) -> float:
    return float(value.mid())


def _log_ratio(found: float, value: arb) -> float:
    """|found / value − 1|, also where the value leaves float64."""
    if not math.isfinite(found):
        return 0.0 if math.isinf(found) and value > arb(1e307) else math.inf
    if value <= 0 or abs(value) < arb(1e-290):
        return 0.0 if found <= 1e-280 else math.inf
    return abs(_float((arb(found) / value).mid() - 1))


def _columns(question: Question, values: Any) -> Array:
    return np.asarray(values, np.float64).reshape(-1, question.one.y.shape[1])


def _std(question: Question, right: Values, _: list[Values], found: Any) -> Verdict:
    worst, text = 0.0, ""
    for (i, c), value in np.ndenumerate(_columns(question, found)):
        expected = abs(right.variances[i] * right.scales[c]).sqrt()
        if right.variances[i] < arb(SMALLEST):  # as k(x, x) may be, which float64 then holds as 0
            off = 0.0 if value >= 0 and arb(float(value)) ** 2 <= arb(SMALLEST) * abs(right.scales[c]) else math.inf
        else:
            off = _log_ratio(float(value), expected)
        if not off <= worst:
            worst, text = off, f" of row {i} is {value:.3e}, and {_float(expected):.3e} is right:"
    return worst, STD_TOL, text


def _bounds(question: Question, right: Values, _: list[Values], found: Any) -> Verdict:
    """Largest width over the variance; infinite where a bound does not hold, beyond what rounding of K explains."""
    lower, upper = (_columns(question, part)[:, 0] for part in found)
    worst, text = 0.0, ""
    for variance, slack, low, high, i in zip(
        right.variances, question.entry_effects(), map(float, lower), map(float, upper), range(len(lower)), strict=True
    ):
        size, is_bounded = abs(variance) + arb(SMALLEST), high < math.inf
        said = f" of row {i} are {low:.3e} and {high:.3e}, and {_float(variance):.3e} is right:"
        beyond = max(arb(low) - variance, variance - arb(high) if is_bounded else -size, key=lambda v: v.mid())
        if not low <= high or _float((beyond - arb(slack)) / size) > TOL:
            return math.inf, STD_TOL, said
        width = _float((arb(high) - arb(low)) / size) if is_bounded else math.inf
        if width > worst and arb(high) - arb(low) > arb(slack):
            worst, text = width, said
    return worst, 1.1 * STD_TOL, text


def _likelihood(question: Question, right: Values, around: list[Values], found: Any) -> Verdict:
    values, spread = (np.atleast_1d(np.asarray(part, np.float64)) for part in found)
    expected = np.array([_float(v) for v in right.likelihood])
    if not np.isfinite(expected).all():
        return 0.0, TOL, ""
    size = len(question.rows) + float(np.abs(expected).max())
    off, shared = (np.abs(v - expected).max() / size for v in (values, np.array([a.likelihood for a in around])))
    tol = ITERATED_TOL if spread.any() else TOL
    allowed = tol + FACTOR * (shared if math.isfinite(shared) else math.inf) + 5 * spread.max() / size
    return float(off), float(allowed), f" is {values}, and {np.round(expected, 6)} is right:"


def _of_rows(found: Array, expected: Any, around: list[Array]) -> Verdict:
    """Largest error and what is allowed there: of the place that exceeds it most, or else of all."""
    middle = sorted(abs(v).mid() for v in expected.ravel())[expected.size // 2]
    places = [p for p, right in np.ndenumerate(expected) if arb(1e-290) < max(abs(right).mid(), middle) < arb(1e300)]
    if not places:
        return 0.0, TOL, ""

    def errors(values: Array) -> Array:
        """Relative to the larger of the right number and the median; infinite for what is not a number."""
        pairs = [(float(values[p]), expected[p]) for p in places]
        off = [abs(arb(value) - right) / max(abs(right).mid(), middle) for value, right in pairs]
        return np.array([_float(v) if math.isfinite(f) else math.inf for v, (f, _) in zip(off, pairs, strict=True)])

    allowed = TOL + FACTOR * np.max([errors(values) for values in around], axis=0)
    off = errors(found)
    with np.errstate(invalid="ignore"):
        beyond = np.where(np.isinf(allowed), 0.0, off / allowed)
    worst = int(np.argmax(beyond))
    if beyond[worst] > 1:
        place = places[worst]
        text = f" of row {place[0]} is {found[place]:.4e}, and {_float(expected[place]):.4e} is right:"
        return float(off[worst]), float(allowed[worst]), text
    return float(np.max(off[allowed <= ILL_CONDITIONED], initial=0.0)), float(allowed.max()), ""


def _loo(question: Question, right: Values, around: list[Values], found: Any) -> Verdict:
    return _of_rows(_columns(question, found), right.loo, [a.loo for a in around])


def _interval(question: Question, right: Values, around: list[Values], found: Any) -> Verdict:
    expected, *each = (_cv_plus(question, values) for values in (right, *around))
    bounds = [_columns(question, part) for part in found]
    results = [_of_rows(bound, expected[k], [e[k] for e in each]) for k, bound in enumerate(bounds)]
    return max(results, key=lambda r: r[0] / r[1])


def _cv_plus(question: Question, values: Values) -> tuple[Any, Any]:
    """Lower and upper bounds, (m, t) each."""
    used = question.problem.used(question.rows)
    fold_of = np.repeat(np.arange(len(question.folds)), [len(fold) for fold in question.folds])[used]
    each, sizes = values.fold_predictions[fold_of], abs(values.fold_errors[used])[:, None]
    high, is_exact = math.ceil(COVERAGE * (len(used) + 1)) - 1, sizes.dtype == object
    if high >= len(used):
        infinite = np.full(each.shape[1:], arb(math.inf) if is_exact else math.inf)
        return -infinite, infinite
    middle = np.vectorize(lambda v: v.mid(), otypes=[object]) if is_exact else np.asarray
    return np.sort(middle(each - sizes), axis=0)[-1 - high], np.sort(middle(each + sizes), axis=0)[high]


_CHECKS: dict[str, Callable[[Question, Values, list[Values], Any], Verdict]] = {
    "std": _std,
    "bounds": _bounds,
    "likelihood": _likelihood,
    "loo": _loo,
    "interval": _interval,
}
