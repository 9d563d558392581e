"""Description of a saved model: all that is not an array, as values of JSON; checked when it is read."""

import json
import os
import platform
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict
from importlib.metadata import version
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from dkrr.checks import MAX_SHOWN, MAX_WHOLE, is_object, shown
from dkrr.data import described_rows
from dkrr.data.stored import StoredCopy
from dkrr.errors import StoreError
from dkrr.estimators import KernelLogisticRegression, KernelRidge
from dkrr.estimators.base import KernelEstimator
from dkrr.estimators.search import parameter_columns
from dkrr.features import CallableMap, FeatureMap, Nystroem
from dkrr.features.descriptions import GIVEN_AGAIN, parts_of
from dkrr.fitting.model import FittedFunction
from dkrr.kernels import CallableKernel, Kernel
from dkrr.kernels.columns import encodes
from dkrr.kernels.custom import qualified_name
from dkrr.solvers import ConjugateGradient, Float32Cholesky, RPCholesky
from dkrr.solvers.result import Status
from dkrr.store import ChunkedArray
from dkrr.store.format import read_group
from dkrr.store.places import place_at, refuse_links
from dkrr.store.replacing import arrays_below
from dkrr.text import one_line

# Read with this module: they lie in files, and a process that saves a model may have no descriptor left to open one.
VERSIONS = {
    "python": platform.python_version(),
    **{name: version(name) for name in ("dkrr", "numpy", "scipy", "scikit-learn", "zarr")},
}

Estimator = KernelRidge | KernelLogisticRegression

MODEL_FORMAT = 3

ARRAYS = ("coef", "dual_coef", "intercept", "intercept_shift")
"""Names of the arrays that a model may have, besides its rows and those of feature maps."""
ROWS = "rows"
"""Name of the training rows."""
FEATURES = "features-"
"""Beginning of the names of the arrays of feature maps, before their checksums."""

TRANSFORMER = "transformer"
"""Name of the bytes of a transformer."""

TARGETS, WEIGHTS, FOLDS = "targets", "weights", "folds"
"""Names of what uncertainties are computed from: y, sample weights, and the fold of each row in a search."""

KEPT_ARRAYS = {"primal": ("factor", "coef"), "dual": ("factor", "diagonal")}
"""Beginnings of the names of the arrays of a Gaussian process, before the number of its λ, by its form."""

_OF_PROCESSES = (TARGETS, WEIGHTS, FOLDS, "factor-[0-9]{1,9}", "coef-[0-9]{1,9}", "diagonal-[0-9]{1,9}")
_NAMES = (*ARRAYS, ROWS, f"{FEATURES}[0-9a-f]{{64}}", TRANSFORMER, *_OF_PROCESSES)
_STORED = re.compile("|".join(_NAMES))
FILES = arrays_below(_NAMES)
"""Paths of the files of a saved model; it has no others."""
ASKED = (None, "fitted", "standardize")
"""What `transformer` may have been: an unfitted one (None), a fitted one, or a name."""
_ID = re.compile("[0-9a-f]{32}")

FOUND = ("best_score", "best_index", "alpha", "n_splits")
"""Attributes of a search that are numbers, or have one for each target."""


def description_of(
    model: KernelEstimator, fitted: FittedFunction, transformer: dict[str, Any] | None
) -> dict[str, Any]:
    """Description of a fitted model, but for the arrays that its store has (``stored``, by name).

    What `transformer` was and its text are given; its bytes are an array of the store.
    """
    asked = model._kernel()
    # A loaded model can be fitted with the original kernel, if the fit changed it (centres, vocabulary, origin).
    is_changed = encodes(asked) or any(isinstance(part, Nystroem) for part in parts_of(asked))
    is_changed = is_changed or fitted.intercept_shift is not None
    return {
        "kind": "model",
        "format": MODEL_FORMAT,
        "id": os.urandom(16).hex(),
        "estimator": type(model).__name__,
        "kernel": fitted.kernel.to_dict(),
        "feature_map": None if fitted.feature_map is None else fitted.feature_map.to_dict(),
        "request": asked.to_dict() if is_changed else None,
        "parameters": {name: _plain(getattr(model, name)) for name in model.saved_parameters},
        "n_samples": _n_samples(model, fitted),
        "n_features": fitted.n_features,
        "feature_names": [str(name) for name in getattr(model, "feature_names_in_", [])] or None,
        "target_names": getattr(model, "_target_names", None),
        "transformer": None if transformer is None else transformer | {"n_features_in": model.n_features_in_},
        **model._description(),
        "solve": outcome_of(model) if hasattr(model, "solve_result_") else None,
        "versions": VERSIONS,
    }


