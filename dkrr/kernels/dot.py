"""Kernels of the dot product xᵀz: linear, polynomial, sigmoid, cosine.

The RBF kernel with its exponential series cut off: the kernel of a finite feature map.
"""

from abc import abstractmethod
from dataclasses import dataclass
from math import factorial
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.special import gammaincc

from dkrr.checks import finite, positive_or_none
from dkrr.errors import InputError
from dkrr.kernels.base import Kernel
from dkrr.kernels.blocks import (
    Block,
    Fill,
    FloatArray,
    Scratch,
    are_moderate,
    dot_products,
    is_sparse,
    normalise_exponents,
    squared_norms,
)


@dataclass(frozen=True)
class Linear(Kernel):
    """k(x, z) = xᵀz.

    See Also
    --------
    dkrr.kernels.Polynomial : Powers of the dot product.
    dkrr.kernels.Cosine : The dot product of rows of length 1.
    dkrr.features.feature_map : The finite feature map of a kernel, if it has one.

    Examples
    --------
    >>> import numpy as np
    >>> from dkrr.kernels import Linear
    >>> Linear()(np.array([[1.0, 2.0]]), np.array([[3.0, 4.0]]))
    array([[11.]])
    """

    tag: ClassVar[str] = "linear"
    names: ClassVar[tuple[str, ...]] = (tag,)
    entry_seconds: ClassVar[float] = 0.5e-9
    _takes_csr: ClassVar[bool] = True

    @property
    def row_degree(self) -> float | None:
        return 1

    def _block_writer(self, X: Block, Y: Block, dtype: np.dtype[Any]) -> Fill:
        return dot_products(X, Y, dtype)

    def _diagonal(self, X: Block) -> npt.NDArray[np.float64]:
        return squared_norms(X)


class _FunctionOfDotProduct(Kernel):
    """A kernel f(xᵀz)."""

    entry_seconds: ClassVar[float] = 1.5e-9
    _takes_csr: ClassVar[bool] = True

    def _block_writer(self, X: Block, Y: Block, dtype: np.dtype[Any]) -> Fill:
        multiply, scratch = dot_products(X, Y, dtype), Scratch(dtype)

        def fill(rows: slice, columns: slice, out: FloatArray) -> None:
            multiply(rows, columns, out)
            self._apply(out, scratch)

        return fill

    def _diagonal(self, X: Block) -> npt.NDArray[np.float64]:
        values = squared_norms(X)
        self._apply(values[np.newaxis], Scratch(np.float64, len(values)))
        return values

    @abstractmethod
    def _apply(self, dots: FloatArray, scratch: Scratch) -> None:
        """Turn a matrix of xᵀz into the kernel, in place."""


@dataclass(frozen=True, kw_only=True)
class Polynomial(_FunctionOfDotProduct):
    """k(x, z) = (γ xᵀz + c)ᵖ.

    Parameters
    ----------
    degree : float, default=3
        p ≥ 0. A fractional p needs γ xᵀz + c ≥ 0 for every pair.
    gamma : float, optional
        γ > 0; None means 1 / n_features.
    coef0 : float, default=1.0
        c. The kernel is positive semidefinite for c ≥ 0 and whole p.

    See Also
    --------
    dkrr.kernels.Linear : The dot product.
    dkrr.kernels.Sigmoid : The hyperbolic tangent of the dot product.
    dkrr.features.feature_map : The finite feature map of a kernel, if it has one.

    Examples
    --------
    >>> import numpy as np
    >>> from dkrr.kernels import Polynomial
    >>> Polynomial(degree=2, gamma=1.0)(np.array([[1.0, 2.0]]))
    array([[36.]])
    """

    tag: ClassVar[str] = "polynomial"
    names: ClassVar[tuple[str, ...]] = ("poly", tag)
    _strip_buffers: ClassVar[int] = 1

    degree: float = 3
    gamma: float | None = None
    coef0: float = 1.0

    def __post_init__(self) -> None:
        degree = finite(self.degree, "degree")
        if degree < 0:
            raise InputError(f"degree is {self.degree!r}; expected a number of at least 0")
        object.__setattr__(self, "degree", int(degree) if degree.is_integer() else degree)
        object.__setattr__(self, "gamma", positive_or_none(self.gamma, "gamma"))
        object.__setattr__(self, "coef0", finite(self.coef0, "coef0"))

    @property
    def row_degree(self) -> float | None:
        return self.degree if self.coef0 == 0 else None

    def _apply(self, dots: FloatArray, scratch: Scratch) -> None:
        dots *= _known(self.gamma)
        dots += self.coef0
        if isinstance(self.degree, int):
            _raise_to_whole(dots, self.degree, scratch.like(dots))
            return
        if float(dots.min()) < 0:
            raise InputError(
                f"degree is {self.degree} and γ xᵀz + coef0 is negative for some rows; expected a whole degree, since "
                "a negative number has no fractional power: change degree, coef0, or use non-negative features"
            )
        np.power(dots, self.degree, out=dots)


