"""Small systems in tiles on disk, the matrices that they stand for, and what several tests of algorithms ask."""

import tracemalloc
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import strategies as st

from dkrr import blas
from dkrr.cluster import Meter, Progress, RunRecord, SerialExecutor, resident
from dkrr.data import MemoryRows
from dkrr.kernels.blocks import mirror_lower
from dkrr.linalg.cholesky import TiledSystem, cholesky_tasks, n_updates
from dkrr.linalg.column_sources import MatrixColumns
from dkrr.linalg.gram_products import Operator
from dkrr.linalg.pivoted_cholesky import PivotedCholesky
from dkrr.linalg.sources import MatrixTiles
from dkrr.store import ChunkedArray, TileGrid
from dkrr.store.paths import local_path
from tests.stores import flip, tiled

RAGGED = TileGrid(n=47, tile=12, panel=4)
"""Four tiles, the last with eleven rows, and its last panel with three columns."""
MANY = TileGrid(n=40, tile=6, panel=3)
"""Seven tiles, the last with four rows."""


@pytest.fixture(autouse=True, scope="module")
def one_blas_thread() -> Iterator[None]:
    """For modules that import it: on small problems by the hundred BLAS threads only wait for each other."""
    with blas.one_thread():
        yield
    for run in [run for run in resident._runs if run.startswith("test-")]:
        resident.forget(run)


class RowsElsewhere(MemoryRows):
    """Rows whose reading counts, as from a store."""

    is_in_memory = False


@dataclass
class MatrixOperator(Operator):
    """Products with a matrix in memory, which are noted: precision and number of columns."""

    matrix: np.ndarray
    record: RunRecord = field(default_factory=RunRecord)
    products: list = field(default_factory=list)

    @property
    def n(self):
        return len(self.matrix)

    def multiply(self, vectors, precision="float64", columns=None):
        self.products.append((precision, vectors.shape[1]))
        return (self.matrix.astype(precision) @ vectors.astype(precision)).astype(np.float64)


@st.composite
def grids(draw, most=30):
    """Grids of all kinds: one row, one tile, ragged tiles and panels; at most seven tiles per side, which are files."""
    panel = draw(st.integers(1, 7))
    tile = panel * draw(st.integers(1, 4))
    return TileGrid(draw(st.integers(1, min(most, 7 * tile))), tile, panel)


def random(*shape, seed=0):
    """Normal numbers of a shape."""
    return np.random.default_rng(seed).standard_normal(shape)


def positive_definite(n, seed=0):
    """Well-conditioned symmetric matrix (n, n)."""
    A = np.random.default_rng(seed).standard_normal((n, n))
    return A @ A.T / n + np.eye(n)


def partial_factor(A, rank, slots=2, capacity=999, executor=None, **settings):
    """Partial Cholesky factor of a matrix, or of a source of columns; its run is forgotten after the module."""
    columns = MatrixColumns(MemoryRows(A)) if isinstance(A, np.ndarray) else A
    run = f"test-{uuid.uuid4().hex}"
    found = PivotedCholesky(columns, executor or SerialExecutor(), run, slots, capacity, **settings)
    found.grow(rank)
    return found


def rows_of(factor):
    """F of a partial Cholesky factorisation."""
    return factor.expand(np.eye(factor.rank))


def dense_roots(scale, unit=None):
    """Dense C of each system of a Newton step, and 1s for its intercepts; `unit` couples the classes of a softmax."""
    n, m = scale.shape
    if unit is None:
        return [np.diag(c) for c in scale.T], np.ones((n, 1))
    C = np.zeros((n * m, n * m))
    for i in range(n):
        here = slice(i * m, (i + 1) * m)
        C[here, here] = np.diag(scale[i]) @ (np.eye(m) - np.outer(unit[i], unit[i]))
    return [C], np.tile(np.eye(m), (n, 1))


def orthogonal_to(H):
    """Projection onto what is orthogonal to the columns of H."""
    return np.eye(len(H)) - H @ np.linalg.pinv(H.T @ H, rcond=1e-12, hermitian=True) @ H.T


def failing_at(row, n):
    """Symmetric matrix whose first pivot that is not positive is that of `row`."""
    A = positive_definite(n)
    A[row, row] = A[row, :row] @ np.linalg.solve(A[:row, :row], A[:row, row]) - 0.01 if row else -0.01
    return A


def vectors(folder, grid, data):
    """Stored array (n, m) in chunks of tile rows."""
    array = ChunkedArray.create(f"{folder}/{uuid.uuid4().hex}", data.shape, (grid.tile, data.shape[1]))
    array.fill(data)
    return array


