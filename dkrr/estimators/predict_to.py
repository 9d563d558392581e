"""Predictions written to a file or a store, a block of rows at a time, beside key columns of the rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkrr.checks import checked_progress, flag, location, shown
from dkrr.cluster import Progress
from dkrr.cluster.process import graceful_termination
from dkrr.data import MemoryRows, Rows, Table, as_table, is_dask_frame, is_pandas_like, table_or_value
from dkrr.data.table import beside, regrouped
from dkrr.data.table_opening import arrow_tables
from dkrr.errors import InputError, InputTypeError
from dkrr.estimators.kernel_estimator import KernelEstimator
from dkrr.estimators.kernel_logistic import KernelClassifier
from dkrr.fitting.context import progress_of
from dkrr.fitting.fitted_function import FittedFunction
from dkrr.fitting.intervals import CrossValidationIntervals
from dkrr.fitting.prediction import by_blocks, check_rows, predict, predict_in_memory
from dkrr.fitting.prediction_plans import SHOWN, WRITTEN_BYTES, telling
from dkrr.planning.predictions import PredictionPlan
from dkrr.store.description import COMMAND
from dkrr.store.paths import local_path, refuse_enclosing
from dkrr.store.places import check_free, place_at, written_aside
from dkrr.store.replacing import files_of_arrays
from dkrr.store.zarr_arrays import (
    create_array,
    create_predictions,
    described_predictions,
    files_of_predictions,
    predictions_note,
)
from dkrr.text import plural
from dkrr.typing import RowsLike

TABLES = (".parquet", ".csv", ".arrow", ".feather")
ARRAYS = (".zarr", ".npy")
OUTPUT_SUFFIXES = TABLES + ARRAYS
"""Ends of the names of what predictions are written to."""
PREDICTION = "prediction"


def predict_to(
    model: KernelEstimator,
    X: RowsLike,
    path: str | Path,
    *,
    keep: str | Sequence[str] | None = None,
    probabilities: bool = False,
    return_std: bool = False,
    interval: float | None = None,
    overwrite: bool = False,
    memory_limit: int | str | None = None,
    progress: bool | None = None,
) -> tuple[int, ...]:
    """Predict rows, and write the predictions to a file or a store.

    Rows are read, predicted and written a block at a time, so that memory depends neither on their
    number nor on the number of predictions: in this process, or by the workers of the ambient Dask
    client if the rows are in a file or a Dask array. ``dkrr.plan(model=model, X=X, ...)`` says
    where, how many rows at a time, for how long and in how much memory. What is at `path` is
    complete, or as it was before.

    Parameters
    ----------
    model : KernelRidge, KernelLogisticRegression, KernelRidgeCV or KernelLogisticRegressionCV
        Fitted estimator.
    X : table, DataFrame, ndarray, scipy.sparse matrix, Dask array, Zarr array, or path
        New rows, as for `predict`. Of a table or a DataFrame, which may have more columns, the
        model takes those that it was fitted with.
    path : str or Path
        What is written, by the end of its name: ``.parquet``, ``.csv``, ``.arrow`` or ``.feather``
        with a column for each target or class; ``.zarr`` (an array, or with `keep` a group with an
        array for each column) or ``.npy``. All but ``.npy`` may be URLs. Neither X nor the current
        folder may lie in it.
    keep : str or sequence of str, optional
        Names or patterns of columns of X, a table or DataFrame, that are copied beside the
        predictions. None: the index of a DataFrame, if it has one that is not the default.
    probabilities : bool, default=False
        Write the probabilities of all classes instead of labels.
    return_std : bool, default=False
        Write the standard deviation of every prediction, as `predict` returns it, too; of a
        regression.
    interval : float, optional
        Probability between 0 and 1: write the intervals of this coverage that `predict_interval`
        returns, too.
    overwrite : bool, default=False
        Replace an existing file when the predictions are complete; of ``.zarr`` only predictions
        that dkrr wrote, with no other files in their folder.
    memory_limit : int or str, optional
        Bytes, or text such as "4GiB", that the process which predicts may hold; None: the model's
        own `memory_limit`.
    progress : bool, optional
        None shows progress on a terminal or in a notebook if it takes more than about two seconds;
        True always shows it, also in a log file; False never.

    Returns
    -------
    tuple of int
        Shape of what was written, (n,) or (n, number of columns).

    Raises
    ------
    InputError
        If an argument cannot be used, or something exists at `path`; before work starts.
    MemoryLimitError
        If the memory limit is too small for one row; before work starts.
    DiskSpaceError, StoreError
        If it cannot be written.

    See Also
    --------
    dkrr.plan : Make a plan without carrying it out.
    dkrr.load : Load a saved model.
    dkrr.open_table : Open a table with named columns.

    Notes
    -----
    The column of predictions has the name of the target, where the model was fitted with one (a
    column of a table, a Series), else ``prediction``; several are ``prediction_0``,
    ``prediction_1`` ... If a kept column has that name, ``prediction_`` is put before it. Behind
    the predictions of all targets are their standard deviations, the lower and the upper ends of
    their intervals, in columns with ``_std``, ``_lower`` and ``_upper`` after the name, in arrays
    in as many columns each. Probabilities are ``probability_`` and the class. Labels are text in
    Zarr's type for text of any length. In a group of Zarr, arrays have the names of the columns as
    far as these are file names: other characters are percent-encoded (``km/h``: ``km%2Fh``), and
    the attributes of the group have all names.

    Examples
    --------
    >>> import dkrr, pandas, tempfile
    >>> table = pandas.DataFrame({"flight": ["A1", "B2", "C3"], "distance": [1.0, 2.0, 3.0], "delay": [2.0, 4.0, 6.0]})
    >>> model = dkrr.KernelRidge(alpha=1e-9).fit(table[["distance"]], table["delay"])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     shape = dkrr.predict_to(model, table, f"{folder}/delays.csv", keep="flight")
    ...     pandas.read_csv(f"{folder}/delays.csv").round(6)
      flight  delay
    0     A1    2.0
    1     B2    4.0
    2     C3    6.0
    """
    return write_predictions(
        model,
        X,
        path,
        keep=keep,
        probabilities=probabilities,
        return_std=return_std,
        interval=interval,
        overwrite=overwrite,
        memory_limit=memory_limit,
        progress=progress,
    )


def write_predictions(
    model: Any,
    X: Any,
    path: str | Path,
    *,
    keep: Any = None,
    probabilities: bool = False,
    return_std: bool = False,
    interval: float | None = None,
    overwrite: bool = False,
    memory_limit: int | str | None = None,
    progress: bool | None = None,
    command: str | None = None,
) -> tuple[int, ...]:
    """Predict rows and write the predictions as `predict_to` does, with the digest of the command that asks for them.

    The digest is inside of the file, by which `command_of_predictions` knows it; CSV and ``.npy`` have no room for it.
    """
    path = location(path, "path", "the path or URL of the predictions", is_kept=True)
    probabilities, overwrite = flag(probabilities, "probabilities"), flag(overwrite, "overwrite")
    if not isinstance(model, KernelEstimator):
        raise InputTypeError(f"model is {shown(model)}; expected a fitted estimator of dkrr")
    model._check_fitted()
    check_predictions_path(path, overwrite=overwrite)
    refuse_enclosing({"path": path}, {"X": X})
    return_std, progress = flag(return_std, "return_std"), checked_progress(progress)
    model = model._limited(memory_limit)
    kept, X = _kept(X, keep, model)
    rows = model._new_rows(X)
    check_rows(model._model, rows)
    if kept is not None and kept.n_rows != rows.shape[0]:
        raise InputError(f"keep has {plural(kept.n_rows, 'row')}, and X has {rows.shape[0]}; expected as many")
    ends = ("_std",) * return_std + ("_lower", "_upper") * (interval is not None)
    columns = _Columns.of(model, () if kept is None else kept.names, ends, probabilities=probabilities)
    if kept is not None and path.endswith(".npy"):
        raise InputError(
            f"path is {shown(path)} with keep={shown(keep)}, and .npy holds one array; expected one that ends in "
            f"{', '.join((*TABLES, '.zarr'))}: or give keep=()"
        )
    plan = model._prediction_plan(rows, probabilities=probabilities, return_std=return_std, interval=interval)
    show = progress_of(model.progress if progress is None else progress, plan.seconds)
    deviations = model._variances(rows.shape[0], None, plan.block_rows).deviations if return_std else None
    intervals = None if interval is None else _intervals(model, interval)
    blocks = _predicted(model, rows, deviations, intervals, plan, show, probabilities=probabilities)
    shape = (rows.shape[0],) if columns.is_vector else (rows.shape[0], len(columns.names))
    listed = _listed(path)
    try:
        if path.endswith(".zarr") and columns.dtype.kind == "O" and isinstance(model, KernelClassifier):
            "".join(model.classes_).encode()  # NumPy raises another error for such text
        with graceful_termination(), written_aside(path, overwrite=overwrite, listed=listed) as place:
            if path.endswith(TABLES):
                from dkrr.data.arrow import write_table

                write_table(place, columns.names, columns.dtype, kept, map(_as_columns, blocks), command)
            elif path.endswith(".npy"):
                _write_npy(place, columns, shape, blocks)
            else:
                _write_zarr(place, columns, kept, shape, blocks, command)
    except UnicodeError as error:
        raise InputError(
            f"a name or a label of the predictions is not text in Unicode ({error}); expected names and labels that "
            f"{Path(path).suffix} can hold: write the predictions as .npy, or give probabilities=True (--proba)"
        ) from error
    return shape


def _intervals(model: Any, coverage: float) -> CrossValidationIntervals:
    """Intervals of new rows that are encoded once, as the model encodes them."""
    intervals: CrossValidationIntervals = model._intervals(coverage, name="interval")
    if intervals.encode is not None:
        raise InputError(
            f"interval is {coverage!r}, and the kernel of model learns from its training rows, so that every fold "
            f"has another; expected model.predict_interval, or a kernel with a vocabulary"
        )
    return intervals


def check_predictions_path(path: str, *, overwrite: bool, name: str = "path") -> None:
    """Refuse a path that predictions could not be written to, before they are computed.

    Raises
    ------
    InputError
        If it has another end, or something exists there that may not be replaced.
    """
    path = location(path, name, "the path of the predictions", is_kept=True)
    if not path.endswith(OUTPUT_SUFFIXES):
        raise InputError(f"{name} is {shown(path)}; expected a path that ends in one of {', '.join(OUTPUT_SUFFIXES)}")
    if path.endswith(".npy") and place_at(path).is_remote:
        raise InputError(f"{name} is {shown(path)}, a URL; expected a path of this machine for .npy, or .zarr")
    if path.endswith(TABLES):
        arrow_tables(f"{name}: {path}", f", or a path that ends in {' or '.join(ARRAYS)}")
    what = "an array or a group of predictions that dkrr wrote" if path.endswith(".zarr") else "a file"
    check_free(path, overwrite=overwrite, what=what, is_one=_is_one, listed=_listed(path), name=name)


def command_of_predictions(path: str) -> str | None:
    """Digest of the command that wrote the predictions at a path; None if nothing is there, or has none."""
    if path.endswith(".zarr"):
        return (described_predictions(path) or {}).get(COMMAND)
    if not path.endswith(TABLES) or not place_at(path).exists() or not _is_one(path):
        return None
    return arrow_tables(path).noted_command(path)  # type: ignore[no-any-return]


def _is_one(path: str) -> bool:
    """Whether predictions of the same format may be at a path: any file, or what dkrr wrote in Zarr's format."""
    if path.endswith(".zarr"):
        return files_of_predictions(path) is not None
    local = local_path(path)
    return local is None or local.is_file()


