"""What a report shows of a fitted model, as values of JSON of a bounded size; a saved model keeps it."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator

from dkrr.errors import InputError
from dkrr.estimators.base import KernelEstimator
from dkrr.requests import Targets
from dkrr.solvers.work import measured_work, number

Array = NDArray[np.float64]

MAX_POINTS = 1000
"""Rows of a picture of residuals."""
MAX_TARGETS = 4
"""Targets with pictures."""
N_BINS = 41
MAX_CANDIDATES = 2000
"""Candidates of a search that are kept."""
MAX_CALL = 4000
"""Characters of the estimator's call."""


def summary_of(model: KernelEstimator) -> dict[str, Any]:
    """Summary of a fitted estimator.

    Parameters
    ----------
    model : KernelEstimator
        Fitted here: a loaded one has no plan, result or targets, and the summary holds neither.
    """
    plan, result = getattr(model, "plan_", None), getattr(model, "solve_result_", None)
    return {
        "estimator": type(model).__name__,
        "call": BaseEstimator.__repr__(model, N_CHAR_MAX=MAX_CALL),
        "n_features": int(model.n_features_in_),
        "plan": None if plan is None else plan.outline(),
        "work": None if result is None else measured_work(result),
        "residuals": _residuals(model),
        "search": _search(model) if hasattr(model, "cv_results_") else None,
    }


def _residuals(model: KernelEstimator) -> list[dict[str, Any]]:
    """Residuals y − f(x) = λ α / w at the training rows, of the first targets; empty where they are not known."""
    processes, alpha = getattr(model, "_known_processes", None), getattr(model, "dual_coef_", None)
    if processes is None or alpha is None:
        return []
    try:
        request = processes.request
    except InputError:  # y was changed: what it was is not known
        return []
    outputs, weights = request.outputs, request.weights
    assert isinstance(outputs, Targets)
    alpha = alpha[:, None] if alpha.ndim == 1 else alpha
    n = len(alpha)
    counting = slice(None) if weights is None else np.flatnonzero(weights > 0)
    sample = np.unique(np.linspace(0, n - 1, MAX_POINTS).astype(np.intp))
    if weights is not None:
        sample = sample[weights[sample] > 0]
    found = []
    for k in range(min(alpha.shape[1], MAX_TARGETS)):
        residuals = outputs.alphas[k] * np.asarray(alpha[:, k], np.float64)
        if weights is not None:
            with np.errstate(divide="ignore", invalid="ignore"):
                residuals /= weights
        targets = np.asarray(outputs.values[sample, k], np.float64)
        found.append({"target": k} | _described(residuals[counting], residuals[sample], targets))
    return found


def _described(residuals: Array, of_sample: Array, targets: Array) -> dict[str, Any]:
    """Spread and histogram of residuals, and points (prediction, residual) of some rows."""
    edge = float(np.quantile(np.abs(residuals), 0.999)) or 1.0
    counts, _ = np.histogram(np.clip(residuals, -edge, edge), bins=N_BINS, range=(-edge, edge))
    points = zip((targets - of_sample).tolist(), of_sample.tolist(), strict=True)
    return {
        "n": len(residuals),
        "root_mean_square": number(float(np.sqrt(np.mean(residuals**2)))),
        "largest": number(float(np.abs(residuals).max())),
        "edge": number(edge),
        "counts": counts.tolist(),
        "points": [[number(p, 5), number(r, 5)] for p, r in points],
    }


def _search(search: Any) -> dict[str, Any]:
    """Scores of the candidates of a search, its learning curve, and its path to the optimum."""
    results = search.cv_results_
    curve, optimum = getattr(search, "learning_curve_", None), getattr(search, "optimum_", None)
    plan = getattr(search, "selection_plan_", None)
    best = np.atleast_1d(search.best_index_)
    kept = np.union1d(np.argsort(results["rank_test_score"], kind="stable")[:MAX_CANDIDATES], best)
    kernels = [{name: _text(value) for name, value in p.items() if name != "alpha"} for p in results["params"]]
    return {
        "plan": None if plan is None else str(plan),
        "best": {name: _text(value) for name, value in search.best_params_.items()},
        "score": [number(float(s)) for s in np.atleast_1d(search.best_score_)[:MAX_TARGETS]],
        "candidates": [
            {
                "alpha": float(results["params"][k]["alpha"]),
                "kernel": kernels[k],
                "score": number(float(results["mean_test_score"][k])),
                "spread": number(float(results["std_test_score"][k])),
                "stopped": bool(results["stopped"][k]) if "stopped" in results else False,
                "best": bool(k in best),
            }
            for k in kept.tolist()
        ],
        "n_candidates": len(kernels),
        "curve": None
        if curve is None
        else {
            "sizes": np.asarray(curve["train_sizes"]).tolist(),
            "scores": [number(float(s)) for s in curve["mean_test_score"]],
            "spreads": [number(float(s)) for s in curve["std_test_score"]],
            "conclusion": str(curve["conclusion"]),
        },
        "optimum": None
        if optimum is None
        else {
            "text": str(optimum),
            "alphas": [number(float(a)) for a in optimum.alphas],
            "scores": [number(float(s)) for s in optimum.scores],
        },
    }


def _text(value: Any) -> str:
    """Parameter as text of a bounded length."""
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 200 else f"{text[:197]}..."
