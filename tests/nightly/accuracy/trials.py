"""Small random problems at the edges of float64, each from a recorded seed, for `python -m tests.nightly.accuracy`.

What every kind of trial has: its outcome, and the answer of dkrr to a question.
"""

import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dkrr.errors import ConvergenceWarning, DkrrError
from dkrr.kernels import RBF, Cosine, Laplacian, Linear, Polynomial

Array = NDArray[np.float64]
Change = Callable[[Any, np.random.Generator], Any]

SEED = 20_11
N_NEW = 6
"""Rows that are predicted besides the training rows."""


@dataclass(frozen=True)
class Trial:
    """One problem and how it is to be solved."""

    name: str
    """Class and number: what the seed is made of."""
    is_logistic: bool
    X: Any
    """Training rows (n, d), dense or CSR."""
    X_new: Any
    """New rows (N_NEW, d) of the same container and dtype."""
    y: Array
    """Targets (n, t), or labels (n,) of 0 and 1."""
    alpha: float
    kernel: Any
    """Kernel of dkrr; of posteriors also a feature map, or "precomputed"."""
    fit_intercept: bool
    sample_weight: Array | None
    settings: dict[str, Any]
    """Form, solver and tile."""

    @property
    def all_rows(self) -> Any:
        """Training rows, and the new ones behind them."""
        return self.X + self.X_new if isinstance(self.X, list) else np.vstack([self.X, self.X_new])


@dataclass(frozen=True)
class Outcome:
    """Result of one trial: how it ended, and its errors."""

    trial: Any
    ended: str
    """Name of the status, or of the error."""
    how: str = ""
    """Way to the result, and what was found."""
    errors: dict[str, float] = field(default_factory=dict)
    """Largest errors that the tables show."""
    ill_conditioned: int = 0
    """Numbers that float64 does not determine."""
    dishonest: tuple[str, ...] = ()

    def __str__(self) -> str:
        shown = {k: v for k, v in vars(self.trial).items() if k not in ("X", "X_new", "y", "groups", "sample_weight")}
        errors = ", ".join(f"{name} {error:.1e}" for name, error in self.errors.items())
        weights = " weights" * (self.trial.sample_weight is not None)
        return f"{shown}{weights} {self.trial.y.shape}: {self.ended} by {self.how}, {errors}"


@dataclass(frozen=True)
class Answer:
    """What dkrr answered to one question."""

    values: Any = None
    error: Exception | None = None
    own: tuple[str, ...] = ()
    """Warnings of its accuracy."""

    @property
    def raw(self) -> tuple[str, ...]:
        """An error that is not of dkrr."""
        is_raw = self.error is not None and not isinstance(self.error, DkrrError)
        return (f"an error that is not dkrr's own: {self.error!r}",) if is_raw else ()


def ask(question: Callable[[], Any]) -> Answer:
    """Answer to a question, with what was warned of."""
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            values = question()
    except Exception as error:  # what a user would see, whatever it is
        return Answer(error=error)
    return Answer(values, None, tuple(str(w.message) for w in caught if issubclass(w.category, ConvergenceWarning)))


def trial(of_class: str, number: int) -> Trial:
    """Return one trial of a class, always the same one.

    Parameters
    ----------
    of_class : str
        A key of CLASSES.
    number : int
        From 0.
    """
    rng = np.random.default_rng([SEED, list(CLASSES).index(of_class), number])
    made: Trial = CLASSES[of_class](ordinary(rng, f"{of_class}:{number}"), rng)
    if made.settings["form"] == "primal" and not isinstance(made.kernel, Linear | Cosine | Polynomial):
        return replace(made, settings={**made.settings, "form": "dual"})
    return made


def ordinary(rng: np.random.Generator, name: str, logistic: float = 0.4) -> Trial:
    """Return a problem of standard normal rows, with some probability a logistic one."""
    is_logistic = bool(rng.random() < logistic)
    n, d = int(rng.integers(12, 33 if is_logistic else 61)), int(rng.integers(2, 5))
    X = rng.standard_normal((n + N_NEW, d))
    signal = np.sin(2 * X[:n, 0]) + X[:n, 1]
    if is_logistic:
        y = (signal + 0.7 * rng.standard_normal(n) > 0).astype(float)
        y[:2] = 0, 1
    else:
        y = np.column_stack([signal + 0.1 * rng.standard_normal(n), rng.standard_normal(n)])
        y = y[:, : int(rng.integers(1, 3))]
    kernel = [Linear(), Polynomial(degree=int(rng.integers(2, 4))), RBF(gamma=0.4), Laplacian(gamma=0.3), Cosine()][
        int(rng.integers(5))
    ]
    solvers: list[dict[str, Any]] = [{"solver": name, **at} for name in ("cholesky", "cg") for at in ({}, {"tile": 16})]
    alpha, fit_intercept = float(10 ** rng.uniform(-4, 1)), bool(rng.random() < 0.5)
    weights = rng.uniform(0.2, 3.0, n) if rng.random() < 0.3 else None
    settings = {"form": "primal" if rng.random() < 0.4 else "dual", **solvers[int(rng.integers(4))]}
    return Trial(name, is_logistic, X[:n], X[n:], y, alpha, kernel, fit_intercept, weights, settings)


def _ordinary(one: Trial, _: np.random.Generator) -> Trial:
    """Standard normal rows, λ 1e-4 … 10."""
    return one


def _rows(one: Trial, change: Callable[[Any], Any]) -> Trial:
    return replace(one, X=change(one.X), X_new=change(one.X_new))