@dataclass(frozen=True, kw_only=True)
class Sigmoid(_FunctionOfDotProduct):
    """k(x, z) = tanh(γ xᵀz + c), as in scikit-learn; it may be indefinite.

    Parameters
    ----------
    gamma : float, optional
        γ > 0; None means 1 / n_features.
    coef0 : float, default=1.0
        c.

    See Also
    --------
    dkrr.kernels.Polynomial : Powers of the dot product.
    dkrr.kernels.smallest_eigenvalue : Whether a kernel is positive definite on a sample of rows.

    Examples
    --------
    >>> import numpy as np
    >>> from dkrr.kernels import Sigmoid
    >>> Sigmoid(gamma=1.0, coef0=0.0)(np.array([[1.0, 0.0]]), np.array([[0.5, 3.0]])).round(4)
    array([[0.4621]])
    """

    tag: ClassVar[str] = "sigmoid"
    names: ClassVar[tuple[str, ...]] = (tag,)

    gamma: float | None = None
    coef0: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "gamma", positive_or_none(self.gamma, "gamma"))
        object.__setattr__(self, "coef0", finite(self.coef0, "coef0"))

    def _apply(self, dots: FloatArray, scratch: Scratch) -> None:  # noqa: ARG002
        dots *= _known(self.gamma)
        dots += self.coef0
        np.tanh(dots, out=dots)


@dataclass(frozen=True)
class Cosine(Kernel):
    """k(x, z) = xᵀz / (‖x‖ ‖z‖); 0 where x or z is all zeros, as in scikit-learn.

    See Also
    --------
    dkrr.kernels.Linear : The dot product.
    dkrr.kernels.Normalized : A kernel with k(x, x) = 1.

    Examples
    --------
    >>> import numpy as np
    >>> from dkrr.kernels import Cosine
    >>> Cosine()(np.array([[3.0, 4.0], [0.0, 0.0]]))
    array([[1., 0.],
           [0., 0.]])
    """

    tag: ClassVar[str] = "cosine"
    names: ClassVar[tuple[str, ...]] = (tag,)
    entry_seconds: ClassVar[float] = 1.5e-9
    _has_unit_diagonal: ClassVar[bool] = True
    _takes_csr: ClassVar[bool] = True
    _row_copies: ClassVar[int] = 2

    @property
    def row_degree(self) -> float | None:
        return 0

    def _block_writer(self, X: Block, Y: Block, dtype: np.dtype[Any]) -> Fill:
        left = unit_rows(X)
        return dot_products(left, left if Y is X else unit_rows(Y), dtype)

    def _diagonal(self, X: Block) -> npt.NDArray[np.float64]:
        return (_with_lengths(X)[1] > 0).astype(np.float64)


def unit_rows(X: Block) -> Block:
    """Rows divided by their Euclidean norms; a row of zeros is unchanged."""
    X, norms = _with_lengths(X)
    scale = 1.0 / np.where(norms > 0, norms, 1.0)
    if is_sparse(X):  # a product with a diagonal matrix would take memory of the width of X
        return sp.csr_array((X.data * np.repeat(scale, np.diff(X.indptr)), X.indices, X.indptr), shape=X.shape)
    return X * scale[:, np.newaxis]


def _with_lengths(X: Block) -> tuple[Block, npt.NDArray[np.float64]]:
    """Rows, times powers of two where squares would leave the range of float64, and their norms."""
    squares = squared_norms(X)
    if not are_moderate(squares):
        X = normalise_exponents(X)
        squares = squared_norms(X)
    return X, np.sqrt(squares)


def _known(gamma: float | None) -> float:
    assert gamma is not None, "the kernel must be resolved first"
    return gamma


def _raise_to_whole(base: FloatArray, power: int, factor: FloatArray) -> None:
    """Compute baseᵖ in place by squaring: a product takes a tenth of np.power's time."""
    if power == 0:
        base[...] = 1.0
        return
    bits = bin(power)[3:]
    if not bits:
        return
    if "1" in bits:
        np.copyto(factor, base)
    for bit in bits:
        np.multiply(base, base, out=base)
        if bit == "1":
            np.multiply(base, factor, out=base)


MAX_DEGREE = 500
"""Above it, exp(−γ‖x‖²) of some rows is 0 in float64 where the kernel is not."""
MAX_DOT = 700.0
"""Largest 2γ|xᵀz| that is computed: beyond, γ‖x‖² + γ‖z‖² is as large, and the kernel below 1e-14 for every degree."""


