"""The linear kernel about an origin, which with an intercept gives the same model and keeps its digits.

With an intercept the dual coefficients add up to 0, so a kernel may be changed by any function of x plus the same
of z. (x − o)ᵀ(z − o) is xᵀz with such a change. Where rows lie far from 0, rounding of xᵀz is relative to their
distance from 0, of (x − o)ᵀ(z − o) to the distances between them.
"""

import math
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


@dataclass(frozen=True, eq=False, repr=False)
class CentredLinear(Kernel):
    """k(x, z) = (x − o)ᵀ(z − o) for an origin o, which fits with an intercept choose near the rows.

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
    """Read-only, and described by its checksum."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "origin", as_origin(self.origin))

    def __repr__(self) -> str:
        distance = np.linalg.norm(self.origin)
        return f"{type(self).__qualname__}(origin of {plural(len(self.origin), 'column')}, {distance:.3g} from 0)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CentredLinear) and np.array_equal(self.origin, other.origin)

    def __hash__(self) -> int:
        return hash((type(self).__qualname__, self._digest))

    @cached_property
    def _digest(self) -> str:
        return checksum(self.origin)

    def arrays(self) -> dict[str, Any]:
        """The origin as one row, by the checksum that `to_dict` has for it."""
        return {self._digest: self.origin[np.newaxis]}

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
class Centring:
    """A kernel and the origin that its linear parts were given."""

    plain: Kernel
    """The kernel about 0."""
    origin: Array
    """o, of shape (d,)."""

    def shift(self, rows: Block) -> Array:
        """−Σⱼ sⱼ oⱼ (xⱼ − oⱼ) for rows x (m, d): k(0, x) less that about 0, (m,); s are the `linear_scales`."""
        scales = linear_scales(self.plain, rows.shape[1])
        return -(np.subtract(rows, self.origin, dtype=np.float64) @ (scales * self.origin))


def linear_scales(kernel: Kernel, n_features: int) -> Array:
    """Numbers s, (d,), of the term Σⱼ sⱼ xⱼ zⱼ that linear kernels add to a kernel; its other terms are skipped."""
    scales = np.zeros(n_features)
    if isinstance(kernel, Linear):
        scales += 1.0
    elif isinstance(kernel, Sum):
        for part in kernel.parts:
            scales += linear_scales(part, n_features)
    elif isinstance(kernel, Scaled):
        scales += kernel.scale * linear_scales(kernel.base, n_features)
    elif isinstance(kernel, Columns):
        columns = np.arange(n_features)[kernel.numbers(n_features)]
        scales[columns] = linear_scales(kernel.base, len(columns))
    return scales


def with_origin(kernel: Kernel, origin: Array) -> Kernel:
    """Kernel with an origin (d,) for its linear parts; with an intercept it gives the same model."""
    if isinstance(kernel, Linear):
        return CentredLinear(origin)
    if isinstance(kernel, Columns):
        origin = origin[kernel.numbers(len(origin))]
    if isinstance(kernel, Sum | Scaled | Columns):
        return kernel.with_parts([with_origin(part, origin) for part in kernel.parts])
    return kernel


def origin_near(kernel: Kernel, sample: FloatArray, n_rows: int, weights: Array | None = None) -> Array | None:
    """Origin for the linear parts of a resolved kernel, (d,), which keeps the digits of rows far from 0; or None.

    It is given where the mean of the rows is far from 0 beside their spread, in the columns of linear kernels, which
    may be parts of sums and multiples: rounding is relative to the entries of the whole sum. Kernels of x − z need
    none. A polynomial kernel about another origin is another model, and beside one nothing is gained: such kernels are
    unchanged.

    The origin is not the mean m itself: K about it has 1 in its null space, and with λ = 0 would not be positive
    definite where K is. It is m + σ/√n with the standard deviations σ: 1ᵀK1/n is then ‖σ‖², the mean of the
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
    scales = linear_scales(kernel, sample.shape[1])
    bases = (leaf.base if isinstance(leaf, Columns) else leaf for leaf in leaves(kernel))
    if n_rows < 2 or any(isinstance(base, Polynomial) for base in bases):
        return None
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):  # of columns too large to be squared
        share = np.ones(len(sample)) if weights is None else weights / weights.max()
        share /= share.sum()
        mean = share @ sample
        distance = float(scales @ mean**2)
        # ‖m‖² and the squared spread add up to the mean of ‖x‖², which takes one pass, and digits enough for this.
        size = float(share @ np.square(sample, dtype=np.float64) @ scales)
        if not size < (1.0 + FAR**-2) * distance < math.inf:
            return None
        spread = np.sqrt(share @ np.square(np.subtract(sample, mean, dtype=np.float64)))
    return np.where(scales > 0, mean + spread / math.sqrt(n_rows), 0.0)
