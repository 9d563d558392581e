"""BLAS and LAPACK on C-ordered blocks, in place and without the global interpreter lock.

SciPy's f2py wrappers hold the lock for the whole call: a Dask worker's heartbeats and its prefetching thread would
stop. The same routines called through the function pointers that SciPy publishes for Cython release it. A C-ordered
matrix is its transpose to Fortran, so the lower triangle here is "U" there and no block is ever copied.

All large products go through here: NumPy and SciPy bring an OpenBLAS each, whose threads spin for a while after their
work, and a program that alternates between the two makes them spin in each other's way.

Every array is 2-D, float64 or float32, with contiguous rows (the row stride may be larger); all of one call share
a dtype.
"""

import ctypes
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from threading import Lock
from typing import Any

import numpy as np
import threadpoolctl
from numpy.typing import NDArray
from scipy.linalg import cython_blas, cython_lapack

Array = NDArray[Any]

_POTRF_BLOCK = 256
"""Rows of the blocks of a large matrix that LAPACK's POTRF factors; the rest is GEMM (256 is the best of 64 to
512). Large ones never reach LAPACK: threaded OpenBLAS POTRF crashes from n = 16,000 on (0.3.30, 2 threads)."""
_FEW_TRSV, _FEW_SYMV = 3, 6
"""Right-hand sides that are solved for, or multiplied, one after another: TRSM and SYMM first copy the matrix to their
own format. Measured from 300 to 2,000 rows: a single one in 0.2 of the time, that many in 0.8."""
_WHOLE_POTRF = 512
"""Rows of a matrix that LAPACK factors as a whole, in 0.9 of the time of the blocks (1.0 at 512)."""
_SLOW_TRSM = frozenset({"SkylakeX", "Cooperlake", "SapphireRapids"})
"""OpenBLAS's kernels for AVX-512: their TRSM with a triangle of 512 runs at 0.6 of GEMM's rate, with one of 128 at 0.35
(float32: 0.25), and TRMM of this side at 0.8. The kernels for AVX2 solve as fast as they multiply."""
INVERSE_SIDE = 128
"""Side of the diagonal blocks that are inverted for TRMM."""
_INVERSE_ROWS = 4 * INVERSE_SIDE
"""Right-hand sides from which blocks are inverted: for 256 of them that takes as long as TRSM."""
_MAX_GROWTH = 1000.0
"""Largest ‖|L| |L⁻¹|‖∞ of a block that is inverted. Measured on kernel and random matrices with conditions of 1e3 to
1e12, residuals are then at most 1.4 times LAPACK's (10,000: 2.8 times; without a limit: 1,800 times)."""

_PREFIX = {"d": "d", "f": "s"}
"""BLAS's letter for NumPy's, which is faster to ask for than a dtype's name."""
_SCALAR = {"d": ctypes.c_double, "f": ctypes.c_float}


@cache
def _routine(module: Any, name: str, n_arguments: int) -> Any:
    capsule = module.__pyx_capi__[name]
    get_name = ctypes.pythonapi.PyCapsule_GetName
    get_name.restype, get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    address = get_pointer(capsule, get_name(capsule))
    prototype = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * n_arguments)
    return prototype(address)


def _pointer(a: Array) -> int:
    rows_apart = a.shape[0] < 2 or a.strides[0] >= a.shape[1] * a.itemsize
    if a.ndim != 2 or (a.shape[1] > 1 and a.strides[1] != a.itemsize) or not rows_apart:
        raise ValueError(f"an array has shape {a.shape}, strides {a.strides}; expected contiguous rows")
    return int(a.ctypes.data)


