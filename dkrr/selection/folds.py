"""Rows that are held out, fold by fold, the training set of each, and the data of a selection with them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dkrr.data import MemoryRows
from dkrr.data.rows import Checksums, digest_of
from dkrr.errors import InputError
from dkrr.fitting.data import TrainingData

Numbers = NDArray[np.intp]


@dataclass(frozen=True)
class Folds:
    """Folds of n rows.

    Parameters
    ----------
    n : int
    test : tuple of ndarray of intp
        Numbers of the rows that each fold holds out, in ascending order; empty for leave-one-out.
    train : tuple of ndarray of intp, optional
        Training rows of each fold; None: all others.
    is_loo : bool
        Every fold is a single row: leave-one-out.
    """

    n: int
    test: tuple[Numbers, ...]
    train: tuple[Numbers, ...] | None = None
    is_loo: bool = False

    @classmethod
    def leave_one_out(cls, n: int) -> "Folds":
        """Folds of one row each."""
        return cls(n, (), is_loo=True)

    @classmethod
    def of_pairs(cls, n: int, pairs: Sequence[tuple[Numbers, Numbers]]) -> "Folds":
        """Folds of pairs of training rows and rows that are held out, each in ascending order."""
        is_rest = all(len(train) + len(test) == n and _are_disjoint(train, test, n) for train, test in pairs)
        return cls(n, tuple(test for _, test in pairs), None if is_rest else tuple(train for train, _ in pairs))

    def __len__(self) -> int:
        return self.n if self.is_loo else len(self.test)

    def training(self, fold: int) -> Numbers:
        """Numbers of the training rows of a fold, not of leave-one-out."""
        if self.train is not None:
            return self.train[fold]
        mask = np.ones(self.n, bool)
        mask[self.test[fold]] = False
        return np.flatnonzero(mask)

    @property
    def train_on_the_rest(self) -> bool:
        """Whether every fold trains on exactly the rows that it does not hold out, as formulas for errors need."""
        return self.train is None

    @property
    def n_training(self) -> int | None:
        """Training rows of a fold in the cubic mean; None where folds train on the rest."""
        if self.train is None:
            return None
        cubes = [len(rows) ** 3 for rows in self.train]
        return round(float((sum(cubes) / len(cubes)) ** (1 / 3)))

    @cached_property
    def is_partition(self) -> bool:
        """Whether every row is held out once."""
        return bool((np.bincount(np.concatenate(self.test), minlength=self.n) == 1).all())

    @property
    def serve_intervals(self) -> bool:
        """Whether they hold out every row once, a few rows at a time, and train on all others."""
        return not self.is_loo and self.train_on_the_rest and self.is_partition

    def scales(self, roots: NDArray[np.float64] | None) -> NDArray[np.float64]:
        """√w of the training rows of every fold, and 0 of the others; shape (n, n_folds)."""
        scales = np.zeros((self.n, len(self)))
        for k in range(len(self)):
            rows = self.training(k)
            scales[rows, k] = 1.0 if roots is None else roots[rows]
        return scales

    def mean_predictions(self, of_folds: Sequence[NDArray[np.float64]], shape: tuple[int, ...]) -> NDArray[np.float64]:
        """Predictions of the rows that each fold holds out as one array: the mean where a row is held out more often.

        NaN where a row never is.
        """
        total, times = np.zeros(shape), np.zeros(shape[0])
        for rows, values in zip(self.test, of_folds, strict=True):
            total[rows] += values
            times[rows] += 1
        return np.asarray(total / np.where(times == 0, np.nan, times)[:, None])

    def check_weights(self, weights: NDArray[np.float64] | None) -> None:
        """Refuse folds whose training rows, or rows held out, all have weight 0."""
        if weights is None:
            return
        if self.is_loo and np.count_nonzero(weights) < 2:
            raise InputError("sample_weight is positive in one row only; expected at least two rows to leave one out")
        for k, test in enumerate(self.test):
            if not (weights[self.training(k)] > 0).any():
                raise InputError(
                    f"fold {k} (counted from 0) has no training row of positive sample_weight; expected at least one "
                    f"in every fold: use fewer folds, or shuffle them"
                )
            if not (weights[test] > 0).any():
                raise InputError(
                    f"fold {k} (counted from 0) holds out no row of positive sample_weight, so that it has no score; "
                    f"expected at least one in every fold: use fewer folds, or shuffle them"
                )


def _are_disjoint(a: Numbers, b: Numbers, n: int) -> bool:
    """Whether two sets of rows, of n, have none in common."""
    is_in = np.zeros(n, bool)
    is_in[a] = True
    return not is_in[b].any()


@dataclass(frozen=True, kw_only=True)
class SelectionData(TrainingData):
    """Data of a selection."""

    folds: Folds
    candidates: tuple[float, ...]
    """λ in descending order."""
    outputs_in_run = ""

    def by_folds(self) -> Self:
        """Sort the rows by fold, if they are in memory and each is in exactly one fold.

        The inverse columns of a fold are then contiguous, and are computed from its first row on.
        """
        folds = self.folds
        if (
            folds.is_loo
            or not folds.is_partition
            or not isinstance(self.rows, MemoryRows)
            or self.kernel.is_precomputed
        ):
            return self
        order, cuts = np.concatenate(folds.test), np.cumsum([0, *map(len, folds.test)])
        return replace(
            self,
            rows=MemoryRows(self.rows.take(order)),
            targets=self.targets[order],
            weights=None if self.weights is None else self.weights[order],
            folds=Folds(folds.n, tuple(np.arange(a, b) for a, b in pairwise(cuts)), folds.train),
        )

    def fingerprint(self, rows: Checksums) -> dict[str, Any]:
        folds: Any = "leave-one-out"
        if not self.folds.is_loo:
            parts = [(self.folds.training(k), [-1], test, [-1]) for k, test in enumerate(self.folds.test)]
            folds = digest_of(np.concatenate([part for fold in parts for part in fold]).astype(np.float64))
        return super().fingerprint(rows) | {"alpha": list(self.candidates), "folds": folds}
