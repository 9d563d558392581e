"""What searches share: the candidates of the kernel's parameters, and the table of results."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import ParameterGrid

from dkrr.errors import InputError

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
    found: dict[str, Any] = {"params": parameters}
    for name in parameters[0]:
        column = np.ma.MaskedArray(np.empty(len(parameters), object), mask=False)
        column[:] = [p[name] for p in parameters]
        found[f"param_{name}"] = column
    if has_splits:
        found |= {f"split{k}_test_score": scores[:, k] for k in range(scores.shape[1])}
    mean = scores.mean(axis=1)
    known = np.where(np.isnan(mean), -np.inf, mean)
    ranks = np.array([1 + np.count_nonzero(known > value) for value in known], np.int32)
    spread = scores.std(axis=1) if has_splits else np.full(len(mean), np.nan)
    return found | {"mean_test_score": mean, "std_test_score": spread, "rank_test_score": ranks} | more
