"""Output of commands for people, and the values of a search; plans and results print themselves."""

import json
import math
from typing import Any

import numpy as np

from dkrr.checks import is_object
from dkrr.store.description import CLASSIFICATION
from dkrr.text import format_bytes, format_seconds, one_line, plural

MAX_BUSY_CORES_FOR_PROFILE = 0.2
"""Cores kept busy by other processes, above which a profile is unreliable."""


def fit_text(model: Any, path: str | None, *, is_short: bool) -> str:
    """Plan and result of a fit, or only the result in a line, and the path of its model; None: not saved."""
    result, where = model.solve_result_, path or "not saved"
    if is_short:
        what = "gradient" if result.steps else "residual"
        return f"{where}: {result.status.name}, {what} {result.residual:.1e}, {format_seconds(result.seconds)}"
    return "\n".join([str(model.plan_), result.explained(model.plan_.chosen.stages), f"model       {where}"])


def model_text(description: dict[str, Any], path: str) -> str:
    """Description of a saved model; an entry that the model does not have is left out."""
    found, solve, transformer = description.get, description["solve"], description.get("transformer")
    lines = [f"{path}: {description['estimator']}, dkrr model of format {description['format']}"]

    def add(label: str, text: str | None) -> None:
        lines.extend([] if text is None else [f"  {label:<12}{text}"])

    rows, targets, width = found("n_samples"), found("target_names"), description["n_features"]
    add("rows", None if rows is None else f"{rows:,} to learn from")
    add("kernel", json.dumps(description["kernel"]))
    add("targets", None if targets is None else ", ".join(targets))
    add("columns", f"{transformer['n_features_in']}, and {width} after the transformer" if transformer else f"{width}")
    add("transformer", transformer["text"] if transformer else None)
    add("classes", json.dumps(description["classes"], ensure_ascii=False) if "classes" in description else None)
    add("parameters", json.dumps(description["parameters"]))
    add("predicts", f"in {'primal' if 'coef' in description['stored'] else 'dual'} form")
    add("versions", json.dumps(description["versions"]))
    if solve:
        what = "gradient" if description["estimator"] == "KernelLogisticRegression" else "residual"
        reached = f"{solve['form']}, {solve['status']}, {what} {solve['residual']:.1e}"
        cost = f"{format_seconds(solve['seconds'])}, {format_bytes(solve['peak_bytes'])} peak of a process"
        add("fit", f"{reached}, {cost}")
    for what, how in gives(description):
        add("gives" if what == "predictions" else "", f"{what}: {how}" if how else what)
    return "\n".join(map(one_line, lines))


def gives(description: dict[str, Any]) -> list[tuple[str, str]]:
    """Outputs of a saved model, each with its cost, or with what is missing for it."""
    if description["estimator"] == CLASSIFICATION:
        return [("predictions", ""), ("probabilities (--proba)", "at the cost of predictions")]
    kept, form = description.get("uncertainty"), (description["solve"] or {}).get("form")
    std, loo, likelihood = "standard deviations (--std)", "leave-one-out residuals", "likelihood"
    if kept is None:
        missing = "not available: save with --uncertainty, or dkrr.save(..., uncertainty=True)"
        return [
            ("predictions", ""),
            (std, missing),
            ("intervals (--interval)", missing),
            (f"{loo}, {likelihood}", missing),
        ]
    work = "a pass over the rows" if form == "primal" else "n³/3 operations for n rows"
    later = f"from a factor that the first call computes ({work})"
    of_factor = "from the factor that the model holds" if kept["factors"] else later
    is_iterated = not kept["factors"] and kept["solver"] not in ("auto", "cholesky")
    of_process = "by conjugate gradient, at each call" if is_iterated else of_factor
    of_folds = "which the model holds" if kept.get("folds") else "which the first call computes"
    has_std = description["kernel"].get("kernel") != "precomputed"
    return [
        ("predictions", ""),
        (std, of_process if has_std else "not available: a precomputed kernel does not give k(x, x)"),
        ("intervals (--interval)", f"from models without each fold, {of_folds}"),
        (loo, of_factor),
        (likelihood, of_process),
    ]


def machine_text(description: dict[str, Any]) -> str:
    """Machine or cluster, and the rates that plans use."""
    has, rates, measured = description["resources"], description["rates"], description["measured"]
    where = "cluster" if has["cluster_is_running"] else "machine"
    lines = [
        f"{where}     {description['fingerprint']['cpu']}, {plural(has['local_threads'], 'core')} in the calling "
        "process",
        f"workers     {has['n_workers']} × {plural(has['worker_threads'], 'thread')}, "
        f"{format_bytes(has['worker_limit_bytes'])} each",
        f"disk        {format_bytes(has['disk_free_bytes'] or 0)} free for stores",
    ]
    if measured:
        how = "before a long fit (`dkrr calibrate` takes longer)" if measured["is_quick"] else "by `dkrr calibrate`"
        of_store = "" if measured["folder"] else ", read, write"
        lines += [
            f"rates       measured {measured['time']}, {description['profile'] or 'kept by this process only'}",
            f"            in {format_seconds(measured['seconds'])} {how}; task, chain, round trip,",
            f"            cluster start, network, fresh{of_store} are defaults",
        ]
        if (busy := measured["other_cores_busy"]) > MAX_BUSY_CORES_FOR_PROFILE:
            lines.append(f"            while other processes kept {busy:.1f} cores busy: measure again without them")
    else:
        lines += [
            "rates       dkrr's defaults",
            "            `dkrr calibrate` measures them here, or a moment of the first long fit",
        ]
    for name, unit, scale in (("flops", "GFLOP/s", 1e9), ("bytes", "GB/s", 1e9), ("seconds", "ms", 1e-3)):
        found = {key.removesuffix(f"_{name}"): v for key, v in rates.items() if v and key.endswith(f"_{name}")}
        lines.append(f"  {unit:<9} " + ", ".join(f"{k.replace('_', ' ')} {v / scale:.3g}" for k, v in found.items()))
    return "\n".join(lines)


