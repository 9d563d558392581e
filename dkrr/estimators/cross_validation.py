"""Folds and scores as scikit-learn's users give them."""

import inspect
from collections.abc import Iterable
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.metrics import get_scorer
from sklearn.model_selection import KFold, LeaveOneOut, StratifiedKFold, check_cv

from dkrr.checks import checked_train_sizes, shown, whole
from dkrr.errors import InputError, InputTypeError
from dkrr.selection import Folds, LearningCurve, Score, negative_squared_error

Array = NDArray[np.float64]
Numbers = NDArray[np.intp]


def checked_folds(cv: Any, y: Any, groups: Any = None, *, is_classification: bool = False) -> Folds:
    """Folds of as many rows as y has.

    Parameters
    ----------
    cv : int, splitter, iterable of (train, test), "loo" or None
        None is "loo".
    y : ndarray of shape (n,) or (n, t)
    groups : array-like of shape (n,), optional
    is_classification : bool
        Whether an int makes folds with about the same fractions of all classes.

    Raises
    ------
    InputError
        If the folds cannot be used.
    """
    n = len(y)
    check_groups(groups, n)
    if cv is None or (isinstance(cv, str) and cv == "loo") or isinstance(cv, LeaveOneOut):
        if n < 2:
            raise InputError(f"leave-one-out needs at least 2 rows, and X has n_samples={n}")
        return Folds.leave_one_out(n)
    splits = _splits(cv, n, y, groups, is_classification=is_classification)
    pairs = [(_rows(train, n, k, "training"), _rows(test, n, k, "test")) for k, (train, test) in enumerate(splits)]
    if not pairs:
        raise InputError(f"cv={cv!r} yields no folds; expected at least one pair (train, test)")
    return Folds.of_pairs(n, pairs)


def check_groups(groups: Any, n: int) -> None:
    """Refuse groups that are not a sequence with one for each of n rows, also where the splitter does not use them."""
    if groups is None:
        return
    if isinstance(groups, str | bytes) or not hasattr(groups, "__len__") or np.ma.is_masked(groups):
        raise InputTypeError(f"groups is {shown(groups)}; expected a group for each of {n} rows, or None")
    try:
        shape = np.shape(groups)
    except (TypeError, ValueError, RecursionError):
        shape = None
    if shape != (n,) or sp.issparse(groups):
        raise InputError(f"groups has shape {shape}; expected ({n},), a group for each row, or None")


def checked_curve(
    train_sizes: Any, folds: Folds, weights: Array | None, groups: Any, random_state: Any
) -> LearningCurve | None:
    """Parts of the training rows for a learning curve; None without sizes.

    Raises
    ------
    InputError
        If an argument cannot be used.
    """
    seed = whole(random_state, "random_state", 0, "any seed serves")
    if train_sizes is None:
        return None
    if folds.is_loo:
        raise InputError(
            "train_sizes is given, and cv is leave-one-out, whose one score has no folds that could train on parts of "
            "the rows; expected a number of folds: give cv=5"
        )
    return LearningCurve.of(folds, checked_train_sizes(train_sizes), weights, groups, seed)


def shuffled_folds(n_folds: int, seed: int, *, is_classification: bool = False) -> KFold | StratifiedKFold:
    """Folds of random rows, with about the same fractions of all classes for a classification."""
    return (StratifiedKFold if is_classification else KFold)(n_folds, shuffle=True, random_state=seed)


def _splits(cv: Any, n: int, y: Any, groups: Any, *, is_classification: bool) -> Iterable[Any]:
    is_whole = isinstance(cv, int | np.integer) and not isinstance(cv, bool)
    if isinstance(cv, bool | str) or (is_whole and cv < 2):
        raise InputError(
            f"cv is {shown(cv)}; expected a number of folds of at least 2, a splitter of scikit-learn, pairs (train, "
            f"test), or 'loo'"
        )
    if is_whole and cv > n:
        raise InputError(
            f"cv is {shown(cv)}, and X has n_samples={n}; expected at most as many folds as rows: cv='loo' leaves out "
            f"one row at a time"
        )
    try:
        return list(check_cv(cv, y, classifier=is_classification).split(np.zeros((n, 1)), y, groups))
    except (TypeError, ValueError, AttributeError, RecursionError, OverflowError) as error:
        raise InputError(f"cv={shown(cv)} cannot split {n} rows: {error}") from error


