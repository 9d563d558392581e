"""Scores of held-out predictions for every λ and fold, and the report of the systems behind them."""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dkrr.linalg.result import INACCURATE_ABOVE, SolveResult, Status
from dkrr.selection.folds import Folds
from dkrr.text import first_names

Array = NDArray[np.float64]
Numbers = NDArray[np.intp]
Score = Callable[[Array, Array, Array | None, Numbers], float]
"""Score, larger if better, of predictions, targets (both of shape (k,) or (k, t)) and weights of some rows."""


def negative_squared_error(predictions: Array, targets: Array, weights: Array | None, rows: Numbers) -> float:  # noqa: ARG001
    """Negative weighted mean of the squared errors."""
    squares = (targets - predictions) ** 2
    return -float(np.average(squares if squares.ndim == 1 else squares.mean(axis=1), weights=weights))


class ScoreSheet:
    """Scores of every λ and fold, for each target separately or for all together.

    Leave-one-out has one score, of the predictions of all rows together.

    Parameters
    ----------
    score : callable
    targets : ndarray of shape (n, t)
    weights : ndarray of shape (n,), optional
    folds : Folds
    n_alphas : int
    is_vector : bool
        Targets are given as a vector, and so are they to `score`.
    per_target : bool
        Each target has its own scores.
    keeps_predictions : bool
        Predictions of every λ are kept.
    """

    def __init__(
        self,
        score: Score,
        targets: Array,
        weights: Array | None,
        folds: Folds,
        n_alphas: int,
        *,
        is_vector: bool,
        per_target: bool,
        keeps_predictions: bool = False,
    ) -> None:
        self._score, self._targets, self._weights, self._folds = score, targets, weights, folds
        self._is_vector, self.per_target = is_vector, per_target
        self._kept: dict[int, Array] | None = {} if keeps_predictions else None
        self._n_held_out = np.full(len(targets), 1 if folds.is_loo else 0)
        for rows in folds.test:
            self._n_held_out[rows] += 1
        n_scores = 1 if folds.is_loo else len(folds)
        self.values = np.full((n_alphas, n_scores, targets.shape[1] if per_target else 1), np.nan)
        """Scores of shape (n_alphas, n_folds, t or 1); NaN where nothing was scored."""

    @property
    def is_loo(self) -> bool:
        """Whether one score is of the predictions of all rows, each by its own model."""
        return self._folds.is_loo

    @property
    def batches(self) -> bool:
        """Whether some of the targets may be scored at a time."""
        return self.per_target or self._score is negative_squared_error or self._targets.shape[1] == 1

    def add_predictions(self, a: int, fold: int, predictions: Array, columns: slice = slice(None)) -> None:
        """Score predictions of a fold's rows, of shape (k, t'), by a model of one λ (by all of leave-one-out's)."""
        values = self.score(fold, predictions, columns)
        if self._kept is not None:
            rows = self._rows(fold)
            total = self._kept.setdefault(a, np.zeros(self._targets.shape))
            total[rows, columns] += predictions
        if self.per_target:
            self.values[a, fold, columns] = values
            return
        # The score of all targets is the mean of the scores of each, where they come in batches.
        part = predictions.shape[1] / self._targets.shape[1]
        before = self.values[a, fold, 0]
        self.values[a, fold, 0] = part * values[0] + (0.0 if np.isnan(before) else before)

    @property
    def is_squared_error(self) -> bool:
        """Whether scores are negative mean squared errors."""
        return self._score is negative_squared_error

    @property
    def takes_squares(self) -> bool:
        """Whether sums of squares over the rows of a fold are enough."""
        return self.is_squared_error and self._kept is None

    def add_squares(self, a: int, fold: int, squares: Array, total: float) -> None:
        """Enter the score of a fold's rows from their weighted sums of squared errors, (t,), and the sum of weights."""
        values = -squares / total
        self.values[a, fold] = values if self.per_target else values.mean()

    def score(self, fold: int, predictions: Array, columns: slice = slice(None)) -> Array:
        """Scores of predictions of a fold's rows, of shape (k, t'): one for each target, or one in all."""
        rows = self._rows(fold)
        y = self._targets[rows, columns]
        weights = None if self._weights is None else self._weights[rows]
        if self.per_target:
            return np.array([self._score(predictions[:, j], y[:, j], weights, rows) for j in range(y.shape[1])])
        if self._is_vector:
            return np.array([self._score(predictions[:, 0], y[:, 0], weights, rows)])
        return np.array([self._score(predictions, y, weights, rows)])

    def _rows(self, fold: int) -> Numbers:
        return np.arange(self._folds.n) if self._folds.is_loo else self._folds.test[fold]

    def in_order(self, order: Numbers) -> Self:
        """Score sheet with the λ in another order."""
        other = copy(self)
        other.values = self.values[order]
        if self._kept is not None:
            other._kept = {a: self._kept[b] for a, b in enumerate(order.tolist()) if b in self._kept}
        return other

    def predictions(self, chosen: Numbers) -> Array | None:
        """Held-out predictions by one λ for each target, of shape (n, t): the mean where a row was held out more often.

        NaN where a row never was; None where predictions are not kept.
        """
        if self._kept is None:
            return None
        found = np.stack([self._kept[a][:, j] for j, a in enumerate(chosen)], axis=1)
        with np.errstate(invalid="ignore"):
            return np.asarray(found / np.where(self._n_held_out == 0, np.nan, self._n_held_out)[:, None])

    def means(self) -> Array:
        """Mean scores of every λ over the folds, of shape (n_alphas, t or 1)."""
        return np.asarray(self.values.mean(axis=1))


