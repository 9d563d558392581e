"""The linear kernel about an origin, which with a free intercept gives the same model and keeps its digits.

With a free intercept the dual coefficients add up to 0, so a kernel may be changed by any function of x plus the same
of z. (x − o)ᵀ(z − o) is xᵀz with such a change. Where rows lie far from 0, rounding of xᵀz is relative to their
distance from 0, of (x − o)ᵀ(z − o) to the distances between them.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from dkrr.errors import InputError
from dkrr.kernels.base import EntryCost, Kernel
from dkrr.kernels.blocks import STRIP_ROWS, Fill, FloatArray, Rows, dot_products, is_sparse, squared_norms
from dkrr.kernels.columns import Columns, leaves
from dkrr.kernels.composite import Scaled, Sum
from dkrr.kernels.dot import Linear, Polynomial

FAR = 10.0
"""The mean of the rows over their spread from which an origin pays: below, fewer than two digits are at stake."""


@dataclass(frozen=True)
class CentredLinear(Kernel):
    """k(x, z) = (x − o)ᵀ(z − o) for an origin o, which fits with a free intercept choose near the rows.

    Parameters
    ----------
    origin : sequence of float
        o, a number for each column.

    Examples
    --------
    >>> import numpy as np
    >>> from dkrr.kernels.centring import CentredLinear
    >>> CentredLinear([1.0, 1.0])(np.array([[2.0, 3.0]]))
    array([[5.]])
    """

    tag: ClassVar[str] = "centred_linear"

    origin: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "origin", tuple(float(value) for value in self.origin))

    @cached_property
    def _origin(self) -> npt.NDArray[np.float64]:
        return np.array(self.origin)

    def __getstate__(self) -> dict[str, Any]:
        return {"origin": self.origin}

    def resolved(self, n_features: int) -> Kernel:
        """See base class."""
        if n_features != len(self.origin):
            raise InputError(f"X has {n_features} columns; expected {len(self.origin)}, one for each of the origin")
        return self

    def entry_cost(self, n_features: int) -> EntryCost:
        """Return the cost of one entry: a product."""
        return Linear().entry_cost(n_features)

    def to_dict(self) -> dict[str, Any]:
        """See base class."""
        return {"kernel": self.tag, "origin": list(self.origin)}

    def _filler(self, X: Rows, Y: Rows, dtype: np.dtype[Any]) -> Fill:
        left = self._centred(X, dtype)
        return dot_products(left, left if Y is X else self._centred(Y, dtype), dtype)

    def _diagonal(self, X: Rows) -> npt.NDArray[np.float64]:
        values = np.empty(X.shape[0])
        for top in range(0, len(values), STRIP_ROWS):
            rows = slice(top, top + STRIP_ROWS)
            values[rows] = squared_norms(self._centred(X[rows], np.dtype(np.float64)))
        return values

    def _centred(self, X: Rows, dtype: np.dtype[Any]) -> FloatArray:
        out = np.empty(X.shape, dtype)
        # Subtracted in float64 and then rounded, so that float32 keeps the digits of the small difference.
        np.subtract(X.toarray() if is_sparse(X) else X, self._origin, out=out, casting="same_kind", dtype=np.float64)
        return out


def about_the_rows(kernel: Kernel, sample: npt.NDArray[np.float64], n_rows: int) -> Kernel:
    """Return a kernel that gives the same model with a free intercept, and keeps the digits of rows far from 0.

    Linear kernels, also as parts of sums and multiples, get an origin where the mean of the rows is far from 0 beside
    their spread. Kernels of x − z need none. A polynomial kernel about another origin is another model, and beside one
    nothing is gained: such kernels stay as they are.

    The origin is not the mean m itself: K about it has 1 in its null space, and with λ = 0 would not be positive
    definite where K is. It is m + s/√n with the standard deviations s: 1ᵀK1/n is then ‖s‖², the mean of the
    eigenvalues.

    Parameters
    ----------
    kernel : Kernel
        Resolved.
    sample : ndarray, shape (m, d)
        Some of the rows.
    n_rows : int
        n.
    """
    if any(isinstance(leaf.base if isinstance(leaf, Columns) else leaf, Polynomial) for leaf in leaves(kernel)):
        return kernel
    with np.errstate(over="ignore", invalid="ignore"):  # of columns too large to be squared
        mean, spread = sample.mean(axis=0, dtype=np.float64), sample.std(axis=0, dtype=np.float64)
        return _about(kernel, mean, spread, n_rows)


def _about(kernel: Kernel, mean: npt.NDArray[np.float64], spread: npt.NDArray[np.float64], n_rows: int) -> Kernel:
    if isinstance(kernel, Linear):
        distance, width = float(np.linalg.norm(mean)), float(np.linalg.norm(spread))
        is_far = np.isfinite(distance) and 0.0 < FAR * width < distance
        return CentredLinear(tuple((mean + spread / np.sqrt(n_rows)).tolist())) if is_far else kernel
    if isinstance(kernel, Sum):
        left, right = (_about(part, mean, spread, n_rows) for part in (kernel.left, kernel.right))
        return kernel if left is kernel.left and right is kernel.right else Sum(left, right)
    if isinstance(kernel, Scaled):
        base = _about(kernel.base, mean, spread, n_rows)
        return kernel if base is kernel.base else Scaled(base, kernel.scale)
    if isinstance(kernel, Columns):
        where = kernel.numbers(len(mean))
        base = _about(kernel.base, mean[where], spread[where], n_rows)
        return kernel if base is kernel.base else replace(kernel, base=base)
    return kernel
