"""Rows of Dask's arrays and DataFrames, computed when they are read, and checked as soon as they are.

A collection of Dask only says what its blocks will be. Of others NumPy would take the numbers below a mask, drop
imaginary parts, or shift all rows after a block that is too long; so each block is compared with what was said of it.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate, pairwise, product
from typing import Any

import dask
import numpy as np
import scipy.sparse as sp
from dask.base import tokenize
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph
from numpy.typing import NDArray

from dkrr.checks import refuse_masked
from dkrr.data.arrays import ArrayRows
from dkrr.data.rows import ALL, Block, Rows, cut, joined
from dkrr.errors import InputError, InputTypeError
from dkrr.rounding import check_exact_columns
from dkrr.sparse import check_structure
from dkrr.text import plural

SHUFFLES = ("Shuffle", "Join")
"""Parts of Dask's names of the steps that move rows between partitions: DiskShuffle, TaskShuffle, P2PShuffle,
HashJoinP2P, BroadcastJoin."""


class DaskRows(ArrayRows):
    """Rows of a Dask array, computed when read. Workers do not read these: they are staged first.

    Parameters
    ----------
    array : dask.array.Array of shape (n, d) or (n,)
    name : str
        What it is called in error messages.
    """

    is_computed = True
    is_vector = False

    def __init__(self, array: Any, name: str = "X") -> None:
        if any(np.isnan(size) for size in array.shape):
            raise InputError(
                f"{name} is a Dask array with unknown chunk sizes; expected known ones: call "
                f"{name}.compute_chunk_sizes() first, or give the DataFrame that it was made of"
            )
        array, self.is_vector = checked_blocks(array, name), array.ndim == 1
        super().__init__(array[:, None] if self.is_vector else array)

    @property
    def edges(self) -> Sequence[int]:
        return list(accumulate(self.array.chunks[0], initial=0))

    @property
    def read_overhead_bytes(self) -> int:
        # A chunk is computed whole.
        return int(np.prod([max(c) for c in self.array.chunks])) * int(np.dtype(self.dtype).itemsize)

    def read(self, start: int, stop: int, columns: slice = ALL) -> Block:
        return row_major(self.array[start:stop, columns].compute())

    def take(self, indices: NDArray[np.intp]) -> Block:
        return row_major(self.array[indices].compute())


def row_major(block: Block) -> Block:
    """Checked block of a Dask array as an ndarray or a CSR array."""
    return sp.csr_array(block) if sp.issparse(block) else block


def checked_blocks(array: Any, name: str) -> Any:
    """Dask array with the same blocks, checked when they are computed, before they are cut or put together."""
    is_sparse = sp.issparse(array._meta)
    meta = array._meta if is_sparse else np.empty((0,) * array.ndim, array.dtype)
    check = partial(_as_said, argument=name, dtype=array.dtype, is_sparse=is_sparse)
    tasks = {
        at: (partial(check, at=at, shape=tuple(c[k] for c, k in zip(array.chunks, at, strict=True))), (array.name, *at))
        for at in product(*map(range, array.numblocks))
    }
    return _with_tasks(tasks, f"dkrr-checked-{tokenize(array, name)}", [array], array.chunks, meta)


def _with_tasks(tasks: dict[tuple[int, ...], Any], name: str, sources: list[Any], chunks: Any, meta: Any) -> Any:
    """Dask array with a task for each block, in one layer of a graph: Dask goes through all layers at every read."""
    import dask.array as da  # it imports what it finds (xarray, sparse)

    graph = {(name, *at): task for at, task in tasks.items()}
    return da.Array(HighLevelGraph.from_collections(name, graph, dependencies=sources), name, chunks, meta=meta)


def _as_said(
    block: Any, argument: str, at: tuple[int, ...], *, shape: tuple[float, ...], dtype: Any, is_sparse: bool
) -> Block:
    """Block of the kind, shape and dtype that its Dask array says: an ndarray, or a sparse array of SciPy.

    Raises
    ------
    InputError
        If it has masked entries, another shape, or values that the dtype does not hold.
    """
    what = f"{argument}.blocks[{', '.join(map(str, at))}]"
    refuse_masked(block, argument)
    if sp.issparse(block):
        check_structure(block, argument)
    else:
        try:
            block = np.asarray(block)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputTypeError(f"{what} is a {type(block).__qualname__}; expected an ndarray: {error}") from error
    # A length that is not known is NaN.
    if block.ndim != len(shape) or any(n == n and m != n for m, n in zip(block.shape, shape, strict=True)):
        raise InputError(
            f"{what} has shape {block.shape}, and the Dask array says {shape}; expected the same: give the right "
            f"chunks= where the array is made, or call {argument}.compute_chunk_sizes() first"
        )
    if block.dtype != dtype:
        block = _as_dtype(block, dtype, what)
    if sp.issparse(block) != is_sparse:
        block = sp.csr_array(block) if is_sparse else block.toarray()
    return block


def _as_dtype(block: Block, dtype: Any, what: str) -> Block:
    """Block in another dtype, which holds all of its values; raises InputTypeError."""
    are_real = block.dtype.kind in "biuf" and dtype.kind in "biuf"
    with np.errstate(over="ignore", invalid="ignore"):
        found = block.astype(dtype) if are_real or np.can_cast(block.dtype, dtype) else None
        # NumPy says that float64 holds all whole numbers, and that -1 is what becomes of it without a sign.
        if found is None or not _are_same(block, found) or not _are_same(block, found.astype(block.dtype)):
            raise InputTypeError(
                f"{what} has dtype {block.dtype}, and the Dask array says {dtype}, which does not hold its values; "
                f"expected the same: give the right dtype= where the array is made"
            )
    return found


def _are_same(one: Block, other: Block) -> bool:
    """Whether values of two blocks with entries in the same places are equal, or missing in both."""
    a, b = (one.data, other.data) if sp.issparse(one) else (one, other)
    return bool(((a == b) | ((a != a) & (b != b))).all())


class PartitionRows(Rows):
    """Rows of a Dask DataFrame of any types, whose partitions are computed when they are read.

    Parameters
    ----------
    frame : dask.dataframe.DataFrame
    """

    is_lazy = True
    dtype = np.dtype(object)
    names: tuple[str, ...]

    def __init__(self, frame: Any) -> None:
        self.names = tuple(map(str, frame.columns))
        self.array = partitions_of(frame, "X", None, self.dtype)
        """Dask array whose blocks are the partitions, as frames; only whole ones can be asked for."""

    @property
    def shape(self) -> tuple[int, int]:
        n, d = self.array.shape
        return (int(n), int(d))

    def read(self, start: int, stop: int, columns: slice = ALL) -> Any:
        return joined([block.iloc[:, columns] for _, block in self.blocks(start, stop, max(1, stop - start))])

    def blocks(self, start: int, stop: int, height: int) -> Iterator[tuple[slice, Any]]:
        for k, (first, last) in enumerate(pairwise(accumulate(self.array.chunks[0], initial=0))):
            top, bottom = max(first, start), min(last, stop)
            if top < bottom:
                block = self.array.blocks[k].compute().iloc[top - first : bottom - first]
                yield from cut(block, top, start, height)


def is_dask_frame(X: Any) -> bool:
    """Whether X is a DataFrame or a Series of Dask, told without importing dask.dataframe, which needs pandas."""
    return type(X).__module__.startswith("dask.") and hasattr(X, "to_dask_array") and hasattr(X, "columns")


def frame_to_numpy(X: Any, name: str = "X") -> Any:
    """Dask array of the numbers in a Dask DataFrame or Series, whose rows are counted; others unchanged."""
    return partitions_of(X, name, _numbers, _type_of_numbers(X._meta)) if is_dask_frame(X) else X


def partitions_of(frame: Any, name: str, convert: Callable[[Any, str], Any] | None, dtype: Any) -> Any:
    """Dask array whose blocks are the partitions of a Dask DataFrame or Series, or what `convert` makes of them.

    Their rows are counted, and compared whenever they are read: of files everything is read once more. One column would
    be counted sooner, but Dask joins partitions that it reads from Parquet, the fewer columns the more, so that they
    would not be the same ones.
    """
    refuse_shuffled(frame, name)
    delayed, rest = frame.to_delayed(), frame._meta.shape[1:]
    counts = dask.compute(*map(dask.delayed(len), delayed))
    filled = [k for k, n in enumerate(counts) if n] or [0]
    tasks = {
        (i, *(0 for _ in rest)): (partial(_read, n=counts[k], number=k, name=name, convert=convert), delayed[k].key)
        for i, k in enumerate(filled)
    }
    chunks = (tuple(counts[k] for k in filled), *((m,) for m in rest))
    meta = np.empty((0, *(0 for _ in rest)), dtype)
    # Of `loc`, Dask names a partition that stays whole after the one before it; that of an array then misses a task.
    steps = {key: task.target if type(task).__name__ == "Alias" else task for key, task in delayed[0].dask.items()}
    label = f"dkrr-partitions-{tokenize(frame, name, convert, counts)}"
    source = Delayed(delayed[0].key, HighLevelGraph.from_collections(f"{label}-steps", steps), layer=f"{label}-steps")
    return _with_tasks(tasks, label, [source], chunks, meta)


def _read(partition: Any, n: int, number: int, name: str, convert: Callable[[Any, str], Any] | None) -> Any:
    """Partition that is compared with its count, and converted."""
    if len(partition) != n:
        raise InputError(
            f"{name} is a Dask DataFrame whose partition {number} (counted from 0) has "
            f"{plural(len(partition), 'row')}, and had {n} when they were counted; expected the same rows whenever it "
            f"is computed: write it to files and read these, or call its persist() first"
        )
    return partition if convert is None else convert(partition, name)


def refuse_shuffled(frame: Any, name: str) -> None:
    """Refuse a Dask DataFrame or Series whose rows Dask moves between partitions, in an order that it does not keep.

    Each computation, and each choice of columns, may have them in another order, so that targets would be those of
    other rows.

    Raises
    ------
    InputError
        If there is such a step in the plan by which Dask computes it.
    """
    steps = (type(step).__name__ for step in frame.optimize(fuse=False).expr.walk())
    if any(word in step for step in steps for word in SHUFFLES):
        raise InputError(
            f"{name} is a Dask DataFrame whose rows are shuffled (merge, groupby, set_index, sort_values, "
            f"drop_duplicates), and Dask computes them in an order that may change each time; expected rows in one "
            f"order: write the frame to Parquet and read that, or call its persist(), before X and y are taken from it"
        )


def _numbers(partition: Any, name: str) -> NDArray[Any]:
    """Numbers of a DataFrame or a Series of pandas, NaN where they are missing.

    Raises
    ------
    InputError
        If a whole number is not exact in float64.
    """
    missing = {"na_value": np.nan} if _is_nullable(partition) else {}  # looked for in all values
    found: NDArray[Any] = partition.to_numpy(_type_of_numbers(partition), **missing)
    is_wide = [getattr(dtype, "kind", "O") in "iu" and dtype.itemsize == 8 for dtype in _dtypes(partition)]
    if found.dtype.kind == "f" and any(is_wide):
        check_exact_columns(partition, f"a partition of {name}")
    return found


def _type_of_numbers(frame: Any) -> Any:
    """Type of NumPy of the numbers in a DataFrame or a Series of pandas; object if some values are not numbers."""
    dtypes = [getattr(dtype, "numpy_dtype", dtype) for dtype in _dtypes(frame)]
    if not all(isinstance(dtype, np.dtype) and dtype.kind in "biufc" for dtype in dtypes):
        return np.dtype(object)
    return np.result_type(*dtypes or [np.float64], *[np.float32] * _is_nullable(frame))  # whole numbers cannot be NaN


def _is_nullable(frame: Any) -> bool:
    """Whether values of a DataFrame or a Series are of types of pandas or Arrow, of which any may be missing."""
    return not all(isinstance(dtype, np.dtype) for dtype in _dtypes(frame))


def _dtypes(frame: Any) -> Sequence[Any]:
    return list(frame.dtypes) if frame.ndim == 2 else [frame.dtype]
