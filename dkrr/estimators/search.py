"""Common parts of searches: folds and scores as users give them, candidates, the table of results."""

import inspect
from collections.abc import Iterable, Iterator
from dataclasses import fields
from numbers import Real
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.metrics import get_scorer
from sklearn.model_selection import KFold, LeaveOneOut, StratifiedKFold, check_cv

from dkrr.blas import root_mean_squares
from dkrr.checks import checked_train_sizes, shown, whole
from dkrr.errors import InputError, InputTypeError
from dkrr.kernels.names import SEARCHED, SETTING_DEFAULTS, candidate_grid, candidate_settings, taken_by
from dkrr.selection import Folds, LearningCurve, Score, gain_of, named, negative_squared_error
from dkrr.text import plural

Array = NDArray[np.float64]
Numbers = NDArray[np.intp]

N_FOLDS = 5
"""Folds of cv=None."""


def checked_folds(cv: Any, y: Any, groups: Any = None, *, is_classification: bool = False) -> Folds:
    """Folds of as many rows as y has.

    Parameters
    ----------
    cv : int, splitter, iterable of (train, test), "loo" or None
        None is 5, as in GridSearchCV.
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
    cv = N_FOLDS if cv is None else cv
    if (isinstance(cv, str) and cv == "loo") or isinstance(cv, LeaveOneOut):
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
        raise InputTypeError(f"groups is {shown(groups)}; expected a group for each of {plural(n, 'row')}, or None")
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
    seed = whole(random_state, "random_state", 0)
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
        raise InputError(f"cv={shown(cv)} cannot split {plural(n, 'row')}: {error}") from error


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
            f"{where} has {name} row {found.max() if found.max() >= n else found.min()}, and X has {plural(n, 'row')}"
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
    """Scorer of scikit-learn by its name; a function is returned unchanged. Raises InputError for anything else."""
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


FAR_MEAN = 3.0
"""Mean of targets over their standard deviation from which on a model without a constant is worth a word."""

MODEL_PARAMETERS = ("fit_intercept", "class_weight", "one_vs_rest", "transformer")
"""Parameters besides λ and the kernel's that change what a model is; the others only change how it is found."""


def parameter_grid(estimator: Any) -> list[dict[str, Any]]:
    """Every combination of the kernel's parameters that are lists; one empty dict where none is."""
    return candidate_grid({name: getattr(estimator, name) for name in SEARCHED}, estimator.kernel_params)


def kernel_settings(estimator: Any, parameters: dict[str, Any]) -> dict[str, Any]:
    """All settings of the kernel of a candidate, whose `parameters` are those of the grid."""
    given = {name: getattr(estimator, name) for name in SEARCHED}
    return candidate_settings(given, estimator.kernel_params, parameters)


