"""The RBF kernel with its exponential series cut off: the kernel of a finite feature map."""

from dataclasses import dataclass
from math import factorial
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from scipy.special import gammaincc

from dkrr.errors import InputError
from dkrr.kernels.base import EntryCost, Kernel
from dkrr.kernels.blocks import Block, Fill, FloatArray, Scratch, dot_products, squared_norms
from dkrr.kernels.costs import PASS_SECONDS, WRITE_SECONDS
from dkrr.values import finite, positive_or_none

MAX_DEGREE = 500
"""Above it, exp(−γ‖x‖²) of some rows is 0 in float64 where the kernel is not."""
MAX_DOT = 700.0
"""Where 2γ|xᵀz| is larger, the kernel is below 1e-14 for every degree, as γ‖x‖² + γ‖z‖² is then larger too."""


@dataclass(frozen=True)
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

    def entry_cost(self, n_features: int) -> EntryCost:
        return EntryCost(2.0 * n_features, WRITE_SECONDS + (2 * self.degree + 4) * PASS_SECONDS)

    def _filler(self, X: Block, Y: Block, dtype: np.dtype[Any]) -> Fill:
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
