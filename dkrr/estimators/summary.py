"""What a report shows of a fit and of a search, as values of JSON that a saved model holds."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkrr.errors import InputError
from dkrr.estimators.base import KernelEstimator
from dkrr.fitting.requests import Targets
from dkrr.linalg.operator import root_mean_squares

Array = NDArray[np.float64]

MAX_TARGETS = 4
"""Targets whose residuals a summary has."""
N_BINS = 41
MAX_CANDIDATES = 1000
"""Candidates of a search that a summary has; the best ones."""
MAX_TEXT = 200
"""Characters of a parameter in a summary."""


def summary_of(model: KernelEstimator) -> dict[str, Any]:
    """What a report shows of an estimator that was fitted here besides its outcome, as values of JSON."""
    return {
        "call": repr(model),
        "plan": str(model.plan_),
        "result": str(model.solve_result_),
        "residuals": _residuals(model),
        "search": search_summary(model) if hasattr(model, "cv_results_") else None,
    }


def _residuals(model: KernelEstimator) -> list[dict[str, Any]]:
    """Distribution of y − f(x) = λ α / w at the training rows, of the first targets; empty where it is not known."""
    processes, alpha = getattr(model, "_known_processes", None), getattr(model, "dual_coef_", None)
    if processes is None or alpha is None:
        return []
    try:
        request = processes.request
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


def search_summary(search: Any) -> dict[str, Any]:
    """Choice of a search, scores of its best candidates, its learning curve and its way to the optimum."""
    results, best = search.cv_results_, np.atleast_1d(search.best_index_)
    curve, optimum = getattr(search, "learning_curve_", None), getattr(search, "optimum_", None)
    ranked = np.argsort(results["rank_test_score"], kind="stable")[:MAX_CANDIDATES]
    means, spreads = results["mean_test_score"], np.nan_to_num(results["std_test_score"])
    candidates = []
    for k in np.union1d(ranked[np.isfinite(means[ranked])], best).tolist():
        parameters = dict(results["params"][k])
        alpha = float(parameters.pop("alpha"))
        candidates.append([_named(parameters), alpha, float(means[k]), float(spreads[k]), bool(k in best)])
    return {
        "best": _named(search.best_params_),
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
