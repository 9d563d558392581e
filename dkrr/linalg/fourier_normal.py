"""ΦᵀWΦ of Fourier features from sums over the rows, one for every difference of two waves.

With T[k] = Σᵢ wᵢ e^{ikθᵢ} entries are ½ Re or Im of T[j − l] ± T[j + l]. One pass over the rows by nonuniform Fourier
transforms gives T; the D × D matrix is gathered from it, and products with it are convolutions. Sums of parts of the
rows add up. With an intercept features are centred by their means, which T has too.
"""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.fft
from numpy.typing import NDArray

from dkrr.cluster import Meter, RunRecord
from dkrr.data.arrays import release_pages
from dkrr.data.rows import check_finite, dense
from dkrr.kernels.fourier_grid import FourierGrid, Grid, flat_offsets
from dkrr.kernels.nonuniform import Complex, Transform
from dkrr.linalg.column_sources import ColumnSource
from dkrr.linalg.gram_products import Operator, Precision
from dkrr.linalg.passes import RowWriter, Segment

Array = NDArray[np.float64]
Numbers = NDArray[np.intp]

CHUNK_ENTRIES = 2**19
"""Entries of the matrix that are gathered together: their positions stay in the cache."""


def update_dual_coefficients(
    meter: Meter,
    phi: FourierGrid,
    segment: Segment,
    known: Any,
    duals: Any,
    coef: Array,
    offset: Array,
    inverse: Array,
) -> Array:
    """Task: α of a segment, and their sums times e^{ikθ} for half of the waves of the doubled grid, with sizes, packed.

    The sizes are Σ |α|, Σ α², and squares of what rounding has changed in the sums of blocks, seen in that for k = 0:
    it is larger where more α of one sign are added at a point of the grid of the transform.

    Parameters
    ----------
    known : ndarray or ChunkedArray of shape (n, t), optional
        α so far; None: it begins here.
    duals : ndarray or ChunkedArray of shape (n, t)
        α is written there: w (y − Φc + o) / λ, or what it was plus w (Φc − o) / λ.
    coef : ndarray of shape (D, t)
        c.
    offset : ndarray of shape (t,)
        o.
    inverse : ndarray of shape (t,)
        1 / λ of every target.
    """
    grid, t = phi.grid(segment.rows.shape[1]), coef.shape[1]
    wide = grid.n_sum_modes
    modes, total, sizes = _spread(grid.to_modes(coef), grid), np.zeros((t, *wide), np.complex128), np.zeros((3, t))
    out, targets, weights = RowWriter(duals, segment, meter), segment.target_rows(), segment.weight_rows()
    for where, x in finite_blocks(meter, segment):
        with meter.time("transform"):
            # Modes of the doubled grid at half of the angles: the even ones are those of the grid itself.
            transform = Transform(0.5 * grid.angles(x), wide)
            change = transform.to_points(modes) - offset
        alpha = targets[where] - change if known is None else change
        alpha *= inverse
        if weights is not None:
            alpha *= weights[where]
        if known is not None:
            alpha += known[where] if isinstance(known, np.ndarray) else known.read_rows(where.start, where.stop)
        out.write(where, alpha)
        release_pages(duals)
        with meter.time("transform"):
            found = transform.to_modes(alpha)
        total += found
        by_targets = np.ascontiguousarray(alpha.T)
        rounding = totals_of(found) - by_targets.sum(axis=1)  # the latter is of pairs of pairs
        sizes += np.abs(by_targets).sum(axis=1), np.einsum("ij,ij->i", by_targets, by_targets), rounding**2
    return np.concatenate([total.ravel().view(np.float64), sizes.ravel()])


def _spread(modes: Complex, grid: Grid) -> Complex:
    """Coefficients of a grid as those of the doubled grid, which has them at its even modes."""
    out = np.zeros((len(modes), *grid.n_sum_modes), np.complex128)
    out[(slice(None), *(slice(None, None, 2) for _ in grid.most))] = modes
    return out


