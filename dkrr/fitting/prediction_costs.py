"""Costs of predictions: how many rows at a time, for how long, and in how much memory."""

from dataclasses import replace
from math import ceil

from dkrr.blas import BYTES_PER_THREAD
from dkrr.cost import Work
from dkrr.errors import MemoryLimitError
from dkrr.linalg.cholesky import factor_bytes
from dkrr.linalg.held_out import columns_at_once
from dkrr.linalg.posterior import block_bytes
from dkrr.planning.predictions import ROWS_TOGETHER, FactorSize, Parts, Prediction, PredictionPlan, power_of_two
from dkrr.planning.resources import CALLER_MARGIN_BYTES, PROCESS_MARGIN_BYTES, Resources
from dkrr.store import TileGrid
from dkrr.text import format_bytes

ROWS_PER_READ = 4096
"""Most rows together where the factor is read for each block: with this many the reading hardly counts."""
TRANSFORMED_ROWS_TOGETHER = 2**16
"""Most rows together with features whose products are transforms."""
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


def is_read_by_workers(n_bytes: float) -> bool:
    """Whether workers read a factor of `n_bytes` from its store, instead of receiving it with their tasks."""
    return n_bytes > SENT_BYTES


def room_for(resources: Resources, held: int) -> int:
    """Memory of the calling process that is left beside what it holds, and what its threads take."""
    return resources.local_limit_bytes - held - CALLER_MARGIN_BYTES - _of_threads(resources.local_threads)


def _of_threads(threads: int) -> int:
    return threads * (BYTES_PER_THREAD + THREAD_STRIP_BYTES)


def size_of_tiles(grid: TileGrid, threads: int, *, is_stored: bool) -> FactorSize:
    """Sizes of a factor of all training rows."""
    fixed = block_bytes(grid, 0, threads, is_stored=is_stored)
    row = block_bytes(grid, 1, 0, is_stored=False)
    if is_stored:
        return FactorSize(grid.n, row, fixed, factor_bytes(grid), 0, ROWS_PER_READ)
    return FactorSize(grid.n, row, fixed, 0.0, memory_of(grid))


def size_of_normal(side: int, *, is_transform: bool = False) -> FactorSize:
    """Sizes of a factor of the features' normal matrix: of every row its features, and three copies of them."""
    most, row = (TRANSFORMED_ROWS_TOGETHER, 256) if is_transform else (ROWS_TOGETHER, 32 * side)
    return FactorSize(side, row, loaded_bytes=8 * side**2, most_rows=most, of_features=True)


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
    if job.gpu is not None:
        rows += float(p.n) * m * job.gpu.entry_seconds("float64", p.d, p.n_targets, job.n_leaves)
    else:
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