def _n_samples(model: KernelEstimator, fitted: FittedFunction) -> int | None:
    """Number of training rows; None for a loaded model in primal form."""
    if hasattr(model, "plan_"):
        return int(model.plan_.problem.n)
    return None if fitted.rows is None else int(fitted.rows.shape[0])


def outcome_of(model: KernelEstimator) -> dict[str, Any]:
    """Outcome of the fit, as values of JSON."""
    form = model.plan_.form if hasattr(model, "plan_") else None
    return {"form": form, "tol": model.tol, **model.solve_result_.to_dict()}


def search_of(model: Any) -> dict[str, Any] | None:
    """Results of a search as values of JSON: kernel values as their text, in the best candidate None; or None."""
    if not hasattr(model, "cv_results_"):
        return None
    results, best = model.cv_results_, model.best_params_
    best = {name: None if is_object(value) else value for name, value in best.items()}
    columns = {k: np.asarray(v).tolist() for k, v in results.items() if k != "params" and not k.startswith("param_")}
    return {
        "params": [_plain_parameters(one) for one in results["params"]],
        "columns": columns,
        "best_params": _plain_parameters(best),
        **{name: _plain(getattr(model, f"{name}_")) for name in FOUND},
    }


def found_in_search(found: dict[str, Any], model: Any) -> dict[str, Any]:
    """Attributes of a model that a search chose, from what `search_of` returned and the model's parameters."""
    params = found["params"]
    return {
        "cv_results_": {"params": params}
        | parameter_columns(params)
        | {name: np.array(values) for name, values in found["columns"].items()},
        "best_params_": {k: getattr(model, k) if v is None else _as_array(v) for k, v in found["best_params"].items()},
        **{f"{name}_": _as_array(found[name]) for name in FOUND},
    }


def _as_array(value: Any) -> Any:
    return np.array(value) if isinstance(value, list) else value


def _plain_parameters(parameters: dict[str, Any]) -> dict[str, Any]:
    return {name: one_line(str(value)) if is_object(value) else _plain(value) for name, value in parameters.items()}


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


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | None) else np.asarray(value).tolist()


def describe_model(path: str | Path) -> dict[str, Any]:
    """Description of a saved model, as written by `save`.

    Raises
    ------
    StoreError
        If the path does not hold a model of this format, or the model is damaged or leads to files elsewhere.
    """
    url = str(path)
    found = read_group(url)
    if found is None:
        raise StoreError(f"{url} does not exist, or is not a Zarr group; expected a model that dkrr.save wrote")
    if not found:
        raise StoreError(f"{url} is a Zarr group but not a dkrr model (it has no description, or was never finished)")
    if found.get("kind") != "model":
        raise StoreError(
            f"{url} is a dkrr {str(found.get('kind'))[:MAX_SHOWN]}, not a model; save one with dkrr.save(model, path)"
        )
    if found.get("format") != MODEL_FORMAT:
        raise StoreError(
            f"{url} is a dkrr model of format {shown(found.get('format'))}; this dkrr reads format {MODEL_FORMAT}: use "
            f"the version that wrote it, {shown(found.get('versions'))}"
        )
    _check_description(url, found)
    return found


def stored_rows(url: str, found: dict[str, Any]) -> dict[str, StoredCopy]:
    """Arrays of a model with a checked description, by name; only their metadata are read.

    Raises
    ------
    StoreError
        If one has another layout than `save` writes, or lies outside of the model.
    """
    stored: dict[str, StoredCopy] = {}
    for name, rows in _described(url, found):
        for array in rows.arrays:
            array.check_metadata()
        kinds = {ROWS: rows.dtype, TRANSFORMER: np.dtype(np.uint8), FOLDS: np.dtype(np.int64)}
        expected = kinds.get(name, np.dtype(np.float64))
        if rows.dtype != expected and not name.startswith(FEATURES):
            raise StoreError(f"{rows.url} is an array of {rows.dtype}; expected {expected}: the model is damaged")
        stored[name] = rows
    return stored


