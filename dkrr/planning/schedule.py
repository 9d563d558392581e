"""What the tasks of a factorisation cost, and the wall time of all of them."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

from dkrr.linalg.tile_steps import TileStep, n_update_parts
from dkrr.planning.resources import Rates
from dkrr.store import TileGrid

SHARPNESS = 4.0
"""Exponent of the smooth maximum (among 2 to 10 the closest to 1,100 runs of `benchmarks.simulation` with 12 to 100
tiles per side, parts of 1 to 24 tile columns and 2 to 1,024 slots: 0.84 to 1.12 of their time; with 2 to 24 tiles per
side in the order of submission, which the formula leaves out: 0.88 to 1.03 of nine in ten, 1.00 in the median)."""


@dataclass(frozen=True)
class Cluster:
    """Workers of one thread each, and the driver that sends them tasks."""

    slots: int
    """Tasks that run at once."""
    window_per_slot: int = 2
    """Tasks on the scheduler for each slot (``dask_executor.WINDOW_PER_THREAD``)."""
    round_trip_seconds: float = 0.010
    """From the end of a task to the submission of those it made ready: the client sends every 10 ms."""
    scheduler_seconds: float = 0.001
    """Time of the scheduler for each task; it serves one after another (Dask's own figure: about 1 ms)."""


@dataclass(frozen=True)
class TaskCosts:
    """How fast one worker does each part of a task."""

    gemm_flops: float
    """Floating-point operations per second."""
    syrk_flops: float
    trsm_flops: float
    """Rate of the triangular solve with the panels on the diagonal of L_jj; the rest of the division is a product."""
    potrf_flops: float
    read_bytes: float
    """Bytes per second of reading that delays the products."""
    write_bytes: float
    entry_seconds: float
    """To form one entry of the matrix."""
    task_seconds: float
    """Overhead of every task: from the end of the one before to its first product, and all not counted elsewhere."""

    @classmethod
    def of_rates(cls, rates: Rates, entry_seconds: float) -> Self:
        """Costs that correspond to the planner's rates."""
        return cls(
            gemm_flops=rates.gemm_flops,
            syrk_flops=rates.syrk_flops,
            trsm_flops=rates.trsm_flops,
            potrf_flops=rates.potrf_flops,
            read_bytes=rates.read_bytes,
            write_bytes=rates.write_bytes,
            entry_seconds=entry_seconds,
            task_seconds=rates.task_seconds,
        )

    def seconds(self, step: TileStep, grid: TileGrid) -> float:
        """Time of one task: nothing overlaps, since the thread that reads ahead has no core of its own."""
        gemm, syrk, trsm, potrf = step_flops(step, grid)
        read, written = step_bytes(step, grid)
        return (
            gemm / self.gemm_flops
            + syrk / self.syrk_flops
            + trsm / self.trsm_flops
            + potrf / self.potrf_flops
            + read / self.read_bytes
            + written / self.write_bytes
            + formed_entries(step, grid) * self.entry_seconds
            + self.task_seconds
        )


def step_flops(step: TileStep, grid: TileGrid) -> tuple[float, float, float, float]:
    """Operations of GEMM, SYRK, TRSM and POTRF; their sum is ``TileStep.flops``."""
    rows, columns = grid.height(step.i), grid.height(step.j)
    before = float(len(step.columns) * grid.tile)
    if step.i == step.j:
        return 0.0, rows * rows * before, 0.0, rows**3 / 3 if step.is_last else 0.0
    gemm = 2 * rows * columns * before
    if not step.is_last:
        return gemm, 0.0, 0.0, 0.0
    panels, rest = divmod(columns, grid.panel)
    triangles = float(rows * (panels * grid.panel**2 + rest**2))
    return gemm + rows * columns * columns - triangles, 0.0, triangles, 0.0


def step_bytes(step: TileStep, grid: TileGrid) -> tuple[float, float]:
    """Bytes of tiles that a task reads and writes."""
    on_diagonal = step.i == step.j
    tile = 8.0 * grid.tile * grid.height(step.j)
    read = 8.0 * grid.tile**2 * len(step.columns) * (1 if on_diagonal else 2)
    return read + tile * ((step.part > 0) + (step.is_last and not on_diagonal)), tile


def formed_entries(step: TileStep, grid: TileGrid) -> float:
    """Entries of the matrix that a task forms: the first of a tile forms it, on the diagonal half of it."""
    if step.part:
        return 0.0
    return (0.5 if step.i == step.j else 1.0) * grid.height(step.i) * grid.height(step.j)


@lru_cache(maxsize=4096)  # plans of many fits alike, as in a search, ask for the same again
def factorisation_seconds(
    grid: TileGrid, columns_per_task: int, slots: int, rates: Rates, form_seconds: float
) -> float:
    """Wall time of the tiled factorisation, with the delays of Dask where more than one task runs at once.

    A full tile of the matrix is formed in `form_seconds`; `slots` tasks run at once, over all workers.
    """
    costs = TaskCosts.of_rates(rates, form_seconds / grid.tile**2)
    round_trip = max(0.0, rates.chain_seconds - Cluster.scheduler_seconds)
    return estimated_seconds(grid, columns_per_task, costs, Cluster(slots, round_trip_seconds=round_trip))


def estimated_seconds(grid: TileGrid, columns_per_task: int, costs: TaskCosts, cluster: Cluster) -> float:
    """Wall time of the tiled factorisation, column by column instead of task by task.

    While the chain of a column (its diagonal tile and the one below, which the next column waits for) is computed, the
    other workers do the rest of this column, then the tasks that the columns before it have released::

        step = max(chain, (work of columns ≤ j − done) / slots)
        done = min(work released by columns < j, done + slots × step)

    with a maximum that is smooth, as the two delay each other where they are about equal. The scheduler sets a lower
    bound. A queue that urgent tasks cannot overtake is left out.
    """
    work = _column_work(grid, columns_per_task, costs)
    if cluster.slots == 1:
        return sum(column.whole for column in work)
    delay = cluster.round_trip_seconds + cluster.scheduler_seconds
    seconds, done, needed, released, n_tasks = 0.0, 0.0, 0.0, 0.0, 0
    for j, column in enumerate(work):
        needed, released, n_tasks = needed + column.whole, released + column.released, n_tasks + column.n_tasks
        # With tasks shorter than the delay, a slot that has done those of its window waits for the next.
        speed = min(1.0, cluster.window_per_slot / (1.0 + delay * column.n_tasks / column.whole))
        parts = (
            column.chain + (2 * delay if j < len(work) - 1 else 0.0),  # nothing waits for the last column
            max(0.0, needed - done) / (cluster.slots * speed),
            max(0.0, n_tasks * cluster.scheduler_seconds - seconds),
        )
        step = math.fsum(part**SHARPNESS for part in parts) ** (1 / SHARPNESS)
        seconds += step
        done = min(released, done + cluster.slots * speed * step)
    return seconds


@dataclass
class _ColumnWork:
    """Core-seconds of one tile column."""

    n_tasks: int
    chain: float = 0.0
    """Last parts of the diagonal tile and of the one below it."""
    whole: float = 0.0
    """All its tasks."""
    released: float = 0.0
    """Tasks that the column before makes possible: last parts of this one, earlier parts of later columns."""


def _column_work(grid: TileGrid, columns_per_task: int, costs: TaskCosts) -> list[_ColumnWork]:
    n_tiles, last = grid.n_tiles, grid.n_tiles - 1
    work = [_ColumnWork((n_tiles - j) * n_update_parts(j, columns_per_task)) for j in range(n_tiles)]
    known: dict[bool, tuple[float, float, float]] = {}
    for j in range(n_tiles):
        n_parts, below = n_update_parts(j, columns_per_task), last - j
        for part in {0, min(1, n_parts - 1), n_parts - 1}:
            is_last = part == n_parts - 1
            # Parts that are not the last differ only in that the first forms the tile.
            times = None if is_last or j == last else known.get(part == 0)
            if times is None:
                columns = range(part * columns_per_task, j if is_last else (part + 1) * columns_per_task)
                times = _part_seconds(grid, j, part, columns, costs, is_last=is_last)
            if not is_last and j < last:
                known[part == 0] = times
            diagonal, ordinary, bottom = times
            whole = diagonal + (ordinary * (below - 1) + bottom if below else 0.0)
            if is_last:
                work[j].chain = diagonal + (ordinary if below > 1 else bottom if below else 0.0)
                work[j].whole += whole
                work[j].released += whole
                continue
            for alike in range(1 if part == 0 else n_parts - 2):
                work[j].whole += whole
                work[(part + alike + 1) * columns_per_task].released += whole
    return work


def _part_seconds(
    grid: TileGrid, j: int, part: int, columns: range, costs: TaskCosts, *, is_last: bool
) -> tuple[float, float, float]:
    """Times of one part of the diagonal tile of a column, of a tile below it and of that of the last row."""
    last = grid.n_tiles - 1
    times = [costs.seconds(TileStep(i, j, part, columns, is_last), grid) for i in (j, min(j + 1, last), last)]
    return times[0], times[1], times[2]
