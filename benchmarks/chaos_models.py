"""Damage to saved models: load and predict after it, in a process kept warm."""

import shutil
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import scipy.sparse as sp

import dkrr
from benchmarks.chaos_damage import OPERATIONS, Scene, damage, open_again
from benchmarks.chaos_trials import GOOD, Outcome, of_error, words
from dkrr.features import Nystroem, RandomFourier
from dkrr.kernels import RBF, BagOfWords, Columns, Linear, Matern, Polynomial

N, N_NEW, D = 90, 11, 4
_WORDS = ("kernel", "ridge", "matrix", "tile", "store", "worker", "plan", "chunk", "λ", "row", "gram", "error")


@dataclass(frozen=True)
class Kind:
    """A kind of model: how it is made, and the rows that it predicts."""

    estimator: Callable[[], Any]
    rows: Callable[[np.random.Generator, int], Any]
    """Random rows, so many."""
    classes: int = 0
    """Number of classes; 0: a regression."""
    in_memory: int = 256 * 2**20
    """Bytes of training rows up to which the loaded model holds them."""


def _dense(rng: np.random.Generator, n: int) -> Any:
    return rng.standard_normal((n, D))


def _sparse(rng: np.random.Generator, n: int) -> Any:
    X = rng.standard_normal((n, 3 * D))
    return sp.csr_array(np.where(np.abs(X) > 0.8, X, 0.0))


def _documents(rng: np.random.Generator, n: int) -> Any:
    return [" ".join(rng.choice(_WORDS, size=int(rng.integers(3, 9)))) for _ in range(n)]


def _table(rng: np.random.Generator, n: int) -> Any:
    import pandas as pd

    return pd.DataFrame({"text": _documents(rng, n), "a": rng.standard_normal(n), "b": rng.standard_normal(n)})


KINDS: dict[str, Kind] = {
    "RBF": Kind(lambda: dkrr.KernelRidge(kernel="rbf", gamma=0.3, alpha=0.1, fit_intercept=True), _dense),
    "linear": Kind(lambda: dkrr.KernelRidge(kernel="linear", alpha=0.1, fit_intercept=True), _dense),
    "polynomial": Kind(lambda: dkrr.KernelRidge(kernel="polynomial", degree=2, form="primal"), _dense),
    "sum and product": Kind(lambda: dkrr.KernelRidge(kernel=RBF(0.2) + 2.0 * Matern(nu=0.5) * Linear()), _dense),
    "sparse rows": Kind(lambda: dkrr.KernelRidge(kernel=Polynomial(degree=3), form="dual"), _sparse),
    "Nyström": Kind(lambda: dkrr.KernelRidge(kernel=Nystroem(RBF(0.3), 20), alpha=0.1), _dense),
    "random Fourier": Kind(lambda: dkrr.KernelRidge(kernel=RandomFourier(RBF(0.3), 40), alpha=0.1), _dense),
    "documents": Kind(lambda: dkrr.KernelRidge(kernel=BagOfWords(), alpha=0.1), _documents),
    "table": Kind(
        lambda: dkrr.KernelRidge(kernel=Columns(BagOfWords(), ["text"]) + Columns(RBF(0.3), ["a", "b"]), alpha=0.1),
        _table,
    ),
    "rows read from the store": Kind(lambda: dkrr.KernelRidge(kernel="laplacian", alpha=0.1), _dense, in_memory=0),
    "sparse rows read from the store": Kind(
        lambda: dkrr.KernelRidge(kernel=Polynomial(degree=3), form="dual"), _sparse, in_memory=0
    ),
    "logistic": Kind(lambda: dkrr.KernelLogisticRegression(0.1, kernel="rbf", gamma=0.3), _dense, classes=3),
    "logistic, primal": Kind(lambda: dkrr.KernelLogisticRegression(0.1, kernel="linear"), _dense, classes=2),
    "search": Kind(lambda: dkrr.KernelRidgeCV([0.01, 1.0], kernel="rbf", gamma=0.3, cv=3), _dense),
}