def _listed(path: str) -> re.Pattern[str] | None:
    """Paths of the files of what is, or will be, at a path in Zarr's format; None of a single file."""
    return (files_of_predictions(path) or files_of_arrays(())) if path.endswith(".zarr") else None


@dataclass(frozen=True)
class _Columns:
    """Columns of predictions."""

    names: tuple[str, ...]
    dtype: Any
    """Type of NumPy; object for labels of text."""
    fixed_type: Any
    """Type of NumPy, with text of a fixed length."""
    is_vector: bool

    @classmethod
    def of(cls, model: Any, kept: tuple[str, ...], ends: tuple[str, ...], *, probabilities: bool) -> _Columns:
        """Columns that a model predicts, beside those that are kept; `ends` are those of the names of further ones."""
        classes, known = getattr(model, "classes_", None), getattr(model, "_target_names", None)
        dtype = fixed_type = np.dtype(np.float64)
        if classes is None:
            t, is_vector = model._model.n_targets, model._is_vector and not ends
            names = known or ([PREDICTION] if t == 1 else [f"{PREDICTION}_{k}" for k in range(t)])
            names = [f"{name}{end}" for end in ("", *ends) for name in names]
        elif probabilities:
            names, is_vector = [f"probability_{label}" for label in classes.tolist()], False
        else:
            names, is_vector = known or [PREDICTION], True
            dtype, fixed_type = _label_type(classes), np.array(classes.tolist()).dtype
        return cls(_free_names(names, kept), dtype, fixed_type, is_vector)


