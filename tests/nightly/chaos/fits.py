"""Small fits of every way to solve, whose runs the campaigns kill and damage."""

import faulthandler
import json
import pickle
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import dask
import numpy as np
from distributed import Client
from numpy.typing import NDArray
from sklearn.base import clone

from dkrr import KernelLogisticRegression, KernelRidge, KernelRidgeCV
from dkrr.errors import DkrrError
from dkrr.planning import planner
from dkrr.solvers import ConjugateGradient, Float32Cholesky, RPCholesky
from tests.nightly.chaos.outcomes import of_error

Array = NDArray[np.float64]

N, D, N_NEW = 900, 4, 50


@dataclass(frozen=True)
class Fit:
    """A fit whose run takes about a second and leaves many files."""

    estimator: Any
    """The estimator, without its store."""
    is_exact: bool = False
    """A resumed run gives the identical bits: a direct solver."""
    tolerance: float = 1e-6
    """Largest difference of predictions otherwise, relative to the largest target."""
    classes: int = 0
    """Number of classes; 0: a regression."""
    n_targets: int = 2


RIDGE: dict[str, Any] = {"kernel": "rbf", "gamma": 0.2, "alpha": 0.01, "tile": 75}
POLYNOMIAL: dict[str, Any] = {"kernel": "polynomial", "form": "primal", "alpha": 0.1, "tile": 20}
LOGISTIC: dict[str, Any] = {"kernel": "rbf", "gamma": 0.2, "alpha": 0.1, "tile": 300}
SEARCH: dict[str, Any] = {"alphas": [0.01, 0.1, 1.0], "kernel": "rbf", "gamma": 0.3, "cv": 3}
SMALL_RANK = ConjugateGradient(RPCholesky(20))
FITS: dict[str, Fit] = {
    "Cholesky": Fit(KernelRidge(**RIDGE, solver="cholesky", fit_intercept=True), is_exact=True),
    "Cholesky, two λ": Fit(
        KernelRidge(**RIDGE | {"alpha": [0.01, 0.1], "tile": 100}, solver="cholesky"), is_exact=True
    ),
    "CG": Fit(KernelRidge(**RIDGE | {"alpha": 0.1, "tile": 300}, solver=SMALL_RANK)),
    "float32 factor": Fit(KernelRidge(**RIDGE | {"alpha": 0.001}, solver=ConjugateGradient(Float32Cholesky()))),
    "normal equations": Fit(KernelRidge(**POLYNOMIAL, solver="cholesky", degree=6), is_exact=True),
    "CG, normal equations": Fit(KernelRidge(**POLYNOMIAL, solver=ConjugateGradient(None), degree=3)),
    "Newton, CG": Fit(KernelLogisticRegression(**LOGISTIC, solver="cg"), classes=3, tolerance=1e-4),
    "Newton, Cholesky": Fit(KernelLogisticRegression(**LOGISTIC, solver="cholesky"), classes=2, tolerance=1e-4),
    "selection, CG": Fit(KernelRidgeCV(**SEARCH, solver="cg", tile=300), n_targets=1, tolerance=1e-4),
    "selection, Cholesky": Fit(KernelRidgeCV(**SEARCH, solver="cholesky", tile=100), n_targets=1),
}


@cache
def problem(name: str, version: int = 0) -> tuple[Array, Any, Array]:
    """X, y or labels, and new rows: the same in every process; versions differ in all numbers."""
    fit, rng = FITS[name], np.random.default_rng([15, version])
    X, X_new = rng.standard_normal((N, D)), rng.standard_normal((N_NEW, D))
    Y = np.column_stack([np.sin(2 * X[:, 0]), X[:, -1] ** 2]) + 0.1 * rng.standard_normal((N, 2))
    if fit.classes:
        return X, np.digitize(Y[:, 0], np.quantile(Y[:, 0], np.arange(1, fit.classes) / fit.classes)), X_new
    return X, Y[:, : fit.n_targets], X_new


@dataclass(frozen=True)
class Fitted:
    """What a fit gave."""

    arrays: tuple[Array, ...]
    """Predictions of new rows, and coefficients where they are determined bit by bit."""
    said: tuple[str, ...]
    """Messages and warnings."""
    seconds: float
    execution: str


@contextmanager
def configured(place: str) -> Iterator[None]:
    """Configuration with which a small fit is planned for a place: here, own workers, cluster (an ambient client)."""
    original = planner._cheapest

    def on_workers(fitting: list[Any], resources: Any) -> Any:
        return original([c for c in fitting if c.execution == "dask"] or fitting, resources)

    settings: dict[str, Any] = {"dkrr.checkpoint-seconds": 0.02, "dkrr.quick-measurement": False}
    with ExitStack() as stack:
        if place != "here":
            settings["dkrr.rates.gemm-gflops"] = 1e-3  # a machine so slow that no work is small
            stack.enter_context(mock.patch.object(planner, "_cheapest", on_workers))
        if place == "own workers":
            settings |= {"dkrr.local.workers": 2, "dkrr.rates.cluster-start-seconds": 0.0}
            stack.enter_context(mock.patch("dkrr.fitting.costs.tile_costs.THREAD_EFFICIENCY", 0.0))
        stack.enter_context(dask.config.set(settings))
        yield


def fitted(name: str, store: str | None, place: str = "here", version: int = 0) -> Fitted:
    """Fit at a place.

    Raises
    ------
    DkrrError
        As the estimator does.
    """
    fit, (X, y, X_new) = FITS[name], problem(name, version)
    with configured(place), warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        model = clone(fit.estimator).set_params(store=store, progress=False).fit(X, y)
        arrays = [model.predict(X_new) if not fit.classes else model.decision_function(X_new)]
        if fit.is_exact:
            arrays.append(model.dual_coef_)
        result = model.solve_result_
        return Fitted(
            tuple(np.asarray(a, np.float64) for a in arrays),
            (*(str(w.message) for w in noted), *result.messages),
            result.seconds,
            model.plan_.execution,
        )


def same(name: str, found: Fitted, expected: Fitted) -> bool:
    """Whether a resumed run gave what the uninterrupted one did: the same bits, or the same within the tolerance."""
    fit, y = FITS[name], problem(name)[1]
    bound = 0.0 if fit.is_exact else fit.tolerance * max(1.0, float(np.abs(y).max()))
    return all(
        a.shape == b.shape and bool(np.all((a == b) | (np.abs(a - b) <= bound)))
        for a, b in zip(found.arrays, expected.arrays, strict=True)
    )


def main() -> None:
    """Carry out the fit that the command line describes; the exit status is 3 for an error of dkrr."""
    given = json.loads(sys.argv[1])
    address, folder = given.pop("address", None), given.pop("folder", None)
    faulthandler.enable()
    with ExitStack() as stack:
        if address is not None:
            stack.enter_context(Client(address, timeout="15s"))
        if folder is None:
            fitted(**given)
            return
        Path(folder, "started").touch()
        found: Any
        try:
            found, status = fitted(**given), 0
        except DkrrError as error:
            found, status = of_error(error), 3
    Path(folder, "answer").write_bytes(pickle.dumps(found))
    sys.exit(status)
