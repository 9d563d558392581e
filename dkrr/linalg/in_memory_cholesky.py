"""Systems in the memory of the calling process: the tasks of `cholesky` on tiles that lie there.

A factor overwrites its tiles. The true residual is computed from tiles that are formed again, as out of
core, or from a matrix that is kept beside the factor, where forming it takes long. A small matrix is one tile, for
which no task is made; in float64 it is a `linalg.square.SquareMatrix`.
"""

import weakref
from collections.abc import Sequence
from copy import copy

import numpy as np
from numpy.typing import NDArray

from dkrr import blas
from dkrr.cluster import Executor, Meter, Progress, RunRecord, Share, Task
from dkrr.kernels.blocks import mirror_lower
from dkrr.linalg.cholesky import KeptFactor, TiledSystem, cholesky_tasks, factor_tile, n_updates
from dkrr.linalg.gram_products import Operator, Precision
from dkrr.linalg.sources import TileSource, cut_tile, shifted
from dkrr.linalg.square import ONE_TILE
from dkrr.store import MemoryMatrix, TileGrid

Array = NDArray[np.float64]

MEMORY_TILES = (512, 1024)
"""Smallest and largest number of rows of a tile in memory (512: products run at full rate, and squares on the diagonal
waste little)."""
MEMORY_TILES_PER_SIDE = 32
"""Number of tiles per side above which tiles in memory grow."""
TILE_BUFFER_BYTES = 8 * 2**20
"""Buffer of BLAS for each of its threads in products of tiles: the packed panels of two of them."""
FACTORED_SIDE = 6_000
"""Rows up to which a factor is not compared with conjugate gradient: it takes about a second, and gives variances."""
MEMORY_TASK_COLUMNS = 4
"""Tile columns that one task subtracts in memory, where sums between updates cost nothing: threads wait for no longer
than one task takes."""


