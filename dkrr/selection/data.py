"""Data of a selection: those of a regression, with folds and candidates of λ."""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Self

import numpy as np

from dkrr.data import MemoryRows
from dkrr.data.rows import digest_of
from dkrr.fitting.data import TrainingData
from dkrr.selection.folds import Folds


@dataclass(frozen=True, kw_only=True)
class SelectionData(TrainingData):
    """Data of a selection."""

    folds: Folds
    candidates: tuple[float, ...]
    """λ in descending order."""

    def by_folds(self) -> Self:
        """The same with the rows in the order of their folds, if they are in memory and each is in one.

        Columns of the inverse that belong to a fold are then computed from its first row on.
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

    def fingerprint(self, rows_digest: str) -> dict[str, Any]:
        folds: Any = "leave-one-out"
        if not self.folds.is_loo:
            rows = [(self.folds.training(k), [-1], test, [-1]) for k, test in enumerate(self.folds.test)]
            folds = digest_of(np.concatenate([part for fold in rows for part in fold]).astype(np.float64))
        return super().fingerprint(rows_digest) | {"alpha": list(self.candidates), "folds": folds}
