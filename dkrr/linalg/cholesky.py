"""Tiled Cholesky factorisation, on disk or in memory: left-looking, every tile computed by few tasks, written once.

For a tile (i, j) of A = L Lᵀ, i ≥ j::

    S = A_ij − Σ_{k<j} L_ik L_jkᵀ,     L_jj = chol(S)  for i = j,     L_ij = S L_jj⁻ᵀ  for i > j

A task streams the panels of rows i and j of L through two small buffers and keeps only S in memory, so memory does
not grow with n. A stored tile is never updated: Dask may run any task twice, and a killed run resumes from the
complete tiles.

The dtype of the stored factor decides the arithmetic. A factor in float32 takes half the disk, half the reading and
about half the time of one in float64.

One task to a tile leaves workers idle: near the end few tiles are left and their sums are the longest. So the sum may
be cut into updates by some tile columns, each a separate task; all but the last write S, unfinished, to a separate
store (write-once as well), which the next one begins from.

A factor grows: L of the first rows of A is the first rows of L. They stay where they are; of the tile row with the last
of them only the others are computed. They are copied there if that tile row lies in a new array.

In the memory of one process the same tasks run in threads. Tiles are computed where they lie (also S, between
updates), so that a task must not run twice there.

Tasks are integers: which tile columns each subtracts, and what it waits for. The next panel is read, and the last one
written, while the current one is being multiplied.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain
from math import inf
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dkrr import blas
from dkrr.cluster.tasks import Meter, Task
from dkrr.cost import Work
from dkrr.errors import NotFiniteError, NotPositiveDefiniteError
from dkrr.linalg.sources import TileSource, Vectors, clear_upper, read_range
from dkrr.store import MemoryMatrix, TiledMatrix, TileGrid
from dkrr.store.format import OVERHEAD_BYTES
from dkrr.store.matrix import padded_width


@dataclass(frozen=True)
class TileStep:
    """Task of the factorisation: some tile columns of the sum of tile (i, j), and after the last the tile."""

    i: int
    j: int
    update: int
    """Number of this update among those of the tile."""
    columns: range
    """Tile columns that it subtracts."""
    is_last: bool
    top: int = 0
    """First rows of the tile that a smaller factor has."""

    @property
    def key(self) -> str:
        """Name of the task."""
        return tile_key(self.i, self.j) if self.is_last else f"S-{self.i}-{self.j}-{self.update}"

    @property
    def depends(self) -> tuple[str, ...]:
        """Names of the tasks before it. The tiles left of those named are done when they are."""
        names = [f"S-{self.i}-{self.j}-{self.update - 1}"] if self.update else []
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
        rows, columns, top = grid.height(self.i) - self.top, grid.height(self.j), self.top
        before = float(len(self.columns) * grid.tile)
        if self.i == self.j:
            last = rows**3 / 3 + rows * top * (rows + top)
            return rows * (rows + 2 * top) * before + (last if self.is_last else 0.0)
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
        count = n_updates(j, columns_per_task)
        for i in range(j, n_tiles):
            for update in range(count):
                is_last = update == count - 1
                yield TileStep(
                    i,
                    j,
                    update,
                    range(update * columns_per_task, j if is_last else (update + 1) * columns_per_task),
                    is_last,
                )


def n_tasks(n_tiles: int, columns_per_task: int, kept_tiles: int = 0) -> int:
    """Tasks of a factorisation, whose first tile rows may exist already."""
    return sum((n_tiles - max(j, kept_tiles)) * n_updates(j, columns_per_task) for j in range(n_tiles))


def n_updates(j: int, columns_per_task: int) -> int:
    """Tasks to a tile of column j."""
    return max(1, -(-j // columns_per_task)) if columns_per_task else 1


N_SLOTS = 2
"""Buffers that a caller of `prefetched` keeps: one in use, one being filled."""


@cache
def writer() -> ThreadPoolExecutor:
    """Thread that writes finished panels: writing waits for the disk more than it computes."""
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


Matrix = TiledMatrix | MemoryMatrix


@dataclass(frozen=True)
class KeptFactor:
    """Complete factor of the first rows of a system, with the same tile and panel; its grid is smaller."""

    matrix: Matrix

    @property
    def n(self) -> int:
        """Rows that it has."""
        return self.matrix.grid.n

    @property
    def whole_rows(self) -> int:
        """Tile rows that are those of the larger factor."""
        return self.n // self.matrix.grid.tile

    @property
    def top(self) -> int:
        """Rows of its last tile row, if that is not whole: the first ones of a tile row of the larger factor."""
        return self.n % self.matrix.grid.tile

    def copy(self, meter: Meter, i: int, j: int, out: NDArray[Any]) -> None:
        """Read its rows of tile (i, j), those at the end of it, to the first rows of a tile."""
        columns = self.matrix.grid.height(j)
        with meter.time("read"):
            meter.bytes_read += self.matrix.read_tile(i, j, out[: self.top, :columns])
        out[: self.top, columns:] = 0.0  # of a square, what is right of it


@dataclass(frozen=True)
class TiledSystem:
    """A + diag(s) = L Lᵀ with A in tiles; what is stored is known by name, so that it travels to workers."""

    source: TileSource
    """Tiles of A."""
    shift: Vectors
    """s, of shape (n, 1), in chunks of tile rows if it is stored."""
    factor: Matrix
    """L, written by the tasks in its dtype."""
    columns_per_task: int = 0
    """Tile columns that one task subtracts; 0 means all."""
    partial: tuple[Matrix, ...] = ()
    """S after the first `columns_per_task` tile columns, after the next, and so on."""
    kept: KeptFactor | None = None
    """Factor of the first rows, whose whole tile rows `factor` has already."""
    known_columns: int = 0
    """Tile columns, of those rows, in which `factor` has its other rows too."""

    def __post_init__(self) -> None:
        if any(sums.dtype != self.factor.dtype for sums in self.partial):
            raise ValueError("the partial sums and the factor differ in dtype")
        if self.kept is not None:
            given, grid = self.kept.matrix, self.grid
            if (given.grid.tile, given.grid.panel, given.dtype) != (grid.tile, grid.panel, self.factor.dtype):
                raise ValueError("the kept factor and the factor differ in tiles or dtype")
            if given.grid.n >= grid.n:
                raise ValueError(f"the kept factor has {given.grid.n} rows, and the factor {grid.n}")

    @property
    def grid(self) -> TileGrid:
        """Grid of the tiles."""
        return self.factor.grid

    def steps(self) -> Iterator[TileStep]:
        """All tasks of the factorisation, but those of tile rows that the kept factor has."""
        kept = self.kept
        for step in tile_steps(self.grid.n_tiles, self.columns_per_task):
            if step.j < self.known_columns:
                continue
            if kept is None or step.i > kept.whole_rows:
                yield step
            elif step.i == kept.whole_rows:
                yield replace(step, top=kept.top)


def cholesky_tasks(system: TiledSystem) -> list[Task]:
    """Tasks of the factorisation that are not done yet."""
    done = system.factor.complete_tiles()
    summed = [sums.complete_tiles() for sums in system.partial]
    holes, steps = _holes(system.grid.n_tiles, done), system.steps()
    if system.kept is not None and system.factor.is_stored:  # tiles of the kept factor may be lost
        kept_rows = range(system.kept.whole_rows)
        of_kept = (s for s in tile_steps(system.grid.n_tiles, system.columns_per_task) if s.i in kept_rows)
        steps = chain(of_kept, steps)
    tasks = []
    for step in steps:
        tile = (step.i, step.j)
        # An update is done if it or any later one is.
        if tile in done or any(tile in later for later in summed[step.update :]):
            continue
        depends = step.depends + tuple(tile_key(i, j) for i, j in sorted(holes) if _reads(step, i, j))
        flops = step.flops(system.grid)
        tasks.append(Task(step.key, factor_tile, (system, step), depends, flops, step.priority))
    return tasks


def _holes(n_tiles: int, done: set[tuple[int, int]]) -> set[tuple[int, int]]:
    """Tiles that are missing although later ones of their row exist: only a damaged store has any.

    A task waits for the newest tile of a row only; with holes it must wait for the older ones too.
    """
    holes = set()
    for i in range(n_tiles):
        row = [j for j in range(i + 1) if (i, j) in done]
        holes |= {(i, j) for j in range(max(row, default=0)) if (i, j) not in done}
    return holes


def _reads(step: TileStep, i: int, j: int) -> bool:
    """Whether a task subtracts products with tile (i, j)."""
    return i in (step.i, step.j) and j in step.columns


def factor_tile(meter: Meter, system: TiledSystem, step: TileStep) -> None:
    """Task: subtract one update of the sum of a tile; after the last one compute the tile of L and write it.

    Raises
    ------
    NotPositiveDefiniteError
        If a pivot of a diagonal tile is not positive, in the arithmetic of the factor's dtype, or leaves its range.
    NotFiniteError
        If a diagonal entry of A is infinite or NaN in float64.
    """
    grid, matrix, i, j, top = system.grid, system.factor, step.i, step.j, step.top
    tile = matrix.tile_buffer(i, j)
    _begin(meter, system, step, tile)
    new = tile[top:]
    column_ranges = matrix.column_strips(step.columns)
    left = [matrix.panel_buffer() for _ in range(N_SLOTS)]
    right = left if i == j else [matrix.panel_buffer() for _ in range(N_SLOTS)]

    for (a, n_a), (b, n_b) in _panels_of_both(meter, matrix, step, column_ranges, (left, right)):
        meter.bytes_read += n_a + n_b
        if i != j:
            with meter.time("gemm"):
                blas.gemm(new, a, b, transpose_b=True, alpha=-1.0, beta=1.0)
            continue
        with meter.time("syrk"):
            blas.syrk(new[:, top:], a[top:], alpha=-1.0, beta=1.0)
            if top:
                blas.gemm(new[:, :top], a[top:], a[:top], transpose_b=True, alpha=-1.0, beta=1.0)
    if not step.is_last:
        _write(meter, system.partial[step.update], replace(step, top=0), tile)
    elif i == j:
        _factor_diagonal(meter, grid, j, tile, top)
        if isinstance(matrix, MemoryMatrix):
            matrix.triangles[j] = blas.Triangle(tile, is_shared=True)
        else:  # others may read it there; in memory a source may keep its own above the diagonal
            clear_upper(tile)
        _write(meter, matrix, step, tile)
    else:
        _divide_by_diagonal(meter, matrix, step, tile, left)


def _panels_of_both(
    meter: Meter,
    matrix: Matrix,
    step: TileStep,
    column_ranges: Sequence[slice],
    buffers: tuple[list[blas.Array], list[blas.Array]],
) -> Iterator[tuple[tuple[blas.Array, int], tuple[blas.Array, int]]]:
    """Panels of rows i and j in each range of columns, and bytes read for them.

    Of row i without the rows that a smaller factor has, which only the tile on the diagonal needs.
    """
    rows = (step.i, 0 if step.i == step.j else step.top), (step.j, 0)

    def load(row: tuple[int, int], own: list[blas.Array], k: int, slot: int) -> tuple[blas.Array, int]:
        i, top = row
        return matrix.read_strip(i, column_ranges[k], own[slot], top)

    def load_both(k: int, slot: int) -> tuple[tuple[blas.Array, int], tuple[blas.Array, int]]:
        a = load(rows[0], buffers[0], k, slot)
        return a, (a[0], 0) if step.i == step.j else load(rows[1], buffers[1], k, slot)

    if matrix.is_remote and step.i != step.j:  # both at the same time: every request takes a while
        one, other = (
            prefetched(len(column_ranges), partial(load, row, own), meter, waits=True)
            for row, own in zip(rows, buffers, strict=True)
        )
        return zip(one, other, strict=True)
    # Mapped panels are memory of the process: one pair ahead.
    return prefetched(len(column_ranges), load_both, meter, waits=matrix.is_stored)


def _begin(meter: Meter, system: TiledSystem, step: TileStep, tile: blas.Array) -> None:
    """Fill the tile with A + diag(s), or with the sum that the update before wrote.

    Its `top` rows are those of L where they are needed: on the diagonal, and where they are written with the others.
    """
    grid, i, j, top = system.grid, step.i, step.j, step.top
    if step.update:
        before = system.partial[step.update - 1]
        with meter.time("read"):
            if before is not system.factor:  # else it lies there already
                meter.bytes_read += before.read_tile(i, j, tile)
        return
    if system.kept is not None and top and isinstance(system.factor, TiledMatrix):  # in memory they lie there already
        if i == j or not system.factor.is_apart(i, top):
            system.kept.copy(meter, i, j, tile)
        else:
            tile[:top] = 0.0
    columns, new, square = grid.rows(j), tile[top:], tile[top:, top:]
    rows = slice(grid.rows(i).start + top, grid.rows(i).stop)
    with np.errstate(over="ignore"):
        if i != j:
            system.source.fill(meter, new, rows, columns)
            return
        if top:
            system.source.fill(meter, new[:, :top], rows, slice(columns.start, rows.start))
        system.source.fill(meter, square, rows, rows)
    # Here the square is still A; LAPACK takes an infinite pivot for a positive one.
    if tile.dtype == np.float64:
        check_diagonal(square.diagonal(), rows.start)
    elif not np.isfinite(square.diagonal()).all():
        row = rows.start + int(np.flatnonzero(~np.isfinite(square.diagonal()))[0])
        raise NotPositiveDefiniteError(f"the diagonal entry of row {row} leaves the range of {tile.dtype}", row)
    np.einsum("ii->i", square)[...] += read_range(system.shift, rows)[:, 0]


def _write(meter: Meter, matrix: Matrix, step: TileStep, tile: blas.Array) -> None:
    with meter.time("write"):
        meter.bytes_written += matrix.write_tile(step.i, step.j, tile, step.top)


def _factor_diagonal(meter: Meter, grid: TileGrid, j: int, tile: blas.Array, top: int) -> None:
    """Overwrite a square by its Cholesky factor, whose first `top` rows it has already."""
    below, square = tile[top:, :top], tile[top:, top:]
    if top:
        with meter.time("trsm"):
            blas.solve_lower_right(tile[:top, :top], below)
        with meter.time("syrk"):
            blas.rank_update(square, below)
    with meter.time("potrf"):
        failed = blas.cholesky_in_place(square)
        if failed:
            row = grid.rows(j).start + top + failed - 1
            raise NotPositiveDefiniteError(f"the pivot of row {row} is not positive", row)


def check_diagonal(diagonal: blas.Array, first: int = 0) -> None:
    """Raise NotFiniteError if a diagonal entry is infinite or NaN: then the matrix is not indefinite but overflows.

    Parameters
    ----------
    diagonal : ndarray of shape (n,)
    first : int
        Number of its first row.
    """
    is_finite = np.isfinite(diagonal)
    if not is_finite.all():
        bad = int(np.argmin(is_finite))
        raise NotFiniteError(
            f"a diagonal entry of the linear system (its rows are features in the primal form) is {diagonal[bad]}: "
            "k(x, z), or a product of features, leaves the range of float64 (1e308); expected finite entries: rescale "
            "the columns of X",
            first + bad,
        )


def _divide_by_diagonal(
    meter: Meter, matrix: Matrix, step: TileStep, tile: blas.Array, buffers: list[blas.Array]
) -> None:
    """Set tile ← tile L_jj⁻ᵀ, a panel of L_jj at a time, and write each panel of the tile as soon as it is final."""
    i, j, new = step.i, step.j, tile[step.top :]
    if isinstance(matrix, MemoryMatrix):
        with meter.time("trsm"):
            matrix.triangles[j].solve_right(new)
        return
    grid, panels = matrix.grid, matrix.grid.panels(j)
    writes = []
    first = grid.rows(j).start

    def load(k: int, slot: int) -> tuple[blas.Array, int]:
        return matrix.read_panel(j, panels[k], buffers[slot])

    for p, (panel, n_bytes) in zip(panels, prefetched(len(panels), load, meter, waits=True), strict=True):
        meter.bytes_read += n_bytes
        columns = grid.columns(p)
        start, stop = columns.start - first, columns.stop - first
        with meter.time("trsm"):
            blas.solve_lower_right(panel[start:stop], new[:, start:stop])
        writes.append(writer().submit(matrix.write_panel, i, p, tile, step.top))
        with meter.time("gemm"):
            blas.gemm(new[:, stop:], new[:, start:stop], panel[stop:], transpose_b=True, alpha=-1.0, beta=1.0)
    with meter.time("write"):
        meter.bytes_written += sum(write.result() for write in writes)


def cholesky_work(
    grid: TileGrid, columns_per_task: int = 0, itemsize: int = 8, cache_bytes: float = inf, n_stored: int = 1,
    kept_rows: int = 0,
) -> Work:  # fmt: skip
    """Work of the whole factorisation, forming the tiles of A not included.

    Parameters
    ----------
    grid : TileGrid
    columns_per_task : int
    itemsize : int
        Bytes of an entry of L. Rates are of float64, so an operation in float32, which takes half the time, counts half
        in `gemm_flops`.
    cache_bytes : float
        Size of the system's cache of files.
    n_stored : int
        Factors that are in the store at once.
    kept_rows : int
        Rows that the factor has already.
    """
    n_tiles, whole = grid.n_tiles, kept_rows // grid.tile
    read = _read_bytes(grid, kept_rows, itemsize)
    between = partial_bytes(grid, columns_per_task, itemsize, whole)
    new = grown_bytes(grid, kept_rows, itemsize) if kept_rows else factor_bytes(grid, itemsize)
    return Work(
        gemm_flops=(grid.n**3 - kept_rows**3) / 3 * itemsize / 8,
        read_bytes=read + between,
        cold_bytes=_cold_bytes(grid, cache_bytes, columns_per_task, itemsize, whole),
        written_bytes=new + between,
        disk_bytes=n_stored * new + between,
        n_tasks=n_tasks(n_tiles, columns_per_task, whole),
    )


def _cold_bytes(grid: TileGrid, cache_bytes: float, columns_per_task: int, itemsize: int, kept_tiles: int) -> float:
    """Bytes that a factorisation reads from the disk itself beside a system cache of files of this size.

    Column j needs the tiles to the left of it from row j on, nearly all of which column j − 1 has read: those that the
    cache could not hold come from the disk. The tiles of its own row it reads again for every tile, from the cache;
    those of a kept factor are read for the first time there.
    """
    if factor_bytes(grid, itemsize) <= cache_bytes:
        return 0.0
    tile, n_tiles = len(grid.panels(0)) * _panel_bytes(grid, itemsize), grid.n_tiles
    between = max(0.0, partial_bytes(grid, columns_per_task, itemsize, kept_tiles) - cache_bytes)
    of_kept = float(tile * (kept_tiles * (kept_tiles + 1) // 2))
    again = (float(j * (n_tiles - max(j, kept_tiles)) * tile) for j in range(n_tiles))
    return between + of_kept + sum(max(0.0, read - cache_bytes) for read in again)


def _panel_bytes(grid: TileGrid, itemsize: int) -> int:
    """Bytes on disk of one panel, checksum included."""
    return itemsize * grid.tile * grid.panel + OVERHEAD_BYTES


def partial_bytes(grid: TileGrid, columns_per_task: int, itemsize: int = 8, kept_tiles: int = 0) -> int:
    """Bytes on disk of the sums between updates, with `itemsize` bytes to an entry; none of the first tile rows."""
    if not columns_per_task:
        return 0
    panel = _panel_bytes(grid, itemsize)
    return sum(
        (n_updates(j, columns_per_task) - 1) * (grid.n_tiles - max(j, kept_tiles)) * len(grid.panels(j)) * panel
        for j in range(columns_per_task + 1, grid.n_tiles)  # earlier columns have one update
    )


def factor_bytes(grid: TileGrid, itemsize: int = 8) -> int:
    """Bytes on disk of the tiles of a triangle, with `itemsize` bytes to an entry."""
    # Columns of tiles are alike but for the last, which has one tile.
    n_full, last = grid.n_tiles * (grid.n_tiles + 1) // 2 - 1, grid.n_tiles - 1
    return (n_full * (grid.tile // grid.panel) + len(grid.panels(last))) * _panel_bytes(grid, itemsize)


def _read_bytes(grid: TileGrid, kept_rows: int, itemsize: int) -> float:
    """Bytes of L that all tasks read. Beside the diagonal they need of the tile row that grows its new rows only."""
    n_tiles, per_tile, (whole, top) = grid.n_tiles, len(grid.panels(0)), divmod(kept_rows, grid.tile)

    def panel_bytes(rows: int) -> int:
        return itemsize * rows * grid.panel + OVERHEAD_BYTES

    new = [panel_bytes(grid.tile)] * n_tiles
    if kept_rows:  # else an array is filled up to whole tiles
        new[-1] = panel_bytes(grid.height(n_tiles - 1))
    every, absent = [*new], [0] * n_tiles
    read = left = 0
    if top:
        old = panel_bytes(min(grid.tile, kept_rows))
        new[whole] = panel_bytes(grid.height(whole) - top)
        every[whole] = new[whole] + old
        n_absent = len(grid.panels(whole)) - -(-top // grid.panel)  # panels right of the kept rows
        absent[whole] = n_absent * old
        read = (len(grid.panels(whole)) - n_absent) * old  # the kept square
    for i in range(n_tiles):
        if i >= whole:
            read += per_tile * i * every[i] + per_tile * (i * (i - 1) // 2) * new[i] + left
        left += (per_tile * i + len(grid.panels(i))) * every[i] - absent[i]
    return float(read)


def grown_bytes(grid: TileGrid, kept_rows: int, itemsize: int = 8) -> int:
    """Bytes on disk of the rows of a factor that a smaller one does not have."""
    tile, n = grid.tile, grid.n
    first, last = -(-kept_rows // tile), n // tile  # tile rows that are new as a whole
    parts = [(kept_rows, min(n, first * tile))] if kept_rows % tile else []
    parts += [(last * tile, n)] if n % tile and n > first * tile else []
    n_whole = max(0, last * (last + 1) - first * (first + 1)) // 2 * (tile // grid.panel)
    of_parts = (-(-b // grid.panel) * (itemsize * (b - a) * grid.panel + OVERHEAD_BYTES) for a, b in parts)
    return n_whole * _panel_bytes(grid, itemsize) + sum(of_parts)


def cholesky_task_bytes(grid: TileGrid, n_right_sides: int, form_bytes: int, itemsize: int = 8) -> int:
    """Most memory of one task: the tile, then either `form_bytes`, to form it, or four panels and a padded copy.

    With tile rows of the right-hand sides, of which a task of the substitution holds four beside its panels.
    """
    tile = itemsize * grid.tile * padded_width(grid.tile, itemsize)
    panel = itemsize * grid.tile * grid.panel
    right_sides = 4 * 8 * grid.tile * n_right_sides
    return tile + max(form_bytes, 2 * N_SLOTS * panel + panel) + right_sides
