"""The tasks of a tiled factorisation as integers: which tile columns each subtracts, and what it waits for.

Reading the next panel, and writing the last one, while the current one is being multiplied.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

from dkrr.cluster.tasks import Meter
from dkrr.store import TileGrid

PANEL_COLUMNS = 512
"""Columns of a panel with which GEMM runs at full rate (measured: 256 loses 4 %, 1,024 gains nothing)."""
TILE_SIZES = (256, 512, 1024, 2048, 3072, 4096, 6144, 8192, 12288)
"""Tile sizes that a plan compares (three times as many would save up to 5 %)."""
MAX_TILES_PER_SIDE = 200
"""About 20,000 tasks: more would keep the scheduler busy for longer than it should be."""
MAX_TASKS = 250_000
"""Largest number of tasks of a factorisation: the scheduler takes about a millisecond for each."""


@dataclass(frozen=True)
class TileStep:
    """One task of the factorisation: some tile columns of the sum of tile (i, j), and after the last the tile."""

    i: int
    j: int
    part: int
    """Number of this part among those of the tile."""
    columns: range
    """Tile columns that it subtracts."""
    is_last: bool

    @property
    def key(self) -> str:
        """Name of the task."""
        return tile_key(self.i, self.j) if self.is_last else f"S-{self.i}-{self.j}-{self.part}"

    @property
    def depends(self) -> tuple[str, ...]:
        """Names of the tasks before it. The tiles left of those named are done when they are."""
        names = [f"S-{self.i}-{self.j}-{self.part - 1}"] if self.part else []
        if self.columns:
            newest = self.columns[-1]
            names += [tile_key(self.i, newest)] + ([tile_key(self.j, newest)] if self.i != self.j else [])
        if self.is_last and self.i != self.j:
            names.append(tile_key(self.j, self.j))
        return tuple(names)

    @property
    def priority(self) -> tuple[int, ...]:
        """A diagonal tile first, since a column waits for it; then what the next one waits for; then by columns."""
        urgency = 2 if not self.is_last else min(self.i - self.j, 2)
        return (urgency, self.j, self.i)

    def flops(self, grid: TileGrid) -> float:
        """Floating-point operations."""
        rows, columns = grid.height(self.i), grid.height(self.j)
        before = float(len(self.columns) * grid.tile)
        if self.i == self.j:
            return rows * rows * before + (rows**3 / 3 if self.is_last else 0.0)
        return 2 * rows * columns * before + (rows * columns * columns if self.is_last else 0.0)


def tile_key(i: int, j: int) -> str:
    """Name of the task that completes tile (i, j)."""
    return f"L-{i}-{j}"


def tile_steps(n_tiles: int, columns_per_task: int) -> Iterator[TileStep]:
    """All tasks of a factorisation, column by column.

    Parameters
    ----------
    n_tiles : int
        Tiles along one side.
    columns_per_task : int
        Tile columns that one task subtracts; 0 means all.
    """
    for j in range(n_tiles):
        n_parts = n_update_parts(j, columns_per_task)
        for i in range(j, n_tiles):
            for part in range(n_parts):
                is_last = part == n_parts - 1
                yield TileStep(
                    i, j, part, range(part * columns_per_task, j if is_last else (part + 1) * columns_per_task), is_last
                )


def task_columns(n_tiles: int) -> list[int]:
    """Tile columns per task that a plan compares: the fewest, one more, and all (0), which needs least disk.

    Others would save up to 1 % of the time (2 to 256 slots, 5,000 to a million rows).
    """
    fewest = max(2, -(-(n_tiles**3) // (6 * MAX_TASKS)))
    return [s for s in (fewest, fewest + 1) if s < n_tiles - 1] + [0]


def n_tasks(n_tiles: int, columns_per_task: int) -> int:
    """Tasks of a factorisation."""
    return sum((n_tiles - j) * n_update_parts(j, columns_per_task) for j in range(n_tiles))


def n_update_parts(j: int, columns_per_task: int) -> int:
    """Tasks to a tile of column j."""
    return max(1, -(-j // columns_per_task)) if columns_per_task else 1


N_SLOTS = 2
"""Buffers that a caller of `prefetched` keeps: one in use, one being filled."""


@cache
def writer() -> ThreadPoolExecutor:
    """One thread that writes finished panels: writing waits for the disk more than it computes."""
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="dkrr-write")


@cache
def _readers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=16, thread_name_prefix="dkrr-read")


if hasattr(os, "register_at_fork"):  # a fork has the pools of its parent, and none of their threads
    os.register_at_fork(after_in_child=writer.cache_clear)
    os.register_at_fork(after_in_child=_readers.cache_clear)


T = TypeVar("T")


def prefetched(n: int, load: Callable[[int, int], T], meter: Meter, *, waits: bool) -> Iterator[T]:
    """Results of ``load(k, slot)`` for k = 0 ... n − 1, each loaded while the one before is in use.

    The first begins to load at once: with two of these, what both load is loaded at the same time.

    Parameters
    ----------
    n : int
    load : callable
        Fills buffer number `slot` (0 or 1); what slot k % 2 held is no longer in use when k is loaded.
    meter : Meter
        Counts the time spent waiting as "read".
    waits : bool
        Whether loading waits for a disk; nothing is loaded ahead that lies in memory.
    """
    if not waits or n == 0:
        return (load(k, 0) for k in range(n))
    return _loaded(_readers().submit(load, 0, 0), n, load, meter)


def _loaded(ahead: "Future[T]", n: int, load: Callable[[int, int], T], meter: Meter) -> Iterator[T]:
    for k in range(n):
        with meter.time("read"):
            current = ahead.result()
        if k + 1 < n:
            ahead = _readers().submit(load, k + 1, (k + 1) % N_SLOTS)
        yield current