def totals_of(modes: Complex) -> Array:
    """Sums themselves, those times e^{ikθ} for k = 0; of shape (m,)."""
    return modes.reshape(len(modes), -1)[:, modes[0].size // 2].real


def even_modes(modes: Complex, grid: Grid) -> Complex:
    """Sums for the modes of a grid, of those for the doubled grid."""
    return modes[(slice(None), *(slice(None, None, 2) for _ in grid.most))]


def finite_blocks(meter: Meter, segment: Segment) -> Iterable[tuple[slice, Array]]:
    """Blocks of a segment as dense rows, without NaN and infinity."""
    for where, x in segment.blocks(meter):
        check_finite(x, "X", where.start)
        yield where, dense(x)
        release_pages(segment.targets)  # of a mapped file, whose pages would all count as memory of this process


@dataclass
class FourierNormalMatrix(Operator):
    """A = ΦᵀWΦ, of features that are centred if there is an intercept.

    Parameters
    ----------
    grid : Grid
    sums : ndarray of shape n_sum_modes
        T.
    is_centred : bool
    threads : int
    """

    grid: Grid
    sums: Complex
    is_centred: bool
    threads: int = 1
    record: RunRecord = field(default_factory=RunRecord)

    def __post_init__(self) -> None:
        self.n = self.grid.dimension

    @cached_property
    def total(self) -> float:
        """Σ w."""
        return float(self.sums.ravel()[self.sums.size // 2].real)

    @cached_property
    def totals(self) -> Array:
        """Σ w φ, of shape (D,)."""
        flat = self.sums.ravel()[self._offsets[: self.grid.n_cosines] + self.sums.size // 2]
        return np.concatenate([flat.real, flat.imag[1:]]) * self.grid.scale

    @property
    def means(self) -> Array:
        """Means that are subtracted from the features, of shape (D,); 0 without an intercept."""
        return self.totals / self.total if self.is_centred else np.zeros(self.n)

    def moments(self, sums: Complex, totals: Array) -> Array:
        """ΦᵀWy, of shape (D, t), from Σ w y e^{ikθ}, (t, *n_sum_modes), and Σ w y, (t,)."""
        flat = sums.reshape(len(sums), -1)[:, self._offsets[: self.grid.n_cosines] + self.sums.size // 2].T
        found = np.concatenate([flat.real, flat.imag[1:]]) * self.grid.scale[:, None]
        return found - self.means[:, None] * totals

    @cached_property
    def _offsets(self) -> Numbers:
        """Position of the mode of every feature in an array of `n_sum_modes`, from the middle."""
        half = flat_offsets(self.grid.frequencies, self.grid.n_sum_modes)
        return np.concatenate([half, half[1:]])

    @cached_property
    def _parts(self) -> tuple[Array, Array]:
        flat = self.sums.ravel()
        return np.ascontiguousarray(flat.real), np.ascontiguousarray(flat.imag)

    def mean_square(self) -> float:
        """Weighted mean of k(x, z)² over pairs of rows: Σₖ |Tₖ|² (w ∗ w)ₖ / T₀², with the weights w of all modes."""
        cosines = np.concatenate([self.grid.scale[: self.grid.n_cosines], np.zeros(self.n - self.grid.n_cosines)])
        weights = self.grid.to_modes(cosines[:, None])[0].real
        spectrum = scipy.fft.rfftn(weights, self._shape)
        squared = scipy.fft.irfftn(spectrum**2, self._shape, overwrite_x=True)
        squared = squared[tuple(slice(0, k) for k in self.grid.n_sum_modes)]
        return max(float(np.vdot(self.sums * squared, self.sums).real) / self.total**2, 0.0)

    def diagonal(self) -> Array:
        """Diagonal of A, of shape (D,)."""
        real, _ = self._parts
        plus = real[self.sums.size // 2 + 2 * self._offsets]
        plus[self.grid.n_cosines :] *= -1.0
        found = 0.5 * self.grid.scale**2 * (self.total + plus)
        return np.maximum(found - self.total * self.means**2, 0.0) if self.is_centred else found

    def entries(self, rows: slice | Numbers, columns: Numbers | slice) -> Array:
        """Entries of A; rows are all cosines or all sines."""
        h, middle, (real, imaginary) = self.grid.n_cosines, self.sums.size // 2, self._parts
        numbers = np.arange(self.n)[columns]
        order = None if isinstance(columns, slice) else np.argsort(numbers >= h, kind="stable")
        numbers = numbers if order is None else numbers[order]
        cut, left, right = int(np.count_nonzero(numbers < h)), self._offsets[rows], self._offsets[numbers]
        minus, plus = middle + left[:, None] - right, middle + left[:, None] + right
        out, (cosines, sines) = np.empty(minus.shape), (slice(0, cut), slice(cut, None))
        if (rows.start if isinstance(rows, slice) else rows[0]) < h:
            out[:, cosines] = real[minus[:, cosines]] + real[plus[:, cosines]]
            out[:, sines] = imaginary[plus[:, sines]] - imaginary[minus[:, sines]]
        else:
            out[:, cosines] = imaginary[plus[:, cosines]] + imaginary[minus[:, cosines]]
            out[:, sines] = real[minus[:, sines]] - real[plus[:, sines]]
        scale = self.grid.scale
        out *= (0.5 * scale[rows])[:, None] * scale[numbers]
        if self.is_centred:
            means = self.means
            out -= (self.total * means[rows])[:, None] * means[numbers]
        if order is None:
            return out
        found = np.empty_like(out)
        found[:, order] = out
        return found

    def row_chunks(self, rows: slice, width: int) -> list[slice]:
        """Rows of the matrix that are gathered together: all cosines or all sines."""
        h, height = self.grid.n_cosines, max(1, CHUNK_ENTRIES // max(width, 1))
        cuts = sorted(
            {rows.start, rows.stop, min(max(h, rows.start), rows.stop), *range(rows.start, rows.stop, height)}
        )
        return [slice(a, b) for a, b in pairwise(cuts)]

    def matrix(self) -> Array:
        """Lower triangle of A, of shape (D, D)."""
        out, _ = np.empty((self.n, self.n)), (self._parts, self._offsets)

        def fill(rows: slice) -> None:
            out[rows, : rows.stop] = self.entries(rows, slice(0, rows.stop))

        with ThreadPoolExecutor(self.threads) as pool:
            list(pool.map(fill, self.row_chunks(slice(0, self.n), self.n)))
        return out

    @cached_property
    def _shape(self) -> tuple[int, ...]:
        return tuple(int(scipy.fft.next_fast_len(k)) for k in self.grid.n_sum_modes)

    @cached_property
    def _transformed(self) -> Array:
        """Transform of T, which is real, as T[−k] = conj(T[k])."""
        return np.ascontiguousarray(self._padded(self.sums[None])[0].real)

    def _padded(self, modes: Complex) -> Complex:
        """Transform of modes around 0, of shape (m, ...), on a grid where convolutions do not overlap."""
        sizes, axes = modes.shape[1:], tuple(range(1, modes.ndim))
        wide = np.zeros((len(modes), *self._shape), np.complex128)
        wide[(slice(None), *(slice(0, k) for k in sizes))] = modes
        wide = np.roll(wide, [-(k // 2) for k in sizes], axes)
        return np.asarray(scipy.fft.fftn(wide, axes=axes, workers=self.threads, overwrite_x=True))

    def multiply(
        self,
        vectors: Array,
        precision: Precision = "float64",  # noqa: ARG002
        columns: NDArray[np.intp] | None = None,  # noqa: ARG002
    ) -> Array:
        """See base class: a convolution with T; always in float64."""
        out = np.empty(vectors.shape)
        for k in range(vectors.shape[1]):
            modes = np.conj(self.grid.to_modes(vectors[:, k : k + 1]))
            spectrum = self._padded(modes)
            spectrum *= self._transformed
            axes = tuple(range(1, spectrum.ndim))
            found = scipy.fft.ifftn(spectrum, axes=axes, workers=self.threads, overwrite_x=True)
            sizes = self.grid.n_modes
            found = np.roll(found, [k // 2 for k in sizes], axes)[(slice(None), *(slice(0, k) for k in sizes))]
            out[:, k] = self.grid.of_modes(found)[:, 0]
        if self.is_centred:
            means = self.means
            out -= (self.total * means)[:, None] * (means @ vectors)
        return out


@dataclass(frozen=True)
class FourierNormalColumns(ColumnSource):
    """Columns of A, for a partial factor."""

    whole: FourierNormalMatrix

    @property
    def n(self) -> int:
        return self.whole.n

    def diagonal(self, rows: slice) -> Array:
        return self.whole.diagonal()[rows]

    def select_columns(self, index: Numbers) -> Numbers:
        """The numbers."""
        return index

    def block(self, rows: slice, taken: Numbers) -> Array:
        chunks = self.whole.row_chunks(rows, len(taken))
        return np.concatenate([self.whole.entries(chunk, taken) for chunk in chunks])

    def among(self, left: Numbers, right: Numbers) -> Array:
        out, is_sine = np.empty((len(left), len(right))), left >= self.whole.grid.n_cosines
        for kind in (is_sine, ~is_sine):
            if kind.any():
                out[kind] = self.whole.entries(left[kind], right)
        return out
