"""A fitted estimator as values of JSON: without its arrays, with what a report shows, and the estimator again."""

import json
import os
import platform
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkrr.blas import root_mean_squares
from dkrr.checks import is_object
from dkrr.errors import InputError
from dkrr.estimators.kernel_estimator import KernelEstimator
from dkrr.estimators.search import parameter_columns
from dkrr.fitting.fitted_function import FittedFunction
from dkrr.fitting.requests import Targets
from dkrr.kernels import CallableKernel, Kernel
from dkrr.kernels.custom import qualified_name
from dkrr.kernels.descriptions import GIVEN_AGAIN
from dkrr.kernels.fourier_grid import FourierGrid
from dkrr.kernels.kernel_features import parts_of
from dkrr.kernels.map_base import FeatureMap
from dkrr.kernels.nystroem import Nystroem
from dkrr.kernels.user_maps import CallableMap
from dkrr.linalg.solver_settings import ConjugateGradient, Float32Cholesky, RPCholesky
from dkrr.store.description import FORMAT_VERSION, FOUND, parts_in
from dkrr.text import one_line

Array = NDArray[np.float64]

MAX_TARGETS = 4
"""Targets whose residuals a summary has."""
N_BINS = 41
MAX_SUMMARY_CANDIDATES = 1000
"""Candidates of a search that a summary has; the best ones."""
MAX_TEXT = 200
"""Characters of a parameter in a summary."""


def summary_of(model: KernelEstimator) -> dict[str, Any]:
    """Values of JSON that a report shows of an estimator that was fitted here, besides its outcome."""
    return {
        "call": repr(model),
        "plan": str(model.plan_),
        "result": str(model.solve_result_),
        "residuals": _residuals(model),
        "search": search_summary(model) if hasattr(model, "cv_results_") else None,
    }


def _residuals(model: KernelEstimator) -> list[dict[str, Any]]:
    """Distribution of y − f(x) = λ α / w at the training rows, of the first targets; empty where it is not known."""
    made, alpha = getattr(model, "_made_posteriors", None), getattr(model, "dual_coef_", None)  # not of classifiers
    posteriors = None if made is None else made()
    if posteriors is None or alpha is None:
        return []
    try:
        request = posteriors.request
    except InputError:  # y was changed: what it was is not known
        return []
    outputs, weights = request.outputs, request.weights
    assert isinstance(outputs, Targets)
    alpha = alpha.reshape(len(alpha), -1)
    counting = slice(None) if weights is None else weights > 0
    found = []
    for k in range(min(alpha.shape[1], MAX_TARGETS)):
        residuals: Array = outputs.alphas[k] * alpha[counting, k] / (1.0 if weights is None else weights[counting])
        edge = float(np.quantile(np.abs(residuals), 0.999)) or 1.0
        counts, _ = np.histogram(np.clip(residuals, -edge, edge), bins=N_BINS, range=(-edge, edge))
        found.append(
            {
                "n": len(residuals),
                "root_mean_square": float(root_mean_squares(residuals[:, None])[0]),
                "largest": float(np.abs(residuals).max()),
                "edge": edge,
                "counts": counts.tolist(),
            }
        )
    return found


def of_search(search: Any) -> dict[str, Any]:
    """`best_params_` for a display or file that has the transformer elsewhere."""
    return {name: value for name, value in search.best_params_.items() if name != "transformer"}


def search_summary(search: Any) -> dict[str, Any]:
    """Choice of a search, scores of its best candidates, its learning curve and its way to the optimum."""
    results, best = search.cv_results_, np.atleast_1d(search.best_index_)
    curve, optimum = getattr(search, "learning_curve_", None), getattr(search, "optimum_", None)
    ranked = np.argsort(results["rank_test_score"], kind="stable")[:MAX_SUMMARY_CANDIDATES]
    means, spreads = results["mean_test_score"], np.nan_to_num(results["std_test_score"])
    candidates = []
    for k in np.union1d(ranked[np.isfinite(means[ranked])], best).tolist():
        parameters = dict(results["params"][k])
        alpha = float(parameters.pop("alpha"))
        candidates.append([_named(parameters), alpha, float(means[k]), float(spreads[k]), bool(k in best)])
    return {
        "best": _named(of_search(search)),
        "score": np.atleast_1d(search.best_score_)[:MAX_TARGETS].tolist(),
        "plan": str(search.selection_plan_) if hasattr(search, "selection_plan_") else None,
        "score_name": search._score_name,
        "advice": list(search.advice_),
        "candidates": candidates,
        "n_candidates": len(means),
        "curve": None
        if curve is None
        else {
            "sizes": np.asarray(curve["train_sizes"]).tolist(),
            "scores": np.asarray(curve["mean_test_score"]).tolist(),
            "spreads": np.asarray(curve["std_test_score"]).tolist(),
            "conclusion": str(curve["conclusion"]),
        },
        "optimum": None if optimum is None else str(optimum),
    }


def _named(parameters: dict[str, Any]) -> str:
    """Parameters with their values, each as text of a bounded length."""
    shown = {name: f"{value:.4g}" if isinstance(value, float) else str(value) for name, value in parameters.items()}
    return ", ".join(
        f"{name}={text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + '...'}" for name, text in shown.items()
    )


# Read with this module: they lie in files, and a process that saves a model may have no descriptor left to open one.
LIBRARY_VERSIONS = {
    "python": platform.python_version(),
    **{name: version(name) for name in ("dkrr", "numpy", "scipy", "scikit-learn", "zarr")},
}


