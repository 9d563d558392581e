"""Models on disk: a Zarr store with a JSON description. Loading reads numbers and names, and runs no code."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from dkrr.checks import checked_alphas, flag, location, shown
from dkrr.cluster import make_progress
from dkrr.cluster.process import graceful_termination
from dkrr.data import MemoryRows, Rows, described_rows, refuse_changed, whole, write_rows
from dkrr.data.stored import StoredCopy
from dkrr.errors import DamagedChunkError, InputError, InputTypeError, StoreError
from dkrr.estimators import KernelLogisticRegression, KernelRidge
from dkrr.estimators.kernel_estimator import KernelEstimator
from dkrr.estimators.kernel_ridge import RidgeRegressor
from dkrr.estimators.model_description import (
    LIBRARY_VERSIONS,
    custom_parts,
    described_solver,
    description_of,
    found_in_search,
    named_objects,
    search_of,
    solver_of,
    summary_of,
)
from dkrr.fitting.fitted_function import FittedFunction
from dkrr.fitting.fold_models import SavedFolds
from dkrr.fitting.posteriors import Posteriors
from dkrr.fitting.requests import FitRequest, Learned, Targets, checked_weights
from dkrr.fitting.results import SavedPosterior
from dkrr.kernels import BagOfWords, Kernel
from dkrr.kernels.descriptions import feature_map_from_dict, kernel_from_dict, try_given
from dkrr.kernels.documents import TOKEN_PATTERN
from dkrr.kernels.fourier_grid import FourierZones, map_of_fit
from dkrr.kernels.kernel_features import arrays_of, is_drawn, parts_of, required_feature_map
from dkrr.kernels.map_base import FeatureMap
from dkrr.selection import Folds
from dkrr.store import TileGrid
from dkrr.store import description as layout
from dkrr.store.chunks import REMEDY
from dkrr.store.format import check_readable, write_group
from dkrr.store.paths import refuse_enclosing
from dkrr.store.places import check_free, place_at, written_aside
from dkrr.text import plural
from dkrr.typing import SupportsTransform

IN_MEMORY_BYTES = 256 * 2**20
"""Training rows up to this size are held in memory by a loaded model; larger ones are read at each prediction."""

QUIET_BYTES = 2**30
"""Models up to this size are written without a display of the progress unless asked to."""

Estimator = KernelRidge | KernelLogisticRegression
_ESTIMATORS: dict[str, type[Estimator]] = {
    layout.REGRESSION: KernelRidge,
    layout.CLASSIFICATION: KernelLogisticRegression,
}


def save(
    model: KernelEstimator, path: str | Path, *, overwrite: bool = False, uncertainty: bool | Literal["data"] = False
) -> None:
    """Save a fitted model.

    The model is a Zarr store of numbers and text, without code, which `dkrr.load` reads. It takes
    its place at `path` in one step when it is complete.

    Parameters
    ----------
    model : KernelRidge, KernelLogisticRegression, KernelRidgeCV or KernelLogisticRegressionCV
        Fitted estimator; of a search the model that it chose is saved, with the results of the
        search (`cv_results_`, `best_params_`, `best_score_`, ...), whose kernel values come back as
        text.
    path : str or Path
        Path or URL of the new Zarr store.
    overwrite : bool, default=False
        Replace an existing model; anything else at that path is never replaced, nor is a model in
        whose folder other files lie. A model that was loaded from there and reads its training rows
        at each prediction must then be loaded again.
    uncertainty : bool or "data", default=False
        Whether the model also holds what `predict` with `return_std`, `predict_variance_bounds`,
        `predict_interval`, `loo_residuals` and `log_marginal_likelihood` need. True: training rows,
        targets, weights, the folds of a search, and the Cholesky factor for every λ. "data": the
        same without a factor. See Notes.

    Raises
    ------
    NotFittedError
        If the model is not fitted.
    InputError
        If the path exists, or uncertainties are not known: of a classifier, or of a model that was
        loaded without them.

    See Also
    --------
    dkrr.load : Load a saved model.
    dkrr.KernelRidge : Kernel ridge regression.
    dkrr.verify : Whether a store or a saved model is whole.
    dkrr.report : An HTML page of a fit, a run or a model.

    Notes
    -----
    It is written beside `path` and takes its place in one step when it is complete: a process that
    is killed leaves the earlier model or the new one. Where the file system cannot exchange two
    folders (NFS, object stores, macOS), a kill in the moment of the exchange leaves neither at
    `path`, but both beside it. What killed processes leave has a name that begins with
    ``.dkrr-new-`` or ``.dkrr-old-``, and can be deleted.

    With ``uncertainty=True`` the factor is computed now if neither the fit (``uncertainty=True`` of
    the estimator) nor a later call has left it, and a loaded model returns the same bits. With
    "data" it is computed when it is first needed, as where conjugate gradient takes its place
    (solver="cg", or no memory for a factor): the same bits on the same machine. The plan of the fit
    says how large the model is. With True the models without a fold are saved, too, if they are
    known for the folds that `predict_interval` takes by default, from a call of it or the fit
    (``uncertainty="intervals"``): then the loaded model computes intervals from these alone.

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
    write_model(model, path, overwrite=overwrite, uncertainty=uncertainty)