def _leading(a: Array) -> int:
    # With a single row the stride means nothing; BLAS still needs at least the row's length.
    return int(max(a.strides[0] // a.itemsize if a.shape[0] > 1 else 0, a.shape[1], 1))


@lru_cache(maxsize=1024)
def _integer(value: int) -> Any:
    """Address of an integer, which no routine changes: sizes repeat, and a small product takes hardly longer."""
    return ctypes.byref(ctypes.c_int(value))


def _call(module: Any, name: str, *arguments: Any) -> None:
    """Call a Fortran routine: bytes → char*, int → int*, ctypes scalar → its address, array → its data."""
    passed: list[Any] = []
    for value in arguments:
        if isinstance(value, int):
            passed.append(_integer(value))
        elif isinstance(value, np.ndarray):
            passed.append(_pointer(value))
        elif isinstance(value, bytes):
            passed.append(value)
        else:
            passed.append(ctypes.byref(value))
    _routine(module, name, len(arguments))(*passed)


THREAD_EFFICIENCY = 0.6
"""Fraction of a core that every further thread adds to the products of tiles (measured with 2 threads, tiles of
2,048)."""
BYTES_PER_THREAD = 32 * 2**20
"""Memory of BLAS for each of its threads in the calling process (a worker's one thread is in its baseline)."""
FEW_COLUMNS = 3
"""Columns up to which those of a product with a large matrix are multiplied one by one."""
THIN_COLUMNS, THIN_ENTRIES = 128, 2**20
"""Columns up to which, and entries of a from which on, cᵀ = bᵀ a is computed for c = aᵀ b: GEMM copies its second
matrix in Fortran to its own format as a whole, and the first one by blocks that stay in cache. Measured with one
thread, the copies of b and c included, on both kinds of processor: 4 to 48 columns take 0.2 to 1.0 of the time, 128
columns 0.7 to 1.06; where a has just been computed, and is in cache, up to 1.4 times."""
MANY_ENTRIES = 2**17
"""Entries from which on a matrix is large: it is not in the cache of a core."""
CACHED_BYTES = 4 * 2**20
"""Part of such a matrix that stays in the last-level cache while all columns are multiplied. Measured with two threads
and tiles of 12,000 rows, in float32: one column takes 16 ms, two take 24 and three 30, where GEMM takes 36 and 43; with
half of this, or less, the threads wait for the interpreter, and two take 39 to 67."""
SMALL_FLOPS = 1e8
"""Work for which threads do not pay: 2 ms on one core, less than waking a thread may take on a busy machine."""


class _OneThread:
    """The limit is of the whole process: the first block that needs it sets it, the last one lifts it."""

    def __init__(self) -> None:
        self._lock, self._blocks = Lock(), 0
        self._libraries: list[Any] | None = None
        self._before: list[int] = []
        self._of_parent: list[int] = []
        """Threads that a fork must set again where a thread of its parent had set the limit."""

    def forget_threads(self) -> None:
        """Restart in a fork, which has none of the threads in blocks, one of which may hold the lock."""
        self._of_parent = self._before if self._blocks else []
        self._lock, self._blocks = Lock(), 0

    def lifted(self) -> list[int]:
        """Threads of each library once the limit is lifted; empty without a limit."""
        with self._lock:
            return self._before if self._blocks else self._of_parent

    def libraries(self) -> list[Any]:
        """Controllers of the libraries, found once: to go through all that is loaded takes milliseconds."""
        if self._libraries is None:  # also where none can be set (Apple's Accelerate)
            self._libraries = threadpoolctl.ThreadpoolController().select(user_api="blas").lib_controllers
        return self._libraries

    def enter(self) -> None:
        with self._lock:
            libraries = self.libraries() if self._libraries is None else self._libraries
            if self._blocks == 0:
                self._before = self._of_parent or [library.num_threads for library in libraries]
                self._of_parent = []
                for library in libraries:
                    _set_threads(library, 1)
            self._blocks += 1

    def leave(self) -> None:
        with self._lock:
            self._blocks -= 1
            if self._blocks == 0:
                for library, n_threads in zip(self._libraries or [], self._before, strict=True):
                    _set_threads(library, n_threads)


def _set_threads(library: Any, n_threads: int) -> None:
    # From 3.8 on, threadpoolctl ignores all threads but the one that set a limit first, for as long as that lives;
    # here any of a pool may be the first to enter or the last to leave.
    getattr(library, "_real_set_num_threads", library.set_num_threads)(n_threads)


_one_thread = _OneThread()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_one_thread.forget_threads)


def n_threads() -> int:
    """Threads that BLAS uses in this process outside the blocks of `one_thread`."""
    return max(_one_thread.lifted() or (library.num_threads for library in _one_thread.libraries()), default=1)


def architectures() -> str:
    """Instruction sets whose kernels BLAS uses in this process: they depend on the processor and the environment."""
    names = {str(getattr(library, "architecture", None) or "unknown") for library in _one_thread.libraries()}
    return ", ".join(sorted(names)) or "unknown"


@contextmanager
def one_thread(condition: bool = True) -> Iterator[None]:
    """Keep BLAS on one thread inside the block (in the whole process), if the condition holds.

    For tasks that run beside others, and for little work, where threads would only wait for each other.
    """
    if not condition:
        yield
        return
    _one_thread.enter()
    try:
        yield
    finally:
        _one_thread.leave()


def gemm(
    c: Array,
    a: Array,
    b: Array,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    alpha: float = 1.0,
    beta: float = 0.0,
) -> None:
    """Set c ← α op(a) op(b) + β c, where op transposes or not.

    Parameters
    ----------
    c : ndarray of shape (m, n)
        Overwritten.
    a : ndarray of shape (m, k), or (k, m) with `transpose_a`
    b : ndarray of shape (k, n), or (n, k) with `transpose_b`
    """
    m, n = c.shape
    k = a.shape[0] if transpose_a else a.shape[1]
    if m == 0 or n == 0:
        return
    scalar = _SCALAR[c.dtype.char]
    if k > 0 and (n == 1 or (n <= FEW_COLUMNS and a.size >= MANY_ENTRIES)):
        # GEMM would copy a to its own format first, which takes longer than the products of few columns.
        columns = b if transpose_b else b.T
        height = len(a) if n == 1 else max(1, CACHED_BYTES // (a.shape[1] * a.itemsize))
        for start in range(0, len(a), height):
            rows = slice(start, start + height)
            for j in range(n):
                x, y = (columns[j, rows], c[:, j]) if transpose_a else (columns[j], c[rows, j])
                _gemv(y, a[rows], x, alpha, 1.0 if transpose_a and start else beta, transpose=transpose_a)
        return
    if transpose_a and n <= THIN_COLUMNS and a.size >= THIN_ENTRIES:
        product = np.empty((n, m), c.dtype)
        gemm(product, b if transpose_b else np.ascontiguousarray(b.T), a, alpha=alpha)
        if beta:
            c *= beta
            c += product.T
        else:
            c[...] = product.T
        return
    _call(
        cython_blas, _PREFIX[c.dtype.char] + "gemm", b"T" if transpose_b else b"N", b"T" if transpose_a else b"N",
        n, m, k, scalar(alpha), b, _leading(b), a, _leading(a), scalar(beta), c, _leading(c),
    )  # fmt: skip


def _gemv(y: Array, a: Array, x: Array, alpha: float, beta: float, *, transpose: bool) -> None:
    """Set y ← α op(a) x + β y, for vectors in columns or rows of matrices."""
    scalar, (of_x, of_y) = _SCALAR[a.dtype.char], (v.strides[0] // v.itemsize for v in (x, y))
    _call(
        cython_blas, _PREFIX[a.dtype.char] + "gemv", b"N" if transpose else b"T", a.shape[1], a.shape[0],
        scalar(alpha), a, _leading(a), x[:, None], max(of_x, 1), scalar(beta), y[:, None], max(of_y, 1),
    )  # fmt: skip


def product(a: Array, b: Array) -> Array:
    """Product a b as a new float64 array.

    Parameters
    ----------
    a : ndarray of shape (m, k)
    b : ndarray of shape (k, n)
    """
    c = np.zeros((a.shape[0], b.shape[1]))
    if a.shape[1]:
        gemm(c, np.ascontiguousarray(a, np.float64), np.ascontiguousarray(b, np.float64))
    return c


def syrk(c: Array, a: Array, *, transpose: bool = False, alpha: float = 1.0, beta: float = 0.0) -> None:
    """Lower triangle of c ← α a aᵀ + β c (α aᵀ a with `transpose`); the strict upper triangle is not touched.

    Parameters
    ----------
    c : ndarray of shape (n, n)
    a : ndarray of shape (n, k), or (k, n) with `transpose`
    """
    n = c.shape[0]
    k = a.shape[0] if transpose else a.shape[1]
    if n == 0:
        return
    scalar = _SCALAR[c.dtype.char]
    _call(
        cython_blas, _PREFIX[c.dtype.char] + "syrk", b"U", b"N" if transpose else b"T",
        n, k, scalar(alpha), a, _leading(a), scalar(beta), c, _leading(c),
    )  # fmt: skip


def symm(c: Array, a: Array, b: Array, *, alpha: float = 1.0, beta: float = 0.0) -> None:
    """Set c ← α a b + β c for a symmetric a, of which only the upper triangle is read.

    Parameters
    ----------
    c : ndarray of shape (n, m)
        Overwritten.
    a : ndarray of shape (n, n)
    b : ndarray of shape (n, m)
    """
    n, m = c.shape
    if n == 0 or m == 0:
        return
    scalar = _SCALAR[c.dtype.char]
    if m <= _FEW_SYMV:
        for k in range(m):
            # SYMV is slow where entries are apart; and some versions make 0 × NaN of what `c` held before.
            x, y = b[:, k].copy()[None], (c[:, k].copy() if beta else np.zeros(n, c.dtype))[None]
            _call(
                cython_blas, _PREFIX[c.dtype.char] + "symv", b"L",
                n, scalar(alpha), a, _leading(a), x, 1, scalar(beta), y, 1,
            )  # fmt: skip
            c[:, k] = y[0]
        return
    _call(
        cython_blas, _PREFIX[c.dtype.char] + "symm", b"R", b"L",
        m, n, scalar(alpha), a, _leading(a), b, _leading(b), scalar(beta), c, _leading(c),
    )  # fmt: skip


def solve_lower(l: Array, b: Array, *, transpose: bool = False) -> None:  # noqa: E741
    """Set b ← l⁻¹ b, or l⁻ᵀ b with `transpose`; l is lower triangular (its upper triangle is not read).

    Parameters
    ----------
    l : ndarray of shape (n, n)
    b : ndarray of shape (n, m)
        Overwritten.
    """
    n, m = b.shape
    if n and m >= _INVERSE_ROWS:
        Triangle(l).solve_left(b, transpose=transpose)
    elif n and m <= _FEW_TRSV:
        for k in range(m):
            _call(
                cython_blas, _PREFIX[b.dtype.char] + "trsv", b"U", b"N" if transpose else b"T", b"N",
                n, l, _leading(l), b[:, k : k + 1], _leading(b),
            )  # fmt: skip
    elif n:
        _call(
            cython_blas, _PREFIX[b.dtype.char] + "trsm", b"R", b"U", b"T" if transpose else b"N", b"N",
            m, n, _SCALAR[b.dtype.char](1.0), l, _leading(l), b, _leading(b),
        )  # fmt: skip


def solve_lower_right(l: Array, b: Array) -> None:  # noqa: E741
    """Set b ← b l⁻ᵀ: the update of the rows below a diagonal block.

    Parameters
    ----------
    l : ndarray of shape (n, n)
        Lower triangular (its upper triangle is not read).
    b : ndarray of shape (m, n)
        Overwritten.
    """
    if b.size:
        Triangle(l).solve_right(b)


class Triangle:
    """Lower triangle L to solve with: where TRSM is slow, by GEMM off the diagonal and by inverted blocks (TRMM) on it.

    For B L⁻ᵀ by a computed inverse, |X Lᵀ − B| ≤ c u |B| |L⁻ᵀ| |Lᵀ|, which is at most ‖|L| |L⁻¹|‖∞ times the bound for
    TRSM, c u |X| |Lᵀ| (J. Du Croz and N. Higham, Stability of methods for matrix inversion, 1992). Scaling the columns
    of L does not change this factor; blocks where it is large, and those whose inverse leaves the range of the dtype,
    are solved with by TRSM. Which blocks these are depends only on L, on the shapes and on the kind of processor.

    Parameters
    ----------
    l : ndarray of shape (n, n)
        Its upper triangle is not read. A block that has been solved with must not change.
    is_shared : bool
        Many solve with it, maybe in several threads, so that inverses pay for fewer right-hand sides of each.
    """

    def __init__(self, l: Array, *, is_shared: bool = False) -> None:  # noqa: E741
        self._l, self._least = l, INVERSE_SIDE if is_shared else _INVERSE_ROWS
        self._inverses: dict[tuple[int, int], Array | None] = {}

    def factor(self, start: int, stop: int) -> int:
        """Overwrite the diagonal block of these rows by its Cholesky factor; see `cholesky_in_place`."""
        n = stop - start
        if n == 0:
            return 0
        if n <= _POTRF_BLOCK:
            failed = _potrf(self._l[start:stop, start:stop])
            return failed + start if failed else 0
        middle = start + _middle(n, _POTRF_BLOCK)
        failed = self.factor(start, middle)
        if failed:
            return failed
        below = self._l[middle:stop, start:middle]
        self.solve_right(below, start)
        rank_update(self._l[middle:stop, middle:stop], below)
        return self.factor(middle, stop)

    def solve_right(self, b: Array, start: int = 0) -> None:
        """Set b ← b T⁻ᵀ for the block T of L from row `start` on, of as many rows as b has columns."""
        m, n = b.shape
        stop = start + n
        if n <= INVERSE_SIDE or not self._inverts(m):
            self._solve_block(start, stop, m, (b"L", b"U", b"T", b"N", n, m), b)
            return
        middle = start + _middle(n, INVERSE_SIDE)
        left, right = b[:, : middle - start], b[:, middle - start :]
        self.solve_right(left, start)
        gemm(right, left, self._l[middle:stop, start:middle], transpose_b=True, alpha=-1.0, beta=1.0)
        self.solve_right(right, middle)

    def solve_left(self, b: Array, start: int = 0, *, transpose: bool) -> None:
        """Set b ← T⁻¹ b, or T⁻ᵀ b, for the block T of L from row `start` on, of as many rows as b."""
        n, m = b.shape
        stop = start + n
        if n <= INVERSE_SIDE or not self._inverts(m):
            self._solve_block(start, stop, m, (b"R", b"U", b"T" if transpose else b"N", b"N", m, n), b)
            return
        middle = start + _middle(n, INVERSE_SIDE)
        top, bottom, below = b[: middle - start], b[middle - start :], self._l[middle:stop, start:middle]
        if transpose:
            self.solve_left(bottom, middle, transpose=True)
            gemm(top, below, bottom, transpose_a=True, alpha=-1.0, beta=1.0)
            self.solve_left(top, start, transpose=True)
        else:
            self.solve_left(top, start, transpose=False)
            gemm(bottom, below, top, alpha=-1.0, beta=1.0)
            self.solve_left(bottom, middle, transpose=False)

    def _inverts(self, m: int) -> bool:
        """Whether blocks are inverted for this number of right-hand sides."""
        return m >= self._least and _trsm_is_slow()

    def _solve_block(self, start: int, stop: int, m: int, settings: tuple[bytes | int, ...], b: Array) -> None:
        name, factor = "trsm", self._l[start:stop, start:stop]
        if self._inverts(m):
            if (start, stop) not in self._inverses:
                self._inverses[start, stop] = _inverted(factor)
            inverse = self._inverses[start, stop]
            name, factor = ("trsm", factor) if inverse is None else ("trmm", inverse)
        _call(
            cython_blas, _PREFIX[b.dtype.char] + name, *settings,
            _SCALAR[b.dtype.char](1.0), factor, _leading(factor), b, _leading(b),
        )  # fmt: skip


def _middle(n: int, block: int) -> int:
    """Number of the row at which n rows are cut: about half of them, a multiple of `block`."""
    return -(-n // 2 // block) * block


@cache
def _trsm_is_slow() -> bool:
    return any(getattr(library, "architecture", None) in _SLOW_TRSM for library in _one_thread.libraries())


def _inverted(l: Array) -> Array | None:  # noqa: E741
    """Inverse of a small lower triangle; None where TRSM is more accurate."""
    inverse = np.tril(l)
    size, info = np.abs(inverse), ctypes.c_int(0)
    _call(
        cython_lapack, _PREFIX[l.dtype.char] + "trtri", b"U", b"N",
        inverse.shape[0], inverse, _leading(inverse), info,
    )  # fmt: skip
    with np.errstate(over="ignore", invalid="ignore"):
        size *= np.abs(inverse).sum(axis=1)
        growth = size.sum(axis=1).max()
    return inverse if info.value == 0 and growth <= _MAX_GROWTH else None


def _potrf(a: Array) -> int:
    info = ctypes.c_int(0)
    _call(cython_lapack, _PREFIX[a.dtype.char] + "potrf", b"U", a.shape[0], a, _leading(a), info)
    failed = int(info.value)
    if not failed:
        bad = np.isnan(a.diagonal())  # a NaN passes LAPACK's comparison with zero
        failed = int(np.argmax(bad)) + 1 if bad.any() else 0
    return failed


def cholesky_in_place(a: Array) -> int:
    """Overwrite the lower triangle of a symmetric positive definite matrix by its Cholesky factor L, a = L Lᵀ.

    A small one by LAPACK, others recursively, so that nearly all the work is GEMM; the strict upper triangle is neither
    read nor written.

    Parameters
    ----------
    a : ndarray of shape (n, n)

    Returns
    -------
    int
        0, or 1 + the row of the first pivot that is not positive (the matrix is then partly overwritten).
    """
    if 0 < len(a) <= _WHOLE_POTRF:
        return _potrf(a)
    return Triangle(a).factor(0, len(a))


_RANK_BLOCK = 2048
"""Columns a block of a rank update; only its diagonal blocks do the useless half of the work."""


def rank_update(c: Array, a: Array) -> None:
    """Lower triangle of c ← c − a aᵀ, by block columns so that only the diagonal blocks go through SYRK.

    Parameters
    ----------
    c : ndarray of shape (n, n)
    a : ndarray of shape (n, k)
    """
    for start in range(0, c.shape[0], _RANK_BLOCK):
        stop = min(start + _RANK_BLOCK, c.shape[0])
        syrk(c[start:stop, start:stop], a[start:stop], alpha=-1.0, beta=1.0)
        gemm(c[stop:, start:stop], a[stop:], a[start:stop], transpose_b=True, alpha=-1.0, beta=1.0)


def pivoted_cholesky_in_place(a: Array) -> tuple[NDArray[np.intp], int]:
    """Overwrite the lower triangle of a symmetric positive semidefinite matrix by L, with a[p][:, p] = L Lᵀ.

    LAPACK's PSTRF: the next pivot is the largest diagonal entry that is left, and it stops where that is below
    n · eps · the largest at first. The columns of L from there on are not set.

    Parameters
    ----------
    a : ndarray of shape (n, n)

    Returns
    -------
    order : ndarray of int, shape (n,)
        p, the rows in the order of the pivots.
    rank : int
        Number of columns of L.
    """
    n = a.shape[0]
    pivots, work = np.arange(1, n + 1, dtype=np.int32)[None], np.empty((1, 2 * n), a.dtype)
    rank, info = ctypes.c_int(0), ctypes.c_int(0)
    # A negative tolerance means LAPACK's own.
    _call(
        cython_lapack, _PREFIX[a.dtype.char] + "pstrf", b"U",
        n, a, _leading(a), pivots, rank, _SCALAR[a.dtype.char](-1.0), work, info,
    )  # fmt: skip
    return pivots[0].astype(np.intp) - 1, int(rank.value)


# Norms, as NRM2 has them: also where squares leave the range of float64

SAFE_SIZES = (1e-120, 1e120)
"""Bounds of numbers whose squares, and sums of these, neither overflow nor underflow."""
SAFE_SQUARES = (1e-240, 1e240)
"""Squares of those bounds."""


def column_sizes(vectors: Array) -> Array:
    """Powers of two about as large as the columns, of shape (m,): to divide by one changes no digit."""
    mantissa, exponent = np.frexp(np.maximum(vectors.max(axis=0), -vectors.min(axis=0)))
    # The smallest power of two at or above, among those that are not denormal.
    return np.ldexp(1.0, np.clip(exponent - (mantissa == 0.5), -1022, 1023))  # type: ignore[no-any-return]


def root_mean_squares(vectors: Array) -> Array:
    """Root mean squares of columns, of shape (m,), also where squares overflow or underflow."""
    return column_norms(vectors) / math.sqrt(len(vectors))


def column_norms(vectors: Array) -> Array:
    """Euclidean norms of columns, of shape (m,), also where squares overflow or underflow."""
    with np.errstate(over="ignore", under="ignore"):
        if vectors.shape[1] == 1:  # most often; half the time for small fits
            square = float(vectors[:, 0] @ vectors[:, 0])
            if SAFE_SQUARES[0] < square < SAFE_SQUARES[1]:
                return np.array([math.sqrt(square)])
        else:
            squares: Array = np.einsum("ij,ij->j", vectors, vectors)
            if ((squares > SAFE_SQUARES[0]) & (squares < SAFE_SQUARES[1])).all():
                return np.sqrt(squares)
    sizes = column_sizes(vectors)
    scaled = vectors / sizes
    with np.errstate(over="ignore"):
        return np.sqrt(np.einsum("ij,ij->j", scaled, scaled)) * sizes  # type: ignore[no-any-return]
