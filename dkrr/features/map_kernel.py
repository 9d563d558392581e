"""The kernel of a feature map that was not made from a kernel: k(x, z) = ⟨φ(x), φ(z)⟩."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from dkrr import blas
from dkrr.errors import InputTypeError
from dkrr.features.base import FeatureMap
from dkrr.features.custom import check_own_class
from dkrr.kernels import EntryCost, Kernel
from dkrr.kernels.blocks import STRIP_ROWS, Fill, FloatArray, Rows

BLOCK_ROWS = 1024
"""Rows of the blocks in which dkrr calls kernels: so many entries share the features of a row."""


@dataclass(frozen=True)
class MapKernel(Kernel):
    """k(x, z) = φ(x)ᵀφ(z): what a feature map such as `RandomFourier` is to everything that takes a kernel.

    It adds, multiplies and scales like any other kernel.

    Parameters
    ----------
    base : FeatureMap
        φ.

    Examples
    --------
    >>> import numpy as np
    >>> from dkrr.features import MapKernel, RandomFourier
    >>> from dkrr.kernels import RBF
    >>> kernel = MapKernel(RandomFourier(RBF(gamma=0.5), n_components=10))
    >>> kernel(np.array([[0.0, 1.0]])).round(12)
    array([[1.]])
    """

    tag: ClassVar[str] = "map"

    base: FeatureMap

    def __post_init__(self) -> None:
        if not isinstance(self.base, FeatureMap):
            raise InputTypeError(f"{self.base!r} is not a feature map; expected a dkrr.features.FeatureMap")
        check_own_class(self.base)

    def resolved(self, n_features: int) -> Kernel:
        """Return the kernel of the resolved map."""
        known = self.base.resolved(n_features)
        return self if known is self.base else MapKernel(known)

    def entry_cost(self, n_features: int) -> EntryCost:
        """Return the cost of one entry: a product, and its share of the features of two blocks of rows."""
        dimension = self.base.dimension(n_features)
        features = 2.0 * dimension / BLOCK_ROWS * self.base.entry_seconds(n_features)
        return EntryCost(2.0 * dimension, features)

    def _dense_workspace_bytes(self, n_rows: int, n_columns: int, n_features: int) -> int:
        """Return an upper bound of the temporary memory: the features of both blocks, and what those need."""
        features = 8 * (n_rows + n_columns) * self.base.dimension(n_features)
        held = self.base.held_bytes(n_features)
        return features + held + super()._dense_workspace_bytes(n_rows, n_columns, n_features)

    def to_dict(self) -> dict[str, Any]:
        """Return a description of JSON's types only; arrays are named by their checksum."""
        return {"kernel": self.tag, "feature_map": self.base.to_dict()}

    def _filler(self, X: Rows, Y: Rows, dtype: np.dtype[Any]) -> Fill:
        left = self.base.transform(X).astype(dtype, copy=False)
        right = left if Y is X else self.base.transform(Y).astype(dtype, copy=False)

        def fill(rows: slice, columns: slice, out: FloatArray) -> None:
            blas.gemm(out, left[rows], right[columns], transpose_b=True)

        return fill

    def _diagonal(self, X: Rows) -> npt.NDArray[np.float64]:
        values = np.empty(X.shape[0])
        for start in range(0, len(values), STRIP_ROWS):
            phi = self.base.transform(X[start : start + STRIP_ROWS])
            np.einsum("ij,ij->i", phi, phi, out=values[start : start + STRIP_ROWS])
        return values
