"""Small searches at the edges of float64, each from a recorded seed, for `tests.nightly.accuracy.searches`."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import GroupKFold, KFold, ShuffleSplit, TimeSeriesSplit

from dkrr.features import Nystroem
from dkrr.features.nystroem import Pivots
from dkrr.kernels import RBF, BagOfWords, Laplacian, Linear, Polynomial
from tests.nightly.accuracy.models import Problem
from tests.nightly.accuracy.trials import Trial, named, ordinary

Array = NDArray[np.float64]
Numbers = NDArray[np.intp]

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
    """form, solver, alpha_per_target, scoring, race."""

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
    splitters = [
        "loo",
        KFold(int(rng.integers(2, 6))),
        KFold(4, shuffle=True, random_state=int(rng.integers(99))),
        ShuffleSplit(3, test_size=0.3, random_state=int(rng.integers(99))),
        GroupKFold(3),
        TimeSeriesSplit(3),
    ]
    alphas = 10 ** rng.uniform(-4, 1, int(rng.integers(2, 6)))
    settings: dict[str, Any] = {
        "form": ["auto", "dual", "primal"][int(rng.integers(3))],
        "solver": ["auto", "cholesky", "cg"][int(rng.choice(3, p=[0.4, 0.35, 0.25]))],
        "alpha_per_target": bool(rng.random() < 0.3),
        "scoring": "neg_mean_squared_error" if rng.random() < 0.25 else None,
        "race": bool(rng.random() < 0.3),
    }
    weights = None if one.sample_weight is None else one.sample_weight[:n]
    kernel = one.kernel if not isinstance(one.kernel, RBF) or rng.random() < 0.5 else Linear()
    groups = rng.integers(0, 7, n).astype(float)
    groups[:7] = np.arange(7)
    return Search(
        one.name, one.X[:n], one.y[:n], alphas, kernel, one.fit_intercept, weights, splitters[cv], groups, settings
    )


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
    made = CLASSES[of_class](_search(ordinary(rng, f"{of_class}:{number}", logistic=0.0), rng), rng)
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
    kernel = [Linear(), RBF(0.4 / scale / scale), Laplacian(0.3 / scale)][int(rng.integers(3))]
    fits = isinstance(kernel, Linear) and rng.random() < 0.7
    return replace(one, X=one.X * scale, kernel=kernel, alphas=one.alphas * scale * scale if fits else one.alphas)


def _targets(one: Search, rng: np.random.Generator) -> Search:
    """Targets times 1e±8, 1e±150 or 1e±200, whose squares leave float64."""
    return replace(one, y=one.y * 10.0 ** rng.choice([-200, -150, -8, 8, 150, 200]))


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
    polynomial = Polynomial(2) if rng.random() < 0.3 and one.X.shape[1] < 4 else Linear()
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
        base = [RBF(1.0), Laplacian(0.5), Polynomial(2)][int(rng.integers(3))]
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
    kernel = [RBF(0.1), RBF(0.01), Laplacian(0.3), Linear(), Polynomial(3)][int(rng.integers(5))]
    return replace(one, kernel=kernel, alphas=10 ** rng.uniform(-12, 1, 4), settings=one.settings | {"solver": "cg"})


def _mixed(one: Search, rng: np.random.Generator) -> Search:
    """Two or three of these at once."""
    for name in rng.choice(["search-weights", "search-targets", "search-lambda", "search-offset"], 2, replace=False):
        one = CLASSES[str(name)](one, rng)
    return _dominated(one, rng) if rng.random() < 0.4 else one


CLASSES = named(_ordinary, _lambda, _rows, _targets, _weights, _dominated, prefix="search-")
CLASSES |= named(_leverage, _learned, _precomputed, _close, _offset, _cg, _mixed, prefix="search-")
"""New classes are appended, since seeds count them."""
