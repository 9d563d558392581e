"""Data of a selection: those of a regression, with folds and candidates of λ."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from dkrr.fitting.data import TrainingData
from dkrr.rows.checks import digest_of
from dkrr.selection.folds import Folds


@dataclass(frozen=True, kw_only=True)
class SelectionData(TrainingData):
    """Data of a selection."""

    folds: Folds
    candidates: tuple[float, ...]
    """λ in descending order."""

    def fingerprint(self, rows_digest: str) -> dict[str, Any]:
        folds: Any = "leave-one-out"
        if not self.folds.is_loo:
            rows = [(self.folds.training(k), [-1], test, [-1]) for k, test in enumerate(self.folds.test)]
            folds = digest_of(np.concatenate([part for fold in rows for part in fold]).astype(np.float64))
        return super().fingerprint(rows_digest) | {"alpha": list(self.candidates), "folds": folds}