def model_arrays(url: str, found: dict[str, Any]) -> Iterator[tuple[str, ChunkedArray]]:
    """All arrays of a model with a checked description, by name; nothing of them is read."""
    for name, rows in _described(url, found):
        for array in rows.arrays:
            yield name if len(rows.arrays) == 1 else f"{name}/{array.url.rsplit('/', maxsplit=1)[-1]}", array


def _described(url: str, found: dict[str, Any]) -> Iterator[tuple[str, StoredCopy]]:
    for name, description in found["stored"].items():
        rows = described_rows(place_at(url, found["id"]).at(name), description)
        if isinstance(description, dict) and description.get("rows_per_chunk") is not None:
            raise StoreError(f"{rows.url} has chunks of another size than dkrr.save writes: the model is damaged")
        for array in rows.arrays:
            refuse_links(array.url, url)
        yield name, rows


def _check_description(url: str, found: dict[str, Any]) -> None:
    """Refuse a description that leads out of its store, or has other types than `save` writes."""
    stored = found.get("stored")
    if not isinstance(stored, dict) or any(not _STORED.fullmatch(name) for name in stored):
        raise StoreError(
            f"the model {url} is damaged: its description names arrays that dkrr.save does not write: {shown(stored)}"
        )
    is_right = DESCRIPTION | (LABELS if found.get("estimator") == KernelLogisticRegression.__name__ else {})
    _check_entries(url, found, is_right)
    if found["solve"] is not None:
        _check_entries(url, found["solve"], SOLVE, "solve=")
    names, transformer = found.get("feature_names"), found.get("transformer")
    width = found["n_features"] if transformer is None else transformer["n_features_in"]
    if names is not None and len(names) != width:
        raise StoreError(f"the model {url} is damaged: its description has feature_names={shown(names)}")
    known = list(patterns_of(found["kernel"]))
    if any(pattern not in known for name in ("request", "feature_map") for pattern in patterns_of(found[name] or {})):
        raise StoreError(f"the model {url} is damaged: its description has a token_pattern that its kernel does not")


def _check_entries(url: str, found: dict[str, Any], checks: dict[str, Callable[[Any], bool]], where: str = "") -> None:
    for entry, is_right in checks.items():
        if entry not in found or not is_right(found[entry]):
            value = shown({entry: found.get(entry)}) if where else f"{entry}={shown(found.get(entry))}"
            missing = "" if entry in found else f", without {entry}"
            raise StoreError(f"the model {url} is damaged: its description has {where}{value}{missing}")


def _is_whole(value: Any, minimum: int = 0) -> bool:
    return type(value) is int and minimum <= value <= MAX_WHOLE


def _is_positive(value: Any) -> bool:
    return _is_whole(value, 1)


def _is_real(value: Any) -> bool:
    """Whether a value is a float: NaN and infinity, too, which a fit that failed may have; or a whole number."""
    return type(value) is float or (type(value) is int and abs(value) <= MAX_WHOLE)


def _is_finite(value: Any) -> bool:
    return _is_real(value) and 0 <= value < inf


def _is_one_of(*values: Any) -> Callable[[Any], bool]:
    return lambda value: any(value is one or (isinstance(value, str) and value == one) for one in values)


def _is_list_of(check: Callable[[Any], bool], minimum: int = 0) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and len(value) >= minimum and all(map(check, value))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_dict(value: Any) -> bool:
    return isinstance(value, dict)


