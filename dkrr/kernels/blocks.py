"""Functions that all kernels use: checked blocks of rows, strips that stay in cache, mirrored symmetric blocks."""

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dkrr import blas
from dkrr.checks import refuse_masked
from dkrr.errors import InputError, InputTypeError, NotFiniteError
from dkrr.rounding import check_exact
from dkrr.sparse import check_structure

FloatArray: TypeAlias = npt.NDArray[np.floating[Any]]
FLOATS = (np.dtype(np.float64), np.dtype(np.float32))
"""Types of the rows and blocks of which kernels compute without a conversion."""
Block: TypeAlias = Any  # a matrix: FloatArray, or a canonical scipy.sparse.csr_array of float64 or float32

# Writes k(X[rows], Y[columns]) into a (len(rows), len(columns)) buffer; made once for each pair of blocks.
Fill: TypeAlias = Callable[[slice, slice, FloatArray], None]
# Makes it for a block X, of one Y whose own part of the work is done.
BlockWriters: TypeAlias = Callable[[Block], Fill]

# A strip is worked on several times (GEMM, clamp, exp), so it has to stay in the second-level cache.
# 128 x 1024 doubles = 1 MiB was the best of 32...512 x 256...4096 on one Xeon core (2 MiB of L2).
STRIP_ROWS = 128
STRIP_COLUMNS = 1024
STRIP_ENTRIES = STRIP_ROWS * STRIP_COLUMNS

# A strip that is used at once and never stored may be larger: it still stays in the last-level cache, and threads that
# share an interpreter wait for its lock a quarter as often. Two threads together made 0.28e9 entries per second of an
# RBF kernel (float64, 16 columns) in small strips, 0.59e9 in large strips; one thread 0.30e9 and 0.33e9.
LARGE_STRIP_ROWS = 256
LARGE_STRIP_COLUMNS = 2048
LARGE_STRIP_ENTRIES = LARGE_STRIP_ROWS * LARGE_STRIP_COLUMNS

# Transposing through a small copy whose row stride is not a power of two: 0.4 ns per entry at n = 1024, where
# out[:a, a:b] = out[a:b, :a].T takes 1.4 ns because a column's entries all fall into one set of the cache.
MIRROR_ROWS = 64
MIRROR_COLUMNS = 256
MIRROR_PADDING = 8

# Largest difference of a user's matrix from its transpose, relative to its largest entry.
SYMMETRY_TOLERANCE = 1e-10


def as_rows(X: object, name: str = "X") -> Block:
    """Rows as a checked float array or a canonical CSR array, without a copy where possible.

    Anything but float32 becomes float64. Other types are refused: a Dask array would be computed by accident.
    """
    if type(X) is np.ndarray and X.ndim == 2 and X.shape[1] and X.dtype in FLOATS:
        return X
    if not (isinstance(X, np.ndarray) or sp.issparse(X)):
        raise InputTypeError(
            f"{name} is of type {type(X).__module__}.{type(X).__qualname__}; expected a two-dimensional "
            "numpy array or a scipy.sparse CSR array: convert it, or use dkrr.gram for Dask and Zarr arrays"
        )
    refuse_masked(X, name)
    block: Any = X
    sparse = not isinstance(X, np.ndarray)
    if block.dtype.kind not in "fiub":
        raise InputTypeError(
            f"{name} has dtype {block.dtype}; expected real numbers (float64 or float32): "
            "encode or convert the columns first"
        )
    if block.ndim != 2:
        raise InputError(
            f"{name} has shape {block.shape}; expected two dimensions (n_rows, n_features): "
            "use reshape(-1, 1) for one feature or reshape(1, -1) for one row"
        )
    if block.shape[1] == 0:
        raise InputError(f"{name} has shape {block.shape}; expected at least one feature (column)")
    dtype = np.float32 if block.dtype == np.float32 else np.float64
    if not sparse:
        check_exact(block, name)
        return np.asarray(block, dtype=dtype)
    check_structure(block, name)
    rows = sp.csr_array(block)
    check_exact(rows, name)
    if rows.dtype != dtype:
        rows = rows.astype(dtype)
    if not rows.has_canonical_format:
        rows = rows.copy()
        rows.sum_duplicates()
    return rows