def named(values: Sequence[float] | Array) -> str:
    """Values for a message."""
    return first_names(f"{value:g}" for value in values)


def without_score(alphas: Array, reached: float, wanted: float, remedy: str, what: str = "true residual") -> str:
    """Words for λ whose systems were not solved."""
    return (
        f"no scores of alpha = {named(alphas)}: the {what} of their systems is {reached:.1e}, where {wanted:.1e} is "
        f"needed; expected {remedy}"
    )


@dataclass
class Report:
    """Iterations and residuals of the systems of one kernel.

    Parameters
    ----------
    n_alphas, n_folds : int
    """

    n_alphas: int
    n_folds: int
    iterations: NDArray[np.intp] = field(init=False)
    """Iterations of conjugate gradient for every λ and fold, of shape (n_alphas, n_folds); 0 by a factor."""
    residuals: Array = field(init=False)
    """Largest true relative residual of every λ and fold, of shape (n_alphas, n_folds); NaN where none is known."""
    wanted: Array = field(init=False)
    """Residual that the score of every λ and fold asks for, of shape (n_alphas, n_folds); infinite for λ given
    up before their scores were known well."""
    stopped: NDArray[np.bool_] = field(init=False)
    """Whether a λ was given up, since others have better scores; of shape (n_alphas,)."""
    seconds: float = 0.0
    messages: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        shape = (self.n_alphas, self.n_folds)
        self.iterations, self.residuals = np.zeros(shape, np.intp), np.full(shape, np.nan)
        self.wanted = np.full(shape, np.inf)
        self.stopped = np.zeros(self.n_alphas, bool)

    def add_residual(self, a: int, fold: int, residual: float, wanted: float) -> None:
        """Record the residual of a λ and a fold, and the one that its score requires; of several the worst."""
        if not self.residuals[a, fold] / self.wanted[a, fold] >= residual / wanted:
            self.residuals[a, fold], self.wanted[a, fold] = residual, wanted

    def add_fit(self, fold: int, result: SolveResult, tol: float) -> None:
        """Record the result of a fit of a fold whose targets are those of all λ, to a residual `tol` if iterative."""
        wanted = INACCURATE_ABOVE if result.status in (Status.SOLVED, Status.INACCURATE) else tol
        self.iterations[:, fold] = result.iterations
        for a, residual in enumerate(np.reshape(result.residuals, (self.n_alphas, -1)).max(axis=1).tolist()):
            self.add_residual(a, fold, residual, wanted)

    @property
    def unsolved(self) -> NDArray[np.bool_]:
        """Whether some system of a λ has a larger residual than its score asks for, of shape (n_alphas,)."""
        return np.asarray((self.residuals > self.wanted).any(axis=1))

    def leave_out(self, values: Array, alphas: Array) -> tuple[str, ...]:
        """Set the scores of unsolved λ to NaN, of shape (n_alphas, ...), and say so.

        Those of λ that were given up before their scores were known well, too: what they had lost to may be among them.
        """
        bad = self.unsolved
        if not bad.any():
            return ()
        bad |= self.stopped & np.isinf(self.wanted).any(axis=1)
        values[bad] = np.nan
        remedy = "larger values or max_iter, or solver='cholesky'" if self.iterations[bad].any() else "larger values"
        wanted = np.where(self.residuals > self.wanted, self.wanted, np.inf)[bad]
        return (without_score(alphas[bad], float(np.nanmax(self.residuals[bad])), float(wanted.min()), remedy),)

    def in_order(self, order: NDArray[np.intp]) -> Self:
        """Report with the λ in another order."""
        other = copy(self)
        other.iterations, other.residuals = self.iterations[order], self.residuals[order]
        other.wanted, other.stopped = self.wanted[order], self.stopped[order]
        return other