def write_model(
    model: KernelEstimator,
    path: str | Path,
    *,
    overwrite: bool = False,
    uncertainty: bool | Literal["data"] = False,
    command: str | None = None,
) -> None:
    """Save a fitted model as `save` does, with the digest of the command that fitted it, by which that knows it."""
    path = location(path, "path", "the path or URL of the new model", is_kept=True)
    overwrite = flag(overwrite, "overwrite")
    if not isinstance(uncertainty, str) or uncertainty != "data":
        uncertainty = flag(uncertainty, "uncertainty", ', or "data"')
    if not isinstance(model, KernelEstimator):
        raise InputTypeError(
            f"model is {shown(model)}; expected a fitted estimator of dkrr: what a Pipeline does before it is saved "
            f"as its transformer, KernelRidge(transformer=pipeline[:-1]), and of a search its best_estimator_"
        )
    model._check_fitted()
    fitted: FittedFunction = model._model
    summary = summary_of(model) if hasattr(model, "plan_") else None  # of a loaded model nothing is known of the fit
    search, folds, given = search_of(model), getattr(model, "_folds", None), model
    model = model._as_saved()
    if uncertainty is not False and not isinstance(model, KernelRidge):
        raise InputError(
            f"uncertainty is {uncertainty!r}, and model is a {type(model).__name__}; expected a regression"
        )
    check_model_path(path, overwrite=overwrite)
    # Of a Fourier grid, whose models do without anything as long as the rows, they are not needed either.
    is_on_grid = map_of_fit(fitted.feature_map) is not fitted.feature_map
    dual_coef = None if is_on_grid else getattr(model, "dual_coef_", fitted.dual_coef)
    columns = (fitted.coef, dual_coef, fitted.intercept, fitted.intercept_shift)
    arrays = {k: np.asarray(a, np.float64) for k, a in zip(layout.COEFFICIENTS, columns, strict=True) if a is not None}
    parts: dict[str, Rows] = {
        name: MemoryRows(array.reshape(-1, fitted.n_targets) if name.endswith("coef") else array[:, None])
        for name, array in arrays.items()
    }
    parts |= {f"{layout.FEATURES}{digest}": MemoryRows(array) for digest, array in arrays_of(fitted.kernel).items()}
    if fitted.rows is not None:
        refuse_changed(fitted.rows)
        parts[layout.ROWS] = fitted.rows
    transformer = uncertain = None
    if uncertainty is not False:
        assert isinstance(model, KernelRidge)  # checked above
        uncertain, more = _saved_of(model._posteriors(), folds, with_factors=uncertainty is True)
        parts = more | parts  # the rows that predictions read, if they read any
        if uncertainty is True:
            assert isinstance(given, RidgeRegressor)
            _add_fold_models(uncertain, parts, model._posteriors(), given._default_folds())
    if "transformer_" in vars(model):
        from dkrr.data.transformers_saved import saved_transformer

        asked: str | None = model.transformer if isinstance(model.transformer, str) else None
        asked = "fitted" if model.transformer is model.transformer_ else asked
        transformer = {"asked": asked, "text": " ".join(repr(model.transformer_).split())}
        parts[layout.TRANSFORMER] = MemoryRows(saved_transformer(model.transformer_))
    description = description_of(model, fitted, transformer)
    held = getattr(parts.get(layout.ROWS), "array", None)  # the order of numbers in memory decides last digits
    is_column_major = isinstance(held, np.ndarray) and held.flags.f_contiguous and not held.flags.c_contiguous
    description |= {"search": search, "uncertainty": uncertain, "column_major": is_column_major, "report": summary}
    description |= {} if command is None else {layout.COMMAND: command}
    check_readable(description, f"the description of the model {path}")
    with graceful_termination(), written_aside(path, overwrite=overwrite, listed=layout.FILES) as url:
        root = place_at(url, description["id"])
        root.make()
        total = sum(rows.n_bytes for rows in parts.values())
        progress = make_progress(False if model.progress is None and total < QUIET_BYTES else model.progress)
        with progress.stage("writing the model", total):
            written = {name: write_rows(rows, root.at(name), progress=progress) for name, rows in parts.items()}
        write_group(url, {**description, "stored": {name: rows.describe() for name, rows in written.items()}})


