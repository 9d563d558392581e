"""What commands print: text for people, JSON for programs."""

import json
import math
from typing import Any

import numpy as np

from dkrr.plain_text import one_line
from dkrr.units import format_bytes, format_seconds
from dkrr.values import is_object


def fit_report(model: Any, path: str | None, *, as_json: bool, is_short: bool = False) -> str:
    """Plan and result of a fit, or only the result in a line, and the path of its model; None: not saved."""
    result = model.solve_result_
    if as_json:
        return json.dumps({"model": path} | result.to_dict() | {"plan": model.plan_.to_dict()})
    if is_short:
        return (
            f"{path or 'not saved'}: {result.status.name}, {'gradient' if result.steps else 'residual'} "
            f"{result.residual:.1e}, {format_seconds(result.seconds)}"
        )
    where = f"model       {path or 'not saved'}"
    return "\n".join([str(model.plan_), result.explained(model.plan_.chosen.stages), where])


def info_report(description: dict[str, Any], path: str, *, as_json: bool) -> str:
    """Description of a saved model."""
    if as_json:
        return json.dumps({name: value for name, value in description.items() if name != "report"})
    solve = description["solve"] or {}
    lines = [
        f"{path}: {description['estimator']}, dkrr model of format {description['format']}",
        f"  kernel      {json.dumps(description['kernel'])}",
        f"  columns     {description['n_features']}",
        f"  parameters  {json.dumps(description['parameters'])}",
        f"  predicts    in {'primal' if 'coef' in description['stored'] else 'dual'} form",
        f"  versions    {json.dumps(description['versions'])}",
    ]
    if description.get("transformer") is not None:
        given = description["transformer"]["n_features_in"]
        lines[2:3] = [
            f"  columns     {given}, and {description['n_features']} behind the transformer",
            f"  transformer {description['transformer']['text']}",
        ]
    if description.get("target_names") is not None:
        lines.insert(2, f"  targets     {', '.join(description['target_names'])}")
    if "classes" in description:
        lines.insert(3, f"  classes     {json.dumps(description['classes'], ensure_ascii=False)}")
    if description.get("n_samples") is not None:
        lines.insert(1, f"  rows        {description['n_samples']:,} to learn from")
    if solve:
        lines.append(
            f"  fit         {solve['form']}, {solve['status']}, {measure_of(description)} {solve['residual']:.1e}, "
            f"{format_seconds(solve['seconds'])}, {format_bytes(solve['peak_bytes'])} peak of a process"
        )
    return "\n".join(map(one_line, lines))


MAX_BUSY_CORES = 0.2
"""Cores kept busy by other processes, above which a profile is unreliable."""


def machine_report(description: dict[str, Any], *, as_json: bool) -> str:
    """Machine or cluster, and the rates that plans use."""
    if as_json:
        return json.dumps(description)
    has, rates, measured = description["resources"], description["rates"], description["measured"]
    where = "cluster" if has["cluster_is_running"] else "machine"
    lines = [
        f"{where}     {description['fingerprint']['cpu']}, {has['local_threads']} cores in the calling process",
        f"workers     {has['n_workers']} × {has['worker_threads']} threads, "
        f"{format_bytes(has['worker_limit_bytes'])} each",
        f"disk        {format_bytes(has['disk_free_bytes'] or 0)} free for stores",
        "rates       " + _origin(description),
    ]
    if not measured:
        lines.append("            `dkrr calibrate` measures them here, or a moment of the first long fit")
    if measured:
        how = "before a long fit (`dkrr calibrate` takes longer)" if measured["is_quick"] else "by `dkrr calibrate`"
        lines.append(f"            in {format_seconds(measured['seconds'])} {how}; task, chain, round trip,")
        of_store = "" if measured["folder"] else ", read, write"
        lines.append(f"            cluster start, network, fresh{of_store} are defaults")
    if measured and (busy := measured["other_cores_busy"]) > MAX_BUSY_CORES:
        lines.append(f"            while other processes kept {busy:.1f} cores busy: measure again without them")
    for name, unit, scale in (("flops", "GFLOP/s", 1e9), ("bytes", "GB/s", 1e9), ("seconds", "ms", 1e-3)):
        found = {key.removesuffix(f"_{name}"): v for key, v in rates.items() if v and key.endswith(f"_{name}")}
        lines.append(f"  {unit:<9} " + ", ".join(f"{k.replace('_', ' ')} {v / scale:.3g}" for k, v in found.items()))
    if rates["kernels"]:
        lines.append("  ns per kernel entry, float64 / float32, by number of columns")
        lines += _kernel_lines(rates["kernels"])
    return "\n".join(lines)


def _origin(description: dict[str, Any]) -> str:
    """Where the rates come from, and when they were measured."""
    measured = description["measured"]
    if measured is None:
        return "dkrr's defaults"
    return f"measured {measured['time']}, {description['profile'] or 'kept by this process only'}"


