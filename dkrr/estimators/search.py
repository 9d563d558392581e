"""What searches share: the candidates of the kernel's parameters, and the table of results."""

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import ParameterGrid

from dkrr.checks import shown
from dkrr.errors import InputError
from dkrr.kernels.descriptions import DEFAULTS, taken_by
from dkrr.linalg.operator import root_mean_squares
from dkrr.selection import LearningCurve, gain_of, times_square

Array = NDArray[np.float64]

SEARCHED = ("kernel", "gamma", "degree", "coef0")
"""Parameters of the kernel whose lists are candidates."""


MIN_VALUES = 3
"""Values of a parameter from which on an end of them is worth a word."""
FAR_MEAN = 3.0
"""Mean of targets over their standard deviation from which on a model without a constant is worth a word."""

MODEL = ("fit_intercept", "class_weight", "multi_class", "transformer")
"""Parameters besides λ and the kernel's that change what a model is; the others only change how it is found."""


def parameter_grid(estimator: Any) -> list[dict[str, Any]]:
    """Every combination of the kernel's parameters that are lists; one empty dict where none is.

    Of several kernels each has only those that it takes.
    """
    lists = {}
    for name in SEARCHED:
        value = getattr(estimator, name)
        if isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim > 0):
            if len(value) == 0:
                raise InputError(f"{name} is an empty list; expected at least one candidate")
            lists[name] = list(value)
    if "kernel" not in lists:
        return list(ParameterGrid(lists))
    kernels = lists["kernel"]
    for name, default in DEFAULTS.items():
        value = getattr(estimator, name)
        is_given = name in lists or (value is not default and value != default)
        if is_given and not any(name in taken_by(kernel) for kernel in kernels):
            raise InputError(
                f"{name} is {shown(value)}, which none of the kernels {shown(kernels)} has; expected {name}={default!r}"
            )
    grids = [
        {name: [kernel] if name == "kernel" else values for name, values in lists.items() if name in takes(kernel)}
        for kernel in kernels
    ]
    return list(ParameterGrid(grids))


def takes(kernel: Any) -> tuple[str, ...]:
    """Those of `SEARCHED` that a kernel has, itself included."""
    return ("kernel", *taken_by(kernel))


def kernel_settings(estimator: Any, parameters: dict[str, Any]) -> dict[str, Any]:
    """All settings of the kernel of a candidate, whose `parameters` are those of the grid."""
    given = {name: getattr(estimator, name) for name in SEARCHED} | parameters
    if "kernel" in parameters:
        given = {name: value for name, value in given.items() if name in takes(given["kernel"])}
    return given | {"kernel_params": estimator.kernel_params}


