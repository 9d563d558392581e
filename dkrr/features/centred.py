"""The columns about an origin: the feature map of the linear kernel about it."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt
from typing import Any, ClassVar

import numpy as np

from dkrr import blas
from dkrr.features.base import Array, FeatureMap, dense_rows
from dkrr.features.columns import ColumnsMap
from dkrr.features.maps import ConcatenatedMap, ScaledMap
from dkrr.kernels import Kernel
from dkrr.kernels.blocks import STRIP_ENTRIES, Block
from dkrr.kernels.centring import AboutOrigin, CentredLinear


@dataclass(frozen=True, eq=False, repr=False)
class CentredMap(AboutOrigin, FeatureMap):
    """φ(x) = x − o for an origin o, for the kernel (x − o)ᵀ(z − o).

    Parameters
    ----------
    origin : array-like of float, d numbers in all
        o, a number for each column.
    """

    tag: ClassVar[str] = "centred"

    origin: Array

    def dimension(self, n_features: int) -> int:
        return n_features

    def kernel(self) -> Kernel:
        return CentredLinear(self.origin)

    def to_dict(self) -> dict[str, Any]:
        """See base class; the checksum of the origin stands for it."""
        return {"feature_map": self.tag, "origin": {"array": self._digest}}

    def _fill(self, X: Block, start: int, stop: int, out: Array) -> None:
        np.subtract(dense_rows(X[:, start:stop]), self.origin[start:stop], out=out, dtype=np.float64)

    def _multiply(self, X: Block, coef: Array) -> Array:
        out = np.empty((X.shape[0], coef.shape[1]))
        for rows, strip in self._strips(X):
            blas.gemm(out[rows], strip, coef)
        return out

    def _adjoint(self, X: Block, values: Array) -> Array:
        out = np.zeros((X.shape[1], values.shape[1]))
        for rows, strip in self._strips(X):
            blas.gemm(out, strip, values[rows], transpose_a=True, beta=1.0)
        return out

    def _strips(self, X: Block) -> Iterator[tuple[slice, Array]]:
        """Yield ranges of rows with their features, which the next ones overwrite.

        Xw − 1(oᵀw) would need no subtraction from X, and lose the digits that the origin keeps.
        """
        height = max(1, STRIP_ENTRIES // max(X.shape[1], 1))
        strip = np.empty((min(height, X.shape[0]), X.shape[1]))
        for top in range(0, X.shape[0], height):
            rows = slice(top, min(top + height, X.shape[0]))
            features = strip[: rows.stop - top]
            self._fill(X[rows], 0, X.shape[1], features)
            yield rows, features


def difference_at_zero(phi: FeatureMap, plain: FeatureMap, n_features: int) -> Array:
    """φ(0) of a map with origins minus that of the map without, (D,); parts without an origin are not computed."""
    if isinstance(phi, CentredMap) and not isinstance(plain, CentredMap):
        return -phi.origin
    if isinstance(phi, ScaledMap) and isinstance(plain, ScaledMap):
        return sqrt(phi.scale) * difference_at_zero(phi.base, plain.base, n_features)
    if isinstance(phi, ColumnsMap) and isinstance(plain, ColumnsMap):
        return difference_at_zero(phi.base, plain.base, phi.width)
    if isinstance(phi, ConcatenatedMap) and isinstance(plain, ConcatenatedMap):
        pairs = (phi.left, plain.left), (phi.right, plain.right)
        return np.concatenate([difference_at_zero(one, other, n_features) for one, other in pairs])
    return np.zeros(phi.dimension(n_features))