def _kernel_lines(kernels: list[dict[str, Any]]) -> list[str]:
    features = sorted({k["n_features"] for k in kernels})
    seconds = {(k["kernel"], k["n_features"], k["precision"]): k["entry_seconds"] for k in kernels}
    lines = ["    " + " " * 12 + "".join(f"{d:>16}" for d in features)]
    for name in dict.fromkeys(k["kernel"] for k in kernels):
        pairs = [[seconds[name, d, p] * 1e9 for p in ("float64", "float32")] for d in features]
        lines.append(f"    {name:<12}" + "".join(f"{f'{a:.2g} / {b:.2g}':>16}" for a, b in pairs))
    return lines


def measure_of(description: dict[str, Any]) -> str:
    """Name of the quantity that a fit makes small."""
    return "gradient" if description["estimator"] == "KernelLogisticRegression" else "residual"


def selection_report(search: Any, path: str | None, *, as_json: bool) -> str:
    """Table of scores, the best candidate, advice, and the path of its model; None: not saved."""
    results, plan = search.cv_results_, getattr(search, "selection_plan_", None)
    names = list(dict.fromkeys(name for p in results["params"] for name in p))
    errors, r2 = _errors_of(search)
    stopped = results.get("stopped", np.zeros(len(results["params"]), bool))
    if as_json:
        rows = [
            {
                **parameters,
                "mean_test_score": _known(results["mean_test_score"][k]),
                "std_test_score": _known(results["std_test_score"][k]),
                "rmse": _known(errors[k]),
                "r2": _known(r2[k]),
                "iterations": int(results["iterations"][k]),
                "residual": _known(results["residual"][k]),
                "stopped": bool(stopped[k]),
            }
            for k, parameters in enumerate(results["params"])
        ]
        best = {name: _json_value(value) for name, value in search.best_params_.items()}
        score = np.asarray(search.best_score_).tolist()
        found = {"model": path, "best_params": best, "best_score": score, "score_name": search._score_name}
        found |= {"advice": list(search.advice_), "candidates": rows}
        if search.train_sizes is not None:
            found["learning_curve"] = {name: _json_value(value) for name, value in search.learning_curve_.items()}
        return json.dumps(found | {"plan": None if plan is None else plan.to_dict()})
    more = "" if np.isnan(errors).all() else f"{'RMSE':>12}{'R²':>9}"
    lines = [] if plan is None else [str(plan)]
    lines += [
        f"scores      {search._score_name}, mean of the folds; larger is better",
        "  " + "".join(f"{name:>12}" for name in names) + f"{'score':>14}{'± std':>12}{more}",
    ]
    for k, parameters in enumerate(results["params"]):
        shown = "".join(_cell(parameters.get(name, "-")) for name in names)
        score, spread = results["mean_test_score"][k], results["std_test_score"][k]
        what = f"{score:>14.6g}{spread:>12.2g}" + (f"{errors[k]:>12.4g}{r2[k]:>9.4f}" if more else "")
        if np.isnan(score):
            what = f"{'stopped' if stopped[k] else 'no score':>14}"
        mark = "  best" if np.any(k == np.asarray(search.best_index_)) else ""
        lines.append(f"  {shown}{what}{mark}")
    if search.train_sizes is not None:
        lines += _curve_lines(search.learning_curve_)
    lines += [f"advice      {text}" for text in search.advice_]
    return "\n".join([*lines, f"model       {path or 'not saved'}"])


def _cell(value: Any) -> str:
    return f"{value:>12.4g}" if isinstance(value, int | float) else f"{value:>12}"


def _errors_of(search: Any) -> tuple[Any, Any]:
    """Root mean squared error and R² of every candidate; NaN where scores are not squared errors."""
    scores = search.cv_results_["mean_test_score"]
    r2 = search._r2(scores) if hasattr(search, "_r2") else None
    unknown = np.full(len(scores), np.nan)
    return (unknown, unknown) if r2 is None else (np.sqrt(-scores), r2)


def _curve_lines(curve: dict[str, Any]) -> list[str]:
    """Learning curve of the best kernel, and what the last doubling says."""
    sizes, means, spreads = (curve[name] for name in ("train_sizes", "mean_test_score", "std_test_score"))
    lines = [f"  {'rows':>12}{'score':>14}{'± std':>12}  alpha"]
    for size, mean, spread, alpha in zip(sizes, means, spreads, curve["alpha"], strict=True):
        shown = ", ".join(f"{value:.4g}" for value in np.atleast_1d(alpha))
        lines.append(f"  {size:>12,}{mean:>14.6g}{spread:>12.2g}  {shown}")
    return [*lines, f"more rows   {curve['conclusion']}"]


def _json_value(value: Any) -> Any:
    """Numbers, arrays, texts and objects as values of JSON; None for NaN."""
    if value is None or isinstance(value, list | str | dict | bool):
        return value
    if is_object(value):
        return one_line(str(value))
    array = np.asarray(value)
    if array.dtype.kind == "f":
        array = np.array([_known(number) for number in array.ravel()], object).reshape(array.shape)
    return array.tolist()


def _known(value: Any) -> float | None:
    """Number of JSON; None for NaN."""
    return None if math.isnan(value) else float(value)