def _saved_of(
    posteriors: Posteriors, folds: Folds | None, *, with_factors: bool
) -> tuple[dict[str, Any], dict[str, Rows]]:
    """Description and arrays of what uncertainties are computed from."""
    request = posteriors.request
    parts: dict[str, Rows] = {layout.ROWS: request.rows, layout.TARGETS: MemoryRows(posteriors.targets)}
    if request.weights is not None:
        parts[layout.WEIGHTS] = MemoryRows(request.weights[:, None])
    if folds is not None and folds.serve_intervals:
        fold_of = np.empty((folds.n, 1), np.int64)
        for k, rows in enumerate(folds.test):
            fold_of[rows] = k
        parts[layout.FOLDS] = MemoryRows(fold_of)
    factors = list[dict[str, Any]]()
    for k, (alpha, saved) in enumerate(posteriors.saved().items() if with_factors else ()):
        factors.append({"alpha": alpha, **saved.numbers})
        parts |= {f"{name}-{k}": rows for name, rows in saved.arrays.items()}
    return {"solver": described_solver(request.settings.solver), "factors": factors}, parts


def _add_fold_models(
    uncertain: dict[str, Any], parts: dict[str, Rows], posteriors: Posteriors, folds: Sequence[NDArray[np.intp]]
) -> None:
    """Add models that leave out folds to what is saved, where they are known."""
    for k, (alpha, saved) in enumerate(posteriors.saved_folds(folds).items()):
        uncertain.setdefault("folds", []).append({"alpha": alpha, "form": saved.form, "doubt": saved.doubt})
        arrays = saved.coef, saved.constants[:, None], saved.errors
        parts |= {f"{name}-{k}": MemoryRows(array) for name, array in zip(layout.FOLD_ARRAYS, arrays, strict=True)}


