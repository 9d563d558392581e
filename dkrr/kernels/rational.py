"""The rational quadratic kernel: a mixture of RBF kernels of many lengths."""

from dataclasses import dataclass, replace
from math import sqrt
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from dkrr.checks import positive
from dkrr.errors import InputError
from dkrr.kernels.base import Kernel
from dkrr.kernels.blocks import Block, BlockWriters, Fill, FloatArray
from dkrr.kernels.euclidean import (
    DistanceColumns,
    ScaledSquaredDistances,
    moderate_lengths,
)
from dkrr.kernels.lengths import Array, Scales, WithLengths

# An error of eps size in u changes k by up to eps a size / (1 + u). Where a size / (1 + u) is larger than this, for an
# error of 1e-12 in float64 and 1e-5 in float32, u is recomputed from x − z.
REFINE_SIZE = {np.dtype(np.float64): 1e3, np.dtype(np.float32): 1e2}
# Beyond it the kernel is that of RBF to six digits; below its inverse it is 1 to three digits for all rows of float64.
MAX_ALPHA = 1e6


@dataclass(frozen=True, kw_only=True)
class RationalQuadratic(WithLengths):
    """k(x, z) = (1 + ‖x − z‖² / (2 a ℓ²))⁻ᵃ, as `sklearn.gaussian_process.kernels.RationalQuadratic`.

    A sum of RBF kernels whose 1 / length² has a gamma distribution: near as smooth as one, and slower to fall. With a
    length for each column its difference is divided by it.

    Parameters
    ----------
    length_scale : float or sequence of float, default=1.0
        ℓ > 0, or one for each column.
    alpha : float, default=1.0
        a, from 1e-6 to 1e6: the smaller, the more the lengths differ; for large a it is the RBF kernel.

    See Also
    --------
    dkrr.kernels.RBF : The Gaussian of the distance.
    dkrr.kernels.Matern : Between the exponential and the Gaussian of the distance.

    References
    ----------
    Rasmussen and Williams (2006), Gaussian Processes for Machine Learning, section 4.2, equation 4.19.

    Examples
    --------
    >>> import numpy as np
    >>> from dkrr.kernels import RationalQuadratic
    >>> RationalQuadratic(alpha=0.5)(np.array([[0.0], [1.0]])).round(4)
    array([[1.    , 0.7071],
           [0.7071, 1.    ]])
    """

    tag: ClassVar[str] = "rational_quadratic"
    names: ClassVar[tuple[str, ...]] = (tag,)
    is_plain: ClassVar[bool] = True
    entry_seconds: ClassVar[float] = 3e-9
    _has_unit_diagonal: ClassVar[bool] = True
    _takes_csr: ClassVar[bool] = True
    _row_copies: ClassVar[int] = 2
    _strip_buffers: ClassVar[int] = 8
    _large_strip_buffers: ClassVar[int | None] = 0
    _kept_copies: ClassVar[int] = 1
    _of_columns: ClassVar[str] = "length_scale"

    length_scale: Scales = 1.0
    alpha: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "length_scale", moderate_lengths(self.length_scale))
        alpha = positive(self.alpha, "alpha")
        if not 1 / MAX_ALPHA <= alpha <= MAX_ALPHA:
            raise InputError(
                f"alpha is {self.alpha!r}; expected a number from {1 / MAX_ALPHA:g} to {MAX_ALPHA:g}: for larger ones "
                f"the kernel is RBF"
            )
        object.__setattr__(self, "alpha", alpha)

    def lengths(self, n_features: int) -> Array:
        return np.broadcast_to(np.asarray(self.length_scale), n_features)

    def with_lengths(self, lengths: Array) -> Self:
        length_scale = lengths.tolist()
        return replace(self, length_scale=length_scale if len(length_scale) > 1 else length_scale[0])

    def length_slopes(self, n_features: int) -> tuple[Kernel, Array]:
        # dk / d log ℓₖ = (1 + u)^−(a + 1) (xₖ − zₖ)² / ℓₖ², with the same u = Σ (xₖ − zₖ)² / (2 a ℓₖ²).
        length_scales = np.asarray(self.length_scale) * sqrt(self.alpha / (self.alpha + 1.0))
        return RationalQuadratic(length_scale=length_scales.tolist(), alpha=self.alpha + 1.0), 1.0 / self.lengths(
            n_features
        ) ** 2

    def _block_writer(self, X: Block, Y: Block, dtype: np.dtype[Any]) -> Fill:
        return self._block_writers(Y, dtype)(X)

    def _block_writers(self, Y: Block, dtype: np.dtype[Any]) -> BlockWriters:
        known, near = DistanceColumns(Y, 0.5 / self.alpha, self.length_scale, -1.0, dtype), REFINE_SIZE[dtype]

        def block_writer(X: Block) -> Fill:
            squares = ScaledSquaredDistances(X, known)

            def fill(rows: slice, columns: slice, out: FloatArray) -> None:
                squares.fill_squares(rows, columns, out, self.alpha / near, 1.0)
                np.log1p(out, out=out)
                out *= -self.alpha
                np.exp(out, out=out)

            return fill

        return block_writer

    def _diagonal(self, X: Block) -> npt.NDArray[np.float64]:
        return np.ones(X.shape[0])
