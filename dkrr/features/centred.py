"""The columns about an origin: the feature map of the linear kernel about it."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from dkrr.features.base import Array, FeatureMap
from dkrr.kernels import Kernel
from dkrr.kernels.blocks import Rows, is_sparse
from dkrr.kernels.centring import CentredLinear


@dataclass(frozen=True)
class CentredMap(FeatureMap):
    """φ(x) = x − o for an origin o, for the kernel (x − o)ᵀ(z − o).

    Parameters
    ----------
    origin : sequence of float
        o, a number for each column.
    """

    tag: ClassVar[str] = "centred"

    origin: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "origin", tuple(float(value) for value in self.origin))

    @cached_property
    def _origin(self) -> Array:
        return np.array(self.origin)

    def __getstate__(self) -> dict[str, Any]:
        return {"origin": self.origin}

    def dimension(self, n_features: int) -> int:
        """Return D = d."""
        return n_features

    def kernel(self) -> Kernel:
        """Return the linear kernel about the origin."""
        return CentredLinear(self.origin)

    def to_dict(self) -> dict[str, Any]:
        """See base class."""
        return {"feature_map": self.tag, "origin": list(self.origin)}

    def _fill(self, X: Rows, start: int, stop: int, out: Array) -> None:
        part = X[:, start:stop]
        np.subtract(part.toarray() if is_sparse(X) else part, self._origin[start:stop], out=out, dtype=np.float64)