def _restore_posteriors(model: KernelRidge, description: dict[str, Any], stored: dict[str, StoredCopy]) -> None:
    """Give a loaded regression what its uncertainties are computed from."""
    function, found = model._model, description["uncertainty"]
    targets, rows = whole(stored[layout.TARGETS]), function.rows
    if rows is None:
        rows = _held(stored[layout.ROWS], column_major=description["column_major"])
    names, n = (layout.WEIGHTS, layout.FOLDS), rows.shape[0]
    weights, fold_of = (whole(stored[name])[:, 0] if name in stored else None for name in names)
    lengths = {n} | {len(array) for array in (targets, weights, fold_of) if array is not None}
    is_right = len(lengths) == 1 and targets.shape[1] == function.n_targets and np.isfinite(targets).all()
    if not is_right or rows.shape[1] != function.n_features:
        raise ValueError(f"targets of shape {targets.shape} for training rows of shape {rows.shape}")
    alphas, saved = checked_alphas(model.alpha, targets.shape[1]), dict[float, SavedPosterior]()
    for k, numbers in enumerate(found["factors"]):
        alpha = numbers["alpha"]
        more = [name for name in layout.MORE_KEPT_ARRAYS if f"{name}-{k}" in stored]
        arrays = {name: stored[f"{name}-{k}"] for name in (*layout.KEPT_ARRAYS[numbers["form"]], *more)}
        arrays["factor"].check_complete()
        if numbers["form"] == "dual":
            TileGrid(n, numbers["tile"], numbers["panel"])
        if len(numbers["quadratic"]) != np.count_nonzero(alphas == alpha):
            raise ValueError(f"a factor for λ = {alpha} of other targets")
        saved[alpha] = SavedPosterior(numbers, dict(arrays))
    model.solver = solver_of(found["solver"])
    weights = None if weights is None else checked_weights(weights, n)
    asked = model._kernel()
    given = asked if is_drawn(asked) else function.kernel  # models without a fold draw again
    learned = Learned(asked, None) if asked.learns_values else None
    request = FitRequest(model._settings(given), rows, Targets(targets, alphas), weights, learned=learned)
    features = map_of_fit(function.feature_map)
    if features is not function.feature_map:
        request = replace(request, features=features)
    model._known_posteriors = posteriors = Posteriors(request, function.kernel, saved)
    if fold_of is not None:
        if not np.array_equal(np.unique(fold_of), np.arange(fold_of.max() + 1)):
            raise ValueError("folds that are not numbered from 0")
        members = np.split(np.argsort(fold_of, kind="stable"), np.cumsum(np.bincount(fold_of))[:-1])
        model._folds = Folds(n, tuple(members))
    if "folds" in found:
        saved_folds = list[SavedFolds]()
        for k, described in enumerate(found["folds"]):
            coef, constants, errors = (whole(stored[f"{name}-{k}"]) for name in layout.FOLD_ARRAYS)
            saved_folds.append(SavedFolds(described["form"], described["doubt"], coef, constants[:, 0], errors))
        if [described["alpha"] for described in found["folds"]] != sorted(set(alphas.tolist())):
            raise ValueError("models without a fold for other λ")
        posteriors.keep_folds(model._default_folds(), saved_folds)


def check_model_path(path: str | Path, *, overwrite: bool, name: str = "path") -> None:
    """Refuse a path that `save` could not write to, before a model is fitted.

    Raises
    ------
    InputError
        If the path exists, unless it is a model that may be overwritten, or if the current folder lies in it.
    """
    path = location(path, name, "the path or URL of a model", is_kept=True)
    refuse_enclosing({name: path}, {})
    check_free(
        path, overwrite=overwrite, what="a saved model of dkrr", is_one=layout.is_model, listed=layout.FILES, name=name
    )


def load(
    path: str | Path,
    *,
    kernel: Kernel | FeatureMap | Callable[..., Any] | None = None,
    transformer: SupportsTransform | Callable[..., Any] | Sequence[Callable[..., Any]] | None = None,
) -> Estimator:
    """Load a model that `save` wrote.

    Parameters
    ----------
    path : str or Path
        Path or URL of the model's Zarr store.
    kernel : callable, Kernel, FeatureMap or class, optional
        What `fit` was given as kernel, for a model with the user's own function or feature map,
        which a file cannot hold (for a function with `kernel_params`:
        ``functools.partial(function, **kernel_params)``). Values of settings are read from the
        file. None: the model has kernels and feature maps of dkrr only.
    transformer : transformer, class or function, optional
        What `fit` was given as transformer, or a list of its classes and functions, for a model
        whose transformer has some that a file cannot hold: your own, and those of scikit-learn
        whose work is not bounded by what the file holds (`dkrr.data.transformers_saved.SAFE_CLASSES` has
        the others). What they have learned is read from the file.

    Returns
    -------
    KernelRidge or KernelLogisticRegression
        Ready to predict; also of a search, whose results are its attributes.

    Raises
    ------
    StoreError
        If the path does not hold a model, or the model is damaged or of another format.
    InputError
        If `kernel` or `transformer` is needed and not given, or does not make what was saved.

    Warns
    -----
    UserWarning
        If the model has a transformer of another version of scikit-learn.

    See Also
    --------
    dkrr.save : Save a fitted model.
    dkrr.verify : Whether a store or a saved model is whole.
    dkrr.predict_to : Write predictions to a file or a store.

    Examples
    --------
    >>> import numpy as np, dkrr, tempfile
    >>> model = dkrr.KernelRidge(kernel="rbf").fit(np.eye(3), [1.0, 2.0, 3.0])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     dkrr.save(model, f"{folder}/model.zarr")
    ...     again = dkrr.load(f"{folder}/model.zarr")
    >>> again.n_features_in_, again.dual_coef_.tolist() == model.dual_coef_.tolist()
    (3, True)
    """
    url = location(path, "path", "the path or URL of a saved model", is_kept=True)
    if not (
        transformer is None
        or callable(transformer)
        or isinstance(transformer, list)
        or hasattr(transformer, "get_params")
    ):
        raise InputTypeError(
            f"transformer is {shown(transformer)}; expected the transformer, class or function that fit was given, a "
            f"list of such, or None for a model of scikit-learn's own"
        )
    if not (kernel is None or callable(kernel) or isinstance(kernel, FeatureMap)):
        raise InputTypeError(
            f"kernel is {shown(kernel)}; expected the function, Kernel, FeatureMap or class that fit was given as "
            f"kernel, or None for a model of dkrr's own kernels"
        )
    found = layout.describe_model(url)
    custom = named_objects(found["kernel"], kernel)
    with _damage_reported(url):
        stored = _stored_rows(url, found)
        of_maps = [name for name in stored if name.startswith(layout.FEATURES)]
        arrays = {name.removeprefix(layout.FEATURES): whole(stored[name]) for name in of_maps}
    _check_given(found["kernel"], kernel, custom, arrays)
    fitted_transformer = _transformer_of(url, found, stored, transformer)
    with _damage_reported(url):
        model = _loaded(found, stored, custom, arrays)
    model._target_names = found["target_names"]
    if fitted_transformer is not None:
        described = found["transformer"]
        as_given = {None: clone(fitted_transformer), "fitted": fitted_transformer}
        model.transformer = as_given.get(described["asked"], described["asked"])
        model.transformer_ = fitted_transformer
        if hasattr(model, "best_params_"):
            model.best_params_["transformer"] = model.transformer
        model.n_features_in_ = model._n_inputs = described["n_features_in"]
    return model


