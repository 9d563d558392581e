"""Plans of predictions: how many rows at a time, where, for how long and in how much memory, and why."""

from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any, Literal

from dkrr.blas import BYTES_PER_THREAD
from dkrr.cost import Work
from dkrr.errors import MemoryLimitError
from dkrr.linalg.cholesky import factor_bytes
from dkrr.linalg.held_out import columns_at_once
from dkrr.linalg.posterior import block_bytes
from dkrr.planning.explain import Reasoned
from dkrr.planning.iterations_first import DOUBT_OF_ESTIMATE
from dkrr.planning.plan import NARROW, RATES
from dkrr.planning.problem import Form, Problem
from dkrr.planning.reasons import Reason
from dkrr.planning.resources import CALLER_MARGIN_BYTES, PROCESS_MARGIN_BYTES, Resources
from dkrr.planning.uncertainty import UncertaintyPlan
from dkrr.store import TileGrid
from dkrr.text import format_bytes, format_seconds, plural

ROWS_TOGETHER = 1024
"""Most rows whose standard deviations are computed together where the factor is in memory: products are then as fast as
those of squares (measured with factors of 4,000 and 8,000 rows: 0.9 of that rate; of 256 rows 0.6)."""
ROWS_PER_READ = 4096
"""Most rows together where the factor is read for each block: with this many the reading hardly counts."""
TRANSFORMED_ROWS_TOGETHER = 2**16
"""Most rows together with features whose products are transforms."""
DOUBT = (0.6, 1.5)
"""Shortest and longest time over the projected one: rates of a machine are seldom known better."""
SECOND_SWEEP = 2.0
"""Most time of standard deviations over that of one substitution: rows near training rows take a second one where λ is
small, for bounds of their rounding."""
SENT_BYTES = 64 * 2**20
"""Most memory of factors that are sent to workers with the tasks; larger ones they read from the saved model."""
THREAD_STRIP_BYTES = 40 * 2**20
"""Memory of each thread that predicts: a strip of the kernel and its temporaries."""
ROW_FEATURE_SECONDS = 5e-9
"""Time of one feature of one row, besides its product."""
FEATURE_COPY_SECONDS = 1.5e-8
"""Time to copy one feature for a substitution, and to sum its square."""
GRID_ROW_SECONDS = 2e-6
"""Time of one row of a Fourier grid on one core."""
INTERVAL_SECONDS = 1e-5
"""Time to find the ends of an interval among the shifted errors of all folds."""
READ_ROW_SECONDS, NUMBER_SECONDS = 1e-7, 2e-8
"""Time to read, check and write one row, and each number of it."""


def power_of_two(number: int) -> int:
    """Largest power of two up to a number: cut so, the same rows are together whatever larger blocks they come in."""
    return 1 << (number.bit_length() - 1)


def is_read_by_workers(n_bytes: float) -> bool:
    """Whether workers read a factor of `n_bytes` from its store, instead of receiving it with their tasks."""
    return n_bytes > SENT_BYTES


def room_for(resources: Resources, held: int) -> int:
    """Memory of the calling process that is left beside what it holds, and what its threads take."""
    return resources.local_limit_bytes - held - CALLER_MARGIN_BYTES - _of_threads(resources.local_threads)


def _of_threads(threads: int) -> int:
    return threads * (BYTES_PER_THREAD + THREAD_STRIP_BYTES)