def _rows_scaled(one: Trial, rng: np.random.Generator) -> Trial:
    """X times 1e-300 … 1e300; mostly with the λ, or the γ, that makes it the same problem."""
    scale = 10 ** rng.uniform(-300, 300)
    moved, kernel, alpha = _rows(one, lambda X: X * scale), one.kernel, one.alpha
    with np.errstate(over="ignore", under="ignore"):
        square = np.float64(scale) ** 2
        if isinstance(kernel, Linear) and np.isfinite(alpha * square) and alpha * square > 0 and rng.random() < 0.7:
            alpha = float(alpha * square)
        if isinstance(kernel, RBF) and np.isfinite(0.4 / square) and 0.4 / square > 0:
            kernel = RBF(gamma=float(0.4 / square))
        if isinstance(kernel, Laplacian):
            kernel = Laplacian(gamma=float(0.3 / scale))
    return replace(moved, kernel=kernel, alpha=alpha)


def _targets_scaled(one: Trial, rng: np.random.Generator) -> Trial:
    """Targets times 1e-118 … 1e118; of a classification, which has none, all weights and λ times 1e-29 … 1e29."""
    if not one.is_logistic:
        return replace(one, y=one.y * 10 ** rng.uniform(-118, 118))
    scale = 10 ** rng.uniform(-29, 29)
    weights = np.ones(len(one.y)) if one.sample_weight is None else one.sample_weight
    return replace(one, sample_weight=weights * scale, alpha=one.alpha * scale)


def _columns_scaled(one: Trial, rng: np.random.Generator) -> Trial:
    """Columns of X times 1e-6 … 1e6, each by its own."""
    scales = 10 ** rng.uniform(-6, 6, one.X.shape[1])
    return _rows(one, lambda X: X * scales)


def _weights(one: Trial, rng: np.random.Generator) -> Trial:
    """Weights over 20 orders, and at times zeros."""
    weights = 10 ** rng.uniform(-10, 10, len(one.y))
    weights[2:][rng.random(len(weights) - 2) < (0.1 if rng.random() < 0.5 else 0.0)] = 0.0
    return replace(one, sample_weight=weights)


def _lambda(one: Trial, rng: np.random.Generator) -> Trial:
    """λ from 1e-15 to 1e15."""
    return replace(one, alpha=float(10 ** rng.uniform(-15, 15)))


def _duplicates(one: Trial, rng: np.random.Generator) -> Trial:
    """Rows given twice, or nearly: with the same target, or some with the opposite one."""
    half = len(one.y) // 2
    again = np.concatenate([np.arange(half), np.arange(half)])
    X, y = one.X[again].copy(), one.y[again].copy()
    X[half:] += rng.choice([0.0, 1e-12, 1e-8]) * rng.standard_normal(X[half:].shape)
    if rng.random() < 0.5:
        some = slice(half, half + half // 2)  # of all, and the solution would be 0
        y[some] = 1 - y[some] if one.is_logistic else -y[some]
    weights = None if one.sample_weight is None else one.sample_weight[: 2 * half]
    return replace(one, X=X, y=y, sample_weight=weights, alpha=float(10 ** rng.uniform(-12, 0)))


def _offset(one: Trial, rng: np.random.Generator) -> Trial:
    """X + 1 … 1e8."""
    offset = 10 ** rng.uniform(0, 8, one.X.shape[1] if rng.random() < 0.5 else 1)
    return _rows(one, lambda X: X + offset)


def _float32(one: Trial, rng: np.random.Generator) -> Trial:
    """Rows in float32, at times large or small."""
    scale = 10 ** rng.choice([0.0, 0.0, rng.uniform(-20, 20)])
    alpha = float(10 ** rng.uniform(-8, 0) * scale**2)
    return replace(_rows(one, lambda X: (X * scale).astype(np.float32)), alpha=alpha)


def _integers(one: Trial, rng: np.random.Generator) -> Trial:
    """Rows of integers, of 8 to 64 bits."""
    dtype, size = [(np.int8, 30), (np.uint8, 50), (np.int32, 1_000), (np.int64, 100_000)][int(rng.integers(4))]
    lowest = -100 if dtype == np.int8 else 0 if dtype == np.uint8 else -10 * size
    return _rows(one, lambda X: np.clip(np.rint(X * size), lowest, 100 if dtype == np.int8 else None).astype(dtype))


def _sparse(one: Trial, rng: np.random.Generator) -> Trial:
    """CSR rows with a third of the entries, in float64 or float32."""
    dtype = np.float64 if rng.random() < 0.5 else np.float32

    def thinned(X: Array) -> Any:
        return sp.csr_array(np.where(rng.random(X.shape) < 0.35, X, 0.0).astype(dtype))

    return replace(_rows(one, thinned), alpha=float(10 ** rng.uniform(-8, 0)))


def named(*changes: Change, prefix: str = "") -> dict[str, Change]:
    """Classes by the names of what makes a trial of the class of an ordinary one."""
    return {prefix + change.__name__[1:].replace("_", "-"): change for change in changes}


CLASSES = named(_ordinary, _rows_scaled, _targets_scaled, _columns_scaled, _weights)
CLASSES |= named(_lambda, _duplicates, _offset, _float32, _integers, _sparse)
"""New classes are appended, since seeds count them."""


def label(classes: Mapping[str, Callable[..., Any]], of_class: str) -> str:
    """Return what a class is, in a line: what its function's docstring begins with, or its name without one."""
    text = inspect.getdoc(classes[of_class]) or of_class  # python -OO drops docstrings
    return text.splitlines()[0].rstrip(".")
