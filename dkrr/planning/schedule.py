"""What the tasks of a factorisation cost, and the wall time of all of them: the planner's crystal ball."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Self

from dkrr.linalg.cholesky import TileStep, n_segments, tile_steps
from dkrr.planning.resources import Rates
from dkrr.planning.simulation import Cluster, Outcome, TaskGraph, TaskWork, simulate
from dkrr.tiles import TileGrid

SIMULATED_TILES = 24
"""Tiles a side up to which the schedule is simulated; beyond, it is estimated."""


@dataclass(frozen=True)
class TaskCosts:
    """How fast one worker does each part of a task."""

    gemm_flops: float
    """Floating-point operations per second."""
    syrk_flops: float
    trsm_flops: float
    """Of the triangular solve with the strips on the diagonal of L_jj; the rest of the division is a product."""
    potrf_flops: float
    read_bytes: float
    """Bytes per second of reading that costs time beside the products."""
    write_bytes: float
    entry_seconds: float
    """To form one entry of the matrix."""
    task_seconds: float
    """Of every task: from the end of the one before to the first product, and what is not counted elsewhere."""

    @classmethod
    def of_rates(cls, rates: Rates, entry_seconds: float) -> Self:
        """Costs that the planner's rates stand for."""
        return cls(
            gemm_flops=rates.gemm_flops,
            syrk_flops=rates.gemm_flops,
            trsm_flops=rates.gemm_flops,
            potrf_flops=rates.gemm_flops,
            read_bytes=rates.read_bytes,
            write_bytes=rates.write_bytes,
            entry_seconds=entry_seconds,
            task_seconds=rates.task_seconds,
        )

    def work(self, step: TileStep, grid: TileGrid) -> TaskWork:
        """Cost of one task: nothing overlaps, since the thread that reads ahead has no core of its own."""
        gemm, syrk, trsm, potrf = step_flops(step, grid)
        read, written = step_bytes(step, grid)
        seconds = (
            gemm / self.gemm_flops
            + syrk / self.syrk_flops
            + trsm / self.trsm_flops
            + potrf / self.potrf_flops
            + read / self.read_bytes
            + written / self.write_bytes
            + formed_entries(step, grid) * self.entry_seconds
            + self.task_seconds
        )
        return TaskWork(seconds, read, written)


def step_flops(step: TileStep, grid: TileGrid) -> tuple[float, float, float, float]:
    """Operations of GEMM, SYRK, TRSM and POTRF; their sum is that of ``TileStep.flops``."""
    rows, columns = grid.height(step.i), grid.height(step.j)
    before = float(len(step.columns) * grid.tile)
    if step.i == step.j:
        return 0.0, rows * rows * before, 0.0, rows**3 / 3 if step.is_last else 0.0
    gemm = 2 * rows * columns * before
    if not step.is_last:
        return gemm, 0.0, 0.0, 0.0
    strips, rest = divmod(columns, grid.panel)
    triangles = float(rows * (strips * grid.panel**2 + rest**2))
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


def step_seconds(step: TileStep, grid: TileGrid, rates: Rates, form_seconds: float) -> float:
    """Time of one task, where a full tile is formed in `form_seconds`."""
    return TaskCosts.of_rates(rates, form_seconds / grid.tile**2).work(step, grid).seconds


def factorisation_seconds(grid: TileGrid, segment: int, slots: int, rates: Rates, form_seconds: float) -> float:
    """Wall time of the tiled factorisation by list scheduling.

    Parameters
    ----------
    grid : TileGrid
    segment : int
        Tile columns that one task subtracts; 0 means all.
    slots : int
        Tasks that run at once, over all workers.
    rates : Rates
    form_seconds : float
        Time to form one full tile of the matrix.
    """
    costs = TaskCosts.of_rates(rates, form_seconds / grid.tile**2)
    if grid.n_tiles > SIMULATED_TILES:
        return estimated_seconds(grid, segment, slots, costs)
    return simulate_factorisation(grid, segment, costs, Cluster.ideal(slots)).seconds


def simulate_factorisation(grid: TileGrid, segment: int, costs: TaskCosts, cluster: Cluster) -> Outcome:
    """Run the real graph of tasks on a cluster that exists on paper."""
    steps, graph = factorisation_graph(grid.n_tiles, segment)
    return simulate(graph, [costs.work(step, grid) for step in steps], cluster)


@lru_cache(maxsize=4)
def factorisation_graph(n_tiles: int, segment: int) -> tuple[tuple[TileStep, ...], TaskGraph]:
    """Tasks of a factorisation and what they wait for."""
    steps = tuple(tile_steps(n_tiles, segment))
    return steps, TaskGraph.of(steps)


def estimated_seconds(grid: TileGrid, segment: int, slots: int, costs: TaskCosts) -> float:
    raise NotImplementedError