def _label_type(classes: NDArray[Any]) -> Any:
    if classes.dtype.kind in "biuf":
        return classes.dtype
    if all(isinstance(label, str) for label in classes.tolist()):
        return np.dtype(object)
    raise InputError(
        f"the labels are of type {type(classes.tolist()[0]).__name__}; expected numbers or text: give "
        f"probabilities=True (--proba)"
    )


def _free_names(names: Sequence[str], kept: tuple[str, ...]) -> tuple[str, ...]:
    """Names of columns of predictions, each once and none of them kept."""
    found = dict.fromkeys(kept)
    for name in names:
        while name in found:
            name = f"{PREDICTION}_{name}"
        found[name] = None
    return tuple(found)[len(kept) :]


def _kept(X: Any, keep: Any, model: Any) -> tuple[Table | None, Any]:
    """Columns of X that are copied, if any, and X as the model takes it."""
    X = table_or_value(X)
    is_frame, is_table = is_pandas_like(X) and not is_dask_frame(X), isinstance(X, Table)
    keeps_none = isinstance(keep, list | tuple) and not keep
    if not (is_frame or is_table or keep is None or keeps_none):
        raise InputTypeError(
            f"keep is {shown(keep)}, and X is a {type(X).__qualname__}; expected a table or a DataFrame of pandas with "
            f"these columns, or keep=None"
        )
    if keep is None:
        kept = _index_of(X) if is_frame else None
    else:
        table = None if keeps_none else as_table(X)
        kept = None if table is None else Table.of(table.source).select(keep, "keep")
    return kept, model._known_columns(X)