def is_sparse(X: Block) -> bool:
    """Whether checked rows are CSR rather than dense."""
    return isinstance(X, sp.csr_array)


def as_row_pair(X: object, Y: object) -> tuple[Block, Block]:
    """Check two blocks with as many features each, and make both dense or both CSR; Y None gives X twice."""
    left = as_rows(X, "X")
    if Y is None or Y is X:
        return left, left
    right = as_rows(Y, "Y")
    if left.shape[1] != right.shape[1]:
        raise InputError(
            f"X has {left.shape[1]} features and Y has {right.shape[1]}; expected the same columns in both"
        )
    if is_sparse(left) != is_sparse(right):
        left, right = sp.csr_array(left), sp.csr_array(right)
    return left, right


def read_only(X: Block) -> Block:
    """Read-only view of rows, dense or CSR, for a user's function: they may be the user's own X."""
    if is_sparse(X):
        found = sp.csr_array(tuple(map(read_only, (X.data, X.indices, X.indptr))), shape=X.shape)
        found.has_canonical_format = True
        return found
    view = X.view()
    view.flags.writeable = False
    return view


def as_buffer(out: FloatArray | None, shape: tuple[int, int]) -> FloatArray:
    """Buffer to write to, checked, or a new float64 one."""
    if out is None:
        return np.empty(shape)
    if not isinstance(out, np.ndarray) or out.dtype not in FLOATS:
        raise InputTypeError(
            f"out is {getattr(out, 'dtype', type(out).__qualname__)}; expected a float64 or float32 numpy array"
        )
    if out.shape != shape:
        raise InputError(f"out has shape {out.shape}; expected {shape}: one row for each row of X")
    # GEMM writes straight into it, which needs neighbouring columns side by side.
    if not out.flags.writeable or (shape[1] > 1 and out.strides[1] != out.itemsize):
        raise InputError(
            "out is read-only or its columns are not contiguous; expected a writeable C-ordered array, "
            "or rows cut from one"
        )
    return out


def strips(n_rows: int, n_columns: int, *, lower: bool = False) -> Iterator[tuple[slice, slice]]:
    """Cut a block, or the lower triangle of a square one, into strips of at most STRIP_ENTRIES entries."""
    width = max(1, min(n_columns, STRIP_COLUMNS))
    height = STRIP_ROWS if lower else STRIP_ENTRIES // width
    for top in range(0, n_rows, height):
        bottom = min(top + height, n_rows)
        end = bottom if lower else n_columns
        for left in range(0, end, width):
            yield slice(top, bottom), slice(left, min(left + width, end))