def complete_params(estimator: Any, model: type, alpha: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """`best_params_`: all that makes a model of this class the chosen one, from the `kernel_settings` of the best."""
    names = ("kernel_params", "kernel", *taken_by(settings["kernel"]))
    found = {name: settings[name] for name in SEARCHED if name in names}
    if settings.get("kernel_params") is not None:
        found["kernel_params"] = settings["kernel_params"]
    defaults = {field.name: field.default for field in fields(model)}
    others = {name: getattr(estimator, name) for name in MODEL_PARAMETERS if name in defaults}
    return {"alpha": alpha} | found | {name: v for name, v in others.items() if v is not defaults[name]}


def score_name(scoring: Any, default: str) -> str:
    """Name of the score of a search."""
    return default if scoring is None else str(getattr(scoring, "__name__", scoring))


def edges(parameters: list[dict[str, Any]], best: Any, scores: Array, remedy: str) -> Iterator[str]:
    """Words for parameters whose best value has no candidate, or none with a score, on one of its sides.

    Nothing is said of a parameter whose best value is no better than one between, where the curve is flat.

    Parameters
    ----------
    parameters : list of dict
        Candidates.
    best : int or ndarray of shape (n_targets,)
        Numbers of the best.
    scores : ndarray of shape (n_candidates, n_targets or 1)
        Mean scores; NaN where there is none.
    remedy : str
        What gives a score to candidates without one.
    """
    numbers = np.atleast_1d(best)
    for name in ("alpha", *SETTING_DEFAULTS):
        found = dict[tuple[str, str], int]()  # what is said before the number of targets, and after it: of how many
        for k in np.unique(numbers).tolist():
            own = scores[:, numbers == k]
            for text, count in _sides(parameters, k, name, own, remedy):
                found[text] = found.get(text, 0) + count
        for (before, after), count in found.items():
            of = "" if len(numbers) == 1 else f", for {count} of {len(numbers)} targets"
            yield f"{before}{of}: {after}"


def _sides(
    parameters: list[dict[str, Any]], best: int, name: str, scores: Array, remedy: str
) -> Iterator[tuple[tuple[str, str], int]]:
    """Messages about unknown scores on either side of the best value of a parameter, with their numbers of targets."""
    row = _in_a_row(parameters, best, name)
    if len(row) < 2:
        return
    place, known = row.index(best), ~np.isnan(scores[row])
    values, chosen = [parameters[k][name] for k in row], parameters[best][name]
    same = scores[row] == scores[best]
    for step, superlative, further in ((-1, "smallest", "smaller"), (1, "largest", "larger")):
        beyond = list(range(place - 1, -1, -1) if step < 0 else range(place + 1, len(row)))
        others = list(range(place + 1, len(row)) if step < 0 else range(place - 1, -1, -1))
        if not beyond:
            # A value that is as good farther inside: the best does not lie beyond.
            is_end = known[others].any(axis=0) & ~same[others].any(axis=0)
            if is_end.any() and not (chosen == 0 and step < 0):
                word = f"the {superlative} of the" if len(row) > 2 else f"the {further} of the two"
                more = f"try {further} values" + (", and some between" if len(row) == 2 else "")
                text = f"the best {name} is {word} candidates, {chosen:g}", f"the best may lie beyond, {more}"
                yield text, int(is_end.sum())
            continue
        first = np.where(known[beyond].any(axis=0), known[beyond].argmax(axis=0), len(beyond))  # candidates without one
        for count in np.unique(first[first > 0]).tolist():
            unscored = named([values[k] for k in beyond[:count]])
            best_may = f"{'' if name == 'alpha' else ' at this alpha'}, and the best may be among them: {remedy}"
            if count == len(beyond):
                text = (
                    f"the best {name} is the {superlative} with a score, {chosen:g}",
                    f"the {further} candidates {unscored} have none{best_may}",
                )
            else:
                text = (
                    f"the best {name} is {chosen:g}",
                    f"the next {further} candidates {unscored} have no score{best_may}",
                )
            yield text, int((first == count).sum())


def _in_a_row(parameters: list[dict[str, Any]], best: int, name: str) -> list[int]:
    """Numbers of the candidates that differ from the best in one parameter only, by its value; of equal ones the best.

    Candidates of one grid share the values of all parameters but λ.
    """
    chosen = parameters[best]

    def is_in_row(p: dict[str, Any]) -> bool:
        if not isinstance(p.get(name), Real) or p.keys() != chosen.keys():
            return False
        return all(
            p[key] is value or (key == "alpha" and p[key] == value) for key, value in chosen.items() if key != name
        )

    if not isinstance(chosen.get(name), Real):
        return []
    found = {parameters[k][name]: k for k in [*(k for k, p in enumerate(parameters) if is_in_row(p)), best]}
    return [found[value] for value in sorted(found)]


def without_constant(means: Array, deviations: Array, r2: Array | None) -> Iterator[str]:
    """Words for a model without an intercept whose targets are far from 0.

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
            f"without an intercept: fit_intercept=True (--fit-intercept) adds one"
        )


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
    mean = scores.mean(axis=1)
    known = np.where(np.isnan(mean), -np.inf, mean)
    ranks = np.array([1 + np.count_nonzero(known > value) for value in known], np.int32)
    spread = root_mean_squares((scores - mean[:, None]).T) if has_splits else np.full(len(mean), np.nan)
    if has_splits:
        found |= {f"split{k}_test_score": scores[:, k] for k in range(scores.shape[1])}
    return found | {"mean_test_score": mean, "std_test_score": spread, "rank_test_score": ranks} | more


def parameter_columns(parameters: list[dict[str, Any]]) -> dict[str, Any]:
    """Columns of `cv_results_` with the parameters of all candidates: masked arrays, of numbers where all are."""
    found = {}
    for name in dict.fromkeys(name for p in parameters for name in p):
        known = [p[name] for p in parameters if name in p]
        dtype = np.array(known).dtype if all(isinstance(value, Real) for value in known) else np.dtype(object)
        column = np.ma.MaskedArray(np.empty(len(parameters), dtype), mask=True)
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
        Every target has its own λ.
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
