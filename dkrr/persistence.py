"""Models on disk: a Zarr store with a JSON description. Loading reads numbers and names, and runs no code."""

import json
import platform
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from dkrr.errors import DkrrError, InputError, InputTypeError, StoreError
from dkrr.estimators import KernelLogisticRegression, KernelRidge
from dkrr.features import CallableMap, FeatureMap, Nystroem, arrays_of, feature_map_from_dict, kernel_from_dict
from dkrr.features.descriptions import GIVEN_AGAIN, parts_of
from dkrr.kernels import CallableKernel, Kernel
from dkrr.kernels.columns import encodes
from dkrr.kernels.custom import qualified_name
from dkrr.model import FittedFunction
from dkrr.rows import MemoryRows, Rows, SparseRows, ZarrRows, write_rows
from dkrr.tiles.arrays import create_array, create_group, open_array, open_group, refuse_links
from dkrr.tiles.aside import check_free, written_aside

MODEL_FORMAT = 1

IN_MEMORY_BYTES = 256 * 2**20
"""Training rows up to this size are held in memory by a loaded model; larger ones are read at each prediction."""

_ARRAYS = ("coef", "dual_coef", "intercept", "intercept_shift")
_DIGEST = re.compile("[0-9a-f]{64}")

Estimator = KernelRidge | KernelLogisticRegression
_ESTIMATORS: dict[str, type[Estimator]] = {
    "KernelRidge": KernelRidge,
    "KernelLogisticRegression": KernelLogisticRegression,
}


def save(model: Estimator, path: str | Path, overwrite: bool = False) -> None:
    """Save a fitted model.

    It is written aside and moved to `path` once it is whole: until then an earlier one stays what it is. A folder
    cannot be replaced in one step: a process that is killed between the two renames leaves no model at `path`, and
    beside it the old and the new one, whose names have a dot and eight hexadecimal digits before that of `path`.

    Parameters
    ----------
    model : KernelRidge or KernelLogisticRegression
        Fitted.
    path : str or Path
        Path or URL of the new Zarr store.
    overwrite : bool, default=False
        Replace the model that is at that path; anything else is never replaced. A model that was loaded from there and
        reads its training rows at each prediction must then be loaded again.

    Raises
    ------
    InputError
        If the model is not fitted, or something is at that path already.

    Examples
    --------
    >>> import numpy as np, dkrr, tempfile
    >>> model = dkrr.KernelRidge(kernel="rbf").fit(np.eye(3), [1.0, 2.0, 3.0])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     dkrr.save(model, f"{folder}/model.zarr")
    ...     again = dkrr.load(f"{folder}/model.zarr")
    >>> bool(np.all(again.predict(np.eye(3)) == model.predict(np.eye(3))))
    True
    """
    fitted: FittedFunction | None = getattr(model, "_model", None)
    if fitted is None:
        raise InputError("this model is not fitted yet; call fit before dkrr.save")
    check_model_path(path, overwrite=overwrite)
    dual_coef = getattr(model, "dual_coef_", fitted.dual_coef)
    arrays = dict(zip(_ARRAYS, (fitted.coef, dual_coef, fitted.intercept, fitted.intercept_shift), strict=True))
    kept = {name: np.asarray(array, np.float64) for name, array in arrays.items() if array is not None}
    of_features = {digest: MemoryRows(array) for digest, array in arrays_of(fitted.kernel).items()}
    # What cannot be described is found before anything is written.
    description = _description(
        model, fitted, sorted(kept), {digest: _kind(rows) for digest, rows in of_features.items()}
    )
    json.dumps(description)
    with written_aside(str(path), overwrite=overwrite) as url:
        try:
            create_group(url, {})
        except (ValueError, OSError) as error:
            raise InputError(f"cannot create {path}: {error}") from error
        for name, array in kept.items():
            array = array.reshape(-1, fitted.n_targets) if name.endswith("coef") else array
            create_array(f"{url}/{name}", array.shape, np.float64)[...] = array
        if fitted.rows is not None:
            write_rows(fitted.rows, f"{url}/rows")
        for digest, rows in of_features.items():
            write_rows(rows, f"{url}/features-{digest}")
        open_group(url, mode="r+").attrs["dkrr"] = description


def check_model_path(path: str | Path, *, overwrite: bool) -> None:
    """Refuse a path that `save` could not write to, before a model is fitted.

    Raises
    ------
    InputError
        If something is there, unless it is a model that may be overwritten.
    """
    check_free(str(path), overwrite=overwrite, what="a saved model of dkrr", is_one=_is_model)


def _is_model(url: str) -> bool:
    try:
        found = open_group(url).attrs.asdict().get("dkrr")
    except StoreError:
        return False
    return isinstance(found, dict) and found.get("kind") == "model"