@dataclass(frozen=True, kw_only=True)
class TaylorRBF(Kernel):
    """k(x, z) = exp(−γ‖x‖² − γ‖z‖²) Σ_{k≤r} (2γ xᵀz)ᵏ/k!: the RBF kernel with a series of finite degree.

    The kernel of `dkrr.features.TaylorMap`, computed from xᵀz instead of its C(d + r, r) features. Unlike the RBF
    kernel it depends on where the origin is, and is near it only where γ‖x‖² is well below r: centre the rows.

    The terms are Poisson probabilities: k(x, x) = Q(r + 1, 2γ‖x‖²), the regularised upper incomplete gamma function.

    Parameters
    ----------
    degree : int
        r, from 0 to 500.
    gamma : float, optional
        γ > 0; None means 1 / n_features. With a length scale σ, γ = 1 / (2σ²).

    See Also
    --------
    dkrr.kernels.RBF : The Gaussian of the distance.
    dkrr.features.TaylorMap : An approximation of the RBF kernel by monomials.

    References
    ----------
    A. Cotter, J. Keshet, N. Srebro, "Explicit approximations of the Gaussian kernel", arXiv:1109.4603, 2011.

    Examples
    --------
    >>> import numpy as np
    >>> from dkrr.kernels import RBF, TaylorRBF
    >>> X = np.array([[0.0], [1.0]])
    >>> np.abs(TaylorRBF(degree=6, gamma=0.5)(X) - RBF(gamma=0.5)(X)).round(6)
    array([[0.0e+00, 0.0e+00],
           [0.0e+00, 8.3e-05]])
    """

    tag: ClassVar[str] = "taylor_rbf"
    entry_seconds: ClassVar[float] = 3e-9
    _takes_csr: ClassVar[bool] = True
    # Dot products, and the sum where `out` is float32.
    _strip_buffers: ClassVar[int] = 2

    degree: int
    gamma: float | None = None

    def __post_init__(self) -> None:
        degree = finite(self.degree, "degree")
        if not 0 <= degree <= MAX_DEGREE or not degree.is_integer():
            raise InputError(
                f"degree is {self.degree!r}; expected a whole number from 0 to {MAX_DEGREE}: where more terms are "
                "needed rows lie far from the origin, so centre them, or use the RBF kernel itself"
            )
        object.__setattr__(self, "degree", int(degree))
        object.__setattr__(self, "gamma", positive_or_none(self.gamma, "gamma"))

    def _block_writer(self, X: Block, Y: Block, dtype: np.dtype[Any]) -> Fill:
        assert self.gamma is not None, "the kernel must be resolved first"
        # Always in float64: exp(−γ‖x‖²) leaves the range of float32 where the kernel is still 1.
        multiply, scratch, sums = dot_products(X, Y, np.float64), Scratch(), Scratch()
        left = self.gamma * squared_norms(X)
        right = left if Y is X else self.gamma * squared_norms(Y)
        # exp(−γ‖x‖²) is 0 there, whatever xᵀz is.
        is_undefined = not np.isfinite(left.max(initial=0.0) + right.max(initial=0.0))
        may_be_large = 2 * np.sqrt(left.max(initial=0.0) * right.max(initial=0.0)) > MAX_DOT
        left, right = np.exp(-left), np.exp(-right)
        unit, series = self._series()
        scale = 2 * self.gamma / unit

        def fill(rows: slice, columns: slice, out: FloatArray) -> None:
            s, total = scratch.like(out), out if dtype == np.float64 else sums.like(out)
            multiply(rows, columns, s)
            if is_undefined:
                np.nan_to_num(s, copy=False)
            s *= scale
            if may_be_large:
                np.clip(s, -MAX_DOT / unit, MAX_DOT / unit, out=s)
            total[...] = series[-1]
            for term in series[-2::-1]:
                total *= s
                total += term
            # Not their product, which may be below float64's range where the kernel is not.
            total *= left[rows, np.newaxis]
            np.multiply(total, right[columns], out=out, casting="same_kind")

        return fill

    def _diagonal(self, X: Block) -> npt.NDArray[np.float64]:
        assert self.gamma is not None, "the kernel must be resolved first"
        values: npt.NDArray[np.float64] = gammaincc(self.degree + 1.0, 2 * self.gamma * squared_norms(X))
        return values

    def _series(self) -> tuple[int, list[float]]:
        """Integer u and uᵏ/k!, the coefficients of the powers of s/u: 1/k! alone is below float64's range at 178."""
        unit = max(1, self.degree // 5)
        return unit, [unit**k / factorial(k) for k in range(self.degree + 1)]
