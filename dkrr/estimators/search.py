"""What searches share: the candidates of the kernel's parameters, and the table of results."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import ParameterGrid

from dkrr.errors import InputError
from dkrr.selection import LearningCurve, gain_of

Array = NDArray[np.float64]

SEARCHED = ("kernel", "gamma", "degree", "coef0")
"""Parameters of the kernel whose lists are candidates."""


def parameter_grid(estimator: Any) -> list[dict[str, Any]]:
    """Every combination of the kernel's parameters that are lists; one empty dict where none is."""
    lists = {}
    for name in SEARCHED:
        value = getattr(estimator, name)
        if isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim > 0):
            if len(value) == 0:
                raise InputError(f"{name} is an empty list; expected at least one candidate")
            lists[name] = list(value)
    return list(ParameterGrid(lists))


def search_results(parameters: list[dict[str, Any]], values: Array, *, has_splits: bool, **more: Any) -> dict[str, Any]:
    """`cv_results_` as GridSearchCV has it.

    Parameters
    ----------
    parameters : list of dict
        Candidates.
    values : ndarray of shape (n_candidates, n_folds, k)
        Scores, for each of k targets or all together; NaN where a candidate was given up.
    has_splits : bool
        Whether the scores of single folds are given.
    more : dict
        Further columns.
    """
    scores = values.mean(axis=2)
    found: dict[str, Any] = {"params": parameters} | parameter_columns(parameters)
    if has_splits:
        found |= {f"split{k}_test_score": scores[:, k] for k in range(scores.shape[1])}
    mean = scores.mean(axis=1)
    known = np.where(np.isnan(mean), -np.inf, mean)
    ranks = np.array([1 + np.count_nonzero(known > value) for value in known], np.int32)
    spread = scores.std(axis=1) if has_splits else np.full(len(mean), np.nan)
    return found | {"mean_test_score": mean, "std_test_score": spread, "rank_test_score": ranks} | more


def parameter_columns(parameters: list[dict[str, Any]]) -> dict[str, Any]:
    """Columns of `cv_results_` with the parameters of all candidates."""
    found = {}
    for name in parameters[0]:
        column = np.ma.MaskedArray(np.empty(len(parameters), object), mask=False)
        column[:] = [p[name] for p in parameters]
        found[f"param_{name}"] = column
    return found


def curve_results(
    parameters: list[dict[str, Any]],
    alphas: Array,
    values: Array,
    parts: Array,
    curve: LearningCurve,
    best: int,
    *,
    is_per_target: bool = False,
) -> dict[str, Any]:
    """`learning_curve_` of a search.

    Parameters
    ----------
    parameters : list of dict
        Parameters of every kernel.
    alphas : ndarray of shape (n_alphas,)
    values : ndarray of shape (n_kernels, n_alphas, n_folds, k)
        Scores of the folds, for each of k targets or all together; NaN where a candidate was given up.
    parts : ndarray of shape (n_kernels, n_sizes, n_alphas, n_folds, k)
        Those of the parts.
    curve : LearningCurve
    best : int
        Number of the kernel that was chosen.
    is_per_target : bool
        Every target has a λ of its own.
    """
    values = np.concatenate([parts, values[:, None]], axis=1)  # kernels × sizes × λ × folds × targets, all rows last
    known = values.mean(axis=3)  # kernels × sizes × λ × targets
    chosen = np.argmax(np.where(np.isnan(known), -np.inf, known), axis=2)
    each = np.take_along_axis(values, chosen[:, :, None, None], axis=2)[:, :, 0]  # kernels × sizes × folds × targets
    scores, of_target = each[best].mean(axis=2), alphas[chosen[best]]
    sizes = np.vstack([curve.sizes, curve.n_training])
    held_out = np.mean([np.count_nonzero(curve.is_counting[rows]) for rows in curve.folds.test])
    gain = gain_of(sizes[-2:], scores[-2:], float(held_out / sizes[-1].mean()))
    found = {
        "train_sizes": np.rint(sizes.mean(axis=1)).astype(np.intp),
        "split_train_sizes": sizes,
        "test_scores": scores,
        "mean_test_score": scores.mean(axis=1),
        "std_test_score": scores.std(axis=1),
        "alpha": of_target if is_per_target else of_target[:, 0],
        "params": parameters,
        "mean_test_score_of_kernels": each.mean(axis=(2, 3)),
        "gain_per_doubling": gain.per_doubling,
        "gain_standard_error": gain.standard_error,
        "gain_margin": gain.margin,
        "conclusion": gain.conclusion(),
    }
    if is_per_target:
        found["mean_test_score_per_target"] = each[best].mean(axis=1)
    return found
