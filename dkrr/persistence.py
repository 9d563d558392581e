"""Models on disk: a Zarr store with a JSON description. Loading reads numbers and names, and runs no code."""

import json
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from dkrr.errors import InputError, StoreError
from dkrr.estimators import KernelLogisticRegression, KernelRidge
from dkrr.features import CallableMap, FeatureMap, Nystroem, arrays_of, feature_map_from_dict
from dkrr.features.descriptions import GIVEN_AGAIN, parts_of
from dkrr.kernels import CallableKernel, Kernel, kernel_from_dict
from dkrr.kernels.columns import encodes
from dkrr.kernels.custom import qualified_name
from dkrr.model import FittedFunction
from dkrr.rows import MemoryRows, Rows, SparseRows, ZarrRows, write_rows
from dkrr.tiles.arrays import create_array, create_group, open_array, open_group
from dkrr.tiles.chunks import local_path

MODEL_FORMAT = 1

IN_MEMORY_BYTES = 256 * 2**20
"""Training rows up to this size are held in memory by a loaded model; larger ones are read at each prediction."""

Estimator = KernelRidge | KernelLogisticRegression
_ESTIMATORS: dict[str, type[Estimator]] = {
    "KernelRidge": KernelRidge,
    "KernelLogisticRegression": KernelLogisticRegression,
}


def save(model: Estimator, path: str | Path) -> None:
    """Save a fitted model.

    Parameters
    ----------
    model : KernelRidge or KernelLogisticRegression
        Fitted.
    path : str or Path
        Path or URL of the new Zarr store; it must not exist.

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
    url = str(path)
    local = local_path(url)
    if local is not None and local.exists():
        raise InputError(f"{url} exists already; delete it or give another path")
    parameters = {name: _plain(getattr(model, name)) for name in model.saved_parameters}
    # What a loaded model is fitted again with, where that is not what it has been fitted to: centres yet to be drawn.
    asked = model._kernel()
    learns = encodes(asked) or any(isinstance(part, Nystroem) for part in parts_of(asked))
    request = asked.to_dict() if learns else None
    of_estimator = model._description()
    json.dumps(
        [parameters, request, fitted.kernel.to_dict(), of_estimator]
    )  # what cannot be described is found before anything is written
    try:
        create_group(url, {})
    except (ValueError, OSError) as error:
        raise InputError(f"cannot create {url}: {error}") from error
    arrays = {
        "intercept": fitted.intercept,
        "coef": fitted.coef,
        "dual_coef": getattr(model, "dual_coef_", fitted.dual_coef),
    }
    for name, array in arrays.items():
        if array is not None:
            array = np.asarray(array, np.float64).reshape(-1, fitted.n_targets) if name != "intercept" else array
            create_array(f"{url}/{name}", array.shape, np.float64)[...] = array
    if fitted.rows is not None:
        write_rows(fitted.rows, f"{url}/rows")
    of_features = {digest: MemoryRows(array) for digest, array in arrays_of(fitted.kernel).items()}
    for digest, array in of_features.items():
        write_rows(array, f"{url}/features-{digest}")
    # The description is written last: a model without it was never finished.
    _describe(
        url,
        {
            "kind": "model",
            "format": MODEL_FORMAT,
            "estimator": type(model).__name__,
            "kernel": fitted.kernel.to_dict(),
            "feature_map": None if fitted.feature_map is None else fitted.feature_map.to_dict(),
            "feature_arrays": {digest: _kind(array) for digest, array in of_features.items()},
            "request": request,
            "parameters": parameters,
            "n_features": fitted.n_features,
            "feature_names": [str(name) for name in getattr(model, "feature_names_in_", [])] or None,
            **of_estimator,
            "arrays": sorted(name for name, array in arrays.items() if array is not None),
            "rows": None if fitted.rows is None else _kind(fitted.rows),
            "solve": {
                "form": model.plan_.form if hasattr(model, "plan_") else None,
                "status": model.solve_result_.status.name,
                "residual": model.solve_result_.residual,
                "seconds": model.solve_result_.seconds,
                "peak_bytes": model.solve_result_.peak_bytes,
                "tol": model.tol,
                "iterations": model.solve_result_.iterations,
                "rank": model.solve_result_.rank,
                "history": [[h.iteration, h.seconds, h.largest, h.is_true] for h in model.solve_result_.history],
            }
            if hasattr(model, "solve_result_")
            else None,
            "versions": {
                "python": platform.python_version(),
                **{name: version(name) for name in ("dkrr", "numpy", "scipy", "scikit-learn", "zarr")},
            },
        },
    )


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
        If the kernel's function is needed and not given.
    """
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
        arrays = {name: np.asarray(open_array(f"{url}/{name}")[...]) for name in found["arrays"]}
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
            n_features=int(found["n_features"]),
            coef=coef,
            feature_map=feature_map,
            dual_coef=None if coef is not None else dual_coef,
            rows=rows,
            intercept=arrays["intercept"],
        )
        _check(fitted)
        model._restore(fitted, dual_coef, found)
    except (KeyError, TypeError) as error:
        raise StoreError(f"the model {url} is damaged: its description does not fit its content ({error!r})") from error
    model.n_features_in_ = fitted.n_features
    if found["feature_names"] is not None:
        model.feature_names_in_ = np.array(found["feature_names"], object)
    return model


def describe_model(path: str | Path) -> dict[str, Any]:
    """Description of a saved model, as written by `save`.

    Raises
    ------
    StoreError
        If there is no model at that path, or not one of this format.
    """
    url = str(path)
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
    return found


def _describe(url: str, description: dict[str, Any]) -> None:
    open_group(url, mode="r+").attrs["dkrr"] = description


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


def _callables(description: Any, given: Any) -> dict[str, Any]:
    """What a user gave under every name that the description has for something of the user's own."""
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
