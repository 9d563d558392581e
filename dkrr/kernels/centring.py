"""The linear kernel about an origin, which with a free intercept gives the same model and keeps its digits.

With a free intercept the dual coefficients add up to 0, so a kernel may be changed by any function of x plus the same
of z. (x − o)ᵀ(z − o) is xᵀz with such a change. Where rows lie far from 0, rounding of xᵀz is relative to their
distance from 0, of (x − o)ᵀ(z − o) to the distances between them.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from dkrr.checks import numbers, shown
from dkrr.errors import InputError
from dkrr.kernels.base import Kernel
from dkrr.kernels.blocks import STRIP_ROWS, Block, Fill, FloatArray, checksum, dot_products, squared_norms
from dkrr.kernels.columns import Columns, leaves
from dkrr.kernels.composite import Scaled, Sum
from dkrr.kernels.dot import Linear, Polynomial
from dkrr.text import plural

FAR = 10.0
"""Ratio of the rows' mean to their spread from which an origin is chosen: below, fewer than two digits are lost."""

Array = npt.NDArray[np.float64]
Origins = tuple[Array | None, ...]
"""Origin of each linear part of a kernel, in the order of `linear_parts`; None for an origin of 0."""


class AboutOrigin:
    """What a kernel and a feature map about an origin share; the origin is read-only, and described by its checksum."""

    origin: Array

    def __post_init__(self) -> None:
        object.__setattr__(self, "origin", as_origin(self.origin))

    def __repr__(self) -> str:
        distance = np.linalg.norm(self.origin)
        return f"{type(self).__qualname__}(origin of {plural(len(self.origin), 'column')}, {distance:.3g} from 0)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and np.array_equal(self.origin, other.origin)

    def __hash__(self) -> int:
        return hash((type(self).__qualname__, self._digest))

    @cached_property
    def _digest(self) -> str:
        return checksum(self.origin)

    def arrays(self) -> dict[str, Any]:
        """The origin as one row, by the checksum that `to_dict` has for it."""
        return {self._digest: self.origin[np.newaxis]}


@dataclass(frozen=True, eq=False, repr=False)
class CentredLinear(AboutOrigin, Kernel):
    """k(x, z) = (x − o)ᵀ(z − o) for an origin o, which fits with a free intercept choose near the rows.

    Parameters
    ----------
    origin : array-like of float, d numbers in all
        o, a number for each column.

    Examples
    --------
    >>> import numpy as np
    >>> from dkrr.kernels.centring import CentredLinear
    >>> CentredLinear([1.0, 1.0])(np.array([[2.0, 3.0]]))
    array([[5.]])
    """

    tag: ClassVar[str] = "centred_linear"
    entry_seconds: ClassVar[float] = 0.5e-9

    origin: Array

    def resolved(self, n_features: int) -> Kernel:
        if n_features != len(self.origin):
            raise InputError(
                f"X has {plural(n_features, 'column')}; expected {len(self.origin)}, as many as the origin"
            )
        return self

    def to_dict(self) -> dict[str, Any]:
        return {"kernel": self.tag, "origin": {"array": self._digest}}

    def _block_writer(self, X: Block, Y: Block, dtype: np.dtype[Any]) -> Fill:
        left = self._centred(X, dtype)
        return dot_products(left, left if Y is X else self._centred(Y, dtype), dtype)

    def _diagonal(self, X: Block) -> Array:
        values = np.empty(X.shape[0])
        for top in range(0, len(values), STRIP_ROWS):
            rows = slice(top, top + STRIP_ROWS)
            values[rows] = squared_norms(self._centred(X[rows], np.dtype(np.float64)))
        return values

    def _centred(self, X: Block, dtype: np.dtype[Any]) -> FloatArray:
        out = np.empty(X.shape, dtype)
        # Subtracted in float64 and then rounded, so that float32 keeps the digits of the small difference.
        np.subtract(X, self.origin, out=out, casting="same_kind", dtype=np.float64)
        return out


def as_origin(values: Any) -> Array:
    """Origin as a read-only copy of shape (d,)."""
    origin = np.array(numbers(values, "origin", expected := "a finite number for each column")).reshape(-1)
    if not np.isfinite(origin).all():
        raise InputError(f"origin is {shown(values)}; expected {expected}")
    origin.flags.writeable = False
    return origin


@dataclass(frozen=True)
class LinearPart:
    """A term s x_Jᵀ z_J of a kernel."""

    scale: float
    """s."""
    columns: slice | npt.NDArray[np.intp]
    """J."""


