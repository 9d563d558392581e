"""Base of the estimators: the kernel's arguments, checked training data, fitted attributes, and scores of new rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.utils.validation import validate_data

from dkrr.checks import checked_device, checked_progress, parse_bytes, shown
from dkrr.data import (
    MemoryRows,
    Rows,
    Table,
    as_rows,
    frame_to_numpy,
    in_memory,
    is_dask_frame,
    is_pandas_like,
    refuse_group,
    refuse_unreadable,
    table_or_value,
    watched,
    with_columns,
)
from dkrr.data.arrays import FLOAT_DTYPES, drop_labels, is_plain
from dkrr.data.open import is_in_blocks
from dkrr.data.table import check_names, not_numbers, stray_text
from dkrr.data.transformers import (
    InMemoryRows,
    TransformedRows,
    checked_transformer,
    fitted_transformer,
    inputs_of,
    transformed_inputs,
)
from dkrr.errors import InputError, InputTypeError, NotFittedError
from dkrr.estimators.typed import BaseEstimator
from dkrr.fitting.fitted_function import FittedFunction
from dkrr.fitting.prediction import predict
from dkrr.fitting.prediction_plans import displayed
from dkrr.fitting.requests import Settings, check_sizes, checked_kernel, checked_weights
from dkrr.fitting.run import Fit
from dkrr.fitting.sampled import with_bounding_box
from dkrr.kernels import Kernel
from dkrr.kernels.base import SEPARATOR, Parameters
from dkrr.kernels.fourier_grid import map_of_fit
from dkrr.kernels.names import warn_of_unused
from dkrr.linalg.result import SolveResult
from dkrr.linalg.solver_settings import Cholesky, ConjugateGradient
from dkrr.planning import Plan
from dkrr.planning.predictions import PredictionPlan
from dkrr.rounding import exact_values
from dkrr.sparse import check_structure
from dkrr.store.paths import refuse_enclosing
from dkrr.store.zarr_arrays import is_dask_array
from dkrr.text import card_of_text, details, near_columns
from dkrr.typing import KernelLike, NumbersLike, TransformerLike

SHOWN_ATTRIBUTES = ("selection_plan_", "optimum_", "plan_", "solve_result_")
"""Fitted attributes that a notebook shows with an estimator."""
OF_INPUTS = ("_target_names", "transformer_", "_n_inputs")
"""Attributes of a fit that depend on what X and y were before it."""
OF_SEARCH = (
    "cv_results_",
    "best_params_",
    "best_score_",
    "best_index_",
    "alpha_",
    "n_splits_",
    "scorer_",
    "refit_time_",
    "_folds",
)
"""Attributes of a search, which a loaded model that a search chose has too."""


@dataclass(eq=False, repr=False, kw_only=True)
class KernelParameters:
    """Parameters of both estimators: scikit-learn requires that __init__ only stores them."""

    kernel: KernelLike = "linear"
    gamma: NumbersLike | None = None
    degree: float = 3
    coef0: float = 1
    kernel_params: Mapping[str, Any] | None = None
    fit_intercept: bool = False
    form: Literal["auto", "primal", "dual"] = "auto"
    solver: Literal["auto", "cholesky", "cg"] | Cholesky | ConjugateGradient = "auto"
    tol: float = 1e-8
    device: Literal["auto", "cpu", "cuda"] = "auto"
    memory_limit: int | str | None = None
    tile: int | None = None
    progress: bool | None = None
    transformer: TransformerLike | None = None


class KernelEstimator(KernelParameters, BaseEstimator, ABC):
    """Base of the estimators; a fitted one has its function in `_model`."""

    _saved_parameters: ClassVar[tuple[str, ...]] = (
        "alpha",
        "gamma",
        "degree",
        "coef0",
        "fit_intercept",
        "form",
        "tol",
        "memory_limit",
        "tile",
    )
    """Parameters that a saved model holds, besides its kernel."""

    _setting_names: ClassVar[tuple[str, ...]] = (
        "fit_intercept",
        "form",
        "tile",
        "solver",
        "tol",
        "device",
        "memory_limit",
        "store",
    )
    """Parameters that are `Settings` of a fit."""

    store: str | Path | None  # of those whose runs can be kept
    _model: FittedFunction
    _target_names: list[str] | None = None
    """Names of the targets, of which predictions are tables; None without names."""
    plan_: Plan
    solve_result_: SolveResult
    coef_: NDArray[np.float64]
    dual_coef_: NDArray[np.float64]
    transformer_: TransformerLike
    X_fit_: Any

    def set_params(self, **params: Any) -> Self:
        """Set parameters; ``kernel__gamma`` that of a kernel value, ``kernel__left__gamma`` that of a part.

        Kernels are immutable: the estimator gets a new one.

        Parameters
        ----------
        **params
            Values by the names that `get_params` returns.

        Returns
        -------
        self
            The estimator itself, with the new values; a model that was fitted before does
            not change.

        Raises
        ------
        ValueError
            If there is no such parameter (`InputError`: of the kernel), or a kernel cannot have
            this value.
        """
        prefix = f"kernel{SEPARATOR}"
        nested = {name.removeprefix(prefix): params[name] for name in params if name.startswith(prefix)}
        super().set_params(**{name: params[name] for name in params if not name.startswith(prefix)})
        if "device" in params and "_model" in vars(self):  # which changes no prediction
            self._model = replace(self._model, device=checked_device(self.device))
        if nested:
            if not isinstance(self.kernel, Parameters):
                first = prefix + next(iter(nested))
                raise InputError(
                    f"{first} is given, and kernel is {shown(self.kernel)}, which takes no parameters; "
                    f"expected a kernel value: give for example kernel=RBF() from dkrr.kernels, or set "
                    f"{first.removeprefix(prefix)} itself"
                )
            self.kernel = self.kernel.set_params(**nested)
        return self

    def _kernel(self) -> Kernel:
        return checked_kernel(
            self.kernel, gamma=self.gamma, degree=self.degree, coef0=self.coef0, kernel_params=self.kernel_params
        )

    def _settings(self, kernel: Kernel) -> Settings:
        """Checked settings of a fit with this kernel."""
        given = {"kernel": kernel}
        for name in self._setting_names:
            given[name] = getattr(self, name)
        return Settings.checked(**given)

    def _checked_data(
        self, X: Any, y: Any, sample_weight: Any
    ) -> tuple[Any, Settings, Rows, NDArray[Any], NDArray[np.float64] | None]:
        """X as rows of numbers, settings with the fitted kernel, rows, targets or labels, and sample weights."""
        kernel = self._kernel()
        named = {"kernel": self.kernel, "gamma": self.gamma, "degree": self.degree, "coef0": self.coef0}
        warn_of_unused(named, stacklevel=4)  # the caller of fit
        settings = self._settings(kernel)
        checked_progress(self.progress)
        if settings.store is not None:
            refuse_enclosing({"store": self.store}, {"X": X, "y": y, "sample_weight": sample_weight})
        are_plain = is_plain(X) and is_plain(y, min_dimensions=1)  # they are neither tables nor have names
        if not are_plain or sample_weight is not None:
            X, y, sample_weight = with_columns(X, y, sample_weight)
        X = self._transformed(kernel, X)
        if not are_plain:
            self._target_names = target_names(y)
        is_transformed = "transformer_" in vars(self)
        if not (are_plain or is_transformed):
            X = self._table(kernel, X, reset=True)
        if kernel.encodes:
            given, kernel = kernel, kernel.fitted(X)
            if given.learns_values and kernel is not given:
                self._set_learned(given, X)
            X = kernel.encode(X)
            settings = replace(settings, kernel=kernel)
        of_inputs = self.__dict__.pop("feature_names_in_", None) if is_transformed else None
        rows, y = self._training(X, y)
        names = getattr(self, "feature_names_in_", None)
        if names is not None and isinstance(rows, MemoryRows) and len(names) == rows.shape[1]:
            rows.names = tuple(names)
        if is_transformed:
            self._set_inputs(of_inputs)
        else:
            self.n_features_in_ = rows.shape[1]
        check_sizes(kernel, rows, len(y))
        rows = watched(rows, is_matrix=kernel.is_precomputed)
        if not kernel.is_plain:
            settings = replace(settings, kernel=with_bounding_box(settings.kernel, rows))
        return X, settings, rows, y, checked_weights(sample_weight, len(y))

    def _transformed(self, kernel: Kernel, X: Any) -> Any:
        """Training rows as a new `transformer_` makes them of X; X itself without a transformer."""
        for name in ("feature_names_in_", *OF_INPUTS, *OF_SEARCH):
            self.__dict__.pop(name, None)  # of an earlier fit
        if self.transformer is None:
            return X
        transformer = checked_transformer(self.transformer, kernel)
        inputs = self._inputs(X, reset=True)
        self.transformer_ = fitted_transformer(transformer, inputs, self.memory_limit)
        self._n_inputs = inputs.shape[1]
        return transformed_inputs(self.transformer_, inputs)

    def _inputs(self, X: Any, *, reset: bool) -> Rows:
        """Rows in front of the transformer, whose width and names are stored (`reset`) or compared with the fit's."""
        refuse_unreadable(X, kinds="")
        refuse_group(X, "X")
        X = table_or_value(drop_labels(X))
        if isinstance(X, Table):
            return inputs_of(self._named(X, reset=reset, is_numeric=False))
        inputs = inputs_of(X)
        seen = inputs.table if isinstance(inputs, InMemoryRows) else getattr(X, "_meta", None)
        if is_dask_array(X) or seen is None:
            seen = np.empty((0, inputs.shape[1]))
        try:
            validate_data(self, seen, reset=reset, skip_check_array=True)
        except (TypeError, ValueError) as error:
            raise named_error("X", error) from error
        return inputs

    def _set_inputs(self, names: NDArray[Any] | None) -> None:
        """Set the width and the names of X before a transformer, where scikit-learn has set those of what it makes."""
        if "transformer_" not in vars(self):
            return
        self.n_features_in_ = self._n_inputs
        self.__dict__.pop("feature_names_in_", None)
        if names is not None:
            self.feature_names_in_ = names

    def _set_width(self, rows: Rows) -> None:
        """Set the number of columns of X, which are those of the rows or were seen by the transformer."""
        self.n_features_in_ = self._n_inputs if "transformer_" in vars(self) else rows.shape[1]

    @abstractmethod
    def _training(self, X: Any, y: Any) -> tuple[Rows, NDArray[Any]]:
        """Rows, and targets of shape (n,) or (n, t), or labels of shape (n,)."""

    def _set_learned(self, kernel: Kernel, X: Any) -> None:
        """Keep what a fit of this kernel to some of the rows needs, if the model has such fits."""

    def _as_saved(self) -> KernelEstimator:
        """Fitted estimator that is saved in place of this one: of a search, the model that it chose."""
        return self

    @abstractmethod
    def _predictions_of(self, scores: Any) -> Any:
        """Predictions that follow from scores (n, columns), an ndarray or a lazy array."""

    @abstractmethod
    def _description(self) -> dict[str, Any]:
        """Content of a saved model besides the fitted function, as values of JSON."""

    @abstractmethod
    def _restore(self, function: FittedFunction, dual_coef: NDArray[np.float64] | None, found: dict[str, Any]) -> None:
        """Set the fitted attributes from the content that `_description` returned."""

    def _finish(self, fitted: Fit, rows: Rows, X: Any) -> None:
        """Set the fitted attributes of every model."""
        self.X_fit_ = rows.array if isinstance(rows, MemoryRows) else X
        self.plan_ = fitted.plan

    def _set_coefficients(
        self, function: FittedFunction, dual_coef: NDArray[np.float64] | None, columns: Any = slice(None)
    ) -> None:
        """Set the attributes of a fitted function; an index as `columns` makes vectors of matrices."""
        for name in ("dual_coef_", "coef_"):  # of an earlier fit
            self.__dict__.pop(name, None)
        self._model = function
        if dual_coef is not None:
            self.dual_coef_ = dual_coef[:, columns]
        if function.coef is not None:
            features = map_of_fit(function.feature_map)
            inside = slice(None) if features is None else slice(features.dimension(function.n_features))
            self.coef_ = function.coef[inside, columns].T  # a row for each target, as linear models of scikit-learn

    def _table(self, kernel: Kernel, X: Any, *, reset: bool) -> Any:
        """X in a form that scikit-learn or `as_rows` takes; column names are checked if scikit-learn does not see it.

        With `reset` they are stored; otherwise they must be those of the fit, in that order.
        """
        if is_plain(X):
            return X
        X = in_memory(X) if kernel.encodes else table_or_value(drop_labels(X))
        if isinstance(X, Table):
            return self._named(X, reset=reset)
        refuse_group(X, "X")
        if not kernel.encodes:
            refuse_unreadable(X)  # scikit-learn would convert dates and text
        if sp.issparse(X):
            check_structure(X)  # scikit-learn converts between formats
        elif is_dask_frame(X):
            if kernel.encodes:
                raise InputTypeError(
                    f"{kernel!r} takes a table in memory, and X is a Dask DataFrame; give X.compute(), a pandas one"
                )
            validate_data(self, X._meta, reset=reset, skip_check_array=True)
        return frame_to_numpy(X)

    def _named(self, X: Table, *, reset: bool, is_numeric: bool = True) -> Table:
        """Table whose names are stored with `reset`; otherwise its columns with the names of the fit, in that order.

        A model without names takes all columns as they are. All must hold numbers, unless a transformer takes them.
        """
        if reset:
            if is_numeric:
                X.check_numeric()
            self.feature_names_in_, self.n_features_in_ = np.array(X.names, object), len(X.names)
            return X
        names = getattr(self, "feature_names_in_", None)
        if names is None:
            if is_numeric:
                X.check_numeric()
            return X
        known = {*X.names, *X.index}
        missing = next((name for name in names if name not in known), None)
        if missing is not None and missing in X.all_names:
            raise InputError(
                f"X is chosen without its column {missing!r}, which the model was fitted with; expected "
                f"columns={shown(','.join(names))} (--columns), or no choice of columns"
            )
        if missing is not None:
            raise InputError(
                f"X has no column {missing!r}, which the model was fitted with; expected "
                f"{near_columns(missing, X.all_names)} to be named so: rename it"
            )
        return Table(X.source, tuple(names))

    def _scores(self, X: Any) -> Any:
        """f(x) of every row, of shape (n, columns): an ndarray, or lazy for a Dask or Zarr array."""
        rows = self._new_rows(X)
        with self._displayed(rows) as (tell, _):
            return predict(self._model, rows, tell)

    def _displayed(self, rows: Rows, *, return_std: bool = False) -> Any:
        """Context in which the progress of long predictions is shown."""
        model = self._model
        n = model.coef.shape[0] if model.coef is not None else model.dual_coef.shape[0]  # type: ignore[union-attr]
        plan = partial(self._prediction_plan, rows, return_std=return_std)
        return displayed(rows, n, self.progress, plan, return_std=return_std)

    @abstractmethod
    def _prediction_plan(
        self, rows: Rows, *, probabilities: bool = False, return_std: bool = False, interval: float | None = None
    ) -> PredictionPlan:
        """Plan of the predictions of new rows.

        Raises
        ------
        InputError
            If the model has not what is asked for.
        MemoryLimitError
            If there is not enough memory for one row.
        """

    def _limited(self, memory_limit: int | str | None) -> Self:
        """Copy of the model with another limit of memory; None: the model itself."""
        if memory_limit is None:
            return self
        parse_bytes(memory_limit)
        found = copy(self)
        found.memory_limit = memory_limit
        return found

    def _known_columns(self, X: Any) -> Any:
        """Columns of a DataFrame that the model was fitted with; anything else unchanged."""
        known = list(getattr(self, "feature_names_in_", ()))
        return X[known] if is_pandas_like(X) and known and set(known) <= set(X.columns) else X

    def _check_fitted(self) -> None:
        """Raise NotFittedError, an AttributeError too, before `fit`, and after a search without a last fit."""
        if "_model" in vars(self):
            return
        if "cv_results_" in vars(self):
            raise NotFittedError(
                f"{type(self).__name__} has no model of all rows, since its refit is False; expected a fitted model: "
                f"give refit=True and call fit again"
            )
        raise NotFittedError(f"{type(self).__name__} is not fitted; expected a fitted model: call fit first")

    def _new_rows(self, X: Any) -> Rows:
        """New rows as the model takes them."""
        self._check_fitted()
        if "transformer_" in vars(self):
            return TransformedRows(self._inputs(X, reset=False), self.transformer_)
        X = self._model.kernel.encode(self._table(self._model.kernel, X, reset=False))
        is_as_fitted = is_plain(X) and X.shape[1] == self.n_features_in_ and not hasattr(self, "feature_names_in_")
        if not is_as_fitted and is_local(X):
            # The message of a wrong shape is scikit-learn's, which checks the names too.
            X = self._validated(X, reset=False)
        return as_rows(X)

    def _validated(self, X: Any, *, reset: bool) -> Any:
        """Rows in memory as scikit-learn's checks return them; its errors name X."""
        X = exact_values(X, "X")
        try:
            return validate_data(self, X, accept_sparse="csr", dtype=FLOAT_DTYPES, ensure_all_finite=False, reset=reset)
        except (TypeError, ValueError, RecursionError, OverflowError) as error:
            raise unreadable_column(X) or named_error("X", error) from error

    def _repr_html_inner(self) -> str:
        return super()._repr_html_inner() + self._explained()

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        found: dict[str, str] = super()._repr_mimebundle_(**kwargs)
        if "text/html" in found:
            found["text/html"] += self._explained()
        return found

    def _explained(self) -> str:
        """HTML of plan and result, under scikit-learn's diagram of the parameters."""
        shown = {name: getattr(self, name, None) for name in SHOWN_ATTRIBUTES}
        if all(value is None for value in shown.values()):
            return ""
        first = next(value for value in reversed(shown.values()) if value is not None)
        _, _, summary = repr(first)[1:-1].partition(": ")
        cards = (card_of_text(str(value)) for value in shown.values() if value is not None)
        return details(f"dkrr plan and result: {summary}", "".join(cards))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.pairwise = self.kernel == "precomputed" or getattr(self.kernel, "is_precomputed", False)
        return tags