def large_strips_below(n: int, entries: int | None = None) -> Iterator[tuple[slice, slice]]:
    """Cut the lower triangle of a square block into strips left of the diagonal and squares on it.

    `entries` bounds a strip where it is more than LARGE_STRIP_ROWS × LARGE_STRIP_COLUMNS.
    """
    width = max(LARGE_STRIP_COLUMNS, (entries or 0) // LARGE_STRIP_ROWS)
    for top in range(0, n, LARGE_STRIP_ROWS):
        rows = slice(top, min(top + LARGE_STRIP_ROWS, n))
        for left in range(0, top, width):
            yield rows, slice(left, min(left + width, top))
        yield rows, rows


def large_strips(n_rows: int, n_columns: int, entries: int | None = None) -> Iterator[tuple[slice, slice]]:
    """Cut a block into strips of `entries` entries (LARGE_STRIP_ENTRIES) at most, higher ones for fewer columns."""
    width = min(n_columns, LARGE_STRIP_COLUMNS)
    height = max(1, (entries or LARGE_STRIP_ENTRIES) // width)
    for top in range(0, n_rows, height):
        for left in range(0, n_columns, width):
            yield slice(top, min(top + height, n_rows)), slice(left, min(left + width, n_columns))


_spare = threading.local()


@contextmanager
def strip_memory(dtype: npt.DTypeLike) -> Iterator[FloatArray]:
    """Memory of 8 · LARGE_STRIP_ENTRIES bytes for large strips, of shape (entries,), kept by the thread for later ones.

    Memory that is released returns to the system, and tens of tiles a product would each wait for fresh pages.
    """
    memory = _spare.__dict__.pop("memory", None)  # two users at a time do not share it
    if memory is None:
        memory = np.empty(8 * LARGE_STRIP_ENTRIES, np.uint8)
    try:
        yield memory.view(dtype)
    finally:
        _spare.memory = memory


class Scratch:
    """Working memory of a strip, allocated on first use and reused for all others."""

    def __init__(self, dtype: npt.DTypeLike = np.float64, entries: int = STRIP_ENTRIES) -> None:
        self._dtype, self._entries = dtype, entries
        self._memory: FloatArray | None = None

    def like(self, strip: FloatArray) -> FloatArray:
        """C-contiguous uninitialised buffer of the strip's shape."""
        return self.of_shape(*strip.shape)

    def of_shape(self, n_rows: int, n_columns: int) -> FloatArray:
        """C-contiguous uninitialised buffer of this shape."""
        if self._memory is None or self._memory.size < n_rows * n_columns:
            # All at once: strips of a triangle grow, and pages that are never touched cost nothing.
            if n_rows * n_columns > self._entries:
                self._entries = LARGE_STRIP_ENTRIES
            self._memory = np.empty(self._entries, dtype=self._dtype)
        return self._memory[: n_rows * n_columns].reshape(n_rows, n_columns)


_ABOVE = np.triu(np.ones((MIRROR_ROWS, MIRROR_ROWS), dtype=bool), 1)


def mirror_lower(out: FloatArray) -> None:
    """Copy the lower triangle of a square block over its upper one."""
    n = len(out)
    copy = np.empty((MIRROR_ROWS, MIRROR_COLUMNS + MIRROR_PADDING), dtype=out.dtype)
    for top in range(0, n, MIRROR_ROWS):
        bottom = min(top + MIRROR_ROWS, n)
        height = bottom - top
        for left in range(0, top, MIRROR_COLUMNS):
            right = min(left + MIRROR_COLUMNS, top)
            tile = copy[:height, : right - left]
            tile[...] = out[top:bottom, left:right]
            out[left:right, top:bottom] = tile.T
        corner = out[top:bottom, top:bottom]
        np.copyto(corner, corner.T.copy(), where=_ABOVE[:height, :height])


def check_symmetric(K: FloatArray, subject: str) -> None:
    """Raise InputError unless K equals its transpose to SYMMETRY_TOLERANCE of its largest entry."""
    largest = max((float(np.abs(K[rows, columns]).max()) for rows, columns in strips(*K.shape)), default=0.0)
    for rows, columns in strips(*K.shape, lower=True):
        gap = float(np.abs(K[rows, columns] - K[columns, rows].T).max())
        if gap > SYMMETRY_TOLERANCE * largest:
            raise InputError(
                f"{subject} is not symmetric: entries differ from their mirror image by up to {gap:.3g} "
                f"where the largest entry is {largest:.3g}; expected k(x, z) = k(z, x) to "
                f"{SYMMETRY_TOLERANCE:g} relative: correct the function, or use (K + K.T) / 2"
            )


def checksum(array: Block) -> str:
    """Checksum of a dense or CSR array."""
    members: list[npt.NDArray[Any]] = [array]
    if is_sparse(array):
        members = [array.data, array.indices.astype(np.int64), array.indptr.astype(np.int64)]
    sha = hashlib.sha256(str(array.shape).encode())
    for member in members:
        sha.update(np.ascontiguousarray(member).data)
    return sha.hexdigest()


def squared_norms(X: Block) -> npt.NDArray[np.float64]:
    """‖x‖² of each row, (n_rows,), summed in float64; ∞ where it overflows."""
    sums: npt.NDArray[np.float64]
    with np.errstate(over="ignore", under="ignore"):
        if isinstance(X, sp.csr_array):
            # float32 squares would be rounded, or overflow, before they are summed.
            sums = sp.csr_array((np.square(X.data, dtype=np.float64), X.indices, X.indptr), shape=X.shape).sum(axis=1)
        else:
            sums = np.einsum("ij,ij->i", X, X, dtype=np.float64)
    return sums


def times_powers_of_two(X: Block, exponents: Any) -> Block:
    """Rows times 2ᵏ in float64, k one number or one for each row; no digit changes within float64's range."""
    if not is_sparse(X):
        each = exponents if np.ndim(exponents) == 0 else np.asarray(exponents)[:, np.newaxis]
        return np.ldexp(np.asarray(X, np.float64), each)
    each = exponents if np.ndim(exponents) == 0 else np.repeat(exponents, np.diff(X.indptr))
    return sp.csr_array((np.ldexp(X.data.astype(np.float64, copy=False), each), X.indices, X.indptr), shape=X.shape)


def normalise_exponents(X: Block) -> Block:
    """Rows times powers of two, so that the largest |x| of a row is from 1/2 to 1; a row of zeros is unchanged.

    No digit changes, and ‖x‖² neither overflows nor underflows.
    """
    sizes: Any = abs(X).max(axis=1)
    largest = np.asarray(sizes.toarray() if sp.issparse(sizes) else sizes, np.float64).ravel()
    return times_powers_of_two(X, -np.frexp(largest)[1])


def are_moderate(squares: npt.NDArray[np.float64], dtype: npt.DTypeLike = np.float64) -> bool:
    """Whether squares, such as ‖x‖², are far from the ends of a range; 0, ∞ and NaN are not."""
    largest = 1e200 if np.dtype(dtype) == np.float64 else 1e20
    return bool(((squares > 1 / largest) & (squares < largest)).all())


def check_diagonal(values: npt.NDArray[np.float64], subject: object) -> None:
    """Raise NotFiniteError unless all k(x, x) are finite; all k(x, z) are then too, if k is positive semidefinite."""
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        raise NotFiniteError(
            f"k(x, x) is {values[bad[0]]} under {subject!r}: it leaves the range of float64 (1e308) for {len(bad)} of "
            f"{len(values)} rows of a block; expected finite entries: rescale the columns of X, or use a kernel that "
            "does not grow (Cosine, Normalized, RBF)",
            int(bad[0]),
        )


def dot_products(X: Block, Y: Block, dtype: npt.DTypeLike) -> Fill:
    """Filler of X Yᵀ: one GEMM per strip, or sparse products that densify the result alone.

    The arithmetic is in `dtype`, or better, whatever the rows are stored in; CSR rows are converted strip by strip.
    """
    if not is_sparse(X):
        left, right = np.ascontiguousarray(X, dtype), np.ascontiguousarray(Y, dtype)

        def multiply(rows: slice, columns: slice, out: FloatArray) -> None:
            blas.gemm(out, left[rows], right[columns], transpose_b=True)

        return multiply

    # SciPy multiplies CSR by CSR; transposed rows of Y would otherwise be converted again for every strip.
    transposes: dict[int, tuple[slice, Any]] = {}
    left_dtype, right_dtype = np.promote_types(X.dtype, dtype), np.promote_types(Y.dtype, dtype)

    def multiply_sparse(rows: slice, columns: slice, out: FloatArray) -> None:
        known = transposes.get(columns.start)
        if known is None or known[0] != columns:
            known = columns, Y[columns].astype(right_dtype, copy=False).T.tocsr()
            transposes[columns.start] = known
        out[...] = (X[rows].astype(left_dtype, copy=False) @ known[1]).toarray()

    return multiply_sparse