@dataclass(frozen=True)
class Centring:
    """A kernel and the origins that its linear parts were given."""

    plain: Kernel
    """The kernel about 0."""
    origins: Origins

    def to_list(self) -> list[list[float] | None]:
        """Origins as values of JSON."""
        return [None if origin is None else origin.tolist() for origin in self.origins]

    def shift(self, rows: Block) -> Array:
        """Σ −s oᵀ(x_J − o) over the parts with an origin, for rows (m, d): k(0, x) less that about 0, (m,)."""
        total = np.zeros(rows.shape[0])
        for part, origin in zip(linear_parts(self.plain, rows.shape[1]), self.origins, strict=True):
            if origin is not None:
                total -= part.scale * (np.subtract(rows[:, part.columns], origin, dtype=np.float64) @ origin)
        return total


def linear_parts(kernel: Kernel, n_features: int) -> tuple[LinearPart, ...]:
    """Linear kernels that a kernel of d features is the sum of, from left to right; its other terms are skipped."""
    return tuple(_linear_parts(kernel, 1.0, slice(0, n_features), n_features))


def _linear_parts(
    kernel: Kernel, scale: float, columns: slice | npt.NDArray[np.intp], n_features: int
) -> Iterator[LinearPart]:
    if isinstance(kernel, Linear):
        yield LinearPart(scale, columns)
    elif isinstance(kernel, Sum):
        for term in kernel.parts:
            yield from _linear_parts(term, scale, columns, n_features)
    elif isinstance(kernel, Scaled):
        yield from _linear_parts(kernel.base, scale * kernel.scale, columns, n_features)
    elif isinstance(kernel, Columns):
        of_all = np.arange(n_features)[columns]
        yield from _linear_parts(kernel.base, scale, of_all[kernel.numbers(len(of_all))], n_features)


def with_origins(kernel: Kernel, origins: Origins) -> Kernel:
    """Kernel with origins for its `linear_parts`; with a free intercept it gives the same model."""
    return _about(kernel, iter(origins))


def _about(kernel: Kernel, origins: Iterator[Array | None]) -> Kernel:
    if isinstance(kernel, Linear):
        origin = next(origins)
        return kernel if origin is None else CentredLinear(origin)
    if isinstance(kernel, Sum | Scaled | Columns):
        return kernel.with_parts([_about(part, origins) for part in kernel.parts])
    return kernel


def origins_near(kernel: Kernel, sample: FloatArray, n_rows: int, weights: Array | None = None) -> Origins:
    """Origins for the linear parts of a resolved kernel, which keep the digits of rows far from 0; or no origins.

    Linear kernels, also as parts of sums and multiples, get an origin where the mean of the rows is far from 0 beside
    their spread. Kernels of x − z need none. A polynomial kernel about another origin is another model, and beside one
    nothing is gained: such kernels are unchanged.

    The origin is not the mean m itself: K about it has 1 in its null space, and with λ = 0 would not be positive
    definite where K is. It is m + s/√n with the standard deviations s: 1ᵀK1/n is then ‖s‖², the mean of the
    eigenvalues. For the same reason a single row gets no origin.

    Parameters
    ----------
    sample : ndarray, shape (m, d)
        Some of the rows.
    n_rows : int
        n, without rows of weight 0.
    weights : ndarray, shape (m,), optional
        Sample weights of these rows, above 0: mean and spread are weighted.
    """
    parts = linear_parts(kernel, sample.shape[1])
    if any(isinstance(leaf.base if isinstance(leaf, Columns) else leaf, Polynomial) for leaf in leaves(kernel)):
        parts = ()
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):  # of columns too large to be squared
        each = None if weights is None else weights / weights.max()
        mass = len(sample) if each is None else float(each.sum())
        mean = (np.add.reduce(sample, 0, np.float64) if each is None else each @ sample) / mass
        origins = tuple(_origin(part, sample, mean, each, mass, n_rows) for part in parts) if n_rows > 1 else ()
    return origins if any(origin is not None for origin in origins) else ()


def _origin(
    part: LinearPart, sample: FloatArray, mean: Array, weights: Array | None, mass: float, n_rows: int
) -> Array | None:
    mean, sample = mean[part.columns], sample[:, part.columns]
    distance = float(mean @ mean)
    # ‖m‖² and the squared spread add up to the mean of ‖x‖², which takes one pass, and digits enough for this.
    if weights is None:
        size = float(np.einsum("ij,ij->", sample, sample, dtype=np.float64)) / mass
    else:
        size = float(weights @ squared_norms(sample)) / mass
    if not size < (1.0 + FAR**-2) * distance < math.inf:
        return None
    squares = np.square(np.subtract(sample, mean, dtype=np.float64))
    spread = np.sqrt((squares.sum(axis=0) if weights is None else weights @ squares) / mass)
    return np.asarray(mean + spread / math.sqrt(n_rows))