def memory_grid(n: int) -> TileGrid:
    """Grid of a matrix in memory: one tile if it is small, else tiles that threads factor."""
    if n <= ONE_TILE:
        return TileGrid(n, n, n)
    n_tiles = -(-n // min(max(MEMORY_TILES[0], n // MEMORY_TILES_PER_SIDE), MEMORY_TILES[1]))
    tile = 8 * -(-n // (8 * n_tiles))
    return TileGrid(n, tile, tile)


GROWING_TILE = 512
"""Rows of a tile of a matrix in memory to which rows are added."""


def growing_grid(n: int) -> TileGrid:
    """Grid of a matrix in memory to which rows are added, however few it has now."""
    return TileGrid(n, GROWING_TILE, GROWING_TILE)


def memory_system(
    source: TileSource,
    shift: Array,
    matrix: MemoryMatrix,
    kept: MemoryMatrix | None = None,
    swept: Array | None = None,
) -> TiledSystem:
    """A + diag(s), to be factored in this process's memory.

    Parameters
    ----------
    source : TileSource
    shift : ndarray of shape (n,)
        s.
    matrix : MemoryMatrix
        Overwritten by the factor.
    kept : MemoryMatrix, optional
        Factor of the first rows, from which `matrix` has grown.
    swept : ndarray of shape (rows of `kept`, others), optional
        Solutions L⁻¹ B of that factor, B what A has above the diagonal in the columns of the other rows.
    """
    known = 0
    if kept is not None and swept is not None:
        known = kept.grid.n // matrix.grid.tile
        matrix.write_left(kept.grid.n, swept[: known * matrix.grid.tile].T)
    count = n_updates(matrix.grid.n_tiles - 1, MEMORY_TASK_COLUMNS)
    return TiledSystem(
        source,
        shift[:, None],
        matrix,
        columns_per_task=MEMORY_TASK_COLUMNS,
        partial=(matrix,) * (count - 1),
        kept=None if kept is None else KeptFactor(kept),
        known_columns=known,
    )


def factor_in_memory(system: TiledSystem, executor: Executor, progress: Progress | None = None) -> None:
    """Factor A + diag(s) in this process's memory: a single tile in this thread, others by an executor's.

    Parameters
    ----------
    system : TiledSystem
    executor : Executor
    progress : Progress, optional
        Display whose open stage is this work, with a total of 1.

    Raises
    ------
    NotPositiveDefiniteError
        If a pivot is not positive.
    NotFiniteError
        If a diagonal entry of A is infinite or NaN.
    """
    if system.grid.n_tiles == 1:
        (step,) = system.steps()
        factor_tile(Meter(), system, step)
    else:
        tasks = cholesky_tasks(system)
        executor.run(tasks, share_of(progress, tasks))


def share_of(progress: Progress | None, tasks: Sequence[Task], amount: float = 1.0) -> Progress:
    """Display of tasks that are a part of the open stage of another, whose total is 1."""
    return Progress() if progress is None else Share(progress, sum(task.flops for task in tasks), amount)


class InMemoryMatrix(TileSource, Operator):
    """A in memory; a factor in its `factor_buffer` has what is below the diagonal of its squares, where A is above.

    So A and one factor take little more memory than A; further ones that exist beside it have their own squares. Where
    A grows, a factor of its first rows grows in the same way, and both share the squares that they had.

    Parameters
    ----------
    matrix : MemoryMatrix
        Complete, its squares symmetric; they are overwritten below the diagonal.
    """

    def __init__(self, matrix: MemoryMatrix) -> None:
        grid = matrix.grid
        self.n, self.grid, self.record = grid.n, grid, RunRecord()
        self._matrix, self._is_whole = matrix, [True] * grid.n_tiles
        self.diagonal = np.concatenate([matrix.tile_buffer(i, i).diagonal() for i in range(grid.n_tiles)])
        self._sharing = list[weakref.ref[MemoryMatrix]]()
        """References to factors that have the squares, also of what A has grown from."""
        self._left_out = np.empty(0, np.intp)

    @classmethod
    def of_source(
        cls, source: TileSource, grid: TileGrid, executor: Executor, progress: Progress | None = None
    ) -> "InMemoryMatrix":
        """Form all tiles of another source, by tasks if they are several, which are the open stage of a display."""
        matrix = MemoryMatrix(grid)
        if grid.n_tiles == 1:
            form_tile(Meter(), source, matrix, 0, 0)
        else:
            tasks = [
                Task(f"tile-{i}-{j}", form_tile, (source, matrix, i, j), flops=grid.height(i) * grid.height(j))
                for i, j in grid.lower()
            ]
            executor.run(tasks, share_of(progress, tasks))
        return cls(matrix)

    def grown(
        self, source: TileSource, grid: TileGrid, executor: Executor, progress: Progress | None = None
    ) -> "InMemoryMatrix":
        """A of more rows, of which only the new ones are formed; this one and its factors stay what they are.

        Parameters
        ----------
        source : TileSource
            All tiles of the larger matrix, whose first rows are those of this one.
        grid : TileGrid
            Of the same tile.
        executor : Executor
        progress : Progress, optional
            Display whose open stage is this work, with a total of 1.
        """
        whole, top = divmod(self.n, grid.tile)
        matrix = self._matrix.grown(grid)
        tasks = [
            Task(
                f"tile-{i}-{j}",
                form_tile,
                (source, matrix, i, j, top if i == whole else 0),
                flops=grid.height(i) * grid.height(j),
            )
            for i, j in grid.lower()
            if i >= whole
        ]
        executor.run(tasks, share_of(progress, tasks))
        grown = type(self)(matrix)
        grown.diagonal[: self.n] = self.diagonal  # where a factor has its own
        for one in self, grown:  # in squares of both, factors of either may be
            one._is_whole[: whole + 1] = [False] * len(one._is_whole[: whole + 1])
        grown._sharing = self._sharing
        return grown

    def leaving_out(self, rows: NDArray[np.intp]) -> "InMemoryMatrix":
        """A whose products have zeros for these rows and columns; its tiles, and so its factors, have all of them."""
        other = copy(self)  # which shares the tiles and what is known of them
        other._left_out = rows
        return other

    def factor_buffer(self) -> MemoryMatrix:
        """Empty matrix for a factor, with the squares of A unless another factor that still exists has them."""
        self._sharing[:] = [one for one in self._sharing if one() is not None]
        if self._sharing:
            return MemoryMatrix(self.grid)
        return self._shared(self._matrix.factor_buffer())

    def grown_factor(self, factor: MemoryMatrix) -> MemoryMatrix:
        """Matrix for a factor that grows as A has grown: with its rows, and the squares of A if it had them."""
        grown = factor.grown(self.grid)
        with_squares = grown.with_squares_of(self._matrix)
        return grown if with_squares is grown else self._shared(with_squares)

    def _shared(self, factor: MemoryMatrix) -> MemoryMatrix:
        self._sharing.append(weakref.ref(factor))
        return factor

    def fill(self, meter: Meter, out: NDArray[np.float64], rows: slice, columns: slice) -> None:  # noqa: ARG002
        i, j = rows.start // self.grid.tile, columns.start // self.grid.tile
        tile = self._matrix.tile_buffer(i, j)
        here, there = shifted(rows, -self.grid.rows(i).start), shifted(columns, -self.grid.rows(j).start)
        if i != j:
            out[...] = tile[here, there]
            return
        block = tile[here, there]
        is_own = out.ctypes.data == block.ctypes.data
        if here != there:  # below the diagonal, where a factor may be
            out[...] = tile[there, here].T
        elif not is_own:
            out[...] = block
            mirror_lower(out.T)
        elif not self._is_whole[i]:
            mirror_lower(block.T)
        if here == there:
            np.einsum("ii->i", out)[:] = self.diagonal[rows]
        if is_own:
            self._is_whole[i] = False  # a factor comes there

    def multiply(
        self,
        vectors: Array,
        precision: Precision = "float64",  # noqa: ARG002
        columns: NDArray[np.intp] | None = None,  # noqa: ARG002
    ) -> Array:
        """See base class; always in float64."""
        out, v = np.zeros(vectors.shape), np.ascontiguousarray(vectors, np.float64)
        if len(self._left_out):
            v = v.copy()
            v[self._left_out] = 0.0
        for i in range(self.grid.n_tiles):
            rows = self.grid.rows(i)
            if i:
                left, _ = self._matrix.read_strip(i, slice(0, rows.start), v)
                for here, there, strip in cut_tile(left, rows, slice(0, rows.start)):
                    blas.gemm(out[here], strip, v[there], beta=1.0)
                    blas.gemm(out[there], strip, v[here], transpose_a=True, beta=1.0)
            self._multiply_square(i, out[rows], v[rows])
        out[self._left_out] = 0.0
        return out

    def _multiply_square(self, i: int, out: Array, vectors: Array) -> None:
        square = self._matrix.tile_buffer(i, i)
        diagonal = np.einsum("ii->i", square)
        # That of L is replaced for the time of the product: to subtract it afterwards would cancel, L being of the size
        # of √A.
        of_factor = None if self._is_whole[i] else diagonal.copy()
        try:
            diagonal[:] = self.diagonal[self.grid.rows(i)]
            blas.symm(out, square, vectors, beta=1.0)
        finally:
            if of_factor is not None:
                diagonal[:] = of_factor


def form_tile(meter: Meter, source: TileSource, matrix: MemoryMatrix, i: int, j: int, top: int = 0) -> None:
    """Task: form one tile where it stays, those on the diagonal whole; its first `top` rows are there already."""
    tile, columns = matrix.tile_buffer(i, j), matrix.grid.rows(j)
    rows = slice(matrix.grid.rows(i).start + top, matrix.grid.rows(i).stop)
    if i != j:
        source.fill(meter, tile[top:], rows, columns)
        return
    if top:
        source.fill(meter, tile[top:, :top], rows, slice(columns.start, rows.start))
        tile[:top, top:] = tile[top:, :top].T
    source.fill(meter, tile[top:, top:], rows, rows)
    mirror_lower(tile[top:, top:])


def inverse_bytes(grid: TileGrid, itemsize: int = 8) -> int:
    """Most memory of the inverted blocks by which the tasks of a column of several tiles share its solutions."""
    return itemsize * grid.n * blas.INVERSE_SIDE


def factoring_bytes(grid: TileGrid, m: int, threads: int, itemsize: int = 8) -> int:
    """Memory of BLAS and of inverted blocks, where threads factor tiles and solve for m right-hand sides."""
    tiles = TILE_BUFFER_BYTES * itemsize // 8 + 4096 * m
    buffers = blas.BYTES_PER_THREAD if grid.n_tiles == 1 else min(blas.BYTES_PER_THREAD, tiles)
    return threads * buffers + (inverse_bytes(grid, itemsize) if grid.n_tiles > 1 else 0)


def memory_bytes(grid: TileGrid, *, keeps: bool) -> int:
    """Memory of a factor, and of a matrix beside it, which shares the squares on the diagonal."""
    full = grid.n_tiles - 1
    last = grid.n - full * grid.tile
    squares = full * grid.tile**2 + last**2
    left = grid.tile * (full * (full - 1) // 2 * grid.tile + full * last)
    return 8 * (squares + (2 if keeps else 1) * left)
