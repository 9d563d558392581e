"""Models of a fit that each leave out the rows of a fold: one function of many columns, and the errors of the rows."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dkrr.data import Rows
from dkrr.errors import StoreError
from dkrr.fitting.data import TrainingData, shared_fields
from dkrr.fitting.fitted_function import FittedFunction
from dkrr.fitting.prediction import check_predictions, predict_together, refuse_nan
from dkrr.fitting.requests import FitRequest, Targets
from dkrr.fitting.sampled import centre_linear_parts
from dkrr.kernels.fourier_grid import map_of_predictions
from dkrr.kernels.map_base import FeatureMap
from dkrr.linalg.shifted_lists import ShiftedLists

Array = NDArray[np.float64]
Numbers = NDArray[np.intp]


def name_of(folds: Sequence[Numbers]) -> str:
    """Checksum of folds."""
    digest = hashlib.sha256(repr([len(rows) for rows in folds]).encode())
    for rows in folds:
        digest.update(np.ascontiguousarray(rows, np.int64).tobytes())
    return digest.hexdigest()


def counting(rows: Numbers, weights: Array | None) -> NDArray[np.bool_]:
    """Which rows have a weight: errors of the others count for nothing."""
    return np.ones(len(rows), bool) if weights is None else weights[rows] > 0


def sorted_sizes(errors: Sequence[Array], folds: Sequence[Numbers], weights: Array | None) -> list[Array]:
    """|y − f| of the rows of every fold that count, ascending in each column."""
    each = [np.abs(one[counting(rows, weights)]) for one, rows in zip(errors, folds, strict=True)]
    for one in each:
        refuse_nan(one)
        one.sort(axis=0)
    return each


def lists_of(errors: Sequence[Array]) -> list[ShiftedLists]:
    """Sorted lists of the errors of each target, from the errors of each fold."""
    return [ShiftedLists([np.ascontiguousarray(one[:, j]) for one in errors]) for j in range(errors[0].shape[1])]


@dataclass(frozen=True)
class FoldModels:
    """Models that each leave out the rows of a fold, of all targets of one λ.

    Parameters
    ----------
    function : FittedFunction
        Function with n_folds × t columns: target j by the model without fold f is column f t + j.
    errors : sequence of ndarray of shape (rows, t)
        |y − f| of the rows that are left out and count, fold by fold, ascending in each column.
    """

    function: FittedFunction
    errors: Sequence[Array]
    doubt: str = ""
    """Why they may have few correct digits; empty where they are certain."""

    @classmethod
    def of(
        cls,
        function: FittedFunction,
        errors: Sequence[Array],
        folds: Sequence[Numbers],
        weights: Array | None,
        doubt: str = "",
    ) -> "FoldModels":
        """Models with y − f of all rows that are left out, in the order of the folds."""
        return cls(function, sorted_sizes(errors, folds, weights), doubt)

    @cached_property
    def lists(self) -> list[ShiftedLists]:
        """Errors of each target."""
        return lists_of(self.errors)

    def saved(self) -> "SavedFolds":
        """State of the models of the folds in a saved model."""
        function = self.function
        coef = function.dual_coef if function.coef is None else function.coef
        assert coef is not None
        return SavedFolds(
            "dual" if function.coef is None else "primal",
            self.doubt,
            coef,
            function.intercept,
            np.concatenate(self.errors),
        )

    def __getstate__(self) -> dict[str, Any]:
        # The owner of a temporary folder does not leave the process.
        return {"function": replace(self.function, keep_alive=None), "errors": self.errors, "doubt": self.doubt}


@dataclass(frozen=True)
class SavedFolds:
    """Models that each leave out the rows of a fold, as a saved model holds them."""

    form: Literal["primal", "dual"]
    doubt: str
    coef: Array
    constants: Array
    errors: Array
    """|y − f| of the rows of all folds, one fold after another."""

    def check(self, n_targets: int, folds: Sequence[Numbers], weights: Array | None) -> None:
        """Refuse arrays of other folds, and errors that are not finite or not in order.

        Raises
        ------
        ValueError
            With what is wrong.
        """
        ends = np.cumsum([int(counting(rows, weights).sum()) for rows in folds])
        width = n_targets * len(folds)
        if self.coef.shape[1] != width or len(self.constants) != width or self.errors.shape != (ends[-1], n_targets):
            raise ValueError(f"models without a fold of shapes {self.coef.shape} and {self.errors.shape}")
        if not all(np.isfinite(one).all() for one in (self.coef, self.constants, self.errors)):
            raise ValueError("models without a fold that are not finite")
        parts = np.split(self.errors, ends[:-1])
        if (self.errors < 0).any() or any((np.diff(part, axis=0) < 0).any() for part in parts):
            raise ValueError("errors of folds that are not in order")

    def restored(self, request: FitRequest, alpha: float, columns: Numbers, folds: Sequence[Numbers]) -> "FoldModels":
        """Models of the targets of a λ in a request, from no factor.

        Raises
        ------
        StoreError
            If the coefficients are of other rows or features.
        """
        outputs = request.outputs
        assert isinstance(outputs, Targets)
        targets = Targets(outputs.values[:, columns], np.full(len(columns), alpha))
        request = replace(request.with_settings(form=self.form, store=None), outputs=targets)
        data = TrainingData.of(targets, shared_fields(request, request.problem()))
        data = centre_linear_parts(data)
        phi = None if self.form == "dual" or data.feature_map is None else map_of_predictions(data.feature_map)
        expected = data.n if phi is None else phi.dimension(data.rows.shape[1])
        if len(self.coef) != expected:
            raise StoreError(
                f"models without a fold have {len(self.coef)} coefficients, not {expected}: the model is damaged"
            )
        ends = np.cumsum([int(counting(rows, data.weights).sum()) for rows in folds])
        function = function_of(data, self.coef, self.constants, rows=request.rows, feature_map=phi)
        return FoldModels(function, np.split(self.errors, ends[:-1]), self.doubt)


def function_of(
    data: TrainingData,
    coef: Array,
    constants: Array,
    *,
    rows: Rows | None = None,
    feature_map: FeatureMap | None = None,
    owner: Any = None,
) -> FittedFunction:
    """Function of some columns of coefficients: of the features of a map, or beside the training rows.

    Parameters
    ----------
    data : TrainingData
        Data of the fit, with the kernel of the coefficients.
    coef : ndarray of shape (D, m) or (n, m)
    constants : ndarray of shape (m,)
    rows : Rows, optional
        Training rows, for the dual form; not read with a precomputed kernel.
    feature_map : FeatureMap, optional
        φ, for the primal form.
    owner : object, optional
        Owner of the temporary folder of the rows.
    """
    return FittedFunction(
        kernel=data.kernel,
        n_features=data.rows.shape[1],
        coef=None if feature_map is None else coef,
        feature_map=feature_map,
        dual_coef=coef if feature_map is None else None,
        rows=None if feature_map is not None or data.kernel.is_precomputed else rows,
        intercept=constants,
        keep_alive=owner,
    )


def predictions_beside(
    mean: FittedFunction | None, functions: Sequence[FittedFunction], rows: Rows, first: int
) -> tuple[Array | None, list[Array]]:
    """Predictions by the mean, if it is given, and by other functions of its training rows, of shape (m, columns) each.

    The kernel is evaluated once for all functions that share it.
    """
    every = [*([] if mean is None else [mean]), *functions]
    together = [every] if all(every[0].shares_values(one) for one in every[1:]) else [[one] for one in every]
    found = [values for some in together for values in predict_together(some, rows, first, _check)]
    return (None, found) if mean is None else (found[0], found[1:])


def _check(found: Array, first: int) -> None:
    if not math.isfinite(found.sum()):
        refuse_nan(found, first)
        check_predictions(found, first)