def _or_none(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or check(value)


def _is_dict_of_numbers(value: Any) -> bool:
    return isinstance(value, dict) and all(number is None or _is_real(number) for number in value.values())


def _is_line_of_history(value: Any) -> bool:
    checks = (_is_whole, _is_finite, _or_none(_is_real), _is_one_of(True, False))
    return (
        isinstance(value, list) and len(value) == len(checks) and all(c(v) for c, v in zip(checks, value, strict=True))
    )


_OF_ALL = {"form": _is_text, "alpha": _is_finite, "quadratic": _is_list_of(_is_real, 1)}
KEPT_NUMBERS: dict[str, dict[str, Callable[[Any], bool]]] = {
    "primal": _OF_ALL | {"centred": _is_one_of(True, False)},
    "dual": _OF_ALL | {"tile": _is_positive, "panel": _is_positive},
}
"""Entries of `factors` in `uncertainty`, by the form of a factor."""


def _is_kernel(value: Any) -> bool:
    has_names = isinstance(value, dict) and all(_is_text(part.get("name")) for part in custom_parts(value))
    return has_names and all(map(_is_text, patterns_of(value)))


def _is_transformer(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and set(value) == {"asked", "text", "n_features_in"}
        and _is_text(value["text"])
        and _is_one_of(*ASKED)(value["asked"])
        and _is_whole(value["n_features_in"], 1)
    )


def _is_search(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and set(value) == {"params", "columns", "best_params", *FOUND}
        and _is_list_of(_is_dict, 1)(value["params"])
        and isinstance(value["best_params"], dict)
        and isinstance(value["columns"], dict)
        and all(isinstance(column, list) for column in value["columns"].values())
    )


def _is_kept(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == {"solver", "factors"} and _is_list_of(_is_factor)(value["factors"])


def _is_factor(value: Any) -> bool:
    if not isinstance(value, dict) or value.get("form") not in KEPT_NUMBERS:
        return False
    checks = KEPT_NUMBERS[value["form"]]
    return set(value) == set(checks) and all(check(value[name]) for name, check in checks.items())


def _is_dtype_of_labels(value: Any) -> bool:
    return _is_text(value) and re.fullmatch(r"object|[<>|=](b1|[iu][1248]|f(2|4|8|16)|U[0-9]{1,9})", value) is not None


DESCRIPTION: dict[str, Callable[[Any], bool]] = {
    "id": lambda value: _is_text(value) and _ID.fullmatch(value) is not None,
    "estimator": _is_one_of(KernelRidge.__name__, KernelLogisticRegression.__name__),
    "kernel": _is_kernel,
    "feature_map": _or_none(_is_kernel),
    "request": _or_none(_is_kernel),
    "parameters": _is_dict,
    "n_features": lambda value: _is_whole(value, 1),
    "n_samples": _or_none(lambda value: _is_whole(value, 1)),
    "transformer": _or_none(_is_transformer),
    "feature_names": _or_none(_is_list_of(_is_text)),
    "target_names": _or_none(_is_list_of(_is_text, 1)),
    "solve": _or_none(_is_dict),
    "versions": lambda value: isinstance(value, dict) and all(map(_is_text, value.values())),
    "column_major": _is_one_of(True, False),
    "search": _or_none(_is_search),
    "uncertainty": _or_none(_is_kept),
    "report": _or_none(_is_dict),
}
"""Entries of a description, and what is true of those that `save` writes."""
LABELS: dict[str, Callable[[Any], bool]] = {
    "classes": _is_list_of(lambda value: isinstance(value, str | int | float), 2),
    "class_dtype": _is_dtype_of_labels,
    "softmax": _is_one_of(True, False),
    "n_iter": _is_whole,
}
"""The same of a classifier."""
SOLVE: dict[str, Callable[[Any], bool]] = {
    "form": _is_one_of("primal", "dual", None),
    "status": _is_one_of(*Status.__members__),
    "residual": _or_none(_is_real),
    "condition": _or_none(_is_real),
    "seconds": _is_finite,
    "peak_bytes": _is_whole,
    "tol": _is_finite,
    "iterations": _is_whole,
    "rank": _is_whole,
    "history": _is_list_of(_is_line_of_history),
    "messages": _is_list_of(_is_text),
    "steps": _is_list_of(_is_dict_of_numbers),
    "stages": _is_list_of(_is_dict),
    "bytes_read": _is_whole,
    "bytes_written": _is_whole,
}
"""Entries of `solve`."""


def custom_parts(description: Any) -> Iterator[dict[str, Any]]:
    """Descriptions of the user's own functions and feature maps in that of a kernel: names, without code."""
    if isinstance(description, dict):
        if description.get("kernel") == CallableKernel.tag or description.get("feature_map") in GIVEN_AGAIN:
            yield description
        for value in description.values():
            yield from custom_parts(value)


def patterns_of(description: Any) -> Iterator[Any]:
    """Regular expressions in the description of a kernel."""
    for value in description.values() if isinstance(description, dict) else description:
        if isinstance(value, dict | list):
            yield from patterns_of(value)
    if isinstance(description, dict) and "token_pattern" in description:
        yield description["token_pattern"]


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