def _description(model: Estimator, fitted: FittedFunction, arrays: list[str], of_features: Any) -> dict[str, Any]:
    """All that is not an array, as values of JSON."""
    # What a loaded model is fitted again with, where that is not what it has been fitted to: centres yet to be drawn.
    asked = model._kernel()
    learns = encodes(asked) or any(isinstance(part, Nystroem) for part in parts_of(asked))
    learns = learns or fitted.intercept_shift is not None  # an origin
    return {
        "kind": "model",
        "format": MODEL_FORMAT,
        "estimator": type(model).__name__,
        "kernel": fitted.kernel.to_dict(),
        "feature_map": None if fitted.feature_map is None else fitted.feature_map.to_dict(),
        "feature_arrays": of_features,
        "request": asked.to_dict() if learns else None,
        "parameters": {name: _plain(getattr(model, name)) for name in model.saved_parameters},
        "n_features": fitted.n_features,
        "feature_names": [str(name) for name in getattr(model, "feature_names_in_", [])] or None,
        **model._description(),
        "arrays": arrays,
        "rows": None if fitted.rows is None else _kind(fitted.rows),
        "solve": _solve(model) if hasattr(model, "solve_result_") else None,
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("dkrr", "numpy", "scipy", "scikit-learn", "zarr")},
        },
    }


def _solve(model: Estimator) -> dict[str, Any]:
    """Return the outcome of the fit as values of JSON."""
    result = model.solve_result_
    return {
        "form": model.plan_.form if hasattr(model, "plan_") else None,
        "status": result.status.name,
        "residual": result.residual,
        "seconds": result.seconds,
        "peak_bytes": result.peak_bytes,
        "tol": model.tol,
        "iterations": result.iterations,
        "rank": result.rank,
        "history": [[h.iteration, h.seconds, h.largest, h.is_true] for h in result.history],
    }


def load(path: str | Path, *, kernel: Any = None) -> Estimator:
    """Load a model that `save` wrote.

    Parameters
    ----------
    path : str or Path
    kernel : callable, Kernel, FeatureMap or class, optional
        The function or feature map of a model that has one of the user's own: a file cannot hold it. What `fit` was
        given as kernel will do; the values of its settings are read from the file.

    Returns
    -------
    KernelRidge or KernelLogisticRegression
        Ready to predict.

    Raises
    ------
    StoreError
        If there is no model, or it is damaged or of another format.
    InputError
        If the kernel's function is needed and not given, or what is given does not make the kernel that was saved.
    """
    if not (kernel is None or callable(kernel) or isinstance(kernel, FeatureMap)):
        raise InputTypeError(
            f"kernel={kernel!r} is not a function, Kernel, FeatureMap or class; expected what fit was given as kernel, "
            f"or None for a model of dkrr's own kernels"
        )
    url = str(path)
    found = describe_model(url)
    try:
        callables = None if kernel is None else _callables(found["kernel"], kernel)
        of_features = {
            digest: _whole(_stored(f"{url}/features-{digest}", kind))
            for digest, kind in found.get("feature_arrays", {}).items()
        }
        value = kernel_from_dict(found["kernel"], callables, of_features)
        request = found.get("request")
        arrays = {name: _coefficients(f"{url}/{name}") for name in found["arrays"]}
        feature_map = (
            None
            if found["feature_map"] is None
            else feature_map_from_dict(found["feature_map"], callables, of_features)
        )
        rows = _rows(f"{url}/rows", found["rows"])
        # The kernel value carries what gamma, degree and coef0 said.
        settings = {k: v for k, v in found["parameters"].items() if k not in ("gamma", "degree", "coef0")}
        estimator = _ESTIMATORS[found["estimator"]]
        model = estimator(kernel=value if request is None else kernel_from_dict(request, callables), **settings)
        coef, dual_coef = arrays.get("coef"), arrays.get("dual_coef")
        fitted = FittedFunction(
            kernel=value,
            n_features=found["n_features"],
            coef=coef,
            feature_map=feature_map,
            dual_coef=None if coef is not None else dual_coef,
            rows=rows,
            intercept=arrays["intercept"],
            intercept_shift=arrays.get("intercept_shift"),
        )
        _check(fitted)
        model._restore(fitted, dual_coef, found)
    except DkrrError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StoreError(f"the model {url} is damaged: its description does not fit its content ({error!r})") from error
    model.n_features_in_ = fitted.n_features
    if found.get("feature_names") is not None:
        model.feature_names_in_ = np.array(found["feature_names"], object)
    return model


