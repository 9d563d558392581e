"""Fourier features on a grid: the RBF kernel in a box as a finite sum of plane waves, within a certified error.

On |xᵢ − zᵢ| ≤ Lᵢ the kernel is that of a period Pᵢ > Lᵢ but for its images (aliasing), and that is a Fourier series,
whose weights fall as fast as the kernel is smooth (truncation):

    k(x, z) ≈ Σⱼ wⱼ e^{2πi Σᵢ jᵢ(xᵢ − zᵢ)/Pᵢ},    wⱼ = Πᵢ √(π/γᵢ)/Pᵢ · exp(−π²jᵢ²/(Pᵢ²γᵢ)) > 0.

Both errors have bounds in closed form. For few columns there are far fewer waves than rows, and all sums over rows
are nonuniform Fourier transforms: Φ is never formed.

References
----------
P. Greengard, M. Rachh, A. Barnett, "Equispaced Fourier representations for efficient Gaussian process regression from
a billion data points", arXiv 2210.10210.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import product
from math import erfc, exp, log, pi, prod, sqrt
from math import gamma as gamma_function
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import betaincinv

from dkrr.checks import flag, positive, refuse_masked, shown
from dkrr.errors import InputError
from dkrr.kernels.base import Kernel
from dkrr.kernels.blocks import Block
from dkrr.kernels.columns import Columns
from dkrr.kernels.composite import Product, Scaled, Sum
from dkrr.kernels.euclidean import RBF, Matern
from dkrr.kernels.fourier import TRIGONOMETRIC_SECONDS
from dkrr.kernels.map_base import Array, FeatureMap, as_base, dense_rows
from dkrr.kernels.nonuniform import Complex, Transform, check_available, transform_bytes
from dkrr.text import plural

MAX_GRID_COLUMNS = 3
MAX_MODES = 2**20
"""Most waves of a box whose weights are computed at all, those of the doubled grid not counted."""
MAX_REACH = 1e7
"""Largest length of a box in lengths of the kernel, 1/√γ, whose waves are counted."""
IMAGES = 3
"""Images of the kernel on either side that count as aliasing; those beyond are smaller than any double."""
SERIES_ROUNDING = 1e-15
"""Error relative to k(x, x) that rounding leaves in any entry."""
MAX_TRANSFORMED_ROWS = 2**20
"""Most rows that are transformed together."""


class Term(NamedTuple):
    """s exp(−Σᵢ γᵢ(xᵢ − zᵢ)²)."""

    scale: float
    gammas: dict[int, float]
    """γᵢ by the number of the column; columns that are not named do not count."""


def gaussian_terms(kernel: Kernel, n_features: int) -> list[Term] | None:
    """Kernel as a sum of Gaussians: an RBF kernel, and sums, products and multiples of such kernels, of any columns.

    None for other kernels, and where one takes more columns than a grid has.
    """
    match kernel:
        case RBF():
            if n_features > MAX_GRID_COLUMNS:
                return None
            gammas = np.broadcast_to(1.0 / n_features if kernel.gamma is None else kernel.gamma, n_features)
            return [Term(1.0, dict(enumerate(gammas.tolist())))]
        case Scaled():
            base = gaussian_terms(kernel.base, n_features)
            return None if base is None else [Term(kernel.scale * s, g) for s, g in base]
        case Sum() | Product():
            left, right = gaussian_terms(kernel.left, n_features), gaussian_terms(kernel.right, n_features)
            if left is None or right is None:
                return None
            return left + right if isinstance(kernel, Sum) else [_product(a, b) for a in left for b in right]
        case Columns():
            base = gaussian_terms(kernel.base, kernel.width(n_features))
            numbers = np.arange(n_features)[kernel.numbers(n_features)]
            return None if base is None else [Term(s, {int(numbers[k]): v for k, v in g.items()}) for s, g in base]
    return None


def _terms_without(kernel: Kernel, n_features: int, columns: tuple[int, ...]) -> list[Term]:
    """Terms that do not take any of some columns."""
    return [term for term in gaussian_terms(kernel, n_features) or [] if term.gammas.keys().isdisjoint(columns)]


def _product(left: Term, right: Term) -> Term:
    columns = left.gammas.keys() | right.gammas.keys()
    return Term(left.scale * right.scale, {c: left.gammas.get(c, 0.0) + right.gammas.get(c, 0.0) for c in columns})


def grid_columns(kernel: Kernel, n_features: int) -> tuple[int, ...]:
    """Numbers of the columns that a grid for this kernel has; empty where there is none."""
    terms = gaussian_terms(kernel, n_features) or []
    columns = tuple(sorted({c for term in terms for c in term.gammas}))
    return columns if len(columns) <= MAX_GRID_COLUMNS else ()


class Waves(NamedTuple):
    """Frequencies of a grid along one column: period, and largest wave number."""

    period: float
    most: int
    """m: modes are −m ... m."""
    error: float
    """Aliasing and truncation of a kernel with k(0) = 1 in this column alone."""
    alias: float


def waves(gammas: Sequence[float], length: float, error: float) -> Waves:
    """Shortest period and fewest modes of a column of this length, for the smallest and the largest γ."""
    low, high = min(gammas), max(gammas)
    period = length + sqrt(log(4.0 / error) / low)
    while (alias := _alias(low, period, length)) > error / 2:
        period *= 1.002
    most = 1
    while (tail := erfc(pi * most / (period * sqrt(high)))) > error / 2:
        most += 1 + most // 64
    return Waves(period, most, alias + tail, alias)


def _alias(gamma: float, period: float, length: float) -> float:
    """Images of the kernel at the largest difference, where they are largest."""
    reach = ((p * period - length, p * period + length) for p in range(1, IMAGES + 1))
    return sum(exp(-gamma * near**2) + exp(-gamma * far**2) for near, far in reach)


@dataclass(frozen=True)
class FourierGrid(FeatureMap):
    """Features of the RBF kernel in a box, √wⱼ (cos θⱼ, sin θⱼ): k(x, z) = φ(x)ᵀφ(z) within a certified error.

    For rows in one to three columns, of which there may be millions. `KernelRidge(kernel="rbf")` chooses it
    where it is cheaper; by name it serves as any map. Sums, products and multiples of RBF kernels have one grid
    together.

    Parameters
    ----------
    base : Kernel
        An RBF kernel of at most three columns, or sums, products and multiples of such kernels; or a Matérn kernel,
        whose waves fall slowly: 30,000 in two columns for an error of 1e-6 with ν = 5/2, and far more with less.
    error : float, default=1e-15
        Largest |k(x, z) − φ(x)ᵀφ(z)| / k(x, x) in the box.
    box : sequence of (float, float), optional
        Smallest and largest value of each column that the kernel takes; None: those of the training rows.
    doubled : bool, default=False
        With twice the period: also for differences of up to the period, between the box and rows near it.

    See Also
    --------
    dkrr.features.RandomFourier : An approximation of RBF and other kernels by random frequencies.
    dkrr.features.Nystroem : An approximation of any kernel by some of the rows.
    dkrr.kernels.RBF : The Gaussian of the distance.

    Examples
    --------
    >>> import numpy as np
    >>> from dkrr.features import FourierGrid
    >>> from dkrr.kernels import RBF
    >>> phi = FourierGrid(RBF(gamma=20.0), box=[(0.0, 1.0)])
    >>> X = np.linspace(0.0, 1.0, 1000)[:, None]
    >>> phi.dimension(1), bool(np.abs(phi.transform(X) @ phi.transform(X).T - RBF(gamma=20.0)(X)).max() < 1e-14)
    (39, True)
    """

    tag: ClassVar[str] = "fourier_grid"
    is_transform: ClassVar[bool] = True

    base: Kernel
    error: float = SERIES_ROUNDING
    box: Any = None
    doubled: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "base", as_base(self.base, "FourierGrid"))
        object.__setattr__(self, "error", positive(self.error, "error"))
        object.__setattr__(self, "doubled", flag(self.doubled, "doubled"))
        if self.error >= 1:
            raise InputError(f"error is {self.error:g}; expected a part of k(x, x), less than 1")
        if self.box is not None:
            refuse_masked(self.box, "box")
            box: tuple[tuple[float, float], ...] = ()
            with suppress(TypeError, ValueError):  # of values that are not arrays
                given = np.asarray(self.box)
                if given.dtype.kind in "iuf" and given.shape[1:] == (2,):
                    box = tuple((float(low), float(high)) for low, high in given)
            if not box or not all(np.isfinite(pair).all() and pair[0] <= pair[1] for pair in box):
                raise InputError(f"box is {shown(self.box)}; expected finite (smallest, largest) of each column")
            object.__setattr__(self, "box", box)

    def in_box(self, box: Sequence[tuple[float, float]]) -> "FourierGrid":
        """Feature map of the same kernel for rows in a box.

        Parameters
        ----------
        box : sequence of (float, float)
            Smallest and largest value of each column.

        Returns
        -------
        FourierGrid
            Map that is exact to its error for these rows.
        """
        return replace(self, box=tuple(box))

    def columns(self, n_features: int) -> tuple[int, ...]:
        """Numbers of the columns of the box.

        Parameters
        ----------
        n_features : int
            Number of columns of X.

        Returns
        -------
        tuple of int
            Numbers, counted from 0.

        Raises
        ------
        InputError
            If the kernel has no such features.
        """
        columns = grid_columns(self.base, n_features)
        if not columns and isinstance(self.base, Matern) and n_features <= MAX_GRID_COLUMNS:
            columns = tuple(range(n_features))
        if not columns:
            raise InputError(
                f"base of FourierGrid is {self.base!r}, and X has {plural(n_features, 'column')}; expected an RBF "
                f"kernel of at most {MAX_GRID_COLUMNS} columns (dkrr.kernels.Columns takes some of many), sums, "
                f"products and multiples of such kernels, or a Matern kernel"
            )
        return columns

    def dimension(self, n_features: int) -> int:
        return self.grid(n_features).dimension

    def entry_seconds(self, n_features: int) -> float:  # noqa: ARG002
        return TRIGONOMETRIC_SECONDS

    def held_bytes(self, n_features: int) -> int:
        grid = self.grid(n_features)
        return transform_bytes(grid.n_modes, 0) + 64 * grid.dimension

    def grid(self, n_features: int) -> "Grid":
        """Grid of frequencies for rows with `n_features` columns.

        Parameters
        ----------
        n_features : int
            Number of columns of X.

        Returns
        -------
        Grid
            Frequencies and their weights.
        """
        return _grid(self, n_features)

    def of_terms_without(self, columns: tuple[int, ...]) -> "FourierGrid":
        """Features of the terms of the kernel that do not take some columns.

        Parameters
        ----------
        columns : tuple of int
            Numbers of the columns.

        Returns
        -------
        FourierGrid
            Itself, if there are none.
        """
        if not columns:
            return self
        return GridOfTerms(self.base, self.error, self.box, columns, doubled=self.doubled)

    def _fill(self, X: Block, start: int, stop: int, out: Array) -> None:
        grid = self.grid(X.shape[1])
        angles, h = grid.angles(dense_rows(X)), grid.n_cosines
        cosines, sines = slice(start, min(stop, h)), slice(max(start, h), stop)
        if cosines.start < cosines.stop:
            np.cos(angles @ grid.frequencies[cosines].T, out=out[:, : cosines.stop - start])
        if sines.start < sines.stop:
            np.sin(
                angles @ grid.frequencies[sines.start - h + 1 : sines.stop - h + 1].T, out=out[:, sines.start - start :]
            )
        out *= grid.scale[start:stop]

    def _multiply(self, X: Block, coef: Array) -> Array:
        grid = self.grid(X.shape[1])
        if grid.is_quicker_formed(X.shape[0]):
            return super()._multiply(X, coef)
        out, modes, x = np.empty((X.shape[0], coef.shape[1])), grid.to_modes(coef), dense_rows(X)
        for rows in row_blocks(X.shape[0]):
            out[rows] = Transform(grid.angles(x[rows]), grid.n_modes).to_points(modes)
        return out

    def _adjoint(self, X: Block, values: Array) -> Array:
        grid = self.grid(X.shape[1])
        if grid.is_quicker_formed(X.shape[0]):
            return super()._adjoint(X, values)
        x, total = dense_rows(X), np.zeros((values.shape[1], *grid.n_modes), np.complex128)
        for rows in row_blocks(X.shape[0]):
            total += Transform(grid.angles(x[rows]), grid.n_modes).to_modes(values[rows])
        return grid.of_modes(total)


@dataclass(frozen=True)
class GridOfTerms(FourierGrid):
    """Features, on the waves of a grid, of the terms of its kernel that do not take some columns.

    With them φ(x)ᵀφ(z) for features φ(z) of the grid is the sum of these terms.

    Parameters
    ----------
    without : tuple of int
        Numbers of the columns.
    """

    without: tuple[int, ...] = ()

    def grid(self, n_features: int) -> "Grid":
        return _grid_of_terms(self, n_features)


class Zone(NamedTuple):
    """Rows whose kernels with the rows in a box have the same features."""

    where: Any
    """Which rows, as an index."""
    rows: Array
    """These, in the middle of the box in columns in which they are far from it."""
    phi: FourierGrid
    first: int
    """Position of the features among those of all zones."""
    far: tuple[int, ...]
    """Numbers of the columns in which they are far."""


@dataclass(frozen=True)
class FourierZones(FeatureMap):
    """Features of a grid for rows in its box, of the doubled grid for rows near it, and none beyond: φ of predictions.

    The sum of waves goes on periodically outside of the box, where it is not the kernel. Of rows nearer to the box than
    the difference between period and length the doubled grid has the kernel. In a column in which a row is farther away
    every term of the kernel that takes this column is 0 to rounding, and the others do not depend on it.

    Parameters
    ----------
    inside : FourierGrid
    """

    tag: ClassVar[str] = "fourier_zones"
    is_transform: ClassVar[bool] = True

    inside: FourierGrid

    @property
    def near(self) -> FourierGrid:
        """The doubled grid."""
        return replace(self.inside, doubled=True)

    def dimension(self, n_features: int) -> int:
        return self.inside.dimension(n_features) + self.near.dimension(n_features)

    def entry_seconds(self, n_features: int) -> float:
        return self.inside.entry_seconds(n_features)

    def held_bytes(self, n_features: int) -> int:
        return self.inside.held_bytes(n_features) + self.near.held_bytes(n_features)

    def zones(self, x: Array) -> Iterator[Zone]:
        """Zones that have rows, but for that where all terms of the kernel are 0.

        Raises
        ------
        InputError
            If finufft is not installed: a few rows would not need it, and more would fail later.
        """
        check_available()
        d, near = x.shape[1], self.near.grid(x.shape[1])
        away = near.away(x)  # both grids have one middle
        is_inside = self.inside.grid(d).is_in_limits(away).all(axis=1)
        if is_inside.all():
            yield Zone(slice(None), x, self.inside, 0, ())
            return
        if is_inside.any():
            yield Zone(is_inside, x[is_inside], self.inside, 0, ())
        outside, first = np.flatnonzero(~is_inside), self.inside.dimension(d)
        is_far = ~near.is_in_limits(away[outside])
        patterns = sum(is_far[:, k].astype(np.intp) << k for k in range(len(near.columns)))
        for pattern in np.flatnonzero(np.bincount(patterns)).tolist():
            places = [k for k in range(len(near.columns)) if pattern >> k & 1]
            far = tuple(near.columns[k] for k in places)
            if far and not _terms_without(self.inside.base, d, far):
                continue
            where = outside[patterns == pattern]
            rows = np.array(x[where], np.float64)
            rows[:, list(far)] = near.centre[places]
            yield Zone(where, rows, self.near.of_terms_without(far), first, far)

    def _fill(self, X: Block, start: int, stop: int, out: Array) -> None:
        out[...] = 0.0
        for zone in self.zones(dense_rows(X)):
            a, b = max(start - zone.first, 0), min(stop - zone.first, zone.phi.dimension(X.shape[1]))
            if a < b:
                columns = slice(a + zone.first - start, b + zone.first - start)
                out[zone.where, columns] = zone.phi.transform(zone.rows, slice(a, b))

    def _multiply(self, X: Block, coef: Array) -> Array:
        out = np.zeros((X.shape[0], coef.shape[1]))
        for where, rows, phi, first, _ in self.zones(dense_rows(X)):
            out[where] = phi.multiply(rows, coef[first : first + phi.dimension(X.shape[1])])
        return out


def map_of_predictions(phi: FeatureMap) -> FeatureMap:
    """Map that predictions take: of a grid with all zones, as further rows may lie outside of its box."""
    return FourierZones(phi) if isinstance(phi, FourierGrid) else phi


def map_of_fit(phi: FeatureMap | None) -> FeatureMap | None:
    """Map of the fit whose predictions take this one."""
    return phi.inside if isinstance(phi, FourierZones) else phi


def row_blocks(n: int) -> list[slice]:
    """Rows that are transformed together."""
    return [slice(k, min(k + MAX_TRANSFORMED_ROWS, n)) for k in range(0, n, MAX_TRANSFORMED_ROWS)]


@dataclass(frozen=True, eq=False)
class Grid:
    """Waves of a box: half of the modes, whose first component that is not 0 is positive, after that of j = 0.

    Features are the cosines of all of them, the constant first, and then the sines of all but that.
    """

    columns: tuple[int, ...]
    centre: Array
    """Middle of the box, (d,)."""
    reach: Array
    """Half of the lengths of the box, (d,)."""
    periods: Array
    """Pᵢ, (d,)."""
    most: tuple[int, ...]
    """mᵢ: modes of a column are −m ... m."""
    frequencies: Array
    """j, of shape (h, d), as numbers for products."""
    scale: Array
    """Factors of the cosines and sines, (D,)."""
    bound: float
    """Largest |φ(x)ᵀφ(z) − k(x, z)| in the box."""
    unit: float
    """k(x, x)."""
    is_doubled: bool

    @property
    def limits(self) -> Array:
        """Largest distance of a row from the middle, (d,): where the waves are the kernel, and rounding."""
        most = 0.5 * self.periods - self.reach if self.is_doubled else self.reach
        return np.asarray(most + 4 * np.finfo(float).eps * (np.abs(self.centre) + self.reach))

    @property
    def n_cosines(self) -> int:
        """Cosines, the constant among them."""
        return len(self.frequencies)

    @property
    def dimension(self) -> int:
        """D."""
        return len(self.scale)

    @property
    def n_modes(self) -> tuple[int, ...]:
        """Modes of every column."""
        return tuple(2 * m + 1 for m in self.most)

    @property
    def middle(self) -> tuple[int, ...]:
        """Position of mode 0 in an array of `n_sum_modes`."""
        return tuple(2 * m for m in self.most)

    @property
    def n_sum_modes(self) -> tuple[int, ...]:
        """Modes of differences and sums of two waves."""
        return tuple(4 * m + 1 for m in self.most)

    def away(self, x: Array) -> Array:
        """Differences of rows from the middle, of shape (n, d)."""
        with np.errstate(over="ignore"):
            return np.asarray(x[:, list(self.columns)], np.float64) - self.centre

    def is_in_limits(self, away: Array) -> npt.NDArray[np.bool_]:
        """Whether the waves are the kernel at such differences from the middle, of shape (n, d)."""
        return np.asarray(np.abs(away) <= self.limits)

    def angles(self, x: Array, *, is_checked: bool = True) -> Array:
        """θ of rows, of shape (n, d); the middle of the box first, so that far origins cost no digits."""
        away = self.away(x)
        if is_checked and not (is_in := self.is_in_limits(away)).all():
            i, k = np.argwhere(~is_in)[0].tolist()
            raise InputError(
                f"a row has {away[i, k] + self.centre[k]:.6g} in column {self.columns[k]}, outside of the box of a "
                f"FourierGrid, where its waves are not the kernel; expected at most {self.limits[k]:.6g} from "
                f"{self.centre[k]:.6g}: give a larger box=, or the kernel itself"
            )
        return np.asarray(away * (2 * pi / self.periods))

    def is_quicker_formed(self, n_rows: int) -> bool:
        """Whether features of `n_rows` rows take less time than a transform."""
        return n_rows * self.dimension <= 8 * prod(self.n_modes) + 4096

    @cached_property
    def flat(self) -> npt.NDArray[np.intp]:
        """Positions of the modes j in an array of `n_modes`, of shape (h,)."""
        return flat_offsets(self.frequencies, self.n_modes) + prod(self.n_modes) // 2

    def to_modes(self, coef: Array) -> Complex:
        """Coefficients c, c₋ⱼ = conj(cⱼ), whose sum is Φ times `coef`, (D, m); of shape (m, *n_modes)."""
        h, scaled = self.n_cosines, coef * self.scale[:, None]
        half = scaled[:h].astype(np.complex128)
        half[1:] -= 1j * scaled[h:]
        half[1:] *= 0.5
        out = np.zeros((coef.shape[1], prod(self.n_modes)), np.complex128)
        out[:, self.flat] = half.T
        out[:, -1 - self.flat] = np.conj(half.T)
        return out.reshape(-1, *self.n_modes)

    def of_modes(self, sums: Complex) -> Array:
        """Φᵀv, of shape (D, m), from Σᵢ vᵢ e^{ijθᵢ}, (m, *n_modes)."""
        found = sums.reshape(len(sums), -1)[:, self.flat].T
        return np.concatenate([found.real, found.imag[1:]]) * self.scale[:, None]


def flat_offsets(modes: Array, n_modes: tuple[int, ...]) -> npt.NDArray[np.intp]:
    """Positions of modes, of shape (h, d), in an array of all modes that is flat, from that of mode 0 in its middle."""
    steps = np.cumprod((1, *n_modes[:0:-1]))[::-1]
    return np.asarray(modes.astype(np.intp) @ steps, np.intp)


class Series(NamedTuple):
    """Fourier series of a kernel with a period in every column."""

    periods: Array
    weights: Array
    """Weights of all modes of a box, of shape n_modes."""
    error: float
    """Aliasing in the box of the rows, and weights of modes that are not in that of the modes."""
    unit: float
    """k(x, x)."""


@lru_cache(maxsize=16)
def _grid(phi: FourierGrid, n_features: int) -> Grid:
    columns = phi.columns(n_features)
    if phi.box is None or len(phi.box) != len(columns):
        raise InputError(f"box is {shown(phi.box)}; expected (smallest, largest) of the columns {columns}")
    low, high = np.array(phi.box).T
    series_of = _matern_series if isinstance(phi.base, Matern) else _gaussian_series
    with np.errstate(over="ignore"):  # such a length is refused
        lengths = high - low
    series = series_of(phi, columns, lengths.tolist(), n_features)
    most = tuple(k // 2 for k in series.weights.shape)
    modes, weights, dropped = _kept(series.weights, phi.error / (len(columns) + 1) * series.unit)
    scale = np.sqrt(np.concatenate([weights[:1], 2.0 * weights[1:], 2.0 * weights[1:]]))
    centre, reach = 0.5 * low + 0.5 * high, 0.5 * lengths
    bound = series.error + dropped
    return Grid(columns, centre, reach, series.periods, most, modes, scale, bound, series.unit, phi.doubled)


@lru_cache(maxsize=16)
def _grid_of_terms(phi: GridOfTerms, n_features: int) -> Grid:
    whole = _grid(phi, n_features)
    weights = np.zeros(whole.n_cosines)
    for term in _terms_without(phi.base, n_features, phi.without):
        product = np.full(whole.n_cosines, term.scale)
        for column, period, j in zip(whole.columns, whole.periods.tolist(), whole.frequencies.T, strict=True):
            product *= _weights(term.gammas.get(column, 0.0), period, j)
        weights += product
    both = np.concatenate([weights[:1], 2.0 * weights[1:], 2.0 * weights[1:]])
    return replace(whole, scale=both / whole.scale)


def _weights(gamma: float, period: float, modes: Array) -> Array:
    """Weights of the modes of a column for exp(−γ x²), and of a constant for γ = 0."""
    if not gamma:
        return np.asarray(modes == 0, np.float64)
    return np.asarray(sqrt(pi / gamma) / period * np.exp(-((pi * modes / period) ** 2) / gamma))


def _refuse_many(phi: FourierGrid, columns: tuple[int, ...], most: Sequence[int]) -> None:
    """Raise InputError if there are more modes than are computed at all."""
    if prod(2 * m + 1 for m in most) > MAX_MODES:
        sides = ", ".join(f"{2 * m + 1:,} in column {c}" for c, m in zip(columns, most, strict=True))
        raise InputError(
            f"the box of the rows, {phi.box}, is so long beside the lengths of the kernel that it takes {sides} waves; "
            f"expected at most {MAX_MODES:,} in all: use form='dual'"
        )


def _refuse_long(phi: FourierGrid, columns: tuple[int, ...], reaches: Array) -> None:
    """Raise InputError if the box is longer than MAX_REACH lengths of the kernel, where waves are not counted."""
    if not (reaches <= MAX_REACH).all():
        k = int(np.argmax(~(reaches <= MAX_REACH)))
        raise InputError(
            f"the box of the rows has the length {phi.box[k][1] - phi.box[k][0]:.3g} in column {columns[k]}, more than "
            f"{MAX_REACH:.0e} lengths of the kernel: a Fourier grid is for smooth functions of rows near each other"
        )


def _gaussian_series(phi: FourierGrid, columns: tuple[int, ...], lengths: list[float], n_features: int) -> Series:
    terms, factor = gaussian_terms(phi.base, n_features) or [], 2 if phi.doubled else 1
    gammas = np.array([[term.gammas.get(c, 0.0) for c in columns] for term in terms])
    unit = sum(term.scale for term in terms)
    _refuse_long(phi, columns, np.array(lengths) * np.sqrt(gammas.max(axis=0)))
    found = [
        waves([g for g in of_column if g > 0], length, phi.error / (len(columns) + 1))
        for of_column, length in zip(gammas.T.tolist(), lengths, strict=True)
    ]
    _refuse_many(phi, columns, [w.most for w in found])
    periods, most = [factor * w.period for w in found], [factor * w.most for w in found]
    total = np.zeros([2 * m + 1 for m in most])
    for term, of_term in zip(terms, gammas.tolist(), strict=True):
        product = np.array(term.scale)
        for gamma, period, m in zip(of_term, periods, most, strict=True):
            product = product[..., None] * _weights(gamma, period, np.arange(-m, m + 1.0))
        total += product
    error = unit * sum(w.error for w in found) * prod(1.0 + w.alias for w in found)
    return Series(np.array(periods), total, error, unit)


def _matern_series(phi: FourierGrid, columns: tuple[int, ...], lengths: list[float], n_features: int) -> Series:
    """Fourier series of a Matérn kernel.

    Its weights, the density of a multivariate t with 2ν degrees of freedom and scale 1 / ℓ, decay as a power.
    """
    kernel, d, factor, share = phi.base, len(columns), 2 if phi.doubled else 1, phi.error / (len(columns) + 1)
    assert isinstance(kernel, Matern)
    nu, scales = kernel.nu, np.broadcast_to(np.asarray(kernel.length_scale, np.float64), n_features)
    _refuse_long(phi, columns, np.array(lengths) / scales)
    extents, images = np.array(lengths) / scales, np.array(list(product(range(-IMAGES, IMAGES + 1), repeat=d)))
    others = images[np.any(images != 0, axis=1)]

    def values(differences: Array) -> Array:
        unit = Matern(nu=nu, length_scale=1.0)
        return np.asarray(unit(differences, np.zeros((1, d)))[:, 0])

    gap = 1.0
    # Where each image is nearest, wherever in the box that is.
    while (alias := float(values(np.maximum(np.abs(others) * (extents + gap) - extents, 0.0)).sum())) > share:
        gap *= 1.02
    periods = extents + gap
    beyond = 2 * nu * (1.0 / betaincinv(nu, d / 2, share) - 1.0)  # ρ² beyond which this share of the weight lies
    most = np.ceil(sqrt(beyond) * periods / (2 * pi)).astype(int)
    _refuse_many(phi, columns, most.tolist())
    periods, most = factor * periods, factor * most
    squares = np.zeros(())
    for period, m in zip(periods.tolist(), most.tolist(), strict=True):
        squares = squares[..., None] + (2 * pi / period * np.arange(-m, m + 1.0)) ** 2
    constant = 2**d * pi ** (d / 2) * gamma_function(nu + d / 2) * (2 * nu) ** nu / gamma_function(nu)
    weights = constant / prod(periods.tolist()) * (2 * nu + squares) ** (-nu - d / 2)
    left = float(values(images * periods).sum() - weights.sum())
    return Series(periods * scales[list(columns)], weights, alias + max(left, 0.0), 1.0)


def _kept(total: Array, allowed: float) -> tuple[Array, Array, float]:
    """Modes that are kept, (h, d), their weights, (h,), in falling order after that of j = 0, and the sum dropped."""
    weights, middle = total.ravel(), total.size // 2
    # Flat positions above the middle are those whose first component that is not 0 is positive.
    half = middle + 1 + np.argsort(-weights[middle + 1 :], kind="stable")
    tails = 2.0 * np.cumsum(weights[half][::-1])
    n_dropped = int(np.searchsorted(tails, allowed, side="right"))
    kept = np.concatenate([[middle], half[: len(half) - n_dropped]])
    modes = np.stack(np.unravel_index(kept, total.shape), axis=1) - np.array(total.shape) // 2
    return modes.astype(np.float64), weights[kept], float(tails[n_dropped - 1]) if n_dropped else 0.0