def _index_of(frame: Any) -> Table | None:
    """Index of a DataFrame as a table; None if its rows are only counted."""
    index = frame.index
    if type(index).__name__ == "RangeIndex" and index.name is None:
        return None
    found = index.to_frame(index=False)
    found.columns = [str(name) if name is not None else "index" for name in index.names]
    return as_table(found)


def _predicted(
    model: Any,
    rows: Rows,
    deviations: Any,
    intervals: CrossValidationIntervals | None,
    plan: PredictionPlan,
    progress: Progress,
    *,
    probabilities: bool,
) -> Iterator[NDArray[Any]]:
    """Predictions of consecutive blocks of rows, with further columns, as one stage of a display."""
    convert, n, parts = model._probabilities_of if probabilities else model._predictions_of, rows.shape[0], plan.parts
    has_further = deviations is not None or intervals is not None
    with progress.stage("predictions", parts.after * SHOWN, detail=plural(n, "row")):
        if plan.execution == "dask":
            for block in _computed(_lazy(model, rows, deviations, intervals, convert)):
                yield block
                progress.advance(parts.after * SHOWN * len(block) / n)
            return
        for where, block in rows.blocks(0, n, plan.read_rows):
            held = MemoryRows(block)
            if intervals is None:
                predictions, ends = predict_in_memory(model._model, held, where.start), []
            else:
                predictions, bounds = intervals.beside(model._model, held, where.start)
                ends = [bounds]
            progress.advance((parts.rows + parts.intervals) * SHOWN * (where.stop - where.start) / n)
            columns = [convert(predictions)]
            if deviations is not None:
                tell = telling(progress, (parts.deviations + parts.iterations) * (where.stop - where.start) / n)
                columns.append(deviations(held, where.start, advance=tell))
            yield np.column_stack([*columns, *ends]) if has_further else columns[0]


