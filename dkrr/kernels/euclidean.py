"""Kernels of the Euclidean distance ‖x − z‖: RBF and Matérn."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import frexp, ldexp, sqrt
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.spatial.distance import cdist

from dkrr import blas
from dkrr.checks import finite, scales_of, shown
from dkrr.errors import InputError
from dkrr.kernels.base import Kernel
from dkrr.kernels.blocks import (
    STRIP_ENTRIES,
    Block,
    BlockWriters,
    Fill,
    FloatArray,
    Scratch,
    dot_products,
    is_sparse,
    squared_norms,
    times_powers_of_two,
)
from dkrr.kernels.lengths import Array, Scales, WithLengths, reference, times_ratios

# ‖x‖² + ‖z‖² − 2xᵀz is wrong by a few eps (‖x‖² + ‖z‖²). RBF: that times γ is the error of the kernel, so
# beyond this γ(‖x‖² + ‖z‖²) (about 1e-11 in float64, 1e-4 in float32) it is recomputed from x − z, unless
# the exponent is so low, that error allowed for, that the kernel is zero to the same accuracy.
REFINE_EXPONENT = {np.dtype(np.float64): 1e4, np.dtype(np.float32): 1e3}
ZERO_EXPONENT = -40.0
# Matérn: the square root amplifies the error near zero, so below this ‖x − z‖² / (‖x‖² + ‖z‖²) it is recomputed too.
REFINE_DISTANCE = {np.dtype(np.float64): 1e-6, np.dtype(np.float32): 1e-3}
# Beyond this |s|(‖x‖² + ‖z‖²) the augmented product may overflow: nothing of it is used.
MAX_SIZE = {np.dtype(np.float64): 1e300, np.dtype(np.float32): 1e30}
# Within 2^±200 an s changes no distance that counts where ‖x‖² leaves the range of float64; beyond, rows take it up.
MAX_SCALE_EXPONENT = 200
# Squares of Matérn's lengths, and their inverses, are in the range of float64.
MIN_LENGTH = 1e-150
# A sign bit, as an integer that is as large as an entry.
SIGN_BIT = {dtype: np.array(-0.0, dtype).view(f"i{dtype.itemsize}") for dtype in (np.dtype("f8"), np.dtype("f4"))}
# Gathering pairs of rows costs about as much as this many entries of cdist each.
GATHER_ENTRIES = 8


@dataclass(frozen=True, kw_only=True)
class RBF(WithLengths):
    """k(x, z) = exp(−γ ‖x − z‖²), or exp(−Σₖ γₖ (xₖ − zₖ)²) with a γ for each column.

    Parameters
    ----------
    gamma : float or sequence of float, optional
        γ > 0, or one for each column; None means 1 / n_features. With a length scale ℓ, γ = 1 / (2ℓ²).

    See Also
    --------
    dkrr.kernels.Laplacian : The exponential of the city-block distance.
    dkrr.kernels.Matern : Between the exponential and the Gaussian of the distance.
    dkrr.kernels.RationalQuadratic : A mixture of RBF kernels of all lengths.
    dkrr.features.RandomFourier : An approximation of RBF and other kernels by random frequencies.

    Examples
    --------
    >>> import numpy as np
    >>> from dkrr.kernels import RBF
    >>> RBF(gamma=0.5)(np.array([[0.0], [1.0]])).round(4)
    array([[1.    , 0.6065],
           [0.6065, 1.    ]])
    >>> RBF(gamma=[0.5, 0.1])(np.array([[0.0, 3.0], [1.0, 3.0]])).round(4)
    array([[1.    , 0.6065],
           [0.6065, 1.    ]])
    """

    tag: ClassVar[str] = "rbf"
    names: ClassVar[tuple[str, ...]] = (tag,)
    is_plain: ClassVar[bool] = True
    entry_seconds: ClassVar[float] = 1.5e-9
    _has_unit_diagonal: ClassVar[bool] = True
    _takes_csr: ClassVar[bool] = True
    _row_copies: ClassVar[int] = 2
    # Only where entries are recomputed: a mask, index pairs and differences.
    _strip_buffers: ClassVar[int] = 8
    _large_strip_buffers: ClassVar[int | None] = 0
    _kept_copies: ClassVar[int] = 1
    _of_columns: ClassVar[str] = "gamma"
    _translations: ClassVar[Mapping[str, str]] = {"length_scale": "gamma = 1 / (2 * length_scale**2)"}

    gamma: Scales | None = None

    def __post_init__(self) -> None:
        if self.gamma is not None:
            object.__setattr__(self, "gamma", scales_of(self.gamma, "gamma"))

    def lengths(self, n_features: int) -> Array:
        return np.broadcast_to(1.0 / np.sqrt(2.0 * self._scales(n_features)), n_features)

    def with_lengths(self, lengths: Array) -> Self:
        gamma = (0.5 / lengths**2).tolist()
        return replace(self, gamma=gamma if len(gamma) > 1 else gamma[0])

    def length_slopes(self, n_features: int) -> tuple[Kernel, Array]:
        return self, np.broadcast_to(2.0 * self._scales(n_features), n_features)

    def _scales(self, n_features: int) -> Array:
        return np.asarray(1.0 / n_features if self.gamma is None else self.gamma)

    def _block_writer(self, X: Block, Y: Block, dtype: np.dtype[Any]) -> Fill:
        return self._block_writers(Y, dtype)(X)

    def _block_writers(self, Y: Block, dtype: np.dtype[Any]) -> BlockWriters:
        assert self.gamma is not None, "the kernel must be resolved first"
        known = DistanceColumns(Y, -1.0, self.gamma, 0.5, dtype)

        def block_writer(X: Block) -> Fill:
            exponents = ScaledSquaredDistances(X, known)

            def fill(rows: slice, columns: slice, out: FloatArray) -> None:
                exponents.fill_exponents(rows, columns, out)
                np.exp(out, out=out)

            return fill

        return block_writer

    def _diagonal(self, X: Block) -> npt.NDArray[np.float64]:
        return np.ones(X.shape[0])


@dataclass(frozen=True, kw_only=True)
class Matern(WithLengths):
    """Matérn kernel for ν = 1/2, 3/2 or 5/2, as `sklearn.gaussian_process.kernels.Matern`.

    With r = √(2ν) ‖x − z‖ / ℓ:  e⁻ʳ,  (1 + r) e⁻ʳ,  (1 + r + r²/3) e⁻ʳ; with a length for each column its difference
    is divided by it.

    Parameters
    ----------
    nu : float, default=1.5
        ν, smoothness: 0.5, 1.5 or 2.5.
    length_scale : float or sequence of float, default=1.0
        ℓ > 0, or one for each column.

    See Also
    --------
    dkrr.kernels.RBF : The Gaussian of the distance.
    dkrr.kernels.Laplacian : The exponential of the city-block distance.
    dkrr.kernels.RationalQuadratic : A mixture of RBF kernels of all lengths.

    References
    ----------
    Rasmussen and Williams (2006), Gaussian Processes for Machine Learning, section 4.2, equation 4.17.

    Examples
    --------
    >>> import numpy as np
    >>> from dkrr.kernels import Matern
    >>> Matern(nu=0.5)(np.array([[0.0]]), np.array([[1.0]])).round(4)
    array([[0.3679]])
    """

    tag: ClassVar[str] = "matern"
    names: ClassVar[tuple[str, ...]] = (tag,)
    is_plain: ClassVar[bool] = True
    entry_seconds: ClassVar[float] = 4e-9
    _has_unit_diagonal: ClassVar[bool] = True
    _takes_csr: ClassVar[bool] = True
    _row_copies: ClassVar[int] = 2
    _strip_buffers: ClassVar[int] = 8
    _large_strip_buffers: ClassVar[int | None] = 1
    _kept_copies: ClassVar[int] = 1
    _of_columns: ClassVar[str] = "length_scale"

    nu: float = 1.5
    length_scale: Scales = 1.0

    def __post_init__(self) -> None:
        nu = finite(self.nu, "nu")
        if nu not in (0.5, 1.5, 2.5):
            raise InputError(f"nu is {self.nu!r}; expected 0.5, 1.5 or 2.5 (use RBF for nu = infinity)")
        object.__setattr__(self, "nu", nu)
        object.__setattr__(self, "length_scale", moderate_lengths(self.length_scale))

    def lengths(self, n_features: int) -> Array:
        return np.broadcast_to(np.asarray(self.length_scale), n_features)

    def with_lengths(self, lengths: Array) -> Self:
        length_scale = lengths.tolist()
        return replace(self, length_scale=length_scale if len(length_scale) > 1 else length_scale[0])

    def length_slopes(self, n_features: int) -> tuple[Kernel, Array]:
        # r² = 2ν Σ (xₖ − zₖ)² / ℓₖ²; dk / d(r²) is −e⁻ʳ / 2 and −(1 + r) e⁻ʳ / 6: that of a lower ν at the same r.
        if self.nu == 0.5:
            return super().length_slopes(n_features)
        nu, factor = self.nu - 1.0, {1.5: 3.0, 2.5: 5.0 / 3.0}[self.nu]
        length_scales = np.asarray(self.length_scale) * sqrt(nu / self.nu)
        return Matern(nu=nu, length_scale=length_scales.tolist()), factor / self.lengths(n_features) ** 2

    def _block_writer(self, X: Block, Y: Block, dtype: np.dtype[Any]) -> Fill:
        return self._block_writers(Y, dtype)(X)

    def _block_writers(self, Y: Block, dtype: np.dtype[Any]) -> BlockWriters:
        known, near = DistanceColumns(Y, 2 * self.nu, self.length_scale, -1.0, dtype), REFINE_DISTANCE[dtype]

        def block_writer(X: Block) -> Fill:
            squares, scratch = ScaledSquaredDistances(X, known), Scratch(dtype)

            def fill(rows: slice, columns: slice, out: FloatArray) -> None:
                squares.fill_squares(rows, columns, out, near)
                self._decay(out, scratch)

            return fill

        return block_writer

    def _diagonal(self, X: Block) -> npt.NDArray[np.float64]:
        return np.ones(X.shape[0])

    def _decay(self, squares: FloatArray, scratch: Scratch) -> None:
        """Turn r² into the kernel, in place."""
        if self.nu == 0.5:
            np.sqrt(squares, out=squares)
            np.negative(squares, out=squares)
            np.exp(squares, out=squares)
            return
        r = scratch.like(squares)
        np.sqrt(squares, out=r)
        if self.nu == 1.5:
            np.add(r, 1.0, out=squares)
        else:
            squares /= 3.0
            squares += r
            squares += 1.0
        np.negative(r, out=r)
        np.exp(r, out=r)
        squares *= r


def moderate_lengths(length_scale: object) -> Scales:
    """Checked length scales whose squares float64 represents."""
    checked = scales_of(length_scale, "length_scale")
    length_scales = np.atleast_1d(checked)
    if not MIN_LENGTH <= length_scales.min() <= length_scales.max() <= 1 / MIN_LENGTH:
        raise InputError(
            f"length_scale is {shown(checked)}; expected numbers from {MIN_LENGTH:g} to {1 / MIN_LENGTH:g}, whose "
            f"squares float64 represents"
        )
    return checked


class DistanceColumns:
    """Arrays of the rows of Y alone in f Σ (lᵖ (x − z))² over the columns (see `ScaledSquaredDistances`).

    Parameters
    ----------
    Y : ndarray or CSR, shape (n_columns, n_features)
    factor : float
        f.
    scales : float or tuple of float
        l of all columns or of each one. One for all becomes part of the number s that distances are multiplied by; of
        several this is the largest power, and columns are multiplied by their ratios to it.
    power : float
        p.
    dtype : dtype
        float64 or float32.
    """

    def __init__(self, Y: Block, factor: float, scales: Scales, power: float, dtype: np.dtype[Any]) -> None:
        self.given, self.scales, self.power, self.dtype = Y, scales, power, dtype
        if isinstance(scales, Sequence):
            size, Y = reference(scales, power), times_ratios(Y, scales, power)
        else:
            size = scales
        scale = factor * size ** (2 * power) if power > 0 else factor / size ** (-2 * power)
        self.Y, self.scale = Y, scale
        # Sizes that overflow are infinite or NaN; `fill` looks.
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            if isinstance(Y, sp.csr_array):
                self.sizes: Array = abs(scale) * squared_norms(Y)
                return
            d = Y.shape[1]
            self.mean: npt.NDArray[np.float64] = np.add.reduce(Y, 0, np.float64) / len(Y)
            self.rows, self.sizes = _augmented(Y, self.mean, scale, dtype)
            self.rows[:, d + 1] = self.rows[:, d]
            self.rows[:, d] = 1.0


class ScaledSquaredDistances:
    """s ‖x − z‖² for strips of two blocks, from one GEMM on augmented rows in `dtype`; s may have either sign.

    With x' = [−2s x, s‖x‖², 1] and z' = [z, 1, s‖z‖²] the exponent is x'ᵀz', so nothing but the GEMM runs
    over the strip. The mean of Y's rows is subtracted from both first: distances do not change, but rows far
    from the origin would lose their digits. (Not from CSR rows, which it would fill.)
    """

    def __init__(self, X: Block, known: DistanceColumns) -> None:
        dtype, Y, scale = known.dtype, known.Y, known.scale
        if X is known.given:
            X = Y
        elif isinstance(known.scales, Sequence):
            X = times_ratios(X, known.scales, known.power)
        if abs(frexp(scale)[1]) > MAX_SCALE_EXPONENT:
            X, Y, scale = _with_moderate_scale(X, Y, scale)
            known = DistanceColumns(Y, scale, 1.0, 1.0, dtype)
        self._X, self._Y, self._scale = X, Y, scale
        self._dots: Fill | None = None
        self._max_size, self._refined, self._sign_bit = MAX_SIZE[dtype], REFINE_EXPONENT[dtype], SIGN_BIT[dtype]
        self.error = 4.0 * (X.shape[1] + 2) * float(np.finfo(dtype).eps)
        """Bound of the error of an entry that `fill` writes, divided by its size."""
        self._z_size: Array = known.sizes
        # Sizes that overflow are infinite or NaN; `fill` looks.
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            if isinstance(X, sp.csr_array):
                self._dots = dot_products(X, Y, dtype)
                self._x_size: Array = self._z_size if Y is X else abs(scale) * squared_norms(X)
                return
            d = X.shape[1]
            if Y is X:
                left, self._x_size = known.rows.copy(), known.sizes
                left[:, d] = left[:, d + 1]
            else:
                left, self._x_size = _augmented(X, known.mean, scale, dtype)
            left[:, :d] *= -2.0 * scale
            left[:, d + 1] = 1.0
            self._left, self._right = left, known.rows

    def fill(self, rows: slice, columns: slice, out: FloatArray) -> float:
        """Write s ‖x − z‖², up to the sign of rounding near zero, and return the largest size in the strip.

        Entries are products, wrong by up to `error` times their size. ∞ means that products might overflow,
        and that all entries are from differences.
        """
        largest = float(self._x_size[rows].max() + self._z_size[columns].max())
        if not largest <= self._max_size:
            for where, strip in _strips(rows, out):
                self.refine(where, columns, strip, *_where(np.ones(strip.shape, dtype=bool)))
            return math.inf
        if self._dots is None:
            blas.gemm(out, self._left[rows], self._right[columns], transpose_b=True)
            return largest
        sign = 1.0 if self._scale > 0 else -1.0
        self._dots(rows, columns, out)
        out *= -2.0 * self._scale
        out += sign * self._x_size[rows, np.newaxis]
        out += sign * self._z_size[columns]
        return largest

    def largest(self, rows: slice, columns: slice) -> float:
        """Upper bound of `sizes` in the strip."""
        return float(self._x_size[rows].max() + self._z_size[columns].max())

    def fill_exponents(self, rows: slice, columns: slice, out: FloatArray) -> None:
        """Write −γ ‖x − z‖² ≤ 0, accurate enough for exp of it."""
        limit = self._refined
        if limit < self.fill(rows, columns, out) < math.inf:
            for where, strip in _strips(rows, out):
                i, j = _where(strip > ZERO_EXPONENT - self.error * self.largest(where, columns))
                sizes = self.sizes(where, columns, i, j)
                unsure = (sizes > limit) & (strip[i, j] > ZERO_EXPONENT - self.error * sizes)
                self.refine(where, columns, strip, i[unsure], j[unsure])
        # Rounding may leave a small positive exponent where rows are equal: all get the sign bit. (np.minimum with
        # a number takes five times as long as this, and half as long as exp.)
        bits = out.view(self._sign_bit.dtype)
        np.bitwise_or(bits, self._sign_bit, out=bits)

    def fill_squares(self, rows: slice, columns: slice, out: FloatArray, near: float, offset: float = 0.0) -> None:
        """Write v = s ‖x − z‖² ≥ 0, recomputed from differences where v + offset is below `near` times its size.

        The size is that of which eps is the error (`sizes`). No entry is infinite.
        """
        largest = self.fill(rows, columns, out)
        if largest == math.inf:
            np.minimum(out, np.finfo(out.dtype).max, out=out)  # ∞ times exp(−∞) is not 0
        elif near * largest > offset:
            for where, strip in _strips(rows, out):
                i, j = _where(strip < near * self.largest(where, columns) - offset)
                close = strip[i, j] < near * self.sizes(where, columns, i, j) - offset
                self.refine(where, columns, strip, i[close], j[close])
        np.abs(out, out=out)

    def sizes(
        self, rows: slice, columns: slice, i: npt.NDArray[np.intp], j: npt.NDArray[np.intp]
    ) -> npt.NDArray[np.float64]:
        """|s|(‖x‖² + ‖z‖²) of single entries; eps times it is the error that `fill` makes."""
        return self._x_size[rows][i] + self._z_size[columns][j]

    def refine(
        self,
        rows: slice,
        columns: slice,
        out: FloatArray,
        i: npt.NDArray[np.intp],
        j: npt.NDArray[np.intp],
    ) -> None:
        """Recompute single entries of a strip from differences of the rows as given; ∞ where they overflow."""
        with np.errstate(over="ignore"):
            self._refine(self._X[rows], self._Y[columns], out, i, j)

    def _refine(self, X: Block, Y: Block, out: FloatArray, i: npt.NDArray[np.intp], j: npt.NDArray[np.intp]) -> None:
        if not is_sparse(X) and len(i) * GATHER_ENTRIES > out.size:
            np.multiply(cdist(X, Y, "sqeuclidean"), self._scale, out=out, casting="same_kind")
            return
        # Gathering CSR rows takes an index for each value, and subtracting them as many entries again.
        width = 4 * int(np.diff(X.indptr).max(initial=1)) if is_sparse(X) else X.shape[1]
        chunk = max(1, STRIP_ENTRIES // width)
        for start in range(0, len(i), chunk):
            some, others = i[start : start + chunk], j[start : start + chunk]
            pairs = X[some], Y[others]
            if is_sparse(X):
                differences = pairs[0].astype(np.float64, copy=False) - pairs[1].astype(np.float64, copy=False)
            else:
                differences = np.subtract(*pairs, dtype=np.float64)
            out[some, others] = self._scale * squared_norms(differences)


def _with_moderate_scale(X: Block, Y: Block, scale: float) -> tuple[Block, Block, float]:
    """Rows times 2ᵏ and s 4⁻ᵏ for an s beyond 2^±200, with k = 0 where that could overflow; no digit changes."""
    exponent = frexp(scale)[1]
    # Rows that are not small need no larger numbers, and might overflow.
    largest = max(float(abs(rows).max()) if min(rows.shape) else 0.0 for rows in (X, Y))
    half = min(exponent // 2, MAX_SCALE_EXPONENT - frexp(largest)[1])
    if exponent > 0 and half <= 0:
        return X, Y, scale
    left = times_powers_of_two(X, half)
    return left, left if Y is X else times_powers_of_two(Y, half), ldexp(scale, -2 * half)


def _strips(rows: slice, out: FloatArray) -> Iterator[tuple[slice, FloatArray]]:
    """Cut a large strip into smaller ones, so that what is done to single entries takes little memory."""
    height = max(1, STRIP_ENTRIES // max(out.shape[1], 1))
    for top in range(0, len(out), height):
        strip = out[top : top + height]
        yield slice(rows.start + top, rows.start + top + len(strip)), strip


def _where(mask: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Indices of a mask's true entries; np.nonzero is several times slower in two dimensions."""
    i, j = np.divmod(np.flatnonzero(mask), mask.shape[1])
    return i, j


def _augmented(
    X: FloatArray, mean: npt.NDArray[np.float64], scale: float, dtype: np.dtype[Any]
) -> tuple[FloatArray, npt.NDArray[np.float64]]:
    """[x − mean, s‖x − mean‖², unset] and |s| ‖x − mean‖²."""
    n, d = X.shape
    rows = np.empty((n, d + 2), dtype=dtype)
    # Subtracted in float64 and then rounded, so that float32 keeps the digits of the small difference.
    np.subtract(X, mean, out=rows[:, :d], casting="same_kind")
    squares = np.einsum("ij,ij->i", rows[:, :d], rows[:, :d], dtype=np.float64)
    rows[:, d] = scale * squares
    return rows, abs(scale) * squares