@dataclass(frozen=True)
class FactorSize:
    """Sizes of a factor that the cost of a block of variances depends on."""

    side: int
    """Rows of the factor."""
    row_bytes: int
    """Memory for each row of a block."""
    fixed_bytes: int = 0
    """Memory for a block of any height."""
    read_bytes: float = 0.0
    """Bytes of the factor that are read for each block; 0: it is in memory."""
    loaded_bytes: int = 0
    """Memory of the factor once it is loaded, or made."""
    most_rows: int = ROWS_TOGETHER
    """Most rows of a block."""
    of_features: bool = False
    """It is a factor of the features' normal matrix, not of all training rows."""

    @classmethod
    def of_tiles(cls, grid: TileGrid, threads: int, *, is_stored: bool) -> "FactorSize":
        """Factor of all training rows."""
        fixed = block_bytes(grid, 0, threads, is_stored=is_stored)
        row = block_bytes(grid, 1, 0, is_stored=False)
        if is_stored:
            return cls(grid.n, row, fixed, factor_bytes(grid), 0, ROWS_PER_READ)
        return cls(grid.n, row, fixed, 0.0, memory_of(grid))

    @classmethod
    def of_normal(cls, side: int, *, is_transform: bool = False) -> "FactorSize":
        """Factor of the features' normal matrix: of every row its features, and three copies of them."""
        most = TRANSFORMED_ROWS_TOGETHER if is_transform else ROWS_TOGETHER
        return cls(side, 256 if is_transform else 32 * side, loaded_bytes=8 * side**2, most_rows=most, of_features=True)

    def rows_within(self, room: float) -> int:
        """Rows of a block that takes no more memory, a power of two; 0 if there is none for one row."""
        rows = min(self.most_rows, int((room - self.fixed_bytes) // self.row_bytes))
        return power_of_two(rows) if rows > 0 else 0

    def bytes_of(self, rows: int) -> int:
        """Memory of a block."""
        return self.fixed_bytes + rows * self.row_bytes


def memory_of(grid: TileGrid) -> int:
    """Memory of a factor in tiles: the triangle, and the other half of the tiles on the diagonal."""
    return 4 * grid.n * (grid.n + min(grid.tile, grid.n))


def is_kept_in_memory(grid: TileGrid, room: float) -> bool:
    """Whether a stored factor is read once: it was in memory when it was made, and takes with a block no more room."""
    return grid.panel >= grid.tile and memory_of(grid) + block_bytes(grid, ROWS_TOGETHER, 0, is_stored=False) <= room


def rows_together(sizes: list[FactorSize], room: float, held: int) -> int:
    """Rows whose variances by some factors are computed together.

    Raises
    ------
    MemoryLimitError
        If there is not enough memory for one row.
    """
    rows = min((size.rows_within(room) for size in sizes), default=ROWS_TOGETHER)
    if rows == 0:
        more = max(size.bytes_of(1) for size in sizes) - room
        _refuse(int(held + max(room, 0) + more), held, "the standard deviations of one row")
    return rows


def _refuse(needed: int, allowed: int, what: str) -> None:
    raise MemoryLimitError(
        f"{what} would take this process to {format_bytes(needed)}, and memory_limit (--memory-limit) allows "
        f"{format_bytes(allowed)}; expected at least {format_bytes(1.01 * needed)}. Nothing was computed"
    )


@dataclass(frozen=True)
class Deviations:
    """Standard deviations by one process of a model: a factor that exists, or a plan of one, or conjugate gradient."""

    size: FactorSize | None
    """None: by conjugate gradient."""
    seconds_before: float = 0.0
    """Time to make or load the factor."""
    plan: UncertaintyPlan | None = None
    """None: the factor is known."""
    sweeps: int = 1
    """Substitutions by the factor."""


@dataclass(frozen=True)
class Prediction:
    """Sizes of predictions that their cost depends on."""

    problem: Problem
    """Problem of the fit: training rows, kernel and targets."""
    form: Form
    n_rows: int
    block_rows: int
    """Rows that are read and written together, if memory allows."""
    row_bytes: int
    """Memory of one new row."""
    x_bytes: int
    """Bytes of all new rows where they are read; 0: they are in memory."""
    read_overhead_bytes: int
    n_columns: int
    """Columns of what is written."""
    training_bytes: int
    """Bytes of the training rows that are read for each block of predictions; 0: they are in memory."""
    deviations: tuple[Deviations, ...] = ()
    """Cost of standard deviations for each λ; empty if they are not requested."""
    n_folds: int = 0
    """Folds of intervals; 0: none are asked for."""
    has_folds: bool = False
    """The models of all folds are known."""
    folds_flops: float = 0.0
    """Operations of these models, where they are not, besides those of factors."""
    factors: tuple[Deviations, ...] = ()
    """Factors that these models take, where they are not known, and no standard deviations do."""
    n_workers: int = 0
    """Workers of the client that predict; 0: this process does."""
    is_transformed: bool = False
    """Rows come from a transformer in its own blocks, which are not put together."""
    reasons: tuple[Reason, ...] = ()


@dataclass(frozen=True)
class Parts:
    """Projected time by what takes it."""

    before: float = 0.0
    """Before the first row: a factor, the models of folds."""
    rows: float = 0.0
    """Reading rows, the predictions themselves, and writing."""
    deviations: float = 0.0
    """Substitutions with a factor."""
    iterations: float = 0.0
    """Standard deviations by conjugate gradient."""
    intervals: float = 0.0

    @property
    def seconds(self) -> float:
        """Time in all."""
        return self.before + self.after

    @property
    def after(self) -> float:
        """Time from the first row on."""
        return self.rows + self.deviations + self.iterations + self.intervals

    @property
    def range(self) -> tuple[float, float]:
        """Shortest and longest time in all."""
        known, (least, most), (fewest, many) = self.seconds - self.iterations, DOUBT, DOUBT_OF_ESTIMATE
        longest = most * known + (SECOND_SWEEP - 1.0) * self.deviations + most * many * self.iterations
        return least * known + fewest * self.iterations, longest


@dataclass(frozen=True, repr=False)
class PredictionPlan(Reasoned):
    """Plan of predictions at new rows: method, projected cost and reasons.

    ``str(plan)`` explains it; ``plan.to_dict()`` is for programs.

    Attributes
    ----------
    prediction : Prediction
        Sizes that the cost depends on: `n_rows`, `form`, `n_columns`, ...
    method : {"predictions", "factor", "iterations"}
        How standard deviations are computed; "predictions": none are.
    execution : {"memory", "dask"}
        Whether this process predicts, or workers of the client do.
    threads : int
        Threads of this process that predict; 1 if workers do.
    block_rows : int
        Rows that are predicted together: those whose standard deviations are, else those that are read together.
    read_rows : int
        Rows that are read and written together.
    parts : Parts
        Projected time by what takes it.
    peak_bytes : int
        Projected highest memory of a process that predicts.
    limit_bytes : int
        Memory that a process may hold.
    read_bytes : float
        Bytes that are read: new rows, and a factor or training rows that are not in memory, for each block.
    written_bytes : int
        Size of the predictions, uncompressed and without columns that are kept.
    rates_from : {"defaults", "quick", "calibration", "configuration"}
        Where the rates come from: dkrr's defaults, a quick measurement, ``dkrr calibrate``, or Dask's configuration.
    reasons : tuple of Reason
        Why so, sentence by sentence.
    rejected : tuple of Reason
        Rejected methods, each with the reason against it.
    plan : UncertaintyPlan or None
        Plan of standard deviations whose factor is not known; None: it is, or none are asked for.

    See Also
    --------
    dkrr.plan : Make a plan without carrying it out.
    dkrr.predict_to : Write predictions to a file or a store.
    dkrr.planning.Plan : The plan of a fit.

    Examples
    --------
    >>> import numpy as np, dkrr
    >>> model = dkrr.KernelRidge(kernel="rbf").fit(np.eye(3), [1.0, 2.0, 3.0])
    >>> plan = dkrr.plan(np.eye(3), model=model)
    >>> plan.n_rows, plan.form, plan.method
    (3, 'dual', 'predictions')
    """

    prediction: Prediction = field(repr=False)
    method: Literal["predictions", "factor", "iterations"]
    execution: Literal["memory", "dask"]
    threads: int
    block_rows: int
    read_rows: int
    parts: Parts
    peak_bytes: int
    limit_bytes: int
    read_bytes: float
    written_bytes: int
    rates_from: str
    reasons: tuple[Reason, ...]
    rejected: tuple[Reason, ...] = ()
    plan: UncertaintyPlan | None = None

    @property
    def seconds(self) -> float:  # type: ignore[override]
        """Projected wall time."""
        return self.parts.seconds

    @property
    def seconds_range(self) -> tuple[float, float]:
        """Shortest and longest time."""
        return self.parts.range

    @property
    def n_rows(self) -> int:
        """New rows."""
        return self.prediction.n_rows

    @property
    def form(self) -> Form:
        """Form in which the model predicts."""
        return self.prediction.form

    def summary(self) -> str:
        """Short description of the method."""
        found = f"in {self.form} form"
        if self.method == "iterations":
            found += ", standard deviations by conjugate gradient"
        elif self.method == "factor":
            stored = any(one.size and one.size.read_bytes for one in self.prediction.deviations)
            found += f", standard deviations from a factor{' that is read for each block' if stored else ''}"
        if self.prediction.n_folds:
            found += f", intervals by {self.prediction.n_folds} models that leave out a fold each"
        return found

    def title(self) -> str:
        p = self.prediction.problem
        return f"dkrr prediction: {plural(self.n_rows, 'row')} × {plural(p.d, 'column')}, {p.n:,} training rows"

    def facts(self) -> list[tuple[str, str]]:
        where = f"in this process ({plural(self.threads, 'thread')})"
        if self.execution == "dask":
            where = f"on {plural(self.prediction.n_workers, 'Dask worker')}"
        least, most = self.seconds_range
        is_wide = most - least > NARROW * self.seconds
        span = f" ({format_seconds(least)} to {format_seconds(most)})" if is_wide else ""
        before = f", {format_seconds(self.parts.before)} of it before the first row" if self.parts.before else ""
        limit = format_bytes(self.limit_bytes)
        columns = plural(self.prediction.n_columns, "column")
        return [
            ("where", where),
            ("blocks", f"{plural(self.block_rows, 'row')} at a time"),
            ("time", f"about {format_seconds(self.seconds)}{span}{before}"),
            ("rates", RATES[self.rates_from]),  # type: ignore[index]
            ("memory", f"at most {format_bytes(self.peak_bytes)} per process (limit {limit})"),
            ("disk", f"{format_bytes(self.read_bytes)} read"),
            ("output", f"{plural(self.n_rows, 'row')} × {columns}, {format_bytes(self.written_bytes)} as numbers"),
        ]

    def own(self) -> dict[str, Any]:
        p = self.prediction
        return {
            "n_rows": p.n_rows,
            "n_training_rows": p.problem.n,
            "form": p.form,
            "n_folds": p.n_folds,
            "has_folds": p.has_folds,
            "execution": self.execution,
            "threads": self.threads,
            "n_workers": p.n_workers,
            "block_rows": self.block_rows,
            "seconds_range": list(self.seconds_range),
            "seconds_before": self.parts.before,
            "rates_from": self.rates_from,
            "peak_bytes": self.peak_bytes,
            "limit_bytes": self.limit_bytes,
            "read_bytes": self.read_bytes,
            "written_bytes": self.written_bytes,
            "n_columns": p.n_columns,
        }

    def _summary(self) -> str:
        cost = f"about {format_seconds(self.seconds)}, at most {format_bytes(self.peak_bytes)} per process"
        return f"{self.form}, {cost}"


def plan_prediction(job: Prediction, resources: Resources) -> PredictionPlan:
    """Plan of predictions: as many rows at a time as memory allows.

    Raises
    ------
    MemoryLimitError
        If there is not enough memory for one row.
    """
    on_workers = job.n_workers > 0
    place = resources.on_workers() if on_workers else resources.in_caller("memory", resources.local_threads)
    threads = 1 if on_workers else resources.local_threads
    margin = PROCESS_MARGIN_BYTES + THREAD_STRIP_BYTES if on_workers else CALLER_MARGIN_BYTES + _of_threads(threads)
    held = place.baseline_bytes + margin
    sizes = [one.size for one in job.deviations if one.size is not None]
    first = [one.plan for one in job.deviations if one.plan is not None]
    held += sum(size.loaded_bytes for size in sizes)
    peak = held
    if job.n_folds and not job.has_folds and not on_workers:
        held += _bytes_of_folds(job)
        columns = 8 * job.problem.n * columns_at_once(job.problem.n, job.n_folds) if job.form == "dual" else 0
        peak = held + (columns if held + columns <= place.usable_bytes else 0)  # else they are in a temporary store
    # Rows, their predictions and what is written of them; of the next block some are read while this one is written.
    each_row = 2 * job.row_bytes + 4 * 8 * job.n_columns
    room = place.usable_bytes - held - job.read_overhead_bytes
    if room < each_row:
        _refuse(int(place.usable_bytes - room + each_row), place.usable_bytes, "a block of one row")
    read = job.block_rows if job.block_rows * each_row <= room else power_of_two(int(room // each_row))
    fitting = read
    if sizes:
        fitting = rows_together(sizes, room - read * each_row, held + job.read_overhead_bytes + read * each_row)
        fitting, read = (min(fitting, read), read) if job.is_transformed else (fitting, max(fitting, read))
    work = max((size.bytes_of(min(fitting, job.n_rows)) for size in sizes), default=0)
    peak = max(peak, held + job.read_overhead_bytes + min(read, job.n_rows) * each_row + work)
    made = [one.plan for one in job.factors if one.plan is not None and one.size is not None]
    peak = max(peak, *(plan.plan.peak_bytes for plan in (*first, *made)), 0)
    n_blocks = ceil(job.n_rows / fitting)
    read_bytes = job.x_bytes + n_blocks * sum(one.sweeps * one.size.read_bytes for one in job.deviations if one.size)
    return PredictionPlan(
        prediction=job,
        method="predictions" if not job.deviations else "factor" if sizes else "iterations",
        execution="dask" if on_workers else "memory",
        threads=threads,
        block_rows=fitting,
        read_rows=read,
        parts=_parts(job, resources, fitting),
        peak_bytes=peak,
        limit_bytes=place.limit_bytes,
        read_bytes=read_bytes + ceil(job.n_rows / ROWS_TOGETHER) * job.training_bytes,
        written_bytes=8 * job.n_rows * job.n_columns,
        rates_from=resources.rates_from,
        reasons=job.reasons,
        plan=first[0] if first else None,
    )


def _bytes_of_folds(job: Prediction) -> int:
    """Memory that the models of folds leave in this process: their factors, and in dual form their coefficients."""
    p, factors = job.problem, sum(one.size.loaded_bytes for one in job.factors if one.size is not None)
    return factors + (8 * p.n * job.n_folds * p.n_targets if job.form == "dual" else 0)


def _parts(job: Prediction, resources: Resources, fitting: int) -> Parts:
    """Projected time of predictions in blocks of a given number of rows."""
    p, m, n_workers = job.problem, job.n_rows, job.n_workers or 1
    rates, rates_of_x = resources.rates, resources.rates_of_rows
    threads = resources.worker_threads if job.n_workers else resources.local_threads
    before, iterations, deviations, intervals = 0.0, 0.0, 0.0, 0.0
    forming, side = float(p.n) * m * p.entry_time() / threads, p.dimension or 0
    is_transform = p.feature_map is not None and p.feature_map.is_transform
    features = 0.0 if side == p.d else ROW_FEATURE_SECONDS * m * side  # the columns of X themselves
    if is_transform:
        features = GRID_ROW_SECONDS * m * p.n_targets / threads
    for one in job.deviations:
        before += one.seconds_before
        if one.size is None:
            assert one.plan is not None
            iterations += one.plan.seconds
            continue
        before += one.plan.plan.seconds if one.plan is not None else 0.0
        made = features + FEATURE_COPY_SECONDS * m * side if one.size.of_features else forming
        sweep = Work(gemm_flops=one.sweeps * float(one.size.side) ** 2 * m, element_seconds=made)
        read = Work(read_bytes=one.sweeps * one.size.read_bytes * ceil(m / fitting))
        deviations += (rates.seconds(sweep, threads) + resources.rates_of_disk.seconds(read)) / n_workers
    rows = m * (READ_ROW_SECONDS + NUMBER_SECONDS * job.n_columns) + rates_of_x.seconds(Work(read_bytes=job.x_bytes))
    if job.form == "dual":
        # Strips of the kernel are larger than caches, from which a product with few vectors would read them.
        strips = 8.0 * p.n * m
        product = Work(gemm_flops=2.0 * p.n * m * p.n_targets, element_seconds=forming, memory_bytes=strips)
        product += Work(read_bytes=job.training_bytes * ceil(m / ROWS_TOGETHER))
    else:
        flops = 0.0 if is_transform else 2.0 * m * side * (p.d + p.n_targets)
        product = Work(gemm_flops=flops, element_seconds=features)
    rows += rates.seconds(product, threads) / n_workers
    for one in job.factors:
        before += one.seconds_before
        if one.size is None:  # standard deviations come by conjugate gradient, these models by a factor all the same
            before += rates.seconds(Work(gemm_flops=p.n**3 / 3), resources.local_threads)
        elif one.plan is not None:
            before += one.plan.plan.seconds
    if job.n_folds:
        if not job.has_folds:
            before += rates.seconds(Work(gemm_flops=job.folds_flops), resources.local_threads)
        more = replace(product, gemm_flops=product.gemm_flops * job.n_folds, read_bytes=0.0)
        intervals = rates.seconds(more, threads) / n_workers + INTERVAL_SECONDS * m * p.n_targets / n_workers
    return Parts(before, rows, deviations, iterations, intervals)