def _lazy(
    model: Any,
    rows: Rows,
    deviations: Any,
    intervals: CrossValidationIntervals | None,
    convert: Callable[[Any], Any],
) -> Any:
    """Lazy columns of predictions, and of what is asked besides."""
    t, mean = model._model.n_targets, model._model
    if deviations is None and intervals is None:
        return convert(predict(mean, rows))
    import dask.array as da  # see `by_blocks`

    ends = list[Any]()
    if intervals is None:
        found = predict(mean, rows)
    else:
        both = by_blocks(rows, 3 * t, partial(_beside, intervals, replace(mean, keep_alive=None)))
        found, ends = both[:, :t], [both[:, t:]]
    if deviations is not None:
        ends = [by_blocks(rows, t, deviations), *ends]
    return da.concatenate([found, *ends], axis=1)


def _beside(intervals: CrossValidationIntervals, mean: FittedFunction, rows: Rows, first: int) -> NDArray[np.float64]:
    return np.hstack(intervals.beside(mean, rows, first))


def _computed(lazy: Any) -> Iterator[NDArray[Any]]:
    """Blocks of a lazy array: several at once keep all workers busy, and all at once might exceed the memory."""
    n, tallest = lazy.shape[0], max(lazy.chunks[0])
    fitting = max(1, 8 * WRITTEN_BYTES // max(1, 8 * int(np.prod(lazy.shape[1:]))))
    step = max(tallest, min(fitting, 16 * tallest))
    for start in range(0, n, step):
        yield lazy[start : start + step].compute()


def _as_columns(block: NDArray[Any]) -> NDArray[Any]:
    return block[:, None] if block.ndim == 1 else block


def _write_npy(place: str, columns: _Columns, shape: tuple[int, ...], blocks: Iterator[NDArray[Any]]) -> None:
    # Not mapped: a page of a mapped file that a full disk does not take would end the process.
    with Path(place).open("xb") as file:
        descr = np.lib.format.dtype_to_descr(columns.fixed_type)
        np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})
        for block in blocks:
            file.write(block.astype(columns.fixed_type).tobytes())


def _write_zarr(
    place: str,
    columns: _Columns,
    kept: Table | None,
    shape: tuple[int, ...],
    blocks: Iterator[NDArray[Any]],
    command: str | None,
) -> None:
    if kept is None:
        arrays = [create_array(place, shape, columns.dtype, description=predictions_note(command))]
        left: Iterable[list[Any]] | None = None
    else:
        from dkrr.data.arrow import kept_arrays, kept_types

        kinds = kept_types(kept) | dict.fromkeys(columns.names, columns.dtype)
        arrays = create_predictions(place, kinds, shape[0], command)
        left = kept_arrays(kept, arrays[0].chunks[0])
    start = 0
    for block, keys in beside(regrouped(blocks, arrays[0].chunks[0], np.concatenate), left):
        parts = [block] if kept is None else [*keys, *_as_columns(block).T]
        for array, part in zip(arrays, parts, strict=True):
            array[start : start + len(block)] = part
        start += len(block)