def empty_vectors(folder, grid, m):
    """The same, with no chunk yet."""
    return ChunkedArray.create(f"{folder}/{uuid.uuid4().hex}", (grid.n, m), (grid.tile, m))


def empty_tiles(folder, grid, dtype="float64"):
    """Stored matrix with no tile yet."""
    return tiled(f"{folder}/{uuid.uuid4().hex}", grid, dtype)


def tiles_of(folder, grid, A, dtype="float64"):
    """Lower tiles of a matrix, stored."""
    matrix = empty_tiles(folder, grid, dtype)
    for i, j in grid.lower():
        matrix.write_tile(i, j, A[grid.rows(i), grid.rows(j)])
    return matrix


@dataclass(frozen=True)
class Case:
    """(A + diag(s)) X = B, whole, and its matrix in tiles."""

    A: np.ndarray
    shift: np.ndarray
    B: np.ndarray
    system: TiledSystem

    @property
    def shifted(self):
        return self.A + np.diag(self.shift)


def make_case(folder, grid, m=2, A=None, seed=0, columns_per_task=0, dtype="float64"):
    """System of a grid, nothing of it computed; with seed=0 the shift is zero."""
    rng = np.random.default_rng(seed)
    A = positive_definite(grid.n, seed) if A is None else A
    shift, B = rng.uniform(0.0, 1.0, grid.n) if seed else np.zeros(grid.n), rng.standard_normal((grid.n, m))
    system = TiledSystem(
        source=MatrixTiles(RowsElsewhere(A)),
        shift=vectors(folder, grid, shift[:, None]),
        factor=empty_tiles(folder, grid, dtype),
        columns_per_task=columns_per_task,
        partial=tuple(
            empty_tiles(folder, grid, dtype) for _ in range(n_updates(grid.n_tiles - 1, columns_per_task) - 1)
        ),
    )
    return Case(A, shift, B, system)


def run(tasks):
    """Run tasks in this process, in the order of the rule."""
    return SerialExecutor().run(tasks, Progress())


def factored(folder, grid, **settings):
    """System with its factor."""
    case = make_case(folder, grid, **settings)
    run(cholesky_tasks(case.system))
    return case


def run_in_any_order(tasks, chance, most=1):
    """Run each task so often, one after the other in some allowed order, as workers may."""
    left, done = list(tasks), set()
    while left:
        task = chance.choice([t for t in left if done.issuperset(t.depends)])
        for _ in range(chance.randint(1, most)):
            task.function(Meter(), *task.arguments)
        left.remove(task)
        done.add(task.key)


def waits_for(tasks):
    """For each key, the keys of all tasks that are complete before it starts, whoever executes."""
    depends, closure = {t.key: list(t.depends) for t in tasks}, {}

    def before(key):
        if key not in closure:
            direct = [d for d in depends[key] if d in depends]
            closure[key] = set(direct).union(*(before(d) for d in direct))
        return closure[key]

    return {key: before(key) for key in depends}


def files_of(array):
    """Bytes of every chunk of a stored array, by name."""
    return {p.name: p.read_bytes() for p in local_path(array.url).iterdir() if p.name.startswith("c.")}


def restore_chunks(array, files):
    """Write what `files_of` read, and delete every other chunk."""
    folder = local_path(array.url)
    for name in files_of(array).keys() - files.keys():
        (folder / name).unlink()
    for name, content in files.items():
        (folder / name).write_bytes(content)


def remove_chunks(array, coordinates):
    """Delete chunks of a stored array."""
    for c in coordinates:
        (local_path(array.url) / ("c." + ".".join(map(str, c)))).unlink()


def flip_a_bit(array, name):
    """Damage a chunk of a stored array."""
    flip(local_path(array.url) / name, 7)


def whole(source, grid):
    """Symmetric matrix that a source of tiles stands for, from its lower tiles."""
    A = np.full((grid.n, grid.n), np.nan)
    for i, j in grid.lower():
        tile = np.full((grid.height(i), grid.height(j)), np.nan)
        source.fill(Meter(), tile, grid.rows(i), grid.rows(j))
        A[grid.rows(i), grid.rows(j)] = tile
    assert not np.isnan(A[np.tri(grid.n, dtype=bool)]).any()
    mirror_lower(A)
    return A


def traced_peak(function):
    """Most bytes that Python and NumPy had allocated at once in a call."""
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