def complete_params(estimator: Any, model: type, alpha: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """`best_params_`: all that makes a model of this class the chosen one, from the `kernel_settings` of the best."""
    names = ("kernel_params", *takes(settings["kernel"]))
    found = {name: settings[name] for name in SEARCHED if name in names}
    if settings.get("kernel_params") is not None:
        found["kernel_params"] = settings["kernel_params"]
    defaults = {field.name: field.default for field in fields(model)}
    others = {name: getattr(estimator, name) for name in MODEL if name in defaults}
    return {"alpha": alpha} | found | {name: v for name, v in others.items() if v is not defaults[name]}


def score_name(scoring: Any, default: str) -> str:
    """Name of the score of a search."""
    return default if scoring is None else str(getattr(scoring, "__name__", scoring))


def edges(parameters: list[dict[str, Any]], best: Any) -> Iterator[str]:
    """Words for parameters whose best value is the smallest or the largest candidate.

    Parameters
    ----------
    parameters : list of dict
        Candidates.
    best : int or ndarray of shape (n_targets,)
        Numbers of the best.
    """
    chosen = [parameters[k] for k in np.atleast_1d(best).tolist()]
    for name in ("alpha", *DEFAULTS):
        values = {p[name] for p in parameters if isinstance(p.get(name), int | float)}
        for end, word, further in ((min, "smallest", "smaller"), (max, "largest", "larger")):
            count = sum(p.get(name) == end(values) for p in chosen) if len(values) >= MIN_VALUES else 0
            if count and (end(values) != 0 or end is max):
                of = "" if len(chosen) == 1 else f", for {count} of {len(chosen)} targets"
                yield (
                    f"the best {name} is the {word} of the candidates, {end(values):g}{of}: the best may lie beyond, "
                    f"try {further} values"
                )


def without_constant(means: Array, deviations: Array, r2: Array | None) -> Iterator[str]:
    """Words for a model without a free constant whose targets are far from 0.

    Parameters
    ----------
    means, deviations : ndarray of shape (n_targets,)
        Of the targets.
    r2 : ndarray of shape (n_targets,) or (1,), optional
        R² of the rows that were left out, if it is known.
    """
    sizes, poor = np.abs(means), np.zeros(len(means), bool) if r2 is None else np.broadcast_to(r2 < 0, means.shape)
    far = (sizes > FAR_MEAN * deviations) | (poor & (sizes > deviations))
    if far.any():
        k = int(np.argmax(np.where(far, sizes, -1.0)))
        found = "" if r2 is None else f", and R² is {np.broadcast_to(r2, means.shape)[k]:.3g}"
        of = "" if len(means) == 1 else f" of target {k} (counted from 0)"
        yield (
            f"the targets' mean{of} is {means[k]:.3g} and their standard deviation {deviations[k]:.3g}{found}, "
            f"without a free constant: fit_intercept=True (--fit-intercept) adds one"
        )


def search_results(
    parameters: list[dict[str, Any]], values: Array, unit: float = 1.0, *, has_splits: bool, **more: Any
) -> dict[str, Any]:
    """`cv_results_` as GridSearchCV has it.

    Parameters
    ----------
    parameters : list of dict
        Candidates.
    values : ndarray of shape (n_candidates, n_folds, k)
        Scores, for each of k targets or all together; NaN where a candidate was given up.
    unit : float
        Power of two whose square they are to be multiplied by.
    has_splits : bool
        Whether the scores of single folds are given.
    more : dict
        Further columns.
    """
    scores = values.mean(axis=2)
    found: dict[str, Any] = {"params": parameters} | parameter_columns(parameters)
    mean = scores.mean(axis=1)
    known = np.where(np.isnan(mean), -np.inf, mean)
    ranks = np.array([1 + np.count_nonzero(known > value) for value in known], np.int32)
    spread = root_mean_squares((scores - mean[:, None]).T) if has_splits else np.full(len(mean), np.nan)
    scores, mean, spread = (times_square(each, unit) for each in (scores, mean, spread))
    if has_splits:
        found |= {f"split{k}_test_score": scores[:, k] for k in range(scores.shape[1])}
    return found | {"mean_test_score": mean, "std_test_score": spread, "rank_test_score": ranks} | more


def parameter_columns(parameters: list[dict[str, Any]]) -> dict[str, Any]:
    """Columns of `cv_results_` with the parameters of all candidates."""
    found = {}
    for name in dict.fromkeys(name for p in parameters for name in p):
        column = np.ma.MaskedArray(np.empty(len(parameters), object), mask=True)
        for k, p in enumerate(parameters):
            if name in p:
                column[k] = p[name]
        found[f"param_{name}"] = column
    return found


def curve_results(
    parameters: list[dict[str, Any]],
    alphas: Array,
    values: Array,
    parts: Array,
    curve: LearningCurve,
    best: int,
    unit: float = 1.0,
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
    unit : float
        Power of two whose square the scores are to be multiplied by.
    is_per_target : bool
        Every target has a λ of its own.
    """
    values = np.concatenate([parts, values[:, None]], axis=1)  # kernels × sizes × λ × folds × targets, all rows last
    known = values.mean(axis=3)  # kernels × sizes × λ × targets
    chosen = np.argmax(np.where(np.isnan(known), -np.inf, known), axis=2)
    each = np.take_along_axis(values, chosen[:, :, None, None], axis=2)[:, :, 0]  # kernels × sizes × folds × targets
    each = times_square(each, unit)
    scores, of_target = each[best].mean(axis=2), alphas[chosen[best]]
    sizes = np.vstack([curve.sizes, curve.n_training])
    held_out = np.mean([np.count_nonzero(curve.is_counting[rows]) for rows in curve.folds.test])
    gain = gain_of(sizes[-2:], scores[-2:], float(held_out / sizes[-1].mean()))
    found = {
        "train_sizes": np.rint(sizes.mean(axis=1)).astype(np.intp),
        "split_train_sizes": sizes,
        "test_scores": scores,
        "mean_test_score": scores.mean(axis=1),
        "std_test_score": root_mean_squares((scores - scores.mean(axis=1, keepdims=True)).T),
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