def describe_model(path: str | Path) -> dict[str, Any]:
    """Description of a saved model, as written by `save`.

    Raises
    ------
    StoreError
        If there is no model at that path, or not one of this format, or it leads to files elsewhere.
    """
    url = str(path)
    refuse_links(url)
    found = open_group(url).attrs.asdict().get("dkrr")
    if not isinstance(found, dict):
        raise StoreError(f"{url} is a Zarr group but not a dkrr model (it has no description, or was never finished)")
    if found.get("kind") != "model":
        raise StoreError(f"{url} is a dkrr {found.get('kind')}, not a model; save one with dkrr.save(model, path)")
    if found.get("format") != MODEL_FORMAT:
        raise StoreError(
            f"{url} is a dkrr model of format {found.get('format')}; this dkrr reads format {MODEL_FORMAT}. "
            f"Use the version that wrote it: {found.get('versions')}"
        )
    _check_description(url, found)
    return found


def _check_description(url: str, found: dict[str, Any]) -> None:
    """Refuse a description that leads out of its store, or has other types than `save` writes."""
    arrays, of_features = found.get("arrays", []), found.get("feature_arrays", {})
    named = isinstance(arrays, list) and all(name in _ARRAYS for name in arrays)
    named = named and isinstance(of_features, dict) and all(_DIGEST.fullmatch(digest) for digest in of_features)
    kinds = [found.get("rows"), *(of_features.values() if isinstance(of_features, dict) else ())]
    if not named or any(kind not in (None, "dense", "sparse") for kind in kinds):
        raise StoreError(
            f"the model {url} is damaged: its description names arrays that dkrr.save does not write "
            f"(arrays {arrays!r}, feature_arrays {of_features!r}, rows {found.get('rows')!r})"
        )
    n_features, names = found.get("n_features"), found.get("feature_names")
    wrong = {
        "parameters": not isinstance(found.get("parameters"), dict),
        "n_features": type(n_features) is not int or n_features < 1,
        "feature_names": names is not None
        and not (isinstance(names, list) and all(isinstance(name, str) for name in names) and len(names) == n_features),
    }
    for entry, is_wrong in wrong.items():
        if is_wrong:
            raise StoreError(f"the model {url} is damaged: its description has {entry}={found.get(entry)!r}")


def _coefficients(url: str) -> Any:
    array = open_array(url)
    if array.dtype != np.float64:
        raise StoreError(f"{url} is an array of {array.dtype}; expected float64: the model is damaged")
    return np.asarray(array[...])


def _rows(url: str, kind: str | None) -> Rows | None:
    if kind is None:
        return None
    rows = _stored(url, kind)
    return MemoryRows(_whole(rows)) if rows.n_bytes <= IN_MEMORY_BYTES else rows


def _whole(rows: Rows) -> Any:
    return rows.read(0, rows.shape[0])


def _stored(url: str, kind: str) -> Rows:
    return SparseRows(url) if kind == "sparse" else ZarrRows(url)


def _kind(rows: Rows) -> str:
    return "sparse" if rows.is_sparse else "dense"


def _check(fitted: FittedFunction) -> None:
    t = fitted.n_targets
    if fitted.coef is not None:
        found = fitted.coef.shape
        expected = (0 if fitted.feature_map is None else fitted.feature_map.dimension(fitted.n_features), t)
    else:
        found = () if fitted.dual_coef is None else fitted.dual_coef.shape
        n = fitted.n_features if fitted.kernel.is_precomputed else fitted.rows.shape[0] if fitted.rows else -1
        expected = (n, t)
    if found != expected:
        raise KeyError(f"coefficients of shape {found}, expected {expected}")
    if fitted.rows is not None and fitted.rows.shape[1] != fitted.n_features:
        raise KeyError(f"training rows of shape {fitted.rows.shape} for {fitted.n_features} features")


def _callables(description: Any, given: Any) -> dict[str, Any]:
    """Return the objects that a user gave, by the names that the description has for them."""
    named = _named(description, given)
    if isinstance(given, Kernel | FeatureMap):  # of several such parts, each is known by its name
        for part in parts_of(given):
            if isinstance(part, CallableKernel | CallableMap):
                named[str(part.name)] = part.function if isinstance(part, CallableKernel) else part
            else:
                named[qualified_name(type(part))] = type(part)
    return named


def _named(description: Any, given: Any) -> dict[str, Any]:
    names: dict[str, Any] = {}
    if isinstance(description, dict):
        if description.get("kernel") == CallableKernel.tag:
            names[description["name"]] = getattr(given, "function", given)
        if description.get("feature_map") in GIVEN_AGAIN:
            names[description["name"]] = given
        for value in description.values():
            names.update(_named(value, given))
    return names


def _plain(value: Any) -> Any:
    if isinstance(value, str | None):
        return value
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else np.asarray(value).tolist()