def search_values(search: Any, path: str | None) -> dict[str, Any]:
    """Scores of all candidates, the best one and advice, as values of JSON: None where a number is not known."""
    from dkrr.estimators.model_description import of_search

    results, plan = search.cv_results_, getattr(search, "selection_plan_", None)
    scores, unknown = results["mean_test_score"], np.full(len(results["params"]), np.nan)
    r2 = search._r2(scores) if hasattr(search, "_r2") else None  # None also where scores are not squared errors
    columns = {
        "mean_test_score": scores,
        "std_test_score": results["std_test_score"],
        "rmse": unknown if r2 is None else np.sqrt(-scores),
        "r2": unknown if r2 is None else r2,
        "iterations": results["iterations"],
        "residual": results["residual"],
        "stopped": results.get("stopped", unknown == 0),
    }
    found = {
        "model": path,
        "best_params": {name: _json_value(value) for name, value in of_search(search).items()},
        "best_score": np.asarray(search.best_score_).tolist(),
        "score_name": search._score_name,
        "advice": list(search.advice_),
        "candidates": [
            {**parameters, **{name: _json_value(column[k]) for name, column in columns.items()}}
            for k, parameters in enumerate(results["params"])
        ],
    }
    if search.train_sizes is not None:
        found["learning_curve"] = {name: _json_value(value) for name, value in search.learning_curve_.items()}
    return found | {"plan": None if plan is None else plan.to_dict()}


def search_text(search: Any, values: dict[str, Any]) -> str:
    """Table of scores, the learning curve and advice, from what `search_values` returned."""
    sample = values.get("sample")
    names = list(dict.fromkeys(name for parameters in search.cv_results_["params"] for name in parameters))
    has_errors = any(one["rmse"] is not None for one in values["candidates"])
    lines = [str(search.selection_plan_)] if values["plan"] else []
    if sample:
        rows, n, seed = (f"{sample[name]:,}" for name in ("rows", "of", "seed"))
        lines.append(f"sample      λ and parameters are chosen by {rows} of {n} rows, drawn at random (seed {seed});")
        lines.append("            the fit of all rows takes them as they are")
    lines.append(f"scores      {values['score_name']}, mean of the folds; larger is better")
    more = f"{'RMSE':>12}{'R²':>9}" if has_errors else ""
    lines.append("  " + "".join(f"{name:>12}" for name in names) + f"{'score':>14}{'± std':>12}{more}")
    for k, one in enumerate(values["candidates"]):
        line = "".join(_cell(one.get(name, "-")) for name in names)
        if one["mean_test_score"] is None:
            line += f"{'stopped' if one['stopped'] else 'no score':>14}"
        else:
            line += _cell(one["mean_test_score"], ">14.6g") + _cell(one["std_test_score"], ">12.2g")
            line += _cell(one["rmse"]) + _cell(one["r2"], ">9.4f") if has_errors else ""
        lines.append(f"  {line}{'  best' if np.any(k == np.asarray(search.best_index_)) else ''}")
    if curve := values.get("learning_curve"):
        lines.append(f"  {'rows':>12}{'score':>14}{'± std':>12}  alpha")
        columns = (curve[name] for name in ("train_sizes", "mean_test_score", "std_test_score", "alpha"))
        for size, mean, spread, alpha in zip(*columns, strict=True):
            alphas = ", ".join(f"{value:.4g}" for value in np.atleast_1d(alpha))
            lines.append(f"  {size:>12,}{_cell(mean, '>14.6g')}{_cell(spread, '>12.2g')}  {alphas}")
        lines.append(f"more rows   {curve['conclusion']}")
    lines += [f"advice      {text}" for text in values["advice"]]
    if sample and hasattr(search, "plan_"):
        lines += [str(search.plan_), search.solve_result_.explained(search.plan_.chosen.stages)]
    return "\n".join([*lines, f"model       {values['model'] or 'not saved'}"])


def _cell(value: Any, form: str = ">12.4g") -> str:
    """Text of a number that may be unknown, or of something else, in a column of a table."""
    value = math.nan if value is None else value
    return format(value, form) if isinstance(value, int | float) else f"{value:>12}"


def _json_value(value: Any) -> Any:
    """Numbers, arrays, texts and objects as values of JSON; None for NaN."""
    if value is None or isinstance(value, list | str | dict | bool):
        return value
    if is_object(value):
        return one_line(str(value))
    array = np.asarray(value)
    if array.dtype.kind == "f":
        unknown, array = np.isnan(array), array.astype(object)
        array[unknown] = None
    return array.tolist()