def _stored_rows(url: str, found: dict[str, Any]) -> dict[str, StoredCopy]:
    """Rows of the arrays of a model by name, of which only metadata are read."""
    stored = dict[str, StoredCopy]()
    for name, arrays in layout.model_arrays(url, found):
        for array in arrays:
            array.check_metadata()
        stored[name] = described_rows(place_at(url, found["id"]).at(name), found["stored"][name])
    return stored


def _transformer_of(url: str, found: dict[str, Any], stored: dict[str, StoredCopy], given: Any) -> Any:
    """Fitted transformer of a model; None without one."""
    if found["transformer"] is None:
        if given is not None:
            raise InputError(f"transformer is {shown(given)}, and the model {url} has none; expected None")
        return None
    from dkrr.data.transformers_saved import loaded_transformer

    if layout.TRANSFORMER not in stored:
        raise StoreError(f"the model {url} is damaged: its transformer is missing")
    data = whole(stored[layout.TRANSFORMER]).tobytes()
    try:
        fitted = loaded_transformer(data, given)
    except StoreError as error:
        raise StoreError(f"the model {url} is damaged: {error}") from error
    written, here = found["versions"].get("scikit-learn"), LIBRARY_VERSIONS["scikit-learn"]
    if written != here:  # attributes of the transformer may be others
        warnings.warn(
            f"the transformer of {url} was fitted with scikit-learn {shown(written)}, and this is {here}, which may "
            f"compute something else from it; install that version, or fit the model again",
            stacklevel=3,
        )
    return fitted


