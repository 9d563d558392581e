"""Small regressions at the edges of float64, each from a recorded seed, for `tests.nightly.accuracy.posteriors`."""

from dataclasses import replace
from typing import Any

import numpy as np

from dkrr.features import Nystroem
from dkrr.features.nystroem import Pivots
from dkrr.kernels import RBF, BagOfWords, Cosine, Kernel, Laplacian, Linear, Polynomial
from tests.nightly.accuracy import trials
from tests.nightly.accuracy.search_trials import documents
from tests.nightly.accuracy.trials import N_NEW, Trial, named, ordinary

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
    made = CLASSES[of_class](one, rng)
    if made.settings["form"] == "primal" and not isinstance(made.kernel, Linear | Cosine | Polynomial | Nystroem):
        return replace(made, settings=made.settings | {"form": "dual"})
    return made


def _small(one: Trial, rng: np.random.Generator) -> Trial:
    """λ from 1e-15 to 1e-6, kernels from narrow to wide."""
    kernel: Kernel = [RBF, Laplacian][int(rng.integers(2))](float(10 ** rng.uniform(-3, 1)))
    kernel = kernel if rng.random() < 0.8 else Polynomial(2)
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
    base = [RBF(1.0), Laplacian(0.5), RBF(0.1)][int(rng.integers(3))]
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
