"""Plans of predictions by a fitted function: its sizes and those of new rows, for `fitting.prediction_costs`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from dkrr.cluster import Progress, make_progress
from dkrr.cluster.process import ambient_client
from dkrr.data import MemoryRows, Rows
from dkrr.data.transformers import InMemoryRows, TransformedRows
from dkrr.errors import DkrrError
from dkrr.fitting.context import QUIET_SECONDS
from dkrr.fitting.fitted_function import FittedFunction
from dkrr.fitting.posteriors import Posteriors
from dkrr.fitting.prediction import Advance, gpu_for, is_in_blocks
from dkrr.fitting.prediction_costs import is_read_by_workers, plan_prediction
from dkrr.fitting.requests import problem_of_rows
from dkrr.kernels.device import n_leaves
from dkrr.machine.detection import detect
from dkrr.machine.measures import with_measured_kernel
from dkrr.planning.predictions import Deviations, Prediction, PredictionPlan, power_of_two
from dkrr.planning.problem import Problem
from dkrr.text import Reason, format_bytes, plural

MIN_PLANNED, FLOPS_PER_ENTRY = 1e8, 100.0
"""Entries of k from which predictions are planned, to show progress; operations of a substitution that take as long as
one of them."""
SHOWN = 1e9
"""Units of a display in a second: it counts in whole operations."""
WRITTEN_BYTES = 16 * 2**20
"""Rows, and predictions, of a block that is read and written."""
MAX_WRITTEN_ROWS = 65536
HERE = Reason("no-client", "in this process, since there is no Dask client")
NOT_LAZY = Reason("rows-in-memory", "in this process, where the rows are: those in files and Dask arrays go to workers")
ON_GPU = Reason("gpu", "products with K on the GPU")
ON_WORKERS = Reason("client", "on the workers of the Dask client, which read the rows where they are")


@dataclass(frozen=True)
class Asked:
    """Requested outputs for new rows: predictions, standard deviations, intervals."""

    n_columns: int
    """Columns of predictions, standard deviations and ends of intervals together."""
    posteriors: Posteriors | None = None
    """Posteriors of a regression, for standard deviations or intervals."""
    return_std: bool = False
    folds: Any = ()
    """Rows of each fold of the intervals; none without them."""


def _rows_per_block(n_targets: int, rows: Rows) -> int:
    """Rows that are read, predicted and written together where memory allows."""
    height = min(MAX_WRITTEN_ROWS, WRITTEN_BYTES // (8 * n_targets))
    # Those after a transformer have their own blocks, and their entries are not counted for this.
    of_rows = rows.block_rows if isinstance(rows, TransformedRows) else WRITTEN_BYTES // rows.dense_window_row_bytes
    return max(1, min(height, of_rows))


def plan_of_rows(model: FittedFunction, rows: Rows, asked: Asked, memory_limit: int | str | None) -> PredictionPlan:
    """Plan of the predictions of new rows.

    Raises
    ------
    MemoryLimitError
        If there is not enough memory for one row.
    """
    resources = detect(memory_limit, None, rows=rows.url)
    posteriors, n_rows, t = asked.posteriors, rows.shape[0], model.n_targets
    training = model.rows if posteriors is None else posteriors.request.rows
    if training is None:
        map_ = model.feature_map
        problem = Problem(n=1, d=model.n_features, n_targets=t, kernel=model.kernel, feature_map=map_)
    else:
        problem = with_measured_kernel(problem_of_rows(training, model.kernel, n_targets=t), training)
        problem = replace(problem, feature_map=model.feature_map)
    is_transformed = isinstance(rows, TransformedRows)
    height, inputs = _rows_per_block(t, rows), rows.inputs if isinstance(rows, TransformedRows) else rows
    if posteriors is not None and not is_transformed:
        height = power_of_two(height)  # a whole number of the blocks in which standard deviations are computed
    on_workers, reason = _place(rows, posteriors)
    opened = None if on_workers else gpu_for(model, n_rows)
    deviations: tuple[Deviations, ...] = ()
    if asked.return_std and posteriors is not None:
        deviations = posteriors.planned_deviations(n_rows, resources, in_stores=on_workers)
        sent = sum(one.size.loaded_bytes for one in deviations if one.size)
        if on_workers and is_read_by_workers(sent):
            text = (
                f"in this process, since factors of {format_bytes(sent)} are in its memory only: workers read those of "
                f"a model that was saved with its uncertainty and loaded"
            )
            on_workers, reason = False, Reason("factor-here", text)
            deviations = posteriors.planned_deviations(n_rows, resources, in_stores=False)
    is_stored = model.rows is not None and not isinstance(model.rows, MemoryRows)
    n_folds, factors = len(asked.folds), list[Deviations]()
    has_folds = posteriors is not None and posteriors.knows_models_of(asked.folds)
    if posteriors is not None and n_folds and not has_folds and not posteriors.request.learns:
        planned = deviations or posteriors.planned_deviations(0, resources, in_stores=False)
        factors = [one for one in planned if one.size is None or not deviations]
    job = Prediction(
        problem=problem,
        form="primal" if model.coef is not None else "dual",
        n_rows=n_rows,
        block_rows=height,
        row_bytes=8 * max(rows.shape[1], inputs.shape[1]) if is_transformed else rows.dense_window_row_bytes,
        x_bytes=0 if isinstance(inputs, MemoryRows | InMemoryRows) else inputs.n_bytes,
        read_overhead_bytes=rows.read_overhead_bytes,
        n_columns=asked.n_columns,
        training_bytes=model.rows.n_bytes if is_stored and model.rows is not None else 0,
        deviations=deviations,
        n_folds=n_folds,
        has_folds=bool(n_folds) and has_folds,
        folds_flops=posteriors.flops_of_folds(n_folds) if posteriors is not None and n_folds else 0.0,
        factors=tuple(factors),
        n_workers=resources.n_workers if on_workers else 0,
        is_transformed=is_transformed,
        reasons=(reason,) if opened is None else (reason, ON_GPU),
        gpu=None if opened is None else opened.now,
        n_leaves=n_leaves(model.kernel),
    )
    plan = plan_prediction(job, resources)
    return replace(plan, reasons=(*plan.reasons, *_why_block(plan)))


def _place(rows: Rows, posteriors: Posteriors | None) -> tuple[bool, Reason]:
    """Whether workers of a client predict, and why."""
    client = ambient_client()
    if client is None:
        return False, HERE
    if not is_in_blocks(rows):
        return False, NOT_LAZY
    path = None if posteriors is None else posteriors.store_path()
    if path is not None:
        from dkrr.cluster.dask_client import workers_without

        if workers_without(client, path):
            text = f"in this process, since some workers cannot reach the model at {path}"
            return False, Reason("model-not-shared", text)
    return True, ON_WORKERS


def _why_block(plan: PredictionPlan) -> list[Reason]:
    """Why blocks have this number of rows."""
    if plan.method != "factor":
        return []
    read = sum(one.size.read_bytes for one in plan.prediction.deviations if one.size)
    if not read:
        return []
    text = f"a factor of {format_bytes(read)} is read for each block: more memory allows higher blocks, and fewer"
    return [Reason("factor-read", text)]


@contextmanager
def displayed(
    rows: Rows, n_training: int, show: bool | None, plan: Callable[[], PredictionPlan], *, return_std: bool = False
) -> Iterator[tuple[Advance | None, Advance | None]]:
    """Show the progress of predictions that are not lazy, if they take long.

    Yields
    ------
    tuple of callables or None
        Functions to which predictions and standard deviations report their progress.
    """
    size = float(rows.shape[0]) * n_training * (n_training / FLOPS_PER_ENTRY if return_std else 1.0)
    found = None
    if show is not False and size >= MIN_PLANNED and not is_in_blocks(rows):
        with suppress(DkrrError):  # what cannot be computed says so itself, and predictions alone need little memory
            found = plan().parts
    if found is None or found.seconds < QUIET_SECONDS:
        yield None, None
        return
    deviations = found.deviations + found.iterations
    with make_progress(show).stage("predictions", found.after * SHOWN, detail=plural(rows.shape[0], "row")) as stage:
        yield telling(stage, found.rows), telling(stage, deviations)


def telling(progress: Progress, seconds: float) -> Advance:
    """Function that adds a fraction of work of about `seconds` to an open stage of the display."""
    return lambda fraction: progress.advance(seconds * SHOWN * fraction)