@dataclass(frozen=True)
class Saved:
    """A model that was saved, and what it predicts."""

    path: Path
    X_new: Any
    predictions: tuple[Any, ...]


@cache
def _folder() -> Path:
    """Folder of this process for its models."""
    return Path(tempfile.mkdtemp(prefix="models-"))


@cache
def saved(name: str, version: int) -> Saved:
    """Model of a kind; versions differ in their targets only, so that all their files have the same names."""
    kind, rng = KINDS[name], np.random.default_rng(15)
    X, X_new = kind.rows(rng, N), kind.rows(rng, N_NEW)
    rng = np.random.default_rng([15, version])
    y = np.arange(N) % kind.classes if kind.classes else rng.standard_normal((N, 2))
    model = kind.estimator().fit(X, rng.permutation(y) if kind.classes else y)
    path = _folder() / f"{list(KINDS).index(name)}-{version}.zarr"
    dkrr.save(model, path)
    return Saved(path, X_new, _predictions(_loaded(kind, path), X_new))


def _loaded(kind: Kind, path: Path) -> Any:
    with mock.patch("dkrr.persistence.IN_MEMORY_BYTES", kind.in_memory):
        return dkrr.load(path)


def _predictions(model: Any, X_new: Any) -> tuple[Any, ...]:
    """All numbers that a model gives."""
    found = [model.predict(X_new)]
    if hasattr(model, "predict_proba"):
        found.append(model.predict_proba(X_new))
    found += [np.asarray(getattr(model, name)) for name in ("dual_coef_", "coef_") if hasattr(model, name)]
    return tuple(found)


def same(found: tuple[Any, ...], expected: tuple[Any, ...]) -> bool:
    """Whether all arrays are equal, bit for bit."""
    return len(found) == len(expected) and all(
        a.shape == b.shape and a.dtype == b.dtype and bool(np.array_equal(a, b))
        for a, b in zip(found, expected, strict=True)
    )


def trial(seed: int, number: int, only: list[str], places: list[str]) -> dict[str, Any]:  # noqa: ARG001
    """Damage a model and use it.

    Parameters
    ----------
    seed, number : int
    only : list of str
        Kinds to choose from; empty: all.
    places : list of str
        Unused: models are loaded in one place.
    """
    rng = np.random.default_rng([seed, number])
    operations, kinds = list(OPERATIONS), only or list(KINDS)
    operation, name = operations[number % len(operations)], kinds[int(rng.integers(len(kinds)))]
    original = saved(name, 0)
    foreign = kinds[int(rng.integers(len(kinds)))]
    folder = Path(tempfile.mkdtemp(prefix="trial-", dir=_folder()))
    try:
        path = folder / "model.zarr"
        shutil.copytree(original.path, path)
        scene = Scene(path, [saved(name, 1).path], [saved(foreign, 1 if foreign == name else 0).path])
        done = damage(scene, rng, operation)
        if done is None:
            return {"row": operation, "group": name, "outcome": Outcome.HARMLESS, "what": "nothing", "count": 0}
        outcome, detail = _judged(KINDS[name], path, original)
    finally:
        open_again(folder)
        shutil.rmtree(folder)
    return {"row": operation, "group": name, "outcome": outcome, "what": f"{name}, {done}", "detail": detail}


def _judged(kind: Kind, path: Path, original: Saved) -> tuple[Outcome, str]:
    try:
        with warnings.catch_warnings(record=True) as noted:
            warnings.simplefilter("always")
            found = _predictions(_loaded(kind, path), original.X_new)
    except Exception as error:
        return of_error(error, str(path))
    said = words(w.message for w in noted)
    if not same(found, original.predictions):
        return Outcome.WRONG, said
    outcome = Outcome.REPAIRED if noted else Outcome.HARMLESS
    assert outcome in GOOD
    return outcome, said