def _loaded(
    found: dict[str, Any], stored: dict[str, StoredCopy], custom: dict[str, Any], feature_arrays: dict[str, Any]
) -> Estimator:
    """Estimator that a checked description and its store make."""
    value = kernel_from_dict(found["kernel"], custom, feature_arrays)
    arrays = {name: whole(stored[name]) for name in layout.COEFFICIENTS if name in stored}
    coef, dual_coef = arrays.get("coef"), arrays.get("dual_coef")
    rows = stored.get(layout.ROWS) if coef is None and not value.is_precomputed else None
    fitted = FittedFunction(
        kernel=value,
        n_features=found["n_features"],
        coef=coef,
        feature_map=_feature_map(found["feature_map"], value, found["n_features"]),
        dual_coef=None if coef is not None else dual_coef,
        rows=None if rows is None else _held(rows, column_major=found["column_major"]),
        intercept=arrays["intercept"][:, 0],
        intercept_shift=arrays["intercept_shift"][:, 0] if "intercept_shift" in arrays else None,
    )
    _check_shapes(fitted)
    kind = _ESTIMATORS[found["estimator"]]
    # The kernel value holds what gamma, degree and coef0 specified.
    names = set(kind._saved_parameters) - {"gamma", "degree", "coef0"}
    settings = {name: value for name, value in found["parameters"].items() if name in names}
    asked = value if found["request"] is None else kernel_from_dict(found["request"], custom)
    model = kind(kernel=asked, **settings)
    model._restore(fitted, dual_coef, found)
    model.n_features_in_ = fitted.n_features
    if found["search"] is not None:
        model.__dict__.update(found_in_search(found["search"], model))
    if found["uncertainty"] is not None:
        if not isinstance(model, KernelRidge):
            raise ValueError(f"a {kind.__name__} with targets")
        _restore_posteriors(model, found, stored)
    if found["feature_names"] is not None:
        model.feature_names_in_ = np.array(found["feature_names"], object)
    return model


def _feature_map(described: Any, kernel: Kernel, n_features: int) -> FeatureMap | None:
    """Features of the fitted function: those of the kernel, or of its grid, which only the description has."""
    if described is None or described.get("feature_map") != FourierZones.tag:
        return None if described is None else required_feature_map(kernel, n_features)
    found: FeatureMap = feature_map_from_dict(described)
    return found


def _held(rows: StoredCopy, *, column_major: bool) -> Rows:
    """Training rows in memory, or in the store if they are large."""
    rows.check_complete()
    if rows.n_bytes > IN_MEMORY_BYTES:
        return rows
    return MemoryRows(np.asfortranarray(whole(rows)) if column_major else whole(rows))


@contextmanager
def _damage_reported(url: str) -> Iterator[None]:
    try:
        yield
    except DamagedChunkError as error:
        what = str(error).removesuffix(f". {REMEDY}")
        raise StoreError(f"the model {url} is damaged: {what}. {layout.SAVE_AGAIN}") from error
    except StoreError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, MemoryError, RecursionError) as error:
        raise StoreError(
            f"the model {url} is damaged: its description does not fit its content ({error!r}). {layout.SAVE_AGAIN}"
        ) from error


def _check_given(description: Any, kernel: Any, custom: dict[str, Any], arrays: dict[str, Any]) -> None:
    """Refuse an argument that does not make the parts which only the user can give: the store is not at fault."""
    given = parts_of(kernel) if isinstance(kernel, Kernel | FeatureMap) else ()
    known = {TOKEN_PATTERN, *(part.token_pattern for part in given if isinstance(part, BagOfWords))}
    for pattern in layout.patterns_of(description):  # one from elsewhere may never come to an end
        if pattern not in known:
            raise InputError(
                f"the model has token_pattern={pattern!r}, a regular expression that may take forever on some texts; "
                f"expected kernel=BagOfWords(token_pattern=...) with it, as fit was given, where you trust it"
            )
    for part in custom_parts(description):
        if kernel is not None and part["name"] not in custom:
            raise InputError(
                f"kernel is {kernel!r}; expected {part['name']!r}, which fit was given, or a kernel with it"
            )
        try:
            try_given(part, custom, arrays)  # the model's own making warns
        except InputError:
            raise
        except (TypeError, ValueError, AttributeError) as error:
            raise InputError(f"kernel is {kernel!r}; expected what makes {part['name']!r}: {error!r}") from error


def _check_shapes(fitted: FittedFunction) -> None:
    t = fitted.n_targets
    if fitted.coef is not None:
        found = fitted.coef.shape
        expected = (0 if fitted.feature_map is None else fitted.feature_map.dimension(fitted.n_features), t)
    else:
        found = () if fitted.dual_coef is None else fitted.dual_coef.shape
        n = fitted.n_features if fitted.kernel.is_precomputed else fitted.rows.shape[0] if fitted.rows else -1
        expected = (n, t)
    if found != expected:
        raise ValueError(f"coefficients of shape {found}, expected {expected}")
    if fitted.rows is not None and fitted.rows.shape[1] != fitted.n_features:
        raise ValueError(f"training rows of shape {fitted.rows.shape} for {plural(fitted.n_features, 'feature')}")