def _rows(rows: Any, n: int, fold: int, name: str) -> Numbers:
    """Numbers of rows in ascending order; raises InputError if they are none, or not rows."""
    found, where = np.asarray(rows), f"fold {fold} (counted from 0) of cv"
    if found.dtype == bool and found.shape == (n,):
        found = np.flatnonzero(found)
    if found.size == 0:
        raise InputError(f"{where} has no {name} rows; expected at least one: use fewer folds")
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise InputError(f"{where} has {name} rows of shape {found.shape} and type {found.dtype}; expected row numbers")
    if found.min() < -n or found.max() >= n:
        raise InputError(
            f"{where} has {name} row {found.max() if found.max() >= n else found.min()}, and X has {n} rows"
        )
    ordered = found.astype(np.intp) % n
    if (np.diff(ordered) < 0).any():
        ordered.sort()
    if (np.diff(ordered) == 0).any():
        raise InputError(f"{where} names a {name} row twice; expected each once: give it sample_weight=2 instead")
    return ordered


class _Predicted(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """An estimator whose predictions are known: what a scorer asks for."""

    def __init__(self, predictions: Array | None = None) -> None:
        self.predictions = predictions

    def fit(self, X: Any, y: Any) -> "_Predicted":  # noqa: ARG002
        """Nothing; scikit-learn takes what has no `fit` for no estimator."""
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def predict(self, X: Any) -> Any:  # noqa: ARG002
        """The predictions."""
        return self.predictions


def named_scorer(scoring: Any) -> Any:
    """Scorer of scikit-learn by its name; a function as it is. Raises InputError for anything else."""
    try:
        if isinstance(scoring, type):
            raise TypeError("a class is not a function")
        return scoring if callable(scoring) else get_scorer(scoring)
    except (ValueError, TypeError) as error:
        raise InputError(
            f"scoring is {shown(scoring)}; expected None, a name of sklearn.metrics.get_scorer_names(), or a function "
            f"scorer(estimator, X, y)"
        ) from error


def checked_scoring(scoring: Any) -> Score:
    """Score of scikit-learn's argument `scoring`: None, a name, or a function scorer(estimator, X, y).

    Such a function is called with an estimator that returns the held-out predictions, and the numbers of their rows as
    X, of shape (k, 1). Sample weights are passed on to scores that take them.

    Raises
    ------
    InputError
        If it cannot be used.
    """
    if scoring is None or (isinstance(scoring, str) and scoring == "neg_mean_squared_error"):
        return negative_squared_error  # of targets whose squares leave float64, too
    scorer = named_scorer(scoring)
    wanted = getattr(scorer, "_response_method", "predict")
    if wanted != "predict":
        raise InputError(
            f"scoring={shown(scoring)} needs {wanted}, which a regression does not have; expected a score of "
            f"predictions, such as 'r2' or 'neg_mean_absolute_error'"
        )
    takes_weights = "sample_weight" in inspect.signature(getattr(scorer, "_score_func", scorer)).parameters

    def score(predictions: Array, targets: Array, weights: Array | None, rows: Numbers) -> float:
        given = {"sample_weight": weights} if takes_weights and weights is not None else {}
        try:
            value = scorer(_Predicted(predictions), rows[:, None], targets, **given)
            return float(value)
        except (AttributeError, TypeError, ValueError) as error:
            raise InputError(
                f"scoring={shown(scoring)} failed on held-out predictions of shape {predictions.shape}: {error}"
            ) from error

    return score
