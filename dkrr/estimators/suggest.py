"""The rows to measure next: those whose targets would lower the variances of a regression most."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkrr.checks import checked_progress, checked_whole, shown, whole
from dkrr.cluster.process import graceful_termination
from dkrr.data import Table, table_or_value
from dkrr.errors import InputError, InputTypeError
from dkrr.estimators.kernel_estimator import KernelEstimator
from dkrr.estimators.kernel_ridge import RidgeRegressor
from dkrr.estimators.predict_to import TABLES, check_predictions_path
from dkrr.fitting.prediction import check_rows
from dkrr.fitting.suggested import suggested
from dkrr.store.places import written_aside
from dkrr.text import plural
from dkrr.typing import RowsLike

ROW, GAIN = "row", "gain"
"""Names of the columns of a table of suggestions."""


@dataclass(frozen=True, eq=False)
class Suggestion:
    """Result of `suggest`: rows to measure next, and how much each tells.

    As an array it is `rows`: ``X[found]`` are the suggested rows of an array X, and
    ``numpy.delete(X, found, axis=0)`` the others.

    Attributes
    ----------
    rows : ndarray of shape (k,)
        Numbers of rows of X, counted from 0, the best first.
    gain : ndarray of shape (k,)
        Fall of the summed variance of the candidates by each row, after those before it, as a
        fraction of the sum before all. Their sum is what k measurements tell; where one of the last
        is far below one of the first, fewer would tell nearly as much.

    See Also
    --------
    dkrr.suggest : Suggest rows.

    Examples
    --------
    >>> import numpy as np, dkrr
    >>> model = dkrr.KernelRidge(alpha=0.1, kernel="rbf").fit([[0.0], [1.0]], [1.0, 2.0])
    >>> new = np.array([[0.5], [3.0], [3.1], [9.0]])
    >>> found = dkrr.suggest(model, new, 2)
    >>> found.rows, found.gain.round(2)
    (array([2, 3]), array([0.57, 0.29]))
    """

    rows: NDArray[np.intp]
    gain: NDArray[np.float64]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.rows, dtype=dtype, copy=copy)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[int]:
        return iter(self.rows.tolist())

    def __repr__(self) -> str:
        return f"<Suggestion: {plural(len(self.rows), 'row')}, {self.gain.sum():.3g} of the summed variance>"


def suggest(
    model: KernelEstimator,
    X: RowsLike,
    k: int,
    *,
    n_candidates: int = 2000,
    random_state: int = 0,
    memory_limit: int | str | None = None,
    progress: bool | None = None,
) -> Suggestion:
    """Suggest the k rows of X, which have no targets yet, to measure next (active learning).

    Rows are chosen one after another, each so that the variances of f at all candidates fall most
    in sum. That takes no targets, so that all k may be measured at once. Outliers, which the
    largest standard deviations find first, tell little about other rows, and are chosen late; of
    rows that are nearly alike one is chosen.

    Parameters
    ----------
    model : KernelRidge or KernelRidgeCV
        Fitted regression, whose targets share one alpha. With ``uncertainty=True`` it has the
        factor that this takes; otherwise the factor is made once, and kept.
    X : ndarray, scipy.sparse matrix, table, Dask array, Zarr array, or path, of shape (n, n_features)
        Rows that may be measured, as for `predict`: only the candidates are in memory.
    k : int
        Number of rows, at most that of the candidates.
    n_candidates : int, default=2000
        Rows of X that are drawn at random: these may be chosen, and their variances are summed.
    random_state : int, default=0
        Seed of the draw: the same for the same candidates. X with fewer rows has no draw.
    memory_limit : int or str, optional
        Bytes, or text such as "4GiB", that this process may hold; None: the model's own
        `memory_limit`.
    progress : bool, optional
        None shows progress on a terminal or in a notebook if it takes more than about two seconds;
        True always shows it, also in a log file; False never.

    Returns
    -------
    Suggestion
        Numbers of the rows, the best first, and the fall of the summed variance by each.

    Raises
    ------
    InputError
        If an argument cannot be used: a classifier, a kernel == "precomputed", several values of
        alpha, k above the number of candidates, NaN in a candidate, a model that was saved without
        uncertainty=True.
    MemoryLimitError
        If n_candidates × (n_samples + n_candidates) numbers do not fit in memory; before work.
    NotFiniteError
        If λ is so small that a variance is negative by more than rounding.

    See Also
    --------
    dkrr.KernelRidge : ``predict(X, return_std=True)`` has the standard deviations themselves.

    Notes
    -----
    With the posterior covariance C of the candidates, the candidate i with the largest
    Σᵣ Cᵢᵣ² / (Cᵢᵢ + λ) is taken, and C ← C − C·ᵢCᵢ· / (Cᵢᵢ + λ). A new target counts with sample weight
    1. For c candidates and n training rows that takes n²c + nc² + kc² operations; in primal form n
    is the number of features.

    A row that is a training row already, or chosen, may be measured again, where noise leaves a
    variance; choose among rows without targets to prevent that. Rows whose variance is not above
    rounding have gain 0, and are last. Rows that are not candidates are not looked at.

    References
    ----------
    S. Seo, M. Wallat, T. Graepel, K. Obermayer, "Gaussian process regression: active data selection
    and test point rejection", IJCNN 2000.

    Examples
    --------
    >>> import numpy as np, dkrr
    >>> pool = np.random.default_rng(0).normal(size=(500, 2))
    >>> X, y = pool[:20], np.sin(pool[:20, 0])
    >>> model = dkrr.KernelRidge(alpha=1e-3, kernel="rbf", uncertainty=True).fit(X, y)
    >>> found = dkrr.suggest(model, pool[20:], 5)
    >>> pool[20:][found].shape, bool((np.diff(found.gain) < 0).all())
    ((5, 2), True)
    """
    expected = "expected a fitted regression of dkrr: KernelRidge or KernelRidgeCV"
    if not isinstance(model, KernelEstimator):
        raise InputTypeError(f"model is {shown(model)}; {expected}")
    model._check_fitted()
    if not isinstance(model, RidgeRegressor):
        raise InputError(f"model is a {type(model).__name__}, which has no variances; {expected}")
    if model._model.kernel.is_precomputed:
        raise InputError(
            "kernel of model is 'precomputed', which does not give k(x, z) among new rows, and suggestions take it; "
            "expected a kernel of dkrr, or a function of rows"
        )
    k = checked_whole(k, "k", "a whole number of at least 1 row")
    n_candidates = checked_whole(n_candidates, "n_candidates", "a whole number of at least 1 candidate")
    random_state = whole(random_state, "random_state", 0)
    show = model.progress if checked_progress(progress) is None else progress
    model._posteriors()  # made for this model, not for the copy with another limit
    model = model._limited(memory_limit)
    posteriors = model._posteriors().within(model.memory_limit, show)
    alphas = np.unique(posteriors.request.outputs.alphas)
    if len(alphas) > 1:
        raise InputError(
            f"model has {len(alphas)} values of alpha, {alphas[0]:g} to {alphas[-1]:g}, and each has other variances; "
            f"expected one for all targets: fit those of one alpha in a separate model"
        )
    rows = model._new_rows(model._known_columns(table_or_value(X)))
    check_rows(model._model, rows)
    n = rows.shape[0]
    if k > min(n, n_candidates):
        most = f"X has {plural(n, 'row')}" if n <= n_candidates else f"n_candidates is {n_candidates:,}"
        raise InputError(f"k is {k:,}, and {most}; expected at most {min(n, n_candidates):,} rows, or more candidates")
    candidates = np.arange(n)
    if n > n_candidates:
        candidates = np.sort(np.random.default_rng(random_state).choice(n, n_candidates, replace=False))
    return Suggestion(*suggested(posteriors, rows, candidates, k, show))


# Tables of suggestions


def check_suggestions_path(path: str, *, overwrite: bool, name: str) -> None:
    """Refuse a path that a table of suggestions could not be written to, before they are computed; InputError."""
    if not path.endswith(TABLES):
        raise InputError(f"{name} is {shown(path)}; expected a path that ends in one of {', '.join(TABLES)}")
    check_predictions_path(path, overwrite=overwrite, name=name)


def write_suggestions(
    found: Suggestion,
    X: Any,
    path: str | Path,
    *,
    keep: Any = None,
    overwrite: bool = False,
    command: str | None = None,
) -> None:
    """Write numbers of the rows, columns of the table X that are kept, and gains, in the order of choice.

    The digest of the command that asks for them is inside, as in `predict_to.write_predictions`.
    """
    from dkrr.data.arrow import write_table
    from dkrr.data.sampling import numbered_rows

    kept = None
    if keep is not None:
        table = table_or_value(X)
        if not isinstance(table, Table):
            raise InputTypeError(f"keep is {shown(keep)}, and X is not a table; expected a table with these columns")
        kept = Table.of(table.source).select(keep, "keep")
    taken = [] if kept is None else list(kept.names)
    row, gain = (_free_name(name, taken) for name in (ROW, GAIN))
    with graceful_termination(), written_aside(str(path), overwrite=overwrite, listed=None) as place:
        columns = numbered_rows(kept, found.rows, row)
        write_table(place, (gain,), np.dtype(np.float64), columns, [found.gain[:, None]], command)


def _free_name(name: str, taken: list[str]) -> str:
    """Name that no kept column has."""
    while name in taken:
        name = f"suggested_{name}"
    return name