def description_of(
    model: KernelEstimator, fitted: FittedFunction, transformer: dict[str, Any] | None
) -> dict[str, Any]:
    """Description of a fitted model, but for the arrays that its store has (``stored``, by name).

    What `transformer` was and its text are given; its bytes are an array of the store.
    """
    asked = model._kernel()
    # A loaded model can be fitted with the original kernel, if the fit changed it (centres, vocabulary, origin).
    is_changed = asked.encodes or any(isinstance(part, Nystroem | FourierGrid) for part in parts_of(asked))
    is_changed = is_changed or fitted.intercept_shift is not None
    n_samples = None if fitted.rows is None else int(fitted.rows.shape[0])  # unknown of a loaded model in primal form
    return {
        "kind": "model",
        "format": FORMAT_VERSION,
        "id": os.urandom(16).hex(),
        "estimator": type(model).__name__,
        "kernel": fitted.kernel.to_dict(),
        "feature_map": None if fitted.feature_map is None else fitted.feature_map.to_dict(),
        "request": asked.to_dict() if is_changed else None,
        "parameters": {name: _plain(getattr(model, name)) for name in model._saved_parameters},
        "n_samples": int(model.plan_.problem.n) if hasattr(model, "plan_") else n_samples,
        "n_features": fitted.n_features,
        "feature_names": [str(name) for name in getattr(model, "feature_names_in_", [])] or None,
        "target_names": getattr(model, "_target_names", None),
        "transformer": None if transformer is None else transformer | {"n_features_in": model.n_features_in_},
        **model._description(),
        "solve": outcome_of(model) if hasattr(model, "solve_result_") else None,
        "versions": LIBRARY_VERSIONS,
    }


def outcome_of(model: KernelEstimator) -> dict[str, Any]:
    """Outcome of the fit, as values of JSON."""
    form = model.plan_.form if hasattr(model, "plan_") else None
    return {"form": form, "tol": model.tol, **model.solve_result_.to_dict()}


def search_of(model: Any) -> dict[str, Any] | None:
    """Results of a search as values of JSON: kernel values as their text, in the best candidate None; or None."""
    if not hasattr(model, "cv_results_"):
        return None
    results, best = model.cv_results_, of_search(model)
    columns = {k: np.asarray(v).tolist() for k, v in results.items() if k != "params" and not k.startswith("param_")}
    return {
        "params": [
            {name: one_line(str(value)) if is_object(value) else _plain(value) for name, value in one.items()}
            for one in results["params"]
        ],
        "columns": columns,
        "best_params": {name: None if is_object(value) else _plain(value) for name, value in best.items()},
        **{name: _plain(getattr(model, f"{name}_")) for name in FOUND},
    }


def found_in_search(found: dict[str, Any], model: Any) -> dict[str, Any]:
    """Attributes of a model that a search chose, from what `search_of` returned and the model's parameters."""
    params, best = found["params"], found["best_params"]
    columns = {
        name: list(np.array(values)) if np.ndim(values) > 1 else np.array(values)
        for name, values in found["columns"].items()
    }
    return {
        "cv_results_": {"params": params} | parameter_columns(params) | columns,
        "best_params_": {k: getattr(model, k) if v is None else _as_array(v) for k, v in best.items()},
        **{f"{name}_": _as_array(found[name]) for name in FOUND},
    }


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | None) else np.asarray(value).tolist()


def _as_array(value: Any) -> Any:
    return np.array(value) if isinstance(value, list) else value


def described_solver(solver: Any) -> Any:
    """Solver of a fit as values of JSON, from which `solver_of` makes the argument of an estimator."""
    if not isinstance(solver, ConjugateGradient):
        return "auto" if solver is None else "cholesky"
    return json.loads(json.dumps(asdict(solver), default=int))


def solver_of(found: Any) -> Any:
    """Argument `solver` of an estimator that `described_solver` described.

    Raises
    ------
    TypeError, ValueError
        If it is not one.
    """
    if isinstance(found, str):
        return found
    settings, preconditioner = dict(found), found["preconditioner"]
    if isinstance(preconditioner, dict):
        settings["preconditioner"] = RPCholesky(**preconditioner) if preconditioner else Float32Cholesky()
    return ConjugateGradient(**settings)


def custom_parts(description: Any) -> list[dict[str, Any]]:
    """Descriptions of the user's own functions and feature maps in that of a kernel: names, without code."""
    tags = {"kernel": (CallableKernel.tag,), "feature_map": GIVEN_AGAIN}
    return [part for part in parts_in(description) if "name" in part and any(part.get(k) in tags[k] for k in tags)]


def named_objects(description: Any, given: Any) -> dict[str, Any]:
    """Functions, feature maps and classes that a user gave as kernel, by their names in a description."""
    custom = {part["name"]: part.get("kernel") == CallableKernel.tag for part in custom_parts(description)}
    if given is None:
        return {}
    if not isinstance(given, Kernel | FeatureMap):
        return dict.fromkeys(custom, given)
    named: dict[str, Any] = {}
    if isinstance(given, CallableKernel):  # also under another name
        named |= {name: given.function for name, is_kernel in custom.items() if is_kernel}
    elif isinstance(given, FeatureMap):
        named |= {name: given for name, is_kernel in custom.items() if not is_kernel}
    for part in parts_of(given):
        if isinstance(part, CallableKernel | CallableMap):
            named[str(part.name)] = part.function if isinstance(part, CallableKernel) else part
        else:
            named[qualified_name(type(part))] = type(part)
    return named