def refuse_other_kind(model: Any, asked: dict[str, Any], expected: str) -> None:
    """Refuse what models of another kind have; raises InputError."""
    for name, value in asked.items():
        if value is not None and value is not False:
            raise InputError(f"{name} is {value!r}, and model is a {type(model).__name__}; expected {expected}")


def target_names(y: Any) -> list[str] | None:
    """Names of the columns of targets: of a table, a DataFrame or a Series; None without names.

    Raises
    ------
    InputError
        If two have the same name.
    """
    names = [y.name] if hasattr(y, "to_frame") and hasattr(y, "name") else getattr(y, "columns", None)
    names = list(y.names) if isinstance(y, Table) else [] if names is None else list(names)
    if not names or not all(isinstance(name, str) for name in names):
        return None
    check_names(names, "y")  # predictions are tables with these names
    return names


def named_error(name: str, error: Exception) -> InputError:
    """InputError with scikit-learn's message, and the name of the argument."""
    kind = InputTypeError if isinstance(error, TypeError) else InputError
    return kind(f"{name} cannot be used: {error}")


def unreadable_column(X: Any) -> InputError | None:
    """Error that names the first column of a DataFrame that does not hold numbers; None if there is none."""
    if not is_pandas_like(X):
        return None
    for name, dtype in X.dtypes.items():
        try:
            X[name].to_numpy(np.float64)
        except (TypeError, ValueError):
            kind = "category" if str(dtype) == "category" else "text"
            others = [str(c) for c in X.columns if getattr(X[c].dtype, "kind", "O") in "biuf"]
            stray = stray_text([X[name]]) if kind == "text" else None
            return InputTypeError(not_numbers("X", str(name), kind, str(dtype), others, stray))
    return None


def is_local(value: Any) -> bool:
    """Whether scikit-learn can check a value: it is in memory, and not streamed."""
    return is_plain(value) or not is_in_blocks(value)
