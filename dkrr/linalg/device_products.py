"""Products with K on a GPU: blocks of K are formed there, multiplied and forgotten; vectors stay on the host.

`DeviceExecutor` is an executor of the calling process that does some tasks on a device: products of tiles, and those of
the rows of a partial factor. It does all others as `SerialExecutor` does, so that conjugate gradient, Newton's method,
searches and variances need not know where their products are computed. Rows are on the device once for each type, in
ranges, of which the oldest go where not all fit; the factor is there as a whole.

Entries and products have the precision that a product asks for. Sums of products in float32 are added in float64. Where
the device has no room for a block, smaller ones take its place.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from dkrr.cluster import Meter, SerialExecutor, Task
from dkrr.cluster.tasks import TaskRecord
from dkrr.data import Rows
from dkrr.data.rows import Block, dense
from dkrr.errors import InputError, MemoryLimitError
from dkrr.kernels import Kernel
from dkrr.kernels.device import Device, DeviceArray, DeviceKernel, Prepared
from dkrr.linalg import factor_rows
from dkrr.linalg.column_sources import DividedColumns, GramColumns
from dkrr.linalg.cross_gram_products import ComputedCrossGram
from dkrr.linalg.factor_rows import (
    FactorRows,
    KeptColumns,
    LostRowsError,
    NewColumns,
    rounded,
    weights_within,
)
from dkrr.linalg.gram_products import Precision, TileGroup, multiply_group
from dkrr.linalg.sources import GramTiles
from dkrr.store import ChunkedArray
from dkrr.text import format_bytes

Array = NDArray[np.float64]

STRIP_ROWS = 4096
"""Columns of a block, and rows of F that are worked on at once: as many products are summed in float32 at most, before
they are added in float64."""
MIN_SIDE = 256
"""Rows of a block below which no smaller one is tried."""
SAMPLED_ROWS, SAMPLED_BYTES = 1024, 16 * 2**20
"""Most rows, and bytes of rows, whose medians are the origin."""


@dataclass
class DeviceRows:
    """Rows on a device in ranges, as blocks of a kernel need them.

    Parameters
    ----------
    rows : Rows
        Dense rows.
    kernel : DeviceKernel
    height : int
        Rows of a range.
    most_bytes : float
        Memory for ranges: beyond, the oldest go.
    """

    rows: Rows
    kernel: DeviceKernel
    height: int
    most_bytes: float
    _kept: OrderedDict[tuple[int, str], Prepared] = field(default_factory=OrderedDict)
    _bytes: int = 0

    @classmethod
    def of(cls, kernel: Kernel, rows: Rows, device: Device, height: int, most_bytes: float) -> Self:
        """Rows with the medians of some of them as origin, which a few rows far away do not move."""
        n, d = rows.shape
        sample = np.linspace(0, n - 1, max(1, min(n, SAMPLED_ROWS, SAMPLED_BYTES // (8 * d)))).astype(np.intp)
        origin = np.median(np.asarray(rows.take(sample), np.float64), axis=0)
        return cls(rows, DeviceKernel(kernel.resolved(d), device, origin), height, most_bytes)

    def cuts(self, start: int, stop: int) -> Iterator[slice]:
        """Ranges of rows, none across a multiple of the height."""
        while start < stop:
            end = min(stop, (start // self.height + 1) * self.height)
            yield slice(start, end)
            start = end

    def __getitem__(self, key: tuple[slice, str]) -> Prepared:
        """Rows within one range, in a precision."""
        rows, dtype = key
        k = rows.start // self.height
        first = k * self.height
        found = self._kept.get((k, dtype))
        if found is None:
            host = self.rows.read(first, min(first + self.height, self.rows.shape[0]))
            found = self.kernel.rows(np.asarray(host), dtype)
            self._kept[k, dtype] = found
            self._bytes += found.n_bytes
            while self._bytes > self.most_bytes and len(self._kept) > 2:  # both sides of a block stay
                self._bytes -= self._kept.popitem(last=False)[1].n_bytes
        self._kept.move_to_end((k, dtype))
        return found[rows.start - first : rows.stop - first]


class FactorOnDevice:
    """Rows of a partial factor F: for every strip of rows, columns as they were added, the first ones in float64.

    Parameters
    ----------
    rows : DeviceRows
    task : FactorRows
        Its rows, and their columns of A / c.
    """

    def __init__(self, rows: DeviceRows, task: FactorRows) -> None:
        columns = task.columns
        assert isinstance(columns, DividedColumns)
        self._rows, self._unit, self._device = rows, columns.unit, rows.kernel.device
        self.start, self._stop, self._number = task.start, task.stop, task.number
        self._clear()

    def _clear(self) -> None:
        self.rank = 0
        self._parts: dict[int, list[DeviceArray]] = {cut.start: [] for cut in self.cuts()}
        """Blocks of columns, none of which has both first ones and others."""

    def cuts(self) -> Iterator[slice]:
        """Strips of rows, each within one range on the device."""
        for cut in self._rows.cuts(self.start, self._stop):
            yield from _slices(cut, STRIP_ROWS)

    def strips(self) -> Iterator[tuple[slice, DeviceArray, DeviceArray]]:
        """Rows of F a strip at a time, as they are stored: the first columns, and the others."""
        for cut in self.cuts():
            yield cut, *self._strip(cut)

    def _wide(self, cut: slice) -> DeviceArray:
        """Rows of F in float64."""
        head, tail = self._strip(cut)
        return self._device.xp.concat([head, self._device.cast(tail, "float64")], axis=1) if tail.shape[1] else head

    def _strip(self, cut: slice) -> tuple[DeviceArray, DeviceArray]:
        parts = self._parts[cut.start]
        if not parts:
            raise LostRowsError(self._number)
        low = [part for part in parts if part.dtype != self._device.xp.float64]
        high = parts[: len(parts) - len(low)]
        joined = [one[0] if len(one) == 1 else self._device.xp.concat(one, axis=1) for one in (high, low) if one]
        parts[:] = joined
        return joined[0], joined[1] if low else joined[0][:, self.rank :]

    def _stored(self, block: DeviceArray, first: int) -> list[DeviceArray]:
        """Columns from a number on, as they are stored: the first ones of F, and others."""
        n_head = max(0, min(factor_rows.HEAD_COLUMNS - first, int(block.shape[1])))
        parts = [block[:, :n_head], self._device.cast(block[:, n_head:], "float32")]
        return [part for part in parts if part.shape[1]]

    # Tasks, each with the meaning and the values of its function in `factor_rows`

    def extend(self, _: Meter, new: NewColumns) -> Array:
        """Add columns; the squares of the new entries summed over each row, of shape (n,)."""
        if new.rank == 0:
            self._clear()
        if self.rank != new.rank:
            raise LostRowsError(self._number)
        device, squares, added = self._device, np.empty(self._stop - self.start), dict[int, list[DeviceArray]]()
        above, divide = device.array(new.above), self._inverse(new.pivot_factor)
        taken = self._rows.kernel.rows(np.asarray(new.taken), "float64")
        for cut in self.cuts():
            block, first = self._columns(cut, taken), 0
            for part in self._parts[cut.start]:  # not joined yet: each round adds one
                stop = first + int(part.shape[1])
                precision: Precision = "float64" if first < factor_rows.HEAD_COLUMNS else new.precision
                right = device.cast(above[:, first:stop], precision).T
                block -= device.cast(device.xp.matmul(device.cast(part, precision), right), "float64")
                first = stop
            block = device.xp.matmul(block, divide)
            squares[cut.start - self.start : cut.stop - self.start] = device.host(device.xp.sum(block * block, axis=1))
            added[cut.start] = self._stored(block, self.rank)
        for start, parts in added.items():  # at the end, so that an error leaves F as it was
            self._parts[start] += parts
        self.rank += len(new.pivot_factor)
        return squares

    def rebuild(self, meter: Meter, pivots: tuple[Block, Array]) -> None:
        """Compute all rows from the pivots."""
        self._clear()
        self.complete(meter, (self.start, *pivots))

    def complete(self, _: Meter, new: tuple[int, Block, Array]) -> None:
        """Compute the strips of rows that reach beyond a number from the pivots, those before being there."""
        first, taken, lower = new
        divide = self._inverse(lower)
        pivots = self._rows.kernel.rows(np.asarray(taken), "float64")
        for cut in self.cuts():
            if cut.stop > first:
                block = self._device.xp.matmul(self._columns(cut, pivots), divide)
                self._parts[cut.start] = self._stored(block, 0)
        self.rank = len(lower)

    def _columns(self, cut: slice, taken: Prepared) -> DeviceArray:
        """Taken columns of A / c in float64."""
        block = self._rows.kernel.block(self._rows[cut, "float64"], taken, "float64")
        return block if self._unit == 1.0 else block * (1.0 / self._unit)

    def _inverse(self, lower: Array) -> DeviceArray:
        """L⁻ᵀ: inverted on the host, and multiplied by where the rows are."""
        if not len(lower):
            return self._device.array(lower)
        return self._device.array(solve_triangular(lower, np.eye(len(lower)), lower=True).T)

    def gram(self, _: Meter, part: slice, given: tuple[Array, Precision]) -> Array:
        """Fᵀ diag(v) F of a part of the rows, of shape (r, r), for v, of shape (n,), and a precision."""
        device, precision, weights = self._device, given[1], weights_within(part, given[0])
        total = device.zeros((self.rank, self.rank))
        head = self.rank if precision == "float64" else min(factor_rows.HEAD_COLUMNS, self.rank)
        for cut, _, tail in self.strips():
            if weights[cut].any():  # the rows of one fold may be a few of all
                v, wide = device.array(weights[cut, None]), self._wide(cut)
                total[:, :head] += device.xp.matmul(wide.T, wide[:, :head] * v)
                if head < self.rank:
                    product = device.xp.matmul(tail.T, tail * device.cast(v, precision))
                    total[head:, head:] += device.cast(product, "float64")
        return device.host(total)

    def project(self, _: Meter, given: tuple[Array, Precision]) -> Array:
        """Fᵀ V, of shape (r, m), for V, of shape (n, m), and a precision."""
        device, (vectors, precision) = self._device, given
        head = factor_rows.HEAD_COLUMNS if precision == "float32" else self.rank
        total, right = device.zeros((self.rank, vectors.shape[1])), device.array(vectors)
        low_right, sizes = None, np.ones(1)
        if head < self.rank:
            low, sizes = rounded(vectors)
            low_right = device.array(low)
        for cut, first, tail in self.strips():
            wide = first if low_right is not None else self._wide(cut)
            total[:head, :] += device.xp.matmul(wide.T, right[cut, :])
            if low_right is not None:
                product = device.xp.matmul(tail.T, low_right[cut, :])
                total[head:, :] += device.cast(product, "float64")
        found = device.host(total)
        found[head:] *= sizes
        return found

    def expand(self, _: Meter, given: tuple[Array, Precision]) -> Array:
        """F U, of shape (n, m), for U, of shape (r, m), and a precision."""
        device, (vectors, precision) = self._device, given
        out = np.empty((self._stop - self.start, vectors.shape[1]))
        head = factor_rows.HEAD_COLUMNS if precision == "float32" else self.rank
        right, low_right, sizes = device.array(vectors[:head]), None, np.ones(1)
        if head < self.rank:
            low, sizes = rounded(vectors[head:])
            low_right = device.array(low)
        for cut, first, tail in self.strips():
            here = out[cut.start - self.start : cut.stop - self.start]
            here[...] = device.host(device.xp.matmul(first if low_right is not None else self._wide(cut), right))
            if low_right is not None:
                here += device.host(device.xp.matmul(tail, low_right)) * sizes
        return out

    def square_rows(self, _: Meter, __: None) -> Array:
        """Squares of F summed over each row."""
        device = self._device
        wide = (self._wide(cut) for cut in self.cuts())
        return np.concatenate([device.host(device.xp.sum(strip * strip, axis=1)) for strip in wide])

    def square_columns(self, _: Meter, weights: Array) -> Array:
        """Squares of F times v summed over its rows, of shape (r,)."""
        device, total = self._device, np.zeros(self.rank)
        for cut in self.cuts():
            wide = self._wide(cut)
            total += device.host(device.xp.sum(wide * wide * device.array(weights[cut, None]), axis=0))
        return total

    def write(self, meter: Meter, new: tuple[int, Sequence[ChunkedArray]]) -> None:
        """Write the columns from a number on to an array."""
        first, array = new[0], new[1][self._number]
        height, n_head = array.chunks[0], min(factor_rows.HEAD_COLUMNS, self.rank)
        is_tail = first >= n_head  # an array has first columns or others, not both
        columns = slice(first - is_tail * n_head, first - is_tail * n_head + array.shape[1])
        with meter.time("write"):
            for k in range(array.grid[0]):
                top, bottom = self.start + k * height, min(self.start + (k + 1) * height, self._stop)
                parts = []
                for cut in self.cuts():
                    begin, end = max(cut.start, top), min(cut.stop, bottom)
                    if begin < end:
                        stored = self._strip(cut)[is_tail]
                        parts.append(self._device.host(stored[begin - cut.start : end - cut.start, columns]))
                meter.bytes_written += array.write((k, 0), np.ascontiguousarray(np.concatenate(parts)))

    def read(self, meter: Meter, kept: Sequence[KeptColumns]) -> None:
        """Read columns that an earlier run wrote; strips of which it had not all rows stay empty."""
        self._clear()
        read = max(first_row + array.shape[0] for first_row, array in kept[-1].segments)
        for cut in self.cuts():
            if cut.stop > read:
                break
            block = np.empty((cut.stop - cut.start, kept[-1].stop))
            for one in kept:
                for first_row, array in one.segments:
                    begin, end = max(first_row, cut.start), min(first_row + array.shape[0], cut.stop)
                    if begin < end:
                        with meter.time("read"):
                            found = array.read_rows(begin - first_row, end - first_row)
                        meter.bytes_read += found.nbytes
                        block[begin - cut.start : end - cut.start, one.first : one.stop] = found
            self._parts[cut.start] = self._stored(self._device.array(block), 0)
        self.rank = kept[-1].stop if read >= self._stop else 0


class DeviceExecutor(SerialExecutor):
    """Does products with K, and with a partial factor of it, on a device, and other tasks here; a context manager.

    Parameters
    ----------
    device : Device
    height : int
        Rows of a range that is kept on the device, and most rows of a block.
    row_bytes : float
        Memory of the device for rows.
    """

    def __init__(self, device: Device, height: int, row_bytes: float) -> None:
        self.device, self._height, self._row_bytes = device, height, row_bytes
        self._side = height
        """Most rows of a block; smaller once the device had no room for one."""
        self._rows: dict[int, DeviceRows] = {}
        """By the identity of the rows, which they hold."""
        self._factors: dict[tuple[str, int], FactorOnDevice] = {}
        """By run and number of the segment."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release everything on the device."""
        self._rows.clear()
        self._factors.clear()
        self.device.release()

    def forget(self, run: str) -> None:
        super().forget(run)
        self._factors = {key: one for key, one in self._factors.items() if key[0] != run}

    def _records(self, tasks: Sequence[Task], shared: Any) -> Iterator[TaskRecord]:
        return super()._records([self._placed(task) for task in tasks], shared)

    def _placed(self, task: Task) -> Task:
        """Task whose function runs on the device, if that has it."""
        if task.function is multiply_group:
            return replace(task, function=partial(self.within_memory, self.multiply))
        if (do := OF_FACTOR.get(task.function)) is not None:
            return replace(task, function=partial(self.within_memory, self._of_factor, do))
        return task

    def within_memory(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Do some work on the device.

        Raises
        ------
        MemoryLimitError
            If the device has no room for it.
        """
        with suppress(self.device.out_of_memory):
            return work(*arguments)
        # Outside of a handler, whose traceback would hold what is on the device.
        self.device.release()
        free, whole = self.device.memory()
        raise MemoryLimitError(
            f"the GPU has not memory enough: {format_bytes(free)} of its {format_bytes(whole)} are free now; expected "
            f"that other programs leave more, a preconditioner of a lower rank, or device='cpu'"
        )

    def rows_of(self, kernel: Kernel, rows: Rows) -> DeviceRows:
        """Rows on the device."""
        found = self._rows.get(id(rows))
        if found is None or found.kernel.kernel != kernel:
            found = DeviceRows.of(kernel, rows, self.device, self._height, self._row_bytes)
            self._rows[id(rows)] = found
        return found

    # Products of tiles

    def multiply(self, meter: Meter, group: TileGroup, precision: Precision, vectors: NDArray[Any]) -> Array:
        """Task: see `gram_products.multiply_group`."""
        source = group.source
        assert isinstance(source, GramTiles)
        assert source.scale is None
        rows, device = self.rows_of(source.kernel, source.rows), self.device
        with meter.time("multiply"):
            right = device.array(vectors)
            total = device.zeros(vectors.shape)
            for i, j in group.tiles:
                for r, c in self._blocks(rows, group.grid.rows(i), group.grid.rows(j)):
                    self._in_room(partial(self._add_block, rows, precision, right, total), r, c)
            return device.host(total)

    def _blocks(self, rows: DeviceRows, r: slice, c: slice) -> Iterator[tuple[slice, slice]]:
        """Cut a tile on or below the diagonal into blocks, of STRIP_ROWS columns, within one range on either side."""
        for top in rows.cuts(r.start, r.stop):
            for left in rows.cuts(c.start, c.stop):
                for strip in _slices(left, STRIP_ROWS) if left.start <= top.start else ():
                    if left != top:
                        yield top, strip
                        continue
                    yield strip, strip
                    if strip.stop < top.stop:
                        yield slice(strip.stop, top.stop), strip

    def _in_room(self, work: Callable[[slice, slice], None], r: slice, c: slice) -> None:
        """Do the work of a block, or of its parts where the device has no room for it."""
        waiting = [(r, c)]
        while waiting:
            r, c = waiting.pop()
            height = max(r.stop - r.start, c.stop - c.start)
            if height > self._side:
                waiting += _quarters(r, c)
                continue
            try:
                work(r, c)
                continue
            except self.device.out_of_memory:
                if height <= MIN_SIDE:
                    raise
            self._side = (height + 1) // 2  # outside of the handler, whose traceback holds the block
            self.device.release()
            waiting.append((r, c))

    def _add_block(
        self, rows: DeviceRows, precision: Precision, right: DeviceArray, total: DeviceArray, r: slice, c: slice
    ) -> None:
        device = self.device
        block = rows.kernel.block(rows[r, precision], rows[c, precision], precision, same=r == c)
        below, across = device.cast(device.xp.matmul(block, right[c, :]), "float64"), None
        if r != c:
            for some in _slices(r, STRIP_ROWS):
                part = device.xp.matmul(block[some.start - r.start : some.stop - r.start, :].T, right[some, :])
                part = device.cast(part, "float64")
                across = part if across is None else across + part
        total[r, :] += below  # nothing that has no room lies between the two
        if across is not None:
            total[c, :] += across

    # Rows of a partial factor

    def cross_gram(self, kernel: Kernel, rows: Rows, *, may_fall_back: bool = False) -> "DeviceCrossGram":
        """K(x, X) of a kernel and training rows."""
        return DeviceCrossGram(self, kernel, rows, may_fall_back=may_fall_back)

    def factor(self, rows: FactorRows) -> FactorOnDevice:
        """F as the device has it; new and empty where it has none."""
        key = (rows.run, rows.number)
        if key not in self._factors:
            columns = rows.columns
            assert isinstance(columns, DividedColumns)
            assert isinstance(columns.columns, GramColumns)
            on_device = self.rows_of(columns.columns.kernel, columns.columns.rows)
            self._factors[key] = FactorOnDevice(on_device, rows)
        return self._factors[key]

    def _of_factor(self, do: Callable[..., Any], meter: Meter, rows: FactorRows, *given: Any) -> Any:
        with meter.time("factor"):
            return do(self.factor(rows), meter, *given)


OF_FACTOR: dict[Callable[..., Any], Callable[..., Any]] = {
    factor_rows.extend_rows: FactorOnDevice.extend,
    factor_rows.gram_rows: FactorOnDevice.gram,
    factor_rows.project_rows: FactorOnDevice.project,
    factor_rows.expand_rows: FactorOnDevice.expand,
    factor_rows.rebuild_rows: FactorOnDevice.rebuild,
    factor_rows.complete_rows: FactorOnDevice.complete,
    factor_rows.square_rows: FactorOnDevice.square_rows,
    factor_rows.square_columns: FactorOnDevice.square_columns,
    factor_rows.write_columns: FactorOnDevice.write,
    factor_rows.read_columns: FactorOnDevice.read,
}
"""Functions of tasks on the rows of a factor, and what does them on a device."""


def _slices(rows: slice, height: int) -> Iterator[slice]:
    """Parts of a range of at most `height` rows."""
    for start in range(rows.start, rows.stop, height):
        yield slice(start, min(start + height, rows.stop))


def _quarters(r: slice, c: slice) -> list[tuple[slice, slice]]:
    """Parts of a block on or below the diagonal."""
    rows, columns = _halves(r), _halves(c)
    return [(a, b) for a in rows for b in columns if r != c or b.start <= a.start]


def _halves(rows: slice) -> list[slice]:
    middle = (rows.start + rows.stop + 1) // 2
    return [slice(rows.start, middle), slice(middle, rows.stop)] if rows.stop - rows.start > 1 else [rows]


class DeviceCrossGram(ComputedCrossGram):
    """K(x, X) on a device: products are computed there, entries as a whole on the host.

    Parameters
    ----------
    executor : DeviceExecutor
    kernel : Kernel
    rows : Rows
        Training rows X, dense.
    may_fall_back : bool
        Products that the device cannot compute, for its memory or the range of the rows, are computed here.
    """

    def __init__(self, executor: DeviceExecutor, kernel: Kernel, rows: Rows, *, may_fall_back: bool) -> None:
        super().__init__(kernel, rows)
        self._executor, self._may_fall_back = executor, may_fall_back
        self._coefs: dict[int, tuple[Array, DeviceArray]] = {}
        """By their identity, arrays of the last call on the device."""

    def add_times(self, x: Block, coefs: Sequence[Array], outs: Sequence[Array], first: int | None = None) -> None:
        errors = (MemoryLimitError, InputError) if self._may_fall_back else ()
        found: list[Array] | None = None
        with suppress(*errors):
            found = self._executor.within_memory(self._products, x, coefs)
        if found is None:
            super().add_times(x, coefs, outs, first)
            return
        for out, product in zip(outs, found, strict=True):
            out += product

    def _products(self, x: Block, coefs: Sequence[Array]) -> list[Array]:
        device, rows = self._executor.device, self._executor.rows_of(self.kernel, self.rows)
        found = {id(coef): self._coefs.get(id(coef)) or (coef, device.array(coef)) for coef in coefs}
        self._coefs, left = found, rows.kernel.rows(np.asarray(dense(x)), "float64")
        totals = [device.zeros((left.n, coef.shape[1])) for coef in coefs]
        for cut in rows.cuts(0, self.n):
            block = rows.kernel.block(left, rows[cut, "float64"], "float64")
            for total, coef in zip(totals, coefs, strict=True):
                total += device.xp.matmul(block, found[id(coef)][1][cut, :])
        return [device.host(total) for total in totals]

    def adjoint_times(self, x: Block, values: Array, threads: int) -> Array:  # noqa: ARG002
        found: Array = self._executor.within_memory(self._adjoint, x, values)
        return found

    def _adjoint(self, x: Block, values: Array) -> Array:
        device, rows = self._executor.device, self._executor.rows_of(self.kernel, self.rows)
        out = np.empty((self.n, values.shape[1]))
        right, columns = rows.kernel.rows(np.asarray(dense(x)), "float64"), device.array(values)
        for cut in rows.cuts(0, self.n):
            block = rows.kernel.block(rows[cut, "float64"], right, "float64")
            out[cut] = device.host(device.xp.matmul(block, columns))
        return out
