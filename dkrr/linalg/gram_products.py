"""Products of a symmetric matrix with a block of vectors: what conjugate gradient needs of a matrix.

Where the matrix is in tiles, a product is one pass over its lower triangle, cut into groups, a few to a worker. One
task multiplies one group by all vectors and uses every off-diagonal strip twice, for y_I += A_IJ p_J and
y_J += A_IJᵀ p_I, so that half the entries are formed or read. Tiles that fit are kept in the memory of the worker that
first formed them; the others are formed (or read) at every pass, and their strips never leave the cache.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dkrr import blas
from dkrr.cluster import Executor, Meter, RunRecord, Task, resident
from dkrr.cost import Work
from dkrr.kernels import Kernel
from dkrr.kernels.blocks import mirror_lower
from dkrr.linalg.sources import Strip, TileSource
from dkrr.store import TileGrid

Vectors = NDArray[np.float64]
Precision = Literal["float64", "float32"]


class Operator(ABC):
    """A symmetric matrix that is only multiplied by vectors, with the record of its tasks."""

    n: int
    """Rows (and columns)."""
    record: RunRecord

    @abstractmethod
    def multiply(
        self, vectors: Vectors, precision: Precision = "float64", columns: NDArray[np.intp] | None = None
    ) -> Vectors:
        """Product with a block of vectors.

        Parameters
        ----------
        vectors : ndarray of shape (n, m)
        precision : {"float64", "float32"}
            Precision of the entries and their products; sums are always float64.
        columns : ndarray of shape (m,), optional
            Right-hand sides that the vectors belong to, where those have their own matrices.

        Returns
        -------
        ndarray of shape (n, m)
        """


@dataclass
class LastProduct(Operator):
    """An operator that keeps its last product in float64, so that it is not computed again."""

    operator: Operator

    def __post_init__(self) -> None:
        self.n = self.operator.n
        self._vectors, self._product = np.empty((self.n, 0)), np.empty((self.n, 0))

    @property
    def record(self) -> RunRecord:  # type: ignore[override]
        """Record of all products."""
        return self.operator.record

    def multiply(
        self,
        vectors: Vectors,
        precision: Precision = "float64",
        columns: NDArray[np.intp] | None = None,
    ) -> Vectors:
        product = self.operator.multiply(vectors, precision, columns)
        if precision != "float64":
            return product
        width = self._vectors.shape[1]
        stop = vectors.shape[1] if columns is None else int(columns.max(initial=-1)) + 1
        if columns is None or len(columns) == stop >= width:
            self._vectors, self._product = vectors, product
        elif stop <= width:
            self._vectors, self._product = self._vectors.copy(), self._product.copy()
            self._vectors[:, columns], self._product[:, columns] = vectors, product
        # Else they are of some right-hand sides, as after a checkpoint, before there was a product of all.
        return product

    def of(self, vectors: Vectors) -> Vectors:
        """A V in float64, of shape (n, m): only columns that differ from the last ones are multiplied again."""
        width = vectors.shape[1]
        if self._vectors.shape[1] < width:
            return self.operator.multiply(vectors)
        # Others may have been multiplied beside them before.
        changed = np.flatnonzero((self._vectors[:, :width] != vectors).any(axis=0))
        product = self._product[:, :width]
        if len(changed) == 0:
            return product
        product = product.copy()
        product[:, changed] = self.operator.multiply(np.ascontiguousarray(vectors[:, changed]), "float64", changed)
        return product


GROUPS_PER_PLACE = 3
"""Groups of tiles that are not kept, for each place: a place that is early takes one more."""

SECONDS_PER_TILE = 0.4e-3
"""Time of a tile that is formed, besides its entries: calls, and threads that wait for the interpreter (measured:
0.7 ms with tiles of 313 rows and two threads)."""
KEPT_STRIP_BYTES = 4 * 2**20
"""Strips in which a tile that is kept is multiplied: lower ones let threads wait for the interpreter."""


@dataclass(frozen=True)
class TileGroup:
    """Tiles on or below the diagonal that one task multiplies."""

    source: TileSource
    grid: TileGrid
    tiles: tuple[tuple[int, int], ...]
    run: str
    """Name under which a worker keeps its tiles."""
    number: int
    keeps: Precision | None
    """Precision in which its tiles stay in memory; None: they are formed at every use."""
    groups_per_process: int
    """Groups that one process may keep."""


@dataclass
class TiledOperator(Operator):
    """Product with diag(c) A diag(c), A given by tiles.

    Parameters
    ----------
    source : TileSource
        Tiles of A.
    grid : TileGrid
    executor : Executor
    run : str
        Name of what is kept in memory; `close` releases it.
    slots : int
        Tasks that run at once.
    slots_per_process : int
        Tasks that run at once in one process.
    kept_tiles : int
        Tiles that every slot keeps in memory.
    keeps : {"float64", "float32"}
        Their precision. Float64 products of tiles kept in float32 are formed again.
    scale : ndarray of shape (n,), optional
        c.
    """

    source: TileSource
    grid: TileGrid
    executor: Executor
    run: str
    slots: int = 1
    slots_per_process: int = 1
    kept_tiles: int = 0
    keeps: Precision = "float64"
    scale: NDArray[np.float64] | None = None
    record: RunRecord = field(default_factory=RunRecord)

    def __post_init__(self) -> None:
        self.n = self.grid.n
        self._groups = self._cut()

    def multiply(
        self,
        vectors: Vectors,
        precision: Precision = "float64",
        columns: NDArray[np.intp] | None = None,  # noqa: ARG002
    ) -> Vectors:
        if self.scale is not None:
            vectors = vectors * self.scale[:, None]
        tasks = [
            Task(f"multiply-{group.number}", multiply_group, (group, precision), place=place)
            for group, place in self._groups
        ]
        sizes = np.ones(vectors.shape[1])
        if precision == "float32":
            sizes = blas.column_sizes(vectors)  # float32 has a small range
        product, record = self.executor.total(tasks, np.ascontiguousarray((vectors / sizes).astype(precision)))
        self.record.add(record)
        product *= sizes
        if self.scale is not None:
            product *= self.scale[:, None]
        return product  # type: ignore[no-any-return]

    def close(self) -> None:
        """Release the tiles in every process."""
        self.executor.forget(self.run)

    def _cut(self) -> list[tuple[TileGroup, int | None]]:
        """Groups, each with the place where its tiles are kept, if any."""
        grid = self.grid
        tiles = sorted(grid.lower(), key=lambda t: -tile_work(grid, *t))
        # Tiles on the diagonal save half as much for their memory, so they are kept last.
        n_kept = min(len(tiles), self.kept_tiles * self.slots)
        groups: list[tuple[list[tuple[int, int]], int | None]] = [
            (group, k)
            for k, group in enumerate(balanced_groups(grid, tiles[:n_kept], self.slots, self.kept_tiles))
            if group
        ]
        rest = tiles[n_kept:]
        groups += [(group, None) for group in balanced_groups(grid, rest, GROUPS_PER_PLACE * self.slots) if group]
        return [
            (
                TileGroup(
                    source=self.source,
                    grid=grid,
                    tiles=tuple(sorted(group)),
                    run=self.run,
                    number=number,
                    keeps=None if place is None else self.keeps,
                    groups_per_process=self.slots_per_process,
                ),
                place,
            )
            for number, (group, place) in enumerate(groups)
        ]


def tile_work(grid: TileGrid, i: int, j: int) -> float:
    """Entries of a tile that are formed: half of them on the diagonal."""
    return grid.height(i) * grid.height(j) * (0.5 if i == j else 1.0)


def balanced_groups(
    grid: TileGrid, tiles: Sequence[tuple[int, int]], n_groups: int, most: int | None = None
) -> list[list[tuple[int, int]]]:
    """Tiles, given the largest first, divided so that groups have about as much work, and at most `most` tiles each."""
    groups: list[list[tuple[int, int]]] = [[] for _ in range(n_groups)]
    work = [0.0] * n_groups
    for tile in tiles:
        open_groups = [k for k in range(n_groups) if most is None or len(groups[k]) < most]
        k = min(open_groups, key=lambda k: work[k])
        groups[k].append(tile)
        work[k] += tile_work(grid, *tile)
    return groups


def multiply_group(meter: Meter, group: TileGroup, precision: Precision, vectors: NDArray[Any]) -> Vectors:
    """Task: product of one group, and of its mirror image, with all vectors.

    Parameters
    ----------
    meter : Meter
    group : TileGroup
    precision : {"float64", "float32"}
    vectors : ndarray of shape (n, m)
        Vectors in that precision.

    Returns
    -------
    ndarray of shape (n, m)
    """
    total = np.zeros(vectors.shape)
    # Float32 has a small range: what overflows there is found in the sums, and computed again in float64.
    ignored: Any = {"over": "ignore", "invalid": "ignore"} if precision == "float32" else {}
    with meter.time("multiply"), np.errstate(**ignored):
        for rows, columns, strip in _strips(meter, group, precision):
            _add_product(total, strip, rows, vectors[columns], transpose=False)
            if rows != columns:
                _add_product(total, strip, columns, vectors[rows], transpose=True)
    return total


def _add_product(total: Vectors, strip: NDArray[Any], rows: slice, vectors: NDArray[Any], *, transpose: bool) -> None:
    if strip.dtype == np.float64:
        blas.gemm(total[rows], strip, vectors, transpose_a=transpose, beta=1.0)
        return
    product = np.empty((rows.stop - rows.start, vectors.shape[1]), strip.dtype)
    blas.gemm(product, strip, vectors, transpose_a=transpose)
    total[rows] += product


def _strips(meter: Meter, group: TileGroup, precision: Precision) -> Iterator[Strip]:
    keeps = group.keeps == precision and resident.reserve(group.run, "group", group.number, group.groups_per_process)
    for i, j in group.tiles:
        rows, columns = group.grid.rows(i), group.grid.rows(j)
        if not keeps:
            yield from group.source.strips(meter, rows, columns, precision)
            continue

        def form(rows: slice = rows, columns: slice = columns) -> NDArray[Any]:
            tile = np.empty((rows.stop - rows.start, columns.stop - columns.start), precision)
            for r, c, strip in group.source.strips(meter, rows, columns, precision):
                tile[r.start - rows.start : r.stop - rows.start, c.start - columns.start : c.stop - columns.start] = (
                    strip
                )
            if rows == columns:
                mirror_lower(tile)
            return tile

        yield from kept_strips(resident.get_or_create(group.run, (group.number, i, j), form), rows, columns)


def kept_strips(tile: NDArray[Any], rows: slice, columns: slice) -> Iterator[Strip]:
    """Yield a tile that is in memory in strips whose second product finds them in the last-level cache.

    A tile on the diagonal is one strip: being symmetric, it is used once.
    """
    if rows == columns:
        yield rows, columns, tile
        return
    height = max(1, KEPT_STRIP_BYTES // (tile.shape[1] * tile.itemsize))
    for top in range(0, len(tile), height):
        strip = tile[top : top + height]
        yield slice(rows.start + top, rows.start + top + len(strip)), columns, strip


USE_SECONDS = {"float64": 0.3e-9, "float32": 0.15e-9}
"""Time of both products of one entry, in cache, with one vector."""


KEPT_SECONDS = 0.05e-9
"""Time of an entry of a tile that is kept, besides its bytes: calls, and threads that wait for the interpreter."""
KEPT_PASSES = 1.5
"""Times that the bytes of a tile that is kept come from memory: strips stay in the last-level cache for their second
product, but for a part that other threads have displaced (measured with 12,000 and 20,000 rows, both precisions)."""


def narrow_product_slowdown(m: int) -> float:
    """Time of a product with few vectors over that of its operations (measured with 6: 4)."""
    return 1.0 + 48.0 / (12 + m)


def calls_work(n: int, tile: int, kept: float = 0.0) -> Work:
    """Work of one product besides its entries, with tiles of `tile` rows, a fraction `kept` of them in memory."""
    n_tiles = -(-n // tile)
    return Work(element_seconds=SECONDS_PER_TILE * (1.0 - kept) * n_tiles * (n_tiles + 1) / 2)


def pass_work(
    entry_seconds: float, n: int, m: int, precision: Precision = "float64", kept: float = 0.0, n_uses: int = 2
) -> Work:
    """Work of one product of an n × n matrix with m vectors.

    Parameters
    ----------
    entry_seconds : float
        Time to form one entry in that precision.
    n : int
    m : int
    precision : {"float64", "float32"}
        GEMM in float32 counts half its operations, since it is twice as fast.
    kept : float
        Fraction of the entries that are in memory and not formed.
    n_uses : int
        Entries of the lower triangle are used twice, by symmetry; 1: all entries, once.
    """
    low, n_entries = precision == "float32", float(n) ** 2 / n_uses
    formed = (1.0 - kept) * n_entries
    return Work(
        gemm_flops=narrow_product_slowdown(m) * (0.5 if low else 1.0) * 4.0 * (m - 1) * n_entries,
        element_seconds=formed * (entry_seconds + USE_SECONDS[precision]) + kept * n_entries * KEPT_SECONDS,
        memory_bytes=KEPT_PASSES * kept * n_entries * (4 if low else 8),
    )


def multiply_bytes(
    kernel: Kernel, n: int, tile: int, n_features: int, row_bytes: int, m: int, *, is_sparse: bool = False
) -> int:
    """Memory of one task besides what is kept: rows of two tiles, the kernel's temporaries, vectors and sums."""
    temporary = kernel.pieces_bytes(tile, tile, n_features, row_bytes if is_sparse else None)
    return 2 * tile * row_bytes + temporary + 4 * 8 * n * m
